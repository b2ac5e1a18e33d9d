"""How good is ``mindgap recommend``? 74 tasks against a random search of 60 full-length runs each.

    python benchmarks/recommend.py RECORDS.jsonl [--jobs 2] [--kinds search final recommend fresh]
    python benchmarks/recommend.py RECORDS.jsonl --split judge2 --jobs 15
    python benchmarks/recommend.py RECORDS.jsonl --table [--docs docs/recommend.md]

Every job appends one line to the file; a second call does only what is missing.

* *search*: 60 full-length runs per task with seed 0: AdamW, AdamW with ``clip_grad_norm_``, or SGD
  with momentum with or without it; learning rate, weight decay, threshold and shape of the rate
  drawn at random. The same 60 settings for every task.
* *final*: the two best of the search and torch's AdamW at 1e-3, on three fresh seeds. The
  yardstick is the better of the two *by the fresh seeds*, which favours the search.
* *recommend*: the recommendation and its ablations (``MODES``), with its seconds and those of one
  full-length run of AdamW after it.
* *fresh*: what was recommended, on the same fresh seeds.

Twelve tasks (``recommend_tasks.py``) and six later ones (``recommend_more.py``) are for
development, eight (``recommend_judged.py``) judge: their file was registered in ``split.json``
before the race was changed. Six more (``recommend_again.py``) judge it a second time, after the
changes that the eight led to, and ten (``recommend_third.py``) a third time; ``--split`` chooses
the tasks of one list. The answers of a race that the ten refused stand beside (``REFUSED``), and
on eight more (``recommend_fourth.py``) those of the race that came of it (``NEWER``). Twelve
(``recommend_fifth.py``) judged the former race and a new one (``FIFTH``); what the race of today
answers there (``REPAIRED``) was repaired after a look at them:

    python benchmarks/recommend.py RECORDS.jsonl --split judge5 --kinds recommend fresh \\
        --modes "repaired race"

Twelve more (``recommend_sixth.py``) judge that repair, and the new race of the fifth judging with
the same repair beside it (``SIXTH``).
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import recommend_again
import recommend_fifth
import recommend_fourth
import recommend_judged
import recommend_more
import recommend_sixth
import recommend_tasks
import recommend_third
import torch

FRESH_SEEDS = (101, 102, 103)
RUNS = 60
#: Best settings of the search that run on the fresh seeds.
CONFIRMED = 2
#: Rates at which torch's AdamW runs on the fresh seeds.
RATES = (1e-3,)
KINDS = ("search", "final", "recommend", "fresh")
#: The recommendation and its ablations: mode -> arguments of ``recommend``.
MODES: dict[str, dict[str, Any]] = {
    "recommend": {},
    "without measurement": {"measure": False},
    "without second bracket": {"without": ("second bracket",)},
    "without own schedule": {"without": ("own schedule",)},
    "race alone": {"measure": False, "without": ("second bracket", "own schedule")},
}
FULL = "recommend"
#: What a race answered that the ten tasks refused; its code is in the history.
REFUSED = "refused race"
#: The refused race with a rule for measured overfitting, which eight tasks judge.
NEWER = "newer race"
#: The race that the twelve tasks refused; its code is in the history, and its Muon is another one.
FIFTH = "fifth race"
#: The former race after the repair that the twelve led to: when it says that nothing trains.
REPAIRED = "repaired race"
#: The fifth race with the same repair, which twelve further tasks judge beside today's race.
SIXTH = "sixth race"
#: Races that run a setting of the same name otherwise than today's: their Muon is another one.
OTHER_SETTINGS = (FIFTH, SIXTH)
#: Kinds of answers that say that nothing trains, without code.
NOTHING_TRAINS = ("nothing trains", "at chance", "diverged")
#: Races whose answers stand beside those of the former race: list of tasks -> races.
BESIDE = {"judge4": (NEWER,), "judge5": (FIFTH, REPAIRED), "judge6": (SIXTH,)}
Setting = dict[str, Any]


#: The lists of tasks by name.
SPLITS: dict[str, dict[str, tuple[Any, int]]] = {
    "development": {**recommend_tasks.TASKS, **recommend_more.TASKS},
    "judge": recommend_judged.TASKS,
    "judge2": recommend_again.TASKS,
    "judge3": recommend_third.TASKS,
    "judge4": recommend_fourth.TASKS,
    "judge5": recommend_fifth.TASKS,
    "judge6": recommend_sixth.TASKS,
}
TITLES = {
    "development": "Development",
    "judge": "Judged",
    "judge2": "Judged again",
    "judge3": "Judged a third time",
    "judge4": "Judged a fourth time",
    "judge5": "Judged a fifth time",
    "judge6": "Judged a sixth time",
}


def tasks() -> dict[str, tuple[Any, int]]:
    """Every task by name: its factory and the steps of a full-length run."""
    return {name: task for split in SPLITS.values() for name, task in split.items()}


def drawn(index: int) -> Setting:
    """Setting number ``index`` of the random search, the same for every task.

    A third each is AdamW, AdamW with clipping, and SGD. Their learning rates are drawn one per
    equal part of the logarithmic range, so that no part is missed.
    """
    from mindgap.base.rng import numpy_stream

    each, sgd = RUNS // 3, index % 3 == 2
    part = int(numpy_stream(0, "parts", index % 3).permutation(each)[index // 3])
    stream = numpy_stream(0, "search", index)
    rate = 10 ** (-4 + 3 * (part + stream.random()) / each)
    decay, clip = 10 ** stream.uniform(-3, 0.5), 10 ** stream.uniform(-2, 1)
    undecayed, clipped, linear = (stream.random() < p for p in (0.3, 0.5, 0.5))
    return {
        "searched": "SGD" if sgd else "AdamW",
        "lr": float(f"{rate * (30 if sgd else 1):.2g}"),
        "weight_decay": 0.0 if undecayed else float(f"{decay * (1e-3 if sgd else 1):.2g}"),
        "clip": float(f"{clip:.2g}") if index % 3 == 1 or (sgd and clipped) else None,
        "shape": "linear" if linear else "trapezoid",
    }


def adamw(rate: float) -> Setting:
    """torch's AdamW at its defaults, with the schedule of the race."""
    return {
        "searched": "AdamW",
        "lr": rate,
        "weight_decay": 0.01,
        "clip": None,
        "shape": "trapezoid",
    }


