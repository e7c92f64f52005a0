"""Shared fixtures: where the optional real test data lies."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real sequences, public graphs and reference outputs, beside the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}")
    return folder
