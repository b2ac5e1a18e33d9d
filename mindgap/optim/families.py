"""What optimizers share: one factor per norm (GClip, NormalizedSGD), one threshold per
coordinate (CClip, ACClip).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mindgap.base.check import between, one_of
from mindgap.base.tensors import blocks, robust_norm, widen
from mindgap.optim.norms import QUANTILE, scoped_norms
from mindgap.optim.optimizer import Batch, RuleOptimizer
from mindgap.optim.settings import SCOPES, Order, Scope, check_common
from mindgap.rules.fused.plan import FusedRecord
from mindgap.rules.steps import average_, descend_

#: Norm (0-dim, or one entry per tensor) and a batch's number (τ, b) -> factor of the direction, of
#: the norm's shape.
Coefficient = Callable[[Tensor, Any], Tensor]


class ScaledOptimizer(RuleOptimizer):
    """A rule that multiplies the gradient, or the momentum, by a function of its norm. Not for
    direct use.
    """

    def __init__(
        self,
        params: Any,
        settings: dict[str, Any],
        *,
        beta: float,
        order: Order,
        scope: Scope,
        **options: Any,
    ) -> None:
        self._scope = one_of("scope", scope, SCOPES)
        self._clip = order
        super().__init__(params, {**settings, "momentum": beta}, **options)

    _state_names = ("momentum",)

    def _used_states(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum",) if group["momentum"] else ()

    def _check_group(self, group: dict[str, Any]) -> None:
        check_common(group)
        between("beta", group["momentum"], 0, 1, ends="[)")

    def _scaled_record(
        self, group: dict[str, Any], kind: str, level: Any, **more: Any
    ) -> FusedRecord:
        beta = group["momentum"]
        numbers = {
            "beta": beta,
            "kind": kind,
            "level": level,
            "order": self._clip,
            "quantile": QUANTILE,
        }
        states = ("momentum",) if beta else ()
        return FusedRecord.of("scaled", group, numbers, states=states, scope=self._scope, **more)

    def _scaled_update(
        self, batches: Sequence[Batch], coefficient: Coefficient, numbers: Sequence[Any]
    ) -> list[tuple[Tensor, Tensor]]:
        """x ← x − η·c(‖m‖)·m, or c(‖g‖)·g before it enters the momentum; returns each batch's
        norm and factor.
        """
        on_gradient = self._clip == "gradient"
        directions, raws = [], []
        for batch in batches:
            beta = batch.group["momentum"]
            if beta and not on_gradient:
                memory = self._states(batch, "momentum")
                for m, g in blocks(memory, batch.grads, single=batch.single):
                    average_(m, batch.scaled(g), beta, batch.sign)
                directions.append(memory)
                raws.append(self._raw_states(batch, "momentum"))
            else:
                directions.append(batch.grads)
                raws.append(self._raw_grads(batch))
        norms, own, total = self._all_norms(batches, raws)
        # What the front asks of the gradient: an average has it already, a bare gradient gets it
        # here.
        fronts = [
            None if batch.group["momentum"] and not on_gradient else batch.scale
            for batch in batches
        ]
        norms, own = (
            [n if front is None else n * front for n, front in zip(values, fronts)]
            for values in (norms, own)
        )
        factors = [coefficient(norm, number) for norm, number in zip(norms, numbers)]
        scales = []
        for batch, direction, factor, front in zip(batches, directions, factors, fronts):
            lr, beta = batch.lr, batch.group["momentum"]
            if front is not None:
                factor = factor * front
            if beta and on_gradient:
                memory = self._states(batch, "momentum")
                for c, (m, g) in _with_factor(factor, memory, direction, single=batch.single):
                    average_(m, torch._foreach_mul([widen(t) for t in g], c), beta, batch.sign)
                for p, m in blocks(batch.params, memory, single=batch.single):
                    descend_(p, torch._foreach_mul(m, 1.0), lr, batch.shrink)
                continue
            # Momentum has the sign already; a bare gradient gets it here, so that nothing is copied
            # to be negated.
            sign = 1.0 if beta else batch.sign
            scale = factor * (lr.to(factor.device) if isinstance(lr, Tensor) else lr)
            scales.append(scale)
            for c, (p, d) in _with_factor(scale, batch.params, direction, single=batch.single):
                updates = torch._foreach_mul([widen(t) for t in d], c if sign > 0 else -c)
                descend_(p, updates, 1.0, batch.shrink)
        self._note(direction=total)
        if len(scales) == len(batches):
            self._note(update=list(zip(scales, own)))
        return list(zip(norms, factors))

    def _all_norms(
        self, batches: Sequence[Batch], raws: list[list[Tensor]]
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Norms by batch; with ZeRO all processes take part with every group, also those that
        hold none of it.
        """
        if self._everyone is None:
            return scoped_norms(raws, self._scope)
        by_group = {id(batch.group): raw for batch, raw in zip(batches, raws)}
        everything = [by_group.get(id(group), []) for group in self.param_groups]
        if self._scope == "tensor":
            return scoped_norms(raws, self._scope, self._everyone)
        norms, own, total = scoped_norms(everything, self._scope, self._everyone)
        places = [i for i, group in enumerate(self.param_groups) if id(group) in by_group]
        return [norms[i] for i in places], [own[i] for i in places], total


def _with_factor(
    factor: Tensor, *lists: Sequence[Tensor], single: bool
) -> Iterator[tuple[Tensor, tuple[list[Tensor], ...]]]:
    """Blocks together with their factor in the block's dtype: one factor for all, or one per
    tensor.
    """
    if factor.dim() == 0:
        parts = ((factor, block) for block in blocks(*lists, single=single))
    else:
        parts = (
            (c, block)
            for c, *row in zip(factor, *lists)
            for block in blocks(*([t] for t in row), single=single)
        )
    for c, block in parts:
        yield (
            c.to(
                block[0][0].device,
                widen(block[0][0][:0] if block[0][0].dim() else block[0][0]).dtype,
            ),
            block,
        )


class CoordinateOptimizer(RuleOptimizer):
    """A rule that treats every coordinate by itself. Not for direct use."""

    _joint = False
    _reports_norm = True
    #: Under which name the share of clipped coordinates stands in the report.
    _counts_as = "coordinates"

    @contextmanager
    def _counting(self, batches: list[Batch]) -> Iterator[Callable[[list[Tensor], Tensor], None]]:
        """Collect clipped entries and norms of updates block by block, and note them at the end."""
        counts: list[Tensor] = []
        moved: list[Tensor] = []

        def count(clipped: list[Tensor], length: Tensor) -> None:
            counts.append(torch.stack([c.sum() for c in clipped]).sum())
            moved.append(length)

        yield count
        if counts:
            device = counts[0].device
            total = sum(p.numel() for batch in batches for p in batch.params)
            share: Any = torch.stack([c.to(device) for c in counts]).sum().double() / total
            update = robust_norm([n.to(device) for n in moved], wide=True)
            self._note(update=update, **{self._counts_as: share})
