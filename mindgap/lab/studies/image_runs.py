"""Optimizers compared on images: a small network whose step each trial tunes, or ResNet20 at
scale gpu.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mindgap.lab.studies.resnet_runs import resnet_run, tie_breaker
from mindgap.lab.studies.spec import Parts, Row, Run, Trial
from mindgap.lab.studies.training_runs import Training, image_problem
from mindgap.lab.studies.tuned_runs import tuned_run
from mindgap.lab.studies.verdict import by_method, finals, step_words

if TYPE_CHECKING:
    import torch

    #: (step, parameters) -> optimizer.
    Build = Callable[[float, Sequence[torch.Tensor]], torch.optim.Optimizer]


#: The small network of scale quick, and what is different at scale cpu.
QUICK: dict[str, Any] = {
    "images": "digits",
    "train": 500,
    "validation": 300,
    "width": 8,
    "steps": 40,
    "every": 20,
    "batch": 64,
    "weight_decay": 0.0,
}
CPU: dict[str, Any] = {
    "images": "cifar10",
    "train": 6000,
    "validation": 2000,
    "steps": 600,
    "every": 60,
    "batch": 32,
}
#: The models of both scales, as verdicts name them.
SMALL_MODELS = {
    "quick": "three convolutions, width 8, on digits",
    "cpu": "three convolutions, width 8, on CIFAR-10",
}


def note_accuracies(parts: Parts, runs: Sequence[Run]) -> dict[str, np.ndarray]:
    """Add a note on each method to ``parts``: its mean final test accuracy and the chosen steps.

    Returns:
        Method -> its final test accuracies, one per seed that all methods have.
    """
    accuracies = finals(runs, "test_accuracy")
    for name, own_runs in by_method(runs).items():
        parts.note(f"{name} {np.mean(accuracies[name]):.2%} ({step_words(own_runs)})")
    return accuracies


def image_run(trial: Trial, build: Build, name: str) -> Iterator[Row]:
    """Train a network on images by one optimizer, with readings on held-out images.

    The setting ``model="ResNet20"`` trains once with the step size ``lr`` times ``factor``, by
    :func:`~mindgap.lab.studies.resnet_runs.resnet_run`. Without it the small network of
    :func:`~mindgap.lab.studies.training_runs.image_problem` is trained with every candidate step
    size. The one with the best validation accuracy (ties: the smaller loss there) then runs anew,
    by :func:`~mindgap.lab.studies.tuned_runs.tuned_run`.

    Args:
        trial: with the settings of either.
        build: (step size, parameters) -> optimizer.
        name: of the study's random streams.

    Yields:
        The rows of ``resnet_run`` with ``lr``, or those of ``tuned_run`` with accuracy and loss of
        the parts of the data and ``validation_error``.
    """
    from mindgap.base.rng import stream_seed
    from mindgap.lab.tasks.data.device_images import accuracy_and_loss

    if trial.settings.get("model") == "ResNet20":
        lr = trial["lr"] * trial["factor"]
        yield from (
            {**row, "lr": lr}
            for row in resnet_run(trial, lambda parameters: build(lr, parameters), name)
        )
        return

    def start(lr: float, phase: str) -> tuple[Training, Callable[[], Row]]:
        """A fresh training with step size ``lr``, and what reads its accuracies and losses.

        ``phase`` is ``"tuning"``, in which validation images alone are read, or ``"run"``.
        """
        # One split for both phases: the test part is held out of the tuning too.
        split_seed, network_seed = (
            stream_seed(trial.seed, f"{name} {part}") for part in ("split", phase)
        )
        problem = image_problem(trial.settings, split_seed, network_seed)
        model = problem.objective.model
        parts = ("validation",) if phase == "tuning" else tuple(problem.parts)

        def read() -> Row:
            """Accuracy and loss of each part, and the validation error with ties broken by the
            loss.
            """
            row: Row = {}
            for part in parts:
                accuracy, loss = accuracy_and_loss(model, *problem.parts[part])
                row |= {f"{part}_accuracy": accuracy, f"{part}_loss": loss}
            error = 1 - row["validation_accuracy"] + tie_breaker(row["validation_loss"])
            return {**row, "validation_error": error}

        optimizer = build(lr, problem.objective.parameters)
        return Training(problem, optimizer, trial.torch_generator(f"{name} {phase} order")), read

    yield from tuned_run(trial, start, on="validation_error")
