"""The depth image of a keyframe from what stereo, its neighbours and its predictor say: what is kept, what
fills the rest, and how likely each depth is right.

Confidences are probabilities that a depth is within 5 %, by logistic regression on worlds, where depth is
known exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.completion import Completed, CompletionConfig, complete
from anchor3r.dense.consistency import Agreement
from anchor3r.dense.keyframe_depth import DepthOrigin, KeyframeDepth
from anchor3r.dense.plane_sweep import RADIUS
from anchor3r.dense.slanted_refinement import PixelPlanes, fitted_slopes, plane_normals
from anchor3r.geometry import Pinhole
from anchor3r.kernels import Array, kernel

Fill = Literal["holes", "planes", "all"]
_MEASURED = (-6.43, -0.606, 1.439, -0.86, -0.831)
"""Log odds of a measured depth: constant, then by logarithms: of its relative standard deviation, of one more
than the agreeing neighbours (base 2), of one more than the contradicting ones (base 2), and of the spread
among those who agree. By maximum likelihood over worlds 201 to 207 (three rooms, three streets, open ground;
320 × 240 pixels, poses of `features`; 60,000 pixels of each that somebody agrees with, sky among them). In
every tenth of the stated probability what is right differs from it by at most 0.02."""
_PLANE = (-7.672, -2.538, 0.633)
"""Log odds of a plane: constant, then by the logarithms of the scatter about it and of the weight around it;
from the same worlds, 30,000 pixels of each that were not measured. Within 0.05 in every tenth."""
_NORMAL_RADIUS = 5
"""Of the window that normals are fitted in: off by 2.0° in a room and 3.9° in a street (worlds 201 and
206, medians), with 3 by 3.0° and 5.4°."""
_SAME_SURFACE = 0.1
"""Inverse depths that differ by a larger part, beyond what slopes make, are not of one surface."""
_VOTE_RADIUS = 5
"""Of the window that votes on what is carried over an edge: more than half of what windows of stereo are."""
_ALIKE_GREY = 8.0
"""Difference of grey values at which a vote counts half."""
_UNKNOWN_VOTE = np.float32(0.5)
"""Of a pixel without a depth. Most such are of the same surface, but sky has none either, and what little is
known among them was mostly carried there. On streets 101, 103 and 105 and rooms 101, 104 and 105 these votes
take 1.7 and 0.4 % of the measured pixels away, of which three in ten are right; of what whole votes would
take away on top, half is."""
_LEAST_PIXELS = (2 * RADIUS + 1) ** 2
"""Of a patch that is kept: as many as a window of stereo has."""
_LEAST_SPREAD = 0.003
"""Relative spread of depths that agree as well as can be told."""


@dataclass(frozen=True, kw_only=True)
class DepthImageConfig:
    """What of a keyframe's depths is kept."""

    least_agreeing: int = 1
    """Neighbouring keyframes that see a point where it was measured, at least;"""
    tolerance: float = 0.05
    """depths that differ by more than this part do not agree."""
    least_confidence: float = 0.4
    """Measured depths that are less likely right are left out. It knows nothing of specks: of what is left
    without them between 0.4 and 0.5 on streets 101, 103 and 105, 45 to 52 % are right."""
    least_plane_confidence: float = 0.1
    """Planes that are less likely right than this are left out."""
    completion: CompletionConfig = CompletionConfig()
    """How planes are put through what was measured."""

    def __post_init__(self) -> None:
        if not (self.least_agreeing >= 0 and 0 < self.tolerance < 1):
            raise ValueError(f"these settings of depth images do not make sense: {self}")


@dataclass(frozen=True, kw_only=True)
class PredictedDepth:
    """The predictor's own depth of a keyframe, on a grid that spans its image, in the scale of the poses."""

    depth: NDArray[np.float32]
    """(r, c); NaN where there is none"""
    confidence: NDArray[np.float32]
    """(r, c)"""


