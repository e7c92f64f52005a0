"""Tables in the paper's form, as Markdown: a row a method, a column a sequence, the average at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.results import Metrics, Results, published_lengths, published_notes, published_rows

FAILED = "*"
NOT_RUN = "–"
NO_LOOPS = "no-loops"
"""What poses are called that were refined without loop closure."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """How a metric is printed."""

    label: str
    about: str = ""
    """What the number is, for the notes below a table."""
    digits: int = 3
    higher_is_better: bool = False


METRICS: dict[str, Column] = {
    "ate_rmse_m": Column(
        label="ATE (m)",
        about="root mean square distance of camera centres from the truth, after the protocol's alignment",
    ),
    "ate_mean_m": Column(label="mean error (m)"),
    "ate_median_m": Column(label="median error (m)"),
    "ate_max_m": Column(label="largest error (m)"),
    "ate_percent": Column(label="ATE (% of path)", about="ATE over the length of the true path"),
    "ate_vbr_legacy": Column(
        label="VBR legacy √mean(error)",
        about="square root of the mean distance, as older versions of the VBR kit compute it",
    ),
    "rre_rmse_deg": Column(
        label="RRE (°)", about="root mean square rotation error of the motion from one frame to the next"
    ),
    "rte_rmse_m": Column(
        label="RTE (m)",
        about="root mean square translation error from one frame to the next, after the alignment",
    ),
    "segment_translation_percent": Column(
        label="RPE 100–800 m (%)",
        about="mean translation error over segments of 100 to 800 m, as KITTI's development kit",
    ),
    "segment_rotation_deg_per_m": Column(
        label="RPE 100–800 m (°/m)",
        about="mean rotation error over segments of 100 to 800 m, as KITTI's development kit",
        digits=5,
    ),
    "drift_percent": Column(
        label="drift (% of path)",
        about="error of the motion from the first to the last frame, over the length of the path",
    ),
    "cd_m": Column(label="CD (m)", about="accuracy + completeness"),
    "accuracy_m": Column(
        label="accuracy (m)", about="mean distance from a reconstructed point to the nearest true one"
    ),
    "completeness_m": Column(
        label="completeness (m)", about="mean distance from a true point to the nearest reconstructed one"
    ),
    "f1_at_0.25": Column(
        label="F1@0.25",
        about="harmonic mean of the shares of points within 0.25 m, both ways",
        higher_is_better=True,
    ),
    "f1_at_0.05": Column(
        label="F1@0.05",
        about="harmonic mean of the shares of points within 0.05 m, both ways",
        higher_is_better=True,
    ),
    "fused_f1_at_0.05": Column(
        label="F1@0.05, fused",
        about="the same of the fused surface",
        higher_is_better=True,
    ),
    "depth_within_5": Column(
        label="depth within 5 %",
        about="share of depths, after one scale for the sequence",
        higher_is_better=True,
    ),
    "depth_coverage": Column(
        label="depth coverage", about="share of true depths that have an estimated one", higher_is_better=True
    ),
    "depth_abs_rel": Column(
        label="depth AbsRel", about="mean |depth - true depth| / true depth, after one scale for the sequence"
    ),
    "neighbour_rotation_median_deg": Column(label="neighbour rotation (°)"),
    "neighbour_direction_median_deg": Column(label="neighbour direction (°)"),
    "error_growth": Column(label="error growth, last tenth / first"),
    "within_50_percent": Column(
        label="truth within 50 % ellipsoid (%)",
        about="true poses within the 50 % ellipsoid of the stated covariance: of an online pose relative to "
        "the frame before, in the scale that the map has there, of a refined one relative to the trajectory "
        "as a whole, aligned by a similarity",
        digits=1,
    ),
    "within_95_percent": Column(
        label="truth within 95 % ellipsoid (%)", about="the same with the 95 % ellipsoid", digits=1
    ),
    "coverage": Column(label="frames with a pose", digits=4, higher_is_better=True),
}


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """A method's metric by sequence; None where it failed, absent where it was not run."""

    method: str
    values: Metrics
    printed_average: float | None = None
    """Where nothing but the average was published."""

    def average(self, sequences: Sequence[str]) -> float | None:
        """Over those of the sequences that succeeded."""
        found = [value for name in sequences if (value := self.values.get(name)) is not None]
        return sum(found) / len(found) if found else self.printed_average


