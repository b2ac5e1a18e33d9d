"""The default settings of every method, as documented, and what its rates are by default."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields, replace

import pytest
import torch
from references.bilevel_small import small_quadratic

from mindgap.base.check import RuleError
from mindgap.bilevel import METHODS, AdamStep
from mindgap.bilevel.core.settings import with_equal_rates
from mindgap.bilevel.methods.f2sap import WEIGHTS
from mindgap.bilevel.tools.step_advice import StepAdvice

#: Settings that have a default, beside the steps; "x_step" where it is not "plain".
DEFAULTS = {
    "bsa": {"eta": 0.5, "terms": 10, "inner": 10, "inner_exponent": 1.0, "warm": False},
    "stocbio": {"eta": 0.5, "terms": 10, "inner": 10, "order": "seidel"},
    "amigo": {"lr_z": None, "inner": 10, "solves": 10},
    "alset": {"eta": 0.5, "terms": 10, "inner": 10},
    "ttsa": {"eta": 0.5, "terms": 10},
    "f2sa": {"lam": 10.0, "delta": 0.1, "inner": 1, "alpha": None, "shared_samples": False},
    "soba": {"lr_z": None, "order": "jacobi"},
    "saba": {"lr_z": None, "memory_limit": None},
    "masoba": {"lr_z": None, "theta": 0.1, "delayed": True},
    "borep": {
        "beta": 0.9,
        "period": 2,
        "inner": 3,
        "radius": math.inf,
        "refine": 2,
        "refine_steps": 4,
        "lr_refine": None,
        "refine_radius": math.inf,
        "warm_start": 0,
        "x_step": "normalised",
    },
    "slip": {
        "beta": 0.9,
        "warm_start": 3,
        "lr_warm": None,
        "samples": "apart",
        "order": "jacobi",
        "x_step": "normalised",
    },
    "vrbo": {"eta": 0.5, "terms": 10, "inner": 10, "period": 3, "refresh": None},
    "mrbo": {"eta": 0.5, "terms": 10, "c_x": 0.5, "c_y": 0.5, "d": 1.0, "m": 1.0},
    "sustain": {"eta": 0.5, "terms": 10, "c_x": 0.5, "c_y": 0.5, "w": 1.0},
    "svrb": {"d": 1.0, "m": 1.0, "c": 0.5, "largest": 2000, "memory_limit": None},
    "srba": {"lr_z": None, "period": 32, "radius": math.inf},
    "adambo": {
        "eta": 0.5,
        "terms": 5,
        "inner": 1,
        "warm_start": 3,
        "x_step": AdamStep(0.9, 0.999, 1e-8, 0.0),
    },
    "accbo": {
        "gamma": 0.5,
        "tau": 0.5,
        "beta": 0.9,
        "eta": 0.5,
        "terms": 5,
        "warm_start": 3,
        "x_step": "normalised",
    },
    "n2sba": {"lam": 10.0, "inner": 10, "batches": 1, "clip": math.inf, "x_step": "normalised"},
    "f2sa-p": {"nu": 0.1, "p": 2, "inner": 1},
    "spaba": {"lr_z": None, "period": 32, "radius": math.inf},
    "sama": {"scale": 1.0, "radius": 0.01, "inner": 1},
    "bome": {"eta": 0.5, "inner": 10},
    "fsla": {"lr_z": None, "weight": 0.5},
    "meha": {"lr_w": None, "gamma": 1.0, "c": 2.0, "power": 0.5},
    "pbgd": {"lam": 10.0, "inner": 1},
    "pzobo": {"inner": 10, "directions": 1, "mu": 0.01},
}
#: How the rates fall: rate at t = 7 over that at t = 0 is 8^-exponent (STORM's weights by hand).
EXPONENTS = {
    "bsa": {"lr_x": 1 / 2},
    "ttsa": {"lr_x": 3 / 5, "lr_y": 2 / 5},
    "f2sa": {"lr_y": 4 / 7, "delta": 6 / 7, "alpha": 5 / 7},
    "soba": {"lr_x": 1 / 2, "lr_y": 1 / 2, "lr_z": 1 / 2},
    "mrbo": {"lr_x": 1 / 3, "lr_y": 1 / 3},
    "sustain": {"lr_x": 1 / 3, "lr_y": 1 / 3},
    "svrb": {"lr_x": 1 / 3, "lr_y": 1 / 3},
    "fsla": {"weight": 1 / 2},
    "meha": {"share": 1 / 2},
}


def _made(key, **more):
    kind = METHODS[key].load()
    return kind(**{f.name: 0.5 for f in fields(kind) if f.default is MISSING}, **more)


@pytest.mark.parametrize("key", METHODS)
def test_default_settings_are_the_documented_ones(key):
    kind = METHODS[key].load()
    found = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    plain = {name: "plain" for name in ("x_step", "y_step") if name in found}
    assert found == {**plain, **DEFAULTS[key]}


@pytest.mark.parametrize("key", METHODS)
def test_rates_fall_as_documented(key):
    method = _made(key, **({"alpha": 0.5} if key == "f2sa" else {}))
    first, later = method.rates(0), method.rates(7)
    for name in first:
        if name not in ("a", "a_x", "a_y"):
            exponent = EXPONENTS.get(key, {}).get(name, 0.0)
            assert later[name] == pytest.approx(first[name] * 8**-exponent)
        else:  # min(1, c eta²) of the step before: 0.5 * 7^(-2/3)
            assert first[name] == 1.0
            assert later[name] == pytest.approx(0.5 * 7 ** (-2 / 3))


@pytest.mark.parametrize("key", ["saba", "svrb"])
def test_a_memory_limit_is_a_number_of_bytes_that_a_machine_can_count(key):
    assert _made(key, memory_limit=2**62).memory_limit == 2**62
    with pytest.raises(RuleError, match="memory_limit must be"):
        _made(key, memory_limit=2**62 + 1)


@pytest.mark.parametrize(
    ("key", "name", "fine", "bad"),
    [
        ("accbo", "tau", (0.001, 1.0), (0.0, 1.001, 1.5)),
        ("accbo", "gamma", (0.0, 0.999), (-0.001, 1.0)),
        ("accbo", "warm_start", (0, 1), (-1,)),
        ("borep", "beta", (0.0, 0.999), (-0.001, 1.0, 1.5)),
        ("borep", "warm_start", (0, 1), (-1,)),
    ],
)
def test_settings_end_where_they_should(key, name, fine, bad):
    for value in fine:
        assert getattr(_made(key, **{name: value}), name) == value
    for value in bad:
        with pytest.raises(RuleError, match=f"{name} must"):
            _made(key, **{name: value})


def test_the_least_eigenvalue_of_svrb_is_a_thousandth_of_the_curvature():
    advice = StepAdvice(0.4, 0.4, 0.1, (0.01, 0.3), 5.0, 2.0, 1.0, 4)
    assert advice.settings("svrb")["mu"] == pytest.approx(0.005)


def test_a_method_that_reads_all_samples_says_so():
    assert _made("srba").plan().all_samples
    assert not _made("soba").plan().all_samples


@pytest.mark.parametrize("order", WEIGHTS)
def test_weights_of_f2sap_differentiate_polynomials_up_to_their_order(order):
    for power in range(order + 1):
        value = sum(weight * place**power for place, weight in WEIGHTS[order].items())
        assert value == pytest.approx(float(power == 1))


def test_runs_that_differ_in_what_only_the_rates_read_share_one_program():
    some = _made("svrb", d=2.0, m=3.0, c=0.25)
    assert with_equal_rates(some) == with_equal_rates(_made("svrb", d=4.0, m=5.0, c=0.75))
    assert with_equal_rates(some) != with_equal_rates(replace(some, mu=7.0))


def test_borep_warms_y_up_where_it_is_asked_to():
    problem = small_quadratic().problem(16)
    cold, warm = (_made("borep", refine=0, warm_start=n).start(problem).y for n in (0, 3))
    assert torch.equal(cold, problem.pack_y.start)
    assert not torch.equal(warm, cold)
