"""The motion graph: every relative pose that was measured, in columns.

Edge (i, t) says R̂ ≈ R_i R_tᵀ and t̂ ≈ R_i (c_t - c_i): frame i seen from anchor t. Edges that came out of
one prediction (a window, a loop event) form a group: they share errors and a scale, and are accepted or
cut together.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anchor3r.errors import Anchor3RError


class EdgeKind(IntEnum):
    """Where an edge came from."""

    WINDOW = 0
    LOOP = 1
    PRIOR = 2


@dataclass(frozen=True, kw_only=True)
class Edges:
    """Columns of m edges."""

    frame_i: NDArray[np.int64]
    """(m,) member"""
    frame_t: NDArray[np.int64]
    """(m,) anchor"""
    rotation: NDArray[np.float64]
    """(m, 3, 3) i_from_t"""
    translation: NDArray[np.float64]
    """(m, 3) i_from_t, in the scale of its group"""
    weight: NDArray[np.float64]
    """(m,) scales the squared error; 1 is ordinary"""
    kind: NDArray[np.int8]
    """(m,) EdgeKind"""
    group: NDArray[np.int64]
    """(m,) the window or loop event that the edge came from"""
    log_scale_ratio: NDArray[np.float64]
    """(m,) log(scale of t's window / scale of i's window) as measured; NaN where it was not"""
    log_scale_sigma: NDArray[np.float64]
    """(m,) spread of that ratio; NaN where it was not measured"""
    information: NDArray[np.float64]
    """(m, 6, 6) inverse covariance (rotation, translation) of a right perturbation; NaN where unknown"""

    @staticmethod
    def of(
        frame_i: ArrayLike,
        frame_t: ArrayLike,
        rotation: ArrayLike,
        translation: ArrayLike,
        *,
        kind: ArrayLike = EdgeKind.WINDOW,
        group: ArrayLike = 0,
        weight: ArrayLike = 1.0,
        log_scale_ratio: ArrayLike = np.nan,
        log_scale_sigma: ArrayLike = np.nan,
        information: ArrayLike = np.nan,
    ) -> Edges:
        """Edges of members frame_i (m,); of the rest, what is the same for all edges may be given once."""
        members = np.asarray(frame_i, np.int64)

        def column(value: ArrayLike, dtype: type, *shape: int) -> NDArray[Any]:
            return np.array(np.broadcast_to(np.asarray(value, dtype), (len(members), *shape)))

        return Edges(
            frame_i=members,
            frame_t=column(frame_t, np.int64),
            rotation=column(rotation, np.float64, 3, 3),
            translation=column(translation, np.float64, 3),
            weight=column(weight, np.float64),
            kind=column(kind, np.int8),
            group=column(group, np.int64),
            log_scale_ratio=column(log_scale_ratio, np.float64),
            log_scale_sigma=column(log_scale_sigma, np.float64),
            information=np.broadcast_to(np.asarray(information, np.float64), (len(members), 6, 6)),
        )

    def __len__(self) -> int:
        return len(self.frame_i)

    def has_information(self) -> NDArray[np.bool_]:
        """(m,) whether an edge has an information matrix."""
        if self.information.strides[0] == 0 and len(self):  # one for all, mostly the NaN of a graph without
            return np.full(len(self), bool(np.isfinite(self.information[0]).all()))
        return np.asarray(np.isfinite(self.information).all((1, 2)))

    def select(self, which: NDArray[Any]) -> Edges:
        """The edges of a boolean mask, an index array or a slice."""
        chosen = {f.name: getattr(self, f.name)[which] for f in fields(self) if f.name != "information"}
        if self.information.strides[0] == 0 and len(self):  # one matrix for all stays one
            information = np.broadcast_to(self.information[0], (len(chosen["weight"]), 6, 6))
        else:
            information = self.information[which]
        return Edges(**chosen, information=information)


@dataclass(frozen=True)
class MotionGraph:
    """All edges of a map or a file; frames are named by their index in the source."""

    edges: Edges

    def __len__(self) -> int:
        """Number of edges."""
        return len(self.edges)

    @property
    def num_groups(self) -> int:
        """Groups are numbered 0 … num_groups - 1, of which some may have no edge."""
        return int(self.edges.group.max()) + 1 if len(self.edges) else 0

    def frames(self) -> NDArray[np.int64]:
        """Sorted indices of all frames that an edge names."""
        return np.unique(np.concatenate([self.edges.frame_i, self.edges.frame_t]))


_LARGEST = 1e60  # a number that can still be squared, weighed and multiplied by another
_LARGEST_FRAME = 2**40  # indices that may still be added, multiplied by a few and counted
_ROTATION_TOLERANCE = 1e-3  # of RᵀR - 1: single precision and printed digits pass, garbage does not


def check_edges(edges: Edges, source: str) -> None:
    """Refuses edges that no solver can work with; says which one, and of which source (a file, a program)."""
    if len(edges) == 0:
        raise Anchor3RError(
            f"{source}: the graph has no edges, so there is nothing to solve; add measurements"
        )
    finite = np.all(np.isfinite(edges.rotation), axis=(1, 2))
    rotation = np.where(finite[:, None, None], edges.rotation, np.eye(3))
    gram = np.einsum("eki,ekj->eij", rotation, rotation) - np.eye(3)
    reasons = {
        "a negative frame index": (edges.frame_i < 0) | (edges.frame_t < 0),
        "a frame index too large": np.maximum(edges.frame_i, edges.frame_t) > _LARGEST_FRAME,
        "a group that is not a number from 0 on": (edges.group < 0) | (edges.group > _LARGEST_FRAME),
        "a frame joined to itself": edges.frame_i == edges.frame_t,
        "a rotation that is not finite": ~finite,
        "a translation that is not finite": ~np.isfinite(edges.translation).all(1),
        f"a translation beyond {_LARGEST:g}": ~(np.abs(np.nan_to_num(edges.translation)) <= _LARGEST).all(1),
        f"an information matrix with entries beyond {_LARGEST:g}": edges.has_information()
        & ~(np.abs(edges.information) <= _LARGEST).all((1, 2)),
        f"a weight that is not in 0 … {_LARGEST:g}": ~((edges.weight >= 0) & (edges.weight <= _LARGEST)),
        f"a scale ratio or its spread beyond {_LARGEST:g}": (np.abs(edges.log_scale_ratio) > _LARGEST)
        | (np.abs(edges.log_scale_sigma) > _LARGEST),
        "a matrix that is not a rotation": (np.abs(gram).max((1, 2)) > _ROTATION_TOLERANCE)
        | (np.linalg.det(rotation) < 0),
        "an unknown kind": ~np.isin(edges.kind, list(EdgeKind)),
    }
    for reason, bad in reasons.items():
        if bad.any():
            e = int(np.argmax(bad))
            raise Anchor3RError(
                f"{source}: edge {e} (frames {edges.frame_i[e]} and {edges.frame_t[e]}) has {reason} "
                f"({int(bad.sum())} of {len(edges)} edges in all); correct or remove them"
            )
