"""What the second thread of a mapping run does about loops, job by job: look, measure, judge, correct.

A job gets what the stream had brought when it started (`StreamSoFar`), and nothing else decides what comes of
it. Keyframes are recognised by their features, whose matches measure too; of a predictor that gives no depths
they are compared by descriptors, and its windows measure. When the stream has ended a last job
(`LoopWorker.end`) looks for the keyframes that others had no time for, and has windows measure all events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Pinhole
from anchor3r.loops.descriptors import GRADIENTS, PlaceDescriptor, load_descriptor
from anchor3r.loops.places import PlaceConfig, PlaceSearch, place_event
from anchor3r.loops.reinsertion import Reinsertion, ReinsertionConfig
from anchor3r.loops.retrieval import Keyframes, RetrievalConfig, other_visits, retrieve
from anchor3r.pipeline.solving import STATE_OF_VERDICT, solve
from anchor3r.places.keyframes import PlaceKeyframe
from anchor3r.places.localiser import Lens, PosedKeyframes
from anchor3r.pose_graph.correction import OnlineCorrection
from anchor3r.pose_graph.edges import Edges, MotionGraph
from anchor3r.pose_graph.online_loops import ClosedLoops, OnlineLoopConfig, close_online, joined
from anchor3r.pose_graph.verification import Verdict
from anchor3r.predictors.interface import Predictor
from anchor3r.store import Loop, LoopClosing, Map, load_map
from anchor3r.store.camera import estimated_camera
from anchor3r.store.localising import describe_frame
from anchor3r.trajectory import Trajectory

JOB = "job"
"""Among a loop's figures: the number of the job that measured it."""
ROW_SIZE = 15
"""Numbers of a pose: frame, component, log scale, rotation, centre."""
Camera = dict[str, Any] | None
Event = tuple[Loop, list[Edges]]
Entry = TypeVar("Entry")
_NO_EVENTS: Mapping[int, Event] = {}


@dataclass(frozen=True, kw_only=True)
class LoopClosingConfig:
    """When loops are looked for beside a stream, and how much of it."""

    interval: int = 3
    """Frames from the start of a job, which needs a new keyframe, to that of the next one at least: fewer
    than from keyframe to keyframe, so that those that come at once are soon caught up with."""
    latency: int = 10
    """Frames from the start of a job to the one with which its result is applied: jobs that take long borrow
    time from those that do not. A place that is seen again corrects the map at most `judgement_interval`
    frames later than this: in 2 s at ten frames a second."""
    keyframe_interval: int = 5
    """Compare one frame out of so many with earlier places;"""
    interval_alone: int = 3
    """and one out of so many in a later track as long as no loop joins it with another: a camera that lost
    its way is looked for as often as jobs start."""
    judgement_interval: int = 10
    """Frames from one judgement of all events to the next at least: on a long map it costs more than all else
    that a job does. What is measured in between waits for it."""
    small_map: int = 500
    """Up to so many frames every job may judge: it costs about as much as the features of a keyframe."""
    max_new_keyframes: int = 2
    """Keyframes that one job describes and looks for at most. A map that starts gives poses to many frames
    at once, whose keyframes wait for the jobs that follow."""
    followed_after: int = 6
    """Events by features in the last `followed_jobs` jobs after which every second job only measures the
    revisit: neighbouring events say almost the same, and cost more than all else that a job does."""
    followed_jobs: int = 20
    """How far back these events are counted."""
    max_measured: int = 2
    """Places that one job measures by windows at most, those that look most alike."""
    max_keyframes: int = 2048
    """Keyframes that are remembered; when there are more, every second one is forgotten."""
    whitened_by: int = 256
    """Keyframes whose statistics descriptors are compared with."""
    max_windows: int = 256
    """Windows that tell the noise of odometry; thinned out like keyframes."""
    max_events: int = 128
    """Events that are judged together; when there are more, every second one is let go."""
    max_averaged: int = 5000
    """Poses up to which, when the stream has ended, all windows are averaged with the events, as `refine`
    does; a longer map is corrected as while it streamed, on the coarse graph."""
    retrieval: RetrievalConfig = RetrievalConfig(top_k=1)
    """What counts as another visit of a place."""
    places: PlaceConfig = PlaceConfig(candidates=2)
    """How places are recognised by features."""
    reinsertion: ReinsertionConfig = ReinsertionConfig()
    """When the measurements of one event by windows agree with each other."""
    graph: OnlineLoopConfig = OnlineLoopConfig()
    """How events are judged and the map is corrected."""

    def __post_init__(self) -> None:
        intervals = self.interval, self.keyframe_interval, self.interval_alone, self.judgement_interval
        counts = min(*intervals, self.latency, self.max_new_keyframes, self.max_measured, self.followed_after)
        limits = (self.max_keyframes, self.whitened_by, self.max_windows, self.max_events)
        if min(counts, self.max_averaged) < 1 or min(limits) < 2:
            raise ValueError(f"intervals and numbers must be at least 1, limits at least 2: {self}")


