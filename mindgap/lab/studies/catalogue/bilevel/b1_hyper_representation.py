"""B1, B2: hyper-representation on sentence pairs and on reviews, SLIP against the methods of Fig. 1 (SLIP rebuttal).

Many small tasks share an encoder (x); each has a linear head of its own (y), trained on its support set; the encoder is
judged on the query sets. `representation` says why a head a task, and what a minibatch is.

Scale ``cpu`` takes the papers' texts from ``MINDGAP_DATA``: SNLI (B1; 2 of the 3 labels a task; test tasks from SNLI's
test split) and the Amazon reviews (B2; test tasks from a domain of which no review is in training). Scale ``quick``
takes scikit-learn's digits (5 of the 10 classes a task): B1 tests on other images, B2 on images turned by an angle
that training has not seen.

*Differs from the paper*: word vectors of 50 dimensions, averaged and maximised over a text, and two layers of tanh, in
place of a recurrent net on 300 dimensions; linear heads, strongly convex as the theory asks; new heads are trained to
the end for every method alike (the authors' code gives SLIP ten times the others' step there). MAML and ANIL of Fig. 1
are left out: Table 1 has them not. Equal oracle calls for all; what equal epochs would say is told beside it.

*Steps* come from `bilevel_runs.grid_search`, separately for each study and scale: the same grid
and tuning seeds (``GRIDS``, ``TUNING_SEEDS`` there), the same oracle calls and the loss on validation tasks for all
methods. ``python -m mindgap.lab.studies.bilevel_runs b1-hyper-representation quick validation_loss readings=1`` finds
them
again. The smallest loss decides; where it lies at an end of the grid, the notes beside the steps say so.

The pass rule was settled before the first run. The sizes were settled by training the encoder with exact
hypergradients until validation tasks showed that there is something to learn, and by the time that a search takes. The
grid was laid anew during the search, before any run with a seed of the study: wider, because some of the other methods
had chosen its ends, then coarser, for time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from mindgap.base.source import Source
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.representation_runs import CPU, KEYS, QUICK, own_steps, representation_method, rows_of, task_of
from mindgap.lab.studies.spec import Figure, Scale, Study
from mindgap.lab.studies.verdict import Comparison, against_all, by_seed, mean_interval
from mindgap.record.schema import Row, Run, Verdict

#: ends of the grid, the same for every method
TUNABLE = {"lr_x": (0.02, 50.0), "lr_y": (0.2, 2.0)}

CASES = {"train": "training", "test": "test"}


def loop(trial: Trial) -> Iterator[Row]:
    """Run one method to the budget of oracle calls; read accuracies at equal distances of calls."""
    method = representation_method(trial)
    budget, readings = trial["oracle_calls"], trial["readings"]
    yield from rows_of(trial, task_of(trial), method, budget=budget, readings=readings, least=trial["least_steps"])


def judge(runs: Sequence[Run]) -> Verdict:
    """SLIP ahead: its final training and test accuracy above every other method's.

    The differences to each other method, over paired seeds, get intervals that together miss with probability 5 %.
    *holds* if all lie above 0, in training and in test; *does not hold* if one lies below 0; *inconclusive* otherwise.
    """
    groups = by_seed(runs)
    interval = partial(mean_interval, miss=0.05 / (len(CASES) * (len(groups) - 1)))
    common = min(run.rows[-1]["x_epoch"] for group in groups.values() for run in group)
    found: dict[str, Comparison] = {}
    epochs: dict[str, Comparison] = {}
    told, numbers = [], {}
    for case, word in CASES.items():
        column = f"{case}_accuracy"
        ends = {name: np.array([run.rows[-1][column] for run in group]) for name, group in groups.items()}
        early = {name: np.array([at_epoch(run, column, common) for run in group]) for name, group in groups.items()}
        found[word] = against_all(ends, "SLIP", interval)
        epochs[word] = against_all(early, "SLIP", interval)
        place, best = found[word].order.index("SLIP") + 1, found[word].order[0]
        spread = {name: float(values.std(ddof=1)) if len(values) > 1 else 0.0 for name, values in ends.items()}
        told.append(
            f"{word} accuracy of SLIP {ends['SLIP'].mean():.3f} ± {spread['SLIP']:.3f} (place {place} of {len(ends)}; "
            f"best: {best} {ends[best].mean():.3f}), {_stands(found[word])}"
        )
        numbers[word] = {
            "accuracy": {name: float(values.mean()) for name, values in ends.items()},
            "deviation": spread,
            "lead_of_slip": {name: [i.mean, i.low, i.high] for name, i in found[word].leads.items()},
            "accuracy_at_equal_epochs": {name: float(values.mean()) for name, values in early.items()},
            "lead_at_equal_epochs": {name: [i.mean, i.low, i.high] for name, i in epochs[word].leads.items()},
        }
    behind = any(case.behind for case in found.values())
    ahead = all(len(case.ahead) == len(case.leads) for case in found.values())
    verdict = "does not hold" if behind else "holds" if ahead else "inconclusive"
    equal = "; ".join(f"{word} {_stands(case)}" for word, case in epochs.items())
    measured = f"{'; '.join(told)}; at equal epochs ({common:.3g}): {equal}"
    return Verdict(verdict, measured, {**numbers, "equal_epochs": common})


def at_epoch(run: Run, column: str, epoch: float) -> float:
    """A column at an epoch of x, on the line between the readings beside it."""
    return float(np.interp(epoch, run.column("x_epoch"), run.column(column)))


def _stands(found: Comparison) -> str:
    names = f" ({', '.join(found.behind)})" if found.behind else ""
    return f"clearly ahead of {len(found.ahead)}, clearly behind {len(found.behind)}{names} of {len(found.leads)}"


def _study(name: str, claim: str, title: str, texts: str, quick: str, cpu: str) -> Study:
    return Study(
        name=name,
        claim=claim,
        title=f"One encoder for many tasks, {title}: SLIP against six",
        statement=f"Hyper-representation on {texts}: SLIP is ahead of the other bilevel methods in training and test "
        "accuracy (here: averaged word vectors and linear heads in place of recurrent nets; digits at scale quick).",
        source=Source("slip-rebuttal-a", "Fig. 1; A3 to g3Q2"),
        scales={
            "quick": Scale({**QUICK, "data": quick}, seeds=5, methods=own_steps(quick)),
            "cpu": Scale({**CPU, "data": cpu}, seeds=5, methods=own_steps(cpu)),
        },
        methods=KEYS,
        loop=loop,
        judge=judge,
        figures=(
            Figure(
                "Test accuracy",
                "test_accuracy",
                "accuracy on test tasks",
                x="x_epoch",
                caption="New heads, trained to the end on the support sets of tasks that nobody has seen. Same tasks "
                "and start for all methods of a seed; steps from the same grid.",
            ),
            Figure(
                "Training accuracy",
                "train_accuracy",
                "accuracy on training tasks",
                x="x_epoch",
                caption="The method's own heads on the query sets. Switch the x-axis: what is cheap in epochs may be "
                "dear in oracle calls or seconds.",
            ),
            Figure("Loss on validation tasks", "validation_loss", "loss with new heads", x="oracle_calls", log_y=True),
        ),
        tunable=TUNABLE,
        tune_on="validation_loss",
    )


STUDIES = (
    _study("b1-hyper-representation", "B1", "sentence pairs", "SNLI", "digits", "snli"),
    _study("b2-hyper-representation", "B2", "reviews", "the Amazon reviews", "turned digits", "reviews"),
)
