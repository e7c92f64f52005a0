"""`anchor3r import`: the poses of another system as a map."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import tyro

from anchor3r.cli.camera import NOTHING_STATED, CameraOptions
from anchor3r.cli.map import Switch
from anchor3r.cli.output import Json
from anchor3r.pipeline.importing import ImportSettings

_DEFAULTS = ImportSettings()


def import_trajectory(
    trajectory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TRAJECTORY")],
    source: str,
    out: Path,
    settings: tyro.conf.OmitArgPrefixes[ImportSettings] = _DEFAULTS,
    depth: Path | None = None,
    start: int = 0,
    stop: int | None = None,
    stride: int = 1,
    camera: tyro.conf.OmitArgPrefixes[CameraOptions] = NOTHING_STATED,
    overwrite: Switch = False,
    as_json: Json = False,
) -> dict[str, Any]:
    """Take the poses of another system as a map.

    What it says of neighbouring frames becomes the edges of windows; loops are then measured by a predictor
    of ours: anchor3r refine MAP --predictor features.

    Args:
        trajectory: A TUM, KITTI or EuRoC file, lines of 4×4 matrices (VGGT-Long, DA3-Streaming), LongStream's
            abs_pose.txt, a COLMAP model (its folder, images.txt or images.bin), or .npy or .npz with 4×4
            matrices.
        source: The frames that the system has seen, as `anchor3r map` takes them.
        out: Folder of the map.
        settings: How the trajectory becomes a map.
        depth: Folder with a depth image (16-bit .png) or array (.npy) for each frame, in the trajectory's
            scale.
        start: First frame of the source.
        stop: Frame to stop before.
        stride: Take one frame out of so many.
        camera: What is known of the camera beyond what the source says.
        overwrite: Replace the map in that folder, if there is one.
    """
    from anchor3r.pipeline import importing
    from anchor3r.sources import open_source

    with open_source(source, start=start, stop=stop, stride=stride, camera=camera.stated()) as frames:
        summary = importing.import_trajectory(
            trajectory, frames, out, settings, depth=depth, overwrite=overwrite
        )
    print(
        f"{summary['map']}: {summary['with_pose']} of {summary['frames']} frames of {summary['source']} have "
        f"a pose from {trajectory}"
    )
    if summary["components"] > 1:
        print(f"gaps in the trajectory: {summary['components']} components, which no measurement relates")
    return summary
