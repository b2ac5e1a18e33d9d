"""ResNet20 on CIFAR-10 for the studies at scale gpu: shifted and mirrored images, bfloat16 on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mindgap.lab.studies.device_runs import device_of, device_run
from mindgap.lab.studies.spec import Row, Trial

if TYPE_CHECKING:
    import torch

#: (model, optimizer, part -> images and labels) -> what reads further columns.
Reader = Callable[[Any, Any, Mapping[str, tuple[Any, Any]]], Callable[[], Row]]

#: What a verdict names.
RESNET20 = "ResNet20 on CIFAR-10"

#: Settings that every study has here; ``factor`` multiplies a method's own step and is chosen by ``mindgap tune``.
SETTINGS: dict[str, Any] = {"model": "ResNet20", "train": 45_000, "batch": 128, "epochs": 40, "every": 5,
                            "schedule": "constant", "device": "cuda", "factor": 1.0}  # fmt: skip

#: What ``mindgap tune --grid`` tries first for every method, and the column by which it chooses.
GRID, TUNE_ON = {"factor": (1 / 9, 1 / 3, 1.0, 3.0, 9.0)}, "validation_error"

#: Weight of the loss beside the error when a step is chosen: it decides ties alone.
TIE, LARGEST = 1e-6, 100.0

#: Training images that a reading looks at.
READ = 10_000


def tie(loss: float) -> float:
    """What a validation loss adds to an error, so that it decides between equal errors."""
    return TIE * (min(loss, LARGEST) if math.isfinite(loss) else LARGEST)


def _loss(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(images), labels)


def resnet_run(
    trial: Trial,
    optimizer_of: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    name: str,
    *,
    evaluate_training: bool = True,
    kept: dict[str, Any] | None = None,
    svrg: bool = False,
    reader: Reader | None = None,
) -> Iterator[Row]:
    """Train once with the trial's settings (see :data:`SETTINGS`); a row every few epochs.

    Args:
        trial: ``train`` smaller than 45,000 takes the first so many images of each part.
        optimizer_of: parameters -> optimizer. One with ``eval()`` and ``train()`` is read at its point of evaluation.
        name: of the study's random streams.
        evaluate_training: evaluate the network on training images too; otherwise ``train_loss`` is the mean over the
            steps since the row before.
        kept: see :func:`~mindgap.lab.studies.device_runs.device_run`.
        svrg: correct each gradient by that of a snapshot, taken at the start of an epoch, which then costs three passes
            over the images; ``epochs`` and ``every`` are passes.
        reader: called once with model, optimizer and data -> what adds columns to a row; ``every`` and ``step`` are
            then numbers of steps.

    Yields:
        ``step`` (passes over the images), ``factor``, accuracy and loss on training images (10,000 of them, not
        augmented), validation and test images, and ``validation_error``.
    """
    import torch

    from mindgap.base.rng import stream_seed, torch_stream
    from mindgap.lab.tasks.captured import accuracy_and_loss, augmented_batches, cifar_on
    from mindgap.lab.tasks.control_variate import ControlVariate
    from mindgap.lab.tasks.models import ResNet20

    device = device_of(trial)
    parts = {part: (x[: trial["train"]], y[: trial["train"]]) for part, (x, y) in cifar_on(device).items()}
    torch.manual_seed(stream_seed(trial.seed, f"{name} start"))
    model = ResNet20().to(device)
    for p in model.parameters():  # the order in which the GPU convolves
        p.data = p.data.contiguous(memory_format=torch.channels_last) if p.dim() == 4 else p.data
    optimizer = optimizer_of(list(model.parameters()))

    autocast = torch.bfloat16 if device.type == "cuda" else None
    control = ControlVariate(model, _loss, autocast=autocast)

    def epoch(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        order = torch_stream(trial.seed, f"{name} order", number, device=device)
        batches = augmented_batches(*parts["train"], trial["batch"], order)
        if svrg:
            control.refresh(batches)
        return batches

    def read() -> Row:
        row: Row = {}
        if hasattr(optimizer, "eval"):
            optimizer.eval()
        for part, (images, labels) in list(parts.items())[0 if evaluate_training else 1 :]:
            right, loss = accuracy_and_loss(model, images[:READ], labels[:READ])
            row |= {f"{part}_accuracy": right, f"{part}_loss": loss}
        if hasattr(optimizer, "train"):
            optimizer.train()
        error = 1 - row["validation_accuracy"] + tie(row["validation_loss"])
        return {**row, "validation_error": error, **(more() if more else {})}

    more = reader(model, optimizer, parts) if reader else None
    cost, unit = 3 if svrg else 1, 1 if reader else len(parts["train"][1]) // trial["batch"]
    steps = len(parts["train"][1]) // trial["batch"]
    rows = device_run(
        trial, model, control.loss if svrg else _loss, optimizer, epoch, read, steps=trial["epochs"] // cost * steps,
        every=max(trial["every"] // cost, 1) * unit, schedule=trial["schedule"], autocast=autocast, kept=kept,
    )  # fmt: skip
    for row in rows:
        yield {**row, "step": cost * row["step"] // unit, "factor": trial["factor"]}
