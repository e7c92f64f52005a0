"""Motion graphs as classical odometry makes them: windows that copy one another's errors, and drift.

A drive through a grid of streets (`generated_graphs`) is measured by one chain whose rotation and scale drift
with errors that keep their sign for a long time, as those of a calibration do. All windows are read from
that chain, so they agree with each other far better than with the truth; their information matrices promise
what a window is good for, by a factor too much or too little. Loop events are right up to their noise, or
belong to one of several false revisits, whose events agree with each other on a wrong place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, so3_exp
from anchor3r.pose_graph.edges import EdgeKind, Edges, MotionGraph
from generated_graphs import SyntheticConfig, _drive, _retrieve, _window_pairs

_WINDOW_ROTATION_DEG, _WINDOW_SCALE = 0.02, 0.002  # standard deviations over a window
_LOOP_ROTATION_DEG, _LOOP_TRANSLATION = 0.03, 0.01
_MEMBERS = np.arange(-4, 5)


@dataclass(frozen=True, kw_only=True)
class DriftConfig:
    """What drifts, and what is false."""

    num_frames: int
    seed: int = 0
    memory_frames: float = 300.0
    """Errors of windows so far apart have lost most of their correlation."""
    promised: float = 1.0
    """Standard deviations that windows promise over the true ones."""
    scale_drifts: bool = True
    """Whether the scale drifts, or only rotations."""
    false_share: float = 0.0
    """Part of all events that are false, in groups that agree with each other."""
    false_revisit: int = 6
    """Events of one false revisit."""


@dataclass(frozen=True)
class DriftingGraph:
    """A measured drive and the truth about it."""

    graph: MotionGraph
    camera_from_world: SE3
    """(n,) true poses"""
    is_false_group: NDArray[np.bool_]
    """(num_groups,)"""


def drifting_graph(config: DriftConfig) -> DriftingGraph:
    """The same config gives the same graph."""
    rng = np.random.default_rng([config.seed, 3])
    route = SyntheticConfig(num_frames=config.num_frames, seed=config.seed, loops_per_keyframe=1)
    truth = _drive(route, rng)
    chain, log_scale = _drifted(truth, route.window, config, rng)
    i, t = _window_pairs(route)
    measured = chain[i] @ chain[t].inverse()
    translation = measured.translation * np.exp(-log_scale[t])[:, None]
    match, anchor = _retrieve(truth, route)
    match, anchor, seen_from, is_false = _with_false_revisits(match, anchor, truth, config, rng)
    loop_i = np.clip(match[:, None] + _MEMBERS, 0, config.num_frames - 1)
    event = np.repeat(np.arange(len(match)), len(_MEMBERS))
    loops = truth[loop_i.ravel()] @ seen_from[event].inverse()
    loop_rotation = loops.rotation @ so3_exp(
        np.radians(_LOOP_ROTATION_DEG) * rng.standard_normal((len(event), 3))
    )
    shared = 1 + _LOOP_TRANSLATION * rng.standard_normal(len(match))  # an event knows its scale so well
    own = (
        _LOOP_TRANSLATION
        * rng.standard_normal((len(event), 3))
        * np.linalg.norm(loops.translation, axis=1)[:, None]
    )
    # In the scale of the anchor's window, as depths that both have seen tell it.
    grown = np.exp(-log_scale[anchor] + _local_log_scale(chain, truth, anchor)) * shared
    loop_translation = (loops.translation + own) * grown[event][:, None]
    num_windows = config.num_frames - 1
    information = np.concatenate([
        _information(np.linalg.norm(translation, axis=1), config.promised),
        np.full((len(event), 6, 6), np.nan),
    ])  # fmt: skip
    is_window = np.arange(len(i) + len(event)) < len(i)
    ratio = np.full(len(is_window), np.nan)
    sigma = np.where(is_window, np.nan, _LOOP_TRANSLATION)
    if config.scale_drifts:
        newest = np.flatnonzero(t - i == 1)
        ratio[newest] = log_scale[t[newest]] - log_scale[i[newest]]
        sigma[newest] = config.promised * _WINDOW_SCALE / np.sqrt(route.window)
    edges = Edges(
        frame_i=np.concatenate([i, loop_i.ravel()]), frame_t=np.concatenate([t, anchor[event]]),
        rotation=np.concatenate([measured.rotation, loop_rotation]),
        translation=np.concatenate([translation, loop_translation]),
        weight=np.ones(len(is_window)), group=np.concatenate([t - 1, num_windows + event]),
        kind=np.where(is_window, EdgeKind.WINDOW, EdgeKind.LOOP).astype(np.int8),
        log_scale_ratio=ratio, log_scale_sigma=sigma, information=information,
    )  # fmt: skip
    is_false_group = np.concatenate([np.zeros(num_windows, bool), is_false])
    return DriftingGraph(MotionGraph(edges), truth, is_false_group)


def _drifted(
    truth: SE3, window: int, config: DriftConfig, rng: np.random.Generator
) -> tuple[SE3, NDArray[np.float64]]:
    """The chain as odometry has it, in one scale; and the log of each window's own scale, told exactly."""
    n = len(truth)
    rate = _remembering(n, config.memory_frames, rng)
    turn = np.radians(_WINDOW_ROTATION_DEG) / window * rate[:, :3]
    growth = np.cumsum(_WINDOW_SCALE / window * rate[:, 3]) if config.scale_drifts else np.zeros(n)
    steps = truth[1:] @ truth[:-1].inverse()
    rotation, center = np.empty((n, 3, 3)), np.empty((n, 3))
    rotation[0], center[0] = truth.rotation[0], truth.center()[0]
    for k in range(1, n):
        rotation[k] = so3_exp(turn[k]) @ steps.rotation[k - 1] @ rotation[k - 1]
        # c_k = c_{k-1} - R_kᵀ t
        center[k] = center[k - 1] - np.exp(growth[k]) * rotation[k].T @ steps.translation[k - 1]
    log_scale = np.zeros(n)
    if config.scale_drifts:
        log_scale[1:] = np.cumsum(0.003 * rng.standard_normal(n - 1))
    return SE3.from_center(rotation, center), log_scale


