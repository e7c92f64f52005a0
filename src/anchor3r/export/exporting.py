"""A map in the formats of other programs: what `anchor3r export` and `anchor3r.export_map` do."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.export.selection import Selection
from anchor3r.geodesy import WORLD_FROM_LOCAL, Datum
from anchor3r.io.files import check_output
from anchor3r.io.trajectories import Gaps
from anchor3r.pipeline.settings import NOT_A_RECONSTRUCTION, RefineSettings
from anchor3r.pose_graph.edges import MotionGraph
from anchor3r.predictors.confidence import LIKELY
from anchor3r.store import Map, best_poses, load_map
from anchor3r.store.fused import FUSED
from anchor3r.trajectory import Trajectory

Format = Literal[
    "tum", "kitti", "euroc", "g2o", "ply", "pcd", "las", "laz", "glb", "mesh", "colmap", "nerfstudio",
    "rrd", "mcap", "rosbag2", "geojson", "gpx", "kml",
]  # fmt: skip
_TRAJECTORIES = ("tum", "kitti", "euroc")
_PROJECTS = ("colmap", "nerfstudio")
_ON_EARTH = ("geojson", "gpx", "kml")
_RECORDINGS = ("rrd", "mcap", "rosbag2")
_FOLDERS = (*_PROJECTS, "rosbag2")
_WITH_POINTS = ("ply", "pcd", "las", "laz", "glb", "mesh", *_PROJECTS)
_LARGE_CHANGE = 0.05
"""Of a focal length: more of it shows in poses."""


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """What of a map is exported, and how."""

    poses: str | None = None
    """online, or the name of a refinement; the refined ones if there are any."""
    frames: Literal["all", "keyframes"] = "all"
    """All with a pose, or keyframes only: one out of as many as refine takes."""
    component: int | None = None
    """Only this part of a map whose parts no measurement relates; all of them if not given."""
    gaps: Gaps = Gaps.ERROR
    """What a kitti file, which has a line for every frame, says of a frame without a pose: error refuses to
    write, hold repeats the pose of the frame before."""
    covariance: bool = False
    """Write the covariance of each pose of a trajectory as well, to OUT.covariance.csv."""
    confidence: float = LIKELY
    """Leave out points that are less likely than this to be within 5 % of their distance."""
    voxel: float | None = None
    """Keep one point for each cube of this side, in the map's unit; every point if not given."""
    max_points: int | None = None
    """Of more points, draw so many by lot; if not given, a million for glb, nerfstudio, rrd, mcap and
    rosbag2, two hundred thousand for colmap, all for the rest."""
    points: Literal["fused", "frames"] | None = None
    """Points of the fused surface, or of each frame by itself; fused if there is one of these poses."""
    max_faces: int | None = None
    """Of a mesh: simplify it to about so many faces; all of them if not given."""
    images: Literal["source", "map"] = "source"
    """Of colmap and nerfstudio, the images: in full size from the source if it is still at hand, without the
    lens distortion that was stated to map it; or the map's own smaller copies."""
    cameras: Literal["one", "each"] = "one"
    """Of colmap and nerfstudio: one camera for all images, as the map knew it in the end; or for each image
    the one it was mapped with."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written."""

    what: str
    """In words, such as "120 poses"."""
    poses: str
    """Name of the poses."""
    notes: tuple[str, ...]
    """What the user should know about it."""


def export_map(
    folder: Path | str, out: Path | str, format: Format, settings: ExportSettings | None = None
) -> Exported:
    """Writes a map to a file, or of colmap, nerfstudio and rosbag2 to a new folder, for other programs.

    tum, kitti and euroc are trajectories (camera to world) as text, geojson, gpx and kml the path on the
    Earth of a map that was refined with positions; g2o is the motion graph; ply, pcd, las, laz and glb are
    point clouds, las and laz in UTM where the map knows its place, glb with the cameras as lines; mesh is the
    fused surface, as PLY or GLB by the name of the file; colmap and nerfstudio are folders with images,
    cameras and points, from which trainers of splats start; rrd and mcap are recordings that Rerun and
    Foxglove play, rosbag2 one for ROS 2.
    """
    settings, out = settings or ExportSettings(), Path(out)
    _insist_on_meaning(format, settings)
    if format not in _FOLDERS:
        check_output(out, inputs=[Path(folder) / FUSED])
    with load_map(folder) as scene_map:
        poses = settings.poses or best_poses(scene_map.trajectory_names())
        notes: list[str] = []
        chosen = Selection(
            scene_map=scene_map, poses=poses, trajectory=_chosen_part(scene_map, poses, settings, notes),
            min_confidence=settings.confidence, voxel=settings.voxel, max_points=settings.max_points,
        )  # fmt: skip
        _insist_on_translation(chosen, format)
        if format in _WITH_POINTS:
            chosen = _with_fused(chosen, settings, format, notes)
        if format in _ON_EARTH:
            what = _write_path_on_earth(chosen, out, format)
        elif format in _TRAJECTORIES:
            what = _write_trajectory(chosen, out, format, settings)
        elif format == "mesh":
            what = _write_mesh(chosen, out, settings)
        elif format in _PROJECTS:
            what = _write_project(chosen, out, format, settings, notes)
        elif format in _RECORDINGS:
            what = _write_recording(chosen, out, format)
        else:
            what = _write_graph(chosen, out) if format == "g2o" else _write_cloud(chosen, out, format)
        if scene_map.meta.get("ground_truth_predictor"):
            notes.append(NOT_A_RECONSTRUCTION)
    return Exported(what=what, poses=poses, notes=tuple(notes))


