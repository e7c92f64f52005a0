"""Online motion averaging: the pose of the current frame as the median of its members' votes (Algorithm 1).

Every member i of a window, whose pose is known, votes for the pose of the anchor t through its edge:
rotation R̂ᵀ R_i and centre c_i + R_iᵀ t̂. The rotation is the Lie-algebra median of the votes, found from
several random starts; the centre is the coordinate-wise median. The spread of the votes is the uncertainty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Array
from anchor3r.kernels import kernel
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.linalg import so3
from anchor3r.pose_graph.topology import Topology, topology_of
from anchor3r.robust import SIGMA_PER_MAD

AnyArray = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class OnlineConfig:
    """How the Lie-algebra median is searched for and how its uncertainty is stated."""

    num_starts: int = 4
    """Hypotheses, started from that many different votes (all of them if there are fewer)."""
    max_iterations: int = 20
    """Updates of one hypothesis before it counts as not converged."""
    tolerance_rad: float = 1e-6
    """A hypothesis has converged when the median residual vector is shorter than this."""
    seed: int = 0
    """Together with the frame's index it decides which votes are the starts."""
    single_vote_sigma_rad: float = float(np.radians(1.0))
    """Standard deviation of the rotation about each axis when there is but one vote, hence no spread."""
    single_vote_sigma_relative: float = 0.05
    """Standard deviation of the centre when there is but one vote, as a part of the edge's length."""

    def __post_init__(self) -> None:
        if self.num_starts < 1 or self.max_iterations < 1:
            raise ValueError(f"num_starts and max_iterations must be at least 1: {self}")
        if not self.tolerance_rad > 0:
            raise ValueError(f"tolerance_rad must be positive: {self}")
        if not (self.single_vote_sigma_rad > 0 and self.single_vote_sigma_relative > 0):
            raise ValueError(f"the single-vote sigmas must be positive: {self}")


_DEFAULT = OnlineConfig()


@dataclass(frozen=True)
class OnlineEstimate:
    """A frame's pose as its members vote for it."""

    rotation: NDArray[np.float64]
    """(3, 3) camera_from_world"""
    center: NDArray[np.float64]
    """(3,) in the world"""
    covariance: NDArray[np.float64]
    """(6, 6) of one vote, diagonal: rotation (about the camera's axes, radians), centre (world axes).

    Standard deviations are 1.4826 times the median absolute deviation of the votes. It is not divided by
    their number, because votes of one window share errors. A single vote has the config's stated sigmas."""
    converged: bool
    """Whether any hypothesis converged; otherwise the rotation is the first vote."""
    num_votes: int
    residual_rad: float
    """Median angle between the rotation and the votes."""


def estimate_pose(
    member_rotation: Array,
    member_center: Array,
    edge_rotation: Array,
    edge_translation: Array,
    *,
    frame: int,
    config: OnlineConfig = _DEFAULT,
) -> OnlineEstimate:
    """The pose of `frame` from n >= 1 members of known pose.

    member_rotation (n, 3, 3) camera_from_world and member_center (n, 3) are the members' poses,
    edge_rotation (n, 3, 3) and edge_translation (n, 3) the measured member_from_frame.
    """
    n = len(member_rotation)
    if n == 0:
        raise ValueError("a pose needs at least one vote")
    rotation, center, variance = np.empty((3, 3)), np.empty(3), np.empty(6)
    converged, residual_rad = _median_pose(
        np.ascontiguousarray(member_rotation, np.float64), np.ascontiguousarray(member_center, np.float64),
        np.ascontiguousarray(edge_rotation, np.float64), np.ascontiguousarray(edge_translation, np.float64),
        *_kernel_arguments(config), frame, rotation, center, variance,
    )  # fmt: skip
    return OnlineEstimate(rotation, center, np.diag(variance), converged, n, residual_rad)


def estimate_trajectory(
    edges: Edges, *, topology: Topology | None = None, config: OnlineConfig = _DEFAULT
) -> SE3:
    """The poses (F,) camera_from_world of all frames by one online pass, without any other start.

    In the order of time, every frame is voted for by the earlier frames that a window joins it to; one that
    has none starts a new track. Tracks that other edges join (loops, priors) are then moved into one world
    by the same medians, so that every connected component ends up with one gauge, its first frame's.
    """
    topology = topology or topology_of(edges)
    used = edges.weight > 0
    window = np.flatnonzero(used & (edges.kind == EdgeKind.WINDOW))
    late = np.maximum(topology.i, topology.t)[window]
    window = window[np.argsort(late, kind="stable")]
    start = np.searchsorted(np.sort(late), np.arange(len(topology.frames) + 1))
    rotation, center, track = _online_pass(
        topology.frames, start, topology.i[window], topology.t[window],
        edges.rotation[window], edges.translation[window], *_kernel_arguments(config),
    )  # fmt: skip
    poses = SE3.from_center(rotation, center)
    crossing = used & (track[topology.i] != track[topology.t])
    while crossing.any():
        poses = _join_two_tracks(edges, topology, crossing, poses, track, config)
        crossing &= track[topology.i] != track[topology.t]
    return poses


