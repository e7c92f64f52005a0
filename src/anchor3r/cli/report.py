"""`anchor3r report`: a page about a map."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import tyro

from anchor3r.cli.output import Json


def report(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MAP")],
    out: Path,
    poses: str | None = None,
    as_json: Json = False,
) -> dict[str, Any]:
    """Write one page about a map: figures, pictures, charts, loops and warnings.

    The page is a single file that loads nothing from elsewhere: it can be sent and kept.

    Args:
        folder: Folder of the map; it may still be growing.
        out: HTML file to write.
        poses: online, or the name of a refinement; the refined ones if there are any.
    """
    from anchor3r.report.map_outputs import report_map

    warnings = report_map(folder, out, poses)
    counted = "1 warning" if len(warnings) == 1 else f"{len(warnings)} warnings"
    print(f"{out}: a page about {folder}, {counted}")
    for warning in warnings:
        print(f"  {warning}")
    return {"map": folder, "out": out, "warnings": warnings}
