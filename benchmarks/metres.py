"""Maps that become metric: simulated positions and taped distances against ground truth.

A source with ground truth is mapped and refined once, or an earlier map in the folder is taken. Each draw
then simulates what a user would have, refines the map with it under a name of its own, and compares with the
truth as it stands, without a fitted scale. Prints a line a draw and a summary.

    python benchmarks/metres.py gnss kitti:DATA/00 --out out/metres/00
    python benchmarks/metres.py floor kitti:DATA/00 --out out/metres/00
    python benchmarks/metres.py online kitti:DATA/00 --out out/metres/00
    python benchmarks/metres.py distances 7scenes:DATA/redkitchen --out out/metres/kitchen
    python benchmarks/metres.py tapes 7scenes:DATA/redkitchen --out out/metres/kitchen
    python benchmarks/metres.py height "world:101?motion=driving&frames=300" --out out/metres/drive
    python benchmarks/metres.py speeds kitti:DATA/00 --out out/metres/00
    python benchmarks/metres.py cost
"""

from __future__ import annotations

import csv
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from numpy.typing import NDArray
from scipy.stats import chi2

from anchor3r import load_map, map_source, refine_map
from anchor3r.evaluation.geometry import depth_at_cells
from anchor3r.geodesy import WORLD_FROM_LOCAL, Datum
from anchor3r.geometry import so3_exp, umeyama
from anchor3r.pipeline.knowledge import PriorSettings
from anchor3r.pipeline.placing import OnlinePlacer, PositionSettings
from anchor3r.pipeline.settings import MapSettings, RefineSettings
from anchor3r.pose_graph.joint import RefineConfig, refine_poses
from anchor3r.pose_graph.measured_drift import drift_kernels, similarities
from anchor3r.pose_graph.online import estimate_trajectory
from anchor3r.pose_graph.online_placement import OnlinePlacement
from anchor3r.pose_graph.placement import Knowledge
from anchor3r.pose_graph.priors import Positions
from anchor3r.predictors.confidence import LIKELY
from anchor3r.sources import Source
from anchor3r.store import Map
from anchor3r.trajectory import Trajectory
from generated_graphs import SyntheticConfig, synthetic_graph

Float = NDArray[np.float64]

_DATUM = Datum(latitude_deg=49.0, longitude_deg=8.4, altitude_m=110.0)
_NAME = "metres"
_LITTLE = 1e-6
"""Drift for the root of a frame, in radians and of scale."""
_RATE_HZ = 10.0
"""Of the frames whose positions are timed by `cost`."""
_ENDS_TRIED = 300
"""Pixels of a frame among which the ends of a tape are chosen."""


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """A simulated receiver of positions."""

    white_m: float = 2.0
    """White noise on each axis."""
    slow_m: float = 1.0
    """Noise on each axis that wanders."""
    slow_time_s: float = 30.0
    """How long the wandering noise takes to change."""
    interval_s: float = 1.0
    """From position to position."""
    wrong: float = 0.1
    """Share of positions that are off by 20 to 100 m in some direction."""
    clock_s: float = 0.3
    """What has to be added to its times."""


