"""Procedural tileable patterns: each takes a generator and a size and gives (size, size, 3) colours in 0..1.

Colours are encoded as in an image file. Row 0 is the top. Contrasts are kept in the range of photographs of
the same materials: most surfaces vary by a tenth around their mean, few span black to white.
"""

from __future__ import annotations

import colorsys

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from anchor3r.kernels import Array

Rng = np.random.Generator
Field = NDArray[np.float32]
"""(size, size)"""
Picture = NDArray[np.float32]
"""(size, size, 3)"""


def noise(
    rng: Rng, size: int, slope: float = 1.0, low: float = 1.0, high: float = 1e9, stretch: float = 1.0
) -> Field:
    """Periodic noise with mean 0 and deviation 1, amplitude ∝ frequency^-slope for low <= frequency <= high.

    Frequencies are in cycles per tile; `stretch` > 1 draws the pattern out along the columns (x).
    """
    fy = fft.fftfreq(size, 1 / size)[:, None]
    fx = fft.rfftfreq(size, 1 / size)[None] * stretch
    frequency = np.hypot(fx, fy).astype(np.float32)
    frequency[0, 0] = 1
    amplitude = frequency**-slope * (frequency >= low) * (frequency <= high)
    amplitude[0, 0] = 0
    phase = np.exp(2j * np.pi * rng.random(amplitude.shape, np.float32)).astype(np.complex64)
    field = fft.irfft2(amplitude * phase, s=(size, size))
    return (field / (field.std() + 1e-9)).astype(np.float32)


def colour(
    rng: Rng, hue: tuple[float, float], saturation: tuple[float, float], value: tuple[float, float]
) -> NDArray[np.float32]:
    """A random (3,) colour within ranges of hue, saturation and value, each 0..1."""
    h, s, v = rng.uniform(*hue), rng.uniform(*saturation), rng.uniform(*value)
    return np.array(colorsys.hsv_to_rgb(h % 1, s, v), np.float32)


def any_colour(rng: Rng) -> NDArray[np.float32]:
    """Made things are mostly muted, few are bright."""
    vivid = 0.8 * rng.random() ** 2
    return colour(rng, (0, 1), (vivid, vivid), (0.12, 0.95))


def _shade(base: Array, field: Field, strength: float) -> Picture:
    """The colour `base` ((3,) or a picture), made lighter and darker by a field of deviation 1."""
    return (base * (1 + strength * field[..., None])).astype(np.float32)


def _axes(size: int) -> tuple[Field, Field]:
    """Row and column positions in 0..1, texel centres."""
    line = (np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size)
    return line[:, None], line[None, :]


def _cells(rng: Rng, size: int, rows: int, columns: int, offset: float) -> tuple[Field, Field, Array, Array]:
    """A brick lattice: position (0..1) within the cell along y and x, and the cell's row and column."""
    y, x = _axes(size)
    row = np.floor(y * rows).astype(np.int64)
    shift = (row % 2) * offset if rows % 2 == 0 else row * 0.0
    along = (x * columns + shift) % columns
    column = np.floor(along).astype(np.int64)
    inner_y = np.broadcast_to(y * rows - row, (size, size)).astype(np.float32)
    return inner_y, (along - column).astype(np.float32), np.broadcast_to(row, (size, size)), column


def _joint(inner_y: Field, inner_x: Field, rows: int, columns: int, width: float) -> Field:
    """1 on the joint between cells, 0 inside; `width` as a share of the tile."""
    edge_y = np.minimum(inner_y, 1 - inner_y) / rows
    edge_x = np.minimum(inner_x, 1 - inner_x) / columns
    return (np.minimum(edge_y, edge_x) < width / 2).astype(np.float32)


def _mix(a: Array, b: Array, mask: Array) -> Picture:
    mask = mask[..., None]
    return (a * (1 - mask) + b * mask).astype(np.float32)


def stain(rng: Rng, size: int) -> Picture:
    field = np.clip(0.5 + 0.2 * noise(rng, size, rng.uniform(1.2, 1.7)), 0, 1)
    return np.repeat(field[..., None], 3, 2)


