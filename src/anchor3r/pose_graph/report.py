"""What every solver of the motion graph says about its run."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from numba.core import event


class Status(StrEnum):
    """How a solve ended."""

    CONVERGED = "converged"
    """The criterion in the config was met."""
    MAX_ITERATIONS = "max_iterations"
    """The values are the best found, but the criterion was not met."""
    STALLED = "stalled"
    """No further progress was possible before the criterion was met (a singular or exhausted system)."""
    TRIVIAL = "trivial"
    """There was nothing to solve: no edge joins two frames."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """One solve: how it ended, what it reached and what it cost."""

    status: Status
    iterations: int
    """Linear systems that were solved."""
    cost: float
    """The solver's objective at the values returned."""
    initial_cost: float
    """The same objective at the start."""
    gap: float | None = None
    """Certified upper bound on (cost - optimum) / cost, where the method has one."""
    num_frames: int
    num_edges: int
    num_components: int
    """Each has its own gauge: poses of different components are not comparable."""
    cpu_seconds: float
    """Of the solve alone, without reading files and compiling."""
    details: dict[str, Any] = field(default_factory=dict)
    """What else a method has to say."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Stopwatch:
    """CPU seconds since it was made, without those that went into compiling."""

    def __init__(self) -> None:
        self._start = time.process_time() - _COMPILING.seconds

    def seconds(self) -> float:
        return time.process_time() - _COMPILING.seconds - self._start


class _CompileClock(event.Listener):
    """CPU seconds during which this process compiled kernels or fetched them from the disk."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        self._since = 0.0

    def on_start(self, _: event.Event) -> None:
        if self._depth == 0:
            self._since = time.process_time()
        self._depth += 1

    def on_end(self, _: event.Event) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.process_time() - self._since


_COMPILING = _CompileClock()
event.register("numba:compiler_lock", _COMPILING)
