"""Directions that a camera measured: where down is, by an accelerometer, and where it looks, by a compass.

A CSV file, whose first line names its columns: time or frame; down_x, down_y, down_z, along the camera's axes
(right, down, ahead), of any length; heading, degrees clockwise from north of the way the camera looks; sigma
and heading_sigma, their standard deviations in degrees. A line may leave either out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.io.inputs import csv_rows, insist_on_file
from anchor3r.limits import LIMITS
from anchor3r.pose_graph.priors import Directions, Headings, PriorKind
from anchor3r.trajectory import Trajectory

Float = NDArray[np.float64]

DOWN = (0.0, 1.0, 0.0)
_SIGMA_DEG = {"sigma": 2.0, "heading_sigma": 10.0}
"""Of directions that do not tell theirs: of a phone that is held in the hand; how large they really are is
measured."""
_DOWN_COLUMNS = ("down_x", "down_y", "down_z")
_NEAR = 0.5  # of the time from frame to frame, within which a line is of a frame


class _Line(NamedTuple):
    number: int
    key: float
    """time or frame"""
    down: list[float] | None
    heading_deg: float | None
    sigma_deg: float | None
    heading_sigma_deg: float | None


def read_directions(path: Path, trajectory: Trajectory) -> Iterator[tuple[PriorKind, list[str]]]:
    """Priors of each kind in the file, and what to call them."""
    by_frame, lines = _read(path)
    frames = _frames_of(path, lines, trajectory, by_frame=by_frame)
    order = sorted((k for k in range(len(lines)) if frames[k] >= 0), key=lambda k: int(frames[k]))
    downs = [k for k in order if lines[k].down is not None]
    headings = [k for k in order if lines[k].heading_deg is not None]
    if downs:
        down = np.array([lines[k].down for k in downs])
        sigma, is_known = _sigmas([lines[k].sigma_deg for k in downs], "sigma")
        yield (
            Directions(
                rows=frames[downs, None],
                in_camera=down / np.linalg.norm(down, axis=1)[:, None],
                in_world=np.tile(DOWN, (len(downs), 1)),
                information=sigma[:, None, None] ** -2.0 * np.eye(3),
                is_spread_known=is_known,
            ),
            [f"line {lines[k].number}" for k in downs],
        )
    if headings:
        sigma, is_known = _sigmas([lines[k].heading_sigma_deg for k in headings], "heading_sigma")
        yield (
            Headings(
                rows=frames[headings, None],
                heading=np.radians(np.array([lines[k].heading_deg for k in headings], np.float64)),
                information=sigma[:, None, None] ** -2.0,
                is_spread_known=is_known,
            ),
            [f"line {lines[k].number}" for k in headings],
        )


def _sigmas(stated_deg: list[float | None], column: str) -> tuple[Float, bool]:
    """(k,) radians, and whether all of them were stated."""
    known = [value is not None for value in stated_deg]
    filled = [_SIGMA_DEG[column] if value is None else value for value in stated_deg]
    return np.radians(filled), all(known)


def _read(path: Path) -> tuple[bool, list[_Line]]:
    """Whether lines name frames instead of times; and all of them, checked."""
    insist_on_file(path, max_bytes=LIMITS.text_bytes)
    rows = csv_rows(path)
    header = [name.strip().lower() for name in next(rows, (1, []))[1]]
    has_down = set(_DOWN_COLUMNS) <= set(header)
    if not ({"time", "frame"} & set(header) and (has_down or "heading" in header)):
        raise Anchor3RError(
            f"the first line of {path} has to name the columns time or frame, and down_x, down_y, down_z or "
            "heading (degrees); and where known sigma, heading_sigma (degrees)"
        )
    lines = []
    for number, row in rows:
        if any(field.strip() for field in row):
            lines.append(_line(path, number, dict(zip(header, row, strict=False))))
    return "frame" in header, lines


def _line(path: Path, number: int, fields: dict[str, str]) -> _Line:
    def value(name: str) -> float | None:
        text = fields.get(name, "").strip()
        return float(text) if text else None

    where = f"line {number} of {path}"
    try:
        key = value("frame" if "frame" in fields else "time")
        parts = [value(name) for name in _DOWN_COLUMNS]
        heading, sigmas = value("heading"), [value("sigma"), value("heading_sigma")]
    except ValueError as error:
        raise Anchor3RError(f"{where} is damaged ({error}); correct it") from error
    down = [part for part in parts if part is not None]
    if key is None or not np.isfinite([key, *down, heading or 0.0]).all():
        raise Anchor3RError(f"{where} has something that is not a number; correct it")
    if len(down) not in (0, 3) or (down and not np.linalg.norm(down) > 0):
        raise Anchor3RError(f"{where}: down_x, down_y, down_z are no direction; correct it")
    for sigma in sigmas:
        if sigma is not None and not 0 < sigma < np.inf:
            raise Anchor3RError(f"{where}: the standard deviation must be positive, not {sigma:g}")
    return _Line(number, key, down or None, heading, *sigmas)


def _frames_of(
    path: Path, lines: list[_Line], trajectory: Trajectory, *, by_frame: bool
) -> NDArray[np.int64]:
    """(k,) the frame of each line; -1 of those that have none with a pose at hand."""
    keys = np.array([line.key for line in lines])
    own = trajectory.frames.astype(np.float64) if by_frame else trajectory.timestamps_s
    if own is None:
        raise Anchor3RError(f"the map's frames have no times, so {path} cannot be related to them")
    found = np.full(len(lines), -1, np.int64)
    if len(keys) and len(own):
        after = np.clip(np.searchsorted(own, keys), 0, len(own) - 1)
        before = np.maximum(after - 1, 0)
        nearest = np.where(np.abs(own[before] - keys) <= np.abs(own[after] - keys), before, after)
        reach = 0.0 if by_frame else _NEAR * float(np.median(np.diff(own))) if len(own) > 1 else 0.0
        near = np.abs(own[nearest] - keys) <= reach
        found[near] = trajectory.frames[nearest[near]]
    if not (found >= 0).any():
        what = "frames" if by_frame else "times"
        raise Anchor3RError(
            f"{path}: none of its {len(lines)} lines is of a frame with a pose; its {what} have to be those "
            "of the map"
        )
    return found