def plaster(rng: Rng, size: int) -> Picture:
    base = colour(rng, (0.02, 0.17), (0.0, 0.22), (0.55, 0.97))
    rough = noise(rng, size, rng.uniform(0.2, 1.0), low=float(rng.integers(2, 16)))
    broad = noise(rng, size, 1.5)
    return _shade(_shade(base, rough, rng.uniform(0.02, 0.09)), broad, rng.uniform(0.02, 0.08))


def asphalt(rng: Rng, size: int) -> Picture:
    base = colour(rng, (0.5, 0.7), (0.0, 0.08), (0.3, 0.6))
    picture = _shade(base, noise(rng, size, 0.1, low=16), rng.uniform(0.04, 0.14))
    picture = _shade(picture, noise(rng, size, 1.4), rng.uniform(0.04, 0.12))
    patch = noise(rng, size, 1.8, high=8) > rng.uniform(0.9, 2.0)
    picture = _mix(picture, picture * rng.uniform(0.6, 1.3), patch.astype(np.float32))
    crack = np.abs(noise(rng, size, 1.5)) < rng.uniform(0.0, 0.025)
    region = noise(rng, size, 1.5, high=4) > 0.3
    return _mix(picture, picture * 0.45, (crack & region).astype(np.float32))


def paving(rng: Rng, size: int) -> Picture:
    rows, columns = 2 * int(rng.integers(2, 9)), 2 * int(rng.integers(2, 9))
    inner_y, inner_x, row, column = _cells(rng, size, rows, columns, rng.choice([0.0, 0.5]))
    tone = 1 + rng.uniform(0.03, 0.15) * rng.standard_normal((rows, columns)).astype(np.float32)
    base = colour(rng, (0.0, 0.15), (0.0, 0.25), (0.4, 0.8))
    picture = _shade(base * tone[row, column][..., None], noise(rng, size, 0.4, low=8), 0.06)
    joint = _joint(inner_y, inner_x, rows, columns, rng.uniform(0.006, 0.02))
    return _mix(picture, base * rng.uniform(0.35, 0.7), joint)


def grass(rng: Rng, size: int) -> Picture:
    base = colour(rng, (0.17, 0.33), (0.25, 0.6), (0.3, 0.55))
    dry = colour(rng, (0.1, 0.16), (0.2, 0.5), (0.4, 0.65))
    share = np.clip(0.5 + 0.5 * noise(rng, size, 1.3), 0, 1) * rng.uniform(0.1, 0.8)
    picture = _shade(_mix(base, dry, share), noise(rng, size, 0.3, low=12), rng.uniform(0.12, 0.25))
    return _shade(picture, noise(rng, size, 1.2), rng.uniform(0.05, 0.15))


def soil(rng: Rng, size: int) -> Picture:
    base = colour(rng, (0.04, 0.13), (0.1, 0.45), (0.35, 0.7))
    picture = _shade(base, noise(rng, size, rng.uniform(0.6, 1.1)), rng.uniform(0.1, 0.22))
    stones = noise(rng, size, 0.5, low=10, high=40) > rng.uniform(1.2, 2.2)
    return _mix(
        picture,
        colour(rng, (0, 0.15), (0, 0.2), (0.4, 0.85)) * np.ones_like(picture),
        stones.astype(np.float32),
    )


def brick(rng: Rng, size: int) -> Picture:
    rows = 2 * int(rng.integers(5, 13))
    columns = max(2, round(rows / rng.uniform(2.2, 3.5)))
    inner_y, inner_x, row, column = _cells(rng, size, rows, columns, 0.5)
    tone = 1 + rng.uniform(0.06, 0.22) * rng.standard_normal((rows, columns)).astype(np.float32)
    base = colour(rng, (-0.03, 0.1), (0.15, 0.6), (0.3, 0.8))
    picture = _shade(
        base * tone[row, column][..., None], noise(rng, size, 0.5, low=8), rng.uniform(0.04, 0.12)
    )
    joint = _joint(inner_y, inner_x, rows, columns, rng.uniform(0.008, 0.018))
    mortar = colour(rng, (0.05, 0.15), (0.0, 0.2), (0.4, 0.85))
    return _mix(picture, mortar * np.ones_like(picture), joint)


