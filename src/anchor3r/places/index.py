"""An inverted index of visual words: which keyframes show what an image shows, by words and signatures.

Postings lie in segments of keyframes, sorted by word; the newest keyframes wait unsorted. Segments of one
size become one of the next size, as in a log-structured merge tree: what a word has then lies together, and
adding a keyframe stays cheap however long the map is.

Shapes: n features, k keyframes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import kernel

Int = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class IndexConfig:
    """What counts as a common word."""

    max_bits: int = 22
    """Bits of 64 in which signatures of one word may differ; of unlike descriptors every second one does."""
    segment: int = 32
    """Keyframes of the smallest segments."""
    growth: int = 8
    """Segments of one size that become one of the next size,"""
    largest: int = 16_384
    """which has so many keyframes at most."""
    features: int = 500
    """Features of an image that are indexed and asked for, the strongest: they bound memory and time."""

    def __post_init__(self) -> None:
        if not (0 <= self.max_bits <= 64 and 1 <= self.segment <= self.largest <= 2**16):
            raise ValueError(f"max_bits or sizes of segments cannot be: {self}")
        if self.growth < 2 or self.features < 1:
            raise ValueError(f"growth is at least 2, features at least 1: {self}")


class _Segment(NamedTuple):
    """Postings of some keyframes by word."""

    start: NDArray[np.int32]
    """(words + 1,)"""
    keyframe: NDArray[np.uint16]
    """(n,) within the segment"""
    signature: NDArray[np.uint64]
    """(n,)"""


_DEFAULT = IndexConfig()


class PlaceIndex:
    """Keyframes by their words; incremental."""

    def __init__(self, num_words: int, config: IndexConfig = _DEFAULT) -> None:
        self._num_words, self._config = num_words, config
        self._segments: list[tuple[int, _Segment]] = []
        """Number of keyframes and postings, in their order: sizes never grow from one to the next."""
        self._fresh: list[tuple[NDArray[np.int32], NDArray[np.uint64]]] = []
        self._fresh_segment: _Segment | None = None
        """The waiting keyframes, sorted when they are first asked for."""
        self._counts = np.zeros(num_words, np.int64)
        self._norm: list[float] = []
        """Root of the number of features of each keyframe."""

    def __len__(self) -> int:
        """Number of keyframes."""
        return len(self._norm)

    @property
    def num_bytes(self) -> int:
        """Memory of all postings."""
        return sum(part.nbytes for _, segment in self._segments for part in segment) + sum(
            word.nbytes + signature.nbytes for word, signature in self._fresh
        )

    def add(self, word: NDArray[np.int32], signature: NDArray[np.uint64]) -> int:
        """Takes the features (n,) of a keyframe, the strongest first, and returns its number, from 0 on."""
        config = self._config
        word, signature = word[: config.features], signature[: config.features]
        self._fresh.append((word, signature))
        self._fresh_segment = None
        np.add.at(self._counts, np.unique(word), 1)
        self._norm.append(max(1.0, len(word)) ** 0.5)
        if len(self._fresh) == config.segment:
            self._segments.append((config.segment, self._sorted(self._fresh)))
            self._fresh = []
            self._merge()
        return len(self) - 1

    def _merge(self) -> None:
        """Has segments of one size become one, as long as there are enough of them."""
        growth = self._config.growth
        while len(self._segments) >= growth:
            last = self._segments[-growth:]
            size = last[-1][0]
            if last[0][0] != size or growth * size > self._config.largest:
                return
            start = np.zeros(self._num_words + 1, np.int32)
            for _, part in last:
                start += part.start
            keyframe, signature = np.empty(start[-1], np.uint16), np.empty(start[-1], np.uint64)
            filled = start[:-1].copy()
            for k, (_, part) in enumerate(last):
                _append(*part, k * size, filled, keyframe, signature)
            self._segments[-growth:] = [(growth * size, _Segment(start, keyframe, signature))]

    def thinned(self) -> PlaceIndex:
        """An index of every second keyframe, from the first one on."""
        out, first = PlaceIndex(self._num_words, self._config), 0
        waiting = [(len(self._fresh), self._sorted(self._fresh))] if self._fresh else []
        for size, part in [*self._segments, *waiting]:
            word = np.repeat(np.arange(self._num_words, dtype=np.int32), np.diff(part.start))
            order = np.argsort(part.keyframe, kind="stable")
            start = np.searchsorted(part.keyframe[order], np.arange(size + 1))
            for k in range(first % 2, size, 2):
                mine = order[start[k] : start[k + 1]]
                out.add(word[mine], part.signature[mine])
            first += size
        return out

    def scores(self, word: NDArray[np.int32], signature: NDArray[np.uint64]) -> NDArray[np.float32]:
        """(k,) how much each keyframe has in common with an image's features (n,), the strongest first."""
        config = self._config
        word, signature = word[: config.features], signature[: config.features]
        # A word that every keyframe has says nothing; one that an image has often, it says once.
        _, inverse, often = np.unique(word, return_inverse=True, return_counts=True)
        rarity = np.log(max(len(self), 1) / np.maximum(self._counts[word], 1))
        weight = np.asarray(rarity / np.sqrt(often[inverse]), np.float32)
        scores = np.zeros(len(self), np.float32)
        kept = weight > 0
        query = word[kept], signature[kept], weight[kept]
        first = 0
        for size, segment in self._segments:
            _vote(*segment, *query, config.max_bits, scores[first : first + size])
            first += size
        if self._fresh:
            if self._fresh_segment is None:
                self._fresh_segment = self._sorted(self._fresh)
            _vote(*self._fresh_segment, *query, config.max_bits, scores[first:])
        return np.asarray(scores / np.array(self._norm), np.float32)

    def _sorted(self, keyframes: list[tuple[NDArray[np.int32], NDArray[np.uint64]]]) -> _Segment:
        word = np.concatenate([word for word, _ in keyframes])
        signature = np.concatenate([signature for _, signature in keyframes])
        number = np.repeat(np.arange(len(keyframes)), [len(word) for word, _ in keyframes])
        order = np.argsort(word, kind="stable")
        start = np.zeros(self._num_words + 1, np.int32)
        np.cumsum(np.bincount(word, minlength=self._num_words), out=start[1:])
        return _Segment(start, number[order].astype(np.uint16), signature[order])


