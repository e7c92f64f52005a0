"""The documentation site builds, every link and reference in it is right, and its commands are real."""

from __future__ import annotations

import contextlib
import io
import re
from functools import cache
from pathlib import Path

import pytest

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
