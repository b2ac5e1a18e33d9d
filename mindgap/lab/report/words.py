"""Words of the page: numbers with three digits, subscripts and exponents, and one sentence per
verdict.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from mindgap.record.schema import to_json

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
    if np.isnan(value):
        return "undefined"
    if np.isinf(value):
        return "∞" if value > 0 else "−∞"
    # 1.7e-16 becomes mantissa and exponent.
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return _power(*f"{value:.2e}".split("e"))
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return digits.replace("-", "−")


def _power(mantissa: str, exponent: str) -> str:
    """The number mantissa·10^exponent with a raised exponent, such as 1.7·10⁻¹⁶ or 10⁻³."""
    digits = f"{float(mantissa):.3g}".replace("-", "−")
    factor = "" if digits == "1" else f"{digits}·"
    return f"{factor}10{str(int(exponent)).translate(_UP)}"


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
    proper = str(text)
    for plain_sign, sign in _SIGNS:
        proper = proper.replace(plain_sign, sign)
    proper = re.sub(r"(?<!\w)inf(?!\w)", "∞", _POWER.sub(lambda m: _power(m[1], m[2]), proper))
    # A minus sign before a number, at the start or behind a blank or a bracket.
    proper = re.sub(r"(?<![^ (\[])-(?=[\d.])", "−", proper)
    if digits:
        proper = re.sub(r"(?<![\w.^])\d+\.\d+(?![\w.])", _to_three_digits, proper)
    # Behind a letter, an underscore and one character that has a subscript of its own.
    return re.sub(
        r"(?<=[A-Za-z\u0370-\u03ff‖])_([0-9aehijklmnoprstuvx])(?![\w])",
        lambda m: m[1].translate(_DOWN),
        proper,
    )


def _to_three_digits(match: re.Match[str]) -> str:
    """A matched decimal number rounded to three significant digits; a shorter one as it is."""
    if len(match[0].replace(".", "").lstrip("0")) <= 3:  # it has three digits that count at most
        return match[0]
    value = float(match[0])
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def typeset(text: Any, *, digits: bool = False) -> Markup:
    """Text as HTML, escaped, with the proper signs of :func:`signs` and with subscripts
    (``h_Adam``) and exponents (``n^0.32``, ``n^(1/2)``) as elements. Names such as
    ``gradient_norm`` stay.

    Example:
        >>> str(typeset("n^0.32 < 2h_Adam, m^-0.00, gradient_norm"))
        'n<sup>0.32</sup> &lt; 2h<sub>Adam</sub>, m<sup>0.00</sup>, gradient_norm'
    """
    markup = str(escape(signs(text, digits=digits)))
    markup = re.sub(r"_\{([^}]*)\}", r"<sub>\1</sub>", markup)  # x_{ab}
    # x^(a), whose brackets may hold one more pair
    markup = re.sub(r"\^\(([^()]*(?:\([^()]*\)[^()]*)*)\)", r"<sup>\1</sup>", markup)
    # x^-1.5 or x^2±0.1
    markup = re.sub(
        r"\^(-?[\w./]*\w(?:±[\d.]*\d)?)", lambda m: f"<sup>{_with_minus(m[1])}</sup>", markup
    )
    # x_ab behind a single letter, Greek ones included; a longer name keeps its underscore
    return Markup(
        re.sub(r"(?<![A-Za-z_])([A-Za-z\u0370-\u03ff]|‖)_(\w+)", r"\1<sub>\2</sub>", markup)
    )


def _with_minus(exponent: str) -> str:
    """An exponent with the sign − in the place of a hyphen, where a line might break; -0.00 becomes
    0.00.
    """
    return exponent[1:] if re.fullmatch(r"-0(\.0*)?", exponent) else exponent.replace("-", "−")


def plain(value: Any) -> str:
    """The value of a setting as people write it.

    Example:
        >>> plain(0.1), plain(True), plain([1, 2.5]), plain("a")
        ('0.1', 'yes', '1, 2.5', 'a')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(part) for part in value)
    return str(value) if isinstance(value, (int, str)) else to_json(value)  # None and mappings


def count(number: int, noun: str) -> str:
    """A number with its noun in the singular or the plural.

    Example:
        >>> count(1, "run"), count(2, "run"), count(2, "study")
        ('1 run', '2 runs', '2 studies')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"


@cache
def _sentences() -> dict[str, tuple[str, str]]:
    """Study -> the sentence where it holds, and the one where it does not. Read once from a file
    with lines "study | holds | does not hold".
    """
    file = resources.files("mindgap.lab.report") / "assets" / "findings.txt"
    rows = (line.split(" | ") for line in file.read_text(encoding="utf-8").splitlines())
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
        if_holds, if_not = _sentences()[name]
        return if_holds if verdict == "holds" else if_not
    return title


#: Words in the name of a quantity of which more is better.
MORE_IS_BETTER = ("accuracy", "right", "found exactly", "F1", "area under the curve")
