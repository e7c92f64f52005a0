"""Bags of ROS 1 and 2 and MCAP files, written by others: images, times, cameras, poses, topics, damage."""

from __future__ import annotations

import bz2
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import lz4.frame
import numpy as np
import pytest
from clips import number_of
from rosbags.rosbag2 import CompressionMode, StoragePlugin
from rosbags.rosbag2.storage_mcap import zstd
from scipy.spatial.transform import Rotation, Slerp
from test_damaged_sources import damaged, drain

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3
from anchor3r.limits import Limits
from anchor3r.pipeline.mapping import map_source
from anchor3r.predictors.ground_truth import GroundTruthPredictor
from anchor3r.sources import Source, StatedCamera, UndecodableFrameError, open_source
from anchor3r.sources.bags import unpacking
from anchor3r.sources.bags.pixels import decoded_raw
from anchor3r.sources.bags.recording import damage_told, open_recording
from anchor3r.store import load_map
from recordings import (
    FFMPEG_FORMATS,
    FIRST_NS,
    ROS_WRITERS,
    STEP_NS,
    WRITERS,
    Recorded,
    numbered,
    write_foxglove,
    write_ros1,
    write_ros2,
    write_video_mcap,
)

CAMERA = {
    "K": [20.0, 0, 11.5, 0, 21, 7.5, 0, 0, 1],
    "D": [-0.2, 0.05, 0.001, -0.002, 0.0],
    "P": [18.0, 0, 12, 0, 0, 19, 8, 0, 0, 0, 1, 0],
    "distortion_model": "plumb_bob",
}


def opened(path: Path, **options: str) -> Source:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return open_source(f"bag:{path}" + (f"?{query}" if query else ""))


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("same_time", [False, True])
def test_frames_of_every_kind_of_recording(name: str, same_time: bool, tmp_path: Path) -> None:
    recorded = Recorded(same_time=same_time)
    path = WRITERS[name](tmp_path / "run", recorded)
    with opened(path) as source:
        frames = list(source)
        assert source.num_frames == len(frames) == len(recorded.images)
        for k, frame in enumerate(frames):
            assert frame.index == k
            # The time is that of the header, not of the recording.
            assert frame.timestamp_s == pytest.approx((FIRST_NS + k * STEP_NS) * 1e-9, abs=1e-6)
            np.testing.assert_array_equal(frame.image, recorded.images[k])
        for k in (5, 1, 7, 0, 6):
            np.testing.assert_array_equal(source.read(k).image, recorded.images[k])
        assert [frame.index for frame in source.frames(5)] == [5, 6, 7]
        with pytest.raises(Anchor3RError, match="image 8 was asked for"):
            source.read(8)
    with open_source(f"bag:{path}", start=1, stop=7, stride=2) as cut:
        assert [(frame.index, int(frame.image[0, 0, 0])) for frame in cut] == [(1, 10), (3, 30), (5, 50)]


@pytest.mark.parametrize("name", ["ros1", "ros2-sqlite", "foxglove"])
@pytest.mark.parametrize("format", ["png", "jpeg"])
def test_compressed_images(name: str, format: str, tmp_path: Path) -> None:
    recorded = Recorded(compressed=format, topic="/cam0/image_raw/compressed")
    frames = list(opened(WRITERS[name](tmp_path / "run", recorded)))
    assert len(frames) == 8
    for frame, image in zip(frames, recorded.images, strict=True):
        off = np.abs(frame.image.astype(int) - image)
        assert off.max() == 0 if format == "png" else off.mean() < 4


