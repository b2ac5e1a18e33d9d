"""B5: SLIP against BO-REP in running time, on hyper-cleaning and hyper-representation (SLIP
rebuttal, Fig. 3 and A3).

*Time* is CPU seconds of the process inside the method, warm start and refinement included; a
throw-away run of a few iterations comes first, so that no method pays for what is loaded once.
*Given accuracies* are 80, 90, 95 and 98 % of the test accuracy of perfect cleaning (the lower
problem solved without the corrupted samples). On hyper-representation, and with a recurrent net at
scale gpu, they are test accuracies as such (``REACHED``). For a net, time is seconds of the clock
in CUDA graphs, without the time that capturing them takes, and comes from a run of its own that
nothing interrupts: the host's work at every reading would count otherwise, and takes longer than
ten oracle calls. Steps are those of the studies B1 to B3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mindgap.bilevel.registry import METHODS
from mindgap.lab.studies import cleaning_runs, representation_runs
from mindgap.lab.studies.bilevel_runs import by_case, trained_gate, tuned_methods
from mindgap.lab.studies.spec import Design, Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import as_ratios, mean_interval, ratio_words

#: data on which a recurrent net runs, on a GPU
NETS = (*cleaning_runs.TEXTS, *representation_runs.WORDS)

#: iterations of the run that is thrown away
FIRST = 5


def loop(trial: Trial) -> Iterator[Row]:
    """Hyper-cleaning: run one method to the budget of oracle calls and read it about once per
    iteration.
    """
    task = cleaning_runs.task_of(trial)
    method = cleaning_runs.cleaning_method(trial)
    # No Newton's method finds the best net.
    perfect = 1.0 if trial["data"] in NETS else task.perfect_accuracy()
    yield from _time_alone(trial, task, method, cleaning_runs.rows_of, perfect)


def representation_loop(trial: Trial) -> Iterator[Row]:
    """Hyper-representation: run one method to the budget of oracle calls and read it every few
    iterations.
    """
    task = representation_runs.task_of(trial)
    method = representation_runs.representation_method(trial)
    yield from _time_alone(trial, task, method, representation_runs.rows_of, 1.0)


def _time_alone(
    trial: Trial, task: Any, method: Any, rows_of: Callable[..., Iterator[Row]], perfect: float
) -> Iterator[Row]:
    """Rows of a timed run; on a GPU it waits until it has the device to itself."""
    with _alone(trial):
        yield from _time_run(trial, task, method, rows_of, perfect)


@contextmanager
def _alone(trial: Trial) -> Iterator[None]:
    """On a GPU: wait until no other run of this study has it, for clocks shared with other runs
    tell nothing.
    """
    if not trial.settings.get("alone"):
        yield
        return
    from filelock import FileLock

    from mindgap.lab.tasks.data.fetch import cache_folder

    cache_folder().mkdir(parents=True, exist_ok=True)
    with FileLock(cache_folder() / "clocked.lock"):
        yield


def _time_run(
    trial: Trial, task: Any, method: Any, rows_of: Callable[..., Iterator[Row]], perfect: float
) -> Iterator[Row]:
    """Rows of a run with its clocks; for a net, seconds by the calls of a run that nothing
    interrupts.
    """
    _throw_away(task.problem(trial["batch_size"]), method, trial.seed)
    budget, on_net = trial["oracle_calls"], trial["data"] in NETS
    if on_net:
        clock_trial = Trial(trial.method, trial.seed, trial.settings)
        rows = rows_of(
            clock_trial, task, method, budget=trial.settings.get("clock_calls", budget), readings=1
        )
        (first_calls, start_seconds), (last_calls, end_seconds) = [
            (row["oracle_calls"], clock_trial.seconds) for row in rows
        ]
        seconds_per_call = (end_seconds - start_seconds) / (last_calls - first_calls)
    for row in rows_of(trial, task, method, budget=budget, readings=trial["readings"]):
        seconds = (
            start_seconds + seconds_per_call * (row["oracle_calls"] - first_calls)
            if on_net
            else trial.seconds
        )
        yield {
            **row,
            "cpu_seconds": round(trial.cpu_seconds, 6),
            "perfect_accuracy": perfect,
            "seconds": round(seconds, 6),
        }


def _throw_away(problem: Any, method: Any, seed: int) -> None:
    """A few iterations, so that no method pays for what is loaded once."""
    state = method.start(problem, seed=seed)
    for _ in range(FIRST):
        state = method.step(state)


def reach(run: Run, share: float) -> tuple[float, float, bool]:
    """Seconds and oracle calls until ``share`` of the perfect accuracy is first seen, and whether
    it was.

    Seconds are those of the processor, or of the clock for a net on a GPU. Where the accuracy was
    not seen, the end of the run stands in: a lower bound.
    """
    level = share * run.rows[0]["perfect_accuracy"]
    row = next((row for row in run.rows if row["test_accuracy"] >= level), None)
    row_reached = run.rows[-1] if row is None else row
    return row_reached[clock_of(run)], row_reached["oracle_calls"], row is not None


def clock_of(run: Run) -> str:
    """The column in which time is read."""
    return "seconds" if run.header.settings["data"] in NETS else "cpu_seconds"


#: (case, accuracy in words) -> seed -> (log of another method's time over SLIP's, log of its
#: oracle calls over SLIP's).
Ratios = dict[tuple[str, str], dict[int, tuple[float, float]]]


def judge(runs: Sequence[Run]) -> Parts:
    """BO-REP's time over SLIP's, pooled over corruptions and accuracies: one number per seed."""
    parts, groups, settings = Parts(), by_case(runs, "key"), runs[0].header.settings
    ratios = _ratios_to_slip(groups, "borep", settings["levels"])
    if runs[0].header.scale in ("gpu", "paper"):
        trained_gate(parts, runs)
    seeds = sorted({seed for of_seeds in ratios.values() for seed in of_seeds})
    if len(seeds) < 2:
        parts.decide_nothing("too few runs reach an accuracy")
        return parts
    means_of_seeds = [
        np.mean([of_seeds[seed] for of_seeds in ratios.values() if seed in of_seeds], axis=0)
        for seed in seeds
    ]
    in_time, in_calls = (np.array(logs) for logs in zip(*means_of_seeds))
    words = "seconds on the GPU" if clock_of(runs[0]) == "seconds" else "CPU seconds"
    parts.sooner("SLIP sooner", in_time, f"{words}: ")
    calls = mean_interval(in_calls, miss=0.1)
    logs_of = {
        ", ".join(place): list(of_seeds_.values())
        for place, of_seeds_ in ratios.items()
        if of_seeds_
    }
    parts.note(
        f"in oracle calls: {ratio_words(calls)}",
        {
            "ratio_of_oracle_calls": as_ratios(calls),
            "ratio": {name: float(np.exp(np.mean(logs, 0)[0])) for name, logs in logs_of.items()},
        },
    )
    parts.note(*_note_on_others(groups, settings["levels"]))
    unreached = [", ".join(place) for place, of_seeds_ in ratios.items() if not of_seeds_]
    parts.note(
        f"not reached: {', '.join(unreached)}" if unreached else "", {"not_reached": unreached}
    )
    if words == "seconds on the GPU" and not settings.get("alone"):
        parts.decide_nothing("several runs shared the GPU while they were timed")
    return parts


def _ratios_to_slip(
    groups: Mapping[tuple[Any, ...], Mapping[int, Run]], key: str, levels: Sequence[float]
) -> Ratios:
    """How much longer than SLIP the method of that key takes to each accuracy in each case; seeds
    in which neither reaches it are left out.
    """
    ratios: Ratios = {}
    for case in sorted({case for case, other in groups if other == key}):
        slip, other = groups[case, "slip"], groups[case, key]
        for level in levels:
            of_seeds = ratios[case, f"{level:.0%}"] = {}
            for seed in sorted(slip.keys() & other.keys()):
                time, calls, reached = reach(slip[seed], level)
                other_time, other_calls, other_reached = reach(other[seed], level)
                if reached or other_reached:
                    # A level met at the start of both, before any clock ran, is a tie.
                    of_seeds[seed] = (
                        math.log(max(other_time, 1e-9) / max(time, 1e-9)),
                        math.log(max(other_calls, 1) / max(calls, 1)),
                    )
    return ratios


def _note_on_others(
    groups: Mapping[tuple[Any, ...], Mapping[int, Run]], levels: Sequence[float]
) -> tuple[str, dict[str, Any]]:
    """Every other method's time over SLIP's, for a note: the geometric mean over corruptions,
    accuracies and seeds, in words and numbers.
    """
    ratios = {}
    for key in dict.fromkeys(key for _, key in groups if key not in ("slip", "borep")):
        ratios_of_case = _ratios_to_slip(groups, key, levels).values()
        logs = [log for of_seeds in ratios_of_case for log, _ in of_seeds.values()]
        if logs:
            ratios[key] = float(np.exp(np.mean(logs)))
    fastest_first = sorted(ratios, key=lambda key: ratios[key])
    words = ", ".join(f"{METHODS[key].name} {ratios[key]:.2f}" for key in fastest_first)
    return (f"time over SLIP's, beside: {words}" if words else "", {"ratio_beside": ratios})


#: Fig. 3 prints no number: 1.25 times SLIP's time is assumed. False by the smallest effect that
#: matters: BO-REP is as fast.
DESIGN = Design(
    "sooner",
    false=0.0,
    paper=math.log(1.25),
    deviation=0.25,
    unit="in the log ratio",
    source="1.25 times SLIP's time is assumed, for the figure prints none; the deviation is above "
    "that of earlier records",
)


def _length(settings: Mapping[str, Any]) -> str:
    """How long a network is trained, in words: 100 oracle calls per epoch of a method with five
    calls per step.
    """
    if "corruption" in settings:
        return f"{settings['oracle_calls'] / 100:.3g} of 25 epochs"
    return f"{settings['oracle_calls'] * settings['batch_size'] / 100:.3g} of 20 epochs"


def _study(
    name: str, task: str, loop: Callable[[Trial], Iterator[Row]], facet: str, **parts: Any
) -> Study:
    """The study of Fig. 3 on one task, with the parts that differ between tasks."""
    return Study(
        name=name,
        claim="B5",
        title=f"SLIP against BO-REP in running time: {task}",
        statement=f"On {task} SLIP reaches given accuracies in less time than BO-REP (here: CPU "
        "seconds, and seconds of the clock on a GPU).",
        source=Source("slip-rebuttal-a", "Fig. 3; A3 to g3Q2"),
        loop=loop,
        judge=judge,
        rule="BO-REP's time over SLIP's, as a geometric mean over the given accuracies and "
        "corruptions (one number per seed), is above 1 on average over the seeds: one-sided, 95 %. "
        "Refuted where it is below 1, one-sided, 95 %. Where one run of a pair misses an accuracy, "
        "its end stands in; where both do, that accuracy is left out for the seed. On a GPU a run "
        "has the device to itself. The same ratio in oracle calls stands beside.",
        length_of=_length,
        designs={"gpu": DESIGN},
        figures=tuple(
            Figure(
                "Test accuracy against time",
                "test_accuracy",
                "test accuracy",
                x=clock,
                log_x=True,
                facet=facet,
                scales=scales,
                caption="Time starts with the warm start of SLIP and with the refinement of "
                "BO-REP, at the same point. Switch the x-axis to oracle calls for a count that "
                "does not depend on the machine.",
            )
            for clock, scales in (("cpu_seconds", ("quick", "cpu")), ("seconds", ("gpu", "paper")))
        ),
        **parts,
    )


_LEVELS = [0.8, 0.9, 0.95, 0.98]
_BOTH = ("SLIP", "BO-REP")

#: data -> test accuracies to be reached, the same for both methods
REACHED = {
    "sentiment140": [0.55, 0.58, 0.61, 0.64],
    "digits": [0.6, 0.7, 0.8, 0.85],
    "turned digits": [0.45, 0.5, 0.55],
    "snli": [0.56, 0.6, 0.64],
    "reviews": [0.6, 0.65, 0.68],
    "words of snli": [0.53, 0.56, 0.59, 0.62],
    "words of reviews": [0.53, 0.56, 0.59, 0.62],
}


def _cleaning() -> Study:
    """The study of Fig. 3 on hyper-cleaning."""
    quick = {**cleaning_runs.QUICK, "readings": 60, "levels": _LEVELS}
    cpu = {**cleaning_runs.CPU, "oracle_calls": 5000, "readings": 1000, "levels": _LEVELS}
    gpu = {
        **cleaning_runs.GPU,
        "oracle_calls": 1000,
        "readings": 50,
        "levels": REACHED["sentiment140"],
        "alone": 1,
    }
    methods = {
        f"{title}, p = {p:g}": title for p in (0.2, 0.4) for title in cleaning_runs.GPU_METHODS
    }
    other_labels = {label: title for label, title in methods.items() if title not in _BOTH}
    steps = {label: cleaning_runs.GPU_STEPS[title] for label, title in methods.items()}
    no_seeds = dict.fromkeys(other_labels, 0)
    return _study(
        "b5-running-time",
        "data hyper-cleaning",
        loop,
        "corruption",
        scales={
            "quick": Scale(quick, 6, seeds_of=no_seeds),
            "cpu": Scale(cpu, 10, seeds_of=no_seeds),
            "gpu": Scale(gpu, 12, steps, no_seeds),
        },
        lengths={"gpu": "10 of 25 epochs"},
        methods={
            f"{title}, p = {p:g}": tuned_methods(cleaning_runs.TUNED, corruption=p)[title]
            for p in (0.2, 0.4)
            for title in cleaning_runs.GPU_METHODS
        },
        models={
            **dict.fromkeys(("quick", "cpu"), "linear softmax on digits"),
            "gpu": cleaning_runs.GPU_MODEL,
        },
        paper_model=cleaning_runs.PAPER_MODEL,
        tuned_by="b3-hyper-cleaning",
    )


def _representation(name: str, texts: str, quick: str, cpu: str) -> Study:
    """The study of Fig. 3 on one set of texts."""
    runs = representation_runs
    rivals = [title for title in runs.EIGHT if title not in _BOTH]

    def scale(
        settings: Mapping[str, Any], source: str, tasks: list[int], readings: int, seeds: int
    ) -> Scale:
        steps = runs.own_steps(source)
        shared_settings = {
            "data": source,
            "levels": REACHED[source],
            "tasks": tasks,
            "readings": readings,
        }
        return Scale(
            {**settings, **shared_settings},
            seeds,
            {title: steps[title] for title in _BOTH},
            dict.fromkeys(rivals, 0),
        )

    gpu_settings = runs.GPU_SIZES[cpu]
    shared_settings = {"levels": REACHED[gpu_settings["data"]], **runs.TASKS}
    gpu = {**gpu_settings, **shared_settings, "oracle_calls": 400, "readings": 40, "alone": 1}
    no_seeds = dict.fromkeys(rivals, 0)
    scales = {
        "quick": scale(runs.QUICK, quick, [40, 1, 40], 15, 3),
        "cpu": scale(runs.CPU, cpu, runs.TASKS["tasks"], 100, 10),
        "gpu": Scale(gpu, 12, {title: runs.GPU_STEPS[title] for title in runs.EIGHT}, no_seeds),
    }
    models = {
        "quick": f"tanh encoder and linear heads on {quick}",
        "cpu": f"averaged word vectors on {cpu}",
        "gpu": runs.GPU_MODELS[cpu],
    }
    if cpu == "snli":
        paper = {
            **runs.PAPER,
            **shared_settings,
            "oracle_calls": 160,
            "readings": 8,
            "clock_calls": 40,
        }
        scales["paper"] = Scale({**paper, "alone": 1}, 8, runs.PAPER_STEPS, no_seeds)
        models["paper"] = runs.SHORT_PAPER_MODELS[cpu]
    return _study(
        name,
        f"hyper-representation ({texts})",
        representation_loop,
        "",
        scales=scales,
        methods=runs.EIGHT,
        models=models,
        lengths={"gpu": "8 of 20 epochs", "paper": "1.6 of 20 epochs"},
        paper_model=runs.PAPER_MODELS[cpu],
        tuned_by=f"b{1 if cpu == 'snli' else 2}-hyper-representation",
    )


STUDIES = (
    _cleaning(),
    _representation("b5-running-time-pairs", "SNLI", "digits", "snli"),
    _representation("b5-running-time-reviews", "the Amazon reviews", "turned digits", "reviews"),
)
