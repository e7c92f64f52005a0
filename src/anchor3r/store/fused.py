"""The surface that was fused from a map's depths: a PLY mesh beside the database, which says what it is of.

It is one file that is replaced as a whole, and its header has the identity of all that it was made from, so
that a surface of poses that were refined again since is known to be stale.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.io.inputs import decoding, parse_json
from anchor3r.io.mesh import Mesh, insist_on_vertices, read_mesh_ply
from anchor3r.io.pointcloud import Cloud
from anchor3r.store.pointmaps import PointMap
from anchor3r.store.reader import Map
from anchor3r.trajectory import Trajectory

FUSED = "fused.ply"
"""File of the surface in the folder of its map."""
_BATCH = 500_000


@dataclass(frozen=True)
class FusedSurface:
    """A mesh in the world of some of a map's poses."""

    mesh: Mesh
    identity: dict[str, Any]
    """What it was made from: poses and their checksum, frames, depths, settings, voxel (JSON)."""

    @property
    def poses(self) -> str:
        """Name of the poses that it was fused with."""
        return str(self.identity["poses"])

    @property
    def voxel(self) -> float:
        """Side of a voxel, in the map's unit."""
        return float(self.identity["voxel"])

    def __len__(self) -> int:
        """Number of vertices."""
        return len(self.mesh.vertices)

    def clouds(self, min_confidence: float = 0.0, frames: NDArray[np.int64] | None = None) -> Iterator[Cloud]:
        """The vertices as points with normals, batch by batch; only those first seen in these frames."""
        for start in range(0, len(self), _BATCH):
            batch = slice(start, start + _BATCH)
            confidence = self.mesh.vertices["confidence"][batch]
            chosen = confidence >= min_confidence
            if frames is not None:
                chosen &= np.isin(self.mesh.vertices["frame"][batch], frames)
            rows = start + np.flatnonzero(chosen)
            yield Cloud(
                self.mesh.points(rows), self.mesh.colours(rows), confidence[chosen], self.mesh.normals(rows)
            )

    @cached_property
    def _by_frame(self) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
        frames = np.array(self.mesh.vertices["frame"])
        order = np.argsort(frames, kind="stable")
        return frames[order], order

    def seen_first_in(self, frame: int, poses: Trajectory) -> PointMap | None:
        """The points of one frame in its own camera and scale, as a point map of one row.

        poses: those that the surface was fused with.
        """
        frames, order = self._by_frame
        first, last = np.searchsorted(frames, [frame, frame + 1])
        row = int(np.searchsorted(poses.frames, frame))
        if first == last or row >= len(poses) or poses.frames[row] != frame:
            return None
        chosen, pose = order[first:last], poses.pose(row)
        offset = self.mesh.points(chosen).astype(np.float64) - pose.center
        in_camera = offset @ pose.rotation.T / np.exp(pose.log_scale)
        return PointMap(
            in_camera[None].astype(np.float32),
            self.mesh.colours(chosen)[None],
            self.mesh.vertices["confidence"][chosen][None],
        )


def read_fused(folder: Path) -> FusedSurface | None:
    """Whatever surface lies in the folder of a map; None if there is none."""
    path = folder / FUSED
    if not path.is_file():
        return None
    mesh = read_mesh_ply(path)
    with decoding(str(path), "remove it and run anchor3r fuse again"):
        identity = parse_json(mesh.about, str(path))
        frames, voxel = identity["frames"], identity["voxel"]
        if not (isinstance(identity["poses"], str) and isinstance(identity["pose_checksum"], int)):
            raise TypeError("it does not say what it is of")
        if not all(isinstance(frame, int) for frame in frames) or not 0 < voxel < np.inf:
            raise ValueError("it does not say which frames it is of")
    # Faces are checked where they are used: most look at vertices only, and faces may be gigabytes.
    insist_on_vertices(mesh, path)
    return FusedSurface(mesh, identity)


def fused_surface(scene_map: Map, poses: str) -> FusedSurface | None:
    """The surface of the map, if it was fused with poses of this name and they are still the same."""
    return fused_or_reason(scene_map, poses)[0]


def fused_or_reason(scene_map: Map, poses: str) -> tuple[FusedSurface | None, str]:
    """The surface of the map as `fused_surface`; where one of other poses was fused, why it is none."""
    found = read_fused(scene_map.folder)
    if found is None:
        return None, ""
    again = f"run anchor3r fuse {scene_map.folder} again"
    if found.poses != poses:
        return None, f"the fused surface is of {found.poses} poses; {again} with --poses {poses}"
    if is_stale(found, scene_map):
        return None, f"the fused surface is of {poses} poses that have changed since; {again}"
    return found, ""


def is_stale(fused: FusedSurface, scene_map: Map) -> bool:
    """Whether the poses that it was fused with have changed or gone since."""
    if fused.poses not in scene_map.trajectory_names():
        return True
    trajectory = scene_map.trajectory(fused.poses)
    used = trajectory.select(np.isin(trajectory.frames, fused.identity["frames"]))
    return pose_checksum(used) != fused.identity["pose_checksum"]


def pose_checksum(poses: Trajectory) -> int:
    """Another number for other frames, poses or scales."""
    total = 0
    for column in (poses.frames, poses.rotation, poses.center, poses.log_scale):
        total = total if column is None else zlib.crc32(np.ascontiguousarray(column).tobytes(), total)
    return total
