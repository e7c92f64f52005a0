"""Point maps and pictures as bytes: half floats, byte-planar, deflated; colours and pictures as JPEG.

A point map that its pinhole camera explains to half precision is kept as depth alone, a third of the
bytes. Halves have 11 bits, so a point moves by at most 0.05 % of its coordinates.
"""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.limits import LIMITS

_HALF_EPS = float(np.finfo(np.float16).eps)
COLOUR_QUALITY = 95
DEFLATE_LEVEL = 1  # level 6 saves 10 % of the bytes for twice the time


@dataclass(frozen=True)
class PointMap:
    """The geometry that one frame saw, on a grid that spans its image."""

    points_in_camera: NDArray[np.float32]
    """(h, w, 3) in the scale of the frame's window; NaN where there is no point"""
    colours: NDArray[np.uint8]
    """(h, w, 3) RGB"""
    confidence: NDArray[np.float32]
    """(h, w) probability that a point is within 5 % of its distance, see `predictors.confidence`; 1 where the
    predictor gave none"""


@dataclass(frozen=True)
class EncodedPoints:
    """A point map as the database keeps it."""

    height: int
    width: int
    scale: float
    """What the halves are multiplied by."""
    camera: Pinhole | None
    """Of the grid, if only depth is kept."""
    points: bytes
    colours: bytes
    confidence: bytes | None


def encode_points(
    points: NDArray[np.float32],
    confidence: NDArray[np.float32] | None,
    image: NDArray[np.uint8],
    intrinsics: Pinhole | None,
) -> EncodedPoints:
    """points (h, w, 3), confidence (h, w), the frame's whole image (H, W, 3) and its camera."""
    if confidence is not None and not np.all((confidence >= 0) & (confidence <= 1)):
        raise Anchor3RError(
            "the predictor gave points with confidences outside of 0 … 1; they are probabilities, see "
            "anchor3r.predictors.confidence"
        )
    height, width = points.shape[:2]
    camera = intrinsics.resized(width, height) if intrinsics is not None else None
    if camera is not None and not _explains(camera, points):
        camera = None
    scale = power_of_two(points[..., 2])
    kept = points[..., 2:] if camera is not None else points
    return EncodedPoints(
        height=height,
        width=width,
        scale=scale,
        camera=camera,
        points=pack_halves(kept / np.float32(scale)),
        colours=encode_picture(resized(image, width, height), COLOUR_QUALITY, full_chroma=True),
        confidence=None if confidence is None else pack_halves(confidence[..., None]),
    )


def decode_points(encoded: EncodedPoints) -> PointMap:
    """The inverse of `encode_points`, to half precision."""
    shape = (encoded.height, encoded.width)
    if min(shape) < 1 or encoded.height * encoded.width > LIMITS.pixels or not 0 < encoded.scale < np.inf:
        raise ValueError(f"a point map of {shape[1]}×{shape[0]} with scale {encoded.scale} cannot be")
    channels = 3 if encoded.camera is None else 1
    points = unpack_halves(encoded.points, (*shape, channels)) * np.float32(encoded.scale)
    if encoded.camera is not None:
        points = encoded.camera.unproject_map(points[..., 0])
    if encoded.confidence is None:
        confidence = np.ones(shape, np.float32)
    else:
        confidence = unpack_halves(encoded.confidence, (*shape, 1))[..., 0]
    colours = decode_picture(encoded.colours)
    if colours.shape[:2] != shape:
        raise ValueError(f"a point map of {shape[1]}×{shape[0]} has colours of another size")
    return PointMap(points.astype(np.float32), colours, confidence)


def encode_picture(image: NDArray[np.uint8], quality: int, *, full_chroma: bool = False) -> bytes:
    """(H, W, 3) RGB -> JPEG."""
    out = io.BytesIO()
    Image.fromarray(image).save(out, "JPEG", quality=quality, subsampling=0 if full_chroma else 2)
    return out.getvalue()


def decode_picture(jpeg: bytes) -> NDArray[np.uint8]:
    """JPEG -> (H, W, 3) RGB."""
    with Image.open(io.BytesIO(jpeg), formats=("JPEG",)) as image:
        if image.width * image.height > LIMITS.pixels:
            raise ValueError(f"a picture of {image.width}×{image.height} is too large")
        return np.array(image.convert("RGB"))


def resized(image: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """The picture at another size, each pixel the mean of what it covers."""
    if image.shape[:2] == (height, width):
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))


def _explains(camera: Pinhole, points: NDArray[np.float32]) -> bool:
    """Whether depth and camera give the same points as rounding them to halves would."""
    z = points[..., 2]
    valid = np.isfinite(z)
    if np.isfinite(points).all(-1).sum() != valid.sum() or not np.all(z[valid] > 0):
        return False
    error = np.abs(camera.unproject_map(z)[valid] - points[valid]).max(-1, initial=0)
    return bool(np.all(error <= _HALF_EPS * np.linalg.norm(points[valid], axis=-1)))


def power_of_two(z: NDArray[np.float32]) -> float:
    """A scale, exact to divide by, that puts typical depths near 1, far from the ends of what halves hold."""
    magnitude = np.abs(z[np.isfinite(z) & (z != 0)])
    return float(2.0 ** np.round(np.log2(np.median(magnitude)))) if magnitude.size else 1.0


def pack_halves(values: NDArray[np.float32]) -> bytes:
    """(h, w, c) -> deflated planes: channel by channel, all low bytes, then all high bytes.

    Values beyond the halves' range become NaN: no point rather than one at infinity.
    """
    with np.errstate(over="ignore"):
        halves = np.moveaxis(values, -1, 0).astype("<f2")
    halves[np.isinf(halves)] = np.nan
    planes = np.ascontiguousarray(halves).view(np.uint8).reshape(-1, 2).T
    return zlib.compress(np.ascontiguousarray(planes).tobytes(), DEFLATE_LEVEL)


def unpack_halves(packed: bytes, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    height, width, channels = shape
    planes = np.frombuffer(inflated(packed, 2 * height * width * channels), np.uint8).reshape(2, -1)
    halves = np.ascontiguousarray(planes.T).view("<f2").reshape(channels, height, width)
    return np.moveaxis(halves, 0, -1).astype(np.float32)


def inflated(packed: bytes, max_bytes: int) -> bytes:
    """The opposite of `zlib.compress`, for what is known to have no more bytes than that."""
    inflating = zlib.decompressobj()
    data = inflating.decompress(packed, max_bytes + 1)
    if len(data) > max_bytes or not inflating.eof:
        raise ValueError(f"compressed data does not end after {max_bytes:,} bytes, as it should")
    return data
