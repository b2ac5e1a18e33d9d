"""Theorems 5.3.1 and 5.5.2: the resisting oracles defeat whatever is handed to them."""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from references.adversary_5_7_6 import printed_function

from mindgap.base.check import RuleError
from mindgap.base.rng import numpy_stream
from mindgap.lab.theory import (
    GradientAdversary,
    LipschitzClass,
    PiecewiseLinear,
    ValueAdversary,
    gradient_call_bound,
    plateau_function,
    resisting_function,
    separated_pair,
)
from mindgap.optim import INGD, ACClip, GClip, NormalizedSGD, StochasticINGD

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.07),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "GClip": lambda p: GClip(p, lr=0.05, tau=0.3),
    "NormalizedSGD": lambda p: NormalizedSGD(p, lr=0.02),
    "INGD": lambda p: INGD(p, lr=0.05, epsilon=0.5, lipschitz=3.0, inner=20),
    "StochasticINGD": lambda p: StochasticINGD(p, clip=None),
    "ACClip": lambda p: ACClip(
        p, lr=0.01, form="algorithm", eps=1e-5, bias_correction=False, clip=None
    ),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=0.3, amsgrad=True),
    "L-BFGS": lambda p: torch.optim.LBFGS(p, lr=0.2),
    "L-BFGS strong Wolfe": lambda p: torch.optim.LBFGS(p, line_search_fn="strong_wolfe"),
}


def black_box(make, gradients_only=False):
    """Any torch optimizer as an algorithm that knows nothing but the oracle; it runs until the
    calls are spent.
    """

    def algorithm(oracle, start):
        x = torch.tensor([start], dtype=torch.float64, requires_grad=True)
        optimizer = make([x])

        def closure():
            answer = oracle(float(x.detach()))
            value, gradient = (0.0, answer) if gradients_only else answer
            x.grad = torch.tensor([gradient], dtype=torch.float64)
            return torch.tensor(value, dtype=torch.float64)

        for _ in range(
            1000
        ):  # more than the oracle answers; an optimizer that stops asking returns where it stands
            optimizer.step(closure)
        return float(x.detach())

    return algorithm


def bisection(oracle, start):
    """Halves an interval until two neighbouring floats are left: queries one rounding error
    apart.
    """
    low, high = start - 1.0, start + 1.0
    while math.nextafter(low, math.inf) < high:
        middle = (low + high) / 2
        answer = oracle(middle)
        low, high = (low, middle) if np.atleast_1d(answer)[-1] > 0 else (middle, high)
    return low


def far_search(oracle, start):
    """Random points over fifteen orders of magnitude, then an output that was never asked for."""
    rng = numpy_stream(0, "far search")
    for _ in range(20):
        oracle(float(rng.choice([-1, 1]) * 10 ** rng.uniform(-9, 6)))
    return float(rng.normal())


def grid_search(oracle, start):
    for x in np.linspace(-1, 1, 25):
        oracle(float(x))
    return 0.123


SEARCHES = {"bisection": bisection, "far search": far_search, "grid search": grid_search}
ALL = [*OPTIMIZERS, *SEARCHES]


def _algorithm(name, gradients_only):
    return black_box(OPTIMIZERS[name], gradients_only) if name in OPTIMIZERS else SEARCHES[name]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("L", "Delta"), [(3.0, 1.0), (1.0, 1e-3), (0.25, 50.0)])
def test_nobody_finds_a_stationary_point(name, L, Delta):
    adversary = ValueAdversary(LipschitzClass(L, Delta), start=0.4, calls=64)
    defeat = adversary.play(_algorithm(name, gradients_only=False))
    assert defeat.consistent
    assert defeat.in_class
    assert (
        defeat.best_distance == L
    )  # not ε-stationary for any ε < L: neither the queries nor the output
    assert len(defeat.queries) <= 64


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("Delta", "delta"), [(1.0, 1 / 512), (8.0, 0.02), (0.1, 1e-3)])
def test_gradients_alone_need_many_calls(name, Delta, delta):
    adversary = GradientAdversary(Delta, delta, start=0.4)
    assert adversary.calls == math.floor(gradient_call_bound(Delta, delta) + 1e-9)
    defeat = adversary.play(_algorithm(name, gradients_only=True))
    assert defeat.consistent
    assert defeat.in_class
    assert defeat.best_distance == 1.0  # not (δ, ε)-stationary for any ε < 1
    for f in adversary.pair():
        assert LipschitzClass(1.0, Delta).contains(f, 0.4)
        assert all(f.subdifferential(x) == (1, 1) for x in defeat.queries)


def test_an_algorithm_that_knows_the_function_wins():
    """The check can fail: against a fixed |x| the same machinery reports a stationary point."""
    f = PiecewiseLinear((Fraction(0),), (Fraction(-1), Fraction(1)))
    assert f.distance(0.0) == 0
    assert f.distance(0.01, delta=0.02) == 0
    assert f.distance(0.03, delta=0.02) == 1


@pytest.mark.parametrize("seed", range(20))
def test_family_agrees_on_all_queries_and_shares_no_stationary_point(seed):
    rng = numpy_stream(seed, "queries")
    points = np.concatenate(
        [rng.normal(size=8), 1e-9 * rng.normal(size=4), 1e5 * rng.normal(size=3)]
    )
    adversary = ValueAdversary(LipschitzClass(2.0, 0.5), start=0.0, calls=100)
    for x in points:
        assert adversary(float(x)) == (0.0, 2.0)
    family = list(adversary.family(7))
    for f in family:
        assert adversary.constants.contains(f, 0.0)
        assert all(f.value(x) == 0 and f.subdifferential(x) == (2, 2) for x in adversary.queries)
    for i, f in enumerate(family):
        for g in family[:i]:
            assert not set(f.kinks) & set(g.kinks)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", [1e-4, 1e-2, 1.0, 1e4])
