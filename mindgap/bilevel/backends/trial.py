"""A look at a problem before the first step: what do its losses need, and what cannot work?"""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from mindgap.base.calls import check_loss
from mindgap.base.check import RuleError, error_words, fail
from mindgap.base.count import OracleCount
from mindgap.base.restoring import random_states, seeded
from mindgap.bilevel.backends.oracles import TorchOracle
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Batches, Sample, Stream, row


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
    if torch.is_inference_mode_enabled():
        fail("torch.inference_mode()", "must be left where derivatives are taken", True)
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
    if not upper_needs_x and not (upper_needs_y and (lower_needs_x or not needs_x)):
        fail("upper", "must depend on x, directly or through y*(x)", "a problem that does not")
    if second_order:
        _try_second_derivatives(oracle, x, y, lower_sample)


def tried_oracle(problem: BilevelProblem) -> TorchOracle:
    """The oracle of a problem that knows what the losses need, from one trial that may fail."""
    oracle = TorchOracle(problem)
    if problem.needs is None:
        with suppress(Exception):
            try_problem(oracle, needs_x=False)
        problem.needs = oracle.seeded, oracle.plain_kernels
    oracle.seeded, oracle.plain_kernels = problem.needs
    return oracle


def _projected_start(oracle: TorchOracle) -> list[Tensor]:
    """x and y at the start, projected; refuses a projection that fails or is not finite there."""
    packs, vectors = (oracle.problem.pack_x, oracle.problem.pack_y), []
    for pack, project in zip(packs, (oracle.project_x, oracle.project_y), strict=True):
        vector, rule = pack.start.clone(), f"must return finite numbers at the start of {pack.name}"
        if project is not None:
            try:
                vector = project(vector).detach()
            except RuleError:
                raise
            except Exception as error:
                raise RuleError(f"project_{pack.name} {rule}, got {error_words(error)}") from error
            if not bool(vector.isfinite().all()):
                fail(f"project_{pack.name}", rule, vector)
        vectors.append(vector)
    return vectors


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

    try:
        # The user's own random numbers stay where they were.
        with seeded(int(sample.seed)):
            states_before = random_states()
            loss = evaluate()
            draws_numbers = random_states() != states_before
    except RuleError:
        raise
    except Exception as error:
        sizes = f"x {problem.pack_x.shapes}, y {problem.pack_y.shapes}"
        raise RuleError(
            f"{level} must be computable at the start ({sizes}), got {error_words(error)}"
        ) from error
    check_loss(level, loss)
    if not bool(torch.isfinite(loss.detach()).all()):
        fail(level, "must be finite at the start", float(loss.detach()))
    if draws_numbers and not oracle.seeded:
        oracle.seeded = True
        loss = evaluate()  # now from the sample's seed
    if type(problem.data(level)) is Stream:
        batch = problem.data(level).fetch(sample)
    with torch.no_grad():
        repeated_loss = evaluate()
    loss_value, repeated_value = float(loss.detach()), float(repeated_loss.detach())
    # Kernels may add in another order: a difference of 0.1 % is no random number.
    if abs(loss_value - repeated_value) > 1e-6 + 1e-3 * abs(repeated_value):
        rule = (
            "must give the same value twice on one sample (draw random numbers from torch, "
            "np.random or random only; a Stream must give equal batches for equal seeds)"
        )
        fail(level, rule, (loss_value, repeated_value))
    if not loss.requires_grad:
        return False, False
    g_x, g_y = torch.autograd.grad(loss, (x, y), allow_unused=True)
    return g_x is not None, g_y is not None


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
