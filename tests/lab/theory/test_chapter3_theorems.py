"""Theorems 3.4.1 to 3.4.5 and 3.3.1: bounds hold, and a wrong constant is refuted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from references.printed import printed_sgd_bound, printed_step

from mindgap.base.rng import numpy_stream
from mindgap.lab.theory import (
    BoundedNoise,
    ClippedStep,
    ExponentialQuadratic,
    HyperbolicCosine,
    RelaxedSmooth,
    SlowFunction,
    StochasticClippedStep,
    ToothedSlope,
    clipped_gd_bound,
    clipped_gd_step,
    clipped_sgd_bound,
    clipped_sgd_step,
    error_terms,
    fixed_step_count,
    fixed_step_lower_bound,
    gd_bound,
    gd_step,
    matching_clipped_step,
    noisy_delta,
    sgd_bound,
    sgd_step,
)
from mindgap.lab.theory.certificates.chapter3 import theorem_3_4_4_step
from mindgap.lab.theory.descent import first_hits, row_norm


def hits(f, x0, step, epsilon, limit, noise=None) -> np.ndarray:
    """T_ε of runs on one function; ``step`` maps a norm to an effective step."""
    start = np.atleast_1d(np.asarray(x0, dtype=float))
    return first_hits(
        lambda x, who: f.gradient(x),
        start.reshape(len(start), -1),
        lambda g, who: step(row_norm(g)),
        epsilon,
        limit,
        noise,
    )[0]


def constant(h: float):
    return lambda norm: np.full_like(norm, h)


GRID = list(itertools.product([0.1, 1.0, 10.0], [0.05, 1.0, 10.0], [2.0, 20.0, 200.0]))


@pytest.mark.parametrize(("L0", "L1", "M"), GRID)
def test_counts_stay_below_theorems_3_4_1_and_3_4_3(L0: float, L1: float, M: float) -> None:
    f = HyperbolicCosine(L0=L0, L1=L1)
    a, epsilon = f.constants(M), 0.05
    clipped = hits(f, f.start(M), clipped_gd_step(a), epsilon, 200_000)[0]
    fixed = hits(f, f.start(M), constant(gd_step(a)), epsilon, 200_000)[0]
    assert clipped <= clipped_gd_bound(a, epsilon)
    assert fixed <= gd_bound(a, epsilon)


def _sawtooth(kind: str) -> tuple[ToothedSlope, object, RelaxedSmooth, float]:
    """The sawtooth made for a method's step with L0 = 1, L1 = 0.01, ε = 0.01 and 5,000 teeth."""
    L0, L1, slope = 1.0, 0.01, 0.01 * (1 + 1e-6)
    plain = RelaxedSmooth(L0=L0, L1=L1, delta=1.0, M=slope)
    h = clipped_gd_step(plain).eta if kind == "clipped" else gd_step(plain)
    f = ToothedSlope(slope=slope, step=h, L=L0, teeth=5000)
    return f, constant(h), f.constants(L0, L1), 0.01


@pytest.mark.parametrize(("kind", "bound"), [("clipped", clipped_gd_bound), ("fixed", gd_bound)])
def test_half_of_the_upper_bound_is_refuted_by_the_toothed_slope(kind: str, bound) -> None:
    f, step, a, epsilon = _sawtooth(kind)
    measured = hits(f, f.start, step, epsilon, 20_000)[0]
    assert measured <= bound(a, epsilon)
    assert measured > bound(a, epsilon) / 2


def test_a_clipped_step_far_too_long_is_refuted() -> None:
    # η = 1/(10 L0) has room: the textbook's limit is 2/L0, so twice the step still works and 21
    # times does not.
    f = HyperbolicCosine(L0=1.0, L1=0.01)
    a = f.constants(M=3.0)
    step = clipped_gd_step(a)
    for factor, works in ((1, True), (2, True), (21, False)):
        longer = ClippedStep(step.eta * factor, step.gamma)
        assert (
            hits(f, f.start(3.0), longer, 1e-3, 30_000)[0] <= 30_000 < clipped_gd_bound(a, 1e-3)
        ) == works


