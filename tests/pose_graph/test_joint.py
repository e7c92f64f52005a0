"""Joint refinement: known answers, a dense reference, invariances, degenerate graphs, loops, scales."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import least_squares

from anchor3r.geometry import SE3, rotation_angle, so3_exp, umeyama
from anchor3r.io.g2o import read_g2o
from anchor3r.pose_graph.edges import EdgeKind, Edges, MotionGraph
from anchor3r.pose_graph.grouping import infer_groups
from anchor3r.pose_graph.joint import RefineConfig, refine_poses
from anchor3r.pose_graph.online import estimate_trajectory
from anchor3r.pose_graph.placement import Knowledge
from anchor3r.pose_graph.priors import Distances
from anchor3r.pose_graph.report import Status
from generated_graphs import SyntheticConfig, SyntheticGraph, synthetic_graph
from measured_graphs import measure, random_pairs, random_poses, window_pairs

LEAST_SQUARES = RefineConfig(loss="none")


def perturbed(poses: SE3, amount: float, rng: np.random.Generator) -> SE3:
    """Off by so much everywhere but at the first frame."""
    twist = amount * rng.normal(size=(len(poses), 6))
    twist[0] = 0
    return SE3.exp(twist) @ poses


def with_information(edges: Edges, rng: np.random.Generator) -> Edges:
    root = rng.normal(size=(len(edges), 6, 6))
    return replace(edges, information=root @ np.swapaxes(root, 1, 2) + 3 * np.eye(6))


def error_m(poses: SE3, route: SyntheticGraph) -> float:
    truth, center = route.camera_from_world.center(), poses.center()
    return float(np.sqrt(np.mean((umeyama(center, truth).apply(center) - truth) ** 2) * 3))


@pytest.mark.parametrize("config", [RefineConfig(), LEAST_SQUARES, RefineConfig(scale="free")])
def test_exact_measurements_are_met_exactly(config: RefineConfig) -> None:
    rng = np.random.default_rng(0)
    poses = random_poses(30, rng)
    graph = MotionGraph(measure(poses, *window_pairs(30, 5), rng))
    refined, report = refine_poses(graph, perturbed(poses, 0.02, rng), config)
    assert report.cost < 1e-3
    assert_allclose(refined.camera_from_world.matrix(), poses.matrix(), atol=1e-4)
    assert_allclose(refined.log_scale, 0, atol=1e-4)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(2, 7), st.integers(0, 8), st.integers(0, 2**32 - 1))
def test_least_squares_agrees_with_a_dense_solver(frames: int, extra: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    poses = random_poses(frames, rng)
    i, t = random_pairs(frames, extra, rng)
    edges = with_information(measure(poses, i, t, rng, rotation_noise_rad=0.05, translation_noise=0.05), rng)
    root = np.linalg.cholesky(edges.information)
    measured = SE3(edges.rotation, edges.translation)

    def residuals(x: np.ndarray) -> np.ndarray:
        moved = SE3.exp(np.concatenate([np.zeros((1, 6)), x.reshape(-1, 6)])) @ poses
        twist = (measured.inverse() @ moved[i] @ moved[t].inverse()).log()
        return np.einsum("mji,mj->mi", root, twist).ravel()

    dense = least_squares(residuals, np.zeros(6 * (frames - 1)), xtol=1e-14, ftol=1e-14, gtol=1e-14)
    graph = MotionGraph(edges)
    _, report = refine_poses(graph, perturbed(poses, 0.05, rng), LEAST_SQUARES)
    assert report.status is Status.CONVERGED
    assert report.cost == pytest.approx(dense.cost, rel=1e-6, abs=1e-12)


def noisy_graph(seed: int) -> tuple[SE3, Edges]:
    rng = np.random.default_rng(seed)
    poses = random_poses(25, rng)
    return poses, measure(poses, *window_pairs(25, 6), rng, rotation_noise_rad=0.01, translation_noise=0.02)


def test_order_and_duplicates_of_edges_do_not_matter() -> None:
    poses, edges = noisy_graph(1)
    shuffled = edges.select(np.random.default_rng(2).permutation(len(edges)))
    twice = edges.select(np.tile(np.arange(len(edges)), 2))
    answers = [refine_poses(MotionGraph(e), poses)[0].camera_from_world for e in (edges, shuffled, twice)]
    for answer in answers[1:]:
        assert_allclose(answer.matrix(), answers[0].matrix(), atol=1e-4)


def test_gauge_is_the_first_frame_of_the_start() -> None:
    poses, edges = noisy_graph(3)
    graph = MotionGraph(edges)
    elsewhere = SE3(so3_exp([0.3, -1.0, 0.5]), np.array([4.0, -2.0, 7.0]))
    here = refine_poses(graph, poses)[0].camera_from_world
    there = refine_poses(graph, poses @ elsewhere)[0].camera_from_world
    assert_allclose(here[0].matrix(), poses[0].matrix(), atol=1e-9)
    assert_allclose(there[0].matrix(), (poses[0] @ elsewhere).matrix(), atol=1e-9)
    assert_allclose((there @ elsewhere.inverse()).matrix(), here.matrix(), atol=1e-5)


def test_weights_pull() -> None:
    """Two measurements of one edge: the answer is the weighted mean."""
    turn = np.stack([so3_exp([0.0, 0.0, 0.0]), so3_exp([0.0, 0.0, 0.01])])
    graph = MotionGraph(Edges.of([0, 0], 1, turn, [1.0, 0, 0], weight=[1.0, 3.0]))
    refined, _ = refine_poses(graph, SE3.identity(2), LEAST_SQUARES)
    assert_allclose(rotation_angle(refined.camera_from_world.rotation[1]), 0.0075, rtol=1e-6)


def test_outliers_do_not_pull() -> None:
    rng = np.random.default_rng(4)
    poses = random_poses(40, rng)
    edges = measure(
        poses, *window_pairs(40, 8), rng, rotation_noise_rad=0.002, translation_noise=0.01, outliers=0.15
    )
    refined, _ = refine_poses(MotionGraph(edges), perturbed(poses, 0.03, rng))
    worst = rotation_angle(refined.camera_from_world.rotation @ np.swapaxes(poses.rotation, 1, 2)).max()
    assert worst < np.radians(1.5)


def test_a_frame_of_outliers_leaves_the_others_alone() -> None:
    poses, edges = noisy_graph(5)
    rng = np.random.default_rng(6)
    lost = (edges.frame_i == 12) | (edges.frame_t == 12)
    wild = so3_exp(2 * rng.normal(size=(int(lost.sum()), 3)))
    rotation = edges.rotation.copy()
    rotation[lost] = wild
    graph = MotionGraph(replace(edges, rotation=rotation))
    refined, report = refine_poses(graph, poses)
    assert np.isfinite(refined.camera_from_world.matrix()).all()
    assert report.status is not Status.STALLED
    others = np.arange(len(poses)) != 12
    turned = refined.camera_from_world.rotation @ np.swapaxes(poses.rotation, 1, 2)
    assert rotation_angle(turned[others]).max() < np.radians(3)


@pytest.mark.parametrize("scale", ["fixed", "free"])
def test_smallest_graphs(scale: str) -> None:
    config = RefineConfig(scale=scale)  # type: ignore[arg-type]
    empty, report = refine_poses(MotionGraph(Edges.of([], 0, np.eye(3), 0.0)), SE3.identity(0), config)
    assert len(empty.camera_from_world) == 0
    assert report.status is Status.TRIVIAL
    graph = MotionGraph(Edges.of([0], 1, so3_exp([0.1, 0, 0]), [1.0, 2, 3]))
    refined, report = refine_poses(graph, SE3.identity(2), config)
    assert report.status is Status.CONVERGED
    relative = refined.camera_from_world[0] @ refined.camera_from_world[1].inverse()
    assert_allclose(relative.translation, [1, 2, 3], atol=1e-6)


def test_broken_chain_is_two_components() -> None:
    poses, edges = noisy_graph(7)
    inside = (edges.frame_i < 12) == (edges.frame_t < 12)
    graph = MotionGraph(edges.select(inside))
    refined, report = refine_poses(graph, poses)
    assert report.num_components == 2
    assert np.isfinite(refined.camera_from_world.matrix()).all()
    for first in (0, 12):
        assert_allclose(refined.camera_from_world[first].matrix(), poses[first].matrix(), atol=1e-9)


def test_wrong_number_of_poses() -> None:
    _, edges = noisy_graph(8)
    with pytest.raises(ValueError, match="24 initial poses for 25 frames"):
        refine_poses(MotionGraph(edges), SE3.identity(24))


@pytest.mark.parametrize("bad", [{"loss": "l1"}, {"scale": "some"}, {"width": 0.0}, {"max_iterations": 0}])
def test_bad_config(bad: dict) -> None:
    with pytest.raises(ValueError, match="RefineConfig"):
        RefineConfig(**bad)


@pytest.fixture(scope="module")
def route() -> SyntheticGraph:
    return synthetic_graph(SyntheticConfig(num_frames=1200))


def test_false_loops_are_cut_and_true_ones_used(route: SyntheticGraph) -> None:
    odometry = estimate_trajectory(route.graph.edges)
    refined, report = refine_poses(route.graph, odometry)
    assert refined.events is not None
    is_false = route.is_false_group[refined.events.group]
    assert is_false.sum() == 5
    assert not refined.events.accepted[is_false].any()
    assert refined.events.accepted[~is_false].mean() > 0.99
    assert report.details["events_cut"] == (~refined.events.accepted).sum()
    assert error_m(odometry, route) > 0.5
    assert error_m(refined.camera_from_world, route) < 0.06
    assert report.details["rotation_noise_deg"]["window"] == pytest.approx(0.2, rel=0.1)
    assert report.details["translation_noise"]["loop"] == pytest.approx(0.02, rel=0.15)


def test_exact_and_iterative_steps_lead_to_the_same_map(route: SyntheticGraph) -> None:
    odometry = estimate_trajectory(route.graph.edges)
    exact = RefineConfig(solver="direct", relative_tolerance=1e-8)
    iterative = RefineConfig(solver="iterative", relative_tolerance=1e-8, inner_tolerance=1e-3)
    a, b = (refine_poses(route.graph, odometry, c)[0].camera_from_world for c in (exact, iterative))
    assert_allclose(a.center(), b.center(), atol=2e-3)


def test_scales_that_drift_are_followed() -> None:
    drifting = synthetic_graph(SyntheticConfig(num_frames=1200, scale_drift=5.0))
    odometry = estimate_trajectory(drifting.graph.edges)
    refined, _ = refine_poses(drifting.graph, odometry, RefineConfig(scale="free"))
    assert error_m(odometry, drifting) > 10
    assert error_m(refined.camera_from_world, drifting) < 0.09
    assert np.std(refined.log_scale - drifting.log_scale) < 0.005
    assert refined.log_scale[0] == 0


def test_speeds_hold_the_scale_all_along_though_windows_agree_on_another() -> None:
    """Windows whose scales wander smoothly agree with one another far better than with the truth."""
    rng = np.random.default_rng(5)
    route = synthetic_graph(SyntheticConfig(num_frames=600, seed=3))
    edges = route.graph.edges.select(route.graph.edges.kind == EdgeKind.WINDOW)
    truth = route.camera_from_world.center()
    wandering = 0.05 * np.sin(np.arange(600) / 40)
    stretched = np.exp(wandering)[edges.frame_t, None] * edges.translation
    graph = MotionGraph(replace(edges, translation=stretched))
    rows = np.stack([np.arange(599), np.arange(1, 600)], 1)
    way = np.linalg.norm(np.diff(truth, axis=0), axis=1)
    rows, way = rows[way > 0], way[way > 0]
    speeds = Distances(
        rows=rows,
        length=way * (1 + 0.03 * rng.normal(size=len(way))),
        information=(0.03 * way)[:, None, None] ** -2.0,
    )
    start = estimate_trajectory(graph.edges)
    config = RefineConfig(scale="free")
    refined, _ = refine_poses(graph, start, config, known=Knowledge(kinds=(speeds,)))
    center = refined.camera_from_world.center()
    for first in range(0, 500, 50):
        own, true = (np.linalg.norm(np.diff(c[first : first + 51], axis=0), axis=1) for c in (center, truth))
        assert own.sum() == pytest.approx(true.sum(), rel=0.02)


def test_free_scales_cost_little_where_there_is_no_drift(route: SyntheticGraph) -> None:
    odometry = estimate_trajectory(route.graph.edges)
    errors = [
        error_m(refine_poses(route.graph, odometry, RefineConfig(scale=scale))[0].camera_from_world, route)  # type: ignore[arg-type]
        for scale in ("fixed", "free")
    ]
    assert errors[1] < 1.05 * errors[0]


@pytest.mark.parametrize(
    ("name", "chi_square"),
    [("smallGrid3D", 1035.8507), ("parking-garage", 1.26838), ("sphere2500", 1351.4019)],
)
def test_public_graphs_reach_the_known_optimum(shared: Path, name: str, chi_square: float) -> None:
    """The optima are what GTSAM's Levenberg–Marquardt reaches on these files, from either start."""
    file = read_g2o(shared / "graphs" / f"{name}.g2o")
    assert file.camera_from_world is not None
    refined, report = refine_poses(file.graph, file.camera_from_world, LEAST_SQUARES)
    assert report.status is Status.CONVERGED
    assert 2 * report.cost <= 1.001 * chi_square
    twist = (
        SE3(file.graph.edges.rotation, file.graph.edges.translation).inverse()
        @ refined.camera_from_world[file.graph.edges.frame_i]
        @ refined.camera_from_world[file.graph.edges.frame_t].inverse()
    ).log()
    assert np.einsum("mi,mij,mj->", twist, file.graph.edges.information, twist) == pytest.approx(
        2 * report.cost, rel=1e-6
    )


