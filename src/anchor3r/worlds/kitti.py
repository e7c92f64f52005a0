"""Writes a world as a sequence in the layout of the KITTI odometry benchmark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.kernels import Array
from anchor3r.worlds.world import World

DEPTH_FACTOR = 256
"""Depth images hold metres times this, 0 = none, as in KITTI's depth benchmark."""
PNG_LEVEL = 1


def write_kitti(
    world: World, out: Path, sequence: str | None = None, progress: Callable[[int, int], None] | None = None
) -> Path:
    """Renders all frames into `out` and returns the sequence's folder, `out`/sequences/<sequence>.

    Writes image_2/000000.png (RGB), depth/000000.png (uint16, metres × 256, 0 = none, clipped at 255.99 m),
    calib.txt (P0 to P3, all the same camera), times.txt, and `out`/poses/<sequence>.txt (camera to the first
    camera, 3×4 a line). `sequence` is by default the seed with two digits. `progress` is told how many
    frames of how many are done. An older sequence of this name is replaced once the new one is complete.
    """
    name = sequence or f"{world.config.seed:02d}"
    folder, partial = out / "sequences" / name, out / "sequences" / f".{name}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        for part in (partial / "image_2", partial / "depth", out / "poses"):
            part.mkdir(parents=True, exist_ok=True)
        for index in range(len(world)):
            rendered = world.render(index)
            _write_png(partial / "image_2" / f"{index:06d}.png", rendered.image)
            _write_png(partial / "depth" / f"{index:06d}.png", _encode_depth(rendered.depth_m))
            if progress:
                progress(index + 1, len(world))
        (partial / "calib.txt").write_text(_calibration(world.intrinsics))
        np.savetxt(partial / "times.txt", world.timestamps_s, fmt="%.6e")
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
        np.savetxt(out / "poses" / f"{name}.txt", _first_from_camera(world), fmt="%.9e")
    except OSError as error:
        raise Anchor3RError(
            f"cannot write the sequence to {folder} ({error}); choose a writable folder"
        ) from error
    return folder


def _write_png(path: Path, pixels: Array) -> None:
    Image.fromarray(pixels).save(path, compress_level=PNG_LEVEL)


def _encode_depth(depth_m: NDArray[np.float32]) -> NDArray[np.uint16]:
    return np.clip(np.round(depth_m * DEPTH_FACTOR), 0, 65535).astype(np.uint16)


def _calibration(intrinsics: Pinhole) -> str:
    """The four projection matrices of KITTI; here they are one and the same camera."""
    projection = np.concatenate([intrinsics.matrix(), np.zeros((3, 1))], 1)
    row = " ".join(f"{value:.12e}" for value in projection.ravel())
    return "".join(f"P{k}: {row}\n" for k in range(4))


def _first_from_camera(world: World) -> NDArray[np.floating]:
    """(frames, 12) rows of the poses relative to the first camera."""
    first_from_camera = world.camera_from_world[0] @ world.camera_from_world.inverse()
    return first_from_camera.matrix()[:, :3].reshape(-1, 12)
