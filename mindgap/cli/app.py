"""Every command by its name."""

from __future__ import annotations

from typing import Annotated

import typer

from mindgap.cli.examine import examine
from mindgap.cli.laboratory import compare, register, show, tune, watch
from mindgap.cli.measure import advise, measure
from mindgap.cli.new import new
from mindgap.cli.pages import check, methods, optimizers, report, theory
from mindgap.cli.recommend import recommend
from mindgap.cli.status import STATUS
from mindgap.cli.studies import demo, list_studies, run

app = typer.Typer(
    name="mindgap",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Find out why a PyTorch training run spikes, diverges or stalls; run the studies behind "
    "it.",
    epilog="Exit status: "
    + "; ".join(f"{number} {words}" for number, words in STATUS.items())
    + ".",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from mindgap import __version__

        print(f"mindgap {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    pass


app.command("list")(list_studies)
for command in (
    run,
    demo,
    show,
    register,
    tune,
    report,
    watch,
    compare,
    check,
    examine,
    measure,
    advise,
    recommend,
    optimizers,
    methods,
    theory,
    new,
):
    app.command(command.__name__)(command)
