"""The literal transcriptions themselves: derivatives, series against their limit, all sixteen
converge.

What they are compared with, the wing's methods, is tested elsewhere; here the yardstick is checked.
"""

from __future__ import annotations

import numpy as np
import pytest
from references import bilevel_linsys as linsys, bilevel_neumann as neumann, bilevel_other as other
from references.bilevel_methods import REFERENCES
from references.bilevel_oracles import ALL, into_ball, neumann_random, neumann_sum
from references.bilevel_small import numpy_oracles, small_quadratic

QUADRATIC = small_quadratic(seed=4)
ORACLES = numpy_oracles(QUADRATIC)
X0, Y0 = QUADRATIC.x0.numpy(), QUADRATIC.y0.numpy()
START = float(np.sum(ORACLES.hypergradient(X0) ** 2))


def test_oracles_are_derivatives_of_the_loss():
    from mindgap.lab.tasks.problems.quadratic import quadratic_loss

    rng = np.random.default_rng(0)
    x, y, S = rng.normal(size=3), rng.normal(size=6), np.array([3, 11, 40])
    import torch

    def value(samples, x, y):
        batch = tuple(part[S] for part in samples)
        return float(quadratic_loss(torch.from_numpy(x), torch.from_numpy(y), batch))

    def slope(samples, which):
        point = (x, y)[which]
        step = 1e-5
        out = np.zeros_like(point)
        for i in range(len(point)):
            e = np.zeros_like(point)
            e[i] = step
            ahead = (x + e, y) if which == 0 else (x, y + e)
            behind = (x - e, y) if which == 0 else (x, y - e)
            out[i] = (value(samples, *ahead) - value(samples, *behind)) / (2 * step)
        return out

    o = ORACLES
    np.testing.assert_allclose(o.g_x(x, y, S), slope(QUADRATIC.lower_samples, 0), rtol=1e-8)
    np.testing.assert_allclose(o.g_y(x, y, S), slope(QUADRATIC.lower_samples, 1), rtol=1e-8)
    np.testing.assert_allclose(o.f_x(x, y, S), slope(QUADRATIC.upper_samples, 0), rtol=1e-8)
    np.testing.assert_allclose(o.f_y(x, y, S), slope(QUADRATIC.upper_samples, 1), rtol=1e-8)
    z, t = (
        rng.normal(size=6),
        rng.normal(size=3),
    )  # H and J are derivatives of g_y (linear: exact differences)
    np.testing.assert_allclose(o.H(x, y, S) @ z, o.g_y(x, y + z, S) - o.g_y(x, y, S), rtol=1e-10)
    np.testing.assert_allclose(o.J(x, y, S).T @ t, o.g_y(x + t, y, S) - o.g_y(x, y, S), rtol=1e-10)


def test_neumann_series_against_the_inverse():
    o, v = ORACLES, np.arange(1.0, 7.0)
    exact = np.linalg.solve(o.H(X0, Y0, ALL), v)
    eta = 0.8 / np.linalg.eigvalsh(o.H(X0, Y0, ALL))[-1]
    np.testing.assert_allclose(neumann_sum(o, X0, Y0, v, eta, [ALL] * 2000), exact, rtol=1e-10)
    N = 7  # the mean over k of the randomised series is the sum with Q = N - 1
    mean = np.mean([neumann_random(o, X0, Y0, v, eta, N, [ALL] * k) for k in range(N)], axis=0)
    np.testing.assert_allclose(mean, neumann_sum(o, X0, Y0, v, eta, [ALL] * (N - 1)), rtol=1e-13)


def test_ball():
    centre, v = np.array([1.0, 0.0]), np.array([4.0, 4.0])
    np.testing.assert_allclose(into_ball(v, centre, 2.5), [2.5, 2.0])
    assert into_ball(v, centre, 5.0) is v


