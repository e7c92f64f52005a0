"""What once went wrong with hostile input, through the command line: each defect by itself.

The campaign of `tests/fuzz` draws such cases at random, `tests/faults` kills and fails on purpose; these here
have names.
"""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import socketserver
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anchor3r import MapSettings, map_source
from anchor3r.cli import main as cli
from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.benchmarks.calibration import yaml_numbers
from anchor3r.io.files import replacing
from anchor3r.io.graph_files import save_graph
from anchor3r.pose_graph.edges import Edges, MotionGraph
from anchor3r.sources.images import read_image
from anchor3r.sources.source import UndecodableFrameError
from anchor3r.store import Loop, LoopState, MapWriter, StoreConfig, load_map
from anchor3r.store.database import META_CHECKSUM, meta_checksum, row_checksum

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command in an empty folder: its exit code, and its error, which is one line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def running(*arguments: object) -> tuple[int, str]:
        capfd.readouterr()
        code = cli.main([str(argument) for argument in arguments])
        said = capfd.readouterr().err
        assert code in (0, 1, 2), said
        if code == 1:
            assert said.splitlines()[-1].startswith("anchor3r: "), said
        return code, said

    return running


@pytest.fixture
def copied(street_folder: Path, tmp_path: Path) -> Path:
    """A map that may be destroyed."""
    return Path(shutil.copytree(street_folder, tmp_path / "map"))


def change(folder: Path, statement: str, *parameters: object) -> None:
    """Changes a map as a stranger would: with right checksums."""
    database = sqlite3.connect(folder / "map.sqlite")
    database.create_function("row_checksum", -1, row_checksum)
    with database:
        database.execute(statement, parameters)
        database.execute(
            "UPDATE meta SET value = ? WHERE key = ?", (str(meta_checksum(database)), META_CHECKSUM)
        )
    database.close()


# 1: a kill while a map is created


def test_a_log_without_its_map_is_not_taken_for_that_of_the_next_one(copied: Path, run: Run) -> None:
    database = sqlite3.connect(copied / "map.sqlite")
    database.execute("CREATE TABLE more (x)")
    log = (copied / "map.sqlite-wal").read_bytes()
    database.close()
    assert log
    (copied / "map.sqlite").unlink()
    (copied / "map.sqlite-wal").write_bytes(log)
    with MapWriter.resume(copied, {"source": "toy"}) as store:
        assert store.last_frame == -1
    with load_map(copied) as scene_map:
        assert scene_map.meta["identity"] == {"source": "toy"}


# 2: outputs that destroy


@pytest.mark.parametrize(
    "command",
    [
        ("export", "map", "--format", "tum", "--out"),
        ("export", "map", "--format", "ply", "--out"),
        ("render", "map", "--out"),
        ("report", "map", "--out"),
    ],
)
@pytest.mark.parametrize("place", ["map/map.sqlite", "/dev/null", "fifo", ".", "file/below", "x" * 300])
def test_outputs_replace_nothing_precious(
    command: tuple[str, ...], place: str, copied: Path, run: Run
) -> None:
    before = (copied / "map.sqlite").read_bytes()
    os.mkfifo("fifo")
    Path("file").write_text("here")
    assert run(*command, place)[0] == 1
    assert (copied / "map.sqlite").read_bytes() == before
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert stat.S_ISFIFO(os.stat("fifo").st_mode)


def test_an_input_is_not_overwritten(run: Run) -> None:
    save_graph(Path("graph.npz"), graph_of(np.array([0.0, 0, 1])))
    os.link("graph.npz", "same.tum")
    code, said = run("solve", "graph.npz", "--out", "same.tum")
    assert code == 1
    assert "what this command reads" in said


def test_one_file_is_not_two_outputs(run: Run) -> None:
    save_graph(Path("graph.npz"), graph_of(np.array([0.0, 0, 1])))
    code, said = run("solve", "graph.npz", "--out", "same.tum", "--report", "./same.tum")
    assert code == 1
    assert "name two files" in said
    assert not Path("same.tum").exists()


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".out.txt.unfinished").symlink_to(victim)
    with replacing(tmp_path / "out.txt") as file:
        file.write(b"new")
    assert victim.read_text() == "precious"
    assert (tmp_path / "out.txt").read_text() == "new"
    assert not (tmp_path / "out.txt").is_symlink()


def test_images_that_are_localised_are_not_overwritten(copied: Path, run: Run) -> None:
    Path("shots").mkdir()
    for name in ("0.png", "1.png"):
        Image.new("RGB", (64, 48)).save(f"shots/{name}")
    before = Path("shots/0.png").read_bytes()
    os.link("shots/1.png", "poses.csv")  # where the table of all images would go
    for out in ("shots/0.png", "poses.tum"):
        code, said = run("localise", "map", "shots", "--fov", "70", "--out", out)
        assert code == 1
        assert "what this command reads" in said
    for nothing in (".", "", "/"):
        assert run("localise", "map", "shots", "--fov", "70", "--out", nothing)[0] == 1
    assert "name the file of poses otherwise" in run("localise", "map", "shots", "--out", "new.csv")[1]
    assert Path("shots/0.png").read_bytes() == before