def test_pair_shares_no_goldstein_stationary_point(seed, spread):
    delta, calls = 1e-3, 30
    points = [0.0, *(spread * numpy_stream(seed, "queries").normal(size=calls - 1))]
    f, g = separated_pair(points, delta, 0.0)
    assert min(abs(a - b) for a in f.kinks for b in g.kinks) > 2 * Fraction(delta)
    for h in (f, g):
        assert h.lipschitz == 1
        assert h.value(0.0) - h.infimum <= 8 * Fraction(delta) * calls
        assert all(h.subdifferential(x) == (1, 1) for x in points)


def test_printed_functions_of_5_7_6_fail():
    """Three slips: kinks closer than 4δ, common (δ, ε)-stationary points after the shift, an
    infimum that runs away.
    """
    delta, points = Fraction(1, 100), [0, Fraction(5, 100), 1]
    f, g = (
        printed_function(points, delta),
        printed_function(points, delta, shift=delta * Fraction(3, 2)),
    )
    kinks = sorted(f.kinks)
    assert min(b - a for a, b in pairwise(kinks)) < 4 * delta
    shared = f.kinks[0] + delta * Fraction(3, 4)
    assert f.distance(shared, delta) == g.distance(shared, delta) == 0
    far = printed_function([0, 1000], delta)
    assert far.value(0) - far.infimum > 400  # Δ = 8Kδ = 0.16 would be allowed
    # the repaired ones, on the same points
    a, b = separated_pair(points, delta, 0)
    assert all(
        max(a.distance(x, delta), b.distance(x, delta)) == 1 for x in np.linspace(-0.2, 1.2, 2001)
    )
    repaired = plateau_function([0, 1000], delta, 0)
    assert repaired.value(0) - repaired.infimum <= 16 * delta


def test_last_piece_of_lemma_5_7_1_is_printed_with_the_wrong_sign():
    """[x_K + θδ, ∞) leaves (x_K - θδ, x_K + θδ) without a definition; x_K itself lies there."""
    f = resisting_function([0.0, 1.0], LipschitzClass(1.0, 1.0), Fraction(1, 4))
    last = Fraction(1)
    assert f.breaks[-1] == last - Fraction(1, 4)
    assert f.value(last) == 0
    assert f.subdifferential(last) == (1, 1)


def test_accuracy_at_or_above_the_lipschitz_constant_is_always_met():
    """Theorem 5.3.1 says ε in [0, 1); with L = 0.5 and ε = 0.7 every point is ε-stationary."""
    defeat = ValueAdversary(LipschitzClass(0.5, 1.0), start=0.0, calls=5).play(bisection)
    assert defeat.best_distance == 0.5 < 0.7


@pytest.mark.parametrize(
    "build",
    [
        lambda p: resisting_function(p, LipschitzClass(1.5, 0.7), Fraction(1, 3)),
        lambda p: plateau_function(p, 0.01, p[0]),
        lambda p: separated_pair(p, 0.01, p[0])[0],
        lambda p: separated_pair(p, 0.01, p[0])[1],
    ],
)
def test_values_and_gradients_at_random_points(build):
    rng = numpy_stream(0, "hard instance")
    f = build([float(x) for x in rng.normal(size=30)])
    at = rng.uniform(-4, 4, size=10_000)
    right = [f.slopes[bisect_right(f.breaks, t)] for t in at]
    np.testing.assert_array_equal(f.gradients(at), np.array(right, dtype=float))
    np.testing.assert_allclose(
        f.values(at)[:300], [float(f.value(t)) for t in at[:300]], rtol=1e-12, atol=1e-12
    )
    assert (np.abs(f.gradients(at)) == float(f.lipschitz)).all()
    assert f.values(at).min() >= float(f.infimum) - 1e-12
    pairs = at.reshape(2, -1)
    difference = np.abs(f.values(pairs[0]) - f.values(pairs[1]))
    assert (difference <= float(f.lipschitz) * np.abs(pairs[0] - pairs[1]) + 1e-12).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LipschitzClass(-1.0, 1.0), "L must be positive and finite, got -1.0"),
        (lambda: LipschitzClass(1.0, 0.0), "Delta must be positive and finite, got 0.0"),
        (
            lambda: ValueAdversary(LipschitzClass(1.0, 1.0), 0.0, 0),
            "calls must be a whole number of at least 1, got 0",
        ),
        (
            lambda: GradientAdversary(1.0, 0.01, 0.0, calls=13),
            r"calls must lie between 1 and Δ/\(8δ\) = 12, got 13",
        ),
        (
            lambda: GradientAdversary(1.0, -0.01, 0.0),
            "delta must be positive and finite, got -0.01",
        ),
        (
            lambda: ValueAdversary(LipschitzClass(1.0, 1.0), math.nan, 3),
            "start must be a number, got nan",
        ),
        (
            lambda: resisting_function([0.0], LipschitzClass(1.0, 1.0), Fraction(1, 2)),
            r"theta must lie in \(0, 0.5\)",
        ),
        (lambda: PiecewiseLinear((), ()), "slopes must be 1 for 0 breaks, got 0"),
        (
            lambda: PiecewiseLinear((Fraction(1), Fraction(0)), (Fraction(0),) * 3),
            "breaks must increase",
        ),
    ],
)
def test_bad_constants_of_the_adversaries(make, message):
    with pytest.raises(RuleError, match=message):
        make()
