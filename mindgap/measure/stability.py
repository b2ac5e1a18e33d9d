"""When an optimizer is stable on a quadratic: the sharpness it tolerates.

Near a point with Hessian H an optimizer with effective steps D (a number, or one number per
coordinate) behaves like a linear recursion. It is stable as long as the largest eigenvalue of
D^(1/2) H D^(1/2) stays below a constant c that depends on the momentum only: 2 for gradient
descent, 2 + 2 beta with heavy-ball momentum, (2 + 2 beta) / (1 + 2 beta) with Nesterov's. For one
step size lr that is sharpness < c / lr.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindgap.base.check import between, fail, flag, non_negative, positive
from mindgap.base.tensors import unflatten


def stability_threshold(
    lr: float,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
) -> float:
    """Largest Hessian eigenvalue (of the loss without the penalty) at which SGD with these settings
    is stable.

    With b <- beta b + (1 - d) g and x <- x - lr b, the recursion along an eigenvector of curvature
    h has the characteristic polynomial z^2 - (1 + beta - lr (1 - d) h) z + beta, with both roots
    inside the unit circle while lr (1 - d) h < 2 + 2 beta. Nesterov's form steps along g + beta b,
    which turns the bound into (2 + 2 beta) / (1 + 2 beta); weight decay adds to the curvature.
    Source: thesis, 6.5.2 (sharpness against 2/eta); the momentum forms follow from the polynomial
    above.

    Args:
        nesterov: Nesterov momentum as ``torch.optim.SGD`` has it (its dampening is 0).
        weight_decay: coefficient of the quadratic penalty that the step includes.

    Example:
        >>> stability_threshold(0.1), round(stability_threshold(0.1, momentum=0.9), 6)
        (20.0, 38.0)
        >>> round(stability_threshold(0.1, momentum=0.9, nesterov=True), 4)
        13.5714
    """
    positive("lr", lr)
    between("momentum", momentum, 0, 1, ends="[)")
    between("dampening", dampening, 0, 1, ends="[)")
    non_negative("weight_decay", weight_decay)
    flag("nesterov", nesterov)
    if nesterov and dampening:
        fail("dampening", "must be zero with Nesterov momentum", dampening)
    bound = (
        (2 + 2 * momentum) / (1 + 2 * momentum)
        if nesterov
        else (2 + 2 * momentum) / (1 - dampening)
    )
    if not momentum:
        bound = 2.0  # without momentum torch ignores the dampening
    return bound / lr - weight_decay


@dataclass(frozen=True)
class EffectiveSteps:
    """How far an optimizer moves for a unit of (smoothed) gradient, and what that tolerates."""

    kind: str  # "gradient descent", "heavy ball", "Nesterov" or "preconditioned"
    bound: float  # c, the largest stable eigenvalue of D^(1/2) H D^(1/2)
    scale: float | Tensor  # D as one number, or flat with one number per coordinate
    weight_decay: float = (
        0.0  # curvature that the step adds itself (coupled weight decay of SGD), else 0
    )


def effective_steps(
    optimizer: Any, parameters: Sequence[Tensor], gradient: Tensor | None = None
) -> EffectiveSteps | str:
    """Read D and c off a torch optimizer, or say in a sentence why they cannot be read.

    Known are SGD (plain, heavy-ball, Nesterov; groups may differ in lr), Adam, AdamW, RMSprop and
    Adagrad. For the last four D is the preconditioner that the *next* step would use if the second
    moments stood still; the decay of AdamW, which is no gradient, and coupled decay in
    preconditioned steps are left out. Where the present ``gradient`` (flat) exceeds the second
    moment of Adam or RMSprop, that moment is out of date (the row of a rare token), and the
    gradient takes its place: as soon as the row is used its moment grows, and the old D is never
    the step.

    Example:
        >>> w = torch.nn.Parameter(torch.zeros(2))
        >>> found = effective_steps(torch.optim.SGD([w], lr=0.5, momentum=0.5), [w])
        >>> found.kind, found.bound, found.scale
        ('heavy ball', 3.0, 0.5)
        >>> effective_steps(torch.optim.LBFGS([w]), [w])
        'no stability threshold is known for LBFGS'
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        fail("optimizer", "must be a torch.optim.Optimizer", optimizer)
    name = type(optimizer).__name__
    groups = optimizer.param_groups
    of = {id(p): g for g in groups for p in g["params"]}
    used = [of[id(p)] for p in parameters if id(p) in of]
    if len(used) < len(parameters):
        return "the optimizer does not hold every parameter of the objective"
    if any(g.get("maximize") for g in used):
        return "the optimizer maximises"
    if isinstance(optimizer, torch.optim.SGD):
        return _sgd(used, parameters)
    # AdamW is a kind of Adam in newer versions of torch only.
    if isinstance(
        optimizer, (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)
    ):
        return _preconditioned_steps(optimizer, used, parameters, gradient)
    return f"no stability threshold is known for {name}"