@pytest.mark.parametrize(
    "command", [("export", "map", "--format", "ply"), ("render", "map"), ("report", "map")]
)
def test_the_surface_of_a_map_is_not_overwritten(command: tuple[str, ...], copied: Path, run: Run) -> None:
    (copied / "fused.ply").write_text("surface")
    code, said = run(*command, "--out", "map/fused.ply")
    assert code == 1
    assert "what this command reads" in said
    assert (copied / "fused.ply").read_text() == "surface"


def test_compared_results_are_not_overwritten(run: Run) -> None:
    Path("results.json").write_text("{}")
    assert "what this command reads" in run("evaluate", "compare", "results.json", "--out", "results.json")[1]


def test_a_demo_does_not_replace_a_map_of_ones_own(copied: Path, run: Run) -> None:
    before = (copied / "map.sqlite").read_bytes()
    code, said = run("demo", "--frames", "2", "--out", ".")
    assert code == 1
    assert "which no demo has made" in said
    assert (copied / "map.sqlite").read_bytes() == before


def test_a_recording_for_rerun_is_not_written_through_a_link(run: Run) -> None:
    pytest.importorskip("rerun")
    Path("victim").write_text("precious")
    Path("live.rrd").symlink_to("victim")
    os.mkfifo("pipe.rrd")
    made = ("map", SMALL, "--predictor", "ground-truth", "--out")
    assert run(*made, "out", "--rerun", "live.rrd")[0] == 0
    assert Path("victim").read_text() == "precious"
    assert Path("live.rrd").stat().st_size > 100
    assert run(*made, "again", "--rerun", "pipe.rrd")[0] == 1


# 3: Ctrl-C inside a kernel; the last resort


def test_ctrl_c_in_a_kernel_is_an_interrupt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str, arguments: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise SystemError("CPUDispatcher returned a result with an exception set") from error

    monkeypatch.setattr(cli, "_run", interrupted)
    assert cli.main(["map"]) == 130


def test_even_a_defect_is_polite(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(cli, "_run", lambda name, arguments: {}["rtsp://user:s3cret@host/live"])
    assert cli.main(["map", "rtsp://user:s3cret@host/live"]) == 3
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    (report,) = tmp_path.glob("anchor3r-*.txt")
    assert str(report) in said
    text = report.read_text()
    assert "Traceback" in text
    assert "s3cret" not in text + said


# 4: a source that stalls


def test_frames_are_committed_though_none_follows(tmp_path: Path, street_folder: Path) -> None:
    from anchor3r.pipeline.mapper import Mapper
    from anchor3r.predictors.ground_truth import GroundTruthPredictor
    from toy_source import ToySource

    with MapWriter.create(tmp_path / "map", config=StoreConfig(commit_interval_s=0.2)) as store:
        frames = iter(Mapper(GroundTruthPredictor(), store).run(ToySource(8)))
        for _ in range(3):
            next(frames)
        until = time.monotonic() + 20
        while time.monotonic() < until:  # and no frame comes
            with load_map(tmp_path / "map") as scene_map:
                if scene_map.num_frames == 3:
                    break
            time.sleep(0.05)
        assert scene_map is not None
        with load_map(tmp_path / "map") as scene_map:
            assert scene_map.num_frames == 3


# 6: foreign maps are not trusted


@contextmanager
def counting_server() -> Iterator[tuple[int, list[bytes]]]:
    """Its port, and what it was asked for."""
    asked: list[bytes] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked.append(self.request.recv(1000))

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], asked
        server.shutdown()


def test_nothing_is_fetched_because_a_map_says_so(copied: Path, run: Run) -> None:
    with counting_server() as (port, asked):
        with load_map(copied) as scene_map:
            identity = scene_map.meta["identity"] | {"source": f"http://127.0.0.1:{port}/clip.mp4"}
        change(copied, "UPDATE meta SET value = ? WHERE key = 'identity'", json.dumps(identity))
        run("export", "map", "--format", "nerfstudio", "--out", "out")
        run("export", "map", "--format", "colmap", "--out", "out2")
    assert not asked


