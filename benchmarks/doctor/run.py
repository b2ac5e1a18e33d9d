"""Examine the hospital and write the track record.

    python benchmarks/doctor/run.py --part development|judged|judged_again [--names A ...]
    python benchmarks/doctor/run.py --table [--docs docs/doctor.md]

Every case appends one line to ``FOLDER/PART.jsonl``; a second call does only what is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORDS = HERE.parent / "records" / "doctor"
sys.path.insert(0, str(HERE))


def examined(name: str, seconds: float) -> dict[str, Any]:
    """One line of the record."""
    from hospital import all_cases

    from mindgap.advise import examine

    case = all_cases()[name]
    begun = time.process_time(), time.perf_counter()
    answer = examine(case.build, seconds=seconds)
    trial = answer.trial
    return {
        "name": name,
        "cause": case.cause,
        "verdict": answer.verdict,
        "answers": [key for key, _ in answer.causes[:3]],
        "sure": answer.causes[0][1] if answer.causes else 0.0,
        "sentence": answer.sentence,
        "before": _number(trial.before) if trial else None,
        "after": _number(trial.after) if trial else None,
        "helps": bool(trial and trial.helps),
        "seconds": round(time.perf_counter() - begun[1], 1),
        "cpu_seconds": round(time.process_time() - begun[0], 1),
    }


def _number(value: float) -> float | str:
    return float(f"{value:.4g}") if math.isfinite(value) else "not finite"


def read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return {row["name"]: row for row in map(json.loads, lines)}


def main() -> None:
    from hospital import all_cases

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("development", "judged", "judged_again"))
    parser.add_argument("--names", nargs="*")
    parser.add_argument("--out", type=Path, default=RECORDS)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--limit", type=float, default=math.inf, help="stop after so many seconds")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    if options.table or options.docs:
        from track_record import table, written

        if options.docs:
            options.docs.write_text(written(options.docs, options.out), encoding="utf-8")
        else:
            print(table(options.out))
        return
    begun = time.perf_counter()
    path = options.out / f"{options.part}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    done = read(path)
    for name, case in all_cases().items():
        if case.part != str(options.part).removesuffix("_again") or name in done:
            continue
        if options.names and name not in options.names:
            continue
        if time.perf_counter() - begun > options.limit:
            break
        row = examined(name, options.seconds)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        right = row["verdict"] if case.cause == "healthy" else (row["answers"] or [""])[0]
        print(f"{name:40} {case.cause:24} {right:24} {row['seconds']:5} s", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
