"""Motion graphs with a known answer: a drive through a grid of streets, measured with every known fault.

The route is a random walk on a street grid, so most streets are driven several times. Every frame anchors a
window; every keyframe that comes near an earlier one anchors loop events. Measurements carry noise, a bias,
outlier edges, false loop events that agree with themselves, and on demand a scale that drifts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from anchor3r.geometry import SE3, so3_exp
from anchor3r.pose_graph.edges import EdgeKind, Edges, MotionGraph

_CHUNK = 1 << 18  # edges measured at a time, so that temporaries stay small
_CORNER_FRAMES = 11  # a turn is spread over so many frames
_HEADING_COSINE = 0.7  # passes in another direction see something else and are not retrieved
_KINDS = np.array([EdgeKind.WINDOW, EdgeKind.LOOP], np.int8)
_RETRIEVED = 48  # nearest keyframes looked at before the temporal and heading tests


@dataclass(frozen=True, kw_only=True)
class SyntheticConfig:
    """What is driven and how badly it is measured. One frame a metre."""

    num_frames: int
    """Length of the route."""
    seed: int = 0
    """Of everything random."""
    window: int = 10
    """Frames of a window, the anchor included."""
    street_m: float = 40.0
    """Distance between crossings."""
    visits: float = 2.0
    """How often a street is driven in each direction, on average; decides the size of the grid."""
    rotation_noise_deg: float = 0.2
    """Standard deviation about each axis, of each edge."""
    rotation_bias_deg: float = 0.002
    """A window edge over k frames is turned by k times this about an axis that is fixed for the route."""
    translation_noise: float = 0.02
    """Standard deviation along each axis over the length of the edge."""
    outlier_edges: float = 0.04
    """Part of the edges, in windows and events alike, that are arbitrary."""
    false_events: float = 0.02
    """Part of the loop events that name a wrong place, all their edges in agreement."""
    keyframe_interval: int = 5
    """Frames between keyframes."""
    loops_per_keyframe: int = 3
    """Loop events a keyframe anchors at most."""
    loop_radius_m: float = 6.0
    """Keyframes farther away are not retrieved."""
    loop_min_gap: int = 100
    """Keyframes fewer frames ago are not retrieved."""
    event_edges: int = 9
    """Members of a loop event: the retrieved keyframe and its neighbours."""
    scale_drift: float = 1.0
    """Scale of the last window over that of the first: a steady drift of the log scale."""
    scale_walk: float = 0.0
    """Standard deviation of a random walk of the log scale, a frame."""

    def __post_init__(self) -> None:
        if self.num_frames < 1 or self.window < 2 or self.event_edges < 1 or self.keyframe_interval < 1:
            raise ValueError(f"num_frames, window, event_edges or keyframe_interval is too small: {self}")
        if not (0 <= self.outlier_edges <= 1 and 0 <= self.false_events <= 1 and self.scale_drift > 0):
            raise ValueError(f"outlier_edges, false_events or scale_drift is out of range: {self}")


@dataclass(frozen=True)
class SyntheticGraph:
    """A measured route and the truth about it."""

    graph: MotionGraph
    camera_from_world: SE3
    """(f,) true poses, metres; the first is the identity"""
    log_scale: NDArray[np.float64]
    """(f,) log of the scale, in metres, of each frame's window"""
    is_false_group: NDArray[np.bool_]
    """(num_groups,) whether a group is a false loop event"""


