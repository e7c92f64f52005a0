"""Where an image was taken: keyframes that look alike, matches with their features, one pose that fits them.

Every keyframe that looks alike proposes a pose by its own matches; the matches of all of them vote. A pose is
told only if so many fits cannot be chance, several keyframes agree, and no other place explains the image
nearly as well; else the reason why it is not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole
from anchor3r.places.features import FeatureConfig, LocalFeatures, match, unit_vectors
from anchor3r.places.index import IndexConfig, PlaceIndex
from anchor3r.places.keyframes import PlaceKeyframe
from anchor3r.places.pose import CameraPose, Matches, PoseConfig, find_pose, judge_pose, refine_pose
from anchor3r.places.vocabulary import Vocabulary

Lens = tuple[float, float]
"""Radial distortion k1, k2."""
_READ = 256
"""Keyframes whose features are kept in memory."""


class Refusal(StrEnum):
    """Why an image has no pose."""

    NO_FEATURES = "too few features"
    NO_PLACE = "no place looks alike"
    CHANCE = "matches that could be chance"
    ALONE = "only one keyframe agrees"
    AMBIGUOUS = "another place fits as well"
    UNDETERMINED = "matches that do not determine the pose"


@dataclass(frozen=True, kw_only=True)
class LocaliserConfig:
    """How much has to speak for a pose."""

    candidates: int = 20
    """Keyframes that look most alike and are compared."""
    false_alarms: float = 1e-6
    """Poses that as many random matches would fit at most, in expectation."""
    min_keyframes: int = 2
    """Keyframes that must agree on the pose, each by features of its own."""
    min_inliers: int = 4
    """Distinct features by which a keyframe agrees."""
    rival: float = 0.6
    """A pose elsewhere that has more than this part of the inliers makes the place ambiguous."""
    largest_sigma: float = 0.1
    """Standard deviation of the camera's place, as a part of the median distance of what it sees, beyond
    which the pose counts as not determined."""
    features: FeatureConfig = FeatureConfig()
    """Features of the image and how they are matched."""
    index: IndexConfig = IndexConfig()
    """How keyframes are found."""
    pose: PoseConfig = PoseConfig()
    """When matches fit a pose."""

    def __post_init__(self) -> None:
        if min(self.candidates, self.min_keyframes, self.min_inliers) < 1 or not 0 < self.false_alarms < 1:
            raise ValueError(f"counts are at least 1 and false_alarms lies in 0 … 1: {self}")
        if not (0 < self.rival <= 1 and self.largest_sigma > 0):
            raise ValueError(f"rival lies in 0 … 1 and largest_sigma is positive: {self}")


@dataclass(frozen=True, eq=False, kw_only=True)
class Localisation:
    """Where an image was taken, or why that is not told."""

    camera_from_world: SE3 | None
    """None if it is refused"""
    covariance: NDArray[np.float64] | None
    """(6, 6) rotation (camera axes, rad²) and centre (world axes)"""
    component: int
    """Of the map, whose world the pose is in; -1 without a pose"""
    num_inliers: int
    """Distinct features that fit the best pose, also of one that is refused"""
    num_matches: int
    """Distinct features with a match in the best pose's component"""
    log10_chance: float
    """Logarithm of the expected number of poses that as many random matches would fit as well"""
    keyframes: tuple[int, ...]
    """Frames of the map that agree, the one with the most matches first"""
    refusal: Refusal | None
    """Why there is no pose"""

    @property
    def found(self) -> bool:
        return self.camera_from_world is not None

    @property
    def position_sigma(self) -> float | None:
        """Root of the summed variances of the camera's centre, in the map's lengths; None without a pose."""
        return None if self.covariance is None else float(np.sqrt(np.trace(self.covariance[3:, 3:])))


@dataclass(frozen=True, eq=False, kw_only=True)
class PosedKeyframes:
    """The keyframes of a map, k of them: where they are and who gives their features."""

    frames: NDArray[np.int64]
    """(k,)"""
    camera_from_world: SE3
    """(k,)"""
    scale: NDArray[np.float64]
    """(k,) of each frame's own depths, in the world"""
    component: NDArray[np.int64]
    """(k,)"""
    camera: Pinhole
    """Of all keyframes."""
    lens: Lens
    read: Callable[[int], PlaceKeyframe]
    """The features of a frame"""


