"""Places on the Earth: latitude and longitude on the WGS 84 ellipsoid, and the local metric frame of a map.

A local frame is east, north, up in metres around its datum. Over a few kilometres it differs from every map
projection only by scale and turn, and unlike them it is exact: straight lines stay straight. The world of a
georeferenced map has the same origin and the axes of a camera that looks north: x east, y down, z north.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]

WORLD_FROM_LOCAL = np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])
"""Turns east, north, up into the axes of a map's world: east, down, north."""
_SEMI_MAJOR_M = 6378137.0
_FLATTENING = 1 / 298.257223563
_ECCENTRICITY_SQ = _FLATTENING * (2 - _FLATTENING)
_ITERATIONS = 5  # of Bowring's latitude; the second is right to a nanometre up to 10 km of height


@dataclass(frozen=True, kw_only=True)
class Datum:
    """The origin of a local frame; its axes are east, north and up there."""

    latitude_deg: float
    longitude_deg: float
    altitude_m: float
    """above the ellipsoid, or above whatever the measurements are above"""

    def __post_init__(self) -> None:
        if not (abs(self.latitude_deg) <= 90 and abs(self.longitude_deg) <= 180):
            raise ValueError(f"latitude must be within 90 and longitude within 180 degrees: {self}")

    def to_local(self, geodetic: ArrayLike) -> Float:
        """(..., 3) latitude, longitude (degrees), altitude -> east, north, up (..., 3)."""
        return (_earth_centred(geodetic) - self._origin()) @ self._local_from_earth().T

    def to_geodetic(self, local: ArrayLike) -> Float:
        """East, north, up (..., 3) -> latitude, longitude (degrees), altitude (..., 3)."""
        return _geodetic(np.asarray(local, np.float64) @ self._local_from_earth() + self._origin())

    def as_dict(self) -> dict[str, Any]:
        """The datum as JSON."""
        return {
            "latitude_deg": self.latitude_deg,
            "longitude_deg": self.longitude_deg,
            "altitude_m": self.altitude_m,
        }

    def _origin(self) -> Float:
        return _earth_centred([self.latitude_deg, self.longitude_deg, self.altitude_m])

    def _local_from_earth(self) -> Float:
        lat, lon = np.radians(self.latitude_deg), np.radians(self.longitude_deg)
        return np.array(
            [
                [-np.sin(lon), np.cos(lon), 0],
                [-np.sin(lat) * np.cos(lon), -np.sin(lat) * np.sin(lon), np.cos(lat)],
                [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)],
            ]
        )


def _earth_centred(geodetic: ArrayLike) -> Float:
    """Earth-centred, Earth-fixed x, y, z (..., 3) in metres."""
    values = np.asarray(geodetic, np.float64)
    lat, lon, height = np.radians(values[..., 0]), np.radians(values[..., 1]), values[..., 2]
    normal = _SEMI_MAJOR_M / np.sqrt(1 - _ECCENTRICITY_SQ * np.sin(lat) ** 2)
    around = (normal + height) * np.cos(lat)
    return np.stack(
        [
            around * np.cos(lon),
            around * np.sin(lon),
            (normal * (1 - _ECCENTRICITY_SQ) + height) * np.sin(lat),
        ],
        -1,
    )


def _geodetic(earth_centred: Float) -> Float:
    """The inverse, by Bowring's iteration on the reduced latitude."""
    x, y, z = np.moveaxis(earth_centred, -1, 0)
    around = np.hypot(x, y)
    semi_minor = _SEMI_MAJOR_M * (1 - _FLATTENING)
    second_sq = _ECCENTRICITY_SQ / (1 - _ECCENTRICITY_SQ)
    reduced = np.arctan2(z, (1 - _FLATTENING) * around)
    for _ in range(_ITERATIONS):
        lat = np.arctan2(
            z + second_sq * semi_minor * np.sin(reduced) ** 3,
            around - _ECCENTRICITY_SQ * _SEMI_MAJOR_M * np.cos(reduced) ** 3,
        )
        reduced = np.arctan2((1 - _FLATTENING) * np.sin(lat), np.cos(lat))
    # Along the normal, which is well-conditioned at the poles too.
    height = (
        around * np.cos(lat)
        + z * np.sin(lat)
        - _SEMI_MAJOR_M * np.sqrt(1 - _ECCENTRICITY_SQ * np.sin(lat) ** 2)
    )
    return np.stack([np.degrees(lat), np.degrees(np.arctan2(y, x)), height], -1)
