"""Frames from image files: decoding, natural order, folders, globs and lists, and what photographs tell."""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole
from anchor3r.io.extras import optional_library
from anchor3r.io.inputs import DAMAGED
from anchor3r.limits import LIMITS
from anchor3r.sources.frame import Frame
from anchor3r.sources.source import IndexedSource, UndecodableFrameError

_HEIF_SUFFIXES = {".heic", ".heif", ".hif"}
IMAGE_SUFFIXES = _HEIF_SUFFIXES | {
    ".avif", ".bmp", ".jp2", ".jpe", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm",
    ".tif", ".tiff", ".webp",
}  # fmt: skip

_IMAGE_FORMATS = (
    "AVIF", "BMP", "DIB", "HEIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP",
)  # fmt: skip
"""What an image file may be, by Pillow's names; others run programs or hold what is no image."""
_SAMPLED_TIMES = 200
NOMINAL_RATE_HZ = 30.0
"""Frame rate assumed where images carry no times."""
_FULL_FRAME_DIAGONAL_MM = math.hypot(36, 24)
_MM_PER_UNIT = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
"""Of a resolution on the sensor: inch, centimetre, millimetre, micrometre."""
PLAUSIBLE_FOCAL = (0.2, 30.0)
"""Focal length over the longer side of an image; outside the entry is a mistake."""

DECODING_ERRORS = (*DAMAGED, Image.DecompressionBombError)
"""What Pillow raises on damaged files."""
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip
"""By the orientation that EXIF tells."""


class ImageSequence(IndexedSource):
    """A list of image files; data sets add what they know about each by overriding the hooks below."""

    def __init__(self, uri: str, wanted: slice, paths: Sequence[str | Path]) -> None:
        super().__init__(uri, wanted, len(paths))
        self._paths = paths

    @property
    def paths(self) -> Sequence[str | Path]:
        """The files, whether wanted or not; a frame's index is its place among them."""
        return self._paths

    @property
    def files(self) -> Sequence[str | Path]:
        return self._paths

    def _load(self, index: int) -> Frame:
        image = read_image(self._paths[index])
        height, width = image.shape[:2]
        return Frame(
            index=index,
            timestamp_s=self._timestamp_s(index),
            image=image,
            intrinsics=self._intrinsics(width, height),
            depth_m=self._depth_m(index, width, height),
            camera_from_world=self._camera_from_world(index),
        )

    def true_pose(self, index: int) -> SE3 | None:
        return self._camera_from_world(index)

    def _describe(self, index: int) -> str:
        return str(self._paths[index])

    def _timestamp_s(self, index: int) -> float:
        return index / NOMINAL_RATE_HZ

    def _intrinsics(self, width: int, height: int) -> Pinhole | None:
        return None

    def _depth_m(self, index: int, width: int, height: int) -> NDArray[np.float32] | None:
        return None

    def _camera_from_world(self, index: int) -> SE3 | None:
        return None


