"""What a figure shows, as one sentence made from its own numbers."""

from __future__ import annotations

import re

import numpy as np

from mindgap.lab.report.drawing import Drawing
from mindgap.lab.report.words import number, signs


def headline(drawing: Drawing) -> str:
    """What a figure shows, as a sentence made from its own numbers: where each method ends, or
    lies.
    """
    title = signs(drawing.figure.title).rstrip(".")
    if drawing.empty or drawing.kind == "path" or title.startswith("Where "):
        return title
    first, values = drawing.axes[0], drawing.ends()
    time_like = drawing.kind == "lines" and first.name in drawing.TIMES
    at = " at the end" if time_like else ""
    middle = f"{drawing.middle} " if drawing.middle else ""
    if drawing.figure.y_label == "share of minibatches":  # a histogram: where it is highest
        tops = {
            s.method: float(s.columns["x"][np.nanargmax(s.columns["q50"])])
            for s in first.series
            if len(s)
        }
        return f"{title}: highest at {_span(tops)}"
    if "its last value" in drawing.figure.y_label:  # all of them end at 1
        return title
    alone = drawing.facets == ("",) or drawing.figure.facet == "method"
    if drawing.kind == "points" and alone and not drawing.names:
        return f"{title}: {_of_points(drawing)}"
    if len(drawing.facets) > 1 and drawing.figure.facet != "method":
        return f"{title}{_in_panels(drawing, values, at, middle)}"
    if first.name in drawing.SEARCHED:
        at = " at the best step"
    elif drawing.kind == "lines" and not time_like and not drawing.names:
        label, last = (
            signs(first.label),
            max(float(s.columns["x"][-1]) for s in first.series if len(s)),
        )
        at = (
            f" at {label}{' =' if len(label) < 3 else ''} {number(last)}"
            if len(label) <= 24
            else " at the right end"
        )
    ends = {m: v for (m, _), v in values.items()}
    if len(ends) == 1 and time_like:
        column = "mean" if drawing.middle == "mean" else "q50"
        start, end = float(first.series[0].columns[column][0]), next(iter(ends.values()))
        return f"{title}: {middle}from {number(start)} to {number(end)}"
    named = [m for m in drawing.accent if m in ends] or (list(ends) if len(ends) <= 3 else [])
    others = {m: v for m, v in ends.items() if m not in named}
    if not named:
        return f"{title}{at}: {middle}{_span(others)}" if others else f"{title}{at}"
    if any(
        re.search(r"[\d,:]", m) for m in named
    ):  # a name that ends in a number would run into the value
        parts = [
            f"{middle if i == 0 else ''}{number(ends[m])} ({signs(m)})" for i, m in enumerate(named)
        ]
    else:
        parts = [
            f"{signs(m)} {middle if i == 0 else ''}{number(ends[m])}" for i, m in enumerate(named)
        ]
    if len(others) == 1:
        parts += [f"{signs(m)} {number(v)}" for m, v in others.items()]
    elif others:
        parts.append(
            f"{len(others)} others {number(min(others.values()))} to {number(max(others.values()))}"
        )
    return f"{title}{at}: {', '.join(parts)}"


def _of_points(drawing: Drawing) -> str:
    """A scatter: where it lies if a level is drawn to compare it with, else how closely y
    follows x.
    """
    from scipy.stats import spearmanr

    said = []
    for method in drawing.methods:
        mine = [s.columns for s in drawing.axes[0].series if s.method == method]
        x, y = (np.concatenate([columns[c] for columns in mine] or [np.empty(0)]) for c in "xy")
        keep = np.isfinite(x) & np.isfinite(y)
        if keep.sum() < 3:
            continue
        low, high = number(y[keep].min()), number(y[keep].max())
        name = f" ({signs(method)})" if len(drawing.methods) > 1 else ""
        if drawing.figure.hlines or np.ptp(x[keep]) == 0 or low == high:
            said.append(f"{low}{name}" if low == high else f"between {low} and {high}{name}")
        else:
            said.append(f"{spearmanr(x[keep], y[keep])[0]:.2f}{name}".replace("-", "−"))
    ranked = said and not said[0].startswith("between") and not drawing.figure.hlines
    return f"rank correlation {', '.join(said)}" if ranked else ", ".join(said)


def _span(values: dict[str, float]) -> str:
    """The smallest and the largest value with their names, or the one value that all have."""
    least, most = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    low, high = number(values[least]), number(values[most])
    return f"{low} for all" if low == high else f"{low} ({signs(least)}) to {high} ({signs(most)})"


def _in_panels(drawing: Drawing, values: dict[tuple[str, str], float], at: str, middle: str) -> str:
    """How often the method in question ends lowest; else all values if few, the best per panel,
    or the span.
    """
    present = list(dict.fromkeys(m for m, _ in values))
    lead = drawing.accent[0] if drawing.accent else present[0] if len(present) == 2 else ""
    if lead in present and len(present) > 1:
        lowest = panels = 0
        for facet in drawing.facets:
            here = {m: v for (m, f), v in values.items() if f == facet}
            if lead in here and len(here) > 1:
                panels += 1
                lowest += here[lead] < min(v for m, v in here.items() if m != lead)
        other = next(m for m in present if m != lead)
        first, second = (f"“{signs(m)}”" if "," in m else signs(m) for m in (lead, other))
        return (
            f": {first} {f'below {second}' if len(present) == 2 else 'lowest'} in {lowest} of "
            f"{panels} panels"
        )
    alone = len(values) == len(present)  # every method has a panel of its own: its name says which
    names = {(m, f): signs(m) if alone else f"{signs(m)}, {signs(f)}" for m, f in values}
    if len(values) <= 4:
        return f"{at}: {middle}" + ", ".join(
            f"{number(v)} ({names[key]})" for key, v in values.items()
        )
    if len(drawing.facets) > 3 or drawing.kind == "points":
        low, high = number(min(values.values())), number(max(values.values()))
        return (
            f"{at}: {middle}{f'{low} to {high}' if low != high else low} over "
            f"{len(drawing.facets)} panels"
        )
    more = drawing.upwards
    pick = max if more else min
    best = [
        pick((k for k in values if k[1] == f), key=values.__getitem__, default=None)
        for f in drawing.facets
    ]
    shown = ", ".join(f"{number(values[key])} ({names[key]})" for key in best if key is not None)
    return f"{at}, {'highest' if more else 'lowest'} per panel: {shown}"
