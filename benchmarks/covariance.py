"""Whether poses lie as near to the truth as their covariances say, online and refined, on worlds.

Each world is mapped as a drive (`kind=street&motion=driving`) and by hand (in a room), and refined with its
loops. Prints, for each map, the share of true poses within the 50 % and the 95 % ellipsoid of the
covariances, as `anchor3r evaluate` does: of online poses relative to the frame before, in the scale that the
map has there, of refined poses relative to the trajectory as a whole. One trajectory has few independent
errors, so that its own share is often near 0 or 100 %; the share of all poses is what is due. Writes
covariance.json; maps that were finished in an earlier run into the same folder are read back.

    python benchmarks/covariance.py --seeds 201 202 203 --predictor features
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
import tyro

from anchor3r import load_map, map_source, refine_map
from anchor3r.evaluation.metrics import Alignment
from anchor3r.evaluation.scoring import scored_trajectory
from anchor3r.geometry import SE3
from anchor3r.pipeline.settings import MapSettings, RefineSettings
from anchor3r.sources.frame import Frame
from anchor3r.sources.worlds import WorldSource
from anchor3r.threads import limited_threads
from anchor3r.trajectory import Trajectory

_KINDS = {"drive": "kind=street&motion=driving", "by hand": "kind=room&motion=handheld"}
_SIZES = {"features": (320, 240), "tiny": (128, 96)}
_GOAL = (90.0, 98.0)


class _KnownWorld(WorldSource):
    """A world that remembers where its frames were taken."""

    def __init__(self, seed: int, query: str) -> None:
        super().__init__(f"world:{seed}?{query}", f"{seed}?{query}", slice(None))
        self._poses: dict[int, SE3] = {}

    def _load(self, index: int) -> Frame:
        frame = super()._load(index)
        assert frame.camera_from_world is not None
        self._poses[index] = frame.camera_from_world
        return frame

    def truth(self) -> Trajectory:
        """Of the frames that were read."""
        frames = sorted(self._poses)
        poses = SE3.from_matrix(np.stack([self._poses[k].matrix() for k in frames]))
        return Trajectory(frames=np.array(frames), rotation=poses.rotation, center=np.asarray(poses.center()))


def shares_of(seed: int, query: str, predictor: str, loops: bool) -> dict[str, float]:
    """The shares of one map, of its largest component, in percent."""
    with tempfile.TemporaryDirectory() as folder, limited_threads(1):
        with _KnownWorld(seed, query) as source:
            map_source(source, f"{folder}/map", MapSettings(predictor=predictor))
            truth = source.truth()
        refined = refine_map(f"{folder}/map", RefineSettings(loops=loops))
        found: dict[str, float] = {"poses": refined["frames"], "loops": refined["accepted"]}
        with load_map(f"{folder}/map") as scene_map:
            for name in ("online", "offline"):
                scored = scored_trajectory(
                    scene_map.trajectory(name), truth, Alignment.SIM3, is_online=name == "online"
                )
                if scored is not None:
                    found |= {f"{name}_{key.removesuffix('_percent')}": v for key, v in scored.within.items()}
    return found


def main(
    seeds: tuple[int, ...] = tuple(range(101, 121)),
    predictor: str = "features",
    frames: int = 120,
    loops: bool = True,
    only: Literal["drive", "by hand"] | None = None,
    out: Path = Path("out/covariance"),
) -> None:
    width, height = _SIZES.get(predictor, (320, 240))
    out.mkdir(parents=True, exist_ok=True)
    file = out / "covariance.json"
    rows: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {}
    kinds = {name: kind for name, kind in _KINDS.items() if only in (None, name)}
    for seed in seeds:
        for name, kind in kinds.items():
            key = f"{seed} {name}, {frames} frames, {predictor}" + ("" if loops else ", no loops")
            if key not in rows:
                query = f"{kind}&frames={frames}&width={width}&height={height}"
                rows[key] = shares_of(seed, query, predictor, loops)
                file.write_text(json.dumps(rows, indent=1))
            print(f"{key}: " + ", ".join(f"{k} {v:.1f}" for k, v in rows[key].items()), flush=True)
    for name in kinds:
        for pose in ("online", "offline"):
            of_kind = [row for key, row in rows.items() if f" {name}," in key and f"{pose}_within_95" in row]
            if not of_kind:
                continue
            weight = [row["poses"] for row in of_kind]
            half, most = (
                np.array([row[f"{pose}_within_{percent}"] for row in of_kind]) for percent in (50, 95)
            )
            reached = int(((most >= _GOAL[0]) & (most <= _GOAL[1])).sum())
            print(
                f"{name}, {pose}: {np.average(half, weights=weight):.1f} % of all poses within 50 %, "
                f"{np.average(most, weights=weight):.1f} % within 95 %; by map {np.median(most):.1f} % "
                f"(median), {most.min():.1f} to {most.max():.1f} %, {reached} of {len(most)} from "
                f"{_GOAL[0]:.0f} to {_GOAL[1]:.0f} %, {int((most > _GOAL[1]).sum())} above"
            )


if __name__ == "__main__":
    tyro.cli(main)
