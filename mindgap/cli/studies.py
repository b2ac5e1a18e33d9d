"""``mindgap list``, ``run`` and ``demo``: find studies and carry them out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mindgap.base.check import fail, one_of
from mindgap.cli.show import progress, say, table
from mindgap.record.schema import End, Header, Verdict
from mindgap.studies.catalogue import catalogue, find
from mindgap.studies.spec import SCALES

if TYPE_CHECKING:
    from mindgap.studies.run import Plan

#: The studies of ``make demo``: the first of every chapter, each a matter of seconds.
DEMO = ("e5-cycle", "e8-windows", "h7-infinite-variance", "h10-rmsprop-is-clipping", "s5-clipping-is-normalising")


def list_studies() -> None:
    """List every study: its name, claim, scales and what the paper states."""
    rows = [(s.name, s.claim, ", ".join(s.scales), s.statement) for s in catalogue().values()]
    table(("study", "claim", "scales", "the paper states"), rows)


def run(
    names: Annotated[list[str], typer.Argument(help="Studies to run ('all' for every one), and key=value overrides.")],
    scale: Annotated[str, typer.Option(help=f"One of {', '.join(SCALES)}.")] = "quick",
    seeds: Annotated[int | None, typer.Option(help="Seeds per method; by default the scale's own number.")] = None,
    jobs: Annotated[int, typer.Option(help="Worker processes, one thread each.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of records; what it holds already is not run again.")] = Path(
        "runs"
    ),
) -> None:
    """Run studies and pronounce their verdicts. Running again does only what is missing."""
    from mindgap.studies.run import plan

    one_of("scale", scale, SCALES)
    overrides = _overrides([name for name in names if "=" in name])
    wanted = [name for name in names if "=" not in name]
    if not wanted:
        fail("NAMES", "must name at least one study ('mindgap list' shows them)", names)
    if wanted == ["all"]:
        studies = [study for study in catalogue().values() if scale in study.scales]
    else:
        studies = [find(name) for name in wanted]
    _carry_out([plan(study, scale, seeds=seeds, overrides=overrides) for study in studies], out, jobs)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the records and the page.")] = Path("demo"),
    jobs: Annotated[int, typer.Option(help="Worker processes, one thread each.")] = 2,
) -> None:
    """Run the first studies at scale quick, show their verdicts and draw their page."""
    from mindgap.report import write_page
    from mindgap.studies.run import plan

    _carry_out([plan(find(name), "quick") for name in DEMO], out / "runs", jobs)
    page = write_page(out / "runs", out / "index.html")
    print(f"\nThe page with all figures: {page}\nOpen it in a browser; it works offline.")


def _overrides(items: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in items:
        key, _, value = item.partition("=")
        if not key or not value:
            fail("override", "must have the form key=value", item)
        found[key] = value
    return found


def _carry_out(plans: list[Plan], out: Path, jobs: int) -> None:
    from mindgap.studies.run import run_all, verdict_of

    planned = sum(len(item.headers) for item in plans)
    missing = sum(len(item.missing(out)) for item in plans)
    say(f"{planned} runs planned, {planned - missing} recorded already")
    failed: list[tuple[Header, End]] = []
    with progress("running", missing) as advance:

        def on_end(header: Header, end: End) -> None:
            advance(f"{header.study}: {header.method}, seed {header.seed}")
            if end.outcome != "done":
                failed.append((header, end))

        run_all(plans, out, jobs=jobs, on_end=on_end)
    print_verdicts([(item.study.claim, item.study.name, verdict_of(item, out)) for item in plans])
    for header, end in failed:
        print(f"failed: {header.study}, {header.method}, seed {header.seed}: {end.message}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def print_verdicts(verdicts: list[tuple[str, str, Verdict]]) -> None:
    """The verdict table on the terminal."""
    rows = [(claim, name, verdict.verdict, verdict.measured) for claim, name, verdict in verdicts]
    table(("claim", "study", "verdict", "measured"), rows)
