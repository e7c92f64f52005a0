"""A world: a scene and a camera path through it, chosen by a seed, rendered frame by frame."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole
from anchor3r.limits import LIMITS
from anchor3r.worlds.render.renderer import Rendered, Sensor, render, render_linear
from anchor3r.worlds.scenes.fields import field_scene
from anchor3r.worlds.scenes.paths import SPACING_M, StreetGrid, drive, grid_route, handheld, orbit, wave
from anchor3r.worlds.scenes.rooms import room_scene
from anchor3r.worlds.scenes.scene import Scene
from anchor3r.worlds.scenes.streets import street_scene
from anchor3r.worlds.scenes.textures import TextureBank, texture_bank

Kind = Literal["street", "room", "open"]
Motion = Literal["driving", "grid", "handheld", "orbit"]
MOTIONS: dict[Kind, tuple[Motion, ...]] = {
    "street": ("driving", "grid"),
    "room": ("handheld", "orbit"),
    "open": ("handheld", "orbit"),
}
"""The motions that each kind of world has."""
Rng = np.random.Generator
_MOST = {"noise": 255.0, "blur": 0.25, "vignetting": 1.0, "brightness": 1.0, "exposure_drift": 5.0}
"""Largest values of what a sensor does."""


@dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """All that determines a world: the same config gives the same bytes."""

    seed: int
    """Chooses everything that the other fields leave open."""
    kind: Kind = "street"
    """A town on a street grid, a furnished room, or open ground with scattered objects."""
    motion: Motion = "driving"
    """street: driving (a short trip) or grid (a long route with revisits); room, open: handheld or orbit."""
    frames: int = 300
    """Length of the camera path."""
    width: int = 128
    """Pixels."""
    height: int = 96
    """Pixels."""
    horizontal_fov_deg: float = 75.0
    """Angle between the left and right image borders."""
    samples: int = 2
    """Visibility samples a pixel and axis: 1 leaves edges jagged, 2 is smooth, more is finer."""
    noise: float = 2.0
    """Deviation of the sensor noise in grey levels."""
    blur: float = 0.08
    """Weight of each side tap of the lens blur, 0 (none) to 0.25 (soft)."""
    vignetting: float = 0.2
    """Share of light lost in the corners."""
    brightness: float = 0.45
    """Mean grey level aimed at, 0 to 1."""
    exposure_drift: float = 0.15
    """Slow change of the exposure along the path, as a log factor."""
    light: int = 0
    """Chooses the weather or the lamps over the same things; 0: those that the seed chooses."""
    texture_bank: int = 0
    """Seed of the bank of textures, which worlds share."""
    texture_folder: Path | None = None
    """Photos to use for half of the surfaces."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind) or self.motion not in MOTIONS[self.kind]:
            options = "; ".join(f"{kind}: {', '.join(motions)}" for kind, motions in MOTIONS.items())
            raise Anchor3RError(
                f"no world of kind '{self.kind}' with motion '{self.motion}'; choose from {options}"
            )
        seeds = {"world seed": self.seed, "texture bank": self.texture_bank, "light": self.light}
        for name, seed in seeds.items():
            if not 0 <= seed <= LIMITS.seed:
                raise Anchor3RError(f"{name} is {seed}; give a number from 0 to {LIMITS.seed}")
        pixels = self.width * self.height
        if self.frames > LIMITS.world_frames or pixels > LIMITS.world_pixels:
            raise Anchor3RError(
                f"a world of {self.frames} frames of {self.width}×{self.height} pixels is too large; give at "
                f"most {LIMITS.world_frames:,} frames of {LIMITS.world_pixels:,} pixels"
            )
        for name, most in _MOST.items():
            if not 0 <= getattr(self, name) <= most:
                raise Anchor3RError(f"{name} is {getattr(self, name)}; give 0 to {most}")
        if self.frames < 1 or self.width < 8 or self.height < 8:
            raise Anchor3RError(
                f"a world of {self.frames} frames of {self.width}×{self.height} pixels is too small; "
                "give at least 1 frame of 8×8"
            )
        if not 10 <= self.horizontal_fov_deg <= 150:
            raise Anchor3RError(f"field of view is {self.horizontal_fov_deg}°; give 10 to 150")
        if not 1 <= self.samples <= 4:
            raise Anchor3RError(f"samples is {self.samples}; give 1 to 4")


