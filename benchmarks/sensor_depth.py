"""Whether the true poses of a recording agree with its own depth images, and whether those show planes flat.

Pairs of depth images are registered to each other, point to plane, beginning with the true poses. If these
are right they stay as they are: prints how far the surfaces lie apart before and after, by which factor the
registered motions turn (about x, y and z of the camera) and go compared with the true ones, and with --map
compared with those of a map of the same frames. Then how much the planes that are seen bend: c, where a depth
is 1 + c tan² of its angle off the axis times what it should be. Depth that bends makes whoever registers it
turn by 1 - 2c times what the camera did. Last the registration with depth straightened by the median bend.

    python benchmarks/sensor_depth.py 7scenes:DATA/redkitchen/seq-01 --map m
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from numpy.typing import NDArray

from anchor3r.dense.dominant_planes import dominant_planes
from anchor3r.dense.slanted_refinement import fitted_slopes, plane_normals
from anchor3r.geometry import SE3, Array, Pinhole
from anchor3r.sources import Source, open_source
from anchor3r.store import best_poses, load_map
from anchor3r.trajectory import Trajectory

_REACH_M = 0.1
"""Points farther apart than this are of different surfaces."""
_NOISE = 0.0015
"""Standard deviation of depth at one metre; it grows with the square of the distance."""
_PLANE_TOLERANCE = 0.015
_LEAST_PLANE = 0.08
"""Of the image; smaller planes do not tell how they bend,"""
_LEAST_SPREAD = 0.02
"""nor those over which tan² changes by less than this, beyond what tilting the plane explains."""


@dataclass(frozen=True, kw_only=True)
class DepthView:
    """(h, w) pixels of a frame."""

    camera: Pinhole
    camera_from_world: SE3
    depth: NDArray[np.float32]
    """Metres; 0 where there is none."""
    points: Array
    normals: Array
    """NaN where there are none."""


def tan_squared(camera: Pinhole) -> Array:
    """(h, w) of the angle off the axis."""
    v, u = np.mgrid[: camera.height, : camera.width]
    return np.asarray(((u - camera.cx) / camera.fx) ** 2 + ((v - camera.cy) / camera.fy) ** 2)


def view_of(source: Source, frame: int, bend: float) -> DepthView:
    """With depth straightened by what it is known to bend."""
    found = source.read(frame)
    if found.depth_m is None or found.intrinsics is None or found.camera_from_world is None:
        raise SystemExit(f"frame {frame} has no depth, camera or pose")
    depth = np.asarray(found.depth_m / (1 + bend * tan_squared(found.intrinsics)), np.float32)
    with np.errstate(divide="ignore"):
        inverse = np.where(depth > 0, 1 / depth, np.nan).astype(np.float32)
    normals = plane_normals(inverse, *fitted_slopes(inverse, part=0.1, radius=3), found.intrinsics)
    points = found.intrinsics.unproject_map(np.where(depth > 0, depth, np.nan).astype(np.float64))
    return DepthView(
        camera=found.intrinsics, camera_from_world=found.camera_from_world, depth=depth,
        points=np.asarray(points), normals=normals.astype(np.float64),
    )  # fmt: skip


def register(source: DepthView, target: DepthView) -> tuple[SE3, float, float]:
    """target_from_source, and how far the surfaces lie apart (part of the depth) before and after."""
    points = source.points[::2, ::2].reshape(-1, 3)
    points = points[np.isfinite(points).all(-1)]
    motion, apart = target.camera_from_world @ source.camera_from_world.inverse(), []
    for _ in range(25):
        moved, normal, off = _matches(motion.apply(points), target)
        apart.append(float(np.mean(np.abs(off) / moved[:, 2])))
        sigma = _NOISE * moved[:, 2] ** 2
        weight = 1 / (sigma * (1 + (off / (2 * sigma)) ** 2)) ** 2
        jacobian = np.concatenate([np.cross(moved, normal), normal], -1)
        weighted = jacobian * weight[:, None]
        step = np.linalg.solve(weighted.T @ jacobian, -weighted.T @ off)
        motion = SE3.exp(step) @ motion
        if np.linalg.norm(step) < 1e-6:
            break
    return motion, apart[0], apart[-1]


def _matches(points: Array, target: DepthView) -> tuple[Array, Array, Array]:
    """Of points (n, 3) in the target's camera those on its surface, its normals, their distances."""
    camera = target.camera
    points = points[points[:, 2] > 0.2]
    u = np.rint(points[:, 0] / points[:, 2] * camera.fx + camera.cx).astype(int)
    v = np.rint(points[:, 1] / points[:, 2] * camera.fy + camera.cy).astype(int)
    inside = (u >= 0) & (v >= 0) & (u < camera.width) & (v < camera.height)
    points, u, v = points[inside], u[inside], v[inside]
    offset, normal = points - target.points[v, u], target.normals[v, u]
    near = (np.linalg.norm(offset, axis=-1) < _REACH_M) & np.isfinite(normal).all(-1)
    return points[near], normal[near], np.einsum("ni,ni->n", offset[near], normal[near])