def named(setting: Setting) -> str:
    """A setting in words."""
    if "searched" not in setting:
        from mindgap.advise.candidates import Candidate

        return Candidate(**setting).name
    decay = f" weight_decay={setting['weight_decay']:g}"
    clip = "" if setting["clip"] is None else f" clip={setting['clip']:g}"
    return f"{setting['searched']} lr={setting['lr']:g}{decay}{clip}, {setting['shape']}"


def _searched(setting: Setting) -> Callable[[torch.nn.Module], torch.optim.Optimizer]:
    def make(model: torch.nn.Module) -> torch.optim.Optimizer:
        weights = list(model.parameters())
        lr, decay = setting["lr"], setting["weight_decay"]
        made: torch.optim.Optimizer
        if setting["searched"] == "SGD":
            made = torch.optim.SGD(weights, lr=lr, momentum=0.9, weight_decay=decay)
        else:
            made = torch.optim.AdamW(weights, lr=lr, weight_decay=decay, fused=True)
        if setting["clip"] is not None:

            def clipped(*given: Any) -> None:
                torch.nn.utils.clip_grad_norm_(weights, setting["clip"])

            made.register_step_pre_hook(clipped)
        return made

    return make


def full_run(task: str, setting: Setting, seed: int) -> float:
    """Validation loss at the end of one full-length run."""
    from mindgap.advise.candidates import Candidate
    from mindgap.advise.training import Progress, train_until

    factory, steps = tasks()[task]
    progress = Progress()
    make = _searched(setting) if "searched" in setting else Candidate(**setting).optimizer
    shape = setting["shape"]
    train_until(progress, factory, make, seed=seed, until=steps, total=steps, shape=shape)
    return progress.scores[steps]


