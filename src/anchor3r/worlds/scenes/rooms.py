"""A furnished room around a camera path: walls with pictures, shelves, tables, chairs and clutter."""

from __future__ import annotations

import numpy as np

from anchor3r.kernels import Array
from anchor3r.worlds.scenes.builder import Painter, SceneBuilder, box_clearance
from anchor3r.worlds.scenes.scene import EMISSIVE, ON_GROUND, Scene
from anchor3r.worlds.scenes.surroundings import indoors
from anchor3r.worlds.scenes.textures import TextureBank

Rng = np.random.Generator
CLEAR_M = 0.45
"""Nothing comes nearer to the camera than this."""
_UP = np.array([0.0, -1.0, 0.0])


class _Room:
    """The walls of one room: x0..x1, z0..z1, height, and who paints it."""

    def __init__(self, rng: Rng, builder: SceneBuilder, painter: Painter, path: Array) -> None:
        self.rng, self.builder, self.painter, self.path = rng, builder, painter, path
        low, high = path.min(0), path.max(0)
        margin = rng.uniform(0.8, 2.4, 4)
        self.x0, self.x1 = low[0] - margin[0], high[0] + margin[1]
        self.z0, self.z1 = low[2] - margin[2], high[2] + margin[3]
        self.height = max(rng.uniform(2.3, 3.2), -low[1] + 0.6)

    def wall(self, k: int) -> tuple[Array, Array, float]:
        """Left end (seen from inside) on the floor, unit direction to the right, length of wall k."""
        corners = np.array([[self.x0, self.z1], [self.x1, self.z1], [self.x1, self.z0], [self.x0, self.z0]])
        a, b = corners[k], corners[(k + 1) % 4]
        length = float(np.abs(b - a).sum())
        return np.array([a[0], 0.0, a[1]]), np.array([b[0] - a[0], 0.0, b[1] - a[1]]) / length, length

    def against_wall(self, width: Array, depth: Array) -> tuple[Array, Array, Array]:
        """x, z, yaw of boxes with their backs to random places of random walls, fronts into the room."""
        n = len(width)
        k = self.rng.integers(0, 4, n)
        start, right, length = (np.array(v) for v in zip(*(self.wall(i) for i in range(4)), strict=True))
        along = width / 2 + 0.02 + self.rng.random(n) * np.maximum(0.05, length[k] - width - 0.04)
        outward = np.stack([-right[:, 2], np.zeros(4), right[:, 0]], 1)
        place = start[k] + along[:, None] * right[k] - (depth / 2 + 0.004)[:, None] * outward[k]
        return place[:, 0], place[:, 2], np.arctan2(outward[k, 0], outward[k, 2])

    def clear(self, x: Array, z: Array, size: Array, yaw: Array, base: Array | float = 0.0) -> Array:
        """Indices of the boxes that the camera does not come near to."""
        return np.flatnonzero(box_clearance(self.path, x, z, size, yaw, base) > CLEAR_M)


def room_scene(
    rng: Rng, bank: TextureBank, path: Array, centre_piece: bool, light: Rng | None = None
) -> Scene:
    """A room around camera positions (p, 3); `centre_piece` puts a laden table in the middle of the path.

    light: draws how it is lit, if not rng.
    """
    builder, painter = SceneBuilder(rng, bank), Painter(rng, bank)
    room = _Room(rng, builder, painter, path)
    _add_shell(room)
    _add_wall_hangings(room)
    _add_wall_furniture(room)
    _add_tables(room, centre_piece)
    _add_loose_items(room)
    lamp = (
        rng.uniform(0.3, 0.7) * (room.x0 + room.x1),
        -room.height + 0.25,
        rng.uniform(0.3, 0.7) * (room.z0 + room.z1),
    )
    shine = painter.paint("marking", 1, (1, 1), tint=0.02, grime=0)
    radius = rng.uniform(0.1, 0.4)
    corner = np.array([[lamp[0] - radius, -room.height, lamp[2] - radius]])
    builder.quads(corner, [0, 0, 2 * radius], [2 * radius, 0, 0], shine, flags=EMISSIVE, decal=1)
    return builder.build(indoors(rng, bank, lamp, light), (room.x0, room.z0, room.x1, room.z1), texel_m=0.05)


