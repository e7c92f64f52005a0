"""Libraries that only some uses need: each is part of an extra of this package, and may be missing."""

from __future__ import annotations

import re
import shlex
import sys
from importlib import import_module, metadata
from typing import Any

from anchor3r.errors import Anchor3RError


def optional_library(name: str, *, extra: str, purpose: str) -> Any:
    """Imports a library of an extra, or says with a line to paste how to get it.

    purpose: the beginning of a sentence, as in "this export".
    """
    try:
        return import_module(name)
    except (ImportError, RuntimeError, OSError) as error:  # pycolmap's own for a part that is not loaded
        raise Anchor3RError(
            f"{purpose} needs {name}, which cannot be loaded here ({error}); install it with: "
            f"{install_command(extra)}"
        ) from error


def install_command(extra: str) -> str:
    """Installs what an extra asks for into the Python that is running."""
    marked = (requirement.split(";") for requirement in metadata.requires("anchor3r") or ())
    wanted = [
        name.strip() for name, *marker in marked if re.search(rf"extra == ['\"]{extra}['\"]", "".join(marker))
    ]
    return shlex.join([sys.executable, "-m", "pip", "install", *(wanted or [f"anchor3r[{extra}]"])])


def export_library(name: str) -> Any:
    """Imports a library of the extra `exports`."""
    return optional_library(name, extra="exports", purpose="this export")


def bag_library(name: str) -> Any:
    """Imports a library of the extra `bags`."""
    return optional_library(name, extra="bags", purpose="reading and writing recordings")


def data_library(name: str) -> Any:
    """Imports a library of the extra `data`."""
    return optional_library(name, extra="data", purpose="this data set")
