"""`anchor3r map`: a source streamed into a map."""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from anchor3r.cli.camera import NOTHING_STATED, CameraOptions
from anchor3r.cli.progress import progress
from anchor3r.cli.view import beside
from anchor3r.errors import Anchor3RError

if TYPE_CHECKING:
    from anchor3r.pipeline.mapper import Mapper
    from anchor3r.predictors import Predictor
    from anchor3r.sources import Source
    from anchor3r.store import MapWriter

Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff]
NOT_A_RECONSTRUCTION = "NOT A RECONSTRUCTION: the poses are the source's own ground truth with noise added"


def map_source(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")],
    out: Path,
    predictor: str = "auto",
    window: int | None = None,
    every: int = 1,
    start: int = 0,
    stop: int | None = None,
    stride: int = 1,
    camera: tyro.conf.OmitArgPrefixes[CameraOptions] = NOTHING_STATED,
    resume: Switch = False,
    overwrite: Switch = False,
    keep_images: bool = True,
    seed: int = 0,
    view: Switch = False,
    as_json: Annotated[Switch, tyro.conf.arg(name="json")] = False,
) -> None:
    """Stream a source into a map.

    Killed at any moment it goes on with --resume to the same result; it can be looked at while it grows.

    Args:
        source: A folder or pattern of images, a video, camera:0, an rtsp or http address, kitti:ROOT/00,
            tum:DIR, 7scenes:DIR or world:SEED.
        out: Folder of the map.
        predictor: auto, tiny, features, a checkpoint, vggt:PATH or ground-truth[:DEGREES,FRACTION].
        window: Frames in a window; the predictor's own if not given.
        every: With vggt:PATH, one frame out of so many is an anchor; its window places those before it.
        start: First frame.
        stop: Frame to stop before; a resumed map may go on beyond its first one.
        stride: Take one frame out of so many.
        camera: What is known beyond what the source says.
        resume: Go on with the map in that folder, if there is one.
        overwrite: Replace the map in that folder, if there is one.
        keep_images: Keep a small JPEG of every frame, for loop closure and viewing.
        seed: Of every random choice.
        view: Show the map in the browser as it grows, and on until Ctrl-C, as `anchor3r view` does.
        as_json: Print the summary as JSON, and nothing else, to the standard output.
    """
    from anchor3r.predictors.loading import AUTO, AUTO_REASON, load_predictor
    from anchor3r.sources import open_source

    if resume and overwrite:
        raise Anchor3RError("--resume keeps the map and --overwrite replaces it; choose one of them")
    if predictor == "auto":
        print(f"predictor {AUTO}: {AUTO_REASON}", file=sys.stderr)
    how: dict[str, Any] = {"window": window, "seed": seed, "every": every}
    viewer = beside(out) if view else nullcontext()
    with viewer, open_source(source, start=start, stop=stop, stride=stride, camera=camera.stated()) as frames:
        summary = make_map(
            frames, load_predictor(predictor, **how), out, loaded_as={"name": _absolute(predictor), **how},
            seed=seed, keep_images=keep_images, resume=resume, overwrite=overwrite,
        )  # fmt: skip
        print(json.dumps(summary) if as_json else _in_words(summary), flush=True)