def _sgd(groups: list[dict[str, Any]], parameters: Sequence[Tensor]) -> EffectiveSteps | str:
    """The effective steps of SGD, or why they have no single stability threshold."""
    kinds = {
        (g["momentum"], bool(g["nesterov"]), g["dampening"], float(g["weight_decay"]))
        for g in groups
    }
    if len(kinds) > 1:
        return "the parameter groups differ in momentum or weight decay"
    ((momentum, nesterov, dampening, decay),) = kinds
    if any(float(g["lr"]) <= 0 for g in groups):
        return "the step size is zero"
    kind = "gradient descent" if not momentum else ("Nesterov" if nesterov else "heavy ball")
    bound = stability_threshold(1.0, momentum=momentum, nesterov=nesterov, dampening=dampening)
    rates = [float(g["lr"]) for g in groups]
    if len(set(rates)) == 1:
        return EffectiveSteps(kind, bound, rates[0], decay)
    scale = torch.cat(
        [
            torch.full((p.numel(),), r, dtype=p.dtype, device=p.device)
            for p, r in zip(parameters, rates)
        ]
    )
    return EffectiveSteps(kind, bound, scale, decay)


def _preconditioned_steps(
    optimizer: Any,
    groups: list[dict[str, Any]],
    parameters: Sequence[Tensor],
    gradient: Tensor | None,
) -> EffectiveSteps | str:
    """The effective steps of Adam, RMSprop or Adagrad from their state, or why there are none."""
    parts, betas = [], set()
    now = [None] * len(parameters) if gradient is None else unflatten(gradient, parameters)
    for p, g, group in zip(parameters, now, groups):
        state = optimizer.state.get(p)
        if not state:
            return "the optimizer has made no step yet"
        t, lr = float(state["step"]), float(group["lr"])
        if lr <= 0:
            return "the step size is zero"
        if "exp_avg_sq" in state:  # Adam, AdamW
            beta1, beta2 = (float(b) for b in group["betas"])
            second = state["max_exp_avg_sq"] if group.get("amsgrad") else state["exp_avg_sq"]
            root = _at_least((second / (1 - beta2 ** max(t, 1))).sqrt(), g) + group["eps"]
            parts.append(lr / (1 - beta1 ** max(t, 1)) / root)
            betas.add((beta1, True))
        elif "square_avg" in state:  # RMSprop
            second = state["square_avg"]
            if group["centered"]:
                second = second - state["grad_avg"].square()
            filled = (
                1 - group["alpha"] ** max(t, 1)
            ) ** 0.5  # its average starts at zero and is not corrected
            root = _at_least(second.clamp(min=0).sqrt(), None if g is None else filled * g)
            parts.append(lr / (root + group["eps"]))
            betas.add((float(group["momentum"]), False))
        else:  # Adagrad
            rate = lr / (1 + t * group["lr_decay"])
            parts.append(rate / (state["sum"].sqrt() + group["eps"]))
            betas.add((0.0, False))
    if len(betas) > 1:
        return "the parameter groups differ in momentum"
    ((beta, averaged),) = betas
    # An average (1 - beta) g + beta m moves by (1 - beta) a unit of gradient: heavy ball with
    # dampening beta.
    bound = (2 + 2 * beta) / (1 - beta) if averaged else 2 + 2 * beta
    return EffectiveSteps(
        "preconditioned", bound, torch.cat([part.detach().reshape(-1) for part in parts])
    )


def _at_least(root: Tensor, gradient: Tensor | None) -> Tensor:
    return root if gradient is None else torch.maximum(root, gradient.abs().to(root))
