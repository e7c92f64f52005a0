"""A map as a page that shows it without this program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from anchor3r.errors import Anchor3RError
from anchor3r.io.files import replacing
from anchor3r.store import best_poses, load_map
from anchor3r.viewer.contents import MapContents
from anchor3r.viewer.scene import MapScene
from anchor3r.viewer.server import overview, place_initially, start_server
from anchor3r.viewer.settings import ViewSettings

_BUILD_S = 0.5
"""Between reports of progress while points are read."""


def save_page(
    folder: Path,
    site: Path,
    *,
    point_budget: int,
    progress: Callable[[int, str], None],
    poses: str | None = None,
) -> tuple[Path, int]:
    """Writes a page that shows the map without this program; returns it and the number of its points."""
    with MapContents(folder) as contents:
        contents.refresh()
        if not len(contents.online):
            with load_map(folder) as scene_map:
                raise Anchor3RError(f"{scene_map.lack_of_poses()} Save a page of it when it has some.")
        while not contents.build(_BUILD_S):
            progress(round(100 * contents.progress()), "reading points")
        server = start_server("127.0.0.1", 0, "map")
        try:
            scene = MapScene(server.scene)
            settings = whole_map(contents, point_budget, poses)
            scene.show(contents, settings)
            depth = contents.depth()
            trajectory = contents.trajectories[settings.poses]
            place_initially(server, overview(trajectory, contents.up(), depth), depth, move_clients=True)
            html = server.get_scene_serializer().as_html(dark_mode=True)
        finally:
            server.stop()
    title = f"<title>{folder.resolve().name}: {len(trajectory)} frames, {settings.poses} poses</title>"
    with replacing(site / "index.html") as file:
        file.write(html.replace("<title>Viser</title>", title, 1).encode())
    return site / "index.html", scene.num_points


def whole_map(contents: MapContents, point_budget: int, poses: str | None = None) -> ViewSettings:
    """Everything, placed by the poses of a name, or by the best there are."""
    frames, chosen = contents.online.frames, poses or best_poses(contents.trajectories)
    return ViewSettings(poses=chosen, first=int(frames[0]), last=int(frames[-1]), point_budget=point_budget)
