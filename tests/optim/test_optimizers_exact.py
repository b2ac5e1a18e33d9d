"""Each optimizer against the literal transcription: 60 steps in float64, re-synchronised after
each.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from references import optimizers as reference

from mindgap.optim import (
    INGD,
    SGD,
    ACClip,
    AdamW,
    Ball,
    Box,
    CClip,
    GClip,
    NormalizedSGD,
    PowerSchedule,
    StochasticINGD,
    k_weighted_average,
)
from mindgap.rules.schedule import unit_draw

STEPS, RTOL, SHAPES = 60, 1e-12, [(3, 2), (), (5,)]


def fresh(seed=0):
    rng = np.random.default_rng(seed)
    params = [
        torch.nn.Parameter(torch.tensor(rng.normal(size=s), dtype=torch.float64)) for s in SHAPES
    ]
    return rng, params


def flat(tensors):
    return np.concatenate([t.detach().numpy().reshape(-1) for t in tensors])


def put(params, vector):
    at = 0
    with torch.no_grad():
        for p in params:
            p.copy_(torch.from_numpy(vector[at : at + p.numel()].reshape(p.shape)))
            at += p.numel()


def set_grads(params, vector):
    at = 0
    for p in params:
        p.grad = torch.from_numpy(vector[at : at + p.numel()].reshape(p.shape).copy())
        at += p.numel()


def heavy(rng, size):
    """Gradients with a heavy tail and of changing size, so that both branches of every clipping
    occur.
    """
    return rng.standard_t(1.5, size=size) * 10 ** rng.uniform(-1.5, 1.0)


def assert_follows(optimizer, params, rng, one_step, names):
    """Run both; before each step the transcription is given the optimizer's own state."""
    size = sum(p.numel() for p in params)
    state = {"x": flat(params)}
    for k in range(1, STEPS + 1):
        g = heavy(rng, size)
        set_grads(params, g)
        expected = one_step(state, g, k)
        optimizer.step()
        np.testing.assert_allclose(flat(params), expected["x"], rtol=RTOL, atol=1e-300)
        state = {**expected, "x": flat(params)}
        for theirs, ours in names.items():
            mine = flat([optimizer.state[p][ours] for p in params])
            np.testing.assert_allclose(mine, expected[theirs], rtol=RTOL, atol=1e-300)
            state[theirs] = mine
    return state


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("clip", ["momentum", "gradient"])
@pytest.mark.parametrize("tau", [1.5, PowerSchedule(0.5, 1 / 1.5)], ids=["fixed", "schedule"])
def test_gclip(foreach, beta, clip, tau):
    rng, params = fresh()
    optimizer = GClip(params, lr=0.1, tau=tau, beta=beta, clip=clip, foreach=foreach)
    line = reference.clipped_descent if clip == "momentum" else reference.clipped_gradient_first

    def one(state, g, k):
        level = tau if isinstance(tau, float) else 0.5 * k ** (1 / 1.5)
        return line(state, g, 0.1, lambda m: reference.gclip(level, m), beta)

    assert_follows(optimizer, params, rng, one, {"m": "momentum"} if beta else {})
    assert 0.01 < optimizer.report().clipped < 1.0


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("clip", ["momentum", "gradient"])
@pytest.mark.parametrize("kind", ["number", "coordinates", "schedule"])
def test_cclip(foreach, beta, clip, kind):
    rng, params = fresh()
    levels = np.random.default_rng(7).uniform(0.05, 2.0, size=sum(p.numel() for p in params))
    tensors = [torch.zeros_like(p) for p in params]
    put(tensors, levels)
    tau = {
        "number": 0.7,
        "coordinates": tensors,
        "schedule": lambda k: [t * k**0.5 for t in tensors],
    }[kind]
    optimizer = CClip(params, lr=0.1, tau=tau, beta=beta, clip=clip, foreach=foreach, track=True)
    line = reference.clipped_descent if clip == "momentum" else reference.clipped_gradient_first

    def one(state, g, k):
        level = {"number": 0.7, "coordinates": levels, "schedule": levels * k**0.5}[kind]
        return line(state, g, 0.1, lambda m: reference.cclip(level, m), beta)

    assert_follows(optimizer, params, rng, one, {"m": "momentum"} if beta else {})
    assert 0.01 < optimizer.report().clipped < 1.0


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("bias_correction", [False, True])
def test_acclip(foreach, alpha, normalized, bias_correction):
    rng, params = fresh()
    form = "first_moment" if normalized else "algorithm"
    settings = {
        "alpha": alpha,
        "form": form,
        "bias_correction": bias_correction,
        "foreach": foreach,
    }
    optimizer = ACClip(params, 0.1, eps=1e-5, weight_decay=0.0, clip=None, **settings)
    options = {"normalized": normalized, "bias_correction": bias_correction}

    def one(state, g, k):
        return reference.acclip(state, g, 0.1, 0.9, 0.99, alpha, 1e-5, **options)

    state = assert_follows(optimizer, params, rng, one, {"m": "momentum", "tau_alpha": "moment"})
    assert state["k"] == STEPS


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("factor", [1.0, 2.0])
@pytest.mark.parametrize("beta1", [0.0, 0.9])
@pytest.mark.parametrize("bias_correction", [False, True])
def test_acclip_second_moment(foreach, factor, beta1, bias_correction):
    rng, params = fresh()
    options = {
        "factor": factor,
        "bias_correction": bias_correction,
        "clip": None,
        "foreach": foreach,
    }
    optimizer = ACClip(
        params, 0.1, (beta1, 0.9), eps=1e-3, weight_decay=0.0, form="second_moment", **options
    )

    def one(state, g, k):
        return reference.acclip_second_moment(
            state, g, 0.1, beta1, 0.9, 1e-3, two=factor, bias_correction=bias_correction
        )

    assert_follows(optimizer, params, rng, one, {"m": "momentum", "v": "moment"})


