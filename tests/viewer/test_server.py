"""Serving and saving without a browser: addresses, words, pages, and what goes wrong."""

from __future__ import annotations

import re
import shutil
import socket
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from street import record_street

from anchor3r.cli.main import main
from anchor3r.errors import Anchor3RError
from anchor3r.pipeline.distances import point_reader
from anchor3r.store import MapWriter, load_map
from anchor3r.viewer.contents import MapContents

pytest.importorskip("viser", reason="the viewer extra is not installed")
from anchor3r.framing import oblique_axes, top_axes
from anchor3r.viewer import server as serving
from anchor3r.viewer.viewpoints import VERTICAL_FOV_RAD, picked, viewpoint


def words(folder: Path, **settings: float) -> str:
    """What the panel says after everything was read."""
    with MapContents(folder) as contents:
        contents.refresh()
        contents.build()
        chosen = serving.ViewSettings(poses="online", first=0, last=1000)
        return serving.in_words(contents, replace(chosen, **settings), 0, growing=False)


def test_a_taken_port_gives_the_next() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serving.free_port("127.0.0.1", port) > port


def test_a_host_of_another_machine_is_refused() -> None:
    with pytest.raises(Anchor3RError, match="choose another host"):
        serving.free_port("203.0.113.1", 8080)


def test_new_clients_look_at_the_map_as_it_has_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_POLL_S", 0.0)
    with MapWriter.create(tmp_path / "map") as store, MapContents(tmp_path / "map") as contents:
        record_street(store, range(4))
        server = serving.MapServer(contents, "127.0.0.1", 8400)
        looked_at = []
        for more in (range(4, 6), range(6, 60)):
            while server.step():
                pass
            looked_at.append(server._server.initial_camera.look_at[2])
            record_street(store, more)
        while server.step():
            pass
        looked_at.append(server._server.initial_camera.look_at[2])
        server.close()
    assert looked_at[0] == looked_at[1] < 6, "a little growth changes nothing"
    assert 12 < looked_at[2] < 22, "the middle of a street of 30 m and what is seen at its end"


def test_an_empty_map_has_words(tmp_path: Path) -> None:
    MapWriter.create(tmp_path / "map").close()
    assert "The map is empty so far" in words(tmp_path / "map")


def test_points_filtered_away_have_words(street: Path) -> None:
    assert "All points are filtered away" in words(street, min_confidence=np.inf)


@pytest.mark.parametrize("spoil", ["newer", "missing", "empty"])
def test_a_map_that_cannot_be_shown_is_explained(
    tmp_path: Path, spoil: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, said = tmp_path / "map", {
        "newer": "update anchor3r", "missing": "holds no map", "empty": "has no online poses yet",
    }  # fmt: skip
    if spoil != "missing":
        MapWriter.create(folder).close()
    if spoil == "newer":
        with sqlite3.connect(folder / "map.sqlite") as database:
            database.execute("PRAGMA user_version = 99")
    assert main(["view", str(folder), "--save", str(tmp_path / "site")]) == 1
    assert said[spoil] in capsys.readouterr().err
    assert not (tmp_path / "site").exists()


def test_a_page_is_one_file_that_holds_the_map(
    street: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    assert main(["view", str(street), "--save", str(site), "--points", "5000"]) == 0
    assert [file.name for file in site.iterdir()] == ["index.html"]
    page = (site / "index.html").read_text()
    assert "60 frames, offline poses" in page
    said = capsys.readouterr().out
    assert 3000 < int(said.split(" points")[0].split()[-1].replace(",", "")) <= 5000
    assert not re.search(r"https?://|import ", page), "it loads nothing"
    assert main(["view", str(street), "--save", str(site), "--points", "500", "--poses", "online"]) == 0
    assert "60 frames, online poses" in (site / "index.html").read_text()
    assert main(["view", str(street), "--save", str(site), "--poses", "off10"]) == 1
    assert "no 'off10' poses, only: online, offline" in capsys.readouterr().err


def test_a_click_picks_the_nearest_of_those_that_it_hits() -> None:
    points = np.array([[0, 0, 9], [0.01, 0, 5], [2, 0, 5], [0, 0, -1]], np.float32)
    assert picked((0, 0, 0), (0, 0, 2), points) == 1
    assert picked((0, 0, 0), (0, 1, 0), points) is None
    assert picked((0, 0, 0), (0, 0, 1), points[:0]) is None


def test_unrelated_components_are_shown_one_at_a_time_and_named(street: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parted"
    shutil.copytree(street, folder)
    with sqlite3.connect(folder / "map.sqlite") as database:
        database.execute("UPDATE poses SET component = 1, checksum = NULL WHERE frame >= 40")
    assert "Tracking broke: 2 components" in words(folder)
    assert "the 40 poses of one are shown" in words(folder)
    assert "the 20 poses of one are shown" in words(folder, component=1)
    with MapContents(folder) as contents:
        contents.refresh()
        contents.build()
        assert contents.components("online") == [0, 1]
        seen = contents.seen_from(contents.poses("online", 1), 0.0)
    assert seen[:, 2].min() > 40 * 0.5, "only what frames of the component saw"
    assert main(["view", str(folder), "--save", str(tmp_path / "site")]) == 0
    assert '"count": 20' in (tmp_path / "site" / "index.html").read_text()


def test_the_first_view_has_the_map_in_frame(street: Path) -> None:
    with MapContents(street) as contents:
        contents.refresh()
        contents.build()
        poses = contents.poses("online")
        seen, path = contents.seen_from(poses, 0.5), contents.framed(poses)
    for axes in (oblique_axes, top_axes):
        first = viewpoint(axes, poses, seen, path)
        forward = (first.look_at - first.position) / np.linalg.norm(first.look_at - first.position)
        ahead = (seen - first.position) @ forward
        aside = np.linalg.norm(np.cross(seen - first.position, forward), axis=1)
        assert (aside < np.sqrt(2) * np.tan(VERTICAL_FOV_RAD / 2) * ahead).mean() > 0.95
        assert np.quantile(aside / ahead, 0.95) > 0.5 * np.tan(VERTICAL_FOV_RAD / 2), "and not as a dot"


def test_a_picked_point_is_named_so_that_refine_finds_it(street: Path) -> None:
    with MapContents(street) as contents, load_map(street) as scene_map:
        contents.refresh()
        read = point_reader(scene_map)
        for frame in (0, 31, 59):
            point_map = scene_map.points(frame)
            assert point_map is not None
            known = np.argwhere(np.isfinite(point_map.points_in_camera).all(-1))
            for row, column in known[:: len(known) // 7]:
                point = point_map.points_in_camera[row, column]
                pixel = contents.pixel_of(frame, point)
                assert pixel is not None
                seen = read(frame, pixel)
                assert seen is not None
                assert_allclose(seen.in_camera, point)
            assert contents.pixel_of(frame, 3 * point) is None
        assert contents.pixel_of(1000, point) is None


def test_lengths_are_in_metres_where_they_are_known_to_be(street: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(street, tmp_path / "metric"))
    summary = {"units": "m", "scale_sigma": 0.02}
    with MapWriter.open(folder) as writer, load_map(folder) as scene_map:
        writer.write_refinement("metric", scene_map.trajectory("offline"), summary=summary)
    with MapContents(folder) as contents:
        contents.refresh()
        assert contents.scale_of("metric", None) == ("m", 0.02)
        assert contents.scale_of("offline", None) == ("units", None)
        assert contents.scale_of("online", 0) == ("units", None)
