"""Motion graphs as .npz: one array a column of `Edges`, nothing lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.io.files import replacing
from anchor3r.io.inputs import read_arrays
from anchor3r.pose_graph.edges import Edges, MotionGraph, check_edges

_FORMAT_VERSION = 1
_COLUMNS: dict[str, tuple[type, tuple[int, ...]]] = {
    # name: dtype, shape of an entry
    "frame_i": (np.int64, ()),
    "frame_t": (np.int64, ()),
    "rotation": (np.float64, (3, 3)),
    "translation": (np.float64, (3,)),
    "weight": (np.float64, ()),
    "kind": (np.int8, ()),
    "group": (np.int64, ()),
    "log_scale_ratio": (np.float64, ()),
    "log_scale_sigma": (np.float64, ()),
    "information": (np.float64, (6, 6)),
}


def save_graph(path: Path, graph: MotionGraph) -> None:
    """Writes a compressed .npz; information (288 bytes an edge) only if an edge has any."""
    columns: dict[str, Any] = {name: getattr(graph.edges, name) for name in _COLUMNS}
    if not graph.edges.has_information().any():
        del columns["information"]
    with replacing(path) as file:
        np.savez_compressed(file, format_version=_FORMAT_VERSION, **columns)


def load_graph(path: Path) -> MotionGraph:
    """Reads what `save_graph` wrote; refuses anything else by name."""
    columns: dict[str, Any] = read_arrays(path)
    version = columns.pop("format_version", np.array(-1))
    if version.shape != () or not np.array_equal(version, _FORMAT_VERSION):
        raise Anchor3RError(f"{path}: not a motion graph of format {_FORMAT_VERSION}; write it anew")
    count = columns["frame_i"].size if "frame_i" in columns else 0
    columns.setdefault("information", np.broadcast_to(np.nan, (count, 6, 6)))
    if unknown := sorted(set(columns) - set(_COLUMNS)):
        raise Anchor3RError(f"{path}: column {unknown[0]!r} is not one of a motion graph; write it anew")
    for name, (dtype, shape) in _COLUMNS.items():
        if name not in columns or columns[name].shape != (count, *shape):
            found = columns[name].shape if name in columns else "nothing"
            raise Anchor3RError(f"{path}: column '{name}' should be {(count, *shape)}, is {found}")
        if columns[name].dtype.kind not in ("iu" if np.issubdtype(dtype, np.integer) else "iuf"):
            raise Anchor3RError(f"{path}: column '{name}' should be numbers, is {columns[name].dtype}")
        columns[name] = columns[name].astype(dtype, copy=False)
    edges = Edges(**columns)
    if count:
        check_edges(edges, str(path))
    return MotionGraph(edges)
