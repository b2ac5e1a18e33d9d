"""E9: weight decay keeps the weights of a network in a compact set (thesis, Theorems 6.4.6 and
6.4.7).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.training_runs import unit_digits
from mindgap.lab.studies.verdict import rows_by_method


def compact_loop(trial: Trial) -> Iterator[Row]:
    """SGD with weight decay γ on digits, ``copies`` networks at once, from the edge of the compact
    set, in one cell per γ (setting ``gamma``) and step (``step_shares``).

    A row, about 25 of them per cell, holds ``size``, the largest norm so far over the radius of the
    set, and ``loss_share``, the largest loss so far over its bound. A checkpoint holds the number
    of the cell and its state.
    """
    first_cell = trial.restored.get("cell", 0)
    pairs = itertools.product(trial["gamma"], trial["step_shares"])
    for cell, (gamma, share) in enumerate(pairs):
        if cell >= first_cell:
            state = trial.restored.get("state", {}) if cell == first_cell else {}
            for row, next_state in _compact_cell(trial, gamma, share, state):
                # A cell that diverged has no state to go on from: the next one follows.
                trial.save({"cell": cell if next_state else cell + 1, "state": next_state})
                yield row


def _compact_cell(
    trial: Trial, gamma: float, share: float, restored: Mapping[str, Any]
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Rows of one γ and step, each with the state to go on from.

    Args:
        trial: the networks start at ``radius_factor`` times the radius of the set.
        gamma: the weight decay γ.
        share: of the largest step 1/γ; the step η is this share times ``step_factor``.
        restored: a state from which the cell goes on, empty at its beginning.

    Yields:
        A row and a state, which is empty after a divergence; that ends the cell. ``size_now`` is
        the largest operator norm of a matrix over the radius of the set, with batch normalisation
        the largest scale over its bound. ``size`` is the largest of these so far, ``loss_share``
        the largest loss so far over its bound.
    """
    import torch

    from mindgap.lab.theory.chapter6.network import Network
    from mindgap.lab.theory.chapter6.weight_decay import DecayedBatchNorm, DecayedNetwork

    x, y = unit_digits(trial["samples"])
    copies, batch, batch_norm = trial["copies"], trial["batch"], trial["batch_norm"]
    generator = trial.torch_generator(f"training {gamma}")
    hidden_widths = [trial["width"]] * (trial["layers"] - 1)
    net = Network((64, *hidden_widths, 10), "relu", batch_norm=batch_norm)
    # The theorems' bounds with batch normalisation, and without (for 3 layers or more).
    normalized = DecayedBatchNorm(batch, gamma)
    plain = DecayedNetwork(max(trial["layers"], 3), gamma)
    radius = 1.0 if batch_norm else trial["radius_factor"] * plain.radius
    theta = net.start(
        copies, radius, generator, scale=trial["radius_factor"] * normalized.scale_bound
    )
    if restored:
        theta = restored["theta"]
        generator.set_state(restored["rng"])
    eta = share * trial["step_factor"] / gamma
    panel = f"γ = {gamma:g}, ηγ = {eta * gamma:g}"
    loss_bound = normalized.loss_bound(10) if batch_norm else plain.loss_bound(10)
    # The largest size and share of the loss bound so far.
    largest, loss_share = restored.get("worst", 0.0), restored.get("loss_share", 0.0)
    for step in range(restored.get("step", 0) + 1, trial["steps"] + 1):
        samples = torch.randint(len(x), (copies, batch), generator=generator)
        with trial.timed():
            losses, gradients = net.gradient(theta, x[samples], y[samples])
            theta = [
                (1 - eta * gamma) * matrix - eta * gradient
                for matrix, gradient in zip(theta, gradients)
            ]
        if not all(bool(matrix.isfinite().all()) for matrix in theta):
            yield {"step": step, "panel": panel, "size": np.inf, "loss_share": np.inf}, {}
            return
        if batch_norm:
            # theta[-2] is the scale of the last batch normalisation, a_L.
            size = float(theta[-2].abs().max() / normalized.scale_bound)
        else:
            size = float(net.operator_norms(theta).max() / radius)
        largest = max(largest, size)
        loss_share = max(loss_share, float(losses.max()) / loss_bound)
        if step % max(1, trial["steps"] // 25) == 0 or step == 1:
            row = {
                "step": step,
                "panel": panel,
                "size": largest,
                "size_now": size,
                "loss_share": loss_share,
                "loss": float(losses.mean()),
            }
            state = {"step": step, "theta": theta, "worst": largest, "loss_share": loss_share}
            yield row, {**state, "rng": generator.get_state()}


def judge_compact(runs: Sequence[Run]) -> Parts:
    """Ask of each method whether its weights stay in the compact set and its loss below its bound.

    Returns:
        Two parts per method: ``size`` (largest operator norm over the radius, or scale a_L over its
        bound) is at most 1 in every row; ``loss_share`` is at most 1 in every row.
    """
    parts = Parts()
    for method, rows in rows_by_method(runs).items():
        size, loss = (max(row[column] for row in rows) for column in ("size", "loss_share"))
        parts.add(
            f"{method}: stays in the set",
            holds=bool(size <= 1 + 1e-9),  # rounding
            words=f"at most {size:.4f} of its radius",
            numbers={method: {"size": size, "loss_share": loss}},
        )
        parts.add(
            f"{method}: loss below its bound",
            holds=bool(loss <= 1),
            words=f"at most {loss:.3f} of it",
        )
    return parts


_COMPACT = {
    "samples": 1797,
    "batch": 32,
    "width": 16,
    "copies": 20,
    "step_shares": [0.05, 1.0],
    "step_factor": 1.0,
    "radius_factor": 1.0,
}

E9_COMPACT_SET = Study(
    name="e9-compact-set",
    claim="E9",
    title="Weight decay keeps the weights in a compact set",
    statement="With weight decay γ and steps up to 1/γ the weights stay in C_w (without batch "
    "normalisation), the scale within 2√m/γ (with it), and the loss below its bound.",
    source=Source("thesis", "Theorems 6.4.6 and 6.4.7"),
    scales={
        "quick": Scale({**_COMPACT, "steps": 40, "gamma": [0.2, 2.0]}),
        "cpu": Scale({**_COMPACT, "steps": 1000, "gamma": [0.05, 0.2, 1.0, 2.0]}),
    },
    methods={
        "3 layers": {"layers": 3, "batch_norm": False},
        "5 layers": {"layers": 5, "batch_norm": False},
        "batch normalisation": {"layers": 2, "batch_norm": True},
    },
    loop=compact_loop,
    judge=judge_compact,
    rule="In no run do the weights (with batch normalisation: the scale) "
    "leave the set or does the loss exceed its bound.",
    figures=(
        Figure(
            "Size of the weights (or of the scale), against the set's radius",
            "size_now",
            "size / radius",
            facet="panel",
            hlines={"radius": 1.0},
            caption="They start at the edge of the set; no line may cross 1.",
        ),
        Figure("Mean training loss", "loss", "loss", facet="panel"),
    ),
)