def depth_image(
    frame: int,
    camera: Pinhole,
    colours: NDArray[np.uint8],
    planes: PixelPlanes,
    agreement: Agreement,
    fill: Fill,
    predicted: PredictedDepth | None,
    config: DepthImageConfig,
) -> KeyframeDepth:
    """What is measured, and as `fill` says planes and the predictor's depths where nothing is."""
    confidence = measured_confidence(planes, agreement)
    kept = (agreement.agreeing >= config.least_agreeing) & (confidence >= config.least_confidence)
    kept &= agreement.inverse > 0
    grey = np.asarray(cv2.cvtColor(colours, cv2.COLOR_RGB2GRAY), np.float32)
    kept &= ~carried_over(planes, kept, grey)
    kept &= ~specks(planes, kept)
    inverse = np.where(kept, agreement.inverse, np.float32(np.nan))
    confidence = np.where(kept, confidence, np.float32(0))
    slopes = fitted_slopes(inverse, part=_SAME_SURFACE, radius=_NORMAL_RADIUS)
    normals = plane_normals(inverse, *slopes, camera)
    origin = np.where(kept, DepthOrigin.MEASURED, DepthOrigin.NONE).astype(np.uint8)
    if fill != "holes" and kept.any():
        through = complete(np.where(kept, inverse, 0), confidence, grey, config.completion)
        chance = plane_confidence(through)
        taken = (origin == DepthOrigin.NONE) & (chance >= config.least_plane_confidence)
        inverse[taken], confidence[taken], origin[taken] = (
            through.inverse[taken], chance[taken], DepthOrigin.PLANE,
        )  # fmt: skip
        normals[taken] = plane_normals(through.inverse, through.slope_x, through.slope_y, camera)[taken]
    with np.errstate(divide="ignore"):
        depth = np.asarray(1 / inverse, np.float32)
    if fill == "all" and predicted is not None:
        _interpolate(depth, confidence, origin, normals, camera, predicted)
    normals[np.isnan(depth)] = np.nan
    return KeyframeDepth(
        frame=frame,
        camera=camera,
        depth=depth,
        confidence=confidence,
        normals_in_camera=normals,
        origin=origin,
        colours=colours,
    )


