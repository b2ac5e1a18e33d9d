"""Norms of gradients: over groups and processes, their running quantiles, and what counts as a
spike.

The running quantile is an order statistic of the last 128 norms. For norms that are exchangeable
(independent with any one law, say) its errors are known exactly, whatever the law: the share of the
law below the r-th smallest of n norms has the Beta(r, n+1−r) distribution. At n = 128 and q = 0.9,
r = 117: the next norm lies above the threshold with probability 12/129 = 9.3 % (a bias of −0.7 %),
and that share has a standard deviation of 2.6 %. A lower quantile means more bias and less variance
of the clipped gradient (thesis, Lemma 2 of chapter 4: with threshold τ the variance grows with
τ^(2−α) and the bias falls with τ^(1−α)). One spike of any size moves the threshold by one rank. If
the level rises, the threshold follows 12 steps later; if it falls, 117 steps later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from mindgap.base.check import fail
from mindgap.base.tensors import local, robust_norm

#: Norms that are remembered; a power of two, which suits the kernels.
WINDOW = 128
#: The quantile that ``"auto"`` thresholds follow.
QUANTILE = 0.9
#: Norms that must have been seen before one can be called a spike.
SPIKE_AFTER = 20


def new_window(device: Any, *shape: int) -> Tensor:
    """An empty memory of norms; zeros stand for norms that were not seen, or were zero or not
    finite.

    Args:
        shape: of the windows, where several are kept in one tensor; () for one.
    """
    return torch.zeros(*shape, WINDOW, dtype=torch.float64, device=device)


def push_(window: Tensor, norm: Tensor) -> None:
    """Remember a norm and forget the oldest, in place. A norm that is zero or not finite enters as
    zero.

    Args:
        window: (..., 128) in float64, oldest first.
        norm: (...), one norm per window.

    Example:
        >>> window = new_window("cpu")
        >>> push_(window, torch.tensor(2.0))
        >>> float(running_quantile(window, 0.9))
        2.0
    """
    usable = torch.isfinite(norm) & (norm > 0)
    newest = torch.where(
        usable, norm.double(), torch.zeros((), dtype=torch.float64, device=norm.device)
    )
    window.copy_(torch.cat([window[..., 1:], newest.to(window.device).unsqueeze(-1)], -1))


def running_quantile(window: Tensor, q: float, *, least: int = 1) -> Tensor:
    """The order statistic of rank ⌈q·(n+1)⌉ of the n norms seen, at most the largest; ∞ before
    ``least`` were seen.

    Args:
        window: (..., 128), zeros for norms not seen; the result has the shape (...).

    Example:
        >>> window = new_window("cpu")
        >>> for norm in range(1, 20):
        ...     push_(window, torch.tensor(float(norm)))
        >>> float(running_quantile(window, 0.5)), float(running_quantile(window, 0.9, least=20))
        (10.0, inf)
    """
    count = (window > 0).sum(-1, keepdim=True)
    rank = torch.minimum(torch.ceil(q * (count + 1).double()).long(), count)
    # Sorted, the norms seen stand behind the zeros.
    index = (window.shape[-1] - count + rank - 1).clamp(0, window.shape[-1] - 1)
    value = window.sort(-1).values.gather(-1, index)
    return torch.where(count >= least, value, torch.full_like(value, torch.inf)).squeeze(-1)


def spike_range(window: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The 0.1 and 0.9 quantiles Q₁, Q₉ of the last norms, and the limit Q₉·max{Q₉/Q₁, 2}² above
    which a norm is a spike (∞ before ``SPIKE_AFTER`` norms were seen). All have the window's shape
    without its last axis.

    An ordinary norm is called a spike with probability 10⁻¹⁰ if the logarithms are normal, and with
    0.1/81 = 0.12 % if the tail is a power law, however heavy.

    Example:
        >>> window = new_window("cpu")
        >>> for norm in range(1, 41):
        ...     push_(window, torch.tensor(10.02 + 0.01 * norm))
        >>> [round(float(value), 1) for value in spike_range(window)]
        [10.1, 10.4, 41.6]
    """
    # Q₉ is ∞ before enough norms were seen, and the limit with it.
    low, high = running_quantile(window, 0.1), running_quantile(window, 0.9, least=SPIKE_AFTER)
    limit = high * (high / low).clamp(min=2.0).square()
    return low, high, torch.where(torch.isfinite(high), limit, torch.full_like(high, torch.inf))


