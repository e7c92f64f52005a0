"""A map seen from above, as a PNG. No window is opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.outputs.atomic import replacing
from anchor3r.outputs.pointcloud import Cloud

POINT_BUDGET = 300_000
DPI = 150
TRUTH = "ground truth"
"""The path of this name is drawn dashed and black."""


def write_topdown(
    path: Path | str,
    clouds: Iterable[Cloud],
    paths: Mapping[str, NDArray],
    *,
    title: str,
    horizontal: tuple[int, int] = (0, 2),
) -> None:
    """Draws points and camera paths {name: centres (n, 3)} of one world along two of its axes (x and z).

    Its third axis points down: what is above the cameras is left out, so that no roof hides the path.
    """
    from matplotlib.figure import Figure

    centres = np.concatenate(list(paths.values()))
    figure = Figure(figsize=(9, 8), layout="constrained")
    ax = figure.subplots()
    down = ({0, 1, 2} - set(horizontal)).pop()
    points, colours = _thinned(clouds, down, float(centres[:, down].min()))
    x, y = points[:, horizontal].T
    ax.scatter(x, y, s=0.3, c=colours / 255, linewidths=0)
    for name, line in paths.items():
        (drawn,) = ax.plot(*line[:, horizontal].T, linewidth=1.5, label=name)
        if name == TRUTH:
            drawn.set(color="black", linestyle="--", zorder=3)
    # A few stray points must not shrink the picture.
    bulk = np.quantile(points, (0.1, 0.9), axis=0) if len(points) else centres
    shown = np.concatenate([centres, bulk])[:, horizontal]
    margin = 0.1 * np.ptp(shown, axis=0).max() + 1e-6
    (left, bottom), (right, top) = shown.min(0) - margin, shown.max(0) + margin
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal", title=title)
    ax.set(xlabel=f"{'xyz'[horizontal[0]]} (m)", ylabel=f"{'xyz'[horizontal[1]]} (m)")
    ax.legend(loc="best")
    with replacing(path) as file:
        figure.savefig(file, dpi=DPI, format="png")


def _thinned(clouds: Iterable[Cloud], down: int, ceiling: float) -> tuple[NDArray, NDArray]:
    """Points (n, 3) below the ceiling and their colours (n, 3), the lowest first, within the budget."""
    kept: list[NDArray] = []
    count, stride = 0, 1
    for cloud in clouds:
        rows = np.concatenate([cloud.points, cloud.colours], 1)
        kept.append(rows[rows[:, down] >= ceiling][::stride])
        count += len(kept[-1])
        if count > POINT_BUDGET:
            kept = [np.concatenate(kept)[::2]]
            count, stride = len(kept[0]), 2 * stride
    points = np.concatenate(kept) if kept else np.empty((0, 6))
    points = points[np.argsort(-points[:, down], kind="stable")]
    return points[:, :3], points[:, 3:]
