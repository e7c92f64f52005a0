"""What a photograph says of itself: when it was taken, and with which focal length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from PIL import ExifTags, Image

from anchor3r.geometry import Pinhole

_FULL_FRAME_DIAGONAL_MM = math.hypot(36, 24)
_MM_PER_UNIT = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
"""Of a resolution on the sensor: inch, centimetre, millimetre, micrometre."""
_PLAUSIBLE = (0.2, 30.0)
"""Focal length over the longer side of an image; outside the entry is a mistake."""


@dataclass(frozen=True)
class PhotoFacts:
    """Of one image file; None where it does not say."""

    taken_s: float | None
    """Seconds since 1970 on the camera's clock, whose time zone is not known."""
    focal: float | None
    """Focal length over the longer side of the image."""

    def camera(self, width: int, height: int) -> Pinhole | None:
        """The camera of an image of this size, as nominal as the focal length; its axis is in the middle."""
        if self.focal is None:
            return None
        focal_px = self.focal * max(width, height)
        return Pinhole(focal_px, focal_px, (width - 1) / 2, (height - 1) / 2, width, height)


def photo_facts(image: Image.Image) -> PhotoFacts:
    """Reads the EXIF data of an opened image."""
    own = image.getexif()
    details = own.get_ifd(ExifTags.IFD.Exif)
    return PhotoFacts(_taken_s({**own, **details}), _focal(details, image.width, image.height))


def _taken_s(entries: Mapping[int, Any]) -> float | None:
    text = str(entries.get(ExifTags.Base.DateTimeOriginal) or "").strip()
    try:
        taken = datetime.strptime(text[:19], "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    digits = str(entries.get(ExifTags.Base.SubsecTimeOriginal) or "").strip()
    return taken.timestamp() + (float(f"0.{digits}") if digits.isdecimal() else 0.0)


def _focal(details: Mapping[int, Any], width: int, height: int) -> float | None:
    """From the focal length and the size of a pixel on the sensor, else from the 35 mm equivalent.

    The equivalent compares diagonals. The pixels are those of the image as it was taken, before anybody
    resized it.
    """
    focal_mm = _number(details, ExifTags.Base.FocalLength)
    resolution = _number(details, ExifTags.Base.FocalPlaneXResolution)
    unit_mm = _MM_PER_UNIT.get(int(_number(details, ExifTags.Base.FocalPlaneResolutionUnit) or 2))
    taken_px = max(
        _number(details, ExifTags.Base.ExifImageWidth) or width,
        _number(details, ExifTags.Base.ExifImageHeight) or height,
    )
    equivalent_mm = _number(details, ExifTags.Base.FocalLengthIn35mmFilm)
    candidates = []
    if focal_mm and resolution and unit_mm:
        candidates.append(focal_mm / unit_mm * resolution / taken_px)
    if equivalent_mm:
        candidates.append(
            equivalent_mm / _FULL_FRAME_DIAGONAL_MM * math.hypot(width, height) / max(width, height)
        )
    return next((focal for focal in candidates if _PLAUSIBLE[0] <= focal <= _PLAUSIBLE[1]), None)


def _number(entries: Mapping[int, Any], tag: int) -> float | None:
    try:
        value = float(entries.get(tag, 0))
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return value if math.isfinite(value) and value > 0 else None
