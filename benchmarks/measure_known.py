"""How often the instruments are right where the answer is known: false alarms and misses over
random draws.

    python benchmarks/measure_known.py [DRAWS]

Each problem is drawn anew per seed, with 512 minibatches for the noise. "alarm" is the share of
draws in which an assumption is said to fail, "refused" the share of "cannot tell". The last column
says what the answer must be.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

from mindgap import Objective
from mindgap.measure import infinite_variance, noise_sample, sharpness
from mindgap.measure.overview import _Budget, _Surveyor

BATCHES, SIZE = 512, 4
Problem = tuple[Objective, list[Any], Any]


class Point(nn.Module):
    """A vector of parameters."""

    def __init__(self, start: torch.Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(start.double())


def function(
    make: Callable[[torch.Generator], tuple[Callable, torch.Tensor]],
) -> Callable[[int], Problem]:
    """A deterministic function plus Gaussian gradient noise."""

    def draw(seed: int) -> Problem:
        generator = torch.Generator().manual_seed(seed)
        value, start = make(generator)
        batches = list(0.1 * torch.randn(BATCHES, SIZE, len(start), generator=generator).double())
        model = Point(start)
        objective = Objective(model, lambda m, b: value(m.x) + (b.mean(0) * m.x).sum())
        return objective, batches, torch.optim.SGD(model.parameters(), lr=1e-3)

    return draw


def quadratic(low: float) -> Callable[[int], Problem]:
    def make(generator: torch.Generator) -> tuple[Callable, torch.Tensor]:
        scales = torch.logspace(low, 0, 20).double()
        return lambda x: 0.5 * (scales * x * x).sum(), torch.randn(20, generator=generator)

    return function(make)


def regression(noise: Callable[[torch.Generator, int], torch.Tensor]) -> Callable[[int], Problem]:
    """Least squares whose labels carry the given noise; the model stands at the truth."""

    def draw(seed: int) -> Problem:
        generator = torch.Generator().manual_seed(seed)
        n = BATCHES * SIZE
        x, truth = (
            torch.randn(n, 10, generator=generator).double(),
            torch.randn(10, generator=generator).double(),
        )
        y = x @ truth + noise(generator, n)
        model = Point(truth + 0.1 * torch.randn(10, generator=generator).double())
        objective = Objective(model, lambda m, b: 0.5 * (b[0] @ m.x - b[1]).square().mean())
        batches = list(zip(x.view(BATCHES, SIZE, 10), y.view(BATCHES, SIZE), strict=True))
        return objective, batches, torch.optim.SGD(model.parameters(), lr=1e-3)

    return draw


def student(freedom: float) -> Callable[[torch.Generator, int], torch.Tensor]:
    def noise(generator: torch.Generator, n: int) -> torch.Tensor:
        normal = torch.randn(n, generator=generator, dtype=torch.float64)
        with torch.random.fork_rng():
            torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
            square = torch.distributions.Chi2(torch.tensor(freedom, dtype=torch.float64)).sample(
                (n,)
            )
        return normal / (square / freedom).sqrt()

    return noise


def logistic(seed: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    n = BATCHES * SIZE
    x, truth = (
        torch.randn(n, 10, generator=generator).double(),
        torch.randn(10, generator=generator).double(),
    )
    y = (x @ truth + torch.randn(n, generator=generator).double() > 0).double()
    model = Point(0.1 * torch.randn(10, generator=generator))
    objective = Objective(model, lambda m, b: F.binary_cross_entropy_with_logits(b[0] @ m.x, b[1]))
    batches = list(zip(x.view(BATCHES, SIZE, 10), y.view(BATCHES, SIZE), strict=True))
    return objective, batches, torch.optim.SGD(model.parameters(), lr=1e-3)


def batch_normalised(seed: int) -> Problem:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)
    ).train()
    objective = Objective(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    batches = [(torch.randn(16, 10), torch.randint(0, 3, (16,))) for _ in range(BATCHES)]
    return objective, batches, torch.optim.SGD(model.parameters(), lr=1e-2)


def rare_tokens(seed: int) -> Problem:
    """A language model with Zipf's words after 60 steps of AdamW; some measuring batches hold
    words never seen.
    """
    torch.manual_seed(seed)
    weights = 1.0 / torch.arange(1, 301) ** 1.2
    draws = torch.multinomial(weights, (BATCHES + 60) * 4 * 9, replacement=True).view(-1, 4, 9)
    model = nn.Sequential(nn.Embedding(300, 16), nn.Linear(16, 300))
    objective = Objective(
        model, lambda m, b: F.cross_entropy(m(b[:, :-1]).flatten(0, 1), b[:, 1:].flatten())
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in draws[BATCHES:]:
        optimizer.zero_grad()
        objective.value(batch).backward()
        optimizer.step()
    return objective, list(draws[:BATCHES]), optimizer


#: name -> (problem, assumption -> whether it must fail; assumptions not named have no known
#: answer).
FINE = {"variance": False, "smoothness": False, "edge": False}
PROBLEMS: dict[str, tuple[Callable[[int], Problem], dict[str, bool]]] = {
    "quadratic, narrow": (quadratic(-0.3), FINE),
    "quadratic, wide": (quadratic(-4.0), FINE),
    "logistic regression": (logistic, FINE),
    "|x|": (function(lambda g: (lambda x: x.abs().sum(), 1 + torch.rand(3, generator=g))), FINE),
    "exp(x)": (
        function(lambda g: (lambda x: x.exp().sum(), torch.rand(2, generator=g))),
        {**FINE, "smoothness": True},
    ),
    "x^4": (
        function(lambda g: (lambda x: (x**4).sum(), 1 + torch.rand(3, generator=g))),
        {**FINE, "smoothness": True},
    ),
    "regression, Gaussian": (regression(lambda g, n: torch.randn(n, generator=g).double()), FINE),
    "regression, Student 3": (regression(student(3.0)), FINE),
    "regression, Student 1.8": (regression(student(1.8)), {"smoothness": False, "edge": False}),
    "regression, Student 1.5": (regression(student(1.5)), {**FINE, "variance": True}),
    "regression, Student 1.3": (regression(student(1.3)), {**FINE, "variance": True}),
    "network with batch norm": (batch_normalised, {"variance": False, "edge": False}),
    "language model, rare tokens, AdamW": (rare_tokens, {"variance": False, "edge": False}),
}


def noise_norms(objective: Objective, batches: list[Any]) -> Any:
    """Norms of the minibatches' gradient noise: all gradients in one call where the model
    allows it.
    """
    if any(isinstance(m, nn.BatchNorm1d) for m in objective.model.modules()):
        return noise_sample(objective, batches, projections=0)
    named = {name: p.detach() for name, p in objective.model.named_parameters()}
    if isinstance(batches[0], tuple):
        stacked: Any = tuple(torch.stack(part) for part in zip(*batches, strict=True))
    else:
        stacked = torch.stack(batches)

    def loss(parameters: dict[str, torch.Tensor], batch: Any) -> torch.Tensor:
        return functional_call(
            Whole(objective), {f"model.{k}": v for k, v in parameters.items()}, (batch,)
        )

    gradients = vmap(grad(loss), in_dims=(None, 0))(named, stacked)
    flat = torch.cat([g.flatten(1) for g in gradients.values()], dim=1)
    return (flat - flat.mean(0)).norm(dim=1).numpy()


class Whole(nn.Module):
    """Model and loss as one module."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.model, self.loss = objective.model, objective.loss

    def forward(self, batch: Any) -> torch.Tensor:
        return self.loss(self.model, batch)


