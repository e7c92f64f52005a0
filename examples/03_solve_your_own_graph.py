"""Solve a motion graph of your own: relative poses in, camera poses out, wrong loops found and left out.

python examples/03_solve_your_own_graph.py [GRAPH.npz]

A robot drives two rounds. Odometry relates each place to the few before it, with noise that adds up; a place
that is seen again in the second round gives a loop. One loop in five is wrong. With a file name the graph is
also written there, and `anchor3r solve GRAPH.npz` solves it on the command line.
"""

import sys
from pathlib import Path

import numpy as np

import anchor3r
from anchor3r.geometry import SE3, so3_exp
from anchor3r.io.graph_files import save_graph
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.joint import refine_poses
from anchor3r.pose_graph.online import estimate_trajectory

NUM_PLACES, ROUND, WINDOW = 240, 120, 4
RADIUS_M, NOISE_RAD, NOISE_M = 20.0, 0.01, 0.05


def true_poses() -> SE3:
    """camera_from_world (n,) of two rounds on a circle, looking ahead."""
    angle = 2 * np.pi * np.arange(NUM_PLACES) / ROUND
    center = RADIUS_M * np.stack([1 - np.cos(angle), np.zeros(NUM_PLACES), np.sin(angle)], 1)
    rotation = so3_exp(np.outer(-angle, [0, 1, 0]))
    return SE3.from_center(rotation, center)


def build_graph(poses: SE3, rng: np.random.Generator) -> tuple[anchor3r.MotionGraph, list[int]]:
    """The graph, and which of its groups of edges are wrong loops."""
    windows = [(place, list(range(max(0, place - WINDOW + 1), place)), 0) for place in range(1, NUM_PLACES)]
    loops = [
        (place, list(range(place - ROUND, place - ROUND + 3)), 40 if number % 5 == 4 else 0)
        for number, place in enumerate(range(ROUND, NUM_PLACES, 6))
    ]  # anchor, members, and how many places away from the anchor the camera really was
    groups = windows + loops
    size = [len(members) for _, members, _ in groups]
    anchor = np.repeat([anchor for anchor, _, _ in groups], size)
    member = np.concatenate([members for _, members, _ in groups])
    mistake = np.repeat([places for _, _, places in groups], size)
    group = np.repeat(np.arange(len(groups)), size)
    noise = SE3(
        so3_exp(NOISE_RAD * rng.normal(size=(len(member), 3))), NOISE_M * rng.normal(size=(len(member), 3))
    )
    member_from_anchor = poses[member] @ poses[anchor - mistake].inverse() @ noise
    kind = np.where(group < len(windows), EdgeKind.WINDOW, EdgeKind.LOOP)
    edges = Edges.of(
        member, anchor, member_from_anchor.rotation, member_from_anchor.translation, kind=kind, group=group
    )
    return anchor3r.MotionGraph(edges), np.unique(group[mistake > 0]).tolist()


def main(file: str | None = None) -> None:
    truth = true_poses()
    graph, wrong = build_graph(truth, np.random.default_rng(7))
    start = estimate_trajectory(graph.edges)
    refined, report = refine_poses(graph, start)
    assert refined.events is not None
    print(f"{report.num_frames} poses, {report.num_edges} edges: {report.status}")
    for name, poses in {"odometry": start, "refined": refined.camera_from_world}.items():
        error_m = np.linalg.norm((poses @ poses[:1].inverse()).center() - truth.center(), axis=1)
        print(f"{name}: {np.sqrt(np.mean(error_m**2)):.2f} m off, at most {error_m.max():.2f} m")
    rejected = refined.events.rejected_groups().tolist()
    print(f"loops left out: {rejected}; wrong ones: {wrong}")
    if file is not None:
        save_graph(Path(file), graph)


if __name__ == "__main__":
    main(*sys.argv[1:])
