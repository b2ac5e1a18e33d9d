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
    begin = time.perf_counter()
    held = first_batches(objective.model, batches, limit)
    budget = _Budget(begin, seconds, _time_of_gradient(objective, held[0], seed))
    few = held[: budget.batches(curvature_batches, 0.55, 110.0)]  # 2 x 25 products, ray, ball
    noisy = held[: budget.batches(len(held), 0.25, 2.5)]
    sampled = held[: budget.batches(16, 0.2, 60.0)]
    figures: dict[str, Any] = {}
    parts: dict[str, Callable[[], list[SurveyLine]]] = {
        "training statistics": lambda: _statistics(objective, sampled, budget, figures, seed),
        "gradient noise": lambda: _noise(objective, noisy, figures, seed),
        "sharpness": lambda: _curvature(objective, few, optimizer, budget, figures, seed),
        "smoothness": lambda: _ray(objective, few, ray_points, figures, seed),
        "Goldstein distance": lambda: _stationarity(objective, few, delta, seed),
    }
    findings: list[SurveyLine] = []
    for name in PARTS:
        findings += _measured(name, parts[name], budget)
        if finished is not None:
            finished(name)
    spent = time.perf_counter() - begin
    if seconds is not None and spent > 1.2 * seconds:
        said = (
            f"the survey took {spent:.3g} s, more than the {seconds:g} s that were given: one "
            f"gradient of a batch takes {budget.gradient:.2g} s"
        )
        findings.append(SurveyLine("time", said, spent))
    about = {
        "model": type(objective.model).__name__,
        "parameters": sum(p.numel() for p in objective.parameters),
        "tensors": len(objective.parameters),
        "batches": len(noisy),
        "curvature_batches": len(few),
        "device": str(objective.parameters[0].device),
        "dtype": str(objective.parameters[0].dtype).removeprefix("torch."),
        "seconds": round(spent, 3),
        "seed": seed,
    }
    return Survey(tuple(findings), figures, about)


@dataclass(frozen=True)
class _Budget:
    """What a survey may cost, from the time of one gradient."""

    begin: float  # moment at which the survey began
    seconds: float | None  # None: as long as it takes
    gradient: float  # seconds per gradient of a batch

    def batches(self, count: int, share: float, gradients: float) -> int:
        """How many of ``count`` batches fit into a share of the time, at so many gradients per
        batch.
        """
        if self.seconds is None:
            return count
        return max(2, min(count, int(share * self.seconds / (gradients * self.gradient))))

    def products(self, share: float, count: int) -> int:
        """How many Hessian products over ``count`` batches fit into a share of the time."""
        if self.seconds is None:
            return 100
        return max(4, min(100, int(share * self.seconds / (2.5 * count * self.gradient))))

    def affords_statistics(self) -> bool:
        """Whether two batches of the statistics fit with their sharpness."""
        return self.seconds is None or 2 * 60.0 * self.gradient <= 0.2 * self.seconds

    def left(self, part: str) -> float | None:
        """Seconds until a part must have ended."""
        if self.seconds is None:
            return None
        return self.begin + UNTIL[part] * self.seconds - time.perf_counter()


#: Part -> the assumption that its lines judge.
_ASSUMPTIONS = {"gradient noise": "finite variance", "smoothness": "smoothness"}


def _measured(
    part: str, measure: Callable[[], list[SurveyLine]], budget: _Budget
) -> list[SurveyLine]:
    """The lines of a part, or one that says why it was not measured; a NaN loss is an error."""
    try:
        with time_limit(budget.left(part)):
            return measure()
    except NonFiniteError:
        raise
    except Exception as refused:
        said = f"not measured: {reason(refused)}"
        return [SurveyLine(part, said, assumption=_ASSUMPTIONS.get(part, ""))]


def _time_of_gradient(objective: Objective, batch: Any, seed: int) -> float:
    """Seconds per gradient of a batch, by the second of two; what no part could measure is an
    error here.
    """
    with gradient_passes(objective, [batch], seed=seed) as passes:
        passes_mean(passes)
        begin = time.perf_counter()
        passes_mean(passes)
        return time.perf_counter() - begin