def test_text_of_a_map_is_no_script(copied: Path, run: Run) -> None:
    loop = Loop(event=0, query=9, match=0, state=LoopState.FITS, figures={"<script>a</script>": 1.0})
    with MapWriter.open(copied) as store:
        store.write_loops([(loop, [])])
        identity = {"source": "<script>a</script>", "predictor": "<script>a</script>"}
        store.write_meta(identity=identity, versions={"anchor3r": "<script>a</script>"})
    assert run("report", "map", "--out", "page.html")[0] == 0
    assert "<script>a" not in Path("page.html").read_text()
    assert run("view", "map", "--save", "site")[0] == 0
    assert "<script>a" not in Path("site/index.html").read_text()
    change(copied, "UPDATE loops SET reason = '<script>a</script>'")
    assert run("report", "map", "--out", "again.html")[0] == 1


def say_of_itself(folder: Path, **identity: str) -> None:
    with load_map(folder) as scene_map:
        changed = scene_map.meta["identity"] | identity
    change(folder, "UPDATE meta SET value = ? WHERE key = 'identity'", json.dumps(changed))


def test_text_of_a_map_that_is_no_unicode_is_escaped(copied: Path, run: Run) -> None:
    say_of_itself(copied, source="\ud800", predictor="\udcff")
    for kind in ("ply", "pcd", "tum", "las", "rrd", "mcap"):
        assert run("export", "map", "--format", kind, "--out", f"out.{kind}")[0] == 0
    assert run("export", "map", "--format", "nerfstudio", "--images", "map", "--out", "project")[0] == 0
    assert run("report", "map", "--out", "page.html")[0] == 0
    assert "\\ud800" in Path("page.html").read_text()
    assert run("view", "map", "--save", "site")[0] == 0


def test_a_line_break_in_a_name_does_not_end_a_comment(copied: Path, run: Run) -> None:
    say_of_itself(copied, source="a\n9 0 0 0 0 0 0 1\nend_header\n")
    for kind in ("tum", "ply", "pcd"):
        assert run("export", "map", "--format", kind, "--out", f"out.{kind}")[0] == 0
    with load_map(copied) as scene_map:
        assert len(np.loadtxt("out.tum")) == len(scene_map.trajectory())
    assert Path("out.ply").read_bytes().count(b"\nend_header\n") == 1
    assert Path("out.pcd").read_bytes().splitlines()[3] == b"VERSION 0.7"


@pytest.mark.parametrize("name", [os.fsdecode(b"\xff"), "$\\frac{$", "a\nb"])
def test_figures_have_names_as_they_are(name: str, copied: Path, run: Run) -> None:
    """Neither as formulas, nor as bytes that no font has."""
    copied.rename(name)
    assert run("evaluate", "map", name, "--out", "map-figures")[0] == 0
    assert run("evaluate", "trajectory", name, name, "--out", "figures")[0] == 0
    assert Path("figures/trajectory.png").stat().st_size > 1000
    assert run("train", "tiny", "--cost", "--data", f"map:{name}")[0] in (0, 1)


@pytest.mark.parametrize("time_s", ["timestamp_s + 1e15", "timestamp_s - 1e6", "timestamp_s * 1e200 + 1e200"])
def test_times_that_no_recording_has_are_refused(time_s: str, copied: Path, run: Run) -> None:
    change(copied, f"UPDATE frames SET timestamp_s = {time_s}, checksum = NULL")
    for kind in ("mcap", "rosbag2"):
        code, said = run("export", "map", "--format", kind, "--out", f"out.{kind}")
        assert code == 1
        assert "before 1970 or after 2038" in said
    assert run("export", "map", "--format", "tum", "--out", "out.tum")[0] == 0


RESULTS = {
    "format_version": 1, "benchmark": "kitti", "method": "m", "protocol": {}, "config": {}, "versions": {},
    "hardware": {},
}  # fmt: skip


@pytest.mark.parametrize("name", ["\x1b[31m", "\ud800", "a|b", "a\nb", "../x", "/x"])
@pytest.mark.parametrize("place", ["method", "sequence", "variant"])
def test_results_are_called_by_what_a_table_and_a_file_can_have(name: str, place: str, run: Run) -> None:
    called = {"method": "m", "sequence": "00", "variant": "online"} | {place: name}
    result = {"num_frames": 5, "variants": {called["variant"]: {"ate_rmse_m": 1.0}}}
    content = RESULTS | {"method": called["method"], "sequences": {called["sequence"]: result}}
    Path("results.json").write_text(json.dumps(content))
    for command in (("compare", "results.json"), ("figures", "results.json", "--out", "figures")):
        code, said = run("evaluate", *command)
        assert code == 1
        assert "which no results have" in said


@pytest.mark.parametrize(
    ("protocol", "window"),
    [({"metrics": 5}, None), ({"metrics": [{}]}, None), ({"alignment": "x"}, None), ({}, "x"), ({}, {})],
)
def test_results_of_other_kinds_are_refused(protocol: dict, window: object, run: Run) -> None:
    result = {"num_frames": 5, "variants": {"online": {"ate_rmse_m": 1.0}}, "made_from": {"window": window}}
    Path("results.json").write_text(json.dumps(RESULTS | {"protocol": protocol, "sequences": {"00": result}}))
    for command in (("compare", "results.json"), ("figures", "results.json", "--out", "figures")):
        assert run("evaluate", *command)[0] == 1


