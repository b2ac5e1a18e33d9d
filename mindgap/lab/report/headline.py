"""What a figure shows, as one sentence made from its own numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from mindgap.lab.report.drawing import AXES, SEARCHED, Drawing
from mindgap.lab.report.words import number, signs


def headline(drawing: Drawing) -> str:
    """What a figure shows, as one sentence: its title, and behind it the numbers at which the
    methods end, or between which their points lie. The title alone where there are no such numbers.
    """
    title = signs(drawing.figure.title).rstrip(".")
    # The end of a path, or a place that a title asks for, is no number of its y-axis.
    if drawing.empty or drawing.kind == "path" or title.startswith("Where "):
        return title
    axis, values = drawing.axes[0], drawing.ends()  # (method, panel) -> its end value
    along_time = drawing.kind == "lines" and axis.name in AXES
    average = f"{drawing.average} " if drawing.average else ""
    if drawing.figure.y_label == "share of minibatches":  # a histogram
        modes = {  # method -> the place of its highest bar
            series.method: float(series.columns["x"][np.nanargmax(series.columns["q50"])])
            for series in axis.series
            if len(series)
        }
        return f"{title}: highest at {_span(modes)}"
    if "its last value" in drawing.figure.y_label:  # all lines end at 1
        return title
    panel_per_method = drawing.figure.facet == "method"
    one_panel_each = drawing.facets == ("",) or panel_per_method
    if drawing.kind == "points" and one_panel_each and not drawing.names:
        return f"{title}: {_point_words(drawing)}"
    if len(drawing.facets) > 1 and not panel_per_method:
        read_at = " at the end" if along_time else ""
        return f"{title}{_panel_words(drawing, values, read_at, average)}"
    ends = {method: value for (method, _), value in values.items()}
    if len(ends) == 1 and along_time:
        column = "mean" if drawing.average == "mean" else "q50"
        start, end = float(axis.series[0].columns[column][0]), next(iter(ends.values()))
        return f"{title}: {average}from {number(start)} to {number(end)}"
    end_words = _end_words(drawing, ends, average)
    return f"{title}{_place_words(drawing)}" + (f": {end_words}" if end_words else "")


def _place_words(drawing: Drawing) -> str:
    """Where on the first x-axis the numbers of a headline are read, in words that follow a title,
    such as " at the end"; empty for a scatter and where the axis has names.
    """
    axis = drawing.axes[0]
    if axis.name in SEARCHED:
        return " at the best step"
    if drawing.kind != "lines":
        return ""
    if axis.name in AXES:
        return " at the end"
    if drawing.names:
        return ""
    label = signs(axis.label)
    if len(label) > 24:  # too long for a title
        return " at the right end"
    right_end = max(float(series.columns["x"][-1]) for series in axis.series if len(series))
    equals = " =" if len(label) < 3 else ""  # behind a symbol
    return f" at {label}{equals} {number(right_end)}"


def _end_words(drawing: Drawing, ends: dict[str, float], average: str) -> str:
    """The end values of the methods in words. Each method that the claim is about stands by itself,
    or all of up to three methods; the others are a range. Empty where no method has an end value.

    Args:
        ends: method -> its end value.
        average: ``"mean "`` or ``"median "``, which stands before the first number; or empty.
    """
    stressed = [method for method in drawing.accent if method in ends]  # stand by themselves
    if not stressed and len(ends) <= 3:
        stressed = list(ends)
    others = {method: end for method, end in ends.items() if method not in stressed}
    if not stressed:
        return f"{average}{_span(others)}" if others else ""
    # A name that ends in a number would run into the value.
    value_first = any(re.search(r"[\d,:]", method) for method in stressed)
    parts: list[str] = []
    for method in stressed:
        value = number(ends[method]) if parts else f"{average}{number(ends[method])}"
        parts.append(f"{value} ({signs(method)})" if value_first else f"{signs(method)} {value}")
    if len(others) == 1:
        parts += [f"{signs(method)} {number(end)}" for method, end in others.items()]
    elif others:
        low, high = min(others.values()), max(others.values())
        parts.append(f"{len(others)} others {number(low)} to {number(high)}")
    return ", ".join(parts)


def _point_words(drawing: Drawing) -> str:
    """What a scatter shows in words, method by method: the range of y where the figure has
    horizontal rules or x does not vary, else Spearman's rank correlation of x and y. Methods with
    fewer than three finite points are left out.
    """
    from scipy.stats import spearmanr

    texts = []
    for method in drawing.methods:
        series = [series for series in drawing.axes[0].series if series.method == method]
        x, y = (
            # The empty array in front stands for a method without a series.
            np.concatenate([np.empty(0), *(one.columns[channel] for one in series)])
            for channel in "xy"
        )
        finite = np.isfinite(x) & np.isfinite(y)
        if finite.sum() < 3:
            continue
        low, high = number(y[finite].min()), number(y[finite].max())
        name = f" ({signs(method)})" if len(drawing.methods) > 1 else ""
        if drawing.figure.hlines or np.ptp(x[finite]) == 0 or low == high:
            texts.append(f"{low}{name}" if low == high else f"between {low} and {high}{name}")
        else:
            texts.append(f"{spearmanr(x[finite], y[finite])[0]:.2f}{name}".replace("-", "−"))
    # Ranges begin with "between", and beside rules there are no correlations.
    are_correlations = texts and not texts[0].startswith("between") and not drawing.figure.hlines
    return ("rank correlation " if are_correlations else "") + ", ".join(texts)


def _span(values: dict[str, float]) -> str:
    """The smallest and the largest value with their names, or the one value that all have."""
    lowest, highest = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    low, high = number(values[lowest]), number(values[highest])
    if low == high:
        return f"{low} for all"
    return f"{low} ({signs(lowest)}) to {high} ({signs(highest)})"


#: (method, panel) -> its end value.
_Ends = dict[tuple[str, str], float]


def _panel_words(drawing: Drawing, values: _Ends, read_at: str, average: str) -> str:
    """What several panels show, in words that follow the title.

    How often the method that the claim is about, or the first of two, ends ahead of the others.
    Without such a method: all values if they are few, the best one per panel, or the range of all.

    Args:
        values: (method, panel) -> its end value.
        read_at: where the values are read, with a blank before it, or empty.
        average: ``"mean "`` or ``"median "``, or empty.
    """
    methods = list(dict.fromkeys(method for method, _ in values))
    first_of_two = methods[0] if len(methods) == 2 else ""
    lead = drawing.accent[0] if drawing.accent else first_of_two
    if lead in methods and len(methods) > 1:
        return _lead_words(drawing, values, lead, methods)
    one_panel_each = len(values) == len(methods)  # the method's name says which panel
    words_of = {}  # (method, panel) -> its value with the names
    for (method, facet), value in values.items():
        where = "" if one_panel_each else f", {signs(facet)}"
        words_of[method, facet] = f"{number(value)} ({signs(method)}{where})"
    if len(values) <= 4:
        return f"{read_at}: {average}{', '.join(words_of.values())}"
    if len(drawing.facets) > 3 or drawing.kind == "points":
        low, high = number(min(values.values())), number(max(values.values()))
        span = f"{low} to {high}" if low != high else low
        return f"{read_at}: {average}{span} over {len(drawing.facets)} panels"
    # The best method's value of each panel.
    best_of, best_word = (max, "highest") if drawing.more_is_better else (min, "lowest")
    keys_of = [[key for key in values if key[1] == facet] for facet in drawing.facets]
    best_keys = [best_of(keys, key=values.__getitem__) for keys in keys_of if keys]
    return f"{read_at}, {best_word} per panel: {', '.join(words_of[key] for key in best_keys)}"


def _lead_words(drawing: Drawing, values: _Ends, lead: str, methods: Sequence[str]) -> str:
    """In how many panels one method ends ahead of all others that are there, as words that follow
    the title, such as ": A below B in 3 of 5 panels". Ahead is above where higher is better.

    Args:
        values: (method, panel) -> its end value.
        lead: the method that is counted, one of ``methods``.
    """
    rivals = [method for method in methods if method != lead]
    ahead = panels = 0
    for facet in drawing.facets:
        rival_values = [values[rival, facet] for rival in rivals if (rival, facet) in values]
        if (lead, facet) in values and rival_values:
            panels += 1
            value = values[lead, facet]
            above, below = value > max(rival_values), value < min(rival_values)
            ahead += above if drawing.more_is_better else below
    # Quotation marks where a name has a comma of its own.
    lead_name, rival_name = (
        f"“{signs(method)}”" if "," in method else signs(method) for method in (lead, rivals[0])
    )
    if len(rivals) == 1:
        comparison = f"{'above' if drawing.more_is_better else 'below'} {rival_name}"
    else:
        comparison = "highest" if drawing.more_is_better else "lowest"
    return f": {lead_name} {comparison} in {ahead} of {panels} panels"
