"""Many sequences: each row of a manifest is mapped, refined, scored and exported, here or on a cluster.

OUT/NAME holds the map, its exports, a picture and result.json of one row. A row that has a result of the same
settings is read back; one that was interrupted goes on from its map; one that cannot be done says why in the
table. OUT/results.csv and OUT/index.html tell of all.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import Any, cast, get_args

from anchor3r.errors import Anchor3RError, without_secrets
from anchor3r.evaluation.metrics import Alignment
from anchor3r.evaluation.scoring import scored_trajectory
from anchor3r.export.exporting import Format, export_map
from anchor3r.io.files import replacing, utf8
from anchor3r.io.inputs import decoding, insist_on_file, parse_json, read_json, text_lines
from anchor3r.limits import LIMITS
from anchor3r.pipeline.mapping import map_source
from anchor3r.pipeline.refine import refine_map
from anchor3r.pipeline.settings import MapSettings, RefineSettings
from anchor3r.report.map_outputs import RenderSettings, render_map
from anchor3r.sources.stated_camera import StatedCamera, parse_numbers
from anchor3r.store import best_poses, load_map
from anchor3r.workers import Outcome, WorkerSettings, run_jobs

RESULT, TABLE, PAGE, PICTURE = "result.json", "results.csv", "index.html", "picture.png"
_THUMBNAIL = (960, 540)
_SUFFIX = {"colmap": "-colmap", "nerfstudio": "-nerfstudio", "rosbag2": "-rosbag2"}
"""How the name of an export ends where that is no suffix: of a folder."""
_YES, _NO = ("yes", "true", "1"), ("no", "false", "0")


@dataclass(frozen=True, kw_only=True)
class BatchRow:
    """One sequence, and what to do with it; the columns of a manifest."""

    source: str
    """What `anchor3r map` takes."""
    name: str = ""
    """Of its folder; from the source if not given."""
    start: int = 0
    """First frame."""
    stop: int | None = None
    """Frame before which to end."""
    stride: int = 1
    """One frame out of so many."""
    intrinsics: str = ""
    """fx,fy,cx,cy"""
    fov: float | None = None
    """Horizontal field of view in degrees."""
    distortion: str = ""
    """k1[,k2[,p1,p2[,k3]]]"""
    fisheye: str = ""
    """k1,k2,k3,k4"""
    predictor: str = "auto"
    """As `anchor3r map --predictor`."""
    refine: bool = True
    """Whether to close loops and average."""
    export: str = ""
    """Formats of `anchor3r export`, with blanks between them."""

    def camera(self) -> StatedCamera | None:
        """What the row states of the camera."""
        if not (self.intrinsics or self.fov is not None or self.distortion or self.fisheye):
            return None
        return StatedCamera(
            intrinsics=parse_numbers("--intrinsics", self.intrinsics or None),
            fov_deg=self.fov,
            distortion=parse_numbers("--distortion", self.distortion or None),
            fisheye=parse_numbers("--fisheye", self.fisheye or None),
        )


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """What all rows have in common."""

    mapping: MapSettings = MapSettings()
    """How sources are mapped; a row's own predictor overrules it."""
    refining: RefineSettings = RefineSettings()
    """How maps are refined."""


_NAME_BYTES = LIMITS.name_bytes - 55
"""Of a row's name: file names are made of it by a number, a suffix, or an ending while they are written."""


def read_manifest(path: Path | str) -> list[BatchRow]:
    """The rows of a .csv with a line of column names, or of a .json with a list of objects."""
    path = insist_on_file(path, max_bytes=LIMITS.json_bytes)
    entries: list[tuple[str, dict[str, Any]]]
    if path.suffix.lower() == ".json":
        content = parse_json(path.read_bytes(), str(path))
        if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
            raise Anchor3RError(f"{path} should be a list of objects, one a sequence")
        entries = [(f"entry {k}", entry) for k, entry in enumerate(content)]
    else:
        table = csv.DictReader((line for _, line in text_lines(path, errors="replace")), restkey="")
        with decoding(str(path), "write it anew as a table with commas"):
            entries = [(f"line {k}", row) for k, row in enumerate(table, 2)]
    rows = [_row(entry, f"{where} of {path}") for where, entry in entries]
    if not rows:
        raise Anchor3RError(f"{path} names no sequence; give it a line for each, with a column 'source'")
    return _with_names(rows, path)


