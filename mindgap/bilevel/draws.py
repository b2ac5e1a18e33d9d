"""Draws of many iterations at once: tokens and numbers as arrays, the same for every backend.

A plan names the slots of one iteration: ``{"y": ("lower", None), "h": ("lower", 5), "k": ("uniform", 10)}`` means one
lower token, five lower tokens in an array, and one whole number uniform on 0..9. The order of consumption is iteration
by iteration, slot by slot, so that drawing one iteration at a time or thousands at once gives the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from mindgap.bilevel.sample import Sample, position_seeds

Plan = dict[str, tuple[str, Any]]


@dataclass
class Run:
    """Iterations of one kind in a row; every array has leading axes (cycles, length)."""

    kind: str
    length: int
    draws: dict[str, Any]
    counts: dict[str, Any]


@dataclass
class Chunk:
    """The draws of ``cycles`` times the same sequence of runs, and the stream positions after them."""

    cycles: int
    runs: list[Run]
    drawn: dict[str, int]

    def steps(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Kind and draws of each iteration, for a backend that goes one by one."""
        listed = [{name: _rows(value) for name, value in run.draws.items()} for run in self.runs]
        for c in range(self.cycles):
            for run, rows in zip(self.runs, listed, strict=True):
                for i in range(run.length):
                    yield run.kind, {name: v if isinstance(v, float) else v[c][i] for name, v in rows.items()}


def _rows(value: Any) -> Any:
    """A slot's draws as nested lists of what one iteration gets."""
    if isinstance(value, float):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    plain = isinstance(value.seed, int)
    if value.which.ndim == 2 and plain:
        return [[Sample(w) for w in row] for row in value.which.tolist()]

    def token(c: int, i: int) -> Sample:
        which, seed = value.which[c, i], value.seed if plain else value.seed[c, i]
        return Sample(which.item() if which.ndim == 0 else which, int(seed) if np.ndim(seed) == 0 else seed)

    return [[token(c, i) for i in range(value.which.shape[1])] for c in range(value.which.shape[0])]


def draw_start(method: Any, oracle: Any, seed: int) -> tuple[dict[str, Any], dict[str, int]]:
    """Draws of the phase before the first iteration; every slot has a count."""
    drawn = {"lower": 0, "upper": 0, "uniform": 0}
    draws: dict[str, Any] = {}
    for name, (stream, count) in method.start_plan().items():
        draws[name] = _tokens(oracle, seed, stream, drawn[stream], count)
        drawn[stream] += count
    return draws, drawn


