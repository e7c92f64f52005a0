"""A map served to browsers: one loop reads the store and the controls, and keeps the scene up to date."""

from __future__ import annotations

import errno
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import viser
from numpy.typing import ArrayLike, NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.store.database import holds_map
from anchor3r.trajectory import FramePose, Trajectory
from anchor3r.viewer.contents import MapContents
from anchor3r.viewer.panel import Panel
from anchor3r.viewer.scene import MEASURE_COLOUR, MapScene
from anchor3r.viewer.settings import ViewSettings

_POLL_S = 1.0
_PLAY_S = 0.1
_BUILD_S = 2.0  # between looks at the scene while points are read
_STILL_GROWING_S = 5.0
_PORTS = 100
_NEAR_CLICK = 0.03  # radians between the ray of a click and the nearest point that it can mean
_SAME_SPOT = 0.004  # radians within which the nearest along the ray is meant


class MapServer:
    """Serves one map. `step` does what is due, `run` does so until it is interrupted."""

    def __init__(
        self,
        contents: MapContents,
        host: str,
        port: int,
        *,
        point_budget: int = ViewSettings.point_budget,
        poses: str | None = None,
    ) -> None:
        self._contents = contents
        self._changed = threading.Event()
        self._clicks: queue.SimpleQueue[viser.SceneClickEvent] = queue.SimpleQueue()
        self._marks: list[NDArray[np.float64]] = []
        self._refreshed_s = self._grown_s = -np.inf
        self._is_read = False
        self._num_placed = 0  # poses when it was last chosen where new clients look from
        self._server = start_server(host, port, contents.folder.resolve().name)
        self._scene = MapScene(self._server.scene)
        self._panel = Panel(self._server.gui, self._changed.set, point_budget, poses)
        self._panel.view.on_click(self._look)
        self._server.scene.on_click()(self._note_click)

    @property
    def url(self) -> str:
        host = self._server.get_host()
        name = "localhost" if host in ("0.0.0.0", "::") else host
        return f"http://[{name}]:{self.port}" if ":" in name else f"http://{name}:{self.port}"

    @property
    def port(self) -> int:
        return self._server.get_port()

    @property
    def num_points(self) -> int:
        """On the screen."""
        return self._scene.num_points

    def close(self) -> None:
        self._server.stop()

    def run(self) -> None:
        """Never returns."""
        while True:
            self.step()

    def step(self) -> bool:
        """Waits for something to do and does it; says whether there is more to do at once."""
        playing = self._panel.play.value
        changed = self._changed.wait(0 if not self._is_read else _PLAY_S if playing else _POLL_S)
        self._changed.clear()
        try:
            fresh = self._refresh()
            built = self._build()
        except Anchor3RError as error:  # the map may be there again at the next look
            self._panel.say(f"**{error}**")
            self._is_read = True
            return False
        if playing:
            self._panel.advance()
        if fresh or built or changed or playing or not self._num_placed:
            self._show()
        self._measure()
        self._say()
        return not self._is_read

    def _refresh(self) -> bool:
        if time.monotonic() - self._refreshed_s < _POLL_S:
            return False
        is_first, num_before = not self._contents.trajectories, self._contents.num_frames
        fresh = self._contents.refresh()
        self._refreshed_s = time.monotonic()
        if fresh:
            if not is_first and self._contents.num_frames != num_before:
                self._grown_s = self._refreshed_s
            self._panel.fit(self._contents)
        return fresh

    def _build(self) -> bool:
        """Reads points for a while; says whether there are any new ones."""
        before = self._contents.levels.revision
        self._is_read = self._contents.build(_BUILD_S)
        self._panel.show_progress(None if self._is_read else 100 * self._contents.progress())
        return self._contents.levels.revision != before

    def _show(self) -> None:
        settings = self._panel.settings(self._contents)
        with self._server.atomic():
            self._scene.show(self._contents, settings)
        poses = self._contents.trajectories[settings.poses]
        if not len(poses):
            return
        depth, up = self._contents.depth(), self._contents.up()
        if len(poses) >= 2 * self._num_placed:
            whole = overview(poses, up, depth)
            place_initially(self._server, whole, depth, move_clients=not self._num_placed)
            self._num_placed = len(poses)
        current = np.flatnonzero(poses.frames <= settings.last)
        if self._panel.follow.value and len(current):
            viewpoint = behind(poses.pose(int(current[-1])), up, depth)
            for client in self._server.get_clients().values():
                look_from(client, viewpoint)

    def _look(self, event: viser.GuiEvent[Any]) -> None:
        """Moves the camera of the client that asked."""
        poses = self._contents.trajectories.get(self._panel.poses.value)
        if event.client is None or poses is None or not len(poses):
            return
        view = top_down if self._panel.view.value == "from above" else overview
        look_from(event.client, view(poses, self._contents.up(), self._contents.depth()))

    def _note_click(self, click: viser.SceneClickEvent) -> None:
        self._clicks.put(click)
        self._changed.set()

    def _measure(self) -> None:
        """Takes clicks as ends of a distance."""
        if not self._panel.measure.value:
            if self._marks:
                self._server.scene.remove_by_name("/measure")
            self._marks = []
            self._panel.say_measured("")
        elif not self._marks:
            self._panel.say_measured("Click two points.")
        while not self._clicks.empty():
            click = self._clicks.get()
            if self._panel.measure.value:
                self._mark(click)

    def _mark(self, click: viser.SceneClickEvent) -> None:
        point = picked(click.ray_origin, click.ray_direction, self._scene.visible_points())
        if point is None:
            self._panel.say_measured("There is no point.")
            return
        self._marks = [*self._marks, point] if len(self._marks) < 2 else [point]
        self._show_marks()

    def _show_marks(self) -> None:
        # Neither spheres, whose lit material takes a software renderer half a minute to prepare, nor a label,
        # whose font may not be there.
        scene, size = self._server.scene, self._contents.depth() / 40
        scene.add_point_cloud(
            "/measure/ends", np.stack(self._marks), MEASURE_COLOUR, point_size=size, point_shape="circle",
            precision="float32",
        )  # fmt: skip
        scene.remove_by_name("/measure/line")
        if len(self._marks) < 2:
            return
        line = np.stack(self._marks)[None]
        scene.add_line_segments(
            "/measure/line", line, MEASURE_COLOUR, thickness=3.0, thickness_units="screen"
        )
        words = self._distance_in_words(float(np.linalg.norm(line[0, 0] - line[0, 1])))
        self._panel.say_measured(f"Distance: **{words}**")

    def _distance_in_words(self, distance: float) -> str:
        aligned = self._contents.aligned_truth(self._panel.poses.value)
        metres = f" = {distance / aligned[1]:.4g} m by ground truth" if aligned is not None else ""
        return f"{distance:.4g} units{metres}"

    def _say(self) -> None:
        settings = self._panel.settings(self._contents)
        growing = time.monotonic() - self._grown_s < _STILL_GROWING_S
        self._panel.say(in_words(self._contents, settings, self._scene.num_points, growing))


