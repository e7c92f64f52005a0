"""How fast worlds are built and rendered on one core: CPU seconds, compilation and texture baking excluded.

Prints a table of frames/s and build times for each kind of world and motion, and for a long street grid.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import tyro

from anchor3r.worlds import MOTIONS, World, WorldConfig, make_world, sample_config
from anchor3r.worlds.scenes.textures import texture_bank

GOAL_FRAMES_PER_S = 300.0
CLIP_FRAMES = 16


def timed_build(config: WorldConfig) -> tuple[World, float]:
    """The world and the CPU milliseconds that it took."""
    started = time.process_time()
    world = make_world(config)
    return world, (time.process_time() - started) * 1e3


def timed_frames(world: World, frames: int) -> float:
    """CPU milliseconds a frame, over frames spread along the path."""
    picks = np.linspace(0, len(world) - 1, frames).astype(int)
    started = time.process_time()
    for index in picks:
        world.render(int(index))
    return (time.process_time() - started) * 1e3 / frames


def measure(name: str, worlds: int, renders: int, **options: object) -> dict[str, object]:
    """Builds `worlds` worlds and renders `renders` frames of each; medians over the worlds."""
    configs = [sample_config(seed, **options) for seed in range(worlds)]
    build_ms, frame_ms, quads = [], [], []
    for config in configs:
        world, milliseconds = timed_build(config)
        build_ms.append(milliseconds)
        frame_ms.append(timed_frames(world, renders))
        quads.append(len(world.scene.quads))
    row: dict[str, object] = {
        "world": name,
        "frames": configs[0].frames,
        "size": f"{configs[0].width}×{configs[0].height}",
        "surfaces": int(np.median(quads)),
        "build_ms": float(np.median(build_ms)),
        "frame_ms": float(np.median(frame_ms)),
        "frames_per_s": 1e3 / float(np.median(frame_ms)),
    }
    print(
        f"{name:16} {row['frames']:7} {row['size']:>9} {row['surfaces']:9} {row['build_ms']:9.1f} "
        f"{row['frame_ms']:9.2f} {row['frames_per_s']:9.0f}"
    )
    return row


def main(out: Path = Path("out/benchmarks"), worlds: int = 10, frames: int = 40) -> None:
    """Prints a table and writes OUT/rendering.json.

    Args:
        out: Folder for the JSON.
        worlds: Worlds of each kind.
        frames: Frames rendered of each.
    """
    bank = texture_bank(WorldConfig(seed=0).texture_bank)
    bank.require(np.arange(len(bank.texels)))
    pairs = [(kind, motion) for kind, motions in MOTIONS.items() for motion in motions]
    for kind, motion in pairs:  # compiles everything
        for seed in range(4):
            make_world(sample_config(seed, kind=kind, motion=motion, frames=2)).render(0)
    print("world             frames      size  surfaces  build ms  frame ms  frames/s")
    clip = {"frames": CLIP_FRAMES, "width": 128, "height": 96}
    rows = [measure(f"{k} {m}", worlds, frames, kind=k, motion=m, **clip) for k, m in pairs]
    rows.append(measure("street grid", 1, 200, motion="grid", **{**clip, "frames": 10_000}))
    rows.append(measure("street driving", 3, 10, motion="driving", frames=CLIP_FRAMES, width=620, height=188))
    rows.append(
        measure(
            "room handheld", 3, 10, motion="handheld", kind="room", frames=CLIP_FRAMES, width=640, height=480
        )
    )
    small = [float(str(row["frames_per_s"])) for row in rows if row["size"] == "128×96"]
    verdict = "reached" if min(small) >= GOAL_FRAMES_PER_S else "missed"
    print(f"goal {GOAL_FRAMES_PER_S:.0f} frames/s at 128×96 on one core: {verdict}, slowest {min(small):.0f}")
    out.mkdir(parents=True, exist_ok=True)
    report = {"goal_frames_per_s": GOAL_FRAMES_PER_S, "slowest_frames_per_s": min(small), "rows": rows}
    (out / "rendering.json").write_text(json.dumps(report, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    tyro.cli(main)
