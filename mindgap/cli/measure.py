"""``mindgap measure`` and ``advise``: what a training problem is like, and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent
from traceback import print_exc
from typing import Annotated, Any

import typer

from mindgap.base.check import RuleError, fail
from mindgap.cli.show import paragraph, progress, say, table
from mindgap.record.schema import RecordError


def measure(
    target: Annotated[
        str,
        typer.Argument(
            help="module:function, run as your own code; it returns ((model, loss), batches[, "
            "optimizer])."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("-o", "--out", help="The page to write; its numbers go beside it as JSON."),
    ] = Path("survey.html"),
    limit: Annotated[int, typer.Option(help="Minibatches used for the noise.")] = 512,
    seconds: Annotated[
        float,
        typer.Option(
            help="Aim to be done within this time, by taking fewer minibatches; 0: no limit."
        ),
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="Names all random numbers.")] = 0,
) -> None:
    """Measure a training problem once and write a page.

    Noise, tails, smoothness, curvature and stationarity, at the model's present weights.
    """
    from mindgap.lab.report.survey import write_survey_page

    if out.suffix == ".json":
        fail("--out", "must not end in .json: that file takes the numbers of the page", str(out))
    objective, batches, optimizer = load_target(target, seed)
    from mindgap.measure import survey
    from mindgap.measure.overview import PARTS

    with progress("measuring", len(PARTS)) as advance, your_code():
        found = survey(
            objective,
            batches,
            optimizer=optimizer,
            limit=limit,
            seconds=seconds or None,
            seed=seed,
            finished=advance,
        )
    shown = [f for f in found.findings if not (sys.stdout.isatty() and _is_evidence(f.quantity))]
    table(("quantity", "in words"), [(f.quantity, f.sentence) for f in shown])
    more = len(found.findings) - len(shown)
    numbers = found.write(out.with_suffix(".json"))
    page = write_survey_page(numbers, out)
    say(
        f"Open {page.resolve().as_uri()}{f' for {more} more lines' if more else ''}\n"
        f"Next: mindgap advise {numbers}"
    )


def _is_evidence(quantity: str) -> bool:
    """Whether a line stands behind another one of the survey, so that a screen of 24 lines does
    without it.
    """
    return quantity in ("settling", "variance", "local smoothness") or quantity.startswith("tail")


@contextmanager
def your_code() -> Iterator[None]:
    """Show an error of the user's code with its own traceback, and end with status 3.

    An error that mindgap's own code raised goes on: it is a defect of mindgap.
    """
    try:
        yield
    except (RuleError, OSError, RecordError, typer.Exit):
        raise
    except SystemExit as error:  # a script without a guard, or an argparse that read our arguments
        print(f"mindgap: error: your code called sys.exit({error.code!r})", file=sys.stderr)
        raise typer.Exit(3) from None
    except Exception as error:
        frame = error.__traceback__  # followed to where the error was raised
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        raised_in = "" if frame is None else str(frame.tb_frame.f_globals.get("__name__", ""))
        if raised_in.partition(".")[0] == "mindgap":
            raise
        print_exc()
        raise typer.Exit(3) from None


def load_function(target: str) -> Any:
    """Import the user's module and return the function that ``module:function`` names. An error in
    the module ends the program with its traceback; a wrong name is an error of the command line.

    The working folder stays importable, because the function and its data loaders may import their
    neighbours late.
    """
    module, _, name = target.partition(":")
    if not module or not name:
        fail("TARGET", "must have the form module:function", target)
    if "/" in module or module.endswith(".py"):
        rule = "must name the module as in an import, without folder and .py"
        fail("TARGET", f"{rule}, such as {Path(module).stem}:{name}", target)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    # A name that an import inside the user's module cannot find is the user's error, not a wrong
    # TARGET.
    with your_code():  # this imports the packages around it
        try:
            is_found = not module.startswith(".") and find_spec(module) is not None
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                raise
            is_found = False
    if not is_found:
        fail("TARGET", "must name a module that can be imported", target)
    with your_code():
        loaded = import_module(module)
    function = getattr(loaded, name, None)
    if not callable(function):
        fail("TARGET", f"must name a function of {module}", target)
    return function


def load_target(target: str, seed: int) -> tuple[Any, Any, Any]:
    """Call ``module:function``: the objective, the batches, and the optimizer or None.

    What ``mindgap recommend`` takes works too; its validation batches are not used.
    """
    from torch.optim import Optimizer

    from mindgap.advise.training import call_factory, problem_parts

    function = load_function(target)
    with your_code():
        result = call_factory(function, seed)
    objective, batches, third = problem_parts("TARGET", result)
    return objective, batches, third if isinstance(third, Optimizer) else None


def advise(
    survey: Annotated[Path, typer.Argument(help="The JSON file that 'mindgap measure' wrote.")],
) -> None:
    """Say which of the textbook's assumptions fails, and what helps."""
    from mindgap.advise import diagnose, prescribe
    from mindgap.advise.prescription import summary
    from mindgap.record.survey import read_survey

    judged = diagnose(read_survey(survey))
    paragraph(summary(judged) if judged else "nothing was judged: the survey has no verdict")
    table(
        ("assumption", "verdict", "evidence"),
        [(item.assumption, item.verdict, item.evidence) for item in judged],
    )
    for advice in prescribe(judged):
        # Not in a table: a terminal would cut the code off.
        print()
        paragraph(f"{advice.action} ({advice.source})")
        print(indent(advice.code, "    "))
