"""What the studies of the released code's faults share: the rule on SLIP's lead with each fault."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindgap.bilevel.registry import METHODS
from mindgap.lab.studies.bilevel_runs import trained_gate
from mindgap.lab.studies.spec import Parts, Run
from mindgap.lab.studies.verdict import by_setting, mean_interval

NONE, ALL = "none", "all"

#: A change of SLIP's lead that matters: half a point of accuracy.
SMALLEST = 0.005


def judge(runs: Sequence[Run]) -> Parts:
    """SLIP's lead over the mean of the other methods with each fault, against its lead without
    any.
    """
    parts, groups = Parts(), by_setting(runs, "fault", "key")
    faults = list(dict.fromkeys(fault for fault, _ in groups))
    keys = list(dict.fromkeys(key for _, key in groups))
    seeds = sorted(set.intersection(*(set(group) for group in groups.values())))
    found = {
        case: np.array([group[s].rows[-1]["test_accuracy"] for s in seeds])
        for case, group in groups.items()
    }
    # A method that does not have a fault ends as it does without.
    ends = {
        (fault, key): found.get((fault, key), found[NONE, key]) for fault in faults for key in keys
    }
    if runs[0].header.scale == "gpu":
        best = max(keys, key=lambda key: float(ends[NONE, key].mean()))
        trained_gate(parts, [groups[NONE, best][seed] for seed in seeds])
    leads, orders = {}, {}
    for fault in faults:
        leads[fault] = ends[fault, "slip"] - np.mean(
            [ends[fault, key] for key in keys if key != "slip"], axis=0
        )
        order = sorted(keys, key=lambda key: -ends[fault, key].mean())
        orders[fault] = [f"{METHODS[key].name} {ends[fault, key].mean():.3f}" for key in order]
    for fault in faults:
        if fault == NONE:
            continue
        change = mean_interval(leads[fault] - leads[NONE], miss=0.05 / (len(faults) - 1))
        moved = (change.low > 0 or change.high < 0) and abs(change.mean) >= SMALLEST
        inside = mean_interval(leads[fault] - leads[NONE], miss=0.1)  # all must say so
        parts.add(
            f"{fault}: SLIP's lead stays",
            max(abs(inside.low), abs(inside.high)) < 2 * SMALLEST,
            moved,
            f"changes by {change.words(100)} points; ranking {', '.join(orders[fault])}",
            {fault: {"change": change.triple, "ranking": orders[fault]}},
        )
    parts.note(f"without faults: {', '.join(orders[NONE])}", {"ranking": orders[NONE]})
    return parts
