"""A race of methods: equal budgets, a page, code that runs, pieces that are kept."""

from __future__ import annotations

import sys

import pytest
import torch
from references.bilevel_small import PROBLEM

from mindgap.base.check import RuleError
from mindgap.base.checkpoint import ASIDE, write_checkpoint
from mindgap.bilevel import BilevelProblem, race
from mindgap.bilevel.data.problem import example_problem
from mindgap.bilevel.tools import contest
from mindgap.bilevel.tools.contest import Contest, Entrant
from mindgap.bilevel.tools.contest_page import contest_page

SMALL = {"methods": ["soba", "f2sa"], "calls": 300, "seeds": 2}


def test_an_interrupted_race_goes_on_and_its_code_runs(tmp_path, monkeypatch):
    problem = example_problem()
    whole = race(problem, **SMALL)
    assert {e.key for e in whole.entrants} == {"soba", "f2sa"}
    assert whole.entrants[0].mean <= whole.entrants[1].mean
    for e in whole.entrants:
        for run in e.runs:
            assert run["calls"][0] == 0
            assert run["value"][0] == pytest.approx(whole.start)  # one reading of the start
            assert 300 <= run["calls"][-1] < 310
            assert len(run["value"]) == len(run["slope"]) >= 6

    def stop(text, share):
        if share >= 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        race(problem, **SMALL, folder=tmp_path, told=stop)
    ran = []
    before = contest._run
    monkeypatch.setattr(contest, "_run", lambda *a: ran.append(a[2]) or before(*a))
    again = race(problem, **SMALL, folder=tmp_path)
    assert ran == ["f2sa", "f2sa"]  # SOBA's runs were kept
    for a, b in zip(whole.entrants, again.entrants, strict=True):
        assert a.final == pytest.approx(b.final)
    with pytest.raises(RuleError, match="folder must be of this race"):
        race(problem, ["soba"], calls=300, seeds=2, folder=tmp_path)
    names = {"problem": problem}
    exec(whole.code, names)
    assert names["solution"].state.total_calls >= 300


def test_methods_that_do_not_fit_are_named():
    problem = BilevelProblem(
        upper=lambda x, y, b: (y - b).square().mean(),
        lower=lambda x, y, b: (y - x * b).square().mean(),
        x=torch.tensor([2.0]),
        y=torch.zeros(1),
        upper_data=torch.ones(4),
        lower_data=torch.ones(4),
        batch_size=2,
        project_y=lambda y: y.clip(-3, 3),
    )
    found = race(problem, ["soba", "f2sa"], calls=250, seeds=1)
    assert [e.key for e in found.entrants] == ["f2sa"]
    assert "project_y must be None for SOBA" in found.refused["soba"]
    assert "SOBA did not run" in str(found)


def entrant(key, *final):
    runs = tuple(
        {"calls": [0, 9], "seconds": [0, 1], "x_epochs": [0, 1], "value": [5.0, v], "slope": [2, 1]}
        for v in final
    )
    return Entrant(key, {"lr_x": 0.1, "lr_y": 0.2}, 0.9, runs)


def test_the_page_says_who_is_level_and_who_went_wrong():
    wrong = Entrant("saba", {"lr_x": 9.0, "lr_y": 9.0}, 1.0, ({},) * 3)
    found = Contest(
        (entrant("soba", 1.0, 1.1, 1.2), entrant("fsla", 1.1, 1.0, 1.3), wrong),
        {"slip": "y must be <small>"},
        100,
        5.0,
    )
    assert found.is_level(found.entrants[1])
    assert not found.is_level(wrong)
    assert not Contest((entrant("soba", 1, 1.1, 1.2), entrant("fsla", 3, 3.1, 3.3))).is_level(
        entrant("fsla", 3, 3.1, 3.3)
    )
    page = contest_page(found)
    assert "As far as the seeds tell, FSLA did as well" in page
    assert "3 of 3 runs went wrong" in page
    assert "y must be &lt;small&gt;" in page
    assert page.count("<svg") == 4
    assert "<script" not in page
    assert "method = SOBA(lr_x=0.1, lr_y=0.2)" in page


def test_the_command_writes_a_page(tmp_path, monkeypatch, capsys):
    from mindgap.cli.app import app

    (tmp_path / "my_levels.py").write_text(
        "from mindgap.bilevel.data.problem import example_problem as problem\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    arguments = ["my_levels:problem", "--calls", "250", "--seeds", "1", "--method", "soba"]
    app(["bilevel", "race", *arguments], standalone_mode=False)
    assert "method = SOBA(" in capsys.readouterr().out
    assert "SOBA ends lowest" in (tmp_path / "race.html").read_text()
    assert not (tmp_path / "race.race").exists()


def test_bad_arguments_are_refused():
    for arguments, message in (
        ({"methods": ["sobaa"]}, "methods must be keys of"),
        ({"methods": "soba"}, "methods must be a sequence"),
        ({"minutes": 0}, "minutes must be"),
        ({"seeds": 0}, "seeds must be"),
        ({"calls": 3}, "calls must be"),
    ):
        with pytest.raises(RuleError, match=message):
            race(PROBLEM, **arguments)


def test_damaged_pieces_of_a_race_are_named_set_aside_and_computed_again(tmp_path):
    problem = example_problem()
    first = race(problem, **SMALL, folder=tmp_path)
    pieces = {path.stem: path for path in tmp_path.glob("*.piece")}
    assert set(pieces) == {"race", *(f"{m}-{k}" for m in SMALL["methods"] for k in ("steps", 0, 1))}
    data = bytearray(pieces["soba-0"].read_bytes())
    data[len(data) // 2] ^= 1
    pieces["soba-0"].write_bytes(bytes(data))
    pieces["f2sa-1"].write_bytes(b'{"value": [0.0]}')
    forged = {"runs": 1.0, "settings": {"lr_x": "0.1"}}
    of = {**contest._Pieces(tmp_path, problem, ["soba", "f2sa"], 2, 300).of, "piece": "soba-steps"}
    write_checkpoint(pieces["soba-steps"], contest.KIND, forged, of)
    with pytest.warns(RuntimeWarning) as said:
        again = race(problem, **SMALL, folder=tmp_path)
    for name in ("soba-0", "f2sa-1", "soba-steps"):
        assert any(f"It is now {name}.piece{ASIDE}" in str(row.message) for row in said)
        assert (tmp_path / f"{name}.piece{ASIDE}").exists()
    for a, b in zip(first.entrants, again.entrants, strict=True):
        assert a.final == b.final
    with pytest.raises(
        RuleError, match=r"folder must be of this race \(checkpoint must belong to "
    ):
        race(problem, ["soba"], calls=300, seeds=2, folder=tmp_path)
