"""`anchor3r render`: a picture of a map."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import tyro

from anchor3r.cli.output import Json
from anchor3r.report.map_outputs import RenderSettings, render_map

_DEFAULTS = RenderSettings()


def render(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MAP")],
    out: Path,
    settings: tyro.conf.OmitArgPrefixes[RenderSettings] = _DEFAULTS,
    as_json: Json = False,
) -> dict[str, Any]:
    """Draw a map: its points, the camera's path, and the ground truth if the map has one.

    Args:
        folder: Folder of the map; it may still be growing.
        out: PNG file to write.
        settings: How it is drawn.
    """
    what = render_map(folder, out, settings)
    print(f"{out}: {what}")
    return {"map": folder, "out": out, "what": what}
