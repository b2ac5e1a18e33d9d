"""What the parts of the bilevel benchmark share: the clock, the settings, and ours against a
compiled loop by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
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
    "slip-shared": {"lr_x": X, "lr_y": Y, "lr_z": Y, "samples": "shared"},
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
    # One refresh per call: the public benchmark refreshes once in 2 (49,990 + 91,701) iterations.
    "vrbo": {"lr_x": X, "lr_y": Y, **NEUMANN, "inner": 10, "period": 2000},
    "f2sa": {"lr_x": X, "lr_y": Y, "lam": 10.0, "delta": 0.1},
    "f2sa-10": {"lr_x": X, "lr_y": Y, "lam": 10.0, "delta": 0.1, "inner": 10},
}
CLOCK = {"wall": time.perf_counter, "cpu": time.process_time}
clock = time.perf_counter


def use_clock(name: str) -> None:
    """Measure with "wall" or "cpu" (processor time, for a busy machine) from now on."""
    global clock
    clock = CLOCK[name]


def best(candidates: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Shortest time of each, measured in turn so that a slow moment of the machine hits all
    alike.
    """
    times = dict.fromkeys(candidates, float("inf"))
    for _ in range(repeats):
        for name, call in candidates.items():
            begin = clock()
            call()
            times[name] = min(times[name], clock() - begin)
    return times


class Slices:
    """Batches of one level for a hand-written loop: ``(i)`` the i-th of this iteration,
    ``.id(i)``, ``.all``.
    """

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


def hand_loop(
    loops: Any, name: str, data: Any, x: Any, y: Any, rounds: int, period: int
) -> tuple[Callable, int]:
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
    ids = [
        rng.integers(0, len(arrays[0]), (rounds, n)).astype(np.int32)
        for arrays, n in zip(data, (lower, upper))
    ]
    ks = rng.integers(0, by_hand.TERMS, rounds).astype(np.int32)
    carry = first(x, y, (len(data[0][0]), len(data[1][0]))) if name == "saba" else first(x, y)

    @jax.jit
    def run(carry: Any, data: Any, ids: Any, ks: Any) -> Any:
        def one(t: Any, c: Any) -> Any:
            return body(c, Slices(data[0], ids[0][t]), Slices(data[1], ids[1][t]), ks[t], t + 1.0)

        return lax.fori_loop(0, rounds, one, carry)

    return (lambda: jax.block_until_ready(run(carry, data, ids, ks))), rounds * each


@dataclass
class Race:
    """Ours and the loop by hand, both warm: calls, iterations of a call, and our seconds for
    compiling.
    """

    ours: Callable[[], Any]
    steps: int
    compile: float
    hand: Callable[[], Any] | None = None
    hand_steps: int = 0


def prepare(
    problem: BilevelProblem,
    losses: Any,
    name: str,
    steps: int,
    unroll: int = 1,
    *,
    hand: bool = True,
    settings: dict[str, Any] | None = None,
) -> Race:
    """Compile our method and, if asked, the loop by hand. Ours draws the tokens of each 8,192
    iterations (the backend's own choice) while those before are running."""
    import jax

    from mindgap.bilevel.backends.compiled import JaxBackend

    settings = dict(SETTINGS[name] if settings is None else settings)
    if name == "srba":
        settings["period"] = max((problem.lower_data.batches + problem.upper_data.batches) // 2, 2)
    method = METHODS[name.split("-")[0]](**settings)
    plan = method.plan()
    period = len(plan.period)
    steps = max(steps // period, 1) * period
    chunk = steps if period > 64 else min(steps, 8192) // period * period
    backend = JaxBackend(*losses, chunk=max(chunk, period), unroll=unroll)
    oracle = backend.oracle(problem, method, 0, False)
    state = backend.start(method, oracle, 0)
    begin = clock()
    if plan.first:
        state = backend.run(state, len(plan.first), None, None)

    def ours() -> None:
        jax.block_until_ready(backend.run(state, steps, None, None).values)

    ours()
    first = clock() - begin
    begin = clock()
    ours()
    race = Race(ours, steps, first - (clock() - begin))
    if hand:
        each = {"borep": 2, "vrbo": period, "srba": period}.get(name, 1)
        arrays = oracle.arrays["lower"], oracle.arrays["upper"]
        race.hand, race.hand_steps = hand_loop(
            by_hand.jax_loops(*losses), name, arrays, *oracle.start, max(steps // each, 1), period
        )
        race.hand()
    return race


def measure(races: dict[str, Race], repeats: int) -> dict[str, dict[str, float]]:
    """Iterations a second of ours and of the loops by hand: the best of the rounds, and the median
    over the rounds of the ratio of the two. Every round runs everything once, so a slow moment of
    the machine hits neighbours alike."""
    rows: dict[str, dict[str, Any]] = {name: {"ours": [], "hand": []} for name in races}
    for _ in range(repeats):
        for name, r in races.items():
            for who, call, steps in (("ours", r.ours, r.steps), ("hand", r.hand, r.hand_steps)):
                if call is not None:
                    begin = clock()
                    call()
                    rows[name][who].append(steps / (clock() - begin))
    found = {}
    for name, row in rows.items():
        found[name] = {"ours": max(row["ours"]), "compile": races[name].compile}
        if row["hand"]:
            ratios = np.array(row["ours"]) / np.array(row["hand"])
            found[name].update(hand=max(row["hand"]), median=float(np.median(ratios)))
    return found
