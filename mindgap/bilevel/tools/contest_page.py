"""The page of a race of methods: one file without scripts, fonts or links."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

from mindgap.bilevel.registry import METHODS
from mindgap.bilevel.tools.contest import Contest
from mindgap.bilevel.tools.drawing import Curve, chart

#: column, its name on the axis
ACROSS = (
    ("calls", "oracle calls"),
    ("seconds", "seconds in the method"),
    ("x_epochs", "epochs of x"),
)
STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;"
    "border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}"
    "pre{background:#f4f4f4;padding:1em;overflow-x:auto}svg{max-width:100%;height:auto}"
)


def write_contest_page(contest: Contest, path: Path) -> Path:
    """Write the page of a race and return its path; nothing half-written is left there."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(contest_page(contest), encoding="utf-8")
    unfinished.replace(path)
    return path


def contest_page(contest: Contest) -> str:
    """The page: who won, curves with bands over the seeds, the table, the code."""
    winner = contest.winner
    as_good = [entrant for entrant in contest.entrants[1:] if contest.is_level(entrant)]
    name = METHODS[winner.key].name
    sentence = f"{name} ends lowest: {winner.mean:.4g}, from {contest.start:.4g} at the start."
    if as_good:
        names = ", ".join(METHODS[entrant.key].name for entrant in as_good)
        sentence += f" As far as the seeds tell, {names} did as well."
    else:
        sentence += " No other method is level with it."
    charts = [
        _chart(contest, column, "value", f"upper loss against {words}", words)
        for column, words in ACROSS
    ]
    charts.append(
        _chart(contest, "calls", "slope", "norm of the hypergradient against calls", "oracle calls")
    )
    refused = "".join(
        f"<li>{escape(METHODS[key].name)}: {escape(why)}</li>"
        for key, why in contest.refused.items()
    )
    sections = [
        f"<h1>{escape(sentence)}</h1>",
        f"<p>Every run had {contest.calls} oracle calls. Steps were found by "
        "<code>suggest_steps</code>, at about the cost of one run per method. The upper loss is "
        "taken on common minibatches once y has followed x for some steps. Lines are means over "
        "the seeds, bands reach from the least to the largest.</p>",
        *charts,
        table(contest),
        f"<h2>Code to paste</h2><pre>{escape(contest.code)}</pre>",
        f"<h2>Methods that do not fit</h2><ul>{refused}</ul>" if refused else "",
    ]
    head = f"<meta charset='utf-8'><title>{escape(name)} wins the race</title>"
    return (
        f"<!doctype html><html lang='en'><head>{head}<style>{STYLE}</style></head>"
        f"<body>{''.join(sections)}</body></html>"
    )


def table(contest: Contest) -> str:
    """A table in HTML, one row per method: its values at the end, its steps, its tuning."""
    rows = []
    for entrant in contest.entrants:
        rates = ", ".join(f"{name} {value:.3g}" for name, value in entrant.settings.items())
        values, mean_slope = entrant.final, entrant.band("slope")[0]
        failed_runs = sum(not math.isfinite(value) for value in values)
        if failed_runs:
            numbers = [f"{failed_runs} of {len(values)} runs went wrong", "", ""]
        else:
            value_range = f"{min(values):.4g} to {max(values):.4g}"
            numbers = [f"{entrant.mean:.4g}", value_range, f"{mean_slope[-1]:.3g}"]
        cells = [METHODS[entrant.key].name, *numbers, rates, f"{entrant.tuning:.2f}"]
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    titles = ("method", "upper loss", "range", "hypergradient", "steps", "tuning, in runs")
    head = "".join(f"<th>{title}</th>" for title in titles)
    return f"<h2>At the end</h2><table><tr>{head}</tr>{''.join(rows)}</table>"


def _chart(contest: Contest, x_column: str, column: str, title: str, x_words: str) -> str:
    """The curves of ``column`` over ``x_column`` of all methods, with bands over the seeds."""
    curves = [
        Curve(METHODS[entrant.key].name, entrant.band(x_column)[0], *entrant.band(column))
        for entrant in contest.entrants
        if entrant.band(column)[0]
    ]
    return chart(curves, title, x_words)
