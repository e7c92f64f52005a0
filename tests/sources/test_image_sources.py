"""Folders, globs and single images: order, cutting, every kind of pixel, and what can be wrong with them."""

from __future__ import annotations

import errno
import logging
import os
import struct
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from anchor3r.errors import Anchor3RError
from anchor3r.sources import Source, UndecodableFrameError, open_source
from anchor3r.sources.images import natural_key, read_depth, read_image


def grey(value: int, size: tuple[int, int] = (8, 6)) -> Image.Image:
    return Image.new("L", size, value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve images whose grey level is their number, named so that plain sorting would mix them up."""
    for number in range(12):
        grey(number).save(tmp_path / f"shot{number}.png")
    return tmp_path


def levels(source: Source) -> list[int]:
    return [int(frame.image[0, 0, 0]) for frame in source]


def test_a_folder_comes_in_natural_order_and_again(folder: Path) -> None:
    (folder / "notes.txt").write_text("not an image")
    (folder / "._shot3.png").write_text("what some systems leave beside a file")
    (folder / "more").mkdir()
    with open_source(str(folder)) as source:
        assert source.num_frames == 12
        assert source.seekable
        assert levels(source) == levels(source) == list(range(12))
        frames = list(source)
    assert [frame.index for frame in frames] == list(range(12))
    assert np.all(np.diff([frame.timestamp_s for frame in frames]) > 0)
    assert frames[0].image.shape == (6, 8, 3)
    assert frames[0].image.flags.writeable
    assert frames[0].intrinsics is frames[0].depth_m is frames[0].camera_from_world is None


def test_natural_order() -> None:
    names = ["a10", "a2", "a02", "b1", "a", "a2b10", "a2b9", "10", "9"]
    assert sorted(names, key=natural_key) == ["9", "10", "a", "a02", "a2", "a2b9", "a2b10", "a10", "b1"]


def test_globs_and_single_images(folder: Path) -> None:
    (folder / "deep" / "er").mkdir(parents=True)
    grey(99).save(folder / "deep" / "er" / "x.JPG")
    assert levels(open_source(f"{folder}/shot1*.png")) == [1, 10, 11]
    assert levels(open_source(f"{folder}/deep/**/*.JPG")) == [99]
    assert levels(open_source(f"{folder}/shot7.png")) == [7]


def test_names_with_marks_of_patterns_and_schemes_are_still_names(tmp_path: Path) -> None:
    for name in ("clip[1]", "kitti:00"):
        (tmp_path / name).mkdir()
        grey(5).save(tmp_path / name / "a[0].png")
        assert levels(open_source(str(tmp_path / name))) == [5]
        assert levels(open_source(str(tmp_path / name / "a[0].png"))) == [5]


def test_cutting_keeps_the_index(folder: Path) -> None:
    source = open_source(str(folder), start=2, stop=11, stride=3)
    assert source.num_frames == 3
    assert [frame.index for frame in source] == levels(source) == [2, 5, 8]


@pytest.mark.parametrize(("first", "indices"), [(0, [2, 5, 8]), (3, [5, 8]), (5, [5, 8]), (9, []), (50, [])])
def test_iteration_starts_anywhere(folder: Path, first: int, indices: list[int]) -> None:
    source = open_source(str(folder), start=2, stop=11, stride=3)
    assert [frame.index for frame in source.frames(first=first)] == indices


def test_any_frame_can_be_read_during_an_iteration(folder: Path) -> None:
    source = open_source(str(folder), stride=2)
    for frame in source:
        other = source.read(11 - frame.index)
        assert (other.index, other.image[0, 0, 0]) == (11 - frame.index, 11 - frame.index)
    with pytest.raises(Anchor3RError, match="has 12 frames, but frame 12"):
        source.read(12)


KINDS = {
    "rgb.png": (Image.new("RGB", (8, 6), (10, 200, 30)), (10, 200, 30)),
    "rgba.png": (Image.new("RGBA", (8, 6), (10, 200, 30, 128)), (10, 200, 30)),
    "palette.png": (Image.new("RGB", (8, 6), (10, 200, 30)).quantize(4), (10, 200, 30)),
    "grey.pgm": (grey(77), (77, 77, 77)),
    "grey_alpha.png": (Image.new("LA", (8, 6), (77, 9)), (77, 77, 77)),
    "bits.png": (Image.new("1", (8, 6), 1), (255, 255, 255)),
    "grey16.png": (Image.fromarray(np.full((6, 8), 0x4DFF, np.uint16)), (0x4D, 0x4D, 0x4D)),
    "grey16.tif": (Image.fromarray(np.full((6, 8), 0x4DFF, np.uint16)), (0x4D, 0x4D, 0x4D)),
    "cmyk.jpg": (Image.new("CMYK", (8, 6), (0, 255, 255, 0)), (254, 0, 0)),
    "colour.jpg": (Image.new("RGB", (8, 6), (200, 50, 50)), (200, 50, 50)),
    "colour.webp": (Image.new("RGB", (8, 6), (200, 50, 50)), (200, 50, 50)),
    "colour.bmp": (Image.new("RGB", (8, 6), (200, 50, 50)), (200, 50, 50)),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_pixel_becomes_rgb(tmp_path: Path, name: str) -> None:
    image, colour = KINDS[name]
    image.save(tmp_path / name)
    decoded = read_image(tmp_path / name)
    assert decoded.shape == (6, 8, 3)
    assert decoded.dtype == np.uint8
    np.testing.assert_allclose(decoded.astype(int), np.broadcast_to(colour, (6, 8, 3)), atol=3)


def test_a_palette_with_transparency_is_no_trouble(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    image = Image.new("RGB", (8, 6), (10, 200, 30)).quantize(4)
    image.save(tmp_path / "p.png", transparency=b"\x00\x40\x80\xff")
    assert read_image(tmp_path / "p.png")[0, 0].tolist() == [10, 200, 30]
    assert not recwarn.list


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_turned_upright(tmp_path: Path, orientation: int) -> None:
    upright = np.zeros((6, 8, 3), np.uint8)
    upright[:3, :4] = 255
    turned = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1],
        5: upright.swapaxes(0, 1), 6: np.rot90(upright, 1), 7: upright[::-1, ::-1].swapaxes(0, 1),
        8: np.rot90(upright, -1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(turned)).save(tmp_path / "photo.png", exif=exif)
    np.testing.assert_array_equal(read_image(tmp_path / "photo.png"), upright)


def test_a_photo_is_turned_though_its_other_entries_are_damaged(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[ExifTags.Base.Make] = "a camera"
    Image.new("RGB", (24, 16)).save(tmp_path / "photo.jpg", exif=exif)
    data = bytearray((tmp_path / "photo.jpg").read_bytes())
    text, fraction = (struct.pack(">HHI", ExifTags.Base.Make, *kind) for kind in ((2, 9), (5, 1)))
    assert data.count(text) == 1
    data = data.replace(text, fraction)  # a text that is said to be a number
    (tmp_path / "photo.jpg").write_bytes(data)
    assert read_image(tmp_path / "photo.jpg").shape == (24, 16, 3)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_heic_photos_are_upright_and_tell_their_lens(tmp_path: Path, orientation: int) -> None:
    """As phones write them: turned by EXIF, with time and 35 mm equivalent."""
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    upright = np.zeros((48, 64, 3), np.uint8)
    upright[:24, :32] = 255
    turns = {1: 0, 3: 2, 6: 1, 8: -1}[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    details = exif.get_ifd(ExifTags.IFD.Exif)
    details[ExifTags.Base.DateTimeOriginal] = "2024:05:01 10:20:30"
    details[ExifTags.Base.FocalLengthIn35mmFilm] = 26
    for k in range(2):
        stored = Image.fromarray(np.ascontiguousarray(np.rot90(upright, turns)))
        stored.save(tmp_path / f"IMG_{k}.HEIC", exif=exif.tobytes(), quality=95)
    frame = open_source(tmp_path).read(1)
    assert frame.image.shape == upright.shape
    assert np.abs(frame.image.astype(int) - upright).mean() < 8
    assert frame.is_nominal
    assert frame.intrinsics is not None
    assert frame.intrinsics.fx == pytest.approx(26 * np.hypot(64, 48) / np.hypot(36, 24))
    assert (frame.intrinsics.cx, frame.intrinsics.cy) == (31.5, 23.5)
    assert frame.timestamp_s == datetime(2024, 5, 1, 10, 20, 30, tzinfo=UTC).timestamp()


def test_depth_is_metres_with_zero_for_unknown(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 1000, 2500, 65535]], np.uint16)).save(tmp_path / "d.png")
    depth_m = read_depth(tmp_path / "d.png", 4, 1, 1000.0, 65535)
    assert depth_m.dtype == np.float32
    assert depth_m.tolist() == [[0, 1, 2.5, 0]]
    with pytest.raises(Anchor3RError, match=r"d.png is 4×1, but its colour image is 8×6"):
        read_depth(tmp_path / "d.png", 8, 6, 1000.0)
    grey(3).save(tmp_path / "d8.png")
    with pytest.raises(UndecodableFrameError, match="16-bit"):
        read_depth(tmp_path / "d8.png", 8, 6, 1000.0)


def test_a_damaged_image_is_skipped_and_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = (folder / "shot4.png").read_bytes()
    (folder / "shot4.png").write_bytes(whole[: len(whole) // 2])
    (folder / "shot9.png").write_bytes(b"")
    source = open_source(str(folder))
    with caplog.at_level(logging.WARNING, "anchor3r"):
        indices = [frame.index for frame in source]
    assert indices == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11]
    assert source.skipped == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "shot4.png" in caplog.text
    assert "shot9.png" in caplog.text
    with pytest.raises(UndecodableFrameError, match=r"shot4.png.*replace the file"):
        source.read(4)
    assert [frame.index for frame in source.frames(first=9)] == [10, 11]
    assert source.skipped == 1


def test_a_folder_of_damaged_images_is_an_error(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    source = open_source(str(tmp_path))
    with pytest.raises(Anchor3RError, match=r"no frame of .* can be decoded \(3 tried"):
        list(source)
    assert list(source.frames(first=1)) == [], "a resumed run was fine before"


def test_a_change_of_size_is_an_error(folder: Path) -> None:
    grey(5, (8, 7)).save(folder / "shot5.png")
    source = open_source(str(folder))
    frames = iter(source)
    assert [next(frames).index for _ in range(5)] == list(range(5))
    with pytest.raises(Anchor3RError, match=r"shot5.png is 8×7, but the stream began with 8×6.*start"):
        next(frames)
    with pytest.raises(Anchor3RError, match=r"shot5.png"):
        source.read(5)
    assert len(list(source.frames(first=6))) == 6


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "no images in .*empty; name a folder of images.*.png"),
        ("nowhere", "there is no .*nowhere; check the path"),
        ("*.png", r"no images in .*\*.png"),
        ("notes.txt", "notes.txt has no known suffix; rename or convert it to one of .*.mp4"),
        ("kitti", "no images in .*looks like a data set, so try kitti:"),
        ("tum", "try tum:"),
        ("ftp://host/clip.mp4", "unknown kind of source ftp: .*camera:"),
        ("worlds:3", "unknown kind of source worlds: .*world:"),
        ("\0", "there is no"),
        ("", "there is no"),
    ],
)
def test_what_cannot_be_opened_says_why(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "kitti" / "image_2").mkdir(parents=True)
    (tmp_path / "tum").mkdir()
    (tmp_path / "tum" / "rgb.txt").write_text("")
    (tmp_path / "notes.txt").write_text("hello")
    uri = name if ":" in name or not name.strip("\0") else str(tmp_path / name)
    with pytest.raises(Anchor3RError, match=message):
        open_source(uri)


def test_a_folder_that_may_not_be_read_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(
        Anchor3RError, match=r"cannot read .* \(Permission denied\); check that you may read it"
    ):
        open_source(str(folder))


@pytest.mark.parametrize(
    "cut", [{"start": -1}, {"stride": 0}, {"stride": -2}, {"start": 5, "stop": 5}, {"stop": 0}]
)
def test_an_impossible_cut_is_an_error(folder: Path, cut: dict[str, int]) -> None:
    with pytest.raises(Anchor3RError, match="stride at least 1"):
        open_source(str(folder), **cut)


def test_a_start_beyond_the_end_is_an_error(folder: Path) -> None:
    with pytest.raises(Anchor3RError, match=r"first frame wanted of .* is 12, but it has 12 frames.*start"):
        open_source(str(folder), start=12)


def test_only_a_few_frames_are_in_memory(tmp_path: Path) -> None:
    for number in range(100):
        grey(number, (200, 200)).save(tmp_path / f"{number}.png")
    tracemalloc.start()
    for _ in open_source(str(tmp_path)):
        pass
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 10 * (200 * 200 * 3)
