"""The table of an ablation: which runs count, mean, spread and difference, and the commands end to end."""

import json
import math
from pathlib import Path

import pytest
import torch

from anchor3r.cli.main import main
from anchor3r.cli.output import SCHEMAS
from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.ablation import SHOWN, AblationRow, ablation_table, finished_runs
from anchor3r.training import recipes


def run_folder(root: Path, variant: str, seed: int, *, steps: int = 10, validated_at: int = 10) -> None:
    folder = root / variant / f"seed-{seed}"
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps({"steps": steps}))
    (folder / "log.jsonl").write_text(json.dumps({"step": validated_at, "val/score": 0.0}) + "\n")
    (folder / "best.safetensors").touch()


def test_only_runs_that_have_come_to_their_end_count(tmp_path: Path) -> None:
    run_folder(tmp_path, "baseline", 0)
    run_folder(tmp_path, "window-5", 1, validated_at=5)
    finished, others = finished_runs(tmp_path)
    assert [(run.variant, run.seed) for run in finished] == [("baseline", 0)]
    assert others == [tmp_path / "window-5" / "seed-1"]


def test_runs_of_different_lengths_are_not_compared(tmp_path: Path) -> None:
    run_folder(tmp_path, "baseline", 0)
    run_folder(tmp_path, "window-5", 0, steps=7)
    with pytest.raises(Anchor3RError, match="different lengths"):
        finished_runs(tmp_path)
    with pytest.raises(Anchor3RError, match="no finished run"):
        finished_runs(tmp_path / "nowhere")


def test_mean_spread_and_difference() -> None:
    rows = [
        AblationRow(variant="baseline", values=dict.fromkeys(SHOWN, (1.0, 2.0, 3.0))),
        AblationRow(variant="pose-cache", values=dict.fromkeys(SHOWN, (4.0, 5.0, 6.0))),
        AblationRow(variant="window-5", values=dict.fromkeys(SHOWN, (4.0,))),
    ]
    assert rows[0].spread(SHOWN[0]) == pytest.approx(1.0)
    # Two variances of 1 over three seeds each: the difference of 3 has a deviation of sqrt(2 / 3).
    assert rows[1].differs_by(rows[0], SHOWN[0]) == pytest.approx(3 / math.sqrt(2 / 3))
    table = ablation_table(rows).splitlines()
    assert "2 ± 1 | –" in table[2]
    assert "5 ± 1 | +3.7" in table[3]
    assert "| 4 | – |" in table[4]


def test_the_commands_train_and_score_every_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("anchor3r.training.validation.NUM_BATCHES", 1)
    chosen = {name: recipes.VARIANTS[name] for name in ("baseline", "first-centric")}
    monkeypatch.setattr(recipes, "VARIANTS", chosen)
    runs = tmp_path / "runs"
    command = ["train", "ablation", "--all", "--seeds", "1", "--steps", "1", "--out", str(runs)]
    assert main(command) == 0
    weights = [(runs / name / "seed-0" / "best.safetensors").stat().st_mtime_ns for name in chosen]
    capsys.readouterr()
    assert main([*command, "--json"]) == 0, "finished runs are left as they are"
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], len(told["runs"]), told["cost"]) == ("anchor3r/train/1", 2, None)
    assert weights == [(runs / name / "seed-0" / "best.safetensors").stat().st_mtime_ns for name in chosen]
    capsys.readouterr()
    assert main(["evaluate", "ablation", str(runs), "--seeds", "101", "--frames", "4"]) == 0
    said = capsys.readouterr().out
    assert "| baseline | 1 |" in said
    assert "| first-centric | 1 |" in said
    assert "| (straight ahead) | 1 |" in said
    assert main(["evaluate", "ablation", str(runs), "--seeds", "101", "--frames", "4", "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert set(SCHEMAS["evaluate-ablation"]) < set(scored)
    assert scored["rows"][0]["variant"] == "baseline"
