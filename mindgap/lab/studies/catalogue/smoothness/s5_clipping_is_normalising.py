"""S5: clipped and normalised gradient descent take steps within a factor 2 of each other (thesis 3.3.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mindgap.base.source import Source
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.spec import Figure, Scale, Study
from mindgap.record.schema import Row, Run, Verdict


def loop(trial: Trial) -> Iterator[Row]:
    """Random (η_n, β, g): the distance both optimizers go on the same gradient, and its ratio."""
    import torch

    from mindgap.optim import GClip, NormalizedSGD

    rng = trial.numpy("parameters")
    if trial.restored:
        rng.bit_generator.state = trial.restored["rng"]
    for draw in range(trial.restored.get("draw", 0), trial["draws"]):
        lr_n, beta, norm = 10 ** rng.uniform(-4, 1), 10 ** rng.uniform(-4, 2), 10 ** rng.uniform(-6, 6)
        gradient = torch.from_numpy(rng.standard_normal(trial["dimension"]))
        gradient *= norm / gradient.norm()
        # γ η_c = η_n and η_c = η_n / β, so the clipping threshold is γ = β.
        lr_c, gamma = lr_n / beta, beta * trial["gamma_factor"]
        with trial.timed():
            clipped = _distance(GClip, gradient, lr=lr_c, tau=gamma)
            normalised = _distance(NormalizedSGD, gradient, lr=lr_n, damping=beta)
        trial.save(lambda: {"draw": draw + 1, "rng": rng.bit_generator.state})  # noqa: B023
        yield {"step": draw, "norm_over_beta": norm / beta, "ratio": normalised / clipped}


def _distance(optimizer: type, gradient, **settings: float) -> float:  # type: ignore[no-untyped-def]
    import torch

    point = torch.zeros_like(gradient, requires_grad=True)
    point.grad = gradient.clone()
    optimizer([point], **settings).step()
    return float(point.detach().norm())


def judge(runs: Sequence[Run]) -> Verdict:
    """h_n / h_c lies in [1/2, 2] for every draw (rounding allowed for)."""
    return factor_two([ratio for run in runs for ratio in run.column("ratio")], "h_n / h_c")


def factor_two(ratios: Sequence[float], name: str) -> Verdict:
    """Verdict on a ratio that is stated to lie in [1/2, 2]."""
    low, high = min(ratios), max(ratios)
    holds = low >= 0.5 * (1 - 1e-9) and high <= 2 * (1 + 1e-9)
    measured = f"{name} lies in [{low:.4f}, {high:.4f}] over {len(ratios)} random draws"
    return Verdict("holds" if holds else "does not hold", measured, {"low": low, "high": high, "draws": len(ratios)})


STUDIES = (
    Study(
        name="s5-clipping-is-normalising",
        claim="S5",
        title="Clipping is normalising, within a factor 2",
        statement="With γη_c = η_n and η_c = η_n/β the effective steps of clipped and normalised GD satisfy "
        "h_c/2 <= h_n <= 2h_c.",
        source=Source("thesis", "3.3.1"),
        scales={
            "quick": Scale({"draws": 300, "dimension": 5, "gamma_factor": 1.0}, seeds=2),
            "cpu": Scale({"draws": 20_000, "dimension": 50, "gamma_factor": 1.0}, seeds=10),
        },
        methods={"clipped vs normalised": {}},
        loop=loop,
        judge=judge,
        figures=(
            Figure(
                "Normalised over clipped step",
                "ratio",
                "h_n / h_c",
                x="norm_over_beta",
                x_label="‖∇f‖ / β",
                kind="points",
                log_x=True,
                hlines={"1/2": 0.5, "2": 2.0},
                caption="The two differ most, by the factor 2, where the gradient norm equals β.",
            ),
        ),
    ),
)
