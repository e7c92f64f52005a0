"""Open ground around a camera path: scattered huts, crates, walls, rocks, trees, poles and a skyline."""

from __future__ import annotations

import numpy as np

from anchor3r.kernels import Array
from anchor3r.worlds.scenes.builder import Painter, SceneBuilder, box_clearance
from anchor3r.worlds.scenes.scene import ON_GROUND, Scene
from anchor3r.worlds.scenes.surroundings import add_backdrop, add_bushes, add_trees, outdoors
from anchor3r.worlds.scenes.textures import TextureBank

Rng = np.random.Generator
CLEAR_M = 0.7
"""Nothing comes nearer to the camera than this."""
REACH_M = 60.0


def field_scene(
    rng: Rng,
    bank: TextureBank,
    path: Array,
    focus: Array | None,
    focus_radius: float,
    light: Rng | None = None,
) -> Scene:
    """Open ground around camera positions (p, 3), with a heap of things within a radius of `focus` (3,).

    light: draws the weather, if not rng.
    """
    builder, painter = SceneBuilder(rng, bank), Painter(rng, bank)
    centre = path[:, [0, 2]].mean(0)
    low, high = centre - 250, centre + 250
    _add_ground(rng, builder, painter, centre)
    scatter = _Scatter(rng, builder, painter, path, centre)
    scatter.boxes(
        ("facade", "brick", "planks"), int(rng.integers(4, 12)), (8, REACH_M), (2.5, 8.0), fit_first=True
    )
    scatter.boxes(
        ("poster", "panels", "blobs", "stripes", "planks", "brick"),
        int(rng.integers(25, 60)),
        (1.2, 30),
        (0.25, 1.6),
    )
    scatter.walls(int(rng.integers(1, 7)))
    scatter.greens(int(rng.integers(2, 20)), int(rng.integers(5, 30)))
    scatter.rocks(int(rng.integers(8, 40)))
    if focus is not None:
        _add_focus(rng, builder, painter, path, focus, focus_radius)
    add_backdrop(rng, builder, painter, low, high)
    ground = (*(centre - 40), *(centre + 40))
    return builder.build(outdoors(rng, bank, light), ground)


def _add_ground(rng: Rng, builder: SceneBuilder, painter: Painter, centre: Array) -> None:
    """Land, with strips of path and patches of another cover."""
    size = 900.0
    corner = [[centre[0] - size / 2, 0, centre[1] - size / 2]]
    kinds = ["grass", "soil", "paving", "asphalt"]
    land = painter.paint(str(rng.choice(kinds)), 1, (1.5, 4), grime=0.5)
    builder.quads(corner, [size, 0, 0], [0, 0, size], land, flags=ON_GROUND)
    for _ in range(rng.integers(1, 5)):
        yaw, width = rng.uniform(0, 2 * np.pi), rng.uniform(1, 5)
        length = rng.choice([rng.uniform(3, 10), 120.0])
        along, across = np.array([np.sin(yaw), 0, np.cos(yaw)]), np.array([np.cos(yaw), 0, -np.sin(yaw)])
        middle = np.array([centre[0], 0, centre[1]]) + rng.uniform(-9, 9, 3) * [1, 0, 1]
        strip = painter.paint(str(rng.choice(kinds)), 1, (1.5, 3), grime=0.4)
        start = middle - along * length / 2 - across * width / 2
        decal = int(rng.integers(1, 1000)) / 1000 + 1
        builder.quads([start], across * width, along * length, strip, flags=ON_GROUND, decal=decal)


