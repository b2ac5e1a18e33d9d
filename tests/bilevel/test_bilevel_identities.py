"""Methods that must coincide for special settings do, iteration by iteration; and what tokens
promise.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from references.bilevel_small import small_quadratic

from mindgap.bilevel import (
    ALSET,
    BOREP,
    FULL,
    MASOBA,
    MRBO,
    SABA,
    SLIP,
    SOBA,
    SRBA,
    SUSTAIN,
    SVRB,
    TTSA,
    VRBO,
    AmIGO,
    BilevelProblem,
    Constant,
    Power,
    Sample,
    StocBio,
    TorchOracle,
    solve,
)
from mindgap.bilevel.backends.oracles import TorchOps
from mindgap.bilevel.backends.trial import try_problem
from mindgap.bilevel.core.estimators import storm
from mindgap.bilevel.data.draws import draw_chunk

QUADRATIC = small_quadratic(seed=4)
STEPS = 60


def assert_same(a, b, names=("x", "y", "z")):
    for name in names:
        np.testing.assert_allclose(
            a[name].numpy(), b[name].numpy(), rtol=1e-12, atol=1e-13, err_msg=name
        )


def many(token):
    return Sample(np.array([token.which]))


def assert_agree(problem, first, second, translate, *, names=("x", "y", "z"), skip=0):
    """Run both on the first one's draws; ``translate`` turns them into the second one's."""
    a, b = first.start(problem, seed=5), second.start(problem, seed=5)
    if skip:
        for _ in range(skip):
            a = first.step(a)
    left, right = (
        a.values,
        {**b.values, **{k: v for k, v in a.values.items() if k in b.values}} if skip else b.values,
    )
    chunk = draw_chunk(first, a.oracle, 5, a.t, STEPS, a.drawn)
    for t, (kind, s) in enumerate(chunk.steps()):
        left = first.next_values(left, s, a.oracle, kind)
        right = second.next_values(
            right,
            translate(s, second.rates(np.asarray(t + skip))),
            b.oracle,
            second.plan().at(t + skip)[0].kind,
        )
        assert_same(left, right, names)
    assert float((left["x"] - QUADRATIC.x0).norm()) > 0.05


def test_slip_without_momentum_and_norm_is_soba():
    slip = SLIP(
        lr_x=Power(0.1, 0.5),
        lr_y=Power(0.2, 0.5),
        lr_z=Power(0.2, 0.5),
        beta=0.0,
        warm_start=0,
        x_step="plain",
        samples="shared",
    )
    assert_agree(
        QUADRATIC.problem(16),
        slip,
        SOBA(lr_x=0.1, lr_y=0.2),
        lambda s, n: {"g": s["z"], "f": s["f"], **n},
    )
    apart = SLIP(
        lr_x=Power(0.1, 0.5),
        lr_y=Power(0.2, 0.5),
        lr_z=Power(0.2, 0.5),
        beta=0.0,
        warm_start=0,
        x_step="plain",
    )
    assert_agree(
        QUADRATIC.problem(16),
        SOBA(lr_x=0.1, lr_y=0.2),
        apart,
        lambda s, n: {"y": s["g"], "z": s["g"], "f": s["f"], **n},
    )


def test_borep_with_one_step_each_time_is_slip_with_the_y_step_first():
    """From BO-REP's iteration 1 on (its iteration 0 leaves the refined y alone)."""
    settings = {"lr_x": 0.02, "lr_y": 0.1, "lr_z": 0.1, "beta": 0.9, "warm_start": 3}
    borep = BOREP(**settings, period=1, inner=1, refine=0)
    slip = SLIP(**settings, order="seidel")

    def translate(s, n):
        return {"y": Sample(s["y"].which[0]), "z": s["z"], "f": s["f"], **n}

    assert_agree(QUADRATIC.problem(16), borep, slip, translate, names=("x", "y", "z", "m"), skip=1)
    start_a, start_b = borep.start(QUADRATIC.problem(16)), slip.start(QUADRATIC.problem(16))
    assert_same(start_a.values, start_b.values, ("x", "y", "z", "m"))


def test_alset_single_loop_with_ttsa_exponents_is_ttsa():
    settings = {"eta": 0.2, "terms": 5}
    alset = ALSET(lr_x=Power(0.1, 0.6), lr_y=Power(0.2, 0.4), inner=1, **settings)
    ttsa = TTSA(lr_x=0.1, lr_y=0.2, **settings)
    assert_agree(
        QUADRATIC.problem(16),
        ttsa,
        alset,
        lambda s, n: {**s, "y": many(s["y"]), **n},
        names=("x", "y"),
    )


