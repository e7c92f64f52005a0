"""What stands outdoors anywhere: trees and bushes from ellipsoids of foliage, and the skyline."""

from __future__ import annotations

import numpy as np

from anchor3r.kernels import Array
from anchor3r.worlds.scenes.builder import Painter, SceneBuilder

Rng = np.random.Generator


def add_trees(
    rng: Rng,
    builder: SceneBuilder,
    painter: Painter,
    x: Array,
    z: Array,
    clear_m: float,
    scale: float = 1.0,
) -> None:
    """n trees at (x, z): a trunk and a crown of several ellipsoids that begins above `clear_m`."""
    n = len(x)
    if n == 0:
        return
    bark = painter.paint("planks", n, (0.5, 1.0), tint=0.2)
    bark = bark._replace(tint=bark.tint * 0.6)
    trunk = clear_m + rng.uniform(0.2, 1.5, n) * scale
    thick = rng.uniform(0.15, 0.42, n) * scale
    yaw = rng.uniform(0, np.pi, n)
    builder.boxes(x, z, np.stack([thick, trunk + 0.8 * scale, thick], 1), yaw, bark, bark, dark=0.3)
    spread = rng.uniform(1.1, 2.4, n) * scale
    leaves = painter.paint("foliage", n, (1.2, 3.0), distinct=3, tint=0.2)
    lobes = 4
    for lobe in range(lobes):
        turn = rng.uniform(0, 2 * np.pi, n)
        out = spread * (0.0 if lobe == 0 else 0.6) * rng.uniform(0.6, 1.2, n)
        radii = spread[:, None] * rng.uniform(0.55, 1.0, (n, 3)) * (1.0 if lobe == 0 else 0.75)
        up = trunk + radii[:, 1] + rng.uniform(0, 0.8, n) * spread * (lobe > 0)
        centre = np.stack([x + out * np.sin(turn), -up, z + out * np.cos(turn)], 1)
        builder.balls(centre, radii, turn, leaves)


def add_bushes(rng: Rng, builder: SceneBuilder, painter: Painter, x: Array, z: Array) -> None:
    """n bushes that stand in the ground."""
    n = len(x)
    if n == 0:
        return
    radii = rng.uniform(0.35, 1.0, (n, 3))
    leaves = painter.paint("foliage", n, (0.7, 1.6), distinct=3, tint=0.2)
    builder.balls(np.stack([x, -0.55 * radii[:, 1], z], 1), radii, rng.uniform(0, 3, n), leaves)


def add_backdrop(rng: Rng, builder: SceneBuilder, painter: Painter, low: Array, high: Array) -> None:
    """Hills and towers around the ground low..high (x, z), so that views end before the horizon does."""
    centre, reach = (low + high) / 2, np.linalg.norm(high - low) / 2
    n = 28
    angle = (np.arange(n) + rng.random(n)) / n * 2 * np.pi
    distance = reach * rng.uniform(0.95, 1.3, n)
    x, z = centre[0] + distance * np.sin(angle), centre[1] + distance * np.cos(angle)
    radii = np.stack([rng.uniform(30, 70, n), rng.uniform(8, 28, n), rng.uniform(30, 60, n)], 1)
    woods = painter.paint("foliage", n, (15, 30), distinct=3)
    builder.balls(np.stack([x, np.zeros(n), z], 1), radii, angle, woods, casts=False)
    towers = painter.paint("facade", n, (8, 12), fit=True)
    size = np.stack([rng.uniform(12, 30, n), rng.uniform(10, 45, n), rng.uniform(12, 30, n)], 1)
    builder.boxes(x * 0.98, z * 0.98, size, angle + rng.uniform(-0.7, 0.7, n), towers, towers, casts=False)
