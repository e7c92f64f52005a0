"""What can be done to a window: other scales, other spreads, more members, a look at the images.

The frames that wait for their first pose are kept here, too, as a stream of windows sees them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Array, Pinhole, so3_log
from anchor3r.predictors.features.uncertainty import carried
from anchor3r.predictors.interface import MemberPoints, WindowPrediction
from anchor3r.predictors.network.predictor import SeenFrame
from anchor3r.robust import Estimate

_DETAIL_PX = 9
"""Side of the neighbourhood whose mean is taken away before two images are compared."""
_MIN_OVERLAP = 0.05
"""Part of an image that the frame before has to show for a comparison."""
_MIN_DEPTH = 1e-6


@dataclass(frozen=True, kw_only=True)
class WaitingFrame:
    """A frame that nobody has answered for, as the network's stream sees it."""

    frame: int
    before: int
    """the frame before it in the stream; itself if there is none"""
    rotation: Array
    """(3, 3) of before_from_this"""
    translation: Array
    """(3,)"""
    covariance: Array
    """(6, 6)"""
    points: NDArray[np.float32]
    """(h, w, 3)"""
    confidence: NDArray[np.float32]
    """(h, w)"""
    colours: NDArray[np.uint8]
    """(h, w, 3)"""
    intrinsics: Pinhole


def rescaled(window: WindowPrediction, log_scale: float) -> WindowPrediction:
    """The window with all lengths multiplied by exp(log_scale)."""
    if log_scale == 0.0:
        return window
    factor, points = math.exp(log_scale), window.points_in_anchor
    stretch = np.outer(*2 * [np.repeat([1.0, factor], 3)])
    return replace(
        window,
        member_from_anchor_translation=window.member_from_anchor_translation * factor,
        covariance=None if window.covariance is None else window.covariance * stretch,
        covariance_alone=None if window.covariance_alone is None else window.covariance_alone * stretch,
        points_in_anchor=None if points is None else points * np.float32(factor),
        member_points=tuple(
            replace(late, points_in_member=late.points_in_member * np.float32(factor))
            for late in window.member_points
        ),
    )


def inflated(window: WindowPrediction, excess: float) -> WindowPrediction:
    """The window with standard deviations multiplied by `excess`."""
    alone = window.covariance_alone
    return replace(
        window,
        covariance=np.asarray(_covariance(window) * excess**2, np.float64),
        covariance_alone=None if alone is None else alone * excess**2,
    )


def as_waiting(window: WindowPrediction, seen: SeenFrame, excess: float) -> WaitingFrame:
    """What is remembered of the network's window of a frame that waits; it errs more than it states by that
    factor."""
    assert window.points_in_anchor is not None
    assert window.points_confidence is not None
    assert window.intrinsics is not None
    before, rotation, translation, covariance = window.anchor, np.eye(3), np.zeros(3), np.zeros((6, 6))
    if len(window.members):
        newest = int(np.argmax(window.members))
        before = int(window.members[newest])
        rotation = window.member_from_anchor_rotation[newest]
        translation = window.member_from_anchor_translation[newest]
        covariance = _covariance(window)[newest] * excess**2
    height, width = window.points_confidence.shape
    colours = cv2.resize(seen.image, (width, height), interpolation=cv2.INTER_AREA)
    return WaitingFrame(
        frame=window.anchor,
        before=before,
        rotation=rotation,
        translation=translation,
        covariance=covariance,
        points=window.points_in_anchor,
        confidence=window.points_confidence,
        colours=np.asarray(colours, np.uint8),
        intrinsics=window.intrinsics,
    )


def _covariance(window: WindowPrediction) -> Array:
    """(n, 6, 6) of the window's edges, if need be by nothing but their order of magnitude."""
    if window.covariance is not None:
        return window.covariance
    lengths = np.linalg.norm(window.member_from_anchor_translation, axis=1)
    spread = [np.diag(np.repeat([1e-4, 0.01 * max(length, 1e-6) ** 2], 3)) for length in lengths]
    return np.array(spread).reshape(-1, 6, 6)


