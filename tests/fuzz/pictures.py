"""Cases of images, videos and folders of data sets."""

from __future__ import annotations

import shutil
import struct
import zlib
from pathlib import Path

from case import Check, Recipe
from graphs import make_odd
from values import Rng, choice, damaged, draw_damage, draw_number_edits, draw_text_edits, edited, write

SUFFIXES = ("png", "jpg", "webp", "tif", "bmp", "ppm", "jp2")
TABLES = {
    "kitti": ("kitti:IN/03", ("sequences/03/calib.txt", "sequences/03/times.txt", "poses/03.txt")),
    "tum": ("tum:IN", ("rgb.txt", "groundtruth.txt")),
    "7scenes": ("7scenes:IN", ("frame-000000.pose.txt", "frame-000002.pose.txt")),
    "euroc": (
        "euroc:IN",
        ("mav0/cam0/data.csv", "mav0/cam0/sensor.yaml", "mav0/state_groundtruth_estimate0/data.csv"),
    ),
    "icl": ("icl-nuim:IN", ("room.gt.freiburg",)),
    "replica": ("replica:IN/room0", ("room0/traj.txt", "cam_params.json")),
    "eth3d": ("eth3d:IN", ("rgb.txt", "groundtruth.txt", "calibration.txt")),
}
SCRIPTS = (
    "ffconcat version 1.0\nfile secret.mp4\n", "#EXTM3U\n#EXTINF:1,\nsecret.mp4\n#EXT-X-ENDLIST\n",
    "v=0\nc=IN IP4 127.0.0.1\nm=video 1 RTP/AVP 96\n", "<?xml version='1.0'?><MPD></MPD>", "#!MP4\n",
)  # fmt: skip


def draw(rng: Rng, material: Path) -> Recipe:
    how = choice(
        rng,
        (
            "image",
            "image",
            "image",
            "size",
            "video",
            "video",
            "bag",
            "bag",
            "table",
            "table",
            "gone",
            "script",
            "odd",
        ),
    )
    recipe: Recipe = {"class": "pictures", "how": how}
    if how == "image":
        suffix = choice(rng, SUFFIXES)
        recipe |= {"suffix": suffix, "damage": draw_damage(rng, (material / f"0.{suffix}").stat().st_size)}
        recipe["all"] = bool(rng.random() < 0.5)
    elif how == "size":
        recipe |= {
            "width": choice(rng, (0, 1, 7, 13_000, 60_000, 2**31 - 1)),
            "height": choice(rng, (0, 1, 13_000, 60_000)),
        }
    elif how == "video":
        recipe["damage"] = draw_damage(rng, (material / "clip.mp4").stat().st_size)
    elif how == "bag":
        name = choice(rng, ("run.bag", "run.mcap", "run.db3"))
        recipe |= {"name": name, "damage": draw_damage(rng, (material / name).stat().st_size)}
    elif how in ("table", "gone"):
        kind = choice(rng, list(TABLES))
        name = choice(rng, TABLES[kind][1])
        recipe |= {
            "kind": kind,
            "name": name,
            "edits": choice(rng, (draw_number_edits, draw_text_edits))(
                rng, (material / kind / name).read_text()
            ),
        }
        recipe["predictor"] = choice(rng, ("ground-truth", "features"))
    elif how == "script":
        recipe |= {
            "script": choice(rng, SCRIPTS),
            "suffix": choice(rng, ("mp4", "avi", "mkv", "ts", "mjpeg")),
        }
    else:
        recipe["odd"] = choice(rng, ("folder.mp4", "fifo.mp4", "zero.mp4", "empty.mp4", "fifo.png", "zero.png",
                                     "empty.png", "text.jpg", "folder.png", "missing.png", "fifo.tif"))  # fmt: skip
    return recipe


def build(recipe: Recipe, folder: Path, material: Path) -> tuple[list[str], Check]:
    how, source, predictor = recipe["how"], "in", recipe.get("predictor", "features")
    if how == "image":
        for number in range(4):
            data = (material / f"{number}.{recipe['suffix']}").read_bytes()
            bad = recipe["all"] or number == 1
            write(
                folder / f"in/{number}.{recipe['suffix']}", damaged(data, recipe["damage"]) if bad else data
            )
    elif how == "size":
        write(folder / "in/0.png", _png(recipe["width"], recipe["height"]))
    elif how == "video":
        source = "in.mp4"
        write(folder / source, damaged((material / "clip.mp4").read_bytes(), recipe["damage"]))
    elif how == "bag":
        write(folder / recipe["name"], damaged((material / recipe["name"]).read_bytes(), recipe["damage"]))
        source = f"bag:{recipe['name']}"
    elif how in ("table", "gone"):
        uri = TABLES[recipe["kind"]][0]
        source = uri.replace("IN", "in")
        shutil.copytree(material / recipe["kind"], folder / "in")
        path = folder / "in" / recipe["name"]
        path.unlink() if how == "gone" else write(path, edited(path.read_text(), recipe["edits"]))
    elif how == "script":
        source = f"in.{recipe['suffix']}"
        write(folder / source, recipe["script"])
        shutil.copy(material / "clip.mp4", folder / "secret.mp4")
    else:
        source = make_odd(folder / recipe["odd"]).name

    def check(code: int, folder: Path) -> str | None:
        followed = how == "script" and "frames of" in (folder / "stderr").read_text()
        return "wrong: a script that is called a video was followed" if followed else None

    return ["map", source, "--predictor", predictor, "--stop", "4", "--out", "out"], check


def _png(width: int, height: int) -> bytes:
    """A PNG that declares a size and holds a line of it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\x00" * min(1 << 20, 1 + 3 * width))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
