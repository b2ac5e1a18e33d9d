"""SGD that clips the gradient's norm itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mindgap.base.check import fail, non_negative, number, one_of
from mindgap.base.tensors import blocks, widen
from mindgap.optim.optimizer import Batch, Options, RuleOptimizer
from mindgap.optim.settings import (
    Clip,
    check_clip,
    check_common,
    check_torch_settings,
    plain_number,
    plain_numbers,
)
from mindgap.rules.fused.plan import FusedRecord
from mindgap.rules.steps import descend_

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SGD(RuleOptimizer):
    """``torch.nn.utils.clip_grad_norm_`` and ``torch.optim.SGD`` in one optimizer, with the same
    numbers.

    Symbols: η ``lr``, μ ``momentum``, d ``dampening``, w ``weight_decay``, c ``clip``.

    The update (m_1 = ĝ_1 + w·x_0 for each parameter)::

        ĝ_k ← min{c/(‖g_k‖ + e), 1}·g_k                       the norm over all parameters
        m_k ← μ·m_{k−1} + (1−d)·(ĝ_k + w·x_{k−1})
        x_k ← x_{k−1} − η·m_k
            with nesterov: − η·(ĝ_k + w·x_{k−1} + μ·m_k)

    e = 10⁻⁶ where c is a number, as in torch, and 0 where c is a quantile.

    The arguments are torch's, in torch's order. States have torch's names: a ``state_dict`` of
    ``torch.optim.SGD`` can be loaded, and torch can load this one's. Unlike ``clip_grad_norm_``,
    the step leaves ``p.grad`` as it was.

    Args:
        params: parameters, or groups of them with their own settings.
        lr: step size, a number or a tensor with one element.
        momentum: μ, zero or positive. m is a sum of gradients here and an average in GClip: at μ =
            0.9 a step with lr 0.1 here is as long as one with lr 1 there.
        dampening: d.
        weight_decay: w, added to the gradient after the clipping. It, μ and d may be tensors with
            one element, which are read at every step (on a device that forces a synchronisation).
        nesterov: needs momentum without dampening.
        clip: c: ``"auto"`` (the 0.9 quantile of the last 128 norms, see ``mindgap.optim.norms``), a
            number, or None, which makes it torch's optimizer.
        differentiable: False; True is refused.
        options: see ``mindgap.optim.optimizer.Options``.

    Example:
        >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> optimizer = SGD([x], lr=0.1, momentum=0.9, clip=1.0)
        >>> (x.square().sum() / 2).backward()
        >>> optimizer.step()
        >>> x.detach()
        tensor([2.9400, 3.9200])

    Source: torch's SGD; clipping as in torch.
    """

    _reports_norm = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float | Tensor = 0.0,
        dampening: float | Tensor = 0.0,
        weight_decay: float | Tensor = 0.0,
        nesterov: bool = False,
        *,
        clip: Clip = "auto",
        differentiable: bool = False,
        **options: Unpack[Options],
    ) -> None:
        check_torch_settings({"differentiable": differentiable})
        self._norm_clip = check_clip(clip)
        # A norm over all parameters needs the fused form for all of them or for none.
        self._joint = clip is not None
        settings = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "differentiable": differentiable,
        }
        super().__init__(params, settings, **options)

    _state_names = ("momentum_buffer",)

    def _check_saved(self, group: dict[str, Any]) -> None:
        """Refuse ``differentiable``, which a group of torch's SGD may have, and tensors of several
        elements.
        """
        check_torch_settings(group)

    def _used_states(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The momentum, unless its weight is 0."""
        return ("momentum_buffer",) if plain_number(group["momentum"]) else ()

    def _check_group(self, group: dict[str, Any]) -> None:
        """Check the settings of a group; raises ``RuleError`` for the first that is wrong."""
        check_torch_settings(group)
        group = plain_numbers(group)
        check_common(group)
        non_negative("momentum", group["momentum"])
        number("dampening", group["dampening"])
        if one_of("nesterov", group["nesterov"], (False, True)) and (
            not group["momentum"] or group["dampening"]
        ):
            fail("nesterov", "needs momentum and no dampening", group["nesterov"])

    def fused_record(self, group: dict[str, Any]) -> FusedRecord:
        """What the fused engine needs to know of a group for its rule "momentum"."""
        numbers = {
            "beta": group["momentum"],
            "coupled": group["weight_decay"],
            "decay": 0.0,  # the decoupled one
            "dampening": group["dampening"],
            "nesterov": group["nesterov"],
        }
        states = ("momentum_buffer",) if group["momentum"] else ()
        return FusedRecord.of(
            "momentum",
            group,
            numbers,
            states=states,
            scope=None if self._norm_clip is None else "all",
            # The first gradient enters the sum without dampening, which no kernel does.
            started=states if group["dampening"] else (),
        )

    def _update(self, batches: list[Batch]) -> None:
        """Move the parameters by one step, in place: with u = g + w·x for the clipped gradient g,
        m ← μ·m + (1−d)·u and x ← x − η·m, or x ← x − η·(u + μ·m) with nesterov, or x ← x − η·u
        without momentum. The momentum buffers m are changed in place.
        """
        for batch in batches:
            group = plain_numbers(batch.group)
            mu = group["momentum"]
            # Parameters with and without a momentum buffer apart; the first gradient enters one
            # without dampening. Without momentum the gradients stand in its place, unread.
            by_start = [(True, list(range(len(batch.owners))))]
            memory = batch.grads
            if mu:
                by_start = self._started(batch, "momentum_buffer")
                memory = self._states(batch, "momentum_buffer")
            for had_buffer, indices in by_start:
                lists = (
                    [values[i] for i in indices] for values in (batch.params, batch.grads, memory)
                )
                for p, g, m in blocks(*lists, single=batch.single):
                    # u = ±g + w·x. Copies: the updates are overwritten, the gradients must not be.
                    updates = torch._foreach_mul(batch.scaled(g), batch.sign)
                    if group["weight_decay"]:
                        torch._foreach_add_(
                            updates, [widen(t) for t in p], alpha=group["weight_decay"]
                        )
                    if mu:
                        torch._foreach_mul_(m, mu)
                        torch._foreach_add_(
                            m, updates, alpha=1.0 - group["dampening"] if had_buffer else 1.0
                        )
                        if group["nesterov"]:
                            torch._foreach_add_(updates, m, alpha=mu)
                        else:
                            updates = torch._foreach_mul(m, 1.0)  # a copy, to be overwritten
                    descend_(p, updates, batch.lr)
