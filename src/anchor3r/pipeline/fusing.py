"""Fusing the depths of a map into one surface, kept beside the map and made again when poses have changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anchor3r.dense.fusion import Fusion, FusionConfig, auto_voxel
from anchor3r.dense.keyframe_depth import DepthOrigin, KeyframeDepth
from anchor3r.dense.normals import normals_of
from anchor3r.dense.surface import Components
from anchor3r.dense.volume import VOXEL, VOXELS, VolumeConfig
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.io.mesh import WaitingMesh, vertex_records, waiting_mesh
from anchor3r.io.scratch import ScratchRecords
from anchor3r.predictors.confidence import LIKELY
from anchor3r.store import Map, MapWriter, best_poses, load_map
from anchor3r.store.fused import FUSED, pose_checksum
from anchor3r.trajectory import FramePose, Trajectory

Depths = Literal["measured", "predicted"]
Progress = Callable[[str, int, int], None]
"""Told of a stage, what of it is done and how much there is."""
_SAMPLED_VIEWS = 50
"""Depth images that the size of a voxel follows from, evenly chosen from more."""


@dataclass(frozen=True, kw_only=True)
class FuseSettings:
    """How the depths of a map become one surface."""

    poses: str | None = None
    """online, or the name of a refinement; the refined ones if there are any."""
    depths: Depths | None = None
    """measured: those of anchor3r densify; predicted: the point maps that the predictor gave as it mapped.
    Measured ones if there are any."""
    voxel: float | None = None
    """Side of a voxel in the map's unit, below which nothing is resolved; if not given, three pixels of the
    depth images at their median depth."""
    confidence: float = LIKELY
    """Leave out depths that are less likely than this to be within 5 %."""
    min_views: int = FusionConfig.min_views
    """Keep surfaces that so many images saw."""
    min_component: int = FusionConfig.min_component
    """Leave out pieces of surface with fewer vertices than this that nothing holds to the rest."""
    truncation: float = VolumeConfig.truncation_voxels
    """Distance from a surface in voxels over which depths are averaged: more for noisier depths, less for
    thinner things."""
    memory_mb: int = 400
    """Memory for voxels; what is more waits in a temporary file in the folder of the map."""

    def __post_init__(self) -> None:
        if self.voxel is not None and not (np.isfinite(self.voxel) and self.voxel > 0):
            raise Anchor3RError(f"--voxel must be a positive length, not {self.voxel}")
        if not 0 <= self.confidence <= 1:
            raise Anchor3RError(f"--confidence is a probability between 0 and 1, not {self.confidence}")
        for name, least in (("min_views", 1), ("min_component", 0), ("truncation", 2), ("memory_mb", 16)):
            if getattr(self, name) < least:
                option = name.replace("_", "-")
                raise Anchor3RError(f"--{option} must be at least {least}, not {getattr(self, name)}")

    def fusion(self) -> FusionConfig:
        """What the fusion itself is told."""
        blocks = self.memory_mb * 1_000_000 // (VOXELS * VOXEL.itemsize)
        return FusionConfig(
            volume=VolumeConfig(truncation_voxels=self.truncation, max_blocks=blocks),
            min_confidence=self.confidence,
            min_views=self.min_views,
            min_component=self.min_component,
        )


@dataclass(frozen=True)
class _Views:
    """The depth images of a map that are fused, in the order of their frames."""

    scene_map: Map
    depths: Depths
    poses: Trajectory
    """Of the frames that have a depth image."""

    def __len__(self) -> int:
        return len(self.poses)

    def read(self, k: int) -> tuple[KeyframeDepth, FramePose]:
        """The k-th, in the scale of its pose."""
        pose = self.poses.pose(k)
        found = predicted_depth(self.scene_map, pose)
        assert found is not None, "frames were chosen that have points"
        return found, pose

    def some(self) -> Iterator[KeyframeDepth]:
        """Evenly chosen ones."""
        for k in np.unique(np.linspace(0, len(self) - 1, min(_SAMPLED_VIEWS, len(self))).astype(int)):
            yield self.read(int(k))[0]

    def components(self) -> list[list[int]]:
        """Which views belong to each component."""
        assert self.poses.component is not None
        labels = self.poses.component
        return [np.flatnonzero(labels == label).tolist() for label in np.unique(labels)]


def fuse_map(
    folder: Path | str,
    settings: FuseSettings | None = None,
    *,
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Fuses the depths of a map into a surface beside it, MAP/fused.ply, and returns a summary (JSON).

    A surface that is there is replaced once the new one is whole; an interruption leaves it as it was.
    Components that no measurement relates are fused each by itself, and lie in one file.
    """
    settings, folder = settings or FuseSettings(), Path(folder)
    with ExitStack() as stack:
        stack.enter_context(MapWriter.open(folder))  # two that fuse one map would write over each other
        scene_map = stack.enter_context(load_map(folder))
        views = _chosen_views(scene_map, settings)
        config = settings.fusion()
        voxel = settings.voxel or auto_voxel(views.some(), config)
        if voxel is None:
            raise Anchor3RError(
                f"no depth of {folder} has a confidence of {settings.confidence:g}; lower --confidence"
            )
        waiting = stack.enter_context(waiting_mesh(folder))
        components = _fuse(views, voxel, config, waiting, folder, progress)
        kept = components.large(config.min_component)
        if not kept.any():
            raise Anchor3RError(
                f"the depths of {folder} agree on no surface that {config.min_views} images saw; lower "
                "--min-views or --min-component, or use larger voxels"
            )
        poses = settings.poses or best_poses(scene_map.trajectory_names())
        identity = {
            "poses": poses,
            "pose_checksum": pose_checksum(views.poses),
            "frames": views.poses.frames.tolist(),
            "depths": views.depths,
            "voxel": voxel,
            "settings": asdict(settings),
        }
        num_vertices, num_faces = waiting.write(folder / FUSED, kept, json.dumps(identity))
    return {
        "map": str(folder), "file": str(folder / FUSED), "poses": poses, "depths": views.depths,
        "views": len(views), "voxel": voxel, "vertices": num_vertices, "faces": num_faces,
        "left_out": int(len(kept) - num_vertices),
    }  # fmt: skip


