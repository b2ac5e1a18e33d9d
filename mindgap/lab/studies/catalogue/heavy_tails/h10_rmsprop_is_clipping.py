"""H10: RMSProp's effective step against that of coordinate-wise clipping (acclip 3.1, thesis
7.2.1).

With A = ε + √(β2 v) and B = √(1-β2)·|g|, the clipped step under the printed η_k = 2α/A and τ_k =
A/√(1-β2) is h_clip = 2α / max(A, B), and RMSProp's is h_Adam = α / (ε + √(β2 v + B²)), which lies
between α/(A+B) and α/max(A, B). So h_Adam / h_clip lies in [1/4, 1/2]: the printed ½ h_clip <=
h_Adam fails. With η_k = α/A it lies in [1/2, 1].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mindgap.lab.studies.clipping_runs import resumed_draws
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import by_method


def loop(trial: Trial) -> Iterator[Row]:
    """Compare one step of RMSProp with one of coordinate-wise clipping, for random step sizes α,
    offsets ε, decays β2, second moments v and gradients g.

    A row per draw holds ``gradient_over_tau`` = g/τ_k and ``ratio`` = h_Adam / h_clip. The setting
    ``eta_factor`` is 2 for the printed η_k = 2α/A and 1 for half of it, where A = ε + √(β2 v).
    """
    import torch

    from mindgap.optim import CClip

    for draw, rng in resumed_draws(trial):
        alpha = 10 ** rng.uniform(-5, 0)
        epsilon = 10 ** rng.uniform(-10, -2)
        beta2 = 1 - 10 ** rng.uniform(-4, -0.1)
        second_moment, gradient = 10 ** rng.uniform(-8, 4), 10 ** rng.uniform(-5, 5)
        denominator = epsilon + (beta2 * second_moment) ** 0.5  # A in the module's text
        eta, tau = trial["eta_factor"] * alpha / denominator, denominator / (1 - beta2) ** 0.5
        with trial.timed():
            rmsprop_length = _rmsprop_step(gradient, second_moment, alpha, beta2, epsilon)
            point = torch.zeros((), dtype=torch.float64, requires_grad=True)
            point.grad = torch.tensor(gradient, dtype=torch.float64)
            CClip([point], lr=eta, tau=tau).step()
        yield {
            "step": draw,
            "gradient_over_tau": gradient / tau,
            # CClip's point moves from 0 against a positive gradient: its step is -point.
            "ratio": rmsprop_length / -float(point.detach()),
        }


def _rmsprop_step(
    gradient: float, second_moment: float, lr: float, beta2: float, epsilon: float
) -> float:
    """The length of one step of torch's RMSprop on a positive gradient.

    Args:
        gradient: of the only parameter.
        second_moment: the running mean of squared gradients before the step.
        lr, beta2, epsilon: torch's ``lr``, ``alpha`` and ``eps``.
    """
    import torch

    point = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.RMSprop([point], lr=lr, alpha=beta2, eps=epsilon)
    point.grad = torch.tensor(gradient, dtype=torch.float64)
    optimizer.state[point] = {
        "step": torch.zeros(()),
        "square_avg": torch.tensor(second_moment, dtype=torch.float64),
    }
    optimizer.step()
    # From 0 against a positive gradient: the point is minus the length.
    return -float(point.detach())


def judge(runs: Sequence[Run]) -> Parts:
    """Ask whether h_Adam / h_clip (column ``ratio``) lies in [1/2, 2] in every draw.

    Returns:
        One part per method: the printed η_k, which decides the reading *as printed*, and half of
        it, which decides *as corrected*.
    """
    parts = Parts()
    for name, own_runs in by_method(runs).items():
        parts.factor_two(
            name,
            [ratio for run in own_runs for ratio in run.column("ratio")],
            "h_Adam / h_clip",
            reading="as printed" if name == "as printed" else "as corrected",
        )
    return parts


STUDY = Study(
    name="h10-rmsprop-is-clipping",
    claim="H10",
    title="RMSProp is coordinate-wise clipping, within a factor 2",
    statement="With η_k = 2α/(ε + √(β2 v_k)) and τ_k = (ε + √(β2 v_k))/√(1-β2): h_clip/2 <= "
    "h_Adam <= 2h_clip.",
    source=Source("acclip", "3.1"),
    scales={"quick": Scale({"draws": 300}, seeds=2), "cpu": Scale({"draws": 20_000}, seeds=10)},
    methods={"as printed": {"eta_factor": 2.0}, "η_k halved": {"eta_factor": 1.0}},
    loop=loop,
    judge=judge,
    rule="h_Adam / h_clip lies in [1/2, 2] in every random draw: as printed with η_k = 2α/(ε + "
    "√(β2 v_k)), as corrected with half of that.",
    figures=(
        Figure(
            "RMSProp's step over the clipped step",
            "ratio",
            "RMSProp's step / clipped step",
            x="gradient_over_tau",
            x_label="|g| / τ",
            kind="points",
            log_x=True,
            hlines={"1/2": 0.5, "2": 2.0},
            caption="As printed, every ratio lies at or below 1/2; with η_k halved all lie "
            "between 1/2 and 1.",
        ),
    ),
)
