"""`anchor3r merge`: several maps of one place as one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import tyro

from anchor3r.cli.output import Json
from anchor3r.cli.progress import stages


def merge(
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MAP MAP …")],
    out: Path,
    as_json: Json = False,
) -> dict[str, Any]:
    """Make one map of several maps of one place.

    Keyframes of each map are looked for among those of the others; two maps are joined where several agree
    on how they lie, and all poses are then refined together. What has no place in common with the rest stays
    a component of its own. Frames get new numbers, 0 … for the first map, 1000 … (or 10000 …) for the second
    and so on. The maps that are merged stay as they are; they need kept images, one predictor and one camera.

    Args:
        folders: Folders of the maps, two or more; the result lies in the world of the first.
        out: A new folder for the merged map. It appears when the map is complete.
    """
    from anchor3r.pipeline.merging import merge_maps

    with stages("merging", unit="keyframes") as show:
        summary = merge_maps(folders, out, progress=show)
    print(in_words(summary))
    return summary


def in_words(summary: dict[str, Any]) -> str:
    """The summary of `merge_maps`."""
    parts = summary["parts"]
    lines = [
        f"{summary['map']}: {summary['with_pose']} of {summary['frames']} frames of {len(parts)} maps have a "
        f"pose; {summary['accepted']} of {summary['common_places']} common places accepted"
    ]
    for part in parts:
        shifted = f", times + {part['time_shift_s']:.3f} s" if part["time_shift_s"] else ""
        lines.append(
            f"  from {part['first_frame']} on: {part['map']} ({part['with_pose']} of {part['frames']} "
            f"frames{shifted})"
        )
    joined = [component for component in summary["components"] if len(component["parts"]) > 1]
    for component in joined:
        names = ", ".join(parts[k]["map"] for k in component["parts"])
        lines.append(f"joined: {names} ({component['frames']} frames)")
    lines += [
        f"not joined: {parts[k]['map']} shares no place with another map that enough keyframes agree on; "
        "it stays a component of its own"
        for k in summary["not_joined"]
    ]
    return "\n".join(lines)
