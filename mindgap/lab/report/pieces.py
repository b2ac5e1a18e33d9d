"""Pieces of HTML: every text that comes from a record passes through :func:`text`, so that it is shown, never run."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from mindgap.lab.report.figure import LIGHT, SHAPES, Drawing
from mindgap.lab.report.load import Loaded
from mindgap.record.schema import Run, to_json


def text(value: Any) -> str:
    """A value as text that HTML cannot mistake for anything else.

    Example:
        >>> text('<script>"')
        '&lt;script&gt;&quot;'
    """
    return html.escape(str(value), quote=True)


def mark(verdict: str) -> str:
    """The verdict as a coloured label (the word is there: colour is never the only sign)."""
    return f'<span class="mark {text(verdict.replace(" ", "-")) or "none"}">{text(verdict) or "no verdict yet"}</span>'


def plain(value: Any) -> str:
    """A setting as people write it.

    Example:
        >>> plain(0.1), plain(True), plain([1, 2.5]), plain("a")
        ('0.1', 'yes', '1, 2.5', 'a')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(v) for v in value)
    return str(value) if isinstance(value, (int, str)) else to_json(value)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, label: str, name: str = "") -> str:
    """A table with a row header in its first column; it scrolls sideways by itself on a narrow screen."""
    heads = "".join(f'<th scope="col">{text(h)}</th>' for h in head)
    lines = "".join(
        f'<tr><th scope="row">{text(row[0])}</th>{"".join(f"<td>{text(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    inner = f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"
    return f'<div class="scroll {name}" role="region" aria-label="{text(label)}" tabindex="0">{inner}</div>'


def verdict_table(studies: Sequence[Loaded], anchors: Sequence[str]) -> str:
    """The first screen: claim, the paper's statement, what was measured, verdict, scale, seeds."""
    labels = ("Claim", "The paper states", "Measured", "Verdict", "Scale", "Seeds")
    head = "".join(f'<th scope="col" role="columnheader">{label}</th>' for label in labels)
    lines = []
    for study, anchor in zip(studies, anchors):
        about = study.description
        # Not "inconclusive" but nothing: a study that is still running has no verdict.
        cells = (
            f'<a href="#{anchor}">{text(about.claim)}</a>',
            f'<span class="title">{text(about.title)}</span>{text(about.statement)} '
            f'<span class="muted">({text(about.source)})</span>',
            text(study.verdict.measured) or "–",
            mark(study.verdict.verdict),
            text(study.scale),
            text(study.verdict.seeds or study.seeds),
        )
        kinds = ("", "", "", "", "brief number", "brief number")
        lines.append(
            '<tr role="row">'
            + "".join(
                f'<td role="cell" data-label="{label}" class="{kind}">{cell}</td>'
                for label, kind, cell in zip(labels, kinds, cells)
            )
            + "</tr>"
        )
    return (
        f'<table id="verdicts" role="table" aria-label="Verdicts"><thead role="rowgroup"><tr role="row">{head}</tr>'
        f'</thead><tbody role="rowgroup">{"".join(lines)}</tbody></table>'
    )


_PATHS = {
    "circle": '<circle cx="12" cy="7" r="5"/>',
    "square": '<rect x="7.5" y="2.5" width="9" height="9"/>',
    "triangle-up": '<path d="M12 1.5 18 12H6Z"/>',
    "diamond": '<path d="M12 0.5 17.5 7 12 13.5 6.5 7Z"/>',
    "cross": '<path d="M10 2h4v3h3v4h-3v3h-4V9H7V5h3Z"/>',
    "triangle-down": '<path d="M12 12.5 18 2H6Z"/>',
    "triangle-right": '<path d="M17.5 7 7 13V1Z"/>',
    "triangle-left": '<path d="M6.5 7 17 13V1Z"/>',
}


def legend(drawing: Drawing) -> str:
    """One button a method: it switches the method's line off and on."""
    present = {s.method for axis in drawing.axes for s in axis.series}
    items = []
    dashes = drawing.dashes
    for place, method in enumerate(drawing.methods):
        if method not in present:
            continue
        colour = f"var(--s{place % len(LIGHT)})"
        if drawing.kind == "points":
            sign = f'<g fill="{colour}">{_PATHS[SHAPES[place % len(SHAPES)]]}</g>'
        else:
            dash = " ".join(str(d) for d in dashes[place])
            sign = f'<path d="M0 7H24" stroke="{colour}" stroke-width="3" stroke-dasharray="{dash}" fill="none"/>'
        items.append(
            f'<li><button type="button" aria-pressed="true" data-method="{place}">'
            f'<svg width="24" height="14" viewBox="0 0 24 14" aria-hidden="true">{sign}</svg>'
            f"{text(method)}</button></li>"
        )
    if len(items) > 4:
        for kind in ("all", "none"):
            items.append(f'<li><button type="button" class="every" data-every="{kind}">{kind}</button></li>')
    return f'<ul class="legend" aria-label="Methods: switch on and off">{"".join(items)}</ul>'


def figure_card(drawing: Drawing, where: str) -> str:
    """One figure: controls, place of the chart, legend, downloads, and a table of the last values."""
    figure = drawing.figure
    title = f"<h3>{text(figure.title)}</h3>"
    caption = f"<p>{text(figure.caption)}</p>" if figure.caption else ""
    name = text(f"{figure.title} ({where})")  # the same title may stand under several studies
    if drawing.empty:
        return (
            f'<article class="figure" id="{drawing.id}">{title}{caption}<p>No readings of '
            f"{text(figure.y)} against {text(figure.x)} are recorded: the runs have not come so far, or an older "
            "program made them (--force runs them again).</p></article>"
        )
    wide = " wide" if len(drawing.facets) > 1 or len(drawing.methods) > len(LIGHT) else ""
    controls = []
    if len(drawing.axes) > 1:
        options = "".join(f'<option value="{i}">{text(axis.label)}</option>' for i, axis in enumerate(drawing.axes))
        controls.append(f'<label>x-axis <select class="axis" aria-label="x-axis of {name}">{options}</select></label>')
    if not drawing.single:
        choices = {"mean": "mean ± sd", "quantiles": "median, 10–90 %", "every": "every run"}
        options = "".join(
            f'<option value="{key}"{" selected" if key == drawing.statistic else ""}>{label}</option>'
            for key, label in choices.items()
        )
        controls.append(
            f'<label>over seeds <select class="statistic" aria-label="seeds of {name}">{options}</select></label>'
        )
    for axis in ("y",) if drawing.names else ("x", "y"):
        checked = " checked" if getattr(figure, f"log_{axis}") else ""
        controls.append(f'<label><input type="checkbox" class="log-{axis}"{checked}> log {axis}</label>')
    saves = "".join(
        f'<button type="button" data-save="{kind}" aria-label="Save {name} as {kind.upper()}">{kind.upper()}</button>'
        for kind in ("png", "svg", "csv")
    )
    head = ["Method", "Seeds", "", "Mean ± sd", "Median [10 %, 90 %]"] if drawing.kind == "lines" else None
    ends = ""
    if head:
        heads = "".join(f'<th scope="col"{" class=axis-name" if not h else ""}>{h or "x"}</th>' for h in head)
        ends = (
            f'<details class="ends"><summary>Last values</summary><div class="scroll" role="region" tabindex="0" '
            f'aria-label="Last values of {name}"><table><thead><tr>{heads}</tr></thead><tbody></tbody></table>'
            "</div></details>"
        )
    return (
        f'<article class="figure{wide}" id="{drawing.id}">{title}{caption}'
        f'<div class="controls">{"".join(controls)}</div>'
        f'<div class="chart" role="img" aria-label="{name}"></div>{legend(drawing)}'
        f'<div class="saves"><span class="muted">Save as</span>{saves}</div>{ends}</article>'
    )


def failures(study: Loaded) -> str:
    """Runs that failed, with their error; runs that are not finished; files that cannot be read."""
    parts = []
    if study.failed:
        rows = [
            (r.header.method, str(r.header.seed), str(len(r.rows)), r.end.message if r.end else "")
            for r in study.failed
        ]
        inner = table(
            ("Method", "Seed", "Rows before", "Error"), rows, label=f"Failed runs of {study.name}, {study.scale}"
        )
        parts.append(f"<h3>{_count(len(rows), 'run')} failed</h3>{inner}")
    if study.unfinished:
        names = ", ".join(f"{r.header.method} (seed {r.header.seed})" for r in study.unfinished[:12])
        more = ", …" if len(study.unfinished) > 12 else ""
        parts.append(f"<p>{_count(len(study.unfinished), 'run')} not finished: {text(names)}{more}.</p>")
    if study.problems:
        lines = "".join(f"<li>{text(p)}</li>" for p in study.problems)
        parts.append(f"<h3>{_count(len(study.problems), 'file')} cannot be read</h3><ul>{lines}</ul>")
    return f'<div class="problem">{"".join(parts)}</div>' if parts else ""


def tuning(study: Loaded) -> str:
    """What ``mindgap tune`` chose for each method, from how many trials, at what cost."""
    found = study.tuning
    if not found.methods:
        return ""
    space = ", ".join(f"{name} in [{plain(low)}, {plain(high)}]" for name, (low, high) in found.space.items())
    rows = [
        (
            method,
            str(len(made.trials)),
            ", ".join(f"{name} = {value:.4g}" for name, value in made.chosen.items()),
            f"{made.value:.4g}",
            f"{made.seconds:.3g}",
        )
        for method, made in found.methods.items()
    ]
    head = ("Method", "Trials", "Chosen", f"Best {found.metric}", "Cost in seconds")
    listed = table(head, rows, label=f"Tuning of {study.name}, {study.scale}")
    return (
        f"<h3>Tuning</h3><p>{found.trials} trials of every method, {text(space)} on a log scale, on "
        f"{text(found.metric)} with seeds that no reported run has.</p>{listed}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def behind(study: Loaded) -> str:
    """The settings, versions, machine and exact command behind the figures."""
    if not study.runs:
        return ""
    by_method: dict[str, dict[str, Any]] = {}
    for run in study.runs:
        by_method.setdefault(run.header.method, run.header.settings)
    names = sorted({name for settings in by_method.values() for name in settings})
    same = [n for n in names if len({to_json(s.get(n)) for s in by_method.values()}) == 1]
    differ = [n for n in names if n not in same]
    parts, where = [], f"{study.name}, {study.scale}"
    if same:
        first = next(iter(by_method.values()))
        rows = [(n, plain(first.get(n))) for n in same]
        parts.append(
            "<h4>Settings of every method</h4>" + table(("Setting", "Value"), rows, label=f"Settings of {where}")
        )
    if differ:
        rows_ = [(m, *(plain(s[n]) if n in s else "–" for n in differ)) for m, s in by_method.items()]
        parts.append(
            "<h4>Settings by method</h4>" + table(("Method", *differ), rows_, label=f"Settings by method of {where}")
        )
    for title, values in (
        ("Versions", _distinct(study.runs, "versions")),
        ("Machine", _distinct(study.runs, "machine")),
    ):
        parts.append(f"<h4>{title}</h4>" + "".join(f"<p>{text(v)}</p>" for v in values))
    commands = sorted({run.header.command for run in study.runs if run.header.command})
    parts.append("<h4>Command</h4>" + "".join(f"<pre>{text(c)}</pre>" for c in commands))
    rows__ = [
        (
            run.header.method,
            str(run.header.seed),
            run.end.outcome if run.end else "not finished",
            str(len(run.rows)),
            f"{run.end.seconds:.3g}" if run.end else "–",
            run.header.started,
            run.header.key,
        )
        for run in study.runs
    ]
    head = ("Method", "Seed", "Outcome", "Rows", "Seconds", "Started", "Record")
    listed = table(head, rows__, label=f"Runs of {where}")
    parts.append(f"<details><summary>{_count(len(rows__), 'run')}</summary>{listed}</details>")
    if study.others:
        parts.append(f"<p>{_count(study.others, 'further record')} of other settings in the folder, not drawn.</p>")
    return f"<details><summary>Settings, versions, machine, command</summary>{''.join(parts)}</details>"


def _distinct(runs: Sequence[Run], field: str) -> list[str]:
    return sorted({", ".join(f"{k} {plain(v)}" for k, v in getattr(run.header, field).items()) for run in runs} - {""})
