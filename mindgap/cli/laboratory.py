"""``mindgap show``, ``tune``, ``watch`` and ``compare``: what a study is, its settings, its page, its changes."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mindgap.base.check import positive, whole
from mindgap.cli.live import _span
from mindgap.cli.pages import RunsFolder
from mindgap.cli.show import progress, say, table
from mindgap.cli.studies import Names, Records, ScaleName, wanted_studies
from mindgap.record.store import read_run
from mindgap.studies.catalogue import find
from mindgap.studies.spec import SCALES

if TYPE_CHECKING:
    from mindgap.studies.spec import Study

StudyName = Annotated[str, typer.Argument(help="Name of a study ('mindgap list' shows them).", metavar="STUDY")]


def show(
    name: StudyName, runs: Annotated[Path, typer.Option(help="Folder of earlier runs, for the costs.")] = Path("runs")
) -> None:
    """Print everything a study is: claim, source, scales, methods, settings, figures, and what it has cost."""
    study = find(name)
    facts = [
        ("study", study.name),
        ("claim", study.claim),
        ("title", study.title),
        ("the paper states", study.statement),
        ("source", str(study.source)),
        ("scales", ", ".join(f"{s} ({study.scales[s].seeds} seeds a method)" for s in SCALES if s in study.scales)),
        ("figures", "; ".join(f.title for f in study.figures)),
        ("pass rule", " ".join((study.judge.__doc__ or "").split())),
    ]
    if study.tunable:
        space = ", ".join(f"{n} in [{low:g}, {high:g}]" for n, (low, high) in study.tunable.items())
        facts.append(("tuned on", f"{study.tune_on}: {space}, log scale, for every method alike"))
    table(("", study.name), facts)
    rows = []
    for scale in study.scales:
        for method in study.methods:
            settings = ", ".join(f"{k}={v}" for k, v in sorted(study.settings(scale, method).items()))
            rows.append((scale, method, settings, cost(study, scale, method, runs)))
    table(("scale", "method", "settings", "cost"), rows)


def cost(study: Study, scale: str, method: str, runs: Path) -> str:
    """What a run of a method has taken, and what all its seeds take, from the finished records of any settings."""
    taken = []
    for path in (runs / study.name / scale).glob("*.jsonl"):
        run = read_run(path)
        if run.done and run.end is not None and run.header.method == method:
            taken.append(run.end.wall if run.end.wall is not None else run.end.seconds)
    if not taken:
        return "unknown (no earlier run)"
    typical = statistics.median(taken)
    seeds = study.scales[scale].seeds
    return f"{_span(typical)} a run, {_span(typical * seeds)} for {seeds} seeds (median of {len(taken)})"


def tune(
    names: Names,
    scale: ScaleName = "quick",
    trials: Annotated[int, typer.Option(help="Trials of every method; no method can get more.")] = 20,
    seeds: Annotated[int, typer.Option(help="Tuning seeds each trial is averaged over.")] = 1,
    jobs: Annotated[int, typer.Option(help="Methods searched at the same time.")] = 1,
    out: Records = Path("runs"),
) -> None:
    """Search each method's settings with equal budgets, on validation data; 'mindgap run' uses what is chosen."""
    from mindgap.cli.interrupt import STATUS
    from mindgap.studies.tune import TUNING_FILE
    from mindgap.studies.tune import tune as search

    studies, overrides = wanted_studies(names, scale)
    for study in studies:
        try:
            with progress(f"tuning {study.name}", trials * len(study.methods)) as advance:
                found = search(
                    study, scale, out, trials=trials, seeds=seeds, overrides=overrides, jobs=jobs,
                    on_trial=lambda method, number, value: advance(f"{method}, trial {number}: {value:.4g}"),
                )  # fmt: skip
        except KeyboardInterrupt:
            print("interrupted: the trials made so far are kept; the same command goes on with them", flush=True)
            raise typer.Exit(STATUS) from None
        rows = [
            (
                study.name,
                method,
                len(made["trials"]),
                ", ".join(f"{k}={v:.4g}" for k, v in made["chosen"].items()),
                f"{made['value']:.4g}",
                f"{made['seconds']:.3g} s",
            )
            for method, made in found["methods"].items()
        ]
        table(("study", "method", "trials", "chosen", found["metric"], "cost"), rows)
        say(f"written to {out / study.name / scale / TUNING_FILE}; 'mindgap run' reads it")


def watch(
    runs: RunsFolder,
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path("page.html"),
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 5.0,
    rounds: Annotated[int, typer.Option(help="Stop after so many looks; 0: go on until Ctrl-C.")] = 0,
) -> None:
    """Draw the page again whenever records have changed; an open page reloads itself."""
    from mindgap.report import write_page

    positive("every", every)
    whole("rounds", rounds)
    seen: object = None
    number = 0
    try:
        while True:
            state = _state(runs)
            if state != seen and state:
                seen = state  # first: Ctrl-C may come while the page is drawn, and the last page must follow
                write_page(runs, out, refresh=every)
                print(f"{time.strftime('%H:%M:%S')} {out}: {len(state)} files", flush=True)
            number += 1
            if number == rounds:
                break
            time.sleep(every)
    except KeyboardInterrupt:
        pass
    if seen is not None:
        write_page(runs, out)  # the page that stays does not reload itself


def _state(runs: Path) -> list[tuple[str, int, int]]:
    """Every file of records with its size and date: what has to change before a page is drawn again."""
    files = [*runs.glob("*/*/*.jsonl"), *runs.glob("*/*/*.json")]
    return sorted((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files)


def compare(
    a: Annotated[Path, typer.Argument(help="Folder of records.", metavar="A")],
    b: Annotated[Path, typer.Argument(help="Another folder of records.", metavar="B")],
    level: Annotated[float, typer.Option(help="How often equal laws may be called different, per curve.")] = 0.001,
) -> None:
    """Compare two sets of records: verdicts that changed, curves that differ beyond seed noise (exit status 1)."""
    from mindgap.report.compare import compare as compare_folders

    found = compare_folders(a, b, level=level)
    table(
        ("study", "scale", "verdict in A", "verdict in B", ""),
        [(*v, "changed" if v[2] != v[3] else "same") for v in found.verdicts],
    )
    rows = [
        (
            d.study,
            d.scale,
            d.method,
            d.quantity,
            d.outcome,
            f"{d.where:.6g}",
            f"{d.a:.6g}",
            f"{d.b:.6g}",
            f"{d.error:.1f}",
        )
        for d in found.curves
        if d.outcome != "same"
    ]
    table(("study", "scale", "method", "quantity", "", "at", "mean in A", "mean in B", "standard errors"), rows)
    same = sum(1 for d in found.curves if d.outcome == "same")
    say(f"{same} of {len(found.curves)} curves are the same to rounding")
    for side, names in (("A", found.only_a), ("B", found.only_b)):
        for name in names:
            print(f"only in {side}\t{name}")
    if found.changed or found.differing:
        raise typer.Exit(1)