@pytest.mark.parametrize("name", ["ros1", "ros2-sqlite", "ros2-mcap", "foxglove"])
@pytest.mark.parametrize(
    "encoding",
    [*FFMPEG_FORMATS, *(f"bayer_{p}{bits}" for p in ("rggb", "bggr", "gbrg", "grbg") for bits in (8, 16))],
)
def test_every_encoding_in_recordings(name: str, encoding: str, tmp_path: Path) -> None:
    """Pictures that FFmpeg has written, in recordings that the libraries of ROS and Foxglove have."""
    recorded = Recorded(encoding=encoding, images=[numbered(k) for k in (2, 20)])
    frames = list(opened(WRITERS[name](tmp_path / "run", recorded)))
    assert len(frames) == 2
    is_grey = FFMPEG_FORMATS.get(encoding, "").startswith("gray")
    # YUV keeps one colour for some pixels, in fewer steps; a mosaic one colour a pixel.
    most = 1 if encoding.startswith(("rgb", "bgr", "8UC3")) else 3 if is_grey else 6
    for frame, image in zip(frames, recorded.images, strict=True):
        grey = np.repeat(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None], 3, -1)
        off = np.abs(frame.image.astype(int) - (grey if is_grey else image))
        assert off.max() <= most, off.max()


@pytest.mark.parametrize("codec", ["libx264", "libx265", "libvpx-vp9", "libsvtav1"])
def test_compressed_video(codec: str, tmp_path: Path) -> None:
    path = write_video_mcap(tmp_path / "run", codec, 30)
    with opened(path) as source:
        frames = list(source)
        assert [number_of(frame.image) for frame in frames] == list(range(30))
        assert frames[7].timestamp_s == pytest.approx((FIRST_NS + 7 * STEP_NS) * 1e-9, abs=1e-6)
        for k in (5, 6, 19, 20, 22, 3, 29, 0):
            np.testing.assert_array_equal(source.read(k).image, frames[k].image)
        starts = source._message_table(source._reader).groups.tolist()  # type: ignore[attr-defined]
        assert 0 in starts
        assert 1 < len(starts) < 10, "only some pictures stand by themselves"
        assert [frame.index for frame in source.frames(17)] == list(range(17, 30))
        with pytest.raises(Anchor3RError, match="image 30 was asked for"):
            source.read(30)
    with open_source(f"bag:{path}", start=13, stop=28, stride=4) as cut:
        assert [number_of(frame.image) for frame in cut] == [13, 17, 21, 25]


def test_a_video_that_begins_within_a_group_and_has_a_gap(tmp_path: Path) -> None:
    """As when recording starts later than the camera: what cannot be decoded is left out and counted."""
    from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
    from mcap.reader import make_reader
    from mcap_protobuf.writer import Writer

    whole, cut = write_video_mcap(tmp_path / "whole", "libx264", 30), tmp_path / "cut.mcap"
    with open(whole, "rb") as read, open(cut, "wb") as file, Writer(file) as writer:
        for k, (_, _, message) in enumerate(make_reader(read).iter_messages()):
            video = CompressedVideo.FromString(message.data)
            if k == 25:
                video.data = b"no picture"
            if k >= 4:
                writer.write_message("/cam0/video", video, message.log_time, message.publish_time)
    with opened(cut) as source:
        found = {frame.index: number_of(frame.image) for frame in source}
        assert source.skipped >= 6 + 1
    assert {k: number for k, number in found.items() if k < 21} == {k: k + 4 for k in range(6, 21)}
    strange = CompressedVideo(frame_id="cam0", format="mjpeg", data=b"x")
    with open(cut, "wb") as file, Writer(file) as writer:
        writer.write_message("/cam0/video", strange, FIRST_NS, FIRST_NS)
    with pytest.raises(Anchor3RError, match=r"no frame of .* can be decoded"):
        list(opened(cut))


