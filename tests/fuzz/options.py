"""Cases of options with values that make no sense, and outputs that would destroy something."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
from case import Check, Recipe
from raw_material import WORLD
from values import NUMBERS, TEXTS, Rng, choice

from anchor3r.store import load_map

SMALL = "world:3?motion=driving&frames=6&width=32&height=24"
OPTIONS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    # command: what makes it whole, and options to which anything is given
    "map": (
        ["map", SMALL, "--out", "out", "--predictor", "ground-truth"],
        ("--window", "--every", "--seed", "--threads", "--start", "--stop", "--stride", "--fov", "--intrinsics",
         "--distortion", "--fisheye", "--device", "--dtype", "--predictor", "--camera", "--order"),
    ),
    "refine": (
        ["refine", "map"],
        ("--keyframe-interval", "--top-k", "--descriptor", "--predictor", "--threads", "--name", "--method",
         "--scale", "--accept-loop", "--reject-loop", "--device"),
    ),
    "densify": (["densify", "map"], ("--size", "--every", "--fill", "--threads", "--poses")),
    "fuse": (
        ["fuse", "map", "--depths", "predicted", "--min-component", "10", "--min-views", "1"],
        ("--voxel", "--confidence", "--min-views", "--min-component", "--truncation", "--memory-mb", "--poses"),
    ),
    "batch": (
        ["batch", "manifest.csv", "--out", "out"],
        ("--shard", "--tries", "--map.window", "--map.seed", "--refine.top-k", "--refine.keyframe-interval"),
    ),
    "distances": (
        ["refine", "map", "--no-loops", "--distance", "0", "9", "10"],
        ("--distance-sigma", "--gnss-sigma", "--gnss-offset", "--gnss", "--speed", "--scale", "--method"),
    ),
    "export": (
        ["export", "map", "--format", "ply", "--out", "out.ply"],
        ("--poses", "--frames", "--component", "--gaps", "--confidence", "--voxel", "--max-points", "--format",
         "--images", "--cameras", "--points", "--max-faces"),
    ),
    "render": (["render", "map", "--out", "out.png"], ("--size", "--view", "--poses", "--points", "--confidence")),
    "report": (["report", "map", "--out", "out.html"], ("--poses",)),
    "view": (["view", "map", "--save", "out"], ("--points", "--poses", "--port")),
    "solve": (["solve", "graph.npz"], ("--method", "--loss", "--out", "--report")),
    "world": (
        ["world", "--out", "out", "--frames", "1", "--width", "16", "--height", "16"],
        ("--seed", "--kind", "--motion", "--fov", "--width", "--height", "--frames"),
    ),
    "evaluate": (
        ["evaluate", "trajectory", "map.tum", "map.tum", "--json"],
        ("--align", "--estimate-format", "--reference-format", "--max-time-difference", "--poses"),
    ),
    "evaluate-map": (["evaluate", "map", "map", "--out", "out"], ("--align", "--poses")),
    "worlds": (
        ["evaluate", "worlds", "--out", "out", "--seeds", "x", "--motions", "driving", "--frames", "2",
         "--predictor", "ground-truth"],
        ("--seeds", "--workers", "--threads", "--window"),
    ),
    "import": (
        ["import", "map.tum", "--source", SMALL, "--out", "out"],
        ("--window", "--max-time-difference", "--rotation-sigma-deg", "--translation-sigma", "--depth-units",
         "--pairing", "--depth", "--start", "--stop", "--stride", "--source"),
    ),
    "train": (
        ["train", "tiny", "--out", "out", "--cost"],
        ("--steps", "--clips", "--accumulate", "--seed", "--sharding", "--variant", "--init", "--data"),
    ),
    "attention": (
        ["evaluate", "attention", "a=net.safetensors", "--source", SMALL, "--out", "out.npz", "--frames", "2"],
        ("--frames", "--start", "--stride", "--source"),
    ),
    "data": (["data", "check", "tartanair", "in"], ("--sequences", "--pairs", "--seed", "--out")),
}  # fmt: skip
WORLDS = ("frames", "width", "height", "horizontal_fov_deg", "samples", "noise", "blur", "kind", "motion", "seed",
          "texture_folder", "texture_bank", "brightness", "exposure_drift", "light",
          "unknown")  # fmt: skip
OUTPUTS: dict[str, list[str]] = {
    "export-ply": ["export", "map", "--format", "ply", "--out"],
    "export-tum": ["export", "map", "--format", "tum", "--out"],
    "export-colmap": ["export", "map", "--format", "colmap", "--images", "map", "--out"],
    "export-glb": ["export", "map", "--format", "glb", "--out"],
    "export-rrd": ["export", "map", "--format", "rrd", "--out"],
    "export-mcap": ["export", "map", "--format", "mcap", "--out"],
    "export-las": ["export", "map", "--format", "las", "--out"],
    "export-mesh": ["export", "map", "--format", "mesh", "--out"],
    "batch": ["batch", "manifest.csv", "--out"],
    "demo": ["demo", "--frames", "6", "--out"],
    "render": ["render", "map", "--out"],
    "report": ["report", "map", "--out"],
    "view": ["view", "map", "--save"],
    "solve": ["solve", "graph.npz", "--out"],
    "solve-report": ["solve", "graph.npz", "--report"],
    "evaluate": ["evaluate", "trajectory", "map.tum", "map.tum", "--out"],
    "evaluate-map": ["evaluate", "map", "map", "--out"],
    "map": ["map", SMALL, "--predictor", "ground-truth", "--out"],
    "import": ["import", "map.tum", "--source", WORLD, "--out"],
    "world": ["world", "--frames", "1", "--width", "16", "--height", "16", "--out"],
    "train": ["train", "tiny", "--steps", "1", "--init", "missing.safetensors", "--out"],
    "convert": ["convert", "vggt", "net.safetensors", "--out"],
    "attention": ["evaluate", "attention", "a=net.safetensors", "--source", SMALL, "--frames", "2", "--out"],
    "localise": ["localise", "map", "images", "--fov", "70", "--out"],
    "localise-one": ["localise", "map", "images/0.png", "--fov", "70", "--out"],
    "merge": ["merge", "map", "other", "--out"],
    "compare": ["evaluate", "compare", "results.json", "--out"],
    "live": ["map", SMALL, "--predictor", "ground-truth", "--out", "made", "--rerun"],
}
PLACES = (
    "map/map.sqlite", "map/writer.lock", "map", "map/", "graph.npz", "map.tum", "net.safetensors", "results.json",
    "/dev/null", "/dev/full", "/dev/stdout", ".", "..", "/", "", " ", "-", "x" * 300, "a/" * 2000 + "b", "map.tum/x",
    "/proc/x", "/proc/self/mem", "/sys/x", "deep/er/out.tum", "link", "fifo", "dangling", "folder", "out\nline.ply",
    "<script>.html", "é.ply", "./map/../map/map.sqlite", "hard", "planted.tum", "/dev/null/x", "out.tum", "out.txt",
    "map/fused.ply", "images/0.png", "other", "live.rrd", "link.rrd", "fifo.rrd", "\udcff.rrd", "out.csv",
    "CON.txt", "a:b.tum", "~/x/../../y", "\udcff.ply",
)  # fmt: skip
PRECIOUS = ("map/map.sqlite", "other/map.sqlite", "victim")
INPUTS = ("graph.npz", "map.tum", "net.safetensors", "manifest.csv", "results.json", "images/0.png")
"""Files that must not change if the command reads them; other ordinary files may be replaced."""
WRITES_ITS_MAP = ("refine", "densify", "fuse", "distances", "localise", "localise-one")
WRITES_THE_SURFACE = ("refine", "densify", "fuse", "view")


def draw(rng: Rng, material: Path) -> Recipe:
    how = choice(rng, ("option", "option", "option", "world", "output", "output", "words"))
    recipe: Recipe = {"class": "options", "how": how}
    if how == "option":
        command = choice(rng, list(OPTIONS))
        given = []
        for _ in range(int(rng.integers(1, 3))):
            given += [choice(rng, OPTIONS[command][1]), choice(rng, NUMBERS if rng.random() < 0.7 else TEXTS)]
        recipe |= {"command": command, "given": given}
    elif how == "world":
        pairs = [
            f"{choice(rng, WORLDS)}={choice(rng, (*NUMBERS, *TEXTS[:14]))}"
            for _ in range(int(rng.integers(1, 3)))
        ]
        recipe["uri"] = f"world:{choice(rng, (*NUMBERS, '3', '3', '3', '3'))}?" + "&".join(pairs)
    elif how == "output":
        recipe |= {"command": choice(rng, list(OUTPUTS)), "place": choice(rng, PLACES)}
    else:
        words = (
            "map",
            "refine",
            "solve",
            "--out",
            "--help",
            "export",
            "evaluate",
            "data",
            "x",
            "-h",
            "--version",
            *TEXTS,
        )
        recipe["words"] = [choice(rng, words) for _ in range(int(rng.integers(0, 5)))]
        if "view" in recipe["words"]:
            recipe["words"] = ["view"]
    return recipe


def build(recipe: Recipe, folder: Path, material: Path) -> tuple[list[str], Check]:
    _lay_out(folder, material)
    how = recipe["how"]
    if how == "option":
        arguments = [*OPTIONS[recipe["command"]][0], *recipe["given"]]
    elif how == "world":
        arguments = ["map", recipe["uri"], "--predictor", "ground-truth", "--stop", "2", "--out", "out"]
    elif how == "output":
        arguments = [*OUTPUTS[recipe["command"]], recipe["place"]]
    else:
        arguments = recipe["words"]
    known = [*INPUTS, *([] if recipe.get("command") in WRITES_THE_SURFACE else ["map/fused.ply"])]
    read = [name for name in known if any(name.split("/")[0] in argument for argument in arguments[:-1])]
    before = {name: _digest(folder / name) for name in (*PRECIOUS, *read)}

    def check(code: int, folder: Path) -> str | None:
        changed = [name for name in before if _digest(folder / name) != before[name]]
        if recipe.get("command") in WRITES_ITS_MAP:
            changed = [name for name in changed if name != "map/map.sqlite"]
        if changed:
            return f"wrong: {changed[0]} was changed"
        return None if code else _unreadable(folder / "map")

    return arguments, check


def _lay_out(folder: Path, material: Path) -> None:
    shutil.copytree(material / "map", folder / "map")
    for name in ("other", "images"):
        shutil.copytree(material / name, folder / name)
    (folder / "link.rrd").symlink_to("victim")
    os.mkfifo(folder / "fifo.rrd")
    for name in ("graph.npz", "map.tum", "net.safetensors", "results.json", "manifest.csv"):
        shutil.copy(material / name, folder / name)
    (folder / "victim").write_text("precious")
    (folder / "folder").mkdir()
    (folder / "folder/file").touch()
    (folder / "link").symlink_to("victim")
    (folder / "dangling").symlink_to("nowhere")
    (folder / ".planted.tum.unfinished").symlink_to("victim")
    (folder / "hard").hardlink_to(folder / "victim")
    os.mkfifo(folder / "fifo")


def _unreadable(folder: Path) -> str | None:
    """What is wrong with the poses of a map after a command has ended well."""
    with load_map(folder) as scene_map:
        for name in scene_map.trajectory_names():
            if not np.isfinite(scene_map.trajectory(name).center).all():
                return f"wrong: {name} poses that are no numbers"
    return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "gone"
