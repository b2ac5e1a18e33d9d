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
from functools import partial
from typing import Any, cast

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
LR_SHARE = 0.5
#: Where the curvature falls below L / FALLEN as y is solved, lr_y is this many times as large; from
#: 4 on the first steps would be unstable.
FALLEN = 2.0
#: Minibatches of the upper level that a point is judged by.
JUDGED_BATCHES = 10
#: Lower steps before a point is judged, as a share of the iterations.
FOLLOW = 1 / 16
#: Lower steps before anything is measured, as a share of the iterations.
WARM = 1 / 5
#: Lengths of the two rungs and of the last trial, as shares of the iterations.
FIRST, SECOND, LAST = 1 / 16, 1 / 8, 2 / 5
#: Least length of the last trial, as such a share.
LEAST_LAST = 1 / 8
#: Share of the loss at the start that a run of the second rung must gain to count.
GAIN = 0.002
#: Ratio of one rate that is tried to the next.
RATE_RATIO = 4.0
#: Momentum of the lower steps that measure and judge.
MOMENTUM = 0.8
#: First value of a rate of y that falls with the iterations, as a multiple of a constant one.
FALLING = 2.0
#: Share of the largest gain that is enough where a shorter way has it.
ENOUGH = 0.9
#: Share of a loss below which a difference is noise.
NOISE = 1e-3


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
    """Names and numbers of settings as text, such as "lr_x 0.1, lr_y 0.02"."""
    return ", ".join(f"{name} {value:.3g}" for name, value in settings.items())


class Scale:
    """How a method's own rates follow from a length of the path of x and a rate of y.

    Args:
        key, method: the method in ``METHODS``, and its class or the method itself.
        gradient_norm, dim: norm of the hypergradient at the start, and number of upper unknowns.
        curvature: largest eigenvalue of the lower Hessian.

    Example:
        >>> scale = Scale("soba", METHODS["soba"].load(), gradient_norm=2.0, dim=4)
        >>> scale.settings(10.0, 100, 0.1)["lr_x"] > scale.settings(10.0, 1000, 0.1)["lr_x"]
        True
    """

    def __init__(
        self, key: str, method: Any, gradient_norm: float, dim: int, curvature: float = 1.0
    ) -> None:
        self.key, self.method, self.dim = key, method, dim
        self.gradient_norm, self.curvature = gradient_norm, curvature
        self.setting_fields = {f.name: f for f in fields(method)}
        #: whether the length of a step does not depend on that of the direction
        self.fixed_length = method.x_step != "plain"

    def exponent(self, name: str) -> float:
        """The p with which a rate falls as 1 / (1 + t)^p; 0 for one that the method has not."""
        if name not in self.setting_fields:
            return 0.0
        return float(self.setting_fields[name].metadata.get("exponent", 0.0))

    def rate_sum(self, steps: int) -> float:
        """Sum of the method's rate of x over ``steps`` iterations if it is 1 in the first."""
        # F2SA multiplies its rate of x by that of y.
        exponent = self.exponent("lr_y") if self.key == "f2sa" else self.exponent("lr_x")
        return float(np.sum((1.0 + np.arange(steps)) ** -exponent))

    def settings(self, length: float, steps: int, lr_y: float) -> dict[str, Any]:
        """Settings with which x goes the distance ``length`` in ``steps`` iterations if the
        hypergradient stays as at the start; ``lr_y`` is the rate of y if that is constant.
        """
        first_step = length / self.rate_sum(steps)
        if self.exponent("lr_y"):
            lr_y *= FALLING
        lr_x = plain_rate = first_step / self.gradient_norm
        if self.method.x_step in ("normalised", "clipped"):
            lr_x = first_step
        elif self.fixed_length:  # Adam moves every coordinate by its step
            lr_x = first_step / math.sqrt(self.dim)
        # lr_y, lr_z, lr_x and its range, then what they follow from; Phi's curvature is unknown: 1.
        advice = StepAdvice(
            *(lr_y, lr_y, plain_rate, (plain_rate, plain_rate)),
            *(self.curvature, self.gradient_norm, 1.0, self.dim),
        )
        return advice.settings_with(self.method, lr_x)


