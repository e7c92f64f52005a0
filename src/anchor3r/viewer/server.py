"""A map served to browsers: one loop reads the store and the controls, and keeps the scene up to date."""

from __future__ import annotations

import errno
import logging
import queue
import shlex
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import viser
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.framing import oblique_axes, top_axes, upward
from anchor3r.store.database import holds_map
from anchor3r.trajectory import Trajectory
from anchor3r.viewer.contents import MapContents
from anchor3r.viewer.guard import guarded
from anchor3r.viewer.panel import Panel
from anchor3r.viewer.scene import MEASURE_COLOUR, MapScene, PickedPoint
from anchor3r.viewer.settings import ViewSettings
from anchor3r.viewer.viewpoints import VERTICAL_FOV_RAD, Viewpoint, behind, viewpoint

_POLL_S = 1.0
_PLAY_S = 0.1
_BUILD_S = 2.0  # between looks at the scene while points are read
_STILL_GROWING_S = 5.0
_PORTS = 100


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
        self._marks: list[PickedPoint] = []
        self._pixels: list[tuple[int, int] | None] = []
        self._played_s = -np.inf
        self._refreshed_s = self._grown_s = -np.inf
        self._is_read = False
        # Poses and points when it was last chosen where new clients look from.
        self._num_placed = self._num_seen = 0
        self._is_first_look = True
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
        until_next = max(0.0, self._played_s + _PLAY_S - time.monotonic())
        changed = self._changed.wait(0 if not self._is_read else until_next if playing else _POLL_S)
        self._changed.clear()
        try:
            fresh = self._refresh()
            built = self._build()
        except Anchor3RError as error:  # the map may be there again at the next look
            self._panel.say(f"**{error}**")
            self._is_read = True
            return False
        # What plays changes the panel, too, which is no reason to play on at once.
        advances = playing and time.monotonic() - self._played_s >= _PLAY_S
        if advances:
            self._panel.advance()
            self._played_s = time.monotonic()
        if fresh or built or changed or advances or not self._num_placed:
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
        poses = self._contents.poses(settings.poses, settings.component)
        if not len(poses):
            return
        depth, up = self._contents.depth(), upward(poses)
        num_seen = len(self._contents.levels)
        if len(poses) >= 2 * self._num_placed or (self._is_first_look and num_seen > self._num_seen):
            points, path = self._seen(poses, settings)
            whole = viewpoint(oblique_axes, poses, points, path)
            place_initially(self._server, whole, depth, move_clients=self._is_first_look)
            self._num_placed, self._num_seen = len(poses), num_seen
            self._is_first_look = not self._is_read
        current = np.flatnonzero(poses.frames <= settings.last)
        if self._panel.follow.value and len(current):
            following = behind(poses.pose(int(current[-1])), up, depth)
            for client in self._server.get_clients().values():
                look_from(client, following)

    def _look(self, event: viser.GuiEvent[Any]) -> None:
        """Moves the camera of the client that asked."""
        if event.client is None or not self._contents.trajectories:
            return
        settings = self._panel.settings(self._contents)
        poses = self._contents.poses(settings.poses, settings.component)
        if len(poses):
            axes = top_axes if self._panel.view.value == "from above" else oblique_axes
            look_from(event.client, viewpoint(axes, poses, *self._seen(poses, settings)))

    def _seen(
        self, poses: Trajectory, settings: ViewSettings
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Points (n, 3) and the path (m, 3) that a view of these poses is framed by."""
        return self._contents.seen_from(poses, settings.min_confidence), self._contents.framed(poses)

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
            self._panel.say_command("")
        elif not self._marks:
            self._panel.say_measured("Click two points.")
        while not self._clicks.empty():
            click = self._clicks.get()
            if self._panel.measure.value:
                self._mark(click)
        if len(self._marks) == 2:
            self._say_distance()

    def _mark(self, click: viser.SceneClickEvent) -> None:
        point = self._scene.pick(click.ray_origin, click.ray_direction)
        if point is None:
            self._panel.say_measured("There is no point.")
            return
        self._marks = [*self._marks, point] if len(self._marks) < 2 else [point]
        self._pixels = [self._contents.pixel_of(mark.frame, mark.in_camera) for mark in self._marks]
        self._show_marks()

    def _show_marks(self) -> None:
        # Neither spheres, whose lit material takes a software renderer half a minute to prepare, nor a label,
        # whose font may not be there.
        scene, size = self._server.scene, self._contents.depth() / 40
        scene.add_point_cloud(
            "/measure/ends", np.stack([mark.world for mark in self._marks]), MEASURE_COLOUR, point_size=size,
            point_shape="circle", precision="float32",
        )  # fmt: skip
        scene.remove_by_name("/measure/line")
        if len(self._marks) < 2:
            self._panel.say_measured("Click the other point.")
            self._panel.say_command("")
            return
        line = np.stack([mark.world for mark in self._marks])[None]
        scene.add_line_segments(
            "/measure/line", line, MEASURE_COLOUR, thickness=3.0, thickness_units="screen"
        )

    def _say_distance(self) -> None:
        """Of the two points, where the chosen poses put them, and how to tell the map what it really is."""
        settings = self._panel.settings(self._contents)
        poses, ends = self._contents.poses(settings.poses, settings.component), []
        for mark in self._marks:
            row = int(np.searchsorted(poses.frames, mark.frame))
            if row >= len(poses) or poses.frames[row] != mark.frame:
                self._panel.say_measured("The points are not of these poses: click others.")
                return
            ends.append(poses.pose(row).to_world(mark.in_camera))
        words = self._distance_in_words(float(np.linalg.norm(ends[0] - ends[1])))
        self._panel.say_measured(f"Distance: **{words}**")
        self._panel.say_command(self._command())

    def _command(self) -> str:
        """The line that gives the map metres by the length between the two points."""
        if None in self._pixels:
            return "These points are of the surface alone: `--distance` takes such as single frames have."
        marks = zip(self._marks, self._pixels, strict=True)
        ends = " ".join(f"{mark.frame}:{at[0]},{at[1]}" for mark, at in marks if at is not None)
        metres = f"{self._panel.taped.value:g}" if self._panel.taped.value > 0 else "METRES"
        folder = shlex.quote(str(self._contents.folder))
        return f"```\nanchor3r refine {folder} --distance {ends} {metres}\n```"

    def _distance_in_words(self, distance: float) -> str:
        settings = self._panel.settings(self._contents)
        unit, spread = self._contents.scale_of(settings.poses, settings.component)
        if unit == "m":
            sure = "" if spread is None else f" ± {spread * distance:.2g} by the map's scale"
            return f"{distance:.4g} m{sure}"
        aligned = self._contents.aligned_truth(self._contents.poses(settings.poses, settings.component))
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
    num_components = len(contents.components(settings.poses))
    lack = contents.trajectories[settings.poses].lack_of_translation()
    if num_components > 1:
        shown = len(contents.poses(settings.poses, settings.component))
        lines.append(
            f"**Tracking broke: {num_components} components**, which no measurement relates. Each has a "
            f"place and a scale of its own; the {shown:,} poses of one are shown."
        )
    if num_poses == 1:
        lines.append("**A single pose**: the camera has no path.")
    if not num_poses:
        lines.append("**The map is empty so far.** It appears here as soon as the mapper has placed a frame.")
    elif num_points:
        sure = f", confidence ≥ {settings.min_confidence:g}" if settings.min_confidence else ""
        lines.append(f"{num_points:,} points shown{sure}")
    elif not len(contents.levels) and lack is not None:
        lines.append(f"**{lack[0].upper()}{lack[1:]}.**")
    elif not len(contents.levels):
        lines.append("**The map has poses but no points**, or none that have been read so far.")
    else:
        lines.append("**All points are filtered away**: lower the confidence or widen the range of frames.")
    return "\n\n".join([*lines, *contents.notes])


def start_server(host: str, port: int, label: str) -> viser.ViserServer:
    """A viser server at that port, or at the next free one."""
    port = free_port(host, port)
    # A browser that leaves while it connects is no error, which would be told with a traceback.
    logging.getLogger("websockets.server").setLevel(logging.CRITICAL)
    with guarded(host):
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


def place_initially(server: viser.ViserServer, first: Viewpoint, depth: float, *, move_clients: bool) -> None:
    """Where new clients look from; and those who are there, if they have waited for something to see."""
    near, far = depth / 50, 100 * (float(np.linalg.norm(first.position - first.look_at)) + depth)
    server.scene.set_up_direction(first.up)
    initial = server.initial_camera
    initial.position, initial.look_at, initial.fov = first.position, first.look_at, VERTICAL_FOV_RAD
    initial.near, initial.far = near, far
    for client in server.get_clients().values():
        client.camera.near, client.camera.far = near, far
        if move_clients:
            client.camera.fov = VERTICAL_FOV_RAD
            look_from(client, first)


def look_from(client: viser.ClientHandle, viewpoint: Viewpoint) -> None:
    with client.atomic():
        client.camera.up_direction = viewpoint.up
        client.camera.position = viewpoint.position
        client.camera.look_at = viewpoint.look_at
