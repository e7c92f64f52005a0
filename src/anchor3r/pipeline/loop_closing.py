"""Loops closed beside the stream: found, measured and judged on a second thread, applied at fixed frames.

Every so many frames a job starts from the map as it is then, and what it finds is applied when the next one
starts, be it waited for. So results depend on frames alone, never on the clock: a run that is repeated, or
killed and resumed, comes to the same bits. The stream's own odometry is left alone. A correction moves what
is told of it, see `pose_graph.correction`, and costs the stream but the few nodes that are written.

What a job costs does not depend on the length of the map: it describes and looks for the newest keyframes
among at most `max_keyframes`, measures at most `max_measured` places, and judges at most `max_events` events
on a coarse graph of at most `OnlineLoopConfig.max_nodes` nodes. Beyond these numbers keyframes and events are
thinned out, and nodes lie farther apart, by factors of two. Only the columns of poses grow, by a row of 15
numbers a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from anchor3r.loops.descriptors import GRADIENTS, PlaceDescriptor, load_descriptor
from anchor3r.loops.reinsertion import Reinsertion, ReinsertionConfig
from anchor3r.loops.retrieval import Keyframes, RetrievalConfig, retrieve
from anchor3r.pose_graph.correction import OnlineCorrection
from anchor3r.pose_graph.edges import Edges
from anchor3r.pose_graph.online_loops import OnlineLoopConfig, close_online
from anchor3r.pose_graph.verification import Verdict
from anchor3r.predictors.interface import Predictor
from anchor3r.store import Loop, LoopClosing, LoopState, Map, load_map
from anchor3r.trajectory import FramePose, Trajectory

_JOB = "job"
"""Among a loop's figures: the number of the job that measured it."""
_STATES = {
    Verdict.SUPPORTED: LoopState.SUPPORTED,
    Verdict.FITS: LoopState.FITS,
    Verdict.SCATTERED: LoopState.SCATTERED,
    Verdict.CONTRADICTED: LoopState.CONTRADICTED,
}
Camera = dict[str, Any] | None
Entry = TypeVar("Entry")


@dataclass(frozen=True, kw_only=True)
class LoopClosingConfig:
    """When loops are looked for beside a stream, and how much of it."""

    interval: int = 10
    """Frames from the start of a job to that of the next one, when what it found is applied: a place that is
    seen again corrects the map at most twice as many frames later."""
    keyframe_interval: int = 5
    """Compare one frame out of so many with earlier places."""
    max_measured: int = 2
    """Places that one job measures at most, those that look most alike."""
    max_keyframes: int = 2048
    """Keyframes that are remembered; when there are more, every second one is forgotten."""
    whitened_by: int = 256
    """Keyframes whose statistics descriptors are compared with."""
    max_windows: int = 256
    """Windows that tell the noise of odometry; thinned out like keyframes."""
    max_events: int = 128
    """Events that are judged together; when there are more, every second one is let go."""
    retrieval: RetrievalConfig = RetrievalConfig(top_k=1)
    """What counts as another visit of a place."""
    reinsertion: ReinsertionConfig = ReinsertionConfig()
    """When the measurements of one event agree with each other."""
    graph: OnlineLoopConfig = OnlineLoopConfig()
    """How events are judged and the map is corrected."""

    def __post_init__(self) -> None:
        counts = (self.interval, self.keyframe_interval, self.max_measured)
        limits = (self.max_keyframes, self.whitened_by, self.max_windows, self.max_events)
        if min(counts) < 1 or min(limits) < 2:
            raise ValueError(f"intervals and numbers must be at least 1, limits at least 2: {self}")


@dataclass
class _Thinned(Generic[Entry]):
    """Every 2^k-th of what was added, so many at most."""

    limit: int
    entries: list[Entry] = field(default_factory=list)
    every: int = 1
    count: int = 0

    def add(self, entry: Entry) -> None:
        if self.count % self.every == 0:
            self.entries.append(entry)
        self.count += 1
        if len(self.entries) > self.limit:
            self.entries, self.every = self.entries[::2], 2 * self.every


