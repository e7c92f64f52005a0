"""Positions that come with images: geotags of photographs, fixes in recordings, the telemetry of GoPro.

What is only positions (GPX, NMEA, CSV, oxts, captions) is read by `io.positions`, to which this falls back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import av
import numpy as np
from av.container import InputContainer
from av.stream import Stream
from numpy.typing import NDArray
from PIL import ExifTags

from anchor3r.errors import Anchor3RError
from anchor3r.io.inputs import decoding, insist_on_file
from anchor3r.io.positions import UERE_M, Fix, PositionFixes, collected, read_positions
from anchor3r.sources.bags.messages import stamp_ns
from anchor3r.sources.bags.recording import Recording, damage_told, is_recording, open_recording
from anchor3r.sources.images import (
    DECODING_ERRORS,
    PhotoSequence,
    image_paths,
    opened_image,
    photo_facts,
)

_VIDEOS = {".mp4", ".mov", ".360", ".lrv"}
_FIXES = {"sensor_msgs/NavSatFix", "foxglove.LocationFix"}
_NO_FIX = -1  # of NavSatStatus
_NS = 1e9
_TELEMETRY = b"DEVC"
_GPS9 = "lllllllSS"
_TYPES = {"l": ">i4", "L": ">u4", "s": ">i2", "S": ">u2", "f": ">f4", "d": ">f8"}
"""Of GoPro's telemetry, as numpy calls them."""
_LEAST_FIX = 2  # in two dimensions, or three
_Sample = tuple[Sequence[float] | None, float]
"""Where the camera was, if that was known, and the dilution of precision."""
_LOCAL = {"format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2", "protocol_whitelist": "file"}


def read_fixes(name: str) -> PositionFixes:
    """Positions of a file or folder; of a recording `?topic=NAME` chooses one of several topics."""
    location, _, query = name.partition("?")
    path = Path(location)
    if query or is_recording(path):
        return _from_recording(path, query)
    if path.suffix.lower() in _VIDEOS:
        return _from_telemetry(path)
    if path.is_dir() and (paths := image_paths([str(file) for file in path.iterdir() if file.is_file()])):
        return _from_geotags(path, paths)
    return read_positions(path)


def _from_recording(path: Path, query: str) -> PositionFixes:
    """Fixes of ROS and Foxglove; those that the receiver itself calls none are left out."""
    wanted = dict(parse_qsl(query)).get("topic")
    with open_recording(path) as recording, damage_told(path):
        found = sorted(name for name, topic in recording.topics.items() if topic.kind in _FIXES)
        if wanted is not None and wanted not in found:
            raise Anchor3RError(f"{path} has no fixes under {wanted}; it has {', '.join(found) or 'none'}")
        if not found:
            raise Anchor3RError(
                f"{path} has no topic of type {' or '.join(sorted(_FIXES))}; name another file"
            )
        if wanted is None and len(found) > 1:
            raise Anchor3RError(
                f"{path} has fixes under {', '.join(found)}; choose one: --gnss '{path}?topic={found[0]}'"
            )
        return collected(path, list(_messages(recording, wanted or found[0])))


def _messages(recording: Recording, topic: str) -> Iterator[Fix]:
    for number, (time_ns, message) in enumerate(recording.messages(topic), 1):
        status: Any = getattr(message, "status", None)
        if status is not None and int(getattr(status, "status", 0)) == _NO_FIX:
            continue
        kind = int(getattr(message, "position_covariance_type", 0))
        variance = np.array(getattr(message, "position_covariance", ()), np.float64)[::4]
        is_told = kind > 0 and len(variance) == 3 and bool(np.all(variance > 0))
        sigma = np.sqrt(variance) if is_told else np.full(3, np.nan)
        position = (float(message.latitude), float(message.longitude), float(message.altitude))
        if not np.isfinite(position[2]):  # which ROS allows
            position = (*position[:2], 0.0)
        yield Fix(f"message {number}", (stamp_ns(message) or time_ns) / _NS, position, tuple(sigma))


def _from_geotags(folder: Path, paths: Sequence[str]) -> PositionFixes:
    """Positions of photographs or frames, at the times that they have as a source."""
    sequence = PhotoSequence(str(folder), slice(None), paths)
    fixes = [fix for index in range(len(paths)) if (fix := _geotag(sequence, index)) is not None]
    if not fixes:
        raise Anchor3RError(
            f"none of the {len(paths)} images in {folder} says where it was taken; name a file"
        )
    return collected(folder, fixes)


def _geotag(sequence: PhotoSequence, index: int) -> Fix | None:
    path = sequence.paths[index]
    try:
        with opened_image(path) as image:
            entries, taken_s = image.getexif().get_ifd(ExifTags.IFD.GPSInfo), photo_facts(image).taken_s
    except DECODING_ERRORS:
        return None
    try:
        latitude = _angle(entries[ExifTags.GPS.GPSLatitude], entries.get(ExifTags.GPS.GPSLatitudeRef))
        longitude = _angle(entries[ExifTags.GPS.GPSLongitude], entries.get(ExifTags.GPS.GPSLongitudeRef))
        below = entries.get(ExifTags.GPS.GPSAltitudeRef, 0) in (1, b"\x01")
        altitude = float(entries.get(ExifTags.GPS.GPSAltitude, 0.0)) * (-1 if below else 1)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    if not np.isfinite((latitude, longitude, altitude)).all():  # 0/0, as cameras write before they have a fix
        return None
    return Fix(Path(path).name, sequence.time_s(index, taken_s), (latitude, longitude, altitude))


