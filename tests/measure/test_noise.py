"""Gradient noise and per-sample norms against their definitions and closed forms."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
import torch
from references import measure_noise as reference
from torch import nn
from torch.nn import functional as F

from mindgap.base.check import RuleError
from mindgap.base.objective import Objective
from mindgap.measure.gradients import NonFiniteError
from mindgap.measure.per_sample import per_sample_norms
from mindgap.measure.probes import noise
from mindgap.measure.probes.noise import noise_sample


class Point(nn.Module):
    """f(x; A, c) = x'Ax/2 - c'x: the gradient of a minibatch with offset c is Ax - c."""

    def __init__(self, x):
        super().__init__()
        self.x = nn.Parameter(x)


def quadratic(d=5, m=40):
    g = torch.Generator().manual_seed(2)
    x, c = torch.randn(d, generator=g).double(), torch.randn(m, d, generator=g).double()
    h = torch.linspace(1.0, 3.0, d).double()
    return (
        Objective(Point(x), lambda model, b: (h * model.x**2).sum() / 2 - b.mean(0) @ model.x),
        c,
        h * x,
    )


def test_noise_of_a_quadratic_is_exact():
    problem, c, hx = quadratic()
    sample = noise_sample(problem, list(c.unsqueeze(1)), by_layer=True)
    exact = (c - c.mean(0)).norm(dim=1).numpy()
    np.testing.assert_allclose(sample.norms, exact, rtol=1e-12)
    np.testing.assert_allclose(sample.layer_norms[:, 0], exact, rtol=1e-6)
    np.testing.assert_allclose(sample.mean_norm, float((hx - c.mean(0)).norm()), rtol=1e-12)
    np.testing.assert_allclose(sample.variance, float(c.var(0).sum()), rtol=1e-12)
    np.testing.assert_allclose(
        sample.dots, ((c.mean(0) - c) @ (hx - c.mean(0))).numpy(), rtol=1e-9, atol=1e-12
    )
    assert sample.coordinates.shape == (40, 5)
    np.testing.assert_allclose(np.linalg.norm(sample.coordinates, axis=1), exact, rtol=1e-6)


def small_network():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    data = [(torch.randn(3, 4).double(), torch.randint(0, 2, (3,))) for _ in range(11)]
    return model, (lambda m, b: F.cross_entropy(m(b[0]), b[1])), data


def test_corrections_of_the_norm_equal_the_sum_over_pairs_and_its_jackknife():
    model, loss, data = small_network()
    G = reference.gradient_matrix(model, loss, data)
    sample = noise_sample(Objective(model, loss), data)
    np.testing.assert_allclose(sample.norms, reference.noise_norms(G), rtol=1e-10)
    np.testing.assert_allclose(sample.squared_mean, reference.pairwise_squared_mean(G), rtol=1e-9)
    low, high = sample.squared_mean_interval(0.9)
    left = reference.leave_one_out(G).numpy()
    error = np.sqrt(10 / 11 * ((left - left.mean()) ** 2).sum())
    np.testing.assert_allclose(
        (high - low) / 2, 1.812461 * error, rtol=1e-5
    )  # t quantile, 10 degrees of freedom


def test_the_corrected_norm_is_unbiased_and_the_plain_one_is_not():
    """400 problems with known ‖∇f‖² = 1 and noise of variance 20 over 10 minibatches, within
    four standard errors.
    """
    g = torch.Generator().manual_seed(4)
    truth = torch.zeros(20).double()
    truth[0] = 1.0
    plain, corrected, covered = [], [], 0
    for _ in range(400):
        c = torch.randn(10, 20, generator=g).double() + truth
        problem = Objective(Point(torch.zeros(20).double()), lambda m, b: b.mean(0) @ m.x)
        sample = noise_sample(problem, list(c.unsqueeze(1)), projections=0, coordinates=0)
        plain.append(sample.mean_norm**2)
        corrected.append(sample.squared_mean)
        low, high = sample.squared_mean_interval(0.9)
        covered += low <= 1.0 <= high
    error = np.std(corrected) / np.sqrt(len(corrected))
    assert abs(np.mean(corrected) - 1.0) < 4 * error
    assert np.mean(plain) > 2.5  # 1 + 20/10 in expectation
    assert 0.83 <= covered / 400 <= 0.97


def test_sketch_has_unbiased_inner_products_and_does_not_depend_on_the_chunks(monkeypatch):
    monkeypatch.setattr(noise, "CHUNK", 16)
    d = 50
    a, b = torch.randn(d).double(), torch.randn(d).double()
    products = []
    for seed in range(400):
        sketch = noise.Sketch([a], 8, 3, seed)
        pa, pb, picked = np.empty(8, np.float32), np.empty(8, np.float32), np.empty(3, np.float32)
        zero = [torch.zeros(len(piece)).double() for piece in noise.chunks([a])]
        norm, _ = sketch.read([a], zero, pa, picked)
        sketch.read([b], zero, pb, picked)
        products.append(float(pa @ pb))
        assert norm == pytest.approx(float(a.norm()), rel=1e-12)
    assert abs(np.mean(products) - float(a @ b)) < 4 * np.std(products) / 20
    whole = noise.Sketch([a, b, a], 4, 60, 0)
    out = np.empty((2, 4), np.float32), np.empty((2, 60), np.float32)
    grads = [a, b, 2 * a]
    mean = [m.clone() for m in noise.chunks([0 * a, 0 * b, 0 * a])]
    whole.read(grads, mean, out[0][0], out[1][0])
    flat = torch.cat(grads).numpy()
    assert set(np.float32(flat)) >= set(out[1][0])
    assert np.bincount(whole.layer, minlength=3).sum() == 60
    for value, layer in zip(out[1][0], whole.layer, strict=True):
        assert np.isclose(grads[layer].numpy(), value, rtol=1e-6).any()


def test_layer_norms_add_up_across_chunks(monkeypatch):
    monkeypatch.setattr(noise, "CHUNK", 7)
    model, loss, data = small_network()
    sample = noise_sample(Objective(model, loss), data, by_layer=True)
    G = reference.gradient_matrix(model, loss, data)
    np.testing.assert_allclose(sample.norms, reference.noise_norms(G), rtol=1e-10)
    np.testing.assert_allclose(
        np.sqrt((sample.layer_norms.astype(float) ** 2).sum(1)), sample.norms, rtol=1e-6
    )
    n = (G - G.mean(0)).numpy()
    np.testing.assert_allclose(
        sample.layer_norms[:, 1], np.linalg.norm(n[:, 24:30], axis=1), rtol=1e-5
    )


def test_a_short_last_batch_is_left_out_and_one_batch_is_an_error():
    model, loss, data = small_network()
    short = (torch.randn(1, 4).double(), torch.tensor([0]))
    with_short = noise_sample(Objective(model, loss), [*data, short])
    assert with_short.left_out == 1
    np.testing.assert_array_equal(
        with_short.norms, noise_sample(Objective(model, loss), data).norms
    )
    with pytest.raises(
        RuleError, match="batches must give at least two batches of one size, got '1'"
    ):
        noise_sample(Objective(model, loss), [data[0], short])


def test_batch_norm_and_dropout_in_training_mode_give_the_noise_of_training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).double().train()
    _, loss, data = small_network()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    sample = noise_sample(Objective(model, loss), data)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    np.testing.assert_allclose(
        sample.norms, reference.noise_norms(reference.gradient_matrix(model, loss, data)), rtol=1e-9
    )
    dropped = Objective(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)).double(), loss)
    assert np.array_equal(
        noise_sample(dropped, data, seed=1).norms, noise_sample(dropped, data, seed=1).norms
    )
    assert not np.array_equal(
        noise_sample(dropped, data, seed=1).norms, noise_sample(dropped, data, seed=2).norms
    )


def test_memory_does_not_grow_with_the_number_of_minibatches():
    """Python-side growth from 100 to 2,000 minibatches: the kept numbers, well under a kilobyte
    each.
    """

    class Many:
        def __init__(self, m):
            self.m = m

        def __iter__(self):
            return (torch.full((2, 3), float(i)).double() for i in range(self.m))

    problem = Objective(nn.Linear(3, 1).double(), lambda m, b: m(b).square().mean())

    def peak(m):
        gc.collect()
        tracemalloc.start()
        noise_sample(problem, Many(m))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(10)
    assert peak(2000) - peak(100) < 1900 * 1000


def test_gradients_of_a_list_are_computed_once_and_give_the_same_bits(monkeypatch):
    model, loss, data = small_network()
    calls = []

    def counted(m, batch):
        calls.append(1)
        return loss(m, batch)

    once = noise_sample(Objective(model, counted), data, by_layer=True)
    assert len(calls) == len(data)
    monkeypatch.setattr(noise, "KEPT", 0)
    calls.clear()
    twice = noise_sample(Objective(model, counted), data, by_layer=True)
    assert len(calls) == 2 * len(data)
    for name, value in vars(twice).items():
        np.testing.assert_array_equal(getattr(once, name), value)


class Tangle(nn.Module):
    """All structural layers, in-place activations, attention through linear layers, and one
    free parameter.
    """

    def __init__(self, tied=False):
        super().__init__()
        self.table = nn.Embedding(9, 6, padding_idx=0)
        self.places = nn.Embedding(8, 6)
        self.offset = nn.Parameter(torch.randn(1, 5, 6))
        self.shift = nn.Parameter(torch.randn(6))
        self.norm = nn.LayerNorm(6)
        self.mix = nn.Linear(6, 6)
        self.conv1 = nn.Conv1d(6, 8, 3, stride=2, padding=1, groups=2)
        self.conv2 = nn.Conv2d(1, 3, (3, 2), stride=(1, 2), padding=(1, 0), dilation=(2, 1))
        self.bn = nn.BatchNorm2d(3).eval()
        self.scale = nn.Parameter(torch.tensor(1.3))
        self.out = nn.Linear(6, 9, bias=False)
        self.tied = tied

    def forward(self, tokens):
        h = self.table(tokens) + self.places(torch.arange(5) % 3) + self.offset
        h = self.norm(h) + self.shift
        h = h + F.relu(self.mix(h), inplace=True) * self.scale
        a = F.relu(self.conv1(h.transpose(1, 2)), inplace=True).sum((1, 2))
        b = self.bn(self.conv2(h.unsqueeze(1))).tanh().sum((1, 2, 3))
        logits = F.linear(h, self.table.weight) if self.tied else self.out(h)
        return logits, a + b


def tangle_loss(model, batch):
    logits, extra = model(batch["tokens"])
    return (
        F.cross_entropy(logits.flatten(0, 1), batch["next"].flatten())
        + 0.1 * (extra - batch["y"]).square().mean()
    )


def tangle_batch(n=7):
    g = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 9, (n, 5), generator=g)
    return {
        "tokens": tokens,
        "next": torch.randint(0, 9, (n, 5), generator=g),
        "y": torch.randn(n, generator=g).double(),
    }


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("method", ["structure", "func", "loop"])
def test_per_sample_norms_of_every_layer_equal_the_definition(method, tied):
    torch.manual_seed(6)
    model, batch = Tangle(tied).double(), tangle_batch()
    truth = reference.per_sample_norms(
        model, tangle_loss, lambda i: {k: v[i : i + 1] for k, v in batch.items()}, 7
    )
    found = per_sample_norms(Objective(model, tangle_loss), batch, method=method)
    np.testing.assert_allclose(found.norms, truth.detach(), rtol=1e-9)
    if method == "structure":
        free = 1 + (
            54 + 54 if tied else 0
        )  # the free scale; a tied table is left to torch.func, the idle output too
        total = sum(p.numel() for p in model.parameters())
        assert found.method == "structure+func"
        assert found.by_structure == pytest.approx(1 - free / total)


@pytest.mark.parametrize(
    ("length", "p", "q"),
    [(1, 3, 4), (2, 9, 8), (30, 3, 2)],
    ids=["one position", "Gram matrices", "products"],
)
def test_both_ways_of_squaring_a_product_agree(length, p, q, monkeypatch):
    from mindgap.measure import layer_norms

    a, b = torch.randn(5, length, p).double(), torch.randn(5, length, q).double()
    truth = torch.stack([(y.T @ x).square().sum() for x, y in zip(a, b, strict=True)])
    torch.testing.assert_close(
        layer_norms.squared_norms_of_products(a, b), truth, rtol=1e-12, atol=0
    )
    monkeypatch.setattr(layer_norms, "LARGEST_ARRAY", 10)
    torch.testing.assert_close(
        layer_norms.squared_norms_of_products(a, b), truth, rtol=1e-12, atol=0
    )


def test_recurrent_and_attention_modules_fall_back():
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
            self.rnn = nn.LSTM(4, 3, batch_first=True)
            self.out = nn.Linear(3, 1)

        def forward(self, x):
            return self.out(self.rnn(self.attend(x, x, x)[0])[0][:, -1])

    torch.manual_seed(7)
    model, x = Sequence().double(), torch.randn(4, 3, 4).double()
    loss = lambda m, b: m(b).square().mean()  # noqa: E731
    truth = reference.per_sample_norms(model, loss, lambda i: x[i : i + 1], 4)
    found = per_sample_norms(Objective(model, loss), x)
    np.testing.assert_allclose(found.norms, truth.detach(), rtol=1e-9)
    assert 0 < found.by_structure < 0.1
    assert found.method in ("structure+func", "structure+loop")


def test_a_loss_that_couples_samples_is_noticed():
    torch.manual_seed(8)
    model, x = nn.Linear(3, 1).double(), torch.randn(5, 3).double()
    summed = Objective(model, lambda m, b: m(b).square().sum())
    with pytest.raises(RuleError, match="loss must be a mean over samples on the first axis"):
        per_sample_norms(summed, x, method="structure")
    auto = per_sample_norms(summed, x)
    truth = reference.per_sample_norms(model, summed.loss, lambda i: x[i : i + 1], 5)
    assert auto.method == "func"
    np.testing.assert_allclose(auto.norms, truth.detach(), rtol=1e-12)


def test_per_sample_refusals():
    x = torch.randn(4, 3)
    norm = Objective(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), lambda m, b: m(b).mean())
    with pytest.raises(RuleError, match="model must not hold batch norm in training mode"):
        per_sample_norms(norm, x)
    linear = Objective(nn.Linear(3, 1), lambda m, b: m(b[0]).mean())
    with pytest.raises(
        RuleError, match="batch must hold tensors with the samples on their first axis"
    ):
        per_sample_norms(linear, (x, torch.zeros(3)))
    nan = Objective(nn.Linear(3, 1), lambda m, b: m(b).mean() * float("nan"))
    with pytest.raises(NonFiniteError, match="loss must be finite, got nan"):
        per_sample_norms(nan, x)


def test_dropout_uses_one_mask_a_sample_and_leaves_the_random_state():
    torch.manual_seed(9)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(30, 1, bias=False)).double()
    state = torch.get_rng_state()
    norms = per_sample_norms(
        Objective(model, lambda m, b: m(b).mean()), torch.ones(200, 30).double()
    ).norms
    assert torch.equal(torch.get_rng_state(), state)
    kept = norms**2 / 4  # each kept input counts 2² = 4
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-9)
    assert abs(kept.mean() - 15) < 4 * np.sqrt(30 / 4 / 200)
