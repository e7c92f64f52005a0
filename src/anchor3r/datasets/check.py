"""Whether a download is right: pairs of frames are warped through depth and pose, as given and otherwise.

If poses, depth and cameras are right, what one frame sees lies where the other one shows it. So the error as
given is compared with a random pose, and with every mistake that is commonly made: another unit of depth,
other axes, inverted poses, poses of the neighbouring frame. A download is right if none of them does better.
Where there is no depth, matches and their distance to epipolar lines take its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.dataset import RecordedSequence
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole, rotation_angle, so3_exp
from anchor3r.sources.frame import Frame

NUM_POINTS = 3000
"""Points of a frame that are warped."""
RANDOM_POSES = 4
RANDOM_TURN_RAD = 0.3
"""Of the random poses, beside a translation of the given length in a random direction."""
BETTER = 0.95
"""A mistake is only blamed if undoing it lowers the median error by more than this factor …"""
MOST_PAIRS = 0.75
"""… and lowers it in this part of the pairs: pairs that hardly overlap say nothing."""
MIN_MATCHES = 12
"""Pairs with fewer are left out."""
DEPTH_CHANCE = 0.2
"""Relative differences in depth count up to here."""
EPIPOLAR_CHANCE = 0.1
"""Distances to epipolar lines count up to this part of the width."""
MIN_INSIDE = 0.15
"""A hypothesis that moves more than the rest of the points out of the picture is no better than chance."""
CHANCE = 0.75
"""Errors as given have to be below this part of those of random poses."""


@dataclass(frozen=True)
class _View:
    """A frame as one hypothesis sees it."""

    grey: NDArray[np.float32]
    depth: NDArray[np.float32] | None
    pose: SE3
    camera: Pinhole


@dataclass(frozen=True)
class Pair:
    """Two frames, with the poses of their neighbours."""

    first: Frame
    second: Frame
    around: tuple[tuple[SE3, SE3], ...]
    """Poses of both frames as they would be one row later and one row earlier in the table."""
    matches: NDArray[np.float64]
    """(n, 4) pixels of features that look alike in both; only looked for where there is no depth"""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What a check found."""

    figures: dict[str, tuple[float, float]]
    """What was measured, as the data set has it and with random poses: photometric and depth error, or the
    distance to epipolar lines."""
    given: float
    """Median error as the data set has it, as a part of what chance gives."""
    random: float
    """Median error of random poses."""
    mistakes: dict[str, float]
    """Error of each common mistake, undone."""
    blamed: str | None
    """The mistake that explains the error; None if none does."""
    num_pairs: int

    @property
    def right(self) -> bool:
        return self.blamed is None and self.given < CHANCE * self.random

    def in_words(self) -> str:
        lines = [f"{self.num_pairs} pairs of frames, as given and with random poses:"]
        lines += [f"  {name}: {given:.3g}, {random:.3g}" for name, (given, random) in self.figures.items()]
        lines += [f"  error as a part of chance: {self.given:.3f}, {self.random:.3f}"]
        if self.right:
            return "\n".join([*lines, "right: no common mistake explains the pictures better"])
        if self.blamed is not None:
            undone = self.mistakes[self.blamed]
            return "\n".join([*lines, f"WRONG: {self.blamed} (undone: {undone:.3f})"])
        return "\n".join(
            [*lines, "WRONG: hardly better than random poses, and no common mistake explains it"]
        )


Hypothesis = Callable[[Pair], tuple[_View, _View]]


def check_recordings(
    recordings: list[RecordedSequence], *, pairs_each: int = 6, seed: int = 0
) -> tuple[CheckResult, list[Pair]]:
    """Warps pairs of neighbouring frames of each recording."""
    rng = np.random.default_rng(seed)
    pairs = [pair for recording in recordings for pair in _pairs(recording, pairs_each, rng)]
    has_depth = all(pair.first.depth_m is not None for pair in pairs)
    kept = [pair for pair in pairs if has_depth or len(pair.matches) >= MIN_MATCHES]
    if len(kept) < 2:
        raise Anchor3RError("too few frames with poses look alike to check them; name other sequences")
    error = _warping_error if has_depth else _epipolar_error
    hypotheses = (_depth_mistakes() if has_depth else _focal_mistakes()) | _pose_mistakes()
    given = np.array([error(pair, _as_given, seed) for pair in kept])
    errors = {name: np.array([error(p, h, seed) for p in kept]) for name, h in hypotheses.items()}
    random = [[error(p, _random_pose(seed + 7 * k), seed) for p in kept] for k in range(RANDOM_POSES)]
    measures: dict[str, Callable[[Pair, Hypothesis], float]] = (
        {"photometric error in grey levels": _grey_levels, "relative depth error": _depth_error}
        if has_depth
        else {"distance to epipolar lines in pixels": _epipolar_distance}
    )
    figures = {
        name: tuple(float(np.median([f(p, h) for p in kept])) for h in (_as_given, _random_pose(seed)))
        for name, f in measures.items()
    }
    result = CheckResult(
        figures={name: (a, b) for name, (a, b) in figures.items()},
        given=float(np.median(given)),
        random=float(np.median(random)),
        mistakes={name: float(np.median(e)) for name, e in errors.items()},
        blamed=_blamed(given, errors),
        num_pairs=len(kept),
    )
    return result, kept


