"""Cases of map folders: contents that no mapper wrote, damage by a disk, and what lies beside the map."""

from __future__ import annotations

import base64
import filecmp
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from case import Check, Recipe
from values import JSON_VALUES, SQL_VALUES, Rng, choice, damaged, draw_damage, draw_path, replaced

from anchor3r.store import load_map
from anchor3r.store.database import CHECKED, META_CHECKSUM, meta_checksum, row_checksum

COLUMNS: dict[str, tuple[str, ...]] = {
    **CHECKED,
    "loops": ("event", "query", "match", "accepted", "reason", "figures", "search"),
    "searches": ("search", "identity", "complete"),
    "refinements": ("id", "name", "search", "settings", "summary"),
    "verdicts": ("name", "event", "accepted", "reason", "figures"),
    "runtime": ("frame", "seconds", "peak_rss_bytes"),
    "meta": ("key", "value"),
}
EXACT = {
    "tum": ["export", "map", "--format", "tum", "--out", "out.tum"],
    "kitti": ["export", "map", "--format", "kitti", "--out", "out.kitti"],
    "ply": ["export", "map", "--format", "ply", "--out", "out.ply"],
    "g2o": ["export", "map", "--format", "g2o", "--out", "out.g2o"],
    "glb": ["export", "map", "--format", "glb", "--out", "out.glb"],
}
"""Commands whose result is compared with that of the sound map where only the disk has done damage."""
COMMANDS = {
    **EXACT,
    "colmap": ["export", "map", "--format", "colmap", "--images", "map", "--out", "out"],
    "nerfstudio": ["export", "map", "--format", "nerfstudio", "--out", "out"],
    "refine": ["refine", "map", "--keyframe-interval", "3"],
    "refine-again": ["refine", "map", "--no-loops", "--name", "again"],
    "densify": ["densify", "map", "--every", "4", "--threads", "1"],
    "fuse": ["fuse", "map"],
    "fuse-predicted": ["fuse", "map", "--depths", "predicted"],
    "mesh": ["export", "map", "--format", "mesh", "--out", "out.ply"],
    "report": ["report", "map", "--out", "out.html"],
    "render": ["render", "map", "--out", "out.png"],
    "evaluate": ["evaluate", "map", "map", "--out", "out"],
    "trajectory": ["evaluate", "trajectory", "map", "map", "--json"],
    "page": ["view", "map", "--save", "out"],
    "merge": ["merge", "map", "other", "--out", "out"],
    "merge-second": ["merge", "other", "map", "--out", "out"],
    "refine-merged": ["refine", "map", "--no-loops", "--name", "again"],
    "tum-merged": ["export", "map", "--format", "tum", "--out", "out.tum"],
    "localise": ["localise", "map", "images", "--fov", "70", "--out", "out.tum"],
    "resume": [
        "map", "world:3?motion=driving&frames=12&width=64&height=48", "--predictor", "ground-truth:0.1,0.01",
        "--out", "map", "--resume",
    ],
}  # fmt: skip
STATEMENTS = (
    "DELETE FROM poses", "DELETE FROM frames", "DELETE FROM points", "DELETE FROM pictures", "DELETE FROM meta",
    "DELETE FROM edge_groups", "DELETE FROM loops", "DELETE FROM snapshots", "DROP TABLE poses",
    "DROP TABLE frames", "DROP TABLE points", "DROP TABLE meta", "DROP TABLE searches", "DROP TABLE verdicts",
    "PRAGMA user_version = 0", "PRAGMA user_version = 1", "PRAGMA user_version = 99", "PRAGMA application_id = 1",
    "ALTER TABLE poses RENAME TO posen", "ALTER TABLE frames DROP COLUMN status",
    "DELETE FROM poses WHERE frame % 2", "DELETE FROM frames WHERE frame % 2", "DELETE FROM meta WHERE key = 'store'",
    "DELETE FROM meta WHERE key = 'identity'", "UPDATE poses SET frame = frame + 1000", "UPDATE frames SET frame = -frame - 1",
    "UPDATE points SET height = 100000, width = 100000", "DELETE FROM poses WHERE name = 'online'",
    "CREATE TRIGGER t AFTER INSERT ON poses BEGIN DELETE FROM frames; END",
    "DROP TABLE points; CREATE VIEW points AS SELECT * FROM frames",
)  # fmt: skip
BESIDE = (
    "view.npz",
    "fused.ply",
    "fused.ply",
    "loops.csv",
    "map.sqlite-wal",
    "map.sqlite-journal",
    "map.sqlite-shm",
    "writer.lock",
)


def draw(rng: Rng, material: Path) -> Recipe:
    how = choice(rng, ("cell", "cell", "cell", "cell", "meta", "meta", "statement", "disk", "disk", "beside"))
    recipe: Recipe = {"class": "maps", "how": how, "command": choice(rng, list(COMMANDS))}
    if how == "cell":
        recipe["cells"] = [_draw_cell(rng) for _ in range(int(rng.integers(1, 3)))]
    elif how == "meta":
        with load_map(material / "map") as scene_map:
            meta = scene_map.meta
        key = choice(rng, list(meta))
        value = choice(rng, (*JSON_VALUES, "<gone>"))
        recipe |= {"key": key, "path": draw_path(rng, meta[key]), "value": value}
    elif how == "statement":
        recipe["statement"] = choice(rng, STATEMENTS)
    elif how == "disk":
        recipe["command"] = choice(rng, (*EXACT, *EXACT, *COMMANDS))
        recipe["damage"] = draw_damage(rng, (material / "map/map.sqlite").stat().st_size)
    else:
        recipe |= {
            "name": choice(rng, BESIDE),
            "as": choice(rng, ("bytes", "empty", "folder", "link", "other", "damage")),
        }
    return recipe


