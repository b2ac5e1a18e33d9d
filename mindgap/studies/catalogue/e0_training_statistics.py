"""E0: loss, gradient norm, noise and sharpness of (6.2) along two training runs, from random batches of m samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.base.source import Source
from mindgap.record.schema import Row, Run, Verdict
from mindgap.studies.loop import Trial
from mindgap.studies.spec import Figure, Scale, Study
from mindgap.studies.verdict import by_method

QUANTITIES = ("loss", "gradient_norm", "noise", "sharpness")


def loop(trial: Trial) -> Iterator[Row]:
    """Train, and at every reading estimate the four quantities on m samples and again on another m."""
    import torch

    from mindgap.measure.probes.statistics import training_statistics
    from mindgap.tasks.problems.training import digits_network, prose_transformer

    problem = (digits_network if trial["source"] == "digits" else prose_transformer)(seed=trial.seed)
    optimizer = torch.optim.SGD(problem.objective.parameters, lr=trial["lr"], momentum=0.9)
    order, reader = trial.torch("order"), trial.torch("readings")
    model, before = problem.objective.model, trial.restored
    if before:
        model.load_state_dict(before["model"])
        optimizer.load_state_dict(before["optimizer"])
        order.set_state(before["order"])
        reader.set_state(before["reader"])
    for step in range(before.get("step", 0), trial["steps"] + 1):
        # The checkpoint stands between the row and the training step: a restored trial begins with the latter.
        if step % trial["every"] == 0 and not (before and step == before["step"]):
            found = []
            for _ in range(2):
                batches = problem.batches(reader, trial["m"] // trial["part"], trial["part"])
                found.append(training_statistics(problem.objective, batches, growth=False, seed=trial.seed))
            first, second = found
            trial.save(lambda: {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(),  # noqa: B023
                                "order": order.get_state(), "reader": reader.get_state()})
            yield {"step": step, "samples": first.samples, "seconds": trial.seconds,
                   "gradient_norm_unbiased": first.gradient_norm_unbiased, "noise_low": first.noise_interval[0],
                   "noise_high": first.noise_interval[1],
                   **{q: getattr(first, q) for q in QUANTITIES},
                   **{f"{q}_again": getattr(second, q) for q in QUANTITIES}}
        if step < trial["steps"]:
            with trial.timed():
                optimizer.zero_grad()
                problem.objective.value(problem.draw(order, trial["batch"])).backward()
                optimizer.step()


def judge(runs: Sequence[Run]) -> Verdict:
    """Holds when two independent batches of m samples agree within a fifth in nine of ten readings, for each quantity
    on each network; inconclusive (m is too small) when they agree within a factor 2 only."""
    parts, numbers, closely, roughly = [], {}, True, True
    for name, group in by_method(runs).items():
        shares = {}
        for quantity in QUANTITIES:
            pairs = np.array([[r[quantity], r[f"{quantity}_again"]] for run in group for r in run.rows])
            shares[quantity] = float(np.mean(np.abs(pairs[:, 0] - pairs[:, 1]) <= 0.2 * pairs.mean(axis=1)))
            roughly &= bool(np.mean(pairs.max(axis=1) <= 2 * pairs.min(axis=1)) >= 0.9)
        first, final = (np.median([run.column("gradient_norm_unbiased")[i] for run in group]) for i in (0, -1))
        losses = [float(np.median([run.column("loss")[i] for run in group])) for i in (0, -1)]
        numbers[name] = {**shares, "gradient_first": float(first), "gradient_last": float(final)}
        closely &= min(shares.values()) >= 0.9
        agree = ", ".join(f"{quantity.replace('_', ' ')} {share:.0%}" for quantity, share in shares.items())
        parts.append(f"{name}: two batches of m agree in {agree}; loss {losses[0]:.2f} to {losses[1]:.2f}, "
                     f"gradient norm {first:.2g} to {final:.2g}")
    verdict = "holds" if closely else "inconclusive" if roughly else "does not hold"
    return Verdict(verdict, "; ".join(parts), numbers)


_QUICK = {"steps": 120, "every": 60, "batch": 16, "m": 256, "part": 32, "lr": 0.05, "source": "digits"}

STUDIES = (
    Study(
        name="e0-training-statistics",
        claim="E0",
        title="Four statistics along two training runs",
        statement="Loss, gradient norm, noise and sharpness of (6.2) can be read off during training from a random "
        "batch of m samples.",
        source=Source("thesis", "(6.2), 6.6.2"),
        scales={
            "quick": Scale(_QUICK, seeds=2),
            "cpu": Scale({**_QUICK, "steps": 4000, "every": 200, "m": 2048}, seeds=3),
        },
        methods={"convolutional network": {"source": "digits"}, "transformer": {"source": "prose"}},
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
