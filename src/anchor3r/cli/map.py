"""`anchor3r map`: a source streamed into a map."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from anchor3r.cli.camera import NOTHING_STATED, CameraOptions
from anchor3r.cli.output import Json, print_json
from anchor3r.cli.progress import progress, stages
from anchor3r.cli.view import beside
from anchor3r.errors import Anchor3RError, is_interrupt
from anchor3r.pipeline.settings import NOT_A_RECONSTRUCTION, MapSettings

if TYPE_CHECKING:
    from anchor3r.pipeline.mapper import Update
    from anchor3r.pipeline.mapping import MappingRun
    from anchor3r.sources import Source

Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff]
_DEFAULTS = MapSettings()
_TOLD_GAPS = 5
"""Parts without a pose that the summary names."""


def map_source(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")],
    out: Path,
    settings: tyro.conf.OmitArgPrefixes[MapSettings] = _DEFAULTS,
    start: int = 0,
    stop: int | None = None,
    stride: int = 1,
    camera: tyro.conf.OmitArgPrefixes[CameraOptions] = NOTHING_STATED,
    order: Literal["auto", "stream", "none"] = "auto",
    resume: Switch = False,
    overwrite: Switch = False,
    dense: Switch = False,
    view: Switch = False,
    rerun: str | None = None,
    verbose: Switch = False,
    as_json: Json = False,
) -> dict[str, Any]:
    """Stream a source into a map.

    Killed at any moment it goes on with --resume to the same result; it can be looked at while it grows.

    Args:
        source: A folder or pattern of images, a video, camera:0, an rtsp or http address, a recording as
            bag:FILE[?topic=/camera/image_raw], a sequence as kitti:ROOT/00, tum:DIR, 7scenes:DIR, euroc:DIR,
            icl-nuim:DIR, replica:DIR or eth3d:DIR, or world:SEED. docs/sources.md tells what is read of each.
        out: Folder of the map.
        settings: How the source becomes a map.
        start: First frame.
        stop: Frame to stop before; a resumed map may go on beyond its first one.
        stride: Take one frame out of so many.
        camera: What is known beyond what the source says.
        order: stream takes images one after the other, as a video; none matches all with all, as photographs
            need it (up to some hundreds; with COLMAP); auto looks which of both they are.
        resume: Go on with the map in that folder, if there is one.
        overwrite: Replace the map in that folder, if there is one.
        dense: Then measure the depth of keyframes, as `anchor3r densify` does; again after `anchor3r refine`.
        verbose: Say more on the standard error, such as what auto stands for and why.
        view: Show the map in the browser as it grows, and on until Ctrl-C, as `anchor3r view` does.
        rerun: Show the map as it grows in Rerun's viewer: spawn starts one, rerun+http://HOST:PORT/proxy is
            the address of one, NAME.rrd records into a file.
    """
    from anchor3r.pipeline.mapping import stated_for
    from anchor3r.predictors.loading import AUTO_REASON
    from anchor3r.sources import open_source

    if resume and overwrite:
        raise Anchor3RError("--resume keeps the map and --overwrite replaces it; choose one of them")
    if settings.camera is not None and camera != NOTHING_STATED:
        raise Anchor3RError("--camera takes all of the camera from a map; state nothing else of it")
    stated = camera.stated() if settings.camera is None else stated_for(Path(settings.camera))
    if verbose and settings.predictor == "auto":
        print(f"predictor auto: {AUTO_REASON}", file=sys.stderr)
    with beside(out) if view else nullcontext():  # which shows the map on when this has told how it went
        with open_source(source, start=start, stop=stop, stride=stride, camera=stated) as frames:
            summary = _mapped(frames, out, settings, order, rerun, resume=resume, overwrite=overwrite)
        return _finished(summary, out, settings.threads, dense=dense)


def _mapped(
    frames: Source,
    out: Path,
    settings: MapSettings,
    order: str,
    rerun: str | None,
    *,
    resume: bool,
    overwrite: bool,
) -> dict[str, Any]:
    """Maps the frames as a stream or as photographs, whichever they are; the summary."""
    if _are_unordered(frames, order, resume=resume):
        return _map_photos(frames, out, settings, overwrite=overwrite)
    summary = _streamed(frames, out, settings, rerun, resume=resume, overwrite=overwrite)
    if order == "auto" and _are_too_far_apart(frames, summary):
        return _map_photos(frames, out, settings, overwrite=True)
    return summary


def _streamed(
    frames: Source, out: Path, settings: MapSettings, rerun: str | None, *, resume: bool, overwrite: bool
) -> dict[str, Any]:
    """Maps the frames one by one; the summary."""
    from anchor3r.pipeline.mapping import MappingRun, predictor_of

    with (
        _live(rerun) as show,
        MappingRun(frames, predictor_of(settings), out, settings, resume=resume, overwrite=overwrite) as run,
    ):
        stream(run, show)
    return run.summary()


def _finished(summary: dict[str, Any], out: Path, threads: int | None, *, dense: bool) -> dict[str, Any]:
    """Tells how mapping went and, if that is wanted and there is a pose, measures depth and tells of that."""
    if not dense or summary["failure"] is not None:
        _tell(summary)
        return summary
    from anchor3r.cli import densify
    from anchor3r.pipeline.densify import densify_map
    from anchor3r.pipeline.settings import DensifySettings

    _tell(summary)
    with densify.told_how_to_go_on(out), stages("densifying", unit="keyframes") as show:
        depths = densify_map(out, DensifySettings(threads=threads), progress=show)
    print(densify.in_words(depths), flush=True)
    return summary | {"dense": depths}


def _tell(summary: dict[str, Any]) -> None:
    """Prints the summary; of a map without a pose only as JSON, and ends with an error."""
    if summary["failure"] is not None:
        print_json("map", summary)
        raise Anchor3RError(summary["failure"])
    print(_in_words(summary), flush=True)


def _are_unordered(source: Source, order: str, *, resume: bool) -> bool:
    """Whether images are photographs in no order, which are not to be mapped as if they were a video."""
    from anchor3r.pipeline.shortfall import separate_photographs
    from anchor3r.sources.images import PhotoSequence

    if order == "none":
        if not source.seekable:
            raise Anchor3RError(f"{source.uri} passes by; only images that stay can be matched all with all")
        if resume:
            raise Anchor3RError("--order none places all images at once: --overwrite instead of --resume")
        return True
    if order == "stream" or resume or not isinstance(source, PhotoSequence):
        return False
    told = source.out_of_order() or separate_photographs(source)
    if told:
        print(
            f"anchor3r: {source.uri} looks like separate photographs, not like a video: {told}. They are "
            "matched all with all; if they are a video, say --order stream",
            file=sys.stderr,
        )
    return told is not None


def _are_too_far_apart(source: Source, summary: dict[str, Any]) -> bool:
    """Whether no pose was found because images that are in order are photographs all the same."""
    from anchor3r.pipeline.photos import MAX_PHOTOS
    from anchor3r.pipeline.shortfall import Cause
    from anchor3r.sources.images import PhotoSequence

    causes = {gap["cause"] for gap in summary["without_pose"]}
    if summary["failure"] is None or Cause.NO_OVERLAP not in causes:
        return False
    if not isinstance(source, PhotoSequence) or len(source.wanted) > MAX_PHOTOS:
        return False
    print(
        f"anchor3r: from one image of {source.uri} to the next too much changes to follow it as in a video: "
        "they are matched all with all as photographs; if they are a video, say --order stream",
        file=sys.stderr,
    )
    return True


def _map_photos(source: Source, out: Path, settings: MapSettings, *, overwrite: bool) -> dict[str, Any]:
    from anchor3r.pipeline.photos import map_photos

    with stages("reading", len(source.wanted), "photographs") as show:
        return map_photos(source, out, settings, overwrite=overwrite, progress=show)


Show = Callable[["MappingRun", "Update"], None]


def stream(run: MappingRun, show: Show | None = None) -> None:
    """Maps every frame with a progress bar; whatever ends it early, says how to go on."""
    with _told_how_to_go_on(run), mapping_progress(run) as advance:
        for update in run:
            advance(update)
            if show is not None:
                show(run, update)


@contextmanager
def _live(target: str | None) -> Iterator[Show | None]:
    """Hands every frame that gets a pose to Rerun, if that is wanted."""
    if target is None:
        yield None
        return
    from anchor3r.export.rerun_log import LiveRerun

    with LiveRerun(target) as live:

        def show(run: MappingRun, update: Update) -> None:
            own = () if update.pose is None else (update.pose,)
            live.add(run.store.folder, update.frame, (*update.late_poses, *own))

        yield show


@contextmanager
def mapping_progress(run: MappingRun) -> Iterator[Callable[[Update], None]]:
    """Shows how far a run has come, and whether it replays, maps, or waits for the compiler."""
    wanted, total = run.source.wanted, run.source.num_frames
    with progress("mapping", total, "frames") as advance:

        def show(update: Update) -> None:
            done = (update.frame - wanted.start) // wanted.step + 1
            advance(done, "replaying" if update.frame <= run.last_stored else "mapping", total)

        run.on_first_pass = lambda done, of: advance(done, "finding the camera", of)
        run.on_end = lambda: advance(total or run.num_updates, "closing loops", total)
        yield show


@contextmanager
def _told_how_to_go_on(run: MappingRun) -> Iterator[None]:
    from anchor3r.sources.source import ImageSizeError

    try:
        yield
    except (Anchor3RError, KeyboardInterrupt, SystemError) as error:
        if run.store.last_frame < 0 or isinstance(error, ImageSizeError):
            raise
        hint = f"the map so far is in {run.store.folder}; the same command with --resume goes on with it"
        if isinstance(error, Anchor3RError):
            raise Anchor3RError(f"{error.for_command_line()}\n{hint}") from error
        if is_interrupt(error):
            print(f"anchor3r: {hint}", file=sys.stderr)
        raise


def _in_words(summary: dict[str, Any]) -> str:
    from anchor3r.export.cameras import camera_in_words
    from anchor3r.pipeline.shortfall import REMEDIES, Gap
    from anchor3r.store import NO_SHARED_VIEW, PHOTOGRAPHS
    from anchor3r.trajectory import ONLY_TURNED, STOOD_STILL

    lines = [
        f"{summary['map']}: {summary['with_pose']} of {summary['frames']} frames of {summary['source']} "
        f"have a pose ({summary['frames_per_second']} frames/s, predictor {summary['predictor']})"
    ]
    if answers := summary["answers"]:
        measured = ", ".join(f"{name} ({_counted(n)})" for name, n in answers.items())
        later = summary["with_pose"] - sum(answers.values())
        rest = f"; {_counted(later)} got a pose afterwards, by what later ones showed" if later > 0 else ""
        lines.append(f"measured by {measured}{rest}")
    if (camera := summary["camera"]) is not None:
        known = "the stated camera, refined:" if camera["stated"] else "the camera was not known; estimated"
        known = "the camera as found before, held:" if camera.get("held") else known
        lines.append(f"{known} {camera_in_words(camera)}")
    if summary["ground_truth_predictor"]:
        lines.append(NOT_A_RECONSTRUCTION)
    if summary["resumed_after"] is not None:
        lines.append(f"went on after frame {summary['resumed_after']}")
    if summary["skipped"]:
        lines.append(f"skipped, as it could not be decoded: {_counted(summary['skipped'])}")
    if summary["components"] > 1:
        cause = NO_SHARED_VIEW if summary["predictor"] == PHOTOGRAPHS else "tracking broke"
        lines.append(f"{cause}: {summary['components']} components, which no measurement relates")
    if events := summary["loop_events"]:
        lines.append(f"{summary['accepted']} of {events} loop events are accepted")
    lines += _placements_in_words(summary)
    if summary["only_turns"]:
        lines.append(STOOD_STILL if summary["stands_still"] else ONLY_TURNED)
    if gaps := summary["without_pose"]:
        lines.append(f"without a pose: {_counted(sum(gap['num_frames'] for gap in gaps))}")
        lines += [f"  {Gap(**gap).in_words()}" for gap in gaps[:_TOLD_GAPS]]
    if len(gaps) > _TOLD_GAPS:
        lines.append(f"  and {len(gaps) - _TOLD_GAPS} further parts; --json lists them all")
    if gaps:
        longest = max(gaps, key=lambda gap: int(gap["num_frames"]))
        lines.append(f"  {longest['cause']}: {REMEDIES[longest['cause']]}")
    return "\n".join(lines)


def _placements_in_words(summary: dict[str, Any]) -> list[str]:
    """Where positions have put the map, and how sure that is; or why they have not."""
    lines = []
    for placed in summary["placements"]:
        name = f"component {placed['component']} is" if summary["components"] > 1 else "the map is"
        tilt = (
            "assumed from upright cameras"
            if placed["upright_assumed"]
            else f"{placed['tilt_sigma_deg']:.1f}°"
        )
        lines.append(
            f"{name} in metres: scale known to {placed['scale_sigma']:.2%}, heading to "
            f"{placed['heading_sigma_deg']:.1f}°, tilt {tilt}, by {placed['positions']} positions "
            f"({placed['positions_cut']} contradict it), first from frame {summary['placed_since']} on"
        )
    if summary["placements"] and (datum := summary["placements"][0].get("datum")) is not None:
        lines.append(f"origin at {datum['latitude_deg']:.7f}, {datum['longitude_deg']:.7f} (WGS 84)")
    if summary["not_placed"] is not None:
        lines.append(f"WARNING: the map is not placed: {summary['not_placed']}")
    return lines


def _counted(num_frames: int) -> str:
    return "1 frame" if num_frames == 1 else f"{num_frames} frames"
