"""Refining a finished map: loops found, measured and verified, and all poses averaged over the whole graph.

Loop events and their edges stay in the store, so that another verdict on one of them, or another way of
solving, needs neither images nor predictor. Online poses stay as they are; the refined ones lie beside them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.loops.descriptors import GRADIENTS, TOKENS, load_descriptor
from anchor3r.loops.reinsertion import FrameReader, Reinsertion, ReinsertionConfig
from anchor3r.loops.retrieval import Keyframes, RetrievalConfig, retrieve
from anchor3r.loops.table import write_loops_csv
from anchor3r.pipeline.settings import RefineSettings
from anchor3r.pipeline.solving import Solution, solve
from anchor3r.predictors.interface import Predictor
from anchor3r.predictors.loading import load_predictor
from anchor3r.sources import Source
from anchor3r.store import OFFLINE, Loop, LoopState, Map, MapWriter, load_map
from anchor3r.threads import chosen_threads, limited_threads
from anchor3r.trajectory import Trajectory

LOOPS_CSV = "loops.csv"
Progress = Callable[[str, int, int], None]
"""Told of a stage, what of it is done and how much there is."""


@dataclass(frozen=True, kw_only=True)
class RefineConfig:
    """Thresholds of a refinement, beyond what a user chooses in `RefineSettings`."""

    retrieval: RetrievalConfig = RetrievalConfig()
    """What counts as another visit of a place."""
    reinsertion: ReinsertionConfig = ReinsertionConfig()
    """When the measurements of one loop event agree with each other."""


@dataclass(frozen=True, kw_only=True)
class LoopChoices:
    """What the user says of loop events, beyond what is found out by itself."""

    accept: tuple[int, ...] = ()
    """Events to believe whatever the graph says."""
    reject: tuple[int, ...] = ()
    """Events to leave out."""
    redo: bool = False
    """Look for loops anew and forget all verdicts, instead of using the events in the map."""

    def __post_init__(self) -> None:
        if both := set(self.accept) & set(self.reject):
            raise Anchor3RError(f"loop events {sorted(both)} are to be accepted and rejected; choose one")
        if self.redo and (self.accept or self.reject):
            raise Anchor3RError("verdicts by hand are about the loops in the map: not together with redo")


def refine_map(
    folder: Path | str,
    settings: RefineSettings | None = None,
    *,
    config: RefineConfig | None = None,
    predictor: Callable[[], Predictor] | None = None,
    read_frame: FrameReader | None = None,
    choices: LoopChoices | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Refines a map in place and returns a summary (JSON).

    predictor: loads what measures loops, called only if there is something to measure; by default it loads
    what the settings name, or what the map was made with.
    read_frame: where images come from; by default the map's own copies, or its source if it keeps none.
    """
    settings, choices = settings or RefineSettings(), choices or LoopChoices()
    clock = _Clock()
    with ExitStack() as stack:
        stack.enter_context(limited_threads(chosen_threads(settings.threads)))
        source = None if read_frame else stack.enter_context(_source_if_no_images(Path(folder)))
        writer = stack.enter_context(MapWriter.open(folder))
        scene_map = stack.enter_context(load_map(folder))
        read_frame = read_frame or (scene_map.frame if source is None else source.read)
        if not len(scene_map.trajectory()):
            raise Anchor3RError(f"{scene_map.lack_of_poses()} There is nothing to refine.")
        searched = False
        if settings.loops:
            search = _LoopSearch(
                scene_map, writer, settings, config or RefineConfig(), read_frame, progress, clock
            )
            searched = search.ensure(predictor or _loader(scene_map, settings), choices)
        with clock.stage("averaging"):
            loops = _with_choices(scene_map, choices) if settings.loops else []
            solution = _solution(scene_map, loops, settings)
        with clock.stage("writing"):
            online = scene_map.trajectory()
            summary = _summary(scene_map, online, solution, settings) | {"loops_searched": searched}
            writer.write_refinement(OFFLINE, solution.trajectory, solution.loops, refinement=summary)
            if settings.loops:
                write_loops_csv(writer.folder / LOOPS_CSV, solution.loops)
    return summary | {"seconds": clock.seconds}


