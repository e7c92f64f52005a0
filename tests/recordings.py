"""Recordings by writers that are not ours: `rosbags` for ROS 1 and 2, `mcap` for Foxglove's messages."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rosbags.rosbag1 import Writer as Writer1
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
from rosbags.rosbag2 import Writer as Writer2
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from anchor3r.geometry import SE3, quat_from_rotation

FIRST_NS = 1_700_000_000_000_000_000
STEP_NS = 33_333_333
LATE_NS = 5_000_000
"""From the time of an image to that of its recording."""
WIDTH, HEIGHT = 24, 16
Write = Callable[[Path, "Recorded"], Path]


@dataclass
class Recorded:
    """What goes into a recording."""

    images: list[NDArray[np.uint8]] = field(default_factory=lambda: [numbered(k) for k in range(8)])
    compressed: str | None = None
    """png or jpeg instead of raw pixels"""
    encoding: str = "rgb8"
    """Of raw pixels; the pictures themselves are RGB"""
    topic: str = "/cam0/image_raw"
    camera: dict[str, Any] | None = None
    """K, D, P and distortion_model; of ROS also size (width, height), part (x, y, width, height), binning"""
    poses: list[SE3] | None = None
    """world_from_body, as often as the interval says"""
    pose_interval_ns: int = STEP_NS // 2
    pose_topic: str = "/groundtruth/pose"
    body_from_camera: SE3 | None = None
    moving: dict[tuple[str, str], list[SE3]] | None = None
    """parent_from_child by their names, as often as the interval says, on /tf"""
    more: list[str] = field(default_factory=list)
    """Further image topics with the same pictures"""
    same_time: bool = False
    """All images recorded at one time, as a slow disk makes it; their headers differ."""

    def log_time_ns(self, k: int) -> int:
        return FIRST_NS + (0 if self.same_time else k * STEP_NS) + LATE_NS


def numbered(k: int) -> NDArray[np.uint8]:
    """A picture that tells its number, and its channels apart."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[..., 0], image[..., 1], image[..., 2] = 10 * k, 100, np.arange(WIDTH)
    return image


def compressed(image: NDArray[np.uint8], format: str) -> bytes:
    buffer = BytesIO()
    Image.fromarray(image).save(buffer, format, quality=95)
    return buffer.getvalue()


FFMPEG_FORMATS = {
    "rgb8": "rgb24", "bgr8": "bgr24", "8UC3": "bgr24", "rgba8": "rgba", "bgra8": "bgra", "rgb16": "rgb48le",
    "bgr16": "bgr48le", "mono8": "gray", "8UC1": "gray", "mono16": "gray16le", "16UC1": "gray16le",
    "yuv422": "uyvy422", "uyvy": "uyvy422", "yuv422_yuy2": "yuyv422", "yuyv": "yuyv422", "nv12": "nv12",
    "nv21": "nv21",
}  # fmt: skip
"""Who writes a raw picture in an encoding: FFmpeg, by its own name for it."""


