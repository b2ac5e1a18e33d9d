"""``mindgap list``, ``run`` and ``demo``: find studies and carry them out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mindgap.base.check import fail, non_negative, one_of
from mindgap.cli.show import say, table
from mindgap.lab.studies.catalogue import broken, catalogue, find
from mindgap.lab.studies.spec import SCALES
from mindgap.record.schema import End, Header, Verdict

if TYPE_CHECKING:
    from mindgap.lab.studies.run import StudyPlan
    from mindgap.lab.studies.spec import Study
    from mindgap.lab.studies.sweep import Sweep

#: The studies of ``make demo``: the first of every chapter. The two on hyper-cleaning take half a minute together.
DEMO = (
    "e5-cycle",
    "e8-windows",
    "h1-gradient-noise",
    "e0-training-statistics",
    "h7-infinite-variance",
    "h10-rmsprop-is-clipping",
    "s5-clipping-is-normalising",
    "b10-tracking",
    "b3-hyper-cleaning",
    "b4-hyper-cleaning",
)


def list_studies() -> None:
    """List every study: its name, claim, scales and what the paper states."""
    rows = [(s.name, s.claim, ", ".join(s.scales), s.statement) for s in catalogue().values()]
    table(("study", "claim", "scales", "the paper states"), rows)
    for module, error in broken().items():
        print(f"{module} cannot be loaded: {error}", file=sys.stderr)


Names = Annotated[list[str], typer.Argument(help="Studies to run ('all' for every one), and key=value overrides.")]
ScaleName = Annotated[str, typer.Option(help=f"One of {', '.join(SCALES)}.")]
Records = Annotated[Path, typer.Option(help="Folder of records; what it holds already is not run again.")]


def run(
    names: Names,
    scale: ScaleName = "quick",
    seeds: Annotated[int | None, typer.Option(help="Seeds per method; by default the scale's own number.")] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Worker processes, one thread each (default: 1; on a cluster all it has).")
    ] = None,
    out: Records = Path("runs"),
    backend: Annotated[str, typer.Option(help="local (this machine), dask or ray (a running cluster).")] = "local",
    address: Annotated[str, typer.Option(help="Where the cluster is, such as tcp://host:8786 or host:6379.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Begin the named runs anew, saying what is overwritten.")
    ] = False,
    untuned: Annotated[bool, typer.Option("--untuned", help="Leave out what 'mindgap tune' has chosen.")] = False,
    checkpoint: Annotated[float, typer.Option(help="Seconds between the checkpoints of a long run.")] = 60.0,
    limit: Annotated[float, typer.Option(help="Seconds per run; one that takes longer fails. 0: no limit.")] = 21600.0,
    tensorboard: Annotated[Path | None, typer.Option(help="Also write TensorBoard files into this folder.")] = None,
) -> None:
    """Run studies and pronounce their verdicts. Running again does only what is missing."""
    from mindgap.lab.studies.run import plan
    from mindgap.lab.studies.sweep import Sweep
    from mindgap.lab.studies.tune import chosen

    wanted, overrides = wanted_studies(names, scale)
    non_negative("checkpoint", checkpoint)
    sweep = Sweep(jobs if jobs is not None or backend != "local" else 1, backend, address, limit)
    plans = []
    for study in wanted:
        tuned = {} if untuned else chosen(out, study, scale)
        if tuned:
            say(f"{study.name}: settings chosen by 'mindgap tune' are used (--untuned leaves them out)")
        plans.append(plan(study, scale, seeds=seeds, overrides=overrides, tuned=tuned))
    _carry_out(plans, out, sweep, force=force, every=checkpoint, tensorboard=tensorboard)


def wanted_studies(names: list[str], scale: str) -> tuple[list[Study], dict[str, str]]:
    """What a command line names: studies, and key=value overrides."""
    one_of("scale", scale, SCALES)
    wanted = [name for name in names if "=" not in name]
    if not wanted:
        fail("NAMES", "must name at least one study ('mindgap list' shows them)", names)
    overrides = _overrides([name for name in names if "=" in name])
    if wanted == ["all"]:
        return [study for study in catalogue().values() if scale in study.scales], overrides
    return [find(name) for name in wanted], overrides


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the records and the page.")] = Path("demo"),
    jobs: Annotated[int, typer.Option(help="Worker processes, one thread each.")] = 2,
) -> None:
    """Run the first studies at scale quick, show their verdicts and draw their page."""
    from mindgap.lab.report import write_page
    from mindgap.lab.studies.run import plan
    from mindgap.lab.studies.sweep import Sweep

    _carry_out([plan(find(name), "quick") for name in DEMO], out / "runs", Sweep(jobs))
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


def _carry_out(
    plans: list[StudyPlan],
    out: Path,
    sweep: Sweep,
    *,
    force: bool = False,
    every: float = 60.0,
    tensorboard: Path | None = None,
) -> None:
    from mindgap.cli.interrupt import how_to_go_on, last_words
    from mindgap.cli.live import looking_on
    from mindgap.lab.studies.run import forget, overwritten, run_all, verdict_of

    if force:
        old = overwritten(plans, out)
        for path in old:
            print(f"overwriting {path}", file=sys.stderr)
        forget(old)
    planned = sum(len(item.headers) for item in plans)
    say(f"{planned} runs planned, {planned - sum(len(item.missing(out)) for item in plans)} recorded already")
    failed: list[tuple[Header, End]] = []

    def on_end(header: Header, end: End) -> None:
        if end.outcome != "done":
            failed.append((header, end))

    def words() -> str:
        return how_to_go_on(planned - sum(len(item.missing(out)) for item in plans), planned)

    with last_words(words), looking_on(plans, out, tensorboard=tensorboard):
        run_all(plans, out, sweep=sweep, every=every, on_end=on_end)
    verdicts = [(item.study.claim, item.study.name, verdict_of(item, out)) for item in plans]
    print_verdicts(verdicts)
    for header, end in failed:
        print(f"failed: {header.study}, {header.method}, seed {header.seed}: {end.message}", file=sys.stderr)
    if failed or any(verdict.verdict == "error" for _, _, verdict in verdicts):
        raise typer.Exit(3)


def print_verdicts(verdicts: list[tuple[str, str, Verdict]]) -> None:
    """The verdict table on the terminal."""
    rows = [(claim, name, verdict.verdict, verdict.measured) for claim, name, verdict in verdicts]
    table(("claim", "study", "verdict", "measured"), rows)
