"""Sharpness against PyHessian and curvlinops + eigsh, and the monitor's overhead: ratios in one
run.

The two peers pull torchvision, which does not go with the CPU build of torch; install them for this
script only, without dependencies, into a folder of their own:

    pip install --no-deps --target PEERS pyhessian curvlinops-for-pytorch einops einconv \
        backpack-for-pytorch unfoldNd \
        linear_operator jaxtyping wadler-lindig
    python benchmarks/measure.py --peers PEERS

Without ``--peers`` their rows are left out. Times are CPU seconds of this process with one thread,
so that a busy machine disturbs the ratios little. ``--parts`` and ``--only`` run it in portions.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import io
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mindgap.base.objective import Objective
from mindgap.measure.gradients import gradient_passes
from mindgap.measure.hessian import HessianProduct
from mindgap.measure.monitor import Monitor
from mindgap.measure.probes.curvature import Sharpness, SharpnessProbe, sharpness


@dataclass
class Case:
    """A model, the batch its sharpness is taken on, and the limits the project promises for it."""

    name: str
    model: nn.Module
    inputs: Tensor
    labels: Tensor
    lr: float
    train_batch: int
    steps: int
    product_limit: float | None
    warm_readings: int = 20

    def objective(self) -> Objective:
        return Objective(self.model, lambda m, b: F.cross_entropy(m(b[0]), b[1]))

    def train(self, steps: int, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            rows = torch.randint(0, len(self.inputs), (self.train_batch,), generator=draw)
            optimizer.zero_grad()
            F.cross_entropy(self.model(self.inputs[rows]), self.labels[rows]).backward()
            optimizer.step()

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=self.lr, momentum=0.9)


class Block(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(into, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.skip = (
            nn.Identity()
            if into == out and stride == 1
            else nn.Conv2d(into, out, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


def resnet20() -> nn.Module:
    widths = [(16, 16, 1)] * 3 + [
        (16, 32, 2),
        (32, 32, 1),
        (32, 32, 1),
        (32, 64, 2),
        (64, 64, 1),
        (64, 64, 1),
    ]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(
        *stem,
        *(Block(*w) for w in widths),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


class Transformer(nn.Module):
    """Two pre-norm layers of width 64, four heads, over 64 symbols in windows of 32; predicts
    the next symbol.
    """

    def __init__(self, symbols: int = 64, width: int = 64, length: int = 32) -> None:
        super().__init__()
        self.symbols, self.places = (
            nn.Embedding(symbols, width),
            nn.Parameter(0.02 * torch.randn(length, width)),
        )
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "n1": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "n2": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.symbols(tokens) + self.places
        for layer in self.layers:
            parts = layer["qkv"](layer["n1"](x)).chunk(3, dim=-1)
            q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in parts)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["out"](mixed.transpose(1, 2).flatten(2))
            x = x + layer["down"](F.gelu(layer["up"](layer["n2"](x))))
        return self.head(self.norm(x)).transpose(
            1, 2
        )  # (batch, symbol, place), as cross_entropy wants it


def cases(small: bool) -> list[Case]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    torch.manual_seed(0)
    flat = F.interpolate(images, size=(28, 28), mode="bilinear").flatten(1)
    flat = (flat - flat.mean()) / flat.std()
    mlp = nn.Sequential(
        nn.Linear(784, 300), nn.Tanh(), nn.Linear(300, 100), nn.Tanh(), nn.Linear(100, 10)
    )
    colour = F.interpolate(images, size=(32, 32), mode="bilinear").repeat(1, 3, 1, 1)[
        : 48 if small else 256
    ]
    # A Markov chain over 64 symbols: something to learn, made here.
    table = torch.softmax(2.5 * torch.randn(64, 64), dim=1)
    rows = [torch.randint(0, 64, (128,))]
    for _ in range(32):
        rows.append(torch.multinomial(table[rows[-1]], 1)[:, 0])
    text = torch.stack(rows, dim=1)
    return [
        Case("MLP 270k", mlp, flat, labels, 0.05, 128, 6000, 1.5),
        Case(
            "ResNet20",
            resnet20(),
            (colour - 0.3) / 0.4,
            labels[: len(colour)],
            0.05,
            8,
            1500,
            2.2,
            10,
        ),
        Case("transformer", Transformer(), text[:, :-1], text[:, 1:], 0.05, 16, 2500, None),
    ]


def least(run: Callable[[], object], times: int) -> float:
    """Least CPU seconds of several calls."""
    return in_turns({"": run}, times)[""]


def in_turns(calls: dict[str, Callable[[], object]], times: int) -> dict[str, float]:
    """Least CPU seconds of each call, taken in turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(times):
        for name, call in calls.items():
            gc.collect()
            begin = time.process_time()
            call()
            found[name].append(time.process_time() - begin)
    return {name: min(values) for name, values in found.items()}


