"""Hyper-representation as a bilevel problem: losses and heads written out, tasks against their
description.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mindgap.base.check import RuleError
from mindgap.bilevel import exact_hypergradient, solve
from mindgap.bilevel.registry import SIXTEEN as METHODS
from mindgap.lab.studies.bilevel_runs import method_of
from mindgap.lab.tasks.data import Table, digits
from mindgap.lab.tasks.problems import hyper_representation, split_table


def _digits_task(**changes):
    tables = split_table(digits(), (0.6, 0.2, 0.2), seed=0)
    settings = {"tasks": (6, 4, 5), "ways": 3, "shots": 4, "hidden": 5, "features": 2, "seed": 0}
    return hyper_representation(*([t] for t in tables), **{**settings, **changes})


def _pairs(rows=120, seed=0):
    draw = np.random.default_rng(seed)
    return Table(draw.standard_normal((rows, 2, 3)), np.arange(rows) % 3, f"pairs {seed}")


@pytest.fixture(scope="module")
def task():
    return _digits_task()


def test_losses_written_out(task):
    """Task by task and example by example, with the squared norm, as the module's head states
    them.
    """
    problem = task.problem(batch_size=4)
    torch.manual_seed(0)
    x = problem.pack_x.start + 0.1 * torch.randn(problem.dim_x, dtype=torch.float64)
    y = torch.randn(6, 3, 3, dtype=torch.float64)
    weights = problem.view_x(x)

    def mean_loss(part, examples):
        total = 0.0
        for i in range(6):
            for j in examples:
                code = torch.tanh(part[0][i, j] @ weights["first"] + weights["first_bias"])
                features = torch.tanh(code @ weights["second"] + weights["second_bias"])
                logits = features @ y[i, :2] + y[i, 2]
                total += torch.logsumexp(logits, 0) - logits[part[1][i, j]]
        return total / (6 * len(examples))

    decay = sum(1e-2 * (head * head).sum() for head in y) / 6
    torch.testing.assert_close(
        problem.loss("upper", x, y.flatten()), mean_loss(task.train.query, range(12))
    )
    torch.testing.assert_close(
        problem.loss("lower", x, y.flatten()), mean_loss(task.train.support, range(12)) + decay
    )
    token = problem.lower_data.draw(0, "lower", 0, 1)
    token = type(token)(int(token.which[0]))
    examples = problem.lower_data.indices(token).tolist()
    assert len(examples) == 4
    torch.testing.assert_close(
        problem.loss("lower", x, y.flatten(), token),
        mean_loss(task.train.support, examples) + decay,
    )


def test_pairs_are_joined_between_the_layers():
    task = hyper_representation(
        [_pairs()], [_pairs(seed=1)], [_pairs(seed=2)], tasks=(3, 3, 3), shots=5, hidden=4
    )
    x, pair = task.x0, task.train.query[0][0, 0]
    u, v = (torch.tanh(side @ x["first"]) for side in pair)
    joined = torch.cat([u, v, (u - v) ** 2, u * v])
    torch.testing.assert_close(task.encode(x, pair)[:-1], torch.tanh(joined @ x["second"]))
    assert float(task.encode(x, pair)[-1]) == 1.0
    assert x["second"].shape == (16, 8)


def test_heads_minimise_the_lower_level_and_it_is_strongly_convex(task):
    problem = task.problem(batch_size=4)
    x = problem.pack_x.start
    y = task.heads(x).flatten().requires_grad_()
    inputs, labels = (part.transpose(0, 1) for part in task.train.support)

    def lower(flat):
        return task.lower(problem.view_x(x), flat.view(task.y0.shape), (inputs, labels))

    (slope,) = torch.autograd.grad(lower(y), y)
    assert slope.norm() < 1e-11
    # modulus 2c / n: the loss itself is flat where all logits of a task rise together
    eigenvalues = torch.linalg.eigvalsh(torch.autograd.functional.hessian(lower, y.detach()))
    assert float(eigenvalues[0]) == pytest.approx(2 * 1e-2 / 6, rel=1e-6)


def test_heads_with_more_features_than_examples_minimise_the_lower_level_too():
    """They are found in the span of their examples."""
    tables = [[_pairs(seed=part)] for part in range(3)]
    task = hyper_representation(
        *tables, tasks=(7, 3, 3), shots=2, hidden=4, features=30, decay=1e-2
    )
    y = task.heads(task.problem(batch_size=4).pack_x.start).requires_grad_()
    inputs, labels = (part.transpose(0, 1) for part in task.train.support)
    (slope,) = torch.autograd.grad(task.lower(task.x0, y, (inputs, labels)), y)
    assert slope.norm() < 1e-11
    assert task.y0.shape == (7, 31, 2)


def test_measures_encode_a_few_tasks_at_a_time(task, monkeypatch):
    x = task.problem(batch_size=4).pack_x.start
    whole = task.adapted(x, "train"), task.accuracy(x, task.heads(x))
    monkeypatch.setattr("mindgap.lab.tasks.problems.representation.CHUNK", 20)
    parts = task.adapted(x, "train"), task.accuracy(x, task.heads(x))
    assert parts[0] == pytest.approx(whole[0], rel=1e-9)
    assert parts[1] == whole[1]


def test_hypergradient_is_the_slope_of_the_hyper_objective(task):
    problem = task.problem(batch_size=4)
    torch.manual_seed(1)
    x = problem.pack_x.start + 0.1 * torch.randn(problem.dim_x, dtype=torch.float64)
    found = exact_hypergradient(problem, x)
    for _ in range(3):
        way = torch.randn_like(x)
        way *= 1e-5 / way.norm()
        slope = (task.hyper_objective(x + way) - task.hyper_objective(x - way)) / 2
        assert float(found @ way) == pytest.approx(slope, rel=1e-5, abs=1e-12)


def test_every_batch_says_something_about_every_head(task):
    problem = task.problem(batch_size=2)
    for number in range(problem.lower_data.batches):
        y = problem.pack_y.start.clone().requires_grad_()
        batch = problem.lower_data.fetch(
            problem.lower_data.draw(0, "lower", number, 1)._replace(which=number)
        )
        task.lower(problem.view_x(problem.pack_x.start), y.view(task.y0.shape), batch).backward()
        assert (y.grad.view(6, -1).norm(dim=1) > 0).all()
    assert (
        len(set(task.train.support[1][0, :4].tolist())) > 1
    )  # examples of a task are not in order of class


def test_support_query_and_splits_share_no_image(task):
    seen = []
    for tasks in (task.train, task.validation, task.test):
        for inputs, labels in (tasks.support, tasks.query):
            seen.append({row.numpy().tobytes() for row in inputs.flatten(0, 1)})
            for of_a_task in labels:
                assert torch.bincount(of_a_task).tolist() == [4, 4, 4]
    for i, one in enumerate(seen):
        assert not any(one & other for other in seen[:i])


def test_labels_of_a_task_stand_for_classes(task):
    """Images of one label of one task are of one digit, and those of two labels are not."""
    tables = split_table(digits(), (0.6, 0.2, 0.2), seed=0)
    known = tables[0].features
    mean, deviation = known.mean(0), np.where(known.std(0) == 0, 1, known.std(0))
    digit = {
        ((row - mean) / deviation).tobytes(): label for row, label in zip(known, tables[0].labels)
    }
    for level in (task.train.support, task.train.query):
        for inputs, labels in zip(*level):
            found = [
                {digit[row.numpy().tobytes()] for row in inputs[labels == label]}
                for label in range(3)
            ]
            assert [len(digits_of) for digits_of in found] == [1, 1, 1]
            assert len(set.union(*found)) == 3
    first, second = (
        {digit[inputs[labels == 0][0].numpy().tobytes()] for inputs, labels in zip(*level)}
        for level in (task.train.support, task.train.query)
    )
    assert first == second


def test_inputs_are_standardised_without_a_look_at_other_tables():
    tables = split_table(digits(), (0.6, 0.2, 0.2), seed=0)
    moved = [Table(t.features + 100.0, t.labels, "moved") for t in tables[1:]]
    changes = {"tasks": (6, 4, 5), "ways": 3, "shots": 4, "seed": 0}
    plain, other = (
        hyper_representation([tables[0]], [a], [b], **changes) for a, b in (tables[1:], moved)
    )
    assert torch.equal(plain.train.query[0], other.train.query[0])
    assert not torch.equal(plain.test.query[0], other.test.query[0])


def test_tasks_are_a_function_of_the_seed(task):
    again, another = _digits_task(), _digits_task(seed=1)
    assert torch.equal(again.train.support[0], task.train.support[0])
    assert torch.equal(again.x0["first"], task.x0["first"])
    assert not torch.equal(another.train.support[0], task.train.support[0])


def test_domains_stay_apart():
    """A task takes all its examples from one table, and test tasks from the test's tables."""
    tables = [Table(np.full((40, 1), float(i)), np.arange(40) % 2, f"domain {i}") for i in range(3)]
    task = hyper_representation(tables[:2], tables[:2], tables[2:], tasks=(8, 4, 4), shots=3)
    for tasks, number in ((task.train, 2), (task.test, 1)):
        values = torch.cat([tasks.support[0], tasks.query[0]], 1).flatten(1)
        assert (values == values[:, :1]).all()
        assert len(set(values[:, 0].tolist())) == number