def _add_shell(room: _Room) -> None:
    rng, builder, painter = room.rng, room.builder, room.painter
    span_x, span_z = room.x1 - room.x0, room.z1 - room.z0
    floor = painter.paint(
        str(rng.choice(["planks", "fabric", "paving", "stripes"], p=[0.4, 0.3, 0.2, 0.1])), 1, (0.8, 2.2)
    )
    dark = [0.35] * 4
    builder.quads([[room.x0, 0, room.z0]], [span_x, 0, 0], [0, 0, span_z], floor, dark=dark, flags=ON_GROUND)
    ceiling = painter.paint(str(rng.choice(["plaster", "panels", "planks"], p=[0.7, 0.2, 0.1])), 1, (1.5, 3))
    builder.quads([[room.x0, -room.height, room.z0]], [0, 0, span_z], [span_x, 0, 0], ceiling, dark=dark)
    common = painter.paint(
        str(rng.choice(["plaster", "stripes", "fabric"], p=[0.75, 0.1, 0.15])), 1, (1.5, 3.5)
    )
    skirting = painter.paint("planks", 1, (1, 2))
    for k in range(4):
        start, right, length = room.wall(k)
        feature = rng.random() < 0.25
        paint = (
            painter.paint(str(rng.choice(["brick", "planks", "plaster", "blobs"])), 1, (1.2, 2.5))
            if feature
            else common
        )
        builder.quads([start], right * length, _UP * room.height, paint, dark=dark)
        builder.quads([start], right * length, _UP * rng.uniform(0.06, 0.15), skirting, decal=1)


def _add_wall_hangings(room: _Room) -> None:
    """Pictures, notes, a door, and a window or screen that shines."""
    rng, builder, painter = room.rng, room.builder, room.painter
    for k in range(4):
        start, right, length = room.wall(k)
        n = int(rng.integers(2, 9))
        size = np.exp(rng.uniform(np.log(0.18), np.log(1.1), (n, 2)))
        along = rng.random(n) * np.maximum(0.05, length - size[:, 0])
        up = rng.uniform(0.9, 1.9, n) - size[:, 1] / 2
        corner = start + along[:, None] * right + up[:, None] * _UP
        pictures = painter.paint("poster", n, (1, 1), fit=True)
        pictures = pictures._replace(tile_m=np.full(n, 5.0))
        builder.quads(corner, right * size[:, :1], _UP * size[:, 1:], pictures, decal=2)
        if rng.random() < 0.4 and length > 1.2:
            at = rng.random() * (length - 1.0)
            door = painter.paint("panels", 1, (4, 5), fit=True)
            builder.quads([start + at * right], right * rng.uniform(0.8, 1.0), _UP * 2.05, door, decal=3)
        if rng.random() < 0.35 and length > 1.6:
            at, width = rng.random() * (length - 1.5), rng.uniform(0.6, 1.5)
            view = painter.paint(
                str(rng.choice(["facade", "foliage", "poster", "stain"])), 1, (4, 6), fit=True
            )
            corner = start + at * right + _UP * rng.uniform(0.9, 1.1)
            frame = painter.paint("marking", 1, (1, 2))
            tall = rng.uniform(0.6, 1.2)
            builder.quads(
                [corner - right * 0.06 - _UP * 0.06],
                right * (width + 0.12),
                _UP * (tall + 0.12),
                frame,
                decal=4,
            )
            builder.quads([corner], right * width, _UP * tall, view, flags=EMISSIVE, decal=5)


