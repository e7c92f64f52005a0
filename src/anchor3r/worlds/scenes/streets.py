"""A town on a street grid: houses, parked cars, trees, poles, fences, kerbs and road markings.

Everything is generated at once for all street sides near the route, as arrays over k objects.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import Array
from anchor3r.worlds.scenes.builder import Paint, Painter, SceneBuilder
from anchor3r.worlds.scenes.paths import StreetGrid
from anchor3r.worlds.scenes.scene import ON_GROUND, TRIANGLE, TWO_SIDED, Scene
from anchor3r.worlds.scenes.surroundings import add_backdrop, add_bushes, add_trees, outdoors
from anchor3r.worlds.scenes.textures import TextureBank

Rng = np.random.Generator
_UP = np.array([0.0, -1.0, 0.0])
KERB_M = 0.12
"""Height of the pavement above the road."""
VIEW_M = 100.0
"""Street sides farther than this from the whole route are not built."""


class Sides(NamedTuple):
    """S street sides from crossing to crossing, seen from the middle of the street."""

    start: Array
    """(S, 2) x, z of the crossing"""
    along: Array
    """(S, 2) unit"""
    outward: Array
    """(S, 2) unit, away from the street"""
    length: Array
    """(S,)"""

    def place(self, side: Array, along: Array, offset: Array | float) -> tuple[Array, Array, Array]:
        """World x, z and yaw of k things, so far along and away from the middle, fronts to the street."""
        offset = np.broadcast_to(offset, along.shape)
        point = self.start[side] + along[:, None] * self.along[side] + offset[:, None] * self.outward[side]
        return point[:, 0], point[:, 1], np.arctan2(self.outward[side, 0], self.outward[side, 1])

    def slots(self, rng: Rng, margin: float, gap: tuple[float, float]) -> tuple[Array, Array, Array]:
        """Consecutive slots of random lengths on every side: the side, middle and length (k,) of each."""
        count = int((self.length.max() - 2 * margin) / gap[0]) + 1
        width = rng.uniform(*gap, (len(self.length), max(1, count)))
        end = margin + np.cumsum(width, 1)
        side, slot = np.nonzero(end <= self.length[:, None] - margin)
        return side, end[side, slot] - width[side, slot] / 2, width[side, slot]


class Town(NamedTuple):
    """What those who add to a town need."""

    rng: Rng
    builder: SceneBuilder
    painter: Painter
    grid: StreetGrid
    sides: Sides


def sides_near(grid: StreetGrid, route: Array, view_m: float) -> Sides:
    """Both sides of the streets within `view_m` of a route (p, 2); sides k and k + S/2 are one street."""
    i, j = np.meshgrid(np.arange(grid.columns + 1), np.arange(grid.rows + 1), indexing="ij")
    nodes = np.stack([i, j], -1)
    east, north = nodes[:-1].reshape(-1, 2), nodes[:, :-1].reshape(-1, 2)
    start = grid.crossing(np.concatenate([east, north]))
    along = np.repeat([[1.0, 0.0], [0.0, 1.0]], [len(east), len(north)], 0)
    length = np.repeat([grid.block_x, grid.block_z], [len(east), len(north)])
    middle = start + along * length[:, None] / 2
    coarse = route[:: max(1, len(route) // 400)]
    away = np.linalg.norm(middle[:, None] - coarse[None], axis=2).min(1) - length / 2
    near = away < view_m
    start, along, length = start[near], along[near], length[near]
    outward = np.stack([-along[:, 1], along[:, 0]], 1)
    return Sides(
        np.concatenate([start, start]), np.concatenate([along, along]), np.concatenate([outward, -outward]),
        np.concatenate([length, length]),
    )  # fmt: skip


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


def horizontal_axes(yaw: Array) -> tuple[Array, Array]:
    """Unit right and forward vectors (n, 3) of things turned by yaw."""
    zero = np.zeros_like(yaw)
    return np.stack([np.cos(yaw), zero, -np.sin(yaw)], 1), np.stack([np.sin(yaw), zero, np.cos(yaw)], 1)


def _add_roofs(
    rng: Rng, builder: SceneBuilder, x: Array, z: Array, size: Array, yaw: Array,
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
    rng: Rng, builder: SceneBuilder, painter: Painter, x: Array, z: Array, size: Array, yaw: Array
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


def add_cars(town: Town) -> None:
    """Parked at the kerb where the lane leaves room for them, else half on the pavement."""
    rng, builder, painter, grid, sides = town
    side, along, _ = sides.slots(rng, grid.margin + 6, (5.2, 7.0))
    keep = rng.random(len(side)) < rng.uniform(0.05, 0.8)
    side, along = side[keep], along[keep]
    n = len(side)
    room = grid.half_width >= abs(grid.lane) + 3.1
    offset = grid.half_width + (-1.1 if room else 1.1) + rng.uniform(-0.1, 0.1, n)
    x, z, yaw = sides.place(side, along, offset)
    yaw = yaw + rng.uniform(-0.04, 0.04, n) + np.pi * rng.integers(0, 2, n)
    _park(rng, builder, painter, x, z, yaw, 0.0 if room else KERB_M)


def _park(
    rng: Rng, builder: SceneBuilder, painter: Painter, x: Array, z: Array, yaw: Array, ground: float
) -> None:
    """Body, cabin, wheels, lamps and plates; a car's length lies along its local x."""
    n = len(x)
    if n == 0:
        return
    right, forward = horizontal_axes(yaw)
    length, width = rng.uniform(3.7, 4.8, n), rng.uniform(1.65, 1.85, n)
    waist, roof = rng.uniform(0.75, 1.0, n), rng.uniform(0.45, 0.75, n)
    body = painter.paint("plaster", n, (3, 6), tint=0.55, grime=0.15)
    dark = painter.paint("stripes", n, (1.0, 2.5), tint=0.1, grime=0.0)
    glass = dark._replace(tint=dark.tint * 0.35, contrast=dark.contrast * 0.5)
    builder.boxes(x, z, np.stack([length, waist - 0.28, width], 1), yaw, body, body, base=ground + 0.28)
    shift = (rng.uniform(-0.1, 0.1, n) * length)[:, None] * right
    cabin = np.stack([length * rng.uniform(0.45, 0.7, n), roof, width * 0.88], 1)
    builder.boxes(x + shift[:, 0], z + shift[:, 2], cabin, yaw, glass, body, base=ground + waist)
    middle = np.stack([x, np.full(n, -ground), z], 1)
    up = np.array([0.0, -1.0, 0.0])
    rubber = painter.paint("stain", n, (1, 2), tint=0.05, grime=0.0)
    rubber = rubber._replace(tint=rubber.tint * 0.25)
    for end in (-0.32, 0.32):
        for flank in (-0.47, 0.47):
            hub = middle + end * length[:, None] * right + flank * width[:, None] * forward + 0.31 * up
            builder.balls(hub, [0.31, 0.31, 0.11], yaw, rubber, casts=False)
    lamps = painter.paint("marking", n, (1, 2), tint=0.2)
    plates = painter.paint("poster", n, (0.5, 0.6), fit=True)
    for end in (-1, 1):
        face = middle + end * length[:, None] / 2 * right + 0.5 * up
        # `across` runs so that across × up points out of the car.
        across = forward * end
        builder.quads(face - across * 0.26, across * 0.52, up * 0.14, plates, decal=1)
        for flank in (-0.4, 0.27):
            builder.quads(
                face + across * (flank * width)[:, None] + up * 0.1, across * 0.22, up * 0.16, lamps, decal=1
            )


