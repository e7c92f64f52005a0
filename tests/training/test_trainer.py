"""The trainer: learns, resumes bit for bit, survives bad steps, agrees with itself on several processes."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
from toy_data import WallSet, wall_recipe

from anchor3r.errors import Anchor3RError
from anchor3r.model.checkpoints import save_checkpoint
from anchor3r.model.config import PRESETS, Gauge, shrunk
from anchor3r.model.network import Anchor3RNetwork
from anchor3r.predictors.network.predictor import NetworkPredictor
from anchor3r.training import trainer as trainer_module
from anchor3r.training.clips import Clips
from anchor3r.training.data import FIRST_TRAINING_SEED, ClipBatches, WorldSet
from anchor3r.training.distributed import Processes
from anchor3r.training.journal import read_log
from anchor3r.training.losses import LossConfig, quaternions_xyzw, relative_poses
from anchor3r.training.recipes import OptimiserConfig, Recipe, load_recipe, tiny
from anchor3r.training.trainer import RunConfig, Trainer
from anchor3r.training.validation import STRIDE, VALIDATION_SEED, neighbour_poses, validate

ALONE = Processes(0, 1, torch.device("cpu"))


@pytest.fixture(autouse=True)
def _quick_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("anchor3r.training.validation.NUM_BATCHES", 1)


def run(recipe: Recipe, out: Path, **changes: object) -> Trainer:
    config = RunConfig(out=out, log_every=1, validate_every=10_000, save_every_s=1e9, **changes)
    trainer = Trainer(recipe, config, ALONE)
    trainer.run()
    return trainer


def losses(out: Path) -> list[float]:
    return [entry["total"] for entry in read_log(out / "log.jsonl") if "total" in entry]


def test_a_stopped_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    recipe = wall_recipe(steps=6)
    whole = run(recipe, tmp_path / "whole")
    run(recipe, tmp_path / "parts", stop_after=3)
    resumed = run(recipe, tmp_path / "parts", resume=True)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    for (name, a), (_, b) in zip(
        whole.model.named_parameters(), resumed.model.named_parameters(), strict=True
    ):
        assert torch.equal(a, b), name
    for name, value in whole.ema.items():
        assert torch.equal(value, resumed.ema[name]), name


def test_lines_after_the_last_checkpoint_are_not_logged_twice(tmp_path: Path) -> None:
    recipe = wall_recipe(steps=4)
    run(recipe, tmp_path, stop_after=2)
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write(json.dumps({"step": 3, "total": 99.0}) + "\n" + '{"step": 3, "tot')
    run(recipe, tmp_path, resume=True)
    steps = [entry["step"] for entry in read_log(tmp_path / "log.jsonl") if "total" in entry]
    assert steps == [1, 2, 3, 4]
    assert 99.0 not in losses(tmp_path)


def test_a_state_is_not_written_through_a_link_and_a_log_may_be_damaged(tmp_path: Path) -> None:
    recipe, out = wall_recipe(steps=2), tmp_path / "out"
    out.mkdir()
    (tmp_path / "victim").write_text("precious")
    (out / ".state.pt.unfinished").symlink_to(tmp_path / "victim")
    run(recipe, out, stop_after=1)
    assert (tmp_path / "victim").read_text() == "precious"
    with (out / "log.jsonl").open("ab") as log:
        log.write(b'[]\n5\n{"step": "x"}\n\xff\xfe\n')
    run(recipe, out, resume=True)
    assert [entry["step"] for entry in read_log(out / "log.jsonl") if "total" in entry] == [1, 2]


def test_it_learns(tmp_path: Path) -> None:
    recipe = wall_recipe(steps=60, optimiser=OptimiserConfig(learning_rate=3e-3, warmup_steps=5))
    run(recipe, tmp_path)
    curve = losses(tmp_path)
    assert sum(curve[-10:]) / 10 < 0.7 * sum(curve[:10]) / 10
    assert (tmp_path / "best.safetensors").exists()
    assert (tmp_path / "curve.png").exists()
    assert list(tmp_path.glob("samples_*.png"))


def test_a_folder_in_use_is_not_overwritten(tmp_path: Path) -> None:
    run(wall_recipe(steps=1), tmp_path)
    with pytest.raises(Anchor3RError, match="resume"):
        run(wall_recipe(steps=1), tmp_path)


def test_steps_that_are_not_finite_are_skipped_and_a_run_of_them_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = wall_recipe(steps=8, max_bad_steps=3)
    original = Trainer._forward

    def poisoned(bad: set[int]) -> object:
        def forward(self: Trainer, clips: object) -> object:
            loss, terms = original(self, clips)  # type: ignore[arg-type]
            return (loss * torch.nan if self.step in bad else loss), terms

        return forward

    monkeypatch.setattr(trainer_module.Trainer, "_forward", poisoned({2, 5}))
    trainer = run(recipe, tmp_path / "some")
    assert trainer.skipped == 2
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    monkeypatch.setattr(trainer_module.Trainer, "_forward", poisoned({2, 3, 4, 5}))
    with pytest.raises(Anchor3RError, match="not finite for 3 steps"):
        run(recipe, tmp_path / "many")


def test_accumulated_micro_batches_are_one_batch(tmp_path: Path) -> None:
    """Two clips at once, or one after the other: the same step up to rounding."""
    together = run(wall_recipe(steps=1, clips=2), tmp_path / "together")
    apart = wall_recipe(steps=1, clips=1, accumulate=2)
    sizes = replace(apart.data, sizes=apart.data.sizes[:1])
    one_size = [replace(r, data=sizes) for r in (wall_recipe(steps=1, clips=2), apart)]
    together, apart_run = (run(r, tmp_path / str(k)) for k, r in enumerate(one_size))
    for (name, a), (_, b) in zip(
        together.model.named_parameters(), apart_run.model.named_parameters(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5, msg=name)


def test_learning_rate_rises_and_falls() -> None:
    config = OptimiserConfig(learning_rate=1.0, warmup_steps=10, final_fraction=0.1)
    rates = [config.rate(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == pytest.approx(1.0)
    assert max(rates) == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.55, abs=1e-6)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


def test_clips_are_functions_of_their_number() -> None:
    recipe = wall_recipe(clips=2)
    a, b = ClipBatches(recipe.data, 2)[5], ClipBatches(recipe.data, 2)[5]
    assert torch.equal(a.images, b.images)
    # Two processes of one clip see what one process of two clips sees.
    halves = [ClipBatches(recipe.data, 1, rank, 2)[5] for rank in range(2)]
    assert torch.equal(torch.cat([h.images for h in halves]), a.images)
    assert not torch.equal(ClipBatches(recipe.data, 2)[6].cameras, a.cameras)


def test_validation_sees_other_clips_than_training(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = wall_recipe()
    monkeypatch.setattr("anchor3r.training.validation.NUM_BATCHES", 2)
    seen: list[torch.Tensor] = []
    draw = ClipBatches.__getitem__

    def noted(data: ClipBatches, index: int) -> Clips:
        seen.append(draw(data, index).cameras)
        return draw(data, index)

    with monkeypatch.context() as patch:
        patch.setattr(ClipBatches, "__getitem__", noted)
        scores = validate(Anchor3RNetwork(recipe.network), recipe, ALONE)
    assert {"rotation_deg", "direction_deg", "depth_rel", "match_px", "score"} == scores.numbers.keys()
    assert all(np.isfinite(value) for value in scores.numbers.values())
    assert scores.picture.ndim == 3
    assert len(seen) == 2
    for number in range(2 * STRIDE):
        trained_on = ClipBatches(recipe.data, 1)[number].cameras
        assert not any(torch.equal(cameras, trained_on) for cameras in seen)


@pytest.mark.parametrize("gauge", ["current", "first"])
def test_a_vision_transformer_learns_with_the_loss_of_the_paper(tmp_path: Path, gauge: Gauge) -> None:
    network = shrunk(PRESETS["small"], window=3, gauge=gauge)
    optimiser = OptimiserConfig(learning_rate=2e-3, warmup_steps=5)
    recipe = wall_recipe(steps=30, network=network, loss=LossConfig(), optimiser=optimiser)
    recipe = replace(recipe, data=replace(recipe.data, sizes=((28, 42), (42, 56))))
    trainer = run(recipe, tmp_path)
    curve = losses(tmp_path)
    assert np.mean(curve[-5:]) < 0.7 * np.mean(curve[:5])
    assert np.isfinite(trainer.best_score)
    assert NetworkPredictor.load(tmp_path / "best.safetensors").window == 3


def test_the_first_gauge_is_scored_by_the_poses_that_it_implies() -> None:
    """A network that predicts T_t T_1⁻¹ exactly has no error between neighbours."""
    clips = ClipBatches(wall_recipe().data, 1)[0]
    num_frames = clips.images.shape[1]
    truth = relative_poses(clips.camera_from_world, torch.arange(num_frames).view(1, -1, 1), "first")
    pose = torch.cat(
        [truth[0, ..., :3, 3], quaternions_xyzw(truth[0, ..., :3, :3]), torch.ones(num_frames, 1, 2)], -1
    )
    network = Anchor3RNetwork(shrunk(PRESETS["small"], window=3, gauge="first")).eval()
    with torch.no_grad():
        output = network(torch.rand(1, num_frames, 3, 28, 42))
    found = neighbour_poses(replace(output, poses=[pose]), 1, num_frames)
    expected = clips.camera_from_world[0, :-1] @ torch.linalg.inv(clips.camera_from_world[0, 1:])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert float((truth[0, -1, 0] - torch.eye(4)).abs().max()) > 0.01, "the target is not the identity"


def test_an_encoder_that_is_given_is_taken_and_kept_if_frozen(tmp_path: Path) -> None:
    given = Anchor3RNetwork(wall_recipe().network)
    checkpoint = tmp_path / "given.safetensors"
    save_checkpoint(checkpoint, given.state_dict(), config=given.config.to_json())
    loss = replace(wall_recipe().loss, match_weight=0.0)
    recipe = wall_recipe(steps=2, encoder_init=str(checkpoint), freeze_encoder=True, loss=loss)
    recipe = replace(recipe, data=replace(recipe.data, seed=5))
    trained = run(recipe, tmp_path / "run").model.state_dict()
    for name, value in given.state_dict().items():
        assert torch.equal(value, trained[name]) == name.startswith(("encoder.", "matcher.")), name


def test_variants_change_one_thing_each() -> None:
    plain = load_recipe("ablation")
    assert load_recipe("ablation", variant="baseline") == replace(plain, name="ablation-baseline")
    for variant, expected in {
        "pose-cache": {"cache_pose_tokens": True}, "first-centric": {"gauge": "first"},
        "window-5": {"window": 5}, "window-15": {"window": 15},
    }.items():  # fmt: skip
        varied = load_recipe("ablation", variant=variant)
        assert varied.network == replace(plain.network, **expected)  # type: ignore[arg-type]
        assert replace(varied, name="ablation", network=plain.network) == plain
    scratch = load_recipe("ablation", variant="scratch")
    assert scratch.encoder_init is None
    assert not scratch.freeze_encoder
    assert load_recipe("ablation-small", needs_data=False, variant="window-15").network.window == 15
    with pytest.raises(Anchor3RError, match="no variant is called 'w20'"):
        load_recipe("ablation", variant="w20")
    with pytest.raises(Anchor3RError, match="'tiny' has no variants"):
        load_recipe("tiny", variant="baseline")


def test_own_data_keep_their_share_beside_what_a_user_names() -> None:
    own = tiny().data.sets[0][0]
    mine = WallSet()
    mixed = load_recipe("tiny", sets=((mine, 1.0), (mine, 3.0)), own_share=0.25, learning_rate=1e-5)
    assert mixed.data.sets == ((mine, 0.1875), (mine, 0.5625), (own, 0.25))
    assert mixed.optimiser.learning_rate == 1e-5
    assert load_recipe("tiny", sets=((mine, 1.0),)).data.sets == ((mine, 1.0),)
    for share in (-0.1, 1.0):
        with pytest.raises(Anchor3RError, match="share of the recipe's own data"):
            load_recipe("tiny", sets=((mine, 1.0),), own_share=share)


def test_validation_and_other_seeds_see_other_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def note(seed: int, *_: object) -> NoReturn:
        drawn.append(seed)
        raise LookupError

    monkeypatch.setattr("anchor3r.training.data._world", note)
    places = WorldSet()
    for seed in (0, 8, VALIDATION_SEED):
        for number in range(0, 60, places.clips_per_world):
            with pytest.raises(LookupError):
                places.draw(seed, number, (96, 128), np.random.default_rng(0))
    assert len(set(drawn)) == len(drawn) == 30
    assert min(drawn) >= FIRST_TRAINING_SEED
    assert places.clips_per_world < STRIDE, "every clip of the validation has a world of its own"


def test_recipes_by_name() -> None:
    assert load_recipe("tiny", steps=7).steps == 7
    assert load_recipe("tiny", seed=3).data.seed == 3
    with pytest.raises(Anchor3RError, match="seed is -1"):
        load_recipe("tiny", seed=-1)
    sets = ((WorldSet(), 1.0),)
    assert load_recipe("paper", sets=sets).data.num_frames == 48
    assert load_recipe("paper", sets=sets).data.sets == sets
    with pytest.raises(Anchor3RError, match="brings no data"):
        load_recipe("paper")
    with pytest.raises(Anchor3RError, match="there are paper, ablation-small, ablation, tiny"):
        load_recipe("large")


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_two_processes_train_like_one(tmp_path: Path, sharding: str) -> None:
    """Two gloo processes with a clip each against one process with both: the same losses; then the state
    that the two wrote goes on in one."""
    recipe = wall_recipe(steps=3, clips=2)
    run(recipe, tmp_path / "one", stop_after=2)
    script = Path(__file__).with_name("run_distributed.py")
    # Standalone processes agree on a port themselves: one that was found free before may be taken by then.
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(script), str(tmp_path / "two"), sharding,
    ]  # fmt: skip
    done = subprocess.run(command, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    run(recipe, tmp_path / "two", resume=True)
    run(recipe, tmp_path / "one", resume=True)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
