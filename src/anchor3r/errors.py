"""The one error family a user meets, and what of foreign text may be shown to one; and Ctrl-C."""

from __future__ import annotations

import re

_OPTION = re.compile(r"(?<!\S)--(no-)?([a-z]+(?:-[a-z]+)*)")
_PASSWORD = re.compile(r"(?<=:/)(/*[^/?#@:\s'\"]*):[^/?#\n'\"]*@")
_SECRET_NAMES = "token|key|secret|pass|pwd|auth|sig|cred|session|jwt|ticket|access|sid"
_SECRET_OPTION = re.compile(rf"([?&;#][^=&;#\s]*(?:{_SECRET_NAMES})[^=&;#\s]*=)[^&;#\s'\")]+", re.IGNORECASE)


class Anchor3RError(Exception):
    """Says what was wrong, which file or value it concerns, and what to do about it.

    Options in its message are written as on the command line, `--max-points`. In Python the same choice is a
    parameter, and the message calls it by its name there, `max_points`; `--no-loops` is `loops=False`.
    """

    def __str__(self) -> str:
        return _OPTION.sub(
            lambda option: option[2].replace("-", "_") + ("=False" if option[1] else ""),
            self.for_command_line(),
        )

    def for_command_line(self) -> str:
        """The message with options as one types them, and without passwords of addresses that it names."""
        return without_secrets(super().__str__())


def without_secrets(text: str) -> str:
    """An address as it may be shown in messages, maps and reports, which people send to each other.

    rtsp://user:secret@host/live?token=abc -> rtsp://user:***@host/live?token=***, anywhere in a text.
    """
    return _SECRET_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def printable(text: str) -> str:
    """The text on one line, with escapes for what a terminal or a picture could not show as it stands.

    Names of files may have line breaks, control characters and bytes that are no text.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind it: inside a compiled kernel Python makes a SystemError of it."""
    return isinstance(error, KeyboardInterrupt) or (
        isinstance(error, SystemError) and is_interrupt(error.__cause__ or error.__context__)
    )
