"""The little the feature predictor remembers: a few keyframes and the points they see.

Everything is expressed in the newest keyframe's frame and in the window's own scale. Points are columns of
equal length, and an observation table (keyframe × point) holds NaN where a keyframe does not see a point.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Array
from anchor3r.predictors.features.bundle_adjustment import HELD, Adjusted, Adjustment
from anchor3r.predictors.features.calibration import Calibration
from anchor3r.predictors.features.projection import calibration_vector, reprojection_errors, triangulate
from anchor3r.predictors.features.tracking import TEMPLATE_RADIUS
from anchor3r.predictors.features.uncertainty import (
    edges_to_newest,
    in_one_scale,
    log_scale_sigma,
    noise_variance,
    of_poses,
)

_TRIANGULATION_STEPS = 3
"""Gauss–Newton steps from where the rays meet; more change nothing that can be measured."""


@dataclass
class Points:
    """n points."""

    position: Array
    """(n, 3) in the local map"""
    mature: NDArray[np.bool_]
    """(n,) whether the depth is trusted; before that the position is a guess along the first ray"""
    followed: NDArray[np.bool_]
    """(n,) whether the last frame saw it"""
    pixel: Array
    """(n, 2) where the last frame that saw it did"""
    home: NDArray[np.int64]
    """(n,) frame index of the keyframe that its template was cut from"""
    template: NDArray[np.uint8]
    """(n, side, side)"""

    def __len__(self) -> int:
        return len(self.position)

    def select(self, which: NDArray[Any]) -> Points:
        return Points(**{f.name: getattr(self, f.name)[which] for f in fields(self)})

    def extended(self, other: Points) -> Points:
        columns = {
            f.name: np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)
        }
        return Points(**columns)

    @staticmethod
    def start(position: Array, pixel: Array, home: int, template: NDArray[np.uint8]) -> Points:
        """Points whose depth is not known yet, first seen now."""
        n = len(pixel)
        return Points(
            position=position, mature=np.zeros(n, bool), followed=np.ones(n, bool), pixel=pixel.copy(),
            home=np.full(n, home, np.int64), template=template,
        )  # fmt: skip

    @staticmethod
    def none() -> Points:
        side = 2 * TEMPLATE_RADIUS + 1
        return Points.start(np.empty((0, 3)), np.empty((0, 2)), 0, np.empty((0, side, side), np.uint8))


@dataclass
class LocalMap:
    """Keyframes, oldest first, their points, and what each sees."""

    frames: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """(k,) indices of the keyframes"""
    poses: SE3 = field(default_factory=lambda: SE3.identity(0))
    """(k,) keyframe_from_local"""
    covariance: Array = field(default_factory=lambda: np.empty((0, 6, 6)))
    """(k, 6, 6) of edges keyframe_from_newest, over noise_variance; in a young map, of which less is held
    than free, given its scale"""
    oldest_covariance: Array = field(default_factory=lambda: np.zeros((6, 6)))
    """(6, 6) of the edge from the newest keyframe to the last that was held, with the error of its scale"""
    points: Points = field(default_factory=Points.none)
    observed: Array = field(default_factory=lambda: np.empty((0, 0, 2)))
    """(k, n, 2) pixels, NaN where a keyframe does not see a point"""
    noise_variance: float = 1.0
    """of a coordinate of an observation, in square pixels"""

    def __len__(self) -> int:
        return len(self.frames)

    def seen(self) -> NDArray[np.bool_]:
        """(k, n) which keyframe sees which point."""
        return ~np.isnan(self.observed[..., 0])

    def home_poses(self, which: NDArray[Any]) -> SE3:
        """(n,) of the keyframes that the points' templates were cut from."""
        return self.poses[np.searchsorted(self.frames, self.points.home[which])]

    def add_keyframe(self, frame: int, pose: SE3) -> None:
        """The current frame, with whatever it follows, becomes the newest keyframe."""
        row = np.where(self.points.followed[:, None], self.points.pixel, np.nan)
        self.frames = np.append(self.frames, frame)
        self.poses = SE3(
            np.concatenate([self.poses.rotation, pose.rotation[None]]),
            np.concatenate([self.poses.translation, pose.translation[None]]),
        )
        self.covariance = np.concatenate([self.covariance, np.zeros((1, 6, 6))])
        self.observed = np.concatenate([self.observed, row[None]])

    def add_points(self, points: Points) -> None:
        """New points, seen by the newest keyframe only."""
        table = np.full((len(self), len(points), 2), np.nan)
        table[-1] = points.pixel
        self.points = self.points.extended(points)
        self.observed = np.concatenate([self.observed, table], axis=1)

    def keep_points(self, which: NDArray[np.bool_]) -> None:
        self.points = self.points.select(which)
        self.observed = self.observed[:, which]

    def keep_keyframes(self, which: NDArray[np.bool_]) -> None:
        """Drops the other keyframes, and the points that came from them or that nothing sees any more."""
        self.frames, self.poses, self.observed = self.frames[which], self.poses[which], self.observed[which]
        self.covariance = self.covariance[which]
        self.keep_points(np.isin(self.points.home, self.frames) & self.seen().any(axis=0))

    def rebase(self) -> None:
        """Moves everything into the newest keyframe's frame."""
        new_from_old = self.poses[-1]
        self.points.position = new_from_old.apply(self.points.position)
        self.poses = self.poses @ new_from_old.inverse()

    def triangulate(self, camera: Array, max_error_px: float, min_parallax_rad: float) -> None:
        """Positions immature points by the keyframes that see them; those with parallax mature."""
        points = self.points
        which = np.flatnonzero(~points.mature)
        position, error, parallax = triangulate(
            self.poses.rotation, self.poses.translation, camera, self.observed[:, which], _TRIANGULATION_STEPS
        )
        good = error < max_error_px
        points.position[which[good]] = position[good]
        points.mature[which[good]] = parallax[good] > min_parallax_rad

    def adjust(
        self, camera: Array, num_free: int, huber_px: float, belief: Calibration | None, iterations: int
    ) -> tuple[Adjusted, float]:
        """Bundle adjustment of the newest keyframes, their mature points that others see too, and the camera.

        The camera is drawn to what is believed of it; without a belief it is held. Where fewer keyframes are
        held than free, they do not hold the scale: steps change it by chance, and it is put back so that all
        but the newest keyframe are as far apart as they were. Returns by how much everything grew by that.
        """
        num_free = min(num_free, len(self) - 1)
        is_young, extent = len(self) <= 2 * num_free, _extent(self.poses[:-1])
        adjustment, chosen = self.adjustment(camera, num_free, huber_px, belief, iterations)
        adjustment.run(iterations)
        adjusted = adjustment.adjusted
        self.poses = SE3(adjusted.rotations, adjusted.translations)
        self.points.position[chosen] = adjusted.points
        covariance, grown = of_poses(adjusted.information), 1.0
        if is_young and extent > 0:
            grown = extent / _extent(self.poses[:-1])
            self.poses = SE3(self.poses.rotation, grown * self.poses.translation)
            self.points.position *= grown
            covariance *= np.outer(*2 * [np.tile(np.repeat([1.0, grown], 3), num_free)])
        self.covariance = edges_to_newest(self.poses, covariance, num_free)
        self.oldest_covariance = self.covariance[len(self) - 1 - num_free]
        if is_young:
            covariance = in_one_scale(self.poses, covariance, num_free)
            self.covariance = edges_to_newest(self.poses, covariance, num_free)
        return adjusted, grown

    def adjustment(
        self, camera: Array, num_free: int, huber_px: float, belief: Calibration | None, iterations: int
    ) -> tuple[Adjustment, NDArray[np.int64]]:
        """The bundle adjustment before its first step, on copies of the map, and which points take part."""
        free = np.arange(len(self)) >= len(self) - min(num_free, len(self) - 1)
        seen = self.seen() & self.points.mature
        chosen = np.flatnonzero((seen.sum(axis=0) >= 2) & seen[free].any(axis=0))
        point_of, keyframe_of = np.nonzero(seen[:, chosen].T)
        prior = (calibration_vector(camera), HELD) if belief is None else (belief.mean, belief.information)
        adjustment = Adjustment.begin(
            self.poses.rotation, self.poses.translation, camera, self.points.position[chosen],
            point_of, keyframe_of, self.observed[keyframe_of, chosen[point_of]], huber_px, free,
            prior[0], prior[1], iterations,
        )  # fmt: skip
        return adjustment, chosen

    def reject(self, camera: Array, max_error_px: float) -> None:
        """Removes observations that disagree with their point, and points left with fewer than two.

        What the others are off by is the noise that covariances are stated with. Points that were lost before
        their depth was known go as well: nothing would find them again.
        """
        mature = self.points.mature
        keyframe, point = np.nonzero(self.seen() & mature)
        errors = reprojection_errors(
            self.poses[keyframe], camera, self.points.position[point], self.observed[keyframe, point]
        )
        wrong = errors > max_error_px
        self.observed[keyframe[wrong], point[wrong]] = np.nan
        self.noise_variance = noise_variance(errors[~wrong])
        seen = self.seen()
        self.points.followed &= seen[-1] | ~mature
        self.keep_points(np.where(mature, seen.sum(axis=0) >= 2, self.points.followed))

    def log_scale_sigma(self, num_free: int) -> float:
        """Spread of the logarithm of the scale over what it was before the newest keyframe came."""
        oldest = max(0, len(self) - 1 - num_free)
        num_steps = len(self) - 1 - oldest
        oldest_from_newest = self.poses[oldest] @ self.poses[len(self) - 1].inverse()
        return log_scale_sigma(oldest_from_newest, self.noise_variance * self.oldest_covariance, num_steps)


def _extent(poses: SE3) -> float:
    """Root mean square distance of cameras from their centre."""
    center = poses.center()
    return float(np.sqrt(np.mean(np.sum((center - center.mean(axis=0)) ** 2, axis=1))))
