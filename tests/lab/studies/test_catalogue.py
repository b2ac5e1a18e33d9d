"""The catalogue: one file per study or family, loaded one by one; every study is complete data."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from mindgap.base.check import RuleError
from mindgap.lab.studies import catalogue as catalogue_module
from mindgap.lab.studies.catalogue import broken, catalogue, find, reference_times
from mindgap.lab.studies.spec import Study
from mindgap.lab.studies.verdict import Parts

LOADED = (
    "import sys; from mindgap.lab.studies.catalogue import find; find({!r}); "
    "print(*(m for m in sys.modules if m.startswith('mindgap.lab.studies.catalogue.') and "
    "m.count('.') == 5))"
)


@pytest.mark.parametrize(
    "name", ["h5-question-answering", "e2-language-model", "n4-resisting-oracles"]
)
def test_loading_one_study_imports_one_module(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(name)], capture_output=True, text=True, check=True
    )
    assert len(done.stdout.split()) == 1, done.stdout


def test_no_study_imports_another_study() -> None:
    texts = catalogue_module.modules()
    assert not [
        module for module, text in texts.items() if "import" in text and ".catalogue." in text
    ]
    assert broken() == {}


@pytest.mark.parametrize("study", catalogue().values(), ids=lambda study: study.name)
def test_every_study_is_complete(study: Study) -> None:
    assert find(study.name).name == study.name
    assert study.rule.endswith("."), "the pass rule is a text of its own"
    assert not study.models or all(study.model(scale) for scale in study.scales), (
        "every scale names its model"
    )
    assert set(study.models) <= set(study.scales) or study.models.keys() >= study.scales.keys()
    judge = getattr(study.judge, "func", study.judge)
    assert inspect.signature(judge).return_annotation in ("Parts", Parts), (
        "a judge answers named parts"
    )
    assert "toy" in study.model("quick") or not study.models


def test_all_quick_studies_take_less_than_six_minutes_on_two_cores_and_the_bilevel_ones_two() -> (
    None
):
    times = reference_times()
    assert set(times) == {name for name, study in catalogue().items() if "quick" in study.scales}
    assert sum(times.values()) <= 2 * 360
    assert sum(seconds for name, seconds in times.items() if name.startswith("b")) <= 2 * 120


def test_a_broken_study_breaks_itself_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the package with a file that cannot be imported: the rest is listed, and the
    file is named.
    """
    import shutil

    shutil.copytree(Path(catalogue_module.__file__).parents[3], tmp_path / "mindgap")
    folder = tmp_path / "mindgap" / "lab" / "studies" / "catalogue" / "kinks"
    (folder / "n9_broken.py").write_text('STUDIES = [1 / 0]  # "n9-broken"')
    command = [sys.executable, "-m", "mindgap", "list"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "n5-certificate" in done.stdout
    assert "kinks.n9_broken cannot be loaded: ZeroDivisionError: division by zero" in done.stderr


def test_an_unknown_study_is_answered_with_the_nearest() -> None:
    with pytest.raises(RuleError, match="e5-cycle"):
        find("e5-cycel")


def test_parts_make_the_verdict() -> None:
    parts = Parts()
    assert parts.verdict == "inconclusive"  # nothing was asked
    parts.add("first", True)
    parts.add("second", False, False)
    assert (parts.verdict, parts.build().parts) == (
        "inconclusive",
        {"first": "yes", "second": "open"},
    )
    parts.add("third", False)
    assert parts.verdict == "does not hold"
    parts.decide_nothing("a control failed")
    assert (parts.verdict, parts.measured.split("; ")[-1]) == ("inconclusive", "a control failed")


def test_every_pass_rule_has_a_test_in_which_the_statement_is_false() -> None:
    """A scan of the tests: some file names a study of each rule and expects *does not hold* (or
    has refuted cases).
    """
    texts = [
        path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].rglob("test_*.py")
    ]
    rules: dict[object, list[str]] = {}
    for study in catalogue().values():
        rules.setdefault(getattr(study.judge, "func", study.judge), []).append(study.name)
    false = ('"does not hold"', "@verdicts(")
    falsified = [
        text for text in texts if any(word in text for word in false) and "falsified" not in text
    ]
    missing = [
        names
        for names in rules.values()
        if not any(name in text for name in names for text in falsified)
    ]
    assert missing == []
