"""Which frames of a trajectory get a depth, and which others it is measured from.

A source is good where it sees what the reference sees, from another side, but not so much nearer, farther or
more from the side that it looks different. Time plays no part: a street that is driven twice is seen from
both drives.

Letters: n sample points of the reference, m candidate frames.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole


@dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """How keyframes and their sources are chosen."""

    keyframe_motion: float = 0.1
    """Translation to the next keyframe, as a part of the median depth,"""
    keyframe_turn_deg: float = 10.0
    """or rotation, whichever comes first."""
    sources: int = 6
    """Views that a depth is measured from."""
    wide_deg: float = 8.0
    """Angle between the rays to a point from which on a wider one is no better;"""
    widest_deg: float = 45.0
    """beyond this one a surface looks too different."""
    apart_deg: float = 3.0
    """Sources that a point sees at a smaller angle from each other show the same."""
    largest_zoom: float = 1.3
    """A point is at most so many times nearer to one view than to the other."""
    reach: float = 0.8
    """Candidates are at most this part of the median depth away,"""
    candidates: int = 60
    """and so many, evenly in time, if there are more."""
    least_angle_deg: float = 0.5
    """Median angle of the widest source below which there is no parallax to measure depth from."""

    def __post_init__(self) -> None:
        if not (self.sources >= 1 and self.candidates >= self.sources and self.largest_zoom > 1):
            raise ValueError(f"these settings of view selection do not make sense: {self}")


def is_next_keyframe(camera_from_last: SE3, median_depth: float, config: ViewConfig) -> bool:
    """Whether a frame is far enough from the last keyframe, which sees things at a median depth."""
    moved = float(np.linalg.norm(camera_from_last.translation))
    cosine = (np.trace(camera_from_last.rotation) - 1) / 2
    turned_deg = float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))
    return moved >= config.keyframe_motion * median_depth or turned_deg >= config.keyframe_turn_deg


def candidates(
    center: NDArray[np.float64], reference: int, median_depth: float, config: ViewConfig
) -> NDArray[np.int64]:
    """Rows of the centres (m, 3) near enough to that of the reference, without itself."""
    distance = np.linalg.norm(center - center[reference], axis=1)
    near = np.flatnonzero((distance <= config.reach * median_depth) & (distance > 0))
    near = near[near != reference]
    if len(near) <= config.candidates:
        return near
    return near[np.linspace(0, len(near) - 1, config.candidates).round().astype(int)]


def choose_sources(
    points: NDArray[np.float64],
    camera: Pinhole,
    reference: SE3,
    others: SE3,
    config: ViewConfig,
) -> list[int]:
    """Rows of the views (m,) to measure depth from, best first; none if there is no parallax.

    points: (n, 3) in the world, which the reference sees; reference, others (m,): camera_from_world.
    """
    if not len(points) or not len(others):
        return []
    usefulness, direction = _usefulness(points, camera, reference, others, config)
    chosen: list[int] = []
    separation, served = np.ones_like(usefulness), np.zeros(len(points))
    for _ in range(min(config.sources, len(others))):
        # What is far away wants other views than what is near: who has some already leaves it to the rest.
        gain = (usefulness * separation / (1 + served)).mean(1)
        gain[chosen] = 0
        best = int(np.argmax(gain))
        if gain[best] <= 0:
            break
        chosen.append(best)
        served += usefulness[best] * separation[best]
        cosine = np.einsum("mnk,nk->mn", direction, direction[best])
        apart = np.degrees(np.arccos(np.clip(cosine, -1, 1))) / config.apart_deg
        separation = np.minimum(separation, np.clip(apart, 0.05, 1))
    return chosen if _has_parallax(points, reference, others[np.array(chosen, int)], config) else []


def _usefulness(
    points: NDArray[np.float64], camera: Pinhole, reference: SE3, others: SE3, config: ViewConfig
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(m, n) of each view for each point, 0 to 1, and directions (m, n, 3) from the points to the views."""
    in_view = others[:, None].apply(points)
    depth = in_view[..., 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        u, v = np.moveaxis(camera.project(in_view), -1, 0)
    inside = (depth > 0) & (u >= 0) & (u <= camera.width - 1) & (v >= 0) & (v <= camera.height - 1)
    to_view = others.center()[:, None] - points
    distance = np.linalg.norm(to_view, axis=-1)
    direction = to_view / distance[..., None]
    to_reference = reference.center() - points
    own_distance = np.linalg.norm(to_reference, axis=-1)
    cosine = np.einsum("mnk,nk->mn", direction, to_reference / own_distance[:, None])
    angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    width = np.minimum(angle / config.wide_deg, 1) * np.clip(2 - 2 * angle / config.widest_deg, 0, 1)
    zoom = np.abs(np.log(distance / own_distance)) / np.log(config.largest_zoom)
    return inside * width * np.clip(2 - 2 * zoom, 0, 1), direction


def _has_parallax(points: NDArray[np.float64], reference: SE3, sources: SE3, config: ViewConfig) -> bool:
    if not len(sources):
        return False
    to_source, to_reference = sources.center()[:, None] - points, reference.center() - points
    cross = np.linalg.norm(np.cross(to_source, to_reference), axis=-1)
    angle = np.degrees(np.arctan2(cross, np.einsum("mnk,nk->mn", to_source, to_reference)))
    return bool(np.median(angle, axis=1).max() >= config.least_angle_deg)
