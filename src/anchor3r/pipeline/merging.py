"""Several maps of one place as one: common places found, related and verified, all poses refined together.

The merged map holds the frames of all maps under numbers of their own. Keyframes of each map are looked for
among those of the others (`loops.places`); where one recognises a place, and is recognised from there, both
poses and the ratio of the two scales become a loop event. The pose graph judges these events like any loops,
and joins two maps only where several of them measure the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.io.files import insist_on_new_folder, replacing_folder
from anchor3r.limits import LIMITS
from anchor3r.loops.places import PlaceConfig, PlaceSearch, place_event
from anchor3r.pipeline.known_places import keep_features
from anchor3r.pipeline.loop_search import MERGE
from anchor3r.pipeline.refine import refine_map
from anchor3r.pipeline.settings import Progress, RefineSettings, unwatched
from anchor3r.pose_graph.edges import Edges
from anchor3r.store import OFFLINE, ONLINE, Loop, Map, MapWriter, StoreConfig, load_map
from anchor3r.store.camera import common_camera
from anchor3r.store.copying import Renumbering, copied_loops, copy_map
from anchor3r.store.localising import map_keyframes, place_frames_of, places_identity
from anchor3r.store.parts import PARTS_KEY, MapPart, part_of
from anchor3r.store.rows import CONFIDENCE_KEY
from anchor3r.threads import limited_threads
from anchor3r.trajectory import Trajectory

Int = NDArray[np.int64]
_LEAST_BLOCK = 1000
"""Numbers that a part has for its frames at least; more, by factors of ten, if it needs them."""
_SAME_FOCAL = 0.05
"""Part of a focal length by which those of one camera may differ where nobody knows how well they are known:
as far as a stated camera may be off (`known_focal_sigma`)."""
_SURE = 3.0
"""Standard deviations beyond which two focal lengths are of different cameras."""
_REMEMBERED = 256
"""Keyframes whose features are kept in memory."""


@limited_threads(1)
def merge_maps(
    folders: Sequence[Path | str],
    out: Path | str,
    config: PlaceConfig | None = None,
    *,
    progress: Progress = unwatched,
) -> dict[str, Any]:
    """Makes one map of several maps of one place, and returns a summary (JSON).

    out: a new folder; it appears when the map is complete. Its online poses are the best poses of the maps,
    each in its own world; its offline poses are those of all maps together, in the world of the first.
    Parts that have no place in common with any other stay components of their own.
    """
    config, paths = config or PlaceConfig(), [Path(folder) for folder in folders]
    insist_on_new_folder(Path(out))
    with ExitStack() as stack:
        maps = [stack.enter_context(load_map(path)) for path in paths]
        for scene_map in maps:
            stack.enter_context(scene_map.frozen())  # one of them may still grow
        _insist_on_poses(maps)
        parts = _parts_of(maps)
        _insist_on_different(parts)
        _insist_on_alike(maps)
        unfinished = stack.enter_context(replacing_folder(out))
        _copy(maps, parts, unfinished, progress)
        first_event = _find_common_places(maps, parts, unfinished, config, progress)
        refined = refine_map(unfinished, RefineSettings(loops=False))
        with load_map(unfinished) as merged:
            common = [loop for loop in merged.loops() if loop.event >= first_event]
            summary = _summary(merged, common) | {"poses": refined["poses"], "solver": refined["solver"]}
    return {"map": str(out), **summary}


def _insist_on_poses(maps: Sequence[Map]) -> None:
    if len(maps) < 2:
        raise Anchor3RError("merging takes two maps or more; name another one")
    for scene_map in maps:
        if not len(scene_map.trajectory()):
            raise Anchor3RError(f"{scene_map.lack_of_poses()} There is nothing to merge.")
        if not scene_map.keeps_images():
            raise Anchor3RError(
                f"{scene_map.folder} keeps no images, by which common places are found; map it again without "
                "--no-keep-images"
            )
        if CONFIDENCE_KEY not in scene_map.meta:
            raise Anchor3RError(
                f"{scene_map.folder} was begun by an earlier anchor3r, whose points had confidences of "
                "another kind; make the map again"
            )


def _insist_on_alike(maps: Sequence[Map]) -> None:
    """Refuses maps that one predictor and one camera cannot stand for."""
    first, *others = maps
    for other in others:
        ours, theirs = _predictor_of(first), _predictor_of(other)
        if ours != theirs:
            raise Anchor3RError(
                f"{first.folder} was made by the predictor {ours}, {other.folder} by {theirs}; a map has "
                "one: map one of them again with --predictor"
            )
        if (reason := _another_camera(first, other)) is not None:
            raise Anchor3RError(
                f"{first.folder} and {other.folder} are of different cameras ({reason}), but a map has one; "
                "if both are of one camera, map one again with --camera and the folder of the other; if "
                "not, place its images in the other map with anchor3r localise"
            )


def _predictor_of(scene_map: Map) -> str:
    """What a predictor is loaded by; of one that cannot be, such as imported poses, the kind alone."""
    meta = scene_map.meta
    name = (meta.get("loaded_as") or {}).get("name")
    return str(name or meta.get("identity", {}).get("predictor", "unknown").partition(" ")[0])


def _another_camera(one: Map, other: Map) -> str | None:
    """What the cameras of two maps differ in; None if they may be one."""
    a, b = common_camera(one), common_camera(other)
    if (a.width, a.height) != (b.width, b.height):
        return f"images of {a.width}×{a.height} and {b.width}×{b.height}"
    sigma_sq = 0.0
    for scene_map, camera in ((one, a), (other, b)):
        about = scene_map.meta.get("camera") or {}
        sigma_px = about.get("focal_sigma_px")
        sigma_sq += (sigma_px / camera.fx) ** 2 if sigma_px else _SAME_FOCAL**2
    if abs(np.log(a.fx / b.fx)) > _SURE * np.sqrt(sigma_sq):
        return f"focal lengths of {a.fx:.1f} and {b.fx:.1f} pixels"
    return None


def _parts_of(maps: Sequence[Map]) -> list[list[MapPart]]:
    """Of each map its parts as they are called in the merged map: a merged map has several."""
    old = [scene_map.parts() or (_whole(scene_map),) for scene_map in maps]
    lengths = [_numbers(scene_map, parts) for scene_map, parts in zip(maps, old, strict=True)]
    block = _LEAST_BLOCK
    while block < max(length for found in lengths for length in found):
        block *= 10
    total = block * sum(map(len, old))
    if total > LIMITS.frames:
        raise Anchor3RError(
            f"the merged map would need numbers up to {total:,} for its frames, more than the "
            f"{LIMITS.frames:,} that a map has; merge fewer or shorter maps"
        )
    found, first = [], 0
    shifts = _time_shifts(maps)
    for parts, shift in zip(old, shifts, strict=True):
        moved = []
        for part in parts:
            shifted = part.time_shift_s + shift
            moved.append(replace(part, first_frame=first, time_shift_s=shifted))
            first += block
        found.append(moved)
    return found


def _whole(scene_map: Map) -> MapPart:
    """A map of one source as the only part of itself."""
    meta = scene_map.meta
    identity = meta.get("identity", {})
    return MapPart(
        map=str(scene_map.folder),
        digest=_digest(scene_map.trajectory()),
        first_frame=0,
        num_frames=scene_map.num_frames,
        time_shift_s=0.0,
        source=str(identity.get("source", "")),
        start=identity.get("start", 0),
        stride=identity.get("stride", 1),
        camera=identity.get("camera"),
        expected=meta.get("num_frames"),
    )


def _digest(trajectory: Trajectory) -> str:
    columns = trajectory.frames, trajectory.rotation, trajectory.center
    return hashlib.sha256(b"".join(np.ascontiguousarray(c).tobytes() for c in columns)).hexdigest()


def _numbers(scene_map: Map, parts: Sequence[MapPart]) -> list[int]:
    """How many numbers each part of a map needs for its frames."""
    frames = scene_map.frames().index
    of = part_of(frames, parts)
    return [1 + int((frames[of == k] - part.first_frame).max(initial=0)) for k, part in enumerate(parts)]


def _time_shifts(maps: Sequence[Map]) -> list[float]:
    """What to add to the times of each map so that times ascend; nothing where they do by themselves."""
    spans = [scene_map.frames().timestamp_s for scene_map in maps]
    shifts, end = [0.0], float(spans[0].max())
    for before, span in pairwise(spans):
        gap = 1.0 + float(np.median(np.diff(before))) if len(before) > 1 else 1.0
        shift = 0.0 if span.min() > end else end + gap - float(span.min())
        shifts.append(shift)
        end = float(span.max()) + shift
    return shifts


def _insist_on_different(parts: Sequence[Sequence[MapPart]]) -> None:
    for one, other in combinations((part for found in parts for part in found), 2):
        if one.digest == other.digest:
            names = one.map if one.map == other.map else f"{one.map} and {other.map}"
            raise Anchor3RError(f"{names}: this is the same map twice; name it once")


def _copy(maps: Sequence[Map], parts: Sequence[Sequence[MapPart]], folder: Path, progress: Progress) -> None:
    """Begins the merged map with all that the maps hold of their frames."""
    flat = [part for found in parts for part in found]
    meta = maps[0].meta
    identity = meta.get("identity", {})
    about = {name: identity.get(name) for name in ("predictor", "window", "settings")}
    quality = {m.meta.get("store", {}).get("image_quality") for m in maps} - {None}
    store = StoreConfig(image_quality=min(quality)) if quality else StoreConfig()
    sources = {"source": " + ".join(part.source for part in flat), "start": 0, "stride": 1}
    with MapWriter.create(folder, sources | about, config=store) as writer:
        writer.write_meta(
            **{PARTS_KEY: [asdict(part) for part in flat]},
            ground_truth_predictor=any(m.meta.get("ground_truth_predictor") for m in maps),
            num_frames=sum(part.num_frames for part in flat),
            versions=meta.get("versions", {}),
            loaded_as=meta.get("loaded_as"),
        )
        if (camera := _camera_of(maps)) is not None:
            writer.write_meta(camera=camera)
        writer.begin_places(places_identity())
        component = 0
        for k, (scene_map, found) in enumerate(zip(maps, parts, strict=True)):
            progress("copying", k, len(maps))
            names = _renumbering(scene_map, found, component)
            same = scene_map.place_identity() == places_identity()
            component += copy_map(scene_map, writer, names, with_places=same)


def _renumbering(scene_map: Map, parts: Sequence[MapPart], first_component: int) -> Renumbering:
    old = scene_map.parts() or (_whole(scene_map),)
    first = np.array([part.first_frame for part in parts])
    shift = first - np.array([part.first_frame for part in old])
    return Renumbering(
        frames=lambda frames: frames + shift[part_of(frames, old)],
        first_component=first_component,
        time_shift_s=parts[0].time_shift_s - old[0].time_shift_s,
    )


def _camera_of(maps: Sequence[Map]) -> dict[str, Any] | None:
    """What was found of the one camera, weighted by how sure each map is; None if none found any."""
    found = [scene_map.meta.get("camera") for scene_map in maps]
    if any(camera is None or not camera.get("focal_sigma_px") for camera in found):
        return next((camera for camera in found if camera is not None), None)
    known: list[dict[str, Any]] = [camera for camera in found if camera is not None]
    weight = np.array([camera["focal_sigma_px"] for camera in known]) ** -2.0
    merged = dict(known[int(np.argmax(weight))])
    for name in ("focal_px", "fx", "fy", "cx", "cy", "k1", "k2"):
        if all(name in camera for camera in known):
            merged[name] = float(np.average([camera[name] for camera in known], weights=weight))
    return merged | {"focal_sigma_px": float(weight.sum() ** -0.5)}


def _find_common_places(
    maps: Sequence[Map],
    parts: Sequence[Sequence[MapPart]],
    folder: Path,
    config: PlaceConfig,
    progress: Progress,
) -> int:
    """Keeps the loop events of the maps, then those between them; the number of the first of these."""
    with MapWriter.open(folder) as writer, load_map(folder) as merged:
        keep_features(merged, writer, merged.frame, progress)
        search, _ = writer.begin_search({MERGE: asdict(config)})
        own = [
            event
            for scene_map, found in zip(maps, parts, strict=True)
            for event in copied_loops(scene_map, _renumbering(scene_map, found, 0))
        ]
        map_of_part = np.repeat(np.arange(len(parts)), [len(found) for found in parts])
        owner = map_of_part[merged.part_of(place_frames_of(merged))]
        events = own + list(_common_places(merged, owner, config, progress))
        writer.write_loops(
            ((replace(loop, event=k), groups) for k, (loop, groups) in enumerate(events)), search
        )
        writer.finish_search(search)
    return len(own)


def _common_places(
    merged: Map, owner: Int, config: PlaceConfig, progress: Progress
) -> Iterator[tuple[Loop, list[Edges]]]:
    """Keyframes of each map that recognise a place in one before it, as events measured both ways.

    owner: (k,) which of the maps each keyframe is of, ascending.
    """
    posed = map_keyframes(merged, ONLINE)
    search = PlaceSearch(merged.place, config, remembered=_REMEMBERED)
    for row, frame in enumerate(posed.frames.tolist()):
        progress("comparing", row, len(posed.frames))
        place = merged.place(frame)
        search.add(place)
        for component in np.unique(posed.component[owner < owner[row]]):
            for match in search.candidates(place, posed.component == component).tolist():
                event = place_event(search, posed, row, match, is_free=True)
                if event is not None:
                    yield event


def _summary(merged: Map, common: Sequence[Loop]) -> dict[str, Any]:
    """What was merged and what hangs together. common: events between maps."""
    parts, trajectory = merged.parts(), merged.trajectory(OFFLINE)
    assert trajectory.component is not None
    of = merged.part_of(trajectory.frames)
    components = [
        {
            "component": int(label),
            "parts": np.unique(of[trajectory.component == label]).tolist(),
            "frames": int((trajectory.component == label).sum()),
        }
        for label in np.unique(trajectory.component)
    ]
    return {
        "parts": [
            {
                "map": part.map,
                "source": part.source,
                "first_frame": part.first_frame,
                "frames": part.num_frames,
                "with_pose": int((of == k).sum()),
                "time_shift_s": part.time_shift_s,
            }
            for k, part in enumerate(parts)
        ],
        "frames": merged.num_frames,
        "with_pose": len(trajectory),
        "components": components,
        "common_places": len(common),
        "accepted": sum(loop.accepted for loop in common),
        "not_joined": _not_joined(components, len(parts)),
    }


def _not_joined(components: Sequence[dict[str, Any]], num_parts: int) -> list[int]:
    """Parts none of whose components any other part shares."""
    shared = {part for component in components if len(component["parts"]) > 1 for part in component["parts"]}
    return [part for part in range(num_parts) if part not in shared]