def test_a_fixed_step_far_too_long_is_refuted() -> None:
    # h = 1/(2(M L1 + L0)) is a quarter of the textbook's limit 2/L: four times and a little is too
    # long.
    f = HyperbolicCosine(L0=1.0, L1=0.01)
    a = f.constants(M=3.0)
    for factor, works in ((1, True), (2, True), (4.3, False)):
        count = hits(f, f.start(3.0), constant(factor * gd_step(a)), 1e-3, 5000)[0]
        assert (count <= 5000 < gd_bound(a, 1e-3)) == works


@pytest.mark.parametrize("M", [10.0, 50.0, 250.0])
def test_theorem_3_4_2_every_fixed_step_is_slow_on_one_of_the_two(M: float) -> None:
    L1, epsilon, delta = 1.0, 0.1, 3.0
    fast, slow = ExponentialQuadratic(L1=L1), SlowFunction(epsilon=epsilon)
    a = RelaxedSmooth(L0=L1, L1=L1, delta=delta, M=M)
    bound = fixed_step_lower_bound(a, epsilon)
    worst = []
    limit = int(20 * bound) + 50
    for h in fast.longest_step(M) * np.array([0.25, 0.5, 0.9, 0.999, 1.001, 2.0, 10.0]):
        on_fast = hits(fast, fast.start(M), constant(h), epsilon, limit)[0]
        on_slow = hits(slow, slow.start(delta), constant(h), epsilon, limit)[0]
        worst.append(max(on_fast, on_slow))
        if h > fast.longest_step(M):
            assert on_fast == limit + 1  # never
    assert min(worst) >= bound
    # Twice the lower bound is refuted: the best step nearly attains it.
    assert min(worst) < 2 * bound
    clipped = max(
        hits(fast, fast.start(M), clipped_gd_step(a), epsilon, limit)[0],
        hits(slow, slow.start(delta), clipped_gd_step(a), epsilon, limit)[0],
    )
    assert clipped <= clipped_gd_bound(a, epsilon)


@pytest.mark.parametrize(("L0", "L1"), [(0.5, 5.0), (2.0, 0.5), (1.0, 1.0)])
def test_the_repaired_lower_bound_holds_for_any_l0_and_l1(L0: float, L1: float) -> None:
    M, epsilon, delta = 100.0, 0.1, 2.0
    fast, slow = HyperbolicCosine(L0=L0, L1=L1), SlowFunction(epsilon=epsilon)
    # A step that does not diverge on the cosh covers at most 2εh per step on the slow function.
    bound = (delta - 1.25 * epsilon) / (4 * epsilon**2 * fast.longest_step(M))
    limit = int(6 * bound) + 50
    worst = [
        max(
            hits(fast, fast.start(M), constant(h), epsilon, limit)[0],
            hits(slow, slow.start(delta), constant(h), epsilon, limit)[0],
        )
        for h in fast.longest_step(M) * np.array([0.5, 0.9, 0.999, 1.001, 3.0])
    ]
    assert bound <= min(worst) < 2 * bound


@pytest.mark.parametrize("epsilon", [0.1, 0.3])
@pytest.mark.parametrize("M", [3.0, 100.0, 400.0])
@pytest.mark.parametrize("delta", [0.5, 3.0])
def test_theorem_3_4_2_holds_as_printed_up_to_its_own_accuracy(
    epsilon: float, M: float, delta: float
) -> None:
    # T_ε ends at |f'| <= ε, not where the straight part ends; the proof's line counts the latter.
    L1 = 1.0
    slow, h = SlowFunction(epsilon=epsilon), ExponentialQuadratic(L1=L1).longest_step(M)
    printed = L1 * M * (delta - 5 * epsilon / 8) / (8 * epsilon**2 * (math.log(M) + 1))
    fewest = fixed_step_count(delta, epsilon, h)
    limit = int(4 * fewest) + 100
    for factor in (1.0, 0.5):
        count = hits(slow, slow.start(delta), constant(factor * h), epsilon, limit)[0]
        assert count >= fixed_step_count(delta, epsilon, factor * h) >= fewest
        assert count > printed
    assert fewest >= L1 * M * delta / (8 * epsilon**2 * (math.log(M) + 1))  # more than printed
    # The proof's own line stops earlier: at epsilon 0.1, delta 3, M 100 it is 642 and printed 655.
    if (epsilon, M, delta) == (0.1, 100.0, 3.0):
        proof = fixed_step_lower_bound(RelaxedSmooth(L0=1.0, L1=1.0, delta=delta, M=M), epsilon)
        assert proof < printed < hits(slow, slow.start(delta), constant(h), epsilon, limit)[0]


