"""Strangers' pages do not see a map, and a viewer does not outlive the mapping that it belongs to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("viser", reason="the viewer extra is not installed")
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from anchor3r.viewer.guard import refusal
from anchor3r.viewer.server import start_server


@pytest.mark.parametrize(
    ("host", "origin", "served_at", "answered"),
    [
        ("127.0.0.1:8080", None, "127.0.0.1", True),
        ("localhost:8080", "http://localhost:8080", "127.0.0.1", True),
        ("[::1]:8080", None, "127.0.0.1", True),
        ("localhost:8080", "http://evil.example", "127.0.0.1", False),
        ("localhost:8080", "http://localhost:9999", "127.0.0.1", False),
        ("localhost:8080", "null", "127.0.0.1", False),
        ("evil.example:8080", "http://evil.example:8080", "127.0.0.1", False),
        ("192.168.1.5:8080", None, "127.0.0.1", False),
        ("192.168.1.5:8080", "http://192.168.1.5:8080", "0.0.0.0", True),
        ("evil.example:8080", "http://evil.example:8080", "0.0.0.0", False),
        (None, None, "127.0.0.1", False),
    ],
)
def test_only_the_viewers_own_pages_are_answered(
    host: str | None, origin: str | None, served_at: str, answered: bool
) -> None:
    assert (refusal(host, origin, served_at) is None) == answered


def test_a_socket_of_another_origin_gets_nothing() -> None:
    server = start_server("127.0.0.1", 18080, "map")
    try:
        address = f"ws://127.0.0.1:{server.get_port()}"
        with pytest.raises(InvalidStatus, match="403"):
            connect(address, origin="http://evil.example")  # type: ignore[arg-type]
        connect(address, subprotocols=["viser-v1.1.1"]).close()  # type: ignore[list-item]
    finally:
        server.stop()


def test_the_viewer_ends_with_the_mapping(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from anchor3r.cli.view import beside\n"
        "with beside(Path(sys.argv[1])): time.sleep(600)"
    )
    mapping = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "map")], start_new_session=True)
    try:
        viewer = _child_of(mapping.pid)
    finally:
        mapping.send_signal(signal.SIGKILL)
        mapping.wait()
    until = time.monotonic() + 60
    while _is_running(viewer) and time.monotonic() < until:
        time.sleep(0.1)
    assert not _is_running(viewer)


def _child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if not children.exists():
        pytest.skip("this system does not list children")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if found := children.read_text().split():
            return int(found[0])
        time.sleep(0.1)
    raise AssertionError("no viewer was started")


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return " Z " not in Path(f"/proc/{pid}/stat").read_text() if Path(f"/proc/{pid}").exists() else False
