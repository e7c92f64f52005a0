"""One page about a map: a single HTML file with pictures and charts inside that loads nothing else."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anchor3r.errors import Anchor3RError
from anchor3r.export.cameras import camera_in_words
from anchor3r.io.files import replacing, utf8
from anchor3r.pose_graph.edges import EdgeKind
from anchor3r.report.charts import histogram, line_chart
from anchor3r.report.diagnosis import (
    DiagnosisConfig,
    Residuals,
    Survey,
    residuals_of,
    survey_of,
    warnings_of,
)
from anchor3r.report.picture import PictureScene, PictureView, picture_png, scenes_of
from anchor3r.report.priors import placement_facts, priors_section
from anchor3r.store import ONLINE, Loop, Map
from anchor3r.trajectory import Trajectory, estimated_from_true_world

MAX_LOOPS = 40
"""Loop events with pictures; the map's loops.csv has all of them."""
NUM_PICTURES = 6
PICTURE_SIZE = (1400, 760)
_SCENE_POINTS = 800_000
_THUMBNAIL_WIDTH = 165
_CHART_BINS = 200
_MEGA = 1e6
_RESIDUAL_COLUMNS = (
    "poses, edges", "number", "rotation, median °", "95 %", "most", "translation, median %", "95 %", "most",
)  # fmt: skip
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff}
body{max-width:1060px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em;margin-bottom:.1em}h2{font-size:1.15em;margin-top:2em;border-bottom:1px solid #ddd}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(165px,1fr));gap:10px}
.facts div{background:#f5f6f8;border-radius:6px;padding:8px 12px}.facts b{display:block;font-size:1.25em}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(430px,1fr));gap:12px}
svg text{font:11px system-ui,sans-serif;fill:#555}svg text.title{font-size:13px;fill:#222}
img{max-width:100%;border-radius:6px}.strip{display:flex;flex-wrap:wrap;gap:6px}
table{border-collapse:collapse}td,th{padding:3px 12px 3px 0;text-align:left;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}
.warn{background:#fff4e0;border-left:4px solid #e8900c;padding:4px 14px;border-radius:4px}
.good{background:#e9f6ee;border-left:4px solid #2a9d5c;padding:4px 14px;border-radius:4px}
.yes{color:#1c7c45;font-weight:600}.no{color:#b3261e;font-weight:600}
pre{background:#f5f6f8;padding:10px;overflow:auto;font-size:12px}
"""


@dataclass(frozen=True)
class _Findings:
    """Everything that the page tells, gathered once."""

    scene_map: Map
    poses: str
    trajectory: Trajectory
    scenes: list[PictureScene]
    """One a component, the largest first."""
    survey: Survey
    residuals: dict[str, Residuals]
    """By the name of the poses, the chosen ones first."""
    warnings: list[str]
    error_m: NDArray[np.float64] | None
    """(k,) distance to the ground truth after alignment, of the frames that have one"""


def write_report(path: Path | str, scene_map: Map, poses: str, *, notice: str = "") -> list[str]:
    """Writes the page about the map with the chosen poses; returns its warnings. `notice` comes first."""
    trajectory = scene_map.trajectory(poses)
    if not len(trajectory):
        raise Anchor3RError(f"{scene_map.lack_of_poses()} There is nothing to report.")
    with replacing(path) as file:
        found = _gather(scene_map, poses, trajectory)
        file.write(utf8(_page(found, notice)))
    return found.warnings


def _gather(scene_map: Map, poses: str, trajectory: Trajectory) -> _Findings:
    config = DiagnosisConfig()
    survey = survey_of(scene_map, trajectory.frames, config)
    graph = scene_map.graph(poses)
    names = [poses, *(name for name in scene_map.trajectory_names() if name != poses)]
    residuals = {name: residuals_of(graph, scene_map.trajectory(name)) for name in names}
    return _Findings(
        scene_map=scene_map,
        poses=poses,
        trajectory=trajectory,
        scenes=scenes_of(scene_map, poses, max_points=_SCENE_POINTS),
        survey=survey,
        residuals=residuals,
        warnings=warnings_of(scene_map, trajectory, survey, residuals[poses], config),
        error_m=_error_m(scene_map, trajectory),
    )


def _error_m(scene_map: Map, trajectory: Trajectory) -> NDArray[np.float64] | None:
    truth = scene_map.true_trajectory()
    if truth is None or (world_from_truth := estimated_from_true_world(trajectory, truth)) is None:
        return None
    _, in_truth, in_map = np.intersect1d(truth.frames, trajectory.frames, return_indices=True)
    found = world_from_truth.inverse().apply(trajectory.center[in_map])
    return np.linalg.norm(found - truth.center[in_truth], axis=1).astype(np.float64)


def _page(found: _Findings, notice: str) -> str:
    identity = found.scene_map.meta.get("identity", {})
    title = f"Map of {identity.get('source', found.scene_map.folder.name)}"
    sections = [
        f"<h1>{escape(title)}</h1><p>{escape(_subtitle(found, identity))}</p>",
        f'<p class="warn">{escape(notice)}</p>' if notice else "",
        _facts(found),
        _warnings(found.warnings),
        "<h2>The map</h2>"
        + _image(picture_png(found.scenes, view=PictureView.BOTH, size=PICTURE_SIZE), "png"),
        _strip(found),
        "<h2>Over time</h2>" + _charts(_time_charts(found)),
        "<h2>Motion graph</h2>" + _graph(found),
        "<h2>Loops</h2>" + _loops(found.scene_map, found.poses),
        priors_section(found.scene_map, found.poses),
        "<h2>How it was made</h2>" + _settings(found.scene_map.meta),
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(sections)}</body></html>\n'


def _subtitle(found: _Findings, identity: dict[str, Any]) -> str:
    versions = found.scene_map.meta.get("versions", {})
    return (
        f"{found.poses} poses, predictor {identity.get('predictor', 'unknown')}, window "
        f"{identity.get('window', '?')}, anchor3r {versions.get('anchor3r', '?')}"
    )


def _facts(found: _Findings) -> str:
    scene_map, trajectory, scene = found.scene_map, found.trajectory, found.scenes[0]
    counts, runtime, loops = scene_map.counts(), scene_map.runtime(), scene_map.loops(found.poses)
    unit = scene.metres_per_unit or 1.0
    path = trajectory.path_length() * unit
    has_path = not np.diff(scene_map.path_of(trajectory.frames)).all()
    facts = {
        "frames": f"{counts.frames}",
        "with a pose": f"{len(trajectory)}",
        "lost": f"{counts.lost}",
        "component" if counts.components == 1 else "components": f"{counts.components}",
        **({"path": f"{path:.4g} {'m' if scene.metres_per_unit else 'units'}"} if has_path else {}),
        "points (estimated)": f"{int(found.survey.num_points.mean() * len(trajectory)):,}",
        "edges": f"{len(found.residuals[found.poses].anchor):,}",
        **{f"measured by {name}": f"{count}" for name, count in scene_map.answers().items()},
        **_camera_facts(scene_map),
        **placement_facts(found.scene_map, found.poses),
        "loops accepted": f"{sum(loop.accepted for loop in loops)} of {len(loops)}",
    }
    if runtime.seconds.sum() > 0:
        facts["frames a second"] = f"{len(runtime.frames) / runtime.seconds.sum():.1f}"
    if np.isfinite(runtime.peak_rss_bytes).any():
        facts["peak memory"] = f"{np.nanmax(runtime.peak_rss_bytes) / _MEGA:.0f} MB"
    if found.error_m is not None:
        rmse = float(np.sqrt(np.mean(found.error_m**2)))
        facts["ATE (Sim(3))"] = f"{rmse:.3g} m ({100 * rmse / max(path, 1e-9):.2f} %)"
    cells = "".join(f"<div><b>{escape(value)}</b>{escape(name)}</div>" for name, value in facts.items())
    camera = scene_map.meta.get("camera")
    words = f"<p>Camera: {escape(camera_in_words(camera))}.</p>" if camera else ""
    return f'<div class="facts">{cells}</div>{words}'


def _camera_facts(scene_map: Map) -> dict[str, str]:
    """The focal length in short; the rest of the camera is told below the facts."""
    camera = scene_map.meta.get("camera")
    if not camera:
        return {}
    name = "focal length" if camera.get("determined", True) else "focal length, undetermined"
    return {name: f"{camera['focal_px']:.0f} ± {camera['focal_sigma_px']:.0f} px"}


def _warnings(warnings: list[str]) -> str:
    if not warnings:
        return '<h2>Warnings</h2><p class="good">Nothing looks wrong.</p>'
    items = "".join(f'<p class="warn">{escape(text)}</p>' for text in warnings)
    return f"<h2>Warnings</h2>{items}"


def _strip(found: _Findings) -> str:
    """Some of the images that were mapped."""
    if not found.scene_map.keeps_images():
        return "<p>The map keeps no images.</p>"
    frames = found.scene_map.frames().index
    chosen = np.unique(frames[np.linspace(0, len(frames) - 1, NUM_PICTURES).astype(int)])
    return (
        f'<div class="strip">{"".join(_thumbnail(found.scene_map, frame) for frame in chosen.tolist())}</div>'
    )


def _time_charts(found: _Findings) -> Iterable[str]:
    runtime, trajectory, survey = found.scene_map.runtime(), found.trajectory, found.survey
    frames, rate, memory = _binned_runtime(runtime.frames, runtime.seconds, runtime.peak_rss_bytes)
    yield line_chart("frames a second", frames, {"rate": rate}, x_label="frame")
    yield line_chart("peak memory (MB)", frames, {"memory": memory / _MEGA}, x_label="frame")
    yield line_chart("median confidence of points", survey.frames, {"c": survey.confidence}, x_label="frame")
    yield line_chart("points a frame", survey.frames, {"n": survey.num_points}, x_label="frame")
    online = found.scene_map.trajectory(ONLINE)
    if online.covariance is not None:
        variance = np.trace(online.covariance[:, 3:, 3:], axis1=1, axis2=2)
        sigma = np.sqrt(variance) * (found.scenes[0].metres_per_unit or 1.0)
        unit = "m" if found.scenes[0].metres_per_unit else "units"
        label = f"spread of an online position from the frame before ({unit})"
        yield line_chart(label, *_thinned(online.frames, sigma), x_label="frame")
    if trajectory.log_scale is not None and np.ptp(trajectory.log_scale) > 0:
        label = "scale of the window / scale of the map"
        scales = _thinned(trajectory.frames, np.exp(trajectory.log_scale))
        yield line_chart(label, *scales, x_label="frame", from_zero=False)
    if found.error_m is not None:
        errors = _thinned(np.arange(len(found.error_m)), found.error_m)
        yield line_chart("distance to ground truth (m)", *errors, x_label="pose")


def _thinned(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    stride = max(1, -(-len(x) // (4 * _CHART_BINS)))
    return x[::stride], {"value": y[::stride]}


def _binned_runtime(
    frames: NDArray[np.int64], seconds: NDArray[np.float64], rss: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Frame, frames a second and peak memory, of bins with equally many frames each."""
    bins = np.array_split(np.arange(len(frames)), min(_CHART_BINS, max(1, len(frames) // 5)))
    bins = [rows for rows in bins if len(rows)]
    middle = np.array([frames[rows].mean() for rows in bins])
    rate = np.array([len(rows) / max(seconds[rows].sum(), 1e-9) for rows in bins])
    return middle, rate, np.array([rss[rows].max() for rows in bins])


def _charts(charts: Iterable[str]) -> str:
    return f'<div class="charts">{"".join(charts)}</div>'


def _graph(found: _Findings) -> str:
    """How far the edges are from the poses: a table of quantiles and how they are distributed."""
    rows, rotation, translation = [], {}, {}
    for name, residuals in found.residuals.items():
        for kind in EdgeKind:
            which = residuals.kind == kind
            if not which.any():
                continue
            label = f"{name}, {kind.name.lower()}"
            rotation[label] = residuals.rotation_deg[which]
            translation[label] = 100 * residuals.translation[which]
            cells = [f"{value:.3g}" for value in np.quantile(rotation[label], (0.5, 0.95, 1))]
            cells += [f"{value:.3g}" for value in np.quantile(translation[label], (0.5, 0.95, 1))]
            numbers = "".join(f'<td class="n">{cell}</td>' for cell in (f"{which.sum():,}", *cells))
            rows.append(f"<tr><td>{escape(label)}</td>{numbers}</tr>")
    head = "".join(f"<th>{name}</th>" for name in _RESIDUAL_COLUMNS)
    charts = [
        histogram("rotation residuals (share of edges)", rotation, x_label="degrees"),
        histogram("translation residuals (share of edges)", translation, x_label="% of the distance"),
    ]
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>{_charts(charts)}"


def _loops(scene_map: Map, poses: str) -> str:
    loops = scene_map.loops(poses)
    if not loops:
        return "<p>No loops: none were found, or the map was not refined.</p>"
    accepted = [loop for loop in loops if loop.accepted]
    rejected = [loop for loop in loops if not loop.accepted]
    shown = (_evenly(accepted, MAX_LOOPS // 2) + _evenly(rejected, MAX_LOOPS))[:MAX_LOOPS]
    text = f"<p>{len(accepted)} of {len(loops)} loop events were accepted."
    text += f" {len(shown)} of them are shown.</p>" if len(shown) < len(loops) else "</p>"
    has_images = scene_map.keeps_images()
    return f"{text}<table>{''.join(_loop_row(scene_map, loop, has_images) for loop in shown)}</table>"


def _evenly(loops: list[Loop], count: int) -> list[Loop]:
    return loops[:: max(1, -(-len(loops) // count))]


def _loop_row(scene_map: Map, loop: Loop, has_images: bool) -> str:
    pictures = [_thumbnail(scene_map, frame) if has_images else "" for frame in (loop.query, loop.match)]
    verdict = '<span class="yes">accepted</span>' if loop.accepted else '<span class="no">rejected</span>'
    figures = ", ".join(f"{name} {value:.3g}" for name, value in loop.figures.items())
    text = (
        f"event {loop.event}: frame {loop.query} sees {loop.match} again<br>"
        f"{verdict}: {escape(str(loop.reason))}<br><small>{escape(figures)}</small>"
    )
    return f"<tr><td>{pictures[0]}</td><td>{pictures[1]}</td><td>{text}</td></tr>"


def _settings(meta: dict[str, Any]) -> str:
    texts = {name: escape(json.dumps(value, indent=2)) for name, value in meta.items()}
    return "".join(
        f"<details><summary>{escape(name)}</summary><pre>{text}</pre></details>"
        for name, text in texts.items()
    )


def _thumbnail(scene_map: Map, frame: int) -> str:
    image = Image.fromarray(scene_map.image(frame))
    image.thumbnail((_THUMBNAIL_WIDTH, _THUMBNAIL_WIDTH))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    return _image(out.getvalue(), "jpeg", f"frame {frame}")


def _image(data: bytes, kind: str, alt: str = "") -> str:
    text = base64.b64encode(data).decode()
    return f'<img alt="{escape(alt)}" title="{escape(alt)}" src="data:image/{kind};base64,{text}">'
