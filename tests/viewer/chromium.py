"""Headless Chromium driven over the DevTools protocol, as far as the tests of the viewer need it."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from websockets.sync.client import ClientConnection, connect

EXECUTABLE = shutil.which("chromium") or shutil.which("google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
    "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--mute-audio", "--remote-debugging-port=0", "--window-size=900,560",
)  # fmt: skip
_FEW_PIXELS = 60
PATIENCE_S = 40.0
"""Longest wait for anything; what a busy machine does in a few seconds never comes if it has not by then."""


def eventually(what: str, holds: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
    """Waits for something to become true and returns it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := holds():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what}")


class Browser:
    """One Chromium; a context manager."""

    def __init__(self, profile: Path) -> None:
        assert EXECUTABLE is not None
        environment = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper()}
        self._process = subprocess.Popen(
            [EXECUTABLE, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        told = profile / "DevToolsActivePort"
        eventually("Chromium has started", lambda: told.is_file() and "\n" in told.read_text())
        self._debugger = f"http://127.0.0.1:{told.read_text().splitlines()[0]}"

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def open(self, url: str) -> Page:
        request = urllib.request.Request(f"{self._debugger}/json/new?about:blank", method="PUT")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            target = json.load(answer)
        return Page(target["webSocketDebuggerUrl"], url)


class Page:
    """One tab."""

    def __init__(self, debugger_url: str, url: str) -> None:
        self._socket: ClientConnection = connect(debugger_url, max_size=None, proxy=None)
        self._count = 0
        self.problems: list[str] = []
        """What the page complained about in its console."""
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)
        while self._received().get("method") != "Page.loadEventFired":
            pass

    def close(self) -> None:
        self.call("Page.close")
        self._socket.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol; events that come in between are looked through for problems."""
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": parameters}))
        while (message := self._received()).get("id") != self._count:
            pass
        assert "error" not in message, message
        return message["result"]

    def _received(self) -> dict[str, Any]:
        event = json.loads(self._socket.recv(timeout=60))
        kind, details = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.problems.append(details["exceptionDetails"]["text"])
        elif kind == "Runtime.consoleAPICalled" and details["type"] in ("error", "assert"):
            self.problems.append(" ".join(str(a.get("value", "")) for a in details["args"]))
        elif kind == "Log.entryAdded" and details["entry"]["level"] == "error":
            self.problems.append(details["entry"]["text"])
        return event

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    @property
    def text(self) -> str:
        """The words on the page."""
        return self.evaluate("document.body?.innerText ?? ''")

    def screenshot(self, path: Path | None = None) -> NDArray[np.uint8]:
        """(h, w, 3) RGB"""
        png = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png)
        return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))

    def press(self, *keys: str) -> None:
        """Keys, into whatever has the focus."""
        for key in keys:
            for kind in ("keyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def click(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def settle(self, seconds: float = 0.4) -> NDArray[np.uint8]:
        """The picture once it no longer changes but for a few pixels: a cursor may blink in a list."""

        def same() -> NDArray[np.uint8] | None:
            before = self.screenshot()
            time.sleep(seconds)
            after = self.screenshot()
            same_size = before.shape == after.shape
            return after if same_size and (before != after).any(-1).sum() < _FEW_PIXELS else None

        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if (picture := same()) is not None:
                return picture
        raise AssertionError("the page keeps changing")
