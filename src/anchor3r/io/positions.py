"""Measured positions as files: GPX, NMEA, CSV, KITTI's oxts folders and the captions that drones write.

All become `PositionFixes`: times, and either latitude, longitude and altitude, or metres in a frame of the
user's own. Entries that cannot be right are refused by name.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.io.inputs import csv_rows, decoding, insist_on_file, text_lines
from anchor3r.io.tables import parse_numbers, read_fields
from anchor3r.limits import LIMITS

Float = NDArray[np.float64]

_DAY_S = 86400.0
UERE_M = 4.0
"""Standard deviation of a range to a satellite, which a dilution of precision multiplies."""
_UP_OVER_PLANE = 1.5
"""How much less sure heights of satellite positions are, where only the plane's precision is told."""
_OXTS_ACCURACY = 23
"""Column of an oxts line with the accuracy of positions in metres."""


@dataclass(frozen=True, kw_only=True)
class PositionFixes:
    """Measured positions in the order of their times; n of them."""

    times_s: Float
    """(n,) ascending; seconds since 1970 where the format has a date"""
    position: Float
    """(n, 3) latitude and longitude in degrees and altitude in metres, or metres if `is_local`"""
    sigma_m: Float
    """(n, 3) standard deviations east, north, up; NaN where the file does not say"""
    entries: list[str]
    """(n,) what to call each in a message: "line 12" """
    is_local: bool = False
    """Whether positions are metres in a frame of the file's own instead of places on the Earth."""

    def __len__(self) -> int:
        return len(self.times_s)


@dataclass(frozen=True)
class Fix:
    """One measured position."""

    entry: str
    time_s: float
    position: Sequence[float]
    sigma_m: Sequence[float] = (np.nan, np.nan, np.nan)


def read_positions(path: Path | str) -> PositionFixes:
    """Reads a file, or a folder of KITTI's oxts, by its name and contents."""
    path = Path(path)
    if not path.is_dir():
        insist_on_file(path, max_bytes=LIMITS.text_bytes)
    with decoding(str(path), "check that it is the right file, or get it again"):
        reader = _reader(path)
        fixes = list(reader(path))
    return collected(path, fixes, is_local=reader is _read_local_csv)


def collected(path: Path, fixes: list[Fix], *, is_local: bool = False) -> PositionFixes:
    """Checked positions in the order of their times. path: what to call them in a message."""
    if not fixes:
        raise Anchor3RError(f"{path} holds no positions with times; check that it is the right file")
    fixes = sorted(fixes, key=lambda fix: fix.time_s)
    found = PositionFixes(
        times_s=np.array([fix.time_s for fix in fixes]),
        position=np.array([fix.position for fix in fixes], np.float64),
        sigma_m=np.array([fix.sigma_m for fix in fixes], np.float64),
        entries=[fix.entry for fix in fixes],
        is_local=is_local,
    )
    _check(path, found)
    return found


def _check(path: Path, fixes: PositionFixes) -> None:
    latitude, longitude = fixes.position[:, 0], fixes.position[:, 1]
    outside = np.zeros(len(fixes), bool)
    if not fixes.is_local:
        outside = (np.abs(latitude) > 90) | (np.abs(longitude) > 180)
    reasons = {
        "has a time that is not a number": ~np.isfinite(fixes.times_s),
        "has a position that is not a number": ~np.isfinite(fixes.position).all(1),
        "has a position that is farther away than any place on the Earth": np.abs(fixes.position).max(1)
        > LIMITS.coordinate_m,
        "is not on the Earth (latitude and longitude swapped?)": outside,
        "has a standard deviation that is not positive": (fixes.sigma_m <= 0).any(1),
        "has a standard deviation that no measurement has": (
            (fixes.sigma_m < LIMITS.least_sigma) | (fixes.sigma_m > LIMITS.coordinate_m)
        ).any(1),
    }
    for reason, bad in reasons.items():
        if bad.any():
            named = [fixes.entries[k] for k in np.flatnonzero(bad)[:3]]
            more = f" and {int(bad.sum()) - 3} more" if bad.sum() > 3 else ""
            raise Anchor3RError(f"{', '.join(named)}{more} of {path} {reason}; correct or remove it")
    for k in np.flatnonzero(np.diff(fixes.times_s) == 0)[:1]:
        if np.any(fixes.position[k] != fixes.position[k + 1]):
            raise Anchor3RError(
                f"{fixes.entries[k]} and {fixes.entries[k + 1]} of {path} tell two positions for one time; "
                "remove one"
            )


