"""A look at a problem before the first step: what do its losses need, and what cannot work?"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindgap.base.check import RuleError, fail
from mindgap.base.count import OracleCount
from mindgap.bilevel.backends.oracles import TorchOracle
from mindgap.bilevel.data.sample import Batches, Sample, row


def try_problem(
    oracle: TorchOracle, seed: int = 0, *, second_order: bool = True, needs_x: bool = True
) -> None:
    """Evaluate both levels once at the start; find out what they need and refuse what cannot work.

    Sets the oracle's ``seeded`` when a loss draws random numbers (so samples seed it) and
    ``plain_kernels`` when a kernel in the lower loss has no double backward.

    Args:
        oracle: torch derivatives of the problem.
        seed: of the two minibatches that are tried.
        second_order: whether Hessian products are needed.
        needs_x: whether a loss must depend on x.

    Raises:
        RuleError: a loss that is not one finite number, a lower loss that does not depend on y, an
            upper level that does not depend on x even through y, a loss that fails (devices,
            shapes, missing double backward).

    Example:
        >>> from mindgap.bilevel import BilevelProblem
        >>> loss, zero, data = lambda x, y, b: (x * b).sum(), torch.zeros(1), torch.ones(2)
        >>> problem = BilevelProblem(loss, loss, zero, zero, data, data, batch_size=1)
        >>> try_problem(TorchOracle(problem))
        Traceback (most recent call last):
        mindgap.base.check.RuleError: lower must depend on y, got 'a loss without gradient in y'
    """
    problem = oracle.problem
    x, y = _projected_start(oracle)
    lower_sample = row(problem.lower_data.draw(seed, "lower", 0, 1), 0)
    upper_sample = row(problem.upper_data.draw(seed, "upper", 0, 1), 0)
    for name in ("upper_data", "lower_data"):
        data = getattr(problem, name)
        if isinstance(data, Batches) and data.is_tensors:
            devices = data.devices()
            if data.device is None and devices != {problem.device}:
                rule = f"must be on the device of x and y, {problem.device}"
                fail(name, rule, sorted(map(str, devices)))
    lower_needs_x, lower_needs_y = _try_level(oracle, "lower", x, y, lower_sample)
    if not lower_needs_y:
        fail("lower", "must depend on y", "a loss without gradient in y")
    upper_needs_x, upper_needs_y = _try_level(oracle, "upper", x, y, upper_sample)
    if needs_x and not upper_needs_x and not (upper_needs_y and lower_needs_x):
        rule = "must depend on x, directly or through y*(x)"
        fail("upper", rule, "a problem whose value does not change with x")
    if second_order:
        _try_second_derivatives(oracle, x, y, lower_sample)


def _projected_start(oracle: TorchOracle) -> tuple[Tensor, Tensor]:
    """x and y at the start, projected; refuses projections of another form, shape or dtype."""
    problem = oracle.problem
    for pack, project in ((problem.pack_x, oracle.project_x), (problem.pack_y, oracle.project_y)):
        if project is None:
            continue
        name = f"project_{pack.name}"
        rule = f"must return {pack.name} in the form and shape it was handed over"
        try:
            projected = project(pack.start.clone())
        except RuleError:
            raise
        except Exception as error:
            raise RuleError(f"{name} {rule}, got {error}") from error
        if not isinstance(projected, Tensor) or projected.shape != pack.start.shape:
            is_tensor = isinstance(projected, Tensor)
            fail(name, rule, tuple(projected.shape) if is_tensor else type(projected).__name__)
        if projected.dtype != pack.dtype or not bool(torch.isfinite(projected).all()):
            fail(name, f"must return finite numbers of {pack.dtype}", projected)
    x, y = oracle.start
    return x.detach().clone(), y.detach().clone()


def _try_level(
    oracle: TorchOracle, level: str, x: Tensor, y: Tensor, sample: Sample
) -> tuple[bool, bool]:
    """Whether the loss of one level depends on x, and on y, at the start.

    Refuses a loss that cannot be computed, is not one finite number or differs when computed twice;
    sets ``oracle.seeded`` where the loss draws random numbers.
    """
    problem = oracle.problem
    x, y = x.requires_grad_(), y.requires_grad_()
    batch = problem.data(level).fetch(sample)

    def evaluate() -> Tensor:
        """The loss on the batch at (x, y), with a graph."""
        with torch.enable_grad():
            return oracle.loss(level, problem.view_x(x), problem.view_y(y), batch, sample)

    states_before = _random_states(x.device)
    try:
        loss = evaluate()
    except RuleError:
        raise
    except Exception as error:
        sizes = f"x {problem.pack_x.shapes}, y {problem.pack_y.shapes}"
        raise RuleError(
            f"{level} must be computable at the start ({sizes}), got {error}"
        ) from error
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        fail(level, "must return a tensor with one element", shape)
    if not bool(torch.isfinite(loss.detach()).all()):
        fail(level, "must be finite at the start", float(loss.detach()))
    if not oracle.seeded and _random_states(x.device) != states_before:
        oracle.seeded = True
        loss = evaluate()  # now from the sample's seed
    with torch.no_grad():
        repeated_loss = evaluate()
    loss_value, repeated_value = float(loss.detach()), float(repeated_loss.detach())
    # Kernels may add in another order: a difference of 0.1 % is no random number.
    if abs(loss_value - repeated_value) > 1e-6 + 1e-3 * abs(repeated_value):
        rule = (
            "must give the same value twice on one sample (draw random numbers from torch, "
            "np.random or random only)"
        )
        fail(level, rule, (loss_value, repeated_value))
    if not loss.requires_grad:
        return False, False
    g_x, g_y = torch.autograd.grad(loss, (x, y), allow_unused=True)
    return g_x is not None, g_y is not None


def _random_states(device: torch.device) -> list[object]:
    """States of the global random number generators of torch, NumPy, Python and CUDA."""
    of_numpy: Any = np.random.get_state()
    states: list[object] = [
        torch.get_rng_state().tolist(),
        random.getstate(),
        of_numpy[1].tolist(),  # the key and the position of its Mersenne twister
        of_numpy[2],
    ]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device).tolist())
    return states


def _try_second_derivatives(oracle: TorchOracle, x: Tensor, y: Tensor, sample: Sample) -> None:
    """Take one double backward, uncounted and on this rank alone; sets ``plain_kernels`` where that
    fails, and refuses the loss where it fails with plain kernels too.
    """
    x, y = x.detach(), y.detach()
    calls, share = oracle.calls, oracle.share
    oracle.calls, oracle.share = OracleCount(), (0, 1)
    try:
        for plain_kernels in (False, True):
            oracle.plain_kernels = plain_kernels
            try:
                oracle.system(x, y, torch.ones_like(y), sample)
                return
            except (RuntimeError, NotImplementedError) as error:
                if plain_kernels:
                    raise RuleError(f"lower must be differentiable twice, got {error}") from error
    finally:
        oracle.calls, oracle.share = calls, share