def sample_config(seed: int, **overrides: object) -> WorldConfig:
    """The config of `world:SEED`: kind, motion, field of view and sensor by the seed alone.

    Overrides replace single fields and leave the draws of the others as they are; a motion without a kind
    chooses among the kinds that have it, and the other way round.
    """
    if not 0 <= seed <= LIMITS.seed:
        raise Anchor3RError(f"world seed is {seed}; give a number from 0 to {LIMITS.seed}")
    rng = np.random.default_rng([seed, 7])
    pairs = [(kind, motion) for kind, motions in MOTIONS.items() for motion in motions]
    chances = np.array([0.3, 0.15, 0.2, 0.1, 0.15, 0.1])
    allowed = np.array(
        [
            overrides.get("kind", kind) == kind and overrides.get("motion", motion) == motion
            for kind, motion in pairs
        ]
    )
    if not allowed.any():
        return WorldConfig(seed=seed, **overrides)  # type: ignore[arg-type]  # raises, naming the options
    kind, motion = pairs[int(rng.choice(len(pairs), p=chances * allowed / (chances * allowed).sum()))]
    drawn = {
        "kind": kind,
        "motion": motion,
        "horizontal_fov_deg": float(rng.uniform(40, 100)),
        "noise": float(rng.uniform(0.5, 4.0)),
        "blur": float(rng.uniform(0.0, 0.2)),
        "vignetting": float(rng.uniform(0.0, 0.4)),
        "brightness": float(rng.uniform(0.34, 0.54)),
        "exposure_drift": float(rng.uniform(0.0, 0.3)),
    }
    return WorldConfig(seed=seed, **{**drawn, **overrides})  # type: ignore[arg-type]


@dataclass(frozen=True)
class World:
    """A scene, a camera path, and the camera."""

    config: WorldConfig
    scene: Scene
    camera_from_world: SE3
    """Batch of `frames` poses"""
    intrinsics: Pinhole
    timestamps_s: NDArray[np.float64]
    """(frames,) from 0, at 10 Hz on wheels and 30 Hz in the hand"""
    exposure: NDArray[np.float64] = field(repr=False)
    """(frames,) factor on linear light"""

    def __len__(self) -> int:
        return self.config.frames

    def render(self, index: int) -> Rendered:
        """Frame `index`, the same bytes in whatever order frames are asked for."""
        if not 0 <= index < len(self):
            raise IndexError(f"frame {index} of a world of {len(self)}")
        config = self.config
        sensor = Sensor(
            exposure=float(self.exposure[index]),
            blur=config.blur,
            vignetting=config.vignetting,
            noise=config.noise,
            key=_noise_key(config, index),
        )
        return render(self.scene, self.camera_from_world[index], self.intrinsics, sensor, config.samples)


def _noise_key(config: WorldConfig, index: int) -> int:
    return (
        config.seed * 0xD1342543DE82EF95 + config.light * 0x9E3779B97F4A7C15 + index * 0x2545F4914F6CDD1D + 1
    )


def _light(config: WorldConfig) -> Rng | None:
    return np.random.default_rng([config.seed, 11, config.light]) if config.light else None


def make_world(config: WorldConfig) -> World:
    """Builds the world of a config."""
    rng = np.random.default_rng([config.seed, 1])
    bank = texture_bank(config.texture_bank, config.texture_folder)
    make = {"street": _make_street, "room": _make_room, "open": _make_open}[config.kind]
    scene, camera_from_world = make(rng, config, bank)
    intrinsics = Pinhole.from_fov(config.horizontal_fov_deg, config.width, config.height)
    rate_hz = 10.0 if config.kind == "street" else 30.0
    drift = config.exposure_drift * wave(rng, np.arange(config.frames, dtype=float), 60)
    exposure = _metered_exposure(scene, camera_from_world, intrinsics, config.brightness) * np.exp(drift)
    return World(config, scene, camera_from_world, intrinsics, np.arange(config.frames) / rate_hz, exposure)


