"""Our bilevel methods beside other people's, in one run, interleaved; on a shared machine use the
ratios.

    python benchmarks/bilevel_peers.py FOLDER [--repeats 9] [--seeds 5] [--methods soba,f2sa]

FOLDER holds a copy of https://github.com/benchopt/benchmark_bilevel, whose own solvers are raced by
``bilevel_field.py``. Then follows one hypergradient of hyper-cleaning by us and by every peer that
is installed: its cost, and its error against the exact one. All take the same number of Hessian
products on the same two minibatches at the same point, and the same step where there is one. Peers
are called at their innermost function, without their training loops, jaxopt compiled as our
compiled backend is. To have them (nothing of the library needs them):

    pip install --no-deps --ignore-requires-python --target DIR betty-ml==0.2.1 torchopt==0.7.3 \
        jaxopt optree graphviz
    pip install --no-deps --target DIR git+https://github.com/prolearner/hypertorch

``PYTHONPATH=DIR python benchmarks/bilevel.py cleaning`` prints the second table alone.

``--grid`` times a grid of 27 points with 5 seeds of SOBA on ijcnn1 instead: our ``sweep`` with
its compilation, a loop in eager torch by hand, and their solver, which is made and compiled for
every point. The two others run ``--some`` of the 135 runs, and their time is multiplied.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("PJRT_NPROC", "1")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import bilevel_timing  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from mindgap.bilevel import METHODS, Constant, Sample, TorchOracle  # noqa: E402
from mindgap.bilevel.backends.oracles import TorchOps  # noqa: E402
from mindgap.bilevel.core.directions import conjugate_gradients, hypergradient_at, neumann_series  # noqa: E402
from mindgap.bilevel.solver import Eager  # noqa: E402
from mindgap.bilevel.tools.exact import linear_solver  # noqa: E402

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
    config = Config(
        neumann_iterations=products, neumann_alpha=eta, cg_iterations=products, cg_alpha=1.0
    )
    current = SimpleNamespace(
        paths=[],
        config=config,
        cur_batch=below,
        training_step_exec=lambda b: problem.lower(x, y, b),
        trainable_parameters=lambda: [y],
        parameters=lambda: [y],
    )
    above_it = SimpleNamespace(trainable_parameters=lambda: [x])

    def call(how: Any) -> torch.Tensor:
        vector = torch.autograd.grad(problem.upper(x, y, above), [y])
        return how(vector, current, above_it, False)[0]

    return {"betty 0.2.1, Neumann": lambda: call(neumann), "betty 0.2.1, CG": lambda: call(cg)}


@where_installed
def torchopt_peers(
    problem: Any, x: torch.Tensor, y: torch.Tensor, eta: float, products: int
) -> Peers:
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


def hypertorch_peers(
    problem: Any, x: torch.Tensor, y: torch.Tensor, eta: float, products: int
) -> dict[str, Callable[[], Any]]:
    try:
        from hypergrad.hypergradients import CG, neumann  # type: ignore[import-not-found]
    except ImportError as error:
        print(f"# hypertorch: skipped ({error})")
        return {}
    x, y = x.clone().requires_grad_(), y.view(784, 10).clone().requires_grad_()
    below, above = problem.lower_data.fetch(LOWER), problem.upper_data.fetch(UPPER)

    def step(params: Any, hparams: Any) -> Any:
        loss = problem.lower(hparams[0], params[0], below)
        return [params[0] - eta * torch.autograd.grad(loss, params, create_graph=True)[0]]

    def call(how: Any) -> torch.Tensor:
        def outer(params: Any, hparams: Any) -> torch.Tensor:
            return problem.upper(hparams[0], params[0], above)

        return how([y], [x], products, step, outer, tol=0.0, set_grad=False)[0]

    return {"hypertorch, Neumann": lambda: call(neumann), "hypertorch, CG": lambda: call(CG)}


def jaxopt_peers(
    problem: Any, losses: Any, x: torch.Tensor, y: torch.Tensor, products: int
) -> dict[str, Callable[[], Any]]:
    try:
        import jax
        import jaxopt  # type: ignore[import-not-found]
    except ImportError as error:
        print(f"# jaxopt: skipped ({error})")
        return {}
    upper, lower = losses
    to = lambda batch: tuple(jax.numpy.asarray(t.numpy()) for t in batch)  # noqa: E731
    below, above = to(problem.lower_data.fetch(LOWER)), to(problem.upper_data.fetch(UPPER))
    solve = lambda matvec, b, **options: jaxopt.linear_solve.solve_cg(  # noqa: E731
        matvec, b, tol=0.0, maxiter=products
    )

    @jax.jit
    def hypergradient(x: Any, y: Any, below: Any, above: Any) -> Any:
        @jaxopt.implicit_diff.custom_root(jax.grad(lambda y, x: lower(x, y, below)), solve=solve)
        def solution(start: Any, x: Any) -> Any:
            return start

        return jax.grad(lambda x: upper(x, solution(y, x), above))(x)

    at = jax.numpy.asarray(x.numpy()), jax.numpy.asarray(y.view(784, 10).numpy())
    run = lambda: torch.from_numpy(np.array(hypergradient(*at, below, above)))  # noqa: E731
    return {f"jaxopt {version('jaxopt')}, jitted, CG": run}


def compiled_ours(
    problem: Any, losses: Any, x: torch.Tensor, y: torch.Tensor, eta: float, products: int
) -> dict[str, Any]:
    try:
        import jax

        from mindgap.bilevel.backends.compiled import JaxBackend
    except ImportError as error:
        print(f"# compiled: skipped ({error})")
        return {}
    oracle = JaxBackend(*losses).oracle(problem, METHODS["soba"](lr_x=1.0, lr_y=1.0), 0, False)
    at = oracle.from_torch(x), oracle.from_torch(y)

    def make(step: float | None) -> Callable[[], Any]:
        solve = solver_of(oracle, products, step)
        run = jax.jit(
            lambda arrays, x, y: hypergradient_at(
                oracle.with_arrays(arrays), x, y, LOWER, UPPER, solve
            )
        )
        return lambda: oracle.to_torch(jax.block_until_ready(run(oracle.arrays, *at)))

    return {"ours, compiled, Neumann": make(eta), "ours, compiled, CG": make(None)}


def solver_of(ops: Any, products: int, eta: float | None) -> Callable[[Any, Any], Any]:
    """A Neumann series with a step, or conjugate gradients without one."""
    if eta is None and isinstance(ops, TorchOps):
        return linear_solver("cg", products=products, eta=None)
    if eta is None:
        return lambda hessian, v: conjugate_gradients(ops, hessian, v, products=products)[0]
    return lambda hessian, v: neumann_series(ops, hessian, v, products, eta)


def compare_peers(make_problem: Callable[..., Any], losses: Any, repeats: int) -> None:
    """Print milliseconds and relative error of one hypergradient for ours and each peer that is
    installed.
    """
    problem, (double, _) = make_problem("cpu")[0], make_problem("cpu", torch.float64)
    x, y = a_point(problem)
    exact_oracle = TorchOracle(double)
    at = x.double(), y.double()
    f_x, f_y = exact_oracle.upper(*at, UPPER)
    hessian, mixed = exact_oracle.operator(*at, LOWER)
    exact = f_x - mixed(conjugate_gradients(exact_oracle, hessian, f_y, products=5000, tol=1e-9)[0])
    eta = 1.0 / largest_eigenvalue(exact_oracle, *at)
    warnings.simplefilter("ignore", FutureWarning)  # TorchOpt warns at every call
    for products in (10, 80):
        one_table(problem, losses, x, y, eta, exact, products, repeats)


def one_table(
    problem: Any,
    losses: Any,
    x: Any,
    y: Any,
    eta: float,
    exact: torch.Tensor,
    products: int,
    repeats: int,
) -> None:
    oracle = TorchOracle(problem)
    calls: dict[str, Callable[[], Any]] = {
        "ours, eager, Neumann": lambda: hypergradient_at(
            oracle, x, y, LOWER, UPPER, solver_of(oracle, products, eta)
        ),
        "ours, eager, CG": lambda: hypergradient_at(
            oracle, x, y, LOWER, UPPER, solver_of(oracle, products, None)
        ),
        **compiled_ours(problem, losses, x, y, eta, products),
        **betty_peers(problem, x, y, eta, products),
        **torchopt_peers(problem, x, y, eta, products),
        **hypertorch_peers(problem, x, y, eta, products),
        **jaxopt_peers(problem, losses, x, y, products),
    }
    errors = {}
    for name, call in calls.items():
        call()
        errors[name] = float((call().double().reshape(-1) - exact).norm() / exact.norm())
    many = max(60 // products, 1)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            begin = bilevel_timing.clock()
            for _ in range(many):
                call()
            times[name].append((bilevel_timing.clock() - begin) / many)
    print(
        f"| one hypergradient, {products} Hessian products, minibatches of 64 | ms | relative "
        "error "
        "| ours is faster by |\n|---|---|---|---|"
    )
    for name, seconds in times.items():
        like = f"ours, {'compiled' if 'jaxopt' in name else 'eager'}, {name.rpartition(', ')[2]}"
        faster = (
            ""
            if name.startswith("ours")
            else f"{np.median(np.array(seconds) / np.array(times[like])):.2f}"
        )
        print(f"| {name} | {1e3 * min(seconds):.2f} | {errors[name]:.3g} | {faster} |", flush=True)


def by_hand(problem: Any, lr_x: float, lr_y: float, steps: int, seed: int) -> torch.Tensor:
    """SOBA in eager torch, as one writes it for one problem."""
    x, y = (start.clone() for start in (problem.pack_x.start, problem.pack_y.start))
    z = torch.zeros_like(y)
    (a, t), (b, u) = problem.lower_data.data, problem.upper_data.data
    draw = np.random.default_rng(seed)
    rows = draw.integers(0, [len(a) // 64, len(b) // 64], (steps, 2)) * 64
    for k, (i, j) in enumerate(rows.tolist()):
        x_, y_ = x.requires_grad_(), y.requires_grad_()
        fits = torch.nn.functional.softplus(-t[i : i + 64] * (a[i : i + 64] @ y_)).mean()
        lower = fits + 0.5 * (x_.exp() * y_.square()).sum()
        (g_y,) = torch.autograd.grad(lower, y_, create_graph=True)
        j_z, h_z = torch.autograd.grad(g_y, (x_, y_), z)
        upper = torch.nn.functional.softplus(-u[j : j + 64] * (b[j : j + 64] @ y_)).mean()
        (f_y,) = torch.autograd.grad(upper, y_)
        rate = (k + 1.0) ** -0.5
        with torch.no_grad():
            x, y, z = (
                x + lr_x * rate * j_z,
                y - lr_y * rate * g_y,
                z - lr_y * rate * (h_z - f_y),
            )
    return x.detach()


def compare_grids(folder: Path, steps: int, some: int) -> None:
    """A grid of SOBA with seeds: seconds of all runs, ours beside the others."""
    import jax
    from bilevel_field import BATCH, Field, import_field
    from bilevel_tasks import equal_batches

    from mindgap.bilevel import sweep
    from mindgap.bilevel.backends.compiled import JaxBackend
    from mindgap.lab.tasks.problems.compiled import regularisation_losses
    from mindgap.lab.tasks.problems.regularisation import ijcnn1_selection

    task = ijcnn1_selection(dtype=torch.float32)
    problem = equal_batches(task.problem())
    rates_x = [0.01 * 10 ** (i / 4) for i in range(9)]
    rates_y = [0.03, 0.1, 0.3]
    runs, clock = 27 * 5, bilevel_timing.clock

    begin = clock()
    sweep(
        problem,
        "soba",
        {"lr_x": rates_x, "lr_y": rates_y},
        5,
        steps=steps,
        every=steps,
        backend=JaxBackend(*regularisation_losses(task)),
    )
    ours = clock() - begin
    print(f"| 27 points x 5 seeds of SOBA, {steps} iterations | seconds | ours is faster by |")
    print("|---|---|---|")
    print(f"| ours, `sweep`, compilation included | {ours:.1f} | |", flush=True)

    def show(name: str, seconds: float) -> None:
        told = f"| {name} ({some} of {runs} runs, multiplied) | {seconds:.0f} "
        print(f"{told}| {seconds / ours:.0f} |", flush=True)

    begin = clock()
    for i in range(some):
        by_hand(problem, rates_x[i % 9], rates_y[i % 3], steps, i)
    show("torch by hand", (clock() - begin) * runs / some)
    import_field(folder)
    field = Field("ijcnn1")
    objective = field.objective.get_objective()
    from solvers.soba import Solver  # type: ignore[import-not-found]

    begin = clock()
    for i in range(some):
        solver = Solver(
            step_size=rates_y[i % 3], outer_ratio=10.0, batch_size=BATCH, eval_freq=steps
        )
        solver.random_state = i
        solver.set_objective(**objective)
        solver.init()
        once = iter((True, False))
        solver.run(lambda once=once: next(once))
        jax.block_until_ready(solver.outer_var)
    show("benchmark_bilevel's solver", (clock() - begin) * runs / some)


def main() -> None:
    from bilevel_cleaning import cleaning_jax, cleaning_problem
    from bilevel_field import PROBLEMS, SOLVERS, Field, import_field, race

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a copy of benchmark_bilevel")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", default=",".join(SOLVERS))
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--grid", action="store_true", help="a grid with seeds alone")
    parser.add_argument("--some", type=int, default=3, help="runs of the others that are timed")
    parser.add_argument("--no-hypergradients", action="store_true", help="race the solvers alone")
    parser.add_argument(
        "--clock", choices=list(bilevel_timing.CLOCK), default="cpu", help="cpu: processor time"
    )
    options = parser.parse_args()
    bilevel_timing.use_clock(options.clock)
    torch.set_num_threads(1)
    if options.grid:
        compare_grids(options.folder.resolve(), 2000, options.some)
        return
    import_field(options.folder.resolve())
    print(
        f"# {datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, torch "
        f"{torch.__version__}, "
        f"jax {version('jax')}, {len(os.sched_getaffinity(0))} core(s) of {platform.machine()}, "
        f"{'processor' if options.clock == 'cpu' else 'wall'} time, {options.repeats} rounds"
    )
    print(
        "| problem | method | ours it/s | theirs it/s | ours / theirs, median (quartiles) | ours: "
        "final ‖∇Φ‖² "
        "| theirs | levels overlap |\n|---|---|---|---|---|---|---|---|"
    )
    for name in options.problems.split(","):
        if name:
            race(Field(name), options.methods.split(","), options.repeats, options.seeds)
    if not options.no_hypergradients:
        compare_peers(cleaning_problem, cleaning_jax(), options.repeats)


if __name__ == "__main__":
    main()
