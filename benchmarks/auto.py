"""`auto` beside the two predictors that it consists of: error, poses, who measured what, and CPU seconds.

Maps worlds, data sets that are at hand, and hard cases: handheld worlds and a real sequence that are filmed
several times as fast with the blur of that motion, and such that go dark for a while. Of each the Sim(3) ATE
of the largest component is told, with loops closed if `--refine` is given. Prints a line a sequence and
writes auto.json after every one; sequences that were finished in an earlier run into the same folder are read
back.

    python benchmarks/auto.py --kitti ROOT --seven-scenes ROOT/redkitchen/seq-01
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numerical libraries are loaded

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

import cv2
import numpy as np
import tyro
from numpy.typing import NDArray

from anchor3r import load_map, map_source, refine_map
from anchor3r.evaluation.metrics import Alignment
from anchor3r.evaluation.scoring import scored_trajectory
from anchor3r.pipeline.settings import MapSettings
from anchor3r.sources import open_source
from anchor3r.sources.frame import Frame
from anchor3r.store import OFFLINE, ONLINE

_ALLOWED = 1.1
"""Error over that of the better predictor that counts as no worse,"""
_NO_ATE = 2e-4
"""and the part of the path below which an error is as good as none."""
_DARK_LEVEL = 5.0
"""Mean grey level of dark frames, with as much noise."""
_MOMENTS = 4
"""Images that an exposure is the mean of, for each frame in its time."""
Image = NDArray[np.uint8]
Frames = Callable[[], str | list[Frame]]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one predictor made of one sequence."""

    frames: int
    with_pose: int
    """frames of the largest component"""
    ate: float
    """Sim(3) ATE of these; NaN without enough of them"""
    path: float
    """length of the true path"""
    answers: dict[str, int]
    cpu_s: float