@dataclass
class Thinned(Generic[Entry]):
    """Every 2^k-th of what was added, so many at most."""

    limit: int
    entries: list[Entry] = field(default_factory=list)
    every: int = 1
    count: int = 0

    def add(self, entry: Entry) -> bool:
        """Whether that thinned out what is there."""
        if self.count % self.every == 0:
            self.entries.append(entry)
        self.count += 1
        if len(self.entries) <= self.limit:
            return False
        self.entries, self.every = self.entries[::2], 2 * self.every
        return True


@dataclass(frozen=True)
class StreamSoFar:
    """What the stream had brought when a job started."""

    job: int
    num_frames: int
    num_poses: int
    windows: list[Edges]
    new_keyframes: list[tuple[int, NDArray[np.float32] | None]]
    """Frames, with their tokens where the predictor gives some."""
    is_free: bool
    camera: Camera


class LoopWorker:
    """What only the second thread touches: keyframes and events of all jobs so far."""

    def __init__(
        self,
        folder: Path,
        load: Callable[[], Predictor],
        search: int,
        config: LoopClosingConfig,
        rows: list[NDArray[np.float64]],
        members: dict[int, int],
    ) -> None:
        self._folder, self._search, self._config = folder, search, config
        self._rows = rows  # only added to, by the other thread
        self._map: Map | None = None
        self._windows = _ByWindows(self._scene_map, load, config, members)
        self._places = _ByPlaces(self._scene_map, config)
        self._events: Thinned[Event] = Thinned(config.max_events)
        self._has_unjudged = False
        self._judges_from = 0  # number of frames at which events may be judged again
        self._successful: deque[int] = deque(maxlen=config.followed_after)  # jobs that found events
        self._sorted: NDArray[np.float64] = np.empty((0, ROW_SIZE))  # the rows of the last job, by frame
        self._num_sorted = 0
        self.is_wanted = True
        """Whether anybody waits for the last job, which takes long."""

    def close(self) -> None:
        if self._map is not None:
            self._map.close()

    def recall(self, seen: StreamSoFar, measured: list[Event]) -> None:
        """Takes over what a job of an earlier run did."""
        self._describe(seen)
        self._take(measured, seen)
        self._is_judged_now(seen)

    def run(self, seen: StreamSoFar) -> LoopClosing:
        """One job."""
        odometry = self._odometry(seen.num_poses)
        described = self._describe(seen)
        measured = [
            (replace(loop, figures={**loop.figures, JOB: float(seen.job)}), groups)
            for loop, groups in self._found(seen, odometry)
        ]
        self._take(measured, seen)
        told = LoopClosing(search=self._search, found=measured, places=described)
        return self._closed(told, seen, odometry) if self._is_judged_now(seen) else told

    def end(self, seen: StreamSoFar, search: int) -> LoopClosing:
        """The last job, of the whole stream: all events anew, of keyframes that had none too, and judged.

        search: number of the search that they belong to.
        """
        odometry = self._odometry(seen.num_poses)
        told = LoopClosing(search=search, places=self._describe(seen))
        measured = self._measured_anew(seen, odometry)
        events = [event for event in measured if not event[0].state.is_left_out]
        left_out = [event for event in measured if event[0].state.is_left_out]
        if not events or not self.is_wanted:
            return replace(told, found=measured)
        if len(odometry) <= self._config.max_averaged:
            judged, correction = self._averaged(events, odometry)
        else:
            closed = self._close(events, seen, odometry)
            judged, correction = _with_verdicts(events, closed.verdicts), closed.correction
        return replace(told, found=[*left_out, *judged], correction=correction)

    def _averaged(
        self, events: list[Event], odometry: Trajectory
    ) -> tuple[list[Event], OnlineCorrection | None]:
        """Events judged and closed as `refine` does, over all windows."""
        windows = self._scene_map().search_graph(None)[0].edges
        loops = [replace(loop, event=k) for k, (loop, _) in enumerate(events)]
        graph = MotionGraph(joined([windows, *(edges for _, groups in events for edges in groups)]))
        event_of = np.repeat(np.arange(len(events)), [len(groups) for _, groups in events])
        first = graph.num_groups - len(event_of)
        solution = solve(
            graph, odometry, loops,
            event_of_group=dict(enumerate(event_of.tolist(), first)),
            method="joint",
            join_supporters=self._config.graph.join_supporters,
            with_covariance=False,
        )  # fmt: skip
        judged = [(loop, groups) for loop, (_, groups) in zip(solution.loops, events, strict=True)]
        if not any(loop.accepted for loop in solution.loops):
            return judged, None
        named = np.flatnonzero(np.isin(odometry.frames, graph.frames()))
        corrected = solution.trajectory.select(named)
        return judged, OnlineCorrection.between(odometry.select(named), corrected)

    def _measured_anew(self, seen: StreamSoFar, odometry: Trajectory) -> list[Event]:
        """Events of all keyframes by windows, or by features where windows say nothing; so many at most."""
        known = {loop.query: (loop, groups) for loop, groups in self._events.entries}
        pairs = []
        if self._places.has_depths:
            others = set(self._places.frames) - set(known)
            more = self._places.events(seen, odometry, others, self._goes_on)
            known |= {loop.query: (loop, groups) for loop, groups in more}
        else:
            pairs = [pair for pair in self._windows.alike(seen, odometry) if pair[0] not in known]
        pairs += [(loop.query, loop.match, loop.figures.get("covered", 1.0)) for loop, _ in known.values()]
        chosen: Thinned[tuple[int, int, float]] = Thinned(self._config.max_events)
        for pair in sorted(pairs):
            chosen.add(pair)
        return self._windows.measured(seen, odometry, chosen.entries, known, self._goes_on)

    def _goes_on(self) -> bool:
        return self.is_wanted

    def _found(self, seen: StreamSoFar, odometry: Trajectory) -> list[Event]:
        """Events of the new keyframes."""
        if not self._places.has_depths:
            return self._windows.events(seen, odometry)
        jobs, config = self._successful, self._config
        is_followed = len(jobs) == config.followed_after and seen.job - jobs[0] <= config.followed_jobs
        if is_followed and jobs[-1] == seen.job - 1:
            return []
        return self._places.events(seen, odometry, [frame for frame, _ in seen.new_keyframes])

    def _take(self, measured: list[Event], seen: StreamSoFar) -> None:
        """Adds events to those that are judged."""
        new = [event for event in measured if not event[0].state.is_left_out]
        if new:
            self._successful.append(seen.job)
        for event in new:
            self._events.add(event)
        self._has_unjudged |= bool(new)

    def _is_judged_now(self, seen: StreamSoFar) -> bool:
        """Whether this job judges: there is something new, and it has been long enough."""
        if not self._has_unjudged or seen.num_frames < self._judges_from:
            return False
        self._has_unjudged = False
        is_small = seen.num_frames <= self._config.small_map
        self._judges_from = seen.num_frames + (0 if is_small else self._config.judgement_interval)
        return True

    def _closed(self, told: LoopClosing, seen: StreamSoFar, odometry: Trajectory) -> LoopClosing:
        """With all events judged and the correction that they ask for."""
        events = self._events.entries
        closed = self._close(events, seen, odometry)
        now = _with_verdicts(events, closed.verdicts)
        judged = [loop for (loop, _), (before, _) in zip(now, events, strict=True) if loop != before]
        events[:] = now
        return replace(told, judged=judged, correction=closed.correction)

    def _close(self, events: list[Event], seen: StreamSoFar, odometry: Trajectory) -> ClosedLoops:
        return close_online(
            odometry, [groups for _, groups in events], seen.windows,
            is_free=seen.is_free, config=self._config.graph,
        )  # fmt: skip

    def _describe(self, seen: StreamSoFar) -> list[PlaceKeyframe]:
        """Takes the new keyframes; their features."""
        described = []
        for frame, tokens in seen.new_keyframes:
            described.append(self._places.add(frame))
            if not self._places.has_depths:
                self._windows.add(frame, tokens)
        return described

    def _scene_map(self) -> Map:
        if self._map is None:
            self._map = load_map(self._folder)
        return self._map

    def _odometry(self, count: int) -> Trajectory:
        """The first so many poses, by frame: those of the last job and the few that came since."""
        if count > self._num_sorted:
            rows = np.concatenate([self._sorted, np.array(self._rows[self._num_sorted : count])])
            self._sorted = rows[np.argsort(rows[:, 0], kind="stable")]
            self._num_sorted = count
        rows = self._sorted
        return Trajectory(
            frames=rows[:, 0].astype(np.int64),
            rotation=rows[:, 3:12].reshape(-1, 3, 3),
            center=rows[:, 12:],
            component=rows[:, 1].astype(np.int64),
            log_scale=rows[:, 2].copy(),
        )


