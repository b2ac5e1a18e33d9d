"""The hyper-cleaning of docs/bilevel.md beside its controls: the same model trained on other
labels.

    python benchmarks/bilevel_controls.py

Runs the first block of the document and prints one row per training set, all on the same test
digits. The controls are the lower problem with every weight one half, solved by L-BFGS.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

DOCUMENT = Path(__file__).parents[1] / "docs" / "bilevel.md"


def trained(features: Tensor, labels: Tensor) -> Tensor:
    """argmin of ½ cross-entropy + 10⁻³ ‖W‖²: the lower loss of the block at x = 0."""
    weights = torch.zeros(features.shape[1], 10, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weights], max_iter=1000, tolerance_grad=1e-7, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = 0.5 * cross_entropy(features @ weights, labels) + 1e-3 * weights.square().sum()
        loss.backward()
        return loss

    solver.step(closure)
    return weights.detach()


def main() -> dict[str, float]:
    """Training set -> test accuracy."""
    found: dict[str, Any] = {}
    exec(
        re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)[0],
        found,
    )
    features, labels, noisy = found["features"], found["labels"], found["noisy"]
    train, clean, test, right = found["train"], found["clean"], found["test"], ~found["wrong"]
    weights = {
        f"all {len(train)} noisy labels": trained(features[train], noisy),
        f"the {int(right.sum())} right ones among them": trained(
            features[train][right], noisy[right]
        ),
        f"the {len(clean)} clean validation digits": trained(features[clean], labels[clean]),
        "SLIP, the block of the document": found["solution"].y,
    }
    return {
        name: float(((features[test] @ w).argmax(1) == labels[test]).float().mean())
        for name, w in weights.items()
    }


if __name__ == "__main__":
    print("| trained on | test accuracy |\n|---|---|")
    for name, share in main().items():
        print(f"| {name} | {share:.3f} |")