@dataclass(frozen=True)
class _Seen:
    """What the stream had brought when a job started."""

    job: int
    num_frames: int
    num_poses: int
    windows: list[Edges]
    new_keyframes: list[tuple[int, NDArray[np.float32] | None]]
    is_free: bool
    camera: Camera


class LoopCloser:
    """Closes the loops of one stream. The stream asks `due` before a frame is kept, and tells it to `observe`
    after."""

    def __init__(
        self,
        folder: Path,
        load: Callable[[], Predictor],
        search: int,
        config: LoopClosingConfig,
        camera: Callable[[], Camera] = lambda: None,
    ) -> None:
        """load: makes a predictor that measures loops, apart from the stream's own; camera: tells what the
        stream's predictor believes of the camera."""
        self.config = config
        self._search, self._camera = search, camera
        self._rows: list[NDArray[np.float64]] = []
        self._members: dict[int, int] = {}
        self._windows: _Thinned[Edges] = _Thinned(config.max_windows)
        self._keyframes: list[tuple[int, NDArray[np.float32] | None]] = []
        self._num_frames = self._num_anchors = 0
        self._is_free = False
        self._pending: Future[LoopClosing] | None = None
        self._worker = _Worker(folder, load, search, config, self._rows, self._members)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loop closing")

    def close(self) -> None:
        """Ends the thread; what it is at is not applied."""
        self._thread.shutdown(cancel_futures=True)
        self._worker.close()

    def due(self) -> LoopClosing | None:
        """What is to be applied with the next frame: the finished job's result, if one is due there."""
        if self._pending is None or (self._num_frames + 1) % self.config.interval:
            return None
        found, self._pending = self._pending.result(), None
        return found

    def observe(
        self, poses: tuple[FramePose, ...], edges: Edges, descriptor: NDArray[np.float32] | None
    ) -> bool:
        """Takes what a frame brought: its own pose first, then late ones. Whether `start` should follow."""
        self._rows += [_row(pose) for pose in poses]
        if poses and len(edges):
            for member in edges.frame_i.tolist():
                self._members.setdefault(member, self._num_frames)
            self._windows.add(edges)
            self._is_free |= bool(np.isfinite(edges.log_scale_ratio).any())
        if poses:
            if self._num_anchors % self.config.keyframe_interval == 0:
                self._keyframes.append((poses[0].frame, descriptor))
            self._num_anchors += 1
        self._num_frames += 1
        return self._num_frames % self.config.interval == 0

    def start(self) -> None:
        """Starts a job on the map as it is; everything observed must have been committed."""
        self._pending = self._thread.submit(self._worker.run, self._now())

    def _now(self) -> _Seen:
        new, self._keyframes = self._keyframes, []
        job = self._num_frames // self.config.interval
        windows = list(self._windows.entries)
        return _Seen(job, self._num_frames, len(self._rows), windows, new, self._is_free, self._camera())

    def rebuild(self, scene_map: Map, last_frame: int) -> OnlineCorrection | None:
        """Takes the state after `last_frame` from the map, and starts the job that was at work then.

        Returns the heads of the correction that held.
        """
        loops: dict[int, list[tuple[Loop, list[Edges]]]] = {}
        for loop, groups in scene_map.measured_loops(self._search):
            loops.setdefault(int(loop.figures[_JOB]), []).append((loop, groups))
        started: list[_Seen] = []
        for poses, edges, descriptor in scene_map.stream(last_frame):
            if self.observe(poses, edges, descriptor):
                started.append(self._now())
        for seen in started:
            if (seen.job + 1) * self.config.interval <= self._num_frames:
                self._worker.recall(seen, loops.get(seen.job, []))
            else:
                self._pending = self._thread.submit(self._worker.run, seen)
        return scene_map.correction_told_at(last_frame)


