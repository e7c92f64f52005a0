"""Whether online poses lie as near to the truth as their covariances say, on worlds.

Each world is mapped online as a drive (`kind=street&motion=driving`) and by hand (in a room). Prints, for
each map, the share of true poses within the 50 % and the 95 % ellipsoid of the pose's covariance relative to
the frame before, in the scale that the map has there, as `anchor3r evaluate` does; then medians and how many
maps have 90 to 98 % within the latter. Writes covariance.json.

    python benchmarks/covariance.py --seeds 101 102 103 --predictor features
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tyro

from anchor3r.evaluation.metrics import ellipsoid_shares, local_scales, step_errors
from anchor3r.geometry import SE3
from anchor3r.pipeline.mapper import Mapper
from anchor3r.predictors.loading import load_predictor
from anchor3r.sources import open_source
from anchor3r.threads import limited_threads

_KINDS = {"drive": "kind=street&motion=driving", "by hand": "kind=room&motion=handheld"}
_SIZES = {"features": (320, 240), "tiny": (128, 96)}
_GOAL = (90.0, 98.0)


def shares_of(uri: str, predictor: str) -> dict[str, float]:
    """The shares of one map, of its largest component."""
    mapper, poses, truth = Mapper(load_predictor(predictor)), [], []
    with limited_threads(1), open_source(uri) as source:
        for frame in source.frames():
            update = mapper.step(frame)
            if update.pose is not None and frame.camera_from_world is not None:
                poses.append(update.pose)
                truth.append(frame.camera_from_world.inverse().matrix())
    component = np.array([pose.component for pose in poses])
    chosen = np.flatnonzero(component == np.bincount(component).argmax())
    estimated = SE3.from_matrix(np.stack([poses[k].camera_from_world.inverse().matrix() for k in chosen]))
    true = SE3.from_matrix(np.stack([truth[k] for k in chosen]))
    errors = step_errors(estimated, true, local_scales(estimated, true))
    unknown = np.full((6, 6), np.nan)
    covariance = np.stack([unknown if (c := poses[k].covariance) is None else c for k in chosen[1:]])
    return ellipsoid_shares(errors, covariance)


def main(
    seeds: tuple[int, ...] = tuple(range(101, 121)),
    predictor: str = "features",
    frames: int = 150,
    out: Path = Path("out/covariance"),
) -> None:
    width, height = _SIZES.get(predictor, (320, 240))
    rows: dict[str, dict[str, float]] = {}
    for seed in seeds:
        for name, kind in _KINDS.items():
            uri = f"world:{seed}?{kind}&frames={frames}&width={width}&height={height}"
            found = rows[f"{seed} {name}"] = shares_of(uri, predictor)
            print(f"{seed} {name}: " + ", ".join(f"{k} {v:.1f}" for k, v in found.items()), flush=True)
    for name in _KINDS:
        within = np.array([row["within_95_percent"] for key, row in rows.items() if key.endswith(name)])
        reached = int(((within >= _GOAL[0]) & (within <= _GOAL[1])).sum())
        print(
            f"{name}: median {np.median(within):.1f} %, {within.min():.1f} to {within.max():.1f} %; "
            f"{reached} of {len(within)} from {_GOAL[0]:.0f} to {_GOAL[1]:.0f} %, "
            f"{int((within > _GOAL[1]).sum())} above"
        )
    out.mkdir(parents=True, exist_ok=True)
    (out / "covariance.json").write_text(json.dumps({"predictor": predictor, "maps": rows}, indent=1))


if __name__ == "__main__":
    tyro.cli(main)
