"""B6: SLIP with epochs counted in y-updates instead of x-updates (SLIP rebuttal, A4 to P6Br).

Fig. 4 (hyper-representation) is set against Fig. 1, Fig. 5 (hyper-cleaning) against Fig. 2. The
warm start gives SLIP three more updates of y than of x. All draws are functions of seed and
position, so that with one seed the y-counted run is the x-counted one, read three iterations
earlier: no noise between two runs on top. At scale gpu the other methods of the figures run beside
it, with epochs counted in y-updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mindgap.base.check import one_of
from mindgap.bilevel.registry import METHODS
from mindgap.lab.studies import cleaning_runs, representation_runs
from mindgap.lab.studies.bilevel_runs import by_case, trained_gate, tuned_methods
from mindgap.lab.studies.spec import Design, Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import ONE_SIDED, mean_interval
from mindgap.record.schema import grouped


def loop(trial: Trial) -> Iterator[Row]:
    """Hyper-cleaning: run a method for a number of epochs of x- or of y-updates and read accuracies
    after each (:func:`_by_epochs`).
    """
    runs = cleaning_runs
    yield from _by_epochs(trial, runs.task_of(trial), runs.cleaning_method(trial), runs.rows_of)


def representation_loop(trial: Trial) -> Iterator[Row]:
    """Hyper-representation: run a method for a number of epochs of x- or of y-updates and read
    accuracies after each (:func:`_by_epochs`).
    """
    yield from _by_epochs(
        trial,
        representation_runs.task_of(trial),
        representation_runs.representation_method(trial),
        representation_runs.rows_of,
    )


def _by_epochs(
    trial: Trial, task: Any, method: Any, rows_of: Callable[..., Iterator[Row]]
) -> Iterator[Row]:
    """Rows of a run of so many ``epochs``: one at the start and one after each.

    The setting ``counted`` says what makes an epoch: as many updates of "x" as the upper data have
    minibatches, or of "y" as the lower data have.

    Args:
        trial, task, method: what runs on what.
        rows_of: reads runs on tasks of that kind; its rows get the number of the ``epoch``.
    """
    problem = task.problem(trial["batch_size"])
    counted, epochs = one_of("counted", trial["counted"], ("x", "y")), trial["epochs"]
    batches = (problem.upper_data if counted == "x" else problem.lower_data).batches
    rows = rows_of(
        trial,
        task,
        method,
        budget=epochs * batches,
        readings=epochs,
        spent=lambda state: state.updates[counted],
    )
    for row in rows:
        yield {**row, "epoch": round(row[f"{counted}_epoch"])}


def judge(runs: Sequence[Run]) -> Parts:
    """Ask whether SLIP's accuracy is the same at equal epochs of x- and of y-updates.

    Compares, seed by seed and on average over the epochs after the start, ``train_accuracy`` and
    ``test_accuracy`` of runs with ``counted`` "x" and "y".

    Returns:
        One part per case (share of wrong labels, or data) and split: the mean difference lies
        within ± :data:`MARGIN`. At scales gpu and paper a gate asks whether the networks are
        trained. The last epoch, single epochs and the other methods are notes that decide nothing.
    """
    slip = [run for run in runs if run.header.settings["key"] == "slip"]
    parts, runs_of_case = Parts(), by_case(slip, "counted")  # (case, counted) -> seed -> run
    largest = 0.0  # mean gap at one epoch
    fewer: set[int] = set()  # updates of x that the y-counted run makes less
    last_gaps = {}  # case and split -> mean, low and high of the gap at the last epoch
    for case in sorted({case for case, _ in runs_of_case}):
        by_x, by_y = runs_of_case[case, "x"], runs_of_case[case, "y"]
        seeds = sorted(by_x.keys() & by_y.keys())
        fewer |= {by_x[seed].rows[-1]["step"] - by_y[seed].rows[-1]["step"] for seed in seeds}
        for split in ("test", "train"):
            accuracy_x, accuracy_y = (
                np.array([run_of[seed].column(f"{split}_accuracy")[1:] for seed in seeds])
                for run_of in (by_x, by_y)
            )
            gaps = accuracy_x - accuracy_y  # (seeds, epochs)
            largest = max(largest, float(np.abs(gaps.mean(0)).max()))
            parts.equivalent(
                f"{case}, {split}: negligible",
                accuracy_x.mean(1) - accuracy_y.mean(1),
                MARGIN,
                unit=100,
            )
            last_gaps[f"{case}, {split}"] = mean_interval(gaps[:, -1], miss=ONE_SIDED).triple
    last_words = ", ".join(f"{name} {100 * mean:+.2f}" for name, (mean, _, _) in last_gaps.items())
    parts.note(
        f"{', '.join(map(str, sorted(fewer)))} updates of x fewer; beside, at the last epoch "
        f"{last_words}; at single epochs up to {100 * largest:.2f} points",
        {
            "at_the_end": last_gaps,
            "largest_at_one_epoch": largest,
            "fewer_updates_of_x": sorted(fewer),
        },
    )
    if runs[0].header.scale in ("gpu", "paper"):
        trained_gate(parts, slip)
    parts.note(*_note_on_others(runs))
    return parts


def _note_on_others(runs: Sequence[Run]) -> tuple[str, dict[str, dict[str, dict[str, float]]]]:
    """Mean final test accuracy of all methods after equal epochs of y-updates, over the seeds that
    all of them have.

    Returns:
        A sentence that ranks the methods of each case, and the numbers: case -> key of a method ->
        accuracy. Both are empty where no case has two methods.
    """
    methods_of = grouped(  # case -> pairs of a method's key and its runs by seed
        (case, (key, run_of))
        for (case, counted, key), run_of in by_case(runs, "counted", "key").items()
        if counted == "y"
    )
    accuracies: dict[str, dict[str, float]] = {}
    rankings = []
    for case, methods in sorted(methods_of.items()):
        seeds = set.intersection(*(set(run_of) for _, run_of in methods))
        accuracies[case] = accuracy = {
            key: float(np.mean([run_of[seed].rows[-1]["test_accuracy"] for seed in seeds]))
            for key, run_of in methods
        }
        if len(accuracy) > 1:
            best_first = sorted(accuracy, key=lambda key: -accuracy[key])
            ranking = ", ".join(f"{METHODS[key].name} {accuracy[key]:.3f}" for key in best_first)
            rankings.append(f"{case}: {ranking}")
    if not rankings:
        return "", {}
    words = f"beside, on common seeds, test accuracy after equal epochs of y, {', '.join(rankings)}"
    return words, {"test_accuracy_by_y": accuracies}


#: The margin of *negligible*, in accuracy: one point.
MARGIN = 0.01

#: The paper's effect is none. False by the smallest effect that matters: a difference of the
#: margin. The deviation is the largest of the old records (0.2 to 0.9 points).
DESIGN = Design(
    "equivalent",
    false=100 * MARGIN,
    paper=0.0,
    deviation=1.0,
    unit="points",
    source="no difference, as the paper says; deviation of earlier records, rounded up",
    parts=4,
    margin=100 * MARGIN,
)

#: settings of a scale, seeds of SLIP, and method -> its steps
Size = tuple[Mapping[str, Any], int, Mapping[str, Any]]

#: epochs at scale paper
_PAPER_EPOCHS = 3


def _study(
    name: str,
    task: str,
    figure: str,
    labels: Mapping[str, tuple[str, Mapping[str, Any]]],
    settings_of: Mapping[str, Mapping[str, Any]],
    sizes: Mapping[str, Size],
    **fields: Any,
) -> Study:
    """A study of B6: SLIP counted both ways, and its rivals counted in y-updates. Rivals have no
    seeds of their own at any scale: they run where they are named.

    Args:
        name: of the study.
        task, figure: what title, statement and source call the task and the paper's figure.
        labels: label -> (method, how it counts and what its case is).
        settings_of: method -> its settings at every scale.
        sizes: scale -> settings, seeds of SLIP, and method -> steps.
        fields: further fields of the study.
    """
    scales = {}
    for scale, (settings, seeds, steps) in sizes.items():
        steps_here = {
            label: steps[method] for label, (method, _) in labels.items() if method in steps
        }
        no_seeds = {label: 0 for label, (method, _) in labels.items() if method != "SLIP"}
        scales[scale] = Scale(settings, seeds, methods=steps_here, seeds_of=no_seeds)
    return Study(
        name=name,
        claim="B6",
        title=f"Epochs counted in updates of y or of x: {task}",
        statement="Counting SLIP's epochs in updates of y, which leaves it three updates of x "
        f"fewer, makes a negligible difference on {task}.",
        source=Source("slip-rebuttal-a", f"{figure}; A4 to P6Br"),
        scales=scales,
        methods={
            label: {**settings_of[method], **case} for label, (method, case) in labels.items()
        },
        judge=judge,
        rule="For each corruption (or set of tasks) the difference of training and of test "
        "accuracy, on average over the epochs, lies within ± 1 point: two one-sided tests of 5 % "
        "each, and all must say so (no correction). Refuted where a 90 % interval lies outside "
        "altogether. The difference at the last epoch stands beside.",
        length_of=lambda s: f"{s['epochs']} of {25 if 'corruption' in s else 20} epochs",
        designs={"gpu": DESIGN},
        **fields,
    )


def _figures(facet: str = "", names: str = "") -> tuple[Figure, ...]:
    """The figures of test and of training accuracy.

    Args:
        facet: the setting that has a panel of its own per value, empty for one panel.
        names: a sentence on the names of the methods, with which the captions begin.
    """
    return tuple(
        Figure(
            f"{name} accuracy",
            f"{name.lower()}_accuracy",
            "accuracy",
            x="epoch",
            facet=facet,
            x_label="epochs, in updates of x or of y",
            caption=f"{names}With one seed SLIP's two runs are one run, "
            "read three iterations apart. Other methods, where they are shown, count updates of y.",
        )
        for name in ("Test", "Train")
    )


def _cleaning() -> Study:
    """The study of Fig. 5, on hyper-cleaning with the shares 0.2 and 0.4 of wrong labels: SLIP
    counted in epochs of x and of y, every other method in epochs of y.
    """
    runs = cleaning_runs
    slip_alone: Mapping[str, Any] = {"SLIP": {}}
    # Label of a method -> its title, how it counts, and its share of wrong labels.
    labels = {
        f"epochs of {counted}, p = {p:g}": ("SLIP", {"counted": counted, "corruption": p})
        for p in (0.2, 0.4)
        for counted in "xy"
    }
    labels |= {
        f"{title}, p = {p:g}": (title, {"counted": "y", "corruption": p})
        for p in (0.2, 0.4)
        for title in runs.GPU_METHODS
        if title != "SLIP"
    }
    return _study(
        "b6-epochs",
        "data hyper-cleaning",
        "Fig. 5",
        labels,
        tuned_methods(runs.TUNED),
        {  # scale -> its settings, seeds of SLIP, steps of the methods that run there
            "quick": ({**runs.QUICK, "epochs": 25}, 10, slip_alone),
            "cpu": ({**runs.CPU, "epochs": 100}, 20, slip_alone),
            "gpu": ({**runs.GPU, "epochs": 25}, 20, runs.GPU_STEPS),
            "paper": (
                {**runs.PAPER, "epochs": _PAPER_EPOCHS},
                8,
                {"SLIP": runs.PAPER_STEPS["SLIP"]},
            ),
        },
        loop=loop,
        tuned_by="b3-hyper-cleaning",
        models={
            **dict.fromkeys(("quick", "cpu"), "linear softmax on digits"),
            "gpu": runs.GPU_MODEL,
            "paper": f"{runs.PAPER_MODEL} (word vectors of 50 dimensions, {_PAPER_EPOCHS} epochs)",
        },
        paper_model=runs.PAPER_MODEL,
        lengths={"gpu": "25 of 25 epochs", "paper": f"{_PAPER_EPOCHS} of 25 epochs"},
        figures=_figures("corruption", "The names that begin with epochs are SLIP's. "),
    )


def _representation(name: str, texts: str, figure: str, quick: str, data: str) -> Study:
    """The study of Fig. 4 on one set of texts.

    Args:
        name: of the study.
        texts, figure: what title, statement and source call them.
        quick: the data of scale quick.
        data: "snli" or "reviews", of scale gpu; only "snli" has a scale paper.
    """
    runs = representation_runs
    # Label of a method -> its title, and how it counts.
    labels = {f"SLIP, epochs of {counted}": ("SLIP", {"counted": counted}) for counted in "xy"}
    labels |= {title: (title, {"counted": "y"}) for title in runs.EIGHT if title != "SLIP"}
    quick_settings = {**runs.QUICK, "data": quick, "tasks": [40, 1, 40], "epochs": 8}
    gpu_settings = {**runs.GPU_SIZES[data], **runs.TASKS, "epochs": 20}
    slip_alone = {"SLIP": runs.own_steps(quick)["SLIP"]}
    sizes: dict[str, Size] = {
        "quick": (quick_settings, 5, slip_alone),
        "gpu": (gpu_settings, 20, runs.GPU_STEPS),
    }
    models = {"quick": f"tanh encoder and linear heads on {quick}", "gpu": runs.GPU_MODELS[data]}
    if data == "snli":
        steps = {"SLIP": runs.PAPER_STEPS["SLIP"]}
        sizes["paper"] = ({**runs.PAPER, **runs.TASKS, "epochs": _PAPER_EPOCHS}, 8, steps)
        models["paper"] = runs.SHORT_PAPER_MODELS[data]
    return _study(
        name,
        f"hyper-representation ({texts})",
        figure,
        labels,
        runs.EIGHT,
        sizes,
        loop=representation_loop,
        tuned_by=f"b{1 if data == 'snli' else 2}-hyper-representation",
        models=models,
        paper_model=runs.PAPER_MODELS[data],
        lengths={"gpu": "20 of 20 epochs", "paper": f"{_PAPER_EPOCHS} of 20 epochs"},
        figures=_figures(),
    )


STUDIES = (
    _cleaning(),
    _representation("b6-epochs-pairs", "SNLI", "Fig. 4a, b", "digits", "snli"),
    _representation(
        "b6-epochs-reviews", "the Amazon reviews", "Fig. 4c, d", "turned digits", "reviews"
    ),
)