class _Scatter:
    """Places things at random around the path, out of the camera's way."""

    def __init__(self, rng: Rng, builder: SceneBuilder, painter: Painter, path: Array, centre: Array) -> None:
        self.rng, self.builder, self.painter, self.path, self.centre = rng, builder, painter, path, centre

    def _places(self, n: int, near: float, far: float) -> tuple[Array, Array]:
        """Uniform in the logarithm of the distance: parallax at every depth."""
        distance = np.exp(self.rng.uniform(np.log(near), np.log(far), n))
        angle = self.rng.uniform(0, 2 * np.pi, n)
        return self.centre[0] + distance * np.sin(angle), self.centre[1] + distance * np.cos(angle)

    def _clear(self, x: Array, z: Array, size: Array, yaw: Array) -> Array:
        return np.flatnonzero(box_clearance(self.path, x, z, size, yaw) > CLEAR_M)

    def boxes(
        self, categories: tuple[str, ...], n: int, distance: tuple[float, float], side: tuple[float, float],
        *, fit_first: bool = False,
    ) -> None:  # fmt: skip
        x, z = self._places(n, *distance)
        size = np.exp(self.rng.uniform(np.log(side[0]), np.log(side[1]), (n, 3)))
        yaw = self.rng.uniform(0, np.pi, n)
        keep = self._clear(x, z, size, yaw)
        kind = self.rng.integers(0, len(categories), n)
        scale = 0.5 * (side[0] * side[1]) ** 0.5
        for k, category in enumerate(categories):
            pick = keep[kind[keep] == k]
            if len(pick) == 0:
                continue
            fit = category in ("poster", "panels") or (fit_first and k == 0)
            paint = self.painter.paint(category, len(pick), (scale, 3 * scale), fit=fit)
            top = self.painter.paint("roof" if fit_first else "planks", len(pick), (scale, 2 * scale))
            self.builder.boxes(x[pick], z[pick], size[pick], yaw[pick], paint, top)

    def walls(self, n: int) -> None:
        x, z = self._places(n, 3, 25)
        rng = self.rng
        size = np.stack([rng.uniform(3, 14, n), rng.uniform(0.6, 2.4, n), rng.uniform(0.05, 0.4, n)], 1)
        yaw = rng.uniform(0, np.pi, n)
        keep = self._clear(x, z, size, yaw)
        if len(keep):
            paint = self.painter.paint(
                str(rng.choice(["brick", "planks", "plaster", "foliage"])), len(keep), (1, 2.5)
            )
            self.builder.boxes(x[keep], z[keep], size[keep], yaw[keep], paint, paint)

    def greens(self, trees: int, bushes: int) -> None:
        rng = self.rng
        x, z = self._places(trees, 4, REACH_M)
        keep = self._clear(x, z, np.tile([2.5, 6.0, 2.5], (trees, 1)), np.zeros(trees))
        add_trees(rng, self.builder, self.painter, x[keep], z[keep], clear_m=1.2)
        x, z = self._places(bushes, 2, 35)
        keep = self._clear(x, z, np.tile([2.0, 1.6, 2.0], (bushes, 1)), np.zeros(bushes))
        add_bushes(rng, self.builder, self.painter, x[keep], z[keep])

    def rocks(self, n: int) -> None:
        rng = self.rng
        x, z = self._places(n, 1.2, 20)
        radii = np.exp(rng.uniform(np.log(0.08), np.log(0.6), (n, 1))) * rng.uniform(0.6, 1.3, (n, 3))
        keep = self._clear(x, z, 2 * radii, np.zeros(n))
        if len(keep):
            stone = self.painter.paint(
                str(rng.choice(["soil", "plaster", "asphalt"])), len(keep), (0.3, 1.0), tint=0.3
            )
            centre = np.stack([x[keep], -0.5 * radii[keep, 1], z[keep]], 1)
            self.builder.balls(centre, radii[keep], rng.uniform(0, 3, len(keep)), stone)


def _add_focus(
    rng: Rng, builder: SceneBuilder, painter: Painter, path: Array, focus: Array, radius: float
) -> None:
    """A heap of boxes and balls to circle around."""
    n = int(rng.integers(5, 16))
    angle, distance = rng.uniform(0, 2 * np.pi, n), radius * np.sqrt(rng.random(n)) * 0.7
    x, z = focus[0] + distance * np.sin(angle), focus[2] + distance * np.cos(angle)
    size = radius * np.exp(rng.uniform(np.log(0.15), np.log(0.8), (n, 3)))
    yaw = rng.uniform(0, np.pi, n)
    keep = np.flatnonzero(box_clearance(path, x, z, size, yaw) > CLEAR_M)
    if len(keep) == 0:
        return
    half = len(keep) // 2 + 1
    for pick, category in (
        (keep[:half], "poster"),
        (keep[half:], str(rng.choice(["blobs", "stripes", "brick", "panels"]))),
    ):
        if len(pick):
            paint = painter.paint(
                category, len(pick), (0.3 * radius, radius), fit=category in ("poster", "panels")
            )
            builder.boxes(x[pick], z[pick], size[pick], yaw[pick], paint, paint)
    radii = size[keep] * 0.35
    centre = np.stack([x[keep], -size[keep, 1] - 0.8 * radii[:, 1], z[keep]], 1)
    builder.balls(
        centre,
        radii,
        yaw[keep],
        painter.paint(str(rng.choice(["blobs", "fabric", "soil"])), len(keep), (0.4, 1.0)),
    )