@pytest.mark.parametrize(
    "text", ["", "frame,seconds\n1,2\n", "a,b,c\n0,nan,1\n", "a,b,c\n0,-1,1\n", "a,b,c\n0,0,1\n"]
)
def test_what_frames_have_cost_is_read_as_what_it_has_to_be(text: str, run: Run) -> None:
    Path("00").mkdir()
    Path("00/runtime.csv").write_text(text)
    result = {"num_frames": 1, "variants": {"online": {"ate_rmse_m": 1.0}}}
    Path("results.json").write_text(json.dumps(RESULTS | {"sequences": {"00": result}}))
    code, _ = run("evaluate", "figures", "results.json", "--out", "figures")
    assert code == int("0,0,1" not in text)


@pytest.mark.parametrize(
    ("recipe", "log"),
    [
        ("", ""),
        ("[]", ""),
        ("{}", ""),
        ('{"steps": "x"}', ""),
        ('{"steps": 1}', '{"val/score": 1}\n{"st'),
        ("fifo", ""),
    ],
)
def test_folders_of_no_ablation_are_refused(recipe: str, log: str, run: Run) -> None:
    for seed in ("seed-0", "seed-x"):
        Path("runs/baseline", seed).mkdir(parents=True)
        Path("runs/baseline", seed, "log.jsonl").write_text(log)
        if recipe == "fifo":
            os.mkfifo(f"runs/baseline/{seed}/recipe.json")
        else:
            Path("runs/baseline", seed, "recipe.json").write_text(recipe)
    assert run("evaluate", "ablation", "runs", "--frames", "2")[0] == 1


@pytest.mark.parametrize("content", [b"\xff\xfe", b"cam_l:\n  intrinsics: [1e999, 1, 1, 1]\n", None])
def test_a_calibration_that_is_none_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "calibration.yaml"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    with pytest.raises(Anchor3RError):
        yaml_numbers(path, "cam_l", "intrinsics", count=4)


def merging(levels: int) -> str:
    """Some lines of YAML that stand for nine mappings to the power of the levels."""
    lines = ["a0: &a0 {x: 1}"]
    for k in range(1, levels):
        lines += [f"a{k}: &a{k}", f"  <<: [{', '.join([f'*a{k - 1}'] * 9)}]"]
    return "\n".join(lines)


def test_yaml_that_multiplies_itself_is_refused(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("rosbags")
    Path("ros2").mkdir()
    Path("ros2/metadata.yaml").write_text(merging(12))
    assert "it merges mappings" in run("map", "bag:ros2", "--out", "out")[1]
    camera = Path("euroc/mav0/cam0")
    (camera / "data").mkdir(parents=True)
    Image.new("L", (64, 48)).save(camera / "data/1000000000.png")
    (camera / "data.csv").write_text("#timestamp [ns],filename\n1000000000,1000000000.png\n")
    (camera / "sensor.yaml").write_text(merging(12))
    assert "it merges mappings" in run("map", "euroc:euroc", "--out", "out")[1]


def test_weights_of_netvlad_of_other_shapes_are_refused(tmp_path: Path) -> None:
    import torch

    from anchor3r.loops.netvlad import read_weights

    state = {
        f"encoder.{k}.{name}": torch.zeros(3, 3, 3, 3)[..., 0]
        for k in range(40)
        for name in ("weight", "bias")
    }
    for odd in (torch.zeros(()), torch.zeros(3), torch.zeros(2, 2)):
        last = dict.fromkeys(("pool.conv.weight", "pool.centroids", "WPCA.0.weight", "WPCA.0.bias"), odd)
        torch.save(state | last, tmp_path / "net.pth")
        with pytest.raises(Anchor3RError):
            read_weights(tmp_path / "net.pth")


def test_attention_that_is_none_is_refused(run: Run) -> None:
    for arrays in (
        {},
        {"a": np.zeros((1, 2, 2))},
        {"a": -np.ones((1, 2, 2))},
        {"a": np.full((1, 2, 2), 1e308)},
    ):
        np.savez("attention.npz", **arrays)
        assert run("evaluate", "figures", "--attention", "attention.npz", "--out", "figures")[0] == 1


def test_a_name_in_a_map_does_not_lead_out_of_the_folder(copied: Path, run: Run) -> None:
    with load_map(copied) as scene_map, MapWriter.open(copied) as store:
        store.write_refinement("other", scene_map.trajectory())
    change(copied, "UPDATE poses SET name = '../../outside', checksum = NULL WHERE name = 'other'")
    assert run("evaluate", "map", "map", "--out", "deep/er/out")[0] == 1
    assert not list(Path().rglob("outside*"))


# 8: checkpoints


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("camera_depth", 10**9),
        ("camera_iterations", 10**5),
        ("dim", "x"),
        ("depth", None),
        ("window", -1),
        ("head_layers", [0, 1]),
        ("matching", 5),
        ("encoder", {}),
        ("num_heads", 0),
        ("new", 1),
        ("area", 1e30),
        ("point_stride", 64),
        ("point_stride", 8),
    ],
)
def test_configurations_are_checked_before_they_are_used(field: str, value: object, run: Run) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    from anchor3r.model import TINY_WEIGHTS

    with safe_open(TINY_WEIGHTS, "pt") as file:
        config = json.loads(file.metadata()["config"])
        tensors = {name: file.get_tensor(name) for name in list(file.keys())[:3]}
    save_file(tensors, "net.safetensors", metadata={"config": json.dumps(config | {field: value})})
    assert run("map", "world:3?frames=4", "--predictor", "net.safetensors", "--out", "out")[0] == 1
    assert not Path("out").exists()


