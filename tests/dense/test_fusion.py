"""Depth images fused: known surfaces come out where they are, closed, always the same, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from fused_scenes import CAMERA, MemorySpill, depth_image, looking_at, plane_depth, sphere_views
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from anchor3r.dense.fusion import Fusion, FusionConfig, auto_voxel
from anchor3r.dense.keyframe_depth import KeyframeDepth
from anchor3r.dense.marching_cubes import EDGES, triangle_table
from anchor3r.dense.surface import Components, SurfacePart, surface_parts
from anchor3r.dense.volume import Volume, VolumeConfig, block_coordinates, block_keys
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole

VOXEL_SIDE = 0.04
CONFIG = FusionConfig(
    volume=VolumeConfig(truncation_voxels=4, max_blocks=4000),
    min_confidence=0.5, min_views=2, min_component=50,
)  # fmt: skip


def fused(
    views: Iterable[tuple[KeyframeDepth, SE3]], config: FusionConfig = CONFIG, voxel: float = VOXEL_SIDE
) -> list[SurfacePart]:
    fusion = Fusion(voxel, config, MemorySpill())
    for view, camera_from_world in views:
        fusion.add(view, camera_from_world)
    return list(fusion.surface())


def points_of(parts: list[SurfacePart]) -> NDArray[np.float32]:
    return np.concatenate([np.empty((0, 3), np.float32), *(part.points for part in parts)])


def faces_of(parts: list[SurfacePart]) -> NDArray[np.int64]:
    return np.concatenate([part.faces for part in parts])


def open_edges(faces: NDArray[np.int64]) -> int:
    """Edges that are not passed as often in one direction as in the other."""
    directed = Counter(
        edge for a, b in ((0, 1), (1, 2), (2, 0)) for edge in zip(faces[:, a], faces[:, b], strict=True)
    )
    return sum(directed[b, a] != count for (a, b), count in directed.items())


def test_every_pattern_of_corners_is_cut_along_its_edges() -> None:
    """Triangles use exactly the edges whose ends differ, and close up around the cube but for its faces."""
    counts, triangles = triangle_table()
    for pattern in range(256):
        used = {int(edge) for edge in triangles[pattern, : counts[pattern]].ravel()}
        negative = [bool(pattern >> corner & 1) for corner in range(8)]
        assert used == {k for k, (a, b) in enumerate(EDGES.tolist()) if negative[a] != negative[b]}
    assert counts.max() == 5


def test_random_fields_have_closed_surfaces_across_blocks() -> None:
    """Noise meets every pattern of signs, and its blocks border on each other: no seam may open."""
    volume = Volume(1.0, VolumeConfig(truncation_voxels=4, max_blocks=64), MemorySpill())
    blocks = np.stack(np.meshgrid([-1, 0], [-1, 0], [-1, 0], indexing="ij"), -1).reshape(-1, 3)
    keys = block_keys(blocks)
    assert_array_equal(block_coordinates(keys), blocks)
    volume.adopt(keys)
    rng = np.random.default_rng(0)
    slots = volume.resident(np.arange(8))
    noise = rng.integers(-3000, 3000, (8, 8, 8, 8), np.int16)
    # The outside is positive all around, so that the surface has no border of its own.
    position = 8 * blocks[:, None, None, None] + np.stack(np.meshgrid(*[np.arange(8)] * 3, indexing="ij"), -1)
    noise[((position <= -8) | (position >= 7)).any(-1)] = 1000
    voxels = volume.pool()
    for k, slot in enumerate(slots):
        voxels["distance"][slot] = noise[k].reshape(-1)
        voxels["views"][slot] = 5
    parts = list(surface_parts(volume, min_views=1))
    faces = faces_of(parts)
    assert len(faces) > 3000
    assert open_edges(faces) == 0
    assert faces.max() < len(points_of(parts))


def test_a_sphere_is_whole_and_where_it_is() -> None:
    parts = fused(sphere_views())
    points, faces = points_of(parts), faces_of(parts)
    off = np.linalg.norm(points, axis=1) - 1
    assert abs(off.mean()) < 0.3 * VOXEL_SIDE
    assert np.abs(off).max() < VOXEL_SIDE
    assert open_edges(faces) == 0
    assert len(parts) > 4, "several blocks long"
    normals = np.concatenate([part.normals for part in parts])
    outward = points / np.linalg.norm(points, axis=1)[:, None]
    cosine = np.einsum("ni,ni->n", normals, outward)
    assert cosine.min() > 0.7
    assert np.quantile(cosine, 0.01) > 0.95
    # Volume by the divergence theorem: faces are turned outward.
    a, b, c = (points[faces[:, k]].astype(np.float64) for k in range(3))
    volume = np.einsum("ni,ni->", a, np.cross(b, c)) / 6
    assert volume == pytest.approx(4 / 3 * np.pi, rel=0.03)


@pytest.mark.parametrize("normal", [(0.0, 0.0, -1.0), (0.1, -0.97, -0.2)])
def test_a_plane_is_flat_even_at_a_grazing_angle(normal: tuple[float, float, float]) -> None:
    direction = np.array(normal) / np.linalg.norm(normal)
    centers = np.array([[0, 0, -2.0], [0.3, -0.2, -2.1], [-0.2, -0.3, -1.9]])
    views = []
    for k, center in enumerate(centers):
        pose = looking_at(center, np.array([0.0, 0.0, 0.0]))
        views.append((plane_depth(pose, direction, k), pose))
    points = points_of(fused(views))
    assert len(points) > 500
    off = np.abs(points @ direction)
    assert np.quantile(off, 0.9) < 0.1 * VOXEL_SIDE
    assert off.max() < VOXEL_SIDE, "where images end there is only the nearest pixel"


def test_noise_averages_out() -> None:
    rng = np.random.default_rng(0)
    normal, pose = np.array([0.0, 0.0, -1.0]), looking_at(np.array([0, 0, -2.0]), np.zeros(3))
    noisy = []
    for k in range(16):
        view = plane_depth(pose, normal, k)
        noise = rng.normal(0, VOXEL_SIDE, view.depth.shape).astype(np.float32)
        noisy.append((replace(view, depth=view.depth + noise), pose))
    one, many = (points_of(fused(noisy[:count], replace(CONFIG, min_views=1))) for count in (2, 16))
    inner = [points[np.abs(points[:, :2]).max(1) < 0.5] for points in (one, many)]
    assert inner[1][:, 2].std() < 0.6 * inner[0][:, 2].std()


def test_what_has_left_is_carved_away() -> None:
    """A box stands before a wall in a third of the images; afterwards the wall is seen through its place."""
    normal, pose = np.array([0.0, 0.0, -1.0]), looking_at(np.array([0, 0, -2.0]), np.zeros(3))
    wall = plane_depth(pose, normal)
    depth = wall.depth.copy()
    depth[30:42, 40:56] = 1.2
    box = replace(wall, depth=depth)
    near = [float(np.mean(points_of(fused(views))[:, 2] < -0.5)) for views in (
        [(box, pose)] * 3,
        [(box, pose)] * 3 + [(wall, pose)] * 6,
    )]  # fmt: skip
    assert near[0] > 0.02
    assert near[1] == 0


def test_colours_and_frames_are_those_of_the_images() -> None:
    views = list(sphere_views())
    red = [
        (replace(view, colours=np.broadcast_to(np.uint8([200, 10, 20]), view.colours.shape)), pose)
        for view, pose in views
    ]
    parts = fused(red)
    assert (np.abs(np.concatenate([part.colours for part in parts]).astype(int) - [200, 10, 20]) <= 1).all()
    assert set(np.concatenate([part.frames for part in parts]).tolist()) <= set(range(len(views)))
    assert np.concatenate([part.confidence for part in parts]) == pytest.approx(0.9, abs=1e-3)


def test_little_memory_gives_the_same_surface() -> None:
    """Blocks that are spilled and read back change nothing; the same input gives the same bytes."""
    whole = fused(sphere_views())
    spill = MemorySpill()
    fusion = Fusion(VOXEL_SIDE, replace(CONFIG, volume=replace(CONFIG.volume, max_blocks=128)), spill)
    for view, pose in sphere_views():
        fusion.add(view, pose)
    small = list(fusion.surface())
    assert spill.num_reads > 500
    assert len(small) == len(whole)
    for a, b in zip(small, whole, strict=True):
        for name in ("points", "normals", "colours", "confidence", "frames", "faces"):
            assert_array_equal(getattr(a, name), getattr(b, name))


def test_unsure_depths_and_what_too_few_images_saw_are_left_out() -> None:
    normal, pose = np.array([0.0, 0.0, -1.0]), looking_at(np.array([0, 0, -2.0]), np.zeros(3))
    view = plane_depth(pose, normal)
    unsure = replace(view, confidence=np.full_like(view.confidence, 0.4))
    assert len(points_of(fused([(unsure, pose)] * 3))) == 0
    assert len(points_of(fused([(view, pose), (unsure, pose)]))) == 0, "one of them counts"
    assert len(points_of(fused([(view, pose)] * 2))) > 500


def test_small_pieces_are_told_from_large_ones() -> None:
    normal, pose = np.array([0.0, 0.0, -1.0]), looking_at(np.array([0, 0, -2.0]), np.zeros(3))
    wall = plane_depth(pose, normal)
    depth = wall.depth.copy()
    depth[34:38, 46:50] = 1.0  # a speck before the wall
    parts = fused([(replace(wall, depth=depth), pose)] * 3)
    components = Components()
    for part in parts:
        components.add(part)
    points = points_of(parts)
    assert (points[:, 2] < -0.5).any()
    kept = points[components.large(100)]
    assert len(kept) > 500
    assert not (kept[:, 2] < -0.5).any()


def test_the_size_of_voxels_follows_the_depth_and_its_pixels() -> None:
    camera = Pinhole(300, 300, 159.5, 119.5, 320, 240)
    depth = np.full((240, 320), 2.0)
    view = depth_image(depth, np.zeros((240, 320, 3)), camera=camera)
    assert auto_voxel([view], CONFIG) == pytest.approx(3 * 2 / 300)
    assert auto_voxel([depth_image(np.full((72, 96), np.nan), np.zeros((72, 96, 3)))], CONFIG) is None


def test_a_map_beyond_the_grid_is_refused() -> None:
    pose = SE3(np.eye(3), np.array([1e6, 0, 0]))
    depth = np.full((CAMERA.height, CAMERA.width), 2.0)
    with pytest.raises(Anchor3RError, match="larger voxel"):
        fused([(depth_image(depth, np.full((*depth.shape, 3), np.nan)), pose)])
