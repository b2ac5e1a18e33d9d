"""Local smoothness beside the gradient norm along training: the loop and the judge of S1 and S2."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from mindgap import measure
from mindgap.base.rng import stream_seed
from mindgap.lab.studies.resnet_runs import resnet_run
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Trial
from mindgap.lab.studies.text_runs import language_run
from mindgap.lab.studies.training_runs import Training, descent, training_problem
from mindgap.lab.studies.verdict import Interval, by_method, last, mean_interval

if TYPE_CHECKING:
    import torch
    from torch import Tensor


#: Rank correlations from which smoothness and gradient norm are called strongly correlated, and
#: correlated at all.
STRONG, PRESENT = 0.5, 0.3


def loop(trial: Trial) -> Iterator[Row]:
    """Train, and at every reading measure how fast the gradient changes along the step just
    made.
    """
    if trial.settings.get("model") == "ResNet20":
        return _resnet(trial)
    if trial.settings.get("network") == "awd-lstm":
        return _language_model_rows(trial)
    return _run_small(trial)


class _LastStep:
    """Where parameters were before the last step of their optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
        self.number = 0  # steps so far
        self._parameters = parameters
        self._before = [p.detach().clone() for p in parameters]
        optimizer.register_step_pre_hook(self._keep)

    def _keep(self, *_: Any) -> None:
        self.number += 1
        _put(self._before, self._parameters)

    @contextmanager
    def undone(self) -> Iterator[list[Tensor]]:
        """Inside the block the parameters are where the last step began; gives that step."""
        current = [p.detach().clone() for p in self._parameters]
        _put(self._parameters, self._before)
        try:
            yield [b - a for a, b in zip(self._before, current, strict=True)]
        finally:
            _put(self._parameters, current)


