"""B1's wide encoder in TF32 and in half precision: time per oracle call, and whether accuracies
and the order of methods stay.

    python benchmarks/half_precision.py [--calls 500] [--tuning FILE] [name=value ...]

Settings are those of scale paper, on seeds that no reported run has (2000, 2001); ``--tuning``
names the file of tuned steps. Prints one row per run: seconds to make tasks and encoder, graphs
and readings, milliseconds per call, test and training accuracy. Half precision is kept where every
method's mean test accuracy stays within a point and the order of the methods is the same, or where
they lie within half a point of each other (written before the first run on a GPU).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.loop import Trial

METHODS, SEEDS, PRECISIONS = ("SLIP", "SABA"), (2000, 2001), ("tf32", "half")


def run(method: str, seed: int, chosen: dict[str, Any]) -> dict[str, float]:
    """The last row of one run, with its seconds outside the calls."""
    study, begin = find("b1-hyper-representation"), time.perf_counter()
    trial = Trial(method, seed, study.settings("paper", method, chosen))
    rows = list(study.loop(trial))
    return {
        **rows[-1],
        "ms": 1000 * trial.seconds / rows[-1]["oracle_calls"],
        "rest": time.perf_counter() - begin - trial.seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--tuning", type=Path)
    parser.add_argument("others", nargs="*")
    options = parser.parse_args()
    others = {name: json.loads(text) for name, text in (o.split("=") for o in options.others)}
    tuned = json.loads(options.tuning.read_text())["methods"] if options.tuning else {}
    ends: dict[tuple[str, str], list[float]] = defaultdict(list)
    print("| method | seed | products | ms per call | other s | test | training |")
    print("|---|---|---|---|---|---|---|")
    for method in METHODS:
        steps = tuned.get(method, {}).get("chosen", {})
        for seed in SEEDS:
            for precision in PRECISIONS:
                chosen = {"oracle_calls": options.calls, "readings": 1, **steps, **others}
                row = run(method, seed, {**chosen, "precision": precision})
                ends[precision, method].append(row["test_accuracy"])
                print(
                    f"| {method} | {seed} | {precision} | {row['ms']:.1f} | {row['rest']:.1f} | "
                    f"{row['test_accuracy']:.4f} | {row['train_accuracy']:.4f} |",
                    flush=True,
                )
    means = {key: float(np.mean(values)) for key, values in ends.items()}
    moved = {m: 100 * (means["half", m] - means["tf32", m]) for m in METHODS}
    leads = [100 * (means[p, METHODS[0]] - means[p, METHODS[1]]) for p in PRECISIONS]
    kept = all(abs(points) < 1 for points in moved.values()) and (
        leads[0] * leads[1] > 0 or max(map(abs, leads)) < 0.5
    )
    print(f"points by half precision: {moved}; leads of {METHODS[0]}: {leads}")
    print(f"half precision is kept: {'yes' if kept else 'no'}")


if __name__ == "__main__":
    main()
