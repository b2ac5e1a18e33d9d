"""What the parts of the bilevel benchmark share: the clock, the settings, and ours against a compiled loop by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import bilevel_by_hand as by_hand
import numpy as np

from mindgap.bilevel import METHODS, BilevelProblem, Power

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


def use_clock(name: str) -> None:
    """Measure with "wall" or "cpu" (processor time, for a busy machine) from now on."""
    global clock
    clock = CLOCK[name]


def best(candidates: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Shortest time of each, measured in turn so that a slow moment of the machine hits all alike."""
    times = dict.fromkeys(candidates, float("inf"))
    for _ in range(repeats):
        for name, call in candidates.items():
            begin = clock()
            call()
            times[name] = min(times[name], clock() - begin)
    return times


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
