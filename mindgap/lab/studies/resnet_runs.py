"""Residual networks on CIFAR-10 for the studies at scale gpu: shifted and mirrored images,
bfloat16 on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mindgap.base.check import one_of
from mindgap.base.rng import stream_seed, torch_stream
from mindgap.lab.studies.device_runs import Epoch, device_of, device_run
from mindgap.lab.studies.spec import Row, Trial

if TYPE_CHECKING:
    import torch

#: (model, optimizer, part of the data -> images and labels) -> what reads further columns.
Reader = Callable[[Any, Any, Mapping[str, tuple[Any, Any]]], Callable[[], Row]]

#: What a verdict names.
RESNET20 = "ResNet20 on CIFAR-10"

#: Settings that every study has here; ``factor`` multiplies a method's own step and is chosen by
#: ``mindgap tune``.
SETTINGS: dict[str, Any] = {
    "model": "ResNet20",
    "train": 45_000,
    "batch": 128,
    "epochs": 40,
    "every": 5,
    "schedule": "constant",
    "device": "cuda",
    "factor": 1.0,
}

#: What ``mindgap tune --grid`` tries first for every method, and the column by which it chooses.
GRID, TUNE_ON = {"factor": (1 / 9, 1 / 3, 1.0, 3.0, 9.0)}, "validation_error"

#: Weight of the loss beside the error when a step is chosen, so small that it decides ties alone;
#: and the largest loss that counts.
TIE, LARGEST = 1e-6, 100.0

#: Training images that a reading looks at.
READ = 10_000


def tie_breaker(loss: float) -> float:
    """What is added to a validation error, so that the validation loss decides between equal ones.

    A loss that is larger or not finite counts as :data:`LARGEST`.
    """
    return TIE * (min(loss, LARGEST) if math.isfinite(loss) else LARGEST)


def image_loss(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of a batch."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(images), labels)


@dataclass(frozen=True)
class ImageRun:
    """A residual network with its images on the device of a trial.

    Attributes:
        trial: with the settings ``model`` (``"ResNet20"`` or ``"ResNet18"``), ``train`` and
            ``batch``. ``augment`` False leaves the images as they are. ``wrong_labels`` is the
            share of labels that are drawn at random, anew at every draw.
        name: of the study's random streams.
        model: in training mode.
        parts: ``"train"``, ``"validation"`` and ``"test"`` -> images and labels.
    """

    trial: Trial
    name: str
    model: Any
    parts: Mapping[str, tuple[Any, Any]]

    def batches(self, generator: torch.Generator, samples: int = 0) -> list[tuple[Any, Any]]:
        """Batches of images and labels as the network trains on them.

        Args:
            generator: of order, wrong labels and shifts; on the images' device.
            samples: how many images are drawn, independently; 0: all training images once.
        """
        import torch

        from mindgap.lab.tasks.data.device_images import augmented_batches, shuffled_batches

        settings, (images, labels) = self.trial.settings, self.parts["train"]
        source: dict[str, Any] = {"generator": generator, "device": labels.device}
        if samples:
            drawn = torch.randint(len(labels), (samples,), **source)
            images, labels = images[drawn], labels[drawn]
        wrong_share = settings.get("wrong_labels", 0.0)
        if wrong_share:
            random_labels = torch.randint(10, labels.shape, **source)
            is_wrong = torch.rand(labels.shape, **source) < wrong_share
            labels = torch.where(is_wrong, random_labels, labels)
        in_batches = augmented_batches if settings.get("augment", True) else shuffled_batches
        return in_batches(images, labels, self.trial["batch"], generator)

    def epoch(self, number: int) -> list[tuple[Any, Any]]:
        """The batches of an epoch: all training images, in an order that depends on the number."""
        device = self.parts["train"][1].device
        return self.batches(
            torch_stream(self.trial.seed, f"{self.name} order", number, device=device)
        )

    def rows(
        self,
        optimizer: torch.optim.Optimizer,
        read: Callable[[], Row],
        *,
        steps: int,
        every: int,
        schedule: str = "constant",
        kept: dict[str, Any] | None = None,
        loss: Callable[..., torch.Tensor] | None = None,
        epoch: Epoch | None = None,
        at_start: bool = False,
    ) -> Iterator[Row]:
        """Train by :func:`~mindgap.lab.studies.device_runs.device_run`, whose arguments these are.

        By default the ``loss`` is cross-entropy and an ``epoch`` :meth:`epoch`.
        """
        return device_run(
            self.trial,
            self.model,
            loss or image_loss,
            optimizer,
            epoch or self.epoch,
            read,
            steps=steps,
            every=every,
            schedule=schedule,
            bfloat16=True,
            kept=kept,
            at_start=at_start,
            graph=self.trial.settings.get("graph", True),
        )


def image_run(trial: Trial, name: str) -> ImageRun:
    """The network and the images of a trial, on its device.

    Args:
        trial: ``train`` smaller than 45,000 takes the first so many images of each part.
        name: of the study's random streams; the network's start depends on it and the seed.
    """
    import torch

    from mindgap.lab.tasks import models
    from mindgap.lab.tasks.data.device_images import cifar_on

    device = device_of(trial)
    parts = {
        part: (x[: trial["train"]], y[: trial["train"]])
        for part, (x, y) in cifar_on(device).items()
    }
    torch.manual_seed(stream_seed(trial.seed, f"{name} start"))
    model = getattr(models, one_of("model", trial["model"], ("ResNet18", "ResNet20")))().to(device)
    for p in model.parameters():
        if p.dim() == 4:  # a convolution's weights, in the order in which the GPU convolves
            p.data = p.data.contiguous(memory_format=torch.channels_last)
    return ImageRun(trial, name, model, parts)


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

    A *pass* goes once over all images; it is the unit of ``epochs``, ``every`` and ``step``.

    Args:
        trial: ``train`` smaller than 45,000 takes the first so many images of each part.
        optimizer_of: parameters -> optimizer. One with ``eval()`` and ``train()`` is read at its
            point of evaluation.
        name: of the study's random streams.
        evaluate_training: evaluate the network on training images too; otherwise ``train_loss`` is
            the mean over the steps since the row before.
        kept: see :func:`~mindgap.lab.studies.device_runs.device_run`.
        svrg: correct each gradient by that of a snapshot, taken at the start of an epoch, which
            then costs three passes over the images.
        reader: called once with model, optimizer and data -> what adds columns to a row; ``every``
            and ``step`` are then numbers of steps.

    Yields:
        ``step`` (passes over the images), ``factor``, accuracy and loss on training images (10,000
        of them, not augmented), validation and test images, and ``validation_error``.
    """
    import torch

    from mindgap.lab.studies.control_variate import ControlVariate
    from mindgap.lab.tasks.data.device_images import accuracy_and_loss

    run = image_run(trial, name)
    model, parts = run.model, run.parts
    optimizer = optimizer_of(list(model.parameters()))
    autocast = torch.bfloat16 if parts["train"][0].is_cuda else None
    control = ControlVariate(model, image_loss, autocast=autocast) if svrg else None

    def epoch(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The batches of an epoch; for SVRG the snapshot is taken with them."""
        batches = run.epoch(number)
        if control:
            control.refresh(batches)
        return batches

    def read() -> Row:
        """The columns of a row, without ``step`` and ``factor``. An optimizer that evaluates at
        another point than it trains at is moved there and back.
        """
        row: Row = {}
        if hasattr(optimizer, "eval"):
            optimizer.eval()
        for part in parts if evaluate_training else ("validation", "test"):
            images, labels = parts[part]
            accuracy, loss = accuracy_and_loss(model, images[:READ], labels[:READ])
            row |= {f"{part}_accuracy": accuracy, f"{part}_loss": loss}
        if hasattr(optimizer, "train"):
            optimizer.train()
        error = 1 - row["validation_accuracy"] + tie_breaker(row["validation_loss"])
        return {**row, "validation_error": error, **further_columns()}

    # Read above; without a reader it is ``dict``, which makes an empty row.
    further_columns = reader(model, optimizer, parts) if reader else dict
    steps_per_epoch = len(parts["train"][1]) // trial["batch"]
    passes_per_epoch = 3 if svrg else 1
    unit = 1 if reader else steps_per_epoch  # steps that ``every`` and ``step`` count in
    rows = run.rows(
        optimizer,
        read,
        # ``epochs`` counts passes: SVRG makes a third as many epochs of batches.
        steps=trial["epochs"] // passes_per_epoch * steps_per_epoch,
        every=max(trial["every"] // passes_per_epoch, 1) * unit,
        schedule=trial["schedule"],
        kept=kept,
        loss=control.loss if control else None,
        epoch=epoch,
    )
    for row in rows:
        yield {
            **row,
            "step": passes_per_epoch * row["step"] // unit,
            "factor": trial["factor"],
        }
