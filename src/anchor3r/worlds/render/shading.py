"""Colour and depth of a whole image: its fragments in bands of rows that stay in the processor's cache."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import kernel
from anchor3r.worlds.render.fragments import FRAGMENT, compose, gather_fragments
from anchor3r.worlds.render.sampling import light_fragments, sample_stains, sample_textures
from anchor3r.worlds.render.surfaces import trace_balls, trace_quads, trace_sky

BAND_PIXELS = 768


@kernel(fast=True)
def shade_image(
    quads: NDArray, quad_index: NDArray, quad_coefs: NDArray, balls: NDArray, ball_index: NDArray,
    ball_coefs: NDArray, environment: NDArray, lightmap: NDArray, lightmap_frame: NDArray, texels: NDArray,
    rotation: NDArray, translation: NDArray, camera: NDArray, samples: int, slots: NDArray,
    colour: NDArray, depth_m: NDArray,
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
