"""NaN, empty, shuffled, random, normalised, frozen, misplaced: a correct answer or one clear
error, nothing moved.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mindgap.base.check import RuleError
from mindgap.base.objective import Objective
from mindgap.measure.monitor import Monitor
from mindgap.measure.overview import survey
from mindgap.measure.probes.curvature import sharpness
from mindgap.measure.probes.smoothness import local_smoothness
from mindgap.measure.probes.statistics import training_statistics


def step_of(objective: Objective) -> list[torch.Tensor]:
    return [torch.full_like(p, 0.01) for p in objective.parameters]


def monitored(objective: Objective, batches: object) -> float:
    optimizer = torch.optim.SGD(objective.model.parameters(), lr=0.1)
    with Monitor(optimizer, objective, batches, ["noise", "sharpness"], every=1) as monitor:
        optimizer.step()  # without gradients: nothing moves
    row = monitor.readings[0]
    if "problem" in row:
        raise RuleError(row["problem"])
    if monitor.skipped:  # a probe's error never ends the training; it is told here
        raise RuleError("; ".join(monitor.skipped.values()))
    return row["noise_level"]


def surveyed(objective: Objective, batches: object) -> float:
    found = survey(objective, batches, ray_points=3).findings
    for line in found:
        if line.sentence.startswith("not measured: RuntimeError"):
            raise RuleError(line.sentence)
    return found[0].value


INSTRUMENTS: dict[str, Callable] = {
    "sharpness": lambda o, b: sharpness(o, b).value,
    "smoothness": lambda o, b: local_smoothness(o, b, step_of(o)).value,
    "statistics": lambda o, b: training_statistics(o, b, growth=False).noise,
    "survey": surveyed,
    "monitor": monitored,
}

#: The survey is made of the others; what they do with a batch is tested once.
ALONE = [name for name in INSTRUMENTS if name != "survey"]


def network(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), *middle, nn.Linear(6, 2)).double().train()


def data(batches: int = 4) -> list:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(6, 4, generator=generator).double(),
            torch.randint(0, 2, (6,), generator=generator),
        )
        for _ in range(batches)
    ]


def loss(model: nn.Module, batch: tuple) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def everything(model: nn.Module) -> list:
    kept = [v.clone() for v in model.state_dict().values()]
    kept += [p.grad if p.grad is None else p.grad.clone() for p in model.parameters()]
    return [*kept, torch.get_rng_state(), [m.training for m in model.modules()]]


def same(a: list, b: list) -> bool:
    return all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("name", INSTRUMENTS)
def test_nan_loss(name: str) -> None:
    model = network()
    before = everything(model)
    objective = Objective(
        model, lambda m, b: loss(m, b) * (float("nan") if b[1][0] == data()[2][1][0] else 1)
    )
    with pytest.raises(RuleError, match="loss must be finite on every batch, got nan on batch"):
        INSTRUMENTS[name](objective, data())
    assert same(everything(model), before)


@pytest.mark.parametrize("name", INSTRUMENTS)
def test_empty_loader_and_an_iterator(name: str) -> None:
    model = network()
    objective = Objective(model, loss)
    with pytest.raises(RuleError, match="batches must give at least one batch"):
        INSTRUMENTS[name](objective, [])
    if name not in (
        "monitor",
        "survey",
    ):  # these hold their batches, so one pass is enough for them
        with pytest.raises(RuleError, match="batches must allow more than one pass"):
            INSTRUMENTS[name](objective, iter(data()))


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("own", [True, False])
def test_a_shuffling_loader_gives_one_answer_and_is_not_moved_on(name: str, own: bool) -> None:
    x, y = torch.cat([b[0] for b in data()]), torch.cat([b[1] for b in data()])
    generator = torch.Generator().manual_seed(4) if own else None
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=6, shuffle=True, generator=generator
    )
    model = network()
    objective = Objective(model, loss)
    before = everything(model)
    first = INSTRUMENTS[name](objective, loader)
    assert same(everything(model), before)
    assert INSTRUMENTS[name](objective, loader) == first
    if generator is not None:
        assert torch.equal(generator.get_state(), torch.Generator().manual_seed(4).get_state())


class Restless:
    """A loader with a random state that nobody can see."""

    def __init__(self) -> None:
        self.calls = 0

    def __iter__(self):
        self.calls += 1
        return iter(data()[self.calls % 2 :])


def test_batches_that_change_behind_our_back_are_noticed() -> None:
    objective = Objective(network(), loss)
    for name in ("smoothness",):  # the others make one pass over what they were given
        with pytest.raises(RuleError, match="batches must"):
            INSTRUMENTS[name](objective, Restless())


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("middle", [nn.Dropout(0.3), nn.BatchNorm1d(6)])
def test_dropout_and_batch_norm_in_training_mode(name: str, middle: nn.Module) -> None:
    model = network(middle).double()
    before = everything(model)
    objective = Objective(model, loss)
    first = INSTRUMENTS[name](objective, data())
    assert same(everything(model), before)
    torch.rand(3)  # another place in the global stream makes no difference
    assert INSTRUMENTS[name](objective, data()) == first


@pytest.mark.parametrize("name", INSTRUMENTS)
def test_frozen_and_unused_parameters(name: str) -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    model.register_parameter("unused", nn.Parameter(torch.ones(3).double()))
    before = everything(model)
    found = INSTRUMENTS[name](Objective(model, loss), data())
    assert found > 0
    assert same(everything(model), before)
    for p in model.parameters():
        p.requires_grad_(False)
    with pytest.raises(
        RuleError, match=r"must have a parameter that takes gradients|must train a parameter"
    ):
        INSTRUMENTS[name](Objective(model, loss), data())


@pytest.mark.parametrize("name", INSTRUMENTS)
def test_model_on_another_device(name: str) -> None:
    model = network().to("meta")
    with pytest.raises(RuleError, match="device"):
        INSTRUMENTS[name](Objective(model, loss), data())


@pytest.mark.parametrize("name", INSTRUMENTS)
@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_the_loss_leaves_everything_as_it_was(
    name: str, kind: type[BaseException]
) -> None:
    model = network(nn.BatchNorm1d(6), nn.Dropout(0.2)).double()
    before = everything(model)
    calls = 0

    def failing(m: nn.Module, b: tuple) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise kind("stop")
        return loss(m, b)

    told = kind is RuntimeError and name in ("survey", "monitor")  # a line, and the rest goes on
    with pytest.raises(RuleError if told else kind, match="stop"):
        INSTRUMENTS[name](Objective(model, failing), data())
    assert same(everything(model), before)
