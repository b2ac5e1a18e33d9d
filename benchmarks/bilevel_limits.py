"""How often ``solution.limits`` names the part that limits a run: quadratics on which one rate is a
hundredth of a good one, so that the part is known.

    python benchmarks/bilevel_limits.py develop
    python benchmarks/bilevel_limits.py judge      # other seeds and sizes

The named part is right if it is the slowed one. A run whose exact parts show another one as the
largest (the slowed rate did not bind) is counted as well and not excused.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from mindgap.bilevel import METHODS, BilevelProblem, solve

GOOD = {"lr_x": 0.05, "lr_y": 0.3, "lr_z": 0.3}
PART = {"lr_x": "x", "lr_y": "lower", "lr_z": "system"}
#: seeds and (dim x, dim y) of the quadratics
SETS = {"develop": ((0, 1), ((4, 6),)), "judge": ((10, 11, 12), ((3, 5), (8, 12)))}
STEPS = 150


def quadratic(seed: int, dims: tuple[int, int]) -> BilevelProblem:
    """g = y'Hy/2 - x'Jy + noise, f = |y - t|²/2 + 0.05|x|²; batches differ in J and in linear
    terms.
    """
    g = torch.Generator().manual_seed(seed)
    n, m = dims

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    basis = torch.linalg.qr(normal(m, m))[0]
    h = basis @ torch.diag(torch.linspace(0.5, 1.5, m, dtype=torch.float64)) @ basis.T
    j, target = normal(n, m) / m**0.5, normal(m)
    noise = 0.02 * normal(64, m)
    noise = noise - noise.mean(0)
    return BilevelProblem(
        lambda x, y, b: 0.5 * (y - target - b.mean(0)).square().sum() + 0.05 * x.square().sum(),
        lambda x, y, b: 0.5 * y @ h @ y - (1.0 + b.mean()) * (x @ j @ y) - b.mean(0) @ y,
        normal(n),
        normal(m),
        noise,
        noise,
        batch_size=8,
    )


def main() -> None:
    seeds, sizes = SETS[sys.argv[1]]
    right = clear = clear_right = total = 0
    for key in ("soba", "masoba", "amigo"):
        for slow, part in PART.items():
            for seed in seeds:
                for dims in sizes:
                    rates = {**GOOD, slow: GOOD[slow] / 100}
                    more = {"inner": 1, "solves": 1} if key == "amigo" else {}
                    if key == "soba":
                        from mindgap.bilevel import Constant

                        rates = {name: Constant(value) for name, value in rates.items()}
                    found = solve(quadratic(seed, dims), METHODS[key](**rates, **more), STEPS)
                    limits = found.check().limits
                    total += 1
                    right += limits.largest == part
                    clear += limits.clear
                    clear_right += limits.clear and limits.largest == part
                    if limits.largest != part:
                        print(key, slow, seed, dims, limits.message)
    print(f"{right} of {total} right; {clear} clear, {clear_right} of them right")


if __name__ == "__main__":
    main()