def _blamed(given: NDArray[Any], errors: dict[str, NDArray[Any]]) -> str | None:
    """The mistake whose undoing lowers the error most, if it does so clearly and in most pairs."""
    name = min(errors, key=lambda key: float(np.median(errors[key])))
    better = np.median(errors[name]) < BETTER * np.median(given)
    return name if better and (errors[name] < given).mean() >= MOST_PAIRS else None


def _pairs(recording: RecordedSequence, count: int, rng: np.random.Generator) -> list[Pair]:
    """Random frames with a neighbour: in time where there is an order, otherwise in place and direction."""
    known = np.flatnonzero(recording.table.known()).tolist()
    poses = [SE3(matrix[:, :3], matrix[:, 3]) for matrix in recording.table.camera_from_world[known]]
    inner = np.arange(1, len(known) - 1)
    pairs = []
    for k in rng.permutation(inner)[:count].tolist():
        if recording.dataset.card.ordered:
            other = min(k + int(rng.integers(1, 4)), len(known) - 2)
            other = other if other != k else k - 1
        else:
            other = _neighbour(poses, k)
        if not 0 < other < len(known) - 1:
            continue
        around = tuple((poses[k + d], poses[other + d]) for d in (1, -1))
        frames = recording.read(known[k]), recording.read(known[other])
        matches = np.empty((0, 4)) if frames[0].depth_m is not None else _matches(*frames)
        pairs.append(Pair(*frames, around, matches))
    return pairs


def _neighbour(poses: list[SE3], k: int) -> int:
    """The inner frame nearest to frame k that does not stand at its very place."""
    centers = np.array([pose.center() for pose in poses])
    turns = rotation_angle(np.array([p.rotation for p in poses]) @ poses[k].rotation.T)
    distance = np.linalg.norm(centers - centers[k], axis=1)
    cost = distance / (np.median(distance) + 1e-9) + turns
    cost[[0, k, -1]] = np.inf
    cost[distance < 0.02 * np.median(distance)] = np.inf
    return int(np.argmin(cost))


def _as_given(pair: Pair) -> tuple[_View, _View]:
    return _view(pair.first), _view(pair.second)


def _view(frame: Frame) -> _View:
    assert frame.camera_from_world is not None
    assert frame.intrinsics is not None
    grey = frame.image.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    return _View(grey, frame.depth_m, frame.camera_from_world, frame.intrinsics)


def _depth_mistakes() -> dict[str, Hypothesis]:
    def scaled(factor: float) -> Hypothesis:
        def apply(pair: Pair) -> tuple[_View, _View]:
            first, second = _as_given(pair)
            assert first.depth is not None
            assert second.depth is not None
            return (
                replace(first, depth=first.depth * np.float32(factor)),
                replace(second, depth=second.depth * np.float32(factor)),
            )

        return apply

    large = {f"depth is {f:g} times too large for the poses": scaled(1 / f) for f in (2, 10, 100, 1000)}
    small = {f"depth is {f:g} times too small for the poses": scaled(f) for f in (2, 10, 100, 1000)}
    return large | small


def _focal_mistakes() -> dict[str, Hypothesis]:
    def zoomed(factor: float) -> Hypothesis:
        def camera(c: Pinhole) -> Pinhole:
            return replace(c, fx=factor * c.fx, fy=factor * c.fy)

        def apply(pair: Pair) -> tuple[_View, _View]:
            first, second = _as_given(pair)
            return replace(first, camera=camera(first.camera)), replace(second, camera=camera(second.camera))

        return apply

    large = {f"focal lengths are {f:g} times too large": zoomed(1 / f) for f in (2, 4, 8)}
    return large | {f"focal lengths are {f:g} times too small": zoomed(f) for f in (2, 4, 8)}