def _add_wall_furniture(room: _Room) -> None:
    """Shelves, cabinets, sofas and wall cupboards, many with things on top."""
    rng = room.rng
    kinds = (
        ("books", (0.6, 1.6), (0.8, 2.1), (0.25, 0.4), (0.0, 0.0), (2, 5)),
        ("panels", (0.5, 2.4), (0.7, 1.1), (0.4, 0.65), (0.0, 0.0), (3, 8)),
        ("panels", (0.5, 1.2), (1.6, 2.2), (0.4, 0.65), (0.0, 0.0), (0, 3)),
        ("fabric", (0.8, 2.0), (0.35, 0.5), (0.6, 0.95), (0.0, 0.0), (1, 3)),
        ("panels", (0.5, 1.8), (0.4, 0.8), (0.25, 0.4), (1.25, 1.6), (0, 3)),
        ("planks", (0.5, 1.4), (0.03, 0.06), (0.2, 0.3), (0.8, 1.7), (0, 3)),
    )
    for category, widths, heights, depths, bases, number in kinds:
        n = int(rng.integers(*number))
        if n == 0:
            continue
        size = np.stack([rng.uniform(*widths, n), rng.uniform(*heights, n), rng.uniform(*depths, n)], 1)
        base = rng.uniform(*bases, n)
        x, z, yaw = room.against_wall(size[:, 0], size[:, 2])
        keep = room.clear(x, z, size, yaw, base)
        if len(keep) == 0:
            continue
        x, z, yaw, size, base = x[keep], z[keep], yaw[keep], size[keep], base[keep]
        fit = category in ("panels", "books")
        front = room.painter.paint(category, len(x), (0.7, 1.3), fit=fit)
        wood = room.painter.paint("fabric" if category == "fabric" else "planks", len(x), (0.6, 1.5))
        room.builder.boxes(x, z, size, yaw, wood, wood, front=front, base=base, dark=0.35)
        if category == "fabric":
            back = size * [1.0, 1.9, 0.22]
            shift = 0.39 * size[:, 2]
            room.builder.boxes(
                x + shift * np.sin(yaw), z + shift * np.cos(yaw), back, yaw, wood, wood, dark=0.35
            )
        _add_items_on(room, x, z, yaw, size, base + size[:, 1])


def _add_items_on(room: _Room, x: Array, z: Array, yaw: Array, size: Array, top: Array) -> None:
    """Packets, papers, cups and balls on the tops of boxes."""
    rng = room.rng
    owner = np.repeat(np.arange(len(x)), rng.integers(1, 7, len(x)))
    n = len(owner)
    right = rng.uniform(-0.45, 0.45, n) * size[owner, 0]
    forward = rng.uniform(-0.4, 0.4, n) * size[owner, 2]
    cos, sin = np.cos(yaw[owner]), np.sin(yaw[owner])
    at_x, at_z = x[owner] + right * cos + forward * sin, z[owner] - right * sin + forward * cos
    _add_items(room, at_x, at_z, top[owner], np.exp(rng.uniform(np.log(0.06), np.log(0.38), (n, 3))))


def _add_items(room: _Room, x: Array, z: Array, base: Array, size: Array) -> None:
    """Small things of the given sizes: boxes, flat papers and ellipsoids."""
    rng = room.rng
    kind = rng.random(len(x))
    size = np.where(kind[:, None] > 0.8, size * [1.6, 0.05, 1.4], size)  # papers and books lying flat
    turn = rng.uniform(0, np.pi, len(x))
    near = box_clearance(room.path, x, z, size, turn, base) < CLEAR_M
    for pick in (np.flatnonzero((kind > 0.25) & ~near),):
        if len(pick):
            category = str(
                rng.choice(["poster", "stripes", "blobs", "fabric", "panels"], p=[0.5, 0.15, 0.15, 0.1, 0.1])
            )
            posters = room.painter.paint("poster", len(pick), (1, 1), fit=True)
            sides = room.painter.paint(category, len(pick), (0.2, 0.5), fit=category == "panels")
            room.builder.boxes(
                x[pick],
                z[pick],
                size[pick],
                turn[pick],
                sides,
                posters,
                base=base[pick],
                casts=False,
                front=posters,
            )
    pick = np.flatnonzero((kind <= 0.25) & ~near)
    if len(pick):
        category = str(rng.choice(["blobs", "stripes", "plaster", "fabric"]))
        radii = size[pick] / 2
        centre = np.stack([x[pick], -base[pick] - radii[:, 1], z[pick]], 1)
        room.builder.balls(
            centre, radii, turn[pick], room.painter.paint(category, len(pick), (0.2, 0.5)), casts=False
        )


