"""Everything measured once: what ``mindgap measure`` writes, as plain sentences and as data for its figures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mindgap.base.check import RuleError, fail, positive, whole
from mindgap.base.objective import Objective
from mindgap.base.rng import numpy_stream
from mindgap.measure.distributions import stable_draws
from mindgap.measure.gradients import NonFiniteError, gradient_passes, passes_mean
from mindgap.measure.probes.curvature import Sharpness, describe_sharpness, sharpness
from mindgap.measure.probes.noise import NoiseSample, noise_sample
from mindgap.measure.probes.smoothness import local_smoothness
from mindgap.measure.probes.stationarity import goldstein_distance
from mindgap.measure.probes.statistics import training_statistics
from mindgap.measure.probes.tails import tail_table
from mindgap.measure.probes.variance import variance_growth
from mindgap.measure.relaxed_smoothness import fit_relaxed_smoothness
from mindgap.measure.undisturbed import undisturbed
from mindgap.record.schema import to_json
from mindgap.record.store import write_atomically

#: Version of the written form.
SURVEY_SCHEMA = 1
#: What a survey measures, one after the other.
PARTS = ("training statistics", "gradient noise", "sharpness", "smoothness", "Goldstein distance")
#: Length of the sketch from which the noise's effective dimension is read.
SKETCH = 256


@dataclass(frozen=True)
class Finding:
    """One line of the table: a quantity and what was found, in words and as a number with its interval."""

    quantity: str
    sentence: str
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Survey:
    """What ``survey`` found.

    Attributes:
        findings: the table of plain sentences.
        figures: name -> data of a figure: ``noise_histogram``, ``variance_growth``, ``smoothness``, ``spectrum``,
            ``settling``. A figure whose measurement was refused is missing, and its sentence says why.
        about: size of the model and of the sample, and the seconds it took.
    """

    findings: tuple[Finding, ...]
    figures: dict[str, Any]
    about: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Numbers, texts, lists and mappings only: what is written as JSON and drawn without torch."""
        return {
            "kind": "survey",
            "schema": SURVEY_SCHEMA,
            "about": dict(self.about),
            "findings": [asdict(f) for f in self.findings],
            "figures": self.figures,
        }

    def write(self, path: str | Path) -> Path:
        """Write the JSON file that the page is drawn from; whole or not at all."""
        path = Path(path)
        write_atomically(path, to_json(self.to_dict(), indent=1) + "\n")
        return path


def survey(
    objective: Objective,
    batches: Iterable[Any],
    *,
    optimizer: Any = None,
    limit: int = 512,
    curvature_batches: int = 8,
    path_steps: int = 24,
    delta: float = 0.01,
    seed: int = 0,
    finished: Callable[[str], Any] | None = None,
) -> Survey:
    """Measure everything once at the model's point: noise, tails, smoothness, curvature, stationarity, (6.2).

    What cannot be measured (too few batches for a tail, batch norm for single samples) gets a sentence that says so;
    a NaN loss is an error. The model is left as it was found.

    Args:
        objective, batches: the problem; the first ``limit`` batches are held. 128 or more tell a tail from none.
        optimizer: whose edge of stability to report.
        limit: batches used for the noise.
        curvature_batches: of them, how many for sharpness, smoothness and the Goldstein distance.
        path_steps: points of the smoothness scatter, along gradient descent with step 1/sharpness from here (the
            parameters are put back).
        delta: radius of the Goldstein distance.
        seed: names all random numbers.
        finished: called with the name of each of ``PARTS`` when it is done, for a progress bar.

    Raises:
        RuleError: no batches, and what ``gradient_passes`` refuses. NonFiniteError: a NaN loss or gradient.

    Example:
        >>> problem = Objective(torch.nn.Linear(4, 1).double(), lambda m, b: m(b).square().mean())
        >>> found = survey(problem, list(torch.randn(6, 8, 4).double()), path_steps=10)
        >>> found.findings[0].quantity, sorted(found.figures)
        ('loss', ['noise_histogram', 'settling', 'smoothness', 'spectrum'])
    """
    whole("limit", limit, least=2)
    whole("curvature_batches", curvature_batches, least=1)
    whole("path_steps", path_steps, least=3)
    positive("delta", delta)
    begin = time.perf_counter()
    with undisturbed(objective.model, batches):
        held = list(islice(iter(batches), limit))
    if not held:
        fail("batches", "must give at least one batch", batches)
    with gradient_passes(objective, held[:1], seed=seed) as passes:
        passes_mean(passes)  # what no part could measure is an error here, not a sentence in every row
    few = held[:curvature_batches]
    findings: list[Finding] = []
    figures: dict[str, Any] = {}

    def part(quantity: str, measure: Callable[[], list[Finding]]) -> None:
        try:
            findings.extend(measure())
        except NonFiniteError:
            raise
        except RuleError as refused:
            findings.append(Finding(quantity, f"not measured: {refused}"))
        if finished is not None:
            finished(quantity)

    part("training statistics", lambda: _statistics(objective, held[:16], figures, seed))
    part("gradient noise", lambda: _noise(objective, held, figures, seed))
    readings: list[Sharpness] = []

    def curvature() -> list[Finding]:
        reading = sharpness(objective, few, optimizer=optimizer, both=True, seed=seed)
        readings.append(reading)
        figures["spectrum"] = _spectrum(reading)
        said = describe_sharpness(reading)
        if reading.unknown:
            said += f"; {reading.unknown}"
        return [Finding("sharpness", said, reading.value, *reading.interval)]

    part("sharpness", curvature)
    rate = 1 / readings[0].norm if readings and readings[0].norm > 0 else 1.0
    part("smoothness", lambda: _path(objective, few, path_steps, rate, figures, seed))

    def stationarity() -> list[Finding]:
        found = goldstein_distance(objective, few, delta, samples=16, seed=seed)
        said = f"some mean of gradients within {delta:g} of here has norm {found.bound:.3g} or less"
        return [Finding("Goldstein distance", said, found.bound)]

    part("Goldstein distance", stationarity)
    about = {
        "parameters": sum(p.numel() for p in objective.parameters),
        "tensors": len(objective.parameters),
        "batches": len(held),
        "device": str(objective.parameters[0].device),
        "dtype": str(objective.parameters[0].dtype).removeprefix("torch."),
        "seconds": round(time.perf_counter() - begin, 3),
        "seed": seed,
    }
    return Survey(tuple(findings), figures, about)


