"""The loop around a method: budgets, callbacks, an outcome in words, checkpoints."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, cast

import numpy as np

from mindgap.base.calls import call, noting_iteration, number_from
from mindgap.base.check import check_call, fail, flag, positive, whole
from mindgap.base.checkpoint import CheckpointError, set_aside
from mindgap.bilevel.backends.oracles import LOOK, TorchOracle, are_numbers
from mindgap.bilevel.core.types import AnyMethod, Array, Backend, ProblemOracle, State, advance
from mindgap.bilevel.data.draws import draw_chunk
from mindgap.bilevel.data.problem import BilevelProblem, X, Y
from mindgap.bilevel.method import Method
from mindgap.bilevel.tools.checkpoint import Rows, belongs_to, check_path, read_run, write_run
from mindgap.bilevel.tools.drawing import draw_history
from mindgap.bilevel.tools.limits import Limits, limits_of

#: How a run can end.
OUTCOMES = ("done", "out of calls", "out of time", "stopped", "non-finite", "diverged")

#: The columns of every history, before those of ``record``.
COLUMNS = ("iteration", "calls", "seconds", "upper")

Callback = Callable[[State], Any]


@dataclass(frozen=True)
class Solution(Generic[X, Y]):
    """How a run ended, and where."""

    outcome: str  # one of :data:`OUTCOMES`
    message: str  # the same as a sentence
    state: State  # the last state
    seconds: float  # time in the method alone; callbacks and checkpoints are not counted
    #: one row per ``history`` iterations: iteration, calls, seconds, upper (the upper loss at x and
    #: y over all data) and what ``record`` names
    history: tuple[dict[str, float], ...] = ()
    _modules: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether the numbers are usable (neither non-finite nor diverged)."""
        return self.outcome not in ("non-finite", "diverged")

    @property
    def x(self) -> X:
        """The upper variable in the form it was handed over.

        A module comes as a copy of the problem's, which stays as it was (frozen parameters are
        shared); the running statistics of its batch normalisation are those of the last point, over
        at most 200 minibatches.
        """
        return cast("X", self._variable("x"))

    @property
    def y(self) -> Y:
        """The lower variable in the form it was handed over; a module as for ``x``."""
        return cast("Y", self._variable("y"))

    def _variable(self, name: str) -> Any:
        """x or y (``name``) in the form it was handed over; a module is copied at the first call
        and kept in ``_modules``, x's and y's together.
        """
        problem, oracle = self.state.problem, self.state.oracle
        vectors = {key: oracle.to_torch(self.state.values[key]) for key in ("x", "y")}
        pack = problem.pack_x if name == "x" else problem.pack_y
        if pack.module is None:
            return pack.write_back(vectors[name])
        if name not in self._modules:
            twin = copy(problem)
            twin.pack_x = problem.pack_x.with_own_module()
            twin.pack_y = problem.pack_y.with_own_module()
            for key, own_pack in (("x", twin.pack_x), ("y", twin.pack_y)):
                if own_pack.module is not None:
                    self._modules[key] = own_pack.write_back(vectors[key])
            twin.refresh_statistics(vectors["x"], vectors["y"])
        return self._modules[name]

    def plot(self, path: str | Path | None = None, *, against: str = "calls") -> str:
        """The history as a drawing (SVG), one curve per recorded quantity.

        Args:
            path: file to write it to; none if not given.
            against: "calls", "seconds" or "iteration".

        Raises:
            RuleError: for a run without history.
        """
        drawing = draw_history(self.history, against)
        if path is not None:
            check_path("path", path).write_text(drawing, encoding="utf-8")
        return drawing

    @property
    def limits(self) -> Limits:
        """What limits the run where it ended, by exact solves over all data: see ``Limits``."""
        return limits_of(self.state)

    def check(self) -> Solution[X, Y]:
        """Itself, or an error when the run went wrong.

        Raises:
            ArithmeticError: with the message.
        """
        if not self.ok:
            raise ArithmeticError(self.message)
        return self


