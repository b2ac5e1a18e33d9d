"""Other tools on the same cases: torch-audit and torchtest2.

    python benchmarks/doctor/peers.py drawn-judged [--peers torch-audit torchtest2] [--out FOLDER]

Install the packages where Python finds them. The cases are those of the draw's record that were
kept; every case and peer appends one line to ``FOLDER/peers-DRAW.jsonl``. A peer *flags* a run if
it reports at its own level of alarm (torch-audit: ERROR, its default ``fail_level``; torchtest2:
FAIL), and *names* the cause if one of the checks that report is listed in NAMES for it. The lower
level (WARN) is recorded beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORDS = HERE.parent / "records" / "doctor"
sys.path.insert(0, str(HERE))

_BROKEN = ("nan_operation", "overflow", "bad_sample", "bad_batch", "constant_feature")
#: Rule or check -> causes that it names. Generous: a cause counts if a reader could be led to it.
NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "torch-audit": {
        "TA100": _BROKEN,
        "TA102": ("exploding_gradients", "lr_too_large", "init_too_large", "sum_not_mean"),
        "TA103": ("dead_units", "frozen_parameters", "detached_graph", "saturated_units"),
        "TA104": ("detached_graph", "frozen_parameters", "optimizer_other_parameters"),
        "TA105": ("dead_units", "saturated_units"),
        "TA301": ("unscaled_features", "bad_sample", "bad_batch", "constant_feature"),
        "TA302": ("constant_feature", "init_equal", "bad_batch"),
        "TA304": ("batch_norm_of_one",),
        "TA305": ("labels_shifted",),
        "TA401": ("weight_decay_too_large",),
        "TA405": ("dead_units", "init_too_small"),
        "TA500": ("unregistered_parameters", "optimizer_other_parameters"),
    },
    "torchtest2": {
        "forward": ("batch_norm_of_one", "labels_shifted", "wrong_axis"),
        "output_finite": _BROKEN,
        "output_varies": ("init_equal", "dead_units", "saturated_units", "wrong_axis"),
        "eval_determinism": ("dropout_in_evaluation",),
        "loss": ("detached_graph", "nan_operation", "overflow", "labels_shifted"),
        "initial_loss": ("init_too_large", "sum_not_mean", "unscaled_features"),
        "optimizer_coverage": ("optimizer_other_parameters",),
        "gradient_flow": ("detached_graph", "dead_units", "frozen_parameters", "init_equal"),
        "gradient_magnitude": (
            "exploding_gradients",
            "nan_operation",
            "init_too_large",
            "overflow",
        ),
        "params_change": (
            "optimizer_other_parameters",
            "lr_too_small",
            "detached_graph",
            "dead_units",
        ),
        "frozen_params": ("frozen_parameters",),
        "input_dependency": ("detached_graph", "dead_units", "constant_feature"),
        "batch_independence": ("wrong_axis",),
        # It names nothing, but a reader tries the rate and the size of the network first.
        "overfit_batch": ("lr_too_large", "lr_too_small", "underfitting"),
    },
}


class _Given:
    """Stands for the model inside a loss of (model, batch) when its output is already there."""

    training = True

    def __init__(self, out: Any) -> None:
        self.out = out

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self.out

    def train(self, mode: bool = True) -> None:
        self.training = mode

    def parameters(self) -> list[Any]:
        return []


def _read_made(case: Any) -> dict[str, Any]:
    if isinstance(case, dict):
        return case
    from mindgap.advise.doctor.patient import _read_parts

    p = _read_parts(case)
    found = {"model": p.model, "loss": p.loss, "train": p.train, "optimizer": p.optimizer}
    return {**found, "step": p.step, "scheduler": p.scheduler}


def audited(parts: dict[str, Any], steps: int = 20) -> list[tuple[str, str]]:
    """torch-audit around the user's own loop, every step."""
    from torch_audit import autopatch

    model, optimizer = parts["model"], parts["optimizer"]
    auditor = autopatch(
        model, optimizer=optimizer, every_n_steps=1, reporters=[], run_static=True, run_init=True
    )
    batches = list(parts["train"])
    model.train()
    try:
        for k in range(steps):
            batch = batches[k % len(batches)]
            if parts.get("step") is not None:
                parts["step"](batch)
            else:
                optimizer.zero_grad()
                parts["loss"](model, batch).backward()
                optimizer.step()
            if parts.get("scheduler") is not None:
                parts["scheduler"].step()
    finally:
        result = auditor.finish(report=False)
    found = {(f.rule_id, str(getattr(f.severity, "name", f.severity))) for f in result.findings}
    return sorted(found)


