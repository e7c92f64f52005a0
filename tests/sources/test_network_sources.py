"""Addresses: files on web servers, web cameras and RTSP cameras, all served by the test itself."""

from __future__ import annotations

import io
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from clips import encode, number_of, numbered_image
from PIL import Image
from servers import motion_jpeg, rtsp_server, serving, web_server

from anchor3r.errors import Anchor3RError
from anchor3r.sources import open_source
from anchor3r.sources import video as video_module


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "whole"])
@pytest.mark.parametrize("movflags", ["faststart", "disable_chpl"], ids=["index_first", "index_last"])
def test_a_video_on_a_web_server_is_like_a_file(tmp_path: Path, ranges: bool, movflags: str) -> None:
    clip = encode(tmp_path / "clip.mp4", 30, muxer_options={"movflags": movflags}).read_bytes()
    with serving(web_server(clip, "video/mp4", ranges=ranges)) as port:
        source = open_source(f"http://127.0.0.1:{port}/clip", stride=2)
        assert (source.num_frames, source.live, source.seekable) == (15, False, True)
        for _ in range(2):
            assert [number_of(frame.image) for frame in source] == list(range(0, 30, 2))
        assert [frame.index for frame in source.frames(first=21)] == [22, 24, 26, 28]
        assert number_of(source.read(13).image) == 13


def test_a_web_camera_is_live() -> None:
    pictures = []
    for number in range(20):
        file = io.BytesIO()
        Image.fromarray(numbered_image(number)).save(file, "JPEG")
        pictures.append(file.getvalue())
    with serving(web_server(*motion_jpeg(pictures), ranges=False)) as port:
        source = open_source(f"http://127.0.0.1:{port}/clip")
        assert (source.num_frames, source.live, source.seekable) == (None, True, False)
        frames = list(source)
    assert [number_of(frame.image) for frame in frames] == [frame.index for frame in frames]
    assert frames[-1].index == 19


def test_an_rtsp_camera(tmp_path: Path) -> None:
    clip = encode(tmp_path / "clip.h264", 50, reorder=False)
    with serving(rtsp_server(clip)) as port:
        source = open_source(f"rtsp://127.0.0.1:{port}/live")
        assert (source.num_frames, source.live, source.seekable) == (None, True, False)
        before_s = time.time()
        frames = list(source.frames(first=100))
    assert [number_of(frame.image) + 100 for frame in frames] == [frame.index for frame in frames]
    assert frames[-1].index == 149
    # The first frame of a connection may come without a time of its own.
    times_s = np.array([frame.timestamp_s for frame in frames[1:]])
    indices = np.array([frame.index for frame in frames[1:]])
    np.testing.assert_allclose(times_s - times_s[0], 0.04 * (indices - indices[0]), atol=1e-3)
    assert before_s <= frames[0].timestamp_s <= times_s[0]
    assert source.skipped == 0


def test_times_that_run_backwards_do_not_cost_frames(tmp_path: Path) -> None:
    # The server stamps frames in the order it sends them, which is not the order of display here.
    clip = encode(tmp_path / "clip.h264", 50, reorder=True)
    with serving(rtsp_server(clip)) as port:
        indices = [frame.index for frame in open_source(f"rtsp://127.0.0.1:{port}/live")]
    assert indices == sorted(set(indices))
    assert 49 <= indices[-1] <= 49 + 3


@pytest.mark.parametrize("scheme", ["http", "rtsp"])
def test_a_server_that_is_down_is_an_error(scheme: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(
            Anchor3RError, match=rf"cannot open {scheme}://127.0.0.1:{port}/x .*check the address"
        ):
            open_source(f"{scheme}://127.0.0.1:{port}/x")


def test_a_wrong_path_is_an_error() -> None:
    with (
        serving(web_server(b"", "video/mp4")) as port,
        pytest.raises(Anchor3RError, match=r"cannot open http.*404.*check the address"),
    ):
        open_source(f"http://127.0.0.1:{port}/nothing")


def test_a_page_is_no_video() -> None:
    with (
        serving(web_server(b"<html>hello</html>" * 50, "text/html")) as port,
        pytest.raises(Anchor3RError, match="cannot open http"),
    ):
        open_source(f"http://127.0.0.1:{port}/clip")


def test_a_silent_server_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_module, "NETWORK_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(Anchor3RError, match="cannot open"):
            open_source(f"http://127.0.0.1:{port}/clip")