def _statistics(objective: Objective, held: list[Any], figures: dict[str, Any], seed: int) -> list[Finding]:
    found = training_statistics(objective, held, seed=seed)
    figures["settling"] = [asdict(row) for row in found.growth]
    times = found.noise / found.gradient_norm_unbiased if found.gradient_norm_unbiased else math.inf
    settled = ", ".join(f"{name.replace('_', ' ')} {'yes' if ok else 'no'}" for name, ok in found.settled.items())
    low, high = found.gradient_norm_interval
    way = "" if found.per == "sample" else ", from minibatches"
    return [
        Finding(
            "loss", f"loss {found.loss:.4g} {_range(found.loss_interval)} on {found.samples} samples", found.loss,
            *found.loss_interval,
        ),
        Finding(
            "gradient norm",
            f"gradient norm {found.gradient_norm_unbiased:.3g} {_range((low, high))} "
            f"(before the correction for noise {found.gradient_norm:.3g})", found.gradient_norm_unbiased, low, high,
        ),
        Finding(
            "noise", f"noise of one sample {found.noise:.3g} {_range(found.noise_interval)}{way}: "
            f"{times:.3g} times the gradient norm", found.noise, *found.noise_interval,
        ),
        Finding("settling", f"changed by less than 10 % when the sample last doubled: {settled or 'one batch only'}"),
    ]  # fmt: skip


def _noise(objective: Objective, held: list[Any], figures: dict[str, Any], seed: int) -> list[Finding]:
    sample = noise_sample(objective, held, seed=seed, projections=SKETCH)
    rows = []
    alpha = math.nan
    try:
        table = tail_table(sample, seed=seed)
        alpha = next(t.index for t in table if t.method == "stable")
        rows += [Finding(f"tail, {t.method}", f"{t.answer} ({t.method})", t.index, *t.interval) for t in table]
    except RuleError as refused:
        rows.append(Finding("tail", f"not measured: {refused}"))
    try:
        growth = variance_growth(sample, seed=seed)
        names = ("sizes", "running", "low", "median", "high")
        figures["variance_growth"] = {name: getattr(growth, name).tolist() for name in names}
        rows.append(Finding("variance", growth.answer, growth.exponent, *growth.interval))
    except RuleError as refused:
        rows.append(Finding("variance", f"not measured: {refused}"))
    figures["noise_histogram"] = _histogram(sample, alpha, seed)
    return rows


def _histogram(sample: NoiseSample, alpha: float, seed: int) -> dict[str, Any]:
    """Densities of the noise norms and of two references: Gaussian noise of the same effective dimension and mean
    square, and stable noise of the estimated index scaled to the same median."""
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
    """(tr C)^2 / tr C^2 of the noise covariance, from inner products of sketches of different minibatches.

    A sketch of k random signs adds (tr C)^2 / k to the mean squared inner product; it is taken off again.
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


def _path(
    objective: Objective, few: list[Any], steps: int, rate: float, figures: dict[str, Any], seed: int
) -> list[Finding]:
    """Local smoothness along gradient descent from here; the parameters are put back."""
    rows = []
    with undisturbed(objective.model, parameters=True):
        for _ in range(steps):
            with gradient_passes(objective, few, seed=seed) as passes:
                step = [-rate * g for g in passes_mean(passes)]
            if not any(bool(d.any()) for d in step):
                break
            reading = local_smoothness(objective, few, step, seed=seed)
            rows.append((reading.gradient_norm, reading.value, reading.curvature, reading.noise_floor, reading.loss))
            with torch.no_grad():
                for p, d in zip(objective.parameters, step, strict=True):
                    p.add_(d)
    if not rows:
        fail("gradient", "must not be zero for a path to start", 0.0)
    names = ("gradient_norm", "smoothness", "curvature", "noise_floor", "loss")
    figure: dict[str, Any] = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    figures["smoothness"] = figure
    first = rows[0]
    here = Finding(
        "local smoothness", f"smoothness along the gradient step {first[1]:.3g}, noise floor {first[3]:.1g}",
        first[1], max(0.0, first[1] - first[3]), first[1] + first[3],
    )  # fmt: skip
    fit = fit_relaxed_smoothness(figure["gradient_norm"], figure["smoothness"], seed=seed)
    figure |= {"L0": fit.L0, "L1": fit.L1}
    return [here, Finding("smoothness and gradient norm", fit.sentence, fit.slope, *fit.slope_interval)]


def _range(interval: tuple[float, float]) -> str:
    return f"[{interval[0]:.3g}, {interval[1]:.3g}]"
