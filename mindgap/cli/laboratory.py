"""``mindgap show``, ``register``, ``tune``, ``watch`` and ``compare``: what a study is, its
settings, its page, its changes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mindgap.base.check import fail, positive, whole
from mindgap.cli.pages import RunsFolder
from mindgap.cli.show import duration_words, one_line, paragraph, progress, say, table
from mindgap.cli.studies import (
    MethodNames,
    Names,
    Records,
    ScaleName,
    complete,
    matching_names,
    wanted_studies,
)
from mindgap.lab.studies.catalogue import find, reference_times
from mindgap.lab.studies.spec import SCALES
from mindgap.record.schema import RecordError
from mindgap.record.store import REGISTERED_FILE, TUNING_FILE, read_run

if TYPE_CHECKING:
    from mindgap.lab.studies.spec import Study

StudyName = Annotated[
    str,
    typer.Argument(
        help="A study or its claim ('mindgap list' shows them).",
        metavar="STUDY",
        autocompletion=complete,
    ),
]


def show(
    name: StudyName,
    runs: Annotated[Path, typer.Option(help="Folder of earlier runs, for the costs.")] = Path(
        "runs"
    ),
) -> None:
    """Print everything a study is.

    Claim, source, pass rule and its history, scales, methods, settings, figures, and what it has
    cost.
    """
    # A claim may have several studies: the first is shown, the others are named.
    study, *further = [find(study_name) for study_name in matching_names(name)]
    if further:
        say(f"{name} has further studies: {', '.join(other.name for other in further)}")
    table(("study", study.name), [*_facts(study), *_choices(study, runs)])
    seconds_taken = {scale: seconds_of_runs(runs / study.name / scale) for scale in study.scales}
    table(
        ("scale", "settings", "cost of all its runs"),
        [
            (
                scale,
                _settings(_common_settings(study, scale)),
                cost(study, scale, seconds_taken[scale]),
            )
            for scale in study.scales
        ],
    )
    rows = [
        (method, _own_settings(study, method) or "none", _costs_of(method, seconds_taken))
        for method in study.methods
    ]
    table(("method", "its own settings", "cost of a run"), rows)


def _facts(study: Study) -> Iterator[tuple[str, str]]:
    """Yield what a study says of itself, as (name, words)."""
    yield "claim", study.claim
    yield "title", study.title
    yield study.heading.lower(), study.statement
    yield "source", str(study.source)
    sizes = [(scale, study.scales[scale].seeds) for scale in SCALES if scale in study.scales]
    yield "scales", ", ".join(f"{scale} ({seeds} seeds per method)" for scale, seeds in sizes)
    yield "figures", "; ".join(figure.title for figure in study.figures)
    yield "pass rule", study.rule
    for scale, size in study.scales.items():
        if size.rule:
            yield f"pass rule at scale {scale}", size.rule
    for line in study.history:
        yield "history of the rule", line
    if study.differs:
        yield "differs from the paper", study.differs
    for scale in study.scales:
        if study.model(scale):
            yield f"model at scale {scale}", study.model(scale)


def _choices(study: Study, runs: Path) -> Iterator[tuple[str, str]]:
    """Yield which settings may be tuned, and what searches in the folder ``runs`` have chosen at
    each scale, as (name, words).
    """
    from mindgap.lab.studies.run import tuned_settings

    if study.tunable:
        space = ", ".join(
            f"{name} in [{least:g}, {largest:g}]"
            for name, (least, largest) in study.tunable.items()
        )
        yield "tuned on", f"{study.tune_on}: {space}, log scale, for every method alike"
    for scale in study.scales:
        tuned = tuned_settings(runs, study, scale)
        if tuned:
            words = [f"{method}: {_settings(settings)}" for method, settings in tuned.items()]
            yield f"chosen at scale {scale}", "; ".join(words)


def _own_settings(study: Study, method: str) -> str:
    """What a method has for itself, everywhere and at single scales."""
    at_scales = [
        f"{scale}: {_settings(size.methods[method])}"
        for scale, size in study.scales.items()
        if size.methods.get(method)
    ]
    return "; ".join(words for words in (_settings(study.methods[method]), *at_scales) if words)


def _costs_of(method: str, seconds_by_scale: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """What a run of a method took at each scale, from scale -> method -> seconds."""
    return "; ".join(
        f"{duration_words(statistics.median(by_method[method]))} ({scale}, median of "
        f"{len(by_method[method])})"
        for scale, by_method in seconds_by_scale.items()
        if by_method.get(method)
    )


def _settings(settings: Mapping[str, Any]) -> str:
    """Settings in one line, numbers as short as they are exact enough to recognise."""
    return ", ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in sorted(settings.items())
    )


def _common_settings(study: Study, scale: str) -> dict[str, Any]:
    """The scale's settings, less those that every method replaces by its own."""
    settings = study.scales[scale].settings
    replaced = [study.own(method, scale) for method in study.seeds(scale)]
    return {
        name: value
        for name, value in settings.items()
        if not all(name in of_method for of_method in replaced)
    }


