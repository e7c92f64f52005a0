"""How high a moving camera is above the ground, by what its images show of it.

A plane that two images show carries one onto the other. Where the camera's motion between them is known, only
the plane is not: its normal, and its distance from the camera over the length of the motion. So the height is
found by laying earlier images onto the newest one over a plane until they agree on the strip that the camera
moves along (Gauss–Newton on grey levels, with a gain and an offset for each image). Points are of little help
on asphalt, which has hardly any corners; thousands of faint pixels together know the plane to some percent.

The normal is upright across the way that the camera travels, up to what it tilts from image to image. Lengths
are those of the motions; k pixels, all in the camera of the newest image, the anchor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Pinhole
from anchor3r.robust import SIGMA_PER_MAD

Float = NDArray[np.float64]
Grey = NDArray[np.float32]

_LEAST_PIXELS = 200  # of the strip that two images have to share
_LARGEST_STEP = 0.1  # of the log height, in an iteration
_SETTLED = 1e-3  # of the log height: far below what one image tells
_ITERATIONS = 12
_OUTLYING = 3.0  # standard deviations at which a pixel has lost three quarters of its weight
_BLUR_PX = 1.0
_EVEN = 0.1  # grey levels that pixels differ by at least, or they tell nothing


@dataclass(frozen=True, kw_only=True)
class GroundConfig:
    """Where the ground is looked for, and how much the camera may tilt on it."""

    reach: float = 10.0
    """Heights of the camera up to which the ground is looked at, along the way,"""
    half_width: float = 1.5
    """and to either side of it."""
    baseline: float = 1.5
    """Heights that the camera should have travelled between two images."""
    max_pixels: int = 2000
    """Pixels of an image, evenly spread."""
    tilt_sigma_deg: float = 1.0
    """How much a vehicle pitches and rolls over the ground."""

    def __post_init__(self) -> None:
        if not (self.reach > 1 and self.half_width > 0 and self.baseline > 0 and self.tilt_sigma_deg > 0):
            raise ValueError(f"these settings of the ground do not make sense: {self}")
        if self.max_pixels < _LEAST_PIXELS:
            raise ValueError(f"max_pixels must be at least {_LEAST_PIXELS}: {self}")


class GroundView(NamedTuple):
    """An earlier image and how it lies to the anchor."""

    grey: Grey
    """(h, w) as `blurred_grey` gives it"""
    rotation: Float
    """(3, 3) view_from_anchor"""
    translation: Float
    """(3,)"""


class GroundPlane(NamedTuple):
    """The ground as an anchor and its views show it."""

    log_height: float
    """log of the camera's distance from it"""
    tilt: Float
    """(2,) radians of the normal against the expected one, in sideways and forward pitch"""
    normal: Float
    """(3,) unit, downwards"""
    correlation: float
    """of the images on the plane, 1 if they are the same"""


