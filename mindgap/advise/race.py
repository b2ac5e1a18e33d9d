"""Successive halving over optimizers and learning rates: short runs first, survivors continue from
where they are.

Every candidate sees the same starts and the same order of batches. Rungs before the end are judged
by the better of the last weights and their average over the last quarter of the steps: averaging
removes most of the noise that the final decay of the learning rate removes, and it costs no extra
step.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mindgap.advise.candidates import (
    BASELINE,
    FAMILIES,
    Candidate,
    Scale,
    candidate,
    first_candidates,
)
from mindgap.advise.training import Factory, Progress, build, train_until

#: Shares of the full length at which the field is judged.
RUNGS = (1 / 24, 1 / 6, 1 / 2, 1.0)
#: Candidates that go on from each rung but the last, without the baseline. Two go to the end: what
#: leads at half of the steps often does not lead at the end.
KEEP = (4, 2, 2)
#: Seeds beside the first, run to the first rung by the leaders to estimate the noise between seeds.
EXTRA_SEEDS = 1
#: Full-length runs that the whole race costs at most.
COST = 4.0
#: The family that gets a smaller learning rate when the losses of all candidates rise.
CALMEST = "AdamW with clipping"
#: Factor between neighbouring learning rates.
FACTOR = 10**0.5


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


class Race:
    """The race for one problem.

    Args:
        folder: where finished pieces are kept, so that an interrupted race continues; None:
            nowhere.
        told: called with a sentence and the share of the work that is done.

    Example:
        >>> batches = list(torch.randn(40, 8, 4))
        >>> def factory():
        ...     model = torch.nn.Linear(4, 1)
        ...     return (model, lambda model, batch: (model(batch) - 1).square().mean()), batches
        >>> race = Race(factory, total=48, scale=Scale(5, gradient_norm=1.0))
        >>> race.run()
        >>> race.cost() <= COST and math.isfinite(race.entries[0].score(48, 0))
        True
    """

    def __init__(
        self,
        factory: Factory,
        total: int,
        scale: Scale,
        *,
        seed: int = 0,
        folder: Path | None = None,
        told: Callable[[str, float], Any] | None = None,
    ) -> None:
        self.factory, self.total, self.scale, self.seed, self.folder = (
            factory,
            total,
            scale,
            seed,
            folder,
        )
        self.rungs = tuple(max(2, round(share * total)) for share in RUNGS)
        self.entries = [
            Entry(c, {}) for c in first_candidates(build(factory, seed).objective.model, scale)
        ]
        self.noise = Noise(math.nan, 0)
        self.unit = 0.0  # 0: losses are compared by their logs
        self._told = told or (lambda sentence, share: None)

    def run(self) -> None:
        """Run all rungs; ``entries`` and ``noise`` hold the result."""
        first = self.rungs[0]
        for entry in self.entries:
            self._advance(entry, self.seed, first)
        self._extend(first)
        ranked = self._ranked(self.entries, first)
        leaders = ranked[: KEEP[0]]
        self._estimate_noise(leaders, first)
        field = [
            *sorted(leaders, key=lambda e: self._mean(e, first)),
            *ranked[KEEP[0] : KEEP[0] + 1],
        ]
        baseline, keeps = self.entries[0], list(KEEP)
        for position, rung in enumerate(self.rungs[1:]):
            field = [e for e in field if e is not baseline][: keeps[position]]
            for entry in [baseline, *field]:
                self._advance(entry, self.seed, rung)
            field = self._ranked([baseline, *field], rung)
            if position == 0 and self.rises(rung, [first]):
                field = self._ranked([*field, self._smaller_rate(rung)], rung)
                keeps[-1] = 1  # pays for the candidate that is added

    def cost(self) -> float:
        """Full-length runs spent."""
        return sum(run.steps for entry in self.entries for run in entry.runs.values()) / self.total

    def finalists(self) -> list[Entry]:
        """The runs that went to full length, best first."""
        return self._ranked(
            [e for e in self.entries if self.total in e.runs[self.seed].scores], self.total
        )

    def lowest(self, rungs: Iterable[int]) -> tuple[float, int]:
        """The smallest loss of all runs at some rungs, and its step."""
        return min((e.score(rung, self.seed), rung) for e in self.entries for rung in rungs)

    def rises(self, step: int, earlier: Sequence[int]) -> bool:
        """Whether every run that got to ``step`` is above the smallest loss at ``earlier`` rungs.

        By more than the noise between two seeds.
        """
        return (
            self.level(self.lowest([step])[0]) - self.level(self.lowest(earlier)[0])
            > self.noise.reach()
        )

    def _smaller_rate(self, step: int) -> Entry:
        """A candidate below all learning rates of its family, run to ``step``: short runs
        favour large rates.
        """
        rates = [e.candidate.rate for e in self.entries if e.candidate.family == CALMEST]
        self.entries.append(Entry(candidate(CALMEST, min(rates) / FACTOR, self.scale), {}))
        for rung in self.rungs:
            if rung <= step:
                self._advance(self.entries[-1], self.seed, rung)
        return self.entries[-1]

    def _ranked(self, entries: list[Entry], step: int) -> list[Entry]:
        return sorted(entries, key=lambda e: e.score(step, self.seed))

    def level(self, loss: float) -> float:
        """A loss on the scale of the race: its log, or, where losses can be negative, a multiple of
        their usual size.

        Example:
            >>> race = Race(
            ...     lambda: ((torch.nn.Linear(1, 1), max), [torch.ones(1, 1)]), 48, Scale(2)
            ... )
            >>> race.level(math.e), race.level(0.0)
            (1.0, -inf)
        """
        if self.unit:
            return loss / self.unit
        return math.log(loss) if loss > 0 else -math.inf

    def gain(self, own: float, other: float, shift: float = 0.0) -> float:
        """Share of the other loss that is saved, after ``shift`` is taken off the difference of the
        two levels.

        Example:
            >>> race = Race(
            ...     lambda: ((torch.nn.Linear(1, 1), max), [torch.ones(1, 1)]), 48, Scale(2)
            ... )
            >>> race.gain(0.5, 1.0), race.gain(0.5, 1.0, shift=math.log(4.0))
            (0.5, -1.0)
        """
        saved = (0.0 if own == other else self.level(other) - self.level(own)) - shift
        if not self.unit:
            return 1 - math.exp(min(-saved, 700.0))
        return saved * self.unit / abs(other) if other else 0.0

    def _mean(self, entry: Entry, step: int) -> float:
        values = [self.level(entry.score(step, s)) for s in entry.runs]
        return sum(values) / len(values)

    def _extend(self, step: int) -> None:
        """Try the next learning rate of a family whose best is its smallest or largest, while
        it is worth it.
        """
        for _ in range(2):
            best = self._ranked(self.entries, step)[0].score(step, self.seed)
            added = []
            for family in FAMILIES:
                own = sorted(
                    (e for e in self.entries if e.candidate.family == family),
                    key=lambda e: e.candidate.rate,
                )
                if not own or family == BASELINE.family:
                    continue
                leader = self._ranked(own, step)[0]
                if leader.score(step, self.seed) > best + 0.1 * abs(best):
                    continue
                rates = [e.candidate.rate for e in own]
                if leader is own[-1]:
                    added.append(candidate(family, rates[-1] * FACTOR, self.scale))
                elif leader is own[0]:
                    added.append(candidate(family, rates[0] / FACTOR, self.scale))
            known = {e.candidate.name for e in self.entries}
            for new in added[:2]:
                if new.name not in known:
                    self.entries.append(Entry(new, {}))
                    self._advance(self.entries[-1], self.seed, step)

    def _estimate_noise(self, field: list[Entry], step: int) -> None:
        field = [e for e in field if math.isfinite(e.score(step, self.seed))]
        seeds = [self.seed + 1 + k for k in range(EXTRA_SEEDS)]
        for entry in field:
            for seed in seeds:
                self._advance(entry, seed, step)
        losses = torch.tensor(
            [[e.score(step, s) for s in (self.seed, *seeds)] for e in field], dtype=torch.float64
        )
        if len(losses) and bool((losses <= 0).any()):
            self.unit = float(losses.abs().median()) or 1.0
        levels = losses / self.unit if self.unit else losses.log()
        levels = levels[levels.isfinite().all(1)]
        n, m = levels.shape if len(levels) else (0, 0)
        if n >= 2:
            residual = (
                levels - levels.mean(0, keepdim=True) - levels.mean(1, keepdim=True) + levels.mean()
            )
            freedom = (n - 1) * (m - 1)
            self.noise = Noise(float((residual.square().sum() / freedom).sqrt()), freedom)

    def _advance(self, entry: Entry, seed: int, until: int) -> None:
        run = entry.runs.setdefault(seed, Progress())
        if run.diverged or run.steps >= until:
            if run.diverged:
                run.scores[until] = math.inf
            return
        share = min(1.0, self.cost() / COST)
        self._told(f"{entry.candidate.name}, step {run.steps} to {until}", share)
        if self._load(entry, seed, until):
            return
        train_until(
            run, self.factory, entry.candidate.optimizer, seed=seed, until=until, total=self.total
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
        whole = path.with_suffix(".part")
        torch.save(vars(entry.runs[seed]), whole)
        whole.replace(path)
        for earlier in self.rungs:
            if (
                earlier < until
            ):  # the numbers stay in the later piece; the weights of the earlier one are not needed
                self._piece(entry, seed, earlier).unlink(missing_ok=True)

    def _load(self, entry: Entry, seed: int, until: int) -> bool:
        """Take a finished piece, or any later piece of the same run, from the folder."""
        if self.folder is None:
            return False
        for rung in (until, *(r for r in self.rungs if r > until)):
            path = self._piece(entry, seed, rung)
            if path.exists():
                entry.runs[seed] = Progress(**torch.load(path, weights_only=False))
                return True
        return False
