"""A map as an MCAP recording with Foxglove's own message types, which Foxglove plays.

Topics are /camera/image, /camera/calibration, /tf, /path, /points and /loops. The map hangs below the frame
`world`, whose z axis points up as Foxglove expects; each frame of the map has its own cloud of points, which
a decay time of the 3D panel adds up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.export.log_frames import LoggedFrame, LoggedLoop, logged_frames, path_steps
from anchor3r.export.selection import Selection
from anchor3r.geometry import quat_from_rotation
from anchor3r.io.extras import bag_library
from anchor3r.io.files import replacing
from anchor3r.io.las import LAS_FROM_MAP
from anchor3r.io.pointcloud import Cloud
from anchor3r.trajectory import Trajectory

WORLD, MAP, CAMERA = "world", "map", "camera"
_POINT = np.dtype([("xyz", "<f4", (3,)), ("rgba", "u1", (4,))])
_LOOP_COLOURS = {True: (0.0, 0.8, 0.3, 1.0), False: (0.8, 0.0, 0.0, 1.0)}


def write_mcap(path: Path, chosen: Selection) -> int:
    """Writes the recording frame by frame, and returns the number of frames."""
    writing = bag_library("mcap_protobuf.writer")
    count = len(chosen.trajectory)
    steps = path_steps(count)
    with replacing(path) as file, writing.Writer(file) as writer:
        log = _FoxgloveLog(writer)
        for k, frame in enumerate(logged_frames(chosen)):
            log.add(frame)
            if k in steps:
                log.add_path(chosen.trajectory.select(slice(k + 1)))
    return count


def _message(name: str, **fields: Any) -> Any:
    """One of Foxglove's messages."""
    return getattr(bag_library(f"foxglove_schemas_protobuf.{name}_pb2"), name)(**fields)


class _FoxgloveLog:
    """Writes frames as messages."""

    def __init__(self, writer: Any) -> None:
        self._writer, self._time_ns = writer, 0

    def add(self, frame: LoggedFrame) -> None:
        """Everything about one frame, at its time."""
        self._time_ns = round(frame.time_s * 1e9)
        self._transform(WORLD, MAP, LAS_FROM_MAP, np.zeros(3))
        self._transform(MAP, CAMERA, frame.pose.rotation.T, frame.pose.center)
        if frame.camera is not None:
            k = frame.camera.matrix()
            self._write(
                "/camera/calibration", "CameraCalibration", frame_id=CAMERA,
                width=frame.camera.width, height=frame.camera.height, K=k.ravel(), R=np.eye(3).ravel(),
                P=np.column_stack([k, np.zeros(3)]).ravel(),
            )  # fmt: skip
        if frame.jpeg is not None:
            self._write("/camera/image", "CompressedImage", frame_id=CAMERA, format="jpeg", data=frame.jpeg)
        if len(frame.points):
            self._points(frame.points)
        for loop in frame.loops:
            self._loop(loop)

    def add_path(self, trajectory: Trajectory) -> None:
        """The way up to now."""
        poses = [
            _message("Pose", position=_vector(center), orientation=_quaternion(rotation.T))
            for rotation, center in zip(trajectory.rotation, trajectory.center, strict=True)
        ]
        self._write("/path", "PosesInFrame", frame_id=MAP, poses=poses)

    def _write(self, topic: str, name: str, **fields: Any) -> None:
        message = _message(name, **fields)
        if hasattr(message, "timestamp"):
            message.timestamp.FromNanoseconds(self._time_ns)
        self._writer.write_message(topic, message, log_time=self._time_ns, publish_time=self._time_ns)

    def _transform(
        self, parent: str, child: str, rotation: NDArray[np.float64], translation: NDArray[np.float64]
    ) -> None:
        self._write(
            "/tf", "FrameTransform", parent_frame_id=parent, child_frame_id=child,
            translation=_vector(translation), rotation=_quaternion(rotation),
        )  # fmt: skip

    def _points(self, cloud: Cloud) -> None:
        records = np.empty(len(cloud), _POINT)
        records["xyz"], records["rgba"][:, :3], records["rgba"][:, 3] = cloud.points, cloud.colours, 255
        kinds = bag_library("foxglove_schemas_protobuf.PackedElementField_pb2").PackedElementField
        names = [("x", 0), ("y", 4), ("z", 8), ("red", 12), ("green", 13), ("blue", 14), ("alpha", 15)]
        fields = [
            kinds(name=name, offset=offset, type=kinds.FLOAT32 if offset < 12 else kinds.UINT8)
            for name, offset in names
        ]
        here = _message("Pose", position=_vector(np.zeros(3)), orientation=_quaternion(np.eye(3)))
        self._write(
            "/points", "PointCloud", frame_id=MAP, pose=here, point_stride=_POINT.itemsize, fields=fields,
            data=records.tobytes(),
        )  # fmt: skip

    def _loop(self, loop: LoggedLoop) -> None:
        red, green, blue, alpha = _LOOP_COLOURS[loop.accepted]
        ends = [_message("Point3", x=float(x), y=float(y), z=float(z)) for x, y, z in loop.ends]
        line = _message(
            "LinePrimitive", points=ends, thickness=2.0, scale_invariant=True,
            color=_message("Color", r=red, g=green, b=blue, a=alpha),
        )  # fmt: skip
        entity = _message("SceneEntity", frame_id=MAP, id=f"loop {loop.event}", lines=[line])
        entity.timestamp.FromNanoseconds(self._time_ns)
        self._write("/loops", "SceneUpdate", entities=[entity])


def _vector(values: NDArray[np.float64]) -> Any:
    return _message("Vector3", x=float(values[0]), y=float(values[1]), z=float(values[2]))


def _quaternion(rotation: NDArray[np.float64]) -> Any:
    w, x, y, z = map(float, quat_from_rotation(rotation))
    return _message("Quaternion", x=x, y=y, z=z, w=w)
