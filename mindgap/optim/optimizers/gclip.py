"""GClip: clip the norm of the whole direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mindgap.base.check import between, one_of, positive
from mindgap.optim.optimizer import SCOPES, Batch, RuleOptimizer, check_common, positive_at
from mindgap.optim.scaled import scaled_update
from mindgap.rules.clip import clip_coefficient
from mindgap.rules.fused.plan import FusedRecord


class GClip(RuleOptimizer):
    """Gradient descent with global clipping, with or without momentum.

    Symbols: η ``lr``, τ_k ``tau``, β₁ ``beta``, k the step's number, from 1.

    The update (``clip="momentum"``; Alg. 1 of acclip)::

        m_k ← β₁·m_{k−1} + (1−β₁)·g_k
        ĝ_k ← min{τ_k/‖m_k‖, 1}·m_k
        x_k ← Π(x_{k−1} − η_k·ĝ_k)

    With ``clip="gradient"`` g_k is clipped first and m averages the clipped gradients. At β₁ = 0 both are (GClip).

    Args:
        params: parameters, or groups of them with their own ``lr``, ``tau``, ``beta``, ``weight_decay``, ``maximize``.
        lr: step size, a number or a 0-dim tensor.
        tau: threshold in the unit of the gradient's norm: a number, or a function of k (not kept in ``state_dict``).
        beta: momentum in [0, 1).
        clip: ``"momentum"`` or ``"gradient"``.
        weight_decay: decoupled: x is also multiplied by 1 − η·w, outside the clipping.
        scope: norm over ``"all"`` parameters (the theory's), over each ``"group"``, or over each ``"tensor"``.
        project: projection onto a set after each step: a function that changes a list of tensors in place, such as
            ``Ball`` or ``Box`` (proj-GClip).
        nonfinite: ``"propagate"``, ``"skip"`` or ``"raise"``; see ``RuleOptimizer``.
        maximize: ascend.
        foreach: False for the plain loop over tensors.
        fused: one pass over memory; None picks it where it can be used.

    Raises:
        RuleError: names the argument, the rule and the value.

    Example:
        >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> optimizer = GClip([x], lr=1.0, tau=1.0)
        >>> (x.square().sum() / 2).backward()
        >>> optimizer.step()
        >>> x.detach(), optimizer.report().clipped
        (tensor([2.4000, 3.2000]), 1.0)

    Source:
        acclip, Alg. 1 with (GClip); thesis, (GClip) and (proj-GClip) in 4.4.1, (3.5) with γ = τ.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        tau: float | Callable[[int], float],
        *,
        beta: float = 0.0,
        clip: str = "momentum",
        weight_decay: float = 0.0,
        scope: str = "all",
        project: Callable[[Sequence[Tensor]], None] | None = None,
        nonfinite: str = "propagate",
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        self._scope = one_of("scope", scope, SCOPES)
        self._clip = one_of("clip", clip, ("momentum", "gradient"))
        super().__init__(
            params,
            {"lr": lr, "tau": tau, "beta": beta, "weight_decay": weight_decay},
            maximize=maximize,
            foreach=foreach,
            fused=fused,
            nonfinite=nonfinite,
            project=project,
            track=False,
        )

    def _check_group(self, group: dict[str, Any]) -> None:
        check_common(group)
        if not callable(group["tau"]):
            positive("tau", group["tau"], finite=False)
        between("beta", group["beta"], 0, 1, ends="[)")

    def fused_record(self, group: dict[str, Any]) -> FusedRecord:
        level = positive_at("tau", group["tau"], group["k"] + 1)
        numbers = {"beta": group["beta"], "kind": "clip", "level": level, "order": self._clip}
        states = ("momentum",) if group["beta"] else ()
        return FusedRecord.of("scaled", group, numbers, states=states, scope=self._scope)

    def _update(self, batches: list[Batch]) -> None:
        taus = [positive_at("tau", batch.group["tau"], batch.k) for batch in batches]
        on_gradient = self._clip == "gradient"
        applied = scaled_update(self, batches, clip_coefficient, taus, scope=self._scope, on_gradient=on_gradient)
        flags = [(norm > tau).double().mean() for (norm, _), tau in zip(applied, taus)]
        share = flags[0] if len(flags) == 1 else torch.stack([f.to(flags[0].device) for f in flags]).mean()
        self._note(share=share)
