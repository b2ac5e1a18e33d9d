"""B10: SGD on a drifting lower problem tracks y*(x_t); with x frozen it is plain SGD (SLIP
rebuttal, A4/A5).

SLIP moves x by exactly η per iteration, so that the lower problem drifts at a constant speed. For
the quadratic with mean Hessian Ā and y*(x) = -Ā⁻¹(ā + C̄'x), and x moving along a unit vector u,
the mean of y_t - y*(x_t) settles at the lag e = (η/α) Ā⁻² C̄'u: proportional to the drift,
inversely to the step. Noise adds what is seen with x frozen. The upper level here is linear in x,
so that x moves on for ever; the samples of the lower level differ in their linear term only, so
that the noise does not grow with x (the variance is bounded, as the theory asks).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import by_method

#: How far two computations of the same iterates may differ, relatively, and the factor within which
#: an error is as predicted or does not grow; the rule states both.
ROUNDING, NEAR = 1e-12, 1.25


def loop(trial: Trial) -> Iterator[Row]:
    """Run SLIP with steps η (setting ``drift``) on x and α (``lr_y``) on y, and beside it plain SGD
    on y at the first x, on the same samples.

    A row every ``every`` iterations holds ``error`` = ‖y_t - y*(x_t)‖, ``lag`` (the predicted
    error without noise, (η/α) ‖Ā⁻² C̄ᵀu‖; the same in every row), ``moved`` = ‖x_t - x_0‖ and
    ``sgd_gap`` (SLIP's y against plain SGD's, relative).
    """
    import torch

    from mindgap.bilevel import (
        SLIP,
        Batches,
        BilevelProblem,
        Constant,
        Sample,
        pack_state,
        unpack_state,
    )
    from mindgap.lab.tasks.problems import quadratic_problem

    eta, alpha, warm = trial["drift"], trial["lr_y"], trial["warm_start"]
    sizes = {name: trial[name] for name in ("lower", "upper", "dim_y", "dim_x", "convexity")}
    quadratic = quadratic_problem(**sizes, seed=trial.seed)
    common_slope = torch.randn(
        trial["dim_x"], generator=trial.torch_generator("slope"), dtype=torch.float64
    )
    noise = torch.randn(
        trial["upper"],
        trial["dim_x"],
        generator=trial.torch_generator("slopes"),
        dtype=torch.float64,
    )
    # The upper loss of sample i is slopes_i · x: one common unit vector plus noise, (upper, dim_x).
    slopes = common_slope / common_slope.norm() + 0.1 * noise
    A, C = quadratic.lower.A, quadratic.lower.C  # means over the samples: Ā and C̄

    def lower_loss(x: torch.Tensor, y: torch.Tensor, linear: torch.Tensor) -> torch.Tensor:
        """The lower loss: quadratic in y with the mean Hessian Ā, bilinear in x and y with C̄, and
        with a linear term per sample of the minibatch (the rows of ``linear``).
        """
        return 0.5 * (y @ A @ y) + x @ C @ y + (linear @ y).mean()

    # Of the terms (p, r, a) of each lower sample the linear one, a.
    lower_data = Batches(quadratic.lower_samples[0][:, 2], trial["batch_size"], shuffle=False)
    problem = BilevelProblem(
        lambda x, y, batch: (batch @ x).mean(),
        lower_loss,
        quadratic.x0,
        quadratic.y0,
        Batches(slopes, trial["batch_size"], shuffle=False),
        lower_data,
    )
    method = SLIP(lr_x=Constant(eta), lr_y=alpha, lr_z=alpha, warm_start=warm, samples="shared")
    direction = -slopes.mean(0) / slopes.mean(0).norm()  # u, along which x moves
    lag = eta / alpha * float(torch.linalg.solve(A, torch.linalg.solve(A, C.T @ direction)).norm())

    def sgd_step(y: torch.Tensor, stream: str, position: int) -> torch.Tensor:
        """y after one step of plain SGD at the first x, on the minibatch that SLIP draws at this
        position of the named stream of lower samples; the step is α, as SLIP's.
        """
        sample = Sample(int(lower_data.draw(trial.seed, stream, position, 1).which[0]))
        leaf = y.clone().requires_grad_()
        loss = lower_loss(quadratic.x0, leaf, lower_data.fetch(sample))
        return y - alpha * torch.autograd.grad(loss, leaf)[0]

    # SLIP's state, and the y of plain SGD.
    if trial.restored:
        state = unpack_state(trial.restored["state"], method, method.oracle(problem, trial.seed))
        sgd_y = trial.restored["plain"]
    else:
        with trial.timed():
            state = method.start(problem, seed=trial.seed)
        sgd_y = quadratic.y0
        for position in range(warm):
            sgd_y = sgd_step(sgd_y, "lower.warm", position)
    for step in range(trial.restored.get("step", 0), trial["steps"] + 1):
        # A checkpoint is taken with a row, before the iteration: a restored trial skips that row.
        if step % trial["every"] == 0 and not (trial.restored and step == trial.restored["step"]):
            trial.save(lambda: {"step": step, "plain": sgd_y, "state": pack_state(state)})  # noqa: B023
            yield {
                "step": step,
                "error": float((state.y - quadratic.y_star(state.x)).norm()),
                "lag": lag,
                "moved": float((state.x - quadratic.x0).norm()),
                "sgd_gap": float((state.y - sgd_y).norm() / (1 + sgd_y.norm())),
            }
        with trial.timed():
            state = method.step(state)
        sgd_y = sgd_step(sgd_y, "lower", step)


def judge(runs: Sequence[Run]) -> Parts:
    """Compare the error of y with plain SGD's where x is frozen (``drift`` 0) and with the
    prediction where x moves. A method is a pair of drift and step ``lr_y``.

    The prediction is √(lag² + floor²), where the floor is the error that noise alone makes: the one
    seen at the same step with x frozen. An error is a root mean square over the last half of the
    rows and over the seeds.

    Returns:
        Three parts: frozen, y is plain SGD's up to rounding; moving, every error is as predicted
        within the factor :data:`NEAR`; no error grows by that factor from the third to the last
        quarter of a run.
    """
    parts, runs_of = Parts(), by_method(runs)
    largest_gap = 0.0  # between y and that of plain SGD, with x frozen
    errors = {}  # method -> root mean square of ‖y - y*(x)‖ over the last half
    floors = {}  # lr_y -> error with x frozen
    ratios = {}  # method with x moving -> error over the prediction
    growth = {}  # method -> error of the last quarter over that of the third
    for name, own_runs in runs_of.items():
        columns = [run.column("error") for run in own_runs]
        last_halves = [np.array(column[len(column) - len(column) // 2 :]) for column in columns]
        errors[name] = float(np.sqrt(np.mean([np.mean(half**2) for half in last_halves])))
        quarters = [np.split(half, [len(half) // 2]) for half in last_halves]
        growth[name] = float(
            np.median([np.mean(fourth) / max(np.mean(third), 1e-300) for third, fourth in quarters])
        )
        settings = own_runs[0].header.settings
        if settings["drift"] == 0:
            largest_gap = max(largest_gap, *(max(run.column("sgd_gap")) for run in own_runs))
            floors[settings["lr_y"]] = errors[name]
    for name, own_runs in runs_of.items():
        settings = own_runs[0].header.settings
        if settings["drift"] > 0:
            lag = float(np.sqrt(np.mean([run.rows[-1]["lag"] ** 2 for run in own_runs])))
            ratios[name] = errors[name] / float(np.hypot(lag, floors[settings["lr_y"]]))
    parts.add(
        "x frozen, y is plain SGD's",
        holds=largest_gap <= ROUNDING,
        words=f"differs by {largest_gap:.1e}",
        numbers={"sgd_gap": largest_gap},
    )
    parts.add(
        "x moving, the error is as predicted",
        holds=all(1 / NEAR < ratio < NEAR for ratio in ratios.values()),
        words=f"{min(ratios.values()):.2f} to {max(ratios.values()):.2f} times √(lag² + floor²) "
        f"over {len(ratios)} pairs of drift and step",
        numbers={"ratio": ratios},
    )
    parts.add(
        "no error still grows",
        holds=all(factor < NEAR for factor in growth.values()),
        words=f"over the last quarters by at most a factor {max(growth.values()):.2f}",
        numbers={"growth": growth, "floor": {str(alpha): floor for alpha, floor in floors.items()}},
    )
    return parts


_QUICK = {
    "lower": 1024,
    "upper": 64,
    "dim_y": 10,
    "dim_x": 5,
    "convexity": 0.2,
    "batch_size": 64,
    "warm_start": 3,
    "steps": 300,
    "every": 3,
}

STUDY = Study(
    name="b10-tracking",
    claim="B10",
    title="SGD tracks a drifting lower problem",
    statement="One SGD step on y per iteration keeps y_t near y*(x_t) while x drifts at the speed "
    "of the normalised step, after a warm start of three steps; with x frozen it is plain SGD.",
    source=Source("slip-rebuttal-a", "A4 to F4oW, A5 to P6Br"),
    scales={
        "quick": Scale(_QUICK, seeds=2),
        "cpu": Scale(
            {
                **_QUICK,
                "lower": 32_768,
                "dim_y": 100,
                "dim_x": 10,
                "convexity": 0.1,
                "steps": 20_000,
                "every": 50,
            },
            seeds=10,
        ),
    },
    methods={
        f"drift {drift:g}, step {rate:g}": {"drift": drift, "lr_y": rate}
        for rate in (0.1, 0.3)
        for drift in (0.0, 0.03, 0.3)
    },
    loop=loop,
    judge=judge,
    rule="The frozen runs differ from plain SGD by at most 1e-12, every drifting run's error over "
    "the last half is within a factor 1.25 of √(lag² + floor²), and no error grows by more than "
    "that factor between the last two quarters.",
    figures=(
        Figure(
            "How far y is behind y*(x)",
            "error",
            "‖y_t - y*(x_t)‖",
            log_y=True,
            caption="The error settles at a level that grows with the drift and, where the drift "
            "dominates, falls with the step; where noise dominates it is the other way round.",
        ),
        Figure(
            "Distance to plain SGD at the first x",
            "sgd_gap",
            "relative distance",
            caption="Zero where x is frozen.",
        ),
    ),
)
