"""Speed of the bilevel methods: ours on each backend against loops written by hand and installed peers, in one run.

    python benchmarks/bilevel.py ijcnn1        # compiled, 14 methods, 49,990 / 91,701 samples, 22 unknowns, batch 64
    python benchmarks/bilevel.py cleaning      # 784 x 10 weights, 5,000 sample weights, batch 64: eager and compiled
    python benchmarks/bilevel.py quadratic     # 32,768 / 1,024 samples, 100 / 10 unknowns: time to a level
    python benchmarks/bilevel.py scaling       # cost against samples, dimension and batch
    python benchmarks/bilevel.py rnn [--device cuda] [--hidden 4096]   # hyper-representation, eager torch, memory too

Rates are the best of several interleaved repeats; on a shared machine use the ratios. Compile time is apart. Only torch
is needed for ``rnn`` and for the eager half of ``cleaning``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import bilevel_by_hand as by_hand  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from mindgap.bilevel import METHODS, Batches, BilevelProblem, Constant, Power, solve  # noqa: E402
from mindgap.bilevel.solver import Eager  # noqa: E402

X, Y = by_hand.STEP_X, by_hand.STEP_Y
NEUMANN = {"eta": by_hand.ETA, "terms": by_hand.TERMS}
#: the same numbers the hand-written loops use
SETTINGS: dict[str, dict[str, Any]] = {
    "soba": {"lr_x": X, "lr_y": Y},
    "slip": {"lr_x": X, "lr_y": Y, "lr_z": Y},
    "slip-shared": {"lr_x": X, "lr_y": Y, "lr_z": Y, "shared_samples": True},
    "masoba": {"lr_x": X, "lr_y": Y},
    "borep": {"lr_x": X, "lr_y": Y, "lr_z": Y},
    "saba": {"lr_x": X, "lr_y": Y},
    "srba": {"lr_x": X, "lr_y": Y},
    "amigo": {"lr_x": X, "lr_y": Y},
    "stocbio": {"lr_x": X, "lr_y": Y, **NEUMANN},
    "bsa": {"lr_x": X, "lr_y": Power(Y, 0.5), **NEUMANN, "inner_exponent": 0.0, "warm": True},
    "ttsa": {"lr_x": X, "lr_y": Y, **NEUMANN},
    "mrbo": {"lr_x": X, "lr_y": Y, **NEUMANN},
    "sustain": {"lr_x": X, "lr_y": Y, **NEUMANN},
    "vrbo": {"lr_x": X, "lr_y": Y, **NEUMANN, "inner": 10, "period": 200},
    "f2sa": {"lr_x": X, "lr_y": Y, "lam": 10.0, "delta": 0.1},
}
#: iterations a second of the field's benchmark code where a loop by hand did 149,000 (design notes, quiet machine)
FIELD = {"soba": 95500, "srba": 36300, "ttsa": 24800, "sustain": 17500, "saba": 11900, "amigo": 10800, "stocbio": 11200,
         "bsa": 11400, "mrbo": 10300, "f2sa": 8100, "vrbo": 1200}  # fmt: skip


CLOCK = {"wall": time.perf_counter, "cpu": time.process_time}
clock = time.perf_counter


def best(candidates: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Shortest time of each, measured in turn so that a slow moment of the machine hits all alike."""
    times = dict.fromkeys(candidates, float("inf"))
    for _ in range(repeats):
        for name, call in candidates.items():
            begin = clock()
            call()
            times[name] = min(times[name], clock() - begin)
    return times


# Compiled, on regularisation selection.


class Slices:
    """Batches of one level for a hand-written loop: ``(i)`` the i-th of this iteration, ``.id(i)``, ``.all``."""

    def __init__(self, arrays: Any, ids: Any) -> None:
        self.arrays, self.ids = arrays, ids
        self.count = len(arrays[0])

    def id(self, i: Any) -> Any:
        return self.ids[i]

    def __call__(self, i: Any) -> Any:
        return tuple(a[self.ids[i]] for a in self.arrays)

    @property
    def all(self) -> Any:
        return tuple(a.reshape(-1, *a.shape[2:]) for a in self.arrays)


