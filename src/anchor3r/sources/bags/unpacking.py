"""Unpacks what recordings hold, as far as `Limits` allows: their libraries unpack whatever it comes to.

A few kilobytes can stand for gigabytes. The readers call their decompressors by name; `bound_libraries` puts
others there, which stop.
"""

from __future__ import annotations

import bz2
import os
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, BinaryIO

from anchor3r.io.extras import bag_library
from anchor3r.limits import LIMITS

_STEP_BYTES = 16 << 20
"""Unpacked at once."""


def unpacked(new_stream: Callable[[], Any], data: bytes) -> bytes:
    """What packed data come to, which may be several streams one after another.

    new_stream: makes a decompressor with the interface of `bz2.BZ2Decompressor`.
    """
    parts: list[bytes] = []
    size = 0
    while data:
        stream, given = new_stream(), data
        while not stream.eof:
            part = stream.decompress(given, _STEP_BYTES)
            if not part and not stream.eof and stream.needs_input:
                raise EOFError("packed data end too early")
            parts.append(part)
            size, given = size + len(part), b""
            if size > LIMITS.chunk_bytes:
                raise ValueError(f"packed data unpack to more than {LIMITS.chunk_bytes:,} bytes")
        data = stream.unused_data or b""
    return b"".join(parts)


class _BoundedFile:
    """A packed file that is read to its end, and may not be too many times as large as what packs it."""

    def __init__(self, file: Any, num_bytes: int) -> None:
        self._file, self._left = file, num_bytes

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._file.read(size if size >= 0 else _STEP_BYTES)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"it unpacks to more than {LIMITS.unpacked_ratio:,} times its size")
        return data

    def __enter__(self) -> _BoundedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _plain_yaml(typ: str) -> Any:
    """A reader without mappings that are merged into each other: a few of them come to gigabytes."""
    library = bag_library("ruamel.yaml")
    yaml = library.YAML(typ=typ)
    usual = yaml.Constructor

    def flatten_mapping(constructor: Any, node: Any) -> Any:
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise library.error.YAMLError("it merges mappings")
        return usual.flatten_mapping(constructor, node)

    yaml.Constructor = type("PlainConstructor", (usual,), {"flatten_mapping": flatten_mapping})
    return yaml


@cache
def bound_libraries() -> None:
    """Has `mcap` and `rosbags` unpack by this module; before anything of a recording is read."""
    ros1, ros2 = bag_library("rosbags.rosbag1.reader"), bag_library("rosbags.rosbag2.reader")
    ros2_mcap, mcap = bag_library("rosbags.rosbag2.storage_mcap"), bag_library("mcap.stream_reader")
    zstd = ros2.zstd
    from_zstd = partial(unpacked, zstd.ZstdDecompressor)
    from_lz4 = partial(unpacked, bag_library("lz4.frame").LZ4FrameDecompressor)

    def open_zstd(file: BinaryIO, mode: str) -> _BoundedFile:
        return _BoundedFile(zstd.open(file, mode), LIMITS.unpacked_ratio * os.fstat(file.fileno()).st_size)

    ros2.YAML = bag_library("rosbags.rosbag2.metadata").YAML = _plain_yaml
    ros1.decompressors.update(bz2=partial(unpacked, bz2.BZ2Decompressor), lz4=from_lz4)
    ros2.zstd = SimpleNamespace(decompress=from_zstd, open=open_zstd, ZstdError=zstd.ZstdError)
    ros2_mcap.DECOMPRESSORS.update(lz4=lambda data, _: from_lz4(data), zstd=lambda data, _: from_zstd(data))
    mcap.zstandard = SimpleNamespace(decompress=lambda data, _: from_zstd(data))
    mcap.lz4 = SimpleNamespace(decompress=from_lz4)
