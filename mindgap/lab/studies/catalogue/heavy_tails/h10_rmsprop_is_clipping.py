"""H10: RMSProp's effective step against that of coordinate-wise clipping (acclip 3.1, thesis 7.2.1).

With A = ε + √(β2 v) and B = √(1-β2)·|g|, the clipped step under the printed η_k = 2α/A and τ_k = A/√(1-β2) is
h_clip = 2α / max(A, B), and RMSProp's is h_Adam = α / (ε + √(β2 v + B²)), which lies between α/(A+B) and α/max(A, B).
So h_Adam / h_clip lies in [1/4, 1/2]: the printed ½ h_clip <= h_Adam fails. With η_k = α/A it lies in [1/2, 1] and the
statement holds. Both are run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mindgap.base.source import Source
from mindgap.lab.studies.catalogue.smoothness.s5_clipping_is_normalising import factor_two
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.spec import Figure, Scale, Study
from mindgap.lab.studies.verdict import by_method
from mindgap.record.schema import Row, Run, Verdict


def loop(trial: Trial) -> Iterator[Row]:
    """Random (α, ε, β2, v, g): the distance both optimizers go in one step, and its ratio."""
    import torch

    from mindgap.optim import CClip

    rng = trial.numpy("parameters")
    if trial.restored:
        rng.bit_generator.state = trial.restored["rng"]
    for draw in range(trial.restored.get("draw", 0), trial["draws"]):
        alpha, epsilon, beta2 = 10 ** rng.uniform(-5, 0), 10 ** rng.uniform(-10, -2), 1 - 10 ** rng.uniform(-4, -0.1)
        v, g = 10 ** rng.uniform(-8, 4), 10 ** rng.uniform(-5, 5)
        a = epsilon + (beta2 * v) ** 0.5
        eta, tau = trial["eta_factor"] * alpha / a, a / (1 - beta2) ** 0.5
        with trial.timed():
            rmsprop = _rmsprop_step(torch, g, v, alpha, beta2, epsilon)
            point = torch.zeros((), dtype=torch.float64, requires_grad=True)
            point.grad = torch.tensor(g, dtype=torch.float64)
            CClip([point], lr=eta, tau=tau).step()
        trial.save(lambda: {"draw": draw + 1, "rng": rng.bit_generator.state})  # noqa: B023
        yield {"step": draw, "gradient_over_tau": g / tau, "ratio": rmsprop / -float(point.detach())}


def _rmsprop_step(torch, g: float, v: float, lr: float, beta2: float, epsilon: float) -> float:  # type: ignore[no-untyped-def]
    """One step of torch's own RMSprop from a given second moment."""
    point = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.RMSprop([point], lr=lr, alpha=beta2, eps=epsilon)
    point.grad = torch.tensor(g, dtype=torch.float64)
    optimizer.state[point] = {"step": torch.zeros(()), "square_avg": torch.tensor(v, dtype=torch.float64)}
    optimizer.step()
    return -float(point.detach())


def judge(runs: Sequence[Run]) -> Verdict:
    """The verdict is on the statement as printed; the corrected step is reported beside it."""
    verdicts = {
        name: factor_two([r for run in group for r in run.column("ratio")], "h_Adam / h_clip")
        for name, group in by_method(runs).items()
    }
    printed, corrected = verdicts["as printed"], verdicts["η_k halved"]
    return Verdict(
        printed.verdict,
        f"as printed, {printed.measured}; with η_k = α/(ε + √(β2 v)) it lies in "
        f"[{corrected.numbers['low']:.4f}, {corrected.numbers['high']:.4f}] and the statement {corrected.verdict}",
        {"as printed": printed.numbers, "halved": corrected.numbers},
    )


STUDIES = (
    Study(
        name="h10-rmsprop-is-clipping",
        claim="H10",
        title="RMSProp as coordinate-wise clipping",
        statement="With η_k = 2α/(ε + √(β2 v_k)) and τ_k = (ε + √(β2 v_k))/√(1-β2): h_clip/2 <= h_Adam <= 2h_clip.",
        source=Source("acclip", "3.1"),
        scales={
            "quick": Scale({"draws": 300}, seeds=2),
            "cpu": Scale({"draws": 20_000}, seeds=10),
        },
        methods={"as printed": {"eta_factor": 2.0}, "η_k halved": {"eta_factor": 1.0}},
        loop=loop,
        judge=judge,
        figures=(
            Figure(
                "RMSProp's over the clipped step",
                "ratio",
                "h_Adam / h_clip",
                x="gradient_over_tau",
                x_label="|g| / τ",
                kind="points",
                log_x=True,
                hlines={"1/2": 0.5, "2": 2.0},
                caption="As printed, every ratio lies at or below 1/2; with η_k halved all lie between 1/2 and 1.",
            ),
        ),
    ),
)
