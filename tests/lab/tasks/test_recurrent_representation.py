"""Hyper-representation with a recurrent encoder: second derivatives, graphs against eager, and
the study's rows.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cases.derivatives import check_second_derivatives
from torch.nn.functional import cross_entropy

from mindgap.base.check import RuleError
from mindgap.bilevel import METHODS, solve
from mindgap.bilevel.backends.graphs import CudaGraphs
from mindgap.bilevel.backends.oracles import TorchOracle
from mindgap.bilevel.data.sample import Sample
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.representation_runs import representation_method
from mindgap.lab.tasks.problems.meta_tasks import MetaTasks
from mindgap.lab.tasks.problems.recurrent_cleaning import recurrent_code
from mindgap.lab.tasks.problems.recurrent_representation import (
    WEIGHTS,
    half_code,
    made_up_pairs,
    made_up_vectors,
    recurrent_representation,
)
from mindgap.record.store import read_run

TINY = {
    "data": "made-up pairs",
    "tasks": [6, 3, 3],
    "shots": 4,
    "words": 5,
    "hidden": 3,
    "features": 3,
    "oracle_calls": 40,
    "readings": 2,
    "least_steps": 1,
    "device": "cpu",
}


def tiny():
    tables = [[made_up_pairs(300, 5, seed=part)] for part in range(3)]
    return recurrent_representation(
        *tables,
        made_up_vectors(),
        tasks=(6, 3, 3),
        shots=4,
        hidden=3,
        features=3,
        dtype=torch.float64,
    )


def test_weights_drawn_in_blocks_are_those_of_one_draw():
    import numpy as np

    from mindgap.base.rng import numpy_stream
    from mindgap.lab.tasks.problems.recurrent_cleaning import recurrent_start

    shapes = {"input": (3, 5), "first": (300, 300), "join": (4, 2)}
    found = recurrent_start(shapes, 7, "made up", torch.float32, torch.device("cpu"))
    draw = numpy_stream(7, "made up", "start")
    for name, (rows, columns) in shapes.items():
        variance = (1 / 3 if name == "first" else 1) / rows
        weights = draw.uniform(-1, 1, (rows, columns)) * np.sqrt(3 * variance)
        torch.testing.assert_close(found[name], torch.from_numpy(weights).float())
    assert sorted(set(found) - set(shapes)) == ["first_bias", "join_bias"]


def test_second_derivatives_agree_with_finite_differences():
    oracle, token = TorchOracle(tiny().problem(2)), Sample(1)
    x, y = oracle.start
    draw = torch.Generator().manual_seed(0)
    y, z = (torch.randn(len(y), dtype=y.dtype, generator=draw) for _ in range(2))
    check_second_derivatives(oracle, x, y, z, token)


@pytest.mark.parametrize("key", ["slip", "saba", "f2sa"])
def test_graphs_walk_the_eager_trajectory(key):
    problem = tiny().problem(2)
    method = METHODS[key](lr_x=0.1, lr_y=0.5, **({"lr_z": 0.5} if key == "slip" else {}))
    a, b = (
        solve(problem, method, steps=6, seed=3, backend=who).state
        for who in (None, CudaGraphs(chunk=4))
    )
    torch.testing.assert_close(b.x, a.x, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(b.y, a.y, rtol=1e-8, atol=1e-10)


def codes_and_slopes(task, code, draw):
    """What an encoder says of the training texts, and the gradients of a random sum of it."""
    leaves = {name: task.start[name].clone().requires_grad_() for name in WEIGHTS}
    found = code(leaves, task.vectors, task.train.query[0].flatten(0, -2))
    along = torch.randn(found.shape, dtype=found.dtype, generator=torch.manual_seed(draw))
    return found.detach(), torch.autograd.grad(found, tuple(leaves.values()), along)


def short_texts(task):
    """The same tasks with texts of 0 to 5 words."""
    words = task.train.query[0].clone()
    keep = torch.randint(0, 6, words.shape[:-1], generator=torch.manual_seed(1))
    words *= torch.arange(words.shape[-1]) < keep[..., None]
    return replace(task, train=replace(task.train, query=(words, task.train.query[1])))


@pytest.mark.parametrize("prepare", [lambda task: task, short_texts])
def test_a_backward_pass_of_its_own_gives_the_gradients_of_autograd(prepare):
    task = prepare(tiny())
    exact = codes_and_slopes(task, recurrent_code, 0)
    doubles = (torch.float64, torch.float64)
    own = codes_and_slopes(task, lambda *given: half_code(*given, doubles), 0)
    torch.testing.assert_close(own, exact, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(codes_and_slopes(task, recurrent_code, 1)[1][0], exact[1][0])


def test_half_precision_rounds_codes_and_gradients_and_is_differentiated_once():
    task = tiny()
    halves = (torch.float16, torch.bfloat16)
    exact = codes_and_slopes(task, recurrent_code, 0)
    found = codes_and_slopes(task, lambda *given: half_code(*given, halves), 0)
    assert (found[0] - exact[0]).abs().max() < 4e-3  # four roundings of 11 digits
    for name, rounded, slope in zip(WEIGHTS, found[1], exact[1], strict=True):
        assert rounded.dtype == slope.dtype
        assert 0 < (rounded - slope).norm() < 0.03 * slope.norm(), name
    leaf = task.start["first"].clone().requires_grad_()
    words = task.train.query[0].flatten(0, -2)
    code = half_code({**task.start, "first": leaf}, task.vectors, words, halves)
    with pytest.raises(RuleError, match="differentiated twice"):
        torch.autograd.grad(code.square().sum(), leaf, create_graph=True)


def test_words_that_a_minibatch_does_not_have_are_not_read():
    task = replace(short_texts(tiny()), precision="half")
    problem, longer = task.problem(2), task.train.query[0]
    inside = problem.upper.__self__
    assert inside.most_texts[0] == 2 * 6 * 2
    for data in (problem.upper_data, problem.lower_data):
        for number in range(4):
            words, _ = data.fetch(Sample(number))  # examples, tasks, both texts
            of = (words != 0).sum(-1).flatten()
            assert all(
                int((of > place).sum()) <= most
                for place, most in enumerate(inside.most_texts)
                if place
            )
            torch.testing.assert_close(inside.encode(task.x0, words), task.encode(task.x0, words))
    batch = longer.transpose(0, 1)[:2]
    torch.testing.assert_close(inside.encode(task.x0, batch), task.encode(task.x0, batch))
    full = torch.ones_like(batch)  # more words than any minibatch of the problem
    with pytest.raises(RuleError, match="half_code"):
        replace(inside, most_texts=(inside.most_texts[0], 0, 0, 0, 0)).encode(task.x0, full)


@pytest.mark.parametrize("key", ["slip", "borep", "saba", "soba"])
def test_the_contenders_of_scale_paper_walk_nearly_alike_in_half_precision(key):
    study = find("b1-hyper-representation")
    name = {"slip": "SLIP", "borep": "BO-REP", "saba": "SABA", "soba": "SOBA"}[key]
    assert study.settings("paper", name)["precision"] == "half"
    ends = []
    for precision in ("tf32", "half"):
        chosen = {**TINY, "tasks": [20, 3, 40], "precision": precision}
        ends.append(list(study.loop(Trial(name, 0, study.settings("paper", name, chosen))))[-1])
    exact, half = ends
    assert half["validation_loss"] != exact["validation_loss"]
    assert half["validation_loss"] == pytest.approx(exact["validation_loss"], rel=0.02)
    assert half["oracle_calls"] == exact["oracle_calls"]


def test_an_unknown_precision_is_refused():
    study = find("b1-hyper-representation")
    settings = study.settings("paper", "SLIP", {**TINY, "precision": "double"})
    with pytest.raises(RuleError, match="precision"):
        list(study.loop(Trial("SLIP", 0, settings)))


def test_every_method_of_the_scale_runs_and_slip_with_shared_samples_is_no_rival():
    study, other = find("b1-hyper-representation"), find("b2-hyper-representation")
    small = {**TINY, "oracle_calls": 10, "readings": 1, "inner": 1, "terms": 1}
    for method in study.seeds("gpu"):
        rows = list(study.loop(Trial(method, 0, study.settings("gpu", method, small))))
        assert len(rows) == 2
        assert 0 <= rows[-1]["test_accuracy"] <= 1
    assert len(study.seeds("gpu")) == 11
    assert set(other.seeds("gpu")) < set(study.seeds("gpu"))
    # Leads on reviews vary three times as much as on pairs: few seeds could not find them.
    assert set(other.seeds("gpu").values()) == {60}
    assert all(found.paper_model in found.model("gpu") for found in (study, other))


def test_running_time_is_measured_on_the_same_tasks():
    study = find("b5-running-time-pairs")
    settings = study.settings("gpu", "SLIP", {**TINY, "oracle_calls": 20})
    rows = list(study.loop(Trial("SLIP", 0, settings)))
    assert [rows[0]["perfect_accuracy"], len(rows)] == [1.0, 3]
    assert rows[-1]["seconds"] > rows[0]["seconds"]


def test_both_counts_of_epochs_run_through_the_command(tmp_path, command):
    small = [f"{name}={value}" for name, value in TINY.items() if name != "tasks"]
    done = command(
        "run",
        "b6-epochs-pairs",
        "--scale",
        "gpu",
        "--seeds",
        "1",
        "--jobs",
        "1",
        "--out",
        str(tmp_path),
        *small,
        "tasks=6,1,3",
        "epochs=2",
        "inner=1",
        "terms=1",
    )
    assert done.returncode in (0, 1), (
        done.stderr
    )  # 1: the verdict is not "holds", which made-up pairs need not give
    runs = [read_run(path) for path in (tmp_path / "b6-epochs-pairs" / "gpu").glob("*.jsonl")]
    assert len(runs) == 2
    for run in runs:
        counted = run.header.settings["counted"]
        assert run.rows[-1][f"{counted}_epoch"] >= 2, run.header.method
    assert "3 updates of x fewer" in " ".join(done.stdout.split())


def test_saba_with_one_step_or_two_runs_on_the_same_tasks():
    study = find("b7-one-step-representation")
    small = {**TINY, "oracle_calls": 10, "readings": 1, "tried": 1}
    rows = [
        list(study.loop(Trial(m, 0, study.settings("gpu", m, small))))[-1] for m in study.methods
    ]
    assert [row["lr_y"] == row["lr_z"] for row in rows] == [True, False]


def test_single_texts_are_encoded_without_the_layer_that_joins_a_pair():
    tables = []
    for part in range(3):
        pairs = made_up_pairs(300, 5, seed=part)
        tables.append([replace(pairs, features=pairs.features[:, 0])])
    task = recurrent_representation(
        *tables, made_up_vectors(), tasks=(6, 3, 3), shots=4, hidden=3, features=2
    )
    assert task.start["join"].shape == (3, 2)
    assert task.encode(task.x0, task.train.query[0]).shape == (6, 8, 3)


# ------------------------------------------------------------------------------------------- MAML
# and ANIL
def by_hand(task, whole, x, lr, inner, number):
    """One task's query loss after its steps, written out with the encoder's own weights."""
    pack = MetaTasks(task, whole).pack
    shared = pack.view(x)
    own = {k: v for k, v in shared.items() if whole or k == "head"}
    for _ in range(inner):
        weights = {**shared, **own}
        inputs, labels = (part[number] for part in task.train.support)
        loss = cross_entropy(task.encode(weights, inputs) @ weights["head"], labels)
        loss = loss + task.decay * weights["head"].square().sum()
        slopes = torch.autograd.grad(loss, list(own.values()), create_graph=True)
        own = {k: v - lr * slope for (k, v), slope in zip(own.items(), slopes)}
    weights = {**shared, **own}
    inputs, labels = (part[number] for part in task.train.query)
    return cross_entropy(task.encode(weights, inputs) @ weights["head"], labels)


@pytest.mark.parametrize("whole", [True, False])
def test_a_step_of_maml_and_anil_is_the_gradient_through_the_steps_of_each_task(whole):
    task = tiny()
    meta = MetaTasks(task, whole)
    method, problem = meta.method(0.1, 0.5, 2), meta.problem(6)
    x = meta.pack.start + 0.1 * torch.randn(
        meta.pack.dim, dtype=torch.float64, generator=torch.manual_seed(0)
    )
    leaf = x.clone().requires_grad_()
    expected = sum(by_hand(task, whole, leaf, 0.5, 2, number) for number in range(6)) / 6
    (slope,) = torch.autograd.grad(expected, leaf)
    state = method.start(problem, seed=0)
    state.values["x"] = x
    after = method.step(state).x
    torch.testing.assert_close(after, x - 0.1 * slope, rtol=1e-8, atol=1e-10)


def test_the_penalty_of_f2sa_does_not_depend_on_the_number_of_tasks():
    study = find("b1-hyper-representation")
    method = representation_method(Trial("F²SA", 0, study.settings("gpu", "F²SA", {"lr_z": 0.1})))
    assert method.lam == pytest.approx(10.0)
    slip = representation_method(Trial("SLIP", 0, study.settings("gpu", "SLIP", {"lr_z": 0.1})))
    assert slip.lr_z == pytest.approx(0.1 * 500)
