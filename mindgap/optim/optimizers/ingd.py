"""INGD: search for descent at distance δ, or prove that there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from mindgap.base.check import fail, positive, whole
from mindgap.base.tensors import blocks, is_one_number, placed, robust_norm
from mindgap.optim.optimizer import Batch, Loss, RuleOptimizer
from mindgap.optim.settings import Nonfinite, check_lr, check_rate
from mindgap.rules.schedule import unit_draw
from mindgap.rules.steps import average_, descent_weight

#: What a pass of the inner loop may end with, each with its sentence.
OUTCOMES = {
    "new": "no step was made yet",
    "descended": "f fell by more than δ‖m‖/4 and the parameters moved by δ",
    "certified": "‖m‖ ≤ ε: the parameters are (δ, ε)-stationary",
    "exhausted": "neither descent nor certificate within the inner steps; the next step starts "
    "the search anew",
    "non-finite": "a gradient was not finite; the parameters did not move",
}


@dataclass(frozen=True)
class SearchResult:
    """How INGD's last search ended; m is its averaged gradient."""

    outcome: str  # a key of ``OUTCOMES``
    #: ‖m‖ at its end; with outcome ``"certified"`` a bound on the distance of 0 from the
    #: δ-subdifferential.
    norm: float
    oracle_calls: int  # closure calls of all searches together
    inner_steps: int  # inner steps of the last search

    @property
    def certified(self) -> bool:
        """Whether the parameters were found to be (δ, ε)-stationary."""
        return self.outcome == "certified"

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        return OUTCOMES[self.outcome]


