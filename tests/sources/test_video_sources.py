"""Video files, and the parts of live capture that need no camera."""

from __future__ import annotations

import itertools
import logging
import time
from pathlib import Path

import av
import numpy as np
import pytest
from clips import encode, number_of, numbered_image

from anchor3r.errors import Anchor3RError
from anchor3r.sources import UndecodableFrameError, open_source
from anchor3r.sources.video import PresentationTable, VideoInput, VideoSource

CONTAINERS = {
    "mp4": ("clip.mp4", {}),
    "mkv": ("clip.mkv", {}),
    "ts": ("clip.ts", {}),
    "mpeg4_avi": ("clip.avi", {"codec": "mpeg4"}),
    "mjpeg_avi": ("clip.avi", {"codec": "mjpeg", "pixel_format": "yuvj420p"}),
    "webm": ("clip.webm", {"codec": "libvpx-vp9"}),
    "raw": ("clip.h264", {}),
}
SEEKS = set(CONTAINERS) - {"raw"}
COUNTS = {"mp4", "mpeg4_avi", "mjpeg_avi"}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_frames_come_in_order_of_display_from_anywhere(tmp_path: Path, kind: str) -> None:
    name, settings = CONTAINERS[kind]
    path = encode(tmp_path / name, 40, **settings)
    with open_source(str(path)) as source:
        assert source.num_frames == (40 if kind in COUNTS else None)
        assert source.seekable
        assert not source.live
        frames = list(source)
        assert [frame.index for frame in frames] == list(range(40))
        assert [number_of(frame.image) for frame in frames] == list(range(40))
        np.testing.assert_allclose(np.diff([frame.timestamp_s for frame in frames]), 0.04, atol=0.0015)
        for first in (1, 17, 39):
            for resumed, frame in zip(source.frames(first=first), frames[first:], strict=True):
                assert (resumed.index, resumed.timestamp_s) == (frame.index, frame.timestamp_s)
                np.testing.assert_array_equal(resumed.image, frame.image)
        for index in (30, 31, 35, 2, 39, 0):
            np.testing.assert_array_equal(source.read(index).image, frames[index].image)
        assert source.skipped == 0
        with pytest.raises(UndecodableFrameError, match=r"frame 40 of .* not there"):
            source.read(40)


@pytest.mark.parametrize("kind", sorted(SEEKS))
def test_starting_midway_does_not_decode_what_came_before(tmp_path: Path, kind: str) -> None:
    name, settings = CONTAINERS[kind]
    source = VideoSource(
        slice(None),
        VideoInput(uri="clip", location=str(encode(tmp_path / name, 60, **settings)), is_file=True),
    )
    index, _ = next(source._pictures(55))
    assert 40 <= index <= 55


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.ts"])
@pytest.mark.parametrize("landing", ["late", "at the end"])
def test_a_jump_that_lands_late_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, landing: str
) -> None:
    def land_late(table: PresentationTable, index: int) -> int:
        return table.keys[-1][1] if landing == "late" else table.times[-1]

    monkeypatch.setattr(PresentationTable, "seek_time", land_late)
    source = open_source(str(encode(tmp_path / name, 30)))
    assert [frame.index for frame in source.frames(first=5)] == list(range(5, 30))
    assert number_of(source.read(3).image) == 3


def test_cutting_keeps_the_index(tmp_path: Path) -> None:
    path = encode(tmp_path / "clip.mp4", 40)
    source = open_source(str(path), start=5, stop=30, stride=7)
    assert source.num_frames == 4
    assert (
        [frame.index for frame in source] == [number_of(frame.image) for frame in source] == [5, 12, 19, 26]
    )
    assert [frame.index for frame in source.frames(first=13)] == [19, 26]


def test_variable_frame_rate_gives_the_true_times(tmp_path: Path) -> None:
    times_ms = list(itertools.accumulate([0, *(10 + 37 * number % 90 for number in range(29))]))
    for name in ("clip.mp4", "clip.mkv"):
        frames = list(open_source(str(encode(tmp_path / name, 30, times_ms=times_ms))))
        np.testing.assert_allclose(
            [frame.timestamp_s for frame in frames], np.array(times_ms) / 1000, atol=1e-3
        )


@pytest.mark.parametrize("size", [(129, 65), (130, 67), (131, 64)])
def test_odd_sizes(tmp_path: Path, size: tuple[int, int]) -> None:
    path = encode(tmp_path / "clip.mp4", 3, size=size, pixel_format="yuv444p")
    image = next(iter(open_source(str(path)))).image
    assert image.shape == (size[1], size[0], 3)
    np.testing.assert_allclose(image.astype(int)[20:], numbered_image(0, *size)[20:], atol=12)


