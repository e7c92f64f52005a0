"""Looking for the loop events of a map, for `refine`: places are found again and measured.

What is measured goes to the store event by event, so that an interrupted search goes on; whether events are
believed is decided afterwards by the pose graph, or by hand.
"""

from __future__ import annotations

import csv
import io
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.io.files import replacing
from anchor3r.loops.descriptors import GRADIENTS, PLACES, load_descriptor
from anchor3r.loops.places import PlaceConfig
from anchor3r.loops.reinsertion import FrameReader, Reinsertion, ReinsertionConfig
from anchor3r.loops.retrieval import Keyframes, RetrievalConfig, retrieve
from anchor3r.pipeline.known_places import best_descriptor, keep_features, known_places
from anchor3r.pipeline.settings import Progress, RefineSettings
from anchor3r.pose_graph.edges import Edges
from anchor3r.predictors.interface import Predictor
from anchor3r.store import Loop, LoopState, Map, MapWriter
from anchor3r.threads import chosen_threads, limited_threads

LOOPS_CSV = "loops.csv"
_COLUMNS = ("event", "query", "match", "accepted", "reason")
MERGE = "merge"
"""In the identity of a search: it holds what parts of a merged map have in common, and their own loops."""


@dataclass(frozen=True, kw_only=True)
class LoopSearchConfig:
    """Thresholds of a search for loops, beyond what a user chooses in `RefineSettings`."""

    retrieval: RetrievalConfig = RetrievalConfig()
    """What counts as another visit of a place."""
    reinsertion: ReinsertionConfig = ReinsertionConfig()
    """When the measurements of one loop event agree with each other."""
    places: PlaceConfig = PlaceConfig()
    """How places are recognised by features, where they are."""


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


