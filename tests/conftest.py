"""Shared fixtures: where the optional real test data lies."""

import signal
from pathlib import Path

import pytest

# Jobs in the background of a shell ignore Ctrl-C and hand that on; programs under test must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real sequences, public graphs and reference outputs, beside the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}")
    return folder
