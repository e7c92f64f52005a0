"""Libraries that only some exports need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from anchor3r.errors import Anchor3RError


def export_library(name: str) -> Any:
    """Imports a library of the extra `exports`, or says how to get it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise Anchor3RError(
            f"this export is made with {name}, which cannot be loaded here ({error}); install it with: "
            'pip install "anchor3r[exports]"'
        ) from error