def _ball(rng: np.random.Generator, tau: float, dimension: int):
    """Noise on the sphere of radius τ: the extreme case of Assumption 3.4.2."""

    def draw(n: int, who: np.ndarray) -> np.ndarray:
        z = rng.standard_normal((n, dimension))
        return tau * z / row_norm(z)[:, None]

    return draw


@pytest.mark.parametrize(("L0", "L1", "tau"), [(1.0, 1.0, 0.5), (0.5, 2.0, 1.0), (2.0, 0.2, 0.3)])
def test_theorem_3_4_4_is_met_by_most_of_twenty_seeds(L0: float, L1: float, tau: float) -> None:
    f, epsilon = HyperbolicCosine(L0=L0, L1=L1, dimension=2), 0.8
    x0 = np.full((20, 2), f.start(5.0))
    delta = 2 * f.constants(5.0).delta
    a, noise = RelaxedSmooth(L0=L0, L1=L1, delta=delta), BoundedNoise(tau=tau)
    bound = clipped_sgd_bound(a, noise, epsilon)
    step = clipped_sgd_step(a, noise, int(bound))
    seen = hits(f, x0, step, epsilon, 40_000, _ball(numpy_stream(0, "3.4.4", str(tau)), tau, 2))
    assert np.median(seen) <= bound
    assert np.median(seen) > bound / 1e4  # the measurement is not empty


def test_the_step_printed_in_theorem_3_4_4_never_arrives() -> None:
    # At the theorem's own horizon for ε = 10. The certificate covers all 4e6 steps and every noise.
    found = theorem_3_4_4_step()
    assert found.valid
    f, horizon = HyperbolicCosine(L0=1.0, L1=1.0), int(found.instance["T"])
    a, noise = f.constants(M=1e5), BoundedNoise(tau=0.1)
    delta = noisy_delta(a, noise)
    bound = delta * max(128 / 10, 4 * delta / 10**4, (80 + 512 * 0.1) / 10**2)
    assert horizon == math.ceil(bound)
    proved = clipped_sgd_step(a, noise, horizon)
    draw = _ball(numpy_stream(0, "printed"), 0.1, 1)
    start = np.full((5, 1), f.start(1e5))
    good = hits(f, start, proved, 10.0, 1_000, draw)
    bad = hits(f, start, printed_step(proved), 10.0, 5_000, draw)
    assert (good < 400).all()
    assert (bad > 5_000).all()
    # At ε = 0.5 the theorem's T is 6.4e11 and η so small that no step is clipped: the printed step
    # arrives there (after 1.16 million steps), and that instance refutes nothing.
    late = clipped_sgd_step(a, noise, math.ceil(4 * delta**2 / 0.5**4))
    assert float(printed_step(late)(np.array(1e5))) == late.eta


@pytest.mark.parametrize("seed", range(5))
def test_lemmas_3_7_2_to_3_7_4_as_exact_sums(seed: int) -> None:
    rng = numpy_stream(seed, "lemmas 3.7")
    tight = np.zeros(3)
    for _ in range(600):
        L0, L1, tau = np.exp(rng.uniform(-3, 3, 3))
        a, noise = RelaxedSmooth(L0=L0, L1=L1, delta=1.0), BoundedNoise(tau=tau)
        step = clipped_sgd_step(a, noise, horizon=int(np.exp(rng.uniform(0, 12))))
        d = int(rng.integers(1, 4))
        direction = rng.standard_normal(d)
        norm = math.exp(rng.uniform(-4, 6)) * (L0 / L1 + tau)
        gradient = norm * direction / np.linalg.norm(direction)
        # Mean-zero noise on pairs ±v, and a two-point law along the gradient that is as skew as τ
        # allows.
        v = rng.standard_normal((3, d))
        v *= tau * rng.uniform(0, 1, (3, 1)) / np.linalg.norm(v, axis=1, keepdims=True)
        p = rng.uniform(0.01, 0.99)
        small = min(1.0, p / (1 - p))
        along = tau * direction / np.linalg.norm(direction)
        skew = np.stack([along * small, -along * small * (1 - p) / p])
        values = np.concatenate([v, -v, skew])
        weights = np.concatenate([np.full(6, 1 / 12), [0.5 * (1 - p), 0.5 * p]])
        left, right = map(np.array, error_terms(a, noise, step, gradient, values, weights))
        assert (left <= right * (1 + 1e-9)).all()
        tight = np.maximum(tight, left / right)
    assert tight.min() > 0  # every left side was positive somewhere