def draw_chunk(method: Any, oracle: Any, seed: int, t: int, steps: int, drawn: dict[str, int]) -> Chunk:
    """Draws of the iterations ``t .. t + steps - 1``.

    Whole periods that start at a multiple of the period come as cycles; anything else as one cycle.
    """
    kinds, prelude = method.kinds(), len(method.prelude())
    period = len(kinds)
    if method.growing_plan(t) is not None:  # the plan grows with t: one iteration after another, padded to the longest
        return _growing(method, oracle, seed, t, steps, drawn)
    if t >= prelude and (t - prelude) % period == 0 and steps % period == 0:
        cycles, order = steps // period, kinds
    else:
        cycles, order = 1, method.order_of(t, steps)
    groups = [(kind, len(list(g))) for kind, g in groupby(order)]
    need = {"lower": 0, "upper": 0, "uniform": 0}
    for kind, length in groups:
        for stream, count in method.plan(kind).values():
            need[stream] += length * _width(stream, count)
    drawn = dict(drawn)
    taken = {s: _tokens(oracle, seed, s, drawn[s], cycles * n) for s, n in need.items() if n}
    place = dict.fromkeys(need, 0)
    runs = []
    offset = 0
    for kind, length in groups:
        plan = method.plan(kind)
        each = {s: sum(_width(s, c) for st, c in plan.values() if st == s) for s in need}
        draws: dict[str, Any] = {}
        inside = dict.fromkeys(need, 0)
        for name, (stream, count) in plan.items():
            width = _width(stream, count)
            cut = _cut(taken[stream], cycles, need[stream], place[stream], length, each[stream], inside[stream], width)
            inside[stream] += width
            if stream == "uniform":
                draws[name] = cut[..., 0] * count >> 31
            else:
                draws[name] = _shaped(cut, count)
        for stream in need:
            place[stream] += length * each[stream]
        times = t + offset + np.arange(cycles)[:, None] * (steps // cycles) + np.arange(length)[None, :]
        draws.update(_numbers(method, times))
        counts = {name: count for name, (_, count) in plan.items()}
        runs.append(Run(kind, length, draws, counts))
        offset += length
    for stream, n in need.items():
        drawn[stream] += cycles * n
    return Chunk(cycles, runs, drawn)


def part_of(token: Sample, begin: int, end: int) -> Sample:
    """Some of an array of tokens.

    Example:
        >>> part_of(Sample(np.arange(5)), 1, 3)
        Sample(which=array([1, 2]), seed=0)
    """
    return Sample(token.which[begin:end], token.seed if isinstance(token.seed, int) else token.seed[begin:end])


def _numbers(method: Any, times: np.ndarray) -> dict[str, Any]:
    return {k: float(v) if np.ndim(v) == 0 else v for k, v in method.numbers(times).items()}


def _tokens(oracle: Any, seed: int, stream: str, start: int, count: int) -> Any:
    if stream == "uniform":
        return position_seeds(seed, start, count, "uniform")
    token = oracle.problem.data(stream).draw(seed, stream, start, count)
    if oracle.seeded:
        return Sample(token.which, position_seeds(seed, start, count, stream, "loss"))
    return token


def _cut(taken: Any, cycles: int, need: int, place: int, length: int, each: int, inside: int, width: int) -> Any:
    """Of the draws of each cycle, those of one slot: shape (cycles, length, width, ...)."""

    def cut(a: np.ndarray) -> np.ndarray:
        part = a.reshape(cycles, need, *a.shape[1:])[:, place : place + length * each]
        return part.reshape(cycles, length, each, *a.shape[1:])[:, :, inside : inside + width]

    if isinstance(taken, Sample):
        return Sample(cut(taken.which), taken.seed if isinstance(taken.seed, int) else cut(taken.seed))
    return cut(taken)


def _width(stream: str, count: Any) -> int:
    """How many draws a slot takes."""
    return 1 if count is None or stream == "uniform" else math.prod(count) if isinstance(count, tuple) else count


def _shaped(token: Sample, count: Any) -> Sample:
    """A slot's draws in the shape its plan asks for."""
    if count is None:
        return _squeeze(token)
    if not isinstance(count, tuple):
        return token

    def shape(a: np.ndarray) -> np.ndarray:
        return a.reshape(*a.shape[:2], *count, *a.shape[3:])

    return Sample(shape(token.which), token.seed if isinstance(token.seed, int) else shape(token.seed))


def _squeeze(token: Sample) -> Sample:
    return Sample(token.which[:, :, 0], token.seed if isinstance(token.seed, int) else token.seed[:, :, 0])


def _growing(method: Any, oracle: Any, seed: int, t: int, steps: int, drawn: dict[str, int]) -> Chunk:
    drawn = dict(drawn)
    plans = [method.growing_plan(i) for i in range(t, t + steps)]
    (kind,) = method.kinds()
    columns: dict[str, list[Any]] = {name: [] for name in plans[0]}
    for plan in plans:
        for name, (stream, count) in plan.items():
            width = _width(stream, count)
            columns[name].append(_tokens(oracle, seed, stream, drawn[stream], width))
            drawn[stream] += width
    draws: dict[str, Any] = {}
    for name, (stream, count) in plans[-1].items():
        if stream == "uniform":
            draws[name] = np.stack([c * count >> 31 for c in columns[name]])[None, :, 0]
        else:
            longest = max(len(c.which) for c in columns[name])
            which = np.stack([_padded(c.which, longest) for c in columns[name]])[None]
            seeds: Any = 0
            if oracle.seeded:
                seeds = np.stack([_padded(c.seed, longest) for c in columns[name]])[None]
            draws[name] = Sample(which, seeds) if count is not None else _squeeze(Sample(which, seeds))
    draws.update(_numbers(method, t + np.arange(steps)[None]))
    return Chunk(1, [Run(kind, steps, draws, {n: c for n, (_, c) in plans[-1].items()})], drawn)


def _padded(a: np.ndarray, length: int) -> np.ndarray:
    return np.concatenate([a, np.repeat(a[-1:], length - len(a), axis=0)])