def _metered_exposure(scene: Scene, camera_from_world: SE3, intrinsics: Pinhole, brightness: float) -> float:
    """The exposure that brings what is solid in small previews of a few frames to a mean grey level."""
    preview = intrinsics.resized(24, max(8, round(24 * intrinsics.height / intrinsics.width)))
    picks = np.unique(np.linspace(0, len(camera_from_world) - 1, 3).astype(int))
    grey = []
    for k in picks:
        colour, depth_m = render_linear(scene, camera_from_world[int(k)], preview, 1)
        solid = depth_m > 0 if (depth_m > 0).mean() > 0.3 else np.ones(depth_m.shape, bool)
        grey.append(np.sqrt(colour[solid]).mean())
    return float((brightness / np.mean(grey)) ** 2)


def _make_street(rng: Rng, config: WorldConfig, bank: TextureBank) -> tuple[Scene, SE3]:
    looping = config.motion == "grid"
    slowest = rng.uniform(0.3, 0.5)
    speed_m = (slowest, rng.uniform(slowest + 0.2, 1.2))
    length = config.frames * speed_m[1] + 20
    half_width = rng.uniform(3.2, 6.5)
    block = (38, 65) if looping else (50, 110)
    across = (
        int(np.clip(round((length / 260) ** 0.5), 2, 8)) if looping else int(np.clip(length / 120 + 2, 3, 8))
    )
    grid = StreetGrid(
        columns=across, rows=across, block_x=rng.uniform(*block), block_z=rng.uniform(*block),
        half_width=half_width, pavement=rng.uniform(1.5, 3.5),
        lane=rng.choice([-1, 1], p=[0.2, 0.8]) * half_width * rng.uniform(0.3, 0.45),
    )  # fmt: skip
    start = 0.0 if looping else rng.uniform(0, 120)
    route = grid_route(rng, grid, start + length, turn_share=0.6 if looping else 0.45)
    camera_from_world = drive(
        rng, route[round(start / SPACING_M) :], config.frames, rng.uniform(1.2, 2.0), speed_m
    )
    route_m = camera_from_world.center()[:, [0, 2]]
    return street_scene(rng, bank, grid, route_m, _light(config)), camera_from_world


def _make_room(rng: Rng, config: WorldConfig, bank: TextureBank) -> tuple[Scene, SE3]:
    if config.motion == "orbit":
        radius = rng.uniform(1.1, 2.0)
        target = np.array([0.0, -rng.uniform(0.5, 0.9), 0.0])
        path = orbit(rng, config.frames, (radius, radius * rng.uniform(1.05, 1.3)), (1.1, 1.8), target)
    else:
        reach = np.array([rng.uniform(0.3, 1.6), rng.uniform(0.1, 0.3), rng.uniform(0.3, 1.6)])
        middle = np.array([0.0, -rng.uniform(1.2, 1.6), 0.0])
        path = handheld(
            rng, config.frames, middle - reach, middle + reach, rng.uniform(0.01, 0.05), rng.uniform(0.4, 2.2)
        )
    return room_scene(rng, bank, path.center(), config.motion == "orbit", _light(config)), path


def _make_open(rng: Rng, config: WorldConfig, bank: TextureBank) -> tuple[Scene, SE3]:
    if config.motion == "orbit":
        radius = rng.uniform(2.0, 9.0)
        target = np.array([0.0, -0.25 * radius * rng.uniform(0.5, 1.2), 0.0])
        heights = (max(0.9, 0.2 * radius), max(1.6, 0.6 * radius))
        path = orbit(rng, config.frames, (radius, radius * rng.uniform(1.05, 1.4)), heights, target)
        return field_scene(rng, bank, path.center(), target, 0.6 * radius, _light(config)), path
    reach = np.array([rng.uniform(0.5, 4.0), rng.uniform(0.1, 0.3), rng.uniform(0.5, 4.0)])
    middle = np.array([0.0, -rng.uniform(1.3, 1.8), 0.0])
    path = handheld(
        rng, config.frames, middle - reach, middle + reach, rng.uniform(0.02, 0.1), rng.uniform(0.4, 2.0)
    )
    return field_scene(rng, bank, path.center(), None, 0.0, _light(config)), path