def metric_table(rows: Sequence[MethodRow], sequences: Sequence[str], metric: str) -> str:
    """One metric, **best** and _second best_ of each column marked; averages over fewer say of how many."""
    about = METRICS.get(metric, Column(label=metric, digits=4))
    columns = [[row.values.get(name) for row in rows] for name in sequences]
    columns.append([row.average(sequences) for row in rows])
    marks = [_marked(column, about) for column in columns]
    lines = [f"| {about.label} | " + " | ".join([*sequences, "Avg."]) + " |"]
    lines.append("|---" * (len(sequences) + 2) + "|")
    for k, row in enumerate(rows):
        cells = [column[k] for column in marks]
        for j, name in enumerate(sequences):
            if row.values.get(name) is None:
                cells[j] = FAILED if name in row.values else NOT_RUN
        counted = sum(row.values.get(name) is not None for name in sequences)
        if 0 < counted < len(sequences):
            cells[-1] += f" ({counted} of {len(sequences)})"
        lines.append(f"| {row.method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _marked(values: Sequence[float | None], about: Column) -> list[str]:
    """Cells of one column, the best two marked by what is printed, so that equal prints are marked alike."""
    printed = [NOT_RUN if value is None or isnan(value) else f"{value:.{about.digits}f}" for value in values]
    ranks = sorted({float(text) for text in printed if text != NOT_RUN}, reverse=about.higher_is_better)
    if len(ranks) < 2:
        return printed
    wrap = {ranks[0]: "**{}**", ranks[1]: "_{}_"}
    return [text if text == NOT_RUN else wrap.get(float(text), "{}").format(text) for text in printed]


def run_tables(runs: Sequence[Results], metrics: Sequence[str], *, with_paper: bool = True) -> str:
    """The tables of runs on one benchmark, below the paper's own rows where it has them."""
    if len({run.benchmark for run in runs}) != 1:
        raise ValueError("the runs of one table are on one benchmark")
    sequences = list(dict.fromkeys(name for run in runs for name in run.sequences))
    tables: list[str] = []
    meanings: list[str] = []
    remarks = _remarks(runs, with_paper=with_paper)
    for metric in metrics:
        rows = [
            MethodRow(method=f"{run.method}-{variant_label(variant)}", values=values)
            for run in runs
            for variant, values in run.rows(metric).items()
        ]
        if all(value is None or isnan(value) for row in rows for value in row.values.values()):
            continue
        published = _published(runs[0].benchmark, metric, sequences) if with_paper else []
        if any(row.printed_average is not None for row in published):
            remarks.insert(0, "The paper prints only averages, over all sequences of the benchmark.")
        if published:
            remarks += published_notes(runs[0].benchmark, metric)
        tables.append(metric_table([*published, *rows], sequences, metric))
        if metric in METRICS and METRICS[metric].about:
            meanings.append(f"{METRICS[metric].label}: {METRICS[metric].about}.")
    return "\n\n".join([*tables, *dict.fromkeys(meanings + remarks)]) if tables else ""


def variant_label(variant: str) -> str:
    """The paper's name for poses of a name: off10 is Off-10, no-loops is Offline w/o LC."""
    if variant == NO_LOOPS:
        return "Offline w/o LC"
    if variant.startswith("off") and variant[3:].isdecimal():
        return f"Off-{variant[3:]}"
    return variant[:1].upper() + variant[1:]


def _remarks(runs: Sequence[Results], *, with_paper: bool) -> list[str]:
    """What keeps numbers from being compared: deviations from the protocol, other lengths."""
    lengths = published_lengths(runs[0].benchmark) if with_paper else {}
    remarks = []
    for run in runs:
        for name, result in run.sequences.items():
            notes = list(result.deviations)
            if result.num_frames != lengths.get(name, result.num_frames):
                notes.append(f"{result.num_frames} frames, {lengths[name]} in the paper")
            if notes:
                remarks.append(f"{run.method}, {name}: {'; '.join(notes)}.")
    return remarks


def _published(benchmark: str, metric: str, sequences: Sequence[str]) -> list[MethodRow]:
    """The paper's rows as far as they concern the sequences that were run."""
    rows = []
    for row in published_rows(benchmark, metric):
        values = {name: row.values[name] for name in sequences if name in row.values}
        only_average = None if row.values else row.printed_average
        if values or only_average is not None:
            rows.append(
                MethodRow(method=f"{row.method} [paper]", values=values, printed_average=only_average)
            )
    return rows


def compared(runs: Sequence[Results], metrics: Sequence[str] | None, *, with_paper: bool = True) -> str:
    """Runs side by side, a section a benchmark, with what differs between their protocols spelled out."""
    unknown = [m for m in metrics or () if m not in METRICS]
    if unknown:
        raise Anchor3RError(f"unknown metric {', '.join(unknown)}; there are {', '.join(METRICS)}")
    sections = []
    for benchmark in dict.fromkeys(run.benchmark for run in runs):
        group = [run for run in runs if run.benchmark == benchmark]
        chosen = metrics or list(
            dict.fromkeys(m for run in group for m in run.protocol.get("metrics", ["ate_rmse_m"]))
        )
        parts = [f"## {benchmark}", *_differences(group), run_tables(group, chosen, with_paper=with_paper)]
        sections.append("\n\n".join(parts))
    return "\n\n".join(sections)


def _differences(runs: Sequence[Results]) -> list[str]:
    """Settings of the protocols that are not the same: such numbers are not comparable."""
    keys = dict.fromkeys(key for run in runs for key in run.protocol if key != "metrics")
    lines = []
    for key in keys:
        values = {str(run.protocol.get(key)): run.method for run in runs}
        if len(values) > 1:
            told = "; ".join(f"{method}: {value}" for value, method in values.items())
            lines.append(f"**Not the same protocol**: {key}: {told}.")
    return lines