def seconds_of_runs(folder: Path) -> dict[str, list[float]]:
    """Method -> seconds that its finished runs of any settings took; a record that cannot be
    read says nothing.
    """
    seconds_by_method: dict[str, list[float]] = {}
    for path in folder.glob("*.jsonl"):
        try:
            run = read_run(path)
        except RecordError:
            continue
        if run.done and run.end is not None:
            seconds = run.end.wall if run.end.wall is not None else run.end.seconds
            seconds_by_method.setdefault(run.header.method, []).append(seconds)
    return seconds_by_method


def cost(study: Study, scale: str, seconds_by_method: Mapping[str, Sequence[float]]) -> str:
    """What all runs of a study at a scale take one after the other, in words. A method that never
    ran is taken to be like the median one; where none ran, the shipped time of scale quick counts.

    Args:
        seconds_by_method: seconds of every finished run.
    """
    study = study.at(scale)
    seeds = study.seeds(scale)
    medians = {
        method: statistics.median(seconds)
        for method, seconds in seconds_by_method.items()
        if method in seeds
    }
    per_method = " or ".join(str(n) for n in sorted(set(seeds.values())))
    number = f"{sum(seeds.values())} runs ({len(seeds)} methods, {per_method} seeds)"
    if not medians:
        reference = reference_times().get(study.name) if scale == "quick" else None
        return (
            f"about {duration_words(reference)} for {number}, as measured elsewhere"
            if reference
            else f"unknown for {number}"
        )
    guess = statistics.median(medians.values())  # for methods that never ran
    total = sum(count * medians.get(method, guess) for method, count in seeds.items())
    never = len(seeds) - len(medians)
    words = f"; {never} never ran, taken to be like the others" if never else ""
    return f"about {duration_words(total)} with --jobs 1 for {number}{words}"


def register(
    names: Names,
    scale: ScaleName = "quick",
    out: Records = Path("runs"),
) -> None:
    """Write down a study's rule, sizes and power before a run.

    'mindgap tune' and 'mindgap run' write the hash of what was written down into their records.
    """
    from mindgap.lab.studies.register import register as write_down

    studies, overrides = wanted_studies(names, scale)
    if overrides:
        fail("override", "must not be given: what is registered is the study itself", overrides)
    for study in studies:
        registration = write_down(study, scale, out)
        print(f"{study.name} {scale}: {registration.hash}")
        if registration.power:
            paragraph(str(registration.power["words"]))
        say(f"written to {out / study.name / scale / REGISTERED_FILE}")


#: What an interrupted search says.
LAST_WORDS = "interrupted: the trials so far are kept; the same command goes on with them"


def tune(
    names: Names,
    scale: ScaleName = "quick",
    trials: Annotated[
        int, typer.Option(help="Trials of every method; no method can get more.")
    ] = 20,
    seeds: Annotated[int, typer.Option(help="Tuning seeds each trial is averaged over.")] = 1,
    grid: Annotated[
        bool,
        typer.Option(
            "--grid",
            help="Try every point of the study's grid on its tuning seeds "
            "instead, and further points where the best one is an end.",
        ),
    ] = False,
    confirm: Annotated[
        int,
        typer.Option(
            help="With --grid and fewer steps= or epochs=: try so many of each method's best "
            "points again at full length, and choose among them."
        ),
    ] = 0,
    jobs: Annotated[
        int, typer.Option(help="Methods searched at the same time; with --grid, points.")
    ] = 1,
    out: Records = Path("runs"),
    method: MethodNames = [],  # noqa: B006  (typer copies it)
) -> None:
    """Search each method's settings with equal budgets.

    The search uses validation data only; 'mindgap run' uses what it chose.
    """
    from mindgap.cli.interrupt import last_words
    from mindgap.lab.studies.grid import grid_points
    from mindgap.lab.studies.tune import tune as search

    studies, overrides = wanted_studies(names, scale, method)
    at_scale = [study.at(scale) for study in studies]
    searched = [s for s in at_scale if s.tune_on and (s.grid if grid else s.tunable)]
    for study in searched or at_scale:  # where there is none, the search says so
        number = len(grid_points(study.grid)) if grid else trials
        bar = progress(f"tuning {study.name}", number * len(study.methods))
        with last_words(lambda: LAST_WORDS), bar as advance:
            tuning = search(
                study,
                scale,
                out,
                trials=trials,
                seeds=seeds,
                grid=grid,
                overrides=overrides,
                confirm=confirm,
                jobs=jobs,
                on_trial=lambda method, number, value: advance(
                    f"{method}, trial {number}: {value:.4g}"
                ),
            )
        rows = [
            (
                study.name,
                method,
                len(method_tuning.trials) + len(method_tuning.confirmed),
                ", ".join(
                    f"{setting}={value:.4g}{' (an end)' if setting in method_tuning.ends else ''}"
                    for setting, value in method_tuning.chosen.items()
                ),
                f"{method_tuning.value:.4g}",
                f"{method_tuning.seconds:.3g} s",
            )
            for method, method_tuning in tuning.methods.items()
        ]
        # A terminal shows the study's name above the bar: its column is left out.
        first_column = 1 if sys.stdout.isatty() else 0
        table(
            ("study", "method", "trials", "chosen", tuning.metric, "cost")[first_column:],
            [row[first_column:] for row in rows],
        )
        say(f"written to {out / study.name / scale / TUNING_FILE}; 'mindgap run' reads it")
    if searched:
        for study in at_scale:
            if study not in searched:
                say(f"{study.name} names nothing to tune")