def _row(entry: Mapping[str, Any], where: str) -> BatchRow:
    known = {field.name: field for field in fields(BatchRow)}
    if unknown := sorted(set(entry) - set(known)):
        raise Anchor3RError(
            f"{where} has a column {unknown[0]!r}, which nothing is known of; there are: {', '.join(known)}"
        )
    values = {}
    for name, value in entry.items():
        if value is None or value == "":
            continue
        kind = str(known[name].type)
        try:
            values[name] = _parsed(value, kind)
        except ValueError as error:
            shown = str(value)[:60]
            raise Anchor3RError(f"{where}: {name} is {shown!r}, which is not {kind}; correct it") from error
    if not values.get("source"):
        raise Anchor3RError(f"{where} has no source; name what anchor3r map takes")
    row = BatchRow(**values)
    row.camera()  # refused now, not after hours
    for format in row.export.split():
        if format not in get_args(Format):
            raise Anchor3RError(
                f"{where}: there is no export format {format!r}; there are {', '.join(get_args(Format))}"
            )
    return row


def _parsed(value: Any, kind: str) -> Any:
    """A value of a manifest as the type of its column: a text of CSV, or a text or number of JSON."""
    if kind.startswith("bool"):
        text = str(value).strip().lower()
        if text not in _YES + _NO:
            raise ValueError(value)
        return text in _YES
    if isinstance(value, bool | list | dict) or (kind.startswith("int") and isinstance(value, float)):
        raise ValueError(value)
    if kind.startswith("int"):
        return int(value)
    return float(value) if kind.startswith("float") else str(value).strip()


def _with_names(rows: Sequence[BatchRow], path: Path) -> list[BatchRow]:
    """Each row with a name of its own that a folder can have."""
    named: dict[str, BatchRow] = {}
    for row in rows:
        wanted = row.name or _name_of(without_secrets(row.source))
        if row.name and (row.name in named or not re.fullmatch(r"\w[\w.-]*", row.name)):
            raise Anchor3RError(
                f"{path}: {row.name[:60]!r} is the name of two rows, or none that a folder can have; "
                "choose others"
            )
        if len(row.name.encode()) > _NAME_BYTES:
            raise Anchor3RError(
                f"{path}: the name {row.name[:20]!r}… has more than {_NAME_BYTES} bytes; choose a shorter one"
            )
        name, count = wanted or "sequence", 2
        while name in named:
            name, count = f"{wanted}-{count}", count + 1
        named[name] = replace(row, name=name)
    return list(named.values())


def _name_of(source: str) -> str:
    """What a folder can be called that holds the map of a source; may be empty."""
    last = re.sub(r"[^\w.-]+", "-", source.rstrip("/").rsplit("/", 1)[-1]).strip("-.")
    return last.encode()[:_NAME_BYTES].decode(errors="ignore")


@dataclass(frozen=True, kw_only=True)
class RowJob:
    """One row, to be done in the folder of its name; what `workers` runs."""

    row: BatchRow
    out: Path
    settings: BatchSettings

    def __call__(self) -> dict[str, Any]:
        """The row's figures (JSON), from an earlier run if there is one with the same settings."""
        folder, stamp = self.out / self.row.name, self.stamp()
        path = folder / RESULT
        if path.is_file():
            earlier = read_json(path)
            if earlier.pop("stamp", None) == stamp:
                return _figures(earlier, path)
            raise Anchor3RError(f"{path} is of other settings; remove its folder or choose another --out")
        result = self._run(folder)
        with replacing(path) as file:
            file.write(json.dumps(result | {"stamp": stamp}, indent=1).encode())
        return result

    def stamp(self) -> dict[str, Any]:
        """What has to be the same for a result to be taken over."""
        row = asdict(self.row) | {"source": without_secrets(self.row.source)}
        return json.loads(json.dumps({"row": row, "settings": asdict(self.settings)}))

    def _run(self, folder: Path) -> dict[str, Any]:
        row, scene = self.row, folder / "map"
        mapping = self.settings.mapping
        if row.predictor != BatchRow.predictor:
            mapping = replace(mapping, predictor=row.predictor)
        if row.refine and mapping.loops == "auto":
            mapping = replace(mapping, loops="off")  # refine closes them
        summary = map_source(
            row.source, scene, mapping,
            start=row.start, stop=row.stop, stride=row.stride, camera=row.camera(), resume=True,
        )  # fmt: skip
        result = {"frames": summary["frames"], "with_pose": summary["with_pose"]}
        if row.refine:
            refined = refine_map(scene, self.settings.refining)
            result |= {"loops": refined["loop_events"], "loops_accepted": refined["accepted"]}
        result |= _scores(scene)
        for format in row.export.split():
            out = folder / f"{row.name}{_SUFFIX.get(format, '.' + format)}"
            export_map(scene, out, cast(Format, format))
        render_map(scene, folder / PICTURE, RenderSettings(size=_THUMBNAIL))
        return result


_LARGEST = 1e300
"""Of a figure in a result, beyond which it is no measurement."""


