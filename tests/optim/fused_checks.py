"""Checks of the fused forms, for any device, without a test framework: a machine with a GPU may
have none.

Every check compares with the literal transcription in float64, one step at a time, the
transcription given the fused optimizer's own state before each step. Tolerances are a few units in
the last place of the parameter's dtype (of float32 for states), relative to the numbers that enter
the sum.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from references import optimizers as reference

from mindgap.optim import (
    SGD,
    ACClip as AnyACClip,
    AdamW,
    CClip,
    GClip,
    NormalizedSGD,
    StochasticINGD as AnyStochasticINGD,
    sides,
)
from mindgap.rules.schedule import unit_draw

# The papers' settings, which the transcriptions have.
ACClip = partial(AnyACClip, eps=1e-5, weight_decay=1e-5, bias_correction=False, clip=None)
StochasticINGD = partial(AnyStochasticINGD, clip=None)

#: Units in the last place that a fused step may differ from the exactly computed one.
ULPS = 4
EPS = {
    torch.float64: 2.0**-52,
    torch.float32: 2.0**-23,
    torch.bfloat16: 2.0**-7,
    torch.float16: 2.0**-10,
}
STEPS = 50


def tensors(device, dtype, rng):
    """Odd sizes, a misaligned tensor, one that is dense in another order, an empty one, a
    scalar.
    """

    def drawn(*shape):
        return torch.tensor(rng.normal(size=shape), dtype=dtype, device=device)

    store = drawn(1024)
    values = [drawn(n) for n in (1, 127, 1023, 1025)] + [
        drawn(),
        drawn(0, 3),
        store[1:514],
        drawn(64, 33).t(),
    ]
    assert values[6].data_ptr() % 16 != 0
    assert not values[7].is_contiguous()
    return [torch.nn.Parameter(v) for v in values]


def flat(values):
    return np.concatenate([v.detach().double().cpu().reshape(-1).numpy() for v in values])


def set_grads(params, vector):
    at = 0
    for p in params:
        part = vector[at : at + p.numel()].reshape(p.shape)
        p.grad = torch.empty_like(p).copy_(torch.from_numpy(part))
        at += p.numel()


def rules():
    """name -> (constructor, transcription of one step, transcription's name -> ours)."""
    momentum = {"m": "momentum"}

    def clipped(line, clip, beta):
        return lambda s, g, k: line(s, g, 0.1, clip, beta)

    one, two = reference.clipped_descent, reference.clipped_gradient_first
    clipping = {}
    for name, rule, tau, clip in (
        ("gclip", GClip, 1.5, reference.gclip),
        ("cclip", CClip, 0.7, reference.cclip),
    ):

        def make(p, rule=rule, tau=tau, **options):
            return rule(p, 0.1, tau, **options)

        clip = partial(clip, tau)
        clipping[name] = (make, clipped(one, clip, 0.0), {})
        for of, line in (("momentum", one), ("gradient", two)):
            clipping[f"{name} {of}"] = (
                partial(make, beta=0.9, clip=of),
                clipped(line, clip, 0.9),
                momentum,
            )
    return {
        **clipping,
        **{
            f"acclip {alpha} {form}": (
                lambda p, alpha=alpha, form=form, **o: ACClip(
                    p, 0.1, alpha=alpha, weight_decay=0.0, form=form, **o
                ),
                lambda s, g, k, alpha=alpha, form=form: reference.acclip(
                    s, g, 0.1, 0.9, 0.99, alpha, 1e-5, normalized=form == "first_moment"
                ),
                {"m": "momentum", "tau_alpha": "moment"},
            )
            for alpha in (1.0, 1.5, 2.0)
            for form in ("algorithm", "first_moment")
        },
        "normalized_sgd": (
            lambda p, **o: NormalizedSGD(p, 0.1, beta=0.9, damping=0.5, normalize="momentum", **o),
            lambda s, g, k: reference.normalized_gd(s, g, 0.1, 0.5, 0.9),
            momentum,
        ),
        "stochastic_ingd": (
            lambda p, **o: StochasticINGD(p, 1.0, 0.9, 1.0, 10.0, seed=5, **o),
            lambda s, g, k: reference.stochastic_ingd(s, g, 0.9, 1.0, 10.0, unit_draw(5, k)),
            {"m": "m", "x": "x"},
        ),
        **unit_rules(),
    }


def unit_rules():
    """As :func:`rules`, of those that divide the gradient by its norm first."""
    moments = {"m": "exp_avg", "v": "exp_avg_sq"}
    return {
        "unit adamw": (
            lambda p, **o: AdamW(p, 0.1, (0.9, 0.99), 1e-5, 0.1, clip="unit", **o),
            lambda s, g, k: reference.adamw(s, reference.unit(g), 0.1, 0.9, 0.99, 1e-5, 0.1),
            moments,
        ),
        "unit adamw coordinates": (
            lambda p, **o: AdamW(p, 0.1, (0.9, 0.99), 1e-5, 0.1, clip="unit", coordinates=1.5, **o),
            lambda s, g, k: reference.adamw_coordinates(
                s, reference.unit(g), 0.1, 0.9, 0.99, 1e-5, 0.1, 1.5
            ),
            {**moments, "tau": "mean_abs"},
        ),
        "unit acclip": (
            lambda p, **o: AnyACClip(p, 0.1, eps=1e-5, weight_decay=0.0, clip="unit", **o),
            lambda s, g, k: reference.acclip(
                s,
                reference.unit(g),
                0.1,
                0.9,
                0.99,
                1.0,
                1e-5,
                normalized=True,
                bias_correction=True,
            ),
            {"m": "momentum", "tau_alpha": "moment"},
        ),
    }


def worst_error(name, device, dtype, steps=None):
    """Largest difference from the transcription, in units in the last place, over all steps
    (None: ``STEPS``) and states.
    """
    steps = steps or STEPS
    make, line, names = rules()[name]
    rng = np.random.default_rng(0)
    params = tensors(device, dtype, rng)
    # The first gradient of StochasticINGD starts its states outside the kernels, so it cannot
    # insist on them.
    optimizer = make(params, fused=None if name == "stochastic_ingd" else True)
    size = sum(p.numel() for p in params)
    eps, wide = EPS[dtype], EPS[torch.float32 if dtype != torch.float64 else dtype]
    state, worst = {"x": flat(params)}, 0.0
    used = 0
    for k in range(1, steps + 1):
        drawn = rng.standard_t(1.5, size=size) * 10 ** rng.uniform(-1.5, 1.0)
        set_grads(params, np.clip(drawn, -1e4, 1e4))
        g = flat([p.grad for p in params])
        expected = line(state, g, k)
        optimizer.step()
        used += optimizer._fused.used
        at, target = flat(params), expected.get("y", expected["x"])
        g = reference.unit(g) if name.startswith("unit") else g
        # An average may cancel: its rounding error is relative to what enters it, and so is the
        # step's.
        entering = 0.1 * (np.abs(state.get("m", np.zeros(size))) + np.abs(g))
        if name.startswith("unit"):
            scale = np.sqrt(expected["v"]) if "v" in expected else expected["tau_alpha"]
            power = 0.5 if "v" in expected else 1.0
            scale = scale / (1 - 0.99**k) ** power + 1e-5
            entering = 0.1 * (0.9 * np.abs(state.get("m", np.zeros(size))) + 0.1 * np.abs(g))
            entering /= (1 - 0.9**k) * scale
        elif name.endswith("first_moment"):
            entering /= expected["tau_alpha"] ** (1 / float(name.split()[1])) + 1e-5
        # Below its smallest normal number a dtype's spacing no longer shrinks.
        least = eps * torch.finfo(dtype).smallest_normal
        room = (
            eps * np.abs(target) + wide * (np.abs(target - state["x"]) + entering) + least + 1e-30
        )
        worst = max(worst, float((np.abs(at - target) / room).max()))
        for theirs, ours in names.items():
            mine = flat([optimizer.state[p][ours] for p in params])
            before = np.abs(state.get(theirs, np.zeros(size)))
            power = float(name.split()[1]) if name.startswith("acclip") else 1.0
            power = {"tau_alpha": power, "v": 2.0}.get(theirs, 1.0)
            entering = np.abs(g) ** power
            room = wide * (before + entering + np.abs(expected[theirs])) + 1e-30
            worst = max(worst, float((np.abs(mine - expected[theirs]) / room).max()))
            state[theirs] = mine
        if "x" not in names:
            state["x"] = at
        state["k"] = k
    assert used >= steps - 1, f"{name}: the fused form was used in {used} of {steps} steps"
    return worst


def check_all_rules(device, dtypes):
    """Every rule and dtype within ``ULPS``; returns a table of what was seen."""
    seen = {}
    for name in rules():
        for dtype in dtypes:
            error = worst_error(name, device, dtype)
            seen[name, str(dtype)] = error
            # General powers go through pow and back: their error is that of two powers more.
            limit = ULPS if "1.5" not in name else 4 * ULPS
            assert error <= limit, (
                f"{name} {dtype} on {device}: {error:.2f} units in the last place"
            )
    return seen


def check_settings(device):
    """Decay, maximize, groups, tensor lr and schedules: fused equals the plain loop."""
    makes = {
        "gclip": lambda p, **o: GClip(p, 0.1, 1.0, weight_decay=0.1, maximize=True, **o),
        "gclip schedule": lambda p, **o: GClip(p, 0.1, lambda k: 0.5 * k, beta=0.5, **o),
        "gclip groups": lambda p, **o: GClip(
            [{"params": p[:3]}, {"params": p[3:], "lr": 0.3}], 0.1, 1.0, **o
        ),
        "gclip group scope": lambda p, **o: GClip(
            [{"params": p[:3]}, {"params": p[3:], "tau": 0.3}], 0.1, 1.0, scope="group", **o
        ),
        "cclip": lambda p, **o: CClip(
            p, torch.tensor(0.1, device=device), 0.5, beta=0.9, weight_decay=0.1, **o
        ),
        "acclip": lambda p, **o: ACClip(
            p, torch.tensor(0.1, device=device), weight_decay=0.1, maximize=True, **o
        ),
        "normalized_sgd": lambda p, **o: NormalizedSGD(
            p, torch.tensor(0.1, device=device), weight_decay=0.1, **o
        ),
    }
    for name, make in makes.items():
        runs = []
        for options in ({"fused": True}, {"foreach": False}):
            rng = np.random.default_rng(1)
            params = tensors(device, torch.float32, rng)
            optimizer = make(params, **options)
            for _ in range(8):
                set_grads(params, rng.normal(size=sum(p.numel() for p in params)))
                optimizer.step()
            runs.append((flat(params), optimizer.report()))
        np.testing.assert_allclose(runs[0][0], runs[1][0], rtol=3e-6, atol=3e-6, err_msg=name)
        first, second = (r[1] for r in runs)
        assert (first.steps, first.skipped, first.clipped) == (
            second.steps,
            second.skipped,
            second.clipped,
        ), name
        for ours, theirs in (
            (first.direction_norm, second.direction_norm),
            (first.update_norm, second.update_norm),
        ):
            assert ours is None or abs(ours - theirs) <= 1e-5 * theirs, (name, ours, theirs)


def forms():
    """name -> constructor, of everything that clips the gradient's norm, counts gradients or
    follows a quantile.
    """
    return {
        "gclip auto": lambda p, **o: GClip(p, 0.1, "auto", beta=0.9, **o),
        "gclip auto momentum": lambda p, **o: GClip(
            p, 0.1, "auto", beta=0.9, clip="momentum", scope="group", **o
        ),
        "cclip auto": lambda p, **o: CClip(p, 0.1, "auto", **o),
        "cclip auto momentum": lambda p, **o: CClip(
            p, 0.1, "auto", beta=0.9, weight_decay=0.1, **o
        ),
        **{
            f"acclip {form} {alpha}": lambda p, form=form, alpha=alpha, **o: AnyACClip(
                p, 0.05, form=form, alpha=alpha, **o
            )
            for form in ("first_moment", "second_moment", "algorithm")
            for alpha in (1.0, 1.5, 2.0)
        },
        "acclip factor": lambda p, **o: AnyACClip(
            p, 0.05, form="second_moment", factor=2.0, clip=None, **o
        ),
        "acclip paper": lambda p, **o: AnyACClip(
            p, 0.05, form="second_moment", bias_correction=False, clip=2.0, **o
        ),
        "adamw": lambda p, **o: AdamW(p, 0.05, clip=1.0, **o),
        "adamw largest": lambda p, **o: AdamW(p, 0.05, amsgrad=True, clip=1.0, **o),
        "adamw unit": lambda p, **o: AdamW(p, 0.05, clip="unit", **o),
        "adamw coordinates": lambda p, **o: AdamW(p, 0.05, clip="unit", coordinates=2.0, **o),
        "adamw noise": lambda p, **o: AdamW(p, 0.05, clip="noise", **o),
        "acclip unit": lambda p, **o: AnyACClip(p, 0.05, clip="unit", **o),
        "adamw auto": lambda p, **o: AdamW(p, 0.05, clip="auto", maximize=True, **o),
        "adamw without clip": lambda p, **o: AdamW(
            p, 0.05, betas=(0.0, 0.9), eps=0.0, clip=None, **o
        ),
        "sgd": lambda p, **o: SGD(p, 0.05, clip=1.0, **o),
        "sgd momentum": lambda p, **o: SGD(
            p, 0.05, momentum=0.9, weight_decay=0.1, clip="auto", **o
        ),
        "sgd nesterov": lambda p, **o: SGD(
            p, 0.05, momentum=0.9, nesterov=True, maximize=True, clip=None, **o
        ),
        "sgd dampening": lambda p, **o: SGD(p, 0.05, 0.9, 0.5, weight_decay=0.1, clip=None, **o),
        "normalized_sgd": lambda p, **o: NormalizedSGD(p, 0.05, beta=0.9, **o),
        "stochastic_ingd": lambda p, **o: AnyStochasticINGD(p, **o),
    }


def check_forms(device, steps=32, only=None):
    """Every form under every policy, with a spike, a NaN and a missing gradient: fused equals
    the plain loop. With ``clip="noise"`` some gradients are large in one direction: the first one
    cannot be judged, the second agrees with it, the third differs, and the rule is on from there.
    """
    signs = {12: 1.0, 14: 1.0, 16: -1.0, 18: 1.0}  # step -> side of a large gradient
    policies = (
        {"nonfinite": "skip"},
        {"nonfinite": "skip", "spike_guard": "clip"},
        {"nonfinite": "skip", "spike_guard": "skip"},
    )
    for name, make in forms().items():
        for policy in policies[: 1 if "1.5" in name else 3]:
            if only is not None and only != name:
                continue
            worlds = []
            for options in ({}, {"foreach": False}):
                params = tensors(device, torch.float32, np.random.default_rng(3))
                groups = [{"params": params[:3]}, {"params": params[3:], "lr": 0.03}]
                worlds.append((params, make(groups, **policy, **options)))
            rng, used = np.random.default_rng(4), 0
            size = sum(p.numel() for p in worlds[0][0])
            for k in range(steps):
                vector = rng.normal(size=size) * (1e4 if k == 25 else rng.uniform(0.5, 1.5))
                if name == "adamw noise" and k in signs:
                    vector = 3.0 * vector + (12.0 if k == 14 else 7.0) * signs[k]
                if k == 27:
                    vector[5] = np.nan
                for params, optimizer in worlds:
                    set_grads(params, vector)
                    if k == 4:
                        params[1].grad = None
                    optimizer.step()
                used += worlds[0][1]._fused.used
                (ours, first), (theirs, second) = worlds
                first._fused.follow_device(
                    first.param_groups
                )  # as state_dict does: the device counts skipped steps
                for i, (a, b) in enumerate(zip(ours, theirs)):
                    rounding = 2e-6 * (1.0 + float(b.detach().abs().max() if b.numel() else 0.0))
                    np.testing.assert_allclose(
                        flat([a]),
                        flat([b]),
                        rtol=2e-5,
                        atol=20 * rounding,
                        err_msg=f"{name} {policy} step {k + 1}",
                    )
                    a.data.copy_(b.data)
                    for key in first.state[a]:
                        where = f"{name} {policy} step {k + 1} {key} {i}"
                        mine, other = first.state[a][key], second.state[b][key]
                        scale = 2e-5 * (1e-3 + float(other.abs().max() if other.numel() else 0.0))
                        np.testing.assert_allclose(
                            flat([mine]), flat([other]), rtol=2e-5, atol=scale, err_msg=where
                        )
                        if key != "step":
                            mine.copy_(other)
            if name == "adamw noise" and steps > max(signs):
                check_judge(first, second, spike_is_judged="spike_guard" not in policy)
            reports = [optimizer.report() for _, optimizer in worlds]
            assert used >= steps - 2, f"{name}: the fused form was used in {used} of {steps} steps"
            assert reports[0].skipped == reports[1].skipped, (name, reports)
            if reports[0].clipped is not None and reports[1].clipped is not None:
                assert abs(reports[0].clipped - reports[1].clipped) < 0.05, (name, reports)
            spikes = [[(s.step, round(s.norm, -2)) for s in r.spikes] for r in reports]
            assert spikes[0] == spikes[1], (name, spikes)
            assert bool(spikes[0]) == ("spike_guard" in policy), (name, policy, reports[0])


def check_judge(fused, plain, *, spike_is_judged):
    """Both have judged the large gradients of ``check_forms``, the rule is on, and they remember
    the same.
    """
    evidence, since, _, judged, *_ = fused.param_groups[0]["evidence"].tolist()
    assert judged == 3 + spike_is_judged
    assert evidence <= sides.NOISE
    assert since < sides.STAY
    for name in ("evidence", "sides"):
        mine, other = (optimizer.param_groups[0][name].cpu() for optimizer in (fused, plain))
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5, err_msg=name)


