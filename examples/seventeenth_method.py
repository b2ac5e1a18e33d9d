"""A template for a new bilevel method: copy it to ``mindgap/bilevel/methods/yours.py`` and change what is yours.

The method here is SOBA with one upper step for every ``period`` lower ones. It is a frozen dataclass of settings and
four short functions. Everything else (init, step, solve, budgets, checkpoints, compiled backends, distributed runs,
contract tests) works on any method. To make it one of the library's methods, add

* one row to ``mindgap/bilevel/table.py`` and one line to ``mindgap/bilevel/__init__.py``;
* one record to ``tests/cases/bilevel.py``;
* one literal numpy transcription to ``tests/references/`` (the comparison over 200 iterations finds it);
* one line to ``CHANGELOG.md``.

Run it: ``python examples/seventeenth_method.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mindgap.base.check import whole
from mindgap.bilevel import BilevelProblem, solve
from mindgap.bilevel.directions import linear_system
from mindgap.bilevel.draws import Plan
from mindgap.bilevel.lower import project_y
from mindgap.bilevel.method import Method, Values
from mindgap.bilevel.schedules import Rate, as_schedule


@dataclass(frozen=True, kw_only=True)
class PeriodicSOBA(Method):
    """SOBA that moves x every ``period`` iterations only.

    State your symbols and the update here, then Args, Raises, an example that runs, Source, *Differs from the paper*.
    """

    lr_x: Rate
    lr_y: Rate
    period: int = 2

    def __post_init__(self) -> None:
        self.numbers(0)
        whole("period", self.period, least=1)

    # 1. The kinds of iteration over one period. Leave it out if all iterations are alike.
    def kinds(self) -> list[str]:
        return ["inner"] * (self.period - 1) + ["both"]

    # 2. The samples of an iteration of that kind: name -> (stream, count). None is one token, a number an array of
    #    tokens (for ``oracle.ops.loop``), ("uniform", n) a whole number below n.
    def plan(self, kind: str) -> Plan:
        return {"g": ("lower", None), "f": ("upper", None)}

    # 3. The numbers of iteration t (t may be an array: write arithmetic, no ifs).
    def numbers(self, t: Any) -> dict[str, Any]:
        return {name: as_schedule(name, getattr(self, name))(t) for name in ("lr_x", "lr_y")}

    # What the method keeps beside x and y: flat vectors.
    def begin(self, oracle: Any) -> Values:
        return {"z": oracle.ops.zeros_like(oracle.start[1])}

    # 4. The update: a pure function of the values v and the draws s. Derivatives come from the oracle, anything beyond
    #    + - * @ from oracle.ops, so that every backend can run it. ``kind`` is known when the step is compiled.
    def update(self, v: Values, s: Mapping[str, Any], oracle: Any, kind: str) -> Values:
        ops = oracle.ops
        d = linear_system(oracle, v["x"], v["y"], v["z"], s["g"], s["f"])
        new = {"y": project_y(oracle, ops.move(v["y"], d["y"], s["lr_y"])), "z": ops.move(v["z"], d["z"], s["lr_y"])}
        if kind == "both":
            new["x"] = self.move_x(oracle, v, d["x"], s["lr_x"])
        return {**v, **new}


def main() -> float:
    """Choose one ridge penalty per coefficient on validation data; returns the final validation loss."""
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
