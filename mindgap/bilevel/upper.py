"""Upper steps: how far to go along the direction of x."""

from __future__ import annotations

from typing import Any

from mindgap.base.check import fail, one_of


def _allowed(oracle: Any, x: Any) -> Any:
    return x if oracle.project_x is None else oracle.project_x(x)


def plain(oracle: Any, x: Any, d: Any, lr: Any) -> Any:
    """``x - lr d``, projected if the problem says so."""
    return _allowed(oracle, oracle.ops.move(x, d, lr))


def normalised(oracle: Any, x: Any, d: Any, lr: Any, eps: float = 1e-10) -> Any:
    """``x - lr d / (||d|| + eps)``: the global norm over all of x (SLIP, BO-REP)."""
    return _allowed(oracle, oracle.ops.move(x, d, lr / (oracle.ops.norm(d) + eps)))


def clipped(oracle: Any, x: Any, d: Any, lr: Any, eps: float = 1e-10) -> Any:
    """``x - lr min(1, 1 / ||d||) d``: as :func:`normalised` far away, plain near a stationary point."""
    ops = oracle.ops
    return _allowed(oracle, ops.move(x, d, lr * ops.minimum(1.0 / (ops.norm(d) + eps), 1.0)))


STEPS = {"plain": plain, "normalised": normalised, "clipped": clipped}


class TorchStep:
    """Any ``torch.optim`` optimizer as the upper step (torch only; its state travels with the method's state).

    Args:
        optimizer: the class.
        settings: its keyword arguments. The method's ``lr_x`` is not used.

    Example:
        >>> import torch
        >>> TorchStep(torch.optim.Adam, lr=0.1)
        TorchStep(Adam, lr=0.1)
    """

    def __init__(self, optimizer: type, **settings: Any) -> None:
        import torch

        if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
            fail("optimizer", "must be a torch.optim.Optimizer class", optimizer)
        self.optimizer = optimizer
        self.settings = settings

    def __repr__(self) -> str:
        return f"TorchStep({', '.join([self.optimizer.__name__, *(f'{k}={v!r}' for k, v in self.settings.items())])})"

    def start(self, x: Any) -> Any:
        """The optimizer on a copy of x."""
        import torch

        return self.optimizer([torch.nn.Parameter(x.detach().clone())], **self.settings)

    def __call__(self, oracle: Any, x: Any, d: Any, optimizer: Any) -> Any:
        """One step of the optimizer from x along d."""
        import torch

        (parameter,) = optimizer.param_groups[0]["params"]
        with torch.no_grad():
            parameter.copy_(x)
            parameter.grad = d.detach().clone()
            optimizer.step()
            return _allowed(oracle, parameter.detach().clone())


def check_step(x_step: Any) -> None:
    """Refuse what is not an upper step.

    Example:
        >>> check_step("normalized")
        Traceback (most recent call last):
        mindgap.base.check.RuleError: x_step must be one of 'plain', 'normalised', 'clipped' (did you mean ...
    """
    if not isinstance(x_step, TorchStep):
        one_of("x_step", x_step, tuple(STEPS))