def check_stochastic_decay(device):
    """StochasticINGD with coupled decay, in groups: fused equals the plain loop."""
    runs = []
    for foreach in (None, False):
        rng = np.random.default_rng(1)
        params = tensors(device, torch.float32, rng)
        groups = [{"params": params[:3]}, {"params": params[3:], "lr": 0.5}]
        optimizer = StochasticINGD(groups, weight_decay=0.3, maximize=True, foreach=foreach)
        for _ in range(8):
            set_grads(params, rng.normal(size=sum(p.numel() for p in params)))
            optimizer.step()
        optimizer.eval()
        runs.append((flat(params), optimizer.report().direction_norm))
    np.testing.assert_allclose(runs[0][0], runs[1][0], rtol=3e-6, atol=3e-6)
    assert abs(runs[0][1] - runs[1][1]) <= 1e-5 * runs[1][1]


def check_moving_tensors(device):
    """Gradients that move, a parameter that moves, states replaced, layers frozen: the tables
    follow.
    """
    runs = []
    for options in ({"fused": True}, {"foreach": False}):
        rng = np.random.default_rng(2)
        params = tensors(device, torch.float32, rng)
        optimizer = ACClip(params, 0.1, **options)
        for k in range(12):
            size = sum(p.numel() for p in params)
            set_grads(params, rng.normal(size=size))  # new memory each time
            if k == 3:
                params[2].data = params[2].data.clone()
            if k == 5:
                params[1].grad = None
            if k == 7:
                optimizer.state[params[0]]["moment"] = optimizer.state[params[0]]["moment"].clone()
            if k == 9:
                optimizer.load_state_dict(optimizer.state_dict())
            optimizer.step()
        runs.append(flat(params))
    np.testing.assert_allclose(runs[0], runs[1], rtol=3e-6, atol=3e-6)


