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
from mindgap.lab.studies.verdict import mean_interval


def loop(trial: Trial) -> Iterator[Row]:
    """Hyper-cleaning: run a method for a number of epochs of x- or of y-updates and read it
    after each.
    """
    task = cleaning_runs.task_of(trial)
    yield from _by_epochs(trial, task, cleaning_runs.cleaning_method(trial), cleaning_runs.rows_of)


def representation_loop(trial: Trial) -> Iterator[Row]:
    """Hyper-representation: the same on its tasks."""
    task = representation_runs.task_of(trial)
    yield from _by_epochs(
        trial, task, representation_runs.representation_method(trial), representation_runs.rows_of
    )


def _by_epochs(
    trial: Trial, task: Any, method: Any, rows_of: Callable[..., Iterator[Row]]
) -> Iterator[Row]:
    """Rows of a run of so many epochs of x- or of y-updates, as the setting ``counted`` says."""
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
    """Differences of SLIP's two countings in training and test accuracy, on average over the
    epochs, against a fixed margin.
    """
    slip = [run for run in runs if run.header.settings["key"] == "slip"]
    parts, groups = Parts(), by_case(slip, "counted")
    cases = sorted({case for case, _ in groups})
    worst, fewer, ends = 0.0, set(), {}
    for case in cases:
        by_x, by_y = groups[case, "x"], groups[case, "y"]
        seeds = sorted(by_x.keys() & by_y.keys())
        fewer |= {by_x[s].rows[-1]["step"] - by_y[s].rows[-1]["step"] for s in seeds}
        for split in ("test", "train"):
            x, y = (
                np.array([run[s].column(f"{split}_accuracy")[1:] for s in seeds])
                for run in (by_x, by_y)
            )
            worst = max(worst, float(np.abs((x - y).mean(0)).max()))
            gaps = x.mean(1) - y.mean(1)
            parts.equivalent(f"{case}, {split}: negligible", gaps, MARGIN, 100)
            ends[f"{case}, {split}"] = mean_interval(x[:, -1] - y[:, -1], miss=0.1).triple
    last = ", ".join(f"{name} {100 * gap[0]:+.2f}" for name, gap in ends.items())
    parts.note(
        f"{', '.join(str(n) for n in sorted(fewer))} updates of x fewer; beside, at the last epoch "
        f"{last}; at single epochs up to {100 * worst:.2f} points",
        {
            "at_the_end": ends,
            "largest_at_one_epoch": worst,
            "fewer_updates_of_x": sorted(fewer),
        },
    )
    if runs[0].header.scale in ("gpu", "paper"):
        trained_gate(parts, slip)
    parts.note(*_note_on_others(runs))
    return parts


def _note_on_others(runs: Sequence[Run]) -> tuple[str, dict[str, dict[str, dict[str, float]]]]:
    """Mean final test accuracy of all methods after equal epochs of y, over the seeds that all
    have: words, numbers.
    """
    groups: dict[str, dict[str, Mapping[int, Run]]] = {}
    for (case, counted, key), group in by_case(runs, "counted", "key").items():
        if counted == "y":
            groups.setdefault(case, {})[key] = group
    found: dict[str, dict[str, float]] = {}
    for case, of in groups.items():
        seeds = set.intersection(*(set(group) for group in of.values()))
        ends = {
            key: [group[seed].rows[-1]["test_accuracy"] for seed in seeds]
            for key, group in of.items()
        }
        found[case] = {key: float(np.mean(values)) for key, values in ends.items()}
    orders = [
        f"{case}: "
        + ", ".join(
            f"{METHODS[key].name} {value:.3f}"
            for key, value in sorted(ends.items(), key=lambda item: -item[1])
        )
        for case, ends in sorted(found.items())
        if len(ends) > 1
    ]
    words = (
        f"beside, on common seeds, test accuracy after equal epochs of y, {', '.join(orders)}"
        if orders
        else ""
    )
    return words, {"test_accuracy_by_y": found} if orders else {}


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
    on: str,
    figure: str,
    labels: Mapping[str, tuple[str, Mapping[str, Any]]],
    own: Mapping[str, Mapping[str, Any]],
    sizes: Mapping[str, Size],
    **parts: Any,
) -> Study:
    """A study of B6.

    Args:
        labels: label -> (method, how it counts and what its case is).
        own: method -> its settings at every scale.
        sizes: of the scales; a method without steps does not run there.
    """
    scales = {}
    for scale, (settings, seeds, steps) in sizes.items():
        here = {label: steps[method] for label, (method, _) in labels.items() if method in steps}
        others = {label: 0 for label, (method, _) in labels.items() if method != "SLIP"}
        scales[scale] = Scale(settings, seeds, here, others)
    return Study(
        name=name,
        claim="B6",
        title=f"Epochs counted in updates of y or of x: {on}",
        statement="Counting SLIP's epochs in updates of y, which leaves it three updates of x "
        f"fewer, makes a negligible difference on {on}.",
        source=Source("slip-rebuttal-a", f"{figure}; A4 to P6Br"),
        scales=scales,
        methods={label: {**own[method], **case} for label, (method, case) in labels.items()},
        judge=judge,
        rule="For each corruption (or set of tasks) the difference of training and of test "
        "accuracy, on average over the epochs, lies within ± 1 point: two one-sided tests of 5 % "
        "each, and all must say so (no correction). Refuted where a 90 % interval lies outside "
        "altogether. The difference at the last epoch stands beside.",
        length_of=lambda s: f"{s['epochs']} of {25 if 'corruption' in s else 20} epochs",
        designs={"gpu": DESIGN},
        **parts,
    )


def _figures(facet: str = "", names: str = "") -> tuple[Figure, ...]:
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
    """The study of Fig. 5, on hyper-cleaning."""
    runs = cleaning_runs
    alone: Mapping[str, Any] = {"SLIP": {}}
    labels = {
        f"epochs of {c}, p = {p:g}": ("SLIP", {"counted": c, "corruption": p})
        for p in (0.2, 0.4)
        for c in "xy"
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
        {
            "quick": ({**runs.QUICK, "epochs": 25}, 10, alone),
            "cpu": ({**runs.CPU, "epochs": 100}, 20, alone),
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
    """The study of Fig. 4 on one set of texts."""
    runs = representation_runs
    labels = {f"SLIP, epochs of {c}": ("SLIP", {"counted": c}) for c in "xy"}
    labels |= {title: (title, {"counted": "y"}) for title in runs.EIGHT if title != "SLIP"}
    small = {**runs.QUICK, "data": quick, "tasks": [40, 1, 40], "epochs": 8}
    large = {**runs.GPU_SIZES[data], **runs.TASKS, "epochs": 20}
    alone = {"SLIP": runs.own_steps(quick)["SLIP"]}
    sizes: dict[str, Size] = {"quick": (small, 5, alone), "gpu": (large, 20, runs.GPU_STEPS)}
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
