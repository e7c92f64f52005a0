"""Kinds and groups of edges where nobody has told them, as in other programs' files.

Edges that join frames close in time are odometry, whatever their number. All others are loops; those of one
anchor whose members follow each other tell of one place and form an event.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.pose_graph.edges import EdgeKind

_MAX_SPAN = 100  # frames that odometry is looked for across
_MIN_SHARE = 0.05  # of the pairs of frames so far apart that edges join, if odometry reaches so far


class Grouping(NamedTuple):
    """Of m edges."""

    kind: NDArray[np.int8]
    """(m,) EdgeKind"""
    group: NDArray[np.int64]
    """(m,) numbered from 0: one for each anchor's window, then one for each loop event"""


def infer_groups(frame_i: NDArray[np.int64], frame_t: NDArray[np.int64]) -> Grouping:
    """What edges of members (m,) and anchors (m,) are, by which frames they join."""
    frames, rows = np.unique(np.concatenate([frame_i, frame_t]), return_inverse=True)
    i, t = rows[: len(frame_i)], rows[len(frame_i) :]
    reach = odometry_reach(len(frames), np.abs(i - t))
    is_loop = np.abs(i - t) > reach
    order = np.lexsort((i, t, is_loop))
    begins = np.ones(len(order), bool)
    begins[1:] = (np.diff(t[order]) != 0) | (np.diff(is_loop[order].astype(np.int8)) != 0)
    begins[1:] |= is_loop[order][1:] & (np.diff(i[order]) > reach)
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(begins) - 1
    return Grouping(np.where(is_loop, EdgeKind.LOOP, EdgeKind.WINDOW).astype(np.int8), group)


def odometry_reach(num_frames: int, span: NDArray[np.int64]) -> int:
    """Rows that odometry reaches back: as far as edges of every span up to there are common; at least 1."""
    possible = num_frames - np.arange(1, min(_MAX_SPAN, num_frames - 1) + 1)
    count = np.bincount(np.minimum(span, _MAX_SPAN + 1), minlength=_MAX_SPAN + 2)[1 : len(possible) + 1]
    is_rare = count < _MIN_SHARE * possible
    return max(1, int(np.argmax(is_rare)) if is_rare.any() else len(possible))
