"""Where a growing map lies in the world of measured positions: one similarity for a component, and how sure
it is.

The similarity is the robust best fit of the online path to the positions. Its covariance is that of its
difference to the best fit of the path to the truth, so it holds the noise of the positions, white and slow,
and not the drift of the path, which no similarity takes away. White noise is measured where it is not stated,
and never taken for less than stated, by second differences of what is left: drift and slow noise have hardly
any. Positions on a straight line leave the roll about it open; cameras are then taken to be held upright.

Shapes: k positions. The world's axes are east, down, north.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from anchor3r.geodesy import Datum
from anchor3r.geometry import Sim3, hat, so3_log
from anchor3r.pose_graph.measured_drift import SLOW_PART, SLOW_TIME_S
from anchor3r.pose_graph.placement import PlacementConfig, is_on_a_line, robust_similarity, turned_upright
from anchor3r.trajectory import FramePose, Trajectory

Float = NDArray[np.float64]

_LEAST_FACTOR = 1e-6  # of the variance, of positions that state none and fit exactly
_SURER = 0.8  # of the spread of the scale that was told before
_SIZES = (5, 3, 9, 3, 3, 49)
"""Of the parts of a placement as doubles."""


class _Nowhere(NamedTuple):
    """In place of a datum, of positions in a frame of their own."""

    latitude_deg: float = np.nan
    longitude_deg: float = np.nan
    altitude_m: float = np.nan


_NOWHERE = _Nowhere()


@dataclass(frozen=True, kw_only=True)
class OnlinePlacementConfig:
    """When positions determine where a growing map lies."""

    interval: int = 10
    """Frames from one look at the positions to the next."""
    least_positions: int = 10
    """Fewer are not looked at: 30 coordinates less the 7 of a similarity tell noise within a fifth."""
    confidence: float = 0.95
    """Probability with which scale and direction have to be within their limits."""
    scale_within: float = 0.1
    """Limit of the scale's error, as a part of it."""
    direction_within_deg: float = 10.0
    """Limit of the error of heading and tilt."""
    max_positions: int = 400
    """Positions that are kept; of more, every second one is dropped."""

    def __post_init__(self) -> None:
        if self.interval < 1 or self.least_positions < 5 or self.max_positions < 2 * self.least_positions:
            raise ValueError(f"interval, least_positions or max_positions is too small: {self}")
        if not (0 < self.confidence < 1 and self.scale_within > 0 and self.direction_within_deg > 0):
            raise ValueError(f"confidence is a probability, limits must be positive: {self}")