def carried_over(
    planes: PixelPlanes, known: NDArray[np.bool_], grey: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """(h, w) pixels that look like the surface beyond the edge that they are near.

    A window that reaches over an edge is matched by what has most texture, mostly the nearer thing, which so
    becomes wider by half a window. There a pixel looks like those beyond the edge and has the depth of those
    on this side. It is told by a vote: of the pixels around that look alike, most have another depth or none.
    """
    out = np.zeros(known.shape, np.bool_)
    _vote(planes.inverse, planes.slope_x, planes.slope_y, known, grey, out)
    return out


@kernel
def _vote(inverse: Array, slope_x: Array, slope_y: Array, known: Array, grey: Array, out: Array) -> None:
    height, width = inverse.shape
    for y in range(height):
        for x in range(width):
            if not known[y, x]:
                continue
            here, level = inverse[y, x], grey[y, x]
            a, b, jump = slope_x[y, x], slope_y[y, x], np.float32(_SAME_SURFACE) * here
            same = other = np.float32(0.0)
            top, bottom = max(y - _VOTE_RADIUS, 0), min(y + _VOTE_RADIUS, height - 1)
            left, right = max(x - _VOTE_RADIUS, 0), min(x + _VOTE_RADIUS, width - 1)
            # At the corners and sides of the window first: few pixels are near an edge.
            edge = False
            for v in (top, y, bottom):
                for u in (left, x, right):
                    on_plane = here + a * np.float32(u - x) + b * np.float32(v - y)
                    edge |= not known[v, u] or abs(inverse[v, u] - on_plane) > jump
            if not edge:
                continue
            for v in range(top, bottom + 1):
                for u in range(left, right + 1):
                    difference = (grey[v, u] - level) * np.float32(1 / _ALIKE_GREY)
                    vote = np.float32(1.0) / (np.float32(1.0) + difference * difference)
                    on_plane = here + a * np.float32(u - x) + b * np.float32(v - y)
                    if not known[v, u]:
                        other += _UNKNOWN_VOTE * vote
                    elif abs(inverse[v, u] - on_plane) > jump:
                        other += vote
                    else:
                        same += vote
            out[y, x] = other > same


def specks(planes: PixelPlanes, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(h, w) known pixels whose surface, as far as it is known, is smaller than a window.

    Whatever a window of stereo sees gets at least the size of that window: a pole of one pixel becomes seven
    wide. Depths that hang together over less were matched by nothing but chance, pixel by pixel, where
    another keyframe happened to agree. They are few, but may lie anywhere between the nearest depth and
    infinity.
    """
    patch = np.zeros(known.shape, np.int32)
    _number_patches(planes.inverse, planes.slope_x, planes.slope_y, known, patch)
    return known & (np.bincount(patch.ravel())[patch] < _LEAST_PIXELS)


@kernel
def _number_patches(inverse: Array, slope_x: Array, slope_y: Array, known: Array, patch: Array) -> None:
    """Numbers from 1 on for pixels that hang together, each patch filled from its first pixel."""
    height, width = inverse.shape
    waiting = np.empty(height * width, np.int32)
    count = 0
    for start in range(height * width):
        if not known[start // width, start % width] or patch[start // width, start % width] > 0:
            continue
        count += 1
        patch[start // width, start % width] = count
        waiting[0], size = start, 1
        while size > 0:
            size -= 1
            y, x = waiting[size] // width, waiting[size] % width
            for v, u in ((y, x - 1), (y, x + 1), (y - 1, x), (y + 1, x)):
                if not (0 <= v < height and 0 <= u < width) or not known[v, u] or patch[v, u] > 0:
                    continue
                if _hang_together(inverse, slope_x, slope_y, y, x, v, u):
                    patch[v, u] = count
                    waiting[size] = v * width + u
                    size += 1


@kernel
def _hang_together(inverse: Array, slope_x: Array, slope_y: Array, y: int, x: int, v: int, u: int) -> bool:
    """Whether the planes of two neighbouring pixels meet half way between them."""
    here = inverse[y, x] + np.float32(0.5) * (slope_x[y, x] * (u - x) + slope_y[y, x] * (v - y))
    there = inverse[v, u] - np.float32(0.5) * (slope_x[v, u] * (u - x) + slope_y[v, u] * (v - y))
    return bool(abs(here - there) <= np.float32(_SAME_SURFACE) * min(inverse[y, x], inverse[v, u]))


def measured_confidence(planes: PixelPlanes, agreement: Agreement) -> NDArray[np.float32]:
    """(h, w) from the depth's own spread, who agrees and how well, and who contradicts."""
    bias, by_sigma, by_agreeing, by_contradicting, by_spread = _MEASURED
    with np.errstate(divide="ignore", over="ignore"):
        odds = (
            bias
            + by_sigma * np.log(np.clip(planes.relative_sigma(), 1e-4, 10))
            + by_agreeing * np.log2(1 + agreement.agreeing.astype(np.float32))
            + by_contradicting * np.log2(1 + agreement.contradicting.astype(np.float32))
            + by_spread * np.log(agreement.spread + np.float32(_LEAST_SPREAD))
        )
    return np.asarray(1 / (1 + np.exp(-odds)), np.float32)


def plane_confidence(completed: Completed) -> NDArray[np.float32]:
    """(h, w) from the scatter of what was measured about the plane, and how much of it there is."""
    bias, by_scatter, by_weight = _PLANE
    scatter, weight = np.clip(completed.scatter, 1e-3, 1), np.clip(completed.weight, 1e-3, 1e3)
    odds = bias + by_scatter * np.log(scatter) + by_weight * np.log(weight)
    return np.asarray(np.nan_to_num(1 / (1 + np.exp(-odds))), np.float32) * np.isfinite(completed.inverse)


def _interpolate(
    depth: NDArray[np.float32],
    confidence: NDArray[np.float32],
    origin: NDArray[np.uint8],
    normals: NDArray[np.float32],
    camera: Pinhole,
    predicted: PredictedDepth,
) -> None:
    """Puts the predictor's depths where there are none, in the scale of those that were measured."""
    size = camera.width, camera.height
    guess = np.asarray(cv2.resize(predicted.depth, size, interpolation=cv2.INTER_LINEAR), np.float32)
    chance = np.asarray(cv2.resize(predicted.confidence, size, interpolation=cv2.INTER_NEAREST), np.float32)
    both = (origin == DepthOrigin.MEASURED) & (guess > 0)
    if both.any():
        guess *= np.float32(np.exp(np.median(np.log(depth[both] / guess[both]))))
    taken = (origin == DepthOrigin.NONE) & (guess > 0) & (chance > 0)
    depth[taken], confidence[taken], origin[taken] = guess[taken], chance[taken], DepthOrigin.INTERPOLATED
    inverse = np.asarray(1 / guess, np.float32)
    slope_y, slope_x = (np.asarray(slope, np.float32) for slope in np.gradient(inverse))
    normals[taken] = plane_normals(inverse, slope_x, slope_y, camera)[taken]