def _with_verdicts(events: list[Event], verdicts: list[Verdict]) -> list[Event]:
    return [
        (replace(loop, state=STATE_OF_VERDICT[verdict]), groups)
        for (loop, groups), verdict in zip(events, verdicts, strict=True)
    ]


class _ByPlaces:
    """Events by the features of keyframes."""

    def __init__(self, scene_map: Callable[[], Map], config: LoopClosingConfig) -> None:
        self._scene_map, self._config = scene_map, config
        self._keyframes: Thinned[int] = Thinned(config.max_keyframes)
        self._search = PlaceSearch(self._place, config.places)
        self.has_depths = False
        """Whether features can measure: the predictor gives depths."""

    def add(self, frame: int) -> PlaceKeyframe:
        """The features of the next keyframe."""
        place = self._place(frame)
        self.has_depths |= bool(np.isfinite(place.depth).any())
        is_kept = self._keyframes.count % self._keyframes.every == 0
        if is_kept:
            self._search.add(place)
        if self._keyframes.add(frame):
            self._search.thin()
        return place

    @property
    def frames(self) -> list[int]:
        """The keyframes that are remembered."""
        return self._keyframes.entries

    def events(
        self,
        seen: StreamSoFar,
        odometry: Trajectory,
        wanted: Collection[int],
        goes_on: Callable[[], bool] = lambda: True,
    ) -> list[Event]:
        """Events of the keyframes that are wanted with the places that they recognise, one each."""
        frames = np.array(self._keyframes.entries, np.int64)
        is_wanted = np.isin(frames, list(wanted))
        if not is_wanted.any():
            return []
        rows = np.searchsorted(odometry.frames, frames)
        posed = self._posed(seen, odometry.select(rows))
        keyframes = Keyframes(
            frames=rows,
            descriptor=np.empty((len(rows), 0), np.float32),
            camera_from_world=posed.camera_from_world,
            component=posed.component,
        )
        found = []
        for queries, allowed in other_visits(keyframes, self._config.retrieval, int(is_wanted.argmax())):
            for query, may_match in zip(queries.tolist(), allowed, strict=True):
                if is_wanted[query] and goes_on():
                    event = self._event(posed, query, may_match, is_free=seen.is_free)
                    found += [] if event is None else [event]
        return found

    def _event(
        self, posed: PosedKeyframes, query: int, allowed: NDArray[np.bool_], *, is_free: bool
    ) -> Event | None:
        place = self._search.place(int(posed.frames[query]))
        for match in self._search.candidates(place, allowed).tolist():
            event = place_event(self._search, posed, query, match, is_free=is_free)
            if event is not None:
                return event
        return None

    def _posed(self, seen: StreamSoFar, odometry: Trajectory) -> PosedKeyframes:
        assert odometry.component is not None
        assert odometry.log_scale is not None
        camera, lens = self._camera(seen, odometry.frames)
        return PosedKeyframes(
            frames=odometry.frames,
            camera_from_world=odometry.camera_from_world,
            scale=np.exp(odometry.log_scale),
            component=odometry.component,
            camera=camera,
            lens=lens,
            read=self._place,
        )

    def _camera(self, seen: StreamSoFar, frames: NDArray[np.int64]) -> tuple[Pinhole, Lens]:
        """What is known of the camera as the job starts."""
        if (found := seen.camera) is not None and "cx" in found:
            size = int(found["width"]), int(found["height"])
            pinhole = Pinhole(found["fx"], found["fy"], found["cx"], found["cy"], *size)
            return pinhole, (float(found["k1"]), float(found["k2"]))
        stated = self._scene_map().intrinsics(int(frames[-1]))
        return stated or estimated_camera(self._scene_map(), frames.tolist()), (0.0, 0.0)

    def _place(self, frame: int) -> PlaceKeyframe:
        """The features of a frame, which the map keeps soon after they are made."""
        scene_map = self._scene_map()
        return scene_map.place_if_kept(frame) or describe_frame(scene_map, frame)


