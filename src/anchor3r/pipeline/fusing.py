"""Fusing the depths of a map into one surface, kept beside the map and made again when poses have changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anchor3r.dense.fusion import Fusion, FusionConfig, auto_voxel
from anchor3r.dense.keyframe_depth import DepthOrigin, KeyframeDepth, normals_of
from anchor3r.dense.surface import Components
from anchor3r.dense.volume import VOXEL, VOXELS, VolumeConfig
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.io.mesh import WaitingMesh, vertex_records, waiting_mesh
from anchor3r.io.scratch import ScratchRecords
from anchor3r.pipeline.settings import Depths, FuseSettings, Progress, unwatched
from anchor3r.store import Map, MapWriter, best_poses, load_map
from anchor3r.store.fused import FUSED, pose_checksum
from anchor3r.threads import chosen_threads
from anchor3r.trajectory import FramePose, Trajectory

_SAMPLED_VIEWS = 50
"""Depth images that the size of a voxel follows from, evenly chosen from more."""


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
        if self.depths == "measured":
            return self.scene_map.keyframe_depth(pose.frame), pose
        found = predicted_depth(self.scene_map, pose)
        assert found is not None, "frames were chosen that have points"
        return found, pose

    def in_order(self, rows: list[int], *, ahead: bool) -> Iterator[tuple[KeyframeDepth, FramePose]]:
        """Those of some rows, at least one; ahead: each is read by another thread while the last is used."""
        if not ahead:
            yield from map(self.read, rows)
            return
        with ThreadPoolExecutor(1) as reader:
            following = reader.submit(self.read, rows[0])
            for k in rows[1:]:
                coming, following = following, reader.submit(self.read, k)
                yield coming.result()
            yield following.result()

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
    progress: Progress = unwatched,
) -> dict[str, Any]:
    """Fuses the depths of a map into a surface beside it, MAP/fused.ply, and returns a summary (JSON).

    A surface that is there is replaced once the new one is whole; an interruption leaves it as it was.
    Components that no measurement relates are fused each by itself, and lie in one file.
    """
    settings, folder = settings or FuseSettings(), Path(folder)
    with ExitStack() as stack:
        writer = stack.enter_context(MapWriter.open(folder))
        scene_map = stack.enter_context(load_map(folder))
        views = _chosen_views(scene_map, settings)
        config = _fusion_config(settings)
        voxel = settings.voxel or auto_voxel(views.some(), config)
        if voxel is None:
            raise Anchor3RError(
                f"no depth of {folder} has a confidence of {settings.confidence:g}; lower --confidence"
            )
        waiting = stack.enter_context(waiting_mesh(folder))
        components = _fuse(views, voxel, config, waiting, folder, progress)
        kept = components.large(config.min_component)
        if not kept.any():
            raise Anchor3RError(_no_surface(folder, len(kept), voxel, config))
        poses = settings.poses or best_poses(scene_map.trajectory_names())
        identity = {
            "poses": poses,
            "pose_checksum": pose_checksum(views.poses),
            "frames": views.poses.frames.tolist(),
            "depths": views.depths,
            "voxel": voxel,
            "settings": {name: value for name, value in asdict(settings).items() if name != "threads"},
        }
        num_vertices, num_faces = waiting.write(folder / FUSED, kept, json.dumps(identity))
        summary = {
            "map": str(folder), "file": str(folder / FUSED), "poses": poses, "depths": views.depths,
            "views": len(views), "voxel": voxel, "vertices": num_vertices, "faces": num_faces,
            "left_out": int(len(kept) - num_vertices), "remarks": _remarks(views, poses),
        }  # fmt: skip
        writer.write_meta(fusion=summary)  # whoever looks at the map sees that it has changed
    return summary


def _remarks(views: _Views, poses: str) -> list[str]:
    """What the user should know of the depths that were fused."""
    densified = views.scene_map.densification()
    if views.depths == "predicted" or densified is None:
        return []
    again = f"run anchor3r densify {views.scene_map.folder} again to measure them with these"
    remarks = []
    if not densified.complete:
        remarks.append(
            f"depths are measured of only a part of the keyframes; anchor3r densify {views.scene_map.folder} "
            "goes on with the rest"
        )
    current = views.scene_map.trajectory(poses)
    if densified.poses != poses or densified.identity["poses"] != pose_checksum(current):
        remarks.append(f"the depths were measured with other poses than {poses} ones are now; {again}")
    return remarks


def _fusion_config(settings: FuseSettings) -> FusionConfig:
    blocks = settings.memory_mb * 1_000_000 // (VOXELS * VOXEL.itemsize)
    return FusionConfig(
        volume=VolumeConfig(
            truncation_voxels=settings.truncation,
            max_blocks=blocks,
            threads=chosen_threads(settings.threads, gains=True),
        ),
        min_confidence=settings.confidence,
        min_views=settings.min_views,
        min_component=settings.min_component,
    )


def _chosen_views(scene_map: Map, settings: FuseSettings) -> _Views:
    poses = settings.poses or best_poses(scene_map.trajectory_names())
    trajectory = scene_map.trajectory(poses)
    if not len(trajectory):
        raise Anchor3RError(f"{scene_map.lack_of_poses()} There is nothing to fuse.")
    measured, folder = scene_map.keyframe_depth_frames(), scene_map.folder
    depths = settings.depths
    frames = measured if depths == "measured" else scene_map.frames_with_points()
    chosen = trajectory.select(np.isin(trajectory.frames, frames))
    if not len(chosen):
        if depths == "predicted":
            raise Anchor3RError(f"{folder} has no point maps to fuse: its predictor gave none")
        raise Anchor3RError(
            f"{folder} has no measured depths to fuse; run anchor3r densify {folder} first, or fuse the "
            "predictor's own point maps with --depths predicted"
        )
    return _Views(scene_map, depths, chosen)


def _fuse(
    views: _Views, voxel: float, config: FusionConfig, waiting: WaitingMesh, scratch: Path, progress: Progress
) -> Components:
    """Puts the surface of every component into the waiting mesh; returns what hangs together."""
    pieces, done = Components(), 0
    for rows in views.components():
        with ScratchRecords(scratch, VOXEL, VOXELS) as spill:
            fusion = Fusion(voxel, config, spill)
            for view, pose in views.in_order(rows, ahead=config.volume.threads > 1):
                fusion.add(view, pose.camera_from_world)
                done += 1
                progress("fusing depths", done, len(views))
            num_parts = fusion.num_parts()
            for k, part in enumerate(fusion.surface(first=waiting.num_vertices)):
                progress("extracting the surface", k + 1, num_parts)
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


def _no_surface(folder: Path, num_vertices: int, voxel: float, config: FusionConfig) -> str:
    """Why nothing was kept of the vertices that there were."""
    if not num_vertices:
        return (
            f"the depths of {folder} agree on no surface that {config.min_views} images saw; lower "
            f"--min-views, or use larger voxels than {voxel:.3g} (--voxel)"
        )
    return (
        f"the surface of {folder} has {num_vertices} vertices, all in pieces of fewer than "
        f"{config.min_component}; lower --min-component, or try other voxels than {voxel:.3g} (--voxel)"
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