def _reader(path: Path) -> Callable[[Path], Iterator[Fix]]:
    if path.is_dir():
        return _read_oxts
    suffix = path.suffix.lower()
    if suffix == ".csv":
        names = set(_csv_header(path))
        return _read_csv if names & set(_COLUMNS["latitude"]) else _read_local_csv
    readers = {".gpx": _read_gpx, ".srt": _read_captions, ".nmea": _read_nmea}
    if suffix in readers:
        return readers[suffix]
    with open(path, "rb") as file:
        if file.read(1) == b"$":
            return _read_nmea
    raise Anchor3RError(
        f"{path} is no kind of positions that is known: .gpx, .nmea, .csv, .srt (drones), .mp4 (GoPro), a "
        "recording of ROS, a folder of photographs or one of KITTI's oxts; convert it to .csv with columns "
        "time, latitude, longitude, altitude"
    )


def _time_s(text: str) -> float:
    """Seconds, or a date and time (UTC unless it says otherwise)."""
    text = text.strip()
    try:
        return float(text)
    except ValueError:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _read_gpx(path: Path) -> Iterator[Fix]:
    number = 0
    try:
        for _, element in xml.iterparse(path):
            name = element.tag.rsplit("}", 1)[-1]
            if name not in ("trkpt", "rtept", "wpt"):
                continue
            number += 1
            parts = {child.tag.rsplit("}", 1)[-1]: (child.text or "").strip() for child in element}
            if "time" not in parts:
                continue
            spread = UERE_M * float(parts["hdop"]) if parts.get("hdop") else np.nan
            up = UERE_M * float(parts["vdop"]) if parts.get("vdop") else np.nan
            position = (
                float(element.attrib["lat"]),
                float(element.attrib["lon"]),
                float(parts.get("ele") or 0),
            )
            yield Fix(f"point {number}", _time_s(parts["time"]), position, (spread, spread, up))
            element.clear()
    except (xml.ParseError, ValueError, KeyError) as error:
        raise Anchor3RError(f"{path} is damaged after point {number} ({error}); get it again") from error


def _read_nmea(path: Path) -> Iterator[Fix]:
    """GGA sentences, with the date of the RMC or ZDA sentence before; days that pass are counted."""
    day_s, last_s, date_s = 0.0, -np.inf, 0.0
    for number, line in text_lines(path, errors="replace"):
        fields = line.strip().split("*")[0].split(",")
        if not fields[0].startswith("$") or not _has_right_checksum(line):
            continue
        kind = fields[0][3:]
        try:
            if kind == "RMC" and len(fields) > 9 and len(fields[9]) == 6:
                date_s = datetime.strptime(fields[9], "%d%m%y").replace(tzinfo=UTC).timestamp()
            elif kind == "ZDA" and len(fields) > 4 and fields[4]:
                date_s = datetime(int(fields[4]), int(fields[3]), int(fields[2]), tzinfo=UTC).timestamp()
            elif kind == "GGA" and len(fields) > 9 and fields[6] not in ("", "0"):
                clock = fields[1]
                time_s = int(clock[:2]) * 3600 + int(clock[2:4]) * 60 + float(clock[4:])
                if date_s == 0 and time_s < last_s - _DAY_S / 2:
                    day_s += _DAY_S
                last_s = time_s
                spread = UERE_M * float(fields[8]) if fields[8] else np.nan
                position = (
                    _degrees(fields[2], fields[3]),
                    _degrees(fields[4], fields[5]),
                    float(fields[9] or 0),
                )
                yield Fix(f"line {number}", date_s + day_s + time_s, position, (spread, spread, 1.5 * spread))
        except ValueError as error:
            raise Anchor3RError(f"line {number} of {path} is damaged ({error}); remove it") from error


def _has_right_checksum(line: str) -> bool:
    """A sentence without a checksum passes; one whose checksum is wrong was garbled on its way."""
    body, star, stated = line.strip().partition("*")
    if not star:
        return True
    total = 0
    for character in body[1:]:
        total ^= ord(character)
    return stated[:2].upper() == f"{total:02X}"


def _degrees(text: str, side: str) -> float:
    """NMEA's ddmm.mmmm and N, S, E or W."""
    whole, minutes = divmod(float(text), 100)
    return (whole + minutes / 60) * (-1 if side in ("S", "W") else 1)


_COLUMNS = {
    "time": ("time", "timestamp", "timestamp_s", "time_s", "t"),
    "latitude": ("latitude", "lat", "latitude_deg"),
    "longitude": ("longitude", "lon", "lng", "longitude_deg"),
    "altitude": ("altitude", "alt", "altitude_m", "height", "ele", "elevation"),
    "sigma": ("sigma", "sigma_m", "accuracy", "horizontal_accuracy", "hacc"),
    "sigma_up": ("sigma_up", "sigma_up_m", "vertical_accuracy", "vacc"),
    "x": ("x", "east", "east_m", "x_m"),
    "y": ("y", "north", "north_m", "y_m"),
    "z": ("z", "up", "up_m", "z_m"),
}
"""What columns of a CSV file may be called."""


