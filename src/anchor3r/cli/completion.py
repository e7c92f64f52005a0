"""What lets a shell complete commands, options and file names: `anchor3r --print-completion bash`."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from typing import Annotated, Any, Union

import tyro

Command = Callable[..., Any] | Mapping[str, Callable[..., Any]]


def completion_script(shell: str, commands: Mapping[str, Command]) -> str:
    """The script for a shell, by tyro, of all commands and their subcommands."""
    functions = {
        name: command if callable(command) else _group(name, command) for name, command in commands.items()
    }
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):  # how tyro ends after printing
        tyro.extras.subcommand_cli_from_dict(
            functions,
            prog="anchor3r",
            args=["--tyro-print-completion", shell],
            config=(tyro.conf.EnumChoicesFromValues, tyro.conf.OmitSubcommandPrefixes),
        )
    return printed.getvalue()


def _group(name: str, functions: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """A command that is nothing but its subcommands."""
    members = tuple(
        Annotated[Any, tyro.conf.subcommand(name=member, constructor=function)]
        for member, function in functions.items()
    )

    def group(command: Any) -> None:
        del command

    group.__name__ = name
    group.__annotations__ = {"command": Union[members]}  # noqa: UP007 - made at run time
    return group
