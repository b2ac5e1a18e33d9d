"""Which optimizer and which settings suit a given training problem: measure first, race second,
then say it plainly.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from mindgap.advise.candidates import BASELINE, FAMILIES, Candidate, Scale
from mindgap.advise.race import PARTS, Entry, Race
from mindgap.advise.training import (
    MOST_VALIDATION,
    SHAPES,
    Bench,
    Factory,
    Problem,
    at_chance,
    batches_from,
    check_starts,
    start_loss,
    timed_steps,
    untouched_randomness,
    work_clock,
)
from mindgap.base.check import RuleError, fail, positive, whole
from mindgap.base.checked import checked_types
from mindgap.measure import infinite_variance, noise_sample
from mindgap.measure.gradients import reason, time_limit
from mindgap.record.schema import to_json
from mindgap.record.store import read_json, write_atomically

#: Version of the written form.
SCHEMA = 2
#: Share of the time that measuring may take.
MEASURING = 0.1
#: Most seconds that measuring takes, whatever the time.
MOST_MEASURING = 30.0
#: Most that measuring takes, in full-length runs. What is measured follows from the steps and not
#: from the clock: the answer must not depend on the load of the machine.
MEASURING_RUNS = 0.2
#: Most of the same by the clock, where gradients are slower than steps.
MOST_RUNS = 0.5
#: Seconds that measuring may always take: half a run of a tiny problem is less than the machine
#: may stall, and without norms the race would start at other rates.
LEAST_MEASURING = 1.0
#: Steps from which the time of a step is read.
PACE = 8
#: Evaluations in a race, most of which come twice per piece of a run.
PIECES = 40
#: Full-length runs that evaluations may take together.
EVALUATING = 0.4
#: Share of the time for which race and measuring are planned.
PLANNED = 0.85
#: Full-length runs that a race usually costs.
EXPECTED = 4.5
#: What saves less than this share of what AdamW's loss still moved after the last rung before the
#: end is no reason to change the optimizer.
LEAST_GAIN = 0.02
#: A tenth of the gradient norms above so many medians: bad batches. Of 26 tasks the one with
#: Cauchy errors has 4.0, the next 1.9.
LONG_TAIL = 3.0
#: Shortest run, in steps, from which a recommendation is made.
SHORTEST = 96
#: A gain of 0 with an interval that says nothing.
UNKNOWN_GAIN = (0.0, -math.inf, math.inf)


@dataclass(frozen=True)
class Tried:
    """One run of the race."""

    name: str  # of its setting
    seed: int
    steps: int  # how far it went
    loss: float  # validation loss there
    #: pairs (step, mean training loss since the pair before).
    curve: tuple[tuple[int, float], ...]
    #: pairs (step, validation loss), which decide.
    scores: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Decision:
    """What was decided. Sentence, code, caption and figure are made from this alone."""

    #: ``"fine"`` (AdamW at 1e-3), ``"rate"`` (AdamW at another rate), ``"optimizer"``, ``"rises"``
    #: (all of them ended above an earlier loss), or why there is no setting: ``"nothing trains"``,
    #: ``"at chance"``, ``"diverged"``.
    kind: str
    setting: str  # name of the recommended setting; empty where there is none
    baseline: str  # AdamW at its own best rate
    loss: float  # validation loss of the setting at the end
    baseline_loss: float
    #: what the setting saves, with its 90 % interval.
    gain: tuple[float, float, float]
    #: whether ``gain`` is a share of the baseline's loss, or, for losses that may be negative, of
    #: its fall since the start.
    relative_to: str
    start: float  # validation loss before the first step
    steps: int  # length of the runs that decided
    #: what the rate alone gave: (step, AdamW's loss there at its best rate, at 1e-3).
    rate: tuple[int, float, float] | None
    #: where every run ended above an earlier loss: (step of the smallest one, that loss). The gain
    #: of another optimizer is then unknown, because fewer steps end below both runs.
    lowest: tuple[int, float] | None = None

    @property
    def percent(self) -> str:
        """The gain in percent, in words, with the interval that decides."""
        gain, low, high = (100 * value for value in self.gain)
        interval = f"90 % interval {low:.1f} % to {high:.1f} %"
        if not math.isfinite(low):
            interval = "too few runs for an interval"
        elif high - low > 400:  # percentages beyond ±200 tell nothing but this
            interval = "seeds differ by several times that loss"
        whole = "validation loss" if self.relative_to == "loss" else "fall of the loss"
        return f"{gain:.1f} % of the {whole} ({interval})"


@dataclass(frozen=True)
class Recommendation:
    """What :func:`recommend` answers."""

    sentence: str  # the answer in one sentence
    code: str  # Python to paste; empty where nothing is recommended
    #: what the setting saves against AdamW at its own best rate (0.05: 5 % of the validation loss),
    #: with its 90 % interval.
    gain: tuple[float, float, float]
    found: tuple[
        str, ...
    ]  # what the instruments found, and how it led to the candidates, one sentence each
    tried: tuple[Tried, ...]  # every run of the race
    not_tried: tuple[str, ...]  # what was left out, one sentence each
    notes: tuple[str, ...]  # what weakens the answer, one sentence each
    about: dict[str, Any]  # steps, seconds, full-length runs spent, seed
    decision: Decision | None = None  # what all of the above says; None: cannot tell

    def write(self, path: str | Path) -> Path:
        """Write the answer as JSON, whole or not at all; returns the path."""
        path = Path(path)
        content = {"kind": "recommendation", "schema": SCHEMA, **asdict(self)}
        write_atomically(path, to_json(content, indent=1) + "\n")
        return path

    def __str__(self) -> str:
        reasons = [f"- {line}" for line in (*self.found, *self.notes)]
        return "\n".join([self.sentence, "", self.code, "", *reasons])


@checked_types
def recommend(
    problem: Factory,
    *,
    minutes: float = 10.0,
    steps: int | None = None,
    seed: int = 0,
    measure: bool = True,
    without: Sequence[str] = (),
    folder: str | Path | None = None,
    told: Callable[[str, float], Any] | None = None,
) -> Recommendation:
    """Recommend an optimizer and its settings for a training problem.

    Instruments measure gradient norms and their tail at the start; they place the learning rates
    of SGD and say whether coordinates are clipped. Then the candidates race: AdamW at five rates,
    every other optimizer at AdamW's best rate, longer runs for the best, and full-length runs for
    the best, for AdamW at its own best rate, and for the winner at a smaller rate, with weight
    decay or with another schedule. All of it costs at most about five full-length runs.

    Args:
        problem: builds the problem afresh: ``problem(seed)`` or ``problem()`` returns ``(objective,
            train)`` or ``(objective, train, valid)`` (see :func:`mindgap.advise.training.build`).
        minutes: time for everything.
        steps: length of the training run to advise on; None: as many as fit into ``minutes``. If
            more are asked for than fit, the race is run on the length that fits, and the answer
            says so.
        seed: names starts and orders of batches.
        measure: False leaves the instruments out (for comparison).
        without: names from ``mindgap.advise.race.PARTS`` to leave out (for comparison).
        folder: where finished pieces are kept. A call with the same folder continues an interrupted
            one.
        told: called with a sentence and the share of the work that is done.

    Example:
        >>> import torch
        >>> batches = list(torch.randn(60, 16, 4))
        >>> def problem():
        ...     model = torch.nn.Linear(4, 1)
        ...     return (
        ...         model,
        ...         lambda model, batch: (model(batch) - batch.sum(1, True)).square().mean(),
        ...     ), batches
        >>> answer = recommend(problem, minutes=1, steps=96)
        >>> answer.about["steps"], answer.gain[0] >= 0
        (96, True)
    """
    positive("minutes", minutes)
    whole("seed", seed)
    if steps is not None:
        whole("steps", steps, least=SHORTEST)
    if not set(without) <= set(PARTS):
        fail("without", f"must hold names from {PARTS}", without)
    wall_start, cpu_start = time.perf_counter(), time.process_time()
    told = told or (lambda sentence, share: None)
    folder = None if folder is None else Path(folder)
    with untouched_randomness():
        told("building the problem", 0.0)
        bench = Bench(problem)
        notes = check_starts(bench, seed)
        # The arguments stand in the plan, so that another call cannot continue this one.
        asked: dict[str, Any] = {"minutes": minutes, "steps": steps, "seed": seed}
        asked |= {"measure": measure, "without": sorted(without)}
        path = None if folder is None else folder / "plan.json"
        if path is not None and path.exists():
            plan = _read_plan(path, asked)
        else:
            told("measuring", 0.0)
            plan = _make_plan(bench, asked, wall_start, cpu_start)
            if path is not None:
                write_atomically(path, to_json(plan, indent=1) + "\n")
        if plan["total"] < SHORTEST:
            return _cannot_tell(plan, minutes, notes, seed)
        if steps is not None and plan["total"] < steps:
            needed = minutes * steps / plan["total"]
            notes.append(
                f"The race ran at {plan['total']} steps: {steps} steps would need about "
                f"{_minutes(round(needed))}."
            )
        scale = Scale(
            plan["parameters"], plan["gradient_norm"], plan["heavy"], bool(plan.get("tailed"))
        )
        pieces = None if folder is None else folder / "pieces"
        bench.most = plan["validation"]  # validation batches before the end of a run
        race = Race(
            bench,
            plan["total"],
            scale,
            seed=seed,
            folder=pieces,
            seconds=60 * minutes - plan["seconds"],
            work_before=plan["work"],
            without=without,
            told=told,
        )
        race.run()
        finished = bench.problem(seed)
        if finished.valid is None:
            notes.append(
                "The problem has no validation batches: candidates were judged by their training "
                "loss."
            )
        decision, setting = decide(race, finished)
        # Before it says that nothing trains, AdamW at 1e-3 must have run to the end.
        if decision.kind in ("nothing trains", "at chance") and race.run_default():
            decision, setting = decide(race, bench.problem(seed))
    seconds = time.perf_counter() - wall_start
    if seconds > 1.2 * 60 * minutes:
        notes.append(
            f"It took {_minutes(float(f'{seconds / 60:.2g}'))} instead of {minutes:g}: two runs of "
            f"{plan['total']} steps had to reach the end, and steps became slower during the race."
        )
    answer = _answer(race, plan, decision, setting, steps or plan["total"], notes, seconds)
    if folder is not None:
        answer.write(folder / "recommendation.json")
        shutil.rmtree(folder / "pieces", ignore_errors=True)
    return answer


def _read_plan(path: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """The plan of an interrupted call with the same arguments, after a look at every field: a file
    may be made up.

    Raises:
        RuleError: it is no plan of a race, or one with other arguments.
    """

    def is_number(value: Any) -> bool:
        """Whether it is an int or a float, not negative; True and False are none."""
        return type(value) in (int, float) and value >= 0

    content = read_json(path)
    plan = content if isinstance(content, dict) else {}
    durations = ("seconds_per_step", "seconds_per_piece", "seconds", "loading", "work")
    fits = (
        isinstance(plan.get("asked"), dict)
        and all(type(plan.get(name)) is int for name in ("total", "parameters"))
        and all(is_number(plan.get(name)) for name in ("total", *durations))
        and type(plan.get("validation")) is int
        and 1 <= plan["validation"] <= MOST_VALIDATION
        and type(plan.get("gradient_norm")) in (int, float)
        and isinstance(plan.get("found"), list)
        and all(isinstance(sentence, str) for sentence in plan["found"])
    )
    if not fits:
        raise RuleError(f"folder must hold the plan of a race in {path}, got other content")
    if plan["asked"] != asked:
        raise RuleError(
            f"folder must hold a race with the same arguments, got {plan['asked']} instead of "
            f"{asked}"
        )
    return plan


def _make_plan(
    bench: Bench, asked: dict[str, Any], wall_start: float, cpu_start: float
) -> dict[str, Any]:
    """What is measured once and must not change when an interrupted call continues: the length of
    the runs, the time of a step, and what the instruments found.

    Args:
        asked: the arguments of ``recommend``.
        wall_start, cpu_start: by ``perf_counter`` and ``process_time``, when the call began.

    Returns:
        Beside ``asked`` and what ``_measure_start`` returns: seconds per step, per evaluation
        (``seconds_per_piece``) and of ``loading``; ``total``, the steps of a full run;
        ``validation``, the batches that are read before its end; and the ``seconds`` and the
        ``work`` (by ``work_clock``, less the loading) that all this took.
    """
    minutes, steps, seed = asked["minutes"], asked["steps"], asked["seed"]
    clock = work_clock(bench.problem(seed).objective.model)
    work_start = cpu_start if clock is time.process_time else wall_start
    seconds_per_step, seconds_per_piece, loading = _pace(bench, seed)
    # Steps of a run: of the time planned, what race, measuring and evaluating take in such runs.
    affordable = int(
        PLANNED * minutes * 60 / ((EXPECTED + MEASURING_RUNS + EVALUATING) * seconds_per_step)
    )
    # Two digits, so that two timings of one machine mostly agree.
    unit = 10 ** max(0, len(str(affordable)) - 2)
    affordable = affordable // unit * unit
    total = affordable if steps is None else min(steps, affordable)
    # Seconds for measuring: the smallest of three limits; 0 leaves it out.
    longest = max(LEAST_MEASURING, MOST_RUNS * total * seconds_per_step)
    limit = min(minutes * 60 * MEASURING, MOST_MEASURING, longest) if asked["measure"] else 0.0
    measured_steps = total or 10**6  # where not one step fits, the time alone limits the measuring
    return {
        "asked": asked,
        **_measure_start(bench.problem(seed), seed, seconds=limit, steps=measured_steps),
        "seconds_per_step": seconds_per_step,
        "seconds_per_piece": seconds_per_piece,
        "validation": _validation_batches(bench.problem(seed), total),
        "loading": loading,
        "total": total,
        "seconds": round(time.perf_counter() - wall_start, 3),
        "work": round(max(0.0, clock() - work_start - loading), 3),
    }


def _validation_batches(problem: Problem, steps: int) -> int:
    """How many validation batches are read before the end of a run, a power of two: evaluations
    take at most ``EVALUATING`` full-length runs of ``steps`` together, if a loss takes a third of
    a step on a batch of the same size.
    """
    if problem.valid is None:
        return MOST_VALIDATION
    train_numbers, valid_numbers = (
        sum(t.numel() for t in tree_leaves(next(iter(batches), None)) if isinstance(t, Tensor))
        for batches in (problem.train, problem.valid)
    )  # numbers in the first batch of each
    ratio = train_numbers / valid_numbers if train_numbers and valid_numbers else 1.0
    # 3 · ratio validation batches cost a step, and ``PIECES`` evaluations share the steps.
    affordable = 3 * ratio * EVALUATING * steps / PIECES
    return 2 ** int(math.log2(min(MOST_VALIDATION, max(1.0, affordable))))


def _measure_start(problem: Problem, seed: int, *, seconds: float, steps: int) -> dict[str, Any]:
    """Measure norms and tail of minibatch gradients at the start.

    Args:
        seconds: time for it; 0: nothing is measured.
        steps: length of a full run, on which the number of batches depends.

    Returns:
        The number of ``parameters``; ``gradient_norm``, its median (NaN: not measured); whether the
        noise is ``heavy`` (None: cannot tell) and the norms are ``tailed``, as ``Scale`` takes
        them; and what was ``found``, one sentence each.
    """
    found: list[str] = []
    measured: dict[str, Any] = {
        "parameters": sum(p.numel() for p in problem.objective.parameters),
        "gradient_norm": math.nan,
        "heavy": None,
        "tailed": False,
        "found": found,
    }
    if seconds <= 0:
        return measured
    # Two passes of about one and a half gradients per batch; a power of two.
    count = 2 ** int(math.log2(min(256.0, max(4.0, MEASURING_RUNS * steps / 3))))
    batches: list[Any] = list(islice(batches_from(problem.train, seed, 0), count))
    try:
        with time_limit(seconds):
            sample = noise_sample(problem.objective, batches)
    except Exception as error:
        found.append(
            f"Gradient norms could not be measured ({reason(error)}); default learning rates "
            "were used."
        )
        return measured
    # A gradient g = mean + noise: ‖g‖² = ‖noise‖² + 2 noise·mean + ‖mean‖².
    norms = np.sqrt(np.maximum(sample.norms**2 + 2 * sample.dots + sample.mean_norm**2, 0.0))
    low, median, high = (float(q) for q in np.quantile(norms, [0.1, 0.5, 0.9]))
    measured["gradient_norm"] = median
    measured["tailed"] = high > LONG_TAIL * median
    found.append(
        f"Gradient norm of a batch: median {median:.3g}, 10 % below {low:.3g}, 10 % above "
        f"{high:.3g}. It places the learning rates of SGD."
    )
    if measured["tailed"]:
        found.append(
            f"One norm in ten is above {LONG_TAIL:g} times the median: bad batches. The winner is "
            "tried with a weight decay too."
        )
    if sample.squared_mean > 0:
        noise = sample.variance / sample.squared_mean
        found.append(
            f"Noise of one batch over the squared gradient: {noise:.3g} (above 1: larger batches "
            "would help)."
        )
    if len(norms) >= 64:  # fewer say nothing about the tail
        with suppress(RuleError):
            judged = infinite_variance(sample)
            measured["heavy"] = judged.infinite
            consequence = "tried" if judged.infinite else "left out"
            found.append(
                f"Gradient noise: {judged.answer}. Clipping of coordinates is {consequence}."
            )
    return measured


def _pace(bench: Bench, seed: int) -> tuple[float, float, float]:
    """Seconds per training step, per evaluation of all validation batches, and of loading
    libraries and compiling kernels, which happens once per process.
    """
    clock = work_clock(bench.problem(seed).objective.model)
    start = clock()
    for candidate in (BASELINE, replace(BASELINE, family="AdamW with unit gradients")):
        timed_steps(bench, candidate.optimizer, seed, 1)
    first_steps = clock() - start
    # Where the two first steps took 20 seconds, more than one further step would take too long.
    steps = timed_steps(bench, BASELINE.optimizer, seed, 1 if first_steps > 20.0 else PACE)
    step = sorted(steps)[len(steps) // 2]  # the median
    start = time.perf_counter()
    start_loss(bench, seed)
    # What the two first steps took beyond two ordinary ones is loading.
    return step, time.perf_counter() - start, max(0.0, first_steps - 2 * step)


def decide(race: Race, problem: Problem) -> tuple[Decision, Candidate | None]:
    """What the race says, and the recommended setting (None: there is none).

    Args:
        race: that has run.
        problem: on whose validation batches the best model is tried.
    """
    seed, total = race.seed, race.total
    final = race.finalists()
    plain_adamw = [  # with torch's own weight decay and the usual schedule, best first
        e
        for e in final
        if e.candidate.family == BASELINE.family
        and e.candidate.decay is None
        and e.candidate.shape == "trapezoid"
    ]
    best, baseline = final[0], (plain_adamw or race.entries[:1])[0]
    loss, baseline_loss = best.score(total, seed), baseline.score(total, seed)
    gain, relative_to = _gain(race, loss, baseline_loss)
    rate = None  # what the rate alone gave, at the last step that both runs reached
    if baseline.candidate != BASELINE:
        default = race.entries[0]
        step = max(s for s in default.runs[seed].scores if s in baseline.runs[seed].scores)
        rate = (step, baseline.score(step, seed), default.score(step, seed))
    kind, chance = "optimizer", at_chance(problem, best.runs[seed], race.start - loss)
    fell = not race.is_flat(race.lowest(race.rungs[:1])[0])  # by the first rung
    # The first of these that holds counts; the last one makes AdamW's best run the answer.
    if math.isinf(loss):
        kind = "diverged"
    elif fell and not chance and race.rises(total, race.rungs[:1]):
        kind = "rises"
    elif race.is_flat(loss):
        kind = "nothing trains"
    elif chance:
        kind = "at chance"
    elif not baseline_loss - loss > LEAST_GAIN * _late_fall(baseline, total, seed):
        best, loss = baseline, baseline_loss
    if kind == "optimizer" and best is baseline:
        kind = "fine" if baseline.candidate == BASELINE else "rate"
        gain = (0.0, 0.0, 0.0)
    has_setting = kind in ("fine", "rate", "optimizer", "rises")
    lowest = None  # where every run ended above an earlier loss: the step and the loss
    if has_setting and race.rises(total, race.rungs[:-1]):
        smallest, step = race.lowest(race.rungs[:-1])
        lowest = (step, smallest)
        if best is not baseline:
            gain = UNKNOWN_GAIN
    decision = Decision(
        kind=kind,
        setting=best.candidate.name if has_setting else "",
        baseline=baseline.candidate.name,
        loss=loss,
        baseline_loss=baseline_loss,
        gain=gain if has_setting else UNKNOWN_GAIN,
        relative_to=relative_to,
        start=race.start,
        steps=total,
        rate=rate,
        lowest=lowest,
    )
    return decision, best.candidate if has_setting else None


def _late_fall(entry: Entry, total: int, seed: int) -> float:
    """How far the loss of a run moved between the last rung before its end and its end: a scale on
    which differences at the end count, whatever the loss was at the start.
    """
    scores = entry.runs[seed].scores
    earlier = [step for step in scores if step < total and math.isfinite(scores[step])]
    if not earlier or not math.isfinite(scores.get(total, math.inf)):
        return 0.0
    return abs(scores[max(earlier)] - scores[total])


def _gain(race: Race, loss: float, baseline_loss: float) -> tuple[tuple[float, float, float], str]:
    """What the best run saves against the baseline, with the ends of its 90 % interval, and what
    it is a share of: ``gain`` and ``relative_to`` of a :class:`Decision`.
    """
    if math.isinf(loss):
        return UNKNOWN_GAIN, "loss"
    if math.isinf(baseline_loss) or baseline_loss >= race.start > loss:  # only the best run trains
        return (1.0, 1.0, 1.0), "loss"
    reach = race.noise.reach()
    positive_losses = race.start > 0 and race.lowest(race.rungs)[0] > 0
    unit = baseline_loss if positive_losses else race.start - baseline_loss
    if not unit > 0:
        return UNKNOWN_GAIN, "fall"
    low, high = -math.inf, math.inf  # a larger loss of the best run is a smaller gain
    if not math.isinf(reach):
        low, high = ((baseline_loss - race.loss_above(loss, d)) / unit for d in (reach, -reach))
    return ((baseline_loss - loss) / unit, low, high), "loss" if positive_losses else "fall"


def _answer(
    race: Race,
    plan: dict[str, Any],
    decision: Decision,
    setting: Candidate | None,
    steps: int,
    notes: list[str],
    seconds: float,
) -> Recommendation:
    """The recommendation that a finished race and a decision give.

    Args:
        plan: of the race; its sentences on what was found are handed on.
        setting: what is recommended; None: nothing.
        steps: of the user's run, for the code to paste.
        notes: what weakens the answer; a further one may be appended.
        seconds: that the call took.
    """
    best = race.finalists()[0]
    about = {
        "steps": race.total,
        "seconds": round(seconds, 1),
        "full_length_runs": round(race.cost(), 2),
        "clock_runs": round(race.clock_cost(), 2),
        "seed": race.seed,
        "setting": vars(setting or best.candidate),
        "loss": decision.loss,
        "baseline_loss": decision.baseline_loss,
        "noise": race.noise.deviation,
    }
    if decision.lowest is not None:
        step, low = decision.lowest
        notes.append(
            f"The smallest validation loss, {low:.3g}, was at step {step} and not at the end: try "
            "fewer steps, or keep the best weights."
        )
    if decision.kind in ("nothing trains", "at chance"):
        names = ", ".join(entry.candidate.name for entry in race.finalists())
        notes.append(
            f"Only these ran to the end: {names}. A loss that stays flat before it falls looks the "
            "same until then: of 10 unseen tasks that train, this answer was wrong on 1. Before "
            "you change the model, try more steps, and AdamW at lr 0.01 and 0.03 to the end."
        )
    tried = [
        Tried(
            name=e.candidate.name,
            seed=seed,
            steps=run.steps,
            loss=run.scores[max(run.scores)],
            curve=tuple(run.curve),
            scores=tuple(sorted(run.scores.items())),
        )
        for e in race.entries
        for seed, run in e.runs.items()
        if run.scores
    ]
    tried.sort(key=lambda t: (-t.steps, t.loss))
    return Recommendation(
        sentence=_sentence(race, decision, setting),
        code="" if setting is None else _code(setting, steps),
        gain=decision.gain,
        found=tuple(plan["found"]),
        tried=tuple(tried),
        not_tried=_not_tried(race),
        notes=tuple(notes),
        about=about,
        decision=decision,
    )


def _sentence(race: Race, decision: Decision, setting: Candidate | None) -> str:
    """The sentence of a decision: what to use, where it ends, and against what."""
    best = race.finalists()[0].candidate.name
    start, loss = f"{decision.start:.3g}", f"{decision.loss:.3g}"
    if decision.kind == "diverged":
        return "Cannot recommend anything: every candidate diverged, AdamW at 1e-3 included."
    if decision.kind in ("nothing trains", "at chance"):
        ends = f"the best run, {best}, ends at {loss}, and the model says the same for every input"
        if decision.kind == "nothing trains":
            ends = (
                f"the validation loss is {start} before the first step and {loss} at the end of "
                f"the best run, {best}"
            )
        return f"Nothing trains: {ends}; look at the data and the model before the optimizer."
    if decision.kind == "rises":
        return (
            f"Nothing tried trains to the end: the best run, {best}, ends at {loss}, above the "
            f"{race.lowest(race.rungs[:1])[0]:.3g} of step {race.rungs[0]}; train for fewer steps, "
            "or keep the best weights."
        )
    parts = []
    if decision.kind == "fine":
        parts.append(
            f"AdamW at lr 0.001 is fine: it ends at validation loss {loss}, and nothing tried was "
            "clearly better"
        )
    elif decision.kind == "rate":
        parts.append(
            f"{decision.setting}: it ends at validation loss {loss}, and no other optimizer was "
            "clearly better"
        )
    elif math.isinf(decision.baseline_loss):
        parts.append(f"{decision.setting} trains, to validation loss {loss}; AdamW diverges")
    elif decision.baseline_loss >= decision.start > decision.loss:
        parts.append(
            f"{decision.setting} trains, to validation loss {loss}; AdamW at its best rate "
            f"({decision.baseline}) does not: it ends at {decision.baseline_loss:.3g}, above the "
            f"start ({start})"
        )
    else:
        caveat = "" if decision.gain[1] > 0 else ", within the noise between seeds"
        parts.append(
            f"{decision.setting}: it ends at validation loss {loss}, and AdamW at its best rate "
            f"({decision.baseline}) at {decision.baseline_loss:.3g}"
        )
        if decision.lowest is None:
            parts.append(f"it saves {decision.percent}{caveat}")
    if decision.lowest is not None:
        step, low = decision.lowest
        parts.append(
            f"the loss rises again after its smallest value, {low:.3g} at step {step}: train for "
            "fewer steps, or keep the best weights"
        )
    if decision.rate is not None:
        step, at_best, at_default = decision.rate
        outcome = "diverged" if math.isinf(at_default) else f"stood at {at_default:.3g}"
        parts.append(
            f"the rate alone: at step {step} {decision.baseline} stood at {at_best:.3g}, AdamW at "
            f"lr 0.001 {outcome}"
        )
    return "; ".join([*parts, *_others(race, setting)]) + "."


def _others(race: Race, setting: Candidate | None) -> list[str]:
    """Words on every other kind of optimizer but AdamW: its best loss beside that of the winner's
    family, at the last step that it reached.

    Args:
        setting: the winner; None: there is none, and the best of all counts.
    """
    # Losses that are no farther apart than ``reach`` on the race's scale are a tie.
    seed, reach, words = race.seed, race.noise.reach(), []
    kinds = {FAMILIES[e.family].kind for e in (BASELINE, setting) if e is not None}
    for name, family in FAMILIES.items():
        entries = [e for e in race.entries if e.candidate.family == name]
        if not entries or family.kind in kinds:
            continue
        step = max(s for e in entries for s in e.runs[seed].scores)  # the last one it reached
        loss = min(e.score(step, seed) for e in entries)
        losses_of_winner = [
            e.score(step, seed)
            for e in race.entries
            if setting is not None
            and e.candidate.family == setting.family
            and step in e.runs[seed].scores
        ]
        winners_loss = min(losses_of_winner, default=race.lowest([step])[0])
        if math.isinf(loss):
            words.append(f"{name} diverges")
        elif loss >= race.start:
            words.append(f"{name} does not train")
        elif abs(race.level(loss) - race.level(winners_loss)) <= reach:
            words.append(f"{name} ties at step {step}")
        else:
            word = "worse" if loss > winners_loss else "better"
            words.append(f"{name} is {word} at step {step} ({loss:.3g} against {winners_loss:.3g})")
    return words


def _code(setting: Candidate, total: int) -> str:
    """The program's lines to paste: the optimizer, and the schedule with which it was raced."""
    maker, _, arguments = setting.code.partition("(")
    module = maker.rpartition(".")[0]
    head = "import torch\n" if module == "torch.optim" else f"import {module}\nimport torch\n"
    line = f"optimizer = {setting.code}"
    if len(line) > 79:  # nothing to paste is wider than a terminal
        line = f"optimizer = {maker}(\n    {arguments.removesuffix(')')}\n)"
    # A rate that is flat at first falls the faster later: by the trapezoid's factor of 2.
    falls = f"{1 / SHAPES[setting.shape]:g} * " if SHAPES[setting.shape] < 1 else ""
    return (
        f"{head}\n{line}\n"
        f"total = {total}  # steps of your run\n"
        "\n\n"
        "def factor(k):  # warm-up, then down to zero at the end; never below\n"
        "    warm = (k + 1) / max(1, total // 50)\n"
        f"    return max(0.0, min(warm, {falls}(total - k) / total, 1.0))\n"
        "\n\n"
        "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)\n"
    )


