"""Errata of the papers as records: what is printed, what holds, why, and how sure that is.

The records stand in ``errata/*.txt``, one file per chapter of the thesis and one for the documents
on SLIP. ``docs/errata.md``, the remarks of :data:`~mindgap.lab.theory.theorem.THEOREMS`, the
README's count and ``mindgap theory`` are made from them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mindgap.base.check import fail, one_of

if TYPE_CHECKING:
    from mindgap.lab.theory.certificate import Certificate

#: Kind -> what the word means, on every page.
KINDS = {
    "refuted": "a counterexample meets every assumption of the printed sentence, at its own "
    "constants and horizon; a certificate, run by a test, gives the instance and its margin",
    "proof only": "a step of a proof fails; the statement that it proves may be true",
    "loose": "true; a smaller constant holds too",
    "misprint": "a symbol or a reference is wrong, and the proof or its neighbours have it right",
    "reading": "the text allows two readings; it is right in one of them",
}


@dataclass(frozen=True)
class Erratum:
    """One place where a paper disagrees with itself or with what can be shown.

    Example:
        >>> row = Erratum("1", "Theorem 0", "loose", "1 + 1 <= 3", "1 + 1 <= 2", "count", "reading")
        >>> row.remark
        'loose (Theorem 0): printed 1 + 1 <= 3; 1 + 1 <= 2'
        >>> Erratum("1", "Theorem 0", "refuted", "1 + 1 = 3", "1 + 1 = 2", "count", "reading")
        Traceback (most recent call last):
        mindgap.base.check.RuleError: certificate must be named: without one nothing is ...
    """

    chapter: str  # the thesis' chapter that the place belongs to, or "slip"
    place: str  # where it stands, as the paper numbers it
    kind: str  # one of KINDS
    printed: str  # what is printed
    holds: str  # what holds instead
    derivation: str  # why, in one or two lines, from the paper alone
    shown_by: str  # tests, studies, or "reading", separated by commas
    #: Module and function below ``mindgap.lab.theory.certificates`` that show the printed sentence
    #: to be false; needed for *refuted*.
    certificate: str = ""
    studies: str = ""  # studies whose parts "as printed" judge this very sentence
    theorem: str = ""  # the row of the table of theorems that the place belongs to

    def __post_init__(self) -> None:
        one_of("kind", self.kind, KINDS)
        for name in ("place", "printed", "holds", "derivation", "shown_by"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                fail(name, "must be a non-empty text", value)
        if self.kind == "refuted" and not self.certificate:
            fail("certificate", "must be named: without one nothing is refuted", self.certificate)

    @property
    def tests(self) -> tuple[str, ...]:
        """The tests that show it."""
        return tuple(name for name in self._split_names(self.shown_by) if name.startswith("test_"))

    @property
    def judged_by(self) -> tuple[str, ...]:
        """Names of the studies that judge the printed sentence."""
        return self._split_names(self.studies)

    def certify(self) -> Certificate:
        """Run the function that ``certificate`` names and return its certificate; imports its
        module.

        Raises:
            RuleError: the erratum has none.
        """
        from importlib import import_module

        if not self.certificate:
            fail("certificate", f"must be named for {self.place}", self.certificate)
        module, _, name = self.certificate.partition(".")
        functions = import_module(f"mindgap.lab.theory.certificates.{module}")
        certificate: Certificate = getattr(functions, name)()
        return certificate

    @property
    def remark(self) -> str:
        """The erratum in one sentence, for the table of theorems."""
        return f"{self.kind} ({self.place}): printed {self.printed}; {self.holds}"

    @staticmethod
    def _split_names(text: str) -> tuple[str, ...]:
        """The names in a text that commas separate; none for an empty text."""
        return tuple(part.strip() for part in text.split(",") if part.strip())


def _read(path: Path) -> list[Erratum]:
    """The errata of one file, in its order.

    Blocks of ``name: value`` lines are separated by empty lines; lines that begin with ``#`` are
    comments. The chapter is the file's name without "chapter".
    """
    rows = []
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        lines = [line for line in block.strip().splitlines() if not line.startswith("#")]
        if lines:
            row = dict(line.split(": ", 1) for line in lines)
            row["shown_by"] = row.pop("shown by")  # the field is a Python name, without a space
            rows.append(Erratum(path.stem.removeprefix("chapter"), **row))
    return rows


#: In the papers' order; acclip's stand with the thesis' chapter 4, which it became.
ERRATA: tuple[Erratum, ...] = tuple(
    row for path in sorted(Path(__file__).with_name("errata").glob("*.txt")) for row in _read(path)
)


def counts() -> dict[str, int]:
    """Kind -> number of errata, in the order of :data:`KINDS`.

    Example:
        >>> sum(counts().values()) == len(ERRATA)
        True
    """
    number_of = Counter(row.kind for row in ERRATA)
    return {kind: number_of[kind] for kind in KINDS}


def about(study: str) -> list[Erratum]:
    """The errata whose printed sentence a study judges.

    Example:
        >>> [row.place for row in about("h10-rmsprop-is-clipping")]
        ['acclip, 3.1; thesis, 7.2.1']
    """
    return [row for row in ERRATA if study in row.judged_by]