_RECEIVER = Receiver()


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Positions as a file, and what is true of them."""

    wrong: NDArray[np.bool_]
    """(k,) by line"""
    local: Float
    """(n, 3) where the frames of the truth are, east, north, up"""


def simulate(path: Path, true: Trajectory, receiver: Receiver, seed: int) -> Drawn:
    """Writes positions along the true trajectory, in a world that is turned about the vertical."""
    rng = np.random.default_rng(seed)
    times = true.timestamps_s
    assert times is not None
    local = true.center @ so3_exp([0.0, 0.65, 0.0]).T @ WORLD_FROM_LOCAL
    moments = np.arange(times[0] + 0.2, times[-1] - 0.5, receiver.interval_s)
    position = np.stack([np.interp(moments, times, axis) for axis in local.T], 1)
    slow, memory = rng.normal(size=position.shape), np.exp(-receiver.interval_s / receiver.slow_time_s)
    for k in range(1, len(moments)):
        slow[k] = memory * slow[k - 1] + np.sqrt(1 - memory**2) * slow[k]
    position += receiver.white_m * rng.normal(size=position.shape) + receiver.slow_m * slow
    wrong = rng.random(len(moments)) < receiver.wrong
    away = rng.normal(size=position.shape)
    away *= (rng.uniform(20, 100, len(moments)) / np.linalg.norm(away, axis=1))[:, None]
    position[wrong] += away[wrong]
    geodetic = _DATUM.to_geodetic(position)
    with open(path, "w") as file:
        print("time,latitude,longitude,altitude", file=file)
        for moment, (latitude, longitude, up) in zip(moments, geodetic, strict=True):
            print(f"{moment - receiver.clock_s:.3f},{latitude:.9f},{longitude:.9f},{up:.3f}", file=file)
    return Drawn(wrong=wrong, local=local)


def gnss(
    source: tyro.conf.Positional[str],
    out: Path,
    draws: tuple[int, ...] = tuple(range(1, 13)),
    predictor: str = "features",
    loops: bool = True,
    receiver: Receiver = _RECEIVER,
) -> None:
    """Simulated positions: error in metres, wrong ones cut, the clock, and how well poses are known.

    Args:
        source: What is mapped; it has to have ground truth and times.
        out: Folder of the map; one that is there is used.
        draws: Seeds of the noise.
        predictor: What the map is made with.
        loops: Whether loops take part too.
    """
    true = _mapped(source, out, predictor, loops)
    errors, offsets, within = [], [], []
    for seed in draws:
        track = out / "positions.csv"
        drawn = simulate(track, true, receiver, seed)
        started = time.process_time()
        summary = _refined(out, loops, PriorSettings(gnss=str(track), gnss_offset="auto"))
        seconds = time.process_time() - started
        cut, lines = _cut(out)
        with load_map(out) as scene_map:
            refined, datum = scene_map.trajectory(_NAME), scene_map.datum(_NAME)
        assert datum is not None
        frames = np.searchsorted(true.frames, refined.frames)
        local = _DATUM.to_local(datum.to_geodetic(refined.center @ WORLD_FROM_LOCAL))
        rigid, similar = (_ate(refined.center, true.center[frames], s) for s in (False, True))
        errors.append(rigid)
        offsets.append(summary["clock_offset_s"] - receiver.clock_s)
        told = ""
        if refined.covariance is not None and np.isfinite(refined.covariance).any():
            within.append(_within(refined, (drawn.local[frames] - local) @ WORLD_FROM_LOCAL.T))
            told = f", {within[-1]:.0%} within the 95 % ellipsoid"
        wrong = drawn.wrong[lines]
        print(
            f"{seed}: SE(3) ATE {rigid:.2f} m, Sim(3) {similar:.2f} m, clock {offsets[-1]:+.3f} s off "
            f"(± {summary['clock_offset_sigma_s']:.3f}), {int((cut & wrong).sum())} of {int(wrong.sum())} "
            f"wrong positions cut and {int((cut & ~wrong).sum())} others{told}, {seconds:.1f} CPU s",
            flush=True,
        )
    print(
        f"{len(errors)} draws: SE(3) ATE {np.mean(errors):.2f} m on average, {np.median(errors):.2f} median, "
        f"{min(errors):.2f} to {max(errors):.2f}; clock off by {np.sqrt(np.mean(np.square(offsets))):.3f} s"
        + (f"; {np.mean(within):.1%} within the 95 % ellipsoid" if within else "")
    )


def floor(
    source: tyro.conf.Positional[str],
    out: Path,
    poses: str = "offline",
    errors: tuple[float, ...] = (0.3, 0.6, 1.35, 2.8),
    receiver: Receiver = _RECEIVER,
    tries: int = 40,
) -> None:
    """The least error that positions allow, with noise and drift known exactly, no clock and no outliers.

    An odometry that turns and stretches at random from frame to frame, as much as gives it the wanted error
    of its own, is combined with positions in the best way there is (a Gaussian process with its similarity
    left open). Prints the expected SE(3) ATE: for this receiver, and for one without slow noise.

    Args:
        source: What was mapped; it has to have ground truth and times.
        out: Folder of its map.
        poses: Of the map, along which the odometry drifts.
        errors: Sim(3) ATE that the odometry alone has, in metres.
        receiver: Whose noise it is; wrong positions are left out.
        tries: Draws of the error that is left.
    """
    with load_map(out) as scene_map:
        true, path = scene_map.true_trajectory(), scene_map.trajectory(poses)
    assert true is not None
    assert true.timestamps_s is not None
    center = true.center[np.searchsorted(true.frames, path.frames)]
    times = true.timestamps_s[np.searchsorted(true.frames, path.frames)]
    moments = np.arange(times[0] + 0.2, times[-1] - 0.5, receiver.interval_s / (1 - receiver.wrong))
    at = np.concatenate([np.searchsorted(times, moments), np.arange(0, len(center), 10)])
    turns, stretches = drift_kernels(center, path.frames, at)
    left = similarities(center[at] - center.mean(0))
    # With the part of turns over stretches that odometry has where scales drift twice as much as directions.
    drift, seen = turns / 4 + stretches, 3 * len(moments)
    little = _LITTLE**2 * drift[seen:, seen:]  # as a large drift does not deform a path in proportion
    unit = float(np.mean(_ates(little, center[at[len(moments) :]], tries, with_scale=True))) / _LITTLE
    for error in (0.0, *errors):
        for slow_m in (receiver.slow_m, 0.0):
            rest = _best_error(
                (error / unit) ** 2 * drift, left, seen, replace(receiver, slow_m=slow_m), moments
            )
            found = _ates(rest, center[at[len(moments) :]], tries, with_scale=False)
            low, high = np.quantile(found, [0.05, 0.95])
            print(
                f"odometry of {error:.2f} m, slow noise of {slow_m:g} m: SE(3) ATE {np.mean(found):.2f} m "
                f"({low:.2f} to {high:.2f} in nine of ten)",
                flush=True,
            )


def _best_error(drift: Float, left: Float, seen: int, receiver: Receiver, moments: Float) -> Float:
    """(3 m, 3 m) covariance of what the best estimate of m frames misses.

    drift: of positions, which come first, and frames; left: (3 (k + m), 7) by a similarity; seen: 3 k.
    """
    apart = np.abs(moments[:, None] - moments)
    slow = receiver.slow_m**2 * np.exp(-apart / receiver.slow_time_s)
    noise = np.kron(slow + receiver.white_m**2 * np.eye(len(moments)), np.eye(3))
    inverse = np.linalg.inv(drift[:seen, :seen] + noise)
    carried, open_part = drift[seen:, :seen] @ inverse, left[:seen]
    unseen = left[seen:] - carried @ open_part
    similarity = np.linalg.inv(open_part.T @ inverse @ open_part)
    return np.asarray(
        drift[seen:, seen:] - carried @ drift[:seen, seen:] + unseen @ similarity @ unseen.T, np.float64
    )


def _ates(covariance: Float, center: Float, tries: int, *, with_scale: bool) -> list[float]:
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0))
    rng = np.random.default_rng(1)
    moved = (center + (root @ rng.normal(size=len(root))).reshape(-1, 3) for _ in range(tries))
    return [_ate(path, center, with_scale) for path in moved]


def online(
    source: tyro.conf.Positional[str],
    out: Path,
    draws: tuple[int, ...] = tuple(range(1, 13)),
    predictor: str = "features",
    receiver: Receiver = _RECEIVER,
) -> None:
    """Simulated positions while the map grows: from which frame on it is placed, and how well.

    The stream of a map that is there is told again, frame by frame, so that a draw takes seconds. Spreads are
    held against the similarity that fits the path so far to the truth best.

    Args:
        source: What is mapped; it has to have ground truth and times.
        out: Folder of the map; one that is there is used.
        draws: Seeds of the noise.
        predictor: What the map is made with.
        receiver: Whose clock is stated.
    """
    true = _mapped(source, out, predictor, loops=False)
    with load_map(out) as scene_map:
        path, frames = scene_map.odometry(), scene_map.frames()
        stream = scene_map.stream(int(frames.index[-1]))
    begun, firsts, lasts, within, errors = [], [], [], [], []
    for seed in draws:
        track = out / "positions.csv"
        drawn = simulate(track, true, receiver, seed)
        placer = OnlinePlacer(PositionSettings(gnss=str(track), gnss_offset=receiver.clock_s))
        told: dict[int, OnlinePlacement] = {}
        started = time.process_time()
        for index, moment, (poses, _, _) in zip(frames.index, frames.timestamp_s, stream, strict=True):
            event = placer.observe(float(moment), int(index), poses, poses, None)
            if event is not None:
                told[int(index)] = event
        seconds = time.process_time() - started
        if not told:
            print(f"{seed}: not placed: {placer.lack()}", flush=True)
            continue
        off = []
        for index, event in told.items():
            so_far = path.select((path.frames <= index) & (path.component == event.component))
            place = drawn.local[np.searchsorted(true.frames, so_far.frames)] @ WORLD_FROM_LOCAL.T
            best = umeyama(so_far.center, place)
            off.append(np.log(event.scale / float(best.scale)))
            within.append(abs(off[-1]) <= 2 * event.scale_sigma)
        begun.append(min(told))
        firsts.append(off[0])
        lasts.append(off[-1])
        placed = event.apply(path)
        assert event.datum is not None
        local = _DATUM.to_local(event.datum.to_geodetic(placed.center @ WORLD_FROM_LOCAL))
        miss = local - drawn.local[np.searchsorted(true.frames, path.frames)]
        errors.append(float(np.sqrt((miss**2).sum(1).mean())))
        print(
            f"{seed}: placed from frame {begun[-1]} on, scale then {off[0]:+.2%} off (spread "
            f"{told[begun[-1]].scale_sigma:.2%}), told {len(told)} times, at the end {off[-1]:+.2%} "
            f"({event.scale_sigma:.2%}), {errors[-1]:.2f} m off in the world, "
            f"{1e3 * seconds / len(frames):.2f} CPU ms a frame",
            flush=True,
        )
    print(
        f"{len(begun)} draws: placed from frame {np.median(begun):.0f} on (median; {min(begun)} to "
        f"{max(begun)}), "
        f"scale then {np.sqrt(np.mean(np.square(firsts))):.2%} off, at the end "
        f"{np.sqrt(np.mean(np.square(lasts))):.2%}; {np.mean(within):.0%} of what was told within two "
        f"spreads; {np.mean(errors):.2f} m off in the world at the end"
    )


def distances(
    source: tyro.conf.Positional[str],
    out: Path,
    draws: tuple[int, ...] = tuple(range(1, 13)),
    predictor: str = "features",
    noise: float = 0.01,
) -> None:
    """Two taped distances between cameras: how far the scale of the path is off.

    Args:
        source: What is mapped; it has to have ground truth.
        out: Folder of the map; one that is there is used.
        draws: Seeds of the choice of frames and of the noise.
        predictor: What the map is made with.
        noise: Standard deviation of the distances, as a part of them.
    """
    true = _mapped(source, out, predictor, loops=True)
    off = []
    for seed in draws:
        rng = np.random.default_rng(seed)
        taped = tuple(_taped(true, rng, noise) for _ in range(2))
        summary = _refined(out, True, PriorSettings(distance=taped))
        with load_map(out) as scene_map:
            refined = scene_map.trajectory(_NAME)
        frames = np.searchsorted(true.frames, refined.frames)
        off.append(1 / float(umeyama(refined.center, true.center[frames], with_scale=True).scale) - 1)
        print(
            f"{seed}: scale {off[-1]:+.2%} off, said to be known to {summary['scale_sigma']:.2%}", flush=True
        )
    print(
        f"{len(off)} draws: scale off by {np.sqrt(np.mean(np.square(off))):.2%}, "
        f"at most {max(map(abs, off)):.2%}"
    )


def _taped(true: Trajectory, rng: np.random.Generator, noise: float) -> tuple[int, int, float]:
    """Two frames that are a good part of the path's extent apart, as somebody would choose them."""
    extent = float(np.ptp(true.center, 0).max())
    while True:
        a, b = rng.choice(len(true), 2, replace=False)
        metres = float(np.linalg.norm(true.center[a] - true.center[b]))
        if metres > 0.4 * extent:
            return int(true.frames[a]), int(true.frames[b]), metres * (1 + noise * rng.normal())


