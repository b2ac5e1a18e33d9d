"""Do large gradients point to one side? What tells tails of signal from tails of noise.

    python benchmarks/clipping_sides.py [--tasks "jackpots;bad targets 1 %"]

AdamW with the rule ``sided`` at lr 1e-3 trains each task for 1,000 steps with three seeds. Printed
per seed: the share of the large gradients that agree with the memory of those before. Noise of both
sides gives about a half; where rare large gradients are the answer they agree.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import clipping
from clipping_rules import Candidate, sided
from clipping_tasks import TASKS

STEPS = 1000
SHOWN = (
    "judge: lognormal returns",
    "rare class, weighted",
    "claims, Pareto 2.5",
    "heavy teacher",
    "bad targets 1 %",
    "bad targets 10 %",
    "Student t 1.5",
    "returns, Student t 1.5",
    "small net, Student t 1.5",
)


def agreement(name: str) -> list[float]:
    """Per seed the share of the large gradients that agree with those before them."""
    candidate = Candidate("sides", sided())
    clipping.train(TASKS[name], [candidate], STEPS, "cpu", rates=(1e-3,))
    agreed, differed = candidate.state["agreed"], candidate.state["differed"]
    return (agreed / (agreed + differed).clamp_min(1)).flatten().tolist()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", default=";".join(SHOWN))
    torch.set_num_threads(1)
    for name in parser.parse_args().tasks.split(";"):
        print(f"{name}: {' '.join(f'{x:.2f}' for x in agreement(name))}", flush=True)


if __name__ == "__main__":
    main()