class Measurements:
    """What is measured of a problem before any method runs, with a count of the calls.

    Args:
        problem: what to solve.
        steps: iterations of the run that steps are sought for.
        lower_steps: steps on y before anything is measured.
        seed: of the minibatches and the power iterations.

    ``measure`` sets ``curvature`` (of the lower level), ``lr_y``, ``y_near`` (close to y*(x) at the
    first x), ``start_loss`` (the upper loss there), ``gradient_norm`` (of the hypergradient there),
    ``z`` (of its linear system) and ``distance`` (how far x has to go along it).
    """

    def __init__(self, problem: BilevelProblem, steps: int, lower_steps: int, seed: int) -> None:
        self.problem, self.steps, self.seed = problem, steps, seed
        self.lower_steps = lower_steps
        self.oracle = TorchOracle(problem)
        try_problem(self.oracle, seed)
        self.oracle.take_calls()  # those of the trial do not count
        self.loss_count = 0  # evaluations of the upper loss on a minibatch
        self.follow_steps = min(max(round(steps * FOLLOW), 16), 100)  # before a point is judged
        count = min(problem.upper_data.batches, JUDGED_BATCHES)
        self.upper_samples = samples_of(self.oracle, seed, "upper", 0, count)
        self.lower_samples = samples_of(self.oracle, seed, "lower", 0, self.follow_steps)
        self.x, self.y0 = self.oracle.start

    @property
    def calls(self) -> int:
        """Oracle calls so far; the loss on a minibatch counts as one."""
        return int(self.oracle.calls.total) + self.loss_count

    def largest_curvature(self, x: Tensor, y: Tensor, batches: int = 3, products: int = 8) -> float:
        """Largest curvature of the lower level at (x, y) over the first ``batches`` minibatches,
        by ``products`` steps of power iteration on each; infinite where it is no number.
        """
        generator = torch.Generator().manual_seed(self.seed % 2**63)
        largest = 0.0
        for sample in self.lower_samples[:batches]:
            hessian, _ = self.oracle.operator(x, y, sample)
            v = torch.randn(y.shape, generator=generator, dtype=y.dtype).to(y.device)
            eigenvalue = largest_eigenvalue(hessian, v, products)
            largest = max(largest, eigenvalue) if math.isfinite(eigenvalue) else math.inf
        return largest

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

    def judged_loss(self, x: Tensor, y: Tensor) -> tuple[float, Tensor]:
        """The upper loss at (x, y') and y', where y' comes from y by ``follow_steps`` lower steps.

        The loss is a mean over minibatches, which are counted; infinite where it is no number.
        """
        y = self.descend(x, y, self.lower_samples, self.lr_y)
        self.loss_count += len(self.upper_samples)
        losses = [float(self.problem.loss("upper", x, y, sample)) for sample in self.upper_samples]
        mean = sum(losses) / len(losses)
        return (mean if math.isfinite(mean) else math.inf), y

    def measure(self) -> None:
        """Set the attributes that the class names: curvature, hypergradient, distance along it."""
        curvature = self.largest_curvature(self.x, self.y0)
        if not (math.isfinite(curvature) and curvature > 0):
            fail("lower", "must have positive curvature in y at the start", curvature)
        # y may come to where the curvature is larger, or to infinity: then again, more slowly.
        for _ in range(4):
            y_near = self.descend(self.x, self.y0, self.lower_samples, LR_SHARE / curvature)
            is_finite = bool(y_near.isfinite().all())
            curvature_near = self.largest_curvature(self.x, y_near, 2) if is_finite else math.inf
            is_alike = curvature_near <= 1.5 * curvature
            next_curvature = curvature_near if math.isfinite(curvature_near) else 4 * curvature
            curvature = max(curvature, next_curvature)
            if is_alike:
                break
        self.curvature, self.lr_y = curvature, LR_SHARE / curvature
        if self.lower_steps:
            samples = samples_of(self.oracle, self.seed, "lower", 0, self.lower_steps)
            y_near = self.descend(self.x, y_near, samples, self.lr_y)
        # Where only the start is so curved, the rate may be larger.
        if self.largest_curvature(self.x, y_near, 2) < curvature / FALLEN:
            self.curvature, self.lr_y = curvature / FALLEN, FALLEN * self.lr_y
        self.start_loss, self.y_near = self.judged_loss(self.x, y_near)
        hypergradient = self.hypergradient(self.x, self.y_near)
        self.gradient_norm = float(hypergradient.norm())
        if self.gradient_norm == 0.0 or not math.isfinite(self.gradient_norm):
            rule = "must have a finite hypergradient that is not zero at the start"
            fail("upper", rule, self.gradient_norm)
        self.distance = self.distance_along(-hypergradient / self.gradient_norm)

    def hypergradient(self, x: Tensor, y: Tensor) -> Tensor:
        """f_x - J z at (x, y), averaged over some minibatches; sets z, which conjugate gradients
        find from 3 lower and 4 upper ones.
        """
        upper_gradients = [self.oracle.upper(x, y, sample) for sample in self.upper_samples[:4]]
        f_x, f_y = (torch.stack(parts).mean(0) for parts in zip(*upper_gradients, strict=True))
        products = [self.oracle.operator(x, y, sample)[0] for sample in self.lower_samples[:3]]

        def hessian(v: Tensor) -> Tensor:
            # Hv, averaged over the minibatches
            return torch.stack([product(v) for product in products]).mean(0)

        self.z, _ = conjugate_gradients(self.oracle, hessian, f_y, products=8)
        count = min(self.problem.lower_data.batches, max(8, self.steps // 20))
        samples = samples_of(self.oracle, self.seed, "lower", 0, count)
        return f_x - torch.stack([self.oracle.mixed(x, y, self.z, s) for s in samples]).mean(0)

    def distance_along(self, u: Tensor) -> float:
        """The least distance along the unit vector u, among some a factor of 4 apart, at which most
        of the possible fall of the upper loss is reached.
        """
        loss_here = self.judged_loss(self.x, self.y_near)[0]
        loss_at: dict[float, float] = {}  # distance -> upper loss
        distance = 0.25 * math.sqrt(len(u))  # 1/4 per coordinate, as root mean square

        def loss_after(distance: float) -> float:
            """The upper loss at a distance along u; evaluated once, then read from ``loss_at``."""
            if distance not in loss_at:
                x = self.x + distance * u
                x = x if self.oracle.project_x is None else self.oracle.project_x(x)
                loss_at[distance] = self.judged_loss(x, self.y_near)[0]
            return loss_at[distance]

        for _ in range(5):  # shorter until the loss falls
            if loss_after(distance) < loss_here:
                break
            distance /= 4.0
        for _ in range(6):  # longer while it falls further
            if loss_after(4.0 * distance) >= loss_after(distance):
                break
            distance *= 4.0
        return least_enough(loss_at, loss_here)


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
    best = min(values, key=lambda key: values[key])
    gain, noise = start - values[best], NOISE * abs(start)
    if gain > noise:
        return min(key for key, value in values.items() if start - value >= ENOUGH * gain)
    return max((key for key, value in values.items() if value <= start + noise), default=best)


class Race:
    """Short runs of one method on one problem.

    Args:
        measured: what was measured of the problem.
        key: the method in ``METHODS``.
        method: its class, or a method whose other settings are kept.
        backend: who runs the iterations; eager torch if None.
        seed: of the draws; every run from the problem's start has one of its own above it.
    """

    def __init__(
        self, measured: Measurements, key: str, method: Any, backend: Backend | None, seed: int
    ) -> None:
        self.measured, self.method, self.seed = measured, method, seed
        dim = measured.problem.dim_x
        self.scale = Scale(key, method, measured.gradient_norm, dim, measured.curvature)
        self.run_steps = measured.steps  # iterations of the run that steps are sought for
        # Oracle calls so far, those per iteration of the last run, and seeds handed out.
        self.calls, self.calls_per_step, self.seeds = 0, 0.0, 0
        self.options: dict[str, Any] = {"limit": 1e3, "check_every": 8, "backend": backend}
        # The same problem, its lower level nearly solved at the start.
        self.solved_problem = copy(measured.problem)
        self.solved_problem.pack_y = copy(measured.problem.pack_y)
        self.solved_problem.pack_y.start = measured.y_near.clone()
        self.tried: list[StepTrial] = []

    def method_with(self, settings: dict[str, Any]) -> Method:
        """The method of the race with these settings."""
        make = self.method if isinstance(self.method, type) else partial(replace, self.method)
        return cast("Method", make(**settings))

    def run(self, settings: dict[str, Any], steps: int, *, solved: bool) -> StepTrial:
        """Make a short run, judge it, and add it to ``tried`` and its cost to ``calls``.

        Args:
            settings: of the method.
            steps: iterations.
            solved: begin where the lower level is solved; else at the problem's own start with a
                fresh seed, and judge halfway too.
        """
        measured, method = self.measured, self.method_with(settings)
        problem = self.solved_problem if solved else measured.problem
        state = self.solved_start(method) if solved else None
        losses, calls_before = [], 0 if state is None else state.total_calls
        if not solved:
            self.seeds += 1
        for end in (steps,) if solved else (steps // 2, steps):
            seed = None if state else self.seed + 100 + self.seeds  # a state has its own
            solution = solve(problem, method, end, seed=seed, start=state, **self.options)
            state = solution.state
            x = state.oracle.to_torch(state.values["x"])
            is_good = solution.ok and bool(x.isfinite().all())
            if is_good and not solved:
                is_good = self.is_stable(x, settings, end)
            losses.append(measured.judged_loss(x, measured.y_near)[0] if is_good else math.inf)
            if not is_good:
                break
        calls = solution.state.total_calls - calls_before
        self.calls += calls
        self.calls_per_step = calls / max(solution.state.t, 1)
        trial = StepTrial(dict(settings), steps, solved, losses[0], losses[-1])
        self.tried.append(trial)
        return trial

    def is_stable(self, x: Tensor, settings: dict[str, Any], t: int) -> bool:
        """Whether the rate of y at iteration t stays below 1 / L for the curvature L at this x."""
        lr_y = settings["lr_y"] * (1.0 + t) ** -self.scale.exponent("lr_y")
        curvature = self.measured.largest_curvature(x, self.measured.y_near, 2, 6)
        return bool(curvature * lr_y <= 2.0 * LR_SHARE)

    def solved_start(self, method: Method) -> State:
        """A method's first state with y solved, and z too where it keeps one."""
        state = method.start(self.solved_problem, self.seed)
        z = state.values.get("z")
        if isinstance(z, Tensor) and z.shape == self.measured.z.shape:
            state.values["z"] = self.measured.z.clone()
        return state

    def steps_left(self) -> float:
        """Iterations that can still run before the race has cost as much as the run it is for."""
        measured = self.measured
        # Calls for what was measured, and for three more judgements.
        judging = measured.calls + 3 * (measured.follow_steps + len(measured.upper_samples))
        return 0.97 * self.run_steps - (self.calls + judging) / self.calls_per_step  # 3 % reserve

    def can_afford(self, steps: int, last_share: float) -> bool:
        """Whether ``steps`` more iterations leave that share of a run for a last trial."""
        return self.steps_left() > steps + last_share * self.run_steps

    def first_rung(self, steps: int) -> float:
        """First rung: the best rate of x in short runs of ``steps`` iterations from a solved lower
        level.

        The rates let x go 2 and 8 times the measured distance, then a factor of 4 further while the
        best is at an end of those tried.
        """
        measured, loss_at = self.measured, dict[float, float]()  # multiple of the distance -> loss
        rate_at = dict[float, float]()  # the same multiple -> rate of x

        def try_multiple(multiple: float) -> None:
            """Run with the rate for this multiple of the distance; enter it in both dicts."""
            settings = self.scale.settings(multiple * measured.distance, steps, measured.lr_y)
            loss_at[multiple] = self.run(settings, steps, solved=True).value
            rate_at[multiple] = settings["lr_x"]

        try_multiple(2.0)
        try_multiple(8.0)
        for _ in range(3):
            best = least_enough(loss_at, measured.start_loss)
            if best not in (max(loss_at), min(loss_at)):
                break
            if not self.can_afford(steps + round(self.run_steps * SECOND), LEAST_LAST):
                break
            try_multiple(best * RATE_RATIO if best == max(loss_at) else best / RATE_RATIO)
        return rate_at[least_enough(loss_at, measured.start_loss)]

    def second_rung(self, lr_x: float, settings: dict[str, Any], steps: int) -> StepTrial:
        """Second rung: the best of a few longer runs from the problem's own start.

        Args:
            lr_x: rate of x to begin with.
            settings: the others.
            steps: iterations of each run.
        """
        best = self.run({**settings, "lr_x": lr_x}, steps, solved=False)
        ratio = RATE_RATIO  # of the faster run below; 2 once the rate had to be lowered
        while not self.ends_below_start(best) and self.can_afford(steps, LEAST_LAST):
            lr_x, ratio = lr_x / RATE_RATIO, 2.0
            best = self.run({**settings, "lr_x": lr_x}, steps, solved=False)
        if self.ends_below_start(best) and self.can_afford(steps, LAST):
            faster = self.run({**settings, "lr_x": ratio * lr_x}, steps, solved=False)
            margin = NOISE * abs(self.measured.start_loss)
            if faster.value < best.value - margin and faster.value <= faster.halfway:
                best = faster
        return best

    def ends_below_start(self, trial: StepTrial) -> bool:
        """Whether a run ended clearly below the start."""
        return trial.value < self.measured.start_loss - GAIN * abs(self.measured.start_loss)

    def final_settings(self, best: StepTrial) -> dict[str, Any]:
        """Settings for the whole run, made from those of the best run of the second rung.

        The rate of x is lower next to one that went wrong, where steps of a fixed length have come
        far enough, and where the last trial fails.
        """
        settings, fixed_length = dict(best.settings), self.scale.fixed_length
        rate = settings["lr_x"]
        # Trials at the next rates above; 1.1 allows for rounding.
        next_rates = [t for t in self.tried if rate < t.settings["lr_x"] < 1.1 * RATE_RATIO * rate]
        late_gain, gain = best.halfway - best.value, self.measured.start_loss - best.value
        if not self.ends_below_start(best):  # nothing was seen to help: almost stay
            settings["lr_x"] = rate / 64.0
        elif any(not math.isfinite(t.value) for t in next_rates):
            settings["lr_x"] = rate / (2.0 if fixed_length else RATE_RATIO)
        elif fixed_length and late_gain < 0.2 * gain:  # most was gained early: far enough
            settings["lr_x"] = rate / 2.0
        settings["lr_x"] = self.surviving_rate(settings, best)
        return {name: float(f"{value:.4g}") for name, value in settings.items()}

    def surviving_rate(self, settings: dict[str, Any], best: StepTrial) -> float:
        """The rate of x, lowered until the last trial, at a multiple of it, passes: it stays in
        bounds and ends no higher than the start. Half of the rate if that trial rose after halfway,
        or for steps of a fixed length ended above ``best``.

        Args:
            settings: with the rate to begin with.
            best: the best run of the second rung.
        """
        rate, start = float(settings["lr_x"]), self.measured.start_loss
        fixed_length, noise = self.scale.fixed_length, NOISE * abs(start)
        # A method that keeps z runs into trouble when z lags, which a much faster run passes by.
        multiple = 2.0 if fixed_length or "lr_z" in self.scale.setting_fields else RATE_RATIO
        lowest_rate, shortest = 1e-3 * rate, LEAST_LAST * self.run_steps  # shortest: of a trial
        while rate > lowest_rate:
            steps = round(min(max(self.steps_left(), shortest), LAST * self.run_steps))
            trial = self.run({**settings, "lr_x": multiple * rate}, steps, solved=False)
            if trial.value <= start + noise:
                earlier = min(trial.halfway, best.value) if fixed_length else trial.halfway
                return rate / 2.0 if trial.value > earlier + noise else rate
            rate /= RATE_RATIO
            if self.steps_left() < shortest and multiple * rate <= best.settings["lr_x"]:
                break  # a run of the second rung was as long and fast as what could still run
        return rate


def race_steps(
    problem: BilevelProblem,
    method: str | Method,
    steps: int,
    *,
    seed: int = 0,
    backend: Backend | None = None,
) -> RacedSteps:
    """The steps of a method for a run of ``steps`` iterations, found by the race of short runs that
    the head of this file describes.

    Args:
        method: a key of ``METHODS``, or a method whose other settings are kept.
        seed: of the minibatches and runs.
        backend: who runs the short runs; eager torch if not given.
    """
    whole("seed", seed)
    check_count("steps", steps, least=20)
    key, class_or_method = _key_and_class(method)
    measured = Measurements(problem, steps, round(WARM * steps), seed)
    measured.measure()
    race = Race(measured, key, class_or_method, backend, seed)
    lr_x = race.first_rung(max(4, round(steps * FIRST)))
    if race.scale.fixed_length:
        lr_x /= 2.0  # such steps do not get shorter near the solution
    others = race.tried[-1].settings  # alike in all runs, but for lr_x
    best = race.second_rung(lr_x, others, max(8, round(steps * SECOND)))
    settings = race.final_settings(best)
    calls = measured.calls + race.calls
    return RacedSteps(
        *(key, settings, steps, race.method_with(settings), tuple(race.tried)),
        start=measured.start_loss,
        curvature=measured.curvature,
        hypergradient=measured.gradient_norm,
        distance=measured.distance,
        calls=calls,
        runs=calls / (race.calls_per_step * steps),
    )


def _key_and_class(method: str | Method) -> tuple[str, Any]:
    """Key in ``METHODS`` (for a user's own method the class's name), and the class of that key or
    the given method itself.
    """
    if isinstance(method, str) and method in METHODS:
        return method, METHODS[method].load()
    if isinstance(method, Method):
        if isinstance(method.x_step, TorchStep):
            fail("method", "must have a step on x of its own, such as AdamStep()", method.x_step)
        names = {info.class_name: key for key, info in METHODS.items()}
        return names.get(type(method).__name__, type(method).__name__), method
    fail("method", f"must be a method, or one of {', '.join(METHODS)}", method)
