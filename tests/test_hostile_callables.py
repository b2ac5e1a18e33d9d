"""What the user hands over as a function raises, returns the wrong kind or is not finite: every
public function that calls it answers with a sentence or with our one error, which names it.

One table: name -> what is done, and words of the answer. In the doctor's rows these are words of
the sentence or of the error; in all others those of a ``RuleError``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mindgap.advise import examine, recommend
from mindgap.advise.doctor import examination
from mindgap.advise.training import build
from mindgap.base.check import RuleError
from mindgap.base.objective import Objective
from mindgap.bilevel import BilevelProblem, solve
from mindgap.measure import Monitor, noise_sample, sharpness, survey, training_statistics
from mindgap.optim import INGD, SGD, ACClip, AdamW, CClip, GClip, NormalizedSGD

_DRAW = torch.Generator().manual_seed(0)
Y = torch.randint(6, (192,), generator=_DRAW)
X = torch.randn(6, 12, generator=_DRAW)[Y] * 2 + torch.randn(192, 12, generator=_DRAW)
BATCHES = list(zip(X.split(16), Y.split(16)))
PLAIN = list(torch.randn(24, 16, 4, generator=_DRAW))
Row = tuple[Callable[[], Any], str]


class Unprintable(Exception):
    """An error whose text raises another one."""

    def __str__(self) -> str:
        raise ValueError("no text")


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


class Batches:
    """Batches that begin as a function says."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self.begin = begin

    def __iter__(self) -> Any:
        return self.begin()


def breaking() -> Iterator[Any]:
    yield from BATCHES[:3]
    raise OSError("shard 3 is gone")


# -- the doctor


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def parts(model: nn.Module | None = None, **more: Any) -> dict[str, Any]:
    model = model or nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return {"model": model, "loss": classify, "train": BATCHES, "optimizer": optimizer, **more}


def doctor(**more: Any) -> Callable[[], Any]:
    return lambda: examine(lambda: parts(**more), seconds=10)


def late(then: Callable[[Tensor], Any], first: int = 12) -> Callable[..., Any]:
    """A loss that is right until its call number ``first``."""
    calls = [0]

    def loss(model: nn.Module, batch: Any) -> Any:
        calls[0] += 1
        value = classify(model, batch)
        return then(value) if calls[0] >= first else value

    return loss


def with_step(returned: Callable[[Tensor], Any]) -> Callable[[], Any]:
    def problem() -> dict[str, Any]:
        whole = parts()

        def step(batch: Any) -> Any:
            whole["optimizer"].zero_grad()
            value = classify(whole["model"], batch)
            value.backward()
            whole["optimizer"].step()
            return returned(value)

        return {**whole, "step": step}

    return lambda: examine(problem, seconds=10)


def with_optimizer(change: Callable[[Any], Any]) -> Callable[[], Any]:
    def problem() -> dict[str, Any]:
        whole = parts()
        change(whole["optimizer"])
        return whole

    return lambda: examine(problem, seconds=10)


def schedule_to(rate: Any) -> Callable[[], Any]:
    def problem() -> dict[str, Any]:
        whole = parts()

        class Schedule:
            def step(self) -> None:
                whole["optimizer"].param_groups[0]["lr"] = rate

        return {**whole, "scheduler": Schedule()}

    return lambda: examine(problem, seconds=10)


class NoEvaluation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            raise OSError("no evaluation")
        return self.body(x)


class NoTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)

    def train(self, mode: bool = True) -> Any:
        raise OSError("no training")


