"""``mindgap report``, ``check``, ``optimizers``, ``methods`` and ``theory``: what is there,
printed without torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mindgap.base.check import fail, one_of
from mindgap.cli.show import paragraph, point_to, say, table

RunsFolder = Annotated[
    Path, typer.Argument(help="Folder of records, as made by 'mindgap run --out'.", metavar="RUNS")
]


def report(
    runs: RunsFolder,
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path(
        "page.html"
    ),
    png: Annotated[
        Path | None, typer.Option(help="Also write every figure as a PNG into this folder.")
    ] = None,
) -> None:
    """Draw the page of a folder of records.

    It shows findings, verdicts, figures and settings, in one file that works offline.
    """
    from mindgap.lab.report import write_page

    say("drawing the page ...")
    point_to(write_page(runs, out, png=png), then=f"mindgap check {runs}")


def check(
    runs: RunsFolder,
    verbose: Annotated[
        bool,
        typer.Option("-v", "--verbose", help="Also the evidence, and every scale of a study."),
    ] = False,
) -> None:
    """Judge the records again.

    One line per study, at the scale that counts. Exit status 1 unless every verdict is *holds*, 3
    if one is an error.
    """
    from mindgap.cli.studies import print_verdicts
    from mindgap.lab.studies.run import judge_folder
    from mindgap.record.outcomes import study_folders, worth

    # One row (scale, claim, study, verdict) per folder.
    judged = [(folder.name, *judge_folder(folder)) for folder in study_folders(runs)]
    shown = judged
    if sys.stdout.isatty() and not verbose:
        # Of a study's scales the last in order of worth counts.
        by_worth = sorted(judged, key=lambda row: worth(row[0], row[3]))
        shown = list({row[2]: row for row in by_worth}.values())
    print_verdicts([row[1:] for row in shown], verbose=verbose)
    words = {verdict.verdict for *_, verdict in judged}
    if words != {"holds"}:
        raise typer.Exit(3 if "error" in words else 1)


Long = Annotated[bool, typer.Option("--long", help="Every column.")]


def _print(
    columns: Sequence[str], rows: Sequence[Sequence[object]], short: Sequence[int], long: bool
) -> None:
    """Print a table: all its columns into a pipe or with ``--long``, else only some.

    Args:
        short: numbers of the columns that fit a terminal.
        long: whether ``--long`` is given.
    """
    if long or not sys.stdout.isatty():
        table(columns, rows)
        return
    table([columns[i] for i in short], [[row[i] for i in short] for row in rows])
    say("--long prints every column")


def optimizers(long: Long = False) -> None:
    """List the optimizers with their place in the papers."""
    from mindgap.optim.table import OPTIMIZERS

    rows = [(o.class_name, o.source, o.statement, o.update) for o in OPTIMIZERS.values()]
    _print(("optimizer", "place", "what it does", "update"), rows, (0, 2), long)


def methods(long: Long = False) -> None:
    """List the bilevel methods: the sixteen of the SLIP paper first."""
    from mindgap.bilevel.registry import FURTHER, SIXTEEN

    columns = (
        "key",
        "method",
        "paper",
        "loop",
        "setting",
        "oracle complexity",
        "f",
        "g",
        "batch",
        "to choose",
    )
    for group in (SIXTEEN, FURTHER):
        rows = [
            (
                m.key,
                m.name,
                m.paper,
                m.loop,
                m.setting,
                m.complexity,
                m.upper,
                m.lower,
                m.batch,
                ", ".join(m.choices),
            )
            for m in group.values()
        ]
        _print(columns, rows, (0, 1, 5, 9), long)


def theory(
    action: Annotated[
        str, typer.Argument(help="'refute' to search for counterexamples.", metavar="[refute]")
    ] = "",
    theorem: Annotated[
        list[str] | None,
        typer.Argument(help="The statement to attack, such as 3.4.5 or Lemma 2."),
    ] = None,
    tries: Annotated[int, typer.Option(help="Most instances per family (refute).")] = 400,
    long: Long = False,
) -> None:
    """List the papers' theorems and errata, or try to refute one.

    'mindgap theory refute 3.4.5' searches families of functions and noises that meet the theorem's
    assumptions for the largest ratio of what is measured to the bound.
    """
    from mindgap.lab.theory.theorem import THEOREMS

    if action:
        one_of("action", action, ("refute",))
        if not theorem:
            fail("THEOREM", "must be named: mindgap theory refute THEOREM", theorem)
        _refute(" ".join(theorem), tries)
        return

    rows = [
        (
            t.place,
            t.statement,
            t.formula,
            t.checked_by,
            t.outcome,
            "; ".join(t.remarks if long else t.remark_kinds) or "none",
        )
        for t in THEOREMS
    ]
    if sys.stdout.isatty() and not long:
        # Two or three lines per statement: with its text they would be seven.
        outcomes = [(t.place, t.outcome + _errata_in_words(t.remark_kinds)) for t in THEOREMS]
        table(("place", "outcome"), outcomes)
        say("--long prints the statements and every other column")
        return
    table(("place", "statement", "formula", "checked by", "outcome", "errata"), rows)


def _errata_in_words(kinds: Sequence[str]) -> str:
    """What stands behind an outcome about the errata of a statement; empty where it has none."""
    return f"; errata: {'; '.join(kinds)}" if kinds else ""


def _refute(theorem: str, tries: int) -> None:
    """Search for a counterexample of every statement that a name stands for, and print what was
    found: the answer first, then the instance and its checks.

    Args:
        tries: instances per family of functions, at most.
    """
    from mindgap.lab.theory.refute import refute

    for outcome in refute(theorem, tries=tries):
        attack, counterexample = outcome.attack, outcome.best
        paragraph(f"{attack.place}, {attack.reading}: {outcome.words()}")
        if counterexample is not None:
            paragraph(f"- instance: {counterexample.words('stated')}")
        if counterexample is not None and outcome.refuted:
            paragraph(f"- certificate: {'; '.join(counterexample.assumptions)}")
