"""SLIP: single loop, normalised momentum on x, one plain step on y and on the linear system."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mindgap.base.check import fail
from mindgap.bilevel.core.settings import Rate, XStep, choice, count, positive, rate, within
from mindgap.bilevel.core.types import Draws, Oracle, WithMomentum, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan, Samples
from mindgap.bilevel.method import LowerStepMethod


@dataclass(frozen=True, kw_only=True)
class SLIP(LowerStepMethod[WithMomentum, Draws]):
    """Single-loop bilevel optimizer for upper levels of unbounded smoothness.

    Symbols: alpha = ``lr_y``, alpha_init = ``lr_warm``, gamma = ``lr_z``, eta = ``lr_x``, beta =
    ``beta``, T0 = ``warm_start``. The update, after T0 steps on y at x_0::

        y <- y - alpha g_y(x, y; S)                            z <- z - gamma (H(S') z - f_y(S_f))
        m <- beta m + (1 - beta) (f_x(S_f) - J(S') z)          x <- x - eta m / (||m|| + 1e-10)

    with S, S' and S_f independent, and all right sides at the old (x, y, z) (order "jacobi").

    Args:
        lr_x: length of a step on x. The normalised step never shrinks by itself: x ends in a ball
            of this radius, so let it decay (``Power``) or use ``x_step="clipped"`` where accuracy
            matters.
        lr_y: step on y.
        lr_z: step on the linear system.
        beta: momentum, in [0, 1).
        warm_start: steps on y before the first iteration, of the kind ``y_step``.
        lr_warm: their step; ``lr_y`` at iteration 0 if not given.
        x_step: "normalised", "clipped", "plain", or a
            :class:`~mindgap.bilevel.core.settings.TorchStep`.
        y_step: steps on y and z: "plain", ``AdamStep(...)`` or ``MomentumStep(...)``.
        samples: "apart" draws S' beside S, as published. "shared" takes S' = S, so that one double
            backward gives g_y, Hz and Jz; on the standard quadratic the median of ‖∇Φ‖² then ends a
            third lower (docs/bilevel.md). "as released" follows the authors' code for
            hyper-cleaning: g_y and Hz share S at the old y, f_x and f_y are at the new y, and J has
            a sample of its own, at the new y and with the new z.
        order: "jacobi" as published; "seidel" takes the y step first and the rest at the new y,
            which has then seen S. Not with "as released".

    Example:
        >>> SLIP(lr_x=0.01, lr_y=0.1, lr_z=0.1).plan().period[0].samples
        {'y': ('lower', None), 'z': ('lower', None), 'f': ('upper', None)}
        >>> SLIP(lr_x=0.01, lr_y=0.1, lr_z=0.1, samples="shared").plan().period[0].samples
        {'z': ('lower', None), 'f': ('upper', None)}

    Source: Gong, Hao, Liu, ICML 2024 (arXiv 2412.20017), Alg. 1 and 2; T0 = 3, gamma as the linear
    system's step and a single y step per iteration are stated in the authors' answers. Published
    settings: hyper-representation lr_y 0.05, lr_z 0.01, beta 0.9, lr_x 0.1; hyper-cleaning lr_y
    0.05, lr_z 0.01, lr_x 0.05.

    *Not confirmed from the paper's text*: the time indices of z and m on the right sides, and which
    of S, S', S_f are shared between z and m.
    *Differs from the authors' code*: that code sums three losses and takes one warm step, lets
    gradients accumulate over inner steps, averages momenta over tasks, and starts z at random; here
    as in the paper, with z_0 = m_0 = 0.
    """

    lr_z: Rate = rate()
    beta: float = within(0, 1, "[)", 0.9)
    warm_start: int = count(3, least=0)
    lr_warm: float | None = positive(None)
    x_step: XStep = "normalised"
    samples: Literal["apart", "shared", "as released"] = choice("apart", "shared", "as released")
    order: Literal["jacobi", "seidel"] = choice("jacobi", "seidel")

    def __post_init__(self) -> None:
        # These step y apart from z: there is no step with a memory
        super().__post_init__()
        if self.y_step != "plain" and (self.order == "seidel" or self.samples == "as released"):
            fail("y_step", "must be 'plain' with this order and samples", self.y_step)

    def plan(self) -> SamplePlan:
        """T0 warm samples; in every iteration the samples that ``samples`` keeps apart."""
        samples: Samples = {"z": LOWER, "f": UPPER}
        if self.samples == "apart":
            samples = {"y": LOWER, **samples}
        elif self.samples == "as released":
            samples = {**samples, "j": LOWER}
        warm: Samples = {"warm": ("lower", self.warm_start)} if self.warm_start else {}
        return SamplePlan((Iteration(samples),), warm=Iteration(warm, "warm", self.warm_start))

    def prepare(self, v: WithMomentum, s: Draws, oracle: Oracle) -> WithMomentum:
        # T0 steps on y at x_0
        if not self.warm_start:
            return v
        return self.descend(oracle, v, s.warm, s.lr_y if self.lr_warm is None else self.lr_warm)

    def update(self, v: WithMomentum, s: Draws, oracle: Oracle, kind: str) -> WithMomentum:
        """The next values: y and z as ``order`` and ``samples`` say, then m, and x along m."""
        x, y, z = v.x, v.y, v.z
        for_y = s.y if self.samples == "apart" else s.z  # the sample of g_y
        if self.samples == "as released":
            d_y, hz, _ = oracle.system(x, y, z, s.z)  # g_y, Hz and Jz
            y = oracle.move_y(y, d_y, s.lr_y)
            f_x, f_y = oracle.upper(x, y, s.f)
            z = oracle.move(z, hz - f_y, s.lr_z)
            d_x, v = f_x - oracle.mixed(x, y, z, s.j), replace(v, y=y, z=z)
        elif self.order == "seidel":
            y = oracle.move_y(y, oracle.lower(x, y, for_y), s.lr_y)
            _, d_z, d_x = oracle.residuals(x, y, z, s.z, s.f, gradient=False)  # Hz - f_y, f_x - Jz
            v = replace(v, y=y, z=oracle.move(z, d_z, s.lr_z))
        else:
            shared = self.samples == "shared"
            d_y, d_z, d_x = oracle.residuals(x, y, z, s.z, s.f, gradient=shared)
            if not shared:
                d_y = oracle.lower(x, y, for_y)
            v = self.move_yz(oracle, v, s, d_y, d_z)
        v = replace(v, m=oracle.mix(v.m, d_x, 1.0 - self.beta))
        return self.move_x(oracle, v, v.m, s.lr_x)
