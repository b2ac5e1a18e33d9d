"""Per-sample gradient norms and the memory of a noise sample: ratios to one batch gradient in one
run.

    python benchmarks/measure.py
    python benchmarks/measure_noise.py

Times are CPU seconds of this process with one thread, the least of interleaved repetitions, so that
a busy machine disturbs the ratios little. The memory is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from measure_sharpness import Case, cases, in_turns
from torch import nn

from mindgap.base.objective import Objective
from mindgap.measure.gradients import gradient_passes
from mindgap.measure.per_sample import per_sample_norms
from mindgap.measure.probes.noise import noise_sample

#: What the project promises: time of the norms over the time of one batch gradient.
LIMITS = {"MLP 270k": 1.3, "ResNet20": 3.0, "transformer": 3.0}


def norms(case: Case, repeats: int) -> list[tuple[str, str, str]]:
    """Rows of (quantity, measured, promise)."""
    case.model.eval()  # batch norm in training mode has no per-sample gradients
    objective, batch = case.objective(), (case.inputs, case.labels)
    per_sample_norms(objective, batch)  # warm
    times = in_turns(
        {
            "gradient": lambda: objective.value_and_grad(batch),
            "structure": lambda: per_sample_norms(objective, batch, method="structure"),
        },
        repeats,
    )
    found = per_sample_norms(objective, batch, method="structure")
    few = (case.inputs[:64], case.labels[:64])
    by_func = per_sample_norms(objective, few, method="func")
    error = float(abs(found.norms[:64] / by_func.norms - 1).max())
    some = in_turns(
        {
            "gradient": lambda: objective.value_and_grad(few),
            "func": lambda: per_sample_norms(objective, few, method="func"),
        },
        max(2, repeats // 3),
    )
    ratio = times["structure"] / times["gradient"]
    text = (
        f"{ratio:.2f} ({len(case.inputs)} samples, {100 * found.by_structure:.0f} % of the "
        "parameters by structure)"
    )
    return [
        ("norms by structure / one gradient", text, f"<= {LIMITS[case.name]}"),
        (
            "norms by torch.func / one gradient",
            f"{some['func'] / some['gradient']:.1f} (64 samples)",
            "-",
        ),
        ("structure against torch.func, worst", f"{error:.1e}", "-"),
    ]


def resident(field: str) -> float:
    """MiB of memory of this process: now (``VmRSS``) or at most since it was last cleared
    (``VmHWM``). Linux.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def memory(minibatches: int) -> tuple[float, float]:
    """MiB of growth of a noise sample over its start, and MiB of one gradient; run in a fresh
    process.
    """

    class Many:
        def __iter__(self):
            draw = torch.Generator().manual_seed(0)
            for _ in range(minibatches):
                yield (
                    torch.randn(2, 784, generator=draw),
                    torch.randint(0, 10, (2,), generator=draw),
                )

    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Linear(784, 300), nn.Tanh(), nn.Linear(300, 100), nn.Tanh(), nn.Linear(100, 10)
    )
    objective = Objective(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    # The code is loaded before the start: one gradient of this model, and the noise of a model of
    # four parameters.
    with gradient_passes(objective, [next(iter(Many()))]) as passes:
        for _ in passes.gradients():
            pass
    noise_sample(
        Objective(nn.Linear(3, 1), lambda m, b: m(b).mean()), [torch.ones(2, 3), torch.zeros(2, 3)]
    )
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    before = resident("VmRSS")
    sample = noise_sample(objective, Many())
    after = resident("VmHWM")
    assert sample.batches == minibatches
    return after - before, sum(p.numel() for p in model.parameters()) * 4 / 2**20


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--minibatches", type=int, default=10_000)
    parser.add_argument(
        "--small", action="store_true", help="a quarter of the images for the ResNet"
    )
    parser.add_argument("--memory-only", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.memory_only:
        print(*memory(given.minibatches))
        return
    torch.set_num_threads(1)
    for case in cases(given.small):
        print(f"\n{case.name}: {sum(p.numel() for p in case.model.parameters()):,} parameters")
        for quantity, measured, promise in norms(case, given.repeats):
            print(f"  {quantity:36s} {measured:78s} {promise}", flush=True)
    command = [sys.executable, __file__, "--memory-only", "--minibatches", str(given.minibatches)]
    growth, gradient = map(
        float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    )
    print(f"\nNoise sample of {given.minibatches:,} minibatches, MLP 270k")
    beyond, growth, gradient = (1.048576 * v for v in (growth - 2 * gradient, growth, gradient))
    text = f"{beyond:.1f} MB ({growth:.1f} in all, one gradient {gradient:.1f})"
    print(f"  {'growth beyond two gradients':36s} {text:78s} < 10 MB")


if __name__ == "__main__":
    main()