def test_robust_loss_on_a_public_graph_without_outliers(shared: Path) -> None:
    file = read_g2o(shared / "graphs" / "sphere2500.g2o")
    assert file.camera_from_world is not None
    assert np.any(file.graph.edges.kind == EdgeKind.LOOP)
    refined, _ = refine_poses(file.graph, file.camera_from_world)
    plain, _ = refine_poses(file.graph, file.camera_from_world, LEAST_SQUARES)
    # Its loops are single edges, which nothing verifies: the loss must leave all of them their weight.
    offset = refined.camera_from_world.center() - plain.camera_from_world.center()
    size = np.ptp(plain.camera_from_world.center(), axis=0).max()
    assert np.abs(offset).max() < 0.01 * size


@pytest.mark.parametrize("name", ["smallGrid3D", "parking-garage", "sphere2500"])
def test_robust_loss_costs_little_on_public_graphs_without_outliers(shared: Path, name: str) -> None:
    """parking-garage promises far more noise than it has, which is no reason to trust its loops less."""
    file = read_g2o(shared / "graphs" / f"{name}.g2o")
    edges = file.graph.edges
    cost = []
    for config in (LEAST_SQUARES, RefineConfig()):
        poses = refine_poses(file.graph, file.camera_from_world, config)[0].camera_from_world
        measured = SE3(edges.rotation, edges.translation)
        twist = (measured.inverse() @ poses[edges.frame_i] @ poses[edges.frame_t].inverse()).log()
        cost.append(np.einsum("mi,mij,mj->", twist, edges.information, twist))
    assert cost[0] <= cost[1] <= 1.05 * cost[0]


