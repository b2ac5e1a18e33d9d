"""E3: where a network over-fits its data, the gradient norm does go to zero (thesis, 6.6.1).

What is judged was settled before the runs. The thesis trains a ResNet on CIFAR-10 from a step of 0.1 that drops by ten
after a half and three quarters, and sees the norm of the whole gradient converge to zero, which it does not on
ImageNet, where the network is too small for the data and the norm stays near its value at the start. Here both
networks learn the same digits with the same schedule (from 0.05, with momentum 0.9), one wide enough to know them all
by heart, the other not. *Goes to zero*: ends at no more than a hundredth of its value at the start. *Stays*: ends at a
tenth or more. *Over-fits*: 99.9 % of the training data are right in the end. All of it is of the whole data, not a
sample: nothing is estimated. Scale ``cpu`` begins at 0.02: in ten thousand steps of 0.05 one of two wide networks was
thrown out of its fit and learnt nothing more, which left the study inconclusive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.base.source import Source
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.spec import Figure, Scale, Study
from mindgap.lab.studies.training_runs import Training
from mindgap.lab.studies.verdict import by_method, last
from mindgap.record.schema import Row, Run, Verdict

ZERO, STAYS, FITTED = 0.01, 0.1, 0.999
WIDE, NARROW = "wide: over-fits", "narrow: does not"


def loop(trial: Trial) -> Iterator[Row]:
    """SGD with momentum and two drops of the step; loss, accuracy and gradient norm of the whole data."""
    import torch

    from mindgap.base.rng import stream_seed
    from mindgap.lab.tasks.problems.training import digits_network

    problem = digits_network(width=trial["width"], seed=stream_seed(trial.seed, "e3"))
    objective, (images, labels), steps = problem.objective, problem.parts["train"], trial["steps"]
    optimizer = torch.optim.SGD(objective.parameters, lr=trial["lr"], momentum=0.9)
    run = Training(problem, optimizer, trial.torch("e3 order"), {})
    done = run.restore(trial.restored)
    for step in range(done, steps + 1):
        # The checkpoint stands between the row and the training step: a restored trial begins with the latter.
        if step % trial["every"] == 0 and not (trial.restored and step == done):
            value, gradient = objective.value_and_grad((images, labels))
            with torch.no_grad():
                right = float((objective.model(images).argmax(dim=1) == labels).double().mean())
            trial.save(lambda: run.state(step))  # noqa: B023
            yield {"step": step, "loss": float(value), "train_accuracy": right,
                   "gradient_norm": float(torch.stack([g.double().square().sum() for g in gradient]).sum().sqrt())}
        if step < steps:
            optimizer.param_groups[0]["lr"] = trial["lr"] * 0.1 ** ((step >= steps / 2) + (step >= 3 * steps / 4))
            run.step(trial)


def judge(runs: Sequence[Run]) -> Verdict:
    """Holds when the over-fitted network's gradient norm ends at a hundredth of its start or less and the other's at a
    tenth or more, for every seed; does not hold when in the median over the seeds the first ends above a tenth or the
    second below a hundredth; inconclusive in between, where the wide network has not over-fitted (some seed), or
    the narrow one has."""
    groups, parts, numbers, share = by_method(runs), [], {}, {}
    for name, group in groups.items():
        first, end = ([run.column("gradient_norm")[i] for run in group] for i in (0, -1))
        share[name] = np.array(end) / np.array(first)
        right = [last(run, "train_accuracy") for run in group]
        numbers[name] = {"first": float(np.median(first)), "last": float(np.median(end)), "right": min(right),
                         "share": float(np.median(share[name])), "most_right": max(right)}
        parts.append(f"{name}: {np.median(right):.1%} of the training data right, gradient norm {np.median(first):.2g} "
                     f"to {np.median(end):.2g} ({share[name].min():.2g} to {share[name].max():.2g} of the start)")
    wide, narrow = share[WIDE], share[NARROW]
    if numbers[WIDE]["right"] < FITTED or numbers[NARROW]["most_right"] >= FITTED:
        verdict = "inconclusive"
        parts.append("the two do not differ in over-fitting")
    elif wide.max() <= ZERO and narrow.min() >= STAYS:
        verdict = "holds"
    else:
        verdict = "does not hold" if np.median(wide) > STAYS or np.median(narrow) < ZERO else "inconclusive"
    return Verdict(verdict, "; ".join(parts), numbers)


_QUICK = {"steps": 2000, "every": 100, "batch": 32, "lr": 0.05, "width": 8}

STUDIES = (
    Study(
        name="e3-over-fitted",
        claim="E3",
        title="The gradient goes to zero where the data are over-fitted",
        statement="Where the network over-fits its data the gradient norm converges to zero, unlike where it does not "
        "(here: two widths of a network on digits).",
        source=Source("thesis", "6.6.1, Fig. 6-7"),
        scales={
            "quick": Scale(_QUICK, seeds=3),
            "cpu": Scale({**_QUICK, "steps": 20000, "every": 500, "lr": 0.02}, seeds=5),
        },
        methods={WIDE: {"width": 8}, NARROW: {"width": 1}},
        loop=loop,
        judge=judge,
        figures=(
            Figure("Norm of the whole gradient", "gradient_norm", "‖∇L_S(θ)‖", log_y=True,
                   caption="The step drops by ten after a half and after three quarters."),
            Figure("Training loss", "loss", "loss", log_y=True),
            Figure("Training accuracy", "train_accuracy", "accuracy on the training data"),
        ),
    ),
)  # fmt: skip
