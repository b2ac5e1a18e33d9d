"""Successive halving over optimizers and learning rates: short runs first, survivors continue from
where they are.

Every candidate sees the same starts and the same order of batches. Rungs before the end are judged
by the better of the last weights and their average over the last quarter of the steps: averaging
removes most of the noise that the final decay of the learning rate removes, and it costs no extra
step.

Short runs favour large rates and what is fast at first. So the first rung only finds where AdamW's
rates begin to fail; AdamW's best rate is chosen at the second, with smaller rates beside it; every
other optimizer begins at that rate and gets to the second rung whatever it shows before (the second
bracket); and where the runs end, the winner is run at half its rate.

Nothing here depends on where the loss has its zero. Losses are ranked, and distances are measured
on a log scale of the loss above a floor below everything seen (see ``Race.level``).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_high
from typing import Any, NoReturn

import torch

from mindgap.advise.candidates import (
    BASELINE,
    FACTOR,
    FAMILIES,
    RATES,
    Candidate,
    Scale,
    candidate,
    other_candidates,
    with_decay,
)
from mindgap.advise.training import (
    Bench,
    Factory,
    Problem,
    Progress,
    at_chance,
    build,
    start_loss,
    train_until,
)
from mindgap.base.checkpoint import CheckpointError, read_checkpoint, set_aside, write_checkpoint
from mindgap.base.fingerprint import data_text, function_text

#: Shares of the full length at which the field is judged.
RUNGS = (1 / 24, 1 / 6, 1 / 3, 1.0)
#: Settings that go on from the second and the third rung; AdamW's best is always among them.
KEEP = (3, 2)
#: Smaller rates of AdamW that are tried at the second rung.
SMALLER = 2
#: Seeds beside the first, run to the first rung by the leaders to estimate the noise between seeds.
EXTRA_SEEDS = 1
#: Leaders that run with the extra seeds.
LEADERS = 3
#: Full-length runs of AdamW that measuring and race cost at most.
COST = 5.0
#: What of it measuring, building and evaluating take on short runs.
OVERHEAD = 0.3
#: Seconds of a full-length run from which the cost is read from the clock.
LEAST_CLOCK = 0.1
#: Full-length runs that are kept for what comes later and is not in a step.
SPARE = 0.2
#: Fewest steps of the first rung from which the time of a step is read.
LEAST_TIMED = 20
#: An optimizer whose step takes so many steps of AdamW leaves after the first rung.
DEAR = 2.0
#: Parts of the race that can be left out, to see what they give.
PARTS = ("second bracket", "own schedule")
#: The family that gets a smaller learning rate when the losses of all candidates rise.
CALMEST = "AdamW with unit gradients"
#: Factor on the winner's rate in the second look at it.
CLOSE = 2.0
#: Strength of the weight decay that is tried where gradient norms have a long tail.
GENTLE = 1.5
#: What a piece is a checkpoint of.
KIND = "run in a race"
#: A setting is looked at further while its loss is above the best by at most this share of the fall
#: of the loss since the start.
NEAR = 0.1
#: The floor of the scale lies this share of the largest fall below the smallest loss.
FLOOR = 0.25
#: A validation loss above the training loss by more than this share of the fall is overfitting.
OVERFIT = 0.1
#: A loss that is above an earlier one by more than this share of the fall has risen.
RISEN = 0.02
#: A fall by at most this share of the first loss may be none.
NO_FALL = 0.02


@dataclass(frozen=True)
class Noise:
    """Spread of the loss between seeds, on the race's own scale, after the common part of each
    seed is taken out.
    """

    deviation: float  # standard deviation of one run
    freedom: int  # degrees of freedom behind it

    def reach(self) -> float:
        """Half-width of the 90 % interval for the difference of two runs with the same seed, on
        the race's scale.
        """
        if self.freedom < 1:
            return math.inf
        return _T95[min(self.freedom, len(_T95)) - 1] * math.sqrt(2) * self.deviation


#: 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_T95 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78, 1.77, 1.76, 1.75)


@dataclass
class Entry:
    """A candidate in the race with its runs, one per seed."""

    candidate: Candidate
    runs: dict[int, Progress]

    def score(self, step: int, seed: int) -> float:
        """The validation loss at a step; infinite where the run was not judged there."""
        return self.runs[seed].scores.get(step, math.inf)

    def along(self, step: int, seed: int) -> float:
        """The same by the validation batches that are read at every rung. At the end ``score``
        reads more of them.
        """
        return self.runs[seed].along.get(step, self.score(step, seed))


class Race:
    """The race for one problem.

    Args:
        folder: where finished pieces are kept, so that an interrupted race continues; None:
            nowhere.
        seconds: time for the race; where it gets short, fewer settings go on. None: no limit.
        work_before: what measuring took by ``work_clock``, which counts towards the cost.
        without: names from ``PARTS`` to leave out.
        told: called with a sentence and the share of the work that is done.

    Attributes:
        start: validation loss before the first step.

    Example:
        >>> batches = list(torch.randn(40, 8, 4))
        >>> def factory():
        ...     model = torch.nn.Linear(4, 1)
        ...     return (model, lambda model, batch: (model(batch) - 1).square().mean()), batches
        >>> race = Race(factory, total=48, scale=Scale(5, gradient_norm=1.0))
        >>> race.run()
        >>> race.cost() <= COST and math.isfinite(race.finalists()[0].score(48, 0))
        True
    """

    def __init__(
        self,
        factory: Factory | Bench,
        total: int,
        scale: Scale,
        *,
        seed: int = 0,
        folder: Path | None = None,
        seconds: float | None = None,
        work_before: float = 0.0,
        without: Sequence[str] = (),
        told: Callable[[str, float], Any] | None = None,
    ) -> None:
        self.bench = factory if isinstance(factory, Bench) else Bench(factory)
        self.total, self.scale, self.seed, self.folder = total, scale, seed, folder
        self._seeds = [seed + k for k in range(1 + EXTRA_SEEDS)]  # the race's own, then the extra
        self.seconds, self.work_before = seconds, work_before
        self.rungs = tuple(max(2, round(share * total)) for share in RUNGS)
        self.entries = [Entry(candidate(BASELINE.family, rate, scale), {}) for rate in RATES]
        self.without = tuple(without)
        self._other_starts: dict[int, float] = {}  # another seed -> loss before the first step
        #: id of an entry -> the steps up to which the race has asked it to run with its own seed.
        self._asked: dict[int, set[int]] = {}
        self._leaders: list[Entry] = []  # settings that ran with the extra seeds
        self.start = math.nan
        self._problems: dict[int, dict[str, str]] = {}  # seed -> what a piece must agree with
        self._report = told or (lambda sentence, share: None)

    def run(self) -> None:
        """Run all rungs; ``entries`` and ``noise`` hold the result."""
        self.start = start_loss(self.bench, self.seed)
        first, second, third, _ = self.rungs
        self._advance_all(self.entries, first)
        if math.isnan(self.start):  # no validation batches: the first training losses
            curves = [e.runs[self.seed].curve for e in self.entries]
            self.start = max((c[0][1] for c in curves if c), default=math.nan)
        for _ in range(2):  # the new rate may be the outermost and best one again
            self._widen_rates_of_adamw(first)
        bracket = "second bracket" not in self.without  # every family gets to the second rung
        rate = self._rate_of_adamw(second) if bracket else self._best_adamw(first).candidate.rate
        others = other_candidates(self.bench.problem(self.seed).objective.model, self.scale, rate)
        self._join(others, first)
        self._try_smaller_rates_of_sgd(first)
        self._run_extra_seeds(first)
        field: list[Entry] = []  # the settings that are still in the race
        for entry in self._choose_for_second_rung(first):
            # The first setting runs whatever it costs: without it there would be nothing to judge.
            got_there = second in self._asked.get(id(entry), ())
            if got_there or not field or self._affordable([(entry, second)], first):
                self._advance(entry, self.seed, second)
                field.append(entry)
        if bracket:
            field += self._run_smaller_neighbour(field, second)
        if self.rises(second, [first]):
            field.append(self._run_calmest(second))
        field = self._choose_for_third_rung(field)
        self._advance_all(field, third)
        candidates = self._choose_finalists(field)
        # The first ones run to the end whatever they cost, all others while they fit.
        for entry in candidates[: KEEP[1]]:
            self._enter(entry, self.total)
        for entry in self._choose_late_finalists(candidates[KEEP[1] :]):
            if self._fits([(entry, self.total)]):
                self._enter(entry, self.total)

    def run_default(self) -> bool:
        """Run AdamW at 1e-3 to the end whatever it costs, unless it ran there already, and return
        whether it ran now. Short runs favour large rates: "nothing trains" needs a run at a small
        one.
        """
        if self.total in self._asked.get(id(self.entries[0]), ()):
            return False
        self._enter(self.entries[0], self.total)
        return True

    def _choose_finalists(self, field: Sequence[Entry]) -> list[Entry]:
        """What runs to the end, in this order while it can be paid for: the best of the third rung,
        AdamW's best, and the others. Where every loss rises, weight decay and AdamW at 1e-3 come
        first: short runs favour large rates, which with weight decay may be right. Where nothing
        trains so far, AdamW at 1e-3 and at the next larger rate come first: large rates lead on a
        plateau by chance, and what trains late does so at small ones.

        Args:
            field: the settings of the third rung.
        """
        step = self.rungs[2]
        ranked = self._rank_entries(field, step)
        wanted = [ranked[0], self._best_adamw(step, field), *ranked]
        flat = self.is_flat(self.lowest(self.rungs[:3])[0])
        rise = self.lowest([step])[0] - self.lowest(self.rungs[:2])[0]
        if not flat and rise > RISEN * self.fall():
            decayed = with_decay(self._best_adamw(self.rungs[0]).candidate, self.total)
            calm = [self._entry(decayed), self.entries[0]]
            if self._fits([(entry, self.total) for entry in calm]):
                wanted = [*calm, *wanted]
        elif flat or self._ignores_inputs(ranked[0], step):
            slow = [self.entries[0], self._entry_at(BASELINE.family, BASELINE.rate * FACTOR)]
            both = self._fits([(entry, self.total) for entry in slow])
            wanted = [*(slow if both else slow[:1]), *wanted]
        return _unique(wanted)

    def _ignores_inputs(self, entry: Entry, step: int) -> bool:
        """Whether the model of a run that stands at a step says the same for every input."""
        fall = self.start - entry.score(step, self.seed)
        return at_chance(self.bench.problem(self.seed), entry.runs[self.seed], fall)

    def _rate_of_adamw(self, step: int) -> float:
        """Run AdamW at the best rate of the first rung, and at smaller ones while these are
        better, to a step; returns the best rate there.
        """
        entry = self._best_adamw(self.rungs[0])
        self._advance(entry, self.seed, step)
        for _ in range(SMALLER):
            smaller = self._entry_at(BASELINE.family, entry.candidate.rate / FACTOR)
            if not self._affordable([(smaller, step)], self.rungs[0]):
                break
            self._enter(smaller, step)
            if not smaller.score(step, self.seed) < entry.score(step, self.seed):
                break
            entry = smaller
        return entry.candidate.rate

    def _try_smaller_rates_of_sgd(self, step: int) -> None:
        """Run SGD at smaller rates to a step where it hardly trains at any: its rates follow from
        measured norms and AdamW's best rate, and may be far off.
        """
        for family in (name for name, entry in FAMILIES.items() if entry.like_sgd):
            for _ in range(SMALLER):
                own = self._family(family)
                # Infinitely low where it is not in the race, which leaves nothing to try.
                best = min((e.score(step, self.seed) for e in own), default=-math.inf)
                if not self.start - best < NEAR * self.fall(step):
                    break
                rate = min(e.candidate.rate for e in own) / FACTOR
                self._join([candidate(family, rate, self.scale)], step)

    def _choose_for_second_rung(self, step: int) -> list[Entry]:
        """What runs to the second rung: AdamW's settings that got there already, and the best
        setting of every other optimizer. Without the second bracket: AdamW's best and the four
        best at the first.

        Args:
            step: the first rung, whose losses rank the settings.
        """
        ranked = self._rank_entries(self.entries, step)
        if "second bracket" in self.without:
            return _unique([self._best_adamw(step), *ranked])[:5]
        got_there = [e for e in self.entries if self.rungs[1] in self._asked.get(id(e), ())]
        others = [
            entry
            for family, entry in _best_of_families(ranked).items()
            if family != BASELINE.family and self._step_cost(family) < DEAR
        ]
        return [*got_there, *others]

    def _run_smaller_neighbour(self, field: Sequence[Entry], step: int) -> list[Entry]:
        """Run the leader's family at the next smaller rate to a step. Returns the new entry in a
        list, which is empty where nothing was run: where the leader is AdamW, whose smaller rates
        were tried before, or where leader and AdamW could no longer get to the end.
        """
        leader = self._rank_entries(field, step)[0]
        if leader.candidate.family == BASELINE.family:
            return []
        entry = self._entry_at(leader.candidate.family, leader.candidate.rate / FACTOR)
        to_the_end = [(e, self.total) for e in (leader, self._best_adamw(step, field))]
        if any(entry is e for e in field) or not self._fits([(entry, step), *to_the_end]):
            return []
        self._enter(entry, step)
        return [entry]

    def _choose_for_third_rung(self, field: Sequence[Entry]) -> list[Entry]:
        """The best of the second rung, AdamW's best, and the best of other optimizers, as many as
        can be paid for so that two reach the end. Where no loss has fallen yet the best alone: what
        it saves pays for three runs to the end.
        """
        step = self.rungs[1]
        ranked = self._rank_entries(field, step)
        if self.is_flat(self.lowest(self.rungs[:2])[0]):
            return ranked[:1]
        best_of_families = _best_of_families(ranked).values()
        wanted = [ranked[0], self._best_adamw(step, field), *best_of_families, *ranked]
        chosen = _unique(wanted)[: KEEP[0]]
        while len(chosen) > KEEP[1]:
            # Even if the slowest two are those that reach the end.
            by_cost = sorted(chosen, key=lambda e: -self._step_cost(e.candidate.family))
            to_the_end = [(e, self.total) for e in by_cost[: KEEP[1]]]
            to_the_third_rung = [(e, self.rungs[2]) for e in by_cost[KEEP[1] :]]
            if self._fits([*to_the_third_rung, *to_the_end]):
                break
            chosen.pop()  # the least wanted one
        return chosen

    def _choose_late_finalists(self, others: Sequence[Entry]) -> Iterator[Entry]:
        """What runs to the end after the first finalists, in this order while it can be paid for.

        Args:
            others: the settings of the third rung that have not run to the end.
        """
        final = self.finalists()
        best = final[0]
        loss = best.score(self.total, self.seed)
        if not math.isfinite(loss):
            return
        if self.is_flat(loss) or self._ignores_inputs(best, self.total):
            yield from others  # the leaders, for which AdamW at small rates went first
        if self.scale.tailed:  # bad batches are fitted too, at a large rate most
            larger = candidate(best.candidate.family, best.candidate.rate * FACTOR, self.scale)
            yield self._entry(with_decay(larger, self.total, GENTLE))
        run = best.runs[self.seed]
        # Training losses of the last tenth of the run, beside its validation loss at the end.
        recent = [value for _, value in run.curve[-max(1, len(run.curve) // 10) :]]
        overfits = loss - sum(recent) / len(recent) > OVERFIT * self.fall(self.total)
        lowest = min(run.along.get(rung, math.inf) for rung in self.rungs)
        # It overfits, or its validation loss was lower before.
        if overfits or best.along(self.total, self.seed) - lowest > RISEN * self.fall():
            yield self._entry(with_decay(self._best_adamw(self.rungs[0]).candidate, self.total))
            yield self.entries[0]
        adamw = self._best_adamw(self.total, final)
        # AdamW got worse after the third rung: its rate may be too large for a long run.
        if adamw.score(self.total, self.seed) > adamw.score(self.rungs[2], self.seed):
            yield self._entry_at(BASELINE.family, adamw.candidate.rate / FACTOR)
        yield self._entry_at(best.candidate.family, best.candidate.rate / CLOSE)
        if "own schedule" not in self.without:
            # On average a rate that falls from the start is two thirds of the trapezoid's.
            faster = candidate(best.candidate.family, best.candidate.rate * CLOSE, self.scale)
            yield self._entry(replace(faster, shape="linear"))
        yield from others

    def _best_adamw(self, step: int, field: Sequence[Entry] = ()) -> Entry:
        """AdamW's best setting at a step: of those in the field, if there are any, else of all."""
        own = [e for e in field if e.candidate.family == BASELINE.family]
        return self._rank_entries(own or self._family(BASELINE.family), step)[0]

    def _entry_at(self, family: str, rate: float) -> Entry:
        """A family at a rate: the entry of the race, or a new one that is not in it yet."""
        return self._entry(candidate(family, rate, self.scale))

    def _entry(self, wanted: Candidate) -> Entry:
        """The entry of a setting: that of the race, or a new one that is not in it yet."""
        known = (e for e in self.entries if e.candidate.name == wanted.name)
        return next(known, None) or Entry(wanted, {})

    def _enter(self, entry: Entry, step: int) -> None:
        """Let a setting run to a step, and judge it at the rungs before."""
        if all(entry is not e for e in self.entries):
            self.entries.append(entry)
        for rung in self.rungs:
            if rung <= step:
                self._advance(entry, self.seed, rung)

    def _fits(self, wanted: Iterable[tuple[Entry, int]], by_cost_alone: bool = False) -> bool:
        """Whether further runs fit into the cost, and into the seconds.

        The cost of a step is that of its optimizer (see ``_step_cost``).

        Args:
            wanted: pairs (entry, step to which it is to run).
            by_cost_alone: the seconds do not count.
        """
        cost, steps = 0.0, 0  # of the further runs, in full-length runs and in steps
        #: id of an entry -> the entry and the last step wanted of it: it may be wanted twice.
        furthest: dict[int, tuple[Entry, int]] = {}
        for entry, until in wanted:
            if until > furthest.get(id(entry), (entry, 0))[1]:
                furthest[id(entry)] = (entry, until)
        for entry, until in furthest.values():
            missing = max(0, until - max(self._asked.get(id(entry), {0})))
            cost += self._step_cost(entry.candidate.family) * missing / self.total
            steps += missing
        if self.clock_cost() + cost > COST - SPARE:
            return False
        if self.seconds is None or by_cost_alone:
            return True
        spent = self.seconds_spent()
        # The further steps are taken to be as slow as those so far.
        return spent + steps * spent / max(1, self._steps_spent()) <= self.seconds

    def _affordable(self, wanted: Sequence[tuple[Entry, int]], rung: int) -> bool:
        """Whether further runs leave enough for two runs to the end: of the leader at a rung and
        of AdamW's best setting there.

        Args:
            wanted: pairs (entry, step to which it is to run).
        """
        at_rung = [e for e in self.entries if rung in self._asked.get(id(e), ())]
        if not at_rung:  # nothing to keep any time for yet
            return True
        finalists = (self._rank_entries(at_rung, rung)[0], self._best_adamw(rung, at_rung))
        return self._fits([*wanted, *((e, self.total) for e in finalists)], by_cost_alone=True)

    def clock_cost(self) -> float:
        """Full-length runs of AdamW spent so far, measuring included: by the clock. On short
        runs, on which the clock tells little, by the steps, with ``OVERHEAD`` for the rest.
        """
        seconds_per_run = self._seconds_per_run()
        if seconds_per_run < LEAST_CLOCK:
            return self.weighted_cost() + OVERHEAD
        work = sum(  # seconds in steps and beside them; of a longer piece the part asked for
            (run.stepping + run.beside) * min(1.0, asked / max(1, run.steps))
            for entry in self.entries
            for run, asked in self._asked_steps(entry)
        )
        return (self.work_before + work) / seconds_per_run

    def _seconds_per_run(self) -> float:
        """Seconds of a full-length run of AdamW by ``work_clock``, at the pace of its fastest run:
        other programs on the machine only slow runs down, and a mean over slow ones would allow
        too much.
        """
        own = [run for e in self._family(BASELINE.family) for run in e.runs.values()]
        paces = [run.stepping / run.steps for run in own if not run.diverged and run.stepping > 0]
        return min(paces, default=0.0) * self.total

    def _asked_steps(self, entry: Entry) -> Iterator[tuple[Progress, int]]:
        """Every run of an entry with its steps that the race has asked for: pieces of a race that
        continues may hold more.
        """
        for seed, run in entry.runs.items():
            asked = max(self._asked[id(entry)]) if seed == self.seed else self.rungs[0]
            yield run, min(run.steps, asked)

    def _steps_spent(self) -> int:
        """Steps of all runs, with every seed, that the race has asked for."""
        return sum(steps for e in self.entries for _, steps in self._asked_steps(e))

    def seconds_spent(self) -> float:
        """Seconds in steps, builds and evaluations. Kept with the pieces, so that a race that
        continues decides as one that was not interrupted.
        """
        return sum(
            run.seconds * min(1.0, asked / run.steps)
            for entry in self.entries
            for run, asked in self._asked_steps(entry)
            if run.steps
        )

    def cost(self) -> float:
        """Steps spent, in full-length runs."""
        return self._steps_spent() / self.total

    def weighted_cost(self) -> float:
        """Steps spent, each weighted by what a step of its optimizer takes, in full-length runs of
        AdamW.
        """
        return sum(
            self._step_cost(e.candidate.family)
            * sum(steps for _, steps in self._asked_steps(e))
            / self.total
            for e in self.entries
        )

    def _step_cost(self, family: str) -> float:
        """What a step of an optimizer takes, in steps of AdamW, at least 1: what the first rung
        took, in tenths, so that two timings mostly agree; the number in ``FAMILIES`` where the rung
        is too short to tell.
        """
        usual = FAMILIES[family].cost
        if self.rungs[0] < LEAST_TIMED:
            return usual

        def fastest(name: str) -> float:
            """Seconds per step of the fastest run of a family; NaN where none was timed."""
            seconds = [e.runs[self.seed].per_step for e in self._family(name) if e.runs]
            return min((s for s in seconds if s > 0), default=math.nan)  # 0: not timed

        measured = fastest(family) / fastest(BASELINE.family)
        return max(1.0, round(10 * measured) / 10) if math.isfinite(measured) else usual

    def finalists(self) -> list[Entry]:
        """The entries whose runs went to full length, best first."""
        finished = [e for e in self.entries if self.total in e.runs[self.seed].scores]
        return self._rank_entries(finished, self.total)

    def lowest(self, rungs: Iterable[int]) -> tuple[float, int]:
        """The smallest loss of all runs at some rungs, and its step."""
        return min((e.along(rung, self.seed), rung) for e in self.entries for rung in rungs)

    def fall(self, *rungs: int) -> float:
        """How far the best run's loss has fallen from the start, at some rungs or at all of them;
        0 where none fell.
        """
        low = self.lowest(rungs or self.rungs)[0]
        return max(0.0, self.start - low) if math.isfinite(low) else 0.0

    def is_flat(self, loss: float) -> bool:
        """Whether a loss is that of the start but for the noise between seeds."""
        fall = self.start - loss
        return fall <= self._noise_of_loss() and fall <= NO_FALL * abs(self.start)

    def _noise_of_loss(self) -> float:
        """Half-width of the 90 % interval for the loss of one run at the first rung, in units of
        the loss; or for its fall, if that is smaller: another seed may have other data, on which
        every loss differs. 0 where no setting ran with the extra seeds.
        """
        starts = [self.start, *(self._other_starts.get(s, math.nan) for s in self._seeds[1:])]
        losses = _finite_rows(  # one row per setting, one column per seed
            [e.score(self.rungs[0], seed) for seed in self._seeds] for e in self._leaders
        )
        falls = [[start - loss for start, loss in zip(starts, row, strict=True)] for row in losses]
        if not losses:
            return 0.0
        range_between_seeds = median_high(max(row) - min(row) for row in losses)
        if not any(map(math.isnan, starts)):
            range_of_falls = median_high(max(row) - min(row) for row in falls)
            range_between_seeds = min(range_between_seeds, range_of_falls)
        # Two seeds leave one degree of freedom; half their range is the error of their mean.
        return _T95[0] * range_between_seeds / 2

    def rises(self, step: int, earlier: Sequence[int]) -> bool:
        """Whether every run that got to ``step`` is above the smallest loss at ``earlier`` rungs,
        by more than the noise between two seeds.
        """
        rise = self.level(self.lowest([step])[0]) - self.level(self.lowest(earlier)[0])
        return rise > self.noise.reach()

    def level(self, loss: float) -> float:
        """A loss on the scale of the race: the log of its height over the floor.

        The floor lies a quarter of the largest fall below the smallest loss of the race, so adding
        a constant to the loss changes nothing, and losses may have any sign.

        Example:
            >>> race = Race(
            ...     lambda: ((torch.nn.Linear(1, 1), max), [torch.ones(1, 1)]), 48, Scale(2)
            ... )
            >>> race.start, race.entries[0].runs[0] = 2.0, Progress(2, {2: -1.0})
            >>> round(race.floor(), 6), round(race.level(-1.0 + 3.0), 6)
            (-1.75, 1.321756)
        """
        height = loss - self.floor()
        return math.log(height) if height > 0 else -math.inf

    def floor(self) -> float:
        """The loss at which the scale of the race begins: below everything seen so far, by the
        share ``FLOOR`` of the largest fall.
        """
        seen = [
            score
            for e in self.entries
            for run in e.runs.values()
            for step, score in (*run.scores.items(), *run.along.items())
            # A piece that was loaded may hold later scores, which are not asked for yet.
            if step <= max(self._asked.get(id(e), {step})) and math.isfinite(score)
        ]
        if not seen:
            return 0.0
        top = self.start if math.isfinite(self.start) else max(seen)
        # The tiny number keeps the floor below the smallest loss where none has fallen.
        return min(seen) - (FLOOR * (top - min(seen)) or 1e-12)

    def loss_above(self, loss: float, distance: float) -> float:
        """The loss that lies a distance above another one on the scale of the race (below it for a
        negative one).
        """
        factor = math.exp(min(distance, 700.0))  # exp(710) is no float any more
        return self.floor() + (loss - self.floor()) * factor

    def _run_calmest(self, step: int) -> Entry:
        """Run the family ``CALMEST`` below all learning rates of the race to a step, because short
        runs favour large rates; returns its entry.
        """
        entry = self._entry_at(CALMEST, min(e.candidate.rate for e in self.entries) / FACTOR)
        self._enter(entry, step)
        return entry

    def _rank_entries(self, entries: Iterable[Entry], step: int) -> list[Entry]:
        """The entries by their loss at a step, the smallest first."""
        return sorted(entries, key=lambda e: e.score(step, self.seed))

    def _family(self, name: str) -> list[Entry]:
        """The entries of an optimizer, by its key in ``FAMILIES``."""
        return [e for e in self.entries if e.candidate.family == name]

    def _join(self, candidates: Iterable[Candidate], step: int) -> None:
        """Let settings that are not in the race yet run to a step, those that can be paid for."""
        known = {e.candidate.name for e in self.entries}
        for setting in candidates:
            entry = Entry(setting, {})
            if setting.name not in known and self._affordable([(entry, step)], self.rungs[0]):
                known.add(setting.name)
                self.entries.append(entry)
                self._advance(entry, self.seed, step)

    def _widen_rates_of_adamw(self, step: int) -> None:
        """Run AdamW's next learning rate to a step where its best one is its smallest or largest,
        unless the best of all is far ahead.
        """
        own = sorted(self._family(BASELINE.family), key=lambda e: e.candidate.rate)
        leader = self._rank_entries(own, step)[0]
        best = self._rank_entries(self.entries, step)[0].score(step, self.seed)
        # ``not``: also where both are infinite, whose difference is NaN.
        if not leader.score(step, self.seed) - best <= NEAR * self.fall(step):
            return
        rate = leader.candidate.rate
        if leader is own[-1]:
            self._join([candidate(BASELINE.family, rate * FACTOR, self.scale)], step)
        elif leader is own[0]:
            self._join([candidate(BASELINE.family, rate / FACTOR, self.scale)], step)

    def _run_extra_seeds(self, step: int) -> None:
        """Run the best settings with more seeds, from which ``noise`` is read."""
        for entry in self._rank_entries(self.entries, step)[:LEADERS]:
            further_runs = [(Entry(entry.candidate, {}), step)] * EXTRA_SEEDS
            if math.isfinite(entry.score(step, self.seed)) and self._affordable(further_runs, step):
                for seed in self._seeds[1:]:
                    if seed not in self._other_starts:
                        self._other_starts[seed] = start_loss(self.bench, seed)
                    self._advance(entry, seed, step)
                self._leaders.append(entry)

    @property
    def noise(self) -> Noise:
        """Spread between seeds at the first rung, on the present scale of the race."""
        rows = _finite_rows(
            [self.level(e.score(self.rungs[0], seed)) for seed in self._seeds]
            for e in self._leaders
        )
        if len(rows) < 2:
            return Noise(math.nan, 0)
        levels = torch.tensor(rows, dtype=torch.float64)  # (settings, seeds)
        settings, seeds = levels.shape
        # What is left after the mean of each seed and of each setting is taken out; that costs a
        # degree of freedom per seed and per setting.
        residual = (
            levels - levels.mean(0, keepdim=True) - levels.mean(1, keepdim=True) + levels.mean()
        )
        freedom = (settings - 1) * (seeds - 1)
        return Noise(float((residual.square().sum() / freedom).sqrt()), freedom)

    def _advance_all(self, entries: Iterable[Entry], until: int) -> None:
        """Train entries with the race's own seed until a step."""
        for entry in list(entries):
            self._advance(entry, self.seed, until)

    def _advance(self, entry: Entry, seed: int, until: int) -> None:
        """Train one entry with one seed until that step, or load the piece trained before. A run
        that has diverged gets an infinite loss there.
        """
        run = entry.runs.setdefault(seed, Progress())
        if seed == self.seed:
            self._asked.setdefault(id(entry), set()).add(until)
        if run.diverged:
            run.scores[until] = run.along[until] = math.inf
        if run.diverged or run.steps >= until:
            return
        self._report(f"{entry.candidate.name}, step {run.steps} to {until}", self._share_done())
        if self._load(entry, seed, until):
            return
        train_until(
            run,
            self.bench,
            entry.candidate.optimizer,
            seed=seed,
            until=until,
            total=self.total,
            shape=entry.candidate.shape,
        )
        self._save(entry, seed, until)

    def _piece_path(self, entry: Entry, seed: int, until: int) -> Path:
        """The file of a run up to a step."""
        assert self.folder is not None
        key = json.dumps([entry.candidate.name, seed, until, self.total])
        return self.folder / f"{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}.piece"

    def _save(self, entry: Entry, seed: int, until: int) -> None:
        """Write a run that stands at that step into the folder, if there is one, and remove its
        earlier pieces but that of the third rung.
        """
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._piece_path(entry, seed, until)
        try:
            write_checkpoint(path, KIND, vars(entry.runs[seed]), self._belongs_to(entry, seed))
        except CheckpointError as error:  # a model may keep things that no file of ours holds
            name = entry.candidate.name
            self._report(f"{name}, step {until}: not kept ({error})", self._share_done())
            return
        for earlier in self.rungs:
            # The numbers stay in the later piece. Of the weights only those of the third rung are
            # needed again (``_ignores_inputs``).
            if earlier < until and earlier != self.rungs[2]:
                self._piece_path(entry, seed, earlier).unlink(missing_ok=True)

    def _load(self, entry: Entry, seed: int, until: int) -> bool:
        """Take a finished piece, or any later piece of the same run, from the folder; returns
        whether there was one.

        A damaged piece is named, set aside and computed again.

        Raises:
            CheckpointError: a piece of another problem, start or setting; it says what differs.
        """
        if self.folder is None:
            return False
        for rung in (until, *(r for r in self.rungs if r > until)):
            path = self._piece_path(entry, seed, rung)
            if not path.exists():
                continue
            try:
                content = read_checkpoint(path, KIND, self._belongs_to(entry, seed))
                entry.runs[seed] = self._read_run(content, entry, seed, path)
                return True
            except CheckpointError as error:
                if error.reason == "other":
                    raise
                sentence = f"{error}: now {set_aside(path).name}, computed again"
                self._report(sentence, self._share_done())
        return False

    def _share_done(self) -> float:
        """The share of the work that is done, for whoever watches."""
        return min(1.0, self.cost() / COST)

    def _belongs_to(self, entry: Entry, seed: int) -> dict[str, str]:
        """What a piece must agree with: settings, start, data and the code of the loss."""
        if seed not in self._problems:
            # What differs between two builds of one seed cannot be compared.
            texts, texts_again = (_problem_texts(build(self.bench.factory, seed)) for _ in range(2))
            self._problems[seed] = {
                name: text if text == texts_again[name] else "another one per build"
                for name, text in texts.items()
            }
        return {
            "candidate": repr(entry.candidate),
            "scale": repr(self.scale),
            "run": f"seed {seed}, {self.total} steps",
            **self._problems[seed],
        }

    def _read_run(self, content: Any, entry: Entry, seed: int, path: Path) -> Progress:
        """A run from its written form, after a look at every field: a file may be made up."""
        run = _checked_progress(content, path)
        if run.state is not None:
            model = self.bench.problem(seed).objective.model
            optimizer = entry.candidate.optimizer(model)
            try:
                model.load_state_dict(run.state["model"])
                optimizer.load_state_dict(run.state["optimizer"])
                for parameter, state in optimizer.state.items():
                    for value in state.values():
                        if isinstance(value, torch.Tensor) and value.numel() > 1:
                            value.view(parameter.shape)  # raises where the sizes differ
            except Exception as error:  # torch raises whatever the wrong field leads to
                _refuse(path, f"a state that does not load ({type(error).__name__}: {error})")
        return run