def test_amigo_with_one_step_each_is_soba_in_sequential_order():
    amigo = AmIGO(lr_x=0.05, lr_y=0.1, inner=1, solves=1)
    soba = SOBA(lr_x=Constant(0.05), lr_y=Constant(0.1), order="seidel")
    assert_agree(
        QUADRATIC.problem(16),
        soba,
        amigo,
        lambda s, n: {"y": many(s["g"]), "z": many(s["g"]), "j": s["g"], "f": s["f"], **n},
    )


def test_mrbo_without_memory_is_stocbio_in_simultaneous_order():
    mrbo = MRBO(lr_x=0.05, lr_y=0.1, eta=0.2, terms=4, c_x=1e9, c_y=1e9)
    stocbio = StocBio(
        lr_x=Power(0.05, 1 / 3), lr_y=Power(0.1, 1 / 3), eta=0.2, terms=4, inner=1, order="jacobi"
    )
    assert_agree(
        QUADRATIC.problem(16),
        mrbo,
        stocbio,
        lambda s, n: {**s, "y": many(s["y"]), **n},
        names=("x", "y"),
    )


def test_masoba_without_average_is_soba():
    soba = SOBA(lr_x=Constant(0.05), lr_y=Constant(0.1))
    now = MASOBA(lr_x=0.05, lr_y=0.1, theta=1.0, delayed=False)
    assert_agree(QUADRATIC.problem(16), soba, now, lambda s, n: {"g": s["g"], "f": s["f"], **n})


def test_storm_and_average_with_weight_one_are_plain():
    torch.manual_seed(0)
    old = {"estimate": {"x": torch.randn(3)}, "point": {"x": torch.randn(3)}}
    point = {"x": torch.randn(3)}
    plain = point["x"] ** 2
    assert torch.equal(
        storm(lambda ps: [{"x": p["x"] ** 2} for p in ps], point, old, {"x": 1.0})["estimate"]["x"],
        plain,
    )
    assert torch.equal(TorchOps.mix(old["estimate"]["x"], plain, 1.0), plain)


@pytest.mark.parametrize(
    "method",
    [
        SABA(lr_x=0.05, lr_y=0.1),
        SRBA(lr_x=0.05, lr_y=0.1, period=7),
        SRBA(lr_x=0.05, lr_y=0.1, period=1),
    ],
    ids=["saga, one batch", "spider, one batch", "spider, refreshed always"],
)
def test_variance_reduction_with_one_batch_is_full_batch_descent(method):
    one = isinstance(method, SABA) or method.period > 1
    problem = QUADRATIC.problem((128, 256) if one else 16)
    soba = SOBA(lr_x=Constant(0.05), lr_y=Constant(0.1))
    assert_agree(problem, method, soba, lambda s, n: {"g": FULL, "f": FULL, **n})


def test_vrbo_refreshed_always_uses_the_full_direction():
    problem = QUADRATIC.problem(16)
    vrbo = VRBO(lr_x=0.05, lr_y=0.1, eta=0.2, terms=3, inner=2, period=1)
    state = vrbo.start(problem, seed=0)
    for _ in range(5):
        x, y = state.x, state.y
        state = vrbo.step(state)
        a = QUADRATIC.lower.A
        f_x, f_y = QUADRATIC.upper_gradients(x, y)
        r = total = f_y
        for _ in range(3):
            r = r - 0.2 * a @ r
            total = total + r
        np.testing.assert_allclose(
            state.x, x - 0.05 * (f_x - QUADRATIC.lower.C @ (0.2 * total)), rtol=1e-12
        )