def watch(
    runs: RunsFolder,
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path(
        "page.html"
    ),
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 5.0,
    rounds: Annotated[
        int, typer.Option(help="Stop after so many looks; 0: go on until Ctrl-C.")
    ] = 0,
) -> None:
    """Draw the page again whenever records change.

    An open page reloads itself.
    """
    from mindgap.cli.interrupt import last_words
    from mindgap.lab.report import write_page

    positive("every", every)
    whole("rounds", rounds)
    drawn_state: object = None  # of the records when the page was drawn last
    number = 0  # of looks

    def last_page() -> str:
        """Draw the page once more if it was drawn, and return the words of the end."""
        if drawn_state is not None:
            write_page(runs, out)  # the page that stays does not reload itself
        return f"stopped watching {runs}"

    with last_words(last_page):
        while True:
            state = _state(runs)
            if not state and not number:
                print(f"no records in {runs} yet; waiting for them", flush=True)
            if state != drawn_state and state:
                # first: Ctrl-C may come while the page is drawn, and the last page must follow
                drawn_state = state
                write_page(runs, out, refresh=every)
                print(f"{time.strftime('%H:%M:%S')} {out}: {len(state)} files", flush=True)
            number += 1
            if number == rounds:
                break
            time.sleep(every)
    last_page()


def _state(runs: Path) -> list[tuple[str, int, int]]:
    """Every file of records with its size and date: what has to change before a page is drawn
    again.
    """
    files = [*runs.glob("*/*/*.jsonl"), *runs.glob("*/*/*.json")]
    return sorted((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files)


def compare(
    a: Annotated[Path, typer.Argument(help="Folder of records.", metavar="A")],
    b: Annotated[Path, typer.Argument(help="Another folder of records.", metavar="B")],
    level: Annotated[float, typer.Option(help="False-alarm rate per curve.")] = 0.001,
) -> None:
    """Compare two sets of records.

    Shows verdicts that changed and curves that differ beyond seed noise (exit status 1).
    """
    from mindgap.lab.report.compare import compare as compare_folders

    comparison = compare_folders(a, b, level=level)
    if not comparison.verdicts:
        only = f"A has {', '.join(comparison.only_a)}; B has {', '.join(comparison.only_b)}"
        fail("B", f"must share a study with A, or there is nothing to compare ({only})", str(b))
    table(
        ("study", "scale", "verdict in A", "verdict in B", ""),
        [
            (study, scale, in_a, in_b, "same" if in_a == in_b else "changed")
            for study, scale, in_a, in_b in comparison.verdicts
        ],
    )
    rows = [
        (
            curve.study,
            curve.scale,
            curve.method,
            curve.quantity,
            curve.outcome,
            f"{curve.where:.6g}",
            f"{curve.a:.6g}",
            f"{curve.b:.6g}",
            f"{curve.error:.1f}",
        )
        for curve in comparison.curves
        if curve.outcome != "same"
    ]
    if rows:
        columns = ("", "at", "mean in A", "mean in B", "standard errors")
        table(("study", "scale", "method", "quantity", *columns), rows)
    same_count = len(comparison.curves) - len(rows)
    say(
        f"{same_count} of {len(comparison.curves)} curves are the same to rounding"
        if comparison.curves
        else "no curve is in both"
    )
    for side, names in (("A", comparison.only_a), ("B", comparison.only_b)):
        for name in names:
            print(f"only in {side}\t{one_line(name)}")
    if comparison.changed or comparison.differing:
        raise typer.Exit(1)
