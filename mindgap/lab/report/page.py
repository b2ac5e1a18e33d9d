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
from mindgap.lab.report.drawing import Drawing, about, draw, draw_tuning
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
from mindgap.lab.report.words import count, finding, signs
from mindgap.record.outcomes import GROUPS, KINDS, LENGTHS, SAID, SIGNS, Summary, one_per_study
from mindgap.record.store import slug, write_atomically

#: Points the whole page may hold; figures share them, so that a page of many studies stays small.
POINTS = 250_000

#: The order of verdicts in the table.
ORDER = ("error", "does not hold", "holds", "inconclusive", "not trained", "")


def write_page(
    runs: Path, out: Path, *, png: Path | None = None, refresh: float | None = None
) -> Path:
    """Write the report on a folder of records; the file appears whole or not at all.

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
        for drawing in (d for group in drawings for d in group if not d.empty):
            spec = picture(drawing)
            name = drawing.id.removeprefix("fig-")
            (png / f"{name}.png").write_bytes(figure_png(spec))
            (png / f"{name}.svg").write_text(figure_svg(spec), encoding="utf-8")
    return out


def draw_all(studies: Sequence[Loaded]) -> list[list[Drawing]]:
    """Every study's figures with their numbers, within the page's budget of points."""
    number = sum(
        max(1, len(s.description.axes)) if f.kind == "lines" else 1
        for s in studies
        for f in s.description.figures
    )
    budget = min(6000, max(300, POINTS // max(number, 1)))
    drawings = []
    for study, anchor in zip(studies, anchors(studies)):
        readings = [Readings(run) for run in study.runs]
        axes = dict(study.description.axes)
        accent = about(study.description.title, study.methods)
        figures = enumerate(study.description.figures, 1)
        group = [
            draw(f"fig-{anchor}-{n}", f, readings, study.methods, axes, budget, accent)
            for n, f in figures
        ]
        if study.tuning.methods:
            group.append(draw_tuning(f"fig-{anchor}-tuning", study.tuning, study.methods))
        drawings.append(group)
    return drawings


def anchors(studies: Sequence[Loaded]) -> list[str]:
    """A unique id for every study in the page."""
    taken: list[str] = []
    for study in studies:
        wanted = slug(f"{study.name}-{study.scale}").replace(".", "-")
        number = sum(1 for t in taken if t == wanted or t.startswith(f"{wanted}--"))
        taken.append(wanted if not number else f"{wanted}--{number + 1}")
    return taken


def render(
    studies: Sequence[Loaded],
    drawings: Sequence[Sequence[Drawing]],
    *,
    refresh: float | None = None,
) -> str:
    """The whole page as text."""
    shown = sections(studies, anchors(studies), drawings)
    for s in [each for best in shown for each in (best, *best.others)]:
        s.finding, s.sign = finding(s.name, s.about.title, s.word), SIGNS[s.word]
    counted = Summary(tuple(one_per_study((s.description, s.verdict, s.folder) for s in studies)))
    panels, without = strips(counted.outcomes)
    figures = [encode(d) for group in drawings for d in group if not d.empty]
    labels = {f"{c}{own:d}": log_labels(c, own=own) for c in "xy" for own in (False, True)}
    groups: dict[str, dict[str, list[Section]]] = {}
    for s in shown:
        letter = s.claim[:1] if s.claim[:1] in GROUPS else "·"
        groups.setdefault(letter, {}).setdefault(s.claim, []).append(s)
    papers = {s.paper: PAPERS.get(s.paper, s.paper) for s in shown if s.paper}
    return template("page.html").render(
        studies=shown,
        judged=sorted(shown, key=lambda s: ORDER.index(s.word)),
        summary=counted,
        contradicted=[s for s in shown if s.word == "does not hold"],
        panels=panels,
        without=[s for s in shown if s.name in {o.name for o in without}],
        anchor_of={s.name: s.anchor for s in shown},
        groups=[(key, {**GROUPS, "·": "others"}[key], found) for key, found in groups.items()],
        filters=filters(shown, papers),
        papers=list(papers.items()),
        labels=("Verdict", "Claim", "Finding", "Measured on", "Measured"),
        counts=count(len(shown), "study"),
        period=_period(studies),
        refresh=math.ceil(refresh) if refresh else None,
        css=asset("page.css"),
        js=asset("page.js"),
        bundle=Markup(_inert(_bundle())),
        data=packed_data({"statistics": list(STATISTICS), "labels": labels, "figures": figures}),
        **HELPERS,
    )


def filters(
    shown: Sequence[Section], papers: dict[str, str]
) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """What the table can be narrowed to: attribute of a row, label, (value, words) of the choices
    that occur.
    """
    verdicts = [(w, SAID[w]) for w in ORDER if any(s.word == w for s in shown)]
    kinds = [(k, words) for k, words in KINDS.items() if any(s.kind == k for s in shown)]
    lengths = [(words, words) for words in LENGTHS if any(s.length == words for s in shown)]
    all_of = (
        ("paper", "Paper", [(key, key) for key in papers]),
        ("verdict", "Verdict", verdicts),
        ("kind", "Measured on", kinds),
        ("length", "Length", lengths),
    )
    return [(name, label, choices) for name, label, choices in all_of if len(choices) > 1]


def packed_data(data: Any) -> str:
    """JSON, compressed and in letters that a script element may hold: a third of its size."""
    plain_text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return b64encode(gzip.compress(plain_text.encode("utf-8"), 9, mtime=0)).decode("ascii")


def _period(studies: Sequence[Loaded]) -> str:
    days = sorted(
        {run.header.started[:10] for study in studies for run in study.runs if run.header.started}
    )
    if not days:
        return ""
    return f"Runs of {days[0]}." if days[0] == days[-1] else f"Runs of {days[0]} to {days[-1]}."


def encode(drawing: Drawing) -> dict[str, Any]:
    """A figure as the page's script reads it: columns of numbers, methods and panels by number."""

    def columns(series: Series, names: Sequence[str]) -> dict[str, Any]:
        place = {"m": drawing.methods.index(series.method), "f": drawing.facets.index(series.facet)}
        seed = {} if series.seed is None else {"s": series.seed}
        ends = (
            {"ends": dict(zip(series.ends, short(np.array(list(series.ends.values())))))}
            if series.ends
            else {}
        )
        return {**place, **seed, **ends, **{n: short(series.columns[n]) for n in names}}

    names = ("x", "mean") if drawing.single and drawing.kind == "lines" else ("x", *STATISTICS)
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
        "colours": ["grey" if c is None else f"s{c}" for c in drawing.colours],
        "accent": [drawing.methods.index(m) for m in drawing.accent],
        "facets": list(drawing.facets),
        "names": [" ".join(name.split("\n")) for name in drawing.names],
        "shifts": drawing.shifts,
        "axes": [
            {
                "name": axis.name,
                "label": signs(axis.label),
                "alone": drawing.alone(axis),
                "series": [columns(s, names) for s in axis.series],
                "runs": [columns(s, ("x", "y")) for s in axis.runs],
            }
            for axis in drawing.axes
        ],
        "spec": specification(drawing, drawing.axes[0]),
        "rank": ranking(drawing) if drawing.ranked else None,
    }


def short(values: np.ndarray) -> list[float | int | None]:
    """Six significant digits are more than a screen shows; what is not finite becomes null.

    Example:
        >>> import numpy as np
        >>> short(np.array([1.0, 1 / 3, np.inf]))
        [1, 0.333333, None]
    """
    return [_six(v) if math.isfinite(v) else None for v in values.tolist()]


def _six(value: float) -> float | int:
    if value == int(value) and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.6g}")


def _inert(script: str) -> str:
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and the embedder as one script, out of the installed package: no network."""
    import vl_convert

    return str(vl_convert.javascript_bundle())  # type: ignore[call-arg, unused-ignore]  # its stub forgets the default
