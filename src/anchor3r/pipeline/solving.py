"""From a map's edges to its refined poses: which loop events take part, one of three solvers, one trajectory.

Groups of one loop event are judged one by one by the graph engine; here they stand and fall together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3
from anchor3r.pipeline.settings import Method
from anchor3r.pose_graph.averaging.motion import average_motion, average_motion_as_published
from anchor3r.pose_graph.averaging.scales import ScaleConfig, average_scales, in_one_scale
from anchor3r.pose_graph.edges import EdgeKind, Edges, MotionGraph
from anchor3r.pose_graph.joint import RefineConfig, refine_poses, verify_graph
from anchor3r.pose_graph.placement import Knowledge, Placed
from anchor3r.pose_graph.report import Report
from anchor3r.pose_graph.revisits import VerificationConfig
from anchor3r.pose_graph.topology import topology_of
from anchor3r.pose_graph.verification import EventVerdict, EventVerdicts, Verdict
from anchor3r.store import Loop, LoopState
from anchor3r.trajectory import Trajectory

Int = NDArray[np.int64]
Scale = Literal["fixed", "free"]
_FIGURES = (
    "num_edges", "num_agreeing", "supporters", "opponents", "way_frames",
    "rotation_error_deg", "translation_error", "log_scale_error", "chi_square", "excess",
)  # fmt: skip
"""Of a verdict, what goes into the map."""
STATE_OF_VERDICT = {
    Verdict.SUPPORTED: LoopState.SUPPORTED,
    Verdict.FITS: LoopState.FITS,
    Verdict.SCATTERED: LoopState.SCATTERED,
    Verdict.CONTRADICTED: LoopState.CONTRADICTED,
}
"""What the graph's verdicts mean for a loop; one that the user has accepted stays accepted by hand."""
_TOLD = 5.0
"""Change of scale expected from frame to frame, over the spread with which the predictor measures it."""
_LEAST_WALK = 0.1
"""The same at least, however little scales seem to change: windows that agree may still drift."""


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Refined poses and what became of the loops."""

    trajectory: Trajectory
    loops: list[Loop]
    """with the verdicts and figures that the poses rest on"""
    report: Report
    scale: Scale
    placed: Placed | None = None
    """how the poses agree with what is known from elsewhere"""


@dataclass(frozen=True)
class _Solved:
    """One run of a solver, by the graph's frames."""

    camera_from_world: SE3
    log_scale: NDArray[np.float64]
    verdicts: EventVerdicts | None
    report: Report
    placed: Placed | None = None
    covariance: NDArray[np.float64] | None = None
    """(n, 6, 6) as in `FramePose`"""


def solve(
    graph: MotionGraph,
    online: Trajectory,
    loops: Sequence[Loop],
    *,
    event_of_group: Mapping[int, int],
    left_out: Collection[int] = (),
    accepted_by_hand: Collection[int] = (),
    method: Method,
    scale: Scale | None = None,
    known: Knowledge | None = None,
    join_supporters: int = 0,
    with_covariance: bool = True,
) -> Solution:
    """Averages the graph with those of its loop events that are in `loops` and prove right.

    online: poses of all frames, the start. left_out, accepted_by_hand: events that are not judged. scale:
    if None, free where window edges carry measured ratios of scales, or something is known.
    known: priors on the graph's frames, which place the poses in a world of their own; method joint only.
    join_supporters: as in `VerificationConfig`. with_covariance: whether method joint tells how well it knows
    the poses.
    """
    event_of = np.full(graph.num_groups, -1)
    if event_of_group:
        event_of[list(event_of_group)] = list(event_of_group.values())
    wanted = np.isin(event_of, [loop.event for loop in loops if loop.event not in left_out])
    edges = graph.edges
    edges = edges.select((event_of < 0)[edges.group] | wanted[edges.group])
    insist_on_start(edges, online)
    if scale is None:
        measured = method != "paper" and np.isfinite(edges.log_scale_ratio).any()
        scale = "free" if measured or known is not None else "fixed"
    groups_by_hand = np.flatnonzero(np.isin(event_of, list(accepted_by_hand)))
    config = RefineConfig(
        scale=scale,
        scales=_expected_scales(edges),
        verification=VerificationConfig(join_supporters=join_supporters),
    )
    if method == "joint":
        solved = _joint(
            edges, online, config, groups_by_hand, event_of, known, with_covariance=with_covariance
        )
    else:
        solved = _SOLVERS[method](edges, online, config, groups_by_hand, event_of)
    found = _by_event(solved.verdicts, event_of)
    taken = {event for event, verdict in found.items() if verdict.accepted}
    if method == "paper":
        taken = {int(event) for event in np.unique(event_of[edges.group]) if event >= 0}
        loops = [_unverified(loop) if loop.event in taken else loop for loop in loops]
    used = edges.select((event_of < 0)[edges.group] | np.isin(event_of[edges.group], list(taken)))
    return Solution(
        trajectory=_trajectory(online, edges, used, solved),
        loops=[_judged(loop, found.get(loop.event)) for loop in loops],
        report=solved.report,
        scale=scale,
        placed=solved.placed,
    )


def insist_on_start(edges: Edges, online: Trajectory) -> None:
    """Refuses edges of frames that have no pose to start from, which no mapper writes."""
    named = np.union1d(edges.frame_i, edges.frame_t)
    if len(missing := np.setdiff1d(named, online.frames)):
        raise Anchor3RError(
            f"{len(missing)} frames that the graph names have no online pose, the first is {missing[0]}; "
            "the map is damaged: restore it from a copy or make it again"
        )


