"""The camera as the user states it: intrinsics or a field of view, and what the lens bends.

Images that a lens has bent are straightened as they come, so that everything downstream sees an ideal camera.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.records import record_from_json
from anchor3r.sources.frame import Frame
from anchor3r.sources.undistortion import undistorted

_DISTORTION_SIZES = (1, 2, 4, 5, 8)
_FISHEYE_SIZE = 4
_LARGEST_NUMBER = 1e6
"""Pixels or coefficients of a camera."""
_FOV_DEG = (1, 170)
"""Fields of view that a pinhole camera may have."""


@dataclass(frozen=True, kw_only=True)
class StatedCamera:
    """What is known of the camera beyond what a source says itself; it overrules the source."""

    intrinsics: tuple[float, ...] = ()
    """fx, fy, cx, cy in pixels of the source's images, or nothing"""
    fov_deg: float | None = None
    """Horizontal field of view, if there are no intrinsics; the principal point is then in the middle."""
    distortion: tuple[float, ...] = ()
    """k1[, k2[, p1, p2[, k3[, k4, k5, k6]]]]: radial and tangential, as OpenCV and ROS have them"""
    fisheye: tuple[float, ...] = ()
    """k1, k2, k3, k4 of the equidistant model, instead"""

    def __post_init__(self) -> None:
        for option, numbers in (
            ("--intrinsics", self.intrinsics),
            ("--distortion", self.distortion),
            ("--fisheye", self.fisheye),
            ("--fov", () if self.fov_deg is None else (self.fov_deg,)),
        ):
            if not all(isinstance(n, float | int) and abs(n) <= _LARGEST_NUMBER for n in numbers):
                raise Anchor3RError(f"{option} {_text(numbers)} has numbers that no camera has")
        if self.intrinsics and (len(self.intrinsics) != 4 or min(self.intrinsics[:2]) <= 0):
            raise Anchor3RError(
                f"--intrinsics {_text(self.intrinsics)} are not four numbers fx,fy,cx,cy with positive focal "
                "lengths, in pixels; for example 718.9,718.9,607.2,185.2"
            )
        if self.intrinsics and self.fov_deg is not None:
            raise Anchor3RError("--intrinsics and --fov state the same thing twice; choose one of them")
        if self.fov_deg is not None and not _FOV_DEG[0] <= self.fov_deg <= _FOV_DEG[1]:
            low, high = _FOV_DEG
            raise Anchor3RError(f"--fov {self.fov_deg:g} is not between {low} and {high} degrees")
        if self.distortion and self.fisheye:
            raise Anchor3RError("--distortion and --fisheye are two models of one lens; choose one of them")
        if self.distortion and len(self.distortion) not in _DISTORTION_SIZES:
            raise Anchor3RError(
                f"--distortion {_text(self.distortion)} should be k1[,k2[,p1,p2[,k3[,k4,k5,k6]]]]"
            )
        if self.fisheye and len(self.fisheye) != _FISHEYE_SIZE:
            raise Anchor3RError(f"--fisheye {_text(self.fisheye)} should be the four numbers k1,k2,k3,k4")

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> StatedCamera:
        """From the fields as JSON gives them back."""
        return record_from_json(StatedCamera, values, "the camera that was stated")

    def over(self, known: StatedCamera) -> StatedCamera:
        """What is stated here, and for the rest what a source knows."""
        states_lens = self.distortion or self.fisheye
        states_view = self.intrinsics or self.fov_deg is not None
        view, lens = self if states_view else known, self if states_lens else known
        return StatedCamera(
            intrinsics=view.intrinsics, fov_deg=view.fov_deg, distortion=lens.distortion, fisheye=lens.fisheye
        )

    def applied(self, frame: Frame) -> Frame:
        """The frame with this camera, straightened."""
        height, width = frame.image.shape[:2]
        camera = frame.intrinsics
        if self.intrinsics:
            fx, fy, cx, cy = self.intrinsics
            camera, frame = Pinhole(fx, fy, cx, cy, width, height), replace(frame, is_nominal=False)
        elif self.fov_deg is not None:
            camera = Pinhole.from_fov(self.fov_deg, width, height)
            frame = replace(frame, is_nominal=True)
        _insist_on_sense(camera, self)
        if not (self.distortion or self.fisheye):
            return replace(frame, intrinsics=camera)
        if camera is None:
            raise Anchor3RError(
                "a distorted lens can only be straightened if its focal length is known; "
                "add --intrinsics fx,fy,cx,cy or --fov DEG"
            )
        # Depth is left out: it would have to be resampled, and only ground truth has it.
        lens, is_fisheye = self.distortion or self.fisheye, bool(self.fisheye)
        image = undistorted(frame.image, camera, lens, fisheye=is_fisheye)
        return replace(frame, image=image, intrinsics=camera, depth_m=None)


def _insist_on_sense(camera: Pinhole | None, stated: StatedCamera) -> None:
    """Refuses intrinsics that no such image has: mostly they are of another size, or not in pixels."""
    if camera is None or not stated.intrinsics:
        return
    size, text = f"{camera.width}×{camera.height}", _text(stated.intrinsics)
    if not (0 <= camera.cx < camera.width and 0 <= camera.cy < camera.height):
        raise Anchor3RError(
            f"--intrinsics {text} put the principal point outside the images of {size} pixels; give "
            "fx,fy,cx,cy in pixels of these images (after a resize by s, all four times s)"
        )
    fovs_deg = [
        math.degrees(2 * math.atan(side / 2 / f))
        for side, f in ((camera.width, camera.fx), (camera.height, camera.fy))
    ]
    if not all(_FOV_DEG[0] <= fov <= _FOV_DEG[1] for fov in fovs_deg):
        raise Anchor3RError(
            f"--intrinsics {text} mean fields of view of {fovs_deg[0]:.0f}° and {fovs_deg[1]:.0f}° for images"
            f" of {size} pixels, which no straight image has; give fx,fy,cx,cy in pixels of these images"
        )


def parse_numbers(option: str, text: str | None) -> tuple[float, ...]:
    """Comma-separated numbers of an option; none if it was not given."""
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise Anchor3RError(f"{option} {text} should be numbers with commas between them") from None


def _text(numbers: tuple[float, ...]) -> str:
    return ",".join(f"{number:g}" if isinstance(number, float) else str(number) for number in numbers)
