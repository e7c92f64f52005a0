"""Measured positions in every format: read right, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anchor3r.errors import Anchor3RError
from anchor3r.io.positions import read_positions


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_gpx_by_an_independent_writer(tmp_path: Path) -> None:
    gpxpy = pytest.importorskip("gpxpy.gpx")
    from datetime import UTC, datetime

    gpx, segment = gpxpy.GPX(), gpxpy.GPXTrackSegment()
    for k in range(4):
        segment.points.append(
            gpxpy.GPXTrackPoint(
                48.1 + 1e-4 * k, -11.5, elevation=500 + k, time=datetime(2026, 5, 1, 12, 0, k, tzinfo=UTC)
            )
        )
    track = gpxpy.GPXTrack()
    track.segments.append(segment)
    gpx.tracks.append(track)
    fixes = read_positions(written(tmp_path / "walk.gpx", gpx.to_xml()))
    np.testing.assert_allclose(fixes.position[:, 0], 48.1 + 1e-4 * np.arange(4))
    np.testing.assert_allclose(fixes.position[2], [48.1002, -11.5, 502])
    assert fixes.times_s[0] == datetime(2026, 5, 1, 12, tzinfo=UTC).timestamp()
    assert np.isnan(fixes.sigma_m).all()


def test_nmea_by_an_independent_writer(tmp_path: Path) -> None:
    pynmea2 = pytest.importorskip("pynmea2")
    lines = [str(pynmea2.RMC("GP", "RMC", ("235959.00", "A", *[""] * 6, "", "310526")))]
    for clock in ("235959.00", "000000.50"):
        if clock[0] == "0":
            lines.append(str(pynmea2.RMC("GP", "RMC", (clock, "A", *[""] * 6, "", "010626"))))
        fields = (
            clock,
            "4807.0380",
            "N",
            "01131.0000",
            "W",
            "1",
            "08",
            "0.9",
            "545.4",
            "M",
            "46.9",
            "M",
            "",
            "",
        )
        fields = (*fields[:5], "1", "08", "0.9", *fields[8:])
        lines.append(str(pynmea2.GGA("GP", "GGA", fields)))
    lines.append(lines[-1].replace("4807", "4809"))  # garbled: its checksum is wrong
    fixes = read_positions(written(tmp_path / "log.nmea", "\r\n".join(lines)))
    assert len(fixes) == 2
    np.testing.assert_allclose(fixes.position[0], [48 + 7.038 / 60, -(11 + 31 / 60), 545.4])
    assert np.diff(fixes.times_s) == pytest.approx([1.5])


def test_csv_with_spreads_and_dates(tmp_path: Path) -> None:
    rows = [
        "Timestamp,lat,lon,alt,sigma,sigma_up",
        "2026-05-01T12:00:01Z,48,11,500,2,5",
        "2026-05-01T12:00:00Z,49,11,,,",
    ]
    fixes = read_positions(written(tmp_path / "a.csv", "\n".join(rows)))
    np.testing.assert_allclose(fixes.position, [[49, 11, 0], [48, 11, 500]])
    np.testing.assert_allclose(fixes.sigma_m[1], [2, 2, 5])
    assert fixes.entries == ["line 3", "line 2"]


def test_csv_in_metres(tmp_path: Path) -> None:
    fixes = read_positions(written(tmp_path / "a.csv", "time,x,y,z\n0,1,2,3\n1,1000,2,3\n"))
    assert fixes.is_local
    np.testing.assert_allclose(fixes.position[1], [1000, 2, 3])


def test_oxts(tmp_path: Path) -> None:
    numbers = np.arange(30.0)
    for k in range(2):
        numbers[:3], numbers[23] = [49.0 + k, 8.4, 116], 0.07
        written(tmp_path / f"data/{k:010}.txt", " ".join(map(str, numbers)) + "\n")
    written(tmp_path / "timestamps.txt", "2011-09-26 13:02:25.594360375\n2011-09-26 13:02:25.697\n")
    fixes = read_positions(tmp_path)
    np.testing.assert_allclose(fixes.position[:, 0], [49, 50])
    np.testing.assert_allclose(fixes.sigma_m, 0.07)
    assert np.diff(fixes.times_s)[0] == pytest.approx(0.10264, abs=1e-5)


def test_captions_of_a_drone(tmp_path: Path) -> None:
    caption = (
        '{n}\n00:00:0{n},033 --> 00:00:0{n},066\n<font size="28">FrameCnt: {n}, DiffTime: 33ms\n'
        "[iso: 110] [latitude: 34.0{n}] [longitude: -118.25] [rel_alt: 1.2 abs_alt: 90.5] </font>\n\n"
    )
    fixes = read_positions(written(tmp_path / "DJI_1.SRT", "".join(caption.format(n=n) for n in (1, 2, 3))))
    np.testing.assert_allclose(fixes.times_s, [1.033, 2.033, 3.033])
    np.testing.assert_allclose(fixes.position[1], [34.02, -118.25, 90.5])


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.csv", "time,lat,lon\n0,112.5,48.1\n", "line 2 of .* is not on the Earth .*swapped"),
        ("a.csv", "time,lat,lon\n0,48,11\n1,nan,11\n", "line 3 of .* not a number"),
        ("a.csv", "time,lat,lon\n0,48,11\n0,49,11\n", "line 2 and line 3 of .* two positions"),
        ("a.csv", "time,lat,lon,sigma\n0,48,11,-1\n", "standard deviation"),
        ("a.csv", "time,lat,lon\n0,48\n", "line 2 of .* is damaged"),
        ("a.csv", "when,lat,lon\n0,48,11\n", "no column time"),
        ("a.csv", "time,x\n0,48\n", "no column y, z"),
        ("a.csv", "", "no column"),
        ("a.csv", "time,lat,lon\n", "holds no positions"),
        ("a.gpx", "<gpx><trkpt lat='1' lon='2'><time>2026-01-01T00:00:00Z</time>", "damaged after point 0"),
        ("a.gpx", "<gpx><trkpt lat='x' lon='2'><time>2026-01-01T00:00:00Z</time></trkpt></gpx>", "damaged"),
        ("a.xyz", "hello", "no kind of positions"),
        ("a.nmea", "nothing here", "holds no positions"),
        ("a.srt", "1\n00:00:01,0 --> 00:00:02,0\nhello\n", "holds no positions"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    with pytest.raises(Anchor3RError, match=complaint):
        read_positions(written(tmp_path / name, text))
