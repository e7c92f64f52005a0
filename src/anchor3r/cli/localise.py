"""`anchor3r localise`: where images were taken in a map."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from anchor3r.cli.camera import NOTHING_STATED, CameraOptions
from anchor3r.cli.output import Json
from anchor3r.cli.progress import stages
from anchor3r.pipeline.localise import LocaliseSettings

_DEFAULTS = LocaliseSettings()


def localise(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MAP")],
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")],
    out: Path,
    settings: tyro.conf.OmitArgPrefixes[tyro.conf.FlagCreatePairsOff[LocaliseSettings]] = _DEFAULTS,
    start: int = 0,
    stop: int | None = None,
    stride: int = 1,
    camera: tyro.conf.OmitArgPrefixes[CameraOptions] = NOTHING_STATED,
    as_json: Json = False,
) -> dict[str, Any]:
    """Tell where images were taken in a map.

    Each image is looked for on its own: keyframes that look alike, matches with their features and depths,
    one pose that fits. An image whose matches could be chance, whose place is ambiguous or whose pose is not
    determined gets none, and the table says why. Poses are in the world and the scale of the map; their
    covariance is that of the image in the map as it is, without the map's own errors. The first call
    describes the map's keyframes and keeps that in the map.

    Args:
        folder: Folder of the map. It must keep images; on the first call no other command may
            write it.
        source: The images: a folder, a video or whatever `anchor3r map` takes.
        out: File of poses in the TUM format (time, position, quaternion, camera to world). Beside it a .csv
            lists every image with inliers or why it was refused, and .covariance.csv the covariances.
        settings: How images are looked for.
        start: First frame of the source.
        stop: Frame to stop before.
        stride: Take one frame out of so many.
        camera: The camera of the images, where it is not the map's.
    """
    from anchor3r.pipeline.localise import localise_images
    from anchor3r.sources import open_source

    stated = camera.stated()
    settings = settings if stated is None else replace(settings, own_camera=True)
    with (
        open_source(source, start=start, stop=stop, stride=stride, camera=stated) as images,
        stages("localising", unit="images") as show,
    ):
        summary = localise_images(folder, images, out, settings, progress=show)
    print(in_words(summary))
    return summary


def in_words(summary: dict[str, Any]) -> str:
    """The summary of `localise_images`."""
    lines = [
        f"{summary['out']}: {summary['found']} of {summary['images']} images of {summary['source']} have a "
        f"pose in {summary['map']} ({summary['poses']} poses)"
    ]
    if summary["found"]:
        lines[0] += f", by {summary['median_inliers']:.0f} features in the median"
    lines += [f"  {count} × {reason}" for reason, count in summary["refusals"].items()]
    if summary["components"] > 1:
        lines.append(f"they are in {summary['components']} components of the map, which nothing relates")
    return "\n".join(lines)
