"""What reports say, and that waiting for the compiler is not counted as solving."""

from __future__ import annotations

import json
import time

from numba import njit

from anchor3r.pose_graph.report import Report, Status, Stopwatch


def test_a_report_becomes_json() -> None:
    report = Report(
        status=Status.STALLED, iterations=3, cost=1.0, initial_cost=2.0, num_frames=4, num_edges=5,
        num_components=1, cpu_seconds=0.1, details={"inner": 7},
    )  # fmt: skip
    back = json.loads(json.dumps(report.as_dict()))
    assert back["status"] == "stalled"
    assert back["gap"] is None
    assert back["details"] == {"inner": 7}


def test_the_stopwatch_leaves_compilation_out() -> None:
    @njit
    def triangle(n: int) -> int:
        total = 0
        for k in range(n):
            total += k
        return total

    start, watch = time.process_time(), Stopwatch()
    assert triangle(5) == 10
    compiled_seconds = time.process_time() - start
    assert 0 <= watch.seconds() < 0.5 * compiled_seconds
    while time.process_time() - start < 2 * compiled_seconds:
        pass
    assert watch.seconds() > 0.9 * compiled_seconds
