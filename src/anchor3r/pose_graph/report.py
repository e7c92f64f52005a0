"""What every solver of the motion graph says about its run."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from anchor3r.kernels import CompileWatch


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
    """The solver's objective at the start."""
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
        self._compiling = CompileWatch().__enter__()
        self._start = time.process_time()

    def seconds(self) -> float:
        return time.process_time() - self._start - self._compiling.cpu_seconds

    def __del__(self) -> None:
        self._compiling.__exit__()
