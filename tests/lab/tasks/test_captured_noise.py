"""The noise of a network on a device equals what plain gradients give, and the papers' networks
are what they say.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mindgap.base.check import RuleError
from mindgap.base.objective import Objective
from mindgap.base.rng import torch_stream
from mindgap.lab.tasks.models import MaskedBert
from mindgap.lab.tasks.problems import papers, word_pieces
from mindgap.lab.tasks.problems.training import TrainingProblem
from mindgap.measure import captured_noise as module
from mindgap.measure.captured_noise import captured_noise

#: Neither one at a time instead, nor an operation that torch.func runs one by one.
IN_ONE_PASS = pytest.mark.filterwarnings(
    "error:.*in one pass failed", "error:There is a performance drop"
)
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")),
]


class Scale(nn.Module):
    """A product with a parameter that is a single number, without axes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


def problem_on(device: str, norm: type[nn.Module] = nn.BatchNorm1d) -> TrainingProblem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), norm(6), nn.Tanh(), nn.Linear(6, 1)).to(device)

    def draw(generator: torch.Generator, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(size, 5, generator=generator, device=device)
        return x, x[:, :1] ** 3

    return TrainingProblem(Objective(model, lambda m, b: (m(b[0]) - b[1]).square().mean()), draw, 1)


@IN_ONE_PASS
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("together", "norm"),
    [
        (None, nn.BatchNorm1d),
        (1, nn.LayerNorm),
        (3, nn.LayerNorm),
        (None, nn.LayerNorm),
        (1, Scale),
        (3, Scale),
    ],
)
def test_norms_and_coordinates_equal_those_of_plain_gradients(together, norm, device, monkeypatch):
    """Groups of 3 minibatches and of 32 are filled up at the end of each draw of 7."""
    monkeypatch.setattr(module, "DRAWN", 7)
    problem = problem_on(device, norm)
    before = [b.clone() for b in problem.objective.model.buffers()]
    marks = [torch.full_like(p, 3.0) for p in problem.objective.parameters]
    for p, mark in zip(problem.objective.parameters, marks):
        p.grad = mark
    noise = captured_noise(
        problem.objective,
        problem.draw,
        torch_stream(1, "noise", device=device),
        minibatches=20,
        reference=10,
        batch=4,
        coordinates=9,
        seed=2,
        together=together,
    )
    assert all(p.grad is mark for p, mark in zip(problem.objective.parameters, marks))
    assert all(torch.equal(a, b) for a, b in zip(problem.objective.model.buffers(), before))
    generator, gradients, losses = torch_stream(1, "noise", device=device), [], []
    for count in (7, 3, 7, 7, 6):  # as the parts are drawn
        x, y = problem.draw(generator, 4 * count)
        for batch in zip(x.split(4), y.split(4)):
            value = problem.objective.value(batch)
            losses.append(float(value.detach()))
            parts = torch.autograd.grad(value, problem.objective.parameters)
            gradients.append(torch.cat([part.reshape(-1) for part in parts]))
    mean = torch.stack(gradients[:10]).mean(0)
    wanted = torch.stack(gradients[10:]) - mean
    assert noise.norms == pytest.approx(wanted.norm(dim=1).cpu().numpy(), rel=1e-4)
    assert noise.loss == pytest.approx(np.mean(losses[10:]), rel=1e-5)
    assert noise.coordinates.shape == (20, len(noise.coordinate_layer))
    ends = np.cumsum([p.numel() for p in problem.objective.parameters])
    for values, layer in zip(noise.coordinates.T, noise.coordinate_layer, strict=True):
        same = np.isclose(wanted.cpu().numpy(), values[:, None], rtol=1e-3, atol=1e-5).all(0)
        assert layer in np.searchsorted(ends, np.flatnonzero(same), side="right")


