"""Refining a finished map: loops found, measured and verified, and all poses averaged over the whole graph.

Loop events and their edges stay in the store, so that another verdict on one of them, or another way of
solving, needs neither images nor predictor. Online poses stay as they are; the refined ones lie beside them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import umeyama
from anchor3r.limits import LIMITS
from anchor3r.loops.reinsertion import FrameReader
from anchor3r.pipeline.distances import point_reader
from anchor3r.pipeline.ground_heights import ground_heights
from anchor3r.pipeline.knowledge import PRIORS_CSV, MapKnowledge, gather, write_priors_csv
from anchor3r.pipeline.loop_search import (
    LOOPS_CSV,
    LoopChoices,
    LoopSearch,
    LoopSearchConfig,
    StageClock,
    merge_search,
    with_choices,
    write_loops_csv,
)
from anchor3r.pipeline.settings import Method, Progress, RefineSettings, unwatched
from anchor3r.pipeline.solving import Solution, insist_on_start, solve
from anchor3r.predictors.interface import Predictor
from anchor3r.predictors.loading import load_predictor
from anchor3r.sources import Source
from anchor3r.store import OFFLINE, ONLINE, Loop, LoopState, Map, MapWriter, load_map
from anchor3r.threads import chosen_threads, limited_threads

_NAME_BYTES = LIMITS.name_bytes - 55
"""Of a name of refined poses: tables are called by it, with an ending while they are written."""
_JOIN_SUPPORTERS = 2
"""Events that must measure the same before one of them joins two parts of a merged map."""


def refine_map(
    folder: Path | str,
    settings: RefineSettings | None = None,
    *,
    name: str = OFFLINE,
    config: LoopSearchConfig | None = None,
    predictor: Callable[[], Predictor] | None = None,
    read_frame: FrameReader | None = None,
    choices: LoopChoices | None = None,
    progress: Progress = unwatched,
) -> dict[str, Any]:
    """Refines a map in place and returns a summary (JSON).

    name: what the refined poses are called, beside the online ones and those of other refinements; poses of
    the same name are replaced. `Map.refinement(name)` tells how they were made.
    predictor: loads what measures loops, called only if there is something to measure; by default it loads
    what the settings name, or what the map was made with.
    read_frame: where images come from; by default the map's own copies, or its source if it keeps none.
    """
    settings, choices = settings or RefineSettings(), choices or LoopChoices()
    _insist_on_name(name)
    clock = StageClock()
    with ExitStack() as stack:
        stack.enter_context(limited_threads(chosen_threads(settings.threads)))
        source = None if read_frame else stack.enter_context(_source_if_no_images(Path(folder)))
        writer = stack.enter_context(MapWriter.open(folder))
        scene_map = stack.enter_context(load_map(folder))
        read_frame = read_frame or (scene_map.frame if source is None else source.read)
        if not len(scene_map.trajectory(placed=False)):
            raise Anchor3RError(f"{scene_map.lack_of_poses()} There is nothing to refine.")
        number, searched = merge_search(scene_map), False
        config = config or LoopSearchConfig()
        # Photographs were matched all with all already: a search would find nothing that is not known.
        if settings.loops and (settings.predictor is not None or not scene_map.is_of_photographs):
            search = LoopSearch(scene_map, writer, settings, config, read_frame, progress, clock)
            number, searched = search.ensure(predictor or _loader(scene_map, settings), choices, name)
        with clock.stage("averaging"):
            loops = [] if number is None else with_choices(scene_map, number, choices)
            solution, known = _solution(scene_map, number, loops, settings, read_frame)
            if known is not None and solution.placed is not None:
                known.insist_on_scale(solution.placed)
        with clock.stage("writing"):
            summary = _summary(scene_map, name, solution, settings, known) | {
                "loops_searched": searched,
                "last_frame": writer.last_frame,
            }
            writer.write_refinement(
                name,
                solution.trajectory,
                solution.loops,
                search=number,
                settings=asdict(settings) | {"config": asdict(config)},
                summary=summary,
            )
            if known is not None and solution.placed is not None:
                write_priors_csv(writer.folder / table_of(PRIORS_CSV, name), known.table(solution.placed))
            if number is not None:
                write_loops_csv(writer.folder / table_of(LOOPS_CSV, name), solution.loops)
    return {"map": str(folder), **summary, "seconds": clock.seconds}


def table_of(file: str, name: str) -> str:
    """What a table in a map's folder is called for a refinement."""
    return file if name == OFFLINE else file.replace(".csv", f"-{name}.csv")