@dataclass(frozen=True, kw_only=True)
class OnlinePlacement:
    """Brings one component of a map into metres, with x east, y down, z north."""

    component: int
    scale: float
    """metres a length of the map"""
    rotation: Float
    """(3, 3) world_from_map"""
    translation: Float
    """(3,) metres"""
    middle: Float
    """(3,) of the positions, in the map"""
    covariance: Float
    """(7, 7) of where that middle is (world axes), of turns about the world's axes (rad), and of the log
    scale"""
    positions: int
    """that the placement rests on"""
    positions_cut: int
    """that contradict it"""
    is_upright_assumed: bool
    """Whether the path is so straight that the roll about it is that of cameras held upright."""
    latitude_deg: float = np.nan
    """of the world's origin; not a number if positions are in a frame of their own"""
    longitude_deg: float = np.nan
    altitude_m: float = np.nan

    @property
    def world_from_map(self) -> Sim3:
        return Sim3(self.rotation, self.translation, np.asarray(self.scale))

    @property
    def datum(self) -> Datum | None:
        """Where the world's origin is on the Earth; None in a frame of the positions' own."""
        if not np.isfinite(self.latitude_deg):
            return None
        return Datum(
            latitude_deg=self.latitude_deg, longitude_deg=self.longitude_deg, altitude_m=self.altitude_m
        )

    @property
    def scale_sigma(self) -> float:
        """standard deviation of the log scale"""
        return float(np.sqrt(self.covariance[6, 6]))

    @property
    def heading_sigma_deg(self) -> float:
        return float(np.degrees(np.sqrt(self.covariance[4, 4])))

    @property
    def tilt_sigma_deg(self) -> float:
        """of the worse of the directions that the world may be tilted in"""
        tilts = self.covariance[np.ix_([3, 5], [3, 5])]
        # Of a path that leaves tilts open rounding may make the largest variance a negative one.
        return float(np.degrees(np.sqrt(np.abs(np.linalg.eigvalsh(tilts)).max())))

    def is_determined(self, config: OnlinePlacementConfig) -> bool:
        """Whether scale, heading and, unless it is assumed, tilt are within their limits."""
        spreads = float(norm.ppf((1 + config.confidence) / 2))
        within_deg = config.direction_within_deg / spreads
        is_level = self.is_upright_assumed or self.tilt_sigma_deg <= within_deg
        return self.scale_sigma <= config.scale_within / spreads and (
            is_level and self.heading_sigma_deg <= within_deg
        )

    def is_news_after(self, told: OnlinePlacement) -> bool:
        """Whether it is surer by a fifth than what was told before, or a standard deviation away from it."""
        away = self.world_from_map.apply(told.middle) - told.world_from_map.apply(told.middle)
        turn, stretch = so3_log(self.rotation @ told.rotation.T), np.log(self.scale / told.scale)
        moved = np.abs(np.concatenate([away, turn, [stretch]]))
        is_surer = self.scale_sigma < _SURER * told.scale_sigma
        return is_surer or bool(np.any(moved > np.sqrt(np.diag(told.covariance))))

    def apply(self, trajectory: Trajectory) -> Trajectory:
        """The poses with those of the component in the world; the others as they are."""
        assert trajectory.component is not None
        assert trajectory.log_scale is not None
        rows = np.flatnonzero(trajectory.component == self.component)
        rotation, center = trajectory.rotation.copy(), trajectory.center.copy()
        log_scale, covariance = trajectory.log_scale.copy(), trajectory.covariance
        rotation[rows] = trajectory.rotation[rows] @ self.rotation.T
        center[rows] = self.world_from_map.apply(trajectory.center[rows])
        log_scale[rows] += np.log(self.scale)
        if covariance is not None:
            covariance = covariance.copy()
            axes = self._axes()
            covariance[rows] = axes @ covariance[rows] @ axes.T
        return replace(
            trajectory, rotation=rotation, center=center, log_scale=log_scale, covariance=covariance
        )

    def apply_to_pose(self, pose: FramePose) -> FramePose:
        """One pose of the component in the world."""
        axes = self._axes()
        return replace(
            pose,
            rotation=pose.rotation @ self.rotation.T,
            center=np.asarray(self.world_from_map.apply(pose.center), np.float64),
            covariance=None if pose.covariance is None else axes @ pose.covariance @ axes.T,
            log_scale=pose.log_scale + float(np.log(self.scale)),
        )

    def _axes(self) -> Float:
        """(6, 6) what it does to a pose's error: rotations are about axes of the camera, which stay."""
        axes = np.eye(6)
        axes[3:, 3:] = self.scale * self.rotation
        return axes

    def as_dict(self) -> dict[str, Any]:
        """The placement as JSON."""
        return {
            "component": self.component,
            "units": "m",
            "scale": self.scale,
            "scale_sigma": self.scale_sigma,
            "heading_sigma_deg": self.heading_sigma_deg,
            "tilt_sigma_deg": self.tilt_sigma_deg,
            "upright_assumed": self.is_upright_assumed,
            "positions": self.positions,
            "positions_cut": self.positions_cut,
        } | ({} if self.datum is None else {"datum": self.datum.as_dict()})

    def to_bytes(self) -> bytes:
        """The placement as doubles."""
        whole = [self.component, self.positions, self.positions_cut, self.scale, self.is_upright_assumed]
        place = [self.latitude_deg, self.longitude_deg, self.altitude_m]
        parts = [whole, place, self.rotation.ravel(), self.translation, self.middle, self.covariance.ravel()]
        return np.concatenate([np.asarray(part, np.float64) for part in parts]).astype("<f8").tobytes()

    @staticmethod
    def from_bytes(data: bytes) -> OnlinePlacement:
        """What `to_bytes` gave; a ValueError of anything else."""
        values = np.frombuffer(data, "<f8").astype(np.float64)
        if len(values) != sum(_SIZES) or not np.isfinite(np.delete(values, slice(5, 8))).all():
            raise ValueError("a placement is not the numbers of one")
        whole, place, rotation, translation, middle, covariance = np.split(values, np.cumsum(_SIZES)[:-1])
        return OnlinePlacement(
            component=int(whole[0]), positions=int(whole[1]), positions_cut=int(whole[2]),
            scale=float(whole[3]), is_upright_assumed=bool(whole[4]),
            latitude_deg=float(place[0]), longitude_deg=float(place[1]), altitude_m=float(place[2]),
            rotation=rotation.reshape(3, 3), translation=translation, middle=middle,
            covariance=covariance.reshape(7, 7),
        )  # fmt: skip


