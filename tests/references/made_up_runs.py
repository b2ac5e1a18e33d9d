"""Records that say what a test wants them to say."""

from __future__ import annotations

import pytest

from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.spec import Parts, Scale, Source, Study
from mindgap.record.schema import End, Header, Run


def count(runs):
    """A pass rule that always holds."""
    parts = Parts()
    parts.add("all are there", True, words=f"{len(runs)} runs")
    return parts


def toy_study(name, loop, settings, methods, **more):
    """A study of two seeds at scale quick."""
    return Study(
        name,
        "S1",
        f"A {name}",
        "It is one.",
        Source("thesis", "1"),
        {"quick": Scale(settings, seeds=2)},
        methods,
        loop,
        count,
        **more,
    )


def verdicts(*, holds=({},), refuted=(), undecided=()):
    """A test of (case, verdict) with these cases."""
    cases = {"holds": holds, "does not hold": refuted, "inconclusive": undecided}
    return pytest.mark.parametrize(
        ("case", "verdict"), [(c, said) for said, all_ in cases.items() for c in all_]
    )


def only_first_seed(runs):
    return [run for run in runs if run.header.seed == 0]


def made_up(study, ends, scale="quick"):
    """Runs of a study with given last rows: ``ends`` maps a method to one row per seed, or to
    all rows of that seed.
    """
    found = find(study)
    runs = []
    for method, rows in ends.items():
        for seed, row in enumerate(rows):
            header = Header(study, found.claim, scale, method, seed, found.settings(scale, method))
            runs.append(
                Run(header, tuple(row) if isinstance(row, list) else (row, row), End("done"))
            )
    return runs