def test_damaged_pickles_and_foreign_states_are_refused(run: Run) -> None:
    import torch

    torch.save({"weights": {}, "step": "x"}, "state.pt")
    for name, content in {"a.pt": b"\x80\x04K\x01.", "b.pt": b"PK\x03\x04" + b"x" * 80, "c.pt": b""}.items():
        Path(name).write_bytes(content)
        assert run("convert", "vggt", name, "--out", "out.safetensors")[0] == 1
    Path("run").mkdir()
    shutil.move("state.pt", "run/state.pt")
    code, said = run("train", "tiny", "--out", "run", "--resume", "--steps", "1")
    assert code == 1
    assert "not a training state" in said


# 9: damaged maps


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("points", "colours"),
        ("points", "points"),
        ("poses", "pose"),
        ("points", "scale"),
        ("frames", "timestamp_s"),
    ],
)
def test_a_changed_bit_is_found_out(table: str, column: str, copied: Path, run: Run) -> None:
    database = sqlite3.connect(copied / "map.sqlite")
    (value,) = database.execute(f"SELECT {column} FROM {table} WHERE frame = 3").fetchone()
    if isinstance(value, bytes):
        value = value[:40] + bytes([value[40] ^ 1]) + value[41:]
    else:
        value *= 2
    with database:
        database.execute(f"UPDATE {table} SET {column} = ? WHERE frame = 3", (value,))
    database.close()
    code, said = run("export", "map", "--format", "ply", "--out", "out.ply")
    if table == "frames":
        code, said = run("report", "map", "--out", "out.html")
    assert code == 1
    assert "damaged" in said


def test_a_changed_bit_of_what_a_map_says_of_itself_is_found_out(copied: Path, run: Run) -> None:
    database = sqlite3.connect(copied / "map.sqlite")
    with database:
        database.execute("UPDATE meta SET key = 'x' WHERE key = 'ground_truth_predictor'")
    database.close()
    code, said = run("export", "map", "--format", "tum", "--out", "out.tum")
    assert code == 1
    assert "what it says of itself" in said


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE verdicts RENAME TO kept; CREATE VIEW verdicts AS WITH RECURSIVE c(x) AS (SELECT 1 UNION "
        "ALL SELECT x + 1 FROM c) SELECT 'offline' AS name, x AS event, 1 AS accepted, 'fits' AS reason, "
        "'{}' AS figures FROM c",
        "CREATE TRIGGER t AFTER INSERT ON refinements BEGIN DELETE FROM poses; END",
        "ALTER TABLE runtime ADD COLUMN x AS (hex(zeroblob(400000000)))",
    ],
)
def test_a_map_that_computes_what_it_holds_is_refused(statement: str, copied: Path, run: Run) -> None:
    """A query might never end, or a change bring others along."""
    database = sqlite3.connect(copied / "map.sqlite")
    database.executescript(statement)
    database.close()
    for command in (("report", "map", "--out", "out.html"), ("refine", "map", "--no-loops")):
        code, said = run(*command)
        assert code == 1
        assert "which no map does" in said


def test_names_that_are_no_text_are_told_as_damage(copied: Path, run: Run) -> None:
    path = copied / "map.sqlite"
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE frames", b"CREATE TABLE f\xa8\xffmes"))
    code, said = run("export", "map", "--format", "tum", "--out", "out.tum")
    assert code == 1
    assert "damaged" in said


