"""The documentation site builds, every link and reference in it is right, and its commands are real."""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest

import anchor3r
from anchor3r.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    commands = pytest.importorskip("mkdocs.commands.build")
    pytest.importorskip("mkdocstrings")
    pytest.importorskip("material")
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True)
    commands.build(config)
    page = (tmp_path / "reference" / "commands" / "index.html").read_text()
    assert "anchor3r evaluate kitti" in page
    assert "--keyframe-interval" in page


@cache
def help_of(*command: str) -> str:
    from anchor3r.cli.main import main

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        main([*command, "--help"])
    return text.getvalue()


def commands_of(page: Path) -> list[list[str]]:
    """The words of every anchor3r command in the shell blocks of a page."""
    blocks = re.findall(r"```(?:sh|bash)\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [line.split(" #")[0].replace("…", "").split() for line in lines if "anchor3r " in line]
    return [words for words in found if words[0].endswith("anchor3r") and len(words) > 1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_options_on_a_page_are_real(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    for _, name, *words in commands_of(page):
        assert name in COMMANDS or name in ("help", "--version"), name
        subcommand = words[:1] if name in ("evaluate", "data") else []
        told = help_of(name, *subcommand) if name in COMMANDS else ""
        for option in [word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)]:
            positive = option.replace("--no-", "--")
            assert option in told or positive in told, f"{page.name}: anchor3r {name} has no {option}"


@cache
def modules_by_end() -> dict[str, str]:
    """Full names of modules by every way to shorten them from the left."""
    names = [module.name for module in pkgutil.walk_packages(anchor3r.__path__, "anchor3r.")]
    return {name.split(".", k)[k]: name for name in names for k in range(1, name.count(".") + 1)}


def is_real(name: str) -> bool:
    """Whether a dotted name is a module, or something in one, or a member of such a class."""
    parts = name.split(".")
    for k in range(len(parts), 0, -1):
        if module := modules_by_end().get(".".join(parts[:k])):
            found = importlib.import_module(module)
            for part in parts[k:]:
                fields = getattr(found, "__dataclass_fields__", {})
                if not hasattr(found, part) and part not in fields:
                    return False
                found = getattr(found, part, found)
            return True
    return False


@cache
def sources() -> str:
    return "\n".join(path.read_text() for path in (ROOT / "src" / "anchor3r").rglob("*.py"))


@pytest.mark.parametrize("page", ["algorithm", "architecture"])
def test_the_code_that_a_page_names_is_there(page: str) -> None:
    """Names of classes without their module are looked for everywhere."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for name in re.findall(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)+)`", text):
        first, _, rest = name.partition(".")
        if name.endswith(".csv"):
            continue
        if first[0].isupper():
            body = sources().split(f"class {first}", 1)[-1]
            assert f"class {first}" in sources(), name
            assert re.search(rf"\b{rest}\b", body), name
        else:
            assert is_real(name), name


def value_of(config: object, path: str) -> object:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def test_the_page_about_numbers_names_fields_and_values_that_are_there() -> None:
    """Behind a value that has changed since the table was measured stands the present one: 0.25 (now 0.6)."""
    from anchor3r.predictors.features.config import FeaturesConfig
    from anchor3r.predictors.network.predictor import NetworkPredictorConfig

    text = (ROOT / "docs" / "constants.md").read_text()
    before, features, tiny = re.split(r"^### `\w+`", text, flags=re.MULTILINE)
    for table, config in ((features, FeaturesConfig()), (tiny, NetworkPredictorConfig())):
        rows = re.findall(r"^\| `([\w.]+)` \| ([\d.]+)(?: \(now ([\d.]+)\))? \|", table, re.MULTILINE)
        assert len(rows) > 20
        for name, then, now in rows:
            place = "" if hasattr(config, name.partition(".")[0]) else "estimation."
            assert value_of(config, place + name) == float(now or then), name
    for name in re.findall(r"`([A-Za-z_]\w*)`", before + features.split("\n\n")[-2]):
        assert re.search(rf"\b{name}\b", sources()), name
    for path in re.findall(r"`([\w/]+\.py)", before):
        assert (ROOT / path).exists() or (ROOT / "src" / "anchor3r" / path).exists(), path


def test_every_promise_names_tests_that_are_there() -> None:
    """And every line of both tables names one, or a campaign of the Makefile."""
    tests = {path.name: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    promises = (ROOT / "docs/promises.md").read_text()
    named = re.findall(r"`([\w/.]*?)(?:::)?(test_\w+)?`", promises)
    files = {Path(file).name for file, _ in named if file.endswith(".py") and "test" in file}
    functions = {test for _, test in named if test}
    assert len(functions) > 20
    assert files <= tests.keys()
    assert all(re.search(rf"^def {test}\(", "".join(tests.values()), re.MULTILINE) for test in functions)
    assert set(re.findall(r"`make ([a-z]+)`", promises)) <= set(targets)
    rows = [line for line in promises.splitlines() if line.startswith("| ") and "test" in line]
    assert all(
        "test_" in row or "`make " in row for row in rows if not row.startswith(("| promise", "| defect"))
    )
