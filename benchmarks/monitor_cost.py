"""What the monitor costs by default: the same steps with and without it, in turn, in one run.

    python benchmarks/monitor_cost.py                     # models of several sizes on the CPU
    python benchmarks/monitor_cost.py --device cuda       # and one of 100 million parameters
    python benchmarks/monitor_cost.py --examine           # seconds of ``examine`` instead

One model trains in blocks of about 20 ms. In random order, every third block has the monitor
attached and the other two have not. (Two models side by side differ by several percent without any
monitor: their arrays lie elsewhere.) ``overhead`` compares the sums of all blocks, rare expensive
readings included; ``error`` is its standard error; ``median`` compares pairs of blocks; ``control``
is the same for the two kinds of blocks without a monitor and so should be 0. ``own_clock`` is the
share that the monitor counts itself. CPU time of the process is used on the CPU, so that other
programs count little; wall time with a synchronised device on a GPU.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mindgap.base.objective import Objective
from mindgap.measure import Monitor

Made = tuple[nn.Module, list[Any], torch.optim.Optimizer]


def loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy over the last axis."""
    scores = model(batch[0])
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), batch[1].reshape(-1))


class Language(nn.Module):
    """A transformer over tokens."""

    def __init__(self, words: int, width: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        block = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.table(x)))


def mlp(device: str) -> Made:
    """5 thousand parameters, 32 samples."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    batches = [(torch.randn(32, 64), torch.randint(10, (32,))) for _ in range(16)]
    return model, _on(batches, device), torch.optim.AdamW(model.parameters(), lr=1e-3)


def middle(device: str) -> Made:
    """101 thousand parameters, 64 samples."""
    model = nn.Sequential(
        nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    ).to(device)
    batches = [(torch.randn(64, 128), torch.randint(10, (64,))) for _ in range(16)]
    return model, _on(batches, device), torch.optim.AdamW(model.parameters(), lr=1e-3)


def wide(device: str) -> Made:
    """1.1 million parameters, 64 samples."""
    model = nn.Sequential(
        nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 400)
    ).to(device)
    batches = [(torch.randn(64, 256), torch.randint(400, (64,))) for _ in range(16)]
    return model, _on(batches, device), torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def convolution(device: str) -> Made:
    """A convolutional net with batch norm, 28 thousand parameters, 32 pictures."""
    layers: list[nn.Module] = []
    for a, b in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10)).to(device)
    batches = [(torch.randn(32, 3, 16, 16), torch.randint(10, (32,))) for _ in range(16)]
    return model, _on(batches, device), torch.optim.AdamW(model.parameters(), lr=1e-3)


def small_language(device: str) -> Made:
    """A transformer with 0.9 million parameters, 8 texts of 64 tokens."""
    model = Language(512, 128, 4).to(device)
    tokens = [torch.randint(512, (8, 65)) for _ in range(16)]
    batches = [(t[:, :-1], t[:, 1:]) for t in tokens]
    return model, _on(batches, device), torch.optim.AdamW(model.parameters(), lr=1e-3)


def large_language(device: str) -> Made:
    """A transformer with about 100 million parameters, 8 texts of 256 tokens."""
    model = Language(16384, 768, 10).to(device)
    tokens = [torch.randint(16384, (8, 257)) for _ in range(16)]
    batches = [(t[:, :-1].contiguous(), t[:, 1:].contiguous()) for t in tokens]
    return model, _on(batches, device), torch.optim.AdamW(model.parameters(), lr=1e-4)


MODELS: dict[str, Callable[[str], Made]] = {
    "mlp": mlp,
    "middle": middle,
    "wide": wide,
    "convolution": convolution,
    "transformer": small_language,
}
LARGE = {"transformer-100M": large_language}


def _on(batches: list[Any], device: str) -> list[Any]:
    return [tuple(t.to(device) for t in batch) for batch in batches]


def train(objective: Objective, made: Made, begin: int, steps: int) -> float:
    """Seconds of some steps."""
    _, batches, optimizer = made
    cuda = batches[0][0].is_cuda
    clock = time.perf_counter if cuda else time.process_time
    if cuda:
        torch.cuda.synchronize()
    start = clock()
    for k in range(begin, begin + steps):
        optimizer.zero_grad()
        objective.value(batches[k % len(batches)]).backward()
        optimizer.step()
    if cuda:
        torch.cuda.synchronize()
    return clock() - start


@contextmanager
def detached(monitor: Monitor) -> Iterator[None]:
    """The monitor's hooks are off within the block, and its clock stands still."""
    begin, optimizer = time.perf_counter(), monitor._optimizer
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    held = [dict(h) for h in hooks]
    noting, monitor._objective.loss = monitor._objective.loss, monitor._own_loss
    for h in hooks:
        h.clear()
    try:
        yield
    finally:
        for h, entries in zip(hooks, held, strict=True):
            h.update(entries)
        monitor._objective.loss = noting
        monitor._begun_at += time.perf_counter() - begin


