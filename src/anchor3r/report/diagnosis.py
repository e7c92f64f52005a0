"""What a map says about its own quality: residuals, confidence, and what looks wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import rotation_angle
from anchor3r.pose_graph.edges import EdgeKind, MotionGraph
from anchor3r.predictors.interface import WindowStatus
from anchor3r.store import FrameTable, Map
from anchor3r.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True)
class DiagnosisConfig:
    """From where on something is worth a warning."""

    sampled_frames: int = 300
    """Frames whose points are looked at, evenly chosen from more."""
    scale_jump: float = 1.2
    """Change of the scale between neighbouring frames, as a factor."""
    step_jump: float = 6.0
    """Step of the camera, as a multiple of the median of the steps around it."""
    steps_around: int = 31
    """Steps that this median is over."""
    empty_frames: float = 0.05
    """Part of the frames that may be without points, as the first ones are, without a warning."""
    low_confidence: float = 0.33
    """A frame's median confidence, as part of the whole map's."""
    bad_edge_deg: float = 5.0
    """Rotation between an edge and the poses it joins."""
    open_loop: float = 0.25
    """Median error of loop edges, as part of the distance between their frames, from which loops are open."""
    bad_edges: float = 0.01
    """Part of the edges that may be as bad as that without a warning."""
    listed: int = 6
    """Places that a warning names at most."""


@dataclass(frozen=True)
class Residuals:
    """How far m edges are from the poses that they join."""

    anchor: NDArray[np.int64]
    """(m,) frame"""
    kind: NDArray[np.int8]
    """(m,) EdgeKind"""
    rotation_deg: NDArray[np.float64]
    """(m,)"""
    translation: NDArray[np.float64]
    """(m,) as part of the distance between the two frames, or of a tenth of the median one if that is more"""


@dataclass(frozen=True)
class Survey:
    """Points of k sampled frames."""

    frames: NDArray[np.int64]
    num_points: NDArray[np.int64]
    """(k,) 0 where a frame has none"""
    confidence: NDArray[np.float64]
    """(k,) median; NaN without points"""


def residuals_of(graph: MotionGraph, trajectory: Trajectory) -> Residuals:
    """Residuals of all edges between frames that have a pose."""
    edges = graph.edges
    edges = edges.select(
        np.isin(edges.frame_i, trajectory.frames) & np.isin(edges.frame_t, trajectory.frames)
    )
    i, t = (np.searchsorted(trajectory.frames, frames) for frames in (edges.frame_i, edges.frame_t))
    poses = trajectory.camera_from_world
    i_from_t = poses[i] @ poses[t].inverse()
    turn = np.swapaxes(i_from_t.rotation, -1, -2) @ edges.rotation
    log_scale = np.zeros(len(trajectory)) if trajectory.log_scale is None else trajectory.log_scale
    measured = edges.translation * np.exp(log_scale[t])[:, None]
    distance = np.linalg.norm(i_from_t.translation, axis=1)
    floor = 0.1 * float(np.median(distance)) if len(distance) else 0.0
    off = np.linalg.norm(measured - i_from_t.translation, axis=1)
    return Residuals(
        anchor=edges.frame_t,
        kind=edges.kind,
        rotation_deg=np.degrees(rotation_angle(turn)).astype(np.float64),
        translation=off / np.maximum(np.maximum(distance, floor), 1e-12),
    )


def survey_of(scene_map: Map, frames: NDArray[np.int64], config: DiagnosisConfig) -> Survey:
    """Looks at the points of some of the frames."""
    sampled = frames[:: max(1, -(-len(frames) // config.sampled_frames))]
    counts, confidence = [], []
    for frame in sampled.tolist():
        point_map = scene_map.points(frame)
        found = np.empty(0, np.float32)
        if point_map is not None:
            found = point_map.confidence[np.isfinite(point_map.points_in_camera).all(-1)]
        counts.append(len(found))
        confidence.append(float(np.median(found)) if len(found) else np.nan)
    return Survey(sampled, np.array(counts, np.int64), np.array(confidence))


def warnings_of(
    scene_map: Map, trajectory: Trajectory, survey: Survey, residuals: Residuals, config: DiagnosisConfig
) -> list[str]:
    """Sentences about what looks wrong; none if nothing does."""
    return [
        *_missing_frames(scene_map, scene_map.frames(), trajectory),
        *_jumps(trajectory, scene_map.path_of(trajectory.frames), config),
        *_camera(scene_map),
        *([told] if (told := trajectory.lack_of_translation()) else _weak_points(survey, config)),
        *_bad_edges(residuals, config),
        *_open_loops(residuals, config),
        *_loops(scene_map),
    ]


def _missing_frames(scene_map: Map, table: FrameTable, trajectory: Trajectory) -> Iterator[str]:
    placed = np.isin(table.index, trajectory.frames)
    # A frame that was lost has a pose nevertheless if it came to be the first one of a new component.
    lost = table.index[~placed & (table.status == WindowStatus.LOST.value)]
    if len(lost):
        to_which = "the others" if scene_map.is_of_photographs else "earlier ones"
        yield f"{len(lost)} frames were lost (no relation to {to_which} was found): {ranges(lost)}"
    unplaced = table.index[~placed & (table.status != WindowStatus.LOST.value)]
    if len(unplaced):
        yield f"{len(unplaced)} other frames have no pose: {ranges(unplaced)}"
    parts = 1 if trajectory.component is None else len(np.unique(trajectory.component))
    if parts > 1:
        cause = scene_map.cause_of_components()
        yield f"{cause}: the map has {parts} components, which no measurement relates"
    stride, expected = scene_map.meta.get("identity", {}).get("stride", 1), scene_map.meta.get("num_frames")
    whole, part = scene_map.parts(), scene_map.part_of(table.index)
    strides = [found.stride for found in whole] or [stride]
    gaps = sum(int((np.diff(table.index[part == k]) // stride - 1).sum()) for k, stride in enumerate(strides))
    if gaps:
        yield f"{gaps} frames of the source are not in the map: they could not be decoded or were missed"
    if expected is not None and len(table) + gaps < expected:
        yield f"mapping ended early: {len(table)} of {expected} frames are in the map"


def _jumps(trajectory: Trajectory, path: NDArray[np.int64], config: DiagnosisConfig) -> Iterator[str]:
    """path: (n,) on which a pose lies, from one to the next of which nothing moves."""
    if len(trajectory) < 3:
        return
    component = np.zeros(len(trajectory)) if trajectory.component is None else trajectory.component
    together = (np.diff(component) == 0) & (np.diff(path) == 0)
    if trajectory.log_scale is not None:
        factor = np.exp(np.abs(np.diff(trajectory.log_scale)))
        at = np.flatnonzero(together & (factor > config.scale_jump))
        if len(at):
            worst = at[np.argmax(factor[at])]
            yield (
                f"the scale jumps {_times(len(at))} by more than {config.scale_jump:g}×, at most by "
                f"{factor[worst]:.2f}× at frame {trajectory.frames[worst + 1]}: "
                f"{ranges(trajectory.frames[at + 1], config.listed)}"
            )
    step = np.linalg.norm(np.diff(trajectory.center, axis=0), axis=1) / np.diff(trajectory.frames)
    half = config.steps_around // 2
    padded = np.pad(step, half, mode="reflect" if len(step) > half else "edge")
    usual = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)
    at = np.flatnonzero(together & (step > config.step_jump * np.maximum(usual, 0.1 * np.median(step))))
    if len(at):
        yield (
            f"the camera jumps {_times(len(at))} by more than {config.step_jump:g} usual steps: "
            f"{ranges(trajectory.frames[at + 1], config.listed)}"
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _camera(scene_map: Map) -> Iterator[str]:
    camera = scene_map.meta.get("camera")
    if camera and not camera.get("determined", True):
        spread = camera["focal_sigma_px"] / camera["focal_px"]
        yield (
            f"the focal length is not determined by the images (± {spread:.0%}), and the shape of the map no "
            "surer than that: state the camera if it is known (--intrinsics, --fov), or film longer"
        )


def _weak_points(survey: Survey, config: DiagnosisConfig) -> Iterator[str]:
    if not survey.num_points.any():
        yield "the map has no points: its predictor gave none"
        return
    empty = survey.frames[survey.num_points == 0]
    if len(empty) > config.empty_frames * len(survey.frames):
        where = ranges(empty, config.listed)
        yield f"{len(empty)} of {len(survey.frames)} sampled frames have no points: {where}"
    usual = np.nanmedian(survey.confidence)
    weak = survey.frames[survey.confidence < config.low_confidence * usual]
    if len(weak):
        yield (
            f"{len(weak)} of {len(survey.frames)} sampled frames have a median confidence below "
            f"{config.low_confidence:.0%} of the map's ({usual:.3g}): {ranges(weak, config.listed)}"
        )


def _bad_edges(residuals: Residuals, config: DiagnosisConfig) -> Iterator[str]:
    for kind in EdgeKind:
        of_kind = residuals.kind == kind
        bad = of_kind & (residuals.rotation_deg > config.bad_edge_deg)
        if bad.sum() > config.bad_edges * of_kind.sum():
            where = ranges(np.unique(residuals.anchor[bad]), config.listed)
            yield (
                f"{bad.sum()} of {of_kind.sum()} {kind.name.lower()} edges are more than "
                f"{config.bad_edge_deg:g}° off the poses, anchored at {where}"
            )


def _open_loops(residuals: Residuals, config: DiagnosisConfig) -> Iterator[str]:
    off = residuals.translation[residuals.kind == EdgeKind.LOOP]
    if len(off) and np.median(off) > config.open_loop:
        yield (
            f"accepted loops are not closed by these poses: half of the {len(off)} loop edges are off by "
            f"more than {np.median(off):.0%} of the distance between their frames"
        )


def _loops(scene_map: Map) -> Iterator[str]:
    refinements = scene_map.refinements()
    if not refinements and scene_map.is_of_photographs:
        return
    if not refinements:
        is_open = scene_map.meta.get("identity", {}).get("loops") is None
        told = "loops are open and poses are" if is_open else "poses and loops are"
        yield f"the map was not refined: {told} those found on the way (anchor3r refine)"
        return
    last = refinements[-1].summary.get("last_frame")
    if last is not None and last < int(scene_map.frames().index[-1]):
        yield f"the map has grown since it was refined (frame {last}); refine it again"


def ranges(frames: NDArray[np.int64], listed: int = 6) -> str:
    """Frames as text, neighbours joined: "3–7, 12"; only the first so many, and how many more there are."""
    starts = np.flatnonzero(np.concatenate([[True], np.diff(frames) > 1]))
    ends = np.concatenate([starts[1:], [len(frames)]]) - 1
    texts = [f"{a}" if a == b else f"{a}–{b}" for a, b in zip(frames[starts], frames[ends], strict=True)]
    more = f" and {len(texts) - listed} more" if len(texts) > listed else ""
    return ", ".join(texts[:listed]) + more
