"""Steps for a method, a problem and a number of iterations: measured first, then raced.

*Measured*: the largest curvature L of the lower level, a hypergradient d, and the distance along -d
at which the upper loss is least once y has followed. *Raced*: short runs at rates a factor of 4
apart around what was measured, all from a lower level that is nearly solved. *Looked ahead*: the
displacement of the best short runs, continued in a straight line as far as the whole run could go,
says how far x should go; the rate follows from that distance and the number of iterations. The last
race is among a few rates made for the whole run. The winner must then survive the first iterations
from the problem's own start.
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
from mindgap.bilevel.core.settings import TorchStep, check_count
from mindgap.bilevel.core.types import Backend, State
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Sample, row
from mindgap.bilevel.method import Method
from mindgap.bilevel.registry import METHODS
from mindgap.bilevel.solver import solve
from mindgap.bilevel.tools.step_advice import StepAdvice

#: Share of 1 / L that lr_y and lr_z take.
LOWER = 0.5
#: Minibatches of the upper level that a point is judged by.
JUDGED = 10
#: Lower steps from one point to the next before it is judged, as a share of the iterations.
FOLLOW = 1 / 16
#: Lower steps before anything is measured, as a share of those of the whole run.
WARM = 0.25
#: Lengths of the two races, as shares of the iterations.
FIRST, SECOND = 1 / 20, 1 / 7
#: From one rate of the first race to the next.
APART = 4.0
#: Share of the largest gain that is enough where a shorter way has it.
ENOUGH = 0.9
#: Share of a loss below which a difference is noise.
CLEAR = 1e-3
#: From one rate of the second race to the next.
WIDER = 2.5


@dataclass(frozen=True)
class StepTrial:
    """One short run of a race."""

    settings: dict[str, Any]
    steps: int  # its iterations
    value: float  # upper loss at its end, once y has followed; infinite where it went wrong
    #: the same, foreseen for the whole run: the least value along its displacement; NaN where
    #: nobody looked
    foreseen: float
    farther: float  # how many times its displacement that is


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
            ahead = (
                ""
                if math.isnan(trial.foreseen)
                else f"; {trial.foreseen:.4g} foreseen {trial.farther:.3g} times as far"
            )
            what = f"{trial.value:.4g}{ahead}" if math.isfinite(trial.value) else "went wrong"
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

    def settings(self, length: float, steps: int, lr_y: float) -> dict[str, Any]:
        """Settings with which x goes that far in so many iterations, as long as the hypergradient
        is what it is at the start.
        """
        per_step = length / self.path(steps)
        lr_x = per_step / self.size
        found: dict[str, Any] = {"lr_x": lr_x, "lr_y": lr_y}
        if self.method.x_step in ("normalised", "clipped"):
            found["lr_x"] = per_step
        elif self.fixed:  # Adam moves every coordinate by its step
            found["lr_x"] = per_step / math.sqrt(self.dim)
        if "lr_z" in self.known and self.known["lr_z"].default is not None:
            found["lr_z"] = lr_y
        if "eta" in self.known and "terms" in self.known:
            found["eta"] = lr_y
        advice = StepAdvice(
            lr_y, lr_y, lr_x, (lr_x, lr_x), self.curvature, self.size, 1.0, self.dim
        )
        return dict(self.method.adapt_settings(found, advice))


class Ground:
    """What is measured of a problem before any method runs, with a count of the calls."""

    def __init__(self, problem: BilevelProblem, steps: int, lower_steps: int, seed: int) -> None:
        self.problem, self.steps, self.seed = problem, steps, seed
        self.lower_steps = lower_steps  # on y, before anything is measured
        self.oracle = TorchOracle(problem)
        try_problem(self.oracle, seed)
        self.oracle.take_calls()
        self.losses = 0  # upper losses on a minibatch
        self.follow = min(max(round(steps * FOLLOW), 16), 100)
        count = min(problem.upper_data.batches, JUDGED)
        self.upper = self.tokens("upper", 0, count)
        self.lower = self.tokens("lower", 0, self.follow)
        self.x, self.y0 = self.oracle.start

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

    def followed(self, x: Tensor, y: Tensor, lr: float, share: float = 1.0) -> Tensor:
        """y after some lower steps at x: the mean of the last half of them, which is less noisy."""
        count = math.ceil(share * self.follow)
        total = torch.zeros_like(y)
        for i, token in enumerate(self.lower[:count]):
            y = self.oracle.move_y(y, self.oracle.lower(x, y, token), lr)
            if i >= count // 2:
                total += y
        return total / (count - count // 2)

    def value(self, x: Tensor, y: Tensor, share: float = 1.0) -> tuple[float, Tensor]:
        """The upper loss at x once y has followed, and that y."""
        y = self.followed(x, y, self.lr, share)
        self.losses += len(self.upper)
        losses = [float(self.problem.loss("upper", x, y, token)) for token in self.upper]
        mean = sum(losses) / len(losses)
        return (mean if math.isfinite(mean) else math.inf), y

    def moved(self, x: Tensor) -> Tensor:
        """x, projected where the problem says so."""
        return x if self.oracle.project_x is None else self.oracle.project_x(x)

    def measure(self) -> None:
        """Curvature, hypergradient, and how far to go along it."""
        curvature = self.largest(self.x, self.y0)
        if not (math.isfinite(curvature) and curvature > 0):
            fail("lower", "must have positive curvature in y at the start", curvature)
        for _ in range(4):
            near = self.followed(self.x, self.y0, LOWER / curvature)
            there = self.largest(self.x, near, 2) if bool(near.isfinite().all()) else math.inf
            enough = there <= 1.5 * curvature
            curvature = max(curvature, there if math.isfinite(there) else 4 * curvature)
            if enough:
                break
        self.curvature, self.lr = curvature, LOWER / curvature
        for token in self.tokens("lower", 0, self.lower_steps):
            near = self.oracle.move_y(near, self.oracle.lower(self.x, near, token), self.lr)
        self.start, self.near = self.value(self.x, near)
        d = self.hypergradient()
        self.size = float(d.norm())
        if self.size == 0.0 or not math.isfinite(self.size):
            fail(
                "upper", "must have a finite hypergradient that is not zero at the start", self.size
            )
        self.distance = self.along(-d / self.size)

    def hypergradient(self) -> Tensor:
        """f_x - J z over some minibatches, z by conjugate gradients."""
        x, y, few = self.x, self.near, self.lower[:3]
        parts = [self.oracle.upper(x, y, token) for token in self.upper[:4]]
        f_x, f_y = (torch.stack(p).mean(0) for p in zip(*parts, strict=True))
        products = [self.oracle.operator(x, y, token)[0] for token in few]

        def hessian(v: Tensor) -> Tensor:
            return torch.stack([product(v) for product in products]).mean(0)

        z, _ = conjugate_gradients(self.oracle, hessian, f_y, products=8)
        self.z = z
        count = min(self.problem.lower_data.batches, max(8, self.steps // 20))
        tokens = self.tokens("lower", 0, count)
        mixed = torch.stack([self.oracle.mixed(x, y, z, token) for token in tokens]).mean(0)
        return f_x - mixed

    def along(self, u: Tensor) -> float:
        """Distance along u to the least upper loss, a factor of 4 apart; the least that gives most
        of the gain.
        """
        at = {0.0: self.value(self.x, self.near)[0]}
        s = 0.25 * math.sqrt(len(u))

        def look(s: float) -> float:
            if s not in at:
                at[s] = self.value(self.moved(self.x + s * u), self.near)[0]
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


class Race:
    """Short runs of one method on one problem."""

    def __init__(
        self, ground: Ground, key: str, method: Any, backend: Backend | None, seed: int
    ) -> None:
        self.ground, self.key, self.backend, self.seed = ground, key, backend, seed
        self.base = method
        self.scale = Scale(key, method, ground.size, ground.problem.dim_x, ground.curvature)
        self.lower = METHODS[key].lower_variable if key in METHODS else "y"
        self.calls, self.per_step = 0, 0.0
        self.twin = copy(ground.problem)  # the same problem, its lower level solved at the start
        self.twin.pack_y = copy(ground.problem.pack_y)
        self.twin.pack_y.start = ground.near.clone()
        self.tried: list[StepTrial] = []
        self.ends: list[tuple[Tensor, Tensor] | None] = []

    def made(self, settings: dict[str, Any]) -> Method:
        made: Method = (
            self.base(**settings) if isinstance(self.base, type) else replace(self.base, **settings)
        )
        return made

    def run(self, points: Sequence[dict[str, Any]], steps: int) -> list[int]:
        """Short runs at some points; their numbers among those tried."""
        methods, ends = [self.made(p) for p in points], []
        if type(self.backend).__name__ == "JaxBackend":
            ends = self._compiled(methods, steps)
        else:
            for method in methods:
                done = solve(self.twin, method, steps, start=self.warm(method), limit=1e6)
                self._count(done.state.total_calls, done.state.t)
                at = tuple(
                    done.state.oracle.to_torch(done.state.values[k]) for k in ("x", self.lower)
                )
                ends.append(at if done.ok else None)
        numbers = []
        for point, end in zip(points, ends, strict=True):
            value = math.inf
            if end is not None and all(bool(v.isfinite().all()) for v in end):
                x, y = end
                value, y = self.ground.value(x, y, 0.5)
                end = x, y
            numbers.append(len(self.tried))
            self.tried.append(StepTrial(dict(point), steps, value, math.nan, math.nan))
            self.ends.append(end if math.isfinite(value) else None)
        return numbers

    def starts_well(self, settings: dict[str, Any], steps: int) -> bool:
        """Whether a run from the problem's own start, where y is not solved, stays in bounds."""
        ground = self.ground
        done = solve(ground.problem, self.made(settings), steps, seed=self.seed, limit=1e3)
        self._count(done.state.total_calls, max(done.state.t, steps))
        value = math.inf
        if done.ok:
            value, _ = ground.value(done.state.x, done.state.values[self.lower], 0.5)
        well = value <= ground.start + 2.0 * abs(ground.start)
        shown = value if well else math.inf
        self.tried.append(StepTrial(dict(settings), steps, shown, math.nan, math.nan))
        self.ends.append(None)
        return well

    def warm(self, method: Method) -> State:
        """The state before the first iteration, with the linear system solved as well."""
        state = method.start(self.twin, self.seed)
        z = state.values.get("z")
        if isinstance(z, Tensor) and z.shape == self.ground.z.shape:
            state.values["z"] = self.ground.z.clone()
        return state

    def _count(self, calls: int, steps: int) -> None:
        self.calls += calls
        self.per_step = max(self.per_step, calls / max(steps, 1))

    def _compiled(self, methods: list[Method], steps: int) -> list[Any]:
        """All points in one program, those that differ in more than rates in several."""
        from mindgap.bilevel.backends.many import ManyRuns
        from mindgap.bilevel.tools.grid import groups_of

        ends: list[Any] = [None] * len(methods)
        for group in groups_of(methods, self.backend):
            some = [methods[i] for i in group]
            runs = ManyRuns(self.backend, self.twin, some, [self.seed])  # type: ignore[arg-type]
            if "z" in runs.values and runs.values["z"].shape[2:] == self.ground.z.shape:
                z = runs.oracle.from_torch(self.ground.z)
                runs.values = {**runs.values, "z": runs.values["z"] + z}
            runs.run(steps)
            x, y = (runs.oracle.to_torch(runs.values[k])[0] for k in ("x", self.lower))
            for place, i in enumerate(group):
                ends[i] = x[place], y[place]
                self._count(runs.calls[0], steps)
        return ends

    def best(self, numbers: Sequence[int]) -> int:
        """Of some runs that were looked at ahead, the one of the least rate that is good enough."""
        rates = {self.tried[n].settings["lr_x"]: n for n in numbers}
        seen = {rate: self.tried[n].foreseen for rate, n in rates.items()}
        seen = {rate: math.inf if math.isnan(v) else v for rate, v in seen.items()}
        return rates[least_enough(seen, self.ground.start)]

    def can_afford(self, steps: int, whole: int) -> bool:
        """Whether another short run leaves the cost below that of one whole run."""
        spent = self.calls + self.ground.calls
        return spent + self.per_step * steps + 100 < self.per_step * whole

    def made_safe(self, number: int, steps: int) -> dict[str, Any]:
        """The settings of a run, with lower rates where the lower level is more curved at the
        place it is going to.
        """
        trial, end = self.tried[number], self.ends[number]
        settings = dict(trial.settings)
        if end is None:
            return settings
        ground, lr_y, (x, y) = self.ground, settings["lr_y"], end
        lower = [name for name in ("lr_y", "lr_z", "eta") if name in settings]
        lr_y *= (1.0 + steps) ** -self.scale.exponent("lr_y")
        length = self.scale.path(steps) / self.scale.path(trial.steps)
        length = 2.0 if self.scale.fixed else length

        def curvature(far: float) -> float:
            there = ground.moved(ground.x + far * (x - ground.x))
            return ground.largest(there, y, 2, 6)

        # If x goes on as it began, the lower level must still be stable, with a rate that may be up
        # to four times lower.
        slower = min(1.0, max(0.25, 2.0 * LOWER / max(curvature(length) * lr_y, 1e-30)))
        for name in lower:
            settings[name] *= slower
        # A path that slows down goes about the root of what its length says.
        whole = far = math.sqrt(length)
        while far >= 1.0 and curvature(far) * lr_y * slower > 2.4 * LOWER:
            far /= 2.0
        settings["lr_x"] *= max(far, 1.0) / whole
        return settings

    def look_ahead(self, number: int, most: float) -> None:
        """Continue a run's displacement in a straight line, twice as far each time, until the upper
        loss rises or the whole run would have gone no farther.
        """
        trial, end = self.tried[number], self.ends[number]
        if end is None:
            return
        ground, (x, y) = self.ground, end
        at, far = {1.0: ground.value(x, y, 0.5)[0]}, 1.0
        while 2.0 * far <= most * 1.01:
            there = ground.moved(ground.x + 2.0 * far * (x - ground.x))
            at[2.0 * far] = ground.value(there, y, 0.5)[0]
            if not at[2.0 * far] < at[far]:
                break
            far *= 2.0
        far = least_enough(at, ground.start)
        self.tried[number] = replace(trial, foreseen=at[far], farther=far)


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
    plan = made.plan()
    ground = Ground(problem, steps, round(WARM * plan.lower_steps(0, steps)), seed)
    ground.measure()
    race = Race(ground, key, kind, backend, seed)
    first, second = max(4, round(steps * FIRST)), max(8, round(steps * SECOND))
    scale, lr_y = race.scale, ground.lr

    def point(reach: float) -> dict[str, Any]:
        return scale.settings(reach * ground.distance, first, lr_y)

    # The first race: a control that stays, and rates that would bring x half, twice, 8 and 32 times
    # as far as the line says. All see the same samples.
    asked = (1e-6, 0.5, 2.0, 8.0, 32.0)
    numbers = race.run([point(r) for r in asked], first)
    control = race.tried[numbers[0]].value
    reach = dict(zip(numbers[1:], asked[1:], strict=True))
    for _ in range(3):
        far = least_enough({r: race.tried[n].value for n, r in reach.items()}, control)
        if far == max(reach.values()):
            far *= APART
        elif far == min(reach.values()):
            far /= APART
        else:
            break
        if not race.can_afford(first + 2 * second, steps):
            break
        reach[race.run([point(far)], first)[0]] = far
    least = least_enough({r: race.tried[n].value for n, r in reach.items()}, control)
    order = sorted(reach, key=lambda n: (reach[n] != least, race.tried[n].value))[:2]
    for n in order:
        race.look_ahead(n, steps / first)
    return _second(race, race.best(order), steps, first, second)