@pytest.mark.parametrize("form", ["first_moment", "second_moment", "algorithm"])
def test_acclip_clips_the_norm_at_the_quantile_of_the_norms_before(form):
    rng, params = fresh()
    optimizer, norms = ACClip(params, 0.1, eps=1e-3, weight_decay=0.0, form=form), []

    def one(state, g, k):
        clipped = reference.norm_clipped(g, reference.quantile_of_last(norms, 0.9), 0.0)
        norms.append(float(np.linalg.norm(g)))
        if form == "second_moment":
            return reference.acclip_second_moment(
                state, clipped, 0.1, 0.9, 0.99, 1e-3, two=1.0, bias_correction=True
            )
        normalized = form == "first_moment"
        return reference.acclip(
            state, clipped, 0.1, 0.9, 0.99, 1.0, 1e-3, normalized=normalized, bias_correction=True
        )

    second = {"v": "moment"} if form == "second_moment" else {"tau_alpha": "moment"}
    assert_follows(optimizer, params, rng, one, {"m": "momentum", **second})
    report = optimizer.report()
    assert 0.01 < report.clipped < 0.5
    assert report.median_norm == pytest.approx(np.median(norms), rel=1e-12)
    assert report.norm_quantiles[1.0] == pytest.approx(max(norms), rel=1e-12)


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("clip", [None, "unit"])
@pytest.mark.parametrize("kind", ["plain", "coordinates", "largest"])
def test_adamw_with_unit_norm_coordinates_and_the_largest_moment(foreach, clip, kind):
    rng, params = fresh()
    more = {"plain": {}, "coordinates": {"coordinates": 1.5}, "largest": {"amsgrad": True}}[kind]
    optimizer = AdamW(params, 0.1, (0.8, 0.9), 1e-3, 0.1, clip=clip, foreach=foreach, **more)

    def one(state, g, k):
        g = g if clip is None else reference.unit(g)
        if kind == "coordinates":
            return reference.adamw_coordinates(state, g, 0.1, 0.8, 0.9, 1e-3, 0.1, 1.5)
        rule = reference.adamw_largest if kind == "largest" else reference.adamw
        return rule(state, g, 0.1, 0.8, 0.9, 1e-3, 0.1)

    names = {"m": "exp_avg", "v": "exp_avg_sq"}
    names |= {"coordinates": {"tau": "mean_abs"}, "largest": {"most": "max_exp_avg_sq"}}.get(
        kind, {}
    )
    assert_follows(optimizer, params, rng, one, names)
    assert optimizer.report().clipped == 0.0
    assert optimizer._fused.used == (foreach is None)


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("clip", [None, 2.0, "auto"])
@pytest.mark.parametrize("kind", ["adamw", "sgd", "nesterov", "dampened"])
def test_clipping_optimizers_of_torch(foreach, clip, kind):
    rng, params = fresh()
    norms = []
    decay = {"weight_decay": 0.1, "clip": clip, "foreach": foreach}
    optimizer = {
        "adamw": lambda: AdamW(params, 0.1, (0.8, 0.9), 1e-3, **decay),
        "sgd": lambda: SGD(params, 0.1, 0.9, **decay),
        "nesterov": lambda: SGD(params, 0.1, 0.9, nesterov=True, **decay),
        "dampened": lambda: SGD(params, 0.1, 0.9, 0.3, **decay),
    }[kind]()

    def one(state, g, k):
        level = {"auto": reference.quantile_of_last(norms, 0.9), None: math.inf}.get(clip, clip)
        norms.append(float(np.linalg.norm(g)))
        g = reference.norm_clipped(g, level, 0.0 if clip == "auto" else 1e-6)
        if kind == "adamw":
            return reference.adamw(state, g, 0.1, 0.8, 0.9, 1e-3, 0.1)
        return reference.sgd(
            state, g, 0.1, 0.9, 0.3 if kind == "dampened" else 0.0, 0.1, kind == "nesterov"
        )

    names = {"m": "exp_avg", "v": "exp_avg_sq"} if kind == "adamw" else {"b": "momentum_buffer"}
    assert_follows(optimizer, params, rng, one, names)
    assert (
        optimizer.report().clipped == 0.0
        if clip is None
        else 0.01 < optimizer.report().clipped < 1.0
    )


