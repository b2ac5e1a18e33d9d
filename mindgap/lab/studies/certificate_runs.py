"""Points at which a certificate of stationarity is compared with the exact distance: the loop of
the study N5, and functions whose distance is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgap.lab.studies.spec import Row, Trial


@dataclass
class Instance:
    """A function at one point. Either it has Lipschitz constant 1 and may be non-smooth, or its
    gradient has Lipschitz constant 1.
    """

    x: np.ndarray  # the point, shape (d,)
    gradient: Callable[[np.ndarray], Any]  # point -> a (sub)gradient there, shape (d,)
    #: δ -> the exact distance from 0 to the Goldstein subdifferential ∂_δ f(x), the convex hull of
    #: the gradients within δ of x.
    distance: Callable[[float], float]


def zigzag_instance(rng: np.random.Generator) -> Instance:
    """A piecewise linear function of one variable: 9 random slopes in [-1, 1], at a random point
    between the first and the last of its 8 breaks. ``rng`` is advanced.
    """
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


def affine_instance(rng: np.random.Generator) -> Instance:
    """f(x) = max_i (a_i·x + b_i) of 4 variables with 8 random a_i, ‖a_i‖ <= 1, at a random point.

    Its Goldstein subdifferential is the convex hull of the slopes a_i whose piece is largest
    somewhere within δ of x. ``rng`` draws slopes, offsets b_i and the point, and is advanced.
    """
    dimension, pieces = 4, 8
    slopes = rng.standard_normal((pieces, dimension))
    # Random directions of random lengths.
    slopes /= np.linalg.norm(slopes, axis=1, keepdims=True) / rng.uniform(0.3, 1.0, (pieces, 1))
    offsets = rng.uniform(-0.2, 0.2, pieces)
    x = 0.3 * rng.standard_normal(dimension)

    def distance(delta: float) -> float:
        """The least norm in the hull of the slopes that are largest somewhere within δ of x."""
        from mindgap.measure.min_norm import min_norm_weights

        # How far each piece is from being largest; the hull of the near slopes by its Gram matrix.
        lengths = [np.linalg.norm(shortest_way(i, slopes, offsets, x)) for i in range(pieces)]
        near_slopes = slopes[np.array(lengths) <= delta]
        weights, _ = min_norm_weights(near_slopes @ near_slopes.T)
        return float(np.linalg.norm(weights @ near_slopes))

    return Instance(x, lambda point: slopes[np.argmax(slopes @ point + offsets)], distance)


def shortest_way(piece: int, slopes: np.ndarray, offsets: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The shortest s such that a given piece of max_j (a_j·x + b_j) is largest at x + s.

    With i for that piece it is the minimum of ‖s‖ subject to (a_i - a_j)·s >= the lead of j over i
    at x, for all j. Lawson and Hanson's least distance programming finds it by non-negative least
    squares: for the matrix E with rows (a_i - a_j, lead of j) it minimises ‖Eᵀw - (0, ..., 0, 1)‖
    over w >= 0, and the residual r gives s = -r[:-1] / r[-1].

    Args:
        piece: its number i.
        slopes: a_j, shape (pieces, d).
        offsets: b_j, shape (pieces,).
        x: shape (d,).

    Returns:
        s, shape (d,); infinite where the residual is 0 (the piece is largest nowhere).
    """
    from scipy.optimize import nnls

    others = [other for other in range(len(slopes)) if other != piece]
    differences = np.array([slopes[piece] - slopes[other] for other in others])
    leads = np.array(
        [(slopes[other] - slopes[piece]) @ x + offsets[other] - offsets[piece] for other in others]
    )
    stacked = np.vstack([differences.T, leads])
    target = np.append(np.zeros(len(x)), 1.0)
    weights, misfit = nnls(stacked, target)
    if misfit < 1e-12:
        return np.full(len(x), math.inf)
    residual = stacked @ weights - target
    return -residual[:-1] / residual[-1]