def _angle(parts: Sequence[Any], side: str | None) -> float:
    if len(parts) != 3:
        raise ValueError("an angle has degrees, minutes and seconds")
    degrees = sum(float(part) / 60**k for k, part in enumerate(parts))
    return -degrees if str(side).strip("\0 ").upper() in ("S", "W") else degrees


class _Entry(NamedTuple):
    """Of GoPro's telemetry: a key of four letters, a type, and the payload."""

    key: bytes
    kind: bytes
    size: int
    """bytes of a sample"""
    data: bytes


def _from_telemetry(path: Path) -> PositionFixes:
    """GPS5 or GPS9 of a GoPro video: positions of a packet are spread evenly over its time."""
    insist_on_file(path)
    remedy = "name a video of a GoPro that plays, or its track as .gpx"
    fixes: list[Fix] = []
    try:
        with decoding(str(path), remedy), av.open(str(path), options=_LOCAL) as video:
            for stream in video.streams:
                if stream.type == "data":
                    fixes += _stream_fixes(video, stream, len(fixes))
    except av.FFmpegError as error:
        raise Anchor3RError(f"cannot open {path} ({error.strerror}); {remedy}") from error
    if not fixes:
        raise Anchor3RError(
            f"{path} holds no positions: no telemetry of a GoPro with GPS5 or GPS9, or no fix; name a .gpx"
        )
    return collected(path, fixes)


def _stream_fixes(video: InputContainer, stream: Stream, before: int) -> list[Fix]:
    fixes: list[Fix] = []
    video.seek(0)
    for packet in video.demux(stream):
        payload = bytes(packet)
        if packet.pts is None or packet.time_base is None or not payload.startswith(_TELEMETRY):
            continue
        start_s = float(packet.pts * packet.time_base)
        length_s = float((packet.duration or 0) * packet.time_base)
        fixes += _packet_fixes(payload, start_s, length_s, before + len(fixes))
    return fixes


def _packet_fixes(payload: bytes, start_s: float, length_s: float, before: int) -> Iterator[Fix]:
    for device in _entries(payload):
        for stream in _entries(device.data) if device.key == _TELEMETRY else ():
            held = {entry.key: entry for entry in _entries(stream.data)} if stream.key == b"STRM" else {}
            if b"SCAL" not in held or not {b"GPS5", b"GPS9"} & held.keys():
                continue
            samples = _samples_of_gps9(held) if b"GPS9" in held else _samples_of_gps5(held)
            for k, (position, dilution) in enumerate(samples):
                if position is not None:
                    sigma, before = UERE_M * dilution, before + 1
                    moment = start_s + length_s * k / len(samples)
                    yield Fix(f"sample {before}", moment, position, (sigma, sigma, 1.5 * sigma))


def _samples_of_gps5(held: Mapping[bytes, _Entry]) -> list[_Sample]:
    """Latitude, longitude, altitude and two speeds; fix and dilution are those of the packet."""
    if b"GPSF" in held and struct.unpack(">L", held[b"GPSF"].data[:4])[0] < _LEAST_FIX:
        return []
    values = np.frombuffer(held[b"GPS5"].data, ">i4").reshape(-1, 5) / _scales(held[b"SCAL"])
    dilution = np.nan
    if b"GPSP" in held:
        dilution = struct.unpack(">H", held[b"GPSP"].data[:2])[0] / 100
    return [(position, dilution) for position in values[:, :3].tolist()]


def _samples_of_gps9(held: Mapping[bytes, _Entry]) -> list[_Sample]:
    """Structures of nine numbers: those of GPS5, days since 2000, seconds of the day, dilution and fix."""
    kinds = held[b"TYPE"].data.rstrip(b"\0").decode("ascii") if b"TYPE" in held else _GPS9
    if len(kinds) != len(_GPS9) or not set(kinds) <= _TYPES.keys():
        raise ValueError(f"GPS9 of the type {kinds!r} instead of {_GPS9}")
    structure = np.dtype([(f"{k}", _TYPES[kind]) for k, kind in enumerate(kinds)])
    table = np.frombuffer(held[b"GPS9"].data, structure)
    scales = np.broadcast_to(_scales(held[b"SCAL"]), len(_GPS9))
    values = np.stack([table[name] for name in table.dtype.names or ()], 1) / scales
    return [(row[:3] if row[8] >= _LEAST_FIX else None, row[7]) for row in values.tolist()]


def _scales(entry: _Entry) -> NDArray[np.float64]:
    """What values were multiplied by, one number for each or for all."""
    found = np.frombuffer(entry.data, _TYPES[entry.kind.decode("ascii")]).astype(np.float64)
    if np.any(found == 0):
        raise ValueError("a scale of 0")
    return found


def _entries(data: bytes) -> Iterator[_Entry]:
    """Keys, types and payloads one after the other, each padded to four bytes."""
    at = 0
    while at + 8 <= len(data):
        key, kind, size, repeat = struct.unpack(">4scBH", data[at : at + 8])
        length = size * repeat
        if key == b"\0\0\0\0" or at + 8 + length > len(data):
            return
        yield _Entry(key, kind, size, data[at + 8 : at + 8 + length])
        at += 8 + -(-length // 4) * 4
