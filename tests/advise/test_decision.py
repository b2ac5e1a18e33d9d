"""One decision makes sentence, code and page; the printed code runs; dead problems are named."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mindgap.advise import recommendation
from mindgap.advise.candidates import BASELINE, Candidate, Scale, with_decay
from mindgap.advise.race import COST, Race
from mindgap.advise.recommendation import _code, recommend
from mindgap.advise.training import Progress, build, check_starts, train_until
from mindgap.lab.report.recommendation import page, write_recommendation_page
from mindgap.record.schema import RecordError
from mindgap.record.store import read_json

DATA = torch.randn(60, 16, 4, generator=torch.Generator().manual_seed(0))


def wave(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sum(1, True).sin()).square().mean()


def problem(seed: int):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return (model, wave), list(DATA[:50]), list(DATA[50:])


@pytest.mark.parametrize(
    "setting",
    [
        BASELINE,
        Candidate("AdamW with unit gradients", 0.01, 0.01, 0.1, "linear"),
        Candidate("ACClip", 0.01, 0.01, shape="linear"),
        Candidate("SGD", 0.01, 0.02, 1e-3),
        Candidate("Muon", 0.01, 0.02, 0.3),
    ],
)
def test_the_printed_code_runs_and_its_rate_is_never_negative(setting: Candidate) -> None:
    """Pasted into 2,000 steps, the schedule of a race of 890 went below zero: loss 0.11 to 5e6."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    space, total = {"model": model}, 2000 if setting == BASELINE else 200
    exec(_code(setting, total), space)
    optimizer, scheduler = space["optimizer"], space["scheduler"]
    rates = []
    for _ in range(total + 20):  # a run that is longer than it said
        rates.append(optimizer.param_groups[0]["lr"])
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        scheduler.step()
    assert space["total"] == total
    assert min(rates) == 0.0
    assert max(rates) == pytest.approx(setting.lr, rel=0.03)
    assert rates[total - 1] > 0 == rates[total]
    decays = {g.get("weight_decay") for g in optimizer.param_groups} - {None}
    assert setting.decay is None or setting.family == "Muon" or decays == {setting.decay}


def test_the_printed_steps_are_the_user_s_where_shorter_runs_raced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recommendation, "_pace", lambda *a: (0.08, 0.0, 0.0))
    answer = recommend(problem, minutes=1, steps=2000, measure=False)
    assert answer.about["steps"] < 2000
    assert "total = 2000  # steps of your run" in answer.code
    assert any(note.startswith("The race ran at") for note in answer.notes)


def test_sentence_code_caption_and_figure_name_one_setting(tmp_path: Path) -> None:
    answer = recommend(problem, minutes=5, steps=96, measure=False)
    decided = answer.decision
    assert decided.kind in ("fine", "rate", "optimizer")
    setting = Candidate(**answer.about["setting"])
    assert setting.name == decided.setting
    assert answer.code == _code(setting, 96)
    assert answer.gain == decided.gain
    if decided.kind == "fine":
        assert answer.sentence.startswith("AdamW at lr 0.001 is fine")
    else:
        assert answer.sentence.startswith(decided.setting)
    written = answer.write(tmp_path / "answer.json")
    text = page(json.loads(written.read_text()))
    assert f"Validation loss of {decided.setting} (blue)" in text
    assert ">validation loss</text>" in text
    assert text.count("class='best'") == 1
    assert text.count("class='baseline'") == (decided.setting != decided.baseline)
    write_recommendation_page(written, tmp_path / "page.html")
    old = {**json.loads(written.read_text()), "schema": 1}
    written.write_text(json.dumps(old))
    with pytest.raises(RecordError, match="must have schema 2, got 1"):
        write_recommendation_page(written, tmp_path / "page.html")


def fixed_race(scores: dict[Candidate, dict[int, float]], start: float) -> Race:
    """A race that has been run, with these validation losses."""
    race = Race(problem, total=96, scale=Scale(5))
    race.start, race.entries = start, []
    for setting, found in scores.items():
        entry = recommendation.Race.__init__.__globals__["Entry"](setting, {})
        entry.runs[0] = Progress(max(found), dict(found), [(max(found), min(found.values()))])
        entry.runs[1] = Progress(4, {4: found[4] * 1.001})
        race.entries.append(entry)
    race._leaders = race.entries[:2]
    race._asked = {id(entry): set(entry.runs[0].scores) for entry in race.entries}
    return race


def test_a_tie_is_decided_for_adamw_in_sentence_code_and_gain_alike() -> None:
    """ "AdamW at lr 0.001 is fine" stood above code for another optimizer."""
    other = Candidate("ACClip", 1e-2, 1e-2)
    race = fixed_race({BASELINE: {4: 1.0, 96: 0.5}, other: {4: 1.01, 96: 0.4999}}, start=2.0)
    decision, setting = recommendation.decide(race, build(problem, 0))
    assert (decision.kind, setting, decision.gain) == ("fine", BASELINE, (0.0, 0.0, 0.0))
    sentence = recommendation._sentence(race, decision, setting)
    assert sentence.startswith("AdamW at lr 0.001 is fine")


