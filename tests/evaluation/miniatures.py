"""A short drive, and the files that miniatures of data sets are made of."""

from pathlib import Path

import numpy as np
from PIL import Image

from anchor3r.geometry import SE3, so3_exp

WIDTH, HEIGHT = 64, 48


def drive(num: int, seed: int = 0) -> SE3:
    """world_from_camera (num,) of a winding path, away from the origin."""
    rng = np.random.default_rng(seed)
    headings = np.cumsum(rng.normal(0, 0.1, num))
    steps = np.stack([np.sin(headings), rng.normal(0, 0.02, num), np.cos(headings)], -1)
    rotation = so3_exp(headings[:, None] * [0.0, 1.0, 0.0]) @ so3_exp(rng.normal(0, 0.02, (num, 3)))
    return SE3(rotation, np.cumsum(steps, 0) + np.array([5.0, 1.0, -3.0]))


def write_image(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(value)
    Image.fromarray(rng.integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8)).save(path)


def write_depth(path: Path, units_per_m: float, depth_m: float = 4.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((HEIGHT, WIDTH), depth_m * units_per_m, np.uint16)).save(path)


def write_kitti(root: Path, name: str, truth: SE3, camera: int = 2) -> None:
    """sequences/NAME with images of one camera, and poses/NAME.txt; camera 2 sits 6 cm left of camera 0."""
    folder = root / "sequences" / name
    for k in range(len(truth)):
        write_image(folder / f"image_{camera}/{k:06d}.png", k)
    lines = [f"P{c}: 50 0 32 {3 * (c == 2)} 0 50 24 0 0 0 1 0" for c in range(4)]
    (folder / "calib.txt").write_text("\n".join(lines) + "\n")
    np.savetxt(folder / "times.txt", np.arange(len(truth)) / 10)
    (root / "poses").mkdir(exist_ok=True)
    np.savetxt(root / f"poses/{name}.txt", truth.matrix()[:, :3].reshape(-1, 12))
