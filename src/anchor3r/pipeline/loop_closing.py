"""Loops closed beside the stream: found, measured and judged on a second thread, applied at fixed frames.

With a keyframe a job starts from the map as it is then, and what it finds is applied so many frames later,
be it waited for. So results depend on frames alone, never on the clock: a run that is repeated, or killed and
resumed, comes to the same bits. Jobs are done one after the other, and each has the time in which two begin,
so that one that takes long borrows from one that does not. The stream's own odometry is left alone. A
correction moves what is told of it, see `pose_graph.correction`, and costs the stream but the few nodes that
are written.

What a job costs does not depend on the length of the map: it describes and looks for at most
`max_new_keyframes` among at most `max_keyframes`, measures few places (`loop_jobs`), and now and then judges
at most `max_events` events on a coarse graph of at most `OnlineLoopConfig.max_nodes` nodes. Beyond these
numbers keyframes and events are thinned out, and nodes lie farther apart, by factors of two. Only the columns
of poses grow, by a row of 15 numbers a frame.

A stream that has ended has time: a last job looks for all keyframes that are remembered, has windows measure
up to `max_events` events, and judges them (`end`). What it finds holds until a frame follows after all.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.pipeline.loop_jobs import (
    JOB,
    Camera,
    Event,
    LoopClosingConfig,
    LoopWorker,
    StreamSoFar,
    Thinned,
)
from anchor3r.pose_graph.correction import OnlineCorrection
from anchor3r.pose_graph.edges import Edges
from anchor3r.predictors.interface import Predictor
from anchor3r.store import AT_END, LoopClosing, Map
from anchor3r.trajectory import FramePose

LONGEST_STEP = 2.2
"""Steps of typical length that a frame takes at most, if it can, while it waits for a job that is late: so
none takes three, though steps are longer in some places than in others."""


@dataclass(frozen=True)
class _Job:
    """One that is at work, or done and not applied yet."""

    seen: StreamSoFar
    due: int
    """Number of the frame, from one on, with which its result is applied."""
    result: Future[LoopClosing]


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
        self.search = search
        """The search of the map that loops belong to."""
        self._camera = camera
        self._rows: list[NDArray[np.float64]] = []
        self._members: dict[int, int] = {}
        self._windows: Thinned[Edges] = Thinned(config.max_windows)
        self._keyframes: list[tuple[int, NDArray[np.float32] | None]] = []
        self._num_frames = self._num_posed = self._num_jobs = 0
        self._started_at = -config.interval  # frames when the last job began
        self._is_free = False
        self._joined: set[int] = set()
        self._jobs: deque[_Job] = deque()
        self._cameras: dict[int, Camera] = {}  # of jobs that a resumed run begins again
        self._typical_step_s = 0.0
        self._worker = LoopWorker(folder, load, search, config, self._rows, self._members)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loop closing")

    def close(self) -> None:
        """Ends the thread; what it is at is not applied."""
        self._worker.is_wanted = False
        self._thread.shutdown(cancel_futures=True)
        self._worker.close()

    def due(self) -> LoopClosing | None:
        """What is to be applied with the next frame: a job's result, if one is due there."""
        if not self._jobs or self._jobs[0].due != self._num_frames + 1:
            return None
        closing = self._jobs.popleft().result.result()
        self._follow(closing.correction)
        return closing

    def _follow(self, correction: OnlineCorrection | None) -> None:
        """Takes over which tracks hang together with others."""
        if correction is not None:
            heads = correction.heads()
            together = [np.sum(heads.component == component) > 1 for component in heads.component]
            self._joined = set(heads.track[together].tolist())

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
        for pose in sorted(poses, key=lambda pose: pose.frame):
            is_alone = pose.component > 0 and pose.component not in self._joined
            every = self.config.interval_alone if is_alone else self.config.keyframe_interval
            if self._num_posed % every == 0:
                self._keyframes.append((pose.frame, descriptor if pose.frame == poses[0].frame else None))
            self._num_posed += 1
        self._num_frames += 1
        if not self._keyframes or self._num_frames - self._started_at < self.config.interval:
            return False
        self._started_at, self._num_jobs = self._num_frames, self._num_jobs + 1
        return True

    def start(self) -> None:
        """Starts a job on the map as it is; everything observed must have been committed."""
        self._begin(self._now())

    def _begin(self, seen: StreamSoFar) -> None:
        result = self._thread.submit(self._worker.run, seen)
        self._jobs.append(_Job(seen, seen.num_frames + self.config.latency, result))

    @property
    def identity_at_end(self) -> dict[str, Any]:
        """Of the search whose loops are those of the whole stream (JSON)."""
        return {"online": asdict(self.config), AT_END: True}

    def end(self, search: int) -> LoopClosing:
        """What all of the stream comes to, after its last frame; everything must have been committed.

        It takes the time that it takes, within the same bounds. search: number of the search that the events
        belong to, which replace those of the stream.
        """
        return self._thread.submit(self._worker.end, self._seen(len(self._keyframes)), search).result()

    def pace(self, step_s: float) -> None:
        """Tells how long the frame took, which waits a little for a job that is likely to be late.

        Many frames that take somewhat longer are better than one that waits for all of the job.
        """
        faster = step_s < self._typical_step_s
        self._typical_step_s = self._typical_step_s * (0.95 if faster else 1.05) or step_s  # nears the median
        if self._jobs and self._jobs[0].due - self._num_frames <= self.config.latency / 2:
            wait([self._jobs[0].result], max(0.0, LONGEST_STEP * self._typical_step_s - step_s))

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """What the map does not keep of the jobs that are at work."""
        cameras = {job.seen.job: job.seen.camera for job in self._jobs}
        return {"cameras": np.frombuffer(json.dumps(cameras).encode(), np.uint8)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Puts back what `snapshot` gave; before `rebuild`."""
        cameras = json.loads(state["cameras"].tobytes()) if state else {}
        self._cameras = {int(job): camera for job, camera in cameras.items()}

    def _now(self) -> StreamSoFar:
        return self._seen(self.config.max_new_keyframes)

    def _seen(self, most: int) -> StreamSoFar:
        """The stream as it is, with so many of the keyframes that wait."""
        new, self._keyframes = self._keyframes[:most], self._keyframes[most:]
        windows = list(self._windows.entries)
        return StreamSoFar(
            self._num_jobs, self._num_frames, len(self._rows), windows, new, self._is_free, self._camera()
        )

    def rebuild(self, scene_map: Map, last_frame: int) -> OnlineCorrection | None:
        """Takes the state after `last_frame` from the map, and starts the job that was at work then.

        Returns the heads of the correction that held.
        """
        loops: dict[int, list[Event]] = {}
        for loop, groups in scene_map.measured_loops(self.search):
            loops.setdefault(int(loop.figures[JOB]), []).append((loop, groups))
        started: list[StreamSoFar] = []
        told = dict(scene_map.corrections_told(last_frame))
        for frame, poses, edges, descriptor in scene_map.stream(last_frame):
            self._follow(told.get(frame))
            if self.observe(poses, edges, descriptor):
                started.append(self._now())
        for seen in started:
            if seen.num_frames + self.config.latency <= self._num_frames:
                self._worker.recall(seen, loops.get(seen.job, []))
            else:
                self._begin(replace(seen, camera=self._cameras.get(seen.job)))
        return told[max(told)] if told else None


def _row(pose: FramePose) -> NDArray[np.float64]:
    return np.concatenate(
        [[pose.frame, pose.component, pose.log_scale], pose.rotation.ravel(), pose.center]
    ).astype(np.float64)