def solve(
    problem: BilevelProblem[X, Y],
    method: Method,
    steps: int | None = None,
    *,
    seed: int | None = None,
    calls: int | None = None,
    seconds: float | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    every: int = 1,
    limit: float = 1e10,
    check_every: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1000,
    resume: bool = False,
    start: State | None = None,
    history: int | None = None,
    record: Mapping[str, Callable[[State], float]] | None = None,
    progress: bool = False,
    backend: Backend | None = None,
    distributed: bool = False,
) -> Solution[X, Y]:
    """Run a method until a budget is spent, a callback says stop, or the numbers go wrong.

    Args:
        problem: what to solve.
        method: how.
        steps: iterations in all (those before a resume included).
        seed: of all draws; 0 if not given, or that of the checkpoint on a resume. Another seed is
            refused there.
        calls: budget of oracle calls; the run stops after the iteration that reaches it.
        seconds: budget of time in the method.
        callbacks: functions of the state, called at the start and after every ``every`` iterations;
            one that returns True stops the run.
        every: iterations between calls of the callbacks.
        limit: "diverged" when the norm of x or y exceeds this times (1 + its norm at the start).
        check_every: iterations between looks at all numbers, divergence included; 100, or a
            backend's own choice, if not given. The end and every checkpoint are looked at in any
            case, and every backend stops within 64 iterations after x or y became NaN.
        checkpoint: file to save the state to, every ``checkpoint_every`` iterations and at the end;
            a state that is not finite or has diverged is not written.
        resume: start from that file if it exists; the trajectory is bitwise that of an
            uninterrupted run. A damaged file is set aside with a warning, and the run begins again.
        start: a state to go on from, of this or another method, step size or backend
            (``method.take_over``); its seed, draws and counters go on.
        history: iterations between rows of ``Solution.history``, which costs one upper loss over
            all data per row (its time and calls are not counted); no rows if not given.
        record: further numbers of a row: name -> function of the state.
        progress: write a line on standard error now and then.
        backend: who runs the iterations; eager torch if not given.
        distributed: average derivatives over the ranks of torch.distributed.

    Returns:
        The solution with an outcome in words; nothing is raised for a run that diverges (see
        ``Solution.check``).

    Raises:
        RuleError: for a bad argument, a run without any budget, or a checkpoint of another problem,
            other data, another start or method (the message says what differs).

    Example:
        >>> from mindgap.bilevel import SABA
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> solution = solve(example_problem(), SABA(lr_x=0.1, lr_y=0.2), steps=500)
        >>> solution.message, round(float(solution.x), 4), solution.state.total_calls
        ('done: 500 iterations', 1.0, 2500)
    """
    if not isinstance(method, Method):
        fail("method", "must be a bilevel method", type(method).__name__)
    if steps is None and calls is None and seconds is None:
        fail("steps", "must be given, or calls, or seconds", None)
    for name, value in (("steps", steps), ("calls", calls)):
        if value is not None:
            whole(name, value, most=2**62)
    if seconds is not None:
        positive("seconds", seconds)
    runner: Backend = Eager() if backend is None else backend
    if isinstance(runner, type) or not hasattr(runner, "check_every"):  # maybe no Backend
        fail("backend", "must be a backend, such as JaxBackend(upper, lower)", backend)
    check_every = (
        runner.check_every if check_every is None else whole("check_every", check_every, least=1)
    )
    measures = _checked_measures(problem, method, history, record)
    for name, period in (("every", every), ("checkpoint_every", checkpoint_every)):
        whole(name, period, least=1)
    if history is not None:
        whole("history", history, least=1)
    if seed is not None:
        whole("seed", seed)
    if start is not None and not isinstance(start, State):
        fail("start", "must be a State", type(start).__name__)
    positive("limit", limit)
    for name, value in (("resume", resume), ("progress", progress), ("distributed", distributed)):
        flag(name, value)
    if checkpoint is not None:
        check_path("checkpoint", checkpoint)
    listeners = _checked_listeners(callbacks)
    if resume and checkpoint is None:
        fail("checkpoint", "must be given to resume", None)
    begin = time.perf_counter()
    oracle = runner.oracle(problem, method, seed or 0, distributed)
    belongs = {} if checkpoint is None else belongs_to(method, problem)
    resumed, rows = _resume(checkpoint if resume else None, method, oracle, belongs)
    if resumed is not None:
        if seed not in (None, resumed.seed):
            rule = f"must be that of the checkpoint, {resumed.seed}, or be left out, to resume"
            fail("seed", rule, seed)
        state = resumed
    elif start is not None:
        if seed not in (None, start.seed):
            fail("seed", f"must be that of the start, {start.seed}, or be left out", seed)
        state = method.take_over(start, oracle)
    else:
        state = runner.start(method, oracle, seed or 0)
    spent = time.perf_counter() - begin  # seconds in the method so far
    # The norms of x and y above which the run has diverged.
    bounds = {name: limit * (1.0 + runner.norm(state.values[name])) for name in ("x", "y")}

    def failure() -> tuple[str, str] | None:
        """Outcome and sentence if a vector is not finite or above ``bounds``; else None."""
        for name, vector in _vectors(state.values):
            norm = runner.norm(vector)
            if not math.isfinite(norm):
                return "non-finite", f"{name} is not finite at iteration {state.t}"
            if norm > bounds.get(name, math.inf):
                return "diverged", f"the norm of {name} is {norm:.3g} at iteration {state.t}"
        return None

    def ending() -> tuple[str, str] | None:
        """Outcome and sentence if a callback or a budget ends the run here; else None."""
        place, answers = f"callbacks at iteration {state.t}", []
        if state.t % every == 0:
            answers = [call(place, listener, state) for listener in listeners]
        if any(map(_is_true, answers)):
            return "stopped", f"a callback asked for it after {state.t} iterations"
        if steps is not None and state.t >= steps:
            return "done", f"{state.t} iterations"
        if calls is not None and state.total_calls >= calls:
            return "out of calls", f"{state.total_calls} oracle calls after {state.t} iterations"
        if seconds is not None and spent >= seconds:
            return "out of time", f"{spent:.3g} s after {state.t} iterations"
        return None

    def history_row() -> dict[str, float]:
        """A row of the history at this state: column -> number."""
        upper = oracle.value("upper", state.x, state.y)
        recorded = (number_from(f"record[{n!r}]", m, state) for n, m in measures.items())
        numbers = (state.t, state.total_calls, seconds_before + spent, upper, *recorded)
        return dict(zip(columns, numbers, strict=True))

    columns = (*COLUMNS, *measures)
    rows = [row for row in rows if tuple(row) == columns and row["iteration"] < state.t]
    seconds_before = rows[-1]["seconds"] if rows else 0.0  # those before a resume
    # The iterations at multiples of these periods have something to do beside the method.
    periods = [check_every, *([every] if listeners else ()), *([history] if history else ())]
    periods += [checkpoint_every] if checkpoint else []
    # Time of the last line of progress; iteration whose numbers were looked at last.
    last_progress, last_checked, stopped_early = 0.0, -1, False
    while True:
        end = ending()
        save = checkpoint is not None and (
            end is not None or (state.t > 0 and state.t % checkpoint_every == 0)
        )
        check = save or end is not None or stopped_early or state.t % check_every == 0
        if check and last_checked != state.t:
            begin = time.perf_counter()
            wrong, last_checked = failure(), state.t
            spent += time.perf_counter() - begin
            if wrong is not None:
                return Solution(wrong[0], ": ".join(wrong), state, spent, tuple(rows))
        if history is not None and (end is not None or state.t % history == 0):
            rows.append(history_row())
        if save and checkpoint is not None:
            write_run(Path(checkpoint), state, rows, belongs)
        if end is not None:
            return Solution(end[0], ": ".join(end), state, spent, tuple(rows))
        count = min(period - state.t % period for period in periods)
        count = count if steps is None else min(count, steps - state.t)
        begin, target = time.perf_counter(), state.t + count
        # Without listeners nothing else refers to the state: its vectors are freed as soon as there
        # are new ones.
        state = runner.run(
            state, count, calls, None if seconds is None else seconds - spent, keep=bool(listeners)
        )
        spent += time.perf_counter() - begin
        # A budget is spent, or the backend saw numbers that are not finite.
        stopped_early = state.t < target
        if progress and time.perf_counter() - last_progress > 1.0:
            last_progress = time.perf_counter()
            print(
                f"{state.t} iterations, {state.total_calls} calls, {spent:.1f} s", file=sys.stderr
            )


