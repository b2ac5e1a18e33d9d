"""``mindgap optimizers``, ``methods`` and ``theory``: the library's static tables, printed. None imports torch."""

from __future__ import annotations

from mindgap.cli.show import table


def optimizers() -> None:
    """The optimizers, with their place in the papers."""
    from mindgap.optim.table import OPTIMIZERS

    table(
        ("optimizer", "place", "what it does", "update"),
        [(o.class_name, o.source, o.statement, o.update) for o in OPTIMIZERS.values()],
    )


def methods() -> None:
    """The sixteen bilevel methods (Table 1 of the SLIP paper)."""
    from mindgap.bilevel.registry import METHODS

    rows = [
        (m.key, m.name, m.paper, m.loop, m.setting, m.complexity, m.upper, m.lower, m.batch, ", ".join(m.choices))
        for m in METHODS.values()
    ]
    columns = ("key", "method", "paper", "loop", "setting", "oracle complexity", "f", "g", "batch", "to choose")
    table(columns, rows)


def theory() -> None:
    """The papers' theorems: what each states, what was checked and how it came out."""
    from mindgap.lab.theory.theorem import THEOREMS

    rows = [(t.place, t.statement, t.formula, t.checked_by, t.outcome) for t in THEOREMS]
    table(("place", "statement", "formula", "checked by", "outcome"), rows)
