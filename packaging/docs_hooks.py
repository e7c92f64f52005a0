"""What the documentation site takes from the code as it is built: the page of all commands."""

from __future__ import annotations

import contextlib
import io
import os
import re
from typing import Any

from mkdocs.structure.files import File, Files

TABLES = re.compile(r"^ ?(?:╭─ )?(?:positional arguments|options|subcommands)", re.MULTILINE)
"""Where the tables of a command's help begin; before them stand its usage and what it does."""
SUBCOMMANDS = re.compile(r"^usage: anchor3r \S+ \[-h\] \{([^}]*)\}", re.MULTILINE)


def help_of(*arguments: str) -> str:
    """What the command prints for --help, without colours."""
    from anchor3r.cli.main import main

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        main([*arguments, "--help"])
    return text.getvalue().strip()


def section(heading: str, text: str) -> list[str]:
    """The help of a command under a heading: what it does as text, usage and options as they are printed."""
    first = TABLES.search(text)
    assert first is not None, text
    usage, _, does = text[: first.start()].partition("\n\n")
    tables = "\n".join(line.rstrip() for line in text[first.start() :].splitlines())
    return ["", heading, "", does.strip(), "", f"```text\n{usage}\n\n{tables}\n```"]


def page_of_commands() -> str:
    """A heading and the help of every command, and of its subcommands."""
    from anchor3r.cli.main import COMMANDS

    os.environ |= {"NO_COLOR": "1", "COLUMNS": "82", "TERM": "dumb"}
    parts = ["# Commands", "", "Made from the code: `anchor3r help COMMAND` prints the same."]
    for name in COMMANDS:
        text = help_of(name)
        parts += section(f"## anchor3r {name}", text)
        found = SUBCOMMANDS.search(text)
        for subcommand in found[1].split(",") if found else ():
            parts += section(f"### anchor3r {name} {subcommand}", help_of(name, subcommand))
    return "\n".join(parts) + "\n"


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated page."""
    files.append(File.generated(config, "reference/commands.md", content=page_of_commands()))
    return files
