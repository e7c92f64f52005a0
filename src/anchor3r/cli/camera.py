"""What a command line can say of the camera."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anchor3r.sources import StatedCamera


@dataclass(frozen=True, kw_only=True)
class CameraOptions:
    """Options of any command that opens a source."""

    intrinsics: str | None = None
    """fx,fy,cx,cy of the images in pixels, where the source does not know them or is wrong."""
    fov: float | None = None
    """Horizontal field of view in degrees, instead. Without either, features estimates the camera."""
    distortion: str | None = None
    """k1[,k2[,p1,p2[,k3[,k4,k5,k6]]]] of the lens, radial and tangential; images are straightened."""
    fisheye: str | None = None
    """k1,k2,k3,k4 of a fisheye lens (equidistant model), instead."""

    def stated(self) -> StatedCamera | None:
        """None if nothing was said."""
        from anchor3r.sources.stated_camera import StatedCamera, parse_numbers

        if self == NOTHING_STATED:
            return None
        return StatedCamera(
            intrinsics=parse_numbers("--intrinsics", self.intrinsics),
            fov_deg=self.fov,
            distortion=parse_numbers("--distortion", self.distortion),
            fisheye=parse_numbers("--fisheye", self.fisheye),
        )


NOTHING_STATED = CameraOptions()
