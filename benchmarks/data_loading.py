"""How fast clips are made, against the bare decoding of the same files by the image library.

Writes a drive in the layout of Virtual KITTI 2 (1242×375, JPEG and 16-bit PNG), then counts frames a second
of CPU time: decoding alone (Pillow, the same files), decoding and bringing image and depth to 518 pixels
(Pillow too), and whole clips at 518 pixels as the paper's recipe has them and put into the memory that
workers share with the trainer, all in two worker processes. Peak memory is printed for one and for six times
as many clips.

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
from anchor3r.training import sampling
from anchor3r.training.data import ClipBatches
from anchor3r.training.mixture import PAPER_MIXTURE, recorded
from anchor3r.training.recipes import paper
from anchor3r.worlds import Sensor, WorldConfig, make_world, render

CAMERA = Pinhole(725.0, 725.0, 620.5, 187.0, 1242, 375)
CLIP = 12
ROUNDS = 5
"""Of each measurement, the best of which counts."""


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


def decode_only(root: Path, count: int) -> float:
    """CPU seconds to decode frames and depth with the image library and nothing else."""
    folder = root / "Scene01/clone/frames"
    began = time.process_time()
    for k in range(count):
        np.array(Image.open(folder / f"rgb/Camera_0/rgb_{k:05d}.jpg"))
        np.array(Image.open(folder / f"depth/Camera_0/depth_{k:05d}.png"))
    return time.process_time() - began


def decode_and_resize(root: Path, count: int) -> float:
    """CPU seconds to have the image library decode frames and depth and give them at 518 pixels: the least
    that a clip needs, if the library does all of it."""
    folder = root / "Scene01/clone/frames"
    size = (518, round(518 * CAMERA.height / CAMERA.width))
    began = time.process_time()
    for k in range(count):
        image = Image.open(folder / f"rgb/Camera_0/rgb_{k:05d}.jpg")
        np.array(image.resize(size, Image.Resampling.BILINEAR))
        depth = Image.open(folder / f"depth/Camera_0/depth_{k:05d}.png")
        np.array(depth.resize(size, Image.Resampling.NEAREST))
    return time.process_time() - began


def make_clips(data: ClipBatches, first: int, count: int) -> float:
    """CPU seconds to make clips of so many frames, in the memory that a worker shares with the trainer."""
    began = time.process_time()
    for k in range(first, first + count // CLIP):
        assert (clips := data[k]).images.is_shared()
        assert clips.depth.is_shared()
    return time.process_time() - began


def work(arguments: tuple[Path, Path, int]) -> tuple[list[float], int, int]:
    """What one worker measures: the best CPU seconds out of ROUNDS of decoding, of decoding with resizing and
    of clips, in turns so that other work on the machine disturbs all alike; peak memory in MB after the first
    clips and after all."""
    root, cache, count = arguments
    cv2.setNumThreads(1)
    sampling.get_worker_info = lambda: True  # type: ignore[assignment]  # as in a worker of a DataLoader
    os.environ["ANCHOR3R_CACHE"] = str(cache)
    entry = next(entry for entry in PAPER_MIXTURE if entry.name == "vkitti2")
    chosen = recorded(index_set(DATA_SETS["vkitti2"], root), entry)
    data = ClipBatches(replace(paper().data, sets=((chosen, 1.0),), num_frames=CLIP), 1)
    make_clips(data, 0, count)
    memory = _peak_mb()
    times = [
        (
            decode_only(root, count),
            decode_and_resize(root, count),
            make_clips(data, (1 + k) * count // CLIP, count),
        )
        for k in range(ROUNDS)
    ]
    return [min(column) for column in zip(*times, strict=True)], memory, _peak_mb()


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
        with ProcessPoolExecutor(options.workers) as pool:
            done = list(pool.map(work, [(root, cache, count)] * options.workers))
    decoding, resized, clips = (count * len(done) / sum(times[k] for times, *_ in done) for k in range(3))
    print(f"decoding alone: {decoding:.1f} frames per CPU second and worker")
    print(f"decoding and resizing to 518 pixels: {resized:.1f}")
    print(f"clips: {clips:.1f}, {100 * clips / decoding:.0f} % and {100 * clips / resized:.0f} % of that")
    print(
        f"peak memory of a worker: {max(first for _, first, _ in done)} MB after {count} frames, "
        f"{max(last for *_, last in done)} MB after {(ROUNDS + 1) * count}"
    )


if __name__ == "__main__":
    main()