def test_the_rate_and_the_optimizer_are_told_apart() -> None:
    rate, other = Candidate("AdamW", 0.03, 0.03), Candidate("ACClip", 1e-2, 1e-2)
    race = fixed_race(
        {BASELINE: {4: 1.5}, rate: {4: 1.0, 96: 0.5}, other: {4: 1.01, 96: 0.3}}, start=2.0
    )
    decision, setting = recommendation.decide(race, build(problem, 0))
    assert (decision.kind, decision.baseline) == ("optimizer", "AdamW lr=0.03")
    assert decision.gain[0] == pytest.approx(0.4)
    sentence = recommendation._sentence(race, decision, setting)
    assert "AdamW at its best rate (AdamW lr=0.03) at 0.5; it saves 40.0 %" in sentence
    assert "at step 4 AdamW lr=0.03 stood at 1, AdamW at lr 0.001 stood at 1.5" in sentence


@pytest.mark.parametrize("ends", [1.632, 0.45])
def test_a_loss_that_rises_after_the_first_rung_is_said_and_no_saving_is_praised(
    tmp_path: Path, ends: float
) -> None:
    """It said "saves 54.5 %" of a loss that had been a third of that at a sixth of the steps."""
    rate, unit = Candidate("AdamW", 1e-2, 1e-2), Candidate("AdamW with unit gradients", 1e-2, 1e-2)
    scores = {
        BASELINE: {4: 19.3},
        rate: {4: 2.06, 16: 0.806, 32: 0.675, 96: 3.589},
        unit: {4: 1.91, 16: 0.51, 32: 0.574, 96: ends},
    }
    race = fixed_race(scores, start=32.5)
    decision, setting = recommendation.decide(race, build(problem, 0))
    answer = recommendation._answer(race, {"found": []}, decision, setting, 96, [], 1.0)
    drawn = page(read_json(answer.write(tmp_path / "answer.json")))
    assert (decision.kind, setting) == ("optimizer", unit)
    risen = "the loss rises again after its smallest value, 0.51 at step 16: train for fewer steps"
    assert (risen in answer.sentence) == (ends > 0.51)
    assert ("it saves" in answer.sentence) == (ends < 0.51)
    assert ("Saved against" in drawn) == (ends < 0.51)
    assert math.isfinite(answer.gain[1]) == (ends < 0.51)


def test_where_adamw_is_fine_and_its_loss_rises_again_the_sentence_says_so() -> None:
    other = Candidate("ACClip", 1e-2, 1e-2)
    scores = {BASELINE: {4: 1.0, 16: 0.2, 96: 0.5}, other: {4: 1.01, 96: 0.4999}}
    race = fixed_race(scores, start=2.0)
    decision, setting = recommendation.decide(race, build(problem, 0))
    assert (decision.kind, setting, decision.gain) == ("fine", BASELINE, (0.0, 0.0, 0.0))
    sentence = recommendation._sentence(race, decision, setting)
    assert sentence.startswith("AdamW at lr 0.001 is fine")
    assert "0.2 at step 16: train for fewer steps, or keep the best weights" in sentence


def test_an_optimizer_that_ends_above_the_start_does_not_train() -> None:
    """It was called "3704505 % worse"."""
    sgd = Candidate("SGD", 1e-2, 1.0)
    race = fixed_race({BASELINE: {4: 1.0, 96: 0.5}, sgd: {4: 3e4}}, start=2.0)
    assert recommendation._others(race, BASELINE) == ["SGD does not train"]


def test_where_nothing_trains_the_answer_says_so() -> None:
    def dead(seed):
        torch.manual_seed(seed)
        labels = torch.randint(0, 4, (60, 16))

        def loss(model, batch):
            return nn.functional.cross_entropy(model(batch[0] * 0), batch[1])

        batches = list(zip(DATA, labels, strict=True))
        return (nn.Linear(4, 4), loss), batches[:50], batches[50:]

    answer = recommend(dead, minutes=5, steps=96, measure=False)
    assert answer.sentence.startswith("Nothing trains")
    (note,) = [note for note in answer.notes if "ran to the end" in note]
    full = {run.name for run in answer.tried if run.steps == 96 and run.seed == 0}
    assert full
    assert all(name in note for name in full)  # what falls later than these cannot be seen
    assert 96 in [t.steps for t in answer.tried if t.name == BASELINE.name]
    assert not answer.code
    assert answer.decision.setting == ""
    assert "class='best'" not in page(
        json.loads(
            json.dumps(
                {
                    **vars(answer),
                    "decision": vars(answer.decision),
                    "tried": [vars(t) for t in answer.tried],
                }
            )
        )
    )


def test_a_head_that_starts_at_zero_gets_no_false_note() -> None:
    """First losses were compared, and all heads at zero have the same first loss."""

    def zero_head(seed):
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        nn.init.zeros_(model[2].weight), nn.init.zeros_(model[2].bias)
        return (model, wave), list(DATA)

    assert check_starts(zero_head, 0) == []


