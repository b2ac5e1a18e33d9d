"""The monitor in a Lightning ``Trainer``.

Lightning clips inside the optimizer's closure, after its hook ``on_before_optimizer_step``. The
monitor does not look at the loop's gradients: it measures its own batches at the parameters before
the step, and so reads raw noise whatever ``gradient_clip_val`` says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from mindgap.adapters.watching import Watched, callback_class, warn_of_two_clippings
from mindgap.base.check import fail
from mindgap.measure.probe import Probe
from mindgap.measure.table import DEFAULT_PROBES, ProbeName


def monitor_callback(
    probes: Sequence[ProbeName | Probe] = DEFAULT_PROBES,
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
        batches: measuring batches on the model's device; by default ``limit`` random ones of the
            training data.
        loss: ``loss(module, batch) -> scalar``; by default the module's ``training_step`` with its
            logging switched off. Give it where ``training_step`` keeps a state of its own
            (metrics).
        optimizer: which of the trainer's optimizers to watch.
        limit: batches to draw.
        to: as ``Monitor`` takes it, or ``"logger"`` for the trainer's logger. Only rank 0 writes.
        options: ``every``, ``budget``, ``name``, ``seed`` of ``Monitor``.

    Returns:
        The callback. Its ``monitor`` is the ``Monitor`` once training has begun, ``readings`` its
        rows.

    Example:
        >>> monitor_callback(["noise"], every=10)  # doctest: +SKIP
        <mindgap.adapters.lightning.MonitorCallback object at ...>
    """
    callback = callback_class(_Events, "lightning.pytorch", "Callback", "lightning")
    return callback(optimizer, probes, batches, loss, limit, to, options)


class _Events(Watched):
    """The callback's methods, which Lightning calls; the callback's class derives from it."""

    def __init__(self, optimizer: int, *settings: Any) -> None:
        super().__init__(*settings)
        self._optimizer = optimizer
        self._present_batch: tuple[Any, Any] = (None, None)  # (batch, its index in the epoch)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the monitor on the chosen one of the trainer's optimizers.

        Warns where the trainer clips gradients before an optimizer of ours that clips them too.
        ``to="logger"`` is replaced by a function that writes to the trainer's loggers.
        """
        if not 0 <= self._optimizer < len(trainer.optimizers):
            fail(
                "optimizer",
                f"must be one of the trainer's {len(trainer.optimizers)}",
                self._optimizer,
            )
        watched = trainer.optimizers[self._optimizer]
        clip = getattr(trainer, "gradient_clip_val", None)
        warn_of_two_clippings(watched, "gradient_clip_val", clip, "None")
        if self._to == "logger":
            self._to = _to_logger(trainer)
        self.begin_watching(
            watched,
            pl_module,
            _training_loss(trainer),
            trainer.train_dataloader,
            trainer.strategy.batch_to_device,
            trainer.is_global_zero,
        )

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember the batch until its loss is known."""
        self._present_batch = (batch, batch_idx)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Show the loss of the present batch to the monitor, unless the monitor itself is
        measuring: without the factors that Lightning gives it for the backward pass, one over the
        number of accumulated batches and the loss scale of float16.
        """
        if self.monitor is None or self.monitor.measuring:
            return
        loss = loss.detach()
        if getattr(pl_module, "automatic_optimization", True):
            loss = loss * getattr(trainer, "accumulate_grad_batches", 1)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:  # ``get_scale`` would wait for the device
            loss = loss / scaler.scale(torch.ones_like(loss))
        self.monitor.observe(loss, *self._present_batch)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the monitor."""
        self.end_watching()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the monitor with the error that ended the training."""
        self.end_watching(exception)


def _training_loss(trainer: Any) -> Callable[[Any, Any], Any]:
    """The monitor's default loss: ``training_step`` in the trainer's precision, without logging.

    Returns:
        ``loss(module, batch) -> scalar``.
    """

    def loss(module: Any, batch: Any) -> Any:
        """The loss of ``training_step``, called with batch index 0 where it takes an index.

        Meanwhile attributes of the instance that do nothing stand in for the module's ``log`` and
        ``log_dict``. Afterwards the instance has again what it had under these names.
        """
        takes_index = len(inspect.signature(module.training_step).parameters) > 1
        arguments = (batch, 0) if takes_index else (batch,)
        attributes, names = module.__dict__, ("log", "log_dict")
        replaced = {name: attributes[name] for name in names if name in attributes}
        attributes.update(dict.fromkeys(names, lambda *args, **kwargs: None))
        try:
            with trainer.precision_plugin.train_step_context():
                output = module.training_step(*arguments)
        finally:
            for name in names:
                del attributes[name]
            attributes.update(replaced)
        return output["loss"] if isinstance(output, dict) else output

    return loss


def _to_logger(trainer: Any) -> Callable[[dict[str, Any]], None]:
    """A function that writes a row with all of the trainer's loggers.

    Only the row's floats are written, each as ``mindgap/<column>`` at the row's ``step``.

    Raises:
        RuleError: the trainer has no logger.
    """
    if trainer.logger is None:
        fail("to", "must not be 'logger' when the trainer has none", None)

    def write(row: dict[str, Any]) -> None:
        """Hand the floats of a row to every logger of the trainer."""
        numbers = {f"mindgap/{name}": x for name, x in row.items() if isinstance(x, float)}
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=row["step"])

    return write