class _ByWindows:
    """Events by what the predictor's windows measure, of keyframes whose descriptors are alike."""

    def __init__(
        self,
        scene_map: Callable[[], Map],
        load: Callable[[], Predictor],
        config: LoopClosingConfig,
        members: dict[int, int],
    ) -> None:
        self._scene_map, self._load, self._config = scene_map, load, config
        self._members = members  # only added to, by the other thread
        self._predictor: Predictor | None = None
        self._descriptor: PlaceDescriptor | None = None
        self._has_tokens = False
        self._keyframes: Thinned[tuple[int, NDArray[np.float32]]] = Thinned(config.max_keyframes)

    def add(self, frame: int, descriptor: NDArray[np.float32] | None) -> None:
        """Takes a keyframe, with the predictor's descriptor; without one it is described by its picture."""
        if (descriptor is not None) != self._has_tokens:
            if self._has_tokens:
                return  # a frame that got its pose by a later window
            self._has_tokens, self._keyframes = True, Thinned(self._config.max_keyframes)
        if descriptor is None:
            self._descriptor = self._descriptor or load_descriptor(GRADIENTS)
            assert self._descriptor is not None
            descriptor = self._descriptor.describe(self._scene_map().frame(frame).image)
        self._keyframes.add((frame, descriptor))

    def events(self, seen: StreamSoFar, odometry: Trajectory) -> list[Event]:
        """Events of the new keyframes with the places that look most alike."""
        new = {frame for frame, _ in seen.new_keyframes}
        num_new = sum(frame in new for frame, _ in self._keyframes.entries[-len(new) :]) if new else 0
        if not num_new:
            return []
        matches = sorted(self._matches(seen, odometry, num_new), key=lambda match: -match[2])
        return self.measured(seen, odometry, matches[: self._config.max_measured])

    def alike(self, seen: StreamSoFar, odometry: Trajectory) -> list[tuple[int, int, float]]:
        """(query, match, similarity) of the places that look most alike, of all keyframes."""
        count = len(self._keyframes.entries)
        return self._matches(seen, odometry, count) if count else []

    def measured(
        self,
        seen: StreamSoFar,
        odometry: Trajectory,
        pairs: list[tuple[int, int, float]],
        known: Mapping[int, Event] = _NO_EVENTS,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> list[Event]:
        """Events of pairs (query, match, similarity).

        known: events by query that were measured before, by features or by windows. The latter stay, and
        the others do where windows say nothing.
        """
        if not pairs:
            return []
        reinsertion, found = self._reinsertion(seen, odometry), []
        for pair in pairs:
            event = known.get(pair[0])
            if goes_on() and (event is None or "similarity" not in event[0].figures):
                measured = reinsertion.measure(-1, *pair)
                event = measured if event is None or not measured[0].state.is_left_out else event
            found += [] if event is None else [event]
        return found

    def _reinsertion(self, seen: StreamSoFar, odometry: Trajectory) -> Reinsertion:
        scene_map = self._scene_map()
        known = [frame for frame, since in list(self._members.items()) if since < seen.num_frames]
        return Reinsertion(
            scene_map, self._ready_predictor(seen), scene_map.frame, self._config.reinsertion,
            online=odometry, members=np.array(known),
        )  # fmt: skip

    def _matches(self, seen: StreamSoFar, odometry: Trajectory, num_new: int) -> list[tuple[int, int, float]]:
        """(query, match, similarity) of the places that look most alike, of the newest keyframes."""
        config, keyframes = self._config, self._keyframes.entries
        frames = np.array([frame for frame, _ in keyframes])
        rows = np.searchsorted(odometry.frames, frames)
        assert odometry.component is not None
        found = retrieve(
            Keyframes(
                frames=rows,
                descriptor=np.stack([descriptor for _, descriptor in keyframes]),
                camera_from_world=odometry.camera_from_world[rows],
                component=odometry.component[rows],
            ),
            replace(config.retrieval, min_gap=max(config.retrieval.min_gap, 2 * self._window(seen))),
            first=len(rows) - num_new,
            sample=config.whitened_by,
        )
        names = odometry.frames
        columns = names[found.query], names[found.match], found.similarity
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def _window(self, seen: StreamSoFar) -> int:
        return self._ready_predictor(seen).window

    def _ready_predictor(self, seen: StreamSoFar) -> Predictor:
        if self._predictor is None:
            self._predictor = self._load()
        if seen.camera is not None:
            self._predictor.hold_camera(seen.camera)
        return self._predictor
