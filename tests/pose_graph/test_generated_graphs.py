"""The generator: what it promises about noise, outliers, loops, false events and scales; repeatable."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from anchor3r.geometry import rotation_angle
from anchor3r.pose_graph.edges import EdgeKind
from generated_graphs import SyntheticConfig, SyntheticGraph, synthetic_graph


@pytest.fixture(scope="module")
def route() -> SyntheticGraph:
    return synthetic_graph(SyntheticConfig(num_frames=4000))


def errors(route: SyntheticGraph) -> tuple[np.ndarray, np.ndarray]:
    """Angle in degrees and distance over length, of every edge."""
    e = route.graph.edges
    truth = route.camera_from_world[e.frame_i] @ route.camera_from_world[e.frame_t].inverse()
    angle = np.degrees(rotation_angle(np.swapaxes(truth.rotation, 1, 2) @ e.rotation))
    length = np.linalg.norm(truth.translation, axis=-1)
    moved = e.translation * np.exp(route.log_scale[e.frame_t])[:, None]
    return angle, np.linalg.norm(moved - truth.translation, axis=-1) / length


def test_same_seed_same_graph() -> None:
    a, b, c = (synthetic_graph(SyntheticConfig(num_frames=300, seed=seed)).graph.edges for seed in (1, 1, 2))
    assert_array_equal(a.rotation, b.rotation)
    assert not np.array_equal(a.rotation[:500], c.rotation[:500])


def test_windows(route: SyntheticGraph) -> None:
    e = route.graph.edges
    window = e.kind == EdgeKind.WINDOW
    gap = e.frame_t[window] - e.frame_i[window]
    assert gap.min() == 1
    assert gap.max() == 9
    assert len(np.unique(e.group[window])) == 3999
    assert np.bincount(e.frame_t[window])[20:].tolist() == [9] * 3980
    steps = np.linalg.norm(np.diff(route.camera_from_world.center(), axis=0), axis=-1)
    assert_allclose(np.median(steps), 1.0, atol=0.05)


def test_noise_and_outliers(route: SyntheticGraph) -> None:
    angle, distance = errors(route)
    honest = ~route.is_false_group[route.graph.edges.group]
    assert np.median(angle[honest]) == pytest.approx(0.2 * 1.538, rel=0.1)
    assert np.median(distance[honest]) == pytest.approx(0.02 * 1.538, rel=0.1)
    assert np.mean(angle[honest] > 3) == pytest.approx(0.04, abs=0.01)


def test_loops_revisit(route: SyntheticGraph) -> None:
    e = route.graph.edges
    loop = e.kind == EdgeKind.LOOP
    assert np.all(e.frame_t[loop] % 5 == 0)
    groups, size = np.unique(e.group[loop], return_counts=True)
    assert np.median(size) == 9
    anchors = e.frame_t[np.searchsorted(e.group, groups)]
    assert np.bincount(anchors).max() == 3
    center = route.camera_from_world.center()
    true = loop & ~route.is_false_group[e.group]
    assert np.all(e.frame_t[true] - e.frame_i[true] > 90)
    assert (
        np.linalg.norm(center[e.frame_t[true]] - center[e.frame_i[true]], axis=-1).max() < 15
    )  # radius and half an event


def test_false_events_agree_with_themselves() -> None:
    route = synthetic_graph(SyntheticConfig(num_frames=4000, outlier_edges=0.0, false_events=0.1))
    e = route.graph.edges
    count = route.is_false_group[np.unique(e.group[e.kind == EdgeKind.LOOP])].mean()
    assert count == pytest.approx(0.1, abs=0.03)
    angle, distance = errors(route)
    for group in np.flatnonzero(route.is_false_group)[:20]:
        edges = e.select(e.group == group)
        # Where each edge puts the anchor: the same place, and not the true one.
        poses = route.camera_from_world[edges.frame_i]
        center = poses.center() + np.einsum("nji,nj->ni", poses.rotation, edges.translation)
        assert np.linalg.norm(center - center.mean(0), axis=-1).max() < 2
        assert (angle[e.group == group] > 3).all() or (distance[e.group == group] > 0.3).all()


def test_units() -> None:
    fixed, drifting = (
        synthetic_graph(SyntheticConfig(num_frames=500, scale_drift=drift)) for drift in (1.0, 4.0)
    )
    assert_allclose(np.exp(drifting.log_scale[[0, -1]]), [1, 4])
    ratio = fixed.graph.edges.translation[:, 0] / drifting.graph.edges.translation[:, 0]
    assert_allclose(ratio, np.exp(drifting.log_scale[drifting.graph.edges.frame_t]), rtol=1e-9)


@pytest.mark.parametrize("frames", [1, 2, 15])
def test_short_routes(frames: int) -> None:
    route = synthetic_graph(SyntheticConfig(num_frames=frames))
    assert len(route.camera_from_world) == frames
    assert len(route.graph) == sum(min(t, 9) for t in range(frames))


def test_bad_config() -> None:
    with pytest.raises(ValueError, match="num_frames"):
        SyntheticConfig(num_frames=0)
    with pytest.raises(ValueError, match="outlier_edges"):
        SyntheticConfig(num_frames=5, outlier_edges=1.5)