def _csv_header(path: Path) -> list[str]:
    _, names = next(csv_rows(path), (1, []))
    return [name.strip().lower() for name in names]


def _read_csv(path: Path) -> Iterator[Fix]:
    return _csv_rows(path, ("latitude", "longitude", "altitude"), needed=("time", "latitude", "longitude"))


def _read_local_csv(path: Path) -> Iterator[Fix]:
    return _csv_rows(path, ("x", "y", "z"), needed=("time", "x", "y", "z"))


def _csv_rows(path: Path, axes: Sequence[str], *, needed: Sequence[str]) -> Iterator[Fix]:
    header = _csv_header(path)
    column = {
        what: header.index(name) for what, names in _COLUMNS.items() for name in names if name in header
    }
    if missing := [what for what in needed if what not in column]:
        raise Anchor3RError(
            f"{path} has no column {', '.join(missing)}; its first line has to name time, latitude, "
            "longitude and, where known, altitude, sigma (metres), sigma_up; or time, x, y, z in metres"
        )
    rows = csv_rows(path)
    next(rows)
    for number, row in rows:
        if not any(field.strip() for field in row):
            continue
        try:
            yield _csv_fix(f"line {number}", row, column, axes)
        except (ValueError, IndexError) as error:
            raise Anchor3RError(f"line {number} of {path} is damaged ({error}); correct it") from error


def _csv_fix(entry: str, row: Sequence[str], column: dict[str, int], axes: Sequence[str]) -> Fix:
    def number(what: str, default: float) -> float:
        return float(row[column[what]]) if what in column and row[column[what]].strip() else default

    sigma = number("sigma", np.nan)
    position = [number(axis, 0.0 if axis == "altitude" else np.nan) for axis in axes]
    return Fix(entry, _time_s(row[column["time"]]), position, (sigma, sigma, number("sigma_up", sigma)))


def _read_oxts(folder: Path) -> Iterator[Fix]:
    """KITTI's raw recordings: timestamps.txt and data/0000000000.txt and on."""
    times, files = folder / "timestamps.txt", sorted((folder / "data").glob("*.txt"))
    if not times.is_file() or not files:
        raise Anchor3RError(f"{folder} has no timestamps.txt and data/*.txt; name an oxts folder of KITTI")
    moments = [line.strip() for _, line in text_lines(times) if line.strip()]
    if len(moments) != len(files):
        raise Anchor3RError(f"{folder} has {len(moments)} times for {len(files)} positions; get it again")
    for moment, file in zip(moments, files, strict=True):
        line, fields = next(read_fields(file), (1, []))
        numbers = parse_numbers(file, line, fields, len(fields))
        if len(numbers) <= _OXTS_ACCURACY:
            raise Anchor3RError(f"{file} has {len(numbers)} numbers where an oxts line has 30; get it again")
        accuracy = numbers[_OXTS_ACCURACY] or np.nan
        # Nanoseconds are more than datetime reads.
        yield Fix(file.name, _time_s(moment[:26]), numbers[:3], (accuracy, accuracy, accuracy))


_CAPTION = re.compile(
    r"\[?\s*(latitude|longitude|longtitude|abs_alt|altitude)\s*:\s*(-?[\d.]+)", re.IGNORECASE
)
_MOMENT = re.compile(r"(\d\d):(\d\d):(\d\d)[,.](\d{1,3})\s*-->")


def _read_captions(path: Path) -> Iterator[Fix]:
    """The .srt that DJI's drones write beside a video: a caption a frame, timed from the video's start."""
    last: dict[str, Any] = {}
    for number, line in text_lines(path, errors="replace"):
        if moment := _MOMENT.search(line):
            hours, minutes, seconds, fraction = moment.groups()
            last = {
                "time": int(hours) * 3600 + int(minutes) * 60 + int(seconds) + float(f"0.{fraction}"),
                "line": number,
            }
        for name, value in _CAPTION.findall(line):
            last[name.lower().replace("longtitude", "longitude")] = float(value)
        if {"time", "latitude", "longitude"} <= last.keys() and _CAPTION.search(line):
            altitude = last.get("abs_alt", last.get("altitude", 0.0))
            if last["latitude"] or last["longitude"]:  # both 0 until the receiver knows better
                yield Fix(
                    f"line {last['line']}", last["time"], (last["latitude"], last["longitude"], altitude)
                )
            last = {}