def _remembering(n: int, memory: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """(n, 4) of variance 1, each entry like the ones before."""
    keep = np.exp(-1 / memory)
    values = rng.standard_normal((n, 4))
    for k in range(1, n):
        values[k] = keep * values[k - 1] + np.sqrt(1 - keep**2) * values[k]
    return values


def _local_log_scale(chain: SE3, truth: SE3, frames: NDArray[np.int64]) -> NDArray[np.float64]:
    """Log of lengths around frames in the chain over true ones."""
    steps = [np.linalg.norm(np.diff(poses.center(), axis=0), axis=1) for poses in (chain, truth)]
    return np.log(steps[0] / steps[1])[np.clip(frames, 1, len(truth) - 1) - 1]


def _information(length: NDArray[np.float64], promised: float) -> NDArray[np.float64]:
    variance = np.empty((len(length), 6))
    variance[:, :3] = (promised * np.radians(_WINDOW_ROTATION_DEG)) ** 2
    variance[:, 3:] = (promised * _WINDOW_SCALE * length[:, None]) ** 2
    return np.eye(6) / variance[:, None, :]


def _with_false_revisits(
    match: NDArray[np.int64],
    anchor: NDArray[np.int64],
    truth: SE3,
    config: DriftConfig,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64], SE3, NDArray[np.bool_]]:
    """Adds runs of events that take one street for another; returns also where each event sees its anchor."""
    num_false = round(len(match) * config.false_share / (1 - config.false_share))
    pairs = [(match, anchor)]
    seen = [truth[anchor]]
    while num_false > sum(len(pair[0]) for pair in pairs) - len(match):
        first, place = rng.integers(200, config.num_frames - 40), rng.integers(20, config.num_frames - 60)
        if abs(first - place) < 150:
            continue
        wrong = place + 5 * np.arange(config.false_revisit), first + 5 * np.arange(config.false_revisit)
        inside = (wrong[0] < config.num_frames) & (wrong[1] < config.num_frames)
        nearby = SE3(so3_exp(np.radians(3.0) * rng.standard_normal(3)), rng.uniform(-2, 2, 3))
        pairs.append((wrong[0][inside], wrong[1][inside]))
        # What is seen at the anchor looks like the place, from a little aside.
        along = truth[wrong[1][inside]] @ truth[wrong[1][inside]][:1].inverse()
        seen.append(along @ nearby @ truth[wrong[0][inside][:1]])
    columns = [np.concatenate(column) for column in zip(*pairs, strict=True)]
    is_false = np.arange(len(columns[0])) >= len(match)
    return (
        columns[0], columns[1],
        SE3(np.concatenate([s.rotation for s in seen]), np.concatenate([s.translation for s in seen])),
        is_false,
    )  # fmt: skip
