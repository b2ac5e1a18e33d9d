"""The five first studies: each verdict holds (or not) as measured, and turns when its statement
is made false.
"""

from __future__ import annotations

from typing import Any

import pytest

from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.run import simulate
from mindgap.record.schema import Verdict


def verdict(name: str, *, seeds: int | None = None, **overrides: Any) -> Verdict:
    study = find(name)
    return study.judge(simulate(study, "quick", seeds=seeds, **overrides))


def test_e5_holds() -> None:
    result = verdict("e5-cycle")
    assert result.verdict == "holds"
    assert result.build().as_printed == "holds"  # twelve clusters are a few points
    assert set(result.numbers["clusters"]) == {12}
    assert max(result.numbers["widest"]) < 0.02
    assert result.numbers["gradient_norm_small"] < 1e-6 < 1 < result.numbers["gradient_norm_large"]


def test_e5_fails_where_the_iterates_spread() -> None:
    # Just above 2/L on a steeper hill the orbit is chaotic: no few points.
    result = verdict("e5-cycle", height=137.0)
    assert max(result.numbers["clusters"]) > 20 or max(result.numbers["widest"]) > 0.05
    assert result.verdict == "does not hold"


def test_e5_fails_where_both_steps_are_below_the_threshold_of_2_over_l() -> None:
    assert verdict("e5-cycle", lr=0.015).verdict == "does not hold"


def test_e5_fails_where_the_running_averages_have_had_no_time_to_settle() -> None:
    assert verdict("e5-cycle", steps=12).verdict == "does not hold"


def test_e8_has_the_period_and_never_settles() -> None:
    result = verdict("e8-windows")
    assert result.verdict == "holds"
    for n in (5, 20):
        found = result.numbers[f"n={n}"]
        assert found["period"] == n + 1
        assert found["jump"] == pytest.approx((0.8 * n - 0.2) / (n * (n + 1) ** 2), rel=1e-9)
        assert found["jump"] < found["printed_jump"]  # the erratum: 1/(2n) is not reached


def test_e8_fails_for_a_window_of_the_full_period() -> None:
    assert verdict("e8-windows", n=5, window=6).verdict == "does not hold"


def test_s5_holds_and_fails_for_a_wrong_threshold() -> None:
    result = verdict("s5-clipping-is-normalising", draws=200, seeds=1)
    assert result.verdict == "holds"
    assert 0.5 <= result.numbers["h_n within a factor 2 of h_c"]["low"] < 0.55
    assert (
        verdict("s5-clipping-is-normalising", draws=200, seeds=1, gamma_factor=5.0).verdict
        == "does not hold"
    )


def test_h10_fails_as_printed_and_holds_with_half_the_step() -> None:
    printed = verdict("h10-rmsprop-is-clipping", draws=200, seeds=1)
    assert (printed.build().as_printed, printed.verdict) == ("does not hold", "holds")
    assert 0.25 <= printed.numbers["as printed"]["low"] < 0.4
    assert printed.numbers["as printed"]["high"] <= 0.5 * (1 + 1e-9)
    assert (
        verdict("h10-rmsprop-is-clipping", draws=200, seeds=1, eta_factor=2.0).verdict
        == "does not hold"
    )


def test_h7_holds() -> None:
    result = verdict("h7-infinite-variance")
    assert result.verdict == "holds"
    # The exact law: block means grow like n^(2/α - 1), here n^(1/3).
    assert result.numbers["sgd_slope"] == pytest.approx(1 / 3, abs=0.15)


@pytest.mark.parametrize(
    "override", [{"tail": float("inf")}, {"tau": 1e9}], ids=["Gaussian noise", "no clipping"]
)
def test_h7_fails_with_light_tails_or_without_clipping(override: dict[str, float]) -> None:
    assert verdict("h7-infinite-variance", **override).verdict == "does not hold"
