"""E10: at an invariant distribution a small step lowers the expected loss (thesis, Theorem
6.5.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.training_runs import unit_digits
from mindgap.record.schema import grouped


def small_step_loop(trial: Trial) -> Iterator[Row]:
    """Run independent chains of SGD to their invariant law, and measure there how a step of c·η
    changes the loss f with weight decay: E f(θ - cηg) - E f(θ).

    A row per fraction ``c`` holds this ``change``, its standard error over chains (``error``), the
    ``first_order`` term -cη E‖∇f‖², ``grad_square`` = E‖∇f‖², the ``loss``, and the change after a
    whole step of SGD (``full_step``) with its standard error (``full_error``).
    """
    import torch

    from mindgap.lab.theory.chapter6.network import Network

    x, y = unit_digits(trial["samples"])  # images (samples, 64) and their classes
    generator, chains = trial.torch_generator("chains"), trial["chains"]
    gamma, eta = trial["gamma"], trial["eta"]
    net = Network((64, trial["width"], 10), "tanh")
    theta = net.start(chains, 1.0, generator)  # a list of matrices; the first axis is the chain
    # All samples, once per chain.
    all_x, all_y = x.expand(chains, -1, -1), y.expand(chains, -1)

    def loss_of(weights: list[Any]) -> Any:
        """The loss over all samples with the decay γ/2 ‖weights‖², one number per chain."""
        decay = sum(matrix.square().sum(dim=(1, 2)) for matrix in weights) * gamma / 2
        return net.loss(weights, all_x, all_y) + decay

    def after_step(weights: list[Any], share: float) -> list[Any]:
        """The weights after a step of ``share`` times η along stochastic gradients of fresh
        minibatches, one per chain; advances the generator.
        """
        samples = torch.randint(len(x), (chains, trial["batch"]), generator=generator)
        gradients = net.gradient(weights, x[samples], y[samples])[1]
        return [
            matrix - share * eta * (gradient + gamma * matrix)
            for matrix, gradient in zip(weights, gradients)
        ]

    # Of η: SGD's own step, then the fractions c, which a ``direction`` of -1 turns round.
    shares = [1.0, *(trial["direction"] * fraction for fraction in trial["c"])]
    snapshots = []
    for step in range(1, trial["burn_in"] + trial["snapshots"] * trial["every"] + 1):
        with trial.timed():
            theta = after_step(theta, 1.0)
        if step > trial["burn_in"] and step % trial["every"] == 0:
            loss = loss_of(theta)
            gradients = net.gradient(theta, all_x, all_y)[1]
            square = sum(
                (gradient + gamma * matrix).square().sum(dim=(1, 2))
                for matrix, gradient in zip(theta, gradients)
            )
            changes = [loss_of(after_step(theta, share)) - loss for share in shares]
            snapshots.append(torch.stack([loss, square, *changes]))
    # (quantity, snapshot, chain); one number per chain: chains are independent, snapshots are not.
    losses, squares, *changes = torch.stack(snapshots, dim=1)
    full_change, *small_changes = (change.mean(dim=0) for change in changes)
    for fraction, change in zip(trial["c"], small_changes):
        yield {
            "c": fraction,
            "change": float(change.mean()),
            "error": float(change.std() / chains**0.5),
            "first_order": -fraction * eta * float(squares.mean()),
            "grad_square": float(squares.mean()),
            "loss": float(losses.mean()),
            "full_step": float(full_change.mean()),
            "full_error": float(full_change.std() / chains**0.5),
        }


def judge_small_step(runs: Sequence[Run]) -> Parts:
    """Ask whether a small step lowers the expected loss at the invariant law of SGD.

    Returns:
        Two parts: for every c up to 0.2 the mean ``change`` lies below 0 by more than 3 standard
        errors; ``grad_square``, the mean of E‖∇f‖², is above 1e-6. Nothing is decided where the
        chains are not at their invariant law: where a whole step changes the loss by more than a
        tenth of its first-order term ηE‖∇f‖² and 4 standard errors.
    """
    rows_of_c = grouped((row["c"], row) for run in runs for row in run.rows)
    mean_of_c = {c: _mean_and_error(rows, "change", "error") for c, rows in rows_of_c.items()}
    changes = {c: change for c, (change, _) in mean_of_c.items()}
    gradient_square = float(np.mean([row["grad_square"] for run in runs for row in run.rows]))
    smallest_c, parts = min(changes), Parts()
    full_step, full_error = _mean_and_error(
        [run.rows[0] for run in runs], "full_step", "full_error"
    )
    if abs(full_step) > 4 * full_error + 0.1 * runs[0].header.settings["eta"] * gradient_square:
        parts.decide_nothing(
            "the chains are not at their invariant law: a full step changes the loss by "
            f"{full_step:.1e}"
        )
    parts.add(
        "a small step lowers the loss",
        holds=all(change < -3 * error for c, (change, error) in mean_of_c.items() if c <= 0.2),
        words=f"{smallest_c:g}η: by {changes[smallest_c]:.2e}±{mean_of_c[smallest_c][1]:.0e}, the "
        f"best of the grid by {min(changes.values()):.2e}, "
        f"a full step by {full_step:.1e}±{full_error:.0e}",
        numbers={"change": {f"{c:g}": value for c, value in changes.items()}},
    )
    parts.add(
        "the law is not carried by stationary points",
        holds=gradient_square > 1e-6,
        words=f"E‖∇f‖² = {gradient_square:.3g}",
        numbers={"grad_square": gradient_square},
    )
    return parts


def _mean_and_error(rows: Sequence[Row], column: str, error_column: str) -> tuple[float, float]:
    """The mean of a column over independent rows, and its standard error from those of the rows."""
    error = float(np.sqrt(sum(row[error_column] ** 2 for row in rows)) / len(rows))
    return float(np.mean([row[column] for row in rows])), error


_SMALL = {
    "samples": 60,
    "width": 8,
    "gamma": 0.02,
    "eta": 0.5,
    "batch": 1,
    "direction": 1.0,
    "c": [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0],
}

E10_SMALL_STEP = Study(
    name="e10-small-step",
    claim="E10",
    title="Once training has settled, a smaller step lowers the loss",
    statement="Where SGD with step η no longer changes the expected loss, one step of length cη "
    "with small c lowers it, unless the law is carried by stationary points.",
    source=Source("thesis", "Theorem 6.5.1"),
    scales={
        "quick": Scale(
            {**_SMALL, "chains": 64, "burn_in": 600, "snapshots": 10, "every": 20}, seeds=2
        ),
        "cpu": Scale(
            {**_SMALL, "chains": 200, "burn_in": 3000, "snapshots": 40, "every": 50}, seeds=5
        ),
    },
    methods={"network on digits": {}},
    loop=small_step_loop,
    judge=judge_small_step,
    rule="Every step of at most 0.2η lowers the expected loss by more than three standard errors, "
    "and E‖∇f‖² is above 1e-6. Chains that are not at their invariant law decide nothing.",
    figures=(
        Figure(
            "Change of the expected loss after one step of cη",
            "change",
            "E f(θ - cηg) - E f(θ)",
            x="c",
            x_label="c",
            log_x=True,
            hlines={"no change": 0.0},
            caption="Negative for small c, zero at c = 1 by invariance, positive beyond.",
        ),
    ),
)
