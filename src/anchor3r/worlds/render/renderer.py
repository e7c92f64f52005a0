"""One view of a scene: RGB image and exact depth, from linear light through lens and sensor to 8 bits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole
from anchor3r.kernels import Array, kernel
from anchor3r.worlds.render.fragments import (
    FRAGMENT,
    compose,
    gather_fragments,
    light_fragments,
    sample_stains,
    sample_textures,
    trace_balls,
    trace_quads,
    trace_sky,
)
from anchor3r.worlds.render.visibility import SKY, cull_balls, cull_quads, draw_balls, draw_quads
from anchor3r.worlds.scenes.scene import Scene

BAND_PIXELS = 768


@kernel(fast=True)
def _mix(key: np.uint64) -> np.uint64:
    """The splitmix64 finaliser: a counter in, 64 random bits out."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


@kernel(fast=True)
def _blur(rows: Array, strength: float) -> Array:
    """Convolves (H, W * 3) with (strength, 1 - 2 strength, strength) both ways, borders repeated."""
    height, width = rows.shape
    middle, side = np.float32(1 - 2 * strength), np.float32(strength)
    across, out = np.empty_like(rows), np.empty_like(rows)
    for i in range(height):
        for c in range(3):
            end = width - 3 + c
            across[i, c] = (middle + side) * rows[i, c] + side * rows[i, c + 3]
            across[i, end] = (middle + side) * rows[i, end] + side * rows[i, end - 3]
        for j in range(3, width - 3):
            across[i, j] = middle * rows[i, j] + side * (rows[i, j - 3] + rows[i, j + 3])
    for i in range(height):
        above, below = max(0, i - 1), min(height - 1, i + 1)
        for j in range(width):
            out[i, j] = middle * across[i, j] + side * (across[above, j] + across[below, j])
    return out


