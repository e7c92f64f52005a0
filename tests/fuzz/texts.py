"""Cases of trajectories, matrices and results files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from case import Check, Recipe
from graphs import DTYPES, NUMBERS, make_odd
from raw_material import WORLD
from values import (
    JSON_VALUES,
    Rng,
    choice,
    damaged,
    draw_damage,
    draw_path,
    draw_text_edits,
    edited,
    replaced,
    write,
)

KINDS = ("tum", "kitti", "euroc")


def draw(rng: Rng, material: Path) -> Recipe:
    how = choice(
        rng, ("lines", "lines", "lines", "bytes", "results", "results", "results-bytes", "matrices", "odd")
    )
    kind = choice(rng, KINDS)
    recipe: Recipe = {
        "class": "texts",
        "how": how,
        "kind": kind,
        "command": choice(rng, ("evaluate", "import")),
    }
    if how == "lines":
        recipe["edits"] = draw_text_edits(rng, (material / f"map.{kind}").read_text())
    elif how == "bytes":
        recipe["damage"] = draw_damage(rng, (material / f"map.{kind}").stat().st_size)
    elif how == "results":
        content = json.loads((material / "results.json").read_text())
        recipe |= {"path": draw_path(rng, content), "value": choice(rng, (*JSON_VALUES, "<gone>"))}
        recipe["command"] = choice(rng, ("compare", "figures"))
    elif how == "results-bytes":
        recipe["damage"] = draw_damage(rng, (material / "results.json").stat().st_size)
        recipe["command"] = choice(rng, ("compare", "figures"))
    elif how == "matrices":
        recipe |= {
            "name": choice(rng, ("poses.npz", "poses.npy")), "value": choice(rng, NUMBERS),
            "dtype": choice(rng, (*DTYPES, None, None, None)), "at": int(rng.integers(0, 192)),
            "shape": choice(rng, (None, None, [12, 16], [4, 4, 12], [192], [1, 12, 4, 4], [0, 4, 4])),
            "command": "import",
        }  # fmt: skip
    else:
        recipe["odd"] = choice(
            rng, ("folder.txt", "fifo.txt", "zero.txt", "missing.txt", "empty.txt", "text.txt")
        )
    return recipe


def build(recipe: Recipe, folder: Path, material: Path) -> tuple[list[str], Check]:
    how, kind = recipe["how"], recipe["kind"]
    path = folder / "in.txt"
    if how == "lines":
        write(path, edited((material / f"map.{kind}").read_text(), recipe["edits"]))
    elif how == "bytes":
        write(path, damaged((material / f"map.{kind}").read_bytes(), recipe["damage"]))
    elif how == "results":
        content = json.loads((material / "results.json").read_text())
        write(path, json.dumps(replaced(content, recipe["path"], recipe["value"])))
    elif how == "results-bytes":
        write(path, damaged((material / "results.json").read_bytes(), recipe["damage"]))
    elif how == "matrices":
        path = folder / recipe["name"]
        _write_matrices(path, material, recipe)
    else:
        path = make_odd(folder / recipe["odd"])
    return _arguments(recipe["command"], path, material, kind), _check_metrics


def _arguments(command: str, path: Path, material: Path, kind: str) -> list[str]:
    good = str(material / f"map.{kind}")
    return {
        "evaluate": ["evaluate", "trajectory", path.name, good, "--json"],
        "import": ["import", path.name, "--source", WORLD, "--out", "out"],
        "compare": ["evaluate", "compare", path.name, str(material / "results.json")],
        "figures": ["evaluate", "figures", "--out", "out", path.name],
    }[command]


def _write_matrices(path: Path, material: Path, recipe: Recipe) -> None:
    poses = np.load(material / "poses.npy")
    with np.errstate(all="ignore"):
        poses.reshape(-1)[recipe["at"]] = recipe["value"]
        if recipe["shape"] is not None:
            poses = np.resize(poses, recipe["shape"])
        if recipe["dtype"] not in (None, "M8[s]"):
            poses = poses.astype(recipe["dtype"])
    if path.suffix == ".npz":
        np.savez(path, poses=poses, timestamps=np.arange(len(poses)) if poses.ndim else np.array(1))
    else:
        np.save(path, poses)


def _check_metrics(code: int, folder: Path) -> str | None:
    text = (folder / "stdout").read_text() if (folder / "stdout").exists() else ""
    if code or not text.startswith("{"):
        return None
    found = json.loads(text)
    values = [v for metrics in found.values() if isinstance(metrics, dict) for v in metrics.values()]
    bad = any(isinstance(v, float) and not np.isfinite(v) for v in values)
    return "wrong: metrics that are no numbers" if bad else None