def _join_two_tracks(
    edges: Edges,
    topology: Topology,
    crossing: NDArray[np.bool_],
    poses: SE3,
    track: AnyArray,
    config: OnlineConfig,
) -> SE3:
    """Moves a track into the world of an earlier one: of all pairs that edges join, the best-joined one.

    What is voted for is the later track's world, as if it were a frame that its members' edges look at.
    """
    which = np.flatnonzero(crossing)
    ends = np.sort(track[np.stack([topology.i[which], topology.t[which]])], axis=0)
    pairs, pair, count = np.unique(ends, axis=1, return_inverse=True, return_counts=True)
    keep, move = pairs[:, np.argmax(count)]
    which = which[pair == np.argmax(count)]
    i, t = topology.i[which], topology.t[which]
    i_from_t, backward = SE3(edges.rotation[which], edges.translation[which]), track[i] == move
    t_from_i = i_from_t.inverse()
    member, moving = np.where(backward, t, i), np.where(backward, i, t)
    member_from_moving = SE3(
        np.where(backward[:, None, None], t_from_i.rotation, i_from_t.rotation),
        np.where(backward[:, None], t_from_i.translation, i_from_t.translation),
    )
    member_from_late_world = member_from_moving @ poses[moving]
    known = poses[member]
    voted = estimate_pose(
        known.rotation, known.center(), member_from_late_world.rotation, member_from_late_world.translation,
        frame=int(move), config=config,
    )  # fmt: skip
    late_from_early_world = SE3(voted.rotation, -voted.rotation @ voted.center)
    inside = track == move
    moved = poses[inside] @ late_from_early_world
    rotation, translation = poses.rotation.copy(), poses.translation.copy()
    rotation[inside], translation[inside], track[inside] = moved.rotation, moved.translation, keep
    return SE3(rotation, translation)


def _kernel_arguments(config: OnlineConfig) -> tuple[int, int, float, int, float, float]:
    return (
        config.num_starts, config.max_iterations, config.tolerance_rad, config.seed,
        config.single_vote_sigma_rad, config.single_vote_sigma_relative,
    )  # fmt: skip


@kernel
def _online_pass(
    frames: AnyArray, start: AnyArray, edge_i: AnyArray, edge_t: AnyArray,
    edge_rotation: AnyArray, edge_translation: AnyArray,
    num_starts: int, max_iterations: int, tolerance_rad: float, seed: int,
    single_sigma_rad: float, single_sigma_relative: float,
) -> tuple[AnyArray, AnyArray, AnyArray]:  # fmt: skip
    """Rotations, centres and tracks of all frames; edges start[f] … start[f + 1] join f to earlier ones."""
    num_frames = len(frames)
    rotation, center = np.zeros((num_frames, 3, 3)), np.zeros((num_frames, 3))
    track, num_tracks, variance = np.empty(num_frames, np.int64), 0, np.empty(6)
    for frame in range(num_frames):
        first, end = start[frame], start[frame + 1]
        if first == end:
            so3.store33(rotation[frame], (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0))
            track[frame] = num_tracks
            num_tracks += 1
            continue
        chosen = _commonest_track(track, edge_i[first:end] + edge_t[first:end] - frame)
        n = 0
        members = np.empty(end - first, np.int64)
        measured, offset = np.empty((end - first, 3, 3)), np.empty((end - first, 3))
        for e in range(first, end):
            member = edge_i[e] + edge_t[e] - frame
            if track[member] != chosen:
                continue
            r, v = so3.load33(edge_rotation[e]), so3.load3(edge_translation[e])
            if edge_i[e] == frame:  # measured the other way round
                r = so3.transpose(r)
                v = so3.apply(r, (-v[0], -v[1], -v[2]))
            members[n] = member
            so3.store33(measured[n], r)
            so3.store3(offset[n], v)
            n += 1
        track[frame] = chosen
        _median_pose(
            rotation[members[:n]], center[members[:n]], measured[:n], offset[:n],
            num_starts, max_iterations, tolerance_rad, seed, single_sigma_rad, single_sigma_relative,
            frames[frame], rotation[frame], center[frame], variance,
        )  # fmt: skip
    return rotation, center, track


@kernel
def _commonest_track(track: AnyArray, members: AnyArray) -> int:
    """The track that most members belong to, the first one found of equals."""
    best, most = -1, 0
    for j in range(len(members)):
        if 2 * most >= len(members):
            break
        count = 0
        for k in range(len(members)):
            count += track[members[k]] == track[members[j]]
        if count > most:
            best, most = track[members[j]], count
    return best


