"""Literal transcriptions of chapter 4, in loops and in the paper's letters; slow on purpose."""

from __future__ import annotations

import math

from scipy.integrate import quad


def Psi(x: float) -> float:
    """Ψ of 4.7.7."""
    return 0.0 if x <= 0.5 else math.exp(1 - 1 / (2 * x - 1) ** 2)


def Phi(x: float) -> float:
    """Φ of 4.7.7, by quadrature of its integral."""
    return math.sqrt(math.e) * quad(lambda t: math.exp(-(t**2) / 2), -math.inf, x)[0]


def f_d(x: list[float]) -> float:
    """The zero-chain, term by term; x_(1) is x[0]."""
    d = len(x)
    total = -Psi(1) * Phi(x[0])
    for i in range(2, d + 1):
        total += Psi(-x[i - 2]) * Phi(-x[i - 1]) - Psi(x[i - 2]) * Phi(x[i - 1])
    return total


def prog(beta: float, x: list[float]) -> int:
    """prog_β(x) = max{i in [d] : |x_(i)| > β}, 0 for none."""
    indices = [i for i in range(1, len(x) + 1) if abs(x[i - 1]) > beta]
    return max(indices) if indices else 0


def g_d(x: list[float], z: int, p: float, gradient: list[float]) -> list[float]:
    """The oracle g_d(x)_(i) = (1 + 1{i = prog_{1/4}(x) + 1}(z/p - 1)) ∂f_d/∂x_(i)."""
    star = prog(0.25, x) + 1
    return [(1 + (i == star) * (z / p - 1)) * gradient[i - 1] for i in range(1, len(x) + 1)]


def projected_clip(
    kind: str,
    mu: float,
    optimum: float,
    x0: list[float],
    xi: list[list[float]],
    G: float,
    B: list[float],
    alpha: float,
) -> list[float]:
    """x̄_K of (proj-GClip) or (CClip) on f(x) = μ‖x - x*‖²/2, box [-1, 1], steps and thresholds
    of the proofs.
    """
    x, weighted = list(x0), [0.0] * len(x0)
    for k in range(1, len(xi) + 1):
        weighted = [s + k * v for s, v in zip(weighted, x, strict=True)]  # x̄_k = Σ j x_{j-1} / Σ j
        g = [mu * (v - optimum) + n for v, n in zip(x, xi[k - 1], strict=True)]
        eta = 4 / (mu * (k + 1))
        if kind == "gclip":
            tau = G * k ** (1 / alpha)
            norm = math.sqrt(sum(v * v for v in g))
            g = [min(tau / norm, 1) * v for v in g]
        else:
            g = [min(b * k ** (1 / alpha) / abs(v), 1) * v for v, b in zip(g, B, strict=True)]
        x = [min(1.0, max(-1.0, v - eta * w)) for v, w in zip(x, g, strict=True)]
    K = len(xi)
    return [s / (K * (K + 1) / 2) for s in weighted]
