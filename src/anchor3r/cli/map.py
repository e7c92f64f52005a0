"""`anchor3r map`: a source streamed into a map."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from anchor3r.cli.camera import NOTHING_STATED, CameraOptions
from anchor3r.cli.progress import progress
from anchor3r.cli.view import beside
from anchor3r.errors import Anchor3RError
from anchor3r.pipeline.settings import MapSettings

if TYPE_CHECKING:
    from anchor3r.pipeline.mapper import Update
    from anchor3r.pipeline.mapping import MappingRun

Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff]
NOT_A_RECONSTRUCTION = "NOT A RECONSTRUCTION: the poses are the source's own ground truth with noise added"
_DEFAULTS = MapSettings()


def map_source(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")],
    out: Path,
    settings: tyro.conf.OmitArgPrefixes[MapSettings] = _DEFAULTS,
    start: int = 0,
    stop: int | None = None,
    stride: int = 1,
    camera: tyro.conf.OmitArgPrefixes[CameraOptions] = NOTHING_STATED,
    resume: Switch = False,
    overwrite: Switch = False,
    view: Switch = False,
    as_json: Annotated[Switch, tyro.conf.arg(name="json")] = False,
) -> None:
    """Stream a source into a map.

    Killed at any moment it goes on with --resume to the same result; it can be looked at while it grows.

    Args:
        source: A folder or pattern of images, a video, camera:0, an rtsp or http address, kitti:ROOT/00,
            tum:DIR, 7scenes:DIR or world:SEED.
        out: Folder of the map.
        settings: How the source becomes a map.
        start: First frame.
        stop: Frame to stop before; a resumed map may go on beyond its first one.
        stride: Take one frame out of so many.
        camera: What is known beyond what the source says.
        resume: Go on with the map in that folder, if there is one.
        overwrite: Replace the map in that folder, if there is one.
        view: Show the map in the browser as it grows, and on until Ctrl-C, as `anchor3r view` does.
        as_json: Print the summary as JSON, and nothing else, to the standard output.
    """
    from anchor3r.predictors.loading import AUTO, AUTO_REASON
    from anchor3r.sources import open_source

    if resume and overwrite:
        raise Anchor3RError("--resume keeps the map and --overwrite replaces it; choose one of them")
    if settings.predictor == "auto":
        print(f"predictor {AUTO}: {AUTO_REASON}", file=sys.stderr)
    with (
        beside(out) if view else nullcontext(),
        open_source(source, start=start, stop=stop, stride=stride, camera=camera.stated()) as frames,
    ):
        from anchor3r.pipeline.mapping import MappingRun, predictor_of

        predictor = predictor_of(settings)
        with MappingRun(frames, predictor, out, settings, resume=resume, overwrite=overwrite) as run:
            stream(run)
        summary = run.summary()
        print(json.dumps(summary) if as_json else _in_words(summary), flush=True)


def stream(run: MappingRun) -> None:
    """Maps every frame with a progress bar; whatever ends it early, says how to go on."""
    with _told_how_to_go_on(run), mapping_progress(run) as advance:
        for update in run:
            advance(update)


@contextmanager
def mapping_progress(run: MappingRun) -> Iterator[Callable[[Update], None]]:
    """Shows how far a run has come, and whether it replays, maps, or waits for the compiler."""
    wanted = run.source.wanted
    with progress("mapping", run.source.num_frames, "frames") as advance:

        def show(update: Update) -> None:
            done = (update.frame - wanted.start) // wanted.step + 1
            advance(done, "replaying" if update.frame <= run.last_stored else "mapping")

        yield show


@contextmanager
def _told_how_to_go_on(run: MappingRun) -> Iterator[None]:
    try:
        yield
    except (Anchor3RError, KeyboardInterrupt) as error:
        if run.store.last_frame < 0:
            raise
        hint = f"the map so far is in {run.store.folder}; the same command with --resume goes on with it"
        if isinstance(error, KeyboardInterrupt):
            print(f"anchor3r: {hint}", file=sys.stderr)
            raise
        raise Anchor3RError(f"{error}\n{hint}") from error


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
