"""Lemma 6.4.5, Theorems 6.4.6, 6.4.7 and 6.5.1: losses, compact sets and small steps of a
network.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from mindgap.base.check import RuleError
from mindgap.base.rng import torch_stream
from mindgap.lab.theory import (
    CROSS_ENTROPY_LIPSCHITZ,
    BoundedValues,
    DecayedBatchNorm,
    DecayedNetwork,
    InvariantDistribution,
    Network,
    cross_entropy,
    cross_entropy_bound,
    one_step_change,
    one_step_change_bound,
)

SEEDS = 20


def _decayed_step(net, theta, x, y, eta, gamma):
    """W <- (1 - ηγ) W - η ∂L_B/∂W for every parameter (SGD with weight decay, 6.7.5)."""
    _, gradients = net.gradient(theta, x, y)
    return [(1 - eta * gamma) * t - eta * g for t, g in zip(theta, gradients)]


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("spread", [0.0, 0.5, 5.0, 40.0])
def test_cross_entropy_is_bounded_by_its_spread(classes, spread):
    g = torch_stream(0, "scores")
    x = torch.rand(10_000, classes, generator=g, dtype=torch.float64) * spread + 7
    y = torch.randint(classes, (10_000,), generator=g)
    loss = cross_entropy(x, y)
    assert (loss >= 0).all()
    assert (loss <= cross_entropy_bound(spread, classes) + 1e-12).all()
    worst = torch.full((classes,), spread, dtype=torch.float64)
    worst[0] = 0.0
    peak = float(cross_entropy(worst, torch.tensor(0)))
    assert peak == pytest.approx(math.log1p((classes - 1) * math.exp(spread)), rel=1e-12)
    assert (
        cross_entropy_bound(spread, classes) / 2
        < peak
        <= cross_entropy_bound(spread, classes) + 1e-12
    )


def test_cross_entropy_agrees_with_torch_and_the_printed_sign_is_reversed():
    g = torch_stream(0, "scores")
    x, y = (
        torch.randn(500, 7, generator=g, dtype=torch.float64),
        torch.randint(7, (500,), generator=g),
    )
    ours = cross_entropy(x, y)
    torch.testing.assert_close(
        ours, torch.nn.functional.cross_entropy(x, y, reduction="none"), rtol=1e-12, atol=0
    )
    printed = x.gather(1, y[:, None])[:, 0] - torch.logsumexp(x, 1)
    assert (printed <= 0).all()  # minimising (6.9) as printed would drive the right class down
    torch.testing.assert_close(printed, -ours, rtol=1e-12, atol=0)


def test_cross_entropy_is_root_two_lipschitz_and_no_less():
    g = torch_stream(0, "scores")
    x = (10 * torch.randn(10_000, 5, generator=g, dtype=torch.float64)).requires_grad_()
    y = torch.randint(5, (10_000,), generator=g)
    (gradient,) = torch.autograd.grad(cross_entropy(x, y).sum(), x)
    norms = gradient.norm(dim=1)
    assert norms.max() <= CROSS_ENTROPY_LIPSCHITZ
    assert norms.max() > 0.99 * CROSS_ENTROPY_LIPSCHITZ
    assert norms.max() > CROSS_ENTROPY_LIPSCHITZ / 2
    one_hot = torch.nn.functional.one_hot(y, 5)
    torch.testing.assert_close(
        gradient, torch.softmax(x.detach(), 1) - one_hot, rtol=1e-10, atol=1e-14
    )


def test_estimated_noise_is_too_small_not_too_large():
    """6.6.2 says that estimated norms are larger, by Jensen: the gradient's is, the noise has
    its own batch mean.
    """
    gradients = np.array([[0.0, 1.0], [2.0, -1.0], [5.0, 0.0], [-3.0, 0.5]])

    def noise(rows):
        return math.sqrt(((rows - rows.mean(0)) ** 2).sum(1).mean())

    batches = [
        gradients[list(pick)] for pick in itertools.combinations(range(4), 2)
    ]  # every batch of two
    assert np.mean([np.linalg.norm(b.mean(0)) for b in batches]) > np.linalg.norm(gradients.mean(0))
    assert np.mean([noise(b) for b in batches]) < noise(gradients)


def _data(copies: int, samples: int, dimension: int, classes: int, name: str):
    g = torch_stream(0, name)
    x = torch.randn(copies, samples, dimension, generator=g, dtype=torch.float64)
    y = torch.randint(classes, (copies, samples), generator=g)
    return x / x.norm(dim=2, keepdim=True).clamp(min=1.0), y, g


@pytest.mark.parametrize("activation", ["tanh", "relu", "identity"])
@pytest.mark.parametrize(
    ("layers", "gamma", "eta_share"), [(3, 0.2, 1.0), (3, 2.0, 0.3), (4, 0.5, 1.0), (6, 1.0, 0.1)]
)
def test_weights_stay_in_the_compact_set(activation, layers, gamma, eta_share):
    rule = DecayedNetwork(layers, gamma)
    net = Network((4, *[5] * (layers - 1), 3), activation)
    x, y, g = _data(SEEDS, 64, 4, 3, "compact set")
    theta = net.start(SEEDS, rule.radius, g)
    for _ in range(60):
        batch = torch.randint(64, (8,), generator=g)
        norms = torch.stack(
            [
                torch.linalg.matrix_norm(w, ord=2)
                for w in net.gradient(theta, x[:, batch], y[:, batch])[1]
            ],
            dim=1,
        )
        # c_ℓ c_σ (w c_σ)^(L-1), which is γw at w = the radius, bounds the gradient
        assert norms.max() <= rule.c_ell * rule.radius ** (layers - 1) * (1 + 1e-12)
        theta = _decayed_step(net, theta, x[:, batch], y[:, batch], eta_share / gamma, gamma)
        assert net.operator_norms(theta).max() <= rule.radius * (1 + 1e-12)
        assert net.scores(theta, x).norm(dim=2).max() <= rule.output_bound(rule.radius) * (
            1 + 1e-12
        )
        assert net.loss(theta, x, y).max() <= rule.loss_bound(3)
    assert rule.c_ell * rule.radius ** (layers - 1) == pytest.approx(gamma * rule.radius, rel=1e-12)


def test_one_step_change_of_the_loss_of_a_decayed_network():
    """Theorem 6.4.6's conclusion with Theorem 6.4.1's constants; the mean over the sample is an
    exact sum.
    """
    rule, samples, steps = DecayedNetwork(3, 1.5), 6, 150
    net = Network((4, 4, 4, 3), "relu")
    x, y, g = _data(1, samples, 4, 3, "one step change")
    full = {n: (x.expand(n, -1, -1), y.expand(n, -1)) for n in (SEEDS, SEEDS * samples)}
    theta = net.start(SEEDS, rule.radius, g)
    values, expected = [], []
    for _ in range(steps):
        pick = torch.randint(samples, (SEEDS, 1), generator=g)
        theta = _decayed_step(net, theta, x[0][pick], y[0][pick], 0.3 / rule.gamma, rule.gamma)
        wide = [t.repeat_interleave(samples, 0) for t in theta]
        one_x, one_y = x[0].repeat(SEEDS, 1)[:, None], y[0].repeat(SEEDS)[:, None]
        moved = _decayed_step(net, wide, one_x, one_y, 0.3 / rule.gamma, rule.gamma)
        values.append(net.loss(theta, *full[SEEDS]))
        expected.append(net.loss(moved, *full[SEEDS * samples]).view(SEEDS, samples).mean(dim=1))
    change = one_step_change(torch.stack(values, 1).numpy(), torch.stack(expected, 1).numpy())
    constants = BoundedValues(rule.loss_bound(3), 0.05)
    for n in (1, 10, steps):
        assert np.mean(change[:, n - 1] > one_step_change_bound(constants, n)) <= 0.05


@pytest.mark.parametrize(("radius_factor", "step_factor"), [(4.0, 1.0), (1.0, 2.2)])
def test_wrong_radius_or_step_leaves_the_set(radius_factor, step_factor):
    rule = DecayedNetwork(3, 1.0)
    net = Network((3, 3, 3, 3), "identity")
    x, y, g = _data(SEEDS, 16, 3, 3, "leave")
    y[:] = 0
    theta = net.start(SEEDS, radius_factor * rule.radius, g)
    inside = True
    for _ in range(30):
        theta = _decayed_step(net, theta, x, y, step_factor / rule.gamma, rule.gamma)
        inside = inside and bool(
            net.operator_norms(theta).max() <= radius_factor * rule.radius * (1 + 1e-12)
        )
    assert not inside


def test_last_line_of_6_7_5_lost_the_loss_lipschitz_constant():
    rule = DecayedNetwork(3, 3.0)
    net = Network((2, 2, 2, 2), "identity")
    eye = torch.eye(2, dtype=torch.float64)[None] * rule.radius
    direction = torch.tensor([[[-1.0, 1.0]]], dtype=torch.float64) / math.sqrt(2)
    loss = float(net.loss([eye, eye, eye], direction, torch.zeros(1, 1, dtype=torch.long)))
    assert rule.printed_loss_bound(2) < loss <= rule.loss_bound(2)


@pytest.mark.parametrize(("batch", "gamma"), [(2, 0.5), (8, 0.1), (8, 2.0), (32, 1.0)])
def test_batch_norm_scale_shift_and_loss_stay_bounded(batch, gamma):
    rule = DecayedBatchNorm(batch, gamma)
    net = Network((4, 6, 3), batch_norm=True)
    x, y, g = _data(SEEDS, 64, 4, 3, "batch norm")
    theta = net.start(SEEDS, 1.0, g, scale=rule.scale_bound)
    theta[-1] = theta[-1] + rule.shift_bound
    for _ in range(60):
        pick = torch.randint(64, (batch,), generator=g)
        assert net.loss(theta, x[:, pick], y[:, pick]).max() <= rule.loss_bound(3)
        theta = _decayed_step(net, theta, x[:, pick], y[:, pick], 1 / gamma, gamma)
        assert theta[-2].abs().max() <= rule.scale_bound * (1 + 1e-12)
        assert theta[-1].abs().max() <= rule.shift_bound * (1 + 1e-12)


def test_batch_norm_step_twice_too_long_leaves_the_set():
    rule = DecayedBatchNorm(8, 1.0)
    net = Network((4, 6, 3), batch_norm=True)
    x, y, g = _data(SEEDS, 64, 4, 3, "batch norm")
    theta = net.start(SEEDS, 1.0, g, scale=rule.scale_bound)
    largest = 0.0
    for _ in range(60):
        theta = _decayed_step(net, theta, x[:, :8], y[:, :8], 2.05 / rule.gamma, 1.0)
        largest = max(largest, float(theta[-2].abs().max()))
    assert largest > rule.scale_bound


def test_6_7_6_needs_no_bound_of_a_common_shift():
    rule = DecayedBatchNorm(4, 2.0)
    net = Network((2, 2), batch_norm=True)
    x, y, g = _data(1, 4, 2, 2, "shift")
    theta = net.start(1, 1.0, g, scale=rule.scale_bound)
    # One shift for all classes, as the sum over k in ∂L/∂a_L implies: it cancels in softmax.
    theta[-1] = torch.full_like(theta[-1], -1e6)
    assert float(net.loss(theta, x, torch.ones_like(y))) <= rule.printed_loss_bound(2)
    # One shift per class must be bounded.
    theta[-1] = torch.tensor([[[1e3, 0.0]]], dtype=torch.float64)
    loss = float(net.loss(theta, x, torch.ones_like(y)))
    assert loss > rule.printed_loss_bound(2)
    assert loss > rule.loss_bound(
        2
    )  # the start violates |b| <= 1/γ, which the paper does not ask for


@pytest.mark.parametrize("curvature", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("share", [0.05, 0.5, 1.5])
def test_expansion_of_6_7_7_at_an_invariant_law(curvature, share):
    eta, sigma = share / curvature, 1.3
    # θ -> θ - η(λθ + ξ) has an invariant law with this variance: that of (1 - ηλ)θ - ηξ
    variance = eta * sigma**2 / (curvature * (2 - share))
    assert (1 - share) ** 2 * variance + eta**2 * sigma**2 == pytest.approx(variance, rel=1e-12)
    grad_square = curvature**2 * variance
    second_moment = grad_square + sigma**2
    assert eta * curvature * second_moment / 2 == pytest.approx(grad_square, rel=1e-12)
    printed = -eta * curvature * sigma**2  # η E⟨∇f - g, Hg⟩
    assert printed < 0 < grad_square  # "both sides are positive" is not so as printed
    rule = InvariantDistribution(eta, grad_square, second_moment, curvature)
    assert rule.ratio == pytest.approx(1.0, rel=1e-12)
    for c in np.linspace(0.01, 3, 50):
        bound = -c * eta * grad_square + (c * eta) ** 2 * curvature * second_moment / 2
        # E f(θ - cηg) - E f(θ) for f = λθ²/2, exactly
        change = curvature / 2 * (((1 - c * share) ** 2 - 1) * variance + (c * eta * sigma) ** 2)
        assert change == pytest.approx(bound, rel=1e-9, abs=1e-12)
        assert (change < 0) == (c < rule.ratio)


def test_small_step_lowers_the_loss_of_a_network_at_its_invariant_law():
    """64 chains of SGD with one sample a step; the mean over the sample is an exact sum, c on a
    grid.
    """
    net = Network((2, 6, 2), "tanh")
    chains, samples, eta = 64, 12, 1.5
    x, y, g = _data(1, samples, 2, 2, "invariant")
    y[0, ::4] = 1 - y[0, ::4]
    many_x, many_y = x.expand(chains, -1, -1), y.expand(chains, -1)
    theta = net.start(chains, 1.0, g)
    for _ in range(600):
        pick = torch.randint(samples, (chains, 1), generator=g)
        rows = torch.arange(chains)[:, None]
        theta = _decayed_step(net, theta, many_x[rows, pick], many_y[rows, pick], eta, 0.0)
    # every (chain, sample) pair as its own copy: gradients of single samples
    wide = [t.repeat_interleave(samples, 0) for t in theta]
    one_x, one_y = x[0].repeat(chains, 1)[:, None], y[0].repeat(chains)[:, None]
    _, gradient = net.gradient(wide, one_x, one_y)
    full_x, full_y = x.expand(chains * samples, -1, -1), y.expand(chains * samples, -1)

    def change(c: float, sign: float = 1.0) -> float:
        moved = [t - sign * c * eta * d for t, d in zip(wide, gradient)]
        return float((net.loss(moved, full_x, full_y) - net.loss(wide, full_x, full_y)).mean())

    _, mean_gradient = net.gradient(theta, many_x, many_y)
    grad_square = float(sum(m.square().sum() for m in mean_gradient) / chains)
    assert grad_square > 1e-3  # not carried by stationary points
    assert change(0.05) < 0
    assert change(0.05) == pytest.approx(-0.05 * eta * grad_square, rel=0.5)
    assert change(3.0) > 0  # a step three times as long raises it
    assert change(0.05, sign=-1.0) > 0  # and so does a step the wrong way: the check can fail


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DecayedNetwork(2, 1.0), "layers must be a whole number of at least 3, got 2"),
        (lambda: DecayedNetwork(3, -1.0), "gamma must be positive and finite, got -1.0"),
        (lambda: DecayedBatchNorm(0, 1.0), "batch must be a whole number of at least 1, got 0"),
        (lambda: DecayedBatchNorm(4, 0.0), "gamma must be positive and finite, got 0.0"),
        (lambda: InvariantDistribution(1.0, 2.0, 1.0, 1.0), "second_moment must be at least"),
        (
            lambda: InvariantDistribution(1.0, 0.0, 1.0, 1.0),
            "grad_square must be positive and finite, got 0.0",
        ),
        (
            lambda: cross_entropy_bound(-1.0, 3),
            "spread must be zero or positive, and finite, got -1.0",
        ),
    ],
)
def test_bad_constants_of_chapter_6(make, message):
    with pytest.raises(RuleError, match=message):
        make()
