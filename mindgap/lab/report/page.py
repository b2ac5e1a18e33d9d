"""The page: one HTML file with everything inside, which works offline from a file:// address."""

from __future__ import annotations

import gzip
import json
import math
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from mindgap.base.source import PAPERS
from mindgap.lab.report.aggregate import STATISTICS, Readings, Series
from mindgap.lab.report.drawing import Drawing, draw, draw_tuning, methods_named
from mindgap.lab.report.figure import (
    figure_png,
    figure_svg,
    log_labels,
    picture,
    ranking,
    specification,
)
from mindgap.lab.report.headline import headline
from mindgap.lab.report.load import Loaded, load
from mindgap.lab.report.pieces import HELPERS, Section, sections
from mindgap.lab.report.strip import strips
from mindgap.lab.report.templates import asset, template
from mindgap.lab.report.words import count, signs
from mindgap.record.outcomes import GROUPS, KINDS, LENGTHS, SAID, Summary, one_per_study
from mindgap.record.schema import grouped
from mindgap.record.store import slug, write_atomically

#: Points the whole page may hold; figures share them, so that a page of many studies stays small.
POINTS = 250_000

#: The order of verdicts in the table.
ORDER = ("error", "does not hold", "holds", "inconclusive", "not trained", "")


def write_page(
    runs: Path, out: Path, *, png: Path | None = None, refresh: float | None = None
) -> Path:
    """Write the report on a folder of records; an interrupted call leaves no half-written file.

    Args:
        png: folder for a PNG and an SVG of every figure, drawn from the same specifications;
            ``None``: none.
        refresh: seconds after which an open page loads itself again (``mindgap watch``); ``None``:
            never.
    """
    studies = load(Path(runs))
    drawings = draw_all(studies)
    out = Path(out)
    write_atomically(out, render(studies, drawings, refresh=refresh))
    if png is not None:
        png.mkdir(parents=True, exist_ok=True)
        for drawing in (drawing for group in drawings for drawing in group if not drawing.empty):
            spec = picture(drawing)
            name = drawing.id.removeprefix("fig-")
            (png / f"{name}.png").write_bytes(figure_png(spec))
            (png / f"{name}.svg").write_text(figure_svg(spec), encoding="utf-8")
    return out


