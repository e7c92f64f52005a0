"""Loops by places: keyframes that show what a keyframe shows, from wherever, and how both lie.

An inverted index of visual words names earlier keyframes; matches of features, whose depths the map knows,
then say where the one was taken as seen from those around the other. A place counts only if so many fits
cannot be chance, several keyframes agree, and what should be seen from there is seen: another house of the
same make has walls that fit, but not the rest. The poses by the matches with all but one of the keyframes are
the edges of the event: like the votes of a window, they scatter as much as they err.

Shapes: n keyframes, f features of one, m matches.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole, rotation_angle
from anchor3r.places.index import PlaceIndex
from anchor3r.places.keyframes import PlaceKeyframe
from anchor3r.places.localiser import LocaliserConfig, PosedKeyframes, matches_with, pooled, rays_of
from anchor3r.places.pose import CameraPose, Matches, find_pose, judge_pose, refine_pose
from anchor3r.places.vocabulary import load_vocabulary
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.robust import Estimate, median_log_ratio
from anchor3r.store import Loop, LoopState

Int = NDArray[np.int64]
Float = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PlaceConfig:
    """How places are looked for, and what makes one certain."""

    candidates: int = 4
    """Places that are compared by their features, for one keyframe: those that look most alike."""
    around: int = 2
    """Keyframes before and after a place that are compared too."""
    apart: int = 8
    """Places compared for one keyframe are at least so many keyframes apart."""
    edge_inliers: int = 8
    """Distinct features that a pose must rest on to become an edge."""
    min_covered: float = 0.7
    """Of the features that should be seen again this part must lie in cells of the image where some are. Of
    another house that was built and painted alike it was up to 0.57 in a world of such (grid 201); of the
    same place 0.7 and more, unless it was seen from as far beside as it was away."""
    cells: int = 4
    """Cells along each side of the image."""
    cell_share: float = 0.05
    """Part of a cell's features that has to be seen again."""
    same_size: float = 1.5
    """Features that would be seen larger or smaller by more than this factor need not be seen again."""
    features_alike: float = 4.0
    """Features that err together in their depths, and count as one measurement of scale."""
    min_scale_sigma: float = 0.01
    """Spread of an event's log scale at least, however many depths agree."""
    max_angle_deg: float = 3.0
    """Angle by which both directions of an event may differ."""
    max_apart: float = 0.2
    """Distance by which they may differ, as a part of the median distance of what was matched."""
    localiser: LocaliserConfig = LocaliserConfig()
    """How features are matched, and how much has to speak for a pose."""

    def __post_init__(self) -> None:
        if min(self.candidates, self.apart, self.edge_inliers) < 1 or self.around < 0:
            raise ValueError(f"counts are at least 1, around not negative: {self}")
        if not (0 <= self.min_covered <= 1 and 0 <= self.cell_share <= 1 and self.cells >= 1):
            raise ValueError(f"min_covered and cell_share are parts, cells at least 1: {self}")
        if min(self.same_size, self.features_alike) < 1:
            raise ValueError(f"same_size and features_alike are at least 1: {self}")


@dataclass(frozen=True, eq=False)
class Seen:
    """What the matches of a keyframe with those around a place say."""

    row: int
    """The keyframe that was placed."""
    rows: Int
    """(k,) those around the place that agree"""
    camera_from_world: SE3
    """(k,) where the keyframe was by the others, in the world and scale of the odometry around the place"""
    covariance: Float
    """(k, 6, 6) rotation (camera axes) and centre (world axes) of each"""
    pose: SE3
    """Where all together say it was."""
    log_scale: Estimate
    """Log of the keyframe's own scale in the world around the place; NaN spread if it cannot tell."""
    num_inliers: int
    """Distinct features that fit."""
    log10_chance: float
    """Logarithm of the expected number of poses that as many random matches would fit as well."""
    covered: float
    """Part of the features that should be seen again which lies where some of them are."""
    distance: float
    """Median distance of what was matched, from the keyframe."""


