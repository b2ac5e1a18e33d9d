"""Every command by its name."""

from __future__ import annotations

import typer

from mindgap.cli import STATUS
from mindgap.cli.laboratory import compare, show, tune, watch
from mindgap.cli.measure import advise, measure
from mindgap.cli.pages import check, report
from mindgap.cli.recommend import recommend
from mindgap.cli.studies import demo, list_studies, run
from mindgap.cli.tables import methods, optimizers, theory

app = typer.Typer(
    name="mindgap",
    help="Find out why a PyTorch training run spikes, diverges or stalls; run the studies behind it.",
    epilog="Exit status: " + "; ".join(f"{number} {words}" for number, words in STATUS.items()) + ".",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("list")(list_studies)
for command in (
    run, demo, show, tune, report, watch, compare, check, measure, advise, recommend, optimizers, methods, theory,
):  # fmt: skip
    app.command(command.__name__)(command)
