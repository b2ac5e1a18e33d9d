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
from typing import Any, NoReturn

import torch

from mindgap.advise.candidates import (
    BASELINE,
    FACTOR,
    FAMILIES,
    Candidate,
    Scale,
    candidate,
    decayed,
    first_candidates,
    other_candidates,
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
        return self.runs[seed].scores.get(step, math.inf)

    def along(self, step: int, seed: int) -> float:
        """The loss by the validation batches that are read at every rung."""
        return self.runs[seed].along.get(step, self.score(step, seed))


class Race:
    """The race for one problem.

    Args:
        folder: where finished pieces are kept, so that an interrupted race continues; None:
            nowhere.
        seconds: time for the race; where it gets short, fewer settings go on. None: no limit.
        before: what measuring took by ``work_clock``, which counts towards the cost.
        without: names from ``PARTS`` to leave out.
        told: called with a sentence and the share of the work that is done.

    Attributes:
        start: validation loss before the first step.
        notes: what weakens the answer.

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
        before: float = 0.0,
        without: Sequence[str] = (),
        told: Callable[[str, float], Any] | None = None,
    ) -> None:
        self.bench = factory if isinstance(factory, Bench) else Bench(factory)
        self.factory, self.total, self.scale, self.seed, self.folder = (
            self.bench.factory,
            total,
            scale,
            seed,
            folder,
        )
        self.seconds, self.before = seconds, before
        self.rungs = tuple(max(2, round(share * total)) for share in RUNGS)
        self.entries = [Entry(c, {}) for c in first_candidates(scale)]
        self.without = tuple(without)
        self._other_starts: dict[int, float] = {}  # start of the runs with another seed
        #: entry -> the steps up to which the race has asked it to run with its own seed.
        self._asked: dict[int, set[int]] = {}
        self._leaders: list[Entry] = []
        self.start = math.nan
        self.notes: list[str] = []
        self._problems: dict[int, dict[str, str]] = {}
        self._told = told or (lambda sentence, share: None)

    def run(self) -> None:
        """Run all rungs; ``entries`` and ``noise`` hold the result."""
        self.start = start_loss(self.bench, self.seed)
        first, second, third, _ = self.rungs
        self._advance_all(self.entries, first)
        if math.isnan(self.start):  # no validation batches: the first training losses
            curves = [e.runs[self.seed].curve for e in self.entries]
            self.start = max((c[0][1] for c in curves if c), default=math.nan)
        self._extend(first, [BASELINE.family], times=2)
        bracket = "second bracket" not in self.without
        rate = self._rate_of_adamw(second) if bracket else self._reference(first).candidate.rate
        model = self.bench.problem(self.seed).objective.model
        self._join(other_candidates(model, self.scale, rate), first)
        del model
        self._slow_down(first)
        self._run_leaders(first)
        field: list[Entry] = []
        for entry in self._second_rung(first):
            there = second in self._asked.get(id(entry), ())
            if there or not field or self._affordable([(entry, second)], first):
                self._advance(entry, self.seed, second)
                field.append(entry)
        if bracket:
            field += self._smaller_neighbour(field, second)
        if self.rises(second, [first]):
            field.append(self._smaller_rate(second))
        field = self._third_rung(field)
        self._advance_all(field, third)
        last = self._finalists(field)
        for entry in last[: KEEP[1]]:
            self._enter(entry, self.total)
        for entry in self._late(last[KEEP[1] :]):
            if self._fits([(entry, self.total)]):
                self._enter(entry, self.total)

    def run_default(self) -> bool:
        """Run AdamW at 1e-3 to the end whatever it costs, and say whether that was to be done.
        Short runs favour large rates: "nothing trains" needs a run at a small one.
        """
        if self.total in self._asked.get(id(self.entries[0]), ()):
            return False
        self._enter(self.entries[0], self.total)
        return True

    def _finalists(self, field: Sequence[Entry]) -> list[Entry]:
        """What runs to the end, in this order while it can be paid for: the best of the third rung,
        AdamW's best, and the others. Where every loss rises, weight decay and AdamW at 1e-3 come
        first: short runs favour large rates, which with weight decay may be right. Where nothing
        trains so far, AdamW at 1e-3 and at the next larger rate come first: large rates lead on a
        plateau by chance, and what trains late does so at small ones.
        """
        step = self.rungs[2]
        ranked = self._rank_entries(field, step)
        wanted = [ranked[0], self._reference(step, field), *ranked]
        flat = self.is_flat(self.lowest(self.rungs[:3])[0])
        if not flat and self._risen(self.lowest([step])[0], self.lowest(self.rungs[:2])[0]):
            first = self._reference(self.rungs[0]).candidate
            calm = [self._entry(decayed(first, self.total)), self.entries[0]]
            if self._fits([(entry, self.total) for entry in calm]):
                wanted = [*calm, *wanted]
        elif flat or self._says_one_thing(ranked[0], step):
            slow = [self.entries[0], self._at(BASELINE.family, BASELINE.rate * FACTOR)]
            both = self._fits([(entry, self.total) for entry in slow])
            wanted = [*(slow if both else slow[:1]), *wanted]
        return list({id(e): e for e in wanted}.values())

    def _says_one_thing(self, entry: Entry, step: int) -> bool:
        """Whether a model that has got to a step says the same for every input."""
        fall = self.start - entry.score(step, self.seed)
        return at_chance(self.bench.problem(self.seed), entry.runs[self.seed], fall)

    def _rate_of_adamw(self, step: int) -> float:
        """AdamW's best rate at a step: that of the first rung, or a smaller one."""
        entry = self._reference(self.rungs[0])
        self._advance(entry, self.seed, step)
        for _ in range(SMALLER):
            smaller = self._at(BASELINE.family, entry.candidate.rate / FACTOR)
            if not self._affordable([(smaller, step)], self.rungs[0]):
                break
            self._enter(smaller, step)
            if not smaller.score(step, self.seed) < entry.score(step, self.seed):
                break
            entry = smaller
        return entry.candidate.rate

    def _slow_down(self, step: int) -> None:
        """Try smaller rates for SGD where it hardly trains at any: what measured norms and AdamW's
        best rate say of its rates may be far off.
        """
        for family in (name for name, of in FAMILIES.items() if of.like_sgd):
            for _ in range(SMALLER):
                own = self._family(family)
                fall = self.start - min((e.score(step, self.seed) for e in own), default=-math.inf)
                if not fall < NEAR * self.fall(step):
                    break
                rate = min(e.candidate.rate for e in own) / FACTOR
                self._join([candidate(family, rate, self.scale)], step)

    def _second_rung(self, step: int) -> list[Entry]:
        """What runs to the second rung: AdamW's settings that are there already, and the best
        setting of every other optimizer. Without the second bracket: AdamW's best and the four
        best at the first.
        """
        ranked = self._rank_entries(self.entries, step)
        if "second bracket" in self.without:
            chosen = [self._reference(step), *ranked]
            return list({id(e): e for e in chosen}.values())[:5]
        families: dict[str, Entry] = {}
        for entry in ranked:
            families.setdefault(entry.candidate.family, entry)
        there = [e for e in self.entries if self.rungs[1] in self._asked.get(id(e), ())]
        others = [
            e
            for name, e in families.items()
            if name != BASELINE.family and self._step_cost(name) < DEAR
        ]
        return [*there, *others]

    def _smaller_neighbour(self, field: Sequence[Entry], step: int) -> list[Entry]:
        """The leader at the next smaller rate, if it is not AdamW, which has had that, and if the
        leader and AdamW can still get to the end.
        """
        leader = self._rank_entries(field, step)[0]
        if leader.candidate.family == BASELINE.family:
            return []
        entry = self._at(leader.candidate.family, leader.candidate.rate / FACTOR)
        to_the_end = [(e, self.total) for e in (leader, self._reference(step, field))]
        if any(entry is e for e in field) or not self._fits([(entry, step), *to_the_end]):
            return []
        self._enter(entry, step)
        return [entry]

    def _third_rung(self, field: Sequence[Entry]) -> list[Entry]:
        """The best of the second rung, AdamW's best, and the best of other optimizers, as many as
        can be paid for so that two reach the end. Where no loss has fallen yet the best alone: what
        it saves pays for three runs to the end.
        """
        step = self.rungs[1]
        ranked = self._rank_entries(field, step)
        if self.is_flat(self.lowest(self.rungs[:2])[0]):
            return ranked[:1]
        families: dict[str, Entry] = {}
        for entry in ranked:
            families.setdefault(entry.candidate.family, entry)
        chosen = [ranked[0], self._reference(step, field), *families.values(), *ranked]
        chosen = list({id(e): e for e in chosen}.values())[: KEEP[0]]
        while len(chosen) > KEEP[1]:
            dearest = sorted(chosen, key=lambda e: -self._step_cost(e.candidate.family))[: KEEP[1]]
            later = [(e, self.rungs[2]) for e in chosen if all(e is not d for d in dearest)]
            if self._fits([*later, *((e, self.total) for e in dearest)]):
                break
            chosen.pop()
        return chosen

    def _late(self, third: Sequence[Entry]) -> Iterator[Entry]:
        """What is run to the end after the finalists, in this order while it can be paid for."""
        final = self.finalists()
        best = final[0]
        loss = best.score(self.total, self.seed)
        if not math.isfinite(loss):
            return
        if self.is_flat(loss) or self._says_one_thing(best, self.total):
            yield from third  # the leaders, for which AdamW at small rates went first
        if self.scale.tailed:  # bad batches are fitted too, at a large rate most
            larger = candidate(best.candidate.family, best.candidate.rate * FACTOR, self.scale)
            yield self._entry(decayed(larger, self.total, GENTLE))
        run = best.runs[self.seed]
        recent = [value for _, value in run.curve[-max(1, len(run.curve) // 10) :]]
        overfits = loss - sum(recent) / len(recent) > OVERFIT * self.fall(self.total)
        lowest = min(run.along.get(rung, math.inf) for rung in self.rungs)
        if overfits or self._risen(best.along(self.total, self.seed), lowest):
            yield self._entry(decayed(self._reference(self.rungs[0]).candidate, self.total))
            yield self.entries[0]
        reference = self._reference(self.total, final)
        if reference.score(self.total, self.seed) > reference.score(self.rungs[2], self.seed):
            yield self._at(BASELINE.family, reference.candidate.rate / FACTOR)
        yield self._at(best.candidate.family, best.candidate.rate / CLOSE)
        if "own schedule" not in self.without:
            # On average a rate that falls from the start is two thirds of the trapezoid's.
            faster = candidate(best.candidate.family, best.candidate.rate * CLOSE, self.scale)
            yield self._entry(replace(faster, shape="linear"))
        yield from third

    def _reference(self, step: int, field: Sequence[Entry] | None = None) -> Entry:
        """AdamW's best setting at a step."""
        of = [e for e in (field or self.entries) if e.candidate.family == BASELINE.family]
        return self._rank_entries(of or self._family(BASELINE.family), step)[0]

    def _at(self, family: str, rate: float) -> Entry:
        """A family at a rate: the entry of the race, or a new one that is not in it yet."""
        return self._entry(candidate(family, rate, self.scale))

    def _entry(self, wanted: Candidate) -> Entry:
        known = (e for e in self.entries if e.candidate.name == wanted.name)
        return next(known, None) or Entry(wanted, {})

    def _enter(self, entry: Entry, step: int) -> None:
        """Let a setting run to a step, by way of the rungs before it."""
        if all(entry is not e for e in self.entries):
            self.entries.append(entry)
        for rung in self.rungs:
            if rung <= step:
                self._advance(entry, self.seed, rung)

    def _fits(self, wanted: Iterable[tuple[Entry, int]], by_cost_alone: bool = False) -> bool:
        """Whether runs up to some steps fit into the cost, and into the seconds.

        The cost of a step is that of its optimizer (see ``_step_cost``).
        """
        more, steps = 0.0, 0
        furthest: dict[int, tuple[Entry, int]] = {}
        for entry, until in wanted:
            if until > furthest.get(id(entry), (entry, 0))[1]:
                furthest[id(entry)] = (entry, until)
        for entry, until in furthest.values():
            missing = max(0, until - max(self._asked.get(id(entry), {0})))
            more += self._step_cost(entry.candidate.family) * missing / self.total
            steps += missing
        if self.clock_cost() + more > COST - SPARE:
            return False
        if self.seconds is None or by_cost_alone:
            return True
        spent = self.spent()
        return spent + steps * spent / max(1, self._steps()) <= self.seconds

    def _affordable(self, wanted: Sequence[tuple[Entry, int]], at: int) -> bool:
        """Whether runs up to some steps leave enough for two runs to the end: those that lead at
        step ``at``, AdamW's best among them.
        """
        there = [e for e in self.entries if at in self._asked.get(id(e), ())]
        if not there:
            return True
        last = (self._rank_entries(there, at)[0], self._reference(at, there))
        return self._fits([*wanted, *((e, self.total) for e in last)], by_cost_alone=True)

    def clock_cost(self) -> float:
        """Full-length runs of AdamW spent so far, measuring included: by the clock. On short
        runs, on which the clock tells little, by the steps, with ``OVERHEAD`` for the rest.
        """
        one = self.one_run()
        if one < LEAST_CLOCK:
            return self.weighted_cost() + OVERHEAD
        work = sum(
            (run.stepping + run.beside) * min(1.0, asked / max(1, run.steps))
            for entry in self.entries
            for asked, run in zip(self._asked_steps(entry), entry.runs.values(), strict=True)
        )
        return (self.before + work) / one

    def one_run(self) -> float:
        """Seconds of a full-length run of AdamW by ``work_clock``, at the pace of its fastest run:
        other programs on the machine only slow runs down, and a mean over slow ones would allow
        too much.
        """
        own = [run for e in self._family(BASELINE.family) for run in e.runs.values()]
        paces = [run.stepping / run.steps for run in own if not run.diverged and run.stepping > 0]
        return min(paces, default=0.0) * self.total

    def _asked_steps(self, entry: Entry) -> Iterator[int]:
        """Steps that the race has asked for, per seed: pieces of a race that continues may hold
        more.
        """
        for seed, run in entry.runs.items():
            most = max(self._asked[id(entry)]) if seed == self.seed else self.rungs[0]
            yield min(run.steps, most)

    def _steps(self) -> int:
        return sum(steps for e in self.entries for steps in self._asked_steps(e))

    def spent(self) -> float:
        """Seconds in steps, builds and evaluations. Kept with the pieces, so that a race that
        continues decides as one that was not interrupted.
        """
        return sum(
            run.seconds * min(1.0, asked / run.steps)
            for entry in self.entries
            for asked, run in zip(self._asked_steps(entry), entry.runs.values(), strict=True)
            if run.steps
        )

    def cost(self) -> float:
        """Full-length runs spent."""
        return self._steps() / self.total

    def weighted_cost(self) -> float:
        """The same in runs of AdamW, by what a step of each optimizer takes."""
        return sum(
            self._step_cost(e.candidate.family) * sum(self._asked_steps(e)) / self.total
            for e in self.entries
        )

    def _step_cost(self, family: str) -> float:
        """What a step of an optimizer takes, in steps of AdamW: what the first rung took, in
        tenths, so that two timings mostly agree; the number in ``FAMILIES`` where the rung is
        too short to tell.
        """
        usual = FAMILIES[family].cost
        if self.rungs[0] < LEAST_TIMED:
            return usual

        def fastest(name: str) -> float:
            times = [e.runs[self.seed].per_step for e in self._family(name) if e.runs]
            return min((t for t in times if t > 0), default=math.nan)

        measured = fastest(family) / fastest(BASELINE.family)
        return max(1.0, round(10 * measured) / 10) if math.isfinite(measured) else usual

    def finalists(self) -> list[Entry]:
        """The runs that went to full length, best first."""
        return self._rank_entries(
            [e for e in self.entries if self.total in e.runs[self.seed].scores], self.total
        )

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
        return fall <= self._raw_reach() and fall <= NO_FALL * abs(self.start)

    def _raw_reach(self) -> float:
        """Half-width of the 90 % interval for the loss of one run at the first rung, in units of
        the loss; or for its fall, if that is smaller: another seed may have other data, on which
        every loss differs.
        """
        seeds = [self.seed + k for k in range(1 + EXTRA_SEEDS)]
        starts = [self.start, *(self._other_starts.get(s, math.nan) for s in seeds[1:])]
        pairs = [[e.score(self.rungs[0], s) for s in seeds] for e in self._leaders]
        pairs = [pair for pair in pairs if all(map(math.isfinite, pair))]
        falls = [[a - b for a, b in zip(starts, pair, strict=True)] for pair in pairs]

        def reach(of: list[list[float]]) -> float:
            apart = sorted(max(pair) - min(pair) for pair in of)
            return _T95[0] * apart[len(apart) // 2] / 2

        if not pairs:
            return 0.0
        return reach(pairs) if any(map(math.isnan, starts)) else min(reach(pairs), reach(falls))

    def rises(self, step: int, earlier: Sequence[int]) -> bool:
        """Whether every run that got to ``step`` is above the smallest loss at ``earlier`` rungs.

        By more than the noise between two seeds.
        """
        return (
            self.level(self.lowest([step])[0]) - self.level(self.lowest(earlier)[0])
            > self.noise.reach()
        )

    def _risen(self, loss: float, lowest: float) -> bool:
        """Whether a loss is above an earlier one by enough to try weight decay."""
        return loss - lowest > RISEN * self.fall()

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
        """Where the scale of the race begins."""
        seen = [
            score
            for e in self.entries
            for run in e.runs.values()
            for step, score in (*run.scores.items(), *run.along.items())
            if step <= max(self._asked.get(id(e), {step})) and math.isfinite(score)
        ]
        if not seen:
            return 0.0
        top = self.start if math.isfinite(self.start) else max(seen)
        return min(seen) - (FLOOR * (top - min(seen)) or 1e-12)

    def moved(self, loss: float, by: float) -> float:
        """The loss that lies ``by`` above a loss on the scale of the race."""
        return self.floor() + (loss - self.floor()) * math.exp(min(by, 700.0))

    def _smaller_rate(self, step: int) -> Entry:
        """A candidate below all learning rates of its family, run to ``step``: short runs
        favour large rates.
        """
        rates = [e.candidate.rate for e in self.entries]
        entry = self._at(CALMEST, min(rates) / FACTOR)
        self._enter(entry, step)
        return entry

    def _rank_entries(self, entries: Iterable[Entry], step: int) -> list[Entry]:
        return sorted(entries, key=lambda e: e.score(step, self.seed))

    def _family(self, name: str) -> list[Entry]:
        return [e for e in self.entries if e.candidate.family == name]

    def _join(self, candidates: Iterable[Candidate], step: int) -> None:
        """Let settings that are not in the race yet run to a step."""
        known = {e.candidate.name for e in self.entries}
        for new in candidates:
            entry = Entry(new, {})
            if new.name not in known and self._affordable([(entry, step)], self.rungs[0]):
                known.add(new.name)
                self.entries.append(entry)
                self._advance(entry, self.seed, step)

    def _extend(self, step: int, families: Sequence[str], times: int = 1) -> None:
        """Try the next learning rate of a family whose best is its smallest or largest, while
        it is worth it.
        """
        for _ in range(times):
            best = self._rank_entries(self.entries, step)[0].score(step, self.seed)
            added = []
            for family in families:
                own = sorted(self._family(family), key=lambda e: e.candidate.rate)
                if not own:
                    continue
                leader = self._rank_entries(own, step)[0]
                if not leader.score(step, self.seed) - best <= NEAR * self.fall(step):
                    continue
                rates = [e.candidate.rate for e in own]
                if leader is own[-1]:
                    added.append(candidate(family, rates[-1] * FACTOR, self.scale))
                elif leader is own[0]:
                    added.append(candidate(family, rates[0] / FACTOR, self.scale))
            self._join(added[:2], step)

    def _run_leaders(self, step: int) -> None:
        """Run the best settings with more seeds, from which ``noise`` is read."""
        ranked = self._rank_entries(self.entries, step)[:LEADERS]
        for entry in ranked:
            again = [(Entry(entry.candidate, {}), step)] * EXTRA_SEEDS
            if math.isfinite(entry.score(step, self.seed)) and self._affordable(again, step):
                for seed in range(self.seed + 1, self.seed + 1 + EXTRA_SEEDS):
                    if seed not in self._other_starts:
                        self._other_starts[seed] = start_loss(self.bench, seed)
                    self._advance(entry, seed, step)
                self._leaders.append(entry)

    @property
    def noise(self) -> Noise:
        """Spread between seeds at the first rung, on the present scale of the race."""
        seeds = [self.seed + k for k in range(1 + EXTRA_SEEDS)]
        rows = [[self.level(e.score(self.rungs[0], s)) for s in seeds] for e in self._leaders]
        rows = [row for row in rows if all(math.isfinite(v) for v in row)]
        if len(rows) < 2:
            return Noise(math.nan, 0)
        levels = torch.tensor(rows, dtype=torch.float64)
        n, m = levels.shape
        residual = (
            levels - levels.mean(0, keepdim=True) - levels.mean(1, keepdim=True) + levels.mean()
        )
        freedom = (n - 1) * (m - 1)
        return Noise(float((residual.square().sum() / freedom).sqrt()), freedom)

    def _advance_all(self, entries: Iterable[Entry], until: int) -> None:
        for entry in list(entries):
            self._advance(entry, self.seed, until)

    def _advance(self, entry: Entry, seed: int, until: int) -> None:
        """Train one entry with one seed until that step, or load the piece trained before."""
        run = entry.runs.setdefault(seed, Progress())
        if seed == self.seed:
            self._asked.setdefault(id(entry), set()).add(until)
        if run.diverged or run.steps >= until:
            if run.diverged:
                run.scores[until] = run.along[until] = math.inf
            return
        self._told(f"{entry.candidate.name}, step {run.steps} to {until}", self._share())
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

    def _piece(self, entry: Entry, seed: int, until: int) -> Path:
        assert self.folder is not None
        key = json.dumps([entry.candidate.name, seed, until, self.total])
        return self.folder / f"{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}.piece"

    def _save(self, entry: Entry, seed: int, until: int) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._piece(entry, seed, until)
        try:
            write_checkpoint(path, KIND, vars(entry.runs[seed]), self._belongs_to(entry, seed))
        except CheckpointError as error:  # a model may keep things that no file of ours holds
            self._told(f"{entry.candidate.name}, step {until}: not kept ({error})", self._share())
            return
        for earlier in self.rungs:
            # The numbers stay in the later piece. Of the weights only those of the third rung are
            # needed again (``_says_one_thing``).
            if earlier < until and earlier != self.rungs[2]:
                self._piece(entry, seed, earlier).unlink(missing_ok=True)

    def _load(self, entry: Entry, seed: int, until: int) -> bool:
        """Take a finished piece, or any later piece of the same run, from the folder.

        A damaged piece is named, set aside and computed again.

        Raises:
            CheckpointError: a piece of another problem, start or setting; it says what differs.
        """
        if self.folder is None:
            return False
        for rung in (until, *(r for r in self.rungs if r > until)):
            path = self._piece(entry, seed, rung)
            if not path.exists():
                continue
            try:
                content = read_checkpoint(path, KIND, self._belongs_to(entry, seed))
                entry.runs[seed] = self._progress(content, entry, seed, path)
                return True
            except CheckpointError as error:
                if error.reason == "other":
                    raise
                self._told(f"{error}: now {set_aside(path).name}, computed again", self._share())
        return False

    def _share(self) -> float:
        return min(1.0, self.cost() / COST)

    def _belongs_to(self, entry: Entry, seed: int) -> dict[str, str]:
        """What a piece must agree with: settings, start, data and the code of the loss."""
        if seed not in self._problems:
            # What differs between two builds of one seed cannot be compared.
            one, two = (_problem_text(build(self.factory, seed)) for _ in range(2))
            self._problems[seed] = {
                name: text if text == two[name] else "another one per build"
                for name, text in one.items()
            }
        made = entry.candidate
        return {
            "candidate": repr(made),
            "scale": repr(self.scale),
            "run": f"seed {seed}, {self.total} steps",
            **self._problems[seed],
        }

    def _progress(self, content: Any, entry: Entry, seed: int, path: Path) -> Progress:
        """A run from its written form, after a look at every field: a file may be made up."""
        run = _checked_progress(content, path)
        if run.state is not None:
            model = self.bench.problem(seed).objective.model
            optimizer = entry.candidate.optimizer(model)
            try:
                model.load_state_dict(run.state["model"])
                optimizer.load_state_dict(run.state["optimizer"])
                for parameter, kept in optimizer.state.items():
                    for value in kept.values():
                        if isinstance(value, torch.Tensor) and value.numel() > 1:
                            value.view(parameter.shape)
            except Exception as error:  # torch raises whatever the wrong field leads to
                _refuse(path, f"a state that does not load ({type(error).__name__}: {error})")
        return run


def _problem_text(problem: Problem) -> dict[str, str]:
    model = problem.objective.model
    return {
        "start": data_text(dict(model.state_dict())),
        "training data": data_text(problem.train),
        "validation data": data_text(problem.valid),
        "loss": function_text(problem.objective.loss, (model,)),
    }


def _refuse(path: Path, got: str) -> NoReturn:
    raise CheckpointError(f"checkpoint must hold a run, got {got} in {path}", "damaged")


def _checked_progress(content: Any, path: Path) -> Progress:
    """The progress of a run as a file holds it; a file with other fields or types is refused."""
    if not isinstance(content, dict) or content.keys() != vars(Progress()).keys():
        _refuse(path, "other fields")
    run = Progress(**content)

    def is_number(value: Any) -> bool:
        return type(value) in (int, float)

    fits = (
        type(run.steps) is int
        and run.steps >= 0
        and is_number(run.seconds)
        and is_number(run.per_step)
        and is_number(run.stepping)
        and is_number(run.beside)
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
