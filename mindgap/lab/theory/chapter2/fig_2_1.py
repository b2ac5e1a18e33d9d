"""Fig. 2-1: worst-case rates of GD, Nesterov's method and heavy-ball, computed by semidefinite
programs.

Two ways. :func:`lmi_rate` searches a quadratic Lyapunov function with the weighted off-by-one
inequality that every gradient of a μ-strongly convex, L-smooth function satisfies: the figure's
black line. :func:`pep_gap` solves the performance estimation problem of a finite number of steps,
which is exact. Both need the extra ``pep``.
"""

from __future__ import annotations

import math
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from mindgap.base.check import one_of, positive
from mindgap.base.checked import Count
from mindgap.lab.theory.chapter2.section_2_1 import METHODS, SmoothConvex, parameters


def pep_missing() -> str:
    """Why the extra ``pep`` cannot be used, in words; an empty text where it can.

    Example:
        >>> pep_missing() in (
        ...     "",
        ...     "PEPit is not installed (extra 'pep')",
        ...     "cvxpy is not installed (extra 'pep')",
        ... )
        True
    """
    for module in ("cvxpy", "PEPit"):
        if find_spec(module) is None:
            return f"{module} is not installed (extra 'pep')"
    return ""


def quadratic_rate(method: str, Q: float) -> float:
    """The asymptotic rate ρ on quadratics in closed form: ‖x_k - x*‖ shrinks like ρ^k. A lower
    bound of the rate on all functions.

    1 - 1/Q for GD with step 1/L, 1 - 1/√Q for Nesterov's method, (√Q-1)/(√Q+1) for heavy-ball.
    Source: thesis, Fig. 2-1 (Lessard et al.).

    Args:
        method: a name of ``METHODS``.
        Q: condition number L/μ.

    Example:
        >>> quadratic_rate("heavy-ball", 9.0)
        0.5
    """
    one_of("method", method, METHODS)
    root = math.sqrt(positive("Q", Q))
    rates = {"gd": 1 - 1 / Q, "nesterov": 1 - 1 / root, "heavy-ball": (root - 1) / (root + 1)}
    return rates[method]


def proved_rate(method: str, Q: float) -> float:
    """The rate that is proved for all μ-strongly convex, L-smooth functions; 1 where none is.

    1 - 1/Q for GD, √(1 - 1/√Q) for Nesterov's method (Theorem 2.1.3), none for heavy-ball. Source:
    thesis, (2.3) and Theorem 2.1.3.

    Example:
        >>> proved_rate("gd", 2.0), proved_rate("heavy-ball", 2.0)
        (0.5, 1.0)
    """
    one_of("method", method, METHODS)
    return {
        "gd": 1 - 1 / Q,
        "nesterov": math.sqrt(1 - 1 / math.sqrt(positive("Q", Q))),
        "heavy-ball": 1.0,
    }[method]


#: The inequality counts as met where it fails by SLACK at most. FLOOR is the least eigenvalue of P,
#: whose trace is one: without a floor the solver offers singular P, which prove nothing. Up to Q =
#: 100 a floor ten times as low moves the rates by less than 1e-4; a floor three times as high moves
#: them by 4e-4 from Q = 64 on.
SLACK, FLOOR = 1e-9, 1e-4


@cache
def _program(method: str, Q: float) -> tuple[Any, Any]:
    """The semidefinite program whose value is at most 0 where a Lyapunov function proves the rate
    ρ, for L = 1 and μ = 1/Q.

    Lessard et al., as the thesis's Fig. 2-1 cites them. The linear matrix inequality says that V =
    zᵀPz shrinks by ρ² in every step, given the weighted off-by-one inequality between the slopes
    Ly - u and u - μy of two successive steps. z holds the method's state ξ_k = (x_k, x_{k-1}) and
    the filter's one number, u_{k-1} - L y_{k-1}.

    Args:
        method: a name of ``METHODS``, with the steps of ``section_2_1.parameters``.
        Q: condition number L/μ.

    Returns:
        (the program, its parameter ρ²). Kept in a cache: the caller sets the parameter.
    """
    import cvxpy as cp

    alpha, beta = parameters(method, SmoothConvex(1.0, 1 / Q))
    # ξ_{k+1} = Aξ_k + B u_k, y_k = Cξ_k, u_k = ∇f(y_k), ξ_k = (x_k, x_{k-1})
    A, B = np.array([[1 + beta, -beta], [1.0, 0.0]]), np.array([[-alpha], [0.0]])
    C = np.array([[1 + beta, -beta]]) if method == "nesterov" else np.array([[1.0, 0.0]])
    # The same step with the filter: z's next state is Â z + B̂ u.
    A_hat = np.block([[A, np.zeros((2, 1))], [-C, np.zeros((1, 1))]])
    B_hat = np.vstack([B, [[1.0]]])
    rho2 = cp.Parameter(nonneg=True)
    P, weight, slack = cp.Variable((3, 3), symmetric=True), cp.Variable(nonneg=True), cp.Variable()
    # What each matrix makes of (z, u), z the old state: the new state, the old one, and numbers.
    new_state = np.hstack([A_hat, B_hat])
    old_state = np.hstack([np.eye(3), np.zeros((3, 1))])
    below_L = np.hstack([C, np.zeros((1, 1)), [[-1.0]]])  # L y - u
    above_mu = np.hstack([-C / Q, np.zeros((1, 1)), [[1.0]]])  # u - μ y
    in_filter = np.array([[0.0, 0.0, 1.0, 0.0]])  # minus the L y - u of the step before
    inequality = (
        new_state.T @ P @ new_state
        - rho2 * (old_state.T @ P @ old_state)
        + weight * (below_L.T @ above_mu + above_mu.T @ below_L)
        + (rho2 * weight) * (in_filter.T @ above_mu + above_mu.T @ in_filter)
    )
    # slack <= 0 means that the inequality holds.
    rules = [P >> FLOOR * np.eye(3), cp.trace(P) == 1, inequality << slack * np.eye(4)]
    return cp.Problem(cp.Minimize(slack), rules), rho2