def tapes(
    source: tyro.conf.Positional[str],
    out: Path,
    draws: tuple[int, ...] = tuple(range(1, 13)),
    predictor: str = "features",
    noise: float = 0.01,
    tapes: int = 2,
    confidence: float = 0.9,
) -> None:
    """Taped distances between things that frames show: how far the scale is off, by depth and by the path.

    Both ends of a tape are in one frame, and what is taped between them is measured in the depth of the
    source, so that the true trajectory has no part in it.

    Args:
        source: What is mapped; it has to have depth and ground truth.
        out: Folder of the map; one that is there is used.
        draws: Seeds of the choice of ends and of the noise.
        predictor: What the map is made with.
        noise: Standard deviation of the distances, as a part of them.
        tapes: How many there are.
        confidence: That the ends have in the map, as what has texture does.
    """
    true = _mapped(source, out, predictor, loops=True)
    by_depth, by_path = [], []
    for seed in draws:
        rng = np.random.default_rng(seed)
        with load_map(out) as scene_map, scene_map.original_source() as frames:
            assert frames is not None
            taped = tuple(_taped_things(scene_map, frames, rng, noise, confidence) for _ in range(tapes))
        summary = _refined(out, True, PriorSettings(distance=taped))
        with load_map(out) as scene_map, scene_map.original_source() as frames:
            assert frames is not None
            refined = scene_map.trajectory(_NAME)
            by_depth.append(_scale_by_depth(scene_map, refined, frames))
        place = true.center[np.searchsorted(true.frames, refined.frames)]
        by_path.append(1 / float(umeyama(refined.center, place, with_scale=True).scale) - 1)
        print(
            f"{seed}: {', '.join(f'{a} to {b} {metres:.2f} m' for a, b, metres in taped)}: scale "
            f"{by_depth[-1]:+.2%} off by depth, {by_path[-1]:+.2%} by the path, said to be known to "
            f"{summary['scale_sigma']:.2%}",
            flush=True,
        )
    for name, off in (("depth", by_depth), ("the path", by_path)):
        print(
            f"{len(off)} draws: scale off by {np.sqrt(np.mean(np.square(off))):.2%} by {name}, "
            f"{np.mean(np.abs(off)):.2%} in the mean, {np.mean(off):+.2%} with its sign, at most "
            f"{max(map(abs, off)):.2%}"
        )


