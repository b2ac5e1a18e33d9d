"""The recommendation: the same answer after an interruption, clear errors, and nothing of the
user's is touched.
"""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from mindgap.advise import race as racing, recommendation
from mindgap.advise.candidates import BASELINE, FAMILIES, MuonWithAdamW, Scale, candidate
from mindgap.advise.recommendation import recommend
from mindgap.advise.training import (
    Progress,
    batches_from,
    build,
    check_starts,
    schedule,
    train_until,
)
from mindgap.base.check import RuleError
from mindgap.optim import AdamW

STEPS = 96


def regression(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def problem(seed: int = 0) -> tuple[tuple[nn.Module, object], list[torch.Tensor]]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return (model, regression), list(
        torch.randn(40, 16, 4, generator=torch.Generator().manual_seed(5))
    )


def test_an_interrupted_race_gives_the_same_answer(tmp_path, monkeypatch):
    # Two races on a busy machine time their steps differently: here steps alone are counted.
    monkeypatch.setattr(racing, "LEAST_CLOCK", math.inf)
    monkeypatch.setattr(racing, "LEAST_TIMED", STEPS)
    whole = recommend(problem, minutes=5, steps=STEPS, folder=tmp_path / "whole")
    pieces = itertools.count()
    own = racing.train_until

    def interrupted(*args, **more):
        if next(pieces) in (3, 11, 17):
            raise KeyboardInterrupt
        own(*args, **more)

    monkeypatch.setattr(racing, "train_until", interrupted)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            recommend(problem, minutes=5, steps=STEPS, folder=tmp_path / "again")
    again = recommend(problem, minutes=5, steps=STEPS, folder=tmp_path / "again")
    assert again.sentence == whole.sentence
    assert [(t.name, t.seed, t.steps, t.loss) for t in again.tried] == [
        (t.name, t.seed, t.steps, t.loss) for t in whole.tried
    ]


def test_a_stall_of_the_machine_does_not_end_the_measuring_of_a_tiny_problem(monkeypatch):
    # Half of this run would be 48 microseconds by its pace.
    monkeypatch.setattr(recommendation, "_pace", lambda bench, seed: (1e-6, 1e-6, 0.0))
    answer = recommend(problem, minutes=5, steps=STEPS)
    assert not any("could not be measured" in sentence for sentence in answer.found)


def test_another_call_into_the_same_folder_is_refused(tmp_path):
    recommend(problem, minutes=5, steps=STEPS, folder=tmp_path)
    with pytest.raises(RuleError, match="folder must hold a race with the same arguments"):
        recommend(problem, minutes=5, steps=STEPS + 1, folder=tmp_path)


def test_the_cost_is_at_most_five_runs_and_random_states_stay():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    answer = recommend(problem, minutes=5, steps=120)
    assert answer.about["full_length_runs"] <= racing.COST
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])

    assert answer.decision.loss <= answer.decision.baseline_loss
    assert answer.code.startswith(("import torch", "import mindgap"))
    compile(answer.code, "answer", "exec")


def test_a_run_in_two_pieces_equals_the_run_in_one():
    for family in FAMILIES:
        made = candidate(family, 1e-3, Scale(49, 1.0))
        if not FAMILIES[family].fits(build(problem, 0).objective.model):
            continue
        one, two = Progress(), Progress()
        for progress, stops in ((one, (40,)), (two, (13, 40))):
            for stop in stops:
                train_until(progress, problem, made.optimizer, seed=1, until=stop, total=60)
        assert two.scores[40] == pytest.approx(
            one.scores[40], rel=0.2
        )  # the averaged weights differ by their window
        a, b = one.state["model"], two.state["model"]
        assert all(torch.allclose(a[name], b[name], rtol=1e-5, atol=1e-6) for name in a), family


