"""What messages of ROS and Foxglove say: images, cameras, poses and how frames of reference lie."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole, rotation_from_quat
from anchor3r.sources.bags.pixels import decoded_file, decoded_raw
from anchor3r.sources.stated_camera import StatedCamera
from anchor3r.sources.undistortion import FISHEYE_MODELS

VIDEOS = {"foxglove.CompressedVideo", "foxglove_msgs/CompressedVideo"}
"""One picture a message too, but most of them can only be decoded after the ones before."""
IMAGES = {
    "sensor_msgs/Image", "sensor_msgs/CompressedImage", "foxglove.RawImage", "foxglove.CompressedImage",
    "foxglove_msgs/RawImage", "foxglove_msgs/CompressedImage", *VIDEOS,
}  # fmt: skip
CAMERAS = {"sensor_msgs/CameraInfo", "foxglove.CameraCalibration"}
POSES = {
    "nav_msgs/Odometry", "geometry_msgs/PoseStamped", "geometry_msgs/PoseWithCovarianceStamped",
    "geometry_msgs/TransformStamped", "foxglove.PoseInFrame", "foxglove.Odometry",
}  # fmt: skip
TRANSFORMS = {"tf2_msgs/TFMessage", "tf/tfMessage", "foxglove.FrameTransform", "foxglove.FrameTransforms"}
_NS = 1_000_000_000


def stamp_ns(message: Any) -> int:
    """When what the message tells was true; 0 if it does not say."""
    header = getattr(message, "header", None)
    stamp = message.timestamp if header is None else header.stamp
    for seconds, nanoseconds in (("sec", "nanosec"), ("seconds", "nanos"), ("sec", "nsec")):
        if hasattr(stamp, seconds) and hasattr(stamp, nanoseconds):
            return int(getattr(stamp, seconds)) * _NS + int(getattr(stamp, nanoseconds))
    return 0


def frame_id(message: Any) -> str:
    """The frame of reference that a message is in."""
    header = getattr(message, "header", None)
    return str(message.frame_id if header is None else header.frame_id).lstrip("/")


def image_of(message: Any) -> NDArray[np.uint8]:
    """(H, W, 3) RGB of an image message, raw or compressed."""
    data = message.data
    if isinstance(data, str):  # JSON
        data = base64.b64decode(data)
    if not hasattr(message, "encoding"):
        return decoded_file(data)
    return decoded_raw(
        data, message.encoding, int(message.width), int(message.height), int(message.step),
        big_endian=bool(getattr(message, "is_bigendian", False)),
    )  # fmt: skip


@dataclass(frozen=True)
class CameraFacts:
    """What a calibration message says."""

    pinhole: Pinhole
    """At the size that was calibrated, or of the part of it that images show."""
    distortion: tuple[float, ...]
    fisheye: tuple[float, ...]

    def at(self, width: int, height: int) -> StatedCamera:
        """The camera of images of a size."""
        camera = self.pinhole.resized(width, height)
        intrinsics = (camera.fx, camera.fy, camera.cx, camera.cy)
        return StatedCamera(intrinsics=intrinsics, distortion=self.distortion, fisheye=self.fisheye)


def camera_of(message: Any, *, rectified: bool) -> CameraFacts | None:
    """Of images as they were taken, or of rectified ones; None if the camera was not calibrated.

    Raises ValueError if its lens is of a model that is not known.
    """
    k, d, p = (_numbers(message, name) for name in ("k", "d", "p"))
    if len(k) != 9 or k[0] <= 0 or k[4] <= 0:
        return None
    fx, fy, cx, cy = k[0], k[4], k[2], k[5]
    if rectified and len(p) == 12 and p[0] > 0 and p[5] > 0:
        fx, fy, cx, cy = p[0], p[5], p[2], p[6]
    pinhole = Pinhole(fx, fy, cx, cy, int(message.width), int(message.height))
    part = getattr(message, "roi", None)
    if part is not None and part.width and part.height:
        pinhole = pinhole.cropped(part.x_offset, part.y_offset, int(part.width), int(part.height))
    if min(pinhole.width, pinhole.height) < 1:
        return None
    if rectified or not any(d):
        return CameraFacts(pinhole, (), ())
    model = str(message.distortion_model).lower()
    if model in FISHEYE_MODELS:
        return CameraFacts(pinhole, (), tuple(d[:4]))
    if model in ("plumb_bob", "rational_polynomial", ""):
        return CameraFacts(pinhole, _trimmed(d), ())
    raise ValueError(f"its lens has the distortion model '{model}', which is not known")


def _trimmed(coefficients: list[float]) -> tuple[float, ...]:
    """Without the zeros after the last size at which OpenCV's model is complete."""
    sizes = [size for size in (1, 2, 4, 5, 8) if not any(coefficients[size:])]
    if not sizes:
        raise ValueError(f"its lens has {len(coefficients)} coefficients, at most 8 are known")
    return tuple((coefficients + [0.0] * 8)[: sizes[0]])


