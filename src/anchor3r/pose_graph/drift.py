"""How far odometry may have drifted between two frames, as the graph's own edges imply.

The longest edge of a window says how well the window knows its rotation and its scale. Neighbouring windows
are no independent witnesses: they share frames, points and the calibration of one camera, so that their
errors have the same sign for a long time. They are taken to be fully correlated along the way: what a window
may be wrong by adds up in proportion to the frames, not to the root of their number. That is the covariance
inflation of this module; how much of it is real, closed loops tell (`verification`).

The way between two frames leads along odometry and through loops that are closed already, the shortest one
of them. Perturbations are (rotation, position, log scale), world axes. n frames, c coarse nodes, k events.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, so3_log
from anchor3r.kernels import kernel
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.topology import Topology, components_of
from anchor3r.robust import MEDIAN_NORM_3

Float = NDArray[np.floating[Any]]
Int = NDArray[np.int64]

_LEAST_NOISE = np.array([np.radians(0.01), 1e-3])  # of a window whose edges fit exactly and promise nothing


class WindowNoise(NamedTuple):
    """What a window's longest edge may be wrong by, in the median."""

    rotation_rad: float
    """standard deviation about each axis"""
    relative: float
    """standard deviation of the translation along each axis, over its length"""
    num_frames: float
    """frames that the edge spans"""

    @property
    def rotation_rate(self) -> float:
        """Radians a frame, the errors of all windows having the same sign."""
        return self.rotation_rad / self.num_frames

    @property
    def scale_rate(self) -> float:
        """Log scale a frame, likewise."""
        return self.relative / self.num_frames


def window_noise(edges: Edges, topology: Topology, odometry: SE3, *, is_free: bool = False) -> WindowNoise:
    """As odometry misses the longest edges, or as their information promises, whichever is more.

    is_free: whether the scale drifts. If not, what edges promise along their own direction does not count:
    a window that is unsure of its scale has that of all the others.
    """
    windows = np.flatnonzero((edges.weight > 0) & (edges.kind == EdgeKind.WINDOW))
    if not len(windows):
        return WindowNoise(float(_LEAST_NOISE[0]), float(_LEAST_NOISE[1]), 1.0)
    span = np.abs(topology.t - topology.i)[windows]
    order = np.lexsort((-span, edges.group[windows]))
    _, first = np.unique(edges.group[windows][order], return_index=True)
    longest = windows[order[first]]
    i, t = topology.i[longest], topology.t[longest]
    length = np.linalg.norm(edges.translation[longest], axis=-1)
    length = np.maximum(length, max(0.1 * float(np.median(length)), 1e-300))
    measured = SE3(edges.rotation[longest], edges.translation[longest])
    missed = measured.inverse() @ (odometry[i] @ odometry[t].inverse())
    found = [
        float(np.median(np.linalg.norm(so3_log(missed.rotation), axis=-1))) / MEDIAN_NORM_3,
        float(np.median(np.linalg.norm(missed.translation, axis=-1) / length)) / MEDIAN_NORM_3,
    ]
    known = np.flatnonzero(edges.select(longest).has_information())
    if len(known):
        covariance = np.linalg.pinv(edges.information[longest[known]], hermitian=True)
        variance = np.einsum("mkk->mk", covariance)
        turned, moved = variance[:, :3].mean(1), variance[:, 3:].sum(1)
        if is_free:
            moved = moved / 3
        else:
            along = measured[known].inverse().translation / length[known, None]
            moved = (moved - np.einsum("mi,mij,mj->m", along, covariance[:, 3:, 3:], along)) / 2
        weight = edges.weight[longest[known]]
        promised = (
            float(np.median(np.sqrt(turned / weight))),
            float(np.median(np.sqrt(np.maximum(moved, 0) / weight) / length[known])),
        )
        found = [max(pair) for pair in zip(found, promised, strict=True)]
    noise = np.maximum(found, _LEAST_NOISE)
    return WindowNoise(float(noise[0]), float(noise[1]), float(np.median(np.abs(t - i))))


