"""The pages that teach are true: their commands and their Python run as they stand there, on small inputs."""

from __future__ import annotations

import re
import shlex
import shutil
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from anchor3r.cli.main import main
from anchor3r.sources import Frame, open_source
from recordings import Recorded, write_ros1, write_ros2, write_ros2_mcap_file

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS / "index.md", *sorted((DOCS / "how-to").glob("*.md"))]
STREET = "world:5?motion=driving&width=128&height=96&frames=30"
RATE_HZ = 5
BEGAN = datetime(2024, 5, 1, 10, 20, 30, tzinfo=UTC)
INSTEAD = {
    ".venv/bin/anchor3r": "anchor3r",
    "view my_map": "view my_map --save page",
    "--rerun spawn": "--rerun live.rrd",
    "--workers 4": "--workers 1",
    "$SLURM_ARRAY_TASK_ID": "0",
    "--distance 10 240 3.52 --distance 30 410 2.08": "--distance 3 20 3.52 --distance 5 25 2.08",
    "--steps 500": "--steps 2 --clips 1",
    "kitti ROOT": "kitti data --sequences 00",
    "results/a/results.json results/b/results.json": "results/results.json results/results.json",
}
"""What a page says that is too long for a test or needs a screen, and what is done in its place."""


@pytest.fixture(scope="module")
def street() -> list[Frame]:
    with open_source(STREET) as source:
        return list(source)


@pytest.fixture(scope="module")
def video(street: list[Frame], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("video") / "street.mp4", street)


def write_video(path: Path, street: list[Frame]) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE_HZ, options={"crf": "12"})
        stream.height, stream.width = street[0].image.shape[:2]
        stream.pix_fmt, stream.codec_context.time_base = "yuv420p", Fraction(1, RATE_HZ)
        for k, frame in enumerate(street):
            picture = av.VideoFrame.from_ndarray(frame.image, format="rgb24")
            picture.pts, picture.time_base = k, Fraction(1, RATE_HZ)
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return path


def centers(street: list[Frame]) -> np.ndarray:
    poses = [frame.camera_from_world for frame in street]
    return np.array([pose.center() for pose in poses if pose is not None])


def write_track(street: list[Frame]) -> None:
    """track.gpx: a position a second around 48° north, and speed.txt."""
    points = []
    for second, (x, _, z) in enumerate(centers(street)[::RATE_HZ]):
        time = (BEGAN + timedelta(seconds=second)).isoformat().replace("+00:00", "Z")
        latitude, longitude = 48 + z / 111_200, 11 + x / (111_320 * np.cos(np.radians(48)))
        point = f'<trkpt lat="{latitude:.9f}" lon="{longitude:.9f}"><ele>500</ele><time>{time}</time></trkpt>'
        points.append(point)
    track = f"<trk><trkseg>{''.join(points)}</trkseg></trk>"
    Path("track.gpx").write_text(
        f'<gpx xmlns="http://www.topografix.com/GPX/1/1" version="1.1">{track}</gpx>'
    )
    speed = np.linalg.norm(np.diff(centers(street), axis=0), axis=1) * RATE_HZ
    lines = [f"{(k + 0.5) / RATE_HZ} {value}" for k, value in enumerate(speed)]
    Path("speed.txt").write_text("\n".join(lines))


def prepare(page: str, street: list[Frame], video: Path) -> None:
    """What a page takes for granted, in the current folder."""
    for name in ("video", "walk", "drive", "site", "tomorrow", "monday", "tuesday", "videos/a", "videos/b"):
        Path(name).parent.mkdir(exist_ok=True)
        shutil.copy(video, f"{name}.mp4")
    if page == "drive-with-gps":
        write_track(street)
        anchor3r("map drive.mp4 --out room")
    if page == "merge-maps":
        write_video(Path("tuesday.mp4"), street[5:])
    if page == "robot-bag":
        recorded = Recorded(images=[frame.image for frame in street])
        write_ros1(Path("run"), recorded)
        write_ros2(Path("run_folder"), recorded)
        shutil.copy(write_ros2_mcap_file(Path("mcap"), recorded), "run.mcap")
    if page in ("evaluate", "many-videos"):
        anchor3r("world --out data --seed 0 --frames 12 --width 128 --height 96")
    if page == "many-videos":
        (table,) = re.findall(r"```text\n(.*?)```", (DOCS / "how-to/many-videos.md").read_text(), re.DOTALL)
        Path("rows.csv").write_text(table)
    if page in ("evaluate", "read-a-map"):
        anchor3r(f"map '{STREET}' --out my_map")
        anchor3r("refine my_map")
        anchor3r("export my_map --format tum --out mine.tum")
        shutil.copy("mine.tum", "truth.tum")


def anchor3r(command: str) -> None:
    assert main(shlex.split(command)) == 0, command


def commands_of(page: Path) -> list[str]:
    text = "\n".join(re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)).replace("\\\n", " ")
    lines = [re.sub(r"\s+#.*", "", line) for line in text.splitlines()]
    for there, here in INSTEAD.items():
        lines = [line.replace(there, here) for line in lines]
    return [line.removeprefix("anchor3r ") for line in lines if line.startswith("anchor3r ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_says_runs(
    page: Path, street: list[Frame], video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANCHOR3R_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("anchor3r.training.validation.NUM_BATCHES", 1)
    prepare(page.stem, street, video)
    for command in commands_of(page):
        # Some pages show several ways to one result.
        anchor3r(f"{command} --overwrite" if command.startswith("map ") else command)
    for done_again in ("my_map", "both"):  # by the page's Python
        if page.stem in ("index", "merge-maps") and Path(done_again).is_dir():
            shutil.rmtree(done_again)
    names: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
        exec(compile(block, f"{page.name}, Python {number}", "exec"), names)


def test_every_page_is_tried() -> None:
    assert len(PAGES) >= 11
    assert sum(bool(commands_of(page)) for page in PAGES) >= 8