def lmi_rate(method: str, Q: float, *, tolerance: float = 1e-6) -> float:
    """The smallest rate ρ that a quadratic Lyapunov function proves (see ``_program``), by
    bisection; 1 where none below 1 is proved.

    Args:
        method: a name of ``METHODS``, with the steps of ``section_2_1.parameters``.
        Q: condition number, above 1; up to 100 (beyond, the floor on P is felt).
        tolerance: width at which the bisection stops.

    Example:
        >>> bool(pep_missing()) or abs(lmi_rate("gd", 4.0) - 0.75) < 1e-4
        True

    Source: thesis, Fig. 2-1 (Lessard et al.).
    """
    one_of("method", method, METHODS)
    import warnings

    program, rho2 = _program(method, float(Q))

    def is_proved(rho: float) -> bool:
        """Whether some Lyapunov function proves the rate ρ, because the program's value is at most
        0 (``SLACK`` for rounding); sets the program's parameter ρ².
        """
        rho2.value = rho**2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "solution may be inaccurate": then the value decides
            program.solve(solver="CLARABEL")
        return program.value is not None and program.value <= SLACK

    # No rate beats the quadratics'. Close to ρ = 1 the solver is unsure, so several trials look for
    # a first ρ that is proved; the set of such ρ is an interval up to 1.
    low = quadratic_rate(method, Q) - tolerance
    # Parts of the way from ρ = 1 down to the quadratics' rate.
    parts_of_way = (1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5)
    trials = [1 - part * (1 - low) for part in parts_of_way]
    high = next((rho for rho in trials if is_proved(rho)), None)
    if high is None:
        return 1.0
    while high - low > tolerance:
        middle = (low + high) / 2
        low, high = (low, middle) if is_proved(middle) else (middle, high)
    return high


def pep_gap(method: str, constants: SmoothConvex, steps: Count, *, measure: str = "gap") -> float:
    """The exact worst case after ``steps`` steps over all L-smooth, μ-strongly convex functions, by
    performance estimation.

    Args:
        method: a name of ``METHODS``; for μ = 0 Nesterov's momentum is k/(k+3).
        constants: L, μ and the distance D of the start from the minimum.
        steps: n.
        measure: ``"gap"`` for f(x_n) - f* or ``"distance"`` for ‖x_n - x*‖². Nesterov's method is
            read at its y_n.

    Example:
        >>> bool(pep_missing()) or abs(pep_gap("gd", SmoothConvex(L=6.0), 1) - 1.0) < 1e-4
        True

    Source: thesis, Fig. 2-1; performance estimation as PEPit does it.
    """
    one_of("method", method, METHODS)
    one_of("measure", measure, ("gap", "distance"))
    from PEPit import PEP
    from PEPit.functions import SmoothStronglyConvexFunction

    # For μ = 0 the step is 1/L, and ``beta`` is not read by Nesterov's method.
    alpha, beta = parameters(method, constants) if constants.mu > 0 else (1 / constants.L, 0.0)
    problem = PEP()
    function = problem.declare_function(
        SmoothStronglyConvexFunction, mu=constants.mu, L=constants.L
    )
    minimiser = function.stationary_point()
    # As in ``section_2_1.amplitudes``: ``y`` is the method's iterate, ``x`` where Nesterov's method
    # takes the gradient.
    x = y = previous = problem.set_initial_point()
    problem.set_initial_condition((x - minimiser) ** 2 <= constants.D**2)
    for k in range(steps):
        if method == "nesterov":
            momentum = beta if constants.mu > 0 else k / (k + 3.0)
            next_x = x - alpha * function.gradient(x)
            x, y = (1 + momentum) * next_x - momentum * y, next_x
        else:
            x, previous = x - alpha * function.gradient(x) + beta * (x - previous), x
            y = x
    problem.set_performance_metric(
        function(y) - function(minimiser) if measure == "gap" else (y - minimiser) ** 2
    )
    return float(problem.solve(verbose=0, wrapper="cvxpy", solver="CLARABEL"))