class Draws:
    """Index batches: reshuffled epochs, and fixed batches with their numbers where a method
    needs those.
    """

    def __init__(self, seed, batch=16):
        self.rng, self.batch = np.random.default_rng(seed), batch

    def lower(self, count=None):
        return self._many(ORACLES.lower.n, count)

    def upper(self, count=None):
        return self._many(ORACLES.upper.n, count)

    def _many(self, n, count):
        one = [
            self.rng.choice(n, self.batch, replace=False)
            for _ in range(1 if count is None else count)
        ]
        return one[0] if count is None else one

    def fixed(self, n):
        i = int(self.rng.integers(n // self.batch))
        return i, np.arange(i * self.batch, (i + 1) * self.batch), self.batch / n


def _bundle(draw, factors):
    return {"g": draw.lower(), "f": draw.upper(), "J": draw.lower(), "H": draw.lower(factors)}


def _linsys(draw, k):
    return {"g": draw.lower(), "g'": draw.lower(), "f": draw.upper()}


def _borep(draw, k):
    return {"g": draw.lower(3), "g'": draw.lower(), "f": draw.upper()}


def _saba(draw, k):
    (i, g, w_i), (j, f, w_j) = draw.fixed(ORACLES.lower.n), draw.fixed(ORACLES.upper.n)
    return {"g": g, "f": f, "i": i, "j": j, "w_i": w_i, "w_j": w_j}


def _amigo(draw, k):
    return {"g": draw.lower(5), "H": draw.lower(5), "f": draw.upper(), "J": draw.lower()}


def _neumann(draw, k, T=5):
    return {
        "g": draw.lower(T),
        "f": draw.upper(),
        "J": draw.lower(),
        "H": draw.lower(int(draw.rng.integers(20))),
    }


def _one_y(draw, k):
    return {**_neumann(draw, k), "g": draw.lower()}


def _vrbo(draw, k):
    big = {"g": ALL, "f": ALL, "J": ALL, "H": [ALL] * 20}
    return {"big": big, "small": [_bundle(draw, 20) for _ in range(4)]}


def _f2sa(draw, k):
    T = 5
    return {
        "w": (shared := draw.lower(T)),
        "y": shared,
        "zeta": draw.upper(T),
        "f": draw.upper(),
        "1": (s := draw.lower()),
        "2": s,
    }


def _third(k, c=1.0):
    return c / (10 + k) ** (1 / 3)


NEUMANN = {"eta": 0.3, "N": 20}
# name -> (samples of a step, letters of step k, arguments of the first state, steps, level reached)
# x moves several times slower than y and z: with equal steps the joint linear system of this
# problem has a mode of rate 0.002, and nobody converges in these numbers of steps.
RUNS = {
    "slip": (
        _linsys,
        lambda k: {"alpha": 0.1, "gamma": 0.1, "beta": 0.9, "eta": 0.02 / (1 + k / 300)},
        "warm",
        900,
        1e-2,
    ),
    "borep": (
        _borep,
        lambda k: {
            "alpha": 0.1,
            "nu": 0.1,
            "beta": 0.9,
            "eta": 0.02 / (1 + k / 300),
            "period_I": 2,
            "R": 1.0,
        },
        "epochs",
        1500,
        1e-2,
    ),
    "soba": (_linsys, lambda k: {"c": 1.0, "c_x": 0.2}, None, 3000, 3e-2),
    "saba": (_saba, lambda k: {"rho": 0.1, "gamma": 0.02}, "tables", 4000, 1e-8),
    "masoba": (
        _linsys,
        lambda k: {"alpha": 0.05, "beta": 0.1, "gamma": 0.1, "theta": 0.1},
        None,
        1000,
        5e-2,
    ),
    "srba": (_linsys, lambda k: {"rho": 0.3, "gamma": 0.03, "q": 10, "R": 100.0}, None, 1500, 1e-8),
    "amigo": (_amigo, lambda k: {"alpha": 0.1, "beta": 0.1, "gamma": 0.05}, None, 600, 5e-2),
    "bsa": (
        _neumann,
        lambda k: dict(beta=0.3, alpha=0.3, beta_exponent=0.5, **NEUMANN),
        None,
        600,
        1e-1,
    ),
    "alset": (_neumann, lambda k: dict(beta_k=0.1, alpha_k=0.03, **NEUMANN), None, 600, 1e-1),
    "ttsa": (_one_y, lambda k: dict(a=0.5, b=0.5, **NEUMANN), None, 1000, 1e-1),
    "stocbio": (
        lambda d, k: {**_neumann(d, k), "H": d.lower(20)},
        lambda k: {"alpha": 0.1, "beta": 0.05, "eta": 0.3},
        None,
        500,
        1e-1,
    ),
    "mrbo": (
        lambda d, k: _bundle(d, 20),
        lambda k: {"gamma": 0.2, "lam": 0.4, "d": 1.0, "m": 10, "c1": 2.0, "c2": 2.0, "eta": 0.3},
        None,
        600,
        5e-2,
    ),
    "sustain": (
        lambda d, k: _bundle(d, int(d.rng.integers(20))),
        lambda k: dict(c_alpha=0.2, w=10, c_beta=2.0, c_f=20.0, c_g=20.0, **NEUMANN),
        None,
        600,
        1e-1,
    ),
    "vrbo": (
        _vrbo,
        lambda k: {"alpha": 0.1, "beta": 0.1, "q": 5, "eta": 0.3, "m": 3},
        None,
        150,
        5e-2,
    ),
    "svrb": (
        _linsys,
        lambda k: {"tau": 2.0, "eta_k": _third(k, 0.2), "a_k": _third(k) ** 2, "mu": 0.05},
        None,
        800,
        5e-2,
    ),
    "f2sa": (
        _f2sa,
        lambda k: {"gamma_k": 0.1, "alpha_k": 0.05 / (5 + 0.01 * k), "xi": 10.0, "delta_k": 0.01},
        "lam",
        600,
        1e-1,
    ),
}


def _first(name, draw, kind):
    init = REFERENCES[name][0]
    if kind == "warm":
        return init(ORACLES, X0, Y0, draw.lower(3), alpha_init=0.1)
    if kind == "epochs":
        return init(ORACLES, X0, Y0, [draw.lower(2), draw.lower(4)], alpha_0=0.1, D_0=5.0)
    if kind == "tables":
        return init(ORACLES, X0, Y0, ORACLES.lower.n // 16, ORACLES.upper.n // 16)
    if kind == "lam":
        return init(ORACLES, X0, Y0, 5.0)
    return init(ORACLES, X0, Y0)


@pytest.mark.parametrize("name", RUNS)
def test_every_transcription_converges(name):
    samples, letters, kind, steps, level = RUNS[name]
    draw = Draws(0)
    state = _first(name, draw, kind)
    for k in range(steps):
        state = REFERENCES[name][1](ORACLES, state, samples(draw, k), **letters(k))
    reached = float(np.sum(ORACLES.hypergradient(state["x"]) ** 2))
    assert START > 1.0
    assert reached < level, f"{name}: {reached:.2e} from {START:.2e}"


def _steps(function, state, samples, **letters):
    for S in samples:
        state = function(ORACLES, state, S, **letters)
    return state


def assert_states_close(a, b, *names):
    for name in names:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-12, atol=1e-14)


def test_identities_between_transcriptions():
    """What must coincide with the samples forced equal."""
    draw = Draws(3)
    samples = [_linsys(draw, k) for k in range(30)]
    same = [{**S, "g'": S["g"]} for S in samples]
    start = linsys.soba_init(ORACLES, X0, Y0)
    slip = _steps(
        linsys.slip,
        {**start, "m": np.zeros(3)},
        same,
        alpha=0.1,
        gamma=0.1,
        beta=0.0,
        eta=0.05,
        normalise=False,
    )
    soba = _steps(linsys.soba, start, same, c=0.1, c_x=0.05, exponent=0.0)
    assert_states_close(slip, soba, "x", "y", "z")
    delayed = _steps(
        linsys.masoba, {**start, "h": np.zeros(3)}, same, alpha=0.05, beta=0.1, gamma=0.1, theta=1.0
    )
    # theta = 1: the direction of the step before, so x lags by one step, and y and z see the
    # lagging x
    assert not np.allclose(delayed["x"], soba["x"])
    lists = [{"g": [S["g"]], "H": [S["g"]], "f": S["f"], "J": S["g"]} for S in same]
    amigo = _steps(linsys.amigo, start, lists, alpha=0.1, beta=0.1, gamma=0.05)
    x, y, z = X0, Y0, np.zeros(6)  # SOBA in sequential order
    for S in same:
        y = y - 0.1 * ORACLES.g_y(x, y, S["g"])
        z = z - 0.1 * (ORACLES.H(x, y, S["g"]) @ z - ORACLES.f_y(x, y, S["f"]))
        x = x - 0.05 * (ORACLES.f_x(x, y, S["f"]) - ORACLES.J(x, y, S["g"]) @ z)
    assert_states_close(amigo, {"x": x, "y": y, "z": z}, "x", "y", "z")

    bundles = [_bundle(draw, 5) for _ in range(30)]
    point = neumann.point_init(ORACLES, X0, Y0)
    one = [{**S, "g": [S["g"]]} for S in bundles]
    alset = point
    for k, S in enumerate(one):
        alset = neumann.alset(
            ORACLES, alset, S, beta_k=0.2 / (1 + k) ** 0.4, alpha_k=0.1 / (1 + k) ** 0.6, **NEUMANN
        )
    assert_states_close(
        alset, _steps(neumann.ttsa, point, bundles, a=0.1, b=0.2, **NEUMANN), "x", "y"
    )

    storm = neumann.storm_init(ORACLES, X0, Y0)
    mrbo = _steps(
        neumann.mrbo,
        storm,
        bundles,
        gamma=0.1,
        lam=0.2,
        d=1.0,
        m=1,
        c1=0,
        c2=0,
        eta=0.3,
        alpha=1.0,
        beta=1.0,
    )
    x, y = X0, Y0  # StocBiO(T = 1) in simultaneous order
    for k, S in enumerate(bundles):
        step = 1 / (1 + k) ** (1 / 3)
        x, y = (
            x - 0.1 * step * neumann.hypergradient_sum(ORACLES, x, y, S, 0.3),
            y - 0.2 * step * ORACLES.g_y(x, y, S["g"]),
        )
    assert_states_close(mrbo, {"x": x, "y": y}, "x", "y")


def test_full_batches_make_the_variance_reduced_methods_gradient_descent():
    everything = {"g": ALL, "f": ALL, "i": 0, "j": 0, "w_i": 1.0, "w_j": 1.0}
    start = linsys.soba_init(ORACLES, X0, Y0)
    plain = _steps(linsys.soba, start, [everything] * 20, c=0.1, c_x=0.1, exponent=0.0)
    saba = _steps(
        linsys.saba, linsys.saba_init(ORACLES, X0, Y0, 1, 1), [everything] * 20, rho=0.1, gamma=0.1
    )
    srba = _steps(
        linsys.srba, linsys.srba_init(ORACLES, X0, Y0), [everything] * 20, rho=0.1, gamma=0.1, q=7
    )
    assert_states_close(saba, plain, "x", "y", "z")
    assert_states_close(srba, plain, "x", "y", "z")


def test_svrb_with_weight_one_and_full_batches_is_the_exact_direction():
    start = other.svrb_init(ORACLES, X0, Y0)
    S = {"g": ALL, "f": ALL}
    once = other.svrb(ORACLES, start, S, tau=1.0, eta_k=0.1, a_k=1.0, mu=1e-9)
    z = np.linalg.solve(ORACLES.H(X0, Y0, ALL), ORACLES.f_y(X0, Y0, ALL))
    np.testing.assert_allclose(
        once["x"], X0 - 0.1 * (ORACLES.f_x(X0, Y0, ALL) - ORACLES.J(X0, Y0, ALL) @ z)
    )