def answers(problem: Problem) -> dict[str, bool | None]:
    """What the survey's three judgements say."""
    objective, batches, optimizer = problem
    few = batches[:4]
    surveyor = _Surveyor(objective, _Budget(0.0, None, 0.0), seed=0)
    edge = sharpness(objective, few, optimizer=optimizer).stability
    return {
        "variance": infinite_variance(noise_norms(objective, batches)).infinite,
        "smoothness": surveyor.read_smoothness(few, 20)[-1].fails,
        "edge": None if edge is None else edge.ratio > 1,
    }


def main() -> None:
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    torch.set_num_threads(1)
    bad = []
    print(f"{draws} draws per problem\n{'problem':36s} {'assumption':11s} alarm refused  must")
    for name, (problem, must) in PROBLEMS.items():
        begin = time.process_time()
        said = [answers(problem(seed)) for seed in range(draws)]
        for what in ("variance", "smoothness", "edge"):
            alarm = sum(a[what] is True for a in said) / draws
            refused = sum(a[what] is None for a in said) / draws
            wanted = must.get(what)
            word = "-" if wanted is None else "fail" if wanted else "hold"
            print(f"{name:36s} {what:11s} {alarm:5.0%} {refused:7.0%}  {word}")
            if (wanted is False and alarm > 0.05) or (wanted is True and alarm < 0.5):
                bad.append(f"{name}: {what}")
        print(f"{'':36s} {(time.process_time() - begin) / draws:.2f} CPU s per draw", flush=True)
    print("outside the limits:", "; ".join(bad) or "nothing")


if __name__ == "__main__":
    main()
