"""From a uri to a source of frames."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from anchor3r.errors import Anchor3RError, without_secrets
from anchor3r.limits import LIMITS
from anchor3r.sources.arrays import ArraySource, IteratedSource, Picture
from anchor3r.sources.bags.recording import BAG_SUFFIXES, is_recording
from anchor3r.sources.datasets import KittiSource, SevenScenesSource, TumSource
from anchor3r.sources.images import IMAGE_SUFFIXES, PhotoSequence, is_image, open_images
from anchor3r.sources.slam_datasets import Eth3dSource, EurocSource, IclNuimSource, ReplicaSource
from anchor3r.sources.source import Source
from anchor3r.sources.stated_camera import StatedCamera


def open_source(
    uri: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Iterable[Picture],
    *,
    start: int = 0,
    stop: int | None = None,
    stride: int = 1,
    camera: StatedCamera | None = None,
) -> Source:
    """Opens anything that frames come from.

    `uri` is a folder, a pattern (`shots/*.png`), a video file, `camera:0`, an rtsp:// or http(s):// address,
    a recording (`bag:FILE?topic=/camera/image_raw`), a sequence of a data set (`kitti:ROOT/00`, `tum:DIR`,
    `7scenes:DIR`, `euroc:DIR`, `icl-nuim:DIR`, `replica:DIR`, `eth3d:DIR`) or `world:SEED?option=value`; or a
    list of image files, or of images as arrays (H, W, 3) RGB or (H, W) grey, or anything that yields such
    arrays or `Frame`s. Of its
    frames, those at start, start + stride, … before stop are taken; they keep their own index. `camera` is
    what is known of it beyond what the source says. A password in an address is for the server alone: the
    source's own uri has none.
    """
    too_large = max(start, stride, stop or 0) > LIMITS.frames
    if start < 0 or stride < 1 or (stop is not None and stop <= start) or too_large:
        raise Anchor3RError(
            f"no frames to take with start {start}, stop {stop}, stride {stride}; "
            "start must not be negative, stop must be higher than start, stride at least 1, and none above "
            f"{LIMITS.frames:,}"
        )
    try:
        source = _open_any(uri, slice(start, stop, stride))
        source.camera = camera
        return source
    except OSError as error:
        what = without_secrets(str(error.filename or uri))
        raise Anchor3RError(f"cannot read {what} ({error.strerror}); check that you may read it") from error


def _open_any(uri: object, wanted: slice) -> Source:
    if isinstance(uri, str | os.PathLike):
        return _open(os.fspath(uri), wanted)
    if isinstance(uri, np.ndarray | Sequence):
        if not len(uri):
            raise Anchor3RError("there are no frames in an empty list; give images or names of image files")
        if all(isinstance(item, str | os.PathLike) for item in uri):
            return PhotoSequence(
                f"a list of {len(uri)} image files", wanted, [os.fspath(item) for item in uri]
            )
        return ArraySource(uri, wanted)
    if isinstance(uri, Iterable):
        return IteratedSource(uri, wanted)
    raise Anchor3RError(f"frames do not come from a {type(uri).__name__}; {_KNOWN}, lists of images")


def _open(uri: str, wanted: slice) -> Source:
    scheme, colon, rest = uri.partition(":")
    if colon and not os.path.exists(uri):
        if scheme in _SCHEMES:
            return _SCHEMES[scheme](uri, os.path.expanduser(rest), wanted)
        # A single letter is a drive.
        if len(scheme) > 1 and scheme.replace("-", "").isalnum():
            raise Anchor3RError(f"unknown kind of source {scheme}: in {without_secrets(uri)}; {_KNOWN}")
    return _open_path(uri, wanted)


def _open_path(uri: str, wanted: slice) -> Source:
    path = os.path.expanduser(uri)
    if os.path.exists(path) and is_recording(Path(path)):
        return _open_bag(uri, path, wanted)
    if os.path.isdir(path) or (glob.has_magic(path) and not os.path.exists(path)):
        return open_images(uri, wanted)
    if not os.path.exists(path):
        raise Anchor3RError(f"there is no {without_secrets(uri)}; check the path ({_KNOWN})")
    if is_image(path):
        return open_images(uri, wanted)
    from anchor3r.sources.video import VIDEO_SUFFIXES, VideoInput, VideoSource

    if os.path.splitext(path)[1].lower() not in VIDEO_SUFFIXES:
        known = " ".join(sorted(VIDEO_SUFFIXES | IMAGE_SUFFIXES | BAG_SUFFIXES))
        raise Anchor3RError(f"{uri} has no known suffix; rename or convert it to one of {known}")
    return VideoSource(wanted, VideoInput(uri=uri, location=path, is_file=True))


def _open_bag(uri: str, location: str, wanted: slice) -> Source:
    from anchor3r.sources.bags.source import BagSource

    return BagSource(uri, location, wanted)


def _open_camera(uri: str, device: str, wanted: slice) -> Source:
    from anchor3r.sources.video import VideoInput, VideoSource

    if sys.platform == "darwin":
        location, device_format = device, "avfoundation"
    elif sys.platform == "win32":
        location, device_format = f"video={device}", "dshow"
    else:
        location, device_format = (f"/dev/video{device}" if device.isdecimal() else device), "v4l2"
    return VideoSource(wanted, VideoInput(uri=uri, location=location, device_format=device_format))


def _open_url(uri: str, _: str, wanted: slice) -> Source:
    from anchor3r.sources.video import VideoInput, VideoSource

    if "://" not in uri:
        # What it means cannot be told, so neither can be what of it is a password.
        scheme = uri.partition(":")[0]
        raise Anchor3RError(f"{scheme}:… is no address; write it with ://, as rtsp://camera/live")
    location = uri.replace(" ", "%20")  # which no address has; a password may
    return VideoSource(wanted, VideoInput(uri=without_secrets(location), location=location))


def _open_world(uri: str, options: str, wanted: slice) -> Source:
    from anchor3r.sources.worlds import WorldSource

    return WorldSource(uri, options, wanted)


def is_remote(uri: str) -> bool:
    """Whether opening it would reach beyond the files of this machine: a server or a camera."""
    scheme, colon, _ = uri.partition(":")
    return bool(colon) and scheme in ("camera", "rtsp", "rtsps", "http", "https")


_SCHEMES: dict[str, Callable[[str, str, slice], Source]] = {
    "camera": _open_camera,
    "rtsp": _open_url,
    "rtsps": _open_url,
    "http": _open_url,
    "https": _open_url,
    "kitti": KittiSource,
    "tum": TumSource,
    "7scenes": SevenScenesSource,
    "euroc": EurocSource,
    "icl-nuim": IclNuimSource,
    "replica": ReplicaSource,
    "eth3d": Eth3dSource,
    "bag": _open_bag,
    "world": _open_world,
}

_KNOWN = f"sources are folders, patterns, images, videos, {', '.join(f'{name}:' for name in _SCHEMES)}"
