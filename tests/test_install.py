"""What `pip install` makes of this repository: a wheel and an sdist, in an environment that has nothing else.

Slow: it downloads or links some hundred megabytes. Run it with `make install-test`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WITHOUT_EXTRAS = {
    "bags": ("map", "bag:{map}/recording.mcap", "--out", "{map}/x"),
    "rerun": ("export", "{map}", "--format", "rrd", "--out", "{map}/x.rrd"),
    "exports": ("export", "{map}", "--format", "glb", "--out", "{map}/x.glb"),
    "viewer": ("view", "{map}"),
}
"""Commands that need an extra, which the environment does not have."""

pytestmark = pytest.mark.slow


def done(*command: object, code: int = 0) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, env=environment
    )
    assert found.returncode == code, f"{command}\n{found.stdout}\n{found.stderr}"
    return found.stdout + found.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with wheel and sdist; the wheel is made from the sdist, as an index would."""
    folder = tmp_path_factory.mktemp("dist")
    done(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands of a clean environment are, with the wheel and no extra."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    (wheel,) = built.glob("*.whl")
    index = ("--extra-index-url", "https://download.pytorch.org/whl/cpu")
    pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--retries", "1")
    constraints = ("-c", ROOT / "constraints.txt")
    done(*pip, *constraints, *index, "torch")  # the CPU build, wherever it is found
    done(*pip, *constraints, wheel)
    return folder / "bin"


def test_both_hold_what_they_must(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    data = ("model/weights/tiny.safetensors", "viewer/page.html", "evaluation/paper_results.json", "py.typed")
    assert {f"anchor3r/{name}" for name in data} <= names
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "constraints.txt"} <= held


def test_it_runs_and_teaches(installed: Path, tmp_path: Path) -> None:
    anchor3r = installed / "anchor3r"
    said = done(anchor3r, "demo", "--frames", "60", "--out", tmp_path / "demo")
    assert "ATE" in said
    overview = done(anchor3r, "--help")
    names = re.findall(r"^  (\w+) ", overview, re.MULTILINE)
    assert {"demo", "map", "doctor"} <= set(names)
    for name in names:
        subcommand = {"evaluate": ["kitti"], "data": ["list"]}.get(name, [])
        assert "--json" in done(anchor3r, name, *subcommand, "--help")
    assert "healthy" in done(anchor3r, "doctor", "--no-self-test", "--json")
    recording = tmp_path / "demo" / "map" / "recording.mcap"
    recording.touch()
    for extra, command in WITHOUT_EXTRAS.items():
        told = done(anchor3r, *(part.format(map=tmp_path / "demo" / "map") for part in command), code=1)
        assert f"{installed / 'python'}" in told, extra
        assert "-m pip install" in told, extra