@pytest.mark.parametrize(
    "options",
    [
        ("--method", "joint"),
        ("--method", "decoupled"),
        ("--method", "paper"),
        ("--camera-height", "1.5"),
    ],
)
def test_edges_of_frames_without_poses_are_refused(options: tuple[str, ...], copied: Path, run: Run) -> None:
    change(copied, "DELETE FROM poses WHERE frame % 2")
    code, said = run("refine", "map", "--no-loops", *options)
    assert code == 1
    assert "have no online pose, the first is 1" in said


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE points SET points = x'00', checksum = NULL",
        "UPDATE points SET colours = x'ff', checksum = NULL",
        "UPDATE points SET width = 100000, height = 100000, checksum = NULL",
        "UPDATE poses SET pose = x'00', checksum = NULL",
        "UPDATE points SET camera = '[]', checksum = NULL",
        "UPDATE meta SET value = '{'",
        "UPDATE meta SET value = '5'",
        "DROP TABLE points",
    ],
)
def test_contents_that_no_mapper_wrote_are_refused(statement: str, copied: Path, run: Run) -> None:
    change(copied, statement)
    for number, kind in enumerate(("ply", "glb")):
        assert run("export", "map", "--format", kind, "--out", f"out{number}")[0] == 1
    assert run("report", "map", "--out", "out.html")[0] == 1
    assert run("view", "map", "--save", "site")[0] == 1


@pytest.mark.parametrize(
    "statement",
    [
        "edge_groups SET information = '[1]'",
        "edge_groups SET kind = 'x'",
        "frames SET timestamp_s = 'x'",
        "poses SET component = 'x'",
    ],
)
def test_damaged_maps_are_not_merged(statement: str, copied: Path, run: Run) -> None:
    part = ("world:5?width=64&height=48&motion=driving&frames=11", "--stop", "6")
    assert run("map", *part, "--predictor", "ground-truth:0,0", "--out", "other")[0] == 0
    change(copied, f"UPDATE {statement}, checksum = NULL")
    for pair in (("map", "other"), ("other", "map")):
        code, said = run("merge", *pair, "--out", "out")
        assert code == 1
        assert "damaged" in said
        assert not Path("out").exists()


# 10: graphs


def graph_of(translation: np.ndarray, information: object = np.nan) -> MotionGraph:
    frames = np.arange(6)
    return MotionGraph(Edges.of(frames, frames + 1, np.eye(3), translation, information=information))


@pytest.mark.parametrize("size", [1e59, 1e120, 1e200, 1e308])
def test_translations_beyond_computing_are_no_solution(size: float, run: Run) -> None:
    save_graph(Path("graph.npz"), graph_of(np.array([0.0, 0, size])))
    code, _ = run("solve", "graph.npz", "--out", "out.tum")
    if code == 0:
        assert np.isfinite(np.loadtxt("out.tum")).all()
    assert code == 1 or size < 1e60


def test_zero_information_has_words(run: Run) -> None:
    save_graph(Path("graph.npz"), graph_of(np.array([0.0, 0, 1]), np.zeros((6, 6))))
    for options in ((), ("--loss", "none")):
        code, _ = run("solve", "graph.npz", "--out", "out.tum", *options)
        assert code == 1 or np.isfinite(np.loadtxt("out.tum")).all()


# 11: nonsense

SMALL = "world:3?frames=4&width=16&height=16"


@pytest.mark.parametrize(
    "options",
    [
        ("--intrinsics", "nan,nan,nan,nan"),
        ("--fov", "70", "--distortion", "nan"),
        ("--fov", "nan"),
        ("--window", "0"),
        ("--window", "-5"),
        ("--window", "100000000"),
        ("--seed", "-1"),
        ("--seed", str(10**30)),
        ("--threads", "0"),
        ("--threads", "100000"),
        ("--start", str(10**30)),
        ("--stride", str(10**30)),
    ],
)
def test_options_without_sense_are_refused(options: tuple[str, ...], run: Run) -> None:
    assert run("map", SMALL, "--predictor", "ground-truth", "--out", "out", *options)[0] == 1


def test_a_map_without_poses_has_no_trajectory(copied: Path, run: Run) -> None:
    change(copied, "DELETE FROM poses")
    assert run("evaluate", "trajectory", "map", "map")[0] == 1


@pytest.mark.parametrize("name", ["x" * 201, "é" * 101, "online", "../x", "a b", "", "\x1b[31m"])
def test_names_that_poses_cannot_have_leave_the_map_as_it_was(name: str, copied: Path, run: Run) -> None:
    assert run("refine", "map", "--no-loops", "--name", name)[0] == 1
    with load_map(copied) as scene_map:
        assert name == "online" or name not in scene_map.trajectory_names()


