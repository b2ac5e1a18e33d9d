"""The quadratic of the public benchmark: time to a level of the squared hypergradient."""

from __future__ import annotations

from typing import Any

from mindgap.bilevel import METHODS, solve


def part_quadratic(options: Any) -> None:
    from mindgap.bilevel.backends.compiled import JaxBackend
    from mindgap.lab.tasks.problems import quadratic_problem
    from mindgap.lab.tasks.problems.compiled import quadratic_losses

    quadratic = quadratic_problem(lower=32768, upper=1024, dim_y=100, dim_x=10)
    problem, level = quadratic.problem(64), 1e-2
    print(f"| method | backend | it/s | iterations to ||grad Phi||^2 < {level:g} | s to it |")
    print("|---|---|---|---|---|")
    for name, settings in {
        "saba": {"lr_x": 0.1, "lr_y": 0.1},
        "slip": {"lr_x": 0.003, "lr_y": 0.1, "lr_z": 0.1},
        "soba": {"lr_x": 1.0, "lr_y": 1.0},
    }.items():
        for label, backend in (
            ("eager", None),
            ("jax", JaxBackend(*quadratic_losses(), chunk=100)),
        ):
            method = METHODS[name](**settings)
            if backend is not None:  # compile first
                solve(
                    problem, method, steps=200, every=100, callbacks=lambda s: None, backend=backend
                )

            def near(state: Any) -> bool:
                x = state.oracle.to_torch(state.x)
                return float(quadratic.hypergradient(x).square().sum()) < level

            done = solve(problem, method, steps=20000, every=100, callbacks=near, backend=backend)
            print(
                f"| {name} | {label} | {done.state.t / done.seconds:.0f} | {done.state.t} | "
                f"{done.seconds:.2f} |",
                flush=True,
            )