def dropped(device: str = "cpu") -> TrainingProblem:
    """The gradient is the mean of eight independent numbers, 0 or 2 with equal chances."""
    model = nn.Linear(1, 1, bias=False).to(device)

    def draw(generator: torch.Generator, size: int) -> tuple[torch.Tensor, ...]:
        return (torch.ones(size, 1, device=device),)

    def loss(m: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return (m.weight * F.dropout(batch[0], 0.5)).mean()

    return TrainingProblem(Objective(model, loss), draw, 1)


@IN_ONE_PASS
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("together", [1, 32])
def test_every_minibatch_has_dropout_of_its_own(together, device):
    """Within a group and from group to group: the variance is 1/8, and the law of the norm is
    binomial.
    """
    problem = dropped(device)
    torch.manual_seed(0)
    noise = captured_noise(
        problem.objective,
        problem.draw,
        torch_stream(0, "noise", device=device),
        minibatches=1600,
        reference=1600,
        batch=8,
        coordinates=1,
        together=together,
    )
    assert noise.variance == pytest.approx(1 / 8, rel=0.15)
    groups = noise.coordinates[:, 0].reshape(-1, 32)
    wanted = pytest.approx(np.sqrt(1 / 8), rel=0.15)
    assert groups.std(axis=1).mean() == wanted  # between the minibatches of a group
    assert groups.std(axis=0).mean() == wanted  # between the groups


def test_a_model_that_takes_one_minibatch_only_is_measured_with_a_warning(monkeypatch):
    problem = problem_on("cpu", nn.LayerNorm)
    plain = problem.objective.loss

    def loss(m: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return plain(m, batch) if float(batch[0].sum()) < 1e9 else batch[0].sum()

    def measured(loss, **more):
        return captured_noise(
            Objective(problem.objective.model, loss),
            problem.draw,
            torch_stream(1, "noise"),
            minibatches=9,
            reference=4,
            batch=4,
            **more,
        ).norms

    wanted = measured(plain, together=1)
    with pytest.warns(UserWarning, match="4 minibatches in one pass failed, so they are taken one"):
        assert measured(loss, together=4).tolist() == wanted.tolist()
    monkeypatch.setenv(module.TOGETHER, "8")
    with pytest.warns(UserWarning, match="2 minibatches in one pass failed"):
        measured(loss)
    monkeypatch.setenv(module.TOGETHER, "0.5")
    with pytest.raises(RuleError, match="MINDGAP_TOGETHER must be a whole number of at least 1"):
        measured(plain)


@pytest.mark.parametrize(
    ("model", "batch", "size"),
    [
        (nn.Linear(2, 2), 1, 64),
        (nn.Linear(2, 2), 32, 4),
        (nn.Linear(2, 2), 50, 2),
        (nn.Linear(2, 2), 500, 1),
        (nn.Linear(2**12, 2**13, device="meta"), 1, 16),
        (nn.Linear(2**16, 2**16, device="meta"), 1, 1),
        (nn.BatchNorm1d(2), 1, 1),
        (nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten()), 1, 1),
        (nn.LSTM(2, 2), 1, 1),
    ],
)
def test_a_group_is_as_large_as_work_and_memory_allow(model, batch, size):
    assert module._group_size(Objective(model, lambda m, b: m(b[0]).mean()), batch) == size


def test_the_variance_is_that_of_one_minibatch():
    """Gaussian gradients in ten dimensions around the mean of five others; a plain mean of
    squares would be 12.
    """
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((5000, 10)) - rng.standard_normal((5000, 5, 10)).mean(1)
    norms, none = np.linalg.norm(noise, axis=1), np.zeros(0)
    assert module.HeldOutNoise(norms, none, none, 0.0, reference=5).variance == pytest.approx(
        10, rel=0.05
    )


@pytest.fixture
def text(monkeypatch):
    pieces = np.random.default_rng(0).integers(5, 50, 4000).astype(np.int32)
    monkeypatch.setattr(papers, "wikitext_pieces", lambda size: {"train": pieces})
    return torch.tensor(pieces).long()


def test_masked_pieces_are_the_answers(text):
    problem = papers.masked_bert(words=50, width=8, layers=1, length=20)
    inputs, places, answers = problem.draw(torch.Generator().manual_seed(0), 2000)
    assert places.shape == (2000, 3)  # 15 % of 20
    assert all(len(set(row)) == 3 for row in places[:50].tolist())
    restored = inputs.scatter(1, places, answers)
    windows = text.unfold(0, 20, 1)
    assert all((windows == row).all(1).any() for row in restored[:50])
    put = inputs.take_along_dim(places, dim=1)
    assert float((put == 4).double().mean()) == pytest.approx(0.8, abs=0.02)  # [MASK]
    assert float((put == answers).double().mean()) == pytest.approx(0.1 + 0.1 / 45, abs=0.02)
    assert int(put.min()) >= 4
    loss = problem.objective.value((inputs, places, answers))
    assert float(loss.detach()) == pytest.approx(np.log(50), rel=0.1)


def test_the_loss_of_padded_pieces_is_the_mean_over_the_wanted_ones(monkeypatch):
    """The literal sum, where the places computed are fewer than all; NaN where they are too
    few.
    """
    torch.manual_seed(0)
    model = MaskedBert(words=50, width=8, layers=1, heads=2, inner=16, length=20, dropout=0.0)
    batch = word_pieces.padded_pieces(torch.randint(5, 50, (20, 20)), 50, torch.default_generator)
    inputs, answers, wanted, seen = batch
    scores = model(inputs, None, seen).log_softmax(-1)
    terms = [-scores[i, j, answers[i, j]] for i in range(20) for j in range(20) if wanted[i, j]]
    assert len(terms) == int(wanted.sum()) < word_pieces._most_masked(20, 20) < 400
    loss, literal = word_pieces.padded_loss(model, *batch), torch.stack(terms).mean()
    assert float(loss.detach()) == pytest.approx(float(literal.detach()), rel=1e-5)
    weight = model.encoder.blocks[0].triple.weight
    ours, theirs = (torch.autograd.grad(value, weight)[0] for value in (loss, literal))
    assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-7)
    monkeypatch.setattr(word_pieces, "_most_masked", lambda *_: int(wanted.sum()) - 1)
    loss = word_pieces.padded_loss(model, *batch)
    assert loss.isnan()
    assert torch.autograd.grad(loss, weight)[0].isnan().all()


