"""What a loop receives (one method, one seed, its settings, named random streams and a stopwatch),
and its checkpoints: a file beside the record, written by atomic rename, with a checksum and with
what it belongs to (:mod:`mindgap.base.checkpoint`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from mindgap.base.rng import numpy_stream, torch_stream
from mindgap.record.schema import RecordError
from mindgap.record.store import RunWriter

if TYPE_CHECKING:
    import numpy as np
    import torch

Cell = TypeVar("Cell")

#: What a loop offers to save: the mapping, or a function that makes it when it is wanted.
State = dict[str, Any] | Callable[[], dict[str, Any]]


@dataclass
class Trial:
    """One run of a study: one method with one seed.

    Streams are hashed from the seed and a name, not from the method: all methods see the same data
    order, the same start and the same noise.

    Example:
        >>> trial = Trial("sgd", 0, {"lr": 0.1})
        >>> (
        ...     trial["lr"],
        ...     trial.numpy_generator("noise").random()
        ...     == Trial("b", 0, {}).numpy_generator("noise").random(),
        ... )
        (0.1, True)
    """

    method: str
    seed: int
    settings: Mapping[str, Any]
    #: What :meth:`timed` has measured so far, by the clock.
    seconds: float = 0.0
    #: As ``seconds``, of the processor instead of the clock: waiting for other processes does not
    #: count.
    cpu_seconds: float = 0.0
    #: What :meth:`save` stored before an interruption; empty on a fresh start.
    restored: dict[str, Any] = field(default_factory=dict)
    _saved: State | None = None  # the last offer of :meth:`save`, until :meth:`take_saved`

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    def torch_generator(self, name: str) -> torch.Generator:
        """A torch generator for the stream of that name."""
        return torch_stream(self.seed, name)

    def numpy_generator(self, name: str) -> np.random.Generator:
        """A numpy generator for the stream of that name."""
        return numpy_stream(self.seed, name)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time that the block takes to ``seconds`` and ``cpu_seconds``.

        It stands around the algorithm only; evaluation stays outside.
        """
        clock_start, cpu_start = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.cpu_seconds += time.process_time() - cpu_start
            self.seconds += time.perf_counter() - clock_start

    def save(self, state: State) -> None:
        """Offer a checkpoint: everything the loop needs to go on after the row it yields next.

        ``state`` is a mapping with tensors, numbers, texts, None, lists, tuples and mappings only
        (:mod:`mindgap.base.checkpoint`), or a function that makes such a mapping. The runner
        decides when a checkpoint is due, and calls the function only then. A loop that finds
        :attr:`restored` filled goes on from there::

            start = trial.restored.get("step", 0)
            for step in range(start, trial["steps"]):
                ...
                trial.save(lambda: {"step": step + 1, "model": model.state_dict()})
                yield {"step": step, "loss": loss}
        """
        self._saved = state

    def cells(self, cells: Iterable[Cell]) -> Iterator[Cell]:
        """The cells of a grid, with a checkpoint offered for each; those recorded before an
        interruption are left out.

        For a loop that yields one row per cell and in which no cell depends on another: each has
        random streams of its own name.

        Example:
            >>> trial = Trial("sgd", 0, {}, restored={"cell": 1})
            >>> list(trial.cells([0.1, 0.2, 0.3]))
            [0.2, 0.3]
        """
        for number, cell in enumerate(cells):
            if number >= self.restored.get("cell", 0):
                self.save({"cell": number + 1})
                yield cell

    def take_saved(self) -> State | None:
        """Return and clear the checkpoint that was offered since the last call; the runner
        calls this.
        """
        offered, self._saved = self._saved, None
        return offered


#: The end of a checkpoint's file name.
SUFFIX = ".ckpt"
#: The kind of checkpoint that its header names.
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
        self.path = writer.path.with_suffix(SUFFIX)  # of the checkpoint
        #: What became of a checkpoint that could not be used, in words; empty if all was well.
        self.note = ""
        self._writer, self._every, self._loop = writer, every, loop
        self._last_written = time.monotonic()  # or when this object was made

    def restore(self, trial: Trial) -> None:
        """Set the trial to the state of its last checkpoint and the record to the row after it.

        Where there is no checkpoint that fits, both stay at their beginning. One that was taken
        after more rows than are recorded (power failed, and rows were lost) is not used. A damaged
        one is renamed, and :attr:`note` says so.

        Raises:
            RecordError: the checkpoint was written by other code; the message says what differs.
        """
        if not self.path.exists():
            return
        from mindgap.base.checkpoint import CheckpointError, read_checkpoint, set_aside

        try:
            content = read_checkpoint(self.path, KIND, self._belongs_to)
            rows, seconds, cpu_seconds, state = _checked_parts(content)
        except CheckpointError as error:
            if error.reason == "other":
                raise RecordError(f"{error}; run with --force to begin again") from error
            self.note = f"{error}; it is now {set_aside(self.path).name}, and the run began again"
            return
        if rows <= len(self._writer.recorded):
            trial.seconds, trial.cpu_seconds, trial.restored = seconds, cpu_seconds, state
            self._writer.skip_to(rows)

    def offer(self, trial: Trial) -> None:
        """Write the state that the loop offered with its last row, if a checkpoint is due.

        The trial's offer is cleared in any case. Rows are brought to the disk before.
        """
        state = trial.take_saved()
        if state is None or time.monotonic() - self._last_written < self._every:
            return
        from mindgap.base.checkpoint import write_checkpoint

        content = {
            "rows": self._writer.position,
            "seconds": trial.seconds,
            "cpu_seconds": trial.cpu_seconds,
            "state": state() if callable(state) else state,
        }
        self._writer.sync()  # a checkpoint must never be ahead of the recorded rows
        write_checkpoint(self.path, KIND, content, self._belongs_to)
        self._last_written = time.monotonic()

    @cached_property
    def _belongs_to(self) -> dict[str, str]:
        """What a checkpoint is valid for, as texts: the record (its name is made from settings and
        seed), the code of the loop, and the version of the program.
        """
        from mindgap import __version__
        from mindgap.base.fingerprint import function_text

        return {
            "record": self._writer.path.stem,
            "code": function_text(self._loop),
            "program": f"mindgap {__version__}",
        }


def _checked_parts(content: Any) -> tuple[int, float, float, dict[str, Any]]:
    """The parts of a checkpoint's content, checked.

    Returns:
        After how many rows it was taken; seconds and CPU seconds of the algorithm until then; and
        the loop's state.

    Raises:
        CheckpointError: one of them is missing or has an impossible value.
    """
    from mindgap.base.checkpoint import CheckpointError

    fields = content if isinstance(content, dict) else {}
    rows, state = fields.get("rows"), fields.get("state")
    times: list[Any] = [fields.get(name) for name in ("seconds", "cpu_seconds")]
    possible_times = all(
        isinstance(value, (int, float)) and 0 <= value <= LONGEST for value in times
    )
    # A bool is an int too, but no number of rows.
    if type(rows) is not int or rows < 0 or not isinstance(state, dict) or not possible_times:
        rule = "checkpoint must hold rows, seconds and a state, got other content"
        raise CheckpointError(rule, "damaged")
    seconds, cpu_seconds = map(float, times)
    return rows, seconds, cpu_seconds, state
