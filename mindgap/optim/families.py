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
        """Check the settings that these rules share, and hand the rest on.

        Args:
            settings: the rule's own settings of a group, by name.
            beta: weight of the old momentum, in [0, 1).
            order: what the factor multiplies: the ``"gradient"`` or the ``"momentum"``.
            scope: over which parameters a norm is taken (``SCOPES``).
            options: see ``mindgap.optim.optimizer.Options``.
        """
        self._scope = one_of("scope", scope, SCOPES)
        self._clip = order
        super().__init__(params, {**settings, "momentum": beta}, **options)

    _state_names = ("momentum",)

    def _used_states(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The momentum, unless its weight β is 0."""
        return ("momentum",) if group["momentum"] else ()

    def _check_group(self, group: dict[str, Any]) -> None:
        """Check the settings that these rules share; β stands in the group as ``momentum``."""
        check_common(group)
        between("beta", group["momentum"], 0, 1, ends="[)")

    def _scaled_record(
        self, group: dict[str, Any], kind: str, level: Any, **fields: Any
    ) -> FusedRecord:
        """What the fused engine needs to know of a group for its rule "scaled".

        Args:
            group: a parameter group with its settings.
            kind: what the norm does: ``"clip"`` or ``"normalize"``.
            level: the threshold τ to clip at, or the damping that is added to the norm.
            fields: further fields of the record.
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
        """Make one step in place: x ← x − η·c(‖m‖)·m with the factor on the momentum, or with
        c(‖g‖)·g averaged into the momentum m first. The report gets the norm of the direction and,
        where it is known, that of the step.

        Args:
            batches: all batches of this step, one per parameter group.
            coefficient: c, a function of a norm and of a batch's number.
            numbers: that number (the threshold τ, or the damping) for each batch.

        Returns:
            Each batch's pair (norm, factor c), both 0-dim or with one entry per tensor.
        """
        directions, raws = self._averaged_directions(batches)
        norms, own_norms, total = self._all_norms(batches, raws)
        # ``batch.scale`` is the factor of ``spike_guard``. A momentum consists of gradients that
        # had it already; other directions get it here.
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
        # The step's norm is known where every batch's step is a factor times what the norm was of.
        if len(scales) == len(batches):
            self._note(update=list(zip(scales, own_norms)))
        return list(zip(norms, factors))

    def _averages_first(self, batch: Batch) -> bool:
        """Whether the factor multiplies the momentum, not the gradient that enters it."""
        return bool(batch.group["momentum"]) and self._clip == "momentum"

    def _averaged_directions(
        self, batches: Sequence[Batch]
    ) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        """The tensors that the factor multiplies: momenta, which first take in the gradient in
        place, or the gradients themselves.

        Returns:
            Two forms of them, each with one list of tensors per batch: as plain real tensors of
            this process, and as the parameters hold them (complex, or DTensors), for norms.
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
        """m ← β·m + (1−β)·factor·g, then x ← x − η·m, in place.

        Args:
            batch: holds the parameters x and the settings η and β.
            gradients: g, one tensor per parameter.
            factor: 0-dim, or one entry per parameter.
        """
        beta, memory = batch.group["momentum"], self._states(batch, "momentum")
        for c, (m, g) in _with_factor(factor, memory, gradients, single=batch.single):
            average_(m, torch._foreach_mul([widen(t) for t in g], c), beta, batch.sign)
        for p, m in blocks(batch.params, memory, single=batch.single):
            # Times 1 is a copy: ``descend_`` may overwrite what it is given.
            descend_(p, torch._foreach_mul(m, 1.0), batch.lr, batch.shrink)

    def _scaled_step(self, batch: Batch, direction: list[Tensor], factor: Tensor) -> Tensor:
        """x ← x − η·factor·d, in place; returns η·factor.

        Args:
            batch: holds the parameters x and the step size η.
            direction: d, momenta or gradients, one tensor per parameter; only read.
            factor: 0-dim, or one entry per parameter.
        """
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
        """Norms of the directions. With ZeRO, where whole tensors are spread over processes, this
        is a collective call.

        Args:
            batches: the groups of which this process has gradients.
            raws: the directions of each batch, as the parameters hold them.

        Returns:
            Per batch the norm over its scope (0-dim, or one entry per tensor), per batch the norm
            of its own directions, and the norm of all directions.
        """
        if self._everyone is None:
            return scoped_norms(raws, self._scope)
        raws_by_group = {id(batch.group): raw for batch, raw in zip(batches, raws)}
        raws_of_all_groups = [raws_by_group.get(id(group), []) for group in self.param_groups]
        if self._scope == "tensor":
            return scoped_norms(raws, self._scope, self._everyone)
        # All processes must take part with every group, also those that hold none of it.
        norms, own_norms, total = scoped_norms(raws_of_all_groups, self._scope, self._everyone)
        held_groups = [i for i, group in enumerate(self.param_groups) if id(group) in raws_by_group]
        return [norms[i] for i in held_groups], [own_norms[i] for i in held_groups], total


def _with_factor(
    factor: Tensor, *lists: Sequence[Tensor], single: bool
) -> Iterator[tuple[Tensor, tuple[list[Tensor], ...]]]:
    """Walk through aligned lists of tensors in blocks, each with the factor that belongs to it.

    Args:
        factor: 0-dim for all tensors, or with one entry per tensor of a list.
        lists: lists of equal length; see ``mindgap.base.tensors.blocks``.
        single: one tensor per block, for the plain loop.

    Yields:
        Pairs (factor, block). The factor is 0-dim, on the device of the block's first list and in
        its dtype, but float32 for 16-bit tensors. A block has one list of tensors per given list.
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
        """Count clipped entries while the body runs.

        Yields:
            A function for the body to call once per block, with the block's masks of clipped
            entries (one boolean tensor per parameter) and the 0-dim norm of its update. If it was
            called, the share of clipped entries and the norm of the whole update go to the report
            afterwards.
        """
        counts: list[Tensor] = []
        update_norms: list[Tensor] = []

        def count(clipped: list[Tensor], update_norm: Tensor) -> None:
            """Keep how many entries of one block were clipped, and the norm of its update."""
            counts.append(torch.stack([mask.sum() for mask in clipped]).sum())
            update_norms.append(update_norm)

        yield count
        if counts:
            device = counts[0].device
            total = sum(p.numel() for batch in batches for p in batch.params)
            share: Any = torch.stack([c.to(device) for c in counts]).sum().double() / total
            update = robust_norm([n.to(device) for n in update_norms], wide=True)
            self._note(update=update, **{self._counts_as: share})