def _checked_measures(
    problem: BilevelProblem, method: Method, history: int | None, record: Any
) -> dict[str, Callable[[State], float]]:
    """The functions of ``record`` by name; refuses others, and a history that cannot be taken."""
    measures: Any = {} if record is None else record
    if not isinstance(measures, Mapping) or not all(
        isinstance(name, str) and callable(measure) for name, measure in measures.items()
    ):
        fail("record", "must map names to functions of the state", record)
    for name, measure in measures.items():
        check_call("record", measure, "functions of the state", None)
        if name in COLUMNS:
            fail("record", f"must have other names than {', '.join(COLUMNS)}", name)
    if measures and history is None:
        fail("history", "must be given with record", None)
    if history is not None and problem.upper_data.order == "stream":
        fail("history", "must be None where the upper data are a Stream", history)
    if history is not None and method.resets:
        fail("history", "must be None for a method whose y starts anew every time", history)
    return dict(measures)


def _checked_listeners(callbacks: Any) -> list[Callback]:
    """The callbacks as a list of functions; a class is refused, though it can be called."""
    rule = "a function of the state, or a list of them"
    if callable(callbacks) and not isinstance(callbacks, type):
        callbacks = [callbacks]
    if not isinstance(callbacks, (list, tuple)) or not all(map(callable, callbacks)):
        fail("callbacks", f"must be {rule}", callbacks)
    for listener in callbacks:
        check_call("callbacks", listener, rule, None)
    return list(callbacks)


