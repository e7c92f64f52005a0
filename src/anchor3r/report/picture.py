"""Pictures of a map, without a window: its points and paths from above and in perspective, as a PNG.

Parts of a map that no measurement relates have a pane each.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.export.cameras import frustum_depth, frustum_lines
from anchor3r.framing import bounds, oblique_axes, standing_point, top_axes, upward
from anchor3r.io.files import replacing
from anchor3r.report.raster import PictureCamera, draw_points, eye_dome_shade
from anchor3r.store import LIKELY, Map
from anchor3r.store.fused import FusedSurface, fused_surface
from anchor3r.trajectory import Trajectory, estimated_from_true_world

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRUTH = "ground truth"
"""The path of this name is drawn dashed."""
MAX_FRAMES = 2000
"""Frames whose points are drawn, evenly chosen from more."""
MAX_POINTS = 1_500_000
MAX_COMPONENTS = 3
"""Unrelated parts of a map that are drawn, the largest first."""
NUM_CAMERAS = 16
BACKGROUND = "#0f1319"
_INK = "#e8ebf0"
_PATH_COLOURS = ("#ff9d2e", "#4fc3f7", "#b388ff")
_DPI = 100
_SUPERSAMPLING = 2
_HALF_ANGLE_DEG = 20.0
"""Of a view in perspective, across the longer side of the picture."""
_FITTED_POINTS = 20_000
"""Points that a picture is framed by, evenly chosen from more."""
_TITLE_WIDTH, _CHARACTER_WIDTH = 0.6, 7.6
"""Part of a pane that a title may take, and the width of one of its characters in pixels."""
_MARGIN = 0.06
"""Part of the picture that is left free around what is shown."""
_COVERED = 0.35
"""Part of the picture that points would cover if they lay side by side; decides their size."""
_RADII = (1.5, 6.4)
"""Smallest and largest spot, in pixels before the picture is reduced."""


@dataclass(frozen=True, kw_only=True)
class PictureScene:
    """What is seen of one component of a map: n points and any number of paths in one world."""

    poses: Trajectory
    """The poses that place the points."""
    points: NDArray[np.float32]
    """(n, 3)"""
    normals: NDArray[np.float32]
    """(n, 3) towards the side from which a point was seen, of any length; NaN where that is not known"""
    colours: NDArray[np.uint8]
    """(n, 3) RGB"""
    up: NDArray[np.float64]
    """(3,) unit vector"""
    below: NDArray[np.bool_]
    """(n,) whether a point is not higher than the camera that saw it, so that no roof hides the path"""
    paths: dict[str, list[NDArray[np.float64]]]
    """By name, the pieces (m, 3) of each; the first one is that of `poses`"""
    cameras: NDArray[np.float64]
    """(k, m, 3) lines that show some of the cameras"""
    metres_per_unit: float | None
    """None where nothing says how long a unit is."""
    spacing: float = 0.0
    """Between neighbouring points of a fused surface, which spots close; 0 where points lie as they fell"""
    title: str = ""
    """What the picture says of the scene."""


def scenes_of(
    scene_map: Map, poses: str, *, min_confidence: float = LIKELY, max_points: int = MAX_POINTS
) -> list[PictureScene]:
    """The map as the chosen poses have it, the other ones and the ground truth beside them.

    One scene for each component, the largest first, of at most MAX_COMPONENTS.
    """
    trajectory = scene_map.trajectory(poses)
    if not len(trajectory):
        raise Anchor3RError(f"{scene_map.lack_of_poses()} There is nothing to draw.")
    assert trajectory.component is not None
    labels, counts = np.unique(trajectory.component, return_counts=True)
    largest = labels[np.argsort(-counts, kind="stable")][:MAX_COMPONENTS]
    scenes = []
    for k, label in enumerate(largest.tolist()):
        part = trajectory.select(trajectory.component == label)
        title = "" if len(labels) == 1 else _component_title(part, k, len(labels))
        share = max_points * len(part) // len(trajectory) or 1
        scenes.append(_scene(scene_map, poses, part, title, min_confidence, share))
    return scenes


def _component_title(part: Trajectory, k: int, count: int) -> str:
    place = f"component {k + 1} of {count}, related to no other"
    return f"{place}: {len(part)} poses, frames {part.frames[0]}–{part.frames[-1]}"


def _scene(
    scene_map: Map, name: str, poses: Trajectory, title: str, min_confidence: float, max_points: int
) -> PictureScene:
    points, normals, colours, seen_from, num_hidden = _points(
        scene_map, name, poses, min_confidence, max_points
    )
    up = upward(poses, points)
    fused = fused_surface(scene_map, name)
    remarks = [title] if title else []
    if len(poses) == 1:
        remarks.append("a single pose: the camera has no path")
    if not len(points):
        hidden = f"none of its {num_hidden:,} points has a confidence of {min_confidence:g}"
        nothing = poses.lack_of_translation() or "the map has no points here"
        remarks.append(hidden if num_hidden else nothing)
    paths = {name: _pieces(scene_map, poses)}
    for other in scene_map.trajectory_names():
        if other != name:
            found = scene_map.trajectory(other)
            here = found.select(np.isin(found.frames, poses.frames))
            if (pieces := _pieces_in_world_of(scene_map, name, poses, other, here)) is not None:
                paths[other] = pieces
    truth = scene_map.true_trajectory()
    world_from_truth = None if truth is None else estimated_from_true_world(poses, truth)
    if truth is not None and world_from_truth is not None:
        within = truth.select((truth.frames >= poses.frames[0]) & (truth.frames <= poses.frames[-1]))
        placed = replace(within, center=np.asarray(world_from_truth.apply(within.center), np.float64))
        paths[TRUTH] = _pieces(scene_map, placed)
    is_metric = scene_map.units(name) == "m"
    fitted = None if world_from_truth is None else float(1 / world_from_truth.scale)
    some = poses.select(np.unique(np.linspace(0, len(poses) - 1, NUM_CAMERAS).astype(int)))
    return PictureScene(
        poses=poses,
        points=points,
        normals=normals,
        colours=colours,
        up=up,
        below=(points - seen_from) @ up <= 0,
        paths=paths,
        cameras=frustum_lines(some, scene_map.intrinsics(int(poses.frames[0])), _camera_size(poses, points)),
        metres_per_unit=1.0 if is_metric else fitted,
        spacing=0.0 if fused is None else fused.voxel * max(1.0, len(fused) / max_points) ** 0.5,
        title="\n".join(remarks),
    )


def _pieces_in_world_of(
    scene_map: Map, name: str, poses: Trajectory, other: str, found: Trajectory
) -> list[NDArray[np.float64]] | None:
    """The path of other poses beside the ones of a name; None if they lie in worlds that nothing relates.

    Poses that priors have placed are in another world than those that they have not: a similarity fits them.
    """
    worlds = [(scene_map.units(n), scene_map.datum(n)) for n in (name, other)]
    if worlds[0] == worlds[1]:
        return _pieces(scene_map, found)
    fitted = estimated_from_true_world(poses, found)
    if fitted is None:
        return None
    return [np.asarray(fitted.apply(piece), np.float64) for piece in _pieces(scene_map, found)]


def _camera_size(poses: Trajectory, points: NDArray[np.float32]) -> float:
    """Depth of a camera's pyramid: as suits the path, or the scene if the path is short beside it."""
    low, high = bounds(_sample(points), poses.center)
    return max(frustum_depth(poses), 0.02 * float((high - low).max()))


