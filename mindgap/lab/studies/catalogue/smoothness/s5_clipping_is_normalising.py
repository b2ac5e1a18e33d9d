"""S5: clipped and normalised gradient descent take steps within a factor 2 of each other
(thesis 3.3.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mindgap.lab.studies.clipping_runs import resumed_draws
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial


def loop(trial: Trial) -> Iterator[Row]:
    """Compare one step of normalised with one of clipped gradient descent on the same gradient, for
    random steps η_n, dampings β and gradients g.

    Normalised: h_n = η_n ‖g‖/(‖g‖ + β); clipped: h_c = η_c min{‖g‖, γ}. A row per draw holds
    ``norm_over_beta`` = ‖g‖/β and ``ratio`` = h_n / h_c.
    """
    import torch

    from mindgap.optim import GClip, NormalizedSGD

    for draw, rng in resumed_draws(trial):
        lr_n = 10 ** rng.uniform(-4, 1)
        beta = 10 ** rng.uniform(-4, 2)
        norm = 10 ** rng.uniform(-6, 6)
        gradient = torch.from_numpy(rng.standard_normal(trial["dimension"]))
        gradient *= norm / gradient.norm()
        # γ η_c = η_n and η_c = η_n / β, so the clipping threshold is γ = β.
        lr_c, gamma = lr_n / beta, beta * trial["gamma_factor"]
        with trial.timed():
            clipped = _step_length(GClip, gradient, lr=lr_c, tau=gamma)
            normalised = _step_length(NormalizedSGD, gradient, lr=lr_n, damping=beta)
        yield {"step": draw, "norm_over_beta": norm / beta, "ratio": normalised / clipped}


def _step_length(optimizer: Any, gradient: Any, **settings: float) -> float:
    """The length ‖x_1 - x_0‖ of one step from x_0 = 0 on this gradient.

    Args:
        optimizer: its class.
        gradient: a tensor, not changed.
        settings: further arguments of the class.
    """
    import torch

    point = torch.zeros_like(gradient, requires_grad=True)
    point.grad = gradient.clone()
    optimizer([point], **settings).step()
    return float(point.detach().norm())


def judge(runs: Sequence[Run]) -> Parts:
    """Ask in one part whether h_n / h_c (column ``ratio``) lies in [1/2, 2] in every draw of every
    run; rounding is allowed for.
    """
    parts = Parts()
    parts.factor_two(
        "h_n within a factor 2 of h_c",
        [ratio for run in runs for ratio in run.column("ratio")],
        "h_n / h_c",
    )
    return parts


STUDY = Study(
    name="s5-clipping-is-normalising",
    claim="S5",
    title="Clipping is normalising, within a factor 2",
    statement="With γη_c = η_n and η_c = η_n/β the effective steps of clipped and normalised GD "
    "satisfy h_c/2 <= h_n <= 2h_c.",
    source=Source("thesis", "3.3.1"),
    scales={
        "quick": Scale({"draws": 300, "dimension": 5, "gamma_factor": 1.0}, seeds=2),
        "cpu": Scale({"draws": 20_000, "dimension": 50, "gamma_factor": 1.0}, seeds=10),
    },
    methods={"clipped vs normalised": {}},
    loop=loop,
    judge=judge,
    rule="h_n / h_c lies in [1/2, 2] in every random draw (rounding allowed for).",
    figures=(
        Figure(
            "Normalised over clipped step",
            "ratio",
            "normalised step / clipped step",
            x="norm_over_beta",
            x_label="‖∇f‖ / β",
            kind="points",
            log_x=True,
            hlines={"1/2": 0.5, "2": 2.0},
            caption="The two differ most, by the factor 2, where the gradient norm equals β.",
        ),
    ),
)
