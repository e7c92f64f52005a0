"""Motion averaging against the libraries a user would reach for, on the same graphs, in the same run.

Generates routes with revisits, outlier edges and false loop events, and solves each with our methods and the
peers: online medians, Algorithm 2 of the paper to the letter, each of our three changes to it by itself and
all of them (decoupled), the joint refinement (scales fixed and free), GTSAM, pycolmap and pytheia. CPU
seconds on one thread, compilation excluded; medians over seeds. Prints a table and writes averaging.json.

    python benchmarks/averaging.py --frames 1200 12000 18800 --seeds 5 --out out/averaging
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, nearest_rotation, rotation_angle, umeyama
from anchor3r.pose_graph.averaging.motion import (
    PublishedConfig,
    average_motion,
    average_motion_as_published,
)
from anchor3r.pose_graph.averaging.positions import PositionConfig
from anchor3r.pose_graph.averaging.rotations import RotationConfig
from anchor3r.pose_graph.edges import Edges
from anchor3r.pose_graph.joint import RefineConfig, refine_poses
from anchor3r.pose_graph.noise import ErrorModelEstimator
from anchor3r.pose_graph.online import estimate_trajectory
from anchor3r.pose_graph.pose_system import PoseEdges, PoseState
from anchor3r.pose_graph.verification import EventVerdicts, verify_loops
from averaging_peers import PEERS, PeerTask, is_installed
from generated_graphs import SyntheticConfig, SyntheticGraph, synthetic_graph

_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
_PUBLISHED = PublishedConfig()
_WARM_UP_FRAMES = 3500  # enough that every code path of the large graphs is compiled


@dataclass(frozen=True)
class Row:
    """One method on one graph."""

    method: str
    frames: int
    seed: int
    scale_drift: float
    cpu_seconds: float
    ate_m: float | None
    """RMSE of the centres after Sim(3) alignment"""
    worst_m: float | None
    rotation_median_deg: float
    rotation_worst_deg: float
    false_events: int | None = None
    false_events_kept: int | None = None
    true_events: int | None = None
    true_events_lost: int | None = None


@dataclass(frozen=True)
class Solved:
    rotation: NDArray[np.float64]
    center: NDArray[np.float64] | None
    cpu_seconds: float
    events: EventVerdicts | None = None


def measured(method: str, route: SyntheticGraph, config: SyntheticConfig, solved: Solved) -> Row:
    """Errors against the truth, after alignment."""
    truth = route.camera_from_world
    turn = nearest_rotation(np.einsum("nji,njk->ik", solved.rotation, truth.rotation))
    angles = np.degrees(rotation_angle(np.swapaxes(truth.rotation, 1, 2) @ solved.rotation @ turn))
    distances = None
    if solved.center is not None:
        moved = umeyama(solved.center, truth.center()).apply(solved.center)
        distances = np.linalg.norm(moved - truth.center(), axis=-1)
    row = Row(
        method=method, frames=config.num_frames, seed=config.seed, scale_drift=config.scale_drift,
        cpu_seconds=solved.cpu_seconds,
        ate_m=None if distances is None else float(np.sqrt(np.mean(distances**2))),
        worst_m=None if distances is None else float(distances.max()),
        rotation_median_deg=float(np.median(angles)), rotation_worst_deg=float(angles.max()),
    )  # fmt: skip
    if solved.events is None:
        return row
    is_false, kept = route.is_false_group[solved.events.group], solved.events.accepted
    return replace(
        row, false_events=int(is_false.sum()), false_events_kept=int((is_false & kept).sum()),
        true_events=int((~is_false).sum()), true_events_lost=int((~is_false & ~kept).sum()),
    )  # fmt: skip


def online(route: SyntheticGraph) -> Solved:
    began = time.process_time()
    poses = estimate_trajectory(route.graph.edges)
    return Solved(poses.rotation, poses.center(), time.process_time() - began)


def paper(route: SyntheticGraph, start: SE3, edges: Edges | None = None) -> Solved:
    """Algorithm 2 to the letter, on all edges or on those given."""
    began = time.process_time()
    poses, _ = average_motion_as_published(edges or route.graph.edges, start)
    return Solved(poses.rotation, poses.center(), time.process_time() - began)


def rotations_first(
    route: SyntheticGraph, start: SE3, rotations: RotationConfig, positions: PositionConfig
) -> Solved:
    """Rotations, then positions, on all edges, with one of our changes or the other."""
    began = time.process_time()
    poses, _ = average_motion(route.graph.edges, start, rotations, positions)
    return Solved(poses.rotation, poses.center(), time.process_time() - began)


def verified(route: SyntheticGraph) -> tuple[Edges, EventVerdicts, float]:
    """The edges without the loop events that verification cuts, the verdicts, and CPU seconds."""
    began = time.process_time()
    edges = route.graph.edges
    verdicts = verify_loops(edges, estimate_trajectory(edges)).verdicts
    kept = edges.select(~np.isin(edges.group, verdicts.rejected_groups()))
    return kept, verdicts, time.process_time() - began


def decoupled(route: SyntheticGraph, start: SE3) -> Solved:
    """Loops verified, the kernel narrowed, exact least absolute deviations."""
    kept, verdicts, seconds = verified(route)
    began = time.process_time()
    poses, _ = average_motion(kept, start)
    return Solved(poses.rotation, poses.center(), seconds + time.process_time() - began, verdicts)


def paper_with_verified_loops(route: SyntheticGraph, start: SE3) -> Solved:
    kept, verdicts, seconds = verified(route)
    solved = paper(route, start, kept)
    return replace(solved, cpu_seconds=solved.cpu_seconds + seconds, events=verdicts)


def joint(route: SyntheticGraph, config: RefineConfig) -> Solved:
    """From nothing: online pass, loop events judged, joint refinement."""
    began = time.process_time()
    odometry = estimate_trajectory(route.graph.edges)
    refined, _ = refine_poses(route.graph, odometry, config, odometry=odometry)
    poses = refined.camera_from_world
    return Solved(poses.rotation, poses.center(), time.process_time() - began, refined.events)


def peer_task(route: SyntheticGraph, start: SE3, decoupled: SE3) -> PeerTask:
    """With the noise that our own solve measures at its end."""
    edges = route.graph.edges
    config = RefineConfig()
    pose_edges = PoseEdges(edges.frame_i, edges.frame_t, edges.rotation, edges.translation)
    estimator = ErrorModelEstimator(edges, pose_edges, np.ones(len(edges), bool), width=config.width)
    errors = estimator.estimate(PoseState.of(route.camera_from_world, route.log_scale))
    return PeerTask(edges, start, decoupled, errors.information**-0.5, config.width)


def run(config: SyntheticConfig, *, peers: Collection[str], with_paper: bool) -> list[Row]:
    """All methods on one graph."""
    route = synthetic_graph(config)
    rows: list[Row] = []

    def add(method: str, solved: Solved) -> SE3:
        rows.append(measured(method, route, config, solved))
        print(_line(rows[-1]), flush=True)
        center = np.zeros((config.num_frames, 3)) if solved.center is None else solved.center
        return SE3(solved.rotation, -(solved.rotation @ center[..., None])[..., 0])

    start = add("online", online(route))
    if config.scale_drift == 1:
        add("joint", joint(route, RefineConfig()))
    add("joint, free scales", joint(route, RefineConfig(scale="free")))
    if config.scale_drift == 1 and with_paper:
        add("paper", paper(route, start))
        fixed, admm = (
            RotationConfig(sigmas_deg=(_PUBLISHED.sigma_deg,)),
            PositionConfig(
                method="admm", gap=_PUBLISHED.gap, max_iterations=_PUBLISHED.max_position_iterations
            ),
        )
        add("paper, narrowing σ", rotations_first(route, start, RotationConfig(), admm))
        add("paper, exact LAD", rotations_first(route, start, fixed, PositionConfig()))
        add("paper, verified loops", paper_with_verified_loops(route, start))
        task = peer_task(route, start, add("decoupled", decoupled(route, start)))
        for name in peers:
            try:
                answer = PEERS[name][1](task)
            except RuntimeError as error:
                print(f"{name:<24}failed: {error}", flush=True)
                continue
            add(name, Solved(answer.rotation, answer.center, answer.cpu_seconds))
    return rows


def warm_up() -> None:
    """Compiles everything."""
    for drift in (1.0, 2.0):
        config = SyntheticConfig(num_frames=_WARM_UP_FRAMES, scale_drift=drift)
        route = synthetic_graph(config)
        start = online(route)
        joint(route, RefineConfig(scale="free" if drift > 1 else "fixed"))
        if drift == 1:
            poses = SE3.from_center(start.rotation, start.center)
            paper(route, poses)
            decoupled(route, poses)
    small = synthetic_graph(SyntheticConfig(num_frames=500))
    for scale in ("fixed", "free"):
        joint(small, RefineConfig(scale=scale))


_HEADER = (
    f"{'method':<24}{'frames':>9}{'drift':>6}{'CPU s':>9}{'ATE m':>9}{'worst m':>9}{'rot med °':>10}"
    f"{'rot max °':>10}{'false kept':>13}{'true lost':>14}"
)


def _line(row: Row) -> str:
    def number(value: float | None, width: int, digits: int) -> str:
        return f"{'–':>{width}}" if value is None else f"{value:>{width}.{digits}f}"

    events = ""
    if row.false_events is not None:
        false = f"{row.false_events_kept}/{row.false_events}"
        events = f"{false:>13}{f'{row.true_events_lost}/{row.true_events}':>14}"
    return (
        f"{row.method:<24}{row.frames:>9}{row.scale_drift:>6.1f}{row.cpu_seconds:>9.2f}"
        f"{number(row.ate_m, 9, 4)}{number(row.worst_m, 9, 3)}"
        f"{row.rotation_median_deg:>10.3f}{row.rotation_worst_deg:>10.2f}{events}"
    )


def medians(rows: list[Row]) -> list[Row]:
    """One row for each method and size: medians over seeds, of the worst frame the worst; sums of events."""
    groups: dict[tuple[str, int, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.method, row.frames, row.scale_drift), []).append(row)
    out = []
    for group in groups.values():
        values: dict[str, Any] = {}
        for name in ("cpu_seconds", "ate_m", "rotation_median_deg"):
            known = [value for row in group if (value := getattr(row, name)) is not None]
            values[name] = statistics.median(known) if known else None
        for name in ("worst_m", "rotation_worst_deg"):
            known = [value for row in group if (value := getattr(row, name)) is not None]
            values[name] = max(known) if known else None
        for name in ("false_events", "false_events_kept", "true_events", "true_events_lost"):
            known = [value for row in group if (value := getattr(row, name)) is not None]
            values[name] = sum(known) if known else None
        out.append(replace(group[0], **values))
    return out


def main() -> None:
    if any(os.environ.get(name) != value for name, value in _ONE_THREAD.items()):
        # Numerical libraries read it when they are loaded, which they are by now.
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | _ONE_THREAD)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, nargs="+", default=[1200, 12000, 18800])
    parser.add_argument("--seeds", type=int, default=5, help="graphs of each size")
    parser.add_argument(
        "--drifts", type=float, nargs="+", default=[1.0, 5.0], help="of the scale along a route"
    )
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--peer-frames", type=int, default=20000, help="peers are not run on larger graphs")
    parser.add_argument("--paper", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, default=Path("out/averaging"))
    arguments = parser.parse_args()

    absent = sorted({module for module, _ in PEERS.values() if not is_installed(module)})
    if arguments.peers and absent:
        print(f"skipped, not installed: {', '.join(absent)}")
    installed = [name for name, (module, _) in PEERS.items() if arguments.peers and is_installed(module)]
    warm_up()
    print(_HEADER)
    rows: list[Row] = []
    for frames in arguments.frames:
        for seed in range(arguments.seeds):
            for drift in arguments.drifts:
                config = SyntheticConfig(num_frames=frames, seed=seed, scale_drift=drift)
                peers = installed if frames <= arguments.peer_frames else []
                rows += run(config, peers=peers, with_paper=arguments.paper)
    summary = medians(rows)
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\nmedians over {arguments.seeds} seeds; peak memory {peak_gib:.1f} GiB\n{_HEADER}")
    print("\n".join(map(_line, summary)))
    arguments.out.mkdir(parents=True, exist_ok=True)
    result = {
        "peak_gib": peak_gib,
        "medians": [asdict(row) for row in summary],
        "runs": [asdict(row) for row in rows],
    }
    (arguments.out / "averaging.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
