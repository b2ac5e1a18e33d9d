"""AdamW that clips the gradient's norm itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mindgap.base.check import non_negative
from mindgap.optim.optimizer import Batch, Options, RuleOptimizer
from mindgap.optim.settings import check_betas, check_clip, check_common, corrected
from mindgap.rules.fused.plan import FusedRecord
from mindgap.rules.steps import average_, average_power_, descend_

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AdamW(RuleOptimizer):
    """``torch.nn.utils.clip_grad_norm_`` and ``torch.optim.AdamW`` in one optimizer, with the same
    numbers.

    Symbols: η ``lr``, (β₁, β₂) ``betas``, ε ``eps``, w ``weight_decay``, c ``clip``.

    The update, with k counted for each parameter::

        ĝ_k ← min{c/(‖g_k‖ + e), 1}·g_k                       the norm over all parameters
        m_k ← β₁·m_{k−1} + (1−β₁)·ĝ_k
        v_k ← β₂·v_{k−1} + (1−β₂)·ĝ_k²
        x_k ← (1 − η·w)·x_{k−1} − η·m_k/(1−β₁^k)/(√(v_k/(1−β₂^k)) + ε)

    e = 10⁻⁶ where c is a number, as in torch, and 0 where c is a quantile: with ``clip="auto"`` and
    ε = 0 the steps are the same whatever the gradients' unit.

    States have torch's names: a ``state_dict`` of ``torch.optim.AdamW`` can be loaded, and torch
    can load this one's. Unlike the pair, the step leaves ``p.grad`` as it was.

    Args:
        params: parameters, or groups of them with their own settings.
        lr: step size, a number or a tensor with one element.
        betas: weights of the two averages, each in [0, 1).
        eps: ε, zero or positive.
        weight_decay: w, decoupled.
        clip: c: ``"auto"`` (the 0.9 quantile of the last 128 norms, see ``mindgap.optim.norms``), a
            number, or None, which makes it torch's optimizer.
        options: see ``mindgap.optim.optimizer.Options``.

    Example:
        >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> optimizer = AdamW([x], lr=0.1, clip=1.0)
        >>> (x.square().sum() / 2).backward()
        >>> optimizer.step()
        >>> optimizer.report().clipped, optimizer.report().direction_norm
        (1.0, 5.0)

    Source: Loshchilov and Hutter, Decoupled weight decay regularization (2019), Alg. 2; clipping as
    in torch.

    Differs from the paper: Clipping is an addition. Amsgrad is not offered.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        clip: float | str | None = "auto",
        **options: Unpack[Options],
    ) -> None:
        self._norm_clip = check_clip(clip)
        self._joint = clip is not None
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, settings, **options)

    _reports_norm = True

    def _check_group(self, group: dict[str, Any]) -> None:
        check_common(group)
        check_betas(group["betas"])
        non_negative("eps", group["eps"])

    def fused_record(self, group: dict[str, Any]) -> FusedRecord:
        beta1, beta2 = group["betas"]
        numbers = {"beta": beta1, "beta2": beta2, "eps": group["eps"], "form": "adam"}
        scope = None if self._norm_clip is None else "all"
        return FusedRecord.of(
            "adam", group, numbers, states=("exp_avg", "exp_avg_sq"), scope=scope, counts=True
        )

    def _update(self, batches: list[Batch]) -> None:
        for batch in batches:
            (beta1, beta2), eps = batch.group["betas"], batch.group["eps"]
            states = self._states(batch, "exp_avg"), self._states(batch, "exp_avg_sq")
            for k, (p, g, m, v) in self._by_count(batch, batch.params, batch.grads, *states):
                g = batch.scaled(g)
                average_(m, g, beta1, batch.sign)
                average_power_(v, g, beta2, 2.0)
                scales = corrected(v, beta2, k)
                torch._foreach_sqrt_(scales)
                torch._foreach_add_(scales, eps)
                updates = corrected(m, beta1, k)
                torch._foreach_div_(updates, scales)
                if eps == 0.0:
                    updates = [torch.where(a == 0, a, u) for a, u in zip(m, updates)]
                descend_(p, updates, batch.lr, batch.shrink)
