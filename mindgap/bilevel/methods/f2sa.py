"""F2SA: first derivatives only; the lower level enters through a growing penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mindgap.bilevel.core.directions import penalty_hypergradient
from mindgap.bilevel.core.settings import Rate, count, flag, positive, rate
from mindgap.bilevel.core.types import Array, Draws, Oracle, WithPenalty, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan, Samples
from mindgap.bilevel.data.sample import Sample
from mindgap.bilevel.method import Method
from mindgap.bilevel.tools.step_advice import StepAdvice


@dataclass(frozen=True, kw_only=True)
class F2SA(Method[WithPenalty, Draws]):
    """Fully first-order stochastic approximation.

    Symbols: gamma_k = ``lr_y`` (a number c means c / (1 + k)^(4/7)), lambda_0 = ``lam``, delta_k =
    ``delta`` (c / (1 + k)^(6/7)), xi = ``lr_x``, T = ``inner``, alpha_k = ``alpha``, by default
    gamma_k / (2 lambda_k). The update::

        T times:  w <- w - gamma_k g_y(x, w; S_w);
            y <- y - alpha_k (f_y(x, y; S_f) + lambda_k g_y(x, y; S_y))
        x <- x - xi alpha_k [f_x(x, y; S_f') + lambda_k (g_x(x, y; S_1) - g_x(x, w; S_2))]
        lambda_{k+1} = lambda_k + delta_k

    y minimises f + lambda g, w minimises g; the last line is at the new y and w (order "seidel").
    The bias of the direction falls as 1 / lambda; below 2 L_f / mu_g the penalty problem is another
    problem.

    Args:
        lr_x: xi, the ratio of x's step to alpha_k.
        lr_y: gamma, the step of w.
        alpha: the step of y; gamma_k / (2 lambda_k) if not given, as in the paper: alpha_k lambda_k
            must stay below about 1 / L.
        lam: lambda_0.
        delta: growth of lambda; 0.0 keeps it.
        inner: T.
        shared_samples: one sample for S_w and S_y and one for S_1 and S_2: common random numbers,
            since lambda multiplies the *difference* of two noisy terms. The paper draws them
            independently.

    Example:
        >>> F2SA(lr_x=1.0, lr_y=0.1, shared_samples=True).plan().period[0].samples
        {'y': ('lower', 1), 'f': ('upper', 1), 'fx': ('upper', None), 'gx': ('lower', None)}

    Source: Kwon, Kwon, Wright, Nowak, ICML 2023, Alg. 1. No second derivative is needed, so kernels
    without double backward (cuDNN's recurrent nets, fused attention) work.

    *Not confirmed from the paper's text*: the exponents 4/7, 5/7 (through the tie) and 6/7 of the
    fully stochastic case.
    *Differs from the public benchmark code*, whose penalty grows as k^(6/7), whose x exponent is
    4/7 and whose step of y is not divided by the penalty (``delta=Power(0.1, 1 / 7)``,
    ``alpha=Power(0.1, 5 / 7)`` and an ``lr_x`` that grows as k^(1/7) say the same here).
    """

    lr_y: Rate = rate(exponent=4 / 7)
    lam: float = positive(10.0)
    delta: Rate = rate(0.1, exponent=6 / 7, zero=True)
    inner: int = count(1)
    alpha: Rate | None = rate(None, exponent=5 / 7)
    shared_samples: bool = flag(False)
    second_order: ClassVar[bool] = False

    @classmethod
    def adapt_settings(cls, settings: dict[str, Any], advice: StepAdvice) -> dict[str, Any]:
        # x moves by lr_x times lr_y / (2 lam), and lam grows.
        return {**settings, "lr_x": advice.lr_x * 2.0 * cls.lam / advice.lr_y}

    def init(self, oracle: Oracle) -> WithPenalty:
        # w begins where y does
        x, y = oracle.start
        return WithPenalty(x, y, y, oracle.scalar(self.lam, y))

    def plan(self) -> SamplePlan:
        """T samples of each inner step, one of x's step; w and y share theirs if it is asked."""
        samples: Samples = {"y": ("lower", self.inner), "f": ("upper", self.inner)}
        if self.shared_samples:
            samples = {**samples, "fx": UPPER, "gx": LOWER}
        else:
            samples = {**samples, "w": ("lower", self.inner), "fx": UPPER, "gx": LOWER, "gw": LOWER}
        return SamplePlan((Iteration(samples, lower_steps=self.inner),))

    def update(self, v: WithPenalty, s: Draws, oracle: Oracle, kind: str) -> WithPenalty:
        """The next values: w and y by inner steps, x by the penalty's gradient, then lambda."""
        x, lam = v.x, v.lam
        gamma = s.lr_y  # the step of w; alpha is that of y
        alpha = gamma / (2.0 * lam) if self.alpha is None else s.alpha

        def step(
            carry: tuple[Array, Array], for_y: Sample, f: Sample, for_w: Sample
        ) -> tuple[Array, Array]:
            """w and y after one step each; ``after`` only orders the reads of compiled code."""
            w, y = carry
            w = oracle.move_y(w, oracle.lower(x, w, for_w), gamma)
            f_y = oracle.upper_y(x, y, oracle.after(f, w))
            g_y = oracle.lower(x, y, for_y if self.shared_samples else oracle.after(for_y, f_y))
            return w, oracle.move_y(y, f_y + lam * g_y, alpha)

        for_w, gw = (s.y, s.gx) if self.shared_samples else (s.w, s.gw)
        w, y = oracle.loop(step, (v.w, v.y), (s.y, s.f, for_w))
        d_x = penalty_hypergradient(oracle, x, y, w, lam, s.fx, s.gx, gw)
        v = self.move_x(oracle, v, d_x, s.lr_x * alpha)
        return replace(v, y=y, w=w, lam=lam + s.delta)