@contextmanager
def _source_if_no_images(folder: Path) -> Iterator[Source | None]:
    """The source of a map that keeps no images, if it is still there; None where the map's copies do."""
    with ExitStack() as stack:
        # Closed before anybody writes: who leaves last tidies up the database, which a reader cannot.
        with load_map(folder) as scene_map:
            source = None if scene_map.keeps_images() else stack.enter_context(scene_map.original_source())
        yield source


def _loader(scene_map: Map, settings: RefineSettings) -> Callable[[], Predictor]:
    """Loads the predictor that the settings name, or the one that the map was made with."""

    def load() -> Predictor:
        if settings.predictor is not None:
            return load_predictor(settings.predictor)
        loaded_as = scene_map.meta.get("loaded_as")
        if loaded_as is None:
            made_with = scene_map.meta.get("identity", {}).get("predictor")
            raise Anchor3RError(
                f"{scene_map.folder} does not say how to load what it was made with ({made_with}); "
                "name one: RefineSettings(predictor=…), on the command line --predictor"
            )
        return load_predictor(**loaded_as)

    return load


class _Clock:
    """Wall seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 3)


class _LoopSearch:
    """Retrieval and reinsertion over one map; what is measured goes to the store event by event."""

    def __init__(
        self,
        scene_map: Map,
        writer: MapWriter,
        settings: RefineSettings,
        config: RefineConfig,
        read_frame: FrameReader,
        progress: Progress,
        clock: _Clock,
    ) -> None:
        self._map, self._writer, self._interval = scene_map, writer, settings.keyframe_interval
        self._retrieval = replace(config.retrieval, top_k=settings.top_k)
        self._reinsertion, self._threads = config.reinsertion, settings.threads
        self._read_frame, self._progress, self._clock = read_frame, progress, clock
        self._online = scene_map.trajectory()
        has_tokens = len(scene_map.descriptors()[0]) > 0
        self._descriptor = settings.descriptor or (TOKENS if has_tokens else GRADIENTS)

    def ensure(self, predictor: Callable[[], Predictor], choices: LoopChoices) -> bool:
        """Measures loops unless those in the map are of this very search; True if it did."""
        known = self._map.meta.get("loop_search", {})
        if choices.accept or choices.reject:
            if not known.get("complete"):
                raise Anchor3RError(f"{self._map.folder} has no loops to judge; refine it once without that")
            return False
        wanted = self._identity()
        is_same = known.get("identity") == wanted and not choices.redo
        if is_same and known["complete"]:
            return False
        if not is_same:
            self._writer.write_loops([])
            self._writer.write_meta(loop_search={"identity": wanted, "complete": False})
        self._measure(predictor)
        self._writer.write_meta(loop_search={"identity": wanted, "complete": True})
        return True

    def _identity(self) -> dict[str, Any]:
        return {
            "last_frame": self._writer.last_frame,
            "descriptor": self._descriptor,
            "keyframe_interval": self._interval,
            "retrieval": asdict(self._retrieval),
            "reinsertion": asdict(self._reinsertion),
        }

    def _measure(self, load: Callable[[], Predictor]) -> None:
        """Measures every match that has no event in the store yet, as after an interruption."""
        with self._clock.stage("loading"):
            predictor = load()
        # A frame of the match's window must not be one of the query's.
        min_gap = max(self._retrieval.min_gap, 2 * predictor.window)
        with self._clock.stage("retrieval"):
            matches = retrieve(self._keyframes(), replace(self._retrieval, min_gap=min_gap))
        done = {loop.event for loop in self._map.loops()}
        reinsertion = Reinsertion(self._map, predictor, self._read_frame, self._reinsertion)
        frames = self._online.frames
        threads = chosen_threads(self._threads, gains=predictor.gains_from_threads)
        with self._clock.stage("loops"), limited_threads(threads):
            for event in range(len(matches)):
                self._progress("loops", event, len(matches))
                if event in done:
                    continue
                query, match = int(frames[matches.query[event]]), int(frames[matches.match[event]])
                found = reinsertion.measure(event, query, match, float(matches.similarity[event]))
                self._writer.add_loop(*found)
            self._progress("loops", len(matches), len(matches))

    def _keyframes(self) -> Keyframes:
        """Every so many frames that have a pose; named by their rows, as indices may have gaps or strides."""
        online, descriptor = self._online, load_descriptor(self._descriptor)
        rows = np.arange(0, len(online), self._interval)
        if descriptor is None:
            described, values = self._map.descriptors()
            rows = np.flatnonzero(np.isin(online.frames, described))[:: self._interval]
            if not len(rows):
                raise Anchor3RError(
                    f"{self._map.folder} holds no descriptors: its predictor makes none; "
                    f"choose the descriptor {GRADIENTS}"
                )
            values = values[np.searchsorted(described, online.frames[rows])]
        else:
            vectors = []
            for k, row in enumerate(rows):
                self._progress("describing", k, len(rows))
                vectors.append(descriptor.describe(self._read_frame(int(online.frames[row])).image))
            values = np.stack(vectors)
        assert online.component is not None
        return Keyframes(
            frames=rows,
            descriptor=values,
            camera_from_world=online.camera_from_world[rows],
            component=online.component[rows],
        )


def _with_choices(scene_map: Map, choices: LoopChoices) -> list[Loop]:
    """The events with what the user says of them; earlier verdicts by hand stay until there are new ones."""
    loops, folder = scene_map.loops(), scene_map.folder
    known = {loop.event for loop in loops}
    if unknown := sorted({*choices.accept, *choices.reject} - known):
        raise Anchor3RError(
            f"{folder} has no loop event {', '.join(map(str, unknown))}; {folder / LOOPS_CSV} lists "
            f"those there are ({len(known)})"
        )
    if empty := sorted(set(choices.accept) - set(scene_map.loop_groups().values())):
        raise Anchor3RError(f"loop events {empty} of {folder} cannot be accepted: nothing was measured there")
    by_hand = dict.fromkeys(choices.accept, LoopState.ACCEPTED_BY_HAND)
    by_hand |= dict.fromkeys(choices.reject, LoopState.REJECTED_BY_HAND)
    return [replace(loop, state=by_hand.get(loop.event, loop.state)) for loop in loops]


def _solution(scene_map: Map, loops: list[Loop], settings: RefineSettings) -> Solution:
    graph, online = scene_map.graph(rejected_loops=True), scene_map.trajectory()
    return solve(
        graph,
        online,
        loops,
        event_of_group=scene_map.loop_groups(),
        left_out={loop.event for loop in loops if loop.state.is_left_out},
        vouched={loop.event for loop in loops if loop.state is LoopState.ACCEPTED_BY_HAND},
        method=settings.method,
        scale=settings.scale,
    )


def _summary(
    scene_map: Map, online: Trajectory, solution: Solution, settings: RefineSettings
) -> dict[str, Any]:
    refined = solution.trajectory
    assert refined.component is not None
    moved = np.linalg.norm(refined.center - online.center, axis=1)
    return {
        "map": str(scene_map.folder),
        "poses": OFFLINE,
        "ground_truth_predictor": bool(scene_map.meta.get("ground_truth_predictor")),
        "frames": len(refined),
        "components": len(np.unique(refined.component)),
        "method": settings.method,
        "scale": solution.scale,
        "loop_events": len(solution.loops),
        "accepted": sum(loop.accepted for loop in solution.loops),
        "reasons": dict(Counter(loop.reason for loop in solution.loops)),
        "moved_median": float(np.median(moved)),
        "moved_max": float(moved.max()),
        "path_length": online.path_length(),
        "unit_range": float(np.exp(np.ptp(refined.log_scale))) if refined.log_scale is not None else 1.0,
        "solver": solution.report.as_dict(),
    }
