"""Grids of rates and seeds: one program, the runs that `solve` gives one by one."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

os.environ.setdefault("PJRT_NPROC", "1")
jax = pytest.importorskip("jax")
from cases.bilevel import BY_KEY  # noqa: E402
from references.bilevel_small import PROBLEM  # noqa: E402

from mindgap.base.check import RuleError  # noqa: E402
from mindgap.bilevel import METHODS, Constant, Power, solve, sweep  # noqa: E402
from mindgap.bilevel.backends.compiled import JaxBackend  # noqa: E402
from mindgap.bilevel.backends.many import ManyRuns  # noqa: E402
from mindgap.lab.tasks.problems import compiled as losses  # noqa: E402

BACKEND = JaxBackend(*losses.quadratic_losses(), chunk=64)
KEYS = ["borep", "saba", "alset"]


@pytest.mark.parametrize("key", KEYS)
def test_runs_of_a_program_are_those_of_solve(key):
    """A warm start with two kinds of iterations, tables, and random lengths."""
    points = [BY_KEY[key].make(lr_x=lr) for lr in (0.01, 0.03)]
    runs = ManyRuns(BACKEND, PROBLEM, points, [0, 5])
    runs.run(8)
    runs.run(8)
    for p, point in enumerate(points):
        for s, seed in enumerate((0, 5)):
            state = solve(PROBLEM, point, 16, seed=seed).state
            found = np.asarray(runs.values["x"])[s, p]
            np.testing.assert_allclose(found, state.x, rtol=1e-8, atol=1e-10)
            assert runs.calls[s] == state.total_calls


def test_a_grid_compiles_once_per_method_and_shape():
    """A grid of 27 points used to compile 53 times."""
    backend = JaxBackend(*losses.quadratic_losses(), chunk=64)
    grid = {"lr_x": [0.01, 0.02, 0.05], "lr_y": [0.1, 0.2, 0.3], "lr_z": [0.1, 0.2, 0.3]}
    found = sweep(PROBLEM, "slip", grid, seeds=2, steps=40, every=20, backend=backend)["slip"]
    assert found.values.shape == (3, 2, 27)
    assert len(backend.compiled) == 3  # the start, the iterations, the metric
    sweep(
        PROBLEM,
        "slip",
        {k: v[::-1] for k, v in grid.items()},
        2,
        steps=60,
        every=20,
        backend=backend,
    )
    assert len(backend.compiled) == 3
    for lr in (0.1, 0.2, 0.3):
        solve(PROBLEM, METHODS["slip"](lr_x=lr, lr_y=lr, lr_z=lr), 30, backend=backend)
    assert len(backend.compiled) == 4  # one more for single runs, whatever their steps


def test_a_sweep_is_the_same_on_every_backend():
    grid = {"lr_x": [0.05, 0.2], "lr_y": [0.1]}
    a, b = (
        sweep(PROBLEM, ["soba", "f2sa"], grid, seeds=[3, 4], steps=25, every=10, backend=backend)
        for backend in (None, BACKEND)
    )
    assert list(a) == list(b) == ["soba", "f2sa"]
    for key in a:
        assert a[key].iterations.tolist() == [0, 10, 20, 25]
        np.testing.assert_allclose(a[key].values, b[key].values, rtol=1e-8)
        np.testing.assert_allclose(a[key].calls, b[key].calls)
        assert a[key].best == b[key].best
    low, high = a["soba"].interval()
    assert (low <= high).all()


def test_points_of_several_kinds_and_a_metric_of_ones_own():
    """Rates that stay and rates that fall, and settings that are no rates, are several programs."""
    grid = {"lr_x": [Constant(0.05), Power(0.1, 0.5)], "lr_y": [Constant(0.1)]}
    found = sweep(
        PROBLEM,
        METHODS["masoba"](lr_x=1.0, lr_y=1.0),
        {**grid, "theta": [0.1, 0.5]},
        steps=20,
        metric=lambda x, y: float(x.norm()),
        backend=BACKEND,
    )["MASOBA"]
    assert found.values.shape == (11, 1, 4)
    for p, method in enumerate(found.methods):
        x = solve(PROBLEM, method, 20).state.x
        assert found.values[-1, 0, p] == pytest.approx(float(x.norm()))


def test_a_run_that_goes_wrong_is_never_the_best():
    grid = {"lr_x": [0.05], "lr_y": [0.1, 1e12]}
    for backend in (None, BACKEND):
        found = sweep(PROBLEM, "soba", grid, steps=200, backend=backend)["soba"]
        assert found.best == 0
        assert np.isinf(found.final[1])


def test_bad_grids_are_refused():
    good = {"lr_x": [0.1], "lr_y": [0.1]}
    for arguments, message in (
        ({"grid": {**good, "lr": [0.1]}}, "grid must name settings of the methods, got 'lr'"),
        ({"methods": "slip"}, "grid must have values of lr_z, for slip"),
        ({"grid": {"lr_x": 0.1}}, "grid must map names of settings to lists"),
        ({"methods": "sobaa"}, "methods must be methods, or of"),
        ({"methods": [1.0]}, "methods must be methods, or of"),
        ({"metric": lambda x, y: "low"}, "metric must return a number"),
        ({"methods": []}, "methods must be methods or keys"),
        ({"seeds": 0}, "seeds must be a whole number of at least 1"),
        ({"seeds": []}, "seeds must hold at least one"),
        ({"steps": 0}, "steps must be"),
        ({"metric": 3}, "metric must be a function"),
        ({"problem": torch.zeros(2)}, "problem must be a BilevelProblem"),
    ):
        known = {"problem": PROBLEM, "methods": "soba", "grid": good, "steps": 2, **arguments}
        with pytest.raises(RuleError, match=message):
            sweep(**known)


GRID = {"lr_x": [0.001, 0.01, 0.03, 0.1], "lr_y": [0.1]}


@pytest.mark.parametrize("backend", [None, BACKEND])
def test_points_are_let_go_on_the_way(backend):
    """Half of four points after an eighth, one of two after a quarter; the rest equals a sweep of
    all.
    """
    all_runs, few = (
        sweep(PROBLEM, "soba", GRID, 2, steps=32, every=4, backend=backend, keep=keep)["soba"]
        for keep in (1.0, 0.5)
    )
    assert few.iterations.tolist() == all_runs.iterations.tolist()
    alive = np.isfinite(few.values).all(1).sum(1)
    assert alive.tolist() == [4, 4, 2, 1, 1, 1, 1, 1, 1]
    assert few.best == int(np.nanargmin(all_runs.values[2].mean(0)))
    np.testing.assert_allclose(
        few.values[:, :, few.best], all_runs.values[:, :, few.best], rtol=1e-6
    )


def test_a_sweep_in_a_folder_is_written_as_it_comes_and_read_again(tmp_path):
    seen = []

    def stops(x, y):
        seen.append(1)
        if len(seen) == 11:  # in the second of three looks
            raise KeyboardInterrupt
        return float(x.norm())

    form = {"steps": 10, "every": 5, "metric": stops, "folder": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        sweep(PROBLEM, "soba", GRID, 2, backend=BACKEND, **form)
    assert len((tmp_path / "sweep.jsonl").read_text().splitlines()) == 1
    with (tmp_path / "sweep.jsonl").open("a") as file:
        file.write('{"of": "half')  # killed while it wrote
    first = sweep(PROBLEM, "soba", GRID, 2, backend=BACKEND, **form)["soba"]
    count = len(seen)
    again = sweep(PROBLEM, "soba", GRID, 2, backend=BACKEND, **form)["soba"]
    assert len(seen) == count  # nothing ran
    np.testing.assert_array_equal(first.values, again.values)
    np.testing.assert_array_equal(first.calls, again.calls)
    other = sweep(PROBLEM, "soba", GRID, 1, backend=BACKEND, **form)["soba"]
    assert len(seen) > count
    assert other.values.shape == (3, 1, 4)


def test_a_bad_share_of_points_is_refused():
    for keep in (0.0, 1.5):
        with pytest.raises(RuleError, match="keep must be"):
            sweep(PROBLEM, "soba", GRID, steps=10, keep=keep)
