"""Several maps of one place as one: common places found, related and verified, all poses refined together.

The merged map holds the frames of all maps under numbers of their own. Keyframes of each map are looked for
among those of every other one (`places`); where one is found, it becomes a loop event: its pose relative to
the keyframes that it was found by, with the covariance of the fit and the ratio of the two scales. The pose
graph judges these events like any loops, and joins two maps only where several of them measure the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.io.files import insist_on_new_folder, replacing_folder
from anchor3r.limits import LIMITS
from anchor3r.loops.reinsertion import neighbourhood
from anchor3r.pipeline.refine import MERGE, refine_map
from anchor3r.pipeline.settings import RefineSettings
from anchor3r.places.localiser import Localisation, Localiser, LocaliserConfig
from anchor3r.places.vocabulary import load_vocabulary
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.robust import Estimate, median_log_ratio
from anchor3r.store import Loop, LoopState, Map, MapWriter, StoreConfig, load_map
from anchor3r.store.camera import common_camera
from anchor3r.store.copying import Renumbering, copied_loops, copy_map
from anchor3r.store.localising import describe_frame, map_keyframes, place_frames_of, places_identity
from anchor3r.store.parts import PARTS_KEY, MapPart, part_of
from anchor3r.store.rows import CONFIDENCE_KEY
from anchor3r.trajectory import Trajectory

Progress = Callable[[str, int, int | None], None]
"""Told of a stage, what of it is done and how much there is, if that is known."""
Int = NDArray[np.int64]
_LEAST_BLOCK = 1000
"""Numbers that a part has for its frames at least; more, by factors of ten, if it needs them."""
_SAME_FOCAL = 0.05
"""Part of a focal length by which those of one camera may differ where nobody knows how well they are known:
as far as a stated camera may be off (`known_focal_sigma`)."""
_SURE = 3.0
"""Standard deviations beyond which two focal lengths are of different cameras."""
_LEAST_SCALE_SIGMA = 0.01
"""Spread of a ratio of scales at least, however many depths agree."""


@dataclass(frozen=True, kw_only=True)
class MergeConfig:
    """When a keyframe of one map is found in another one."""

    localiser: LocaliserConfig = LocaliserConfig()
    """How much has to speak for its pose."""
    members: int = 9
    """Frames around the place that it is related to: as many as a window looks back to, so that their scale
    is known."""
    depths_alike: float = 4.0
    """Features of a keyframe whose depths err together and count as one measurement of scale."""

    def __post_init__(self) -> None:
        if self.members < 3 or self.depths_alike < 1:
            raise ValueError(f"members must be at least 3 and depths_alike at least 1: {self}")


def merge_maps(
    folders: Sequence[Path | str],
    out: Path | str,
    config: MergeConfig | None = None,
    *,
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Makes one map of several maps of one place, and returns a summary (JSON).

    out: a new folder; it appears when the map is complete. Its online poses are the best poses of the maps,
    each in its own world; its offline poses are those of all maps together, in the world of the first.
    Parts that have no place in common with any other stay components of their own.
    """
    config, paths = config or MergeConfig(), [Path(folder) for folder in folders]
    insist_on_new_folder(Path(out))
    with ExitStack() as stack:
        maps = [stack.enter_context(load_map(path)) for path in paths]
        _insist_on_poses(maps)
        parts = _parts_of(maps)
        _insist_on_different(parts)
        _insist_on_alike(maps)
        unfinished = stack.enter_context(replacing_folder(out))
        _copy(maps, parts, unfinished, progress)
        events = _find_common_places(maps, parts, unfinished, config, progress)
        refined = refine_map(unfinished, RefineSettings(loops=False), progress=lambda *told: progress(*told))
        with load_map(unfinished) as merged:
            summary = _summary(merged, events, refined)
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
                "map images of one camera and size, or place the images of one in the map of the other with "
                "anchor3r localise"
            )


def _predictor_of(scene_map: Map) -> str:
    """What a predictor is loaded by; of one that cannot be, such as imported poses, the kind alone."""
    meta = scene_map.meta
    name = (meta.get("loaded_as") or {}).get("name")
    return str(name or meta.get("identity", {}).get("predictor", "unknown").partition(" ")[0])


def _another_camera(one: Map, other: Map) -> str | None:
    """In what the cameras of two maps differ; None if they may be one."""
    a, b = common_camera(one), common_camera(other)
    if (a.width, a.height) != (b.width, b.height):
        return f"images of {a.width}×{a.height} and {b.width}×{b.height}"
    sigma_sq = 0.0
    for scene_map, camera in ((one, a), (other, b)):
        about = scene_map.meta.get("camera") or {}
        known = about.get("determined") or about.get("stated")
        part = about["focal_sigma_px"] / camera.fx if known and "focal_sigma_px" in about else _SAME_FOCAL
        sigma_sq += part**2
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
    config: MergeConfig,
    progress: Progress,
) -> dict[tuple[int, int], int]:
    """Keeps all loop events of the merged map, and counts those between parts, by parts."""
    with MapWriter.open(folder) as writer, load_map(folder) as merged:
        known = set(merged.place_frames().tolist())
        missing = [frame for frame in place_frames_of(merged).tolist() if frame not in known]
        for k, frame in enumerate(missing):
            progress("describing", k, len(missing))
            writer.write_place(describe_frame(merged, frame))
        search, _ = writer.begin_search({MERGE: asdict(config)})
        own = [
            event
            for scene_map, found in zip(maps, parts, strict=True)
            for event in copied_loops(scene_map, _renumbering(scene_map, found, 0))
        ]
        map_of_part = np.repeat(np.arange(len(parts)), [len(found) for found in parts])
        common = list(_CommonPlaces(merged, map_of_part, config).events(progress))
        writer.write_loops(
            ((replace(loop, event=k), groups) for k, (loop, groups) in enumerate(own + common)), search
        )
        writer.finish_search(search)
        of = part_of(
            np.array([(loop.query, loop.match) for loop, _ in common]).reshape(-1, 2), merged.parts()
        )
    pairs, counts = np.unique(np.sort(of, axis=1), axis=0, return_counts=True)
    return {(int(a), int(b)): int(n) for (a, b), n in zip(pairs, counts, strict=True)}


