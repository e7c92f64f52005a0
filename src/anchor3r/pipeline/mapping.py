"""From a source to a map on disk: what `anchor3r map`, `anchor3r.map_source`, evaluation and the demo call.

A map says by itself what it was made from and how its predictor is loaded again, so that it can be resumed
and refined by anybody who has the folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from dataclasses import asdict
from importlib import metadata
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from anchor3r.errors import Anchor3RError
from anchor3r.pipeline.loop_closing import LoopCloser
from anchor3r.pipeline.loop_jobs import LoopClosingConfig
from anchor3r.pipeline.mapper import Mapper, MapperConfig, Update
from anchor3r.pipeline.placing import OnlinePlacer
from anchor3r.pipeline.settings import MapSettings
from anchor3r.pipeline.shortfall import REMEDIES, Gap, gaps_of
from anchor3r.pose_graph.online import OnlineConfig
from anchor3r.pose_graph.online_placement import OnlinePlacementConfig
from anchor3r.predictors.interface import Predictor
from anchor3r.predictors.loading import load_predictor
from anchor3r.sources import Source, StatedCamera, open_source
from anchor3r.store import Loop, Map, MapWriter, StoreConfig, load_map
from anchor3r.store.database import holds_map
from anchor3r.store.localising import places_identity
from anchor3r.threads import chosen_threads, frequent_switches, limited_threads
from anchor3r.trajectory import bend_by_focal_length

_CAMERA_FRAMES = 300
"""Frames of each of the two passes that find an unknown camera. A handheld video tells it in a hundred, a
drive in its first bends; features take 4 s for so many."""
_USABLE_SPREAD = 0.1
"""Relative spread of a focal length up to which it is better to begin with it than to look for one on the
way: the spread that a stated one is taken with."""


def map_source(
    source: Source | str | os.PathLike[str] | Iterable[Any],
    out: Path | str,
    settings: MapSettings | None = None,
    *,
    predictor: Predictor | None = None,
    start: int = 0,
    stop: int | None = None,
    stride: int = 1,
    camera: StatedCamera | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_update: Callable[[Update], None] = lambda update: None,
) -> dict[str, Any]:
    """Maps a source into the folder `out` and returns a summary (JSON); an error if no frame got a pose.

    source: an opened source, or what `open_source` takes; of a name, start, stop, stride and camera say which
    of its frames, and what is known of the camera.
    predictor: one that is loaded already, in place of the one that the settings name.
    resume: go on with the map in that folder, if there is one; overwrite: replace it.
    on_update: told of every frame as it is mapped, also of those that a resumed run replays.
    """
    settings = settings or MapSettings()
    if predictor is None:
        predictor = predictor_of(settings)
    opened: AbstractContextManager[Source] = (
        nullcontext(source)
        if isinstance(source, Source)
        else open_source(source, start=start, stop=stop, stride=stride, camera=camera)
    )
    with (
        opened as frames,
        MappingRun(frames, predictor, out, settings, resume=resume, overwrite=overwrite) as run,
    ):
        for update in run:
            on_update(update)
    summary = run.summary()
    if summary["failure"] is not None:
        raise Anchor3RError(summary["failure"])
    return summary


def predictor_of(settings: MapSettings) -> Predictor:
    """The predictor that settings name, as they say it is run."""
    predictor = load_predictor(
        settings.predictor,
        window=settings.window,
        seed=settings.seed,
        every=settings.every,
        device=settings.device,
        dtype=settings.dtype,
        compile=settings.compile,
    )
    if settings.camera is not None:
        _hold_camera_of(Path(settings.camera), predictor)
    return predictor


def stated_for(folder: Path) -> StatedCamera | None:
    """What was stated of the camera to make a map: the camera that was found is of images straightened so."""
    with load_map(folder) as scene_map:
        stated = scene_map.meta.get("identity", {}).get("camera")
    return None if stated is None else StatedCamera.from_json(stated)


def _hold_camera_of(folder: Path, predictor: Predictor) -> None:
    """Has the predictor take the camera that was found as a map was made."""
    with load_map(folder) as scene_map:
        camera = scene_map.meta.get("camera")
    if camera is None:
        raise Anchor3RError(
            f"{folder} does not say what its camera was found to be; name a map that features made"
        )
    if not predictor.hold_camera(camera):
        raise Anchor3RError(
            f"the predictor {predictor.name} takes no camera of {folder}: features does, from a map that "
            "this version has made"
        )


def find_camera(
    source: Source, predictor: Predictor, on_frame: Callable[[int], None] = lambda done: None
) -> dict[str, float | bool] | None:
    """What passes over the beginning of a source tell of its camera; the predictor is reset after them.

    None if the source states its camera, cannot be gone through twice, or does not tell it well enough. A map
    that begins with the camera it will end with is as good as with a stated one: while the camera is being
    found out, frames are mapped with wrong ones. So a second pass begins with what the first one has found,
    and where it agrees the camera is `checked`: `Predictor.assume_camera` stays with it.
    on_frame: told how many frames are done, those of the second pass after those of the first.
    """
    if not (predictor.calibrates and source.seekable) or source.live:
        return None
    first, done = _camera_by_pass(source, predictor, on_frame)
    if first is None:
        return None
    predictor.assume_camera(first)
    second, _ = _camera_by_pass(source, predictor, lambda more: on_frame(done + more))
    return first if second is None else {**second, "checked": True}


def _camera_by_pass(
    source: Source, predictor: Predictor, on_frame: Callable[[int], None]
) -> tuple[dict[str, float | bool] | None, int]:
    """The camera that one pass finds, None if none is found or needed; and how many frames it has seen."""
    done = 0
    with closing(source.frames()) as frames, suppress(Anchor3RError):  # a broken frame is told when mapped
        for done, frame in enumerate(islice(frames, _CAMERA_FRAMES), 1):
            if frame.intrinsics is not None:
                return None, done
            predictor.step(frame)
            on_frame(done)
    camera = predictor.estimated_camera()
    predictor.reset()
    is_usable = camera is not None and camera["focal_sigma_px"] <= _USABLE_SPREAD * camera["focal_px"]
    return (camera if is_usable else None), done


class MappingRun:
    """One stream on its way into a map: iterate over it and get an update a frame. A context manager.

    Whatever ends it early, the frames so far are in the map, and `resume` goes on with them.
    """

    def __init__(
        self,
        source: Source,
        predictor: Predictor,
        out: Path | str,
        settings: MapSettings | None = None,
        *,
        resume: bool = False,
        overwrite: bool = False,
        identity: Mapping[str, Any] | None = None,
        placing: OnlinePlacementConfig | None = None,
    ) -> None:
        """`identity` is what the map depends on beside its source, predictor and settings. placing: how
        measured positions place the map, if the settings name any."""
        if resume and overwrite:
            raise Anchor3RError("to resume keeps a map and to overwrite replaces it; choose one of them")
        settings = settings or MapSettings()
        self.source, self._predictor, self._resumes = source, predictor, resume
        self._threads, self._limits = settings.threads, ExitStack()
        if predictor.is_ground_truth:
            _insist_on_ground_truth(source)
        config = MapperConfig(online=OnlineConfig(seed=settings.seed))
        closing = self._loop_closing(settings, out)
        made_from = identity_of(source, predictor, config) | dict(identity or {})
        made_from["loops"] = None if closing is None else asdict(closing)
        self._placer = None
        if settings.positions.gnss is not None:
            self._placer = OnlinePlacer(settings.positions, placing)
            made_from["positions"] = asdict(settings.positions)
        store_config = StoreConfig(keep_images=settings.keep_images)
        self.store = (
            MapWriter.resume(out, made_from, config=store_config)
            if resume
            else MapWriter.create(out, made_from, config=store_config, overwrite=overwrite)
        )
        """Where the map is written."""
        self.last_stored = self.store.last_frame
        """The last frame that was in the map before this run; -1 if there was none."""
        self.on_first_pass: Callable[[int, int | None], None] = lambda done, total: None
        """Told how many frames of the passes that find the camera are done, of how many."""
        self.on_end: Callable[[], None] = lambda: None
        """Told when all frames are mapped and loops are closed once more, which takes some time."""
        self.num_updates = 0
        """Frames mapped in this run, replayed ones included."""
        self.store.write_meta(
            ground_truth_predictor=predictor.is_ground_truth,
            num_frames=source.num_frames,
            versions={name: metadata.version(name) for name in ("anchor3r", "numpy", "torch")},
            loaded_as=predictor.loaded_as,
        )
        self._closer = None if closing is None else self._make_closer(closing, settings)
        self.mapper = Mapper(predictor, self.store, config, closer=self._closer, placer=self._placer)
        """Takes the frames, one by one."""
        self._started = self._ended = time.monotonic()

    def _loop_closing(self, settings: MapSettings, out: Path | str) -> LoopClosingConfig | None:
        """How loops are closed on the way; None if they are not."""
        is_loadable = self._predictor.loaded_as is not None
        if settings.loops == "online" and not is_loadable:
            raise Anchor3RError(
                f"loops cannot be closed online with {self._predictor.name}, which was built by hand"
            )
        is_on = settings.loops == "online"
        if settings.loops == "auto" and self._resumes and holds_map(Path(out)):
            with load_map(out) as begun:
                is_on = begun.meta.get("identity", {}).get("loops") is not None
        elif settings.loops == "auto":
            is_on = is_loadable and settings.keep_images and not self.source.live
        return LoopClosingConfig() if is_on else None

    def _make_closer(self, config: LoopClosingConfig, settings: MapSettings) -> LoopCloser:
        loaded_as = self._predictor.loaded_as
        assert loaded_as is not None
        search, _ = self.store.begin_search({"online": asdict(config)})
        self.store.begin_places(places_identity())
        return LoopCloser(
            self.store.folder,
            lambda: load_predictor(**loaded_as, device=settings.device),
            search,
            config,
            self._predictor.estimated_camera,
        )

    def __enter__(self) -> Self:
        threads = chosen_threads(self._threads, gains=self._predictor.gains_from_threads)
        self._limits.enter_context(limited_threads(threads))
        if self._closer is not None:
            self._limits.enter_context(frequent_switches())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._limits:
            if self._closer is not None:
                self._closer.close()
            if error is not None and self.store.last_frame < 0:
                self.store.discard()  # an empty map would only be in the way of the next attempt
            else:
                with nullcontext() if error is None else suppress(Anchor3RError):  # the first error is told
                    self._keep_camera()
                self.store.__exit__(kind, error, trace)

    def _keep_camera(self) -> None:
        """What the predictor believes of the camera: summary, reports and exports take it from the map."""
        camera = self._predictor.estimated_camera()
        if camera is None or self.store.last_pose() is None:
            return
        told: dict[str, float | None] = dict(camera)
        if not camera["stated"]:
            self.store.commit()  # so that the path is whole
            with load_map(self.store.folder) as scene_map:
                path = scene_map.trajectory()
            relative = 2 * camera["focal_sigma_px"] / camera["focal_px"]
            told["path_bend"] = bend_by_focal_length(path, relative) if path.is_in_order() else None
        self.store.write_meta(camera=told)

    def __iter__(self) -> Iterator[Update]:
        self._started = time.monotonic()
        self._begin_with_camera()
        told = -1
        for update in self.mapper.run(self.source, lambda: self.on_end()):
            self.num_updates += update.frame != told  # the last one may be told twice
            told = update.frame
            self._ended = time.monotonic()
            yield update
        self._ended = time.monotonic()

    def _begin_with_camera(self) -> None:
        """Finds an unknown camera before the first frame is mapped; a resumed run takes what that found."""
        if self.last_stored < 0:
            num_frames = self.source.num_frames
            total = None if num_frames is None else 2 * min(num_frames, _CAMERA_FRAMES)
            camera = find_camera(self.source, self._predictor, lambda done: self.on_first_pass(done, total))
            self.store.write_meta(first_pass_camera=camera)
        else:
            with load_map(self.store.folder) as scene_map:
                camera = scene_map.meta.get("first_pass_camera")
        if camera is not None:
            self._predictor.assume_camera(camera)

    def summary(self) -> dict[str, Any]:
        """What is in the map now, and how this run went (JSON)."""
        seconds = self._ended - self._started
        with load_map(self.store.folder) as scene_map:
            counts, meta, gaps = scene_map.counts(), scene_map.meta, gaps_of(scene_map)
            trajectory = scene_map.trajectory()
            answers = scene_map.answers()
            placements, placed_since = scene_map.placements(), scene_map.placed_since()
            loops = None if self._closer is None else _loops_closed(scene_map)
        return {
            "map": str(self.store.folder),
            "source": meta["identity"]["source"],
            "predictor": meta["identity"]["predictor"],
            "ground_truth_predictor": meta["ground_truth_predictor"],
            **asdict(counts),
            "answers": answers,
            "without_pose": [asdict(gap) for gap in gaps],
            "failure": None if counts.with_pose else _failure(self.source.uri, gaps),
            "only_turns": trajectory.only_turns(),
            "stands_still": trajectory.stands_still(),
            "camera": meta.get("camera"),
            "loop_events": None if loops is None else len(loops),
            "accepted": None if loops is None else sum(loop.accepted for loop in loops),
            "placements": [placement.as_dict() for placement in placements.values()],
            "placed_since": placed_since,
            "not_placed": None if self._placer is None else self._placer.lack(),
            "skipped": self.source.skipped,
            "seconds": round(seconds, 3),
            "frames_per_second": round(self.num_updates / seconds, 2) if seconds else 0.0,
            "resumed_after": self.last_stored if self._resumes and self.last_stored >= 0 else None,
            "replay_is_exact": self.store.replay_is_exact,
        }


def _loops_closed(scene_map: Map) -> list[Loop]:
    """Those of the whole stream, if it has ended, else those that were found so far."""
    online = [n for n in scene_map.searches() if "online" in scene_map.search_identity(n)]
    return next((found for n in reversed(online) if (found := scene_map.search_loops(n))), [])


def _failure(uri: str, gaps: Sequence[Gap]) -> str:
    """Why there is no map, and what to do."""
    if not gaps:
        return f"{uri} gave no frame; nothing was mapped"
    gap = gaps[0]
    counted = "the one frame" if gap.num_frames == 1 else f"any of the {gap.num_frames} frames"
    return f"no pose was found for {counted} of {uri} ({gap.cause}): {REMEDIES[gap.cause]}"


def identity_of(source: Source, predictor: Predictor, config: MapperConfig) -> dict[str, Any]:
    """What a map is made from, as JSON: it is gone on with only if all of this is the same.

    Where the source is cut off does not belong to it: more frames may come.
    """
    identity = {
        "source": source.uri, "start": source.wanted.start, "stride": source.wanted.step,
        "predictor": predictor.name, "window": predictor.window, "settings": predictor.settings,
        "mapper": asdict(config),
    }  # fmt: skip
    return identity if source.camera is None else identity | {"camera": asdict(source.camera)}


def _insist_on_ground_truth(source: Source) -> None:
    """What comes out of the ground truth must not pass for a reconstruction of anything else."""
    if not source.seekable or source.read(source.wanted.start).camera_from_world is None:
        raise Anchor3RError(
            f"{source.uri} has no ground truth, which the ground-truth predictor would take its poses from; "
            "choose another predictor, or a source such as world:7"
        )
