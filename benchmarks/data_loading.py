"""How fast clips are made, against the bare decoding of the same files by the image library.

Writes a drive in the layout of Virtual KITTI 2 (1242×375, JPEG and 16-bit PNG), then counts frames a second
of CPU time: decoding alone (Pillow, the same files), and whole clips at 518 pixels as the paper's recipe has
them, both in two worker processes. Peak memory is printed for one and for four times as many clips.

    python benchmarks/data_loading.py
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numerical libraries are loaded

import argparse
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from anchor3r.datasets import DATA_SETS
from anchor3r.datasets.index import index_set
from anchor3r.geometry import Pinhole
from anchor3r.training.data import ClipBatches
from anchor3r.training.mixture import PAPER_MIXTURE, recorded
from anchor3r.training.recipes import paper
from anchor3r.worlds import Sensor, WorldConfig, make_world, render

CAMERA = Pinhole(725.0, 725.0, 620.5, 187.0, 1242, 375)
CLIP = 12


def write_drive(root: Path, num_frames: int) -> None:
    """Scene01/clone of Virtual KITTI 2, from a rendered street."""
    cv2.setNumThreads(1)
    world = make_world(WorldConfig(seed=2, kind="street", motion="driving", frames=num_frames))
    drive = root / "Scene01/clone"
    lines = {"extrinsic": ["frame cameraID …"], "intrinsic": ["frame cameraID …"]}
    for folder in ("rgb", "depth"):
        (drive / f"frames/{folder}/Camera_0").mkdir(parents=True)
    for k in range(num_frames):
        pose = world.camera_from_world[k]
        seen = render(world.scene, pose, CAMERA, Sensor(exposure=float(world.exposure[k]), noise=2.0), 1)
        Image.fromarray(seen.image).save(drive / f"frames/rgb/Camera_0/rgb_{k:05d}.jpg", quality=92)
        units = np.where(seen.depth_m > 0, np.minimum(100 * seen.depth_m, 65534), 65535).astype(np.uint16)
        Image.fromarray(units).save(drive / f"frames/depth/Camera_0/depth_{k:05d}.png")
        lines["extrinsic"].append(" ".join(map(str, [k, 0, *pose.matrix().ravel()])))
        lines["intrinsic"].append(f"{k} 0 {CAMERA.fx} {CAMERA.fy} {CAMERA.cx} {CAMERA.cy}")
    for name, content in lines.items():
        (drive / f"{name}.txt").write_text("\n".join(content) + "\n")


def decode_only(arguments: tuple[Path, int]) -> tuple[float, int]:
    """CPU seconds to decode frames and depth with the image library and nothing else; peak memory in MB."""
    root, count = arguments
    folder = root / "Scene01/clone/frames"
    pairs = [
        (folder / f"rgb/Camera_0/rgb_{k:05d}.jpg", folder / f"depth/Camera_0/depth_{k:05d}.png")
        for k in range(count)
    ]
    began = time.process_time()
    for image, depth in pairs:
        np.array(Image.open(image))
        np.array(Image.open(depth))
    return time.process_time() - began, _peak_mb()


def make_clips(arguments: tuple[Path, Path, int]) -> tuple[float, int]:
    """CPU seconds to make clips of the paper's recipe; peak memory in MB."""
    root, cache, count = arguments
    os.environ["ANCHOR3R_CACHE"] = str(cache)
    entry = next(entry for entry in PAPER_MIXTURE if entry.name == "vkitti2")
    chosen = recorded(index_set(DATA_SETS["vkitti2"], root), entry)
    data = ClipBatches(replace(paper().data, sets=((chosen, 1.0),), num_frames=CLIP), 1)
    data[0]
    began = time.process_time()
    for k in range(1, 1 + count // CLIP):
        data[k]
    return time.process_time() - began, _peak_mb()


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=60, help="of the drive")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root, cache = Path(place) / "vkitti2", Path(place) / "cache"
        write_drive(root, options.frames)
        count = options.frames // CLIP * CLIP
        for label, job, work in (
            ("decoding alone", decode_only, (root, count)),
            ("clips", make_clips, (root, cache, count)),
            ("clips, four times as many", make_clips, (root, cache, 4 * count)),
        ):
            with ProcessPoolExecutor(options.workers) as pool:
                done = list(pool.map(job, [work] * options.workers))
            frames = work[-1] * options.workers
            seconds = sum(result[0] for result in done)
            rate, memory = frames / seconds, max(result[1] for result in done)
            print(f"{label}: {rate:.1f} frames per CPU second and worker, peak memory {memory} MB")


if __name__ == "__main__":
    main()
