"""What `pip install` makes of this repository: a wheel and an sdist, in an environment that has nothing else,
of each Python that is at hand; and the steps of the Dockerfile, without Docker.

Slow: it downloads or links some hundred megabytes for each. Run it with `make install-test`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
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

PYTHONS = ("3.11", "3.12", "3.13")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def done(*command: object, code: int = 0, cwd: Path | None = None, **environment: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    found = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, env=environment, cwd=cwd
    )
    assert found.returncode == code, f"{command}\n{found.stdout}\n{found.stderr}"
    return found.stdout + found.stderr


def interpreter(version: str) -> Path | None:
    """This Python, one on the path, or one of pyenv's, of the version; None if there is none that runs."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return Path(sys.executable)
    on_path, pyenv = shutil.which(f"python{version}"), Path(os.environ.get("PYENV_ROOT", "~/.pyenv"))
    candidates = [on_path, *sorted(pyenv.expanduser().glob(f"versions/{version}.*/bin/python"))]
    for found in [str(candidate) for candidate in candidates if candidate is not None]:
        if subprocess.run([found, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return Path(found)
    return None


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with wheel and sdist; the wheel is made from the sdist, as an index would."""
    folder = tmp_path_factory.mktemp("dist")
    done(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module", params=PYTHONS)
def installed(request: pytest.FixtureRequest, built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands of a clean environment are, with the wheel and no extra."""
    python = interpreter(request.param)
    if python is None:
        pytest.skip(f"there is no Python {request.param} here")
    folder = tmp_path_factory.mktemp(f"environment-{request.param}")
    done(python, "-m", "venv", folder)
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


def steps_of_the_dockerfile() -> list[tuple[str, str]]:
    """(instruction, the rest of its line) of each step, without comments."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def test_the_steps_of_the_dockerfile(tmp_path: Path) -> None:
    """Each step that is not Docker's own is done as it stands there, in a folder instead of the image."""
    image, source = tmp_path / "image", tmp_path / "source"
    source.mkdir()
    tools = tmp_path / "bin"  # of the image that the first one is made from
    tools.mkdir()
    (tools / "python").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    known = {"PATH": f"{tools}:/usr/bin:/bin"}

    def inside(text: str) -> str:
        return text.replace("/opt/anchor3r", str(image))

    ran = []
    for instruction, rest in steps_of_the_dockerfile():
        if instruction == "ARG":
            name, _, value = rest.partition("=")
            known[name] = value
        elif instruction == "ENV":
            for name, value in re.findall(r"(\w+)=(\S+)", rest):
                known[name] = inside(value).replace("$PATH", known["PATH"])
        elif instruction == "COPY" and not rest.startswith("--from"):
            for name in rest.split()[:-1]:
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy(ROOT / name, source / name)
        elif instruction == "RUN":
            ran.append(done("sh", "-c", inside(rest), cwd=source, **known))
        else:
            assert instruction in ("FROM", "COPY", "WORKDIR", "EXPOSE", "ENTRYPOINT", "CMD"), instruction
    assert "self-test features" in ran[-1]
    assert "extra bags: rosbags" in ran[-1]
    assert any((image / "kernels").rglob("*.nbc")), "kernels are compiled when the image is made"
    assert "streaming" in done(image / "bin" / "anchor3r", "--help").lower()
