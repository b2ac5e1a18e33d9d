"""Spread trials over processes: loky at home, Dask or Ray on a running cluster; the same records everywhere.

Workers write the records themselves, so ``out`` must be a folder that all of them see. A trial that fails is told,
not raised; a worker that dies takes nobody with it: what it was doing is tried again, three times at most, the last
time alone. A worker whose driver is gone stops within a second: nobody waits for it, and the next sweep needs the
records it holds.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mindgap.base.check import fail, one_of, whole
from mindgap.record.schema import End, Header
from mindgap.record.store import is_finished, read_run, run_file

BACKENDS = ("loky", "dask", "ray")

#: Seconds to wait for a cluster to answer.
CONNECT = 20

#: Seconds between two looks of a worker at whether its driver is still there.
ORPHANED = 0.5

#: How often a trial is tried whose worker dies under it.
ATTEMPTS = 3


@dataclass(frozen=True)
class Sweep:
    """How to spread trials.

    Args:
        jobs: worker processes, one thread each; on a cluster ``None`` means all it has.
        backend: ``"loky"`` (this machine), ``"dask"`` or ``"ray"`` (a cluster that is running).
        address: where the cluster is: ``tcp://host:8786`` for Dask, ``host:6379`` or ``auto`` for Ray.

    Example:
        >>> Sweep(backend="dask")
        Traceback (most recent call last):
        mindgap.base.check.RuleError: address must be given with --backend dask, got ''
    """

    jobs: int | None = 1
    backend: str = "loky"
    address: str = ""

    def __post_init__(self) -> None:
        one_of("backend", self.backend, BACKENDS)
        if self.jobs is not None:
            whole("jobs", self.jobs, least=1)
        if self.backend == "loky" and self.address:
            fail("address", "must be left out with --backend loky, which is this machine", self.address)
        if self.backend != "loky" and not self.address:
            fail("address", f"must be given with --backend {self.backend}", self.address)

    @property
    def serial(self) -> bool:
        return self.backend == "loky" and self.jobs == 1


Work = tuple[Any, Header, Path]


class Execute(Protocol):
    """Run one trial and record it, looking now and then whether to go on."""

    def __call__(self, study: Any, header: Header, folder: Path, *, go_on: Callable[[], bool] = ...) -> End: ...


def spread(execute: Execute, work: Sequence[Work], sweep: Sweep) -> Iterator[tuple[Header, End]]:
    """Carry out every piece of work and yield how each ended, in the order in which they end.

    Args:
        execute: runs one trial and records it; must be importable by the workers.
        work: (study, header, folder) of each trial.
        sweep: how to spread them.
    """
    if sweep.serial or (sweep.backend == "loky" and len(work) < 2):
        for study, header, folder in work:
            yield header, execute(study, header, folder)
        return
    with _cluster(sweep):
        yield from _until_done(execute, list(work), sweep)


def _until_done(execute: Execute, work: list[Work], sweep: Sweep) -> Iterator[tuple[Header, End]]:
    left = {header.key: (study, header, folder) for study, header, folder in work}
    deaths = dict.fromkeys(left, 0)
    while left:
        # A pool that breaks takes the neighbours of whoever broke it along: the last attempt is made alone, so that
        # nobody is given up for a death beside it.
        alone = next((key for key in left if deaths[key] == ATTEMPTS - 1), None)
        now = [left[alone]] if alone else list(left.values())
        try:
            for header, end in _in_pool(execute, now, sweep):
                del left[header.key]
                yield header, end
            continue
        except Exception as error:
            if not died(error):
                raise
        at_work = []
        for _, header, folder in now:
            if header.key in left and is_finished(run_file(folder, header)):
                del left[header.key]  # it ended in time; only the news of it was lost with the pool
                yield header, _end(folder, header)
            elif header.key in left and run_file(folder, header).exists():
                at_work.append(header.key)
        # Where nobody came as far as a record, nobody can be told from the others.
        for key in at_work or [header.key for _, header, _ in now if header.key in left]:
            deaths[key] += 1
        if alone and deaths[alone] == ATTEMPTS:
            yield left.pop(alone)[1], End("failed", message=f"its worker died {ATTEMPTS} times (out of memory?)")
            deaths = dict.fromkeys(left, 0)  # whoever was at work beside it is cleared


def _end(folder: Path, header: Header) -> End:
    end = read_run(run_file(folder, header)).end
    assert end is not None
    return end


def _in_pool(execute: Execute, work: Sequence[Work], sweep: Sweep) -> Iterator[tuple[Header, End]]:
    """Carry out the work in one pool of workers, and raise when one of them dies."""
    from joblib import Parallel, delayed

    jobs = -1 if sweep.jobs is None else sweep.jobs
    how: dict[str, Any] = {"return_as": "generator_unordered"} if sweep.backend != "ray" else {}
    parallel = Parallel(n_jobs=jobs, batch_size=1, **how)
    child = sweep.backend == "loky"
    yield from parallel(delayed(in_worker)(execute, *item, child=child) for item in work)


def died(error: Exception) -> bool:
    """Whether an error says that a worker process is gone, and not that a trial went wrong."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"BrokenProcessPool", "KilledWorker", "WorkerCrashedError", "RayActorError", "ActorDiedError"})


