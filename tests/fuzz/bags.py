"""Cases of recordings: messages that no camera sent in ROS 1 bags, ROS 2 bags and MCAP, and damaged files."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from case import Check, Recipe
from positions import check_poses
from values import JSON_VALUES, Rng, choice, damaged, draw_damage, draw_text_edits, edited, write

sys.path.insert(0, str(Path(__file__).parents[1]))

FILES = ("run.bag", "run.db3", "run.mcap", "ros2.mcap", "json.mcap")
INTEGERS = (0, 1, -1, 2, 3, 7, 24, 25, 1000, 65_535, 100_000, 2**31 - 1, 2**32 - 1)
REALS = (0.0, -1.0, 1e-300, 1e300, float("nan"), float("inf"), 1.0, 1e9, 0.5)
ENCODINGS = ("mono8", "mono16", "rgb8", "bgr8", "rgba8", "bgra16", "bayer_rggb8", "bayer_gbrg16", "yuv422", "yuv422_yuy2",
             "nv12", "nv21", "i420", "8UC1", "16UC1", "32FC1", "8UC3", "", "rgb", "8", "bayer_rggb", "jpeg", "x" * 300, "mono８")  # fmt: skip
NAMES = ("", "/", "body", "cam0", "mount", "world", "x" * 5000, "a\nb", "<script>")
SIZES = (0, 1, 7, 383, 384, 1151, 1152, 1153, 4000)
FIELDS: dict[str, dict[str, tuple[Any, ...]]] = {
    # kind of message: a way to a field of it, and what is put there
    "Image": {
        "width": INTEGERS, "height": INTEGERS, "step": INTEGERS, "encoding": ENCODINGS, "data": SIZES, "is_bigendian": (0, 1, 255),
        "header.stamp.sec": INTEGERS, "header.stamp.nanosec": INTEGERS, "header.frame_id": NAMES,
    },
    "CompressedImage": {"data": SIZES, "format": ENCODINGS, "header.frame_id": NAMES},
    "CameraInfo": {
        "width": INTEGERS, "height": INTEGERS, "distortion_model": ("plumb_bob", "equidistant", "rational_polynomial", "", "x"),
        "K": REALS, "D": REALS, "P": REALS, "R": REALS,
    },
    "Odometry": {
        "pose.pose.position.x": REALS, "pose.pose.orientation.w": REALS, "pose.pose.orientation.x": REALS,
        "header.stamp.sec": INTEGERS, "child_frame_id": NAMES,
    },
    "TFMessage": {"transforms": ("none", "twice", "cycle")},
}  # fmt: skip
KINDS = {"Image": 6, "CompressedImage": 1, "CameraInfo": 3, "Odometry": 3, "TFMessage": 1}
"""Kinds of messages, and how often each is taken."""
QUERIES = ("", "", "", "", "?topic=/cam0/image_raw", "?topic=", "?topic=/nothing", "?x=1", "?topic=%00", "?reference=/groundtruth/pose",
           "?calibration=/cam0/camera_info", "?reference=/cam0/image_raw", "?topic=/cam0/camera_info", "?&&&", "?topic=a&topic=b")  # fmt: skip


def draw(rng: Rng, material: Path) -> Recipe:
    how = choice(
        rng, ("message", "message", "message", "message", "json", "bytes", "bytes", "bytes", "metadata")
    )
    recipe: Recipe = {"class": "bags", "how": how, "query": choice(rng, QUERIES)}
    if how == "message":
        kind = choice(rng, [name for name, count in KINDS.items() for _ in range(count)])
        field = choice(rng, list(FIELDS[kind]))
        recipe |= {
            "kind": kind, "field": field, "value": choice(rng, FIELDS[kind][field]), "at": int(rng.integers(0, 9)),
            "all": bool(rng.random() < 0.5), "ros": choice(rng, (1, 2)),
        }  # fmt: skip
    elif how == "json":
        field = choice(rng, ("timestamp", "frame_id", "width", "height", "encoding", "step", "data", "gone"))
        recipe |= {"field": field, "value": choice(rng, (*JSON_VALUES, *INTEGERS, *ENCODINGS))}
    elif how == "bytes":
        name = choice(rng, FILES)
        size = (material / name).stat().st_size
        recipe |= {"name": name, "damage": draw_damage(rng, min(size, choice(rng, (100, 5_000, size))))}
    else:
        recipe["edits"] = draw_text_edits(rng, (material / "ros2/metadata.yaml").read_text())
    return recipe


def build(recipe: Recipe, folder: Path, material: Path) -> tuple[list[str], Check]:
    how = recipe["how"]
    if how == "bytes":
        name = recipe["name"]
        write(folder / name, damaged((material / name).read_bytes(), recipe["damage"]))
    elif how == "message":
        name = _write_changed(folder, recipe)
    elif how == "json":
        name = _write_json(folder, recipe)
    else:
        name = "ros2"
        for entry in (material / name).iterdir():
            write(folder / name / entry.name, entry.read_bytes())
        path = folder / name / "metadata.yaml"
        write(path, edited(path.read_text(), recipe["edits"]))
    arguments = [
        "map",
        f"bag:{name}{recipe['query']}",
        "--predictor",
        "ground-truth",
        "--stop",
        "6",
        "--out",
        "map",
    ]
    return arguments, check_poses


def good_messages(ros: int) -> tuple[Any, list[tuple[str, str, int, Any]]]:
    """The types of ROS 1 or 2, and (topic, type, time, message) of a short drive with everything in it."""
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    import recordings
    from anchor3r.geometry import SE3

    store = get_typestore(Stores.ROS1_NOETIC if ros == 1 else Stores.ROS2_JAZZY)
    if ros == 1:
        store.register(
            get_types_from_msg("geometry_msgs/TransformStamped[] transforms", "tf2_msgs/msg/TFMessage")
        )
    camera = {"K": [20.0, 0, 12, 0, 20, 8, 0, 0, 1], "D": [0.1, 0, 0, 0, 0], "P": [20.0, 0, 12, 0, 0, 20, 8, 0, 0, 0, 1, 0],
              "distortion_model": "plumb_bob"}  # fmt: skip
    poses = [SE3.exp(np.array([0.0, 0.01 * k, 0, 0, 0, 0.1 * k])) for k in range(16)]
    recorded = recordings.Recorded(camera=camera, poses=poses, body_from_camera=SE3.identity())
    return store, recordings._ros_messages(recorded, recordings._Ros(store, one=ros == 1))


def _write_changed(folder: Path, recipe: Recipe) -> str:
    from rosbags.rosbag1 import Writer as Writer1
    from rosbags.rosbag2 import Writer as Writer2

    one = recipe["ros"] == 1
    store, messages = good_messages(recipe["ros"])
    name = "in.bag" if one else "in"
    chosen = [k for k, (_, kind, _, _) in enumerate(messages) if kind.endswith(f"/{recipe['kind']}")]
    chosen = chosen if recipe["all"] or not chosen else [chosen[recipe["at"] % len(chosen)]]
    serialize = store.serialize_ros1 if one else store.serialize_cdr
    with Writer1(folder / name) if one else Writer2(folder / name, version=9) as writer:
        connections: dict[str, Any] = {}
        for k, (topic, kind, time_ns, message) in enumerate(messages):
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=store)
            before = serialize(message, kind)
            if k in chosen:
                try:
                    _change(message, recipe["field"], recipe["value"])
                    before = serialize(message, kind)
                except (ValueError, OverflowError, AttributeError, TypeError, Exception):  # noqa: BLE001
                    pass  # not every value fits; the message as it was is a case as well
            writer.write(connections[topic], time_ns, before)
    return name


def _change(message: Any, way: str, value: Any) -> None:
    *path, last = way.split(".")
    for name in path:
        message = getattr(message, name)
    if not hasattr(message, last):
        last = last.lower()
    old = getattr(message, last)
    if last == "transforms":
        value = {"none": [], "twice": [*old, *old], "cycle": [*old, *reversed(old)]}[value]
    elif isinstance(old, np.ndarray) and last == "data":
        value = np.resize(old, value).astype(old.dtype)
    elif isinstance(old, np.ndarray):
        value = np.full_like(old, value)
    object.__setattr__(message, last, value)


def _write_json(folder: Path, recipe: Recipe) -> str:
    from mcap.writer import Writer

    with open(folder / "in.mcap", "wb") as file:
        writer = Writer(file, use_chunking=False)
        writer.start()
        schema = writer.register_schema("foxglove.RawImage", "jsonschema", b'{"type": "object"}')
        channel = writer.register_channel("/cam", "json", schema)
        for k in range(4):
            message: dict[str, Any] = {
                "timestamp": {"sec": 1 + k, "nsec": 0}, "frame_id": "cam0", "width": 24, "height": 16, "encoding": "rgb8",
                "step": 72, "data": base64.b64encode(bytes(1152)).decode(),
            }  # fmt: skip
            message[recipe["field"]] = recipe["value"]
            writer.add_message(channel, k, json.dumps(message).encode(), k)
        writer.finish()
    return "in.mcap"
