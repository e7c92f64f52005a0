"""Collects batches of painted boxes, quads and ellipsoids and makes a `Scene` of them.

All methods take whole batches: a street with a thousand objects is a few dozen calls. Positions are world
coordinates with y down, but heights ("base", "height") are given upwards from the ground.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anchor3r.kernels import Array
from anchor3r.worlds.scenes.lightmap import Occluders, bake_lightmap
from anchor3r.worlds.scenes.scene import BALL, CLUSTER, EMISSIVE, QUAD, Scene
from anchor3r.worlds.scenes.textures import TextureBank

CLUSTER_M = 20.0
"""Side of the ground cells whose quads are culled together."""
DECAL_BIAS = 2e-3
"""Relative depth advantage of what lies flat on something else."""
_MAX_PATH_POSITIONS = 600
"""Camera positions that things are kept clear of; a longer path is thinned."""


class Paint(NamedTuple):
    """How n surfaces look."""

    texture: NDArray[np.int32]
    """(n,)"""
    tile_m: NDArray[np.float64]
    """(n,) metres that one texture tile covers"""
    tint: NDArray[np.float64]
    """(n, 3) factor on the encoded colour"""
    contrast: NDArray[np.float64]
    """(n,) factor on the texture's deviations from its mean"""
    grime: NDArray[np.float64]
    """(n,) strength of the stains"""
    fit: NDArray[np.bool_]
    """(n,) whether a whole number of tiles must fit along each edge (windows, doors, pictures)"""

    def take(self, index: NDArray[np.integer]) -> Paint:
        """The paints at these indices, which may repeat."""
        columns: list[Any] = [column[index] for column in self]
        return Paint(*columns)

    @staticmethod
    def join(paints: list[Paint]) -> Paint:
        return Paint(*(np.concatenate(fields) for fields in zip(*paints, strict=True)))


class Painter:
    """Draws random paints from the bank."""

    def __init__(self, rng: np.random.Generator, bank: TextureBank, photo_share: float = 0.5) -> None:
        self._rng, self._bank = rng, bank
        self._photo_share = photo_share if bank.range["photo"][1] > bank.range["photo"][0] else 0.0

    def paint(
        self, category: str, count: int, tile_m: tuple[float, float] = (1.0, 3.0), *, fit: bool = False,
        distinct: int = 0, tint: float = 0.12, grime: float = 0.25,
    ) -> Paint:  # fmt: skip
        """Random paints; `tint` is the spread of brightness and colour between surfaces."""
        rng = self._rng
        texture = self._bank.draw(rng, category, count, distinct)
        if self._photo_share:
            photo = self._bank.draw(rng, "photo", count)
            texture = np.where(rng.random(count) < self._photo_share, photo, texture)
        brightness = np.exp(tint * rng.standard_normal((count, 1)) - tint / 2)
        hue = np.exp(0.4 * tint * rng.standard_normal((count, 3)))
        return Paint(
            texture, rng.uniform(*tile_m, count), brightness * hue, rng.uniform(0.7, 1.25, count),
            grime * rng.uniform(0.3, 1.5, count), np.full(count, fit),
        )  # fmt: skip


class _QuadBatch(NamedTuple):
    origin: Array
    edge_s: Array
    edge_t: Array
    paint: Paint
    dark: Array
    flags: Array
    bias: Array


