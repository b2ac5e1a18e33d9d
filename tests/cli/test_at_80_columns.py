"""Every command on a terminal of 80 columns: nothing is cut but the titles of ``mindgap list``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cases.report_records import write_study
from rich.cells import cell_len

from mindgap.advise.candidates import Candidate
from mindgap.advise.recommendation import (
    Recommendation,
    _code,
)  # the longest line of code that is printed
from mindgap.cli.app import app
from mindgap.cli.show import layout
from mindgap.cli.studies import matching_names

PROBLEMS = """
import torch
from mindgap import Objective

data = list(torch.randn(40, 8, 4, generator=torch.Generator().manual_seed(0)))

def loss(model, batch):
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()

def measured():
    model = torch.nn.Linear(4, 1)
    return Objective(model, loss), data, torch.optim.SGD(model.parameters(), lr=3.0)

def raced(seed):
    raise RuntimeError("the answer below is given instead")
"""
CODE = _code(Candidate("AdamW with clipped coordinates", 0.032, 0.032), 96)
ANSWER = Recommendation(
    "AdamW with clipping lr=0.032: 91.9 % lower validation loss than AdamW at lr 0.001; ACClip is "
    "14 % worse.",
    CODE,
    (0.9, 0.8, 0.95),
    ("Sharpness at the start: 3.34. It caps the learning rate of SGD. " * 2,),
    (),
    (),
    (),
    {"steps": 96, "seconds": 60.0, "full_length_runs": 4.0, "seed": 0},
)
STUDIES = ["e5-cycle"]
TUNED = "h7-infinite-variance"
#: Commands in an order in which each finds what it needs, and names or code that must stand in
#: their output in full.
COMMANDS = {
    "run": (["run", *STUDIES], [*STUDIES, "holds", "Next: mindgap report runs -o page.html"]),
    "tune": (["tune", TUNED, "--trials", "1", "replicas=64", "steps=16"], [TUNED]),
    "check": (["check", "runs"], [*STUDIES, "holds"]),
    "report": (["report", "runs"], ["page.html", "Next: mindgap check runs"]),
    "watch": (["watch", "runs", "--rounds", "1", "--every", "0.1"], ["page.html"]),
    "compare": (["compare", "runs", "runs"], STUDIES),
    "measure": (["measure", "problems_at_80:measured"], ["Next: mindgap advise survey.json"]),
    "examine": (["examine", "problems_at_80:measured"], ["    group['lr'] *= 0."]),
    "advise": (
        ["advise", "survey.json"],
        ["for group in optimizer.param_groups: group['lr'] /= 2"],
    ),
    "recommend": (["recommend", "problems_at_80:raced"], CODE.splitlines()[3:]),
    "demo": (
        ["demo", "--jobs", "1"],
        ["e5-cycle", "survey.html", "mindgap examine my_training:problem"],
    ),
    "show": (["show", TUNED], [TUNED]),
    "register": (
        ["register", "b3-hyper-cleaning", "--scale", "gpu", "--out", "registered"],
        ["b3-hyper-cleaning"],
    ),
    "list": (["list", "--long"], [*STUDIES, TUNED]),
    "methods": (["methods"], ["slip"]),
    "optimizers": (["optimizers"], ["StochasticINGD"]),
    "theory": (["theory"], ["refuted (Theorem 3.4.5)"]),
}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Call the command as on a terminal of 80 columns; its output without colours."""

    def call(*words: str) -> str:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setenv("COLUMNS", "80")
            patch.setenv("TERM", "dumb")
            for stream in ("stdout", "stderr"):
                patch.setattr(f"sys.{stream}.isatty", lambda: True)
            app(list(words), standalone_mode=False)
        out, err = capsys.readouterr()
        return re.sub(r"\x1b\[[0-9;]*m", "", out + err)

    return call


def assert_fits(text: str) -> None:
    for line in text.splitlines():
        unbreakable = len(line.split()) <= 1 or max(len(word) for word in line.split()) > 60
        assert cell_len(line) <= 80 or unbreakable, line


