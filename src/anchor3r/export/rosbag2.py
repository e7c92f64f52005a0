"""A map as a ROS 2 bag of ROS's own message types, which `ros2 bag play`, RViz and Foxglove take.

Topics are /camera/image/compressed, /camera/camera_info, /tf, /path and /points. As in `mcap_log` the map
hangs below the frame `world`, whose z axis points up, and each frame has its own cloud of points.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.export.log_frames import LoggedFrame, logged_frames, path_steps
from anchor3r.export.mcap_log import CAMERA, MAP, WORLD
from anchor3r.export.selection import Selection
from anchor3r.geometry import quat_from_rotation
from anchor3r.io.extras import bag_library
from anchor3r.io.files import replacing_folder
from anchor3r.io.las import LAS_FROM_MAP
from anchor3r.io.pointcloud import Cloud
from anchor3r.trajectory import Trajectory

_FORMAT = 8
"""Of the bag: what ROS 2 Humble and later read."""
_POINT = np.dtype([("xyz", "<f4", (3,)), ("bgr", "u1", (3,)), ("unused", "u1")])
"""RViz reads a colour from the bits of a float: 0x00RRGGBB."""


def write_rosbag2(path: Path, chosen: Selection) -> int:
    """Writes the folder of a bag, frame by frame, and returns the number of frames."""
    bags = bag_library("rosbags.rosbag2")
    trajectory = chosen.trajectory
    steps = path_steps(len(trajectory))
    with replacing_folder(path) as folder:
        written = folder / path.name  # which the bag's file is called after
        with bags.Writer(written, version=_FORMAT, storage_plugin=bags.StoragePlugin.MCAP) as writer:
            log = _RosLog(writer)
            for k, frame in enumerate(logged_frames(chosen)):
                log.add(frame)
                if k in steps:
                    log.add_path(trajectory.select(slice(k + 1)))
        for file in list(written.iterdir()):
            file.rename(folder / file.name)
        written.rmdir()
    return len(trajectory)


class _RosLog:
    """Writes frames as messages."""

    def __init__(self, writer: Any) -> None:
        typesys = bag_library("rosbags.typesys")
        self._types = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
        self._writer, self._time_ns = writer, 0
        self._connections: dict[str, Any] = {}

    def add(self, frame: LoggedFrame) -> None:
        """Everything about one frame, at its time."""
        self._time_ns = round(frame.time_s * 1e9)
        pose = frame.pose
        links = [(WORLD, MAP, LAS_FROM_MAP, np.zeros(3)), (MAP, CAMERA, pose.rotation.T, pose.center)]
        transforms = [
            self._message(
                "geometry_msgs/TransformStamped", header=self._header(parent), child_frame_id=child,
                transform=self._message(
                    "geometry_msgs/Transform", translation=self._xyz("Vector3", translation),
                    rotation=self._quaternion(rotation),
                ),
            )
            for parent, child, rotation, translation in links
        ]  # fmt: skip
        self._write("/tf", "tf2_msgs/TFMessage", transforms=transforms)
        if frame.camera is not None:
            self._camera(frame)
        if frame.jpeg is not None:
            data = np.frombuffer(frame.jpeg, np.uint8)
            self._write(
                "/camera/image/compressed", "sensor_msgs/CompressedImage", header=self._header(CAMERA),
                format="jpeg", data=data,
            )  # fmt: skip
        if len(frame.points):
            self._points(frame.points)

    def add_path(self, trajectory: Trajectory) -> None:
        """The way up to now."""
        poses = [
            self._message(
                "geometry_msgs/PoseStamped", header=self._header(MAP),
                pose=self._message(
                    "geometry_msgs/Pose", position=self._xyz("Point", center),
                    orientation=self._quaternion(rotation.T),
                ),
            )
            for rotation, center in zip(trajectory.rotation, trajectory.center, strict=True)
        ]  # fmt: skip
        self._write("/path", "nav_msgs/Path", header=self._header(MAP), poses=poses)

    def _camera(self, frame: LoggedFrame) -> None:
        assert frame.camera is not None
        k = frame.camera.matrix()
        everything = self._message(
            "sensor_msgs/RegionOfInterest", x_offset=0, y_offset=0, height=0, width=0, do_rectify=False
        )
        self._write(
            "/camera/camera_info", "sensor_msgs/CameraInfo", header=self._header(CAMERA),
            height=frame.camera.height, width=frame.camera.width, distortion_model="plumb_bob", d=np.zeros(5),
            k=k.ravel(), r=np.eye(3).ravel(), p=np.column_stack([k, np.zeros(3)]).ravel(),
            binning_x=0, binning_y=0, roi=everything,
        )  # fmt: skip

    def _points(self, cloud: Cloud) -> None:
        records = np.zeros(len(cloud), _POINT)
        records["xyz"], records["bgr"] = cloud.points, cloud.colours[:, ::-1]
        float32 = self._types.types["sensor_msgs/msg/PointField"].FLOAT32
        fields = [
            self._message("sensor_msgs/PointField", name=name, offset=4 * k, datatype=float32, count=1)
            for k, name in enumerate(("x", "y", "z", "rgb"))
        ]
        self._write(
            "/points", "sensor_msgs/PointCloud2", header=self._header(MAP), height=1, width=len(records),
            fields=fields, is_bigendian=False, point_step=_POINT.itemsize, row_step=records.nbytes,
            data=np.frombuffer(records.tobytes(), np.uint8), is_dense=True,
        )  # fmt: skip

    def _write(self, topic: str, kind: str, **fields: Any) -> None:
        name = kind.replace("/", "/msg/")
        if topic not in self._connections:
            self._connections[topic] = self._writer.add_connection(topic, name, typestore=self._types)
        data = self._types.serialize_cdr(self._message(kind, **fields), name)
        self._writer.write(self._connections[topic], self._time_ns, data)

    def _message(self, kind: str, **fields: Any) -> Any:
        return self._types.types[kind.replace("/", "/msg/")](**fields)

    def _header(self, frame: str) -> Any:
        seconds, nanoseconds = divmod(self._time_ns, 10**9)
        stamp = self._message("builtin_interfaces/Time", sec=seconds, nanosec=nanoseconds)
        return self._message("std_msgs/Header", stamp=stamp, frame_id=frame)

    def _xyz(self, kind: str, values: NDArray[np.float64]) -> Any:
        x, y, z = map(float, values)
        return self._message(f"geometry_msgs/{kind}", x=x, y=y, z=z)

    def _quaternion(self, rotation: NDArray[np.float64]) -> Any:
        w, x, y, z = map(float, quat_from_rotation(rotation))
        return self._message("geometry_msgs/Quaternion", x=x, y=y, z=z, w=w)
