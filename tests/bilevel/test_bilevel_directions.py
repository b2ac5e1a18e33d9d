"""Every direction against the closed form on the quadratic; the fused oracle against dense
derivatives.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from references.bilevel_small import Point

from mindgap.bilevel import (
    FULL,
    BilevelProblem,
    Sample,
    TorchOracle,
    exact_hypergradient,
    hyper_objective,
    hypergradient,
    lower_solution,
)
from mindgap.bilevel.backends.oracles import is_tall
from mindgap.bilevel.core import directions as d

QUADRATIC, PROBLEM, X, Y, TRUTH = Point.quadratic, Point.problem, Point.x, Point.y, Point.truth


def oracle():
    return TorchOracle(PROBLEM)


def assert_near(a, b, rtol=1e-8):
    np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=rtol, atol=rtol * float(b.abs().max()))


def hypergradient_with(oracle, inverse, upper, lower):
    """f_x - J z at (X, Y) with z = inverse(f_y)."""
    (found,) = d.hypergradients_at(oracle, [(X, Y)], lambda _, vs: [inverse(vs[0])], upper, lower)
    return found


def test_linear_system_direction_is_the_closed_form():
    z = QUADRATIC.z_star(X)
    d_y, d_z, d_x = oracle().residuals(X, Y, z, FULL, FULL)
    assert_near(d_x, TRUTH)
    assert float(d_y.norm()) < 1e-12
    assert float(d_z.norm()) < 1e-12
    without = oracle().residuals(X, Y, z, FULL, FULL, gradient=False)
    assert without[0] is None
    np.testing.assert_array_equal(without[2].numpy(), d_x.numpy())


def test_exact_and_conjugate_gradient_directions_are_the_closed_form():
    o = oracle()
    hessian, _ = o.operator(X, Y, FULL)
    solved = hypergradient_with(
        o, lambda v: d.conjugate_gradients(o, hessian, v, products=12)[0], FULL, FULL
    )
    assert_near(solved, TRUTH)
    assert_near(exact_hypergradient(PROBLEM, X), TRUTH)
    assert_near(lower_solution(PROBLEM, X), Y)
    assert hyper_objective(PROBLEM, X) == pytest.approx(
        float(QUADRATIC.hyper_objective(X)), rel=1e-10
    )


def test_neumann_sum_has_its_geometric_error():
    """eta sum_{q<=Q} (I - eta H)^q v = (I - (I - eta H)^(Q+1)) H^-1 v, exactly."""
    o, eta = oracle(), 0.7
    tokens = Sample(np.zeros(12, dtype=int))
    whole = _all_as_one(o)
    _, f_y = o.upper(X, Y, FULL)
    h = QUADRATIC.lower.A
    for terms in (1, 5, 12):
        found = d.neumann_sum(whole, X, Y, f_y, Sample(tokens.which[:terms]), eta)
        shrink = torch.linalg.matrix_power(torch.eye(6, dtype=torch.float64) - eta * h, terms + 1)
        truth = torch.linalg.solve(h, f_y)
        assert_near(found, truth - shrink @ truth, rtol=1e-11)
    many = hypergradient_with(
        whole,
        lambda v: d.neumann_sum(whole, X, Y, v, Sample(np.zeros(600, dtype=int)), eta),
        FULL,
        FULL,
    )
    assert_near(many, TRUTH)


def test_random_neumann_is_unbiased_for_the_sum():
    """The mean over all N values of k is the sum with N terms."""
    o, eta, terms = _all_as_one(oracle()), 0.7, 9
    v = torch.arange(1.0, 7.0, dtype=torch.float64)
    tokens = Sample(np.zeros(terms - 1, dtype=int))
    each = [d.neumann_random(o, X, Y, v, tokens, eta, terms, k) for k in range(terms)]
    assert_near(sum(each) / terms, d.neumann_sum(o, X, Y, v, tokens, eta), rtol=1e-12)


def test_penalty_direction_has_an_error_that_falls_as_one_over_lambda():
    """With both inner problems solved exactly, over four decades."""
    o, low, up = oracle(), QUADRATIC.lower, QUADRATIC.upper
    errors = []
    for lam in (1e2, 1e3, 1e4, 1e5, 1e6):
        both = torch.linalg.solve(
            up.A + lam * low.A, -(up.a + lam * low.a + (up.C + lam * low.C).T @ X)
        )
        found = d.penalty_hypergradient(o, X, both, Y, lam, FULL, FULL, FULL)
        errors.append(float((found - TRUTH).norm()))
    falls = [a / b for a, b in itertools.pairwise(errors)]
    assert all(9.4 < f < 10.1 for f in falls), falls
    assert errors[-1] < 1.2e-4 * errors[0]


def test_dense_direction_is_the_closed_form():
    o = oracle()
    _, h, j = o.dense(X, Y, FULL)
    f_x, f_y = o.upper(X, Y, FULL)
    assert_near(h, QUADRATIC.lower.A, rtol=1e-12)
    assert_near(j, QUADRATIC.lower.C, rtol=1e-12)
    assert_near(f_x - j @ d.solve_raised(o, h, f_y, 1e-3), TRUTH)


def _all_as_one(o):
    """The oracle with every lower token read as all samples."""
    o.hessian_of_token = o.hessian
    o.hessian = lambda x, y, v, token: o.hessian_of_token(x, y, v, FULL)
    return o


def nonlinear():
    """A lower level with a Hessian that changes, and an x that acts nonlinearly."""
    torch.manual_seed(0)
    data, targets = torch.randn(40, 4, dtype=torch.float64), torch.randn(40, dtype=torch.float64)

    def lower(x, y, b):
        features, t = b
        hidden = torch.tanh(features @ y["w"]) * y["s"]
        return (
            (hidden - t).square().mean()
            + (x["r"].exp() * y["w"].square()).sum()
            + (x["q"] * y["s"]).sum() ** 2
        )

    def upper(x, y, b):
        features, t = b
        return (features @ y["w"] - t).square().mean() + 0.1 * x["r"].square().sum()

    x = {"r": torch.full((4,), -1.0, dtype=torch.float64), "q": torch.ones(2, dtype=torch.float64)}
    y = {"w": torch.randn(4, dtype=torch.float64), "s": torch.ones(1, dtype=torch.float64)}
    return BilevelProblem(
        upper, lower, x, y, (data[:15], targets[:15]), (data[15:], targets[15:]), batch_size=5
    )


def test_fused_oracle_is_dense_autograd():
    problem = nonlinear()
    o = TorchOracle(problem)
    x, y = o.start
    token = Sample(1)
    batch = problem.lower_data.fetch(token)

    def g(x, y):
        return problem.lower(problem.view_x(x), problem.view_y(y), batch)

    h = torch.autograd.functional.hessian(g, (x, y))
    dense_h, dense_j = h[1][1], h[0][1]
    z = torch.randn(5, dtype=torch.float64)
    g_y, hz, jz = o.system(x, y, z, token)
    assert_near(g_y, torch.autograd.functional.jacobian(lambda v: g(x, v), y), rtol=1e-12)
    assert_near(hz, dense_h @ z, rtol=1e-12)
    assert_near(jz, dense_j @ z, rtol=1e-12)
    assert o.calls.as_dict() == {"Hz": 1, "Jz": 1, "g_y": 1}
    for found, truth in (
        (o.hessian(x, y, z, token), hz),
        (o.mixed(x, y, z, token), jz),
        (o.lower(x, y, token), g_y),
    ):
        assert_near(found, truth, rtol=1e-13)
    found_h, found_j = o.second(x, y, z, token, ("Hz", "Jz"))
    assert_near(found_h, hz, rtol=1e-13)
    assert_near(found_j, jz, rtol=1e-13)
    _, full_h, full_j = o.dense(x, y, token)
    assert_near(full_h, dense_h, rtol=1e-12)
    assert_near(full_j, dense_j, rtol=1e-12)
    assert_near(
        o.lower_x(x, y, token), torch.autograd.functional.jacobian(lambda v: g(v, y), x), rtol=1e-12
    )
    assert torch.autograd.gradcheck(g, (x.requires_grad_(), y.requires_grad_()))


@pytest.mark.parametrize("limit", [0, 2**20], ids=["apart", "at once"])
@pytest.mark.parametrize("form", ["tensor", "tuple"])
def test_residuals_are_the_differences_of_the_separate_derivatives(monkeypatch, limit, form):
    monkeypatch.setattr("mindgap.bilevel.backends.oracles.SMALL", limit)
    base = nonlinear() if form == "tuple" else PROBLEM
    o = TorchOracle(base)
    torch.manual_seed(3)
    x, y = (torch.randn(n, dtype=torch.float64) for n in (base.dim_x, base.dim_y))
    z = torch.randn_like(y)
    keep = z.clone()
    for lower, upper in ((Sample(1), Sample(2)), (FULL, FULL)):
        (g_y, hz, jz), (f_x, f_y) = o.system(x, y, z, lower), o.upper(x, y, upper)
        before = dict(o.take_calls())
        for gradient in (True, False):
            found = o.residuals(x, y, z, lower, upper, gradient)
            counted = o.take_calls()
            assert counted == {k: v for k, v in before.items() if gradient or k != "g_y"}
            assert (found[0] is None) == (not gradient)
            if gradient:
                assert_near(found[0], g_y, rtol=1e-12)
            assert_near(found[1], hz - f_y, rtol=1e-12)
            assert_near(found[2], f_x - jz, rtol=1e-12)
    assert torch.equal(z, keep)


@pytest.mark.parametrize("token", [Sample(1), FULL], ids=["minibatch", "all"])
def test_products_of_one_operator_are_the_separate_ones(token):
    problem = nonlinear()
    o = TorchOracle(problem)
    x, y = o.start
    torch.manual_seed(5)
    hessian, mixed = o.operator(x, y, token)
    o.take_calls()
    for _ in range(2):
        v = torch.randn_like(y)
        found = hessian(v), mixed(v)
        counted = o.take_calls()
        assert_near(found[0], o.hessian(x, y, v, token), rtol=1e-13)
        assert_near(found[1], o.mixed(x, y, v, token), rtol=1e-13)
        assert counted == o.take_calls()


@pytest.mark.parametrize("takes_a_view", [False, True])
def test_products_with_a_tall_matrix_are_the_separate_ones(takes_a_view):
    """Such a matrix is stored by columns inside, also where the loss cannot take a view of it."""
    torch.manual_seed(0)
    features, labels = torch.randn(8, 128, dtype=torch.float64), torch.randint(0, 8, (8,))

    def lower(x, y, b):
        size = y.view(-1) if takes_a_view else y
        return torch.nn.functional.cross_entropy(b[0] @ y, b[1]) + x.exp() * size.square().sum()

    start = torch.randn(128, 8, dtype=torch.float64)
    problem = BilevelProblem(
        lower,
        lower,
        torch.zeros((), dtype=torch.float64),
        start,
        (features, labels),
        (features, labels),
        batch_size=4,
    )
    assert is_tall(start)
    o = TorchOracle(problem)
    x, y = o.start
    hessian, mixed = o.operator(x, y, Sample(1))
    for _ in range(2):
        v = torch.randn_like(y)
        assert_near(hessian(v), o.hessian(x, y, v, Sample(1)), rtol=1e-12)
        assert_near(mixed(v), o.mixed(x, y, v, Sample(1)), rtol=1e-12)


def test_hypergradient_from_a_fixed_number_of_products():
    """dim_y conjugate-gradient products are exact; Neumann's sum has its geometric error (test
    above).
    """
    o = oracle()
    assert_near(hypergradient(PROBLEM, X, Y, products=len(Y)), TRUTH)
    assert_near(hypergradient(PROBLEM, X, Y, products=3 * len(Y)), TRUTH)
    tokens = Sample(np.array([2] * 4))
    expected = hypergradient_with(
        o, lambda v: d.neumann_sum(o, X, Y, v, tokens, 0.3), Sample(1), Sample(2)
    )
    found = hypergradient(
        PROBLEM, X, Y, lower=Sample(2), upper=Sample(1), solver="neumann", products=4, eta=0.3
    )
    assert_near(found, expected, rtol=1e-12)


def test_residuals_where_a_derivative_is_missing():
    """A lower loss linear in y has no Hz, an upper loss without x no f_x; z itself is never
    written on.
    """
    problem = BilevelProblem(
        upper=lambda x, y, b: (y * b).sum(),
        lower=lambda x, y, b: (x * y).sum() + 0 * b.sum(),
        x=torch.ones(3),
        y=torch.zeros(3),
        upper_data=torch.ones(2, 3),
        lower_data=torch.ones(2, 3),
        batch_size=1,
    )
    z = torch.tensor([1.0, 2.0, 3.0])
    g_y, d_z, d_x = TorchOracle(problem).residuals(
        torch.ones(3), torch.zeros(3), z, Sample(0), Sample(0)
    )
    assert (g_y.tolist(), d_z.tolist(), d_x.tolist()) == ([1.0] * 3, [-1.0] * 3, [-1.0, -2.0, -3.0])
    assert z.tolist() == [1.0, 2.0, 3.0]


def test_all_samples_in_chunks_are_the_mean_over_samples():
    problem = nonlinear()
    for level in ("upper", "lower"):
        problem.data(level).chunk = 4
    o = TorchOracle(problem)
    x, y = o.start
    z = torch.randn(5, dtype=torch.float64)
    parts = o.system(x, y, z, FULL)
    assert o.calls.as_dict() == {"Hz": 5, "Jz": 5, "g_y": 5}
    each = [o.system(x, y, z, Sample(i)) for i in range(5)]
    for found, batches in zip(parts, zip(*each)):
        assert_near(found, sum(batches) / 5, rtol=1e-12)
    f_x, f_y = o.upper(x, y, FULL)
    each = [o.upper(x, y, Sample(i)) for i in range(3)]
    assert_near(f_x, sum(e[0] for e in each) / 3, rtol=1e-12)
    assert_near(f_y, sum(e[1] for e in each) / 3, rtol=1e-12)
    large = o.lower(x, y, Sample(np.array([0, 3])))
    assert_near(large, (o.lower(x, y, Sample(0)) + o.lower(x, y, Sample(3))) / 2, rtol=1e-13)


def test_yardsticks_on_a_nonlinear_problem_against_differences():
    problem = nonlinear()
    # strong convexity does not hold far away; near this start it does
    x, y = TorchOracle(problem).start
    found = exact_hypergradient(problem, x, y, tol=1e-12)
    y_star = lower_solution(problem, x, y, tol=1e-12)
    step = 1e-5
    for i in range(len(x)):
        e = torch.zeros_like(x)
        e[i] = step
        ahead, behind = (hyper_objective(problem, x + s * e, y_star, tol=1e-12) for s in (1, -1))
        assert float(found[i]) == pytest.approx((ahead - behind) / (2 * step), rel=1e-5, abs=1e-8)


def test_conjugate_gradients_by_numbers_are_those_of_arrays():
    from mindgap.bilevel.backends.oracles import TorchOps
    from mindgap.bilevel.core.directions import conjugate_gradients, conjugate_gradients_by_numbers

    draw = torch.Generator().manual_seed(0)
    root, v = (
        torch.randn(6, 6, generator=draw, dtype=torch.float64),
        torch.ones(6, dtype=torch.float64),
    )
    for h, products in (
        (root @ root.T, 4),
        (root + root.T, 6),
        (torch.eye(6, dtype=torch.float64), 5),
    ):
        z, negative = conjugate_gradients_by_numbers(h.mv, v, products)
        other, other_negative = conjugate_gradients(TorchOps(), h.mv, v, products=products)
        assert torch.allclose(z, other, rtol=1e-10)
        assert negative == bool(other_negative)


def test_conjugate_gradients_by_rows_are_those_of_every_block_alone():
    """One block is indefinite: it stops at its last good step, the other goes on."""
    from mindgap.bilevel.backends.oracles import TorchOps
    from mindgap.bilevel.core.directions import conjugate_gradients

    diagonals = torch.tensor([[1.0, -0.5, 3.0], [2.0, 4.0, 8.0]], dtype=torch.float64)
    whole, stopped = conjugate_gradients(
        TorchOps(),
        lambda v: diagonals.flatten() * v,
        torch.ones(6, dtype=torch.float64),
        products=6,
        rows=2,
    )
    alone = [
        conjugate_gradients(
            TorchOps(), lambda v, d=d: d * v, torch.ones(3, dtype=torch.float64), products=6
        )
        for d in diagonals
    ]
    torch.testing.assert_close(whole, torch.cat([z for z, _ in alone]))
    assert stopped.flatten().tolist() == [bool(negative) for _, negative in alone] == [True, False]