def _chosen_views(scene_map: Map, settings: FuseSettings) -> _Views:
    poses = settings.poses or best_poses(scene_map.trajectory_names())
    trajectory = scene_map.trajectory(poses)
    if not len(trajectory):
        raise Anchor3RError(f"{scene_map.lack_of_poses()} There is nothing to fuse.")
    with_points = scene_map.frames_with_points()
    chosen = trajectory.select(np.isin(trajectory.frames, with_points))
    if not len(chosen):
        raise Anchor3RError(
            f"{scene_map.folder} has no depths to fuse; run anchor3r densify {scene_map.folder} first"
        )
    return _Views(scene_map, "predicted", chosen)


def _fuse(
    views: _Views, voxel: float, config: FusionConfig, waiting: WaitingMesh, scratch: Path, progress: Progress
) -> Components:
    """Puts the surface of every component into the waiting mesh; returns what hangs together."""
    pieces, done = Components(), 0
    for rows in views.components():
        with ScratchRecords(scratch, VOXEL, VOXELS) as spill:
            fusion = Fusion(voxel, config, spill)
            for k in rows:
                view, pose = views.read(k)
                fusion.add(view, pose.camera_from_world)
                done += 1
                progress("fusing depths", done, len(views))
            for part in fusion.surface(first=waiting.num_vertices):
                pieces.add(part)
                waiting.add(
                    vertex_records(part.points, part.normals, part.colours, part.confidence, part.frames),
                    part.faces,
                )
    return pieces


def predicted_depth(scene_map: Map, pose: FramePose) -> KeyframeDepth | None:
    """The point map of a frame as a depth image in the scale of its pose; None if it has none.

    Only its depths are taken: a point map that its camera does not explain is placed along the camera's rays.
    """
    point_map = scene_map.points(pose.frame)
    if point_map is None:
        return None
    height, width = point_map.points_in_camera.shape[:2]
    camera = scene_map.intrinsics(pose.frame) or _fitted(point_map.points_in_camera)
    camera = camera.resized(width, height)
    depth = point_map.points_in_camera[..., 2] * np.float32(np.exp(pose.log_scale))
    known = np.isfinite(depth) & (depth > 0)
    return KeyframeDepth(
        frame=pose.frame,
        camera=camera,
        depth=np.where(known, depth, np.nan).astype(np.float32),
        confidence=np.where(known, point_map.confidence, 0).astype(np.float32),
        normals_in_camera=normals_of(depth, camera),
        origin=np.where(known, DepthOrigin.INTERPOLATED, DepthOrigin.NONE).astype(np.uint8),
        colours=point_map.colours,
    )


def _fitted(points: np.ndarray) -> Pinhole:
    """A camera with square pixels and a centred principal point that suits a point map (h, w, 3)."""
    height, width = points.shape[:2]
    u = np.arange(width) - (width - 1) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        focal = u * points[..., 2] / points[..., 0]
    sure = np.isfinite(focal) & (np.abs(u) > 0.1 * width)
    f = float(np.median(focal[sure])) if sure.any() else float(width)
    return Pinhole(f, f, (width - 1) / 2, (height - 1) / 2, width, height)
