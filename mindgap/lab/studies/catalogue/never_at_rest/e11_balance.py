"""E11: the balance Grad² = η·Σ·𝓛·G of (6.10), and sharpness against 2/η, where training has settled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from mindgap.base.source import Source
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.spec import Figure, Scale, Study
from mindgap.lab.studies.training_runs import Training, has_settled
from mindgap.lab.studies.verdict import by_method
from mindgap.record.schema import Row, Run, Verdict

#: The sides of an equation agree when their ratio lies within this factor of 1.
FACTOR = 2.0


def loop(trial: Trial) -> Iterator[Row]:
    """Plain SGD with a fixed step; at every reading both sides of (6.10) and η𝓛/2."""
    import torch

    from mindgap.lab.tasks.problems.training import digits_network, prose_transformer
    from mindgap.measure.probes.statistics import equilibrium, training_statistics

    small = trial["source"] == "digits"
    problem = digits_network(width=trial["width"], seed=trial.seed) if small else prose_transformer(seed=trial.seed)
    lr, batch, reader = trial["lr"], trial["batch"], trial.torch("readings")
    optimizer = torch.optim.SGD(problem.objective.parameters, lr=lr)
    run = Training(problem, optimizer, trial.torch("order"), {"reader": reader})
    for step in range(run.restore(trial.restored) + 1, trial["steps"] + 1):
        run.step(trial)
        if step % trial["every"] == 0:
            batches = problem.batches(reader, trial["m"] // trial["part"], trial["part"])
            found = training_statistics(problem.objective, batches, growth=False, tol=1e-2, seed=trial.seed)
            balance = equilibrium(found, lr, batch)
            moment = balance.left + found.noise**2 / batch
            trial.save(lambda: run.state(step))  # noqa: B023
            yield {"step": step, "seconds": trial.seconds, "loss": found.loss, "left": balance.left,
                   "right": balance.right, "ratio": balance.ratio, "edge": balance.edge, "lr": lr,
                   "sharpness": found.sharpness, "mended_ratio": balance.left / (lr * found.sharpness * moment / 2)}


def judge(runs: Sequence[Run]) -> Verdict:
    """Of the runs whose loss has settled: the ratio of both sides is within a factor 2 of 1 in the median of the last
    half of readings, for every network and step, and the sharpness there falls as the step grows. Inconclusive where
    a network has fewer than two settled steps."""
    parts, numbers, holds, enough = [], {}, True, True
    networks: dict[str, list[tuple[float, float, float, float, float]]] = {}
    for name, group in by_method(runs).items():
        late = [run.rows[len(run.rows) // 2 :] for run in group]
        medians = {key: float(np.median([r[key] for rows in late for r in rows]))
                   for key in ("ratio", "mended_ratio", "edge", "sharpness")}
        settled = has_settled(np.mean([run.column("loss") for run in group], axis=0))
        numbers[name] = {**medians, "settled": settled}
        if settled:
            lr = late[0][0]["lr"]
            networks.setdefault(name.split(",")[0], []).append((lr, *medians.values()))
    for name in dict.fromkeys(method.split(",")[0] for method in by_method(runs)):
        found = sorted(networks.get(name, []))
        enough &= len(found) >= 2
        falls = all(a[4] > b[4] for a, b in pairwise(found))
        holds &= falls and all(1 / FACTOR <= ratio <= FACTOR for _, ratio, *_ in found)
        texts = [f"step {lr:g}: Grad²/(ηΣ𝓛G) {ratio:.2g}, Grad²/(η𝓛G²/2) {mended:.2g}, η𝓛/2 {edge:.2g}"
                 for lr, ratio, mended, edge, _ in found]
        parts.append(f"{name}: {'; '.join(texts) or 'no step settled'}; sharpness "
                     f"{'falls' if falls else 'does not fall'} with the step")
    verdict = "inconclusive" if not enough else "holds" if holds else "does not hold"
    return Verdict(verdict, ". ".join(parts), numbers)


_STEPS = (0.03, 0.1, 0.3)
_QUICK = {"steps": 1200, "every": 150, "batch": 16, "m": 128, "part": 32, "lr": 0.1, "width": 2, "source": "digits"}

STUDIES = (
    Study(
        name="e11-balance-and-edge",
        claim="E11",
        title="Grad² = η·Σ·𝓛·G, and the edge of stability",
        statement="Where the loss no longer changes, Grad² = ηΣ𝓛G with gradient norm, noise, sharpness and second "
        "moment of the minibatch gradient; the sharpness falls as the step grows.",
        source=Source("thesis", "(6.10), 6.5.2"),
        scales={
            "quick": Scale(_QUICK, seeds=1),
            "cpu": Scale({**_QUICK, "steps": 20000, "every": 1000, "m": 1024}, seeds=3),
        },
        methods={
            f"{name}, step {lr:g}": {"source": source, "lr": lr}
            for name, source in (("convolutional network", "digits"), ("transformer", "prose"))
            for lr in _STEPS
        },
        loop=loop,
        judge=judge,
        figures=(
            Figure("Both sides of (6.10)", "ratio", "Grad² / (ηΣ𝓛G)", log_y=True, hlines={"equal": 1.0},
                   caption="(6.10) replaces an inner product by its upper bound: below 1 the bound is not reached."),
            Figure("Distance to the edge of stability", "edge", "sharpness over 2/η", log_y=True, hlines={"edge": 1.0}),
            Figure("Loss along training", "loss", "loss"),
        ),
    ),
)  # fmt: skip