def _insist_on_translation(chosen: Selection, format: str) -> None:
    """Refuses what is made of points where there can be none."""
    told = chosen.trajectory.lack_of_translation()
    if told is not None and format in _WITH_POINTS:
        raise Anchor3RError(
            f"{chosen.scene_map.folder}: {told}, which {format} needs; poses can be exported (--format tum)"
        )


def _insist_on_meaning(format: str, settings: ExportSettings) -> None:
    """Refuses options that the format could not follow."""
    if settings.covariance and format not in _TRAJECTORIES:
        raise Anchor3RError(f"--covariance belongs to {', '.join(_TRAJECTORIES)}, not to {format}")
    if settings.frames == "keyframes" and format == "g2o":
        raise Anchor3RError("a motion graph without the frames between keyframes falls apart; --frames all")
    if settings.voxel is not None and format == "colmap":
        raise Anchor3RError("a colmap model merges points by itself: leave --voxel out, or use --max-points")
    if settings.voxel is not None and format in _RECORDINGS:
        raise Anchor3RError(
            f"{format} has the points of each frame at its time: leave --voxel out, or use --max-points"
        )
    if format == "mesh" and (settings.points, settings.voxel, settings.max_points) != (None, None, None):
        raise Anchor3RError(
            "a mesh is the fused surface with the voxels it was fused with: leave --points, --voxel and "
            "--max-points out, or choose --voxel of anchor3r fuse; --max-faces simplifies it"
        )
    if settings.max_faces is not None and (format != "mesh" or settings.max_faces < 4):
        raise Anchor3RError("--max-faces is a number of at least 4 and belongs to --format mesh")
    if settings.voxel is not None and not 0 < settings.voxel < math.inf:
        raise Anchor3RError(f"--voxel must be a positive length, not {settings.voxel:g}")
    if not 0 <= settings.confidence < math.inf:
        raise Anchor3RError(f"--confidence must be 0 or more, not {settings.confidence:g}")
    if settings.max_points is not None and settings.max_points < 1:
        raise Anchor3RError(f"--max-points must be at least 1, not {settings.max_points}")


def _chosen_part(scene_map: Map, poses: str, settings: ExportSettings, notes: list[str]) -> Trajectory:
    trajectory, component = scene_map.trajectory(poses), settings.component
    assert trajectory.component is not None
    parts = sorted(set(trajectory.component.tolist()))
    if component is not None:
        trajectory = trajectory.select(trajectory.component == component)
    elif len(parts) > 1:
        notes.append(
            f"{scene_map.cause_of_components()}, so the map has the components {parts}, which no measurement "
            "relates; they are all written. Choose one with --component"
        )
    if not len(trajectory):
        if component is None:
            raise Anchor3RError(scene_map.lack_of_poses())
        raise Anchor3RError(
            f"{scene_map.folder} has no {poses} poses in component {component}; its components are {parts}"
        )
    step = _keyframe_interval(scene_map, poses) if settings.frames == "keyframes" else 1
    return trajectory.select(slice(None, None, step))


def _keyframe_interval(scene_map: Map, poses: str) -> int:
    """That of the refinement which made the poses, or of one that would be made now."""
    made = {refinement.name: refinement.settings for refinement in scene_map.refinements()}
    return made.get(poses, {}).get("keyframe_interval", RefineSettings.keyframe_interval)


