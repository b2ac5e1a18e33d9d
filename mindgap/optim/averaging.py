"""The k-weighted average of iterates, through torch's own ``AveragedModel``."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from mindgap.base.checked import checked_types


@checked_types
def k_weighted_avg_fn(averaged: Tensor, current: Tensor, count: Tensor | int) -> Tensor:
    """x̄_j = x̄_{j−1} + 2/(j+1)·(x_{j−1} − x̄_{j−1}), an ``avg_fn`` for ``AveragedModel``.

    Example:
        >>> import torch
        >>> float(k_weighted_avg_fn(torch.tensor(0.0), torch.tensor(3.0), 1))  # (1·0 + 2·3)/3
        2.0

    Source: acclip, Thm 1; thesis, Thm 4.4.2.
    """
    # The count is an integer tensor, and 2/(count + 2) would be rounded to float32.
    counted = count.double() if isinstance(count, Tensor) else float(count)
    return averaged + (current - averaged) * (2.0 / (counted + 2.0))


def k_weighted_average(model: nn.Module, **options: Any) -> AveragedModel:
    """An ``AveragedModel`` (which takes the ``options``) that holds x̄_k = Σ_j j·x_{j−1} / Σ_j j.

    x_{j−1} is the iterate *before* step j: call ``update_parameters(model)`` before each
    ``optimizer.step()``.

    Example:
        >>> import torch
        >>> model = nn.Linear(1, 1, bias=False)
        >>> mean = k_weighted_average(model)
        >>> for value in (1.0, 4.0):
        ...     _ = nn.init.constant_(model.weight, value)
        ...     mean.update_parameters(model)
        >>> float(mean.module.weight.detach())  # (1·1 + 2·4)/3
        3.0

    Source: acclip, Thm 1; thesis, Thm 4.4.2.
    """
    return AveragedModel(model, avg_fn=k_weighted_avg_fn, **options)
