"""Local smoothness beside the gradient norm along training: the loop and the judge of S1 and S2."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from mindgap import measure
from mindgap.base.rng import stream_seed
from mindgap.lab.studies.resnet_runs import image_loss, resnet_run
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
    made (:func:`measure.local_smoothness`); the columns are those of :func:`_row`.

    ResNet20 and AWD-LSTM are networks of scale gpu, all others small ones.
    """
    if trial.settings.get("model") == "ResNet20":
        return _resnet(trial)
    if trial.settings.get("network") == "awd-lstm":
        return _language_model_rows(trial)
    return _run_small(trial)


class _LastStep:
    """The last step of an optimizer, which can be undone for a while.

    A hook on the optimizer keeps a copy of the ``parameters`` before every step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
        self.steps = 0  # so far
        self._parameters = parameters
        self._before = [p.detach().clone() for p in parameters]  # before the last step
        optimizer.register_step_pre_hook(self._keep)

    def _keep(self, *_: Any) -> None:
        """Copy the parameters; the optimizer calls this before every step."""
        self.steps += 1
        _copy_into(self._before, self._parameters)

    @contextmanager
    def undone(self) -> Iterator[list[Tensor]]:
        """Put the parameters where the last step began, in place, for the length of the block.

        Yields:
            The step, one tensor per parameter.
        """
        current = [p.detach().clone() for p in self._parameters]
        _copy_into(self._parameters, self._before)
        try:
            yield [after - before for before, after in zip(self._before, current, strict=True)]
        finally:
            _copy_into(self._parameters, current)


def _copy_into(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into tensors in place, without a gradient."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.detach().copy_(value.detach())


def _resnet(trial: Trial) -> Iterator[Row]:
    """The rows of ResNet20, read in training mode and full precision, always on the first ``m``
    training images, not augmented.
    """
    from mindgap.base.objective import Objective
    from mindgap.measure.captured import tf32

    def reader(model: Any, optimizer: Any, parts: Any) -> Callable[[], Row]:
        """What reads the smoothness along the last step; see ``resnet_runs.Reader``."""
        last_step = _LastStep(optimizer, list(model.parameters()))
        objective = Objective(model, lambda m, batch: image_loss(m, *batch))
        images, labels = (tensor[: trial["m"]].split(trial["part"]) for tensor in parts["train"])
        batches = list(zip(images, labels))  # of ``part`` samples each

        def read() -> Row:
            """The smoothness along the last step."""
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
    """The columns of a row, from a reading of `measure.local_smoothness`."""
    return {
        "loss": reading.loss,
        "gradient_norm": reading.gradient_norm,
        "smoothness": reading.value,
        "curvature": reading.curvature,
        "noise_floor": reading.noise_floor,
        "length": reading.displacement,
    }


def _language_model_rows(trial: Trial) -> Iterator[Row]:
    """The rows of AWD-LSTM, read in evaluation mode and full precision, always on the same ``m``
    windows of the training text.

    The setting ``every`` gives the steps between two readings; without it ``readings`` of them are
    spaced evenly in the logarithm of the step. A row also has the validation loss, and as
    ``naive_norm`` and ``naive_smoothness`` what the released code's estimator says.
    """
    from mindgap.base.objective import Objective
    from mindgap.lab.tasks.problems.running_text import window_loss
    from mindgap.measure.captured import tf32

    run = language_run(trial, "smoothness along training")
    parameters, train, size = list(run.model.parameters()), run.texts["train"], trial["part"]
    optimizer = descent(trial.settings, trial["lr"], parameters)
    last_step, objective = _LastStep(optimizer, parameters), Objective(run.model, window_loss)
    # The fixed windows of every reading, as tensors of ``part`` windows each.
    windows = train.windows(trial.torch_generator("smoothness samples"), trial["m"]).split(size)

    def read() -> Row:
        """Smoothness along the last step on fixed windows, and by the released code's estimator."""
        # A stream of its own per reading, so that a resumed run draws the same.
        steps_done = trial.restored.get("step", 0) + last_step.steps
        generator = trial.torch_generator(f"smoothness chunks {steps_done}")
        chunks = [train.windows(generator, trial["m"]).split(size) for _ in range(2)]
        with last_step.undone() as step, tf32(False):
            row = _row(measure.local_smoothness(objective, windows, step, train=False))
            row["naive_norm"], row["naive_smoothness"] = _released_estimate(objective, chunks, step)
        return {**row, **run.held_out("validation")}

    # Without chosen steps the run reads after every ``every`` steps.
    readings = 0 if "every" in trial.settings else trial["readings"]
    steps = np.geomspace(1, trial["steps"], readings).round().astype(int)
    return run.rows(optimizer, read, reading_steps=np.unique(steps).tolist())


