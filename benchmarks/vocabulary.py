"""Makes the vocabulary of places that ships: `python benchmarks/vocabulary.py --real FOLDER --out FILE`.

Features of every so many frames of procedural worlds from seed 1,001 on (streets, rooms, open ground, three
image sizes) and of the real sequences in FOLDER, if they are there; of 7-Scenes only the first half, of
KITTI only sequence 00, so that the rest can tell how good it is. The same images and seed give the same file.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import cv2
import numpy as np

from anchor3r.places.features import extract
from anchor3r.places.vocabulary import load_vocabulary, save_vocabulary, train_vocabulary
from anchor3r.sources import open_source

SIZES = ((320, 240), (480, 360), (620, 188))
FIRST_WORLD = 1_001


def world_frames(count: int, frames: int) -> Iterator[np.ndarray]:
    """Every tenth frame of worlds."""
    for k in range(count):
        width, height = SIZES[k % len(SIZES)]
        uri = f"world:{FIRST_WORLD + k}?width={width}&height={height}&frames={10 * frames}"
        with open_source(uri, stride=10) as source:
            for frame in source.frames():
                yield frame.image


def real_frames(folder: Path) -> Iterator[np.ndarray]:
    """Some frames of what there is of the real sequences."""
    parts = (
        ("kitti:", "kitti/sequences/00", 5, 1700),
        ("7scenes:", "7scenes/redkitchen/seq-01", 5, 250),
        ("", "gopro/max-heromode.mp4", 5, 315),
        ("", "drone_photos", 1, 40),
    )
    for kind, place, stride, stop in parts:
        if (folder / place).exists():
            with open_source(f"{kind}{folder / place}", stride=stride, stop=stop) as source:
                yield from (frame.image for frame in source.frames())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", type=Path, default=None)
    parser.add_argument("--worlds", type=int, default=90)
    parser.add_argument("--frames", type=int, default=12, help="frames of each world")
    parser.add_argument("--branches", type=int, default=256)
    parser.add_argument("--words", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    started = time.process_time()
    images = world_frames(arguments.worlds, arguments.frames)
    found = [extract(image).descriptor for image in images]
    num_worlds = len(found)
    if arguments.real is not None:
        found += [extract(image).descriptor for image in real_frames(arguments.real)]
    descriptors = np.concatenate(found)
    print(f"{num_worlds} + {len(found) - num_worlds} images, {len(descriptors):,} descriptors", flush=True)
    vocabulary = train_vocabulary(
        descriptors, branches=arguments.branches, words=arguments.words, seed=arguments.seed
    )
    recipe = (
        f"{len(descriptors)} descriptors of {num_worlds} frames of worlds and {len(found) - num_worlds} real "
        f"ones, seed {arguments.seed}, sha256 {hashlib.sha256(descriptors.tobytes()).hexdigest()[:16]}"
    )
    save_vocabulary(arguments.out, vocabulary, recipe)
    size_mb = arguments.out.stat().st_size / 1e6
    digest, seconds = load_vocabulary(arguments.out).digest, time.process_time() - started
    print(f"{vocabulary.size:,} words, {size_mb:.2f} MB, digest {digest}, {seconds:.0f} CPU s")


if __name__ == "__main__":
    main()
