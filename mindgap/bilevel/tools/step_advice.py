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
    hypergradient: float  # its norm at the start; times lr_x it is the length of a first step
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
        lr_x = self.lr_x
        if kind.x_step == "normalised":
            # A tenth: a normalised step does not get shorter as the gradient falls.
            lr_x = lr_x * self.hypergradient / 10
        elif not isinstance(kind.x_step, str):  # Adam moves every coordinate by its step
            lr_x = lr_x * self.hypergradient / math.sqrt(self.dim_x)
        return self.settings_with(kind, lr_x)

    def settings_with(self, kind: Any, lr_x: float) -> dict[str, Any]:
        """Settings of a method's class, or of a method, with ``lr_x`` in its own scale: the rates
        of x, of y and of the linear system, and the step of a Neumann series.
        """
        defaults: dict[str, Any] = {f.name: f.default for f in fields(kind)}
        settings: dict[str, Any] = {"lr_x": lr_x, "lr_y": self.lr_y}
        if "lr_z" in defaults and defaults["lr_z"] is not None:  # None follows lr_y by itself
            settings["lr_z"] = self.lr_z
        if "eta" in defaults and "terms" in defaults:
            settings["eta"] = self.lr_y
        return dict(kind.adapt_settings(settings, self))