@pytest.mark.parametrize("normalize", ["momentum", "gradient"])
@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("damping", [0.0, 0.5])
def test_normalized_sgd(normalize, beta, damping):
    rng, params = fresh()
    optimizer = NormalizedSGD(params, lr=0.1, beta=beta, damping=damping, normalize=normalize)

    def one(state, g, k):
        line = reference.normalized_gd if normalize == "momentum" else reference.normalized_first
        return line(state, g, 0.1, damping, beta)

    assert_follows(optimizer, params, rng, one, {"m": "momentum"} if beta else {})


def test_weight_decay_stands_outside_the_rule():
    for make in (
        lambda ps, w: GClip(ps, lr=0.1, tau=1.0, weight_decay=w),
        lambda ps, w: CClip(ps, lr=0.1, tau=1.0, weight_decay=w),
        lambda ps, w: ACClip(ps, lr=0.1, weight_decay=w),
        lambda ps, w: NormalizedSGD(ps, lr=0.1, weight_decay=w),
    ):
        (rng, plain), (_, decayed) = fresh(), fresh()
        start, g = flat(plain), heavy(rng, 12)
        for params, w in ((plain, 0.0), (decayed, 0.3)):
            optimizer = make(params, w)
            set_grads(params, g)
            optimizer.step()
        np.testing.assert_allclose(flat(decayed), flat(plain) - 0.1 * 0.3 * start, rtol=RTOL)


def test_stochastic_ingd():
    rng, params = fresh()
    optimizer = StochasticINGD(params, beta=0.9, p=1.0, q=10.0, clip=None, seed=5)
    state = {"x": flat(params)}
    for k in range(1, STEPS + 1):
        g = heavy(rng, 12)
        set_grads(params, g)
        expected = reference.stochastic_ingd(state, g, 0.9, 1.0, 10.0, unit_draw(5, k))
        optimizer.step()
        for name, ours in (("x", "x"), ("m", "m")):
            state[name] = flat([optimizer.state[p][ours] for p in params])
            np.testing.assert_allclose(state[name], expected[name], rtol=RTOL)
        np.testing.assert_allclose(flat(params), expected["y"], rtol=RTOL)


def test_stochastic_ingd_couples_weight_decay():
    rng, params = fresh()
    optimizer = StochasticINGD(params, weight_decay=0.5, clip=None)
    y, g = flat(params), heavy(rng, 12)
    set_grads(params, g)
    optimizer.step()
    np.testing.assert_allclose(
        flat([optimizer.state[p]["m"] for p in params]), g + 0.5 * y, rtol=RTOL
    )


def kinks(x):
    """Sum of |x_i|·(1 + i/10) with a smooth term: Lipschitz on the path, kinks at zero."""
    weights = 1.0 + np.arange(x.size) / 10
    return float(np.abs(x) @ weights), np.sign(x) * weights


