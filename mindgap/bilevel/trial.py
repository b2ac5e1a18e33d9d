"""A look at a problem before the first step: what do its losses need, and what cannot work?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mindgap.base.check import RuleError, fail
from mindgap.base.count import OracleCount
from mindgap.bilevel.sample import Batches, Sample, row

if TYPE_CHECKING:
    from mindgap.bilevel.oracles import TorchOracle


def try_problem(oracle: TorchOracle, seed: int = 0, *, second_order: bool = True) -> None:
    """Evaluate both levels once at the start; find out what they need and refuse what cannot work.

    Sets the oracle's ``seeded`` when a loss draws random numbers (so tokens seed it) and ``plain_kernels`` when a
    kernel in the lower loss has no double backward.

    Args:
        oracle: torch derivatives of the problem.
        seed: of the two minibatches that are tried.
        second_order: whether Hessian products are needed.

    Raises:
        RuleError: a loss that is not one finite number, a lower loss that does not depend on y, an upper level that
            does not depend on x even through y, a loss that fails (devices, shapes, missing double backward).

    Example:
        >>> from mindgap.bilevel import BilevelProblem
        >>> from mindgap.bilevel.oracles import TorchOracle
        >>> problem = BilevelProblem(lambda x, y, b: (x * b).sum(), lambda x, y, b: (x * b).sum(), torch.zeros(1),
        ...                          torch.zeros(1), torch.ones(2), torch.ones(2), batch_size=1)
        >>> try_problem(TorchOracle(problem))
        Traceback (most recent call last):
        mindgap.base.check.RuleError: lower must depend on y, got 'a loss without gradient in y'
    """
    problem = oracle.problem
    x, y = oracle.start
    lower_token, upper_token = (row(problem.data(level).draw(seed, level, 0, 1), 0) for level in ("lower", "upper"))
    for name in ("upper_data", "lower_data"):
        data = getattr(problem, name)
        if isinstance(data, Batches) and data.is_tensors:
            where = data.devices()
            if where != {problem.device}:
                fail(name, f"must be on the device of x and y, {problem.device}", sorted(map(str, where)))
    loss, x_, y_ = _trial(oracle, "lower", x, y, lower_token)
    g_x, g_y = _gradients(loss, x_, y_)
    if g_y is None:
        fail("lower", "must depend on y", "a loss without gradient in y")
    loss, x_, y_ = _trial(oracle, "upper", x, y, upper_token)
    f_x, f_y = _gradients(loss, x_, y_)
    if f_x is None and (f_y is None or g_x is None):
        fail("upper", "must depend on x, directly or through y*(x)", "a problem whose value does not change with x")
    if second_order:
        _trial_second(oracle, x, y, lower_token)


def _trial(oracle: TorchOracle, level: str, x: Tensor, y: Tensor, token: Sample) -> tuple[Tensor, Tensor, Tensor]:
    problem = oracle.problem
    x_, y_ = x.requires_grad_(), y.requires_grad_()
    cuda = x.device.type == "cuda"
    before = torch.get_rng_state(), torch.cuda.get_rng_state(x.device) if cuda else None
    batch = problem.data(level).fetch(token)
    try:
        with torch.enable_grad():
            loss = oracle.loss(level, problem.view_x(x_), problem.view_y(y_), batch, token)
    except RuleError:
        raise
    except Exception as error:
        sizes = f"x {problem.pack_x.shapes}, y {problem.pack_y.shapes}"
        raise RuleError(f"{level} must be computable at the start ({sizes}), got {error}") from error
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        fail(level, "must return a tensor with one element", shape)
    if not bool(torch.isfinite(loss.detach()).all()):
        fail(level, "must be finite at the start", float(loss.detach()))
    moved = not torch.equal(before[0], torch.get_rng_state())
    if cuda and before[1] is not None:
        moved = moved or not torch.equal(before[1], torch.cuda.get_rng_state(x.device))
        torch.cuda.set_rng_state(before[1], x.device)
    torch.set_rng_state(before[0])
    oracle.seeded = oracle.seeded or moved
    return loss, x_, y_


def _trial_second(oracle: TorchOracle, x: Tensor, y: Tensor, token: Sample) -> None:
    x, y = x.detach(), y.detach()
    calls, share = oracle.calls, oracle.share
    oracle.calls, oracle.share = OracleCount(), (0, 1)
    try:
        for plain in (False, True):
            oracle.plain_kernels = plain
            try:
                oracle.system(x, y, torch.ones_like(y), token)
                return
            except (RuntimeError, NotImplementedError) as error:
                if plain:
                    raise RuleError(f"lower must be differentiable twice, got {error}") from error
    finally:
        oracle.calls, oracle.share = calls, share


def _gradients(loss: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor | None, Tensor | None]:
    if not loss.requires_grad:
        return None, None
    g_x, g_y = torch.autograd.grad(loss, (x, y), allow_unused=True)
    return g_x, g_y