def _write_trajectory(chosen: Selection, out: Path, format: str, settings: ExportSettings) -> str:
    """A kitti file of keyframes has a line only for each pose."""
    from anchor3r.io.trajectories import write_covariance, write_euroc, write_kitti, write_tum

    scene_map, trajectory = chosen.scene_map, chosen.trajectory
    if settings.covariance:
        write_covariance(out.with_name(f"{out.name}.covariance.csv"), trajectory)
    if format == "tum":
        write_tum(out, trajectory, comment=_origin(chosen))
    elif format == "euroc":
        write_euroc(out, trajectory)
    elif settings.frames == "keyframes":
        write_kitti(out, trajectory)
    else:
        cut, indices = scene_map.meta.get("identity", {}), scene_map.frames().index
        # Frames that could not be decoded have their line too.
        wanted = range(cut.get("start", int(indices[0])), int(indices[-1]) + 1, cut.get("stride", 1))
        write_kitti(out, trajectory, frames=wanted, gaps=settings.gaps)
    return f"{len(trajectory)} poses"


def _with_fused(chosen: Selection, settings: ExportSettings, format: str, notes: list[str]) -> Selection:
    """With the points of the fused surface, if they are wanted and there."""
    from anchor3r.store.fused import fused_or_reason

    if settings.points == "frames":
        return chosen
    folder = chosen.scene_map.folder
    fused, reason = fused_or_reason(chosen.scene_map, chosen.poses)
    if fused is None and (settings.points == "fused" or format == "mesh"):
        raise Anchor3RError(reason or f"{folder} has no fused surface; run anchor3r fuse {folder} first")
    if reason:
        notes.append(f"{reason}. The points are those of the frames")
    if fused is None or settings.component is None:
        return replace(chosen, fused=fused)
    every = chosen.scene_map.trajectory(chosen.poses)
    assert every.component is not None
    return replace(chosen, fused=fused, fused_frames=every.frames[every.component == settings.component])


def _write_mesh(chosen: Selection, out: Path, settings: ExportSettings) -> str:
    from anchor3r.io.mesh import insist_on_faces, select_vertices, simplified, write_mesh_glb, write_mesh_ply

    if out.suffix.lower() not in (".ply", ".glb"):
        raise Anchor3RError(f"a mesh is written as PLY or GLB: call the file .ply or .glb, not {out.name}")
    assert chosen.fused is not None
    mesh = chosen.fused.mesh
    insist_on_faces(mesh, chosen.scene_map.folder / FUSED)
    if chosen.fused_frames is not None:
        mesh = select_vertices(mesh, np.isin(mesh.vertices["frame"], chosen.fused_frames))
    if settings.max_faces is not None:
        mesh = simplified(mesh, settings.max_faces)
    (write_mesh_glb if out.suffix.lower() == ".glb" else write_mesh_ply)(out, mesh)
    return f"{len(mesh.vertices)} vertices and {len(mesh.faces)} faces"


def _write_path_on_earth(chosen: Selection, out: Path, format: str) -> str:
    from anchor3r.io.geo import write_geojson, write_gpx, write_kml

    datum, trajectory = _datum(chosen), chosen.trajectory
    if datum is None:
        placed = [label for label, found in _datums(chosen) if found is not None]
        raise Anchor3RError(
            f"{chosen.scene_map.folder}: the {chosen.poses} poses have no place on the Earth, which {format} "
            "needs; "
            + (
                f"only their components {', '.join(map(str, placed))} have one: choose with --component"
                if placed
                else "map or refine with --gnss FILE first"
            )
        )
    geodetic = datum.to_geodetic(trajectory.center @ WORLD_FROM_LOCAL)
    name = f"{chosen.scene_map.folder.name} ({chosen.poses})"
    if format == "geojson":
        write_geojson(out, geodetic, trajectory.timestamps_s, {"name": name})
    elif format == "gpx":
        write_gpx(out, geodetic, trajectory.timestamps_s, name)
    else:
        write_kml(out, geodetic, name)
    return f"{len(trajectory)} positions"


def _datum(chosen: Selection) -> Datum | None:
    """Of the poses; None if a component of those that are written has no place on the Earth."""
    found = [datum for _, datum in _datums(chosen)]
    return None if None in found else found[0]


def _datums(chosen: Selection) -> list[tuple[int, Datum | None]]:
    """Components of those that are written, and where on the Earth each has its origin."""
    assert chosen.trajectory.component is not None
    labels = np.unique(chosen.trajectory.component).tolist()
    return [(label, chosen.scene_map.datum(chosen.poses, label)) for label in labels]


def _write_cloud(chosen: Selection, out: Path, format: str) -> str:
    return f"{_num_written(chosen, out, format)} points"


