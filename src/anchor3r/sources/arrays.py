"""Frames that a Python program hands over: a list of images, or whatever can be iterated over."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.sources.frame import Frame
from anchor3r.sources.images import NOMINAL_RATE_HZ
from anchor3r.sources.source import IndexedSource, Source

Picture = NDArray[np.uint8] | Frame
"""(H, W, 3) RGB or (H, W) grey, or a frame with whatever is known of it; its index is its position here."""


class ArraySource(IndexedSource):
    """A list of images or frames."""

    def __init__(self, pictures: Sequence[Picture] | NDArray[Any], wanted: slice) -> None:
        super().__init__(f"a list of {len(pictures)} images", wanted, len(pictures))
        self._pictures = pictures

    def _load(self, index: int) -> Frame:
        return _frame(self._pictures[index], index)


class IteratedSource(Source):
    """An iterable of images or frames. It is gone through once for each iteration of the source.

    What can be gone through only once, such as a generator, makes a source of one iteration.
    """

    seekable = False

    def __init__(self, pictures: Iterable[Picture], wanted: slice) -> None:
        super().__init__("images from a Python program", wanted, None)
        self._pictures = pictures

    def read(self, index: int) -> Frame:
        raise Anchor3RError(f"frame {index} has passed: an iterable has no frames to read again; use a list")

    def _stream(self, first: int, wanted: range) -> Generator[Frame, None, None]:
        for index, picture in enumerate(self._pictures):
            if index >= wanted.stop:
                break
            if index in wanted:
                yield _frame(picture, index)


def _frame(picture: Picture, index: int) -> Frame:
    if isinstance(picture, Frame):
        return replace(picture, index=index)
    image = np.asarray(picture)
    if image.ndim == 2:
        image = np.repeat(image[..., None], 3, axis=-1)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3 or not image.size:
        raise Anchor3RError(
            f"image {index} is an array of shape {np.shape(picture)} and type {image.dtype}; give images of "
            "uint8, (H, W, 3) RGB or (H, W) grey, or names of files"
        )
    return Frame(index=index, timestamp_s=index / NOMINAL_RATE_HZ, image=np.ascontiguousarray(image))
