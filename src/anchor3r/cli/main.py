"""The command line: `anchor3r COMMAND …`. A command is one typed function in `anchor3r.cli`, read by tyro.

Exit codes: 0 done, 1 a problem that the message explains, 2 wrong usage, 130 interrupted by Ctrl-C, 141 the
output is no longer read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module, metadata

from anchor3r.errors import Anchor3RError, is_interrupt

# Name: where its function is (or a dict of functions, for a command with subcommands), and what it does.
COMMANDS = {
    "demo": ("demo:demo", "render a looping world, map it and compare with ground truth"),
    "map": ("map:map_source", "stream images, a video, a camera, a data set or a world into a map"),
    "import": ("import_:import_trajectory", "take the poses of another system as a map"),
    "refine": ("refine:refine", "close loops in a finished map and average all its poses"),
    "densify": ("densify:densify", "measure the depth of a map's keyframes by multi-view stereo"),
    "fuse": ("fuse:fuse", "fuse the depths of a map into one surface: points and a mesh"),
    "view": ("view:view", "show a map in the browser, live while it grows, or save it as a page"),
    "export": ("export:export", "hand a map to other programs: trajectories, point clouds, COLMAP, splats"),
    "render": ("render:render", "draw a map from above and in perspective"),
    "report": ("report:report", "write a page about a map: figures, pictures, loops, warnings"),
    "solve": ("solve:solve", "solve any motion graph: relative poses in, camera poses out"),
    "evaluate": ("evaluate:evaluate", "compare a trajectory, a map or whole data sets with ground truth"),
    "world": ("world:world", "write a synthetic sequence with exact ground truth"),
    "train": ("train:train", "train a network, on one CPU or on many GPUs"),
    "data": ("data:COMMANDS", "list, check and pack the data sets that networks are trained on"),
    "convert": ("convert:convert", "initialise the network from the weights of another model"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code."""
    try:
        code = _exit_code(sys.argv[1:] if arguments is None else arguments)
        print(end="", flush=True)  # what is still buffered would fail after us, out of reach
    except BrokenPipeError:
        # Whoever read has seen enough, as `head` has. A command ends where it cannot print: of `map` that is
        # its summary, when the map is complete. SIGPIPE would end it at any moment, by any closed socket.
        _discard_output()
        return 128 + 13  # what a shell tells of programs that SIGPIPE has ended
    return code


def _discard_output() -> None:
    """Lets Python's own last flush go nowhere instead of into the broken pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            os.dup2(nowhere, stream.fileno())


def _exit_code(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"anchor3r {metadata.version('anchor3r')}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"anchor3r: there is no command '{name}'; see anchor3r --help", file=sys.stderr)
        return 2
    try:
        _run(name, rest)
    except Anchor3RError as error:
        print(f"anchor3r: {error.for_command_line()}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, SystemError) as error:
        if not is_interrupt(error):
            raise
        print("anchor3r: interrupted", file=sys.stderr)
        return 130
    except SystemExit as exit_:  # how tyro reports help (0) and wrong usage (2)
        return exit_.code if isinstance(exit_.code, int) else 2
    return 0


def _run(name: str, arguments: Sequence[str]) -> None:
    import tyro

    module, attribute = COMMANDS[name][0].split(":")
    command = getattr(import_module(f"anchor3r.cli.{module}"), attribute)
    prog, config = f"anchor3r {name}", (tyro.conf.EnumChoicesFromValues, tyro.conf.DisallowNone)
    if isinstance(command, dict):
        tyro.extras.subcommand_cli_from_dict(command, prog=prog, args=arguments, config=config)
    else:
        tyro.cli(command, prog=prog, args=arguments, config=config)


def _overview() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {does}" for name, (_, does) in COMMANDS.items())
    return (
        "usage: anchor3r COMMAND [OPTIONS]\n\n"
        "Streaming 3D reconstruction: a video in, a trajectory and a map out.\n\n"
        f"commands:\n{commands}\n\n"
        "'anchor3r help COMMAND' lists a command's options; 'anchor3r --version' tells the version."
    )
