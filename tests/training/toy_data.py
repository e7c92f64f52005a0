"""A wall with a random picture, seen by a camera that moves along and towards it: clips with exact truth."""

from dataclasses import dataclass, replace

import cv2
import numpy as np

from anchor3r.geometry import SE3, Pinhole, so3_exp
from anchor3r.model.config import PRESETS, MatchingConfig, shrunk
from anchor3r.sources.frame import Frame
from anchor3r.training.data import DataConfig
from anchor3r.training.recipes import OptimiserConfig, Recipe, tiny
from anchor3r.training.sampling import SamplingConfig

WALL_M = 4.0


class WallSequence:
    """The wall z = 4 m with a texture of 1 px / cm."""

    def __init__(self, rng: np.random.Generator, size: tuple[int, int], count: int) -> None:
        noise = rng.random((40, 60, 3)).astype(np.float32)
        self.texture = (255 * cv2.resize(noise, (1200, 800), interpolation=cv2.INTER_CUBIC)).clip(0, 255)
        self.camera = Pinhole.from_fov(60, size[1], size[0])
        turn = np.cumsum(0.01 * rng.standard_normal((count, 3)), 0)
        centers = np.cumsum(rng.normal([0.05, 0, 0.05], 0.02, (count, 3)), 0)
        rotation = so3_exp(turn)
        self.camera_from_world = SE3(rotation, -(rotation @ centers[..., None])[..., 0])

    @property
    def num_frames(self) -> int:
        return len(self.camera_from_world)

    def poses(self) -> list[SE3 | None]:
        return [self.camera_from_world[k] for k in range(len(self.camera_from_world))]

    def read(self, index: int) -> Frame:
        camera, pose = self.camera, self.camera_from_world[index]
        # Pixel -> ray in the world -> the wall: a homography from pixels to texture coordinates.
        wall = np.array([[100, 0, 600], [0, 100, 400], [0, 0, 1.0]])
        center = pose.center()
        away = WALL_M - center[2]
        to_wall = np.array([[away, 0, center[0]], [0, away, center[1]], [0, 0, 1]])
        rays = pose.rotation.T @ np.linalg.inv(camera.matrix())
        texture_from_pixel = wall @ to_wall @ rays
        image = cv2.warpPerspective(
            self.texture,
            texture_from_pixel,
            (camera.width, camera.height),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REFLECT,
        )
        v, u = np.mgrid[: camera.height, : camera.width]
        directions = np.stack([u, v, np.ones_like(u)], -1) @ rays.T
        depth = away / directions[..., 2]
        return Frame(
            index=index,
            timestamp_s=index / 10,
            image=image.astype(np.uint8),
            intrinsics=camera,
            depth_m=depth.astype(np.float32),
            camera_from_world=pose,
        )


@dataclass(frozen=True)
class WallSet:
    sampling: SamplingConfig = SamplingConfig(max_interval=1)
    metric: bool = True

    def draw(self, seed: int, number: int, size: tuple[int, int], rng: np.random.Generator) -> WallSequence:
        return WallSequence(rng, size, 6)

    def held_out(self) -> "WallSet":
        return self


def wall_recipe(*, steps: int = 4, clips: int = 1, frames: int = 4, **changes: object) -> Recipe:
    """The tiny recipe shrunk to seconds."""
    network = shrunk(
        PRESETS["tiny"], window=3, matching=MatchingConfig(channels=(8, 12, 16), coarse_dim=16, fine_dim=8)
    )
    recipe = replace(
        tiny(),
        network=network,
        data=DataConfig(sets=((WallSet(), 1.0),), num_frames=frames, sizes=((48, 64), (32, 80))),
        optimiser=OptimiserConfig(learning_rate=1e-3, warmup_steps=2),
        steps=steps,
        clips_per_process=clips,
        accumulate=1,
    )
    return replace(recipe, **changes)
