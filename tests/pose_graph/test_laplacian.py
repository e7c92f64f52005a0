"""Weighted differences against dense least squares."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from anchor3r.pose_graph.linalg.laplacian import Laplacian
from anchor3r.pose_graph.topology import topology_of
from measured_graphs import measure, random_pairs, random_poses


def test_solves_weighted_least_squares_in_every_component() -> None:
    rng = np.random.default_rng(0)
    i, t = random_pairs(25, 30, rng)
    inside = (i < 10) == (t < 10)
    i, t = i[inside], t[inside]
    topology = topology_of(measure(random_poses(25, rng), i, t, rng), np.arange(25))
    weight, b = rng.uniform(0, 2, len(i)), rng.normal(size=(len(i), 2))
    x = Laplacian(topology).least_squares(weight, b)
    assert x is not None
    incidence = np.zeros((len(i), 25))
    incidence[np.arange(len(i)), i] += 1
    incidence[np.arange(len(i)), t] -= 1
    free = np.setdiff1d(np.arange(25), topology.gauge)
    root = np.sqrt(weight)[:, None]
    expected = np.linalg.lstsq(root * incidence[:, free], root * b)[0]
    assert topology.num_components >= 2
    assert_allclose(x[free], expected, atol=1e-9)
    assert_allclose(x[topology.gauge], 0, atol=0)


def test_says_when_weights_make_no_system() -> None:
    rng = np.random.default_rng(1)
    edges = measure(random_poses(3, rng), np.array([0, 1]), np.array([1, 2]), rng)
    laplacian = Laplacian(topology_of(edges))
    assert laplacian.least_squares(np.array([1.0, np.nan]), np.zeros((2, 1))) is None
    assert laplacian.least_squares(np.array([1.0, -5.0]), np.zeros((2, 1))) is None
