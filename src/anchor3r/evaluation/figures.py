"""Pictures of an evaluation: where the error lies, how it grows, what it cost. No window is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray

from anchor3r.errors import printable
from anchor3r.evaluation.metrics import TrajectoryErrors
from anchor3r.io.files import replacing
from anchor3r.store import Runtime
from anchor3r.trajectory import distance_along

DPI = 150
_MAX_COLUMNS = 3
_TRUTH = {"color": "0.25", "linewidth": 1.0, "linestyle": "--", "label": "ground truth", "zorder": 3}


def trajectory_figure(variants: Mapping[str, TrajectoryErrors], path: Path, title: str) -> None:
    """Top-down view of each variant, coloured by its distance from the ground truth on one scale."""
    columns = min(_MAX_COLUMNS, len(variants))
    rows = -(-len(variants) // columns)
    figure = Figure(figsize=(5.0 * columns, 4.6 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes[len(variants) :]:
        ax.set_axis_off()
    first = next(iter(variants.values()))
    horizontal = _ground_axes(first.world_from_true.translation)
    largest = max(float(errors.absolute_m.max()) for errors in variants.values())
    for ax, (name, errors) in zip(axes, variants.items(), strict=False):
        line = _coloured_path(errors, horizontal, largest)
        ax.add_collection(line)
        ax.plot(*errors.world_from_true.translation[:, horizontal].T, **_TRUTH)
        rmse = float(np.sqrt(np.mean(errors.absolute_m**2)))
        ax.set(aspect="equal", title=f"{title}, {name}: ATE {rmse:.3g} m")
        ax.set(xlabel=f"{'xyz'[horizontal[0]]} (m)", ylabel=f"{'xyz'[horizontal[1]]} (m)")
        ax.autoscale_view()
        ax.legend(loc="best", frameon=False)
    figure.colorbar(line, ax=list(axes), label="error (m)")
    _save(figure, path)


def _ground_axes(centres: NDArray[np.floating]) -> list[int]:
    """The two axes of the world seen from above: all but the one along which the path reaches least."""
    up = int(np.argmin(np.ptp(centres, axis=0)))
    return [axis for axis in range(3) if axis != up]


def _coloured_path(errors: TrajectoryErrors, horizontal: Sequence[int], largest: float) -> LineCollection:
    points = errors.world_from_estimated.translation[:, list(horizontal)]
    segments = np.stack([points[:-1], points[1:]], axis=1)
    line = LineCollection(list(segments), cmap="viridis", linewidth=2.0)
    line.set_array(errors.absolute_m[1:])
    line.set_clim(0, largest or 1.0)
    return line


def error_over_distance_figure(variants: Mapping[str, TrajectoryErrors], path: Path, title: str) -> None:
    """Distance from the ground truth along the way."""
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    ax = figure.subplots()
    for name, errors in variants.items():
        ax.plot(
            distance_along(errors.world_from_true.translation), errors.absolute_m, label=name, linewidth=1.2
        )
    ax.set(xlabel="distance travelled (m)", ylabel="error (m)", title=title)
    _finish(ax)
    _save(figure, path)


def runtime_figure(
    seconds: NDArray[np.floating], memory_bytes: NDArray[np.floating], path: Path, title: str
) -> None:
    """Time per frame, total time and resident memory over the frames of a stream; (n,) each."""
    figure = Figure(figsize=(9.0, 3.0), layout="constrained")
    time_ax, total_ax, memory_ax = figure.subplots(1, 3)
    frames = np.arange(1, len(seconds) + 1)
    time_ax.plot(frames, 1e3 * seconds, linewidth=0.5, color="0.7")
    window = max(1, len(seconds) // 50)
    smooth = np.convolve(seconds, np.ones(window) / window, mode="valid")
    time_ax.plot(frames[window - 1 :], 1e3 * smooth, label=f"mean of {window}")
    time_ax.set(xlabel="frame", ylabel="time per frame (ms)", ylim=(0, 3e3 * float(np.median(seconds))))
    total_ax.plot(frames, np.cumsum(seconds))
    total_ax.set(xlabel="frame", ylabel="time (s)", title=title)
    memory_ax.plot(frames, memory_bytes / 2**20)
    memory_ax.set(xlabel="frame", ylabel="memory (MiB)")
    memory_ax.set_ylim(bottom=0)
    for ax in (time_ax, total_ax, memory_ax):
        _finish(ax)
    _save(figure, path)


def scaling_figure(methods: Mapping[str, Runtime], path: Path) -> None:
    """Total time and peak memory over the length of the stream, all methods on one axis."""
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    time_ax, memory_ax = figure.subplots(1, 2)
    for name, runtime in methods.items():
        frames = np.arange(1, len(runtime.seconds) + 1)
        median_s = float(np.median(runtime.seconds))  # without what the first frames wait for
        rate = 1 / median_s if median_s else np.inf
        time_ax.plot(frames, np.cumsum(runtime.seconds), label=f"{name} ({rate:.3g} frames/s)")
        memory_ax.plot(frames, runtime.peak_rss_bytes / 2**20, label=name)
    time_ax.set(xlabel="frames", ylabel="time (s)", title="runtime")
    memory_ax.set(xlabel="frames", ylabel="peak memory (MiB)", title="memory")
    for ax in (time_ax, memory_ax):
        ax.set_ylim(bottom=0)
        _finish(ax)
    _save(figure, path)


def attention_figure(shares: Mapping[str, NDArray[np.floating]], path: Path) -> None:
    """How the queries at each frame (row) spread their attention over frames: (S, S) of each network."""
    figure = Figure(figsize=(4.6 * len(shares) + 0.6, 4.2), layout="constrained")
    axes = figure.subplots(1, len(shares), squeeze=False)[0]
    # On one scale; the few largest entries, of the first frames, would otherwise hide all others.
    largest = max(float(np.quantile(share[share > 0], 0.99)) for share in shares.values())
    for ax, (name, share) in zip(axes, shares.items(), strict=True):
        image = ax.imshow(np.where(share > 0, share, np.nan), cmap="viridis", vmin=0, vmax=largest)
        ax.set(xlabel="attended frame", ylabel="current frame", title=name)
    figure.colorbar(image, ax=list(axes), label="share of attention", extend="max")
    _save(figure, path)


def window_size_figure(
    rows: Mapping[str, Sequence[tuple[int, Mapping[str, float | None]]]], path: Path
) -> None:
    """ATE, RRE, RTE and speed over the window size, a line a method: pairs of size and average metrics."""
    shown = {"ate_rmse_m": "ATE (m)", "rre_rmse_deg": "RRE (°)", "rte_rmse_m": "RTE (m)"}
    labels = shown | {"steady_frames_per_second": "frames / s"}
    figure = Figure(figsize=(3.0 * len(labels), 3.0), layout="constrained")
    for ax, (metric, label) in zip(figure.subplots(1, len(labels)), labels.items(), strict=True):
        for name, points in rows.items():
            known = [(size, found[metric]) for size, found in points if found.get(metric) is not None]
            ax.plot(*zip(*known, strict=True), marker="o", label=name) if known else None
        ax.set(xlabel="window (frames)", ylabel=label)
        ax.set_ylim(bottom=0)
        ax.set_xticks(sorted({size for points in rows.values() for size, _ in points}))
        _finish(ax)
    _save(figure, path)


def _finish(ax: Axes) -> None:
    ax.grid(visible=True, linewidth=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False)


def _save(figure: Figure, path: Path) -> None:
    """Names are shown as they are: what looks like a formula in one is none."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(printable(text.get_text()).replace("$", r"\$"))
    with replacing(path) as file:
        figure.savefig(file, dpi=DPI, format=path.suffix.removeprefix("."))
