"""Optimizer steps against torch's, in one run: ratios, the bytes-over-bandwidth limit, and peak
extra memory.

    python benchmarks/optim.py                      both parameter sets on the CPU,
        and on CUDA where there is one
    python benchmarks/optim.py --device cpu --sets small --repeats 50

Every contender steps the same parameter set with the same gradients. Contenders are timed in turn,
round after round, so that a busy machine slows all of them alike; the median over rounds counts.
Two times are given: of a step among steps made back to back (the host runs ahead of a device), and
of a step alone, from the host's call to the end of the device's work. The limit is the fewest bytes
the rule must move, divided by the bandwidth of a copy measured in the same run.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from mindgap.optim import SGD, ACClip, AdamW, CClip, GClip, NormalizedSGD, StochasticINGD


def bert_shapes() -> list[tuple[int, ...]]:
    """BERT-base: 109.5 M parameters in 199 tensors (embeddings, 12 layers, pooler)."""
    shapes: list[tuple[int, ...]] = [(30522, 768), (512, 768), (2, 768), (768,), (768,)]
    for _ in range(12):
        shapes += [(768, 768), (768,)] * 4 + [(768,), (768,)]
        shapes += [(3072, 768), (3072,), (768, 3072), (768,), (768,), (768,)]
    return [*shapes, (768, 768), (768,)]


def small_shapes(device: str) -> list[tuple[int, ...]]:
    """CPU: 1 M parameters in 60 tensors; CUDA: 3.9 M in 120."""
    side, pairs = (182, 30) if device == "cpu" else (254, 60)
    return [(side, side), (side,)] * pairs


#: name -> (constructor, bytes per float32 parameter that the rule must move)
OURS = {
    "AdamW clip": (lambda p, **o: AdamW(p, clip=1.0, **o), 32),
    "AdamW clip auto": (lambda p, **o: AdamW(p, clip="auto", **o), 32),
    "AdamW clip noise": (lambda p, **o: AdamW(p, clip="noise", **o), 40),
    "AdamW clip guard": (lambda p, **o: AdamW(p, clip=1.0, spike_guard="clip", **o), 32),
    "AdamW": (lambda p, **o: AdamW(p, clip=None, **o), 28),
    "AdamW clip unit": (lambda p, **o: AdamW(p, clip="unit", **o), 32),
    "AdamW coordinates": (lambda p, **o: AdamW(p, clip="unit", coordinates=3.0, **o), 40),
    "AdamW amsgrad": (lambda p, **o: AdamW(p, amsgrad=True, clip=None, **o), 36),
    "SGD clip": (lambda p, **o: SGD(p, 1e-3, momentum=0.9, clip=1.0, **o), 24),
    "ACClip default": (lambda p, **o: ACClip(p, **o), 32),
    "ACClip unit": (lambda p, **o: ACClip(p, clip="unit", **o), 32),
    "ACClip second": (lambda p, **o: ACClip(p, form="second_moment", **o), 32),
    "ACClip": (
        lambda p, **o: ACClip(p, 1e-3, form="algorithm", bias_correction=False, clip=None, **o),
        28,
    ),
    "CClip": (lambda p, **o: CClip(p, 1e-3, 1.0, **o), 12),
    "CClip momentum": (lambda p, **o: CClip(p, 1e-3, 1.0, beta=0.9, **o), 20),
    "GClip": (lambda p, **o: GClip(p, 1e-3, 1.0, **o), 16),
    "GClip momentum": (lambda p, **o: GClip(p, 1e-3, 1.0, beta=0.9, clip="momentum", **o), 24),
    "GClip gradient": (lambda p, **o: GClip(p, 1e-3, 1.0, beta=0.9, **o), 24),
    "GClip auto": (lambda p, **o: GClip(p, 1e-3, "auto", beta=0.9, **o), 24),
    "GClip guard": (lambda p, **o: GClip(p, 1e-3, 1.0, beta=0.9, spike_guard="clip", **o), 24),
    "NormalizedSGD": (lambda p, **o: NormalizedSGD(p, 1e-3, **o), 16),
    "StochasticINGD": (lambda p, **o: StochasticINGD(p, clip=None, **o), 28),
    "StochasticINGD auto": (lambda p, **o: StochasticINGD(p, **o), 32),
}


def pair(params: list[Any], optimizer: Any) -> Any:
    """What everybody writes: clip the norm, then step."""

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()

    return step


def judging(params: list[Any]) -> Any:
    """A step of ``AdamW(clip="noise")`` at which every gradient counts as large, which costs most;
    with a small copy that makes it so.
    """
    optimizer = AdamW(params, clip="noise")
    optimizer.step()
    window = optimizer.param_groups[0]["norms"]

    def step() -> None:
        window.fill_(1e-9)
        optimizer.step()

    return step


def contenders(params: list[Any], device: str, which: str) -> dict[str, tuple[Any, int]]:
    """name -> (step function, bytes per parameter)."""
    found: dict[str, tuple[Any, int]] = {}
    theirs = {
        "SGD momentum": (lambda **o: torch.optim.SGD(params, 1e-3, momentum=0.9, **o), 20),
        "Adam": (lambda **o: torch.optim.Adam(params, **o), 28),
        "AdamW": (lambda **o: torch.optim.AdamW(params, **o), 28),
    }
    forms = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}
    for name, (make, size) in theirs.items():
        for form, options in forms.items():
            if form in which.split(","):
                found[f"torch {name} {form}"] = (make(**options).step, size)
    found["torch clip_grad_norm_"] = (lambda: torch.nn.utils.clip_grad_norm_(params, 1.0), 12)
    for name, (make, size) in theirs.items():
        if name != "Adam" and "fused" in which.split(","):
            found[f"torch clip_grad_norm_ + {name} fused"] = (
                pair(params, make(fused=True)),
                size + 12,
            )
    for name, (build, size) in OURS.items():
        for form, options in {"fused": {"fused": None}, "foreach": {"foreach": True}}.items():
            if form in which.split(","):
                optimizer = build(params, **options)
                found[f"{name} {form}"] = (optimizer.step, size)
    if "fused" in which.split(","):
        found["AdamW clip noise fused, judging at every step"] = (judging(params), 40)
    return found


def bandwidth(device: str) -> float:
    """Bytes a second of a copy, read and written bytes counted."""
    n = 2**28 if device == "cuda" else 2**26
    a, b = torch.rand(n, device=device), torch.empty(n, device=device)
    times = []
    for _ in range(12):
        begin = time.perf_counter()
        for _ in range(5 if device == "cuda" else 1):
            b.copy_(a)
        wait(device)
        times.append((time.perf_counter() - begin) / (5 if device == "cuda" else 1))
    return 8 * n / min(times)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


#: Reads seconds; ``--clock cpu`` counts the thread's own time only, for a machine that others use
#: too.
CLOCK = {"wall": time.perf_counter, "cpu": time.thread_time}
clock = CLOCK["wall"]


def timed(step: Any, device: str, burst: int) -> float:
    wait(device)
    begin = clock()
    for _ in range(burst):
        step()
    wait(device)
    return (clock() - begin) / burst


def extra_memory(step: Any, device: str) -> float:
    """Peak bytes beyond what was allocated before a step, in MiB (CUDA: the allocator's count;
    CPU: resident set).
    """
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    return resident_peak(step)


def resident_peak(step: Any) -> float:
    """MiB by which a call's peak of resident memory exceeds what was resident before it (Linux;
    else NaN).
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    except OSError:
        return float("nan")
    before = _status("VmRSS")
    step()
    return (_status("VmHWM") - before) / 2**10


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


