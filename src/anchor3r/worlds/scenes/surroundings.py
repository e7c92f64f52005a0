"""What is around anything that is built: random weather and lamps, trees and bushes, and the skyline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import Array
from anchor3r.worlds.scenes.builder import Painter, SceneBuilder
from anchor3r.worlds.scenes.scene import ENVIRONMENT
from anchor3r.worlds.scenes.textures import TextureBank

Rng = np.random.Generator


def outdoors(rng: Rng, bank: TextureBank, light: Rng | None = None) -> NDArray[np.void]:
    """From overcast to hard sun, clear to hazy. light: draws all of it but the stains, if not rng."""
    own = _weather(rng, bank)
    return own if light is None else _stained_as(own, _weather(light, bank))


def _weather(rng: Rng, bank: TextureBank) -> NDArray[np.void]:
    azimuth, elevation = rng.uniform(0, 2 * np.pi), np.radians(rng.uniform(12, 55))
    direction = [np.cos(elevation) * np.sin(azimuth), -np.sin(elevation), np.cos(elevation) * np.cos(azimuth)]
    sunny = rng.random() < 0.7
    strength = rng.uniform(1.5, 6.0) if sunny else rng.uniform(0.0, 0.25)
    warm = np.array([1.0, rng.uniform(0.88, 1.0), rng.uniform(0.72, 0.98)])
    blue = rng.uniform(0.0, 0.35) if sunny else rng.uniform(0, 0.1)
    ambient = rng.uniform(0.5, 0.8) * np.array([1 - 0.4 * blue, 1.0, 1 + 0.4 * blue])
    haze = rng.uniform(1.0, 2.2) * (1 + 0.25 * strength) * np.array([1 - 0.3 * blue, 1.0 - 0.08 * blue, 1.0])
    zenith = haze * rng.uniform(0.35, 1.0) * np.array([1 - 1.3 * blue, 1 - 0.6 * blue, 1.0])
    cover = rng.uniform(0.3, 0.9) if rng.random() < 0.6 else 0.0
    stain = bank.draw(rng, "stain", 2)
    return _environment(
        sun_direction=direction, sun=strength * warm, ambient_up=ambient,
        ambient_down=rng.uniform(0.2, 0.45) * ambient, haze=haze, zenith=zenith,
        haze_per_m=np.exp(rng.uniform(np.log(1e-4), np.log(3e-3))), cloud_cover=cover,
        cloud_softness=rng.uniform(0.2, 0.7), cloud_tiles=rng.uniform(0.08, 0.3), cloud_texture=stain[0],
        stain_texture=stain[1],
    )  # fmt: skip


def indoors(
    rng: Rng, bank: TextureBank, lamp_position: tuple[float, float, float], light: Rng | None = None
) -> NDArray[np.void]:
    """A lamp, light bounced from all sides, and a weak slope of light as from a window.

    light: draws all of it but the stains and where the lamp is, if not rng.
    """
    own = _lamps(rng, bank, lamp_position)
    return own if light is None else _stained_as(own, _lamps(light, bank, lamp_position))


def _lamps(rng: Rng, bank: TextureBank, lamp_position: tuple[float, float, float]) -> NDArray[np.void]:
    azimuth, elevation = rng.uniform(0, 2 * np.pi), np.radians(rng.uniform(0, 40))
    direction = [np.cos(elevation) * np.sin(azimuth), -np.sin(elevation), np.cos(elevation) * np.cos(azimuth)]
    warm = np.array([1.0, rng.uniform(0.82, 1.0), rng.uniform(0.6, 1.0)])
    window = rng.uniform(0.0, 0.5) * np.array([0.9, 1.0, rng.uniform(1.0, 1.2)])
    ambient = rng.uniform(0.3, 0.6) * np.ones(3)
    lamp = rng.uniform(0.5, 2.5) * warm
    return _environment(
        sun_direction=direction, sun=window, ambient_up=ambient, ambient_down=rng.uniform(0.6, 1.0) * ambient,
        lamp_position=lamp_position, lamp=lamp, haze=1.0, zenith=1.0,
        stain_texture=bank.draw(rng, "stain", 1)[0],
    )  # fmt: skip


def _stained_as(own: NDArray[np.void], other: NDArray[np.void]) -> NDArray[np.void]:
    """Another light over surfaces that are as dirty as before."""
    other["stain_texture"] = own["stain_texture"]
    return other


def _environment(**fields: object) -> NDArray[np.void]:
    """(1,) of ENVIRONMENT; what is not named is 0."""
    environment = np.zeros(1, ENVIRONMENT)
    for name, value in fields.items():
        environment[name] = value
    return environment


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
