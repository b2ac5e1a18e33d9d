"""Unusual models and loops: the monitored run is the same bit for bit, and nothing of ours
raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from mindgap.base.check import RuleError
from mindgap.base.objective import Objective
from mindgap.measure import (
    Monitor,
    local_smoothness,
    sharpness,
    smoothness_along_ray,
    survey,
    training_statistics,
)
from mindgap.measure.monitor import DEFAULT_PROBES

STEPS = 24


class Module(nn.Module):
    """A module whose forward pass is a function."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)
        self._call = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._call(self, x)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def square(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def sparse() -> nn.Module:
    return Module(
        lambda m, x: m.head(m.table(x[:, 0].abs().long() % 5)),
        table=nn.Embedding(5, 8, sparse=True),
        head=nn.Linear(8, 2),
    )


def complex_weights() -> nn.Module:
    return Module(
        lambda m, x: (x.to(torch.complex64) @ m.w).abs(),
        w=0.3 * torch.randn(4, 2, dtype=torch.complex64),
    )


def scalar() -> nn.Module:
    return Module(lambda m, x: m.a * x[:, :2] + m.b, a=torch.tensor(0.5), b=torch.tensor(0.1))


def empty() -> nn.Module:
    return Module(lambda m, x: m.inner(x) + m.none.sum(), inner=network(), none=torch.zeros(0))


def tied() -> nn.Module:
    return Module(lambda m, x: (torch.tanh(x @ m.w) @ m.w.T)[:, :2], w=0.3 * torch.randn(4, 4))


def shared() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 2))


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    model[0].requires_grad_(False)
    return model


def unused() -> nn.Module:
    return Module(lambda m, x: m.inner(x), inner=network(), spare=nn.Linear(3, 3))


def lazy() -> nn.Module:
    model = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.Linear(8, 2))
    model(torch.zeros(1, 4))
    return model


def parametrized() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    parametrizations.weight_norm(model[0])
    parametrizations.spectral_norm(model[2])
    return model


def mixed() -> nn.Module:
    return Module(
        lambda m, x: m.head(m.first(x).double()),
        first=nn.Linear(4, 8),
        head=nn.Linear(8, 2).double(),
    )


def fails_in_eval() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        if not m.training:
            raise RuntimeError("no evaluation here")
        return m.inner(x)

    return Module(forward, inner=network())


def compiled() -> Any:
    return torch.compile(network(), backend="eager")


