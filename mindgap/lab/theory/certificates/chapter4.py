"""Chapter 4 and acclip: clipped methods as printed."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

from mindgap.base.check import fail
from mindgap.lab.theory.certificate import Certificate


def root(value: Fraction) -> Fraction:
    """The exact square root of a fraction.

    Raises:
        RuleError: the root is not a fraction.

    Example:
        >>> root(Fraction(9, 4))
        Fraction(3, 2)
    """
    candidate = Fraction(isqrt(value.numerator), isqrt(value.denominator))
    if candidate * candidate != value:
        fail("value", "must be the square of a fraction", value)
    return candidate


def theorem_4_4_1(
    sigma: Fraction = Fraction(1000), x0: Fraction = Fraction(1), digits: int = 12
) -> Certificate:
    """Theorem 4.4.1 at α = 2 and without noise: GClip with the printed step is gradient descent on
    x²/2, and the mean of x_k² exceeds the printed bound.

    With η = x0/(σ √(2K)), which is the printed third choice, Σ_{k=1..K} x_k² is a geometric sum.
    K is such that η is the fraction 1000·10^-digits·x0/σ.

    Args:
        sigma: σ, the bound of the noise, which is 0 here.
        x0: the start, at most 1.
        digits: sets K, as above; an error where K is not whole.
    """
    step = x0 / sigma * Fraction(1000, 10**digits)
    gap = x0**2 / 2
    horizon = gap / (sigma * step) ** 2
    if horizon.denominator != 1:
        fail("digits", "must make K whole", digits)
    K = int(horizon)
    # η is the least of these, as printed: 1/(4L), 1/(L (12σ)²) and √(f0/(σ²K)).
    choices = (Fraction(1, 4), 1 / (12 * sigma) ** 2, root(gap / (sigma**2 * K)))
    eta = min(choices)
    # With q = (1-η)²: Σ_{k=1..K} q^k = q/(1-q)·(1 - q^K), and q^K <= 1/2 once 2ηK >= 1.
    q = (1 - eta) ** 2
    least_mean = x0**2 * q / (1 - q) / 2 / K  # with 1/2 for 1 - q^K
    printed = 20 * gap * max(Fraction(4, K), (12 * sigma) ** 2 / K, root(gap / (K * sigma**2)))
    return Certificate(
        instance={"f": "x²/2", "noise": "none", "α": 2, "σ": sigma, "L": 1, "x0": x0, "K": K},
        assumptions={
            "f is 1-smooth": True,
            "E|g - f'|² = 0 <= σ²": sigma > 0,
            "η is the smallest of the three": eta == step,
            "τ = σ/√η never clips: τ² > x0²": sigma**2 / eta > x0**2,
            "x0 <= 1, so min{|f'|, f'²} = f'²": x0 <= 1,
            "2ηK >= 1": 2 * eta * K >= 1,
        },
        measured=least_mean,
        printed=printed,
        claim="at most",
        method="fractions; a lower bound of the geometric sum",
    )


def theorem_4_4_1_small_sigma() -> Certificate:
    """Theorem 4.4.1 with its last term as proved, at σ = 1/1000: GClip crawls along a slope of 1.

    α = 2, L = 1, η = 1/4, τ = 2σ, no noise, the Huber function from x = 6/5: 2000 steps of η τ =
    1/2000 end at 1/5. The mean of min{|f'|, f'²} then exceeds the bound, whose largest term is the
    first one, 20·4 L f0/K.
    """
    sigma, K, x, eta = Fraction(1, 1000), 2000, Fraction(6, 5), Fraction(1, 4)
    tau = 2 * sigma
    gap = (x - 1) + Fraction(1, 2)  # f0
    total = Fraction(0)  # of min{|f'|, f'²}
    for _ in range(K):
        x -= eta * tau  # |f'| > τ all the way
        gradient = min(x, Fraction(1))
        total += min(gradient, gradient**2)
    first_term, second_term = 20 * 4 * gap / K, 20 * (12 * sigma) ** 2 * gap / K
    last_term_square = 400 * sigma**2 * gap / K  # (20 σ √(f0/K))²
    third_choice_square = gap / (sigma**2 * K)  # of η
    return Certificate(
        instance={
            "f": "Huber function, slope 1",
            "noise": "none",
            "α": 2,
            "σ": sigma,
            "L": 1,
            "x0": Fraction(6, 5),
            "K": K,
        },
        assumptions={
            "f is 1-smooth": True,
            "E|g - f'|² = 0 <= σ²": True,
            "η = 1/4 is the smallest of the three": third_choice_square >= eta**2
            and 1 / (12 * sigma) ** 2 >= eta,
            "τ = σ (ηL)^(-1/2)": tau**2 == sigma**2 / eta,
            "every gradient is clipped": x > tau,  # x falls, so the last one is the smallest
            "the first term is the largest": last_term_square <= first_term**2
            and second_term <= first_term,
        },
        measured=total / K,
        printed=first_term,
        claim="at most",
        method="fractions; the exact run",
    )


def theorem_4_4_2(power: int = 24) -> Certificate:
    """Theorem 4.4.2 at α = 3/2 with the printed threshold τ_k = G k^(1/2): a rare jump is clipped
    to a quarter of its size up to K = 10^power, and the bias alone exceeds the bound.

    On [0, 1/4], f = (x - b)²/2; g = x/(1-p) with probability 1-p and -J otherwise, b = pJ. From x_0
    = 0 the mean m_k of x_k obeys m_k <= max(2p, p τ_k): for k >= 4 it is at most (1-η_k) m_(k-1) +
    η_k p τ_k, for k <= 3 the slope's branch is projected to 0. So E x̄_K <= p τ_K, and E f(x̄_K) >=
    (b - p τ_K)²/2.

    Args:
        power: sets K; a multiple of 12, so that all roots are whole.
    """
    K = 10**power
    tau = Fraction(10 ** (power // 2))  # τ_K, with G = 1
    jump = 4 * tau  # J
    jump_moment = (2 * Fraction(10 ** (power // 4))) ** 3  # J^(3/2)
    p = Fraction(3, 4) / jump_moment  # so that the jump's part of E|g|^(3/2) is 3/4
    domain = Fraction(1, 4)
    optimum = p * jump  # b
    most_mean = max(2 * p, p * tau)  # an upper bound of every m_k
    # The slope's part of E|g|^(3/2) is at most (1-p)^(-1/2)·(1/4)^(3/2); this is its square.
    slope_moment_square = domain**3 / (1 - p)
    return Certificate(
        instance={"α": Fraction(3, 2), "G": 1, "μ": 1, "J": jump, "p": p, "k": K, "x0": 0},
        assumptions={
            "α in (1, 2]": True,
            "f is 1-strongly convex on [0, 1/4], with its minimum inside": optimum < domain,
            "E|g|^α <= 1 on the domain: 3/4 + 1/8·(1-p)^(-1/2) <= 1": slope_moment_square
            <= Fraction(1, 16),
            "the jump is clipped up to k": jump > tau,
            "the slope is never clipped: x/(1-p) <= 1 <= τ_1": domain / (1 - p) <= 1,
            "the mean of the average stays below the minimum": most_mean < optimum,
            "10^power is a fourth power and a cube": power % 12 == 0,
        },
        measured=(optimum - most_mean) ** 2 / 2,
        printed=16 / Fraction(10 ** (2 * power // 3)),  # above 16 (k+1)^(-2/3)
        claim="at most",
        method="fractions; the bias of the mean",
    )


def lemma_2_acclip() -> Certificate:
    """g = ±1, ∇f = 0, τ = 2: nothing is clipped and the mean square error is 1."""
    tau, G = Fraction(2), Fraction(1)
    return Certificate(
        instance={"g": "±1 with probability 1/2", "∇f": 0, "α": 2, "G": G, "τ": tau},
        assumptions={"E g = ∇f": True, "E|g|² = 1 <= G²": G >= 1, "τ >= 0": tau >= 0},
        measured=Fraction(1),
        printed=G**4 * tau**-2,
        claim="at most",
        method="fractions; a sum of two terms",
    )


def lemma_4_7_5() -> Certificate:
    """g_i = ±1, τ = 2: nothing is clipped and E ĝ_i² = 1, where B² τ^(2-2α) = 1/4 is printed."""
    tau, B = Fraction(2), Fraction(1)
    return Certificate(
        instance={"g_i": "±1 with probability 1/2", "α": 2, "B_i": B, "τ_i": tau},
        assumptions={"E|g_i|² = 1 <= B_i²": B >= 1, "τ_i > 0": tau > 0},
        measured=Fraction(1),
        printed=B**2 * tau**-2,
        claim="at most",
        method="fractions; a sum of two terms",
    )


def theorem_2_acclip(L: Fraction = Fraction(20_000), K: int = 10**6) -> Certificate:
    """Theorem 2 of acclip at α = 2 and without noise, on an L-smooth function with a slope G that
    is longer than K steps reach.

    f' = min(Lx, G) for x >= 0, and f'(-x) = -f'(x). With f0 = 2G²K/L the start is further from the
    slope's end than K steps of η G, because η² = f0/(G²(K+1)L). So every gradient up to K has norm
    G, and their mean square G² exceeds the printed bound.
    """
    G = Fraction(1)
    gap = 2 * G**2 * K / L  # f0
    distance = (gap - G**2 / (2 * L)) / G  # to x = G/L, where the slope ends
    eta_square = gap / (G**2 * (K + 1) * L)
    return Certificate(
        instance={"f": "Huber function, slope G", "α": 2, "G": G, "L": L, "f0": gap, "K": K},
        assumptions={
            "f is L-smooth": True,
            "E‖g‖² = f'² <= G² everywhere": True,
            "K steps, of ηG at most, do not reach the end of the slope": distance**2
            > K**2 * eta_square * G**2,
        },
        measured=G**2,
        printed=4 * G * root(gap / K),
        claim="at most",
        method="fractions; every gradient of the run is G",
    )


def rmsprop_is_clipping() -> Certificate:
    """At ε = 1, √(β2 v) = 4 and √(1-β2)|g| = 3 the effective step of RMSProp is 5/12 of that of
    clipping, below the 1/2 that the paper states (acclip, 3.1; thesis, 7.2.1).

    h_Adam = α/(ε + √(β2 v + (1-β2)g²)), and h_clip = η min{τ/(√(1-β2)|g|), 1} with η = 2α/τ and
    τ = ε + √(β2 v).
    """
    epsilon, alpha = Fraction(1), Fraction(1)
    root_of_past, root_of_new = Fraction(4), Fraction(3)  # √(β2 v), and √(1-β2)|g|
    h_adam = alpha / (epsilon + root(root_of_past**2 + root_of_new**2))
    tau = epsilon + root_of_past
    h_clip = 2 * alpha / tau * min(tau / root_of_new, Fraction(1))
    return Certificate(
        instance={"ε": epsilon, "√(β₂v)": root_of_past, "√(1-β₂)|g|": root_of_new, "α": alpha},
        assumptions={"ε > 0": epsilon > 0, "0 < β₂ < 1 and v > 0": True, "η_k, τ_k as set": True},
        measured=h_adam,
        printed=h_clip / 2,
        claim="at least",
        method="fractions",
    )
