"""``mindgap examine``: what is wrong with a training run, and the cure, tried on a copy."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mindgap.base.check import fail
from mindgap.cli.measure import load_function
from mindgap.cli.show import paragraph, progress, say
from mindgap.record.store import write_atomically

if TYPE_CHECKING:
    from mindgap.advise import Examination


def examine(
    target: Annotated[
        str,
        typer.Argument(
            help="module:function, run as your own code; it returns ((model, loss), batches), and "
            "behind them what you have of validation batches, optimizer, scheduler, step function."
        ),
    ],
    seconds: Annotated[float, typer.Option(help="Aim to be done within this time.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Names all random numbers.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="A page (.html) or the numbers (.json) to write."),
    ] = None,
) -> None:
    """Find out what is wrong with a training run, and try the cure.

    It trains for a short time as you do, names the likeliest cause, tries the cure on a copy, and
    says so in one sentence.
    """
    from mindgap.advise import examine as answer_for
    from mindgap.advise.doctor.page import page

    if out is not None and out.suffix not in (".html", ".json"):
        fail("--out", "must end in .html or .json", str(out))
    factory = load_function(target)
    with progress("examining (of 100 parts of the time)", 100) as advance:
        answer = answer_for(factory, seconds=seconds, seed=seed, told=advance)
    for line in screen(answer):
        if line and not line.startswith(("    ", "as it", "cured")):
            paragraph(line)
        else:  # code and curves keep their columns
            print(line)
    if out is not None:
        if out.suffix == ".json":
            answer.write(out)
        else:
            write_atomically(out, page(answer))
        say(f"Open {out.resolve().as_uri()}")
    if answer.facts.get("raised"):
        raise typer.Exit(3)


#: Lines of a screen of 24 that the answer may fill: one is the command's, one the prompt's, and one
#: says where the page is.
HEIGHT = 21


def screen(answer: Examination) -> list[str]:
    """The lines of the answer: at most one screen of 80 × 24. Where they would be more, what is
    least needed goes first: the other causes, then the third finding.
    """
    for findings, other_causes in ((3, True), (3, False), (2, False)):
        lines = _lines(answer, findings, other_causes)
        if sum(max(1, len(textwrap.wrap(line, 80))) for line in lines) <= HEIGHT:
            break
    return lines


def _lines(answer: Examination, findings: int, other_causes: bool) -> list[str]:
    """The lines of an answer: sentence, curves, findings, other causes and code.

    Args:
        findings: how many of them, at most.
        other_causes: whether these are listed.
    """
    from mindgap.advise.doctor.page import sparkline

    lines = [answer.sentence]
    trial = answer.trial
    if trial is not None and trial.helps and answer.curve:
        finite = [v for v in (*answer.curve, *trial.curve) if math.isfinite(v)]
        # The curves' upper end is their 0.95 quantile, so that a spike does not flatten the rest.
        largest = sorted(finite)[int(0.95 * (len(finite) - 1))] if finite else 1.0
        least = min(finite, default=0.0)
        lines += [
            "",
            f"as it is   {sparkline(answer.curve, least, largest)}",
            f"cured      {sparkline(trial.curve, least, largest)}",
        ]
    if answer.findings:
        lines += ["", *(f"- {line}" for line in answer.findings[:findings])]
    if answer.alternatives and other_causes:
        lines += ["", f"{answer.other}: {'; '.join(answer.alternatives)}."]
    if answer.code:
        lines += ["", *(f"    {line}" for line in answer.code.splitlines())]
    if answer.shortened:
        lines += ["", answer.shortened]
    return lines
