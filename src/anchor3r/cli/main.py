"""The command line: `anchor3r COMMAND …`. A command is one typed function in `anchor3r.cli`, read by tyro.

Exit codes: 0 done, 1 a problem that the message explains, 2 wrong usage, 3 a defect of the program itself,
130 interrupted by Ctrl-C, 141 the output is no longer read.
"""

from __future__ import annotations

import inspect
import io
import logging
import os
import platform
import re
import shlex
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module, metadata
from typing import Any

from anchor3r.errors import Anchor3RError, is_interrupt, printable, without_secrets

# Name: where its function is (or a dict of functions, for a command with subcommands), and what it does.
COMMANDS = {
    "demo": ("demo:demo", "render a looping world, map it and compare with ground truth"),
    "map": ("map:map_source", "stream images, a video, a camera, a data set or a world into a map"),
    "import": ("import_:import_trajectory", "take the poses of another system as a map"),
    "refine": ("refine:refine", "close loops in a finished map and average all its poses"),
    "densify": ("densify:densify", "measure the depth of a map's keyframes by multi-view stereo"),
    "fuse": ("fuse:fuse", "fuse the depths of a map into one surface: points and a mesh"),
    "localise": ("localise:localise", "tell where images were taken in a map, or refuse to"),
    "merge": ("merge:merge", "make one map of several maps of one place"),
    "view": ("view:view", "show a map in the browser, live while it grows, or save it as a page"),
    "export": ("export:export", "hand a map to other programs: trajectories, point clouds, COLMAP, splats"),
    "render": ("render:render", "draw a map from above and in perspective"),
    "report": ("report:report", "write a page about a map: figures, pictures, loops, warnings"),
    "solve": ("solve:solve", "solve any motion graph: relative poses in, camera poses out"),
    "evaluate": ("evaluate:evaluate", "compare a trajectory, a map or whole data sets with ground truth"),
    "batch": ("batch:batch", "map, refine, score and export many sequences, here or on a cluster"),
    "world": ("world:world", "write a synthetic sequence with exact ground truth"),
    "train": ("train:train", "train a network, on one CPU or on many GPUs"),
    "data": ("data:COMMANDS", "list, check and pack the data sets that networks are trained on"),
    "convert": ("convert:convert", "initialise the network from the weights of another model"),
    "doctor": ("doctor:doctor", "check this installation: versions, GPU, extras, codecs, disk, a self-test"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and not sys.warnoptions:
        warnings.simplefilter("ignore")  # of libraries, about which a user can do nothing
    _open_closed_streams()
    _print_any_text()
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_OneLine())
    try:
        os.getcwd()
    except OSError as error:
        return _tell(f"the folder that this runs in is gone ({error.strerror}); change into another one")
    try:
        code = _exit_code(given)
        print(end="", flush=True)  # what is still buffered would fail after us, out of reach
    except BrokenPipeError:
        # Whoever read has seen enough, as `head` has. A command ends where it cannot print: of `map` that is
        # its summary, when the map is complete. SIGPIPE would end it at any moment, by any closed socket.
        _discard_output()
        return 128 + 13  # what a shell tells of programs that SIGPIPE has ended
    except OSError as error:  # of the output: commands explain those of their files themselves
        _discard_output(keep_errors=True)
        return _tell(f"cannot print: {error.strerror or error}; see to where the output goes")
    return code


def _open_closed_streams() -> None:
    """Has what goes to a closed stream go nowhere: not into the next file, which would get its number."""
    with suppress(OSError):  # if no more files may be opened, none of these is closed
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(number)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115  # for as long as the process lives
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _print_any_text() -> None:
    """Lets a terminal or file that knows only ASCII have escapes instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output(*, keep_errors: bool = False) -> None:
    """Lets Python's own last flush go nowhere instead of into the broken pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout,) if keep_errors else (sys.stdout, sys.stderr):
        if stream is not None:
            os.dup2(nowhere, stream.fileno())


def _shown(message: str) -> str:
    """As one line that a terminal shows as it stands, whatever the names in it are, without secrets."""
    return printable(" ".join(without_secrets(message).split()))


class _OneLine(logging.Formatter):
    """Of what is logged on the way, such as frames that were skipped and why."""

    def format(self, record: logging.LogRecord) -> str:
        return _shown(super().format(record))


def _tell(message: str, code: int = 1) -> int:
    """Prints an error as one line, and returns the exit code."""
    shown = _shown(message)
    with suppress(OSError):  # as on a full disk: then the exit code has to do
        print("anchor3r:", shown, file=sys.stderr, flush=True)
    _tell_programs(shown, code)
    return code


def _tell_programs(message: str, code: int) -> None:
    """Prints an error as an object on the standard output, where --json asks for objects."""
    from anchor3r.cli.output import print_json_error

    print_json_error(message, code)


def _exit_code(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0 if arguments else 2
    if arguments[0] == "--print-completion":
        return _print_completion(arguments[1:])
    if arguments[0] == "--version":
        print(f"anchor3r {metadata.version('anchor3r')}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        return _tell(f"there is no command '{name}'; see anchor3r --help", 2)
    from anchor3r.cli.output import json_only

    with json_only("--json" in rest and not {"-h", "--help"} & set(rest)):
        return _outcome(name, rest)


def _outcome(name: str, arguments: Sequence[str]) -> int:
    """Runs a command; the exit code, after whatever went wrong has been told."""
    try:
        _run(name, arguments)
    except Anchor3RError as error:
        return _tell(error.for_command_line())
    except KeyboardInterrupt:
        return _tell("interrupted", 130)
    except MemoryError:
        return _tell("there is not enough memory for this; close other programs, or give it a smaller input")
    except RecursionError:
        return _tell("folders or data are nested too deeply in each other; give it another path or input")
    except BrokenPipeError:
        raise
    except SystemExit as exit_:  # how tyro reports help (0) and wrong usage (2)
        code = exit_.code if isinstance(exit_.code, int) else 2
        if code:
            _tell_programs("wrong usage; the standard error says what is wrong", code)
        return code
    except Exception as error:  # the last resort: even a defect of ours is told politely
        if is_interrupt(error):
            return _tell("interrupted", 130)
        if isinstance(error, OSError):
            if error.filename is None:
                raise  # of the standard output
            return _tell(f"{error.filename}: {error.strerror}; check the path and what you may do there")
        return _tell_of_defect(error, (name, *arguments))
    return 0


def _print_completion(arguments: Sequence[str]) -> int:
    """A script that lets a shell complete commands, options and file names."""
    if list(arguments) not in (["bash"], ["zsh"], ["tcsh"]):
        return _tell("--print-completion takes the name of a shell: bash, zsh or tcsh", 2)
    from anchor3r.cli.completion import completion_script

    print(completion_script(arguments[0], {name: _command(name) for name in COMMANDS}))
    return 0


def _tell_of_defect(error: Exception, arguments: Sequence[str]) -> int:
    """One line, and a file with all that a report of the defect needs."""
    report = "\n".join([
        f"anchor3r {metadata.version('anchor3r')}, Python {sys.version}, {platform.platform()}",
        f"anchor3r {shlex.join(arguments)}",
        "".join(traceback.format_exception(error)),
    ])  # fmt: skip
    where = "no report could be written"
    with suppress(OSError):
        handle, name = tempfile.mkstemp(prefix="anchor3r-", suffix=".txt")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(without_secrets(report))
        where = f"please report it with {name}"
    reason = without_secrets(f"{type(error).__name__}: {error}")[:200]
    return _tell(f"a defect of anchor3r, which nobody foresaw ({reason}); {where}", 3)


def _command(name: str) -> Any:
    """A command's function, or its functions by the names of subcommands."""
    module, attribute = COMMANDS[name][0].split(":")
    return getattr(import_module(f"anchor3r.cli.{module}"), attribute)


def _run(name: str, arguments: Sequence[str]) -> None:
    import tyro

    from anchor3r.cli.output import print_json

    command = _with_flowing_help(_command(name))
    config = (tyro.conf.EnumChoicesFromValues, tyro.conf.DisallowNone)
    prog = f"anchor3r {name}"
    if isinstance(command, dict):
        result = tyro.extras.subcommand_cli_from_dict(command, prog=prog, args=arguments, config=config)
        name = f"{name}-{arguments[0]}"
    else:
        result = tyro.cli(command, prog=prog, args=arguments, config=config)
    if result is not None:
        print_json(name, result)


def _with_flowing_help(command: Any) -> Any:
    """The command, with the text of each argument on one line: tyro would break it where the source does."""
    for function in command.values() if isinstance(command, dict) else [command]:
        function.__doc__ = re.sub(r"\n {8}", " ", inspect.cleandoc(function.__doc__))
    return command


def _overview() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {does}" for name, (_, does) in COMMANDS.items())
    return (
        "usage: anchor3r COMMAND [OPTIONS]\n\n"
        "Streaming 3D reconstruction: a video in, a trajectory and a map out.\n\n"
        f"commands:\n{commands}\n\n"
        "'anchor3r help COMMAND' lists a command's options; 'anchor3r --version' tells the version.\n"
        "Every command takes --json. 'anchor3r --print-completion bash' prints a script for the shell."
    )
