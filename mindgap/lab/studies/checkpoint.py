"""Checkpoints of long runs: a file beside the record, written by atomic rename, loaded with
``weights_only``.
"""

from __future__ import annotations

import time
from typing import Any

from mindgap.lab.studies.loop import Trial
from mindgap.record.store import RunWriter, replacing

SUFFIX = ".ckpt"


class Checkpoints:
    """Writes a trial's checkpoints when they are due, and finds the last one after an interruption.

    Args:
        writer: the run's record; a checkpoint says after how many of its rows it was taken.
        every: seconds between checkpoints; 0 writes each one offered.
    """

    def __init__(self, writer: RunWriter, every: float) -> None:
        self.path = writer.path.with_suffix(SUFFIX)
        self._writer = writer
        self._every = every
        self._last = time.monotonic()

    def restore(self, trial: Trial) -> bool:
        """Put the trial where its last checkpoint was taken; ``False`` if there is none that fits
        the record.

        A checkpoint taken after more rows than are recorded (power failed, and rows were lost) is
        not used, nor is one that cannot be read: the run then starts from its beginning.
        """
        if not self.path.exists():
            return False
        import torch

        try:
            saved = torch.load(self.path, weights_only=True)
            rows, seconds, state = saved["rows"], saved["seconds"], saved["state"]
        except Exception:  # whatever is wrong with it, the record alone is enough
            return False
        if rows > len(self._writer.recorded):
            return False
        trial.seconds, trial.cpu_seconds, trial.restored = (
            seconds,
            saved.get("cpu_seconds", 0.0),
            state,
        )
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

    def _write(self, content: dict[str, Any]) -> None:
        import torch

        self._writer.sync()  # a checkpoint must never be ahead of the recorded rows
        with replacing(self.path) as file:
            torch.save(content, file)

    def clear(self) -> None:
        """The run is done: its record is all there is to keep."""
        self.path.unlink(missing_ok=True)
