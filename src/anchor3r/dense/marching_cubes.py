"""Marching cubes over the blocks of a volume, without seams: vertices on the edges of the voxel grid.

A vertex belongs to the edge that it lies on, and the edge to the voxel at its lower end, so that two cubes
or two blocks that share an edge share the vertex. The triangles of a cube follow from the signs of its
corners alone. On a face whose signs alternate the negative corners are kept apart, from either side: that is
what makes the surface closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.volume import (
    BLOCK_BITS,
    COORDINATE_BITS,
    SIDE,
    VOXELS,
    Volume,
    block_coordinates,
    block_keys,
)
from anchor3r.kernels import Array, kernel

CORNERS = np.array([(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)], np.int64)
"""(8, 3) of a cube; corner 4 x + 2 y + z."""
EDGES = np.array([(a, a | bit) for bit in (4, 2, 1) for a in range(8) if not a & bit], np.int64)
"""(12, 2) corners; the first is the lower end. Edges 0 … 3 are along x, 4 … 7 along y, 8 … 11 along z."""
_AXES = np.repeat(np.arange(3), 4)
MAX_TRIANGLES = 5
_BATCH = 256
"""Blocks whose vertices and faces have room at once."""


@dataclass(frozen=True, kw_only=True)
class EdgeMesh:
    """Triangles whose corners are named by the keys of grid edges."""

    keys: NDArray[np.int64]
    """(n,) ascending; of edges in the order of their x coordinate"""
    points: NDArray[np.float64]
    """(n, 3) in voxels"""
    colours: NDArray[np.uint8]
    """(n, 3) RGB"""
    confidence: NDArray[np.float32]
    """(n,)"""
    frames: NDArray[np.int32]
    """(n,) the first frame that saw the block which the vertex is in"""
    faces: NDArray[np.int64]
    """(m, 3) keys, counter-clockwise seen from the positive side"""


@cache
def triangle_table() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each pattern of negative corners (bit k is corner k): number of triangles, their edges (256, 5, 3).

    Around every face the surface runs from where the boundary of the face enters the negative side to where
    it leaves it. These pieces join to closed lines around the cube, which are cut into triangles.
    """
    counts, triangles = np.zeros(256, np.int64), np.zeros((256, MAX_TRIANGLES, 3), np.int64)
    edge_of = {frozenset(pair): k for k, pair in enumerate(EDGES.tolist())}
    for pattern in range(256):
        following: dict[int, int] = {}
        for face in _faces():
            negative = [bool(pattern >> corner & 1) for corner in face]
            for k in range(4):
                if negative[k - 1] or not negative[k]:
                    continue
                last = next(k + n for n in range(4) if not negative[(k + n + 1) % 4])
                entered = edge_of[frozenset((face[k - 1], face[k]))]
                left = edge_of[frozenset((face[last % 4], face[(last + 1) % 4]))]
                following[entered] = left
        found = [part for line in _closed(following) for part in _fan(line)]
        counts[pattern] = len(found)
        triangles[pattern, : len(found)] = np.array(found, np.int64).reshape(-1, 3)
    return counts, triangles


def _faces() -> list[list[int]]:
    """Corners of each face of a cube, counter-clockwise seen from outside."""
    faces = []
    for axis in range(3):
        u, v = 4 >> (axis + 1) % 3, 4 >> (axis + 2) % 3
        around = [0, u, u | v, v]
        faces += [[corner | 4 >> axis for corner in around], around[::-1]]
    return faces


def _closed(following: dict[int, int]) -> list[list[int]]:
    lines = []
    while following:
        first, at = following.popitem()
        line = [first]
        while at != first:
            line.append(at)
            at = following.pop(at)
        lines.append(line)
    return lines


def _fan(line: list[int]) -> list[tuple[int, int, int]]:
    return [(line[0], line[k], line[k + 1]) for k in range(1, len(line) - 1)]


def edge_mesh(volume: Volume, blocks: NDArray[np.int64], min_views: int) -> EdgeMesh:
    """The surface in the cubes whose lower corner lies in these blocks.

    A cube has a surface where every corner was looked at by `min_views` images, the negative ones while a
    surface was near.
    """
    counts, triangles = triangle_table()
    offsets = CORNERS[None]
    parts: list[tuple[Array, ...]] = []
    for start in range(0, len(blocks), _BATCH):
        batch = blocks[start : start + _BATCH]
        keys = volume.keys()[batch]
        around = volume.blocks_at(block_keys(block_coordinates(keys)[:, None] + offsets))
        needed = np.unique(around[around >= 0])
        slots = np.where(around >= 0, volume.resident(needed)[np.searchsorted(needed, around)], -1)
        parts.append(_surface_of(volume, batch, keys, slots, min_views, counts, triangles))
    joined = [np.concatenate([part[k] for part in parts]) for k in range(6)] if parts else _nothing()
    order = np.argsort(joined[0], kind="stable")
    return EdgeMesh(
        keys=joined[0][order], points=joined[1][order], colours=joined[2][order],
        confidence=joined[3][order], frames=joined[4][order], faces=joined[5],
    )  # fmt: skip


def _nothing() -> list[Array]:
    return [
        np.empty(0, np.int64), np.empty((0, 3)), np.empty((0, 3), np.uint8), np.empty(0, np.float32),
        np.empty(0, np.int32), np.empty((0, 3), np.int64),
    ]  # fmt: skip