def main(
    out: Path = Path("out/auto"),
    seeds: tuple[int, ...] = tuple(range(101, 121)),
    frames: int = 300,
    kitti: Path | None = None,
    seven_scenes: Path | None = None,
    hard: bool = True,
    times: tuple[int, ...] = (2, 3, 4, 5),
    refine: bool = False,
    predictors: tuple[str, ...] = ("features", "tiny", "auto"),
) -> None:
    """Maps every sequence with every predictor.

    Args:
        out: Folder for auto.json.
        seeds: Worlds, each driven through and walked through at 320×240.
        frames: Length of their videos.
        kitti: Root of KITTI odometry, of which 00 and 06 are run.
        seven_scenes: One sequence of 7-Scenes.
        hard: Also the hard cases, of the first three worlds and of that sequence.
        times: How many times as fast those are filmed.
        refine: Score refined poses, with loops closed, in place of online ones.
        predictors: The first two are what the last one is compared with.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / "auto.json"
    found: dict[str, dict[str, Outcome]] = {}
    if path.is_file():
        kept = json.loads(path.read_text())
        found = {name: {p: Outcome(**o) for p, o in outcomes.items()} for name, outcomes in kept.items()}
    for name, make in _sequences(seeds, frames, kitti, seven_scenes, times if hard else None):
        outcomes = found.setdefault(name, {})
        missing = [predictor for predictor in predictors if predictor not in outcomes]
        source = make() if missing else ""
        for predictor in missing:
            outcomes[predictor] = _outcome(source, predictor, refine)
            told = {key: {p: asdict(o) for p, o in value.items()} for key, value in found.items()}
            path.write_text(json.dumps(told, indent=1) + "\n")
        print(_line(name, outcomes), flush=True)
    _summarise([[outcomes[p] for p in predictors] for outcomes in found.values()])


def _sequences(
    seeds: tuple[int, ...],
    frames: int,
    kitti: Path | None,
    seven_scenes: Path | None,
    fast: tuple[int, ...] | None,
) -> Iterator[tuple[str, Frames]]:
    """fast: how many times as fast the hard cases are filmed; None: without hard cases."""
    size = f"frames={frames}&width=320&height=240"
    for seed in seeds:
        yield f"driving {seed}", lambda s=seed: _read(f"world:{s}?kind=street&motion=driving&{size}")
        yield f"handheld {seed}", lambda s=seed: _read(f"world:{s}?motion=handheld&{size}")
    for name in ("00", "06") if kitti is not None else ():
        yield f"KITTI {name}", lambda n=name: f"kitti:{kitti / 'sequences' / n}"
    real = None if seven_scenes is None else f"7scenes:{seven_scenes}"
    if real is not None:
        yield "7-Scenes", lambda: real
    if fast is None:
        return
    hand = {f"handheld {seed}": f"world:{seed}?motion=handheld&{size}" for seed in seeds[:3]}
    for name, uri in (hand | ({} if real is None else {"7-Scenes": real})).items():
        for times in fast:
            yield f"{name}, {times}× as fast", lambda u=uri, n=times: _fast(_read(u), n)
        yield f"{name}, dark for 12 frames", lambda u=uri: _dark(_read(u)[:240], 100, 112)


def _read(uri: str) -> list[Frame]:
    with open_source(uri) as source:
        return [replace(frame, depth_m=None) for frame in islice(source.frames(), 500)]


def _fast(frames: list[Frame], times: int) -> list[Frame]:
    """Every so many-th frame, exposed from halfway after the one before to halfway before the one after.

    No two exposures overlap: what two images share pixel by pixel would look as if it stood still.
    """
    grey = [cv2.cvtColor(frame.image, cv2.COLOR_RGB2GRAY) for frame in frames]
    flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    there = [np.asarray(flow.calc(*pair, None)) for pair in pairwise(grey)]
    back = [np.asarray(flow.calc(after, before, None)) for before, after in pairwise(grey)]
    out = []
    for k in range(times, len(frames) - times, times):
        moments = k + ((np.arange(times * _MOMENTS) + 0.5) / _MOMENTS - times / 2)
        exposed = [
            _between(frames[i].image, frames[i + 1].image, there[i], back[i], moment - i)
            for moment, i in zip(moments.tolist(), np.floor(moments).astype(int).tolist(), strict=True)
        ]
        image = np.mean(exposed, axis=0).round().astype(np.uint8)
        out.append(replace(frames[k], index=len(out), image=image))
    return out


def _between(
    before: Image, after: Image, there: NDArray[np.float32], back: NDArray[np.float32], part: float
) -> NDArray[np.float32]:
    """What would have been seen when that part of the time between two images had passed."""
    row, column = np.indices(there.shape[:2], np.float32)
    seen = [
        cv2.remap(
            image.astype(np.float32), column - passed * flow[..., 0], row - passed * flow[..., 1],
            cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE,
        )
        for image, flow, passed in ((before, there, part), (after, back, 1 - part))
    ]  # fmt: skip
    return np.asarray((1 - part) * seen[0] + part * seen[1], np.float32)


def _dark(frames: list[Frame], first: int, end: int) -> list[Frame]:
    rng = np.random.default_rng(0)
    dark = [rng.normal(_DARK_LEVEL, _DARK_LEVEL, frame.image.shape) for frame in frames[first:end]]
    covered = [
        replace(frame, image=np.clip(image, 0, 255).astype(np.uint8))
        for frame, image in zip(frames[first:end], dark, strict=True)
    ]
    return [*frames[:first], *covered, *frames[end:]]


def _outcome(source: str | list[Frame], predictor: str, refine: bool) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="anchor3r-auto-") as folder:
        started = time.process_time()
        out = Path(folder) / "map"
        summary = map_source(source, out, MapSettings(predictor=predictor, threads=1, loops="off"))
        if refine:
            refine_map(out)
        cpu_s = time.process_time() - started
        with load_map(out) as scene_map:
            truth = scene_map.true_trajectory()
            assert truth is not None, "these sequences have ground truth"
            estimate = scene_map.trajectory(OFFLINE if refine else ONLINE)
            scored = scored_trajectory(estimate, truth, Alignment.SIM3)
    return Outcome(
        frames=summary["frames"],
        with_pose=0 if scored is None else len(scored.frames),
        ate=float("nan") if scored is None else float(scored.errors.metrics()["ate_rmse_m"]),
        path=truth.path_length(),
        answers=summary["answers"],
        cpu_s=cpu_s,
    )


def _line(name: str, outcomes: dict[str, Outcome]) -> str:
    parts = [
        f"{predictor} {o.ate:.3g} m ({100 * o.ate / max(o.path, 1e-9):.2f} %), {o.with_pose} of {o.frames}, "
        f"{o.cpu_s:.0f} s" + (f" {o.answers}" if o.answers else "")
        for predictor, o in outcomes.items()
    ]
    return f"{name}: " + "; ".join(parts)


def _summarise(rows: list[list[Outcome]]) -> None:
    """How often the last predictor is no worse than the better one of those before it."""
    good, posed, excess = 0, 0, []
    for *others, combined in rows:
        # A component that has lost half of the frames is no better for its smaller error.
        best = min(o.ate for o in others if o.with_pose >= 0.9 * max(p.with_pose for p in others))
        good += combined.ate <= max(_ALLOWED * best, _NO_ATE * combined.path)
        posed += combined.with_pose >= max(o.with_pose for o in others)
        excess.append(combined.ate / best)
    print(
        f"{good} of {len(rows)} sequences within {_ALLOWED:g} × the better predictor (median "
        f"{np.median(excess):.2f}, worst {max(excess):.2f}), {posed} with at least as many frames posed"
    )


if __name__ == "__main__":
    tyro.cli(main)
