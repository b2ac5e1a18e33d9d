"""The monitor in Hugging Face's ``Trainer``.

The Trainer clips at 1.0 unless told otherwise, and does so *before* its callback ``on_pre_optimizer_step``. The monitor
does not look at the loop's gradients: it measures its own batches at the parameters before the step, and so reads raw
noise whatever ``max_grad_norm`` says.
"""

from __future__ import annotations

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
    limit: int = 8,
    to: Any = None,
    **options: Any,
) -> Any:
    """A ``TrainerCallback`` that runs a ``Monitor`` for the length of ``train``.

    Args:
        probes: as ``Monitor`` takes them.
        batches: measuring batches on the model's device; by default ``limit`` random ones of the training data.
        loss: ``loss(model, batch) -> scalar``; by default ``model(**batch).loss``. Give it where the Trainer computes
            another one (label smoothing, a custom ``compute_loss``).
        limit: batches to draw.
        to: as ``Monitor`` takes it. Only the world's process zero writes.
        options: ``every``, ``budget``, ``name``, ``seed`` of ``Monitor``.

    Returns:
        The callback. Its ``monitor`` is the ``Monitor`` once training has begun, ``readings`` its rows.

    Raises:
        RuleError: transformers is not installed.

    Example:
        >>> monitor_callback(["noise"], every=10)  # doctest: +SKIP
        <mindgap.adapters.transformers.MonitorCallback object at ...>
    """
    return _callback_class()(probes, batches, loss, limit, to, options)


@cache
def _callback_class() -> Any:
    """The callback's class, made when transformers is first needed (its import takes seconds)."""
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        fail("transformers", "must be installed (pip install 'mindgap[transformers]')", str(error))

    from mindgap.adapters.watching import Watching

    class MonitorCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
        """Made by ``monitor_callback``."""

        def __init__(self, *settings: Any) -> None:
            self._watching = Watching(*settings)

        @property
        def monitor(self) -> Any:
            return self._watching.monitor

        @property
        def readings(self) -> list[dict[str, Any]]:
            return self._watching.readings

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            self._watching.begin(
                given["optimizer"],
                given["model"],
                _model_loss,
                given["train_dataloader"],
                lambda batch: _to_device(batch, args.device),
                state.is_world_process_zero,
            )

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            self._watching.end()

    MonitorCallback.__qualname__ = "MonitorCallback"
    globals()["MonitorCallback"] = MonitorCallback
    return MonitorCallback


def _model_loss(model: Any, batch: Any) -> Any:
    output = model(**batch)
    loss = output.get("loss")
    if loss is None:
        fail("loss", "must be given where the model's output has none (are there labels in the batch?)", type(output))
    return loss


def _to_device(batch: Any, device: Any) -> Any:
    from torch import Tensor

    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
