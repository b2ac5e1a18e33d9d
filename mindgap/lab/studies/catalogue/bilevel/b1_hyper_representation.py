"""B1, B2: hyper-representation on sentence pairs and on reviews, SLIP against the methods of Fig. 1
(SLIP rebuttal).

Many small tasks share an encoder (x); each has a linear head of its own (y), trained on its support
set; the encoder is judged on the query sets. Scale ``cpu`` takes SNLI (B1; 2 of the 3 labels per
task) and the Amazon reviews (B2; test tasks from a domain of which no review is in training) from
``MINDGAP_DATA``. Scale ``quick`` takes scikit-learn's digits (5 of the 10 classes per task): B1
tests on other images, B2 on images turned by an angle not seen in training. Scale ``gpu`` takes the
words of both and a two-layer recurrent encoder, with MAML and ANIL beside the bilevel methods;
scale ``paper`` the published encoder on SNLI for the published 20 epochs, with SLIP, BO-REP and the
two best rivals of the shorter record, judged on 1,000 test tasks. ``mindgap tune b1-hyper-
representation --grid readings=1`` finds the steps again; at scale gpu with ``--scale gpu
oracle_calls=300 readings=1``, at scale paper with ``--scale paper oracle_calls=100 readings=1
tasks=500,50,1``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mindgap.lab.studies.bilevel_runs import read_at_its_solution, trained_gate
from mindgap.lab.studies.representation_runs import (
    CPU,
    FURTHER,
    GPU_GRID,
    GPU_MODELS,
    GPU_SIZES,
    GPU_STEPS,
    KEYS,
    PAPER,
    PAPER_MODELS,
    PAPER_STEPS,
    QUICK,
    SHARED,
    SHORT_PAPER_MODELS,
    own_steps,
    representation_method,
    rows_of,
    task_of,
)
from mindgap.lab.studies.spec import Design, Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import (
    against_all,
    by_seed,
    last_values,
    mean_interval,
    means,
    spread,
    triples,
)

#: Beginning of a column of accuracies -> what sentences call it.
CASES = {"train": "training", "test": "test"}


def loop(trial: Trial) -> Iterator[Row]:
    """Run one method to its budget of ``oracle_calls``, at least for ``least_steps`` iterations.

    Each of the ``readings`` + 1 rows, at equal distances of calls, holds counters (``x_epoch`` and
    others), accuracies on training, validation and test tasks, and the ``validation_loss``.
    """
    task = task_of(trial)
    method = representation_method(trial, task)
    budget, readings = trial["oracle_calls"], trial["readings"]
    yield from rows_of(
        trial, task, method, budget=budget, readings=readings, least=trial["least_steps"]
    )


def judge(runs: Sequence[Run]) -> Parts:
    """Compare SLIP's final training and test accuracy with every other method's, seed by seed.

    Reads the columns ``train_accuracy``, ``test_accuracy`` and ``x_epoch``. Left out of training
    accuracy is a method whose record was read at a variable that learns from the query examples.

    Returns:
        Two parts, training and test: yes where SLIP is above every other method with confidence and
        by at least :data:`SMALLEST` on average. At scales gpu and paper the gate of trained
        encoders stands before them. Accuracies at equal epochs and the gain of :data:`SHARED` (SLIP
        with one lower sample per iteration) are notes that decide nothing.
    """
    parts, runs_of = Parts(), by_seed(runs)
    shared = runs_of.pop(SHARED, None)
    common_epoch = min(run.rows[-1]["x_epoch"] for own_runs in runs_of.values() for run in own_runs)
    if runs[0].header.scale in ("gpu", "paper"):
        test_means = means(last_values(runs_of, "test_accuracy"))
        trained_gate(parts, runs_of[max(test_means, key=test_means.__getitem__)])
    parts.note("", {"equal_epochs": common_epoch})
    # Methods that were read at a variable that learns from the query examples.
    misread = [
        name for name, own_runs in runs_of.items() if not all(map(read_at_its_solution, own_runs))
    ]
    # An epoch of x costs each method another number of calls, so accuracies are also compared at
    # the last epoch that every run reached.
    for case, word in CASES.items():
        column = f"{case}_accuracy"
        left_out = misread if case == "train" else []  # the test trains new heads for every method
        judged = {name: own_runs for name, own_runs in runs_of.items() if name not in left_out}
        final_accuracy = last_values(judged, column)
        accuracy_at_epoch = {
            name: np.array([at_epoch(run, column, common_epoch) for run in own_runs])
            for name, own_runs in judged.items()
        }
        standing = parts.ahead_of_all(
            f"SLIP ahead in {word} accuracy", final_accuracy, "SLIP", SMALLEST
        )
        standing_at_epoch = against_all(accuracy_at_epoch, "SLIP")
        numbers = {
            "accuracy": means(final_accuracy),
            "deviation": {name: spread(values) for name, values in final_accuracy.items()},
            "lead_of_slip": triples(standing.leads),
            "accuracy_at_equal_epochs": means(accuracy_at_epoch),
            "lead_at_equal_epochs": triples(standing_at_epoch.leads),
        }
        parts.note(
            f"at equal epochs ({common_epoch:.3g}) it {standing_at_epoch.words} in {word} accuracy",
            {word: numbers},
        )
        if shared:
            gain = mean_interval([run.rows[-1][column] for run in shared] - final_accuracy["SLIP"])
            parts.note(
                f"with shared samples SLIP ends {gain.words(100)} points above in {word} accuracy",
                {f"gain_of_sharing_in_{word}": gain.triple},
            )
    if misread:
        parts.note(
            f"left out of training accuracy: {', '.join(misread)}, read at a variable that "
            "learns from the query examples",
            {"left_out_of_training": misread},
        )
    return parts


def at_epoch(run: Run, column: str, epoch: float) -> float:
    """A column at an epoch of x, interpolated linearly between the readings beside it."""
    return float(np.interp(epoch, run.column("x_epoch"), run.column(column)))


#: The smallest difference in accuracy that matters.
SMALLEST = 0.005

#: Fig. 1 prints no number: a lead of 1.5 points is assumed. The deviation is that of SLIP's lead
#: over the other contenders in B1's record (0.8 to 1.4 points).
DESIGN = Design(
    "lead",
    false=-100 * SMALLEST,
    paper=1.5,
    deviation=1.5,
    unit="points",
    source="a lead of 1.5 points is assumed, for the figure prints none; deviation of earlier "
    "records of B1",
    parts=10,
    smallest=100 * SMALLEST,
)

#: B2 at scale gpu: SLIP against four rivals in training and test accuracy. Deviations of its leads
#: over them in the record of 8 seeds: 2.9 to 3.5 points in test accuracy, for the test is another
#: domain.
REVIEWS_DESIGN = replace(
    DESIGN,
    deviation=3.3,
    source="a lead of 1.5 points is assumed, for the figure prints none; deviation of the record "
    "of 8 seeds",
    parts=8,
)
#: The rivals of B2 at scale gpu are BO-REP and the three that are best in test accuracy there.
ON_REVIEWS = ("SLIP", "BO-REP", "SABA", "SOBA", "MA-SOBA")

#: Scale paper: SLIP against three rivals in training and test accuracy. Deviations of its leads
#: over them in the record of 2.4 epochs: 0.9 to 1.3 points, with 100 test tasks.
PAPER_DESIGN = replace(
    DESIGN,
    deviation=1.2,
    source="a lead of 1.5 points is assumed, for the figure prints none; deviation of the record "
    "of 2.4 epochs with 100 test tasks",
    parts=6,
)
#: Who runs at scale paper, and how long: 2,000 calls are 20 epochs of SLIP.
CONTENDERS = ("SLIP", "BO-REP", "SABA", "SOBA")
LONG = {**PAPER, "oracle_calls": 2000, "readings": 4, "tasks": [500, 1, 1000], "precision": "half"}


def _length(settings: Mapping[str, Any]) -> str:
    """How long SLIP trains beside the paper's 20 epochs, in words. A step takes five oracle calls,
    an epoch 10 steps with the minibatches of 2 of scale paper and 20 steps otherwise.
    """
    steps_per_epoch = 10 if settings["batch_size"] == 2 else 20
    return f"{settings['oracle_calls'] / 5 / steps_per_epoch:.3g} of 20 epochs (SLIP)"


def _study(name: str, claim: str, title: str, texts: str, quick: str, cpu: str) -> Study:
    """The study of Fig. 1 on one set of texts.

    Args:
        name, claim: of the study.
        title, texts: how title and statement call the texts.
        quick, cpu: the data of these scales. Scale gpu takes the words of the texts of cpu, and
            only "snli" has a scale paper.
    """
    none_of_further = dict.fromkeys(FURTHER, 0)  # the scales quick and cpu lack these methods
    scales = {
        "quick": Scale(
            {**QUICK, "data": quick, "oracle_calls": 375, "readings": 3},
            8,
            methods=own_steps(quick),
            seeds_of=none_of_further,
        ),
        "cpu": Scale({**CPU, "data": cpu}, 8, methods=own_steps(cpu), seeds_of=none_of_further),
    }
    methods = {**KEYS, **FURTHER}
    seeds, no_seeds = 16, {}  # of scale gpu
    if cpu != "snli":
        seeds, no_seeds = 60, {name: 0 for name in methods if name not in ON_REVIEWS}
    scales["gpu"] = Scale(
        GPU_SIZES[cpu],
        seeds,
        methods=GPU_STEPS,
        seeds_of=no_seeds,
        grid=GPU_GRID,
        tuning_seeds=(1000,),
    )
    models = {
        "quick": f"tanh encoder and linear heads on {quick}",
        "cpu": f"averaged word vectors on {cpu}",
        "gpu": GPU_MODELS[cpu],
    }
    if cpu == "snli":
        models["paper"] = SHORT_PAPER_MODELS[cpu].replace(
            "short runs", "steps searched on 100 calls"
        )
        others = {method: 0 for method in methods if method not in CONTENDERS}
        scales["paper"] = Scale(
            LONG, 8, methods=PAPER_STEPS, seeds_of=others, grid=GPU_GRID, tuning_seeds=(1000,)
        )
    return Study(
        name=name,
        claim=claim,
        title=f"One encoder for many tasks, {title}: SLIP against the methods of Fig. 1",
        statement=f"Hyper-representation on {texts}: SLIP is ahead of the other bilevel methods in "
        "training and test "
        "accuracy.",
        source=Source("slip-rebuttal-a", "Fig. 1; A3 to g3Q2"),
        scales=scales,
        methods=methods,
        loop=loop,
        judge=judge,
        rule="SLIP's final training and test accuracy is above every other method's: each paired "
        "difference over at least 8 seeds is above 0, one-sided at 95 %, and at least half a point "
        "on average (all must say so: no correction). Refuted where another method is ahead by at "
        "least half a point on average, at 95 % for all comparisons together. For the test new "
        "heads are trained to the end for every method alike. At scales gpu and paper the best "
        "method's encoder must end two points above its start: otherwise not trained.",
        lengths={"gpu": "16 of 20 epochs (SLIP)", "paper": "20 of 20 epochs (SLIP)"},
        length_of=_length,
        designs={"gpu": DESIGN, "paper": PAPER_DESIGN}
        if cpu == "snli"
        else {"gpu": REVIEWS_DESIGN},
        models=models,
        paper_model=PAPER_MODELS[cpu],
        figures=(
            Figure(
                "Test accuracy",
                "test_accuracy",
                "accuracy on test tasks",
                x="x_epoch",
                caption="New heads, trained to the end on the support sets of tasks kept for "
                "testing. Same "
                "tasks and start for all methods of a seed; steps from the same grid.",
            ),
            Figure(
                "Training accuracy",
                "train_accuracy",
                "accuracy on training tasks",
                x="x_epoch",
                caption="The method's own heads on the query sets. Switch the x-axis: what is "
                "cheap in epochs may "
                "be expensive in oracle calls or seconds.",
            ),
            Figure(
                "Loss on validation tasks",
                "validation_loss",
                "loss with new heads",
                x="oracle_calls",
                log_y=True,
            ),
        ),
        tunable={"lr_x": (0.02, 50.0), "lr_y": (0.2, 2.0)},
        grid={"lr_x": (0.02, 0.1, 0.5, 2.0, 10.0, 50.0), "lr_y": (0.2, 0.6, 2.0)},
        tune_on="validation_loss",
    )


STUDIES = (
    _study("b1-hyper-representation", "B1", "sentence pairs", "SNLI", "digits", "snli"),
    _study(
        "b2-hyper-representation", "B2", "reviews", "the Amazon reviews", "turned digits", "reviews"
    ),
)
