"""Spread trials over processes of this machine, or over a running Dask or Ray cluster; the same
records everywhere.

Workers write the records themselves, so ``out`` must be a folder that all of them see. A trial that
fails is reported, not raised. A worker that dies harms no other trial: what it was doing is tried
again, three times in all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from mindgap.base.alarm import time_limit
from mindgap.base.check import between, fail, missing, one_of, whole
from mindgap.lab.studies.processes import ATTEMPTS, Lost, in_processes, stop_workers
from mindgap.record.schema import End, Header, RecordError

__all__ = ["BACKENDS", "Sweep", "spread", "stop_workers"]

BACKENDS = ("local", "dask", "ray")

#: Seconds to wait for a cluster to answer.
CONNECT_LIMIT = 20


@dataclass(frozen=True)
class Sweep:
    """How to spread trials.

    Example:
        >>> Sweep(backend="dask")
        Traceback (most recent call last):
        mindgap.base.check.RuleError: address must be given with --backend dask, got ''
    """

    #: worker processes, one thread each; on a cluster ``None`` means all it has
    jobs: int | None = 1
    #: ``"local"`` (this machine), ``"dask"`` or ``"ray"`` (a cluster that is running)
    backend: str = "local"
    #: where the cluster is: ``tcp://host:8786`` for Dask, ``host:6379`` or ``auto`` for Ray
    address: str = ""
    #: seconds per trial, 0 for no limit. A trial that takes longer fails; its rows are kept. With
    #: one job the limit acts between two instructions of Python; a cluster has its own limits.
    limit: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a cluster without an address, an address without one, and impossible numbers."""
        one_of("backend", self.backend, BACKENDS)
        between("limit", self.limit, 0, 1e8)
        if self.jobs is not None:
            whole("jobs", self.jobs, least=1)
        if self.backend == "local" and self.address:
            fail("address", "must be left out with --backend local (this machine)", self.address)
        if self.backend != "local" and not self.address:
            fail("address", f"must be given with --backend {self.backend}", self.address)


#: Study, header and folder of a trial.
Work = tuple[Any, Header, Path]
#: (study, header, folder) -> how the trial ended. It runs and records the trial, and asks its
#: argument ``go_on`` now and then whether to go on.
Execute = Callable[..., End]


def spread(execute: Execute, work: Sequence[Work], sweep: Sweep) -> Iterator[tuple[Header, End]]:
    """Carry out every piece of work and yield how each ended, in the order in which they end.

    Args:
        execute: runs one trial and records it; must be importable by the workers.
        work: (study, header, folder) of each trial.
        sweep: how to spread them.

    Yields:
        The header of a trial, and its end: a failed one where its worker was lost or it took too
        long.
    """
    if sweep.backend != "local":
        yield from _on_cluster(execute, work, sweep)
    elif sweep.jobs == 1 or len(work) < 2:
        late = f"it took longer than the limit of {sweep.limit:g} s; its rows are kept"
        for study, header, folder in work:
            with time_limit(sweep.limit, TimeoutError(late)):
                end = execute(study, header, folder)
            yield header, end
    else:
        calls = [partial(execute, *item) for item in work]
        for number, end in in_processes(calls, sweep.jobs or 1, limit=sweep.limit or None):
            header = work[number][1]
            yield header, End("failed", message=end.reason) if isinstance(end, Lost) else end


def _on_cluster(
    execute: Execute, work: Sequence[Work], sweep: Sweep
) -> Iterator[tuple[Header, End]]:
    """:func:`spread` on a cluster, with at most ``jobs`` trials there at a time.

    The cluster itself tries a trial again whose worker died. The connection is closed at the end.

    Raises:
        RecordError: the cluster is gone.
    """
    cluster = _dask(sweep.address) if sweep.backend == "dask" else _ray(sweep.address)
    try:
        remaining = iter(work)
        header_of: dict[Any, Header] = {}  # future -> header of its trial
        while True:
            free_places = len(work) if sweep.jobs is None else sweep.jobs - len(header_of)
            for study, header, folder in islice(remaining, free_places):
                call = partial(execute, study, header, folder, go_on=is_awaited)
                with _reachable(sweep):
                    header_of[cluster.submit(call)] = header
            if not header_of:
                return
            with _reachable(sweep):
                future = cluster.first_ended(list(header_of))
            header = header_of.pop(future)
            try:
                end = cluster.result(future)
            except Exception as error:
                if not worker_is_gone(error):
                    raise
                end = End("failed", message=f"its worker or node was lost ({_first_line(error)})")
            yield header, end
    finally:
        with suppress(Exception):  # what is gone cannot be closed
            cluster.close()


