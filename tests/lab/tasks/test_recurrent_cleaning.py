"""Hyper-cleaning with a recurrent net: the net, its second derivatives, the fixed corruption,
graphs against eager.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases.derivatives import check_second_derivatives

from mindgap.base.check import RuleError
from mindgap.bilevel import METHODS, solve
from mindgap.bilevel.backends.graphs import CudaGraphs
from mindgap.bilevel.backends.oracles import TorchOracle
from mindgap.bilevel.data.sample import Sample
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.cleaning_runs import task_of
from mindgap.lab.studies.loop import Trial
from mindgap.lab.tasks.data.tweets import Tweets, made_up_tweets
from mindgap.lab.tasks.problems import recurrent_cleaning as recurrent
from mindgap.lab.tasks.problems.recurrent_cleaning import recurrent_cleaning, recurrent_logits

TEXTS = made_up_tweets(800, 6)
#: small enough for a CPU: what is said with ``key=value`` on the command line
TINY = {
    "data": "made-up tweets",
    "train": 128,
    "validation": 128,
    "test": 64,
    "held": 64,
    "words": 6,
    "hidden": 4,
    "head": 4,
    "batch_size": 32,
    "oracle_calls": 60,
    "readings": 3,
    "least_steps": 1,
    "refresh": 1,
    "device": "cpu",
}


def tiny(dtype=torch.float64, **changed):
    return recurrent_cleaning(
        TEXTS, train=128, validation=128, test=64, hidden=5, head=4, dtype=dtype, **changed
    )


def trial_of(method, study="b4-hyper-cleaning", seed=0, **changed):
    small = {**TINY, "solve": 4, "keep_x": 1, **changed}
    return Trial(method, seed, find(study).settings("gpu", method, small))


def test_the_four_parts_share_no_text():
    """The texts on which steps are searched are those of neither level, nor those of the test."""
    words = np.arange(1, 401, dtype=np.int32).reshape(100, 4)
    labels = np.arange(100) % 2
    vectors = np.random.default_rng(0).standard_normal((401, 8)).astype(np.float32)
    task = recurrent_cleaning(
        Tweets(words, labels, (words[:4], labels[:4]), vectors),
        train=30,
        validation=26,
        test=24,
        held=20,
        hidden=3,
        head=3,
    )
    parts = [part[0] for part in (task.train, task.validation, task.test, task.held)]
    assert [len(part) for part in parts] == [30, 26, 24, 20]
    assert sorted(torch.cat(parts)[:, 0].tolist()) == words[:, 0].tolist()


def test_the_net_is_the_two_layer_rnn_of_torch_with_its_mean_over_the_words():
    task = tiny()
    w, words = task.y0, task.train[0][:20]
    rnn = torch.nn.RNN(8, 5, 2, batch_first=True, dtype=torch.float64)
    for name, of in (
        ("ih_l0", "input"),
        ("hh_l0", "first"),
        ("ih_l1", "between"),
        ("hh_l1", "second"),
    ):
        getattr(rnn, f"weight_{name}").data = w[of].T.clone()
    for layer, of in enumerate(("first_bias", "second_bias")):
        w[of].copy_(torch.randn(5))
        getattr(rnn, f"bias_ih_l{layer}").data = w[of].clone()
        getattr(rnn, f"bias_hh_l{layer}").data.zero_()
    with torch.no_grad():
        known = (words != 0)[:, :, None]
        out = (rnn(task.vectors[words.long()])[0] * known).sum(1) / known.sum(1)
        for number in range(2):
            out = torch.tanh(out @ w[f"head{number}"] + w[f"head{number}_bias"])
        torch.testing.assert_close(
            recurrent_logits(w, task.vectors, words),
            out @ w["head2"] + w["head2_bias"],
            rtol=1e-10,
            atol=1e-12,
        )
        longer = torch.cat([words, torch.zeros_like(words)], 1)
        torch.testing.assert_close(
            recurrent_logits(w, task.vectors, longer),
            recurrent_logits(w, task.vectors, words),
            rtol=1e-10,
            atol=1e-12,
        )


def test_word_vectors_are_standardised_over_the_training_texts_alone():
    task = tiny()
    words = task.train[0][task.train[0] != 0].long()
    read = task.vectors[words]
    torch.testing.assert_close(read.mean(0), torch.zeros(8, dtype=read.dtype), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        read.std(0, correction=0), torch.ones(8, dtype=read.dtype), atol=1e-5, rtol=0
    )
    assert float(task.vectors[0].abs().max()) == 0.0


@pytest.mark.parametrize("length", [1, 6])
def test_a_wide_net_computes_what_a_narrow_one_does(length, monkeypatch):
    task = tiny()
    words, labels, numbers = task.train[0][:20, :length], task.train[1][:20], torch.arange(20)
    found = []
    for units in (512, 1):
        monkeypatch.setattr(recurrent, "WIDE", units)
        weights = {name: value.clone().requires_grad_() for name, value in task.y0.items()}
        loss = task.lower(task.x0, weights, (words, labels, numbers))
        found.append([loss, *torch.autograd.grad(loss, weights.values(), allow_unused=length == 1)])
    for narrow, wide in zip(*found):
        torch.testing.assert_close(
            *(torch.zeros(()) if t is None else t for t in (narrow, wide)), check_dtype=False
        )


def test_second_derivatives_agree_with_finite_differences():
    problem = tiny(start=0.3).problem(32)
    oracle, token = TorchOracle(problem), Sample(1)
    x, y = oracle.start
    z = torch.randn(len(y), dtype=y.dtype, generator=torch.Generator().manual_seed(0))
    check_second_derivatives(oracle, x, y, z, token)


def test_corruption_is_drawn_once_per_seed_for_every_method():
    first = task_of(trial_of("SLIP"))
    again, other = task_of(trial_of("SABA")), task_of(trial_of("SLIP", seed=1))
    assert torch.equal(first.corrupted, again.corrupted)
    assert all(torch.equal(a, b) for a, b in zip(first.train, again.train))
    assert not torch.equal(first.corrupted, other.corrupted)
    assert int(first.corrupted.sum()) == round(0.4 * 128)
    # All epochs read these very labels: the batches are slices of one tensor that nobody writes to.
    before, problem = first.train[1].clone(), first.problem(32)
    solve(problem, METHODS["slip"](lr_x=1.0, lr_y=0.1, lr_z=0.1), steps=10, backend=CudaGraphs())
    assert torch.equal(first.train[1], before)
    pick = torch.from_numpy(problem.lower_data.permutation)
    assert torch.equal(problem.lower_data.data[1], before[pick])


def test_controls_need_no_equal_number_of_training_and_validation_texts():
    task = recurrent_cleaning(TEXTS, train=64, validation=256, test=64, hidden=4, head=4)
    for name in ("none", "perfect", "validation"):
        y = task.control(name, 3)
        assert 0.0 <= task.accuracy(y) <= 1.0
    with pytest.raises(RuleError, match="split must be one of 'test'"):
        task.accuracy(y, "tests")


def test_the_upper_level_reads_clean_labels_of_other_texts_alone():
    every = recurrent_cleaning(
        TEXTS, train=128, validation=128, test=64, hidden=4, head=4, corruption=1.0
    )
    clean = recurrent_cleaning(
        TEXTS, train=128, validation=128, test=64, hidden=4, head=4, corruption=0.0
    )
    assert torch.equal(every.train[1], 1 - clean.train[1])
    for split in ("validation", "test", "manual"):
        assert all(torch.equal(a, b) for a, b in zip(getattr(every, split), getattr(clean, split)))
    assert float(clean.validation[1].double().mean()) == 0.5
    problem = every.problem(32)
    assert sorted(problem.upper_data.data[1].tolist()) == sorted(clean.validation[1].tolist())
    whole = made_up_tweets(800, 6)
    known = {row.tobytes(): label for row, label in zip(whole.words, whole.labels)}
    upper = zip(problem.upper_data.data[0].numpy(), problem.upper_data.data[1].tolist())
    assert (
        np.mean([known[row.tobytes()] == label for row, label in upper]) > 0.99
    )  # equal texts are rare


#: on the CPU the code of the graphs without a graph; the other methods differ in nothing that the
#: net could change
WHERE = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("key", ["slip", "borep", "saba", "ttsa", "vrbo"])
def test_graphs_walk_the_eager_trajectory(key, device):
    problem = tiny(device=device).problem(32)
    more = {"vrbo": {"refresh": 1, "inner": 2, "terms": 2}, "ttsa": {"terms": 3}}.get(key, {})
    lr_z = {"lr_z": 0.1} if key in ("slip", "borep") else {}
    method = METHODS[key](lr_x=1.0, lr_y=0.1, **lr_z, **more)
    a, b = (
        solve(problem, method, steps=7, seed=3, backend=who).state
        for who in (None, CudaGraphs(chunk=4))
    )
    torch.testing.assert_close(b.x, a.x, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(b.y, a.y, rtol=1e-8, atol=1e-10)
    assert a.calls == b.calls


@pytest.mark.parametrize("method", ["SLIP", "TTSA", "BO-REP"])
def test_a_run_in_chunks_is_cut_at_the_same_calls_and_resumes(method):
    study = find("b4-hyper-cleaning")
    trial = trial_of(method)
    rows = []
    for row in study.loop(trial):
        rows.append(row)
        if len(rows) == 2:
            kept = trial.take_saved()()
    marks = [TINY["oracle_calls"] * (i + 1) // 3 for i in range(3)]
    calls = [row["oracle_calls"] for row in rows[1:]]
    assert all(mark <= spent < mark + 20 for mark, spent in zip(marks, calls))
    assert 0 <= rows[-1]["manual_accuracy"] <= 1
    again = trial_of(method)
    again.restored = kept
    assert list(study.loop(again)) == rows[2:]


def test_svrb_is_refused_and_every_other_method_of_the_scales_runs():
    study = find("b3-hyper-cleaning")
    further = ["AmIGO", "SVRB", "VRBO", "MRBO", "SUSTAIN"]
    for method in (*study.seeds("gpu"), *further):
        short = {"readings": 1, "oracle_calls": 4, "hidden": 24, "words": 3, "inner": 1, "terms": 1}
        rows = list(study.loop(trial_of(method, "b3-hyper-cleaning", **short)))
        assert ("refused" in rows[-1]) == (method == "SVRB"), method
    assert len(study.seeds("gpu")) == 11  # eight methods and three controls
    assert len(study.seeds("paper")) == 7  # four methods and three controls
    assert study.only("gpu", further).seeds("gpu") == dict.fromkeys(further, 20)
    assert study.model("paper").startswith(
        "a recurrent net of 4,096 units on Sentiment140 (word vectors of 50"
    )
    assert study.model("gpu").startswith("proxy: a recurrent net of 64 units on Sentiment140")


@pytest.mark.parametrize(
    ("name", "rows"), [("b5-running-time", 4), ("b6-epochs", 3), ("b7-one-step", 4)]
)
def test_the_other_claims_on_hyper_cleaning_run_on_the_same_task(name, rows):
    study = find(name)
    method = next(iter(study.methods))
    small = {**TINY, **{"b6-epochs": {"epochs": 2}}.get(name, {})}
    found = list(study.loop(Trial(method, 0, study.settings("gpu", method, small))))
    assert len(found) == rows
    assert {"test_accuracy", "train_accuracy", "manual_accuracy"} <= set(found[-1])
    assert study.model("gpu").startswith("proxy: a recurrent net of 64 units on Sentiment140")


def test_a_study_uses_the_search_that_it_names(tmp_path):
    from mindgap.lab.studies.run import tuned_settings
    from mindgap.record.forms import MethodTuning, Tuning, write_form

    found = {
        "SLIP": MethodTuning({"lr_x": 9.0}, 0.5, 1.0, ()),
        "SOBA": MethodTuning({"lr_x": 3.0}, 0.5, 1.0, ()),
    }
    folder = tmp_path / "b3-hyper-cleaning" / "gpu"
    folder.mkdir(parents=True)
    write_form(
        folder / "tuning.json",
        Tuning("b3-hyper-cleaning", "gpu", "validation_loss", {}, 1, (1000,), found),
    )
    assert tuned_settings(tmp_path, find("b4-hyper-cleaning"), "gpu")["SOBA"] == {"lr_x": 3.0}
    by_key, keys = tuned_settings(tmp_path, find("b6-epochs"), "gpu"), {"slip": 9.0, "soba": 3.0}
    assert by_key == {
        name: {"lr_x": keys[method["key"]]}
        for name, method in find("b6-epochs").methods.items()
        if method["key"] in keys
    }
    assert tuned_settings(tmp_path, find("b4-hyper-cleaning"), "cpu") == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_machine_without_a_gpu_says_so():
    with pytest.raises(
        RuleError, match="device must be cpu on this machine: it has no CUDA device, got 'cuda'"
    ):
        task_of(
            Trial(
                "SLIP",
                0,
                find("b3-hyper-cleaning").settings("gpu", "SLIP", {**TINY, "device": "cuda"}),
            )
        )
