"""One hypergradient of hyper-cleaning by us and by installed peers: its cost, and its error against the exact one.

All take the same number of Hessian products on the same two minibatches at the same point, and the same step where
there is one, so a column of errors stands beside each column of times. Peers are called at their innermost function,
without their training loops. To have them (nothing of the library needs them):

    pip install --no-deps --ignore-requires-python --target DIR betty-ml==0.2.1 torchopt==0.7.3 optree graphviz
    PYTHONPATH=DIR python benchmarks/bilevel.py cleaning
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from bilevel_timing import best

from mindgap.bilevel import METHODS, Constant, Sample, TorchOracle
from mindgap.bilevel.directions import conjugate_gradients, hypergradient_at, neumann_of
from mindgap.bilevel.solver import Eager

LOWER, UPPER = Sample(3), Sample(5)


def a_point(problem: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Where 300 iterations of SOBA have come to, with weights that differ."""
    method = METHODS["soba"](lr_x=Constant(0.01), lr_y=Constant(0.05))
    state = Eager().run(method.start(problem), 300, None, None)
    noise = torch.randn(problem.dim_x, generator=torch.Generator().manual_seed(1))
    return (state.x + noise.to(state.x.dtype)), state.y


def largest_eigenvalue(oracle: TorchOracle, x: torch.Tensor, y: torch.Tensor) -> float:
    hessian, _ = oracle.operator(x, y, LOWER)
    v = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=y.dtype)
    for _ in range(100):
        v = hessian(v / v.norm())
    return float(v.norm())


Peers = dict[str, Callable[[], Any]]


def where_installed(peers: Callable[..., Peers]) -> Callable[..., Peers]:
    """No peers, and a line that says why, where their package is not installed."""

    def found(*arguments: Any) -> Peers:
        try:
            return peers(*arguments)
        except ImportError as error:
            print(f"# {peers.__name__}: skipped ({error})")
            return {}

    return found


@where_installed
def betty_peers(problem: Any, x: torch.Tensor, y: torch.Tensor, eta: float, products: int) -> Peers:
    from betty.configs import Config  # type: ignore[import-not-found]
    from betty.hypergradient.cg import cg  # type: ignore[import-not-found]
    from betty.hypergradient.neumann import neumann  # type: ignore[import-not-found]

    x, y = x.clone().requires_grad_(), y.view(784, 10).clone().requires_grad_()
    below, above = problem.lower_data.fetch(LOWER), problem.upper_data.fetch(UPPER)
    config = Config(neumann_iterations=products, neumann_alpha=eta, cg_iterations=products, cg_alpha=1.0)
    current = SimpleNamespace(
        paths=[], config=config, cur_batch=below, training_step_exec=lambda b: problem.lower(x, y, b),
        trainable_parameters=lambda: [y], parameters=lambda: [y])  # fmt: skip
    above_it = SimpleNamespace(trainable_parameters=lambda: [x])

    def call(how: Any) -> torch.Tensor:
        vector = torch.autograd.grad(problem.upper(x, y, above), [y])
        return how(vector, current, above_it, False)[0]

    return {"betty 0.2.1, Neumann": lambda: call(neumann), "betty 0.2.1, CG": lambda: call(cg)}


@where_installed
def torchopt_peers(problem: Any, x: torch.Tensor, y: torch.Tensor, eta: float, products: int) -> Peers:
    import torchopt  # type: ignore[import-not-found]

    x, y = x.clone().requires_grad_(), y.view(784, 10).clone()
    below, above = problem.lower_data.fetch(LOWER), problem.upper_data.fetch(UPPER)
    solvers = {
        "Neumann": torchopt.linear_solve.solve_inv(ns=True, maxiter=products + 1, alpha=eta),
        "CG": torchopt.linear_solve.solve_cg(maxiter=products, rtol=0.0, atol=0.0),
    }

    def make(solver: Any) -> Callable[[], Any]:
        def optimality(y: Any, x: Any) -> Any:
            return torch.func.grad(lambda y: problem.lower(x, y, below))(y)

        @torchopt.diff.implicit.custom_root(optimality, argnums=1, solve=solver)
        def solution(y: Any, x: Any) -> Any:
            return y.detach().requires_grad_()

        return lambda: torch.autograd.grad(problem.upper(x, solution(y, x), above), x)[0]

    return {f"TorchOpt 0.7.3, {name}": make(solver) for name, solver in solvers.items()}


