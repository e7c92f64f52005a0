"""Discovery, the index and shards: found once, resumed, and read in place."""

import json
from pathlib import Path

import dataset_miniatures as miniatures
import numpy as np
import pytest

from anchor3r.cli.main import main
from anchor3r.datasets import DATA_SETS, index
from anchor3r.datasets.index import find_roots, index_set
from anchor3r.errors import Anchor3RError


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rooms, the second with a broken picture, and a third without poses."""
    root = tmp_path_factory.mktemp("replica")
    miniatures.write("replica", root)
    (root / "room1").mkdir()
    (root / "room0/results").rename(root / "kept")
    for room in ("room0", "room1"):
        (root / room / "results").mkdir(parents=True)
        for path in (root / "kept").iterdir():
            (root / room / "results" / path.name).write_bytes(path.read_bytes())
    (root / "room1/traj.txt").write_bytes((root / "room0/traj.txt").read_bytes())
    (root / "room1/results/frame000000.jpg").write_bytes(b"not a picture")
    (root / "room2").mkdir()
    (root / "room2/traj.txt").write_text("1 2 3\n")
    return root


def test_broken_sequences_are_listed_and_the_rest_is_used(replica: Path) -> None:
    found = index_set(DATA_SETS["replica"], replica)
    assert [entry.name for entry in found.entries] == ["room0"]
    assert found.entries[0].num_posed == miniatures.NUM_FRAMES
    assert found.entries[0].has_depth
    reasons = dict(found.broken)
    assert "cannot decode" in reasons["room1"]
    assert "rows of 16 numbers" in reasons["room2"]


def test_an_index_is_made_once_and_goes_on_where_it_was_interrupted(
    replica: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, looked = DATA_SETS["replica"], []
    original = index._look_at
    monkeypatch.setattr(index, "_look_at", lambda *a: looked.append(a[-1]) or original(*a))
    first = index_set(dataset, replica)
    assert len(looked) == 3
    assert index_set(dataset, replica) == first
    assert len(looked) == 3
    journal = first.folder / "index.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text(lines[0] + lines[1][:10])
    assert index_set(dataset, replica).entries == first.entries
    assert len(looked) == 5, "the cut line and the missing one"
    assert len(json.loads(lines[0])) >= 2


def test_what_a_disk_has_done_to_an_index_is_looked_at_again(tmp_path: Path) -> None:
    miniatures.write("waymo", tmp_path)
    first = index_set(DATA_SETS["waymo"], tmp_path)
    journal = first.folder / "index.jsonl"
    for damaged in (b"\xff\x00{\n", b"[]\n", b'{"name": 5}\n', b'{"name": "x", "error": []}\n', b"5\n"):
        journal.write_bytes(damaged)
        assert index_set(DATA_SETS["waymo"], tmp_path).entries == first.entries
    (table,) = (first.folder / "tables").glob("*.npz")
    table.write_bytes(b"PK" + bytes(99))
    with pytest.raises(Anchor3RError, match="remove that folder"):
        index_set(DATA_SETS["waymo"], tmp_path, folder=first.folder).recording(first.entries[0].name)


def test_a_kept_table_is_the_one_that_was_read(tmp_path: Path) -> None:
    miniatures.write("waymo", tmp_path)
    found = index_set(DATA_SETS["waymo"], tmp_path)
    kept = found.recording(found.entries[0].name).table
    read = DATA_SETS["waymo"].index(found.recording(kept.name).files, kept.name)
    assert (kept.images, kept.depths) == (read.images, read.depths)
    np.testing.assert_array_equal(kept.camera_from_world, read.camera_from_world)
    np.testing.assert_array_equal(kept.lens, read.lens)


def test_nothing_usable_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(Anchor3RError, match=r"no sequence of TartanAir in .*looked for ENVIRONMENT/Easy"):
        index_set(DATA_SETS["tartanair"], tmp_path)
    with pytest.raises(Anchor3RError, match="no data set in"):
        find_roots(tmp_path, DATA_SETS)


def test_data_sets_are_found_by_their_names_however_spelled(tmp_path: Path) -> None:
    for folder in ("WildRGB-D", "TartanAir", "mvs-synth", "something else"):
        (tmp_path / folder).mkdir()
    assert list(find_roots(tmp_path, DATA_SETS)) == ["wildrgbd", "tartanair", "mvs_synth"]


@pytest.mark.parametrize("name", ["mvs_synth", "scannet", "waymo", "megadepth"])
def test_shards_are_read_like_the_folder(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    miniatures.write(name, tmp_path / "data")
    command = ["data", "pack", str(tmp_path / "data"), str(tmp_path / "shards"), "--shard-gb", "0.0001"]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shards"] == len(list((tmp_path / "shards").glob("*.tar")))
    assert len(list((tmp_path / "shards").glob("*.tar"))) > (1 if name == "mvs_synth" else 0)
    pair = [index_set(DATA_SETS[name], tmp_path / place) for place in ("data", "shards")]
    assert pair[0].entries == pair[1].entries
    frames = [found.recording(found.entries[0].name).read(3) for found in pair]
    np.testing.assert_array_equal(frames[0].image, frames[1].image)
    np.testing.assert_array_equal(frames[0].depth_m, frames[1].depth_m)


def test_list_says_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    assert "Aria Synthetic Environments" in capsys.readouterr().out
    miniatures.write("replica", tmp_path / "replica")
    assert main(["data", "list", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 2
    assert out[1].split()[-3:] == ["1", "8", "0"]
    assert main(["data", "check", "imagenet", str(tmp_path)]) == 1
    assert "no data set is called 'imagenet'" in capsys.readouterr().err
