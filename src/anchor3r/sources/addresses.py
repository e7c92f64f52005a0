"""Addresses as they may be shown: in messages, maps and reports, which people send to each other."""

from __future__ import annotations

import re

# Up to the last @ of what a server is named by; the password itself may have another one.
_PASSWORD = re.compile(r"(?<=://)([^/?#@:\s]*):[^/?#\s]*@")


def without_password(text: str) -> str:
    """rtsp://user:secret@host/live -> rtsp://user:***@host/live, anywhere in a text."""
    return _PASSWORD.sub(r"\1:***@", text)