def test_poses_that_could_not_be_read_back_are_not_kept(copied: Path) -> None:
    with load_map(copied) as scene_map, MapWriter.open(copied) as store:
        trajectory = scene_map.trajectory()
        log_scale = np.zeros(len(trajectory))
        for name, bad in {
            "nan": replace(trajectory, center=trajectory.center * np.nan),
            "huge": replace(trajectory, center=trajectory.center + 1e200),
            "bent": replace(trajectory, rotation=2 * trajectory.rotation),
            "scale": replace(trajectory, log_scale=log_scale + 1e3),
            "x" * 300: trajectory,
            "a/b": trajectory,
        }.items():
            with pytest.raises(Anchor3RError, match="beyond all bounds"):
                store.write_refinement(name, bad)
    with load_map(copied) as scene_map:
        assert scene_map.trajectory_names() == ["online"]


PRIORS = {
    "directions": "frame,heading,heading_sigma\n1,10,%s\n5,10,2\n",
    "surveyed": "0 0 0 0 %s\n3 0 0 30 1\n7 0 0 70 1\n9 0 0 90 1\n",
    "gnss": "time,x,y,z,sigma\n" + "".join(f"{k / 10},0,{k},0,%s\n" for k in range(10)),
}


@pytest.mark.parametrize("option", PRIORS)
@pytest.mark.parametrize("number", ["1e-200", "1e200", "inf", "0" * 140_000 + "1", "9" * 5000])
def test_spreads_that_nothing_has_are_refused(option: str, number: str, tmp_path: Path, run: Run) -> None:
    copied = tmp_path / "measured"  # with noise, without which no scale is known to any spread
    world = "world:5?width=64&height=48&motion=driving&frames=11"
    map_source(world, copied, MapSettings(predictor="ground-truth:0.1,0.01"))
    Path("known.csv").write_text(PRIORS[option].replace("%s", number))
    code, said = run("refine", copied, "--no-loops", f"--{option}", "known.csv")
    assert (code == 0) == (option == "surveyed" and number.endswith("01")), said
    with load_map(copied) as scene_map:
        assert np.isfinite(scene_map.trajectory().center).all()


@pytest.mark.parametrize(
    "options",
    [
        ("--distance", "0", "9", "1e300"),
        ("--distance", "0", "9", "1e-300"),
        ("--distance", "9" * 5000, "9", "1"),
        ("--distance", "0:1.2.3,4", "9", "1"),
        ("--distance", "0", "9", "10", "--distance-sigma", "1e-200"),
        ("--camera-height", "1e-320"),
        ("--surveyed", "far.txt"),
        ("--gnss", "track.csv", "--gnss-sigma", "1e-200"),
    ],
)
def test_lengths_that_nothing_has_are_refused(options: tuple[str, ...], copied: Path, run: Run) -> None:
    Path("far.txt").write_text("".join(f"{k} {k}e200 0 0 1\n" for k in range(1, 9)))
    Path("track.csv").write_text(PRIORS["gnss"].replace("%s", "1"))
    assert run("refine", "map", "--no-loops", *options)[0] == 1
    with load_map(copied) as scene_map:
        assert scene_map.trajectory_names() == ["online"]


# 12: what would fill the memory or never end


