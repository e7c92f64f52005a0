"""Writes a world as a sequence in the layout of the KITTI odometry benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.io.files import check_output, replacing, replacing_folder
from anchor3r.kernels import Array
from anchor3r.worlds.world import World

DEPTH_FACTOR = 256
"""Depth images hold metres times this, 0 = none, as in KITTI's depth benchmark."""
PNG_LEVEL = 1
MARK = "world.json"
"""In the folder of a sequence: the world that it was rendered from, by which it is known to be one."""


def write_kitti(
    world: World, out: Path, sequence: str | None = None, progress: Callable[[int, int], None] | None = None
) -> Path:
    """Renders all frames into `out` and returns the sequence's folder, `out`/sequences/<sequence>.

    Writes image_2/000000.png (RGB), depth/000000.png (uint16, metres × 256, 0 = none, clipped at 255.99 m),
    calib.txt (P0 to P3, all the same camera), times.txt, and `out`/poses/<sequence>.txt (camera to the first
    camera, 3×4 a line). `sequence` is by default the seed with two digits. `progress` is told how many
    frames of how many are done. An older sequence of this name that was written by this function, which its
    world.json tells, is replaced once the new one is complete; any other is left as it is.
    """
    name = sequence or f"{world.config.seed:02d}"
    folder, poses = out / "sequences" / name, out / "poses" / f"{name}.txt"
    if check_output(poses).exists() and not (folder / MARK).is_file():
        raise Anchor3RError(f"{poses} belongs to a sequence that is no world; choose another folder")
    with replacing_folder(folder, mark=MARK) as partial:
        for part in (partial / "image_2", partial / "depth"):
            part.mkdir()
        for index in range(len(world)):
            rendered = world.render(index)
            _write_png(partial / "image_2" / f"{index:06d}.png", rendered.image)
            _write_png(partial / "depth" / f"{index:06d}.png", _encode_depth(rendered.depth_m))
            if progress:
                progress(index + 1, len(world))
        (partial / "calib.txt").write_text(_calibration(world.intrinsics))
        np.savetxt(partial / "times.txt", world.timestamps_s, fmt="%.6e")
        (partial / MARK).write_text(json.dumps(asdict(world.config), default=str) + "\n")
    with replacing(poses) as file:
        np.savetxt(file, _first_from_camera(world), fmt="%.9e")
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
