"""T5: Nesterov's momentum and heavy-ball momentum train a network equally well, both tuned alike.

On convex problems theory tells them apart (T1, T2); on networks the thesis reports hardly a
difference.
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

#: Accuracies that differ by at most this are hardly different.
MARGIN = 0.01


def loop(trial: Trial) -> Iterator[Row]:
    """Rows of SGD with one kind of momentum, with accuracies and losses on held-out images; at
    small scales every candidate step is tried first (:func:`image_run`).
    """

    def build(lr: float, parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
        """SGD with momentum 0.9: Nesterov's where the setting ``nesterov`` is true, else that of
        the heavy ball.
        """
        import torch

        return torch.optim.SGD(
            parameters,
            lr=lr,
            momentum=0.9,
            weight_decay=trial["weight_decay"],
            nesterov=trial["nesterov"],
            fused=parameters[0].is_cuda or None,  # None: torch's own choice
        )

    return image_run(trial, build, "t5, batches of 64")


def judge(runs: Sequence[Run]) -> Parts:
    """Ask whether Nesterov's momentum and the heavy ball end at hardly different ``test_accuracy``.

    Returns:
        One part: yes where the 90 % interval of the mean difference over paired seeds lies within ±
        :data:`MARGIN`, no where it lies outside altogether.
    """
    parts = Parts()
    accuracy = note_accuracies(parts, runs)
    gap = mean_interval(accuracy["Nesterov"] - accuracy["heavy ball"], miss=ONE_SIDED)
    parts.add(
        "hardly a difference",
        holds=gap.low >= -MARGIN and gap.high <= MARGIN,
        refuted=gap.low > MARGIN or gap.high < -MARGIN,
        words=f"Nesterov minus heavy ball {gap.words(100)} points",
        numbers={"gap": vars(gap)},
    )
    return parts


STUDY = Study(
    name="t5-momentum-in-practice",
    claim="T5",
    title="Is Nesterov's momentum better than heavy ball on a network?",
    statement="Training a network, Nesterov's momentum and heavy-ball momentum differ hardly in "
    "performance.",
    source=Source("thesis", "2.2.1"),
    scales={
        **scales(
            {**QUICK, "schedule": "cosine", "candidates": [0.03, 0.1, 0.3]}, CPU, seeds=(2, 6)
        ),
        "gpu": Scale(
            {
                **SETTINGS,
                "epochs": 100,
                "every": 10,
                "schedule": "late drops",
                "lr": 0.1,
                "weight_decay": 5e-4,
            },
            seeds=5,
            rule="The difference in test accuracy over paired seeds lies within one point (two "
            "one-sided tests of 5 % each); refuted where the 90 % interval lies outside. The "
            "better of the two must reach 91 %, as published for ResNet20: otherwise not trained. "
            "Steps are searched at 10 epochs, a factor 3 apart, on validation images; the two best "
            "run again at full length.",
        ),
    },
    lengths={"gpu": "100 epochs (the thesis shows no run)"},
    length_of=lambda settings: f"{settings['epochs']} epochs (the thesis shows no run)",
    designs={
        "gpu": Design(
            "equivalent",
            false=100 * MARGIN,
            paper=0.0,
            deviation=0.6,
            unit="points",
            source="no difference, as the thesis cites Choi et al.; deviation of ACClip less SGD "
            "on this network in H12, 0.43 points, rounded up",
            margin=100 * MARGIN,
        )
    },
    methods={"heavy ball": {"nesterov": False}, "Nesterov": {"nesterov": True}},
    loop=loop,
    judge=judge,
    rule="The 90 % interval of the difference in test accuracy over paired seeds lies within "
    "one point; refuted where it lies outside.",
    models={**SMALL_MODELS, "gpu": f"proxy: {RESNET20}"},
    grid=GRID,
    tune_on=TUNE_ON,
    tuning_seeds=(1000,),
    paper_model="networks of Sutskever et al. and of Choi et al.",
    paper_number="none: the thesis cites other papers",
    figures=(
        Figure("Test accuracy at the chosen step", "test_accuracy", "test accuracy"),
        Figure("Training loss at the chosen step", "train_loss", "training loss", log_y=True),
        Figure(
            "What tuning saw",
            "candidate_score",
            "validation error",
            x="candidate",
            x_label="step size",
            log_x=True,
            scales=("quick", "cpu"),
        ),
    ),
)
