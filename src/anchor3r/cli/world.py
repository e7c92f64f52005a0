"""`anchor3r world`: a synthetic sequence with exact ground truth, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from anchor3r.cli.output import Json
from anchor3r.cli.progress import progress


def world(
    out: Path,
    seed: int = 0,
    frames: int = 300,
    kind: Literal["street", "room", "open"] | None = None,
    motion: Literal["driving", "grid", "handheld", "orbit"] | None = None,
    width: int | None = None,
    height: int | None = None,
    fov: float | None = None,
    as_json: Json = False,
) -> dict[str, Any]:
    """Write a synthetic sequence with exact ground truth.

    The layout is that of KITTI odometry: images, depth, calibration, times and poses. The same options give
    the same bytes. Map it with kitti:OUT/SEED, or without writing it as world:SEED.

    Args:
        out: Folder to write into.
        seed: Chooses the world, and everything below that is not given.
        frames: Length of the camera's path.
        kind: A town on a street grid, a furnished room, or open ground.
        motion: In streets driving or grid (a long route that comes back), elsewhere handheld or orbit.
        width: Of the images in pixels.
        height: Of the images in pixels.
        fov: Horizontal field of view in degrees.
    """
    from anchor3r.worlds import make_world, sample_config, write_kitti

    given = {"kind": kind, "motion": motion, "width": width, "height": height, "horizontal_fov_deg": fov}
    config = sample_config(seed, frames=frames, **{k: v for k, v in given.items() if v is not None})
    with progress("rendering", frames, "frames") as advance:
        folder = write_kitti(make_world(config), out, progress=lambda done, _: advance(done, "rendering"))
    print(f"{folder}: {frames} frames, {config.kind}, {config.motion}")
    return {"folder": folder, "frames": frames, "kind": config.kind, "motion": config.motion}
