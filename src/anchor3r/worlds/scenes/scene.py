"""What a world is made of, as structured arrays that the numba kernels read.

World axes are OpenCV's at yaw 0: x right, y down, z forward; the ground is y = 0 and "up" is -y. The only
primitives are flat parallelograms (or triangles) and ellipsoids: both have a closed-form depth along a
pixel's ray, so the depth maps are exact. Colours are stored encoded (the square root of linear light).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.worlds.scenes.textures import TextureBank

TRIANGLE = 1
"""Flag: only the half of the parallelogram with s + t <= 1."""
TWO_SIDED = 2
"""Flag: also seen from behind, otherwise only from the side that the normal edge_s × edge_t points to."""
ON_GROUND = 4
"""Flag: takes the baked shadows of the ground."""
EMISSIVE = 8
"""Flag: shines by itself; neither the lamp nor the dark edges apply."""

QUAD = np.dtype(
    [
        ("origin", "f8", 3),  # metres, world; the surface is origin + s edge_s + t edge_t, 0 <= s, t <= 1
        ("edge_s", "f8", 3),
        ("edge_t", "f8", 3),
        ("sphere", "f8", 4),  # centre and radius of the bounding sphere
        ("normal", "f4", 3),  # unit
        ("uv", "f4", 4),  # texture position of the origin, and tiles along edge_s and edge_t
        ("gain", "f4", 3),  # encoded colour = gain * texel + offset, texel in 0..255
        ("offset", "f4", 3),
        ("grime", "f4", 3),  # strength of the coarse stains, and their tiles along edge_s and edge_t
        ("light", "f4", 3),  # linear light that falls on it, but for the lamp
        ("dark", "f4", 4),  # ambient occlusion at the edges s = 0, s = 1, t = 0, t = 1
        ("size", "f4", 2),  # lengths of the edges in metres
        ("bias", "f4"),  # relative depth advantage: what lies flat on another surface wins over it
        ("texture", "i4"),  # index into the texture bank
        ("flags", "i4"),
    ],
    align=True,
)

BALL = np.dtype(
    [
        ("centre", "f8", 3),
        ("ball_from_world", "f8", (3, 3)),  # the surface is |ball_from_world (x - centre)| = 1
        ("radius", "f8"),  # the longest semi-axis
        ("gain", "f4", 3),
        ("offset", "f4", 3),
        ("tiles", "f4"),  # texture repeats over one face of the cube around the ball
        ("texture", "i4"),
    ],
    align=True,
)

CLUSTER = np.dtype([("sphere", "f8", 4), ("start", "i8"), ("stop", "i8")], align=True)
"""A run of neighbouring quads, culled as one, so that the cost does not grow with the world."""

ENVIRONMENT = np.dtype(
    [
        ("sun_direction", "f4", 3),  # unit, towards the sun
        ("sun", "f4", 3),  # linear RGB, as are all colours here
        ("ambient_up", "f4", 3),  # light from above on a surface that faces up
        ("ambient_down", "f4", 3),  # light from below on a surface that faces down
        ("lamp_position", "f4", 3),
        ("lamp", "f4", 3),  # of a lamp indoors, on a facing surface close to it; 0 = none
        ("haze", "f4", 3),  # colour of the air and of the sky at the horizon
        ("haze_per_m", "f4"),  # extinction
        ("zenith", "f4", 3),  # sky overhead
        ("cloud_cover", "f4"),  # 0 = none, 1 = all
        ("cloud_softness", "f4"),
        ("cloud_tiles", "f4"),  # per unit of slope
        ("cloud_texture", "i4"),
        ("stain_texture", "i4"),
    ],
    align=True,
)


@dataclass(frozen=True)
class Lightmap:
    """Share of light that reaches the ground, with its mip chain, so that shadows never shimmer."""

    texels: NDArray[np.uint8]
    """(sum of 4^k,) levels one after another, the finest first"""
    frame: NDArray[np.float64]
    """(4,) world x, z of the first texel's outer corner, texels per metre, texels a side (a power of two)"""


@dataclass(frozen=True)
class Scene:
    """Everything that can be seen."""

    quads: NDArray[np.void]
    """(n,) of QUAD, sorted by cluster"""
    balls: NDArray[np.void]
    """(m,) of BALL"""
    clusters: NDArray[np.void]
    """(c,) of CLUSTER"""
    environment: NDArray[np.void]
    """(1,) of ENVIRONMENT"""
    lightmap: Lightmap
    bank: TextureBank