def _points(
    scene_map: Map, name: str, poses: Trajectory, min_confidence: float, max_points: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8], NDArray[np.float32], int]:
    """Points, normals, colours and the camera that saw each; how many were not sure enough.

    Those of the fused surface, if there is one of these poses, else those of the frames.
    """
    if (fused := fused_surface(scene_map, name)) is not None:
        return _fused_points(fused, poses, min_confidence, max_points)
    frames = poses.frames[:: -(-len(poses) // min(MAX_FRAMES, max_points))].tolist()
    rng, num_hidden = np.random.default_rng(0), 0
    points, normals = [np.empty((0, 3), np.float32)], [np.empty((0, 3), np.float32)]
    colours, seen_from = [np.empty((0, 3), np.uint8)], [np.empty((0, 3), np.float32)]
    for pose, point_map in scene_map.iter_points(name, frames):
        known = np.isfinite(point_map.points_in_camera).all(-1)
        sure = np.flatnonzero(known & (point_map.confidence >= min_confidence))
        num_hidden += int(known.sum()) - len(sure)
        share = max_points // len(frames)
        chosen = np.sort(rng.choice(sure, share, replace=False)) if len(sure) > share else sure
        points.append(pose.to_world(point_map.points_in_camera.reshape(-1, 3)[chosen]))
        in_camera = _normals(point_map.points_in_camera).reshape(-1, 3)[chosen]
        normals.append((in_camera @ pose.rotation).astype(np.float32))
        colours.append(point_map.colours.reshape(-1, 3)[chosen])
        seen_from.append(np.broadcast_to(pose.center.astype(np.float32), (len(chosen), 3)))
    columns = np.concatenate(points), np.concatenate(normals), np.concatenate(colours)
    return *columns, np.concatenate(seen_from), num_hidden


def _fused_points(
    fused: FusedSurface, poses: Trajectory, min_confidence: float, max_points: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8], NDArray[np.float32], int]:
    """Points of a fused surface as `_points` gives those of frames, evenly from all over it."""
    frame = fused.mesh.vertices["frame"]
    here = np.isin(frame, poses.frames)
    sure = here & (fused.mesh.vertices["confidence"] >= min_confidence)
    chosen = np.flatnonzero(sure)
    if len(chosen) > max_points:
        chosen = np.sort(np.random.default_rng(0).choice(chosen, max_points, replace=False))
    points = fused.mesh.points(chosen)
    seen_from = poses.center[np.searchsorted(poses.frames, frame[chosen])].astype(np.float32)
    num_hidden = int(here.sum() - sure.sum())
    return points, fused.mesh.normals(chosen), fused.mesh.colours(chosen), seen_from, num_hidden


def _normals(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """(h, w, 3) towards the camera, from the differences of neighbours; NaN at borders and holes."""
    normals = np.full_like(points, np.nan)
    across, down = points[1:-1, 2:] - points[1:-1, :-2], points[2:, 1:-1] - points[:-2, 1:-1]
    # x right and y down span the image, so that their cross product points away from the camera.
    normals[1:-1, 1:-1] = np.cross(down, across)
    return normals


def _pieces(scene_map: Map, trajectory: Trajectory) -> list[NDArray[np.float64]]:
    """Centres of each component, in a merged map of each part by itself; of photographs in no order, each."""
    component = np.zeros(len(trajectory), np.int64) if trajectory.component is None else trajectory.component
    label = np.stack([component, scene_map.path_of(trajectory.frames)], 1)
    return [trajectory.center[(label == piece).all(1)] for piece in np.unique(label, axis=0)]


class PictureView(StrEnum):
    """From where a map is looked at."""

    TOP = "top"
    PERSPECTIVE = "perspective"
    BOTH = "both"


@dataclass(frozen=True)
class _Panel:
    """One picture of a scene, not yet labelled."""

    camera: PictureCamera
    image: NDArray[np.uint8]


def write_picture(
    path: Path | str, scenes: Sequence[PictureScene], *, view: PictureView, size: tuple[int, int]
) -> None:
    """Draws the scenes; `size` is width and height in pixels of the whole picture."""
    with replacing(path) as file:
        file.write(picture_png(scenes, view=view, size=size))


def picture_png(scenes: Sequence[PictureScene], *, view: PictureView, size: tuple[int, int]) -> bytes:
    """The picture of `write_picture`, as bytes of PNG."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    views = [PictureView.TOP, PictureView.PERSPECTIVE] if view is PictureView.BOTH else [view]
    figure = Figure(figsize=(size[0] / _DPI, size[1] / _DPI), dpi=_DPI, facecolor=BACKGROUND)
    panes = [(scene, one) for one in views for scene in scenes]
    num_columns = len(scenes) if len(scenes) > 1 else len(views) if size[0] >= size[1] else 1
    num_rows = len(panes) // num_columns
    pane_size = size[0] // num_columns, size[1] // num_rows
    for k, (scene, one) in enumerate(panes):
        row, column = divmod(k, num_columns)
        corner = column / num_columns, 1 - (row + 1) / num_rows
        ax = figure.add_axes((*corner, 1 / num_columns, 1 / num_rows))
        panel = _panel(scene, one, pane_size)
        _show(ax, panel, scene)
        if one is PictureView.TOP and not scene.poses.only_turns():  # else there is no length to compare
            _scale_bar(ax, panel.camera, scene.metres_per_unit)
        if row == 0:
            ax.text(
                0.985, 0.98, _wrapped(scene.title, pane_size[0]), color=_INK, fontsize=10, ha="right",
                va="top", transform=ax.transAxes, zorder=6,
            )  # fmt: skip
    _legend(figure.axes[0])
    for k in range(1, num_columns):
        figure.add_artist(Line2D([k / num_columns] * 2, [0, 1], color=_INK, linewidth=1, alpha=0.5))
    for k in range(1, num_rows):
        figure.add_artist(Line2D([0, 1], [k / num_rows] * 2, color=_INK, linewidth=1, alpha=0.5))
    out = io.BytesIO()
    figure.savefig(out, format="png", facecolor=BACKGROUND)
    return out.getvalue()


def _wrapped(title: str, pane_width: int) -> str:
    """A title in lines that leave room for the legend beside them."""
    longest = max(20, int(_TITLE_WIDTH * pane_width / _CHARACTER_WIDTH))
    return "\n".join(part for line in title.splitlines() for part in textwrap.wrap(line, longest))


def _panel(scene: PictureScene, view: PictureView, size: tuple[int, int]) -> _Panel:
    width, height = size[0] * _SUPERSAMPLING, size[1] * _SUPERSAMPLING
    pieces = [piece for pieces in scene.paths.values() for piece in pieces]
    path = np.concatenate([*pieces, scene.cameras.reshape(-1, 3)])  # all that is to be in the picture
    if view is PictureView.TOP:
        shown = scene.below
        camera = _top_camera(scene, scene.points[shown], path, (width, height))
    else:
        camera = _oblique_camera(scene, path, (width, height))
        shown = _facing(camera, scene)
    points, colours = scene.points[shown], scene.colours[shown]
    radius = _radius(camera, points, scene.spacing)
    image, depth = draw_points(camera, points, _lifted(colours), radius=radius)
    shade = eye_dome_shade(depth, extent=camera.extent, reach=_SUPERSAMPLING, strength=30.0)
    backdrop = np.array([int(BACKGROUND[k : k + 2], 16) for k in (1, 3, 5)], np.float32)
    drawn = np.where(np.isfinite(depth)[..., None], image * shade[..., None], backdrop)
    return _Panel(camera, np.clip(drawn, 0, 255).astype(np.uint8))


def _facing(camera: PictureCamera, scene: PictureScene) -> NDArray[np.bool_]:
    """(n,) whether the viewer is on the side from which a surface was measured: walls hide no room."""
    towards_viewer = camera.center - scene.points
    return ~(np.einsum("ni,ni->n", scene.normals, towards_viewer) < 0)


def _radius(camera: PictureCamera, points: NDArray[Any], spacing: float) -> NDArray[np.float32]:
    """(n,) of spots in pixels: large where points are few, so that they are not a fog, or near."""
    pixels, depth = camera.project(points)
    visible = ((pixels >= 0) & (pixels < camera.size)).all(1)
    width, height = camera.size
    radius = np.full(len(points), np.sqrt(_COVERED * width * height / (np.pi * max(1, int(visible.sum())))))
    if spacing:
        # Half the diagonal of a square of neighbours reaches its middle.
        scale = 1.0 if camera.parallel else 1 / depth[visible]
        radius[visible] = np.maximum(radius[visible], 0.75 * spacing * camera.focal_pixels * scale)
    return np.clip(radius, *_RADII).astype(np.float32)


def _sample(points: NDArray[np.float32]) -> NDArray[np.float32]:
    return points[:: max(1, len(points) // _FITTED_POINTS)]


def _top_camera(
    scene: PictureScene, points: NDArray[np.float32], path: NDArray[np.float64], size: tuple[int, int]
) -> PictureCamera:
    sample = _sample(points)
    axes = top_axes(scene.poses, sample, scene.up)
    low, high = bounds(sample @ axes.T, path @ axes.T)
    extent = np.maximum(high - low, 1e-6 + 1e-3 * float((high - low).max()))[:2]
    if (extent[0] < extent[1]) == (size[0] > size[1]):
        axes = np.array([[0.0, 1, 0], [-1, 0, 0], [0, 0, 1]]) @ axes
        extent = extent[::-1]
    low, high = bounds(sample @ axes.T, path @ axes.T)
    scale = float(((1 - 2 * _MARGIN) * np.array(size) / extent).min())
    return PictureCamera(axes, (low + high) / 2 @ axes, scale, size, parallel=True)


def _oblique_camera(scene: PictureScene, path: NDArray[np.float64], size: tuple[int, int]) -> PictureCamera:
    sample = _sample(scene.points)
    axes = oblique_axes(scene.poses, sample, scene.up)
    focal = max(size) / 2 / float(np.tan(np.radians(_HALF_ANGLE_DEG)))
    tangents = (1 - 2 * _MARGIN) * np.array(size) / 2 / focal
    center = standing_point(axes, tangents, sample, path)
    low, high = bounds((sample - center) @ axes[2:].T, (path - center) @ axes[2:].T)
    return PictureCamera(axes, center, focal, size, distance=float((low + high)[0]) / 2)


def _lifted(colours: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Brighter in the dark tones, which a dark ground would swallow."""
    return np.round(255 * (colours / 255) ** 0.7).astype(np.uint8)


def _show(ax: Axes, panel: _Panel, scene: PictureScene) -> None:
    width, height = panel.camera.size
    ax.imshow(panel.image, extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="antialiased")
    # The first path is that of the poses which place the points: it is drawn over the others.
    for order, (name, colour) in enumerate(_colours(scene).items()):
        for k, piece in enumerate(scene.paths[name]):
            pixels, _ = panel.camera.project(piece)
            label = name if k == 0 else None
            if len(piece) == 1:
                ax.plot(
                    *pixels.T, color=colour, label=label, zorder=3 - 0.1 * order,
                    marker="o", markersize=3, linestyle="none",
                )  # fmt: skip
                continue
            if name == TRUTH:
                ax.plot(*pixels.T, color="white", linestyle=(0, (4, 3)), linewidth=1.2, label=label, zorder=4)
                continue
            ax.plot(*pixels.T, color="black", linewidth=4, alpha=0.5, zorder=2 - 0.1 * order)
            ax.plot(
                *pixels.T,
                color=colour,
                linewidth=2,
                label=label,
                zorder=3 - 0.1 * order,
                solid_capstyle="round",
            )
    for line in scene.cameras:
        ax.plot(*panel.camera.project(line)[0].T, color=_INK, linewidth=0.8, alpha=0.8, zorder=3)
    ax.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    ax.set_axis_off()


def _colours(scene: PictureScene) -> dict[str, str]:
    found = [name for name in scene.paths if name != TRUTH]
    colours = dict(zip(found, _PATH_COLOURS, strict=False))
    return colours | ({TRUTH: "white"} if TRUTH in scene.paths else {})


def _legend(ax: Axes) -> None:
    ax.legend(
        loc="upper left", fontsize=11, labelcolor=_INK,
        facecolor=BACKGROUND, edgecolor="none", framealpha=0.75,
    )  # fmt: skip


def _scale_bar(ax: Axes, camera: PictureCamera, metres_per_unit: float | None) -> None:
    """A round length of about a fifth of the picture's width."""
    width, height = camera.size
    per_pixel = (metres_per_unit or 1.0) / camera.focal_pixels
    rough = 0.2 * width * per_pixel
    power = 10.0 ** np.floor(np.log10(rough))
    length = max(step * power for step in (1, 2, 5) if step * power <= rough)
    start, y = 0.04 * width, 0.95 * height
    ax.plot([start, start + length / per_pixel], [y, y], color=_INK, linewidth=3, solid_capstyle="butt")
    unit = "m" if metres_per_unit is not None else "unit" if length == 1 else "units"
    ax.text(start, y - 0.012 * height, f"{length:g} {unit}", color=_INK, fontsize=11, va="bottom")
