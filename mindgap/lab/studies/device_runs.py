"""Training on a GPU, for the studies at scale gpu: no wait for the device between two readings,
exact resume.

The settings are chosen before, by ``mindgap tune``: a trial trains once. Forward and backward pass
are one launch (see :class:`~mindgap.measure.captured.CapturedGradient`), which small networks
need.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from mindgap.base.check import fail, whole
from mindgap.lab.studies.spec import Row, Trial
from mindgap.lab.studies.training_runs import bounded_losses, scale_rates, step_factor
from mindgap.lab.studies.tuned_runs import WORST

if TYPE_CHECKING:
    import torch

#: Number of an epoch, from 0 -> its batches on the device, all of one shape.
Epoch = Callable[[int], Iterable[tuple[Any, ...]]]


def device_of(trial: Trial) -> torch.device:
    """The device of the setting ``device``.

    On CUDA, memory that an earlier trial of this process left there is given back.

    Raises:
        RuleError: the setting names a CUDA device, and there is none.

    Example:
        >>> device_of(Trial("sgd", 0, {"device": "cpu"}))
        device(type='cpu')
    """
    import torch

    if trial["device"].startswith("cuda") and not torch.cuda.is_available():
        fail("device", "must be cpu on this machine: it has no CUDA device", trial["device"])
    device = torch.device(trial["device"])
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    return device


def device_run(
    trial: Trial,
    model: torch.nn.Module,
    loss: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    epoch: Epoch,
    read: Callable[[], Row],
    *,
    steps: int,
    every: int,
    schedule: str = "constant",
    bfloat16: bool = False,
    carried: Sequence[torch.Tensor] = (),
    kept: dict[str, Any] | None = None,
    graph: bool = True,
    at_start: bool = False,
) -> Iterator[Row]:
    """Train for that many steps; one row every so many steps, with a checkpoint offered for each.

    Args:
        trial: its stopwatch runs while the network trains, not while it is read.
        model: on the device, in training mode.
        loss: ``loss(model, *batch)``. It may read the tensors of ``carried`` and overwrite them in
            place (``copy_``): clone them before use, since the backward pass needs the values that
            were read.
        optimizer: of the model's parameters; its ``lr`` is multiplied by the schedule.
        epoch: number of an epoch, from 0 -> its batches. Its random numbers depend on that number
            alone (a stream of that name), so that a resumed run sees the same.
        read: a row, without ``step``, of evaluation data; the model must be as before afterwards.
        steps, every: steps in all, and steps between two rows.
        schedule: see :func:`~mindgap.lab.studies.training_runs.step_factor`.
        bfloat16: on CUDA, train with autocast to bfloat16.
        carried: state that goes on from batch to batch (of an LSTM, a memory), on the device; it is
            zero at the start of an epoch, and checkpoints hold it.
        kept: what a study collects from row to row; checkpoints hold it, and a resumed run fills it
            again.
        graph: False runs forward and backward pass without a CUDA graph.
        at_start: begin with a row of what is read before the first step; it has no ``train_loss``.

    Yields:
        ``step``, ``train_loss`` (mean over the steps since the row before) and what was read.
        Columns that end in ``loss`` are at most ``WORST`` times the loss of the first batch. After
        a training loss that is not finite the run ends with a row that says ``diverged``.

    Dropout draws from torch's default generator, which is seeded here by the trial's seed.
    """
    import torch

    from mindgap.base.rng import stream_seed
    from mindgap.measure.captured import CapturedGradient

    # Steps after which there is a row; there is always one after the last step.
    row_steps = range(whole("every", every, least=1), steps, every)
    restored, rates = trial.restored, [group["lr"] for group in optimizer.param_groups]
    step = restored.get("step", 0)
    first_loss = restored.get("first", 0.0)  # of the first batch; 0: not known yet
    kept = {} if kept is None else kept
    if restored:
        kept.update(restored["kept"])
        model.load_state_dict(restored["model"])
        optimizer.load_state_dict(restored["optimizer"])
        for tensor, value in zip(carried, restored["carried"], strict=True):
            tensor.copy_(value)
    # From where the checkpoint stands: its epoch, without the batches of it that were trained on.
    batches = _endless(epoch, restored.get("epoch", 0), restored.get("taken", 0))
    epoch_number, taken, batch = next(batches)  # the next batch to train on, and where it stands
    autocast = torch.bfloat16 if bfloat16 and batch[0].is_cuda else None
    gradient = CapturedGradient(model, loss, batch, autocast=autocast, carried=carried, graph=graph)
    # Dropout draws from the default generator of the device.
    dropout_random = torch.cuda if batch[0].is_cuda else torch.random
    torch.manual_seed(stream_seed(trial.seed, "dropout"))
    if restored:
        dropout_random.set_rng_state(restored["random"].cpu())
    if at_start and not restored:
        yield {"step": 0, **read()}
    while step < steps:
        next_row_step = next((row_step for row_step in row_steps if row_step > step), steps)
        length = next_row_step - step
        with trial.timed():
            # The sum of the losses is read once per row: reading it waits for the device.
            loss_sum = torch.zeros((), device=batch[0].device)
            for k in range(length):
                if taken == 1:  # the first batch of an epoch
                    for tensor in carried:
                        tensor.zero_()
                scale_rates(optimizer, rates, step_factor(schedule, step + k, steps))
                batch_loss = gradient(*batch)
                optimizer.step()
                loss_sum += batch_loss
                if k == 0:  # of the row's first batch; the next replay overwrites ``batch_loss``
                    row_first_loss = batch_loss.clone()
                # A checkpoint names the last batch trained on, not the one that is fetched below.
                trained_on = {"epoch": epoch_number, "taken": taken}
                epoch_number, taken, batch = next(batches)
            first_loss = first_loss or float(row_first_loss)
            mean_loss = float(loss_sum) / length
        step, diverged = next_row_step, not math.isfinite(mean_loss)
        bound = WORST * first_loss if math.isfinite(first_loss) else WORST
        row = bounded_losses({"train_loss": mean_loss, **read()}, lambda _: bound)  # noqa: B023
        trial.save(
            lambda: {
                "step": step,  # noqa: B023
                "first": first_loss,  # noqa: B023
                **trained_on,  # noqa: B023
                "random": dropout_random.get_rng_state(),
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "carried": list(carried),
                "kept": kept,
            }
        )
        if diverged:
            yield {"step": step, **row, "diverged": True}
            return
        yield {"step": step, **row}


def _endless(epoch: Epoch, number: int, taken: int) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
    """Batches of one epoch after the other, without end.

    Args:
        epoch: number of an epoch -> its batches.
        number: of the epoch to begin with.
        taken: how many of its batches to leave out.

    Yields:
        Number of the epoch, how many of its batches are taken with this one, and the batch.
    """
    while True:
        for batch in islice(epoch(number), taken, None):
            taken += 1
            yield number, taken, batch
        if not taken:
            fail("epoch", "must hold at least one batch", number)
        number, taken = number + 1, 0