def in_worker(
    execute: Execute, study: Any, header: Header, folder: Path, *, child: bool = False
) -> tuple[Header, End]:
    """One trial inside a worker, with one thread: two each on a busy machine make a gradient many times slower.

    ``child`` says that the worker was started by the driver and is there for nobody else.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if child and not _WATCHED:
        _WATCHED.append(threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True))
        _WATCHED[0].start()
    return header, execute(study, header, folder, go_on=wanted)


_WATCHED: list[threading.Thread] = []


def _end_with(driver: int) -> None:
    """End this process when its driver has died (a killed driver cannot tell); every row written so far is kept."""
    while os.getppid() == driver:
        time.sleep(ORPHANED)
    os._exit(1)


def wanted() -> bool:
    """Whether anybody still waits for what this worker does: a Dask worker goes on with a task that was called off."""
    if "distributed" not in sys.modules:
        return True
    try:
        worker = sys.modules["distributed"].get_worker()
        task = worker.state.tasks.get(worker.get_current_task())
    except (ValueError, AttributeError):  # no Dask worker at all
        return True
    return task is not None and task.state != "cancelled"


def _cluster(sweep: Sweep) -> AbstractContextManager[Any]:
    """joblib set to the backend, for the time of a sweep."""
    from joblib import parallel_config

    stack = ExitStack()
    if sweep.backend == "loky":
        # Workers ended by Ctrl-C leave semaphores behind; their tracker removes them and need not speak of it.
        os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
        # A worker that was idle for long, or that died: loky starts another, and what it was doing is tried again here.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given to the executor", UserWarning)
        stack.enter_context(parallel_config(backend="loky", inner_max_num_threads=1))
    elif sweep.backend == "dask":
        distributed = _needs("distributed", "dask")
        try:
            client = distributed.Client(sweep.address, timeout=CONNECT, set_as_default=False)
        except (OSError, ValueError):
            fail("address", "must be that of a running dask cluster", sweep.address)
        stack.callback(client.close)
        stack.enter_context(parallel_config(backend="dask", client=client, pure=False))
    else:
        ray = _needs("ray", "ray")
        from ray.util.joblib import register_ray

        try:
            ray.init(address=sweep.address, log_to_driver=False, logging_level="error", ignore_reinit_error=True)
        except (ConnectionError, OSError, ValueError, RuntimeError):
            fail("address", "must be that of a running ray cluster", sweep.address)
        stack.callback(ray.shutdown)
        register_ray()
        stack.enter_context(parallel_config(backend="ray"))
    return stack


def _needs(module: str, extra: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        fail("backend", f"must be installed: pip install 'mindgap[{extra}]'", extra)


def stop_workers() -> None:
    """End loky's workers at once (after Ctrl-C): their records keep every row written."""
    if "joblib.externals.loky.reusable_executor" in sys.modules:
        loky = sys.modules["joblib.externals.loky.reusable_executor"]
        if getattr(loky, "_executor", None) is not None:
            loky._executor.shutdown(wait=False, kill_workers=True)
