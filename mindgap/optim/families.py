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
        self, group: dict[str, Any], kind: str, level: Any, **fields: Any
    ) -> FusedRecord:
        """The record of a group for the rule "scaled": ``kind`` says what the norm does, ``level``
        is τ or the damping, ``fields`` are further fields of the record.
        """
        beta = group["momentum"]
        numbers = {
            "beta": beta,
            "kind": kind,
            "level": level,
            "order": self._clip,
            "quantile": QUANTILE,
        }
        states = ("momentum",) if beta else ()
        return FusedRecord.of("scaled", group, numbers, states=states, scope=self._scope, **fields)

    def _scaled_update(
        self, batches: Sequence[Batch], coefficient: Coefficient, numbers: Sequence[Any]
    ) -> list[tuple[Tensor, Tensor]]:
        """x ← x − η·c(‖m‖)·m, or c(‖g‖)·g before it enters the momentum, in place; notes the norm
        and the step's for the report.

        Args:
            batches: all of this step.
            coefficient: c, of a norm and a batch's number.
            numbers: that number (τ, the damping) for each batch.

        Returns:
            Each batch's norm and factor.
        """
        directions, raws = self._averaged_directions(batches)
        norms, own_norms, total = self._all_norms(batches, raws)
        # A momentum consists of gradients that were clipped before; other directions are clipped
        # here.
        clips = [None if self._averages_first(batch) else batch.scale for batch in batches]
        norms = [norm if clip is None else norm * clip for norm, clip in zip(norms, clips)]
        own_norms = [norm if clip is None else norm * clip for norm, clip in zip(own_norms, clips)]
        factors = [coefficient(norm, number) for norm, number in zip(norms, numbers)]
        scales = []
        for batch, direction, factor, clip in zip(batches, directions, factors, clips):
            if clip is not None:
                factor = factor * clip
            if batch.group["momentum"] and not self._averages_first(batch):
                self._average_and_step(batch, direction, factor)
            else:
                scales.append(self._scaled_step(batch, direction, factor))
        self._note(direction=total)
        if len(scales) == len(batches):
            self._note(update=list(zip(scales, own_norms)))
        return list(zip(norms, factors))

    def _averages_first(self, batch: Batch) -> bool:
        """Whether the factor multiplies the momentum, not the gradient that enters it."""
        return bool(batch.group["momentum"]) and self._clip == "momentum"

    def _averaged_directions(
        self, batches: Sequence[Batch]
    ) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        """Per batch the tensors that the factor multiplies, plain, and as the parameters hold them
        (for norms); a momentum has taken in the gradient.
        """
        directions, raws = [], []
        for batch in batches:
            if self._averages_first(batch):
                memory = self._states(batch, "momentum")
                for m, g in blocks(memory, batch.grads, single=batch.single):
                    average_(m, batch.scaled(g), batch.group["momentum"], batch.sign)
                directions.append(memory)
                raws.append(self._raw_states(batch, "momentum"))
            else:
                directions.append(batch.grads)
                raws.append(self._raw_grads(batch))
        return directions, raws

    def _average_and_step(self, batch: Batch, gradients: list[Tensor], factor: Tensor) -> None:
        """m ← β·m + (1−β)·factor·g, then x ← x − η·m."""
        beta, memory = batch.group["momentum"], self._states(batch, "momentum")
        for c, (m, g) in _with_factor(factor, memory, gradients, single=batch.single):
            average_(m, torch._foreach_mul([widen(t) for t in g], c), beta, batch.sign)
        for p, m in blocks(batch.params, memory, single=batch.single):
            descend_(p, torch._foreach_mul(m, 1.0), batch.lr, batch.shrink)

    def _scaled_step(self, batch: Batch, direction: list[Tensor], factor: Tensor) -> Tensor:
        """x ← x − η·factor·d for a momentum or a gradient d; returns η·factor."""
        # Momentum has the sign already; a bare gradient gets it here, so that nothing is copied
        # to be negated.
        sign = 1.0 if batch.group["momentum"] else batch.sign
        lr = batch.lr
        scale = factor * (lr.to(factor.device) if isinstance(lr, Tensor) else lr)
        for c, (p, d) in _with_factor(scale, batch.params, direction, single=batch.single):
            updates = torch._foreach_mul([widen(t) for t in d], c if sign > 0 else -c)
            descend_(p, updates, 1.0, batch.shrink)
        return scale

    def _all_norms(
        self, batches: Sequence[Batch], raws: list[list[Tensor]]
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Per batch the norm that counts and its own norm, and the norm of all; with ZeRO all
        processes take part with every group, also those that hold none of it.
        """
        if self._everyone is None:
            return scoped_norms(raws, self._scope)
        raws_by_group = {id(batch.group): raw for batch, raw in zip(batches, raws)}
        raws_of_all_groups = [raws_by_group.get(id(group), []) for group in self.param_groups]
        if self._scope == "tensor":
            return scoped_norms(raws, self._scope, self._everyone)
        norms, own_norms, total = scoped_norms(raws_of_all_groups, self._scope, self._everyone)
        held_groups = [i for i, group in enumerate(self.param_groups) if id(group) in raws_by_group]
        return [norms[i] for i in held_groups], [own_norms[i] for i in held_groups], total


def _with_factor(
    factor: Tensor, *lists: Sequence[Tensor], single: bool
) -> Iterator[tuple[Tensor, tuple[list[Tensor], ...]]]:
    """Blocks together with their factor in the block's dtype: one factor for all, or one per
    tensor.
    """
    if factor.dim() == 0:
        factors_and_blocks = ((factor, block) for block in blocks(*lists, single=single))
    else:
        factors_and_blocks = (
            (c, block)
            for c, *row in zip(factor, *lists)
            for block in blocks(*([t] for t in row), single=single)
        )
    for c, block in factors_and_blocks:
        first = block[0][0]
        # The dtype of at least float32, from no entry of the tensor where it has axes.
        dtype = widen(first[:0] if first.dim() else first).dtype
        yield c.to(first.device, dtype), block


class CoordinateOptimizer(RuleOptimizer):
    """A rule that treats every coordinate by itself. Not for direct use."""

    _joint = False
    _reports_norm = True
    #: Under which name the share of clipped coordinates stands in the report.
    _counts_as = "coordinates"

    @contextmanager
    def _counting(self, batches: list[Batch]) -> Iterator[Callable[[list[Tensor], Tensor], None]]:
        """Give a function that takes a block's mask of clipped entries and the norm of its update;
        at the end the share of clipped entries and the whole update's norm go to the report, if it
        was called.
        """
        counts: list[Tensor] = []
        update_norms: list[Tensor] = []

        def count(clipped: list[Tensor], length: Tensor) -> None:
            counts.append(torch.stack([c.sum() for c in clipped]).sum())
            update_norms.append(length)

        yield count
        if counts:
            device = counts[0].device
            total = sum(p.numel() for batch in batches for p in batch.params)
            share: Any = torch.stack([c.to(device) for c in counts]).sum().double() / total
            update = robust_norm([n.to(device) for n in update_norms], wide=True)
            self._note(update=update, **{self._counts_as: share})
