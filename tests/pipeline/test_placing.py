"""Maps that positions place while they grow: when, how sure, told as events, kept, resumed, exported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from anchor3r import load_map, map_source, refine_map
from anchor3r.cli.main import main
from anchor3r.errors import Anchor3RError
from anchor3r.geodesy import WORLD_FROM_LOCAL, Datum
from anchor3r.geometry import so3_exp, umeyama
from anchor3r.pipeline.knowledge import PriorSettings, gather
from anchor3r.pipeline.mapper import Mapper, Update
from anchor3r.pipeline.mapping import MappingRun, predictor_of
from anchor3r.pipeline.placing import OnlinePlacer, PositionSettings
from anchor3r.pipeline.settings import MapSettings, RefineSettings
from anchor3r.pose_graph.coarse import Corrections
from anchor3r.pose_graph.correction import OnlineCorrection
from anchor3r.pose_graph.online_placement import (
    OnlinePlacement,
    OnlinePlacementConfig,
    PositionedPath,
    place_online,
)
from anchor3r.sources import open_source
from anchor3r.store import Map
from anchor3r.trajectory import FramePose, Trajectory

WORLD = "world:5?motion=grid&frames=200&width=64&height=48"
SETTINGS = MapSettings(predictor="ground-truth:0.2,0.02", keep_images=False)
DATUM = Datum(latitude_deg=48.14, longitude_deg=11.58, altitude_m=520.0)
SCALE, NOISE_M, CLOCK_S = 3.0, 0.5, 100.0
CONFIG = OnlinePlacementConfig()
AT_CAMERA = np.zeros(3)


def write_positions(path: Path, times: np.ndarray, true: np.ndarray, seed: int = 0) -> None:
    """Noisy positions along the true way in a larger world, every ninth wrong, by a clock that is behind."""
    rng = np.random.default_rng(seed)
    local = SCALE * true @ so3_exp([0.0, 0.7, 0.0]).T @ WORLD_FROM_LOCAL
    moments = np.arange(times[0] + 0.02, times[-1], 0.15)
    position = np.stack([np.interp(moments, times, axis) for axis in local.T], 1)
    position += NOISE_M * rng.normal(size=position.shape)
    position[4::9] += 40 * np.sign(rng.normal(size=(len(position[4::9]), 3)))
    rows = [
        f"{moment - CLOCK_S:.6f},{lat:.10f},{lon:.10f},{up:.4f},{NOISE_M}"
        for moment, (lat, lon, up) in zip(moments, DATUM.to_geodetic(position), strict=True)
    ]
    path.write_text("\n".join(["time,latitude,longitude,altitude,sigma", *rows]))


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MapSettings, list[Update]]:
    """A map that was placed as it grew, how it was made, and all that was told."""
    folder = tmp_path_factory.mktemp("placed")
    with open_source(WORLD) as source:
        times = np.array([source.read(k).timestamp_s for k in range(200)])
        poses = [source.read(k).camera_from_world for k in range(200)]
    write_positions(folder / "gnss.csv", times, np.array([pose.center() for pose in poses if pose]))
    positions = PositionSettings(gnss=str(folder / "gnss.csv"), gnss_offset=CLOCK_S)
    settings, told = replace(SETTINGS, positions=positions), []
    map_source(WORLD, folder / "map", settings, on_update=told.append)
    return folder / "map", settings, told


def best_scale(scene_map: Map, last: int) -> float:
    """Metres a length of the map, by the truth of the frames up to one."""
    online, true = scene_map.trajectory(placed=False), scene_map.true_trajectory()
    assert true is not None
    which = slice(0, last + 1)
    return SCALE * float(umeyama(online.center[which], true.center[which]).scale)


def test_a_map_becomes_metric_as_soon_as_positions_determine_it(
    drive: tuple[Path, MapSettings, list[Update]],
) -> None:
    folder, _, told = drive
    events = [(update.frame, update.placement) for update in told if update.placement is not None]
    assert 10 < events[0][0] < 100
    with load_map(folder) as scene_map:
        for frame, placement in events:
            assert placement.is_determined(CONFIG)
            off = np.log(placement.scale / best_scale(scene_map, frame))
            assert abs(off) < 3.5 * placement.scale_sigma
        last = events[-1][1]
        assert last.scale_sigma < events[0][1].scale_sigma < 0.05
        assert scene_map.units("online") == "m"
        datum, trajectory = scene_map.datum("online"), scene_map.trajectory()
        true, plain = scene_map.true_trajectory(), scene_map.trajectory(placed=False)
        assert scene_map.placed_since() == events[0][0]
        assert scene_map.placements()[0].to_bytes() == last.to_bytes()
    assert datum is not None
    assert true is not None
    local = SCALE * true.center @ so3_exp([0.0, 0.7, 0.0]).T @ WORLD_FROM_LOCAL
    found = DATUM.to_local(datum.to_geodetic(trajectory.center @ WORLD_FROM_LOCAL))
    assert np.sqrt(((found - local) ** 2).sum(1).mean()) < 2 * NOISE_M
    # Updates are told in lengths of the map; the event brings them where the map has them.
    pose = told[-1].pose
    assert pose is not None
    assert_array_equal(pose.center, plain.center[-1])
    placed = last.apply_to_pose(pose)
    assert_allclose(placed.center, trajectory.center[-1])
    assert_allclose(placed.rotation, trajectory.rotation[-1])
    assert placed.log_scale == pytest.approx(trajectory.log_scale[-1])
    assert trajectory.covariance is not None
    assert_allclose(placed.covariance, trajectory.covariance[-1])


def test_a_run_that_is_resumed_is_placed_bit_for_bit(
    drive: tuple[Path, MapSettings, list[Update]], tmp_path: Path
) -> None:
    folder, settings, told = drive
    for stop in (31, 97, 150):
        with (
            open_source(WORLD) as source,
            MappingRun(source, predictor_of(settings), tmp_path / "m", settings, resume=True) as run,
        ):
            for update in run:
                if update.frame == stop:
                    break
    events = []
    map_source(WORLD, tmp_path / "m", settings, resume=True, on_update=events.append)
    with load_map(folder) as one, load_map(tmp_path / "m") as other:
        assert one.placements()[0].to_bytes() == other.placements()[0].to_bytes()
        assert one.placed_since() == other.placed_since()
        assert_array_equal(one.trajectory().center, other.trajectory().center)
    late = {update.frame: update.placement.to_bytes() for update in events if update.placement is not None}
    for update in told:
        if update.placement is not None and update.frame in late:
            assert late[update.frame] == update.placement.to_bytes()
    other_clock = replace(settings, positions=replace(settings.positions, gnss_offset=0.0))
    with pytest.raises(Anchor3RError, match="positions"):
        map_source(WORLD, tmp_path / "m", other_clock, resume=True)


def test_the_command_line_says_how_sure_the_scale_is_and_exports_are_on_the_earth(
    drive: tuple[Path, MapSettings, list[Update]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, settings, _ = drive
    arguments = ["map", WORLD, "--out", str(tmp_path / "m"), "--predictor", SETTINGS.predictor]
    arguments += ["--no-keep-images", "--gnss", str(settings.positions.gnss), "--gnss-offset", str(CLOCK_S)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "the map is in metres: scale known to 0." in out
    assert "origin at 48.14" in out
    folder = str(tmp_path / "m")
    assert main(["export", folder, "--format", "geojson", "--out", str(tmp_path / "p.json")]) == 0
    line = json.loads((tmp_path / "p.json").read_text())["features"][0]["geometry"]["coordinates"]
    with load_map(tmp_path / "m") as scene_map:
        true = scene_map.true_trajectory()
    assert true is not None
    start = DATUM.to_geodetic(SCALE * true.center[0] @ so3_exp([0.0, 0.7, 0.0]).T @ WORLD_FROM_LOCAL)
    assert line[0][:2] == pytest.approx(start[[1, 0]], abs=2e-5)
    assert main(["report", folder, "--out", str(tmp_path / "r.html")]) == 0
    assert "scale known to" in (tmp_path / "r.html").read_text()


def test_refinement_is_that_of_a_map_without_placement(
    drive: tuple[Path, MapSettings, list[Update]], tmp_path: Path
) -> None:
    folder, _, _ = drive
    map_source(WORLD, tmp_path / "plain", SETTINGS)
    for made in (folder, tmp_path / "plain"):
        refine_map(made, RefineSettings(loops=False))
    with load_map(folder) as placed, load_map(tmp_path / "plain") as plain:
        assert_array_equal(placed.trajectory("offline").center, plain.trajectory("offline").center)
        assert placed.units("offline") == "units"


def test_what_places_nothing_says_why(
    drive: tuple[Path, MapSettings, list[Update]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, settings, _ = drive
    short = ["map", WORLD.replace("200", "20"), "--out", str(tmp_path / "m"), "--overwrite", "--gnss"]
    short += [str(settings.positions.gnss), "--predictor", SETTINGS.predictor]
    assert main(short) == 0
    assert "WARNING: the map is not placed: none of the" in capsys.readouterr().out
    short[1] = WORLD.replace("200", "12")
    assert main([*short, "--gnss-offset", str(CLOCK_S)]) == 0
    assert "the map is not placed: it takes 10 positions" in capsys.readouterr().out
    assert main([*short, "--gnss-offset", "auto"]) == 1
    assert "estimates the offset in a finished map" in capsys.readouterr().err
    assert main(["map", WORLD, "--out", str(tmp_path / "none"), "--gnss", str(tmp_path / "none.csv")]) == 1
    assert not (tmp_path / "none").exists()


def straight(count: int, length: float, noise: float, seed: int, swerve: float = 0.0) -> PositionedPath:
    """A way along x that a camera looks along, measured ten times as large, with white and slow noise."""
    rng = np.random.default_rng(seed)
    along = np.linspace(0, length, count)
    center = np.stack([along, 0 * along, swerve * np.sin(np.arange(count) * 6 / count)], 1)
    rotation = np.tile(np.array([[0.0, 0, -1], [0, 1, 0], [1, 0, 0]]), (count, 1, 1))
    slow, memory = rng.normal(size=(count, 3)), np.exp(-1 / 30)
    for k in range(1, count):
        slow[k] = memory * slow[k - 1] + np.sqrt(1 - memory**2) * slow[k]
    error = noise * (rng.normal(size=(count, 3)) + 0.5 * slow)
    position = 10 * center @ so3_exp([0.0, 1.0, 0.0]).T + error
    return PositionedPath(center, rotation, position, np.full((count, 3), noise), np.arange(float(count)))


def placed(path: PositionedPath, *, known: bool = True, antenna: np.ndarray = AT_CAMERA) -> OnlinePlacement:
    found = place_online(
        path, 0, is_spread_known=known, antenna_in_camera=antenna, datum=None, config=CONFIG
    )  # fmt: skip
    assert found is not None
    return found


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("swerve", [0.0, 1.0])
def test_spreads_hold_the_truth(known: bool, swerve: float) -> None:
    """In 300 draws scale and heading are within two spreads about as often as they should (95 %)."""
    within = []
    for seed in range(300):
        found = placed(straight(40, 5.0, 1.0, seed, swerve), known=known)
        turn = found.rotation @ so3_exp([0.0, 1.0, 0.0]).T
        heading = np.degrees(np.arctan2(turn[0, 2] - turn[2, 0], turn[0, 0] + turn[2, 2]))
        within.append([abs(np.log(found.scale / 10)) < 2 * found.scale_sigma,
                       abs(heading) < 2 * found.heading_sigma_deg])  # fmt: skip
        assert found.is_upright_assumed == (swerve == 0)
    assert np.all(np.mean(within, 0) > 0.92)
    assert np.all(np.mean(within, 0) < 0.99)


def test_a_short_way_determines_nothing_and_a_long_one_does() -> None:
    assert not placed(straight(40, 0.5, 1.0, 0)).is_determined(CONFIG)
    assert placed(straight(40, 10.0, 1.0, 0)).is_determined(CONFIG)
    few, still = straight(9, 10.0, 1.0, 0), straight(40, 0.0, 1.0, 0)
    for path in (few, still):
        assert place_online(
            path, 0, is_spread_known=True, antenna_in_camera=np.zeros(3), datum=None, config=CONFIG
        ) is None  # fmt: skip


def test_an_antenna_is_not_the_camera() -> None:
    antenna = np.array([0.0, -2.0, -30.0])
    path = straight(60, 10.0, 0.1, 0, 2.0)
    world_from_camera = so3_exp([0.0, 1.0, 0.0]) @ np.swapaxes(path.rotation, 1, 2)
    moved = path._replace(position=path.position + world_from_camera @ antenna)
    found = placed(moved, antenna=antenna)
    error = found.world_from_map.apply(path.center) - 10 * path.center @ so3_exp([0.0, 1.0, 0.0]).T
    assert np.linalg.norm(error, axis=1).max() < 0.3


def write_local(path: Path, track: PositionedPath) -> None:
    """As metres in a frame of their own, z up."""
    lines = zip(track.moment_s, track.position, track.sigma, strict=True)
    rows = [f"{moment:.1f},{x},{z},{-y},{sigma[0]}" for moment, (x, y, z), sigma in lines]
    path.write_text("\n".join(["time,x,y,z,sigma", *rows]))


def stretched(factor: float) -> OnlineCorrection:
    """By loops that were closed: everything about frame 0."""
    moves = Corrections(np.eye(3)[None], np.zeros((1, 3)), np.zeros((1, 3)), np.log([factor]))
    start = np.array([0])
    return OnlineCorrection(start, start, start, moves)


def test_closed_loops_move_the_positions_that_were_seen(tmp_path: Path) -> None:
    """A path that loops stretch by two is placed anew with half the scale, at once; after its end too."""
    path = straight(60, 10.0, 0.1, 0, 2.0)
    write_local(tmp_path / "p.csv", path)
    placer = OnlinePlacer(PositionSettings(gnss=str(tmp_path / "p.csv")))
    told: list[OnlinePlacement] = []
    for k in range(60):
        pose = FramePose(frame=k, rotation=path.rotation[k], center=path.center[k])
        correction = stretched(2.0) if k == 55 else None
        center = path.center[k] * (2 if k >= 55 else 1)
        event = placer.observe(float(k), k, [pose], [replace(pose, center=center)], correction)
        told += [] if event is None else [event]
        if k == 30:
            again = OnlinePlacer(PositionSettings(gnss=str(tmp_path / "p.csv")))
            again.restore(placer.snapshot())
            placer = again
        if k == 55:
            assert event is not None
    assert told[0].scale == pytest.approx(10, rel=0.02)
    assert told[-1].scale == pytest.approx(5, rel=0.02)
    assert told[-1].datum is None
    amended = placer.amend(stretched(4.0))
    assert amended is not None
    assert amended.scale == pytest.approx(2.5, rel=0.02)
    assert OnlinePlacer(PositionSettings(gnss=str(tmp_path / "p.csv"))).amend(stretched(4.0)) is None


def test_many_positions_are_thinned_and_still_tell(tmp_path: Path) -> None:
    path = straight(3000, 10.0, 1.0, 0, 2.0)
    write_local(tmp_path / "p.csv", path)
    placer = OnlinePlacer(PositionSettings(gnss=str(tmp_path / "p.csv")))
    for k in range(3000):
        pose = FramePose(frame=k, rotation=path.rotation[k], center=path.center[k])
        placer.observe(float(k), k, [pose], [pose], None)
        assert len(placer.snapshot()["fix"]) <= CONFIG.max_positions if k % 500 == 499 else True
    assert placer.lack() is None


def test_photographs_in_any_order_are_placed_by_their_geotags(tmp_path: Path) -> None:
    """Files whose names do not sort them by time, of two sets that no match relates."""
    path = straight(40, 10.0, 0.1, 0, 2.0)
    write_local(tmp_path / "tags.csv", path)
    settings = PositionSettings(gnss=str(tmp_path / "tags.csv"))
    placer = OnlinePlacer(settings, OnlinePlacementConfig(interval=1))
    order, told = np.random.default_rng(1).permutation(40), {}
    for frame, k in enumerate(order.tolist()):
        far = k >= 20  # the second set is half as large, and elsewhere
        center = 0.5 * path.center[k] + 7 if far else path.center[k]
        pose = FramePose(frame=frame, rotation=path.rotation[k], center=center, component=int(far))
        event = placer.observe(path.moment_s[k], frame, [pose], [pose], None)
        if event is not None:
            told[event.component] = event
    assert told[0].scale == pytest.approx(10, rel=0.05)
    assert told[1].scale == pytest.approx(20, rel=0.05)
    trajectory = Trajectory(
        frames=np.arange(40), timestamps_s=path.moment_s[order], center=path.center[order],
        rotation=path.rotation[order], component=np.zeros(40, np.int64),
    )  # fmt: skip
    known = gather(PriorSettings(gnss=settings.gnss), trajectory, trajectory.frames)
    assert known is not None
    (positions,) = known.known.kinds
    assert_array_equal(order[positions.rows], np.arange(40)[:, None].repeat(2, 1))


def test_a_mapper_without_a_store_tells_it_too(drive: tuple[Path, MapSettings, list[Update]]) -> None:
    _, settings, told = drive
    mapper = Mapper(predictor_of(settings), placer=OnlinePlacer(settings.positions))
    with open_source(WORLD) as source:
        events = [update for update in mapper.run(source) if update.placement is not None]
    first = next(update for update in told if update.placement is not None)
    assert first.placement is not None
    assert events[0].placement is not None
    assert events[0].placement.to_bytes() == first.placement.to_bytes()
