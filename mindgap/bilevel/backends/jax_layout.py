"""Order of the axes in which compiled methods store samples, so that products need no
transposed copy of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from mindgap.bilevel.core.types import Array
from mindgap.bilevel.data.sample import Batch

Axes = tuple[int, ...]
#: A product's (axes of the operand that lead in the result, axes it sums over).
Sums = tuple[Axes, Axes]


def axis_orders(loss: Callable[..., Any], x: Array, y: Array, batch: Batch) -> list[Axes]:
    """Per array of a batch the order of its axes in which most products of the loss and its
    gradient read it in place.

    XLA reads a matrix in place where the axes it sums over are the first or the last. With C of
    shape (samples, i, j) the product ``x @ C`` sums over the middle: each call copies C transposed,
    which costs more than the product. Arrays of at most two axes, and arrays that go into no
    product directly, stay as they are.

    Args:
        loss: ``(x, y, batch) -> scalar`` in ``jax.numpy``.
        x: upper variable, flat or in its form, as an array or its shape; ``y`` likewise.
        batch: one batch, as arrays or their shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> def loss(x, y, batch):
        ...     return (x @ batch[0] @ y).mean() + (batch[1] @ y).mean()
        >>> axis_orders(loss, jnp.ones(2), jnp.ones(3), (jnp.ones((8, 2, 3)), jnp.ones((8, 3))))
        [(1, 0, 2), (0, 1)]
    """
    leaves, form = jax.tree.flatten(batch)
    found: list[list[Sums]] = [[] for _ in leaves]
    if any(a.ndim > 2 for a in leaves):
        traced = jax.make_jaxpr(lambda *b: jax.grad(loss, (0, 1))(x, y, form.unflatten(b)))(
            *leaves
        ).jaxpr
        _find_products(traced, dict(zip(traced.invars, found, strict=True)))
    return [_best_order(a.ndim, sums) for a, sums in zip(leaves, found, strict=True)]


def _find_products(jaxpr: Any, known: dict[Any, list[Sums]]) -> None:
    """Add to each known variable's list how the products of a traced function, and of those it
    calls, use it.
    """
    for equation in jaxpr.eqns:
        of = [
            None if hasattr(v, "val") else known.get(v) for v in equation.invars
        ]  # a literal has a value
        if equation.primitive.name == "dot_general":
            sums, batched = equation.params["dimension_numbers"]
            for sums_list, summed, leading in zip(of, sums, batched, strict=True):
                if sums_list is not None:
                    sums_list.append((tuple(leading), tuple(summed)))
        inside = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        inside = getattr(inside, "jaxpr", inside)
        if inside is not None and len(inside.invars) == len(of):
            # A loop over an axis (scan) hands on slices, whose axes are others.
            whole = [
                v.aval.ndim == o.aval.ndim
                for v, o in zip(inside.invars, equation.invars, strict=True)
            ]
            _find_products(
                inside,
                {v: k for v, k, same in zip(inside.invars, of, whole) if k is not None and same},
            )


def _best_order(axes: int, products: list[Sums]) -> Axes:
    """Of the present order and those that suit one product each, the first that suits the most."""
    candidates = [tuple(range(axes))]
    for leading, summed in products:
        others = tuple(i for i in range(axes) if i not in leading + summed)
        candidates += [leading + summed + others, leading + others + summed]
    return max(
        candidates, key=lambda order: sum(_in_place(order, *product) for product in products)
    )


def _in_place(order: Axes, leading: Axes, summed: Axes) -> bool:
    """Whether a product reads an array with this order of axes without a copy."""
    rest = order[len(leading) :]
    return order[: len(leading)] == leading and summed in (
        rest[: len(summed)],
        rest[len(rest) - len(summed) :],
    )
