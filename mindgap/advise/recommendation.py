"""Which optimizer and which settings suit a given training problem: measure first, race second,
then say it plainly.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mindgap.advise.candidates import BASELINE, FAMILIES, Scale
from mindgap.advise.race import COST, Entry, Race
from mindgap.advise.training import (
    Factory,
    Problem,
    Progress,
    batches_from,
    build,
    check_starts,
    train_until,
    untouched_randomness,
)
from mindgap.base.check import RuleError, positive, whole
from mindgap.base.checked import checked_types
from mindgap.measure import noise_sample, sharpness, tail_index
from mindgap.measure.gradients import NonFiniteError
from mindgap.record.schema import to_json
from mindgap.record.store import read_json, write_atomically

#: Version of the written form.
SCHEMA = 1
#: Share of the time that measuring may take.
MEASURING = 0.1
#: Most seconds that measuring takes, whatever the time.
MOST_MEASURING = 30.0
#: Pieces of a race: a piece trains one candidate with one seed from one rung to the next.
PIECES = 40
#: Shortest run, in steps, from which a recommendation is made.
SHORTEST = 96


@dataclass(frozen=True)
class Tried:
    """One run of the race: what it was, how far it went, and its validation loss there."""

    name: str
    seed: int
    steps: int
    loss: float
    curve: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Recommendation:
    """The answer."""

    sentence: str  # the answer in one sentence
    code: str  # Python to paste; empty where nothing is recommended
    #: relative gain in validation loss over AdamW at lr 1e-3 (0.05: 5 % lower), with its 90 %
    #: interval.
    gain: tuple[float, float, float]
    found: tuple[
        str, ...
    ]  # what the instruments found, and how it led to the candidates, one sentence each
    tried: tuple[Tried, ...]  # every run of the race
    not_tried: tuple[str, ...]  # what was left out, one sentence each
    notes: tuple[str, ...]  # what weakens the answer, one sentence each
    about: dict[str, Any]  # steps, seconds, full-length runs spent, seed

    def write(self, path: str | Path) -> Path:
        """Write the answer as JSON; whole or not at all."""
        path = Path(path)
        write_atomically(
            path,
            to_json({"kind": "recommendation", "schema": SCHEMA, **asdict(self)}, indent=1) + "\n",
        )
        return path

    def __str__(self) -> str:
        parts = [
            self.sentence,
            "",
            self.code,
            "",
            *(f"- {line}" for line in (*self.found, *self.notes)),
        ]
        return "\n".join(parts)


@checked_types
def recommend(
    problem: Factory,
    *,
    minutes: float = 10.0,
    steps: int | None = None,
    seed: int = 0,
    measure: bool = True,
    folder: str | Path | None = None,
    told: Callable[[str, float], Any] | None = None,
) -> Recommendation:
    """Recommend an optimizer and its settings for a training problem.

    Instruments measure gradient norms, tails and sharpness at the start; they place the learning
    rates of every candidate. Then the candidates race: short runs for all, longer ones for the
    best, and full-length runs for the two best and for AdamW at 1e-3, which is what most people
    have. The race costs about four full-length runs.

    Args:
        problem: builds the problem afresh: ``problem(seed)`` or ``problem()`` returns ``(objective,
            train)`` or ``(objective, train, valid)`` (see :func:`mindgap.advise.training.build`).
        minutes: time for everything.
        steps: length of the training run to advise on; None: as many as fit into ``minutes``. If
            more are asked for than fit, the race is run on the length that fits, and the answer
            says so.
        seed: names starts and orders of batches.
        measure: False leaves the instruments out (for comparison).
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
    begun = time.perf_counter()
    told = told or (lambda sentence, share: None)
    folder = None if folder is None else Path(folder)
    with untouched_randomness():
        told("building the problem", 0.0)
        notes = check_starts(problem, seed)
        plan = _plan(problem, minutes, steps, seed, measure, folder, told)
        if plan["total"] < SHORTEST:
            return _cannot_tell(plan, minutes, notes, seed)
        if steps is not None and plan["total"] < steps:
            needed = minutes * steps / plan["total"]
            notes.append(
                f"The race ran at {plan['total']} steps: {steps} steps would need about "
                f"{needed:.0f} minutes."
            )
        scale = Scale(plan["parameters"], plan["gradient_norm"], plan["sharpness"])
        pieces = None if folder is None else folder / "pieces"
        race = Race(problem, plan["total"], scale, seed=seed, folder=pieces, told=told)
        race.run()
        if build(problem, seed).valid is None:
            notes.append(
                "The problem has no validation batches: candidates were judged by their training "
                "loss."
            )
    answer = _answer(race, plan, notes, time.perf_counter() - begun)
    if folder is not None:
        answer.write(folder / "recommendation.json")
        shutil.rmtree(folder / "pieces", ignore_errors=True)
    return answer