def _statistics(
    objective: Objective, held: list[Any], budget: _Budget, figures: dict[str, Any], seed: int
) -> list[SurveyLine]:
    """The survey's lines on loss, gradient norm and noise, and whether the samples suffice."""
    # Where not even two batches fit, the sharpness is left to its own part.
    full = budget.affords_statistics()
    found = training_statistics(
        objective, held, growth=full, with_sharpness=full, tol=1e-2, seed=seed
    )
    figures["settling"] = [asdict(row) for row in found.growth]
    true = found.gradient_norm_unbiased
    size = (
        f"{found.noise / true:.3g} times the gradient norm"
        if true
        else "the gradient norm is lost in it"
    )
    enough, few = (
        ", ".join(name.replace("_", " ") for name, ok in found.settled.items() if ok is kind)
        for kind in (True, False)
    )
    settled = "; ".join(
        [f"enough samples for {enough}"] * bool(enough) + [f"too few for {few}"] * bool(few)
    )
    low, high = found.gradient_norm_interval
    way = "" if found.per == "sample" else ", from minibatches"
    return [
        SurveyLine(
            "loss",
            f"loss {found.loss:.4g} {_range(found.loss_interval)} on {found.samples} samples",
            found.loss,
            *found.loss_interval,
        ),
        SurveyLine(
            "gradient norm",
            f"gradient norm {found.gradient_norm_unbiased:.3g} {_range((low, high))} "
            f"(before the correction for noise {found.gradient_norm:.3g})",
            found.gradient_norm_unbiased,
            low,
            high,
        ),
        SurveyLine(
            "noise",
            f"noise of one sample {found.noise:.3g} {_range(found.noise_interval)}{way}: {size}",
            found.noise,
            *found.noise_interval,
        ),
        SurveyLine(
            "settling",
            f"{settled or 'not known from so few batches'} (enough: the last doubling changes less "
            "than 10 %)",
        ),
    ]


def _noise(
    objective: Objective, held: list[Any], figures: dict[str, Any], seed: int
) -> list[SurveyLine]:
    """The survey's lines on the noise: tail index, infinite variance, growth of the variance."""
    sample = noise_sample(objective, held, seed=seed, projections=SKETCH)
    rows = []
    alpha = math.nan
    try:
        table = tail_table(sample, bootstrap=100, null=100, seed=seed)
        alpha = next(t.index for t in table if t.method == "stable")
        rows += [SurveyLine(f"tail, {t.method}", t.answer, t.index, *t.interval) for t in table]
    except RuleError as refused:
        rows.append(SurveyLine("tail", f"not measured: {refused}"))
    quantity, assumption = "infinite variance", "finite variance"
    try:
        judged = infinite_variance(sample)
        numbers = judged.index, *judged.interval
        rows.append(SurveyLine(quantity, judged.answer, *numbers, assumption, judged.infinite))
    except RuleError as refused:
        rows.append(SurveyLine(quantity, f"not measured: {refused}", assumption=assumption))
    try:
        growth = variance_growth(sample, seed=seed)
        names = ("sizes", "running", "low", "median", "high")
        figures["variance_growth"] = {name: getattr(growth, name).tolist() for name in names}
        rows.append(SurveyLine("variance", growth.answer, growth.exponent, *growth.interval))
    except RuleError as refused:
        rows.append(SurveyLine("variance", f"not measured: {refused}"))
    figures["noise_histogram"] = _histogram(sample, alpha, seed)
    return rows


def _curvature(
    objective: Objective,
    few: list[Any],
    optimizer: Any,
    budget: _Budget,
    figures: dict[str, Any],
    seed: int,
) -> list[SurveyLine]:
    """The survey's lines on sharpness and, with an optimizer, on the edge of stability."""
    searches = 1 if optimizer is None else 2
    most = budget.products(0.25 / searches, len(few))
    reading = sharpness(
        objective, few, optimizer=optimizer, both=True, max_products=most, seed=seed
    )
    figures["spectrum"] = _spectrum(reading)
    said = describe_sharpness(reading) + (f"; {reading.unknown}" if reading.unknown else "")
    low, high = reading.interval
    line = SurveyLine(
        "sharpness", said, reading.value, low, high if reading.converged else math.inf
    )
    return [line] if reading.stability is None else [line, _edge(reading, reading.stability)]


def _edge(reading: Sharpness, edge: Stability) -> SurveyLine:
    """The survey's line on the edge of stability."""
    reach = edge.error / edge.threshold
    low, high = edge.ratio - reach, edge.ratio + reach
    fails = True if low > 1 else False if reading.converged and high < 1 else None
    scaled = edge.kind == "preconditioned" or edge.value != reading.value
    what = "the preconditioned sharpness" if scaled else "the sharpness"
    said = (
        f"{what} is {edge.value:.3g}, {edge.ratio:.3g} {_range((low, high))} times the threshold "
        f"of {edge.threshold:.3g}"
    )
    if not reading.converged:
        said += "; it may be larger, because the search did not converge"
        high = math.inf
    return SurveyLine("edge of stability", said, edge.ratio, low, high, "stable step", fails)


def _stationarity(
    objective: Objective, few: list[Any], delta: float, seed: int
) -> list[SurveyLine]:
    """The survey's line on the Goldstein distance."""
    found = goldstein_distance(objective, few, delta, samples=16, seed=seed)
    said = f"some mean of gradients within {delta:g} of here has norm {found.bound:.3g} or less"
    return [SurveyLine("Goldstein distance", said, found.bound)]