def hand_loop(loops: Any, name: str, data: Any, x: Any, y: Any, rounds: int, period: int) -> tuple[Callable, int]:
    """A jitted loop of ``rounds`` rounds, and how many iterations of the method that is."""
    import jax
    from jax import lax

    lower, upper, first, body, each = loops[name]
    if name == "srba":
        lower, upper, body, each = period - 1, period - 1, body(period), period
    if name == "vrbo":
        each, inner = period, by_hand.INNER
        lower, upper, body = period * inner * (2 + by_hand.TERMS), period * inner, body(period)
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, len(arrays[0]), (rounds, n)).astype(np.int32) for arrays, n in zip(data, (lower, upper))]
    ks = rng.integers(0, by_hand.TERMS, rounds).astype(np.int32)
    carry = first(x, y, (len(data[0][0]), len(data[1][0]))) if name == "saba" else first(x, y)

    @jax.jit
    def run(carry: Any, data: Any, ids: Any, ks: Any) -> Any:
        def one(t: Any, c: Any) -> Any:
            return body(c, Slices(data[0], ids[0][t]), Slices(data[1], ids[1][t]), ks[t], t + 1.0)

        return lax.fori_loop(0, rounds, one, carry)

    return (lambda: jax.block_until_ready(run(carry, data, ids, ks))), rounds * each


