"""`anchor3r evaluate`: a trajectory, a map or whole data sets against ground truth, and runs side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from anchor3r.cli.output import Json
from anchor3r.errors import Anchor3RError
from anchor3r.io.files import check_output
from anchor3r.limits import LIMITS
from anchor3r.pipeline.settings import DensifySettings, MapSettings, RefineSettings
from anchor3r.store import OFFLINE
from anchor3r.trajectory import MAX_TIME_DIFFERENCE_S
from anchor3r.workers import WorkerSettings

if TYPE_CHECKING:
    from anchor3r.evaluation.benchmarks import Benchmark
    from anchor3r.evaluation.results import Metrics, Results, SequenceResult
    from anchor3r.evaluation.runner import MapFunction

Format = Literal["auto", "tum", "kitti", "euroc", "matrices", "longstream"]
Align = Literal["sim3", "se3", "none"]
_MOST_SEEDS = 100_000
_MOST_ATTENTION_FRAMES = 2_000
_MAPPING = MapSettings(loops="off")
_REFINING, _WORKERS = RefineSettings(), WorkerSettings()
_AS_PUBLISHED = RefineSettings(method="paper")


def trajectory(
    estimate: Annotated[Path, tyro.conf.Positional],
    reference: Annotated[Path, tyro.conf.Positional],
    align: Align = "sim3",
    estimate_format: Format = "auto",
    reference_format: Format = "auto",
    max_time_difference: float = MAX_TIME_DIFFERENCE_S,
    poses: str | None = None,
    out: Path | None = None,
    as_json: Json = False,
) -> dict[str, Any]:
    """Compare two trajectories.

    Where both have time stamps, poses are paired by the nearest; else one by one, and both must have as many.

    Args:
        estimate: A TUM, KITTI or EuRoC file, lines of 4×4 matrices, LongStream's abs_pose.txt, or a map.
        reference: The ground truth: a TUM, KITTI or EuRoC file, or a map.
        align: What is moved away first: sim3 (also the scale), se3, or none.
        estimate_format: What the estimate is; auto tells from its first line.
        reference_format: What the reference is.
        max_time_difference: Seconds between poses that are paired.
        poses: Which poses of a map: online or offline; offline if it was refined.
        out: Folder for figures.
    """
    from anchor3r.evaluation.association import paired, read_poses
    from anchor3r.evaluation.metrics import Alignment, trajectory_errors
    from anchor3r.io.trajectories import TrajectoryFormat

    if not 0 <= max_time_difference < math.inf:
        raise Anchor3RError(f"--max-time-difference must be 0 or more seconds, not {max_time_difference:g}")
    estimated = read_poses(estimate, TrajectoryFormat(estimate_format), poses=poses)
    true = read_poses(reference, TrajectoryFormat(reference_format), poses=poses)
    estimated, true = paired(estimated, estimate, true, reference, max_time_difference)
    errors = trajectory_errors(estimated.world_from_camera, true.world_from_camera, Alignment(align))
    if out is not None:
        from anchor3r.evaluation import figures

        figures.trajectory_figure({align: errors}, out / "trajectory.png", estimate.stem)
        figures.error_over_distance_figure({align: errors}, out / "error.png", estimate.stem)
    return _print_metrics({f"{estimate.name} ({align})": dict(errors.metrics())})


def evaluate_map(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MAP")],
    align: Align = "sim3",
    poses: tuple[str, ...] = (),
    out: Path | None = None,
    as_json: Json = False,
) -> dict[str, Any]:
    """Compare every trajectory of a map with the ground truth that its source knew.

    Where the source is still at hand and has depth images, the geometry is compared as well: depth_… are of
    the predictor's point maps, dense_depth_… of the depths that anchor3r densify measured; accuracy,
    completeness, their sum and F1 are of the point maps, and with the prefix fused_ of the surface that
    anchor3r fuse made. All are placed by what aligned the camera centres; fused_posed_… are of the surface
    as centres and orientations of the cameras place it, fused_registered_… after a similarity has fitted it
    to the true one, and moved_m tells by how much.

    Args:
        folder: Folder of the map.
        align: What is moved away first: sim3 (also the scale), se3, or none.
        poses: Only these: online, or names of refinements; all if not given.
        out: Folder for trajectories and figures; beside the map's own files if not given.
    """
    from anchor3r.evaluation.benchmarks import CloudProtocol
    from anchor3r.evaluation.geometry import geometry_metrics
    from anchor3r.evaluation.metrics import Alignment
    from anchor3r.evaluation.scoring import score_poses
    from anchor3r.store import load_map

    with load_map(folder) as scene_map:
        variants, scored = score_poses(
            scene_map, Alignment(align), out or folder / "evaluation", folder.name, names=poses
        )
        with scene_map.original_source() as source:
            if source is not None:
                for name, found in scored.items():
                    variants[name] |= geometry_metrics(
                        scene_map, name, source, found.frames, found.errors, CloudProtocol()
                    )
    return _print_metrics(variants)


def worlds(
    seeds: str = "101-120",
    motions: str = "driving,handheld,room,orbit,grid,stream",
    settings: tyro.conf.OmitArgPrefixes[MapSettings] = _MAPPING,
    out: Path = Path("out/worlds"),
    frames: int = 300,
    grid_frames: int = 3000,
    stream_frames: int = 10_000,
    stream_seeds: str = "101",
    offline: bool = False,
    refine: RefineSettings = _REFINING,
    dense: bool = False,
    workers: tyro.conf.OmitArgPrefixes[WorkerSettings] = _WORKERS,
    keep_maps: bool = False,
    as_json: Json = False,
) -> dict[str, Any]:
    """Procedural worlds that nothing was trained on: what a predictor reaches, next to what it should.

    A run that was interrupted goes on when it is started again, and finished worlds are read back: the parts
    can be run one after the other into the same folder.

    Args:
        seeds: Worlds, such as 101-120 or 101,105.
        motions: Parts to run: driving, handheld, room, orbit, grid (a long drive), stream (a very long one).
        settings: How a world becomes a map.
        out: Folder for the results.
        frames: Length of the others.
        grid_frames: Length of the long drive.
        stream_frames: Length of the very long one,
        stream_seeds: and its worlds.
        offline: Refine each map by loop closure and motion averaging, and score that as well.
        refine: How it is refined then.
        dense: Measure the depth of keyframes as well, fuse it, and score both.
        workers: Where worlds run.
        keep_maps: Keep the maps, too.
    """
    from anchor3r.evaluation.benchmarks.worlds import PARTS, Worlds, goal_table, part_table
    from anchor3r.evaluation.runner import run_benchmark

    lengths = dict.fromkeys(PARTS, frames) | {"grid": grid_frames, "stream": stream_frames}
    names = [
        f"{motion}-{number}"
        for motion in _names(motions)
        for number in _numbers(stream_seeds if motion == "stream" else seeds)
    ]
    results = run_benchmark(
        Worlds(lengths), Path(), out, _mapping_of(settings, refine if offline else None, dense=dense),
        sequences=names, workers=workers, keep_maps=keep_maps, finished=_print_finished,
    )  # fmt: skip
    print(f"\n{goal_table(results)}\n\n{part_table(results)}\n\n{out / 'results.json'} has every metric.")
    return _benchmarked(out, results)


def variants(
    benchmark: Annotated[str, tyro.conf.Positional],
    out: Path,
    root: Path = Path(),
    predictors: tuple[str, ...] = ("auto",),
    imported: tuple[str, ...] = (),
    sequences: str = "",
    intervals: tuple[int, ...] = (5, 10, 15),
    settings: tyro.conf.OmitArgPrefixes[MapSettings] = _MAPPING,
    refine: RefineSettings = _AS_PUBLISHED,
    workers: tyro.conf.OmitArgPrefixes[WorkerSettings] = _WORKERS,
    max_frames: int | None = None,
    frames: int | None = None,
    as_json: Json = False,
) -> dict[str, Any]:
    """Run the paper's rows in one go: online, offline without loops, Off-5, -10 and -15, for any front-end.

    Each sequence is mapped once and refined under a name for each row. The refinement is Algorithm 2 of the
    paper unless told otherwise; add --refine.descriptor netvlad:PATH for its place recognition. The tables
    have the paper's own rows, and notes on what each number is.

    Args:
        benchmark: A data set, as in `anchor3r evaluate --help`, or worlds.
        out: Folder for the results, with a folder for each front-end.
        root: Folder of the data set in its official layout.
        predictors: Front-ends: auto, tiny, features, a checkpoint, vggt:PATH …; none for imported ones only.
        imported: Other systems as NAME=FOLDER with a trajectory for each sequence (SEQUENCE.txt …); their
            loops are measured by --refine.predictor.
        sequences: Comma-separated names; those of the protocol if not given. Worlds are named driving-101.
        intervals: Distances of loop keyframes, one row each.
        settings: How a sequence becomes a map; its predictor is one of the front-ends.
        refine: How maps are refined, but for loops and interval.
        workers: Where sequences run.
        max_frames: Only the first so many frames of each sequence: a trial, not the protocol.
        frames: Of worlds, how many frames they have.
    """
    from anchor3r.evaluation.runner import run_benchmark
    from anchor3r.evaluation.tables import run_tables
    from anchor3r.io.files import replacing, utf8

    chosen = _benchmark(benchmark, frames)
    results = []
    for front_end in _front_ends(predictors, imported, settings, refine, intervals):
        print(f"{front_end.name}:", flush=True)
        done = run_benchmark(
            chosen, root, out / front_end.name, front_end,
            sequences=_names(sequences), workers=workers, max_frames=max_frames, finished=_print_finished,
        )  # fmt: skip
        results.append(done)
    shown = dict.fromkeys([*chosen.protocol.metrics, "ate_rmse_m", "rre_rmse_deg", "rte_rmse_m"])
    text = run_tables(results, list(shown))
    with replacing(out / "table.md") as file:
        file.write(utf8(text) + b"\n")
    print(f"\n{text}\n\n{out / 'table.md'} has these tables.")
    front_ends = {path.parent.name: path for path in sorted(out.glob("*/results.json"))}
    return {"out": out, "front_ends": front_ends, "table": out / "table.md"}


def _mapping_of(settings: MapSettings, refine: RefineSettings | None, *, dense: bool) -> MapFunction:
    """What is run on every sequence."""
    from anchor3r.evaluation.runner import MapAndRefine

    return MapAndRefine(
        mapping=settings,
        refinements={} if refine is None else {OFFLINE: refine},
        dense=DensifySettings() if dense else None,
    )


def _benchmark(name: str, frames: int | None) -> Benchmark:
    from anchor3r.evaluation.benchmarks import BENCHMARKS
    from anchor3r.evaluation.benchmarks.worlds import PARTS, Worlds

    if name == "worlds":
        return Worlds() if frames is None else Worlds(dict.fromkeys(PARTS, frames))
    if name.replace("-", "_") not in BENCHMARKS:
        raise Anchor3RError(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}, worlds")
    return BENCHMARKS[name.replace("-", "_")]


def _front_ends(
    predictors: Sequence[str],
    imported: Sequence[str],
    settings: MapSettings,
    refine: RefineSettings,
    intervals: Sequence[int],
) -> list[MapFunction]:
    """What is run: each with a refinement without loops and one for each interval of keyframes."""
    from anchor3r.evaluation.runner import ImportAndRefine, MapAndRefine
    from anchor3r.evaluation.tables import NO_LOOPS

    refinements = {NO_LOOPS: replace(refine, loops=False)}
    refinements |= {f"off{k}": replace(refine, keyframe_interval=k) for k in intervals}
    found: list[MapFunction] = [
        MapAndRefine(mapping=replace(settings, predictor=name), refinements=refinements)
        for name in predictors
    ]
    for text in imported:
        label, equals, folder = text.partition("=")
        if not equals or not Path(folder).is_dir():
            raise Anchor3RError(f"--imported takes NAME=FOLDER of trajectories, not {text!r}")
        if refine.predictor is None:
            raise Anchor3RError(f"{label} measures no loops; name who does with --refine.predictor features")
        found.append(ImportAndRefine(label=label, folder=Path(folder), refinements=refinements))
    names = [front_end.name for front_end in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Anchor3RError(f"two front-ends are called {', '.join(twice)}; give each an --out")
    return found


def ablation(
    runs: Annotated[Path, tyro.conf.Positional],
    vkitti2: Path | None = None,
    seeds: str = "101-105",
    frames: int = 200,
    out: Path | None = None,
    as_json: Json = False,
) -> dict[str, Any]:
    """Score every finished run of `anchor3r train ablation --all`, and print mean and spread over seeds.

    t is the difference from the baseline in its own standard deviations: below 2 or so it may be chance. What
    was measured of a run is kept in its folder and read back.

    Args:
        runs: Folder of the runs.
        vkitti2: Root of Virtual KITTI 2, whose sequences the paper scores; rendered streets if not given.
        seeds: Rendered streets, such as 101-105; nothing was trained on them.
        frames: Length of a street.
        out: Markdown file to write the table to as well.
    """
    from anchor3r.evaluation.ablation import ablation_table, evaluate_runs, finished_runs
    from anchor3r.evaluation.benchmarks import BENCHMARKS
    from anchor3r.evaluation.benchmarks.worlds import Worlds
    from anchor3r.io.files import replacing, utf8

    if out is not None:
        check_output(out)
    finished, others = finished_runs(runs)
    for path in others:
        print(f"{path}: not finished, left out; anchor3r train ablation --all goes on with it")
    worlds = [f"driving-{number}" for number in _numbers(seeds)] if vkitti2 is None else []
    benchmark = Worlds({"driving": frames}) if vkitti2 is None else BENCHMARKS["vkitti2"]
    rows = evaluate_runs(
        finished,
        benchmark,
        vkitti2 or Path(),
        worlds,
        lambda run, results: print(f"{run.variant}, seed {run.seed}: {len(results.sequences)} sequences"),
    )
    table = ablation_table(rows)
    print(f"\n{table}\n\n{finished[0].steps} steps a run.")
    if out is not None:
        with replacing(out) as file:
            file.write(utf8(table) + b"\n")
    found = [{"variant": row.variant, "values": row.values} for row in rows]
    return {"steps": finished[0].steps, "rows": found, "unfinished": others}


def attention(
    checkpoints: Annotated[tuple[str, ...], tyro.conf.Positional],
    source: str,
    out: Path = Path("attention.npz"),
    frames: int = 60,
    start: int = 0,
    stride: int = 1,
    as_json: Json = False,
) -> dict[str, Any]:
    """Measure where the queries of networks look: the data of the paper's attention figure.

    Args:
        checkpoints: Networks as NAME=CHECKPOINT, such as current-centric=a.safetensors.
        source: Images, a video, a data set or a world, as `anchor3r map` takes it.
        out: Results file to write; `anchor3r evaluate figures --attention` draws it.
        frames: How many frames.
        start: First frame.
        stride: Take one frame out of so many.
    """
    from anchor3r.evaluation.attention import measure_attention, write_attention
    from anchor3r.sources import open_source

    check_output(out, inputs=[text.partition("=")[2] for text in checkpoints])
    if not 2 <= frames <= _MOST_ATTENTION_FRAMES or stride < 1:
        raise Anchor3RError(f"--frames must lie in 2 … {_MOST_ATTENTION_FRAMES}, --stride at least 1")
    shares = {}
    with open_source(source, start=start, stop=start + frames * stride, stride=stride) as opened:
        check_output(out, inputs=opened.files)
        for text in checkpoints:
            name, equals, path = text.partition("=")
            if not equals or not Path(path).is_file():
                raise Anchor3RError(f"name networks as NAME=CHECKPOINT, not {text!r}")
            shares[name] = measure_attention(Path(path), opened, frames)
            print(f"{name}: {len(shares[name])} layers, {frames} frames", flush=True)
    write_attention(out, shares)
    print(f"{out}; draw it with: anchor3r evaluate figures --attention {out} --out DIR")
    return {"out": out, "networks": list(shares)}


def figures(
    out: Path,
    results: Annotated[tuple[Path, ...], tyro.conf.Positional] = (),
    attention: Path | None = None,
    layers: tuple[int, ...] = (),
    as_json: Json = False,
) -> dict[str, Any]:
    """Draw the paper's figures from results files.

    For each sequence trajectories coloured by error, a panel a method and refinement (trajectory-NAME.png);
    runtime and memory over sequence length for all methods on one axis, of their longest sequences
    (scaling.png); errors and speed over the window size, where runs differ in it (window.png); and attention
    over frames (attention.png).

    Args:
        out: Folder for the figures.
        results: results.json files of `anchor3r evaluate`, with the sequences' folders beside them.
        attention: Results file of `anchor3r evaluate attention`.
        layers: Layers of which attention is shown, from 0; the mean over all if not given.
    """
    from anchor3r.evaluation import drawing

    if not results and attention is None:
        raise Anchor3RError("nothing to draw; name results.json files, or --attention FILE")
    drawn = list(drawing.draw_figures(out, results, attention, layers))
    for path in drawn:
        print(path)
    return {"figures": drawn}


def compare(
    results: Annotated[list[Path], tyro.conf.Positional],
    metrics: str = "",
    paper: bool = True,
    out: Path | None = None,
    as_json: Json = False,
) -> dict[str, Any]:
    """Print runs side by side, as the paper's tables do, next to the paper's own rows.

    Args:
        results: results.json files of `anchor3r evaluate`.
        metrics: Comma-separated names such as ate_rmse_m,rre_rmse_deg; those of the benchmark if not given.
        paper: Show the published rows, too.
        out: Markdown file to write instead of printing.
    """
    from anchor3r.evaluation.results import Results
    from anchor3r.evaluation.tables import compared
    from anchor3r.io.files import replacing, utf8

    if not results:
        raise Anchor3RError("nothing to compare; name one or more results.json files")
    if out is not None:
        check_output(out, inputs=results)
    runs = [Results.load(path) for path in results]
    text = compared(runs, _names(metrics) or None, with_paper=paper)
    if out is None:
        print(text)
    else:
        with replacing(out) as file:
            file.write(utf8(text) + b"\n")
    return {"results": results, "table": text, "out": out}


def _benchmark_command(name: str) -> Callable[..., dict[str, Any]]:
    """The command of one data set."""

    def run(
        root: Annotated[Path, tyro.conf.Positional],
        out: Path,
        sequences: str = "",
        settings: tyro.conf.OmitArgPrefixes[MapSettings] = _MAPPING,
        offline: bool = False,
        refine: RefineSettings = _REFINING,
        dense: bool = False,
        workers: tyro.conf.OmitArgPrefixes[WorkerSettings] = _WORKERS,
        max_frames: int | None = None,
        as_json: Json = False,
    ) -> dict[str, Any]:
        """
        Writes results.json, table.md, and for each sequence its map, trajectories and figures. A run that was
        interrupted goes on when it is started again; finished sequences are read back.

        Args:
            root: Folder of the data set in its official layout.
            out: Folder for the results.
            sequences: Comma-separated names; those of the protocol if not given.
            settings: How a sequence becomes a map.
            offline: Refine each map by loop closure and motion averaging, and score that as well.
            refine: How it is refined then.
            dense: Measure the depth of keyframes as well, fuse it, and score both.
            workers: Where sequences run.
            max_frames: Only the first so many frames of each sequence: a trial, not the protocol.
        """
        from anchor3r.evaluation.benchmarks import BENCHMARKS
        from anchor3r.evaluation.runner import run_benchmark
        from anchor3r.evaluation.tables import run_tables

        results = run_benchmark(
            BENCHMARKS[name],
            root,
            out,
            _mapping_of(settings, refine if offline else None, dense=dense),
            sequences=_names(sequences),
            workers=workers,
            max_frames=max_frames,
            finished=_print_finished,
        )
        print("\n" + run_tables([results], BENCHMARKS[name].protocol.metrics))
        print(f"\n{out / 'results.json'} has every metric; {out / 'table.md'} this table.")
        return _benchmarked(out, results)

    run.__doc__ = f"{_TITLES[name]}: map, refine and score its sequences.\n{run.__doc__}"
    return run


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> list[int]:
    """101-103,110 -> 101, 102, 103, 110."""
    numbers: list[int] = []
    for part in _names(text):
        first, _, last = part.partition("-")
        if not all(number.isascii() and number.isdecimal() for number in (first, last or first)):
            raise Anchor3RError(f"seeds are numbers and ranges such as 101-120,130, not {text!r}")
        low, high = (int(number) if len(number) < 19 else LIMITS.seed for number in (first, last or first))
        if high - low >= _MOST_SEEDS:
            raise Anchor3RError(f"seeds {part!r} are more than {_MOST_SEEDS:,}; name fewer")
        numbers += range(low, high + 1)
    return numbers


def _print_finished(name: str, result: SequenceResult) -> None:
    ate = ", ".join(
        f"{variant} ATE {'failed' if (value := found.get('ate_rmse_m')) is None else f'{value:.3f} m'}"
        for variant, found in result.variants.items()
    )
    print(f"{name}: {result.num_frames} frames, {ate}", flush=True)


def _benchmarked(out: Path, results: Results) -> dict[str, Any]:
    """What a run over a benchmark tells programs: the metrics of every sequence and trajectory."""
    found = {name: dict(result.variants) for name, result in results.sequences.items()}
    return {"out": out, "results": out / "results.json", "sequences": found}


def _print_metrics(variants: dict[str, Metrics]) -> dict[str, Any]:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("")
    for variant in variants:
        table.add_column(variant, justify="right")
    for metric in dict.fromkeys(name for found in variants.values() for name in found):
        cells = (found.get(metric) for found in variants.values())
        table.add_row(metric, *("–" if cell is None or cell != cell else f"{cell:.6g}" for cell in cells))
    Console().print(table)
    return {"trajectories": variants}


_TITLES = {
    "kitti": "KITTI odometry",
    "vbr": "VBR",
    "tum": "TUM RGB-D",
    "oxford_spires": "Oxford Spires",
    "waymo": "Waymo Open, exported to images",
    "7scenes": "7-Scenes",
    "vkitti2": "Virtual KITTI 2",
}

evaluate = {
    "trajectory": trajectory,
    "map": evaluate_map,
    "compare": compare,
    "variants": variants,
    "attention": attention,
    "figures": figures,
    "worlds": worlds,
    "ablation": ablation,
    **{name.replace("_", "-"): _benchmark_command(name) for name in _TITLES},
}
