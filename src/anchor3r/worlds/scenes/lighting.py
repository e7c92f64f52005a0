"""Random weather and lamps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.worlds.scenes.scene import ENVIRONMENT
from anchor3r.worlds.scenes.textures import TextureBank

Rng = np.random.Generator


def outdoors(rng: Rng, bank: TextureBank) -> NDArray[np.void]:
    """From overcast to hard sun, clear to hazy."""
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


def indoors(rng: Rng, bank: TextureBank, lamp_position: tuple[float, float, float]) -> NDArray[np.void]:
    """A lamp, light bounced from all sides, and a weak slope of light as from a window."""
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


def _environment(**fields: object) -> NDArray[np.void]:
    """(1,) of ENVIRONMENT; what is not named is 0."""
    environment = np.zeros(1, ENVIRONMENT)
    for name, value in fields.items():
        environment[name] = value
    return environment
