"""A bank of tileable textures with mip chains, baked once per process and shared by all worlds.

A world draws from the bank by category and varies each surface by tint, contrast, scale and stains, so a few
hundred textures give endless variety while building a world costs no baking. A texture depends only on
the bank's seed and its own index: it is baked when first asked for, in any order, with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from anchor3r.errors import Anchor3RError
from anchor3r.kernels import Array
from anchor3r.worlds.scenes import patterns

SIZE = 256
"""Texels a side of the finest level."""
LEVELS = 9
"""256, 128, ..., 1"""
CHAIN = sum(4**k for k in range(LEVELS))
LEVEL_START = tuple(sum((SIZE >> k) ** 2 for k in range(level)) for level in range(LEVELS))
PHOTO_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
MAX_PHOTOS = 256

PATTERNS: dict[str, tuple[Callable[[np.random.Generator, int], Array], int]] = {
    "stain": (patterns.stain, 6),
    "plaster": (patterns.plaster, 16),
    "asphalt": (patterns.asphalt, 12),
    "paving": (patterns.paving, 12),
    "grass": (patterns.grass, 10),
    "soil": (patterns.soil, 10),
    "brick": (patterns.brick, 14),
    "planks": (patterns.planks, 14),
    "facade": (patterns.facade, 40),
    "roof": (patterns.roof, 10),
    "foliage": (patterns.foliage, 14),
    "stripes": (patterns.stripes, 14),
    "blobs": (patterns.blobs, 14),
    "poster": (patterns.poster, 40),
    "books": (patterns.books, 12),
    "panels": (patterns.panels, 14),
    "fabric": (patterns.fabric, 12),
    "marking": (patterns.marking, 4),
}
"""Category -> how one texture of it is made, and how many the bank holds."""


class TextureBank:
    """Textures by index; `texels` (count, CHAIN) uint32 holds encoded colours as R | G << 8 | B << 16.

    The levels of a texture lie one after another, the finest first.
    """

    def __init__(self, seed: int, photo_folder: Path | None = None) -> None:
        self._seed = seed
        self._photos = _list_photos(photo_folder) if photo_folder else []
        self._makers: list[Callable[[np.random.Generator, int], Array]] = []
        self.range: dict[str, tuple[int, int]] = {}
        for category, (make, count) in PATTERNS.items():
            self.range[category] = (len(self._makers), len(self._makers) + count)
            self._makers += [make] * count
        first_photo = len(self._makers)
        self.range["photo"] = (first_photo, first_photo + len(self._photos))
        total = first_photo + len(self._photos)
        self.texels: NDArray[np.uint32] = np.zeros((total, CHAIN), np.uint32)
        self._baked = np.zeros(total, bool)

    def draw(
        self, rng: np.random.Generator, category: str, count: int, distinct: int = 0
    ) -> NDArray[np.int32]:
        """`count` random textures of a category, of at most `distinct` different ones (0: any), baked."""
        low, high = self.range[category]
        if distinct:
            choice = rng.integers(low, high, distinct)
            index = choice[rng.integers(0, distinct, count)]
        else:
            index = rng.integers(low, high, count)
        self.require(index)
        return index.astype(np.int32)

    def require(self, index: NDArray[np.integer]) -> None:
        """Bakes those of the textures that are not there yet."""
        if self._baked[index].all():
            return
        for i in np.unique(index[~self._baked[index]]):
            self.texels[i] = _mip_chain(self._make(int(i)))
            self._baked[i] = True

    def mean(self, index: NDArray[np.int32]) -> NDArray[np.float32]:
        """(n,) -> (n, 3) average colours, 0..255."""
        return (self.texels[index, -1, None] >> np.array([0, 8, 16], np.uint32) & 255).astype(np.float32)

    def _make(self, index: int) -> Array:
        """(SIZE, SIZE, 3) in 0..1"""
        if index < len(self._makers):
            return self._makers[index](np.random.default_rng([self._seed, index]), SIZE)
        return _read_photo(self._photos[index - len(self._makers)])


@lru_cache(maxsize=4)
def texture_bank(seed: int, photo_folder: Path | None = None) -> TextureBank:
    """The process-wide bank of this seed (and folder of photos)."""
    return TextureBank(seed, photo_folder)


def _mip_chain(image: Array) -> NDArray[np.uint32]:
    level: Array = np.clip(image, 0, 1).astype(np.float32) * 255
    flat = []
    for _ in range(LEVELS):
        flat.append(level.reshape(-1, 3))
        if len(level) > 1:
            level = (level[0::2, 0::2] + level[1::2, 0::2] + level[0::2, 1::2] + level[1::2, 1::2]) / 4
    return np.round(np.concatenate(flat)).astype(np.uint32) @ np.array([1, 1 << 8, 1 << 16], np.uint32)


def _list_photos(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise Anchor3RError(
            f"texture folder {folder} does not exist; give a folder of photos (jpg, png, webp)"
        )
    photos = sorted(p for p in folder.rglob("*") if p.suffix.lower() in PHOTO_SUFFIXES)
    if not photos:
        raise Anchor3RError(
            f"texture folder {folder} holds no photos; put jpg, png, bmp or webp files into it"
        )
    step = -(-len(photos) // MAX_PHOTOS)
    return photos[::step]


def _read_photo(path: Path) -> Array:
    """The photo's central square, mirrored at its borders so that it tiles without a seam."""
    try:
        with Image.open(path) as image:
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            half = image.convert("RGB").resize(
                (SIZE // 2,) * 2, Image.Resampling.BOX, (left, top, left + side, top + side)
            )
    except (OSError, UnidentifiedImageError) as error:
        raise Anchor3RError(
            f"cannot read the texture photo {path} ({error}); remove or replace it"
        ) from error
    quarter = np.asarray(half, np.float32) / 255
    upper = np.concatenate([quarter, quarter[:, ::-1]], 1)
    return np.concatenate([upper, upper[::-1]], 0)
