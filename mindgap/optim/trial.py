"""A trial of fused kernels before their first use: small steps must agree with the foreach form."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mindgap.base.tensors import robust_norm
from mindgap.optim.sides import KNOWN, LARGE, entries_of, memories_of

#: Kinds of devices whose kernels are tried: their code is made by whatever compiler and driver is
#: found there.
TRIED = {"cuda"}
#: Sizes of the small problem: with and without a part of a chunk, and an odd address behind the
#: first tensor.
SIZES = (7, 2051, 1, 1024)
STEPS, LR = 3, 0.1
#: Largest difference between the two forms, as a share of the largest parameter.
TOLERANCE, TOLERANCE_16_BIT = 1e-4, 2e-2
#: Norm of a large gradient over the norms before it, with ``clip="noise"``.
_FORMER = 2 * LARGE
#: What was found, by rule, policy, device and dtypes: None where the forms agree, else the
#: difference.
_FOUND: dict[tuple[Any, ...], str | None] = {}


def objection(
    optimizer: Any, group: dict[str, Any], rule: Any, p: Tensor, grad: Tensor
) -> str | None:
    """Why a rule's kernels must not be used for a parameter; None where they may.

    The kernels are tried once per process, rule, policy, device and dtypes, and the finding is
    kept. Where they differ from the foreach form, the first call warns.

    Args:
        optimizer: a ``RuleOptimizer`` (no annotation, because its module imports this one).
        group: the parameter's group.
        rule: name of the kernels.
        p: the parameter, of which only device and dtype count.
        grad: its gradient, of which only the dtype counts.
    """
    if p.device.type not in TRIED:
        return None
    # All thresholds that are numbers run the same kernels: True stands for them, False for None.
    clip = optimizer._norm_clip
    clip = clip if isinstance(clip, str) else clip is not None
    policy = (optimizer._nonfinite, clip, optimizer._spike_guard, group.get("tau") == "auto")
    key = (rule, policy, p.device, p.dtype, grad.dtype)
    if key not in _FOUND:
        if p.is_cuda and torch.cuda.is_current_stream_capturing():
            return "a step outside the capture must come first, to try the kernels"
        with torch.inference_mode(False):
            difference = _FOUND[key] = _difference(optimizer, group, p.device, p.dtype, grad.dtype)
        if difference is not None:
            warnings.warn(
                f"mindgap: the foreach form is used for {rule} on {p.device}: {difference}",
                stacklevel=7,  # the user's line that calls ``step``
            )
    return _FOUND[key]


def _difference(optimizer: Any, group: Any, device: Any, dtype: Any, grad_dtype: Any) -> str | None:
    """How the fused kernels fail or differ from the foreach form on a few small tensors, in words;
    None where they agree.

    Both forms take ``STEPS`` steps with equal random gradients. They agree if no parameter differs
    by more than the tolerance, as a share of the largest one. With ``clip="noise"`` there is a step
    more, two of the gradients are large, the judge remembers a past, and its memories must agree
    as well.
    """
    generator = torch.Generator().manual_seed(0)  # its own, so that nobody's random numbers change
    judges = optimizer._norm_clip == "noise"
    draws = [
        [torch.randn(n, generator=generator, device="cpu") for n in SIZES]
        for _ in range(1 + STEPS + judges)
    ]
    if judges:  # the second gradient is large, the third as large and opposite
        draws[1] = [small / _FORMER for small in draws[1]]
        draws[3] = [0.3 * new - old for new, old in zip(draws[3], draws[2])]
        draws[4] = [small / _FORMER for small in draws[4]]
    #: Whether the form is the fused one -> after the steps all parameters as one vector, and what
    #: the judge remembers.
    ends: dict[bool, list[Tensor]] = {}
    # draws[0] is where the parameters start, the others are their gradients.
    for fused in (True, False):
        params = [torch.nn.Parameter(t.to(device, dtype, copy=True)) for t in draws[0]]
        try:
            twin = _twin(optimizer, group, params, fused)
            for step, grads in enumerate(draws[1:]):
                for p, g in zip(params, grads):
                    if grad_dtype != dtype:
                        p.grad_dtype = grad_dtype
                    p.grad = g.to(device, grad_dtype)
                if judges and step == 1:
                    _remember(twin, params)
                twin._plain_step()
            ends[fused] = [torch.cat([p.detach().double().cpu() for p in params])]
            if judges:
                _, evidence, sides = memories_of(twin.param_groups, params[0].device)
                ends[fused] += [evidence.cpu(), sides.cpu()]
        except Exception as error:
            if not fused:
                raise
            return (
                f"the fused kernels fail with {compiler()} ({type(error).__name__}: "
                f"{str(error)[:300]})"
            )
    relative_error = max(
        float(((ours - theirs).abs() / theirs.abs().max()).nan_to_num(torch.inf).max())
        for ours, theirs in zip(ends[True], ends[False])
    )
    if relative_error <= (TOLERANCE_16_BIT if dtype.itemsize < 4 else TOLERANCE):
        return None
    return f"the fused kernels differ from it by a share of {relative_error:.2g} with {compiler()}"


def _remember(twin: Any, params: Sequence[Tensor]) -> None:
    """Let a trial's copy with ``clip="noise"`` remember norms that make its present gradient a
    large one, and the direction of that gradient.

    So the rule is off after a step that agrees with that direction, and on after one that points to
    the other side. The norms are fewer than a guard against spikes needs, which would take the
    large gradients before they are judged.
    """
    window, _, sides = memories_of(twin.param_groups, params[0].device)
    norm = robust_norm([p.grad for p in params if p.grad is not None], wide=True)
    count = KNOWN + 2
    window[-count:] = norm / _FORMER * torch.linspace(0.5, 1.5, count).to(window)
    sides.copy_(entries_of(twin.param_groups, params[0].device) / norm)


def _twin(optimizer: Any, group: dict[str, Any], params: Sequence[Tensor], fused: bool) -> Any:
    """A copy of the optimizer for a trial, which changes nothing in the original.

    Args:
        group: gives the settings, except that lr is ``LR``.
        params: what the copy optimizes, in one group and without states or remembered norms.
        fused: True for the fused form, False for the foreach form.
    """
    # One of the two forms is asked for, the other left open.
    form = {
        "params": list(params),
        "fused": fused or None,
        "foreach": None if fused else True,
        "k": 0,
    }
    lr = (
        torch.full_like(group["lr"], LR) if isinstance(group["lr"], Tensor) else LR
    )  # a warm-up may begin at zero
    settings = {
        name: value for name, value in group.items() if not isinstance(value, Tensor)
    }  # no memory of norms
    twin = object.__new__(type(optimizer))
    twin.__setstate__(
        {
            **optimizer.__getstate__(),
            "state": defaultdict(dict),
            "param_groups": [{**settings, "lr": lr, **form}],
        }
    )
    twin._project, twin.tally, twin._fused.trusting = None, type(optimizer.tally)(), True
    return twin


def compiler() -> str:
    """Triton and its version."""
    try:
        import triton
    except ImportError:
        return "no Triton"
    return f"Triton {triton.__version__}"
