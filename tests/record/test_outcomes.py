"""One verdict per study, its model in plain words, and the effect that decided it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgap.record.forms import StudyDescription, write_form
from mindgap.record.outcomes import effects_of, outcomes, short_title, summary
from mindgap.record.schema import Verdict
from mindgap.record.store import STUDY_FILE, VERDICT_FILE


def kept(runs: Path, scale: str, word: str, model: str = "", **more: object) -> None:
    folder = runs / "h3-x" / scale
    folder.mkdir(parents=True)
    described = StudyDescription("h3-x", scale, "H3", "A title", source="acclip, 3.1", model=model)
    write_form(folder / STUDY_FILE, described)
    write_form(folder / VERDICT_FILE, Verdict(word, "", **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scales", "counts"),
    [
        # The largest scale that passed its gate.
        ((("quick", "does not hold"), ("gpu", "holds"), ("paper", "not trained")), "gpu"),
        ((("quick", "holds"), ("cpu", "inconclusive")), "cpu"),
        # A small stand-in never counts in place of a network whose gate failed.
        ((("quick", "holds"), ("gpu", "not trained")), "gpu"),
    ],
)
def test_one_scale_counts_and_the_others_are_folded_below_it(
    tmp_path: Path, scales: tuple[tuple[str, str], ...], counts: str
) -> None:
    for scale, word in scales:
        kept(tmp_path, scale, word)
    (found,) = outcomes(tmp_path)
    assert found.scale == counts
    assert [scale for scale, _ in found.others] == [s for s, _ in scales if s != counts]
    assert summary(tmp_path).sentence.startswith("1 study: 1 ")


def test_a_registered_rule_counts_before_a_larger_scale_without_one(tmp_path: Path) -> None:
    kept(tmp_path, "gpu", "holds", registered="registered before the runs (f3)")
    kept(tmp_path, "paper", "inconclusive", model="proxy: a small net, in place of a large one")
    (found,) = outcomes(tmp_path)
    assert (found.scale, found.said, found.paper) == ("gpu", "holds", "acclip")


def test_trained_networks_stand_beside_a_registered_verdict_and_do_not_replace_it(
    tmp_path: Path,
) -> None:
    for scale, word in (("gpu", "does not hold"), ("trained", "holds")):
        kept(tmp_path, scale, word, registered=f"registered before the runs ({scale})")
    (found,) = outcomes(tmp_path)
    assert (found.scale, found.others) == ("gpu", (("trained", "holds"),))


def test_every_study_has_a_short_title_of_its_own() -> None:
    from mindgap.lab.studies.catalogue import catalogue

    titles = [short_title(name) for name in catalogue()]
    assert all(titles), "add a line to mindgap/record/titles.txt"
    assert len(set(titles)) == len(titles)
    assert max(map(len, titles)) <= 34


def test_effects_come_from_every_form_in_which_rules_keep_an_interval() -> None:
    numbers = {
        "a below b": {"ratio": 0.5, "low": 0.4, "high": 0.6},
        "c minus d": {"mean": 0.01, "low": -0.01, "high": 0.03, "seeds": 3},
        "step 2": {"rank": 0.8, "rank_low": 0.5, "rank_high": 0.9},
        "f": {"change": [0.02, 0.01, 0.03]},
        "g, in points": [1.0, 0.5, 1.5],
        "h": {"share": 3},
    }
    parts = dict.fromkeys(
        ("a below b", "c above d", "step 2: correlated", "f: stays", "g, in points", "h"), "yes"
    )
    found = effects_of(Verdict("holds", "", numbers, parts))
    assert [effect.words for effect in found] == [
        "ratio 0.50 [0.40, 0.60]",
        "points +1.00 [−1.00, +3.00]",
        "correlation 0.80 [0.50, 0.90]",
        "points +2.00 [+1.00, +3.00]",
        "points +1.00 [+0.50, +1.50]",
    ]
