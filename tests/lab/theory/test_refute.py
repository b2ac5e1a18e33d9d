"""``mindgap theory refute``: finds the known refutations, and nothing against what holds."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from mindgap.base.check import RuleError
from mindgap.cli.app import app
from mindgap.lab.theory.attacks import ATTACKS, Attack
from mindgap.lab.theory.certificate import Certificate
from mindgap.lab.theory.refute import attacks_on, refute, search, strength

#: Statement -> readings that must be refuted.
KNOWN = {
    "3.4.4": ["as printed"],
    "3.4.5": ["as printed"],
    "4.4.1": ["as printed, small σ", "as printed, large σ", "its last term as proved, small σ"],
    "4.4.2": ["as printed, τ_k = G k^(α-1)"],
    "Theorem 2 (acclip)": ["as printed"],
    "Lemma 4.7.5": ["as printed"],
    "Lemma 2": ["as printed"],
}
#: Statements of which at least one reading must stand, and no other than those of KNOWN may fall.
HOLD = ["3.4.1", "3.4.2", "3.4.3", "4.4.2", "4.5.1", "5.4.1", "6.4.1"]


@pytest.mark.parametrize("name", KNOWN)
def test_known_refutations_are_found_with_a_certificate(name: str) -> None:
    outcomes = {outcome.attack.reading: outcome for outcome in refute(name, tries=120)}
    for reading in KNOWN[name]:
        found = outcomes[reading]
        assert found.refuted, found.words()
        assert found.best is not None
        assert found.best.valid
        assert all(found.best.assumptions.values())
        assert strength(found.best) > 1.5
    assert [r for r, o in outcomes.items() if o.refuted and r not in KNOWN[name]] == []


@pytest.mark.parametrize("name", HOLD)
def test_nothing_is_found_against_what_holds(name: str) -> None:
    outcomes = [o for o in refute(name, tries=80) if o.attack.reading not in KNOWN.get(name, [])]
    assert outcomes
    for outcome in outcomes:
        assert not outcome.refuted, outcome.words()
        assert f"not refuted in {outcome.tries} tries" in outcome.words()
        # The search is not empty: some instance met the assumptions and came near the bound.
        assert outcome.best is not None
        assert strength(outcome.best) > 0.01


@pytest.mark.parametrize("factor", [0.4, 0.9])
def test_a_bound_made_too_small_is_refuted(factor: float) -> None:
    # The engine has power: 3.4.3's bound times 0.4 falls, times 0.9 stands.
    (attack,) = (a for a in attacks_on("3.4.3") if a.family == "toothed slope")

    def smaller(p):
        found = attack.attempt(p)
        return found and Certificate(
            found.instance,
            found.assumptions,
            found.measured,
            factor * found.printed,
            found.claim,
            found.method,
        )

    outcome = search(Attack("x", "as printed", attack.family, attack.ranges, smaller), tries=60)
    assert outcome.refuted == (factor < 0.5)


def test_an_instance_outside_the_assumptions_never_refutes() -> None:
    def attempt(p):
        return Certificate({}, {"x > 0": False}, 5.0, 1.0, "at most", "counting")

    outcome = search(Attack("x", "as printed", "none", {"a": (1.0, 2.0)}, attempt), tries=10)
    assert not outcome.refuted
    assert strength(attempt({})) == 0


def test_statements_are_found_by_number_or_name_and_unknown_ones_named() -> None:
    assert {a.place for a in attacks_on("lemma 4.7.5")} == {"Lemma 4.7.5"}
    assert {a.place for a in attacks_on("acclip, Theorem 2")} == {"Theorem 2 (acclip)"}
    assert {a.place for a in attacks_on("Table 2.1")} == {"Table 2.1, convex row"}
    with pytest.raises(RuleError, match=r"THEOREM must be one of Theorem 3\.4\.1"):
        attacks_on("9.9")
    with pytest.raises(RuleError, match="THEOREM must name one statement"):
        attacks_on("2")
    assert len({(a.place, a.reading, a.family) for a in ATTACKS}) == len(ATTACKS)


def test_the_command_prints_answer_instance_and_certificate() -> None:
    done = CliRunner().invoke(app, ["theory", "refute", "Lemma", "4.7.5", "--tries", "60"])
    assert done.exit_code == 0, done.output
    first, instance, certificate, second, *_ = done.output.splitlines()
    assert first.startswith("Lemma 4.7.5, as printed: refuted in ")
    assert instance.startswith("- instance: family = two-point law")
    assert certificate.startswith("- certificate: E g = ∇f")
    assert second.startswith("Lemma 4.7.5, as corrected: not refuted in 60 tries")
    with pytest.raises(RuleError, match="THEOREM must be named"):
        CliRunner().invoke(app, ["theory", "refute"], catch_exceptions=False)
    with pytest.raises(RuleError, match="action must be one of"):
        CliRunner().invoke(app, ["theory", "prove", "3.4.1"], catch_exceptions=False)
