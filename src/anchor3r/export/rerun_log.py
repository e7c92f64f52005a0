"""A map for Rerun's viewer: after mapping as an .rrd file, or while it grows.

Entities are `world/camera` (pose, frustum, image), `world/path`, `world/frustums`, `world/points` and
`world/loops`. Each frame logs only what is new; the blueprint shows everything up to the current time.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.export.cameras import frustum_depth, frustum_lines
from anchor3r.export.log_frames import LoggedFrame, LoggedLoop, logged_frame, logged_frames
from anchor3r.export.selection import Selection
from anchor3r.io.extras import optional_library
from anchor3r.io.files import check_output, open_exclusively, replacing
from anchor3r.pipeline.settings import RefineSettings
from anchor3r.store import LIKELY, Map, load_map
from anchor3r.trajectory import FramePose, Trajectory

SPAWN = "spawn"
"""In place of an address: start Rerun's viewer on this machine."""
_TIMELINE, _FRAMES = "stream", "frame"
_SINCE_1970_S = 1e8
"""A clock beyond it counts from 1970; others count from the beginning of the stream."""
_PATH_RGB, _FRUSTUM_RGB = (255, 140, 0), (90, 140, 255)
_ACCEPTED_RGB, _REJECTED_RGB = (0, 200, 80), (200, 0, 0)
_STEP_BYTES = 1 << 20
_VIEWER_TIMEOUT_S = 10.0
"""How long a viewer may take for what it was sent."""
_LIVE_POINTS_A_FRAME = 2000
"""Of a map that grows: how many frames will share the budget is not known."""


class RerunLog:
    """Writes frames into a stream of Rerun's."""

    def __init__(self, rerun: Any, stream: Any, *, frustum_depth: float) -> None:
        self._rerun, self._stream, self._depth = rerun, stream, frustum_depth
        self._before: dict[int, NDArray[np.float64]] = {}
        stream.set_log_time_enabled(False)  # when it was written says nothing about the stream
        stream.log("world", rerun.ViewCoordinates.RDF, static=True)
        stream.send_blueprint(_blueprint(rerun))

    def add(self, frame: LoggedFrame) -> None:
        """Logs one frame at its time."""
        rerun, stream, pose = self._rerun, self._stream, frame.pose
        clock = {"timestamp": frame.time_s} if frame.time_s > _SINCE_1970_S else {"duration": frame.time_s}
        stream.set_time(_TIMELINE, **clock)
        stream.set_time(_FRAMES, sequence=pose.frame)
        stream.log("world/camera", rerun.Transform3D(translation=pose.center, mat3x3=pose.rotation.T))
        if frame.camera is not None:
            lens = rerun.Pinhole(
                image_from_camera=frame.camera.matrix(), width=frame.camera.width, height=frame.camera.height,
                image_plane_distance=self._depth,
            )  # fmt: skip
            stream.log("world/camera/image", lens)
        if frame.jpeg is not None:
            stream.log("world/camera/image", rerun.EncodedImage(contents=frame.jpeg, media_type="image/jpeg"))
        self._add_path(frame)
        if len(frame.points):
            stream.log("world/points", rerun.Points3D(frame.points.points, colors=frame.points.colours))
        if frame.loops:
            self._add_loops(frame.loops)

    def close(self) -> None:
        """Waits until everything has been handed over."""
        self._stream.flush()
        self._stream.disconnect()

    def _add_path(self, frame: LoggedFrame) -> None:
        """A step from the frame before of the same component, and now and then a camera that stays."""
        rerun, stream, pose = self._rerun, self._stream, frame.pose
        before = self._before.get(pose.component)
        self._before[pose.component] = pose.center
        if before is not None:
            stream.log("world/path", rerun.LineStrips3D([np.stack([before, pose.center])], colors=_PATH_RGB))
        if pose.frame % RefineSettings.keyframe_interval == 0:
            alone = Trajectory(
                frames=np.array([pose.frame]), rotation=pose.rotation[None], center=pose.center[None]
            )
            lines = frustum_lines(alone, frame.camera, self._depth)
            stream.log("world/frustums", rerun.LineStrips3D(lines, colors=_FRUSTUM_RGB))

    def _add_loops(self, loops: Iterable[LoggedLoop]) -> None:
        for accepted, colour in ((True, _ACCEPTED_RGB), (False, _REJECTED_RGB)):
            ends = [loop.ends for loop in loops if loop.accepted is accepted]
            if ends:
                name = "accepted" if accepted else "rejected"
                self._stream.log(f"world/loops/{name}", self._rerun.LineStrips3D(ends, colors=colour))


