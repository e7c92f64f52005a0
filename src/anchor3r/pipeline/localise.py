"""Where images were taken in a map that is finished: its keyframes described once, then image by image."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.io.files import check_output, replacing
from anchor3r.io.trajectories import write_covariance, write_tum
from anchor3r.pipeline.settings import Progress, unwatched
from anchor3r.places.localiser import Localisation
from anchor3r.sources import Frame, Source
from anchor3r.store import Map, MapWriter, load_map
from anchor3r.store.fused import FUSED
from anchor3r.store.localising import MapLocaliser, describe_frame, place_frames_of, places_identity
from anchor3r.threads import limited_threads
from anchor3r.trajectory import Trajectory

_COLUMNS = "frame,timestamp_s,found,refusal,inliers,matches,log10_chance,component,position_sigma,keyframe"
_TABLES = (".csv", ".covariance.csv")
"""What the table of all images and that of covariances are called beside the poses."""


@dataclass(frozen=True, kw_only=True)
class LocaliseSettings:
    """How images are looked for in a map."""

    poses: str | None = None
    """Poses of the map to place images among: online or the name of a refinement; the best if not given."""
    own_camera: bool = False
    """Take the camera that the source of the images states. Else it is the map's, if images have its shape;
    of another shape they need a stated one."""


def keep_places(folder: Path | str, progress: Progress = unwatched) -> int:
    """Describes the keyframes of a map that have no features yet and keeps them; how many those were."""
    with load_map(folder) as scene_map:
        frames = place_frames_of(scene_map)
        if not len(frames):
            raise Anchor3RError(f"{scene_map.lack_of_poses()} There is nothing to find an image in.")
        same = scene_map.place_identity() == places_identity()
        if same and np.isin(frames, scene_map.place_frames()).all():  # nothing to write: it may be read-only
            return 0
    with MapWriter.open(folder) as writer, load_map(folder) as scene_map:
        known = writer.begin_places(places_identity())
        missing = [frame for frame in frames.tolist() if frame not in known]
        for k, frame in enumerate(missing):
            progress("describing", k, len(missing))
            writer.write_place(describe_frame(scene_map, frame))
    return len(missing)


@limited_threads(1)
def localise_images(
    folder: Path | str,
    source: Source,
    out: Path | str,
    settings: LocaliseSettings | None = None,
    *,
    progress: Progress = unwatched,
) -> dict[str, Any]:
    """Writes the poses of images in a map (TUM), beside it their covariances and a table of all images.

    Returns a summary (JSON). Features of the map's keyframes are computed once and stay in the map.
    """
    settings, out = settings or LocaliseSettings(), check_output(out)
    if out.suffix.lower() == ".csv":
        raise Anchor3RError(
            f"{out} is where the table of all images goes; name the file of poses otherwise, as "
            f"{out.with_suffix('.tum').name}"
        )
    for written in (out, *(out.with_suffix(suffix) for suffix in _TABLES)):
        check_output(written, inputs=[*source.files, Path(folder) / FUSED])
    described = keep_places(folder, progress)
    answers: list[tuple[Frame, Localisation]] = []
    with load_map(folder) as scene_map:
        localiser = MapLocaliser(scene_map, settings.poses)
        for frame in source.frames():
            progress("localising", len(answers), None)
            camera = _camera_of(frame, scene_map, localiser, settings)
            answer = localiser.localise(frame.image, camera)
            answers.append((_without_image(frame), answer))
    found = [(frame, answer) for frame, answer in answers if answer.found]
    refusals = Counter(str(answer.refusal) for _, answer in answers if not answer.found)
    _write(out, answers, found, f"poses of {source.uri} in {folder}")
    inliers = [answer.num_inliers for _, answer in found]
    return {
        "map": str(folder),
        "source": source.uri,
        "out": str(out),
        "poses": localiser.poses,
        "images": len(answers),
        "found": len(found),
        "refusals": dict(sorted(refusals.items())),
        "median_inliers": float(np.median(inliers)) if inliers else None,
        "components": len({answer.component for _, answer in found}),
        "described": described,
    }


def _camera_of(
    frame: Frame, scene_map: Map, localiser: MapLocaliser, settings: LocaliseSettings
) -> Pinhole | None:
    """What camera an image is of; None is the map's own."""
    if not settings.own_camera and localiser.has_shape_of_map(frame.image):
        return None
    if frame.intrinsics is None:
        raise Anchor3RError(
            f"image {frame.index} needs a camera of its own to be found in {scene_map.folder}; state it with "
            "--intrinsics or --fov"
        )
    return frame.intrinsics


def _without_image(frame: Frame) -> Frame:
    """Frames are kept until the end; their pixels are not."""
    return Frame(index=frame.index, timestamp_s=frame.timestamp_s, image=np.zeros((1, 1, 3), np.uint8))


def _write(
    out: Path,
    answers: list[tuple[Frame, Localisation]],
    found: list[tuple[Frame, Localisation]],
    comment: str,
) -> None:
    poses = [answer.camera_from_world for _, answer in found if answer.camera_from_world is not None]
    trajectory = Trajectory(
        frames=np.array([frame.index for frame, _ in found], np.int64),
        rotation=np.array([pose.rotation for pose in poses]).reshape(-1, 3, 3),
        center=np.array([pose.center() for pose in poses]).reshape(-1, 3),
        timestamps_s=np.array([frame.timestamp_s for frame, _ in found], np.float64),
        covariance=np.array([answer.covariance for _, answer in found]).reshape(-1, 6, 6),
    )
    write_tum(out, trajectory, comment=comment)
    if found:
        write_covariance(out.with_suffix(_TABLES[1]), trajectory)
    table = io.StringIO()
    table.write(_COLUMNS + "\n")
    for frame, answer in answers:
        table.write(",".join(_row(frame, answer)) + "\n")
    with replacing(out.with_suffix(_TABLES[0])) as file:
        file.write(table.getvalue().encode())


def _row(frame: Frame, answer: Localisation) -> list[str]:
    sigma = "" if answer.position_sigma is None else f"{answer.position_sigma:.6g}"
    keyframe = str(answer.keyframes[0]) if answer.keyframes else ""
    return [
        str(frame.index), f"{frame.timestamp_s:.9f}", str(int(answer.found)), str(answer.refusal or ""),
        str(answer.num_inliers), str(answer.num_matches), f"{answer.log10_chance:.2f}",
        str(answer.component), sigma, keyframe,
    ]  # fmt: skip
