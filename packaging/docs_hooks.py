"""What the documentation site takes from the code as it is built: the page of all commands."""

from __future__ import annotations

import contextlib
import io
import os
import re
from typing import Any

from mkdocs.structure.files import File, Files

SUBCOMMANDS = re.compile(r"^usage: anchor3r \S+ \[-h\] \{([^}]*)\}", re.MULTILINE)


def help_of(*arguments: str) -> str:
    """What the command prints for --help, without colours."""
    from anchor3r.cli.main import main

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        main([*arguments, "--help"])
    return text.getvalue().strip()


def page_of_commands() -> str:
    """A heading and the help of every command, and of its subcommands."""
    from anchor3r.cli.main import COMMANDS

    os.environ |= {"NO_COLOR": "1", "COLUMNS": "100", "TERM": "dumb"}
    parts = ["# Commands", "", "Made from the code: `anchor3r help COMMAND` prints the same."]
    for name, (_, does) in COMMANDS.items():
        text = help_of(name)
        parts += ["", f"## anchor3r {name}", "", f"{does[0].upper()}{does[1:]}.", "", f"```text\n{text}\n```"]
        found = SUBCOMMANDS.search(text)
        for subcommand in found[1].split(",") if found else ():
            inner = help_of(name, subcommand)
            parts += ["", f"### anchor3r {name} {subcommand}", "", f"```text\n{inner}\n```"]
    return "\n".join(parts) + "\n"


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated page."""
    files.append(File.generated(config, "reference/commands.md", content=page_of_commands()))
    return files
