"""Maps as recordings, read back by the libraries of those who play them: MCAP by `mcap`, .rrd by Rerun's."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory
from PIL import Image
from rerun.chunk import RrdReader
from scipy.spatial.transform import Rotation

from anchor3r.cli import main as cli
from anchor3r.export.selection import map_clouds
from anchor3r.sources import open_source
from anchor3r.store import Loop, LoopState, Map, MapWriter, load_map

TRANSLATION, ROTATION = "Transform3D:translation", "Transform3D:mat3x3"


@pytest.fixture(scope="module")
def looped(street_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The street, with a loop that was accepted and one that was not."""
    folder = Path(shutil.copytree(street_folder, tmp_path_factory.mktemp("looped") / "map"))
    with load_map(folder) as scene_map:
        identity = scene_map.meta["identity"]
    with MapWriter.resume(folder, identity) as writer:
        for event, (query, match, state) in enumerate([(8, 1, LoopState.FITS), (9, 2, LoopState.SCATTERED)]):
            writer.add_loop(Loop(event=event, query=query, match=match, state=state, figures={}), [])
    return folder


@pytest.fixture
def scene_map(looped: Path) -> Iterator[Map]:
    with load_map(looped) as opened:
        yield opened


def export(folder: Path, out: Path, *options: object) -> int:
    form = out.suffix[1:]
    return cli.main([str(a) for a in ("export", folder, "--format", form, "--out", out, *options)])


def messages_of(path: Path) -> dict[str, list[tuple[int, Any]]]:
    """Time and message, by topic."""
    found = defaultdict(list)
    with open(path, "rb") as file:
        reader = make_reader(file, validate_crcs=True, decoder_factories=[DecoderFactory()])
        for schema, channel, message, decoded in reader.iter_decoded_messages():
            assert schema is not None
            assert schema.name.startswith("foxglove.")
            found[channel.topic].append((message.log_time, decoded))
    return found


def test_mcap_is_what_foxglove_expects(scene_map: Map, tmp_path: Path) -> None:
    assert export(scene_map.folder, tmp_path / "run.mcap") == 0
    found = messages_of(tmp_path / "run.mcap")
    trajectory = scene_map.trajectory()
    assert trajectory.timestamps_s is not None
    count = len(trajectory)
    kinds = {topic: (len(entries), type(entries[0][1]).__name__) for topic, entries in found.items()}
    assert kinds == {
        "/camera/image": (count, "CompressedImage"), "/camera/calibration": (count, "CameraCalibration"),
        "/tf": (2 * count, "FrameTransform"), "/path": (count, "PosesInFrame"),
        "/points": (count, "PointCloud"), "/loops": (2, "SceneUpdate"),
    }  # fmt: skip
    cameras = [(time, tf) for time, tf in found["/tf"] if tf.child_frame_id == "camera"]
    for k, (time_ns, tf) in enumerate(cameras):
        assert time_ns == round(trajectory.timestamps_s[k] * 1e9) == tf.timestamp.ToNanoseconds()
        q = tf.rotation
        turn = Rotation.from_quat([q.x, q.y, q.z, q.w]).as_matrix()
        np.testing.assert_allclose(turn, trajectory.rotation[k].T, atol=1e-9)
        t = tf.translation
        np.testing.assert_allclose([t.x, t.y, t.z], trajectory.center[k], atol=1e-9)
    image = np.asarray(Image.open(BytesIO(found["/camera/image"][3][1].data)))
    np.testing.assert_array_equal(image, scene_map.image(int(trajectory.frames[3])))
    calibration = found["/camera/calibration"][0][1]
    assert (calibration.width, calibration.height) == image.shape[1::-1]
    assert len(found["/path"][-1][1].poses) == count


