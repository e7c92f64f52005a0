"""Cases of the data sets that networks are trained on: a miniature of each with one file of it damaged."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from case import Check, Recipe
from values import Rng, choice, damaged, draw_damage, draw_number_edits, edited, write

sys.path.insert(0, str(Path(__file__).parents[1] / "datasets"))

NAMES = ("blendedmvs", "scannet", "hypersim", "mapillary", "replica", "mapfree", "mvs_synth", "vkitti2", "ase", "spring", "waymo",
         "wildrgbd", "co3d", "megadepth", "dl3dv")  # fmt: skip
WAYS = ("bytes", "bytes", "numbers", "numbers", "empty", "gone", "folder", "zero", "other")


def write_miniatures(folder: Path) -> None:
    """One of each."""
    from dataset_miniatures import write as write_miniature

    for name in NAMES:
        write_miniature(name, folder / name)


def draw(rng: Rng, material: Path) -> Recipe:
    name = choice(rng, NAMES)
    root = material / "sets" / name
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    # Pictures are many; what describes them is what has to be looked at.
    tables = [file for file in files if Path(file).suffix not in (".png", ".jpg")]
    file = choice(rng, tables if tables and rng.random() < 0.75 else files)
    recipe: Recipe = {"class": "training_sets", "name": name, "file": file, "how": choice(rng, WAYS)}
    recipe["command"] = choice(rng, ("check", "check", "check", "list", "pack"))
    if recipe["how"] == "bytes":
        recipe["damage"] = draw_damage(rng, (root / file).stat().st_size)
    elif recipe["how"] == "numbers":
        recipe["edits"] = draw_number_edits(rng, (root / file).read_text(errors="replace"))
    return recipe


def build(recipe: Recipe, folder: Path, material: Path) -> tuple[list[str], Check]:
    root = folder / "sets" / recipe["name"]
    shutil.copytree(material / "sets" / recipe["name"], root)
    path, how = root / recipe["file"], recipe["how"]
    if how == "bytes":
        write(path, damaged(path.read_bytes(), recipe["damage"]))
    elif how == "numbers":
        write(
            path,
            edited(path.read_text(errors="surrogateescape"), recipe["edits"]).encode(
                errors="surrogateescape"
            ),
        )
    elif how == "other":
        shutil.copy(material / "graph.npz", path)
    else:
        path.unlink()
        if how == "empty":
            path.touch()
        elif how == "folder":
            path.mkdir()
        elif how == "zero":
            path.symlink_to("/dev/zero")
    name = recipe["name"]
    return {
        "check": ["data", "check", name, f"sets/{name}", "--sequences", "1", "--pairs", "2"],
        "list": ["data", "list", "sets"],
        "pack": ["data", "pack", f"sets/{name}", "out"],
    }[recipe["command"]], lambda code, folder: None
