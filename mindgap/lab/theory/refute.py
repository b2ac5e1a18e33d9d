"""Search for counterexamples: the largest ratio of what a statement bounds to its bound, at
parameters that meet its assumptions.

An attack is one family of instances for one reading of a statement, solved exactly or bounded on
the safe side. The search tries a grid of its parameters, then moves from the best points in smaller
and smaller steps. A ratio above 1 refutes the statement, and its certificate says why; no ratio
above 1 proves nothing beyond the tries.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mindgap.base.check import fail, positive, whole
from mindgap.lab.theory.attack import Attack
from mindgap.lab.theory.attacks import ATTACKS
from mindgap.lab.theory.certificate import Certificate
from mindgap.lab.theory.erratum import ERRATA, Erratum


@dataclass(frozen=True)
class Outcome:
    """What a search found.

    Example:
        >>> attack = Attack("x", "as printed", "numbers", {"a": (1.0, 8.0)}, lambda p: None)
        >>> Outcome(attack, tries=5, best=None).words()
        'not refuted in 5 tries (no instance met the assumptions)'
    """

    attack: Attack
    tries: int
    best: Certificate | None

    @property
    def refuted(self) -> bool:
        """The best instance contradicts the statement, with a margin above rounding."""
        return self.best is not None and self.best.valid and strength(self.best) > 1 + 1e-9

    def words(self) -> str:
        """The answer in one line."""
        if self.best is None:
            return f"not refuted in {self.tries} tries (no instance met the assumptions)"
        tries = "1 try" if self.tries == 1 else f"{self.tries} tries"
        if self.refuted:
            return f"refuted in {tries}, ratio {strength(self.best):.3g}"
        return f"not refuted in {tries}, largest ratio {strength(self.best):.6g}"


def strength(certificate: Certificate) -> float:
    """How far an instance goes: measured over bound, or bound over measured where the statement is
    a lower bound. Above 1 it contradicts the statement.

    Example:
        >>> strength(Certificate({}, {"x": True}, 2, 4, "at least", "counting"))
        2.0
    """
    if not all(certificate.assumptions.values()):
        return 0.0
    if certificate.claim == "equal to":
        return math.inf if certificate.contradicts else 1.0
    if certificate.claim == "at most":
        return certificate.ratio
    return 1 / certificate.ratio if certificate.ratio > 0 else math.inf


def search(attack: Attack, *, tries: int = 400, seconds: float = 20.0) -> Outcome:
    """The best instance of a family: a grid, then a local search from the three best points.

    Args:
        tries: most instances.
        seconds: most time; the search ends early, and says after how many tries.

    Example:
        >>> def attempt(p):
        ...     return Certificate(dict(p), {"a > 0": True}, p["a"], 4.0, "at most", "counting")
        >>> found = search(Attack("x", "as printed", "numbers", {"a": (1.0, 8.0)}, attempt))
        >>> found.refuted, round(found.best.ratio, 3)
        (True, 2.0)
    """
    whole("tries", tries, least=1)
    deadline = time.monotonic() + positive("seconds", seconds)
    names = list(attack.ranges)
    logs = {name: (math.log(low), math.log(high)) for name, (low, high) in attack.ranges.items()}
    strengths: dict[tuple[float, ...], float] = {}
    best: Certificate | None = None
    best_strength = -1.0

    def value(point: tuple[float, ...]) -> float:
        """The strength of the instance at a point (logarithms), tried once; the best is kept."""
        nonlocal best, best_strength
        if point not in strengths:
            certificate = attack.attempt(
                {name: math.exp(log_value) for name, log_value in zip(names, point)}
            )
            strengths[point] = -1.0 if certificate is None else strength(certificate)
            if certificate is not None and strengths[point] > best_strength:
                best, best_strength = certificate, strengths[point]
        return strengths[point]

    def may_go_on() -> bool:
        return len(strengths) < tries and time.monotonic() < deadline

    values_of = [_line(*logs[name], attack.points) for name in names]
    for point in _spread(list(itertools.product(*values_of)), tries // 2):
        if not may_go_on():
            break
        value(point)
    for start in sorted(strengths, key=strengths.__getitem__, reverse=True)[:3]:
        _climb(start, logs, names, value, may_go_on)
    return Outcome(attack, len(strengths), best)


def _line(low: float, high: float, points: int) -> list[float]:
    """The middles of so many equal parts of an interval."""
    return [low + (high - low) * (i + 0.5) / points for i in range(points)]


def _spread(points: list[tuple[float, ...]], most: int) -> list[tuple[float, ...]]:
    """At most so many of the points, evenly from the whole list."""
    return points[:: max(1, math.ceil(len(points) / max(1, most)))]


def _climb(
    start: tuple[float, ...],
    logs: Mapping[str, tuple[float, float]],
    names: Sequence[str],
    value: Callable[[tuple[float, ...]], float],
    may_go_on: Callable[[], bool],
) -> None:
    """Move from ``start`` along one axis at a time while the value grows; where no step of a length
    helps, halve it, down to 1 % of the range.
    """
    point, step = start, 0.25
    while step > 0.01 and may_go_on():
        improved = False
        for axis, name in enumerate(names):
            low, high = logs[name]
            for sign in (1, -1):
                coordinate = min(high, max(low, point[axis] + sign * step * (high - low)))
                neighbour = (*point[:axis], coordinate, *point[axis + 1 :])
                if may_go_on() and value(neighbour) > value(point):
                    point, improved = neighbour, True
                    break
        step = step if improved else step / 2


def attacks_on(theorem: str) -> list[Attack]:
    """The attacks on a statement, named in full or by its number.

    Example:
        >>> sorted({attack.place for attack in attacks_on("3.4.5")})
        ['Theorem 3.4.5']

    Raises:
        RuleError: no such statement is attacked here.
    """
    searched = {attack.place for attack in ATTACKS}
    single_instances = [
        _attack_of_certificate(row)
        for row in ERRATA
        if row.kind == "refuted" and row.theorem not in searched
    ]
    all_attacks, wanted_words = [*ATTACKS, *single_instances], _words(theorem)
    exact = [attack.place for attack in all_attacks if wanted_words == _words(attack.place)]
    partial = [
        attack.place
        for attack in all_attacks
        if wanted_words and wanted_words <= _words(attack.place)
    ]
    places = set(exact or partial)
    if len(places) != 1:
        names = ", ".join(dict.fromkeys(attack.place for attack in all_attacks))
        rule = "must name one statement of" if places else "must be one of"
        fail("THEOREM", f"{rule} {names}", theorem)
    return [attack for attack in all_attacks if attack.place in places]


def _words(text: str) -> set[str]:
    """Words and numbers of a name, in any order and case."""
    return set(re.findall(r"[a-z]+|\d+(?:[.-]\d+)*", text.lower()))


def _attack_of_certificate(row: Erratum) -> Attack:
    """The one instance of an erratum's certificate, for a statement without a family to search."""
    return Attack(
        row.place,
        "as printed",
        "one instance",
        {},
        lambda p: row.certify(),
    )


def refute(theorem: str, *, tries: int = 400, seconds: float = 55.0) -> list[Outcome]:
    """Search every family against a statement, the time shared among them.

    Example:
        >>> [outcome.refuted for outcome in refute("Lemma 4.7.5", tries=60)]
        [True, False]
    """
    attacks = attacks_on(theorem)
    return [search(attack, tries=tries, seconds=seconds / len(attacks)) for attack in attacks]