def planks(rng: Rng, size: int) -> Picture:
    rows, columns = 2 * int(rng.integers(2, 7)), int(rng.integers(1, 3))
    inner_y, inner_x, row, column = _cells(rng, size, rows, columns, rng.uniform(0.2, 0.8))
    tone = 1 + rng.uniform(0.04, 0.15) * rng.standard_normal((rows, columns)).astype(np.float32)
    base = colour(rng, (0.04, 0.12), (0.15, 0.65), (0.3, 0.85))
    grain = noise(rng, size, rng.uniform(0.4, 0.9), low=4, stretch=rng.uniform(8, 24))
    picture = _shade(base * tone[row, column][..., None], grain, rng.uniform(0.05, 0.16))
    return _mix(picture, picture * 0.45, _joint(inner_y, inner_x, rows, columns, rng.uniform(0.004, 0.01)))


def roof(rng: Rng, size: int) -> Picture:
    rows, columns = 2 * int(rng.integers(6, 12)), int(rng.integers(8, 18))
    inner_y, inner_x, row, column = _cells(rng, size, rows, columns, 0.5)
    tone = 1 + 0.12 * rng.standard_normal((rows, columns)).astype(np.float32)
    base = colour(rng, (-0.02, 0.08), (0.1, 0.6), (0.25, 0.65))
    relief = 0.7 + 0.45 * np.sin(np.pi * inner_x) * (1 - 0.5 * inner_y)
    return _shade(base * (tone[row, column] * relief)[..., None], noise(rng, size, 1.0), 0.08)


def foliage(rng: Rng, size: int) -> Picture:
    base = colour(rng, (0.14, 0.36), (0.15, 0.5), (0.22, 0.5))
    leaf = noise(rng, size, rng.uniform(0.2, 0.7), low=float(rng.integers(6, 14)))
    clump = noise(rng, size, 1.0, low=2, high=12)
    depth = np.clip(0.75 + 0.3 * clump + 0.32 * leaf, 0.08, 2)
    tips = np.array([1.15, 1.1, 0.8], np.float32)
    return _mix(
        base * depth[..., None], base * tips * depth[..., None] * 1.25, (leaf > 0.8).astype(np.float32)
    )


def stripes(rng: Rng, size: int) -> Picture:
    """Stripes of random widths along x, in a few colours; some crossed to a plaid."""
    palette = np.stack([any_colour(rng) for _ in range(rng.integers(2, 5))])
    edges = np.sort(rng.integers(0, size, rng.integers(6, 40)))
    lane = np.searchsorted(edges, np.arange(size)) % (len(edges))
    band = palette[rng.integers(0, len(palette), len(edges))][lane]
    picture = np.broadcast_to(band[None], (size, size, 3)).astype(np.float32)
    if rng.random() < 0.3:
        picture = (picture + np.swapaxes(picture, 0, 1)) * np.float32(0.5)
    return _shade(picture, noise(rng, size, 0.4, low=6), rng.uniform(0.03, 0.12))


def blobs(rng: Rng, size: int) -> Picture:
    """Several layers of flat islands in random colours."""
    picture = np.broadcast_to(any_colour(rng), (size, size, 3)).astype(np.float32)
    for _ in range(rng.integers(2, 6)):
        low = int(rng.integers(1, 10))
        island = noise(rng, size, rng.uniform(0.8, 2.0), low=low, high=low * 6) > rng.uniform(0.2, 1.3)
        picture = _mix(picture, any_colour(rng) * np.ones_like(picture), island.astype(np.float32))
    return _shade(picture, noise(rng, size, 0.6), rng.uniform(0.03, 0.12))


