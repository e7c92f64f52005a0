"""Refining a finished map: loops found, measured and verified, and all poses averaged over the whole graph.

Loop events and their edges stay in the store, so that another verdict on one of them, or another way of
solving, needs neither images nor predictor. Online poses stay as they are; the refined ones lie beside them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.loops.descriptors import GRADIENTS, TOKENS, load_descriptor
from anchor3r.loops.reinsertion import FrameReader, LoopReason, Reinsertion, ReinsertionConfig
from anchor3r.loops.retrieval import Keyframes, RetrievalConfig, retrieve
from anchor3r.loops.table import write_loops_csv
from anchor3r.pipeline.solving import Solution, solve
from anchor3r.predictors.interface import Predictor
from anchor3r.store import OFFLINE, Loop, Map, MapWriter, load_map
from anchor3r.trajectory import Trajectory

LOOPS_CSV = "loops.csv"
Progress = Callable[[str, int, int], None]
"""Told of a stage, what of it is done and how much there is."""
ACCEPTED_BY_HAND, REJECTED_BY_HAND = "accepted by hand", "rejected by hand"
_UNSOUND = (LoopReason.UNRELATED, LoopReason.SCATTERED, LoopReason.ONE_WAY)


@dataclass(frozen=True, kw_only=True)
class RefinementConfig:
    """How a finished map is refined."""

    loops: bool = True
    """Whether loops are closed; without them only windows are averaged."""
    method: Literal["joint", "paper"] = "joint"
    """All poses in one robust problem, or rotations first and positions second as in the paper."""
    scale: Literal["fixed", "free"] | None = None
    """One unit for all windows, or one each; None is free where the predictor measured ratios of units."""
    keyframe_interval: int = 5
    """Frames between keyframes."""
    descriptor: str | None = None
    """tokens, gradients or netvlad:PATH; None is tokens where the map has them, else gradients."""
    retrieval: RetrievalConfig = RetrievalConfig()
    """What counts as another visit of a place."""
    reinsertion: ReinsertionConfig = ReinsertionConfig()
    """When an event agrees with itself."""

    def __post_init__(self) -> None:
        if self.keyframe_interval < 1:
            raise ValueError(f"keyframe_interval must be at least 1: {self}")


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
    config: RefinementConfig | None = None,
    *,
    predictor: Callable[[], Predictor],
    read_frame: FrameReader | None = None,
    choices: LoopChoices | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Refines a map in place and returns a summary (JSON).

    predictor: loads what measures loops, called only if there is something to measure.
    read_frame: where images come from; the map's own copies if not given.
    """
    config, choices = config or RefinementConfig(), choices or LoopChoices()
    clock = _Clock()
    with MapWriter.open(folder) as writer, load_map(folder) as source:
        if not len(source.trajectory()):
            raise Anchor3RError(f"{source.lack_of_poses()} There is nothing to refine.")
        searched = False
        if config.loops:
            search = _LoopSearch(source, writer, config, read_frame or source.frame, progress, clock)
            searched = search.ensure(predictor, choices)
        with clock.stage("averaging"):
            loops = _with_choices(source, choices) if config.loops else []
            solution = _solve(source, loops, config)
        with clock.stage("writing"):
            online = source.trajectory()
            summary = _summary(source, online, solution, config) | {"loops_searched": searched}
            writer.write_refinement(OFFLINE, solution.trajectory, solution.loops, refinement=summary)
            if config.loops:
                write_loops_csv(writer.folder / LOOPS_CSV, solution.loops)
    return summary | {"seconds": clock.seconds}


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
        source: Map,
        writer: MapWriter,
        config: RefinementConfig,
        read_frame: FrameReader,
        progress: Progress,
        clock: _Clock,
    ) -> None:
        self._map, self._writer, self._config = source, writer, config
        self._read_frame, self._progress, self._clock = read_frame, progress, clock
        self._online = source.trajectory()
        has_tokens = len(source.descriptors()[0]) > 0
        self._descriptor = config.descriptor or (TOKENS if has_tokens else GRADIENTS)

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
        config = self._config
        return {
            "last_frame": self._writer.last_frame,
            "descriptor": self._descriptor,
            "keyframe_interval": config.keyframe_interval,
            "retrieval": asdict(config.retrieval),
            "reinsertion": asdict(config.reinsertion),
        }

    def _measure(self, load: Callable[[], Predictor]) -> None:
        """Measures every match that has no event in the store yet, as after an interruption."""
        with self._clock.stage("loading"):
            predictor = load()
        retrieval = self._config.retrieval
        # A frame of the match's window must not be one of the query's.
        retrieval = replace(retrieval, min_gap=max(retrieval.min_gap, 2 * predictor.window))
        with self._clock.stage("retrieval"):
            matches = retrieve(self._keyframes(), retrieval)
        done = {loop.event for loop in self._map.loops()}
        reinsertion = Reinsertion(self._map, predictor, self._read_frame, self._config.reinsertion)
        frames = self._online.frames
        with self._clock.stage("network"):
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
        rows = np.arange(0, len(online), self._config.keyframe_interval)
        if descriptor is None:
            described, values = self._map.descriptors()
            rows = np.flatnonzero(np.isin(online.frames, described))[:: self._config.keyframe_interval]
            if not len(rows):
                raise Anchor3RError(
                    f"{self._map.folder} holds no descriptors: its predictor makes none; "
                    f"use --descriptor {GRADIENTS}"
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


def _with_choices(source: Map, choices: LoopChoices) -> list[Loop]:
    """The events with what the user says of them; earlier verdicts by hand stay until there are new ones."""
    loops, folder = source.loops(), source.folder
    known = {loop.event for loop in loops}
    if unknown := sorted({*choices.accept, *choices.reject} - known):
        raise Anchor3RError(
            f"{folder} has no loop event {', '.join(map(str, unknown))}; {folder / LOOPS_CSV} lists "
            f"those there are ({len(known)})"
        )
    if empty := sorted(set(choices.accept) - set(source.loop_groups().values())):
        raise Anchor3RError(f"loop events {empty} of {folder} cannot be accepted: nothing was measured there")
    by_hand = dict.fromkeys(choices.accept, True) | dict.fromkeys(choices.reject, False)
    return [
        loop
        if loop.event not in by_hand
        else replace(
            loop,
            accepted=by_hand[loop.event],
            reason=ACCEPTED_BY_HAND if by_hand[loop.event] else REJECTED_BY_HAND,
        )
        for loop in loops
    ]


def _solve(source: Map, loops: list[Loop], config: RefinementConfig) -> Solution:
    graph, online = source.graph(rejected_loops=True), source.trajectory()
    left_out = {loop.event for loop in loops if loop.reason in (*_UNSOUND, REJECTED_BY_HAND)}
    return solve(
        graph,
        online,
        loops,
        event_of_group=source.loop_groups(),
        left_out=left_out,
        vouched={loop.event for loop in loops if loop.reason == ACCEPTED_BY_HAND},
        method=config.method,
        scale=config.scale,
    )


def _summary(source: Map, online: Trajectory, solution: Solution, config: RefinementConfig) -> dict[str, Any]:
    refined = solution.trajectory
    assert refined.component is not None
    moved = np.linalg.norm(refined.center - online.center, axis=1)
    return {
        "map": str(source.folder),
        "poses": OFFLINE,
        "ground_truth_predictor": bool(source.meta.get("ground_truth_predictor")),
        "frames": len(refined),
        "components": len(np.unique(refined.component)),
        "method": config.method,
        "scale": solution.scale,
        "loop_events": len(solution.loops),
        "accepted": sum(loop.accepted for loop in solution.loops),
        "reasons": dict(Counter(str(loop.reason) for loop in solution.loops)),
        "moved_median": float(np.median(moved)),
        "moved_max": float(moved.max()),
        "path_length": _path_length(online),
        "unit_range": float(np.exp(np.ptp(refined.log_scale))) if refined.log_scale is not None else 1.0,
        "solver": solution.report.as_dict(),
    }


def _path_length(trajectory: Trajectory) -> float:
    assert trajectory.component is not None
    step = np.linalg.norm(np.diff(trajectory.center, axis=0), axis=1)
    return float(step[np.diff(trajectory.component) == 0].sum())