def test_ingd():
    _, params = fresh(3)
    weights = torch.arange(12, dtype=torch.float64) / 10 + 1
    optimizer = INGD(params, lr=0.4, epsilon=1.0, lipschitz=8.0, seed=2, inner=6)
    draws = (unit_draw(2, k) for k in range(1, 10**9))

    def closure():
        optimizer.zero_grad()
        value = (torch.cat([p.reshape(-1) for p in params]).abs() * weights).sum()
        value.backward()
        return value

    outcomes = []
    for _ in range(STEPS):
        x_t = flat(params)
        outcome, x_next, m = reference.ingd_search(
            x_t, lambda x: kinks(x)[0], lambda x: kinks(x)[1], 0.4, 1.0, 8.0, 6, draws
        )
        optimizer.step(closure)
        outcomes.append(outcome)
        assert optimizer.result().outcome == outcome
        np.testing.assert_allclose(flat(params), x_next, rtol=RTOL, atol=1e-15)
        np.testing.assert_allclose(
            flat([optimizer.state[p]["m"] for p in params]), m, rtol=1e-11, atol=1e-13
        )
        if optimizer.result().certified:
            optimizer.reset()
            put(params, np.random.default_rng(len(outcomes)).normal(size=12))
    assert {"descended", "exhausted"} <= set(outcomes)


def test_ingd_certificate_is_an_average_of_nearby_gradients():
    x = torch.nn.Parameter(torch.tensor([0.31, -0.2], dtype=torch.float64))
    optimizer = INGD([x], lr=0.1, epsilon=0.1, lipschitz=math.sqrt(2.0))

    def closure():
        optimizer.zero_grad()
        value = x.abs().sum()
        value.backward()
        return value

    calls = 0
    while not optimizer.result().certified:
        optimizer.step(closure)
        calls += 1
        assert calls < 100
    assert optimizer.result().norm <= 0.1
    # 0 lies in the δ-subdifferential of ‖x‖₁ exactly where ‖x‖ ≤ δ.
    assert float(x.detach().norm()) <= 0.1
    before = x.detach().clone()
    assert optimizer.step(closure) is None
    assert torch.equal(before, x.detach())


def test_draws_are_uniform_and_independent_of_each_other():
    u = np.array([unit_draw(0, k) for k in range(1, 20001)])
    assert abs(u.mean() - 1 / 2) < 4 * math.sqrt(1 / 12 / u.size)
    assert abs((u**2).mean() - 1 / 3) < 4 * math.sqrt(4 / 45 / u.size)
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / math.sqrt(u.size)


@pytest.mark.parametrize("scope", ["all", "group", "tensor"])
def test_scope_of_the_norm(scope):
    rng, params = fresh()
    groups = [{"params": params[:1], "tau": 0.4}, {"params": params[1:], "tau": 0.9}]
    optimizer = GClip(groups, lr=0.1, tau=1.0, scope=scope)
    before, g = [p.detach().numpy().copy() for p in params], heavy(rng, 12)
    set_grads(params, g)
    grads = [p.grad.numpy() for p in params]
    optimizer.step()
    whole = np.linalg.norm(g)
    groups_norm = [np.linalg.norm(grads[0]), math.hypot(*(np.linalg.norm(v) for v in grads[1:]))]
    change = []
    for i, p in enumerate(params):
        tau = 0.4 if i == 0 else 0.9
        norm = {"all": whole, "group": groups_norm[min(i, 1)], "tensor": np.linalg.norm(grads[i])}[
            scope
        ]
        step = 0.1 * min(tau / norm, 1.0) * grads[i]
        change.append(np.linalg.norm(step))
        np.testing.assert_allclose(p.detach().numpy(), before[i] - step, rtol=RTOL)
    report = optimizer.report()
    assert report.direction_norm == pytest.approx(whole, rel=1e-12)
    assert report.update_norm == pytest.approx(np.linalg.norm(change), rel=1e-12)


def test_projection():
    for project, inside in (
        (Ball(0.5), lambda x: x * min(1.0, 0.5 / np.linalg.norm(x))),
        (Box(-0.2, 0.3), lambda x: np.clip(x, -0.2, 0.3)),
    ):
        (rng, free), (_, held) = fresh(), fresh()
        g = heavy(rng, 12)
        for params, where in ((free, None), (held, project)):
            optimizer = GClip(params, lr=0.1, tau=1.0, project=where)
            set_grads(params, g)
            optimizer.step()
        np.testing.assert_allclose(flat(held), inside(flat(free)), rtol=RTOL)


def test_k_weighted_average_of_iterates_before_the_step():
    model = torch.nn.Linear(3, 1, dtype=torch.float64)
    mean, iterates = k_weighted_average(model), []
    optimizer = GClip(model.parameters(), lr=0.5, tau=1.0)
    for _ in range(20):
        iterates.append(flat(model.parameters()))
        mean.update_parameters(model)
        optimizer.zero_grad()
        model(torch.ones(4, 3, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
    weights = np.arange(1, 21)
    expected = (weights[:, None] * np.array(iterates)).sum(0) / weights.sum()
    np.testing.assert_allclose(flat(mean.module.parameters()), expected, rtol=RTOL)
