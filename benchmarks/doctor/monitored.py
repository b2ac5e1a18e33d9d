"""What ``mindgap.advise.diagnose_run`` says of hospital runs that a Monitor watched.

    python benchmarks/doctor/monitored.py --part development|judged [--names A ...]
    python benchmarks/doctor/monitored.py --table

Every case trains for 240 steps with a monitor of default settings beside it; one line per case is
appended to ``monitored.jsonl``, and a second call does only what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORD = HERE.parent / "records" / "doctor" / "monitored.jsonl"
STEPS = 240
sys.path.insert(0, str(HERE))


def diagnosed(name: str) -> dict[str, Any]:
    """One line of the record."""
    import torch
    from hospital import all_cases

    from mindgap.advise import diagnose_run
    from mindgap.base.objective import Objective
    from mindgap.measure import Monitor

    case = all_cases()[name]
    torch.manual_seed(0)
    parts = case.build()
    problem = Objective(parts["model"], parts["loss"])
    optimizer, scheduler = parts["optimizer"], parts.get("scheduler")
    row: dict[str, Any] = {"name": name, "part": case.part, "cause": case.cause}
    begun = time.perf_counter()
    try:
        with Monitor(optimizer, problem, parts["train"]) as monitor:
            try:
                _train(parts, problem, optimizer, scheduler, monitor)
            except Exception as error:  # of the case: a loop that ends early is examined as well
                row["raised"] = type(error).__name__
        trained = time.perf_counter()
        answer = diagnose_run(monitor)
    except Exception as error:
        first = str(error).splitlines()[0][:160]
        return row | {"verdict": "refused", "answers": [], "sentence": first}
    return row | {
        "verdict": answer.verdict,
        "answers": [key for key, _ in answer.causes[:3]],
        "sentence": answer.sentence,
        "findings": answer.facts["findings"],
        "seconds": [round(trained - begun, 2), round(time.perf_counter() - trained, 2)],
    }


def _train(parts: Any, problem: Any, optimizer: Any, scheduler: Any, monitor: Any) -> None:
    own = parts.get("step")
    if own is None:
        parts["model"].train()
    train = list(parts["train"])
    for k in range(STEPS):
        batch = train[k % len(train)]
        epoch = getattr(scheduler, "last_epoch", None)
        if own is None:
            optimizer.zero_grad()
            problem.value(batch).backward()
            optimizer.step()
        else:
            value = own(batch)
            if value is not None:
                monitor.observe(value, batch, k % len(train))
        if scheduler is not None and scheduler.last_epoch == epoch:
            scheduler.step()


def read() -> dict[str, dict[str, Any]]:
    if not RECORD.exists():
        return {}
    lines = RECORD.read_text(encoding="utf-8").splitlines()
    return {row["name"]: row for row in map(json.loads, lines)}


def table() -> str:
    """Counts per part."""
    lines = []
    for part in ("judged", "development"):
        rows = [row for row in read().values() if row["part"] == part]
        sick = [row for row in rows if row["cause"] != "healthy"]
        healthy = [row for row in rows if row["cause"] == "healthy"]
        first = sum(r["verdict"] == "sick" and r["answers"][:1] == [r["cause"]] for r in sick)
        three = sum(r["cause"] in r["answers"] for r in sick)
        said = Counter(r["verdict"] for r in sick)
        wrong = said["sick"] - first
        odd = Counter(r["verdict"] for r in healthy)
        lines.append(
            f"{part}: {len(sick)} sick: cause named {first}, another cause {wrong}, cannot tell "
            f"{said['cannot tell']}, called healthy {said['healthy']}, monitor refuses "
            f"{said['refused']}; cause among the first three {three}. {len(healthy)} healthy: "
            f"called healthy {odd['healthy']}, false alarm {odd['sick']}, cannot tell "
            f"{odd['cannot tell']}, monitor refuses {odd['refused']}."
        )
    return "\n".join(lines)


def main() -> None:
    from hospital import all_cases

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("development", "judged"))
    parser.add_argument("--names", nargs="*")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table())
        return
    warnings.simplefilter("ignore")
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    done = read()
    for name, case in all_cases().items():
        if case.part != options.part or name in done:
            continue
        if options.names and name not in options.names:
            continue
        row = diagnosed(name)
        with RECORD.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        named = row["answers"][0] if row["verdict"] == "sick" else row["verdict"]
        mark = "" if named == case.cause else "  <-"
        print(f"{name:40} {case.cause:26} {named:26}{mark} {row.get('seconds')}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import logging

    logging.getLogger("mindgap.monitor").setLevel(logging.ERROR)
    main()