@contextmanager
def _reachable(sweep: Sweep) -> Iterator[None]:
    """Turn an error of the block into one sentence, if it means that the whole cluster is gone.

    Raises:
        RecordError: the cluster cannot be reached. Every other error is passed on.
    """
    try:
        yield
    except Exception as error:
        if not (worker_is_gone(error) or isinstance(error, OSError)):
            raise
        raise RecordError(
            f"the {sweep.backend} cluster at {sweep.address} cannot be reached any more "
            f"({_first_line(error)}); finished records are kept, running again goes on"
        ) from error


def _first_line(error: Exception) -> str:
    """Kind and first line of an error."""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


@dataclass(frozen=True)
class Cluster:
    """What a sweep needs of a cluster."""

    submit: Callable[[Callable[[], End]], Any]  # call -> its future
    first_ended: Callable[[list[Any]], Any]  # futures -> the first that ends; waits for it
    result: Callable[[Any], End]  # future that has ended -> its result, or the error is raised
    close: Callable[[], Any]  # ends the connection


def on_one_thread(call: Callable[[], End]) -> End:
    """Carry out a call on a cluster's worker, where torch then computes with one thread.

    A worker that has not loaded torch yet is left as it is.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    return call()


def _dask(address: str) -> Cluster:
    """A running Dask cluster.

    Raises:
        MissingPackageError: the package is not installed; the message says how to install it.
        RuleError: none answers at the address.
    """
    try:
        import distributed

        client = distributed.Client(address, timeout=CONNECT_LIMIT)
    except ImportError:
        missing("dask", "dask")
    except (OSError, ValueError):
        fail("address", "must be that of a running dask cluster", address)
    return Cluster(
        # Not pure: a call is carried out even where an equal one was before.
        submit=lambda call: client.submit(on_one_thread, call, pure=False),
        first_ended=lambda futures: next(iter(distributed.as_completed(futures))),
        result=lambda future: future.result(),
        close=client.close,
    )


def _ray(address: str) -> Cluster:
    """A running Ray cluster. It tries a call again whose worker died, ``ATTEMPTS`` times in all.

    Raises:
        MissingPackageError: the package is not installed; the message says how to install it.
        RuleError: none answers at the address.
    """
    try:
        import ray

        ray.init(
            address=address, log_to_driver=False, logging_level="error", ignore_reinit_error=True
        )
    except ImportError:
        missing("ray", "ray")
    except (ConnectionError, OSError, ValueError, RuntimeError):
        fail("address", "must be that of a running ray cluster", address)
    remote = ray.remote(max_retries=ATTEMPTS - 1)(on_one_thread)
    return Cluster(
        submit=remote.remote,
        # ``wait`` returns two lists, the futures that have ended and the others.
        first_ended=lambda futures: ray.wait(futures, num_returns=1)[0][0],
        result=ray.get,
        close=ray.shutdown,
    )


def worker_is_gone(error: Exception) -> bool:
    """Whether an error says that a worker, its node or the cluster is gone, and not that a trial
    went wrong: Ray and Dask raise errors of their own then, and Ray wraps those of a trial.

    Example:
        >>> worker_is_gone(ValueError("a trial's own"))
        False
    """
    classes = type(error).__mro__
    if any(ancestor.__name__ == "RayTaskError" for ancestor in classes):
        return False
    packages = {ancestor.__module__.partition(".")[0] for ancestor in classes}
    connection_lost = isinstance(error, ConnectionError) or type(error).__name__ == "CancelledError"
    return connection_lost or not packages.isdisjoint({"ray", "distributed", "dask"})


def is_awaited() -> bool:
    """Whether the driver still waits for the trial that this process runs.

    Only a Dask worker can tell otherwise: it goes on with a task that was cancelled.
    """
    if "distributed" not in sys.modules:
        return True
    try:
        worker = sys.modules["distributed"].get_worker()
        task = worker.state.tasks.get(worker.get_current_task())
    except (ValueError, AttributeError):  # no Dask worker at all
        return True
    return task is not None and task.state != "cancelled"
