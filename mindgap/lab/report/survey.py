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
_CONFIG = {
    **CONFIG,
    "legend": {
        **CONFIG["legend"],
        "orient": "bottom",
        "direction": "horizontal",
        "columns": 2,
        "labelLimit": 240,
    },
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
    failures = [
        _FAILURES.get(finding.assumption, f"{finding.assumption} fails")
        for finding in findings
        if finding.fails
    ]
    # In the call below ``model`` is taken out of ``about`` before the rest of it is listed.
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
            # One card per figure that the survey has.
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
    """The sentence of the survey about a quantity, up to its numbers and with a capital letter;
    empty where the quantity was not measured.
    """
    sentences = [line.sentence for line in survey.findings if line.quantity == quantity]
    if not sentences or sentences[0].startswith("not measured"):
        return ""
    first_part = re.split(r": | \(", sentences[0])[0]  # up to a colon or a bracket
    return first_part[:1].upper() + first_part[1:]


def _card(finding: str, title: str, caption: str, spec: dict[str, Any]) -> dict[str, Any]:
    """One chart of the page by the keys ``title``, ``caption`` and ``svg``, its colours replaced by
    variables of the page's style.

    Args:
        finding: becomes the title, and the title then begins the caption; may be empty.
        title, caption: of the chart.
        spec: the Vega-Lite specification of the chart without size and style.
    """
    if finding:
        title, caption = finding, f"{title}. {caption}"
    # What every chart has, unless its ``spec`` says otherwise.
    frame = {
        "$schema": SCHEMA_URL,
        "config": _CONFIG,
        "background": None,
        "width": 420,
        "height": 240,
    }
    description = str(escape(f"{title}. {caption}"))
    # One picture with one description: the roles of its parts would each need a name of their own.
    svg = re.sub(r' (?:role|aria-[a-z]+)="[^"]*"', "", figure_svg({**frame, **spec}))
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{description}" ', 1)
    for colour, name in _VARIABLES.items():
        svg = svg.replace(colour, f"var({name})")
    return {"title": title, "caption": caption, "svg": Markup(svg)}


def _axis(name: str, title: str, *, log: bool = False) -> dict[str, Any]:
    """The channel of the column ``name``, which holds numbers, with its title and scale."""
    scale: dict[str, Any] = {"type": "log", "nice": False} if log else {"zero": False}
    return {"field": name, "type": "quantitative", "title": title, "scale": scale}


def _histogram(data: dict[str, Any]) -> dict[str, Any]:
    """The chart of measured norms of the noise, with a Gaussian and a stable law over it.

    Args:
        data: ``edges`` of the bins, one more than there are densities; the densities ``measured``,
            ``gaussian`` and ``stable``; the index ``alpha`` of the stable law.
    """
    edges = data["edges"]
    bars = [
        {"low": low, "high": high, "density": density}
        for low, high, density in zip(edges, edges[1:], data["measured"])
    ]
    lines = [
        {"x": (low + high) / 2, "density": density, "law": law}
        for law, column in (
            ("Gaussian", "gaussian"),
            (f"stable, index {data['alpha']:.2f}", "stable"),
        )
        for low, high, density in zip(edges, edges[1:], data[column])
    ]
    # The bins are ready: a bar reaches from ``low`` to ``high``.
    x = {
        "field": "low",
        "type": "quantitative",
        "title": "norm of the noise of a minibatch",
        "bin": "binned",
    }
    return {
        "layer": [
            {
                "data": {"values": bars},
                "mark": {"type": "bar", "color": _BLUE, "opacity": 0.45},
                "encoding": {"x": x, "x2": {"field": "high"}, "y": _axis("density", "density")},
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
    x = _axis("sizes", "minibatches used", log=True)
    band = {"x": x, "y": _axis("low", "empirical variance", log=True), "y2": {"field": "high"}}
    line = {"x": x, "y": _axis("running", "empirical variance", log=True)}
    return {
        "data": {"values": _finite_rows(data, ("sizes", "running", "low", "high"))},
        "layer": [
            {"mark": {"type": "area", "color": _BLUE, "opacity": 0.15}, "encoding": band},
            {"mark": {"type": "line", "color": _BLUE}, "encoding": line},
        ],
    }


def _smoothness(data: dict[str, Any]) -> dict[str, Any]:
    """The chart of local smoothness against the gradient norm, one point per reading; readings that
    are not positive cannot stand on its logarithmic axes and are left out.
    """
    rows = _finite_rows(data, ("gradient_norm", "smoothness"))
    rows = [row for row in rows if row["gradient_norm"] > 0 and row["smoothness"] > 0]
    return {
        "data": {"values": rows},
        "mark": {"type": "point", "filled": True, "color": _BLUE},
        "encoding": {
            "x": _axis("gradient_norm", "‖∇f‖", log=True),
            "y": _axis("smoothness", "local smoothness", log=True),
        },
    }


def _spectrum(data: dict[str, Any]) -> dict[str, Any]:
    """The chart of the Ritz values (estimates of the Hessian's eigenvalues) on one line, with the
    stability threshold of the optimizer as a dashed line where it is finite.
    """
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": [{"value": value} for value in data["values"]]},
            "mark": {"type": "tick", "color": _BLUE, "thickness": 2, "height": 60},
            "encoding": {"x": _axis("value", "eigenvalues of the Hessian (estimates)")},
        }
    ]
    if math.isfinite(data["threshold"]):
        layers.append(
            {
                "data": {"values": [{"value": data["threshold"]}]},
                "mark": {"type": "rule", "color": _ORANGE, "strokeWidth": 2, "strokeDash": [6, 4]},
                "encoding": {"x": {"field": "value", "type": "quantitative"}},
            }
        )
    return {"height": 110, "layer": layers}


def _settling(data: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The chart of four estimates by samples used, each over its value on the most samples.

    Args:
        data: one row per number of ``samples``, in rising order, with the estimates.
    """
    on_most = data[-1]  # the estimates on the most samples
    # An estimate that is 0 or not finite on the most samples has no share and is left out.
    names = [
        name
        for name in ("loss", "gradient_norm", "noise", "sharpness")
        if on_most[name] and math.isfinite(on_most[name])
    ]
    rows = [
        {
            "samples": row["samples"],
            "share": row[name] / on_most[name],
            "quantity": name.replace("_", " "),
        }
        for row in data
        for name in names
        if math.isfinite(row[name])
    ]
    x, y = _axis("samples", "samples used", log=True), _axis("share", "estimate over the last one")
    return {
        "data": {"values": rows},
        "mark": {"type": "line", "point": True},
        "encoding": {"x": x, "y": y, "color": {"field": "quantity", "title": None}},
    }


def _finite_rows(data: dict[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """The rows name -> value of the named columns in which all values are finite."""
    rows = zip(*(data[name] for name in names))
    return [dict(zip(names, row)) for row in rows if all(map(math.isfinite, row))]


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