def overhead(name: str, make: Callable[[str], Made], device: str, seconds: float) -> dict[str, Any]:
    """Blocks of steps of one model with the monitor, without it, and again without it."""
    torch.manual_seed(0)
    made = make(device)
    objective = Objective(made[0], loss)
    monitor = Monitor(made[2], objective, made[1][:8])
    train(objective, made, 0, 20)
    with detached(monitor):
        pace = train(objective, made, 0, 20) / 20
    steps = max(2, min(50, round(0.02 / pace)))
    kept: dict[str, list[float]] = {"with": [], "without": [], "again": []}
    order, begin = list(kept), 0
    shuffle = random.Random(0).shuffle
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(kept["with"]) < 10:
        shuffle(order)
        for kind in order:
            if kind == "with":
                kept[kind].append(train(objective, made, begin, steps))
                continue
            with detached(monitor):
                kept[kind].append(train(objective, made, begin, steps))
        begin += steps
    own = monitor.spent / max(monitor.training, 1e-9)
    monitor.close()
    reference = [0.5 * (a + b) for a, b in zip(kept["without"], kept["again"], strict=True)]
    return {
        "model": name,
        "device": device,
        "parameters": sum(p.numel() for p in made[0].parameters()),
        "milliseconds": round(1e3 * statistics.median(reference) / steps, 3),
        **_compared(kept["with"], reference),
        "control": _compared(kept["again"], kept["without"]),
        "blocks": len(reference),
        "steps_per_block": steps,
        "own_clock": round(own, 4),
        "states": monitor._recorder.states_kept,
        "steps": monitor.step,
        "rows": len(monitor.readings),
        "probes": {g.names: g.readings for g in monitor._groups},
        "memory_MB": round(sum(s.bytes for s in monitor._recorder.states) / 1e6, 1),
    }


def _compared(those: list[float], reference: list[float]) -> dict[str, Any]:
    """Overhead of all blocks together, with its standard error, and of the block in the middle."""
    total = sum(those) / sum(reference) - 1
    mean = statistics.fmean(reference)
    spread = statistics.stdev([a - (1 + total) * b for a, b in zip(those, reference, strict=True)])
    middle = statistics.median([a / b for a, b in zip(those, reference, strict=True)]) - 1
    error = spread / (mean * math.sqrt(len(reference)))
    return {"overhead": round(total, 4), "error": round(error, 4), "median": round(middle, 4)}


def examined(name: str, make: Callable[[str], Made], device: str, seconds: float) -> dict[str, Any]:
    """Seconds that ``examine`` takes with its default time."""
    from mindgap.advise import examine

    def problem() -> Any:
        torch.manual_seed(0)
        model, batches, optimizer = make(device)
        return (model, loss), batches, optimizer

    wall, work = time.perf_counter(), time.process_time()
    answer = examine(problem, seconds=seconds)
    return {
        "model": name,
        "device": device,
        "asked": seconds,
        "wall": round(time.perf_counter() - wall, 2),
        "cpu": round(time.process_time() - work, 2),
        "sentence": answer.sentence,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=20.0, help="per model")
    parser.add_argument("--examine", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    chosen = MODELS | (LARGE if given.device != "cpu" else {})
    for name, make in chosen.items():
        if given.only not in name:
            continue
        run = examined if given.examine else overhead
        line = json.dumps(run(name, make, given.device, given.seconds))
        print(line, flush=True)
        if given.out:
            with given.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
