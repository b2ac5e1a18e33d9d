"""The standard problems' losses in ``jax.numpy``, for the compiled backend (``mindgap[jax]``).

Each pair (upper, lower) equals the torch losses of the problem of the same name, value by value;
the tests say so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from mindgap.base.checked import check_arguments
from mindgap.lab.tasks.problems.cleaning import HyperCleaning
from mindgap.lab.tasks.problems.regularisation import RegularisationSelection

#: (upper loss, lower loss), each of (x, y, batch) -> scalar.
Pair = tuple[Callable[[Any, Any, Any], Any], Callable[[Any, Any, Any], Any]]


def quadratic_losses() -> Pair:
    """Upper and lower loss of :mod:`mindgap.lab.tasks.problems.quadratic` (both levels have one
    form).

    Example:
        >>> upper, lower = quadratic_losses()
        >>> batch = (jnp.ones((1, 3, 1)), jnp.ones((1, 3, 1)))
        >>> float(lower(jnp.array([2.0]), jnp.array([3.0]), batch))
        17.5
    """

    def loss(x: Any, y: Any, batch: Any) -> Any:
        """The mean of ½ (p'y)² + ½ (q'x)² + (s'x)(r'y) + a'y + b'x over a batch, as
        ``quadratic.quadratic_loss`` has it: (p, r, a), (samples, 3, d_y), and (q, s, b).
        """
        in_y, in_x = batch
        # Row by row p'y, r'y, a'y, and q'x, s'x, b'x.
        along_y = (in_y.reshape(-1, y.size) @ y).reshape(-1, 3)
        along_x = (in_x.reshape(-1, x.size) @ x).reshape(-1, 3)
        p_y, r_y, a_y = along_y[:, 0], along_y[:, 1], along_y[:, 2]
        q_x, s_x, b_x = along_x[:, 0], along_x[:, 1], along_x[:, 2]
        return (0.5 * (p_y**2 + q_x**2) + s_x * r_y + a_y + b_x).mean()

    return loss, loss


def regularisation_losses(task: RegularisationSelection) -> Pair:
    """Upper and lower loss of a regularisation task, those of :class:`RegularisationSelection`.

    A batch is (features, labels). y has shape (d,) in the binary task, (classes, d) otherwise.
    """
    binary = task.binary

    def upper(x: Any, y: Any, batch: Any) -> Any:
        """f: the mean loss of a batch, without decay; it does not depend on x. ``binary``: labels
        are -1 and 1, and y has one weight per feature.
        """
        features, labels = batch
        if binary:
            return _softplus(-labels * (features @ y)).mean()
        return _cross_entropy(features @ y.T, labels).mean()

    def lower(x: Any, y: Any, batch: Any) -> Any:
        """g: the mean loss of a batch, and the decay with weights e^x."""
        squares = y**2 if binary else (y**2).sum(1)
        return upper(x, y, batch) + 0.5 * (jnp.exp(x) * squares).sum()

    return upper, lower


def cleaning_losses(task: HyperCleaning) -> Pair:
    """Upper and lower loss of a hyper-cleaning task, those of :class:`HyperCleaning`.

    x is λ, y is W (features, classes). An upper batch is (features, labels), a lower one (features,
    labels, sample numbers).
    """
    decay = task.decay

    def upper(x: Any, y: Any, batch: Any) -> Any:
        """f: the mean loss of a clean batch; it does not depend on x."""
        features, labels = batch
        return _cross_entropy(features @ y, labels).mean()

    def lower(x: Any, y: Any, batch: Any) -> Any:
        """g: the mean loss of a batch, each sample with the weight σ(λ_i), and ``decay``·‖W‖²;
        ``samples`` are the numbers of the batch's samples.
        """
        features, labels, samples = batch
        losses = _cross_entropy(features @ y, labels)
        return (jax.nn.sigmoid(x[samples]) * losses).mean() + decay * (y**2).sum()

    return upper, lower


@jax.custom_jvp
def _softplus(scores: Any) -> Any:
    """log(1 + e^score), with a derivative of its own."""
    return jax.nn.softplus(scores)


@_softplus.defjvp
def _softplus_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    """(value, derivative along the tangents) of :func:`_softplus`.

    JAX's own derivative goes through the logarithm, which took half the time of a sweep where only
    derivatives are asked for. A sigmoid needs none.
    """
    (scores,), (tangent,) = primals, tangents
    return jax.nn.softplus(scores), jax.nn.sigmoid(scores) * tangent


def _cross_entropy(scores: Any, labels: Any) -> Any:
    """Cross-entropy of each sample, (samples,), from scores (samples, classes). The right class is
    found by comparison rather than by a gather, so that the derivative is no scatter.
    """
    is_right = (labels[:, None] == jnp.arange(scores.shape[1])[None, :]).astype(scores.dtype)
    return jax.nn.logsumexp(scores, axis=1) - (is_right * scores).sum(1)


check_arguments(__name__)
