"""Examine the published cases of ``field.py``.

    python benchmarks/doctor/run_field.py [--out FOLDER] [--names ...]

Every case appends one line to ``FOLDER/field.jsonl``; a second call does only what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
RECORDS = HERE.parent / "records" / "doctor"
sys.path.insert(0, str(HERE))


def main() -> None:
    from field import ROWS

    from mindgap.advise import examine

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RECORDS)
    parser.add_argument("--names", nargs="*")
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    path = options.out / "field.jsonl"
    done = set()
    if path.exists():
        known = map(json.loads, path.read_text("utf-8").splitlines())
        done = {(r["source"], r["name"]) for r in known}
    for row in ROWS:
        if row.build is None or (row.source, row.name) in done:
            continue
        if options.names and row.name not in options.names:
            continue
        begun = time.process_time()
        answer = examine(row.build, seconds=options.seconds)
        line = {
            "source": row.source,
            "name": row.name,
            "verdict": answer.verdict,
            "answers": [key for key, _ in answer.causes[:3]],
            "found": answer.verdict == "sick" and answer.cause in row.causes,
            "helps": bool(answer.trial and answer.trial.helps),
            "sentence": answer.sentence,
            "cpu_seconds": round(time.process_time() - begun, 1),
        }
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{row.source:16} {row.name:34} {line['found']} {answer.cause or answer.verdict}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
