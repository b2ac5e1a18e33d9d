"""Which samples the iterations of a method need, and the draws of many iterations at once.

Every name of a plan has a stream of its own, so that the samples of an iteration are independent
and each of them walks through all samples epoch by epoch. The order of consumption is iteration by
iteration, so that drawing one iteration at a time or thousands at once gives the same samples, for
every backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Sample, on_arrays, position_seeds, row

Ints = NDArray[np.int64]

#: Samples under one name: one (None), an array of that length, or an array of that shape.
Count = int | tuple[int, ...] | None
#: Name -> (kind, count). ``("lower", None)`` is one lower sample, ``("upper", 5)`` an array of five
#: upper samples, none of them twice within an epoch, ``("factors", 5)`` five lower samples that are
#: independent of each other, ``("uniform", 10)`` one whole number uniform on 0..9, ``("direction",
#: 3)`` the seeds of three random directions.
Samples = Mapping[str, tuple[str, Count]]
LOWER, UPPER = ("lower", None), ("upper", None)


@dataclass(frozen=True)
class Iteration:
    """One iteration: the samples it draws, its kind, and how many steps on y it takes."""

    samples: Samples  # see :data:`Samples`
    kind: str = "step"  # handed to ``update``; known when a step is compiled
    lower_steps: int = 1  # steps on y, for the counters


@dataclass(frozen=True)
class SamplePlan:
    """All iterations of a method.

    Example:
        >>> plan = SamplePlan(
        ...     (Iteration({"g": LOWER}, "move"), Iteration({}, "refresh")),
        ...     first=(Iteration({}, "a"),),
        ... )
        >>> [i.kind for i in plan.at(0, 4)]
        ['a', 'move', 'refresh', 'move']
    """

    period: tuple[Iteration, ...]  # iterations that repeat for ever; most methods have one
    first: tuple[Iteration, ...] = ()  # iterations before the period begins
    #: what is drawn before the first iteration, for ``prepare``
    warm: Iteration = Iteration({}, "warm", 0)
    #: iteration t, for a method whose plan grows with t; then ``period`` is iteration 0 alone.
    growing: Callable[[int], Iteration] | None = None
    all_samples: bool = False  # whether the method evaluates all samples of a level at times

    def streams(self, problem: BilevelProblem) -> dict[str, str]:
        """The stream that each name of the plan draws from, such as "lower" or "factors.h".

        The first name of a level draws from the level's own stream, and so do all names of data
        that can only be read in one order (``in_order``); any other name has one of its own.
        """
        stream_of: dict[str, str] = {}
        iterations = (*self.first, *self.period, self.warm)
        for iteration in {id(i): i for i in iterations}.values():  # most periods repeat one object
            for name, (kind, _) in iteration.samples.items():
                stream = kind
                if kind not in ("uniform", "direction"):
                    level = "upper" if kind == "upper" else "lower"
                    is_first_of_level = kind == level and level not in stream_of.values()
                    in_order = problem.data(level).in_order
                    stream = level if is_first_of_level or in_order else f"{kind}.{name}"
                stream_of.setdefault(name, stream)
        return stream_of

    def at(self, t: int, steps: int = 1) -> list[Iteration]:
        """The iterations ``t .. t + steps - 1``."""
        if self.growing is not None:
            return [self.growing(i) for i in range(t, t + steps)]
        first_count, period = len(self.first), len(self.period)
        return [
            self.first[i] if i < first_count else self.period[(i - first_count) % period]
            for i in range(t, t + steps)
        ]

    def lower_steps(self, begin: int, end: int) -> int:
        """Steps on y in the iterations begin .. end - 1.

        Whole periods are counted once and multiplied; what comes before and after, one by one.
        """
        period = len(self.period)
        cycles_begin = min(max(begin, len(self.first)), end)
        cycles = 0 if self.growing is not None else (end - cycles_begin) // period
        cycles_end = cycles_begin + cycles * period
        others = [*self.at(begin, cycles_begin - begin), *self.at(cycles_end, end - cycles_end)]
        per_cycle = sum(i.lower_steps for i in self.period)
        return cycles * per_cycle + sum(i.lower_steps for i in others)


class Planned(Protocol):
    """What draws need of a method."""

    def plan(self) -> SamplePlan:
        """The samples of each iteration."""

    def rates(self, t: Any) -> dict[str, Any]:
        """Step sizes and weights of iteration t (a number, or an array of them)."""


class Drawn(Protocol):
    """What draws need of an oracle."""

    problem: BilevelProblem
    #: whether samples carry a seed because a loss draws random numbers
    seeded: bool


@dataclass
class Block:
    """Iterations of one kind in a row; every array has leading axes (cycles, length)."""

    kind: str
    length: int  # iterations
    draws: dict[str, Any]  # samples, whole numbers and rates by name; a float never changes
    times: Ints  # numbers of the iterations


@dataclass
class Chunk:
    """Draws of ``cycles`` times the same sequence of blocks, and the positions after them."""

    cycles: int
    blocks: list[Block]
    drawn: dict[str, int]  # stream -> draws made from it so far

    def steps(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Kind and draws of each iteration, for a backend that goes one by one."""
        lists_by_block = [
            {name: _nested_lists(value) for name, value in block.draws.items()}
            for block in self.blocks
        ]
        for c in range(self.cycles):  # iteration i of each block in cycle c
            for block, lists in zip(self.blocks, lists_by_block, strict=True):
                for i in range(block.length):  # a float never changes
                    draws = {k: v if isinstance(v, float) else v[c][i] for k, v in lists.items()}
                    yield block.kind, draws


