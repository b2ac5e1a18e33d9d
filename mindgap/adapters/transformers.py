"""The monitor in Hugging Face's ``Trainer``.

The Trainer clips at 1.0 by default, *before* its callback ``on_pre_optimizer_step``. The monitor
does not look at the loop's gradients. It measures its own batches at the parameters before the
step, so its noise is never clipped, whatever ``max_grad_norm`` is.

An optimizer of ``mindgap.optim`` clips by itself. With ``max_grad_norm=1.0`` it sees gradients that
are clipped already: its thresholds follow norms of at most 1 and its ``spike_guard`` finds nothing.
Set ``TrainingArguments(max_grad_norm=0)`` with it; the callback warns where that is not done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mindgap.adapters.watching import Watched, callback_class, warn_of_two_clippings
from mindgap.base.check import fail
from mindgap.measure.probe import Probe
from mindgap.measure.table import DEFAULT_PROBES, ProbeName


def monitor_callback(
    probes: Sequence[ProbeName | Probe] = DEFAULT_PROBES,
    *,
    batches: Iterable[Any] | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    limit: int = 8,
    to: Any = None,
    **options: Any,
) -> Any:
    """A ``TrainerCallback`` that runs a ``Monitor`` for the length of ``train``.

    The arguments are those of ``mindgap.adapters.lightning.monitor_callback``. ``loss(model,
    batch)`` is by default ``model(**batch).loss``; give it where the Trainer computes another one
    (label smoothing, a custom ``compute_loss``). Of several processes only number 0 writes.
    Warns if ``max_grad_norm`` is not 0 and the optimizer is one of ours that clips by itself.

    Example:
        >>> monitor_callback(["noise"], every=10)  # doctest: +SKIP
        <mindgap.adapters.transformers.MonitorCallback object at ...>
    """
    callback = callback_class(_Events, "transformers", "TrainerCallback", "transformers")
    return callback(probes, batches, loss, limit, to, options)


class _Events(Watched):
    """The callback's methods, which the Trainer calls; the callback's class derives from it."""

    _hook: Any = None  # the handle of the model's hook, while training goes on

    def on_train_begin(self, args: Any, state: Any, control: Any, **trainer_parts: Any) -> None:
        """Start the monitor, and register a hook on the model that shows it every training batch.

        Args:
            args: the ``TrainingArguments``.
            state: the ``TrainerState``; of several processes only number 0 writes.
            control: not used.
            trainer_parts: what the Trainer hands to its callbacks by name; ``optimizer``,
                ``model`` and ``train_dataloader`` are read.
        """
        clip = getattr(args, "max_grad_norm", None)
        warn_of_two_clippings(trainer_parts["optimizer"], "max_grad_norm", clip, "0")
        self.begin_watching(
            trainer_parts["optimizer"],
            trainer_parts["model"],
            _model_loss,
            trainer_parts["train_dataloader"],
            lambda batch: _to_device(batch, args.device),
            state.is_world_process_zero,
        )
        self._hook = trainer_parts["model"].register_forward_hook(self._forward, with_kwargs=True)

    def _forward(self, model: Any, args: Any, batch: dict[str, Any], output: Any) -> None:
        """Show the batch and its loss to the monitor after a call of the model.

        It is a forward hook, because the Trainer hands its batches to no callback. Left out are
        calls by the monitor itself, in evaluation mode, with positional arguments or without a
        loss.

        Args:
            model: that was called.
            args: positional arguments of the call.
            batch: keyword arguments of the call, which are the Trainer's batch.
            output: what the model returned, mostly a mapping with ``loss``.
        """
        monitor = self.monitor
        if monitor is None or monitor.measuring or args or not model.training:
            return
        loss = output.get("loss") if hasattr(output, "get") else None
        if loss is not None:
            monitor.observe(loss, batch)

    def on_train_end(self, args: Any, state: Any, control: Any, **trainer_parts: Any) -> None:
        """Take the hook off the model and close the monitor."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = None
        self.end_watching()


def _model_loss(model: Any, batch: Any) -> Any:
    """The loss that the model itself returns for a batch of keyword arguments.

    Raises:
        RuleError: its output has none.
    """
    output = model(**batch)
    loss = output.get("loss")
    if loss is None:
        fail(
            "loss",
            "must be given where the model's output has none (are there labels in the batch?)",
            type(output),
        )
    return loss


def _to_device(batch: Any, device: Any) -> Any:
    """A batch with its tensors on a device."""
    from torch import Tensor
    from torch.utils._pytree import tree_map_only

    return tree_map_only(Tensor, lambda t: t.to(device), dict(batch))