def penalized(model: nn.Module, batch: Any) -> Tensor:
    """A loss with a gradient inside."""
    x = batch[0].clone().requires_grad_()
    out = model(x)
    (inner,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return (out - batch[1]).square().mean() + 0.1 * inner.square().mean()


class Passed(torch.autograd.Function):
    """No second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


def once(model: nn.Module, batch: Any) -> Tensor:
    return (Passed.apply(model(batch[0])) - batch[1]).square().mean()


def vector(model: nn.Module, batch: Any) -> Tensor:
    """A loss of one entry, not a scalar."""
    return square(model, batch).reshape(1)


MODELS: dict[str, tuple[Callable[[], Any], Any]] = {
    "sparse": (sparse, square),
    "complex": (complex_weights, square),
    "scalar": (scalar, square),
    "empty": (empty, square),
    "tied": (tied, square),
    "shared": (shared, square),
    "frozen": (frozen, square),
    "unused": (unused, square),
    "lazy": (lazy, square),
    "parametrized": (parametrized, square),
    "mixed types": (mixed, square),
    "double": (lambda: network().double(), square),
    "fails in eval": (fails_in_eval, square),
    "compiled": (compiled, square),
    "data parallel": (lambda: nn.DataParallel(network()), square),
    "dropout": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2)), square),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)),
        square,
    ),
    "gradient penalty": (network, penalized),
    "once differentiable": (network, once),
    "one entry": (network, vector),
}


def batches(model: Any) -> list[Any]:
    kind = torch.float64 if all(p.dtype == torch.float64 for p in model.parameters()) else None
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(6, 6, generator=generator).to(kind) for _ in range(STEPS)]
    return [(d[:, :4], d[:, 4:]) for d in drawn]


def simple(model: Any, objective: Objective, optimizer: Any, data: list[Any]) -> None:
    for batch in data:
        optimizer.zero_grad()
        objective.value(batch).backward()
        optimizer.step()


def closure(model: Any, objective: Objective, optimizer: Any, data: list[Any]) -> None:
    for batch in data[:8]:

        def again(batch: Any = batch) -> Tensor:
            optimizer.zero_grad()
            value = objective.value(batch)
            value.backward()
            return value

        optimizer.step(again)


def accumulate(model: Any, objective: Objective, optimizer: Any, data: list[Any]) -> None:
    for k, batch in enumerate(data):
        (objective.value(batch) / 3).backward()
        if k % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def scaled(model: Any, objective: Objective, optimizer: Any, data: list[Any]) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for batch in data:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = objective.value(batch)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()


def several(model: Any, objective: Objective, optimizer: Any, data: list[Any]) -> None:
    for first, second in zip(data[::2], data[1::2], strict=True):
        optimizer.zero_grad()
        (objective.value(first) + 0.1 * objective.value(second)).backward()
        optimizer.step()


def evaluated(model: Any, objective: Objective, optimizer: Any, data: list[Any]) -> None:
    simple(model, objective, optimizer, data[:6])
    model.eval()
    with torch.inference_mode():
        float(objective.value(tuple(t.clone() for t in data[0])))
    model.train()
    simple(model, objective, optimizer, data[6:])


def changed(model: Any, objective: Objective, optimizer: Any, data: list[Any]) -> None:
    """A rate that is a tensor, a group more, a state loaded, a step without gradients."""
    simple(model, objective, optimizer, data[:4])
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "lr": 0.5})
    simple(model, objective, optimizer, data[4:8])
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(0.01)
    simple(model, objective, optimizer, data[8:])


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.5)


LOOPS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "closure": (closure, lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4)),
    "closure of SGD": (closure, sgd),
    "accumulation": (accumulate, sgd),
    "scaler": (scaled, sgd),
    "several losses": (several, lambda p: torch.optim.AdamW(p, lr=0.01)),
    "inference between": (evaluated, sgd),
    "changes": (changed, lambda p: torch.optim.Adam(p, lr=0.01)),
    "no weight decay": (simple, lambda p: torch.optim.Rprop(p, lr=0.01)),
}


def train(build: Any, loss: Any, loop: Any, make: Any, **options: Any) -> tuple[list[Tensor], Any]:
    torch.manual_seed(0)
    model = build()
    data = batches(model)
    optimizer = make([p for p in model.parameters() if p.requires_grad])
    objective = Objective(model, loss)
    monitor = None
    if options:
        monitor = Monitor(optimizer, objective, data[:3], **options)
    torch.manual_seed(1)
    loop(model, objective, optimizer, data)
    if monitor is not None:
        monitor.close()
    return [t.detach().clone() for t in model.state_dict().values()], monitor


def compare(build: Any, loss: Any, loop: Any, make: Any) -> None:
    plain, _ = train(build, loss, loop, make)
    for options in ({"probes": DEFAULT_PROBES, "every": 7}, {"budget": 0.03}):
        watched, monitor = train(build, loss, loop, make, **options)
        assert len(plain) == len(watched)
        assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
        answer = monitor.autopsy()
        assert answer.sentence
        assert not answer.mechanism or answer.mechanism == "unknown", answer.sentence
        assert all("\n" not in said for said in [*monitor.events, *monitor.skipped.values()])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_an_unusual_model_is_watched_and_its_run_is_the_same(name: str) -> None:
    build, loss = MODELS[name]
    compare(build, loss, simple, lambda p: torch.optim.SGD(p, lr=0.05))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LOOPS)
def test_an_unusual_loop_is_watched_and_its_run_is_the_same(name: str) -> None:
    compare(network, square, *LOOPS[name])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_a_survey_of_an_unusual_model_ends_in_lines(name: str) -> None:
    build, loss = MODELS[name]
    torch.manual_seed(0)
    model = build()
    held = [t.detach().clone() for t in model.state_dict().values()]
    found = survey(Objective(model, loss), batches(model)[:4], seconds=0.5)
    assert all("\n" not in line.sentence for line in found.findings)
    after = list(model.state_dict().values())
    assert all(torch.equal(a, b) for a, b in zip(held, after, strict=True))


def test_a_model_without_numbers_is_refused() -> None:
    model = nn.Linear(4, 2, device="meta")
    data = [(torch.zeros(2, 4, device="meta"), torch.zeros(2, 2, device="meta"))] * 2
    with pytest.raises(RuleError, match="model must hold numbers"):
        Monitor(torch.optim.SGD(model.parameters(), 0.1), Objective(model, square), data)
    with pytest.raises(RuleError, match="must"):
        survey(Objective(model, square), data)


class TwoPlanes(nn.Module):
    """Four complex weights, or the same as pairs of real ones."""

    def __init__(self, pairs: bool) -> None:
        super().__init__()
        drawn = torch.randn(4, 2, generator=torch.Generator().manual_seed(3)).double()
        self.w = nn.Parameter(drawn if pairs else torch.view_as_complex(drawn))

    def forward(self, x: Tensor) -> Tensor:
        w = self.w if self.w.is_complex() else torch.view_as_complex(self.w)
        y = x.to(w.dtype) @ w
        return y.real.square() + 3 * (y.imag * y.real).square()


@pytest.mark.filterwarnings("error::UserWarning")
def test_complex_weights_are_read_as_pairs_of_real_ones() -> None:
    """The imaginary parts were dropped, and Adam's threshold ended in an error of torch."""
    data = list(torch.randn(4, 6, 4, generator=torch.Generator().manual_seed(4)).double())
    readings = []
    for pairs in (False, True):
        model = TwoPlanes(pairs)
        problem = Objective(model, lambda m, b: m(b).mean())
        adam = torch.optim.Adam(model.parameters(), lr=1e-2)
        problem.value(data[0]).backward()
        adam.step()
        step = torch.full((4, 2), 0.1).double()
        sharp = sharpness(problem, data, optimizer=adam)
        local = local_smoothness(problem, data, [step if pairs else torch.view_as_complex(step)])
        assert sharp.stability is not None
        numbers = [sharp.value, sharp.gradient_norm, sharp.stability.ratio, local.value]
        numbers += [local.curvature, local.displacement]
        numbers += smoothness_along_ray(problem, data, points=3).smoothness
        numbers.append(training_statistics(problem, data, per="batch").gradient_norm)
        readings.append(numbers)
    assert readings[0] == pytest.approx(readings[1], rel=1e-6)


class PlanesBehindThree(nn.Module):
    """Three real weights, then two complex ones that the loss reads as they are or conjugated, or
    the same as real and imaginary parts.
    """

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        drawn = torch.randn(7, generator=torch.Generator().manual_seed(5)).double()
        w = drawn[3:].reshape(2, 2).clone()
        self.a = nn.Parameter(drawn[:3].clone())
        self.w = nn.Parameter(w if form == "parts" else torch.view_as_complex(w))

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "parts":
            size = (x @ self.w).square().sum(1)
        else:
            w = self.w.conj() if self.form == "conjugated" else self.w
            size = (x.to(w.dtype) @ w).abs().square()
        return size.square() + x.sum(1) * self.a.square().sum()


def test_complex_weights_behind_real_ones_and_conjugated_gradients_are_read() -> None:
    """torch has no complex view at an odd place, and no real one of lazily conjugated numbers."""
    data = list(torch.randn(4, 6, 2, generator=torch.Generator().manual_seed(6)).double())
    readings = []
    for form in ("parts", "as is", "conjugated"):
        problem = Objective(PlanesBehindThree(form), lambda m, b: m(b).mean())
        numbers = [sharpness(problem, data).value]
        numbers += smoothness_along_ray(problem, data, points=3).gradient_norms
        numbers.append(training_statistics(problem, data, per="batch").gradient_norm)
        readings.append(numbers)
        gradients = problem.value_and_grad(data[0])[1]
        assert any(g.is_conj() for g in gradients) == (form == "conjugated")
    assert readings[1] == pytest.approx(readings[0], rel=1e-6)
    assert readings[2] == pytest.approx(readings[0], rel=1e-6)
