"""Loops closed online against those closed afterwards: `python benchmarks/online_loops.py --seeds 201 202`.

Maps street grids of worlds with and without `--loops online`, refines the latter, and compares errors (Sim(3)
ATE at the end of the stream), how soon an accepted event corrects the map, what a step costs the mapping
thread (CPU time, so that other programs count little) and what a job costs the second one. "with waits" are
steps as they would be on two free cores, computed from these times; how long they did take is only right on
a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np

from anchor3r.geometry import umeyama
from anchor3r.pipeline.loop_closing import LONGEST_STEP
from anchor3r.pipeline.loop_jobs import LoopClosingConfig, LoopWorker, StreamSoFar
from anchor3r.pipeline.mapping import MappingRun, predictor_of
from anchor3r.pipeline.refine import refine_map
from anchor3r.pipeline.settings import MapSettings
from anchor3r.sources import open_source
from anchor3r.store import LoopClosing, load_map

_WARM = 50
"""Steps at the start that do not count: kernels are fetched, the map is initialised."""
_REFERENCE = 1000
"""Frame with whose resident memory that at the end is compared."""


class Jobs:
    """CPU seconds of every job, and when its result was there."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.cpu_s: list[float] = []
        self.last_cpu_s = 0.0
        self._run, self._end = LoopWorker.run, LoopWorker.end

    def __enter__(self) -> Jobs:
        jobs, run, end = self, self._run, self._end

        def timed(worker: LoopWorker, seen: StreamSoFar) -> LoopClosing:
            began = time.thread_time()
            found = run(worker, seen)
            jobs.started.append(seen.num_frames)
            jobs.cpu_s.append(time.thread_time() - began)
            return found

        def timed_end(worker: LoopWorker, seen: StreamSoFar, search: int) -> LoopClosing:
            began = time.thread_time()
            found = end(worker, seen, search)
            jobs.last_cpu_s = time.thread_time() - began
            return found

        LoopWorker.run = timed  # type: ignore[method-assign]
        LoopWorker.end = timed_end  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        LoopWorker.run, LoopWorker.end = self._run, self._end  # type: ignore[method-assign]

    def waited_for(self, step_ms: np.ndarray) -> np.ndarray:
        """How long steps would take, waits included, had each thread a core: as `LoopCloser` schedules."""
        latency, cost_ms = LoopClosingConfig().latency, dict(zip(self.started, self.cpu_s, strict=True))
        now = idle_from = typical = 0.0
        pending: list[tuple[int, float]] = []  # number of the frame that applies a job, and when it is done
        out = np.empty(len(step_ms))
        for count, own in enumerate(step_ms.tolist(), 1):
            began, now = now, now + own
            if pending and pending[0][0] == count:
                now = max(now, pending.pop(0)[1])
            if count in cost_ms:
                idle_from = max(now, idle_from) + 1e3 * cost_ms[count]
                pending.append((count + latency, idle_from))
            typical = typical * (0.95 if now - began < typical else 1.05) or now - began
            if pending and pending[0][0] - count <= latency / 2:
                most = max(0.0, LONGEST_STEP * typical - (now - began))
                now += min(max(0.0, pending[0][1] - now), most)
            out[count - 1] = now - began
        return out


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def mapped(uri: str, out: Path, predictor: str, loops: str) -> tuple[np.ndarray, dict[int, int], np.ndarray]:
    """CPU milliseconds of each step, the frame with which each was corrected that was, and MiB resident
    after each step."""
    settings = MapSettings(predictor=predictor, loops=loops)  # type: ignore[arg-type]
    step_ms, corrected, resident, began = [], {}, [], 0.0
    with open_source(uri) as source, MappingRun(source, predictor_of(settings), out, settings) as run:
        step = run.mapper.step

        def timed(frame):  # type: ignore[no-untyped-def]
            nonlocal began
            began = time.thread_time()
            update = step(frame)
            step_ms.append(1e3 * (time.thread_time() - began))
            return update

        run.mapper.step = timed  # type: ignore[method-assign]
        for update in run:
            if len(resident) == len(step_ms):
                continue  # the last frame, told once more as loops were closed at the end
            if update.corrections is not None:
                corrected[update.frame] = len(update.corrections.frames)
            resident.append(resident_mib())
    return np.array(step_ms), corrected, np.array(resident)


