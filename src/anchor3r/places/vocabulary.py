"""Visual words: a tree of two levels over projected descriptors, and what a descriptor is beyond its word.

A descriptor is projected onto principal components, then falls to the nearest branch and to the nearest word
of that branch. The signs of its residual, turned by a fixed rotation, are its signature: two descriptors of
one word whose signatures differ in few bits are likely of one point.

The vocabulary that ships is made by `benchmarks/vocabulary.py`.

Shapes: n descriptors, d principal components, b branches, w words a branch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.places.features import DESCRIPTOR_SIZE, unit_vectors

SHIPPED = Path(__file__).with_name("vocabulary.npz")
SIGNATURE_BITS = 64
_STEPS = 12
"""Of k-means: more change hardly any assignment."""
_BLOCK = 16_384
Float = NDArray[np.float32]


@dataclass(frozen=True, eq=False, kw_only=True)
class Vocabulary:
    """A tree of visual words. All arrays but the projection are kept as signed bytes times a step."""

    mean: Float
    """(128,) of unit vectors"""
    projection: Float
    """(d, 128) orthonormal rows"""
    branches: Float
    """(b, d)"""
    words: Float
    """(b, w, d)"""

    @property
    def size(self) -> int:
        """Number of words."""
        return self.words.shape[0] * self.words.shape[1]

    @cached_property
    def digest(self) -> str:
        """By which a map knows whether its words are of this vocabulary."""
        total = hashlib.sha256()
        for array in (self.mean, self.projection, self.branches, self.words):
            total.update(np.ascontiguousarray(array, "<f4").tobytes())
        return total.hexdigest()[:16]

    @cached_property
    def _rotation(self) -> Float:
        """(d, 64) spreads what a residual says evenly over the bits."""
        rng = np.random.default_rng(19)
        square, _ = np.linalg.qr(rng.normal(size=(max(self.projection.shape[0], SIGNATURE_BITS),) * 2))
        return square[: self.projection.shape[0], :SIGNATURE_BITS].astype(np.float32)

    def quantise(self, descriptor: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
        """Word and signature (n,) each of descriptors (n, 128)."""
        values = np.asarray((unit_vectors(descriptor) - self.mean) @ self.projection.T, np.float32)
        branch = _nearest(values, self.branches)
        word = np.zeros(len(values), np.int64)
        for b in np.unique(branch):
            mine = np.flatnonzero(branch == b)
            word[mine] = _nearest(values[mine], self.words[b])
        residual = values - self.words[branch, word]
        signs = (residual @ self._rotation > 0).astype(np.uint8)
        signature = np.packbits(signs, axis=1, bitorder="little").view("<u8")[:, 0]
        return (branch * self.words.shape[1] + word).astype(np.int32), signature.astype(np.uint64)


def _nearest(values: Float, centers: Float) -> NDArray[np.int64]:
    """(n,) row of the nearest centre (c, d) of each value (n, d)."""
    half = 0.5 * (centers**2).sum(1)
    found = [
        (values[start : start + _BLOCK] @ centers.T - half).argmax(1)
        for start in range(0, len(values), _BLOCK)
    ]
    return np.concatenate([np.empty(0, np.int64), *found])


def train_vocabulary(
    descriptor: NDArray[np.uint8],
    *,
    dimensions: int = 64,
    branches: int = 256,
    words: int = 128,
    seed: int = 0,
) -> Vocabulary:
    """Words of descriptors (n, 128): principal components, then k-means of branches and of each branch."""
    if len(descriptor) < branches * words:
        raise Anchor3RError(
            f"{len(descriptor):,} descriptors do not make {branches * words:,} words; give more images"
        )
    rng = np.random.default_rng(seed)
    values = unit_vectors(descriptor)
    mean = values.mean(0)
    sample = values[rng.permutation(len(values))[:200_000]] - mean
    _, axes = np.linalg.eigh(sample.T @ sample)
    projection = np.ascontiguousarray(axes[:, ::-1][:, :dimensions].T, np.float32)
    values = (values - mean) @ projection.T
    roots = _kmeans(values[rng.permutation(len(values))[:100_000]], branches, rng)
    branch = _nearest(values, roots)
    leaves = np.empty((branches, words, dimensions), np.float32)
    for b in range(branches):
        mine = values[branch == b]
        leaves[b] = _kmeans(mine if len(mine) else roots[b : b + 1], words, rng)
    return Vocabulary(mean=mean, projection=projection, branches=roots, words=leaves)


def _kmeans(values: Float, count: int, rng: np.random.Generator) -> Float:
    """(count, d) centres; copies of some where there are fewer values."""
    picks = rng.permutation(len(values))
    centers = values[np.resize(picks, count)].astype(np.float32)
    for _ in range(_STEPS):
        label = _nearest(values, centers)
        order = np.argsort(label, kind="stable")
        filled, start = np.unique(label[order], return_index=True)
        sums = np.add.reduceat(values[order].astype(np.float64), start, axis=0)
        sizes = np.diff(np.append(start, len(values)))
        centers[filled] = (sums / sizes[:, None]).astype(np.float32)
    return centers


def save_vocabulary(path: Path, vocabulary: Vocabulary, recipe: str) -> None:
    """Writes a vocabulary, its centres in signed bytes, and how it was made."""
    arrays: dict[str, NDArray[np.generic]] = {
        "mean": vocabulary.mean.astype("<f4"),
        "projection": vocabulary.projection.astype("<f2"),
        "recipe": np.frombuffer(recipe.encode(), np.uint8),
    }
    for name in ("branches", "words"):
        values = getattr(vocabulary, name)
        step = np.float32(np.abs(values).max() / 127)
        arrays |= {name: np.round(values / step).astype(np.int8), f"{name}_step": np.array(step, "<f4")}
    with open(path, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


@lru_cache(maxsize=2)
def load_vocabulary(path: Path = SHIPPED) -> Vocabulary:
    """The vocabulary that ships, or another file of `save_vocabulary`."""
    try:
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        vocabulary = Vocabulary(
            mean=arrays["mean"].astype(np.float32),
            projection=arrays["projection"].astype(np.float32),
            branches=arrays["branches"] * arrays["branches_step"].astype(np.float32),
            words=arrays["words"] * arrays["words_step"].astype(np.float32),
        )
    except (OSError, KeyError, ValueError, EOFError) as error:
        raise Anchor3RError(f"{path} is no vocabulary of places ({error}); install anchor3r again") from error
    b, _, d = vocabulary.words.shape
    if vocabulary.branches.shape != (b, d) or vocabulary.projection.shape != (d, DESCRIPTOR_SIZE):
        raise Anchor3RError(f"{path} is no vocabulary of places: its arrays do not fit together")
    return vocabulary
