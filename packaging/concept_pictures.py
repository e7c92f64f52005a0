"""Draws the pictures of the pages about loops and confidence from worlds whose truth is known.

    python packaging/concept_pictures.py --out docs/concepts

loops.png: a drive through streets that come back, online and refined, with every loop event. confidence.png:
how often points of a stated confidence are right, on a drive and in a room.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import tyro
from numpy.typing import NDArray

import anchor3r
from anchor3r.geometry import umeyama
from anchor3r.predictors.confidence import TOLERANCE
from anchor3r.sources import open_source
from anchor3r.store import Map

DRIVE = "world:7?motion=grid&frames=600&width=192&height=144"
SEEN = {
    "a drive": "world:101?kind=street&motion=driving&frames=40&width=320&height=240",
    "a room": "world:101?kind=room&motion=handheld&frames=40&width=320&height=240",
}
BINS = np.linspace(0, 1, 11)


def draw_loops(scene_map: Map, path: Path) -> None:
    truth = scene_map.true_trajectory()
    assert truth is not None
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.4), sharex=True, sharey=True, layout="constrained")
    for axis, name, title in zip(axes, ("online", "offline"), ("online", "refined"), strict=True):
        trajectory = scene_map.trajectory(name)
        true = truth.center[np.searchsorted(truth.frames, trajectory.frames)]
        center = umeyama(trajectory.center, true).apply(trajectory.center)
        at = dict(zip(trajectory.frames.tolist(), center, strict=True))
        axis.plot(*truth.center[:, [0, 2]].T, color="0.75", lw=4, label="truth")
        axis.plot(*center[:, [0, 2]].T, color="tab:orange" if name == "offline" else "tab:blue", lw=1.2)
        for loop in scene_map.loops():
            ends = np.array([at[loop.query], at[loop.match]])
            axis.plot(*ends[:, [0, 2]].T, color="tab:green" if loop.accepted else "tab:red", lw=0.8)
        error = np.sqrt(np.mean(np.sum((center - true) ** 2, axis=1)))
        axis.set(title=f"{title}: {error:.2f} m off (RMSE)", aspect="equal", xlabel="m")
    events = scene_map.loops()
    accepted = sum(loop.accepted for loop in events)
    figure.suptitle(
        f"{len(events)} loop events: {accepted} accepted (green), {len(events) - accepted} rejected (red)"
    )
    figure.savefig(path, dpi=110)


def judged(folder: Path, uri: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Stated confidence of a map's points, and whether each is right by one scale for the map."""
    ratios, confidences = [], []
    with open_source(uri) as source, anchor3r.load_map(folder) as scene_map:
        for frame in source:
            found = scene_map.points(frame.index)
            if found is None or frame.depth_m is None:
                continue
            height, width = found.confidence.shape
            rows = ((np.arange(height) + 0.5) * frame.depth_m.shape[0] / height).astype(int)
            columns = ((np.arange(width) + 0.5) * frame.depth_m.shape[1] / width).astype(int)
            true, depth = frame.depth_m[rows][:, columns], found.points_in_camera[..., 2]
            known = (true > 0) & np.isfinite(depth) & (depth > 0)
            ratios.append(depth[known] / true[known])
            confidences.append(found.confidence[known])
    ratio, confidence = np.concatenate(ratios), np.concatenate(confidences).astype(np.float64)
    return confidence, np.abs(ratio / np.median(ratio[confidence > 0.5]) - 1) < TOLERANCE


def draw_confidence(measured: dict[str, tuple[NDArray[np.float64], NDArray[np.bool_]]], path: Path) -> None:
    figure, axis = plt.subplots(figsize=(5.2, 4.4), layout="constrained")
    axis.plot([0, 1], [0, 1], color="0.75", lw=3, label="as stated")
    for name, (confidence, right) in measured.items():
        number = np.clip(np.digitize(confidence, BINS) - 1, 0, len(BINS) - 2)
        filled = [k for k in range(len(BINS) - 1) if (number == k).sum() > 200]
        stated = [confidence[number == k].mean() for k in filled]
        axis.plot(
            stated, [right[number == k].mean() for k in filled], "o-", label=f"{name}, {len(right):,} points"
        )
    axis.set(xlabel="stated confidence", ylabel="part within 5 % of the true depth", xlim=(0, 1), ylim=(0, 1))
    axis.legend()
    figure.savefig(path, dpi=110)


def main(out: Path = Path("docs/concepts")) -> None:
    """Maps the worlds and draws.

    Args:
        out: Folder for the pictures.
    """
    with tempfile.TemporaryDirectory() as scratch:
        settings = anchor3r.MapSettings(predictor="features")
        anchor3r.map_source(DRIVE, Path(scratch) / "drive", settings)
        anchor3r.refine_map(Path(scratch) / "drive")
        with anchor3r.load_map(Path(scratch) / "drive") as scene_map:
            draw_loops(scene_map, out / "loops.png")
        measured = {}
        for name, uri in SEEN.items():
            folder = Path(scratch) / name.replace(" ", "-")
            anchor3r.map_source(uri, folder, settings)
            measured[name] = judged(folder, uri)
        draw_confidence(measured, out / "confidence.png")


if __name__ == "__main__":
    tyro.cli(main)
