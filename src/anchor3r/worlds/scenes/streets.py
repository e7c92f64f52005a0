"""A town on a street grid: houses, parked cars, trees, poles, fences, kerbs and road markings.

Everything is generated at once for all street sides near the route, as arrays over k objects.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.worlds.scenes.builder import Painter, SceneBuilder
from anchor3r.worlds.scenes.houses import add_houses
from anchor3r.worlds.scenes.landscape import add_backdrop, add_bushes, add_trees
from anchor3r.worlds.scenes.lighting import outdoors
from anchor3r.worlds.scenes.routes import StreetGrid
from anchor3r.worlds.scenes.scene import ON_GROUND, Scene
from anchor3r.worlds.scenes.street_furniture import KERB_M, add_cars, add_clutter, add_fences, add_poles
from anchor3r.worlds.scenes.textures import TextureBank
from anchor3r.worlds.scenes.town import Sides, Town, sides_near

Rng = np.random.Generator
VIEW_M = 100.0
"""Street sides farther than this from the whole route are not built."""


def street_scene(rng: Rng, bank: TextureBank, grid: StreetGrid, route: NDArray) -> Scene:
    """The town around a route (p, 2) of x, z positions."""
    builder, painter = SceneBuilder(rng, bank), Painter(rng, bank)
    town = Town(rng, builder, painter, grid, sides_near(grid, route, VIEW_M))
    reach = VIEW_M + 100
    low, high = route.min(0) - reach, route.max(0) + reach
    _add_ground(town, low, high)
    _add_markings(town)
    add_houses(town)
    add_cars(town)
    add_poles(town)
    add_fences(town)
    _add_greenery(town)
    add_clutter(town)
    add_backdrop(rng, builder, painter, low, high)
    shaded = VIEW_M * 0.55
    ground = (*(route.min(0) - shaded), *(route.max(0) + shaded))
    return builder.build(outdoors(rng, bank), ground)


def _flat(
    x0: NDArray, z0: NDArray, x1: NDArray, z1: NDArray, height: float
) -> tuple[NDArray, NDArray, NDArray]:
    """Origin and edges of horizontal rectangles that face up."""
    zero = np.zeros_like(x0)
    origin = np.stack([x0, zero - height, z0], -1)
    return origin, np.stack([x1 - x0, zero, zero], -1), np.stack([zero, zero, z1 - z0], -1)


def _add_ground(town: Town, low: NDArray, high: NDArray) -> None:
    rng, builder, painter, grid, sides = town
    land = painter.paint(
        str(rng.choice(["grass", "soil", "paving"], p=[0.55, 0.25, 0.2])), 1, (3, 6), grime=0.5
    )
    builder.quads(*_flat(low[:1], low[1:], high[:1], high[1:], 0.0), land, flags=ON_GROUND)
    half = len(sides.length) // 2  # one road for both sides of a street
    along, start, length = sides.along[:half], sides.start[:half], sides.length[:half]
    east = along[:, 0] > 0.5
    # Streets along x own the crossings, so that no two roads overlap.
    first = np.where(east, -grid.half_width, grid.half_width)
    a = start + along * first[:, None] - along[:, ::-1] * grid.half_width
    b = start + along * (length - first)[:, None] + along[:, ::-1] * grid.half_width
    asphalt = painter.paint("asphalt", 1, (3, 5), grime=0.5, tint=0.1)
    road = asphalt.take(np.zeros(half, int))
    builder.quads(*_flat(a[:, 0], a[:, 1], b[:, 0], b[:, 1], 0.0), road, flags=ON_GROUND, decal=1)
    _add_pavements(town)


def _add_pavements(town: Town) -> None:
    """Raised slabs; those along x reach around the corners, those along z stop short of them."""
    rng, builder, painter, grid, sides = town
    count = len(sides.length)
    gap = np.where(np.abs(sides.along[:, 0]) > 0.5, grid.half_width, grid.margin)
    x, z, yaw = sides.place(np.arange(count), sides.length / 2, grid.half_width + grid.pavement / 2)
    size = np.stack([sides.length - 2 * gap, np.full(count, KERB_M), np.full(count, grid.pavement)], 1)
    same = np.zeros(count, int)
    slabs = painter.paint(str(rng.choice(["paving", "asphalt"])), 1, (1.5, 3), grime=0.4).take(same)
    stone = painter.paint("plaster", 1, (1, 2), tint=0.2).take(same)
    builder.boxes(x, z, size, yaw, stone, slabs, casts=False, dark=0.3, top_flags=ON_GROUND)


def _add_markings(town: Town) -> None:
    """Dashes in the middle, and in some towns lines along the kerbs and crosswalks."""
    rng, builder, painter, grid, sides = town
    if rng.random() < 0.25:
        return
    half = len(sides.length) // 2
    streets, every = Sides(*(field[:half] for field in sides)), np.arange(half)
    dash, period = rng.uniform(1.5, 4.0), rng.uniform(5, 9)
    side, along, _ = streets.slots(rng, grid.half_width + 4, (period, period))
    lines = [_lines(side, along, 0.0, dash, 0.12)]
    if rng.random() < 0.5:
        edge, length = grid.half_width - 0.25, streets.length - 2 * grid.half_width - 4
        lines += [_lines(every, streets.length / 2, sign * edge, length, 0.1) for sign in (-1, 1)]
    if rng.random() < 0.6:
        at = grid.margin + 1.0
        for offset in np.arange(-grid.half_width + 0.6, grid.half_width - 0.5, 1.0):
            lines += [_lines(every, place, offset, 2.6, 0.5) for place in (at, streets.length - at)]
    side, along, offset, length, width = np.concatenate(lines, 1)
    side = side.astype(int)
    x, z, _ = streets.place(side, along, offset)
    edge_s, edge_t = np.zeros((len(side), 3)), np.zeros((len(side), 3))
    edge_s[:, [0, 2]] = streets.along[side] * length[:, None]
    edge_t[:, [0, 2]] = streets.outward[side] * width[:, None]
    corner = np.stack([x, np.zeros(len(x)), z], 1) - (edge_s + edge_t) / 2
    paint = painter.paint("marking", len(side), (1, 2), distinct=1, tint=0.03)
    builder.quads(corner, edge_s, edge_t, paint, flags=ON_GROUND, decal=2)


def _lines(
    side: NDArray, along: NDArray | float, offset: float, length: NDArray | float, width: float
) -> NDArray[np.float64]:
    """(5, k): side, place along it, distance from the middle, length and width of k painted lines."""
    return np.stack([np.broadcast_to(value, side.shape) for value in (side, along, offset, length, width)])


def _add_greenery(town: Town) -> None:
    """Avenue trees at the kerb, garden trees and bushes behind."""
    rng, builder, painter, grid, sides = town
    lush = rng.uniform(0.1, 1.0)
    side, along, _ = sides.slots(rng, grid.margin + 4, (7, 16))
    keep = rng.random(len(side)) < 0.6 * lush
    offset = np.where(
        rng.random(len(side)) < 0.5, grid.half_width + 0.9, grid.margin + rng.uniform(1.5, 7, len(side))
    )
    x, z, _ = sides.place(side, along, offset)
    add_trees(rng, builder, painter, x[keep], z[keep], clear_m=2.6)
    side, along, _ = sides.slots(rng, grid.margin + 2, (2.5, 7))
    keep = rng.random(len(side)) < 0.5 * lush
    x, z, _ = sides.place(side, along, grid.margin + rng.uniform(0.9, 5, len(side)))
    add_bushes(rng, builder, painter, x[keep], z[keep])
