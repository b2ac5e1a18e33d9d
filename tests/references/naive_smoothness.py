"""The smoothness estimate as published code computes it, faults included, to show what they cause.

One midpoint; gradients summed over batches while the norm is divided by their number; the two
gradients on different random chunks of the data.
"""

from __future__ import annotations

import numpy as np


def naive_smoothness(gradient, x, x_next, n_samples, chunk, chunks, rng) -> float:
    """gradient(x, rows) is the mean gradient over those rows; x, x_next numpy vectors."""
    middle = (x + x_next) / 2

    def estimate(at):
        total = 0.0
        for _ in range(chunks):  # summed, not averaged
            rows = rng.integers(0, n_samples, size=chunk)  # another chunk at every call
            total = total + gradient(at, rows)
        return total

    return float(np.linalg.norm(estimate(middle) - estimate(x)) / np.linalg.norm(middle - x))