def independent_rotation_rate(edges: Edges, topology: Topology, noise: WindowNoise) -> float:
    """Random walk of rotations, radians for the root of a frame, if the errors of all edges were independent.

    An edge over k frames of variance σ² adds k² / σ² to the information on a turn rate.
    """
    windows = np.flatnonzero((edges.weight > 0) & (edges.kind == EdgeKind.WINDOW))
    span = np.abs(topology.t - topology.i)[windows].astype(np.float64)
    information = edges.weight[windows] / noise.rotation_rad**2
    known = np.isfinite(edges.information[windows, 0, 0])
    if known.any():
        diagonal = np.einsum("mkk->mk", edges.information[windows[known]])[:, :3].mean(1)
        information[known] = edges.weight[windows[known]] * diagonal
    total = float(span**2 @ information) if len(windows) else 0.0
    return float(np.sqrt(len(topology.frames) / max(total, 1e-300)))


class Ways(NamedTuple):
    """The shortest ways between the ends of k events."""

    num_frames: Float
    """(k,) of odometry; inf where there is no way"""
    covariance_rate: Float
    """(k, 2, 7, 7) covariance at the way's end for a variance of 1 a frame: of rotation, and of log scale"""


class WayFinder:
    """Finds ways along the nodes of the coarse graph and through shortcuts: loops closed already.

    A shortcut costs nothing, so that nodes which shortcuts join are one place, and ways lead from place to
    place along the steps of odometry.
    """

    def __init__(self, row: Int, earlier: Int, later: Int) -> None:
        """row: (c,) first frame of each node; earlier, later: (q,) nodes that odometry joins."""
        self._row = row
        self._from, self._to = np.concatenate([earlier, later]), np.concatenate([later, earlier])
        self.open((np.empty(0, np.int64), np.empty(0, np.int64)))

    def open(self, shortcuts: tuple[Int, Int]) -> None:
        """Takes these pairs of nodes, and no others, for shortcuts from now on."""
        self._place, first_node = components_of(len(self._row), *shortcuts)
        place_from, place_to = self._place[self._from], self._place[self._to]
        steps = np.flatnonzero(place_from != place_to)
        steps = steps[np.argsort(place_from[steps], kind="stable")]
        self._steps = _Steps(
            np.searchsorted(place_from[steps], np.arange(len(first_node) + 1)),
            place_from[steps], place_to[steps], self._from[steps], self._to[steps],
            np.abs(self._row[self._to] - self._row[self._from])[steps].astype(np.float64),
        )  # fmt: skip

    def find(self, start: Int, end: Int, target: Float, center: Float) -> Ways:
        """From nodes `start` to nodes `end` (k,); errors are seen at `target` (k, 3).

        center: (c, 3) of the nodes, in the world of the targets.
        """
        frames, rate = np.empty(len(start)), np.zeros((len(start), 2, 7, 7))
        self._search(start, end, target, center, np.inf, frames, rate)
        return Ways(frames, rate)

    def num_frames(self, start: Int, end: Int, reach: float) -> Float:
        """(k,) frames of the ways from nodes `start` to nodes `end`; inf where they are longer than `reach`.

        Only what lies within reach is looked at.
        """
        frames, nothing = np.empty(len(start)), np.zeros((0, 2, 7, 7))
        self._search(start, end, np.zeros((1, 3)), np.zeros((1, 3)), reach, frames, nothing)
        return frames

    def _search(
        self, start: Int, end: Int, target: Float, center: Float, reach: float, frames: Float, rate: Float
    ) -> None:
        _find_ways(
            self._place[start], self._place[end], np.ascontiguousarray(target), np.ascontiguousarray(center),
            self._steps, reach, frames, rate,
        )  # fmt: skip


class _Steps(NamedTuple):
    """Steps of odometry from one place to another, there and back, by the place that they lead from."""

    first: Int
    """(places + 1,) the first step from each place"""
    place_from: Int
    place_to: Int
    node_from: Int
    node_to: Int
    num_frames: Float


