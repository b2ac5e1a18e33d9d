"""One record a bilevel method: settings of the exact tests, its transcription's letters, bad
settings.

``letters(method, t)`` gives the transcription's keyword arguments at iteration t; ``samples(s,
idx)`` translates the draws of an iteration into its dict of index arrays (``idx(level, token)``).
Exceptions stand here, not in the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from references.bilevel_further import normals

from mindgap.bilevel import METHODS
from mindgap.bilevel.core.directions import epoch_sgd_lengths
from mindgap.bilevel.core.settings import Power, Product
from mindgap.bilevel.data.draws import part_of
from mindgap.bilevel.data.sample import Sample, row


@dataclass(frozen=True)
class Case:
    key: str
    settings: dict[str, Any]
    letters: Callable[[Any, int], dict[str, Any]]
    samples: Callable[[Any, Any], dict[str, Any]]
    bad: list[tuple[dict[str, Any], str]]
    init: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]] | None = None
    names: dict[str, str] = field(default_factory=dict)
    variant: str = ""

    @property
    def id(self) -> str:
        return f"{self.key}-{self.variant}" if self.variant else self.key

    def make(self, **changes: Any) -> Any:
        return METHODS[self.key](**{**self.settings, **changes})


def many(token: Any) -> list[Any]:
    return [row(token, i) for i in range(len(token.which))]


def _steps(s, idx):  # g, f of the SOBA family
    return {"g": idx("lower", s["g"]), "f": idx("upper", s["f"])}


def _neumann(s, idx, *, loop=True):
    factors = many(s["h"])
    if "k" in s:
        factors = factors[: s["k"]]
    g = many(s["y"])[: s.get("inner", None)] if loop else s["y"]
    return {
        "g": [idx("lower", b) for b in g] if loop else idx("lower", g),
        "f": idx("upper", s["f"]),
        "J": idx("lower", s["j"]),
        "H": [idx("lower", b) for b in factors],
    }


def _single(s, idx):
    return _neumann(s, idx, loop=False)


def _pzobo(s, idx):
    return {
        "y": [idx("lower", b) for b in many(s["y"])],
        "f": idx("upper", s["f"]),
        "u": np.array([normals(int(seed), idx.problem.dim_x) for seed in s["u"].which]),
    }


def _saba(s, idx):
    i, j = s["g"].which, s["f"].which
    return {
        **_steps(s, idx),
        "i": i,
        "j": j,
        "w_i": idx.weight("lower", i),
        "w_j": idx.weight("upper", j),
    }


def _vrbo(s, idx):
    small = [
        {
            "g": idx("lower", g),
            "f": idx("upper", f),
            "J": idx("lower", j),
            "H": [idx("lower", b) for b in many(h)],
        }
        for g, f, j, h in zip(many(s["y"]), many(s["f"]), many(s["j"]), many(s["h"]), strict=True)
    ]
    return {
        "big": {"g": None, "f": None, "J": None, "H": [None] * len(many(s["h"])[0].which)},
        "small": small,
    }


def _f2sa(s, idx):
    at_w, gw = ("w", "gw") if "w" in s else ("y", "gx")
    return {
        "w": [idx("lower", b) for b in many(s[at_w])],
        "y": [idx("lower", b) for b in many(s["y"])],
        "zeta": [idx("upper", b) for b in many(s["f"])],
        "f": idx("upper", s["fx"]),
        "1": idx("lower", s["gx"]),
        "2": idx("lower", s[gw]),
    }


def _f2sa_letters(m, t):
    n = m.rates(np.asarray(t))
    lam = m.lam + sum(float(m.rates(np.asarray(i))["delta"]) for i in range(t))
    gamma = float(n["lr_y"])
    alpha = gamma / (2 * lam) if m.alpha is None else float(n["alpha"])
    return {
        "gamma_k": gamma,
        "alpha_k": alpha,
        "xi": float(n["lr_x"]),
        "delta_k": float(n["delta"]),
    }


def _growing(t):
    return (t + 1.0) ** (1 / 7)


def _all(s, idx):
    """Every token under its own name ("j" as "J"); arrays of tokens as lists."""
    found = {}
    for name, token in s.items():
        if isinstance(token, Sample):
            level = "upper" if name in ("f", "fx") else "lower"
            single = np.ndim(token.which) == idx.axes(level)
            found["J" if name == "j" else name] = (
                idx(level, token) if single else [idx(level, t) for t in many(token)]
            )
    return found


def _svrb_letters(m, t):
    eta = m.lr_x * m.d / (m.m + t) ** (1 / 3)
    a = min(1.0, m.c * (m.d / (m.m + t - 1) ** (1 / 3)) ** 2) if t else 1.0
    return {"tau": m.lr_y / m.lr_x, "eta_k": eta, "a_k": a, "mu": m.mu}


def _borep_init(method, draws, idx):
    parts, begin = [], 0
    for count in epoch_sgd_lengths(method.refine_steps, method.refine):
        parts.append([idx("lower", b) for b in many(part_of(draws["warm"], begin, begin + count))])
        begin += count
    return (parts,), {"alpha_0": method.lr_y, "D_0": method.refine_radius}


def _slip_letters(m, t):
    return {"alpha": m.lr_y, "gamma": m.lr_z, "beta": m.beta, "eta": m.lr_x, "eps": 1e-10}


def _slip(s, idx):
    return {
        "g": idx("lower", s.get("y", s["z"])),
        "g'": idx("lower", s["z"]),
        "f": idx("upper", s["f"]),
    }


def _slip_init(method, draws, idx):
    return ([idx("lower", b) for b in many(draws["warm"])],), {"alpha_init": method.lr_y}


SLIP = {"lr_x": 0.02, "lr_y": 0.1, "lr_z": 0.1, "beta": 0.9}
NEUMANN = {"lr_x": 0.05, "lr_y": 0.1, "eta": 0.2, "terms": 4}
BAD_STEP = [
    ({"lr_x": 0.0}, r"lr_x must be positive and finite, got 0.0"),
    ({"lr_y": float("nan")}, r"lr_y must be .*got nan"),
    ({"lr_y": "fast"}, r"lr_y must be a .*number.*got 'fast'"),
    ({"x_step": "newton"}, r"x_step must be one of 'plain', 'normalised', 'clipped', got 'newton'"),
]
BAD_NEUMANN = [
    ({"eta": -1.0}, r"eta must be positive and finite, got -1.0"),
    ({"terms": 0}, r"terms must be a whole number of at least 1, got 0"),
]

CASES = [
    Case(
        "slip",
        SLIP,
        _slip_letters,
        _slip,
        [
            *BAD_STEP,
            ({"beta": 1.0}, r"beta must lie in \[0, 1\), got 1.0"),
            ({"warm_start": -1}, r"warm_start must be a whole number of at least 0, got -1"),
            ({"order": "gauss"}, r"order must be one of 'jacobi', 'seidel', got 'gauss'"),
        ],
        init=_slip_init,
    ),
    Case(
        "slip",
        {**SLIP, "samples": "shared"},
        _slip_letters,
        _slip,
        BAD_STEP,
        init=_slip_init,
        variant="shared",
    ),
    Case(
        "slip",
        {**SLIP, "samples": "as released"},
        lambda m, t: {**_slip_letters(m, t), "released": True},
        lambda s, idx: {
            "g": idx("lower", s["z"]),
            "f": idx("upper", s["f"]),
            "J": idx("lower", s["j"]),
        },
        BAD_STEP,
        init=_slip_init,
        variant="released",
    ),
    Case(
        "borep",
        {**SLIP, "radius": 0.5, "refine_radius": 2.0},
        lambda m, t: {
            "alpha": m.lr_y,
            "nu": m.lr_z,
            "beta": m.beta,
            "eta": m.lr_x,
            "period_I": m.period,
            "R": m.radius,
            "eps": 1e-10,
        },
        lambda s, idx: {
            "g": [idx("lower", b) for b in many(s["y"])] if "y" in s else [],
            "g'": idx("lower", s["z"]),
            "f": idx("upper", s["f"]),
        },
        [
            *BAD_STEP,
            ({"period": 0}, r"period must be a whole number of at least 1, got 0"),
            ({"radius": 0.0}, r"radius must be positive, got 0.0"),
        ],
        init=_borep_init,
    ),
    Case(
        "soba",
        {"lr_x": 0.1, "lr_y": 0.2},
        lambda m, t: {"c": m.lr_y, "c_x": m.lr_x},
        _steps,
        BAD_STEP,
    ),
    Case(
        "saba",
        {"lr_x": 0.05, "lr_y": 0.1},
        lambda m, t: {"rho": m.lr_y, "gamma": m.lr_x},
        _saba,
        BAD_STEP,
        init=lambda m, d, idx: ((idx.batches("lower"), idx.batches("upper")), {}),
        names={"M": "rows"},
    ),
    Case(
        "masoba",
        {"lr_x": 0.05, "lr_y": 0.1, "lr_z": 0.1, "theta": 0.2},
        lambda m, t: {"alpha": m.lr_x, "beta": m.lr_y, "gamma": m.lr_z, "theta": m.theta},
        _steps,
        [*BAD_STEP, ({"theta": 0.0}, r"theta must lie in \(0, 1\], got 0.0")],
    ),
    Case(
        "srba",
        {"lr_x": 0.05, "lr_y": 0.1, "period": 8, "radius": 3.0},
        lambda m, t: {"rho": m.lr_y, "gamma": m.lr_x, "q": m.period, "R": m.radius},
        lambda s, idx: _steps(s, idx) if "g" in s else {},
        [*BAD_STEP, ({"period": 0}, r"period must be a whole number of at least 1, got 0")],
    ),
    Case(
        "amigo",
        {"lr_x": 0.05, "lr_y": 0.1, "lr_z": 0.05, "inner": 3, "solves": 4},
        lambda m, t: {"alpha": m.lr_y, "beta": m.lr_z, "gamma": m.lr_x},
        lambda s, idx: {
            "g": [idx("lower", b) for b in many(s["y"])],
            "H": [idx("lower", b) for b in many(s["z"])],
            "f": idx("upper", s["f"]),
            "J": idx("lower", s["j"]),
        },
        [*BAD_STEP, ({"solves": 0}, r"solves must be a whole number of at least 1, got 0")],
    ),
    Case(
        "bsa",
        {**NEUMANN, "inner": "sqrt"},
        lambda m, t: {"beta": m.lr_y, "alpha": m.lr_x, "eta": m.eta, "N": m.terms},
        _neumann,
        [
            *BAD_STEP,
            *BAD_NEUMANN,
            ({"inner": "log"}, r"inner must be a whole number of at least 1, or 'sqrt'"),
            ({"inner_exponent": -1.0}, r"inner_exponent must be zero or positive"),
        ],
        names={"y_cold": "y0"},
    ),
    Case(
        "alset",
        {**NEUMANN, "inner": 3},
        lambda m, t: {"beta_k": m.lr_y, "alpha_k": m.lr_x, "eta": m.eta, "N": m.terms},
        _neumann,
        [
            *BAD_STEP,
            *BAD_NEUMANN,
            ({"inner": 0}, r"inner must be a whole number of at least 1, got 0"),
        ],
    ),
    Case(
        "ttsa",
        NEUMANN,
        lambda m, t: {"a": m.lr_x, "b": m.lr_y, "eta": m.eta, "N": m.terms},
        _single,
        [*BAD_STEP, *BAD_NEUMANN],
    ),
    Case(
        "stocbio",
        {**NEUMANN, "inner": 3},
        lambda m, t: {"alpha": m.lr_y, "beta": m.lr_x, "eta": m.eta},
        _neumann,
        [
            *BAD_STEP,
            *BAD_NEUMANN,
            ({"inner": 0}, r"inner must be a whole number of at least 1, got 0"),
        ],
    ),
    Case(
        "mrbo",
        {**NEUMANN, "d": 1.2, "m": 2.0, "c_x": 0.6, "c_y": 0.8},
        lambda m, t: {
            "gamma": m.lr_x,
            "lam": m.lr_y,
            "d": m.d,
            "m": m.m,
            "c1": m.c_x,
            "c2": m.c_y,
            "eta": m.eta,
        },
        _single,
        [*BAD_STEP[:1], *BAD_NEUMANN, ({"d": 0.0}, r"d must be positive and finite, got 0.0")],
    ),
    Case(
        "sustain",
        {**NEUMANN, "w": 2.0, "c_x": 0.6, "c_y": 0.8},
        lambda m, t: {
            "c_alpha": m.lr_x,
            "w": m.w,
            "c_beta": m.lr_y / m.lr_x,
            "c_f": m.c_x / m.lr_x**2,
            "c_g": m.c_y / m.lr_x**2,
            "eta": m.eta,
            "N": m.terms,
        },
        _single,
        [*BAD_STEP[:1], *BAD_NEUMANN, ({"w": 0.0}, r"w must be positive and finite, got 0.0")],
    ),
    Case(
        "vrbo",
        {**NEUMANN, "terms": 2, "inner": 2, "period": 4},
        lambda m, t: {"alpha": m.lr_x, "beta": m.lr_y, "q": m.period, "eta": m.eta, "m": m.inner},
        _vrbo,
        [
            *BAD_STEP,
            *BAD_NEUMANN,
            ({"refresh": 0}, r"refresh must be a whole number of at least 1, got 0"),
        ],
    ),
    Case(
        "svrb",
        {"lr_x": 0.05, "lr_y": 0.1, "mu": 0.05, "d": 1.2, "m": 2.0, "c": 0.6},
        _svrb_letters,
        _steps,
        [*BAD_STEP[:1], ({"mu": 0.0}, r"mu must be positive and finite, got 0.0")],
    ),
    Case(
        "f2sa",
        {"lr_x": 0.5, "lr_y": 0.2, "lam": 5.0, "delta": 0.3, "inner": 2},
        _f2sa_letters,
        _f2sa,
        [
            *BAD_STEP[:1],
            ({"lam": 0.0}, r"lam must be positive and finite, got 0.0"),
            ({"delta": -1.0}, r"delta must be positive and finite, got -1.0"),
        ],
        init=lambda m, d, idx: ((m.lam,), {}),
    ),
    # The schedules of the public benchmark code.
    Case(
        "f2sa",
        {
            "lr_x": Product(0.1, _growing),
            "lr_y": 0.1,
            "lam": 1.0,
            "inner": 2,
            "delta": Power(0.1, 1 / 7),
            "alpha": 0.1,
        },
        _f2sa_letters,
        _f2sa,
        [({"alpha": 0.0}, r"alpha must be positive and finite, got 0.0")],
        init=lambda m, d, idx: ((m.lam,), {}),
        variant="benchmark",
    ),
    # Beyond the sixteen.
    Case(
        "fsla",
        {"lr_x": 0.05, "lr_y": 0.1, "weight": 0.6},
        lambda m, t: {"rho": m.lr_y, "gamma": m.lr_x, "a_k": m.weight / (t + 1) ** 0.5},
        _all,
        BAD_STEP,
    ),
    Case(
        "pbgd",
        {"lr_x": 0.02, "lr_y": 0.1, "lam": 5.0, "inner": 2},
        lambda m, t: {"alpha": m.lr_x, "beta": m.lr_y, "gamma": m.lam},
        _all,
        [*BAD_STEP, ({"lam": 0.0}, r"lam must be positive and finite, got 0.0")],
    ),
    Case(
        "pzobo",
        {"lr_x": 0.02, "lr_y": 0.1, "inner": 2, "directions": 3, "mu": 0.05},
        lambda m, t: {"lr_x": m.lr_x, "lr_y": m.lr_y, "mu": m.mu},
        _pzobo,
        [*BAD_STEP, ({"directions": 0}, r"directions must be a whole number of at least 1, got 0")],
    ),
    Case(
        "bome",
        {"lr_x": 0.05, "lr_y": 0.1, "eta": 0.4, "inner": 3},
        lambda m, t: {"lr_x": m.lr_x, "lr_y": m.lr_y, "eta": m.eta},
        _all,
        [*BAD_STEP, ({"inner": 0}, r"inner must be a whole number of at least 1, got 0")],
    ),
    Case(
        "meha",
        {"lr_x": 0.05, "lr_y": 0.1, "lr_w": 0.08, "gamma": 2.0, "c": 1.5, "power": 0.4},
        lambda m, t: {
            "alpha": m.lr_x,
            "beta": m.lr_y,
            "eta": m.lr_w,
            "gamma": m.gamma,
            "c": m.c,
            "p": m.power,
        },
        _all,
        [*BAD_STEP, ({"power": -1.0}, r"power must be zero or positive")],
    ),
    Case(
        "sama",
        {"lr_x": 0.05, "lr_y": 0.1, "scale": 0.7, "inner": 2},
        lambda m, t: {"lr_x": m.lr_x, "lr_y": m.lr_y, "alpha": m.scale, "epsilon": m.radius},
        _all,
        [*BAD_STEP, ({"radius": 0.0}, r"radius must be positive and finite, got 0.0")],
    ),
    Case(
        "f2sa-p",
        {"lr_x": 0.05, "lr_y": 0.1, "nu": 0.2, "p": 4, "inner": 2},
        lambda m, t: {"lr_x": m.lr_x, "lr_y": m.lr_y, "nu": m.nu, "weights": m.nodes()},
        _all,
        [*BAD_STEP, ({"p": 3}, r"p must be 2 or 4, got 3")],
        init=lambda m, d, idx: ((m.p,), {}),
    ),
    Case(
        "n2sba",
        {"lr_x": 0.02, "lr_y": 0.1, "lam": 5.0, "inner": 2, "batches": 2, "clip": 0.5},
        lambda m, t: {"eta_x": m.lr_x, "lr_y": m.lr_y, "lam": m.lam, "tau": m.clip, "eps": 1e-10},
        _all,
        [*BAD_STEP, ({"clip": 0.0}, r"clip must be positive, got 0.0")],
    ),
    Case(
        "spaba",
        {"lr_x": 0.05, "lr_y": 0.1, "period": 4, "radius": 3.0},
        lambda m, t: {"rho": m.lr_y, "gamma": m.lr_x, "R": m.radius},
        lambda s, idx: {**_steps(s, idx), "coin": s["coin"] == 0},
        [*BAD_STEP, ({"period": 0}, r"period must be a whole number of at least 1, got 0")],
    ),
    Case(
        "adambo",
        {**NEUMANN, "lr_x": 0.02, "inner": 2},
        lambda m, t: {"lr_x": m.lr_x, "alpha": m.lr_y, "eta": m.eta},
        _neumann,
        [*BAD_STEP, *BAD_NEUMANN],
        init=lambda m, d, idx: (([idx("lower", b) for b in many(d["warm"])],), {"alpha": m.lr_y}),
    ),
    Case(
        "accbo",
        {**NEUMANN, "lr_x": 0.02, "gamma": 0.4, "tau": 0.6, "beta": 0.8},
        lambda m, t: {
            "lr_x": m.lr_x,
            "alpha": m.lr_y,
            "gamma": m.gamma,
            "tau": m.tau,
            "beta": m.beta,
            "eta": m.eta,
            "N": m.terms,
            "eps": 1e-10,
        },
        _single,
        [*BAD_STEP, *BAD_NEUMANN, ({"tau": 0.0}, r"tau must lie in \(0, 1\], got 0.0")],
        init=lambda m, d, idx: (([idx("lower", b) for b in many(d["warm"])],), {"alpha": m.lr_y}),
    ),
]
BY_KEY = {case.key: case for case in CASES if not case.variant}
