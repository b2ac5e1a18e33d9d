"""Records made up to try the page: every kind of figure, awkward names, a failed, an unfinished
and a damaged run.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from mindgap.lab.studies.spec import AXES
from mindgap.record.forms import Figure, StudyDescription, write_form
from mindgap.record.schema import End, Header, Verdict, line
from mindgap.record.store import STUDY_FILE, VERDICT_FILE, RunWriter, run_file

#: Texts that a careless page would run, cut off or garble.
NASTY = (
    "<script>window.ran = 1</script>",
    "\"double\" & 'single'",
    "Ångström–漢字 ∇f ✓",
    "</script><b>x",
)

USUAL = {"verdict": "holds", "measured": "the loss falls", "numbers": {}}


def figure(title: str, y: str, **more: Any) -> Figure:
    return Figure(title, y, **{"y_label": y, **more})


def write_study(
    runs: Path,
    name: str = "a-study",
    *,
    methods: tuple[str, ...] = ("SGD", "GClip"),
    seeds: int = 3,
    rows: int = 40,
    figures: tuple[Figure, ...] | None = None,
    verdict: dict[str, Any] | None = None,
    title: str = "A study",
) -> Path:
    """A study's folder: method number m falls like exp(-(m+1) step/rows), with noise by seed."""
    folder = runs / name / "quick"
    folder.mkdir(parents=True)
    shown = figures or (
        figure(
            "Loss", "loss", log_y=True, hlines={"the optimum": 0.01}, caption="What to look at."
        ),
        figure("Norm", "norm", x="oracle_calls"),
    )
    about = StudyDescription(
        name,
        "quick",
        "S1",
        title,
        "What the paper states.",
        "thesis, Theorem 1",
        methods=methods,
        figures=tuple(shown),
        axes=AXES,
    )
    headers = []
    for place, method in enumerate(methods):
        for seed in range(seeds):
            settings = {"lr": 0.1 * (place + 1), "steps": rows, "part": place % 2}
            header = Header(
                name,
                "S1",
                "quick",
                method,
                seed,
                settings,
                versions={"mindgap": "0", "torch": "2"},
                machine={"system": "Linux", "cores": 2},
                command=f"mindgap run {name} --seeds {seeds}",
                started="2026-01-02T03:04:05+00:00",
            )
            headers.append(header)
            rng = random.Random(f"{method}{seed}")
            with RunWriter(folder, header) as writer:
                for step in range(rows):
                    loss = math.exp(-(place + 1) * 5 * step / rows) * rng.uniform(0.7, 1.3)
                    writer.row(
                        {
                            "step": step,
                            "x_epoch": step / 10,
                            "y_epoch": step / 5,
                            "oracle_calls": 3 * step * (place + 1),
                            "seconds": round(step * rng.uniform(0.9, 1.1) / 100, 6),
                            "loss": loss,
                            "norm": rng.gauss(place, 1),
                            "half": step % 2,
                        }
                    )
                writer.end(End("done", rows / 100))
    write_form(folder / STUDY_FILE, about)
    files = tuple(run_file(folder, header).name for header in headers)
    write_form(folder / VERDICT_FILE, Verdict(**(verdict or USUAL), files=files, seeds=seeds))
    return folder


def write_everything(runs: Path) -> None:
    """One study for every thing a page must cope with."""
    write_study(runs, "s1-plain")
    write_study(
        runs,
        "s2-kinds",
        figures=(
            figure("A scatter", "norm", x="loss", x_label="loss", kind="points", log_x=True),
            figure("A path", "norm", x="loss", x_label="loss", kind="path"),
            figure("Panels by method", "norm", facet="method"),
            figure("Panels by setting", "loss", facet="part", log_y=True),
            figure("Panels by column", "loss", facet="half"),
            figure("Nothing recorded", "no_such_column"),
        ),
        verdict={"verdict": "does not hold", "measured": "no", "numbers": {}},
    )
    write_study(
        runs,
        "s3-names",
        methods=NASTY,
        title=NASTY[0],
        figures=(figure(NASTY[0], "loss", y_label=NASTY[1], caption=NASTY[3], facet=""),),
        verdict={"verdict": "inconclusive", "measured": NASTY[1], "numbers": {}},
    )
    write_study(runs, "s4-single", seeds=1, methods=tuple(f"method {i}" for i in range(11)))
    broken = write_study(runs, "s5-broken")
    for path, text in zip(sorted(broken.glob("*.jsonl")), ("failed", "unfinished", "damaged")):
        lines = path.read_text().splitlines()
        if text == "failed":
            ending = line("end", End("failed", 1.0, "ValueError: lr <b>burst</b>"))
            path.write_text("\n".join([*lines[:10], ending]) + "\n")
        elif text == "unfinished":
            path.write_text("\n".join(lines[:20]) + "\n" + lines[21][:7])
        else:
            path.write_text("\n".join([*lines[:5], "{oops", *lines[6:]]) + "\n")
    for number in range(6, 9):
        write_study(runs, f"s{number}-more", rows=5, seeds=5, figures=(figure("Loss", "loss"),))