def logistic(
    n: int = 49990, m: int = 91701, d: int = 22, batch: int = 64, dtype: Any = torch.float32
) -> BilevelProblem:
    """A problem of ijcnn1's size on synthetic samples."""
    draw = torch.Generator().manual_seed(0)
    truth = torch.randn(d, generator=draw)

    def sample(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        features = torch.randn(rows, d, generator=draw)
        return features.to(dtype), torch.sign(features @ truth + torch.randn(rows, generator=draw)).to(dtype)

    softplus = torch.nn.functional.softplus

    def upper(x: Any, y: Any, b: Any) -> Any:
        return softplus(-b[1] * (b[0] @ y)).mean()

    def lower(x: Any, y: Any, b: Any) -> Any:
        return upper(x, y, b) + 0.5 * (x.exp() * y.square()).sum()

    return BilevelProblem(
        upper, lower, torch.full((d,), -1.0, dtype=dtype), torch.zeros(d, dtype=dtype),
        Batches(sample(m), batch, last="drop"), Batches(sample(n), batch, last="drop"))  # fmt: skip


def logistic_losses() -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp

    def upper(x: Any, y: Any, b: Any) -> Any:
        return jax.nn.softplus(-b[1] * (b[0] @ y)).mean()

    def lower(x: Any, y: Any, b: Any) -> Any:
        return upper(x, y, b) + 0.5 * (jnp.exp(x) * y**2).sum()

    return upper, lower


def measure_compiled(problem: BilevelProblem, losses: Any, name: str, steps: int, repeats: int, unroll: int) -> dict:
    """Iterations a second of ours and of the hand-written loop, and our compile time."""
    import jax

    from mindgap.bilevel.compiled import JaxBackend

    settings = dict(SETTINGS[name])
    period = 1
    if name == "srba":
        period = settings["period"] = (problem.lower_data.batches + problem.upper_data.batches) // 2
    method = METHODS[name.split("-")[0]](**settings)
    period = len(method.kinds())
    steps = max(steps // period, 1) * period
    backend = JaxBackend(*losses, chunk=steps, unroll=unroll)
    oracle = backend.oracle(problem, method, 0, False)
    state = backend.start(method, oracle, 0)
    begin = clock()
    if method.prelude():
        state = backend.run(state, len(method.prelude()), None, None)
    state = jax.block_until_ready(backend.run(state, steps, None, None).values) and backend.run(
        state, steps, None, None
    )
    first = clock() - begin

    def ours() -> None:
        jax.block_until_ready(backend.run(state, steps, None, None).values)

    loops = by_hand.jax_loops(*losses)
    each = {"borep": 2, "vrbo": period, "srba": period}.get(name, 1)
    hand, hand_steps = hand_loop(loops, name, (oracle.arrays["lower"], oracle.arrays["upper"]), *oracle.start,
                                 max(steps // each, 1), period)  # fmt: skip
    hand()
    times = best({"ours": ours, "hand": hand}, repeats)
    return {"ours": steps / times["ours"], "hand": hand_steps / times["hand"], "compile": first - 2 * times["ours"]}


def part_ijcnn1(options: Any) -> None:
    problem, losses = logistic(), logistic_losses()
    names = options.methods.split(",") if options.methods else list(SETTINGS)
    rows = {}
    for name in names:
        steps = {"vrbo": 200, "srba": 8192, "saba": 8192}.get(name, options.steps)
        rows[name] = measure_compiled(problem, losses, name, steps, options.repeats, options.unroll)
        if "soba" not in rows:
            continue
        print(f"# {name}: {rows[name]}", flush=True)
    scale = rows["soba"]["hand"] / 149000
    print("| method | ours it/s | by hand it/s | ours / by hand | ours / field (scaled) | compile s |")
    print("|---|---|---|---|---|---|")
    for name, row in rows.items():
        field = f"{row['ours'] / (FIELD[name] * scale):.2f}" if name in FIELD else "–"
        print(f"| {name} | {row['ours']:.0f} | {row['hand']:.0f} | {row['ours'] / row['hand']:.2f} | {field} "
              f"| {row['compile']:.1f} |")  # fmt: skip
    for name in ("slip", "slip-shared"):
        if name in rows:
            print(f"time of {name} / time of SOBA: {rows['soba']['ours'] / rows[name]['ours']:.2f}")


# Hyper-cleaning, eager and compiled.


def cleaning_problem(device: str, dtype: Any = torch.float32) -> tuple[BilevelProblem, Any]:
    draw = torch.Generator().manual_seed(0)
    features = torch.rand(10000, 784, generator=draw)
    truth = torch.randn(784, 10, generator=draw)
    labels = (features @ truth).argmax(1)
    noisy = torch.where(
        torch.rand(5000, generator=draw) < 0.5, torch.randint(0, 10, (5000,), generator=draw), labels[:5000]
    )
    features, labels, noisy = features.to(device, dtype), labels.to(device), noisy.to(device)
    entropy = torch.nn.functional.cross_entropy

    def upper(x: Any, y: Any, b: Any) -> Any:
        return entropy(b[0] @ y, b[1])

    def lower(x: Any, y: Any, b: Any) -> Any:
        return (torch.sigmoid(x[b[2]]) * entropy(b[0] @ y, b[1], reduction="none")).mean() + 1e-3 * y.square().sum()

    samples = torch.arange(5000, device=device)
    return BilevelProblem(
        upper, lower, torch.zeros(5000, device=device, dtype=dtype), torch.zeros(784, 10, device=device, dtype=dtype),
        Batches((features[5000:], labels[5000:]), 64, last="drop", shuffle=False),
        Batches((features[:5000], noisy, samples), 64, last="drop", shuffle=False)), (upper, lower)  # fmt: skip


def hand_eager_soba(problem: BilevelProblem, steps: int) -> Callable[[], Any]:
    """SOBA in eager torch with one double backward, tensors kept in shape, no library around it."""
    upper, lower = problem.upper, problem.lower
    below, above = problem.lower_data.data, problem.upper_data.data
    n, m = problem.lower_data.batches, problem.upper_data.batches
    shape_x, shape_y = problem.pack_x.shapes[0], problem.pack_y.shapes[0]

    def run() -> Any:
        x, y = problem.pack_x.start.view(shape_x).clone(), problem.pack_y.start.view(shape_y).clone()
        z = torch.zeros_like(y)
        for t in range(steps):
            i, j = (t * 7) % n * 64, (t * 5) % m * 64
            b, u = tuple(a[i : i + 64] for a in below), tuple(a[j : j + 64] for a in above)
            x.requires_grad_()
            y.requires_grad_()
            (g,) = torch.autograd.grad(lower(x, y, b), y, create_graph=True)
            h, jz = torch.autograd.grad(g, (y, x), grad_outputs=z)
            f_x, f_y = torch.autograd.grad(upper(x, y, u), (x, y), allow_unused=True)
            with torch.no_grad():
                x, y, z = x + X * jz if f_x is None else x - X * (f_x - jz), y - Y * g, z - Y * (h - f_y)
        return x

    return run


def part_cleaning(options: Any) -> None:
    device = options.device
    problem, _ = cleaning_problem(device)
    steps = options.steps if options.steps != 8192 else 1000
    method = METHODS["soba"](lr_x=Constant(X), lr_y=Constant(Y))
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None

    start = method.init(problem)

    def ours() -> None:
        Eager().run(start, steps, None, None)
        sync()

    hand = hand_eager_soba(problem, steps)
    candidates: dict[str, Callable[[], Any]] = {"eager, ours": ours, "eager, by hand": lambda: (hand(), sync())}
    candidates.update(peers(problem, steps))
    for call in candidates.values():
        call()
    times = best(candidates, options.repeats)
    print("| hyper-cleaning 784 x 10, SOBA or one hypergradient an iteration | it/s | to eager by hand |")
    print("|---|---|---|")
    base = times["eager, by hand"]
    for name, seconds in times.items():
        print(f"| {name} | {steps / seconds:.0f} | {base / seconds:.2f} |")
    if device == "cpu" and not options.no_jax:
        rows = {n: measure_compiled(problem, cleaning_jax(), n, 2048, options.repeats, options.unroll)
                for n in ("soba", "slip", "stocbio")}  # fmt: skip
        for name, row in rows.items():
            print(f"| compiled {name}, ours / by hand | {row['ours']:.0f} / {row['hand']:.0f} "
                  f"| {row['ours'] / row['hand']:.2f} of by hand, compile {row['compile']:.1f} s |")  # fmt: skip


def cleaning_jax() -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp

    def entropy(scores: Any, labels: Any) -> Any:
        right = (labels[:, None] == jnp.arange(10)[None, :]).astype(scores.dtype)
        return jax.nn.logsumexp(scores, axis=1) - (right * scores).sum(1)

    def upper(x: Any, y: Any, b: Any) -> Any:
        return entropy(b[0] @ y.reshape(784, 10), b[1]).mean()

    def lower(x: Any, y: Any, b: Any) -> Any:
        return (jax.nn.sigmoid(x[b[2]]) * entropy(b[0] @ y.reshape(784, 10), b[1])).mean() + 1e-3 * (y**2).sum()

    return upper, lower


def peers(problem: BilevelProblem, steps: int) -> dict[str, Callable[[], Any]]:
    """Installed peers with a counterpart: one lower step, one hypergradient, one upper step an iteration."""
    found: dict[str, Callable[[], Any]] = {}
    try:
        import torchopt  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        print("# torchopt is not installed: skipped")
    try:
        import betty  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        print("# betty is not installed: skipped")
    return found


# Time to a level on the quadratic.


def part_quadratic(options: Any) -> None:
    from mindgap.bilevel.compiled import JaxBackend
    from mindgap.tasks.problems import quadratic_problem
    from mindgap.tasks.problems.compiled import quadratic_losses

    quadratic = quadratic_problem(lower=32768, upper=1024, dim_y=100, dim_x=10)
    problem, level = quadratic.problem(64), 1e-2
    print(f"| method | backend | it/s | iterations to ||grad Phi||^2 < {level:g} | s to it |")
    print("|---|---|---|---|---|")
    for name, settings in {"saba": {"lr_x": 0.1, "lr_y": 0.1}, "slip": {"lr_x": 0.003, "lr_y": 0.1, "lr_z": 0.1},
                           "soba": {"lr_x": 1.0, "lr_y": 1.0}}.items():  # fmt: skip
        for label, backend in (("eager", None), ("jax", JaxBackend(*quadratic_losses(), chunk=100))):
            method = METHODS[name](**settings)
            if backend is not None:  # compile first
                solve(problem, method, steps=200, every=100, callbacks=lambda s: None, backend=backend)

            def near(state: Any) -> bool:
                x = state.oracle.to_torch(state.x)
                return float(quadratic.hypergradient(x).square().sum()) < level

            done = solve(problem, method, steps=20000, every=100, callbacks=near, backend=backend)
            print(
                f"| {name} | {label} | {done.state.t / done.seconds:.0f} | {done.state.t} | {done.seconds:.2f} |",
                flush=True,
            )


# Does the cost grow as it should?


def part_scaling(options: Any) -> None:
    names = ("soba", "slip", "stocbio")

    def rate(problem: BilevelProblem, name: str) -> float:
        return measure_compiled(problem, logistic_losses(), name, 4096, options.repeats, options.unroll)["ours"]

    print("| samples | " + " | ".join(f"{n} us" for n in names) + " |\n|---" * 1 + "|---" * len(names) + "|")
    for n in (1000, 10_000, 100_000, 1_000_000):
        problem = logistic(n, n)
        print(f"| {n} | " + " | ".join(f"{1e6 / rate(problem, name):.1f}" for name in names) + " |", flush=True)
    print("| dimension | " + " | ".join(f"{n} us" for n in names) + " |\n|---" * 1 + "|---" * len(names) + "|")
    for d in (22, 200, 2000, 20000):
        problem = logistic(2048, 2048, d)
        print(f"| {d} | " + " | ".join(f"{1e6 / rate(problem, name):.1f}" for name in names) + " |", flush=True)
    print("| batch | " + " | ".join(f"{n} us" for n in names) + " |\n|---" * 1 + "|---" * len(names) + "|")
    for b in (16, 64, 256, 1024):
        problem = logistic(20480, 20480, 200, b)
        print(f"| {b} | " + " | ".join(f"{1e6 / rate(problem, name):.1f}" for name in names) + " |", flush=True)


# Hyper-representation with a recurrent encoder: eager torch, CPU or CUDA.


class Encoder(torch.nn.Module):
    """Two-layer tanh RNN over word vectors, max-pooled, with a linear map on (u, v, |u - v|, u v) of a pair."""

    def __init__(self, words: int, hidden: int) -> None:
        super().__init__()
        self.rnn = torch.nn.RNN(words, hidden, 2, batch_first=True)
        self.join = torch.nn.Linear(4 * hidden, hidden)

    def forward(self, pair: torch.Tensor) -> torch.Tensor:
        u, v = (self.rnn(pair[:, i])[0].max(1)[0] for i in (0, 1))
        return self.join(torch.cat([u, v, (u - v).abs(), u * v], 1))


def rnn_problem(hidden: int, device: str, words: int = 300, length: int = 20) -> BilevelProblem:
    torch.manual_seed(0)
    encoder = Encoder(words, hidden).to(device)
    head = torch.nn.Sequential(torch.nn.Linear(hidden, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 1024),
                               torch.nn.Tanh(), torch.nn.Linear(1024, 3)).to(device)  # fmt: skip
    data = torch.randn(80, 2, length, words, device=device), torch.randint(0, 3, (80,), device=device)
    entropy = torch.nn.functional.cross_entropy

    def upper(x: Any, y: Any, b: Any) -> Any:
        return entropy(y(x(b[0])), b[1])

    def lower(x: Any, y: Any, b: Any) -> Any:
        return upper(x, y, b) + 1e-4 * sum(p.square().sum() for p in y.parameters())

    return BilevelProblem(upper, lower, encoder, head, data, data, batch_size=20)


def hand_eager_slip(problem: BilevelProblem, steps: int) -> Callable[[], Any]:
    """SLIP (one sample for g_y, Hz, Jz) over lists of tensors; kernels without double backward off around it all."""
    from torch.func import functional_call

    enc, head = problem.pack_x.module, problem.pack_y.module
    entropy = torch.nn.functional.cross_entropy
    features, labels = problem.lower_data.data
    names = [[n for n, _ in m.named_parameters()] for m in (enc, head)]

    def run() -> Any:
        x = [p.detach().clone() for p in enc.parameters()]
        y = [p.detach().clone() for p in head.parameters()]
        z, m = [torch.zeros_like(p) for p in y], [torch.zeros_like(p) for p in x]

        def score(x: Any, y: Any, pair: Any) -> Any:
            out = functional_call(enc, dict(zip(names[0], x)), (pair,))
            return functional_call(head, dict(zip(names[1], y)), (out,))

        for t in range(steps):
            i, j = t % 4 * 20, (t + 1) % 4 * 20
            for p in (*x, *y):
                p.requires_grad_()
            with torch.backends.cudnn.flags(enabled=False):
                loss = entropy(score(x, y, features[i : i + 20]), labels[i : i + 20])
                loss = loss + 1e-4 * sum(p.square().sum() for p in y)
                g = torch.autograd.grad(loss, y, create_graph=True)
                seconds = torch.autograd.grad(g, (*y, *x), grad_outputs=z)
            f = torch.autograd.grad(entropy(score(x, y, features[j : j + 20]), labels[j : j + 20]), (*x, *y))
            with torch.no_grad():
                h, jz = seconds[: len(y)], seconds[len(y) :]
                m = [0.9 * a + 0.1 * (b - c) for a, b, c in zip(m, f, jz)]
                norm = torch.stack([a.norm() for a in m]).norm() + 1e-10
                x = [p.detach() - X * a / norm for p, a in zip(x, m)]
                z = [a - Y * (b - c) for a, b, c in zip(z, h, f[len(x) :])]
                y = [p.detach() - Y * a.detach() for p, a in zip(y, g)]
        return x

    return run


def part_rnn(options: Any) -> None:
    device, hidden = options.device, options.hidden
    steps = options.steps if options.steps != 8192 else (20 if device == "cuda" else 3)
    cuda = device == "cuda"
    sync = torch.cuda.synchronize if cuda else lambda: None
    problem = rnn_problem(hidden, device)
    method = METHODS["slip"](lr_x=X, lr_y=Y, lr_z=Y, warm_start=0, shared_samples=True)
    oracle = method.oracle(problem)
    hand = hand_eager_slip(problem, steps)

    def ours() -> None:
        Eager().run(method.init_with(oracle, 0), steps, None, None)
        sync()

    candidates: dict[str, Callable[[], Any]] = {"ours": ours, "by hand": lambda: (hand(), sync())}
    memory = {}
    for name, call in candidates.items():
        call()
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            call()
            memory[name] = torch.cuda.max_memory_allocated() / 2**30
    times = best(candidates, options.repeats)
    where = torch.cuda.get_device_name() if cuda else "CPU"
    print(f"RNN 300 -> {hidden} x 2, upper {problem.dim_x / 1e6:.1f} M, lower {problem.dim_y / 1e6:.2f} M "
          f"unknowns, 20 pairs of 20 words, SLIP, float32, {where}, torch {torch.__version__}")  # fmt: skip
    print("| how | ms an iteration | peak memory GiB |\n|---|---|---|")
    for name, seconds in times.items():
        print(f"| {name} | {1e3 * seconds / steps:.1f} | {memory.get(name, float('nan')):.2f} |")
    print(f"speed ours / by hand {times['by hand'] / times['ours']:.3f}"
          + (f", memory ours / by hand {memory['ours'] / memory['by hand']:.3f}" if cuda else ""))  # fmt: skip


PARTS = {"ijcnn1": part_ijcnn1, "cleaning": part_cleaning, "quadratic": part_quadratic, "scaling": part_scaling,
         "rnn": part_rnn}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--unroll", type=int, default=1)
    parser.add_argument("--methods", default="")
    parser.add_argument("--no-jax", action="store_true")
    parser.add_argument("--clock", choices=list(CLOCK), default="wall", help="cpu: processor time, for a busy machine")
    options = parser.parse_args()
    global clock
    clock = CLOCK[options.clock]
    torch.set_num_threads(1)
    PARTS[options.part](options)


if __name__ == "__main__":
    main()