def test_frozen_batch_normalisation_stays_frozen() -> None:
    modes = []

    def frozen(seed):
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        model[1].eval()

        def loss(model, batch):
            modes.append((model[0].training, model[1].training))
            return wave(model, batch)

        return (model, loss), list(DATA[:50]), list(DATA[50:52])

    run = Progress()
    train_until(run, frozen, BASELINE.optimizer, seed=0, until=4, total=8)
    assert modes[:4] == [(True, False)] * 4  # training
    assert (False, False) in modes  # validation
    before = build(frozen, 0).objective.model[1].running_mean
    assert torch.equal(run.state["model"]["1.running_mean"], before)


def test_a_loss_that_needs_derivatives_is_validated() -> None:
    def physics(seed):
        model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

        def loss(model, x):
            x = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            return (slope - x.cos()).square().mean()

        batches = list(torch.rand(20, 8, 1))
        return (model, loss), batches[:15], batches[15:]

    run = Progress()
    train_until(run, physics, BASELINE.optimizer, seed=0, until=4, total=8)
    assert math.isfinite(run.scores[4])


def test_a_race_that_runs_out_of_time_sends_fewer_on(monkeypatch) -> None:
    # On a busy machine the clock would send fewer on in both races: here steps are counted.
    monkeypatch.setattr("mindgap.advise.race.LEAST_CLOCK", math.inf)
    race = Race(problem, total=240, scale=Scale(5), seconds=0.0)
    race.run()
    full = [e for e in race.entries if 240 in e.runs[0].scores]
    assert len(full) == 2
    assert race.cost() < 3.5
    unhurried = Race(problem, total=240, scale=Scale(5))
    unhurried.run()
    assert race.cost() < unhurried.cost() <= COST


def test_every_kind_of_optimizer_gets_to_the_second_rung() -> None:
    """SGD and Muon were dropped after 4 to 62 steps."""

    def deep(seed):
        model = nn.Sequential(
            nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)
        )
        return (model, wave), list(DATA[:50]), list(DATA[50:])

    race = Race(deep, total=240, scale=Scale(50, gradient_norm=1.0))
    race.run()
    second = {e.candidate.family for e in race.entries if race.rungs[1] in e.runs[0].scores}
    assert {"SGD", "Muon", "ACClip", "AdamW"} <= second


def test_the_winner_is_run_at_a_smaller_rate_and_overfitting_brings_weight_decay() -> None:
    answer = recommend(problem, minutes=5, steps=96, measure=False)
    longest = [t.name for t in answer.tried if t.steps == 96]
    assert len(longest) >= 3
    decay = with_decay(Candidate("AdamW", 0.01, 0.01), 1000).decay
    assert decay * 0.01 * 750 == pytest.approx(3, 0.1)


CASES = {
    "no_parameters": "    return (torch.nn.ReLU(), lambda m, b: m(b).sum()), data",
    "frozen": (
        "    model = torch.nn.Linear(4, 1).requires_grad_(False)\n"
        "    return (model, lambda m, b: m(b).sum()), data"
    ),
    "other_device": (
        "    return (torch.nn.Linear(4, 1).to('meta'), lambda m, b: m(b).square().mean()), data"
    ),
    "no_grad": (
        "    return (torch.nn.Linear(4, 1), torch.no_grad()(lambda m, b: m(b).sum())), data"
    ),
    "complex_loss": "    return (torch.nn.Linear(4, 1), lambda m, b: m(b).sum() * 1j), data",
    "none_batch": (
        "    return (torch.nn.Linear(4, 1), lambda m, b: m(b).square().mean()), [None] * 20"
    ),
}


@pytest.mark.parametrize("name", [*CASES, "own_exception", "own_exception_later"])
def test_the_user_s_errors_are_never_called_a_defect(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mindgap.cli import _run

    body = CASES.get(name, "")
    if name == "own_exception":
        body = "    raise KeyError('mine')"
    if name == "own_exception_later":
        body = (
            "    calls = []\n"
            "    def loss(m, b):\n"
            "        calls.append(1)\n"
            "        if len(calls) > 3:\n"
            "            raise ZeroDivisionError('mine')\n"
            "        return m(b).square().mean()\n"
            "    return (torch.nn.Linear(4, 1), loss), data"
        )
    module = f"users_{name}"
    (tmp_path / f"{module}.py").write_text(
        f"import torch\ndata = list(torch.randn(20, 8, 4))\ndef problem():\n{body}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        sys, "argv", ["mindgap", "recommend", f"{module}:problem", "--minutes", "1"]
    )
    status = _run()
    said = capsys.readouterr().err
    assert "defect of mindgap" not in said
    assert status == (3 if name.startswith("own") else 2), said
    assert ("Traceback" in said) is name.startswith("own")


def test_an_interval_of_thousands_of_percent_is_said_in_words() -> None:
    words = recommendation.Decision(
        "optimizer", "Muon", "AdamW", 1e-4, 1e-3, (0.9, -59.0, 57.0), "loss", 1.0, 9, None
    ).percent
    assert words == "90.0 % of the validation loss (seeds differ by several times that loss)"
