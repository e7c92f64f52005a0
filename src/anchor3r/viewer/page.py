"""A map as one page that shows it without this program and without a server.

The page is `page.html` with the map's data in it: points in the cameras of their frames, and the poses of
every trajectory, so that its controls can choose between them as those of the live view do.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.framing import oblique_axes, top_axes, upward
from anchor3r.io.files import replacing, utf8
from anchor3r.store import best_poses, load_map
from anchor3r.trajectory import Trajectory
from anchor3r.viewer.contents import CAMERA_DEPTH, MapContents
from anchor3r.viewer.levels import LevelPoints, magnified
from anchor3r.viewer.settings import ViewSettings
from anchor3r.viewer.viewpoints import VERTICAL_FOV_RAD, viewpoint

_BUILD_S = 0.5
"""Between reports of progress while points are read."""
_MAX_COMPONENTS = 20
"""Unrelated parts of a map that can be chosen, the largest first."""


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
        cut = contents.levels.cut(0.0, point_budget)
        parts = [segment.points for segment in contents.levels.segments.values()]
        points = LevelPoints.concatenated([part.select(cut.mask(part)) for part in parts])
        points = points.select(np.isin(points.frame, contents.online.frames))
        page = _page(contents, points, poses or best_poses(contents.trajectories))
    with replacing(site / "index.html") as file:
        file.write(utf8(page))
    return site / "index.html", len(points)


def _page(contents: MapContents, points: LevelPoints, best: str) -> str:
    frames = np.unique(np.concatenate([poses.frames for poses in contents.trajectories.values()]))
    arrays: dict[str, NDArray[Any]] = {
        "points": points.in_camera.astype("<f2"),
        "row": np.searchsorted(frames, points.frame).astype("<u4"),
        "colour": np.column_stack([points.colours, np.round(255 * points.confidence).astype(np.uint8)]),
    }
    trajectories = []
    for name, poses in contents.trajectories.items():
        components = contents.components(name)[:_MAX_COMPONENTS]
        arrays[f"poses {name}"] = _pose_texels(poses, frames, components)
        loops = [loop for loop in contents.loops[name] if np.isin([loop.query, loop.match], frames).all()]
        ends = np.array([(loop.query, loop.match) for loop in loops], np.int64).reshape(-1, 2)
        accepted = [loop.accepted for loop in loops]
        arrays[f"loops {name}"] = np.column_stack([np.searchsorted(frames, ends), accepted]).astype("<u4")
        shown = [_component(contents, name, label, arrays) for label in components]
        trajectories.append({"name": name, "components": shown})
    title = f"{contents.folder.resolve().name}: {len(contents.trajectories[best])} frames, {best} poses"
    shape = contents.camera(int(frames[0]))
    head = {
        "title": title, "frames": frames.tolist(), "trajectories": trajectories, "best": best,
        "fov": VERTICAL_FOV_RAD, "depth": contents.depth(),
        "pointSize": contents.depth() / 150 * magnified(len(points)),
        "confidence": ViewSettings.min_confidence, "cameras": ViewSettings.cameras,
        "begins": (1 + np.flatnonzero(np.diff(contents.path_of(frames)))).tolist(),
        "aspect": shape.aspect, "cameraFov": shape.fov_rad, "reach": CAMERA_DEPTH * contents.depth(),
    }  # fmt: skip
    template = files("anchor3r.viewer").joinpath("page.html").read_text()
    return template.replace("/*DATA*/", f"const HEAD = {_script(head)}, DATA = {_script(_packed(arrays))};")


def _script(value: Any) -> str:
    """A value as JSON that cannot end the script it stands in."""
    return json.dumps(value).replace("<", "\\u003c")


def _packed(arrays: dict[str, NDArray[Any]]) -> dict[str, str]:
    return {
        name: base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 6)).decode()
        for name, array in arrays.items()
    }


def _pose_texels(
    poses: Trajectory, frames: NDArray[np.int64], components: Iterable[int]
) -> NDArray[np.float32]:
    """(f, 4, 4) of each frame: rows of world_from_camera with the scale, and the component; NaN without.

    The component is its place among those given, -1 if it is none of them.
    """
    scale = np.ones(len(poses)) if poses.log_scale is None else np.exp(poses.log_scale)
    texels = np.full((len(frames), 4, 4), np.nan, "<f4")
    rows = np.searchsorted(frames, poses.frames)
    texels[rows, :3, :3] = poses.rotation.swapaxes(1, 2) * scale[:, None, None]
    texels[rows, :3, 3] = poses.center
    texels[rows, 3] = 0
    labels = np.zeros(len(poses), np.int64) if poses.component is None else poses.component
    order = {label: k for k, label in enumerate(components)}
    texels[rows, 3, 0] = [order.get(label, -1) for label in labels.tolist()]
    return texels


def _component(
    contents: MapContents, name: str, label: int, arrays: dict[str, NDArray[Any]]
) -> dict[str, Any]:
    """What the page needs to know of one component; its ground truth goes to the arrays."""
    poses = contents.poses(name, label)
    seen = contents.seen_from(poses, ViewSettings.min_confidence)
    aligned = contents.aligned_truth(poses)
    key = f"truth {name} {label}"
    if aligned is not None:
        arrays[key] = aligned[0].astype("<f4")
    path = contents.framed(poses)
    axes = {"whole": oblique_axes, "above": top_axes}
    views = {view: viewpoint(axes_of, poses, seen, path) for view, axes_of in axes.items()}
    return {
        "frames": f"{poses.frames[0]}–{poses.frames[-1]}",
        "count": len(poses),
        "up": upward(poses, seen).tolist(),
        "lack": poses.lack_of_translation(),
        "truth": key if aligned is not None else None,
        "views": {
            view: {part: value.tolist() for part, value in asdict(chosen).items()}
            for view, chosen in views.items()
        },
    }
