"""Everything measured once: what ``mindgap measure`` writes, as plain sentences and as data for
its figures.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mindgap.base.check import RuleError, fail, positive, whole
from mindgap.base.objective import Objective
from mindgap.base.restoring import first_batches
from mindgap.base.rng import numpy_stream
from mindgap.measure.distributions import stable_draws
from mindgap.measure.gradients import (
    NonFiniteError,
    gradient_passes,
    passes_mean,
    reason,
    time_limit,
)
from mindgap.measure.probes.curvature import Sharpness, Stability, describe_sharpness, sharpness
from mindgap.measure.probes.noise import NoiseSample, noise_sample
from mindgap.measure.probes.smoothness import smoothness_along_ray
from mindgap.measure.probes.stationarity import goldstein_distance
from mindgap.measure.probes.statistics import training_statistics
from mindgap.measure.probes.tails import infinite_variance, tail_table
from mindgap.measure.probes.variance import variance_growth
from mindgap.measure.relaxed_smoothness import LEAST_SLOPE, fit_relaxed_smoothness
from mindgap.record.survey import Survey as Survey, SurveyLine

#: What a survey measures, one after the other.
PARTS = ("training statistics", "gradient noise", "sharpness", "smoothness", "Goldstein distance")
#: Part -> share of the time by which it must have ended; what one part leaves over, the next has.
UNTIL = dict(zip(PARTS, (0.2, 0.5, 0.8, 0.9, 1.0), strict=True))
#: Length of the sketch from which the noise's effective dimension is read.
SKETCH = 256
#: Gradients that one batch costs for curvature (2 x 25 Hessian products, a ray and a ball), for
#: noise (two passes), and for statistics (gradients of single samples, and a sharpness).
FOR_CURVATURE, FOR_NOISE, FOR_STATISTICS = 110.0, 2.5, 60.0
#: Gradients that one Hessian product of a batch costs, and products of one search at most.
PER_PRODUCT, MOST_PRODUCTS = 2.5, 100


def survey(
    objective: Objective,
    batches: Iterable[Any],
    *,
    optimizer: Any = None,
    limit: int = 512,
    curvature_batches: int = 8,
    ray_points: int = 20,
    delta: float = 0.01,
    seconds: float | None = None,
    seed: int = 0,
    finished: Callable[[str], Any] | None = None,
) -> Survey:
    """Measure everything once at the model's point: noise, tails, smoothness, curvature,
    stationarity, (6.2).

    What cannot be measured (too few batches for a tail, batch norm for single samples) gets a
    sentence that says so; a NaN loss is an error. The model is left as it was found.

    Args:
        objective, batches: the problem; the first ``limit`` batches are held. 128 or more tell a
            tail from none.
        optimizer: whose edge of stability to report.
        limit: batches used for the noise.
        curvature_batches: of them, how many for sharpness, smoothness and the Goldstein distance.
        ray_points: readings of the smoothness, along one ray up the gradient (the parameters are
            put back).
        delta: radius of the Goldstein distance.
        seconds: be done within this time, by taking fewer batches and products; ``about`` says how
            many were used. A part that does not end in time is left out with a sentence, and a
            survey that took more than 1.2 times as long says why.
        seed: names all random numbers.
        finished: called with the name of each of ``PARTS`` when it is done, for a progress bar.

    Raises:
        RuleError: no batches, and what ``gradient_passes`` refuses. NonFiniteError: a NaN loss or
            gradient.

    Example:
        >>> import torch
        >>> problem = Objective(torch.nn.Linear(4, 1).double(), lambda m, b: m(b).square().mean())
        >>> found = survey(problem, list(torch.randn(6, 8, 4).double()))
        >>> found.findings[0].quantity, sorted(found.figures)
        ('loss', ['noise_histogram', 'settling', 'smoothness', 'spectrum'])
    """
    whole("limit", limit, least=2, most=2**31)
    whole("curvature_batches", curvature_batches, least=1)
    whole("ray_points", ray_points, least=3, most=10_000)
    positive("delta", delta)
    if seconds is not None:
        positive("seconds", seconds)
    if finished is not None and not callable(finished):
        fail("finished", "must be a function of a text", finished)
    if not isinstance(objective, Objective):
        fail("objective", "must be a mindgap Objective", objective)
    begun_at = time.perf_counter()
    all_batches = first_batches(objective.model, batches, limit)
    budget = _Budget(begun_at, seconds, _seconds_of_gradient(objective, all_batches[0], seed))
    # The shares of the time sum to one.
    for_curvature = all_batches[: budget.batches(curvature_batches, 0.55, FOR_CURVATURE)]
    for_noise = all_batches[: budget.batches(len(all_batches), 0.25, FOR_NOISE)]
    for_statistics = all_batches[: budget.batches(16, 0.2, FOR_STATISTICS)]
    surveyor = _Surveyor(objective, budget, seed)
    # Part -> what measures it.
    parts: dict[str, Callable[[], list[SurveyLine]]] = {
        "training statistics": lambda: surveyor.read_statistics(for_statistics),
        "gradient noise": lambda: surveyor.read_noise(for_noise),
        "sharpness": lambda: surveyor.read_sharpness(for_curvature, optimizer),
        "smoothness": lambda: surveyor.read_smoothness(for_curvature, ray_points),
        "Goldstein distance": lambda: surveyor.read_stationarity(for_curvature, delta),
    }
    findings: list[SurveyLine] = []
    for name in PARTS:
        findings += _lines_of_part(name, parts[name], budget)
        if finished is not None:
            finished(name)
    spent = time.perf_counter() - begun_at
    if seconds is not None and spent > 1.2 * seconds:  # a single batch or product may run over
        sentence = (
            f"the survey took {spent:.3g} s, more than the {seconds:g} s that were given: one "
            f"gradient of a batch takes {budget.seconds_per_gradient:.2g} s"
        )
        findings.append(SurveyLine("time", sentence, spent))
    about = {
        "model": type(objective.model).__name__,
        "parameters": sum(p.numel() for p in objective.parameters),
        "tensors": len(objective.parameters),
        "batches": len(for_noise),
        "curvature_batches": len(for_curvature),
        "device": str(objective.parameters[0].device),
        "dtype": str(objective.parameters[0].dtype).removeprefix("torch."),
        "seconds": round(spent, 3),
        "seed": seed,
    }
    return Survey(tuple(findings), surveyor.figures, about)


@dataclass(frozen=True)
class _Budget:
    """What a survey may cost, from the time of one gradient; any cost, without ``seconds``."""

    begun_at: float  # moment of ``time.perf_counter``
    seconds: float | None  # of the whole survey; None: as long as it takes
    seconds_per_gradient: float  # of one batch

    def batches(self, count: int, share: float, gradients: float) -> int:
        """How many of ``count`` batches, but at least two, fit into a share of the time.

        Args:
            share: of the seconds of the whole survey.
            gradients: what one batch costs, in gradients of a batch.
        """
        if self.seconds is None:
            return count
        seconds_per_batch = gradients * self.seconds_per_gradient
        return max(2, min(count, int(share * self.seconds / seconds_per_batch)))

    def products(self, share: float, batches: int) -> int:
        """How many Hessian products over so many batches fit into a share of the time; 4 to
        ``MOST_PRODUCTS``.
        """
        if self.seconds is None:
            return MOST_PRODUCTS
        seconds_per_product = PER_PRODUCT * batches * self.seconds_per_gradient
        return max(4, min(MOST_PRODUCTS, int(share * self.seconds / seconds_per_product)))

    def affords_statistics(self) -> bool:
        """Whether the statistics of two batches, with their sharpness, fit into a fifth of the
        time.
        """
        two_batches = 2 * FOR_STATISTICS * self.seconds_per_gradient
        return self.seconds is None or two_batches <= 0.2 * self.seconds

    def seconds_left(self, part: str) -> float | None:
        """Seconds until a part must have ended; None without a limit."""
        if self.seconds is None:
            return None
        return self.begun_at + UNTIL[part] * self.seconds - time.perf_counter()


#: Quantity -> the assumption that its line judges.
_ASSUMPTIONS = {
    "gradient noise": "finite variance",
    "infinite variance": "finite variance",
    "smoothness": "smoothness",
}


def _lines_of_part(
    part: str, read: Callable[[], list[SurveyLine]], budget: _Budget
) -> list[SurveyLine]:
    """The lines of a part; one that says why it was not measured, where it ends in an error or not
    in time. Only ``NonFiniteError`` passes.

    Args:
        part: one of ``PARTS``.
        read: measures the part.
    """
    try:
        with time_limit(budget.seconds_left(part)):
            return read()
    except NonFiniteError:
        raise
    except Exception as error:
        return [_not_measured(part, reason(error))]


def _not_measured(quantity: str, problem: str) -> SurveyLine:
    """The line of a quantity that was not measured."""
    return SurveyLine(
        quantity, f"not measured: {problem}", assumption=_ASSUMPTIONS.get(quantity, "")
    )


def _seconds_of_gradient(objective: Objective, batch: Any, seed: int) -> float:
    """Seconds that a gradient of this batch takes, by the second of two. A problem that no part
    could measure ends in an error here.
    """
    with gradient_passes(objective, [batch], seed=seed) as passes:
        passes_mean(passes)
        begun_at = time.perf_counter()
        passes_mean(passes)
        return time.perf_counter() - begun_at


class _Surveyor:
    """Reads the parts of a survey; each method returns lines and adds to ``figures``.

    Attributes:
        figures: name of a figure -> its numbers.
    """

    def __init__(self, objective: Objective, budget: _Budget, seed: int) -> None:
        self.objective, self.budget, self.seed = objective, budget, seed
        self.figures: dict[str, Any] = {}

    def read_statistics(self, batches: list[Any]) -> list[SurveyLine]:
        """Lines on loss, gradient norm, noise of one sample, and on whether the samples suffice.
        Writes the figure ``settling``: the estimates on growing numbers of samples.
        """
        # Where not even two batches fit, the sharpness is left to its own part.
        affords_all = self.budget.affords_statistics()
        statistics = training_statistics(
            self.objective,
            batches,
            growth=affords_all,
            with_sharpness=affords_all,
            tol=1e-2,
            seed=self.seed,
        )
        self.figures["settling"] = [asdict(row) for row in statistics.growth]
        norm, noise = statistics.gradient_norm_unbiased, statistics.noise
        relative = "the gradient norm is lost in it" if noise else "as the gradient norm is"
        if norm:  # 0 where the estimate of its square is negative
            relative = f"{noise / norm:.3g} times the gradient norm"
        source = "" if statistics.per == "sample" else ", from minibatches"
        return [
            SurveyLine(
                "loss",
                f"loss {statistics.loss:.4g} {_in_brackets(statistics.loss_interval)} on "
                f"{statistics.samples} samples",
                statistics.loss,
                *statistics.loss_interval,
            ),
            SurveyLine(
                "gradient norm",
                f"gradient norm {norm:.3g} {_in_brackets(statistics.gradient_norm_interval)} "
                f"(before the correction for noise {statistics.gradient_norm:.3g})",
                norm,
                *statistics.gradient_norm_interval,
            ),
            SurveyLine(
                "noise",
                f"noise of one sample {noise:.3g} {_in_brackets(statistics.noise_interval)}"
                f"{source}: {relative}",
                noise,
                *statistics.noise_interval,
            ),
            SurveyLine(
                "settling",
                f"{_settled_in_words(statistics.settled)} (enough: the last doubling changes less "
                "than 10 %)",
            ),
        ]

    def read_noise(self, batches: list[Any]) -> list[SurveyLine]:
        """Lines on the tail index, on infinite variance and on the growth of the variance; for each
        that cannot be measured a line that says why. Writes the figures ``noise_histogram`` and
        ``variance_growth``.
        """
        sample = noise_sample(self.objective, batches, seed=self.seed, projections=SKETCH)
        lines = []
        alpha = math.nan  # index by the estimator for stable laws, for the histogram's reference
        try:
            table = tail_table(sample, bootstrap=100, null=100, seed=self.seed)
            alpha = next(tail.index for tail in table if tail.method == "stable")
            lines += [
                SurveyLine(f"tail, {tail.method}", tail.answer, tail.index, *tail.interval)
                for tail in table
            ]
        except RuleError as error:
            lines.append(_not_measured("tail", str(error)))
        quantity = "infinite variance"
        try:
            judgement = infinite_variance(sample)
            numbers = judgement.index, *judgement.interval, _ASSUMPTIONS[quantity]
            lines.append(SurveyLine(quantity, judgement.answer, *numbers, fails=judgement.infinite))
        except RuleError as error:
            lines.append(_not_measured(quantity, str(error)))
        try:
            growth = variance_growth(sample, seed=self.seed)
            names = ("sizes", "running", "low", "median", "high")
            self.figures["variance_growth"] = {
                name: getattr(growth, name).tolist() for name in names
            }
            lines.append(SurveyLine("variance", growth.answer, growth.exponent, *growth.interval))
        except RuleError as error:
            lines.append(_not_measured("variance", str(error)))
        self.figures["noise_histogram"] = _histogram_figure(sample, alpha, self.seed)
        return lines

    def read_sharpness(self, batches: list[Any], optimizer: Any) -> list[SurveyLine]:
        """The line on the sharpness and, with an optimizer whose threshold is known, one on the
        edge of stability. Writes the figure ``spectrum``.

        Args:
            optimizer: a torch optimizer, or None.
        """
        # An optimizer's threshold may need a search of its own; both share a quarter of the time.
        searches = 1 if optimizer is None else 2
        reading = sharpness(
            self.objective,
            batches,
            optimizer=optimizer,
            both=True,
            max_products=self.budget.products(0.25 / searches, len(batches)),
            seed=self.seed,
        )
        self.figures["spectrum"] = _spectrum_figure(reading)
        sentence = describe_sharpness(reading)
        sentence += f"; {reading.unknown}" if reading.unknown else ""
        low, high = reading.interval
        high = high if reading.converged else math.inf  # a Ritz value lies below the eigenvalue
        line = SurveyLine("sharpness", sentence, reading.value, low, high)
        return (
            [line] if reading.stability is None else [line, _edge_line(reading, reading.stability)]
        )

    def read_smoothness(self, batches: list[Any], points: int) -> list[SurveyLine]:
        """Lines on the local smoothness, and on how it grows with the gradient norm along one ray
        up the gradient. Writes the figure ``smoothness``; the parameters are put back.

        Args:
            points: readings along the ray.
        """
        ray = smoothness_along_ray(self.objective, batches, points=points, seed=self.seed)
        first, floor = ray.smoothness[0], ray.noise_floor
        local_line = SurveyLine(
            "local smoothness",
            f"smoothness along the gradient {first:.3g}, noise floor {floor:.1g}",
            first,
            max(0.0, first - floor),
            first + floor,
        )
        figure = self.figures["smoothness"] = {
            "gradient_norm": list(ray.gradient_norms),
            "smoothness": list(ray.smoothness),
            "noise_floor": [floor] * len(ray.smoothness),
            "loss": list(ray.losses),
        }
        quantity, assumption = "smoothness and gradient norm", "smoothness"
        if sum(value > 0 for value in ray.smoothness) < 3:  # too few for a fit
            sentence = (
                "cannot tell whether smoothness grows: the gradient does not change along the ray, "
                "as for a linear piece of a loss with kinks"
            )
            return [local_line, SurveyLine(quantity, sentence, assumption=assumption)]
        fit = fit_relaxed_smoothness(ray.gradient_norms, ray.smoothness, seed=self.seed)
        figure |= {"L0": fit.L0, "L1": fit.L1}
        low, high = fit.slope_interval
        grows, sentence = fit.grows, fit.sentence
        if grows and low <= LEAST_SLOPE:  # it grows, but perhaps by less than matters
            grows, answer = None, "cannot tell"
            if high < LEAST_SLOPE:
                grows, answer = False, "no growth of smoothness with the gradient norm that matters"
            sentence = (
                f"{answer}: log-log slope {fit.slope:.2f} [{low:.2f}, {high:.2f}], "
                f"{LEAST_SLOPE:g} is the border"
            )
        # A line that cannot tell has no numbers.
        numbers = (fit.slope, low, high) if grows is not None else (math.nan,) * 3
        return [local_line, SurveyLine(quantity, sentence, *numbers, assumption, fails=grows)]

    def read_stationarity(self, batches: list[Any], delta: float) -> list[SurveyLine]:
        """The line on the Goldstein distance in a ball of radius ``delta``, from 16 gradients."""
        distance = goldstein_distance(self.objective, batches, delta, samples=16, seed=self.seed)
        sentence = (
            f"some mean of gradients within {delta:g} of here has norm {distance.bound:.3g} or less"
        )
        return [SurveyLine("Goldstein distance", sentence, distance.bound)]


def _settled_in_words(settled: dict[str, bool]) -> str:
    """For which quantities the samples suffice, and for which they are too few, in words.

    Args:
        settled: quantity -> whether the samples suffice; empty where there were too few batches.
    """
    clauses = []
    for beginning, enough in (("enough samples for", True), ("too few for", False)):
        names = [name.replace("_", " ") for name, suffice in settled.items() if suffice is enough]
        if names:
            clauses.append(f"{beginning} {', '.join(names)}")
    return "; ".join(clauses) or "not known from so few batches"


def _edge_line(reading: Sharpness, edge: Stability) -> SurveyLine:
    """The survey's line on the edge of stability. Its assumption, a stable step, fails where the
    whole interval of the ratio lies above 1, and holds where it lies below 1 and the search has
    converged; else the line does not say.

    Args:
        reading: of the sharpness.
        edge: its ``stability``, where that is known.
    """
    error_of_ratio = edge.error / edge.threshold  # the ratio is value over threshold
    low, high = edge.ratio - error_of_ratio, edge.ratio + error_of_ratio
    unstable: bool | None = None
    if low > 1 or (reading.converged and high < 1):
        unstable = low > 1
    # Another value than the sharpness is an eigenvalue of the Hessian scaled by the steps.
    preconditioned = edge.kind == "preconditioned" or edge.value != reading.value
    quantity = "the preconditioned sharpness" if preconditioned else "the sharpness"
    sentence = (
        f"{quantity} is {edge.value:.3g}, {edge.ratio:.3g} {_in_brackets((low, high))} times the "
        f"threshold of {edge.threshold:.3g}"
    )
    if not reading.converged:
        sentence += "; it may be larger, because the search did not converge"
        high = math.inf
    return SurveyLine(
        "edge of stability",
        sentence,
        value=edge.ratio,
        low=low,
        high=high,
        assumption="stable step",
        fails=unstable,
    )


def _histogram_figure(sample: NoiseSample, alpha: float, seed: int) -> dict[str, Any]:
    """Densities of the noise norms and of two references in 40 bins: Gaussian noise of the same
    effective dimension and mean square, and stable noise scaled to the same median.

    Args:
        alpha: index of the stable noise, which is brought into [1.05, 1.95]; 1.5 where it is NaN.
        seed: names the random numbers of the references.
    """
    norms = sample.norms
    dimension = _dimension(sample)
    rng = numpy_stream(seed, "histogram references")
    draws = 4000  # of each reference
    gaussian = np.sqrt(rng.chisquare(dimension, draws) / dimension * np.mean(norms**2))
    index_drawn = float(np.clip(alpha, 1.05, 1.95)) if math.isfinite(alpha) else 1.5
    coordinates = max(1, min(32, round(dimension)))  # of the stable noise; more look alike
    stable = np.sqrt(np.square(stable_draws(index_drawn, (draws, coordinates), rng)).sum(axis=1))
    stable *= np.median(norms) / np.median(stable)
    # The bins reach beyond all norms and nearly all Gaussian draws; stable ones may lie outside.
    largest = 1.2 * max(float(norms.max()), float(np.quantile(gaussian, 0.999)))
    edges = np.linspace(0.0, largest if largest > 0 else 1.0, 41)
    bin_widths = np.diff(edges)

    def density(values: np.ndarray) -> list[float]:
        """Share of the values in each bin of ``edges`` over the bin's width."""
        return (np.histogram(values, edges)[0] / len(values) / bin_widths).tolist()

    return {
        "edges": edges.tolist(),
        "measured": density(norms),
        "gaussian": density(gaussian),
        "stable": density(stable),
        "norms": norms.tolist(),
        "dimension": dimension,
        "alpha": index_drawn,
        "alpha_estimated": bool(math.isfinite(alpha)),
    }


