"""Cases of `batch`: manifests, what an earlier run has left, and options."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from case import Check, Recipe
from graphs import make_odd
from options import SMALL
from values import (
    JSON_VALUES,
    NUMBERS,
    TEXTS,
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

ROWS: list[dict[str, Any]] = [
    {"source": SMALL, "name": "one", "stop": 3, "predictor": "ground-truth", "refine": True, "export": "tum ply"},
    {"source": SMALL, "start": 1, "stride": 2, "fov": 70.0, "predictor": "ground-truth", "refine": False},
]  # fmt: skip
COLUMNS = ("source", "name", "start", "stop", "stride", "intrinsics", "fov", "distortion", "fisheye", "predictor",
           "refine", "export")  # fmt: skip
HOSTILE = ("../out", "/tmp/x", "a/b", ".", "..", "CON", "x" * 300, "é", "<script>", "a\nb", "stdout", "map", "1,2", "nan,nan,nan,nan",
           "100,100,32,24", "0.1", "1e308", "colmap", "tum tum", "rrd", "x y z", "camera:0", "http://127.0.0.1:1/x", "map.tum")  # fmt: skip
OPTIONS = ("--shard", "--tries", "--map.window", "--map.seed", "--refine.top-k", "--map.predictor")
SHARDS = ("0/1", "1/1", "-1/2", "1/2", "0/0", "a/b", "0/1000000000", "1/2/3", "½/1", "0/2 ")
LEFT = ("one/result.json", "one/map/map.sqlite", "results.csv", "one", "one/map", "index.html")


def draw(rng: Rng, material: Path) -> Recipe:
    how = choice(rng, ("cell", "cell", "cell", "cell", "lines", "bytes", "left", "options", "odd"))
    recipe: Recipe = {"class": "manifests", "how": how, "kind": choice(rng, ("csv", "json"))}
    if how == "cell":
        value = choice(
            rng, (*HOSTILE, *NUMBERS, *TEXTS, *(v for v in JSON_VALUES if recipe["kind"] == "json"))
        )
        recipe |= {"row": int(rng.integers(2)), "column": choice(rng, COLUMNS), "value": value}
    elif how == "lines":
        recipe["edits"] = draw_text_edits(rng, text_of(ROWS, recipe["kind"]))
        if recipe["kind"] == "json":
            recipe |= {"path": draw_path(rng, ROWS), "value": choice(rng, (*JSON_VALUES, "<gone>"))}
    elif how == "bytes":
        recipe["damage"] = draw_damage(rng, len(text_of(ROWS, recipe["kind"])))
    elif how == "left":
        recipe |= {"name": choice(rng, LEFT), "as": choice(rng, ("bytes", "empty", "folder", "link", "json"))}
    elif how == "options":
        option = choice(rng, OPTIONS)
        value = choice(rng, SHARDS if option == "--shard" else NUMBERS if rng.random() < 0.7 else TEXTS)
        recipe["given"] = [option, value]
    else:
        recipe["odd"] = choice(rng, ("folder.csv", "fifo.csv", "zero.json", "empty.csv", "empty.json", "text.json",
                                     "text.csv", "missing.csv", "long-line.csv"))  # fmt: skip
    return recipe


def text_of(rows: list[dict[str, Any]], kind: str) -> str:
    """Rows as a manifest."""
    if kind == "json":
        return json.dumps(rows, indent=1)
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, restval="")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def build(recipe: Recipe, folder: Path, material: Path) -> tuple[list[str], Check]:
    how, kind = recipe["how"], recipe["kind"]
    rows, path = json.loads(json.dumps(ROWS)), folder / f"in.{kind}"
    if how == "cell":
        rows[recipe["row"]][recipe["column"]] = recipe["value"]
    text = text_of(rows, kind)
    if how == "lines":
        text = (
            json.dumps(replaced(rows, recipe["path"], recipe["value"]))
            if kind == "json"
            else edited(text, recipe["edits"])
        )
    write(path, damaged(text.encode(), recipe["damage"]) if how == "bytes" else text)
    if how == "odd":
        path = make_odd(folder / recipe["odd"])
    if how == "left":
        _leave(folder / "out" / recipe["name"], recipe["as"])
    known = {entry.name for entry in folder.iterdir()} | {"out", "stdout", "stderr"}

    def check(code: int, folder: Path) -> str | None:
        if more := {entry.name for entry in folder.iterdir()} - known:
            return f"wrong: wrote {sorted(more)[0]!r} beside the folder that it was given"
        page = folder / "out/index.html"
        if page.is_file() and b"<script>" in page.read_bytes():
            return "wrong: text of a manifest became a script"
        table = folder / "out" / _table_name(recipe)
        return "wrong: no table after exit code 0" if code == 0 and not table.is_file() else None

    return ["batch", path.name, "--out", "out", *recipe.get("given", [])], check


def _table_name(recipe: Recipe) -> str:
    given = recipe.get("given", ["", ""])
    part, _, count = given[1].partition("/")
    return f"results-{part}-of-{count}.csv" if given[0] == "--shard" and count != "1" else "results.csv"


def _leave(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        (path / "something").mkdir(parents=True)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(
            {"bytes": b"\x01\xff" * 3000, "empty": b"", "json": b'{"stamp": {"row": []}, "frames": "x"}'}[
                kind
            ]
        )