def raw_pixels(image: NDArray[np.uint8], encoding: str) -> tuple[bytes, int]:
    """A picture in an encoding, and the bytes of a row, with FFmpeg's padding; the Bayer patterns by hand."""
    if encoding.startswith("bayer"):
        letters, bits = encoding.removeprefix("bayer_")[:4], encoding[-1]
        mosaic = np.empty(image.shape[:2], np.uint8)
        for place, letter in enumerate(letters):
            rows, columns = slice(place // 2, None, 2), slice(place % 2, None, 2)
            mosaic[rows, columns] = image[rows, columns, "rgb".index(letter)]
        values = mosaic if bits == "8" else mosaic.astype("<u2") << 8
        return values.tobytes(), values.strides[0]
    written = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(
        format=FFMPEG_FORMATS[encoding], threads=1
    )
    return b"".join(bytes(plane) for plane in written.planes), written.planes[0].line_size


class _Ros:
    """Messages of ROS, made by the types of `rosbags`."""

    def __init__(self, store: Any, *, one: bool) -> None:
        self.types, self._one = store.types, one

    def header(self, stamp_ns: int, frame: str, k: int) -> Any:
        time = self.types["builtin_interfaces/msg/Time"](sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
        number = {"seq": k} if self._one else {}
        return self.types["std_msgs/msg/Header"](stamp=time, frame_id=frame, **number)

    def image(self, recorded: Recorded, k: int) -> Any:
        image, header = recorded.images[k], self.header(FIRST_NS + k * STEP_NS, "cam0", k)
        if recorded.compressed is not None:
            data = np.frombuffer(compressed(image, recorded.compressed), np.uint8)
            kind = self.types["sensor_msgs/msg/CompressedImage"]
            return kind(header=header, format=recorded.compressed, data=data)
        data_bytes, step = raw_pixels(image, recorded.encoding)
        return self.types["sensor_msgs/msg/Image"](
            header=header, height=image.shape[0], width=image.shape[1], encoding=recorded.encoding,
            is_bigendian=0, step=step, data=np.frombuffer(data_bytes, np.uint8),
        )  # fmt: skip

    def camera(self, camera: dict[str, Any]) -> Any:
        x, y, part_width, part_height = camera.get("part", (0, 0, 0, 0))
        roi = self.types["sensor_msgs/msg/RegionOfInterest"](
            x_offset=x, y_offset=y, height=part_height, width=part_width, do_rectify=False
        )
        (width, height), binning = camera.get("size", (WIDTH, HEIGHT)), camera.get("binning", 0)
        k, d, p = (np.array(camera[name], np.float64) for name in ("K", "D", "P"))
        names = ("K", "D", "R", "P") if self._one else ("k", "d", "r", "p")
        values = dict(zip(names, (k, d, np.eye(3).ravel(), p), strict=True))
        return self.types["sensor_msgs/msg/CameraInfo"](
            header=self.header(FIRST_NS, "cam0", 0), height=height, width=width, binning_x=binning,
            binning_y=binning, roi=roi, distortion_model=camera["distortion_model"], **values,
        )  # fmt: skip

    def _vector(self, kind: str, xyz: NDArray[np.float64]) -> Any:
        return self.types[f"geometry_msgs/msg/{kind}"](*map(float, xyz))

    def _quaternion(self, rotation: NDArray[np.float64]) -> Any:
        w, x, y, z = map(float, quat_from_rotation(rotation))
        return self.types["geometry_msgs/msg/Quaternion"](x=x, y=y, z=z, w=w)

    def odometry(self, pose: SE3, stamp_ns: int) -> Any:
        zero = self._vector("Vector3", np.zeros(3))
        twist = self.types["geometry_msgs/msg/TwistWithCovariance"](
            twist=self.types["geometry_msgs/msg/Twist"](linear=zero, angular=zero), covariance=np.zeros(36)
        )
        inner = self.types["geometry_msgs/msg/Pose"](
            position=self._vector("Point", pose.translation), orientation=self._quaternion(pose.rotation)
        )
        with_covariance = self.types["geometry_msgs/msg/PoseWithCovariance"](
            pose=inner, covariance=np.zeros(36)
        )
        return self.types["nav_msgs/msg/Odometry"](
            header=self.header(stamp_ns, "world", 0), child_frame_id="body", pose=with_covariance, twist=twist
        )

    def fixed(self, body_from_camera: SE3) -> Any:
        """body -> mount -> cam0, of which the first lies the other way round."""
        mount_from_body = SE3.exp(np.array([0.3, 0, 0.1, 1, 2, 3]))
        links = [
            ("mount", "body", mount_from_body),
            ("mount", "cam0", mount_from_body @ body_from_camera),
        ]
        return self.transforms(links, 0)

    def transforms(self, links: list[tuple[str, str, SE3]], stamp_ns: int) -> Any:
        """How children lie in their parents at a time."""
        return self.types["tf2_msgs/msg/TFMessage"](
            transforms=[
                self.types["geometry_msgs/msg/TransformStamped"](
                    header=self.header(stamp_ns, parent, 0), child_frame_id=child,
                    transform=self.types["geometry_msgs/msg/Transform"](
                        translation=self._vector("Vector3", motion.translation),
                        rotation=self._quaternion(motion.rotation),
                    ),
                )
                for parent, child, motion in links
            ]
        )  # fmt: skip


def _ros_messages(recorded: Recorded, ros: _Ros) -> list[tuple[str, str, int, Any]]:
    """(topic, type, time of recording, message) in the order of time."""
    kind = "sensor_msgs/msg/" + ("Image" if recorded.compressed is None else "CompressedImage")
    found: list[tuple[str, str, int, Any]] = []
    if recorded.camera is not None:
        name = recorded.topic.removesuffix("/compressed").rpartition("/")[0] + "/camera_info"
        found.append((name, "sensor_msgs/msg/CameraInfo", FIRST_NS, ros.camera(recorded.camera)))
    if recorded.body_from_camera is not None:
        found.append(("/tf_static", "tf2_msgs/msg/TFMessage", FIRST_NS, ros.fixed(recorded.body_from_camera)))
    for (parent, child), motions in (recorded.moving or {}).items():
        for j, motion in enumerate(motions):
            stamp_ns = FIRST_NS + j * recorded.pose_interval_ns
            message = ros.transforms([(parent, child, motion)], stamp_ns)
            found.append(("/tf", "tf2_msgs/msg/TFMessage", stamp_ns, message))
    for k in range(len(recorded.images)):
        for topic in (recorded.topic, *recorded.more):
            found.append((topic, kind, recorded.log_time_ns(k), ros.image(recorded, k)))
    for j, pose in enumerate(recorded.poses or ()):
        stamp_ns = FIRST_NS + j * recorded.pose_interval_ns
        found.append((recorded.pose_topic, "nav_msgs/msg/Odometry", stamp_ns, ros.odometry(pose, stamp_ns)))
    return sorted(found, key=lambda entry: entry[2])


def write_ros1(path: Path, recorded: Recorded, *, lz4: bool = False) -> Path:
    path = path.with_suffix(".bag")
    store = get_typestore(Stores.ROS1_NOETIC)
    transforms = get_types_from_msg("geometry_msgs/TransformStamped[] transforms", "tf2_msgs/msg/TFMessage")
    store.register(transforms)
    writer = Writer1(path)
    if lz4:
        writer.set_compression(writer.CompressionFormat.LZ4)
    with writer:
        connections: dict[str, Any] = {}
        for topic, kind, time_ns, message in _ros_messages(recorded, _Ros(store, one=True)):
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=store)
            writer.write(connections[topic], time_ns, store.serialize_ros1(message, kind))
    return path


def write_ros2(
    path: Path,
    recorded: Recorded,
    storage: StoragePlugin = StoragePlugin.SQLITE3,
    compression: CompressionMode = CompressionMode.NONE,
) -> Path:
    store = get_typestore(Stores.ROS2_JAZZY)
    writer = Writer2(path, version=9, storage_plugin=storage)
    writer.set_compression(compression, CompressionFormat.ZSTD)
    with writer:
        connections: dict[str, Any] = {}
        for topic, kind, time_ns, message in _ros_messages(recorded, _Ros(store, one=False)):
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=store)
            writer.write(connections[topic], time_ns, store.serialize_cdr(message, kind))
    return path


