"""Ctrl-C, termination and hang-up: end within two seconds, leave no worker, say how to go on, tell
the truth.

Rows are on their way to the disk as soon as they are recorded, so nothing is lost by ending at
once. The handler ends the program itself: an exception could be swallowed or shown as a traceback
by whatever library is at work.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

#: Seconds until the program ends even if a long call (a matrix product, say) keeps Python from
#: running the handler.
PATIENCE = 1.2
#: Seconds that the last words may take.
LONGEST_WORDS = 5.0

_LAST_WORDS: list[Callable[[], str]] = []
_ENDING = threading.Lock()  # taken by the first call of ``_end``, and never released


def end_on_signals() -> None:
    """Let Ctrl-C, termination and hang-up end the program with status 128 + the signal's number
    from now on. A signal that is ignored stays ignored. Does nothing outside the main thread.

    Besides Python's handlers, which wait for a long call to return, a thread listens: Python writes
    the number of every signal into a socket at once.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    signals = [getattr(signal, name) for name in names]
    numbers = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    for number in numbers:
        signal.signal(number, lambda number, frame: _end(number))
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    threading.Thread(target=_listen, args=(reader, numbers), daemon=True).start()


@contextmanager
def last_words(words: Callable[[], str]) -> Iterator[None]:
    """While the body runs, an interrupted program calls ``words`` (to save, to tidy up) and
    prints what it returns.
    """
    _LAST_WORDS.append(words)
    try:
        yield
    finally:
        _LAST_WORDS.remove(words)


def how_to_go_on(finished: int, planned: int) -> str:
    """What an interrupted sweep prints: what is kept, and the command that goes on."""
    return (
        f"interrupted: {finished} of {planned} runs are finished, and every row recorded so far is "
        "kept.\n"
        f"To go on: {typed_again()}"
    )


def typed_again() -> str:
    """The command line that was typed, less what would begin anew."""
    import shlex

    return shlex.join(["mindgap", *(word for word in sys.argv[1:] if word != "--force")])


def _listen(reader: socket.socket, numbers: list[int]) -> None:
    """Wait for signals and end the program in place of the handler where Python does not come to
    it. Runs in a thread of its own.

    Args:
        reader: socket into which Python writes the number of every signal, one byte each.
        numbers: the signals that end the program.
    """
    while data := reader.recv(1):
        if data[0] in numbers:
            threading.Event().wait(PATIENCE)
            _end(data[0])
            threading.Event().wait(LONGEST_WORDS)
            os._exit(128 + data[0])


def _end(number: int) -> None:
    """Stop the workers, print the last words and end the program with status 128 + ``number``, that
    of the signal. Only the first call does so; a later one returns at once.
    """
    if not _ENDING.acquire(blocking=False):
        return  # the handler or the listener is at it already, or the signal came twice
    text = "interrupted"
    if "mindgap.lab.studies.processes" in sys.modules:
        sys.modules["mindgap.lab.studies.processes"].stop_workers()
    with suppress(Exception):
        text = "\n".join(words() for words in reversed(_LAST_WORDS)) or text
    with suppress(Exception):
        sys.stdout.flush()
    if os.isatty(2):  # a bar may have hidden the cursor, and stands on this line
        text = f"\x1b[?25h\n{text}"
    with suppress(OSError):
        os.write(2, f"{text}\n".encode(getattr(sys.stderr, "encoding", None) or "utf-8", "replace"))
    os._exit(128 + number)