def _numbers(message: Any, name: str) -> list[float]:
    """A field that ROS 1 and Foxglove write in upper and ROS 2 in lower case."""
    values: Any = getattr(message, name, None)
    if values is None:
        values = getattr(message, name.upper(), ())
    return [float(value) for value in values]


def pose_of(message: Any) -> tuple[SE3, str | None]:
    """reference_from_body, and the name of the body's frame where the message has it."""
    body = getattr(message, "child_frame_id", None) or getattr(message, "body_frame_id", None)
    pose = getattr(message, "pose", None)
    if pose is None:
        return _motion(message.transform.translation, message.transform.rotation), _stripped(body)
    if hasattr(pose, "pose"):  # with a covariance
        pose = pose.pose
    return _motion(pose.position, pose.orientation), _stripped(body)


@dataclass(frozen=True)
class Transform:
    """How one frame of reference lies in another."""

    parent: str
    child: str
    stamp_ns: int
    """When; 0 if that is not told"""
    parent_from_child: SE3


def transforms_of(message: Any) -> Iterator[Transform]:
    """What a message says of frames of reference."""
    for entry in getattr(message, "transforms", None) or [message]:
        if hasattr(entry, "parent_frame_id"):
            parent, motion = entry.parent_frame_id, _motion(entry.translation, entry.rotation)
        else:
            parent = entry.header.frame_id
            motion = _motion(entry.transform.translation, entry.transform.rotation)
        yield Transform(parent.lstrip("/"), entry.child_frame_id.lstrip("/"), stamp_ns(entry), motion)


def chained(transforms: Iterable[Transform], origin: str, target: str) -> SE3 | None:
    """origin_from_target along a tree of transforms; None if they are not connected."""
    neighbours: dict[str, dict[str, SE3]] = {}
    for told in transforms:
        neighbours.setdefault(told.parent, {})[told.child] = told.parent_from_child
        neighbours.setdefault(told.child, {})[told.parent] = told.parent_from_child.inverse()
    reached = {origin: SE3.identity()}
    waiting = deque([origin])
    while waiting and target not in reached:
        frame = waiting.popleft()
        for neighbour, frame_from_neighbour in neighbours.get(frame, {}).items():
            if neighbour not in reached:
                reached[neighbour] = reached[frame] @ frame_from_neighbour
                waiting.append(neighbour)
    return reached.get(target)


def _motion(translation: Any, rotation: Any) -> SE3:
    quat_wxyz = np.array([rotation.w, rotation.x, rotation.y, rotation.z], np.float64)
    if not np.isfinite(quat_wxyz).all() or np.linalg.norm(quat_wxyz) < 0.5:
        raise ValueError("a rotation is no unit quaternion")
    return SE3(
        rotation_from_quat(quat_wxyz / np.linalg.norm(quat_wxyz)),
        np.array([translation.x, translation.y, translation.z], np.float64),
    )


def _stripped(name: str | None) -> str | None:
    return name.lstrip("/") if name else None
