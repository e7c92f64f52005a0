"""Point clouds for surveying programs: LAS, and LAZ where it is compressed.

LAS has z upwards, and coordinates that are integers in a grid fixed in its header. So points are turned, and
wait in a temporary file until their extent is known. Where the map knows its place, coordinates are those of
its UTM zone, and the file says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from anchor3r.geodesy import Datum
from anchor3r.io.extras import export_library
from anchor3r.io.files import replacing
from anchor3r.io.pointcloud import Cloud, insist_on_points

LAS_FROM_MAP = np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]])
"""The map is in the axes of its first camera (y down): its forward becomes y, its up becomes z."""
_POINT = np.dtype([("xyz", "<f4", (3,)), ("rgb", "u1", (3,)), ("confidence", "<f4")])
_GRID_STEPS = 2**30  # across the largest extent: finer than single precision, within a signed integer
_BATCH = 1_000_000
_COLOUR_SCALE = 257  # 255 becomes 65535
_FORMAT_WITH_COLOUR = 2


def write_las(
    path: Path | str, clouds: Iterable[Cloud], *, compressed: bool = False, datum: Datum | None = None
) -> int:
    """Writes LAS 1.2 (or LAZ) with colours, confidence an extra dimension; returns the number of points.

    datum: where a georeferenced world has its origin.
    """
    laspy = export_library("laspy")
    if compressed:
        export_library("lazrs")
    with replacing(path) as file, tempfile.TemporaryFile(dir=Path(path).parent) as waiting:
        count, low, high = _wait(clouds, waiting)
        insist_on_points(count, path)
        header = laspy.LasHeader(point_format=_FORMAT_WITH_COLOUR, version="1.2")
        header.add_extra_dim(laspy.ExtraBytesParams(name="confidence", type=np.float32))
        to_zone = None if datum is None else _Zone(datum)
        middle = (low + high) / 2
        header.offsets = middle if to_zone is None else to_zone(middle[None])[0]
        header.scales = np.full(3, max(float((high - low).max()), 1e-6) / _GRID_STEPS)
        if to_zone is not None:
            header.add_crs(to_zone.crs)
        header.generating_software = "anchor3r"
        with laspy.open(file, mode="w", header=header, do_compress=compressed, closefd=False) as las:
            for batch in _batches(waiting):
                points = laspy.ScaleAwarePointRecord.zeros(len(batch), header=header)
                xyz = batch["xyz"].astype(np.float64)
                points.x, points.y, points.z = (xyz if to_zone is None else to_zone(xyz)).T
                points.red, points.green, points.blue = batch["rgb"].astype(np.uint16).T * _COLOUR_SCALE
                points.confidence = batch["confidence"]
                las.write_points(points)
    return count


class _Zone:
    """The UTM zone of a place: east, north, up there -> easting, northing, altitude."""

    def __init__(self, datum: Datum) -> None:
        pyproj = export_library("pyproj")
        zone = int((datum.longitude_deg + 180) // 6) % 60 + 1
        self.crs = pyproj.CRS.from_epsg((32600 if datum.latitude_deg >= 0 else 32700) + zone)
        self._datum = datum
        self._transform = pyproj.Transformer.from_crs("EPSG:4326", self.crs).transform

    def __call__(self, local: NDArray[np.float64]) -> NDArray[np.float64]:
        latitude, longitude, altitude = self._datum.to_geodetic(local).T
        easting, northing = self._transform(latitude, longitude)
        return np.stack([easting, northing, altitude], -1)


def _wait(clouds: Iterable[Cloud], waiting: BinaryIO) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
    """Puts all points, turned, into the file; returns their number and extent."""
    count, low, high = 0, np.full(3, np.inf), np.full(3, -np.inf)
    for cloud in clouds:
        batch = np.empty(len(cloud), _POINT)
        batch["xyz"] = cloud.points @ LAS_FROM_MAP.T
        batch["rgb"], batch["confidence"] = cloud.colours, cloud.confidence
        waiting.write(batch.tobytes())
        count += len(batch)
        low = np.minimum(low, batch["xyz"].min(0, initial=np.inf))
        high = np.maximum(high, batch["xyz"].max(0, initial=-np.inf))
    return count, low, high


def _batches(waiting: BinaryIO) -> Iterator[NDArray[np.void]]:
    waiting.seek(0)
    while data := waiting.read(_BATCH * _POINT.itemsize):
        yield np.frombuffer(data, _POINT)