def _plan(
    problem: Factory,
    minutes: float,
    steps: int | None,
    seed: int,
    measure: bool,
    folder: Path | None,
    told: Callable[[str, float], Any],
) -> dict[str, Any]:
    """What is measured once and must not change when an interrupted call continues."""
    asked = {"minutes": minutes, "steps": steps, "seed": seed, "measure": measure}
    path = None if folder is None else folder / "plan.json"
    if path is not None and path.exists():
        plan: dict[str, Any] = read_json(path)
        if plan["asked"] != asked:
            raise RuleError(
                f"folder must hold a race with the same arguments, got {plan['asked']} instead of "
                f"{asked}"
            )
        return plan
    told("measuring", 0.0)
    plan = {
        "asked": asked,
        **measure_start(problem, seed=seed, seconds=minutes * 60 * MEASURING if measure else 0.0),
    }
    step, piece = _pace(problem, seed)
    fits = max(0, int((0.85 * minutes * 60 - PIECES * piece) / (COST * step)))
    # Two digits, so that two timings of one machine mostly agree.
    digits = 10 ** max(0, len(str(fits)) - 2)
    fits = fits // digits * digits
    plan["seconds_per_step"], plan["seconds_per_piece"] = step, piece
    plan["total"] = fits if steps is None else min(steps, fits)
    if path is not None:
        write_atomically(path, to_json(plan, indent=1) + "\n")
    return plan


def measure_start(problem: Factory, *, seed: int, seconds: float) -> dict[str, Any]:
    """Gradient norms, tails and sharpness at the start, in at most about ``seconds`` (0:
    nothing is measured).
    """
    made = build(problem, seed)
    found: list[str] = []
    plan: dict[str, Any] = {
        "parameters": sum(p.numel() for p in made.objective.parameters),
        "gradient_norm": math.nan,
        "sharpness": math.nan,
        "found": found,
    }
    if seconds > 0:
        _measure(made, seed, plan, min(seconds, MOST_MEASURING))
    return plan


