"""What a recommendation costs by the clock, and that its printed code gives the promised loss."""

from __future__ import annotations

import math
import time
from itertools import islice

import pytest
import torch
from torch import nn

from mindgap.advise import recommendation
from mindgap.advise.candidates import _Muon
from mindgap.advise.race import COST
from mindgap.advise.recommendation import _validation_batches, recommend
from mindgap.advise.training import (
    MOST_VALIDATION,
    Bench,
    Problem,
    _per_step,
    batches_from,
    build,
)
from mindgap.base.objective import Objective

DATA = torch.randn(60, 16, 4, generator=torch.Generator().manual_seed(0))


def wave(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch)[:, :1] - batch.sum(1, True).sin()).square().mean()


def problem(seed: int):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return (model, wave), list(DATA[:50]), list(DATA[50:])


def test_the_problem_is_built_three_times_whatever_is_raced() -> None:
    """It was built for every piece of a run, some forty times."""
    built = []

    def counted(seed: int):
        built.append(seed)
        return problem(seed)

    recommend(counted, minutes=5, steps=96)
    assert sorted(built) == [0, 0, 1]


class Keeping(nn.Module):
    """Keeps a buffer, a list, an attribute, and, if asked to, a count that nobody can see."""

    def __init__(self, count: list[int] | None = None) -> None:
        super().__init__()
        self.core, self.seen, self.last = nn.Linear(4, 1), [], None
        self.register_buffer("hidden", torch.zeros(1), persistent=False)
        self.count = None if count is None else iter(range(10**6))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.hidden += 1
        self.seen.append(1)
        self.last = 1.0 if self.last is None else self.last + 1.0
        more = 0 if self.count is None else next(self.count)
        return self.core(batch) * (self.last + len(self.seen) + self.hidden + more)


@pytest.mark.parametrize("count", [None, []])
def test_every_run_begins_at_the_same_start_whatever_a_model_keeps(count) -> None:
    built = []

    def factory():
        built.append(1)
        return (Keeping(count), lambda model, batch: model(batch).square().mean()), list(DATA)

    bench = Bench(factory)
    first = []
    for _ in range(4):
        made = bench.problem(0)
        model = made.objective.model
        first.append(made.objective.value(DATA[0]).item())
        with torch.no_grad():
            model.core.weight += 1.0
        model.core.weight.requires_grad_(False)
        assert made.objective.value(DATA[0]).item() != first[-1]
    own = first if count is None else first[1:]
    assert set(own) == {own[0]}
    assert len(built) == (1 if count is None else 4)


def test_muon_takes_the_steps_of_torch_s_muon_up_to_its_sixteen_bits() -> None:
    theirs_type = pytest.importorskip("torch.optim").__dict__.get("Muon")
    if theirs_type is None:
        pytest.skip("this torch has no Muon")
    draw = torch.Generator().manual_seed(0)
    shapes = ((8, 5), (5, 8), (6, 6), (8, 5))
    start = [torch.randn(shape, generator=draw) for shape in shapes]
    ours, theirs = ([nn.Parameter(w.clone()) for w in start] for _ in range(2))
    steps = (
        _Muon(ours, 0.02, 0.01),
        theirs_type(theirs, lr=0.02, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(10):
        for one, two in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=draw)
            two.grad = one.grad.clone()
        for optimizer in steps:
            optimizer.step()
    for one, two, w in zip(ours, theirs, start, strict=True):
        assert float((one - two).detach().norm() / (two - w).detach().norm()) < 0.03


@pytest.mark.parametrize("building", [0.0, 0.5])
@pytest.mark.parametrize("validating", [1.0, 20.0])
@pytest.mark.parametrize("steps", [96, 240])
def test_the_cost_by_the_clock_is_at_most_five_runs(
    monkeypatch: pytest.MonkeyPatch, building: float, validating: float, steps: int
) -> None:
    """A short run with a slow build or slow validation cost up to 24.7 runs. ``building`` is in
    runs, ``validating`` what all validation batches take, in steps.
    """
    now = [0.0]
    for clock in ("perf_counter", "process_time"):
        monkeypatch.setattr(time, clock, lambda: now[0])
    step = 1.0 / steps

    def slow(seed: int):
        now[0] += building

        def loss(model, batch):
            now[0] += step if model.training else validating * step / 10
            return wave(model, batch)

        made, train, valid = problem(seed)
        valid = [torch.cat([batch] * 10) for batch in valid] if validating > 1 else valid
        return (made[0], loss), train, valid

    monkeypatch.setattr(recommendation, "MOST_MEASURING", 1e6)
    answer = recommend(slow, minutes=60, steps=steps)
    one = building + 1.0 + validating * step
    assert now[0] <= COST * one
    assert math.isfinite(answer.decision.loss)


def test_a_short_run_reads_fewer_validation_batches_before_its_end() -> None:
    model = nn.Linear(4, 1)
    small, large = list(DATA[:5]), [torch.cat(list(DATA))] * 3
    of = lambda valid: Problem(Objective(model, wave), small, valid)  # noqa: E731
    assert _validation_batches(of(small), 10_000) == MOST_VALIDATION
    assert _validation_batches(of(small), 96) == 2
    assert _validation_batches(of(large), 96) == 1
    assert _validation_batches(of(None), 96) == MOST_VALIDATION


def test_the_pace_of_an_optimizer_is_that_of_its_fastest_steps() -> None:
    """On a busy machine Muon's steps took twice as long as usual, and it left the race."""
    quiet, ends = 0.5, [0.0]
    for step in range(20):
        ends.append(ends[-1] + quiet * (1 if step % 4 == 0 else 3))
    assert _per_step(ends, time.process_time) == quiet


def classes(seed: int):
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
    model.append(nn.Linear(16, 3))
    nn.init.zeros_(model[-1].weight)

    def loss(model, batch):
        labels = (batch[:, 0] > 0).long() + (batch[:, 1] > 0).long()
        return nn.functional.cross_entropy(model(batch), labels)

    return (model, loss), list(DATA[:50]), list(DATA[50:])


def density(seed: int):
    def loss(model, batch):
        middle, log_scale = model(batch).unbind(1)
        off = (batch.sum(1).sin() - middle) / log_scale.clamp(-4, 4).exp()
        return (log_scale.clamp(-4, 4) + off.square() / 2).mean()

    return (problem(seed)[0][0], loss), list(DATA[:50]), list(DATA[50:])


@pytest.mark.parametrize("task", [problem, classes, density])
def test_the_printed_code_in_a_script_of_one_s_own_gives_the_promised_loss(task) -> None:
    answer = recommend(task, minutes=5, steps=144)
    made = build(task, 0)  # the start and the order of batches of the race
    model, loss = made.objective.model, made.objective.loss
    space = {"model": model}
    exec(answer.code, space)
    for batch in islice(batches_from(made.train, 0, 0), space["total"]):
        space["optimizer"].zero_grad()
        loss(model, batch).backward()
        space["optimizer"].step()
        space["scheduler"].step()
    with torch.no_grad():
        own = sum(float(loss(model, batch)) for batch in made.valid) / len(made.valid)
    fall = answer.decision.start - answer.decision.loss
    assert own == pytest.approx(answer.decision.loss, abs=0.02 * fall)


def test_time_in_which_other_programs_run_is_not_counted() -> None:
    """Its cost was seconds of the day over those of a run: 12 instead of 5 on a busy machine."""
    slept = []
    answer = recommend(problem, minutes=5, steps=96, told=lambda *_: slept.append(time.sleep(0.02)))
    assert len(slept) > 10
    assert answer.about["clock_runs"] < COST + 1