def synthetic_graph(config: SyntheticConfig) -> SyntheticGraph:
    """Drives and measures; the same config gives the same graph."""
    rng = np.random.default_rng(config.seed)
    poses = _drive(config, rng)
    log_scale = np.linspace(0, np.log(config.scale_drift), config.num_frames)
    if config.scale_walk:
        log_scale[1:] += np.cumsum(config.scale_walk * rng.standard_normal(config.num_frames - 1))
    window_i, window_t = _window_pairs(config)
    match, anchor = _retrieve(poses, config)
    is_false = rng.random(len(match)) < config.false_events
    told = _told_anchors(poses, match, anchor, is_false, rng)
    loop_i, event = _event_members(match, anchor, config)

    frame_i = np.concatenate([window_i, loop_i])
    frame_t = np.concatenate([window_t, anchor[event]])
    pose_t = np.concatenate([window_t, config.num_frames + event])  # an event's own anchor pose
    num_windows = max(config.num_frames - 1, 0)
    group = np.concatenate([window_t - 1, num_windows + event])
    anchors = SE3(
        np.concatenate([poses.rotation, told.rotation]),
        np.concatenate([poses.translation, told.translation]),
    )
    rotation, translation = _measure(poses, anchors, frame_i, pose_t, frame_t, log_scale, config, rng)
    m = len(frame_i)
    edges = Edges(
        frame_i=frame_i, frame_t=frame_t, rotation=rotation, translation=translation, group=group,
        weight=np.ones(m), kind=_KINDS[(pose_t >= config.num_frames).astype(int)],
        log_scale_ratio=np.broadcast_to(np.nan, m), log_scale_sigma=np.broadcast_to(np.nan, m),
        information=np.broadcast_to(np.nan, (m, 6, 6)),
    )  # fmt: skip
    is_false_group = np.concatenate([np.zeros(num_windows, bool), is_false])
    return SyntheticGraph(MotionGraph(edges), poses, log_scale, is_false_group)


def _drive(config: SyntheticConfig, rng: np.random.Generator) -> SE3:
    """True poses of a random walk over crossings, without U-turns, on rolling ground."""
    streets = int(np.ceil(config.num_frames / config.street_m)) + 2
    size = max(3, round(np.sqrt(streets / (4 * config.visits))))
    steps = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])
    crossings, heading = np.zeros((streets + 1, 2)), 0
    for k, choice in enumerate(rng.random(streets)):
        ahead = [(heading + turn) % 4 for turn in (-1, 0, 1)]
        inside = [
            h for h in ahead if np.all((crossings[k] + steps[h] >= 0) & (crossings[k] + steps[h] < size))
        ]
        heading = inside[int(choice * len(inside))]
        crossings[k + 1] = crossings[k] + steps[heading]
    along = np.diff(crossings, axis=0)
    lane_m = rng.uniform(-1, 1, streets)[:, None] * np.stack([-along[:, 1], along[:, 0]], -1)

    margin = _CORNER_FRAMES
    driven_m = np.arange(config.num_frames + 2 * margin) / config.street_m
    street = driven_m.astype(np.int64)
    ground = (crossings[street] + (driven_m - street)[:, None] * along[street]) * config.street_m + lane_m[
        street
    ]
    kernel = np.hanning(_CORNER_FRAMES + 2)[1:-1]
    ground = np.stack([np.convolve(ground[:, k], kernel / kernel.sum(), "same") for k in range(2)], -1)
    height_m = 2 * np.sin(ground[:, :1] / 70) + 1.5 * np.cos(ground[:, 1:] / 90)
    center = np.concatenate([ground, height_m], -1)[margin : margin + config.num_frames + 1]
    return _poses_along(center, rng)


def _poses_along(center: NDArray[np.float64], rng: np.random.Generator) -> SE3:
    """camera_from_world of all but the last of the centers (f + 1, 3), looking ahead and swaying a little."""
    n = len(center) - 1
    forward = np.diff(center, axis=0)
    forward /= np.linalg.norm(forward, axis=-1, keepdims=True)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right, axis=-1, keepdims=True)
    level = np.stack([right, np.cross(forward, right), forward], -2)
    phase = rng.uniform(0, 2 * np.pi, 3)
    sway = np.radians(1.0) * np.sin(np.arange(n)[:, None] / np.array([31.0, 47.0, 23.0]) + phase)
    rotation = so3_exp(sway) @ level
    poses = SE3(rotation, -(rotation @ center[:n, :, None])[..., 0])
    return poses @ poses[0].inverse()