def _histogram(sample: NoiseSample, alpha: float, seed: int) -> dict[str, Any]:
    """Densities of the noise norms and of two references: Gaussian noise of the same effective
    dimension and mean square, and stable noise of the estimated index scaled to the same median."""
    norms = sample.norms
    dimension = _dimension(sample)
    rng = numpy_stream(seed, "histogram references")
    draws = 4000
    gaussian = np.sqrt(rng.chisquare(dimension, draws) / dimension * np.mean(norms**2))
    index = float(np.clip(alpha, 1.05, 1.95)) if math.isfinite(alpha) else 1.5
    width = max(1, min(32, round(dimension)))
    stable = np.sqrt(np.square(stable_draws(index, (draws, width), rng)).sum(axis=1))
    stable *= np.median(norms) / np.median(stable)
    top = 1.2 * max(float(norms.max()), float(np.quantile(gaussian, 0.999)))
    edges = np.linspace(0.0, top, 41) if top > 0 else np.linspace(0.0, 1.0, 41)
    width_of = np.diff(edges)

    def density(values: np.ndarray) -> list[float]:
        return (np.histogram(values, edges)[0] / len(values) / width_of).tolist()

    return {
        "edges": edges.tolist(),
        "measured": density(norms),
        "gaussian": density(gaussian),
        "stable": density(stable),
        "norms": norms.tolist(),
        "dimension": dimension,
        "alpha": index,
        "alpha_estimated": bool(math.isfinite(alpha)),
    }


def _dimension(sample: NoiseSample) -> float:
    """(tr C)^2 / tr C^2 of the noise covariance, from inner products of sketches of different
    minibatches.

    A sketch of k random signs adds (tr C)^2 / k to the mean squared inner product; it is taken off
    again.
    """
    sketch = sample.projections.astype(np.float64)
    gram = sketch @ sketch.T
    n, k = sketch.shape
    apart = (gram**2).sum() - (np.diag(gram) ** 2).sum()
    trace = float(np.mean(sample.norms**2))
    if n < 3 or trace == 0:
        return 1.0
    share = apart / (n * (n - 1)) / trace**2 - 1 / k
    return float(np.clip(1 / max(share, 1e-4), 1.0, 1e4))


def _spectrum(reading: Sharpness) -> dict[str, Any]:
    """The numbers of the figure of eigenvalues."""
    edge = reading.stability
    # The threshold belongs on the axis of H only where the step is one number.
    drawn = edge is not None and edge.kind != "preconditioned"
    return {
        "values": list(reading.values),
        "largest": reading.value,
        "error": reading.error,
        "smallest": reading.smallest,
        "threshold": edge.threshold if edge is not None and drawn else math.nan,
        "kind": edge.kind if edge is not None else "",
    }


def _ray(
    objective: Objective, few: list[Any], points: int, figures: dict[str, Any], seed: int
) -> list[SurveyLine]:
    """Local smoothness against gradient norm along one ray up the gradient; the parameters are
    put back.
    """
    read = smoothness_along_ray(objective, few, points=points, seed=seed)
    first, floor = read.smoothness[0], read.noise_floor
    here = SurveyLine(
        "local smoothness",
        f"smoothness along the gradient {first:.3g}, noise floor {floor:.1g}",
        first,
        max(0.0, first - floor),
        first + floor,
    )
    figure = figures["smoothness"] = {
        "gradient_norm": list(read.gradient_norms),
        "smoothness": list(read.smoothness),
        "noise_floor": [floor] * len(read.smoothness),
        "loss": list(read.losses),
    }
    if sum(value > 0 for value in read.smoothness) < 3:
        said = (
            "cannot tell whether smoothness grows: the gradient does not change along the ray, as "
            "for a linear piece "
            "of a loss with kinks"
        )
        return [here, SurveyLine("smoothness and gradient norm", said, assumption="smoothness")]
    fit = fit_relaxed_smoothness(read.gradient_norms, read.smoothness, seed=seed)
    figure |= {"L0": fit.L0, "L1": fit.L1}
    low, high = fit.slope_interval
    fails, said = fit.grows, fit.sentence
    if fails and not low > LEAST_SLOPE:
        fails = False if high < LEAST_SLOPE else None
        word = (
            "no growth of smoothness with the gradient norm that matters"
            if fails is False
            else "cannot tell"
        )
        said = (
            f"{word}: log-log slope {fit.slope:.2f} [{low:.2f}, {high:.2f}], {LEAST_SLOPE:g} is "
            "the border"
        )
    value = (fit.slope, low, high) if fails is not None else (math.nan,) * 3
    return [here, SurveyLine("smoothness and gradient norm", said, *value, "smoothness", fails)]


def _range(interval: tuple[float, float]) -> str:
    """An interval with three digits."""
    return f"[{interval[0]:.3g}, {interval[1]:.3g}]"
