"""The solvers of benchmark_bilevel as their authors wrote them, against ours: the same data,
losses, steps and batches.

Their objective, data sets and solvers are imported from a folder that holds a copy of
https://github.com/benchopt/benchmark_bilevel. benchopt itself is not needed: the few names that the
solvers take from it are put in its place here. Both sides start afresh in every run, theirs with
all iterations in one dispatch.

So that levels can be compared, settings and samples are made equal:

* Their first epoch has a random order (of itself it is that of the file for every seed), and the
  seed also drives their random numbers of Neumann factors (of themselves those are the same in
  every run).
* Ours visits the last batch of an epoch twice and fills up the last batch of the file with samples
  before it: their sampler starts a new epoch one draw late, and their slices end at the end of the
  file.
* F²SA has their four schedules. The first step of BSA on y is zero, because theirs moves x before
  y.
* VRBO corrects at the new x alone, as theirs does: the move of x stays uncorrected (ours follows it
  otherwise).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import bilevel_timing
import numpy as np
import torch

from mindgap.bilevel import METHODS, Batches, BilevelProblem, Power
from mindgap.bilevel.backends.compiled import JaxBackend
from mindgap.bilevel.core.estimators import spider
from mindgap.bilevel.core.settings import Product
from mindgap.bilevel.data.sample import Sample
from mindgap.bilevel.methods import vrbo
from mindgap.lab.tasks.data.tabular import ijcnn1

BATCH, RATIO, TERMS, INNER = 64, 10.0, 10, 10
NEUMANN = {"terms": TERMS}
#: our key -> (their file, their settings, ours beside lr_x and lr_y, iterations of a timed run)
SOLVERS: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    "soba": ("soba", {}, {}, 8192),
    "saba": ("saba", {"mode_init_memory": "zero"}, {}, 8192),
    "srba": ("srba", {"period_frac": 0.5}, {}, 8192),
    "fsla": ("fsla", {}, {}, 2048),
    "amigo": ("amigo", {"n_inner_steps": INNER}, {"inner": INNER, "solves": INNER}, 2048),
    "stocbio": (
        "stocbio",
        {"n_inner_steps": INNER, "n_shia_steps": TERMS},
        {"inner": INNER, **NEUMANN},
        2048,
    ),
    "bsa": (
        "bsa",
        {"n_inner_steps": INNER, "n_hia_steps": TERMS},
        {"inner": INNER, "inner_exponent": 0.0, "warm": True, **NEUMANN},
        2048,
    ),
    "ttsa": ("ttsa", {"n_hia_steps": TERMS}, NEUMANN, 8192),
    "mrbo": ("mrbo", {"n_shia_steps": TERMS, "eta": 0.5}, NEUMANN, 2048),
    "sustain": ("sustain", {"n_hia_steps": TERMS, "eta": 0.5}, NEUMANN, 2048),
    "vrbo": (
        "vrbo",
        {"n_inner_steps": INNER, "n_shia_steps": TERMS, "period_frac": 0.5},
        {"inner": INNER, **NEUMANN},
        1024,
    ),
    "f2sa": (
        "f2sa",
        {"n_inner_steps": INNER, "lmbda0": 1.0, "delta_lmbda": 0.1},
        {"lam": 1.0, "delta": Power(0.1, 1 / 7), "inner": INNER},
        2048,
    ),
}
#: data set -> (step on y, by how much fewer iterations a timed run has, parameters of theirs)
PROBLEMS: dict[str, tuple[float, int, dict[str, Any]]] = {
    "ijcnn1": (0.1, 1, {}),
    "quadratic": (
        0.1,
        32,
        {"n_samples_inner": 4096, "n_samples_outer": 1024, "dim_inner": 100, "dim_outer": 10},
    ),
}


class _Base:
    """What a solver, data set or objective of theirs inherits: values of its parameters as
    attributes.
    """

    parameters: ClassVar[dict[str, list[Any]]] = {}

    def __init__(self, **values: Any) -> None:
        for name, choices in self.parameters.items():
            setattr(self, name, values.get(name, choices[0]))

    def run_once(self, count: int) -> None:
        """benchopt's warm-up: not needed, because every solver is timed after a first run."""


def _fetch_libsvm(name: str) -> tuple[Any, Any]:
    """ijcnn1 as libsvmdata returns it, shuffled: the real samples where they are stored, else
    synthetic ones.
    """
    table = ijcnn1("test" if name.endswith("test") else "train")
    order = np.random.default_rng(0).permutation(len(table))
    return table.features[order].astype(np.float32), 2.0 * table.labels[order].astype(
        np.float32
    ) - 1.0