def check_nonfinite(device):
    """Skip leaves everything as it was and counts; huge entries are finite; NaN propagates by
    default.
    """
    for tau in (
        1.0,
        "auto",
    ):  # an infinite norm before any other: the factor is NaN or 0, as in torch
        ends = []
        for form in ({"fused": True}, {"foreach": False}):
            p = torch.nn.Parameter(torch.ones(5, device=device))
            p.grad = torch.tensor([1.0, 2.0, 3.0, 4.0, float("inf")], device=device)
            GClip([p], 0.1, tau, beta=0.9, **form).step()
            ends.append(p.detach())
        assert torch.equal(*(end.nan_to_num(-7.0) for end in ends)), (tau, ends)
    for make in (
        lambda p, **o: GClip(p, 0.1, 1.0, beta=0.9, fused=True, **o),
        lambda p, **o: CClip(p, 0.1, 1.0, beta=0.9, fused=True, **o),
        lambda p, **o: ACClip(p, 0.1, fused=True, **o),
        lambda p, **o: NormalizedSGD(p, 0.1, fused=True, **o),
        lambda p, **o: StochasticINGD(p, **o),
    ):
        params = [
            torch.nn.Parameter(torch.ones(3000, device=device)),
            torch.nn.Parameter(torch.ones(5, device=device)),
        ]
        optimizer = make(params, nonfinite="skip")
        for p in params:
            p.grad = torch.ones_like(p)
        for _ in range(3):
            optimizer.step()
        before = [p.detach().clone() for p in params]
        states = [v.clone() for p in params for v in optimizer.state[p].values()]
        params[0].grad[2999] = float("inf")
        optimizer.step()
        params[0].grad[2999] = float("nan")
        optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(before, params))
        optimizer._fused.follow_device(
            optimizer.param_groups
        )  # as state_dict does: the device counts skipped steps
        now = [v for p in params for v in optimizer.state[p].values()]
        assert all(torch.equal(a, b) for a, b in zip(states, now))
        assert optimizer.report().skipped == 2
        params[0].grad.fill_(1e20)
        optimizer.step()
        assert all(bool(torch.isfinite(p).all()) for p in params)
        assert not torch.equal(before[0], params[0])
        assert optimizer.report().skipped == 2
        params = [torch.nn.Parameter(torch.ones(3000, device=device))]
        params[0].grad = torch.full_like(params[0], float("nan"))
        make(params).step()
        assert not bool(torch.isfinite(params[0]).any())
