"""Independent jobs on several processes of this machine, or on a Ray cluster.

A job is a callable that pickles and goes on where an earlier try of it ended, so that one whose process was
killed is simply tried again. One that raises an error of ours has failed by itself: the others go on.
"""

from __future__ import annotations

import os
import pickle
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from anchor3r.errors import Anchor3RError, is_interrupt, without_secrets
from anchor3r.limits import LIMITS

Job = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Where jobs run."""

    workers: int = 1
    """Jobs at once, each in a process of its own; 1 runs them here, one after another."""
    ray: str | None = None
    """Run on Ray instead: auto for a cluster that is running, local to start one here, or its address."""
    tries: int = 3
    """How often a job is tried whose process dies, as when memory runs out."""

    def __post_init__(self) -> None:
        for name in ("workers", "tries"):
            if not 1 <= getattr(self, name) <= LIMITS.threads:
                raise Anchor3RError(f"--{name} must lie in 1 … {LIMITS.threads}, not {getattr(self, name)}")


@dataclass(frozen=True)
class Outcome:
    """What became of a job."""

    name: str
    result: Any = None
    error: str | None = None
    """why it has none"""


def run_jobs(jobs: Mapping[str, Job], settings: WorkerSettings) -> Iterator[Outcome]:
    """The outcomes of jobs by name, as they come."""
    if settings.ray is not None:
        yield from _on_ray(jobs, settings)
    elif settings.workers == 1:
        for name, job in jobs.items():
            yield _outcome(name, _tried(job))
    else:
        yield from _on_processes(jobs, settings)


def _tried(job: Job) -> tuple[Any, str | None]:
    """The job's result, or what it ended with."""
    try:
        return job(), None
    except Anchor3RError as error:
        return None, error.for_command_line()
    except MemoryError:
        return None, "there was not enough memory for it; run fewer workers, or give it a smaller input"
    except Exception as error:  # a defect that one job meets must not end the others
        if is_interrupt(error):
            raise
        if isinstance(error, OSError) and error.filename is not None:
            return None, f"{error.filename}: {error.strerror}; check the path and what you may do there"
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}, line {place.lineno}"
        reason = without_secrets(f"{type(error).__name__}: {error}")[:200]
        return None, f"a defect of anchor3r, which nobody foresaw ({reason}; {where}); please report it"


def _outcome(name: str, tried: tuple[Any, str | None]) -> Outcome:
    return Outcome(name, *tried)


def _died(name: str, how: str, tries: int) -> Outcome:
    text = f"its process died {tries} times, the last time {how}; is there enough memory?"
    return Outcome(name, error=text)


class _Worker:
    """A process that does one job after another; fresh, since forking one with threads can hang."""

    def __init__(self, share: int) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, share), daemon=True)
        self.process.start()
        theirs.close()
        self.name: str | None = None
        """of the job it is at"""

    def give(self, name: str, job: Job) -> None:
        self.name = name
        self.connection.send_bytes(pickle.dumps(job))

    def answer(self) -> tuple[Any, str | None] | None:
        """What the job has come to; None if the process has died of it."""
        try:
            answer: tuple[Any, str | None] = pickle.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionError):
            return None
        return answer

    def stop(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join()


def _serve(connection: Connection, share: int) -> None:
    """Does jobs until nobody asks for more. Each process takes its share of the cores."""
    os.environ["OMP_NUM_THREADS"] = str(share)
    while True:
        try:
            job = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            return
        connection.send_bytes(pickle.dumps(_tried(job)))


def _on_processes(jobs: Mapping[str, Job], settings: WorkerSettings) -> Iterator[Outcome]:
    waiting, deaths = deque(jobs), dict.fromkeys(jobs, 0)
    count = min(settings.workers, len(jobs))
    share = max(1, (os.cpu_count() or 1) // max(count, 1))
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < count:
                workers.append(_Worker(share))
                name = waiting.popleft()
                workers[-1].give(name, jobs[name])
            ready = wait([worker.connection for worker in workers])
            for worker in [w for w in workers if w.connection in ready]:
                assert worker.name is not None
                name, answer = worker.name, worker.answer()
                if answer is not None:
                    yield _outcome(name, answer)
                else:
                    worker.process.join()
                    deaths[name] += 1
                    if deaths[name] < settings.tries:
                        waiting.append(name)
                    else:
                        yield _died(name, _how(worker.process.exitcode), deaths[name])
                if answer is not None and waiting:
                    following = waiting.popleft()
                    worker.give(following, jobs[following])
                else:
                    workers.remove(worker)
                    worker.stop()
    finally:
        for worker in workers:
            worker.stop()


def _how(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"by signal {-exit_code}"
    return f"with exit code {exit_code}"


@dataclass(frozen=True)
class _InFolder:
    """A job whose relative paths begin at a folder, wherever its process was started."""

    folder: str
    job: Job

    def __call__(self) -> Any:
        os.chdir(self.folder)
        return self.job()


def _on_ray(jobs: Mapping[str, Job], settings: WorkerSettings) -> Iterator[Outcome]:
    """Ray tries a job again whose worker or machine is lost; folders have to be on a shared file system."""
    from anchor3r.io.extras import optional_library

    ray = optional_library("ray", extra="ray", purpose="running on a cluster")
    if not ray.is_initialized():
        if settings.ray == "local":
            ray.init(
                address="local", num_cpus=settings.workers, _node_ip_address="127.0.0.1",
                include_dashboard=False, log_to_driver=False,
            )  # fmt: skip
        else:
            try:
                ray.init(address=settings.ray, log_to_driver=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise Anchor3RError(
                    f"--ray {settings.ray}: no cluster answers ({error}); start one with 'ray start --head', "
                    "or use --ray local"
                ) from error
    remote = ray.remote(max_retries=settings.tries - 1, num_cpus=1)(_tried)
    name_of = {remote.remote(_InFolder(os.getcwd(), job)): name for name, job in jobs.items()}
    unfinished = list(name_of)
    while unfinished:
        (done,), unfinished = ray.wait(unfinished, num_returns=1)
        try:
            yield _outcome(name_of[done], ray.get(done))
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError):
            yield _died(name_of[done], "on the cluster", settings.tries)
        except ray.exceptions.RayError as error:  # a machine was lost, or has another version of this program
            yield Outcome(name_of[done], error=f"Ray could not do it: {str(error).strip()[-300:]}")