@kernel(fast=True)
def _noise_row(row: Array, key: np.uint64, scale: np.float32) -> None:
    """Adds noise to (W * 3,) values, three from each 64-bit counter hash."""
    for j in range(len(row) // 3):
        bits = _mix(key + np.uint64(j) * np.uint64(0x9E3779B97F4A7C15))
        for c in range(3):
            # The sum of four 5-bit numbers: nearly normal, mean 62, deviation 18.47.
            lanes = np.int32(bits >> np.uint64(20 * c)) & np.int32(0xFFFFF)
            total = (lanes & 31) + ((lanes >> 5) & 31) + ((lanes >> 10) & 31) + (lanes >> 15)
            row[3 * j + c] += scale * np.float32(total - 62)


@kernel(fast=True)
def expose(
    colour: Array, exposure: float, blur: float, vignetting: float, noise: float, key: np.uint64
) -> NDArray[np.uint8]:
    """(H, W, 3) linear light -> uint8. `noise` is a deviation in grey levels, `key` makes it repeatable.

    Up to 0.6 of the range the response is the square root of light; above it rolls off softly.
    """
    height, width, _ = colour.shape
    rows = colour.reshape(height, 3 * width)
    if blur > 0:
        rows = _blur(rows, blur)
    image = np.empty((height, 3 * width), np.uint8)
    middle_i, middle_j = np.float32((height - 1) / 2), np.float32((width - 1) / 2)
    corner = np.float32(vignetting / (middle_i * middle_i + middle_j * middle_j + 1))
    knee, full, bend = np.float32(0.6), np.float32(255), np.float32(0.9)
    gain, across, row = np.float32(exposure), np.empty(3 * width, np.float32), np.empty(3 * width, np.float32)
    for k in range(3 * width):
        across[k] = 1 - corner * (k // 3 - middle_j) ** 2
    for i in range(height):
        down = corner * (i - middle_i) ** 2
        for k in range(3 * width):
            light = rows[i, k] * gain * (across[k] - down)
            value = np.float32(math.sqrt(max(np.float32(0), light)))
            over = max(np.float32(0), value - knee)
            row[k] = full * (min(value, knee) + over / (np.float32(1) + bend * over)) + np.float32(0.5)
        if noise > 0:
            _noise_row(row, _mix(key + np.uint64(i)), np.float32(noise / 18.47))
        for k in range(3 * width):
            image[i, k] = np.uint8(np.int32(min(full, max(np.float32(0), row[k]))))
    return image.reshape(height, width, 3)


@kernel(fast=True)
def shade_image(
    quads: Array, quad_index: Array, quad_coefs: Array, balls: Array, ball_index: Array,
    ball_coefs: Array, environment: Array, lightmap: Array, lightmap_frame: Array, texels: Array,
    rotation: Array, translation: Array, camera: Array, samples: int, slots: Array,
    colour: Array, depth_m: Array,
) -> None:  # fmt: skip
    """Fills colour (H, W, 3) in linear light and depth_m (H, W), 0 = sky, from what the samples see."""
    height, width = depth_m.shape
    centre = -(rotation.T @ translation)
    rows = max(1, BAND_PIXELS // width)
    scratch = np.empty(rows * width * samples * samples, FRAGMENT)
    for first_row in range(0, height, rows):
        last_row = min(height, first_row + rows)
        count = gather_fragments(slots, samples, camera, first_row, last_row, scratch)
        fragments = scratch[:count]
        trace_quads(fragments, quads, quad_index, quad_coefs, width, camera, environment)
        trace_balls(fragments, balls, ball_index, ball_coefs, rotation, centre, width, camera, environment)
        trace_sky(fragments, rotation, camera[0], environment)
        sample_textures(fragments, texels)
        sample_stains(fragments, texels, environment)
        light_fragments(fragments, environment, lightmap, lightmap_frame)
        compose(fragments, environment, colour, depth_m)


@dataclass(frozen=True, kw_only=True)
class Sensor:
    """What the camera does to the light of one frame."""

    exposure: float = 1.0
    """Factor on linear light."""
    blur: float = 0.0
    """Weight of each of the two side taps of the lens blur, 0 to 0.25."""
    vignetting: float = 0.0
    """Share of light lost in the corners."""
    noise: float = 0.0
    """Deviation of the sensor noise in grey levels."""
    key: int = 0
    """Seeds the noise of this frame, 64 bits."""

    def __post_init__(self) -> None:
        if not 0 <= self.blur <= 0.25:
            raise ValueError(f"blur is {self.blur}, must be in 0..0.25")


@dataclass(frozen=True)
class Rendered:
    """One frame as the camera sees it."""

    image: NDArray[np.uint8]
    """(H, W, 3) RGB"""
    depth_m: NDArray[np.float32]
    """(H, W) along the optical axis at the pixel's centre, 0 = sky"""


def render_linear(
    scene: Scene, camera_from_world: SE3, intrinsics: Pinhole, samples: int = 2
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Linear light (H, W, 3) and depth in metres (H, W), visibility sampled samples × samples a pixel."""
    height, width = intrinsics.height, intrinsics.width
    rotation = np.ascontiguousarray(camera_from_world.rotation, np.float64)
    translation = np.ascontiguousarray(camera_from_world.translation, np.float64)
    camera = np.array([intrinsics.fx, intrinsics.fy, intrinsics.cx, intrinsics.cy])
    pose = (rotation, translation, camera)
    nearest = np.zeros((height * samples, width * samples), np.float32)
    slots = np.full(nearest.shape, SKY, np.int32)
    quad_index, quad_coefs = cull_quads(scene.quads, scene.clusters, *pose, width, height)
    ball_index, ball_coefs = cull_balls(scene.balls, *pose, width, height)
    draw_quads(scene.quads, quad_index, quad_coefs, *pose, samples, nearest, slots)
    draw_balls(ball_coefs, camera, samples, nearest, slots)
    colour = np.empty((height, width, 3), np.float32)
    depth_m = np.empty((height, width), np.float32)
    shade_image(
        scene.quads, quad_index, quad_coefs, scene.balls, ball_index, ball_coefs, scene.environment,
        scene.lightmap.texels, scene.lightmap.frame, scene.bank.texels, *pose, samples, slots,
        colour, depth_m,
    )  # fmt: skip
    return colour, depth_m


def render(
    scene: Scene, camera_from_world: SE3, intrinsics: Pinhole, sensor: Sensor | None = None, samples: int = 2
) -> Rendered:
    """Renders one view of the scene."""
    sensor = sensor or Sensor()
    colour, depth_m = render_linear(scene, camera_from_world, intrinsics, samples)
    key = np.uint64(sensor.key & 0xFFFFFFFFFFFFFFFF)
    image = expose(colour, sensor.exposure, sensor.blur, sensor.vignetting, sensor.noise, key)
    return Rendered(image, depth_m)