def write_ros2_mcap_file(path: Path, recorded: Recorded) -> Path:
    """The single file in the folder of a ROS 2 bag, as people pass it around."""
    folder = write_ros2(path, recorded, StoragePlugin.MCAP)
    return next(folder.glob("*.mcap"))


def write_foxglove(path: Path, recorded: Recorded) -> Path:
    """MCAP with protobuf messages, made with Foxglove's own classes."""
    from foxglove_schemas_protobuf.CameraCalibration_pb2 import CameraCalibration
    from foxglove_schemas_protobuf.CompressedImage_pb2 import CompressedImage
    from foxglove_schemas_protobuf.PoseInFrame_pb2 import PoseInFrame
    from foxglove_schemas_protobuf.RawImage_pb2 import RawImage
    from mcap_protobuf.writer import Writer

    path = path.with_suffix(".mcap")
    with open(path, "wb") as file, Writer(file, chunk_size=4000) as writer:
        for k, image in enumerate(recorded.images):
            stamp_ns = FIRST_NS + k * STEP_NS
            data, step = raw_pixels(image, recorded.encoding)
            message = (
                RawImage(
                    frame_id="cam0", width=WIDTH, height=HEIGHT, encoding=recorded.encoding, step=step,
                    data=data,
                )
                if recorded.compressed is None
                else CompressedImage(
                    frame_id="cam0", format=recorded.compressed, data=compressed(image, recorded.compressed)
                )
            )  # fmt: skip
            message.timestamp.FromNanoseconds(stamp_ns)
            for topic in (recorded.topic, *recorded.more):
                writer.write_message(topic, message, log_time=recorded.log_time_ns(k), publish_time=stamp_ns)
        if recorded.camera is not None:
            camera = CameraCalibration(frame_id="cam0", width=WIDTH, height=HEIGHT, **recorded.camera)
            writer.write_message("/cam0/calibration", camera, log_time=FIRST_NS, publish_time=FIRST_NS)
        for j, pose in enumerate(recorded.poses or ()):
            stamp_ns = FIRST_NS + j * recorded.pose_interval_ns
            found = PoseInFrame(frame_id="world")
            found.timestamp.FromNanoseconds(stamp_ns)
            w, x, y, z = quat_from_rotation(pose.rotation)
            found.pose.orientation.w, found.pose.orientation.x = float(w), float(x)
            found.pose.orientation.y, found.pose.orientation.z = float(y), float(z)
            px, py, pz = map(float, pose.translation)
            found.pose.position.x, found.pose.position.y, found.pose.position.z = px, py, pz
            writer.write_message(recorded.pose_topic, found, log_time=stamp_ns, publish_time=stamp_ns)
    return path


