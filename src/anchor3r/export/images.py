"""The images of a map with their cameras, for programs that start from both.

Images come from the source itself where it is still at hand, in full size, else from the map's own copies.
Either are pinhole images: what the user has said of the lens is taken out of the source's images again, as it
was to map them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anchor3r.errors import Anchor3RError
from anchor3r.export.cameras import estimated_camera
from anchor3r.geometry import Pinhole
from anchor3r.sources import Source, StatedCamera, open_source
from anchor3r.store import Map

JPEG_QUALITY = 95


@dataclass(frozen=True)
class MapImages:
    """Where the images of a map are read, and the cameras of what is read."""

    made: Map
    original: Source | None
    """None where the map's own copies are used."""

    def image(self, frame: int) -> NDArray[np.uint8]:
        """(H, W, 3) RGB"""
        if self.original is None:
            return self.made.image(frame)
        found = self.original.read(frame)
        if not self.made.shows(found):
            raise Anchor3RError(
                f"frame {frame} of {self.original.uri} is no longer the one that was mapped; use --images map"
            )
        return found.image

    def save(
        self, frames: list[int], folder: Path, common: Pinhole | None = None
    ) -> dict[int, tuple[str, Pinhole]]:
        """Writes a JPEG a frame, and returns names and cameras by frame: the common one, or each its own."""
        folder.mkdir()
        fallback = None
        saved = {}
        for frame in frames:
            image, camera = self.image(frame), common or self.made.intrinsics(frame)
            if camera is None:
                fallback = camera = fallback or estimated_camera(self.made, frames)
            name = f"{frame:06}.jpg"
            Image.fromarray(image).save(folder / name, quality=JPEG_QUALITY, subsampling=0)
            saved[frame] = name, camera.resized(image.shape[1], image.shape[0])
        return saved


@contextmanager
def open_images(made: Map, first: int, *, prefer_source: bool) -> Iterator[MapImages]:
    """Opens the source that the map was made from if it still shows the frame `first`, else the copies."""
    with original_source(made) if prefer_source else nullcontext() as original:
        if original is not None and not _still_shows(original, made, first):
            original = None
        if original is None and not made.keeps_images():
            raise Anchor3RError(
                f"{made.folder} keeps no images and its source {made.meta['identity'].get('source')} is not "
                "at hand (or not wanted); export where the source is, or map without --no-keep-images"
            )
        yield MapImages(made, original)


@contextmanager
def original_source(made: Map) -> Iterator[Source | None]:
    """The source of a map, opened as it was to be mapped; None if it is gone or was live."""
    identity, count = made.meta.get("identity", {}), made.meta.get("num_frames")
    start, stride, stated = identity.get("start", 0), identity.get("stride", 1), identity.get("camera")
    try:
        source = open_source(
            identity.get("source", ""),
            stop=None if count is None else start + count * stride,  # a world may depend on it
            camera=None if stated is None else StatedCamera.from_json(stated),
        )
    except Anchor3RError:
        yield None
        return
    with source:
        yield source if source.seekable else None


def _still_shows(source: Source, made: Map, frame: int) -> bool:
    try:
        return made.shows(source.read(frame))
    except Anchor3RError:
        return False
