"""B8: the exponent is the slope of the counts, and the verdict turns where a method needs more
calls than stated.
"""

from __future__ import annotations

import pytest

from mindgap.bilevel.registry import SIXTEEN
from mindgap.lab.studies.bilevel_runs import TITLES
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.catalogue.bilevel.b8_complexity import stated
from mindgap.lab.studies.run import plan
from mindgap.lab.studies.spec import Trial
from mindgap.record.schema import End, Run

STUDY = find("b8-complexity")


def made_up(extra: float, levels: int = 8) -> list[Run]:
    """Runs that need (1/ε)^(stated + extra) calls, up to a constant per seed."""
    runs = []
    for header in plan(STUDY, "quick", seeds=3).headers:
        power = stated(SIXTEEN[TITLES[header.method]].complexity) + extra + 0.01 * header.seed
        rows = [
            {"step": k, "inverse": 2 ** (k / 2), "calls": (3 + header.seed) * 2 ** (k / 2 * power)}
            for k in range(levels + 1)
        ]
        runs.append(Run(header, tuple(rows), End("done", 1.0)))
    return runs


def test_every_method_has_a_stated_power_and_steps():
    assert {stated(row.complexity) for row in SIXTEEN.values()} == {2, 3, 4, 5, 6, 7}
    assert set(STUDY.methods) == set(TITLES)


@pytest.mark.parametrize(
    ("extra", "word"), [(-0.5, "holds"), (0.5, "does not hold"), (-0.01, "inconclusive")]
)
def test_the_verdict_follows_the_exponent(extra, word):
    parts = STUDY.judge(made_up(extra))
    assert parts.verdict == word, parts.measured
    assert parts.numbers["SLIP"]["exponent"][0] == pytest.approx(4 + extra + 0.01)
    assert parts.numbers["SLIP"]["stated"] == "Õ(ε⁻⁴)"


def test_too_few_values_of_epsilon_decide_nothing():
    assert STUDY.judge(made_up(0.5, levels=4)).verdict == "inconclusive"


def test_smaller_epsilon_needs_more_calls_and_both_backends_count_the_same():
    pytest.importorskip("jax")
    counts = {}
    for backend in ("eager", "compiled"):
        settings = STUDY.settings(
            "quick", "SOBA", {"oracle_calls": 200, "rungs": 1, "backend": backend}
        )
        counts[backend] = [row["calls"] for row in STUDY.loop(Trial("SOBA", 0, settings))]
    assert counts["eager"] == counts["compiled"]
    assert len(counts["eager"]) > 4
    assert counts["eager"] == sorted(counts["eager"])
