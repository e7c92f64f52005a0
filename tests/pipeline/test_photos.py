"""Photographs in no order: placed together, with the camera they were taken with; sets without overlap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from anchor3r.cli import main as cli
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, umeyama
from anchor3r.pipeline import photos
from anchor3r.pipeline.shortfall import separate_photographs
from anchor3r.report import picture
from anchor3r.sources import Frame, open_source
from anchor3r.store import load_map

ORBIT = "world:{seed}?motion=orbit&width=320&height=240&frames=60"
FOCAL_PX = 272.48


def views(seed: int, count: int = 12) -> list[Frame]:
    with open_source(ORBIT.format(seed=seed)) as source:
        return [source.read(k) for k in range(0, 5 * count, 5)]


def save(folder: Path, frames: list[Frame], focal_px: float | None = None) -> Path:
    folder.mkdir()
    exif = Image.Exif()
    if focal_px is not None:
        equivalent = focal_px * np.hypot(36, 24) / np.hypot(320, 240)
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.FocalLengthIn35mmFilm] = round(equivalent)
    for k, frame in enumerate(frames):
        Image.fromarray(frame.image).save(folder / f"photo{k}.jpg", quality=98, exif=exif)
    return folder


@pytest.fixture(scope="module")
def room() -> list[Frame]:
    frames = views(4)
    return [frames[k] for k in np.random.default_rng(0).permutation(len(frames))]


def error_m(folder: Path, frames: list[Frame]) -> float:
    """Largest error of a camera's place, after alignment."""
    with load_map(folder) as scene_map:
        trajectory = scene_map.trajectory().largest_component()
    true = np.array([_pose(frames[k]).center() for k in trajectory.frames.tolist()])
    moved = umeyama(trajectory.center, true).apply(trajectory.center)
    return float(np.linalg.norm(moved - true, axis=1).max())


def _pose(frame: Frame) -> SE3:
    assert frame.camera_from_world is not None
    return frame.camera_from_world


def test_a_shuffled_orbit_is_mapped(
    room: list[Frame], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = save(tmp_path / "photos", room), tmp_path / "map"
    assert cli.main(["map", str(folder), "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "looks like separate photographs" in told.err
    assert "12 of 12 frames" in told.out
    assert error_m(out, room) < 0.02  # on an orbit of some 3.7 m
    with load_map(out) as scene_map:
        camera = scene_map.intrinsics(0)
        assert camera is not None
        assert camera.fx == pytest.approx(FOCAL_PX, rel=0.02)
        points = scene_map.points(3)
        assert points is not None
        found = np.isfinite(points.points_in_camera[..., 2])
        assert found.sum() > 300
        assert np.median(points.confidence[found]) > 0.5
        (scene,) = picture.scenes_of(scene_map, "online")
        assert {len(piece) for piece in scene.paths["online"]} == {1}, "no line leads through all of them"
        as_taken = np.argsort([frame.index for frame in room])
        assert scene_map.trajectory().select(as_taken).is_in_order()
    for form in ("colmap", "ply"):
        assert cli.main(["export", str(out), "--format", form, "--out", str(tmp_path / form)]) == 0


def test_what_the_photographs_say_of_the_focal_length_is_a_start(room: list[Frame], tmp_path: Path) -> None:
    """Nominal focal lengths are some percent off; the adjustment finds the true one."""
    folder = save(tmp_path / "photos", room, focal_px=1.05 * FOCAL_PX)
    with open_source(folder) as source:
        stated = source.read(0).intrinsics
        assert stated is not None
        assert abs(stated.fx / FOCAL_PX - 1) > 0.03
        summary = photos.map_photos(source, tmp_path / "map")
    assert summary["with_pose"] == 12
    assert summary["camera"]["focal_px"] == pytest.approx(FOCAL_PX, rel=0.02)
    assert summary["camera"]["stated"]


def test_what_photographs_lack_is_said_in_their_words(
    room: list[Frame], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two scenes and one photograph of a third: none of them is a video whose tracking broke."""
    mixed = [*room, *views(12, 8), views(21, 1)[0]]
    folder, out = str(save(tmp_path / "photos", mixed)), str(tmp_path / "map")
    assert cli.main(["map", folder, "--out", out, "--order", "none"]) == 0
    mapped = capsys.readouterr().out
    assert "frame 20: too little in common with the other photographs" in mapped
    assert "not all photographs share enough of what they see: 2 components" in mapped
    page = str(tmp_path / "report.html")
    assert cli.main(["report", out, "--out", page]) == 0
    warned = capsys.readouterr().out
    assert "no relation to the others" in warned
    assert "not refined" not in warned, "there is nothing to refine"
    assert cli.main(["refine", out]) == 0, "nor an error in trying"
    assert cli.main(["export", out, "--format", "tum", "--out", str(tmp_path / "t.tum")]) == 0
    assert "tracking" not in mapped + warned + "".join(capsys.readouterr())


def test_two_scenes_are_two_components(room: list[Frame], tmp_path: Path) -> None:
    other = views(12, 8)
    mixed = [frame for pair in zip(room, other, strict=False) for frame in pair]
    with open_source(save(tmp_path / "photos", mixed)) as source:
        photos.map_photos(source, tmp_path / "map")
    with load_map(tmp_path / "map") as scene_map:
        trajectory = scene_map.trajectory()
    assert trajectory.component is not None
    for component in np.unique(trajectory.component):
        frames = trajectory.frames[trajectory.component == component]
        assert len(set((frames % 2).tolist())) == 1, "no component has photographs of both scenes"


def test_too_many_and_live_ones_are_refused(
    room: list[Frame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "photos", room)
    monkeypatch.setattr(photos, "MAX_PHOTOS", 10)
    with (
        open_source(folder) as source,
        pytest.raises(Anchor3RError, match="12 photographs in no order; 3 to 10"),
    ):
        photos.map_photos(source, tmp_path / "map")
    arguments = ["map", str(folder), "--out", str(tmp_path / "map"), "--order", "none", "--resume"]
    assert cli.main(arguments) == 1
    assert not (tmp_path / "map").exists()


def test_the_same_photographs_in_order_are_no_set(room: list[Frame], tmp_path: Path) -> None:
    """Only the order differs: neighbours overlap well in both."""
    for frames, shuffled in ((views(4), False), (room, True)):
        with open_source(save(tmp_path / str(shuffled), frames)) as source:
            assert (separate_photographs(source) is not None) is shuffled