def _resume(
    checkpoint: str | Path | None, method: Method, oracle: ProblemOracle, belongs: Mapping[str, str]
) -> tuple[State | None, Rows]:
    """State and history rows of the checkpoint; (None, []) if it is missing, or damaged and was
    set aside with a warning.
    """
    path = None if checkpoint is None else Path(checkpoint)
    if path is None or not path.exists():
        return None, []
    try:
        return read_run(path, method, oracle, belongs)
    except CheckpointError as error:
        if error.reason != "damaged":
            raise
        message = f"{error}. It is now {set_aside(path).name}; the run begins again."
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        return None, []


def _is_true(answer: object) -> bool:
    """Whether a callback's answer is True, of Python, NumPy, torch or JAX: then it asks to stop."""
    if isinstance(answer, bool):
        return answer
    return (
        str(getattr(answer, "dtype", "")) in ("bool", "torch.bool")
        and getattr(answer, "size", 0) != 0
        and bool(np.all(np.asarray(answer)))
    )


def _vectors(values: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Names and vectors among the values; no tables (a bad row shows in x soon), no optimizer."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _vectors(value)
        elif getattr(value, "ndim", 2) < 2:
            yield name, value


class Eager(Backend):
    """Runs a method in torch, one iteration after another."""

    check_every = 100

    def oracle(
        self, problem: BilevelProblem, method: AnyMethod, seed: int, distributed: bool
    ) -> ProblemOracle:
        return method.oracle(problem, seed, distributed)

    def run(
        self,
        state: State,
        steps: int,
        calls: int | None,
        seconds: float | None,
        *,
        keep: bool = True,
    ) -> State:
        """The state after at most ``steps`` iterations, fewer where x or y is no number any more.

        Args:
            calls, seconds: budgets; the iteration that reaches one is the last. None for no limit.
            keep: leave ``state`` usable; else its values are removed, so that memory is freed.
        """
        method, oracle, values = state.method, state.oracle, dict(state.values)
        if not keep:
            state.values.clear()
        done = 0
        if calls is None and seconds is None and isinstance(oracle, TorchOracle):
            chunk = draw_chunk(method, oracle, state.seed, state.t, steps, state.drawn)
            with oracle.same_modes(), noting_iteration(lambda: state.t + done - 1):
                for done, (kind, draws) in enumerate(chunk.steps(), 1):
                    values = method.next_values(values, draws, oracle, kind)
                    if done % LOOK == 0 and not are_numbers(values["x"], values["y"]):
                        break
            if done < steps:  # the positions of the streams are those of the iterations done
                chunk = draw_chunk(method, oracle, state.seed, state.t, done, state.drawn)
            return advance(state, values, done, chunk.drawn, oracle.take_calls())
        deadline = math.inf if seconds is None else time.perf_counter() + seconds
        state = replace(state, values=values)
        with noting_iteration(lambda: state.t):
            for done in range(1, steps + 1):
                state = method.step(state)
                if done % LOOK == 0 and not are_numbers(state.x, state.y):
                    break
                if calls is not None and state.total_calls >= calls:
                    break
                if time.perf_counter() >= deadline:
                    break
        return state
