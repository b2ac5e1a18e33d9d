"""The command ``mindgap``: speaks to the person. One file a group of commands.

Bad input ends with one line that names the argument, the rule and the value, and exit status 2. Commands that need
no torch do not import it.
"""

from __future__ import annotations

import sys

import typer

from mindgap.base.check import RuleError
from mindgap.cli.laboratory import compare, show, tune, watch
from mindgap.cli.measure import advise, measure
from mindgap.cli.pages import check, report
from mindgap.cli.studies import demo, list_studies, run
from mindgap.cli.tables import methods, optimizers, theory
from mindgap.record.schema import RecordError

app = typer.Typer(
    name="mindgap",
    help="Optimization where the textbook's assumptions fail: studies, instruments, methods.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("list")(list_studies)
app.command("run")(run)
app.command("demo")(demo)
app.command("show")(show)
app.command("tune")(tune)
app.command("report")(report)
app.command("watch")(watch)
app.command("compare")(compare)
app.command("check")(check)
app.command("measure")(measure)
app.command("advise")(advise)
app.command("optimizers")(optimizers)
app.command("methods")(methods)
app.command("theory")(theory)


def main() -> None:
    """Entry point of the ``mindgap`` command."""
    try:
        app()
    except (RuleError, RecordError) as error:
        print(f"mindgap: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # `mindgap list | head`
        sys.stderr.close()
        raise SystemExit(0) from None
