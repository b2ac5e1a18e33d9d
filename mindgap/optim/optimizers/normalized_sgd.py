"""NormalizedSGD: steps whose length does not depend on the gradient's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from mindgap.base.check import between, non_negative, one_of
from mindgap.optim.optimizer import SCOPES, Batch, RuleOptimizer, check_common
from mindgap.optim.scaled import scaled_update
from mindgap.rules.fused.plan import FusedRecord
from mindgap.rules.normalize import normalize_coefficient


class NormalizedSGD(RuleOptimizer):
    """Normalised gradient descent, with or without momentum.

    Symbols: η_n ``lr``, β of (3.6) ``damping``; the momentum's weight is ``beta``.

    The update::

        m_k ← beta·m_{k−1} + (1−beta)·g_k
        x_k ← Π(x_{k−1} − η_n/(‖m_k‖ + damping)·m_k)

    Args:
        params: parameters, or groups of them with their own ``lr``, ``beta``, ``damping``, ``weight_decay``.
        lr: length of a step (for damping 0), a number or a 0-dim tensor.
        beta: momentum in [0, 1).
        damping: added to the norm, zero or positive.
        weight_decay: decoupled: x is also multiplied by 1 − η·w.
        scope: norm over ``"all"`` parameters, over each ``"group"``, or over each ``"tensor"``.
        project: projection onto a set after each step, such as ``Ball`` or ``Box``.
        nonfinite: ``"propagate"``, ``"skip"`` or ``"raise"``; see ``RuleOptimizer``.
        maximize: ascend.
        foreach: False for the plain loop over tensors.
        fused: one pass over memory; None picks it where it can be used.

    Raises:
        RuleError: names the argument, the rule and the value.

    Example:
        >>> import torch
        >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> optimizer = NormalizedSGD([x], lr=1.0)
        >>> x.square().sum().backward()
        >>> optimizer.step()
        >>> x.detach()
        tensor([2.4000, 3.2000])

    Source:
        thesis, (3.6).

    Differs from the paper:
        Momentum is an addition; ``beta=0`` is (3.6). At a zero gradient with damping 0 nothing moves.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        *,
        beta: float = 0.0,
        damping: float = 0.0,
        weight_decay: float = 0.0,
        scope: str = "all",
        project: Callable[[Sequence[Tensor]], None] | None = None,
        nonfinite: str = "propagate",
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        self._scope = one_of("scope", scope, SCOPES)
        super().__init__(
            params,
            {"lr": lr, "beta": beta, "damping": damping, "weight_decay": weight_decay},
            maximize=maximize,
            foreach=foreach,
            fused=fused,
            nonfinite=nonfinite,
            project=project,
            track=False,
        )

    def _check_group(self, group: dict[str, Any]) -> None:
        check_common(group)
        between("beta", group["beta"], 0, 1, ends="[)")
        non_negative("damping", group["damping"])

    def fused_record(self, group: dict[str, Any]) -> FusedRecord:
        numbers = {"beta": group["beta"], "kind": "normalize", "level": group["damping"], "order": "momentum"}
        states = ("momentum",) if group["beta"] else ()
        return FusedRecord.of("scaled", group, numbers, states=states, scope=self._scope)

    def _update(self, batches: list[Batch]) -> None:
        dampings = [batch.group["damping"] for batch in batches]
        scaled_update(self, batches, normalize_coefficient, dampings, scope=self._scope, on_gradient=False)