def _insist_on_name(name: str) -> None:
    if name == ONLINE or not re.fullmatch(r"[\w.-]+", name) or len(name.encode()) > _NAME_BYTES:
        raise Anchor3RError(
            f"refined poses cannot be called {name[:60]!r}: choose a name of letters, digits, '.', '-' and "
            f"'_', other than {ONLINE}, of at most {_NAME_BYTES} bytes"
        )


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
            return load_predictor(settings.predictor, device=settings.device)
        loaded_as = scene_map.meta.get("loaded_as")
        if loaded_as is None:
            made_with = scene_map.meta.get("identity", {}).get("predictor")
            raise Anchor3RError(
                f"{scene_map.folder} does not say how to load what it was made with ({made_with}); "
                "name one: RefineSettings(predictor=…), on the command line --predictor"
            )
        return load_predictor(**loaded_as, device=settings.device)

    return load


def _solution(
    scene_map: Map,
    search: int | None,
    loops: list[Loop],
    settings: RefineSettings,
    read_frame: FrameReader,
) -> tuple[Solution, MapKnowledge | None]:
    heights = None
    if settings.priors.camera_height is not None:
        windows, _ = scene_map.search_graph(None)
        insist_on_start(windows.edges, scene_map.trajectory())
        heights = ground_heights(scene_map, windows, lambda k: read_frame(k).image)
    graph, event_of_group = scene_map.search_graph(search)
    is_merged, scale = bool(scene_map.parts()), settings.scale
    if is_merged and scale is None:
        scale = "free"  # every map has its own
    known = gather(settings.priors, scene_map.odometry(), graph.frames(), heights, point_reader(scene_map))
    return solve(
        graph,
        scene_map.odometry(),
        loops,
        event_of_group=event_of_group,
        left_out={loop.event for loop in loops if _is_left_out(loop, settings.method)},
        accepted_by_hand={loop.event for loop in loops if loop.state is LoopState.ACCEPTED_BY_HAND},
        method=settings.method,
        scale=scale,
        known=None if known is None else known.known,
        join_supporters=_JOIN_SUPPORTERS if is_merged else 0,
    ), known


def _is_left_out(loop: Loop, method: Method) -> bool:
    """Whether an event is not put to the pose graph; the paper's averaging takes all that the user allows."""
    return loop.state is LoopState.REJECTED_BY_HAND if method == "paper" else loop.state.is_left_out


def _summary(
    scene_map: Map, name: str, solution: Solution, settings: RefineSettings, known: MapKnowledge | None
) -> dict[str, Any]:
    placed = solution.placed
    refined, online = solution.trajectory, scene_map.trajectory(placed=False)
    assert refined.component is not None
    before = online.center.copy()
    if placed is not None:  # in another scale, and elsewhere
        for label in np.unique(refined.component):
            rows = refined.component == label
            before[rows] = umeyama(before[rows], refined.center[rows]).apply(before[rows])
    moved = np.linalg.norm(refined.center - before, axis=1)
    return {
        "poses": name,
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
        "path_length": (online if placed is None else refined).path_length(),
        "scale_range": float(np.exp(np.ptp(refined.log_scale))) if refined.log_scale is not None else 1.0,
        "solver": solution.report.as_dict(),
        **({"units": "units"} if known is None or placed is None else known.summary(placed)),
        "unplaced": [] if known is None else known.unplaced(refined),
    }
