"""Files damaged at random: frames may be skipped, but nothing else than Anchor3RError may come out."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from clips import encode, numbered_image
from PIL import Image
from test_dataset_sources import write_kitti, write_seven_scenes, write_tum

from anchor3r.errors import Anchor3RError
from anchor3r.sources import open_source

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "anchor3r")


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Cuts the end off, or overwrites some bytes, or both."""
    damage = bytearray(data)
    cut = rng.random() < 0.4
    if cut:
        del damage[rng.randrange(len(damage)) :]
    for _ in range(0 if cut else rng.choice([1, 3, 20])):
        # Half of the hits go to the header, which is small but matters.
        reach = min(len(damage), 100) if rng.random() < 0.5 else len(damage)
        damage[rng.randrange(reach)] = rng.randrange(256)
    return bytes(damage)


def drain(uri: str) -> int:
    """How many frames come out, of which every property is used; -1 if there is an error."""
    try:
        with open_source(uri) as source:
            indices = []
            for frame in source:
                indices.append(frame.index)
                assert frame.image.dtype == np.uint8
                assert np.isfinite(frame.timestamp_s)
                assert frame.camera_from_world is None or np.isfinite(frame.camera_from_world.matrix()).all()
                assert frame.depth_m is None or np.isfinite(frame.depth_m).all()
            assert indices == sorted(set(indices))
            source.read(indices[len(indices) // 2])
            list(source.frames(first=indices[-1]))
            return len(indices)
    except Anchor3RError:
        return -1


IMAGES: dict[str, dict[str, object]] = {
    "a.png": {}, "a.jpg": {}, "b.jpg": {"progressive": True}, "a.webp": {}, "a.tif": {"compression": "raw"},
    "a.bmp": {}, "a.ppm": {}, "a.jp2": {}, "a.avif": {},
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_images(tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = Image.fromarray(numbered_image(77, 32, 24))
    with_exif = {"exif": exif} if name.endswith(("png", "jpg", "webp", "tif")) else {}
    picture.save(tmp_path / name, **IMAGES[name], **with_exif)
    whole = (tmp_path / name).read_bytes()
    outcomes = set()
    for _ in range(60):
        (tmp_path / name).write_bytes(damaged(whole, rng))
        outcomes.add(drain(str(tmp_path / name)))
    assert -1 in outcomes, "some damage must be noticed"


VIDEOS: dict[str, dict[str, object]] = {
    "a.mp4": {}, "b.mp4": {"muxer_options": {"movflags": "faststart"}}, "a.mkv": {}, "a.ts": {}, "a.h264": {},
    "a.avi": {"codec": "mjpeg", "pixel_format": "yuvj420p"},
}  # fmt: skip


@pytest.mark.parametrize("name", VIDEOS)
def test_videos(tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    whole = encode(tmp_path / name, 12, size=(64, 32), key_interval=5, **VIDEOS[name]).read_bytes()
    outcomes = set()
    for _ in range(25):
        (tmp_path / name).write_bytes(damaged(whole, rng))
        outcomes.add(drain(str(tmp_path / name)))
    assert -1 in outcomes
    assert max(outcomes) > 0, "some damage must be survived"


DATA_SETS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "kitti": (write_kitti, "{root}/00"),
    "tum": (write_tum, "{root}"),
    "7scenes": (write_seven_scenes, "{root}"),
}


@pytest.mark.parametrize("scheme", DATA_SETS)
def test_data_sets(tmp_path: Path, scheme: str) -> None:
    rng = random.Random(scheme)
    write, location = DATA_SETS[scheme]
    root = tmp_path / "data"
    write(root)
    uri = f"{scheme}:{location.format(root=root)}"
    files = sorted(path for path in root.rglob("*") if path.is_file())
    files += 5 * [path for path in files if path.suffix == ".txt"]
    num_frames = drain(uri)
    outcomes = set()
    for _ in range(120):
        path = rng.choice(files)
        whole = path.read_bytes()
        path.write_bytes(damaged(whole, rng))
        outcomes.add(drain(uri))
        path.write_bytes(whole)
    assert min(outcomes) < num_frames, "some damage must be noticed"
    assert max(outcomes) == num_frames, "some damage must be survived"


@pytest.mark.parametrize(
    "script", ["ffconcat version 1.0\nfile secret.mp4\n", "#EXTM3U\n#EXTINF:1,\nsecret.mp4\n"]
)
def test_a_script_that_names_a_video_is_none(script: str, tmp_path: Path) -> None:
    encode(tmp_path / "secret.mp4", 5)
    (tmp_path / "in.mp4").write_text(script)
    with pytest.raises(Anchor3RError, match=r"cannot open .*in.mp4"):
        open_source(tmp_path / "in.mp4")
