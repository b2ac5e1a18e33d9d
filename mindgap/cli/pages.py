"""``mindgap report`` and ``check``: what the records say. Neither imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mindgap.cli.show import point_to, say

RunsFolder = Annotated[Path, typer.Argument(help="Folder of records, as made by 'mindgap run --out'.", metavar="RUNS")]


def report(
    runs: RunsFolder,
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path("page.html"),
    png: Annotated[Path | None, typer.Option(help="Also write every figure as a PNG into this folder.")] = None,
) -> None:
    """Draw the page of a folder of records.

    It shows findings, verdicts, figures and settings, in one file that works offline.
    """
    from mindgap.lab.report import write_page

    say("drawing the page ...")
    point_to(write_page(runs, out, png=png), then=f"mindgap check {runs}")


def check(runs: RunsFolder) -> None:
    """Judge the records again.

    Exit status 1 unless every verdict is *holds*, 3 if one is an error.
    """
    from mindgap.cli.studies import print_verdicts
    from mindgap.lab.studies.run import judge_folder
    from mindgap.record.claims import claim_order
    from mindgap.record.store import study_folders

    verdicts = sorted((judge_folder(folder) for folder in study_folders(runs)), key=lambda v: claim_order(v[0], v[1]))
    print_verdicts(verdicts)
    words = {verdict.verdict for _, _, verdict in verdicts}
    if words != {"holds"}:
        raise typer.Exit(3 if "error" in words else 1)
