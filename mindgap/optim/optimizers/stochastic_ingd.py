"""StochasticINGD: normalised steps with the gradient taken at a random point of the last one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mindgap.base.check import between, fail, non_negative, whole
from mindgap.base.tensors import blocks, robust_norm, widen
from mindgap.optim.norms import scoped_norms
from mindgap.optim.optimizer import Batch, RuleOptimizer
from mindgap.optim.settings import Clip, Nonfinite, SpikeGuard, check_clip, check_common
from mindgap.rules.fused.plan import FusedRecord
from mindgap.rules.schedule import unit_draw
from mindgap.rules.steps import average_, interpolated_coefficient


class StochasticINGD(RuleOptimizer):
    """Stochastic interpolated normalised gradient descent.

    Symbols: β ``beta``, p ``p``, q ``q``.

    The update, in the order in which a training loop meets it (the gradient g was taken at y_t, y_1
    = x_1)::

        m_t     ← β·m_{t−1} + (1−β)·g(y_t)          m_1 = g(x_1)
        x_{t+1} ← x_t − m_t/(p·‖m_t‖ + q)           the norm over all parameters
        y_{t+1} uniform on the segment [x_t, x_{t+1}]

    The model's parameters stand at y while gradients are taken and at x for evaluation: call
    ``eval()`` before evaluating or saving the model and ``train()`` before going on, beside the
    model's own. x lives in the state. One number is drawn per step, from (``seed``, k), so that all
    processes of a distributed run draw the same.

    Args:
        params: parameters, or groups of them with their own ``beta``, ``p``, ``q``,
            ``weight_decay``, ``lr``.
        lr: factor on every step, for schedulers; 1 is the algorithm.
        beta: β in [0, 1).
        p: weight of the norm, zero or positive; a step is never longer than lr/p.
        q: added to it, zero or positive; p and q are not both zero.
        weight_decay: w, coupled: w·y is added to the gradient (the thesis' experiment has 5e-4).
        clip: threshold of the gradient's norm before it enters m: ``"auto"`` (the 0.9 quantile of
            the last 128 norms), a number, or None, as the thesis has it.
        seed: of the draws.
        nonfinite, spike_guard, maximize, foreach, fused: see ``mindgap.optim.optimizer.Options``.

    Raises:
        RuleError: names the argument, the rule and the value; ``step`` raises it between ``eval()``
            and ``train()``.

    Example:
        >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> optimizer = StochasticINGD([x], p=1.0, q=5.0)
        >>> (x.square().sum() / 2).backward()
        >>> optimizer.step()
        >>> optimizer.eval()
        >>> x.detach()  # x_2 = x_1 - x_1/(5 + 5)
        tensor([2.7000, 3.6000])
        >>> optimizer.train()

    Source: thesis, Alg. 3 in 5.5; the experiment's settings in 5.6 are the defaults.

    Differs from the paper:
        Lines 8 to 10 (the random output x_{max(i−K,1)}) are the caller's: keep the iterate you
        want. ``lr`` and weight decay are additions.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1.0,
        beta: float = 0.9,
        p: float = 1.0,
        q: float = 10.0,
        *,
        weight_decay: float = 0.0,
        clip: Clip = "auto",
        seed: int = 0,
        nonfinite: Nonfinite = "propagate",
        spike_guard: SpikeGuard = None,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        whole("seed", seed)
        self._norm_clip = check_clip(clip)
        settings = {"lr": lr, "momentum": beta, "p": p, "q": q, "weight_decay": weight_decay}
        super().__init__(
            params,
            {**settings, "seed": seed, "training": True},
            maximize=maximize,
            foreach=foreach,
            fused=fused,
            nonfinite=nonfinite,
            spike_guard=spike_guard,
        )

    _state_names = ("x", "m", "y")

    def _check_group(self, group: dict[str, Any]) -> None:
        """Check the settings of a group; raises ``RuleError`` for the first that is wrong."""
        check_common(group)
        between("beta", group["momentum"], 0, 1, ends="[)")
        non_negative("p", group["p"])
        non_negative("q", group["q"])
        if group["p"] == 0 and group["q"] == 0:
            fail("q", "must be positive where p is 0", group["q"])

    @torch.no_grad()
    def eval(self) -> None:
        """Put the parameters at x, for evaluation, and keep where they stood as the state y; does
        nothing if they are at x.
        """
        for group in self.param_groups:
            if not group["training"]:
                continue
            for p in group["params"]:
                state = self.state.get(p, {})
                if "x" in state:
                    state["y"] = p.detach().clone()
                    p.copy_(state["x"])
            group["training"] = False

    @torch.no_grad()
    def train(self) -> None:
        """Put the parameters back at y, bit for bit, and drop the state y; does nothing if they are
        at y.
        """
        for group in self.param_groups:
            if group["training"]:
                continue
            for p in group["params"]:
                if "y" in self.state.get(p, {}):
                    p.copy_(self.state[p].pop("y"))
            group["training"] = True

    def fused_record(self, group: dict[str, Any]) -> FusedRecord:
        """What the fused engine needs to know of a group for its rule "interpolated"; a refusal
        while the parameters stand at x.
        """
        if not group["training"]:
            return FusedRecord(refusal="the parameters stand at x for evaluation")
        numbers = {"beta": group["momentum"], "coupled": group["weight_decay"]}
        numbers.update({name: group[name] for name in ("p", "q", "seed")})
        # The first gradient of a parameter starts its states, outside the kernels.
        return FusedRecord.of(
            "interpolated", group, numbers, states=("x", "m"), scope="all", started=("x",)
        )

    def _update(self, batches: list[Batch]) -> None:
        """Move the state x by one step, and the parameters to the random point y of the segment
        from the old x to the new one, in place. The norms of m and of the step go to the report.
        """
        for batch in batches:
            if not batch.group["training"]:
                fail(
                    "step",
                    "must come after train(): the parameters stand at x for evaluation",
                    "eval()",
                )
            self._average(batch)
        raws = [t for batch in batches for t in self._raw_states(batch, "m")]
        _, _, norm = scoped_norms([raws], "all", self._everyone)
        # Per batch (η, norm of its m): their products give the norm of the whole step.
        step_terms = []
        for batch in batches:
            group, lr = batch.group, batch.lr
            eta = interpolated_coefficient(norm, group["p"], group["q"])
            eta = eta * (lr.to(eta.device) if isinstance(lr, Tensor) else lr)
            draw = self._drawn(batch) if batch.compiled else unit_draw(group["seed"], batch.k)
            states = self._states(batch, "x"), self._states(batch, "m")
            for p, x, m in blocks(batch.params, *states, single=batch.single):
                # p becomes y = x − draw·step, a place on the segment, and x then x − step.
                step = torch._foreach_mul(m, eta.to(m[0].device, m[0].dtype))
                place = draw if isinstance(draw, float) else draw.to(m[0].device, m[0].dtype)
                torch._foreach_copy_(p, torch._foreach_sub(x, torch._foreach_mul(step, place)))
                torch._foreach_sub_(x, step)
            alone = len(batches) == 1
            batch_norm = norm if alone else robust_norm(self._raw_states(batch, "m"), wide=True)
            step_terms.append((eta, batch_norm))
        if self._norm_clip is None:
            self._note(direction=norm)
        self._note(update=step_terms)

    @staticmethod
    @torch._disable_dynamo
    def _drawn(batch: Batch) -> Tensor:
        """The step's draw as a tensor: a number would be built into the compiled graph, and so
        compile every step.
        """
        return torch.tensor(unit_draw(batch.group["seed"], batch.k), dtype=torch.float64)

    def _average(self, batch: Batch) -> None:
        """m ← β·m + (1−β)·g in place (Alg. 3, l. 7), where g includes the coupled weight decay. For
        a parameter without states, the gradient becomes m (l. 2) and the present place becomes x.
        """
        decay, beta = batch.group["weight_decay"], batch.group["momentum"]
        for had_states, indices in self._started(batch, "x"):
            # Without states: x begins where the parameter stands, and m with weight 0 of the past.
            for i in () if had_states else indices:
                self._state(batch.owners[i], "x").copy_(batch.owners[i])
            memory = self._states(batch, "m")
            lists = ([values[i] for i in indices] for values in (memory, batch.grads, batch.params))
            for m, g, y in blocks(*lists, single=batch.single):
                g = batch.scaled(g)
                if decay:
                    g = list(torch._foreach_add(g, [widen(t) for t in y], alpha=batch.sign * decay))
                average_(m, g, beta if had_states else 0.0, batch.sign)
