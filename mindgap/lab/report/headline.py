"""What a figure shows, as one sentence made from its own numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
    along_time = drawing.kind == "lines" and first.name in drawing.TIMES
    middle = f"{drawing.middle} " if drawing.middle else ""
    if drawing.figure.y_label == "share of minibatches":
        return f"{title}: highest at {_span(_tops(drawing))}"
    if "its last value" in drawing.figure.y_label:  # all of them end at 1
        return title
    alone = drawing.facets == ("",) or drawing.figure.facet == "method"
    if drawing.kind == "points" and alone and not drawing.names:
        return f"{title}: {_of_points(drawing)}"
    if len(drawing.facets) > 1 and drawing.figure.facet != "method":
        return f"{title}{_in_panels(drawing, values, ' at the end' if along_time else '', middle)}"
    ends = {method: value for (method, _), value in values.items()}
    if len(ends) == 1 and along_time:
        column = "mean" if drawing.middle == "mean" else "q50"
        start, end = float(first.series[0].columns[column][0]), next(iter(ends.values()))
        return f"{title}: {middle}from {number(start)} to {number(end)}"
    words = _ends(drawing, ends, middle)
    return f"{title}{_place(drawing)}" + (f": {words}" if words else "")


def _tops(drawing: Drawing) -> dict[str, float]:
    """Method -> where its histogram is highest."""
    return {
        s.method: float(s.columns["x"][np.nanargmax(s.columns["q50"])])
        for s in drawing.axes[0].series
        if len(s)
    }


def _place(drawing: Drawing) -> str:
    """Where on the first axis the numbers of a headline are read, in words that follow a title."""
    first = drawing.axes[0]
    if first.name in drawing.SEARCHED:
        return " at the best step"
    if drawing.kind != "lines":
        return ""
    if first.name in drawing.TIMES:
        return " at the end"
    if drawing.names:
        return ""
    label = signs(first.label)
    if len(label) > 24:
        return " at the right end"
    last = max(float(s.columns["x"][-1]) for s in first.series if len(s))
    return f" at {label}{' =' if len(label) < 3 else ''} {number(last)}"


def _ends(drawing: Drawing, ends: dict[str, float], middle: str) -> str:
    """The ends of the methods that a figure stresses, or of up to three, and the range of the
    others; ``middle`` (mean or median) stands before the first number.
    """
    named = [m for m in drawing.accent if m in ends] or (list(ends) if len(ends) <= 3 else [])
    others = {m: v for m, v in ends.items() if m not in named}
    if not named:
        return f"{middle}{_span(others)}" if others else ""
    # A name that ends in a number would run into the value.
    value_first = any(re.search(r"[\d,:]", m) for m in named)
    parts = []
    for i, m in enumerate(named):
        value, name = f"{middle if i == 0 else ''}{number(ends[m])}", signs(m)
        parts.append(f"{value} ({name})" if value_first else f"{name} {value}")
    if len(others) == 1:
        parts += [f"{signs(m)} {number(v)}" for m, v in others.items()]
    elif others:
        low, high = min(others.values()), max(others.values())
        parts.append(f"{len(others)} others {number(low)} to {number(high)}")
    return ", ".join(parts)


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


#: (method, panel) -> where it ends.
_Ends = dict[tuple[str, str], float]


def _in_panels(drawing: Drawing, values: _Ends, at: str, middle: str) -> str:
    """How often the method in question ends ahead; else all values if few, the best per panel,
    or the span; ``at`` says where the values are read, ``middle`` what they are.
    """
    methods = list(dict.fromkeys(method for method, _ in values))
    lead = drawing.accent[0] if drawing.accent else methods[0] if len(methods) == 2 else ""
    if lead in methods and len(methods) > 1:
        return _lead_in_panels(drawing, values, lead, methods)
    alone = len(values) == len(methods)  # every method has a panel of its own: its name says which
    said = {
        (method, facet): f"{number(value)} ({signs(method)}{'' if alone else f', {signs(facet)}'})"
        for (method, facet), value in values.items()
    }
    if len(values) <= 4:
        return f"{at}: {middle}{', '.join(said.values())}"
    if len(drawing.facets) > 3 or drawing.kind == "points":
        low, high = number(min(values.values())), number(max(values.values()))
        reach = f"{low} to {high}" if low != high else low
        return f"{at}: {middle}{reach} over {len(drawing.facets)} panels"
    pick, word = (max, "highest") if drawing.upwards else (min, "lowest")
    by_panel = [[key for key in values if key[1] == facet] for facet in drawing.facets]
    best = [pick(keys, key=values.__getitem__) for keys in by_panel if keys]
    return f"{at}, {word} per panel: {', '.join(said[key] for key in best)}"


def _lead_in_panels(drawing: Drawing, values: _Ends, lead: str, methods: Sequence[str]) -> str:
    """ ": A below B in 3 of 5 panels", to follow what is read: how often one method ends ahead of
    all others that are there (above them where higher is better).
    """
    sign = -1 if drawing.upwards else 1
    ahead = panels = 0
    for facet in drawing.facets:
        others = [sign * values[m, facet] for m in methods if m != lead and (m, facet) in values]
        if (lead, facet) in values and others:
            panels += 1
            ahead += sign * values[lead, facet] < min(others)
    other = next(method for method in methods if method != lead)
    first, second = (f"“{signs(m)}”" if "," in m else signs(m) for m in (lead, other))
    of_two, of_many = ("above", "highest") if drawing.upwards else ("below", "lowest")
    words = f"{of_two} {second}" if len(methods) == 2 else of_many
    return f": {first} {words} in {ahead} of {panels} panels"
