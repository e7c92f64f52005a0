"""Points drawn into an image: round spots with a depth buffer, and shading that shows steps in depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import kernel


@dataclass(frozen=True)
class PictureCamera:
    """Projects world points to pixels, in perspective or along parallel rays."""

    camera_from_world: NDArray[np.float64]
    """(3, 3) x right, y down, z away from the viewer"""
    center: NDArray[np.float64]
    """(3,) of projection; for parallel rays, any point that is seen in the middle"""
    focal_pixels: float
    """Pixels a radian near the axis; for parallel rays, pixels a unit of the world"""
    size: tuple[int, int]
    """Width and height in pixels."""
    parallel: bool = False
    distance: float = 1.0
    """Of what is looked at, in perspective; only `extent` needs it"""

    def project(self, points: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(n, 3) -> pixels (n, 2), NaN behind the viewer, and depth (n,)."""
        x, y, z = ((np.asarray(points, np.float64) - self.center) @ self.camera_from_world.T).T
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.full(len(z), self.focal_pixels) if self.parallel else self.focal_pixels / z
        if not self.parallel:
            scale[z <= 0] = np.nan
        width, height = self.size
        return np.stack([x * scale + (width - 1) / 2, y * scale + (height - 1) / 2], -1), z

    @property
    def extent(self) -> float:
        """How wide the part of the world is that fits into the picture."""
        across = self.size[0] / self.focal_pixels
        return across if self.parallel else across * self.distance


def draw_points(
    camera: PictureCamera, points: NDArray[Any], colours: NDArray[np.uint8], *, radius: NDArray[np.float32]
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Colours (H, W, 3) and depth (H, W), infinite where nothing is; `radius` (n,) of the spots in pixels."""
    pixels, depth = camera.project(points)
    width, height = camera.size
    reach = radius[:, None]
    # NaN compares as false.
    inside = np.flatnonzero(((pixels >= -reach) & (pixels < np.add(camera.size, reach))).all(1))
    image, buffer = np.zeros((height, width, 3), np.uint8), np.full((height, width), np.inf, np.float32)
    _splat(
        pixels[inside].astype(np.float32), depth[inside].astype(np.float32), colours[inside],
        radius[inside], image, buffer,
    )  # fmt: skip
    return image, buffer


@kernel
def _splat(
    pixels: NDArray[np.float32],
    depth: NDArray[np.float32],
    colours: NDArray[np.uint8],
    radius: NDArray[np.float32],
    image: NDArray[np.uint8],
    buffer: NDArray[np.float32],
) -> None:
    height, width = buffer.shape
    for n in range(len(depth)):
        u, v, reach = pixels[n, 0], pixels[n, 1], radius[n]
        for row in range(max(0, int(np.ceil(v - reach))), min(height, int(np.floor(v + reach)) + 1)):
            for column in range(max(0, int(np.ceil(u - reach))), min(width, int(np.floor(u + reach)) + 1)):
                off_sq = (row - v) ** 2 + (column - u) ** 2
                if off_sq <= reach * reach and depth[n] < buffer[row, column]:
                    buffer[row, column] = depth[n]
                    image[row, column] = colours[n]


def eye_dome_shade(
    depth: NDArray[np.float32], *, extent: float, reach: int, strength: float
) -> NDArray[np.float32]:
    """Brightness (H, W) in 0 … 1, darker where neighbours `reach` pixels away are nearer to the viewer.

    Depth counts as part of `extent`, how much of the world is seen, so that the map's scale does not matter.
    """
    seen = np.isfinite(depth)
    relative = depth / np.float32(extent)
    padded = np.pad(relative, reach, constant_values=np.inf)
    height, width = depth.shape
    hidden = np.zeros(depth.shape, np.float32)
    for dv, du in ((0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1)):
        rows, columns = slice(reach + dv * reach, None), slice(reach + du * reach, None)
        neighbour = padded[rows, columns][:height, :width]
        with np.errstate(invalid="ignore"):
            nearer = np.where(np.isfinite(neighbour) & seen, relative - neighbour, 0)
        hidden += np.clip(nearer, 0, 0.1)
    return np.exp(-strength * hidden / 8)
