"""How often ``Monitor.autopsy`` is right: runs that break in a way that is known.

    python benchmarks/autopsy.py --part development        # or judged: the held-out cases
    python benchmarks/autopsy.py --docs docs/measure.md    # writes the tables from the records

A case counts as right if mechanism, step and, where they are planted, layer and samples are right.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from autopsy_cases import CASES, Case, Run

from mindgap.base.objective import Objective
from mindgap.measure import Monitor

RECORDS = Path(__file__).parent / "records" / "autopsy"
MARKS = ("<!-- autopsies: begin -->", "<!-- autopsies: end -->")


def train(run: Run, watched: bool = True) -> tuple[Monitor | None, int | None]:
    """The monitor after the run, and the first step whose loss or gradient was not finite."""
    objective = Objective(run.model, run.loss)
    named: dict[int, Any] = {}
    monitor = None
    if watched:
        spare = list(run.batches[-2:]) * 2
        recall = named.__getitem__ if run.style == "index" else None
        monitor = Monitor(run.optimizer, objective, spare[:2], every=10**6, recall=recall)
    first = None
    run.model.train()
    updates = 0
    for k in range(run.steps):
        if k in run.change:
            run.change[k](run)
        batch = run.batches[k % len(run.batches)]
        if k % run.accumulate == 0:
            run.optimizer.zero_grad()
        if run.style == "value":
            value = objective.value(batch)
        else:
            value = run.loss(run.model, batch)
            named[k] = batch
            if monitor is not None:
                monitor.observe(value, k if run.style == "index" else batch)
        (value / run.accumulate).backward()
        if (k + 1) % run.accumulate:
            continue
        if run.clip is not None:
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), run.clip)
        grads = [p.grad for p in run.model.parameters() if p.grad is not None]
        for g in grads:
            g.mul_(run.factor.get(k, 1.0))
        finite = all(bool(g.isfinite().all()) for g in grads) and math.isfinite(
            float(value.detach())
        )
        if first is None and not finite:
            first = updates
        run.optimizer.step()
        updates += 1
        if run.scheduler is not None:
            run.scheduler.step()
    if monitor is not None:
        monitor.close()
    return monitor, first


def judge(case: Case) -> dict[str, Any]:
    """One row."""
    run = case.build()
    monitor, first = train(run)
    assert monitor is not None
    begin = time.process_time()
    answer = monitor.autopsy()
    seconds = time.process_time() - begin
    truth = case.truth
    step = truth.step if truth.step is not None else first
    if run.accumulate > 1:
        step = 50 // run.accumulate
    layers = truth.layers
    right = {
        "mechanism": answer.mechanism == truth.mechanism,
        "step": truth.mechanism in ("", "divergence") or answer.step == step,
        "layer": not layers or any(answer.layer.startswith(name) for name in layers),
        "samples": not truth.samples or set(answer.samples) == set(truth.samples),
        "recovers": truth.recovers is None or (answer.recovered is not None) == truth.recovers,
    }
    return {
        "case": case.name,
        "planted": truth.mechanism,
        "answer": answer.mechanism,
        "right": right,
        "step": [step, answer.step],
        "seconds": round(seconds, 3),
        "sentence": answer.sentence,
        "findings": answer.findings,
    }


def wilson(k: int, n: int) -> str:
    """``k of n = share [interval]``."""
    if not n:
        return "–"
    z, p = 1.96, k / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)
    return f"{k} of {n} = {100 * p:.0f} % [{100 * max(0, low):.0f}, {100 * min(1, high):.0f}]"


def tables() -> str:
    """The tables of the document, from the records."""
    parts = {
        name: [json.loads(line) for line in path.read_text().splitlines()]
        for name in ("judged", "development")
        if (path := RECORDS / f"{name}.jsonl").exists()
    }
    words = {"judged": "held out", "development": "development"}
    lines = ["| | " + " | ".join(words[n] for n in parts) + " |", "|---" * (1 + len(parts)) + "|"]

    def row(name: str, keep: Any, right: Any) -> None:
        cells = []
        for found in parts.values():
            chosen = [r for r in found if keep(r)]
            cells.append(wilson(sum(map(right, chosen)), len(chosen)))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")

    def sick(r: Any) -> bool:
        return bool(r["planted"])

    row("mechanism, of runs with a fault", sick, lambda r: r["right"]["mechanism"])
    row("mechanism and step", sick, lambda r: r["right"]["mechanism"] and r["right"]["step"])
    row("everything that was planted", sick, lambda r: all(r["right"].values()))
    row("false alarm on a run without a fault", lambda r: not sick(r), lambda r: bool(r["answer"]))
    lines += ["", "By mechanism, both parts:", "", "| planted | cases | answers |", "|---|---|---|"]
    rows = [r for found in parts.values() for r in found]
    for kind in dict.fromkeys(r["planted"] for r in rows):
        found = [r["answer"] or "nothing" for r in rows if r["planted"] == kind]
        said = ", ".join(f"{a} {found.count(a)}" for a in sorted(set(found), key=found.count)[::-1])
        lines.append(f"| {kind or 'nothing'} | {len(found)} | {said} |")
    lines += [
        "",
        "What it gets wrong:",
        "",
        "| case | part | planted | answer |",
        "|---|---|---|---|",
    ]
    for name, found in parts.items():
        for r in found:
            if not all(r["right"].values()):
                wrong = ", ".join(k for k, v in r["right"].items() if not v)
                said = r["sentence"].replace("|", "/")
                lines.append(
                    f"| {r['case']} | {words[name]} | {r['planted'] or 'nothing'} | "
                    f"wrong {wrong}: {said} |"
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("development", "judged"))
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--docs", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if given.part:
        rows = []
        for case in CASES:
            if case.judged != (given.part == "judged") or given.only not in case.name:
                continue
            found = judge(case)
            rows.append(found)
            wrong = [k for k, v in found["right"].items() if not v]
            print(
                f"{'ok  ' if not wrong else 'MISS'} {case.name}: {wrong or ''} {found['sentence']}"
            )
        right = sum(all(r["right"].values()) for r in rows)
        print(f"{right} of {len(rows)} right")
        if not given.only:
            RECORDS.mkdir(parents=True, exist_ok=True)
            text = "".join(json.dumps(r) + "\n" for r in rows)
            (RECORDS / f"{given.part}.jsonl").write_text(text, encoding="utf-8")
    if given.docs:
        text = given.docs.read_text(encoding="utf-8")
        head, rest = text.split(MARKS[0])
        tail = rest.split(MARKS[1])[1]
        given.docs.write_text(
            f"{head}{MARKS[0]}\n\n{tables()}\n\n{MARKS[1]}{tail}", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
