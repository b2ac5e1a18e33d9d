"""The counterexamples behind the certificates, run with the library's own functions and methods:
what a certificate takes for granted is checked here.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from mindgap.base.rng import numpy_stream
from mindgap.lab.theory import (
    BoundedNoise,
    ExponentialQuadratic,
    HyperbolicCosine,
    SlowFunction,
    SmoothMoment,
    moment_nonconvex_parameters,
    sgd_step,
)
from mindgap.lab.theory.certificates.chapter2 import table_2_1
from mindgap.lab.theory.certificates.chapter3 import theorem_3_4_5
from mindgap.lab.theory.certificates.chapter4 import theorem_2_acclip, theorem_4_4_1
from mindgap.lab.theory.certificates.chapter6 import identity_before_6_10
from mindgap.lab.theory.chapter2.section_2_1 import SmoothConvex, worst_gap


def test_theorem_3_4_5_the_slope_is_in_the_class_and_no_noise_reaches_its_end() -> None:
    found = theorem_3_4_5(height=Fraction(12))
    assert found.valid
    M, L0, L1 = (float(found.instance[name]) for name in ("slope", "L0", "L1"))
    epsilon, tau = float(found.instance["ε"]), float(found.instance["τ"])
    f = SlowFunction(epsilon=M / 2)
    x = np.linspace(-80, 80, 400_001)
    assert (np.abs(f.gradient(x)) <= M * (1 + 1e-12)).all()
    assert (np.abs(f.curvature(x)) <= L0 + L1 * np.abs(f.gradient(x))).all()
    start = f.start(12.0)
    assert math.isclose(float(f.value(start) - f.value(np.array(0.0))), 12.0)
    # Noise that always pushes towards the minimum, for all T steps.
    T = math.floor(found.printed)
    h = sgd_step(f.constants(12.0, L0=L0, L1=L1), BoundedNoise(tau=tau), T)
    for _ in range(T):
        assert float(f.gradient(np.float64(start))) > epsilon
        start -= h * (M + tau)


def test_theorem_3_4_4_and_3_10_have_the_curvature_that_is_said() -> None:
    x = np.linspace(-30, 30, 10_001)
    cosh, exponential = HyperbolicCosine(L0=1.0, L1=1.0), ExponentialQuadratic(L1=2.0)
    assert (cosh.curvature(x) <= 1 + np.abs(cosh.gradient(x))).all()
    assert float(exponential.curvature(np.float64(0.0))) == 2.0
    assert float(exponential.gradient(np.float64(0.0))) == 0.0


def test_theorem_4_4_1_and_theorem_2_of_acclip_run_as_their_certificates_say() -> None:
    # The printed step at a horizon that can be run: x_k = x0 (1-η)^k, and the mean of the squares.
    found = theorem_4_4_1(sigma=Fraction(1, 100), x0=Fraction(1, 10_000), digits=6)
    assert found.valid
    K, eta = int(found.instance["K"]), 1e-5
    assert K == 500_000
    squares = 1e-8 * (1 - eta) ** (2 * np.arange(1, K + 1))
    assert squares.mean() >= float(found.measured) > 100 * float(found.printed)
    # acclip: GClip on the Huber function stays on the slope for all K steps.
    found = theorem_2_acclip(L=Fraction(20_000), K=10_000)
    assert found.valid
    gap, L, K = float(found.instance["f0"]), 20_000.0, 10_000
    c = moment_nonconvex_parameters(SmoothMoment(alpha=2.0, G=1.0, L=L, delta=gap), K + 1)
    x = gap + 1 / (2 * L)
    for _ in range(K):
        g = min(L * x, 1.0)
        assert g == 1.0
        x -= c.eta * min(1.0, c.tau / g) * g


def test_theorem_4_4_2_the_mean_of_projected_gclip_stays_below_the_clipped_jump() -> None:
    # The construction of the certificate at a horizon that can be sampled, α = 3/2.
    K, runs, B = 400, 40_000, 0.25
    tau = K**0.5
    jump = 4 * tau
    p = 0.75 / jump**1.5
    rng, x, total = numpy_stream(0, "certificate 4.4.2"), np.zeros(runs), np.zeros(runs)
    for k in range(1, K + 1):
        total += k * x
        g = np.where(rng.random(runs) < p, -jump, x / (1 - p))
        x = np.clip(x - 4 / (k + 1) * np.clip(g, -(k**0.5), k**0.5), 0, B)
    average = total / (K * (K + 1) / 2)
    error = 4 * average.std() / math.sqrt(runs)
    assert average.mean() - error <= max(2 * p, p * tau)
    assert average.mean() + error < p * jump  # below the minimum: the bias is real


def test_table_2_1_nesterov_needs_no_more_steps_than_the_certificate_says() -> None:
    found = table_2_1(Fraction(1, 10))
    assert found.valid
    # The same on the worst quadratic, at a size that can be run: √(2L/ε) steps are enough.
    L, epsilon = 100.0, 1e-2
    steps = math.isqrt(int(2 * L / epsilon)) + 1
    assert worst_gap("nesterov", SmoothConvex(L), steps)[-1] <= epsilon


def test_identity_before_6_10_has_the_invariant_law_that_is_said() -> None:
    rng = numpy_stream(0, "6.10")
    x = rng.uniform(-1, 1, 400_000)
    y = x - 0.5 * (x + rng.choice([-1.0, 1.0], x.size))
    assert abs(np.mean(y**2) - float(identity_before_6_10().measured)) < 0.005
    assert np.abs(y).max() <= 1