def _nested_lists(value: Any) -> Any:
    """Draws of one name in a block: lists [cycle][iteration], or a float that never changes."""
    if isinstance(value, float):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    # One number per iteration and no seeds: the common case, without a slice per iteration.
    if value.which.ndim == 2 and isinstance(value.seed, int):
        return [[Sample(which) for which in numbers] for numbers in value.which.tolist()]
    cycles, length = value.which.shape[:2]
    return [[row(value, (c, i)) for i in range(length)] for c in range(cycles)]


def draw_start(method: Planned, oracle: Drawn, seed: int) -> tuple[dict[str, Any], dict[str, int]]:
    """Draws by name of the phase before the first iteration, and how many each stream gave."""
    plan = method.plan()
    streams = plan.streams(oracle.problem)
    drawn = dict.fromkeys(streams.values(), 0)
    draws: dict[str, Any] = {}
    for name, (kind, count) in plan.warm.samples.items():
        stream, width = streams[name], math.prod(shape_of(kind, count))
        draws[name] = _samples_of(oracle, seed, kind, stream, drawn[stream], width)
        drawn[stream] += width
    return draws, drawn


def draw_chunk(
    method: Planned, oracle: Drawn, seed: int, t: int, steps: int, drawn: Mapping[str, int]
) -> Chunk:
    """Draws of the iterations ``t .. t + steps - 1``.

    Whole periods that start at a multiple of the period come as cycles; anything else as one cycle.

    Args:
        drawn: stream -> draws made from it before.
    """
    plan = method.plan()
    streams = plan.streams(oracle.problem)
    if plan.growing is not None:
        return _draw_growing(method, plan.growing, oracle, seed, t, steps, drawn)
    first_count, period = len(plan.first), len(plan.period)
    if t >= first_count and (t - first_count) % period == 0 and steps % period == 0:
        cycles, order = steps // period, list(plan.period)
    else:
        cycles, order = 1, plan.at(t, steps)
    # A run is some iterations of one kind in a row: the first of them, and how many there are.
    stretches = [list(stretch) for _, stretch in groupby(order, attrgetter("kind"))]
    runs = [(stretch[0], len(stretch)) for stretch in stretches]
    # First draw all that a stream gives to the chunk, then hand it out run by run, name by name.
    per_cycle = dict.fromkeys(streams.values(), 0)  # draws from each stream
    kinds: dict[str, str] = {}  # of the samples in each stream
    for iteration, length in runs:
        for name, (kind, count) in iteration.samples.items():
            per_cycle[streams[name]] += length * math.prod(shape_of(kind, count))
            kinds[streams[name]] = kind
    samples = {
        stream: _samples_of(
            oracle, seed, kinds[stream], stream, drawn.get(stream, 0), cycles * number
        )
        for stream, number in per_cycle.items()
        if number
    }
    blocks: list[Block] = []
    run_begin = dict.fromkeys(per_cycle, 0)  # draws of the cycle from each stream before the run
    steps_before = 0
    for iteration, length in runs:
        # Draws of one iteration from each stream; those of them before the draws of each name.
        per_iteration, name_begin, draws = dict.fromkeys(per_cycle, 0), {}, {}
        for name, (kind, count) in iteration.samples.items():
            name_begin[name] = per_iteration[streams[name]]
            per_iteration[streams[name]] += math.prod(shape_of(kind, count))
        for name, (kind, count) in iteration.samples.items():
            stream = streams[name]
            place = run_begin[stream], per_iteration[stream], name_begin[name]
            of_name = partial(_cut, cycles, length, *place, shape_of(kind, count))
            if kind == "uniform":  # hashes of 31 bits become numbers below count
                draws[name] = of_name(samples[stream]) * count >> 31
            else:
                draws[name] = on_arrays(samples[stream], of_name)
        for stream in per_cycle:
            run_begin[stream] += length * per_iteration[stream]
        first_times = t + steps_before + np.arange(cycles)[:, None] * (steps // cycles)
        times = first_times + np.arange(length)[None, :]
        blocks.append(Block(iteration.kind, length, {**draws, **rates_at(method, times)}, times))
        steps_before += length
    drawn_after = {
        stream: drawn.get(stream, 0) + cycles * number for stream, number in per_cycle.items()
    }
    return Chunk(cycles, blocks, {**drawn, **drawn_after})


def part_of(sample: Sample, begin: int, end: int) -> Sample:
    """The samples ``begin .. end - 1`` of an array of samples.

    Example:
        >>> part_of(Sample(np.arange(5)), 1, 3)
        Sample(which=array([1, 2]), seed=0)
    """
    return on_arrays(sample, itemgetter(slice(begin, end)))


def rates_at(method: Planned, times: Ints) -> dict[str, Any]:
    """The rates of a method at some iterations: one number where a rate never changes."""
    return {n: float(r) if np.ndim(r) == 0 else r for n, r in method.rates(times).items()}


def _samples_of(oracle: Drawn, seed: int, kind: str, stream: str, start: int, count: int) -> Any:
    """The samples of ``count`` draws of one kind from position ``start`` of a stream; for
    "uniform" as many hashes of 31 bits.
    """
    if kind == "uniform":
        return position_seeds(seed, start, count, "uniform")
    if kind == "direction":
        return Sample(position_seeds(seed, start, count, "direction"))
    data = oracle.problem.data(kind)
    draw = data.draw_independent if kind == "factors" else data.draw
    sample = draw(seed, stream, start, count)
    if oracle.seeded:
        return Sample(sample.which, position_seeds(seed, start, count, stream, "loss"))
    return sample


def _cut(
    cycles: int,
    length: int,
    run_begin: int,
    per_iteration: int,
    name_begin: int,
    shape: tuple[int, ...],
    draws: Ints,
) -> Any:
    """Of all ``draws`` from a stream those of one name in one run of iterations: an array with the
    axes (cycles, length, *shape) and those of a single draw.

    Args:
        cycles, length: of the chunk, and iterations of the run.
        run_begin: draws of a cycle before the run.
        per_iteration: draws of each iteration of the run.
        name_begin: draws of an iteration before those of the name.
        shape: of the name's draws in an iteration.
    """
    axes = draws.shape[1:]  # of a single draw
    run_end, name_end = run_begin + length * per_iteration, name_begin + math.prod(shape)
    of_run = draws.reshape(cycles, -1, *axes)[:, run_begin:run_end]
    of_name = of_run.reshape(cycles, length, per_iteration, *axes)[:, :, name_begin:name_end]
    return of_name.reshape(cycles, length, *shape, *axes)


def shape_of(kind: str, count: Count) -> tuple[int, ...]:
    """The shape of the draws that a name of a plan takes per iteration; () for a single draw."""
    if count is None or kind == "uniform":
        return ()
    return count if isinstance(count, tuple) else (count,)


def _draw_growing(
    method: Planned,
    growing: Callable[[int], Iteration],
    oracle: Drawn,
    seed: int,
    t: int,
    steps: int,
    drawn_before: Mapping[str, int],
) -> Chunk:
    """The chunk of a plan that grows with t: one block of the iterations ``t .. t + steps - 1``.

    The samples of every name are padded to as many as the longest iteration has.

    Args:
        growing: t -> iteration.
        drawn_before: stream -> draws made from it.
    """
    streams = method.plan().streams(oracle.problem)
    drawn = {**dict.fromkeys(streams.values(), 0), **drawn_before}
    iterations = [growing(i) for i in range(t, t + steps)]
    columns: dict[str, list[Any]] = {
        name: [] for name in iterations[0].samples
    }  # one per iteration
    for iteration in iterations:
        for name, (kind, count) in iteration.samples.items():
            stream, width = streams[name], math.prod(shape_of(kind, count))
            columns[name].append(_samples_of(oracle, seed, kind, stream, drawn[stream], width))
            drawn[stream] += width
    draws: dict[str, Any] = {}
    for name, (kind, count) in iterations[-1].samples.items():
        if kind == "uniform":
            # Hashes of 31 bits become numbers below count: one cycle, one number per iteration.
            draws[name] = np.stack([hashes * count >> 31 for hashes in columns[name]])[None, :, 0]
            continue
        longest = max(len(sample.which) for sample in columns[name])
        which = np.stack([_pad(sample.which, longest) for sample in columns[name]])[None]
        seeds: Any = 0
        if oracle.seeded:
            seeds = np.stack([_pad(sample.seed, longest) for sample in columns[name]])[None]
        draws[name] = Sample(which, seeds)
        if count is None:
            # One sample per iteration, not an array of one.
            draws[name] = on_arrays(draws[name], lambda array: array[:, :, 0])
    times = t + np.arange(steps)[None]
    draws.update(rates_at(method, times))
    return Chunk(1, [Block(iterations[-1].kind, steps, draws, times)], drawn)


def _pad(a: Ints, length: int) -> Ints:
    """An array made longer by repeating its last row."""
    return np.concatenate([a, np.repeat(a[-1:], length - len(a), axis=0)])
