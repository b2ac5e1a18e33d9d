"""Words of the page: numbers with three digits, subscripts and exponents, and one sentence per
verdict and figure.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape

from mindgap.record.schema import to_json

if TYPE_CHECKING:
    from mindgap.lab.report.drawing import Drawing

_UP = str.maketrans("0123456789-+", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺")
_DOWN = str.maketrans("0123456789aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ")
_SIGNS = (("<=", "≤"), (">=", "≥"), ("!=", "≠"), (" - ", " − "), ("||", "‖"))
_POWER = re.compile(r"(?<![\w.])(-?\d+(?:\.\d+)?)e([+-]?\d+)(?!\w)")


def number(value: float) -> str:
    """Three digits, with an exponent where the number is very large or very small.

    Example:
        >>> number(0.30871), number(1710.0), number(1.7e-16), number(-2.0)
        ('0.309', '1,710', '1.7·10⁻¹⁶', '−2')
    """
    if not np.isfinite(value):
        return "∞" if value > 0 else "−∞" if value < 0 else "undefined"
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return _power(*f"{value:.2e}".split("e"))
    written = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return written.replace("-", "−")


def _power(mantissa: str, exponent: str) -> str:
    head = f"{float(mantissa):.3g}".replace("-", "−")
    return ("" if head == "1" else f"{head}·") + "10" + str(int(exponent)).translate(_UP)


def signs(text: Any, *, digits: bool = False) -> str:
    """Proper signs in plain text: ≤, exponents of ten, subscripts that have a letter of their own.

    Args:
        digits: also cut decimal numbers to three digits (what was measured, never what a paper
            states).

    Example:
        >>> (
        ...     signs("h_k/2 <= 1e-3"),
        ...     signs("0.3087 to 103.8", digits=True),
        ...     signs("||g|| in [-1.8, inf]"),
        ... )
        ('hₖ/2 ≤ 10⁻³', '0.309 to 104', '‖g‖ in [−1.8, ∞]')
    """
    shown = str(text)
    for plain_sign, sign in _SIGNS:
        shown = shown.replace(plain_sign, sign)
    shown = re.sub(r"(?<!\w)inf(?!\w)", "∞", _POWER.sub(lambda m: _power(m[1], m[2]), shown))
    shown = re.sub(r"(?<![^ (\[])-(?=[\d.])", "−", shown)
    if digits:
        shown = re.sub(r"(?<![\w.^])\d+\.\d+(?![\w.])", _three, shown)
    return re.sub(
        r"(?<=[A-Za-z\u0370-\u03ff‖])_([0-9aehijklmnoprstuvx])(?![\w])",
        lambda m: m[1].translate(_DOWN),
        shown,
    )


def _three(match: re.Match[str]) -> str:
    digits = match[0].replace(".", "").lstrip("0")
    if len(digits) <= 3:
        return match[0]
    value = float(match[0])
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def typeset(text: Any, *, digits: bool = False) -> Markup:
    """:func:`signs` with the subscripts and exponents that need HTML.

    Example:
        >>> str(typeset("n^0.32 < 2h_Adam, m^-0.00, gradient_norm"))
        'n<sup>0.32</sup> &lt; 2h<sub>Adam</sub>, m<sup>0.00</sup>, gradient_norm'
    """
    shown = str(escape(signs(text, digits=digits)))
    shown = re.sub(r"_\{([^}]*)\}", r"<sub>\1</sub>", shown)
    shown = re.sub(r"\^\(([^()]*(?:\([^()]*\)[^()]*)*)\)", r"<sup>\1</sup>", shown)
    shown = re.sub(r"\^(-?[\w./]*\w(?:±[\d.]*\d)?)", lambda m: f"<sup>{_minus(m[1])}</sup>", shown)
    return Markup(
        re.sub(r"(?<![A-Za-z_])([A-Za-z\u0370-\u03ff]|‖)_(\w+)", r"\1<sub>\2</sub>", shown)
    )


def _minus(exponent: str) -> str:
    """An exponent with a proper minus sign, at which no line breaks, and without it before a
    zero.
    """
    return exponent[1:] if re.fullmatch(r"-0(\.0*)?", exponent) else exponent.replace("-", "−")


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


def count(n: int, noun: str) -> str:
    """Example:
    >>> count(1, "run"), count(2, "run"), count(2, "study")
    ('1 run', '2 runs', '2 studies')
    """
    return (
        f"{n} {noun}" if n == 1 else f"{n} {noun[:-1]}ies" if noun.endswith("y") else f"{n} {noun}s"
    )


@cache
def _sentences() -> dict[str, tuple[str, str]]:
    lines = (resources.files("mindgap.lab.report") / "assets" / "findings.txt").read_text(
        encoding="utf-8"
    )
    rows = (line.split(" | ") for line in lines.splitlines())
    return {name: (holds, fails) for name, holds, fails in rows}


def finding(name: str, title: str, verdict: str) -> str:
    """What a verdict says, in one sentence; a study without a sentence of its own is named by its
    title.

    Example:
        >>> (
        ...     finding("e8-windows", "Windows", "holds"),
        ...     finding("x1-new", "A new claim", "inconclusive"),
        ... )
        ('An average over a window may never settle.', 'A new claim')
    """
    if verdict in ("holds", "does not hold") and name in _sentences():
        return _sentences()[name][verdict != "holds"]
    return title


#: Words in the name of a quantity of which more is better.
MORE_IS_BETTER = ("accuracy", "right", "found exactly", "F1", "area under the curve")


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
    middle = "median " if drawing.kind == "points" else ""
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
        start = float(first.series[0].columns["q50"][0])
        return f"{title}: from {number(start)} to {number(next(iter(ends.values())))}"
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
