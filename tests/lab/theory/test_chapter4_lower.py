"""Lower bounds of chapter 4: the Bernoulli quadratics and the zero-chain, every stated property."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from mindgap.base.rng import numpy_stream
from mindgap.lab.theory import (
    BernoulliQuadratic,
    ChainOracle,
    HardChain,
    ZeroChain,
    bayes_risk,
    clip_global,
    hardest_epsilon,
    noise_probability,
    nonconvex_lower_bound_steps,
    prog,
    strongly_convex_lower_bound,
    success_bound,
    weighted_average_runs,
)

POINTS = 10_000
ALPHAS = [1.1, 1.2, 1.5, 1.8, 2.0]


# Theorem 4.4.3
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("nu", [0, 1])
def test_bernoulli_quadratics_are_what_4_7_6_says(alpha: float, nu: int) -> None:
    x = numpy_stream(0, "4.7.6").uniform(0, 0.5, POINTS)
    for epsilon in (0.125, 0.05, 1e-3):
        f = BernoulliQuadratic(alpha, epsilon, nu)
        p = f.probability
        assert 0 < f.gamma <= 0.5
        assert 0 < p < 1
        assert p == pytest.approx(
            (4 - 2 * nu) * (4 * epsilon**alpha) ** (1 / (alpha - 1)), rel=1e-9
        )
        mean = p * f.stochastic_gradient(x, 1) + (1 - p) * f.stochastic_gradient(x, 0)
        np.testing.assert_allclose(mean, f.gradient(x), rtol=1e-9, atol=1e-12)
        assert (f.moment(x) <= 1).all()
        noise = f.noise
        assert noise.probability == pytest.approx(p)
        np.testing.assert_allclose(
            f.stochastic_gradient(x, 1) - f.gradient(x), noise.scale * (noise.probability - 1)
        )
        t = torch.tensor(x, requires_grad=True)
        (expected,) = torch.autograd.grad(f.value(t).sum(), t)
        np.testing.assert_allclose(f.gradient(x), expected.numpy(), rtol=1e-12, atol=1e-15)


def test_bernoulli_quadratic_as_a_stochastic_objective() -> None:
    f = BernoulliQuadratic(1.5, 0.05, 1)
    problem = f.objective(0.3)
    for z in (0.0, 1.0):
        _, (gradient,) = problem.value_and_grad(torch.tensor([z], dtype=torch.float64))
        assert float(gradient) == pytest.approx(float(f.stochastic_gradient(0.3, z)), rel=1e-12)
    _, (gradient,) = problem.value_and_grad(None)
    assert float(gradient) == pytest.approx(float(f.gradient(0.3)), rel=1e-12)


def success_probability(alpha: float, epsilon: float, k: int) -> float:
    """The largest P(ν' = ν) that any procedure reaches with k samples: (1 + TV)/2, an exact sum."""
    p0, p1 = (BernoulliQuadratic(alpha, epsilon, nu).probability for nu in (0, 1))
    n = np.arange(k + 1)
    return 0.5 + 0.25 * float(np.abs(binom.pmf(n, k, p0) - binom.pmf(n, k, p1)).sum())


@pytest.mark.parametrize("alpha", ALPHAS)
def test_lemma_4_7_8_against_the_exact_success_probability(alpha: float) -> None:
    for k in (1, 10, 100, 1000):
        for factor in (0.25, 1.0, 1.9):
            epsilon = min(0.125, factor * hardest_epsilon(alpha, k))
            exact = success_probability(alpha, epsilon, k)
            assert 0.5 <= exact <= min(1.0, success_bound(alpha, epsilon, k)) + 1e-12
        assert success_probability(alpha, hardest_epsilon(alpha, k), k) < 0.75


@pytest.mark.parametrize("alpha", ALPHAS)
def test_lemma_4_7_8_follows_from_its_first_line_put_right(alpha: float) -> None:
    f0, f1 = (BernoulliQuadratic(alpha, 0.05, nu) for nu in (0, 1))
    chi = (f0.probability - f1.probability) ** 2 / (8 * f0.probability * (1 - f0.probability))
    printed = (f0.gamma * 0.05) ** 2 / (4 * f0.gamma**alpha)
    right = (f0.gamma * 0.05) ** 2 / f0.gamma**alpha
    assert (
        chi > 1.99 * printed
    )  # too small by a factor two at least, and not equal to the next line
    assert (4 ** (2 - 1 / alpha) * 0.05) ** (alpha / (alpha - 1)) > 2 * printed
    assert chi <= right
    for k in (1, 10, 1000):
        quarter = (success_bound(alpha, 0.05, k) - 0.5) / 4
        assert (k * right) ** 0.5 == pytest.approx(quarter, rel=1e-12)
        if quarter < 0.5:
            assert success_probability(alpha, 0.05, k) <= 0.5 + quarter


def test_at_alpha_two_the_choice_of_epsilon_gives_three_quarters_and_not_less() -> None:
    assert success_bound(2.0, hardest_epsilon(2.0, 100), 100) == pytest.approx(0.75, rel=1e-12)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_no_method_beats_the_lower_bound(alpha: float) -> None:
    for k in (1, 10, 100, 1000, 10_000):
        bound = strongly_convex_lower_bound(alpha, k)
        risk = bayes_risk(alpha, hardest_epsilon(alpha, k), k)
        assert risk >= bound
        assert risk < 16 * bound  # sixteen times the bound is refuted by the Bayes rule


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
def test_gclip_is_above_the_bayes_risk_on_the_hard_pair(alpha: float) -> None:
    k, runs = 200, 4000
    epsilon = hardest_epsilon(alpha, k)
    risks = []
    for nu in (0, 1):
        f = BernoulliQuadratic(alpha, epsilon, nu)
        rng = numpy_stream(nu, "hard pair", str(alpha))

        def gradient(x: np.ndarray, _: int, f=f, rng=rng) -> np.ndarray:
            return f.stochastic_gradient(x, rng.random(x.shape) < f.probability)

        out = weighted_average_runs(
            gradient,
            np.full((runs, 1), 0.25),
            lambda j: 4 / (j + 1),
            lambda j: j ** (1 / alpha),
            [k],
            method="gclip",
            box=(0.0, 0.5),
        )
        risks.append(f.value(out[0, :, 0]))
    error = np.concatenate(risks)
    assert error.mean() + 4 * error.std() / math.sqrt(error.size) >= bayes_risk(alpha, epsilon, k)


# The zero-chain
# --------------------------------------------------------------------------------------------------


def _chain_points(d: int) -> np.ndarray:
    """Dense, sparse and barely-reached points, so that every branch of Ψ and every value of
    prog occurs.
    """
    rng = numpy_stream(0, "chain", d)
    x = rng.uniform(-2.5, 2.5, (POINTS, d))
    reach = rng.integers(0, d + 1, POINTS)
    quiet = np.arange(1, d + 1) > reach[:, None]
    kind = rng.integers(0, 3, POINTS)[:, None]
    small = np.where(
        kind == 0, 0.0, np.where(kind == 1, x * 0.19, x * 0.39)
    )  # within 1/2 and within 1
    return np.where(quiet, small, x)


@pytest.mark.parametrize("d", [1, 2, 5, 12])
def test_lemma_4_7_9_all_five_points(d: int) -> None:
    f, x = ZeroChain(d), _chain_points(d)
    g = f.gradient(x)
    t = torch.tensor(x, requires_grad=True)
    (expected,) = torch.autograd.grad(f.value(t).sum(), t)
    np.testing.assert_allclose(g, expected.numpy(), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(f.gradient(t.detach()).numpy(), g, rtol=1e-9, atol=1e-12)
    # 1: every term is above -e·√(2πe), so the infimum is; points come close from above.
    floor = -d * math.e * math.sqrt(2 * math.pi * math.e)
    assert (f.value(x) >= floor).all()
    assert f.value(np.zeros(d)) - floor <= 12 * d
    far = f.value(np.full(d, 50.0))
    assert f.value(np.zeros(d)) - far >= 10 * (d - 1)  # ten in place of twelve is nearly needed
    # 2: smooth with 152 between random pairs, far and near.
    y = (
        x
        + numpy_stream(1, "chain").standard_normal(x.shape) * np.geomspace(1e-4, 2, POINTS)[:, None]
    )
    ratio = np.linalg.norm(g - f.gradient(y), axis=1) / np.linalg.norm(x - y, axis=1)
    assert ratio.max() <= 152
    # 3: bounded gradient entries.
    assert np.abs(g).max() <= 23
    # 4: a gradient shows one coordinate more than is large.
    assert (prog(g, 0.0) <= prog(x, 0.5) + 1).all()
    # 5: an unfinished chain has a large gradient.
    unfinished = prog(x, 1.0) < d
    assert unfinished.any()
    assert ((g[unfinished] ** 2).sum(1) >= 1).all()


def test_zero_chain_hessian_is_below_152_and_a_third_of_it_is_not_enough() -> None:
    f = ZeroChain(4)
    x = torch.tensor(_chain_points(4), requires_grad=True)
    g = f.gradient(x)
    rows = [torch.autograd.grad(g[:, i].sum(), x, retain_graph=True)[0] for i in range(4)]
    largest = float(torch.linalg.matrix_norm(torch.stack(rows, 1), 2).max())
    assert 152 / 3 < largest <= 152


def test_the_chain_oracle_is_an_unbiased_zero_chain() -> None:
    d, p = 6, 0.2
    oracle, x = ChainOracle(ZeroChain(d), p), _chain_points(d)
    silent, loud = (oracle.gradient(x, np.full(POINTS, z)) for z in (0, 1))
    np.testing.assert_allclose(
        (1 - p) * silent + p * loud, oracle.chain.gradient(x), rtol=1e-12, atol=1e-12
    )
    assert (prog(silent, 0.0) <= prog(x, 0.25)).all()  # z = 0 shows nothing new: probability 1-p
    assert (prog(loud, 0.0) <= prog(x, 0.25) + 1).all()  # and never more than one
    assert (prog(loud, 0.0) == prog(x, 0.25) + 1).any()


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("p", [0.5, 0.1, 1e-3])
def test_lemma_4_7_10_as_exact_sums(alpha: float, p: float) -> None:
    oracle, x = ChainOracle(ZeroChain(5), p), _chain_points(5)
    moment = oracle.moment(x, alpha)
    norm = np.linalg.norm(oracle.chain.gradient(x), axis=-1)
    assert (moment <= norm**alpha + 23**alpha * p ** (1 - alpha)).all()  # half of what is printed
    # The proof's last step is right; it is the factor 2 of its first line that is dropped.
    assert p * (1 - p) ** alpha + (1 - p) * p**alpha <= 2 * p


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
def test_theorem_4_4_4_constants(alpha: float) -> None:
    # Units in which d and p are workable: ΔL = 7296·d·ε² and a margin that makes p = 1/10.
    epsilon, L, d = 0.01, 2.0, 8
    delta = 7296 * d * epsilon**2 / L * (1 + 1e-9)
    margin = epsilon * 5000 ** (1 / alpha) * 10 ** ((alpha - 1) / alpha)
    hard = HardChain(alpha, L, delta, 4 * math.sqrt(delta * L) + margin, epsilon)
    assert hard.dimension == d
    assert hard.probability == pytest.approx(0.1, rel=1e-9)
    x = _chain_points(d) * hard.scale
    g0, g1 = (hard.stochastic_gradient(x, np.full(POINTS, z)) for z in (0, 1))
    moment = 0.9 * np.linalg.norm(g0, axis=1) ** alpha + 0.1 * np.linalg.norm(g1, axis=1) ** alpha
    assert (moment <= hard.G**alpha).all()
    np.testing.assert_allclose(0.9 * g0 + 0.1 * g1, hard.gradient(x), rtol=1e-9, atol=1e-12)
    y = x + numpy_stream(2, "hard").standard_normal(x.shape) * hard.scale * 0.1
    assert (
        np.linalg.norm(hard.gradient(x) - hard.gradient(y), axis=1)
        <= L * np.linalg.norm(x - y, axis=1)
    ).all()
    assert hard.value(np.zeros(d)) - hard.value(x).min() <= delta
    # With probability 1/2 at least the chain is unfinished after (d-1)/(2p) draws.
    assert hard.unfinished_probability(int(hard.steps)) >= 0.5
    assert (
        hard.unfinished_probability(int(4 * hard.steps)) < 0.5
    )  # four times as many steps would be a wrong constant


def _noise_moment(oracle: ChainOracle, x: np.ndarray, alpha: float) -> np.ndarray:
    """E‖g_d(x) - ∇f_d(x)‖^α, an exact sum over z (Assumption 4.4.1's moment)."""
    p, exact = oracle.probability, oracle.chain.gradient(x)
    silent, loud = (
        np.linalg.norm(oracle.gradient(x, np.full(x.shape[:-1], z)) - exact, axis=-1) ** alpha
        for z in (0, 1)
    )
    return (1 - p) * silent + p * loud


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
def test_theorem_4_4_4_holds_for_the_noise_moment(alpha: float) -> None:
    # Stated for E‖g - ∇f‖^α <= σ^α, proved for E‖g‖^α <= G^α: the same chain has both.
    epsilon, d = 0.01, 6
    for sigma in (2.0, 20.0):
        p = noise_probability(alpha, sigma, epsilon)
        oracle, x = ChainOracle(ZeroChain(d), p), _chain_points(d)
        noise = (2 * epsilon) ** alpha * _noise_moment(oracle, x, alpha)
        assert (noise <= sigma**alpha).all()
        assert noise.max() > sigma**alpha / 200  # the constant is not empty
    # The number of steps (d-1)/(2p) grows with the theorem's power of 1/ε.
    steps = [e**-2 / noise_probability(alpha, 20.0, e) for e in (epsilon, epsilon / 2)]
    assert math.log2(steps[1] / steps[0]) == pytest.approx((3 * alpha - 2) / (alpha - 1))
    with pytest.raises(ValueError, match="sigma must be at least"):
        noise_probability(alpha, 0.1, epsilon)


@pytest.mark.parametrize("clip", [False, True])
def test_zero_respecting_methods_stay_above_epsilon_for_the_stated_steps(clip: bool) -> None:
    alpha, epsilon, L, d = 1.5, 0.01, 1.0, 6
    delta = 7296 * d * epsilon**2 / L * (1 + 1e-9)
    margin = epsilon * 5000 ** (1 / alpha) * 5 ** ((alpha - 1) / alpha)  # p = 1/5
    hard = HardChain(alpha, L, delta, 4 * math.sqrt(delta * L) + margin, epsilon)
    rng = numpy_stream(0, "zero-respecting")
    x = np.zeros((400, d))
    for _ in range(int(hard.steps) + 1):
        norm = np.linalg.norm(hard.gradient(x), axis=1)
        assert norm.mean() + 4 * norm.std() / 20 >= epsilon
        g = hard.stochastic_gradient(x, (rng.random(len(x)) < hard.probability).astype(float))
        # A step long enough to finish a link in one jump: the fastest that a method could be.
        x = x - (3.0 / L) * (clip_global(g, hard.G) if clip else g)


def test_the_printed_probability_has_the_wrong_power_of_epsilon() -> None:
    def steps(epsilon: float) -> float:
        return nonconvex_lower_bound_steps(1.5, 1.0, 7296.0, 5000.0, epsilon)

    small, large = 1e-3, 1e-2
    power = math.log(steps(small) / steps(large)) / math.log(large / small)
    assert power == pytest.approx((3 * 1.5 - 2) / (1.5 - 1), abs=0.01)  # 5
    assert power > 2 + 1.5 + 1  # the printed exponent α of p would give 2 + α = 3.5


def test_bad_constants_give_one_clear_error() -> None:
    with pytest.raises(ValueError, match=r"G must be above 4\*sqrt\(delta\*L\) = 40, got 10"):
        HardChain(1.5, 1.0, 100.0, 10.0, 0.01)
    with pytest.raises(ValueError, match=r"epsilon must be at most sqrt\(delta\*L/7296\)"):
        HardChain(1.5, 1.0, 1.0, 1e9, 1.0)
    with pytest.raises(ValueError, match=r"alpha must lie in \(1, 2\], got 3"):
        BernoulliQuadratic(3, 0.1, 0)
    with pytest.raises(ValueError, match="nu must be one of 0, 1"):
        BernoulliQuadratic(1.5, 0.1, 2)
    with pytest.raises(ValueError, match="dimension must be a whole number of at least 1, got 0"):
        ZeroChain(0)
    with pytest.raises(ValueError, match=r"probability must lie in \(0, 1\], got 0"):
        ChainOracle(ZeroChain(2), 0)
