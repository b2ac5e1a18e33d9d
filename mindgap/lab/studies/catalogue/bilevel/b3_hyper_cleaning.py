"""B3, B4: data hyper-cleaning with all methods, at corruption 0.2 and 0.4 (SLIP rebuttal, Fig. 2).

Scale ``quick`` takes scikit-learn's digits (16 principal components), ``cpu`` all their pixels and
more calls; ``gpu`` and ``paper`` a two-layer recurrent net on Sentiment140. Which labels are
corrupted is drawn once per seed; the upper level sees clean samples only. A method whose budget
does not pay for ``least_steps`` iterations (SVRB: 640 calls each) makes them all the same; the
record says at what cost. ``mindgap tune b3-hyper-cleaning --grid corruption=0.3`` finds the steps
again; at scale gpu with ``--scale gpu corruption=0.3 oracle_calls=600 readings=1``, at scale paper
with ``--scale paper corruption=0.3 oracle_calls=200 readings=1``, for both studies. Scale paper has
SLIP, BO-REP and the two rivals that are ahead of SLIP at scale gpu. AmIGO, VRBO,
MRBO and SUSTAIN run where they are named, with ``--method AmIGO``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mindgap.base.check import RuleError
from mindgap.lab.studies.bilevel_runs import read_at_its_solution, trained_gate, tuned_methods
from mindgap.lab.studies.cleaning_runs import (
    CONTROL_METHODS,
    CPU,
    GPU,
    GPU_GRID,
    GPU_METHODS,
    GPU_MODEL,
    GPU_STEPS,
    PAPER,
    PAPER_MODEL,
    PAPER_STEPS,
    QUICK,
    SOLVED,
    TUNED,
    WIDE_MODEL,
    cleaning_method,
    control_rows,
    rows_of,
    task_of,
)
from mindgap.lab.studies.spec import (
    SCALES,
    Design,
    Figure,
    Parts,
    Row,
    Run,
    Scale,
    Source,
    Study,
    Trial,
)
from mindgap.lab.studies.verdict import by_seed, last_values, mean_interval, means, spread

#: The smallest difference in accuracy that matters.
SMALLEST = 0.005

#: Perfect weights must beat no cleaning by so much, or there is nothing to compare.
HEADROOM = 0.02

#: SLIP with one lower sample per iteration: it stands beside SLIP and is no rival of it.
SHARED = "SLIP, shared samples"


def loop(trial: Trial) -> Iterator[Row]:
    """Run one method to its budget of ``oracle_calls`` and yield ``readings`` + 1 rows.

    A row holds counters, accuracies, losses and ``weight_auc`` at the method's own lower solution.
    The last one also holds ``solved_accuracy``: that of the common solve, which trains the lower
    problem in the same way for every method, at the method's final x. A control (setting
    ``control``) yields the row of one such solve. A method that refuses the problem's size yields
    one row with the reason in ``refused``.
    """
    if trial.settings.get("control"):
        yield from control_rows(trial)
        return
    task = task_of(trial)
    method = cleaning_method(trial)
    try:
        method.check_problem(task.problem(trial["batch_size"]))
    # SVRB refuses a dense Hessian of 69,000 unknowns.
    except RuleError as error:
        yield {"step": 0, "oracle_calls": 0, "refused": str(error)}
        return
    budget, readings = trial["oracle_calls"], trial["readings"]
    yield from rows_of(
        trial, task, method, budget=budget, readings=readings, least=trial["least_steps"]
    )


def judge(runs: Sequence[Run]) -> Parts:
    """Compare SLIP's final x with every other method's, by the test accuracy of one common solve of
    the lower problem at each x (``solved_accuracy`` of the last rows), seed by seed.

    Returns:
        One part behind the gates of :func:`headroom`: SLIP is above every rival with confidence and
        by at least :data:`SMALLEST` on average. Spread, the methods' own solutions, weights and
        :data:`SHARED` are notes that decide nothing. Records without a common solve or without
        controls decide nothing at all.
    """
    runs_of, parts = by_seed(runs), Parts()
    controls = {name: runs_of.pop(name) for name in CONTROL_METHODS if name in runs_of}
    refused = [  # methods that refused the problem's size
        name
        for name, own_runs in runs_of.items()
        if any("refused" in run.rows[-1] for run in own_runs)
    ]
    for name in refused:
        runs_of.pop(name)
    final_rows = [run.rows[-1] for own_runs in runs_of.values() for run in own_runs]
    if not controls or not all("solved_accuracy" in row for row in final_rows):
        return _without_solve(runs_of)
    accuracy = last_values(runs_of, "solved_accuracy")
    headroom(parts, controls)
    rivals = {name: values for name, values in accuracy.items() if name != SHARED}
    # The same seed is the same data, corruption and start.
    parts.ahead_of_all("SLIP ahead in test accuracy", rivals, "SLIP", SMALLEST)
    if SHARED in accuracy:
        gain = mean_interval(accuracy[SHARED] - accuracy["SLIP"])
        parts.note(
            f"with shared samples SLIP ends {gain.words(100)} points above",
            {"gain_of_sharing": gain.triple},
        )
    parts.note(*_note_on_spread({name: runs_of[name] for name in rivals}))
    auc = means(last_values(runs_of, "weight_auc"))
    parts.note(
        f"area under the curve of SLIP's weights {auc['SLIP']:.3f}",
        {
            "accuracy": means(accuracy),
            "deviation": {name: spread(values) for name, values in accuracy.items()},
            "own_accuracy": means(last_values(runs_of, "test_accuracy")),
            "weight_auc": auc,
            "refused": refused,
        },
    )
    if refused:
        parts.note(f"refused at this size: {', '.join(refused)}")
    return parts


def headroom(parts: Parts, controls: Mapping[str, Sequence[Run]]) -> None:
    """Add two gates to ``parts``: perfect weights must beat no cleaning by at least
    :data:`HEADROOM`, and a net with perfect weights must beat a linear model, where that was
    recorded (``linear_accuracy``).

    Args:
        parts: changed in place; a gate that fails makes the verdict *not trained*.
        controls: the runs of "no cleaning" and of "perfect weights", the same seeds in one order.
    """
    accuracy = last_values(controls, "solved_accuracy")
    none, perfect = accuracy["no cleaning"], accuracy["perfect weights"]
    gap = mean_interval(perfect - none)
    parts.gate(
        "perfect weights beat no cleaning by 2 points",
        gap.mean >= HEADROOM,
        f"{100 * perfect.mean():.1f} and {100 * none.mean():.1f} %",
    )
    final_rows = [run.rows[-1] for run in controls["perfect weights"]]
    if all("linear_accuracy" in row for row in final_rows):
        linear = float(np.mean([row["linear_accuracy"] for row in final_rows]))
        parts.gate(
            "the net with perfect weights beats a linear model",
            float(perfect.mean()) > linear,
            f"{100 * perfect.mean():.1f} and {100 * linear:.1f} %",
        )
    parts.note("", {"controls": means(accuracy)})


def _without_solve(runs_of: Mapping[str, Sequence[Run]]) -> Parts:
    """The inconclusive parts of records without a common solve or without controls.

    The gate is asked all the same, at scales gpu and paper: the best method that was read at its
    lower solution must beat a linear model.

    Args:
        runs_of: method -> its runs.
    """
    parts = Parts()
    accuracy = means(last_values(runs_of, "test_accuracy"))
    best_first = sorted(accuracy, key=lambda name: -accuracy[name])
    well_read = [name for name in best_first if all(map(read_at_its_solution, runs_of[name]))]
    if well_read and runs_of[well_read[0]][0].header.scale in ("gpu", "paper"):
        trained_gate(parts, runs_of[well_read[0]])
    parts.decide_nothing(
        "the records have no common solve of the lower problem and no controls, and F²SA was read "
        "at a variable that learns from the validation data: nothing follows from "
        + ", ".join(f"{name} {accuracy[name]:.3f}" for name in best_first)
    )
    parts.note("", {"accuracy": accuracy})
    return parts


def _note_on_spread(runs_of: Mapping[str, Sequence[Run]]) -> tuple[str, dict[str, Any]]:
    """What is judged beside the rule and decides nothing: SLIP's spread between seeds against the
    others', and its lead in the accuracies of the methods' own lower solutions.

    Returns:
        A sentence, and its numbers with the answer of each question.
    """
    beside = Parts()
    lower_spread(beside, last_values(runs_of, "solved_accuracy"), "SLIP")
    for column, words in (
        ("test_accuracy", "test accuracy of its own net"),
        ("train_accuracy", "training accuracy of its own net"),
    ):
        if all(column in run.rows[-1] for own_runs in runs_of.values() for run in own_runs):
            beside.ahead_of_all(
                f"SLIP ahead in {words}", last_values(runs_of, column), "SLIP", SMALLEST
            )
    answers = {part.name: part.answer for part in beside.asked}
    # The page shows what stands between two semicolons on a line of its own.
    sentence = f"beside the rule: {beside.measured.replace('; ', ', ')}"
    return sentence, {"beside": {**beside.numbers, "answers": answers}}


def lower_spread(parts: Parts, values: Mapping[str, np.ndarray], method: str) -> None:
    """Add a part: the variance of ``method`` between seeds lies below the mean variance of all
    other methods. The test is an F-test of 5 % on each side; with one seed the answer stays open.

    Args:
        parts: changed in place.
        values: method -> one accuracy per seed, the same number for all.
        method: the one that is said to vary least.
    """
    from scipy.stats import f

    rival_spreads = [spread(of_rival) for name, of_rival in values.items() if name != method]
    pooled = float(np.sqrt(np.mean(np.square(rival_spreads))))
    own_spread, degrees = spread(values[method]), len(values[method]) - 1
    ratio = (own_spread / pooled) ** 2 if pooled else 1.0  # of variances: the test's statistic
    low, high = 0.0, np.inf  # quantiles of the ratio of equal variances
    if degrees:
        low, high = f.ppf([0.05, 0.95], degrees, degrees * len(rival_spreads))
    parts.add(
        f"{method}'s spread between seeds is low",
        holds=ratio < low,
        refuted=ratio > high,
        words=f"{own_spread:.4f} against {pooled:.4f} of the others together",
        numbers={"spread": own_spread, "spread_of_others": pooled},
    )


def _scales(corruption: float) -> dict[str, Scale]:
    """The four scales at one share ``corruption`` of wrong labels. A method with 0 seeds does not
    run at a scale.
    """
    quick, cpu, gpu, paper = (
        {**shared, **SOLVED[scale], "corruption": corruption}
        for scale, shared in zip(SCALES, (QUICK, CPU, GPU, PAPER))
    )
    quick |= {"oracle_calls": 250, "readings": 5}
    paper |= {"oracle_calls": 2500, "readings": 5}
    not_at_gpu = {name: 0 for name in TUNED if name not in GPU_METHODS}
    not_at_paper = {name: 0 for name in TUNED if name not in CONTENDERS}
    return {
        "quick": Scale(quick, 8, seeds_of={SHARED: 0}),
        "cpu": Scale(cpu, 8, seeds_of={SHARED: 0}),
        "gpu": Scale(
            gpu,
            20,
            methods=GPU_STEPS,
            seeds_of={**not_at_gpu, SHARED: 0},
            grid=GPU_GRID,
            tuning_seeds=(1000,),
        ),
        "paper": Scale(
            paper,
            8,
            methods=PAPER_STEPS,
            seeds_of={**not_at_paper, SHARED: 0},
            grid=GPU_GRID,
            tuning_seeds=(1000,),
        ),
    }


#: The rule at scale gpu on made-up data. Fig. 2 prints no number: a lead of 1.5 points over every
#: rival is assumed. The deviation is that of SLIP's lead over its rivals in the records of
#: 2026-11-16 (1.3 to 3.4 points, 2.0 in the middle).
DESIGN = Design(
    "lead",
    false=-100 * SMALLEST,
    paper=1.5,
    deviation=2.0,
    unit="points",
    source="a lead of 1.5 points is assumed, for the figure prints none; deviation of earlier "
    "records",
    parts=len(GPU_METHODS) - 1,
    smallest=100 * SMALLEST,
)

#: Who runs at scale paper, and its rule on made-up data. The deviation is twice the middle one of
#: SLIP's leads in the records of 64 units (0.3 to 0.6 points with four times the test texts).
CONTENDERS = ("SLIP", "BO-REP", "SABA", "MA-SOBA")
PAPER_DESIGN = replace(
    DESIGN,
    deviation=1.0,
    source="a lead of 1.5 points is assumed, for the figure prints none; twice the deviation of "
    "the records of 64 units, which have four times the test texts",
    parts=len(CONTENDERS) - 1,
)


def _length(settings: Mapping[str, Any]) -> str:
    """How long SLIP trains beside the paper's 25 epochs, in words. An epoch takes 100 oracle calls:
    20 steps of five calls.
    """
    calls = settings["oracle_calls"]
    return f"{calls / 100:.3g} of 25 epochs (SLIP; {calls:,} oracle calls for every method)"


def _study(name: str, claim: str, corruption: float) -> Study:
    """The study of Fig. 2 at one share of wrong labels."""
    return Study(
        name=name,
        claim=claim,
        title=f"Cleaning data with p = {corruption:g} of the labels corrupted: SLIP against the "
        "others",
        statement=f"Data hyper-cleaning with corruption p = {corruption:g}: SLIP is ahead of the "
        "other bilevel methods in test accuracy.",
        source=Source("slip-rebuttal-a", "Fig. 2"),
        scales=_scales(corruption),
        methods={
            **tuned_methods(TUNED),
            SHARED: {"key": "slip", "samples": "shared", "lr_x": 1.0, "lr_y": 1.0},
            **CONTROL_METHODS,
        },
        controls=tuple(CONTROL_METHODS),
        loop=loop,
        judge=judge,
        rule="Every method's final x is judged by one common solve of the lower problem at that x "
        "(linear softmax: to the end; recurrent net: 400 steps of Adam from the net's start, rate "
        "0.003 falling to 0, batches of 512), in test accuracy. SLIP is above every other method: "
        "each paired difference is above 0, one-sided at 95 %, and at least half a point on "
        "average (all must say so: no correction). Refuted where another method is ahead by at "
        "least half a point on average, at 95 % for all comparisons together. At least 8 seeds. "
        "Judged only where perfect weights beat no cleaning by 2 points and, with a net, beat "
        "logistic regression on mean word vectors: otherwise not trained. Steps are searched on "
        "the loss of the same solve on samples that neither level trains on. A method that "
        "refuses the size of the problem is left out, and named. Beside the rule: each method's "
        "own lower solution, and whether SLIP's spread between seeds lies below or above that of "
        "all others together (F-test, 5 % on each side).",
        lengths={
            "gpu": "25 of 25 epochs (SLIP; 2,500 oracle calls for every method)",
            "paper": "25 of 25 epochs (SLIP; 2,500 oracle calls for every method)",
        },
        length_of=_length,
        designs={"gpu": DESIGN, "paper": PAPER_DESIGN},
        models={
            **dict.fromkeys(("quick", "cpu"), "linear softmax on digits"),
            "gpu": GPU_MODEL,
            "paper": WIDE_MODEL,
        },
        paper_model=PAPER_MODEL,
        figures=(
            Figure(
                "Test accuracy",
                "test_accuracy",
                "test accuracy",
                x="x_epoch",
                log_x=True,
                caption="Same data, corruption and start for all methods of a seed; steps from "
                "the same grid. Switch the x-axis: what is cheap in epochs may be expensive in "
                "oracle calls or seconds.",
            ),
            Figure(
                "How well the weights tell clean from corrupted",
                "weight_auc",
                "area under the curve",
                x="oracle_calls",
                log_x=True,
                caption="1: every clean sample has a larger weight than every "
                "corrupted one; 0.5: no information.",
            ),
            Figure(
                "Validation loss",
                "validation_loss",
                "f(λ, W)",
                x="oracle_calls",
                log_x=True,
                log_y=True,
            ),
            Figure(
                "Training accuracy",
                "train_accuracy",
                "accuracy on corrupted labels",
                x="x_epoch",
                log_x=True,
            ),
        ),
        tunable={"lr_x": (0.1, 1e4), "lr_y": (1.0, 10.0)},
        grid={"lr_x": (0.1, 1.0, 10.0, 100.0, 1000.0, 10_000.0), "lr_y": (1.0, 3.0, 10.0)},
        tuning_seeds=(1000, 1001, 1002, 1003, 1004),
        tune_on="solved_held_loss",
        tuned_by="b3-hyper-cleaning",
    )


STUDIES = (_study("b3-hyper-cleaning", "B3", 0.2), _study("b4-hyper-cleaning", "B4", 0.4))
