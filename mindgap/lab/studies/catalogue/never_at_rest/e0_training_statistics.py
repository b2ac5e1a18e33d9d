"""E0: loss, gradient norm, noise and sharpness of (6.2) along two training runs, from random batches of m samples.

What is judged was settled before these runs were made, from the thesis alone. m is its share of the data: 1.6e5 of
ImageNet's 1.28e6 images, an eighth, is 224 of 1,797 digits; 9e5 of WikiText-103's 1.03e8 tokens is 448 windows of 16
words of the prose (6.6.2, in whole parts of 32). It claims a precision "high enough" for its observations, which are
about factors: two independent batches are asked to agree within a fifth in nine of ten readings. It also says that
the sharpness of its image network varied too much to be commented on; it is judged here like the others. An earlier
form of this study had another m and a softer rule; its random numbers are not used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import comb

import numpy as np

from mindgap.base.source import Source
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.spec import Figure, Scale, Study
from mindgap.lab.studies.training_runs import Training
from mindgap.lab.studies.verdict import by_method
from mindgap.record.schema import Row, Run, Verdict

QUANTITIES = ("loss", "gradient_norm", "noise", "sharpness")


def loop(trial: Trial) -> Iterator[Row]:
    """Train, and at every reading estimate the four quantities on m samples and again on another m."""
    import torch

    from mindgap.base.rng import stream_seed
    from mindgap.lab.tasks.problems.training import digits_network, prose_transformer
    from mindgap.measure.probes.statistics import training_statistics

    problem = (digits_network if trial["source"] == "digits" else prose_transformer)(seed=stream_seed(trial.seed, "e0"))
    optimizer = torch.optim.SGD(problem.objective.parameters, lr=trial["lr"], momentum=0.9)
    reader = trial.torch("e0 readings")
    run = Training(problem, optimizer, trial.torch("e0 order"), {"reader": reader})
    done = run.restore(trial.restored)
    for step in range(done, trial["steps"] + 1):
        # The checkpoint stands between the row and the training step: a restored trial begins with the latter.
        if step % trial["every"] == 0 and not (trial.restored and step == done):
            found = []
            for _ in range(2):
                batches = problem.batches(reader, trial["m"] // trial["part"], trial["part"])
                found.append(training_statistics(problem.objective, batches, growth=False, seed=trial.seed))
            first, second = found
            trial.save(lambda: run.state(step))  # noqa: B023
            yield {"step": step, "samples": first.samples, "seconds": trial.seconds,
                   "gradient_norm_unbiased": first.gradient_norm_unbiased, "noise_low": first.noise_interval[0],
                   "noise_high": first.noise_interval[1],
                   **{q: getattr(first, q) for q in QUANTITIES},
                   **{f"{q}_again": getattr(second, q) for q in QUANTITIES}}
        if step < trial["steps"]:
            run.step(trial)


def judge(runs: Sequence[Run]) -> Verdict:
    """Holds when two independent batches of m samples agree within a fifth in nine of ten readings, for each quantity
    on each network. It does not hold when some share is so low that a true share of nine in ten would give it with a
    probability below 5 %; in between the readings are too few to say."""
    parts, numbers, holds, refuted = [], {}, True, False
    for name, group in by_method(runs).items():
        shares = {}
        for quantity in QUANTITIES:
            pairs = np.array([[r[quantity], r[f"{quantity}_again"]] for run in group for r in run.rows])
            agree = np.abs(pairs[:, 0] - pairs[:, 1]) <= 0.2 * pairs.mean(axis=1)
            shares[quantity] = float(np.mean(agree))
            holds &= shares[quantity] >= 0.9
            refuted |= _at_most(int(agree.sum()), len(agree), 0.9) < 0.05
        first, final = (np.median([run.column("gradient_norm_unbiased")[i] for run in group]) for i in (0, -1))
        losses = [float(np.median([run.column("loss")[i] for run in group])) for i in (0, -1)]
        ends = {"gradient_first": float(first), "gradient_last": float(final)}
        numbers[name] = {**shares, "readings": len(agree), **ends}
        said = ", ".join(f"{quantity.replace('_', ' ')} {share:.0%}" for quantity, share in shares.items())
        parts.append(f"{name}: two batches of m agree in {said} of {len(agree)} readings; loss {losses[0]:.2f} to "
                     f"{losses[1]:.2f}, gradient norm {first:.2g} to {final:.2g}")
    verdict = "holds" if holds else "does not hold" if refuted else "inconclusive"
    return Verdict(verdict, "; ".join(parts), numbers)


def _at_most(successes: int, trials: int, share: float) -> float:
    """Probability of so few successes."""
    return sum(comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(successes + 1))


_QUICK = {"steps": 120, "every": 40, "batch": 16, "m": 224, "part": 32, "lr": 0.05, "source": "digits"}

STUDIES = (
    Study(
        name="e0-training-statistics",
        claim="E0",
        title="Four statistics along two training runs",
        statement="Loss, gradient norm, noise and sharpness of (6.2) can be read off during training from a random "
        "batch of m samples.",
        source=Source("thesis", "(6.2), 6.6.2"),
        scales={
            "quick": Scale(_QUICK, seeds=3),
            "cpu": Scale({**_QUICK, "steps": 4000, "every": 200}, seeds=3),
        },
        methods={"convolutional network": {"source": "digits", "m": 224}, "transformer": {"source": "prose", "m": 448}},
        loop=loop,
        judge=judge,
        figures=tuple(
            Figure(f"{title} along training", column, title.lower(), log_y=log)
            for title, column, log in (
                ("Loss", "loss", False), ("Gradient norm", "gradient_norm_unbiased", True), ("Noise", "noise", True),
                ("Sharpness", "sharpness", True),
            )
        ),
    ),
)  # fmt: skip