def rays_of(pixel: NDArray[np.float32], camera: Pinhole, lens: Lens) -> NDArray[np.float64]:
    """x/z, y/z (n, 2) of pixels (n, 2) of a camera with radial distortion."""
    if not len(pixel):
        return np.empty((0, 2))
    values = pixel.astype(np.float64)[:, None]
    return np.asarray(cv2.undistortPoints(values, camera.matrix(), np.array([*lens, 0.0, 0.0]))[:, 0])


def matches_with(
    keyframes: PosedKeyframes,
    row: int,
    described: PlaceKeyframe,
    vectors: NDArray[np.float32],
    rays: NDArray[np.float64],
    config: LocaliserConfig,
) -> Matches:
    """Matches of an image with the features of a keyframe, by its row, that have a depth.

    vectors (n, 128) and rays (n, 2) are those of the image's features.
    """
    pairs = match(vectors, described.vectors, config.features)
    known = np.isfinite(described.depth[pairs[:, 1]])
    known &= described.depth_sigma[pairs[:, 1]] < config.pose.largest_depth_sigma
    mine, theirs = pairs[known].T
    camera = keyframes.camera.resized(described.width, described.height)
    flat = rays_of(described.features.pixel[theirs], camera, keyframes.lens)
    ray = np.concatenate([flat, np.ones((len(flat), 1))], 1)
    depth = keyframes.scale[row] * described.depth[theirs].astype(np.float64)[:, None]
    pose = keyframes.camera_from_world[row].inverse()
    return Matches(
        query=rays[mine],
        feature=mine,
        keyframe=np.full(len(mine), row),
        point=np.asarray(pose.apply(depth * ray), np.float64),
        along=(described.depth_sigma[theirs].astype(np.float64)[:, None] * depth * ray) @ pose.rotation.T,
    )


def pooled(parts: list[Matches]) -> Matches:
    """The matches of several keyframes of one world."""
    return Matches(**{
        name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])
    })  # fmt: skip