def _released_estimate(
    objective: Any, chunks: Sequence[Sequence[Any]], step: Sequence[Any]
) -> tuple[float, float]:
    """Gradient norm and smoothness as the released code of the paper estimates them.

    The norm is that of the gradient g at x. The smoothness is ‖g' - g‖ / ‖s/2‖ with the gradient g'
    at x + s/2, which is computed on other samples. Where the released code has sums over
    minibatches (chunks), there are means here; they differ by a constant factor.

    Args:
        objective: model (at x) and loss.
        chunks: minibatches for g, and other minibatches for g'.
        step: s, one tensor per parameter.
    """
    from mindgap.measure.gradients import gradient_passes, passes_mean

    def norm(tensors: Sequence[Any]) -> float:
        """The norm of all tensors as one vector, in double precision."""
        return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))

    mean_gradients = []  # g and g', one tensor per parameter
    # ``share`` of the step by which x is moved for a gradient: not at all for g, half of s for g'.
    for share, own_chunks in zip((0.0, 0.5), chunks, strict=True):
        with (
            gradient_passes(objective, own_chunks, train=False, move=True) as passes,
            passes.moved(list(step), share),
        ):
            mean_gradients.append([gradient.double() for gradient in passes_mean(passes)])
    change = [at_end - at_start for at_start, at_end in zip(*mean_gradients, strict=True)]
    return norm(mean_gradients[0]), norm(change) / (0.5 * norm(step))


def _run_small(trial: Trial) -> Iterator[Row]:
    """Rows of a run at small scales, always read on the same ``m`` samples, in batches of
    ``part``.
    """
    problem = training_problem(trial.settings, stream_seed(trial.seed, "smoothness along training"))
    optimizer = descent(trial.settings, trial["lr"], problem.objective.parameters)
    last_step = _LastStep(optimizer, problem.objective.parameters)
    batches = problem.batches(
        trial.torch_generator("smoothness samples"), trial["m"] // trial["part"], trial["part"]
    )

    def read(_: int) -> Row:
        """The smoothness along the last step, on the fixed samples."""
        with last_step.undone() as step:
            return _row(measure.local_smoothness(problem.objective, batches, step))

    run = Training(problem, optimizer, trial.torch_generator("smoothness order"))
    return run.rows(trial, read)


def rank_interval(ranks: Sequence[float]) -> Interval:
    """A 95 % interval for the mean of correlations, within ±1.

    It is computed for their Fisher transforms (artanh) and transformed back; correlations beyond
    ±0.9999 count as that.

    Example:
        >>> found = rank_interval([0.1, 0.3])
        >>> -1 < found.low < found.mean < found.high < 1
        True
    """
    interval = mean_interval(np.arctanh(np.clip(ranks, -0.9999, 0.9999)))
    return Interval(*(float(np.tanh(value)) for value in interval.triple))


def judge(runs: Sequence[Run], clipped: Sequence[str], least: float) -> Parts:
    """Judge per method whether smoothness and gradient norm are correlated along training.

    A method is *correlated* if the median over the seeds of Spearman's rank correlation is at least
    ``least``, and more than half of its seeds show growth, by slope and rank. It is *weakly
    correlated* if the median is below :data:`PRESENT` and fewer than half of the seeds refuse to
    tell. Either refutes the other.

    Args:
        runs: of all methods.
        clipped: the methods that must be correlated; all others must be weakly correlated.
        least: the rank correlation that the clipped ones must reach.
    """
    parts = Parts()
    for name, own_runs in by_method(runs).items():
        fits = [
            measure.fit_relaxed_smoothness(run.column("gradient_norm"), run.column("smoothness"))
            for run in own_runs
        ]
        table = [(fit.rank, *fit.rank_interval, fit.slope, fit.span) for fit in fits]
        # Medians over the seeds.
        rank, low, high, slope, span = np.median(table, axis=0).tolist()
        grow = sum(fit.grows is True for fit in fits)
        refused = sum(fit.grows is None for fit in fits)  # seeds that cannot tell
        correlated = rank >= least and 2 * grow > len(fits)
        weak = rank < PRESENT and 2 * refused < len(fits)
        words = (
            f"rank correlation {rank:.2f} [{low:.2f}, {high:.2f}], slope {slope:.2f}, gradient "
            f"norms span a factor {span:.1f}, growth shown in {grow} of {len(fits)} seeds"
            + (f", cannot tell in {refused}" if refused else "")
        )
        numbers = {
            "rank": rank,
            "rank_low": low,
            "rank_high": high,
            "slope": slope,
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
        if "naive_norm" in own_runs[0].rows[0]:
            _note_on_estimators(parts, name, own_runs, [fit.rank for fit in fits])
    return parts


def _note_on_estimators(
    parts: Parts, name: str, own_runs: Sequence[Run], ranks: Sequence[float]
) -> None:
    """Add a note on one method: our mean rank correlation beside that of the released code's
    estimator, and the perplexity on validation text.

    Args:
        parts: of the verdict.
        name: of the method.
        own_runs: its runs.
        ranks: our rank correlation in each of them.
    """
    naive_ranks = [
        measure.fit_relaxed_smoothness(
            run.column("naive_norm"), run.column("naive_smoothness")
        ).rank
        for run in own_runs
    ]
    intervals = {"our": rank_interval(ranks), "the naive": rank_interval(naive_ranks)}
    perplexity = math.exp(float(np.mean([last(run, "validation_loss") for run in own_runs])))
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
