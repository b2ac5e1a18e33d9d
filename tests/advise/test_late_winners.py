"""The race on made-up learning curves, where the best setting is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from mindgap.advise import race as racing, training
from mindgap.advise.candidates import BASELINE, Candidate, Scale
from mindgap.advise.race import COST, OVERHEAD, SPARE, Race
from mindgap.advise.recommendation import decide, recommend
from mindgap.advise.training import Progress, build, train_until
from mindgap.base.check import RuleError

TOTAL = 2400
Curve = Callable[[Candidate, float], float]


def problem(seed: int):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    batches = list(torch.randn(8, 4, 4))
    return (model, lambda model, batch: model(batch).square().mean()), batches, batches


def raced(monkeypatch: pytest.MonkeyPatch, curve: Curve, timed=None, **more) -> Race:
    """A race in which a setting has the loss ``curve(setting, share of the steps)``."""

    def train_until(run: Progress, factory, make, *, seed, until, total, shape) -> None:
        made: Candidate = make.__self__
        loss = curve(made, until / total) * (1 + 1e-4 * seed)
        run.steps, run.scores[until] = until, loss
        run.curve.append((until, loss))
        run.seconds += until / total
        if timed:
            timed(run, made.family)

    monkeypatch.setattr(racing, "train_until", train_until)
    monkeypatch.setattr(racing, "start_loss", lambda factory, seed: 1.0)
    race = Race(problem, TOTAL, Scale(137, gradient_norm=1.0), **more)
    race.run()
    return race


def off(setting: Candidate, best: float) -> float:
    """Distance of a rate from the best one, in factors of ten, as a cost."""
    return abs(math.log10(setting.rate / best))


def late(family: str) -> Curve:
    """AdamW is best at 1e-2; another optimizer is behind it up to a sixth of the steps, leads from
    a third on, and ends at a tenth of AdamW's loss.
    """

    def curve(setting: Candidate, share: float) -> float:
        if setting.family == family:
            floor, speed = 0.01, 7.0
        else:
            floor, speed = 0.1, 12.0 if setting.family == "AdamW" else 5.0
        own = 1e-2 * (10**0.5 if family == "SGD" and setting.family == "SGD" else 1.0)
        return (floor + math.exp(-speed * share)) * (1 + 0.02 * off(setting, own))

    return curve


@pytest.mark.parametrize("family", ["Muon", "SGD", "ACClip"])
def test_an_optimizer_that_is_slow_at_first_and_best_in_the_end_wins(
    monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """SGD and Muon were dropped after 4 to 62 steps."""
    race = raced(monkeypatch, late(family))
    assert race.finalists()[0].candidate.family == family
    behind = [min(e.score(r, 0) for e in race._family("AdamW")) for r in race.rungs[:2]]
    own = [min(e.score(r, 0) for e in race._family(family)) for r in race.rungs[:2]]
    assert own > behind  # at the first two rungs AdamW led


def test_without_the_second_bracket_the_late_winner_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    race = raced(monkeypatch, late("SGD"), without=("second bracket",))
    assert race.finalists()[0].candidate.family != "SGD"


def shrinking(setting: Candidate, share: float) -> float:
    """The best rate falls from 0.1 at the first rung to 3.2e-3 at the end, and AdamW is best."""
    best = 10 ** (-1.0 - 1.5 * min(1.0, math.log(share * 24 + 1e-9) / math.log(24)))
    worse = 0.0 if setting.family == "AdamW" else 0.2
    return (0.05 + math.exp(-8 * share)) * (1 + off(setting, best) + worse)


def test_the_rate_that_short_runs_favour_is_corrected_downwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    race = raced(monkeypatch, shrinking)
    assert race._best_adamw(race.rungs[0]).candidate.rate >= 3e-2
    assert race.finalists()[0].candidate.rate <= 1.6e-2


def test_bad_batches_bring_the_winner_with_a_weight_decay_into_the_race(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Errors of infinite variance are fitted too: without weight decay 32 % was lost."""

    def curve(setting: Candidate, share: float) -> float:
        unit = setting.family == "AdamW with unit gradients"
        floor = 0.05 if unit and setting.decay else 0.1 if unit else 0.5
        return (floor + math.exp(-8 * share)) * (1 + 0.1 * off(setting, 1e-2))

    plain = raced(monkeypatch, curve)
    assert plain.finalists()[0].candidate.decay is None
    race = Race(problem, TOTAL, Scale(137, gradient_norm=1.0, tailed=True))
    race.run()
    assert race.finalists()[0].candidate.decay


def overfitting(setting: Candidate, share: float) -> float:
    """Without weight decay every loss rises from a third of the steps on, least at 1e-3."""
    fall = math.exp(-300 * setting.rate * share * 24) if setting.rate < 0.2 else 1.0
    rise = 0.0 if setting.decay else (1 + math.log10(setting.rate / 1e-4)) * max(0, share - 0.1)
    return 0.2 + 0.8 * fall + rise


