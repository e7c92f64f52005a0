"""Motion graphs in the text format of g2o, in which public pose graphs come.

    VERTEX_SE3:QUAT id  x y z  qx qy qz qw             a pose, world_from_vertex
    EDGE_SE3:QUAT i j   x y z  qx qy qz qw  (21 ×)     a measured i_from_j, upper triangle of its information

An edge is ours as it stands, frame_i = i and frame_t = j: i_from_j is R̂ = R_i R_jᵀ, t̂ = R_i (c_j - c_i).
Poses are inverted to camera_from_world. The file orders information translation first, we rotation first; it
is taken to belong to the rotation vector and translation of a right perturbation of the measurement, as GTSAM
reads it (and not to the quaternion's vector part, which is half as long).

The format has neither kinds nor groups nor weights. Written: information times weight (identity where
unknown), kinds and groups in comments, which other programs skip, one for each run of edges that share them:

    # anchor3r edges COUNT KIND GROUP

Read: weight 1; kinds and groups from such comments if they count all edges, else inferred (`grouping`). A
matrix that is not positive definite is replaced by the nearest that is not indefinite, with a warning. Blank
lines, other comments, PARAMS_… and FIX lines are skipped: solvers hold the first frame of each component.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, quat_from_rotation, rotation_from_quat
from anchor3r.io.files import replacing
from anchor3r.io.inputs import text_lines
from anchor3r.pose_graph.edges import EdgeKind, Edges, MotionGraph
from anchor3r.pose_graph.grouping import Grouping, infer_groups

_VERTEX, _EDGE = "VERTEX_SE3:QUAT", "EDGE_SE3:QUAT"
_NUM_INDICES, _NUM_VALUES = {_VERTEX: 1, _EDGE: 2}, {_VERTEX: 7, _EDGE: 28}
_SKIPPED = ("#", "PARAMS_", "FIX")
_UPPER = np.triu_indices(6)
_ROTATION_FIRST = np.array([3, 4, 5, 0, 1, 2])
_QUATERNION_TOLERANCE = 1e-2  # of the length: files are printed with few digits
_ROUNDING = 1e-6  # a smallest eigenvalue above minus this part of the largest is nothing to warn of
_RUN = "# anchor3r edges"
_LARGEST = 1e60  # a number that can still be squared, weighed and multiplied by another


@dataclass(frozen=True)
class G2oFile:
    """What a file holds; v vertices, which may be none."""

    graph: MotionGraph
    frames: NDArray[np.int64]
    """(v,) indices of the vertices, ascending"""
    camera_from_world: SE3
    """(v,) their poses"""
    num_replaced: int = 0
    """edges whose information was indefinite"""


@dataclass(frozen=True)
class _Lines:
    """All lines of one kind."""

    number: NDArray[np.int64]
    """(n,) line in the file, counted from 1"""
    index: NDArray[np.int64]
    """(n, 1 or 2)"""
    value: NDArray[np.float64]
    """(n, 7 or 28)"""


def read_g2o(path: Path) -> G2oFile:
    """Reads a 3-D pose graph; names the file and the line of anything that is wrong."""
    lines, runs = _parse(path)
    vertices, edges = lines[_VERTEX], lines[_EDGE]
    if len(edges.number) == 0:
        raise Anchor3RError(f"{path}: no {_EDGE} line in it; expected a 3-D pose graph in g2o form")
    frames, first = np.unique(vertices.index, return_index=True)
    repeated = ~np.isin(np.arange(len(vertices.number)), first)
    _refuse(path, vertices, repeated, "a vertex that was there before")
    if len(frames):
        missing = np.any(~np.isin(edges.index, frames), axis=1)
        _refuse(path, edges, missing, "an edge of a vertex that the file does not have")
    _refuse(path, edges, edges.index[:, 0] == edges.index[:, 1], "an edge of a vertex with itself")
    world_from_vertex = _poses(path, vertices)[first]
    graph, num_replaced = _graph(path, edges, runs)
    return G2oFile(graph, frames, world_from_vertex.inverse(), num_replaced)


def _graph(path: Path, lines: _Lines, runs: list[list[int]]) -> tuple[MotionGraph, int]:
    """The graph and how many of its matrices were replaced."""
    i_from_j = _poses(path, lines)
    m = len(lines.number)
    information = np.zeros((m, 6, 6))
    information[:, _UPPER[0], _UPPER[1]] = lines.value[:, 7:]
    information[:, _UPPER[1], _UPPER[0]] = lines.value[:, 7:]
    information, num_replaced = _semidefinite(information)
    kind, group = _told_groups(runs, m) or infer_groups(lines.index[:, 0], lines.index[:, 1])
    edges = Edges.of(
        lines.index[:, 0], lines.index[:, 1], i_from_j.rotation, i_from_j.translation, kind=kind, group=group,
        information=information[:, _ROTATION_FIRST[:, None], _ROTATION_FIRST],
    )  # fmt: skip
    return MotionGraph(edges), num_replaced


def _semidefinite(matrices: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """The nearest matrices (m, 6, 6) without negative eigenvalues, and how many those of rounding apart were.

    Eigenvalues below zero become zero, which is the nearest in the Frobenius norm: such an edge says nothing
    about that direction.
    """
    eigenvalues, vectors = np.linalg.eigh(matrices)
    negative = eigenvalues[:, 0] < 0
    indefinite = eigenvalues[:, 0] < -_ROUNDING * eigenvalues[:, -1].clip(0)
    scaled = vectors[negative] * eigenvalues[negative].clip(0)[:, None, :]
    matrices[negative] = scaled @ np.swapaxes(vectors[negative], 1, 2)
    return matrices, int(indefinite.sum())


def _told_groups(runs: list[list[int]], num_edges: int) -> Grouping | None:
    """Kinds and groups as the comments tell them; None if there are none or they belong to other edges."""
    if any(kind not in list(EdgeKind) or min(count, group) < 0 for count, kind, group in runs):
        return None
    if num_edges == 0 or sum(count for count, _, _ in runs) != num_edges:
        return None
    count, kind, group = np.array(runs, np.int64).T
    return Grouping(np.repeat(kind, count).astype(np.int8), np.repeat(group, count))


def _parse(path: Path) -> tuple[dict[str, _Lines], list[list[int]]]:
    """The lines by their kind, and count, kind and group of the runs of edges that comments tell of."""
    runs: list[list[int]] = []
    found: dict[str, list[tuple[int, list[str]]]] = {_VERTEX: [], _EDGE: []}
    for number, line in text_lines(path):
        words = line.split()
        if line.startswith(_RUN) and len(words) == 6 and all(_is_count(word) for word in words[3:]):
            runs.append([int(word) for word in words[3:]])
        if not words or words[0].startswith(_SKIPPED):
            continue
        if words[0] not in found:
            raise Anchor3RError(f"{path}, line {number}: {_unknown(words[0][:80])}")
        found[words[0]].append((number, words))
    return {tag: _numbers(path, tag, lines) for tag, lines in found.items()}, runs


def _is_count(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= 12


def _unknown(tag: str) -> str:
    if "SE2" in tag:
        return f"'{tag}' belongs to a 2-D pose graph; only 3-D ones ({_VERTEX}, {_EDGE}) can be solved"
    return f"'{tag}' is not known; a pose graph has {_VERTEX} and {_EDGE} lines"


def _numbers(path: Path, tag: str, lines: list[tuple[int, list[str]]]) -> _Lines:
    """Converts all lines of one kind at once; only if that fails, one by one to find the culprit."""
    num_indices, num_values = _NUM_INDICES[tag], _NUM_VALUES[tag]
    for number, words in lines:
        if len(words) != 1 + num_indices + num_values:
            raise Anchor3RError(
                f"{path}, line {number}: {tag} is followed by {num_indices + num_values} numbers, "
                f"found {len(words) - 1}"
            )
    line_numbers = np.array([number for number, _ in lines], np.int64)
    try:
        index = np.array([[int(word) for word in words[1 : 1 + num_indices]] for _, words in lines], np.int64)
        value = np.array([words[1 + num_indices :] for _, words in lines], np.float64)
    except (ValueError, OverflowError) as error:
        if len(lines) == 1:
            text = " ".join(lines[0][1])[:80]
            raise Anchor3RError(f"{path}, line {lines[0][0]}: cannot read the numbers of '{text}'") from error
        for line in lines:
            _numbers(path, tag, [line])
        raise
    parsed = _Lines(line_numbers, index.reshape(-1, num_indices), value.reshape(-1, num_values))
    _refuse(path, parsed, np.any(parsed.index < 0, axis=1), "a negative index")
    _refuse(path, parsed, np.any(~np.isfinite(parsed.value), axis=1), "a number that is not finite")
    too_large = np.any(np.abs(parsed.value) > _LARGEST, axis=1)
    _refuse(path, parsed, too_large, f"a number beyond {_LARGEST:g}, which cannot be computed with")
    return parsed


def _poses(path: Path, lines: _Lines) -> SE3:
    """Poses from columns x y z qx qy qz qw."""
    length = np.linalg.norm(lines.value[:, 3:7], axis=1)
    _refuse(
        path, lines, np.abs(length - 1) > _QUATERNION_TOLERANCE, "a quaternion that is not of unit length"
    )
    return SE3(rotation_from_quat(lines.value[:, [6, 3, 4, 5]]), lines.value[:, :3])


def _refuse(path: Path, lines: _Lines, bad: NDArray[np.bool_], what: str) -> None:
    if bad.any():
        raise Anchor3RError(f"{path}, line {lines.number[np.argmax(bad)]}: {what}; correct or remove it")


def write_g2o(path: Path, graph: MotionGraph, frames: NDArray[np.int64], camera_from_world: SE3) -> None:
    """Writes all edges and the poses (v,) of the given frames: none, or at least those that edges name."""
    edges = graph.edges
    if len(frames) and not np.isin(graph.frames(), frames).all():
        raise ValueError("edges name frames that are not among the vertices")
    known = edges.has_information()[:, None, None]
    information = np.where(known, edges.information, np.eye(6)) * edges.weight[:, None, None]
    upper = information[:, _ROTATION_FIRST[:, None], _ROTATION_FIRST][:, _UPPER[0], _UPPER[1]]
    edge_values = np.concatenate([_pose_values(SE3(edges.rotation, edges.translation)), upper], 1)
    with replacing(path) as file:
        for frame, row in zip(frames, _pose_values(camera_from_world.inverse()).tolist(), strict=True):
            file.write(f"{_VERTEX} {frame} {_joined(row)}\n".encode())
        for i, t, row in zip(edges.frame_i, edges.frame_t, edge_values.tolist(), strict=True):
            file.write(f"{_EDGE} {i} {t} {_joined(row)}\n".encode())
        for count, kind, group in _runs(edges):
            file.write(f"{_RUN} {count} {kind} {group}\n".encode())


def _runs(edges: Edges) -> list[list[int]]:
    """Count, kind and group of neighbouring edges that share them."""
    both = np.stack([edges.kind.astype(np.int64), edges.group])
    first = np.flatnonzero(np.any(np.diff(both, prepend=-1) != 0, axis=0))
    count = np.diff(np.append(first, len(edges)))
    return np.concatenate([count[None], both[:, first]]).T.tolist()


def _pose_values(poses: SE3) -> NDArray[np.floating]:
    """(n, 7) x y z qx qy qz qw"""
    quat_wxyz = quat_from_rotation(poses.rotation)
    return np.concatenate([poses.translation, quat_wxyz[:, 1:], quat_wxyz[:, :1]], 1)


def _joined(row: list[float]) -> str:
    return " ".join(map(repr, row))
