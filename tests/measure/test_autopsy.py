"""After a spike or a NaN the monitor names step, layer, batch and mechanism, and leaves the run as
it was.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mindgap.base.check import RuleError
from mindgap.base.objective import Objective
from mindgap.measure.autopsy import Replay, _blame_divergence, _ReplayedStep
from mindgap.measure.monitor import Monitor
from mindgap.measure.recorder import (
    Incident,
    LoggedStep,
    LossCall,
    Recorder,
    Step,
    read_losses,
)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def data(count: int = 20) -> list[Any]:
    x = torch.randn(count, 12, 6, generator=torch.Generator().manual_seed(1))
    return [(a, (a[:, 0] > 0).long()) for a in x]


def build(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Dropout(dropout), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(10, 2))


def run(
    faults: dict[int, float] | None = None,
    *,
    kind: str = "SGD",
    steps: int = 40,
    rate: dict[int, float] | None = None,
    dropout: float = 0.0,
    watched: bool = True,
    **options: Any,
) -> tuple[Monitor | None, nn.Module, torch.optim.Optimizer]:
    model, batches = build(dropout), data()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.05)
    objective = Objective(model, loss)
    torch.manual_seed(5)
    monitor = None
    if watched:
        options = {"probes": ["update"], "every": 7} | options
        monitor = Monitor(optimizer, objective, batches[:2], **options)
    for k in range(steps):
        for group in optimizer.param_groups:
            group["lr"] *= (rate or {}).get(k, 1.0)
        x, y = batches[k % len(batches)]
        optimizer.zero_grad()
        objective.value((x * (faults or {}).get(k, 1.0), y)).backward()
        optimizer.step()
    if monitor is not None:
        monitor.close()
    return monitor, model, optimizer


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    found = [v.clone() for v in model.state_dict().values()]
    found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    for state in optimizer.state.values():
        found += [v.clone() for v in state.values() if isinstance(v, torch.Tensor)]
    return [*found, torch.get_rng_state()]


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("options", [{}, {"every": None}, {"memory": 0}, {"memory": 20_000}])
def test_a_recorded_run_and_an_autopsy_change_nothing(kind: str, options: dict[str, Any]) -> None:
    _, model, optimizer = run({25: math.nan}, kind=kind, dropout=0.3, watched=False)
    plain = everything(model, optimizer)
    monitor, model, optimizer = run({25: math.nan}, kind=kind, dropout=0.3, **options)
    for a, b in zip(plain, everything(model, optimizer), strict=True):
        assert torch.equal(a, b) or (a.isnan() == b.isnan()).all()
    before = everything(model, optimizer)
    assert monitor is not None
    monitor.autopsy()
    for a, b in zip(before, everything(model, optimizer), strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num())
    assert [m.training for m in model.modules()] == [True] * 6


def test_an_update_that_throws_the_weights_away_is_named_and_not_the_batch() -> None:
    """Before, the next batch was blamed."""
    monitor, _, _ = run(kind="Adam", rate={25: 1e4, 26: 1e-4})
    assert monitor is not None
    answer = monitor.autopsy()
    assert answer.mechanism == "learning_rate"
    assert answer.step == 25
    assert answer.seen == 26
    assert answer.batch is None
    assert "the batch of step 26 was ordinary" in answer.sentence


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_replay_gives_the_recorded_losses(dropout: float) -> None:
    monitor, _, _ = run({33: math.nan}, kind="Adam", dropout=dropout)
    assert monitor is not None
    answer = monitor.autopsy()
    assert (answer.mechanism, answer.step) == ("batch", 33)
    assert answer.replay == "The replay gives the recorded losses bit for bit."


def test_a_healthy_run_has_nothing_to_explain() -> None:
    monitor, _, _ = run()
    assert monitor is not None
    answer = monitor.autopsy()
    assert answer.mechanism == ""
    assert answer.sentence.startswith("Nothing to explain: in 40 steps")
    assert answer._repr_html_()


def test_without_states_or_batches_the_answer_says_what_is_missing() -> None:
    monitor, _, _ = run({25: math.nan}, memory=0)
    assert monitor is not None
    assert "memory=0 keeps no state" in monitor.autopsy().sentence
    monitor, _, _ = run({25: math.nan}, memory=100)
    assert monitor is not None
    assert "do not fit into memory=100 bytes" in monitor.autopsy().sentence
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(optimizer, (model, loss), data()[:2], ["update"], every=9) as monitor:
        for k, batch in enumerate(data()):
            optimizer.zero_grad()
            value = loss(model, batch) * (math.nan if k == 15 else 1.0)
            value.backward()
            monitor.observe(value, k)
            optimizer.step()
    assert "its batch is not known" in monitor.autopsy().sentence


def test_a_batch_is_found_again_by_its_index() -> None:
    model, batches = build(), data()
    batches[15] = (batches[15][0].clone(), batches[15][1])
    batches[15][0][4] = math.inf
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"every": 9, "recall": batches.__getitem__}
    with Monitor(optimizer, (model, loss), batches[:2], ["update"], **options) as monitor:
        for k, batch in enumerate(batches):
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            monitor.observe(value, k)
            optimizer.step()
    answer = monitor.autopsy()
    assert (answer.mechanism, answer.step, answer.batch) == ("sample", 15, 15)
    assert answer.samples == (4,)


def test_a_loop_that_ends_in_its_own_error_is_explained() -> None:
    """The loss of the last batch was seen, its step never came."""
    model, batches = build(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(model, loss)
    monitor = Monitor(optimizer, objective, batches[:2], ["update"], every=9)
    for k, (x, y) in enumerate(batches):
        value = objective.value((x * (math.nan if k == 12 else 1), y))
        if not bool(value.detach().isfinite()):
            break
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    monitor.close()
    answer = monitor.autopsy()
    assert (answer.mechanism, answer.step) == ("batch", 12)


def test_an_error_in_the_users_loss_ends_in_a_sentence() -> None:
    monitor, _, _ = run({25: math.nan})
    assert monitor is not None

    def broken(model: nn.Module, batch: Any) -> torch.Tensor:
        raise KeyError("mine")

    monitor._own_loss = broken
    assert "the replay ended in KeyError: 'mine'" in monitor.autopsy().sentence


def test_memory_is_bounded() -> None:
    """States and batches together stay within the bytes that were allowed."""
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    allowed = 60_000
    recorder = Recorder(model, optimizer, allowed)
    batches = data()
    for k in range(300):
        recorder.before_loss()
        optimizer.zero_grad()
        value = loss(model, batches[k % 20])
        value.backward()
        recorder.after_loss(value, (batches[k % 20][0].clone(), batches[k % 20][1]))
        recorder.log.append(LoggedStep(k, [{"lr": 0.01}], None))
        recorder.digest()
        optimizer.step()
        if k % 10 == 9:
            recorder.flush()
            recorder.keep_state(k + 1)
        held = {id(s.batch[0]): s.batch for step in recorder.steps for s in step.calls if s.batch}
        used = sum(b[0].nbytes + b[1].nbytes for b in held.values())
        used += sum(s.bytes for s in recorder.states)
        assert used <= allowed
    assert len(recorder.states) == 2
    assert len(recorder.steps) == 200


def test_a_batch_that_was_overwritten_is_not_trusted() -> None:
    model, batches = build(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(model, loss)
    x, y = batches[0][0].clone(), batches[0][1].clone()
    with Monitor(optimizer, objective, batches[:2], ["update"], every=9) as monitor:
        for k in range(20):
            x.copy_(batches[k][0] * (math.nan if k == 15 else 1))
            y.copy_(batches[k][1])
            optimizer.zero_grad()
            objective.value((x, y)).backward()
            optimizer.step()
    assert "its batch is not known" in monitor.autopsy().sentence


def test_the_twin_of_an_optimizer_steps_as_the_optimizer_and_touches_no_hook() -> None:
    from mindgap.measure.recorder import copy_attributes, make_twin
    from mindgap.optim import AdamW

    for make in (torch.optim.AdamW, AdamW):
        model = build()
        optimizer = make(model.parameters(), lr=0.05)
        for batch in data()[:3]:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
        called: list[int] = []
        optimizer.register_step_pre_hook(lambda *_, called=called: called.append(1))
        kept = copy_attributes(optimizer, {id(p): p for p in model.parameters()})
        start = copy.deepcopy(model.state_dict())
        second = make_twin(optimizer, kept)
        second.step()
        assert not called
        moved = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for p, old in zip(
                model.parameters(),
                (v for n, v in start.items() if n in dict(model.named_parameters())),
            ):
                p.copy_(old)
        optimizer.step()
        for a, b in zip(moved, model.parameters(), strict=True):
            torch.testing.assert_close(a, b.detach())


def test_bad_arguments_are_named() -> None:
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuleError, match="memory"):
        Monitor(optimizer, (model, loss), data()[:2], memory=-1)
    with pytest.raises(RuleError, match="recall"):
        Monitor(optimizer, (model, loss), data()[:2], recall=3)  # type: ignore[arg-type]


NAMES = ("update-bag-sgd-clip", "sample-target-sgd", "log-mlp-adam", "half-energy-sgd")
NAMES += ("recurrent-cell-spike-adam", "batch-accumulated-sgd", "healthy-restarts")


@pytest.mark.parametrize("name", NAMES)
def test_planted_runs_are_explained(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each kind; benchmarks/autopsy.py has all of them."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from autopsy import judge
    from autopsy_cases import CASES

    (case,) = [c for c in CASES if c.name == name]
    found = judge(case)
    assert all(found["right"].values()), found


def test_a_divergence_is_told_by_the_updates_of_one_module() -> None:
    steps = [Step(number, [], [{"lr": 0.5}]) for number in (3, 4)]
    updates = [{"early": 0.4, "late": 0.1}, {"early": 0.5, "late": 2.0}]
    replayed = [
        _ReplayedStep(step, 1.0, 1.0, 1.0, [], relative_updates=moves)
        for step, moves in zip(steps, updates, strict=True)
    ]
    incident = Incident(4, "loss", math.inf, None, steps, [1.0])
    replay: Any = SimpleNamespace(replayed=replayed, incident=incident, disagreement=0.0)
    found = _blame_divergence(replay)
    assert "late moved by 10 % of its norm at step 3 and by 2 times its norm at step 4" in str(
        found
    )
    assert (found.step, found.layer) == (3, "late")


def test_a_batch_without_version_counters_can_be_computed_again() -> None:
    with torch.inference_mode():
        batch = (torch.ones(2, 3),)
    replay = object.__new__(Replay)
    replay.recall = None
    call = LossCall(batch=batch, key=None, loss=1.0)
    assert replay._calls_of(Step(0, [call])) == [(call, batch)]


class OnDevice(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_losses_on_a_device_are_read_as_numbers(shape: tuple[int, ...]) -> None:
    """Of a loss with several entries the first counts."""
    losses = [torch.full(shape, value).as_subclass(OnDevice) for value in (2.0, 4.0)]
    step = Step(0, [LossCall(None, None, loss) for loss in losses])
    read_losses([step])
    assert [call.loss for call in step.calls] == [2.0, 4.0]
    assert step.loss == 3.0
