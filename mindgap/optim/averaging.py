"""The k-weighted average of iterates, through torch's own ``AveragedModel``."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from mindgap.base.check import fail, flag, whole
from mindgap.base.checked import checked_types


@checked_types
def k_weighted_avg_fn(averaged: Tensor, current: Tensor, count: Tensor | int) -> Tensor:
    """x̄_j = x̄_{j−1} + 2/(j+1)·(x_{j−1} − x̄_{j−1}), an ``avg_fn`` for ``AveragedModel``.

    Args:
        averaged: x̄_{j−1}.
        current: x_{j−1}, of the same shape.
        count: j − 1, how many iterates the average holds already.

    Example:
        >>> import torch
        >>> float(k_weighted_avg_fn(torch.tensor(0.0), torch.tensor(3.0), 1))  # (1·0 + 2·3)/3
        2.0

    Source: acclip, Thm 1; thesis, Thm 4.4.2.
    """
    if current.shape != averaged.shape:
        fail(
            "current",
            f"must have the shape of averaged, {tuple(averaged.shape)}",
            tuple(current.shape),
        )
    if isinstance(count, Tensor):
        if count.numel() != 1:
            fail("count", "must have one element when it is a tensor", tuple(count.shape))
        if count.device.type == "cpu":  # elsewhere looking at it would wait for the device
            value = count.item()
            whole("count", int(value) if math.isfinite(value) else value)
    else:
        whole("count", count)
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
    if not isinstance(model, nn.Module):
        fail("model", "must be a torch.nn.Module", model)
    for name in options:
        if name in ("avg_fn", "multi_avg_fn"):
            fail(name, "must not be given: the average is k-weighted", options[name])
        if name not in ("device", "use_buffers"):
            fail("options", "must be arguments of AveragedModel (device, use_buffers)", name)
    if options.get("device") is not None:
        try:
            options["device"] = torch.device(options["device"])
        except (RuntimeError, TypeError):
            fail("device", "must be one of torch's", options["device"])
    flag("use_buffers", options.get("use_buffers", False))
    return AveragedModel(model, avg_fn=k_weighted_avg_fn, **options)
