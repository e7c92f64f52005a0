"""Meshes in files, and records that a disk lends."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import trimesh
from numpy.testing import assert_allclose, assert_array_equal

from anchor3r.errors import Anchor3RError
from anchor3r.io.mesh import (
    Mesh,
    face_records,
    insist_on_faces,
    insist_on_vertices,
    read_mesh_ply,
    select_vertices,
    simplified,
    vertex_records,
    waiting_mesh,
    write_mesh_glb,
    write_mesh_ply,
)
from anchor3r.io.scratch import ScratchRecords


def sphere() -> Mesh:
    shape = trimesh.creation.icosphere(subdivisions=4)
    count = len(shape.vertices)
    rng = np.random.default_rng(0)
    vertices = vertex_records(
        np.asarray(shape.vertices, np.float32),
        np.asarray(shape.vertices, np.float32),
        rng.integers(0, 256, (count, 3), np.uint8),
        rng.random(count, np.float32),
        np.arange(count, dtype=np.int32),
    )
    return Mesh(vertices, face_records(np.asarray(shape.faces)), '{"poses": "online"}')


def test_a_mesh_waits_and_what_is_kept_of_it_is_read_back(tmp_path: Path) -> None:
    whole = sphere()
    kept = whole.vertices["z"] > -0.5
    with waiting_mesh(tmp_path) as waiting:
        half = len(whole.vertices) // 2
        faces = whole.faces["vertices"]
        waiting.add(whole.vertices[:half], faces[:100])  # faces may name vertices that are still to come
        waiting.add(whole.vertices[half:], faces[100:])
        counts = waiting.write(tmp_path / "m.ply", kept, "about it")
    read, expected = read_mesh_ply(tmp_path / "m.ply"), select_vertices(whole, kept)
    assert counts == (len(read.vertices), len(read.faces))
    assert 0 < len(read.faces) < len(whole.faces)
    assert_array_equal(read.vertices, expected.vertices)
    assert_array_equal(read.faces, expected.faces)
    assert read.about == "about it"
    assert os.listdir(tmp_path) == ["m.ply"]


@pytest.mark.parametrize("suffix", ["ply", "glb"])
def test_other_programs_read_it(tmp_path: Path, suffix: str) -> None:
    mesh, path = sphere(), tmp_path / f"m.{suffix}"
    (write_mesh_ply if suffix == "ply" else write_mesh_glb)(path, mesh)
    read = trimesh.load(path, force="mesh", process=False)
    turned = [1, 1, 1] if suffix == "ply" else [1, -1, -1]  # y up there
    assert_allclose(read.vertices, mesh.points() * turned, atol=1e-6)
    assert_array_equal(read.faces, mesh.faces["vertices"])
    assert_array_equal(read.visual.vertex_colors[:, :3], mesh.colours())
    assert read.is_watertight
    assert read.volume > 0, "its faces are still turned outward"


def test_a_simpler_mesh_has_the_same_shape() -> None:
    mesh = sphere()
    simple = simplified(mesh, 500)
    assert 300 < len(simple.faces) <= 600 < len(mesh.faces)
    assert_allclose(np.linalg.norm(simple.points(), axis=1), 1, atol=0.05)
    assert simple.faces["vertices"].max() < len(simple.vertices)
    assert simplified(mesh, 10**6) is mesh


def test_a_damaged_mesh_is_told(tmp_path: Path) -> None:
    path = tmp_path / "m.ply"
    write_mesh_ply(path, sphere())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Anchor3RError, match="damaged"):
        read_mesh_ply(path)
    path.write_bytes(b"\xff\x00" * 50)
    with pytest.raises(Anchor3RError, match="no mesh of this program"):
        read_mesh_ply(path)


@pytest.mark.parametrize("where", ["vertices", "faces", "head"])
def test_a_bit_that_a_disk_has_changed_is_found_out(tmp_path: Path, where: str) -> None:
    whole, path = sphere(), tmp_path / "m.ply"
    with waiting_mesh(tmp_path) as waiting:
        waiting.add(whole.vertices, whole.faces["vertices"])
        waiting.write(path, np.ones(len(whole.vertices), bool), "about it")
    insist_on_vertices(read_mesh_ply(path), path)
    insist_on_faces(read_mesh_ply(path), path)
    data = bytearray(path.read_bytes())
    place = {"vertices": len(data) // 3, "faces": len(data) - 1, "head": data.index(b"about")}[where]
    data[place] ^= 1 if where != "head" else 0x80
    path.write_bytes(data)
    with pytest.raises(Anchor3RError, match="damaged"):
        (insist_on_faces if where == "faces" else insist_on_vertices)(read_mesh_ply(path), path)


def test_scratch_records_come_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1000, (50, 7), np.int32)
    with ScratchRecords(tmp_path, np.dtype(np.int32), 7) as records:
        for rows in ([3, 4, 5, 20], [0, 1, 2], [49], [4]):
            records.write(np.array(rows), values[rows])
        wanted = np.array([0, 2, 3, 4, 20, 49])
        assert_array_equal(records.read(wanted), values[wanted])
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with ScratchRecords(tmp_path, np.dtype(np.int32), 7) as records:
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(Anchor3RError, match="No space left"):
            records.write(np.array([0]), np.zeros((1, 7), np.int32))
