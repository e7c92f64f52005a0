"""`anchor3r view`: a map in the browser, live while it grows, or as a page to share."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from anchor3r.cli.output import Json, print_json
from anchor3r.cli.progress import progress
from anchor3r.errors import Anchor3RError
from anchor3r.io.extras import optional_library
from anchor3r.viewer.settings import ViewSettings

_COMPANION = "from anchor3r.cli.view import companion; companion()"
"""What `beside` runs."""


def view(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MAP")],
    host: str = "127.0.0.1",
    port: int = 8080,
    save: Path | None = None,
    points: int = ViewSettings.point_budget,
    poses: str | None = None,
    wait: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    as_json: Json = False,
) -> dict[str, Any] | None:
    """Show a map in the browser, also while it grows.

    Points, path and cameras move when other poses are chosen or the map is refined. Ctrl-C ends it.

    Args:
        folder: Folder of the map.
        host: Address to serve at. The usual one is reached from this machine alone; with 0.0.0.0 everybody
            who reaches this machine sees the map, without a password.
        port: Port to serve at, or the next free one.
        save: Instead of serving, write a page into this folder, index.html, that any browser opens by itself.
        points: Most points in a saved page.
        poses: Which poses to begin with: online, or the name of a refinement; the refined ones if not given.
        wait: Wait for the map to be begun, if it is not there yet.
    """
    from anchor3r.store import best_poses, load_map
    from anchor3r.viewer.page import save_page

    if not 1 <= port <= 65535:
        raise Anchor3RError(f"--port must lie in 1 … 65535, not {port}")
    if poses is not None and not wait:
        with load_map(folder) as scene_map:
            scene_map.trajectory(poses)  # says which there are, if not these
    if points < 1:
        raise Anchor3RError(f"--points must be at least 1, not {points}")
    if save is not None:
        with progress("reading points", 100, "%") as advance:
            page, count = save_page(folder, save, point_budget=points, progress=advance, poses=poses)
        size = page.stat().st_size
        print(f"{page}: {count:,} points, {size / 1e6:.1f} MB; any browser opens it")
        with load_map(folder) as scene_map:
            shown = poses or best_poses(scene_map.trajectory_names())
            lack = scene_map.trajectory(shown).lack_of_translation()
        if not count and lack is not None:
            print(f"  {lack}")
        return {"map": folder, "url": None, "page": page, "points": count, "bytes": size}
    _insist_on_viser()
    from anchor3r.viewer.server import serve_map

    _warn_of_strangers(host)
    with suppress(KeyboardInterrupt):  # how a view is meant to end
        serve_map(folder, host, port, announce=partial(_announce, folder), wait=wait, poses=poses)
    return None


@contextmanager
def beside(folder: Path) -> Iterator[None]:
    """Shows a map that is about to grow, from a process of its own, and stays after it until Ctrl-C."""
    _insist_on_viser()
    command = [sys.executable, "-c", _COMPANION, str(folder)]
    # However this process ends, its end of the pipe is closed then, and the viewer ends with it.
    viewer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sys.stderr)
    try:
        yield
        print("the page stays until Ctrl-C", file=sys.stderr)
        with suppress(KeyboardInterrupt):
            viewer.wait()
    finally:
        viewer.terminate()
        viewer.wait()


def companion() -> None:
    """A viewer for the process at the other end of the standard input, which ends when that does."""

    def end_with_it() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=end_with_it, daemon=True).start()
    from anchor3r.cli.main import main

    raise SystemExit(main(["view", sys.argv[1], "--wait"]))


def _warn_of_strangers(host: str) -> None:
    from anchor3r.viewer.guard import is_loopback

    if not is_loopback(host):
        print(
            f"anchor3r: at {host} everybody who reaches this machine sees the map, without a password",
            file=sys.stderr,
        )


def _announce(folder: Path, url: str) -> None:
    told = {"map": folder, "url": url, "page": None, "points": None, "bytes": None}
    print_json("view", told)
    print(f"the map is at {url} (Ctrl-C ends)", flush=True)


def _insist_on_viser() -> None:
    optional_library("viser", extra="viewer", purpose="the viewer")
    import rich

    rich.get_console().quiet = True  # viser prints there when it starts and ends, the command speaks itself
