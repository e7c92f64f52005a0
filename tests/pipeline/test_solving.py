"""Solving a map's graph: what becomes of loop events whose groups of edges contradict each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, so3_exp
from anchor3r.pipeline.solving import solve
from anchor3r.pose_graph.edges import EdgeKind, Edges, MotionGraph
from anchor3r.store import Loop, LoopState
from anchor3r.trajectory import Trajectory
from measured_graphs import measure, random_poses, window_pairs

NUM_FRAMES, WINDOW = 60, 6


def joined(*parts: Edges) -> Edges:
    return Edges(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])})


def event_groups(poses: SE3, rng: np.random.Generator) -> tuple[Edges, Edges]:
    """Two groups of one loop event, from frame 55 to frames 5 to 9: one is right, one turned by 40°."""
    members, anchors = np.arange(5, 10), np.full(5, 55)
    right = measure(poses, members, anchors, rng, rotation_noise_rad=0.002, translation_noise=0.02)
    right = replace(right, kind=np.full(5, EdgeKind.LOOP, np.int8))
    turn = so3_exp(np.array([0.0, np.radians(40), 0.0]))
    wrong = replace(right, rotation=turn @ right.rotation, translation=right.translation @ turn.T)
    return right, wrong


@pytest.mark.parametrize("wrong_first", [False, True])
@pytest.mark.parametrize("method", ["joint", "decoupled"])
def test_an_event_falls_with_its_worst_group(wrong_first: bool, method: str) -> None:
    rng = np.random.default_rng(4)
    poses = random_poses(NUM_FRAMES, rng)
    windows = measure(
        poses, *window_pairs(NUM_FRAMES, WINDOW), rng, rotation_noise_rad=0.002, translation_noise=0.02
    )
    groups = event_groups(poses, rng)[:: -1 if wrong_first else 1]
    first = NUM_FRAMES
    parts = [replace(edges, group=np.full(5, first + k)) for k, edges in enumerate(groups)]
    online = Trajectory(frames=np.arange(NUM_FRAMES), rotation=poses.rotation, center=poses.center())
    loop = Loop(event=0, query=55, match=9, state=LoopState.PENDING, figures={})

    def refined(*edges: Edges) -> tuple[LoopState, np.ndarray]:
        solution = solve(
            MotionGraph(joined(windows, *edges)),
            online,
            [loop],
            event_of_group={int(part.group[0]): 0 for part in edges},
            method=method,
            scale="fixed",
        )
        return solution.loops[0].state, solution.trajectory.center

    state, center = refined(*parts)
    assert state in (LoopState.CONTRADICTED, LoopState.SCATTERED)
    assert refined(parts[wrong_first])[0].is_accepted
    # Another start, ended by the same tolerance: well below the noise of 0.02.
    np.testing.assert_allclose(center, refined()[1], atol=0.01)


def test_the_papers_averaging_takes_every_loop() -> None:
    """Algorithm 2 verifies nothing: the wrong group takes part and bends the path."""
    rng = np.random.default_rng(4)
    poses = random_poses(NUM_FRAMES, rng)
    windows = measure(poses, *window_pairs(NUM_FRAMES, WINDOW), rng)
    _, wrong = event_groups(poses, rng)
    loops = [
        Loop(event=0, query=55, match=9, state=LoopState.INCONSISTENT, figures={}),
        Loop(event=1, query=50, match=9, state=LoopState.REJECTED_BY_HAND, figures={}),
    ]
    solution = solve(
        MotionGraph(joined(windows, replace(wrong, group=np.full(5, NUM_FRAMES)))),
        Trajectory(frames=np.arange(NUM_FRAMES), rotation=poses.rotation, center=poses.center()),
        loops,
        event_of_group={NUM_FRAMES: 0},
        left_out={1},
        method="paper",
    )
    assert [loop.state for loop in solution.loops] == [LoopState.UNVERIFIED, LoopState.REJECTED_BY_HAND]
    assert solution.scale == "fixed"
    assert np.abs(solution.trajectory.center - poses.center()).max() > 1e-3
    with pytest.raises(Anchor3RError, match="method paper has one scale"):
        solve(
            MotionGraph(windows),
            solution.trajectory,
            [],
            event_of_group={},
            method="paper",
            scale="free",
        )
