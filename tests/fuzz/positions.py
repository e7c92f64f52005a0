"""Cases of what is known of a map from elsewhere: measured positions in every format, speeds, distances."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from case import Check, Recipe
from graphs import make_odd
from raw_material import WORLD
from values import (
    NUMBERS,
    TEXTS,
    Rng,
    choice,
    damaged,
    draw_damage,
    draw_number_edits,
    draw_text_edits,
    edited,
    write,
)

from anchor3r.store import load_map

TRACKS = ("track.gpx", "track.nmea", "track.csv", "local.csv", "track.srt", "oxts/timestamps.txt",
          "oxts/data/0000000003.txt", "speed.txt", "gps5.mp4", "gps9.mp4", "directions.csv", "surveyed.txt")  # fmt: skip
GIVEN_BY = {"speed.txt": "--speed", "directions.csv": "--directions", "surveyed.txt": "--surveyed"}
"""Options that take files; the others are for --gnss."""
ENDS = ("0", "9", "5:10,10", "5:63,47", "5:64,48", "5:1.2.3,4", "5:.,.", "5:9e9,1", "999", "9" * 5000, "5:" + "9" * 400 + ",1",
        "-1", "5:", "5:1", "5:,1", "١:1,1", "nan")  # fmt: skip
"""Of taped distances."""
OPTIONS = ("--gnss-offset", "--gnss-sigma", "--distance-sigma", "--speed-sigma", "--keyframe-interval")
DOCUMENTS = {
    "entities": '<?xml version="1.0"?><!DOCTYPE g [<!ENTITY a "{}">]><gpx>{}</gpx>'.format(
        "x" * 50_000, "&a;" * 5_000
    ),
    "laughs": '<?xml version="1.0"?><!DOCTYPE g [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {chr(98 + k)} "{f"&{chr(97 + k)};" * 10}">' for k in range(12))
    + "]><gpx>&m;</gpx>",
    "outside": '<?xml version="1.0"?><!DOCTYPE g [<!ENTITY a SYSTEM "file:///etc/passwd">]><gpx><name>&a;</name></gpx>',
    "deep": "<a>" * 100_000,
    "wide": "<gpx>" + "<b/>" * 100_000 + "</gpx>",
    "other": '<?xml version="1.0" encoding="UTF-16"?><gpx></gpx>',
    "unknown": '<?xml version="1.0" encoding="nonsense"?><gpx></gpx>',
}
"""XML that was made to hurt."""


def draw(rng: Rng, material: Path) -> Recipe:
    how = choice(rng, ("lines", "numbers", "numbers", "numbers", "bytes", "options", "xml", "odd"))
    name = choice(rng, TRACKS)
    recipe: Recipe = {"class": "positions", "how": how, "name": name, "given": _draw_options(rng, how)}
    if name.endswith(".mp4") and how in ("lines", "numbers"):
        how = recipe["how"] = "bytes"
    if how != "options" and rng.random() < 0.3:
        recipe["command"] = "map"
    content = (material / "tracks" / name).read_bytes()
    text = content.decode(errors="replace")
    if how == "lines":
        recipe["edits"] = draw_text_edits(rng, text)
    elif how == "numbers":
        recipe["edits"] = draw_number_edits(rng, text)
    elif how == "bytes":
        recipe["damage"] = draw_damage(rng, len(content))
    elif how == "xml":
        recipe |= {"name": "track.gpx", "document": choice(rng, list(DOCUMENTS))}
    elif how == "odd":
        stem = choice(rng, ("folder", "fifo", "zero", "empty", "text", "missing"))
        recipe["odd"] = f"{stem}.{choice(rng, ('gpx', 'nmea', 'csv', 'srt', 'txt'))}"
    return recipe


def _draw_options(rng: Rng, how: str) -> list[str]:
    given: list[str] = []
    if how == "options":
        given += [choice(rng, OPTIONS), choice(rng, NUMBERS if rng.random() < 0.8 else TEXTS)]
    if how == "options" and rng.random() < 0.4:
        given += ["--antenna", *(choice(rng, NUMBERS) for _ in range(3))]
    if how == "options" and rng.random() < 0.4:
        given += ["--distance", choice(rng, ENDS), choice(rng, ENDS), choice(rng, ("10", *NUMBERS))]
    if how == "options" and rng.random() < 0.2:
        given += ["--camera-height", choice(rng, NUMBERS)]
    return [*given, "--gnss-offset", "auto"] if rng.random() < 0.2 else given


def build(recipe: Recipe, folder: Path, material: Path) -> tuple[list[str], Check]:
    shutil.copytree(material / "map", folder / "map")
    shutil.copytree(material / "tracks", folder / "tracks")
    name, how = recipe["name"], recipe["how"]
    path = folder / "tracks" / name
    if how in ("lines", "numbers"):
        write(path, _summed(edited(path.read_text(), recipe["edits"]), path))
    elif how == "bytes":
        write(path, damaged(path.read_bytes(), recipe["damage"]))
    elif how == "xml":
        write(path, DOCUMENTS[recipe["document"]])
    elif how == "odd":
        path = make_odd(folder / recipe["odd"])
    option = GIVEN_BY.get(name, "--gnss")
    given = folder / "tracks/oxts" if "oxts" in name and how != "odd" else path
    track = str(given.relative_to(folder))
    if recipe.get("command") == "map" and option == "--gnss":
        shutil.rmtree(folder / "map")
        command = ["map", WORLD, "--predictor", "ground-truth:0.1,0.01", "--out", "map"]
    else:
        command = ["refine", "map", "--no-loops"]
    return [*command, option, track, *recipe["given"]], check_poses


def _summed(text: str, path: Path) -> str:
    """With the checksums that sentences of NMEA end with, so that it is the contents that are looked at."""
    if path.suffix != ".nmea":
        return text
    lines = []
    for line in text.splitlines():
        body = line.partition("*")[0]
        total = 0
        for character in body[1:]:
            total ^= ord(character)
        lines.append(f"{body}*{total & 255:02X}")
    return "\n".join(lines) + "\n"


def check_poses(code: int, folder: Path) -> str | None:
    """After exit code 0 the map opens, and every pose of it is finite."""
    if code:
        return None
    with load_map(folder / "map") as scene_map:
        for name in scene_map.trajectory_names():
            poses: Any = scene_map.trajectory(name).camera_from_world
            if not (np.isfinite(poses.rotation).all() and np.isfinite(poses.translation).all()):
                return f"wrong: poses '{name}' that are no numbers"
    return None