def _taped_things(
    scene_map: Map, source: Source, rng: np.random.Generator, noise: float, confidence: float
) -> tuple[str, str, float]:
    """Two things far apart in one frame, as somebody would choose them."""
    frames = scene_map.frames_with_points()
    while True:
        frame = int(rng.choice(frames))
        seen, point_map = source.read(frame), scene_map.points(frame)
        if seen.depth_m is None or seen.intrinsics is None or point_map is None:
            continue
        row, column = np.nonzero(point_map.confidence >= confidence)
        if len(row) < 2:
            continue
        size = np.array(seen.depth_m.shape) / point_map.confidence.shape
        at = ((np.stack([row, column], 1) + 0.5) * size).astype(np.int64)
        at = at[rng.permutation(len(at))[:_ENDS_TRIED]]
        at = at[seen.depth_m[at[:, 0], at[:, 1]] > 0]
        if len(at) < 2:
            continue
        depth = seen.depth_m[at[:, 0], at[:, 1]]
        things = np.asarray(seen.intrinsics.unproject(at[:, ::-1].astype(np.float32), depth), np.float64)
        apart = np.linalg.norm(things[:, None] - things, axis=2)
        a, b = np.unravel_index(rng.choice(np.flatnonzero(apart >= 0.7 * apart.max())), apart.shape)
        ends = [f"{frame}:{at[k, 1]},{at[k, 0]}" for k in (a, b)]
        return ends[0], ends[1], float(apart[a, b]) * (1 + noise * rng.normal())


