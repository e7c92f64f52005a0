"""Measured depths of keyframes as rows of the database, and how they were measured.

Depth is kept as half floats (0.05 %), confidence in steps of 1/255, normals as two bytes on an octahedron (to
about a degree), colours as JPEG; all but the last are deflated.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.keyframe_depth import KeyframeDepth
from anchor3r.limits import LIMITS
from anchor3r.store.pointmaps import (
    COLOUR_QUALITY,
    DEFLATE_LEVEL,
    decode_picture,
    encode_picture,
    inflated,
    pack_halves,
    power_of_two,
    unpack_halves,
)
from anchor3r.store.rows import pinhole_from_json

DENSIFICATION_KEY = "densification"
"""Of the table meta: how the depths in the map are measured."""
DEPTH_COLUMNS = "frame, camera, scale, depth, confidence, normals, origin, colours"


@dataclass(frozen=True, kw_only=True)
class Densification:
    """How the depths of a map's keyframes were measured."""

    poses: str
    """Name of the poses that they were measured with."""
    identity: dict[str, Any]
    """Everything that decides them: settings, poses, images (JSON)."""
    complete: bool
    """Whether all keyframes have theirs."""
    summary: dict[str, Any]
    """What came out (JSON); empty while it is not complete."""


def depth_row(view: KeyframeDepth) -> dict[str, Any]:
    """The columns of one keyframe."""
    scale = power_of_two(view.depth)
    confidence = np.round(255 * view.confidence).astype(np.uint8)
    return {
        "frame": view.frame,
        "camera": json.dumps(astuple(view.camera)),
        "scale": scale,
        "depth": pack_halves(view.depth[..., None] / np.float32(scale)),
        "confidence": _deflated(confidence),
        "normals": _deflated(np.moveaxis(_octahedral(view.normals_in_camera), -1, 0)),
        "origin": _deflated(view.origin),
        "colours": encode_picture(view.colours, COLOUR_QUALITY, full_chroma=True),
    }


def depth_from_row(row: Sequence[Any]) -> KeyframeDepth:
    """From the values of DEPTH_COLUMNS."""
    frame, camera_json, scale, depth, confidence, normals, origin, colours = row
    camera = pinhole_from_json(camera_json)
    if camera is None or camera.height * camera.width > LIMITS.pixels or not 0 < scale < np.inf:
        raise ValueError("a depth image has no camera or scale")
    size = camera.height, camera.width
    values = unpack_halves(depth, (*size, 1))[..., 0] * np.float32(scale)
    octahedral = np.moveaxis(_inflated(normals, np.int8, (2, *size)), 0, -1)
    direction = _from_octahedral(octahedral)
    direction[np.isnan(values)] = np.nan
    kept = ~np.isnan(values)  # beyond what halves hold there is no depth
    picture = decode_picture(colours)
    if picture.shape[:2] != size:
        raise ValueError("a depth image has colours of another size")
    return KeyframeDepth(
        frame=frame,
        camera=camera,
        depth=values,
        confidence=np.asarray(kept * _inflated(confidence, np.uint8, size) / 255, np.float32),
        normals_in_camera=direction,
        origin=kept * _inflated(origin, np.uint8, size),
        colours=picture,
    )


def _octahedral(normals: NDArray[np.float32]) -> NDArray[np.int8]:
    """Unit vectors (..., 3) -> (..., 2): projected onto an octahedron, its back folded out."""
    normals = np.nan_to_num(normals)
    length = np.abs(normals).sum(-1, keepdims=True)
    x, y, z = np.moveaxis(normals / np.where(length > 0, length, 1), -1, 0)
    folded_x, folded_y = (1 - np.abs(y)) * _sign(x), (1 - np.abs(x)) * _sign(y)
    flat = np.where((z > 0)[..., None], np.stack([folded_x, folded_y], -1), np.stack([x, y], -1))
    return np.asarray(np.round(127 * flat), np.int8)


def _from_octahedral(values: NDArray[np.int8]) -> NDArray[np.float32]:
    x, y = np.moveaxis(values.astype(np.float32) / 127, -1, 0)
    z = np.abs(x) + np.abs(y) - 1
    back = z > 0
    x, y = np.where(back, (1 - np.abs(y)) * _sign(x), x), np.where(back, (1 - np.abs(x)) * _sign(y), y)
    out = np.stack([x, y, z], -1)
    return np.asarray(out / np.linalg.norm(out, axis=-1, keepdims=True), np.float32)


def _sign(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(values < 0, np.float32(-1), np.float32(1))


def _deflated(array: NDArray[Any]) -> bytes:
    return zlib.compress(np.ascontiguousarray(array).tobytes(), DEFLATE_LEVEL)


def _inflated(packed: bytes, dtype: type, shape: tuple[int, ...]) -> NDArray[Any]:
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(inflated(packed, count), dtype).reshape(shape)