class Localiser:
    """Answers where images were taken, in one map."""

    def __init__(
        self, keyframes: PosedKeyframes, vocabulary: Vocabulary, config: LocaliserConfig | None = None
    ) -> None:
        self.keyframes, self.config = keyframes, config or LocaliserConfig()
        self._vocabulary = vocabulary
        self._read: OrderedDict[int, PlaceKeyframe] = OrderedDict()
        self.index = PlaceIndex(vocabulary.size, self.config.index)
        """Row k of the keyframes is number k of the index."""
        for frame in keyframes.frames.tolist():
            described = keyframes.read(frame)
            self.index.add(described.word, described.signature)

    def keyframe(self, row: int) -> PlaceKeyframe:
        """The features of a keyframe by its row; the last ones are remembered."""
        if row not in self._read:
            self._read[row] = self.keyframes.read(int(self.keyframes.frames[row]))
            if len(self._read) > _READ:
                self._read.popitem(last=False)
        self._read.move_to_end(row)
        return self._read[row]

    def localise(
        self,
        features: LocalFeatures,
        camera: Pinhole,
        lens: Lens = (0.0, 0.0),
        allowed: NDArray[np.bool_] | None = None,
    ) -> Localisation:
        """The pose of an image by its features. allowed: (k,) which keyframes are asked; None: all."""
        if len(features) <= self.config.min_inliers:
            return _refused(Refusal.NO_FEATURES)
        word, signature = self._vocabulary.quantise(features.descriptor)
        scores = self.index.scores(word, signature)
        if allowed is not None:
            scores = np.where(allowed, scores, 0.0)
        rows = np.argsort(-scores, kind="stable")[: self.config.candidates]
        rows = rows[scores[rows] > 0]
        vectors, rays = unit_vectors(features.descriptor), rays_of(features.pixel, camera, lens)
        return self.pose_among(rows, vectors, rays, camera)

    def pose_among(
        self,
        rows: NDArray[np.int64],
        vectors: NDArray[np.float32],
        rays: NDArray[np.float64],
        camera: Pinhole,
    ) -> Localisation:
        """The pose of an image by its matches with the keyframes of some rows.

        vectors (n, 128) and rays (n, 2) are those of the image's features.
        """
        matched = [(int(row), self._matches(int(row), vectors, rays)) for row in rows]
        matched = [(row, found) for row, found in matched if len(found) > self.config.min_inliers]
        if not matched:
            return _refused(Refusal.NO_PLACE)
        proposals = self._proposals(matched, camera)
        if not proposals:
            return _refused(Refusal.NO_PLACE)
        component, pool, best = max(proposals, key=lambda p: (p[2].num_inliers, -p[2].log10_chance))
        return self._decided(component, pool, best, proposals)

    def _proposals(
        self, matched: list[tuple[int, Matches]], camera: Pinhole
    ) -> list[tuple[int, Matches, CameraPose]]:
        """The pose by each keyframe's matches, refined and judged by those of its whole component."""
        component, config = self.keyframes.component, self.config.pose
        sigma = config.pixel_sigma * max(camera.width, camera.height) / camera.fx
        area = camera.width * camera.height / (camera.fx * camera.fy)
        found: list[tuple[int, Matches, CameraPose]] = []
        for number in np.unique([component[row] for row, _ in matched]).tolist():
            pool = pooled([own for row, own in matched if component[row] == number])
            for row, own in sorted(matched, key=lambda item: -len(item[1])):
                if component[row] != number or _explained(own, found):
                    continue
                start = find_pose(own, sigma, config)
                if start is None:
                    continue
                pose = refine_pose(pool, start, sigma, config)
                judged = judge_pose(pool, pose, sigma, area, config, len(matched))
                if judged is not None:
                    found.append((number, pool, judged))
        return found

    def _matches(self, row: int, vectors: NDArray[np.float32], rays: NDArray[np.float64]) -> Matches:
        return matches_with(self.keyframes, row, self.keyframe(row), vectors, rays, self.config)

    def _decided(
        self,
        component: int,
        pool: Matches,
        best: CameraPose,
        proposals: list[tuple[int, Matches, CameraPose]],
    ) -> Localisation:
        config = self.config
        agreeing = self._agreeing(pool, best)
        refusal = None
        if best.log10_chance > np.log10(config.false_alarms):
            refusal = Refusal.CHANCE
        elif len(agreeing) < config.min_keyframes:
            refusal = Refusal.ALONE
        elif self._is_loose(pool, best):
            refusal = Refusal.UNDETERMINED
        elif any(
            other.num_inliers > config.rival * best.num_inliers
            and (number != component or _is_elsewhere(other, best))
            for number, _, other in proposals
        ):
            refusal = Refusal.AMBIGUOUS
        return Localisation(
            camera_from_world=best.camera_from_world if refusal is None else None,
            covariance=best.covariance if refusal is None else None,
            component=component if refusal is None else -1,
            num_inliers=best.num_inliers,
            num_matches=len(np.unique(pool.feature)),
            log10_chance=best.log10_chance,
            keyframes=tuple(int(self.keyframes.frames[row]) for row in agreeing),
            refusal=refusal,
        )

    def _agreeing(self, pool: Matches, best: CameraPose) -> list[int]:
        """Rows of the keyframes with enough features among the inliers, most first."""
        rows, counts = np.unique(pool.keyframe[best.inlier], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return [int(rows[k]) for k in order if counts[k] >= self.config.min_inliers]

    def _is_loose(self, pool: Matches, best: CameraPose) -> bool:
        distance = np.linalg.norm(pool.point[best.inlier] - best.camera_from_world.center(), axis=1)
        sigma = float(np.sqrt(np.linalg.eigvalsh(best.covariance[3:, 3:])[-1]))
        return sigma > self.config.largest_sigma * float(np.median(distance))


def _explained(own: Matches, found: list[tuple[int, Matches, CameraPose]]) -> bool:
    """Whether most of a keyframe's matches fit a pose that was found already."""
    row = own.keyframe[0]
    return any(2 * int((pool.keyframe[pose.inlier] == row).sum()) > len(own) for _, pool, pose in found)


def _is_elsewhere(other: CameraPose, best: CameraPose) -> bool:
    """Whether two poses in one component rest on different matches: those of one place share most."""
    return 2 * int((other.inlier & best.inlier).sum()) < int(other.inlier.sum())


def _refused(refusal: Refusal) -> Localisation:
    return Localisation(
        camera_from_world=None, covariance=None, component=-1, num_inliers=0, num_matches=0,
        log10_chance=0.0, keyframes=(), refusal=refusal,
    )  # fmt: skip