def _scale_by_depth(scene_map: Map, refined: Trajectory, source: Source) -> float:
    """How much too large the map is: the median over frames of that over pixels."""
    ratios = []
    for row in range(0, len(refined), 5):
        pose, seen = refined.pose(row), source.read(int(refined.frames[row]))
        point_map = scene_map.points(pose.frame)
        if point_map is None or seen.depth_m is None:
            continue
        own = np.exp(pose.log_scale) * point_map.points_in_camera[..., 2].astype(np.float64)
        true = depth_at_cells(seen.depth_m, own.shape)
        likely = (point_map.confidence >= LIKELY) & (true > 0) & np.isfinite(own)
        if likely.any():
            ratios.append(float(np.median(own[likely] / true[likely])))
    return float(np.median(ratios)) - 1


def height(
    source: tyro.conf.Positional[str],
    out: Path,
    camera_height: float | None = None,
    predictor: str = "features",
    stretch_m: float = 50.0,
) -> None:
    """A known camera height, without loops: the error of the path, and of its scale all along it.

    Args:
        source: What is mapped; it has to have ground truth.
        out: Folder of the map; one that is there is used.
        camera_height: Metres above the ground; of a world, whose ground is at 0, what the truth says.
        predictor: What the map is made with.
        stretch_m: Length of the stretches of path whose scales are compared.
    """
    true = _mapped(source, out, predictor, loops=False)
    if camera_height is None:
        camera_height = float(np.median(-true.center[:, 1]))
    started = time.process_time()
    priors = PriorSettings(camera_height=camera_height)
    summary = _refined(out, False, priors)
    seconds = time.process_time() - started
    refine_map(out, RefineSettings(loops=False), name="plain")
    errors = {}
    for name in ("online", "plain", _NAME):
        with load_map(out) as scene_map:
            refined = scene_map.trajectory(name)
        place = true.center[np.searchsorted(true.frames, refined.frames)]
        errors[name] = _ate(refined.center, place, True)
        scale = _scale_along(refined.center, place, stretch_m)
        if name == _NAME:
            rigid, off = _ate(refined.center, place, False), scale - 1
        else:
            off = scale / np.median(scale) - 1
        print(
            f"{name}: Sim(3) ATE {errors[name]:.3f} m, scale over {stretch_m:g} m {off.min():+.2%} to "
            f"{off.max():+.2%}" + ("" if name == _NAME else " of its median"), flush=True
        )  # fmt: skip
    kind = summary["priors"][0]
    print(
        f"{camera_height:.3f} m: {kind['priors'] - kind['cut']} of {kind['priors']} heights kept, SE(3) ATE "
        f"{rigid:.3f} m, scale said to be known to {summary['scale_sigma']:.2%}; ATE "
        f"{errors[_NAME] / errors['online']:.2f} times that online and "
        f"{errors[_NAME] / errors['plain']:.2f} times that refined without; {seconds:.1f} CPU s"
    )


