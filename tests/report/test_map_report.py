"""The page about a map: self-contained, with what the map holds, and warnings where something is wrong."""

from __future__ import annotations

import re
import shutil
import sqlite3
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.testing import assert_allclose

from anchor3r.cli import main as cli
from anchor3r.geometry import so3_exp
from anchor3r.pose_graph.edges import EdgeKind
from anchor3r.report.charts import histogram, line_chart
from anchor3r.report.diagnosis import DiagnosisConfig, ranges, residuals_of, survey_of, warnings_of
from anchor3r.store import Loop, LoopState, Map, MapWriter, load_map
from anchor3r.trajectory import Trajectory

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Collects what a page refers to, and whether its elements are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.references += [value or "" for name, value in attributes if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def straight(count: int = 60) -> Trajectory:
    return Trajectory(
        frames=np.arange(count),
        rotation=np.tile(np.eye(3), (count, 1, 1)),
        center=np.linspace((0, 0, 0), (0, 0, count - 1), count),
        component=np.zeros(count, np.int64),
        log_scale=np.zeros(count),
    )


@pytest.fixture
def looped(tmp_path: Path, street_folder: Path) -> Path:
    """The street with a refinement and two loop events, one of them with a strange reason."""
    folder = tmp_path / "looped"
    shutil.copytree(street_folder, folder)
    with MapWriter.open(folder) as writer, load_map(folder) as made:
        good = Loop(event=0, query=10, match=0, state=LoopState.FITS, figures={"similarity": 0.5})
        bad = Loop(event=1, query=9, match=1, state=LoopState.CONTRADICTED, figures={"<script>": 1.0})
        writer.write_loops([(good, []), (bad, [])])
        writer.write_refinement("offline", made.trajectory(), [], search=0, summary={"accepted": 1})
    return folder


def test_the_page_is_whole_and_loads_nothing(
    tmp_path: Path, looped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", str(looped), "--out", str(tmp_path / "r.html")]) == 0
    assert ", 0 warnings" in capsys.readouterr().out
    text = (tmp_path / "r.html").read_text()
    page = Page(text)
    assert page.open == []
    assert all(reference.startswith("data:image/") for reference in page.references)
    assert not re.search(r"https?://|@import|url\(", text)
    assert page.counts["img"] == 1 + 6 + 2 * 2, "the map, six frames, two loops with two frames each"
    assert page.counts["svg"] >= 7
    for svg in re.findall(r"<svg.*?</svg>", text):
        ElementTree.fromstring(svg)
    for words in (
        "NOT A RECONSTRUCTION", "Nothing looks wrong", "1 of 2", "accepted</span>: no neighbour",
        "&lt;script&gt;",
        "peak memory", "frames a second", "offline, window", "ground-truth", "similarity 0.5",
    ):  # fmt: skip
        assert words in text, words
    assert "<script>" not in text


def test_a_map_that_was_not_refined_says_so(
    tmp_path: Path, street_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", str(street_folder), "--out", str(tmp_path / "r.html")]) == 0
    assert "1 warning\n  the map was not refined" in capsys.readouterr().out


def test_bad_input_is_explained(
    tmp_path: Path, street_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    MapWriter.create(tmp_path / "empty").close()
    newer = tmp_path / "newer"
    shutil.copytree(street_folder, newer)
    database = sqlite3.connect(newer / "map.sqlite")
    database.execute("PRAGMA user_version = 99")
    database.close()
    (tmp_path / "file").write_text("no folder")
    problems = {
        (tmp_path / "empty", tmp_path / "r.html"): "There is nothing to report",
        (newer, tmp_path / "r.html"): "a map of format 99",
        (tmp_path / "nowhere", tmp_path / "r.html"): "holds no map",
        (street_folder, tmp_path / "file" / "r.html"): "cannot write",
    }
    for (folder, out), words in problems.items():
        assert cli.main(["report", str(folder), "--out", str(out)]) == 1
        assert words in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_residuals_are_what_the_poses_were_turned_and_moved_by(street: Map) -> None:
    graph, exact = street.graph(), street.trajectory()
    assert_allclose(residuals_of(graph, exact).rotation_deg, 0, atol=1e-4)
    assert_allclose(residuals_of(graph, exact).translation, 0, atol=1e-5)
    turned = exact.rotation.copy()
    turned[5] = so3_exp(np.radians([0, 2.0, 0])) @ turned[5]
    found = residuals_of(graph, replace(exact, rotation=turned))
    touched = (graph.edges.frame_i == 5) | (graph.edges.frame_t == 5)
    assert_allclose(found.rotation_deg[touched], 2, atol=1e-3)
    assert_allclose(found.rotation_deg[~touched], 0, atol=1e-3)
    stretched = residuals_of(graph, replace(exact, log_scale=np.full(len(exact), np.log(1.1))))
    assert_allclose(np.median(stretched.translation), 0.1, atol=0.01)


def warnings_with(street: Map, trajectory: Trajectory, config: DiagnosisConfig | None = None) -> str:
    config = config or DiagnosisConfig()
    survey = survey_of(street, street.frames().index, config)
    residuals = residuals_of(street.graph(), street.trajectory())
    return "\n".join(warnings_of(street, trajectory, survey, residuals, config))


def test_jumps_of_unit_and_position_are_named(street: Map) -> None:
    smooth = straight()
    assert "jump" not in warnings_with(street, smooth)
    log_scale, center = np.zeros(60), smooth.center.copy()
    log_scale[30:] = np.log(1.5)
    center[45:, 0] += 20
    text = warnings_with(street, replace(smooth, log_scale=log_scale, center=center))
    assert "the scale jumps once by more than 1.2×, at most by 1.50× at frame 30: 30" in text
    assert "the camera jumps once by more than 6 usual steps: 45" in text
    parted = replace(smooth, center=center, component=(np.arange(60) >= 45).astype(np.int64))
    assert "the camera jumps" not in warnings_with(street, parted), "components are not related"
    assert "tracking broke: the map has 2 components" in warnings_with(street, parted)


def test_lost_and_missing_frames_are_named(tmp_path: Path, street_folder: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(street_folder, folder)
    database = sqlite3.connect(folder / "map.sqlite")
    with database:
        database.execute("UPDATE frames SET status = 'lost', checksum = NULL WHERE frame IN (4, 5, 8)")
        database.execute("DELETE FROM frames WHERE frame = 2")
        database.execute("DELETE FROM points WHERE frame > 3")
        database.execute("UPDATE meta SET value = '20' WHERE key = 'num_frames'")
        database.execute("DELETE FROM meta WHERE key = 'checksum'")
    database.close()
    with load_map(folder) as made:
        text = warnings_with(made, made.trajectory().select(slice(0, 3)))
    assert "3 frames were lost (no relation to earlier ones was found): 4–5, 8" in text
    assert "other frames have no pose: 6–7, 9–10" in text
    assert "1 frames of the source are not in the map" in text
    assert "mapping ended early: 10 of 20 frames" in text
    assert "7 of 10 sampled frames have no points: 4–10" in text


def test_a_lost_frame_that_begins_a_component_is_not_missing(tmp_path: Path, street_folder: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(street_folder, folder)
    database = sqlite3.connect(folder / "map.sqlite")
    with database:
        database.execute("UPDATE frames SET status = 'lost', checksum = NULL WHERE frame IN (4, 5)")
    database.close()
    with load_map(folder) as made:
        poses = made.trajectory()
        text = warnings_with(made, poses.select(poses.frames != 4))
    assert "1 frames were lost (no relation to earlier ones was found): 4" in text


def test_weak_points_and_bad_edges_are_named(street: Map) -> None:
    config, frames = DiagnosisConfig(), np.arange(40)
    survey = survey_of(street, street.frames().index, config)
    weak = replace(survey, confidence=np.where(survey.frames == 7, 0.1, 1.0))
    residuals = residuals_of(street.graph(), street.trajectory())
    bad = replace(residuals, rotation_deg=np.where(residuals.anchor == 6, 9.0, 0.1))
    text = "\n".join(warnings_of(street, straight(len(frames)), weak, bad, config))
    assert "1 of 11 sampled frames have a median confidence below 33% of the map's (1): 7" in text
    assert "window edges are more than 5° off the poses, anchored at 6" in text
    assert "loops are not closed" not in text
    as_loops = np.full(len(residuals.kind), EdgeKind.LOOP, np.int8)
    opened = replace(residuals, kind=as_loops, translation=np.full(len(as_loops), 0.7))
    text = "\n".join(warnings_of(street, straight(len(frames)), weak, opened, config))
    assert f"half of the {len(as_loops)} loop edges are off by more than 70%" in text


def test_frames_in_words() -> None:
    assert ranges(np.array([3, 4, 5, 9])) == "3–5, 9"
    assert ranges(np.arange(0, 20, 2), 3) == "0, 2, 4 and 7 more"


def test_charts_break_where_nothing_is_known() -> None:
    y = np.array([1.0, 2, np.nan, 4, 5])
    chart = ElementTree.fromstring(line_chart("a & b", np.arange(5), {"y": y}, x_label="x"))
    lines = [element.get("points") for element in chart.iter("polyline")]
    assert [len((line or "").split()) for line in lines] == [2, 2]
    assert line_chart("t", [0], {"y": [1.0]}, x_label="x") == ""
    assert histogram("t", {"nothing": []}, x_label="x") == ""
    assert "polyline" in histogram("t", {"a": np.zeros(5), "b": np.arange(9.0)}, x_label="x")
