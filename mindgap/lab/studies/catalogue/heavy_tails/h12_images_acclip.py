"""H12: on images ACClip lies between Adam and SGD with momentum, every optimizer tuned alike.

At scales quick and cpu every trial tunes its optimizer first: five candidate steps a factor three
apart, each with the full budget, on a network and an order of samples that the reported run does
not see, by validation accuracy (ties by the loss there). At scale gpu ``mindgap tune --grid`` does
so once for all seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mindgap.lab.studies.image_runs import image_run
from mindgap.lab.studies.power import Array
from mindgap.lab.studies.resnet_runs import GRID, RESNET20, SETTINGS, TUNE_ON
from mindgap.lab.studies.spec import (
    Design,
    Figure,
    Parts,
    Row,
    Run,
    Scale,
    Source,
    Study,
    Trial,
    scales,
)
from mindgap.lab.studies.verdict import (
    ONE_SIDED,
    by_method,
    chosen_steps,
    finals,
    last,
    mean_interval,
    medians,
    step_words,
    student_quantile,
)

if TYPE_CHECKING:
    import torch

#: Less than this in accuracy is no difference.
NEGLIGIBLE = 0.005
#: Test accuracy of ResNet20 that SGD reaches as published (91.25 %, He et al. 2016), rounded down.
BASELINE = 0.91


@dataclass(frozen=True)
class GapDesign(Design):
    """The rule of :func:`judge` on made-up differences in points, better less worse."""

    def decide(self, differences: Array) -> tuple[Array, Array]:
        """As :meth:`Design.decide`: whether it says *holds*, and whether *does not hold*."""
        seeds, mean = differences.shape[2], differences.mean(2)
        half_width = student_quantile(1 - ONE_SIDED / 2, seeds - 1) * differences.std(2, ddof=1)
        half_width = half_width / np.sqrt(seeds)  # of the 90 % interval
        no_gain = mean + half_width < 100 * NEGLIGIBLE
        return ((mean - half_width > 0) & ~no_gain).all(1), no_gain.any(1)


def loop(trial: Trial) -> Iterator[Row]:
    """Rows of one optimizer with accuracies and losses on held-out images
    (:func:`~mindgap.lab.studies.image_runs.image_run`).

    With ``candidates`` every step of them is tried first, and the best one runs anew. At scale gpu
    the step comes from the settings.
    """
    return image_run(
        trial,
        lambda lr, parameters: optimizer_of(trial.settings, lr, parameters),
        "acclip on images",
    )


def optimizer_of(
    settings: Mapping[str, Any], lr: float, parameters: Sequence[torch.Tensor]
) -> torch.optim.Optimizer:
    """The optimizer of a trial, ACClip without bias correction as in the paper's algorithm.

    Args:
        settings: ``optimizer`` is "sgd" (with momentum 0.9), "adam", "normalized" (ACClip over its
            first moment) or the name of another form of ACClip. ``weight_decay`` may be missing.
        lr: the step.
        parameters: on a GPU torch's optimizers run fused.
    """
    import torch

    from mindgap.optim import ACClip

    fused = parameters[0].is_cuda or None  # None: torch's own choice
    decay = settings.get("weight_decay", 0.0)
    if settings["optimizer"] == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=decay, fused=fused)
    if settings["optimizer"] == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=decay, fused=fused)
    form: Any = "first_moment" if settings["optimizer"] == "normalized" else settings["optimizer"]
    return ACClip(
        parameters,
        lr=lr,
        form=form,
        eps=1e-5,
        weight_decay=decay,
        bias_correction=False,
        clip=None,
    )


def judge(runs: Sequence[Run]) -> Parts:
    """Compare the final test accuracy of the tuned optimizers over paired seeds.

    Returns:
        One part per pair of :data:`PAIRS`, better above worse: yes where the 90 % interval of the
        difference lies above 0, no where it lies below :data:`NEGLIGIBLE`. ResNet20 also has the
        gate that SGD reaches :data:`BASELINE`. Accuracies, chosen steps and other forms of ACClip
        are notes that decide nothing.
    """
    parts, accuracy = Parts(), finals(runs, "test_accuracy")
    for name, own_runs in by_method(runs).items():
        step, at_an_end = chosen_steps(own_runs)
        numbers = {
            "accuracy": float(np.mean([last(run, "test_accuracy") for run in own_runs])),
            "lr": step,
            "ends": at_an_end,  # runs whose step ends the list of candidates
            "train_loss": medians(own_runs, ["train_loss"])["train_loss"],
            "seeds": len(own_runs),
        }
        parts.note(f"{name} {numbers['accuracy']:.2%} ({step_words(own_runs)})", {name: numbers})
    if runs[0].header.settings.get("model") == "ResNet20":
        reached = float(np.mean(accuracy["SGD with momentum"]))
        parts.gate(f"SGD reaches {BASELINE:.0%}", reached >= BASELINE, f"{reached:.2%}")
    for better, worse in PAIRS:
        gap = mean_interval(accuracy[better] - accuracy[worse], miss=ONE_SIDED)
        no_gain = gap.high < NEGLIGIBLE
        parts.add(
            f"{better} above {worse}",
            holds=gap.low > 0 and not no_gain,
            refuted=no_gain,
            words=f"{gap.words(100)} points",
            numbers={f"{better} minus {worse}": {**vars(gap), "seeds": len(accuracy[better])}},
        )
    if FORM in accuracy:  # at scale gpu
        for form in [name for name in accuracy if name.startswith("ACClip,")]:
            gaps = {
                name: mean_interval(accuracy[form] - accuracy[name], miss=ONE_SIDED).words(100)
                for name in ("Adam", "SGD with momentum")
            }
            parts.note(
                f"not judged: {form} "
                + ", ".join(f"minus {name} {gap} points" for name, gap in gaps.items())
            )
    return parts


#: (better, worse), as App. I has them
PAIRS = (("ACClip", "Adam"), ("SGD with momentum", "ACClip"))
#: The form of ACClip that runs at scale gpu alone.
FORM = "ACClip, second moment"
#: Method -> the middle step of its grid at scale gpu.
_MIDDLE = {
    "SGD with momentum": 0.1,
    "Adam": 1e-3,
    "ACClip": 1.0,
    "ACClip, normalised": 1e-3,
    FORM: 1e-3,
}

_SMALL = scales(
    {
        "images": "digits",
        "train": 500,
        "validation": 300,
        "width": 8,
        "steps": 60,
        "every": 20,
        "batch": 16,
        "schedule": "cosine",
        "optimizer": "sgd",
        "candidates": [0.1],
    },
    {
        "images": "cifar10",
        "train": 6000,
        "validation": 2000,
        "steps": 600,
        "every": 60,
        "batch": 32,
    },
    seeds=(4, 4),
)

STUDY = Study(
    name="h12-images-acclip",
    claim="H12",
    title="ACClip on images: between Adam and SGD?",
    statement="Training an image network with every optimizer tuned, ACClip reaches a better "
    "held-out accuracy "
    "than Adam and a worse one than SGD with momentum.",
    source=Source("acclip", "App. I, Fig. 8"),
    scales={
        "quick": replace(_SMALL["quick"], seeds_of={FORM: 0, "ACClip, normalised": 0}),
        "cpu": replace(_SMALL["cpu"], seeds_of={FORM: 0}),
        "gpu": Scale(
            {
                **SETTINGS,
                "epochs": 100,
                "every": 20,
                "schedule": "cosine",
                "optimizer": "sgd",
                "weight_decay": 5e-4,
            },
            5,
            {name: {"lr": lr, "candidates": []} for name, lr in _MIDDLE.items()},
            {FORM: 0, "ACClip, normalised": 0},
        ),
    },
    methods={
        "SGD with momentum": {"optimizer": "sgd", "candidates": [0.003, 0.01, 0.03, 0.1, 0.3]},
        "Adam": {"optimizer": "adam", "candidates": [1e-3, 3e-3, 1e-2, 3e-2, 1e-1]},
        "ACClip": {"optimizer": "algorithm", "candidates": [0.1, 0.3, 1.0, 3.0, 10.0]},
        "ACClip, normalised": {
            "optimizer": "normalized",
            "candidates": [3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
        },
        FORM: {"optimizer": "second_moment"},
    },
    loop=loop,
    judge=judge,
    rule="ACClip is above Adam and SGD above ACClip in test accuracy: each difference over paired "
    "seeds is above zero, one-sided at 95 % (both must say so: no correction). Refuted where a "
    "difference is below half a point, one-sided at 95 %. At scale gpu SGD must reach 91 %, as "
    "published for ResNet20: otherwise not trained.",
    lengths={"gpu": "100 epochs (ImageNet in the paper: 90)"},
    length_of=lambda settings: f"{settings['epochs']} of 100 epochs (CIFAR-10)",
    designs={
        "gpu": GapDesign(
            "sooner",
            false=0.0,
            paper=1.4,
            deviation=0.6,
            unit="points",
            source="the smaller of the two printed differences, ACClip over Adam; deviation of "
            "earlier records",
            parts=2,
        )
    },
    models={
        "quick": "three convolutions, width 8, on digits",
        "cpu": "three convolutions, width 8, on CIFAR-10",
        "gpu": f"proxy: {RESNET20}",
    },
    grid=GRID,
    tune_on=TUNE_ON,
    tuning_seeds=(1000,),
    paper_model="ResNet50 on ImageNet",
    paper_number="validation accuracy: SGD 0.754, ACClip 0.730, Adam 0.716 (App. I)",
    figures=(
        Figure("Test accuracy at the chosen step", "test_accuracy", "test accuracy"),
        Figure(
            "Validation loss at the chosen step", "validation_loss", "validation loss", log_y=True
        ),
        Figure("Training loss at the chosen step", "train_loss", "training loss", log_y=True),
        Figure(
            "What tuning saw",
            "candidate_score",
            "validation error",
            x="candidate",
            x_label="step size",
            log_x=True,
            caption="Five candidates and one budget for every optimizer; the lowest is chosen.",
        ),
    ),
)