def _surface_of(
    volume: Volume, blocks: Array, keys: Array, slots: Array, min_views: int, counts: Array, triangles: Array
) -> tuple[Array, ...]:
    room = len(blocks) * VOXELS
    vertex_keys, points = np.empty(3 * room, np.int64), np.empty((3 * room, 3))
    values, owner = np.empty((3 * room, 4), np.float32), np.empty(3 * room, np.int64)
    faces = np.empty((MAX_TRIANGLES * room, 3), np.int64)
    num_vertices, num_faces = _march(
        volume.pool(), slots, keys, min_views, counts, triangles, EDGES, _AXES, CORNERS, vertex_keys, points,
        values, owner, faces,
    )  # fmt: skip
    colours = np.clip(np.round(values[:num_vertices, :3] / 256), 0, 255).astype(np.uint8)
    return (
        vertex_keys[:num_vertices].copy(), points[:num_vertices].copy(), colours,
        values[:num_vertices, 3] / np.float32(65535), volume.frames()[blocks[owner[:num_vertices]]],
        faces[:num_faces].copy(),
    )  # fmt: skip


@kernel
def _march(
    pool: Array, slots: Array, keys: Array, min_views: int, counts: Array, triangles: Array, edges: Array,
    axes: Array, corners: Array, vertex_keys: Array, points: Array, values: Array, owner: Array, faces: Array,
) -> tuple[int, int]:  # fmt: skip
    """Fills vertices and faces; returns how many. slots: (n, 8) of each block and its upper neighbours."""
    half, mask = 1 << (BLOCK_BITS - 1), (1 << BLOCK_BITS) - 1
    wide = SIDE + 1
    distance, usable = np.empty((wide, wide, wide), np.float32), np.empty((wide, wide, wide), np.bool_)
    num_vertices = num_faces = 0
    base = np.empty(3, np.int64)
    for n in range(len(keys)):
        base[0] = (((keys[n] >> 2 * BLOCK_BITS) & mask) - half) * SIDE
        base[1] = (((keys[n] >> BLOCK_BITS) & mask) - half) * SIDE
        base[2] = ((keys[n] & mask) - half) * SIDE
        if not _gather(pool, slots[n], min_views, distance, usable):
            continue
        num_vertices = _add_vertices(
            pool, slots[n], base, n, distance, usable, vertex_keys, points, values, owner, num_vertices
        )
        for at in range(VOXELS):
            i, j, k = at // (SIDE * SIDE), at // SIDE % SIDE, at % SIDE
            pattern, complete = 0, True
            for c in range(8):
                x, y, z = i + corners[c, 0], j + corners[c, 1], k + corners[c, 2]
                complete &= usable[x, y, z]
                pattern |= (distance[x, y, z] < 0) << c
            if not complete:
                continue
            for t in range(counts[pattern]):
                for m in range(3):
                    edge = triangles[pattern, t, m]
                    low = edges[edge, 0]
                    faces[num_faces, m] = _edge_key(
                        base[0] + i + corners[low, 0], base[1] + j + corners[low, 1],
                        base[2] + k + corners[low, 2], axes[edge],
                    )  # fmt: skip
                num_faces += 1
    return num_vertices, num_faces


@kernel
def _edge_key(x: int, y: int, z: int, axis: int) -> int:
    half = 1 << (COORDINATE_BITS - 1)
    return (
        ((x + half) << (2 * COORDINATE_BITS + 2))
        | ((y + half) << (COORDINATE_BITS + 2))
        | ((z + half) << 2)
        | axis
    )


@kernel
def _gather(pool: Array, slots: Array, min_views: int, distance: Array, usable: Array) -> bool:
    """The voxels of a block and the next ones beyond its upper faces; whether there is a negative one."""
    wide, found = SIDE + 1, False
    for i in range(wide):
        for j in range(wide):
            for k in range(wide):
                slot = slots[4 * (i // SIDE) + 2 * (j // SIDE) + k // SIDE]
                usable[i, j, k] = False
                distance[i, j, k] = 1
                if slot < 0:
                    continue
                one = pool[slot, (i % SIDE * SIDE + j % SIDE) * SIDE + k % SIDE]
                distance[i, j, k] = one.distance
                looks = np.int64(one.views)
                if one.distance >= 0:
                    looks += one.through
                usable[i, j, k] = looks >= min_views
                found |= usable[i, j, k] and one.distance < 0
    return found


@kernel
def _add_vertices(
    pool: Array, slots: Array, base: Array, block: int, distance: Array, usable: Array, vertex_keys: Array,
    points: Array, values: Array, owner: Array, count: int,
) -> int:  # fmt: skip
    """Those on the edges that begin in the block; returns the new count."""
    for at in range(VOXELS):
        i, j, k = at // (SIDE * SIDE), at // SIDE % SIDE, at % SIDE
        for axis in range(3):
            x, y, z = i + (axis == 0), j + (axis == 1), k + (axis == 2)
            here, there = distance[i, j, k], distance[x, y, z]
            if not (usable[i, j, k] and usable[x, y, z]) or (here < 0) == (there < 0):
                continue
            part = here / (here - there)
            vertex_keys[count] = _edge_key(base[0] + i, base[1] + j, base[2] + k, axis)
            points[count, 0] = base[0] + i + part * (axis == 0)
            points[count, 1] = base[1] + j + part * (axis == 1)
            points[count, 2] = base[2] + k + part * (axis == 2)
            first = pool[slots[0], at]
            slot = slots[4 * (x // SIDE) + 2 * (y // SIDE) + z // SIDE]
            second = pool[slot, (x % SIDE * SIDE + y % SIDE) * SIDE + z % SIDE]
            # A voxel that was only seen through has no colour.
            share = 1.0 if first.views == 0 else 0.0 if second.views == 0 else part
            values[count, 0] = (1 - share) * first.red + share * second.red
            values[count, 1] = (1 - share) * first.green + share * second.green
            values[count, 2] = (1 - share) * first.blue + share * second.blue
            values[count, 3] = (1 - share) * first.confidence + share * second.confidence
            owner[count] = block
            count += 1
    return count
