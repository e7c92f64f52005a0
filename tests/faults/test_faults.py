"""Some of the faults of the driver, which tries them all (`make faults`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="faults are put into forked processes with limits")
def test_a_map_survives_faults() -> None:
    driver = Path(__file__).parent / "driver.py"
    # In a process of its own: one with threads, as pytest may have, cannot be forked safely.
    command = [sys.executable, str(driver), "--step", "16", "--minutes", "0.03"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