def _draw_cell(rng: Rng) -> dict[str, Any]:
    table = choice(rng, list(COLUMNS))
    column = choice(rng, COLUMNS[table])
    if table in CHECKED and rng.random() < 0.4:
        column = choice(rng, [c for c in COLUMNS[table] if c in _BLOBS] or COLUMNS[table])
    cell = {
        "table": table,
        "column": column,
        "row": int(rng.integers(0, 12)),
        "all": bool(rng.random() < 0.2),
    }
    if column in _BLOBS and rng.random() < 0.6:
        return cell | {"damage": draw_damage(rng, 600)}
    value = choice(rng, SQL_VALUES)
    if isinstance(value, bytes):
        return cell | {"bytes": base64.b64encode(value).decode()}
    return cell | {"value": value}


_BLOBS = ("pose", "covariance", "edges", "information", "points", "colours", "confidence", "jpeg", "true_pose",
          "descriptor", "data", "depth", "normals", "origin")  # fmt: skip


def build(recipe: Recipe, folder: Path, material: Path) -> tuple[list[str], Check]:
    scene_map = folder / "map"
    shutil.copytree(material / ("both" if recipe["command"].endswith("-merged") else "map"), scene_map)
    for name in ("other", "images"):
        if name in COMMANDS[recipe["command"]]:
            shutil.copytree(material / name, folder / name)
    path = scene_map / "map.sqlite"
    if recipe["how"] == "disk":
        path.write_bytes(damaged(path.read_bytes(), recipe["damage"]))
    elif recipe["how"] == "beside":
        _put_beside(scene_map / recipe["name"], recipe, material)
    else:
        _change(path, recipe)
    name = recipe["command"]

    def check(code: int, folder: Path) -> str | None:
        report = folder / "out.html"
        if code and name.startswith("merge") and (folder / "out").exists():
            return "wrong: a part of a merged map was left"
        if code == 0 and report.exists() and b"<script>alert" in report.read_bytes():
            return "wrong: text of a map became a script"
        if (
            code
            or name not in EXACT
            or recipe["how"] not in ("disk", "beside")
            or recipe.get("name") == "fused.ply"
        ):
            return None
        same = filecmp.cmp(folder / f"out.{name}", material / f"map.{name}", shallow=False)
        return None if same else "wrong: another result than that of the sound map, with exit code 0"

    return COMMANDS[name], check


def _put_beside(path: Path, recipe: Recipe, material: Path) -> None:
    kind, before = recipe["as"], path.read_bytes() if path.exists() else b""
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/dev/zero")
    else:
        known = {
            "bytes": b"\x01\xff" * 3000,
            "empty": b"",
            "damage": damaged(before, recipe.get("damage", [])),
        }
        path.write_bytes(known[kind] if kind in known else (material / "graph.npz").read_bytes())


def _change(path: Path, recipe: Recipe) -> None:
    database = sqlite3.connect(path)
    database.create_function("row_checksum", -1, row_checksum, deterministic=True)
    try:
        if recipe["how"] == "statement":
            database.executescript(recipe["statement"])
        elif recipe["how"] == "meta":
            _change_meta(database, recipe)
        else:
            for cell in recipe["cells"]:
                _change_cell(database, cell)
        checksum = str(meta_checksum(database))
        database.execute("UPDATE meta SET value = ? WHERE key = ?", (checksum, META_CHECKSUM))
        database.commit()
        for table, columns in CHECKED.items():  # so that it is the contents that have to be looked at
            database.execute(f"UPDATE {table} SET checksum = row_checksum({', '.join(columns)})")
        database.commit()
    except (sqlite3.Error, OverflowError):
        database.rollback()  # not every value can be stored everywhere; the sound map is a case as well
    finally:
        database.close()


def _change_meta(database: sqlite3.Connection, recipe: Recipe) -> None:
    import json

    found = database.execute("SELECT value FROM meta WHERE key = ?", (recipe["key"],)).fetchone()
    try:
        changed = replaced(json.loads(found[0]) if found else {}, recipe["path"], recipe["value"])
    except (LookupError, TypeError):  # a merged map says other things of itself
        changed = recipe["value"]
    database.execute("UPDATE meta SET value = ? WHERE key = ?", (json.dumps(changed), recipe["key"]))


def _change_cell(database: sqlite3.Connection, cell: dict[str, Any]) -> None:
    table, column, key = cell["table"], cell["column"], COLUMNS[cell["table"]][0]
    rows = database.execute(f"SELECT {key}, {column} FROM {table}").fetchall()
    chosen = rows if cell["all"] else rows[cell["row"] % len(rows) :][:1] if rows else []
    for identity, value in chosen:
        if "damage" in cell:
            value = damaged(value, cell["damage"]) if isinstance(value, bytes) else value
        elif "bytes" in cell:
            value = base64.b64decode(cell["bytes"])
        else:
            value = cell["value"]
        database.execute(f"UPDATE {table} SET {column} = ? WHERE {key} IS ?", (value, identity))