def _pose_mistakes() -> dict[str, Hypothesis]:
    def moved(change: Callable[[SE3], SE3]) -> Hypothesis:
        def apply(pair: Pair) -> tuple[_View, _View]:
            first, second = _as_given(pair)
            return replace(first, pose=change(first.pose)), replace(second, pose=change(second.pose))

        return apply

    def flipped(*signs: float) -> Hypothesis:
        axes = SE3(np.diag(signs), np.zeros(3))
        return moved(lambda pose: axes @ pose)

    def neighbour(which: int) -> Hypothesis:
        def apply(pair: Pair) -> tuple[_View, _View]:
            first, second = _as_given(pair)
            poses = pair.around[which]
            return replace(first, pose=poses[0]), replace(second, pose=poses[1])

        return apply

    return {
        "cameras have y and z the other way round": flipped(1, -1, -1),
        "cameras have x and y the other way round": flipped(-1, -1, 1),
        "cameras have x and z the other way round": flipped(-1, 1, -1),
        "poses are inverted": moved(SE3.inverse),
        "poses are those of the frame before": neighbour(0),
        "poses are those of the frame after": neighbour(1),
    }


def _random_pose(seed: int) -> Hypothesis:
    def apply(pair: Pair) -> tuple[_View, _View]:
        rng = np.random.default_rng([seed, pair.first.index, pair.second.index])
        first, second = _as_given(pair)
        length = np.linalg.norm((second.pose @ first.pose.inverse()).translation)
        direction = rng.standard_normal(3)
        turn = so3_exp(RANDOM_TURN_RAD * rng.standard_normal(3) / np.sqrt(3))
        random = SE3(turn, length * direction / np.linalg.norm(direction))
        return first, replace(second, pose=random @ first.pose)

    return apply