def write_video_mcap(path: Path, codec: str, num_frames: int, key_interval: int = 10) -> Path:
    """MCAP with Foxglove's compressed video by one of FFmpeg's encoders: numbered pictures, no B frames."""
    from clips import numbered_image
    from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
    from mcap_protobuf.writer import Writer

    settings = {
        "libx264": ("h264", {"tune": "zerolatency"}),
        "libx265": ("h265", {"tune": "zerolatency", "x265-params": "log-level=none:repeat-headers=1"}),
        "libvpx-vp9": ("vp9", {"deadline": "realtime", "lag-in-frames": "0"}),
        "libsvtav1": ("av1", {"preset": "12", "svtav1-params": "pred-struct=1"}),
    }
    format, options = settings[codec]
    encoder = av.CodecContext.create(codec, "w")
    assert isinstance(encoder, av.VideoCodecContext)
    encoder.width, encoder.height, encoder.pix_fmt, encoder.options = 128, 64, "yuv420p", options
    encoder.gop_size, encoder.max_b_frames, encoder.framerate = key_interval, 0, 30
    encoder.time_base = Fraction(1, 30)
    packets = []
    for k in range(num_frames):
        frame = av.VideoFrame.from_ndarray(numbered_image(k), format="rgb24")
        frame.pts = k
        packets += encoder.encode(frame)
    packets += encoder.encode(None)
    path = path.with_suffix(".mcap")
    with open(path, "wb") as file, Writer(file, chunk_size=4000) as writer:
        for k, packet in enumerate(packets):
            message = CompressedVideo(frame_id="cam0", format=format, data=bytes(packet))
            message.timestamp.FromNanoseconds(FIRST_NS + k * STEP_NS)
            time_ns = FIRST_NS + k * STEP_NS + LATE_NS
            writer.write_message("/cam0/video", message, log_time=time_ns, publish_time=time_ns)
    return path


def write_json_mcap(path: Path, recorded: Recorded) -> Path:
    """MCAP with JSON messages, as little programs write them; not chunked."""
    from mcap.writer import Writer

    path = path.with_suffix(".mcap")
    with open(path, "wb") as file:
        writer = Writer(file, use_chunking=False)
        writer.start()
        schema = writer.register_schema("foxglove.RawImage", "jsonschema", b'{"type": "object"}')
        channel = writer.register_channel(recorded.topic, "json", schema)
        for k, image in enumerate(recorded.images):
            stamp_ns = FIRST_NS + k * STEP_NS
            message = {
                "timestamp": {"sec": stamp_ns // 10**9, "nsec": stamp_ns % 10**9},
                "frame_id": "cam0", "width": WIDTH, "height": HEIGHT, "encoding": "rgb8", "step": 3 * WIDTH,
                "data": base64.b64encode(image.tobytes()).decode(),
            }  # fmt: skip
            writer.add_message(channel, recorded.log_time_ns(k), json.dumps(message).encode(), stamp_ns)
        writer.finish()
    return path


ROS_WRITERS: dict[str, Write] = {
    "ros1": write_ros1,
    "ros1-lz4": lambda path, recorded: write_ros1(path, recorded, lz4=True),
    "ros2-sqlite": write_ros2,
    "ros2-sqlite-zstd": lambda path, recorded: write_ros2(
        path, recorded, compression=CompressionMode.MESSAGE
    ),
    "ros2-mcap": lambda path, recorded: write_ros2(path, recorded, StoragePlugin.MCAP),
    "ros2-mcap-file": write_ros2_mcap_file,
}
WRITERS: dict[str, Write] = {**ROS_WRITERS, "foxglove": write_foxglove, "json": write_json_mcap}
