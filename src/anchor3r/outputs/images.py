"""The images of a map with their cameras, for programs that start from both.

Images come from the source itself where it is still at hand, in full size, else from the map's own copies.
Frames are pinhole images as far as the map knows: no lens distortion is known, so none is taken out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.sources import Source, open_source
from anchor3r.store import Map

JPEG_QUALITY = 95
_SAMPLED_FRAMES = 15
"""Frames that a camera nobody knew is estimated from."""


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

    def save(self, frames: list[int], folder: Path) -> dict[int, tuple[str, Pinhole]]:
        """Writes a JPEG a frame, and returns names and cameras by frame."""
        folder.mkdir()
        fallback = None
        saved = {}
        for frame in frames:
            image, camera = self.image(frame), self.made.intrinsics(frame)
            if camera is None:
                fallback = camera = fallback or estimated_camera(self.made, frames)
            name = f"{frame:06}.jpg"
            Image.fromarray(image).save(folder / name, quality=JPEG_QUALITY, subsampling=0)
            saved[frame] = name, camera.resized(image.shape[1], image.shape[0])
        return saved


@contextmanager
def open_images(made: Map, first: int, *, prefer_source: bool) -> Iterator[MapImages]:
    """Opens the source that the map was made from if it still shows the frame `first`, else the copies."""
    original = _original(made, first) if prefer_source else None
    if original is None:
        if not made.keeps_images():
            raise Anchor3RError(
                f"{made.folder} keeps no images and its source {made.meta['identity'].get('source')} is not "
                "at hand (or not wanted); export where the source is, or map without --no-keep-images"
            )
        yield MapImages(made, None)
        return
    with original:
        yield MapImages(made, original)


def _original(made: Map, first: int) -> Source | None:
    identity, count = made.meta.get("identity", {}), made.meta.get("num_frames")
    if "source" not in identity:
        return None
    start, stride = identity.get("start", 0), identity.get("stride", 1)
    try:
        # A world may depend on where it was cut.
        source = open_source(identity["source"], stop=None if count is None else start + count * stride)
        if source.seekable and made.shows(source.read(first)):
            return source
    except Anchor3RError:
        return None
    source.close()
    return None


def estimated_camera(made: Map, frames: list[int]) -> Pinhole:
    """A camera from the point maps: its centre is the image's, its pixels are square.

    A point at distance ρ from the axis and depth z is seen f ρ / z from the centre; f is the median.
    """
    chosen = frames[:: -(-len(frames) // _SAMPLED_FRAMES)]
    found = [made.points(frame) for frame in chosen]
    focal, shape = [], (0, 0)
    for point_map in found:
        if point_map is None:
            continue
        height, width = shape = point_map.points_in_camera.shape[:2]
        v, u = np.mgrid[:height, :width]
        off_centre = np.hypot(u - (width - 1) / 2, v - (height - 1) / 2)
        x, y, z = np.moveaxis(point_map.points_in_camera, -1, 0)
        rho = np.hypot(x, y)
        # Near the centre a cell's own size is most of the distance.
        good = np.isfinite(z) & (z > 0) & (rho > 0) & (off_centre > 0.1 * width)
        focal.append(off_centre[good] * z[good] / rho[good])
    values = np.concatenate([np.empty(0), *focal])
    if not len(values):
        raise Anchor3RError(
            f"{made.folder} knows no camera and has no points to estimate one from; map a source with "
            "known intrinsics"
        )
    f = float(np.median(values))
    return Pinhole(f, f, (shape[1] - 1) / 2, (shape[0] - 1) / 2, shape[1], shape[0])
