"""`anchor3r batch`: many sequences, on one machine or on a cluster."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from anchor3r.cli.output import Json
from anchor3r.cli.progress import progress
from anchor3r.errors import Anchor3RError
from anchor3r.pipeline.settings import MapSettings, RefineSettings
from anchor3r.workers import WorkerSettings

_MAPPING, _REFINING, _WORKERS = MapSettings(), RefineSettings(), WorkerSettings()


def batch(
    manifest: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MANIFEST")],
    out: Path,
    workers: tyro.conf.OmitArgPrefixes[WorkerSettings] = _WORKERS,
    shard: str = "0/1",
    map: MapSettings = _MAPPING,
    refine: RefineSettings = _REFINING,
    as_json: Json = False,
) -> dict[str, Any]:
    """Map, refine, score and export every sequence of a table.

    The manifest is a .csv whose first line names its columns, or a .json with a list of objects: source (what
    anchor3r map takes), and where wanted name, start, stop, stride, intrinsics, fov, distortion, fisheye,
    predictor, refine (yes or no) and export (formats with blanks between them). What is done is not done
    again: the same command goes on after an interruption, also if workers were killed. A sequence that cannot
    be mapped has its reason in OUT/results.csv; the others go on. OUT/index.html shows all of them.

    Args:
        manifest: Table of sequences.
        out: Folder for results; OUT/NAME is that of a sequence.
        workers: Where sequences run.
        shard: Do only part I of N, for arrays of a scheduler: --shard $SLURM_ARRAY_TASK_ID/8. Afterwards the
            command without it reads all results back.
        map: How sources are mapped.
        refine: How maps are refined.
    """
    from anchor3r.batch import BatchSettings, read_manifest, run_batch

    rows, part = read_manifest(manifest), _shard(shard)
    settings = BatchSettings(mapping=map, refining=refine)
    done = 0
    with progress("sequences", len(range(part[0], len(rows), part[1])), "sequences") as advance:

        def finished(outcome: Any) -> None:
            nonlocal done
            done += 1
            advance(done, "sequences")
            if outcome.error is not None:
                print(f"{outcome.name}: {outcome.error}", file=sys.stderr)

        table = run_batch(rows, out, settings, workers, shard=part, finished=finished)
    failed = sum(row["state"] == "failed" for row in table)
    print(f"{len(table) - failed} of {len(table)} sequences done: {out}")
    if failed == len(table):
        raise Anchor3RError(f"none of {failed} sequences could be done; {out / 'results.csv'} says why")
    return {"out": out, "sequences": table}


def _shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if found is None:
        raise Anchor3RError(f"--shard {text}: give it as I/N, such as 0/8")
    part, count = int(found[1]), int(found[2])
    if part >= count:
        raise Anchor3RError(f"--shard {text}: the parts of {count} are 0/{count} to {count - 1}/{count}")
    return part, count
