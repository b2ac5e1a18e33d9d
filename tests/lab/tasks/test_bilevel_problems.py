"""The standard bilevel problems: closed forms against differences and autograd, samples against
their description.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mindgap.base.check import RuleError
from mindgap.lab.tasks.data import Table, digits
from mindgap.lab.tasks.problems import (
    area_under_curve,
    corrupt,
    covtype_selection,
    hyper_cleaning,
    ijcnn1_selection,
    quadratic_loss,
    quadratic_problem,
    unbounded_problem,
)


def _differences(function, x, step=1e-5):
    """Central differences of a function of a flat vector."""
    rows = []
    for i in range(len(x)):
        e = torch.zeros_like(x)
        e[i] = step
        rows.append(
            torch.as_tensor((function(x + e) - function(x - e)) / (2 * step), dtype=x.dtype)
        )
    return torch.stack(rows)


# ------------------------------------------------------------------------------------------------
# quadratic
def test_quadratic_closed_forms():
    q = quadratic_problem(lower=256, upper=128, dim_y=8, dim_x=5, seed=3)
    problem = q.problem()
    torch.manual_seed(0)
    x = torch.randn(5, dtype=torch.float64)
    y = q.y_star(x)
    g_y = _differences(lambda v: problem.loss("lower", x, v), y)
    assert g_y.abs().max() < 1e-8  # y* is where the gradient of the samples' mean vanishes

    def phi(v):  # from the samples, not from the means
        return problem.loss("upper", v, q.y_star(v))

    torch.testing.assert_close(q.hyper_objective(x), phi(x), rtol=1e-12, atol=0)
    torch.testing.assert_close(_differences(phi, x), q.hypergradient(x), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(_differences(q.hypergradient, x), q.hessian(), rtol=1e-8, atol=1e-9)
    f_x, f_y = q.upper_gradients(x, y)
    torch.testing.assert_close(
        _differences(lambda v: problem.loss("upper", v, y), x), f_x, rtol=1e-8, atol=1e-9
    )
    torch.testing.assert_close(
        _differences(lambda v: problem.loss("upper", x, v), y), f_y, rtol=1e-8, atol=1e-9
    )
    torch.testing.assert_close(q.lower.A @ q.z_star(x), f_y, rtol=1e-10, atol=1e-12)
    minimiser = x - torch.linalg.solve(q.hessian(), q.hypergradient(x))
    assert q.hypergradient(minimiser).norm() < 1e-10


def test_quadratic_is_the_benchmarks():
    """Spectra and start value as known for n = 32768, m = 1024, d_y = 100, d_x = 10."""
    q = quadratic_problem(lower=32768, upper=1024, dim_y=100, dim_x=10)
    eigenvalues = torch.linalg.eigvalsh(q.lower.A)
    # sampling error of an eigenvalue of a mean over n rank-one matrices: about sqrt(d / n) = 0.055
    # of its size
    np.testing.assert_allclose(eigenvalues.numpy(), np.logspace(-1, 0, 100), rtol=0.17)
    in_x = torch.linalg.eigvalsh(q.lower.B)
    assert abs(float(in_x[0])) < 1e-12  # one zero eigenvalue by construction
    np.testing.assert_allclose(in_x[1:].numpy(), np.logspace(-1, 0, 9), rtol=0.1)
    np.testing.assert_allclose(torch.linalg.svdvals(q.lower.C).numpy(), 0.1, rtol=0.17)
    assert (q.x0 == -2).all()
    assert (q.y0 == 0).all()
    starts = [
        quadratic_problem(lower=2048, upper=1024, dim_y=100, dim_x=10, seed=s) for s in range(12)
    ]
    values = [float(s.hypergradient(s.x0).square().sum()) for s in starts]
    # ∇Φ(x0) = B'x0 + small terms: mean 4·Σ over 10 directions of eigenvalue² ≈ 8.4, spread over
    # seeds of ±4
    assert 5 < np.mean(values) < 12
    assert 0.02 < float(torch.linalg.eigvalsh(q.hessian())[0]) < 0.1
    assert 0.9 < float(torch.linalg.eigvalsh(q.hessian())[-1]) < 1.2


def test_quadratic_samples_one_by_one():
    """The fast loss equals the written-out sum over samples with their rank-one matrices."""
    q = quadratic_problem(lower=32, upper=32, dim_y=4, dim_x=3)
    x, y = torch.randn(3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    total = 0.0
    for (p, r, a), (w, s, b) in zip(*q.lower_samples):
        A, B, C = torch.outer(p, p), torch.outer(w, w), torch.outer(s, r)
        total += 0.5 * y @ A @ y + 0.5 * x @ B @ x + x @ C @ y + a @ y + b @ x
    torch.testing.assert_close(
        quadratic_loss(x, y, q.lower_samples), total / 32, rtol=1e-12, atol=0
    )


def test_quadratic_refuses():
    with pytest.raises(RuleError, match="dim_y must be a whole number of at least 1, got 0"):
        quadratic_problem(dim_y=0)
    with pytest.raises(RuleError, match="convexity must be positive and finite, got -1"):
        quadratic_problem(convexity=-1)
    with pytest.raises(RuleError, match="lower and upper must be large enough for a convex Phi"):
        quadratic_problem(lower=4, upper=4, dim_y=20, dim_x=20)


def test_quadratic_is_a_function_of_its_seed():
    a, b, c = (quadratic_problem(lower=64, upper=64, dim_y=4, dim_x=3, seed=s) for s in (0, 0, 1))
    assert all(torch.equal(p, q) for p, q in zip(a.lower_samples, b.lower_samples))
    assert not torch.equal(a.lower_samples[0], c.lower_samples[0])


# -------------------------------------------------------------------------------------------
# regularisation
@pytest.mark.parametrize("make", [ijcnn1_selection, covtype_selection])
def test_regularisation_closed_forms(make):
    task = make(source="synthetic", rows=300)
    x = task.x0
    y = task.y_star(x)
    leaf = y.clone().requires_grad_()
    (g_y,) = torch.autograd.grad(task.lower(x, leaf.view(task.y0.shape), task.train), leaf)
    assert g_y.norm() < 1e-11 * max(1, float(y.norm()))
    dense = torch.autograd.functional.hessian(
        lambda v: task.lower(x, v.view(task.y0.shape), task.train), y
    )
    torch.testing.assert_close(task._derivatives(x, y)[1], dense, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        _differences(task.hyper_objective, x), task.hypergradient(x), rtol=1e-6, atol=1e-9
    )
    assert 0 < task.test_error(y) < 0.5


def test_regularisation_has_ijcnn1s_shape():
    task = ijcnn1_selection(source="synthetic")
    assert [len(part[1]) for part in (task.train, task.validation)] == [49_990, 91_701]
    problem = task.problem()
    assert (problem.dim_x, problem.dim_y) == (22, 22)
    assert set(task.train[1].tolist()) == {-1.0, 1.0}
    assert (task.x0 < 0).all()  # log of a number below one


def test_binary_loss_written_out():
    task = ijcnn1_selection(source="synthetic", rows=10)
    features, labels = task.train
    margins = [float(t * (a @ task.y0)) for a, t in zip(features, labels)]
    decay = 0.5 * sum(float(torch.exp(x) * y * y) for x, y in zip(task.x0, task.y0))
    expected = sum(np.log1p(np.exp(-m)) for m in margins) / 10 + decay
    assert float(task.lower(task.x0, task.y0, task.train)) == pytest.approx(expected, rel=1e-12)


def test_multiclass_needs_classes():
    from mindgap.lab.tasks.problems import multiclass_selection

    two = Table(np.eye(4), np.array([0, 1, 0, 1]), "made up")
    with pytest.raises(RuleError, match="labels must have at least three classes, got 2"):
        multiclass_selection(two, two, two)


# -------------------------------------------------------------------------------------------
# hyper-cleaning
@pytest.fixture(scope="module")
def cleaning():
    return hyper_cleaning(digits(), corruption=0.4, train=300, validation=300, seed=1)


def test_corruption_is_fixed_once(cleaning):
    """A sample's label is the same at every access in every epoch, and the mask says which were
    changed.
    """
    problem = cleaning.problem(batch_size=50)
    table = digits()
    from mindgap.base.rng import numpy_stream

    order = numpy_stream(1, "cleaning", "split").permutation(len(table))
    truth = torch.from_numpy(table.labels[order[:300]])
    assert torch.equal(cleaning.train[1] != truth, cleaning.corrupted)
    assert int(cleaning.corrupted.sum()) == 120
    seen = {}
    for draw in range(5 * problem.lower_data.batches):
        token = problem.lower_data.draw(0, "lower", draw, 1)
        _, labels, numbers = problem.lower_data.fetch(type(token)(int(token.which[0])))
        for number, label in zip(numbers.tolist(), labels.tolist()):
            assert seen.setdefault(number, label) == label
    assert seen == dict(enumerate(cleaning.train[1].tolist()))
    again = hyper_cleaning(digits(), corruption=0.4, train=300, validation=300, seed=1)
    assert torch.equal(again.corrupted, cleaning.corrupted)
    assert torch.equal(again.train[1], cleaning.train[1])


def test_upper_level_sees_clean_samples_of_its_own(cleaning):
    """Validation and test samples are other rows of the data set than the training samples,
    with their true labels.
    """
    table = digits()
    rows = {row.tobytes(): label for row, label in zip(table.features, table.labels)}
    training = {row.tobytes() for row in cleaning.train[0].numpy()}
    for features, labels in (cleaning.validation, cleaning.test):
        keys = [row.tobytes() for row in features.numpy()]
        assert all(rows[key] == int(label) for key, label in zip(keys, labels))
        assert not training & set(keys)
    assert len(cleaning.train[1]) + len(cleaning.validation[1]) + len(cleaning.test[1]) == len(
        table
    )


def test_cleaning_losses_written_out(cleaning):
    torch.manual_seed(0)
    x, y = torch.randn(300, dtype=torch.float64), torch.randn(64, 10, dtype=torch.float64)
    features, labels = cleaning.train
    numbers = torch.tensor([5, 250, 17])
    total = 0.0
    for i in numbers.tolist():
        logits = features[i] @ y
        total += torch.sigmoid(x[i]) * (torch.logsumexp(logits, 0) - logits[labels[i]])
    expected = total / 3 + 1e-3 * (y * y).sum()  # the squared norm
    torch.testing.assert_close(
        cleaning.lower(x, y, (features[numbers], labels[numbers], numbers)), expected
    )
    assert cleaning.upper(x, y, cleaning.validation) == cleaning.validation_loss(y)


def test_perfect_cleaning_helps(cleaning):
    """Zero weight on the corrupted samples beats equal weights: there is something to be learnt."""
    equal = cleaning.accuracy(cleaning.minimiser(torch.ones(300, dtype=torch.float64)))
    assert cleaning.perfect_accuracy() > equal + 0.05


def test_cleaning_closed_forms():
    task = hyper_cleaning(
        digits(), corruption=0.4, train=24, validation=80, components=5, decay=1e-2, seed=1
    )
    torch.manual_seed(0)
    x = torch.randn(24, dtype=torch.float64)
    y = task.minimiser(torch.sigmoid(x)).requires_grad_()
    value = task.lower(x, y.view(5, 10), (*task.train, torch.arange(24)))
    (slope,) = torch.autograd.grad(value, y)
    assert slope.norm() < 1e-11

    def phi(v):
        return torch.tensor(
            task.validation_loss(task.minimiser(torch.sigmoid(v))), dtype=torch.float64
        )

    torch.testing.assert_close(_differences(phi, x), task.hypergradient(x), rtol=1e-5, atol=1e-9)


def test_components_are_white_and_know_no_test_sample():
    task = hyper_cleaning(digits(), train=200, validation=300, components=7, seed=0)
    known = torch.cat([task.train[0], task.validation[0]])
    torch.testing.assert_close(
        known.T @ known / 500, torch.eye(7, dtype=torch.float64), rtol=0, atol=1e-12
    )
    table = digits()
    changed = Table(table.features.copy(), table.labels, "made up")
    from mindgap.base.rng import numpy_stream

    changed.features[numpy_stream(0, "cleaning", "split").permutation(len(table))[500:]] += 100.0
    other = hyper_cleaning(changed, train=200, validation=300, components=7, seed=0)
    assert torch.equal(other.train[0], task.train[0])
    with pytest.raises(RuleError, match="components must be at most 64, got 65"):
        hyper_cleaning(digits(), components=65)


@pytest.mark.parametrize("own_test", [True, False])
def test_the_parts_of_a_cleaning_task_share_no_sample(own_test):
    """The samples on which steps are searched are those of neither level, nor those of the test."""
    numbered = Table(np.arange(200.0)[:, None], np.arange(200) % 4, "numbers")
    apart = Table(np.arange(200.0, 260.0)[:, None], np.arange(60) % 4, "others")
    task = hyper_cleaning(
        numbered, apart if own_test else None, train=60, validation=50, held=40, seed=0
    )
    parts = [task.train[0], task.validation[0], task.held[0], task.test[0]]
    rows = torch.cat(parts).flatten().tolist()
    assert [len(part) for part in parts[:3]] == [60, 50, 40]
    assert len(set(rows)) == len(rows)


def test_area_under_curve_by_counting_pairs():
    torch.manual_seed(0)
    score, positive = torch.randint(0, 5, (60,)).double(), torch.rand(60) < 0.4
    pairs = [
        (p > n) + 0.5 * (p == n)
        for p in score[positive].tolist()
        for n in score[~positive].tolist()
    ]
    assert area_under_curve(score, positive) == pytest.approx(np.mean(pairs), rel=1e-12)
    with pytest.raises(RuleError, match="positive must have both"):
        area_under_curve(score, torch.ones(60, dtype=torch.bool))


def test_corrupted_labels_are_uniform_over_the_others():
    labels, mask = corrupt(np.full(90_000, 3), 10, 0.5, seed=0)
    counts = np.bincount(labels[mask], minlength=10)
    assert counts[3] == 0
    others = np.delete(counts, 3)
    assert mask.sum() == 45_000
    # 5,000 expected each, standard deviation 67: within 4 of them
    assert np.abs(others - 5000).max() < 4 * 67


def test_cleaning_refuses():
    with pytest.raises(RuleError, match=r"corruption must lie in \[0, 1\], got 1.5"):
        hyper_cleaning(digits(), corruption=1.5)
    with pytest.raises(RuleError, match=r"train \+ validation \+ held must leave samples of 1797"):
        hyper_cleaning(digits(), train=1000, validation=900)


# ------------------------------------------------------------------------------------- unbounded
# smoothness
@pytest.mark.parametrize("growth", ["exponential", "quartic"])
def test_unbounded_closed_forms(growth):
    task = unbounded_problem(
        growth=growth, lower=256, upper=64, dim_y=6, dim_x=4, rate=1.5, distance=2.0
    )
    x = torch.linspace(-1.5, 2.0, 4, dtype=torch.float64)
    torch.testing.assert_close(
        _differences(task.hyper_objective, x), task.hypergradient(x), rtol=1e-7, atol=1e-8
    )
    y = torch.linspace(0, 1, 6, dtype=torch.float64)
    problem = task.problem()
    f_x, f_y = task.upper_gradients(x, y)
    torch.testing.assert_close(
        _differences(lambda v: problem.loss("upper", v, y), x), f_x, rtol=1e-7, atol=1e-8
    )
    torch.testing.assert_close(
        _differences(lambda v: problem.loss("upper", x, v), y), f_y, rtol=1e-7, atol=1e-8
    )


def test_unbounded_means_relative_to_the_gradient():
    """|f_xx| <= 1 + κ |f_x| for every sample and every x, and no constant bounds f_xx alone."""
    task = unbounded_problem(rate=2.0, lower=256, upper=64, dim_y=6, dim_x=4)
    largest = 0.0
    for distance in (0.0, 1.0, 5.0, 20.0):
        x = torch.full((4,), distance, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(
            task.upper(x, task.quadratic.y0, (task.centres[:1], task.targets[:1])),
            x,
            create_graph=True,
        )
        (curvature,) = torch.autograd.grad(slope.sum(), x)  # diagonal: the coordinates are separate
        assert (curvature <= 1 + 2.0 * slope.abs() + 1e-9).all()
        largest = float(curvature.max())
    assert largest > 1e15


def test_unbounded_refuses():
    with pytest.raises(RuleError, match="growth must be one of 'exponential', 'quartic'"):
        unbounded_problem(growth="cubic")
    with pytest.raises(RuleError, match="rate must be positive"):
        unbounded_problem(rate=0)
