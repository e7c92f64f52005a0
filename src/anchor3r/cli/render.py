"""`anchor3r render`: a picture of a map."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from anchor3r.report.map_outputs import RenderSettings, render_map

_DEFAULTS = RenderSettings()


def render(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MAP")],
    out: Path,
    settings: tyro.conf.OmitArgPrefixes[RenderSettings] = _DEFAULTS,
) -> None:
    """Draw a map: its points, the camera's path, and the ground truth if the map has one.

    Args:
        folder: Folder of the map; it may still be growing.
        out: PNG file to write.
        settings: How it is drawn.
    """
    print(f"{out}: {render_map(folder, out, settings)}")
