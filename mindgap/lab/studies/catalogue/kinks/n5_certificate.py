"""N5: a certificate of (δ, ε)-stationarity at a given point, against exact distances; Proposition
5.3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindgap.lab.studies.certificate_runs import loop
from mindgap.lab.studies.spec import Figure, Parts, Run, Source, Study, scales
from mindgap.lab.studies.verdict import by_method

#: Fewer points than these to which a statement applies decide nothing.
ENOUGH = 5


def judge(runs: Sequence[Run]) -> Parts:
    """Count the points that break a statement about the certificate, per kind of function.

    The last row of a run holds counters of points: ``below`` (bound under the exact distance),
    ``first_fails`` (gradient shorter than the distance), ``close`` (passed the test with ε/3),
    ``second_fails`` (and ‖∇f‖ > ε all the same), ``near``, and ``shown`` (certified among them).

    Returns:
        Per kind: no bound is below; no gradient is shorter; and for smooth functions, no close
        point fails, open with fewer than :data:`ENOUGH` of them. ``shown`` is not judged.
    """
    parts = Parts()
    for name, own_runs in by_method(runs).items():
        last_rows = [run.rows[-1] for run in own_runs]
        # Counter -> its sum over the runs.
        count = {counter: sum(row[counter] for row in last_rows) for counter in last_rows[0]}
        parts.add(
            f"{name}: no bound below the exact distance",
            holds=not count["below"],
            words=f"{count['below']} too low",
            numbers={name: count},
        )
        parts.add(f"{name}: no gradient shorter than the distance", holds=not count["first_fails"])
        stronger_words = (
            f"{count['close']} points passed the stronger test, and at {count['second_fails']} of "
            "them ‖∇f‖ > ε"
        )
        if name.startswith("smooth"):
            parts.add(
                f"{name}: (ε/(3L), ε/3)-stationary points are ε-stationary",
                holds=not count["second_fails"] and count["close"] >= ENOUGH,
                refuted=count["second_fails"] > 0,
                words=stronger_words,
            )
        else:
            parts.note(f"{name}: {stronger_words}, which kinks allow")
        parts.note(f"{name}: {count['shown']} of {count['near']} near points certified for ε")
    return parts


STUDY = Study(
    name="n5-certificate",
    claim="N5",
    title="Averages of nearby gradients never certify too much",
    statement="An ε-stationary point is (δ, ε)-stationary for every δ; where the gradient is "
    "L-Lipschitz, an (ε/(3L), ε/3)-stationary point is ε-stationary. Means of gradients near a "
    "point never certify too much.",
    source=Source("thesis", "Definition 5.3.1, Proposition 5.3.1"),
    scales=scales(
        {
            "instances": 20,
            "samples": 32,
            "deltas": [0.05, 0.2, 0.5],
            "epsilon": 0.3,
            "radius_factor": 1.0,
            "family": "zigzag",
        },
        {"instances": 300, "samples": 128},
        seeds=(2, 5),
    ),
    methods={
        "piecewise linear": {"family": "zigzag"},
        "largest of 8 affine functions": {"family": "affine"},
        "smooth quadratics": {"family": "quadratic"},
    },
    loop=loop,
    judge=judge,
    rule="No bound lies below the exact distance, the gradient at a point is never shorter than "
    "the distance, and on the smooth functions at least five (ε/(3L), ε/3)-stationary points were "
    "met and all have gradients up to ε. How many points the sampled gradients certify is not "
    "judged: the thesis states no number of gradients.",
    figures=(
        Figure(
            "How fast the certificate closes in on d(0, ∂f(x + δB))",
            "excess",
            "bound less exact distance, mean",
            x_label="gradients near the point",
            log_x=True,
            caption="Zero is the exact distance; a curve below zero would be a false certificate. "
            "L = 1.",
        ),
    ),
)
