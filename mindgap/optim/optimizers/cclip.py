"""CClip: clip every coordinate at its own threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mindgap.base.check import between, check_call, fail, one_of, positive
from mindgap.base.tensors import blocks, cut, placed, robust_norm, widen
from mindgap.optim.families import CoordinateOptimizer
from mindgap.optim.optimizer import Batch, Options
from mindgap.optim.settings import ORDERS, Order, check_common
from mindgap.rules.fused.plan import FusedRecord
from mindgap.rules.schedule import value_at
from mindgap.rules.steps import average_, clip_coordinates, descend_, follow_median_

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: With ``tau="auto"`` the threshold is this multiple of the running median of |g|: the 0.9 quantile
#: of a normal law.
MEDIANS_PER_THRESHOLD = 2.44
#: Step of the running median, in logarithms, after the first steps.
MEDIAN_STEP = 0.05
#: Entries that are compared with their threshold at once.
ENTRIES_AT_ONCE = 2**20


class CClip(CoordinateOptimizer):
    """Gradient descent with coordinate-wise clipping, with or without momentum.

    Symbols: η ``lr``, τ_k ``tau``, β₁ ``beta``, k the step's number, from 1.

    The update (``clip="gradient"``), element by element::

        m_k ← β₁·m_{k−1} + (1−β₁)·min{τ_k/|g_k|, 1}·g_k
        x_k ← Π(x_{k−1} − η_k·m_k)

    The order that acclip prints in Alg. 1 (``clip="momentum"``) clips the average, in which a huge
    gradient stays::

        m_k ← β₁·m_{k−1} + (1−β₁)·g_k
        x_k ← Π(x_{k−1} − η_k·min{τ_k/|m_k|, 1}·m_k)

    Args:
        params: parameters, or groups of them with their own ``lr``, ``tau``, ``beta``,
            ``weight_decay``, ``maximize``.
        lr: step size, a number or a tensor with one element.
        tau: threshold in the unit of a gradient entry: a number; for a group, a list with one
            tensor (or number) per parameter, of the parameter's shape; a dict from parameter to
            such; a function of k that returns a number or such a list (a function is not kept in
            ``state_dict``); or ``"auto"``: 2.44 times the running median of |g| in each coordinate,
            zeros left out (for a normal law its 0.9 quantile). The median costs one state per
            parameter. It moves by 2.5 % per step, whatever the size of a spike; for a normal law
            its standard deviation is 12 % and its bias below 2 %.
        beta: momentum in [0, 1); schedulers find it in the groups as ``momentum``.
        clip: what is clipped, ``"gradient"`` or ``"momentum"``.
        weight_decay: decoupled: x is also multiplied by 1 − η·w, outside the clipping.
        track: count clipped coordinates and take the update's norm at every step, for ``report()``;
            else coordinates are counted at some steps (see ``Report.clipped``).
        options: see ``mindgap.optim.optimizer.Options``.

    Example:
        >>> x = torch.tensor([3.0, -0.5], requires_grad=True)
        >>> optimizer = CClip([x], lr=1.0, tau=1.0)
        >>> (x.square().sum() / 2).backward()
        >>> optimizer.step()
        >>> x.detach(), optimizer.report().clipped
        (tensor([2., 0.]), 0.5)

    Source: acclip, Alg. 1 with (CClip); thesis, 4.5.1.

    Differs from the paper: An infinite entry is clipped to ±τ, the limit of the formula.
    """

    _counts_as = "share"
    _clips = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        tau: Any,
        *,
        beta: float = 0.0,
        clip: Order = "gradient",
        weight_decay: float = 0.0,
        track: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self._clip = one_of("clip", clip, ORDERS)
        settings = {"lr": lr, "tau": tau, "momentum": beta, "weight_decay": weight_decay}
        super().__init__(params, settings, track=track, **options)

    _state_names = ("momentum", "median")

    def _used_states(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The momentum, unless its weight is 0, and the running medians that ``tau="auto"`` follows
        (no other τ is a text).
        """
        momentum = ("momentum",) if group["momentum"] else ()
        return (*momentum, "median") if isinstance(group["tau"], str) else momentum

    def _check_group(self, group: dict[str, Any]) -> None:
        """Check the settings of a group. Thresholds that are given per parameter (a list, a
        mapping, a tensor) are replaced in the group by a list with one entry per parameter.
        """
        check_common(group)
        between("beta", group["momentum"], 0, 1, ends="[)")
        if isinstance(group["tau"], str) and group["tau"] == "auto":
            if self._clip == "momentum":
                fail("tau", "must not be 'auto' with clip='momentum'", group["tau"])
        elif callable(group["tau"]):
            check_call("tau", group["tau"], "a function of the number of the step", 1)
        else:
            group["tau"] = aligned_thresholds(group["tau"], group["params"])

    def fused_record(self, group: dict[str, Any]) -> FusedRecord:
        """What the fused engine needs to know of a group for its rule "coordinate", whose threshold
        must be one number or ``"auto"``.
        """
        if self._track:
            return FusedRecord(refusal="track=True counts coordinates")
        auto, beta = isinstance(group["tau"], str), group["momentum"]  # "auto" is the only text
        if not auto and not isinstance(group["tau"], (int, float)):
            return FusedRecord(refusal="tau is not a number")
        numbers = {
            "beta": beta,
            "level": MEDIANS_PER_THRESHOLD if auto else group["tau"],
            "order": self._clip,
        }
        if auto:
            half = max(MEDIAN_STEP, 1.0 / (group["k"] + 1)) / 2.0
            # Factors on a running median that is below or above |g|.
            numbers.update(up=math.exp(half), down=math.exp(-half))
        return FusedRecord.of("coordinate", group, numbers, states=self._used_states(group))

    def _update(self, batches: list[Batch]) -> None:
        """Move the parameters by one step, in place: x ← (1 − η·w)·x − η·m, where m averages the
        gradients clipped at τ, or with ``clip="momentum"`` is the average clipped at τ.

        The average (where β₁ > 0) and with ``tau="auto"`` the running medians are changed in place.
        With ``track`` the share of clipped coordinates goes to the report.
        """
        taus = [self._thresholds(batch) for batch in batches]
        with self._counting(batches) as count:
            for batch, tau in zip(batches, taus):
                beta = batch.group["momentum"]
                memory = self._states(batch, "momentum") if beta else batch.grads
                # A bare gradient is clipped symmetrically, so its sign may be put in afterwards.
                lr = batch.lr if beta else batch.sign * batch.lr
                lists = [batch.params, batch.grads, memory]
                if isinstance(tau, list):  # one tensor per parameter; with "auto" its medians
                    lists.append(tau)
                for params, grads, momenta, *threshold_block in blocks(*lists, single=batch.single):
                    thresholds = threshold_block[0] if threshold_block else tau
                    if beta and self._clip == "momentum":
                        average_(momenta, batch.scaled(grads), beta, batch.sign)
                        source = [widen(s) for s in momenta]
                    else:
                        source = batch.scaled(grads)
                    if self._is_auto(batch):
                        medians = thresholds
                        multiples = torch._foreach_mul(medians, MEDIANS_PER_THRESHOLD)
                        # A coordinate without a median has none to compare with: its first gradient
                        # passes.
                        thresholds = [torch.where(t == 0, torch.inf, t) for t in multiples]
                        follow_median_(medians, source, self._median_step(batch))
                    clipped = updates = clip_coordinates(source, thresholds)
                    if beta and self._clip == "gradient":
                        average_(momenta, clipped, beta, batch.sign)
                        # Times 1 is a copy: ``descend_`` may overwrite what it is given.
                        updates = list(torch._foreach_mul(momenta, 1.0))
                    if self._track:
                        length = robust_norm(updates, wide=True) * batch.lr
                        count([a != b for a, b in zip(clipped, source)], length)
                    descend_(params, updates, lr, batch.shrink)

    @torch._disable_dynamo
    def _sample_share(self) -> None:
        """Give the report the share of clipped coordinates, at the steps of ``Tally.wants_share``.

        It runs after the step and compares gradients or momenta with the thresholds once more,
        because kernels that count would be slower at every step. It does nothing with ``track``,
        which counts every step, and nothing while a CUDA graph is captured.
        """
        if self._track or not self.tally.wants_share():
            return
        batches = [batch for group in self.param_groups if (batch := self._collect(group)).owners]
        devices = {p.device for batch in batches for p in batch.owners}
        on_cuda = any(device.type == "cuda" for device in devices)
        if on_cuda and torch.cuda.is_current_stream_capturing():
            return
        clipped_counts, size = [], 0
        for batch in batches:
            batch.k = batch.group["k"]
            clips_momentum = self._clip == "momentum" and batch.group["momentum"]
            sources = self._states(batch, "momentum") if clips_momentum else batch.grads
            tau = self._thresholds(batch)
            taus = tau if isinstance(tau, list) else [tau] * len(sources)
            for source, threshold in zip(sources, taus):
                # A part at a time: the copies of a large table of word vectors would take 500 MiB.
                parts = cut(source, ENTRIES_AT_ONCE)
                levels = [threshold] * len(parts)
                if isinstance(threshold, Tensor) and threshold.dim() > 0:
                    levels = cut(threshold, ENTRIES_AT_ONCE)
                for part, level in zip(parts, levels, strict=True):
                    if self._is_auto(batch):
                        # The threshold of before the step, which raised the median where |g| is
                        # above it; 0 where no median was known.
                        half_step = max(MEDIAN_STEP, 1.0 / batch.k) / 2.0
                        level = level * (MEDIANS_PER_THRESHOLD / math.exp(half_step))
                    clipped_counts.append((part.abs() > level).sum())
                size += source.numel()
        if size:
            first = clipped_counts[0]
            self.tally.sample(
                torch.stack([c.to(first.device) for c in clipped_counts]).sum().double() / size
            )

    @staticmethod
    @torch._disable_dynamo
    def _median_step(batch: Batch) -> float | Tensor:
        """How far the logarithms of the running medians move: 1/k at the first steps k, then
        ``MEDIAN_STEP``. A number, or a 0-dim float64 tensor under torch.compile, which would
        compile a new graph per number.
        """
        step = max(MEDIAN_STEP, 1.0 / batch.k)
        return torch.tensor(step, dtype=torch.float64) if batch.compiled else step

    @staticmethod
    def _is_auto(batch: Batch) -> bool:
        """Whether the thresholds follow running medians."""
        return isinstance(batch.group["tau"], str)

    def _thresholds(self, batch: Batch) -> Any:
        """The thresholds of this step.

        Returns:
            A number or a 0-dim tensor for all coordinates, or a list with one tensor per parameter
            of the batch, of the parameter's shape. With ``tau="auto"`` that list holds the running
            medians, still without the factor ``MEDIANS_PER_THRESHOLD``.
        """
        if self._is_auto(batch):
            return self._states(batch, "median")
        tau = value_at(batch.group["tau"], batch.k)
        if callable(batch.group["tau"]):
            tau = aligned_thresholds(tau, batch.group["params"], values=False)
        if not isinstance(tau, list):
            return tau
        index_of = {id(p): i for i, p in enumerate(batch.group["params"])}
        return [self._expanded(tau[index_of[id(p)]], p) for p in batch.owners]

    def _expanded(self, tau: float | Tensor, p: Tensor) -> Tensor:
        """A threshold as a real tensor of the shape of parameter p, on its device: one threshold
        for both parts of a complex entry.
        """
        plain_p = self._plain(p)
        if not isinstance(tau, Tensor):
            tau = torch.tensor(tau, dtype=torch.float64)
        if tau.dim():
            tau = self._plain(placed(tau, p))
            tau = tau.unsqueeze(-1) if p.is_complex() else tau
        return tau.to(plain_p.device).expand(plain_p.shape)