def test_points_and_loops_of_the_mcap(scene_map: Map, tmp_path: Path) -> None:
    assert export(scene_map.folder, tmp_path / "run.mcap") == 0
    found = messages_of(tmp_path / "run.mcap")
    for (_, message), cloud in zip(found["/points"], map_clouds(scene_map), strict=True):
        names = [(field.name, field.offset, field.type) for field in message.fields]
        assert names[:3] == [("x", 0, 7), ("y", 4, 7), ("z", 8, 7)]  # 7: float32
        records = np.frombuffer(message.data, np.uint8).reshape(-1, message.point_stride)
        np.testing.assert_array_equal(records[:, :12].copy().view("<f4"), cloud.points)
        np.testing.assert_array_equal(records[:, 12:15], cloud.colours)
    # Up in the world of Foxglove is up in the picture.
    q = next(tf for _, tf in found["/tf"] if tf.child_frame_id == "map").rotation
    up = Rotation.from_quat([q.x, q.y, q.z, q.w]).apply([0, -1, 0])
    np.testing.assert_allclose(up, [0, 0, 1], atol=1e-12)
    accepted, rejected = (message.entities[0] for _, message in found["/loops"])
    assert accepted.lines[0].color.g > accepted.lines[0].color.r
    assert rejected.lines[0].color.r > rejected.lines[0].color.g
    ends = [[p.x, p.y, p.z] for p in accepted.lines[0].points]
    trajectory = scene_map.trajectory()
    np.testing.assert_allclose(ends, trajectory.center[[8, 1]])