def test_accuracies(task):
    problem = task.problem(batch_size=4)
    x = problem.pack_x.start
    heads = task.heads(x)
    loss, accuracy = task.adapted(x, "train")
    assert task.accuracy(x, heads.flatten()) == accuracy
    assert loss == pytest.approx(float(problem.loss("upper", x, heads.flatten())), rel=1e-12)
    assert task.hyper_objective(x) == loss
    # the head of another task knows nothing
    assert task.accuracy(x, heads.roll(1, 0)) < accuracy
    # one task's head, alone, is the same as with all others beside it
    from mindgap.lab.tasks.problems import Tasks

    alone = Tasks(
        *(tuple(part[2:3] for part in level) for level in (task.test.support, task.test.query))
    )
    torch.testing.assert_close(
        task.heads(x, alone)[0], task.heads(x, task.test)[2], rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("key", METHODS)
def test_all_sixteen_methods_run_on_it(task, key):
    steps = {"lr_x": 0.05, "lr_y": 0.3 * 6, "inner": 2, "terms": 2, "convexity": 2e-2 / 6}
    problem = task.problem(batch_size=4)
    solution = solve(problem, method_of({"key": key, **steps}), steps=3).check()
    assert not torch.equal(solution.state.x, problem.pack_x.start)
    assert torch.isfinite(solution.state.x).all()


def test_it_can_be_learnt():
    """A few epochs of SOBA raise the accuracy on tasks that nobody has seen."""
    task = _digits_task(tasks=(20, 4, 20), features=4, hidden=8)
    method = method_of(
        {"key": "soba", "lr_x": 3.0, "lr_y": 20 * 0.3, "inner": 1, "terms": 1, "convexity": 1e-3}
    )
    solution = solve(task.problem(batch_size=4), method, steps=100).check()
    assert task.adapted(solution.state.x)[1] > task.adapted(task.problem().pack_x.start)[1] + 0.1


def test_refusals():
    with pytest.raises(RuleError, match="ways must be a whole number of at least 2, got 1"):
        _digits_task(ways=1)
    with pytest.raises(RuleError, match="decay must be positive and finite, got 0"):
        _digits_task(decay=0)
    with pytest.raises(
        RuleError,
        match="table must have 11 classes with 8 examples each, got 'scikit-learn digits: 10",
    ):
        _digits_task(ways=11)
    with pytest.raises(RuleError, match="table must have 3 classes with 100 examples each, got"):
        _digits_task(shots=50)
    with pytest.raises(RuleError, match="tables must be there, with inputs of one shape"):
        hyper_representation([_pairs()], [_pairs()], [digits()])
    with pytest.raises(RuleError, match="shares must be positive and sum to 1"):
        split_table(digits(), (0.5, 0.6))