def _second(race: Race, best: int, steps: int, first: int, second: int) -> RacedSteps:
    """The second race, longer and around the winner of the first; returns the settings for the
    whole run.
    """
    ground, scale, trial = race.ground, race.scale, race.tried[best]

    far = 1.0 if math.isnan(trial.farther) else trial.farther
    # Where the length of a step is fixed, the race is one of paths: the whole run goes as far as
    # the short one, in shorter steps. Else it is one of rates; the hypergradient falls on the way,
    # so that the same path needs a larger rate.
    longer = scale.path(steps) / scale.path(second) if scale.fixed else 1.0
    same_path = far * scale.path(first) / scale.path(steps)
    lr_x = (
        longer * trial.settings["lr_x"] * (same_path if scale.fixed else min(1.0, same_path**0.5))
    )
    base = dict(trial.settings)
    rates = [lr_x / WIDER, lr_x] if scale.fixed else [lr_x, WIDER * lr_x]
    numbers = race.run([{**base, "lr_x": rate} for rate in rates], second)
    for n in numbers:
        race.look_ahead(n, steps / second)
    while all(race.ends[n] is None for n in numbers) and rates[0] > 0.001 * lr_x:
        rates = [rates[0] / WIDER**2, *rates]  # all went wrong
        numbers = race.run([{**base, "lr_x": rates[0]}], second)
        race.look_ahead(numbers[0], steps / second)
    won = race.best(numbers)
    if (
        not scale.fixed
        and won == numbers[-1]
        and len(numbers) == 2
        and race.can_afford(second, steps)
    ):
        more = race.run([{**base, "lr_x": WIDER * rates[-1]}], second)
        race.look_ahead(more[0], steps / second)
        won = race.best([*numbers, *more])
    settings = race.made_safe(won, steps)
    if scale.fixed:  # as far as was foreseen
        settings["lr_x"] *= race.tried[won].farther / longer
    for _ in range(6):  # the races began where y is solved; the run will not
        if race.starts_well(settings, first):
            break
        settings["lr_x"] /= WIDER
    settings = {k: float(f"{v:.4g}") for k, v in settings.items()}
    calls = ground.calls + race.calls
    return RacedSteps(
        race.key,
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
