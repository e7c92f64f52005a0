"""Verdicts on loop events: false ones, lone ones, scattered ones, and the poses that close the true ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anchor3r.geometry import umeyama
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.online import estimate_trajectory
from anchor3r.pose_graph.verification import EventConfig, EventVerdict, EventVerdicts, Reason, judge_events
from generated_graphs import SyntheticConfig, SyntheticGraph, synthetic_graph


def judged(config: SyntheticConfig) -> tuple[SyntheticGraph, EventVerdicts]:
    route = synthetic_graph(config)
    edges = route.graph.edges
    return route, judge_events(edges, estimate_trajectory(edges))[0]


@pytest.mark.parametrize(
    "faults",
    [
        {"false_events": 0.02},
        {"false_events": 0.3},
        {"rotation_bias_deg": 0.05},
        {"rotation_noise_deg": 1.0, "translation_noise": 0.1},
    ],
)
def test_all_false_events_and_hardly_any_true_ones_are_cut(faults: dict[str, float]) -> None:
    config = SyntheticConfig(num_frames=2000, seed=3, **faults)  # type: ignore[arg-type]
    route, verdicts = judged(config)
    is_false = route.is_false_group[verdicts.group]
    assert is_false.any()
    assert not verdicts.accepted[is_false].any()
    assert (~verdicts.accepted[~is_false]).mean() <= 0.01


def test_poses_close_the_loops() -> None:
    route = synthetic_graph(SyntheticConfig(num_frames=3000, rotation_bias_deg=0.02))
    edges = route.graph.edges
    odometry = estimate_trajectory(edges)
    _, closed = judge_events(edges, odometry)
    truth = route.camera_from_world.center()
    before, after = (
        np.linalg.norm(umeyama(c, truth).apply(c) - truth, axis=-1).max()
        for c in (odometry.center(), closed.center())
    )
    assert before > 15
    assert after < 1.5


def only_event(edges: Edges, group: int) -> Edges:
    return edges.select((edges.kind == EdgeKind.WINDOW) | (edges.group == group))


def test_a_lone_event_is_believed_as_far_as_odometry_may_drift() -> None:
    route = synthetic_graph(SyntheticConfig(num_frames=600, seed=1, false_events=0.5))
    edges = route.graph.edges
    odometry = estimate_trajectory(edges)
    groups = np.unique(edges.group[edges.kind == EdgeKind.LOOP])
    verdicts: list[tuple[bool, EventVerdict]] = []
    for group in groups[:12]:
        found, _ = judge_events(only_event(edges, int(group)), odometry)
        verdicts.append((bool(route.is_false_group[group]), found[0]))
    assert {is_false for is_false, _ in verdicts} == {True, False}
    for is_false, verdict in verdicts:
        assert verdict.accepted is not is_false
        assert verdict.supporters == verdict.opponents == 0
        assert verdict.reason is (Reason.CONTRADICTED if is_false else Reason.FITS)
        assert (verdict.excess <= 1) is verdict.accepted


def test_an_event_that_disagrees_with_itself_is_cut() -> None:
    route = synthetic_graph(SyntheticConfig(num_frames=1200, false_events=0.0, outlier_edges=0.0))
    edges = route.graph.edges
    group = int(edges.group[edges.kind == EdgeKind.LOOP][100])
    translation = edges.translation.copy()
    chosen = edges.group == group
    translation[chosen] = 20 * np.random.default_rng(0).normal(size=(int(chosen.sum()), 3))
    verdicts, _ = judge_events(replace(edges, translation=translation), estimate_trajectory(edges))
    verdict = verdicts[int(np.flatnonzero(verdicts.group == group)[0])]
    assert not verdict.accepted
    assert verdict.reason is Reason.SCATTERED
    assert verdict.num_agreeing < verdict.num_edges / 3
    assert verdicts.rejected_groups().tolist() == [group]


def test_an_event_of_uncertain_unit_may_be_off_by_as_much() -> None:
    route = synthetic_graph(
        SyntheticConfig(num_frames=600, seed=1, rotation_noise_deg=0.01, translation_noise=0.001)
    )
    edges = route.graph.edges
    loops = edges.kind == EdgeKind.LOOP
    group = int(edges.group[loops & ~route.is_false_group[edges.group]][0])
    edges = only_event(edges, group)
    loops = edges.kind == EdgeKind.LOOP
    stretched = replace(edges, translation=edges.translation * np.where(loops, 1.2, 1.0)[:, None])
    told = replace(stretched, log_scale_sigma=np.where(loops, 0.1, np.nan))
    odometry = estimate_trajectory(edges)
    reasons = [judge_events(given, odometry)[0][0].reason for given in (edges, stretched, told)]
    assert reasons == [Reason.FITS, Reason.SCATTERED, Reason.FITS]


def test_verdicts_name_frames_of_the_source() -> None:
    """Frames keep their indices where the graph has gaps."""
    route = synthetic_graph(SyntheticConfig(num_frames=600, false_events=0.0))
    edges = route.graph.edges
    shifted = replace(edges, frame_i=3 * edges.frame_i + 7, frame_t=3 * edges.frame_t + 7)
    odometry = estimate_trajectory(edges)
    plain, _ = judge_events(edges, odometry)
    moved, _ = judge_events(shifted, odometry)
    assert moved.anchor.tolist() == (3 * plain.anchor + 7).tolist()
    assert moved.match.tolist() == (3 * plain.match + 7).tolist()
    assert moved.accepted.tolist() == plain.accepted.tolist()


def test_no_loops_no_verdicts() -> None:
    edges = synthetic_graph(SyntheticConfig(num_frames=50)).graph.edges
    odometry = estimate_trajectory(edges)
    verdicts, poses = judge_events(edges, odometry)
    assert len(verdicts) == 0
    assert np.array_equal(poses.rotation, odometry.rotation)


def test_bad_config() -> None:
    with pytest.raises(ValueError, match="tolerance"):
        EventConfig(tolerance=0)
    with pytest.raises(ValueError, match="coarse_frames"):
        EventConfig(coarse_frames=0)
