"""Exports as the programs they are for read them: COLMAP, nerfstudio, LAS, GLB, PCD, EuRoC and g2o."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from pathlib import Path

import laspy
import numpy as np
import pycolmap
import pytest
import trimesh
from evo.tools import file_interface
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from anchor3r.cli import main as cli
from anchor3r.export.glb import GLB_FROM_MAP
from anchor3r.export.selection import map_clouds
from anchor3r.io.extras import install_command
from anchor3r.io.g2o import read_g2o
from anchor3r.io.las import LAS_FROM_MAP
from anchor3r.io.pointcloud import Cloud
from anchor3r.store import Map, MapWriter, load_map

FORMATS = ("tum", "kitti", "euroc", "g2o", "ply", "pcd", "las", "laz", "glb", "colmap", "nerfstudio")


def export(folder: Path, form: str, out: Path, *options: object) -> int:
    return cli.main([str(a) for a in ("export", folder, "--format", form, "--out", out, *options)])


def all_points(made: Map) -> Cloud:
    return Cloud.joined(list(map_clouds(made)))


def read_pcd(path: Path) -> tuple[dict[str, str], np.ndarray]:
    """The header by its keywords, and the records, as PCL's documentation describes them."""
    data, fields = path.read_bytes(), {}
    while data:
        line, _, data = data.partition(b"\n")
        word, _, rest = line.decode().partition(" ")
        if word != "#":
            fields[word] = rest
        if word == "DATA":
            break
    kinds = {"F": "f", "U": "u", "I": "i"}
    columns = zip(fields["FIELDS"].split(), fields["TYPE"].split(), fields["SIZE"].split(), strict=True)
    return fields, np.frombuffer(data, [(name, f"<{kinds[kind]}{size}") for name, kind, size in columns])


def test_pcd_holds_every_point(tmp_path: Path, street: Map) -> None:
    assert export(street.folder, "pcd", tmp_path / "c.pcd") == 0
    fields, points = read_pcd(tmp_path / "c.pcd")
    expected = all_points(street)
    assert fields["VERSION"] == "0.7"
    assert int(fields["WIDTH"]) * int(fields["HEIGHT"]) == int(fields["POINTS"]) == len(expected)
    assert_array_equal(np.stack([points[axis] for axis in "xyz"], 1), expected.points)
    packed = points["rgb"].copy().view("<u4")
    assert_array_equal(np.stack([packed >> 16 & 255, packed >> 8 & 255, packed & 255], 1), expected.colours)
    assert_array_equal(points["confidence"], expected.confidence)