def scoped_norms(
    raws: Sequence[Sequence[Tensor]], scope: str, everyone: Any = None
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Euclidean norms of lists of tensors, over all of them, each list or each tensor.

    Args:
        raws: one list of tensors per group; a list may be empty.
        scope: over what the norm is taken that counts for a list: ``"all"``, ``"group"`` or
            ``"tensor"``.
        everyone: the processes over which the lists are spread as whole tensors (ZeRO); None for
            this one. With it the call is a collective one.

    Returns:
        Per list the norm that counts for it, per list its own norm, and the norm of all, in
        float64. Norms are 0-dim, but with ``"tensor"`` those of a list have one entry per tensor.

    Example:
        >>> norms, own, total = scoped_norms([[torch.tensor([3.0])], [torch.tensor([4.0])]], "all")
        >>> [float(n) for n in norms], [float(n) for n in own], float(total)
        ([5.0, 5.0], [3.0, 4.0], 5.0)
        >>> [
        ...     float(n)
        ...     for n in scoped_norms([[torch.tensor([3.0])], [torch.tensor([4.0])]], "group")[0]
        ... ]
        [3.0, 4.0]
    """
    if scope == "tensor":
        own_norms = [torch.stack([robust_norm([t], wide=True) for t in raw]) for raw in raws]
    else:
        own_norms = [robust_norm(raw, wide=True) for raw in raws]
    device = next((t.device for raw in raws for t in raw), own_norms[0].device)
    if everyone is not None and scope != "tensor":
        own_norms = list(
            norms_over_processes(torch.stack([n.to(device) for n in own_norms]), everyone)
        )
    # One list alone: its norm is that of all, and nothing needs to be joined.
    single = len(own_norms) == 1 and scope != "tensor"
    total = own_norms[0] if single else robust_norm([n.to(device) for n in own_norms])
    if everyone is not None and scope == "tensor":
        total = norms_over_processes(total, everyone)
    return ([total] * len(own_norms) if scope == "all" else own_norms), own_norms, total


def norms_over_processes(norms: Tensor, everyone: Any) -> Tensor:
    """Norms over all processes, √(Σ n²), from each process's own norms n. A collective call.

    Each is divided by the largest before it is squared, so that no square overflows or vanishes.

    Args:
        norms: any shape, the same on all processes; entries are reduced one by one.
        everyone: the process group.
    """
    import torch.distributed as dist

    peak = norms.clone()
    dist.all_reduce(peak, dist.ReduceOp.MAX, group=everyone)
    # Where all norms are 0, or one is not finite, the largest is the answer itself.
    ordinary = (peak > 0) & torch.isfinite(peak)
    scale = torch.where(ordinary, peak, torch.ones_like(peak))
    squares = (norms / scale).square()
    dist.all_reduce(squares, group=everyone)
    return torch.where(ordinary, squares.sqrt() * scale, peak)


def zero_redundancy_group() -> Any:
    """The process group of the ``ZeroRedundancyOptimizer`` that is building this optimizer; None if
    none is. torch does not hand it over, so it is looked for in the variables of all callers.
    """
    import sys

    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    frame = sys._getframe() if module else None
    while frame is not None:
        builder = frame.f_locals.get("self")
        if isinstance(builder, module.ZeroRedundancyOptimizer):  # type: ignore[union-attr]
            return builder.process_group
        frame = frame.f_back
    return None


def refuse_nonfinite(groups: Sequence[Mapping[str, Any]]) -> NoReturn:
    """Raise the error of ``nonfinite="raise"``. It names the first parameter whose gradient is not
    finite; where all are finite, it says that their norm overflowed.
    """
    rule = "must be finite (nonfinite='raise')"
    for i, group in enumerate(groups):
        names = group.get("param_names") or [
            f"parameter {j} of group {i}" for j in range(len(group["params"]))
        ]
        for name, p in zip(names, group["params"], strict=True):
            grad = torch.zeros(0) if p.grad is None else local(p.grad)
            grad = grad.coalesce().values() if grad.is_sparse else grad
            bad = grad[~grad.isfinite()]
            if len(bad):
                fail("gradients", f"{rule}: that of {name}, shape {tuple(p.shape)}", bad[0].item())
    fail("gradients", rule, "a norm beyond the range of its type")