def add_poles(town: Town) -> None:
    """Street lamps with an arm, and traffic signs."""
    rng, builder, painter, grid, sides = town
    side, along, _ = sides.slots(rng, grid.margin + 3, (14, 34))
    n = len(side)
    if n == 0:
        return
    x, z, yaw = sides.place(side, along, grid.half_width + 0.5)
    metal = painter.paint("plaster", n, (1, 2), tint=0.3)
    metal = metal._replace(tint=metal.tint * rng.uniform(0.3, 0.8))
    lamp = rng.random(n) < 0.55
    tall = np.where(lamp, rng.uniform(4.5, 7.5, n), rng.uniform(2.3, 3.2, n))
    thick = np.where(lamp, 0.15, 0.07)
    builder.boxes(x, z, np.stack([thick, tall, thick], 1), yaw, metal, metal, base=KERB_M, dark=0.2)
    street = np.flatnonzero(lamp)
    arm_x, arm_z, arm_yaw = sides.place(side[street], along[street], grid.half_width - 0.3)
    arms = metal.take(street)
    builder.boxes(arm_x, arm_z, [0.12, 0.1, 1.7], arm_yaw, arms, arms, base=tall[street], casts=False)
    sign = np.flatnonzero(~lamp)
    plates = painter.paint("poster", len(sign), (0.8, 1.2), fit=True)
    size = np.stack(
        [rng.uniform(0.4, 0.9, len(sign)), rng.uniform(0.4, 0.9, len(sign)), np.full(len(sign), 0.03)], 1
    )
    builder.boxes(
        x[sign], z[sign], size, yaw[sign] + np.pi / 2, plates, plates, base=tall[sign] - 0.4, casts=False
    )


