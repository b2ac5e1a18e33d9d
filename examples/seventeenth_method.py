"""A template for a new bilevel method: copy it to ``mindgap/bilevel/methods/yours.py`` and change
what is yours.

The method here is SOBA with one upper step for every ``period`` lower ones. It is a frozen
dataclass of settings with three hooks; the two further ones, ``rates`` and ``prepare`` (a phase
before the first iteration, such as a warm start), are in ``mindgap/bilevel/method.py``. Everything
else (start, step, solve, budgets, checkpoints, compiled backends, distributed runs, contract tests)
works on any method. To make it one of the library's methods, add

* its file in ``mindgap/bilevel/methods/``;
* two lines to ``_FURTHER`` in ``mindgap/bilevel/registry.py``;
  ``python -m mindgap.bilevel.registry docs/bilevel.md`` then writes the guide's table;
* one record to ``tests/cases/bilevel.py``;
* one literal numpy transcription to ``tests/references/``, and its name to ``bilevel_methods.py``
  there.

Run it: ``python examples/seventeenth_method.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mindgap.bilevel import BilevelProblem, solve
from mindgap.bilevel.core.settings import count
from mindgap.bilevel.core.types import Draws, Oracle, WithZ, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.method import Method


@dataclass(frozen=True, kw_only=True)
class PeriodicSOBA(Method[WithZ, Draws]):
    """SOBA that moves x every ``period`` iterations only.

    Symbols: rho = ``lr_y``, gamma = ``lr_x``. The update, all directions at (x, y, z) on one lower
    and one upper sample::

        y <- y - rho g_y;   z <- z - rho (Hz - f_y);
            every ``period`` iterations: x <- x - gamma (f_x - Jz)

    Args:
        lr_x: step on x.
        lr_y: step on y and z.
        period: iterations per step on x.
        x_step: see :mod:`mindgap.bilevel.core.settings`.

    Example:
        >>> len(PeriodicSOBA(lr_x=0.1, lr_y=0.1, period=3).plan().period)
        3

    Source: Dagreou, Ablin, Vaiter, Moreau, NeurIPS 2022, Alg. 1.

    *Differs from the paper* in the period, and in the sign of z: the paper's v is -z.
    """

    # The settings beside lr_x, lr_y and x_step (the step on x that ``move_x`` takes), which every
    # method has. Each says its own rule (``mindgap/bilevel/core/settings.py`` has more of them);
    # rates come to ``update`` as s.lr_x and s.lr_y.
    period: int = count(2)

    # What the method keeps is a frozen dataclass: here x, y and z. A type checker knows ``v.z`` by
    # it, and ``replace(v, z=...)``. (``init`` can be left out where z, m and h begin at zero.)
    def init(self, oracle: Oracle) -> WithZ:
        x, y = oracle.start
        return WithZ(x, y, oracle.zeros_like(y))

    # The samples of each iteration: name -> (stream, count). LOWER is one lower sample, ("lower",
    # 5) an array of five (for ``oracle.loop``), ("uniform", n) a whole number below n. Most methods
    # have one kind of iteration.
    def plan(self) -> SamplePlan:
        samples = {"g": LOWER, "f": UPPER}
        return SamplePlan(
            (Iteration(samples, "inner"),) * (self.period - 1) + (Iteration(samples, "both"),)
        )

    # The update: a pure function of the values v and the draws s. Derivatives come from the oracle,
    # and anything beyond + - * @ too, so that every backend can run it;
    # ``mindgap/bilevel/core/types.py`` lists them. ``kind`` is known when the step is compiled.
    def update(self, v: WithZ, s: Draws, oracle: Oracle, kind: str) -> WithZ:
        d_y, d_z, d_x = oracle.residuals(v.x, v.y, v.z, s.g, s.f)
        y, z = oracle.move_y(v.y, d_y, s.lr_y), oracle.move(v.z, d_z, s.lr_y)
        v = replace(v, y=y, z=z)
        return self.move_x(oracle, v, d_x, s.lr_x) if kind == "both" else v


def main() -> float:
    """Choose one ridge penalty per coefficient on validation data; returns the final validation
    loss.
    """
    torch.manual_seed(0)
    features = torch.randn(80, 5)
    targets = features[:, 0] + 0.1 * torch.randn(80)
    problem = BilevelProblem(
        upper=lambda x, y, b: (b[0] @ y - b[1]).square().mean(),
        lower=lambda x, y, b: (b[0] @ y - b[1]).square().mean() + x.exp() @ y.square(),
        x=torch.zeros(5),
        y=torch.zeros(5),
        upper_data=(features[:40], targets[:40]),
        lower_data=(features[40:], targets[40:]),
        batch_size=20,
    )
    solution = solve(problem, PeriodicSOBA(lr_x=0.3, lr_y=0.1), steps=2000).check()
    return float(problem.loss("upper", solution.state.x, solution.state.y))


if __name__ == "__main__":
    print(f"validation loss {main():.4f}")