def tested(parts: dict[str, Any]) -> list[tuple[str, str]]:
    """torchtest2's check_model on the first batch."""
    import torchtest2

    batch = next(iter(parts["train"]))
    if isinstance(batch, dict):
        inputs, targets = batch["x"], batch["label"]
    elif isinstance(batch, (tuple, list)):
        inputs, targets = batch[0], batch[-1]
    else:
        inputs, targets = batch, batch

    def loss(out: Any, targets: Any) -> Any:
        if isinstance(batch, dict):
            return parts["loss"](_Given(out), {"x": inputs, "label": targets})
        given = (inputs, targets) if isinstance(batch, (tuple, list)) else inputs
        return parts["loss"](_Given(out), given)

    report = torchtest2.check_model(
        parts["model"], inputs, targets, loss_fn=loss, optimizer=parts["optimizer"]
    )
    found = []
    for result in report.results:
        status = str(getattr(result.status, "name", result.status)).upper()
        if status in ("FAIL", "WARN"):
            found.append((result.name, "ERROR" if status == "FAIL" else "WARN"))
    return sorted(found)


def one(task: tuple[str, str, str, str]) -> dict[str, Any]:
    draw, title, cause, peer = task
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    import draws  # noqa: F401
    from drawn import draft

    case, _ = draft(draw, title)
    row: dict[str, Any] = {"name": title, "cause": cause, "peer": peer}
    begun = time.process_time()
    try:
        torch.manual_seed(0)
        parts = _read_made(case.build())
        found = audited(parts) if peer == "torch-audit" else tested(parts)
        row["reports"] = found
    except Exception as error:
        row["reports"], row["raised"] = [], f"{type(error).__name__}: {error}"[:160]
    names = NAMES[peer]
    for level, key in ((("ERROR", "FATAL"), "flags"), (("ERROR", "FATAL", "WARN"), "warns")):
        own = [check for check, severity in row["reports"] if severity in level]
        row[key] = bool(own)
        row[key.replace("s", "_named") if key == "warns" else "named"] = any(
            cause in names.get(check, ()) for check in own
        )
    row["cpu_seconds"] = round(time.process_time() - begun, 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("draw")
    parser.add_argument("--peers", nargs="*", default=list(NAMES))
    parser.add_argument("--cases", type=Path, help="the draw's record; default: the committed one")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--limit", type=float, default=math.inf)
    options = parser.parse_args()
    cases = options.cases or RECORDS / f"{options.draw}.jsonl"
    path = options.file or RECORDS / f"peers-{options.draw}.jsonl"
    rows = [json.loads(line) for line in cases.read_text("utf-8").splitlines()]
    done = set()
    if path.exists():
        known = map(json.loads, path.read_text("utf-8").splitlines())
        done = {(r["name"], r["peer"]) for r in known}
    tasks = [
        (options.draw, r["name"], r["cause"], peer)
        for r in rows
        for peer in options.peers
        if r["kept"] and (r["name"], peer) not in done
    ]
    begun = time.perf_counter()
    workers = int(os.environ.get("DOCTOR_WORKERS", "6"))
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for row in pool.imap_unordered(one, tasks):
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            if time.perf_counter() - begun > options.limit:
                pool.terminate()
                break


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
