"""Every command by its name."""

from __future__ import annotations

from typing import Annotated

import typer

from mindgap.cli.bilevel import bilevel
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
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(is_given: bool) -> None:
    """Print the version and end, where the option is given."""
    if is_given:
        from mindgap import __version__

        print(f"mindgap {__version__}")
        raise typer.Exit


GUIDE = """\
mindgap: find out why a PyTorch training run spikes, diverges or stalls.

For your own training; my_training:problem builds model, loss and batches:
  mindgap examine my_training:problem    what is wrong; the cure, tried
  mindgap recommend my_training:problem  race optimizers, print code to paste
  mindgap measure my_training:problem    curvature, noise and tails, as a page
  mindgap advise survey.json             what such a survey means
  mindgap bilevel race my_module:problem race bilevel methods, print code

What there is:
  mindgap optimizers                     eight optimizers for any training loop
  mindgap methods                        27 methods for bilevel problems
  mindgap theory                         theorems and errata of the papers

Do the papers' claims hold?
  mindgap demo                           ten studies and a survey, 5 minutes
  mindgap list                           every study
  mindgap run H7                         run a study; running again continues
  mindgap report runs                    draw the page of what was run

mindgap COMMAND --help explains a command, mindgap --help lists all of them.
"""


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    # Runs before every command: ``--version`` has ended the program by now.
    if context.invoked_subcommand is None:
        print(GUIDE, end="")


for command in (
    examine,
    recommend,
    measure,
    advise,
    optimizers,
    methods,
    theory,
    demo,
    list_studies,
    run,
    report,
    check,
    show,
    watch,
    compare,
    tune,
    register,
    new,
):
    app.command("list" if command is list_studies else command.__name__)(command)
app.add_typer(bilevel, name="bilevel")
