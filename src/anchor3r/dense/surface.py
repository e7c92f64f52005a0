"""The surface of a volume as a mesh, in slabs along x, so that memory holds two slabs and not the mesh.

The faces of a slab use vertices of the slab itself and of the next one. Vertices are numbered in the order in
which they come, faces refer to these numbers, and which of them hang together is known in the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.marching_cubes import EdgeMesh, edge_mesh
from anchor3r.dense.volume import Volume, block_coordinates
from anchor3r.kernels import Array, kernel


@dataclass(frozen=True, kw_only=True)
class SurfacePart:
    """Some vertices of a mesh, numbered on from those of the parts before, and faces between any of these."""

    points: NDArray[np.float32]
    """(n, 3) in the world"""
    normals: NDArray[np.float32]
    """(n, 3) unit vectors towards the side that was seen; zero for vertices without a face"""
    colours: NDArray[np.uint8]
    """(n, 3) RGB"""
    confidence: NDArray[np.float32]
    """(n,)"""
    frames: NDArray[np.int32]
    """(n,) a frame that saw the vertex, the first one of its neighbourhood"""
    faces: NDArray[np.int64]
    """(m, 3) numbers of vertices of this part, those before and the next one; counter-clockwise"""

    def __len__(self) -> int:
        return len(self.points)


def surface_parts(volume: Volume, *, min_views: int, first: int = 0) -> Iterator[SurfacePart]:
    """The whole surface, from low to high x; `first` is the number of its first vertex."""
    x = block_coordinates(volume.keys())[:, 0]
    order = np.lexsort((volume.keys(), x))
    slabs = np.split(order, np.flatnonzero(np.diff(x[order])) + 1) if len(order) else []
    here: EdgeMesh | None = None
    normals = np.empty((0, 3))
    last_x = None
    for slab in [*slabs, None]:
        is_next = slab is not None and last_x is not None and x[slab[0]] == last_x + 1
        if here is not None and not is_next:
            yield _part(volume, here, normals, None, first)[0]
            first += len(here.keys)
            here, normals = None, np.empty((0, 3))
        if slab is None:
            break
        mesh = edge_mesh(volume, slab, min_views)
        if here is not None:
            part, after = _part(volume, here, normals, mesh, first)
            yield part
            first += len(here.keys)
        else:
            after = np.zeros((len(mesh.keys), 3))
        here, normals, last_x = mesh, after, int(x[slab[0]])


def _part(
    volume: Volume, here: EdgeMesh, normals: Array, after: EdgeMesh | None, first: int
) -> tuple[SurfacePart, Array]:
    """A slab with its faces, whose normals the slab before has begun; and what they add to the next one's."""
    keys, points = here.keys, here.points
    if after is not None:
        keys, points = np.concatenate([keys, after.keys]), np.concatenate([points, after.points])
    rows = np.searchsorted(keys, here.faces)
    sums = np.zeros((len(keys), 3))
    sums[: len(normals)] = normals
    _add_normals(points, rows, sums)
    own = sums[: len(here.keys)]
    length = np.linalg.norm(own, axis=1, keepdims=True)
    part = SurfacePart(
        points=(here.points * volume.voxel).astype(np.float32),
        normals=(own / np.where(length > 0, length, 1)).astype(np.float32),
        colours=here.colours,
        confidence=here.confidence,
        frames=here.frames,
        faces=rows + first,
    )
    return part, sums[len(here.keys) :]


@kernel
def _add_normals(points: Array, faces: Array, sums: Array) -> None:
    """Every face adds its normal, as long as twice its area, to its vertices."""
    for n in range(len(faces)):
        a, b, c = faces[n, 0], faces[n, 1], faces[n, 2]
        ux, uy, uz = points[b, 0] - points[a, 0], points[b, 1] - points[a, 1], points[b, 2] - points[a, 2]
        vx, vy, vz = points[c, 0] - points[a, 0], points[c, 1] - points[a, 1], points[c, 2] - points[a, 2]
        x, y, z = uy * vz - uz * vy, uz * vx - ux * vz, ux * vy - uy * vx
        for m in range(3):
            sums[faces[n, m], 0] += x
            sums[faces[n, m], 1] += y
            sums[faces[n, m], 2] += z


class Components:
    """Which vertices of a mesh hang together, told face by face."""

    def __init__(self) -> None:
        self._parents = np.empty(0, np.int32)
        self._num_vertices = 0

    def add(self, part: SurfacePart) -> None:
        """Parts come in their order."""
        self._num_vertices += len(part)
        most = max(self._num_vertices, int(part.faces.max(initial=-1)) + 1)
        if most > len(self._parents):
            known = len(self._parents)
            extra = np.arange(known, max(most, known + known // 4), dtype=np.int32)
            self._parents = np.concatenate([self._parents, extra])
        _unite(self._parents, part.faces)

    def large(self, min_vertices: int) -> NDArray[np.bool_]:
        """(n,) whether each vertex is part of a component with so many, and of a face."""
        return _in_large(self._parents[: self._num_vertices], max(min_vertices, 3))


@kernel
def _root(parents: Array, n: int) -> int:
    while parents[n] != n:
        parents[n] = parents[parents[n]]
        n = parents[n]
    return n


@kernel
def _unite(parents: Array, faces: Array) -> None:
    for n in range(len(faces)):
        a = _root(parents, faces[n, 0])
        for m in range(1, 3):
            b = _root(parents, faces[n, m])
            low, high = min(a, b), max(a, b)
            parents[high] = low
            a = low


@kernel
def _in_large(parents: Array, min_size: int) -> Array:
    sizes = np.zeros(len(parents), np.int32)
    for n in range(len(parents)):
        sizes[_root(parents, n)] += 1
    large = np.empty(len(parents), np.bool_)
    for n in range(len(parents)):
        large[n] = sizes[_root(parents, n)] >= min_size
    return large
