"""CClip: clip every coordinate at its own threshold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mindgap.base.check import between, fail, one_of, positive
from mindgap.base.tensors import blocks, placed, robust_norm, widen
from mindgap.optim.optimizer import Batch, RuleOptimizer, check_common
from mindgap.rules.clip import clip_coordinates
from mindgap.rules.descend import descend_
from mindgap.rules.fused.plan import FusedRecord
from mindgap.rules.moments import average_
from mindgap.rules.schedule import value_at


class CClip(RuleOptimizer):
    """Gradient descent with coordinate-wise clipping, with or without momentum.

    Symbols: η ``lr``, τ_k ``tau``, β₁ ``beta``, k the step's number, from 1.

    The update (``clip="momentum"``; Alg. 1 of acclip), element by element::

        m_k ← β₁·m_{k−1} + (1−β₁)·g_k
        ĝ_k ← min{τ_k/|m_k|, 1}·m_k
        x_k ← Π(x_{k−1} − η_k·ĝ_k)

    Args:
        params: parameters, or groups of them with their own ``lr``, ``tau``, ``beta``, ``weight_decay``, ``maximize``.
        lr: step size, a number or a 0-dim tensor.
        tau: threshold in the unit of a gradient entry: a number; for a group, a list with one tensor (or number) a
            parameter, of the parameter's shape; a dict from parameter to such; or a function of k that returns a
            number or such a list (a function is not kept in ``state_dict``).
        beta: momentum in [0, 1).
        clip: ``"momentum"`` (Alg. 1), or ``"gradient"``: clip g_k first and average the clipped gradients.
        weight_decay: decoupled: x is also multiplied by 1 − η·w, outside the clipping.
        project: projection onto a set after each step, such as ``Ball`` or ``Box``.
        nonfinite: ``"propagate"``, ``"skip"`` or ``"raise"``; see ``RuleOptimizer``.
        track: count clipped coordinates and norms at every step for ``report()``.
        maximize: ascend.
        foreach: False for the plain loop over tensors.
        fused: one pass over memory; None picks it where it can be used.

    Raises:
        RuleError: names the argument, the rule and the value.

    Example:
        >>> x = torch.tensor([3.0, -0.5], requires_grad=True)
        >>> optimizer = CClip([x], lr=1.0, tau=1.0, track=True)
        >>> (x.square().sum() / 2).backward()
        >>> optimizer.step()
        >>> x.detach(), optimizer.report().clipped
        (tensor([2., 0.]), 0.5)

    Source:
        acclip, Alg. 1 with (CClip); thesis, 4.5.1.

    Differs from the paper:
        An infinite entry is clipped to ±τ, the limit of the formula.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        tau: Any,
        *,
        beta: float = 0.0,
        clip: str = "momentum",
        weight_decay: float = 0.0,
        project: Callable[[Sequence[Tensor]], None] | None = None,
        nonfinite: str = "propagate",
        track: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        self._clip = one_of("clip", clip, ("momentum", "gradient"))
        super().__init__(
            params,
            {"lr": lr, "tau": tau, "beta": beta, "weight_decay": weight_decay},
            maximize=maximize,
            foreach=foreach,
            fused=fused,
            nonfinite=nonfinite,
            project=project,
            track=track,
        )

    def _check_group(self, group: dict[str, Any]) -> None:
        check_common(group)
        between("beta", group["beta"], 0, 1, ends="[)")
        if not callable(group["tau"]):
            group["tau"] = aligned_thresholds(group["tau"], group["params"])

    def fused_record(self, group: dict[str, Any]) -> FusedRecord:
        if self._track:
            return FusedRecord(refusal="track=True counts coordinates")
        if not isinstance(group["tau"], (int, float)):
            return FusedRecord(refusal="tau is not a number")
        numbers = {"beta": group["beta"], "level": group["tau"], "order": self._clip}
        return FusedRecord.of("coordinate", group, numbers, states=("momentum",) if group["beta"] else ())

    def _update(self, batches: list[Batch]) -> None:
        counts: list[Tensor] = []
        seen: list[Tensor] = []
        moved: list[Tensor] = []
        for batch in batches:
            group, beta, lr = batch.group, batch.group["beta"], batch.group["lr"]
            shrink = lr * group["weight_decay"] if group["weight_decay"] else 0.0
            memory = self._states(batch, "momentum") if beta else batch.grads
            # A bare gradient is clipped symmetrically, so its sign may be put in afterwards.
            sign = 1.0 if beta else batch.sign
            tau = self._thresholds(batch)
            lists = [batch.params, batch.grads, memory] + ([tau] if isinstance(tau, list) else [])
            for p, g, m, *rest in blocks(*lists, single=batch.single):
                t = rest[0] if rest else tau
                if beta and self._clip == "momentum":
                    average_(m, g, beta, batch.sign)
                source = [widen(s) for s in (g if not beta or self._clip == "gradient" else m)]
                clipped = clip_coordinates(source, t)
                if self._track:
                    counts.append(torch.stack([(c != s).sum() for c, s in zip(clipped, source)]).sum())
                    seen.append(robust_norm(source, wide=True))
                if beta and self._clip == "gradient":
                    average_(m, clipped, beta, batch.sign)
                    clipped = list(torch._foreach_mul(m, 1.0))
                if self._track:
                    moved.append(robust_norm(clipped, wide=True) * lr)
                descend_(p, clipped, sign * lr, shrink)
        if self._track:
            self._note_coordinates(batches, counts, seen, moved)

    def _thresholds(self, batch: Batch) -> Any:
        """A number or 0-dim tensor, or one tensor of the parameter's shape for each of the batch's parameters."""
        tau = value_at(batch.group["tau"], batch.k)
        if callable(batch.group["tau"]):
            tau = aligned_thresholds(tau, batch.group["params"], values=False)
        if not isinstance(tau, list):
            return tau
        place = {id(p): i for i, p in enumerate(batch.group["params"])}
        return [self._expanded(tau[place[id(p)]], p) for p in batch.owners]

    def _expanded(self, tau: float | Tensor, p: Tensor) -> Tensor:
        plain = self._plain(p)
        if not isinstance(tau, Tensor):
            tau = torch.tensor(tau, dtype=torch.float64)
        if tau.dim():
            tau = self._plain(placed(tau, p))
            tau = tau.unsqueeze(-1) if p.is_complex() else tau
        return tau.to(plain.device).expand(plain.shape)


