"""Steps for a method, a problem and a number of iterations: measured first, then raced.

*Measured*: the largest curvature L of the lower level; the rate of y, from short descents of the
lower level alone at rates a factor of 3 apart; a hypergradient d, and the distance along -d at
which the upper loss is least once y has followed. *Raced*: runs of a twentieth of the iterations
from the problem's own start, at rates a factor of 4 apart; what is fastest and does no harm goes on
to a quarter of the iterations, and so do its neighbours as long as the cost stays below one run.

Every x is judged by the upper loss after the same number of lower steps from the same y, so that a
run is not praised for its y.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindgap.base.check import fail, whole
from mindgap.bilevel.backends.oracles import TorchOracle
from mindgap.bilevel.backends.trial import try_problem
from mindgap.bilevel.core.directions import conjugate_gradients
from mindgap.bilevel.core.settings import check_count
from mindgap.bilevel.core.steps import TorchStep
from mindgap.bilevel.core.types import Backend, State
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Sample, row
from mindgap.bilevel.method import Method
from mindgap.bilevel.registry import METHODS
from mindgap.bilevel.solver import solve
from mindgap.bilevel.tools.step_advice import StepAdvice

#: Share of 1 / L that a lower rate takes where nothing is raced.
LOWER = 0.5
#: From one raced rate of y to the next, and how many there may be.
STEEPER, LOWERED = 3.0, 2
#: Length of a descent that races rates of y, as a share of the lower steps of the whole run.
DESCENT = 1 / 12
#: The same for the steps of Adam; the descents are slow where they reach less than this share of
#: what Adam reaches.
WARM, SLOW = 1 / 4, 0.5
#: Minibatches of the upper level that a point is judged by.
JUDGED = 8
#: Lower steps before a point is judged, and their momentum.
FOLLOW, MOMENTUM = 24, 0.9
#: Lengths of the three races, as shares of the iterations.
LENGTHS = 1 / 20, 1 / 8, 1 / 4
#: From one rate of the first race to the next.
APART = 4.0
#: How many times the distance the first runs would go in all the iterations.
REACHES = (2.0, 8.0, 32.0)
#: Share of the largest gain that is enough where a shorter way has it.
ENOUGH = 0.9
#: Share of the path at whose end a faster run went wrong that the whole run may go.
BEFORE = 0.7
#: Share of the gain in the second half of a run below which it has arrived.
ARRIVED = 0.2
#: Share of a loss below which a difference is noise.
CLEAR = 1e-3
#: Share of the loss at the start by which a fast run of the first race may be behind: the first
#: steps from a y that is not solved do harm that is made good later.
HARM = 0.1


@dataclass(frozen=True)
class StepTrial:
    """One short run of a race."""

    settings: dict[str, Any]
    steps: int  # its iterations
    value: float  # upper loss at its end, once y has followed; infinite where it went wrong


@dataclass(frozen=True)
class RacedSteps:
    """Steps that won a race, and what was tried."""

    key: str  # the method, as in ``METHODS``
    settings: dict[str, Any]
    steps: int  # iterations they are made for
    method: Method  # the method with these settings
    tried: tuple[StepTrial, ...]
    start: float  # the upper loss at the start, once y has followed
    curvature: float  # largest eigenvalue of the lower Hessian over some minibatches
    hypergradient: float  # norm of the hypergradient at the start
    distance: float  # along the hypergradient, to the least upper loss
    calls: int  # oracle calls of measuring and racing
    runs: float  # the same in runs of ``steps`` iterations

    def __str__(self) -> str:
        """What was measured and tried, a line per short run."""
        lines = [
            f"{self.key}, {self.steps} iterations: {_numbers(self.settings)}",
            f"measured: curvature of the lower level {self.curvature:.3g}, hypergradient "
            f"{self.hypergradient:.3g}, least upper loss {self.distance:.3g} away along it",
            f"upper loss at the start {self.start:.4g}; {len(self.tried)} short runs:",
        ]
        for trial in self.tried:
            what = f"{trial.value:.4g}" if math.isfinite(trial.value) else "went wrong"
            lines.append(f"  {trial.steps} iterations, {_numbers(trial.settings)}: {what}")
        lines.append(f"cost: {self.calls} oracle calls, {self.runs:.2g} runs")
        return "\n".join(lines)


def _numbers(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in settings.items())


class Scale:
    """How a method's own rates follow from a length of the path of x and a rate of y.

    Example:
        >>> scale = Scale("soba", METHODS["soba"].load(), size=2.0, dim=4)
        >>> scale.settings(10.0, 100, 0.1)["lr_x"] > scale.settings(10.0, 1000, 0.1)["lr_x"]
        True
    """

    def __init__(
        self, key: str, method: Any, size: float, dim: int, curvature: float = 1.0
    ) -> None:
        self.key, self.method, self.size, self.dim = key, method, size, dim
        self.curvature = curvature  # largest, of the lower level
        self.known = {f.name: f for f in fields(method)}
        #: whether the length of a step does not depend on that of the direction
        self.fixed = method.x_step != "plain"

    def exponent(self, name: str) -> float:
        found = self.known.get(name)
        return 0.0 if found is None else float(found.metadata.get("exponent", 0.0))

    def path(self, steps: int) -> float:
        """Sum over the iterations of a rate of x that begins at 1."""
        falls = self.exponent("lr_x") or (self.exponent("lr_y") if self.key == "f2sa" else 0.0)
        return float(np.sum((1.0 + np.arange(steps)) ** -falls))

    def settings(
        self, length: float, steps: int, lr_y: float, lr_z: float | None = None
    ) -> dict[str, Any]:
        """Settings with which x goes that far in so many iterations, as long as the hypergradient
        is what it is at the start; ``lr_z`` is that of y if not given.
        """
        lr_z = lr_y if lr_z is None else lr_z
        per_step = length / self.path(steps)
        lr_x = per_step / self.size
        found: dict[str, Any] = {"lr_x": lr_x, "lr_y": lr_y}
        if self.method.x_step in ("normalised", "clipped"):
            found["lr_x"] = per_step
        elif self.fixed:  # Adam moves every coordinate by its step
            found["lr_x"] = per_step / math.sqrt(self.dim)
        if "lr_z" in self.known and (self.known["lr_z"].default is not None or lr_z < lr_y):
            found["lr_z"] = lr_z
        if "eta" in self.known and "terms" in self.known:
            found["eta"] = lr_z
        advice = StepAdvice(
            lr_y, lr_y, lr_x, (lr_x, lr_x), self.curvature, self.size, 1.0, self.dim
        )
        return dict(self.method.adapt_settings(found, advice))


class Ground:
    """What is measured of a problem before any method runs, with a count of the calls.

    Args:
        problem: what to measure.
        steps: iterations that a run will have.
        lower_steps: steps on y that it will take.
        seed: of the minibatches.
        falls: the rate of y falls as a power of the iteration, this one.
    """

    def __init__(
        self,
        problem: BilevelProblem,
        steps: int,
        lower_steps: int,
        seed: int,
        falls: float = 0.0,
    ) -> None:
        self.problem, self.steps, self.seed, self.falls = problem, steps, seed, falls
        self.lower_steps = lower_steps
        self.oracle = TorchOracle(problem)
        try_problem(self.oracle, seed)
        self.oracle.take_calls()
        self.losses = 0  # losses on a minibatch
        count = min(problem.upper_data.batches, JUDGED)
        self.upper = self.tokens("upper", 0, count)
        self.lower = self.tokens("lower", 0, FOLLOW)
        self.x, self.y0 = self.oracle.start
        self.slow = False  # whether the lower level is hardly solved in a short run
        self.metric = self.y0  # Adam's
        self.in_metric = False  # whether y follows in it

    def tokens(self, level: str, begin: int, count: int) -> list[Sample]:
        """Some tokens of a level."""
        drawn = self.problem.data(level).draw(self.seed, level, begin, count)
        found = [row(drawn, i) for i in range(count)]
        if self.oracle.seeded:
            found = [Sample(t.which, (self.seed + begin + i) % 2**31) for i, t in enumerate(found)]
        return found

    @property
    def calls(self) -> int:
        """Oracle calls so far; the loss on a minibatch counts as one."""
        return int(self.oracle.calls.total) + self.losses

    def largest(self, x: Tensor, y: Tensor, batches: int = 3, products: int = 8) -> float:
        """Largest curvature of the lower level over some minibatches, by power iteration."""
        draw = torch.Generator().manual_seed(self.seed % 2**63)
        most = 0.0
        for token in self.lower[:batches]:
            hessian, _ = self.oracle.operator(x, y, token)
            v = torch.randn(y.shape, generator=draw, dtype=y.dtype).to(y.device)
            for _ in range(products):
                v = hessian(v / v.norm())
                if not bool(v.isfinite().all()) or not bool(v.any()):
                    break
            size = float(v.norm())
            most = max(most, size) if math.isfinite(size) else math.inf
        return most

    def descended(self, lr: float, steps: int) -> tuple[float, Tensor]:
        """The lower loss on some minibatches after a descent from the start, and where it ends."""
        y = self.y0
        for t, token in enumerate(self.tokens("lower", 0, steps)):
            rate = lr * (1.0 + t) ** -self.falls
            y = self.oracle.move_y(y, self.oracle.lower(self.x, y, token), rate)
        return self.mean_loss("lower", self.x, y, self.lower[:JUDGED]), y

    def mean_loss(self, level: str, x: Tensor, y: Tensor, tokens: Sequence[Sample]) -> float:
        """Mean loss over some minibatches; infinite where it is no number."""
        self.losses += len(tokens)
        losses = [float(self.problem.loss(level, x, y, token)) for token in tokens]
        mean = sum(losses) / len(losses)
        return mean if math.isfinite(mean) else math.inf

    def race_lower(self, curvature: float) -> None:
        """The rate of y: the one whose descent ends lowest, of some a factor apart."""
        steps = min(max(round(self.lower_steps * DESCENT), 16), 200)
        lr = LOWER / curvature
        best, y = self.descended(lr, steps)
        for _ in range(4):  # down while it goes wrong
            if math.isfinite(best):
                break
            lr /= STEEPER
            best, y = self.descended(lr, steps)
        for _ in range(1 if self.falls else LOWERED):
            value, there = self.descended(STEEPER * lr, steps)
            if not value < best - CLEAR * abs(best):
                break
            lr, best, y = STEEPER * lr, value, there
        self.lr_y, self.near = lr, y
        self.warm_up(best)

    def warm_up(self, reached: float) -> None:
        """Where the descents hardly begin to solve the lower level, and Adam does, go on from what
        Adam finds, and let y follow in its metric.
        """
        begin = self.mean_loss("lower", self.x, self.y0, self.lower[:JUDGED])
        size = 0.1 * float(self.near.square().mean().sqrt())
        steps = min(max(round(self.lower_steps * WARM), 16), 200)
        y, m, v = self.y0, torch.zeros_like(self.y0), torch.zeros_like(self.y0)
        for t, token in enumerate(self.tokens("lower", 0, steps)):
            g = self.oracle.lower(self.x, y, token)
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
            scale = (v / (1.0 - 0.99 ** (t + 1))).sqrt() + 1e-12
            rate = size * 0.5 * (1.0 + math.cos(math.pi * t / steps))
            y = self.oracle.move_y(y, m / (1.0 - 0.9 ** (t + 1)) / scale, rate)
        value = self.mean_loss("lower", self.x, y, self.lower[:JUDGED])
        self.metric = (1.0 - MOMENTUM) * 0.25 * size / scale
        self.slow = begin - reached < SLOW * (begin - value)
        if self.slow:
            self.near, self.in_metric = y, True

    def followed(self, x: Tensor, y: Tensor, share: float = 1.0) -> Tensor:
        """y after some lower steps with momentum at x: the mean of the last half of them, which is
        less noisy.
        """
        count = math.ceil(share * FOLLOW)
        total, speed = torch.zeros_like(y), torch.zeros_like(y)
        for i, token in enumerate(self.lower[:count]):
            speed = MOMENTUM * speed + self.oracle.lower(x, y, token)
            if self.in_metric:
                y = self.oracle.move_y(y, self.metric * speed, 1.0)
            else:
                y = self.oracle.move_y(y, speed, self.lr)
            if i >= count // 2:
                total += y
        return total / (count - count // 2)

    def value(self, x: Tensor, y: Tensor | None = None, share: float = 1.0) -> tuple[float, Tensor]:
        """The upper loss at x once y has followed, and that y; from the solved start if no y is
        given.
        """
        y = self.followed(x, self.near if y is None else y, share)
        return self.mean_loss("upper", x, y, self.upper), y

    def moved(self, x: Tensor) -> Tensor:
        """x, projected where the problem says so."""
        return x if self.oracle.project_x is None else self.oracle.project_x(x)

    def measure(self) -> None:
        """Curvature, rate of y, hypergradient, and how far to go along it."""
        curvature = self.largest(self.x, self.y0)
        if not (math.isfinite(curvature) and curvature > 0):
            fail("lower", "must have positive curvature in y at the start", curvature)
        self.race_lower(curvature)
        there = self.largest(self.x, self.near, 2)
        self.curvature = there if math.isfinite(there) and there > 0 else curvature
        self.lr = LOWER / max(self.curvature, curvature / 10)
        self.lr_z = min(self.lr_y, 2.0 * self.lr)
        self.near = self.followed(self.x, self.near)
        d = self.hypergradient()
        self.size = float(d.norm())
        if self.size == 0.0 or not math.isfinite(self.size):
            fail(
                "upper", "must have a finite hypergradient that is not zero at the start", self.size
            )
        self.choose_metric(self.moved(self.x - 0.25 * math.sqrt(len(d)) * d / self.size))
        self.start = self.value(self.x)[0]
        self.distance = self.along(-d / self.size)

    def choose_metric(self, x: Tensor) -> None:
        """Let y follow in Adam's metric where it gets lower at another x than by plain steps."""
        reached = []
        for self.in_metric in (False, True):
            y = self.followed(x, self.near)
            reached.append(self.mean_loss("lower", x, y, self.lower[:JUDGED]))
        self.in_metric = reached[1] < reached[0] - CLEAR * abs(reached[0])

    def hypergradient(self) -> Tensor:
        """f_x - J z over some minibatches, z by conjugate gradients."""
        x, y, few = self.x, self.near, self.lower[:3]
        parts = [self.oracle.upper(x, y, token) for token in self.upper[:4]]
        f_x, f_y = (torch.stack(p).mean(0) for p in zip(*parts, strict=True))
        products = [self.oracle.operator(x, y, token)[0] for token in few]

        def hessian(v: Tensor) -> Tensor:
            return torch.stack([product(v) for product in products]).mean(0)

        z, _ = conjugate_gradients(self.oracle, hessian, f_y, products=8)
        count = min(self.problem.lower_data.batches, max(8, self.steps // 20))
        tokens = self.tokens("lower", 0, count)
        mixed = torch.stack([self.oracle.mixed(x, y, z, token) for token in tokens]).mean(0)
        return f_x - mixed

    def along(self, u: Tensor) -> float:
        """Distance along u to the least upper loss, a factor of 4 apart; the least that gives most
        of the gain.
        """
        at = {0.0: self.value(self.x, None, 0.5)[0]}
        s = 0.25 * math.sqrt(len(u))

        def look(s: float) -> float:
            if s not in at:
                at[s] = self.value(self.moved(self.x + s * u), None, 0.5)[0]
            return at[s]

        for _ in range(5):  # down to where it helps, if it does not
            if look(s) < at[0.0]:
                break
            s /= 4.0
        for _ in range(6):
            if look(4.0 * s) >= look(s):
                break
            s *= 4.0
        return least_enough(at, at.pop(0.0))


def least_enough(values: dict[float, float], start: float) -> float:
    """The least key whose value has most of the largest gain over the start; where nothing gains,
    the largest that does no harm, or else the one with the least value.

    Example:
        >>> least_enough({1.0: 5.0, 2.0: 1.1, 4.0: 1.0}, start=9.0)
        2.0
        >>> least_enough({1.0: 5.0, 2.0: 5.0, 4.0: 8.0}, start=5.0)
        2.0
    """
    best = min(values, key=lambda k: values[k])
    gain, little = start - values[best], CLEAR * abs(start)
    if gain > little:
        return min(k for k, value in values.items() if start - value >= ENOUGH * gain)
    return max((k for k, value in values.items() if value <= start + little), default=best)


class Runner:
    """One short run of a race that can go on."""

    def __init__(self, race: Race, settings: dict[str, Any]) -> None:
        self.race, self.settings = race, settings
        self.state: State | None = None
        self.wrong = False
        self.at = 0  # iterations done
        self.values: dict[int, float] = {}  # iteration -> upper loss there
        self.x: Tensor | None = None

    def go_on(self, steps: int) -> float:
        """To an iteration, and be judged there."""
        race = self.race
        if not self.wrong:
            before = 0 if self.state is None else self.state.total_calls
            done = solve(
                race.problem,
                race.made(self.settings),
                steps,
                seed=race.seed if self.state is None else None,
                start=self.state,
                limit=1e3,
                check_every=20,
                backend=race.backend,
            )
            self.state = done.state
            race.count(done.state.total_calls - before, done.state.t - self.at)
            self.at = steps
            self.wrong = not done.ok
            if self.wrong and self.values:  # it had survived the first race
                race.lost.append(self.settings["lr_x"] * race.scale.path(done.state.t))
            self.x = done.state.oracle.to_torch(done.state.values["x"])
        value = math.inf
        if not self.wrong and self.x is not None:
            value, _ = race.ground.value(self.x)
        self.values[steps] = value
        race.tried.append(StepTrial(dict(self.settings), steps, value))
        return value


class Race:
    """Short runs of one method on one problem."""

    def __init__(
        self, ground: Ground, key: str, method: Any, backend: Backend | None, seed: int
    ) -> None:
        self.ground, self.key, self.backend, self.seed = ground, key, backend, seed
        self.base = method
        self.scale = Scale(key, method, ground.size, ground.problem.dim_x, ground.curvature)
        self.calls, self.per_step = 0, 0.0
        self.tried: list[StepTrial] = []
        self.lost: list[float] = []  # rate times length of the path of runs that went wrong late
        self.problem = ground.problem
        if ground.slow:  # short runs show nothing unless they begin where y is solved
            self.problem = copy(ground.problem)
            self.problem.pack_y = copy(ground.problem.pack_y)
            self.problem.pack_y.start = ground.near.clone()

    def made(self, settings: dict[str, Any]) -> Method:
        made: Method = (
            self.base(**settings) if isinstance(self.base, type) else replace(self.base, **settings)
        )
        return made

    def count(self, calls: int, steps: int) -> None:
        self.calls += calls
        self.per_step = max(self.per_step, calls / max(steps, 1))

    def made_safe(self, run: Runner, steps: int) -> dict[str, Any]:
        """The settings of a run, with a lower rate of x where the lower level would become unstable
        at the place it is going to.
        """
        settings, ground = dict(run.settings), self.ground
        if run.wrong or run.x is None:
            return settings
        x, far = run.x, self.scale.path(steps) / self.scale.path(max(run.at, 1))
        ahead = far = far if self.scale.fixed else math.sqrt(far)  # the hypergradient falls
        lower = [name for name in ("lr_y", "lr_z", "eta") if name in settings]
        lr = max(settings[name] * (1.0 + run.at) ** -self.scale.exponent(name) for name in lower)

        def curvature(far: float) -> float:
            return ground.largest(ground.moved(ground.x + far * (x - ground.x)), ground.near, 2, 6)

        while far > 1.0 and not curvature(far) * lr < 2.0:
            far /= 1.5
        settings["lr_x"] *= max(far, 1.0) / ahead
        # A faster run that went wrong late had gone as far as this one will: stay before that.
        for path in self.lost:
            settings["lr_x"] = min(settings["lr_x"], BEFORE * path / self.scale.path(steps))
        return settings

    def can_afford(self, steps: float, whole: int) -> bool:
        """Whether so many iterations more leave the cost below that of one whole run."""
        spent = self.calls + self.ground.calls
        return spent + self.per_step * steps + FOLLOW + JUDGED < self.per_step * whole


def raced(
    problem: BilevelProblem,
    method: str | Method,
    steps: int,
    *,
    seed: int = 0,
    backend: Backend | None = None,
) -> RacedSteps:
    """Steps of a method for a problem and a number of iterations; see :func:`suggest_steps`."""
    if not isinstance(problem, BilevelProblem):
        fail("problem", "must be a BilevelProblem", type(problem).__name__)
    whole("seed", seed)
    check_count("steps", steps, least=20)
    key, kind = _kind(method)
    made = kind
    if isinstance(kind, type):
        made = kind(**Scale(key, kind, 1.0, problem.dim_x).settings(1.0, steps, 1.0))
    falls = Scale(key, kind, 1.0, problem.dim_x).exponent("lr_y")
    ground = Ground(problem, steps, made.plan().lower_steps(0, steps), seed, falls)
    ground.measure()
    race = Race(ground, key, kind, backend, seed)
    settings = _raced_x(race, steps)
    settings = {k: float(f"{v:.4g}") for k, v in settings.items()}
    calls = ground.calls + race.calls
    return RacedSteps(
        key,
        settings,
        steps,
        race.made(settings),
        tuple(race.tried),
        ground.start,
        ground.curvature,
        ground.size,
        ground.distance,
        calls,
        calls / (race.per_step * steps),
    )


def _raced_x(race: Race, steps: int) -> dict[str, Any]:
    """The settings whose short runs promise most."""
    ground, scale = race.ground, race.scale
    first, second, third = (max(4, round(steps * share)) for share in LENGTHS)
    runs: dict[float, Runner] = {}

    def go(reach: float, upto: int) -> bool:
        """Let a run go on, if the cost allows it."""
        done = runs[reach].at if reach in runs else 0
        if upto > first and not race.can_afford(upto - done, steps):
            return False
        if reach not in runs:
            length = reach * ground.distance
            runs[reach] = Runner(race, scale.settings(length, steps, ground.lr_y, ground.lr_z))
        runs[reach].go_on(upto)
        return True

    def at(length: int) -> dict[float, float]:
        return {r: run.values[length] for r, run in runs.items() if length in run.values}

    # The first race finds the fastest that does no great harm.
    for reach in REACHES:
        go(reach, first)
    for _ in range(6):
        best = _fastest(at(first), ground.start)
        if best is None:
            reach = min(runs) / APART**2
        elif best == min(runs) and at(first)[best] > ground.start:
            reach = best / APART
        elif best * APART not in runs:
            reach = best * APART
        else:
            break
        if not race.can_afford(first + third, steps):
            break
        go(reach, first)
    best = _fastest(at(first), ground.start) or min(runs)
    # The second one compares it with its neighbours, the third lets the winner go on.
    go(best, second)
    go(best / APART, second)
    if _least(at(second), best) == best and math.isfinite(at(first).get(APART * best, math.inf)):
        go(APART * best, second)
    best = _least(at(second), best)
    while go(best, third):
        ends = at(third)
        fell = ends[best] <= at(second).get(best, math.inf)
        if fell or best / APART in ends or best == min(ends) / APART:
            break
        best /= APART
    best = _least(at(third) or at(second), best)
    settings = race.made_safe(runs[best], steps)
    ends = runs[best].values
    # Where the last doubling gave little, x has arrived: shorter steps bring it there as well.
    late = ends.get(second, math.inf) - ends.get(third, math.inf)
    if scale.fixed and late < ARRIVED * (ground.start - ends.get(third, math.inf)):
        settings["lr_x"] = min(settings["lr_x"], 0.5 * runs[best].settings["lr_x"])
    return settings


def _least(values: dict[float, float], default: float) -> float:
    """The key of the least value."""
    return min(values, key=lambda k: values[k]) if values else default


def _fastest(values: dict[float, float], start: float) -> float | None:
    """The key with the least value; where nothing gains, the largest that does no great harm; None
    where all went wrong.

    Example:
        >>> _fastest({1.0: 5.0, 4.0: 4.0, 16.0: 9.0}, 5.0)
        4.0
        >>> _fastest({1.0: 5.001, 4.0: 5.1, 16.0: 9.0}, 5.0)
        4.0
    """
    good = {k: v for k, v in values.items() if math.isfinite(v)}
    if not good:
        return None
    least = min(good.values())
    gains = start - least > CLEAR * abs(start)
    near = least + (HARM * (start - least) if gains else HARM * abs(start))
    return max(k for k, v in good.items() if v <= near)


def _kind(method: str | Method) -> tuple[str, Any]:
    """Key and class (or the method itself, whose other settings are kept)."""
    if isinstance(method, str) and method in METHODS:
        return method, METHODS[method].load()
    if isinstance(method, Method):
        if isinstance(method.x_step, TorchStep):
            fail("method", "must have a step on x of its own, such as AdamStep()", method.x_step)
        names = {info.class_name: key for key, info in METHODS.items()}
        return names.get(type(method).__name__, type(method).__name__), method
    fail("method", f"must be a method, or one of {', '.join(METHODS)}", method)