def fabric(rng: Rng, size: int) -> Picture:
    weave = noise(rng, size, 0.0, low=30, stretch=rng.uniform(0.3, 3.0))
    picture = _shade(any_colour(rng), weave, rng.uniform(0.04, 0.14))
    if rng.random() < 0.6:
        tufts = np.abs(noise(rng, size, 0.8, low=3, high=40, stretch=rng.choice([0.2, 1.0, 6.0])))
        picture = _mix(
            picture, any_colour(rng) * np.ones_like(picture), (tufts > 1.0) * rng.uniform(0.3, 1.0)
        )
    return _shade(picture, noise(rng, size, 1.3), rng.uniform(0.03, 0.1))


def marking(rng: Rng, size: int) -> Picture:
    """Worn white or yellow paint."""
    base = colour(rng, (0.1, 0.15), (0.0, 0.35), (0.75, 0.97))
    return _shade(base, -np.abs(noise(rng, size, 0.9)), rng.uniform(0.05, 0.2))


def _rectangle(picture: Picture, top: float, left: float, bottom: float, right: float, fill: Array) -> None:
    """Fills a rectangle given in 0..1 of the tile, in place; what lies outside is cut off."""
    size = len(picture)
    y0, y1 = (round(min(max(v, 0.0), 1.0) * size) for v in (top, bottom))
    x0, x1 = (round(min(max(v, 0.0), 1.0) * size) for v in (left, right))
    picture[y0:y1, x0:x1] = fill if fill.ndim == 1 else fill[y0:y1, x0:x1]


def facade(rng: Rng, size: int) -> Picture:
    """A piece of house front: one to three floors of windows in a wall of plaster or brick."""
    wall = (brick if rng.random() < 0.25 else plaster)(rng, size)
    floors, columns = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    half_w, half_h = rng.uniform(0.16, 0.36), rng.uniform(0.18, 0.36)
    frame = colour(rng, (0, 1), (0, 0.3), (0.2, 0.98))
    trim, shutter = rng.uniform(0.02, 0.08), rng.random() < 0.35
    shutter_colour = colour(rng, (0, 1), (0.1, 0.7), (0.15, 0.7))
    glass = _shade(
        colour(rng, (0.5, 0.65), (0.0, 0.3), (0.08, 0.35)), noise(rng, size, 1.2), rng.uniform(0.1, 0.5)
    )
    bars, sill = rng.integers(0, 3), rng.random() < 0.7
    for floor in range(floors):
        for column in range(columns):
            y, x = (floor + 0.5) / floors, (column + 0.5) / columns
            w, h = half_w / columns, half_h / floors
            if rng.random() < 0.1:
                continue
            if shutter and w * columns < 0.27:
                _rectangle(wall, y - h, x - 1.75 * w, y + h, x + 1.75 * w, shutter_colour)
            t = trim / max(columns, floors)
            _rectangle(wall, y - h - t, x - w - t, y + h + t, x + w + t, frame)
            _rectangle(wall, y - h, x - w, y + h, x + w, glass)
            if rng.random() < 0.4:  # a curtain or blind
                _rectangle(
                    wall,
                    y - h,
                    x - w,
                    y - h + 2 * h * rng.uniform(0.2, 0.9),
                    x + w,
                    colour(rng, (0, 1), (0, 0.2), (0.4, 0.8)),
                )
            for bar in range(bars):
                at = x - w + 2 * w * (bar + 1) / (bars + 1)
                _rectangle(wall, y - h, at - t / 2, y + h, at + t / 2, frame)
            if sill:
                _rectangle(
                    wall,
                    y + h + t,
                    x - 1.2 * w,
                    y + h + 2.5 * t + 0.008,
                    x + 1.2 * w,
                    frame * rng.uniform(0.5, 0.9),
                )
    return wall


