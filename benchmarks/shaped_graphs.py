"""Graphs in the shapes of the public collections, without outliers, as g2o files for `pose_graphs.py`.

A torus, a grid, a sphere with noise so large that odometry says little, and a walk through corridors of whose
matrices a third are indefinite, as those of `cubicle` are. Edges are true motions with independent Gaussian
errors whose information the file states; vertices are the odometry end to end. Kinds and groups of edges are
left out. Of the corridors there is a second file with the nearest positive definite matrices, for programs
that refuse others; of the sphere one with identities, as files often have where nobody knows better.
`--routes` adds drives with outliers, with matrices of the true noise and with identities.

    python benchmarks/shaped_graphs.py --out out/shaped --routes 3000 12000
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tyro
from numpy.typing import NDArray

from anchor3r.geometry import SE3, so3_exp
from anchor3r.io.g2o import write_g2o
from anchor3r.pose_graph.edges import Edges, MotionGraph
from anchor3r.pose_graph.online import estimate_trajectory
from generated_graphs import SyntheticConfig, synthetic_graph

_INDEFINITE = 0.1
"""The least eigenvalue of an indefinite matrix is so much of the next one, below zero."""
_LEAST_LENGTH_M = 0.1  # of an edge: the error of a shorter one is no smaller
_RIDGE = 1e-6  # of the largest eigenvalue: what makes the nearest matrix definite


@dataclass(frozen=True)
class Shape:
    """True poses, which pairs of them are measured, and how well."""

    camera_from_world: SE3
    first: NDArray[np.int64]
    """(m,) frames, those of the odometry included"""
    second: NDArray[np.int64]
    rotation_sigma_rad: float
    translation_sigma: float
    axis_spread: float = 0.0
    """standard deviation of the log of each axis' sigma about the typical one"""


def torus(rng: np.random.Generator) -> Shape:
    """5,000 frames in 100 windings; each is measured against the one before and that a winding before."""
    k = np.arange(5000)
    around, along = 2 * np.pi * k / 50, 2 * np.pi * k / 5000
    radius = 5 + 2 * np.cos(around)
    center = np.stack([radius * np.cos(along), radius * np.sin(along), 2 * np.sin(around)], 1)
    return Shape(_looking_anywhere(center, rng), *_pairs(5000, [1, 50]), 0.05, 0.05)


