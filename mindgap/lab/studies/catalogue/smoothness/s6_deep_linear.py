"""S6: gradient and curvature of deep linear networks grow together (thesis, 3.2.3).

The thesis argues this by the common factors of gradient and Hessian. What the factors give is a
correlation; a bound of the curvature by the gradient fails along the valley of zero loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Source, Study, Trial, scales
from mindgap.lab.studies.verdict import rows_by_method, slope

#: A larger rank correlation than this counts; the rule has it.
CORRELATED = 0.5


def loop_networks(trial: Trial) -> Iterator[Row]:
    """Norms of gradient and Hessian of a deep linear network, at random weights of varying size or
    (setting ``valley``) along the valley of zero loss.

    A row per point holds ``gradient``, ``curvature`` (the Hessian's norm) and ``size``, the norm of
    the weights.
    """
    from mindgap.lab.theory import DeepLinear

    rng = trial.numpy_generator("network")
    if trial["valley"]:
        # Two weights, one sample (1, 1): the loss is 0 where the product of the weights is 1.
        network = DeepLinear(np.ones((1, 1)), np.ones((1, 1)), hidden=(1,))
        points = [network.valley(t) for t in np.geomspace(1, trial["farthest"], 13)]
    else:
        width, samples = trial["width"], trial["samples"]
        network = DeepLinear(
            rng.standard_normal((width, samples)),
            rng.standard_normal((1, samples)),
            hidden=(width,) * (trial["layers"] - 1),
        )
        sizes = np.exp(rng.uniform(np.log(0.1), np.log(3.0), trial["points"]))
        points = [size * rng.standard_normal(network.dimension) / np.sqrt(width) for size in sizes]
    for number, weights in enumerate(points):
        with trial.timed():
            norm, curvature = float(network.gradient_norm(weights)), network.hessian_norm(weights)
        yield {
            "step": number,
            "gradient": max(norm, 1e-16),  # on the valley 0, of which there is no logarithm
            "curvature": curvature,
            "size": float(np.linalg.norm(weights)),
        }


def judge_networks(runs: Sequence[Run]) -> Parts:
    """Ask whether gradient and Hessian norm are correlated over random weights.

    Returns:
        One part: Spearman's rank correlation over all rows of "random weights" is above
        :data:`CORRELATED`. How the curvature grows along the valley, where the gradient vanishes,
        is a note that decides nothing.
    """
    from scipy.stats import spearmanr

    parts, table = Parts(), rows_by_method(runs)
    random_rows, valley_rows = table["random weights"], table["valley of zero loss"]
    pairs = [(row["gradient"], row["curvature"]) for row in random_rows]
    rank = float(spearmanr(pairs).statistic)
    largest_gradient = max(row["gradient"] for row in valley_rows)
    log_sizes, log_curvatures = (  # of the farther half of the valley's 13 points
        np.log([row[name] for row in valley_rows[-6:]]) for name in ("size", "curvature")
    )
    growth, _ = slope(log_sizes, log_curvatures)
    parts.add(
        "gradient and Hessian norm are correlated",
        holds=rank > CORRELATED,
        words=f"rank correlation {rank:.2f}",
        numbers={"rank_correlation": rank},
    )
    parts.note(
        "no bound follows from it: on the valley of zero loss the gradient stays below "
        f"{largest_gradient:.1g} while the curvature grows like |w|^{growth:.2f}, up to "
        f"{valley_rows[-1]['curvature']:.2g}",
        {"valley_growth": growth, "valley_gradient": largest_gradient},
    )
    return parts


S6_DEEP_LINEAR = Study(
    name="s6-deep-linear",
    claim="S6",
    title="Deep linear networks: gradient and curvature grow together",
    statement="Gradient and Hessian of deep linear networks share factors, so that their norms "
    "are correlated over the weights.",
    source=Source("thesis", "3.2.3"),
    scales=scales(
        {"points": 40, "width": 3, "samples": 8, "layers": 3, "farthest": 1e4},
        {"points": 200, "width": 6, "layers": 4},
        seeds=(1, 2),
    ),
    methods={"random weights": {"valley": False}, "valley of zero loss": {"valley": True}},
    loop=loop_networks,
    judge=judge_networks,
    rule="The rank correlation of gradient and Hessian norm over random weights is above "
    "0.5. That the curvature is not bounded along the valley of zero loss is noted, not judged.",
    figures=(
        Figure(
            "Curvature against gradient norm",
            "curvature",
            "‖∇²f‖",
            x="gradient",
            x_label="‖∇f‖",
            kind="points",
            log_x=True,
            log_y=True,
            caption="Over random weights the two grow together; on the valley of zero "
            "loss the gradient is zero and the curvature anything.",
        ),
    ),
)
