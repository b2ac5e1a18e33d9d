"""The page: one HTML file with everything inside, which works offline from a file:// address."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from mindgap.lab.report.aggregate import STATISTICS, Readings, Series
from mindgap.lab.report.figure import Drawing, draw, draw_tuning, figure_png, figure_svg, picture, specification
from mindgap.lab.report.load import Loaded, load
from mindgap.lab.report.pieces import behind, failures, figure_card, mark, text, tuning, verdict_table
from mindgap.record.store import slug, write_atomically

#: Points the whole page may hold; figures share them, so that a page of many studies stays small.
POINTS = 250_000


def write_page(runs: Path, out: Path, *, png: Path | None = None, refresh: float | None = None) -> Path:
    """Write the report on a folder of records; the file appears whole or not at all.

    Args:
        runs: folder written by ``mindgap run``.
        out: the HTML file to write.
        png: folder for a PNG and an SVG of every figure, drawn from the same specifications; ``None``: none.
        refresh: seconds after which an open page loads itself again (``mindgap watch``); ``None``: never.

    Returns:
        The path of the page.

    Raises:
        RecordError: when ``runs`` holds no records.
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
    count = sum(
        max(1, len(s.description.axes)) if f.kind == "lines" else 1
        for s in studies
        for f in s.description.figures
    )
    budget = min(6000, max(300, POINTS // max(count, 1)))
    drawings = []
    for study, anchor in zip(studies, anchors(studies)):
        readings = [Readings(run) for run in study.runs]
        axes = dict(study.description.axes)
        figures = enumerate(study.description.figures, 1)
        group = [draw(f"fig-{anchor}-{n}", f, readings, study.methods, axes, budget) for n, f in figures]
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


def render(studies: Sequence[Loaded], drawings: Sequence[Sequence[Drawing]], *, refresh: float | None = None) -> str:
    """The whole page as text."""
    names = anchors(studies)
    figures = [encode(d) for group in drawings for d in group if not d.empty]
    data = {"statistics": list(STATISTICS), "figures": figures}
    sections = "".join(_section(s, a, g) for s, a, g in zip(studies, names, drawings))
    search = (
        '<p id="search" hidden><label>Search <input type="search"></label> <span id="found" role="status"></span></p>'
        if len(studies) > 6
        else ""
    )
    theme = (
        '<p id="theme" hidden><label>Colours <select><option value="auto">as the system</option>'
        '<option value="light">light</option><option value="dark">dark</option></select></label></p>'
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        + (f'<meta http-equiv="refresh" content="{math.ceil(refresh)}">\n' if refresh else "")
        # An empty picture of our own: a browser would otherwise ask for /favicon.ico.
        + '<link rel="icon" href="data:,">\n'
        f"<title>mindgap: {text(_counts(studies))}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#verdicts">To the verdicts</a>\n'
        f"<header><div><h1>What the papers state, and what was measured</h1><p>{text(_counts(studies))}</p></div>"
        f"{theme}</header>\n<main>\n{search}{verdict_table(studies, names)}\n{sections}\n</main>\n"
        f"<footer><p>{text(_period(studies))} Drawn from saved records by mindgap. Bands are over seeds: mean ± one "
        "standard deviation, or median with the 10 % and 90 % quantiles. Where a value is not finite the mean is "
        "undefined and its line stops. Long curves are thinned for the screen, keeping their extremes; the "
        "records have every row.</p><noscript><p>The figures need JavaScript; nothing is loaded from the "
        "network.</p></noscript></footer>\n"
        f'<script type="application/json" id="mg-data">{_embedded(data)}</script>\n'
        f"<script>{_inert(_bundle())}</script>\n<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _section(study: Loaded, anchor: str, drawings: Sequence[Drawing]) -> str:
    about = study.description
    measured = study.verdict.measured
    where = f"{study.name}, {study.scale}"
    return (
        f'<section class="study" id="{anchor}" aria-label="{text(where)}">'
        '<div class="top">'
        f"<h2>{text(about.claim)} · {text(about.title)}</h2>"
        f'{mark(study.verdict.verdict)}<a class="up" href="#verdicts">All verdicts</a></div>'
        f'<p>{text(about.statement)} <span class="muted">({text(about.source)})</span></p>'
        + (f"<p><strong>Measured:</strong> {text(measured)}.</p>" if measured else "")
        + f'<p class="muted"><code>{text(study.name)}</code>, scale {text(study.scale)}, '
        f"{study.seeds} seed{'' if study.seeds == 1 else 's'}</p>"
        + failures(study)
        + f'<div class="figures">{"".join(figure_card(d, where) for d in drawings)}</div>'
        f"{tuning(study)}{behind(study)}</section>"
    )


def _counts(studies: Sequence[Loaded]) -> str:
    words = [s.verdict.verdict or "no verdict yet" for s in studies]
    order = ("holds", "does not hold", "inconclusive", "error", "no verdict yet")
    tally = ", ".join(
        f"{words.count(w)} {'hold' if w == 'holds' and words.count(w) != 1 else w}" for w in order if w in words
    )
    return f"{len(studies)} stud{'y' if len(studies) == 1 else 'ies'}: {tally.replace('does not hold', _plural(words))}"


def _plural(words: list[str]) -> str:
    return "does not hold" if words.count("does not hold") == 1 else "do not hold"


def _period(studies: Sequence[Loaded]) -> str:
    days = sorted({run.header.started[:10] for study in studies for run in study.runs if run.header.started})
    if not days:
        return ""
    return f"Runs of {days[0]}." if days[0] == days[-1] else f"Runs of {days[0]} to {days[-1]}."


def encode(drawing: Drawing) -> dict[str, Any]:
    """A figure as the page's script reads it: columns of numbers, methods and panels by number."""

    def columns(series: Series, names: Sequence[str]) -> dict[str, Any]:
        place = {"m": drawing.methods.index(series.method), "f": drawing.facets.index(series.facet)}
        seed = {} if series.seed is None else {"s": series.seed}
        return {**place, **seed, **{n: short(series.columns[n]) for n in names}}

    names = ("x", "mean") if drawing.single and drawing.kind == "lines" else ("x", *STATISTICS)
    if drawing.kind != "lines":
        names = ("x", "y")
    figure = drawing.figure
    return {
        "id": drawing.id,
        "kind": drawing.kind,
        "title": figure.title,
        "yLabel": figure.y_label,
        "logX": figure.log_x,
        "logY": figure.log_y,
        "statistic": drawing.statistic,
        "methods": list(drawing.methods),
        "facets": list(drawing.facets),
        "names": [" ".join(name.split("\n")) for name in drawing.names],
        "shifts": drawing.shifts,
        "axes": [
            {
                "name": axis.name,
                "label": axis.label,
                "alone": drawing.alone(axis),
                "series": [columns(s, names) for s in axis.series],
                "runs": [columns(s, ("x", "y")) for s in axis.runs],
            }
            for axis in drawing.axes
        ],
        "spec": specification(drawing, drawing.axes[0]),
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


def _embedded(data: Any) -> str:
    """JSON inside a script element: no ``<`` at all, so nothing in it can end the element."""
    plain = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _inert(script: str) -> str:
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and the embedder as one script, out of the installed package: no network."""
    import vl_convert

    return str(vl_convert.javascript_bundle())  # type: ignore[call-arg, unused-ignore]  # its stub forgets the default


def _asset(name: str) -> str:
    return (resources.files("mindgap.lab.report") / "assets" / name).read_text(encoding="utf-8")