def speeds(
    source: tyro.conf.Positional[str],
    out: Path,
    draws: tuple[int, ...] = (1, 2, 3),
    predictor: str = "features",
    loops: bool = False,
    noise: float = 0.03,
    stretch_m: float = 100.0,
) -> None:
    """Speeds of the vehicle, ten a second or one a frame: the error of the path, and of its scale along it.

    Args:
        source: What is mapped; it has to have ground truth and times.
        out: Folder of the map; one that is there is used.
        draws: Seeds of the noise.
        predictor: What the map is made with.
        loops: Whether loops take part too.
        noise: Standard deviation of each speed, as a part of it.
        stretch_m: Length of the stretches of path whose scales are compared.
    """
    true = _mapped(source, out, predictor, loops)
    times = true.timestamps_s
    assert times is not None
    truly = np.linalg.norm(np.diff(true.center, axis=0), axis=1) / np.diff(times)
    middle = (times[1:] + times[:-1]) / 2
    moments = np.arange(middle[0], middle[-1], max(0.1, float(np.median(np.diff(times)))))
    for seed in draws:
        told = np.interp(moments, middle, truly)
        told *= 1 + noise * np.random.default_rng(seed).normal(size=len(told))
        path = out / "speeds.txt"
        np.savetxt(path, np.stack([moments, np.maximum(told, 0)], 1), fmt="%.4f")
        summary = _refined(out, loops, PriorSettings(speed=str(path), speed_sigma=noise))
        with load_map(out) as scene_map:
            refined = scene_map.trajectory(_NAME)
        place = true.center[np.searchsorted(true.frames, refined.frames)]
        rigid, similar = (_ate(refined.center, place, s) for s in (False, True))
        off = _scale_along(refined.center, place, stretch_m) - 1
        kind = summary["priors"][0]
        print(
            f"{seed}: {kind['priors'] - kind['cut']} of {kind['priors']} speeds kept, scale over "
            f"{stretch_m:g} m {off.min():+.2%} to {off.max():+.2%}, said to be known to "
            f"{summary['scale_sigma']:.2%}; SE(3) ATE {rigid:.2f} m, Sim(3) {similar:.2f} m",
            flush=True,
        )


