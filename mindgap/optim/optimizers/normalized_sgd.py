"""NormalizedSGD: steps whose length does not depend on the gradient's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from mindgap.base.check import non_negative, one_of
from mindgap.optim.families import ScaledOptimizer
from mindgap.optim.optimizer import Batch, Options
from mindgap.optim.settings import ORDERS, Order, Scope
from mindgap.rules.fused.plan import FusedRecord
from mindgap.rules.steps import normalize_coefficient

if TYPE_CHECKING:
    from typing_extensions import Unpack


class NormalizedSGD(ScaledOptimizer):
    """Normalised gradient descent, with or without momentum.

    Symbols: η_n ``lr``, β of (3.6) ``damping``; the momentum's weight is ``beta``.

    The update (``normalize="gradient"``), in which a huge gradient counts no more than any other::

        m_k ← beta·m_{k−1} + (1−beta)·g_k/(‖g_k‖ + damping)
        x_k ← Π(x_{k−1} − η_n·m_k)

    With ``normalize="momentum"``::

        m_k ← beta·m_{k−1} + (1−beta)·g_k
        x_k ← Π(x_{k−1} − η_n/(‖m_k‖ + damping)·m_k)

    Args:
        params: parameters, or groups of them with their own ``lr``, ``beta``, ``damping``,
            ``weight_decay``.
        lr: length of a step (for damping 0 and beta 0), a number or a tensor with one element.
        beta: momentum in [0, 1); schedulers find it in the groups as ``momentum``.
        damping: added to the norm, zero or positive.
        normalize: what is normalised, ``"gradient"`` or ``"momentum"``.
        weight_decay: decoupled: x is also multiplied by 1 − η·w.
        scope: norm over ``"all"`` parameters, over each ``"group"``, or over each ``"tensor"``.
        options: see ``mindgap.optim.optimizer.Options``.

    Example:
        >>> import torch
        >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> optimizer = NormalizedSGD([x], lr=1.0)
        >>> x.square().sum().backward()
        >>> optimizer.step()
        >>> x.detach()
        tensor([2.4000, 3.2000])

    Source: thesis, (3.6), which has no momentum: ``beta=0``.

    Differs from the paper: Momentum is an addition. At a zero gradient with damping 0 nothing
    moves.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        *,
        beta: float = 0.0,
        damping: float = 0.0,
        normalize: Order = "gradient",
        weight_decay: float = 0.0,
        scope: Scope = "all",
        **options: Unpack[Options],
    ) -> None:
        settings = {"lr": lr, "damping": damping, "weight_decay": weight_decay}
        one_of("normalize", normalize, ORDERS)
        super().__init__(params, settings, beta=beta, order=normalize, scope=scope, **options)

    _shown = (
        *(pair for pair in ScaledOptimizer._shown if pair[0] != "_clip"),
        ("_clip", "normalize"),
    )

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        non_negative("damping", group["damping"])

    def fused_record(self, group: dict[str, Any]) -> FusedRecord:
        """What the fused engine needs to know of a group for its rule "scaled"."""
        return self._scaled_record(group, "normalize", group["damping"])

    def _update(self, batches: list[Batch]) -> None:
        """Move the parameters by one step, in place, with the factor 1/(norm + damping)."""
        self._scaled_update(
            batches, normalize_coefficient, [batch.group["damping"] for batch in batches]
        )
