"""The page of a race of methods: one file without scripts, fonts or links."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

from mindgap.bilevel.registry import METHODS
from mindgap.bilevel.tools.contest import Contest, Entrant

#: Colours that colour-blind readers tell apart (Okabe, Ito), then dashes for more methods.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8c6d31")
WIDE, HIGH, LEFT, BELOW = 460, 280, 64, 42
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
    """Write the page of a race; nothing half-written is left behind."""
    part = path.with_suffix(".part")
    part.write_text(contest_page(contest), encoding="utf-8")
    part.replace(path)
    return path


def contest_page(contest: Contest) -> str:
    """The page: who won, curves with bands over the seeds, the table, the code."""
    first = contest.winner
    level = [e for e in contest.entrants[1:] if contest.is_level(e)]
    name = METHODS[first.key].name
    sentence = f"{name} ends lowest: {first.mean:.4g}, from {contest.start:.4g} at the start."
    if level:
        names = ", ".join(METHODS[e.key].name for e in level)
        sentence += f" As far as the seeds tell, {names} did as well."
    else:
        sentence += " No other method is level with it."
    charts = [
        chart(contest, x, "value", f"upper loss against {words}", words) for x, words in ACROSS
    ]
    charts.append(
        chart(contest, "calls", "slope", "norm of the hypergradient against calls", "oracle calls")
    )
    refused = "".join(
        f"<li>{escape(METHODS[key].name)}: {escape(why)}</li>"
        for key, why in contest.refused.items()
    )
    parts = [
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
        f"<body>{''.join(parts)}</body></html>"
    )


def table(contest: Contest) -> str:
    """The values at the end."""
    rows = []
    for e in contest.entrants:
        rates = ", ".join(f"{k} {v:.3g}" for k, v in e.settings.items())
        wrong = sum(not math.isfinite(v) for v in e.final)
        numbers = (
            [f"{wrong} of {len(e.final)} runs went wrong", "", ""]
            if wrong
            else [f"{e.mean:.4g}", f"{min(e.final):.4g} to {max(e.final):.4g}"]
            + [f"{e.band('slope')[0][-1]:.3g}"]
        )
        cells = [METHODS[e.key].name, *numbers, rates, f"{e.tuning:.2f}"]
        rows.append("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>")
    titles = ("method", "upper loss", "range", "hypergradient", "steps", "tuning, in runs")
    head = "".join(f"<th>{title}</th>" for title in titles)
    return f"<h2>At the end</h2><table><tr>{head}</tr>{''.join(rows)}</table>"


def chart(contest: Contest, across: str, up: str, title: str, words: str) -> str:
    """One set of curves as SVG."""
    shown = [e for e in contest.entrants if e.band(up)[0]]
    xs = [x for e in shown for x in e.band(across)[0]]
    ys = [y for e in shown for part in e.band(up)[1:] for y in part]
    if not xs:
        return f"<p>{escape(title)}: every run went wrong.</p>"
    right = max(xs) or 1.0
    low, high = min(ys), max(ys)
    span = (high - low) or 1.0

    def at(x: float, y: float) -> str:
        return (
            f"{LEFT + (WIDE - LEFT - 110) * x / right:.1f},"
            f"{10 + (HIGH - BELOW - 10) * (high - y) / span:.1f}"
        )

    drawn = []
    for place, e in enumerate(shown):
        drawn.append(_curve(e, across, up, at, place))
    marks = "".join(
        f"<text x='{LEFT - 6}' y='{10 + (HIGH - BELOW - 10) * k / 4 + 4:.0f}' text-anchor='end'>"
        f"{high - span * k / 4:.3g}</text>"
        for k in range(5)
    )
    bottom = HIGH - BELOW
    marks += (
        f"<text x='{LEFT}' y='{bottom + 16}'>0</text>"
        f"<text x='{WIDE - 110}' y='{bottom + 16}' text-anchor='end'>{right:.4g}</text>"
        f"<text x='{(LEFT + WIDE - 110) / 2:.0f}' y='{bottom + 34}' text-anchor='middle'>"
        f"{escape(words)}</text><path d='M{LEFT},10V{bottom}H{WIDE - 110}' fill='none' "
        "stroke='#888'/>"
    )
    return (
        f"<svg viewBox='0 0 {WIDE} {HIGH}' width='{WIDE}' role='img' font-size='11'>"
        f"<title>{escape(title)}</title>{marks}{''.join(drawn)}</svg>"
    )


def _curve(e: Entrant, across: str, up: str, at: object, place: int) -> str:
    assert callable(at)
    xs, (mean, least, largest) = e.band(across)[0], e.band(up)
    colour = COLOURS[place % len(COLOURS)]
    dash = " stroke-dasharray='5 3'" if place >= len(COLOURS) else ""
    there = [at(x, y) for x, y in zip(xs, largest, strict=False)]
    back = [at(x, y) for x, y in zip(xs, least, strict=False)][::-1]
    line = " ".join(at(x, y) for x, y in zip(xs, mean, strict=False))
    y = 20 + 15 * place
    return (
        f"<polygon points='{' '.join(there + back)}' fill='{colour}' opacity='0.15'/>"
        f"<polyline points='{line}' fill='none' stroke='{colour}' stroke-width='1.6'{dash}/>"
        f"<text x='{WIDE - 100}' y='{y}' fill='{colour}'>{escape(METHODS[e.key].name)}</text>"
    )
