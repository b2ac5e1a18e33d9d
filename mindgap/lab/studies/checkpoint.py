"""Checkpoints of long runs: a file beside the record, written by atomic rename, with a checksum and
with what it belongs to (:mod:`mindgap.base.checkpoint`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mindgap.lab.studies.loop import Trial
from mindgap.record.schema import RecordError
from mindgap.record.store import RunWriter

SUFFIX = ".ckpt"
KIND = "trial"
#: Seconds; a checkpoint that says more was not written by a run.
LONGEST = 1e12


class Checkpoints:
    """Writes a trial's checkpoints when they are due, and finds the last one after an interruption.

    Args:
        writer: the run's record; a checkpoint says after how many of its rows it was taken.
        every: seconds between checkpoints; 0 writes each one offered.
        loop: the study's loop; a checkpoint of other code is refused.
    """

    def __init__(self, writer: RunWriter, every: float, loop: Callable[..., Any]) -> None:
        self.path = writer.path.with_suffix(SUFFIX)
        #: What became of a checkpoint that could not be used, in words; empty if all was well.
        self.note = ""
        self._writer = writer
        self._every = every
        self._loop = loop
        self._of: dict[str, str] | None = None
        self._last = time.monotonic()

    def restore(self, trial: Trial) -> bool:
        """Put the trial where its last checkpoint was taken; ``False`` if there is none that fits
        the record.

        A checkpoint taken after more rows than are recorded (power failed, and rows were lost) is
        not used. One that is damaged is set aside, and :attr:`note` names it: the run then starts
        from its beginning.

        Raises:
            RecordError: the checkpoint was written by other code; the message says what differs.
        """
        if not self.path.exists():
            return False
        from mindgap.base.checkpoint import CheckpointError, read_checkpoint, set_aside

        try:
            rows, seconds, cpu_seconds, state = _parts(
                read_checkpoint(self.path, KIND, self._belongs_to())
            )
        except CheckpointError as error:
            if error.reason == "other":
                raise RecordError(f"{error}; run with --force to begin again") from error
            self.note = f"{error}; it is now {set_aside(self.path).name}, and the run began again"
            return False
        if rows > len(self._writer.recorded):
            return False
        trial.seconds, trial.cpu_seconds, trial.restored = seconds, cpu_seconds, state
        self._writer.skip_to(rows)
        return True

    def offer(self, trial: Trial) -> None:
        """After a row: write what the loop has offered, if it is time."""
        state = trial.take_saved()
        if state is None or time.monotonic() - self._last < self._every:
            return
        self._write(
            {
                "rows": self._writer.position,
                "seconds": trial.seconds,
                "cpu_seconds": trial.cpu_seconds,
                "state": state() if callable(state) else state,
            }
        )
        self._last = time.monotonic()

    def _belongs_to(self) -> dict[str, str]:
        """Data and start of a trial are made from the settings and the seed in its record's name,
        by the code of its loop.
        """
        if self._of is None:
            from mindgap import __version__
            from mindgap.base.fingerprint import function_text

            self._of = {
                "record": self._writer.path.stem,
                "code": function_text(self._loop),
                "program": f"mindgap {__version__}",
            }
        return self._of

    def _write(self, content: dict[str, Any]) -> None:
        from mindgap.base.checkpoint import write_checkpoint

        self._writer.sync()  # a checkpoint must never be ahead of the recorded rows
        write_checkpoint(self.path, KIND, content, self._belongs_to())

    def clear(self) -> None:
        """The run is done: its record is all there is to keep."""
        self.path.unlink(missing_ok=True)


def _parts(content: Any) -> tuple[int, float, float, dict[str, Any]]:
    """Rows, seconds, seconds of the CPU and the loop's own state."""
    from mindgap.base.checkpoint import CheckpointError

    found = content if isinstance(content, dict) else {}
    rows, state = found.get("rows"), found.get("state")
    times = [found.get(name) for name in ("seconds", "cpu_seconds")]
    if (
        type(rows) is not int
        or rows < 0
        or not isinstance(state, dict)
        or not all(isinstance(s, (int, float)) and 0 <= s <= LONGEST for s in times)
    ):
        rule = "checkpoint must hold rows, seconds and a state, got other content"
        raise CheckpointError(rule, "damaged")
    seconds, cpu_seconds = (float(s) for s in times if s is not None)
    return rows, seconds, cpu_seconds, state
