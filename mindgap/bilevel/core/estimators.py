"""Estimators: wrap a direction, reduce its noise, and keep the previous point themselves.

A *direction* is a function from points to a dict of vectors each, all on the same samples; a
*memory* is a dict that belongs to the state. The recursive estimators hand the direction the new
and the remembered point in one call, so the two mistakes that make them diverge (a fresh sample at
the old point, an estimator that lags its point) cannot happen, and a direction can read each sample
once for both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindgap.bilevel.core.types import Array, Memory, Ops, Point, Scalar, Table

#: Where a table of :func:`saga` keeps its rows: a backend may hold them in its own form while it
#: runs.
ROWS = "rows"

Direction = Callable[[list[Point]], list[dict[str, Any]]]


def storm(
    direction: Direction,
    point: Point,
    memory: Memory,
    weights: dict[str, Scalar],
    first: bool = False,
) -> Memory:
    """``e = d(point) + (1 - a) (e_before - d(point before))``, both on the same samples.

    a = 1 is the plain direction; SUSTAIN's form ``a d + (1 - a)(e + d - d_before)`` is the same
    thing.

    Args:
        direction: the samples are already bound to it.
        point: where the estimate shall be.
        memory: ``{"estimate": ..., "point": ...}`` of the previous call.
        weights: a for each key of the direction.
        first: forget the past and take the plain direction.

    Returns:
        The new memory; its ``"estimate"`` is the estimate at ``point``.

    Example:
        >>> import torch
        >>> old = {"estimate": {"x": torch.tensor(5.0)}, "point": {"x": torch.tensor(1.0)}}
        >>> direction = lambda points: [{"x": 2 * p["x"]} for p in points]
        >>> storm(direction, {"x": torch.tensor(3.0)}, old, {"x": 0.5})["estimate"]["x"]
        tensor(7.5000)
    """
    if first:
        return restart(direction, point)
    new, old = direction([point, memory["point"]])
    estimate_before = memory["estimate"]
    estimate = {
        key: new[key] + (1.0 - weights[key]) * (estimate_before[key] - old[key]) for key in new
    }
    return {"estimate": estimate, "point": point}


def spider(direction: Direction, point: Point, memory: Memory) -> Memory:
    """``e = e_before + d(point) - d(point before)``, both on the same samples.

    Refresh by calling :func:`restart` with the direction on all samples, or on a large batch.

    Example:
        >>> import torch
        >>> old = {"estimate": {"x": torch.tensor(5.0)}, "point": {"x": torch.tensor(1.0)}}
        >>> direction = lambda points: [{"x": 2 * p["x"]} for p in points]
        >>> spider(direction, {"x": torch.tensor(3.0)}, old)["estimate"]["x"]
        tensor(9.)
    """
    new, old = direction([point, memory["point"]])
    estimate_before = memory["estimate"]
    return {
        "estimate": {key: estimate_before[key] + (new[key] - old[key]) for key in new},
        "point": point,
    }


def restart(direction: Direction, point: Point) -> Memory:
    """The memory of a recursive estimator that forgets the past: ``direction`` at ``point``."""
    (estimate,) = direction([point])
    return {"estimate": estimate, "point": point}


def saga(ops: Ops, new: Array, table: Table, index: Scalar, weight: float) -> tuple[Array, Table]:
    """``d = q - M[i] + mean``; then ``mean += w_i (q - M[i])``, ``M[i] = q``.

    Args:
        new: the quantity q on batch ``index`` of a fixed partition.
        table: ``{"rows": (batches, dim), "mean": (dim,)}``; the rows are overwritten in torch.
        weight: share of the samples in that batch.

    Returns:
        The estimate and the new table.

    Source: SAGA in SABA (Dagreou et al. 2022), zero-initialised.
    """
    change, rows = ops.replace_row(table[ROWS], index, new)
    mean = table["mean"]
    return change + mean, {ROWS: rows, "mean": mean + weight * change}


def empty_memory(ops: Ops, point: Point, keys: str) -> Memory:
    """The memory of a recursive estimator before its first call: at ``point``, with zeros in the
    shape of ``point[key]`` for each letter ``key`` of ``keys``.
    """
    return {"estimate": {key: ops.zeros_like(point[key]) for key in keys}, "point": point}


def empty_table(ops: Ops, rows: int, like: Array) -> Table:
    """A table of zeros for :func:`saga`, with ``rows`` rows in the shape of the vector ``like``."""
    return {ROWS: ops.zeros((rows, like.shape[0]), like), "mean": ops.zeros_like(like)}