def serve_map(
    folder: Path,
    host: str,
    port: int,
    *,
    announce: Callable[[str], None],
    wait: bool,
    poses: str | None = None,
) -> None:
    """Serves a map until interrupted; `announce` is told the address, `wait` for the map to be begun.

    poses: those to begin with, as soon as the map has them; the best there are if not given.
    """
    while wait and not holds_map(folder):
        time.sleep(_POLL_S / 4)
    with MapContents(folder) as contents:
        server = MapServer(contents, host, port, poses=poses)
        announce(server.url)
        try:
            server.run()
        finally:
            server.close()


def in_words(contents: MapContents, settings: ViewSettings, num_points: int, growing: bool) -> str:
    """What is on the screen, and why if that is nothing."""
    num_poses = len(contents.trajectories[settings.poses])
    expected = f" of {contents.num_expected:,}" if growing and contents.num_expected else ""
    lines = [f"**{contents.num_frames:,}{expected} frames**, {num_poses:,} {settings.poses} poses"]
    if growing:
        lines[0] += ", growing"
    if not num_poses:
        lines.append("**The map is empty so far.** It appears here as soon as the mapper has placed a frame.")
    elif num_points:
        sure = f", confidence ≥ {settings.min_confidence:g}" if settings.min_confidence else ""
        lines.append(f"{num_points:,} points shown{sure}")
    elif not len(contents.levels):
        lines.append("**The map has poses but no points**, or none that have been read so far.")
    else:
        lines.append("**All points are filtered away**: hide fewer unsure ones or widen the range of frames.")
    return "\n\n".join([*lines, *contents.notes])