def _window_pairs(config: SyntheticConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Members and anchors of all windows, anchor by anchor."""
    anchor = np.repeat(np.arange(config.num_frames), config.window - 1)
    member = anchor - np.tile(np.arange(config.window - 1, 0, -1), config.num_frames)
    return member[member >= 0], anchor[member >= 0]


def _retrieve(poses: SE3, config: SyntheticConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Retrieved keyframe and anchor of every loop event, in the order of anchors."""
    keyframes = np.arange(0, config.num_frames, config.keyframe_interval)
    center, forward = poses.center()[keyframes], poses.rotation[keyframes, 2]
    k = min(_RETRIEVED, len(keyframes))
    _, near = cKDTree(center).query(center, k=k, distance_upper_bound=config.loop_radius_m)
    near = near.reshape(len(keyframes), k)
    found = near < len(keyframes)
    near = np.where(found, near, 0)
    found &= keyframes[near] + config.loop_min_gap <= keyframes[:, None]
    found &= np.einsum("nc,nkc->nk", forward, forward[near]) > _HEADING_COSINE
    found &= np.cumsum(found, 1) <= config.loops_per_keyframe
    anchor, which = np.nonzero(found)
    return keyframes[near[anchor, which]], keyframes[anchor]


def _told_anchors(
    poses: SE3,
    match: NDArray[np.int64],
    anchor: NDArray[np.int64],
    is_false: NDArray[np.bool_],
    rng: np.random.Generator,
) -> SE3:
    """The anchor's pose as each event has it; a false event puts it near a random earlier frame.

    Moves the false events' entries of `match` in place.
    """
    count = int(is_false.sum())
    match[is_false] = (rng.random(count) * anchor[is_false]).astype(np.int64)
    nearby = SE3(so3_exp(np.radians(5.0) * rng.standard_normal((count, 3))), rng.uniform(-3, 3, (count, 3)))
    told = SE3(poses.rotation[anchor], poses.translation[anchor])
    wrong = nearby @ poses[match[is_false]]
    told.rotation[is_false], told.translation[is_false] = wrong.rotation, wrong.translation
    return told


def _event_members(
    match: NDArray[np.int64], anchor: NDArray[np.int64], config: SyntheticConfig
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Members of all events and the event of each: frames around the match, before the anchor."""
    first = np.minimum(match - config.event_edges // 2, anchor - config.event_edges)
    member = np.maximum(first, 0)[:, None] + np.arange(config.event_edges)
    event = np.repeat(np.arange(len(match)), config.event_edges)
    keep = member.ravel() < anchor[event]
    return member.ravel()[keep], event[keep]


def _measure(
    poses: SE3,
    anchors: SE3,
    frame_i: NDArray[np.int64],
    pose_t: NDArray[np.int64],
    frame_t: NDArray[np.int64],
    log_scale: NDArray[np.float64],
    config: SyntheticConfig,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rotation (m, 3, 3) and translation (m, 3) of the edges poses[frame_i] from anchors[pose_t]."""
    m = len(frame_i)
    rotation, translation = np.empty((m, 3, 3)), np.empty((m, 3))
    bias = rng.standard_normal(3)
    bias *= np.radians(config.rotation_bias_deg) / np.linalg.norm(bias)
    for start in range(0, m, _CHUNK):
        part = slice(start, min(start + _CHUNK, m))
        i, pose, t = frame_i[part], pose_t[part], frame_t[part]
        truth = poses[i] @ anchors[pose].inverse()
        turn = np.radians(config.rotation_noise_deg) * rng.standard_normal((len(i), 3))
        turn += np.where(pose < len(poses), t - i, 0)[:, None] * bias
        length = np.linalg.norm(truth.translation, axis=-1, keepdims=True)
        moved = truth.translation + config.translation_noise * length * rng.standard_normal((len(i), 3))
        wild = rng.random(len(i)) < config.outlier_edges
        turn[wild] = rng.uniform(-1, 1, (int(wild.sum()), 3))
        moved[wild] = length[wild] * rng.uniform(-1, 1, (int(wild.sum()), 3))
        rotation[part] = truth.rotation @ so3_exp(turn)
        translation[part] = moved * np.exp(-log_scale[t])[:, None]
    return rotation, translation