@kernel
def _median_pose(
    member_rotation: AnyArray, member_center: AnyArray, edge_rotation: AnyArray, edge_translation: AnyArray,
    num_starts: int, max_iterations: int, tolerance_rad: float, seed: int,
    single_sigma_rad: float, single_sigma_relative: float, frame: int,
    rotation: AnyArray, center: AnyArray, variance: AnyArray,
) -> tuple[bool, float]:  # fmt: skip
    """Fills rotation (3, 3), center (3,), variance (6,); returns convergence and the median residual."""
    n = len(member_rotation)
    vote_rotation, vote_center = np.empty((n, 3, 3)), np.empty((3, n))
    for j in range(n):
        member = so3.load33(member_rotation[j])
        so3.store33(vote_rotation[j], so3.mul_tn(so3.load33(edge_rotation[j]), member))
        offset = so3.apply_t(member, so3.load3(edge_translation[j]))
        for k in range(3):
            vote_center[k, j] = member_center[j, k] + offset[k]
    residuals = np.empty((4, n))  # three coordinates and the angle, of each vote
    scratch = np.empty(n)
    converged, residual_rad = _median_rotation(
        vote_rotation, num_starts, max_iterations, tolerance_rad, seed, frame, residuals, scratch, rotation
    )
    for k in range(3):
        center[k] = _median(vote_center[k], scratch)
    if n == 1:
        length = np.sqrt(so3.norm_sq(so3.load3(edge_translation[0])))
        variance[:3] = single_sigma_rad**2
        variance[3:] = (single_sigma_relative * length) ** 2
    else:
        for k in range(3):
            variance[k] = _mad_variance(residuals[k], 0.0, scratch)
            variance[3 + k] = _mad_variance(vote_center[k], center[k], scratch)
    return converged, residual_rad


@kernel
def _median_rotation(
    votes: AnyArray, num_starts: int, max_iterations: int, tolerance_rad: float, seed: int, frame: int,
    residuals: AnyArray, scratch: AnyArray, best: AnyArray,
) -> tuple[bool, float]:  # fmt: skip
    """Algorithm 1. Hypotheses do not interact, so each runs to its end before the next one starts."""
    n = len(votes)
    order = np.arange(n)
    state = _mix(np.uint64(seed) ^ _mix(np.uint64(frame)))
    lowest, found = np.inf, False
    for m in range(min(num_starts, n)):
        state = _mix(state)
        pick = m + np.int64(state % np.uint64(n - m))  # starts are drawn without replacement
        order[m], order[pick] = order[pick], order[m]
        hypothesis = so3.load33(votes[order[m]])
        for _ in range(max_iterations):
            _residuals(votes, hypothesis, residuals)
            x, y = _median(residuals[0], scratch), _median(residuals[1], scratch)
            step = (x, y, _median(residuals[2], scratch))
            if so3.norm_sq(step) < tolerance_rad**2:
                score = _median(residuals[3], scratch)
                if score < lowest:
                    lowest, found = score, True
                    so3.store33(best, hypothesis)
                break
            hypothesis = so3.orthonormalised(so3.mul(so3.exp(step), hypothesis))
    if not found:
        so3.store33(best, so3.load33(votes[0]))
    _residuals(votes, so3.load33(best), residuals)
    return found, _median(residuals[3], scratch)


@kernel
def _residuals(votes: AnyArray, hypothesis: so3.Matrix, residuals: AnyArray) -> None:
    """Log(vote hypothesisᵀ) of every vote, and its angle."""
    for j in range(len(votes)):
        r = so3.log(so3.mul_nt(so3.load33(votes[j]), hypothesis))
        residuals[0, j], residuals[1, j], residuals[2, j] = r
        residuals[3, j] = np.sqrt(so3.norm_sq(r))


@kernel
def _mix(state: np.uint64) -> np.uint64:
    """One step of the splitmix64 generator: cheap, and good enough to shuffle a handful of votes."""
    z = state + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def _median(values: AnyArray, scratch: AnyArray) -> float:
    """By Shell's sort into `scratch`: few values are the rule, but many must not take forever."""
    n = len(values)
    for j in range(n):
        scratch[j] = values[j]
    gap = 1
    while gap < n // 9:
        gap = 3 * gap + 1
    while gap > 0:
        for j in range(gap, n):
            value, k = scratch[j], j
            while k >= gap and scratch[k - gap] > value:
                scratch[k] = scratch[k - gap]
                k -= gap
            scratch[k] = value
        gap //= 3
    return scratch[n // 2] if n % 2 else 0.5 * (scratch[n // 2 - 1] + scratch[n // 2])


@kernel
def _mad_variance(values: AnyArray, center: float, scratch: AnyArray) -> float:
    return (SIGMA_PER_MAD * _median(np.abs(values - center), scratch)) ** 2