def _warp(first: _View, second: _View, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Pixels (n, 2) with depth in the first view, their points (n, 3) in the second camera, pixels there."""
    assert first.depth is not None
    rows, columns = np.nonzero(first.depth > 0)
    chosen = np.random.default_rng(seed).permutation(len(rows))[:NUM_POINTS]
    pixel = np.stack([columns[chosen], rows[chosen]], -1)
    points = first.camera.unproject(pixel, first.depth[pixel[:, 1], pixel[:, 0]])
    moved = (second.pose @ first.pose.inverse()).apply(points)
    there = np.full((len(moved), 2), -1e6)
    front = moved[:, 2] > 1e-6
    there[front] = second.camera.project(moved[front])
    return pixel, moved, there


def _inside(pixel: NDArray[Any], camera: Pinhole) -> NDArray[np.bool_]:
    return np.asarray((pixel > 0).all(1) & (pixel < [camera.width - 1, camera.height - 1]).all(1))


def _warping_error(pair: Pair, hypothesis: Hypothesis, seed: int) -> float:
    """Mean of two parts of chance, over points that stay in the picture: difference in grey levels, and in
    depth where both frames have it. Chance itself if most points leave."""
    import cv2

    first, second = hypothesis(pair)
    pixel, moved, there = _warp(first, second, seed)
    inside = _inside(there, second.camera)
    if inside.sum() < MIN_INSIDE * max(len(inside), 1):
        return 1.0
    here, other = (cv2.GaussianBlur(view.grey, (0, 0), 0.8) for view in (first, second))
    seen = here[pixel[inside, 1], pixel[inside, 0]]
    spot = there[inside].astype(np.float32)
    shown = cv2.remap(other, spot[:, :1], spot[:, 1:], cv2.INTER_LINEAR)[:, 0]
    chance = np.abs(seen - np.random.default_rng(seed).choice(other.ravel(), len(seen))).mean() + 1e-6
    difference = np.abs(shown - seen - np.median(shown - seen))
    grey = float(np.minimum(difference / chance, 1).mean())
    depth = _depth_differences(moved[inside], there[inside], second)
    return grey if depth is None else (grey + float(np.minimum(depth / DEPTH_CHANCE, 1).mean())) / 2


def _depth_differences(moved: NDArray[Any], there: NDArray[Any], second: _View) -> NDArray[np.float64] | None:
    """Relative, of points inside the picture that meet known depth there; None if hardly any does."""
    if second.depth is None:
        return None
    spot = np.round(there).astype(int)
    shown = second.depth[spot[:, 1], spot[:, 0]]
    known = shown > 0
    return np.abs(shown[known] / moved[known, 2] - 1) if known.sum() >= MIN_MATCHES else None


def _grey_levels(pair: Pair, hypothesis: Hypothesis) -> float:
    """Median difference of what stays in the picture."""
    first, second = hypothesis(pair)
    pixel, _, there = _warp(first, second, 0)
    inside = _inside(there, second.camera)
    if not inside.any():
        return 255.0
    spot = np.round(there[inside]).astype(int)
    shown, seen = second.grey[spot[:, 1], spot[:, 0]], first.grey[pixel[inside, 1], pixel[inside, 0]]
    return float(np.median(np.abs(shown - seen)))


def _depth_error(pair: Pair, hypothesis: Hypothesis) -> float:
    """Median relative difference between warped and shown depth."""
    first, second = hypothesis(pair)
    _, moved, there = _warp(first, second, 0)
    inside = _inside(there, second.camera)
    depth = _depth_differences(moved[inside], there[inside], second)
    return 1.0 if depth is None else float(np.median(depth))


def _matches(first: Frame, second: Frame) -> NDArray[np.float64]:
    """(n, 4) pixels of features that look alike in both frames."""
    import cv2

    sift = cv2.SIFT.create(nfeatures=800)
    found = [sift.detectAndCompute(frame.image, None) for frame in (first, second)]
    if any(descriptors is None or len(points) < MIN_MATCHES for points, descriptors in found):
        return np.empty((0, 4))
    (points_a, a), (points_b, b) = found
    matches = cv2.BFMatcher().knnMatch(a, b, k=2)
    good = [m for m, n in (pair_ for pair_ in matches if len(pair_) == 2) if m.distance < 0.7 * n.distance]
    return np.array([[*points_a[m.queryIdx].pt, *points_b[m.trainIdx].pt] for m in good]).reshape(-1, 4)


def _epipolar_error(pair: Pair, hypothesis: Hypothesis, _: int) -> float:
    """Median distance of matches to their epipolar lines, in parts of `EPIPOLAR_CHANCE` of the width."""
    limit = EPIPOLAR_CHANCE * pair.first.image.shape[1]
    return min(_epipolar_distance(pair, hypothesis), limit) / limit


def _epipolar_distance(pair: Pair, hypothesis: Hypothesis) -> float:
    """Median distance of matches to their epipolar lines in pixels (Sampson)."""
    first, second = hypothesis(pair)
    matches = pair.matches
    x, y = (
        np.linalg.solve(view.camera.matrix(), np.concatenate([m, np.ones((len(m), 1))], 1).T).T
        for view, m in ((first, matches[:, :2]), (second, matches[:, 2:]))
    )
    motion = second.pose @ first.pose.inverse()
    t = motion.translation / (np.linalg.norm(motion.translation) + 1e-12)
    essential = np.array([[0, -t[2], t[1]], [t[2], 0, -t[0]], [-t[1], t[0], 0]]) @ motion.rotation
    line_y, line_x = x @ essential.T, y @ essential
    norm = np.sqrt((line_y[:, :2] ** 2).sum(1) + (line_x[:, :2] ** 2).sum(1)) + 1e-12
    assert pair.first.intrinsics is not None
    return float(np.median(np.abs((y * line_y).sum(1)) / norm) * pair.first.intrinsics.fx)


def draw_pairs(pairs: list[Pair], rows: int = 4) -> NDArray[np.uint8]:
    """A row a pair: both frames, the second one warped into the first, and the difference."""
    import cv2

    drawn = []
    for pair in pairs[:rows]:
        first, second = pair.first.image, cv2.resize(pair.second.image, pair.first.image.shape[1::-1])
        warped = _warped(pair)
        known = (warped.sum(-1, keepdims=True) > 0).astype(np.float32)
        difference = np.clip(3 * np.abs(warped.astype(np.float32) - first) * known, 0, 255)
        row = np.concatenate([first, second, warped, difference.astype(np.uint8)], 1)
        drawn.append(
            cv2.resize(row, (1600, round(1600 * row.shape[0] / row.shape[1])), interpolation=cv2.INTER_AREA)
        )
    return np.concatenate(drawn).astype(np.uint8)


def _warped(pair: Pair) -> NDArray[np.uint8]:
    """The second picture as the first camera sees it, through depth; without depth, with its matches."""
    import cv2

    first, second = _as_given(pair)
    if first.depth is None:
        picture = cv2.resize(pair.second.image, pair.first.image.shape[1::-1]).copy()
        for ax, ay, bx, by in pair.matches.tolist():
            cv2.line(picture, (round(bx), round(by)), (round(ax), round(ay)), (255, 220, 0), 1)
        return np.asarray(picture, np.uint8)
    points = first.camera.unproject_map(first.depth)
    moved = (second.pose @ first.pose.inverse()).apply(points)
    spot = second.camera.project(np.where(moved[..., 2:] > 1e-6, moved, [0, 0, 1e-6])).astype(np.float32)
    warped = cv2.remap(pair.second.image, spot[..., 0], spot[..., 1], cv2.INTER_LINEAR)
    return np.where(((first.depth > 0) & (moved[..., 2] > 0))[..., None], warped, 0).astype(np.uint8)
