"""What a page says of priors: how each fared, how well the scale is known, where the map is on the Earth."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from anchor3r.pipeline.knowledge import PRIORS_CSV, read_priors_csv
from anchor3r.pipeline.refine import table_of
from anchor3r.report.charts import line_chart
from anchor3r.store import ONLINE, Map

_MAX_CUT = 30
"""Priors that were cut and are listed, the worst ones."""
_COLUMNS = ("prior", "number", "cut", "spread (times what was stated)", "median residual", "largest kept")
_UNITS = {
    "position": "m",
    "distance": "m",
    "scale": "of the log",
    "direction": "rad",
    "heading": "rad",
    "pose": "",
}


def placement_facts(scene_map: Map, poses: str) -> dict[str, str]:
    """Scale with its spread, and the origin, of poses that priors have placed."""
    facts = {}
    for component, placed in scene_map.placements().items() if poses == ONLINE else ():
        name = f" (component {component})" if len(scene_map.placements()) > 1 else ""
        facts[f"scale known to{name}"] = f"{placed.scale_sigma:.2%}"
        facts[f"heading known to{name}"] = f"{placed.heading_sigma_deg:.1f}°"
    summary = _summary(scene_map, poses)
    if summary.get("units") == "m":
        facts["scale known to"] = f"{summary['scale_sigma']:.2%}"
    if (datum := scene_map.datum(poses)) is not None:
        facts["origin (WGS 84)"] = f"{datum.latitude_deg:.6f}, {datum.longitude_deg:.6f}"
    return facts


def priors_section(scene_map: Map, poses: str) -> str:
    """A table by kind, residuals along the frames, and what was cut; nothing without priors."""
    kinds = _summary(scene_map, poses).get("priors", [])
    table = read_priors_csv(scene_map.folder / table_of(PRIORS_CSV, poses)) if kinds else []
    if not table:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in _COLUMNS)
    rows, charts = [], []
    for kind in kinds:
        own = [row for row in table if row["kind"] == kind["kind"]]
        kept = np.array([row["residual"] for row in own if row["accepted"]])
        unit = _UNITS.get(kind["kind"], "")
        far = [f"{value:.3g} {unit}" for value in (np.median(kept), kept.max())] if len(kept) else ["", ""]
        numbers = (f"{kind['priors']:,}", f"{kind['cut']:,}", f"{kind['spread']:.2f}", *far)
        cells = "".join(f'<td class="n">{escape(number)}</td>' for number in numbers)
        rows.append(f"<tr><td>{escape(kind['kind'])}</td>{cells}</tr>")
        order = np.argsort([row["frame"] for row in own], kind="stable")
        frames = np.array([own[k]["frame"] for k in order])
        residual = np.array([own[k]["residual"] if own[k]["accepted"] else np.nan for k in order])
        label = f"residual of each {kind['kind']} that was kept" + (f" ({unit})" if unit else "")
        charts.append(line_chart(label, frames, {kind["kind"]: residual}, x_label="frame"))
    return (
        f"<h2>Priors</h2><table><tr>{head}</tr>{''.join(rows)}</table>"
        f'<div class="charts">{"".join(charts)}</div>{_cut(table)}'
    )


def _cut(table: list[dict[str, Any]]) -> str:
    cut = sorted((row for row in table if not row["accepted"]), key=lambda row: -row["excess"])
    if not cut:
        return "<p>None was cut.</p>"
    items = "".join(
        f"<li>{escape(row['entry'])}: off by {row['residual']:.3g}, {row['excess']:.1f} times the limit</li>"
        for row in cut[:_MAX_CUT]
    )
    return f"<p>{len(cut)} were cut, as the map contradicts them; the worst:</p><ul>{items}</ul>"


def _summary(scene_map: Map, poses: str) -> dict[str, Any]:
    return next((r.summary for r in scene_map.refinements() if r.name == poses), {})
