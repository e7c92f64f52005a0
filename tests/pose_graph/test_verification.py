"""Verdicts on loop events: false ones, lone ones, scattered ones, and the poses that close the true ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from numpy.testing import assert_allclose

from anchor3r.geometry import umeyama
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.joint import RefineConfig, verify_graph
from anchor3r.pose_graph.online import estimate_trajectory
from anchor3r.pose_graph.revisits import VerificationConfig
from anchor3r.pose_graph.topology import topology_of
from anchor3r.pose_graph.verification import EventVerdict, EventVerdicts, Verdict, verify_loops
from drifting_graphs import DriftConfig, drifting_graph
from generated_graphs import SyntheticConfig, SyntheticGraph, synthetic_graph


def judged(config: SyntheticConfig) -> tuple[SyntheticGraph, EventVerdicts]:
    route = synthetic_graph(config)
    edges = route.graph.edges
    return route, verify_loops(edges, estimate_trajectory(edges)).verdicts


@pytest.mark.parametrize(
    "faults",
    [
        {"false_events": 0.02},
        {"false_events": 0.3},
        {"rotation_bias_deg": 0.05},
        {"rotation_noise_deg": 0.5, "translation_noise": 0.05},
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
    closed, _ = verify_loops(edges, odometry).closed.frames()
    truth = route.camera_from_world.center()
    before, after = (
        np.linalg.norm(umeyama(c, truth).apply(c) - truth, axis=-1).max()
        for c in (odometry.center(), closed.center())
    )
    assert before > 15
    assert after < 1.5


def only_event(edges: Edges, group: int) -> Edges:
    return edges.select((edges.kind == EdgeKind.WINDOW) | (edges.group == group))


def test_a_lone_event_is_accepted_as_far_as_odometry_may_drift() -> None:
    route = synthetic_graph(SyntheticConfig(num_frames=600, seed=1, false_events=0.5))
    edges = route.graph.edges
    odometry = estimate_trajectory(edges)
    groups = np.unique(edges.group[edges.kind == EdgeKind.LOOP])
    verdicts: list[tuple[bool, EventVerdict]] = []
    for group in groups[:12]:
        found = verify_loops(only_event(edges, int(group)), odometry).verdicts
        verdicts.append((bool(route.is_false_group[group]), found[0]))
    assert {is_false for is_false, _ in verdicts} == {True, False}
    for is_false, verdict in verdicts:
        assert verdict.accepted is not is_false
        assert verdict.supporters == verdict.opponents == 0
        assert verdict.verdict is (Verdict.CONTRADICTED if is_false else Verdict.FITS)
        assert (verdict.excess <= 1) is verdict.accepted


def test_a_lone_event_does_not_join_two_parts_where_others_are_asked_for() -> None:
    route = synthetic_graph(SyntheticConfig(num_frames=600, seed=1))
    edges = route.graph.edges
    is_window = edges.kind == EdgeKind.WINDOW
    middle = 300
    edges = edges.select(~is_window | ((edges.frame_i < middle) == (edges.frame_t < middle)))
    odometry = estimate_trajectory(edges)
    joins = (edges.kind == EdgeKind.LOOP) & ((edges.frame_i < middle) != (edges.frame_t < middle))
    groups, asked = np.unique(edges.group[joins]), VerificationConfig(join_supporters=2)
    for group in groups[:3].tolist():
        alone = only_event(edges, group)
        assert verify_loops(alone, odometry).verdicts[0].accepted
        assert verify_loops(alone, odometry, asked).verdicts[0].verdict is Verdict.SCATTERED
    verdicts = verify_loops(edges, odometry, asked).verdicts
    assert verdicts.accepted[np.isin(verdicts.group, groups)].mean() > 0.9


def test_an_event_that_disagrees_with_itself_is_cut() -> None:
    route = synthetic_graph(SyntheticConfig(num_frames=1200, false_events=0.0, outlier_edges=0.0))
    edges = route.graph.edges
    group = int(edges.group[edges.kind == EdgeKind.LOOP][100])
    translation = edges.translation.copy()
    chosen = edges.group == group
    translation[chosen] = 20 * np.random.default_rng(0).normal(size=(int(chosen.sum()), 3))
    verdicts = verify_loops(replace(edges, translation=translation), estimate_trajectory(edges)).verdicts
    verdict = verdicts[int(np.flatnonzero(verdicts.group == group)[0])]
    assert not verdict.accepted
    assert verdict.verdict is Verdict.SCATTERED
    assert verdicts.rejected_groups().tolist() == [group]


def test_groups_of_one_event_are_accepted_or_cut_together() -> None:
    """Also where one of them tells of another place."""
    route = synthetic_graph(SyntheticConfig(num_frames=1200, seed=3, false_events=0.2))
    edges = route.graph.edges
    groups = np.unique(edges.group[edges.kind == EdgeKind.LOOP])
    event_of = np.arange(route.graph.num_groups)
    event_of[groups[1::2]] = event_of[groups[: len(groups[1::2]) * 2 : 2]]
    verdicts = verify_loops(edges, estimate_trajectory(edges), event_of_group=event_of).verdicts
    for event in np.unique(event_of[verdicts.group]):
        assert len(np.unique(verdicts.verdict[event_of[verdicts.group] == event])) == 1


@pytest.mark.parametrize("promised", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("scale", ["free", "fixed"])
@pytest.mark.parametrize("false_share", [0.0, 0.2])
def test_drift_of_correlated_windows_is_no_reason_to_cut(
    promised: float, scale: Literal["free", "fixed"], false_share: float
) -> None:
    """Windows that copy each other's errors drift far more than independent ones would; false revisits,
    whose events agree with each other, are told from true ones all the same."""
    drive = drifting_graph(
        DriftConfig(
            num_frames=1500, seed=5, promised=promised, scale_drifts=scale == "free", false_share=false_share
        )
    )
    edges = drive.graph.edges
    verified, _ = verify_graph(edges, topology_of(edges), RefineConfig(scale=scale))
    is_false, accepted = drive.is_false_group[verified.verdicts.group], verified.verdicts.accepted
    assert is_false.any() == (false_share > 0)
    assert accepted[~is_false].mean() >= 0.97
    assert not accepted[is_false].any()


def test_many_loops_of_one_part_say_nothing_about_the_rest() -> None:
    """All true events stay when those of the last revisit are few and far from the others."""
    drive = drifting_graph(DriftConfig(num_frames=2500, seed=2))
    edges = drive.graph.edges
    loops = edges.kind == EdgeKind.LOOP
    anchors = np.unique(edges.frame_t[loops])
    tail = anchors[anchors > np.quantile(anchors, 0.9)][::6]
    keep = ~loops | (edges.frame_t < np.quantile(anchors, 0.5)) | np.isin(edges.frame_t, tail)
    edges = edges.select(keep)
    verified, _ = verify_graph(edges, topology_of(edges), RefineConfig(scale="free"))
    of_tail = np.isin(verified.verdicts.anchor, tail)
    assert of_tail.sum() >= 3
    assert verified.verdicts.accepted.all()


def test_a_large_revisit_that_fails_at_first_is_heard_again() -> None:
    """Odometry drifts much farther than windows promise: only closed revisits tell, and then all fit."""
    drive = drifting_graph(DriftConfig(num_frames=2500, seed=10, promised=0.1))
    edges = drive.graph.edges
    verified, _ = verify_graph(edges, topology_of(edges), RefineConfig(scale="free"))
    assert verified.verdicts.accepted.mean() >= 0.97


def test_a_group_that_is_given_is_not_judged() -> None:
    route = synthetic_graph(SyntheticConfig(num_frames=600, seed=1, false_events=0.5))
    edges = route.graph.edges
    wrong = int(edges.group[(edges.kind == EdgeKind.LOOP) & route.is_false_group[edges.group]][0])
    verdicts = verify_loops(edges, estimate_trajectory(edges), given=np.array([wrong])).verdicts
    assert verdicts[int(np.flatnonzero(verdicts.group == wrong)[0])].verdict is Verdict.GIVEN


def test_verdicts_name_frames_of_the_source() -> None:
    """Frames keep their indices where the graph has gaps."""
    route = synthetic_graph(SyntheticConfig(num_frames=600, false_events=0.0))
    edges = route.graph.edges
    shifted = replace(edges, frame_i=3 * edges.frame_i + 7, frame_t=3 * edges.frame_t + 7)
    odometry = estimate_trajectory(edges)
    plain, moved = (verify_loops(given, odometry).verdicts for given in (edges, shifted))
    assert moved.anchor.tolist() == (3 * plain.anchor + 7).tolist()
    assert moved.match.tolist() == (3 * plain.match + 7).tolist()
    assert moved.accepted.tolist() == plain.accepted.tolist()


@pytest.mark.parametrize(("promised", "expected"), [(1.0, 2.0), (10.0, 1.0), (0.2, 50.0)])
def test_events_count_less_as_far_as_they_scatter_more_than_they_promise(
    promised: float, expected: float
) -> None:
    """One matrix for all edges, odometry's short ones too, promises so many times the noise of the events.

    Edges are compared with one of them, whose own error makes the variance of the differences twice as large.
    """
    config = SyntheticConfig(num_frames=1000, seed=2, window=3, outlier_edges=0.0, false_events=0.0)
    edges = synthetic_graph(config).graph.edges
    length = np.median(np.linalg.norm(edges.translation[edges.kind == EdgeKind.LOOP], axis=1))
    sigma = [np.radians(config.rotation_noise_deg)] * 3 + [config.translation_noise * length] * 3
    information = np.diag((promised * np.array(sigma)) ** -2.0)
    edges = replace(edges, information=np.broadcast_to(information, (len(edges), 6, 6)))
    inflation = verify_loops(edges, estimate_trajectory(edges)).group_inflation
    assert np.median(inflation) == pytest.approx(expected, rel=0.2)


def test_no_loops_no_verdicts() -> None:
    edges = synthetic_graph(SyntheticConfig(num_frames=50)).graph.edges
    odometry = estimate_trajectory(edges)
    verified = verify_loops(edges, odometry)
    assert len(verified.verdicts) == 0
    assert_allclose(verified.closed.frames()[0].rotation, odometry.rotation, atol=1e-12)


def test_bad_config() -> None:
    with pytest.raises(ValueError, match="significance"):
        VerificationConfig(significance=0)
    with pytest.raises(ValueError, match="coarse_frames"):
        VerificationConfig(coarse_frames=0)