def _num_written(chosen: Selection, out: Path, format: str) -> int:
    if format == "glb":
        from anchor3r.export.glb import write_glb

        camera = chosen.scene_map.intrinsics(int(chosen.trajectory.frames[0]))
        clouds = chosen.limited().clouds(out.parent)
        return write_glb(out, clouds, chosen.trajectory, camera)
    if format in ("las", "laz"):
        from anchor3r.io.las import write_las

        clouds = chosen.clouds(out.parent)
        return write_las(out, clouds, compressed=format == "laz", datum=_datum(chosen))
    from anchor3r.io.pointcloud import write_pcd, write_ply

    write = write_ply if format == "ply" else write_pcd
    return write(out, chosen.clouds(out.parent), comment=_origin(chosen))


def _with_one_camera(chosen: Selection, notes: list[str]) -> Selection:
    """Says so if that is far from what the frames were mapped with."""
    from anchor3r.export.cameras import largest_change
    from anchor3r.store.camera import common_camera

    camera = common_camera(chosen.scene_map)
    change = largest_change(chosen.scene_map, chosen.trajectory.frames.tolist(), camera)
    found = chosen.scene_map.meta.get("camera") or {}
    if not found.get("determined", True):
        notes.append(
            f"the focal length, {camera.fx:.0f} ± {found['focal_sigma_px']:.0f} pixels, is not determined by "
            "the images: map again with the camera stated (--intrinsics, --fov) if it is known"
        )
    elif change > _LARGE_CHANGE:
        notes.append(
            f"the camera became known on the way, some frames had a focal length {change:.0%} off the final "
            f"one; for a more exact model map again with --intrinsics "
            f"{camera.fx:.2f},{camera.fy:.2f},{camera.cx:.2f},{camera.cy:.2f}"
        )
    return replace(chosen, camera=camera)


def _write_project(
    chosen: Selection, out: Path, format: str, settings: ExportSettings, notes: list[str]
) -> str:
    from anchor3r.export.projects import open_images

    if settings.cameras == "one":
        chosen = _with_one_camera(chosen, notes)
    trajectory = chosen.trajectory
    first = int(trajectory.frames[0])
    with open_images(chosen.scene_map, first, prefer_source=settings.images == "source") as pictures:
        if format == "nerfstudio":
            from anchor3r.export.projects import write_nerfstudio

            count = write_nerfstudio(out, chosen.limited(), pictures, comment=_origin(chosen))
        else:
            from anchor3r.export.projects import write_colmap

            count = write_colmap(out, chosen, pictures)
    taken_from = "the source" if pictures.original is not None else "the map's copies"
    return f"{len(trajectory)} images (from {taken_from}) and {count} points"


def _write_recording(chosen: Selection, out: Path, format: str) -> str:
    if format == "rrd":
        from anchor3r.export.rerun_log import write_rrd

        return f"a recording of {write_rrd(out, chosen)} frames"
    if format == "rosbag2":
        from anchor3r.export.rosbag2 import write_rosbag2

        return f"a recording of {write_rosbag2(out, chosen)} frames"
    from anchor3r.export.mcap_log import write_mcap

    return f"a recording of {write_mcap(out, chosen)} frames"


def _write_graph(chosen: Selection, out: Path) -> str:
    """The poses as vertices and all edges between them.

    A g2o file has one scale, so every edge goes from the scale of its window to that of the map.
    """
    from anchor3r.io.g2o import write_g2o

    trajectory, edges = chosen.trajectory, chosen.scene_map.graph(chosen.poses).edges
    edges = edges.select(
        np.isin(edges.frame_i, trajectory.frames) & np.isin(edges.frame_t, trajectory.frames)
    )
    if not len(edges):
        raise Anchor3RError(f"no edges to write to {out}: no window of the map relates two of these frames")
    log_scale = np.zeros(len(trajectory)) if trajectory.log_scale is None else trajectory.log_scale
    scale = np.exp(log_scale[np.searchsorted(trajectory.frames, edges.frame_t)])
    step = np.concatenate([np.ones((len(edges), 3)), np.repeat(1 / scale[:, None], 3, axis=1)], 1)
    in_map_scale = replace(
        edges,
        translation=edges.translation * scale[:, None],
        information=edges.information * step[:, :, None] * step[:, None, :],
    )
    write_g2o(out, MotionGraph(in_map_scale), trajectory.frames, trajectory.camera_from_world)
    return f"{len(trajectory)} poses and {len(edges)} edges"


def _origin(chosen: Selection) -> str:
    """One line about where the numbers come from."""
    meta = chosen.scene_map.meta
    identity = meta.get("identity", {})
    text = (
        f"anchor3r: {chosen.poses} poses of {identity.get('source')}, predictor {identity.get('predictor')}"
    )
    return f"{text}; {NOT_A_RECONSTRUCTION}" if meta.get("ground_truth_predictor") else text