def test_every_command_cuts_no_name_and_no_code(
    terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One small run through all commands; a new command must be added to the table above."""
    # `new` writes into a checkout; tests/docs/test_adding_one.py runs it.
    known = {*COMMANDS, "new"}
    assert {c.name or c.callback.__name__ for c in app.registered_commands} == known
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("mindgap.cli.studies.DEMO", STUDIES)
    monkeypatch.setattr("mindgap.advise.recommendation.recommend", lambda *a, **k: ANSWER)
    (tmp_path / "problems_at_80.py").write_text(PROBLEMS)
    for words, expected in COMMANDS.values():
        text = terminal(*words)
        assert "…" not in text, text
        assert_fits(text)
        for name in expected:
            assert " ".join(name.split()) in " ".join(text.split()), (
                f"{words} lacks {name}:\n{text}"
            )


def names_of(command: str) -> list[str]:
    from mindgap.bilevel.registry import METHODS
    from mindgap.lab.studies.catalogue import catalogue
    from mindgap.lab.theory.theorem import THEOREMS
    from mindgap.optim.table import OPTIMIZERS

    return {
        "list": list(catalogue()),
        "methods": [*METHODS, *(m.name for m in METHODS.values())],
        "optimizers": [o.class_name for o in OPTIMIZERS.values()],
        "theory": [t.place.split(",")[0] for t in THEOREMS],
    }[command]


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("command", ["list", "methods", "optimizers", "theory"])
def test_tables_show_every_name_whole(terminal, command: str, long: bool) -> None:
    text = terminal(command, *(["--long"] if long else []))
    assert_fits(text)
    words = " ".join(text.split())
    for name in names_of(command):
        assert name in words, name
    if command != "list" or long:
        assert "…" not in text
    if long and command == "optimizers":
        from mindgap.optim.table import OPTIMIZERS

        for optimizer in OPTIMIZERS.values():
            assert " ".join(optimizer.update.split()) in words


def test_list_has_one_line_per_study_with_its_verdict(terminal, tmp_path: Path) -> None:
    from mindgap.lab.studies.catalogue import catalogue

    write_study(
        tmp_path, "e5-cycle", verdict={"verdict": "does not hold", "measured": "no", "numbers": {}}
    )
    lines = terminal("list", "--runs", str(tmp_path)).splitlines()
    order = [word for line in lines for word in line.split()[:2] if word in catalogue()]
    assert len(order) == len(catalogue())
    assert next(line for line in lines if " e5-cycle " in line).startswith("✗  e5-cycle ")
    assert not any("…" in line for line in lines), "no title is cut"
    assert (
        order.index("b3-hyper-cleaning")
        < order.index("b10-tracking")
        < order.index("s1-smoothness-language-model")
    )


@pytest.mark.parametrize("name", ["H7", "b3-hyper", "s4-clipping-beats-fixed-steps"])
def test_show_cuts_nothing_and_takes_claims_and_beginnings(terminal, name: str) -> None:
    text = terminal("show", name)
    assert_fits(text)
    assert "…" not in text
    assert matching_names(name)[0] in text
    assert "no earlier run" not in text


def test_help_is_never_cut(terminal) -> None:
    commands = [c.name or c.callback.__name__ for c in app.registered_commands]
    pages = [terminal("--help")] + [terminal(command, "--help") for command in commands]
    for page in pages:
        assert_fits(page)
        assert not re.search(r"[a-z]\.\.\.(?! <list)", page), page


def test_check_compare_report_and_advise_fit(terminal, tmp_path: Path) -> None:
    write_study(tmp_path / "a")
    write_study(tmp_path / "b")
    assert_fits(
        terminal("compare", str(tmp_path / "a"), str(tmp_path / "b")).replace(str(tmp_path), "")
    )
    text = terminal("report", str(tmp_path / "a"), "-o", str(tmp_path / "p.html"))
    assert (tmp_path / "p.html").as_uri() in text
    assert "Next: mindgap check" in text


def test_two_folders_without_a_common_study_are_nothing_to_compare(tmp_path: Path) -> None:
    from mindgap.base.check import RuleError

    write_study(tmp_path / "a", "s1-one")
    write_study(tmp_path / "b", "s2-two")
    with pytest.raises(RuleError, match="nothing to compare"):
        app(["compare", str(tmp_path / "a"), str(tmp_path / "b")], standalone_mode=False)


def test_a_row_that_does_not_fit_becomes_a_block_and_keeps_its_code() -> None:
    code = "optimizer = ACClip(model.parameters(), lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)"
    lines = [
        line
        for line, _ in layout(
            ("do", "why", "code"), [("Clip", "The steps are too long.", code)], 40
        )
    ]
    assert " ".join(" ".join(lines).split()) == f"Clip why: The steps are too long. code: {code}"


def test_unknown_and_ambiguous_names_say_what_was_meant() -> None:
    from mindgap.base.check import RuleError

    with pytest.raises(RuleError, match="did you mean 'e5-cycle'"):
        matching_names("e5-cylce")
    with pytest.raises(RuleError, match=r"must name one study, and \d+ begin so"):
        matching_names("s")
    assert matching_names("h8")[0].startswith("h8-")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from mindgap import __version__

    app(["--version"], standalone_mode=False)
    assert capsys.readouterr().out.strip() == f"mindgap {__version__}"
