"""The page of a survey: what ``mindgap measure`` found, as sentences, advice and figures; drawn
without torch.

The figures are SVG pictures inside the page, so that it needs no script at all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from mindgap.advise import diagnose, prescribe
from mindgap.lab.report.figure import CONFIG, SCHEMA_URL, figure_svg
from mindgap.lab.report.templates import asset, template, write_drawn
from mindgap.lab.report.words import plain
from mindgap.record.survey import Survey, read_survey

_BLUE, _ORANGE, _GREEN, _VIOLET = "#0b5cad", "#c2410c", "#15803d", "#8b2fc9"
_LEGEND = {"orient": "bottom", "direction": "horizontal", "columns": 2, "labelLimit": 240}
_CONFIG = {
    **CONFIG,
    "legend": {**CONFIG["legend"], **_LEGEND},
    "range": {"category": [_BLUE, _ORANGE, _GREEN, _VIOLET]},
}


def write_survey_page(survey: Path, out: Path) -> Path:
    """Draw the page of a survey; the file appears whole or not at all."""
    return write_drawn(render, read_survey(Path(survey)), survey, out)


#: Assumption -> what it means that it fails.
_FAILURES = {
    "finite variance": "The gradient noise has infinite variance",
    "smoothness": "The smoothness grows with the gradient",
    "stable step": "The learning rate is too large for this curvature",
}


def render(survey: Survey) -> str:
    """The whole page of a survey as text: the verdict and the advice first, then figures, every
    measurement last.
    """
    findings = diagnose(survey)
    failures = [_FAILURES.get(f.assumption, f"{f.assumption} fails") for f in findings if f.fails]
    about = dict(survey.about)  # what the page says of the model; its name goes to the title
    return str(
        template("survey.html").render(
            verdict=". ".join(failures) or "No assumption of the textbook was seen to fail",
            model=about.pop("model", "your model"),
            size=f"{about['parameters']:,} parameters"
            if isinstance(about.get("parameters"), int)
            else "",
            advice=prescribe(findings),
            findings=findings,
            cards=[
                _card(_finding(survey, quantity), title, caption, draw(survey.figures[name]))
                for name, quantity, title, caption, draw in _FIGURES
                if name in survey.figures
            ],
            sentences=[(line.quantity, line.sentence) for line in survey.findings],
            about=[(name.replace("_", " "), plain(value)) for name, value in about.items()],
            css=asset("page.css"),
        )
    )


#: Colours of a picture -> variables of the page's style, so that light, dark and print need no new
#: picture.
_VARIABLES = {
    _BLUE: "--s0",
    _ORANGE: "--s1",
    _GREEN: "--s2",
    _VIOLET: "--s3",
    "#3d444d": "--muted",
    "#1f2328": "--text",
    "#e4e8ec": "--grid",
    "#8c959f": "--rule",
}


def _finding(survey: Survey, quantity: str) -> str:
    """What was found about a quantity, as a title: its sentence up to the numbers; empty where
    nothing was.
    """
    sentence = next(
        (line.sentence for line in survey.findings if line.quantity == quantity), "not measured"
    )
    head = re.split(r": | \(", sentence)[0]
    return "" if sentence.startswith("not measured") else head[:1].upper() + head[1:]


def _card(finding: str, title: str, caption: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Title, caption and SVG of one chart. The finding, where there is one, becomes the title, and
    the title then begins the caption. Colours become variables of the page's style.

    Args:
        spec: the Vega-Lite specification of the chart without size and style.
    """
    if finding:
        title, caption = finding, f"{title}. {caption}"
    frame = {
        "$schema": SCHEMA_URL,
        "config": _CONFIG,
        "background": None,
        "width": 420,
        "height": 240,
    }
    described = str(escape(f"{title}. {caption}"))
    # One picture with one description: the roles of its parts would each need a name of their own.
    svg = re.sub(r' (?:role|aria-[a-z]+)="[^"]*"', "", figure_svg({**frame, **spec}))
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{described}" ', 1)
    for colour, name in _VARIABLES.items():
        svg = svg.replace(colour, f"var({name})")
    return {"title": title, "caption": caption, "svg": Markup(svg)}


def _axis(name: str, title: str, *, log: bool = False) -> dict[str, Any]:
    """A channel of numbers with its title, on a linear or a logarithmic scale."""
    scale: dict[str, Any] = {"type": "log", "nice": False} if log else {"zero": False}
    return {"field": name, "type": "quantitative", "title": title, "scale": scale}


def _histogram(data: dict[str, Any]) -> dict[str, Any]:
    """The chart of measured norms of the noise, with a Gaussian and a stable law over it.

    Args:
        data: ``edges`` of the bins, one more than there are densities; the densities ``measured``,
            ``gaussian`` and ``stable``; the index ``alpha`` of the stable law.
    """
    edges = data["edges"]
    bars = [{"a": a, "b": b, "density": d} for a, b, d in zip(edges, edges[1:], data["measured"])]
    lines = [
        {"x": (a + b) / 2, "density": d, "law": law}
        for law, key in (("Gaussian", "gaussian"), (f"stable, index {data['alpha']:.2f}", "stable"))
        for a, b, d in zip(edges, edges[1:], data[key])
    ]
    x = {
        "field": "a",
        "type": "quantitative",
        "title": "norm of the noise of a minibatch",
        "bin": "binned",
    }
    return {
        "layer": [
            {
                "data": {"values": bars},
                "mark": {"type": "bar", "color": _BLUE, "opacity": 0.45},
                "encoding": {"x": x, "x2": {"field": "b"}, "y": _axis("density", "density")},
            },
            {
                "data": {"values": lines},
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {
                    "x": {"field": "x", "type": "quantitative"},
                    "y": {"field": "density", "type": "quantitative"},
                    "color": {"field": "law", "title": None, "scale": {"range": [_GREEN, _ORANGE]}},
                },
            },
        ]
    }


