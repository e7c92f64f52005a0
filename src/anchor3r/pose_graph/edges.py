"""The motion graph: every relative pose that was ever measured, in columns.

Edge (i, t) says R̂ ≈ R_i R_tᵀ and t̂ ≈ R_i (c_t - c_i): frame i seen from anchor t. Edges that came out of
one prediction (a window, a loop event) form a group: they share errors and a scale, and are accepted or
cut together.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

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

    def __len__(self) -> int:
        return len(self.frame_i)

    def select(self, which: NDArray[Any]) -> Edges:
        """The edges of a boolean mask, an index array or a slice."""
        chosen = {f.name: getattr(self, f.name)[which] for f in fields(self) if f.name != "information"}
        if self.information.strides[0] == 0:  # the one NaN of a graph without any, 0 bytes an edge
            information = np.broadcast_to(np.nan, (len(chosen["weight"]), 6, 6))
        else:
            information = self.information[which]
        return Edges(**chosen, information=information)


_COLUMNS: dict[str, tuple[type, tuple[int, ...], float]] = {
    # name: dtype, shape of an entry, what stands where nothing was given
    "frame_i": (np.int64, (), 0),
    "frame_t": (np.int64, (), 0),
    "rotation": (np.float64, (3, 3), np.nan),
    "translation": (np.float64, (3,), np.nan),
    "weight": (np.float64, (), 1),
    "kind": (np.int8, (), EdgeKind.WINDOW),
    "group": (np.int64, (), 0),
    "log_scale_ratio": (np.float64, (), np.nan),
    "log_scale_sigma": (np.float64, (), np.nan),
    "information": (np.float64, (6, 6), np.nan),
}
_FORMAT_VERSION = 1
_ROTATION_TOLERANCE = 1e-3  # of RᵀR - 1: single precision and printed digits pass, garbage does not


class MotionGraph:
    """Append-only store of edges in amortised columns; frames are named by their index in the source.

    The information column (288 bytes an edge) is allocated only once an edge brings one.
    """

    def __init__(self) -> None:
        self._size = 0
        self._next_group = 0
        self._columns: dict[str, NDArray] = {
            name: np.empty((0, *shape), dtype)
            for name, (dtype, shape, _) in _COLUMNS.items()
            if name != "information"
        }

    def __len__(self) -> int:
        """Number of edges."""
        return self._size

    @property
    def edges(self) -> Edges:
        """Read-only views of all columns; valid until the next `add_group`."""
        views = {name: column[: self._size] for name, column in self._columns.items()}
        if "information" not in views:
            views["information"] = np.broadcast_to(np.nan, (self._size, 6, 6))
        for view in views.values():
            view.flags.writeable = False
        return Edges(**views)

    @property
    def has_information(self) -> bool:
        """Whether any edge came with an information matrix."""
        return "information" in self._columns

    @property
    def num_groups(self) -> int:
        """Groups are numbered 0 … num_groups - 1."""
        return self._next_group

    def frames(self) -> NDArray[np.int64]:
        """Sorted indices of all frames that an edge names."""
        e = self.edges
        return np.unique(np.concatenate([e.frame_i, e.frame_t]))

    def add_group(
        self,
        anchor: ArrayLike,
        members: ArrayLike,
        rotations: ArrayLike,
        translations: ArrayLike,
        *,
        kind: EdgeKind = EdgeKind.WINDOW,
        weight: ArrayLike = 1.0,
        log_scale_ratio: ArrayLike = np.nan,
        log_scale_sigma: ArrayLike = np.nan,
        information: ArrayLike | None = None,
    ) -> int:
        """Adds the edges (members[k], anchor) of one window or loop event and returns its group number.

        anchor: () or (n,), members: (n,), rotations: (n, 3, 3), translations: (n, 3), the rest () or (n,),
        information (n, 6, 6).
        """
        members = np.asarray(members, np.int64)
        values: dict[str, ArrayLike] = {
            "frame_i": members, "frame_t": anchor, "rotation": rotations, "translation": translations,
            "weight": weight, "kind": int(kind), "group": self._next_group,
            "log_scale_ratio": log_scale_ratio, "log_scale_sigma": log_scale_sigma,
        }  # fmt: skip
        if information is not None:
            values["information"] = information
        self._append(values, len(members))
        self._next_group += 1
        return self._next_group - 1

    def _append(self, values: dict[str, ArrayLike], count: int) -> None:
        if "information" in values and "information" not in self._columns:
            capacity = len(self._columns["frame_i"])
            self._columns["information"] = np.full((capacity, 6, 6), np.nan)
        end = self._size + count
        for name, column in self._columns.items():
            dtype, shape, missing = _COLUMNS[name]
            if end > len(column):
                grown: NDArray = np.empty((max(64, end, 2 * len(column)), *shape), dtype)
                grown[: self._size] = column[: self._size]
                self._columns[name] = column = grown
            column[self._size : end] = np.asarray(values.get(name, missing), dtype)
        self._size = end

    @staticmethod
    def from_edges(edges: Edges) -> MotionGraph:
        """A graph of the given columns, groups kept."""
        graph = MotionGraph()
        values = {f.name: getattr(edges, f.name) for f in fields(edges)}
        if np.isnan(edges.information).all():
            del values["information"]
        graph._append(values, len(edges))
        graph._next_group = int(edges.group.max()) + 1 if len(edges) else 0
        return graph

    def save(self, path: Path) -> None:
        """Writes a compressed .npz."""
        columns: dict[str, Any] = {name: column[: self._size] for name, column in self._columns.items()}
        np.savez_compressed(path, format_version=_FORMAT_VERSION, **columns)

    @staticmethod
    def load(path: Path) -> MotionGraph:
        """Reads what `save` wrote; refuses anything else by name."""
        try:
            with np.load(path, allow_pickle=False) as archive:
                columns = {name: archive[name] for name in archive.files}
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            raise Anchor3RError(f"{path}: not a readable motion graph ({error}); write it anew") from error
        if int(columns.pop("format_version", -1)) != _FORMAT_VERSION:
            raise Anchor3RError(f"{path}: not a motion graph of format {_FORMAT_VERSION}; write it anew")
        count = len(columns.get("frame_i", ()))
        for name, (dtype, shape, _) in _COLUMNS.items():
            if name == "information" and name not in columns:
                continue
            if name not in columns or columns[name].shape != (count, *shape):
                found = columns[name].shape if name in columns else "nothing"
                raise Anchor3RError(f"{path}: column '{name}' should be {(count, *shape)}, is {found}")
            columns[name] = columns[name].astype(dtype)
        columns.setdefault("information", np.broadcast_to(np.nan, (count, 6, 6)))
        edges = Edges(**columns)
        if count:
            check_edges(edges, str(path))
        return MotionGraph.from_edges(edges)


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
        "a frame joined to itself": edges.frame_i == edges.frame_t,
        "a rotation that is not finite": ~finite,
        "a translation that is not finite": ~np.isfinite(edges.translation).all(1),
        "a weight that is not finite and >= 0": ~(np.isfinite(edges.weight) & (edges.weight >= 0)),
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
