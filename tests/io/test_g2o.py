"""g2o files: the convention, round trips, public graphs, and files with something wrong in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3
from anchor3r.io.g2o import G2oFile, read_g2o, write_g2o
from anchor3r.pose_graph.edges import EdgeKind, Edges, MotionGraph
from measured_graphs import measure, random_poses, window_pairs

INFORMATION = "1 0 0 0 0 0 2 0 0 0 0 3 0 0 0 4 0 0 5 0 6"
GOOD = [
    "# a comment",
    "VERTEX_SE3:QUAT 0 0 0 0 0 0 0 1",
    "VERTEX_SE3:QUAT 1 1 0 0 0 0 0.6 0.8",
    "VERTEX_SE3:QUAT 7 1 2 0 0 0 0 1",
    "FIX 0",
    "",
    f"EDGE_SE3:QUAT 0 1 1 0 0 0 0 0.6 0.8 {INFORMATION}",
    f"EDGE_SE3:QUAT 1 7 0 2 0 0 0 -0.6 0.8 {INFORMATION}",
]


def written(tmp_path: Path, lines: list[str]) -> Path:
    path = tmp_path / "graph.g2o"
    path.write_text("\n".join(lines) + "\n")
    return path


def chi_square(file: G2oFile) -> float:
    """Half of what the graph's errors Log(Z⁻¹ X_i⁻¹ X_j) weigh, at the file's vertices."""
    edges = file.graph.edges
    i, t = np.searchsorted(file.frames, edges.frame_i), np.searchsorted(file.frames, edges.frame_t)
    measured = SE3(edges.rotation, edges.translation)
    error = (measured.inverse() @ file.camera_from_world[i] @ file.camera_from_world[t].inverse()).log()
    return 0.5 * float(np.einsum("ei,eij,ej", error, edges.information, error))


def test_reads_poses_edges_and_information_in_our_order(tmp_path: Path) -> None:
    file = read_g2o(written(tmp_path, GOOD))
    assert_array_equal(file.frames, [0, 1, 7])
    assert_allclose(file.camera_from_world.center(), [[0, 0, 0], [1, 0, 0], [1, 2, 0]], atol=1e-15)
    # The second vertex is turned about z by an angle of which sine and cosine are 0.96 and 0.28.
    assert_allclose(
        file.camera_from_world.rotation[1], [[0.28, 0.96, 0], [-0.96, 0.28, 0], [0, 0, 1]], atol=1e-15
    )
    edges = file.graph.edges
    assert_array_equal(edges.frame_i, [0, 1])
    assert_array_equal(edges.frame_t, [1, 7])
    assert_array_equal(edges.kind, [EdgeKind.WINDOW, EdgeKind.WINDOW])  # vertex 7 follows vertex 1
    assert_allclose(edges.translation, [[1, 0, 0], [0, 2, 0]])
    assert_array_equal(edges.information[0], np.diag([4, 5, 6, 1, 2, 3]))
    true = file.camera_from_world[:1] @ file.camera_from_world[1:2].inverse()
    assert_allclose(edges.rotation[0], true.rotation[0], atol=1e-15)
    assert_allclose(edges.translation[0], true.translation[0], atol=1e-15)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("smallGrid3D", 83894.33343553), ("parking-garage", 8363.60194812), ("sphere2500", 1305657.71180609)],
)
def test_public_graphs_weigh_what_gtsam_says(shared: Path, name: str, expected: float) -> None:
    """The figures are GTSAM 4.3's NonlinearFactorGraph.error of readG2o, at the file's vertices."""
    assert chi_square(read_g2o(shared / "graphs" / f"{name}.g2o")) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("with_vertices", [True, False])
def test_round_trip(tmp_path: Path, with_vertices: bool) -> None:
    rng = np.random.default_rng(0)
    poses = random_poses(20, rng)
    i, t = window_pairs(20, 4)
    edges = measure(poses, i, t, rng, rotation_noise_rad=0.1, translation_noise=0.1)
    half = rng.normal(size=(len(edges), 6, 6))
    graph = MotionGraph(
        Edges.of(
            i, t, edges.rotation, edges.translation, weight=2.0, information=half @ np.swapaxes(half, 1, 2)
        )
    )
    vertices = (np.arange(20), poses) if with_vertices else (np.empty(0, np.int64), poses[:0])
    write_g2o(tmp_path / "graph.g2o", graph, *vertices)
    file = read_g2o(tmp_path / "graph.g2o")
    back = file.graph.edges
    assert_array_equal(back.frame_i, i)
    assert_array_equal(back.frame_t, t)
    assert_allclose(back.rotation, edges.rotation, atol=1e-14)
    assert_array_equal(back.translation, edges.translation)
    assert_allclose(back.information, 2 * graph.edges.information, rtol=1e-15)
    assert_array_equal(file.frames, vertices[0])
    assert_allclose(file.camera_from_world.translation, vertices[1].translation, atol=1e-12)


def test_unknown_information_is_written_as_identity(tmp_path: Path) -> None:
    graph = MotionGraph(Edges.of([0], 1, np.eye(3), 1.0))
    write_g2o(tmp_path / "graph.g2o", graph, np.arange(2), SE3.identity(2))
    assert_array_equal(read_g2o(tmp_path / "graph.g2o").graph.edges.information[0], np.eye(6))


@pytest.mark.parametrize(
    ("number", "line", "reason"),
    [
        (2, "VERTEX_SE2 0 0 0 0", "2-D"),
        (2, "VERTEX_XYZ 0 0 0 0", "not known"),
        (3, "VERTEX_SE3:QUAT 1 1 0 0 0 0 0.6", "followed by 8 numbers, found 7"),
        (3, "VERTEX_SE3:QUAT 1 1 0 0 0 0 0.6 0.8 9", "followed by 8 numbers, found 9"),
        (3, "VERTEX_SE3:QUAT 1 1 0 0 0 0 0.6 zero", "cannot read"),
        (3, "VERTEX_SE3:QUAT 1.5 1 0 0 0 0 0.6 0.8", "cannot read"),
        (3, "VERTEX_SE3:QUAT 1 nan 0 0 0 0 0.6 0.8", "not finite"),
        (3, "VERTEX_SE3:QUAT 1 1 0 0 0 0 0.6 0.9", "not of unit length"),
        (3, "VERTEX_SE3:QUAT 1 1 0 0 0 0 0 0", "not of unit length"),
        (3, "VERTEX_SE3:QUAT -1 1 0 0 0 0 0.6 0.8", "negative index"),
        (3, "VERTEX_SE3:QUAT 0 1 0 0 0 0 0.6 0.8", "there before"),
        (3, "VERTEX_SE3:QUAT 99999999999999999999 1 0 0 0 0 0.6 0.8", "cannot read"),
        (7, f"EDGE_SE3:QUAT 0 3 1 0 0 0 0 0.6 0.8 {INFORMATION}", "does not have"),
        (7, f"EDGE_SE3:QUAT 1 1 1 0 0 0 0 0.6 0.8 {INFORMATION}", "with itself"),
        (7, "EDGE_SE3:QUAT 0 1 1 0 0 0 0 0.6 0.8 1 0 0", "followed by 30 numbers, found 12"),
        (7, f"EDGE_SE3:QUAT 0 1 1e200 0 0 0 0 0.6 0.8 {INFORMATION}", "beyond 1e"),
        (7, f"EDGE_SE3:QUAT 0 1 nan 0 0 0 0 0.6 0.8 {INFORMATION}", "not finite"),
        (7, f"EDGE_SE3:QUAT 0 1 1 0 0 0 0 0.6 0.8 inf{INFORMATION[1:]}", "not finite"),
    ],
)
def test_names_the_line_that_is_wrong(tmp_path: Path, number: int, line: str, reason: str) -> None:
    lines = list(GOOD)
    lines[number - 1] = line
    with pytest.raises(Anchor3RError, match=rf"graph\.g2o, line {number}: .*{reason}"):
        read_g2o(written(tmp_path, lines))


def test_kinds_and_groups_come_back(tmp_path: Path) -> None:
    """Here they are what nobody would infer: a loop between neighbours, groups that are not in order."""
    kind, group = [EdgeKind.LOOP, EdgeKind.WINDOW, EdgeKind.WINDOW, EdgeKind.PRIOR], [7, 2, 2, 0]
    edges = Edges.of(
        [0, 1, 2, 0], [1, 2, 3, 3], np.eye(3), 1.0, kind=kind, group=group, information=np.eye(6)
    )
    write_g2o(tmp_path / "graph.g2o", MotionGraph(edges), np.arange(4), SE3.identity(4))
    back = read_g2o(tmp_path / "graph.g2o").graph.edges
    assert_array_equal(back.kind, kind)
    assert_array_equal(back.group, group)


@pytest.mark.parametrize(
    "comment", ["# anchor3r edges 5 0 0", "# anchor3r edges 2 9 0", "# anchor3r edges x 0 0"]
)
def test_comments_that_do_not_fit_the_edges_are_only_comments(tmp_path: Path, comment: str) -> None:
    edges = read_g2o(written(tmp_path, [*GOOD, comment])).graph.edges
    assert_array_equal(edges.kind, [EdgeKind.WINDOW] * 2)


def test_gtsam_reads_what_is_written(tmp_path: Path) -> None:
    gtsam = pytest.importorskip("gtsam")
    edges = Edges.of([0, 1], [1, 2], np.eye(3), [1.0, 2, 3], information=np.eye(6))
    write_g2o(tmp_path / "graph.g2o", MotionGraph(edges), np.arange(3), SE3.identity(3))
    graph, values = gtsam.readG2o(str(tmp_path / "graph.g2o"), True)
    assert (graph.size(), values.size()) == (2, 3)


def test_an_indefinite_matrix_is_replaced_by_the_nearest(tmp_path: Path) -> None:
    lines = list(GOOD)
    lines[6] = f"EDGE_SE3:QUAT 0 1 1 0 0 0 0 0.6 0.8 -{INFORMATION}"
    file = read_g2o(written(tmp_path, lines))
    assert file.num_replaced == 1
    assert_allclose(file.graph.edges.information[0], np.diag([4, 5, 6, 0, 2, 3]), atol=1e-12)
    assert_array_equal(file.graph.edges.information[1], np.diag([4, 5, 6, 1, 2, 3]))
    assert read_g2o(written(tmp_path, GOOD)).num_replaced == 0


def test_refuses_files_without_edges(tmp_path: Path) -> None:
    for lines in ([], GOOD[:4]):
        with pytest.raises(Anchor3RError, match=r"graph\.g2o: no EDGE_SE3:QUAT"):
            read_g2o(written(tmp_path, lines))
    with pytest.raises(Anchor3RError, match="cannot read"):
        read_g2o(tmp_path / "absent.g2o")
    (tmp_path / "binary.g2o").write_bytes(bytes(range(128, 256)))
    with pytest.raises(Anchor3RError, match="not a text file"):
        read_g2o(tmp_path / "binary.g2o")


def test_refuses_to_write_vertices_that_do_not_fit(tmp_path: Path) -> None:
    graph = MotionGraph(Edges.of([0], 5, np.eye(3), 1.0))
    with pytest.raises(ValueError, match="not among the vertices"):
        write_g2o(tmp_path / "graph.g2o", graph, np.arange(2), SE3.identity(2))
    with pytest.raises(Anchor3RError, match="cannot write"):
        write_g2o(tmp_path, graph, np.array([0, 5]), SE3.identity(2))