def grid(rng: np.random.Generator) -> Shape:
    """8,000 frames on the corners of a cube of 20 by 20 by 20, to and fro; all neighbours are measured."""
    side = 20
    index = np.arange(side**3)
    z, y, x = index // side**2, index // side % side, index % side
    y = np.where(z % 2, side - 1 - y, y)
    x = np.where((index // side) % 2, side - 1 - x, x)
    number = np.empty((side, side, side), np.int64)
    number[x, y, z] = index
    pairs = [
        np.stack([np.moveaxis(number, axis, 0)[:-1].ravel(), np.moveaxis(number, axis, 0)[1:].ravel()])
        for axis in range(3)
    ]
    first, second = np.sort(np.concatenate(pairs, 1), 0)
    center = np.stack([x, y, z], 1).astype(float)
    return Shape(_looking_anywhere(center, rng), first, second, 0.03, 0.05)


def sphere(rng: np.random.Generator) -> Shape:
    """2,200 frames on 44 rings, measured against three of the ring before; errors of 17° and a fifth of a
    ring's distance."""
    k = np.arange(2200)
    height, around = np.pi * (k + 25) / 2250, 2 * np.pi * k / 50
    ring = np.stack([np.sin(height) * np.cos(around), np.sin(height) * np.sin(around), np.cos(height)], 1)
    return Shape(_looking_anywhere(50 * ring, rng), *_pairs(2200, [1, 49, 50, 51]), 0.3, 0.7)


def corridors(rng: np.random.Generator) -> Shape:
    """5,000 frames of a robot in corridors: near frames are measured, and frames at places seen before."""
    num, corridor = 5000, 50
    heading, turns = 0.0, rng.integers(1, 4, num // corridor)
    at, center, angle = np.array([0.0, 0.0, 0.0]), np.empty((num, 3)), np.empty(num)
    for k in range(num):
        if k % corridor == 0:
            options = [heading + (turn - 2) * np.pi / 2 for turn in np.roll([1, 2, 3], turns[k // corridor])]
            ahead = [at + 0.2 * corridor * np.array([np.cos(a), np.sin(a), 0]) for a in options]
            heading = (
                options[int(np.argmin([np.abs(end).max() for end in ahead]))]
                if (np.abs(ahead[0]).max() > 20)
                else options[0]
            )
        at = at + 0.2 * np.array([np.cos(heading), np.sin(heading), 0])
        center[k], angle[k] = at + rng.normal(0, 0.02, 3), heading
    poses = SE3.from_center(so3_exp(np.stack([0 * angle, 0 * angle, -angle], 1)), center)
    first, second = _pairs(num, [1, 2])
    query = np.arange(0, num, 3)
    near = np.linalg.norm(center[query][:, None] - center[query][None], axis=2) < 1
    early, late = np.nonzero(near & (query[:, None] + 100 < query[None]))
    chosen = rng.permutation(len(early))[:5000]
    first = np.concatenate([first, query[early[chosen]]])
    second = np.concatenate([second, query[late[chosen]]])
    return Shape(poses, first, second, 0.01, 0.03, axis_spread=1.0)


def measured(shape: Shape, rng: np.random.Generator) -> Edges:
    """The edges with their errors, odometry first."""
    odometry = np.argsort(np.abs(shape.second - shape.first) != 1, kind="stable")
    first, second = shape.first[odometry], shape.second[odometry]
    truth = shape.camera_from_world[first] @ shape.camera_from_world[second].inverse()
    sigma = np.repeat([shape.rotation_sigma_rad, shape.translation_sigma], 3)
    sigma = sigma * np.exp(shape.axis_spread * rng.standard_normal((len(first), 6)))
    error = sigma * rng.standard_normal((len(first), 6))
    wrong = truth @ SE3(so3_exp(error[:, :3]), error[:, 3:])
    information = sigma[:, :, None] ** -2.0 * np.eye(6)
    return Edges.of(first, second, wrong.rotation, wrong.translation, information=information)


def with_indefinite(edges: Edges, part: float, rng: np.random.Generator) -> Edges:
    """With the least eigenvalue of a part of the matrices below zero."""
    information = edges.information.copy()
    which = np.flatnonzero(rng.random(len(edges)) < part)
    value, vector = np.linalg.eigh(information[which])
    value[:, 0] = -_INDEFINITE * value[:, 1]
    information[which] = (vector * value[:, None]) @ np.swapaxes(vector, 1, 2)
    return replace(edges, information=information)


def nearest_definite(edges: Edges) -> Edges:
    """With the nearest matrices that other programs take."""
    value, vector = np.linalg.eigh(edges.information)
    value = np.maximum(value, _RIDGE * value[:, -1:])
    return replace(edges, information=(vector * value[:, None]) @ np.swapaxes(vector, 1, 2))


def write(path: Path, edges: Edges, camera_from_world: SE3) -> None:
    """Without the comments that tell kinds and groups."""
    graph = MotionGraph(edges)
    write_g2o(path, graph, graph.frames(), camera_from_world)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("#")))


def odometry(edges: Edges) -> SE3:
    """Edges from each frame to the next end to end."""
    steps = np.flatnonzero(edges.frame_t - edges.frame_i == 1)
    order = steps[np.argsort(edges.frame_i[steps])]
    poses = [SE3.identity()]
    for step in SE3(edges.rotation[order], edges.translation[order]).inverse():
        poses.append(step @ poses[-1])
    return SE3(np.stack([p.rotation for p in poses]), np.stack([p.translation for p in poses]))


def write_route(out: Path, num_frames: int, seed: int) -> None:
    """A drive of `generated_graphs` with outlier edges and false loops; vertices are the online medians."""
    config = SyntheticConfig(num_frames=num_frames, seed=seed)
    route = synthetic_graph(config)
    edges = route.graph.edges
    length = np.maximum(np.linalg.norm(edges.translation, axis=1), _LEAST_LENGTH_M)
    sigma = np.full((len(edges), 6), np.radians(config.rotation_noise_deg))
    sigma[:, 3:] = config.translation_noise * length[:, None]
    known = replace(edges, information=sigma[:, :, None] ** -2.0 * np.eye(6))
    same = replace(edges, information=np.broadcast_to(np.eye(6), (len(edges), 6, 6)).copy())
    for name, told in (("", known), ("_identity", same)):
        write(out / f"route{num_frames}{name}.g2o", told, estimate_trajectory(edges))
    np.save(out / f"route{num_frames}_truth.npy", route.camera_from_world.center())


def main(
    out: Path = Path("out/shaped"), seed: int = 0, shapes: bool = True, routes: tuple[int, ...] = ()
) -> None:
    """Writes the files.

    Args:
        out: Folder for them.
        seed: Of everything random.
        shapes: Whether to write the shapes without outliers.
        routes: Lengths of drives with outliers to write, for `pose_graphs.py --outliers`.
    """
    out.mkdir(parents=True, exist_ok=True)
    for num_frames in routes:
        write_route(out, num_frames, seed)
    if shapes:
        write_shapes(out, seed)


def write_shapes(out: Path, seed: int) -> None:
    for number, shape in enumerate((torus, grid, sphere, corridors)):
        rng = np.random.default_rng([seed, number])
        name, edges = shape.__name__, measured(shape(rng), rng)
        if shape is corridors:
            edges = with_indefinite(edges, 1 / 3, rng)
            write(out / f"{name}_nearest.g2o", nearest_definite(edges), odometry(edges))
        if shape is sphere:
            known = replace(edges, information=np.broadcast_to(np.eye(6), (len(edges), 6, 6)).copy())
            write(out / f"{name}_identity.g2o", known, odometry(edges))
        write(out / f"{name}.g2o", edges, odometry(edges))
        print(f"{name}: {len(np.unique(edges.frame_i)) + 1} frames, {len(edges)} edges")


def _pairs(num: int, steps: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Frames and those so many later."""
    first = np.concatenate([np.arange(num - step) for step in steps])
    second = np.concatenate([np.arange(step, num) for step in steps])
    return first, second


def _looking_anywhere(center: NDArray[np.float64], rng: np.random.Generator) -> SE3:
    """Cameras whose directions change a little from frame to frame."""
    turn = np.cumsum(0.1 * rng.standard_normal((len(center), 3)), 0)
    return SE3.from_center(so3_exp(turn), center)


if __name__ == "__main__":
    tyro.cli(main)