class _CommonPlaces:
    """Keyframes of each map that were found among those of another one, as loop events."""

    def __init__(self, merged: Map, map_of_part: Int, config: MergeConfig) -> None:
        self._config, self._trajectory = config, merged.trajectory()
        members = merged.graph().edges.frame_i
        self._known = self._trajectory.select(np.isin(self._trajectory.frames, members))
        self._keyframes = map_keyframes(merged)
        self._localiser = Localiser(self._keyframes, load_vocabulary(), config.localiser)
        self._map = map_of_part[merged.part_of(self._keyframes.frames)]
        """(k,) which of the maps a keyframe is of"""

    def events(self, progress: Progress) -> Iterator[tuple[Loop, list[Edges]]]:
        """Events with a group of edges for each direction in which they were measured."""
        found: dict[tuple[int, int], tuple[Loop, list[Edges]]] = {}
        for row in range(len(self._map)):
            progress("comparing", row, len(self._map))
            for answer in self._elsewhere(row):
                frame, match = int(self._keyframes.frames[row]), answer.keyframes[0]
                edges = self._edges(row, answer)
                if edges is None:
                    continue
                ends = max(frame, match), min(frame, match)
                figures = {"inliers": answer.num_inliers, "log10_chance": answer.log10_chance}
                loop = Loop(event=0, query=ends[0], match=ends[1], state=LoopState.PENDING, figures=figures)
                found.setdefault(ends, (loop, []))[1].append(edges)
        yield from found.values()

    def _elsewhere(self, row: int) -> Iterator[Localisation]:
        """Where a keyframe was taken in each component of the other maps."""
        component, other = self._keyframes.component, self._map != self._map[row]
        described = self._localiser.keyframe(row)
        camera = self._keyframes.camera.resized(described.width, described.height)
        for label in np.unique(component[other]):
            allowed = other & (component == label)
            answer = self._localiser.localise(described.features, camera, self._keyframes.lens, allowed)
            if answer.found:
                yield answer

    def _edges(self, row: int, answer: Localisation) -> Edges | None:
        """The keyframe seen from frames around its place, in the scale of its own window."""
        pose, covariance = answer.camera_from_world, answer.covariance
        assert pose is not None
        assert covariance is not None
        ratio = self._scale(row, answer)
        members = neighbourhood(self._known, answer.keyframes[0], self._config.members)
        if len(members) < 3 or not np.isfinite(ratio.sigma):
            return None
        at = np.searchsorted(self._trajectory.frames, members)
        member_from_anchor = self._trajectory.camera_from_world[at] @ pose.inverse()
        shrink = np.exp(-ratio.value)
        # From the camera's own turn and its place in the world to a right perturbation; all edges share it.
        axes = np.zeros((6, 6))
        axes[:3, :3] = -np.eye(3)
        axes[3:, 3:] = shrink * pose.rotation
        information = np.linalg.inv(axes @ covariance @ axes.T) / len(members)
        return Edges.of(
            members,
            int(self._keyframes.frames[row]),
            member_from_anchor.rotation,
            shrink * member_from_anchor.translation,
            kind=EdgeKind.LOOP,
            log_scale_sigma=max(ratio.sigma, _LEAST_SCALE_SIGMA),
            information=information,
        )

    def _scale(self, row: int, answer: Localisation) -> Estimate:
        """Log of the other part's lengths over those of the keyframe's own window, by depths of features."""
        described = self._localiser.keyframe(row)
        largest = self._config.localiser.pose.largest_depth_sigma
        known = described.depth_sigma[answer.fitting] < largest
        own = described.depth[answer.fitting[known]].astype(np.float64)
        return median_log_ratio(answer.depth[known], own, alike=self._config.depths_alike)


def _summary(merged: Map, events: dict[tuple[int, int], int], refined: dict[str, Any]) -> dict[str, Any]:
    """What was merged and what hangs together."""
    parts, trajectory = merged.parts(), merged.trajectory(str(refined["poses"]))
    assert trajectory.component is not None
    of = merged.part_of(trajectory.frames)
    accepted = [loop for loop in merged.loops() if loop.accepted]
    ends = part_of(np.array([(loop.query, loop.match) for loop in accepted]).reshape(-1, 2), parts)
    between = ends[ends[:, 0] != ends[:, 1]]
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
        "common_places": sum(events.values()),
        "accepted": len(between),
        "not_joined": _not_joined(components, len(parts)),
        "poses": refined["poses"],
        "solver": refined["solver"],
    }


def _not_joined(components: Sequence[dict[str, Any]], num_parts: int) -> list[int]:
    """Parts none of whose components any other part shares."""
    shared = {part for component in components if len(component["parts"]) > 1 for part in component["parts"]}
    return [part for part in range(num_parts) if part not in shared]
