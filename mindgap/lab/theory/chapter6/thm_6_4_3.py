"""Theorems 6.4.3 and 6.4.4: time averages without a limit, and what the empirical measures do converge to.

The thesis takes its example from a note of Yoccoz. A smaller one does: the shift on sequences of zeros and ones,
which is θ -> 3θ mod 1 on Cantor's set, started at a sequence whose blocks double in length.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from mindgap.base.check import whole


def block_symbol(k: int) -> int:
    """The k-th symbol (k = 0, 1, ...): 1 on the blocks [2^j - 1, 2^(j+1) - 1) with odd j, else 0.

    Example:
        >>> [block_symbol(k) for k in range(15)]
        [0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]

    Source: an example for thesis, Theorem 6.4.3.
    """
    return ((whole("k", k) + 1).bit_length() - 1) % 2


def block_average(n: int) -> Fraction:
    """(1/n) Σ_{k<n} φ(θ_k), exactly, for φ = the first symbol: it swings between 1/3 and 2/3 for ever.

    Example:
        >>> [str(block_average(2**j - 1)) for j in (2, 3, 4, 5)]
        ['2/3', '2/7', '2/3', '10/31']

    Source: thesis, Theorem 6.4.3.
    """
    whole("n", n, least=1)
    ones = sum(min(2 ** (j + 1), n + 1) - 2**j for j in range(1, n.bit_length() + 1, 2) if 2**j < n + 1)
    return Fraction(ones, n)


def block_point(k: int, digits: int = 40) -> float:
    """θ_k in Cantor's set: Σ_i 2 s_{k+i} 3^-(i+1) over the symbols from the k-th on.

    The map θ -> 3θ mod 1 is continuous on that set, and the first symbol is the smooth function "left or right
    third" there.

    Example:
        >>> abs(block_point(3) - (3 * block_point(2)) % 1) < 1e-12
        True

    Source: an example for thesis, Theorem 6.4.3.
    """
    return sum(2 * block_symbol(k + i) * 3.0 ** -(i + 1) for i in range(digits))


def limit_weights(last_symbol: int) -> tuple[Fraction, Fraction]:
    """Weights on the fixed points 000... and 111... of the limit along the ends of blocks of that symbol.

    Along n = 2^j - 1 the measures μ_n converge to (2/3, 1/3) or (1/3, 2/3) on the two fixed points of the shift:
    invariant, as Theorem 6.4.4 says, and not ergodic.

    Example:
        >>> limit_weights(1)
        (Fraction(1, 3), Fraction(2, 3))

    Source: thesis, Theorem 6.4.4.

    *Differs from the paper.* The paper calls the limit ergodic; its proof shows that it is invariant.
    """
    return (Fraction(1, 3), Fraction(2, 3)) if last_symbol else (Fraction(2, 3), Fraction(1, 3))


def halving_map(theta: float) -> float:
    """F(θ) = θ/2 for θ > 0 and F(0) = 1: maps [0, 1] into itself and has no invariant distribution.

    Its empirical measures converge to the point mass at 0, which F moves to 1. So Theorem 6.4.4 needs F to be
    continuous; gradient descent on a function with kinks is not.

    Example:
        >>> halving_map(1.0), halving_map(0.0)
        (0.5, 1.0)

    Source: thesis, Theorem 6.4.4 (counter-example to the statement without continuity).
    """
    return theta / 2 if theta > 0 else 1.0


def invariance_defect(step: Callable[[float], float], points: list[float], weights: list[float],
                      test: Callable[[float], float]) -> float:
    """|Σ w_i (φ(θ_i) - φ(F(θ_i)))|: zero for every φ exactly when Σ w_i δ_{θ_i} is invariant.

    Example:
        >>> invariance_defect(halving_map, [0.0], [1.0], lambda theta: theta)
        1.0

    Source: thesis, 6.4.1 (definition of an invariant measure).
    """
    return abs(sum(w * (test(p) - test(step(p))) for p, w in zip(points, weights, strict=True)))