def with_waiting(window: WindowPrediction, waiting: Sequence[WaitingFrame]) -> WindowPrediction:
    """The window with all frames that waited among its members: those that it does not name itself are
    related to it one by one, each through the one after it."""
    if not waiting:
        return window
    rows = {frame: k for k, frame in enumerate(window.members.tolist())}
    poses = {frame: _edge(window, k) for frame, k in rows.items()}
    covariance = dict(zip(rows, _covariance(window), strict=True))
    for after in reversed(waiting):
        if after.before in poses or after.frame not in poses:
            continue
        after_from_anchor = poses[after.frame]
        poses[after.before] = SE3(after.rotation, after.translation) @ after_from_anchor
        step = carried(after.covariance, after_from_anchor, covariance[after.frame])
        covariance[after.before] = step
    members = np.array(sorted(poses), np.int64)
    return replace(
        window,
        members=members,
        member_from_anchor_rotation=np.stack([poses[frame].rotation for frame in members.tolist()]),
        member_from_anchor_translation=np.stack([poses[frame].translation for frame in members.tolist()]),
        confidence=np.ones(len(members)),
        covariance=np.stack([covariance[frame] for frame in members.tolist()]),
        covariance_alone=None,
        member_points=tuple(
            MemberPoints(
                frame=frame.frame, points_in_member=frame.points, confidence=frame.confidence,
                colours=frame.colours, intrinsics=frame.intrinsics,
            )
            for frame in waiting
            if frame.frame in poses
        ),
    )  # fmt: skip


def _edge(window: WindowPrediction, k: int) -> SE3:
    return SE3(window.member_from_anchor_rotation[k], window.member_from_anchor_translation[k])


def spread(window: WindowPrediction) -> float:
    """By how much, in radians, the image may be off that the newest member would see by its edge."""
    points = window.points_in_anchor
    if points is None or window.covariance is None or not np.isfinite(points[..., 2]).any():
        return math.inf
    variance = np.diag(window.covariance[int(np.argmax(window.members))])
    depth = float(np.nanmedian(points[..., 2]))
    return math.sqrt(float(variance[:3].sum() + variance[3:].sum() / depth**2))


def contradiction(one: WindowPrediction, other: WindowPrediction, member: int, ratio: Estimate) -> float:
    """Squared distance, of 6 degrees of freedom, between what two windows of one frame say of a member.

    ratio: logarithm of lengths of the one over those of the other.
    """
    one = rescaled(one, -ratio.value)
    k, j = (int(np.flatnonzero(window.members == member)[0]) for window in (one, other))
    first, second = _edge(one, k), _edge(other, j)
    # Right perturbations of member_from_anchor, which move along the anchor's axes.
    axes = second.rotation.T
    away = axes @ second.translation
    off = np.concatenate([so3_log(axes @ first.rotation), axes @ first.translation - away])
    covariance = _covariance(one)[k] + _covariance(other)[j]
    covariance[3:, 3:] += ratio.sigma**2 * np.outer(away, away)
    return float(off @ np.linalg.solve(covariance, off))


def agreement(window: WindowPrediction, seen: SeenFrame, before: SeenFrame) -> float:
    """Correlation of a frame's details with those of one of its members, where the window says they are.

    It is around 0 for frames that have nothing to do with each other, and 0 where too little overlaps.
    """
    member, (height, width) = int(np.flatnonzero(window.members == before.index)[0]), seen.image.shape[:2]
    assert window.points_in_anchor is not None
    assert window.intrinsics is not None
    camera = window.intrinsics.resized(width, height)
    depth = cv2.resize(window.points_in_anchor[..., 2], (width, height), interpolation=cv2.INTER_LINEAR)
    points = _edge(window, member).apply(camera.unproject_map(depth))
    ahead = points[..., 2] > _MIN_DEPTH
    at = camera.project(np.where(ahead[..., None], points, [0, 0, 1])).astype(np.float32)
    grey, earlier = (
        np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.float32)
        for image in (seen.image, before.image)
    )
    moved = cv2.remap(earlier, at[..., 0], at[..., 1], cv2.INTER_LINEAR, borderValue=float("nan"))
    overlaps = ahead & np.isfinite(moved)
    if overlaps.mean() < _MIN_OVERLAP:
        return 0.0
    one, other = (
        (image - cv2.blur(image, (_DETAIL_PX, _DETAIL_PX)))[overlaps]
        for image in (grey, np.where(overlaps, moved, grey))
    )
    norm = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / norm if norm > 0 else 0.0