def _scale_along(estimated: Float, true: Float, stretch_m: float) -> Float:
    """Estimated over true length of the path, over stretches that overlap by three quarters."""
    along, own = (
        np.append(0.0, np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1))) for path in (true, estimated)
    )
    begin = np.arange(0, max(along[-1] - stretch_m, 1e-9), stretch_m / 4)
    first, last = np.searchsorted(along, begin), np.searchsorted(along, begin + stretch_m)
    last = np.minimum(last, len(along) - 1)
    return np.asarray((own[last] - own[first]) / (along[last] - along[first]), np.float64)


def cost(frames: int = 18800, priors: int = 2000, seed: int = 1, repeats: int = 5) -> None:
    """CPU seconds of the joint solve of a route with and without positions, in the median.

    Args:
        frames: Length of the route.
        priors: How many of its frames have a position.
        seed: Of the route and its noise.
        repeats: How often each is solved, in turn.
    """
    route = synthetic_graph(SyntheticConfig(num_frames=frames, seed=seed, scale_drift=1.5, scale_walk=0.002))
    start, config = estimate_trajectory(route.graph.edges), RefineConfig(scale="free")
    true = route.camera_from_world.center()
    rows = np.linspace(0, frames - 1, priors).astype(np.int64)
    position = true[rows] + np.random.default_rng(seed).normal(size=(priors, 3))
    known = Knowledge(
        kinds=(
            Positions(
                rows=np.stack([rows, rows], 1),
                fraction=np.zeros(priors),
                position=position,
                information=np.tile(np.eye(3), (priors, 1, 1)),
                moment_s=rows / _RATE_HZ,
            ),
        )
    )

    def seconds(known: Knowledge | None) -> float:
        started = time.process_time()
        refine_poses(route.graph, start, config, known=known)
        return time.process_time() - started

    refined, _ = refine_poses(route.graph, start, config, known=known)  # compiles
    taken = [(seconds(None), seconds(known)) for _ in range(repeats)]
    without, with_priors = np.median(taken, axis=0)
    error = np.linalg.norm(refined.camera_from_world.center() - true, axis=1)
    print(
        f"{frames} frames: {without:.1f} CPU s without and {with_priors:.1f} with {priors} positions "
        f"({with_priors / without:.2f} times); {np.sqrt((error**2).mean()):.3f} m with positions of 1 m"
    )


def _mapped(source: str, out: Path, predictor: str, loops: bool) -> Trajectory:
    """Maps and refines where that has not been done; the truth of the map's frames."""
    if not out.exists():
        map_source(source, out, MapSettings(predictor=predictor, loops="off"))
    with load_map(out) as scene_map:
        true = scene_map.true_trajectory()
        has_loops = not loops or scene_map.searches()
    if not has_loops:
        refine_map(out)
    assert true is not None
    return true


def _refined(out: Path, loops: bool, priors: PriorSettings) -> dict[str, Any]:
    return refine_map(out, RefineSettings(loops=loops, priors=priors), name=_NAME)


def _cut(out: Path) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """(k,) whether each position was cut, and which line of the file without its head it is."""
    with open(out / f"priors-{_NAME}.csv") as file:
        rows = list(csv.DictReader(file))
    lines = [int(row["entry"].split()[1]) - 2 for row in rows]
    return np.array([row["accepted"] == "no" for row in rows]), np.array(lines)


def _ate(estimated: Float, true: Float, with_scale: bool) -> float:
    aligned = umeyama(estimated, true, with_scale=with_scale).apply(estimated)
    return float(np.sqrt(((aligned - true) ** 2).sum(1).mean()))


def _within(refined: Trajectory, error: Float) -> float:
    """Share of frames whose true position (off by error (n, 3), world axes) is in the 95 % ellipsoid."""
    assert refined.covariance is not None
    told = np.isfinite(refined.covariance).all((1, 2))
    covariance = refined.covariance[told][:, 3:, 3:]
    square = np.einsum("ki,kij,kj->k", error[told], np.linalg.inv(covariance), error[told])
    return float((square <= chi2.isf(0.05, 3)).mean())


if __name__ == "__main__":
    commands = (gnss, floor, online, distances, tapes, height, speeds, cost)
    tyro.extras.subcommand_cli_from_dict({command.__name__: command for command in commands})
