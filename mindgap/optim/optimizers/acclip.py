"""ACClip: clip every coordinate of the momentum at a running estimate of its gradient's moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from mindgap.base.check import between, fail, non_negative, one_of, positive
from mindgap.base.tensors import blocks, robust_norm
from mindgap.optim.families import CoordinateOptimizer
from mindgap.optim.optimizer import Batch, Options
from mindgap.optim.settings import UnitClip, bias_corrected, check_betas, check_clip, check_common
from mindgap.rules.fused.plan import FusedRecord
from mindgap.rules.steps import (
    average_,
    average_power_,
    clip_adaptive,
    clip_second_moment,
    descend_,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

Form = Literal["first_moment", "second_moment", "algorithm"]
FORMS: tuple[str, ...] = get_args(Form)


class ACClip(CoordinateOptimizer):
    """Adaptive coordinate-wise clipping.

    Symbols: η ``lr``, (β₁, β₂) ``betas``, α ``alpha``, ε ``eps``, c ``factor``.

    All forms average the gradients, element by element: m_k ← β₁·m_{k−1} + (1−β₁)·g_k. Then::

        form="first_moment"    τ_k^α ← β₂·τ_{k−1}^α + (1−β₂)·|g_k|^α
                               x_k ← Π(x_{k−1} − η·min{τ_k/(|m_k|+ε), 1}·m_k/(τ_k+ε))
        form="second_moment"   d_k = ε + √(β₂·v_{k−1}),  v_k ← β₂·v_{k−1} + (1−β₂)·g_k²
                               x_k ← Π(x_{k−1} − c·η/d_k·min{d_k/(√(1−β₂)·|m_k|), 1}·m_k)
        form="algorithm"       as first_moment, with x_k ← Π(x_{k−1} − η·min{τ_k/(|m_k|+ε), 1}·m_k)

    ``"algorithm"`` is Algorithm 1 of the thesis: its steps are proportional to the gradient, so
    that lr has the scale of SGD's. ``"second_moment"`` with ``factor=2`` is section 3.1 of acclip,
    where β₁ = 0. The steps of the two moment forms do not scale with the gradient: lr has the scale
    of AdamW's.

    Both papers let the current gradient enter its own threshold and the average unclipped. Here the
    gradient's norm is clipped first (``clip="auto"``); ``clip=None`` is the papers' order.

    Args:
        params: parameters, or groups of them with their own settings.
        lr: step size, a number or a tensor with one element; None gives 1e-3, and with
            ``form="algorithm"`` an error.
        betas: weights of the two averages, each in [0, 1).
        alpha: order of the moment, in (0, 2]; 1 is the paper's choice. ``"second_moment"`` has
            order 2.
        eps: zero or positive, in the unit of a gradient entry; the paper has 1e-5.
        weight_decay: decoupled (as in BERT's training): x is also multiplied by 1 − η·w, outside
            the clipping.
        form: ``"first_moment"``, ``"second_moment"`` or ``"algorithm"``.
        factor: c, for ``"second_moment"``; the paper has 2, and 1 gives AdamW's step where nothing
            is clipped.
        bias_correction: divide the averages by 1−β^k, with k counted for each parameter (not in the
            paper). With ``"second_moment"``, whose v knows nothing at k = 1, g_1² stands for v_0.
        clip: threshold of the gradient's norm over all parameters, before anything else: ``"auto"``
            (the 0.9 quantile of the last 128 norms, see ``mindgap.optim.norms``), a number, None,
            or ``"unit"``, which divides by the norm (an experiment).
        track: count clipped coordinates and take the update's norm at every step, for ``report()``.
        options: see ``mindgap.optim.optimizer.Options``.

    Example:
        >>> x = torch.tensor([1.0], requires_grad=True)
        >>> optimizer = ACClip(
        ...     [x], lr=1.0, weight_decay=0.0, eps=0.0, form="algorithm", bias_correction=False
        ... )
        >>> (2 * x).sum().backward()
        >>> optimizer.step()  # τ = 0.01·2 is below m = 0.1·2, so the step is 0.02
        >>> x.detach()
        tensor([0.9800])

    Source: thesis, Alg. 1 in 4.5.2; acclip, Alg. 1 with (ACClip); acclip, 3.1 and thesis, 7.2.1 for
    the second moment.

    Differs from the paper:
        Weight decay is decoupled; the paper names its value and not its place. Momentum in 3.1 is
        an addition.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor | None = None,
        betas: tuple[float, float] = (0.9, 0.99),
        alpha: float = 1.0,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        form: Form = "first_moment",
        factor: float = 1.0,
        bias_correction: bool = True,
        clip: UnitClip = "auto",
        track: bool = False,
        **options: Unpack[Options],
    ) -> None:
        one_of("form", form, FORMS)
        if lr is None:
            if form == "algorithm":
                fail(
                    "lr",
                    "must be given with form='algorithm': its steps are proportional to the "
                    "gradient, so lr has the scale of SGD's (0.1 to 10 for networks), not of "
                    "AdamW's",
                    lr,
                )
            lr = 1e-3
        self._norm_clip = check_clip(clip, "unit")
        # A norm over all parameters needs the fused form for all of them or for none.
        self._joint = clip is not None
        settings = {
            "lr": lr,
            "betas": betas,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "form": form,
            "factor": factor,
            "bias_correction": bias_correction,
        }
        super().__init__(params, settings, track=track, **options)

    _state_names = ("step", "momentum", "moment")

    def _used_states(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum", "moment")

    def _counts_gradients(self, group: dict[str, Any]) -> bool:
        return group["bias_correction"]

    def _check_group(self, group: dict[str, Any]) -> None:
        """Check the settings of a group; raises ``RuleError`` for the first that is wrong."""
        check_common(group)
        check_betas(group["betas"])
        between("alpha", group["alpha"], 0, 2, ends="(]")
        non_negative("eps", group["eps"])
        one_of("form", group["form"], FORMS)
        positive("factor", group["factor"])
        one_of("bias_correction", group["bias_correction"], (False, True))

    def fused_record(self, group: dict[str, Any]) -> FusedRecord:
        """What the fused engine needs to know of a group for its rule "adaptive"; with ``track`` a
        refusal, because no kernel counts clipped coordinates.
        """
        if self._track:
            return FusedRecord(refusal="track=True counts coordinates")
        beta1, beta2 = group["betas"]
        names = ("alpha", "eps", "form", "factor")
        numbers = {"beta": beta1, "beta2": beta2, **{name: group[name] for name in names}}
        # Without a correction and without a factor on the gradient the kernels have less to do.
        numbers["bare"] = not (
            group["bias_correction"] or self._norm_clip is not None or self._spike_guard
        )
        return FusedRecord.of(
            "adaptive",
            group,
            numbers,
            states=("momentum", "moment"),
            scope=None if self._norm_clip is None else "all",
            counts=group["bias_correction"],
        )

    def _update(self, batches: list[Batch]) -> None:
        """Move the parameters by one step, in place: x ← (1 − η·w)·x − η·d with the direction d of
        ``_directions``, for which the states take in the gradients in place. With ``track`` the
        share of clipped coordinates and the norm of the step go to the report.
        """
        with self._counting(batches) as count:
            for batch in batches:
                lists = [
                    batch.params,
                    batch.grads,
                    self._states(batch, "momentum"),
                    self._states(batch, "moment"),
                ]
                if batch.group["bias_correction"]:
                    rows = self._by_count(batch, *lists)
                else:
                    # None: no count is needed, because nothing is corrected.
                    rows = ((None, block) for block in blocks(*lists, single=batch.single))
                for k, (p, g, m, v) in rows:
                    updates, clipped = self._directions(batch, k, batch.scaled(g), m, v)
                    if self._track:
                        count(clipped, robust_norm(updates, wide=True) * batch.lr)
                    descend_(p, updates, batch.lr, batch.shrink)

    def _directions(
        self, batch: Batch, k: Any, g: list[Tensor], m: list[Tensor], v: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The direction of a block's step, which is −η times it. The gradients g enter the states m
        (average) and v (average of |g|^α, or of g² in the second-moment form), in place.

        Args:
            k: how many gradients the parameters have seen; None for no bias correction.
            g: gradients in at least float32, one tensor per parameter, like m and v.

        Returns:
            The directions, and with ``track`` boolean tensors of where they were clipped (else an
            empty list).
        """
        group = batch.group
        (beta1, beta2), alpha, eps = group["betas"], group["alpha"], group["eps"]
        average_(m, g, beta1, batch.sign)
        is_second_moment = group["form"] == "second_moment"
        if is_second_moment:
            # v takes in g below; the step needs it as it was before.
            v_before = (
                _corrected_before(k, v, g, beta2) if k is not None else [t.clone() for t in v]
            )
            average_power_(v, g, beta2, 2.0)
        else:
            average_power_(v, g, beta2, alpha)
        if k is not None:
            m = bias_corrected(m, beta1, k)
            v = v if is_second_moment else bias_corrected(v, beta2, k)
        if is_second_moment:
            # Quotients m/d of before they are held inside ±1/√(1−β₂).
            updates, quotients = clip_second_moment(m, v_before, beta2, eps)
            clipped = [q.abs() > (1.0 - beta2) ** -0.5 for q in quotients] if self._track else []
            if group["factor"] != 1.0:
                torch._foreach_mul_(updates, group["factor"])
            return updates, clipped
        updates, factors = clip_adaptive(
            m, v, alpha, eps, normalized=group["form"] == "first_moment"
        )
        return updates, [f < 1 for f in factors] if self._track else []


def _corrected_before(k: Any, v: list[Tensor], g: list[Tensor], beta2: float) -> list[Tensor]:
    """The bias-corrected second moment before the k-th gradient, v/(1−β₂^(k−1)); at k = 1, where v
    knows nothing, g² stands in.

    Args:
        k: an int, or a 0-dim tensor under torch.compile.
        v: averages of g² of before this gradient, one tensor per parameter.
    """
    if isinstance(k, Tensor):
        divisor = torch.where(k == 1, torch.ones_like(k), 1.0 - beta2 ** (k - 1)).to(v[0].dtype)
        return [
            torch.where(k == 1, gradient.square(), average / divisor)
            for average, gradient in zip(v, g)
        ]
    return [gradient.square() for gradient in g] if k == 1 else bias_corrected(v, beta2, k - 1)