class _Worker:
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
        self._folder, self._load, self._search, self._config = folder, load, search, config
        self._rows, self._members = rows, members  # only added to, by the other thread
        self._map: Map | None = None
        self._predictor: Predictor | None = None
        self._descriptor: PlaceDescriptor | None = None
        self._keyframes: _Thinned[tuple[int, NDArray[np.float32]]] = _Thinned(config.max_keyframes)
        self._events: _Thinned[tuple[Loop, list[Edges]]] = _Thinned(config.max_events)

    def close(self) -> None:
        if self._map is not None:
            self._map.close()

    def recall(self, seen: _Seen, measured: list[tuple[Loop, list[Edges]]]) -> None:
        """Takes over what a job of an earlier run did."""
        self._describe(seen)
        for event in measured:
            if not event[0].state.is_left_out:
                self._events.add(event)

    def run(self, seen: _Seen) -> LoopClosing:
        """One job."""
        odometry = self._odometry(seen.num_poses)
        measured = self._measure(seen, odometry, self._matches(seen, odometry))
        new = [event for event in measured if not event[0].state.is_left_out]
        for event in new:
            self._events.add(event)
        if not new:
            return LoopClosing(search=self._search, found=measured)
        events = self._events.entries
        closed = close_online(
            odometry, [groups for _, groups in events], seen.windows,
            is_free=seen.is_free, config=self._config.graph,
        )  # fmt: skip
        judged = []
        for k, (loop, groups) in enumerate(events):
            told = replace(loop, state=_STATES[closed.verdicts[k]])
            if told.state is not loop.state:
                judged.append(told)
                events[k] = told, groups
        return LoopClosing(search=self._search, found=measured, judged=judged, correction=closed.correction)

    def _scene_map(self) -> Map:
        if self._map is None:
            self._map = load_map(self._folder)
        return self._map

    def _odometry(self, count: int) -> Trajectory:
        rows = np.array(self._rows[:count]).reshape(count, -1)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        return Trajectory(
            frames=rows[:, 0].astype(np.int64),
            rotation=rows[:, 3:12].reshape(-1, 3, 3),
            center=rows[:, 12:],
            component=rows[:, 1].astype(np.int64),
            log_scale=rows[:, 2].copy(),
        )

    def _describe(self, seen: _Seen) -> int:
        """Takes the new keyframes, whose descriptors the predictor gave or the kept pictures give; their
        number."""
        for frame, descriptor in seen.new_keyframes:
            if descriptor is None:
                self._descriptor = self._descriptor or load_descriptor(GRADIENTS)
                assert self._descriptor is not None
                descriptor = self._descriptor.describe(self._scene_map().frame(frame).image)
            self._keyframes.add((frame, descriptor))
        return len(seen.new_keyframes)

    def _matches(self, seen: _Seen, odometry: Trajectory) -> list[tuple[int, int, float]]:
        """(query, match, similarity) of places that look most alike, of the new keyframes."""
        num_new, config = self._describe(seen), self._config
        keyframes = self._keyframes.entries
        if not num_new or not keyframes:
            return []
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
            first=max(0, len(rows) - num_new),
            sample=config.whitened_by,
        )
        best = np.argsort(-found.similarity, kind="stable")[: config.max_measured]
        names = odometry.frames
        return [
            (int(names[found.query[k]]), int(names[found.match[k]]), float(found.similarity[k])) for k in best
        ]

    def _measure(
        self, seen: _Seen, odometry: Trajectory, matches: list[tuple[int, int, float]]
    ) -> list[tuple[Loop, list[Edges]]]:
        if not matches:
            return []
        predictor, scene_map = self._ready_predictor(seen), self._scene_map()
        known = [frame for frame, since in list(self._members.items()) if since < seen.num_frames]
        reinsertion = Reinsertion(
            scene_map, predictor, scene_map.frame, self._config.reinsertion,
            online=odometry, members=np.array(known),
        )  # fmt: skip
        measured = []
        for query, match, similarity in matches:
            loop, groups = reinsertion.measure(-1, query, match, similarity)
            measured.append((replace(loop, figures={**loop.figures, _JOB: float(seen.job)}), groups))
        return measured

    def _window(self, seen: _Seen) -> int:
        return self._ready_predictor(seen).window

    def _ready_predictor(self, seen: _Seen) -> Predictor:
        if self._predictor is None:
            self._predictor = self._load()
        if seen.camera is not None:
            self._predictor.hold_camera(seen.camera)
        return self._predictor


def _row(pose: FramePose) -> NDArray[np.float64]:
    return np.concatenate(
        [[pose.frame, pose.component, pose.log_scale], pose.rotation.ravel(), pose.center]
    ).astype(np.float64)
