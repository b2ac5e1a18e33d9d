"""S7: ResNet20 trained with clipping generalises: the thesis reports 95.2 % on CIFAR-10 after 200
epochs.

SGD with momentum and the published schedule runs beside it. At scale gpu ``mindgap tune --grid``
chooses the step of both; at scales quick and cpu each trial tunes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mindgap.lab.studies.image_runs import CPU, QUICK, SMALL_MODELS, image_run, note_accuracies
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
from mindgap.lab.studies.verdict import ONE_SIDED, mean_interval

if TYPE_CHECKING:
    import torch

#: The accuracy that 3.1 states.
STATED = 0.952
#: Clipping that loses at most this generalises well.
MARGIN = 0.01


def loop(trial: Trial) -> Iterator[Row]:
    """Rows of clipped SGD or SGD with momentum, with accuracies and losses on held-out images; at
    small scales every candidate step is tried first (:func:`image_run`).
    """

    def build(lr: float, parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
        """GClip with the trial's threshold ``tau``, or SGD with momentum 0.9 where that is 0."""
        import torch

        from mindgap.optim import GClip

        if trial["tau"]:
            return GClip(parameters, lr=lr, tau=trial["tau"], weight_decay=trial["weight_decay"])
        return torch.optim.SGD(
            parameters,
            lr=lr,
            momentum=0.9,
            weight_decay=trial["weight_decay"],
            fused=parameters[0].is_cuda or None,  # None: torch's own choice
        )

    return image_run(trial, build, "s7, batches of 64")


def judge(runs: Sequence[Run]) -> Parts:
    """Compare the final ``test_accuracy`` of clipping with the stated one and with SGD's.

    Returns:
        For ResNet20 a part *as printed*: the mean over seeds is at least :data:`STATED`. For every
        network a part: clipping loses at most :data:`MARGIN` against SGD with momentum, over paired
        seeds. Both use 90 % intervals: yes above, no below, open where they cross.
    """
    parts = Parts()
    accuracy = note_accuracies(parts, runs)
    if runs[0].header.settings.get("model") == "ResNet20":
        clipped = mean_interval(accuracy["clipped SGD"], miss=ONE_SIDED)
        parts.add(
            "as printed, clipping reaches 95.2 %",
            holds=clipped.low >= STATED,
            refuted=clipped.high < STATED,
            words=f"{100 * clipped.mean:.2f} % [{100 * clipped.low:.2f}, {100 * clipped.high:.2f}]",
            numbers={"accuracy": vars(clipped)},
            reading="as printed",
        )
    gap = mean_interval(accuracy["clipped SGD"] - accuracy["SGD with momentum"], miss=ONE_SIDED)
    parts.add(
        "clipping generalises as well as SGD with momentum",
        holds=gap.low >= -MARGIN,
        refuted=gap.high < -MARGIN,
        words=f"{gap.words(100)} points",
        numbers={"gap": vars(gap)},
    )
    return parts


STUDY = Study(
    name="s7-clipping-generalises",
    claim="S7",
    title="Does clipping generalise on images?",
    statement="Gradient clipping achieves good generalisation in image classification: 95.2 % "
    "test accuracy in 200 epochs for ResNet20 on CIFAR-10.",
    source=Source("thesis", "3.1, Fig. 3-4d"),
    scales={
        **scales({**QUICK, "schedule": "late drops"}, CPU, seeds=(2, 4)),
        "gpu": Scale(
            {
                **SETTINGS,
                "epochs": 200,
                "every": 20,
                "schedule": "late drops",
                "weight_decay": 5e-4,
            },
            seeds=5,
            methods={
                "SGD with momentum": {"lr": 0.1, "candidates": []},
                "clipped SGD": {"lr": 5.0, "candidates": []},
            },
            rule="As printed: clipping's test accuracy is 95.2 % or more on average over the "
            "seeds, one-sided at 95 %; refuted where it is less, one-sided at 95 %. As corrected: "
            "clipping is at most one point behind SGD with momentum over paired seeds, one-sided "
            "at 95 %; refuted where it is more behind, one-sided at 95 %. The better of the two "
            "must reach 91 %, as published for ResNet20: otherwise not trained. Steps are searched "
            "at 10 epochs, a factor 3 apart, on validation images; the two best run again at full "
            "length.",
        ),
    },
    lengths={"gpu": "200 of 200 epochs"},
    length_of=lambda settings: f"{settings['epochs']} of 200 epochs",
    designs={
        # The lead over what is one point worse than SGD.
        "gpu": Design(
            "sooner",
            false=0.0,
            paper=100 * MARGIN,
            deviation=0.6,
            unit="points above one point behind SGD",
            source="no difference: clipping matches SGD with momentum in 3.5; deviation of ACClip "
            "less SGD on this network in H12, 0.43 points, rounded up",
        )
    },
    methods={
        "SGD with momentum": {"tau": 0.0, "candidates": [0.03, 0.1, 0.3]},
        "clipped SGD": {"tau": 0.25, "candidates": [1.0, 3.0, 10.0]},
    },
    loop=loop,
    judge=judge,
    rule="As printed, on ResNet20: the 90 % interval of clipping's test accuracy over the seeds "
    "lies at 95.2 % or above; refuted where it lies below. As corrected: clipping is at most one "
    "point behind SGD with momentum, by the 90 % interval over paired seeds; refuted where it is "
    "certainly more.",
    models={**SMALL_MODELS, "gpu": RESNET20},
    grid=GRID,
    tune_on=TUNE_ON,
    tuning_seeds=(1000,),
    paper_model=RESNET20,
    paper_number="95.2 % test accuracy with clipping in 200 epochs (3.1)",
    figures=(
        Figure("Test accuracy at the chosen step", "test_accuracy", "test accuracy"),
        Figure(
            "Validation loss at the chosen step", "validation_loss", "validation loss", log_y=True
        ),
        Figure("Training loss at the chosen step", "train_loss", "training loss", log_y=True),
    ),
)