def _put(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into tensors, without a gradient."""
    for tensor, value in zip(into, values, strict=True):
        tensor.detach().copy_(value.detach())


def _resnet(trial: Trial) -> Iterator[Row]:
    """ResNet20: readings in training mode and full precision, on the same images, not augmented."""
    from torch.nn.functional import cross_entropy

    from mindgap.base.objective import Objective
    from mindgap.measure.captured import tf32

    def reader(model: Any, optimizer: Any, parts: Any) -> Callable[[], Row]:
        """What reads the smoothness along the last step, on the same images every time."""
        last_step = _LastStep(optimizer, list(model.parameters()))
        objective = Objective(model, lambda m, batch: cross_entropy(m(batch[0]), batch[1]))
        batches = list(
            zip(*(tensor[: trial["m"]].split(trial["part"]) for tensor in parts["train"]))
        )

        def read() -> Row:
            with last_step.undone() as step, tf32(False):
                return _row(measure.local_smoothness(objective, batches, step))

        return read

    return resnet_run(
        trial,
        lambda parameters: descent(trial.settings, trial["lr"], parameters),
        "smoothness along training",
        evaluate_training=False,
        reader=reader,
    )


def _row(reading: Any) -> Row:
    """The columns of a row from a reading of `measure.local_smoothness`."""
    return {
        "loss": reading.loss,
        "gradient_norm": reading.gradient_norm,
        "smoothness": reading.value,
        "curvature": reading.curvature,
        "noise_floor": reading.noise_floor,
        "length": reading.displacement,
    }


def _language_model_rows(trial: Trial) -> Iterator[Row]:
    """Train AWD-LSTM and read its smoothness in evaluation mode and full precision, always on the
    same windows of the training text. The setting ``every`` gives the steps between two readings;
    without it ``readings`` of them are spaced evenly in the logarithm of the step.
    """
    from mindgap.base.objective import Objective
    from mindgap.lab.tasks.problems.running_text import window_loss
    from mindgap.measure.captured import tf32

    run = language_run(trial, "smoothness along training")
    parameters, train, size = list(run.model.parameters()), run.texts["train"], trial["part"]
    optimizer = descent(trial.settings, trial["lr"], parameters)
    last_step, objective = _LastStep(optimizer, parameters), Objective(run.model, window_loss)
    windows = train.windows(trial.torch_generator("smoothness samples"), trial["m"]).split(size)

    def read() -> Row:
        """Smoothness along the last step on fixed windows, and by the released code's estimator."""
        number = trial.restored.get("step", 0) + last_step.number
        generator = trial.torch_generator(f"smoothness chunks {number}")
        chunks = [train.windows(generator, trial["m"]).split(size) for _ in range(2)]
        with last_step.undone() as step, tf32(False):
            row = _row(measure.local_smoothness(objective, windows, step, train=False))
            row["naive_norm"], row["naive_smoothness"] = _naive(objective, chunks, step)
        return {**row, **run.held_out("validation")}

    # Without chosen steps the run reads after every ``every`` steps.
    readings = 0 if "every" in trial.settings else trial["readings"]
    reading_steps = np.unique(
        np.geomspace(1, trial["steps"], readings).round().astype(int)
    ).tolist()
    return run.rows(optimizer, read, reading_steps=reading_steps)


def _naive(
    objective: Any, chunks: Sequence[Sequence[Any]], step: Sequence[Any]
) -> tuple[float, float]:
    """The released code's gradient norm and smoothness: at x and half a step on, each on chunks of
    its own.

    Its sums over chunks, a constant factor, are means here.
    """
    from mindgap.measure.gradients import gradient_passes, passes_mean

    mean_gradients = []
    for share, own_chunks in zip((0.0, 0.5), chunks, strict=True):
        with (
            gradient_passes(objective, own_chunks, train=False, move=True) as passes,
            passes.moved(list(step), share),
        ):
            mean_gradients.append([gradient.double() for gradient in passes_mean(passes)])
    norm, change, length = (
        math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
        for tensors in (
            mean_gradients[0],
            [at_end - at_start for at_start, at_end in zip(*mean_gradients, strict=True)],
            step,
        )
    )
    return norm, change / (0.5 * length)


def _run_small(trial: Trial) -> Iterator[Row]:
    """Rows of a run at small scales: gradient norm and smoothness along each step."""
    problem = training_problem(trial.settings, stream_seed(trial.seed, "smoothness along training"))
    optimizer = descent(trial.settings, trial["lr"], problem.objective.parameters)
    last_step = _LastStep(optimizer, problem.objective.parameters)
    batches = problem.batches(
        trial.torch_generator("smoothness samples"), trial["m"] // trial["part"], trial["part"]
    )

    def read(_: int) -> Row:
        with last_step.undone() as step:
            return _row(measure.local_smoothness(problem.objective, batches, step))

    run = Training(problem, optimizer, trial.torch_generator("smoothness order"), {})
    return run.rows(trial, read)


def rank_interval(ranks: Sequence[float]) -> Interval:
    """A 95 % interval for a mean correlation, by Fisher's transformation: it stays within ±1.

    Example:
        >>> found = rank_interval([0.1, 0.3])
        >>> -1 < found.low < found.mean < found.high < 1
        True
    """
    interval = mean_interval(np.arctanh(np.clip(ranks, -0.9999, 0.9999)))
    return Interval(*(float(np.tanh(value)) for value in interval.triple))


def judge(runs: Sequence[Run], clipped: Sequence[str], least: float) -> Parts:
    """Medians of rank correlations over the seeds, and how many seeds show growth by slope and
    rank; the methods ``clipped`` must be correlated by at least ``least``, the others weakly.
    """
    parts = Parts()
    for name, group in by_method(runs).items():
        fits = [
            measure.fit_relaxed_smoothness(run.column("gradient_norm"), run.column("smoothness"))
            for run in group
        ]
        columns = zip(*((fit.rank, *fit.rank_interval, fit.slope, fit.span) for fit in fits))
        rank, low, high, power, span = (float(np.median(values)) for values in columns)
        grow = sum(fit.grows is True for fit in fits)
        refused = sum(fit.grows is None for fit in fits)
        correlated = rank >= least and 2 * grow > len(fits)
        weak = rank < PRESENT and 2 * refused < len(fits)
        words = (
            f"rank correlation {rank:.2f} [{low:.2f}, {high:.2f}], slope {power:.2f}, gradient "
            f"norms span a factor {span:.1f}, growth shown in {grow} of {len(fits)} seeds"
            + (f", cannot tell in {refused}" if refused else "")
        )
        numbers = {
            "rank": rank,
            "rank_low": low,
            "rank_high": high,
            "slope": power,
            "span": span,
            "grow": grow,
            "refused": refused,
            "seeds": len(fits),
        }
        asked, holds, refuted = (
            ("correlated", correlated, weak)
            if name in clipped
            else ("weakly correlated", weak, correlated)
        )
        parts.add(f"{name}: {asked}", holds, refuted, words, {name: numbers})
        if "naive_norm" in group[0].rows[0]:
            _note_on_estimators(parts, name, group, [fit.rank for fit in fits])
    return parts


def _note_on_estimators(
    parts: Parts, name: str, group: Sequence[Run], ranks: Sequence[float]
) -> None:
    """A note on one method: our mean rank correlation beside that of the released code's
    estimator, and the perplexity.
    """
    naive_ranks = [
        measure.fit_relaxed_smoothness(
            run.column("naive_norm"), run.column("naive_smoothness")
        ).rank
        for run in group
    ]
    intervals = {"our": rank_interval(ranks), "the naive": rank_interval(naive_ranks)}
    perplexity = math.exp(float(np.mean([last(run, "validation_loss") for run in group])))
    parts.note(
        f"{name}, mean over seeds with 95 % interval: "
        + ", ".join(
            f"{interval.words()} by {estimator} estimator"
            for estimator, interval in intervals.items()
        )
        + f", perplexity {perplexity:.0f} on validation text",
        {
            f"{name}, over seeds": {
                **{estimator: interval.triple for estimator, interval in intervals.items()},
                "perplexity": perplexity,
            }
        },
    )


RULE = (
    "Medians of Spearman's rank correlations over the seeds: at least {} for the clipped run with "
    "the large step, with "
    "growth by slope and rank shown in more than half of its seeds; below 0.3 for all others, with "
    "no conclusion "
    "refused in half of their seeds. Refuted where the clipped run is below 0.3, or another is as "
    "high and growing."
)

PROSE = {
    "source": "prose",
    "width": 32,
    "steps": 100,
    "every": 5,
    "batch": 16,
    "m": 32,
    "part": 32,
    "tau": 0.25,
    "momentum": 0.0,
    "clip": False,
    "lr": 2.0,
}

FIGURES = (
    Figure(
        "Smoothness against gradient norm",
        "smoothness",
        "local smoothness",
        x="gradient_norm",
        kind="points",
        x_label="‖∇f‖",
        log_x=True,
        log_y=True,
        facet="method",
        caption="One dot per reading, all seeds. (L0, L1)-smoothness allows the dots to rise to "
        "the right.",
    ),
    Figure("Smoothness along training", "smoothness", "local smoothness", log_y=True),
    Figure("Training loss at the readings", "loss", "loss"),
)
