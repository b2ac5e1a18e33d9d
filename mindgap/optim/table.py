"""The table of optimizers. The command line, the documentation and the contract tests are fed from
it.

Needs no torch: a class is imported when ``load`` is called.
"""

from __future__ import annotations

from dataclasses import dataclass

from mindgap.base.names import Loadable
from mindgap.base.source import Source


@dataclass(frozen=True)
class OptimizerEntry(Loadable):
    """One optimizer: its class, where the paper has it, what it does.

    Example:
        >>> str(OPTIMIZERS["acclip"].source)
        'thesis, Alg. 1'
    """

    name: str  # of the file and of the command line
    class_name: str
    module: str  # where the class is
    source: Source  # where the paper has it
    statement: str  # what it does, in one sentence
    update: str  # its step as a formula


def _entry(
    name: str, class_name: str, source: Source, statement: str, update: str
) -> OptimizerEntry:
    """A row of the table; the class stands in the file of the optimizer's name."""
    return OptimizerEntry(
        name, class_name, f"mindgap.optim.optimizers.{name}", source, statement, update
    )


OPTIMIZERS: dict[str, OptimizerEntry] = {
    entry.name: entry
    for entry in (
        _entry(
            "adamw",
            "AdamW",
            Source("torch", "clip_grad_norm_ and AdamW"),
            "AdamW that clips the gradient's norm itself, at a number or at a running quantile",
            "x ← x − η·m/(√v+ε) with m, v averages of the clipped gradient and its square",
        ),
        _entry(
            "sgd",
            "SGD",
            Source("torch", "clip_grad_norm_ and SGD"),
            "SGD with momentum that clips the gradient's norm itself",
            "x ← x − η·m with m ← μ·m + min{c/‖g‖, 1}·g",
        ),
        _entry(
            "gclip",
            "GClip",
            Source("acclip", "Alg. 1 with (GClip)"),
            "clips the norm of the whole direction at a threshold",
            "x ← x − η·m with m an average of min{τ/‖g‖, 1}·g",
        ),
        _entry(
            "cclip",
            "CClip",
            Source("acclip", "Alg. 1 with (CClip)"),
            "clips every coordinate at its own threshold",
            "x ← x − η·m with m an average of min{τ/|g|, 1}·g, element by element",
        ),
        _entry(
            "acclip",
            "ACClip",
            Source("thesis", "Alg. 1"),
            "clips every coordinate at a running estimate of its gradient's moment",
            "x ← x − η·min{τ/(|m|+ε), 1}·m/(τ+ε) with τ^α the average of |g|^α",
        ),
        _entry(
            "normalized_sgd",
            "NormalizedSGD",
            Source("thesis", "(3.6)"),
            "steps whose length does not depend on the gradient's",
            "x ← x − η·m with m an average of g/(‖g‖+b)",
        ),
        _entry(
            "ingd",
            "INGD",
            Source("thesis", "Alg. 2"),
            "finds descent at distance δ or certifies a (δ, ε)-stationary point; needs a closure",
            "x ← x − δ·m/‖m‖ with m an average of gradients near x",
        ),
        _entry(
            "stochastic_ingd",
            "StochasticINGD",
            Source("thesis", "Alg. 3"),
            "normalised steps, the gradient taken at a random point of the last one",
            "x ← x − m/(p‖m‖+q), y uniform on the segment, g at y",
        ),
    )
}
