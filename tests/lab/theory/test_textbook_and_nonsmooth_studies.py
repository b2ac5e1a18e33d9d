"""The studies T1 to T3, N1, N2, N4, E7, E9, E10: each holds as measured, and turns when its
statement is made false.
"""

from __future__ import annotations

from typing import Any

import pytest
from references.made_up_runs import made_up

from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.run import simulate
from mindgap.lab.theory import pep_missing
from mindgap.record.schema import Verdict


def verdict(name: str, *, seeds: int | None = None, **overrides: Any) -> Verdict:
    study = find(name)
    return study.judge(simulate(study, "quick", seeds=seeds, **overrides))


SMALL: dict[str, dict[str, Any]] = {
    "t1-textbook-rates": {"seeds": 1, "functions": 10, "steps": 100},
    "t3-adam-regret": {},
    "n1-ingd": {"seeds": 2},
    "n2-stochastic-ingd": {"Delta": 0.13, "runs": 20},
    "n4-resisting-oracles": {"calls": [16]},
    "e7-one-step-change": {"seeds": 2},
    "e9-compact-set": {"steps": 8},
    "e10-small-step": {"burn_in": 400, "seeds": 1},
}

#: name -> settings under which the statement is false.
FALSE: dict[str, dict[str, Any]] = {
    "t1-textbook-rates": {"step_factor": 2.05, "conditions": [16.0, 64.0], "seeds": 1},
    "t3-adam-regret": {"beta2": 0.9999},
    "n1-ingd": {"inner": 1, "L": [1.0], "epsilon_over_L": [0.9], "delta": [0.5], "seeds": 1},
    "n2-stochastic-ingd": {"beta_factor": 40.0, "Delta": 0.13},
    "n4-resisting-oracles": {"resist": False},
    "e7-one-step-change": {"drift": 0.2, "seeds": 2},
    "e9-compact-set": {"step_factor": 2.3, "steps": 8},
    "e10-small-step": {"direction": -1.0, "burn_in": 400, "c": [0.05, 0.1], "seeds": 1},
}


@pytest.mark.parametrize("name", SMALL)
def test_study_holds(name: str) -> None:
    result = verdict(name, **SMALL[name])
    assert result.verdict == "holds", result.measured


@pytest.mark.parametrize("name", FALSE)
def test_study_fails_where_its_statement_is_false(name: str) -> None:
    result = verdict(name, **FALSE[name])
    assert result.verdict == "does not hold", result.measured


def test_e10_says_so_when_the_chains_have_not_settled() -> None:
    result = verdict("e10-small-step", burn_in=0, snapshots=1, every=1, seeds=1)
    assert result.verdict == "inconclusive"
    assert "not at their invariant law" in result.measured


def test_n1_fails_on_smooth_functions_with_a_radius_too_large() -> None:
    result = verdict("n1-ingd", radius_factor=2.5, seeds=1)
    assert result.verdict == "does not hold"
    assert result.numbers["smooth_inner_steps"] > 1


def test_e7_has_the_power_minus_one_half() -> None:
    result = verdict("e7-one-step-change")
    assert result.numbers["uniform map"]["power"] == pytest.approx(-0.5, abs=0.02)


def test_t2_says_why_it_has_no_verdict_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindgap.lab.theory.chapter2.fig_2_1.find_spec", lambda name: None)
    result = verdict("t2-worst-case-rates")
    assert result.verdict == "inconclusive"
    assert result.measured == "cvxpy is not installed (extra 'pep')"


def test_t2_is_judged_where_no_run_has_a_finite_worst_case() -> None:
    study = find(
        "t2-worst-case-rates"
    )  # as in the simulation of equal methods, which may draw heavy-ball alone
    row = {"Q": 18.5, "rate": 1.0, "on_quadratics": 0.6, "proved": 0.9}
    result = study.judge(made_up(study.name, {method: [row] for method in study.methods}))
    assert "finite worst cases are the closed forms: no" in result.measured


@pytest.mark.skipif(bool(pep_missing()), reason=pep_missing() or "present")
def test_t2_holds_and_fails_on_a_grid_where_heavy_ball_is_certified() -> None:
    result = verdict("t2-worst-case-rates", conditions=[4.0, 17.0, 18.5])
    assert result.verdict == "holds"
    assert result.numbers["gd_error"] < 1e-4
    assert verdict("t2-worst-case-rates", conditions=[4.0, 8.0]).verdict == "does not hold"
