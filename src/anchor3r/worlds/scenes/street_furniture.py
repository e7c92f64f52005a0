"""What stands along a street besides houses: parked cars, lamps and signs, fences, bins and crates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.worlds.scenes.builder import Painter, SceneBuilder
from anchor3r.worlds.scenes.houses import horizontal_axes
from anchor3r.worlds.scenes.town import Town

Rng = np.random.Generator
KERB_M = 0.12
"""Height of the pavement above the road."""


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
    rng: Rng, builder: SceneBuilder, painter: Painter, x: NDArray, z: NDArray, yaw: NDArray, ground: float
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
