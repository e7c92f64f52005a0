"""Levels of detail in the folder of their map, so that it opens at once the next time."""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from anchor3r.io.files import replacing
from anchor3r.viewer.levels import Levels, Points, Segment

CACHE = "view.npz"
_FORMAT = 1


def save_levels(levels: Levels, folder: Path, made_from: Any) -> None:
    """Writes every segment; `made_from` (JSON) says what the map is, and must be the same on loading."""
    keys = sorted(levels.segments)
    segments = [levels.segments[k] for k in keys]
    points = Points.concatenated([segment.points for segment in segments])
    columns = {field.name: getattr(points, field.name) for field in fields(Points)}
    table = np.array(
        [(k, s.checksum, s.is_thorough, len(s.points)) for k, s in zip(keys, segments, strict=True)]
    )
    with replacing(folder / CACHE) as file:
        np.savez(
            file, allow_pickle=False, head=_head(levels, made_from), voxel=levels.voxel or 0.0,
            segments=table.reshape(-1, 4), **columns,
        )  # fmt: skip


def load_levels(levels: Levels, folder: Path, made_from: Any) -> bool:
    """Fills empty levels from the folder, and says whether there was anything of this map to use.

    Whether a segment is still that of the map shows its checksum.
    """
    try:
        with np.load(folder / CACHE, allow_pickle=False) as stored:
            if str(stored["head"]) != _head(levels, made_from):
                return False
            points = Points(**{field.name: stored[field.name] for field in fields(Points)})
            voxel, table = float(stored["voxel"]), stored["segments"]
    # A file of another version, or one that a disk has damaged, is as good as none: it is made anew.
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return False
    ends = np.cumsum(table[:, 3])
    levels.voxel = voxel or None
    for (k, checksum, is_thorough, count), end in zip(table.tolist(), ends.tolist(), strict=True):
        levels.segments[k] = Segment(checksum, bool(is_thorough), points.select(slice(end - count, end)))
    return True


def _head(levels: Levels, made_from: Any) -> str:
    return json.dumps({"format": _FORMAT, "levels": asdict(levels.config), "made_from": made_from})
