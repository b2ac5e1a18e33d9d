"""``mindgap recommend``: which optimizer and which settings suit a training problem."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mindgap.cli.interrupt import last_words, typed_again
from mindgap.cli.measure import load_function, your_code
from mindgap.cli.show import paragraph, progress, say


def recommend(
    target: Annotated[
        str,
        typer.Argument(
            help="module:function that builds (objective, train[, valid]) afresh; it runs your "
            "code."
        ),
    ],
    minutes: Annotated[float, typer.Option(help="Time for everything.")] = 10.0,
    steps: Annotated[
        int | None, typer.Option(help="Steps of your training run; default: what fits.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Names starts and orders of batches.")] = 0,
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path(
        "recommendation.html"
    ),
) -> None:
    """Race optimizers on a training problem and name the best.

    It measures the problem first, and prints code to paste.

    Pieces of the race are kept beside the page until it ends: after Ctrl-C the same command
    continues.
    """
    from mindgap.advise.recommendation import recommend as answer_for
    from mindgap.lab.report.recommendation import write_recommendation_page

    folder = out.with_suffix(".race")
    factory = load_function(target)

    def words() -> str:
        """The end of an interrupted search: what is kept, and how to go on."""
        kept = len(list(folder.glob("*.piece"))) if folder.is_dir() else 0
        saved = f"{kept} finished pieces of the race are" if kept != 1 else "1 finished piece is"
        return f"interrupted: {saved} kept in {folder}.\nTo go on: {typed_again()}"

    bar = progress("racing optimizers (of 100 parts of the time)", 100)
    with last_words(words), bar as told, your_code():
        answer = answer_for(
            factory, minutes=minutes, steps=steps, seed=seed, folder=folder, told=told
        )
    numbers = answer.write(out.with_suffix(".json"))
    page = write_recommendation_page(numbers, out)
    # The race is over: its plan goes, and its answer lies beside the page.
    for name in ("plan.json", "recommendation.json"):
        (folder / name).unlink(missing_ok=True)
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
    paragraph(answer.sentence)
    if answer.code:
        print(f"\n{answer.code}")
    for line in (*answer.found, *answer.notes):
        paragraph(f"- {line}")
    say(f"Open {page.resolve().as_uri()}")