def work(job: list[Any]) -> dict[str, Any]:
    """Carry out one job and return its line."""
    torch.set_num_threads(1)
    kind, task, detail = job
    tasks()[task][0](0)  # make the data before the clock starts
    begun = time.perf_counter()
    if kind == "search":
        line: dict[str, Any] = {"setting": drawn(detail)}
        line["loss"] = full_run(task, line["setting"], 0)
    elif kind == "recommend":
        line = recommended(task, detail)
    else:
        line = {"loss": full_run(task, detail[0], detail[1])}
    return {"job": job, "seconds": round(time.perf_counter() - begun, 3), **line}


@cache
def _load() -> None:
    """Let torch and mindgap load what an optimizer needs, which happens once per process."""
    import mindgap.optim

    for kind in (torch.optim.AdamW, mindgap.optim.AdamW, mindgap.optim.ACClip):
        weight = torch.nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        kind([weight]).step()


def recommended(task: str, mode: str) -> dict[str, Any]:
    """The recommendation in one mode, and its cost; or the error with which it refuses the task."""
    from mindgap.advise.recommendation import recommend
    from mindgap.base.check import RuleError

    factory, steps = tasks()[task]
    _load()
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        answer = recommend(factory, minutes=60, steps=steps, **MODES.get(mode, {}))
    except RuleError as error:  # it refuses the problem
        return {"error": str(error)}
    took = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    wall, cpu = time.perf_counter(), time.process_time()
    full_run(task, adamw(1e-3), 0)
    one = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    return {
        "setting": answer.about["setting"],
        "loss": answer.about["loss"],
        "kind": answer.decision.kind if answer.decision else None,
        "sentence": answer.sentence,
        "found": answer.found,
        "runs": answer.about["full_length_runs"],
        "said": answer.about["clock_runs"],
        "clock": {name: round(took[name] / one[name], 2) for name in took},
        "start": answer.decision.start if answer.decision else math.nan,
    }


