"""Every command on a terminal of 80 columns: nothing is cut but the titles of ``mindgap list``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cases.report_records import write_study
from rich.cells import cell_len

from mindgap.cli.app import app
from mindgap.cli.show import layout
from mindgap.cli.studies import matching


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

    write_study(tmp_path, "e5-cycle", verdict={"verdict": "does not hold", "measured": "no", "numbers": {}})
    lines = terminal("list", "--runs", str(tmp_path)).splitlines()
    studies = [line for line in lines if line.split() and line.split()[0] in catalogue()]
    assert len(studies) == len(catalogue())
    assert next(line for line in studies if line.startswith("e5-cycle ")).count("does not hold") == 1
    order = [line.split()[0] for line in studies]
    assert order.index("b3-hyper-cleaning") < order.index("b10-tracking") < order.index("s1-smoothness-language-model")


@pytest.mark.parametrize("name", ["H7", "b3-hyper", "s4-clipping-beats-fixed-steps"])
def test_show_cuts_nothing_and_takes_claims_and_beginnings(terminal, name: str) -> None:
    text = terminal("show", name)
    assert_fits(text)
    assert "…" not in text
    assert matching(name)[0] in text
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
    assert_fits(terminal("compare", str(tmp_path / "a"), str(tmp_path / "b")).replace(str(tmp_path), ""))
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
    lines = [line for line, _ in layout(("do", "why", "code"), [("Clip", "The steps are too long.", code)], 40)]
    assert " ".join(" ".join(lines).split()) == f"Clip why: The steps are too long. code: {code}"


def test_unknown_and_ambiguous_names_say_what_was_meant() -> None:
    from mindgap.base.check import RuleError

    with pytest.raises(RuleError, match="did you mean 'e5-cycle'"):
        matching("e5-cylce")
    with pytest.raises(RuleError, match="must name one study, and 8 begin so"):
        matching("s")
    assert matching("h8")[0].startswith("h8-")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from mindgap import __version__

    app(["--version"], standalone_mode=False)
    assert capsys.readouterr().out.strip() == f"mindgap {__version__}"
