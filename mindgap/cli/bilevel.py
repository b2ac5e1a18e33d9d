"""``mindgap bilevel race``: which method suits a bilevel problem."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from mindgap.cli.interrupt import last_words, typed_again
from mindgap.cli.measure import load_function, your_code
from mindgap.cli.show import progress, say

bilevel = typer.Typer(
    name="bilevel", help="Race methods on a bilevel problem of yours.", rich_markup_mode=None
)


@bilevel.callback()
def group() -> None:
    """Race methods on a bilevel problem of yours."""


@bilevel.command("race")
def race(
    target: Annotated[
        str,
        typer.Argument(help="module:function that returns a BilevelProblem; it runs your code."),
    ],
    minutes: Annotated[float, typer.Option(help="Time for everything.")] = 10.0,
    calls: Annotated[
        int | None, typer.Option(help="Oracle calls of every run; default: what fits.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each method.")] = 3,
    method: Annotated[
        list[str] | None, typer.Option("--method", help="A method; repeat it for several.")
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path(
        "race.html"
    ),
) -> None:
    """Race methods with equal oracle budgets and equal tuning.

    It prints a table and code to paste, and writes a page.

    Pieces of the race are kept beside the page until it ends: after Ctrl-C the same command
    continues.
    """
    from mindgap.base.check import check_call
    from mindgap.bilevel.tools.checkpoint import check_path
    from mindgap.bilevel.tools.contest import race as race_of
    from mindgap.bilevel.tools.contest_page import write_contest_page

    check_path("--out", str(out))  # before the race, which takes minutes
    folder = out.with_suffix(".race")
    factory = load_function(target)
    check_call("TARGET", factory, "a function without arguments that returns a BilevelProblem")

    def words() -> str:
        """The end of an interrupted race: what is kept, and how to go on."""
        kept = len(list(folder.glob("*-*.piece"))) if folder.is_dir() else 0
        return (
            f"interrupted: finished pieces of the race, {kept}, are kept in {folder}.\n"
            f"To go on: {typed_again()}"
        )

    with last_words(words), progress("racing methods", 100) as told, your_code():
        found = race_of(
            factory(),
            method or None,
            minutes=minutes,
            calls=calls,
            seeds=seeds,
            folder=folder,
            told=told,
        )
    page = write_contest_page(found, out)
    shutil.rmtree(folder)
    print(found)
    print(f"\n{found.code}", end="")
    say(f"Open {page.resolve().as_uri()}")
