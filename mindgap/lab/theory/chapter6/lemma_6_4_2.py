"""Lemma 6.4.2: gradient descent whose loss, averaged over a window of n steps, never settles.

Two functions of one variable. :class:`Sawtooth` is (6.11) as printed; :class:`SteepSawtooth` visits
the same points and has the jump that the proof claims for the printed one. Standard library only;
the functions take one number.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from mindgap.base.checked import Count


@dataclass(frozen=True)
class _Orbit(ABC):
    """Gradient descent with step 1 from θ_0 = 0.2/(n+1), which returns after n+1 steps."""

    n: Count

    @property
    def start(self) -> float:
        """θ_0 = 0.2/(n+1)."""
        return 0.2 / (self.n + 1)

    @property
    def period(self) -> int:
        """n + 1."""
        return self.n + 1

    def point(self, k: int) -> float:
        """θ_k = -1 + (k + 0.2)/(n+1) for k = 1, ..., n+1, continued with period n+1; θ_{n+1} =
        θ_0.
        """
        k_in_period = (k - 1) % self.period + 1  # 1, ..., n+1
        return -1 + (k_in_period + 0.2) / (self.n + 1)

    @abstractmethod
    def value(self, theta: Any) -> Any:
        """f(θ)."""

    @abstractmethod
    def gradient(self, theta: float) -> float:
        """f'(θ); at a kink the left derivative, an element of the generalized gradient."""

    def step(self, theta: float) -> float:
        """F(θ) = θ - f'(θ), one step of gradient descent with step size 1."""
        return theta - self.gradient(theta)

    def window_average(self, t: int) -> float:
        """M_t = (1/n) Σ_{i=t}^{t+n-1} f(θ_i) on the exact orbit."""
        return math.fsum(self.value(self.point(i)) for i in range(t, t + self.n)) / self.n

    @property
    def jump(self) -> float:
        """limsup |M_t - M_{t-1}| = max_k |f(θ_k) - f(θ_{k+1})| / n over one period, with M_t of
        ``window_average``.
        """
        values = [self.value(self.point(k)) for k in range(self.period + 1)]
        return max(abs(a - b) for a, b in itertools.pairwise(values)) / self.n


@dataclass(frozen=True)
class Sawtooth(_Orbit):
    """(6.11): f(θ) = -θ/(n+1) for θ <= 0 and nθ/(n+1) for θ > 0 (thesis, 6.7.2).

    1-Lipschitz; gradient descent with step 1 maps [-n/(n+1), 1/(n+1)] into itself and has period
    n+1.

    Example:
        >>> f = Sawtooth(n=4)
        >>> theta, visited = f.start, []
        >>> for _ in range(5):
        ...     theta = f.step(theta)
        ...     visited.append(round(theta, 9))
        >>> visited, [round(f.point(k), 9) for k in range(1, 6)]
        ([-0.76, -0.56, -0.36, -0.16, 0.04], [-0.76, -0.56, -0.36, -0.16, 0.04])

    *Differs from the paper.* 6.7.2 prints θ_k = -1 + (k - 0.8)/(n+1): one step behind. It states
    that |f(θ_0) - f(θ_1)| >= 1/2, hence jumps of at least 1/(2n); the difference is
    (0.8n - 0.2)/(n+1)², and the jumps are of order 1/n². It states that the values in a period are
    distinct; two are equal when 5 divides n+1.
    """

    def value(self, theta: Any) -> Any:
        """f(θ) of (6.11)."""
        return (-theta if theta <= 0 else self.n * theta) / (self.n + 1)

    def gradient(self, theta: float) -> float:
        """f'(θ) of (6.11), at 0 from the left."""
        return (-1 if theta <= 0 else self.n) / (self.n + 1)


#: Where the first iterate to the left of 0 lies, in units of -1/(n+1): 1 less the 0.2 of θ_0.
_FIRST_PLACE = 0.8


@dataclass(frozen=True)
class SteepSawtooth(_Orbit):
    """A 1-Lipschitz function with the same orbit whose window averages jump by at least 1/(2n) for
    n >= 2.

    Gradient descent sees a function at its iterates only. So f falls with slope -1 between the
    iterates and has the slopes of (6.11) in a small interval around each of them: f(θ_1) - f(θ_0)
    is then near 1 instead of near 0.8/n.
    Source: thesis, Lemma 6.4.2.

    Example:
        >>> steep, printed = SteepSawtooth(n=10), Sawtooth(n=10)
        >>> steep.jump >= 1 / 20, printed.jump >= 1 / 20
        (True, False)

    *Differs from the paper.* Not in the paper: it repairs the proof, whose function does not have
    the stated jump.
    """

    #: Half the width of a flat interval, in units of the distance 1/(n+1) between neighbours.
    _half_width = 0.05

    def _flat_length(self, theta: float) -> float:
        """Length of the flat intervals inside [θ, 0] for θ <= 0, in units of 1/(n+1).

        In these units, to the left of 0, the iterates lie at 0.8, 1.8, ..., n - 0.2, each in the
        middle of a flat interval of length 2·``_half_width``.
        """
        place, width = -theta * (self.n + 1), 2 * self._half_width
        whole_intervals = min(max(math.floor(place - _FIRST_PLACE + 0.5), 0), self.n)
        if whole_intervals == self.n:
            return width * self.n
        # The part of the next interval that [θ, 0] holds.
        inside = place - (_FIRST_PLACE + whole_intervals - self._half_width)
        return width * whole_intervals + min(max(inside, 0.0), width)

    def value(self, theta: Any) -> Any:
        """f(θ): slope n/(n+1) to the right of 0. To the left f falls with slope -1, and with
        -1/(n+1) only on the flat intervals.
        """
        spacing = 1 / (self.n + 1)
        if theta > 0:
            return self.n * spacing * theta
        return -theta - spacing * self._flat_length(theta) * (1 - spacing)

    def gradient(self, theta: float) -> float:
        """f'(θ): n/(n+1) to the right of 0, -1/(n+1) near the points of the orbit, -1 elsewhere."""
        spacing = 1 / (self.n + 1)
        if theta > 0:
            return self.n * spacing
        # Places to the left of 0 in units of 1/(n+1); the orbit's are 0.8, 1.8, ..., n - 0.2.
        place = -theta * (self.n + 1)
        nearest = min(max(round(place - _FIRST_PLACE), 0), self.n - 1) + _FIRST_PLACE
        return -spacing if abs(place - nearest) <= self._half_width else -1.0