@pytest.mark.parametrize("total", [60, 400])
def test_one_bad_batch_ends_no_run_and_lost_weights_do(total):
    def bad_batch(seed: int = 0):
        pair, batches = problem(seed)
        batches[7] = batches[7] * math.nan
        return pair, batches

    def skipping(model: nn.Module) -> torch.optim.Optimizer:
        return AdamW(model.parameters(), lr=1e-2, nonfinite="skip")

    def plain(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    survives, lost = Progress(), Progress()
    train_until(survives, bad_batch, skipping, seed=1, until=total, total=total)
    train_until(lost, bad_batch, plain, seed=1, until=total, total=total)
    assert math.isfinite(survives.scores[total])
    assert lost.scores[total] == math.inf


def test_batches_continue_where_they_stopped_for_lists_and_loaders():
    loader = torch.utils.data.DataLoader(list(range(10)), batch_size=3, shuffle=True)
    for train in (list(range(7)), loader):
        flat = [
            torch.as_tensor(b).tolist() for b in itertools.islice(batches_from(train, 3, 0), 20)
        ]
        later = [
            torch.as_tensor(b).tolist() for b in itertools.islice(batches_from(train, 3, 9), 11)
        ]
        assert flat[9:] == later
        assert flat[: len(train)] != flat[len(train) : 2 * len(train)]


def test_the_schedule_warms_up_stays_and_ends_at_zero():
    values = [schedule(k, 1000) for k in range(1000)]
    assert values[0] == pytest.approx(1 / 20)
    assert values[30] == values[400] == 1.0
    assert values[-1] == pytest.approx(0.002)


def once(seed):
    return (nn.Linear(4, 1), regression), iter([torch.randn(8, 4)])


def vector(seed):
    return (nn.Linear(4, 1), lambda m, b: m(b)), [torch.randn(8, 4)] * 9


def constant(seed):
    return (nn.Linear(4, 1), lambda m, b: 0 * m(b).sum() + 1), [torch.randn(8, 4)] * 9


def nan(seed):
    return (nn.Linear(4, 1), lambda m, b: m(b).sum() * math.nan), [torch.randn(8, 4)] * 9


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (once, "train must be batches that can be read more than once"),
        (vector, "loss must return a tensor with one element"),
        (constant, "problem must have a loss that depends on the parameters"),
        (nan, "loss must be finite on every batch"),
        (lambda: 3, "problem must return"),
        (lambda: ((nn.Linear(1, 1), regression), []), "train must hold at least one batch"),
        ("abc", "problem must be a function"),
    ],
)
def test_bad_problems_get_one_clear_error(factory, words):
    with pytest.raises(RuleError, match=words):
        recommend(factory, minutes=1, steps=STEPS)


@pytest.mark.parametrize(
    "bad", [{"minutes": 0}, {"minutes": "x"}, {"steps": 3}, {"seed": -1}, {"seed": 0.5}]
)
def test_bad_arguments_get_one_clear_error(bad):
    with pytest.raises(RuleError, match=next(iter(bad))):
        recommend(problem, **{"minutes": 1, **bad})


def test_a_model_that_ignores_its_seed_and_data_that_change_are_said():
    def same(seed):
        torch.manual_seed(0)
        return problem(0)

    def moving(seed):
        (model, loss), batches = problem(0)
        return (model, loss), [b + np.random.default_rng().normal() for b in batches]

    assert "Every seed starts" in check_starts(same, 0)[0]
    assert "ignore the seed" in check_starts(moving, 0)[0]
    assert check_starts(problem, 0) == []


def test_too_little_time_is_said_with_the_time_it_needs():
    answer = recommend(problem, minutes=1e-4)
    assert answer.sentence.startswith("Cannot tell in 0.0001 minutes")
    assert not answer.code


def test_every_family_can_be_built_and_its_code_runs():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    for family in FAMILIES:
        made = candidate(family, 1e-3, Scale(100, 1.0))
        model(torch.ones(2, 4)).sum().backward()
        made.optimizer(model).step()
        import mindgap.advise
        import mindgap.optim

        assert isinstance(
            eval(made.code, {"torch": torch, "mindgap": mindgap, "model": model}),
            torch.optim.Optimizer,
        )
    assert isinstance(candidate("Muon", 1e-3, Scale(100)).optimizer(model), MuonWithAdamW)
    assert BASELINE.code == "torch.optim.AdamW(model.parameters(), lr=0.001)"