@pytest.mark.parametrize("codec", ["libx264", "libx265", "libvpx-vp9", "libsvtav1"])
def test_damaged_video(codec: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is in its messages, it is an error of ours or some frames less."""
    from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
    from mcap.reader import make_reader
    from mcap_protobuf.writer import Writer

    cut, rng = tmp_path / "cut.mcap", random.Random(1)
    with open(write_video_mcap(tmp_path / "whole", codec, 12, 4), "rb") as read:
        messages = [message for _, _, message in make_reader(read).iter_messages()]
    for _ in range(12):
        with open(cut, "wb") as file, Writer(file) as writer:
            for message in messages:
                video = CompressedVideo.FromString(message.data)
                if rng.random() < 0.4:
                    video.data = damaged(video.data, rng)
                writer.write_message("/cam0/video", video, message.log_time, message.publish_time)
        assert drain(f"bag:{cut}") <= 12
        try:
            with opened(cut) as source:
                for k in (7, 2, 11):
                    source.read(k)
        except Anchor3RError:
            continue


def test_recordings_are_known_by_their_suffix(tmp_path: Path) -> None:
    for path in (write_ros1(tmp_path / "a", Recorded()), write_ros2(tmp_path / "b", Recorded())):
        assert open_source(path).num_frames == 8
    assert open_source(next((tmp_path / "b").glob("*.db3"))).num_frames == 8


def test_topics_are_listed_where_none_or_several_fit(tmp_path: Path) -> None:
    path = write_ros1(tmp_path / "two", Recorded(more=["/cam1/image_raw", "/depth/image_raw"]))
    with pytest.raises(Anchor3RError, match=r"several topics.*/cam0/image_raw \(8 × .*/cam1/") as told:
        opened(path)
    assert "/depth" not in str(told.value)
    assert opened(path, topic="/cam1/image_raw").num_frames == 8
    assert opened(path, topic="depth/image_raw").num_frames == 8
    with pytest.raises(Anchor3RError, match=r"no images under /cam2; there are images under /cam0"):
        opened(path, topic="/cam2")
    with pytest.raises(Anchor3RError, match="option 'topics', there are only topic"):
        opened(path, topics="/cam1/image_raw")
    poses = [SE3.identity()] * 3
    only_poses = write_ros2(tmp_path / "none", Recorded(images=[], poses=poses))
    with pytest.raises(Anchor3RError, match=r"no images; its topics are /groundtruth/pose \(3 × nav_msgs"):
        opened(only_poses)


def test_raw_images_are_taken_where_a_camera_was_recorded_both_ways(tmp_path: Path) -> None:
    recorded = Recorded(more=["/cam0/image_raw/compressed"])
    assert opened(write_ros2(tmp_path / "both", recorded)).num_frames == 8


@pytest.mark.parametrize("name", ["ros1", "ros2-mcap", "foxglove"])
def test_the_lens_of_the_calibration_is_straightened(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path / "run", Recorded(camera=CAMERA))
    frame = opened(path).read(3)
    assert frame.intrinsics is not None
    k = np.reshape(CAMERA["K"], (3, 3))
    np.testing.assert_allclose(frame.intrinsics.matrix(), k)
    expected = cv2.undistort(numbered(3), k, np.array(CAMERA["D"]))
    assert np.abs(frame.image.astype(int) - expected).max() <= 1
    assert (frame.image != numbered(3)).any()
    stated = open_source(f"bag:{path}", camera=StatedCamera(intrinsics=(10, 10, 12, 8))).read(3)
    assert stated.intrinsics is not None
    assert stated.intrinsics.fx == 10  # and the lens is still the calibrated one
    assert (stated.image != numbered(3)).any()


@pytest.mark.parametrize(
    ("model", "coefficients"),
    [
        ("rational_polynomial", [0.1, 0.02, 0.001, 0.002, 0.01, 0.15, 0.03, 0.02]),
        ("equidistant", [0.1, 0.01, 0, 0]),
    ],
)
def test_other_lenses(model: str, coefficients: list[float], tmp_path: Path) -> None:
    camera = CAMERA | {"D": coefficients, "distortion_model": model}
    frame = opened(write_ros2(tmp_path / "run", Recorded(camera=camera))).read(0)
    k, d = np.reshape(CAMERA["K"], (3, 3)), np.array(coefficients)
    expected = (
        cv2.fisheye.undistortImage(numbered(0), k, d, Knew=k)
        if model == "equidistant"
        else cv2.undistort(numbered(0), k, d)
    )
    assert np.abs(frame.image.astype(int) - expected).max() <= 1


def test_the_part_of_a_sensor_that_images_show(tmp_path: Path) -> None:
    """A region of interest of 48×32 pixels of a sensor of 200×100, of which two by two are one."""
    lens = CAMERA | {"D": [0.0] * 5, "size": (200, 100), "part": (10, 4, 48, 32), "binning": 2}
    frame = opened(write_ros2(tmp_path / "run", Recorded(camera=lens))).read(0)
    assert frame.intrinsics is not None
    # A point that the whole sensor sees at (u, v) is in the image at half of (u - 10, v - 4).
    u, v = 20 * 0.3 + 11.5, 21 * 0.2 + 7.5
    shown = frame.intrinsics.project([0.3, 0.2, 1])
    np.testing.assert_allclose(shown, [(u - 10 + 0.5) / 2 - 0.5, (v - 4 + 0.5) / 2 - 0.5])


def test_rectified_images_have_the_camera_of_the_rectification(tmp_path: Path) -> None:
    path = write_ros1(tmp_path / "run", Recorded(camera=CAMERA, topic="/cam0/image_rect"))
    frame = opened(path).read(0)
    assert frame.intrinsics is not None
    assert (frame.intrinsics.fx, frame.intrinsics.cx) == (18, 12)
    np.testing.assert_array_equal(frame.image, numbered(0))


def test_calibrations_that_say_nothing_or_too_much(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blank = write_ros1(tmp_path / "blank", Recorded(camera=CAMERA | {"K": [0.0] * 9}))
    assert opened(blank).read(0).intrinsics is None
    strange = write_ros1(tmp_path / "strange", Recorded(camera=CAMERA | {"distortion_model": "thin_prism"}))
    assert opened(strange).read(0).intrinsics is None
    assert "'thin_prism'" in caplog.text
    with pytest.raises(Anchor3RError, match="no calibration under /x; there are /cam0/camera_info"):
        opened(blank, calibration="/x")


def poses_along(count: int) -> list[SE3]:
    return [SE3.exp(np.array([0.02 * j, -0.01 * j, 0.03 * j, 0.1 * j, 0, 0.05 * j])) for j in range(count)]


@pytest.mark.parametrize("name", ROS_WRITERS)
def test_true_poses_are_those_of_the_camera(name: str, tmp_path: Path) -> None:
    body_from_camera = SE3.exp(np.array([1.2, -1.2, 1.2, 0.1, 0.2, 0.3]))
    poses = poses_along(16)
    path = WRITERS[name](tmp_path / "run", Recorded(poses=poses, body_from_camera=body_from_camera))
    with opened(path) as source:
        for k, frame in enumerate(source):
            assert frame.camera_from_world is not None
            expected = (poses[2 * k] @ body_from_camera).inverse()
            # Integer nanoseconds of half steps differ by one.
            np.testing.assert_allclose(frame.camera_from_world.matrix(), expected.matrix(), atol=1e-5)


def test_odometry_is_the_truth_only_if_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_ros1(tmp_path / "run", Recorded(poses=poses_along(16), pose_topic="/odom"))
    assert opened(path).read(2).camera_from_world is None
    asked = opened(path, reference="/odom").read(2)
    assert asked.camera_from_world is not None
    assert "those of body" in caplog.text  # no transform tells where the camera is
    with pytest.raises(Anchor3RError, match="no poses under /x; there are /odom"):
        opened(path, reference="/x")


@pytest.mark.parametrize("name", ROS_WRITERS)
def test_moving_frames_are_a_reference_if_asked(name: str, tmp_path: Path) -> None:
    """map -> odom -> body -> cam0, of which the first two move."""
    body_from_camera = SE3.exp(np.array([1.2, -1.2, 1.2, 0.1, 0.2, 0.3]))
    drift = [SE3.exp(np.array([0, 0, 0.01 * j, 0, 0.02 * j, 0])) for j in range(16)]
    moving = {("map", "odom"): drift, ("odom", "body"): poses_along(16), ("body", "wheel"): drift}
    recorded = Recorded(moving=moving, images=[numbered(k) for k in range(9)])
    # The camera hangs below the body as robots have it.
    recorded.moving[("body", "cam0")] = [body_from_camera] * 16  # type: ignore[index]
    path = WRITERS[name](tmp_path / "run", recorded)
    assert opened(path).read(0).camera_from_world is None
    with opened(path, reference="/tf") as source:
        frames = list(source)
    assert frames[8].camera_from_world is None, "after the last transform nothing is known"
    for k, frame in enumerate(frames[:8]):
        assert frame.camera_from_world is not None
        expected = (drift[2 * k] @ poses_along(16)[2 * k] @ body_from_camera).inverse()
        np.testing.assert_allclose(frame.camera_from_world.matrix(), expected.matrix(), atol=1e-5)


def test_moving_frames_without_the_camera_are_refused(tmp_path: Path) -> None:
    path = write_ros2(tmp_path / "run", Recorded(moving={("map", "body"): poses_along(16)}))
    with pytest.raises(Anchor3RError, match=r"/tf of .* whose frame is 'cam0'; it knows body"):
        opened(path, reference="/tf")
    with pytest.raises(Anchor3RError, match=r"no poses under /x; there are /tf \(16"):
        opened(path, reference="/x")


def test_poses_between_two_are_interpolated(tmp_path: Path) -> None:
    poses = poses_along(3)
    path = write_foxglove(tmp_path / "run", Recorded(poses=poses, pose_interval_ns=2 * STEP_NS))
    frames = list(opened(path))
    assert [frame.camera_from_world is not None for frame in frames] == [True] * 5 + [False] * 3
    turns = Slerp([0, 2, 4], Rotation.from_matrix([pose.rotation for pose in poses]))
    for k, frame in enumerate(frames[:5]):
        assert frame.camera_from_world is not None
        world_from_camera = frame.camera_from_world.inverse()
        np.testing.assert_allclose(world_from_camera.rotation, turns(k).as_matrix(), atol=1e-5)
        center = (poses[k // 2].translation + poses[(k + 1) // 2].translation) / 2
        np.testing.assert_allclose(world_from_camera.translation, center, atol=1e-5)


@pytest.mark.parametrize(
    ("encoding", "make"),
    [
        ("rgb8", lambda rgb: rgb), ("bgr8", lambda rgb: rgb[..., ::-1]), ("8UC3", lambda rgb: rgb[..., ::-1]),
        ("rgba8", lambda rgb: np.dstack([rgb, rgb[..., :1]])),
        ("bgra8", lambda rgb: np.dstack([rgb[..., ::-1], rgb[..., :1]])),
        ("rgb16", lambda rgb: rgb.astype("<u2") * 256 + 7),
        ("bgr16", lambda rgb: rgb[..., ::-1].astype("<u2") * 256 + 7),
    ],
)  # fmt: skip
def test_colour_encodings(encoding: str, make: Callable[[Any], Any]) -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (6, 10, 3), dtype=np.uint8)
    written = np.ascontiguousarray(make(rgb))
    image = decoded_raw(written.tobytes(), encoding, 10, 6, written.strides[0], big_endian=False)
    np.testing.assert_array_equal(image, rgb)


@pytest.mark.parametrize(
    ("encoding", "dtype"), [("mono8", "u1"), ("8UC1", "u1"), ("mono16", "<u2"), ("16UC1", ">u2")]
)
def test_grey_encodings_and_padded_rows(encoding: str, dtype: str) -> None:
    grey = np.random.default_rng(1).integers(0, 256, (5, 7), dtype=np.uint8)
    values = grey.astype(dtype) * (1 if dtype == "u1" else 256)
    padded = np.pad(values.astype(dtype), ((0, 0), (0, 3)))
    image = decoded_raw(padded.tobytes(), encoding, 7, 5, padded.strides[0], big_endian=dtype == ">u2")
    np.testing.assert_array_equal(image, np.repeat(grey[..., None], 3, -1))
    with pytest.raises(UndecodableFrameError, match="needs 5 rows"):
        decoded_raw(padded.tobytes()[:-20], encoding, 7, 5, padded.strides[0], big_endian=False)


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
@pytest.mark.parametrize("bits", [8, 16])
def test_bayer_patterns(pattern: str, bits: int) -> None:
    colour = {"r": 200, "g": 120, "b": 40}
    cell = np.array([colour[letter] for letter in pattern], np.uint8).reshape(2, 2)
    mosaic = np.tile(cell, (4, 5)).astype("u1" if bits == 8 else "<u2") * (1 if bits == 8 else 256)
    image = decoded_raw(
        mosaic.tobytes(), f"bayer_{pattern}{bits}", 10, 8, mosaic.strides[0], big_endian=False
    )
    np.testing.assert_array_equal(image, np.broadcast_to([200, 120, 40], (8, 10, 3)))


@pytest.mark.parametrize("encoding", ["yuv422", "uyvy", "yuv422_yuy2", "yuyv", "nv12", "nv21"])
def test_luminance_and_colour(encoding: str) -> None:
    """Grey steps by luminance, and a red that is not blue."""
    height, width = 4, 6
    grey = np.linspace(40, 220, height * width).astype(np.uint8).reshape(height, width)

    def written(u: int, v: int) -> bytes:
        if encoding in ("nv12", "nv21"):
            pair = (u, v) if encoding == "nv12" else (v, u)
            return grey.tobytes() + bytes(pair) * (height * width // 4)
        pairs = np.zeros((height, width, 2), np.uint8)
        luminance = 1 if encoding in ("yuv422", "uyvy") else 0
        pairs[..., luminance] = grey
        pairs[:, 0::2, 1 - luminance], pairs[:, 1::2, 1 - luminance] = u, v
        return pairs.tobytes()

    neutral = decoded_raw(written(128, 128), encoding, width, height, 0, big_endian=False).astype(int)
    assert np.ptp(neutral, axis=-1).max() <= 1
    assert (np.diff(neutral[..., 0].ravel()) > 0).all()
    red = decoded_raw(written(100, 200), encoding, width, height, 0, big_endian=False).astype(int)
    assert (red[..., 0] > red[..., 2] + 50).all()


def test_unknown_encodings_are_named(tmp_path: Path) -> None:
    with pytest.raises(UndecodableFrameError, match="'32fc1' are not known, only mono8"):
        decoded_raw(b"", "32FC1", 4, 4, 16, big_endian=False)


@pytest.mark.parametrize(
    "name", ["ros1", "ros1-lz4", "ros2-sqlite", "ros2-mcap", "ros2-mcap-file", "foxglove", "json"]
)
def test_damaged_recordings(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is wrong with the bytes, it is an error of ours or some frames less."""
    path = WRITERS[name](tmp_path / "run", Recorded(camera=CAMERA, poses=poses_along(16)))
    file = max(path.iterdir(), key=lambda found: found.stat().st_size) if path.is_dir() else path
    data, rng = file.read_bytes(), random.Random(name)
    results = []
    for _ in range(40):
        file.write_bytes(damaged(data, rng))
        results.append(drain(f"bag:{path}"))
    assert -1 in results
    file.write_bytes(data)
    assert drain(f"bag:{path}") == 8


def test_a_truncated_recording_says_what_to_do(tmp_path: Path) -> None:
    for path, remedy in (
        (write_ros1(tmp_path / "a", Recorded()), "rosbag reindex"),
        (write_foxglove(tmp_path / "b", Recorded()), "mcap recover"),
    ):
        path.write_bytes(path.read_bytes()[:-1000])
        with pytest.raises(Anchor3RError, match=rf"{path} cannot be read as a recording.*{remedy}"):
            opened(path)
    with pytest.raises(Anchor3RError, match="there is no"):
        opened(tmp_path / "missing.bag")
    (tmp_path / "folder").mkdir()
    with pytest.raises(Anchor3RError, match="is no recording"):
        opened(tmp_path / "folder")


def _packed_kinds(tmp_path: Path) -> Iterator[Path]:
    """Recordings whose chunks, messages or file are packed, by every method that their libraries read."""
    recorded = Recorded()
    yield write_ros1(tmp_path / "lz4", recorded, lz4=True)
    yield write_ros2(tmp_path / "messages", recorded, compression=CompressionMode.MESSAGE)
    yield write_ros2(tmp_path / "file", recorded, compression=CompressionMode.FILE)
    yield write_ros2(tmp_path / "chunks", recorded, StoragePlugin.MCAP, CompressionMode.STORAGE)
    yield write_foxglove(tmp_path / "zstd", recorded)


def test_recordings_unpack_to_no_more_than_they_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes can stand for gigabytes, whichever library unpacks them."""
    for path in _packed_kinds(tmp_path):
        with open_recording(path) as recording:
            topic = next(name for name, found in recording.topics.items() if "Image" in found.kind)
            assert len(list(recording.raw_messages(topic))) == len(Recorded().images)
        with monkeypatch.context() as little:
            little.setattr(unpacking, "LIMITS", Limits(chunk_bytes=10, unpacked_ratio=0))
            with (
                pytest.raises(Anchor3RError, match="to more than"),
                open_recording(path) as recording,
                damage_told(path),
            ):
                list(recording.raw_messages(topic))


@pytest.mark.parametrize("kind", ["bz2", "lz4", "zstd"])
def test_packed_streams_are_unpacked_one_after_another_and_end(kind: str) -> None:
    pack, new_stream = {
        "bz2": (bz2.compress, bz2.BZ2Decompressor),
        "lz4": (lz4.frame.compress, lz4.frame.LZ4FrameDecompressor),
        "zstd": (zstd.compress, zstd.ZstdDecompressor),
    }[kind]
    data = np.random.default_rng(0).integers(0, 9, 40_000_000, np.uint8).tobytes()
    assert unpacking.unpacked(new_stream, pack(data) + pack(b"more")) == data + b"more"
    with pytest.raises(EOFError):
        unpacking.unpacked(new_stream, pack(data)[:-9])
    with pytest.raises(ValueError, match="to more than"):
        unpacking.unpacked(new_stream, pack(bytes(64 << 20)) * 5)


def test_one_broken_message_is_one_frame_less(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = [numbered(k) for k in range(8)]
    recorded = Recorded(images=images, compressed="png")
    path = write_ros2(tmp_path / "run", recorded)
    database = next(path.glob("*.db3"))
    data = bytearray(database.read_bytes())
    at = [k for k in range(len(data)) if data[k : k + 4] == b"\x89PNG"][3]
    data[at : at + 4] = b"xxxx"
    database.write_bytes(data)
    with opened(path) as source:
        assert len(list(source)) == 7
        assert source.skipped == 1


def test_a_real_bag(shared: Path) -> None:
    bag = shared / "real/bags/s3e_playground_2"
    with pytest.raises(Anchor3RError, match="several topics"):
        open_source(f"bag:{bag}")
    with open_source(f"bag:{bag}?topic=/Alpha/right_camera/compressed") as source:
        frames = list(source)
        assert [frame.image.shape for frame in frames] == [(1024, 1224, 3)] * 2
        assert frames[1].timestamp_s - frames[0].timestamp_s == pytest.approx(0.1, abs=1e-3)
        np.testing.assert_array_equal(source.read(1).image, frames[1].image)


@pytest.mark.parametrize("name", ["ros1-lz4", "ros2-sqlite", "foxglove"])
def test_a_map_of_a_recording_goes_on_where_it_was_cut(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path / "run", Recorded(poses=poses_along(16)))
    uri = f"bag:{path}"
    whole = map_source(uri, tmp_path / "whole", predictor=GroundTruthPredictor())
    map_source(uri, tmp_path / "cut", predictor=GroundTruthPredictor(), stop=5)
    resumed = map_source(uri, tmp_path / "cut", predictor=GroundTruthPredictor(), resume=True)
    assert (whole["with_pose"], resumed["with_pose"], resumed["resumed_after"]) == (8, 8, 4)
    with load_map(tmp_path / "whole") as one, load_map(tmp_path / "cut") as other:
        np.testing.assert_array_equal(one.trajectory().center, other.trajectory().center)
        assert one.trajectory().timestamps_s is not None
        np.testing.assert_array_equal(one.trajectory().timestamps_s, other.trajectory().timestamps_s)
