"""Small motion graphs with a known answer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, so3_exp
from anchor3r.pose_graph.edges import EdgeKind, Edges

Index = NDArray[np.int64]


def random_poses(count: int, rng: np.random.Generator) -> SE3:
    """A wandering camera; the first pose is the identity."""
    turn = np.cumsum(0.2 * rng.normal(size=(count, 3)), 0)
    move = np.cumsum(rng.normal(size=(count, 3)), 0)
    poses = SE3(so3_exp(turn), move)
    return poses @ poses[:1].inverse()


def window_pairs(count: int, window: int) -> tuple[Index, Index]:
    """(member, anchor) of every window."""
    pairs = [(i, t) for t in range(count) for i in range(max(0, t - window + 1), t)]
    return np.array([p[0] for p in pairs], np.int64), np.array([p[1] for p in pairs], np.int64)


def random_pairs(count: int, extra: int, rng: np.random.Generator) -> tuple[Index, Index]:
    """A random tree, so that all frames hang together, and `extra` further pairs, which may repeat."""
    later = np.arange(1, count)
    tree = np.stack([rng.integers(0, later), later]) if count > 1 else np.empty((2, 0), np.int64)
    more = np.stack([rng.integers(0, count, extra), rng.integers(0, count, extra)])
    pairs = np.concatenate([tree, more[:, more[0] != more[1]]], 1)
    flip = rng.random(pairs.shape[1]) < 0.5
    return np.where(flip, pairs[1], pairs[0]), np.where(flip, pairs[0], pairs[1])


def measure(
    poses: SE3,
    i: Index,
    t: Index,
    rng: np.random.Generator,
    *,
    rotation_noise_rad: float = 0.0,
    translation_noise: float = 0.0,
    outliers: float = 0.0,
    weight: NDArray[np.float64] | None = None,
) -> Edges:
    """Edges (i, t) of true poses; an outlier is anything."""
    m = len(i)
    true = poses[i] @ poses[t].inverse()
    noise = SE3(
        so3_exp(rotation_noise_rad * rng.normal(size=(m, 3))), translation_noise * rng.normal(size=(m, 3))
    )
    wrong = rng.random(m) < outliers
    noise.rotation[wrong] = so3_exp(2 * rng.normal(size=(wrong.sum(), 3)))
    noise.translation[wrong] = 10 * rng.normal(size=(wrong.sum(), 3))
    rotation, translation = true.rotation @ noise.rotation, true.translation + noise.translation
    return Edges(
        frame_i=i, frame_t=t, rotation=rotation, translation=translation,
        weight=np.ones(m) if weight is None else weight, kind=np.full(m, EdgeKind.WINDOW, np.int8),
        group=np.asarray(t, np.int64), log_scale_ratio=np.full(m, np.nan), log_scale_sigma=np.full(m, np.nan),
        information=np.full((m, 6, 6), np.nan),
    )  # fmt: skip