def blurred_grey(image: NDArray[np.uint8]) -> Grey:
    """(h, w, 3) RGB -> grey levels that gradients can be taken of."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
    return np.asarray(cv2.GaussianBlur(grey, (0, 0), _BLUR_PX), np.float32)


def travelled(rotation: Float, translation: Float) -> Float:
    """(k, 3) unit directions that the camera moved in from earlier views (view_from_anchor) to the anchor."""
    way = (np.swapaxes(rotation, 1, 2) @ translation[..., None])[..., 0]
    return np.asarray(way / np.maximum(np.linalg.norm(way, axis=1), 1e-12)[:, None], np.float64)


def upright(forward: Float) -> Float:
    """(3,) downwards, across a direction of travel (3,), for a camera that is held without roll."""
    down = np.array([0.0, 1.0, 0.0])
    across = down - (down @ forward) * forward
    return np.asarray(across / np.linalg.norm(across), np.float64)


class GroundStrip:
    """The pixels of one camera that show the ground along the way, and what images tell of it there."""

    def __init__(self, camera: Pinhole, forward: Float, normal: Float, config: GroundConfig) -> None:
        """forward: (3,) direction of travel; normal: (3,) downwards; both unit."""
        self._camera, self._config, self.normal = camera, config, normal
        self.forward = forward
        sideways = np.cross(normal, forward)
        self._tilts = np.stack([sideways / np.linalg.norm(sideways), forward - (forward @ normal) * normal])
        v, u = np.mgrid[1 : camera.height - 1, 1 : camera.width - 1].reshape(2, -1)
        pixels = np.stack([u, v], 1).astype(np.float32)
        rays = np.asarray(camera.unproject(pixels, 1.0), np.float64)
        inverse = rays @ normal  # of the depth, in heights
        with np.errstate(divide="ignore", invalid="ignore"):
            aside = np.abs(rays @ self._tilts[0]) / inverse
        chosen = np.flatnonzero((inverse > 1 / config.reach) & (aside < config.half_width))
        chosen = chosen[:: -(-len(chosen) // config.max_pixels) or 1]
        self._pixels, self._rays = pixels[chosen], rays[chosen]

    @property
    def is_seen(self) -> bool:
        """Whether the camera looks at the ground at all."""
        return len(self._pixels) >= _LEAST_PIXELS

    def with_normal(self, normal: Float) -> GroundStrip:
        """The strip on ground of another normal."""
        return GroundStrip(self._camera, self.forward, normal, self._config)

    def sampled(self, grey: Grey) -> Grey:
        """(k,) grey levels of an anchor."""
        return _sampled(grey, self._pixels)

    def correlations(self, anchor: Grey, views: Sequence[GroundView], log_heights: Float) -> Float:
        """(len(log_heights),) how alike images look over the ground at each height; NaN where they share
        too little of it. anchor: (k,) `sampled`."""
        found = np.empty(len(log_heights))
        for k, log_height in enumerate(log_heights):
            plane = self.normal * np.exp(-log_height)
            found[k] = _mean([_correlation(anchor, _sampled(v.grey, self._seen(plane, v)[1])) for v in views])
        return found

    def fit(self, anchor: Grey, views: Sequence[GroundView], log_height: float) -> GroundPlane | None:
        """The plane from a height that is right to some pixels; None if it is not found from there."""
        unknown, stiffness = np.array([log_height, 0.0, 0.0]), np.radians(self._config.tilt_sigma_deg) ** -2
        slopes = [_slopes(view.grey) for view in views]
        is_settled = False
        for _ in range(_ITERATIONS):
            matrix = np.diag([0.0, stiffness, stiffness])
            gradient = stiffness * unknown * [0, 1, 1]
            for view, slope in zip(views, slopes, strict=True):
                added = self._normal_equations(anchor, view, slope, unknown)
                if added is not None:
                    matrix, gradient = matrix + added[0], gradient + added[1]
            if not matrix[0, 0] > 0:
                return None
            step = -np.linalg.solve(matrix, gradient)
            step[0] = np.clip(step[0], -_LARGEST_STEP, _LARGEST_STEP)
            unknown = unknown + step
            is_settled = bool(abs(step[0]) < _SETTLED)
            if is_settled:
                break
        if not (is_settled and np.isfinite(unknown).all()):
            return None
        plane, normal = self._plane(unknown)
        agreement = [_correlation(anchor, _sampled(v.grey, self._seen(plane, v)[1])) for v in views]
        return GroundPlane(float(unknown[0]), unknown[1:], normal, float(_mean(agreement)))

    def _plane(self, unknown: Float) -> tuple[Float, Float]:
        """The normal over the height, by whose product with a ray is its inverse depth; and the normal."""
        normal = self.normal + unknown[1:] @ self._tilts
        normal = normal / np.linalg.norm(normal)
        return normal * np.exp(-unknown[0]), normal

    def _seen(self, plane: Float, view: GroundView) -> tuple[Float, NDArray[np.float32]]:
        """(k, 3) the strip in a view, up to a factor, and its pixels (k, 2) there."""
        points = self._rays @ view.rotation.T + np.outer(self._rays @ plane, view.translation)
        in_front = np.where(points[:, 2:] > 1e-6, points[:, 2:], np.nan)
        points = np.concatenate([points[:, :2], in_front], 1)
        return points, self._camera.project(points).astype(np.float32)

    def _normal_equations(
        self, anchor: Grey, view: GroundView, slope: tuple[Grey, Grey], unknown: Float
    ) -> tuple[Float, Float] | None:
        """(3, 3) and (3,) by one view, its gain and offset eliminated; None if it shares too little."""
        plane, _ = self._plane(unknown)
        points, pixels = self._seen(plane, view)
        grey = _sampled(view.grey, pixels)
        shared = np.isfinite(grey)
        if np.count_nonzero(shared) < _LEAST_PIXELS:
            return None
        (x, y, z), (tx, ty, tz) = points[shared].T, view.translation
        grey, target = grey[shared].astype(np.float64), anchor[shared].astype(np.float64)
        if min(grey.std(), target.std()) < _EVEN:
            return None
        gain, grey, target = target.std() / grey.std(), grey - grey.mean(), target - target.mean()
        residual = gain * grey - target
        along_u, along_v = (_sampled(image, pixels)[shared] for image in slope)
        by_inverse_depth = gain * (
            along_u * self._camera.fx * (tx / z - x * tz / z**2)
            + along_v * self._camera.fy * (ty / z - y * tz / z**2)
        )
        by_unknowns = np.stack([-plane, *(np.exp(-unknown[0]) * self._tilts)], 1)
        jacobian = np.column_stack(
            [by_inverse_depth[:, None] * (self._rays[shared] @ by_unknowns), grey, np.ones(len(grey))]
        )
        sigma = SIGMA_PER_MAD * float(np.median(np.abs(residual))) + 1e-3
        weight = (1 + (residual / (_OUTLYING * sigma)) ** 2) ** -2.0 / sigma**2
        weighed = jacobian * weight[:, None]
        matrix, gradient = jacobian.T @ weighed, weighed.T @ residual
        carry = np.linalg.solve(matrix[3:, 3:], matrix[3:, :3]).T
        return matrix[:3, :3] - carry @ matrix[3:, :3], gradient[:3] - carry @ gradient[3:]


def _slopes(grey: Grey) -> tuple[Grey, Grey]:
    """How grey levels change along columns and rows, a pixel."""
    along_u, along_v = (cv2.Sobel(grey, cv2.CV_32F, *order, scale=1 / 8) for order in ((1, 0), (0, 1)))
    return np.asarray(along_u, np.float32), np.asarray(along_v, np.float32)


def _sampled(image: Grey, pixels: NDArray[np.float32]) -> Grey:
    """(k,) values at pixels (k, 2); NaN outside."""
    columns, rows = np.ascontiguousarray(pixels.T)[:, None]
    found = cv2.remap(
        image, columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=np.nan
    )
    return np.asarray(found[0], np.float32)


def _correlation(a: Grey, b: Grey) -> float:
    """Of the values that both have; NaN of too few."""
    shared = np.isfinite(a) & np.isfinite(b)
    if np.count_nonzero(shared) < _LEAST_PIXELS:
        return float("nan")
    a, b = a[shared] - a[shared].mean(), b[shared] - b[shared].mean()
    return float(a @ b / max(float(np.sqrt((a @ a) * (b @ b))), 1e-9))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")