class INGD(RuleOptimizer):
    """Interpolated normalised gradient descent for a deterministic, Lipschitz, possibly non-smooth
    f.

    Symbols: δ ``lr``, ε ``epsilon``, L ``lipschitz``, K ``inner``.

    One call of ``step`` is one pass of the loop of lines 4 to 15::

        m_1 = ∇f(x_t)
        for k = 1 … K:
            if ‖m_k‖ ≤ ε: stop, x_t is (δ, ε)-stationary
            x_{t,k} = x_t − δ·m_k/‖m_k‖
            if f(x_{t,k}) − f(x_t) < −δ‖m_k‖/4: x_{t+1} = x_{t,k}, done
            y uniform on [x_t, x_{t,k}];  m_{k+1} = β·m_k + (1−β)·∇f(y),
                β = (4L²−‖m_k‖²)/(4L²+2‖m_k‖²)

    If the loop runs out, x_t stays and the next call starts it anew (the *while* of line 3). Once
    certified, ``step`` changes nothing and evaluates nothing until ``reset()``.

    The closure must give a deterministic f: the same batch, dropout off, and in a distributed run
    the same value on all processes. It is called up to 2K times per step; it writes ``p.grad``,
    this class only reads it. The algorithm decides by the value of f, so every inner step waits for
    the device. ``torch.amp.GradScaler.step(optimizer, closure)`` raises in torch: with a scaler use
    StochasticINGD.

    Args:
        params: parameters, or groups of them; all groups have the same δ, ε and L.
        lr: δ, the length of a step.
        epsilon: tolerance on ‖m‖.
        lipschitz: a bound on the gradient's norm.
        inner: inner steps of a search; None gives Theorem 5.4.1's K = 48L²/ε².
        seed: of the draws.
        nonfinite: ``"propagate"``, ``"skip"`` or ``"raise"``; see ``RuleOptimizer``.
        maximize: ascend.
        foreach: False for the plain loop over tensors.
        fused: one pass over memory; None picks it where it can be used.

    Raises:
        RuleError: names the argument, the rule and the value; ``step`` raises it without a closure.

    Example:
        >>> x = torch.tensor([0.3], requires_grad=True)
        >>> optimizer = INGD([x], lr=0.1, epsilon=0.2, lipschitz=1.0)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = x.abs().sum()
        ...     loss.backward()
        ...     return loss
        >>> while not optimizer.result().certified:
        ...     value = optimizer.step(closure)
        >>> bool(x.abs() <= 0.1), optimizer.result().sentence
        (True, '‖m‖ ≤ ε: the parameters are (δ, ε)-stationary')

    Source: thesis, Alg. 2 in 5.4.

    Differs from the paper:
        The oracle's gradient at a kink is what automatic differentiation gives, whatever the
        direction asked for. β is held at 0 from below (see ``rules.steps.descent_weight``).
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        epsilon: float,
        lipschitz: float,
        *,
        inner: int | None = None,
        seed: int = 0,
        nonfinite: Nonfinite = "propagate",
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        check_lr(lr, zero=False)
        positive("epsilon", epsilon)
        positive("lipschitz", lipschitz)
        if inner is None:  # Theorem 5.4.1's K
            inner = math.ceil(48.0 * lipschitz**2 / epsilon**2)
        whole("inner", inner, least=1)
        whole("seed", seed)
        settings = {
            "lr": lr,
            "epsilon": epsilon,
            "lipschitz": lipschitz,
            "inner": inner,
            "seed": seed,
            "momentum": 0.0,  # OneCycleLR and CyclicLR look for it; nothing here reads it
        }
        #: What the first group keeps of the search; its meaning stands in ``SearchResult``.
        search_state = {
            "outcome": "new",
            "norm": math.inf,
            "calls": 0,
            "inner_steps": 0,
            "draws": 0,
        }
        super().__init__(
            params,
            {**settings, **search_state},
            maximize=maximize,
            foreach=foreach,
            fused=fused,
            nonfinite=nonfinite,
        )

    def _check_group(self, group: dict[str, Any]) -> None:
        """Check the settings of a group. They must equal those of the first group, because all
        groups share one search.
        """
        check_lr(group["lr"])
        positive("epsilon", group["epsilon"])
        positive("lipschitz", group["lipschitz"])
        for name in ("lr", "epsilon", "lipschitz", "maximize"):
            if group[name] != self.param_groups[0][name]:
                fail(
                    name,
                    f"must be {self.param_groups[0][name]!r} in all groups (one search, one "
                    "vector)",
                    group[name],
                )

    _state_names = ("x", "m")

    def result(self) -> SearchResult:
        """How the last search ended."""
        group = self.param_groups[0]
        return SearchResult(group["outcome"], group["norm"], group["calls"], group["inner_steps"])

    def reset(self) -> None:
        """Forget a certificate, so that ``step`` searches again (after the problem has changed,
        say).
        """
        self.param_groups[0]["outcome"] = "new"

    def _update(self, batches: list[Batch]) -> None:
        """Not used: ``step`` searches by itself."""
        raise NotImplementedError("INGD steps through its closure")

    @overload  # type: ignore[override]
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], Loss]) -> Loss | None: ...

    @torch.no_grad()
    @torch._disable_dynamo
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One search from the current point.

        Args:
            closure: zeroes the gradients, evaluates f, calls ``backward`` and returns f.

        Returns:
            f at the point where the search started, as the closure returned it; None once
            certified. ``result`` says how the search ended.
        """
        head = self.param_groups[0]  # keeps the outcome of the last search
        if closure is None:
            if all(float(group["lr"]) == 0.0 for group in self.param_groups):
                # torch.distributed.checkpoint makes states exist by a step of length 0 without a
                # closure.
                self._allocate(self._begin() or [])
                return None
            fail(
                "closure",
                "must be given (INGD needs values of f; GradScaler.step takes none)",
                None,
            )
        if not callable(closure):
            fail("closure", "must be a function", closure)
        if head["outcome"] == "certified":
            return None
        check_rate(head["lr"])
        start = self._call(closure)
        value_at_start = _loss_value(start)
        # None: the policy for gradients that are not finite left the step out.
        batches = self._begin()
        if batches is None:
            head["outcome"] = "non-finite"
        if not batches:
            return start
        self._allocate(batches)
        self._search(batches, closure, value_at_start)
        return start

    def _call(self, closure: Callable[[], Any]) -> Any:
        """Evaluate the closure with autograd on and return what it returns; the call is counted in
        the first group.
        """
        self.param_groups[0]["calls"] += 1
        with torch.enable_grad():
            return closure()

    def _value_at_trial_point(self, batches: list[Batch], closure: Callable[[], Any]) -> float:
        """The closure's loss at the parameters' present place. Where the closure raises an error or
        returns something else, the parameters are put back to where the search started.
        """
        try:
            return _loss_value(self._call(closure))
        except BaseException:
            self._place(batches, 0.0)
            raise

    def _allocate(self, batches: list[Batch]) -> None:
        """Make the states that a search writes, x and m, of zeros where they lack."""
        for batch in batches:
            for name in ("x", "m"):
                self._states(batch, name)

    def _search(self, batches: list[Batch], closure: Callable[[], Any], start: float) -> None:
        """One search (Alg. 2, l. 4 to 15): try a step of length δ along the averaged gradient m.
        Where f falls by more than δ‖m‖/4, the search ends there; else m averages in the gradient at
        a random point of the step. ‖m‖ ≤ ε ends it too: the start is then (δ, ε)-stationary.

        It moves the parameters to the new point (or back to where they were), writes the states x
        and m, and notes outcome, norm and counts in the first group.

        Args:
            batches: one per group, with the gradients at the start.
            closure: evaluates f and its gradient at the parameters' present place.
            start: f at the start.
        """
        head, sign = self.param_groups[0], batches[0].sign
        delta = float(head["lr"])
        # x is where the search starts, m the gradient there.
        for batch in batches:
            states = self._states(batch, "x"), self._states(batch, "m")
            for p, g, x, m in blocks(batch.params, batch.grads, *states, single=batch.single):
                torch._foreach_copy_(x, p)
                average_(m, g, 0.0, sign)
        outcome = "exhausted"
        for k in range(1, head["inner"] + 1):
            head["inner_steps"] = k
            directions = [m for batch in batches for m in self._raw_states(batch, "m")]
            norm = head["norm"] = float(robust_norm(directions, wide=True))
            if k == 1:
                self._note(direction=norm)
            if not math.isfinite(norm):
                outcome = "non-finite"
                break
            if norm <= head["epsilon"]:
                outcome = "certified"
                break
            self._place(batches, delta / norm)
            value = self._value_at_trial_point(batches, closure)
            # Enough descent: f falls by more than δ‖m‖/4 (Alg. 2).
            if sign * (value - start) < -delta * norm / 4.0:
                outcome = "descended"
                break
            # No descent: average with the gradient at a random point of the step.
            head["draws"] += 1
            self._place(batches, unit_draw(head["seed"], head["draws"]) * delta / norm)
            self._value_at_trial_point(batches, closure)
            beta = descent_weight(norm, head["lipschitz"])
            for batch in batches:
                for m, g in blocks(
                    self._states(batch, "m"), self._gradients(batch), single=batch.single
                ):
                    average_(m, g, beta, sign)
        if outcome != "descended":
            self._place(batches, 0.0)
        head["outcome"] = outcome

    def _gradients(self, batch: Batch) -> list[Tensor]:
        """The present gradients of the batch's parameters as plain real tensors; zeros where the
        closure's last call gave none.
        """
        return [
            torch.zeros_like(self._plain(p)) if p.grad is None else self._plain(placed(p.grad, p))
            for p in batch.owners
        ]

    def _place(self, batches: list[Batch], factor: float) -> None:
        """Put the parameters at x − factor·m, from the states x and m; at exactly x for factor
        0.
        """
        for batch in batches:
            states = self._states(batch, "x"), self._states(batch, "m")
            for p, x, m in blocks(batch.params, *states, single=batch.single):
                torch._foreach_copy_(
                    p, torch._foreach_sub(x, torch._foreach_mul(m, factor)) if factor else x
                )


def _loss_value(returned: Any) -> float:
    """The loss that a closure returned, as a number; anything but one real number is refused."""
    if not is_one_number(returned):
        fail("closure", "must return the loss, one real number", returned)
    return float(returned)
