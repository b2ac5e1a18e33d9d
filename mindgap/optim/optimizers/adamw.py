"""AdamW that clips the gradient's norm itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mindgap.base.check import fail, flag, non_negative, positive
from mindgap.base.tensors import as_real
from mindgap.optim.optimizer import Batch, Options, RuleOptimizer
from mindgap.optim.settings import (
    AdamWClip,
    bias_corrected,
    check_betas,
    check_clip,
    check_common,
    check_torch_settings,
    plain_numbers,
)
from mindgap.rules.fused.plan import FusedRecord
from mindgap.rules.steps import average_, average_power_, clip_at_means_, descend_

if TYPE_CHECKING:
    from typing_extensions import Unpack


#: Weight of the newest entry in a running mean of |g| over events, after the first 100 steps.
EVENT_RATE = 0.01
#: Weight of the past in the running mean of |g| that bounds the step with ``clip="noise"``.
ABS_BETA = 0.99


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

    With ``amsgrad`` the largest v so far stands for v_k in the last line.

    With ``clip="unit"`` ĝ_k = g_k/‖g_k‖. Adam does not see the scale, but v no longer remembers how
    large a gradient was, and the steps are the same whatever the gradients' unit. With
    ``coordinates`` C every entry of ĝ_k is then clipped at C·τ, where τ is the running mean of its
    own size before this step, over the steps in which it was not zero::

        ĝ_k ← min{C·τ_{k−1}/|ĝ_k|, 1}·ĝ_k
        τ_k ← τ_{k−1} + max{0.01, 1/k}·(|g_k|/‖g_k‖ − τ_{k−1})      where g_k ≠ 0

    Both are experiments and off by default; C = 3 is where to begin.

    With ``clip="noise"`` it asks of gradients above four medians of the last norms whether they
    point to both sides, which is noise, or to one, which is signal (``mindgap.optim.sides`` has the
    rule). While they are signal, or there are none, the steps are torch's, except that the first
    large gradient is clipped at four medians, and a later one at twice the largest before, so that
    one bad batch does little. While they are noise, ĝ_k gets the usual norm, and less where g_k is
    larger than usual; and no entry of the step is longer than η::

        a_k ← 0.99·a_{k−1} + 0.01·|ĝ_k|                       kept at every step
        x_k ← (1 − η·w)·x_{k−1} − η·m̂/max{|m̂|, â}             m̂ = m_k/(1−β₁^k), â = a_k/(1−0.99^k)

    With ``amsgrad`` or ``coordinates`` there is no a, and x moves as without noise; a gradient that
    ``spike_guard`` clips or skips is not judged.

    The arguments are torch's, in torch's order. States have torch's names: a ``state_dict`` of
    ``torch.optim.AdamW`` can be loaded, and torch can load this one's. One of ``torch.optim.Adam``
    can be loaded where its weight decay, which is coupled, is 0; those of other optimizers are
    refused. Unlike the pair, the step leaves ``p.grad`` as it was.

    Args:
        params: parameters, or groups of them with their own settings.
        lr: step size, a number or a tensor with one element.
        betas: weights of the two averages, each in [0, 1). They, ε and w may be tensors with one
            element, which are read at every step (on a device that forces a synchronisation).
        eps: ε, zero or positive.
        weight_decay: w, decoupled.
        amsgrad: keep the largest v.
        clip: c: ``"auto"`` (the 0.9 quantile of the last 128 norms, see ``mindgap.optim.norms``), a
            number, or None, which makes it torch's optimizer; ``"unit"`` divides by the norm;
            ``"noise"`` tells noise from signal as above, at one state per parameter.
        coordinates: C, the multiple at which entries are clipped; None clips none. It costs one
            state per parameter.
        capturable: whether the step can be captured in a CUDA graph: the fused form or an error,
            after one step outside the capture.
        differentiable: False; True is refused.
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

    Differs from the paper: Clipping and amsgrad (Reddi, Kale and Kumar, 2018) are additions.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float | Tensor = 1e-8,
        weight_decay: float | Tensor = 1e-2,
        amsgrad: bool = False,
        *,
        clip: AdamWClip = "auto",
        coordinates: float | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        **options: Unpack[Options],
    ) -> None:
        check_torch_settings({"differentiable": differentiable})
        self._norm_clip = check_clip(clip, "unit", "noise")
        # A norm over all parameters needs the fused form for all of them or for none.
        self._joint = clip is not None
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "capturable": capturable,
            "differentiable": differentiable,
            "coordinates": coordinates,
        }
        super().__init__(params, settings, **options)

    _reports_norm = True
    _state_names = ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "mean_abs", "exp_avg_abs")

    def _check_group(self, group: dict[str, Any]) -> None:
        """Check the settings of a group; raises ``RuleError`` for the first that is wrong."""
        check_torch_settings(group)
        numbers = plain_numbers(group)
        check_common(numbers)
        check_betas(numbers["betas"])
        non_negative("eps", numbers["eps"])
        flag("amsgrad", group["amsgrad"])
        if group["coordinates"] is not None:
            positive("coordinates", group["coordinates"])
            if group["amsgrad"]:
                fail("coordinates", "must be None with amsgrad", group["coordinates"])
        if flag("capturable", group["capturable"]):
            if group["fused"] is False or group["foreach"] is not None:
                fail("capturable", "must be False where the fused form is not wanted", True)
            if self._everyone is not None:
                fail("capturable", "must be False with ZeroRedundancyOptimizer", True)

    def _bounds(self, group: dict[str, Any]) -> bool:
        """Whether a running mean of |g| bounds a group's step while large gradients are noise."""
        plain = not group.get("amsgrad") and group.get("coordinates") is None
        return plain and self._norm_clip == "noise"

    def _check_saved(self, group: dict[str, Any]) -> None:
        """Refuse a saved group of an optimizer with other steps: Adam with coupled weight decay,
        NAdam or RAdam.
        """
        check_torch_settings(group)
        coupled = group.get("decoupled_weight_decay", True) is False
        if coupled and float(group.get("weight_decay", 0.0)) != 0.0:
            fail(
                "state_dict",
                "must be of AdamW: its weight decay is coupled, as torch.optim.Adam's, and is not "
                "that of this optimizer",
                group["weight_decay"],
            )
        # NAdam's groups have "momentum_decay"; RAdam's say how they decay, but have no "amsgrad".
        is_radam = "decoupled_weight_decay" in group and "amsgrad" not in group
        if "momentum_decay" in group or is_radam:
            fail(
                "state_dict",
                "must be of AdamW: it has the settings of NAdam or RAdam",
                sorted(group),
            )

    @torch._disable_dynamo
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As for all optimizers. Where a running mean of |g| bounds the steps and the dict has none
        (of torch's AdamW, or of another clip), it begins with the root of the mean of g².
        """
        super().load_state_dict(state_dict)
        for group in map(plain_numbers, filter(self._bounds, self.param_groups)):
            for p in group["params"]:
                state = self.state.get(p, {})
                if not state.get("step", 0) or "exp_avg_abs" in state:
                    continue
                # √(corrected v) stands for the mean of |g|; the last factor takes away what the
                # bias correction of step k will put in.
                k, v = float(state["step"]), as_real(state["exp_avg_sq"])
                mean = (v / (1.0 - group["betas"][1] ** k)).sqrt() * (1.0 - ABS_BETA**k)
                as_real(self._state(p, "exp_avg_abs")).copy_(mean)

    def _used_states(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The averages m and v, and the largest v or one of two running means of |g|; no group has
        two of these.
        """
        if group["amsgrad"]:
            return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
        if group["coordinates"] is not None:
            return ("exp_avg", "exp_avg_sq", "mean_abs")
        if self._bounds(group):
            return ("exp_avg", "exp_avg_sq", "exp_avg_abs")
        return ("exp_avg", "exp_avg_sq")

    def _counts_gradients(self, group: dict[str, Any]) -> bool:
        return True

    def fused_record(self, group: dict[str, Any]) -> FusedRecord:
        """What the fused engine needs to know of a group for its rule "adam"."""
        # Those that may be tensors stand among the numbers, where tensors on the CPU are read.
        (beta1, beta2), multiple = group["betas"], group["coordinates"]
        numbers = {
            "beta": beta1,
            "beta2": beta2,
            "eps": group["eps"],
            "decay": group["weight_decay"],
            "form": "adam",
            "amsgrad": group["amsgrad"],
            "multiple": multiple,
        }
        if multiple is not None:
            numbers["event_rate"] = EVENT_RATE
        if self._bounds(group):
            numbers["abs_beta"] = ABS_BETA
        scope = None if self._norm_clip is None else "all"
        return FusedRecord.of(
            "adam", group, numbers, states=self._used_states(group), scope=scope, counts=True
        )

    def _update(self, batches: list[Batch]) -> None:
        """Move the parameters by one step, in place: x ← (1 − η·w)·x − η·m̂/(√v̂ + ε), where m̂ and v̂
        are the bias-corrected averages m of the clipped gradients and v of their squares.

        The states m and v take in the gradients in place, and each parameter's count k of gradients
        grows by 1.
        """
        for batch in batches:
            group = plain_numbers(batch.group)
            (beta1, beta2), eps = group["betas"], group["eps"]
            states = [self._states(batch, name) for name in self._used_states(group)]
            # Blocks of x, g, m, v, and the largest v (amsgrad) or a mean of |g| (coordinates, or
            # clip="noise").
            for k, (p, g, m, v, *more) in self._by_count(batch, batch.params, batch.grads, *states):
                g = batch.scaled(g)
                if group["coordinates"] is not None:
                    g = clip_at_means_(g, more[0], group["coordinates"], _event_rate(k))
                average_(m, g, beta1, batch.sign)
                average_power_(v, g, beta2, 2.0)
                if group["amsgrad"]:
                    torch._foreach_maximum_(more[0], v)
                scales = bias_corrected(more[0] if group["amsgrad"] else v, beta2, k)
                torch._foreach_sqrt_(scales)
                torch._foreach_add_(scales, eps)
                updates = bias_corrected(m, beta1, k)
                torch._foreach_div_(updates, scales)
                if eps == 0.0:  # 0/0 is a step of 0
                    updates = [torch.where(a == 0, a, u) for a, u in zip(m, updates)]
                if self._bounds(group):
                    average_power_(more[0], g, ABS_BETA, 1.0)
                    if batch.noisy is not None:
                        updates = _bounded_where(batch.noisy, updates, m, more[0], beta1, k)
                descend_(p, updates, batch.lr, batch.shrink)


def _bounded_where(
    noisy: Tensor, updates: list[Tensor], m: list[Tensor], a: list[Tensor], beta1: float, k: Any
) -> list[Tensor]:
    """The updates, or where large gradients are noise ACClip's: m̂/max{|m̂|, â} with the
    bias-corrected averages m of the gradients and a of their sizes; 0/0 is 0.

    Args:
        noisy: 0-dim; read where that waits for no device.
        k: number of gradients seen.
    """
    if noisy.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(noisy):
        return updates
    bounded, scales = bias_corrected(m, beta1, k), bias_corrected(a, ABS_BETA, k)
    torch._foreach_maximum_(scales, torch._foreach_abs(bounded))
    # A divisor above 0, so that 0/0 becomes 0.
    torch._foreach_clamp_min_(scales, torch.finfo(scales[0].dtype).tiny)
    torch._foreach_div_(bounded, scales)
    on = noisy.to(updates[0].device)
    return [torch.where(on, b, u) for b, u in zip(bounded, updates)]


def _event_rate(k: int | Tensor) -> float | Tensor:
    """Weight of the newest entry in its running mean: the first 100 steps give a plain mean."""
    return (1.0 / k).clamp(min=EVENT_RATE) if isinstance(k, Tensor) else max(EVENT_RATE, 1.0 / k)
