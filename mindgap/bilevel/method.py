"""What a method is: a plan of samples, numbers for each iteration, and a pure update of a dict of flat vectors.

``init`` and ``step`` are sugar on top of the pure core

    update(values, draws, oracle, kind) -> values

where ``values`` holds flat vectors (x, y, and what the method adds), ``draws`` the tokens and numbers of the iteration,
and ``oracle`` the derivatives and array operations of a backend. No method keeps anything of its own between steps.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor

from mindgap.base.check import fail
from mindgap.bilevel.draws import Plan, draw_chunk, draw_start
from mindgap.bilevel.oracles import TorchOracle
from mindgap.bilevel.problem import BilevelProblem
from mindgap.bilevel.upper import STEPS, TorchStep

Values = dict[str, Any]


@dataclass(frozen=True)
class State:
    """Where a run stands. ``method.step`` takes one and returns the next; the one it took is used up.

    Attributes:
        method: the method that made it.
        oracle: derivatives of the problem, shared by the states of a run.
        values: flat vectors: x, y and the method's own (z, m, tables ...).
        t: iterations done.
        seed: seed of the run; every draw is a function of it and of the position.
        drawn: draws made so far from each stream.
        updates: steps taken on "x" and on "y" (warm start included).
        calls: oracle calls so far, by quantity.
    """

    method: Any
    oracle: Any
    values: Values
    t: int
    seed: int
    drawn: dict[str, int]
    updates: dict[str, int]
    calls: dict[str, int] = field(default_factory=dict)

    @property
    def x(self) -> Tensor:
        """The upper variable, flat."""
        return self.values["x"]

    @property
    def y(self) -> Tensor:
        """The lower variable, flat."""
        return self.values["y"]

    @property
    def problem(self) -> BilevelProblem:
        """The problem that is solved."""
        return self.oracle.problem

    @property
    def total_calls(self) -> int:
        """Oracle calls of all kinds so far."""
        return sum(self.calls.values())

    @property
    def x_epochs(self) -> float:
        """Steps on x in passes over the upper data."""
        return self.updates["x"] / self.problem.upper_data.batches

    @property
    def y_epochs(self) -> float:
        """Steps on y in passes over the lower data."""
        return self.updates["y"] / self.problem.lower_data.batches


class Method(ABC):
    """One bilevel method. Subclasses are frozen dataclasses of hyper-parameters, one file each, never subclassed.

    Class attributes:
        order: "jacobi" (all updates use the old point) or "seidel" (later updates use what earlier ones found).
        second_order: whether Hessian products of the lower level are needed.
        fixed_batches: whether a batch must mean the same samples for ever.
    """

    order: Any = "jacobi"
    x_step: Any = "plain"
    second_order: ClassVar[bool] = True
    fixed_batches: ClassVar[bool] = False

    # The pure core, written by each method.

    @abstractmethod
    def plan(self, kind: str) -> Plan:
        """Slots of an iteration of that kind: name -> (stream, count); see :mod:`mindgap.bilevel.draws`."""

    @abstractmethod
    def update(self, v: Values, s: Mapping[str, Any], oracle: Any, kind: str) -> Values:
        """One iteration: the next values from the present ones and the draws."""

    def begin(self, oracle: Any) -> Values:
        """Values before the first iteration, x and y excluded (no oracle is called)."""
        return {}

    def numbers(self, t: Any) -> dict[str, Any]:
        """Step sizes and weights of iteration t (a number, or an array of them)."""
        return {}

    def kinds(self) -> list[str]:
        """The kinds of iteration, over one period; constant methods have one."""
        return ["step"]

    def prelude(self) -> list[str]:
        """Kinds of the first iterations, where they differ from the period that follows."""
        return []

    def growing_plan(self, t: int) -> Plan | None:
        """The plan of iteration t, for a method whose plan grows with t; None for all others."""
        return None

    def start_plan(self) -> Plan:
        """Slots of the phase before the first iteration (warm start)."""
        return {}

    def start(self, v: Values, s: Mapping[str, Any], oracle: Any) -> Values:
        """The phase before the first iteration."""
        return v

    def lower_steps(self, t: int) -> int:
        """Steps on y in iteration t; t = -1 is the phase before the first."""
        return 1 if t >= 0 else 0

    def needs_full(self) -> bool:
        """Whether the method evaluates all samples of a level at times."""
        return False

    def table_bytes(self, problem: BilevelProblem) -> tuple[int, str]:
        """Bytes of the tables and matrices the method keeps, and what they are (0 for most)."""
        return 0, ""

    # For use in ``update``.

    def move_x(self, oracle: Any, v: Values, d: Any, lr: Any) -> Any:
        """The upper step this method was given, from v["x"] along d."""
        if isinstance(self.x_step, TorchStep):
            return self.x_step(oracle, v["x"], d, v["optimizer"])
        return STEPS[self.x_step](oracle, v["x"], d, lr)

    def kind(self, t: int) -> str:
        """The kind of iteration t."""
        return self.order_of(t, 1)[0]

    def order_of(self, t: int, steps: int) -> list[str]:
        """The kinds of the iterations ``t .. t + steps - 1``."""
        first, kinds = self.prelude(), self.kinds()
        return [first[i] if i < len(first) else kinds[(i - len(first)) % len(kinds)] for i in range(t, t + steps)]

    # Sugar.

    def check_problem(self, problem: BilevelProblem) -> None:
        """Refuse a problem this method cannot run on.

        Raises:
            RuleError: batches that are not fixed where they must be, no finite data where all samples are needed,
                tables that do not fit.
        """
        name = type(self).__name__
        for level in ("upper", "lower"):
            data = problem.data(level)
            if self.fixed_batches and data.order != "partition":
                fail(
                    f"{level}_data",
                    f"must be a fixed partition for {name} (a batch id must mean the same samples "
                    "for ever; a shuffled loader does not)",
                    f"order {data.order!r}",
                )
            if self.needs_full() and data.order == "stream":
                fail(f"{level}_data", f"must be a finite set of samples for {name}", "a Stream")
        need, what = self.table_bytes(problem)
        limit = getattr(self, "memory_limit", None)
        if need:
            limit = free_bytes(problem.device) if limit is None else limit
            if need > limit:
                fail("memory_limit", f"must hold the {what} of {name}: {need / 2**30:.3g} GiB ({need} bytes)", limit)

    def init(self, problem: BilevelProblem, seed: int = 0, *, distributed: bool = False) -> State:
        """Check the problem, set up the values and run the phase before the first iteration.

        Args:
            problem: what to solve.
            seed: seed of all draws.
            distributed: see :class:`mindgap.bilevel.oracles.TorchOracle`.
        """
        return self.init_with(self.oracle(problem, seed, distributed), seed)

    def oracle(self, problem: BilevelProblem, seed: int = 0, distributed: bool = False) -> TorchOracle:
        """Derivatives of a problem, after a look at whether this method can run on it."""
        if not isinstance(problem, BilevelProblem):
            fail("problem", "must be a BilevelProblem", type(problem).__name__)
        oracle = TorchOracle(problem, distributed=distributed)
        self.check_problem(problem)
        oracle.check(seed, second_order=self.second_order)
        return oracle

    def init_with(self, oracle: Any, seed: int) -> State:
        """As :meth:`init`, with the derivatives of a given backend."""
        x, y = oracle.start
        values: Values = {"x": x, "y": y}
        values.update(self.begin(oracle))
        if isinstance(self.x_step, TorchStep):
            values["optimizer"] = self.x_step.start(x)
        draws, drawn = draw_start(self, oracle, seed)
        values = self.start(values, draws, oracle)
        return State(
            method=self,
            oracle=oracle,
            values=values,
            t=0,
            seed=seed,
            drawn=drawn,
            updates={"x": 0, "y": self.lower_steps(-1)},
            calls=oracle.start_calls(self, draws),
        )

    def step(self, state: State, draws: Mapping[str, Any] | None = None) -> State:
        """One iteration. ``draws`` replaces the draws of the state's own seed (tests, replays).

        Example:
            >>> import torch
            >>> from mindgap.bilevel import SOBA, BilevelProblem
            >>> problem = BilevelProblem(
            ...     upper=lambda x, y, b: (y - b).square().mean(), lower=lambda x, y, b: (y - x * b).square().mean(),
            ...     x=torch.tensor([2.0]), y=torch.zeros(1), upper_data=torch.ones(4), lower_data=torch.ones(4),
            ...     batch_size=2)
            >>> state = SOBA(lr_x=0.1, lr_y=0.5).init(problem, seed=0)
            >>> for _ in range(400):
            ...     state = state.method.step(state)
            >>> state.t, abs(float(state.x) - 1) < 0.05
            (400, True)
        """
        drawn = state.drawn
        if draws is None:
            chunk = draw_chunk(self, state.oracle, state.seed, state.t, 1, drawn)
            ((kind, draws),) = chunk.steps()
            drawn = chunk.drawn
        else:
            kind = self.kind(state.t)
        values = self.update(state.values, draws, state.oracle, kind)
        return advance(state, values, 1, drawn, state.oracle.take_calls())


def advance(state: State, values: Values, steps: int, drawn: dict[str, int], calls: Mapping[str, int]) -> State:
    """The state after ``steps`` iterations, with its counters moved on."""
    lower = _lower_steps(state.method, state.t, state.t + steps)
    total = dict(state.calls)
    for name, count in calls.items():
        total[name] = total.get(name, 0) + count
    updates = {"x": state.updates["x"] + steps, "y": state.updates["y"] + lower}
    return replace(state, values=values, t=state.t + steps, drawn=drawn, updates=updates, calls=total)


def _lower_steps(method: Any, begin: int, end: int) -> int:
    """Steps on y in the iterations begin .. end - 1; whole periods are counted once and multiplied."""
    period = len(method.kinds())
    first = min(max(begin, len(method.prelude()), 1), end)
    cycles = 0 if method.growing_plan(begin) is not None else (end - first) // period
    rest = [*range(begin, first), *range(first + cycles * period, end)]
    once = sum(method.lower_steps(t) for t in range(first, first + period)) if cycles else 0
    return cycles * once + sum(method.lower_steps(t) for t in rest)


def free_bytes(device: Any) -> int:
    """Memory that is free for tables: on the GPU, or of the machine."""
    import torch

    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # a system that does not tell: assume 8 GiB
        return 8 * 2**30