def start_server(host: str, port: int, label: str) -> viser.ViserServer:
    """A viser server at that port, or at the next free one."""
    port = free_port(host, port)
    # A browser that leaves while it connects is no error, which would be told with a traceback.
    logging.getLogger("websockets.server").setLevel(logging.CRITICAL)
    server = viser.ViserServer(host=host, port=port, label=label, verbose=False)
    server.gui.configure_theme(dark_mode=True, show_logo=False, show_share_button=False)
    server.scene.world_axes.visible = False
    return server


def free_port(host: str, port: int) -> int:
    """The first free one from `port` on."""
    for candidate in range(port, min(port + _PORTS, 65536)):
        try:
            family = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0][0]
            with socket.create_server((host, candidate), family=family) as probe:
                return probe.getsockname()[1]
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise Anchor3RError(
                    f"cannot serve at {host}:{candidate}: {error.strerror}; choose another --host or --port"
                ) from error
    raise Anchor3RError(f"no port from {port} on is free at {host}; choose another --port")


def place_initially(
    server: viser.ViserServer, viewpoint: Viewpoint, depth: float, *, move_clients: bool
) -> None:
    """Where new clients look from; and those who are there, if they have waited for something to see."""
    reach = float(np.linalg.norm(viewpoint.position - viewpoint.look_at)) + depth
    server.scene.set_up_direction(viewpoint.up)
    server.initial_camera.position = viewpoint.position
    server.initial_camera.look_at = viewpoint.look_at
    server.initial_camera.near, server.initial_camera.far = depth / 50, 100 * reach
    for client in server.get_clients().values():
        client.camera.near, client.camera.far = depth / 50, 100 * reach
        if move_clients:
            look_from(client, viewpoint)


def look_from(client: viser.ClientHandle, viewpoint: Viewpoint) -> None:
    with client.atomic():
        client.camera.up_direction = viewpoint.up
        client.camera.position = viewpoint.position
        client.camera.look_at = viewpoint.look_at


@dataclass(frozen=True)
class Viewpoint:
    """A camera of the page."""

    position: NDArray[np.float64]
    look_at: NDArray[np.float64]
    up: NDArray[np.float64]


def overview(poses: Trajectory, up: NDArray[np.float64], depth: float) -> Viewpoint:
    """The whole trajectory, from above, behind and a little beside it."""
    center, extent = _extent(poses, depth)
    along = _ahead(poses, up)
    return Viewpoint(center + extent * (0.55 * up - 0.5 * along + 0.3 * np.cross(up, along)), center, up)


def top_down(poses: Trajectory, up: NDArray[np.float64], depth: float) -> Viewpoint:
    """The whole trajectory from straight above; where it first went is up on the screen."""
    center, extent = _extent(poses, depth)
    return Viewpoint(center + 0.8 * extent * up, center, _ahead(poses, up))


def behind(pose: FramePose, up: NDArray[np.float64], depth: float) -> Viewpoint:
    """Over the shoulder of one camera."""
    forward = pose.rotation[2]
    position = pose.center + depth * (0.25 * up - 0.6 * forward)
    return Viewpoint(position, pose.center + depth * forward, up)


def picked(
    origin: ArrayLike, direction: ArrayLike, points: NDArray[np.float32]
) -> NDArray[np.float64] | None:
    """The point (3,) out of (n, 3) that a click along a ray means; None if it hits nothing."""
    ray = np.asarray(direction, np.float64)
    ray = ray / np.linalg.norm(ray)
    offset = points - np.asarray(origin, np.float64)
    along = offset @ ray
    aside = np.linalg.norm(offset - along[:, None] * ray, axis=1)
    angle = np.where(along > 0, aside / np.where(along > 0, along, 1), np.inf)
    if not len(points) or angle.min() > _NEAR_CLICK:
        return None
    meant = np.flatnonzero(angle <= max(_SAME_SPOT, angle.min()))
    return points[meant[along[meant].argmin()]].astype(np.float64)


def _extent(poses: Trajectory, depth: float) -> tuple[NDArray[np.float64], float]:
    low, high = poses.center.min(0), poses.center.max(0)
    return (low + high) / 2, float(np.linalg.norm(high - low)) + 2 * depth


def _ahead(poses: Trajectory, up: NDArray[np.float64]) -> NDArray[np.float64]:
    """(3,) level direction in which the first camera looked."""
    forward = poses.rotation[0, 2]
    level = forward - (forward @ up) * up
    if np.linalg.norm(level) < 1e-3:  # it looked straight up or down
        level = poses.rotation[0, 1] - (poses.rotation[0, 1] @ up) * up
    return level / np.linalg.norm(level)