@pytest.mark.parametrize(
    ("rotation_deg", "matrix"), [(90, (0, -1, 1, 0)), (180, (-1, 0, 0, -1)), (-90, (0, 1, -1, 0))]
)
def test_turned_videos_are_shown_upright(
    tmp_path: Path, rotation_deg: int, matrix: tuple[int, int, int, int]
) -> None:
    path = encode(tmp_path / "clip.mp4", 2, rotation_deg=rotation_deg)
    a, b, c, d = matrix
    header = path.read_bytes()
    body = header.index(b"tkhd") + 4 + 40
    fixed = np.frombuffer(header[body : body + 20], ">i4") / 65536
    assert fixed.tolist() == [a, b, 0, c, d], "the file turns (x, y) to (a x + c y, b x + d y), y down"
    stored = numbered_image(0)
    height, width = stored.shape[:2]
    shown = next(iter(open_source(str(path)))).image
    assert shown.shape == ((width, height, 3) if a == 0 else (height, width, 3))
    # Follow three pixels from where they are stored to where the matrix puts them.
    for x, y in ((20, 40), (100, 30), (60, 5)):
        u = a * x + c * y + (width - 1 if a < 0 else 0) + (height - 1 if c < 0 else 0)
        v = b * x + d * y + (width - 1 if b < 0 else 0) + (height - 1 if d < 0 else 0)
        assert abs(int(shown[v, u, 0]) - int(stored[y, x, 0])) < 12


@pytest.mark.parametrize("rotation_deg", [0, 90])
@pytest.mark.parametrize("name", ["clip.mov", "clip.mp4"])
def test_the_focal_length_that_a_phone_writes_is_nominal(
    tmp_path: Path, name: str, rotation_deg: int
) -> None:
    path = encode(
        tmp_path / name, 4, rotation_deg=rotation_deg, muxer_options={"movflags": "use_metadata_tags"},
        metadata={"com.apple.quicktime.camera.focal_length.35mm_equivalent": "26"},
    )  # fmt: skip
    with open_source(str(path)) as source:
        for frame in (next(iter(source)), source.read(2)):
            assert frame.is_nominal
            assert frame.intrinsics is not None
            focal_px = 26 * np.hypot(128, 64) / np.hypot(36, 24)
            assert (frame.intrinsics.fx, frame.intrinsics.fy) == pytest.approx((focal_px, focal_px))
            height, width = frame.image.shape[:2]
            assert (frame.intrinsics.cx, frame.intrinsics.cy) == ((width - 1) / 2, (height - 1) / 2)
    for told in ("0", "soon", "1e9", "nan"):
        key = "com.apple.quicktime.camera.focal_length.35mm_equivalent"
        options = {"movflags": "use_metadata_tags"}
        strange = encode(tmp_path / f"strange-{name}", 2, muxer_options=options, metadata={key: told})
        assert next(iter(open_source(str(strange)))).intrinsics is None


def test_frames_cut_off_by_an_edit_list_do_not_count(tmp_path: Path) -> None:
    encode(tmp_path / "whole.mp4", 30)
    with av.open(str(tmp_path / "whole.mp4")) as whole, av.open(str(tmp_path / "cut.mp4"), "w") as cut:
        stream = cut.add_stream_from_template(whole.streams.video[0])
        shift = None
        for packet in whole.demux(video=0):
            if not packet.size:
                continue
            shift = round(0.2 / packet.time_base) if shift is None else shift
            packet.pts -= shift
            packet.dts -= shift
            packet.stream = stream
            cut.mux(packet)
    source = open_source(str(tmp_path / "cut.mp4"))
    assert source.num_frames == 25
    assert [number_of(frame.image) for frame in source] == list(range(5, 30))
    assert [frame.index for frame in source] == list(range(25))
    assert number_of(source.read(12).image) == 17


def test_a_damaged_stretch_is_skipped_and_leaves_a_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = encode(tmp_path / "clip.avi", 20, codec="mjpeg", pixel_format="yuvj420p")
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    for number in (7, 8, 19):
        position, size = packets[number]
        data[position + 8 : position + 8 + size] = bytes(size)
    path.write_bytes(data)
    source = open_source(str(path))
    with caplog.at_level(logging.WARNING, "anchor3r"):
        frames = list(source)
    assert [frame.index for frame in frames] == [*range(7), *range(9, 19)]
    assert [number_of(frame.image) for frame in frames] == [*range(7), *range(9, 19)]
    assert source.skipped == 3
    assert "skipped frame 7 of" in caplog.text
    with pytest.raises(UndecodableFrameError, match="frame 8"):
        source.read(8)


