"""Houses along the streets: fronts with windows and doors, gable roofs, shop signs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.worlds.scenes.builder import Paint, Painter, SceneBuilder
from anchor3r.worlds.scenes.scene import TRIANGLE, TWO_SIDED
from anchor3r.worlds.scenes.town import Town

Rng = np.random.Generator
_UP = np.array([0.0, -1.0, 0.0])


def add_houses(town: Town) -> None:
    """Rows of houses in the style of the town: low or tall, dense or sparse, set back or not."""
    rng, builder, painter, grid, sides = town
    density, setback = rng.uniform(0.55, 1.0), rng.choice([0.0, rng.uniform(1, 8)])
    tall = rng.uniform(3.5, 11)
    side, along, slot = sides.slots(rng, grid.margin + 1, (rng.uniform(6, 11), rng.uniform(12, 20)))
    keep = rng.random(len(side)) < density
    side, along, slot = side[keep], along[keep], slot[keep]
    n = len(side)
    width = slot * rng.choice([1.0, 0.8], n)
    depth, height = rng.uniform(6, 11, n), tall * rng.uniform(0.7, 1.35, n)
    back = setback * rng.uniform(0.6, 1.5, n)
    x, z, yaw = sides.place(side, along, grid.margin + 0.3 + back + depth / 2)
    size = np.stack([width, height, depth], 1)
    fronts = painter.paint("facade", n, (4.5, 8.5), fit=True, grime=0.35)
    plain = painter.paint("plaster", n, (2, 5), grime=0.5)._replace(tint=fronts.tint)
    flanks = Paint.join([fronts, plain]).take(np.arange(n) + n * rng.integers(0, 2, n))
    roofs = painter.paint("roof", n, (2, 4), distinct=4)
    builder.boxes(x, z, size, yaw, flanks, roofs, front=fronts, dark=0.45)
    pitched = np.flatnonzero(rng.random(n) < rng.choice([0.2, 0.9]))
    place = x[pitched], z[pitched], size[pitched], yaw[pitched]
    _add_roofs(rng, builder, *place, roofs.take(pitched), plain.take(pitched))
    _add_doors(rng, builder, painter, x, z, size, yaw)


def horizontal_axes(yaw: NDArray) -> tuple[NDArray, NDArray]:
    """Unit right and forward vectors (n, 3) of things turned by yaw."""
    zero = np.zeros_like(yaw)
    return np.stack([np.cos(yaw), zero, -np.sin(yaw)], 1), np.stack([np.sin(yaw), zero, np.cos(yaw)], 1)


def _add_roofs(
    rng: Rng, builder: SceneBuilder, x: NDArray, z: NDArray, size: NDArray, yaw: NDArray,
    roof: Paint, wall: Paint,
) -> None:  # fmt: skip
    """Gable roofs: two slopes with an overhang, and a triangle of wall at either end."""
    n = len(x)
    right, forward = horizontal_axes(yaw)
    width, depth = size[:, :1], size[:, 2:]
    rise = (rng.uniform(0.3, 0.6, n) * size[:, 2])[:, None]
    eaves = np.stack([x, -size[:, 1], z], 1)
    over = 1.08
    front = eaves - forward * depth / 2 * over - right * width / 2 * over - _UP * rise * (over - 1)
    back = eaves + forward * depth / 2 * over + right * width / 2 * over - _UP * rise * (over - 1)
    slope = _UP * rise * over
    builder.quads(front, right * width * over, forward * depth / 2 * over + slope, roof, flags=TWO_SIDED)
    builder.quads(back, -right * width * over, -forward * depth / 2 * over + slope, roof, flags=TWO_SIDED)
    for sign in (-1, 1):
        middle = eaves + sign * right * width / 2
        # Half gables: right triangles from the middle of the wall to each eave, facing outwards.
        builder.quads(middle, sign * forward * depth / 2, _UP * rise, wall, flags=TRIANGLE)
        builder.quads(middle, _UP * rise, -sign * forward * depth / 2, wall, flags=TRIANGLE)


def _add_doors(
    rng: Rng, builder: SceneBuilder, painter: Painter, x: NDArray, z: NDArray, size: NDArray, yaw: NDArray
) -> None:
    """A door, and sometimes a shop sign, on the front of each house."""
    n = len(x)
    right, forward = horizontal_axes(yaw)
    wall = np.stack([x, np.zeros(n), z], 1) - forward * size[:, 2:] / 2
    door_w, door_h = rng.uniform(1.0, 2.6, n), rng.uniform(2.0, 2.6, n)
    at = rng.uniform(-0.35, 0.35, n) * size[:, 0]
    corner = wall + right * (at - door_w / 2)[:, None]
    doors = painter.paint("panels", n, (2.0, 3.0), fit=True)
    builder.quads(corner, right * door_w[:, None], _UP * door_h[:, None], doors, decal=1)
    shop = np.flatnonzero(rng.random(n) < rng.choice([0.1, 0.5]))
    sign_w, sign_h = rng.uniform(1, 4, len(shop)), rng.uniform(0.5, 1.2, len(shop))
    corner = wall[shop] + right[shop] * (rng.uniform(-0.3, 0.1, len(shop)) * size[shop, 0])[:, None]
    corner = corner + _UP * rng.uniform(2.5, 3.0, len(shop))[:, None]
    posters = painter.paint("poster", len(shop), (2, 4), fit=True)
    builder.quads(corner, right[shop] * sign_w[:, None], _UP * sign_h[:, None], posters, decal=2)
