"""`anchor3r evaluate` from the command line: output, files, and what it says about bad input."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tyro
from miniatures import drive

from anchor3r.cli.evaluate import evaluate
from anchor3r.cli.main import main
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, so3_exp
from anchor3r.io.trajectories import write_kitti, write_tum
from anchor3r.trajectory import Trajectory


def command(*arguments: object) -> None:
    if "--json" in arguments:
        assert main(["evaluate", *map(str, arguments)]) == 0
        return
    tyro.extras.subcommand_cli_from_dict(evaluate, prog="anchor3r evaluate", args=[str(a) for a in arguments])


def noisy(world_from_camera: SE3, seed: int = 0) -> SE3:
    rng = np.random.default_rng(seed)
    noise = SE3(
        so3_exp(rng.normal(0, 0.02, (len(world_from_camera), 3))),
        rng.normal(0, 0.1, (len(world_from_camera), 3)),
    )
    return world_from_camera @ noise


def stored(world_from_camera: SE3, stamps_s: Any = None) -> Trajectory:
    rotation = world_from_camera.rotation.swapaxes(1, 2)
    return Trajectory(
        frames=np.arange(len(rotation)),
        rotation=rotation,
        center=world_from_camera.translation,
        timestamps_s=stamps_s,
    )


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    (metrics,) = json.loads(capsys.readouterr().out)["trajectories"].values()
    return metrics


def test_equals_evo_on_the_same_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evo_metrics = pytest.importorskip("evo.core.metrics")
    evo_files = pytest.importorskip("evo.tools.file_interface")
    reference, estimate = tmp_path / "truth.txt", tmp_path / "estimate.txt"
    write_kitti(reference, stored(drive(400)))
    write_kitti(estimate, stored(noisy(drive(400))))
    command("trajectory", estimate, reference, "--json")
    ours = printed(capsys)
    true, estimated = (evo_files.read_kitti_poses_file(path) for path in (reference, estimate))
    estimated.align(true, correct_scale=True)
    for name, metric in (
        ("ate_{}_m", evo_metrics.APE(evo_metrics.PoseRelation.translation_part)),
        ("rre_{}_deg", evo_metrics.RPE(evo_metrics.PoseRelation.rotation_angle_deg, all_pairs=True)),
    ):
        metric.process_data((true, estimated))
        for statistic in ("rmse", "mean", "median", "max"):
            theirs = metric.get_statistic(evo_metrics.StatisticsType[statistic])
            assert ours[name.format(statistic)] == pytest.approx(theirs, abs=1e-9, rel=1e-9)


def test_tum_by_time_equals_evo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evo_metrics = pytest.importorskip("evo.core.metrics")
    evo_sync = pytest.importorskip("evo.core.sync")
    evo_files = pytest.importorskip("evo.tools.file_interface")
    true = drive(200)
    stamps = 1311868164.0 + np.arange(200) / 100
    write_tum(tmp_path / "true.txt", stored(true, stamps))
    write_tum(tmp_path / "estimate.txt", stored(noisy(true)[::3], stamps[::3] + 0.004))
    command("trajectory", tmp_path / "estimate.txt", tmp_path / "true.txt", "--json")
    ours = printed(capsys)
    reference, estimated = evo_sync.associate_trajectories(
        evo_files.read_tum_trajectory_file(tmp_path / "true.txt"),
        evo_files.read_tum_trajectory_file(tmp_path / "estimate.txt"),
        max_diff=0.02,
    )
    estimated.align(reference, correct_scale=True)
    metric = evo_metrics.APE(evo_metrics.PoseRelation.translation_part)
    metric.process_data((reference, estimated))
    assert ours["num_poses"] == 67
    assert ours["ate_rmse_m"] == pytest.approx(
        metric.get_statistic(evo_metrics.StatisticsType.rmse), abs=1e-9
    )


def test_formats_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    true, stamps = drive(30), np.arange(30) / 10
    write_tum(tmp_path / "a.tum", stored(true, stamps))
    write_kitti(tmp_path / "b.txt", stored(true))
    quat = np.loadtxt(tmp_path / "a.tum")[:, [7, 4, 5, 6]]
    rows = np.column_stack([stamps * 1e9, true.translation, quat, np.zeros((30, 9))])
    np.savetxt(tmp_path / "c.csv", rows, delimiter=",", header="timestamp, p_x [m]", fmt="%.12g")
    for name in ("a.tum", "b.txt", "c.csv"):
        command("trajectory", tmp_path / name, tmp_path / "a.tum", "--align", "none", "--json")
        assert printed(capsys)["ate_max_m"] == pytest.approx(0, abs=1e-9)
    command("trajectory", tmp_path / "b.txt", tmp_path / "a.tum", "--out", tmp_path / "figures")
    assert "ate_rmse_m" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"trajectory.png", "error.png"}


def test_bad_trajectories(tmp_path: Path) -> None:
    true, stamps = drive(30), np.arange(30) / 10
    write_tum(tmp_path / "a.tum", stored(true, stamps))
    write_tum(tmp_path / "later.tum", stored(true, stamps + 1000))
    write_kitti(tmp_path / "b.txt", stored(true))
    write_kitti(tmp_path / "short.txt", stored(true[:20]))
    lines = (tmp_path / "b.txt").read_text().splitlines()
    (tmp_path / "nan.txt").write_text("\n".join([*lines[:4], "nan " * 12, *lines[5:]]))
    (tmp_path / "odd.txt").write_text("1 2 3\n")
    (tmp_path / "empty.txt").write_text("# nothing\n")
    for arguments, message in (
        (("short.txt", "b.txt"), r"short.txt has 20 poses and .*b.txt has 30"),
        (("later.tum", "a.tum"), r"only 0 poses of .*later.tum \(1000.000 to 1002.900 s\) and .*a.tum"),
        (("nan.txt", "b.txt"), r"nan.txt, line 5: expected"),
        (("odd.txt", "b.txt"), r"odd.txt is no trajectory that is known: line 1 has 3 columns"),
        (("empty.txt", "b.txt"), r"empty.txt is no trajectory that is known: it is empty"),
        (("absent.txt", "b.txt"), r"absent.txt"),
        (("b.txt", "a.tum", "--estimate-format", "tum"), r"b.txt, line 1: expected timestamp"),
    ):
        paths = [tmp_path / name for name in arguments[:2]]
        with pytest.raises(Anchor3RError, match=message):
            command("trajectory", *paths, *arguments[2:])


def change_line(path: Path, number: int, line: str) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[: number - 1], line, *lines[number:]]))


def shorten(path: Path) -> None:
    path.write_text("\n".join(path.read_text().splitlines()[:6]))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (shorten, "poses/03.txt ends at line 6, but"),
        (lambda path: change_line(path, 3, "nan " * 12), "poses/03.txt, line 3: "),
        (lambda path: change_line(path, 4, "1.5 0 0 0 0 0 0 1"), "poses/03.txt, line 4: "),
        (lambda path: change_line(path, 1, "pose,x,y,z"), "poses/03.txt, line 1: "),
        (Path.unlink, "cannot read"),
    ],
    ids=["fewer poses than frames", "nan", "a line of tum", "another format", "none"],
)
def test_bad_ground_truth_is_named_by_file_and_line(
    kitti_miniature: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], None],
    words: str,
) -> None:
    root = kitti_miniature("03", num=8)
    spoil(root / "poses/03.txt")
    options = ["--sequences", "03", "--predictor", "ground-truth", "--out", str(tmp_path / "out")]
    assert main(["evaluate", "kitti", str(root), *options]) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists(), "it shows before anything is mapped"


def test_other_time_stamps_are_told_with_both_spans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    true, stamps = drive(30), np.arange(30) / 10
    write_tum(tmp_path / "a.tum", stored(true, stamps))
    write_tum(tmp_path / "later.tum", stored(true, stamps + 1000))
    change_line(tmp_path / "a.tum", 7, "0.6 nan 0 0 0 0 0 1")
    assert main(["evaluate", "trajectory", str(tmp_path / "later.tum"), str(tmp_path / "a.tum")]) == 1
    assert "a.tum, line 7: " in capsys.readouterr().err
    write_tum(tmp_path / "a.tum", stored(true, stamps))
    assert main(["evaluate", "trajectory", str(tmp_path / "later.tum"), str(tmp_path / "a.tum")]) == 1
    said = capsys.readouterr().err
    assert "later.tum (1000.000 to 1002.900 s)" in said
    assert "a.tum (0.000 to 2.900 s)" in said


def test_kitti_and_compare(
    kitti_miniature: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = kitti_miniature("03", "04", num=8), tmp_path / "out"
    options = ("--sequences", "03,04", "--predictor", "ground-truth:0.1,0.01", "--out", out)
    command("kitti", root, *options)
    text = capsys.readouterr().out
    assert "03: 8 frames, online ATE" in text
    assert "| ground-truth-Online |" in text
    assert "| LongStream [paper] | 3.810 | 1.950 |" in text.replace("**", "").replace("_", "")
    command("compare", out / "results.json", "--metrics", "ate_rmse_m", "--no-paper")
    text = capsys.readouterr().out
    assert text.startswith("## kitti")
    assert "[paper]" not in text
    command("compare", out / "results.json", out / "results.json", "--out", tmp_path / "both.md")
    assert (tmp_path / "both.md").read_text().count("| ground-truth-Online |") > 2


def test_a_map(
    kitti_miniature: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = kitti_miniature("03", num=8), tmp_path / "out"
    command("kitti", root, "--sequences", "03", "--predictor", "ground-truth", "--out", out)
    capsys.readouterr()
    command("map", out / "03/map", "--out", tmp_path / "scores", "--json")
    assert printed(capsys)["ate_rmse_m"] == pytest.approx(0, abs=1e-6)
    assert (tmp_path / "scores/trajectory.png").is_file()
    command("trajectory", out / "03/map", tmp_path / "scores/truth.tum", "--json")
    assert printed(capsys)["ate_rmse_m"] == pytest.approx(0, abs=1e-6)