def ate(folder: Path, name: str) -> float:
    with load_map(folder) as scene_map:
        estimate = scene_map.odometry() if name == "odometry" else scene_map.trajectory(name)
        truth = scene_map.true_trajectory()
    assert truth is not None
    center = truth.center[np.searchsorted(truth.frames, estimate.frames)]
    aligned = umeyama(estimate.center, center).apply(estimate.center)
    return float(np.sqrt(((aligned - center) ** 2).sum(1).mean()))


def compare(uri: str, predictor: str, folder: Path) -> float:
    off, on = folder / "off", folder / "on"
    without, _, _ = mapped(uri, off, predictor, "off")
    with Jobs() as jobs:
        step_ms, corrected, resident = mapped(uri, on, predictor, "online")
    refined = refine_map(off)
    with load_map(on) as scene_map:
        loops = [loop for loop in scene_map.loops() if loop.accepted]
        streamed = [loop for loop in scene_map.search_loops(scene_map.searches()[0]) if loop.accepted]
    waits = [
        min((f for f in corrected if f > loop.query), default=loop.query) - loop.query for loop in streamed
    ]
    waited = jobs.waited_for(step_ms)[_WARM:]
    online, offline = ate(on, "online"), ate(off, "offline")
    events = f"{refined['accepted']} of {refined['loop_events']}"
    typical, plain = np.median(step_ms[_WARM:]), np.median(without[_WARM:])
    grown = resident[-1] / resident[min(_REFERENCE, len(resident) - 1)]
    print(
        f"{uri} {predictor}: odometry {ate(off, 'odometry'):.3f} m, online {online:.3f} m "
        f"({len(loops)} events, {len(streamed)} while it streamed), offline {offline:.3f} m ({events}), "
        f"ratio {online / offline:.2f}; corrected after {np.max(waits, initial=0)} frames at most; "
        f"step {typical:.1f} ms ({typical / plain:.2f} of without), worst {step_ms[_WARM:].max():.0f} ms "
        f"({without[_WARM:].max():.0f} without); with waits {np.median(waited):.1f} ms, worst "
        f"{waited.max():.0f} ms, {np.mean(waited > 3 * np.median(waited)):.2%} above three medians "
        f"({np.mean(without[_WARM:] > 3 * plain):.2%} without); job {1e3 * np.mean(jobs.cpu_s):.0f} ms, "
        f"worst {1e3 * np.max(jobs.cpu_s):.0f} ms, after the stream {jobs.last_cpu_s:.1f} s; "
        f"resident {resident[-1]:.0f} MiB, {grown:.3f} of frame {_REFERENCE}",
        flush=True,
    )
    return online / offline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(101, 111)))
    parser.add_argument("--frames", type=int, default=1500)
    parser.add_argument("--predictor", default="features")
    parser.add_argument("--size", type=int, nargs=2, default=(320, 240))
    parser.add_argument("--source", default=None, help="instead of worlds, such as kitti:ROOT/00")
    arguments = parser.parse_args()
    width, height = arguments.size
    worlds = [
        f"world:{seed}?motion=grid&frames={arguments.frames}&width={width}&height={height}"
        for seed in arguments.seeds
    ]
    ratios = []
    for uri in worlds if arguments.source is None else [arguments.source]:
        with tempfile.TemporaryDirectory() as folder:
            ratios.append(compare(uri, arguments.predictor, Path(folder)))
    print(f"online over offline: median {np.median(ratios):.2f}, worst {np.max(ratios):.2f}")


if __name__ == "__main__":
    main()