def draw_all(studies: Sequence[Loaded]) -> list[list[Drawing]]:
    """Every study's figures with their numbers, one list per study, within the page's budget of
    points. The figure of a study's tuning, where there is one, comes last.
    """
    # A figure of lines is stored once per x-axis on offer.
    copies = sum(
        max(1, len(study.description.axes)) if figure.kind == "lines" else 1
        for study in studies
        for figure in study.description.figures
    )
    # Points per figure: with fewer than 300 it has no shape, and 6000 look as good as more.
    budget = min(6000, max(300, POINTS // max(copies, 1)))
    drawings = []
    for study, anchor in zip(studies, anchors(studies)):
        readings = [Readings(run) for run in study.runs]
        about, methods = study.description, study.methods
        accent = methods_named(about.title, methods)
        of_study = [
            draw(f"fig-{anchor}-{n}", figure, readings, methods, dict(about.axes), budget, accent)
            for n, figure in enumerate(about.figures, 1)
        ]
        if study.tuning.methods:
            of_study.append(draw_tuning(f"fig-{anchor}-tuning", study.tuning, methods))
        drawings.append(of_study)
    return drawings


def anchors(studies: Sequence[Loaded]) -> list[str]:
    """A unique id in the page for every study, in their order; a second study of the same name and
    scale gets ``--2`` behind it.
    """
    ids: list[str] = []
    for study in studies:
        base = slug(f"{study.name}-{study.scale}").replace(".", "-")
        # How many studies before it have this name and scale.
        earlier = sum(1 for other in ids if other == base or other.startswith(f"{base}--"))
        ids.append(f"{base}--{earlier + 1}" if earlier else base)
    return ids


def render(
    studies: Sequence[Loaded],
    drawings: Sequence[Sequence[Drawing]],
    *,
    refresh: float | None = None,
) -> str:
    """The whole page as text.

    Args:
        drawings: the figures of each study.
        refresh: seconds after which an open page loads itself again; None: never.
    """
    page_sections = sections(studies, anchors(studies), drawings)
    summary = Summary(
        tuple(one_per_study((study.description, study.verdict, study.folder) for study in studies))
    )
    # ``panels`` of effects, and the outcomes that have none.
    panels, without_effect = strips(summary.outcomes)
    names_without = {outcome.name for outcome in without_effect}
    papers = {  # short name -> title
        section.paper: PAPERS.get(section.paper, section.paper)
        for section in page_sections
        if section.paper
    }
    data = {  # what the page's script draws from
        "statistics": list(STATISTICS),
        "labels": {  # "x0": of a common x-axis, "x1": of a panel's own
            f"{channel}{own:d}": log_labels(channel, own=own)
            for channel in "xy"
            for own in (False, True)
        },
        "figures": [encode(figure) for group in drawings for figure in group if not figure.empty],
    }
    return template("page.html").render(
        studies=page_sections,
        judged=sorted(page_sections, key=lambda section: ORDER.index(section.word)),
        summary=summary,
        contradicted=[section for section in page_sections if section.word == "does not hold"],
        panels=panels,
        without=[section for section in page_sections if section.name in names_without],
        anchor_of={section.name: section.anchor for section in page_sections},
        groups=_groups(page_sections),
        filters=filters(page_sections, papers),
        papers=list(papers.items()),
        labels=("Verdict", "Claim", "Finding", "Measured on", "Measured"),
        counts=count(len(page_sections), "study"),
        period=_period(studies),
        refresh=math.ceil(refresh) if refresh else None,
        css=asset("page.css"),
        js=asset("page.js"),
        bundle=Markup(_bundle()),
        data=packed_data(data),
        **HELPERS,
    )


def _groups(
    page_sections: Sequence[Section],
) -> list[tuple[str, str, dict[str, list[Section]]]]:
    """Letter, title and (claim -> sections) of every group of claims, in order of appearance; the
    claims of no group come under the letter "·".
    """
    titles = {**GROUPS, "·": "others"}
    groups = grouped(
        (section.claim[:1] if section.claim[:1] in GROUPS else "·", section)
        for section in page_sections
    )
    return [
        (letter, titles[letter], grouped((section.claim, section) for section in group))
        for letter, group in groups.items()
    ]


def filters(
    page_sections: Sequence[Section], papers: dict[str, str]
) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """What the table of verdicts can be narrowed to, without attributes that are the same for all.

    Args:
        papers: key -> title.

    Returns:
        Attribute of a row, label, and (value, words) of the choices that occur.
    """
    verdicts, kinds, lengths = (
        {getattr(section, name) for section in page_sections} for name in ("word", "kind", "length")
    )
    candidates = (
        ("paper", "Paper", [(key, key) for key in papers]),
        ("verdict", "Verdict", [(word, SAID[word]) for word in ORDER if word in verdicts]),
        ("kind", "Measured on", [(kind, KINDS[kind]) for kind in KINDS if kind in kinds]),
        ("length", "Length", [(words, words) for words in LENGTHS if words in lengths]),
    )
    return [(name, label, choices) for name, label, choices in candidates if len(choices) > 1]


def packed_data(data: Any) -> str:
    """JSON, compressed and in letters that a script element may hold: a third of its size."""
    plain_text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return b64encode(gzip.compress(plain_text.encode("utf-8"), 9, mtime=0)).decode("ascii")


def _period(studies: Sequence[Loaded]) -> str:
    """A sentence with the days of the first and of the last run; empty without runs."""
    days = sorted(
        {run.header.started[:10] for study in studies for run in study.runs if run.header.started}
    )
    if not days:
        return ""
    return f"Runs of {days[0]}." if days[0] == days[-1] else f"Runs of {days[0]} to {days[-1]}."


def encode(drawing: Drawing) -> dict[str, Any]:
    """A figure as the page's script reads it: words, columns of numbers with six digits, methods
    and panels by number, and the Vega-Lite specification to fill.

    ``rank`` is the specification of the ranking, with its numbers, or None. An axis's ``alone``
    names the channels on which each panel has an axis of its own.
    """

    def encoded(series: Series, names: Sequence[str]) -> dict[str, Any]:
        """A series by the keys of the script: numbers of the method ``m`` and of the panel ``f``,
        the seed ``s`` and statistics of the last values ``ends`` if it has them, and the columns of
        these ``names``.
        """
        keys: dict[str, Any] = {
            "m": drawing.methods.index(series.method),
            "f": drawing.facets.index(series.facet),
        }
        if series.seed is not None:
            keys["s"] = series.seed
        if series.ends:
            keys["ends"] = dict(zip(series.ends, six_digits(np.array(list(series.ends.values())))))
        return keys | {name: six_digits(series.columns[name]) for name in names}

    # The columns that are stored: without a band the mean alone, for other kinds than lines y.
    names = ("x", "mean") if drawing.has_no_band else ("x", *STATISTICS)
    if drawing.kind != "lines":
        names = ("x", "y")
    figure = drawing.figure
    return {
        "id": drawing.id,
        "kind": drawing.kind,
        "title": figure.title,
        "headline": headline(drawing),
        "yLabel": signs(figure.y_label),
        "logX": figure.log_x,
        "logY": figure.log_y,
        "statistic": drawing.statistic,
        "methods": list(drawing.methods),
        "colours": ["grey" if colour is None else f"s{colour}" for colour in drawing.colours],
        "accent": [drawing.methods.index(method) for method in drawing.accent],
        "facets": list(drawing.facets),
        "names": [" ".join(name.split("\n")) for name in drawing.names],
        "shifts": drawing.shifts,
        "axes": [
            {
                "name": axis.name,
                "label": signs(axis.label),
                "alone": drawing.independent_axes(axis),
                "series": [encoded(series, names) for series in axis.series],
                "runs": [encoded(run, ("x", "y")) for run in axis.runs],
            }
            for axis in drawing.axes
        ],
        # Without rows: the script fills them in.
        "spec": specification(drawing, drawing.axes[0]),
        "rank": ranking(drawing) if drawing.ranked else None,
    }


def six_digits(values: np.ndarray) -> list[float | int | None]:
    """Numbers with six significant digits, more than a screen shows; whole ones as integers, and
    None where a number is not finite.

    Example:
        >>> import numpy as np
        >>> six_digits(np.array([1.0, 1 / 3, np.inf]))
        [1, 0.333333, None]
    """
    numbers: list[float | int | None] = []
    for value in values.tolist():
        if not math.isfinite(value):
            numbers.append(None)
        elif value == int(value) and abs(value) < 1e15:  # beyond, all its digits are too long
            numbers.append(int(value))
        else:
            numbers.append(float(f"{value:.6g}"))
    return numbers


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and the embedder as one script, out of the installed package (no network),
    without the two sequences that would end or hide a ``<script>`` element.
    """
    import vl_convert

    script = str(vl_convert.javascript_bundle())  # type: ignore[call-arg, unused-ignore]  # its stub forgets the default
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