@pytest.mark.parametrize("form", ["las", "laz"])
def test_laspy_reads_las_with_z_up(tmp_path: Path, street: Map, form: str) -> None:
    assert export(street.folder, form, tmp_path / f"c.{form}") == 0
    las, expected = laspy.read(tmp_path / f"c.{form}"), all_points(street)
    assert las.header.are_points_compressed == (form == "laz")
    assert_allclose(las.xyz, expected.points @ LAS_FROM_MAP.T, atol=1e-6 * np.ptp(expected.points))
    assert_array_equal(np.stack([las.red, las.green, las.blue], 1) // 257, expected.colours)
    assert_allclose(las.confidence, expected.confidence)
    below_the_camera = expected.points[:, 1] > 0
    assert (las.xyz[below_the_camera, 2] < 0).all()


def test_trimesh_reads_glb_with_points_path_and_cameras(tmp_path: Path, street: Map) -> None:
    assert export(street.folder, "glb", tmp_path / "c.glb", "--max-points", 500) == 0
    scene = trimesh.load(tmp_path / "c.glb")
    assert set(scene.graph.nodes_geometry) == {"points", "path", "cameras"}
    assert len(scene.geometry["points"].vertices) == 500
    trajectory = street.trajectory()
    assert_allclose(scene.geometry["path"].vertices[0], GLB_FROM_MAP @ trajectory.center[0], atol=1e-5)
    # A camera looks along -z there, so its corners lie before it on that side.
    corners = scene.geometry["cameras"].vertices - scene.geometry["path"].vertices[0]
    assert corners[:, 2].min() < 0


def test_pycolmap_reads_a_model_whose_points_reproject(tmp_path: Path, street: Map) -> None:
    out = tmp_path / "colmap"
    assert export(street.folder, "colmap", out, "--max-points", 3000) == 0
    model, trajectory = pycolmap.Reconstruction(out / "sparse" / "0"), street.trajectory()
    assert model.num_reg_images() == len(trajectory) == 11
    assert model.num_cameras() == 1
    assert 500 < model.num_points3D() <= 3000
    assert model.compute_mean_track_length() > 3
    assert model.compute_mean_reprojection_error() < 0.5
    poses = trajectory.camera_from_world.matrix()[:, :3]
    for k in range(len(trajectory)):
        image = model.image(k + 1)
        assert_allclose(image.cam_from_world().matrix(), poses[k], atol=1e-9)
        picture = Image.open(out / "images" / image.name)
        assert picture.size == (model.camera(1).width, model.camera(1).height) == (64, 48)
    expected = street.intrinsics(0)
    assert expected is not None
    # Half a pixel: COLMAP counts from the corner of the image.
    assert_allclose(model.camera(1).params, [expected.fx, expected.fy, expected.cx + 0.5, expected.cy + 0.5])


@pytest.fixture
def self_calibrated(tmp_path: Path, street_folder: Path) -> Path:
    """Five frames were mapped, and their depths made into points, with a focal length that is 30 % off."""
    folder = Path(shutil.copytree(street_folder, tmp_path / "map"))
    database = sqlite3.connect(folder / "map.sqlite")
    with database:
        for table, column in (("frames", "intrinsics"), ("points", "camera")):
            rows = database.execute(f"SELECT frame, {column} FROM {table} WHERE frame < 5").fetchall()
            for frame, text in rows:
                fx, fy, *rest = json.loads(text)
                wrong = json.dumps([1.3 * fx, 1.3 * fy, *rest])
                database.execute(
                    f"UPDATE {table} SET {column} = ?, checksum = NULL WHERE frame = ?", (wrong, frame)
                )
    database.close()
    return folder


def test_a_colmap_model_has_one_camera_though_it_became_known_on_the_way(
    tmp_path: Path, self_calibrated: Path, street_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = {}
    for name, folder, cameras in (
        ("one", self_calibrated, "one"), ("each", self_calibrated, "each"), ("true", street_folder, "one"),
    ):  # fmt: skip
        assert export(folder, "colmap", tmp_path / name, "--max-points", 3000, "--cameras", cameras) == 0
        models[name] = pycolmap.Reconstruction(tmp_path / name / "sparse" / "0")
    assert [model.num_cameras() for model in models.values()] == [1, 2, 1]
    assert_array_equal(models["one"].camera(1).params, models["true"].camera(1).params)
    errors = {name: model.compute_mean_reprojection_error() for name, model in models.items()}
    assert errors["one"] == pytest.approx(errors["true"], rel=0.02)
    assert capsys.readouterr().err.count("30% off the final one; for a more exact model map again with") == 1


def test_a_nerfstudio_cloud_is_that_of_its_one_camera(
    tmp_path: Path, self_calibrated: Path, street_folder: Path
) -> None:
    for name, folder in (("one", self_calibrated), ("true", street_folder)):
        assert export(folder, "nerfstudio", tmp_path / name, "--max-points", 3000) == 0
    texts = [(tmp_path / name / "transforms.json").read_text() for name in ("one", "true")]
    assert texts[0] == texts[1]
    points = [trimesh.load(tmp_path / name / "sparse_pc.ply").vertices for name in ("one", "true")]
    assert_allclose(points[0], points[1], atol=1e-3 * np.ptp(points[1]))


def test_tracks_join_frames_that_truly_see_the_same_point(tmp_path: Path, street: Map) -> None:
    """Every point of a track lies on the surface that each of its frames has in that pixel."""
    assert export(street.folder, "colmap", tmp_path / "c", "--max-points", 2000) == 0
    model, trajectory = pycolmap.Reconstruction(tmp_path / "c" / "sparse" / "0"), street.trajectory()
    depth = [street.points(frame).points_in_camera[..., 2] for frame in trajectory.frames]
    errors = []
    for point in model.points3D.values():
        views = [element.image_id for element in point.track.elements]
        assert len(set(views)) == len(views) >= 2
        for element in point.track.elements:
            image = model.image(element.image_id)
            u, v = np.floor(image.point2D(element.point2D_idx).xy).astype(int)
            z = (image.cam_from_world() * point.xyz)[2]
            errors.append(abs(z - depth[element.image_id - 1][v, u]) / z)
    assert np.max(errors) < 0.1
    assert np.median(errors) < 0.01


def test_nerfstudio_cameras_see_the_cloud(tmp_path: Path, street: Map) -> None:
    out = tmp_path / "ns"
    assert export(street.folder, "nerfstudio", out, "--frames", "keyframes", "--voxel", 0.2) == 0
    data = json.loads((out / "transforms.json").read_text())
    assert [frame["file_path"] for frame in data["frames"]] == [f"images/{k:06}.jpg" for k in (0, 5, 10)]
    cloud = trimesh.load(out / data["ply_file_path"])
    assert len(cloud.vertices) > 100
    frame = data["frames"][2]
    camera_from_world = np.linalg.inv(frame["transform_matrix"])
    point_map = street.points(10)
    assert point_map is not None
    seen = np.isfinite(point_map.points_in_camera).all(-1)
    world = street.trajectory().pose(10).to_world(point_map.points_in_camera[seen])
    x, y, z = (world @ camera_from_world[:3, :3].T + camera_from_world[:3, 3]).T
    # OpenGL: what is seen lies on the negative z axis, and y is up.
    v, u = np.nonzero(seen)
    assert (z < 0).all()
    assert_allclose(frame["fl_x"] * x / -z + frame["cx"], u + 0.5, atol=0.1)
    assert_allclose(frame["cy"] - frame["fl_y"] * y / -z, v + 0.5, atol=0.1)
    assert (frame["w"], frame["h"]) == Image.open(out / frame["file_path"]).size


def test_evo_reads_euroc_and_the_covariance_is_a_table(tmp_path: Path, street: Map) -> None:
    assert export(street.folder, "euroc", tmp_path / "t.csv", "--covariance") == 0
    loaded, trajectory = file_interface.read_euroc_csv_trajectory(tmp_path / "t.csv"), street.trajectory()
    assert_allclose(loaded.poses_se3, trajectory.world_from_camera.matrix(), atol=1e-8)
    assert_allclose(loaded.timestamps, trajectory.timestamps_s, atol=1e-9)
    table = np.genfromtxt(tmp_path / "t.csv.covariance.csv", delimiter=",", names=True)
    assert_array_equal(table["frame"], trajectory.frames)
    assert_allclose(table["rx_cz"], trajectory.covariance[:, 0, 5], rtol=1e-9)


def test_g2o_edges_are_in_the_unit_of_the_poses(tmp_path: Path, street_folder: Path) -> None:
    assert export(street_folder, "g2o", tmp_path / "g.g2o") == 0
    read = read_g2o(tmp_path / "g.g2o")
    with load_map(street_folder) as made:
        assert len(read.graph) == len(made.graph())
    edges = read.graph.edges
    row_i, row_t = (np.searchsorted(read.frames, frames) for frames in (edges.frame_i, edges.frame_t))
    i_from_t = read.camera_from_world[row_i] @ read.camera_from_world[row_t].inverse()
    assert_allclose(edges.translation, i_from_t.translation, atol=1e-6)


def test_images_come_from_the_source_or_else_from_the_map(
    tmp_path: Path, street_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for images, words in (("source", "from the source"), ("map", "from the map's copies")):
        out = tmp_path / images
        assert export(street_folder, "colmap", out, "--images", images, "--max-points", 500) == 0
        assert words in capsys.readouterr().out
    pictures = [np.asarray(Image.open(tmp_path / n / "images" / "000003.jpg")) for n in ("source", "map")]
    assert np.abs(pictures[0].astype(int) - pictures[1]).mean() < 4


@pytest.mark.parametrize(
    ("form", "options", "words"),
    [
        ("ply", ("--confidence", 1e6), "no points to write"),
        ("pcd", ("--confidence", 1e6), "no points to write"),
        ("las", ("--confidence", 1e6), "no points to write"),
        ("glb", ("--confidence", 1e6), "no points to write"),
        ("colmap", ("--confidence", 1e6), "lower --confidence"),
        ("nerfstudio", ("--confidence", 1e6), "no points to write"),
        ("ply", ("--poses", "offline"), "no 'offline' poses"),
        ("ply", ("--max-points", 0), "at least 1"),
        ("ply", ("--covariance",), "belongs to tum"),
        ("colmap", ("--voxel", 1), "merges points by itself"),
        ("g2o", ("--frames", "keyframes"), "falls apart"),
        ("tum", ("--component", 3), "no online poses in component 3"),
    ],
)
def test_what_cannot_be_written_is_said_and_leaves_nothing(
    tmp_path: Path,
    street_folder: Path,
    capsys: pytest.CaptureFixture[str],
    form: str,
    options: tuple,
    words: str,
) -> None:
    assert export(street_folder, form, tmp_path / "out", *options) == 1
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", FORMATS)
def test_places_that_cannot_be_written_and_empty_maps(
    tmp_path: Path, street_folder: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    (tmp_path / "file").write_text("no folder")
    assert export(street_folder, form, tmp_path / "file" / "out") == 1
    assert "cannot write" in capsys.readouterr().err
    MapWriter.create(tmp_path / "empty").close()
    assert export(tmp_path / "empty", form, tmp_path / "out") == 1
    assert "has no online poses yet" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_not_replaced(
    tmp_path: Path, street_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("precious")
    for form in ("colmap", "nerfstudio"):
        assert export(street_folder, form, tmp_path) == 1
        assert "is not empty" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize(
    ("form", "library"), [("colmap", "pycolmap"), ("glb", "trimesh"), ("las", "laspy"), ("laz", "lazrs")]
)
def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path,
    street_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    library: str,
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert export(street_folder, form, tmp_path / "out") == 1
    errors = capsys.readouterr().err
    assert library in errors
    assert f"install it with: {install_command('exports')}" in errors
    assert not list(tmp_path.iterdir())
