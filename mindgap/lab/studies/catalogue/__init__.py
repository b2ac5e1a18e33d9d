"""One file per claim or family of claims, found by their file names; :func:`find` imports the one
that it needs.

A module of a group folder imports without torch. Each :class:`~mindgap.lab.studies.spec.Study`
among its global names is part of the catalogue, and so is each in its tuple ``STUDIES``. A study's
name stands in quotes in its file. A module that cannot be imported is left out of :func:`catalogue`
and named by :func:`broken`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module, resources
from pathlib import Path

from mindgap.base.check import one_of
from mindgap.lab.studies.spec import Study

#: Letters of the claims, in the order of the papers.
ORDER = "BTSHNE"


@cache
def modules() -> dict[str, str]:
    """Module -> its text, for every file of the group folders."""
    return {
        f"{__name__}.{path.parent.name}.{path.stem}": path.read_text(encoding="utf-8")
        for path in sorted(Path(__file__).parent.glob("*/[!_]*.py"))
    }


def find(name: str) -> Study:
    """The study of that name; imports only modules whose text holds the name in quotes.

    Raises:
        RuleError: there is no such study; the message names the nearest one.
    """
    for module, text in modules().items():
        if f'"{name}"' in text:
            for study in studies_of(module):
                if study.name == name:
                    return study
    return catalogue()[one_of("study", name, list(catalogue()))]


def names_that(wanted: Callable[[str], bool]) -> list[str]:
    """The names of studies that ``wanted`` accepts; imports only the modules that may hold them.

    Example:
        >>> names_that(lambda name: name.startswith("e5-"))
        ['e5-cycle']
    """
    candidates = []
    for module, text in modules().items():
        if any(wanted(name) for name in re.findall(r'"([a-z]\d+-[a-z0-9-]+)"', text)):
            candidates += [study for study in studies_of(module) if wanted(study.name)]
    return list(dict.fromkeys(study.name for study in sorted(candidates, key=_place)))


def studies_of(module: str) -> list[Study]:
    """The studies that one module declares."""
    declared = vars(import_module(module))
    return [
        value
        for value in (*declared.values(), *declared.get("STUDIES", ()))
        if isinstance(value, Study)
    ]


def catalogue() -> dict[str, Study]:
    """Name -> study, for every study that can be loaded, in the order of the papers."""
    return _load()[0]


def broken() -> dict[str, str]:
    """File of the catalogue -> why it cannot be loaded."""
    return _load()[1]


@cache
def _load() -> tuple[dict[str, Study], dict[str, str]]:
    """All modules, imported once: name -> study for those that can be loaded, in the order of the
    papers, and file -> error in words for those that cannot.
    """
    studies: list[Study] = []
    errors = {}
    for module in modules():
        try:
            studies += studies_of(module)
        except Exception as error:  # a broken study breaks itself only
            errors[module.removeprefix(f"{__name__}.")] = f"{type(error).__name__}: {error}"
    return {study.name: study for study in sorted(studies, key=_place)}, errors


def _place(study: Study) -> tuple[int, int, str]:
    """Where a study stands in the catalogue: by paper, number of the claim, and name."""
    return ORDER.index(study.claim[0]), int(study.claim[1:]), study.name


@cache
def reference_times() -> dict[str, float]:
    """Study -> seconds of all its runs at scale quick, one after the other; the file says where and
    when.

    Example:
        >>> reference_times()["e5-cycle"] < 60
        True
    """
    text = (resources.files("mindgap.lab.studies") / "reference_times.txt").read_text(
        encoding="utf-8"
    )
    rows = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {name: float(seconds) for name, seconds in rows}
