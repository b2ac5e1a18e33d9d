"""Local smoothness beside the gradient norm along training: the loop and the judge of S1 and S2."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mindgap import measure
from mindgap.base.rng import stream_seed
from mindgap.lab.studies.gates import CLASS_FREQUENCIES, learnt_gate
from mindgap.lab.studies.power import Design
from mindgap.lab.studies.resnet_runs import image_loss, resnet_run
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Trial
from mindgap.lab.studies.text_runs import language_run
from mindgap.lab.studies.training_runs import Training, descent, training_problem
from mindgap.lab.studies.verdict import Interval, by_method, last, mean_interval, student_quantile

if TYPE_CHECKING:
    import torch
    from torch import Tensor


#: Rank correlations from which smoothness and gradient norm are called strongly correlated, and
#: correlated at all.
STRONG, PRESENT = 0.5, 0.3

#: By how much Fisher transforms (artanh) of two rank correlations differ where one of them is
#: called much weaker than the other: as much as those of 0.5 and 0.3 do.
MUCH = math.atanh(STRONG) - math.atanh(PRESENT)

#: Rank correlations beyond this count as this before they are transformed.
_LARGEST_RANK = 0.9999

#: Nats that ResNet20's training loss must end below the frequencies of classes.
LEARNT = 1.5


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

    A row also has the validation loss, and as ``naive_norm`` and ``naive_smoothness`` what the
    released code's estimator says.
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

    return run.rows(optimizer, read)


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
    interval = mean_interval(np.arctanh(np.clip(ranks, -_LARGEST_RANK, _LARGEST_RANK)))
    return Interval(*(float(np.tanh(value)) for value in interval.triple))


def judge(runs: Sequence[Run], clipped: Sequence[str], least: float) -> Parts:
    """Judge per method whether smoothness and gradient norm are correlated along training.

    Scale gpu has a rule of its own, :func:`_judge_over_seeds`. At all others a method is
    *correlated* if the median over the seeds of Spearman's rank correlation is at least ``least``,
    and more than half of its seeds show growth, by slope and rank. It is *weakly correlated* if the
    median is below :data:`PRESENT` and fewer than half of the seeds refuse to tell. Either refutes
    the other.

    Args:
        runs: of all methods.
        clipped: the methods that must be correlated; all others must be weakly correlated.
        least: the rank correlation that the clipped ones must reach.
    """
    parts = Parts()
    fits_of = {name: _fits(own_runs) for name, own_runs in by_method(runs).items()}
    if runs[0].header.scale == "gpu":
        _judge_over_seeds(parts, fits_of, clipped, least)
        if runs[0].header.settings.get("model") == "ResNet20":
            losses = [last(run, "train_loss") for run in runs]
            learnt_gate(parts, "ResNet20", losses, CLASS_FREQUENCIES, LEARNT)
    else:
        _judge_by_medians(parts, fits_of, clipped, least)
    for name, own_runs in by_method(runs).items():
        if "naive_norm" in own_runs[0].rows[0]:
            _note_on_estimators(parts, name, own_runs, [fit.rank for fit in fits_of[name]])
    return parts


def _fits(own_runs: Sequence[Run]) -> list[measure.RelaxedSmoothness]:
    """The fit to the readings of each run of one method."""
    return [
        measure.fit_relaxed_smoothness(run.column("gradient_norm"), run.column("smoothness"))
        for run in own_runs
    ]


def _medians(fits: Sequence[measure.RelaxedSmoothness]) -> dict[str, Any]:
    """Medians over the seeds of one method, and how many of them show growth or refuse to tell."""
    table = [(fit.rank, *fit.rank_interval, fit.slope, fit.span) for fit in fits]
    names = ("rank", "rank_low", "rank_high", "slope", "span")
    return {
        **dict(zip(names, np.median(table, axis=0).tolist(), strict=True)),
        "grow": sum(fit.grows is True for fit in fits),
        "refused": sum(fit.grows is None for fit in fits),  # seeds that cannot tell
        "seeds": len(fits),
    }


def _words(medians: dict[str, Any]) -> str:
    """The slope, the span and the shown growth among the medians of one method, in words."""
    refused = f", cannot tell in {medians['refused']}" if medians["refused"] else ""
    return (
        f"slope {medians['slope']:.2f}, gradient norms span a factor {medians['span']:.1f}, growth "
        f"shown in {medians['grow']} of {medians['seeds']} seeds{refused}"
    )


def _judge_by_medians(
    parts: Parts,
    fits_of: Mapping[str, Sequence[measure.RelaxedSmoothness]],
    clipped: Sequence[str],
    least: float,
) -> None:
    """Add one part per method, by medians over the seeds and what single runs show.

    Args:
        parts: of the verdict.
        fits_of: method -> the fit to each of its runs.
        clipped, least: as in :func:`judge`.
    """
    for name, fits in fits_of.items():
        medians = _medians(fits)
        rank, low, high = medians["rank"], medians["rank_low"], medians["rank_high"]
        correlated = rank >= least and 2 * medians["grow"] > len(fits)
        weak = rank < PRESENT and 2 * medians["refused"] < len(fits)
        asked, holds, refuted = (
            ("correlated", correlated, weak)
            if name in clipped
            else ("weakly correlated", weak, correlated)
        )
        words = f"rank correlation {rank:.2f} [{low:.2f}, {high:.2f}], {_words(medians)}"
        parts.add(f"{name}: {asked}", holds, refuted, words, {name: medians})


def _judge_over_seeds(
    parts: Parts,
    fits_of: Mapping[str, Sequence[measure.RelaxedSmoothness]],
    clipped: Sequence[str],
    least: float,
) -> None:
    """Add one part per method, by means over the seeds of transformed rank correlations.

    The transforms are Fisher's. Their intervals are Student's with the deviation pooled over all
    methods, and each end is a one-sided test of 5 %.

    * A clipped method is *correlated*: its mean is at least ``least`` and its interval lies above
      :data:`PRESENT`. No where the interval lies below ``least``.
    * Any other method is *much less correlated*: its mean is below ``least``, and each clipped mean
      is higher by :data:`MUCH` with an interval of the difference above 0. No where its interval
      lies above ``least``, or that of a difference below :data:`MUCH`.

    ``CorrelationDesign.decide`` repeats the rule for arrays of made-up runs.

    Args:
        parts: of the verdict.
        fits_of: method -> the fit to each of its runs.
        clipped, least: as in :func:`judge`.
    """
    transforms = {
        name: np.arctanh(np.clip([fit.rank for fit in fits], -_LARGEST_RANK, _LARGEST_RANK))
        for name, fits in fits_of.items()
    }
    degrees = sum(len(values) - 1 for values in transforms.values())
    if degrees == 0:
        parts.decide_nothing("one seed per method tells nothing of the scatter between seeds")
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in transforms.values())
    # One seed per method: unbounded intervals.
    half_width = (
        student_quantile(0.95, degrees) * math.sqrt(squares / degrees) if degrees else math.inf
    )  # of the mean of a single seed
    for name, values in transforms.items():
        mean, own_half_width = float(values.mean()), half_width / math.sqrt(len(values))
        low, high = mean - own_half_width, mean + own_half_width
        medians = _medians(fits_of[name])
        interval = [float(np.tanh(value)) for value in (mean, low, high)]
        words = f"mean rank correlation {Interval(*interval).words()}, {_words(medians)}"
        numbers = {name: {**medians, "mean_rank": interval}}
        if name in clipped:
            holds = mean >= math.atanh(least) and low > math.atanh(PRESENT)
            parts.add(f"{name}: correlated", holds, high < math.atanh(least), words, numbers)
            continue
        # How much higher each clipped mean is, and half the width of that interval.
        leads = [
            (float(transforms[other].mean()) - mean, half_width * math.sqrt(share))
            for other in clipped
            if other in transforms
            for share in (1 / len(values) + 1 / len(transforms[other]),)
        ]
        parts.add(
            f"{name}: much less correlated",
            mean < math.atanh(least) and all(lead >= MUCH and lead > half for lead, half in leads),
            low > math.atanh(least) or any(lead + half < MUCH for lead, half in leads),
            words,
            numbers,
        )


@dataclass(frozen=True)
class CorrelationDesign(Design):
    """The rule of :func:`_judge_over_seeds` on made-up readings of the logs of gradient norm and
    smoothness.

    The smoothness of a run lies around a line in the logs. An effect is how much steeper the
    clipped method's line is than those of the ``parts`` other methods, and ``deviation`` that of a
    slope between seeds.

    Args:
        least: the rank correlation that the clipped method must reach.
        readings: per run.
        slope: of the other methods at the paper's effect.
        false_slope: of the other methods at any other effect.
        span: of the gradient norms (95 % over 5 % quantile), in the median run.
        scatter: standard deviation of log smoothness around its line, in the median run.
        spread: standard deviation between seeds of the logs of span's log and of ``scatter``.
        norm_memory: correlation of the log gradient norms of neighbouring readings.
        scatter_memory: the same of the deviations from the line.
    """

    least: float = STRONG
    readings: int = 60
    slope: float = 0.0
    false_slope: float = 0.0
    span: float = 3.0
    scatter: float = 0.25
    spread: float = 0.25
    norm_memory: float = 0.5
    scatter_memory: float = 0.3

    def draws(
        self, effect: float, seeds: int, studies: int, generator: np.random.Generator
    ) -> np.ndarray[Any, Any]:
        """Made-up readings of log gradient norm and log smoothness.

        Returns:
            Shape (studies, methods, seeds, readings, 2). The clipped method is the first.
        """
        shape = (studies, self.parts + 1, seeds)
        # 5 and 95 % quantile of a Gaussian are 3.29 standard deviations apart.
        norm_deviation = math.log(self.span) / 3.29
        norms, rest = (
            size
            * np.exp(self.spread * generator.standard_normal((*shape, 1)))
            * _neighbours((*shape, self.readings), memory, generator)
            for size, memory in (
                (norm_deviation, self.norm_memory),
                (self.scatter, self.scatter_memory),
            )
        )
        slopes = self.deviation * generator.standard_normal((*shape, 1))
        slopes += self.slope if effect == self.paper else self.false_slope
        slopes[:, 0] += effect
        return np.stack([norms, slopes * norms + rest], axis=-1)

    def decide(self, differences: np.ndarray[Any, Any]) -> tuple[Any, Any]:
        """What the rule says of many studies at once.

        Args:
            differences: the readings, as from :meth:`draws`.

        Returns:
            Whether it says *holds*, and whether *does not hold*, two arrays of shape (studies,).
        """
        # Spearman's correlation is that of the places in the order; no two readings are equal.
        places = differences.argsort(axis=3).argsort(axis=3).astype(float)
        places -= places.mean(axis=3, keepdims=True)
        norms, smoothness = places[..., 0], places[..., 1]
        sizes = np.sqrt((norms**2).sum(-1) * (smoothness**2).sum(-1))
        ranks = (norms * smoothness).sum(-1) / sizes  # (studies, methods, seeds)
        transforms = np.arctanh(np.clip(ranks, -_LARGEST_RANK, _LARGEST_RANK))
        methods, seeds = transforms.shape[1:]
        mean = transforms.mean(2)
        pooled = np.sqrt(transforms.var(2, ddof=1).mean(1, keepdims=True))
        quantile = student_quantile(0.95, methods * (seeds - 1))
        half_width = quantile * pooled / math.sqrt(seeds)
        low, high, least = mean - half_width, mean + half_width, math.atanh(self.least)
        lead, half_of_lead = mean[:, :1] - mean[:, 1:], math.sqrt(2) * half_width
        refuted = (
            (high[:, 0] < least) | (low[:, 1:] > least).any(1) | (lead + half_of_lead < MUCH).any(1)
        )
        correlated = (mean[:, 0] >= least) & (low[:, 0] > math.atanh(PRESENT))
        less = (mean[:, 1:] < least) & (lead >= MUCH) & (lead > half_of_lead)
        return correlated & less.all(1) & ~refuted, refuted


def _neighbours(
    shape: tuple[int, ...], memory: float, generator: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Standard Gaussian series along the last axis; neighbours have the correlation ``memory``."""
    series = generator.standard_normal(shape)
    for place in range(1, shape[-1]):
        series[..., place] *= math.sqrt(1 - memory**2)
        series[..., place] += memory * series[..., place - 1]
    return series


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

#: The rule of scale gpu; braces: the rank correlation that the clipped run must reach, twice.
GPU_RULE = (
    "Means over the seeds of Fisher transforms of Spearman's rank correlations, with Student's "
    "intervals whose deviation is pooled over all runs and whose ends are one-sided tests of 5 %. "
    "Holds where the clipped run with the large step has a mean of at least {0} and an interval "
    "above 0.3, and every other run has a mean below {0} that is lower by 0.24 (artanh 0.5 less "
    "artanh 0.3) or more, with an interval of the difference above 0. Refuted where the clipped "
    "run's interval lies below {0}, another's above it, or that of a difference below 0.24."
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