class PlaceSearch:
    """The keyframes of one map by their features; they are added as they come."""

    def __init__(
        self, read: Callable[[int], PlaceKeyframe], config: PlaceConfig | None = None, remembered: int = 64
    ) -> None:
        """read: gives the features of a frame; so many are kept in memory."""
        self.config = config or PlaceConfig()
        self.index = PlaceIndex(load_vocabulary().size, self.config.localiser.index)
        self._read_place, self._remembered = read, remembered
        self._places: OrderedDict[int, PlaceKeyframe] = OrderedDict()

    def add(self, place: PlaceKeyframe) -> None:
        """Takes the next keyframe."""
        self.index.add(place.word, place.signature)
        self._remember(place)

    def thin(self) -> None:
        """Forgets every second keyframe."""
        self.index = self.index.thinned()

    def candidates(self, place: PlaceKeyframe, allowed: NDArray[np.bool_]) -> Int:
        """(c,) rows that look most alike, of those allowed (n,), the most alike first."""
        score = self.index.scores(place.word, place.signature).astype(np.float64)
        score[1:-1] += 0.5 * (score[:-2] + score[2:])  # a place is more than one keyframe
        score = np.where(allowed[: len(score)], score, 0.0)
        found: list[int] = []
        while len(found) < self.config.candidates:
            best = int(score.argmax())
            if score[best] <= 0:
                break
            found.append(best)
            score[max(0, best - self.config.apart + 1) : best + self.config.apart] = 0.0
        return np.array(found, np.int64)

    def look(self, posed: PosedKeyframes, row: int, place_row: int) -> Seen | None:
        """Where the keyframe of `row` is by those around `place_row`; None if that is not certain."""
        config = self.config.localiser
        place = self.place(int(posed.frames[row]))
        camera = posed.camera.resized(place.width, place.height)
        rays, vectors = rays_of(place.features.pixel, camera, posed.lens), place.vectors
        sigma = config.pose.pixel_sigma * max(camera.width, camera.height) / camera.fx
        area = camera.width * camera.height / (camera.fx * camera.fy)

        def matches(k: int) -> Matches:
            return matches_with(posed, k, self.place(int(posed.frames[k])), vectors, rays, config)

        own = {place_row: matches(place_row)}
        if len(own[place_row]) < self.config.edge_inliers:
            return None
        start = find_pose(own[place_row], sigma, config.pose)
        if start is None:
            return None
        own |= {k: matches(k) for k in self._around(posed, row, place_row)}
        pool = pooled([part for part in own.values() if len(part)])
        pose = refine_pose(pool, start, sigma, config.pose)
        judged = judge_pose(pool, pose, sigma, area, config.pose, self.config.candidates)
        if judged is None or not self._is_certain(pool, judged):
            return None
        covered = self._covered(posed, camera, pool, judged)
        if covered < self.config.min_covered:
            return None
        votes = self._votes(pool, judged, sigma, area)
        if not votes:
            return None
        poses = [vote.camera_from_world for _, vote in votes]
        inlier = judged.inlier
        distance = np.linalg.norm(pool.point[inlier] - judged.camera_from_world.center(), axis=1)
        return Seen(
            row,
            np.array([k for k, _ in votes], np.int64),
            SE3(np.stack([p.rotation for p in poses]), np.stack([p.translation for p in poses])),
            np.stack([vote.covariance for _, vote in votes]),
            judged.camera_from_world,
            self._log_scale(place, pool, judged),
            judged.num_inliers,
            judged.log10_chance,
            covered,
            float(np.median(distance)),
        )

    def edges(self, posed: PosedKeyframes, seen: Seen, *, is_free: bool) -> Edges:
        """What was seen as edges between the keyframe, their anchor, and those that tell where it is.

        is_free: whether each window has a scale of its own; else all have that of the world.
        """
        member = posed.camera_from_world[seen.rows]
        relative = member @ seen.camera_from_world.inverse()
        told = seen.log_scale if is_free else Estimate(float(np.log(posed.scale[seen.row])), math.nan)
        shrink = math.exp(-told.value)
        turn = np.zeros((len(seen.rows), 6, 6))
        turn[:, :3, :3], turn[:, 3:, 3:] = -np.eye(3), shrink * seen.camera_from_world.rotation
        covariance = turn @ seen.covariance @ np.swapaxes(turn, 1, 2)
        edges = Edges.of(
            posed.frames[seen.rows], posed.frames[seen.row], relative.rotation,
            shrink * np.asarray(relative.translation), kind=EdgeKind.LOOP, log_scale_sigma=told.sigma,
        )  # fmt: skip
        return replace(edges, information=np.asarray(np.linalg.inv(covariance), np.float64))

    def _around(self, posed: PosedKeyframes, row: int, place_row: int) -> list[int]:
        """Rows before and after a place, of its component, as many at the end of the map as elsewhere."""
        mine = np.flatnonzero(posed.component == posed.component[place_row])
        at, count = int(np.searchsorted(mine, place_row)), 2 * self.config.around + 1
        first = max(0, min(at - self.config.around, len(mine) - count))
        near = mine[first : first + count]
        # Keyframes in between may belong to either end.
        return [int(k) for k in near if k != place_row and abs(k - row) > abs(k - place_row)]

    def _is_certain(self, pool: Matches, judged: CameraPose) -> bool:
        config = self.config.localiser
        if judged.log10_chance > math.log10(config.false_alarms):
            return False
        _, counts = np.unique(pool.keyframe[judged.inlier], return_counts=True)
        if (counts >= config.min_inliers).sum() < config.min_keyframes:
            return False
        distance = np.linalg.norm(pool.point[judged.inlier] - judged.camera_from_world.center(), axis=1)
        sigma = float(np.sqrt(np.linalg.eigvalsh(judged.covariance[3:, 3:])[-1]))
        return sigma <= config.largest_sigma * float(np.median(distance))

    def _covered(self, posed: PosedKeyframes, camera: Pinhole, pool: Matches, judged: CameraPose) -> float:
        """Part of the features that should be seen, of keyframes that agree, which lies where some are."""
        rows, counts = np.unique(pool.keyframe[judged.inlier], return_counts=True)
        agreeing = rows[counts >= self.config.localiser.min_inliers].tolist()
        pixels = [self._should_be_at(posed, camera, row, judged.camera_from_world) for row in agreeing]
        expected = self._per_cell(camera, np.concatenate(pixels))
        found = self._per_cell(camera, _pixels(camera, pool.query[judged.inlier]))
        is_seen = found >= np.maximum(1, self.config.cell_share * expected)
        return float(expected[is_seen].sum() / max(expected.sum(), 1))

    def _should_be_at(self, posed: PosedKeyframes, camera: Pinhole, row: int, pose: SE3) -> Float:
        """(f, 2) pixels of a camera at which features of a keyframe should be seen, at about their size."""
        place = self.place(int(posed.frames[row]))
        known = np.flatnonzero(place.depth_sigma < self.config.localiser.pose.largest_depth_sigma)
        own = posed.camera.resized(place.width, place.height)
        flat = rays_of(place.features.pixel[known], own, posed.lens)
        depth = posed.scale[row] * place.depth[known].astype(np.float64)
        ray = np.concatenate([flat, np.ones((len(flat), 1))], 1)
        point = np.asarray((pose @ posed.camera_from_world[row].inverse()).apply(depth[:, None] * ray))
        limit = math.log(self.config.same_size)
        with np.errstate(divide="ignore", invalid="ignore"):
            is_alike = np.abs(np.log(point[:, 2] / depth)) < limit
        pixel = _pixels(camera, point[is_alike, :2] / point[is_alike, 2:])
        return pixel[((pixel >= 0) & (pixel < [camera.width, camera.height])).all(1)]

    def _per_cell(self, camera: Pinhole, pixel: Float) -> Int:
        """How many of the pixels (f, 2) lie in each cell."""
        count = self.config.cells
        cell = np.floor(pixel / [camera.width, camera.height] * count).astype(np.int64).clip(0, count - 1)
        return np.bincount(cell[:, 1] * count + cell[:, 0], minlength=count**2)

    def _votes(
        self, pool: Matches, joint: CameraPose, sigma: float, area: float
    ) -> list[tuple[int, CameraPose]]:
        """For each keyframe that agrees the pose without its matches: their scatter tells the spread."""
        config = self.config.localiser
        rows, counts = np.unique(pool.keyframe[joint.inlier], return_counts=True)
        votes = []
        for row in rows[counts >= config.min_inliers].tolist():
            others = pool.select(pool.keyframe != row)
            pose = refine_pose(others, joint.camera_from_world, sigma, config.pose, is_near=True)
            judged = judge_pose(others, pose, sigma, area, config.pose, 1)
            if judged is not None and judged.num_inliers >= self.config.edge_inliers:
                votes.append((row, judged))
        return votes

    def _log_scale(self, place: PlaceKeyframe, pool: Matches, judged: CameraPose) -> Estimate:
        """Log of depths as matched over those that the keyframe has itself."""
        depth = judged.camera_from_world.apply(pool.point[judged.inlier])[:, 2]
        own = place.depth[pool.feature[judged.inlier]].astype(np.float64)
        sure = place.depth_sigma[pool.feature[judged.inlier]] < self.config.localiser.pose.largest_depth_sigma
        found = median_log_ratio(depth[sure], own[sure], alike=self.config.features_alike)
        return found._replace(sigma=max(found.sigma, self.config.min_scale_sigma))

    def place(self, frame: int) -> PlaceKeyframe:
        """The features of a keyframe; the last ones are remembered."""
        if frame not in self._places:
            self._remember(self._read_place(frame))
        self._places.move_to_end(frame)
        return self._places[frame]

    def _remember(self, place: PlaceKeyframe) -> None:
        self._places[place.frame] = place
        if len(self._places) > self._remembered:
            self._places.popitem(last=False)


