"""E7, E9 and E10: one-step changes, compact sets and small steps (thesis, chapter 6)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import by_method, rows_by_method, slope


def change_loop(trial: Trial) -> Iterator[Row]:
    """|E_{μ_n}[φ(θ) - φ(F(θ))]| over many trajectories of a stochastic map, for growing n."""
    from mindgap.lab.theory.chapter6.averages import (
        BoundedValues,
        one_step_change,
        one_step_change_bound,
    )

    constants = BoundedValues(trial["M"], trial["delta"])
    with trial.timed():
        change = one_step_change(*_trajectories(trial))
    for n in sorted(set(np.geomspace(4, trial["steps"], 20).astype(int).tolist())):
        change_at_n = change[:, n - 1]
        bound = one_step_change_bound(constants, n)
        yield {
            "step": n,
            "rms": float(np.sqrt(np.mean(change_at_n**2))),
            "bound": bound,
            "over": float(np.mean(change_at_n > bound)),
        }


def _trajectories(trial: Trial) -> tuple[np.ndarray, np.ndarray]:
    """φ(θ_t) and E[φ(F(θ_t)) | θ_t], shape (runs, steps)."""
    rng = trial.numpy_generator("trajectory")
    runs = trial["runs"]
    steps = trial["steps"]
    M = trial["M"]
    # F(θ) is ±M whatever θ: the map that the thesis names for tightness.
    if trial["map"] == "uniform":
        values = rng.choice([-M, M], size=(runs, steps))
        expected = np.zeros_like(values)
    else:  # SGD on 1 - cos θ with noise ±1; φ = M cos θ is bounded, the iterates are not
        theta, eta = rng.uniform(-3, 3, size=runs), trial["eta"]
        values, expected = np.empty((runs, steps)), np.empty((runs, steps))
        for step in range(steps):
            theta = theta - eta * (np.sin(theta) + rng.choice([-1.0, 1.0], size=runs))
            values[:, step] = M * np.cos(theta)
            next_values = [np.cos(theta - eta * (np.sin(theta) + noise)) for noise in (-1.0, 1.0)]
            expected[:, step] = M * (next_values[0] + next_values[1]) / 2
    # a drift makes φ unbounded: φ(θ_t) = bounded part + drift·t, and the next value is expected one
    # drift higher
    drifts = trial["drift"] * np.arange(1, steps + 1)
    return values + drifts, expected + drifts + trial["drift"]


def judge_change(runs: Sequence[Run]) -> Parts:
    """Over the bound in at most a share δ of the trajectories at every n; falls like n^-1/2,
    for the uniform map.
    """
    parts = Parts()
    for method, group in by_method(runs).items():
        share_over = float(max(np.mean([run.column("over") for run in group], axis=0)))
        rms = np.mean([run.column("rms") for run in group], axis=0)
        power, error = slope(np.log(group[0].column("step")), np.log(rms))
        tight = abs(power + 0.5) < 0.05 if method == "uniform map" else power < -0.45
        parts.add(f"{method}: falls like n^-1/2", tight, words=f"n^{power:.3f}±{error:.3f}")
        parts.add(
            f"{method}: below the bound",
            share_over <= group[0].header.settings["delta"],
            words=f"over it in at most {share_over:.1%} of the runs",
            numbers={method: {"power": power, "error": error, "over": share_over}},
        )
    return parts


def _digits(limit: int) -> tuple[Any, Any]:
    """Handwritten digits with ‖x‖ = 1, from scikit-learn: images (N, 64) and classes (N,)."""
    import torch

    from mindgap.lab.tasks.data import digits

    images = digits().part(slice(limit))
    x = torch.from_numpy(images.features)
    return x / x.norm(dim=1, keepdim=True), torch.from_numpy(images.labels)


def compact_loop(trial: Trial) -> Iterator[Row]:
    """SGD with weight decay on digits, 20 networks at once, from the edge of the compact set; one
    cell per γ and step.
    """
    cells = itertools.product(trial["gamma"], trial["step_shares"])
    for cell, (gamma, share) in enumerate(cells):
        if cell >= trial.restored.get("cell", 0):
            restored = trial.restored if trial.restored.get("cell") == cell else {}
            for row, state in _compact_cell(trial, gamma, share, restored):
                trial.save({"cell": cell, **state})
                yield row


def _compact_cell(
    trial: Trial, gamma: float, share: float, restored: Mapping[str, Any]
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Rows of one γ and step, each with the state to go on from; ``restored`` is such a state."""
    import torch

    from mindgap.lab.theory.chapter6.network import Network
    from mindgap.lab.theory.chapter6.weight_decay import DecayedBatchNorm, DecayedNetwork

    x, y = _digits(trial["samples"])
    copies, batch, batch_norm = trial["copies"], trial["batch"], trial["batch_norm"]
    generator = trial.torch_generator(f"training {gamma}")
    widths = (64, *[trial["width"]] * (trial["layers"] - 1), 10)
    net = Network(widths, "relu", batch_norm=batch_norm)
    normalized, decayed = (
        DecayedBatchNorm(batch, gamma),
        DecayedNetwork(max(trial["layers"], 3), gamma),
    )
    radius = 1.0 if batch_norm else trial["radius_factor"] * decayed.radius
    theta = net.start(
        copies, radius, generator, scale=trial["radius_factor"] * normalized.scale_bound
    )
    theta = restored.get("theta", theta)
    if restored:
        generator.set_state(restored["rng"])
    eta = share * trial["step_factor"] / gamma
    panel = f"γ = {gamma:g}, ηγ = {eta * gamma:g}"
    loss_bound = normalized.loss_bound(10) if batch_norm else decayed.loss_bound(10)
    largest, loss_share = restored.get("worst", 0.0), restored.get("loss_share", 0.0)
    for step in range(restored.get("step", 0) + 1, trial["steps"] + 1):
        samples = torch.randint(len(x), (copies, batch), generator=generator)
        with trial.timed():
            losses, gradients = net.gradient(theta, x[samples], y[samples])
            theta = [
                (1 - eta * gamma) * weights_ - eta * gradient
                for weights_, gradient in zip(theta, gradients)
            ]
        if not all(bool(weights_.isfinite().all()) for weights_ in theta):
            yield {"step": step, "panel": panel, "size": np.inf, "loss_share": np.inf}, {}
            return
        if batch_norm:
            size = float(theta[-2].abs().max() / normalized.scale_bound)
        else:
            size = float(net.operator_norms(theta).max() / radius)
        largest = max(largest, size)
        loss_share = max(loss_share, float(losses.max()) / loss_bound)
        if step % max(1, trial["steps"] // 25) == 0 or step == 1:
            row = {"step": step, "panel": panel, "size": largest, "size_now": size}
            loss_columns = {"loss_share": loss_share, "loss": float(losses.mean())}
            state = {"step": step, "theta": theta, "worst": largest, "loss_share": loss_share}
            yield {**row, **loss_columns}, {**state, "rng": generator.get_state()}


def judge_compact(runs: Sequence[Run]) -> Parts:
    """The weights (or the scale a_L) never leave the set, and the loss never exceeds its bound."""
    parts = Parts()
    for method, rows in rows_by_method(runs).items():
        size, loss = (max(row[column] for row in rows) for column in ("size", "loss_share"))
        # one update may round the last bit up
        parts.add(
            f"{method}: stays in the set",
            bool(size <= 1 + 1e-9),
            words=f"at most {size:.4f} of its radius",
            numbers={method: {"size": size, "loss_share": loss}},
        )
        parts.add(
            f"{method}: loss below its bound", bool(loss <= 1), words=f"at most {loss:.3f} of it"
        )
    return parts


def small_step_loop(trial: Trial) -> Iterator[Row]:
    """Chains of SGD at their invariant law: E f(θ - cηg) - E f(θ) for a range of c, f the
    decayed loss itself.
    """
    import torch

    from mindgap.lab.theory.chapter6.network import Network

    x, y = _digits(trial["samples"])
    generator, chains = trial.torch_generator("chains"), trial["chains"]
    gamma, eta = trial["gamma"], trial["eta"]
    net = Network((64, trial["width"], 10), "tanh")
    theta = net.start(chains, 1.0, generator)
    every_x, every_y = x.expand(chains, -1, -1), y.expand(chains, -1)

    def value(weights: list[Any]) -> Any:
        decay = sum(weights_.square().sum(dim=(1, 2)) for weights_ in weights) * gamma / 2
        return net.loss(weights, every_x, every_y) + decay

    def moved(weights: list[Any], share: float) -> list[Any]:
        """After a step of that share of η along fresh stochastic gradients."""
        samples = torch.randint(len(x), (chains, trial["batch"]), generator=generator)
        gradients = net.gradient(weights, x[samples], y[samples])[1]
        return [
            weights_ - share * eta * (direction + gamma * weights_)
            for weights_, direction in zip(weights, gradients)
        ]

    shares = [1.0, *(trial["direction"] * share_ for share_ in trial["c"])]
    snapshots = []
    for step in range(1, trial["burn_in"] + trial["snapshots"] * trial["every"] + 1):
        with trial.timed():
            theta = moved(theta, 1.0)
        if step > trial["burn_in"] and step % trial["every"] == 0:
            loss = value(theta)
            gradient = [
                direction + gamma * weights_
                for weights_, direction in zip(theta, net.gradient(theta, every_x, every_y)[1])
            ]
            square = sum(direction.square().sum(dim=(1, 2)) for direction in gradient)
            changes = [value(moved(theta, share)) - loss for share in shares]
            snapshots.append(torch.stack([loss, square, *changes]))
    # (quantity, snapshot, chain); one number per chain: chains are independent, snapshots are not.
    losses, squares, *changes = torch.stack(snapshots, dim=1)
    full, *small = (change.mean(dim=0) for change in changes)
    for share_, change in zip(trial["c"], small):
        yield {
            "c": share_,
            "change": float(change.mean()),
            "error": float(change.std() / chains**0.5),
            "first_order": -share_ * eta * float(squares.mean()),
            "grad_square": float(squares.mean()),
            "loss": float(losses.mean()),
            "full_step": float(full.mean()),
            "full_error": float(full.std() / chains**0.5),
        }


def judge_small_step(runs: Sequence[Run]) -> Parts:
    """For c <= 0.2 the loss falls by more than 3 standard errors; a full step hardly changes
    it; E‖∇f‖² is not 0.
    """
    table: dict[float, list[Row]] = {}
    for run in runs:
        for row in run.rows:
            table.setdefault(row["c"], []).append(row)
    changes = {c: float(np.mean([row["change"] for row in rows])) for c, rows in table.items()}
    errors = {
        c: float(np.sqrt(np.sum([row["error"] ** 2 for row in rows])) / len(rows))
        for c, rows in table.items()
    }
    gradient_square = float(
        np.mean([row["grad_square"] for rows in table.values() for row in rows])
    )
    smallest, parts = min(changes), Parts()
    full_step = float(np.mean([run.rows[0]["full_step"] for run in runs]))
    full_error = float(
        np.sqrt(np.sum([run.rows[0]["full_error"] ** 2 for run in runs])) / len(runs)
    )
    # invariance: a full step changes the loss by less than a tenth of its first-order term -ηE‖∇f‖²
    if abs(full_step) > 4 * full_error + 0.1 * runs[0].header.settings["eta"] * gradient_square:
        parts.decide_nothing(
            "the chains are not at their invariant law: a full step changes the loss by "
            f"{full_step:.1e}"
        )
    parts.add(
        "a small step lowers the loss",
        all(changes[c] < -3 * errors[c] for c in changes if c <= 0.2),
        words=f"{smallest:g}η: by {changes[smallest]:.2e}±{errors[smallest]:.0e}, the best of the "
        "grid by "
        f"{min(changes.values()):.2e}, a full step by {full_step:.1e}±{full_error:.0e}",
        numbers={"change": {f"{c:g}": value for c, value in changes.items()}},
    )
    parts.add(
        "the law is not carried by stationary points",
        gradient_square > 1e-6,
        words=f"E‖∇f‖² = {gradient_square:.3g}",
        numbers={"grad_square": gradient_square},
    )
    return parts


_CHANGE = {"M": 1.0, "delta": 0.05, "drift": 0.0, "eta": 0.5}
_COMPACT = {
    "samples": 1797,
    "batch": 32,
    "width": 16,
    "copies": 20,
    "step_shares": [0.05, 1.0],
    "step_factor": 1.0,
    "radius_factor": 1.0,
}
_SMALL = {
    "samples": 60,
    "width": 8,
    "gamma": 0.02,
    "eta": 0.5,
    "batch": 1,
    "direction": 1.0,
    "c": [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0],
}

E7_ONE_STEP_CHANGE = Study(
    name="e7-one-step-change",
    claim="E7",
    title="The averaged one-step change falls like 1/√n",
    statement="With probability 1 - δ the time-averaged one-step change of a bounded function is "
    "of order 1/√n.",
    source=Source("thesis", "Theorem 6.4.1"),
    scales={
        "quick": Scale({**_CHANGE, "runs": 200, "steps": 1000}, seeds=5),
        "cpu": Scale({**_CHANGE, "runs": 500, "steps": 10_000}, seeds=20),
    },
    methods={"uniform map": {"map": "uniform"}, "SGD on a cosine": {"map": "cosine"}},
    loop=change_loop,
    judge=judge_change,
    rule="At every n at most a share δ of the trajectories lies over the bound; the root mean "
    "square falls like n^-1/2 (within 0.05) for the uniform map and at least like n^-0.45 for SGD.",
    figures=(
        Figure(
            "Root mean square of the averaged one-step change",
            "rms",
            "|E_{μ_n}[φ - φ∘F]|",
            log_x=True,
            log_y=True,
            caption="Slope -1/2 for the uniform map: the rate is tight.",
        ),
        Figure(
            "Share of trajectories over the bound", "over", "share", log_x=True, hlines={"δ": 0.05}
        ),
    ),
)

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
