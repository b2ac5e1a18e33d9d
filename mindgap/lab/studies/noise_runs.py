"""What the studies of gradient noise share: rows about a sample of noise norms, controls, and answers as numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mindgap.lab.studies.spec import Row, Trial
from mindgap.lab.theory.noise import Stable

#: Answers of *nearly all* seeds: four of five.
NEARLY_ALL = 0.8


def histogram_rows(norms: np.ndarray[Any, Any]) -> Iterator[Row]:
    """The histogram of norm over median norm in steps of a tenth, up to four medians."""
    counts, edges = np.histogram(norms / np.median(norms), bins=np.linspace(0.0, 4.0, 41))
    for count, left, right in zip(counts, edges, edges[1:], strict=False):
        yield {"norm": (left + right) / 2, "share": count / len(norms)}


def norm_rows(trial: Trial, norms: np.ndarray[Any, Any]) -> Iterator[Row]:
    """Histogram, variance against sample size, tail index by four methods; a last row with what is judged."""
    from mindgap.measure.probes.tails import tail_table
    from mindgap.measure.probes.variance import variance_growth

    yield from histogram_rows(norms)
    growth = variance_growth(norms, bootstrap=60, shuffles=20, seed=trial.seed)
    for size, running, middle in zip(growth.sizes, growth.running, growth.median, strict=True):
        final = growth.running[-1]
        yield {"minibatches": int(size), "variance": running / final, "median_variance": middle / final}
    for place, tail in enumerate(tail_table(norms, bootstrap=100, null=100, seed=trial.seed)):
        # An infinite index (no power law at all) is drawn at 1000.
        low, high, index, *null = (min(v, 1e3) for v in (*tail.interval, tail.index, *tail.null))
        yield {"estimator": tail.method, "place": place, "index": index, "low": low, "high": high,
               "null_low": null[0], "null_middle": null[1], "null_high": null[2], "p_value": tail.p_value,
               f"{tail.method}_heavier": number(tail.heavier), f"{tail.method}_index": index, "answer": tail.answer}
    yield {"settles": number(growth.settles), "exponent": growth.exponent, "exponent_low": growth.interval[0],
           "exponent_high": growth.interval[1], "largest": float(norms.max() / np.median(norms)),
           "largest_share": growth.largest_share, "answer": growth.answer}  # fmt: skip


def control_norms(trial: Trial, law: str) -> np.ndarray[Any, Any]:
    """Norms of the trial's ``minibatches`` vectors of 100 independent numbers, ``"gaussian"`` or symmetric stable of
    index 1.5 (acclip, Fig. 2 b and e)."""
    rng, shape = trial.numpy_generator("control"), (trial["minibatches"], 100)
    if law == "gaussian":
        return np.linalg.norm(rng.standard_normal(shape), axis=1)
    return np.linalg.norm(Stable(index=1.5).unit_sample(rng, shape), axis=1)


def number(answer: bool | None) -> float:
    """Yes 1, no 0, cannot tell 1/2.

    Example:
        >>> number(True), number(False), number(None)
        (1.0, 0.0, 0.5)
    """
    return 0.5 if answer is None else float(answer)


def word(answer: float) -> str:
    """The answer of a number.

    Example:
        >>> word(1.0), word(0.0), word(0.5)
        ('yes', 'no', 'cannot tell')
    """
    return "yes" if answer == 1.0 else "no" if answer == 0.0 else "cannot tell"


def of_nearly_all(answers: Sequence[float]) -> float:
    """The answer of at least four in five seeds; 1/2 if there is none, or if there are fewer than three seeds.

    Example:
        >>> of_nearly_all([1.0, 1.0, 1.0, 1.0, 0.0]), of_nearly_all([1.0, 1.0, 0.0]), of_nearly_all([1.0, 1.0])
        (1.0, 0.5, 0.5)
    """
    if len(answers) < 3:
        return 0.5
    shares = {answer: float(np.mean([a == answer for a in answers])) for answer in (1.0, 0.0)}
    return next((answer for answer, share in shares.items() if share >= NEARLY_ALL), 0.5)
