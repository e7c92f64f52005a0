"""A map fused into a surface: kept beside it, known as stale, seen and exported from then on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import laspy
import numpy as np
import pycolmap
import pytest
import trimesh
from numpy.testing import assert_allclose, assert_array_equal

from anchor3r.cli import main as cli
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import so3_exp
from anchor3r.io.mesh import WaitingMesh
from anchor3r.pipeline import fusing
from anchor3r.pipeline.fusing import fuse_map, predicted_depth
from anchor3r.pipeline.settings import FuseSettings
from anchor3r.report.picture import scenes_of
from anchor3r.store import MapWriter, load_map
from anchor3r.store.fused import FUSED, fused_or_reason, fused_surface, read_fused
from anchor3r.viewer.contents import MapContents

PREDICTED = FuseSettings(depths="predicted", min_views=2, min_component=20)


@pytest.fixture
def folder(street_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(street_folder, tmp_path / "map")
    return tmp_path / "map"


@pytest.fixture(scope="module")
def fused_folder(street_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fused from exact depths."""
    folder = tmp_path_factory.mktemp("fused") / "map"
    shutil.copytree(street_folder, folder)
    fuse_map(folder, PREDICTED)
    return folder


def anchor3r(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def test_the_surface_is_where_the_depths_are(fused_folder: Path) -> None:
    """Along the normal: ground that is seen at a grazing angle changes its depth from pixel to pixel."""
    with load_map(fused_folder) as scene_map:
        fused = fused_surface(scene_map, "online")
        assert fused is not None
        trajectory = scene_map.trajectory()
        depths = [predicted_depth(scene_map, trajectory.pose(k)) for k in range(len(trajectory))]
        assert scene_map.meta["fusion"]["vertices"] == len(fused) > 1000
    points, nearest = fused.mesh.points().astype(np.float64), np.full(len(fused), np.inf)
    for k, view in enumerate(depths):
        assert view is not None
        in_camera = trajectory.camera_from_world[k].apply(points)
        ahead = in_camera[:, 2] > fused.voxel
        pixel = np.round(view.camera.project(np.where(ahead[:, None], in_camera, 1.0))).astype(int)
        inside = ahead & ((pixel >= 0) & (pixel < [view.camera.width, view.camera.height])).all(1)
        seen = view.depth[tuple(np.where(inside[:, None], pixel, 0).T[::-1])]
        ray = in_camera / in_camera[:, 2:]
        slope = np.abs(np.einsum("ni,ni->n", fused.mesh.normals() @ trajectory.rotation[k].T, ray))
        off = slope * np.abs(in_camera[:, 2] - seen) / fused.voxel
        nearest = np.where(inside & (off < nearest), off, nearest)
    assert np.median(nearest) < 0.1
    assert np.quantile(nearest, 0.9) < 0.5


@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_again_gives_the_same_bytes(fused_folder: Path, folder: Path, threads: int) -> None:
    fuse_map(folder, replace(PREDICTED, memory_mb=16, threads=threads))
    again, first = (read_fused(path) for path in (folder, fused_folder))
    assert again is not None
    assert first is not None
    assert_array_equal(again.mesh.vertices, first.mesh.vertices)
    assert_array_equal(again.mesh.faces, first.mesh.faces)
    assert again.identity["settings"] == first.identity["settings"] | {"memory_mb": 16}


def test_other_poses_make_it_stale(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fuse_map(folder, PREDICTED)
    with load_map(folder) as scene_map:
        assert fused_or_reason(scene_map, "online")[1] == ""
        poses = scene_map.trajectory()
    with MapWriter.open(folder) as writer:
        writer.write_trajectory(
            "bent", replace(poses, rotation=so3_exp(np.array([0, 0.1, 0])) @ poses.rotation)
        )
    with load_map(folder) as scene_map:
        found, reason = fused_or_reason(scene_map, "bent")
        assert found is None
        assert "online poses" in reason
    fuse_map(folder, replace(PREDICTED, poses="bent"))
    with MapWriter.open(folder) as writer:
        writer.write_trajectory("bent", poses)
    with load_map(folder) as scene_map:
        assert "have changed since" in fused_or_reason(scene_map, "bent")[1]
    assert anchor3r("export", folder, "--format", "mesh", "--out", tmp_path / "m.ply", "--poses", "bent") == 1
    assert "changed since" in capsys.readouterr().err
    assert anchor3r("export", folder, "--format", "ply", "--out", tmp_path / "c.ply", "--poses", "bent") == 0
    assert "points are those of the frames" in capsys.readouterr().err


def test_an_interruption_leaves_the_old_surface(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuse_map(folder, PREDICTED)
    before, files = (folder / FUSED).read_bytes(), sorted(path.name for path in folder.iterdir())

    def interrupted(stage: str, done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fuse_map(folder, replace(PREDICTED, voxel=0.5), progress=interrupted)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(WaitingMesh, "add", full)
    with pytest.raises(Anchor3RError, match="No space left"):
        fuse_map(folder, replace(PREDICTED, voxel=0.5))
    assert (folder / FUSED).read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == files


def test_what_cannot_be_fused_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert anchor3r("fuse", folder) == 1
    assert "anchor3r densify" in capsys.readouterr().err
    assert anchor3r("fuse", folder, "--depths", "predicted", "--min-component", 10**6) == 1
    assert "all in pieces of fewer than 1000000; lower --min-component" in capsys.readouterr().err
    assert anchor3r("fuse", folder, "--voxel", -1) == 1
    assert "--voxel must be a positive length" in capsys.readouterr().err
    assert anchor3r("export", folder, "--format", "mesh", "--out", tmp_path / "m.ply") == 1
    assert "anchor3r fuse" in capsys.readouterr().err
    MapWriter.create(tmp_path / "empty").close()
    assert anchor3r("fuse", tmp_path / "empty") == 1
    assert "nothing to fuse" in capsys.readouterr().err
    assert not (folder / FUSED).exists()


def test_a_damaged_surface_is_told(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fuse_map(folder, PREDICTED)
    sound = (folder / FUSED).read_bytes()
    out = tmp_path / "m.ply"
    wrong_faces = sound[:-12] + b"\xff" * 12
    for damaged in (sound[:-1], sound.replace(b'"poses"', b'"posts"'), wrong_faces):
        (folder / FUSED).write_bytes(damaged)
        assert anchor3r("export", folder, "--format", "mesh", "--out", out) == 1
        assert "damaged" in capsys.readouterr().err
    assert not out.exists()


def test_the_command_tells_what_came_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert anchor3r("fuse", folder, "--depths", "predicted", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["views"] == 11
    assert anchor3r("fuse", folder, "--depths", "predicted") == 0
    assert f"{summary['vertices']} vertices" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["ply", "glb"])
def test_a_mesh_is_exported(fused_folder: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"m.{suffix}"
    assert anchor3r("export", fused_folder, "--format", "mesh", "--out", out) == 0
    whole = trimesh.load(out, force="mesh", process=False)
    fused = read_fused(fused_folder)
    assert fused is not None
    assert (len(whole.vertices), len(whole.faces)) == (len(fused), len(fused.mesh.faces))
    assert anchor3r("export", fused_folder, "--format", "mesh", "--out", out, "--max-faces", 500) == 0
    assert len(trimesh.load(out, force="mesh", process=False).faces) < 700


def test_clouds_are_of_the_surface_unless_told_otherwise(fused_folder: Path, tmp_path: Path) -> None:
    fused = read_fused(fused_folder)
    assert fused is not None
    sure = fused.mesh.vertices["confidence"] >= 0.5
    clouds = {}
    for points in ("fused", "frames"):
        out = tmp_path / f"{points}.ply"
        assert anchor3r("export", fused_folder, "--format", "ply", "--out", out, "--points", points) == 0
        clouds[points] = trimesh.load(out)
    assert anchor3r("export", fused_folder, "--format", "ply", "--out", tmp_path / "c.ply") == 0
    assert (tmp_path / "c.ply").read_bytes() == (tmp_path / "fused.ply").read_bytes()
    assert_allclose(clouds["fused"].vertices, fused.mesh.points(sure), atol=1e-6)
    assert b"property float nx" in (tmp_path / "fused.ply").read_bytes()[:600]
    assert len(clouds["frames"].vertices) > len(clouds["fused"].vertices)
    assert anchor3r("export", fused_folder, "--format", "las", "--out", tmp_path / "c.las") == 0
    assert len(laspy.read(tmp_path / "c.las").points) == sure.sum()
    assert anchor3r("export", fused_folder, "--format", "nerfstudio", "--out", tmp_path / "splats") == 0
    assert (tmp_path / "splats" / "sparse_pc.ply").read_bytes().split(b"end_header")[0].count(
        b"property"
    ) == 10


def test_a_colmap_model_has_points_of_the_surface_that_its_images_see(
    fused_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "colmap"
    assert anchor3r("export", fused_folder, "--format", "colmap", "--out", out, "--max-points", 2000) == 0
    model = pycolmap.Reconstruction(out / "sparse" / "0")
    assert 500 < model.num_points3D() <= 2000
    assert model.compute_mean_track_length() > 3
    assert model.compute_mean_reprojection_error() < 1e-3, "tracks are projections of the surface itself"


def test_pictures_and_viewer_show_the_surface(fused_folder: Path, folder: Path) -> None:
    with load_map(fused_folder) as scene_map:
        (scene,) = scenes_of(scene_map, "online")
        fused = fused_surface(scene_map, "online")
    assert fused is not None
    assert len(scene.points) == len(fused)
    with MapContents(fused_folder) as contents:
        contents.refresh()
        while not contents.build():
            pass
        seen = contents.seen_from(contents.poses("online"), 0.0)
    nearest = np.abs(seen[:50, None] - fused.mesh.points()[None]).max(-1).min(1)
    assert nearest.max() < 1e-3, "points of the surface, by way of the cameras of their frames"
    # One that is open while the map is fused changes over.
    with MapContents(folder) as contents:
        contents.refresh()
        contents.build()
        before = len(contents.levels)
        fuse_map(folder, PREDICTED)
        assert contents.refresh()
        contents.build()
        assert 0 < len(contents.levels) != before


def test_evaluate_scores_the_surface_of_an_exact_map(
    fused_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert anchor3r("evaluate", "map", fused_folder, "--out", tmp_path, "--json") == 0
    found = json.loads(capsys.readouterr().out)["trajectories"]["online"]
    assert found["depth_within_5"] > 0.99
    assert found["depth_coverage"] > 0.99
    fused = read_fused(fused_folder)
    assert fused is not None
    assert found["fused_accuracy_m"] < 0.5 * fused.voxel
    assert 0.3 < found["fused_f1_at_0.25"] <= 1, "voxels of half a metre are coarse for it"
    assert found["fused_posed_accuracy_m"] == pytest.approx(found["fused_accuracy_m"], abs=1e-3), (
        "poses are exact"
    )


@pytest.fixture
def two_components(folder: Path) -> Iterator[Path]:
    """The last frames are related to no others, and their world is another one."""
    with load_map(folder) as scene_map:
        poses = scene_map.trajectory()
    assert poses.component is not None
    component = poses.component.copy()
    component[6:] = 1
    with MapWriter.open(folder) as writer:
        writer.write_trajectory("parts", replace(poses, component=component))
    return folder


def test_unrelated_components_are_fused_apart(two_components: Path, tmp_path: Path) -> None:
    fuse_map(two_components, replace(PREDICTED, poses="parts"))
    fused = read_fused(two_components)
    assert fused is not None
    first = fused.mesh.vertices["frame"] < 6
    faces = first[fused.mesh.faces["vertices"]]
    assert (faces.all(1) | ~faces.any(1)).all(), "no face joins them"
    out = tmp_path / "m.ply"
    arguments = ("--format", "mesh", "--out", out, "--poses", "parts", "--component", 0)
    assert anchor3r("export", two_components, *arguments) == 0
    assert len(trimesh.load(out, force="mesh", process=False).vertices) == first.sum()


def test_measured_depths_are_fused_at_real_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Depth images of 320 × 240 as densify keeps them, written here with the source's own depth."""
    from anchor3r.dense.keyframe_depth import DepthOrigin, KeyframeDepth, normals_of
    from anchor3r.pipeline.mapping import map_source
    from anchor3r.predictors.ground_truth import GroundTruthPredictor
    from anchor3r.sources import open_source

    folder = tmp_path / "map"
    with open_source("world:5?kind=room&motion=handheld&width=320&height=240&frames=4") as world:
        map_source(world, folder, predictor=GroundTruthPredictor())
        with MapWriter.open(folder) as writer:
            writer.begin_depths("online", {"poses": 0})
            for frame in world:
                assert frame.depth_m is not None
                assert frame.intrinsics is not None
                depth = np.where(frame.depth_m > 0, frame.depth_m, np.nan).astype(np.float32)
                known = np.isfinite(depth)
                writer.write_keyframe_depth(
                    KeyframeDepth(
                        frame=frame.index,
                        camera=frame.intrinsics,
                        depth=depth,
                        confidence=known.astype(np.float32),
                        normals_in_camera=normals_of(depth, frame.intrinsics),
                        origin=np.where(known, DepthOrigin.MEASURED, DepthOrigin.NONE).astype(np.uint8),
                        colours=frame.image,
                    )
                )
    summary = fusing.fuse_map(folder)
    assert summary["depths"] == "measured"
    assert summary["views"] == 4
    assert summary["vertices"] > 5000
    assert len(summary["remarks"]) == 2, "not all keyframes, and other poses"
