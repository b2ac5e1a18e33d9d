"""What else could run many iterations at once: ``torch.compile`` of a step, CUDA graphs. SOBA on
hyper-cleaning.

The steps are written by hand, so that nothing of the library stands in the way of what these can
reach; the library's own eager and JAX runs of the same problem stand beside them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from bilevel_cleaning import cleaning_jax, cleaning_problem, hand_eager_soba
from bilevel_timing import X, Y, best, prepare

from mindgap.bilevel import METHODS, Constant
from mindgap.bilevel.solver import Eager

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from cases.captured import graph_of


def functional_steps(problem: Any, count: int) -> Any:
    """``count`` SOBA steps as one function of (x, y, z, batches), derivatives by torch.func."""

    def one(x: Any, y: Any, z: Any, b: Any, u: Any) -> Any:
        gradient = torch.func.grad(lambda y, x: problem.lower(x, y, b))
        g, pull = torch.func.vjp(gradient, y, x)
        hz, jz = pull(z)
        f_y = torch.func.grad(lambda y: problem.upper(x, y, u))(y)
        return x + X * jz, y - Y * g, z - Y * (hz - f_y)

    def many(x: Any, y: Any, z: Any, batches: Any) -> Any:
        for b, u in batches:
            x, y, z = one(x, y, z, b, u)
        return x, y, z

    return many


def captured(problem: Any, below: list[Any], above: list[Any]) -> Any:
    """A CUDA graph of one double-backward step on buffers that stay where they are."""
    x = problem.pack_x.start.clone().requires_grad_()
    y = problem.pack_y.start.view(784, 10).clone().requires_grad_()
    z = torch.zeros_like(y)
    b, u = tuple(t.clone() for t in below[0]), tuple(t.clone() for t in above[0])

    def step() -> None:
        (g,) = torch.autograd.grad(problem.lower(x, y, b), y, create_graph=True)
        hz, jz = torch.autograd.grad(g, (y, x), grad_outputs=z)
        (f_y,) = torch.autograd.grad(problem.upper(x, y, u), y)
        with torch.no_grad():
            x.add_(jz, alpha=X)
            y.sub_(g, alpha=Y)
            z.sub_(hz - f_y, alpha=Y)

    graph = graph_of(step)

    def run(steps: int) -> None:
        for t in range(steps):
            for buffers, batches in ((b, below), (u, above)):
                for a, new in zip(buffers, batches[t % len(batches)]):
                    a.copy_(new)
            graph.replay()
        torch.cuda.synchronize()

    return run


def part_captured(options: Any) -> None:
    device, steps = options.device, 400
    problem, _ = cleaning_problem(device)
    cut = {
        level: [problem.data(level).fetch(s) for s in _tokens(problem, level)]
        for level in ("lower", "upper")
    }
    method = METHODS["soba"](lr_x=Constant(X), lr_y=Constant(Y))
    start = method.start(problem)
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    hand = hand_eager_soba(problem, steps)
    calls: dict[str, Any] = {
        "eager, ours": lambda: (Eager().run(start, steps, None, None), sync()),
        "eager, by hand": lambda: (hand(), sync()),
    }
    took = dict.fromkeys(calls, 0.0)
    for count in (1, 4):
        many = functional_steps(problem, count)
        compiled = torch.compile(many, fullgraph=True)
        state = (
            problem.pack_x.start,
            problem.pack_y.start.view(784, 10),
            torch.zeros(784, 10, device=device),
        )
        groups = [
            list(zip(cut["lower"][i : i + count], cut["upper"][i : i + count]))
            for i in range(0, 64, count)
        ]

        def run(
            compiled: Any = compiled, state: Any = state, groups: Any = groups, count: int = count
        ) -> None:
            for t in range(steps // count):
                state = compiled(*state, groups[t % len(groups)])
            sync()

        name = f"torch.compile of {count} step{'s' * (count > 1)}"
        begin = time.perf_counter()
        try:
            compiled(*state, groups[0])
            run()
        except Exception as error:  # a compiler that is missing is a result too
            print(f"# {name}: skipped ({type(error).__name__}: {str(error).splitlines()[0][:100]})")
            continue
        took[name] = time.perf_counter() - begin
        calls[name] = run
    if device == "cuda":
        begin = time.perf_counter()
        replay = captured(problem, cut["lower"], cut["upper"])
        took["CUDA graph of a double backward"] = time.perf_counter() - begin
        calls["CUDA graph of a double backward"] = lambda: replay(steps)
    elif not options.no_jax:
        race = prepare(problem, cleaning_jax(), "soba", 2048, hand=False)
        calls["JAX, ours"], took["JAX, ours"] = race.ours, race.compile
    for call in calls.values():
        call()
    times = best(calls, options.repeats)
    print(f"| SOBA on hyper-cleaning 784 x 10, {device} | it/s | compile s |\n|---|---|---|")
    for name, seconds in times.items():
        many_steps = 2048 if name == "JAX, ours" else steps
        print(f"| {name} | {many_steps / seconds:,.0f} | {took[name]:.1f} |")


def _tokens(problem: Any, level: str) -> Any:
    from mindgap.bilevel import Sample

    return [Sample(i) for i in range(64)]