def quadratic_instance(rng: np.random.Generator) -> Instance:
    """f(x) = ½ x·A x of 4 variables at a random point, with a diagonal A of random eigenvalues in
    [0.2, 1], the largest of them 1; the gradient at the point has a norm of at most 0.6.

    The gradients within δ of x are a convex set already, which is its Goldstein subdifferential.
    ``rng`` draws eigenvalues and the point, and is advanced.
    """
    eigenvalues = rng.uniform(0.2, 1.0, 4)
    eigenvalues[0] = 1.0
    x = rng.standard_normal(4)
    x *= 0.6 * rng.uniform() / np.linalg.norm(eigenvalues * x)

    def distance(delta: float) -> float:
        """min ‖A(x + s)‖ over ‖s‖ <= δ; 0 where the minimum of f lies within δ.

        Else s = -(A² + νI)⁻¹A²x with the multiplier ν in [0, ‖x‖/δ] for which ‖s‖ = δ.
        """
        from scipy.optimize import brentq

        if np.linalg.norm(x) <= delta:
            return 0.0

        def step(nu: float) -> np.ndarray:
            """The best s for a multiplier ν."""
            return -(eigenvalues**2) * x / (eigenvalues**2 + nu)

        largest = np.linalg.norm(x) / delta
        nu = brentq(lambda nu: np.linalg.norm(step(nu)) - delta, 0.0, largest, xtol=1e-14)
        return float(np.linalg.norm(eigenvalues * (x + step(nu))))

    return Instance(x, lambda point: eigenvalues * point, distance)


INSTANCES = {"zigzag": zigzag_instance, "affine": affine_instance, "quadratic": quadratic_instance}


def _certificates(instance: Instance, delta: float, samples: int, seed: int) -> np.ndarray:
    """The upper bounds on d(0, ∂_δ f(x)) that ``goldstein_distance`` certifies.

    Args:
        instance: function f and point x.
        delta: the radius δ.
        samples: gradients at most.
        seed: of the random points.

    Returns:
        The bound after 1, 2, ... gradients; shorter than ``samples`` where it stopped before.
    """
    import torch

    from mindgap.base.objective import Objective
    from mindgap.measure.probes.stationarity import goldstein_distance

    model = torch.nn.ParameterList([torch.tensor(instance.x)])  # its only parameter is the point

    def loss(model: Any, batch: Any) -> Any:
        """A linear function of x whose gradient at the model's x is that of the instance: its value
        is not that of f, but only the gradient is read. The batch is not read.
        """
        slope = torch.from_numpy(np.asarray(instance.gradient(model[0].detach().numpy())))
        return (slope * model[0]).sum()

    return goldstein_distance(Objective(model, loss), [0], delta, samples=samples, seed=seed).curve


def loop(trial: Trial) -> Iterator[Row]:
    """Compare the certificate with the exact distance at random points, and test both parts of
    Proposition 5.3.1.

    The first part says that the exact distance is at most ‖∇f(x)‖. The second says, for a smooth
    f: where the distance for the radius ``radius_factor``·ε/3 is at most ε/3, ‖∇f(x)‖ <= ε.

    Args:
        trial: with ``family`` (a key of :data:`INSTANCES`), ``instances`` (how many points),
            ``samples`` (gradients of a certificate), ``deltas``, ``epsilon``, ``radius_factor``.

    Yields:
        For a few numbers of gradients (``step``) the mean ``excess`` of the certificate over the
        exact distance. Last a row that counts the points with each of the properties below.
    """
    rng, samples = trial.numpy_generator("instances"), trial["samples"]
    make_instance, epsilon = INSTANCES[trial["family"]], trial["epsilon"]
    excesses, properties = [], []  # of each point
    for number in range(trial["instances"]):
        instance = make_instance(rng)
        delta = float(rng.choice(trial["deltas"]))
        exact = instance.distance(delta)
        with trial.timed():
            curve = _certificates(instance, delta, samples, trial.seed + 1000 * number)
        excesses.append(curve - exact)
        gradient_norm = float(np.linalg.norm(instance.gradient(instance.x)))
        passes_stronger_test = (
            instance.distance(trial["radius_factor"] * epsilon / 3) <= epsilon / 3
        )
        # The small numbers allow for rounding of the two least-norm problems.
        properties.append(
            {
                "below": curve[-1] < exact - 1e-7,  # the certificate is wrong
                "near": exact <= epsilon / 2,
                "shown": exact <= epsilon / 2 and curve[-1] <= epsilon,  # near, and certified
                "first_fails": exact > gradient_norm + 1e-9,
                "close": passes_stronger_test,
                "second_fails": passes_stronger_test and gradient_norm > epsilon,
            }
        )
    for gradients in np.unique(np.geomspace(1, samples, 12).round().astype(int)):
        # A certificate that stopped before keeps its last bound.
        excesses_then = [excess[min(gradients, len(excess)) - 1] for excess in excesses]
        yield {"step": int(gradients), "excess": float(np.mean(excesses_then))}
    yield {name: sum(bool(point[name]) for point in properties) for name in properties[0]}