def _pixels(camera: Pinhole, ray: Float) -> Float:
    """Pixels of x/z, y/z (f, 2), without lens."""
    return np.asarray(ray * [camera.fx, camera.fy] + [camera.cx, camera.cy], np.float64)


def place_event(
    search: PlaceSearch, posed: PosedKeyframes, query: int, match: int, *, is_free: bool
) -> tuple[Loop, list[Edges]] | None:
    """An event between two rows, each placed by the other's surroundings; None unless both are certain."""
    forward = search.look(posed, query, match)
    backward = None if forward is None else search.look(posed, match, query)
    if forward is None or backward is None:
        return None
    one = forward.pose @ posed.camera_from_world[match].inverse()
    other = posed.camera_from_world[query] @ backward.pose.inverse()
    # Lengths around the query in the scale of the odometry around the match.
    grown = math.exp(forward.log_scale.value) / posed.scale[query] if is_free else 1.0
    angle_deg = math.degrees(float(rotation_angle(one.rotation @ other.rotation.T)))
    apart = float(np.linalg.norm(one.center() - grown * other.center()))
    config = search.config
    agree = angle_deg <= config.max_angle_deg and apart <= config.max_apart * forward.distance
    figures = {
        "inliers": float(min(forward.num_inliers, backward.num_inliers)),
        "covered": min(forward.covered, backward.covered),
        "directions_deg": angle_deg,
        "directions_distance": apart,
    }
    loop = Loop(
        event=-1,
        query=int(posed.frames[query]),
        match=int(posed.frames[match]),
        state=LoopState.PENDING if agree else LoopState.ASYMMETRIC,
        figures=figures,
    )
    return loop, [search.edges(posed, seen, is_free=is_free) for seen in (forward, backward)]