#: What to compare, in one run: ours, theirs, how many times as fast ours must be (below 1: how much
#: slower it may be).
PAIRS = (
    ("AdamW clip fused", "torch clip_grad_norm_ + AdamW fused", {"cpu": 1.5, "cuda": 2.5}),
    ("AdamW clip unit fused", "torch clip_grad_norm_ + AdamW fused", {"cuda": 1.0}),
    ("AdamW coordinates fused", "torch clip_grad_norm_ + AdamW fused", {"cuda": 1.0}),
    ("ACClip unit fused", "torch clip_grad_norm_ + AdamW fused", {"cuda": 1.0}),
    ("SGD clip fused", "torch clip_grad_norm_ + SGD momentum fused", {}),
    ("AdamW clip noise fused", "torch clip_grad_norm_ + AdamW fused", {"cpu": 1.0, "cuda": 1.0}),
    ("AdamW clip auto fused", "AdamW clip fused", {"cpu": 0.97, "cuda": 0.97}),
    ("AdamW clip guard fused", "AdamW clip fused", {"cpu": 0.97, "cuda": 0.97}),
    ("GClip auto fused", "GClip gradient fused", {"cpu": 0.97, "cuda": 0.97}),
    ("GClip guard fused", "GClip gradient fused", {"cpu": 0.97, "cuda": 0.97}),
    ("ACClip foreach", "torch AdamW foreach", {}),
)


