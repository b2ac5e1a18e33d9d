"""What ``suggest_steps`` proposes for all methods, and the settings of each that follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from mindgap.base.check import one_of
from mindgap.bilevel.registry import METHODS


@dataclass(frozen=True)
class StepAdvice:
    """Proposed steps, and what they were computed from."""

    lr_y: float  # step on y, and of a Neumann series: 0.4 over the largest curvature
    lr_z: float  # step on the linear system
    lr_x: float  # proposed plain step on x; the range below is what to search
    lr_x_range: tuple[float, float]  # least and largest step worth trying on x
    curvature: float  # largest eigenvalue of the lower Hessian over some minibatches
    hypergradient: (
        float  # norm of the hypergradient at the start; lr_x times it is the length of a first step
    )
    upper_curvature: float  # change of the hypergradient per unit of x, along itself
    dim_x: int  # number of upper unknowns

    def settings(self, key: str) -> dict[str, Any]:
        """Settings of a method by its key in ``METHODS``, in that method's own scale (a length, a
        ratio, Adam's step).

        ``x_step`` gives the scale of lr_x; a method with another scale says so in
        ``Method.adapt_settings``.

        Example:
            >>> StepAdvice(0.4, 0.4, 0.1, (0.01, 0.3), 1.0, 2.0, 1.0, 4).settings("slip")
            {'lr_x': 0.02, 'lr_y': 0.4, 'lr_z': 0.4}
        """
        one_of("key", key, METHODS)
        kind = METHODS[key].load()
        known: dict[str, Any] = {f.name: f.default for f in fields(kind)}
        found: dict[str, Any] = {"lr_x": self.lr_x, "lr_y": self.lr_y}
        if kind.x_step == "normalised":
            # A tenth: a normalised step does not get shorter as the gradient falls.
            found["lr_x"] = self.lr_x * self.hypergradient / 10
        elif not isinstance(kind.x_step, str):  # Adam moves every coordinate by its step
            found["lr_x"] = self.lr_x * self.hypergradient / math.sqrt(self.dim_x)
        if "lr_z" in known and known["lr_z"] is not None:
            found["lr_z"] = self.lr_z
        if "eta" in known and "terms" in known:
            found["eta"] = self.lr_y
        return dict(kind.adapt_settings(found, self))
