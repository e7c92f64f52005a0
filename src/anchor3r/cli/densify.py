"""`anchor3r densify`: measured depth for the keyframes of a map."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import tyro

from anchor3r.cli import fuse
from anchor3r.cli.output import Json
from anchor3r.cli.progress import stages
from anchor3r.errors import is_interrupt
from anchor3r.pipeline.settings import DensifySettings

_DEFAULTS = DensifySettings()


def densify(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MAP")],
    settings: tyro.conf.OmitArgPrefixes[DensifySettings] = _DEFAULTS,
    as_json: Json = False,
) -> dict[str, Any]:
    """Measure the depth of a map's keyframes by multi-view stereo.

    Run it after `anchor3r refine`, and again after the next one: depth is as good as the poses. It takes the
    original images where the source of the map is still there, else the map's own smaller copies. Every
    depth has a confidence, the probability that it is within 5 %, and says whether it was measured or lies
    on a plane through what was. Then all depths are fused into one surface (see `anchor3r fuse`), which view,
    render, report and export show. An interrupted run goes on where it ended when it is started again.

    Args:
        folder: Folder of the map.
        settings: How depth is measured.
    """
    from anchor3r.pipeline.densify import densify_map

    with told_how_to_go_on(folder), stages("densifying", unit="keyframes") as show:
        summary = densify_map(folder, settings, progress=show)
    print(in_words(summary))
    return summary


@contextmanager
def told_how_to_go_on(folder: Path) -> Iterator[None]:
    """Whoever interrupts it hears that nothing is lost."""
    try:
        yield
    except (KeyboardInterrupt, SystemError) as error:
        if is_interrupt(error):
            print(
                f"anchor3r: the depths so far are in {folder}; anchor3r densify goes on with them",
                file=sys.stderr,
            )
        raise


def in_words(summary: dict[str, Any]) -> str:
    """The summary of `densify_map`."""
    width, height = summary["size"]
    lines = [
        f"{summary['map']}: {summary['with_depth']} of {summary['keyframes']} keyframes have depth "
        f"({width}×{height}, {summary['poses']} poses, images of the {summary['images']}), "
        f"{summary['measured_now']} of them measured now in {summary['seconds']:.1f} s",
        f"{summary['measured']:.0%} of the pixels measured, {summary['planes']:.0%} on planes, "
        f"{summary['interpolated']:.0%} interpolated; on average {summary['mean_confidence']:.0%} likely "
        "within 5 %",
    ]
    if (fusion := summary["fusion"]) is not None:
        lines.append(fusion.get("failure") or fuse.in_words(fusion))
    if missing := summary["keyframes"] - summary["with_depth"]:
        lines.append(f"{missing} keyframes have none: no other frame sees the same from another place")
    return "\n".join(lines)