def add_fences(town: Town) -> None:
    """Hedges, walls and plank fences along the far side of the pavement."""
    rng, builder, painter, grid, sides = town
    side, along, slot = sides.slots(rng, grid.margin + 1, (4, 11))
    keep = rng.random(len(side)) < rng.uniform(0.0, 0.8)
    side, along, slot = side[keep], along[keep], slot[keep]
    x, z, yaw = sides.place(side, along, grid.margin + 0.25)
    kind = rng.integers(0, 3, len(side))
    for k, (category, thick) in enumerate((("foliage", 0.5), ("planks", 0.06), ("brick", 0.3))):
        pick = np.flatnonzero(kind == k)
        n = len(pick)
        if n == 0:
            continue
        paint = painter.paint(category, n, (1.2, 2.2), distinct=3)
        size = np.stack([slot[pick] - 0.9, rng.uniform(0.5, 1.7, n), np.full(n, thick)], 1)
        builder.boxes(x[pick], z[pick], size, yaw[pick], paint, paint, dark=0.4)


def add_clutter(town: Town) -> None:
    """Bins, cabinets, benches, crates along the houses."""
    rng, builder, painter, grid, sides = town
    side, along, _ = sides.slots(rng, grid.margin + 3, (4, 14))
    keep = rng.random(len(side)) < rng.uniform(0.2, 0.9)
    side, along = side[keep], along[keep]
    n = len(side)
    x, z, yaw = sides.place(side, along, grid.margin - rng.uniform(0.3, 0.9, n))
    size = np.exp(rng.uniform(np.log(0.3), np.log(1.2), (n, 3)))
    for category in ("panels", "poster", "stripes", "blobs", "planks"):
        pick = np.flatnonzero(rng.integers(0, 5, n) == 0)
        if len(pick) == 0:
            continue
        paint = painter.paint(category, len(pick), (0.6, 1.5), fit=category in ("panels", "poster"))
        builder.boxes(
            x[pick], z[pick], size[pick], yaw[pick] + rng.uniform(-0.3, 0.3), paint, paint, base=KERB_M - 0.1
        )


def street_scene(
    rng: Rng, bank: TextureBank, grid: StreetGrid, route: Array, light: Rng | None = None
) -> Scene:
    """The town around a route (p, 2) of x, z positions. light: draws the weather, if not rng."""
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
    return builder.build(outdoors(rng, bank, light), ground)


def _flat(x0: Array, z0: Array, x1: Array, z1: Array, height: float) -> tuple[Array, Array, Array]:
    """Origin and edges of horizontal rectangles that face up."""
    zero = np.zeros_like(x0)
    origin = np.stack([x0, zero - height, z0], -1)
    return origin, np.stack([x1 - x0, zero, zero], -1), np.stack([zero, zero, z1 - z0], -1)


def _add_ground(town: Town, low: Array, high: Array) -> None:
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
    side: Array, along: Array | float, offset: float, length: Array | float, width: float
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
