"""Do large gradients point to one side? What tells tails of signal from tails of noise.

    python benchmarks/clipping_sides.py [--tasks "jackpots;bad targets 1 %"]

AdamW at lr 1e-3 trains each task for 1,000 steps with three seeds. u is the running mean (0.99) of
the gradients divided by their norms. Printed: over the tenth of the steps with the largest norms,
from step 100 on, the mean sign of the inner product of the gradient with u. Noise of both sides
gives about 0. Where rare large gradients balance many small ones, they point against u: −1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
import clipping
from clipping_rules import Candidate, Rule, State, norm_of, unit
from clipping_tasks import TASKS

STEPS, FIRST = 1000, 100
SHOWN = (
    "jackpots",
    "judge: lognormal returns",
    "bad targets 1 %",
    "bad targets 10 %",
    "Student t 1.5",
    "returns, Student t 1.5",
    "small net, Student t 1.5",
)


def watched(norms: list[Tensor], signs: list[Tensor]) -> Rule:
    """AdamW's own gradient; norms and signs are noted."""

    def rule(g: Tensor, s: State, k: int, sizes: list[int]) -> Tensor:
        if k > 1:
            norms.append(norm_of(g).flatten())
            signs.append((g * s["u"]).sum(-1).sign().flatten())
        s["u"] = 0.99 * s.get("u", torch.zeros_like(g)) + 0.01 * unit(g)
        return g

    return rule


def sides(name: str) -> list[float]:
    """Per seed the mean sign over the largest tenth."""
    norms: list[Tensor] = []
    signs: list[Tensor] = []
    clipping.train(TASKS[name], [Candidate("AdamW", watched(norms, signs))], STEPS, "cpu")
    size, sign = torch.stack(norms)[FIRST:], torch.stack(signs)[FIRST:]
    large = size >= size.quantile(0.9, 0)
    return [float(sign[:, j][large[:, j]].mean()) for j in range(size.shape[1])]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", default=";".join(SHOWN))
    clipping.RATES = (1e-3,)
    torch.set_num_threads(1)
    for name in parser.parse_args().tasks.split(";"):
        print(f"{name}: {' '.join(f'{x:+.2f}' for x in sides(name))}", flush=True)


if __name__ == "__main__":
    main()