def test_loops_that_promise_little_and_keep_it_are_not_lost() -> None:
    """Rings measured against the one before with errors of 17°, as in the public sphere of large noise."""
    rng = np.random.default_rng(5)
    count, ring, sigma = 400, 20, np.repeat([0.3, 0.7], 3)
    k = np.arange(count)
    around, height = 2 * np.pi * k / ring, np.pi * (k + 10) / (count + 20)
    center = 20 * np.stack(
        [np.sin(height) * np.cos(around), np.sin(height) * np.sin(around), np.cos(height)], 1
    )
    poses = SE3.from_center(so3_exp(np.cumsum(0.1 * rng.standard_normal((count, 3)), 0)), center)
    steps = [1, ring - 1, ring, ring + 1]
    i = np.concatenate([np.arange(count - step) for step in steps])
    t = np.concatenate([np.arange(step, count) for step in steps])
    error = sigma * rng.standard_normal((len(i), 6))
    measured = poses[i] @ poses[t].inverse() @ SE3(so3_exp(error[:, :3]), error[:, 3:])
    grouping = infer_groups(i, t)
    edges = Edges.of(
        i, t, measured.rotation, measured.translation, kind=grouping.kind, group=grouping.group,
        information=np.diag(sigma**-2.0),
    )  # fmt: skip
    graph = MotionGraph(edges)
    cost = []
    for config in (LEAST_SQUARES, RefineConfig()):
        found = refine_poses(graph, estimate_trajectory(edges), config)[0].camera_from_world
        twist = (measured.inverse() @ found[i] @ found[t].inverse()).log()
        cost.append(np.einsum("mi,mij,mj->", twist, edges.information, twist))
    assert cost[1] <= 1.05 * cost[0]


def test_a_cost_that_is_not_finite_never_counts_as_converged() -> None:
    """Matrices so large that their squares overflow."""
    poses, edges = noisy_graph(9)
    huge = replace(edges, information=np.tile(1e308 * np.eye(6), (len(edges), 1, 1)))
    far = SE3(poses.rotation, 1e3 * poses.translation)
    with np.errstate(over="ignore", invalid="ignore"):
        _, report = refine_poses(MotionGraph(huge), far)
    assert not np.isfinite(report.cost)
    assert report.status is Status.STALLED