def aligned_thresholds(tau: Any, params: list[Tensor], *, values: bool = True) -> Any:
    """Thresholds in one form: a number, a 0-dim tensor, or a list with one entry a parameter.

    Args:
        tau: as the user gave them.
        params: the group's parameters.
        values: also look whether all thresholds are positive (reads tensors).

    Example:
        >>> aligned_thresholds(torch.ones(2), [torch.zeros(3)])
        Traceback (most recent call last):
        mindgap.base.check.RuleError: tau must have the shape of its parameter, (3,), got (2,)
    """
    if isinstance(tau, Tensor) and tau.dim():
        if len(params) != 1:
            fail("tau", f"must be a list with one tensor a parameter ({len(params)} of them)", tuple(tau.shape))
        tau = [tau]
    if isinstance(tau, Mapping):
        by_id = {id(key): value for key, value in tau.items()}
        if set(by_id) != {id(p) for p in params}:
            fail("tau", f"must have an entry for each of the group's {len(params)} parameters", f"{len(tau)} entries")
        tau = [by_id[id(p)] for p in params]
    if isinstance(tau, (list, tuple)):
        if len(tau) != len(params):
            fail("tau", f"must have an entry for each of the group's {len(params)} parameters", f"{len(tau)} entries")
        for entry, p in zip(tau, params):
            if isinstance(entry, Tensor) and entry.dim() and entry.shape != p.shape:
                fail("tau", f"must have the shape of its parameter, {tuple(p.shape)}", tuple(entry.shape))
            _positive_entry(entry, values)
        return list(tau)
    _positive_entry(tau, values)
    return tau


def _positive_entry(entry: Any, values: bool) -> None:
    if not isinstance(entry, Tensor):
        positive("tau", entry, finite=False)
    elif values and entry.numel() and not bool((entry > 0).all()):
        fail("tau", "must be positive in every coordinate", float(entry.min()))
