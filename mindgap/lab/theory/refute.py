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
from mindgap.lab.theory.attacks import ATTACKS, Attack
from mindgap.lab.theory.certificate import Certificate
from mindgap.lab.theory.erratum import ERRATA, Erratum

#: The lengths of a local search's moves, as parts of a parameter's range on the log scale.
LONGEST_MOVE, SHORTEST_MOVE = 0.25, 0.01


@dataclass(frozen=True)
class Outcome:
    """What a search found.

    Example:
        >>> attack = Attack("x", "as printed", "numbers", {"a": (1.0, 8.0)}, lambda p: None)
        >>> Outcome(attack, tries=5, best=None).words()
        'not refuted in 5 tries (no instance met the assumptions)'
    """

    attack: Attack  # the family that was searched
    tries: int  # how many instances were tried
    best: Certificate | None  # the strongest instance; None where none met the assumptions

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
    # "at least" and "above": the statement is a lower bound.
    return 1 / certificate.ratio if certificate.ratio > 0 else math.inf


def search(attack: Attack, *, tries: int = 400, seconds: float = 20.0) -> Outcome:
    """Search a family for its strongest instance: a grid, then local searches from the three
    strongest points of the grid.

    The parameters are searched on a log scale. The grid takes at most half of the tries.

    Args:
        attack: the family, with its parameters' ranges.
        tries: most instances.
        seconds: most time; the search ends early, and says after how many tries.

    Returns:
        The strongest instance (see ``strength``) and the number of tries.

    Example:
        >>> def attempt(p):
        ...     return Certificate(dict(p), {"a > 0": True}, p["a"], 4.0, "at most", "counting")
        >>> found = search(Attack("x", "as printed", "numbers", {"a": (1.0, 8.0)}, attempt))
        >>> found.refuted, round(found.best.ratio, 3)
        (True, 2.0)
    """
    whole("tries", tries, least=1)
    deadline = time.monotonic() + positive("seconds", seconds)
    log_ranges = [(math.log(low), math.log(high)) for low, high in attack.ranges.values()]
    strengths: dict[tuple[float, ...], float] = {}  # point in logarithms -> its strength
    best: Certificate | None = None
    best_strength = -1.0  # below every instance's

    def try_point(point: tuple[float, ...]) -> float:
        """Return the strength of the instance at a point (logarithms of the parameters); -1 where
        there is no instance. A point is tried once: ``strengths`` remembers it, and ``best`` the
        strongest certificate so far.
        """
        nonlocal best, best_strength
        if point not in strengths:
            # exp(log(high)) may lie above ``high`` by rounding.
            parameters = {
                name: min(math.exp(logarithm), high)
                for logarithm, (name, (_, high)) in zip(point, attack.ranges.items())
            }
            certificate = attack.attempt(parameters)
            strengths[point] = -1.0 if certificate is None else strength(certificate)
            if certificate is not None and strengths[point] > best_strength:
                best, best_strength = certificate, strengths[point]
        return strengths[point]

    def may_go_on() -> bool:
        """Whether tries and time are left; every point in ``strengths`` was a try."""
        return len(strengths) < tries and time.monotonic() < deadline

    # The grid's coordinates are the middles of ``points`` equal parts of each range.
    middles = [(i + 0.5) / attack.points for i in range(attack.points)]
    axes = [[low + (high - low) * middle for middle in middles] for low, high in log_ranges]
    grid = list(itertools.product(*axes))
    # At most half of the tries, evenly from the whole grid.
    stride = max(1, math.ceil(len(grid) / max(1, tries // 2)))
    for point in grid[::stride]:
        if not may_go_on():
            break
        try_point(point)
    # The strongest three of the grid.
    for start in sorted(strengths, key=strengths.__getitem__, reverse=True)[:3]:
        _climb(start, log_ranges, try_point, may_go_on)
    return Outcome(attack, len(strengths), best)


def _climb(
    start: tuple[float, ...],
    limits: Sequence[tuple[float, float]],
    try_point: Callable[[tuple[float, ...]], float],
    may_go_on: Callable[[], bool],
) -> None:
    """Search from ``start`` along one axis at a time, and move where the strength grows.

    Where no move of a length helps on any axis, the length is halved, from LONGEST_MOVE down to
    SHORTEST_MOVE. Nothing is returned: ``try_point`` keeps what is found.

    Args:
        start: a point, one logarithm per parameter.
        limits: least and greatest logarithm of every parameter.
        try_point: the strength at a point.
        may_go_on: whether tries and time are left.
    """
    point, length = start, LONGEST_MOVE
    while length > SHORTEST_MOVE and may_go_on():
        improved = False
        for axis, (low, high) in enumerate(limits):
            for sign in (1, -1):
                coordinate = min(high, max(low, point[axis] + sign * length * (high - low)))
                neighbour = (*point[:axis], coordinate, *point[axis + 1 :])
                if may_go_on() and try_point(neighbour) > try_point(point):
                    point, improved = neighbour, True
                    break  # the other sign leads back; on to the next axis
        if not improved:
            length /= 2


def attacks_on(theorem: str) -> list[Attack]:
    """The attacks on a statement: its families of :data:`ATTACKS`, or, where a refuted statement
    has no family, the one instance of its certificate.

    Args:
        theorem: the statement, named in full or by some of its words and numbers, in any order.

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
    places = dict.fromkeys(attack.place for attack in all_attacks)  # distinct, in order
    named = [place for place in places if _words(place) == wanted_words]
    if not named and wanted_words:  # no name has exactly these words: one that has them all
        named = [place for place in places if wanted_words <= _words(place)]
    if len(named) != 1:
        rule = "must name one statement of" if named else "must be one of"
        fail("THEOREM", f"{rule} {', '.join(places)}", theorem)
    return [attack for attack in all_attacks if attack.place in named]


def _words(text: str) -> set[str]:
    """The words and numbers of a name, in lower case: {"theorem", "3.4.5"} of "Theorem 3.4.5"."""
    return set(re.findall(r"[a-z]+|\d+(?:[.-]\d+)*", text.lower()))


def _attack_of_certificate(row: Erratum) -> Attack:
    """The attack on a refuted statement that has one instance only, that of its certificate."""
    return Attack(row.place, "as printed", "one instance", {}, lambda _: row.certify())


def refute(theorem: str, *, tries: int = 400, seconds: float = 55.0) -> list[Outcome]:
    """Search every family against a statement; the families share the time equally.

    Args:
        theorem: the statement, named as for :func:`attacks_on`.
        tries: most instances per family.
        seconds: most time for all families together.

    Example:
        >>> [outcome.refuted for outcome in refute("Lemma 4.7.5", tries=60)]
        [True, False]
    """
    attacks = attacks_on(theorem)
    return [search(attack, tries=tries, seconds=seconds / len(attacks)) for attack in attacks]
