"""`anchor3r export`: a map in the formats of other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from anchor3r.commands.map import NOT_A_RECONSTRUCTION
from anchor3r.errors import Anchor3RError
from anchor3r.outputs.trajectories import Gaps

if TYPE_CHECKING:
    from anchor3r.store import Map
    from anchor3r.trajectory import Trajectory


def export(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MAP")],
    out: Path,
    format: Literal["tum", "kitti", "ply"],
    poses: str | None = None,
    component: int | None = None,
    gaps: Gaps = Gaps.ERROR,
    confidence: float = 0.0,
    voxel: float | None = None,
) -> None:
    """Hand a map to other programs.

    Args:
        folder: Folder of the map; it may still be growing.
        out: File to write.
        format: tum and kitti are trajectories (camera to world) as text, ply is a binary point cloud.
        poses: online or offline; offline if the map was refined.
        component: Only this part of a map whose tracking broke; all of them if not given.
        gaps: What a kitti file, which has a line for every frame, says of a frame without a pose: refuse
            to write, or hold the pose of the frame before.
        confidence: Leave out points below this confidence.
        voxel: Keep one point for each cube of this side, in the map's unit; every point if not given.
    """
    from anchor3r.store import load_map

    with load_map(folder) as source:
        if poses is None:
            poses = "offline" if "offline" in source.trajectory_names() else "online"
        trajectory = _chosen_part(source, poses, component)
        if format == "ply":
            count = _write_cloud(source, poses, trajectory, out, confidence, voxel)
            what = f"{count} points"
        else:
            _write_trajectory(source, poses, trajectory, out, format, gaps)
            what = f"{len(trajectory)} poses"
        print(f"{out}: {what} of {folder} ({poses} poses)")
        if source.meta.get("ground_truth_predictor"):
            print(NOT_A_RECONSTRUCTION)


def _chosen_part(source: Map, poses: str, component: int | None) -> Trajectory:
    trajectory = source.trajectory(poses)
    assert trajectory.component is not None
    parts = sorted(set(trajectory.component.tolist()))
    if component is not None:
        trajectory = trajectory.select(trajectory.component == component)
    elif len(parts) > 1:
        print(
            f"anchor3r: tracking broke, so the map has the components {parts}, which no measurement relates; "
            "they are all written. Choose one with --component",
            file=sys.stderr,
        )
    if not len(trajectory):
        raise Anchor3RError(
            f"{source.folder} has no {poses} poses"
            + (f" in component {component}; its components are {parts}" if component is not None else " yet")
        )
    return trajectory


def _write_trajectory(
    source: Map, poses: str, trajectory: Trajectory, out: Path, format: str, gaps: Gaps
) -> None:
    from anchor3r.outputs.trajectories import write_kitti, write_tum

    if format == "tum":
        write_tum(out, trajectory, comment=_origin(source, poses))
        return
    meta = source.meta["identity"]
    indices = source.frames().index
    # Frames that could not be decoded have their line too.
    frames = range(meta.get("start", int(indices[0])), int(indices[-1]) + 1, meta.get("stride", 1))
    write_kitti(out, trajectory, frames=frames, gaps=gaps)


def _write_cloud(
    source: Map, poses: str, trajectory: Trajectory, out: Path, confidence: float, voxel: float | None
) -> int:
    from anchor3r.outputs.pointcloud import map_clouds, voxel_downsampled, write_ply

    frames = trajectory.frames.tolist()
    clouds = map_clouds(source, poses=poses, min_confidence=confidence, frames=frames)
    if voxel is not None:
        clouds = voxel_downsampled(clouds, voxel, scratch=out.parent)
    return write_ply(out, clouds, comment=_origin(source, poses))


def _origin(source: Map, poses: str) -> str:
    """One line about where the numbers come from."""
    meta = source.meta
    identity = meta.get("identity", {})
    text = f"anchor3r: {poses} poses of {identity.get('source')}, predictor {identity.get('predictor')}"
    return f"{text}; {NOT_A_RECONSTRUCTION}" if meta.get("ground_truth_predictor") else text
