"""The standard bilevel quadratic, with closed forms for everything a method estimates.

    g_i(x, y) = ½ y'A_i y + ½ x'B_i x + x'C_i y + a_i'y + b_i'x,     f_j of the same form

with rank-one A_i = p_i p_i', B_i = q_i q_i', C_i = s_i r_i', so that a sample costs O(d) and no
matrix is built.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mindgap.base.check import fail
from mindgap.base.checked import Count, Positive, check_arguments
from mindgap.base.rng import numpy_stream
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Batches, SampleOrder

#: what a batch holds: (p, r, a) stacked to (samples, 3, d_y) and (q, s, b) stacked to (samples, 3,
#: d_x)
Batch = tuple[Tensor, Tensor]

#: Draws after which no convex Φ is looked for any more.
_ATTEMPTS = 20


def quadratic_loss(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
    """Mean of g_i over a batch: two products of a (3·samples, d) matrix with a vector.

    g_i = ½ (p'y)² + ½ (q'x)² + (s'x)(r'y) + a'y + b'x.

    Args:
        x: (d_x,).
        y: (d_y,).
        batch: (p, r, a) of every sample, (samples, 3, d_y), and (q, s, b), (samples, 3, d_x).

    Example:
        >>> batch = (torch.ones(1, 3, 1), torch.ones(1, 3, 1))
        >>> float(
        ...     quadratic_loss(torch.tensor([2.0]), torch.tensor([3.0]), batch)
        ... )  # ½·9 + ½·4 + 6 + 3 + 2
        17.5
    """
    in_y, in_x = batch
    # p'y, r'y, a'y of every sample, and q'x, s'x, b'x.
    # Columns by index: unbind's backward pass stacks zeros for the columns that a derivative does
    # not reach, and the imitated GPU of the tests gets those on the CPU.
    along_y = (in_y.reshape(-1, y.numel()) @ y).view(-1, 3)
    along_x = (in_x.reshape(-1, x.numel()) @ x).view(-1, 3)
    p_y, r_y, a_y = along_y[:, 0], along_y[:, 1], along_y[:, 2]
    q_x, s_x, b_x = along_x[:, 0], along_x[:, 1], along_x[:, 2]
    squares = p_y.square() + q_x.square()
    return (0.5 * squares + s_x * r_y + a_y + b_x).mean()


@dataclass(frozen=True)
class Means:
    """The mean matrices and vectors of one level: A (d_y, d_y), B (d_x, d_x), C (d_x, d_y), a,
    b.
    """

    A: Tensor
    B: Tensor
    C: Tensor
    a: Tensor
    b: Tensor


@dataclass(frozen=True)
class Quadratic:
    """The quadratic's samples and its closed forms.

    With Ā, B̄, C̄, ā, b̄ the means of the lower level and the same letters with ' for the upper
    one: y*(x) = -Ā⁻¹(ā + C̄'x), z*(x) = Ā⁻¹ f_y, ∇Φ = f_x - C̄ z*, and with D = dy*/dx = -Ā⁻¹C̄':
    ∇²Φ = D'A'D + B' + C'D + (C'D)'.

    Args:
        lower_samples: (p, r, a) of every lower sample, (n, 3, d_y), and (q, s, b), (n, 3, d_x).
        upper_samples: likewise, m samples.
        x0: start of x, -2 in every coordinate as in the benchmark.
        y0: start of y, zeros.

    Example:
        >>> quadratic = quadratic_problem(lower=256, upper=128, dim_y=8, dim_x=4)
        >>> x = quadratic.x0.clone().requires_grad_()
        >>> (slope,) = torch.autograd.grad(quadratic.hyper_objective(x), x)
        >>> bool(torch.allclose(slope, quadratic.hypergradient(quadratic.x0)))
        True
    """

    lower_samples: Batch
    upper_samples: Batch
    x0: Tensor
    y0: Tensor
    lower: Means
    upper: Means

    def y_star(self, x: Tensor) -> Tensor:
        """y*(x) = -Ā⁻¹(ā + C̄'x)."""
        return -torch.linalg.solve(self.lower.A, self.lower.a + self.lower.C.T @ x)

    def upper_gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(f_x, f_y) of the whole upper level at (x, y)."""
        means = self.upper
        return means.B @ x + means.C @ y + means.b, means.A @ y + means.C.T @ x + means.a

    def z_star(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """z = Ā⁻¹ f_y(x, y), at y*(x) where no y is given."""
        _, f_y = self.upper_gradients(x, self.y_star(x) if y is None else y)
        return torch.linalg.solve(self.lower.A, f_y)

    def hypergradient(self, x: Tensor) -> Tensor:
        """∇Φ(x) = f_x - C̄ z*."""
        y = self.y_star(x)
        f_x, _ = self.upper_gradients(x, y)
        return f_x - self.lower.C @ self.z_star(x, y)

    def hessian(self) -> Tensor:
        """∇²Φ = D'A'D + B' + C'D + (C'D)' (d_x, d_x), the same at every x, with D = dy*/dx and A',
        B', C' the means of the upper level.
        """
        # ``cross`` is C'D of the formula.
        D = -torch.linalg.solve(self.lower.A, self.lower.C.T)
        cross = self.upper.C @ D
        return D.T @ self.upper.A @ D + self.upper.B + cross + cross.T

    def hyper_objective(self, x: Tensor) -> Tensor:
        """Φ(x) = f(x, y*(x)), from the means of the upper level."""
        y, means = self.y_star(x), self.upper
        squares = y @ means.A @ y + x @ means.B @ x
        return 0.5 * squares + x @ means.C @ y + means.a @ y + means.b @ x

    def problem(
        self, batch_size: int | tuple[int, int] = 64, *, order: SampleOrder = "partition"
    ) -> BilevelProblem:
        """The quadratic as a bilevel problem.

        Args:
            batch_size: samples per minibatch, one number or (upper, lower).
            order: how minibatches are drawn; :class:`~mindgap.bilevel.data.sample.Batches` names
                the choices.
        """
        upper_size, lower_size = (
            batch_size if isinstance(batch_size, tuple) else (batch_size, batch_size)
        )
        return BilevelProblem(
            quadratic_loss,
            quadratic_loss,
            self.x0,
            self.y0,
            Batches(self.upper_samples, upper_size, order=order, shuffle=False),
            Batches(self.lower_samples, lower_size, order=order, shuffle=False),
        )


def quadratic_problem(
    *,
    lower: Count = 1024,
    upper: Count = 1024,
    dim_y: Count = 100,
    dim_x: Count = 100,
    smoothness_y: Positive = 1.0,
    smoothness_x: Positive = 1.0,
    smoothness_cross: Positive = 0.1,
    convexity: Positive = 0.1,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> Quadratic:
    """Draw the quadratic of benchmark_bilevel (``simulated``).

    E A_i has eigenvalues log-spaced in [μ, L_y]; E B_i has one eigenvalue 0 and the rest log-spaced
    in [μ, L_x]; the singular values of E C_i are log-spaced in [μ, L_c]; a_i and b_i are standard
    normal. Its tuned settings use lower=32768, upper=1024, dim_y=100, dim_x=10.

    Args:
        lower, upper: numbers of samples n and m.
        dim_y, dim_x: dimensions d_y and d_x.
        smoothness_y, smoothness_x, smoothness_cross, convexity: L_y, L_x, L_c and μ.
        seed: of all draws.
        dtype, device: of all tensors.

    Raises:
        RuleError: for counts below 1, constants that are not positive, or so few samples that Φ is
            never convex.

    Source: benchmark_bilevel, data set ``simulated`` (the construction; own code).
    """
    constants = (smoothness_y, smoothness_x, smoothness_cross, convexity)
    target = torch.device(device)
    x0 = torch.full((dim_x,), -2.0, dtype=dtype, device=target)
    y0 = torch.zeros(dim_y, dtype=dtype, device=target)

    def draw_level(level: str, samples: int, attempt: int) -> Batch:
        """The samples of a level as tensors on ``target``; each level and attempt has a random
        stream of its own. ``constants`` are L_y, L_x, L_c and μ.
        """
        generator = numpy_stream(seed, "quadratic", level, attempt)
        in_y, in_x = _samples(generator, samples, dim_y, dim_x, *constants)
        return torch.from_numpy(in_y).to(target, dtype), torch.from_numpy(in_x).to(target, dtype)

    # With few samples Φ may be unbounded below, and Ā singular: such a draw is discarded.
    for attempt in range(_ATTEMPTS):
        lower_samples = draw_level("lower", lower, attempt)
        upper_samples = draw_level("upper", upper, attempt)
        quadratic = Quadratic(
            lower_samples, upper_samples, x0, y0, _means(lower_samples), _means(upper_samples)
        )
        if lower >= dim_y and float(torch.linalg.eigvalsh(quadratic.hessian())[0]) > 0:
            return quadratic
    fail(
        "lower and upper",
        f"must be large enough for a convex Phi (none in {_ATTEMPTS} draws)",
        (lower, upper),
    )


def _samples(
    generator: np.random.Generator,
    samples: int,
    dim_y: int,
    dim_x: int,
    top_y: float,
    top_x: float,
    top_c: float,
    low: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw factors of random quadratics; advances ``generator``.

    Eigenvalues and singular values of the expected matrices A = E pp', B = E qq' and C = E sr' are
    log-spaced from ``low`` up to ``top_y``, ``top_x`` and ``top_c``; B has one eigenvalue 0.

    Args:
        generator: numpy's.
        samples: how many.
        dim_y: d_y.
        dim_x: d_x.
        top_y: L_y, the largest eigenvalue of A.
        top_x: L_x, that of B.
        top_c: L_c, the largest singular value of C.
        low: μ, the smallest ones.

    Returns:
        ((p, r, a), (samples, 3, d_y); (q, s, b), (samples, 3, d_x)).
    """
    # Square roots of the eigenvalues: p = M z with z ~ N(0, I) has E pp' = M².
    half_low = 0.5 * math.log10(low)  # log10 √μ
    roots_y = np.logspace(half_low, 0.5 * math.log10(top_y), dim_y)
    roots_x = np.concatenate([[0.0], np.logspace(half_low, 0.5 * math.log10(top_x), dim_x - 1)])
    p = generator.standard_normal((samples, dim_y)) @ _random_symmetric(generator, roots_y)
    q = generator.standard_normal((samples, dim_x)) @ _random_symmetric(generator, roots_x)
    # Two random orthogonal bases, in which C is diagonal.
    left_basis, _, right_basis = np.linalg.svd(generator.standard_normal((dim_x, dim_y)))
    rank = min(dim_x, dim_y)
    shared = generator.standard_normal((samples, dim_y))  # s and r of a sample share it
    singular_values = np.logspace(math.log10(low), math.log10(top_c), rank)
    s = shared[:, :rank] * singular_values @ left_basis[:, :rank].T
    r = shared @ right_basis.T
    a, b = generator.standard_normal((samples, dim_y)), generator.standard_normal((samples, dim_x))
    return np.stack([p, r, a], 1), np.stack([q, s, b], 1)


def _random_symmetric(generator: np.random.Generator, eigenvalues: np.ndarray) -> np.ndarray:
    """U diag(eigenvalues) U', where U is the orthogonal matrix of the left singular vectors of a
    random column; advances ``generator``.
    """
    column = generator.standard_normal((len(eigenvalues), 1))
    basis, _, _ = np.linalg.svd(column, full_matrices=True)
    return (basis * eigenvalues) @ basis.T


def _means(samples: Batch) -> Means:
    """The means of the rank-one matrices A = p p', B = q q', C = s r' and of the vectors a, b of
    samples: (p, r, a) stacked to (n, 3, d_y), and (q, s, b) stacked to (n, 3, d_x).
    """
    in_y, in_x = samples
    (p, r, a), (q, s, b), number = in_y.unbind(1), in_x.unbind(1), len(in_y)
    return Means(p.T @ p / number, q.T @ q / number, s.T @ r / number, a.mean(0), b.mean(0))


check_arguments(__name__)
