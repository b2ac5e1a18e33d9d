"""Examine a draw of the drawn hospital.

    python benchmarks/doctor/run_drawn.py --register drawn-judged
    DOCTOR_WORKERS=6 python benchmarks/doctor/run_drawn.py drawn-development|drawn-judged

A case is verified first (its twin is clearly better, or the odd run trains); only verified cases
are examined. Every case appends one line to ``FOLDER/DRAW.jsonl``; a second call does what is
missing. A judged draw must be registered first, and runs only with the registered generator.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORDS = HERE.parent / "records" / "doctor"
sys.path.insert(0, str(HERE))


def register(name: str, folder: Path) -> None:
    """Write seed, sizes and the generator's hash, before any run."""
    import draws  # noqa: F401
    from drawn import CLEARLY, DRAWS, SOURCES, STEPS, generator_hash, titles

    path = folder / f"{name}.registered.json"
    if path.exists():
        raise SystemExit(f"{path.name} exists: a draw is registered once")
    cases = titles(name)
    seed, sick, odd = DRAWS[name]
    record = {
        "draw": name,
        "seed": seed,
        "sick_per_cause": sick,
        "odd_per_kind": odd,
        "drafts": len(cases),
        "sick": sum(not t.startswith("odd-") for t in cases),
        "odd": sum(t.startswith("odd-") for t in cases),
        "sources": list(SOURCES),
        "hash": generator_hash(),
        "rule": (
            f"A sick draft is kept if it misses more than {CLEARLY:.0%} of its twin's gain over "
            f"the constant answer after {STEPS} steps; an odd one if it misses less than half of "
            "its ordinary twin's gain. Kept drafts are examined once, with 20 s each."
        ),
        "counted": (
            "Named first: the verdict is 'sick' and the planted cause stands first. Among the "
            "first three: the planted cause is among the three that the answer lists, where the "
            "verdict is 'sick' or 'cannot tell'; never where it is 'healthy'. The count without "
            "'cannot tell' is published beside it."
        ),
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def one(task: tuple[str, str, float, bool]) -> dict[str, Any]:
    """Verify and examine one case; an error of ours becomes a row."""
    name, title, seconds, examines = task
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    import draws  # noqa: F401
    from drawn import draft, verified

    d, twin = draft(name, title)
    row: dict[str, Any] = {"name": title, "cause": d.cause, "family": d.family, "form": d.form}
    row["optimizer"] = d.optimizer
    try:
        begun = time.process_time()
        truth = verified(d, twin)
        row.update(
            kept=truth.kept,
            dropped=truth.why,
            loss=_number(truth.sick),
            twin=_number(truth.twin),
            constant=_number(truth.constant),
            verify_seconds=round(time.process_time() - begun, 2),
        )
    except Exception as error:
        row.update(kept=False, dropped=f"verification raises {type(error).__name__}: {error}"[:200])
    if not row["kept"] or not examines:
        return row
    from mindgap.advise import examine

    begun = time.process_time(), time.perf_counter()
    try:
        answer = examine(d.build, seconds=seconds)
    except Exception as error:
        text = f"{type(error).__name__}: {error} {traceback.format_exc()[-600:]}"
        row.update(verdict="error", answers=[], sentence=text, helps=False, findings={})
    else:
        trial = answer.trial
        row.update(
            verdict=answer.verdict,
            answers=[key for key, _ in answer.causes[:3]],
            sure=answer.causes[0][1] if answer.causes else 0.0,
            sentence=answer.sentence,
            before=_number(trial.before) if trial else None,
            after=_number(trial.after) if trial else None,
            helps=bool(trial and trial.helps),
            findings=answer.facts.get("findings", {}),
            notes=list(answer.notes),
        )
    row["seconds"] = round(time.perf_counter() - begun[1], 1)
    row["cpu_seconds"] = round(time.process_time() - begun[0], 1)
    return row


def _number(value: float) -> float | str:
    return float(f"{value:.4g}") if math.isfinite(value) else "not finite"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("draw")
    parser.add_argument("--register", action="store_true")
    parser.add_argument("--names", nargs="*")
    parser.add_argument("--out", type=Path, default=RECORDS)
    parser.add_argument("--file", type=Path, help="write here, not to OUT/DRAW.jsonl")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--limit", type=float, default=math.inf, help="stop after so many seconds")
    parser.add_argument("--verify-only", action="store_true")
    parser.add_argument("--show", action="store_true", help="print whole rows, record nothing")
    options = parser.parse_args()
    import draws  # noqa: F401
    from drawn import generator_hash, titles

    if options.register:
        return register(options.draw, options.out)
    if "judged" in options.draw:
        known = json.loads((RECORDS / f"{options.draw}.registered.json").read_text("utf-8"))
        if known["hash"] != generator_hash():
            raise SystemExit("the generator has changed since the registration")
    path = options.file or options.out / f"{options.draw}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    done = set()
    if path.exists() and not options.show:
        done = {json.loads(line)["name"] for line in path.read_text("utf-8").splitlines()}
    wanted = [t for t in titles(options.draw) if t not in done]
    if options.names:
        wanted = [t for t in wanted if any(t.startswith(n) for n in options.names)]
    workers = int(os.environ.get("DOCTOR_WORKERS", "6"))
    tasks = [(options.draw, t, options.seconds, not options.verify_only) for t in wanted]
    begun = time.perf_counter()
    host = f"{platform.machine()}, {workers} workers"
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for row in pool.imap_unordered(one, tasks):
            row["host"] = host
            if options.show:
                print(json.dumps(row, indent=1))
            else:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            if not row["kept"]:
                said = f"dropped: {row['dropped']}"
            else:
                said = row.get("verdict", "kept")
                if said == "sick":
                    said = row["answers"][0]
            print(f"{row['name']:34} {said:40} {row.get('cpu_seconds', 0):5} s", flush=True)
            if time.perf_counter() - begun > options.limit:
                pool.terminate()
                break


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
