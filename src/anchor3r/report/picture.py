"""Pictures of a map, without a window: its points and paths from above and in perspective, as a PNG."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.export.cameras import frustum_depth, frustum_lines
from anchor3r.io.files import replacing
from anchor3r.io.pointcloud import Cloud, random_subset
from anchor3r.report.raster import PictureCamera, draw_points, eye_dome_shade
from anchor3r.store import Map
from anchor3r.trajectory import Trajectory, estimated_from_true_world

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRUTH = "ground truth"
"""The path of this name is drawn dashed."""
MAX_FRAMES = 2000
"""Frames whose points are drawn, evenly chosen from more."""
MAX_POINTS = 1_500_000
NUM_CAMERAS = 16
_FARTHEST = 12.0
"""Points farther from their camera than so many times the median depth are mostly noise."""
BACKGROUND = "#0f1319"
_INK = "#e8ebf0"
_PATH_COLOURS = ("#ff9d2e", "#4fc3f7", "#b388ff")
_DPI = 100
_SUPERSAMPLING = 2
_FIELD_OF_VIEW_DEG = 40.0
_ELEVATION_DEG = 35.0
_AZIMUTH_RAD = 0.9
"""Between the path's main direction and the viewer's."""
_BULK = (0.03, 0.97)
"""Quantiles of the points between which the picture is framed."""
_FITTED_POINTS, _FITTING_ROUNDS = 20_000, 6
_MARGIN = 0.06
"""Part of the picture that is left free around what is shown."""
_COVERED = 0.35
"""Part of the picture that points would cover if they lay side by side; decides their size."""
_RADII = (1.5, 6.4)
"""Smallest and largest spot, in pixels before the picture is reduced."""


@dataclass(frozen=True, kw_only=True)
class PictureScene:
    """n points and any number of paths in one world."""

    points: NDArray[np.float32]
    """(n, 3)"""
    colours: NDArray[np.uint8]
    """(n, 3) RGB"""
    below: NDArray[np.bool_]
    """(n,) whether a point is not higher than the camera that saw it, so that no roof hides the path"""
    paths: dict[str, list[NDArray[np.float64]]]
    """By name, the pieces (m, 3) of each; the first one is that of the poses which place the points"""
    cameras: NDArray[np.float64]
    """(k, m, 3) lines that show some of the cameras"""
    up: NDArray[np.float64]
    """(3,) of length one"""
    metres_per_unit: float | None
    """None where nothing says how long a unit is."""


def scene_of(
    scene_map: Map, poses: str, *, min_confidence: float = 0.0, max_points: int = MAX_POINTS
) -> PictureScene:
    """The map as the chosen poses have it, the other ones and the ground truth beside them."""
    trajectory = scene_map.trajectory(poses)
    if not len(trajectory):
        raise Anchor3RError(f"{scene_map.lack_of_poses()} There is nothing to draw.")
    up = _up(trajectory)
    # In place of the confidence, the cloud holds whether each point is below its camera.
    cloud = random_subset(_flagged(scene_map, trajectory, poses, up, min_confidence), max_points)
    paths = {poses: _pieces(trajectory)}
    paths |= {
        name: _pieces(scene_map.trajectory(name)) for name in scene_map.trajectory_names() if name != poses
    }
    truth = scene_map.true_trajectory()
    world_from_truth = None if truth is None else estimated_from_true_world(trajectory, truth)
    if truth is not None and world_from_truth is not None:
        paths[TRUTH] = [np.asarray(world_from_truth.apply(truth.center), np.float64)]
    return PictureScene(
        points=cloud.points,
        colours=cloud.colours,
        below=cloud.confidence > 0,
        paths=paths,
        cameras=_some_cameras(scene_map, trajectory),
        up=up,
        metres_per_unit=None if world_from_truth is None else float(1 / world_from_truth.scale),
    )


def _some_cameras(scene_map: Map, trajectory: Trajectory) -> NDArray[np.float64]:
    some = trajectory.select(np.unique(np.linspace(0, len(trajectory) - 1, NUM_CAMERAS).astype(int)))
    camera = scene_map.intrinsics(int(trajectory.frames[0]))
    return frustum_lines(some, camera, frustum_depth(trajectory))


def _up(trajectory: Trajectory) -> NDArray[np.float64]:
    """Cameras are held upright on average: the mean of their upward axes."""
    mean = -trajectory.rotation[:, 1].mean(0)
    length = float(np.linalg.norm(mean))
    return mean / length if length > 1e-3 else np.array([0.0, -1.0, 0.0])


def _flagged(
    scene_map: Map, trajectory: Trajectory, poses: str, up: NDArray[np.float64], min_confidence: float
) -> Iterator[Cloud]:
    frames = trajectory.frames[:: -(-len(trajectory) // MAX_FRAMES)].tolist()
    for pose, point_map in scene_map.iter_points(poses, frames):
        points = point_map.points_in_camera
        good = np.isfinite(points).all(-1) & (point_map.confidence >= min_confidence)
        if not good.any():
            continue
        distance = np.linalg.norm(points[good], axis=-1)
        good[good] &= distance <= _FARTHEST * np.median(distance)
        world = pose.to_world(points[good])
        below = (world - pose.center) @ up <= 0
        yield Cloud(world, point_map.colours[good], below.astype(np.float32))


def _pieces(trajectory: Trajectory) -> list[NDArray[np.float64]]:
    """One a component."""
    if trajectory.component is None:
        return [trajectory.center]
    return [trajectory.center[trajectory.component == c] for c in np.unique(trajectory.component)]


class View(StrEnum):
    """From where a map is looked at."""

    TOP = "top"
    PERSPECTIVE = "perspective"
    BOTH = "both"


@dataclass(frozen=True)
class _Panel:
    """One picture of a scene, not yet labelled."""

    camera: PictureCamera
    image: NDArray[np.uint8]


def write_picture(path: Path | str, scene: PictureScene, *, view: View, size: tuple[int, int]) -> None:
    """Draws the scene; `size` is width and height in pixels, of both views together."""
    with replacing(path) as file:
        file.write(picture_png(scene, view=view, size=size))


def picture_png(scene: PictureScene, *, view: View, size: tuple[int, int]) -> bytes:
    """The same as bytes."""
    from matplotlib.figure import Figure

    views = [View.TOP, View.PERSPECTIVE] if view is View.BOTH else [view]
    figure = Figure(figsize=(size[0] / _DPI, size[1] / _DPI), dpi=_DPI, facecolor=BACKGROUND)
    panel_size = size[0] // len(views), size[1]
    for k, one in enumerate(views):
        ax = figure.add_axes((k / len(views), 0, 1 / len(views), 1))
        panel = _panel(scene, one, panel_size)
        _show(ax, panel, scene)
        if one is View.TOP:
            _scale_bar(ax, panel.camera, scene.metres_per_unit)
        if k == 0:
            _legend(ax)
    out = io.BytesIO()
    figure.savefig(out, format="png", facecolor=BACKGROUND)
    return out.getvalue()


def _panel(scene: PictureScene, view: View, size: tuple[int, int]) -> _Panel:
    width, height = size[0] * _SUPERSAMPLING, size[1] * _SUPERSAMPLING
    shown = scene.below if view is View.TOP else np.ones(len(scene.points), bool)
    points, colours = scene.points[shown], scene.colours[shown]
    start = _camera_above if view is View.TOP else _camera_aside
    camera = _fitted(start(scene, (width, height)), scene, points)
    image, depth = draw_points(camera, points, _lifted(colours), radius=_radius(camera, points))
    shade = eye_dome_shade(depth, extent=camera.extent, reach=_SUPERSAMPLING, strength=30.0)
    backdrop = np.array([int(BACKGROUND[k : k + 2], 16) for k in (1, 3, 5)], np.float32)
    drawn = np.where(np.isfinite(depth)[..., None], image * shade[..., None], backdrop)
    return _Panel(camera, np.clip(drawn, 0, 255).astype(np.uint8))


def _radius(camera: PictureCamera, points: NDArray[Any]) -> float:
    """Of a spot in pixels: large where points are few, so that they are not a fog."""
    pixels, _ = camera.project(points)
    num_visible = max(1, int(((pixels >= 0) & (pixels < camera.size)).all(1).sum()))
    width, height = camera.size
    return float(np.clip(np.sqrt(_COVERED * width * height / (np.pi * num_visible)), *_RADII))


def _fitted(camera: PictureCamera, scene: PictureScene, points: NDArray[Any]) -> PictureCamera:
    """The camera moved so that all paths and the bulk of the points, but not their strays, fill the picture.

    A few rounds do, as in perspective what is near moves more than what is far.
    """
    centres = np.concatenate([piece for pieces in scene.paths.values() for piece in pieces])
    sample = points[:: max(1, len(points) // _FITTED_POINTS)]
    wanted = (1 - 2 * _MARGIN) * np.array(camera.size)
    for _ in range(_FITTING_ROUNDS):
        shown, _ = camera.project(centres)
        low, high = shown.min(0), shown.max(0)
        if len(sample):
            bulk = np.nanquantile(camera.project(sample)[0], _BULK, axis=0)
            # A wide plain must not make the path a dot: points add at most half of its extent on each side.
            reach = 0.5 * max(float((high - low).max()), 1e-3 * camera.size[0])
            low = np.minimum(low, np.maximum(bulk[0], low - reach))
            high = np.maximum(high, np.minimum(bulk[1], high + reach))
        zoom = float((wanted / np.maximum(high - low, 1e-9)).min())
        camera = camera.moved((low + high) / 2, zoom)
    return camera


def _ground_axes(scene: PictureScene) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two level directions, the first along which the path extends most."""
    centres = np.concatenate(next(iter(scene.paths.values())))
    level = np.eye(3) - np.outer(scene.up, scene.up)
    from_middle = (centres - centres.mean(0)) @ level
    # A camera that stands still leaves the choice to the second term.
    _, axes = np.linalg.eigh(from_middle.T @ from_middle + 1e-12 * level)
    along = axes[:, -1]
    if along @ (centres[-1] - centres[0]) < 0:
        along = -along
    return along, np.cross(scene.up, along)


