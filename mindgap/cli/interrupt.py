"""Ctrl-C: end within two seconds, whatever the algorithm is doing, and say how to go on."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Seconds after Ctrl-C at which the program ends even if it is deep inside a long call.
PATIENCE = 1.2

STATUS = 130


def how_to_go_on(finished: int, planned: int) -> str:
    """The last words of an interrupted sweep."""
    words = [word for word in sys.argv[1:] if word != "--force"]
    return (
        f"interrupted: {finished} of {planned} runs are finished, and every row recorded so far is kept.\n"
        f"To go on: {shlex.join(['mindgap', *words])}"
    )


@contextmanager
def prompt_interrupt(last_words: Callable[[], str], stop: Callable[[], None]) -> Iterator[None]:
    """Turn Ctrl-C into an exit with status 130 after at most two seconds.

    Rows are on their way to the disk as soon as they are recorded, so nothing is lost by ending at once. Python acts
    on a signal only between two of its own instructions; a thread that hears the signal directly ends the program
    if a long call (a matrix product, a worker that does not answer) keeps it from acting.

    Args:
        last_words: what to print.
        stop: ends the worker processes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hears, tells = socket.socketpair()
    tells.setblocking(False)
    over = threading.Event()

    def watch() -> None:
        while data := hears.recv(1):
            if data[0] == signal.SIGINT and not over.wait(PATIENCE):
                stop()
                os.write(2, (last_words() + "\n").encode())
                os._exit(STATUS)

    before = signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)
    listener = threading.Thread(target=watch, daemon=True)
    listener.start()
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the tidying up
        stop()
        print(last_words(), file=sys.stderr)
        sys.stderr.flush()
        os._exit(STATUS)  # joblib's and Dask's threads would otherwise be waited for
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        tells.close()
        listener.join(1)
        hears.close()
