"""B6: SLIP with epochs counted in y-updates instead of x-updates (SLIP rebuttal, A4 to P6Br, Fig. 5 against Fig. 2).

The warm start gives SLIP three more updates of y than of x. All draws are functions of seed and position, so that with
one seed the y-counted run is the x-counted one, read three iterations earlier: no noise between two runs on top. At
scale gpu the other methods of the figures run beside it, with epochs counted in y-updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.base.check import one_of
from mindgap.bilevel.registry import METHODS
from mindgap.lab.studies.bilevel_runs import tuned_methods
from mindgap.lab.studies.cleaning_runs import (
    CPU,
    GPU,
    GPU_METHODS,
    GPU_MODEL,
    GPU_STEPS,
    PAPER_MODEL,
    QUICK,
    TUNED,
    cleaning_method,
    rows_of,
    task_of,
)
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import by_setting, mean_interval, spread


def loop(trial: Trial) -> Iterator[Row]:
    """Run a method for a number of epochs of x- or of y-updates and read it after each."""
    task = task_of(trial)
    problem = task.problem(trial["batch_size"])
    counted, epochs = one_of("counted", trial["counted"], ("x", "y")), trial["epochs"]
    batches = (problem.upper_data if counted == "x" else problem.lower_data).batches
    method = cleaning_method(trial)
    rows = rows_of(trial, task, method, budget=epochs * batches, readings=epochs,
                   spent=lambda state: state.updates[counted])
    for row in rows:
        yield {**row, "epoch": round(row[f"{counted}_epoch"])}


def judge(runs: Sequence[Run]) -> Parts:
    """Differences of SLIP's two countings in training and test accuracy, against the spread between seeds."""
    slip = [run for run in runs if run.header.settings["key"] == "slip"]
    parts, groups = Parts(), by_setting(slip, "corruption", "counted")
    shares = sorted({p for p, _ in groups})
    worst, fewer, differences, spreads = 0.0, set(), {}, {}
    for p in shares:
        by_x, by_y = groups[p, "x"], groups[p, "y"]
        seeds = sorted(by_x.keys() & by_y.keys())
        fewer |= {by_x[s].rows[-1]["step"] - by_y[s].rows[-1]["step"] for s in seeds}
        for split in ("test", "train"):
            x, y = (np.array([run[s].column(f"{split}_accuracy")[1:] for s in seeds]) for run in (by_x, by_y))
            worst = max(worst, float(np.abs((x - y).mean(0)).max()))
            for when, a, b in (("at the end", x[:, -1], y[:, -1]), ("on average", x.mean(1), y.mean(1))):
                part, limit = f"p = {p:g}, {split}, {when}", spread(a)
                gap = mean_interval(a - b, miss=0.05 / 4 / len(shares))
                differences[part], spreads[part] = gap.triple, limit
                parts.add(f"{part}: negligible", max(abs(gap.low), abs(gap.high)) < limit,
                          gap.low > limit or gap.high < -limit,
                          f"{gap.words(digits='+.4f')} against a spread of {limit:.4f}")
    parts.note(f"{', '.join(str(n) for n in sorted(fewer))} updates of x fewer; at single epochs up to {worst:.4f}",
               {"difference": differences, "spread": spreads, "largest_at_one_epoch": worst,
                "fewer_updates_of_x": sorted(fewer)})
    parts.note(*_beside(runs))
    return parts


def _beside(runs: Sequence[Run]) -> tuple[str, dict[str, dict[str, dict[str, float]]]]:
    """Mean final test accuracy of all methods after equal epochs of y: the sentence, and the numbers."""
    found: dict[str, dict[str, float]] = {}
    for (p, counted, key), group in by_setting(runs, "corruption", "counted", "key").items():
        if counted == "y":
            ends = [run.rows[-1]["test_accuracy"] for run in group.values()]
            found.setdefault(f"p = {p:g}", {})[key] = float(np.mean(ends))
    orders = [f"{case}: " + ", ".join(f"{METHODS[key].name} {value:.3f}" for key, value in
                                      sorted(ends.items(), key=lambda item: -item[1]))
              for case, ends in sorted(found.items()) if len(ends) > 1]  # fmt: skip
    words = f"beside, test accuracy after equal epochs of y, {', '.join(orders)}" if orders else ""
    return words, {"test_accuracy_by_y": found} if orders else {}


_ALL = tuned_methods(TUNED)
_METHODS = {
    f"epochs of {counted}, p = {p:g}": {**_ALL["SLIP"], "counted": counted, "corruption": p}
    for p in (0.2, 0.4)
    for counted in ("x", "y")
}
#: label -> (method, corruption), for those beside SLIP
_OTHERS = {f"{title}, p = {p:g}": (title, p) for p in (0.2, 0.4) for title in GPU_METHODS if title != "SLIP"}
_STEPS = dict.fromkeys(_METHODS, GPU_STEPS["SLIP"]) | {label: GPU_STEPS[title] for label, (title, _) in _OTHERS.items()}
_METHODS |= {label: {**_ALL[title], "counted": "y", "corruption": p} for label, (title, p) in _OTHERS.items()}
_NONE = dict.fromkeys(_OTHERS, 0)

STUDY = Study(
    name="b6-epochs", claim="B6", title="Epochs counted in updates of y or of x",
    statement="Counting SLIP's epochs in updates of y, which leaves it three updates of x fewer, makes a "
    "negligible difference on data hyper-cleaning.", source=Source("slip-rebuttal-a", "Fig. 4, 5; A4 to P6Br"),
    scales={"quick": Scale({**QUICK, "epochs": 25}, 10, seeds_of=_NONE),
            "cpu": Scale({**CPU, "epochs": 100}, 20, seeds_of=_NONE),
            "gpu": Scale({**GPU, "epochs": 15}, 8, _STEPS, dict.fromkeys(_OTHERS, 5))},
    methods=_METHODS, tuned_by="b3-hyper-cleaning",
    loop=loop, judge=judge, rule="For each corruption the difference of training and test accuracy, at the last "
    "epoch and on average over the epochs, lies within ± the spread (standard deviation) between seeds; all "
    "intervals together miss with probability 5 %. Refuted where one lies outside altogether. At scale gpu the other "
    "methods stand beside, with 5 seeds and epochs of y; no rule is about them.",
    history=("That negligible means less than the spread between seeds was settled beforehand.",
             "The other methods were added after SLIP's runs at scale gpu; rule and runs of SLIP stayed."),
    differs="An epoch has 10 iterations at quick, 22 at cpu and 20 at gpu, so that three of them weigh more than in "
    "the paper.",
    models={**dict.fromkeys(("quick", "cpu"), "linear softmax on digits"), "gpu": GPU_MODEL}, paper_model=PAPER_MODEL,
    figures=tuple(
        Figure(f"{name} accuracy", f"{name.lower()}_accuracy", "accuracy", x="epoch",
               x_label="epochs, in updates of x or of y", facet="corruption",
               caption="Bands: the spread between seeds. The names that begin with epochs are SLIP's; its two lines of "
               "one panel differ by three iterations. The other methods count updates of y.")
        for name in ("Test", "Train")
    ),
)  # fmt: skip
