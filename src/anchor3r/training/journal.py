"""The log of a run: JSON lines, TensorBoard where it is installed, pictures of the curve and of samples."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.io.files import replacing
from anchor3r.io.inputs import text_lines

_OF_ALL = ("step", "time")
"""Numbers that each line of a log has."""


class Journal:
    """Writes what happens in a run into its folder; a resumed run drops the lines after its first step."""

    def __init__(self, folder: Path, first_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / "log.jsonl"
        self._forget_after(first_step)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self._board = None
        else:
            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1)

    def _forget_after(self, step: int) -> None:
        if self.path.exists():
            kept = [entry for entry in read_log(self.path) if entry["step"] <= step]
            with replacing(self.path) as file:
                file.write("".join(json.dumps(entry) + "\n" for entry in kept).encode())

    def log(self, step: int, values: dict[str, float]) -> None:
        """One line; numbers only."""
        entry = {"step": step, "time": round(time.time(), 1)} | {k: float(v) for k, v in values.items()}
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)
            self._board.flush()

    def draw(self, step: int, sample: NDArray[np.uint8]) -> None:
        """Keeps a picture of samples (H, W, 3) and draws the learning curve anew."""
        from PIL import Image

        Image.fromarray(sample).save(self.folder / f"samples_{step:07d}.png")
        draw_curve(read_log(self.path), self.folder / "curve.png")


def read_log(path: Path) -> list[dict[str, float]]:
    """All whole lines of a log; one that a crash cut short, or that is none of a log, is left out."""
    entries = []
    for _, line in text_lines(path, errors="replace"):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and all(isinstance(entry.get(name), int | float) for name in _OF_ALL):
            entries.append(entry)
    return entries


def draw_curve(entries: list[dict[str, float]], path: Path) -> None:
    """A panel for each logged quantity, training and validation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    skipped = {"step", "time", "skipped", "frames_per_s"}
    names = list(dict.fromkeys(k for e in entries for k in e if k not in skipped))
    columns = 4
    rows = max(1, -(-len(names) // columns))
    figure, axes = plt.subplots(rows, columns, figsize=(4 * columns, 2.6 * rows), squeeze=False)
    for axis, name in zip(axes.flat, names, strict=False):
        points = [(e["step"], e[name]) for e in entries if name in e]
        steps, values = zip(*points, strict=True)
        axis.plot(steps, values, linewidth=0.8)
        axis.set_title(name, fontsize=9)
        if min(values) > 0 and max(values) > 5 * min(values):
            axis.set_yscale("log")
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)
