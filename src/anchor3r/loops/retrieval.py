"""Place retrieval: which earlier keyframes show what a keyframe shows, after the camera has been elsewhere.

Global descriptors are whitened with statistics of the map itself and compared by their cosine, averaged over
short runs of keyframes: a street looks like another one now and then, but rarely for a while. Only places
that the camera has left in between, as far as odometry can tell, come into question.

Shapes: n keyframes, d numbers in a descriptor, b queries in a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3

Float = NDArray[np.float64]
Int = NDArray[np.int64]

_BLOCK = 256  # queries compared with all keyframes at a time


@dataclass(frozen=True, kw_only=True)
class RetrievalConfig:
    """What counts as another visit and how many are named."""

    top_k: int = 3
    """Places named for a keyframe at most."""
    min_similarity: float = 0.3
    """Cosine of whitened descriptors below which two keyframes do not show the same place."""
    min_gap: int = 50
    """Frames between two visits at least, unless the camera lost track between them."""
    away_frames: int = 30
    """The camera has left a place once it is farther off than it usually gets in so many frames."""
    away_deg: float = 60.0
    """The camera has also left a place once it looks another way by this angle."""
    apart: int = 10
    """Places named for one keyframe are at least so many frames apart."""
    run: int = 2
    """Keyframes before and after that must look alike too."""
    dimensions: int = 128
    """Principal components of descriptors that are kept; fewer on short maps."""
    noise_share: float = 0.05
    """Components that vary by less than this part of the strongest one are taken for noise and damped."""

    def __post_init__(self) -> None:
        counts = (self.top_k, self.min_gap, self.away_frames, self.apart, self.dimensions)
        if min(counts) < 1 or self.run < 0:
            raise ValueError(f"counts must be at least 1, run at least 0: {self}")
        if not (-1 <= self.min_similarity <= 1 and self.away_deg > 0):
            raise ValueError(f"min_similarity is a cosine, away_deg positive: {self}")


_DEFAULT = RetrievalConfig()


@dataclass(frozen=True, kw_only=True)
class Keyframes:
    """The frames that are compared."""

    frames: Int
    """(n,) ascending"""
    descriptor: NDArray[np.float32]
    """(n, d)"""
    camera_from_world: SE3
    """(n,) by odometry"""
    component: Int
    """(n,) poses of different components are not comparable"""

    def __post_init__(self) -> None:
        n = len(self.frames)
        if not n == len(self.descriptor) == len(self.camera_from_world) == len(self.component):
            raise ValueError("keyframes need a descriptor, a pose and a component each")
        if np.any(np.diff(self.frames) <= 0):
            raise ValueError("keyframes must be in ascending order")


@dataclass(frozen=True)
class PlaceMatches:
    """Pairs of keyframes that look alike, by query and then by similarity."""

    query: Int
    """(k,) the later frame"""
    match: Int
    """(k,) the earlier frame"""
    similarity: Float
    """(k,) cosine"""

    def __len__(self) -> int:
        return len(self.query)


def retrieve(
    keyframes: Keyframes, config: RetrievalConfig = _DEFAULT, *, first: int = 0, sample: int | None = None
) -> PlaceMatches:
    """For every keyframe up to `top_k` earlier ones of places that were left in between.

    first: row from which on keyframes are looked for; those before it are only looked among.
    sample: keyframes, evenly chosen, whose statistics descriptors are whitened with; all if not given.
    """
    frames = keyframes.frames
    descriptor = whitened(keyframes.descriptor, config.dimensions, config.noise_share, sample)
    found: list[tuple[Int, Int, Float]] = []
    for rows, candidate in other_visits(keyframes, config, first):
        score = np.where(candidate, _similarity(descriptor, rows, config.run), -np.inf)
        for _ in range(config.top_k):
            best = score.argmax(1)
            value = score[np.arange(len(rows)), best]
            good = np.flatnonzero(value >= config.min_similarity)
            found.append((rows[good], best[good], value[good]))
            score[np.abs(frames - frames[best][:, None]) < config.apart] = -np.inf
    if not found:
        return PlaceMatches(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    query, match, similarity = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((-similarity, query))
    return PlaceMatches(frames[query[order]], frames[match[order]], similarity[order])


def whitened(
    descriptors: NDArray[np.float32],
    dimensions: int,
    noise_share: float = RetrievalConfig.noise_share,
    sample: int | None = None,
) -> Float:
    """(n, d) -> (n, p) vectors of length 1 whose coordinates have equal variance over the map.

    p is at most n / 4: with more, n descriptors would all become equally unlike.
    sample: descriptors, evenly chosen, that tell the variance; all if not given.
    """
    values = descriptors.astype(np.float64)
    if sample is not None and sample < len(values):
        return _whitened_by(values, values[:: -(-len(values) // sample)], dimensions, noise_share)
    values -= values.mean(0) if len(values) else 0.0
    n, d = values.shape
    p = max(1, min(dimensions, d, n // 4))
    left, singular, _ = np.linalg.svd(values, full_matrices=False)
    left, singular = left[:, :p], singular[:p]
    # Directions that hardly vary are noise: they are not blown up to the others' size.
    kept = left * (singular / (singular + noise_share * singular[:1] + 1e-12))
    return _unit(kept)


def _whitened_by(values: Float, sample: Float, dimensions: int, noise_share: float) -> Float:
    """Descriptors (n, d) whitened with the statistics of a sample (m, d)."""
    mean, p = sample.mean(0), max(1, min(dimensions, sample.shape[1], len(sample) // 4))
    _, singular, right = np.linalg.svd(sample - mean, full_matrices=False)
    kept = (values - mean) @ right[:p].T / (singular[:p] + noise_share * singular[:1] + 1e-12)
    return _unit(kept)


def _unit(values: Float) -> Float:
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)


def _similarity(descriptor: Float, rows: Int, run: int) -> Float:
    """(b, n) cosines, averaged over keyframes up to `run` before and after both, where there are any."""
    n = len(descriptor)
    total, count = np.zeros((len(rows), n)), np.zeros((len(rows), n))
    for shift in range(-run, run + 1):
        there = np.arange(max(0, -shift), min(n, n - shift))
        mine = np.flatnonzero((rows + shift >= 0) & (rows + shift < n))
        block = np.ix_(mine, there)
        total[block] += descriptor[rows[mine] + shift] @ descriptor[there + shift].T
        count[block] += 1
    return total / np.maximum(count, 1)


def other_visits(
    keyframes: Keyframes, config: RetrievalConfig, first: int = 0
) -> Iterator[tuple[Int, NDArray[np.bool_]]]:
    """Blocks of queries (b,), and which keyframes (b, n) are earlier visits with an absence in between.

    first: row from which on keyframes are queries.
    """
    frames, poses, component = keyframes.frames, keyframes.camera_from_world, keyframes.component
    center, forward = np.asarray(poses.center(), np.float64), poses.rotation[:, 2]
    reach = _reach(frames, center, component, config.away_frames)
    for start in range(first, len(frames), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(frames)))
        seen = np.arange(rows[-1] + 1)
        away = component[rows, None] != component[seen]
        away |= _distance(center[rows], center[seen]) > reach
        away |= forward[rows] @ forward[seen].T < np.cos(np.radians(config.away_deg))
        away &= seen < rows[:, None]
        # Going back in time from the query, everything before the first absence.
        candidate = np.zeros((len(rows), len(frames)), bool)
        candidate[:, seen] = np.logical_or.accumulate(away[:, ::-1], axis=1)[:, ::-1]
        candidate &= (frames[rows, None] - frames >= config.min_gap) | (component[rows, None] != component)
        yield rows, candidate


def _reach(frames: Int, center: Float, component: Int, away_frames: int) -> float:
    """How far the camera usually gets in so many frames."""
    later = np.searchsorted(frames, frames + away_frames)
    earlier = np.flatnonzero(later < len(frames))
    later = later[earlier]
    same = component[later] == component[earlier]
    if not same.any():
        return 0.0
    return float(np.median(np.linalg.norm(center[later] - center[earlier], axis=1)[same]))


def _distance(a: Float, b: Float) -> Float:
    """(b, n) between all points of two sets."""
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return np.sqrt(np.maximum(squares, 0.0))


@dataclass(frozen=True)
class Recall:
    """How many revisits retrieval finds, by ground truth."""

    num_revisits: int
    """Keyframes whose place was visited before"""
    num_found: int
    """Those of them for which a true place is named"""
    num_matches: int
    num_true: int
    """Matches that are of the same place"""

    @property
    def recall(self) -> float:
        return self.num_found / self.num_revisits if self.num_revisits else float("nan")

    @property
    def precision(self) -> float:
        return self.num_true / self.num_matches if self.num_matches else float("nan")


def recall_of(
    matches: PlaceMatches,
    truth: Keyframes,
    config: RetrievalConfig = _DEFAULT,
    *,
    radius: float,
    max_angle_deg: float = 30.0,
) -> Recall:
    """Compares matches with keyframes at their true poses.

    Two keyframes are of one place if they are within `radius` and look the same way to within an angle.
    """
    center, forward = truth.camera_from_world.center(), truth.camera_from_world.rotation[:, 2]
    query, match = (np.searchsorted(truth.frames, column) for column in (matches.query, matches.match))

    def same_place(a: Int, b: Int) -> NDArray[np.bool_]:
        near = np.linalg.norm(center[a] - center[b], axis=-1) <= radius
        return near & ((forward[a] * forward[b]).sum(-1) >= np.cos(np.radians(max_angle_deg)))

    revisits = [
        rows[(candidate & same_place(rows[:, None], np.arange(len(center)))).any(1)]
        for rows, candidate in other_visits(truth, config)
    ]
    is_true = same_place(query, match)
    revisited = np.concatenate([*revisits, np.empty(0, np.int64)])
    found = np.intersect1d(query[is_true], revisited)
    return Recall(len(revisited), len(found), len(matches), int(is_true.sum()))