def _figures(result: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The result of an earlier run, if it is what `RowJob` writes: numbers by name."""
    for name, value in result.items():
        if not (isinstance(value, int | float) and -_LARGEST < value < _LARGEST):
            raise Anchor3RError(f"{path} is damaged ({name[:60]!r} is no figure); remove it to do it anew")
    return dict(result)


def _scores(folder: Path) -> dict[str, Any]:
    """Errors of online and refined poses against ground truth, where the source had one, in its metres.

    `path_length` is in the map's own unit, `true_path_length` in metres.
    """
    with load_map(folder) as scene_map:
        truth, names = scene_map.true_trajectory(), scene_map.trajectory_names()
        found: dict[str, Any] = {"path_length": scene_map.trajectory(best_poses(names)).path_length()}
        if truth is None or scene_map.meta.get("ground_truth_predictor"):
            return found
        found["true_path_length"] = truth.path_length()
        for name in names:
            scored = scored_trajectory(scene_map.trajectory(name), truth, Alignment.SIM3)
            if scored is not None:
                found[f"ate_{name}"] = scored.metrics()["ate_rmse_m"]
    return found


def run_batch(
    rows: Sequence[BatchRow],
    out: Path | str,
    settings: BatchSettings | None = None,
    workers: WorkerSettings | None = None,
    *,
    shard: tuple[int, int] = (0, 1),
    finished: Callable[[Outcome], None] = lambda outcome: None,
) -> list[dict[str, Any]]:
    """Does every row that is not done yet and writes the table and the page; the rows of the table.

    shard: (i, n) takes the i-th of n parts; the table then is of that part, results-I-of-N.csv. A run
    without a shard, once all parts are done, reads their results back and writes the table of all.
    """
    out, (index, count) = Path(out), shard
    if not 0 <= index < count:
        raise ValueError(f"there is no part {index} of {count}")
    own = rows[index::count]
    settings = settings or BatchSettings()
    jobs = {row.name: RowJob(row=row, out=out, settings=settings) for row in own}
    outcomes: dict[str, Outcome] = {}
    table: list[dict[str, Any]] = []
    suffix = "" if count == 1 else f"-{index}-of-{count}"
    for outcome in run_jobs(jobs, workers or WorkerSettings()):
        outcomes[outcome.name] = outcome
        table = [_table_row(row, outcomes[row.name]) for row in own if row.name in outcomes]
        _write_table(out / TABLE.replace(".csv", f"{suffix}.csv"), table)
        finished(outcome)
    _write_page(out / PAGE.replace(".html", f"{suffix}.html"), table)
    return table


def _table_row(row: BatchRow, outcome: Outcome) -> dict[str, Any]:
    state = "done" if outcome.error is None else "failed"
    found = {"error": outcome.error} if outcome.error is not None else outcome.result
    of_row = {"name": row.name, "source": without_secrets(row.source), "state": state}
    return of_row | found | of_row  # a result that somebody has changed does not say what the row is


def _write_table(path: Path, table: Sequence[Mapping[str, Any]]) -> None:
    columns = [*dict.fromkeys(name for row in table for name in row if name != "error"), "error"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({name: _figure(value) for name, value in row.items()} for row in table)
    with replacing(path) as file:
        file.write(utf8(text.getvalue()))


def _figure(value: Any, digits: int = 6) -> Any:
    return f"{value:.{digits}g}" if isinstance(value, float) else value


_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:1200px;margin:2em auto;padding:0 1em;color:#222}
.rows{display:grid;grid-template-columns:repeat(auto-fill,minmax(340px,1fr));gap:18px}
.rows div{background:#f5f6f8;border-radius:6px;padding:10px}img{width:100%;border-radius:4px}
.failed{color:#b3261e}small{color:#555;overflow-wrap:anywhere}"""


def _write_page(path: Path, table: Sequence[Mapping[str, Any]]) -> None:
    """A tile for each row, with its picture and figures."""
    done = sum(row["state"] == "done" for row in table)
    tiles = "".join(_tile(row) for row in table)
    page = (
        f"<!doctype html><meta charset=utf-8><title>anchor3r batch</title><style>{_STYLE}</style>"
        f"<h1>{done} of {len(table)} sequences</h1><div class=rows>{tiles}</div>"
    )
    with replacing(path) as file:
        file.write(utf8(page))


def _tile(row: Mapping[str, Any]) -> str:
    name, source = escape(str(row["name"])), escape(str(row["source"]))
    head = f"<b>{name}</b><br><small>{source}</small>"
    if row["state"] == "failed":
        return f"<div>{head}<p class=failed>{escape(str(row['error']))}</p></div>"
    shown = {k: v for k, v in row.items() if k not in ("name", "source", "state")}
    figures = escape(", ".join(f"{k.replace('_', ' ')} {_figure(v, 3)}" for k, v in shown.items()))
    return f'<div>{head}<a href="{name}/{PICTURE}"><img src="{name}/{PICTURE}" alt=""></a>{figures}</div>'
