"""A truncated signed distance field in hashed blocks of 8 × 8 × 8 voxels: depth images in, averages out.

Blocks exist only around surfaces. A block gets a number when it is first needed and keeps it; its voxels are
in memory while cameras see it and are handed to a `BlockSpill` when others need the room, so that memory
does not grow with the length of a street. A voxel holds the weighted mean of the distances to the surface
that each depth image says it has, positive on the side of the camera. What lies in front of a measured
surface is seen through: it gets the largest distance, by which moving things and wrong depths fade away.

Distances are taken along the surface's normal where that is known. Along the ray, ground that is seen at a
grazing angle would have its zero crossing between two voxels with nothing around it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.keyframe_depth import KeyframeDepth
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3
from anchor3r.kernels import Array, kernel

SIDE = 8
"""Voxels along the side of a block."""
VOXELS = SIDE**3
VOXEL = np.dtype(
    [
        ("distance", "<i2"),  # mean, in truncation distances / ONE
        ("red", "<u2"),  # means, in 1 / 256 grey levels
        ("green", "<u2"),
        ("blue", "<u2"),
        ("confidence", "<u2"),  # mean, in 1 / 65535
        ("views", "u1"),  # images that saw a surface nearby, at most 255
        ("through", "u1"),  # images that saw through it, at most 255
        ("weight", "<f4"),
    ]
)
ONE = 32767
"""A distance of one truncation distance, as voxels store it."""
COORDINATE_BITS = 20
"""Of a voxel's coordinate along each axis; voxel 0 is in the middle of the range."""
BLOCK_BITS = COORDINATE_BITS - 3
_CELL = 8
"""Side in pixels of the cells over which the greatest depth is known, to skip what is hidden."""
_MIN_INCIDENCE = 0.2
"""Least cosine between normal and ray that is believed: normals at grazing angles are noisy."""
_EMPTY = -1


class BlockSpill(Protocol):
    """Where blocks wait that are not in memory."""

    def write(self, blocks: NDArray[np.int64], voxels: NDArray[np.void]) -> None:
        """Keeps the voxels (n, VOXELS) of blocks with these numbers (n,), ascending."""

    def read(self, blocks: NDArray[np.int64]) -> NDArray[np.void]:
        """(n, VOXELS) of blocks with these numbers (n,), ascending, which were written before."""


@dataclass(frozen=True, kw_only=True)
class VolumeConfig:
    """How depth images are averaged."""

    truncation_voxels: float
    """Distance from a surface, in voxels, up to which a depth image says how far it is."""
    reference_pixels: float = 3.0
    """A voxel is so many pixels wide at the reference depth; nearer depths weigh no more than there, farther
    ones less by the square of the depth."""
    far: float = 4.0
    """Depths of more than so many reference depths are left out."""
    max_blocks: int
    """Blocks in memory at most, of 8 KB each."""
    threads: int = 1
    """That average a depth image, some of its blocks each. The result is the same."""

    def __post_init__(self) -> None:
        if self.truncation_voxels < 2 or self.reference_pixels <= 0 or self.far <= 0 or self.max_blocks < 64:
            raise ValueError(
                "truncation_voxels must be at least 2, max_blocks 64, and reference_pixels and far positive: "
                f"{self}"
            )


