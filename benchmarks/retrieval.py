"""Recall@k of true revisits: how often place retrieval names a place that the camera has really seen before.

Takes every k-th frame of sources with ground truth, describes it, and compares what is retrieved with where
the camera was. Odometry, which only tells that a place was left in between, is the ground truth itself here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tyro

from anchor3r.geometry import SE3
from anchor3r.loops.descriptors import TOKENS, load_descriptor
from anchor3r.loops.retrieval import Keyframes, RetrievalConfig, recall_of, retrieve
from anchor3r.predictors.loading import load_predictor
from anchor3r.sources import Frame, Source, open_source

WORLDS = tuple(f"world:{seed}?motion=grid&frames=1500" for seed in range(101, 106))


def main(
    out: Path | None = None,
    sources: tuple[str, ...] = WORLDS,
    descriptors: tuple[str, ...] = ("gradients",),
    predictor: str = "auto",
    keyframe_interval: int = 5,
    top_k: int = 3,
    radius_m: float = 5.0,
    max_angle_deg: float = 30.0,
) -> None:
    """Prints a table and writes OUT/retrieval.json.

    Args:
        out: Folder for the JSON.
        sources: With ground truth.
        descriptors: tokens (of the predictor), gradients, netvlad:PATH.
        predictor: Whose tokens.
        keyframe_interval: Frames between keyframes.
        top_k: Places named for a keyframe.
        radius_m: Two keyframes within this distance
        max_angle_deg: that look the same way to within this angle are of one place.
    """
    config = RetrievalConfig(top_k=top_k)
    rows = []
    print(f"{'source':44} {'descriptor':20} {'keyframes':>9} {'revisits':>8} {'recall':>7} {'precision':>9}")
    for uri in sources:
        for descriptor in descriptors:
            started = time.process_time()
            keyframes = _keyframes(uri, descriptor, predictor, keyframe_interval)
            found = recall_of(
                retrieve(keyframes, config), keyframes, config, radius=radius_m, max_angle_deg=max_angle_deg
            )
            rows.append({
                "source": uri, "descriptor": descriptor, "keyframes": len(keyframes.frames),
                "revisits": found.num_revisits, "found": found.num_found, "recall": found.recall,
                "matches": found.num_matches, "precision": found.precision,
                "cpu_seconds": time.process_time() - started,
            })  # fmt: skip
            print(
                f"{uri:44} {descriptor:20} {len(keyframes.frames):9} {found.num_revisits:8} "
                f"{found.recall:7.3f} {found.precision:9.3f}"
            )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        result = {"predictor": predictor, "top_k": top_k, "radius_m": radius_m, "rows": rows}
        (out / "retrieval.json").write_text(json.dumps(result, indent=2) + "\n")


def _keyframes(uri: str, descriptor: str, predictor: str, interval: int) -> Keyframes:
    frames, vectors, rotations, translations = [], [], [], []
    with open_source(uri, stride=interval) as source:
        for frame, vector in _described(source, descriptor, predictor):
            assert frame.camera_from_world is not None, f"{uri} has no ground truth"
            frames.append(frame.index)
            vectors.append(vector)
            rotations.append(frame.camera_from_world.rotation)
            translations.append(frame.camera_from_world.translation)
    return Keyframes(
        frames=np.array(frames, np.int64),
        descriptor=np.stack(vectors),
        camera_from_world=SE3(np.stack(rotations), np.stack(translations)),
        component=np.zeros(len(frames), np.int64),
    )


def _described(source: Source, descriptor: str, predictor: str) -> Iterator[tuple[Frame, np.ndarray]]:
    """Frames with their descriptors; tokens are of a frame alone, so that its window does not matter."""
    describer = load_descriptor(descriptor)
    measurer = load_predictor(predictor) if descriptor == TOKENS else None
    for frame in source:
        if measurer is not None:
            vector = measurer.step(frame).descriptor
            assert vector is not None, f"{predictor} makes no descriptors"
            yield frame, vector
        elif describer is not None:
            yield frame, describer.describe(frame.image)


if __name__ == "__main__":
    tyro.cli(main)