def bends(view: DepthView) -> list[tuple[float, float]]:
    """Distance and c of each large plane: inverse depth is linear in the image and times 1 - c tan²."""
    known = view.depth > 0
    with np.errstate(divide="ignore"):
        inverse = np.where(known, 1 / view.depth, 0)
    v, u = np.mgrid[: known.shape[0], : known.shape[1]].astype(float)
    square, found = tan_squared(view.camera), []
    for plane in dominant_planes(inverse.astype(np.float32), known, 4).astype(float):
        bend = middle = 0.0
        for _ in range(6):
            flat = plane[0] * u + plane[1] * v + plane[2]
            with np.errstate(divide="ignore", invalid="ignore"):
                off = inverse / flat - 1 + bend * (square - middle)
            on = known & (flat > 0) & (np.abs(off) < _PLANE_TOLERANCE)
            if on.mean() < _LEAST_PLANE:
                break
            middle = float(square[on].mean())
            linear = np.stack([u[on], v[on], np.ones(on.sum())], -1) / flat[on][:, None]
            columns = np.concatenate([linear, middle - square[on][:, None]], -1)
            *plane, bend = np.linalg.lstsq(columns, inverse[on] / flat[on], rcond=None)[0]
        else:
            explained = linear @ np.linalg.lstsq(linear, columns[:, 3], rcond=None)[0]
            if np.std(columns[:, 3] - explained) > _LEAST_SPREAD:
                found.append((float(np.median(view.depth[on])), float(bend)))
    return found


def ratio(of: Array, to: Array) -> Array:
    """By which factor columns (n, k) are larger than others."""
    return np.asarray((of * to).sum(0) / (to * to).sum(0))


def compare(source: Source, frames: list[int], step: int, bend: float, poses: Trajectory | None) -> None:
    registered, true, of_map, apart = [], [], [], []
    for frame in frames:
        first, second = view_of(source, frame, bend), view_of(source, frame + step, bend)
        motion, *distances = register(first, second)
        registered.append(motion.log())
        true.append((second.camera_from_world @ first.camera_from_world.inverse()).log())
        apart.append(distances)
        if poses is not None:
            one, other = np.searchsorted(poses.frames, [frame, frame + step])
            of_map.append((poses.camera_from_world[other] @ poses.camera_from_world[one].inverse()).log())
    found, stated = np.array(registered), np.array(true)
    before, after = 1000 * np.mean(apart, 0)
    angle = np.degrees(np.median(np.linalg.norm(found[:, :3] - stated[:, :3], axis=-1)))
    path = float(ratio(found[:, 3:].reshape(-1, 1), stated[:, 3:].reshape(-1, 1))[0])
    turned = ratio(found[:, :3], stated[:, :3]).round(3)
    print(
        f"depth straightened by {bend:+.3f}: surfaces {before:.1f} mm a metre apart by the true poses, "
        f"{after:.1f} registered, {angle:.2f}° away in the median; turned by {turned} times the true one "
        f"and moved by {path:.3f} times the true translation"
    )
    if of_map:
        turned = ratio(found[:, :3], np.array(of_map)[:, :3]).round(3)
        print(f"  and turned by {turned} times the map's rotation")


def main(recording: str, /, map: Path | None = None, step: int = 30, every: int = 20) -> None:
    """map: refined, of all frames. step: frames between the two of a pair. every: frames between pairs."""
    poses = None
    if map is not None:
        with load_map(map) as scene_map:
            poses = scene_map.trajectory(best_poses(scene_map.trajectory_names()))
    with open_source(recording) as source:
        length = source.num_frames
        assert length is not None, "a recording on disk"
        frames = list(range(0, length - step, every))
        compare(source, frames, step, 0.0, poses)
        found = np.array([plane for k in frames for plane in bends(view_of(source, k, 0.0))])
        for low, high in ((0.0, 1.5), (1.5, 2.0), (2.0, 5.0)):
            some = found[(found[:, 0] >= low) & (found[:, 0] < high), 1]
            if len(some):
                print(f"{len(some)} planes {low} to {high} m away bend by {np.median(some):+.4f} (median)")
        compare(source, frames, step, float(np.median(found[:, 1])), poses)


if __name__ == "__main__":
    tyro.cli(main)