@kernel
def _append(
    start: NDArray[np.int32], keyframe: NDArray[np.uint16], signature: NDArray[np.uint64], first: int,
    filled: NDArray[np.int32], all_keyframes: NDArray[np.uint16], all_signatures: NDArray[np.uint64],
) -> None:  # fmt: skip
    """Puts the postings of a segment, whose keyframes begin at `first`, behind those already there."""
    for word in range(len(filled)):
        for p in range(start[word], start[word + 1]):
            at = filled[word]
            all_keyframes[at], all_signatures[at] = keyframe[p] + first, signature[p]
            filled[word] += 1


@kernel
def _vote(
    start: NDArray[np.int32], keyframe: NDArray[np.uint16], signature: NDArray[np.uint64],
    word: NDArray[np.int32], asked: NDArray[np.uint64], weight: NDArray[np.float32],
    max_bits: int, scores: NDArray[np.float32],
) -> None:  # fmt: skip
    """Adds the weight of every query feature to the keyframes of its word, less where signatures differ."""
    for q in range(len(word)):
        for p in range(start[word[q]], start[word[q] + 1]):
            bits = _num_ones(signature[p] ^ asked[q])
            if bits <= max_bits:
                scores[keyframe[p]] += weight[q] * (1 - bits / 32) ** 2


@kernel
def _num_ones(value: np.uint64) -> int:
    """Number of ones of 64 bits, added up in pairs, then in fours, then by a product."""
    value -= (value >> np.uint64(1)) & np.uint64(0x5555555555555555)
    value = (value & np.uint64(0x3333333333333333)) + (
        (value >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    value = (value + (value >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((value * np.uint64(0x0101010101010101)) >> np.uint64(56))
