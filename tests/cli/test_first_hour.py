"""What a new user meets: wrong input, failures, photographs, interruptions; each through the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from threadpoolctl import threadpool_info

import anchor3r
from anchor3r.cli import main as cli
from anchor3r.cli import progress as progress_module
from anchor3r.cli.progress import progress
from anchor3r.geometry import SE3
from anchor3r.io import extras
from anchor3r.pipeline import localise, merging, shortfall
from anchor3r.predictors import WindowPrediction
from anchor3r.predictors.ground_truth import GroundTruthPredictor
from anchor3r.predictors.interface import NoPoseReason, WindowStatus
from anchor3r.report import picture
from anchor3r.sources import open_source
from anchor3r.sources.worlds import world_frame
from anchor3r.store import load_map
from anchor3r.trajectory import ONLY_TURNED, STOOD_STILL, estimated_from_true_world
from anchor3r.worlds import make_world, sample_config

ROOT = Path(__file__).parents[2]
STREET = "world:5?motion=driving&width=320&height=240"
SMALL = "world:5?motion=driving&width=64&height=48&frames=12"
EXACT = ("--predictor", "ground-truth")
TRUTH = ("--predictor", "ground-truth:0.2,0.02")
PER_MEMBER = ("members", "member_from_anchor_rotation", "member_from_anchor_translation", "confidence")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command and returns its exit code, what it printed and what it said on the standard error."""

    def command(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def save_images(
    folder: Path, images: list[np.ndarray], exif: Callable[[int], Image.Exif] | None = None
) -> Path:
    folder.mkdir()
    for number, image in enumerate(images):
        more = {} if exif is None else {"exif": exif(number)}
        Image.fromarray(image).save(folder / f"{number:03}.jpg", quality=95, **more)
    return folder


def views(uri: str, frames: list[int]) -> list[np.ndarray]:
    with open_source(uri) as source:
        return [source.read(frame).image for frame in frames]


class TestFailure:
    """A map without a pose is no success, and the message says why."""

    def test_a_camera_that_stands_still(self, tmp_path: Path, run: Run) -> None:
        rng = np.random.default_rng(3)
        still = views(f"{STREET}&frames=1", [0])[0].astype(float)
        images = [np.clip(still + rng.normal(0, 2, still.shape), 0, 255).astype(np.uint8) for _ in range(14)]
        code, out, err = run("map", save_images(tmp_path / "still", images), "--out", tmp_path / "m")
        assert (code, out) == (1, "")
        assert "no motion" in err
        assert "focal" not in err

    def test_images_that_do_not_overlap(self, tmp_path: Path, run: Run) -> None:
        images = [views(f"world:{seed}?width=320&height=240&frames=1", [0])[0] for seed in range(8)]
        folder = save_images(tmp_path / "photos", images)
        code, _, err = run("map", folder, "--out", tmp_path / "m")
        assert code == 1
        assert "looks like separate photographs" in err
        assert "no overlap" in err
        assert not (tmp_path / "m").exists()
        code, out, err = run("map", folder, "--out", tmp_path / "m", "--order", "stream", "--json")
        assert code == 1
        assert "looks like separate photographs" not in err
        assert "no overlap" in err
        summary = json.loads(out.splitlines()[0])
        assert (summary["with_pose"], summary["camera"]) == (0, None)
        assert summary["without_pose"][0]["cause"] == "no overlap"

    def test_too_few_frames_and_blank_ones(self, tmp_path: Path, run: Run) -> None:
        code, _, err = run("map", f"{STREET}&frames=3", "--out", tmp_path / "few")
        assert (code, "too few frames" in err) == (1, True)
        blank = [np.full((120, 160, 3), 90, np.uint8)] * 8
        code, _, err = run("map", save_images(tmp_path / "blank", blank), "--out", tmp_path / "m")
        assert (code, "nothing to follow" in err) == (1, True)

    def test_what_the_predictor_knows_is_told_without_a_look_at_the_images(
        self, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shortfall, "overlap_of", lambda *_: pytest.fail("images were compared"))
        images = views(f"{STREET}&frames=1", [0]) * 9
        folder = save_images(tmp_path / "images", images)
        unkept = ("--no-keep-images", "--order", "stream", "--json")
        code, out, err = run("map", folder, "--out", tmp_path / "m", *unkept)
        assert code == 1
        assert "no motion" in err
        told = json.loads(out)["without_pose"]
        assert [(gap["first"], gap["last"], gap["cause"]) for gap in told] == [(0, 8, "no motion")]
        with load_map(tmp_path / "m") as scene_map:
            assert scene_map.no_pose_reasons()[4] is NoPoseReason.NO_MOTION

    def test_python_raises_and_speaks_python(self, tmp_path: Path) -> None:
        with pytest.raises(anchor3r.Anchor3RError, match=r"too few frames.*a smaller stride"):
            anchor3r.map_source(f"{STREET}&frames=3", tmp_path / "few")

    def test_counts_add_up_where_some_frames_have_no_pose(
        self, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        step = GroundTruthPredictor.step

        def broken(self: GroundTruthPredictor, frame: anchor3r.Frame) -> WindowPrediction:
            prediction = step(self, frame)
            if frame.index not in (4, 5, 9):
                return prediction
            lost = replace(prediction, status=WindowStatus.LOST)
            return replace(lost, **{name: getattr(lost, name)[:0] for name in PER_MEMBER})

        monkeypatch.setattr(GroundTruthPredictor, "step", broken)
        code, out, _ = run("map", SMALL, "--out", tmp_path / "m", *EXACT, "--window", 2, "--json")
        summary = json.loads(out)
        missing = sum(gap["num_frames"] for gap in summary["without_pose"])
        assert code == 0
        assert summary["frames"] == summary["with_pose"] + missing
        assert summary["lost"] == missing
        code, out, _ = run("map", SMALL, "--out", tmp_path / "n", *EXACT, "--window", 2)
        assert f"without a pose: {missing} frame" in out
        assert re.search(r"(?<![\d.])1 frames", out) is None
        first = summary["without_pose"][0]
        assert f"frame {first['first']}" in out or f"frames {first['first']}–{first['last']}" in out


@pytest.fixture(scope="module")
def turning(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    world = make_world(sample_config(43, frames=60, width=320, height=240, kind="room"))
    poses = world.camera_from_world
    place = np.broadcast_to(poses[0].center(), (60, 3))
    world = replace(world, camera_from_world=SE3.from_center(poses.rotation, place))
    images = [world_frame(world, frame).image for frame in range(60)]
    return save_images(tmp_path_factory.mktemp("turn") / "images", images), world.intrinsics.fx


class TestRotation:
    """A camera that only turns has poses, a focal length, and a picture; depth it cannot have."""

    @pytest.mark.parametrize("is_stated", [False, True])
    def test_it_is_mapped_and_drawn(
        self, tmp_path: Path, run: Run, turning: tuple[Path, float], is_stated: bool
    ) -> None:
        folder, focal_px = turning
        camera = (f"--intrinsics={focal_px},{focal_px},159.5,119.5",) if is_stated else ()
        code, out, _ = run("map", folder, "--out", tmp_path / "m", *camera, "--json")
        summary = json.loads(out)
        assert (code, summary["with_pose"], summary["only_turns"]) == (0, 60, True)
        found = summary["camera"]
        assert abs(found["focal_px"] - focal_px) < 2 * found["focal_sigma_px"] < 0.2 * focal_px
        assert ONLY_TURNED in run("render", tmp_path / "m", "--out", tmp_path / "m.png")[1]
        assert ONLY_TURNED in run("report", tmp_path / "m", "--out", tmp_path / "m.html")[1]
        with load_map(tmp_path / "m") as scene_map:
            (scene,) = picture.scenes_of(scene_map, "online")
        for view in (picture.PictureView.TOP, picture.PictureView.PERSPECTIVE):
            pane = picture._panel(scene, view, (400, 300)).camera
            pixels, _ = pane.project(scene.cameras.reshape(-1, 3))
            assert ((pixels >= 0) & (pixels < pane.size)).all(), "the cameras are in the picture"
            assert np.ptp(pixels, axis=0).max() > 0.5 * max(pane.size), "and fill it"
        assert ONLY_TURNED in run("view", tmp_path / "m", "--save", tmp_path / "site")[1]
        (views,) = re.findall(r'"views": ({.*?}})', (tmp_path / "site" / "index.html").read_text())
        whole = {name: np.array(place) for name, place in json.loads(views)["whole"].items()}
        distance = np.linalg.norm(whole["look_at"] - whole["position"])
        assert distance < 0.3, "cameras are drawn as deep as 1/16, and are no dot in the page"
        for form in ("ply", "colmap"):
            code, _, errors = run("export", tmp_path / "m", "--format", form, "--out", tmp_path / form)
            assert (code, ONLY_TURNED in errors, "--confidence" in errors) == (1, True, False)
        assert run("export", tmp_path / "m", "--format", "tum", "--out", tmp_path / "m.tum")[0] == 0

    def test_a_camera_that_stands_still_is_told_from_one_that_turns(
        self, tmp_path: Path, run: Run, turning: tuple[Path, float]
    ) -> None:
        (tmp_path / "still").mkdir()
        for k in range(60):
            shutil.copy(sorted(turning[0].iterdir())[0], tmp_path / "still" / f"{k}.png")
        code, out, _ = run("map", tmp_path / "still", "--out", tmp_path / "m")
        assert code == 0
        assert STOOD_STILL in out
        assert ONLY_TURNED not in out
        assert "(1 frame); 59 frames got a pose afterwards" in out
        warned = run("report", tmp_path / "m", "--out", tmp_path / "m.html")[1]
        assert STOOD_STILL in warned
        assert "focal length is not determined" in warned
        page = (tmp_path / "m.html").read_text()
        assert "<div><b>277 ± 166 px</b>focal length, undetermined</div>" in page
        assert "<p>Camera: focal length" in page, "the rest of it is not pressed into a tile"


class TestFirstFrames:
    """Frames that came before the map began are as much part of it as the others."""

    def test_every_frame_with_a_pose_has_points(self, tmp_path: Path, run: Run) -> None:
        uri = "world:9?kind=room&motion=handheld&width=320&height=240&frames=24"
        assert run("map", uri, "--out", tmp_path / "m", "--predictor", "features")[0] == 0
        with load_map(tmp_path / "m") as scene_map, open_source(uri) as source:
            poses, waited = scene_map.trajectory(), scene_map.no_pose_reasons()
            assert poses.frames.tolist() == list(range(24))
            assert len(waited) > 3
            scale = estimated_from_true_world(poses, scene_map.true_trajectory()).scale
            for frame in waited:
                found = scene_map.points(frame)
                depth = source.read(frame).depth_m[2::4, 2::4]
                assert found.points_in_camera.shape[:2] == depth.shape
                ratio = found.points_in_camera[..., 2] / scale / depth
                assert np.median(np.abs(ratio[found.confidence > 0.8] - 1)) < 0.05


class TestThreads:
    """One place sets threads: as many as help, for as long as the work lasts."""

    @pytest.fixture
    def seen(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
        """Threads of OpenCV, torch and the most of any BLAS or OpenMP while frames are mapped."""
        counts: list[tuple[int, ...]] = []
        step = GroundTruthPredictor.step

        def watched(self: GroundTruthPredictor, frame: anchor3r.Frame) -> WindowPrediction:
            pools = max(pool["num_threads"] for pool in threadpool_info())
            counts.append((cv2.getNumThreads(), torch.get_num_threads(), pools))
            return step(self, frame)

        monkeypatch.setattr(GroundTruthPredictor, "step", watched)
        return counts

    @pytest.mark.parametrize("options", [(), ("--threads", 2)])
    def test_mapping_that_gains_nothing_from_threads_has_one(
        self, tmp_path: Path, run: Run, seen: list[tuple[int, ...]], options: tuple[object, ...]
    ) -> None:
        cv2.setNumThreads(2)
        torch.set_num_threads(2)
        assert run("map", SMALL, "--out", tmp_path / "m", *EXACT, *options)[0] == 0
        assert set(seen) == {(1, 1, 1)}
        assert (cv2.getNumThreads(), torch.get_num_threads()) == (2, 2)

    def test_every_command_that_computes_has_the_option(self, tmp_path: Path, run: Run) -> None:
        for command in ("map", "refine", "densify", "fuse", "demo", "train"):
            assert "--threads INT" in run(command, "--help")[1]
        assert "must lie in 1" in run("map", SMALL, "--out", tmp_path / "m", *EXACT, "--threads", 0)[2]

    def test_commands_without_the_option_have_one_thread(
        self, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def watched(*_: object) -> None:
            pools = max(pool["num_threads"] for pool in threadpool_info())
            raise anchor3r.Anchor3RError(f"threads: {cv2.getNumThreads()}, {pools}")

        cv2.setNumThreads(2)
        monkeypatch.setattr(localise, "keep_places", watched)
        monkeypatch.setattr(merging, "_insist_on_poses", watched)
        assert run("map", SMALL, "--out", tmp_path / "m", *EXACT)[0] == 0
        for command in (("localise", tmp_path / "m", SMALL), ("merge", tmp_path / "m", tmp_path / "m")):
            assert "threads: 1, 1" in run(*command, "--out", tmp_path / "out.tum")[2]


class TestInterruption:
    """Ctrl-C always ends with a clean message and 130."""

    def test_in_a_compiled_kernel(self, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """Python reports what a C function left pending as a SystemError that it is the cause of."""

        def interrupted(self: GroundTruthPredictor, frame: anchor3r.Frame) -> None:
            if frame.index == 5:
                raise SystemError(
                    "CPUDispatcher returned a result with an exception set"
                ) from KeyboardInterrupt()
            return step(self, frame)

        step = GroundTruthPredictor.step
        monkeypatch.setattr(GroundTruthPredictor, "step", interrupted)
        code, _, err = run("map", SMALL, "--out", tmp_path / "m", *EXACT)
        assert code == 130
        assert "--resume goes on" in err
        assert "interrupted" in err
        monkeypatch.setattr(GroundTruthPredictor, "step", step)
        assert run("map", SMALL, "--out", tmp_path / "m", *EXACT, "--resume")[0] == 0

    def test_another_system_error_is_not_taken_for_one(
        self, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(self: GroundTruthPredictor, frame: anchor3r.Frame) -> None:
            raise SystemError("a bug")

        monkeypatch.setattr(GroundTruthPredictor, "step", broken)
        monkeypatch.chdir(tmp_path)
        code, _, err = run("map", SMALL, "--out", tmp_path / "m", *EXACT)
        assert (code, "a bug" in err, "interrupted" in err) == (3, True, False)

    def test_the_real_signal_in_a_real_kernel(self, tmp_path: Path) -> None:
        code = (
            "import os, signal, sys, threading\n"
            "import numpy as np\n"
            "from numba import njit\n"
            "from anchor3r.cli import main as cli, world\n"
            "@njit\n"
            "def spin(values):\n"
            "    for k in range(2_000_000_000):\n"
            "        values[k % 8] += k\n"
            "def command(out=None):\n"
            "    spin(np.zeros(8))\n"
            "    spin(np.zeros(8))\n"
            "spin.compile('void(float64[::1])')\n"
            "cli._run = lambda name, rest: command()\n"
            "threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
            "sys.exit(cli.main(['world']))\n"
        )
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert (ended.returncode, ended.stderr.strip()) == (130, "anchor3r: interrupted")


class TestRoughEdges:
    def test_a_window_that_is_too_small(self, tmp_path: Path, run: Run) -> None:
        for predictor in ("features", "tiny", "ground-truth"):
            code, _, err = run("map", SMALL, "--out", tmp_path / "m", "--window", 1, "--predictor", predictor)
            assert code == 1
            assert "window" in err
            assert "Traceback" not in err

    def test_a_start_behind_the_end_leaves_nothing_in_the_way(self, tmp_path: Path, run: Run) -> None:
        video = cv2.VideoWriter(str(tmp_path / "clip.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 30, (64, 48))
        for image in views(SMALL, list(range(8))):
            video.write(image)
        video.release()
        code, _, err = run("map", tmp_path / "clip.avi", "--out", tmp_path / "m", "--start", 500)
        assert (code, "choose a lower --start" in err, "500" in err) == (1, True, True)
        assert not (tmp_path / "m").exists()
        code, _, err = run("map", SMALL, "--out", tmp_path / "m", "--start", 500)
        assert (code, "500, but it has 12 frames" in err) == (1, True)
        assert run("map", SMALL, "--out", tmp_path / "m", *EXACT)[0] == 0

    @pytest.mark.parametrize(
        ("intrinsics", "words"),
        [
            ("5,5,160,120", "fields of view of 176° and 175°"),
            ("300,300,700,120", "principal point outside"),
            ("300,300,160,-5", "principal point outside"),
            ("1e9,1e9,160,120", "numbers that no camera has"),
        ],
    )
    def test_intrinsics_that_cannot_be(self, tmp_path: Path, run: Run, intrinsics: str, words: str) -> None:
        code, _, err = run(
            "map", f"{STREET}&frames=12", "--out", tmp_path / "m", f"--intrinsics={intrinsics}"
        )
        assert code == 1
        assert words in err
        assert not (tmp_path / "m").exists()

    def test_images_of_two_sizes_are_not_to_be_resumed(self, tmp_path: Path, run: Run) -> None:
        images = views(SMALL, list(range(6)))
        folder = save_images(tmp_path / "mixed", [*images, images[0][:40]])
        code, _, err = run("map", folder, "--out", tmp_path / "m")
        assert code == 1
        assert "folder of their own" in err
        assert "--resume" not in err

    def test_heic_images_are_read_or_the_line_to_install_it_is_told(
        self, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        heif = pytest.importorskip("pillow_heif")
        heif.register_heif_opener()
        (tmp_path / "phone").mkdir()
        for number, image in enumerate(views(SMALL, [0, 1, 2])):
            Image.fromarray(image).save(tmp_path / "phone" / f"IMG_{number}.HEIC")
        with open_source(tmp_path / "phone") as source:
            assert [frame.image.shape for frame in source] == [(48, 64, 3)] * 3
        monkeypatch.setitem(sys.modules, "pillow_heif", None)
        code, _, err = run("map", tmp_path / "phone", "--out", tmp_path / "m")
        assert code == 1
        assert f"install it with: {extras.install_command('heic')}" in err

    def test_missing_extras_have_one_hint(
        self, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert run("map", SMALL, "--out", tmp_path / "m", *EXACT)[0] == 0
        for command, library, extra in (
            (("view", tmp_path / "m"), "viser", "viewer"),
            (("export", tmp_path / "m", "--format", "las", "--out", tmp_path / "m.las"), "laspy", "exports"),
        ):
            monkeypatch.setitem(sys.modules, library, None)
            code, _, err = run(*command)
            assert code == 1
            assert f"install it with: {extras.install_command(extra)}" in err
            assert library in extras.install_command(extra)


class TestPhotographs:
    @staticmethod
    def exif(number: int, *, focal_35mm: int | None = 28, minute: int | None = None) -> Image.Exif:
        exif = Image.Exif()
        details = exif.get_ifd(ExifTags.IFD.Exif)
        details[ExifTags.Base.DateTimeOriginal] = (
            f"2024:05:01 10:{number if minute is None else minute:02}:07"
        )
        if focal_35mm:
            details[ExifTags.Base.FocalLengthIn35mmFilm] = focal_35mm
        return exif

    def test_time_and_focal_length_come_from_the_images(self, tmp_path: Path, run: Run) -> None:
        images = views(f"{STREET}&frames=20", list(range(20)))
        folder = save_images(tmp_path / "photos", images, self.exif)
        code, out, err = run("map", folder, "--out", tmp_path / "m", "--json")
        assert code == 0
        assert "photographs" not in err
        assert json.loads(out)["camera"]["stated"]
        with load_map(tmp_path / "m") as scene_map:
            np.testing.assert_allclose(np.diff(scene_map.frames().timestamp_s), 60)
        with open_source(folder) as source:
            camera = source.read(3).intrinsics
        assert camera is not None
        assert camera.fx == pytest.approx(28 * np.hypot(320, 240) / np.hypot(36, 24))

    def test_photographs_in_no_order_are_told(self, tmp_path: Path, run: Run) -> None:
        images = views(f"{STREET}&frames=12", list(range(12)))
        shuffled = [5, 0, 7, 2, 9, 1, 11, 3, 8, 4, 10, 6]
        folder = save_images(
            tmp_path / "photos", images, lambda number: self.exif(number, minute=shuffled[number])
        )
        _, _, err = run("map", folder, "--out", tmp_path / "m")
        assert "looks like separate photographs" in err
        assert "taken before" in err

    @pytest.mark.skipif(find_spec("pycolmap") is None, reason="pycolmap is not installed")
    def test_photographs_in_order_are_mapped_although_no_video(self, tmp_path: Path, run: Run) -> None:
        """Neighbours overlap, so that nothing shows at once what they are; but nothing can be followed."""
        far_apart = list(range(0, 150, 12))
        images = views("world:44?kind=open&width=480&height=360&frames=150", far_apart)
        folder = save_images(tmp_path / "photos", images)
        code, out, err = run("map", folder, "--out", tmp_path / "m", "--json")
        assert "matched all with all" in err
        assert "looks like separate photographs" not in err
        summary = json.loads(out)
        assert (code, summary["with_pose"], summary["components"]) == (0, 13, 1)
        code, _, err = run("map", folder, "--out", tmp_path / "n", "--order", "stream")
        assert code == 1
        assert "--order none" in err

    @pytest.mark.skipif(find_spec("pycolmap") is None, reason="pycolmap is not installed")
    def test_photographs_of_nothing_in_common_are_refused(self, tmp_path: Path) -> None:
        images = [views(f"world:{seed}?width=320&height=240&frames=1", [0])[0] for seed in range(300, 306)]
        folder = save_images(tmp_path / "photos", images)
        command = [sys.executable, "-m", "anchor3r", "map", str(folder), "--out", str(tmp_path / "m")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        told = ended.stderr.splitlines()
        assert ended.returncode == 1
        assert all(line.startswith(("anchor3r: ", "matching: ")) for line in told), "in our words alone"
        assert "could not be placed (no overlap)" in told[-1]

    def test_a_video_in_images_is_not_taken_for_photographs(self, tmp_path: Path, run: Run) -> None:
        images = views(f"{STREET}&frames=20", list(range(20)))
        code, _, err = run("map", save_images(tmp_path / "video", images), "--out", tmp_path / "m")
        assert (code, "photographs" in err) == (0, False)
        with load_map(tmp_path / "m") as scene_map:
            np.testing.assert_allclose(np.diff(scene_map.frames().timestamp_s), 1 / 30)


class TestPython:
    def test_the_names_are_listed_and_there(self) -> None:
        names = dir(anchor3r)
        assert {"map_source", "refine_map", "export_map", "render_map", "report_map", "__version__"} <= set(
            names
        )
        assert all(getattr(anchor3r, name) for name in names)

    def test_the_whole_way(self, tmp_path: Path) -> None:
        settings = anchor3r.MapSettings(predictor="ground-truth:0.2,0.02")
        folder = tmp_path / "m"
        assert anchor3r.map_source(SMALL, folder, settings)["with_pose"] == 12
        anchor3r.refine_map(folder)
        written = anchor3r.export_map(folder, tmp_path / "t.txt", "tum")
        assert (written.what, written.poses) == ("12 poses", "offline")
        assert "points" in anchor3r.render_map(folder, tmp_path / "m.png")
        assert isinstance(anchor3r.report_map(folder, tmp_path / "m.html"), list)
        assert (tmp_path / "m.png").stat().st_size > 1000
        with pytest.raises(
            anchor3r.Anchor3RError, match="go on with resume or replace it with overwrite"
        ) as found:
            anchor3r.map_source(SMALL, folder, settings)
        assert "--resume or replace it with --overwrite" in found.value.for_command_line()

    def test_frames_from_anywhere(self, tmp_path: Path) -> None:
        images = views(SMALL, list(range(12)))
        folder = save_images(tmp_path / "images", images)
        paths = sorted(folder.iterdir())
        with open_source(SMALL) as world:
            frames = list(world)
        for given in (folder, paths, [str(path) for path in paths], images, np.stack(images), iter(images)):
            with open_source(given) as source:
                read = [frame.image for frame in source]
            assert [image.shape for image in read] == [(48, 64, 3)] * 12
        with open_source((frame for frame in frames), start=2, stride=3) as source:
            kept = list(source)
        assert [frame.index for frame in kept] == [2, 5, 8, 11]
        np.testing.assert_array_equal(kept[1].depth_m, frames[5].depth_m)
        with open_source([image[..., 0] for image in images]) as source:
            assert source.read(4).image.shape == (48, 64, 3)
        predictor = anchor3r.load_predictor("ground-truth")
        assert anchor3r.map_source(frames, tmp_path / "m", predictor=predictor)["with_pose"] == 12
        for wrong in ([], [np.zeros((4, 4, 2), np.uint8)], [np.zeros((4, 4, 3))], 7):
            with pytest.raises(anchor3r.Anchor3RError), open_source(wrong) as source:
                list(source)


class TestCamera:
    def test_map_report_and_export_agree(self, tmp_path: Path, run: Run) -> None:
        images = views(f"{STREET}&frames=40", list(range(40)))
        folder = save_images(tmp_path / "video", images)
        code, out, _ = run("map", folder, "--out", tmp_path / "m")
        assert code == 0
        told = out.split("estimated ")[1].splitlines()[0]
        assert told.startswith("focal length")
        assert told.count("±") == 5  # focal length, principal point, k1, k2
        assert run("report", tmp_path / "m", "--out", tmp_path / "m.html")[0] == 0
        assert told in (tmp_path / "m.html").read_text()
        assert run("export", tmp_path / "m", "--format", "nerfstudio", "--out", tmp_path / "n")[0] == 0
        exported = json.loads((tmp_path / "n" / "transforms.json").read_text())
        assert f"focal length {exported['frames'][0]['fl_x']:.1f} " in told

    def test_evaluating_a_refined_map_takes_its_refined_poses(self, tmp_path: Path, run: Run) -> None:
        assert run("map", SMALL, "--out", tmp_path / "m", *TRUTH)[0] == 0
        assert run("refine", tmp_path / "m")[0] == 0
        truth = tmp_path / "exact.txt"
        assert run("map", SMALL, "--out", tmp_path / "exact", *EXACT)[0] == 0
        assert run("export", tmp_path / "exact", "--format", "tum", "--out", truth)[0] == 0
        errors = {}
        for poses in ("online", "offline", None):
            chosen = () if poses is None else ("--poses", poses)
            code, out, _ = run("evaluate", "trajectory", tmp_path / "m", truth, "--json", *chosen)
            assert code == 0
            (errors[poses],) = (found["ate_rmse_m"] for found in json.loads(out)["trajectories"].values())
        assert errors[None] == errors["offline"] != errors["online"]


class TestWords:
    def test_help_is_a_command_and_metavars_are_plain(self, run: Run) -> None:
        assert run("help")[:2] == run("--help")[:2]
        for name in cli.COMMANDS:
            code, out, _ = run("help", name)
            assert code == 0
            assert "{None}" not in out

    def test_why_a_predictor_was_chosen_is_told_only_if_wanted(self, tmp_path: Path, run: Run) -> None:
        arguments = ("map", f"{STREET}&frames=14", "--out", tmp_path / "m", "--overwrite")
        assert "predictor auto" not in run(*arguments)[2]
        assert "predictor auto: features measures" in run(*arguments, "--verbose")[2]

    def test_no_stage_is_called_a_network_where_there_is_none(self, tmp_path: Path, run: Run) -> None:
        assert run("map", SMALL, "--out", tmp_path / "m", *TRUTH)[0] == 0
        code, out, err = run("refine", tmp_path / "m")
        assert code == 0
        assert "network" not in out + err

    def test_without_a_terminal_there_is_a_line_now_and_then(
        self, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(progress_module, "SECONDS_BETWEEN_LINES", 1e6)
        assert run("map", SMALL, "--out", tmp_path / "m", *EXACT)[2] == ""
        monkeypatch.setattr(progress_module, "SECONDS_BETWEEN_LINES", 0.0)
        lines = run("map", SMALL, "--out", tmp_path / "n", *EXACT)[2].splitlines()
        assert lines[-2].startswith("mapping: 12 of 12 frames, ")
        assert "frames/s, 0:00 left" in lines[-2]
        assert lines[-1].startswith("closing loops: ")

    def test_a_stage_has_its_own_total_and_rate(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 100.0
        monkeypatch.setattr(progress_module.time, "monotonic", lambda: now)
        with progress("refining", None, "") as advance:
            advance(0, "describing keyframes", 40)
            now += 20
            advance(40, "describing keyframes", 40)
            advance(0, "measuring loops", 30)
            now += 11
            advance(11, "measuring loops", 30)
        assert capsys.readouterr().err.splitlines() == [
            "describing keyframes: 40 of 40, 2.0/s, 0:00 left",
            "measuring loops: 11 of 30, 1.0/s, 0:19 left",
        ]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere torch comes without CUDA anyway")
def test_make_takes_the_torch_that_suits_the_machine(tmp_path: Path) -> None:
    """The CPU build without a GPU, PyPI's with one; a variable overrules both."""
    gpu = tmp_path / "nvidia-smi"
    gpu.write_text("#!/bin/sh\n")
    gpu.chmod(0o755)
    without = os.pathsep.join(
        folder for folder in os.environ["PATH"].split(os.pathsep) if not Path(folder, "nvidia-smi").exists()
    )

    def planned(path: str, *options: str) -> str:
        command = ["make", "-n", "demo", f"VENV={tmp_path / 'venv'}", *options]
        return subprocess.run(
            command, cwd=ROOT, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True
        ).stdout

    assert "--extra-index-url https://download.pytorch.org/whl/cpu torch" in planned(without)
    assert "extra-index-url" not in planned(f"{tmp_path}{os.pathsep}{without}")
    assert "extra-index-url" not in planned(without, "TORCH_INDEX=")
    assert "--extra-index-url https://host/whl torch" in planned(without, "TORCH_INDEX=https://host/whl")
