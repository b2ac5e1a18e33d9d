"""Steps for a method, a problem and a number of iterations: measured first, then raced on rungs.

*Measured*: the largest curvature L of the lower level, which gives lr_y, a hypergradient d, and the
distance along -d at which the upper loss is least once y has followed. *First rung*: short runs at
rates of x a factor of 4 apart, from a lower level that is nearly solved. *Second rung*: longer runs
around the best of these, from the problem's own start, each with a seed of its own. A rate next to
one that went wrong is lowered. *Last trial*: what happens late in a run happens early in a faster
one, so a rate is advised only if a run at twice this rate (four times for methods that keep no z)
survives up to 0.4 of the iterations and ends below the start. Every x is judged by the upper loss
after the same lower steps from one common y.
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
from mindgap.bilevel.core.directions import conjugate_gradients, largest_eigenvalue
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
#: Where the curvature falls below L / FALLEN as y is solved, lr_y is this many times as large; from
#: 4 on the first steps would be unstable.
FALLEN = 2.0
#: Minibatches of the upper level that a point is judged by.
JUDGED = 10
#: Lower steps before a point is judged, as a share of the iterations.
FOLLOW = 1 / 16
#: Lower steps before anything is measured, as a share of the iterations.
WARM = 1 / 5
#: Lengths of the two rungs and of the last trial, as shares of the iterations.
FIRST, SECOND, LAST = 1 / 16, 1 / 8, 2 / 5
#: Least length of the last trial.
AGAIN = 1 / 8
#: Share of the loss at the start that a run of the second rung must gain to count.
GAIN = 0.002
#: From one rate to the next.
APART = 4.0
#: Momentum of the lower steps that measure and judge.
MOMENTUM = 0.8
#: What a rate of y that falls from the first iteration on begins with, in constant ones.
FALLING = 2.0
#: Share of the largest gain that is enough where a shorter way has it.
ENOUGH = 0.9
#: Share of a loss below which a difference is noise.
CLEAR = 1e-3


@dataclass(frozen=True)
class StepTrial:
    """One short run of a race."""

    settings: dict[str, Any]
    steps: int  # its iterations
    solved: bool  # whether it began where y is solved, else at the problem's own start
    halfway: float  # upper loss halfway, once y has followed; that of the end where nobody looked
    value: float  # the same at its end; infinite where it went wrong


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
            begin = "y solved" if trial.solved else "from the start"
            lines.append(f"  {trial.steps} iterations, {begin}, {_numbers(trial.settings)}: {what}")
        lines.append(f"cost: {self.calls} oracle calls, {self.runs:.2g} runs")
        return "\n".join(lines)


def _numbers(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in settings.items())


class Scale:
    """How a method's own rates follow from a length of the path of x and a rate of y.

    Args:
        key, method: the method in ``METHODS``, and its class or the method itself.
        size, dim: norm of the hypergradient at the start, and number of upper unknowns.
        curvature: largest eigenvalue of the lower Hessian.

    Example:
        >>> scale = Scale("soba", METHODS["soba"].load(), size=2.0, dim=4)
        >>> scale.settings(10.0, 100, 0.1)["lr_x"] > scale.settings(10.0, 1000, 0.1)["lr_x"]
        True
    """

    def __init__(
        self, key: str, method: Any, size: float, dim: int, curvature: float = 1.0
    ) -> None:
        self.key, self.method, self.size, self.dim = key, method, size, dim
        self.curvature = curvature
        self.known = {f.name: f for f in fields(method)}
        #: whether the length of a step does not depend on that of the direction
        self.fixed = method.x_step != "plain"

    def exponent(self, name: str) -> float:
        """The p with which a rate falls as 1 / (1 + t)^p; 0 for one that the method has not."""
        field = self.known.get(name)
        return 0.0 if field is None else float(field.metadata.get("exponent", 0.0))

    def path(self, steps: int) -> float:
        """Sum over the iterations of a rate of x that begins at 1."""
        # F2SA multiplies its rate of x by that of y.
        exponent = self.exponent("lr_y") if self.key == "f2sa" else self.exponent("lr_x")
        return float(np.sum((1.0 + np.arange(steps)) ** -exponent))

    def settings(self, length: float, steps: int, lr_y: float) -> dict[str, Any]:
        """Settings with which x goes the distance ``length`` in so many iterations, as long as the
        hypergradient stays what it is at the start; ``lr_y`` is a constant rate of y.
        """
        first_step = length / self.path(steps)
        if self.exponent("lr_y"):
            lr_y *= FALLING
        plain = first_step / self.size
        advice = StepAdvice(
            lr_y, lr_y, plain, (plain, plain), self.curvature, self.size, 1.0, self.dim
        )
        if self.method.x_step in ("normalised", "clipped"):
            return advice.settings_with(self.method, first_step)
        if self.fixed:  # Adam moves every coordinate by its step
            return advice.settings_with(self.method, first_step / math.sqrt(self.dim))
        return advice.settings_with(self.method, plain)


class Ground:
    """What is measured of a problem before any method runs, with a count of the calls.

    Args:
        problem: what to solve.
        steps: iterations of the run that steps are sought for.
        lower_steps: steps on y before anything is measured.
        seed: of the minibatches and the power iterations.

    ``measure`` sets ``curvature`` (of the lower level), ``lr`` (the rate of y), ``near`` (y close
    to its solution at the first x), ``start`` (the upper loss there), ``size`` (norm of the
    hypergradient there), ``z`` (of its linear system) and ``distance`` (how far to go along it).
    """

    def __init__(self, problem: BilevelProblem, steps: int, lower_steps: int, seed: int) -> None:
        self.problem, self.steps, self.seed = problem, steps, seed
        self.lower_steps = lower_steps
        self.oracle = TorchOracle(problem)
        try_problem(self.oracle, seed)
        self.oracle.take_calls()
        self.losses = 0  # how many upper losses on a minibatch were taken
        self.follow = min(max(round(steps * FOLLOW), 16), 100)  # lower steps before a judgement
        count = min(problem.upper_data.batches, JUDGED)
        self.upper = samples_of(self.oracle, seed, "upper", 0, count)
        self.lower = samples_of(self.oracle, seed, "lower", 0, self.follow)
        self.x, self.y0 = self.oracle.start

    @property
    def calls(self) -> int:
        """Oracle calls so far; the loss on a minibatch counts as one."""
        return int(self.oracle.calls.total) + self.losses

    def largest(self, x: Tensor, y: Tensor, batches: int = 3, products: int = 8) -> float:
        """Largest curvature of the lower level at (x, y) over the first ``batches`` minibatches,
        by ``products`` steps of power iteration on each; infinite where it is no number.
        """
        generator = torch.Generator().manual_seed(self.seed % 2**63)
        most = 0.0
        for sample in self.lower[:batches]:
            hessian, _ = self.oracle.operator(x, y, sample)
            v = torch.randn(y.shape, generator=generator, dtype=y.dtype).to(y.device)
            size = largest_eigenvalue(hessian, v, products)
            most = max(most, size) if math.isfinite(size) else math.inf
        return most

    def descend(self, x: Tensor, y: Tensor, samples: Sequence[Sample], lr: float) -> Tensor:
        """y after one lower step with momentum at x on each sample: the mean over the second half
        of the steps, which is less noisy than the last y.
        """
        total, momentum = torch.zeros_like(y), torch.zeros_like(y)
        for i, sample in enumerate(samples):
            momentum = MOMENTUM * momentum + self.oracle.lower(x, y, sample)
            y = self.oracle.move_y(y, momentum, lr)
            if i >= len(samples) // 2:
                total += y
        return total / (len(samples) - len(samples) // 2)

    def value(self, x: Tensor, y: Tensor) -> tuple[float, Tensor]:
        """The upper loss at x once y has followed by ``follow`` lower steps, and that y.

        It is the mean over the upper minibatches, infinite where that is no number; counts them.
        """
        y = self.descend(x, y, self.lower, self.lr)
        self.losses += len(self.upper)
        losses = [float(self.problem.loss("upper", x, y, sample)) for sample in self.upper]
        mean = sum(losses) / len(losses)
        return (mean if math.isfinite(mean) else math.inf), y

    def measure(self) -> None:
        """Set the attributes that the class names: curvature, hypergradient, distance along it."""
        curvature = self.largest(self.x, self.y0)
        if not (math.isfinite(curvature) and curvature > 0):
            fail("lower", "must have positive curvature in y at the start", curvature)
        for _ in range(4):  # y may come to where the curvature is larger: then again, more slowly
            near = self.descend(self.x, self.y0, self.lower, LOWER / curvature)
            there = self.largest(self.x, near, 2) if bool(near.isfinite().all()) else math.inf
            is_alike = there <= 1.5 * curvature
            curvature = max(curvature, there if math.isfinite(there) else 4 * curvature)
            if is_alike:
                break
        self.curvature, self.lr = curvature, LOWER / curvature
        if self.lower_steps:
            samples = samples_of(self.oracle, self.seed, "lower", 0, self.lower_steps)
            near = self.descend(self.x, near, samples, self.lr)
        if self.largest(self.x, near, 2) < curvature / FALLEN:  # only the start is so curved
            self.curvature, self.lr = curvature / FALLEN, FALLEN * self.lr
        self.start, self.near = self.value(self.x, near)
        d = self.hypergradient()
        self.size = float(d.norm())
        if self.size == 0.0 or not math.isfinite(self.size):
            rule = "must have a finite hypergradient that is not zero at the start"
            fail("upper", rule, self.size)
        self.distance = self.along(-d / self.size)

    def hypergradient(self) -> Tensor:
        """f_x - J z at (x, near) over some minibatches; sets z, from conjugate gradients."""
        x, y = self.x, self.near
        upper_gradients = [self.oracle.upper(x, y, sample) for sample in self.upper[:4]]
        f_x, f_y = (torch.stack(parts).mean(0) for parts in zip(*upper_gradients, strict=True))
        products = [self.oracle.operator(x, y, sample)[0] for sample in self.lower[:3]]

        def hessian(v: Tensor) -> Tensor:
            return torch.stack([product(v) for product in products]).mean(0)

        z, _ = conjugate_gradients(self.oracle, hessian, f_y, products=8)
        self.z = z
        count = min(self.problem.lower_data.batches, max(8, self.steps // 20))
        samples = samples_of(self.oracle, self.seed, "lower", 0, count)
        return f_x - torch.stack([self.oracle.mixed(x, y, z, s) for s in samples]).mean(0)

    def along(self, u: Tensor) -> float:
        """The least distance along the unit vector u, among some a factor of 4 apart, at which most
        of the possible fall of the upper loss is reached.
        """
        start = self.value(self.x, self.near)[0]
        loss_at: dict[float, float] = {}  # distance -> upper loss
        distance = 0.25 * math.sqrt(len(u))

        def look(distance: float) -> float:
            """The upper loss at a distance, taken once."""
            if distance not in loss_at:
                x = self.x + distance * u
                x = x if self.oracle.project_x is None else self.oracle.project_x(x)
                loss_at[distance] = self.value(x, self.near)[0]
            return loss_at[distance]

        for _ in range(5):  # down to where it helps, if it does not
            if look(distance) < start:
                break
            distance /= 4.0
        for _ in range(6):
            if look(4.0 * distance) >= look(distance):
                break
            distance *= 4.0
        return least_enough(loss_at, start)


def samples_of(oracle: TorchOracle, seed: int, level: str, begin: int, count: int) -> list[Sample]:
    """The minibatches ``begin .. begin + count - 1`` of a level's stream; each has a random seed of
    its own where the losses draw numbers.
    """
    drawn = oracle.problem.data(level).draw(seed, level, begin, count)
    samples = [row(drawn, i) for i in range(count)]
    if oracle.seeded:
        samples = [Sample(s.which, (seed + begin + i) % 2**31) for i, s in enumerate(samples)]
    return samples


def least_enough(values: dict[float, float], start: float) -> float:
    """The least key whose value has most of the largest gain over the start.

    Where nothing gains it is the largest key that does no harm, or else that of the least value.

    Args:
        values: distance or rate -> upper loss, less is better.
        start: upper loss at the start.

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
    """Short runs of one method on one problem.

    Args:
        ground: what was measured of the problem.
        key: the method in ``METHODS``.
        method: its class, or a method whose other settings are kept.
        backend: who runs the iterations; eager torch if None.
        seed: of the draws; every run from the problem's start has one of its own above it.
    """

    def __init__(
        self, ground: Ground, key: str, method: Any, backend: Backend | None, seed: int
    ) -> None:
        self.ground, self.key, self.seed = ground, key, seed
        self.base = method
        self.scale = Scale(key, method, ground.size, ground.problem.dim_x, ground.curvature)
        # Oracle calls so far, those per iteration of the last run, and seeds handed out.
        self.calls, self.per_step, self.seeds = 0, 0.0, 0
        self.options: dict[str, Any] = {"limit": 1e3, "check_every": 8, "backend": backend}
        self.twin = copy(ground.problem)  # the same problem, its lower level solved at the start
        self.twin.pack_y = copy(ground.problem.pack_y)
        self.twin.pack_y.start = ground.near.clone()
        self.tried: list[StepTrial] = []

    def made(self, settings: dict[str, Any]) -> Method:
        made: Method = (
            self.base(**settings) if isinstance(self.base, type) else replace(self.base, **settings)
        )
        return made

    def run(self, settings: dict[str, Any], steps: int, *, solved: bool) -> StepTrial:
        """Make a short run, judge it, and add it to ``tried`` and its cost to ``calls``.

        Args:
            settings: of the method.
            steps: iterations.
            solved: begin where the lower level is solved; else at the problem's own start with a
                fresh seed, and judge halfway too.
        """
        ground, method = self.ground, self.made(settings)
        problem = self.twin if solved else ground.problem
        state = self.warm(method) if solved else None
        values, calls_before = [], 0 if state is None else state.total_calls
        if not solved:
            self.seeds += 1
        for until in (steps,) if solved else (steps // 2, steps):
            seed = None if state else self.seed + 100 + self.seeds
            done = solve(problem, method, until, seed=seed, start=state, **self.options)
            state = done.state
            x = state.oracle.to_torch(state.values["x"])
            good = done.ok and bool(x.isfinite().all())
            if good and not solved:
                good = self.is_stable(x, settings, until)
            values.append(ground.value(x, ground.near)[0] if good else math.inf)
            if not good:
                break
        spent = done.state.total_calls - calls_before
        self.calls += spent
        self.per_step = spent / max(done.state.t, 1)
        trial = StepTrial(dict(settings), steps, solved, values[0], values[-1])
        self.tried.append(trial)
        return trial

    def is_stable(self, x: Tensor, settings: dict[str, Any], t: int) -> bool:
        """Whether the rate of y at iteration t stays below 1 / L for the curvature L at this x."""
        lr_y = settings["lr_y"] * (1.0 + t) ** -self.scale.exponent("lr_y")
        return bool(self.ground.largest(x, self.ground.near, 2, 6) * lr_y <= 2.0 * LOWER)

    def warm(self, method: Method) -> State:
        """A method's first state with y solved, and z too where it keeps one."""
        state = method.start(self.twin, self.seed)
        z = state.values.get("z")
        if isinstance(z, Tensor) and z.shape == self.ground.z.shape:
            state.values["z"] = self.ground.z.clone()
        return state

    def left(self, whole: int) -> float:
        """Iterations that can still run before the cost is that of one run of ``whole``."""
        ground = self.ground
        # What measuring cost, and what three more judgements will.
        judging = ground.calls + 3 * (ground.follow + len(ground.upper))
        return 0.97 * whole - (self.calls + judging) / self.per_step  # 3 % are a reserve

    def can_afford(self, steps: int, whole: int, last: float = LAST) -> bool:
        """Whether ``steps`` more iterations leave the share ``last`` of a run for a last trial."""
        return self.left(whole) > steps + last * whole

    def first(self, steps: int, whole: int) -> float:
        """First rung: the best rate of x in short runs from a solved lower level.

        The rates let x go 2 and 8 times the measured distance, then a factor of 4 further while the
        best is at an end of those tried.

        Args:
            steps: iterations of each run.
            whole: iterations of the run that steps are sought for.
        """
        ground, values = self.ground, dict[float, float]()  # multiple of the distance -> loss
        rates = dict[float, float]()  # the same multiple -> rate of x

        def look(far: float) -> None:
            """Run with a rate for this multiple of the distance."""
            settings = self.scale.settings(far * ground.distance, steps, ground.lr)
            values[far] = self.run(settings, steps, solved=True).value
            rates[far] = settings["lr_x"]

        look(2.0)
        look(8.0)
        for _ in range(3):
            far = least_enough(values, ground.start)
            if far == max(values):
                far *= APART
            elif far == min(values):
                far /= APART
            else:
                break
            if not self.can_afford(steps + round(whole * SECOND), whole, AGAIN):
                break
            look(far)
        return rates[least_enough(values, ground.start)]

    def second(self, lr_x: float, base: dict[str, Any], steps: int, whole: int) -> StepTrial:
        """Second rung: the best of a few longer runs from the problem's own start.

        Args:
            lr_x: rate of x to begin with.
            base: the other settings.
            steps, whole: as for ``first``.
        """
        best = self.run({**base, "lr_x": lr_x}, steps, solved=False)
        wider = APART
        while not self.gains(best) and self.can_afford(steps, whole, AGAIN):
            lr_x, wider = lr_x / APART, 2.0
            best = self.run({**base, "lr_x": lr_x}, steps, solved=False)
        if self.gains(best) and self.can_afford(steps, whole):
            faster = self.run({**base, "lr_x": wider * lr_x}, steps, solved=False)
            margin = CLEAR * abs(self.ground.start)
            if faster.value < best.value - margin and faster.value <= faster.halfway:
                best = faster
        return best

    def gains(self, trial: StepTrial) -> bool:
        """Whether a run ended clearly below the start."""
        return trial.value < self.ground.start - GAIN * abs(self.ground.start)

    def safe(self, best: StepTrial, steps: int) -> dict[str, Any]:
        """Settings for the whole run, made from those of the best run of the second rung.

        The rate of x is lower next to one that went wrong, where steps of a fixed length have come
        far enough, and where the last trial fails.
        """
        ground, settings = self.ground, dict(best.settings)
        rate = settings["lr_x"]
        next_rates = [t for t in self.tried if rate < t.settings["lr_x"] < 1.1 * APART * rate]
        if not self.gains(best):  # nothing was seen to help: almost stay
            settings["lr_x"] = rate / 64.0
        elif any(not math.isfinite(t.value) for t in next_rates):
            settings["lr_x"] = rate / (2.0 if self.scale.fixed else APART)
        elif self.scale.fixed and best.halfway - best.value < 0.2 * (ground.start - best.value):
            settings["lr_x"] = rate / 2.0  # most of its gain was in the first half
        settings["lr_x"] = self.checked(settings, best, steps)
        return {k: float(f"{v:.4g}") for k, v in settings.items()}

    def checked(self, settings: dict[str, Any], best: StepTrial, steps: int) -> float:
        """The rate of x, lowered until a faster run with another seed stays in bounds and ends
        below the start; half of it where that run ended higher than it was halfway (steps of a
        fixed length: or higher than a run of the second rung).

        Args:
            settings: with the rate to check.
            best: the best run of the second rung.
            steps: iterations of the whole run.
        """
        rate, start = float(settings["lr_x"]), self.ground.start
        best_rate, best_value = best.settings["lr_x"], best.value
        little = CLEAR * abs(start)
        # A method that keeps z runs into trouble when z lags, which a much faster run passes by.
        faster = 2.0 if self.scale.fixed or "lr_z" in self.scale.known else APART
        least = 1e-3 * rate  # no lower rate is tried
        while rate > least:
            length = round(min(max(self.left(steps), AGAIN * steps), LAST * steps))
            trial = self.run({**settings, "lr_x": faster * rate}, length, solved=False)
            if trial.value <= start + little:  # it passed
                before = min(trial.halfway, best_value) if self.scale.fixed else trial.halfway
                return rate / 2.0 if trial.value > before + little else rate
            rate /= APART
            if self.left(steps) < AGAIN * steps and faster * rate <= best_rate:
                break  # a run of the second rung was as long and fast as what could still run
        return rate


def raced(
    problem: BilevelProblem,
    method: str | Method,
    steps: int,
    *,
    seed: int = 0,
    backend: Backend | None = None,
) -> RacedSteps:
    """The steps of a method that win on two rungs, for a run of ``steps`` iterations.

    Args:
        method: a key of ``METHODS``, or a method whose other settings are kept.
        seed: of the minibatches and runs.
        backend: who runs the short runs; eager torch if not given.
    """
    if not isinstance(problem, BilevelProblem):
        fail("problem", "must be a BilevelProblem", type(problem).__name__)
    whole("seed", seed)
    check_count("steps", steps, least=20)
    key, kind = _kind(method)
    ground = Ground(problem, steps, round(WARM * steps), seed)
    ground.measure()
    race = Race(ground, key, kind, backend, seed)
    lr_x = race.first(max(4, round(steps * FIRST)), steps)
    base = dict(race.tried[-1].settings)
    best = race.second(
        lr_x / 2.0 if race.scale.fixed else lr_x, base, max(8, round(steps * SECOND)), steps
    )
    settings = race.safe(best, steps)
    measured = ground.start, ground.curvature, ground.size, ground.distance
    calls = ground.calls + race.calls
    runs = calls / (race.per_step * steps)
    return RacedSteps(
        key, settings, steps, race.made(settings), tuple(race.tried), *measured, calls, runs
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