def compiled_ours(
    problem: Any, losses: Any, x: torch.Tensor, y: torch.Tensor, eta: float, products: int
) -> dict[str, Any]:
    try:
        import jax

        from mindgap.bilevel.compiled import JaxBackend
    except ImportError as error:
        print(f"# compiled: skipped ({error})")
        return {}
    oracle = JaxBackend(*losses).oracle(problem, METHODS["soba"](lr_x=1.0, lr_y=1.0), 0, False)
    at = oracle.from_torch(x), oracle.from_torch(y)

    def make(step: float | None) -> Callable[[], Any]:
        solve = solver_of(oracle.ops, products, step)
        run = jax.jit(lambda arrays, x, y: hypergradient_at(
            oracle.with_arrays(arrays), x, y, LOWER, UPPER, solve))  # fmt: skip
        return lambda: oracle.to_torch(jax.block_until_ready(run(oracle.arrays, *at)))

    return {"ours, compiled, Neumann": make(eta), "ours, compiled, CG": make(None)}


def solver_of(ops: Any, products: int, eta: float | None) -> Callable[[Any, Any], Any]:
    """A Neumann series with a step, or conjugate gradients without one."""
    if eta is None:
        return lambda hessian, v: conjugate_gradients(ops, hessian, v, products=products)[0]
    return lambda hessian, v: neumann_of(hessian, v, products, eta)


def compare_peers(make_problem: Callable[..., Any], losses: Any, repeats: int) -> None:
    """Print milliseconds and relative error of one hypergradient for ours and each peer that is installed."""
    problem, (double, _) = make_problem("cpu")[0], make_problem("cpu", torch.float64)
    x, y = a_point(problem)
    exact_oracle = TorchOracle(double)
    at = x.double(), y.double()
    f_x, f_y = exact_oracle.upper(*at, UPPER)
    hessian, mixed = exact_oracle.operator(*at, LOWER)
    exact = f_x - mixed(conjugate_gradients(exact_oracle.ops, hessian, f_y, products=5000, tol=1e-9)[0])
    eta = 1.0 / largest_eigenvalue(exact_oracle, *at)
    warnings.simplefilter("ignore", FutureWarning)  # TorchOpt warns at every call
    for products in (10, 80):
        one_table(problem, losses, x, y, eta, exact, products, repeats)


def one_table(
    problem: Any, losses: Any, x: Any, y: Any, eta: float, exact: torch.Tensor, products: int, repeats: int
) -> None:
    oracle = TorchOracle(problem)
    calls: dict[str, Callable[[], Any]] = {
        "ours, eager, Neumann": lambda: hypergradient_at(
            oracle, x, y, LOWER, UPPER, solver_of(oracle.ops, products, eta)),
        "ours, eager, CG": lambda: hypergradient_at(
            oracle, x, y, LOWER, UPPER, solver_of(oracle.ops, products, None)),
        **compiled_ours(problem, losses, x, y, eta, products),
        **betty_peers(problem, x, y, eta, products),
        **torchopt_peers(problem, x, y, eta, products),
    }
    errors = {}
    for name, call in calls.items():
        call()
        errors[name] = float((call().double().reshape(-1) - exact).norm() / exact.norm())
    many = max(200 // products, 4)
    times = best({n: lambda c=c: [c() for _ in range(many)] for n, c in calls.items()}, repeats)
    print(f"| one hypergradient, {products} Hessian products, minibatches of 64 | ms | relative error |\n|---|---|---|")
    for name, seconds in times.items():
        print(f"| {name} | {1e3 * seconds / many:.2f} | {errors[name]:.3g} |")
