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
from collections.abc import Callable, Sequence
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
    a lower bound; 0 where it does not meet the assumptions. Above 1 it contradicts the statement.

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
    ranges = list(attack.ranges.values())
    logs = [(math.log(low), math.log(high)) for low, high in ranges]
    strengths: dict[tuple[float, ...], float] = {}
    best: Certificate | None = None
    best_strength = -1.0

    def value(point: tuple[float, ...]) -> float:
        """The strength of the instance at a point (logarithms), tried once; -1 where there is no
        instance. The strongest certificate is kept.
        """
        nonlocal best, best_strength
        if point not in strengths:
            # exp(log(high)) may lie above ``high`` by rounding.
            values = (min(math.exp(x), high) for x, (_, high) in zip(point, ranges))
            certificate = attack.attempt(dict(zip(attack.ranges, values)))
            strengths[point] = -1.0 if certificate is None else strength(certificate)
            if certificate is not None and strengths[point] > best_strength:
                best, best_strength = certificate, strengths[point]
        return strengths[point]

    def may_go_on() -> bool:
        return len(strengths) < tries and time.monotonic() < deadline

    middles = [(i + 0.5) / attack.points for i in range(attack.points)]
    grid = list(
        itertools.product(*([low + (high - low) * m for m in middles] for low, high in logs))
    )
    # At most half of the tries, evenly from the whole grid.
    for point in grid[:: max(1, math.ceil(len(grid) / max(1, tries // 2)))]:
        if not may_go_on():
            break
        value(point)
    for start in sorted(strengths, key=strengths.__getitem__, reverse=True)[:3]:
        _climb(start, logs, value, may_go_on)
    return Outcome(attack, len(strengths), best)


def _climb(
    start: tuple[float, ...],
    limits: Sequence[tuple[float, float]],
    value: Callable[[tuple[float, ...]], float],
    may_go_on: Callable[[], bool],
) -> None:
    """Try points from ``start`` on, along one axis at a time, and move where the value grows; where
    no step of a length helps, halve it, from 25 % down to 1 % of the range. What is found is kept
    by ``value``.
    """
    point, step = start, 0.25
    while step > 0.01 and may_go_on():
        improved = False
        for axis, (low, high) in enumerate(limits):
            for sign in (1, -1):
                coordinate = min(high, max(low, point[axis] + sign * step * (high - low)))
                neighbour = (*point[:axis], coordinate, *point[axis + 1 :])
                if may_go_on() and value(neighbour) > value(point):
                    point, improved = neighbour, True
                    break
        step = step if improved else step / 2


def attacks_on(theorem: str) -> list[Attack]:
    """The attacks on a statement, named in full or by some of its words and numbers, in any order.

    Example:
        >>> sorted({attack.place for attack in attacks_on("3.4.5")})
        ['Theorem 3.4.5']

    Raises:
        RuleError: no statement that is attacked here has such a name, or several have.
    """
    searched = {attack.place for attack in ATTACKS}
    single_instances = [
        _attack_of_certificate(row)
        for row in ERRATA
        if row.kind == "refuted" and row.theorem not in searched
    ]
    all_attacks, wanted_words = [*ATTACKS, *single_instances], _words(theorem)
    places = dict.fromkeys(attack.place for attack in all_attacks)
    named = [place for place in places if _words(place) == wanted_words]
    named = named or [place for place in places if wanted_words and wanted_words <= _words(place)]
    if len(named) != 1:
        rule = "must name one statement of" if named else "must be one of"
        fail("THEOREM", f"{rule} {', '.join(places)}", theorem)
    return [attack for attack in all_attacks if attack.place in named]


def _words(text: str) -> set[str]:
    """Words and numbers of a name, in any order and case."""
    return set(re.findall(r"[a-z]+|\d+(?:[.-]\d+)*", text.lower()))


def _attack_of_certificate(row: Erratum) -> Attack:
    """A refuted statement without a family to search: the one instance of its certificate."""
    return Attack(row.place, "as printed", "one instance", {}, lambda _: row.certify())


def refute(theorem: str, *, tries: int = 400, seconds: float = 55.0) -> list[Outcome]:
    """Search every family against a statement, the time shared among them.

    Example:
        >>> [outcome.refuted for outcome in refute("Lemma 4.7.5", tries=60)]
        [True, False]
    """
    attacks = attacks_on(theorem)
    return [search(attack, tries=tries, seconds=seconds / len(attacks)) for attack in attacks]
