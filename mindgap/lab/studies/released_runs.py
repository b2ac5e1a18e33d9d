"""What the studies of the released code's faults share: the rule on SLIP's lead with each fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mindgap.bilevel.registry import METHODS
from mindgap.lab.studies.bilevel_runs import trained_gate
from mindgap.lab.studies.spec import Figure, Parts, Run
from mindgap.lab.studies.verdict import ONE_SIDED, by_setting, mean_interval

NONE, ALL = "none", "all"

#: A change of SLIP's lead that matters: half a point of accuracy.
SMALLEST = 0.005


#: The rule of both studies.
RULE = (
    "With each fault alone and with all together, the change of SLIP's lead lies within ± one "
    "percentage point, over paired seeds: two one-sided tests of 5 % each, and all must say so. "
    "Refuted where an interval (all together miss with probability 5 %) excludes 0 and the change "
    "is at least half a point on average. At scale gpu the best method without faults must end "
    "above a linear model (hyper-cleaning) or above the encoder's start: otherwise not trained."
)
#: What both studies draw.
FIGURES = (
    Figure(
        "Test accuracy with each fault",
        "test_accuracy",
        "test accuracy",
        x="oracle_calls",
        facet="fault",
        caption="One panel per fault; the first has none.",
    ),
)


def judge(runs: Sequence[Run]) -> Parts:
    """Compare SLIP's lead over the mean of the other methods with each fault to its lead without
    any.

    One part per fault: the change of the lead lies within ± twice :data:`SMALLEST`. It is refuted
    where the change is at least :data:`SMALLEST` and its interval excludes 0. At scale gpu a
    control shows that the best method without faults is trained.

    Args:
        runs: with the settings ``fault`` (:data:`NONE`, a fault, or :data:`ALL`) and ``key``.
    """
    parts, groups = Parts(), by_setting(runs, "fault", "key")  # (fault, key) -> seed -> run
    faults, keys = (list(dict.fromkeys(names)) for names in zip(*groups))
    seeds = sorted(set.intersection(*(set(run_of) for run_of in groups.values())))
    # (fault, key) -> final test accuracies, one per seed that all groups have.
    accuracies = {
        case: np.array([run_of[seed].rows[-1]["test_accuracy"] for seed in seeds])
        for case, run_of in groups.items()
    }
    # A method that does not have a fault ends as it does without.
    accuracies_of = {
        fault: {key: accuracies.get((fault, key), accuracies[NONE, key]) for key in keys}
        for fault in faults
    }
    if runs[0].header.scale == "gpu":
        best = max(keys, key=lambda key: float(accuracies_of[NONE][key].mean()))
        trained_gate(parts, [groups[NONE, best][seed] for seed in seeds])
    leads = {}  # fault -> SLIP's accuracy less the mean of the others', one number per seed
    for fault, of_fault in accuracies_of.items():
        others = [accuracy for key, accuracy in of_fault.items() if key != "slip"]
        leads[fault] = of_fault["slip"] - np.mean(others, axis=0)
    for fault in faults:
        if fault == NONE:
            continue
        gaps = leads[fault] - leads[NONE]
        # All faults together miss with 5 % (Bonferroni).
        change = mean_interval(gaps, miss=0.05 / (len(faults) - 1))
        changed = (change.low > 0 or change.high < 0) and abs(change.mean) >= SMALLEST
        within = mean_interval(gaps, miss=ONE_SIDED)
        order = _ranking(accuracies_of[fault])
        parts.add(
            f"{fault}: SLIP's lead stays",
            holds=max(abs(within.low), abs(within.high)) < 2 * SMALLEST,
            refuted=changed,
            words=f"changes by {change.words(100)} points; ranking {', '.join(order)}",
            numbers={fault: {"change": change.triple, "ranking": order}},
        )
    order = _ranking(accuracies_of[NONE])
    parts.note(f"without faults: {', '.join(order)}", {"ranking": order})
    return parts


def _ranking(accuracies: Mapping[str, np.ndarray]) -> list[str]:
    """The methods with their mean final accuracies, best first."""
    best_first = sorted(accuracies, key=lambda key: -accuracies[key].mean())
    return [f"{METHODS[key].name} {accuracies[key].mean():.3f}" for key in best_first]