def _add_tables(room: _Room, centre_piece: bool) -> None:
    """Tables with legs and chairs around them, where the camera leaves room."""
    rng = room.rng
    n = int(rng.integers(1, 5))
    size = np.stack([rng.uniform(0.7, 1.8, n), np.full(n, 0.04), rng.uniform(0.6, 1.0, n)], 1)
    x, z = rng.uniform(room.x0 + 0.6, room.x1 - 0.6, n), rng.uniform(room.z0 + 0.6, room.z1 - 0.6, n)
    yaw = rng.uniform(0, np.pi, n)
    height = rng.uniform(0.45, 0.78, n)
    if centre_piece:
        x[0], z[0] = room.path[:, 0].mean(), room.path[:, 2].mean()
        size[0, [0, 2]] = np.minimum(
            size[0, [0, 2]], 0.9 * np.hypot(room.path[0, 0] - x[0], room.path[0, 2] - z[0])
        )
    keep = room.clear(x, z, size, yaw, height)
    if len(keep) == 0:
        return
    x, z, yaw, size, height = x[keep], z[keep], yaw[keep], size[keep], height[keep]
    wood = room.painter.paint("planks", len(x), (0.6, 1.2))
    room.builder.boxes(x, z, size, yaw, wood, wood, base=height)
    cos, sin = np.cos(yaw), np.sin(yaw)
    for a in (-0.45, 0.45):
        for b in (-0.45, 0.45):
            leg_x, leg_z = (
                x + a * size[:, 0] * cos + b * size[:, 2] * sin,
                z - a * size[:, 0] * sin + b * size[:, 2] * cos,
            )
            leg = np.stack([np.full(len(x), 0.06), height, np.full(len(x), 0.06)], 1)
            room.builder.boxes(leg_x, leg_z, leg, yaw, wood, wood, dark=0.3)
    _add_items_on(room, x, z, yaw, size, height + 0.04)
    if centre_piece:
        _add_items_on(room, x[:1], z[:1], yaw[:1], size[:1], height[:1] + 0.04)
    for end in (-1, 1):
        out = end * (size[:, 2] / 2 + 0.25)
        _add_chairs(
            room, x + out * sin, z + out * cos, yaw + (np.pi if end > 0 else 0) + rng.uniform(-0.5, 0.5)
        )


def _add_chairs(room: _Room, x: Array, z: Array, yaw: Array) -> None:
    n = len(x)
    keep = room.clear(x, z, np.tile([0.5, 1.0, 0.5], (n, 1)), yaw)
    if len(keep) == 0:
        return
    x, z, yaw = x[keep], z[keep], yaw[keep]
    n = len(x)
    wood = room.painter.paint(str(room.rng.choice(["planks", "fabric", "stripes"])), n, (0.4, 0.9))
    room.builder.boxes(x, z, [0.42, 0.05, 0.42], yaw, wood, wood, base=0.44)
    back_x, back_z = x - 0.2 * np.sin(yaw), z - 0.2 * np.cos(yaw)
    for low in (0.56, 0.7, 0.84):
        room.builder.boxes(back_x, back_z, [0.4, 0.08, 0.03], yaw, wood, wood, base=low, casts=False)
    for a in (-0.19, 0.19):
        for b in (-0.19, 0.19):
            leg_x = x + a * np.cos(yaw) + b * np.sin(yaw)
            leg_z = z - a * np.sin(yaw) + b * np.cos(yaw)
            room.builder.boxes(leg_x, leg_z, [0.04, 0.9 if b < 0 else 0.45, 0.04], yaw, wood, wood, dark=0.2)


def _add_loose_items(room: _Room) -> None:
    """Rugs, and crates, bags and stools on the floor."""
    rng = room.rng
    if rng.random() < 0.5:
        floor = np.array([room.x1 - room.x0, room.z1 - room.z0])
        size = np.minimum(rng.uniform(0.8, 2.2, 2), floor)
        x, z = rng.random(2) * (floor - size)
        corner = [room.x0 + x, 0, room.z0 + z]
        rug = room.painter.paint(str(rng.choice(["stripes", "blobs", "fabric"])), 1, (0.8, 2))
        room.builder.quads([corner], [size[0], 0, 0], [0, 0, size[1]], rug, flags=ON_GROUND, decal=1)
    n = int(rng.integers(3, 12))
    size = np.exp(rng.uniform(np.log(0.2), np.log(0.7), (n, 3)))
    x, z = rng.uniform(room.x0 + 0.4, room.x1 - 0.4, n), rng.uniform(room.z0 + 0.4, room.z1 - 0.4, n)
    keep = room.clear(x, z, size, np.zeros(n))
    if len(keep) == 0:
        return
    paint = room.painter.paint(
        str(rng.choice(["blobs", "panels", "planks", "stripes"])), len(keep), (0.3, 0.9)
    )
    posters = room.painter.paint("poster", len(keep), (1, 1), fit=True)
    yaw = rng.uniform(0, np.pi, len(keep))
    room.builder.boxes(x[keep], z[keep], size[keep], yaw, paint, paint, front=posters)
