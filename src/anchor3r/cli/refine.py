"""`anchor3r refine`: loops closed and all poses averaged, in a finished map."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from anchor3r.cli.map import NOT_A_RECONSTRUCTION, Switch
from anchor3r.cli.progress import progress
from anchor3r.errors import Anchor3RError

if TYPE_CHECKING:
    from anchor3r.loops.reinsertion import FrameReader
    from anchor3r.predictors import Predictor

Events = tyro.conf.UseAppendAction[tuple[int, ...]]


def refine(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MAP")],
    loops: bool = True,
    method: Literal["joint", "paper"] = "joint",
    scale: Literal["fixed", "free"] | None = None,
    keyframe_interval: int = 5,
    top_k: int = 3,
    descriptor: str | None = None,
    predictor: str | None = None,
    accept_loop: Events = (),
    reject_loop: Events = (),
    redo_loops: Switch = False,
    as_json: Annotated[Switch, tyro.conf.arg(name="json")] = False,
) -> None:
    """Close loops in a finished map and average all its poses.

    The refined poses are called offline and lie beside the online ones. Every loop event and what became of
    it is in MAP/loops.csv; a second run uses the events that the map has, so that it takes seconds.

    Args:
        folder: Folder of the map.
        loops: Look for places that were seen before and close the loops.
        method: joint solves rotations, positions and units together; paper averages rotations first.
        scale: One unit for the whole map, or one for each window; free if not given and the predictor
            measured how its unit changes.
        keyframe_interval: Compare one frame out of so many.
        top_k: Earlier places to try for a keyframe.
        descriptor: How places are recognised: tokens (from the predictor, as it mapped), gradients (from the
            kept images) or netvlad:PATH (public Pittsburgh weights). Tokens if the map has them.
        predictor: What measures loops; the one that the map was made with if not given.
        accept_loop: Believe this event of loops.csv, whatever the map says; may be given several times.
        reject_loop: Leave this event out; may be given several times.
        redo_loops: Look for loops anew, and forget verdicts by hand.
        as_json: Print the summary as JSON, and nothing else, to the standard output.
    """
    from anchor3r.loops.retrieval import RetrievalConfig
    from anchor3r.pipeline.refine import LoopChoices, RefinementConfig, refine_map

    for name, value in (("--keyframe-interval", keyframe_interval), ("--top-k", top_k)):
        if value < 1:
            raise Anchor3RError(f"{name} must be at least 1, not {value}")
    config = RefinementConfig(
        loops=loops,
        method=method,
        scale=scale,
        keyframe_interval=keyframe_interval,
        descriptor=descriptor,
        retrieval=RetrievalConfig(top_k=top_k),
    )
    choices = LoopChoices(accept=tuple(accept_loop), reject=tuple(reject_loop), redo=redo_loops)
    with _frames_of(folder) as read_frame, progress("loops", None, "events") as advance:
        summary = refine_map(
            folder,
            config,
            predictor=_predictor_of(folder, predictor),
            read_frame=read_frame,
            choices=choices,
            progress=lambda stage, done, total: advance(done, f"{stage} (of {total})"),
        )
    print(json.dumps(summary) if as_json else _in_words(summary))


@contextmanager
def _frames_of(folder: Path) -> Iterator[FrameReader | None]:
    """Where images come from if the map keeps none: its source, if that is still there."""
    from anchor3r.export.images import original_source
    from anchor3r.store import load_map

    with ExitStack() as stack:
        # Closed before anybody writes: who leaves last tidies up the database, which a reader cannot.
        with load_map(folder) as made:
            source = None if made.keeps_images() else stack.enter_context(original_source(made))
        yield None if source is None else source.read


def _predictor_of(folder: Path, name: str | None) -> Callable[[], Predictor]:
    """Loads the predictor of a name, or the one that the map was made with."""

    def load() -> Predictor:
        from anchor3r.predictors.loading import load_predictor
        from anchor3r.store import load_map

        if name is not None:
            return load_predictor(name)
        with load_map(folder) as made:
            meta = made.meta
        if "loaded_as" not in meta:
            made_with = meta.get("identity", {}).get("predictor")
            raise Anchor3RError(
                f"{folder} does not say how to load what it was made with ({made_with}); name it: --predictor"
            )
        return load_predictor(**meta["loaded_as"])

    return load


def _in_words(summary: dict[str, Any]) -> str:
    seconds = ", ".join(f"{stage} {value:.1f} s" for stage, value in summary["seconds"].items())
    lines = [
        f"{summary['map']}: {summary['frames']} offline poses "
        f"({summary['method']}, scale {summary['scale']}, {summary['solver']['status']})",
        f"{summary['accepted']} of {summary['loop_events']} loop events accepted",
        *(f"  {count} × {reason}" for reason, count in summary["reasons"].items()),
        f"poses moved by {summary['moved_median']:.3g} (median) and {summary['moved_max']:.3g} (most), "
        f"on a path of {summary['path_length']:.4g}",
        seconds,
    ]
    if summary["components"] > 1:
        lines.append(f"{summary['components']} components, which no measurement relates")
    if summary["ground_truth_predictor"]:
        lines.append(NOT_A_RECONSTRUCTION)
    return "\n".join(lines)