def make_map(
    source: Source,
    predictor: Predictor,
    out: Path,
    *,
    loaded_as: dict[str, Any] | None = None,
    seed: int = 0,
    keep_images: bool = True,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Maps a source into a folder, with a progress bar, and returns a summary (JSON).

    loaded_as: arguments of `load_predictor`, by which a refinement finds the same predictor again.
    """
    from anchor3r.pipeline.mapper import Mapper, MapperConfig, identity_of
    from anchor3r.pose_graph.online import OnlineConfig
    from anchor3r.predictors.ground_truth import GroundTruthPredictor
    from anchor3r.store import MapWriter, StoreConfig

    invented = isinstance(predictor, GroundTruthPredictor)
    if invented:
        _insist_on_ground_truth(source)
    config = MapperConfig(online=OnlineConfig(seed=seed))
    identity = identity_of(source, predictor, config)
    begin = MapWriter.resume if resume else partial(MapWriter.create, overwrite=overwrite)
    with begin(out, identity, config=StoreConfig(keep_images=keep_images)) as store:
        store.write_meta(ground_truth_predictor=invented, num_frames=source.num_frames, versions=_versions())
        if loaded_as is not None:
            store.write_meta(loaded_as=loaded_as)
        started, last_stored = time.monotonic(), store.last_frame
        num_steps = _stream(Mapper(predictor, store, config), store, source)
        seconds = time.monotonic() - started
    return {
        **_summary(out),
        "camera": _estimated_camera(predictor),
        "skipped": source.skipped,
        "seconds": round(seconds, 3),
        "frames_per_second": round(num_steps / seconds, 2),
        "resumed_after": last_stored if resume and last_stored >= 0 else None,
        "replay_is_exact": store.replay_is_exact,
    }


def _estimated_camera(predictor: Predictor) -> dict[str, Any] | None:
    """What a predictor that calibrates has found out about the camera."""
    from anchor3r.predictors.features.predictor import FeaturesPredictor

    return predictor.estimated_camera() if isinstance(predictor, FeaturesPredictor) else None


def _absolute(predictor: str) -> str:
    """The name of a predictor, valid in any folder."""
    kind, colon, path = predictor.rpartition(":")
    return f"{kind}{colon}{Path(path).resolve()}" if Path(path).is_file() else predictor


def _stream(mapper: Mapper, store: MapWriter, source: Source) -> int:
    """Maps every frame and returns how many; whatever ends it early, says how to go on."""
    last_stored, wanted, count = store.last_frame, source.wanted, 0
    try:
        with progress("mapping", source.num_frames, "frames") as advance:
            for update in mapper.run(source):
                count += 1
                done = (update.frame - wanted.start) // wanted.step + 1
                advance(done, "replaying" if update.frame <= last_stored else "mapping")
    except (Anchor3RError, KeyboardInterrupt) as error:
        if store.last_frame < 0:
            raise
        hint = f"the map so far is in {store.folder}; the same command with --resume goes on with it"
        if isinstance(error, KeyboardInterrupt):
            print(f"anchor3r: {hint}", file=sys.stderr)
            raise
        raise Anchor3RError(f"{error}\n{hint}") from error
    return count


def _insist_on_ground_truth(source: Source) -> None:
    """What comes out of the ground truth must not pass for a reconstruction of anything else."""
    if not source.seekable or source.read(source.wanted.start).camera_from_world is None:
        raise Anchor3RError(
            f"{source.uri} has no ground truth, which the ground-truth predictor would take its poses from; "
            "choose another --predictor, or a source such as world:7"
        )


def _summary(out: Path) -> dict[str, Any]:
    """What is in the map now."""
    from anchor3r.store import load_map

    with load_map(out) as made:
        counts, meta = made.counts(), made.meta
    return {
        "map": str(out),
        "source": meta["identity"]["source"],
        "predictor": meta["identity"]["predictor"],
        "ground_truth_predictor": meta["ground_truth_predictor"],
        **asdict(counts),
    }


def _in_words(summary: dict[str, Any]) -> str:
    lines = [
        f"{summary['map']}: {summary['with_pose']} of {summary['frames']} frames of {summary['source']} "
        f"have a pose ({summary['frames_per_second']} frames/s, predictor {summary['predictor']})"
    ]
    if summary["camera"] is not None and not summary["camera"]["stated"]:
        focal, sigma = summary["camera"]["focal_px"], summary["camera"]["focal_sigma_px"]
        lines.append(f"the camera was not known; estimated focal length: {focal:.0f} ± {sigma:.0f} pixels")
    if summary["ground_truth_predictor"]:
        lines.append(NOT_A_RECONSTRUCTION)
    if summary["resumed_after"] is not None:
        lines.append(f"went on after frame {summary['resumed_after']}")
    if summary["skipped"]:
        lines.append(f"{summary['skipped']} frames could not be decoded and were skipped")
    if summary["components"] > 1:
        lines.append(
            f"tracking broke: {summary['components']} components, which no measurement relates; "
            f"{summary['lost']} frames are lost"
        )
    return "\n".join(lines)


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("anchor3r", "numpy", "torch")}