def _measure(made: Problem, seed: int, plan: dict[str, Any], seconds: float) -> None:
    found: list[str] = plan["found"]
    begun = time.perf_counter()
    batches: list[Any] = list(islice(batches_from(made.train, seed, 0), 8))
    try:
        noise_sample(made.objective, batches)  # libraries are loaded, kernels compiled
        timed = time.perf_counter()
        sample = noise_sample(made.objective, batches)
        fits = 8 * 0.5 * seconds / max(time.perf_counter() - timed, 1e-6)
        # A power of two, so that two timings of one machine mostly agree: the answer must not
        # depend on the load.
        more = 2 ** int(math.log2(min(256.0, max(fits, 8.0))))
        if more > 16:
            batches = list(islice(batches_from(made.train, seed, 0), more))
            sample = noise_sample(made.objective, batches)
    except (NonFiniteError, RuleError) as error:
        found.append(
            f"Gradient norms could not be measured ({error}); default learning rates were used."
        )
        return
    norms = np.sqrt(np.maximum(sample.norms**2 + 2 * sample.dots + sample.mean_norm**2, 0.0))
    low, middle, high = (float(q) for q in np.quantile(norms, [0.1, 0.5, 0.9]))
    plan["gradient_norm"] = middle
    found.append(
        f"Gradient norm of a batch: median {middle:.3g}, 10 % below {low:.3g}, 10 % above "
        f"{high:.3g}. "
        "It places the learning rates of SGD and GClip."
    )
    if sample.squared_mean > 0:
        noise = sample.variance / sample.squared_mean
        found.append(
            f"Noise of one batch over the squared gradient: {noise:.3g} (above 1: larger batches "
            "would help)."
        )
    if len(norms) >= 64:
        with suppress(RuleError):
            found.append(f"Tails of the gradient noise: {tail_index(sample).answer}.")
    if time.perf_counter() - begun < 0.6 * seconds:
        try:
            value = float(sharpness(made.objective, batches[:2], tol=0.05, max_products=20).value)
            plan["sharpness"] = value
            found.append(f"Sharpness at the start: {value:.3g}. It caps the learning rate of SGD.")
        except (NonFiniteError, RuleError, RuntimeError):
            found.append("Sharpness could not be measured; the learning rate of SGD has no cap.")


def _pace(problem: Factory, seed: int) -> tuple[float, float]:
    """Seconds per training step, and per piece of the race beside its steps (building,
    evaluating), after a warm-up.
    """
    spent = []
    for length in (2, 2, 12):  # the first one warms up: libraries are loaded, kernels compiled
        begun = time.perf_counter()
        train_until(Progress(), problem, BASELINE.optimizer, seed=seed, until=length, total=1000)
        spent.append(time.perf_counter() - begun)
        if len(spent) == 2 and spent[1] > 20.0:
            return spent[1] / 2, 0.0
    step = max((spent[2] - spent[1]) / 10, spent[2] / 60)
    return step, max(0.0, spent[1] - 2 * step)


def _answer(race: Race, plan: dict[str, Any], notes: list[str], seconds: float) -> Recommendation:
    final = race.finalists()
    baseline = race.entries[0]
    best = final[0]
    reach = race.noise.reach()
    own, his = best.score(race.total, race.seed), baseline.score(race.total, race.seed)
    about = {
        "steps": race.total,
        "seconds": round(seconds, 1),
        "full_length_runs": round(race.cost(), 2),
        "seed": race.seed,
        "setting": vars(best.candidate),
        "loss": own,
        "baseline_loss": his,
        "noise": race.noise.deviation,
    }
    if math.isinf(own):
        sentence = "Cannot recommend anything: every candidate diverged, AdamW at 1e-3 included."
        gain = (0.0, -math.inf, math.inf)
    elif math.isinf(his):
        sentence = f"{best.candidate.name} trains; AdamW at lr 0.001 diverges."
        gain = (1.0, 1.0, 1.0)
    else:
        gain = (race.gain(own, his), race.gain(own, his, reach), race.gain(own, his, -reach))
        sentence = _sentence(race, best, gain)
        if race.rises(race.total, race.rungs[:-1]):
            low, step = race.lowest(race.rungs[:-1])
            notes.append(
                f"The smallest validation loss, {low:.3g}, was at step {step} and not at the end: "
                "try fewer "
                "steps, or keep the best weights."
            )
    tried = [
        Tried(e.candidate.name, s, r.steps, r.scores[max(r.scores)], tuple(r.curve))
        for e in race.entries
        for s, r in e.runs.items()
        if r.scores
    ]
    tried.sort(key=lambda t: (-t.steps, t.loss))
    code = "" if math.isinf(own) else _code(best, race.total)
    return Recommendation(
        sentence,
        code,
        gain,
        tuple(plan["found"]),
        tuple(tried),
        _not_tried(race),
        tuple(notes),
        about,
    )


