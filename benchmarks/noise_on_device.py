"""Milliseconds per minibatch of the gradient noise of BERT, one minibatch at a time and several.

    python benchmarks/noise_on_device.py
    python benchmarks/noise_on_device.py --batch 32 --together 1 2 4 8 --pipeline fixed real
    python benchmarks/noise_on_device.py --device cpu --minibatches 8 --width 64 --made-up

The network is that of study H6 at scale gpu. A time is that of the last ``--minibatches``, draws
included, after 256 others: captures and the mean gradient do not count. TFLOP/s count the products
of matrices only; the first line says what one product of these shapes reaches alone.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from itertools import product

import torch
from torch.utils.flop_counter import FlopCounterMode

from mindgap.base.rng import numpy_stream, torch_stream
from mindgap.lab.studies.noise_runs import ON_DEVICE
from mindgap.lab.tasks.problems import papers
from mindgap.lab.tasks.problems.training import TrainingProblem
from mindgap.measure.captured import tf32
from mindgap.measure.captured_noise import DRAWN, _group_size, captured_noise


def seconds(device: str, call: Callable[[], object]) -> float:
    """Seconds of a call, the device's work included."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def flops(problem: TrainingProblem, device: str, batch: int) -> int:
    """Of the gradient of one minibatch."""
    minibatch = problem.draw(torch_stream(0, "flops", device=device), batch)
    with FlopCounterMode(display=False) as counter:
        problem.objective.value_and_grad(minibatch)
    return counter.get_total_flops()


def ceiling(device: str, width: int) -> float:
    """TFLOP/s of (8192 x width) times (width x 4 width), without waiting in between."""
    a, b = torch.randn(8192, width, device=device), torch.randn(width, 4 * width, device=device)
    seconds(device, lambda: a @ b)
    times = seconds(device, lambda: [a @ b for _ in range(50)]) / 50
    return 2 * 8192 * 4 * width**2 / times / 1e12


def noise(
    problem: TrainingProblem, device: str, batch: int, together: int, minibatches: int
) -> list[float]:
    """Measure so many minibatches around the mean of two others; the times of all draws and of the
    end.
    """
    times = []

    def draw(generator: torch.Generator, size: int) -> tuple[torch.Tensor, ...]:
        seconds(device, lambda: None)
        times.append(time.perf_counter())
        return problem.draw(generator, size)

    captured_noise(
        problem.objective,
        draw,
        torch_stream(0, "noise", device=device),
        minibatches=minibatches,
        reference=2,
        batch=batch,
        together=together,
    )
    return [*times, time.perf_counter()]


def kernels(problem: TrainingProblem, device: str, batch: int, together: int) -> str:
    """The fifteen kernels that take the most time."""
    with torch.profiler.profile() as profile:
        noise(problem, device, batch, together, DRAWN)
    order = f"self_{device}_time_total"
    return profile.key_averages().table(sort_by=order, row_limit=15, max_name_column_width=90)


def measured(
    problem: TrainingProblem, device: str, batch: int, together: int, minibatches: int
) -> str:
    """Milliseconds per minibatch, seconds before the first one and GiB of memory."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        times = noise(problem, device, batch, together, DRAWN + minibatches)
    # The draws: of the mean gradient, of 256 minibatches, of those that count.
    first, last = times[-1 - math.ceil(minibatches / DRAWN)], times[-1]
    each = (last - first) / minibatches
    drawn = seconds(
        device, lambda: problem.draw(torch_stream(0, "draw", device=device), DRAWN * batch)
    )
    memory = torch.cuda.max_memory_reserved() / 2**30 if device == "cuda" else 0.0
    rate = flops(problem, device, batch) / each / 1e12
    text = (
        f"{1000 * each:8.3f} ms  {rate:6.1f} TFLOP/s  captures "
        f"{first - start - DRAWN * each:5.1f} s  draws {1000 * drawn / DRAWN:.4f} ms  "
        f"{memory:5.1f} GiB"
    )
    return "\n".join([text, *sorted({f"  warning: {w.message}"[:300] for w in caught})])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minibatches", type=int, default=512)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument(
        "--together", type=int, nargs="+", default=[1, 0], help="0: as many as the study takes"
    )
    parser.add_argument("--pipeline", nargs="+", default=["real"], choices=["fixed", "real"])
    parser.add_argument(
        "--cell",
        nargs="+",
        default=["attention, text"],
        choices=[f"{a}attention, {b}" for a in ("", "no ") for b in ("text", "Gaussian input")],
    )
    parser.add_argument("--width", type=int, default=ON_DEVICE["text_width"])
    parser.add_argument("--made-up", action="store_true", help="random text; needs no data")
    parser.add_argument("--profile", action="store_true", help="list the kernels of each cell")
    given = parser.parse_args(arguments)
    if given.made_up:
        text = numpy_stream(0, "text").zipf(1.2, 2_000_000) % (ON_DEVICE["words"] - 5) + 5
        papers.wikitext_pieces = lambda words: {"train": text}
    with tf32(True):
        print(f"one product: {ceiling(given.device, given.width):.0f} TFLOP/s", flush=True)
        for cell, pipeline in product(given.cell, given.pipeline):
            problem = papers.masked_bert(
                given.device,
                words=ON_DEVICE["words"],
                width=given.width,
                layers=ON_DEVICE["layers"],
                length=ON_DEVICE["length"],
                attention=cell.startswith("attention"),
                gaussian=cell.endswith("Gaussian input"),
                real=pipeline == "real",
            )
            for batch, size in product(given.batch, given.together):
                together = size or _group_size(problem.objective, batch)
                found = measured(problem, given.device, batch, together, given.minibatches)
                name = f"{cell}, {pipeline}, batch {batch:2d}, {together:2d} together:"
                print(f"{name:52s} {found}", flush=True)
                if given.profile:
                    print(kernels(problem, given.device, batch, together), flush=True)


if __name__ == "__main__":
    main()