def pyhessian_top(case: Case) -> tuple[float, int]:
    from pyhessian import hessian

    counted = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # create_graph in backward
        machine = hessian(
            case.model, nn.CrossEntropyLoss(), data=(case.inputs, case.labels), cuda=False
        )
        # The package hides this module behind a class of its name.
        inner: Any = sys.modules["pyhessian.hessian"]
        product = inner.hessian_vector_product

        def counting(*arguments: object) -> object:
            nonlocal counted
            counted += 1
            return product(*arguments)

        inner.hessian_vector_product = counting
        try:
            values, _ = machine.eigenvalues()
        finally:
            inner.hessian_vector_product = product
    for p in case.model.parameters():
        p.grad = None  # PyHessian leaves a graph there
    return float(values[0]), counted


def curvlinops_top(case: Case, tol: float) -> float:
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import eigsh

    parameters = list(case.model.parameters())
    operator = HessianLinearOperator(
        case.model,
        nn.CrossEntropyLoss(),
        parameters,
        [(case.inputs, case.labels)],
        check_deterministic=False,
    )
    return float(eigsh(operator.to_scipy(), k=1, which="LA", tol=tol, return_eigenvectors=False)[0])


def products(case: Case, repeats: int) -> Iterator[tuple[str, str, str]]:
    """Rows of (quantity, measured, promise): one Hessian product against one gradient, and what
    its graph holds.
    """
    objective, batch = case.objective(), (case.inputs, case.labels)
    with gradient_passes(objective, [batch], train=False) as passes:
        begin = resident()
        product = HessianProduct(passes)
        grown = resident() - begin
        vector = torch.randn(product.size)
        calls = {
            "gradient": lambda: objective.value_and_grad(batch),
            "product": lambda: product(vector),
        }
        times = in_turns(calls, repeats + 2)
        held = product.bytes / 2**20
        product.close()
    ratio, limit = times["product"] / times["gradient"], case.product_limit
    text = (
        f"{ratio:.2f} ({held:.0f} MiB held by its own count, resident memory grew by {grown:.0f})"
    )
    yield "product / gradient", text, f"<= {limit}" if limit else "-"


def resident() -> float:
    """MiB of memory of this process. Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def cold(case: Case, peers: bool, repeats: int) -> Iterator[tuple[str, str, str]]:
    """Rows of (quantity, measured, promise) for a reading from a random start, against the
    peers.
    """
    objective, batches = case.objective(), [(case.inputs, case.labels)]
    truth = sharpness(objective, batches, tol=1e-6, max_products=200).value
    seeds = iter(range(1000))
    readings: list[Sharpness] = []

    def ours() -> None:
        readings.append(sharpness(objective, batches, seed=next(seeds)))

    values: dict[str, float] = {}
    mine = [least(ours, 1)]
    theirs: list[float] = []
    counts, off = [], []
    if peers:
        for _ in range(repeats):
            begin = time.process_time()
            with attention_by_hand(case):
                value, count = pyhessian_top(case)
            counts.append(count)
            off.append(abs(value / truth - 1))
            theirs.append(time.process_time() - begin)
            mine.append(least(ours, 1))
        begin = time.process_time()
        with attention_by_hand(case):
            values["curvlinops"] = curvlinops_top(case, 1e-3)
        linops = time.process_time() - begin
    else:
        mine.append(least(ours, repeats))
    errors = [abs(r.value / truth - 1) for r in readings]
    spent = sum(r.products for r in readings) / len(readings)
    yield "cold: relative error, worst", f"{max(errors):.1e} in {spent:.1f} products", "<= 1e-3"
    if peers:
        mean = sum(mine) / len(mine)
        ratio = mean / (sum(theirs) / len(theirs))
        spread = f"{min(counts)} to {max(counts)} products, mean {sum(counts) / len(counts):.1f}"
        yield (
            "cold: time / PyHessian",
            f"{ratio:.2f} (its error up to {max(off):.1e}, {spread})",
            "<= 1",
        )
        error = abs(values["curvlinops"] / truth - 1)
        yield (
            "cold: time / curvlinops + eigsh",
            f"{mean / linops:.3f} (its error {error:.1e})",
            "<= 0.25",
        )


def warm(case: Case) -> Iterator[tuple[str, str, str]]:
    """Rows of (quantity, measured, promise) for readings ten training steps apart, each started
    from the last.
    """
    objective, batches = case.objective(), [(case.inputs, case.labels)]
    optimizer = case.optimizer()
    tol = SharpnessProbe().tol
    last = sharpness(objective, batches, tol=tol)
    spent, off, covered, moved = [], [], [], []
    for k in range(case.warm_readings):
        case.model.train()
        case.train(10, optimizer, seed=3000 + k)
        case.model.eval()
        before, last = last.value, sharpness(objective, batches, tol=tol, start=last)
        truth = sharpness(objective, batches, seed=k).value  # from a random start, to 0.1 %
        spent.append(last.products)
        moved.append(abs(last.value / before - 1))
        off.append(abs(last.value / truth - 1))
        covered.append(abs(last.value - truth) <= last.error + 1e-3 * truth)
    text = (
        f"{sum(spent) / len(spent):.2f} in {len(spent)} readings of {min(spent)} to {max(spent)}, "
        f"tolerance {tol:g}"
    )
    yield "warm: products per reading", text, "<= 3"
    errors = sorted(off)
    text = (
        f"median {errors[len(off) // 2]:.1e}, 9 of 10 below "
        f"{errors[int(0.9 * (len(off) - 1) + 0.5)]:.1e}, "
    )
    text += (
        f"worst {errors[-1]:.1e}; within the error beside it {sum(covered)} of {len(covered)} times"
    )
    yield "warm: relative error", text, "-"
    yield (
        "warm: change of the value per reading",
        f"median {sorted(moved)[len(moved) // 2]:.0%}",
        "-",
    )


@contextlib.contextmanager
def attention_by_hand(case: Case):
    """The peers do not switch attention kernels themselves."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH), contextlib.redirect_stdout(io.StringIO()):
        yield


