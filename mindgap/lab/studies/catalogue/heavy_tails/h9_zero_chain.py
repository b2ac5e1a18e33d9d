"""H9: no method gets below ε on the zero-chain of Theorem 4.4.4 in the stated steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from mindgap.lab import theory
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Source, Study, Trial, scales
from mindgap.lab.studies.verdict import rows_by_method, slope
from mindgap.record.schema import grouped

#: How far the fitted power may be from the stated one, relatively; the rule has it.
NEAR = 0.15


def loop_chain(trial: Trial) -> Iterator[Row]:
    """Run a zero-respecting method, one that moves only along coordinates it has seen, on the
    scaled chain of dimension d with an oracle that shows a new coordinate with probability p.

    A row per ``alpha`` and ``epsilon`` holds d, p, the stated number of steps (d-1)/(2p), the steps
    that were ``run``, the ``ratio`` of the least mean ‖∇f(x_k)‖ over the replicas, four standard
    errors added, to ε, and the share of replicas that ``finished`` the chain.
    """
    for alpha, epsilon in trial.cells(product(trial["alphas"], trial["epsilons"])):
        chain = theory.HardChain(alpha, 1.0, trial["delta"], _moment(alpha, trial), epsilon)
        rng = trial.numpy_generator(f"chain {alpha} {epsilon}")
        steps = int(min(chain.steps * trial["stretch"], trial["limit"]))
        x, least_norm = np.zeros((trial["replicas"], chain.dimension)), math.inf
        with trial.timed():
            for _ in range(steps + 1):
                exact = chain.gradient(x)
                norms = np.linalg.norm(exact, axis=1)
                upper_end = norms.mean() + 4 * norms.std() / math.sqrt(len(norms))
                least_norm = min(least_norm, float(upper_end))
                # 1: the oracle shows the run's next coordinate. The oracle reads unscaled points.
                coins = (rng.random(len(x)) < chain.probability).astype(float)
                gradient = chain.oracle.with_noise(exact, x / chain.scale, coins)
                x = x - trial["step"] * _direction(trial["rule"], gradient, chain)
        yield {
            "alpha": alpha,
            "epsilon": epsilon,
            "dimension": chain.dimension,
            "probability": chain.probability,
            "steps": chain.steps,
            "run": steps,
            "ratio": least_norm / epsilon,
            "finished": float((theory.prog(x / chain.scale, 0.0) >= chain.dimension).mean()),
        }


def _moment(alpha: float, trial: Trial) -> float:
    """The moment G with which the chain's p is 1/2 at the trial's largest ε (a little less, for
    rounding), from 5000 ε^α p^(1-α) = (G - 4√Δ)^α. The number of steps then grows by the stated
    power as ε falls.
    """
    margin = max(trial["epsilons"]) * 5000 ** (1 / alpha) * 2 ** ((alpha - 1) / alpha)
    return 4 * math.sqrt(trial["delta"]) + margin * (1 + 1e-9)


def _direction(rule: str, gradient: np.ndarray, chain: Any) -> np.ndarray:
    """The direction of SGD, GClip or sign descent. All of them are 0 in coordinates in which the
    gradient is 0.

    Args:
        rule: "sgd", "gclip" or, for sign descent, any other name.
        gradient: stochastic gradients, shape (replicas, d).
        chain: has the moment ``G``, GClip's threshold, and the length ``scale``.
    """
    if rule == "sgd":
        return gradient
    if rule == "gclip":
        return np.asarray(theory.clip_global(gradient, chain.G))
    return np.sign(gradient) * chain.scale


def judge_chain(runs: Sequence[Run]) -> Parts:
    """Ask whether E‖∇f‖ stays above ε for all stated steps, and whether their number grows as
    stated.

    Returns:
        One part per method: no ``ratio`` of the least E‖∇f‖ to ε, four standard errors allowed for,
        is below 1. One part per α: the fitted power of 1/ε in the number of ``steps`` is
        (3α-2)/(α-1) within :data:`NEAR`.
    """
    parts, table = Parts(), rows_by_method(runs)
    for name, rows in table.items():
        least_ratio = min(row["ratio"] for row in rows)
        parts.add(
            f"{name} stays above ε",
            holds=least_ratio >= 1,
            words=f"least E‖∇f‖/ε {least_ratio:.2f}",
            numbers={
                name: {"least_ratio": least_ratio, "finished": max(row["finished"] for row in rows)}
            },
        )
    powers = {}
    # All methods run on the same chains: the rows of the first one name them all.
    by_alpha = grouped((row["alpha"], row) for row in next(iter(table.values())))
    for alpha, rows_of_alpha in sorted(by_alpha.items()):
        epsilons, steps = ([row[name] for row in rows_of_alpha] for name in ("epsilon", "steps"))
        power = powers[alpha] = -slope(np.log(epsilons), np.log(steps))[0]
        stated = (3 * alpha - 2) / (alpha - 1)
        # ⌊·⌋ and d - 1 bend the line at small d
        parts.add(
            f"α={alpha:g}: steps grow as stated",
            holds=abs(power / stated - 1) < NEAR,
            words=f"ε^-{power:.2f}, stated {stated:.2f}",
        )
    parts.note("", {"powers": {f"alpha={order:g}": exponent for order, exponent in powers.items()}})
    return parts


H9_ZERO_CHAIN = Study(
    name="h9-zero-chain",
    claim="H9",
    title="No method gets below ε on the zero-chain in the stated steps",
    statement="On the scaled zero-chain E‖∇f(x_k)‖ >= ε for all k <= (d-1)/(2p), a number of "
    "steps of order ε^(-(3α-2)/(α-1)).",
    source=Source("thesis", "Theorem 4.4.4, 4.7.7"),
    scales=scales(
        {
            "alphas": [1.5, 1.8, 2.0],
            "epsilons": [0.25, 0.18, 0.125],
            "delta": 7296.0,
            "replicas": 50,
            "step": 3.0,
            "stretch": 1.0,
            "limit": 20_000,
        },
        {"epsilons": [0.25, 0.18, 0.125, 0.09], "replicas": 100},
    ),
    methods={
        "SGD": {"rule": "sgd"},
        "GClip": {"rule": "gclip"},
        "sign descent": {"rule": "sign", "step": 1.0},
    },
    loop=loop_chain,
    judge=judge_chain,
    rule="E‖∇f(x_k)‖ stays above ε for all stated steps and methods, and the "
    "number of steps grows with an exponent within 15 % of (3α-2)/(α-1).",
    figures=(
        Figure(
            "Least gradient over all stated steps",
            "ratio",
            "least E‖∇f(x_k)‖ / ε",
            x="steps",
            x_label="stated steps (d-1)/(2p)",
            log_x=True,
            facet="alpha",
            hlines={"ε": 1.0},
            caption="For so many steps the gradient stays above ε, whatever a method does with "
            "what it saw.",
        ),
    ),
)