def import_field(folder: Path) -> None:
    """Make their packages importable: ``solvers``, ``datasets``, ``objective``."""
    benchopt, criterion, libsvm = (
        ModuleType(n) for n in ("benchopt", "benchopt.stopping_criterion", "libsvmdata")
    )
    vars(benchopt).update(
        BaseSolver=_Base, BaseDataset=_Base, BaseObjective=_Base, safe_import_context=nullcontext
    )
    vars(criterion)["SufficientProgressCriterion"] = lambda **options: None
    vars(libsvm)["fetch_libsvm"] = _fetch_libsvm
    sys.modules |= {m.__name__: m for m in (benchopt, criterion, libsvm)}
    sys.path.insert(0, str(folder))
    os.chdir(folder)  # they keep generated matrices in the working folder


def _spider_at_new_x(direction: Any, point: Any, memory: Any) -> Any:
    return spider(direction, point, {**memory, "point": {**memory["point"], "x": point["x"]}})


class TheirBatches(Batches):
    """Their batches of a file, drawn as their sampler draws: the last of every epoch comes
    twice.
    """

    def __init__(self, arrays: Any) -> None:
        n = len(arrays[0])
        last = np.arange(n - BATCH, n) if n % BATCH else np.arange(0)
        rows = np.concatenate([np.arange(n - n % BATCH), last])
        super().__init__(
            tuple(torch.from_numpy(np.array(a)[rows]) for a in arrays), BATCH, shuffle=False
        )

    def draw(self, seed: int, level: str, start: int, count: int) -> Sample:
        epochs = range(start // (self.batches + 1), (start + count) // (self.batches + 1) + 1)
        orders = [self._block(seed, level, epoch) for epoch in epochs]
        which = np.concatenate([np.append(order, order[-1]) for order in orders])
        begin = start - epochs[0] * (self.batches + 1)
        return Sample(which[begin : begin + count])


class Field:
    """One of their problems, with what both sides need of it."""

    def __init__(self, name: str) -> None:
        self.step, self.fewer, parameters = PROBLEMS[name]
        self.name = name
        module: Any = import_module("datasets." + ("simulated" if name == "quadratic" else name))
        arrays: list[Any] = []
        if name == "quadratic":
            make = module.get_function
            module.get_function = lambda *parts: arrays.append(parts) or make(*parts)
        data = module.Dataset(**parameters).get_data()
        self.objective = import_module("objective").Objective()
        self.objective.set_data(**data)
        self.losses = self._quadratic(module) if name == "quadratic" else self._logistic(module)
        if name == "quadratic":
            lower, upper = arrays[0], arrays[2]
        else:
            lower, upper = _fetch_libsvm("ijcnn1"), _fetch_libsvm("ijcnn1_test")
        start = [
            torch.from_numpy(np.array(v))
            for v in (self.objective.outer_var0, self.objective.inner_var0)
        ]
        self.problem = BilevelProblem(
            *self.losses, *start, TheirBatches(upper), TheirBatches(lower)
        )

    @staticmethod
    def _quadratic(module: Any) -> tuple[Any, Any]:
        def loss(x: Any, y: Any, b: Any) -> Any:
            return module.batched_quadratic(y, x, *b)

        return loss, loss

    @staticmethod
    def _logistic(module: Any) -> tuple[Any, Any]:
        import jax.numpy as jnp

        def upper(x: Any, y: Any, b: Any) -> Any:
            return module.loss(y, x, *b)

        return upper, lambda x, y, b: upper(x, y, b) + jnp.dot(jnp.exp(x) * y, y) / 2

    def level(self, x: Any, y: Any) -> float:
        """Their measure: ||grad Phi(x)||^2 over all samples."""
        return float(self.objective.evaluate_result(y, x)["value"])

    def steps(self, key: str) -> int:
        """Iterations of a timed run: whole periods where a method has them."""
        period = self.period(key)
        return max(SOLVERS[key][3] // self.fewer // period, 1) * period

    def period(self, key: str) -> int:
        """Iterations between two looks at all samples."""
        samples = self.objective.n_samples_inner + self.objective.n_samples_outer
        return int(samples * 0.5 / BATCH) if key in ("srba", "vrbo") else 1

    def theirs(self, key: str) -> Callable[[int], tuple[Any, Any]]:
        """Seed -> (x, y) after a run of their solver."""
        import jax

        file, settings, _, _ = SOLVERS[key]
        solver = import_module(f"solvers.{file}").Solver(
            step_size=self.step,
            outer_ratio=RATIO,
            batch_size=BATCH,
            eval_freq=self.steps(key),
            **settings,
        )
        solver.set_objective(**self.objective.get_objective())
        solver.init()

        def run(seed: int) -> tuple[Any, Any]:
            solver.random_state = seed
            for level, number in (("inner", 0), ("outer", 1)):
                first, later = jax.random.split(jax.random.PRNGKey(2 * seed + number))
                state = getattr(solver, f"state_{level}_sampler")
                order = jax.random.permutation(first, len(state["batch_order"]))
                setattr(
                    solver, f"state_{level}_sampler", {**state, "batch_order": order, "key": later}
                )
            once = iter((True, False))
            solver.run(lambda: next(once))
            return jax.block_until_ready((solver.outer_var, solver.inner_var))

        return run

    def ours(self, key: str) -> Callable[[int], tuple[Any, Any]]:
        """Seed -> (x, y) after a run of our method."""
        import jax

        settings = {"lr_x": self.step / RATIO, "lr_y": self.step, **SOLVERS[key][2]}
        if "terms" in settings:
            settings["eta"] = self.step
        if self.period(key) > 1:
            settings["period"] = self.period(key)
        if key == "bsa":
            settings["lr_y"] = Product(
                self.step, lambda t: np.where(t > 0, np.maximum(t, 1) ** -0.5, 0.0)
            )
        if key == "fsla":
            settings |= {
                "lr_x": Power(self.step / RATIO, 0.5),
                "lr_y": Power(self.step, 0.5),
                "weight": Power(self.step, 0.5),
            }
        if key == "vrbo":
            vars(vrbo)["spider"] = _spider_at_new_x
        if key == "f2sa":  # its step on x is lr_x alpha
            settings |= {
                "alpha": self.step,
                "lr_x": Product(1.0 / RATIO, lambda t: (t + 1.0) ** (1 / 7)),
            }
        method, backend = METHODS[key](**settings), JaxBackend(*self.losses)
        oracle = backend.oracle(self.problem, method, 0, False)

        def run(seed: int) -> tuple[Any, Any]:
            values = backend.run(
                backend.start(method, oracle, seed), self.steps(key), None, None
            ).values
            return jax.block_until_ready((values["x"], values["y"]))

        return run


def race(field: Field, keys: list[str], repeats: int, seeds: int) -> list[dict[str, Any]]:
    """One row per method: the median over interleaved rounds of theirs' time / ours' time, and
    both levels.
    """
    rows = []
    for key in keys:
        sides = {"ours": field.ours(key), "theirs": field.theirs(key)}
        levels = {
            who: [field.level(*run(seed)) for seed in range(1, seeds + 1)]
            for who, run in sides.items()
        }
        times: dict[str, list[float]] = {who: [] for who in sides}
        for i in range(repeats):
            for who in list(sides)[:: 1 if i % 2 else -1]:
                begin = bilevel_timing.clock()
                sides[who](1)
                times[who].append(bilevel_timing.clock() - begin)
        ratios = np.array(times["theirs"]) / np.array(times["ours"])
        rows.append(
            {
                "method": METHODS[key].name,
                "steps": field.steps(key),
                "ratio": float(np.median(ratios)),
                "quartiles": np.percentile(ratios, (25, 75)),
                **times,
                "levels": levels,
            }
        )
        print_row(field, rows[-1])
    return rows


def print_row(field: Field, row: dict[str, Any]) -> None:
    """A line of the table, as soon as it is known."""
    low, high = row["quartiles"]
    rates = [f"{row['steps'] / min(row[who]):,.0f}" for who in ("ours", "theirs")]
    levels = [f"{min(v):.4g} to {max(v):.4g}" for v in row["levels"].values()]
    a, b = row["levels"].values()
    agree = (
        "yes" if min(a) <= max(b) and min(b) <= max(a) else f"{np.mean(a) / np.mean(b) - 1:+.1%}"
    )
    print(
        f"| {field.name} | {row['method']} | {rates[0]} | {rates[1]} | {row['ratio']:.2f} "
        f"({low:.2f} to {high:.2f}) "
        f"| {levels[0]} | {levels[1]} | {agree} |",
        flush=True,
    )