@pytest.mark.parametrize("attention", [True, False])
def test_gaussian_input_has_the_scale_of_a_word(text, attention):
    problem = papers.masked_bert(
        words=50, width=64, layers=2, length=20, attention=attention, gaussian=True
    )
    vectors, _, answers = problem.draw(torch.Generator().manual_seed(0), 100)
    word = papers.masked_bert(words=50, width=64, layers=2, length=20).objective.model.encoder.words
    assert float(vectors.std()) == pytest.approx(float(word.weight.detach().std()), rel=0.05)
    assert float(problem.objective.model.out.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    assert answers.min() >= 5
    noise = captured_noise(
        problem.objective,
        problem.draw,
        torch_stream(0, "noise"),
        minibatches=4,
        reference=2,
        batch=2,
    )
    assert (noise.norms > 0).all()


@IN_ONE_PASS
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("attention", [False, True])
def test_bert_side_by_side_equals_bert_one_at_a_time(
    text, attention, gaussian, real, device, monkeypatch
):
    """With tied and untied output, drawn masks and padding; groups of four with a short last one.
    Here without dropout, whose random numbers differ.
    """
    monkeypatch.setattr(papers, "DROPOUT", 0.0)
    monkeypatch.setattr(module, "DRAWN", 8)
    monkeypatch.setattr(module, "LARGE", 400)
    problem = papers.masked_bert(
        device,
        words=50,
        width=16,
        layers=2,
        length=12,
        attention=attention,
        gaussian=gaussian,
        real=real,
    )
    alone, grouped = (
        captured_noise(
            problem.objective,
            problem.draw,
            torch_stream(0, "noise", device=device),
            minibatches=14,
            reference=6,
            batch=3,
            coordinates=40,
            together=together,
        )
        for together in (1, 4)
    )
    assert grouped.norms == pytest.approx(alone.norms, rel=1e-4)
    assert grouped.loss == pytest.approx(alone.loss, rel=1e-5)
    assert grouped.coordinates == pytest.approx(alone.coordinates, rel=1e-3, abs=1e-5)
    assert grouped.coordinate_layer.tolist() == alone.coordinate_layer.tolist()
    assert all(p.grad is None for p in problem.objective.parameters)


def test_resnet20_sees_the_training_images(monkeypatch):
    images, labels = torch.randn(30, 3, 32, 32), torch.randint(10, (30,))
    monkeypatch.setattr(papers, "cifar_on", lambda device: {"train": (images, labels)})
    problem = papers.image_network("resnet20")
    x, y = problem.draw(torch.Generator().manual_seed(0), 6)
    places = [int((images == one).flatten(1).all(1).nonzero()) for one in x]
    assert y.tolist() == labels[places].tolist()
    assert sum(p.numel() for p in problem.objective.parameters) == 269_722