def _unique(entries: Iterable[Entry]) -> list[Entry]:
    """The entries in their order, each once."""
    return list({id(e): e for e in entries}.values())


def _best_of_families(ranked: Iterable[Entry]) -> dict[str, Entry]:
    """Family -> its first entry among the ranked ones."""
    best: dict[str, Entry] = {}
    for entry in ranked:
        best.setdefault(entry.candidate.family, entry)
    return best


def _finite_rows(rows: Iterable[list[float]]) -> list[list[float]]:
    """The rows that hold finite numbers only."""
    return [row for row in rows if all(map(math.isfinite, row))]


def _problem_texts(problem: Problem) -> dict[str, str]:
    """Fingerprints of a problem's start, data and loss, by what they are of."""
    model = problem.objective.model
    return {
        "start": data_text(dict(model.state_dict())),
        "training data": data_text(problem.train),
        "validation data": data_text(problem.valid),
        "loss": function_text(problem.objective.loss, (model,)),
    }


def _refuse(path: Path, got: str) -> NoReturn:
    """Raise the error for a file that holds something else than a run."""
    raise CheckpointError(f"checkpoint must hold a run, got {got} in {path}", "damaged")


def _checked_progress(content: Any, path: Path) -> Progress:
    """The progress of a run as a file holds it.

    Raises:
        CheckpointError: the file has other fields, or fields of other types.
    """
    if not isinstance(content, dict) or content.keys() != vars(Progress()).keys():
        _refuse(path, "other fields")
    run = Progress(**content)

    def is_number(value: Any) -> bool:
        """Whether it is an int or a float; True and False are none."""
        return type(value) in (int, float)

    fits = (
        type(run.steps) is int
        and run.steps >= 0
        and all(map(is_number, (run.seconds, run.per_step, run.stepping, run.beside)))
        and all(
            isinstance(scores, dict)
            and all(type(step) is int and is_number(v) for step, v in scores.items())
            for scores in (run.scores, run.along)
        )
        and isinstance(run.curve, list)
        and all(
            isinstance(pair, tuple)
            and len(pair) == 2
            and type(pair[0]) is int
            and is_number(pair[1])
            for pair in run.curve
        )
        and (
            run.state is None
            or (isinstance(run.state, dict) and run.state.keys() == {"model", "optimizer"})
        )
    )
    if not fits:
        _refuse(path, "fields of other types")
    return run