@kernel
def _find_ways(
    start: Int, end: Int, target: Float, center: Float, steps: _Steps, reach: float,
    frames: Float, rate: Float,
) -> None:  # fmt: skip
    """Dijkstra's algorithm from every place in `start` until its end or `reach` is reached."""
    num_places, num_steps = len(steps.first) - 1, len(steps.place_to)
    distance, came_by = np.full(num_places, np.inf), np.full(num_places, -1)
    heap_key, heap_place = np.empty(num_steps + 2), np.empty(num_steps + 2, np.int64)
    touched = np.empty(num_places, np.int64)
    for k in range(len(start)):
        size, num_touched = 1, 1
        heap_key[0], heap_place[0] = 0.0, start[k]
        distance[start[k]], came_by[start[k]], touched[0] = 0.0, -1, start[k]
        while size > 0:
            key, place = heap_key[0], heap_place[0]
            if place == end[k]:
                break
            size = _pop(heap_key, heap_place, size)
            if key > distance[place]:
                continue
            for step in range(steps.first[place], steps.first[place + 1]):
                other, there = steps.place_to[step], key + steps.num_frames[step]
                if there > reach or not there < distance[other]:
                    continue
                if np.isinf(distance[other]):
                    touched[num_touched] = other
                    num_touched += 1
                distance[other], came_by[other] = there, step
                heap_key[size], heap_place[size] = there, other
                size = _sift_up(heap_key, heap_place, size)
        frames[k] = distance[end[k]]
        if np.isfinite(frames[k]) and len(rate) > 0:
            _accumulate(came_by[end[k]], came_by, steps, center, target[k], rate[k])
        distance[touched[:num_touched]] = np.inf


@kernel
def _accumulate(last: int, came_by: Int, steps: _Steps, center: Float, target: Float, rate: Float) -> None:
    """Adds what every step of the way does to the target: a turn about, or a stretch from, its middle."""
    step = last
    moves = np.zeros((7, 4))  # what turns about three axes, and a stretch, do to the target
    moves[0, 0] = moves[1, 1] = moves[2, 2] = moves[6, 3] = 1.0
    while step >= 0:
        node, back, frames = steps.node_to[step], steps.node_from[step], steps.num_frames[step]
        length_sq = 0.0
        for axis in range(3):
            moves[3 + axis, 3] = target[axis] - 0.5 * (center[node, axis] + center[back, axis])
            length_sq += (center[node, axis] - center[back, axis]) ** 2
        moves[3, 1], moves[3, 2] = moves[5, 3], -moves[4, 3]
        moves[4, 0], moves[4, 2] = -moves[5, 3], moves[3, 3]
        moves[5, 0], moves[5, 1] = moves[4, 3], -moves[3, 3]
        for a in range(7):
            for b in range(7):
                turned = moves[a, 0] * moves[b, 0] + moves[a, 1] * moves[b, 1] + moves[a, 2] * moves[b, 2]
                rate[0, a, b] += frames * turned
                rate[1, a, b] += frames * moves[a, 3] * moves[b, 3]
        # Within the step errors add up too: a length of the step itself is known no better.
        for axis in range(3):
            rate[1, 3 + axis, 3 + axis] += frames * length_sq / 12
        step = came_by[steps.place_from[step]]


@kernel
def _sift_up(key: Float, node: Int, at: int) -> int:
    """Puts the entry at the end of a heap in its place; returns the new size."""
    size = at + 1
    while at > 0:
        parent = (at - 1) // 2
        if key[parent] <= key[at]:
            break
        key[parent], key[at] = key[at], key[parent]
        node[parent], node[at] = node[at], node[parent]
        at = parent
    return size


@kernel
def _pop(key: Float, node: Int, size: int) -> int:
    """Takes the least entry off a heap; returns the new size."""
    size -= 1
    key[0], node[0] = key[size], node[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and key[child + 1] < key[child]:
            child += 1
        if key[at] <= key[child]:
            break
        key[at], key[child] = key[child], key[at]
        node[at], node[child] = node[child], node[at]
        at = child
    return size