class Volume:
    """The field. Depth images are added in any order; blocks are read for their surface afterwards."""

    def __init__(self, voxel: float, config: VolumeConfig, spill: BlockSpill) -> None:
        if not (np.isfinite(voxel) and voxel > 0):
            raise ValueError(f"a voxel has a positive side, not {voxel}")
        self.voxel = voxel
        self.config = config
        self._spill = spill
        self._pool = np.zeros((config.max_blocks, VOXELS), VOXEL)
        self._free = np.arange(config.max_blocks, dtype=np.int64)[::-1].copy()
        self._num_free = config.max_blocks
        self._table_keys = np.full(1 << 12, _EMPTY, np.int64)
        self._table_blocks = np.zeros(1 << 12, np.int64)
        # Of each block by its number: key, where it is in the pool (or _EMPTY), when last used, first frame.
        self._keys = np.empty(1 << 10, np.int64)
        self._slots = np.full(1 << 10, _EMPTY, np.int64)
        self._used = np.zeros(1 << 10, np.int64)
        self._frames = np.zeros(1 << 10, np.int32)
        self._is_written = np.zeros(1 << 10, np.bool_)
        self._clock = 0
        self.num_blocks = 0

    @property
    def truncation(self) -> float:
        """Distance at which the field ends, in the world's unit."""
        return self.config.truncation_voxels * self.voxel

    def integrate(self, view: KeyframeDepth, camera_from_world: SE3) -> None:
        """Averages a depth image, which is in the scale of the pose, into the field."""
        camera = view.camera
        lens = np.array([camera.fx, camera.fy, camera.cx, camera.cy])
        pose = np.column_stack([camera_from_world.rotation, camera_from_world.translation])
        reference = self.voxel * camera.fx / self.config.reference_pixels
        depth = np.where(view.depth <= self.config.far * reference, view.depth, 0).astype(np.float32)
        depth[~(view.confidence > 0)] = 0
        slopes = _incidence(depth, view.normals_in_camera, lens)
        self._allocate(depth, slopes, lens, pose, view.frame)
        deepest = _deepest(depth)
        inverse = np.divide(1, depth, out=np.zeros_like(depth), where=depth > 0)
        seen = _visible(
            self._keys[: self.num_blocks], deepest, lens, pose, depth.shape, self.voxel, self.truncation
        )
        for start in range(0, len(seen), self.config.max_blocks // 2):
            blocks = seen[start : start + self.config.max_blocks // 2]
            slots = self.resident(blocks)
            self._average_in(
                slots, self._keys[blocks], inverse, slopes, view.confidence, view.colours, lens, pose,
                self.voxel, self.truncation, reference,
            )  # fmt: skip

    def _average_in(self, slots: Array, keys: Array, *seen: Any) -> None:
        """`_average` in several threads: blocks lie apart in the pool, and none depends on another."""
        count = self.config.threads
        parts = zip(np.array_split(slots, count), np.array_split(keys, count), strict=True)
        with ThreadPoolExecutor(count) as threads:
            for part in [threads.submit(_average, self._pool, *part, *seen) for part in parts]:
                part.result()

    def keys(self) -> NDArray[np.int64]:
        """(n,) keys of all blocks by their numbers; `block_coordinates` tells what they mean."""
        return self._keys[: self.num_blocks]

    def frames(self) -> NDArray[np.int32]:
        """(n,) the first frame that saw each block."""
        return self._frames[: self.num_blocks]

    def blocks_at(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers (...) of the blocks with keys (...); -1 where there is none."""
        return _found(self._table_keys, self._table_blocks, keys.ravel()).reshape(keys.shape)

    def pool(self) -> NDArray[np.void]:
        """(max_blocks, VOXELS) where the slots of `resident` blocks lie."""
        return self._pool

    def adopt(self, keys: NDArray[np.int64], frame: int = 0) -> None:
        """Adds empty blocks with keys (n,) that it does not have yet, numbered in this order."""
        first = self.num_blocks
        self._name(keys, frame)
        while len(self._table_keys) < 2 * self.num_blocks:
            self._grow_table()
        _insert(self._table_keys, self._table_blocks, keys, first)

    def resident(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Brings blocks (n,), at most max_blocks, into memory; their slots (n,) hold until the next call."""
        self._clock += 1
        self._used[blocks] = self._clock
        missing = np.sort(blocks[self._slots[blocks] == _EMPTY])
        if len(missing):
            self._make_room(len(missing))
            slots = self._free[self._num_free - len(missing) : self._num_free]
            self._num_free -= len(missing)
            self._slots[missing] = slots
            written = self._is_written[missing]
            self._pool[slots[~written]] = np.zeros((), VOXEL)
            if written.any():
                self._pool[slots[written]] = self._spill.read(missing[written])
        return self._slots[blocks]

    def _make_room(self, count: int) -> None:
        """Spills the blocks that were not used for longest, an eighth of all at once or more if need be."""
        if count <= self._num_free:
            return
        held = np.flatnonzero(self._slots[: self.num_blocks] != _EMPTY)
        idle = held[self._used[held] < self._clock]
        wanted = max(count - self._num_free, self.config.max_blocks // 8)
        if len(idle) > wanted:
            idle = idle[np.argsort(self._used[idle], kind="stable")[:wanted]]
        leaving = np.sort(idle)
        slots = self._slots[leaving]
        self._spill.write(leaving, self._pool[slots])
        self._is_written[leaving] = True
        self._slots[leaving] = _EMPTY
        self._free[self._num_free : self._num_free + len(slots)] = slots
        self._num_free += len(slots)
        assert self._num_free >= count

    def _allocate(self, depth: Array, slopes: Array, lens: Array, pose: Array, frame: int) -> None:
        """Numbers the blocks around every depth that have none yet."""
        capacity = len(self._table_keys) // 2
        while True:
            room = capacity - self.num_blocks
            new = np.empty(max(room, 1), np.int64)
            count = _claim(
                self._table_keys, self._table_blocks, self.num_blocks, new[:room], depth, slopes, lens, pose,
                self.voxel, self.truncation,
            )  # fmt: skip
            if count == _OUTSIDE:
                raise Anchor3RError(
                    f"voxels of {self.voxel:.3g} are too small for a map that is so large; use a larger "
                    "--voxel"
                )
            self._name(new[: min(count, room)], frame)
            if count <= room:
                return
            capacity = self._grow_table()

    def _name(self, keys: NDArray[np.int64], frame: int) -> None:
        total = self.num_blocks + len(keys)
        if total > len(self._keys):
            extra = max(total, 2 * len(self._keys)) - len(self._keys)
            self._keys = np.concatenate([self._keys, np.empty(extra, np.int64)])
            self._slots = np.concatenate([self._slots, np.full(extra, _EMPTY, np.int64)])
            self._used = np.concatenate([self._used, np.zeros(extra, np.int64)])
            self._frames = np.concatenate([self._frames, np.zeros(extra, np.int32)])
            self._is_written = np.concatenate([self._is_written, np.zeros(extra, np.bool_)])
        self._keys[self.num_blocks : total] = keys
        self._frames[self.num_blocks : total] = frame
        self.num_blocks = total

    def _grow_table(self) -> int:
        """Doubles the hash table; returns how many blocks it may hold."""
        size = 2 * len(self._table_keys)
        self._table_keys, self._table_blocks = np.full(size, _EMPTY, np.int64), np.zeros(size, np.int64)
        _insert(self._table_keys, self._table_blocks, self._keys[: self.num_blocks], 0)
        return size // 2


def block_coordinates(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) -> (n, 3) x, y, z of blocks, in blocks."""
    half, mask = 1 << (BLOCK_BITS - 1), (1 << BLOCK_BITS) - 1
    return np.stack([((keys >> (BLOCK_BITS * k)) & mask) - half for k in (2, 1, 0)], -1)


def block_keys(coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
    """The inverse of `block_coordinates`; keys are in the order of x, then y, then z."""
    x, y, z = np.moveaxis(coordinates + (1 << (BLOCK_BITS - 1)), -1, 0)
    return (x << 2 * BLOCK_BITS) | (y << BLOCK_BITS) | z


_OUTSIDE = -1
_SCATTER = -7046029254386353131
"""2⁶⁴ over the golden ratio, as a signed number: its multiples modulo 2⁶⁴ spread keys over a table."""


@kernel
def _slot(table_keys: Array, key: int) -> int:
    """Where in the table a key is, or where it would be put."""
    mask = len(table_keys) - 1
    at = ((key * _SCATTER) >> 20) & mask
    while table_keys[at] != key and table_keys[at] != -1:
        at = (at + 1) & mask
    return at


@kernel
def _found(table_keys: Array, table_blocks: Array, keys: Array) -> Array:
    out = np.empty(len(keys), np.int64)
    for n in range(len(keys)):
        at = _slot(table_keys, keys[n])
        out[n] = table_blocks[at] if table_keys[at] == keys[n] else -1
    return out


@kernel
def _insert(table_keys: Array, table_blocks: Array, keys: Array, first: int) -> None:
    for n in range(len(keys)):
        at = _slot(table_keys, keys[n])
        table_keys[at], table_blocks[at] = keys[n], first + n


@kernel
def _incidence(depth: Array, normals: Array, lens: Array) -> Array:
    """(h, w) by what a difference of depths is multiplied to be a distance along the normal.

    That is the cosine of ray and normal, times the length of a ray of depth 1. Without a normal, half the
    surfaces are steeper than 45°.
    """
    height, width = depth.shape
    out = np.empty((height, width), np.float32)
    for v in range(height):
        y = (v - lens[3]) / lens[1]
        for u in range(width):
            x = (u - lens[2]) / lens[0]
            length = np.sqrt(1 + x * x + y * y)
            along = -(x * normals[v, u, 0] + y * normals[v, u, 1] + normals[v, u, 2])
            if not np.isfinite(along):
                along = np.sqrt(0.5) * length
            out[v, u] = max(along, _MIN_INCIDENCE * length)
    return out


@kernel
def _claim(
    table_keys: Array, table_blocks: Array, num_blocks: int, new: Array, depth: Array, slopes: Array,
    lens: Array, pose: Array, voxel: float, truncation: float,
) -> int:  # fmt: skip
    """Puts blocks along the ray through every other pixel, within the truncation distance of its depth.

    Keys that the table does not know go to `new`; returns how many there are, one more than there is room for
    if that ran out, or _OUTSIDE.
    """
    half = 1 << (BLOCK_BITS - 1)
    count, side = 0, SIDE * voxel
    height, width = depth.shape
    for v in range(0, height, 2):
        for u in range(0, width, 2):
            if not depth[v, u] > 0:
                continue
            x, y = (u - lens[2]) / lens[0], (v - lens[3]) / lens[1]
            reach = truncation / slopes[v, u]
            steps = int(np.ceil(4 * reach * np.sqrt(1 + x * x + y * y) / side))
            for k in range(steps + 1):
                z = depth[v, u] + reach * (2 * k / steps - 1)
                a, b, c = x * z - pose[0, 3], y * z - pose[1, 3], z - pose[2, 3]
                i = int(np.floor((pose[0, 0] * a + pose[1, 0] * b + pose[2, 0] * c) / side)) + half
                j = int(np.floor((pose[0, 1] * a + pose[1, 1] * b + pose[2, 1] * c) / side)) + half
                m = int(np.floor((pose[0, 2] * a + pose[1, 2] * b + pose[2, 2] * c) / side)) + half
                if min(i, j, m) < 1 or max(i, j, m) >= 2 * half - 1:
                    return _OUTSIDE
                key = (i << 2 * BLOCK_BITS) | (j << BLOCK_BITS) | m
                at = _slot(table_keys, key)
                if table_keys[at] == key:
                    continue
                if count == len(new):
                    return count + 1
                table_keys[at], table_blocks[at] = key, num_blocks + count
                new[count] = key
                count += 1
    return count


@kernel
def _deepest(depth: Array) -> Array:
    """(⌈h / 8⌉, ⌈w / 8⌉) the greatest depth of each cell, 0 where there is none."""
    height, width = depth.shape
    out = np.zeros((-(-height // _CELL), -(-width // _CELL)), np.float32)
    for v in range(height):
        for u in range(width):
            if depth[v, u] > out[v // _CELL, u // _CELL]:
                out[v // _CELL, u // _CELL] = depth[v, u]
    return out


@kernel
def _visible(
    keys: Array, deepest: Array, lens: Array, pose: Array, shape: tuple[int, int], voxel: float,
    truncation: float,
) -> Array:  # fmt: skip
    """Numbers of the blocks that lie in the picture and not all behind what it shows."""
    half, mask = 1 << (BLOCK_BITS - 1), (1 << BLOCK_BITS) - 1
    side = SIDE * voxel
    radius = side * np.sqrt(3.0) / 2
    out = np.empty(len(keys), np.int64)
    count = 0
    height, width = shape
    for n in range(len(keys)):
        x = (((keys[n] >> 2 * BLOCK_BITS) & mask) - half + 0.5) * side
        y = (((keys[n] >> BLOCK_BITS) & mask) - half + 0.5) * side
        z = ((keys[n] & mask) - half + 0.5) * side
        c = pose[2, 0] * x + pose[2, 1] * y + pose[2, 2] * z + pose[2, 3]
        if c < radius:  # what touches the camera itself is not seen
            continue
        a = pose[0, 0] * x + pose[0, 1] * y + pose[0, 2] * z + pose[0, 3]
        b = pose[1, 0] * x + pose[1, 1] * y + pose[1, 2] * z + pose[1, 3]
        nearest = max(c - radius, 0.5 * voxel)
        u, v = lens[0] * a / c + lens[2], lens[1] * b / c + lens[3]
        # Off the axis a sphere is seen as an ellipse; its half axis is at most this.
        stretch = np.sqrt(1 + (a * a + b * b) / (c * c))
        du, dv = lens[0] * radius * stretch / nearest, lens[1] * radius * stretch / nearest
        if u + du < 0 or v + dv < 0 or u - du > width - 1 or v - dv > height - 1:
            continue
        top, bottom = max(0, int(v - dv)) // _CELL, min(height - 1, int(v + dv)) // _CELL
        left, right = max(0, int(u - du)) // _CELL, min(width - 1, int(u + du)) // _CELL
        most = np.float32(0)
        for row in range(top, bottom + 1):
            for column in range(left, right + 1):
                most = max(most, deepest[row, column])
        if most > 0 and nearest < most + truncation / _MIN_INCIDENCE:
            out[count] = n
            count += 1
    return out[:count].copy()


@kernel
def _sampled(inverse: Array, slopes: Array, u: float, v: float, most_apart: float) -> tuple[float, float]:
    """Depth and slope between pixels; 0 for none.

    On one surface the inverse depth, which is linear on planes, is interpolated; else it is the nearest
    pixel's.
    """
    height, width = inverse.shape
    left, top = int(np.floor(u)), int(np.floor(v))
    column, row = int(np.floor(u + 0.5)), int(np.floor(v + 0.5))
    slope = slopes[row, column]
    if left >= 0 and top >= 0 and left + 1 < width and top + 1 < height:
        a, b = inverse[top, left], inverse[top, left + 1]
        c, d = inverse[top + 1, left], inverse[top + 1, left + 1]
        low, high = min(min(a, b), min(c, d)), max(max(a, b), max(c, d))
        if low > 0 and (1 / low - 1 / high) * slope < most_apart:
            p, q = u - left, v - top
            return 1 / ((1 - q) * ((1 - p) * a + p * b) + q * ((1 - p) * c + p * d)), slope
    return (1 / inverse[row, column] if inverse[row, column] > 0 else 0.0), slope


@kernel
def _average(
    pool: Array, slots: Array, keys: Array, inverse: Array, slopes: Array, confidence: Array, colours: Array,
    lens: Array, pose: Array, voxel: float, truncation: float, reference: float,
) -> None:  # fmt: skip
    """What a depth image says of every voxel of these blocks, averaged into them."""
    half, mask = 1 << (BLOCK_BITS - 1), (1 << BLOCK_BITS) - 1
    height, width = inverse.shape
    for n in range(len(slots)):
        corner_x = (((keys[n] >> 2 * BLOCK_BITS) & mask) - half) * SIDE
        corner_y = (((keys[n] >> BLOCK_BITS) & mask) - half) * SIDE
        corner_z = ((keys[n] & mask) - half) * SIDE
        for at in range(VOXELS):
            x = (corner_x + at // (SIDE * SIDE)) * voxel
            y = (corner_y + at // SIDE % SIDE) * voxel
            z = (corner_z + at % SIDE) * voxel
            c = pose[2, 0] * x + pose[2, 1] * y + pose[2, 2] * z + pose[2, 3]
            if c < voxel:
                continue
            u = lens[0] * (pose[0, 0] * x + pose[0, 1] * y + pose[0, 2] * z + pose[0, 3]) / c + lens[2]
            v = lens[1] * (pose[1, 0] * x + pose[1, 1] * y + pose[1, 2] * z + pose[1, 3]) / c + lens[3]
            if not (u >= -0.5 and v >= -0.5 and u < width - 0.5 and v < height - 0.5):
                continue
            seen, slope = _sampled(inverse, slopes, u, v, 2 * truncation)
            if not seen > 0:
                continue
            distance = (seen - c) * slope / truncation
            if distance <= -1:
                continue
            column, row = int(np.floor(u + 0.5)), int(np.floor(v + 0.5))
            # A surface that is seen at a grazing angle is spread over fewer pixels.
            weight = confidence[row, column] * min(1.0, (reference / seen) ** 2) * min(1.0, slope)
            _update(pool[slots[n]], at, distance, weight, confidence[row, column], colours[row, column])


@kernel
def _update(voxels: Array, at: int, distance: float, weight: float, confidence: float, colour: Array) -> None:
    """Averages one observation into a voxel; what lies behind the surface counts less the deeper it is."""
    one = voxels[at]
    if distance >= 1:
        if one.through < 255:
            one.through += np.uint8(1)
        distance = 1.0
    else:
        if one.views < 255:
            one.views += np.uint8(1)
        if distance < 0:
            weight *= 1 + distance
    total = one.weight + weight
    if not total > 0:
        return
    share = weight / total
    one.distance = np.int16(np.round(one.distance + share * (distance * ONE - one.distance)))
    if distance < 1:
        # Colours are those of the surface alone, so what is seen behind it does not shine through.
        share = weight / total if one.views > 1 else 1.0
        one.red = np.uint16(one.red + share * (256.0 * colour[0] - one.red))
        one.green = np.uint16(one.green + share * (256.0 * colour[1] - one.green))
        one.blue = np.uint16(one.blue + share * (256.0 * colour[2] - one.blue))
        one.confidence = np.uint16(one.confidence + share * (65535.0 * confidence - one.confidence))
    one.weight = np.float32(total)