def test_where_losses_rise_weight_decay_and_adamw_at_its_default_run_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    race = raced(monkeypatch, overfitting)
    final = [e.candidate for e in race.finalists()]
    assert final[0].decay
    assert BASELINE in final


@pytest.mark.parametrize("seed", range(12))
def test_the_cost_is_bounded_and_adamw_reaches_the_end_whatever_the_curves(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    def curve(setting: Candidate, share: float) -> float:
        draw = random.Random(f"{seed} {setting.name} {share:.3f}")
        return math.inf if draw.random() < 0.1 else draw.uniform(-1, 2)

    race = raced(monkeypatch, curve)
    assert race.weighted_cost() <= COST - OVERHEAD - SPARE + 0.1
    assert race.cost() <= race.weighted_cost() + 1e-9
    assert any(e.candidate.family == "AdamW" for e in race.finalists())
    assert len(race.finalists()) >= 2


def test_a_small_loss_counts_however_large_the_first_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that fell from 1 to 4e-5 was called no better than AdamW's 3e-4: both are small shares
    of the fall.
    """

    def curve(setting: Candidate, share: float) -> float:
        floor = 4e-5 if setting.family == "ACClip" else 3e-4
        return (floor + math.exp(-30 * share)) * (1 + off(setting, 1e-2))

    race = raced(monkeypatch, curve)
    decision, setting = decide(race, build(problem, 0))
    assert decision.kind == "optimizer"
    assert setting is not None
    assert setting.family == "ACClip"


def test_an_optimizer_whose_steps_take_three_times_as_long_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slow(run: Progress, family: str) -> None:
        run.per_step = 4e-3 if family == "Muon" else 1e-3

    race = raced(monkeypatch, late("Muon"), timed=slow)
    longest = max(e.runs[0].steps for e in race._family("Muon"))
    assert longest == race.rungs[0]


def test_parts_to_leave_out_must_have_a_known_name() -> None:
    with pytest.raises(RuleError, match="without must hold names from"):
        recommend(problem, minutes=1, steps=96, without=("third bracket",))


def test_the_first_steps_of_an_optimizer_do_not_count_as_its_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loading the kernels took 16 s of the first 38 steps, and unit gradients left the race."""
    clock = [0.0]
    monkeypatch.setattr(training.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(training.time, "process_time", lambda: clock[0])

    class Loading(torch.optim.SGD):
        def step(self, closure=None):
            clock[0] += 1.0 if clock[0] else 1000.0
            return super().step(closure)

    run = Progress()
    make = lambda model: Loading(model.parameters(), lr=1e-3)  # noqa: E731
    train_until(run, problem, make, seed=0, until=24, total=240)
    assert run.seconds == 1023.0
    assert run.per_step == 1.0


def test_what_trains_late_is_found_on_a_plateau_within_the_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Large rates led a little up to a third of the steps and stayed at chance. What trained after
    that was called "Nothing trains", or found by a run beyond the cost.
    """
    small = (BASELINE.name, "AdamW lr=0.0032")
    for trains in (*small, "SGD lr=1.1"):  # the last one leads the short runs

        def curve(setting: Candidate, share: float, trains: str = trains) -> float:
            late = share == 1.0 and setting.name == trains
            return 0.2 if late else 0.9999 - 1e-5 * setting.rate

        race = raced(monkeypatch, curve)
        decision, setting = decide(race, build(problem, 0))
        assert setting is not None, decision
        assert setting.name == trains
        assert not race.run_default()
        assert race.weighted_cost() <= COST - OVERHEAD - SPARE + 0.1


def test_a_plateau_that_nothing_leaves_is_still_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    race = raced(monkeypatch, lambda setting, share: 0.9999 - 1e-5 * setting.rate)
    assert decide(race, build(problem, 0))[0].kind == "nothing trains"
    assert not race.run_default()
    assert race.weighted_cost() <= COST - OVERHEAD - SPARE + 0.1


def test_nothing_trains_is_said_only_after_adamw_at_its_default_got_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What trained at first was at chance in the end; 1e-3 trained."""

    def curve(setting: Candidate, share: float) -> float:
        if setting == BASELINE:
            return 0.2 if share == 1.0 else 1.0
        return 0.5 if 0.1 < share < 0.5 else 0.9999 if share == 1.0 else 1.0 - 1e-9 * setting.rate

    race = raced(monkeypatch, curve, seconds=0.0)
    race.start = 1.0
    assert decide(race, build(problem, 0))[0].kind == "nothing trains"
    assert race.run_default()
    assert decide(race, build(problem, 0))[1] == BASELINE
    assert not race.run_default()