def overhead(case: Case) -> Iterator[tuple[str, str, str]]:
    """CPU time of a loop with the default monitor over the same loop without it, in turns."""
    case.model.train()
    size, pieces = case.train_batch, 25
    batches = [(case.inputs[i : i + size], case.labels[i : i + size]) for i in (0, size)]
    twin = replace(case, model=copy.deepcopy(case.model))
    optimizer, other = case.optimizer(), twin.optimizer()
    monitor = Monitor(optimizer, case.objective(), batches, budget=0.05)
    plain = watched = 0.0
    gc.collect()
    # the peers bring a million objects, which a collection would go through: no part of anybody's
    # loop
    gc.freeze()
    for part in range(pieces):  # in turns, so that the machine's moods hit both
        begin, clock = time.process_time(), time.perf_counter()
        twin.train(case.steps // pieces, other, seed=part)
        plain += time.process_time() - begin
        monitor._begun_at += (
            time.perf_counter() - clock
        )  # the twin's time is no training time of this run
        begin = time.process_time()
        case.train(case.steps // pieces, optimizer, seed=part)
        watched += time.process_time() - begin
    monitor.close()
    gc.unfreeze()
    same = all(
        torch.equal(a, b)
        for a, b in zip(case.model.state_dict().values(), twin.model.state_dict().values())
    )
    names = {
        "noise": "noise_level",
        "sharpness": "sharpness_value",
        "smoothness": "smoothness_value",
    }
    counts = {name: sum(key in row for row in monitor.readings) for name, key in names.items()}
    text = (
        f"{100 * (watched / plain - 1):.1f} % (its own account "
        f"{100 * monitor.spent / monitor.training:.1f} %; "
    )
    text += (
        ", ".join(f"{n} {name}" for name, n in counts.items()) + f" readings in {case.steps} steps)"
    )
    yield "monitor, budget 0.05: overhead", text, "< 7 %"
    yield "monitored run equals the other", str(same), "True"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", help="folder with pyhessian and curvlinops")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--small", action="store_true", help="48 instead of 256 images for the ResNet"
    )
    parser.add_argument(
        "--parts", default="products,cold,warm,overhead", help="which parts, with commas"
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    given = parser.parse_args(arguments)
    if given.peers:
        sys.path.append(given.peers)
    torch.set_num_threads(1)
    for case in cases(given.small):
        if given.only not in case.name:
            continue
        print(
            f"\n{case.name}: {sum(p.numel() for p in case.model.parameters()):,} parameters",
            flush=True,
        )
        case.train(60, case.optimizer())
        case.model.eval()  # as PyHessian insists
        parts = {
            "products": lambda: products(case, given.repeats),  # noqa: B023
            "cold": lambda: cold(case, bool(given.peers), given.repeats),  # noqa: B023
            "warm": lambda: warm(case),  # noqa: B023
            "overhead": lambda: overhead(case),  # noqa: B023
        }
        rows = (row for name in given.parts.split(",") for row in parts[name]())
        for quantity, measured, promise in rows:
            print(f"  {quantity:36s} {measured:78s} {promise}", flush=True)


if __name__ == "__main__":
    main()
