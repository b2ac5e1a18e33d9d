"""Oracle calls of an iteration without running it: for backends whose compiled steps cannot count."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from mindgap.base.count import OracleCount
from mindgap.bilevel.derivatives import Derivatives
from mindgap.bilevel.draws import Chunk
from mindgap.bilevel.ops import TorchOps
from mindgap.bilevel.problem import BilevelProblem
from mindgap.bilevel.sample import Sample, is_full, row


class CountingOracle(Derivatives):
    """Derivatives that are all zero, of one unknown each, and counted as the real ones are.

    Example:
        >>> oracle = CountingOracle({"upper": 4, "lower": 8}, dim_y=3)
        >>> _ = oracle.system(None, None, None, Sample(0)), oracle.upper(None, None, Sample(None))
        >>> oracle.calls.as_dict()
        {'Hz': 1, 'Jz': 1, 'f_x': 4, 'f_y': 4, 'g_y': 1}
    """

    ops = TorchOps
    project_x = project_y = None

    def __init__(self, batches: Mapping[str, int], dim_y: int, token_axes: int = 0) -> None:
        self._batches, self._dim_y, self._axes = batches, dim_y, token_axes
        self.calls = OracleCount()

    @property
    def start(self) -> tuple[Any, Any]:
        return torch.zeros(1), torch.zeros(1)

    def batches(self, level: str) -> int:
        return self._batches[level]

    def weight(self, level: str, token: Sample) -> float:
        return 1.0

    def _count(self, level: str, token: Sample, *names: str) -> tuple[Any, ...]:
        times = 1
        if is_full(token):
            times = self._batches[level]
        elif np.ndim(token.which) > self._axes:
            times = len(token.which)
        for name in names:
            self.calls.add(name, times)
        return tuple(torch.zeros(1) for _ in names)

    def lower(self, x: Any, y: Any, token: Sample) -> Any:
        return self._count("lower", token, "g_y")[0]

    def lower_x(self, x: Any, y: Any, token: Sample) -> Any:
        return self._count("lower", token, "g_x")[0]

    def system(self, x: Any, y: Any, z: Any, token: Sample) -> Any:
        return self._count("lower", token, "g_y", "Hz", "Jz")

    def products(self, x: Any, y: Any, z: Any, token: Sample) -> Any:
        return self._count("lower", token, "Hz", "Jz")

    def hessian(self, x: Any, y: Any, z: Any, token: Sample) -> Any:
        return self._count("lower", token, "Hz")[0]

    def mixed(self, x: Any, y: Any, z: Any, token: Sample) -> Any:
        return self._count("lower", token, "Jz")[0]

    def upper(self, x: Any, y: Any, token: Sample) -> Any:
        return self._count("upper", token, "f_x", "f_y")

    def dense(self, x: Any, y: Any, token: Sample) -> Any:
        self._count("lower", token, "g_y", *("Hz", "Jz") * self._dim_y)
        return torch.zeros(1), torch.zeros(1, 1), torch.zeros(1, 1)


def _oracle(problem: BilevelProblem) -> CountingOracle:
    batches = {level: problem.data(level).batches for level in ("upper", "lower")}
    return CountingOracle(batches, problem.dim_y, problem.lower_data.token_axes)


def calls_of_start(method: Any, problem: BilevelProblem, draws: Mapping[str, Any]) -> dict[str, int]:
    """Oracle calls of the phase before the first iteration."""
    oracle = _oracle(problem)
    x, y = oracle.start
    method.start({"x": x, "y": y, **method.begin(oracle)}, draws, oracle)
    return oracle.calls.as_dict()


def calls_of_run(method: Any, problem: BilevelProblem, chunk: Chunk) -> dict[str, int]:
    """Oracle calls of all iterations of a chunk: one look at each different iteration."""
    total: dict[str, int] = {}
    for run in chunk.runs:
        ints = [n for n, v in run.draws.items() if isinstance(v, np.ndarray) and np.issubdtype(v.dtype, np.integer)]
        if len(ints) == 1:  # the common case: a sort of whole rows would cost more than the draws
            different, times = np.unique(run.draws[ints[0]], return_counts=True)
            different = different[:, None]
        elif ints:
            rows = np.stack([run.draws[n].reshape(-1) for n in ints], 1)
            different, times = np.unique(rows, axis=0, return_counts=True)
        else:
            different, times = np.zeros((1, 0), int), np.array([chunk.cycles * run.length])
        shapes = tuple((n, v.which.shape[2:]) for n, v in run.draws.items() if isinstance(v, Sample))
        floats = tuple(n for n, v in run.draws.items() if not isinstance(v, Sample) and n not in ints)
        for values, count in zip(different, times, strict=True):
            lengths = tuple(zip(ints, (int(v) for v in values), strict=True))
            oracle = _oracle(problem)
            cost = _cost(method, run.kind, shapes, lengths, floats, tuple(oracle._batches.items()), oracle._dim_y,
                         oracle._axes)  # fmt: skip
            for name, calls in cost.items():
                total[name] = total.get(name, 0) + calls * int(count)
    return total


@lru_cache(maxsize=4096)
def _cost(
    method: Any, kind: str, shapes: Any, lengths: Any, floats: Any, batches: Any, dim_y: int, axes: int
) -> dict[str, int]:
    oracle = CountingOracle(dict(batches), dim_y, axes)
    x, y = oracle.start
    draws: dict[str, Any] = {name: Sample(np.zeros(shape, int)) for name, shape in shapes}
    draws = {n: row(Sample(s.which[None]), 0) for n, s in draws.items()}
    draws.update(lengths)
    draws.update(dict.fromkeys(floats, 1.0))
    method.update({"x": x, "y": y, **method.begin(oracle)}, draws, oracle, kind)
    return oracle.calls.as_dict()