def test_theorem_3_4_5_as_printed_lost_a_square() -> None:
    epsilon, tau = 0.2, 0.02
    f = SlowFunction(epsilon=0.55 * epsilon)  # slope 1.1 ε until near the minimum
    a = f.constants(delta=12.0, L0=0.5, L1=0.1)
    noise = BoundedNoise(tau=tau)
    printed, proved = printed_sgd_bound(a, noise, epsilon), sgd_bound(a, noise, epsilon)
    start = np.full((20, 1), f.start(12.0))
    draw = _ball(numpy_stream(0, "3.4.5"), tau, 1)
    with_printed = hits(
        f, start, constant(sgd_step(a, noise, int(printed))), epsilon, int(printed), draw
    )
    assert np.median(with_printed) > printed
    # With the square, the way of f(x0) - f* over the slope, f0/(h·slope²) steps of 1/√T, fits into
    # the horizon.
    h = sgd_step(a, noise, int(proved))
    drift = 12.0 / (h * (1.1 * epsilon) ** 2)
    assert drift < proved


def test_theorem_3_4_5_as_proved_is_met_by_most_of_twenty_seeds() -> None:
    f, epsilon, tau = SlowFunction(epsilon=0.3), 0.5, 0.2
    a, noise = f.constants(delta=2.0, L0=1.0, L1=0.5), BoundedNoise(tau=tau)
    bound = sgd_bound(a, noise, epsilon)
    step = constant(sgd_step(a, noise, int(bound)))
    seen = hits(
        f,
        np.full((20, 1), f.start(2.0)),
        step,
        epsilon,
        int(bound),
        _ball(numpy_stream(3, "sgd"), tau, 1),
    )
    assert np.median(seen) <= bound
    assert np.median(seen) > bound / 100


def test_clipped_and_normalized_steps_agree_within_a_factor_two() -> None:
    rng = numpy_stream(0, "3.3.1")
    ratios = []
    for _ in range(50):
        eta, beta = np.exp(rng.uniform(-6, 6, 2))
        norms = np.exp(rng.uniform(-12, 12, 200))
        ratios.append(eta / (norms + beta) / matching_clipped_step(eta, beta)(norms))
    ratio = np.concatenate(ratios)
    assert ratio.min() >= 0.5
    assert ratio.max() <= 1.0  # sharper than the printed 2
    assert ratio.min() < 0.51  # attained at ‖g‖ = β: a factor below 2 would be wrong
    # A mismatched pair (γ twice too large) breaks the factor two.
    broken = 1 / 101 / ClippedStep(1.0, 4.0)(np.array([100.0]))
    assert broken[0] < 0.5


def test_bad_constants_give_one_clear_error() -> None:
    a = RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0)
    with pytest.raises(ValueError, match="epsilon must be positive and finite, got 0"):
        clipped_gd_bound(a, 0)
    with pytest.raises(
        ValueError, match=r"M must be given for this theorem \(Assumption 3.4.1\), got None"
    ):
        gd_step(a)
    with pytest.raises(ValueError, match="L1 must be positive and finite, got 0"):
        clipped_sgd_step(RelaxedSmooth(L0=1.0, L1=0, delta=1.0), BoundedNoise(tau=1.0), 10)
    with pytest.raises(ValueError, match=r"epsilon must be below 0\.333333, got 0\.5"):
        fixed_step_lower_bound(RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0, M=2.0), 0.5)
    with pytest.raises(ValueError, match="L0 must be at least L1 = 2, got 1"):
        fixed_step_lower_bound(RelaxedSmooth(L0=1.0, L1=2.0, delta=1.0, M=2.0), 0.1)
    with pytest.raises(ValueError, match="horizon must be a whole number of at least 1, got 0"):
        sgd_step(RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0, M=1.0), BoundedNoise(tau=1.0), 0)
    with pytest.raises(ValueError, match="tau must be positive and finite, got -1"):
        BoundedNoise(tau=-1)
    assert StochasticClippedStep(0.1, 1.0, 1.0)(1.0) == 1 / 32
