"""Meta-learning: paired tasks, a lower variable reset per task, tasks side by side."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from mindgap.base.check import RuleError
from mindgap.bilevel import MetaLearner, solve, task_problem

DRAW = torch.Generator().manual_seed(0)
FEATURES, TARGETS = (
    torch.randn(12, 5, 3, generator=DRAW).double(),
    torch.randn(12, 5, generator=DRAW).double(),
)
TIE = 0.7


def squares(x, y, b):
    return ((b[0] @ y - b[1]) ** 2).mean()


def tied(x, y, b):
    return squares(x, y, b) + TIE * ((y - x) ** 2).sum()


def tasks(upper=squares, lower=tied, **options):
    start = torch.zeros(3).double()
    query, support = (FEATURES[:, :3], TARGETS[:, :3]), (FEATURES[:, 3:], TARGETS[:, 3:])
    return task_problem(upper, lower, start, start, query, support, tasks=4, **options)


def by_hand(gradient, steps, lr_x=0.1, lr_y=0.1, inner=3):
    """One task after the other, no vmap; the tasks of each iteration are those the problem
    draws.
    """
    problem = tasks()
    x = torch.zeros(3).double()
    for t in range(steps):
        token = problem.upper_data.draw(0, "upper", t, 1).which[0]
        d = torch.zeros(3).double()
        for i in problem.upper_data.permutation[4 * token : 4 * token + 4]:
            above, below = (FEATURES[i, :3], TARGETS[i, :3]), (FEATURES[i, 3:], TARGETS[i, 3:])
            leaf = x.clone().requires_grad_()
            y = leaf + 0.0
            for _ in range(inner):
                (g,) = torch.autograd.grad(
                    tied(leaf, y, below), y, create_graph=gradient == "unrolled"
                )
                y = y - lr_y * g
            if gradient == "implicit":
                y = y.detach()
                v = torch.autograd.functional.jacobian(lambda y, x=x, b=above: squares(x, y, b), y)
                h = torch.autograd.functional.hessian(lambda y, x=x, b=below: tied(x, y, b), y)
                d += 2 * TIE * torch.linalg.solve(h, v) / 4
            else:
                d += torch.autograd.grad(squares(leaf, y, above), leaf)[0] / 4
        x = x - lr_x * d
    return x


@pytest.mark.parametrize("gradient", ["implicit", "unrolled", "first order"])
def test_tasks_side_by_side_are_tasks_one_by_one(gradient):
    method = MetaLearner(lr_x=0.1, lr_y=0.1, inner=3, products=12, gradient=gradient)
    found = solve(tasks(), method, 20).check().x
    np.testing.assert_allclose(found, by_hand(gradient, 20), rtol=1e-9, atol=1e-12)
    assert float(found.norm()) > 0.01


def test_both_levels_get_the_same_tasks():
    """The query targets are twice the support targets of the same task: any other pairing has a
    residual.
    """
    levels = torch.arange(1.0, 9.0)
    seen = []

    def upper(x, y, b):
        return (y - b).square().sum()

    def lower(x, y, b):
        return (y - 2 * b - x).square().sum()

    problem = task_problem(
        upper, lower, torch.zeros(1), torch.zeros(1), 2 * levels, levels, tasks=2
    )
    method = MetaLearner(lr_x=1e-9, lr_y=0.5, inner=1)
    solve(problem, method, 8, callbacks=lambda s: seen.append(float(s.values["y"].min()))).check()
    assert set(seen[1:]) <= set((2 * levels).tolist())
    for t in range(4):
        state = solve(problem, method, t + 1).state
        token = problem.upper_data.draw(0, "upper", t, 1).which[0]
        wanted = 2 * levels[problem.upper_data.permutation[2 * token : 2 * token + 2]]
        assert torch.allclose(state.y, wanted, atol=1e-5)


def test_implicit_gradient_runs_compiled():
    pytest.importorskip("jax")
    import jax

    from mindgap.bilevel.backends.compiled import JaxBackend

    losses = [
        lambda x, y, b, loss=loss, join=join: join(jax.vmap(loss, (None, 0, 0))(x, y, b))
        for loss, join in ((squares, lambda v: v.mean()), (tied, lambda v: v.sum()))
    ]
    method = MetaLearner(lr_x=0.1, lr_y=0.1, inner=3, products=12)
    problem = tasks()
    fast = solve(problem, method, 20, backend=JaxBackend(*losses)).check()
    eager = solve(problem, method, 20).check()
    np.testing.assert_allclose(fast.x, eager.x, rtol=1e-8)
    assert fast.state.calls == eager.state.calls


def test_anil_starts_from_a_part_of_x():
    problem = task_problem(
        lambda x, y, b: ((b[0][:, :2] @ x[:2] + b[0][:, 2] * y - b[1]) ** 2).mean(),
        lambda x, y, b: ((b[0][:, :2] @ x[:2] + b[0][:, 2] * y - b[1]) ** 2).mean(),
        torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64),
        torch.zeros(1).double(),
        (FEATURES, TARGETS),
        (FEATURES, TARGETS),
        tasks=4,
    )
    method = MetaLearner(lr_x=0.05, lr_y=0.1, inner=2, gradient="unrolled", reset=(2, 3))
    assert method.starts(method.oracle(problem), problem.pack_x.start).tolist() == [0.3] * 4
    before, after = problem.pack_x.start, solve(problem, method, 50).check().x
    assert (after != before).all()  # body and start of the head both learn


def test_bad_tasks_are_refused():
    start = torch.zeros(3)
    with pytest.raises(RuleError, match="support must hold as many tasks as query, 12, got 11"):
        task_problem(
            squares, tied, start, start, (FEATURES, TARGETS), (FEATURES[1:], TARGETS[1:]), tasks=4
        )
    with pytest.raises(RuleError, match="y must be the flat lower variable of one task"):
        task_problem(
            squares,
            tied,
            start,
            torch.zeros(2, 3),
            (FEATURES, TARGETS),
            (FEATURES, TARGETS),
            tasks=4,
        )
    with pytest.raises(RuleError, match="reset must be a part of x that fits the rows of y"):
        solve(tasks(), MetaLearner(lr_x=0.1, lr_y=0.1, reset=(0, 7)), 1)
    with pytest.raises(RuleError, match="reset must be 'x', 'start' or"):
        MetaLearner(lr_x=0.1, lr_y=0.1, reset=(2, 2))


def test_imaml_is_within_two_points_of_a_loop_by_hand():
    path = Path(__file__).parents[2] / "examples" / "meta_learning.py"
    spec = importlib.util.spec_from_file_location("meta_learning", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    ours = example.accuracy("iMAML", example.learn("iMAML", 40))
    hand = example.accuracy("iMAML", example.imaml_by_hand(40))
    assert abs(ours - hand) <= 0.02
    assert ours > example.accuracy("iMAML", example.MODEL.start) + 0.02


def test_a_history_of_rows_that_start_anew_is_refused():
    """The rows of y belong to the tasks of the last iteration, so that no loss over all tasks has a
    meaning.
    """
    with pytest.raises(RuleError, match="history must be None for a method whose y starts anew"):
        solve(tasks(), MetaLearner(lr_x=0.1, lr_y=0.1), 4, history=2)
