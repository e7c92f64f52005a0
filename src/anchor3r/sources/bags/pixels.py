"""Pixels as ROS and Foxglove write them, to RGB."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from anchor3r.sources.images import read_image
from anchor3r.sources.source import UndecodableFrameError

_CHANNELS = {
    "mono": (1, (0, 0, 0)),
    "rgb": (3, (0, 1, 2)),
    "bgr": (3, (2, 1, 0)),
    "rgba": (4, (0, 1, 2)),
    "bgra": (4, (2, 1, 0)),
}
"""Of a pixel: how many, and which of them are red, green and blue."""
_OPENCV_NAMES = {"8UC1": "mono8", "16UC1": "mono16", "8UC3": "bgr8", "16UC3": "bgr16", "8UC4": "bgra8"}
_INTERLEAVED = {
    "yuv422": "COLOR_YUV2RGB_UYVY", "uyvy": "COLOR_YUV2RGB_UYVY",
    "yuv422_yuy2": "COLOR_YUV2RGB_YUY2", "yuyv": "COLOR_YUV2RGB_YUY2",
}  # fmt: skip
"""One luminance a pixel, one colour for two neighbours: two bytes a pixel."""
_PLANAR = {"nv12": "COLOR_YUV2RGB_NV12", "nv21": "COLOR_YUV2RGB_NV21", "i420": "COLOR_YUV2RGB_I420"}
"""All luminances, then one colour for four neighbours: one and a half bytes a pixel."""
_BAYER = tuple(f"bayer_{pattern}" for pattern in ("rggb", "bggr", "gbrg", "grbg"))
KNOWN_ENCODINGS = tuple(
    [f"{name}{bits}" for name in (*_CHANNELS, *_BAYER) for bits in (8, 16)]
    + [*_OPENCV_NAMES, *_INTERLEAVED, *_PLANAR]
)


def decoded_raw(
    data: bytes | NDArray[np.uint8], encoding: str, width: int, height: int, step: int, *, big_endian: bool
) -> NDArray[np.uint8]:
    """An image (H, W, 3) of rows of `step` bytes; of 16 bits the upper 8 are taken."""
    import cv2

    encoding = _OPENCV_NAMES.get(encoding, encoding).lower()
    buffer = np.frombuffer(data, np.uint8)
    if width < 1 or height < 1:
        raise UndecodableFrameError(f"an image of {width}×{height} pixels has nothing to show")
    if encoding in _PLANAR:
        planes = _rows(buffer, step or width, width, height * 3 // 2)
        return np.asarray(cv2.cvtColor(planes, getattr(cv2, _PLANAR[encoding])), np.uint8)
    if encoding in _INTERLEAVED:
        pairs = _rows(buffer, step or 2 * width, 2 * width, height).reshape(height, width, 2)
        return np.asarray(cv2.cvtColor(pairs, getattr(cv2, _INTERLEAVED[encoding])), np.uint8)
    name, size = encoding.rstrip("0123456789"), 2 if encoding.endswith("16") else 1
    if name not in (*_CHANNELS, *_BAYER) or not encoding.endswith(("8", "16")):
        raise UndecodableFrameError(
            f"images in the encoding '{encoding}' are not known, only {', '.join(KNOWN_ENCODINGS)}"
        )
    channels, order = _CHANNELS.get(name, (1, ()))
    values = _rows(buffer, step or width * channels * size, width * channels * size, height)
    if size == 2:
        values = values.reshape(height, -1, 2)[..., 0 if big_endian else 1]
    if not order:
        pattern = name.removeprefix("bayer_").upper()
        mosaic = np.ascontiguousarray(values)
        return np.asarray(cv2.cvtColor(mosaic, getattr(cv2, f"COLOR_Bayer{pattern}2RGB")), np.uint8)
    return np.ascontiguousarray(values.reshape(height, width, channels)[..., order])


def decoded_file(data: bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An image (H, W, 3) from the bytes of a JPEG, PNG or WebP file."""
    return read_image(BytesIO(bytes(data)))


def _rows(buffer: NDArray[np.uint8], step: int, used: int, num_rows: int) -> NDArray[np.uint8]:
    """(num_rows, used) of rows of `step` bytes, the last of which may lack its padding."""
    needed = step * (num_rows - 1) + used
    if step < used or len(buffer) < needed:
        raise UndecodableFrameError(
            f"an image has {len(buffer)} bytes with rows of {step}, but needs {num_rows} rows of {used}"
        )
    rows = np.lib.stride_tricks.as_strided(buffer, (num_rows, used), (step, 1), writeable=False)
    return np.ascontiguousarray(rows)