class StageClock:
    """Wall seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 3)


class LoopSearch:
    """Retrieval and reinsertion over one map; what is measured goes to the store event by event."""

    def __init__(
        self,
        scene_map: Map,
        writer: MapWriter,
        settings: RefineSettings,
        config: LoopSearchConfig,
        read_frame: FrameReader,
        progress: Progress,
        clock: StageClock,
    ) -> None:
        self._map, self._writer, self._interval = scene_map, writer, settings.keyframe_interval
        self._predictor = settings.predictor
        self._retrieval = replace(config.retrieval, top_k=settings.top_k)
        self._places = config.places
        self._reinsertion, self._threads = config.reinsertion, settings.threads
        self._read_frame, self._progress, self._clock = read_frame, progress, clock
        self._online = scene_map.odometry()
        self._descriptor = settings.descriptor or best_descriptor(scene_map)

    def ensure(self, predictor: Callable[[], Predictor], choices: LoopChoices, name: str) -> tuple[int, bool]:
        """Measures loops unless the map has those of this very search; its number, and whether it did.

        Verdicts by hand are about the loops of the refinement of that name.
        """
        if choices.accept or choices.reject:
            earlier = [r.search for r in self._map.refinements() if r.name == name and r.search is not None]
            if not earlier:
                raise Anchor3RError(
                    f"{self._map.folder} has no loops of '{name}' to judge; refine it once without that"
                )
            return earlier[0], False
        search, complete = self._writer.begin_search(self._identity(), anew=choices.redo)
        if not complete:
            self._measure(predictor, search)
            self._writer.finish_search(search)
        return search, not complete

    def _identity(self) -> dict[str, Any]:
        return {
            "last_frame": self._writer.last_frame,
            "predictor": self._predictor,
            "descriptor": self._descriptor,
            "keyframe_interval": self._interval,
            "retrieval": asdict(self._retrieval),
            "reinsertion": asdict(self._reinsertion),
            **({"places": asdict(self._places)} if self._descriptor == PLACES else {}),
        }

    def _measure(self, load: Callable[[], Predictor], search: int) -> None:
        """Measures every match that has no event in the store yet, as after an interruption."""
        with self._clock.stage("loading"):
            predictor = load()
            if (camera := self._map.meta.get("camera")) is not None:
                predictor.hold_camera(camera)
        recognised = self._recognised()
        if self._descriptor == PLACES:
            pairs = [(*pair, event[0].figures["covered"]) for pair, event in recognised.items()]
        else:
            pairs = self._alike(predictor)
        self._take_over_merged(search)
        done = {(loop.query, loop.match) for loop in self._map.search_loops(search)}
        known, pairs = self._measured_online(), [pair for pair in pairs if pair[:2] not in done]
        reinsertion = Reinsertion(self._map, predictor, self._read_frame, self._reinsertion)

        def look(query: int, match: int, similarity: float) -> tuple[Loop, list[Edges]]:
            if (query, match) in known:
                loop, groups = known[query, match]
                return replace(loop, figures={**loop.figures, "similarity": similarity}), groups
            loop, groups = reinsertion.measure(-1, query, match, similarity)
            # Of another viewpoint windows may say nothing, where the matches of features do.
            return (
                recognised.get((query, match), (loop, groups)) if loop.state.is_left_out else (loop, groups)
            )

        with self._clock.stage("loops"), closing(self._in_order(look, pairs, predictor)) as events:
            self._progress("loops", 0, len(pairs))
            for k, (loop, groups) in enumerate(events):
                self._writer.add_loop(replace(loop, event=self._writer.next_event()), groups, search)
                self._progress("loops", k + 1, len(pairs))

    def _in_order(
        self,
        look: Callable[[int, int, float], tuple[Loop, list[Edges]]],
        pairs: list[tuple[int, int, float]],
        predictor: Predictor,
    ) -> Generator[tuple[Loop, list[Edges]], None, None]:
        """The events of all pairs; on several threads, each with one event, if the predictor can do that."""
        if not predictor.relates_concurrently:
            with limited_threads(chosen_threads(self._threads, gains=predictor.gains_from_threads)):
                yield from (look(*pair) for pair in pairs)
            return
        num_threads, queue = chosen_threads(self._threads, gains=True), iter(pairs)
        with limited_threads(1), ThreadPoolExecutor(num_threads) as pool:
            pending = deque(pool.submit(look, *pair) for pair in islice(queue, num_threads + 1))
            try:
                while pending:
                    event = pending.popleft().result()
                    pending.extend(pool.submit(look, *pair) for pair in islice(queue, 1))
                    yield event
            finally:
                for future in pending:
                    future.cancel()

    def _recognised(self) -> dict[tuple[int, int], tuple[Loop, list[Edges]]]:
        """By query and match the events of keyframes that recognise a place by their features."""
        if self._descriptor != PLACES:
            return {}
        with self._clock.stage("describing"):
            keep_features(self._map, self._writer, self._read_frame, self._progress)
        with self._clock.stage("retrieval"):
            events = known_places(self._map, self._retrieval, self._places, self._interval, self._progress)
            return {(loop.query, loop.match): (loop, groups) for loop, groups in events}

    def _alike(self, predictor: Predictor) -> list[tuple[int, int, float]]:
        """(query, match, similarity) of keyframes whose descriptors are alike."""
        # A frame of the match's window must not be one of the query's.
        min_gap = max(self._retrieval.min_gap, 2 * predictor.window)
        with self._clock.stage("retrieval"):
            found = retrieve(self._keyframes(), replace(self._retrieval, min_gap=min_gap))
        names = self._online.frames
        return [
            (int(names[query]), int(names[match]), float(similarity))
            for query, match, similarity in zip(found.query, found.match, found.similarity, strict=True)
        ]

    def _take_over_merged(self, search: int) -> None:
        """Gives the search the events that join the parts of a merged map, unless it has them already."""
        merged = merge_search(self._map)
        if merged is None or self._map.search_loops(search):
            return
        events = self._map.measured_loops(merged)
        first = self._writer.next_event()
        self._writer.write_loops(
            ((replace(loop, event=first + k), groups) for k, (loop, groups) in enumerate(events)), search
        )

    def _measured_online(self) -> dict[tuple[int, int], tuple[Loop, list[Edges]]]:
        """Events by query and match that were measured in the same way as the map was made."""
        measured: dict[tuple[int, int], tuple[Loop, list[Edges]]] = {}
        for number in self._map.searches() if self._predictor is None else ():
            about = self._map.search_identity(number).get("online")
            if about is None or about["reinsertion"] != asdict(self._reinsertion):
                continue
            for loop, groups in self._map.measured_loops(number):
                if "similarity" not in loop.figures:
                    continue  # measured by features, as windows may do better
                if not loop.state.is_left_out:  # what the graph said is said anew
                    loop = replace(loop, state=LoopState.PENDING)
                measured[loop.query, loop.match] = loop, groups
        return measured

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


def merge_search(scene_map: Map) -> int | None:
    """Number of the search whose events join the parts of a merged map; None if it is none."""
    return next((n for n in scene_map.searches() if MERGE in scene_map.search_identity(n)), None)


def with_choices(scene_map: Map, search: int, choices: LoopChoices) -> list[Loop]:
    """The events with what the user says of them; earlier verdicts by hand stay until there are new ones."""
    loops, folder = scene_map.search_loops(search), scene_map.folder
    known = {loop.event for loop in loops}
    if unknown := sorted({*choices.accept, *choices.reject} - known):
        raise Anchor3RError(
            f"{folder} has no loop event {', '.join(map(str, unknown))}; {folder / LOOPS_CSV} lists "
            f"those there are ({len(known)})"
        )
    if empty := sorted(set(choices.accept) - set(scene_map.search_graph(search)[1].values())):
        raise Anchor3RError(f"loop events {empty} of {folder} cannot be accepted: nothing was measured there")
    by_hand = dict.fromkeys(choices.accept, LoopState.ACCEPTED_BY_HAND)
    by_hand |= dict.fromkeys(choices.reject, LoopState.REJECTED_BY_HAND)
    return [replace(loop, state=by_hand.get(loop.event, loop.state)) for loop in loops]


def write_loops_csv(path: Path, loops: Sequence[Loop]) -> None:
    """One line an event; a figure that an event does not have stays empty."""
    figures = list(dict.fromkeys(name for loop in loops for name in loop.figures))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*_COLUMNS, *figures])
    for loop in loops:
        values = [loop.event, loop.query, loop.match, "yes" if loop.accepted else "no", loop.reason]
        found = [f"{loop.figures[name]:.6g}" if name in loop.figures else "" for name in figures]
        table.writerow([*values, *found])
    with replacing(path) as file:
        file.write(text.getvalue().encode())
