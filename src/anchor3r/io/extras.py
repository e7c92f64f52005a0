"""Libraries that only some exports and data sets need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from anchor3r.errors import Anchor3RError


def export_library(name: str) -> Any:
    """Imports a library of the extra `exports`, or says how to get it."""
    return _library(name, "this export is made", "exports")


def data_library(name: str) -> Any:
    """Imports a library of the extra `data`, or says how to get it."""
    return _library(name, "this data set is read", "data")


def _library(name: str, purpose: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise Anchor3RError(
            f"{purpose} with {name}, which cannot be loaded here ({error}); install it with: "
            f'pip install "anchor3r[{extra}]"'
        ) from error