class PositionedPath(NamedTuple):
    """Where an online path was at the moments of positions, in the order of these."""

    center: Float
    """(k, 3) in the map"""
    rotation: Float
    """(k, 3, 3) camera_from_map"""
    position: Float
    """(k, 3) metres in the world"""
    sigma: Float
    """(k, 3) standard deviations of the positions along the world's axes"""
    moment_s: Float
    """(k,)"""


def place_online(
    path: PositionedPath,
    component: int,
    *,
    is_spread_known: bool,
    antenna_in_camera: Float,
    datum: Datum | None,
    config: OnlinePlacementConfig,
) -> OnlinePlacement | None:
    """The robust best fit of a path to its positions; None of too few, or of a path without extent."""
    if len(path.center) < config.least_positions or not np.ptp(path.center, 0).max() > 0:
        return None
    target = path.position
    found, near, is_line = _fitted(path, target)
    if antenna_in_camera.any():  # which way it points follows from the first fit
        world_from_camera = found.rotation @ np.swapaxes(path.rotation, 1, 2)
        target = target - world_from_camera @ antenna_in_camera
        found, near, is_line = _fitted(path, target)
    if not (np.isfinite(found.scale) and found.scale > 0):
        return None
    left, middle = (target - found.apply(path.center))[near], path.center[near].mean(0)
    part = PositionedPath(*(column[near] for column in path))
    place = datum or _NOWHERE
    return OnlinePlacement(
        component=component,
        scale=float(found.scale),
        rotation=np.asarray(found.rotation),
        translation=np.asarray(found.translation),
        middle=middle,
        covariance=_covariance(part, left, found, middle, is_spread_known, is_line),
        positions=int(near.sum()),
        positions_cut=int((~near).sum()),
        is_upright_assumed=is_line,
        latitude_deg=place.latitude_deg,
        longitude_deg=place.longitude_deg,
        altitude_m=place.altitude_m,
    )


def _fitted(path: PositionedPath, target: Float) -> tuple[Sim3, NDArray[np.bool_], bool]:
    """world_from_map, (k,) positions that it rests on, and whether the path leaves the roll about it open."""
    found, near = robust_similarity(path.center, target)
    is_line = is_on_a_line(target[near])
    if is_line:
        found = turned_upright(path.rotation[:, 1], found, target[near])
    return found, near, is_line


def _covariance(
    path: PositionedPath, left: Float, found: Sim3, middle: Float, is_spread_known: bool, is_line: bool
) -> Float:
    """(7, 7) of a fit by equally weighed positions whose noise is white and slow. left: (k, 3) residuals."""
    arm = float(found.scale) * (path.center - middle) @ np.asarray(found.rotation).T
    jacobian = np.concatenate([np.tile(np.eye(3), (len(arm), 1, 1)), -hat(arm), arm[:, :, None]], 2)
    factor = _variance_factor(left, path.sigma, is_spread_known)
    white = factor * path.sigma**2
    slow = np.sqrt(SLOW_PART * np.median(white, 0))
    memory = np.exp(-np.abs(path.moment_s[:, None] - path.moment_s) / SLOW_TIME_S)
    typical = float(np.median(white))
    upright = np.zeros((7, 7))
    if is_line:  # about the horizontal axes
        upright[[3, 5], [3, 5]] = np.radians(PlacementConfig().upright_sigma_deg) ** -2.0
    shared = slow[:, None] * jacobian
    carried = (memory @ shared.reshape(len(arm), -1)).reshape(shared.shape)
    noise = np.einsum("kax,ka,kay->xy", jacobian, white, jacobian) + np.einsum("kax,kay->xy", shared, carried)
    normal = np.einsum("kax,kay->xy", jacobian, jacobian) / typical + upright
    inverse = np.linalg.inv(normal)
    return np.asarray(inverse @ (noise / typical**2 + upright) @ inverse, np.float64)


def _variance_factor(left: Float, sigma: Float, is_spread_known: bool) -> float:
    """How much larger white noise is than stated, by second differences of what is left of neighbours."""
    second = (left[2:] - 2 * left[1:-1] + left[:-2]) / np.sqrt(6.0)
    square = ((second / sigma[1:-1]) ** 2).sum(1)
    return max(1.0 if is_spread_known else _LEAST_FACTOR, float(np.median(square) / chi2.median(3)))