def _camera_above(scene: PictureScene, size: tuple[int, int]) -> PictureCamera:
    along, aside = _ground_axes(scene)
    if size[0] < size[1]:
        along, aside = aside, -along
    centre, extent = _path_extent(scene)
    return PictureCamera(np.stack([along, -aside, -scene.up]), centre, size[0] / extent, size, parallel=True)


def _camera_aside(scene: PictureScene, size: tuple[int, int]) -> PictureCamera:
    """From behind, aside and above, far enough off to have the whole path before it."""
    along, aside = _ground_axes(scene)
    elevation = np.radians(_ELEVATION_DEG)
    heading = np.cos(_AZIMUTH_RAD) * along + np.sin(_AZIMUTH_RAD) * aside
    forward = np.cos(elevation) * heading - np.sin(elevation) * scene.up
    right = np.cross(heading, scene.up)
    focal = size[0] / 2 / np.tan(np.radians(_FIELD_OF_VIEW_DEG) / 2)
    centre, extent = _path_extent(scene)
    camera_from_world = np.stack([right, np.cross(forward, right), forward])
    return PictureCamera(
        camera_from_world, centre - 3 * extent * forward, float(focal), size, distance=3 * extent
    )


def _path_extent(scene: PictureScene) -> tuple[NDArray[np.float64], float]:
    """Middle (3,) and size of the path of the poses which place the points."""
    centres = np.concatenate(next(iter(scene.paths.values())))
    low, high = centres.min(0), centres.max(0)
    return (low + high) / 2, max(float(np.linalg.norm(high - low)), 1e-3)


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
    unit = "units" if metres_per_unit is None else "m"
    ax.text(start, y - 0.012 * height, f"{length:g} {unit}", color=_INK, fontsize=11, va="bottom")
