"""The start from nothing: exact graphs exactly, noisy ones nearly, any order, components."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from anchor3r.geometry import rotation_angle
from anchor3r.pose_graph.averaging.chordal import chordal_initialisation
from anchor3r.pose_graph.edges import Edges, MotionGraph
from measured_graphs import measure, random_pairs, random_poses, window_pairs


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(2, 40), st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_exact_graphs_are_met_exactly(frames: int, extra: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    poses = random_poses(frames, rng)
    graph = MotionGraph(measure(poses, *random_pairs(frames, extra, rng), rng))
    found = chordal_initialisation(graph)
    assert_allclose(found.rotation, poses.rotation, atol=1e-7)
    assert_allclose(found.translation, poses.translation, atol=1e-6)


def test_noise_is_averaged() -> None:
    rng = np.random.default_rng(1)
    poses = random_poses(60, rng)
    edges = measure(poses, *window_pairs(60, 10), rng, rotation_noise_rad=0.02, translation_noise=0.02)
    found = chordal_initialisation(MotionGraph(edges))
    angle = rotation_angle(found.rotation @ np.swapaxes(poses.rotation, 1, 2))
    assert 0 < angle.max() < 0.05


def test_information_outweighs() -> None:
    """Of two contradicting edges the one with the larger information is followed."""
    rng = np.random.default_rng(2)
    poses = random_poses(2, rng)
    true = poses[0] @ poses[1].inverse()
    rotation, translation = np.stack([true.rotation, np.eye(3)]), np.stack([true.translation, np.zeros(3)])
    edges = Edges.of(
        [0, 0], 1, rotation, translation, group=[0, 1], information=np.stack([1e8 * np.eye(6), np.eye(6)])
    )
    found = chordal_initialisation(MotionGraph(edges))
    assert_allclose(found.matrix(), poses.matrix(), atol=1e-5)


def test_components_start_at_the_identity() -> None:
    rng = np.random.default_rng(3)
    poses = random_poses(20, rng)
    edges = measure(poses, *window_pairs(20, 4), rng)
    graph = MotionGraph(edges.select((edges.frame_i < 10) == (edges.frame_t < 10)))
    found = chordal_initialisation(graph)
    for first in (0, 10):
        assert_allclose(found[first].matrix(), np.eye(4), atol=1e-9)
    relative = poses[10:] @ poses[10].inverse()
    assert_allclose(found[10:].matrix(), relative.matrix(), atol=1e-6)
    assert len(chordal_initialisation(MotionGraph(Edges.of([], 0, np.eye(3), 0.0)))) == 0
