"""Small videos whose frames can be told apart, encoded on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

CELL = 16


def numbered_image(number: int, width: int = 128, height: int = 64) -> NDArray[np.uint8]:
    """(H, W, 3) with the binary digits of a number as black and white cells in the top row, else a ramp."""
    ramp = np.linspace(40, 200, width, dtype=np.uint8)
    image = np.repeat(np.broadcast_to(ramp, (height, width))[..., None], 3, -1).copy()
    for bit in range(width // CELL):
        image[:CELL, bit * CELL : (bit + 1) * CELL] = 255 if number >> bit & 1 else 0
    return image


def number_of(image: NDArray[np.uint8]) -> int:
    """Reads the number back from an upright image."""
    middle = CELL // 2
    cells = image[middle, middle : image.shape[1] : CELL].mean(-1) > 128
    return int(sum(1 << bit for bit, on in enumerate(cells) if on))


def encode(
    path: Path,
    num_frames: int = 40,
    *,
    size: tuple[int, int] = (128, 64),
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    times_ms: Sequence[int] | None = None,
    rotation_deg: int = 0,
    key_interval: int = 10,
    reorder: bool = True,
    muxer_options: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
) -> Path:
    """Encodes images 0, 1, 2, … shown at `times_ms`, else 40 ms apart; cameras do not `reorder` frames."""
    with av.open(str(path), "w", options=muxer_options or {}) as container:
        container.metadata.update(metadata or {})
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height = size
        stream.pix_fmt = pixel_format
        stream.codec_context.gop_size = key_interval
        if not reorder:
            stream.codec_context.max_b_frames = 0
        stream.codec_context.time_base = Fraction(1, 1000)
        if rotation_deg:
            stream.set_display_rotation(rotation_deg)
        for number in range(num_frames):
            frame = av.VideoFrame.from_ndarray(numbered_image(number, *size), format="rgb24")
            frame.pts = 40 * number if times_ms is None else times_ms[number]
            frame.time_base = Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path
