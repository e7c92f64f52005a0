"""Maps that priors give metres and a place: through the command line, and what is refused."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import laspy
import numpy as np
import pycolmap
import pyproj
import pytest

from anchor3r import load_map, map_source
from anchor3r.cli.main import main
from anchor3r.errors import Anchor3RError
from anchor3r.geodesy import WORLD_FROM_LOCAL, Datum
from anchor3r.geometry import quat_from_rotation, so3_exp
from anchor3r.pipeline.knowledge import MapKnowledge, PriorSettings, gather
from anchor3r.pipeline.placing import GNSS_SIGMA_M
from anchor3r.pipeline.settings import MapSettings
from anchor3r.report.picture import scenes_of
from anchor3r.worlds.world import WorldConfig, make_world

NOISE_M = 0.5
CLOCK_S = 0.25
DATUM = Datum(latitude_deg=48.14, longitude_deg=11.58, altitude_m=520.0)
SCALE = 3.0
"""Of the world that positions are measured in, against the one that the map was made in."""


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drive") / "map"
    map_source(
        "world:5?motion=grid&frames=240&width=64&height=48",
        folder,
        MapSettings(predictor="ground-truth:0.2,0.02", keep_images=False),
    )
    return folder


@pytest.fixture
def folder(drive: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(drive, tmp_path / "map"))


def places(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Times (n,) of the frames, and where they really are: east, north, up (n, 3), in a larger world."""
    with load_map(folder) as scene_map:
        true = scene_map.true_trajectory()
    assert true is not None
    assert true.timestamps_s is not None
    east_down_north = SCALE * true.center @ so3_exp([0.0, 0.7, 0.0]).T
    return true.timestamps_s, east_down_north @ WORLD_FROM_LOCAL


