"""What a loop receives: one method, one seed, its settings, named random streams and a
stopwatch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from mindgap.base.rng import numpy_stream, torch_stream

if TYPE_CHECKING:
    import numpy as np
    import torch

Cell = TypeVar("Cell")

#: What a loop offers to save: the mapping, or a function that makes it when it is wanted.
State = dict[str, Any] | Callable[[], dict[str, Any]]


@dataclass
class Trial:
    """One run of a study.

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
    seconds: float = 0.0
    #: As ``seconds``, of the processor instead of the clock: waiting for other processes does not
    #: count.
    cpu_seconds: float = 0.0
    #: What :meth:`save` stored before an interruption; empty on a fresh start.
    restored: dict[str, Any] = field(default_factory=dict)
    _saved: State | None = None

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
        """Measure time around the algorithm only; evaluation stays outside."""
        start, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.cpu_seconds += time.process_time() - cpu
            self.seconds += time.perf_counter() - start

    def save(self, state: State) -> None:
        """Offer a checkpoint: ``state`` is everything the loop needs to go on after the row it
        yields next.

        Tensors, numbers, texts, None, lists, tuples and mappings only
        (:mod:`mindgap.base.checkpoint`); or a function that makes such a mapping, called only when
        a checkpoint is due. The runner decides when that is. A loop that finds :attr:`restored`
        filled goes on from there::

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
        saved, self._saved = self._saved, None
        return saved
