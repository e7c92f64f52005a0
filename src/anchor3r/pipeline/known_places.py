"""The places of a finished map that were seen before, by the features of its keyframes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from anchor3r.loops.descriptors import GRADIENTS, PLACES, TOKENS
from anchor3r.loops.places import PlaceConfig, PlaceSearch, place_event
from anchor3r.loops.reinsertion import FrameReader
from anchor3r.loops.retrieval import Keyframes, RetrievalConfig, other_visits
from anchor3r.pipeline.settings import Progress
from anchor3r.pose_graph.edges import Edges
from anchor3r.store import ONLINE, Loop, Map, MapWriter
from anchor3r.store.localising import (
    KEYFRAME_INTERVAL,
    describe_frame,
    map_keyframes,
    place_frames_of,
    places_identity,
)

_REMEMBERED = 256
"""Keyframes whose features are kept in memory."""


def best_descriptor(scene_map: Map) -> str:
    """How places of a map are recognised where the user does not say: by tokens if its predictor made some,
    else by features, which need depths."""
    if len(scene_map.descriptors()[0]):
        return TOKENS
    return PLACES if len(scene_map.frames_with_points()) else GRADIENTS


def keep_features(scene_map: Map, writer: MapWriter, read_frame: FrameReader, progress: Progress) -> None:
    """Describes the keyframes that have no features yet, and has the map keep them."""
    known = writer.begin_places(places_identity())
    missing = [frame for frame in place_frames_of(scene_map).tolist() if frame not in known]
    for k, frame in enumerate(missing):
        progress("describing", k, len(missing))
        writer.write_place(describe_frame(scene_map, frame, lambda index: read_frame(index).image))


def known_places(
    scene_map: Map,
    retrieval: RetrievalConfig,
    config: PlaceConfig,
    interval: int,
    progress: Progress,
) -> Iterator[tuple[Loop, list[Edges]]]:
    """For every keyframe the events with up to `top_k` places that it recognises; features must be kept.

    interval: frames between keyframes that are looked for; they are looked for among all.
    """
    every = max(1, interval // KEYFRAME_INTERVAL)
    is_free = bool(scene_map.parts() or np.isfinite(scene_map.graph().edges.log_scale_ratio).any())
    posed = map_keyframes(scene_map, ONLINE)
    online = scene_map.odometry()
    keyframes = Keyframes(
        frames=np.searchsorted(online.frames, posed.frames),
        descriptor=np.empty((len(posed.frames), 0), np.float32),
        camera_from_world=posed.camera_from_world,
        component=posed.component,
    )
    search = PlaceSearch(scene_map.place, config, remembered=_REMEMBERED)
    for rows, blocks in other_visits(keyframes, retrieval):
        for row, allowed in zip(rows.tolist(), blocks, strict=True):
            progress("loops", row, len(posed.frames))
            place = scene_map.place(int(posed.frames[row]))
            search.add(place)
            if row % every:
                continue
            matches = search.candidates(place, allowed).tolist()
            events = (place_event(search, posed, row, match, is_free=is_free) for match in matches)
            yield from islice((event for event in events if event is not None), retrieval.top_k)
    progress("loops", len(posed.frames), len(posed.frames))
