"""When "nothing trains" is said: of dead networks and losses at chance, and of nothing else."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mindgap.advise import recommend
from mindgap.advise.candidates import BASELINE, Candidate, Scale
from mindgap.advise.race import Entry, Race
from mindgap.advise.training import (
    Problem,
    Progress,
    build,
    ignores_inputs,
    start_loss,
    train_until,
)


def net(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batched(*parts: Tensor) -> tuple[list, list]:
    """60 batches of 16 to train on, and 12 of 32 to validate with."""
    train = list(zip(*(part[:960].split(16) for part in parts), strict=True))
    return train, list(zip(*(part[960:1344].split(32) for part in parts), strict=True))


X = drawn(1344, 4)
#: Three classes that follow from the inputs, and the same without any relation to them.
CLASSES = X[:, :3].argmax(1)
UNBALANCED = (drawn(1344, seed=1) > 1.0).long()


def classify(model: nn.Module, batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def two_samples(model: nn.Module, batch) -> Tensor:
    """A loss without pairs: it tells one sample from another."""
    return (F.softplus(-model(batch[0])) + F.softplus(model(batch[1]))).mean()


def dead(*widths: int) -> nn.Sequential:
    """A network whose hidden units are zero for every input."""
    model = net(*widths)
    nn.init.constant_(model[0].bias, -100.0)
    return model


def ring(n: int) -> Tensor:
    angle = 6.3 * torch.rand(n, generator=torch.Generator().manual_seed(3))
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * drawn(n, 2, seed=4)


def energy(seed: int):
    """Points on a ring, told from a normal sample."""
    return ((net(2, 32, 32, 1), two_samples), *batched(ring(1344), drawn(1344, 2, seed=5)))


def unused_label(seed: int):
    """An autoencoder whose batches have labels that its loss does not read."""
    loss = lambda model, batch: (model(batch[0]) - batch[0]).square().mean()  # noqa: E731
    return ((net(4, 16, 4), loss), *batched(X, CLASSES))


def sampled(seed: int):
    """The same with noise in the loss, in validation too."""

    def loss(model: nn.Module, batch) -> Tensor:
        return (model(batch[0] + 0.2 * torch.randn_like(batch[0])) - batch[0]).square().mean()

    return ((net(4, 16, 4), loss), *batched(X, CLASSES))


def sorted_by_class(seed: int):
    """Validation batches that hold one class each: an input fits as well as another."""
    train, _ = batched(X, CLASSES)
    x, y = X[960:], CLASSES[960:]
    return (
        (net(4, 32, 3), classify),
        train,
        [(part, y[y == k][: len(part)]) for k in range(3) for part in x[y == k].split(40)],
    )


def goals(seed: int):
    """Journeys to goals from one distribution of starts: all rows have the same second tensor."""

    def loss(model: nn.Module, batch) -> Tensor:
        goal, start = batch
        return (1 - (torch.softmax(model(goal), 1) * (goal > 0)).sum(1) * start.sum(1)).mean()

    x = (drawn(1344, 4) > 0).float()
    train, _ = batched(x, torch.full((1344, 2), 0.5))
    return (net(4, 16, 4), loss), train, [(x[960:1000], torch.full((40, 2), 0.5))]


def dead_relu(seed: int):
    """The last bias learns how frequent the classes are, and nothing else can learn."""
    return ((dead(4, 32, 2), classify), *batched(X, UNBALANCED))


def zeroed_inputs(seed: int):
    """Inputs get lost on their way to the network."""
    loss = lambda model, batch: F.cross_entropy(model(0 * batch[0]), batch[1])  # noqa: E731
    return ((net(4, 32, 2), loss), *batched(X, UNBALANCED))


def label_first(seed: int):
    loss = lambda model, batch: F.cross_entropy(model(batch[1]), batch[0])  # noqa: E731
    return ((dead(4, 32, 2), loss), *batched(UNBALANCED, X))


def unrelated_labels(seed: int):
    """Labels in the wrong order: only their frequency can be learnt."""
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.weight)
    return ((model, classify), *batched(X, UNBALANCED))


def dead_energy(seed: int):
    """A loss without pairs, of a network that cannot tell the samples apart."""

    def loss(model: nn.Module, batch) -> Tensor:
        return two_samples(model, batch) + (model(batch[0]) - 1).square().mean()

    return ((dead(2, 32, 1), loss), *batched(ring(1344), drawn(1344, 2, seed=5)))


def trained(factory, steps: int = 300) -> tuple[Problem, float]:
    """A problem after some steps of AdamW, and the fall of its loss."""
    run = Progress()
    make = Candidate("AdamW", 1e-2, 1e-2).optimizer
    train_until(run, factory, make, seed=0, until=steps, total=steps)
    problem = build(factory, 0)
    assert run.state is not None
    problem.objective.model.load_state_dict(run.state["model"])
    return problem, start_loss(factory, 0) - run.scores[steps]


def inside(factory):
    """The same problem with a loss that calls the parts of the model instead of the model."""

    def made(seed: int):
        (model, loss), *batches = factory(seed)

        def parts(x: Tensor) -> Tensor:
            for part in model:
                x = part(x)
            return x

        return ((model, lambda model, batch: loss(parts, batch)), *batches)

    return made


@pytest.mark.parametrize(
    "factory", [energy, unused_label, sampled, sorted_by_class, goals, inside(energy)]
)
def test_a_model_that_trains_is_not_called_at_chance_whatever_its_loss_compares(factory) -> None:
    problem, fall = trained(factory)
    assert fall > 0.05
    assert not ignores_inputs(problem, fall)


@pytest.mark.parametrize(
    "factory",
    [dead_relu, zeroed_inputs, label_first, unrelated_labels, dead_energy, inside(dead_energy)],
)
def test_a_model_that_only_learns_how_frequent_targets_are_is_at_chance(factory) -> None:
    problem, fall = trained(factory)
    assert fall > 0.03
    assert ignores_inputs(problem, fall)


@pytest.mark.parametrize(("factory", "trains"), [(energy, True), (dead_relu, False)])
def test_the_sentence_says_nothing_trains_of_the_dead_one_only(factory, trains: bool) -> None:
    answer = recommend(factory, minutes=5, steps=192, measure=False)
    assert answer.sentence.startswith("Nothing trains") is not trains, answer.sentence
    assert bool(answer.code) is trains


@pytest.mark.parametrize(("loss", "flat"), [(0.985, False), (0.998, True), (1.01, True)])
def test_other_data_of_another_seed_do_not_hide_a_small_fall(loss: float, flat: bool) -> None:
    """The second seed begins and stays a tenth higher, and falls by as much."""
    race = Race(energy, total=96, scale=Scale(5))
    race.start, race._other_starts = 1.0, {1: 1.1}
    runs = {0: Progress(4, {4: 0.998}), 1: Progress(4, {4: 1.0965})}
    race._leaders = [Entry(BASELINE, runs)] * 2
    assert race.is_flat(loss) is flat