def run(
    device: str, name: str, shapes: list[tuple[int, ...]], rounds: int, which: str, only: str
) -> None:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(s, device=device) * 0.02) for s in shapes]
    for p in params:
        p.grad = torch.randn_like(p) * 1e-3
    total = sum(p.numel() for p in params)
    speed = bandwidth(device)
    print(f"\n## {device}, {name}: {total / 1e6:.1f} M float32 parameters in {len(params)} tensors")
    print(f"copy bandwidth {speed / 1e9:.0f} GB/s, torch threads {torch.get_num_threads()}\n")
    found = contenders(params, device, which)
    starts = tuple(only.split(","))
    found = {k: v for k, v in found.items() if k.startswith((*starts, "torch "))}
    burst = 1 if device == "cpu" and total > 2e7 else 20
    times: dict[str, list[float]] = {key: [] for key in found}
    alone: dict[str, list[float]] = {key: [] for key in found}
    memory = {}
    for key, (step, _) in found.items():
        step()
        step()
        wait(device)
        memory[key] = extra_memory(step, device)
        print(f"  ready: {key}", file=sys.stderr, flush=True)  # a first step may compile
    for _ in range(rounds):
        for key, (step, _) in found.items():
            times[key].append(timed(step, device, burst))
            alone[key] += (
                [timed(step, device, 1) for _ in range(10)] if burst > 1 else times[key][-1:]
            )
    nothing = [float("nan")]
    base = statistics.median(times.get("torch AdamW fused", nothing))
    base_alone = statistics.median(alone.get("torch AdamW fused", nothing))
    print(
        "| step | ms | times AdamW fused | ms alone | times AdamW fused "
        "| byte limit, ms | ms / limit | ms alone / limit | extra MiB |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for key, (_, size) in found.items():
        middle, single, limit = (
            statistics.median(times[key]),
            statistics.median(alone[key]),
            size * total / speed,
        )
        cells = (
            f"{middle * 1e3:.3f} | {middle / base:.3f} | {single * 1e3:.3f} | "
            f"{single / base_alone:.3f}"
        )
        ratios = f"{middle / limit:.2f} | {single / limit:.2f}"
        print(f"| {key} | {cells} | {limit * 1e3:.3f} | {ratios} | {memory[key]:.1f} |", flush=True)
    print("\n| pair, median of the rounds' ratios | times as fast | aim |\n|---|---|---|")
    for ours, other, aims in PAIRS:
        if ours in times and other in times:
            ratio = statistics.median(b / a for a, b in zip(times[ours], times[other]))
            print(f"| {ours} against {other} | {ratio:.3f} | {aims.get(device, '')} |", flush=True)


def first_step(device: str) -> None:
    """Seconds that the first step of a process takes, with and without compiled code on disk."""
    program = (
        "import time, torch; from mindgap.optim import ACClip, GClip\n"
        f"p = torch.nn.Parameter(torch.ones(1000, device='{device}')); p.grad = "
        "torch.ones_like(p)\n"
        "for o in (ACClip([p]), GClip([p], 1e-3, 1.0)):\n"
        "    t = time.perf_counter(); o.step(); print(type(o).__name__, round(time.perf_counter() "
        "- t, 2), end='  ')\n"
    )
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        root = str(Path(__file__).resolve().parents[1])
        environment = {
            **os.environ,
            "NUMBA_CACHE_DIR": folder,
            "TRITON_CACHE_DIR": folder,
            "PYTHONPATH": root,
        }
        print(f"\nseconds of a process's first steps on {device}:")
        for label in ("nothing compiled", "compiled before"):
            done = subprocess.run(
                [sys.executable, "-c", program], env=environment, capture_output=True, text=True
            )
            print(f"  {label}: {done.stdout.strip() or done.stderr[-300:]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="all", choices=("all", "cpu", "cuda"))
    parser.add_argument("--sets", default="bert,small")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--forms", default="fused,foreach,loop", help="which forms to time")
    parser.add_argument("--only", default="", help="beginnings of the names of ours to time")
    parser.add_argument(
        "--clock",
        default="wall",
        choices=CLOCK,
        help="cpu: the thread's own time (one thread only)",
    )
    arguments = parser.parse_args()
    global clock
    clock = CLOCK[arguments.clock]
    if arguments.clock == "cpu":
        torch.set_num_threads(1)
    devices = ["cpu"] if arguments.device in ("all", "cpu") else []
    if arguments.device in ("all", "cuda") and torch.cuda.is_available():
        devices.append("cuda")
    try:
        import triton

        version = triton.__version__
    except ImportError:
        version = "none"
    try:
        import numba

        compiler = numba.__version__
    except ImportError:
        compiler = "none"
    print(
        f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, torch "
        f"{torch.__version__}, "
        f"triton {version}, numba {compiler}, {platform.machine()}"
    )
    for device in devices:
        if device == "cuda":
            print(torch.cuda.get_device_name())
        for name in arguments.sets.split(","):
            shapes = bert_shapes() if name == "bert" else small_shapes(device)
            run(device, name, shapes, arguments.rounds, arguments.forms, arguments.only)
        first_step(device)


if __name__ == "__main__":
    main()
