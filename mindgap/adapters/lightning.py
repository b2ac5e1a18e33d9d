"""The monitor in a Lightning ``Trainer``.

Lightning clips inside the optimizer's closure, after its hook ``on_before_optimizer_step``. The monitor does not look
at the loop's gradients: it measures its own batches at the parameters before the step, and so reads raw noise
whatever ``gradient_clip_val`` says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from mindgap.base.check import fail
from mindgap.measure.table import DEFAULT_PROBES


def monitor_callback(
    probes: Sequence[Any] = DEFAULT_PROBES,
    *,
    batches: Iterable[Any] | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    optimizer: int = 0,
    limit: int = 8,
    to: Any = None,
    **options: Any,
) -> Any:
    """A Lightning callback that runs a ``Monitor`` for the length of ``fit``.

    Args:
        probes: as ``Monitor`` takes them.
        batches: measuring batches on the model's device; by default ``limit`` random ones of the training data.
        loss: ``loss(module, batch) -> scalar``; by default the module's ``training_step`` with its logging switched
            off. Give it where ``training_step`` keeps a state of its own (metrics).
        optimizer: which of the trainer's optimizers to watch.
        limit: batches to draw.
        to: as ``Monitor`` takes it, or ``"logger"`` for the trainer's logger. Only rank 0 writes.
        options: ``every``, ``budget``, ``name``, ``seed`` of ``Monitor``.

    Returns:
        The callback. Its ``monitor`` is the ``Monitor`` once training has begun, ``readings`` its rows.

    Raises:
        RuleError: Lightning is not installed.

    Example:
        >>> monitor_callback(["noise"], every=10)  # doctest: +SKIP
        <mindgap.adapters.lightning.MonitorCallback object at ...>
    """
    return _callback_class()(probes, batches, loss, optimizer, limit, to, options)


@cache
def _callback_class() -> Any:
    """The callback's class, made when Lightning is first needed (its import takes seconds)."""
    try:
        from lightning.pytorch import Callback
    except ImportError as error:
        fail("lightning", "must be installed (pip install 'mindgap[lightning]')", str(error))

    from mindgap.adapters.batches import sample_batches
    from mindgap.base.objective import Objective
    from mindgap.measure.monitor import Monitor

    class MonitorCallback(Callback):  # type: ignore[misc, unused-ignore]
        """Made by ``monitor_callback``."""

        def __init__(
            self, probes: Any, batches: Any, loss: Any, optimizer: int, limit: int, to: Any, options: dict[str, Any]
        ) -> None:
            super().__init__()
            self._probes, self._batches, self._loss, self._optimizer = probes, batches, loss, optimizer
            self._limit, self._to, self._options = limit, to, options
            self.monitor: Monitor | None = None

        @property
        def readings(self) -> list[dict[str, Any]]:
            return self.monitor.readings if self.monitor is not None else []

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if not 0 <= self._optimizer < len(trainer.optimizers):
                fail("optimizer", f"must be one of the trainer's {len(trainer.optimizers)}", self._optimizer)
            batches = self._batches
            if batches is None:
                seed = self._options.get("seed", 0)
                drawn = sample_batches(trainer.train_dataloader, pl_module, limit=self._limit, seed=seed)
                batches = [trainer.strategy.batch_to_device(batch) for batch in drawn]
            to = self._to
            if to == "logger":
                to = _to_logger(trainer)
            self.monitor = Monitor(
                trainer.optimizers[self._optimizer],
                Objective(pl_module, self._loss or _training_loss(trainer)),
                batches,
                self._probes,
                to=to if trainer.is_global_zero else None,
                limit=self._limit,
                **self._options,
            )

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            if self.monitor is not None:
                self.monitor.close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            if self.monitor is not None:
                self.monitor.close(f"{type(exception).__name__}: {exception}")

    MonitorCallback.__qualname__ = "MonitorCallback"
    globals()["MonitorCallback"] = MonitorCallback  # found again when a callback is pickled
    return MonitorCallback


def _training_loss(trainer: Any) -> Callable[[Any, Any], Any]:
    """``training_step`` in the trainer's precision, with ``log`` and ``log_dict`` doing nothing."""

    def loss(module: Any, batch: Any) -> Any:
        takes_index = len(inspect.signature(module.training_step).parameters) > 1
        before = {name: module.__dict__[name] for name in ("log", "log_dict") if name in module.__dict__}
        module.__dict__["log"] = module.__dict__["log_dict"] = lambda *a, **k: None
        try:
            with trainer.precision_plugin.train_step_context():
                output = module.training_step(batch, 0) if takes_index else module.training_step(batch)
        finally:
            del module.__dict__["log"], module.__dict__["log_dict"]
            module.__dict__.update(before)
        return output["loss"] if isinstance(output, dict) else output

    return loss


def _to_logger(trainer: Any) -> Callable[[dict[str, Any]], None]:
    if trainer.logger is None:
        fail("to", "must not be 'logger' when the trainer has none", None)

    def write(row: dict[str, Any]) -> None:
        numbers = {f"mindgap/{k}": v for k, v in row.items() if isinstance(v, float)}
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=row["step"])

    return write
