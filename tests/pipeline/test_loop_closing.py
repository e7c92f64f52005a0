"""Loops closed while streaming: poses are corrected, told so, and come out the same however a run goes."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from anchor3r.cli import main as cli
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import umeyama
from anchor3r.loops.reinsertion import Reinsertion
from anchor3r.pipeline.loop_closing import LoopCloser
from anchor3r.pipeline.loop_jobs import LoopClosingConfig
from anchor3r.pipeline.mapper import Mapper, Update
from anchor3r.pipeline.mapping import MappingRun, predictor_of
from anchor3r.pipeline.refine import refine_map
from anchor3r.pipeline.settings import MapSettings, RefineSettings
from anchor3r.predictors import Predictor, WindowPrediction, WindowStatus
from anchor3r.predictors.ground_truth import GroundTruthConfig, GroundTruthPredictor
from anchor3r.sources import Frame, Source, open_source
from anchor3r.sources.source import IndexedSource
from anchor3r.store import MapWriter, StoreConfig, load_map
from anchor3r.store.localising import places_identity
from looping_source import ROUND, LoopingSource

NUM_FRAMES = 2 * ROUND + 60
NOISE = GroundTruthConfig(window=6, rotation_deg=0.3, translation_fraction=0.03)
CONTENT = {
    "poses": "name, frame, known_since, component, pose, covariance, log_scale",
    "corrections": "frame, heads, nodes",
    "loops": "query, match, accepted, reason, figures, search",
    "edge_groups": "anchor, kind, edges, information",
}


class Blinded(GroundTruthPredictor):
    """Ground truth that loses track for some frames and begins anew after them."""

    def __init__(self, lost: range) -> None:
        super().__init__(NOISE)
        self._lost = lost

    def step(self, frame: Frame) -> WindowPrediction:
        if frame.index == self._lost.start:
            self.reset()
        if frame.index not in self._lost:
            return super().step(frame)
        return WindowPrediction(
            anchor=frame.index,
            members=np.empty(0, np.int64),
            member_from_anchor_rotation=np.empty((0, 3, 3)),
            member_from_anchor_translation=np.empty((0, 3)),
            confidence=np.empty(0),
            status=WindowStatus.LOST,
        )


def stream(
    out: Path,
    *,
    stop: int | None = NUM_FRAMES,
    num_frames: int = NUM_FRAMES,
    predictor: Predictor | None = None,
    resume: bool = False,
    config: LoopClosingConfig | None = None,
    snapshot_frames: int = 23,
) -> list[Update]:
    """Maps circles with loops closed online; a resumed run goes on with what is there.

    stop: frames after which the run is broken off; None lets the stream end.
    """
    predictor = predictor or GroundTruthPredictor(NOISE)
    make = MapWriter.resume if resume else MapWriter.create
    with make(out, config=StoreConfig(snapshot_frames=snapshot_frames)) as store:
        config = config or LoopClosingConfig()
        search, _ = store.begin_search({"online": asdict(config)})
        store.begin_places(places_identity())
        closer = LoopCloser(out, lambda: GroundTruthPredictor(NOISE), search, config)
        mapper = Mapper(predictor, store, closer=closer)
        try:
            updates = []
            for update in mapper.run(LoopingSource(num_frames)):
                updates.append(update)
                if stop is not None and update.frame == stop - 1:
                    break
            return updates
        finally:
            closer.close()


class Covered(IndexedSource):
    """A video whose lens is covered for some frames."""

    def __init__(self, source: Source, covered: range) -> None:
        self._source, self._covered = source, covered
        assert source.num_frames is not None
        super().__init__("covered", slice(None), source.num_frames)

    def _load(self, index: int) -> Frame:
        frame = self._source.read(index)
        return replace(frame, image=np.zeros_like(frame.image)) if index in self._covered else frame


def content(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    with sqlite3.connect(folder / "map.sqlite") as database:
        return {
            table: database.execute(f"SELECT {columns} FROM {table} ORDER BY {columns}").fetchall()
            for table, columns in CONTENT.items()
        }


def error_m(folder: Path, name: str) -> float:
    with load_map(folder) as scene_map:
        estimate = scene_map.odometry() if name == "odometry" else scene_map.trajectory(name)
        truth = scene_map.true_trajectory()
    assert truth is not None
    aligned = umeyama(estimate.center, truth.center).apply(estimate.center)
    return float(np.sqrt(((aligned - truth.center) ** 2).sum(1).mean()))


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Update]]:
    out = tmp_path_factory.mktemp("looped") / "map"
    return out, stream(out)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Update]]:
    out = tmp_path_factory.mktemp("ended") / "map"
    return out, stream(out, stop=None)


def test_loops_closed_online_correct_poses(looped: tuple[Path, list[Update]]) -> None:
    out, updates = looped
    assert error_m(out, "online") < 0.7 * error_m(out, "odometry")
    corrected = [update.frame for update in updates if update.corrections is not None]
    assert corrected
    assert ROUND // 2 <= corrected[0] <= ROUND + 40  # as something that looks alike comes into view
    config = LoopClosingConfig()
    with load_map(out) as scene_map:
        loops = [loop for loop in scene_map.loops() if loop.accepted]
        assert loops
        for loop in loops:
            waited = min(frame - loop.query for frame in corrected if frame > loop.query)
            assert waited <= config.latency + config.judgement_interval
        held = scene_map.trajectory()
        last = next(update for update in reversed(updates) if update.corrections is not None)
        assert last.corrections is not None
        assert_allclose(last.corrections.apply(scene_map.odometry()).center, held.center)


@pytest.mark.parametrize("run", ["looped", "ended"])
def test_refine_measures_no_event_twice(
    run: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "map"
    shutil.copytree(request.getfixturevalue(run)[0], out)
    with load_map(out) as scene_map:
        online = {(loop.query, loop.match) for loop in scene_map.loops()}
    measured: list[tuple[int, int]] = []
    measure = Reinsertion.measure

    def counted(self: Reinsertion, event: int, query: int, match: int, similarity: float) -> Any:
        measured.append((query, match))
        return measure(self, event, query, match, similarity)

    monkeypatch.setattr(Reinsertion, "measure", counted)
    refine_map(out, predictor=lambda: GroundTruthPredictor(NOISE))
    with load_map(out) as scene_map:
        offline = {(loop.query, loop.match) for loop in scene_map.loops("offline")}
    assert online & offline
    assert set(measured) == offline - online


def test_refine_starts_from_odometry_whatever_was_corrected(
    looped: tuple[Path, list[Update]], tmp_path: Path
) -> None:
    centers = []
    for name in ("corrected", "not"):
        out = tmp_path / name
        shutil.copytree(looped[0], out)
        if name == "not":
            with sqlite3.connect(out / "map.sqlite") as database:
                database.execute("DELETE FROM corrections")
        refine_map(out, RefineSettings(loops=False), predictor=lambda: GroundTruthPredictor(NOISE))
        with load_map(out) as scene_map:
            centers.append(scene_map.trajectory("offline").center)
    assert_array_equal(*centers)


def test_poses_as_first_told_can_be_had(looped: tuple[Path, list[Update]]) -> None:
    out, updates = looped
    with load_map(out) as scene_map:
        told = scene_map.as_first_told()
    poses = {p.frame: p for u in updates for p in (u.pose, *u.late_poses) if p is not None}
    assert_allclose(told.center, np.stack([poses[frame].center for frame in told.frames.tolist()]))


def test_repeated_run_gives_same_bits(looped: tuple[Path, list[Update]], tmp_path: Path) -> None:
    stream(tmp_path / "again")
    assert content(tmp_path / "again") == content(looped[0])


def test_resumed_run_gives_same_bits(looped: tuple[Path, list[Update]], tmp_path: Path) -> None:
    out = tmp_path / "map"
    for stop in (ROUND + 5, ROUND + 48, 2 * ROUND + 21):  # within jobs, between snapshots
        stream(out, stop=stop, resume=True)
    updates = stream(out, resume=True)
    assert content(out) == content(looped[0])
    whole = {update.frame: update.pose for update in looped[1]}
    for update in updates:
        expected = whole[update.frame]
        assert update.pose is not None
        assert expected is not None
        assert_array_equal(update.pose.center, expected.center)


def test_end_of_a_stream_is_as_good_as_refined(
    looped: tuple[Path, list[Update]], ended: tuple[Path, list[Update]], tmp_path: Path
) -> None:
    """The last frame is told twice: all poses have moved once more. What was told before is not touched."""
    out, updates = ended
    assert [update.frame for update in updates] == [*range(NUM_FRAMES), NUM_FRAMES - 1]
    last = updates[-1]
    assert last.pose is not None
    with load_map(out) as scene_map, load_map(looped[0]) as streamed:
        held = scene_map.trajectory()
        assert last.corrections is not None
        assert_allclose(last.corrections.apply(scene_map.odometry()).center, held.center)
        assert_allclose(last.pose.center, held.center[-1])
        assert_array_equal(scene_map.as_first_told().center, streamed.as_first_told().center)
        assert_array_equal(scene_map.odometry().center, streamed.odometry().center)
        queries = {loop.query for loop in scene_map.loops() if loop.accepted}
        assert queries > {loop.query for loop in streamed.loops() if loop.accepted}
        assert max(queries) > NUM_FRAMES - LoopClosingConfig().latency  # which no job could apply
    refined = tmp_path / "map"
    shutil.copytree(looped[0], refined)
    refine_map(refined, predictor=lambda: GroundTruthPredictor(NOISE))
    assert error_m(out, "online") < 1.1 * error_m(refined, "offline")
    assert error_m(out, "online") < error_m(looped[0], "online")


def test_stream_that_goes_on_forgets_its_end(ended: tuple[Path, list[Update]], tmp_path: Path) -> None:
    out = tmp_path / "map"
    stream(out, stop=None, num_frames=2 * ROUND)
    with load_map(out) as scene_map:
        assert scene_map.trajectory().center[-1].tolist() != scene_map.odometry().center[-1].tolist()
    stream(out, stop=None, resume=True)
    assert content(out) == content(ended[0])
    # One that has nothing to add keeps it: nothing is measured again.
    assert stream(out, stop=None, resume=True) == []
    assert content(out) == content(ended[0])


def test_long_stream_ends_on_the_coarse_graph(ended: tuple[Path, list[Update]], tmp_path: Path) -> None:
    config = LoopClosingConfig(max_averaged=NUM_FRAMES - 1, max_events=8)
    last = stream(tmp_path / "map", stop=None, config=config)[-1]
    assert last.corrections is not None
    assert len(last.corrections.frames) <= NUM_FRAMES / 10 + 1
    with load_map(tmp_path / "map") as scene_map:
        assert 4 <= len(scene_map.loops()) <= 8
    assert error_m(tmp_path / "map", "online") < 0.7 * error_m(tmp_path / "map", "odometry")


def test_lost_camera_is_found_again(tmp_path: Path) -> None:
    lost = range(ROUND - 30, ROUND + 10)
    updates = stream(tmp_path / "map", predictor=Blinded(lost))
    assert updates[lost.stop + 1].component == 1
    joined = next(u.frame for u in updates if u.frame > lost.stop + 1 and u.component == 0)
    assert joined - lost.stop <= 80
    with load_map(tmp_path / "map") as scene_map:
        assert scene_map.counts().components == 1
        assert len(np.unique(scene_map.odometry().component)) == 2
        truth, found = scene_map.true_trajectory(), scene_map.trajectory()
    assert truth is not None
    true_center = truth.center[np.searchsorted(truth.frames, found.frames)]
    aligned = umeyama(found.center, true_center).apply(found.center)
    assert np.sqrt(((aligned - true_center) ** 2).sum(1).mean()) < 1.0


def test_lost_camera_is_looked_for_more_often_until_it_is_found(tmp_path: Path) -> None:
    config, lost = LoopClosingConfig(), range(ROUND - 30, ROUND + 10)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    updates = stream(whole, predictor=Blinded(lost))
    joined = next(u.frame for u in updates if u.frame > lost.stop + 1 and u.component == 0)
    with load_map(whole) as scene_map:
        kept = np.array([k for k in range(NUM_FRAMES) if scene_map.place_if_kept(k) is not None])
    before, alone, after = (
        kept[kept < lost.start],
        kept[(kept > lost.stop) & (kept < joined)],
        kept[kept > joined],
    )
    assert set(np.diff(alone)) == {config.interval_alone}
    assert set(np.diff(before)) == set(np.diff(after)) == {config.keyframe_interval}
    # Which tracks are joined is told by the map when a run goes on just after one was.
    stream(parts, stop=joined + 3, snapshot_frames=joined + 2, predictor=Blinded(lost))
    stream(parts, resume=True, predictor=Blinded(lost))
    assert content(parts) == content(whole)


def test_covered_lens_is_forgotten_once_the_place_is_recognised(tmp_path: Path) -> None:
    """Though it is the place of a moment ago: of another component every frame is another visit."""
    covered = range(60, 75)
    settings = MapSettings(predictor="features", loops="online")
    world = "world:202?kind=room&motion=orbit&frames=120&width=160&height=120"
    with (
        open_source(world) as source,
        MappingRun(Covered(source, covered), predictor_of(settings), tmp_path / "map", settings) as run,
    ):
        component = [update.component for update in run]
    assert set(component[covered.start + 5 : covered.stop]) == {None}
    assert 1 in component
    joined = next(k for k in range(covered.stop, 120) if component[k] == 0)
    assert joined <= covered.stop + 30
    assert set(component[joined:]) == {0}
    with load_map(tmp_path / "map") as scene_map:
        assert scene_map.counts().components == 1
        assert min(loop.query - loop.match for loop in scene_map.loops() if loop.accepted) < 50


def test_command_line_closes_loops_and_resumes(tmp_path: Path) -> None:
    world = "world:201?motion=grid&frames=420&width=128&height=96"
    options = ["--predictor", "ground-truth:0.3,0.03", "--loops", "online", "--out"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert cli.main(["map", world, *options, str(whole)]) == 0
    assert cli.main(["map", world, "--stop", "397", *options, str(parts)]) == 0
    assert cli.main(["map", world, "--resume", *options, str(parts)]) == 0
    assert content(parts) == content(whole)
    with load_map(whole) as scene_map:
        accepted = [loop for loop in scene_map.loops() if loop.accepted]
        assert accepted
        assert np.abs(scene_map.trajectory().center - scene_map.odometry().center).max() > 0
    # Loops are part of what the map is made from.
    assert cli.main(["map", world, "--resume", *options[:2], "--loops", "off", "--out", str(whole)]) == 1


def test_places_close_loops_and_resume_to_the_same_bits(tmp_path: Path) -> None:
    """With features, whose camera changes as they go: a job that was at work goes on with the one it had."""
    world = "world:201?motion=grid&frames=400&width=160&height=120"
    settings = MapSettings(predictor="features", loops="online")

    def run(out: Path, *, stop: int | None = None, resume: bool = False) -> None:
        with (
            open_source(world) as source,
            MappingRun(source, predictor_of(settings), out, settings, resume=resume) as mapping,
        ):
            for update in mapping:
                if update.frame == stop:
                    break

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole)
    run(parts, stop=363)
    run(parts, resume=True)
    assert content(parts) == content(whole)
    with load_map(whole) as scene_map, load_map(parts) as again:
        loops = scene_map.search_loops(scene_map.searches()[0])
        assert any(loop.accepted and "covered" in loop.figures for loop in loops)
        # In the end windows measure what features have found.
        assert any(loop.accepted and "similarity" in loop.figures for loop in scene_map.loops())
        assert {loop.query for loop in loops if loop.accepted} <= {loop.query for loop in scene_map.loops()}
        assert len(scene_map.place_frames()) >= 76
        for frame in scene_map.place_frames().tolist():
            assert frame % 5 == 0
            one, other = scene_map.place(frame), again.place(frame)
            assert_array_equal(one.features.descriptor, other.features.descriptor)
            assert_array_equal(one.depth, other.depth)
        truth = scene_map.true_trajectory()
        assert truth is not None
        for loop in loops:
            query, match = np.searchsorted(truth.frames, [loop.query, loop.match])
            assert np.linalg.norm(truth.center[query] - truth.center[match]) < 15
    assert error_m(whole, "online") < error_m(whole, "odometry")
    # refine recognises the same places, by the features that are kept and those of the frames in between.
    assert cli.main(["refine", str(whole)]) == 0
    with load_map(whole) as scene_map:
        assert {loop.query for loop in loops} & {
            loop.query for loop in scene_map.loops("offline") if loop.accepted
        }
        about = scene_map.search_identity(scene_map.searches()[-1])
    assert about["descriptor"] == "places"
    assert error_m(whole, "offline") < error_m(whole, "odometry")


def test_loops_online_need_kept_images() -> None:
    with pytest.raises(Anchor3RError, match="kept images"):
        MapSettings(loops="online", keep_images=False)


@pytest.mark.parametrize(
    ("settings", "live", "closes"),
    [
        (MapSettings(), False, True),
        (MapSettings(), True, False),
        (MapSettings(keep_images=False), False, False),
        (MapSettings(loops="off"), False, False),
        (MapSettings(loops="online"), True, True),
    ],
)
def test_loops_are_closed_by_default_where_the_source_was_recorded(
    tmp_path: Path, settings: MapSettings, live: bool, closes: bool
) -> None:
    predictor = predictor_of(replace(settings, predictor="ground-truth"))
    with open_source("world:3?frames=4&width=64&height=48") as source:
        source.live = live
        with MappingRun(source, predictor, tmp_path / "map", settings) as run:
            run.mapper.step(source.read(0))
        with load_map(tmp_path / "map") as scene_map:
            assert (scene_map.meta["identity"]["loops"] is not None) == closes
        # What was begun one way goes on so, unless told otherwise.
        anew = replace(settings, loops="auto")
        with MappingRun(source, predictor, tmp_path / "map", anew, resume=True) as run:
            assert run.last_stored == 0
        with load_map(tmp_path / "map") as scene_map:
            assert (scene_map.meta["identity"]["loops"] is not None) == closes
