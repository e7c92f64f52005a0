"""`anchor3r refine`: loops closed and all poses averaged, in a finished map."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from anchor3r.cli.map import Switch
from anchor3r.cli.output import Json
from anchor3r.cli.progress import stages
from anchor3r.pipeline.placing import CLOCK_REACH_S
from anchor3r.pipeline.settings import NOT_A_RECONSTRUCTION, RefineSettings
from anchor3r.store import OFFLINE
from anchor3r.store.fused import FUSED

Events = tyro.conf.UseAppendAction[tuple[int, ...]]
_DEFAULTS = RefineSettings()
_WANDERING = 4.0
"""Times what positions state or are assumed to be off by, that they may wander without a warning."""
_LOOSE_SCALE_SIGMA = 0.05
"""Of a log scale: with a probability of 5 % it is off by more than a tenth."""


def refine(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MAP")],
    settings: tyro.conf.OmitArgPrefixes[tyro.conf.UseAppendAction[RefineSettings]] = _DEFAULTS,
    name: str = OFFLINE,
    accept_loop: Events = (),
    reject_loop: Events = (),
    redo_loops: Switch = False,
    as_json: Json = False,
) -> dict[str, Any]:
    """Close loops in a finished map and average all its poses.

    The refined poses lie beside the online ones and those of refinements of other names; view, export,
    render, report and evaluate take them by --poses NAME. Every loop event and what became of it is in
    MAP/loops.csv (MAP/loops-NAME.csv of another name than offline). Loops that the map has from an earlier
    run with the same settings are not measured again.

    Args:
        folder: Folder of the map.
        settings: How the map is refined.
        name: What the refined poses are called; poses of that name are replaced.
        accept_loop: Believe this event of loops.csv, whatever the map says; may be given several times.
        reject_loop: Leave this event out; may be given several times.
        redo_loops: Look for loops anew, and forget verdicts by hand.
    """
    from anchor3r.pipeline.loop_search import LoopChoices
    from anchor3r.pipeline.refine import refine_map

    choices = LoopChoices(accept=tuple(accept_loop), reject=tuple(reject_loop), redo=redo_loops)
    with stages("refining") as show:
        summary = refine_map(folder, settings, name=name, choices=choices, progress=show)
    print(_in_words(summary))
    return summary


def _priors_in_words(summary: dict[str, Any]) -> list[str]:
    """What is known from elsewhere, and how it fared."""
    lines = []
    for kind in summary.get("priors", []):
        lines.append(
            f"{kind['kind']}: {kind['priors'] - kind['cut']} of {kind['priors']} priors fit the map, spread "
            f"{kind['spread']:.2f} times what was stated or assumed"
        )
        if kind["worst_cut"]:
            worst = ", ".join(kind["worst_cut"])
            lines.append(f"  cut, as the map contradicts them, the worst first: {worst}")
        if kind["contradicting"]:
            lines.append(
                f"WARNING: these contradict one another or the map, by {kind['spread']:.3g} times what is "
                f"stated or assumed: {', '.join(kind['contradicting'])}; check them"
                + (" and their clock" if kind["kind"] == "position" else "")
                + ", or state a larger spread"
            )
    if "drift" in summary:
        drift = summary["drift"]
        lines.append(
            f"drift of the odometry against the positions: {np.degrees(drift['rotation_rate']):.3f}° and "
            f"{drift['scale_rate']:.3%} of scale, times the root of the frames"
        )
        noise = summary["position_noise"]
        lines.append(
            f"noise of the positions: {noise['white_m']:.2g} m from one to the next, {noise['slow_m']:.2g} m "
            f"that wanders within {noise['slow_time_s']:.0f} s"
        )
        if noise["slow_m"] > _WANDERING * noise["stated_m"]:
            lines.append(
                "WARNING: the positions wander that far off the map all along: check that they are of this "
                "drive, and their clock (--gnss-offset)"
            )
    if "clock_offset_s" in summary:
        lines.append(
            f"clock of the positions: {summary['clock_offset_s']:+.3f} ± "
            f"{summary['clock_offset_sigma_s']:.3f} s"
        )
        if abs(summary["clock_offset_s"] - summary["clock_stated_s"]) > CLOCK_REACH_S:
            lines.append(
                "WARNING: the clock was looked for from too far away, and the noise of the positions taken "
                f"for larger: refine again with --gnss-offset auto:{summary['clock_offset_s']:.2f}"
            )
    if summary.get("units") == "m":
        lines.append(f"the map is in metres; its scale is known to {summary['scale_sigma']:.2%}")
        if summary["scale_sigma"] > _LOOSE_SCALE_SIGMA:
            lines.append(
                "WARNING: that is loose; positions over a longer way, or more distances, tell it better"
            )
    if "datum" in summary:
        datum = summary["datum"]
        lines.append(f"origin at {datum['latitude_deg']:.7f}, {datum['longitude_deg']:.7f} (WGS 84)")
    return lines


def _in_words(summary: dict[str, Any]) -> str:
    seconds = ", ".join(f"{stage} {value:.1f} s" for stage, value in summary["seconds"].items())
    lines = [
        f"{summary['map']}: {summary['frames']} {summary['poses']} poses "
        f"({summary['method']}, scale {summary['scale']}, {summary['solver']['status']})",
        f"{summary['accepted']} of {summary['loop_events']} loop events accepted",
        *(f"  {count} × {reason}" for reason, count in summary["reasons"].items()),
        f"poses moved by {summary['moved_median']:.3g} (median) and {summary['moved_max']:.3g} (most), "
        f"on a path of {summary['path_length']:.4g}"
        + (f" {summary['units']}, the two paths laid onto one another" if "priors" in summary else ""),
        seconds,
    ]
    lines += _priors_in_words(summary)
    if summary["components"] > 1:
        lines.append(f"{summary['components']} components, which no measurement relates")
    if summary["unplaced"]:
        lines.append(
            f"WARNING: too little is known of components {', '.join(map(str, summary['unplaced']))} to place "
            "them: they are where and as large as they were, and exports name a place with --component only"
        )
    if summary["ground_truth_predictor"]:
        lines.append(NOT_A_RECONSTRUCTION)
    if (Path(summary["map"]) / FUSED).exists():
        lines.append(
            f"the fused surface is of the poses before: run anchor3r densify {summary['map']} again, or "
            "anchor3r fuse to make it from the depths that are there"
        )
    return "\n".join(lines)