def _dimension(sample: NoiseSample) -> float:
    """Effective dimension (tr C)² / tr C² of the noise covariance C, cut to [1, 10⁴]; 1 where there
    are fewer than three minibatches or no noise.

    The noises n_b, n_c of two minibatches are independent: E⟨n_b, n_c⟩² = tr C², and E‖n_b‖² =
    tr C. A sketch of k random signs adds (tr C)² / k to the mean squared inner product; it is taken
    off again.
    """
    sketch = sample.projections.astype(np.float64)
    gram = sketch @ sketch.T
    samples, signs = sketch.shape  # M minibatches, k
    squares_between = (gram**2).sum() - (np.diag(gram) ** 2).sum()
    trace = float(np.mean(sample.norms**2))
    if samples < 3 or trace == 0:
        return 1.0
    # tr C² / (tr C)², by the mean over the M (M - 1) pairs of different minibatches.
    alignment = squares_between / (samples * (samples - 1)) / trace**2 - 1 / signs
    return float(np.clip(1 / max(alignment, 1e-4), 1.0, 1e4))


def _spectrum_figure(reading: Sharpness) -> dict[str, Any]:
    """The numbers of the figure of eigenvalues, by name; a threshold of NaN is not drawn."""
    edge = reading.stability
    # The threshold belongs on the axis of H only where the step is one number.
    has_one_threshold = edge is not None and edge.kind != "preconditioned"
    return {
        "values": list(reading.values),
        "largest": reading.value,
        "error": reading.error,
        "smallest": reading.smallest,
        "threshold": edge.threshold if edge is not None and has_one_threshold else math.nan,
        "kind": edge.kind if edge is not None else "",
    }


def _in_brackets(interval: tuple[float, float]) -> str:
    """An interval with three digits, such as "[1.2, 3.4]"."""
    return f"[{interval[0]:.3g}, {interval[1]:.3g}]"
