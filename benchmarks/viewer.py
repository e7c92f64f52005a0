"""A map of 20,000 frames opens in seconds and in bounded memory, with at most 2 million points on the screen.

Writes a synthetic map through the store and opens it twice, each time in a process of its own: without a
cache of the levels of detail, and with it. Nothing looks on: what a browser needs comes on top. It is the
CPU seconds that tell, start of Python included: other work on the machine does not change them.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import tyro

from anchor3r.geometry import SE3, Pinhole, so3_exp
from anchor3r.pose_graph.edges import Edges
from anchor3r.predictors.interface import WindowPrediction
from anchor3r.sources import Frame
from anchor3r.store import MapWriter
from anchor3r.trajectory import FramePose

GOAL_S, GOAL_MIB, GOAL_POINTS = 10.0, 1536.0, 2_000_000
CAMERA = Pinhole.from_fov(70, 128, 96)
ROUND, RADIUS_M = 4000, 300.0
"""Frames and radius of one circle."""


def write_map(folder: Path, num_frames: int) -> None:
    """Circles of a camera that sees a dense, wavy wall around it."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (12, 16, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    waves = rng.uniform(4, 40, (64, 96, 128)).astype(np.float32)
    none = np.empty(0)
    with MapWriter.create(folder, {"source": "synthetic"}) as store:
        for index in range(num_frames):
            angle = 2 * np.pi * index / ROUND
            rotation = so3_exp(np.array([0.0, angle, 0.0]))
            center = RADIUS_M * np.array([np.cos(angle), 0.01 * (index // ROUND), np.sin(angle)])
            frame = Frame(
                index=index, timestamp_s=index / 30, image=np.roll(image, index, 1), intrinsics=CAMERA,
                camera_from_world=SE3(rotation, -rotation @ center),
            )  # fmt: skip
            prediction = WindowPrediction(
                anchor=index,
                members=none.astype(np.int64),
                member_from_anchor_rotation=none.reshape(0, 3, 3),
                member_from_anchor_translation=none.reshape(0, 3),
                confidence=none,
                points_in_anchor=CAMERA.unproject_map(waves[index % 64]).astype(np.float32),
                points_confidence=waves[-1 - index % 64] / 40,
                intrinsics=CAMERA,
            )
            pose = FramePose(frame=index, rotation=rotation, center=center)
            store.record(frame, prediction, Edges.of([], index, np.eye(3), 0.0), [pose])


def open_map(folder: Path, budget: int, report: Connection) -> None:
    """Serves the map until all its points are read; tells when all of it is on the screen, and the cost."""
    from anchor3r.viewer.contents import MapContents
    from anchor3r.viewer.server import MapServer

    with MapContents(folder) as contents:
        server = MapServer(contents, "127.0.0.1", 8500, point_budget=budget)
        server.step()
        while len(contents.levels.segments) * contents.levels.config.segment_poses < len(contents.online):
            server.step()
        report.send((time.time(), server.num_points, time.process_time()))
        while server.step():
            pass
        unit_bytes = 1 if sys.platform == "darwin" else 1024
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes / 2**20
        report.send((time.time(), server.num_points, peak_mib, time.process_time()))
        server.close()


def opened(folder: Path, budget: int) -> dict[str, float]:
    """Opens the map in a new process."""
    ours, theirs = multiprocessing.Pipe()
    started = time.time()
    process = multiprocessing.get_context("spawn").Process(target=open_map, args=(folder, budget, theirs))
    process.start()
    whole_at, whole_points, whole_cpu_s = ours.recv()
    done_at, points, peak_mib, cpu_s = ours.recv()
    process.join()
    return {
        "open_s": whole_at - started, "open_cpu_s": whole_cpu_s, "points_at_open": whole_points,
        "all_s": done_at - started, "all_cpu_s": cpu_s, "points": points, "peak_mib": peak_mib,
    }  # fmt: skip


def main(out: Path | None = None, frames: int = 20_000, budget: int = GOAL_POINTS) -> None:
    """Prints a table and writes OUT/viewer.json.

    Args:
        out: Folder for the JSON.
        frames: Length of the map.
        budget: Points that the page asks for.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "map"
        write_map(folder, frames)
        size_mib = (folder / "map.sqlite").stat().st_size / 2**20
        print(f"{frames} frames with {CAMERA.width} × {CAMERA.height} points each, {size_mib:.0f} MiB")
        rows = {name: opened(folder, budget) for name in ("first time", "cached")}
    heads = ("open s", "CPU s", "points", "all s", "CPU s", "points", "peak MiB")
    print(" " * 10 + "".join(f"{head:>13}" for head in heads))
    for name, row in rows.items():
        print(f"{name:10}" + "".join(f"{value:13,.1f}" for value in row.values()))
    reached = all(
        row["open_s"] < GOAL_S and row["peak_mib"] < GOAL_MIB and row["points"] <= GOAL_POINTS
        for row in rows.values()
    )
    goal = f"open in under {GOAL_S:.0f} s, {GOAL_MIB:.0f} MiB and {GOAL_POINTS:,} points"
    print(f"goal: {goal}; {'reached' if reached else 'MISSED'}")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "viewer.json").write_text(
            json.dumps({"frames": frames, "goal": goal, **rows}, indent=2) + "\n"
        )


if __name__ == "__main__":
    tyro.cli(main)