class PhotoSequence(ImageSequence):
    """Images of which nothing is known but what they say themselves: time and focal length of photographs.

    Where the first image has no time, the images are taken for those of a video of `NOMINAL_RATE_HZ`.
    """

    def __init__(self, uri: str, wanted: slice, paths: Sequence[str | Path]) -> None:
        super().__init__(uri, wanted, paths)
        if any(os.path.splitext(path)[1].lower() in _HEIF_SUFFIXES for path in paths):
            optional_library(
                "pillow_heif", extra="heic", purpose=f"reading the HEIC images of {uri}"
            ).register_heif_opener()
        try:
            self._begun_s = read_photo(paths[self.wanted.start])[1].taken_s
        except UndecodableFrameError:
            self._begun_s = None

    def _load(self, index: int) -> Frame:
        image, facts = read_photo(self._paths[index])
        timestamp_s = self.time_s(index, facts.taken_s)
        camera = facts.camera(image.shape[1], image.shape[0])
        return Frame(index=index, timestamp_s=timestamp_s, image=image, intrinsics=camera, is_nominal=True)

    def time_s(self, index: int, taken_s: float | None) -> float:
        """When an image that says so (`PhotoFacts`), or does not, was taken on the clock of the source."""
        if self._begun_s is None:
            return index / NOMINAL_RATE_HZ
        return self._begun_s + index / NOMINAL_RATE_HZ if taken_s is None else taken_s

    def out_of_order(self) -> str | None:
        """What shows that names do not sort the images by time; None if nothing does, or they have no times.

        Some neighbours are compared, not all: reading the times of thousands of files would take long.
        """
        if self._begun_s is None:
            return None
        chosen = self.wanted[:: -(-len(self.wanted) // _SAMPLED_TIMES)]
        times_s = [self._taken_s(index) for index in chosen]
        known = [time_s for time_s in times_s if time_s is not None]
        backwards = sum(later < earlier for earlier, later in pairwise(known))
        if not backwards:
            return None
        return (
            f"of {len(known)} that were looked at, {backwards} were taken before the one that precedes them"
        )

    def _taken_s(self, index: int) -> float | None:
        try:
            with opened_image(self._paths[index]) as image:
                return photo_facts(image).taken_s
        except DECODING_ERRORS:
            return None


def open_images(uri: str, wanted: slice) -> PhotoSequence:
    """Opens a folder, a glob pattern or a single image."""
    location = os.path.expanduser(uri)
    if os.path.isdir(location):
        paths = [entry.path for entry in os.scandir(location) if entry.is_file()]
    elif os.path.isfile(location):
        paths = [location]
    else:
        paths = glob.glob(location, recursive=True)
    images = image_paths(paths)
    if not images:
        raise Anchor3RError(
            f"no images in {uri}; {_hint(location)} the suffixes known are {' '.join(sorted(IMAGE_SUFFIXES))}"
        )
    return PhotoSequence(uri, wanted, images)


def image_paths(paths: Sequence[str]) -> list[str]:
    """The paths that name images, without hidden files, in natural order."""
    images = [path for path in paths if is_image(path) and not os.path.basename(path).startswith(".")]
    return sorted(images, key=natural_key)


def is_image(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES


def natural_key(text: str) -> tuple[list[str | int], str]:
    """Sorts numbers inside text by their value: frame2 before frame10."""
    parts: list[str | int] = list(re.split("([0-9]+)", text))
    parts[1::2] = map(int, parts[1::2])
    return parts, text


def _hint(location: str) -> str:
    marks = {
        "image_[0-3]": "kitti", "sequences": "kitti", "calibration.txt": "eth3d", "rgb.txt": "tum",
        "*.color.*": "7scenes", "mav0": "euroc", "cam0": "euroc", "*.gt.freiburg": "icl-nuim",
        "traj.txt": "replica",
    }  # fmt: skip
    for mark, scheme in marks.items():
        if glob.glob(os.path.join(glob.escape(location), mark)):
            return f"it looks like a data set, so try {scheme}:{location};"
    return "name a folder of images or a pattern such as 'folder/*.png';"


def read_image(path: str | Path | BinaryIO) -> NDArray[np.uint8]:
    """Decodes any image file to (H, W, 3) RGB, upright as its EXIF orientation says."""
    try:
        with opened_image(path) as image:
            return _rgb(_upright(image))
    except DECODING_ERRORS as error:
        raise _undecodable(path, str(error)) from error


def read_photo(path: str | Path | BinaryIO) -> tuple[NDArray[np.uint8], PhotoFacts]:
    """An image as `read_image` gives it, and what the file says of itself."""
    try:
        with opened_image(path) as image:
            facts = photo_facts(image)
            return _rgb(_upright(image)), facts
    except DECODING_ERRORS as error:
        raise _undecodable(path, str(error)) from error


def opened_image(path: str | Path | BinaryIO) -> Image.Image:
    """An image file, not decoded yet; a ValueError if it is too large, or no ordinary file."""
    if isinstance(path, str | Path) and not os.path.isfile(path):
        raise ValueError("it is no file")
    Image.init()  # HEIF and AVIF are known only where their libraries are installed
    image = Image.open(path, formats=[name for name in _IMAGE_FORMATS if name in Image.OPEN])
    if image.width * image.height > LIMITS.pixels:
        image.close()
        raise ValueError(f"it has {image.width}×{image.height} pixels, more than {LIMITS.pixels:,}")
    return image


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF orientation says; Pillow's own function trips over what else EXIF may hold."""
    turn = _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image) -> NDArray[np.uint8]:
    if image.mode == "F":
        raise ValueError("it has floating-point pixels; convert it to 8 or 16 bits")
    if image.mode.startswith("I"):
        # 16-bit grey: Pillow's own conversion would clip it at 255 instead of scaling it.
        grey = np.clip(np.asarray(image), 0, 65535) >> 8
        return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=-1)
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def read_depth(
    path: str | Path, width: int, height: int, units_per_m: float, invalid: int = 0
) -> NDArray[np.float32]:
    """Decodes a 16-bit depth image (H, W) to metres; 0 and the value `invalid` become 0, unknown."""
    try:
        with opened_image(path) as image:
            if not image.mode.startswith("I"):
                raise ValueError(f"a depth image has one 16-bit channel, this one has mode {image.mode}")
            depth = np.asarray(image)
    except DECODING_ERRORS as error:
        raise _undecodable(path, str(error)) from error
    if depth.shape != (height, width):
        raise Anchor3RError(
            f"{path} is {depth.shape[1]}×{depth.shape[0]}, but its colour image is {width}×{height}; "
            "resize one to the other, or remove the depth images"
        )
    return np.where(depth == invalid, 0, depth).astype(np.float32) / np.float32(units_per_m)


def _undecodable(path: str | Path | BinaryIO, reason: str) -> UndecodableFrameError:
    name = path if isinstance(path, str | Path) else getattr(path, "name", "an image")
    return UndecodableFrameError(f"cannot decode {name} ({reason}); replace the file or remove it")


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
        candidates.append(focal_of_equivalent(equivalent_mm, width, height))
    return next((focal for focal in candidates if PLAUSIBLE_FOCAL[0] <= focal <= PLAUSIBLE_FOCAL[1]), None)


def focal_of_equivalent(equivalent_mm: float, width: int, height: int) -> float:
    """Over the longer side of an image, from what would have the same diagonal view on 35 mm film."""
    return equivalent_mm / _FULL_FRAME_DIAGONAL_MM * math.hypot(width, height) / max(width, height)


def _number(entries: Mapping[int, Any], tag: int) -> float | None:
    try:
        value = float(entries.get(tag, 0))
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return value if math.isfinite(value) and value > 0 else None