class LiveRerun:
    """Shows a map while it grows; a context manager."""

    def __init__(self, target: str) -> None:
        """target: `spawn`, an address (rerun+http://HOST:PORT/proxy), or an .rrd file to write."""
        rerun = _rerun()
        is_address, is_file = "://" in target, target.endswith(".rrd")
        if not (is_address or is_file or target == SPAWN):
            raise Anchor3RError(
                f"--rerun {target} is neither {SPAWN}, an address such as rerun+http://127.0.0.1:9876/proxy, "
                "nor an .rrd file"
            )
        self._stream = rerun.RecordingStream("anchor3r")
        self._target, self._files = target, ExitStack()
        try:
            if is_address:
                self._stream.connect_grpc(target)
            elif is_file:
                file = check_output(target)
                file.parent.mkdir(parents=True, exist_ok=True)
                opened = self._files.enter_context(open_exclusively(file))
                self._stream.save(self._files.enter_context(_named_for_rerun(opened)))
            else:
                self._stream.spawn()
        except (RuntimeError, OSError, ValueError) as error:
            self._files.close()
            raise Anchor3RError(
                f"--rerun {target} cannot be opened ({error}); start the viewer with `rerun`, or name an "
                ".rrd file"
            ) from error
        self._rerun = rerun
        self._map: Map | None = None
        self._log: RerunLog | None = None
        self._folder = Path()
        self._waiting: deque[tuple[int, FramePose]] = deque()

    def __enter__(self) -> LiveRerun:
        return self

    def __exit__(self, *_: object) -> None:
        self._show_committed()
        if self._map is not None:
            self._map.close()
        try:
            with self._files:
                try:
                    self._stream.flush(timeout_sec=_VIEWER_TIMEOUT_S)
                finally:
                    self._stream.disconnect()
        except (RuntimeError, OSError) as error:
            raise Anchor3RError(
                f"--rerun {self._target} has not taken everything ({error}); the map is complete: look at it "
                "with anchor3r export --format rrd"
            ) from error

    def add(self, folder: Path, frame: int, poses: Iterable[FramePose]) -> None:
        """Takes note of poses that a frame has brought to the map in a folder; shows those that are in it."""
        self._folder = folder
        self._waiting += [(frame, pose) for pose in poses]
        self._show_committed()

    def _show_committed(self) -> None:
        """The map is written some frames at a time, and what is not written yet is shown later."""
        while self._waiting:
            if self._map is None:
                self._map = load_map(self._folder)
            brought_by, pose = self._waiting[0]
            time_s = self._map.timestamp_s(pose.frame)
            if time_s is None or self._map.timestamp_s(brought_by) is None:
                break
            self._waiting.popleft()
            frame = logged_frame(
                self._map, pose, time_s, min_confidence=LIKELY, max_points=_LIVE_POINTS_A_FRAME
            )
            if self._log is None:
                self._log = RerunLog(self._rerun, self._stream, frustum_depth=_depth_beside(frame))
            self._log.add(frame)


def _depth_beside(frame: LoggedFrame) -> float:
    """How large to draw the cameras of a path that has hardly begun: small beside what is seen."""
    distance = np.linalg.norm(frame.points.points - frame.pose.center, axis=1)
    return 0.05 * float(np.median(distance)) if len(distance) else 0.1


def write_rrd(path: Path, chosen: Selection) -> int:
    """Writes an .rrd file frame by frame, and returns the number of frames."""
    rerun = _rerun()
    with replacing(path) as file:
        # The same map gives the same recording; Rerun would make up a new name for each.
        name = f"{chosen.scene_map.folder.name}-{chosen.poses}".encode(errors="replace").decode()
        stream = rerun.RecordingStream("anchor3r", recording_id=name)
        with _named_for_rerun(file) as pipe:
            stream.save(pipe)
            log = RerunLog(rerun, stream, frustum_depth=frustum_depth(chosen.trajectory))
            try:
                for frame in logged_frames(chosen):
                    log.add(frame)
            finally:
                log.close()
    return len(chosen.trajectory)


@contextmanager
def _named_for_rerun(file: BinaryIO) -> Iterator[str]:
    """A name to which Rerun can write what goes into the file; an OSError at the end if it did not go.

    Rerun itself waits for ever where a disk is full, follows links, and knows names in UTF-8 only. So it
    gets a pipe, where there are such, and this program writes the file.
    """
    if not hasattr(os, "mkfifo"):
        yield file.name
        return
    with tempfile.TemporaryDirectory() as folder:
        pipe = os.path.join(folder, "recording.rrd")
        os.mkfifo(pipe)
        # Opened from both ends, so that nobody waits for anybody; it ends when all writers have closed it.
        reader = open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)  # noqa: SIM115
        writer = os.open(pipe, os.O_WRONLY)
        os.set_blocking(reader.fileno(), True)
        failed: list[OSError] = []
        copying = Thread(target=_copy, args=(reader, file, failed), daemon=True)
        copying.start()
        try:
            yield pipe
        finally:
            os.close(writer)
            copying.join()
        if failed:
            raise failed[0]


def _copy(reader: BinaryIO, file: BinaryIO, failed: list[OSError]) -> None:
    """Copies all there is to read; what cannot be written is read as well, for it would be waited for."""
    with reader:
        while data := reader.read(_STEP_BYTES):
            try:
                if not failed:
                    file.write(data)
            except OSError as error:
                failed.append(error)


def _blueprint(rerun: Any) -> Any:
    """Everything so far in 3D, beside it the image of the moment."""
    blueprint = optional_library("rerun.blueprint", extra="rerun", purpose="Rerun")
    so_far = [
        blueprint.VisibleTimeRange(
            timeline,
            start=blueprint.TimeRangeBoundary.infinite(),
            end=blueprint.TimeRangeBoundary.cursor_relative(),
        )
        for timeline in (_TIMELINE, _FRAMES)
    ]
    return blueprint.Blueprint(
        blueprint.Horizontal(
            blueprint.Spatial3DView(origin="world", name="map", time_ranges=so_far),
            blueprint.Spatial2DView(origin="world/camera/image", name="image"),
            column_shares=[3, 1],
        ),
        collapse_panels=True,
    )


def _rerun() -> Any:
    return optional_library("rerun", extra="rerun", purpose="Rerun")