def _variance(data: dict[str, Any]) -> dict[str, Any]:
    """The chart of the empirical variance against the number of minibatches, with its band.

    Args:
        data: by number of minibatches (``sizes``) the variance in the order drawn (``running``),
            and the band ``low`` to ``high`` over random orders.
    """
    rows = _rows(data, ("sizes", "running", "low", "median", "high"))
    x = _axis("sizes", "minibatches used", log=True)
    band = {"x": x, "y": _axis("low", "empirical variance", log=True), "y2": {"field": "high"}}
    line = {"x": x, "y": _axis("running", "empirical variance", log=True)}
    return {
        "data": {"values": rows},
        "layer": [
            {"mark": {"type": "area", "color": _BLUE, "opacity": 0.15}, "encoding": band},
            {"mark": {"type": "line", "color": _BLUE}, "encoding": line},
        ],
    }


def _smoothness(data: dict[str, Any]) -> dict[str, Any]:
    """The chart of local smoothness against the gradient norm, one point per reading; readings that
    are not positive cannot stand on its logarithmic axes and are left out.
    """
    rows = _rows(data, ("gradient_norm", "smoothness", "noise_floor"))
    rows = [row for row in rows if row["gradient_norm"] > 0 and row["smoothness"] > 0]
    x = _axis("gradient_norm", "‖∇f‖", log=True)
    y = _axis("smoothness", "local smoothness", log=True)
    return {
        "data": {"values": rows},
        "mark": {"type": "point", "filled": True, "color": _BLUE},
        "encoding": {"x": x, "y": y},
    }


def _spectrum(data: dict[str, Any]) -> dict[str, Any]:
    """The chart of the Ritz values (estimates of the Hessian's eigenvalues) on one line, with the
    stability threshold of the optimizer as a dashed line where it is finite.
    """
    values = [{"value": value, "what": "Ritz values"} for value in data["values"]]
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": values},
            "mark": {"type": "tick", "color": _BLUE, "thickness": 2, "height": 60},
            "encoding": {"x": _axis("value", "eigenvalues of the Hessian (estimates)")},
        }
    ]
    if math.isfinite(data["threshold"]):
        rule = {"x": {"field": "value", "type": "quantitative"}}
        layers.append(
            {
                "data": {"values": [{"value": data["threshold"]}]},
                "mark": {"type": "rule", "color": _ORANGE, "strokeWidth": 2, "strokeDash": [6, 4]},
                "encoding": rule,
            }
        )
    return {"height": 110, "layer": layers}


def _settling(data: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The chart of four estimates by samples used, each over its value on the most samples.

    Args:
        data: one row per number of ``samples``, in rising order, with the estimates.
    """
    names = ("loss", "gradient_norm", "noise", "sharpness")
    largest_sample = data[-1]
    rows = [
        {
            "samples": row["samples"],
            "share": row[name] / largest_sample[name],
            "quantity": name.replace("_", " "),
        }
        for row in data
        for name in names
        if largest_sample[name] and math.isfinite(row[name]) and math.isfinite(largest_sample[name])
    ]
    x, y = _axis("samples", "samples used", log=True), _axis("share", "estimate over the last one")
    return {
        "data": {"values": rows},
        "mark": {"type": "line", "point": True},
        "encoding": {"x": x, "y": y, "color": {"field": "quantity", "title": None}},
    }


def _rows(data: dict[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """One row per place of the named columns, where all of them are finite."""
    columns = [data[name] for name in names]
    rows = [dict(zip(names, values)) for values in zip(*columns)]
    return [row for row in rows if all(math.isfinite(value) for value in row.values())]


#: Name in the survey, the quantity whose sentence is the title, what is drawn, how to read it, how
#: to draw it.
_FIGURES: tuple[tuple[str, str, str, str, Callable[[Any], dict[str, Any]]], ...] = (
    (
        "noise_histogram",
        "infinite variance",
        "Norms of the gradient noise",
        "Bars: measured. Lines: Gaussian noise of the same mean square and effective dimension; "
        "stable noise of the same median.",
        _histogram,
    ),
    (
        "variance_growth",
        "variance",
        "Empirical variance against the number of minibatches",
        "Line: in the order drawn. Band: over random orders. It levels off where the variance is "
        "finite.",
        _variance,
    ),
    (
        "smoothness",
        "smoothness and gradient norm",
        "Local smoothness against the gradient norm",
        "Along one ray, up the gradient from here. A rising cloud means smoothness that grows "
        "with the gradient.",
        _smoothness,
    ),
    (
        "spectrum",
        "edge of stability",
        "Edge of the Hessian's spectrum",
        "The dashed line is the stability threshold of the optimizer, where one is known.",
        _spectrum,
    ),
    (
        "settling",
        "settling",
        "How the estimates settle as the sample grows",
        "Each quantity over its value on the whole sample.",
        _settling,
    ),
)
