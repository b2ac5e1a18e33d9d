"""Points at which a certificate of stationarity is compared with the exact distance: the loop of
the study N5, and functions whose distance is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgap.lab.studies.spec import Row, Trial


@dataclass
class Instance:
    """A function with Lipschitz constant 1 (non-smooth) or a gradient with Lipschitz constant
    1, at one point.
    """

    x: np.ndarray  # the point
    gradient: Any  # of a point
    distance: Any  # δ -> d(0, ∂f(x + δB)), exactly


def zigzag_instance(rng: np.random.Generator) -> Instance:
    """A piecewise linear function of one variable with random slopes in [-1, 1]."""
    from fractions import Fraction

    from mindgap.lab.theory.chapter5.stationarity import PiecewiseLinear

    breaks = np.cumsum(rng.uniform(0.1, 0.6, size=8))
    slopes = rng.uniform(-1, 1, size=9)
    function = PiecewiseLinear(
        tuple(Fraction(float(position)) for position in breaks),
        tuple(Fraction(float(slope)) for slope in slopes),
    )
    x = rng.uniform(breaks[0], breaks[-1], size=1)
    return Instance(
        x, function.gradients, lambda delta: float(function.distance(float(x[0]), delta))
    )


def affine_instance(rng: np.random.Generator, dimension: int = 4, pieces: int = 8) -> Instance:
    """max_i a_i·x + b_i with ‖a_i‖ <= 1: the Goldstein set is the hull of the a_i that are
    largest within the ball.
    """
    slopes = rng.standard_normal((pieces, dimension))
    slopes /= np.linalg.norm(slopes, axis=1, keepdims=True) / rng.uniform(0.3, 1.0, (pieces, 1))
    offsets = rng.uniform(-0.2, 0.2, pieces)
    x = 0.3 * rng.standard_normal(dimension)

    def distance(delta: float) -> float:
        """The least norm in the hull of the slopes that are largest somewhere within δ of x."""
        from mindgap.measure.min_norm import min_norm_weights

        near_slopes = np.array(
            [
                slopes[i]
                for i in range(pieces)
                if np.linalg.norm(shortest_way(i, slopes, offsets, x)) <= delta
            ]
        )
        weights, _ = min_norm_weights(near_slopes @ near_slopes.T)
        return float(np.linalg.norm(weights @ near_slopes))

    return Instance(x, lambda point: slopes[np.argmax(slopes @ point + offsets)], distance)


def shortest_way(i: int, slopes: np.ndarray, offsets: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The shortest s such that piece i is largest at x + s; infinite where it never is.

    min ‖s‖ with (a_i - a_j)·s >= the lead of j at x, by non-negative least squares (Lawson and
    Hanson, least distance programming).
    """
    from scipy.optimize import nnls

    other_pieces = [other for other in range(len(slopes)) if other != i]
    rows = np.array([slopes[i] - slopes[other] for other in other_pieces])
    leads = np.array(
        [(slopes[other] - slopes[i]) @ x + offsets[other] - offsets[i] for other in other_pieces]
    )
    stacked = np.vstack([rows.T, leads])
    target = np.append(np.zeros(len(x)), 1.0)
    weights, misfit = nnls(stacked, target)
    if misfit < 1e-12:
        return np.full(len(x), math.inf)
    residual = stacked @ weights - target
    return -residual[:-1] / residual[-1]


def quadratic_instance(
    rng: np.random.Generator, dimension: int = 4, reach: float = 0.6
) -> Instance:
    """½ x·A x with eigenvalues in [0.2, 1]: the gradients within δ of x are a convex set
    already.
    """
    values = rng.uniform(0.2, 1.0, dimension)
    values[0] = 1.0
    x = rng.standard_normal(dimension)
    x *= reach * rng.uniform() / np.linalg.norm(values * x)

    def distance(delta: float) -> float:
        """min ‖A(x + s)‖ over ‖s‖ <= δ: s = -(A² + νI)⁻¹A²x, with ν >= 0 such that ‖s‖ = δ."""
        from scipy.optimize import brentq

        if np.linalg.norm(x) <= delta:
            return 0.0

        def step(nu: float) -> np.ndarray:
            return -(values**2) * x / (values**2 + nu)

        nu = brentq(
            lambda nu: np.linalg.norm(step(nu)) - delta, 0.0, np.linalg.norm(x) / delta, xtol=1e-14
        )
        return float(np.linalg.norm(values * (x + step(nu))))

    return Instance(x, lambda point: values * point, distance)


INSTANCES = {"zigzag": zigzag_instance, "affine": affine_instance, "quadratic": quadratic_instance}


def _bounds(instance: Instance, delta: float, samples: int, seed: int) -> np.ndarray:
    """What ``goldstein_distance`` shows after 1, 2, ... gradients."""
    import torch

    from mindgap.base.objective import Objective
    from mindgap.measure.probes.stationarity import goldstein_distance

    class Point(torch.nn.Module):
        """A model whose only parameter is the point."""

        def __init__(self) -> None:
            super().__init__()
            self.x = torch.nn.Parameter(torch.tensor(instance.x))

    def loss(model: Any, batch: Any) -> Any:
        """A function of x whose gradient is that of the instance."""
        slope = torch.from_numpy(np.asarray(instance.gradient(model.x.detach().numpy())))
        return (slope * model.x).sum()  # only its gradient is read

    return goldstein_distance(
        Objective(Point(), loss), [0], delta, samples=samples, seed=seed
    ).curve


def loop(trial: Trial) -> Iterator[Row]:
    """Random points: the certificate against the exact distance, and both parts of Proposition
    5.3.1.
    """
    rng, samples = trial.numpy_generator("instances"), trial["samples"]
    make_instance, epsilon = INSTANCES[trial["family"]], trial["epsilon"]
    curves, rows = [], []
    for number in range(trial["instances"]):
        instance = make_instance(rng)
        delta = float(rng.choice(trial["deltas"]))
        exact = instance.distance(delta)
        with trial.timed():
            curve = _bounds(instance, delta, samples, trial.seed + 1000 * number)
        curves.append(curve - exact)
        gradient_norm = float(np.linalg.norm(instance.gradient(instance.x)))
        passes_stronger_test = (
            instance.distance(trial["radius_factor"] * epsilon / 3) <= epsilon / 3
        )
        rows.append(
            {
                "below": curve[-1] < exact - 1e-7,
                "near": exact <= epsilon / 2,
                "shown": exact <= epsilon / 2 and curve[-1] <= epsilon,
                "first_fails": exact > gradient_norm + 1e-9,
                "close": passes_stronger_test,
                "second_fails": passes_stronger_test and gradient_norm > epsilon,
            }
        )
    for number_of_gradients in np.unique(np.geomspace(1, samples, 12).round().astype(int)):
        yield {
            "step": int(number_of_gradients),
            "excess": float(
                np.mean([curve[min(number_of_gradients, len(curve)) - 1] for curve in curves])
            ),
        }
    yield {name: int(sum(bool(row[name]) for row in rows)) for name in rows[0]}
