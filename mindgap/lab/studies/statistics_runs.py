"""Training on a device with readings of (6.2): what the studies of the thesis' chapter 6 share
at scale gpu.

The quantities of (6.2) are the loss, the norm of its gradient, the noise σ of one sample's gradient
and the sharpness (the Hessian's norm).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mindgap.lab.studies.device_runs import Epoch
from mindgap.lab.studies.gates import (
    CLASS_FREQUENCIES,
    WORD_FREQUENCIES,
    learnt_gate,
    learnt_with_wrong_labels,
)
from mindgap.lab.studies.resnet_runs import ImageRun, image_run
from mindgap.lab.studies.spec import Parts, Row, Run, Trial
from mindgap.lab.studies.text_runs import TRANSFORMER_XL, LanguageRun, language_run
from mindgap.lab.studies.training_runs import adam_or_sgd
from mindgap.lab.studies.verdict import last

if TYPE_CHECKING:
    import torch

    from mindgap.measure.captured_statistics import CapturedStatistics

#: ResNet20 as He et al. train it, with a fifth of the labels drawn at random, anew at every draw:
#: the loss gets a floor and nobody can over-fit, as ResNet101 does not on ImageNet.
NOISY_IMAGES: dict[str, Any] = {
    "model": "ResNet20",
    "train": 45_000,
    "batch": 128,
    "augment": True,
    "wrong_labels": 0.2,
    "optimizer": "sgd",
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "schedule": "constant",
    "device": "cuda",
    "graph": True,
    "sharp_tol": 0.05,
}
CLEAN_IMAGES: dict[str, Any] = {**NOISY_IMAGES, "wrong_labels": 0.0}
#: Four layers, the largest step and Adam, as the thesis has them in 6.2.2.
WIKITEXT: dict[str, Any] = {
    **TRANSFORMER_XL,
    "text": "wikitext-2",
    "layers": 4,
    "optimizer": "adam",
    "lr": 2.5e-4,
    "schedule": "constant",
    "sharp_tol": 0.05,
}

#: The models that a verdict names, and why they are not the paper's.
IMAGE_PROXY = "ResNet20 on CIFAR-10"
NOISY_PROXY = f"{IMAGE_PROXY} with a fifth of the labels drawn at random"
TEXT_PROXY = "Transformer-XL (4 layers, width 400) on WikiText-2"


@dataclass(frozen=True)
class StatisticsRun:
    """A network in training on a device, and what reads (6.2) of it.

    Attributes:
        trial: with the settings of :data:`NOISY_IMAGES` or :data:`WIKITEXT`, ``steps`` and
            ``every``.
        name: of the study's random streams.
        run: network and data.
        optimizer: made from the settings ``optimizer``, ``lr``, ``momentum`` and ``weight_decay``.
        statistics: reads the network in place.
        right: number of right answers among the samples read last, a scalar tensor; None for text.
        kept: what goes into checkpoints; ``rows`` counts the calls of ``read``.
    """

    trial: Trial
    name: str
    run: ImageRun | LanguageRun
    optimizer: torch.optim.Optimizer
    statistics: CapturedStatistics
    right: torch.Tensor | None
    kept: dict[str, Any] = field(default_factory=lambda: {"rows": 0})

    def draw(self, samples: int, *names: str | int) -> list[tuple[Any, ...]]:
        """Minibatches for a reading.

        Args:
            samples: how many are drawn independently. Of images 0 means all of them once. Of text
                only whole batches are drawn: the number is rounded down.
            names: name the random stream, beside the study's name.

        Returns:
            Of images (images, labels) per batch. Of text (windows,), each window twice the length
            of a segment and one word more.
        """
        from mindgap.base.rng import torch_stream

        name, size = f"{self.name} readings", self.trial["batch"]
        if isinstance(self.run, ImageRun):
            device = self.run.parts["train"][1].device
            stream = torch_stream(self.trial.seed, name, *names, device=device)
            return list(self.run.batches(stream, samples))

        train = self.run.texts["train"]
        windows = replace(train, length=2 * train.length)
        text_windows = windows.windows(
            torch_stream(self.trial.seed, name, *names), samples // size * size
        )
        return [(part,) for part in text_windows.split(size)]

    def gradients(self, batches: Sequence[tuple[Any, ...]], *, exact: bool = False) -> Row:
        """Loss, gradient norm and noise over these batches; of images also the accuracy.

        The squared norm of a mean over drawn samples is biased by the noise, and is corrected; it
        may come out negative, and the norm is then 0. With ``exact`` the samples are all there are,
        so that there is no bias.
        """
        reading = self.statistics.read(batches)[-1]
        gradient_square = reading.gradient_norm**2 if exact else reading.gradient_square
        row: Row = {
            "samples": reading.samples,
            "sample_loss": reading.loss,
            "noise": reading.noise,
            "gradient_square": gradient_square,
            "gradient_norm": math.sqrt(max(gradient_square, 0.0)),
        }
        if self.right is not None:
            row["accuracy"] = float(self.right) / reading.samples
        return row

    def sharpness(self, batches: Sequence[tuple[Any, ...]]) -> Row:
        """The Hessian's norm over the first ``sharp_m`` samples of these batches (at least over one
        batch), and their number.

        The row is empty where the loss is not finite any more.
        """
        from mindgap.measure.gradients import NonFiniteError

        first_batches = batches[: max(self.trial["sharp_m"] // self.trial["batch"], 1)]
        try:
            norm, _ = self.statistics.sharpness(
                first_batches, tol=self.trial["sharp_tol"], seed=self.trial.seed
            )
        except NonFiniteError:
            return {}
        return {
            "sharpness": norm,
            "sharpness_samples": len(first_batches) * self.trial["batch"],
        }

    def rows(
        self, read: Callable[[int], Row], *, at_start: bool = False, epoch: Epoch | None = None
    ) -> Iterator[Row]:
        """Train for the trial's ``steps`` (images: times ``stretch``), and yield a row every
        ``every`` steps.

        Args:
            read: number of a row, from 0 -> its columns. A resumed run goes on with the number.
            at_start: begin with a row before the first step.
            epoch: batches of images to train on, in place of all of them in random order.
        """
        trial = self.trial
        arguments: dict[str, Any] = {
            "schedule": trial["schedule"],
            "kept": self.kept,
            "at_start": at_start,
        }

        def read_next() -> Row:
            """The columns of the next row; counts it in ``kept``."""
            self.kept["rows"] += 1
            return read(self.kept["rows"] - 1)

        if isinstance(self.run, LanguageRun):
            return self.run.rows(self.optimizer, read_next, **arguments)
        steps = round(trial["steps"] * trial.settings.get("stretch", 1.0))
        return self.run.rows(
            self.optimizer, read_next, steps=steps, every=trial["every"], epoch=epoch, **arguments
        )


def judge_learnt(
    parts: Parts, name: str, runs: Sequence[Run], losses: Sequence[float] = ()
) -> None:
    """Add the gate of scale gpu for a network: every run ends 1 nat below the frequencies of
    classes or words; with wrong labels :func:`learnt_with_wrong_labels`.

    Args:
        parts: changed in place.
        name: of the network.
        runs: its runs, whose settings say what it is trained on.
        losses: one per run; empty: the last value of the column ``loss``.
    """
    settings, losses = runs[0].header.settings, losses or [last(run, "loss") for run in runs]
    if settings.get("network") == "transformer-xl":
        learnt_gate(parts, name, losses, WORD_FREQUENCIES)
        return
    learnt = learnt_with_wrong_labels(settings.get("wrong_labels", 0.0))
    learnt_gate(parts, name, losses, CLASS_FREQUENCIES, learnt)


def on_device(trial: Trial) -> bool:
    """Whether the trial is one of scale gpu: only those name a device.

    Example:
        >>> on_device(Trial("sgd", 0, {"device": "cpu"})), on_device(Trial("sgd", 0, {}))
        (True, False)
    """
    return "device" in trial.settings


def statistics_run(trial: Trial, name: str) -> StatisticsRun:
    """The network, the data and the readings of a trial.

    Args:
        trial: with the settings of :data:`NOISY_IMAGES` or :data:`WIKITEXT`; the setting
            ``network="transformer-xl"`` makes it one on text. ``factor`` multiplies the step size.
        name: of the study's random streams.

    Example:
        >>> small = {
        ...     "text": "prose",
        ...     "words": 50,
        ...     "width": 8,
        ...     "heads": 2,
        ...     "inner": 16,
        ...     "layers": 1,
        ...     "batch": 4,
        ... }
        >>> run = statistics_run(
        ...     Trial("adam", 0, {**WIKITEXT, **small, "device": "cpu"}), "example"
        ... )
        >>> row = run.gradients(run.draw(8, "first"))
        >>> row["samples"], abs(row["sample_loss"] - math.log(50)) < 0.5
        (8, True)
    """
    import torch
    from torch.nn.functional import cross_entropy

    from mindgap.measure.captured_statistics import CapturedStatistics

    settings = trial.settings
    run: LanguageRun | ImageRun
    right: torch.Tensor | None = None
    if settings.get("network") == "transformer-xl":
        run = language_run(trial, name)

        def text_loss(model: Any, windows: Any) -> Any:
            """The loss on the second half of windows, with the memory of the first half. A window
            is two segments and one word more, the last to predict.
            """
            length = trial["length"]
            with torch.no_grad():
                _, memory = model(windows[:, :length])
            scores, _ = model(windows[:, length:-1], memory)
            return cross_entropy(scores.flatten(0, 1), windows[:, length + 1 :].flatten())

        statistics = CapturedStatistics(run.model, text_loss, training=False, graph=trial["graph"])
    else:
        run = image_run(trial, name)
        device = run.parts["train"][1].device
        # One counter with two names: the second is never None, as ``image_loss`` needs it.
        right = right_answers = torch.zeros((), dtype=torch.long, device=device)

        def image_loss(model: Any, x: Any, y: Any) -> Any:
            """The mean loss of a batch; adds its right answers to the counter."""
            scores = model(x)
            right_answers.add_((scores.detach().argmax(1) == y).sum())
            return cross_entropy(scores, y)

        statistics = CapturedStatistics(
            run.model, image_loss, counts=[right_answers], graph=trial["graph"]
        )
    optimizer = adam_or_sgd(
        settings["optimizer"],
        list(run.model.parameters()),
        trial["lr"] * settings.get("factor", 1.0),
        momentum=settings.get("momentum", 0.0),
        weight_decay=settings.get("weight_decay", 0.0),
    )
    return StatisticsRun(trial, name, run, optimizer, statistics, right)
