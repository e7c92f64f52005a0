"""The worlds benchmark: which world a name is, and the table of what was reached."""

import math
from pathlib import Path

import pytest
import tyro

from anchor3r.cli.evaluate import evaluate
from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.benchmarks.worlds import GOALS, PARTS, Worlds, goal_table, part_table
from anchor3r.evaluation.results import Results, SequenceResult


def results(**values: dict[str, float]) -> Results:
    """Results by name (with _ for -), each with the given metrics."""
    sequences = {
        name.replace("_", "-"): SequenceResult(num_frames=300, variants={"online": dict(metrics)})
        for name, metrics in values.items()
    }
    return Results(benchmark="worlds", method="x", protocol={}, config={}, sequences=sequences)


def test_names_are_worlds() -> None:
    worlds = Worlds({**{part: 300 for part in PARTS}, "grid": 77})
    assert worlds.uri("driving-101") == "world:101?kind=street&motion=driving&frames=300"
    assert worlds.uri("grid-5") == "world:5?kind=street&motion=grid&frames=77"
    for bad in ("flying-101", "driving", "driving-x"):
        with pytest.raises(Anchor3RError, match="there is no world"):
            worlds.check(Path(), bad)
    assert Worlds().frames == {part: frames for part, (_, frames) in PARTS.items()}


def test_goals_name_what_is_measured() -> None:
    assert {part for goal in GOALS for part in goal.parts} == set(PARTS) - {"orbit"}


def test_medians_and_marks() -> None:
    rotation = "neighbour_rotation_median_deg"
    table = goal_table(
        results(
            driving_1={rotation: 0.05, "ate_percent": 0.5},
            driving_2={rotation: 0.07, "ate_percent": 0.8},
            driving_3={rotation: 0.30, "ate_percent": 0.9},
            room_1={rotation: 0.2},
            handheld_1={rotation: 0.4},
        )
    )
    assert "| neighbour rotation, driving | ≤ 0.1° | **0.07°** | 3 | 300 |" in table
    assert "| online ATE, driving | ≤ 0.6 % | 0.8 % | 3 | 300 |" in table
    assert "| neighbour rotation, handheld and rooms | ≤ 0.25° | 0.3° | 2 | 300 |" in table
    assert "street grid" not in table


def test_medians_by_part() -> None:
    lines = part_table(results(room_1={"ate_percent": 1.0}, room_2={"ate_percent": 3.0})).splitlines()
    assert len(lines) == 3
    assert lines[2] == "| room (2) | – | – | 2 | – | – | – |"


def test_a_failed_sequence_is_not_passed_over() -> None:
    table = goal_table(results(stream_1={"error_growth": math.nan}, stream_2={"error_growth": 1.0}))
    assert "| error growth over a stream | ≤ 1.2 × | failed 1 | 2 | 300 |" in table


@pytest.mark.parametrize("seeds", ["1-x", "a", "1--2"])
def test_bad_seeds(seeds: str, tmp_path: Path) -> None:
    with pytest.raises(Anchor3RError, match="seeds are numbers and ranges"):
        tyro.extras.subcommand_cli_from_dict(
            evaluate, args=["worlds", "--seeds", seeds, "--motions", "driving", "--out", str(tmp_path)]
        )


def test_a_world_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--seeds",
        "101",
        "--motions",
        "room,driving",
        "--frames",
        "12",
        "--out",
        str(tmp_path / "out"),
    ]
    arguments += ["--predictor", "ground-truth"]
    tyro.extras.subcommand_cli_from_dict(evaluate, args=["worlds", *arguments])
    printed = capsys.readouterr().out
    assert "room-101: 12 frames, online ATE 0.000 m" in printed
    assert "| depth AbsRel after one scale per sequence | ≤ 0.12 | **" in printed
    assert not (tmp_path / "out/room-101/map").exists()
    stored = Results.load(tmp_path / "out/results.json").sequences["driving-101"]
    assert stored.made_from["source"] == "world:101?kind=street&motion=driving&frames=12"
    assert stored.variants["online"]["depth_abs_rel"] == pytest.approx(0, abs=1e-3)
