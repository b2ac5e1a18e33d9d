"""Unusual models and a user's own errors: ``examine`` ends in a sentence or in ``RuleError``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from mindgap.advise import examine
from mindgap.advise.doctor import examination
from mindgap.base.check import RuleError

_DRAW = torch.Generator().manual_seed(0)
_CENTRES = 2.0 * torch.randn(6, 12, generator=_DRAW)
Y = torch.randint(6, (240,), generator=_DRAW)
X = _CENTRES[Y] + torch.randn(240, 12, generator=_DRAW)
BATCHES = list(zip(X.split(16), Y.split(16)))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps: these cases ask for a sentence, not for the right one."""
    monkeypatch.setattr(examination, "STEPS", 40)
    monkeypatch.setattr(examination, "FEWEST", 20)


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 6))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.LazyLinear(6))


def parametrized() -> nn.Module:
    model = network()
    parametrizations.weight_norm(model[0])
    parametrizations.orthogonal(model[2])
    return model


def with_integers() -> nn.Module:
    model = network()
    whole = nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)
    model.register_parameter("counts", whole)
    return model


class Several(nn.Module):
    """Gives a dictionary; the loss is a sum of two."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.value = network(), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": self.body(x), "value": self.value(x)}


def two_losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    out = model(batch[0])
    return F.cross_entropy(out["scores"], batch[1]) + out["value"].square().mean()


class NoState(nn.Module):
    """A model that cannot be copied by its state."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)

    def state_dict(self, *args: Any, **more: Any) -> Any:
        raise RuntimeError("no state")


#: Model -> the verdict, and a part of the sentence.
MODELS: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "lazy": (lazy, "healthy", "Keep your SGD"),
    "on the meta device": (lambda: network().to("meta"), "cannot tell", "device meta"),
    "compiled": (lambda: torch.compile(network(), backend="eager"), "healthy", "your SGD"),
    "data parallel": (lambda: nn.DataParallel(network()), "healthy", "Keep your SGD"),
    "parametrized": (parametrized, "healthy", "Keep your SGD"),
    "scripted": (lambda: torch.jit.script(network()), "healthy", "Keep your SGD"),
    "whole numbers": (with_integers, "healthy", "Keep your SGD"),
    "another precision": (lambda: network().half(), "cannot tell", "dtype"),
    "without a state": (NoState, "cannot tell", "no state"),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_unusual_model_is_examined_or_said_to_be_out_of_reach(name: str, capfd) -> None:
    make, verdict, words = MODELS[name]

    def problem() -> tuple[Any, ...]:
        model = make()
        return (model, classify), BATCHES, sgd(model)

    answer = examine(problem, seconds=20)
    assert (answer.verdict, answer.sentence[-1]) == (verdict, ".")
    assert words in answer.sentence
    assert capfd.readouterr().err == ""  # torch's compiler is silent, too


def test_several_losses_of_a_model_that_gives_a_dictionary() -> None:
    def problem() -> tuple[Any, ...]:
        model = Several()
        return (model, two_losses), BATCHES, sgd(model)

    assert examine(problem, seconds=20).verdict == "healthy"


def test_a_model_whose_every_parameter_is_frozen_is_called_frozen() -> None:
    def problem() -> tuple[Any, ...]:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.requires_grad_(False)
        return (model, classify), BATCHES, optimizer

    assert examine(problem, seconds=20).cause == "frozen_parameters"


def _plain(**more: Any) -> dict[str, Any]:
    model = network()
    return {"model": model, "loss": classify, "train": BATCHES, "optimizer": sgd(model), **more}


def _with_schedule() -> dict[str, Any]:
    parts = _plain()
    falls = torch.optim.lr_scheduler.LambdaLR(parts["optimizer"], lambda k: 1 / (3 - k))
    return {**parts, "scheduler": falls}


def _recursion(*_: Any) -> Any:
    return _recursion()


#: What the user did -> words of the sentence.
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "the function leaves the program": (lambda: sys.exit(3), "your function raises SystemExit"),
    "the step divides by zero": (
        lambda: _plain(step=lambda batch: 1 / 0),
        "ZeroDivisionError: division by zero at step 0",
    ),
    "the schedule divides by zero": (_with_schedule, "ZeroDivisionError: division by zero at"),
    "the loss never ends": (lambda: _plain(loss=_recursion), "RecursionError"),
    "validation has another shape": (
        lambda: _plain(valid=[(X[:, :3], Y)]),
        "on your validation batches",
    ),
    "the batches are words": (lambda: _plain(train=["a", "b"]), "on the first batch"),
    "nothing to train": (
        lambda: ((nn.Identity(), classify), BATCHES),
        "your model has no parameters to train",
    ),
    "an optimizer that wants a closure": (
        lambda: (lambda m: ((m, classify), BATCHES, torch.optim.LBFGS(m.parameters())))(network()),
        "closure",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_the_user_is_told_in_a_sentence(name: str) -> None:
    problem, words = MISTAKES[name]
    answer = examine(problem, seconds=20)
    assert answer.verdict == "cannot tell"
    assert words in answer.sentence, answer.sentence


@pytest.mark.parametrize(
    "parts",
    [
        {"loss": lambda m, b: (classify(m, b), 1)},
        {"loss": lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none")},
        {"loss": lambda m, b: float(classify(m, b))},
        {"train": [(X[:0], Y[:0])] * 12},
        {"optimizer": "SGD"},
        {"step": 3},
    ],
)
def test_what_breaks_a_rule_is_refused_by_its_name(parts: dict[str, Any]) -> None:
    with pytest.raises(RuleError, match=next(iter(parts))):
        examine(lambda: _plain(**parts))


def _raising_at(call: int, error: BaseException, lr: float) -> tuple[Callable[[], Any], list[int]]:
    """A function that builds a training and raises an error at one call; and its number of calls
    so far, as a list of one.
    """
    calls = [0]

    def problem() -> dict[str, Any]:
        calls[0] += 1
        if calls[0] == call:
            raise error
        parts = _plain()
        parts["optimizer"].param_groups[0]["lr"] = lr
        return parts

    return problem, calls


@pytest.mark.parametrize("error", [OSError("the disk is gone"), SystemExit(3)], ids=["os", "exit"])
@pytest.mark.parametrize("lr", [0.05, 1e4])
def test_an_error_at_any_call_of_the_users_function_is_told(
    lr: float, error: BaseException
) -> None:
    problem, calls = _raising_at(0, error, lr)
    examine(problem, seconds=20)
    notes: list[str] = []
    for call in range(1, calls[0] + 1):
        answer = examine(_raising_at(call, error, lr)[0], seconds=20)
        words = f"{type(error).__name__}: {error}"
        if answer.facts.get("raised"):
            subject = "your function" if call == 1 else "your function, called again,"
            assert f"Cannot tell, because {subject} raises {words}" in answer.sentence
        else:
            assert words in str(answer.notes), call
            notes += answer.notes
    assert f"the comparison with a plain network could not be read ({words})" in notes
