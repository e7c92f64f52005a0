"""Cases of weights: safetensors with headers and configurations that no training wrote, and pickles."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

from case import Check, Recipe
from graphs import make_odd
from raw_material import WORLD
from values import JSON_VALUES, Rng, choice, damaged, draw_damage, draw_path, replaced, write

COMMANDS = {
    "map": ["map", WORLD, "--stop", "3", "--out", "out", "--predictor", "IN"],
    "vggt": ["map", WORLD, "--stop", "3", "--out", "out", "--predictor", "vggt:IN"],
    "convert": ["convert", "vggt", "IN", "--out", "out.safetensors"],
    "attention": ["evaluate", "attention", "a=IN", "--source", WORLD, "--frames", "3", "--out", "out.npz"],
    "netvlad": ["refine", "map", "--descriptor", "netvlad:IN"],
    "init": ["train", "tiny", "--out", "out", "--steps", "1", "--init", "IN"],
    "encoder": ["train", "tiny", "--out", "out", "--steps", "1", "--encoder", "IN"],
    "resume": ["train", "tiny", "--out", "run", "--resume", "--steps", "1", "--stop-after", "0"],
}
NAMES = ("in.safetensors", "in.pt", "in.pth", "in.bin", "in.mat", "in.txt")
OBJECTS: dict[str, Any] = {
    "none": None, "list": [1, 2], "number": 3, "text": "x", "dict": {"a": 1}, "empty": {},
    "nested": {"model": {"a": 1}}, "state_dict": {"state_dict": {"a": "b"}}, "numbers": {1: 2}, "bytes": b"x",
}  # fmt: skip


def draw(rng: Rng, material: Path) -> Recipe:
    how = choice(rng, ("config", "config", "config", "config", "header", "header", "bytes", "pt-bytes", "pt-zip",
                       "pickle", "protocol", "bomb", "deep", "odd"))  # fmt: skip
    name = {"pt-bytes": "in.pt", "pt-zip": "in.pt", "bomb": "in.pt"}.get(how) or choice(rng, NAMES[:4])
    if how in ("config", "header", "bytes", "deep"):
        name = "in.safetensors"
    command = choice(
        rng, ("map", "map", "map", "vggt", "convert", "attention", "netvlad", "init", "encoder", "resume")
    )
    if how == "config":
        command = choice(rng, ("map", "map", "map", "vggt", "attention"))
    recipe: Recipe = {"class": "checkpoints", "how": how, "name": name, "command": command}
    header = _header((material / "net.safetensors").read_bytes())
    if how == "config":
        config = json.loads(header["__metadata__"]["config"])
        value = choice(rng, (*JSON_VALUES, "<gone>", 10**5, 3, 64, 4096))
        recipe |= {"path": draw_path(rng, config), "value": value}
    elif how == "header":
        recipe |= {
            "path": draw_path(rng, header),
            "value": choice(rng, (*JSON_VALUES, "<gone>", "F64", "BF16")),
        }
    elif how in ("bytes", "pt-bytes"):
        size = (material / ("net.safetensors" if how == "bytes" else "net.pt")).stat().st_size
        recipe["damage"] = draw_damage(rng, min(size, choice(rng, (200, 20_000, size))))
    elif how == "pt-zip":
        with zipfile.ZipFile(material / "net.pt") as archive:
            recipe["member"] = choice(rng, archive.namelist())
        recipe["damage"] = draw_damage(rng, 300)
    elif how in ("pickle", "protocol"):
        recipe["object"] = choice(rng, list(OBJECTS))
        recipe["protocol"] = int(rng.integers(0, 6))
    elif how == "odd":
        stem = choice(rng, ("folder", "fifo", "zero", "empty", "text", "missing"))
        recipe["name"] = f"{stem}{Path(name).suffix}"
    return recipe


def _header(data: bytes) -> dict[str, Any]:
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def build(recipe: Recipe, folder: Path, material: Path) -> tuple[list[str], Check]:
    path, how = folder / recipe["name"], recipe["how"]
    good = material / ("net.safetensors" if path.suffix == ".safetensors" else "net.pt")
    if how in ("config", "header"):
        write(path, _with_header(good.read_bytes(), recipe))
    elif how in ("bytes", "pt-bytes"):
        write(path, damaged(good.read_bytes(), recipe["damage"]))
    elif how == "pt-zip":
        _write_member(path, good, recipe)
    elif how == "pickle":
        write(path, pickle.dumps(OBJECTS[recipe["object"]], protocol=recipe["protocol"]))
    elif how == "protocol":
        write(path, bytes([0x80, recipe["protocol"] + 200]) + pickle.dumps(OBJECTS[recipe["object"]])[2:])
    elif how == "bomb":
        _write_bomb(path, good)
    elif how == "deep":
        text = ('{"a":' * 3000).encode()
        write(path, len(text).to_bytes(8, "little") + text)
    else:
        make_odd(path)
    command = [part.replace("IN", path.name) for part in COMMANDS[recipe["command"]]]
    if recipe["command"] == "netvlad":
        shutil.copytree(material / "map", folder / "map")
    if recipe["command"] == "resume" and path.is_file() and not path.is_symlink():
        (folder / "run").mkdir()
        shutil.copy(path, folder / "run/state.pt")
    return command, lambda code, folder: None


def _with_header(data: bytes, recipe: Recipe) -> bytes:
    header, body = _header(data), data[8 + int.from_bytes(data[:8], "little") :]
    if recipe["how"] == "config":
        config = json.loads(header["__metadata__"]["config"])
        header["__metadata__"]["config"] = json.dumps(replaced(config, recipe["path"], recipe["value"]))
    else:
        header = replaced(header, recipe["path"], recipe["value"])
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def _write_member(path: Path, good: Path, recipe: Recipe) -> None:
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(path, "w") as out:
        for name in source.namelist():
            data = source.read(name)
            out.writestr(name, damaged(data, recipe["damage"]) if name == recipe["member"] else data)


def _write_bomb(path: Path, good: Path) -> None:
    """A state dict whose first tensor is five gigabytes of zeros, deflated to five megabytes."""
    import torch

    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(8)}, buffer)
    with (
        zipfile.ZipFile(buffer) as source,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out,
    ):
        for name in source.namelist():
            if name.endswith("data/0"):
                with out.open(name, "w", force_zip64=True) as file:
                    for _ in range(64):
                        file.write(bytes(1 << 20))
            else:
                out.writestr(name, source.read(name))
