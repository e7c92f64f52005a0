"""Jobs on several processes: all are done, also if processes are killed; failures stay their own."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from anchor3r.errors import Anchor3RError
from anchor3r.workers import Outcome, WorkerSettings, run_jobs


@dataclass(frozen=True)
class Square:
    value: int

    def __call__(self) -> int:
        if self.value == 3:
            raise Anchor3RError("three is not squared here; choose another number")
        if self.value == 4:
            raise ZeroDivisionError("four is a defect")
        return self.value**2


@dataclass(frozen=True)
class DiesAtFirst:
    """Kills its own process as often as told, and counts its tries in a file."""

    path: Path
    deaths: int

    def __call__(self) -> int:
        tries = len(self.path.read_text()) if self.path.exists() else 0
        self.path.write_text("x" * (tries + 1))
        if tries < self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        return tries


@dataclass(frozen=True)
class Here:
    """Where its process stands."""

    def __call__(self) -> str:
        return os.getcwd()


@dataclass(frozen=True)
class Unpicklable:
    """A result that cannot go back."""

    def __call__(self) -> object:
        return (k for k in range(3))


def by_name(outcomes: list[Outcome]) -> dict[str, Outcome]:
    return {outcome.name: outcome for outcome in outcomes}


@pytest.mark.parametrize("workers", [1, 2])
def test_every_job_has_its_outcome(workers: int) -> None:
    jobs = {str(k): Square(k) for k in range(6)}
    found = by_name(list(run_jobs(jobs, WorkerSettings(workers=workers))))
    assert {name: outcome.result for name, outcome in found.items() if outcome.error is None} == {
        "0": 0, "1": 1, "2": 4, "5": 25,
    }  # fmt: skip
    assert found["3"].error == "three is not squared here; choose another number"
    assert "a defect of anchor3r" in (found["4"].error or "")
    assert "four is a defect; test_workers.py, line" in (found["4"].error or "")


def test_a_job_whose_process_is_killed_is_tried_again(tmp_path: Path) -> None:
    jobs = {"a": DiesAtFirst(tmp_path / "a", 2), "b": DiesAtFirst(tmp_path / "b", 99), "c": Square(2)}
    found = by_name(list(run_jobs(jobs, WorkerSettings(workers=2, tries=3))))
    assert found["a"].result == 2
    assert found["c"].result == 4
    assert "died 3 times, the last time by signal 9" in str(found["b"].error)


def test_who_stops_listening_leaves_no_process_behind() -> None:
    import multiprocessing

    outcomes = run_jobs({str(k): Square(k) for k in range(20)}, WorkerSettings(workers=2))
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()


def test_on_a_ray_cluster_of_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find this file
    jobs = {
        "a": DiesAtFirst(tmp_path / "a", 1), "b": Square(3), "c": Square(5),
        "d": DiesAtFirst(tmp_path / "d", 99), "e": Here(), "f": Unpicklable(),
    }  # fmt: skip
    settings = WorkerSettings(workers=2, ray="local")
    try:
        assert next(iter(run_jobs({"first": Square(2)}, settings))).result == 4
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")  # than where the cluster was started
        found = by_name(list(run_jobs(jobs, settings)))
    finally:
        ray.shutdown()
    assert (found["a"].result, found["c"].result) == (1, 25)
    assert "three" in str(found["b"].error)
    assert "died 3 times" in str(found["d"].error)
    assert found["e"].result == str(tmp_path / "elsewhere")
    assert "generator" in str(found["f"].error)


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"tries": 0}, {"workers": 10**9}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Anchor3RError, match="must lie in"):
        WorkerSettings(**wrong)  # type: ignore[arg-type]