def panels(rng: Rng, size: int) -> Picture:
    """Cabinet or door fronts with gaps and handles."""
    columns, rows = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    base = any_colour(rng)
    grain = noise(rng, size, 0.8, low=3, stretch=rng.choice([0.08, 1.0, 12.0]))
    picture = _shade(base, grain, rng.uniform(0.01, 0.1))
    metal, inset = colour(rng, (0, 1), (0, 0.1), (0.1, 0.9)), rng.random() < 0.4
    for row in range(rows):
        for column in range(columns):
            top, left, h, w = row / rows, column / columns, 1 / rows, 1 / columns
            tone = rng.uniform(0.94, 1.06)
            gap = 0.012
            _rectangle(picture, top, left, top + h, left + w, picture * 0.35)
            _rectangle(picture, top + gap, left + gap, top + h - gap, left + w - gap, picture * tone / 0.35)
            if inset:
                _rectangle(
                    picture, top + 0.15 * h, left + 0.15 * w, top + 0.85 * h, left + 0.85 * w, picture * 0.85
                )
            y, x = top + h * rng.uniform(0.1, 0.25), left + w * 0.5
            _rectangle(picture, y, x - 0.2 * w, y + 0.025, x + 0.2 * w, metal)
    return picture


def books(rng: Rng, size: int) -> Picture:
    """Shelves full of spines of all colours and heights, some with a label."""
    picture = np.broadcast_to(colour(rng, (0.04, 0.12), (0.1, 0.5), (0.08, 0.3)), (size, size, 3)).astype(
        np.float32
    )
    shelves = int(rng.integers(2, 5))
    board = colour(rng, (0.04, 0.12), (0.0, 0.6), (0.3, 0.9))
    for shelf in range(shelves):
        bottom, x = (shelf + 1) / shelves, 0.0
        while x < 1:
            width, height = rng.uniform(0.012, 0.06), rng.uniform(0.45, 0.85) / shelves
            if rng.random() < 0.9:
                cover = any_colour(rng)
                _rectangle(picture, bottom - height, x, bottom, x + width, cover)
                _rectangle(picture, bottom - height, x + 0.8 * width, bottom, x + width, cover * 0.6)
                y = bottom - height * rng.uniform(0.4, 0.9)
                _rectangle(picture, y, x + 0.2 * width, y + 0.25 * height, x + 0.7 * width, any_colour(rng))
            x += width
        _rectangle(picture, bottom - 0.025, 0, bottom, 1, board)
    return _shade(picture, noise(rng, size, 0.6), 0.05)


def poster(rng: Rng, size: int) -> Picture:
    """A framed print, a page or a packet: patches, discs and lines like text."""
    picture = _shade(any_colour(rng), noise(rng, size, 1.4), rng.uniform(0.0, 0.25))
    y, x = _axes(size)
    for _ in range(rng.integers(2, 9)):
        cy, cx, h, w = rng.random(), rng.random(), rng.uniform(0.05, 0.4), rng.uniform(0.05, 0.4)
        if rng.random() < 0.5:
            _rectangle(picture, cy - h, cx - w, cy + h, cx + w, any_colour(rng))
        else:
            disc = ((y - cy) / h) ** 2 + ((x - cx) / w) ** 2 < 1
            picture = _mix(picture, any_colour(rng) * np.ones_like(picture), disc.astype(np.float32))
    ink = any_colour(rng)
    for _ in range(rng.integers(0, 4)):
        top, left, pitch = rng.uniform(0, 0.9), rng.uniform(0, 0.6), rng.uniform(0.02, 0.08)
        for line in range(rng.integers(1, 8)):
            at = left
            while at < left + 0.35:
                word = rng.uniform(0.5, 3) * pitch
                _rectangle(picture, top + line * pitch, at, top + (line + 0.5) * pitch, at + word, ink)
                at += word + 0.5 * pitch
    if rng.random() < 0.5:
        border, width = any_colour(rng), rng.uniform(0.02, 0.08)
        for t, left, b, r in ((0, 0, width, 1), (1 - width, 0, 1, 1), (0, 0, 1, width), (0, 1 - width, 1, 1)):
            _rectangle(picture, t, left, b, r, border)
    return picture
