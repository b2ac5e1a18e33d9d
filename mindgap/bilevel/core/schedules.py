"""Step sizes and weights as functions of the iteration, computed on the host and handed to a step
as numbers.

All accept a whole number or an array of them, so that many iterations are prepared at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindgap.base.check import fail, non_negative, positive

#: One iteration, or an array of them.
Times = int | NDArray[np.int64]


@dataclass(frozen=True)
class Power:
    """``c / (t + shift) ** exponent``.

    Example:
        >>> Power(1.0, 0.5)(3)
        0.5
        >>> Power(2.0, 1.0)(np.arange(3)).round(4).tolist()
        [2.0, 1.0, 0.6667]
    """

    c: float
    exponent: float
    shift: float = 1.0

    def __post_init__(self) -> None:
        positive("c", self.c)
        non_negative("exponent", self.exponent)
        positive("shift", self.shift)

    def __call__(self, t: Times) -> Any:
        return self.c / (t + self.shift) ** self.exponent


@dataclass(frozen=True)
class Constant:
    """The same number at every iteration.

    Example:
        >>> Constant(0.1)(7)
        0.1
    """

    c: float

    def __post_init__(self) -> None:
        non_negative("c", self.c)

    def __call__(self, t: Times) -> Any:
        return self.c


@dataclass(frozen=True)
class StormWeight:
    """STORM's weight tied to the step: ``a_0 = 1`` and ``a_{t+1} = min(1, c * eta_t ** 2)``.

    Example:
        >>> weight = StormWeight(0.5, Power(1.0, 1 / 3))
        >>> weight(0), weight(1), round(weight(8), 6)
        (1.0, 0.5, 0.125)
    """

    c: float
    eta: Callable[[Any], Any]

    def __call__(self, t: Times) -> Any:
        before = np.maximum(np.asarray(t) - 1, 0)
        weight = np.where(np.asarray(t) == 0, 1.0, np.minimum(1.0, self.c * self.eta(before) ** 2))
        return weight if np.ndim(weight) else float(weight)


@dataclass(frozen=True)
class Product:
    """A number times a schedule.

    Example:
        >>> Product(2.0, Power(1.0, 0.5))(3)
        1.0
    """

    c: float
    schedule: Callable[[Any], Any]

    def __post_init__(self) -> None:
        positive("c", self.c)

    def __call__(self, t: Times) -> Any:
        return self.c * self.schedule(t)


@dataclass(frozen=True)
class PerStep:
    """A user's function of one iteration, made to accept arrays.

    Example:
        >>> PerStep(lambda t: 1.0 if t < 2 else 0.5)(np.arange(3)).tolist()
        [1.0, 1.0, 0.5]
    """

    function: Callable[[int], float]
    name: str = "rate"

    def _value_at(self, t: int) -> float:
        try:
            value = float(self.function(t))
        except Exception as error:
            fail(self.name, f"must return a number at iteration {t} ({error})", self.function)
        return non_negative(f"{self.name}({t})", value)

    def __call__(self, t: Times) -> Any:
        if np.ndim(t) == 0:
            return self._value_at(int(np.asarray(t)))
        return np.array([self._value_at(int(i)) for i in np.ravel(t)]).reshape(np.shape(t))


#: A number, or a function of the iteration.
Rate = float | Power | Constant | StormWeight | Product | Callable[[Any], Any]


def as_schedule(name: str, rate: Rate, exponent: float = 0.0) -> Callable[[Any], Any]:
    """A number becomes ``number / (1 + t) ** exponent``; a function of the iteration is taken as it
    is.

    Raises:
        RuleError: for a number that is not positive and finite, or something that is neither.

    Example:
        >>> as_schedule("lr", 1.0, 0.5)(3), as_schedule("lr", lambda t: 2.0 * t)(3)
        (0.5, 6.0)
    """
    if isinstance(rate, (Power, Constant, StormWeight, Product, PerStep)):
        return rate
    if callable(rate):
        return PerStep(rate, name)
    if isinstance(rate, bool) or not isinstance(rate, (int, float)):
        fail(name, "must be a positive number or a function of the iteration", rate)
    positive(name, rate)
    return Power(float(rate), exponent) if exponent else Constant(float(rate))