def aligned_thresholds(tau: Any, params: list[Tensor], *, values: bool = True) -> Any:
    """Thresholds in one form: a number, a 0-dim tensor, or a list with one entry per parameter.

    Args:
        tau: as the user gave them: a number, a tensor, a list with one entry per parameter, or a
            mapping from parameter to entry.
        params: the group's parameters.
        values: also check that the entries of tensors are positive, which waits for a device.

    Returns:
        A number or a 0-dim tensor for all coordinates, or a list in the order of ``params`` of such
        entries or tensors of the parameter's shape.

    Example:
        >>> aligned_thresholds(torch.ones(2), [torch.zeros(3)])
        Traceback (most recent call last):
        mindgap.base.check.RuleError: tau must have the shape of its parameter, (3,), got (2,)
    """
    one_each = f"must have an entry for each of the group's {len(params)} parameters"
    if isinstance(tau, Tensor) and tau.dim():
        if len(params) != 1:
            fail(
                "tau",
                f"must be a list with one tensor per parameter ({len(params)} of them)",
                tuple(tau.shape),
            )
        tau = [tau]
    if isinstance(tau, Mapping):
        by_id = {id(key): value for key, value in tau.items()}
        if set(by_id) != {id(p) for p in params}:
            fail("tau", one_each, f"{len(tau)} entries")
        tau = [by_id[id(p)] for p in params]
    if isinstance(tau, (list, tuple)):
        if len(tau) != len(params):
            fail("tau", one_each, f"{len(tau)} entries")
        for entry, p in zip(tau, params):
            if isinstance(entry, Tensor) and entry.dim() and entry.shape != p.shape:
                fail(
                    "tau",
                    f"must have the shape of its parameter, {tuple(p.shape)}",
                    tuple(entry.shape),
                )
            _check_threshold(entry, values)
        return list(tau)
    _check_threshold(tau, values)
    return tau


def _check_threshold(entry: Any, values: bool) -> None:
    """Check one threshold: real and positive; ``values`` also reads the entries of a tensor."""
    if not isinstance(entry, Tensor):
        positive("tau", entry, finite=False)
    elif not entry.is_floating_point():
        fail("tau", "must be real numbers", entry.dtype)
    elif values and entry.numel() and not bool((entry > 0).all()):
        fail("tau", "must be positive in every coordinate", float(entry.min()))