def test_archives_that_unpack_to_gigabytes_are_refused(run: Run) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<i8", "fortran_order": False, "shape": (1 << 30,)}
    )
    with zipfile.ZipFile("graph.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("frame_i.npy", header.getvalue() + bytes(1 << 20))
    assert run("solve", "graph.npz")[0] == 1


@pytest.mark.parametrize(
    "name",
    ["in.npz", "in.g2o", "in.safetensors", "in.mp4", "in.png", "in.tum", "in.bag", "in.mcap", "in.db3"],
)
def test_pipes_and_devices_are_no_files(name: str, run: Run) -> None:
    os.mkfifo(name)
    commands = {
        "in.npz": ("solve", name), "in.g2o": ("solve", name),
        "in.tum": ("evaluate", "trajectory", name, name),
        "in.safetensors": ("convert", "vggt", name, "--out", "out.safetensors"),
    }  # fmt: skip
    assert run(*commands.get(name, ("map", name, "--out", "out")))[0] == 1


def test_pipes_in_the_folder_of_a_recording_are_not_waited_for(run: Run) -> None:
    pytest.importorskip("rosbags")
    Path("ros2").mkdir()
    Path("ros2/metadata.yaml").write_text("rosbag2_bagfile_information: {}\n")
    os.mkfifo("ros2/0.db3")
    assert "device, pipe or socket" in run("map", "bag:ros2", "--out", "out")[1]


def test_links_that_go_round_in_circles_have_words(run: Run) -> None:
    Path("round").symlink_to("round")
    Path("nobody").mkdir()
    commands = (
        ("train", "tiny", "--data", "map:round", "--out", "out", "--steps", "1"), ("data", "list", "round"),
        ("data", "check", "co3d", "~nobody-of-that-name/x"), ("map", "tum:round", "--out", "out"),
        ("import", "round", "--source", SMALL, "--out", "out"), ("data", "pack", "round", "out"),
    )  # fmt: skip
    for command in commands:
        assert run(*command)[0] == 1


def test_an_archive_that_is_called_an_array_of_depth_is_refused(copied: Path, run: Run) -> None:
    assert run("export", "map", "--format", "tum", "--out", "map.tum")[0] == 0
    Path("depth").mkdir()
    for k in range(4):
        np.savez(f"depth/{k}.npz", a=np.ones((16, 16)), b=np.ones((16, 16)))
        os.rename(f"depth/{k}.npz", f"depth/{k}.npy")
    given = ("--source", SMALL, "--pairing", "order", "--depth", "depth")
    assert "write one array" in run("import", "map.tum", *given, "--out", "out")[1]


@pytest.mark.parametrize(
    "world", ["3?frames=10000000", "3?width=30000&height=30000", "3?noise=nan", "99999999999999999999999"]
)
def test_worlds_have_limits(world: str, run: Run) -> None:
    assert run("map", f"world:{world}", "--out", "out")[0] == 1


def test_an_image_that_declares_too_much_is_not_decoded(run: Run) -> None:
    Path("images").mkdir()
    Image.new("1", (13_000, 13_000)).save("images/0.png")
    assert run("map", "images", "--out", "out")[0] == 1
    with pytest.raises(UndecodableFrameError, match="more than 64,000,000"):
        read_image("images/0.png")


# 13: where output goes


def anchor3r(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "anchor3r", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_a_full_or_ascii_output_has_words(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = anchor3r("--help", stdout=full)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert done.stderr.startswith(b"anchor3r: cannot print")
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = anchor3r("solve", "graph ½.npz", cwd=tmp_path, env=ascii_only)
    assert done.returncode == 1
    assert b"graph \\xbd.npz" in done.stderr


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_streams_are_no_files(closed: tuple[int, ...], tmp_path: Path) -> None:
    """What is printed goes nowhere, and not into the next file that is opened."""

    def close() -> None:
        for number in closed:
            os.close(number)

    kept = tmp_path / "kept"
    with open(kept, "w") as file:
        command = [sys.executable, "-m", "anchor3r", "map"]
        done = subprocess.run(command, stdout=file, stderr=file, preexec_fn=close, check=False)
    assert done.returncode == 2
    assert "Traceback" not in kept.read_text()


def test_a_folder_that_is_gone_has_words(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m anchor3r solve x.npz"
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2]), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, env=environment, check=False)
    assert done.returncode == 1
    assert b"the folder that this runs in is gone" in done.stderr


def test_recordings_for_rerun_have_any_name_and_end_on_a_full_disk(copied: Path, run: Run) -> None:
    pytest.importorskip("rerun")
    name = os.fsdecode(b"\xff")
    copied.rename(name)
    assert run("export", name, "--format", "rrd", "--out", f"{name}.rrd")[0] == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        code, said = run("export", name, "--format", "rrd", "--out", "out.rrd")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 1
    assert "File too large" in said
    assert not Path("out.rrd").exists()


def test_a_short_demo_has_words(run: Run) -> None:
    code, said = run("demo", "--frames", "2", "--out", "out")
    assert code == 0 or "use more --frames" in said


def test_errors_are_one_line_that_a_terminal_shows(run: Run) -> None:
    code, said = run("solve", "a\nb\x1b[31m.npz")
    assert code == 1
    assert said.count("\n") == 1
    assert "\x1b" not in said


def test_what_is_skipped_is_told_in_one_line(tmp_path: Path) -> None:
    for name in ("0.png", "\x1b[31m\n1.png"):
        (tmp_path / name).write_text("no image")
    given = ("--predictor", "features", "--order", "stream", "--out", str(tmp_path / "out"))
    done = anchor3r("map", str(tmp_path), *given)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 3
    assert b"\x1b" not in done.stderr


def test_a_finished_map_opens_on_read_only_media(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load_map(copied) as scene_map:
        assert scene_map.num_frames
    assert {path.name for path in copied.iterdir()} <= {"map.sqlite", "writer.lock"}
    (copied / "map.sqlite-wal").touch()  # as earlier versions left it
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    with load_map(copied) as scene_map:
        assert scene_map.num_frames


def test_a_page_about_a_growing_map_is_of_one_moment(copied: Path) -> None:
    with load_map(copied) as scene_map, scene_map.frozen():
        before = scene_map.counts()
        with MapWriter.open(copied) as store:
            store.write_trajectory("later", scene_map.trajectory())
        assert scene_map.counts() == before
        assert "later" not in scene_map.trajectory_names()
    with load_map(copied) as scene_map:
        assert "later" in scene_map.trajectory_names()
