"""The page: one HTML file with everything inside, which works offline from a file:// address."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from mindgap.base.source import PAPERS
from mindgap.lab.report.aggregate import STATISTICS, Readings, Series
from mindgap.lab.report.drawing import Drawing, about, draw, draw_tuning
from mindgap.lab.report.figure import figure_png, figure_svg, picture, ranking, specification
from mindgap.lab.report.headline import headline
from mindgap.lab.report.load import Loaded, load
from mindgap.lab.report.pieces import HELPERS, Section, sections
from mindgap.lab.report.scales import log_labels
from mindgap.lab.report.templates import asset, template
from mindgap.lab.report.words import count, finding, signs
from mindgap.record.claims import GROUPS
from mindgap.record.store import slug, write_atomically

#: Points the whole page may hold; figures share them, so that a page of many studies stays small.
POINTS = 250_000

#: The order of verdicts, with the sign that stands beside the word.
SIGNS = {
    "error": "!",
    "does not hold": "✗",
    "inconclusive": "?",
    "not trained": "–",
    "": "…",
    "holds": "✓",
}


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
    order = list(SIGNS)
    for s in shown:
        s.finding, s.sign = finding(s.name, s.about.title, s.word), SIGNS[s.word]
    figures = [encode(d) for group in drawings for d in group if not d.empty]
    labels = {f"{c}{own:d}": log_labels(c, own=own) for c in "xy" for own in (False, True)}
    groups = {letter: [s for s in shown if s.claim.startswith(letter)] for letter in GROUPS}
    groups["·"] = [s for s in shown if s.claim[:1] not in GROUPS]
    named = {**GROUPS, "·": "others"}
    return template("page.html").render(
        studies=shown,
        judged=sorted(shown, key=lambda s: order.index(s.word)),
        findings=main_findings(shown),
        groups=[
            (key, {"name": named[key], "studies": found}) for key, found in groups.items() if found
        ],
        papers=[
            (key, name)
            for key, name in PAPERS.items()
            if any(s.about.source.startswith(key) for s in shown)
        ],
        labels=("Verdict", "Claim", "Finding", "Measured", "Scale, seeds"),
        counts=count(len(shown), "study"),
        period=_period(studies),
        refresh=math.ceil(refresh) if refresh else None,
        css=asset("page.css"),
        js=asset("page.js"),
        bundle=Markup(_inert(_bundle())),
        data=Markup(
            _embedded({"statistics": list(STATISTICS), "labels": labels, "figures": figures})
        ),
        **HELPERS,
    )


def main_findings(shown: Sequence[Section]) -> list[tuple[str, list[Section]]]:
    """What fails, what holds, what is open, each with the first claims of as many groups as it
    can; and what we ask ourselves.
    """
    from mindgap.lab.theory.erratum import about

    found = []
    own, shown = [s for s in shown if s.about.ours], [s for s in shown if not s.about.ours]
    for word, one, many in (
        (
            "does not hold",
            "studies contradicts a claim and finds:",
            "studies contradict a claim and find:",
        ),
        ("holds", "studies finds that a claim holds", "studies find that a claim holds"),
        ("inconclusive", "studies cannot decide:", "studies cannot decide, among them:"),
        (
            "not trained",
            "studies has a network that is not trained:",
            "studies have networks that are not trained, among them:",
        ),
    ):
        these = [s for s in shown if s.word == word]
        if not these:
            continue
        groups: dict[str, list[Section]] = {}
        for s in these:
            groups.setdefault(s.claim[:1], []).append(s)
        firsts = [group[i] for i in range(3) for group in groups.values() if i < len(group)][
            : 3 if word in ("holds", "does not hold") else 2
        ]
        words = one if len(these) == 1 else many
        if word == "holds":
            # The same records as the README's and the errata's.
            mended = sum(any(row.certificate for row in about(s.name)) for s in these)
            words += (
                f" ({mended} of them only after a slip in the text is corrected)" if mended else ""
            ) + ":"
        if len(firsts) == len(these):
            words = words.replace(", among them", "")
        found.append((f"{len(these)} of {len(shown)} {words}", firsts))
    if own:
        asks = "study asks a question" if len(own) == 1 else "studies ask questions"
        found.append((f"{len(own)} further {asks} of ours, which no paper states:", own[:2]))
    return found or [(f"No verdict yet on {count(len(shown), 'claim')}.", [])]


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


def _embedded(data: Any) -> str:
    """JSON inside a script element: no ``<`` at all, so nothing in it can end the element."""
    plain_text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return (
        plain_text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )


def _inert(script: str) -> str:
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and the embedder as one script, out of the installed package: no network."""
    import vl_convert

    return str(vl_convert.javascript_bundle())  # type: ignore[call-arg, unused-ignore]  # its stub forgets the default
