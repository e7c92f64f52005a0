"""`anchor3r` with one more source: `slow:LENGTH`, the toy source at the pace of a camera."""

from __future__ import annotations

import sys
import time

from anchor3r.cli import main as cli
from anchor3r.sources import Frame, opening
from toy_source import ToySource

PERIOD_S = 0.05


class SlowSource(ToySource):
    """Somebody can come and leave while it is mapped."""

    def _load(self, index: int) -> Frame:
        time.sleep(PERIOD_S)
        return super()._load(index)


opening._SCHEMES["slow"] = lambda _uri, length, wanted: SlowSource(int(length), stop=wanted.stop)
sys.exit(cli.main())