def key(job: Any) -> str:
    return json.dumps(job, sort_keys=True)


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Lines written so far, by job; a line that a kill cut off is left out."""
    found = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        found[key(line["job"])] = line
    return found


def carry_out(jobs: Iterable[list[Any]], path: Path, processes: int, until: float) -> None:
    """Run the jobs that have no line yet, several side by side, writing each line as it comes."""
    done = read(path)
    missing = list({key(job): job for job in jobs if key(job) not in done}.values())
    if not missing:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        path.write_bytes(path.read_bytes() + b"\n")
    with ExitStack() as stack:
        file = stack.enter_context(path.open("a", encoding="utf-8"))
        lines: Iterable[dict[str, Any]] = map(work, missing)
        if processes > 1:
            pool = multiprocessing.get_context("spawn").Pool(min(processes, len(missing)))
            lines = stack.enter_context(pool).imap_unordered(work, missing, chunksize=1)
        for line in lines:
            file.write(json.dumps(line) + "\n")
            file.flush()
            if time.time() > until:
                break


def best_of_search(task: str, done: dict[str, dict[str, Any]]) -> list[Setting]:
    """The best settings of a finished search, best first; none where runs are missing."""
    lines = [done.get(key(["search", task, index])) for index in range(RUNS)]
    if not all(lines):
        return []
    ranked = sorted((line for line in lines if line), key=lambda line: line["loss"])
    return [line["setting"] for line in ranked[:CONFIRMED]]


def jobs_of(kind: str, names: Iterable[str], modes: Iterable[str], path: Path) -> list[list[Any]]:
    """All jobs of a kind, those of the first tasks first."""
    done = read(path)
    if kind == "search":
        return [["search", task, index] for task in names for index in range(RUNS)]
    if kind == "recommend":
        return [["recommend", task, mode] for task in names for mode in modes]
    found = []
    for task in names:
        runs: list[list[Any]]  # settings, each with the race that runs it otherwise, if any
        if kind == "final":
            runs = [[s] for s in (*best_of_search(task, done), *(adamw(rate) for rate in RATES))]
        else:
            lines = {mode: done.get(key(["recommend", task, mode])) for mode in modes}
            runs = [
                [line["setting"], *_other(mode)]
                for mode, line in lines.items()
                if line and line.get("setting")
            ]
        found += [["final", task, [s, seed, *o]] for s, *o in runs for seed in FRESH_SEEDS]
    return found


def _other(race: str) -> list[str]:
    """What stands behind setting and seed in a job on a fresh seed: the race, where it runs the
    setting otherwise than today's.
    """
    return [race] if race in OTHER_SETTINGS else []


@dataclass(frozen=True)
class Row:
    """What the records say of one task: losses with seed 0, and means over the fresh seeds (NaN
    where they have not run).
    """

    task: str
    search: tuple[float, float, Setting]  # seed 0, fresh seeds, the setting
    modes: dict[str, tuple[float, float, dict[str, Any]]]  # mode -> the same, and the answer
    adamw: float  # torch's AdamW at 1e-3 on the fresh seeds

    def gap(self, mode: str, fresh: bool = False) -> float:
        """How far the mode is above the search, in per cent: of the search's loss, or, where
        losses may be negative, of the fall from the start to it.
        """
        own, other, start = (
            self.modes[mode][fresh],
            self.search[fresh],
            self.modes[mode][2]["start"],
        )
        unit = other if min(own, other) > 0 and start > 0 else start - other
        return 100 * (own - other) / unit

    def against_adamw(self) -> float:
        """How far the recommendation is above torch's AdamW at 1e-3 on the fresh seeds, in per
        cent: of AdamW's loss, or of its fall from the start.
        """
        own, start = self.modes[FULL][1], self.modes[FULL][2]["start"]
        unit = self.adamw if min(own, self.adamw) > 0 and start > 0 else start - self.adamw
        return 100 * (own - self.adamw) / unit


def rows(done: dict[str, dict[str, Any]]) -> list[Row]:
    """Every task whose search and recommendation are finished."""

    def mean(task: str, setting: Setting | None, race: str = FULL) -> float:
        lines = [
            done.get(key(["final", task, [setting, seed, *_other(race)]])) for seed in FRESH_SEEDS
        ]
        if not all(lines):
            return math.nan
        return statistics.fmean(line["loss"] for line in lines if line)

    found = []
    for task in tasks():
        best = best_of_search(task, done)
        answers = {
            mode: done.get(key(["recommend", task, mode]))
            for mode in (*MODES, REFUSED, NEWER, FIFTH, REPAIRED, SIXTH)
        }
        modes = {
            mode: (line["loss"], mean(task, line["setting"], mode), line)
            for mode, line in answers.items()
            if line and "error" not in line
        }
        if not best or FULL not in modes:
            continue
        lowest = min(done[key(["search", task, index])]["loss"] for index in range(RUNS))
        confirmed = sorted((mean(task, setting), named(setting), setting) for setting in best)
        fresh, _, setting = confirmed[0]
        if math.isnan(sum(loss for loss, _, _ in confirmed)):
            fresh, setting = math.nan, best[0]
        found.append(Row(task, (lowest, fresh, setting), modes, mean(task, adamw(1e-3))))
    return found


def _table(lines: list[list[str]]) -> str:
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(path: Path) -> str:
    """The tables of the document."""
    done = read(path)
    found = rows(done)
    if not found:
        return "No task is finished yet."
    head = ["task", "best of the search", "recommendation", "gap", "gap on fresh seeds"]
    parts = []
    for split, title in TITLES.items():
        of = [row for row in found if row.task in SPLITS[split]]
        if not of:
            continue
        races = BESIDE.get(split, (REFUSED,))
        lines = [
            [
                *head,
                "against AdamW at 1e-3, fresh seeds",
                "runs in steps",
                "runs by the clock",
                *(words for race in races for words in (f"the {race}", "its gap")),
            ]
        ]
        for row in of:
            loss, _, line = row.modes[FULL]
            lines.append(
                [
                    row.task,
                    f"{named(row.search[2])}: {_number(row.search[0])}",
                    f"{named(line['setting'])}: {_number(loss)}",
                    _percent(row.gap(FULL)),
                    _percent(row.gap(FULL, fresh=True)),
                    _percent(row.against_adamw()),
                    f"{line['runs']:.1f}",
                    f"{line['clock']['cpu']:.1f}",
                    *(words for race in races for words in _beside(row, race)),
                ]
            )
        cost = [row.modes[FULL][2]["clock"]["cpu"] for row in of]
        live = _live(of)
        where = f" ({len(live)} tasks that can train)" if len(live) < len(of) else ""
        parts += [
            f"**{title}**, {len(of)} of {len(SPLITS[split])} tasks finished. Gap to the best of "
            f"60 runs{where}, seed 0: {_summary([row.gap(FULL) for row in live])}; on fresh seeds: "
            f"{_summary([row.gap(FULL, fresh=True) for row in live])}. Against AdamW at 1e-3, "
            f"fresh seeds: {_summary([row.against_adamw() for row in live])}. Runs by the clock: "
            f"median {statistics.median(cost):.1f}, most {max(cost):.1f}."
            + "".join(_of_race(of, race) for race in races)
            + "".join(_refusals(split, done)),
            _table(lines),
        ]
    return "\n\n".join([*parts, *_verdicts(done), *_ablations(found)])


def _live(of: list[Row]) -> list[Row]:
    """The tasks on which something can train; on the others a gap says nothing."""
    return [row for row in of if row.task not in recommend_sixth.DEAD]


def _beside(row: Row, race: str) -> list[str]:
    """What another race recommends for a task, and its gap."""
    if race not in row.modes:
        return ["not run", "not run"]
    loss, _, line = row.modes[race]
    return [f"{named(line['setting'])}: {_number(loss)}", _percent(row.gap(race))]


def _of_race(of: list[Row], race: str) -> str:
    """What another race makes of some tasks, in a sentence."""
    ran = [row for row in of if race in row.modes]
    if not ran:
        return ""
    cost = [row.modes[race][2]["clock"]["cpu"] for row in ran]
    live = _live(ran)
    return (
        f" The {race}: {_summary([row.gap(race) for row in live])}; on fresh seeds: "
        f"{_summary([row.gap(race, fresh=True) for row in live])}; runs by the clock: median "
        f"{statistics.median(cost):.1f}, most {max(cost):.1f}."
    )


def _summary(gaps: list[float]) -> str:
    known = [gap for gap in gaps if not math.isnan(gap)]
    if not known:
        return "not run"
    some = "" if len(known) == len(gaps) else f" ({len(known)} of {len(gaps)} tasks)"
    return f"median {_percent(statistics.median(known))}, worst {_percent(max(known))}{some}"


def _refusals(split: str, done: dict[str, dict[str, Any]]) -> list[str]:
    """Of every task that `recommend` refuses with an error, a sentence with the error."""
    lines = {task: done.get(key(["recommend", task, FULL]), {}) for task in SPLITS[split]}
    return [
        f' `{task}` is refused with an error: "{line["error"]}".'
        for task, line in lines.items()
        if "error" in line
    ]


def verdicts(done: dict[str, dict[str, Any]], mode: str, splits: Iterable[str]) -> list[int]:
    """How often a race says that nothing trains, over its first answers on some lists of tasks.

    Returns:
        The number of live tasks; on how many of them it says that nothing trains, which is wrong,
        and on how many that all losses rise; the number of tasks on which nothing can train; on how
        many of these it says so, and how many it refuses with an error.
    """
    counts = [0] * 6
    for task in (task for split in splits for task in SPLITS[split]):
        line = done.get(key(["recommend", task, mode]))
        if line is None:
            continue
        kind, first = line.get("kind"), 3 if task in recommend_sixth.DEAD else 0
        counts[first] += 1
        counts[first + 1] += kind in NOTHING_TRAINS
        counts[first + 2] += "error" in line if first else kind == "rises"
    return counts


def _verdicts(done: dict[str, dict[str, Any]]) -> list[str]:
    """The table of how often the answer is that nothing trains, from all judgings."""
    known = [split for split in SPLITS if split != "judge6"]
    races = {
        "the race of the time, before the repair": (FULL, known),
        "today's race, after the repair, on known tasks": (REPAIRED, known),
        "**today's race on unseen tasks**": (FULL, ["judge6"]),
        f"the {REFUSED}": (REFUSED, known),
        f"the {NEWER}": (NEWER, known),
        f"the {FIFTH}": (FIFTH, known),
        f"the {SIXTH}": (SIXTH, ["judge6"]),
    }
    head = ["", "tasks that train", "it says that nothing trains (wrong)", "it says that all rise"]
    head += ["tasks where nothing can train", "it says so (right)", "it refuses them with an error"]
    lines = [
        [race, *map(str, verdicts(done, mode, splits))] for race, (mode, splits) in races.items()
    ]
    return ["**How often the answer is that nothing trains**:", _table([head, *lines])]


def _ablations(found: list[Row]) -> list[str]:
    lines = [
        ["", "tasks", "same choice", "median gap", "worst gap", "whole: median", "whole: worst"]
    ]
    for mode in MODES:
        of = [row for row in found if mode in row.modes and mode != FULL]
        if not of:
            continue
        same = [row for row in of if row.modes[mode][2]["setting"] == row.modes[FULL][2]["setting"]]
        gaps, whole = ([row.gap(name) for row in of] for name in (mode, FULL))
        values = [statistics.median(gaps), max(gaps), statistics.median(whole), max(whole)]
        lines.append([mode, str(len(of)), str(len(same)), *map(_percent, values)])
    if len(lines) == 1:
        return []
    return ["**What each part gives**, against the whole on the same tasks:", _table(lines)]


def written(page: Path, path: Path) -> str:
    """The text of a page with the tables between its marks."""
    begin, end = "<!-- recommend: begin -->", "<!-- recommend: end -->"
    head, _, rest = page.read_text(encoding="utf-8").partition(begin)
    return f"{head}{begin}\n\n{table(path)}\n\n{end}{rest.partition(end)[2]}"


def _percent(value: float) -> str:
    if math.isnan(value):
        return "not run"
    digits = ".1f" if abs(value) < 1e5 else ".1e"
    return f"{value:+{digits}} %".replace("-", "−")


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", type=Path, help="the file of lines")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--split", choices=list(SPLITS), help="all tasks of a list, one mode")
    parser.add_argument("--tasks", nargs="*", help="default: all")
    parser.add_argument("--modes", nargs="*", choices=[*MODES, REPAIRED, SIXTH])
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after that")
    parser.add_argument("--table", action="store_true", help="only print the tables")
    parser.add_argument("--docs", type=Path, help="with --table: the page to write them into")
    words = parser.parse_args()
    words.tasks = words.tasks or list(SPLITS[words.split] if words.split else tasks())
    words.modes = words.modes or ([FULL] if words.split else list(MODES))
    if words.table:
        print(table(words.records))
        if words.docs:
            words.docs.write_text(written(words.docs, words.records), encoding="utf-8")
        return
    until = time.time() + 60 * words.minutes
    for kind in words.kinds:
        jobs = jobs_of(kind, words.tasks, words.modes, words.records)
        if time.time() < until:
            carry_out(jobs, words.records, words.jobs, until)


if __name__ == "__main__":
    main()
