"""One view of a scene: RGB image and exact depth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole
from anchor3r.worlds.render.exposure import expose
from anchor3r.worlds.render.shading import shade_image
from anchor3r.worlds.render.visibility import SKY, cull_balls, cull_quads, draw_balls, draw_quads
from anchor3r.worlds.scenes.scene import Scene


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
