"""GClip: clip the norm of the whole direction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from mindgap.base.check import check_call, one_of, positive
from mindgap.optim.families import ScaledOptimizer
from mindgap.optim.norms import QUANTILE, new_window, push_, running_quantile
from mindgap.optim.optimizer import Batch, Options
from mindgap.optim.settings import ORDERS, Order, Scope, positive_at
from mindgap.rules.fused.plan import FusedRecord
from mindgap.rules.steps import clip_coefficient

if TYPE_CHECKING:
    from typing_extensions import Unpack


class GClip(ScaledOptimizer):
    """Gradient descent with global clipping, with or without momentum.

    Symbols: η ``lr``, τ_k ``tau``, β₁ ``beta``, k the step's number, from 1.

    The update (``clip="gradient"``); one huge gradient moves m by at most (1−β₁)·τ_k::

        m_k ← β₁·m_{k−1} + (1−β₁)·min{τ_k/‖g_k‖, 1}·g_k
        x_k ← Π(x_{k−1} − η_k·m_k)

    The order that acclip prints in Alg. 1 (``clip="momentum"``) clips the average, in which a huge
    gradient stays::

        m_k ← β₁·m_{k−1} + (1−β₁)·g_k
        x_k ← Π(x_{k−1} − η_k·min{τ_k/‖m_k‖, 1}·m_k)

    At β₁ = 0 both are (GClip).

    Args:
        params: parameters, or groups of them with their own ``lr``, ``tau``, ``beta``,
            ``weight_decay``, ``maximize``.
        lr: step size, a number or a tensor with one element.
        tau: threshold in the unit of the gradient's norm: a number; a function of k (not kept in
            ``state_dict``); or ``"auto"``: the 0.9 quantile of the last 128 norms, see
            ``mindgap.optim.norms``.
        beta: momentum in [0, 1); schedulers find it in the groups as ``momentum``.
        clip: what is clipped, ``"gradient"`` or ``"momentum"``.
        weight_decay: decoupled: x is also multiplied by 1 − η·w, outside the clipping.
        scope: norm over ``"all"`` parameters (the theory's), over each ``"group"``, or over each
            ``"tensor"``.
        options: see ``mindgap.optim.optimizer.Options``.

    Example:
        >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> optimizer = GClip([x], lr=1.0, tau=1.0)
        >>> (x.square().sum() / 2).backward()
        >>> optimizer.step()
        >>> x.detach(), optimizer.report().clipped
        (tensor([2.4000, 3.2000]), 1.0)

    Source: acclip, Alg. 1 with (GClip); thesis, (GClip) and (proj-GClip) in 4.4.1, (3.5) with γ =
    τ.
    """

    _clips = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        tau: float | Literal["auto"] | Callable[[int], float],
        *,
        beta: float = 0.0,
        clip: Order = "gradient",
        weight_decay: float = 0.0,
        scope: Scope = "all",
        **options: Unpack[Options],
    ) -> None:
        one_of("clip", clip, ORDERS)
        settings = {"lr": lr, "tau": tau, "weight_decay": weight_decay}
        super().__init__(params, settings, beta=beta, order=clip, scope=scope, **options)

    def _check_group(self, group: dict[str, Any]) -> None:
        """Check the settings of a group. A τ that is a function is checked at every step."""
        super()._check_group(group)
        if callable(group["tau"]):
            check_call("tau", group["tau"], "a function of the number of the step", 1)
        elif group["tau"] != "auto":
            positive("tau", group["tau"], finite=False)

    def fused_record(self, group: dict[str, Any]) -> FusedRecord:
        """What the fused engine needs to know of a group for its rule "scaled", which clips at one
        number or at a quantile of the last norms.

        With ``tau="auto"`` the group keeps these norms as ``tau_norms``: made here where they lack,
        and moved to the parameters' device where they lie on another one.
        """
        if group["tau"] == "auto":
            if self._scope == "tensor":
                return FusedRecord(refusal="tau='auto' per tensor has no kernel")
            window, device = group.get("tau_norms"), group["params"][0].device
            if window is None or window.dim() != 1:
                window = group["tau_norms"] = new_window(device)
            elif window.device != device:  # a checkpoint that was read on the CPU
                window = group["tau_norms"] = window.to(device)
            return self._scaled_record(group, "clip", 0.0, window=window)
        return self._scaled_record(group, "clip", positive_at("tau", group["tau"], group["k"] + 1))

    def _update(self, batches: list[Batch]) -> None:
        """Move the parameters by one step, in place; the share of clipped norms goes to the
        report.
        """
        # A threshold per batch; with "auto" the group stands for it, whose window gives it.
        taus: list[Any] = [
            batch.group
            if batch.group["tau"] == "auto"
            else positive_at("tau", batch.group["tau"], batch.k)
            for batch in batches
        ]
        shares: list[Tensor] = []

        def coefficient(norm: Tensor, tau: Any) -> Tensor:
            """min{τ/norm, 1}; appends the share of the norms that are clipped to ``shares``. A dict
            in place of τ is a group whose window gives the threshold.
            """
            tau = self._window_threshold(tau, norm) if isinstance(tau, dict) else tau
            shares.append((norm > tau).double().mean())
            return clip_coefficient(norm, tau)

        self._scaled_update(batches, coefficient, taus)
        if shares:
            self._note(share=torch.stack([s.to(shares[0].device) for s in shares]).mean())

    @torch._disable_dynamo
    def _window_threshold(self, group: dict[str, Any], norm: Tensor) -> Tensor:
        """The threshold of this step: the ``QUANTILE`` of the group's last norms, of the shape of
        ``norm`` (one window per entry). Then the norm enters these windows, in ``tau_norms``.
        """
        window = group.get("tau_norms")
        if window is None or window.shape[:-1] != norm.shape:
            window = new_window(norm.device, *norm.shape)
        window = group["tau_norms"] = window.to(norm.device)
        threshold = running_quantile(window, QUANTILE)
        push_(window, norm)
        return threshold
