"""The doctor's table of causes on what a monitor recorded of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mindgap.advise import Examination, diagnose_run
from mindgap.base.check import RuleError
from mindgap.base.objective import Objective
from mindgap.measure import Monitor

Batch = tuple[Tensor, Tensor]


def classify(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def batches(count: int = 60) -> list[Batch]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(count, 16, 6, generator=draw)
    return [(part, (part[:, 0] + part[:, 1] > 0).long()) for part in x]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))


def watched(
    model: nn.Module,
    data: list[Batch],
    optimizer: torch.optim.Optimizer,
    *,
    loss: Callable[[Any, Any], Tensor] = classify,
    before: Callable[[int], None] = lambda step: None,
    consult: bool = False,
) -> Examination:
    """Train with a monitor beside it, and ask at the end (and on the way)."""
    problem = Objective(model, loss)
    with Monitor(optimizer, problem, data[:4], ["update"], every=5) as monitor:
        for step, batch in enumerate(data):
            before(step)
            optimizer.zero_grad()
            problem.value(batch).backward()
            optimizer.step()
            if consult and step in (25, 40):
                diagnose_run(monitor)
    return diagnose_run(monitor)


def test_a_good_run_is_healthy_against_the_constant_answer() -> None:
    model = network()
    answer = watched(model, batches(), torch.optim.AdamW(model.parameters(), lr=1e-2))
    assert answer.verdict == "healthy"
    assert answer.cause == ""
    assert "constant answer" in answer.sentence
    assert "Keep your AdamW" in answer.sentence
    assert "mindgap examine" in answer.sentence  # for what training does not show
    assert answer.facts["final"] < answer.facts["trivial"]


def test_targets_that_carry_nothing_are_never_called_healthy() -> None:
    draw = torch.Generator().manual_seed(1)
    data = [(x, torch.randint(0, 2, (16,), generator=draw)) for x, _ in batches()]
    model = network()
    answer = watched(model, data, torch.optim.SGD(model.parameters(), lr=0.02))
    assert answer.verdict == "cannot tell"
    assert answer.sentence.startswith("Cannot tell, because")


def test_a_rate_that_throws_the_weights_away() -> None:
    model = network()
    answer = watched(model, batches(), torch.optim.SGD(model.parameters(), lr=1000.0))
    assert (answer.verdict, answer.cause) == ("sick", "lr_too_large")
    assert "mindgap examine" in answer.sentence
    assert answer.trial is None
    assert 1 <= len(answer.findings) <= 3


def test_a_batch_of_nan_is_named() -> None:
    data = batches()
    data[45] = (data[45][0] * float("nan"), data[45][1])
    model = network()
    answer = watched(model, data, torch.optim.SGD(model.parameters(), lr=0.1))
    assert answer.cause == "bad_batch"
    assert any("45" in line for line in answer.findings)


def test_a_schedule_that_turns_negative() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def lower(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 - 0.01 * step

    answer = watched(model, batches(), optimizer, before=lower)
    assert answer.cause == "scheduler_negative"


def test_parameters_that_the_optimizer_does_not_hold() -> None:
    model = network()
    nn.init.constant_(model[0].bias, -1.0)
    answer = watched(model, batches(), torch.optim.SGD([model[2].bias], lr=0.1))
    assert answer.cause == "optimizer_other_parameters"
    assert any("0.weight" in line for line in answer.findings)


@pytest.mark.parametrize("rate", [0.1, 1e6])
def test_asking_on_the_way_leaves_the_run_bit_for_bit(rate: float) -> None:
    ends = []
    for consult in (False, True):
        model = network()
        model.insert(2, nn.Dropout(0.2))
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        watched(model, batches(), optimizer, consult=consult)
        kept = [state["momentum_buffer"] for state in optimizer.state.values()]
        ends.append([p.detach() for p in model.parameters()] + kept + [torch.rand(3)])
    assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(*ends, strict=True))


def test_too_few_steps_and_other_objects_end_in_a_sentence() -> None:
    model = network()
    answer = watched(model, batches(3), torch.optim.SGD(model.parameters(), lr=0.1))
    assert answer.verdict == "cannot tell"
    assert "3 calls of optimizer.step()" in answer.sentence
    with pytest.raises(RuleError, match="monitor"):
        diagnose_run(model)  # type: ignore[arg-type]


class Words(nn.Module):
    """Sparse gradients, a complex parameter, a scalar one, tied weights, a part that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4, sparse=True)
        self.turn = nn.Parameter(torch.ones(4, dtype=torch.complex64))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.inner, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
        self.again = self.inner
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = (self.table(x).mean(1) * self.turn).real * self.scale
        return self.out(self.again(torch.relu(self.inner(hidden))) + self.frozen(hidden))


@pytest.mark.parametrize("memory", [None, 0])
@pytest.mark.parametrize("rate", [0.1, 1e9])
def test_an_unusual_model_ends_in_a_sentence(rate: float, memory: float | None) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 9, (40, 8, 5), generator=draw)
    data = [(part, (part[:, 0] > 4).long()) for part in x]
    torch.manual_seed(0)
    model = Words()
    problem, optimizer = Objective(model, classify), torch.optim.SGD(model.parameters(), lr=rate)
    with Monitor(optimizer, problem, data[:4], ["update"], every=5, memory=memory) as monitor:
        for batch in data:
            optimizer.zero_grad()
            problem.value(batch).backward()
            optimizer.step()
    answer = diagnose_run(monitor)
    assert answer.sentence.endswith(".")
    assert answer.verdict != "healthy" or rate < 1
