"""An upper level of unbounded smoothness: its curvature grows with its gradient, without a bound.

    f_j(x, y) = Σ_k (cosh(κ(x_k - c_jk)) - 1)/κ² + ½ ‖y - t_j‖²        or
        Σ_k (x_k - c_jk)⁴/4 + ½ ‖y - t_j‖²

over the lower level of the standard quadratic. For the first, ‖f_xx‖ <= 1 + κ ‖f_x‖: smooth only
relative to the gradient, as Assumption 3.1 of SLIP allows. A step that is stable at the start is
hopelessly small near the minimum; a step that is right near the minimum explodes at the start.
Normalised steps do not meet this choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mindgap.base.check import one_of
from mindgap.base.checked import Positive, check_arguments
from mindgap.base.rng import torch_stream
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.lab.tasks.problems.quadratic import Quadratic, quadratic_loss, quadratic_problem

GROWTHS = ("exponential", "quartic")


@dataclass(frozen=True)
class UnboundedSmoothness:
    """The problem with its closed forms y*(x), z*(x), ∇Φ(x).

    Args:
        quadratic: gives the lower level.
        centres: c_j, one row per upper sample.
        targets: t_j, one row per upper sample.
        growth: ``"exponential"`` or ``"quartic"``.
        rate: κ of the exponential.
        x0: start of x, far out.

    Example:
        >>> task = unbounded_problem(lower=256, upper=64, dim_y=8, dim_x=4, rate=2.0)
        >>> slope = torch.func.grad(task.hyper_objective)(task.x0)
        >>> bool(torch.allclose(slope, task.hypergradient(task.x0)))
        True
    """

    quadratic: Quadratic
    centres: Tensor
    targets: Tensor
    growth: str
    rate: float
    x0: Tensor

    def upper(self, x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        """f, the mean of f_j over a batch of (centres c_j, targets t_j), each (samples, d)."""
        centres, targets = batch
        distance = x - centres  # (samples, d_x), of each coordinate with its sign
        if self.growth == "quartic":
            growing = distance.pow(4) / 4
        else:
            growing = (torch.cosh(self.rate * distance) - 1) / self.rate**2
        return growing.sum(1).mean() + 0.5 * (y - targets).square().sum(1).mean()

    def problem(self, batch_size: int | tuple[int, int] = 64) -> BilevelProblem:
        """The bilevel problem; ``batch_size`` is one number or (upper, lower)."""
        return BilevelProblem(
            self.upper,
            quadratic_loss,
            self.x0,
            self.quadratic.y0,
            (self.centres, self.targets),
            self.quadratic.lower_samples,
            batch_size=batch_size,
        )

    def upper_gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(f_x, f_y) of the whole upper level."""
        distance = x - self.centres
        quartic = self.growth == "quartic"
        slopes = distance.pow(3) if quartic else torch.sinh(self.rate * distance) / self.rate
        return slopes.mean(0), y - self.targets.mean(0)

    def hypergradient(self, x: Tensor) -> Tensor:
        """∇Φ(x) = f_x - C̄ Ā⁻¹ f_y at y*(x), with Ā = g_yy and C̄ = g_xy of the lower quadratic."""
        y = self.quadratic.y_star(x)
        f_x, f_y = self.upper_gradients(x, y)
        return f_x - self.quadratic.lower.C @ torch.linalg.solve(self.quadratic.lower.A, f_y)

    def hyper_objective(self, x: Tensor) -> Tensor:
        """Φ(x) = f(x, y*(x))."""
        return self.upper(x, self.quadratic.y_star(x), (self.centres, self.targets))


def unbounded_problem(
    *,
    growth: str = "exponential",
    rate: Positive = 2.0,
    distance: Positive = 5.0,
    lower: int = 1024,
    upper: int = 256,
    dim_y: int = 20,
    dim_x: int = 10,
    noise: Positive = 0.1,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> UnboundedSmoothness:
    """Draw the problem.

    Args:
        growth: of f in x, ``"exponential"`` or ``"quartic"``.
        rate: κ.
        distance: how far out the start is: its coordinates have magnitudes uniform in [distance/2,
            distance] and random signs, so that no single step suits them all.
        lower, upper: numbers of samples of the two levels.
        dim_y, dim_x: dimensions of y and x.
        noise: standard deviation of the centres c_j.
        seed: of all draws.
        dtype, device: of the tensors.

    Raises:
        RuleError: for a growth that is not one of the two, or numbers that are not positive.
    """
    one_of("growth", growth, GROWTHS)
    quadratic = quadratic_problem(
        lower=lower, upper=upper, dim_y=dim_y, dim_x=dim_x, seed=seed, dtype=dtype, device=device
    )
    generator = torch_stream(seed, "unbounded")
    centres = noise * torch.randn(upper, dim_x, generator=generator, dtype=torch.float64)
    targets = torch.randn(upper, dim_y, generator=generator, dtype=torch.float64) + 1.0
    uniform = torch.rand(dim_x, generator=generator, dtype=torch.float64)
    # Magnitudes uniform in [distance/2, distance], each with a random sign.
    signs = 2.0 * torch.randint(0, 2, (dim_x,), generator=generator) - 1.0
    x0 = (distance * (0.5 + 0.5 * uniform) * signs).to(device, dtype)
    return UnboundedSmoothness(quadratic, centres.to(x0), targets.to(x0), growth, rate, x0)


check_arguments(__name__)