def _by_event(verdicts: EventVerdicts | None, event_of: Int) -> dict[int, EventVerdict]:
    """The verdict on each event, with the figures of its first group."""
    found: dict[int, EventVerdict] = {}
    for k in range(0 if verdicts is None else len(verdicts)):
        assert verdicts is not None
        found.setdefault(int(event_of[verdicts.group[k]]), verdicts[k])
    return found


def _judged(loop: Loop, verdict: EventVerdict | None) -> Loop:
    """The event with its verdict; one that was left out, or accepted by hand, keeps its reason."""
    if verdict is None:
        return loop
    figures = {name: float(getattr(verdict, name)) for name in _FIGURES}
    state = STATE_OF_VERDICT.get(verdict.verdict, loop.state)
    return replace(loop, state=state, figures={**loop.figures, **figures})


def _unverified(loop: Loop) -> Loop:
    """The event as the paper's averaging takes it, which judges none."""
    return loop if loop.state.is_by_hand else replace(loop, state=LoopState.UNVERIFIED)


def _joint(
    edges: Edges,
    online: Trajectory,
    config: RefineConfig,
    accepted_by_hand: Int,
    event_of: Int,
    known: Knowledge | None,
    *,
    with_covariance: bool,
) -> _Solved:
    graph = MotionGraph(edges)
    start = online.camera_from_world[np.searchsorted(online.frames, graph.frames())]
    refined, report = refine_poses(
        graph, start, config,
        accepted_by_hand=accepted_by_hand, event_of_group=event_of, known=known,
        with_covariance=with_covariance,
    )  # fmt: skip
    return _Solved(
        refined.camera_from_world, refined.log_scale, refined.events, report, refined.placed,
        refined.covariance,
    )  # fmt: skip


def _decoupled(
    edges: Edges, online: Trajectory, config: RefineConfig, accepted_by_hand: Int, event_of: Int
) -> _Solved:
    """Rotations first, then positions: loops are verified and scales averaged before."""
    verdicts = None
    if np.any(edges.kind == EdgeKind.LOOP):
        verified, _ = verify_graph(
            edges, topology_of(edges), config, accepted_by_hand=accepted_by_hand, event_of_group=event_of
        )
        verdicts = verified.verdicts
        cut = np.isin(edges.group, verdicts.rejected_groups())
        edges = replace(edges, weight=np.where(cut, 0.0, edges.weight))
    topology = topology_of(edges)
    log_scale = np.zeros(len(topology.frames))
    if config.scale == "free":
        log_scale, _ = average_scales(MotionGraph(edges), config.scales)
        edges = in_one_scale(edges, log_scale, topology)
    start = online.camera_from_world[np.searchsorted(online.frames, topology.frames)]
    poses, report = average_motion(edges, start, topology=topology)
    return _Solved(poses, log_scale, verdicts, report)


def _as_published(
    edges: Edges, online: Trajectory, config: RefineConfig, accepted_by_hand: Int, event_of: Int
) -> _Solved:
    """Algorithm 2 of the paper: every edge of every loop takes part, in one scale."""
    if config.scale == "free":
        raise Anchor3RError(
            "method paper has one scale for the whole map; choose scale fixed, or method joint or decoupled"
        )
    topology = topology_of(edges)
    start = online.camera_from_world[np.searchsorted(online.frames, topology.frames)]
    poses, report = average_motion_as_published(edges, start, topology=topology)
    return _Solved(poses, np.zeros(len(topology.frames)), None, report)


_SOLVERS = {"decoupled": _decoupled, "paper": _as_published}


def _expected_scales(edges: Edges) -> ScaleConfig:
    """A predictor that measures how its scale changes counts for more than that scales hardly change."""
    config = ScaleConfig()
    told = edges.log_scale_sigma[(edges.kind == EdgeKind.WINDOW) & (edges.log_scale_sigma > 0)]
    if not len(told):
        return config
    typical = float(np.median(told))
    return replace(
        config,
        default_walk_sigma=max(config.default_walk_sigma, _TOLD * typical),
        min_walk_sigma=max(config.min_walk_sigma, _LEAST_WALK * typical),
    )


def _trajectory(online: Trajectory, edges: Edges, used: Edges, solved: _Solved) -> Trajectory:
    """All online frames, the first one of each component where it was unless priors say where.

    A frame that no edge names is a component of its own.
    """
    rows = np.searchsorted(online.frames, np.unique(np.concatenate([edges.frame_i, edges.frame_t])))
    rotation, center = online.rotation.copy(), online.center.copy()
    log_scale = np.zeros(len(online)) if online.log_scale is None else online.log_scale.copy()
    rotation[rows], center[rows] = solved.camera_from_world.rotation, solved.camera_from_world.center()
    log_scale[rows] = solved.log_scale
    covariance = None
    if solved.covariance is not None:
        covariance = np.full((len(online), 6, 6), np.nan)
        covariance[rows] = solved.covariance
    refined = replace(online, rotation=rotation, center=center, log_scale=log_scale, covariance=covariance)
    topology = topology_of(used, online.frames)
    if solved.placed is not None:
        return replace(refined, component=topology.component)
    first = topology.gauge
    solved_from_online = refined.camera_from_world[first].inverse() @ online.camera_from_world[first]
    poses = refined.camera_from_world @ solved_from_online[topology.component]
    if covariance is not None:
        axes = np.zeros((len(online), 6, 6))
        axes[:, :3, :3] = np.eye(3)  # of the camera, which do not change
        axes[:, 3:, 3:] = np.swapaxes(solved_from_online.rotation, 1, 2)[topology.component]
        covariance = axes @ covariance @ np.swapaxes(axes, 1, 2)
    return replace(
        refined,
        rotation=np.asarray(poses.rotation, np.float64),
        center=np.asarray(poses.center(), np.float64),
        component=topology.component,
        covariance=covariance,
    )