@pytest.mark.parametrize(
    "method",
    [
        MRBO(lr_x=0.1, lr_y=0.1, terms=2, eta=0.2),
        SUSTAIN(lr_x=0.1, lr_y=0.1, terms=3, eta=0.2),
        SVRB(lr_x=0.1, lr_y=0.1, mu=0.05),
        SRBA(lr_x=0.1, lr_y=0.1, period=100),
        VRBO(lr_x=0.1, lr_y=0.1, terms=2, eta=0.2, inner=2, period=100),
    ],
    ids=lambda m: type(m).__name__,
)
def test_recursive_estimators_use_the_same_tokens_at_both_points(method):
    state = method.start(QUADRATIC.problem(16), seed=0)
    state = method.step(method.step(state))
    seen: list[tuple[str, int, bytes]] = []
    oracle = state.oracle
    for name in ("lower", "hessian", "mixed", "upper", "system", "residuals", "dense"):
        setattr(oracle, name, _spy(seen, name, getattr(oracle, name)))
    before = {k: v.numpy().tobytes() for k, v in state.values.items() if k in "xy"}
    method.step(state)
    points = {p for *_, p in seen}
    assert len(points) >= 2
    calls = {p: sorted((n, w) for n, w, q in seen if q == p) for p in points}
    if not isinstance(method, VRBO):  # VRBO meets a point twice, with two samples
        assert len({tuple(c) for c in calls.values()}) == 1
    assert all(len(c) > 0 for c in calls.values())
    assert before["x"] + before["y"] in points or isinstance(method, VRBO)
    pairs = [(n, w) for n, w, _ in seen]
    assert all(pairs.count(p) % 2 == 0 for p in pairs)  # each sample is seen at two points


def _spy(seen, name, call):
    def spied(*args):
        for token in (a for a in args if isinstance(a, Sample)):
            seen.append(
                (name, int(token.which), args[0].numpy().tobytes() + args[1].numpy().tobytes())
            )
        return call(*args)

    return spied


def dropout_problem():
    torch.manual_seed(0)
    data = torch.randn(32, 4)
    layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    return BilevelProblem(
        upper=lambda x, y, b: y(b).square().mean(),
        lower=lambda x, y, b: (
            (y(b) - 1).square().mean() + x.exp().sum() * y["0.weight"].square().sum()
        ),
        x=torch.zeros(1),
        y=layer,
        upper_data=data[:16],
        lower_data=data[16:],
        batch_size=8,
    )


def test_a_token_re_creates_dropout():
    problem = dropout_problem()
    oracle = TorchOracle(problem)
    try_problem(oracle)
    assert oracle.seeded
    x, y = oracle.start
    before = torch.get_rng_state()
    first, again, other = (oracle.lower(x, y, Sample(0, seed)) for seed in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())  # the user's random state is left alone
    g_y, _, _ = oracle.system(x, y, torch.ones_like(y), Sample(0, 7))
    np.testing.assert_allclose(g_y, first, rtol=1e-5, atol=1e-7)
    quiet = TorchOracle(QUADRATIC.problem(16))
    try_problem(quiet)
    assert not quiet.seeded


def test_runs_with_dropout_repeat_and_do_not_depend_on_the_global_state():
    method = SLIP(lr_x=0.01, lr_y=0.05, lr_z=0.05)
    problem = dropout_problem()
    torch.manual_seed(1)
    a = solve(problem, method, steps=15, seed=2).state
    torch.manual_seed(99)
    b = solve(problem, method, steps=15, seed=2, callbacks=lambda s: torch.randn(3) is None).state
    c = solve(problem, method, steps=15, seed=3).state
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.y, b.y)
    assert not torch.equal(a.y, c.y)


def test_slip_with_frozen_x_is_sgd_on_y():
    problem = QUADRATIC.problem(16)
    problem.project_x = lambda x: QUADRATIC.x0
    slip = SLIP(lr_x=0.5, lr_y=0.1, lr_z=0.1, warm_start=3, samples="shared")
    solution = solve(problem, slip, steps=50, seed=4)
    oracle = TorchOracle(problem)
    y = QUADRATIC.y0.clone()
    data = problem.lower_data
    warm, later = data.draw(4, "lower.warm", 0, 3), data.draw(4, "lower", 0, 50)
    for which in np.concatenate([warm.which, later.which]):
        y = y - 0.1 * oracle.lower(QUADRATIC.x0, y, Sample(int(which)))
    np.testing.assert_allclose(solution.state.y, y, rtol=1e-12)
    assert torch.equal(solution.state.x, QUADRATIC.x0)


def test_variance_reduced_methods_reach_machine_precision_and_plain_ones_stall():
    problem = QUADRATIC.problem(32)
    level = {}
    for name, method in {
        "saba": SABA(lr_x=0.05, lr_y=0.5),
        "srba": SRBA(lr_x=0.05, lr_y=0.5, period=6),
        "soba": SOBA(lr_x=Constant(0.05), lr_y=Constant(0.5)),
    }.items():
        state = solve(problem, method, steps=1300).state
        level[name] = float(QUADRATIC.hypergradient(state.x).square().sum())
    assert level["saba"] < 1e-12
    assert level["srba"] < 1e-12
    assert level["soba"] > 1e-6
