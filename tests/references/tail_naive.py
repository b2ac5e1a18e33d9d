"""Tail estimators as published, without centring, standardising or correction: what the traps
are made of.
"""

from __future__ import annotations

import numpy as np


def mohammadi(X, K1=100):
    """1/α = [mean log|Y_i| - mean log|X_j|] / log K1 with Y_i the sums of K1 consecutive values
    (App. H of acclip).
    """
    K2 = len(X) // K1
    X = X[: K1 * K2]
    Y = X.reshape(K2, K1).sum(axis=1)
    return 1 / ((np.mean(np.log(np.abs(Y))) - np.mean(np.log(np.abs(X)))) / np.log(K1))


def hill(X, share=0.05):
    """1/α = mean of log X_(j) - log X_(k+1) over the k largest |X|, one value after the other."""
    ordered = sorted(np.abs(X), reverse=True)
    k = int(share * len(X))
    total = 0.0
    for j in range(k):
        total += np.log(ordered[j]) - np.log(ordered[k])
    return k / total


def stable(alpha, size, rng):
    """Symmetric α-stable values by the formula of Chambers, Mallows and Stuck."""
    U = rng.uniform(-np.pi / 2, np.pi / 2, size)
    W = rng.exponential(size=size)
    return (
        np.sin(alpha * U)
        / np.cos(U) ** (1 / alpha)
        * (np.cos((1 - alpha) * U) / W) ** ((1 - alpha) / alpha)
    )