class Growing(nn.Module):
    """It registers a parameter at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        count = len(list(self.parameters()))
        self.register_parameter(f"p{count}", nn.Parameter(torch.zeros(2)))
        return self.body(x)


def nan_inputs() -> list[Any]:
    return [(x * float("nan"), y) for x, y in BATCHES[:3]]


DOCTOR: dict[str, Row] = {
    "loss raises what cannot be printed": (
        doctor(loss=raising(Unprintable())),
        "Unprintable: its text cannot be printed on the first batch",
    ),
    "loss leaves the program": (doctor(loss=late(raising(SystemExit(2)))), "SystemExit: 2 at step"),
    "loss returns None later": (
        doctor(loss=late(lambda v: None)),
        "loss must return a tensor with one element, got 'NoneType', at step",
    ),
    "loss returns a complex number later": (
        doctor(loss=late(lambda v: v.to(torch.complex64))),
        "loss must be a real number, got torch.complex64, at step",
    ),
    "loss is sparse": (
        doctor(loss=lambda m, b: classify(m, b).reshape(1).to_sparse()),
        "loss must be a dense tensor, got torch.sparse_coo",
    ),
    "problem raises what cannot be printed": (
        lambda: examine(raising(Unprintable()), seconds=10),
        "your function raises Unprintable: its text cannot be printed",
    ),
    "batches raise at once": (
        doctor(train=Batches(raising(OSError("no")))),
        "your batches 'train' raise OSError: no",
    ),
    "batches raise on the way": (doctor(train=Batches(breaking)), "'train' raise OSError: shard 3"),
    "validation raises on the way": (doctor(valid=Batches(breaking)), "'valid' raise OSError"),
    "batches begin with a number": (doctor(train=Batches(lambda: 3)), "'train' raise TypeError"),
    "validation is not finite": (
        doctor(valid=nan_inputs()),
        "before training the loss on your validation batches is not finite, and on",
    ),
    "inputs on the device meta": (
        doctor(train=[(x.to("meta"), y) for x, y in BATCHES]),
        "the loss raises RuntimeError",
    ),
    "inputs are sparse": (doctor(train=[(x.to_sparse(), y) for x, y in BATCHES]), "Healthy"),
    "step returns NaN": (
        with_step(lambda v: float("nan")),
        "your step returns nan where your loss is",
    ),
    "step returns an empty tensor": (with_step(lambda v: v.new_zeros(0)), "Healthy"),
    "step returns a sparse tensor": (with_step(lambda v: torch.eye(2).to_sparse()), "Healthy"),
    "step leaves the program": (with_step(raising(SystemExit(1))), "SystemExit: 1 at step 0"),
    "scheduler is a text": (doctor(scheduler="cosine"), "scheduler must be an object with a metho"),
    "scheduler is a class": (
        doctor(scheduler=torch.optim.lr_scheduler.StepLR),
        "scheduler must be an object with a method step",
    ),
    "scheduler sets NaN": (schedule_to(float("nan")), "lr must be a finite number"),
    "scheduler sets None": (schedule_to(None), "lr must be a finite number"),
    "scheduler sets a text": (schedule_to("0.1"), "lr must be a finite number"),
    "scheduler without last_epoch": (schedule_to(0.05), "Healthy"),
    "optimizer without groups": (
        with_optimizer(lambda o: o.param_groups.clear()),
        "optimizer must have groups with a learning rate lr, got []",
    ),
    "optimizer without a rate": (
        with_optimizer(lambda o: o.param_groups[0].pop("lr")),
        "optimizer must have groups with a learning rate lr, got [['dampening'",
    ),
    "model cannot evaluate": (
        doctor(model=NoEvaluation()),
        "in evaluation mode the loss raises OSError: no evaluation",
    ),
    "model cannot train": (doctor(model=NoTraining()), "raises OSError: no training"),
    "model grows": (lambda: examine(lambda: parts(Growing()), seconds=10), ""),
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "STEPS", 30)
    monkeypatch.setattr(examination, "FEWEST", 15)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", DOCTOR)
def test_the_doctor_says_what_is_wrong(name: str) -> None:
    act, words = DOCTOR[name]
    try:
        answer = act().sentence
    except RuleError as error:
        answer = str(error)
    assert words in answer
    assert "IndexError" not in answer


# -- everything else


def steps(make: Callable[..., Any], change: Callable[[Any], Any], closure: Any = None) -> Any:
    """One step, a change of the optimizer, and another step."""
    p = nn.Parameter(torch.linspace(-1, 1, 5))
    optimizer = make([p])

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        value = p.square().sum()
        value.backward()
        return value

    evaluate()
    if closure is None:
        optimizer.step(evaluate)
    change(optimizer)
    evaluate()
    optimizer.step(closure or evaluate)


def rate(value: Any, make: Callable[..., Any] = AdamW) -> Callable[[], Any]:
    def change(optimizer: Any) -> None:
        optimizer.param_groups[0]["lr"] = value

    return lambda: steps(make, change)


def ingd(params: list[Any]) -> INGD:
    return INGD(params, 0.1, 1e-3, 1.0)


def descent(returned: Any) -> Callable[[], Any]:
    """INGD with a closure that returns something at its second call."""
    p = nn.Parameter(torch.ones(3))
    optimizer, calls = ingd([p]), [0]

    def closure() -> Any:
        calls[0] += 1
        optimizer.zero_grad()
        value = p.square().sum()
        value.backward()
        return value if calls[0] < 2 else returned(value)

    def act() -> None:
        try:
            optimizer.step(closure)
        finally:
            assert torch.equal(p.detach(), torch.ones(3))  # no trial point is left behind

    return act


def projected(projection: Any) -> Callable[[], Any]:
    return lambda: steps(lambda p: SGD(p, 0.1, project=projection), lambda o: None)


def square(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def observed(value: Any) -> Callable[[], Any]:
    def act() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with Monitor(optimizer, Objective(model, square), PLAIN, ["update"], every=2) as monitor:
            monitor.observe(value)

    return act


def monitored(**more: Any) -> Callable[[], Any]:
    def act() -> None:
        model = nn.Linear(4, 1)
        batches = more.pop("batches", PLAIN)
        Monitor(
            torch.optim.SGD(model.parameters(), lr=0.01),
            Objective(model, square),
            batches,
            ["update"],
            every=2,
            **more,
        ).close()

    return act


def measured(function: Callable[..., Any], loss: Any = square, batches: Any = PLAIN) -> Any:
    return lambda: function(Objective(nn.Linear(4, 1), loss), batches)


def sparse_loss(model: nn.Module, x: Tensor) -> Tensor:
    return square(model, x).reshape(1).to_sparse()


def constant_later() -> Callable[[], Any]:
    calls = [0]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        calls[0] += 1
        return square(model, x) if calls[0] < 30 else square(model, x).detach()

    return lambda: recommend(lambda: ((nn.Linear(4, 1), loss), PLAIN), steps=96)


def built(train: Any) -> Callable[[], Any]:
    return lambda: build(lambda: ((nn.Linear(4, 1), square), train), 0)


def solved(data: Any) -> Callable[[], Any]:
    def level(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
        return (y - x).square().sum() + batch.mean()

    def act() -> None:
        start = torch.ones(3)
        solve(BilevelProblem(level, level, start, start, data, data, batch_size=4), "soba", steps=4)

    return act


def no_argument() -> float:
    return 1.0


def nothing(optimizer: Any) -> None:
    return None


NUMBER = "lr must be a number, got "
ONE_NUMBER = "closure must return the loss, one real number, got "
REFUSED: dict[str, Row] = {
    **{
        f"{name}: a tensor as closure": (
            lambda make=make: steps(make, nothing, closure=torch.ones(())),
            "closure must be a function, got tensor(1.)",
        )
        for name, make in {
            "AdamW": AdamW,
            "ACClip": ACClip,
            "SGD": lambda p: SGD(p, 0.1),
            "NormalizedSGD": lambda p: NormalizedSGD(p, 0.1),
            "INGD": ingd,
        }.items()
    },
    "rate becomes None": (rate(None), NUMBER + "None"),
    "rate becomes a text": (rate("0.1"), NUMBER + "'0.1'"),
    "rate becomes a list": (rate([0.1]), NUMBER + "[0.1]"),
    "rate becomes complex": (rate(1j), NUMBER + "1j"),
    "rate becomes a vector": (rate(torch.ones(2)), "lr must have one real element when it is a te"),
    "rate of INGD becomes None": (rate(None, ingd), NUMBER + "None"),
    "rate of CClip becomes a list": (rate([1], lambda p: CClip(p, 0.1, 1.0)), NUMBER + "[1]"),
    "INGD's closure returns None": (descent(lambda v: None), ONE_NUMBER + "None"),
    "INGD's closure returns a text": (descent(lambda v: "x"), ONE_NUMBER + "'x'"),
    "INGD's closure returns a vector": (descent(lambda v: v.expand(3)), ONE_NUMBER + "tensor(["),
    "INGD's closure returns a pair": (descent(lambda v: (v, 1)), ONE_NUMBER + "(tensor("),
    "INGD's closure returns a complex number": (
        descent(lambda v: v.to(torch.complex64)),
        ONE_NUMBER + "tensor(",
    ),
    "threshold's schedule takes nothing": (
        lambda: GClip([nn.Parameter(torch.ones(2))], 0.1, no_argument),
        "tau must be a function of the number of the step, got <function no_argument",
    ),
    "threshold's schedule returns a text": (
        lambda: steps(lambda p: GClip(p, 0.1, lambda k: "a"), nothing),
        "tau must be a number, got 'a'",
    ),
    "projection makes new tensors": (
        projected(lambda tensors: [t.clamp(0, 1) for t in tensors]),
        "project must change the tensors in place, got '1 new tensors'",
    ),
    "observe None": (
        observed(None),
        "loss must be a number or a tensor with one element, got None",
    ),
    "observe a text": (observed("0.3"), "loss must be a number or a tensor with one element"),
    "observe a vector": (observed(torch.ones(3)), "loss must be a number or a tensor with one el"),
    "observe a mapping": (observed({"loss": 1.0}), "loss must be a number or a tensor with one el"),
    "rows go to a function of nothing": (
        monitored(to=no_argument),
        "to must be a folder, a SummaryWriter or a function of a row",
    ),
    "a monitor's batches begin with a number": (
        monitored(batches=Batches(lambda: 3)),
        "batches must be an iterable of batches",
    ),
    "survey of a sparse loss": (measured(survey, sparse_loss), "loss must be a dense tensor"),
    "sharpness of a sparse loss": (measured(sharpness, sparse_loss), "loss must be a dense tensor"),
    "noise of a sparse loss": (measured(noise_sample, sparse_loss), "loss must be a dense tensor"),
    "statistics of batches that begin with a number": (
        measured(training_statistics, batches=Batches(lambda: 3)),
        "batches must be an iterable of batches",
    ),
    "recommend: the loss becomes a constant": (
        constant_later(),
        "loss must depend on a parameter that takes a gradient, got 'a constant in training'",
    ),
    "recommend: train is None": (built(None), "train must be batches that can be read more than"),
    "recommend: train begins with a number": (
        built(Batches(lambda: 3)),
        "train must be batches that can be iterated over",
    ),
    "bilevel data are sparse": (
        solved(torch.eye(8).to_sparse()),
        "data must be dense tensors, got torch.sparse_coo",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_step_can_use_is_refused_by_its_name(name: str) -> None:
    act, words = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuleError, match=re.escape(words)):
            act()


def test_a_closure_that_raises_in_mid_search_leaves_no_trial_point() -> None:
    with pytest.raises(OSError, match="the data are gone"):
        descent(raising(OSError("the data are gone")))()


def test_sparse_batches_have_checksums_and_can_be_measured() -> None:
    batches = [x.to_sparse() for x in PLAIN[:4]]
    found = training_statistics(Objective(nn.Linear(4, 1), _of_sparse), batches)
    same = training_statistics(Objective(nn.Linear(4, 1), _of_sparse), PLAIN[:4])
    assert type(found) is type(same)


def _of_sparse(model: nn.Module, x: Tensor) -> Tensor:
    return square(model, x.to_dense())
