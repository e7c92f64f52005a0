"""Who may look at a served map: pages of the viewer itself, not those of strangers in the same browser.

A browser lets any page open a WebSocket to this machine. It says which page asks (Origin) and by which name
it found the machine (Host); a page of another origin, and a name that a stranger's DNS server could have
given to our address, are refused.
"""

from __future__ import annotations

import http
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import websockets.asyncio.server
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from anchor3r.errors import Anchor3RError

_installing = threading.Lock()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what is served there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refusal(host: str | None, origin: str | None, served_at: str) -> str | None:
    """Why a request with these headers is not answered; None if it is."""
    name = _name_of(f"//{host}") if host else None
    if name is None:
        return "the request does not say which host it is for"
    if not _is_own_name(name, served_at):
        return f"the viewer is not called {name!r}; open it by the address that it printed"
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        return "a page of another origin may not look at the map"
    return None


def _name_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_own_name(name: str, served_at: str) -> bool:
    """An address cannot be a stranger's name for us; of names, only those that this machine goes by."""
    if name == "localhost" or name == served_at.lower():
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return not is_loopback(served_at) and name in (socket.gethostname().lower(), socket.getfqdn().lower())
    return address.is_loopback or not is_loopback(served_at)


@contextmanager
def guarded(served_at: str) -> Iterator[None]:
    """A viser server that is started inside answers only requests that `refusal` lets pass.

    viser has no hook for it, so what it starts its server with is wrapped for that moment.
    """
    original, used = websockets.asyncio.server.serve, []

    def serve(*arguments: Any, process_request: Callable[..., Any] | None = None, **options: Any) -> Any:
        def checked(connection: ServerConnection, request: Request) -> Response | None:
            headers = request.headers
            reason = refusal(headers.get("Host"), headers.get("Origin"), served_at)
            if reason is not None:
                return connection.respond(http.HTTPStatus.FORBIDDEN, f"{reason}\n")
            return None if process_request is None else process_request(connection, request)

        used.append(True)
        return original(*arguments, process_request=checked, **options)

    with _installing:
        websockets.asyncio.server.serve = serve  # type: ignore[assignment,misc]
        try:
            yield
        finally:
            websockets.asyncio.server.serve = original  # type: ignore[misc]
    if not used:
        raise Anchor3RError(
            "this version of viser cannot be guarded against other pages; install viser 1.1.1"
        )
