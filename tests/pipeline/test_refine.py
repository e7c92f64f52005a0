"""Refining a map: loops are found, measured, judged and closed; verdicts can be changed; nothing is lost."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from anchor3r.cli import main as cli
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, so3_exp, umeyama
from anchor3r.loops.retrieval import RetrievalConfig
from anchor3r.pipeline.loop_search import LoopChoices, LoopSearchConfig
from anchor3r.pipeline.mapper import Mapper
from anchor3r.pipeline.refine import refine_map
from anchor3r.pipeline.settings import Method, RefineSettings
from anchor3r.pose_graph.edges import EdgeKind
from anchor3r.predictors import Predictor, WindowPrediction, WindowStatus
from anchor3r.predictors.ground_truth import GroundTruthConfig, GroundTruthPredictor
from anchor3r.sources import Frame
from anchor3r.store import LoopState, MapWriter, StoreConfig, best_poses, load_map
from looping_source import ROUND, LoopingSource

NUM_FRAMES = 2 * ROUND + 40
CONFIG = GroundTruthConfig(window=6, rotation_deg=0.3, translation_fraction=0.03)


class Measured(GroundTruthPredictor):
    """Ground truth that counts its reinsertions and lets a test change what they say."""

    def __init__(self, change: Callable[[WindowPrediction], WindowPrediction] = lambda p: p) -> None:
        super().__init__(CONFIG)
        self.change, self.num_related = change, 0

    def relate(self, members: Sequence[Frame], anchor: Frame) -> WindowPrediction:
        self.num_related += 1
        return self.change(super().relate(members, anchor))


class Drifting(GroundTruthPredictor):
    """Ground truth whose unit grows by a fifth over the map; `tells` whether it measures that."""

    def __init__(self, *, tells: bool) -> None:
        super().__init__(CONFIG)
        self.tells = tells

    def step(self, frame: Frame) -> WindowPrediction:
        return self._in_unit(super().step(frame))

    def relate(self, members: Sequence[Frame], anchor: Frame) -> WindowPrediction:
        return self._in_unit(super().relate(members, anchor))

    def _in_unit(self, prediction: WindowPrediction) -> WindowPrediction:
        rate = np.log(1.2) / NUM_FRAMES
        translation = prediction.member_from_anchor_translation * np.exp(-rate * prediction.anchor)
        changed = replace(prediction, member_from_anchor_translation=translation)
        return replace(changed, log_scale_ratio=rate, log_scale_sigma=2e-3) if self.tells else changed


def make_map(
    folder: Path, predictor: Predictor | None = None, length: int = NUM_FRAMES, **store: Any
) -> Path:
    with MapWriter.create(folder, config=StoreConfig(**store)) as writer:
        for _ in Mapper(predictor or Measured(), writer).run(LoopingSource(length)):
            pass
    return folder


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_map(tmp_path_factory.mktemp("looping") / "map")


@pytest.fixture
def folder(mapped: Path, tmp_path: Path) -> Path:
    """A map of its own for each test."""
    copy = tmp_path / "map"
    copy.mkdir()
    for file in mapped.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def never() -> Predictor:
    raise AssertionError("nothing is to be measured")


def ate(folder: Path, name: str) -> float:
    with load_map(folder) as scene_map:
        estimate, truth = scene_map.trajectory(name), scene_map.true_trajectory()
    assert truth is not None
    target = truth.center[np.searchsorted(truth.frames, estimate.frames)]
    moved = umeyama(estimate.center, target).apply(estimate.center)
    return float(np.sqrt(np.mean(np.sum((moved - target) ** 2, 1))))


def test_loops_are_closed_and_the_trajectory_is_better(folder: Path) -> None:
    predictor = Measured()
    summary = refine_map(folder, predictor=lambda: predictor)
    assert summary["loop_events"] >= 20
    assert summary["accepted"] >= 0.9 * summary["loop_events"]
    assert summary["scale"] == "fixed"
    assert predictor.num_related == 2 * summary["loop_events"]
    assert ate(folder, "offline") < 0.5 * ate(folder, "online")
    with load_map(folder) as scene_map:
        assert scene_map.trajectory_names() == ["online", "offline"]
        loops, graph = scene_map.loops(), scene_map.graph()
        assert_array_equal(scene_map.trajectory("offline").frames, scene_map.trajectory().frames)
        assert_allclose(
            scene_map.trajectory("offline").center[0], scene_map.trajectory().center[0], atol=1e-9
        )
        made = scene_map.refinement("offline")
        assert made.summary["accepted"] == summary["accepted"]
        assert made.settings["keyframe_interval"] == RefineSettings().keyframe_interval
        assert made.settings["config"]["retrieval"]["min_gap"] == RetrievalConfig().min_gap
    loop_edges = graph.edges.kind == EdgeKind.LOOP
    assert loop_edges.sum() == 2 * (CONFIG.window - 1) * summary["accepted"]
    assert all(loop.query - loop.match >= 50 for loop in loops)
    with open(folder / "loops.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["event"]) for row in table] == [loop.event for loop in loops]
    assert [row["accepted"] == "yes" for row in table] == [loop.accepted for loop in loops]
    assert float(table[0]["similarity"]) >= 0.3
    assert float(table[0]["excess"]) <= 1


def test_a_second_run_measures_nothing_and_gives_the_same(folder: Path) -> None:
    refine_map(folder, predictor=Measured)
    with load_map(folder) as scene_map:
        first = scene_map.trajectory("offline")
    summary = refine_map(folder, predictor=never)
    assert not summary["loops_searched"]
    with load_map(folder) as scene_map:
        assert_allclose(scene_map.trajectory("offline").center, first.center, atol=1e-9)
    anew = Measured()
    assert refine_map(folder, predictor=lambda: anew, choices=LoopChoices(redo=True))["loops_searched"]
    assert anew.num_related > 0


@pytest.mark.parametrize("method", ["decoupled", "paper"])
def test_rotations_first_closes_loops_too(folder: Path, method: Method) -> None:
    summary = refine_map(folder, RefineSettings(method=method), predictor=Measured)
    assert summary["accepted"] >= (1.0 if method == "paper" else 0.9) * summary["loop_events"] > 0
    assert ate(folder, "offline") < 0.6 * ate(folder, "online")


def test_windows_of_query_and_match_share_no_frame(tmp_path: Path) -> None:
    """However short the gap that is asked for: a frame related to itself would close no loop."""
    predictor = GroundTruthPredictor(replace(CONFIG, window=60))
    folder = make_map(tmp_path / "map", predictor, length=2 * ROUND)
    config = LoopSearchConfig(retrieval=RetrievalConfig(min_gap=1, min_similarity=-1.0))
    refine_map(folder, predictor=lambda: predictor, config=config)
    with load_map(folder) as scene_map:
        gaps = [loop.query - loop.match for loop in scene_map.loops()]
    assert 2 * 60 <= min(gaps) < 2 * 60 + 10


def test_without_loops_only_windows_count(folder: Path) -> None:
    summary = refine_map(folder, RefineSettings(loops=False), predictor=never)
    assert summary["loop_events"] == 0
    assert not (folder / "loops.csv").exists()
    alone = ate(folder, "offline")
    refine_map(folder, predictor=Measured)
    assert ate(folder, "offline") < 0.7 * alone
    # A map with loops can be solved without them, and keeps them.
    refine_map(folder, RefineSettings(loops=False), predictor=never)
    assert ate(folder, "offline") == pytest.approx(alone, rel=1e-6)
    with load_map(folder) as scene_map:
        assert scene_map.loops() == []
        assert not (scene_map.graph().edges.kind == EdgeKind.LOOP).any()
    refine_map(folder, predictor=never)
    assert ate(folder, "offline") < 0.7 * alone


def test_refinements_of_several_names_stand_side_by_side(folder: Path) -> None:
    """Each with its own settings, loops and verdicts; none touches another, or measures anything twice."""
    predictor = Measured()
    wanted = {
        "off5": RefineSettings(),
        "off10": RefineSettings(keyframe_interval=10),
        "no-loops": RefineSettings(loops=False),
        "paper": RefineSettings(method="paper"),
    }
    for name, settings in wanted.items():
        refine_map(folder, settings, name=name, predictor=lambda: predictor)
    measured = predictor.num_related
    with load_map(folder) as scene_map:
        assert scene_map.trajectory_names() == ["online", *wanted]
        assert best_poses(scene_map.trajectory_names()) == "paper"
        paths = {name: scene_map.trajectory(name).center for name in wanted}
        loops = {name: scene_map.loops(name) for name in wanted}
        for name, settings in wanted.items():
            stamped = scene_map.refinement(name).settings
            assert stamped["keyframe_interval"] == settings.keyframe_interval
            assert (stamped["method"], stamped["loops"]) == (settings.method, settings.loops)
        assert {loop.state for loop in loops["paper"]} == {LoopState.UNVERIFIED}
        num_edges = {name: len(scene_map.graph(name)) for name in wanted}
    assert len(loops["off5"]) > len(loops["off10"]) > len(loops["no-loops"]) == 0
    assert [loop.event for loop in loops["paper"]] == [loop.event for loop in loops["off5"]]
    assert not {loop.event for loop in loops["off5"]} & {loop.event for loop in loops["off10"]}
    assert num_edges["paper"] >= num_edges["off5"] > num_edges["off10"] > num_edges["no-loops"]
    refine_map(folder, wanted["off5"], name="off5", predictor=never)
    rejected = loops["off10"][0].event
    refine_map(
        folder, wanted["off10"], name="off10", predictor=never, choices=LoopChoices(reject=(rejected,))
    )
    assert predictor.num_related == measured
    with load_map(folder) as scene_map:
        for name in ("off5", "no-loops", "paper"):
            assert_array_equal(scene_map.trajectory(name).center, paths[name])
            assert scene_map.loops(name) == loops[name]
        assert scene_map.loops("off10")[0].state is LoopState.REJECTED_BY_HAND
        with pytest.raises(Anchor3RError, match="no refinement 'off15', only: no-loops, paper, off5, off10"):
            scene_map.refinement("off15")


def test_refined_poses_are_not_called_online(folder: Path) -> None:
    for name in ("online", "", "a/b"):
        with pytest.raises(Anchor3RError, match="cannot be called"):
            refine_map(folder, name=name, predictor=never)


def lie(prediction: WindowPrediction, *, anchors: range) -> WindowPrediction:
    """Puts an anchor at a wrong place, all edges in agreement, in both directions."""
    backward = prediction.members.min() in anchors
    if prediction.anchor not in anchors and not backward:
        return prediction
    turn = SE3(so3_exp(np.array([0.0, 0.4, 0.0])), np.array([2.0, 0.0, 5.0]))
    member_from_anchor = SE3(
        prediction.member_from_anchor_rotation, prediction.member_from_anchor_translation
    )
    # query_from_match is turned in both directions alike; members are near the match or the query.
    wrong = member_from_anchor @ turn if not backward else turn.inverse() @ member_from_anchor
    return replace(
        prediction,
        member_from_anchor_rotation=wrong.rotation,
        member_from_anchor_translation=wrong.translation,
    )


def test_false_loops_are_rejected_with_a_reason_and_can_be_undone(folder: Path) -> None:
    false_queries = range(150, 160)
    summary = refine_map(folder, predictor=lambda: Measured(lambda p: lie(p, anchors=false_queries)))
    with load_map(folder) as scene_map:
        loops = scene_map.loops()
    is_false = [loop.query in false_queries for loop in loops]
    assert sum(is_false) >= 2
    for loop, false in zip(loops, is_false, strict=True):
        assert not (loop.accepted and false), loop
        assert loop.reason != "not judged yet"
    assert summary["accepted"] >= 0.8 * (len(loops) - sum(is_false))
    good = ate(folder, "offline")

    forced = next(loop.event for loop in loops if loop.query in false_queries and "two" not in loop.reason)
    refine_map(folder, predictor=never, choices=LoopChoices(accept=(forced,)))
    with load_map(folder) as scene_map:
        assert scene_map.loops()[forced].accepted
        assert scene_map.loops()[forced].reason == "accepted by hand"
    assert ate(folder, "offline") > good
    refine_map(folder, predictor=never)  # verdicts by hand stay
    with load_map(folder) as scene_map:
        assert scene_map.loops()[forced].accepted
    refine_map(folder, predictor=never, choices=LoopChoices(reject=(forced,)))
    with load_map(folder) as scene_map:
        assert not scene_map.loops()[forced].accepted
        assert scene_map.loops()[forced].reason == "rejected by hand"
    assert ate(folder, "offline") == pytest.approx(good, rel=0.05)


def test_rejecting_every_loop_is_solving_without_loops(folder: Path) -> None:
    refine_map(folder, RefineSettings(loops=False), predictor=never)
    with load_map(folder) as scene_map:
        alone = scene_map.trajectory("offline")
    summary = refine_map(folder, predictor=Measured)
    everything = tuple(range(summary["loop_events"]))
    undone = refine_map(folder, predictor=never, choices=LoopChoices(reject=everything))
    assert undone["accepted"] == 0
    with load_map(folder) as scene_map:
        assert_allclose(scene_map.trajectory("offline").center, alone.center, atol=1e-6)


def scatter(prediction: WindowPrediction) -> WindowPrediction:
    rng = np.random.default_rng(prediction.anchor)
    rotation = so3_exp(rng.uniform(-1, 1, (len(prediction.members), 3)))
    return replace(prediction, member_from_anchor_rotation=rotation)


def one_way(prediction: WindowPrediction) -> WindowPrediction:
    """Right when looking at the past, turned by 30° when looking at the future."""
    if prediction.members[0] < prediction.anchor:
        return prediction
    turn = so3_exp(np.array([0.0, 0.5, 0.0]))
    return replace(prediction, member_from_anchor_rotation=prediction.member_from_anchor_rotation @ turn)


def lose(prediction: WindowPrediction) -> WindowPrediction:
    return replace(prediction, status=WindowStatus.LOST)


def nothing(prediction: WindowPrediction) -> WindowPrediction:
    return replace(
        prediction, member_from_anchor_rotation=np.full_like(prediction.member_from_anchor_rotation, np.nan)
    )


@pytest.mark.parametrize(
    ("change", "reason", "windows"),
    [
        (scatter, "its own edges disagree", 1),
        (one_way, "its two directions disagree", 2),
        (lose, "the predictor found no relation", 1),
        (nothing, "the predictor found no relation", 1),
    ],
)
def test_events_that_disagree_with_themselves_never_reach_the_graph(
    folder: Path, change: Callable[[WindowPrediction], WindowPrediction], reason: str, windows: int
) -> None:
    predictor = Measured(change)
    summary = refine_map(folder, predictor=lambda: predictor)
    assert summary["accepted"] == 0
    assert summary["reasons"] == {reason: summary["loop_events"]}
    assert predictor.num_related == windows * summary["loop_events"]


def test_an_interrupted_search_goes_on_where_it_ended(folder: Path) -> None:
    class Broken(Measured):
        def relate(self, members: Sequence[Frame], anchor: Frame) -> WindowPrediction:
            if self.num_related == 7:
                raise KeyboardInterrupt
            return super().relate(members, anchor)

    with pytest.raises(KeyboardInterrupt):
        refine_map(folder, predictor=Broken)
    rest = Measured()
    summary = refine_map(folder, predictor=lambda: rest)
    assert rest.num_related == 2 * (summary["loop_events"] - 3)
    assert summary["accepted"] >= 0.9 * summary["loop_events"]


def test_a_map_that_grew_is_searched_again(tmp_path: Path) -> None:
    folder = make_map(tmp_path / "m", length=ROUND + 20)
    before = refine_map(folder, predictor=Measured)
    with MapWriter.resume(folder) as writer:
        for _ in Mapper(Measured(), writer).run(LoopingSource(ROUND + 60)):
            pass
    after = refine_map(folder, predictor=Measured)
    assert after["loops_searched"]
    assert after["loop_events"] > before["loop_events"]
    assert after["frames"] == ROUND + 60


def test_a_drifting_unit_is_freed(tmp_path: Path) -> None:
    folder = make_map(tmp_path / "silent", Drifting(tells=False))
    errors = {}
    for scale in ("fixed", "free"):
        refine_map(folder, RefineSettings(scale=scale), predictor=lambda: Drifting(tells=False))
        errors[scale] = ate(folder, "offline")
    assert errors["free"] < 0.5 * errors["fixed"]
    with load_map(folder) as scene_map:
        log_scale = scene_map.trajectory("offline").log_scale
    assert log_scale is not None
    assert log_scale[-1] == pytest.approx(np.log(1.2), abs=0.05)


def test_free_units_are_the_default_where_ratios_were_measured(tmp_path: Path) -> None:
    folder = make_map(tmp_path / "telling", Drifting(tells=True))
    for loops in (False, True):
        config = RefineSettings(loops=loops)
        assert refine_map(folder, config, predictor=lambda: Drifting(tells=True))["scale"] == "free"
        assert ate(folder, "offline") < (0.3 if loops else 0.9) * ate(folder, "online")


def test_a_loop_joins_components(tmp_path: Path) -> None:
    class Blind(Measured):
        """Loses track once, in the second round."""

        def step(self, frame: Frame) -> WindowPrediction:
            if frame.index == ROUND + 30:
                self.reset()
                return replace(super().step(frame), status=WindowStatus.LOST)
            return super().step(frame)

    folder = make_map(tmp_path / "m", Blind())
    with load_map(folder) as scene_map:
        assert len(set(scene_map.trajectory().component.tolist())) == 2
    alone = refine_map(folder, RefineSettings(loops=False), predictor=never)
    assert alone["components"] == 2
    joined = refine_map(folder, predictor=Measured)
    assert joined["components"] == 1
    assert ate(folder, "offline") < 0.5 * ate(folder, "online")


def test_a_window_in_another_unit_is_brought_to_the_maps(tmp_path: Path) -> None:
    def with_points(prediction: WindowPrediction, unit: float) -> WindowPrediction:
        translation = prediction.member_from_anchor_translation / unit
        points = np.full((3, 4, 3), 5.0 / unit, np.float32)
        return replace(prediction, member_from_anchor_translation=translation, points_in_anchor=points)

    class Deep(Measured):
        def step(self, frame: Frame) -> WindowPrediction:
            return with_points(super().step(frame), 1.0)

    folder = make_map(tmp_path / "m", Deep())
    alike = RefineSettings(descriptor="gradients")  # depths that are all the same say nothing of features
    summary = refine_map(folder, alike, predictor=lambda: Measured(lambda p: with_points(p, 2.5)))
    assert summary["accepted"] >= 0.9 * summary["loop_events"] > 0
    assert ate(folder, "offline") < 0.5 * ate(folder, "online")


def test_windows_without_a_unit_of_their_own_take_the_odometrys(folder: Path) -> None:
    def arbitrary(prediction: WindowPrediction) -> WindowPrediction:
        unit = np.random.default_rng([prediction.anchor, prediction.members[0]]).choice([0.2, 3.0, 20.0])
        translation = prediction.member_from_anchor_translation / unit
        return replace(prediction, member_from_anchor_translation=translation)

    summary = refine_map(folder, predictor=lambda: Measured(arbitrary))
    assert summary["accepted"] >= 0.9 * summary["loop_events"] > 0
    assert ate(folder, "offline") < 0.5 * ate(folder, "online")


def test_images_may_come_from_the_source_or_be_missing(tmp_path: Path) -> None:
    folder = make_map(tmp_path / "m", keep_images=False)
    with pytest.raises(Anchor3RError, match="keeps no image"):
        refine_map(folder, predictor=Measured)
    source = LoopingSource(NUM_FRAMES)
    assert refine_map(folder, predictor=Measured, read_frame=source.read)["accepted"] > 0


def test_what_cannot_be_refined_says_so(folder: Path, tmp_path: Path) -> None:
    with MapWriter.create(tmp_path / "empty"):
        pass
    with pytest.raises(Anchor3RError, match="nothing to refine"):
        refine_map(tmp_path / "empty", predictor=Measured)
    with pytest.raises(Anchor3RError, match="holds no map"):
        refine_map(tmp_path / "nowhere", predictor=Measured)
    with MapWriter.open(folder), pytest.raises(Anchor3RError, match="another process is writing"):
        refine_map(folder, predictor=Measured)
    with pytest.raises(Anchor3RError, match="no descriptors"):
        refine_map(folder, RefineSettings(descriptor="tokens"), predictor=Measured)
    with pytest.raises(Anchor3RError, match="no loops of 'offline' to judge"):
        refine_map(folder, predictor=never, choices=LoopChoices(reject=(0,)))
    refine_map(folder, predictor=Measured)
    with pytest.raises(Anchor3RError, match="no loop event 999"):
        refine_map(folder, predictor=never, choices=LoopChoices(reject=(999,)))
    refine_map(folder, predictor=lambda: Measured(nothing), choices=LoopChoices(redo=True))
    with pytest.raises(Anchor3RError, match=r"\[3\] of .* nothing was measured"):
        refine_map(folder, predictor=never, choices=LoopChoices(accept=(3,)))
    with pytest.raises(Anchor3RError, match="accepted and rejected"):
        LoopChoices(accept=(1, 2), reject=(2,))


@pytest.mark.parametrize("length", [1, 2, 7])
def test_short_maps_are_no_error(tmp_path: Path, length: int) -> None:
    folder = make_map(tmp_path / "m", length=length)
    summary = refine_map(folder, predictor=Measured)
    assert summary["frames"] == length
    assert summary["loop_events"] == 0


def test_the_command_refines_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from anchor3r.sources import opening

    monkeypatch.setattr(opening, "open_source", lambda uri, **cut: LoopingSource(NUM_FRAMES))
    folder = str(make_map(tmp_path / "m"))
    assert cli.main(["refine", folder]) == 1
    assert "--predictor" in capsys.readouterr().err
    assert cli.main(["refine", folder, "--predictor", "ground-truth:0.3,0.03", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["accepted"] > 0
    assert cli.main(["refine", folder, "--reject-loop", "0", "--reject-loop", "1"]) == 0
    assert "2 × rejected by hand" in capsys.readouterr().out
    assert cli.main(["refine", folder, "--no-loops"]) == 0
    assert "0 of 0 loop events" in capsys.readouterr().out
    assert cli.main(["refine", folder, "--top-k", "0"]) == 1
