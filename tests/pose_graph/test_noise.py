"""Measured noise: the right size, by kind, in spite of outliers; and what becomes of information matrices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from anchor3r.pose_graph.edges import EdgeKind
from anchor3r.pose_graph.noise import ErrorModelEstimator, NoiseModel
from anchor3r.pose_graph.pose_system import PoseEdges, PoseState
from generated_graphs import SyntheticConfig, synthetic_graph

ROUTE = synthetic_graph(SyntheticConfig(num_frames=1500, rotation_bias_deg=0.0))
EDGES = ROUTE.graph.edges
POSE_EDGES = PoseEdges(EDGES.frame_i, EDGES.frame_t, EDGES.rotation, EDGES.translation)
TRUTH = PoseState.of(ROUTE.camera_from_world)
ALL = np.ones(len(EDGES), bool)


@pytest.mark.parametrize("kind", [EdgeKind.WINDOW, EdgeKind.LOOP])
def test_noise_is_found_beneath_outliers(kind: EdgeKind) -> None:
    model = NoiseModel(EDGES, POSE_EDGES, ALL)
    assert model.measure(TRUTH)
    assert not model.measure(TRUTH)
    assert np.degrees(model.rotation_rad[kind]) == pytest.approx(0.2, rel=0.1)
    assert model.translation[kind] == pytest.approx(0.02, rel=0.1)


def test_a_chain_cannot_tell_its_own_noise() -> None:
    """At a state that meets all odometry exactly, noise is what the loops miss by, not nothing."""
    chain = (EDGES.kind == EdgeKind.LOOP) | (EDGES.frame_t - EDGES.frame_i == 1)
    edges = EDGES.select(chain)
    columns = PoseEdges(edges.frame_i, edges.frame_t, edges.rotation, edges.translation)
    exact = edges.kind == EdgeKind.WINDOW
    measured = ROUTE.camera_from_world[edges.frame_i] @ ROUTE.camera_from_world[edges.frame_t].inverse()
    columns.rotation[exact], columns.translation[exact] = (
        measured.rotation[exact],
        measured.translation[exact],
    )
    model = NoiseModel(edges, columns, np.ones(len(edges), bool))
    assert model.measure(TRUTH)
    assert np.degrees(model.rotation_rad[EdgeKind.WINDOW]) > 0.05
    assert_allclose(np.unique(model.information()[:, 0]).size, 1)


def test_information_is_relative_to_length_and_weight() -> None:
    weight = np.where(np.arange(len(EDGES)) == 7, 4.0, 1.0)
    used = ALL.copy()
    used[3] = False
    model = NoiseModel(replace(EDGES, weight=weight), POSE_EDGES, used)
    model.measure(TRUTH)
    information = model.information()
    assert_allclose(information[3], 0)
    assert_allclose(information[7, 0], 4 * information[8, 0])
    length_sq = np.sum(EDGES.translation**2, -1)
    long, longer = 44, 36  # edges of one window, over one frame and over nine
    assert EDGES.group[long] == EDGES.group[longer]
    assert information[long, 1] > 20 * information[longer, 1]
    assert information[:, 1].max() < 4 / (0.015**2 * 0.01 * np.median(length_sq))  # never trusted beyond


def test_given_information_is_kept_and_inflated_while_errors_are_larger() -> None:
    m = len(EDGES)
    given = np.tile(np.diag([1e5] * 3 + [1e2] * 3), (m, 1, 1))
    given[::2] = np.nan
    estimator = ErrorModelEstimator(replace(EDGES, information=given), POSE_EDGES, ALL, width=7.0)
    errors = estimator.estimate(TRUTH)
    assert errors.information.shape == (m, 6, 6)
    assert_allclose(errors.information[1], given[1])
    assert errors.information[0, 0, 0] == pytest.approx(np.radians(0.2) ** -2, rel=0.2)
    assert estimator(TRUTH) is None
    off = TRUTH._replace(center=TRUTH.center * 1.5)
    inflated = estimator(off)
    assert inflated is not None
    assert inflated.width_sq > 2 * errors.width_sq


def test_plain_squares_are_estimated_once() -> None:
    estimator = ErrorModelEstimator(EDGES, POSE_EDGES, ALL, width=np.inf)
    assert np.isinf(estimator.estimate(TRUTH).width_sq)
    assert estimator(TRUTH._replace(center=2 * TRUTH.center)) is None
