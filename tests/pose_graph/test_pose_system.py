"""Joint refinement: gradient and matrix against finite differences, and against each other."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from anchor3r.pose_graph.edges import Edges
from anchor3r.pose_graph.pose_system import (
    Nodes,
    PoseEdges,
    PoseState,
    apply_matrix,
    assemble,
    assemble_band,
    linearise,
    moved,
    robust_weights,
    squared_errors,
)
from measured_graphs import measure, random_pairs, random_poses

FRAMES, BLOCKS, METRICS = 7, [6, 7], ["isotropic", "information"]


def problem(seed: int, block: int, metric: str) -> tuple[PoseEdges, PoseState, np.ndarray]:
    """Edges, a state somewhat off, and information (m, 2) or (m, 6, 6)."""
    rng = np.random.default_rng(seed)
    poses = random_poses(FRAMES, rng)
    i, t = random_pairs(FRAMES, 12, rng)
    edges: Edges = measure(poses, i, t, rng, rotation_noise_rad=0.1, translation_noise=0.1)
    log_scale = 0.3 * rng.normal(size=FRAMES) * (block == 7)
    state = PoseState.of(poses, log_scale)
    if metric == "isotropic":
        information = rng.uniform(0.5, 2, (len(i), 2))
    else:
        root = rng.normal(size=(len(i), 6, 6))
        information = root @ np.swapaxes(root, 1, 2) + np.eye(6)
    return PoseEdges(i, t, edges.rotation, edges.translation), state, information


def cost(edges: PoseEdges, state: PoseState, information: np.ndarray, width_sq: float) -> float:
    square = np.empty(len(edges.i))
    squared_errors(edges, state, information, square)
    return robust_weights(square, width_sq, np.empty_like(square))


def linearised(
    edges: PoseEdges, state: PoseState, information: np.ndarray, block: int, width_sq: float
) -> tuple[np.ndarray, np.ndarray]:
    square = np.empty(len(edges.i))
    squared_errors(edges, state, information, square)
    weight, metric = np.empty_like(square), np.empty_like(information)
    robust_weights(square, width_sq, weight)
    gradient = np.empty((FRAMES, block))
    linearise(edges, state, information, weight, metric, gradient)
    return metric, gradient


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("width_sq", [np.inf, 2.0])
def test_gradient_is_the_derivative_of_the_cost(block: int, metric: str, width_sq: float) -> None:
    edges, state, information = problem(0, block, metric)
    _, gradient = linearised(edges, state, information, block, width_sq)
    numeric = np.empty_like(gradient)
    for n, k in np.ndindex(gradient.shape):
        step = np.zeros_like(gradient)
        step[n, k] = 1e-6
        up, down = moved(state, step), moved(state, -step)
        difference = cost(edges, up, information, width_sq) - cost(edges, down, information, width_sq)
        numeric[n, k] = difference / 2e-6
    assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-6 * np.abs(numeric).max())


def dense(
    edges: PoseEdges, state: PoseState, metric: np.ndarray, nodes: Nodes, num: int, block: int
) -> np.ndarray:
    """The assembled matrix, every edge in a pair of its own."""
    a, b = nodes.node[edges.i], nodes.node[edges.t]
    diagonal, pairs = np.zeros((num, block, block)), np.zeros((len(a), block, block))
    assemble(edges, state, metric, nodes, np.arange(len(a)), diagonal, pairs)
    out = np.zeros((num, block, num, block))
    for n in range(num):
        out[n, :, n] += diagonal[n]
    for low, high, pair in zip(np.minimum(a, b), np.maximum(a, b), pairs, strict=True):
        out[low, :, high] += pair
        out[high, :, low] += pair.T
    return out.reshape(num * block, num * block)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("metric", METRICS)
def test_matrix_is_the_hessian_where_errors_vanish(block: int, metric: str) -> None:
    edges, state, information = problem(1, block, metric)
    rng = np.random.default_rng(2)
    exact = measure(random_poses(FRAMES, rng), edges.i, edges.t, rng)
    edges = PoseEdges(edges.i, edges.t, exact.rotation, exact.translation)
    state = PoseState.of(random_poses(FRAMES, np.random.default_rng(2)))
    weighted, gradient = linearised(edges, state, information, block, np.inf)
    assert_allclose(gradient, 0, atol=1e-9)
    frames = Nodes(np.arange(FRAMES), np.zeros((FRAMES, 3)))
    matrix = dense(edges, state, weighted, frames, FRAMES, block)
    step = 1e-4 * rng.normal(size=(FRAMES, block))
    predicted = 0.5 * step.ravel() @ matrix @ step.ravel()
    assert_allclose(cost(edges, moved(state, step), information, np.inf), predicted, rtol=1e-2)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("metric", METRICS)
def test_product_and_band_agree_with_the_assembled_matrix(block: int, metric: str) -> None:
    edges, state, information = problem(3, block, metric)
    weighted, _ = linearised(edges, state, information, block, 3.0)
    matrix = dense(edges, state, weighted, Nodes(np.arange(FRAMES), np.zeros((FRAMES, 3))), FRAMES, block)
    x = np.random.default_rng(4).normal(size=(FRAMES, block))
    product = np.zeros_like(x)
    apply_matrix(edges, state, weighted, x, product)
    assert_allclose(product.ravel(), matrix @ x.ravel(), atol=1e-9 * np.abs(matrix).max())

    reach = 2
    band = np.zeros((FRAMES * block, (reach + 1) * block))
    assemble_band(edges, state, weighted, reach, band)
    near = np.abs(np.subtract.outer(np.arange(FRAMES), np.arange(FRAMES))) <= reach
    expected = np.where(np.kron(near, np.ones((block, block))), matrix, 0)
    for column in range(FRAMES * block):
        below = band[column, : FRAMES * block - column]
        assert_allclose(below, expected[column : column + len(below), column][: len(below)], atol=1e-9)


@pytest.mark.parametrize("block", BLOCKS)
def test_nodes_see_the_matrix_through_their_motion(block: int) -> None:
    edges, state, information = problem(5, block, "isotropic")
    node = np.arange(FRAMES) // 3
    offset = state.center - state.center[3 * node]
    motion = np.zeros((FRAMES, block, 3, block))
    for n in range(FRAMES):
        x, y, z = offset[n]
        motion[n, :, node[n]] = np.eye(block)
        motion[n, 3:6, node[n], :3] = [[0, -z, y], [z, 0, -x], [-y, x, 0]]  # γ - ω × o
        if block == 7:
            motion[n, 3:6, node[n], 6] = offset[n]
    motion = motion.reshape(FRAMES * block, 3 * block)
    fine = dense(edges, state, information, Nodes(np.arange(FRAMES), np.zeros((FRAMES, 3))), FRAMES, block)
    coarse = dense(edges, state, information, Nodes(node, offset), 3, block)
    if block == 7:  # edges inside a node see nothing of it only while all its scales are alike
        state = state._replace(log_scale=np.zeros(FRAMES))
        fine = dense(
            edges, state, information, Nodes(np.arange(FRAMES), np.zeros((FRAMES, 3))), FRAMES, block
        )
        coarse = dense(edges, state, information, Nodes(node, offset), 3, block)
    assert_allclose(coarse, motion.T @ fine @ motion, atol=1e-9 * np.abs(fine).max())


def test_information_of_zero_leaves_an_edge_out() -> None:
    edges, state, information = problem(6, 6, "isotropic")
    information[3] = 0
    kept = np.arange(len(edges.i)) != 3
    fewer = PoseEdges(edges.i[kept], edges.t[kept], edges.rotation[kept], edges.translation[kept])
    _, gradient = linearised(edges, state, information, 6, np.inf)
    _, expected = linearised(fewer, state, information[kept], 6, np.inf)
    assert_allclose(gradient, expected, atol=1e-12)
