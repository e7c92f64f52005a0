"""A minute's worth of the campaign, and everything that ever failed in it; `make fuzz` runs the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("viser", reason="the viewer extra is not installed")
CASES, SEED = int(os.environ.get("ANCHOR3R_FUZZ_CASES", "100")), os.environ.get("ANCHOR3R_FUZZ_SEED", "20")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="cases are run in forked processes")
def test_hostile_inputs_end_politely(tmp_path: Path) -> None:
    campaign = Path(__file__).parent / "campaign.py"
    # In a process of its own: one with threads, as pytest may have, cannot be forked safely.
    command = [
        sys.executable,
        str(campaign),
        "--corpus",
        "--cases",
        str(CASES),
        "--seed",
        SEED,
        "--out",
        str(tmp_path / "fuzz"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