def write_fixes(path: Path, times: np.ndarray, local: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """Noisy positions at half frames, some wrong by far, by a clock that is behind; which are wrong."""
    rng = np.random.default_rng(seed)
    moments = (times[5:-15:4] + times[6:-14:4]) / 2 + 0.37 * (times[1] - times[0])
    position = np.stack([np.interp(moments, times, axis) for axis in local.T], 1)
    position += NOISE_M * rng.normal(size=position.shape)
    wrong = np.zeros(len(moments), bool)
    wrong[3::9] = True
    position[wrong] += 40 * np.sign(rng.normal(size=(int(wrong.sum()), 3)))
    geodetic = DATUM.to_geodetic(position)
    rows = [
        f"{moment - CLOCK_S:.6f},{lat:.10f},{lon:.10f},{up:.4f},{NOISE_M}"
        for moment, (lat, lon, up) in zip(moments, geodetic, strict=True)
    ]
    path.write_text("\n".join(["time,latitude,longitude,altitude,sigma", *rows]))
    return wrong


def refine(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    assert main(["refine", *map(str, arguments), "--no-loops", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_positions_place_a_map_though_some_are_wrong_and_the_clock_is_off(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times, local = places(folder)
    wrong = write_fixes(tmp_path / "gnss.csv", times, local)
    summary = refine(capsys, folder, "--gnss", tmp_path / "gnss.csv", "--gnss-offset", "auto")
    assert summary["units"] == "m"
    true_length = np.linalg.norm(np.diff(local, axis=0), axis=1).sum()
    assert summary["path_length"] == pytest.approx(true_length, rel=0.02)
    assert summary["moved_max"] < 0.05 * true_length  # that it became metres is no motion
    assert abs(summary["clock_offset_s"] - CLOCK_S) < 4 * summary["clock_offset_sigma_s"] < 0.4
    with open(folder / "priors.csv") as file:
        table = list(csv.DictReader(file))
    cut = np.array([row["accepted"] == "no" for row in table])
    assert len(cut) == summary["priors"][0]["priors"]
    entries = np.array([int(row["entry"].split()[1]) - 2 for row in table])
    assert cut[wrong[entries]].all()
    assert cut[~wrong[entries]].sum() <= 1
    with load_map(folder) as scene_map:
        datum, trajectory = scene_map.datum("offline"), scene_map.trajectory("offline")
    assert datum is not None
    found = DATUM.to_local(datum.to_geodetic(trajectory.center @ WORLD_FROM_LOCAL))
    error = np.linalg.norm(found - local, axis=1)
    assert np.sqrt((error**2).mean()) < NOISE_M
    assert trajectory.covariance is not None
    covariance = trajectory.covariance[:, 3:, 3:]
    away = (found - local) @ WORLD_FROM_LOCAL.T
    normalised = np.einsum("ki,kij,kj->k", away, np.linalg.inv(covariance), away)
    assert 0.1 < normalised.mean() / 3 < 4  # errors of one short drive are few independent ones
    assert np.sqrt(np.linalg.eigvalsh(covariance)).max() < 2 * NOISE_M
    assert main(["export", str(folder), "--format", "geojson", "--out", str(tmp_path / "path.json")]) == 0
    line = json.loads((tmp_path / "path.json").read_text())["features"][0]["geometry"]["coordinates"]
    assert line[0][:2] == pytest.approx(DATUM.to_geodetic(local[0])[[1, 0]], abs=1e-5)


def write_exact_fixes(path: Path, times: np.ndarray, local: np.ndarray, *, exchanged: bool = False) -> None:
    """At moments of frames, by a clock that is exactly three frames behind."""
    rows = np.arange(10, len(times) - 10, 4)
    rng = np.random.default_rng(0)
    geodetic = DATUM.to_geodetic(local[rows] + NOISE_M * rng.normal(size=(len(rows), 3)))
    geodetic = geodetic[:, [1, 0, 2]] if exchanged else geodetic
    lines = [
        f"{float(times[row - 3])!r},{latitude:.10f},{longitude:.10f},{up:.4f},{NOISE_M}"
        for row, (latitude, longitude, up) in zip(rows, geodetic, strict=True)
    ]
    path.write_text("\n".join(["time,latitude,longitude,altitude,sigma", *lines]))


def test_a_clock_is_found_by_positions_at_the_very_moments_of_frames(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times, local = places(folder)
    write_exact_fixes(tmp_path / "gnss.csv", times, local)
    summary = refine(capsys, folder, "--gnss", tmp_path / "gnss.csv", "--gnss-offset", "auto")
    late_s = 3 * (times[1] - times[0])
    assert abs(summary["clock_offset_s"] - late_s) < 4 * summary["clock_offset_sigma_s"] < 0.4


def test_a_clock_of_another_epoch_is_found_from_a_stated_start(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times, local = places(folder)
    write_fixes(tmp_path / "here.csv", times, local)
    head, *rows = (tmp_path / "here.csv").read_text().splitlines()
    moments = [row.split(",", 1) for row in rows]
    later = [f"{float(moment) + 1.7e9:.6f},{rest}" for moment, rest in moments]
    (tmp_path / "gnss.csv").write_text("\n".join([head, *later]))
    arguments = ["--gnss", tmp_path / "gnss.csv", "--gnss-offset"]
    summary = refine(capsys, folder, *arguments, "auto:-1699999999.5")
    offset_s = summary["clock_offset_s"] + 1.7e9
    assert abs(offset_s - CLOCK_S) < 4 * summary["clock_offset_sigma_s"] < 0.4
    arguments = ["refine", folder, "--no-loops", *arguments, "auto:-1700000001.2"]
    assert main([*map(str, arguments)]) == 0
    assert "refine again with --gnss-offset auto:-1699999999." in capsys.readouterr().out


def test_an_antenna_beside_the_camera_does_not_move_the_map(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times, local = places(folder)
    with load_map(folder) as scene_map:
        true = scene_map.true_trajectory()
    assert true is not None
    antenna = np.array([0.5, -1.0, -6.0])
    arm = np.swapaxes(true.rotation, 1, 2) @ antenna @ so3_exp([0.0, 0.7, 0.0]).T @ WORLD_FROM_LOCAL
    write_fixes(tmp_path / "gnss.csv", times, local + arm)
    errors = []
    for stated in (antenna, np.zeros(3)):
        refine(
            capsys, folder, "--gnss", tmp_path / "gnss.csv", "--gnss-offset", CLOCK_S, "--antenna", *stated
        )
        with load_map(folder) as scene_map:
            datum, trajectory = scene_map.datum("offline"), scene_map.trajectory("offline")
        assert datum is not None
        found = DATUM.to_local(datum.to_geodetic(trajectory.center @ WORLD_FROM_LOCAL))
        errors.append(np.sqrt(((found - local) ** 2).sum(1).mean()))
    assert errors[0] < NOISE_M < errors[1]


def test_exchanged_latitude_and_longitude_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times, local = places(folder)
    path = tmp_path / "gnss.csv"
    write_exact_fixes(path, times, local, exchanged=True)
    assert main(["refine", str(folder), "--no-loops", "--gnss", str(path)]) == 1
    said = capsys.readouterr().err
    assert "latitude and longitude seem to be exchanged" in said
    assert "line 2 to line" in said
    write_exact_fixes(path, times, local)
    refine(capsys, folder, "--gnss", path)


@pytest.mark.parametrize("offset", ["auto:-0.5", "auto:0.5", "auto:1"])
def test_a_clock_that_is_off_does_not_exchange_coordinates(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], offset: str
) -> None:
    times, local = places(folder)
    write_fixes(tmp_path / "gnss.csv", times, local)
    summary = refine(capsys, folder, "--gnss", tmp_path / "gnss.csv", "--gnss-offset", offset)
    assert abs(summary["clock_offset_s"] - CLOCK_S) < 4 * summary["clock_offset_sigma_s"] < 0.4


def test_a_camera_that_stands_still_leaves_the_scale_open(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times, local = places(folder)
    standing = np.tile(local[100], (len(local), 1))
    write_fixes(tmp_path / "gnss.csv", times, standing)  # wrong ones by far, so that it seems to go somewhere
    assert main(["refine", str(folder), "--no-loops", "--gnss", str(tmp_path / "gnss.csv")]) == 1
    assert "leaves the scale of the map open" in capsys.readouterr().err


def test_distances_and_speeds_give_metres(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times, local = places(folder)
    taped = [(3, 40), (100, 160)]
    options = [
        text
        for a, b in taped
        for text in ("--distance", str(a), str(b), f"{np.linalg.norm(local[a] - local[b]):.3f}")
    ]
    speed = np.linalg.norm(np.diff(local, axis=0), axis=1) / np.diff(times)
    middle = (times[1:] + times[:-1]) / 2
    (tmp_path / "speed.txt").write_text(
        "\n".join(f"{t:.5f} {v:.4f}" for t, v in zip(middle, speed, strict=True))
    )
    for arguments in (options, ["--speed", str(tmp_path / "speed.txt")]):
        summary = refine(capsys, folder, *arguments)
        assert summary["units"] == "m"
        with load_map(folder) as scene_map:
            trajectory, online = scene_map.trajectory("offline"), scene_map.trajectory()
        length = np.linalg.norm(np.diff(trajectory.center, axis=0), axis=1).sum()
        true_length = np.linalg.norm(np.diff(local, axis=0), axis=1).sum()
        assert length == pytest.approx(true_length, rel=0.02)
        np.testing.assert_allclose(trajectory.center[0], online.center[0], atol=1e-2)


@pytest.mark.parametrize("poses", [2, 6])
def test_surveyed_cameras_place_a_map(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], poses: int
) -> None:
    _, local = places(folder)
    with load_map(folder) as scene_map:
        true = scene_map.true_trajectory()
    assert true is not None
    world_from_true = so3_exp([0.0, 0.7, 0.0])
    frames = np.linspace(5, 230, 8).astype(int)
    lines = []
    for k, frame in enumerate(frames):
        text = [str(frame), *(f"{value:.4f}" for value in local[frame])]
        if k < poses:
            camera_in_local = WORLD_FROM_LOCAL.T @ world_from_true @ true.rotation[frame].T
            w, x, y, z = quat_from_rotation(camera_in_local)
            text += [f"{value:.7f}" for value in (x, y, z, w)]
        if k == 4:
            text[1] = f"{local[frame][0] + 30:.4f}"  # a mistake
        lines.append(" ".join([*text, "0.05"]))
    (tmp_path / "surveyed.txt").write_text("\n".join(lines))
    summary = refine(capsys, folder, "--surveyed", tmp_path / "surveyed.txt")
    assert summary["units"] == "m"
    with open(folder / "priors.csv") as file:
        cut = [row["entry"] for row in csv.DictReader(file) if row["accepted"] == "no"]
    assert cut == ["line 5"]
    with load_map(folder) as scene_map:
        trajectory = scene_map.trajectory("offline")
    error = np.linalg.norm(trajectory.center @ WORLD_FROM_LOCAL - local, axis=1)
    assert np.sqrt((error**2).mean()) < 0.5


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--distance", "3", "3", "1"], "two different frames"),
        (["--distance", "3", "9999", "1"], "frame 9999 has no pose"),
        (["--distance", "3", "9", "nan"], "positive number"),
        (["--distance", "3:1,2", "3:1,2", "1"], "two different frames, or pixels"),
        (["--distance", "3", "9:x", "1"], "9:x is no end of a distance"),
        (["--distance", "3:64,2", "9", "1"], "has 64×48 pixels"),
        (["--gnss", "none.csv"], "No such file"),
        (["--gnss", "far.csv"], "no time in common"),
        (["--gnss", "far.csv"], "--gnss-offset SECONDS (-1000000000.0 if both begin at once)"),
        (["--gnss", "milli.csv"], "milliseconds?"),
        (["--gnss", "nan.csv"], "line 4 of nan.csv has a position that is not a number"),
        (["--gnss", "far.csv", "--gnss-offset", "auto:soon"], "seconds, auto or auto:SECONDS"),
        (["--speed", "far.txt"], "write times of the frames into the file"),
        (["--gnss", "still.csv"], "tell neither scale nor direction"),
        (["--gnss", "few.csv"], "it takes 4"),
        (["--gnss", "far.csv", "--gnss-sigma", "0"], "must lie in 1e-09 … 1e+09"),
        (["--distance", "3", "9", "1", "--method", "paper"], "priors need method joint"),
        (["--surveyed", "two.txt"], "leave the map's scale or direction open"),
        (["--surveyed", "gone.txt"], "frame 9999 has no pose"),
        (["--surveyed", "odd.txt"], "line 1 of odd.txt has 4 numbers"),
        (["--surveyed", "nan.txt"], "not a number"),
        (["--surveyed", "quaternion.txt"], "no unit quaternion"),
        (["--surveyed", "two.txt", "--gnss", "far.csv"], "choose one of them"),
        (["--camera-height", "0"], "metres between 0.001 and 100"),
        (["--camera-height", "nan"], "metres between 0.001 and 100"),
    ],
)
def test_what_cannot_place_a_map_is_refused_and_changes_nothing(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    head = "time,latitude,longitude,altitude,sigma\n"
    Path("far.csv").write_text(head + "".join(f"{1e9 + k},48,11.{k},0,1\n" for k in range(9)))
    Path("milli.csv").write_text(head + "".join(f"{1e9 + 5e4 * k},48,11.{k},0,1\n" for k in range(9)))
    rows = [f"{0.5 + 0.2 * k},{'nan' if k == 2 else 48},11.{k},0,1\n" for k in range(9)]
    Path("nan.csv").write_text(head + "".join(rows))
    Path("far.txt").write_text("1000000000 5\n1000000001 5\n")
    Path("still.csv").write_text(head + "".join(f"{0.5 + 0.2 * k},48,11,0,1\n" for k in range(9)))
    Path("few.csv").write_text(head + "0.5,48,11,0,1\n1,48.01,11,0,1\n")
    Path("two.txt").write_text("3 0 0 0 0.1\n9 1 0 0 0.1\n")
    Path("gone.txt").write_text("9999 0 0 0 0.1\n")
    Path("odd.txt").write_text("3 0 0 0\n")
    Path("nan.txt").write_text("3 0 nan 0 0.1\n")
    Path("quaternion.txt").write_text("3 0 0 0 1 1 0 0 0.1\n")
    assert main(["refine", str(folder), "--no-loops", *arguments]) == 1
    assert complaint in capsys.readouterr().err
    with load_map(folder) as scene_map:
        assert scene_map.trajectory_names() == ["online"]


@pytest.mark.parametrize("seed", [1, 3])
def test_few_positions_without_spreads_are_not_believed_beyond_their_noise(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    times, local = places(folder)
    rows, rng = np.arange(10, 230, 12), np.random.default_rng(seed)
    geodetic = DATUM.to_geodetic(local[rows] + NOISE_M * rng.normal(size=(len(rows), 3)))
    lines = [
        f"{float(times[row])!r},{latitude:.10f},{longitude:.10f},{up:.4f}"
        for row, (latitude, longitude, up) in zip(rows, geodetic, strict=True)
    ]
    (tmp_path / "gnss.csv").write_text("\n".join(["time,latitude,longitude,altitude", *lines]))
    (kind,) = refine(capsys, folder, "--gnss", tmp_path / "gnss.csv")["priors"]
    assert kind["cut"] == 0
    assert 0.8 * NOISE_M < GNSS_SIGMA_M * kind["spread"] < 1.2 * NOISE_M


def test_exports_of_a_placed_map_are_in_metres_and_on_the_earth(folder: Path, tmp_path: Path) -> None:
    times, local = places(folder)
    write_exact_fixes(tmp_path / "gnss.csv", times, local)
    offset = str(3 * (times[1] - times[0]))
    gnss = ["--gnss", str(tmp_path / "gnss.csv"), "--gnss-offset", offset]
    assert main(["refine", str(folder), "--no-loops", *gnss]) == 0
    for form in ("geojson", "gpx", "kml", "laz", "colmap", "nerfstudio"):
        assert main(["export", str(folder), "--format", form, "--out", str(tmp_path / f"o.{form}")]) == 0
    true = DATUM.to_geodetic(local)
    line = json.loads((tmp_path / "o.geojson").read_text())["features"][0]["geometry"]["coordinates"]
    gpx = [
        [float(p.attrib["lon"]), float(p.attrib["lat"]), float(p.find("{*}ele").text)]
        for p in ElementTree.parse(tmp_path / "o.gpx").iterfind(".//{*}trkpt")
    ]
    (text,) = [e.text for e in ElementTree.parse(tmp_path / "o.kml").iterfind(".//{*}coordinates")]
    kml = [[float(number) for number in triple.split(",")] for triple in text.split()]
    for path in (line, gpx, kml):
        found = DATUM.to_local(np.array(path)[:, [1, 0, 2]])
        assert np.linalg.norm(found - DATUM.to_local(true), axis=1).max() < 3 * NOISE_M
    cloud = laspy.read(tmp_path / "o.laz")
    assert cloud.header.parse_crs().to_epsg() == 32632
    to_utm = pyproj.Transformer.from_crs(4326, 32632, always_xy=True)
    east, north = to_utm.transform(true[:, 1], true[:, 0])
    assert np.all(cloud.header.mins[:2] < [east.max(), north.max()])
    assert np.all(cloud.header.maxs[:2] > [east.min(), north.min()])
    apart = np.linalg.norm(local[200] - local[20])
    images = {i.name: i for i in pycolmap.Reconstruction(tmp_path / "o.colmap/sparse/0").images.values()}
    ends = [images[f"{k:06}.jpg"].projection_center() for k in (20, 200)]
    assert np.linalg.norm(ends[1] - ends[0]) == pytest.approx(apart, rel=0.02)
    frames = json.loads((tmp_path / "o.nerfstudio/transforms.json").read_text())["frames"]
    place = {f["file_path"]: np.array(f["transform_matrix"])[:3, 3] for f in frames}
    ends = [place[f"images/{k:06}.jpg"] for k in (20, 200)]
    assert np.linalg.norm(ends[1] - ends[0]) == pytest.approx(apart, rel=0.02)


def test_components_with_few_positions_are_left_where_they_are(folder: Path, tmp_path: Path) -> None:
    times, local = places(folder)
    write_exact_fixes(tmp_path / "gnss.csv", times, local)
    with load_map(folder) as scene_map:
        odometry = scene_map.odometry()
    late = len(times) - 20
    apart = replace(odometry, component=(np.arange(len(times)) >= late).astype(np.int64))
    settings = PriorSettings(gnss=str(tmp_path / "gnss.csv"))
    known = gather(settings, apart, odometry.frames)
    assert known is not None
    (positions,) = known.known.kinds
    assert positions.rows.max() < late
    assert 0 < known.left_out < 4
    assert known.unplaced(apart) == [1]
    scattered = replace(odometry, component=np.arange(len(times), dtype=np.int64))
    with pytest.raises(Anchor3RError, match="it takes 4 on one component"):
        gather(settings, scattered, odometry.frames)


def test_poses_of_which_a_component_is_not_placed_have_no_place_as_a_whole(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times, local = places(folder)
    write_exact_fixes(tmp_path / "gnss.csv", times, local)
    monkeypatch.setattr(MapKnowledge, "unplaced", lambda *_: [1])
    assert main(["refine", str(folder), "--no-loops", "--gnss", str(tmp_path / "gnss.csv")]) == 0
    assert "too little is known of components 1" in capsys.readouterr().out
    with load_map(folder) as scene_map:
        found = [(scene_map.units("offline", k), scene_map.datum("offline", k)) for k in (None, 0, 1)]
    assert [units for units, _ in found] == ["units", "m", "units"]
    assert [datum is None for _, datum in found] == [True, False, True]


def test_a_map_without_a_place_is_not_exported_to_globes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(folder), "--format", "kml", "--out", str(tmp_path / "path.kml")]) == 1
    assert "--gnss" in capsys.readouterr().err


def test_distances_that_contradict_one_another_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["refine", str(folder), "--no-loops", "--distance", "3", "40", "10", "--distance", "3", "40"]
    assert main([*arguments, "11"]) == 0
    out = capsys.readouterr().out
    assert "WARNING: these contradict one another" in out
    assert "distance 3 40 10" in out
    assert "distance 3 40 11" in out
    assert main([*arguments, "30"]) == 1
    said = capsys.readouterr().err
    assert "leaves the scale of the map open" in said
    assert "distance 3 40 30" in said
    assert main([*arguments, "10", "--distance", "3", "40", "12", "--distance", "50", "90", "3"]) == 0
    assert "cut, as the map contradicts them, the worst first: distance" in capsys.readouterr().out


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("street") / "map"
    source = "world:103?kind=street&motion=driving&frames=120&width=160&height=120"
    map_source(source, folder, MapSettings(predictor="ground-truth:0.02,0.01"))
    return folder


def test_a_known_height_of_the_camera_gives_metres(
    street: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(street, tmp_path / "map"))
    with load_map(folder) as scene_map:
        true = scene_map.true_trajectory()
    assert true is not None
    height = float(np.median(-true.center[:, 1]))  # the ground is at 0, down is positive
    summary = refine(capsys, folder, "--camera-height", SCALE * height)
    assert summary["units"] == "m"
    (kind,) = summary["priors"]
    assert kind["kind"] == "scale"
    assert kind["priors"] > 12
    with load_map(folder) as scene_map:
        trajectory = scene_map.trajectory("offline")
    way = np.linalg.norm(np.diff(trajectory.center, axis=0), axis=1).sum()
    true_way = SCALE * np.linalg.norm(np.diff(true.center, axis=0), axis=1).sum()
    assert way == pytest.approx(true_way, rel=0.02)
    assert summary["scale_sigma"] < 0.03
    assert main(["report", str(folder), "--out", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Priors</h2>" in page
    assert f"<b>{summary['scale_sigma']:.2%}</b>scale known to" in page
    with load_map(folder) as scene_map:
        (scene,) = scenes_of(scene_map, "offline")
    assert scene.metres_per_unit == 1
    beside = scene.paths["online"][0]  # drawn in the world of the poses that priors have placed
    assert np.linalg.norm(beside - trajectory.center, axis=1).max() < 0.05 * true_way


def test_distances_between_things_that_frames_show(
    street: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(street, tmp_path / "map"))
    with load_map(folder) as scene_map:
        true = scene_map.true_trajectory()
    assert true is not None
    options, world = [], make_world(WorldConfig(
        seed=103, kind="street", motion="driving", frames=120, width=160, height=120
    ))  # fmt: skip
    for a, b, (u, v) in [(10, 30, (80, 100)), (60, 80, (50, 100)), (100, 101, (100, 105))]:
        depth = world.render(b).depth_m[v, u]
        thing = world.intrinsics.unproject([u, v], depth) @ true.rotation[b] + true.center[b]
        metres = SCALE * np.linalg.norm(thing - true.center[a])
        options += ["--distance", a, f"{b}:{u},{v}", f"{metres:.4f}"]
    refine(capsys, folder, *options)
    with load_map(folder) as scene_map:
        trajectory = scene_map.trajectory("offline")
    way, true_way = (
        np.linalg.norm(np.diff(center, axis=0), axis=1).sum() for center in (trajectory.center, true.center)
    )
    assert way == pytest.approx(SCALE * true_way, rel=0.03)
    with open(folder / "priors.csv") as file:
        assert next(row["entry"] for row in csv.DictReader(file)).startswith("distance 10 30:80,100 ")


def test_where_there_is_no_ground_a_height_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "map"
    map_source("world:3?kind=open&motion=orbit&frames=60&width=96&height=72", folder, MapSettings(
        predictor="ground-truth:0.02,0.01"
    ))  # fmt: skip
    assert main(["refine", str(folder), "--no-loops", "--camera-height", "1.5"]) == 1
    assert "no ground was found" in capsys.readouterr().err
    with load_map(folder) as scene_map:
        assert scene_map.trajectory_names() == ["online"]
