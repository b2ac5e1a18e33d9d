"""A time limit for a block of code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


@contextmanager
def time_limit(seconds: float, error: BaseException) -> Iterator[None]:
    """Raise ``error`` in the body after so many seconds; no limit for 0, outside the main thread,
    and on Windows.

    The timer and SIGALRM are taken for that time: the handler is put back afterwards, but a timer
    that ran before is lost.

    Example:
        >>> with time_limit(0.01, TimeoutError("too slow")):
        ...     while True:
        ...         pass
        Traceback (most recent call last):
        TimeoutError: too slow
    """
    if (
        not seconds
        or not hasattr(signal, "setitimer")
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def too_late(number: int, frame: Any) -> NoReturn:
        """Handler of SIGALRM, which gets the signal's number and the frame: raise ``error``."""
        raise error

    handler_before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler_before)