def test_a_budget_of_points_is_kept(
    scene_map: Map, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(scene_map.folder, tmp_path / "few.mcap", "--max-points", 220) == 0
    clouds = [message for _, message in messages_of(tmp_path / "few.mcap")["/points"]]
    assert [len(cloud.data) // cloud.point_stride for cloud in clouds] == [20] * 11
    assert export(scene_map.folder, tmp_path / "no.mcap", "--voxel", 0.1) == 1
    assert "leave --voxel out" in capsys.readouterr().err


def test_a_bag_of_ros_2_read_by_rosbags(scene_map: Map, tmp_path: Path) -> None:
    from rosbags.highlevel import AnyReader

    out, found = tmp_path / "run", defaultdict[str, list[tuple[int, Any]]](list)
    assert cli.main(["export", str(scene_map.folder), "--format", "rosbag2", "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["metadata.yaml", "run.mcap"]
    with AnyReader([out]) as reader:
        kinds = {name: (info.msgcount, info.msgtype) for name, info in reader.topics.items()}
        for connection, time_ns, data in reader.messages():
            found[connection.topic].append((time_ns, reader.deserialize(data, connection.msgtype)))
    trajectory = scene_map.trajectory()
    assert trajectory.timestamps_s is not None
    count = len(trajectory)
    assert kinds == {
        "/camera/image/compressed": (count, "sensor_msgs/msg/CompressedImage"),
        "/camera/camera_info": (count, "sensor_msgs/msg/CameraInfo"),
        "/tf": (count, "tf2_msgs/msg/TFMessage"),
        "/path": (count, "nav_msgs/msg/Path"), "/points": (count, "sensor_msgs/msg/PointCloud2"),
    }  # fmt: skip
    for k, (time_ns, message) in enumerate(found["/tf"]):
        camera = message.transforms[1]
        stamp = camera.header.stamp
        assert time_ns == round(trajectory.timestamps_s[k] * 1e9) == stamp.sec * 10**9 + stamp.nanosec
        assert (camera.header.frame_id, camera.child_frame_id) == ("map", "camera")
        t, q = camera.transform.translation, camera.transform.rotation
        turn = Rotation.from_quat([q.x, q.y, q.z, q.w]).as_matrix()
        np.testing.assert_allclose(turn, trajectory.rotation[k].T, atol=1e-9)
        np.testing.assert_allclose([t.x, t.y, t.z], trajectory.center[k], atol=1e-9)
    for (_, message), cloud in zip(found["/points"], map_clouds(scene_map), strict=True):
        assert [(field.name, field.offset, field.datatype) for field in message.fields] == [
            ("x", 0, 7), ("y", 4, 7), ("z", 8, 7), ("rgb", 12, 7),
        ]  # fmt: skip
        records = message.data.reshape(-1, message.point_step)
        np.testing.assert_array_equal(records[:, :12].copy().view("<f4"), cloud.points)
        np.testing.assert_array_equal(records[:, 14:11:-1], cloud.colours)
    assert len(found["/path"][-1][1].poses) == count


@pytest.mark.parametrize("format", ["mcap", "rosbag2"])
def test_an_exported_recording_has_its_poses_as_reference(
    format: str, scene_map: Map, tmp_path: Path
) -> None:
    """What is exported as moving frames is read as such: poses in the world whose z axis points up."""
    out = tmp_path / ("run.mcap" if format == "mcap" else "run")
    assert cli.main(["export", str(scene_map.folder), "--format", format, "--out", str(out)]) == 0
    trajectory = scene_map.trajectory()
    with open_source(f"bag:{out}?reference=/tf") as source:
        for k, frame in enumerate(source):
            np.testing.assert_array_equal(frame.image, scene_map.image(int(trajectory.frames[k])))
            assert frame.intrinsics is not None
            assert frame.camera_from_world is not None
            x, y, z = trajectory.center[k]
            np.testing.assert_allclose(frame.camera_from_world.center(), [x, z, -y], atol=1e-6)


def test_an_exported_recording_is_a_source(scene_map: Map, tmp_path: Path) -> None:
    assert export(scene_map.folder, tmp_path / "run.mcap") == 0
    with open_source(tmp_path / "run.mcap") as source:
        frames = list(source)
    times_s = scene_map.frames().timestamp_s.tolist()
    assert [frame.timestamp_s for frame in frames] == pytest.approx(times_s, abs=1e-9)
    assert frames[0].intrinsics is not None
    np.testing.assert_array_equal(frames[5].image, scene_map.image(5))


def rows_of(path: Path) -> tuple[Counter[str], dict[str, dict[int, Any]]]:
    """How many rows each entity has; and of each component its values, by frame."""
    counts: Counter[str] = Counter()
    values: dict[str, dict[int, Any]] = defaultdict(dict)
    for chunk in RrdReader(path).stream():
        counts[chunk.entity_path] += chunk.num_rows
        table = chunk.to_record_batch().to_pydict()
        for name, column in table.items():
            for frame, value in zip(table.get("frame", ()), column, strict=False):
                if value is not None and name not in ("frame", "rerun.controls.RowId"):
                    values[f"{chunk.entity_path} {name}"][frame] = value
    return counts, values


def check_rrd(path: Path, scene_map: Map, num_loops: int) -> None:
    counts, values = rows_of(path)
    trajectory = scene_map.trajectory()
    assert trajectory.timestamps_s is not None
    count = len(trajectory)
    assert counts["/world/camera"] == counts["/world/points"] == count
    assert counts["/world/path"] == count - 1
    assert counts["/world/frustums"] == 3
    assert sum(counts[f"/world/loops/{name}"] for name in ("accepted", "rejected")) == num_loops
    for k, frame in enumerate(trajectory.frames.tolist()):
        center = np.ravel(values[f"/world/camera {TRANSLATION}"][frame])
        np.testing.assert_allclose(center, trajectory.center[k], atol=1e-5)
        by_column = np.ravel(values[f"/world/camera {ROTATION}"][frame]).reshape(3, 3)
        np.testing.assert_allclose(by_column.T, trajectory.rotation[k].T, atol=1e-6)
        blob = bytes(np.ravel(values["/world/camera/image EncodedImage:blob"][frame]).astype(np.uint8))
        assert blob == scene_map.jpeg(frame)
        seconds = values["/world/camera stream"][frame].total_seconds()
        assert seconds == pytest.approx(trajectory.timestamps_s[k], abs=1e-6)


def test_rrd_read_by_rerun(scene_map: Map, tmp_path: Path) -> None:
    assert export(scene_map.folder, tmp_path / "run.rrd") == 0
    check_rrd(tmp_path / "run.rrd", scene_map, num_loops=2)
    reader = RrdReader(tmp_path / "run.rrd")
    assert len(reader.blueprints()) == 1
    _, values = rows_of(tmp_path / "run.rrd")
    clouds = list(map_clouds(scene_map))
    for frame, positions in values["/world/points Points3D:positions"].items():
        np.testing.assert_allclose(np.array(positions), clouds[frame].points, atol=1e-5)


def test_a_map_shows_in_rerun_while_it_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["map", "world:5?width=64&height=48&motion=driving&frames=11", "--predictor", "ground-truth"]
    live = tmp_path / "live.rrd"
    assert cli.main([*arguments, "--out", str(tmp_path / "map"), "--rerun", str(live)]) == 0
    with load_map(tmp_path / "map") as scene_map:
        check_rrd(live, scene_map, num_loops=0)
    assert cli.main([*arguments, "--out", str(tmp_path / "other"), "--rerun", "elsewhere"]) == 1
    assert "neither spawn, an address" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
