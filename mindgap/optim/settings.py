"""Settings that several optimizers have, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, Literal, TypedDict, get_args

import torch
from torch import Tensor

from mindgap.base.check import between, fail, non_negative, positive
from mindgap.rules.schedule import value_at

#: The choices of the optimizers, for type checkers; the checks read the same lists.
Nonfinite = Literal["raise", "skip", "propagate"]
SpikeGuard = Literal["clip", "skip"] | None
Scope = Literal["all", "group", "tensor"]
Order = Literal["gradient", "momentum"]
Clip = float | Literal["auto"] | None
#: For rules whose steps do not scale with the gradient: "unit" divides the gradient by its norm.
UnitClip = float | Literal["auto", "unit"] | None
#: "noise" tells noise from signal among the large gradients (``mindgap.optim.sides``).
AdamWClip = float | Literal["auto", "unit", "noise"] | None
NONFINITE: tuple[str, ...] = get_args(Nonfinite)
SPIKE_GUARDS = (None, "clip", "skip")
SCOPES: tuple[str, ...] = get_args(Scope)
ORDERS: tuple[str, ...] = get_args(Order)


class Options(TypedDict, total=False):
    """Settings that every optimizer takes by name.

    project: projection onto a set after each step: a function that changes a list of tensors in
        place, such as ``Ball`` or ``Box``.
    nonfinite: what to do about gradients that are not finite: ``"propagate"`` (default) looks at
        nothing, as torch; ``"skip"`` leaves parameters and states as they are and counts the step;
        ``"raise"`` stops before anything is changed. The last two force a GPU synchronisation at
        every step, except ``"skip"`` in the fused CUDA form.
    spike_guard: what to do about a gradient whose norm is far outside the distribution of the last
        128 (see ``norms.spike_range``): ``"clip"`` scales it down to their 0.9 quantile, ``"skip"``
        leaves the step out. ``report().spikes`` lists step, norm and expected range. None (default)
        does not look.
    maximize: ascend.
    foreach: False for the plain loop over tensors.
    fused: one pass over memory; None picks it where it can be used, True raises where it cannot.
    """

    project: Callable[[Sequence[Tensor]], None] | None
    nonfinite: Nonfinite
    spike_guard: SpikeGuard
    maximize: bool
    foreach: bool | None
    fused: bool | None


def plain_number(value: float | Tensor) -> float:
    """A setting that is a number or a tensor with one element, as a number; a tensor on a device is
    waited for.
    """
    return float(value) if isinstance(value, Tensor) else value


def plain_numbers(group: dict[str, Any]) -> dict[str, Any]:
    """A parameter group in which settings other than lr that are tensors (torch allows that) are
    numbers; the group itself where there is none. Tensors on a device are waited for.

    Example:
        >>> plain_numbers({"eps": torch.tensor(0.5), "betas": (torch.tensor(0.25), 0.9)})
        {'eps': 0.5, 'betas': (0.25, 0.9)}
    """
    numbers: dict[str, Any] = {
        name: float(group[name])
        for name in ("eps", "weight_decay", "momentum", "dampening")
        if isinstance(group.get(name), Tensor)
    }
    betas = group.get("betas")
    if isinstance(betas, (tuple, list)) and any(isinstance(beta, Tensor) for beta in betas):
        numbers["betas"] = tuple(map(plain_number, betas))
    return {**group, **numbers} if numbers else group


def check_lr(lr: Any, *, zero: bool = True) -> None:
    """Check a step size: a positive number, or a real tensor with one positive element, which is
    waited for on a device (one on the device "meta", without data, passes).

    Args:
        zero: let 0 pass too.
    """
    if isinstance(lr, Tensor):
        if lr.numel() != 1 or not lr.is_floating_point():
            fail(
                "lr",
                "must have one real element when it is a tensor",
                lr if lr.numel() == 1 else tuple(lr.shape),
            )
        if lr.device.type == "meta":
            return
        lr = float(lr)
    (non_negative if zero else positive)("lr", lr)


def check_rate(lr: Any) -> None:
    """Check the kind of a step size that a running optimizer finds in a group: a real number, or a
    real tensor with one element, whose value is not looked at.
    """
    if isinstance(lr, Tensor):
        if lr.numel() != 1 or not lr.is_floating_point():
            shape = tuple(lr.shape) if lr.numel() != 1 else lr.dtype
            fail("lr", "must have one real element when it is a tensor", shape)
    elif not isinstance(lr, Real):
        fail("lr", "must be a number", lr)


def check_common(group: dict[str, Any]) -> None:
    """Check ``lr`` and ``weight_decay`` of a group, which every first-order rule has."""
    check_lr(group["lr"])
    non_negative("weight_decay", group["weight_decay"])


def check_torch_settings(group: dict[str, Any]) -> None:
    """Check what torch's optimizers allow beyond numbers: refuse settings of a group that are
    tensors of other than one real element, and ``differentiable``.

    Numbers are not looked at here: each optimizer checks its own.
    """
    betas = group.get("betas")
    named = dict(zip(("betas[0]", "betas[1]"), betas)) if isinstance(betas, (tuple, list)) else {}
    for name in ("eps", "weight_decay", "momentum", "dampening"):
        named[name] = group.get(name)
    for name, value in named.items():
        if isinstance(value, Tensor) and (value.numel() != 1 or not value.is_floating_point()):
            fail(name, "must have one real element when it is a tensor", tuple(value.shape))
    if group.get("differentiable", False) is not False:
        fail(
            "differentiable",
            "must be False: autograd does not follow the steps here",
            group["differentiable"],
        )


def check_betas(betas: Any) -> None:
    """Refuse anything but a pair of numbers in [0, 1)."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        fail("betas", "must be a pair of numbers", betas)
    for i, beta in enumerate(betas):
        between(f"betas[{i}]", beta, 0, 1, ends="[)")


def bias_corrected(averages: list[Tensor], beta: float, k: Any) -> list[Tensor]:
    """Averages that began with zero, after k entries, divided by 1 − β^k: new tensors. k is an int,
    or a 0-dim tensor under torch.compile.
    """
    divisor = 1.0 - beta**k
    return list(
        torch._foreach_div(
            averages, divisor.to(averages[0].dtype) if isinstance(divisor, Tensor) else divisor
        )
    )


def check_clip(clip: Any, *further: str) -> Any:
    """Check and return a threshold of the gradient's norm: None, ``"auto"``, or a positive number,
    which becomes a float.

    Args:
        further: names that may stand for it besides ``"auto"``.
    """
    names = ("auto", *further)
    if clip is not None and not (isinstance(clip, str) and clip in names):
        if isinstance(clip, str):
            listed = ", ".join(map(repr, names))
            fail("clip", f"must be None, {listed} or a positive number", clip)
        return float(positive("clip", clip, finite=False))
    return clip


def positive_at(name: str, value: Any, k: int) -> Any:
    """The value of a setting at step k, checked to be positive unless that would wait for a device.

    Args:
        name: of the setting, for the error.
        value: a number, a tensor with one element, or a function of k that returns one of them.

    Returns:
        The number, or a 0-dim tensor.
    """
    value = value_at(value, k)
    if isinstance(value, Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            fail(name, "must have one real element when it is a tensor", tuple(value.shape))
        if value.device.type == "cpu":
            positive(name, float(value), finite=False)
        return value.reshape(())
    return positive(name, value, finite=False)
