"""Calls in worker processes of this machine: a call that kills its worker or takes too long harms
no other call.

``python -m mindgap.lab.studies.processes`` is the worker. The driver writes pickled calls to its
standard input, each after its length in 8 bytes. The worker writes pickled answers to its standard
output. It ends when its standard input closes, so it never survives its driver, however that ended.
(joblib's workers notice a killed driver only after minutes, and none can be ended alone.)
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

#: How often a call is tried whose worker dies.
ATTEMPTS = 3

#: Several threads per worker on a busy machine make a gradient many times slower.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


@dataclass(frozen=True)
class Lost:
    """A call without a result: its worker died several times, or it took longer than the limit."""

    reason: str


class Worker:
    """One worker process. It has a session of its own: Ctrl-C and hanging up reach the driver
    only.
    """

    def __init__(self) -> None:
        # The worker imports what the driver does, from the same folders.
        python_path = os.pathsep.join(folder for folder in sys.path if folder)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mindgap.lab.studies.processes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": python_path, "PYTHONSAFEPATH": "1"},
        )

    def run(self, call: bytes, limit: float | None) -> tuple[bool, Any] | Lost | None:
        """Carry out a pickled call and wait for its end.

        Args:
            call: a function without arguments, pickled.
            limit: seconds after which the process is killed; None or 0: no limit.

        Returns:
            (whether the call succeeded, its value or its error); :class:`Lost` if the limit passed;
            None if the worker died by itself.
        """
        limit_passed = threading.Event()

        def kill_at_limit() -> None:
            """Kill the process; the flag tells this death from one of its own."""
            limit_passed.set()
            self.kill()

        timer = threading.Timer(limit or threading.TIMEOUT_MAX, kill_at_limit)
        timer.daemon = True
        timer.start()
        calls = cast("BinaryIO", self._process.stdin)
        answers = cast("BinaryIO", self._process.stdout)
        try:
            calls.write(len(call).to_bytes(8, "big") + call)
            calls.flush()
            answer: tuple[bool, Any] = pickle.load(answers)
            return answer
        except (OSError, EOFError, pickle.UnpicklingError):
            if limit_passed.is_set():
                return Lost(f"it took longer than the limit of {limit:g} s; its rows are kept")
            return None
        finally:
            timer.cancel()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def close(self) -> None:
        """End the process and wait until it is gone."""
        self.kill()
        with suppress(OSError), self._process:  # closes both pipes and waits
            pass


class Pool:
    """Worker processes with one thread of the driver each; :func:`stop_workers` ends those of
    every pool.

    Calls may be added while results are read. The workers wait for them until :meth:`complete` says
    that there are no more, or the pool is closed. A *place* numbers a worker and its thread.

    Args:
        calls: the first ones, functions without arguments.
        jobs: worker processes at most.
        limit: seconds per call, or None.
    """

    def __init__(self, calls: Sequence[Callable[[], Any]], jobs: int, limit: float | None) -> None:
        self.stopped = False
        self._jobs, self._limit = jobs, limit
        # (number of the call, the call pickled); None tells one worker to end.
        self._todo: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        # (number of the call, what ``_attempt`` returned)
        self._ends: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._added = self._read = 0  # calls added and results handed out so far
        self._workers: dict[int, Worker] = {}  # place -> worker
        self._threads: list[threading.Thread] = []
        self.add(calls)

    def add(self, calls: Sequence[Callable[[], Any]]) -> None:
        """Add calls, numbered on from those before, and start threads for them up to ``jobs``."""
        from cloudpickle import dumps

        for call in calls:
            self._todo.put((self._added, dumps(call)))
            self._added += 1
        for place in range(len(self._threads), min(self._jobs, self._added)):
            thread = threading.Thread(target=self._serve, args=(place,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def complete(self) -> None:
        """No call will be added: a worker that finds nothing more to do ends."""
        for _ in self._threads:
            self._todo.put(None)

    def _serve(self, place: int) -> None:
        """Hand calls to one worker until there are no more; start another worker when it dies."""
        while not self.stopped and (item := self._todo.get()) is not None:
            number, call = item
            try:
                self._ends.put((number, self._attempt(place, call)))
            except Exception as error:  # the worker could not be started
                self._ends.put((number, (False, error)))
        if place in self._workers:
            self._workers.pop(place).close()

    def _attempt(self, place: int, call: bytes) -> tuple[bool, Any] | Lost:
        """Carry out one call at the worker of a place; returns what :meth:`Worker.run` returns,
        but never None.

        A worker that is missing, died or was killed is replaced. A call whose worker dies is tried
        ``ATTEMPTS`` times in all.
        """
        for _ in range(ATTEMPTS):
            if place not in self._workers:
                self._workers[place] = Worker()
            result = self._workers[place].run(call, self._limit)
            if not isinstance(result, tuple):  # the worker is gone
                self._workers.pop(place).close()
            if result is not None or self.stopped:
                return result or Lost("it was called off")
        return Lost(f"its worker died {ATTEMPTS} times (out of memory?)")

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Number and result of every call as it ends, until all calls added so far have ended.

        The result of a call that was lost is :class:`Lost`. A call's exception is raised.
        """
        while self._read < self._added:
            number, result = self._ends.get()
            self._read += 1
            if isinstance(result, tuple):  # of a worker that answered
                succeeded, result = result
                if not succeeded:
                    raise result
            yield number, result

    def stop(self) -> None:
        """End all workers at once; what they have recorded is kept."""
        self.stopped = True
        self.complete()
        for worker in list(self._workers.values()):
            worker.kill()

    def close(self) -> None:
        """End all workers and wait for them."""
        self.stop()
        for thread in self._threads:
            thread.join(5)