def _sentence(race: Race, best: Entry, gain: tuple[float, float, float]) -> str:
    seed, reach = race.seed, race.noise.reach()
    compared = {best.candidate.family, BASELINE.family}
    if race.rises(race.total, race.rungs[:1]):
        compared = {best.candidate.family}
        head = (
            f"Nothing tried trains to the end: the best run, {best.candidate.name}, ends at "
            f"{best.score(race.total, seed):.3g}, above the {race.lowest(race.rungs[:1])[0]:.3g} "
            "of step "
            f"{race.rungs[0]}; look at the data before the optimizer"
        )
    elif best is race.entries[0] or (gain[1] <= 0 and gain[0] < 0.01):
        head = "AdamW at lr 0.001 is fine: nothing tried was clearly better"
    elif gain[1] > 0:
        head = (
            f"{best.candidate.name}: {100 * gain[0]:.1f} % lower validation loss than AdamW at lr "
            "0.001"
        )
    else:
        head = (
            f"{best.candidate.name} ended {100 * gain[0]:.1f} % below AdamW at lr 0.001, "
            f"within the noise between seeds ({100 * gain[1]:.0f} to {100 * gain[2]:.0f} %)"
        )
    others = []
    for family in FAMILIES:
        if family in compared:
            continue
        own = [e for e in race.entries if e.candidate.family == family]
        reached = [(max(e.runs[seed].scores), e) for e in own if seed in e.runs]
        if not reached:
            continue
        step = max(at for at, _ in reached)
        entry = min((e for at, e in reached if at == step), key=lambda e: e.score(step, seed))
        mine, other = best.score(step, seed), entry.score(step, seed)
        if math.isinf(other):
            others.append(f"{family} diverges")
        elif abs(race.level(other) - race.level(mine)) <= reach:
            others.append(f"{family} ties at step {step}")
        else:
            word = "worse" if other > mine else "better"
            others.append(f"{family} is {100 * abs(other / mine - 1):.0f} % {word} at step {step}")
    return "; ".join([head, *others]) + "."


def _code(best: Entry, total: int) -> str:
    code = best.candidate.code
    module = code.split("(")[0].rsplit(".", 1)[0]
    head = "import torch\n" if module == "torch.optim" else f"import {module}\nimport torch\n"
    inside = code.partition("(")[2].rpartition(")")[0]
    line = f"optimizer = {code}"
    if len(line) > 79:  # nothing to paste is wider than a terminal
        line = f"optimizer = {code.partition('(')[0]}(\n    {inside}\n)"
    return (
        f"{head}\n{line}\n"
        f"total = {total}  # steps of your run\n"
        "scheduler = torch.optim.lr_scheduler.LambdaLR(\n"
        "    optimizer,\n"
        "    lambda k: min((k + 1) / max(1, total // 50), 2 * (total - k) / total, 1.0),\n"
        ")\n"
    )


def _not_tried(race: Race) -> tuple[str, ...]:
    missing = [
        name
        for name, family in FAMILIES.items()
        if not any(e.candidate.family == name for e in race.entries)
    ]
    lines = ["Weight decay, momentum, batch size and other schedules were not varied."]
    if missing:
        lines.append(f"Not suited to this model: {', '.join(missing)}.")
    return tuple(lines)


def _cannot_tell(
    plan: dict[str, Any], minutes: float, notes: Iterable[str], seed: int
) -> Recommendation:
    seconds = PIECES * plan["seconds_per_piece"] + COST * SHORTEST * plan["seconds_per_step"]
    needed = seconds / 60 / 0.85
    return Recommendation(
        f"Cannot tell in {minutes:g} minutes: the shortest useful race needs about "
        f"{math.ceil(needed)} minutes.",
        "",
        (0.0, -math.inf, math.inf),
        tuple(plan["found"]),
        (),
        ("Every candidate.",),
        tuple(notes),
        {
            "steps": plan["total"],
            "seconds": 0.0,
            "full_length_runs": 0.0,
            "seed": seed,
            "setting": None,
        },
    )
