"""Paths on the Earth for maps and globes: GeoJSON, GPX and KML."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import printable
from anchor3r.io.files import replacing

_DATES_S = 86400.0 * 365, 253_402_300_800.0
"""Times below a year are counted from a video's start, not since 1970, and after the year 9999 there are no
dates: none is made of them."""
_GPX = "http://www.topografix.com/GPX/1/1"
_KML = "http://www.opengis.net/kml/2.2"


def write_geojson(
    path: Path | str,
    geodetic: NDArray[np.float64],
    times_s: NDArray[np.float64] | None,
    properties: dict[str, Any],
) -> None:
    """The path as one line through latitude, longitude, altitude (n, 3) of each pose."""
    line = [[round(lon, 9), round(lat, 9), round(up, 4)] for lat, lon, up in geodetic.tolist()]
    if times_s is not None:
        properties = properties | {"times": [round(t, 6) for t in times_s.tolist()]}
    feature = {
        "type": "Feature",
        "geometry": {"type": "LineString", "coordinates": line},
        "properties": properties,
    }
    _write(path, json.dumps({"type": "FeatureCollection", "features": [feature]}).encode())


def write_gpx(
    path: Path | str, geodetic: NDArray[np.float64], times_s: NDArray[np.float64] | None, name: str
) -> None:
    """The path as a track; points have times where these are dates."""
    xml.register_namespace("", _GPX)
    root = xml.Element(f"{{{_GPX}}}gpx", version="1.1", creator="anchor3r")
    track = xml.SubElement(root, f"{{{_GPX}}}trk")
    xml.SubElement(track, f"{{{_GPX}}}name").text = printable(name)
    segment = xml.SubElement(track, f"{{{_GPX}}}trkseg")
    for k, (lat, lon, up) in enumerate(geodetic.tolist()):
        point = xml.SubElement(segment, f"{{{_GPX}}}trkpt", lat=f"{lat:.9f}", lon=f"{lon:.9f}")
        xml.SubElement(point, f"{{{_GPX}}}ele").text = f"{up:.4f}"
        if times_s is not None and _DATES_S[0] < times_s[k] < _DATES_S[1]:
            moment = datetime.fromtimestamp(float(times_s[k]), UTC)
            xml.SubElement(point, f"{{{_GPX}}}time").text = moment.isoformat().replace("+00:00", "Z")
    _write(path, xml.tostring(root, encoding="utf-8", xml_declaration=True))


def write_kml(path: Path | str, geodetic: NDArray[np.float64], name: str) -> None:
    """The path as a line for globes."""
    xml.register_namespace("", _KML)
    root = xml.Element(f"{{{_KML}}}kml")
    placemark = xml.SubElement(xml.SubElement(root, f"{{{_KML}}}Document"), f"{{{_KML}}}Placemark")
    xml.SubElement(placemark, f"{{{_KML}}}name").text = printable(name)
    line = xml.SubElement(placemark, f"{{{_KML}}}LineString")
    xml.SubElement(line, f"{{{_KML}}}altitudeMode").text = "absolute"
    xml.SubElement(line, f"{{{_KML}}}coordinates").text = " ".join(
        f"{lon:.9f},{lat:.9f},{up:.4f}" for lat, lon, up in geodetic.tolist()
    )
    _write(path, xml.tostring(root, encoding="utf-8", xml_declaration=True))


def _write(path: Path | str, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)