class SceneBuilder:
    """Accumulates primitives; `build` turns them into the arrays that the renderer reads."""

    def __init__(self, rng: np.random.Generator, bank: TextureBank) -> None:
        self._rng, self._bank = rng, bank
        self._quads: list[_QuadBatch] = []
        self._balls: list[tuple[Array, Array, Array, Paint]] = []
        self._occluders: list[Occluders] = []

    def quads(
        self, origin: ArrayLike, edge_s: ArrayLike, edge_t: ArrayLike, paint: Paint, *,
        dark: ArrayLike = 0.0, flags: int = 0, decal: float = 0,
    ) -> None:  # fmt: skip
        """n quads whose normals edge_s × edge_t point to the side they are seen from.

        `dark` (..., 4) is the occlusion along the edges s=0, s=1, t=0, t=1; `decal` > 0 lets the quad lie
        in the plane of another, the greater number on top.
        """
        n = len(paint.texture)
        self._quads.append(
            _QuadBatch(
                _rows(origin, n, 3), _rows(edge_s, n, 3), _rows(edge_t, n, 3), paint, _rows(dark, n, 4),
                np.full(n, flags, np.uint8), np.full(n, decal * DECAL_BIAS),
            )
        )  # fmt: skip

    def boxes(
        self, x: ArrayLike, z: ArrayLike, size: ArrayLike, yaw_rad: ArrayLike, side: Paint, top: Paint, *,
        base: ArrayLike = 0.0, dark: float = 0.5, casts: bool = True, front: Paint | None = None,
        top_flags: int = 0,
    ) -> None:  # fmt: skip
        """n upright boxes: centre (x, z), size (n, 3) = width, height, depth, base height above the ground.

        `front` paints the face towards local -z, `side` the other three. Boxes that float above 5 cm get an
        underside. `casts` boxes shade the ground.
        """
        n = len(side.texture)
        x, z, yaw, base = (_column(v, n) for v in (x, z, yaw_rad, base))
        width, height, depth = _rows(size, n, 3).T
        right, forward, up = np.zeros((n, 3)), np.zeros((n, 3)), np.zeros((n, 3))
        right[:, 0], right[:, 2] = np.cos(yaw) * width, -np.sin(yaw) * width
        forward[:, 0], forward[:, 2] = np.sin(yaw) * depth, np.cos(yaw) * depth
        up[:, 1] = -height
        corner = np.stack([x, -base, z], 1) - (right + forward) / 2
        far = corner + right + forward
        contact = np.zeros((5, n, 4))
        contact[:4, :, 2] = np.where(base < 0.05, dark, 0.0)
        self.quads(
            np.concatenate([corner, corner + right, far, corner + forward, corner + up]),
            np.concatenate([right, forward, -right, -forward, right]),
            np.concatenate([up, up, up, up, forward]),
            Paint.join([front or side, side, side, side, top]),
            dark=contact.reshape(-1, 4),
        )
        self._quads[-1].flags[4 * n :] = top_flags
        floating = np.flatnonzero(base > 0.05)
        if len(floating):
            self.quads(corner[floating], forward[floating], right[floating], top.take(floating))
        if casts:
            self._occluders.append(
                Occluders(corner[:, [0, 2]], right[:, [0, 2]], forward[:, [0, 2]], base, height)
            )

    def balls(
        self, centre: ArrayLike, radii: ArrayLike, yaw_rad: ArrayLike, paint: Paint, *, casts: bool = True
    ) -> None:
        """n ellipsoids with semi-axes radii (n, 3), turned about the vertical."""
        n = len(paint.texture)
        centre, radii, yaw = _rows(centre, n, 3), _rows(radii, n, 3), _column(yaw_rad, n)
        cos, sin, zero, one = np.cos(yaw), np.sin(yaw), np.zeros(n), np.ones(n)
        turn = np.stack([cos, zero, -sin, zero, one, zero, sin, zero, cos], 1).reshape(n, 3, 3)
        self._balls.append((centre, turn / radii[:, :, None], radii.max(1), paint))
        if casts:
            across = 0.8 * radii[:, [0, 2]]
            corner = centre[:, [0, 2]] - across
            right = np.stack([2 * across[:, 0], zero], 1)
            forward = np.stack([zero, 2 * across[:, 1]], 1)
            base = -centre[:, 1] - radii[:, 1]
            self._occluders.append(Occluders(corner, right, forward, np.maximum(base, 0), 2 * radii[:, 1]))

    def build(
        self, environment: NDArray[np.void], ground: tuple[float, float, float, float], texel_m: float = 0.3
    ) -> Scene:
        """The finished scene; shadows fall on the ground x0, z0, x1, z1, in texels of at most `texel_m`."""
        quads, clusters = self._cluster(self._join_quads(environment))
        sun = environment["sun_direction"][0]
        shift = np.array([-sun[0], -sun[2]], float) / max(-float(sun[1]), 0.15)
        direct = float(np.sum(environment["sun"]) * max(0.0, -float(sun[1])))
        share = direct / (direct + float(np.sum(environment["ambient_up"])) + 1e-9)
        lightmap = bake_lightmap(self._occluders, ground, shift, share, texel_m)
        return Scene(quads, self._join_balls(), clusters, environment, lightmap, self._bank)

    def _join_quads(self, environment: NDArray[np.void]) -> NDArray[np.void]:
        batches = self._quads
        origin, edge_s, edge_t = (np.concatenate([b[k] for b in batches]) for k in range(3))
        paint = Paint.join([b.paint for b in batches])
        dark, flags, bias = (np.concatenate([b[k] for b in batches]) for k in (4, 5, 6))
        cross = np.cross(edge_s, edge_t)
        normal = cross / np.linalg.norm(cross, axis=1, keepdims=True)
        size = np.stack([np.linalg.norm(edge_s, axis=1), np.linalg.norm(edge_t, axis=1)], 1)
        half = (edge_s + edge_t) / 2
        radius = np.maximum(np.linalg.norm(half, axis=1), np.linalg.norm(edge_s - edge_t, axis=1) / 2)
        tiles = size / paint.tile_m[:, None]
        tiles = np.where(paint.fit[:, None], np.maximum(1, np.round(tiles)), tiles)
        start = np.where(paint.fit[:, None], 0.0, self._rng.random((len(origin), 2)))
        gain, offset = self._colours(paint)
        light = _diffuse(normal, environment)
        grime = np.stack([paint.grime, *(size.T / self._rng.uniform(5, 11, len(origin)))], 1)
        light[(flags & EMISSIVE) != 0] = self._rng.uniform(0.8, 2.0)
        return _records(
            QUAD, origin=origin, edge_s=edge_s, edge_t=edge_t, normal=normal, size=size, gain=gain,
            offset=offset, sphere=np.concatenate([origin + half, radius[:, None]], 1),
            uv=np.concatenate([start, tiles], 1), grime=grime, light=light, dark=dark, bias=bias,
            texture=paint.texture, flags=flags,
        )  # fmt: skip

    def _colours(self, paint: Paint) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """gain and offset such that colour = tint (mean + contrast (texel - mean)), kept below white."""
        mean = self._bank.mean(paint.texture) / 255
        tint = paint.tint / np.maximum(1, (mean * paint.tint).max(1, keepdims=True) / 0.93)
        gain = tint * paint.contrast[:, None] / 255
        offset = tint * (1 - paint.contrast[:, None]) * mean
        return gain.astype(np.float32), offset.astype(np.float32)

    def _join_balls(self) -> NDArray[np.void]:
        if not self._balls:
            return np.zeros(0, BALL)
        centre, ball_from_world, radius = (np.concatenate([b[k] for b in self._balls]) for k in range(3))
        paint = Paint.join([b[3] for b in self._balls])
        gain, offset = self._colours(paint)
        return _records(
            BALL, centre=centre, ball_from_world=ball_from_world, radius=radius, gain=gain, offset=offset,
            tiles=2 * radius / paint.tile_m, texture=paint.texture,
        )  # fmt: skip

    @staticmethod
    def _cluster(quads: NDArray[np.void]) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Sorts the quads by ground cell; the large ones form a cell of their own."""
        cell = np.floor(quads["sphere"][:, [0, 2]] / CLUSTER_M).astype(np.int64)
        cell[quads["sphere"][:, 3] > CLUSTER_M] = 1 << 20
        key = cell[:, 0] * (1 << 22) + cell[:, 1]
        order = np.argsort(key, kind="stable")
        quads = quads[order]
        _, start, count = np.unique(key[order], return_index=True, return_counts=True)
        sphere = quads["sphere"]
        low = np.minimum.reduceat(sphere[:, :3] - sphere[:, 3:], start)
        high = np.maximum.reduceat(sphere[:, :3] + sphere[:, 3:], start)
        bound = np.concatenate([(low + high) / 2, np.linalg.norm(high - low, axis=1, keepdims=True) / 2], 1)
        return quads, _records(CLUSTER, sphere=bound, start=start, stop=start + count)


def _rows(value: ArrayLike, n: int, width: int) -> NDArray[np.float64]:
    """(n, width) copy of a value that broadcasts to it."""
    out = np.empty((n, width))
    out[:] = value
    return out


def _column(value: ArrayLike, n: int) -> NDArray[np.float64]:
    out = np.empty(n)
    out[:] = value
    return out


def _records(dtype: np.dtype, **fields: Array) -> NDArray[np.void]:
    """A structured array of these columns."""
    out = np.zeros(len(next(iter(fields.values()))), dtype)
    for name, column in fields.items():
        out[name] = column
    return out


def _diffuse(normal: Array, environment: NDArray[np.void]) -> Array:
    """(n, 3) light of sun and sky on surfaces with these normals."""
    sun = np.maximum(0, normal @ environment["sun_direction"][0])[:, None]
    up = (0.5 - 0.5 * normal[:, 1])[:, None]
    return sun * environment["sun"] + up * environment["ambient_up"] + (1 - up) * environment["ambient_down"]


def box_clearance(
    path: Array, x: Array, z: Array, size: Array, yaw: ArrayLike, base: ArrayLike = 0.0
) -> Array:
    """(n,) metres between upright boxes (as `SceneBuilder.boxes` takes them) and camera positions (p, 3)."""
    path = path[:: max(1, len(path) // _MAX_PATH_POSITIONS)]
    yaw, base = np.broadcast_to(yaw, x.shape), np.broadcast_to(base, x.shape)
    dx, dz = path[:, 0, None] - x, path[:, 2, None] - z
    right, forward = dx * np.cos(yaw) - dz * np.sin(yaw), dx * np.sin(yaw) + dz * np.cos(yaw)
    above = -path[:, 1, None] - (base + size[:, 1] / 2)
    gaps = [np.abs(offset) - size[:, k] / 2 for k, offset in ((0, right), (1, above), (2, forward))]
    return np.sqrt(sum(np.maximum(gap, 0) ** 2 for gap in gaps)).min(0)
