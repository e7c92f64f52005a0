"""The sparse factorisation against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from anchor3r.pose_graph.linalg import symbolic
from anchor3r.pose_graph.linalg.sparse import Cholesky, analyse, fill_reducing_order
from measured_graphs import Index, random_pairs, window_pairs


def random_blocks(
    num_nodes: int, i: Index, j: Index, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Diagonal and pair blocks of a positive definite matrix on the graph, and the matrix itself, dense."""
    analysis = analyse(num_nodes, i, j)
    diagonal, pairs = np.zeros((num_nodes, size, size)), np.zeros((analysis.num_pairs, size, size))
    dense = np.zeros((num_nodes, size, num_nodes, size))
    for node in range(num_nodes):
        diagonal[node] += 0.1 * np.eye(size)
        dense[node, :, node] += 0.1 * np.eye(size)
    for e in range(len(i)):
        half = rng.normal(size=(2 * size, 2 * size))
        h = half @ half.T
        a, b = h[:size], h[size:]
        diagonal[i[e]] += a[:, :size]
        diagonal[j[e]] += b[:, size:]
        pairs[analysis.slot[e]] += a[:, size:] if i[e] < j[e] else b[:, :size]
        dense[i[e], :, i[e]] += a[:, :size]
        dense[j[e], :, j[e]] += b[:, size:]
        dense[i[e], :, j[e]] += a[:, size:]
        dense[j[e], :, i[e]] += b[:, :size]
    return diagonal, pairs, dense.reshape(num_nodes * size, num_nodes * size)


def check_against_dense(num_nodes: int, i: Index, j: Index, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    diagonal, pairs, dense = random_blocks(num_nodes, i, j, size, rng)
    cholesky = Cholesky(analyse(num_nodes, i, j), size)
    assert cholesky.factorise(diagonal, pairs)
    rhs = rng.normal(size=(num_nodes, size, 3))
    solution = cholesky.solve(rhs).reshape(-1, 3)
    residual = dense @ solution - rhs.reshape(-1, 3)
    assert np.abs(residual).max() < 1e-10 * np.abs(dense).max() * np.abs(solution).max() + 1e-12
    inverse = np.linalg.inv(dense).reshape(num_nodes, size, num_nodes, size)
    blocks = np.stack([inverse[node, :, node] for node in range(num_nodes)])
    assert_allclose(cholesky.inverse_diagonal(), blocks, atol=1e-8 * np.abs(blocks).max())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 60), st.integers(0, 90), st.sampled_from([1, 2, 3, 6]), st.integers(0, 2**32 - 1))
def test_solves_random_graphs(num_nodes: int, extra: int, size: int, seed: int) -> None:
    i, j = random_pairs(num_nodes, extra, np.random.default_rng(seed))
    check_against_dense(num_nodes, i, j, size, seed)


@pytest.mark.parametrize(("num_nodes", "size"), [(260, 1), (131, 2)])
def test_solves_a_graph_that_is_one_large_front(num_nodes: int, size: int) -> None:
    i, j = np.triu_indices(num_nodes, 1)
    check_against_dense(num_nodes, i, j, size, 0)


def test_solves_a_long_band_with_a_dense_separator() -> None:
    i, j = window_pairs(400, 6)
    crossings = range(0, 400, 4)
    loops = [(a, b) for a in crossings for b in crossings if a < b and (a + b) % 3 == 0]
    i = np.concatenate([i, [a for a, _ in loops]])
    j = np.concatenate([j, [b for _, b in loops]])
    check_against_dense(400, i, j, 1, 3)


def test_solves_several_components_and_lonely_nodes() -> None:
    i, j = np.array([0, 1, 5, 6, 40, 41]), np.array([1, 2, 6, 5, 41, 42])
    check_against_dense(60, i, j, 2, 4)


def test_new_values_on_the_same_graph() -> None:
    i, j = window_pairs(80, 5)
    cholesky = Cholesky(analyse(80, i, j), 2)
    for seed in (1, 2, 3):
        rng = np.random.default_rng(seed)
        diagonal, pairs, dense = random_blocks(80, i, j, 2, rng)
        assert cholesky.factorise(diagonal, pairs)
        rhs = rng.normal(size=(80, 2, 1))
        assert_allclose(
            cholesky.solve(rhs).ravel(), np.linalg.solve(dense, rhs.ravel()), rtol=1e-6, atol=1e-8
        )


def test_says_when_a_matrix_is_not_positive_definite() -> None:
    i, j = window_pairs(50, 4)
    analysis = analyse(50, i, j)
    cholesky = Cholesky(analysis)
    assert cholesky.factorise(np.full(50, 10.0), np.full(analysis.num_pairs, -1.0))
    assert not cholesky.factorise(np.full(50, 0.1), np.full(analysis.num_pairs, -1.0))
    assert not cholesky.factorise(np.full(50, np.nan), np.full(analysis.num_pairs, -1.0))


def grid(size: int) -> tuple[int, Index, Index]:
    node = np.arange(size * size).reshape(size, size)
    i = np.concatenate([node[:, :-1].ravel(), node[:-1].ravel()])
    j = np.concatenate([node[:, 1:].ravel(), node[1:].ravel()])
    return size * size, i, j


@pytest.mark.parametrize("with_metis", [True, False])
def test_the_order_is_a_permutation_that_saves_fill(
    with_metis: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_metis:
        monkeypatch.setattr(symbolic, "_HAS_METIS", False)
    num_nodes, i, j = grid(40)
    order = fill_reducing_order(num_nodes, i, j)
    assert_array_equal(np.sort(order), np.arange(num_nodes))
    natural = analyse(num_nodes, i, j, np.arange(num_nodes))
    assert analyse(num_nodes, i, j, order).panel_start[-1] < 0.7 * natural.panel_start[-1]


@pytest.mark.parametrize(("i", "j"), [([0], [0]), ([0], [5]), ([-1], [2])])
def test_refuses_edges_that_are_none(i: list[int], j: list[int]) -> None:
    with pytest.raises(ValueError, match="two different nodes"):
        analyse(5, np.array(i), np.array(j))