def test_a_truncated_video_is_an_error_that_says_what_is_left(tmp_path: Path) -> None:
    path = encode(tmp_path / "clip.mp4", 40, muxer_options={"movflags": "faststart"})
    data = path.read_bytes()
    path.write_bytes(data[: int(0.9 * len(data))])
    with pytest.raises(Anchor3RError, match=r"is truncated: (\d+) of its 40 frames.*stop") as raised:
        open_source(str(path))
    num_left = int(str(raised.value).split("with stop ")[1])
    assert 0 < num_left < 40
    frames = list(open_source(str(path), stop=num_left))
    assert len(frames) >= num_left - 4, "the last ones may need data that is gone"


@pytest.mark.parametrize("left", [0, 100, 0.5, 0.95])
def test_a_video_without_its_index_is_an_error(tmp_path: Path, left: float) -> None:
    path = encode(tmp_path / "clip.mp4", 20)
    data = path.read_bytes()
    path.write_bytes(data[: int(left * len(data)) if left < 1 else int(left)])
    with pytest.raises(
        Anchor3RError, match=r"cannot open .*clip.mp4 .*; check that the file is a complete video"
    ):
        open_source(str(path))


def test_a_file_without_pictures_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "sound.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        sound.sample_rate = 8000
        container.mux(stream.encode(sound))
    with pytest.raises(Anchor3RError, match="holds no video"):
        open_source(str(path))
    (tmp_path / "text.mp4").write_text("This is not a video. " * 100)
    with pytest.raises(Anchor3RError, match=r"cannot open .*text.mp4"):
        open_source(str(tmp_path / "text.mp4"))


@pytest.mark.parametrize("name", ["clip.mp4", "clip.h264"])
def test_a_start_beyond_the_end_is_an_error(tmp_path: Path, name: str) -> None:
    path = encode(tmp_path / name, 10)
    with pytest.raises(Anchor3RError, match=r"first frame wanted of .* is 10, but it ends before.*start"):
        list(open_source(str(path), start=10))
    assert list(open_source(str(path)).frames(first=10)) == []


def test_a_change_of_size_is_an_error(tmp_path: Path) -> None:
    both = (
        encode(tmp_path / "a.h264", 5).read_bytes()
        + encode(tmp_path / "b.h264", 5, size=(160, 64)).read_bytes()
    )
    (tmp_path / "both.h264").write_bytes(both)
    frames = iter(open_source(str(tmp_path / "both.h264")))
    assert [next(frames).index for _ in range(5)] == list(range(5))
    message = r"frame 5 of .*both.h264 is 160×64, but the stream began with 128×64"
    with pytest.raises(Anchor3RError, match=message):
        next(frames)


def test_a_camera_that_is_absent_is_an_error() -> None:
    with pytest.raises(Anchor3RError, match=r"cannot open camera:97 .*check that there is a camera at .*97"):
        open_source("camera:97")


class TestLiveCapture:
    """FFmpeg's test pattern takes the place of a camera: a capture device without an end."""

    @staticmethod
    def capture(wanted: slice) -> VideoSource:
        pattern = VideoInput(uri="camera:0", location="testsrc=size=64x48:rate=50", device_format="lavfi")
        return VideoSource(wanted, pattern)

    def test_it_is_live_and_counts_from_where_a_map_ended(self) -> None:
        source = self.capture(slice(0, None, 1))
        assert source.live
        assert not source.seekable
        assert source.num_frames is None
        before_s = time.time()
        frames = list(itertools.islice(source.frames(first=500), 5))
        indices = [frame.index for frame in frames]
        assert indices[0] >= 500
        assert indices == sorted(set(indices))
        assert frames[0].image.shape == (48, 64, 3)
        assert frames[0].timestamp_s >= before_s
        assert np.all(np.diff([frame.timestamp_s for frame in frames]) > 0)
        with pytest.raises(Anchor3RError, match="camera:0 is live and frame 3 has passed"):
            source.read(3)

    def test_it_ends_at_stop(self) -> None:
        with self.capture(slice(3, 30, 5)) as source:
            indices = [frame.index for frame in source]
        assert indices[-1] == 28
        assert set(indices) <= set(range(3, 30, 5))
