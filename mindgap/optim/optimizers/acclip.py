"""ACClip: clip every coordinate of the momentum at a running estimate of its gradient's moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mindgap.base.check import between, fail, non_negative, one_of
from mindgap.base.tensors import blocks, robust_norm, widen
from mindgap.optim.optimizer import Batch, RuleOptimizer, check_common
from mindgap.rules.clip import clip_adaptive
from mindgap.rules.descend import descend_
from mindgap.rules.fused.plan import FusedRecord
from mindgap.rules.moments import average_, average_power_


class ACClip(RuleOptimizer):
    """Adaptive coordinate-wise clipping.

    Symbols: η ``lr``, (β₁, β₂) ``betas``, α ``alpha``, ε ``eps``.

    The update (``form="algorithm"``), element by element::

        m_k   ← β₁·m_{k−1} + (1−β₁)·g_k
        τ_k^α ← β₂·τ_{k−1}^α + (1−β₂)·|g_k|^α
        ĝ_k   ← min{τ_k/(|m_k|+ε), 1}·m_k
        x_k   ← Π(x_{k−1} − η_k·ĝ_k)

    With ``form="normalized"`` the last line is x_k ← Π(x_{k−1} − η_k·ĝ_k/(τ_k+ε)): the step of section 3.1 of acclip,
    η_k inversely proportional to the moment, which does not scale with the gradient. The published BERT setting
    (lr 1e-4) has the size of that form; Algorithm 1's steps are proportional to the gradient.

    Args:
        params: parameters, or groups of them with their own settings.
        lr: step size, a number or a 0-dim tensor.
        betas: weights of the two averages, each in [0, 1).
        alpha: order of the moment, in (0, 2]; 1 is the paper's choice.
        eps: added to |m|, zero or positive, in the unit of a gradient entry.
        weight_decay: decoupled (as in BERT's training): x is also multiplied by 1 − η·w, outside the clipping.
        form: ``"algorithm"`` (Algorithm 1 to the letter) or ``"normalized"``.
        bias_correction: divide m by 1−β₁^k and τ^α by 1−β₂^k before clipping (not in the paper), k counted for each
            parameter.
        project: projection onto a set after each step, such as ``Ball`` or ``Box``.
        nonfinite: ``"propagate"``, ``"skip"`` or ``"raise"``; see ``RuleOptimizer``.
        track: count clipped coordinates and norms at every step for ``report()``.
        maximize: ascend.
        foreach: False for the plain loop over tensors.
        fused: one pass over memory; None picks it where it can be used.

    Raises:
        RuleError: names the argument, the rule and the value.

    Example:
        >>> x = torch.tensor([1.0], requires_grad=True)
        >>> optimizer = ACClip([x], lr=1.0, weight_decay=0.0, eps=0.0)
        >>> (2 * x).sum().backward()
        >>> optimizer.step()                # τ = 0.01·2 is below m = 0.1·2, so the step is 0.02
        >>> x.detach()
        tensor([0.9800])

    Source:
        thesis, Alg. 1 in 4.5.2; acclip, Alg. 1 with (ACClip), and 3.1 for the normalised form.

    Differs from the paper:
        Weight decay is decoupled; the paper names its value and not its place.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        alpha: float = 1.0,
        eps: float = 1e-5,
        weight_decay: float = 1e-5,
        *,
        form: str = "algorithm",
        bias_correction: bool = False,
        project: Callable[[Sequence[Tensor]], None] | None = None,
        nonfinite: str = "propagate",
        track: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "alpha": alpha, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            params,
            {**settings, "form": form, "bias_correction": bias_correction},
            maximize=maximize,
            foreach=foreach,
            fused=fused,
            nonfinite=nonfinite,
            project=project,
            track=track,
        )

    def _check_group(self, group: dict[str, Any]) -> None:
        check_common(group)
        if not isinstance(group["betas"], (tuple, list)) or len(group["betas"]) != 2:
            fail("betas", "must be a pair of numbers", group["betas"])
        for i, beta in enumerate(group["betas"], start=1):
            between(f"betas[{i - 1}]", beta, 0, 1, ends="[)")
        between("alpha", group["alpha"], 0, 2, ends="(]")
        non_negative("eps", group["eps"])
        one_of("form", group["form"], ("algorithm", "normalized"))

    def fused_record(self, group: dict[str, Any]) -> FusedRecord:
        if self._track:
            return FusedRecord(refusal="track=True counts coordinates")
        if group["bias_correction"]:
            return FusedRecord(refusal="bias_correction counts steps for each parameter")
        beta1, beta2 = group["betas"]
        numbers = {"beta": beta1, "beta2": beta2, **{name: group[name] for name in ("alpha", "eps", "form")}}
        return FusedRecord.of("adaptive", group, numbers, states=("momentum", "moment"))

    def _update(self, batches: list[Batch]) -> None:
        counts: list[Tensor] = []
        seen: list[Tensor] = []
        moved: list[Tensor] = []
        for batch in batches:
            group, lr = batch.group, batch.group["lr"]
            (beta1, beta2), alpha, eps = group["betas"], group["alpha"], group["eps"]
            shrink = lr * group["weight_decay"] if group["weight_decay"] else 0.0
            normalized = group["form"] == "normalized"
            lists = [batch.params, batch.grads, self._states(batch, "momentum"), self._states(batch, "moment")]
            for k, (p, g, m, v) in self._blocks(batch, lists):
                average_(m, g, beta1, batch.sign)
                average_power_(v, [widen(t) for t in g], beta2, alpha)
                if k:
                    m = torch._foreach_div(m, 1.0 - beta1**k)
                    v = torch._foreach_div(v, 1.0 - beta2**k)
                clipped, factors = clip_adaptive(m, v, alpha, eps, normalized=normalized)
                if self._track:
                    counts.append(torch.stack([(f < 1).sum() for f in factors]).sum())
                    seen.append(robust_norm(m, wide=True))
                    moved.append(robust_norm(clipped, wide=True) * lr)
                del factors
                descend_(p, clipped, lr, shrink)
        if self._track:
            self._note_coordinates(batches, counts, seen, moved)

    def _blocks(self, batch: Batch, lists: list[list[Tensor]]) -> Any:
        """Blocks with the step count of the bias correction, 0 without it; with it one parameter at a time."""
        if not batch.group["bias_correction"]:
            for block in blocks(*lists, single=batch.single):
                yield 0, block
            return
        for owner, *row in zip(batch.owners, *lists):
            state = self.state[owner]
            state["step"] = state.get("step", torch.tensor(0.0)) + 1.0
            for block in blocks(*([t] for t in row)):
                yield float(state["step"]), block