def _not_tried(race: Race) -> tuple[str, ...]:
    """What was left out, one sentence each."""
    missing = [
        name for name in FAMILIES if not any(e.candidate.family == name for e in race.entries)
    ]
    lines = [
        "Momentum and batch size were not varied; weight decay and schedule only after the race."
    ]
    if missing:
        lines.append(f"Left out by the measurement or by the model's layers: {', '.join(missing)}.")
    return tuple(lines)


def _minutes(number: float) -> str:
    """A number of minutes in words."""
    return "1 minute" if number == 1 else f"{number:g} minutes"


def _cannot_tell(
    plan: dict[str, Any], minutes: float, notes: Iterable[str], seed: int
) -> Recommendation:
    """The recommendation where not even the shortest race fits into the time."""
    seconds = (EXPECTED + MEASURING_RUNS + EVALUATING) * SHORTEST * plan["seconds_per_step"]
    needed = seconds / 60 / PLANNED
    about = {
        "steps": plan["total"],
        "seconds": 0.0,
        "full_length_runs": 0.0,
        "seed": seed,
        "setting": None,
    }
    return Recommendation(
        sentence=f"Cannot tell in {_minutes(minutes)}: the shortest useful race needs about "
        f"{_minutes(math.ceil(needed))}.",
        code="",
        gain=UNKNOWN_GAIN,
        found=tuple(plan["found"]),
        tried=(),
        not_tried=("Every candidate.",),
        notes=tuple(notes),
        about=about,
    )
