"""Hypergradients at any point, through autograd, with four solvers; negative curvature; what a
run may not hide.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from cases.bilevel import BY_KEY
from references.bilevel_small import Point

from mindgap.base.check import RuleError
from mindgap.bilevel import (
    F2SA,
    METHODS,
    SOBA,
    Batches,
    BilevelProblem,
    Constant,
    NegativeCurvature,
    exact_hypergradient,
    hypergradient,
    implicit_solution,
    lower_solution,
    solve,
)
from mindgap.bilevel.backends.oracles import TorchOps
from mindgap.bilevel.core.directions import conjugate_gradients
from mindgap.bilevel.tools import exact

QUADRATIC, PROBLEM, X, Y, TRUTH = Point.quadratic, Point.problem, Point.x, Point.y, Point.truth
SOLVERS = {
    "cg": {"products": 12},
    "neumann": {"products": 600, "eta": 0.7},
    "own": {},
}


def _settings(name):
    if name == "own":
        matrix = torch.linalg.inv(QUADRATIC.lower.A)
        return {"solver": lambda hessian, v: matrix @ v}
    return {"solver": name, **SOLVERS[name]}


@pytest.mark.parametrize("name", SOLVERS)
def test_hypergradient_is_the_closed_form(name):
    found = hypergradient(PROBLEM, X, Y, **_settings(name))
    np.testing.assert_allclose(found, TRUTH, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", SOLVERS)
def test_backward_through_the_lower_solution_reaches_x(name):
    """Phi(x) = f(x, y*(x)) by autograd: direct and implicit part together."""
    x = X.clone().requires_grad_()
    y = implicit_solution(PROBLEM, x, lower_solution(PROBLEM, X), **_settings(name))
    up = QUADRATIC.upper
    loss = 0.5 * y @ up.A @ y + 0.5 * x @ up.B @ x + x @ up.C @ y + up.a @ y + up.b @ x
    loss.backward()
    np.testing.assert_allclose(x.grad, TRUTH, rtol=1e-6, atol=1e-7)


def test_a_misspelt_solver_and_a_missing_step_are_refused():
    with pytest.raises(RuleError, match="solver must be one of 'cg', 'neumann'"):
        hypergradient(PROBLEM, X, Y, solver="newton")
    with pytest.raises(RuleError, match="eta must be a number, got None"):
        hypergradient(PROBLEM, X, Y, solver="neumann")


# Defect 1: negative curvature.


def test_conjugate_gradients_stop_at_negative_curvature():
    """The floor of 1e-30 used to turn it into a step of 1e30, then NaN."""
    h = torch.tensor([1.0, -0.5], dtype=torch.float64)
    z, negative = conjugate_gradients(
        TorchOps(), lambda v: h * v, torch.ones(2, dtype=torch.float64), products=40
    )
    assert bool(negative)
    assert torch.isfinite(z).all()
    assert float(z.norm()) < 10
    z, negative = conjugate_gradients(
        TorchOps(), lambda v: h.abs() * v, torch.ones_like(h), products=40
    )
    assert not bool(negative)
    np.testing.assert_allclose(z, [1.0, 2.0])


def test_hypergradient_of_a_network_is_finite_and_says_so():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    data = torch.randn(32, 3), torch.randn(32, 1)
    problem = BilevelProblem(
        lambda x, y, b: (y(b[0]) - b[1]).square().mean(),
        lambda x, y, b: (x.exp() * (y(b[0]) - b[1]).square()).mean(),
        torch.zeros(1),
        net,
        data,
        data,
        batch_size=8,
    )
    with pytest.warns(NegativeCurvature, match="negative curvature within 40 products"):
        found = hypergradient(problem, torch.zeros(1), problem.pack_y.start, products=40)
    assert torch.isfinite(found).all()


# Defect 2: constraints on y.


def _constrained():
    """y*(x) = clip(x, -1, 0.5): the constraint is active for x > 0.5, and the best x is 0.5."""
    data = torch.ones(4, 1, dtype=torch.float64)
    return BilevelProblem(
        lambda x, y, b: (y - 2.0).square().sum() + (x - 0.5).square().sum(),
        lambda x, y, b: (y - x).square().sum(),
        torch.ones(1, dtype=torch.float64),
        torch.zeros(1, dtype=torch.float64),
        data,
        data,
        batch_size=2,
        project_y=lambda y: y.clip(-1.0, 0.5),
    )


def test_project_y_is_refused_where_it_would_give_the_wrong_point():
    """SOBA, AmIGO and StocBio went to x = 5 instead of 0.5, without a word."""
    for key, case in BY_KEY.items():
        method = case.make()
        if method.second_order:
            with pytest.raises(
                RuleError, match=f"project_y must be None for {type(method).__name__}"
            ):
                solve(_constrained(), method, steps=1)
        else:
            assert key == "f2sa" or not METHODS[key].listed
    found = solve(
        _constrained(), F2SA(lr_x=2.0, lr_y=Constant(0.2), lam=20.0, delta=0.0, inner=5), steps=400
    )
    assert float(found.x) == pytest.approx(0.5, abs=0.06)


# Defect 3: batch normalisation.


def test_a_module_with_batch_norm_comes_back_with_its_statistics():
    torch.manual_seed(0)
    inputs = 3.0 + 2.0 * torch.randn(256, 4)
    labels = (inputs[:, 0] > 3.0).float()
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))

    def loss(x, y, b):
        return torch.nn.functional.binary_cross_entropy_with_logits(y(b[0]).flatten(), b[1])

    problem = BilevelProblem(
        lambda x, y, b: loss(x, y, b) + 0.0 * x.sum(),
        lambda x, y, b: (
            loss(x, y, b) + 1e-3 * x.exp().sum() * sum(p.square().sum() for p in y.parameters())
        ),
        torch.zeros(1),
        net,
        (inputs, labels),
        (inputs, labels),
        batch_size=32,
    )
    solution = solve(problem, SOBA(lr_x=0.01, lr_y=Constant(0.5)), steps=150)
    found = solution.y.eval()
    assert found[0].running_mean.mean() == pytest.approx(3.0, abs=0.3)
    accuracy = float(((found(inputs).flatten() > 0).float() == labels).float().mean())
    assert accuracy > 0.95
    assert found[0].momentum == 0.1


# Defect 4: checkpoints of schedules that are functions.

SCRIPT = """
import sys, torch
sys.path.insert(0, {tests!r})
from references.bilevel_small import small_quadratic
from mindgap.bilevel import SOBA, solve
method = SOBA(lr_x=lambda t: 0.1 / (t + 1), lr_y=0.1)
problem, steps = small_quadratic(seed=4).problem(16), int(sys.argv[2])
state = solve(problem, method, steps=steps, checkpoint=sys.argv[1], resume=True).state
print(state.t, float(state.x.norm()))
"""


def test_a_function_schedule_resumes_in_another_process(tmp_path):
    from pathlib import Path

    file, path = tmp_path / "run.py", str(tmp_path / "state.pt")
    file.write_text(SCRIPT.format(tests=str(Path(__file__).parents[1])))
    said = [
        subprocess.run(
            [sys.executable, str(file), path, steps], capture_output=True, text=True, check=True
        ).stdout
        for steps in ("5", "9")
    ]
    assert said[0].startswith("5 ")
    assert said[1].startswith("9 ")


def test_another_function_is_another_method(tmp_path):
    path = tmp_path / "state.pt"
    solve(PROBLEM, SOBA(lr_x=lambda t: 0.1 / (t + 1), lr_y=0.1), steps=3, checkpoint=path)
    with pytest.raises(RuleError, match="checkpoint must belong to"):
        solve(
            PROBLEM,
            SOBA(lr_x=lambda t: 0.2 / (t + 1), lr_y=0.1),
            steps=6,
            checkpoint=path,
            resume=True,
        )


# Defect 5: F2SA's calls.


def test_f2sa_counts_what_it_uses():
    state = solve(PROBLEM, F2SA(lr_x=1.0, lr_y=0.1, inner=10), steps=1).state
    assert state.calls == {"f_x": 1, "f_y": 10, "g_x": 2, "g_y": 20}
    assert state.total_calls == 33


# Defect 6: states of JAX, early stopping, randomness of NumPy.


def test_arrays_of_other_libraries_are_vectors_too():
    np.testing.assert_allclose(exact_hypergradient(PROBLEM, X.numpy()), TRUTH, rtol=1e-8)
    np.testing.assert_allclose(
        hypergradient(PROBLEM, X.numpy(), Y.numpy(), products=12), TRUTH, rtol=1e-8
    )
    with pytest.raises(RuleError, match="x must be a flat vector of 3 numbers"):
        exact_hypergradient(PROBLEM, X[:2])


def _stiff_quadratic(condition):
    """A lower level yAy/2 - xy of 20 numbers, its matrix A, and the centre of the upper level."""
    draw = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(20, 20, dtype=torch.float64, generator=draw))[0]
    scales = torch.logspace(0, -float(np.log10(condition)), 20, dtype=torch.float64)
    matrix = (basis * scales) @ basis.T
    centre = torch.randn(20, dtype=torch.float64, generator=draw)
    problem = BilevelProblem(
        lambda x, y, b: 0.5 * ((y - centre) ** 2).sum(),
        lambda x, y, b: 0.5 * y @ matrix @ y - x @ y,
        matrix @ torch.randn(20, dtype=torch.float64, generator=draw),
        torch.zeros(20, dtype=torch.float64),
        Batches(torch.zeros(2), 2),
        Batches(torch.zeros(2), 2),
    )
    return problem, matrix, centre


def test_an_ill_conditioned_hessian_is_solved():
    """One pass of conjugate gradients was 11 % off here and said nothing."""
    problem, matrix, centre = _stiff_quadratic(1e6)
    x = problem.pack_x.start
    truth = torch.linalg.solve(matrix, torch.linalg.solve(matrix, x) - centre)
    found = exact_hypergradient(problem, x)
    assert float((found - truth).norm() / truth.norm()) < 1e-4


def test_a_linear_system_that_rounding_leaves_open_is_an_error(monkeypatch):
    problem, *_ = _stiff_quadratic(1e6)
    good = exact.conjugate_gradients

    def poor(*args, **settings):  # a hundredth of the way per pass
        solution, negative = good(*args, **settings)
        return solution / 100, negative

    monkeypatch.setattr(exact, "lower_solution", lambda problem, x, y, tol: problem.pack_y.start)
    monkeypatch.setattr(exact, "conjugate_gradients", poor)
    with pytest.raises(RuntimeError, match=r"was not solved: its residual is 0\.9"):
        exact_hypergradient(problem, problem.pack_x.start)


def test_a_state_of_the_compiled_backend_has_a_hypergradient():
    pytest.importorskip("jax")
    from mindgap.bilevel.backends.compiled import JaxBackend
    from mindgap.lab.tasks.problems import compiled as losses

    backend = JaxBackend(*losses.quadratic_losses())
    state = solve(PROBLEM, SOBA(lr_x=0.1, lr_y=0.2), steps=5, backend=backend).state
    assert torch.isfinite(exact_hypergradient(PROBLEM, state.x)).all()


@pytest.mark.parametrize("yes", [True, np.True_, np.array(True), torch.tensor(True)], ids=repr)
def test_any_kind_of_true_stops_a_run(yes):
    found = solve(
        PROBLEM, SOBA(lr_x=0.1, lr_y=0.1), steps=9, callbacks=lambda s: yes if s.t == 4 else None
    )
    assert found.outcome == "stopped"
    assert found.state.t == 4


@pytest.mark.parametrize(
    "other", [1, 0.5, "yes", np.float64(1.0), np.False_, torch.tensor(1.0)], ids=repr
)
def test_other_answers_go_on(other):
    assert (
        solve(PROBLEM, SOBA(lr_x=0.1, lr_y=0.1), steps=3, callbacks=lambda s: other).outcome
        == "done"
    )


def _random_problem(draw):
    data = torch.ones(8, 2, dtype=torch.float64)
    return BilevelProblem(
        lambda x, y, b: (y - b[0]).square().sum() + x.square().sum(),
        lambda x, y, b: (y - x).square().sum() * (1.0 + 0.5 * draw()),
        torch.ones(2).double(),
        torch.zeros(2).double(),
        data,
        data,
        batch_size=4,
    )


@pytest.mark.parametrize("name", ["numpy", "python"])
def test_random_numbers_of_numpy_and_python_are_replayed(name):
    """A sample must give the same loss at every point; NumPy's numbers used to be fresh every
    time.
    """
    import random

    draw = np.random.rand if name == "numpy" else random.random
    problem = _random_problem(draw)
    method = SOBA(lr_x=0.05, lr_y=0.1)
    runs = []
    for seed in (1, 2):
        np.random.seed(seed)
        random.seed(seed)
        runs.append(solve(problem, method, steps=20).state)
    assert runs[0].oracle.seeded
    assert torch.equal(runs[0].x, runs[1].x)


def test_random_numbers_that_cannot_be_replayed_are_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(RuleError, match="lower must give the same value twice on one sample"):
        SOBA(lr_x=0.1, lr_y=0.1).start(_random_problem(rng.random))


def test_a_hypergradient_of_numbers_that_are_not_finite_is_nan():
    """A solve that begins with a residual of NaN made no pass, and f_x came out as the answer."""
    data = torch.ones(8, 1, dtype=torch.float64)
    problem = BilevelProblem(
        lambda x, y, b: (x - 3).square().sum() + (y.sqrt() * b).mean(),
        lambda x, y, b: (y - x * b).square().mean(),
        torch.tensor([2.0]).double(),
        torch.tensor([0.5]).double(),
        data,
        data,
        batch_size=4,
    )
    y = torch.tensor([-2.0]).double()  # the root of a negative number
    assert torch.isnan(exact_hypergradient(problem, y.clone(), y)).all()
    assert torch.isfinite(exact_hypergradient(problem, -y, -y)).all()
