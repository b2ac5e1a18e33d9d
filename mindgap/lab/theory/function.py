"""Test functions with a closed gradient, written once for numpy arrays and torch tensors.

A theorem's dynamics run over many seeds and constants at once in numpy; the optimizers and autograd
need torch. Both read the same formulas: ``value`` and ``gradient`` take either kind of array and
return the same kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from mindgap.base.checked import check_arguments

if TYPE_CHECKING:
    from mindgap.base.objective import Objective


def namespace(x: Any) -> ModuleType:
    """The module whose functions act on ``x``: torch for tensors, numpy for everything else.

    Example:
        >>> namespace(np.zeros(2)).__name__
        'numpy'
    """
    if type(x).__module__.partition(".")[0] == "torch":
        import torch

        return torch
    return np


class Function(ABC):
    """A function R^d -> R with a closed gradient.

    ``dimension`` is 1 for functions of one variable, which act on every entry of an array by
    itself; otherwise the last axis of ``x`` is the vector and all other axes are independent
    points.

    Example:
        >>> class Square(Function):
        ...     def value(self, x):
        ...         return x * x / 2
        ...
        ...     def gradient(self, x):
        ...         return x
        >>> Square().gradient_norm(np.array([-2.0, 1.0])).tolist()
        [2.0, 1.0]
    """

    dimension: int = 1

    @abstractmethod
    def value(self, x: Any) -> Any:
        """f(x) at every point."""

    @abstractmethod
    def gradient(self, x: Any) -> Any:
        """∇f(x) at every point, by formula."""

    def gradient_norm(self, x: Any) -> Any:
        """‖∇f(x)‖ at every point: |f'| of every entry in one variable, else the norm along the
        last axis, which falls away.
        """
        gradient = self.gradient(x)
        xp = namespace(gradient)
        return xp.abs(gradient) if self.dimension == 1 else xp.sqrt((gradient * gradient).sum(-1))

    def sample_value(self, x: Any, batch: Any | None) -> Any:
        """The loss of one batch; f itself where the function has no samples."""
        return self.value(x)

    def objective(self, x0: Any) -> Objective:
        """The function as an objective for any optimizer. Its model has one parameter ``x``.

        Args:
            x0: where ``x`` starts, copied as float64.

        Returns:
            An objective whose loss is the sum of ``sample_value(x, batch)``.
        """
        import torch

        from mindgap.base.objective import Objective

        class Point(torch.nn.Module):
            """The model: one parameter ``x``, which starts at a copy of ``x0``."""

            def __init__(self) -> None:
                super().__init__()
                self.x = torch.nn.Parameter(torch.as_tensor(x0, dtype=torch.float64).clone())

        return Objective(Point(), lambda model, batch: self.sample_value(model.x, batch).sum())


check_arguments(__name__)