_POOLS: list[Pool] = []


def in_processes(
    calls: Sequence[Callable[[], Any]], jobs: int, *, limit: float | None = None
) -> Iterator[tuple[int, Any]]:
    """Carry out calls in worker processes and yield (number of the call, result) in the order in
    which they end.

    Args:
        calls: functions without arguments (``functools.partial``); sent by cloudpickle.
        jobs: worker processes, one thread each.
        limit: seconds per call.

    A call that is lost has a :class:`Lost` for a result. An exception of a call is raised here.

    Example:
        >>> from functools import partial
        >>> sorted(in_processes([partial(pow, 2, 3), partial(pow, 3, 2)], jobs=2))
        [(0, 8), (1, 9)]
    """
    with pool_of(calls, jobs, limit=limit) as pool:
        pool.complete()
        yield from pool


@contextmanager
def pool_of(
    calls: Sequence[Callable[[], Any]], jobs: int, *, limit: float | None = None
) -> Iterator[Pool]:
    """The worker processes of :func:`in_processes`, which has the same arguments.

    It is for calls that follow from the results of others (:meth:`Pool.add`). The processes end
    with the block.
    """
    pool = Pool(calls, jobs, limit)
    _POOLS.append(pool)
    try:
        yield pool
    finally:
        pool.close()
        _POOLS.remove(pool)


def stop_workers() -> None:
    """End every worker process at once: their records keep every row written."""
    for pool in list(_POOLS):
        pool.stop()


def _listen(calls: BinaryIO, inbox: queue.SimpleQueue[bytes]) -> None:
    """Put the calls that the driver writes into ``inbox``, until it closes the pipe or dies; then
    end this process, whatever it is doing.
    """
    while header := calls.read(8):
        size = int.from_bytes(header, "big")
        call = calls.read(size)
        if len(call) == size:  # else the driver died while it wrote
            inbox.put(call)
    os._exit(1)


def main() -> None:
    """The worker: carry out the calls of standard input until it closes.

    Each answer is written to standard output, pickled: (whether the call succeeded, its value or
    its error). What a call prints goes to standard error.
    """
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, inbox), daemon=True).start()
    answers = os.fdopen(os.dup(1), "wb")  # the standard output that the driver reads
    os.dup2(2, 1)
    from cloudpickle import dumps

    while True:
        call = inbox.get()
        try:
            answer = (True, pickle.loads(call)())
        except Exception as error:
            answer = (False, error)
        try:
            data = dumps(answer)
        except Exception:
            problem = f"a call gave {answer[1]!r}, which cannot be sent to the driver"
            data = dumps((False, RuntimeError(problem)))
        answers.write(data)
        answers.flush()


if __name__ == "__main__":
    main()
