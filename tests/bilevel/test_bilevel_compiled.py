"""The compiled backend walks the trajectory of eager torch: same methods, same tokens, float64,
200 iterations.
"""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import pytest
import torch
from cases.bilevel import BY_KEY, CASES
from references.bilevel_small import small_quadratic

from mindgap.base.check import RuleError
from mindgap.bilevel import SLIP, Batches, BilevelProblem, TorchStep, solve
from mindgap.bilevel.backends.count import calls_of_chunk
from mindgap.bilevel.data.draws import draw_chunk
from mindgap.bilevel.data.sample import Sample

# Here a program runs once: compile it quickly rather than well.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
jax = pytest.importorskip("jax")
from mindgap.bilevel.backends import jax_oracle  # noqa: E402
from mindgap.bilevel.backends.compiled import JaxBackend  # noqa: E402
from mindgap.bilevel.backends.jax_oracle import axis_orders  # noqa: E402
from mindgap.lab.tasks.problems import compiled as losses  # noqa: E402

QUADRATIC = small_quadratic(seed=4)
PROBLEM = QUADRATIC.problem(16)
#: one for all tests: what it has compiled for one test serves the others
BACKEND = JaxBackend(*losses.quadratic_losses(), chunk=200)


def flat(values, prefix=""):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, np.asarray(value).copy()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_compiled_trajectory_is_the_eager_one(case):
    method = case.make()
    states = [
        solve(PROBLEM, method, steps=200, seed=3, backend=who).state for who in (None, BACKEND)
    ]
    a, b = (dict(flat(state.values)) for state in states)
    assert set(a) == set(b)
    for name in a:
        assert b[name].dtype == np.float64
        np.testing.assert_allclose(
            b[name], a[name], rtol=1e-9, atol=1e-9 * np.abs(a[name]).max(), err_msg=name
        )
    assert states[0].calls == states[1].calls
    assert states[0].updates == states[1].updates
    assert states[0].drawn == states[1].drawn


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_counts_without_running_are_the_counts_of_a_run(case):
    method, problem = case.make(), PROBLEM
    state = solve(problem, method, steps=21, seed=5).state
    start = method.start(problem, seed=5)
    chunk = draw_chunk(method, start.oracle, 5, 0, 21, start.drawn)
    found = calls_of_chunk(method, problem, chunk)
    for name, calls in start.calls.items():
        found[name] = found.get(name, 0) + calls
    assert found == state.calls


@pytest.mark.parametrize("key", ["srba", "bsa"])
def test_counters_budgets_and_checkpoints_of_the_compiled_backend(key, tmp_path):
    method, problem, path = BY_KEY[key].make(), PROBLEM, tmp_path / "state.pt"
    eager = solve(problem, method, steps=27, seed=1).state
    one = solve(problem, method, steps=27, seed=1, backend=BACKEND).state
    budget = solve(problem, method, calls=eager.total_calls - 1, seed=1, backend=BACKEND).state
    solve(problem, method, steps=13, seed=1, backend=BACKEND, checkpoint=path)
    resumed = solve(
        problem, method, steps=27, seed=1, backend=BACKEND, checkpoint=path, resume=True
    ).state
    for state in (one, budget, resumed):
        assert (state.t, state.drawn, state.calls, state.updates) == (
            27,
            eager.drawn,
            eager.calls,
            eager.updates,
        )
        np.testing.assert_allclose(np.asarray(state.x), eager.x.numpy(), rtol=1e-10)


@pytest.mark.parametrize("order", ["reshuffle", "replacement"])
def test_gathered_batches_give_the_eager_trajectory(order):
    problem, method = QUADRATIC.problem(16, order=order), SLIP(lr_x=0.02, lr_y=0.1, lr_z=0.1)
    a = solve(problem, method, steps=50).state.x
    b = solve(problem, method, steps=50, backend=BACKEND).state.x
    np.testing.assert_allclose(np.asarray(b), a.numpy(), rtol=1e-10)


def product_loss(x, y, batch):
    """A quadratic in products of per-sample matrices, in torch and in JAX: x @ C sums over C's
    middle axis.
    """
    cross, rows = batch
    return (x @ cross @ y + 0.5 * (rows @ y) ** 2 + 0.1 * (x**2).sum()).mean()


def product_problem():
    draw = torch.Generator().manual_seed(0)
    levels = [
        (
            torch.randn(32, 2, 3, generator=draw, dtype=torch.float64),
            torch.randn(32, 3, generator=draw, dtype=torch.float64),
        )
        for _ in range(2)
    ]
    start = torch.ones(2, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    return BilevelProblem(
        product_loss, product_loss, *start, *(Batches(level, 8) for level in levels)
    )


@pytest.mark.parametrize(
    "key", ["f2sa", "srba", "soba"]
)  # first derivatives, all samples at once, second derivatives
def test_samples_stored_with_other_axes_give_the_eager_trajectory(key):
    backend, problem, method = (
        JaxBackend(product_loss, product_loss),
        product_problem(),
        BY_KEY[key].make(),
    )
    assert backend.oracle(problem, method, 0, False).orders["lower"] == [(1, 0, 2), (0, 1)]
    a = solve(problem, method, steps=40).state
    b = solve(problem, method, steps=40, backend=backend).state
    np.testing.assert_allclose(np.asarray(b.x), a.x.numpy(), rtol=1e-9)
    np.testing.assert_allclose(np.asarray(b.y), a.y.numpy(), rtol=1e-9)


def test_a_compiled_gradient_copies_no_batch_transposed(monkeypatch):
    def copies():
        oracle = JaxBackend(product_loss, product_loss).oracle(
            product_problem(), BY_KEY["f2sa"].make(), 0, False
        )

        def lower(arrays, x, y, i):
            return oracle.with_arrays(arrays).first("lower", "y", x, y, Sample(i))

        with jax.enable_x64(True):
            text = (
                jax.jit(lower).lower(oracle.arrays, *oracle.start, np.int32(1)).compile().as_text()
            )
        return sum(" transpose(" in line or " copy(" in line for line in text.splitlines())

    ours = copies()
    monkeypatch.setattr(
        jax_oracle, "axis_orders", lambda loss, x, y, batch: [tuple(range(a.ndim)) for a in batch]
    )
    assert ours < copies()  # XLA decides how many there are


def test_a_loop_over_samples_says_nothing_about_the_order_of_axes():
    def loss(x, y, batch):
        return jax.lax.scan(lambda total, c: (total + x @ c @ y, None), 0.0, batch[0])[0]

    shape = jax.ShapeDtypeStruct
    assert axis_orders(loss, shape((2,), "f4"), shape((3,), "f4"), (shape((8, 2, 3), "f4"),)) == [
        (0, 1, 2)
    ]


def test_batches_that_are_read_one_after_the_other_take_the_place_of_one():
    large = torch.zeros(64, 4000)
    problem = BilevelProblem(
        product_loss, product_loss, torch.zeros(1), torch.zeros(1), *([Batches(large, 8)] * 2)
    )
    oracle = JaxBackend(product_loss, product_loss).oracle(problem, BY_KEY["soba"].make(), 0, False)

    def two(arrays, a, b, chained):
        first = (oracle.with_arrays(arrays)._batch("lower", Sample(a)) ** 2) @ np.ones(
            4000, np.float32
        )
        token = oracle.after(Sample(b), first) if chained else Sample(b)
        return first, (oracle.with_arrays(arrays)._batch("lower", token) ** 2) @ np.ones(
            4000, np.float32
        )

    sizes = []
    for chained in (False, True):
        run = jax.jit(partial(two, chained=chained))
        compiled = run.lower(oracle.arrays, np.int32(1), np.int32(2)).compile()
        sizes.append(compiled.memory_analysis().temp_size_in_bytes)
    assert sizes[1] < 0.6 * sizes[0]
    assert int(oracle.after(Sample(5), jax.numpy.ones(2)).which) == 5


def test_losses_in_both_libraries_are_equal():
    from mindgap.lab.tasks.data import digits
    from mindgap.lab.tasks.problems import covtype_selection, hyper_cleaning, ijcnn1_selection

    cleaning = hyper_cleaning(digits(), corruption=0.4, train=100, validation=100, seed=0)
    binary, multi = (
        ijcnn1_selection(source="synthetic", rows=100),
        covtype_selection(source="synthetic", rows=100),
    )
    for task, pair in (
        (cleaning, losses.cleaning_losses(cleaning)),
        (binary, losses.regularisation_losses(binary)),
        (multi, losses.regularisation_losses(multi)),
    ):
        problem = task.problem(20)
        torch.manual_seed(0)
        problem.pack_y.start = torch.randn_like(problem.pack_y.start)
        with jax.enable_x64(True):
            for level, loss in zip(("upper", "lower"), pair, strict=True):
                a = problem.loss(level, problem.pack_x.start, problem.pack_y.start)
                batch = jax.tree.map(
                    lambda t: jax.numpy.asarray(t.numpy()), problem.data(level).data
                )
                b = loss(
                    problem.pack_x.start.numpy(),
                    problem.pack_y.start.view(task.y0.shape).numpy(),
                    batch,
                )
                assert float(b) == pytest.approx(float(a), rel=1e-12)
        method = SLIP(lr_x=0.01, lr_y=0.05, lr_z=0.05)
        a = solve(problem, method, steps=30).state.x
        b = solve(problem, method, steps=30, backend=JaxBackend(*pair)).state.x
        np.testing.assert_allclose(np.asarray(b), a.numpy(), rtol=1e-9, atol=1e-12)


def test_float32_stays_float32_without_touching_the_global_setting():
    quadratic = small_quadratic(seed=4, dtype=torch.float32)
    before = jax.config.jax_enable_x64
    state = solve(quadratic.problem(16), BY_KEY["mrbo"].make(), steps=20, backend=BACKEND).state
    assert {a.dtype for _, a in flat(state.values)} == {np.dtype(np.float32)}
    assert jax.config.jax_enable_x64 == before


def test_solution_is_torch_again():
    solution = solve(PROBLEM, BY_KEY["soba"].make(), steps=20, backend=BACKEND)
    assert isinstance(solution.x, torch.Tensor)
    assert solution.message == "done: 20 iterations"
    wild = solve(
        PROBLEM, BY_KEY["soba"].make(lr_y=500.0), steps=400, check_every=20, backend=BACKEND
    )
    assert not wild.ok


def test_what_the_compiled_backend_refuses():
    uneven = QUADRATIC.problem(24)
    with pytest.raises(
        RuleError,
        match=r"upper_data must have batches of equal size .*last='drop'.*got \(128, 24\)",
    ):
        solve(uneven, BY_KEY["soba"].make(), steps=1, backend=BACKEND)
    adam = BY_KEY["soba"].make(x_step=TorchStep(torch.optim.Adam))
    with pytest.raises(
        RuleError, match=r"x_step must be one of 'plain', .*MomentumStep for the compiled backend"
    ):
        solve(PROBLEM, adam, steps=1, backend=BACKEND)
    with pytest.raises(RuleError, match="distributed must be False for the compiled backend"):
        solve(PROBLEM, BY_KEY["soba"].make(), steps=1, backend=BACKEND, distributed=True)
    data = torch.randn(8, 2)
    module = BilevelProblem(
        lambda x, y, b: y(b).sum(),
        lambda x, y, b: y(b).sum() ** 2,
        torch.zeros(1),
        torch.nn.Linear(2, 1),
        data,
        data,
        batch_size=4,
    )
    with pytest.raises(
        RuleError, match="y must be tensors for the compiled backend, got 'a module'"
    ):
        solve(module, BY_KEY["soba"].make(), steps=1, backend=BACKEND)
    with pytest.raises(RuleError, match="lower must be a function"):
        JaxBackend(lambda x, y, b: 0.0, None)
    drop = Batches(torch.arange(10), 4, last="drop")
    assert (drop.n, drop.batches) == (8, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_directions_are_equal_on_both_backends(dtype):
    import jax
    import jax.numpy as jnp

    from mindgap.bilevel.backends.jax_oracle import JaxOps
    from mindgap.bilevel.backends.oracles import TorchOps

    seeds, like = np.array([3, 2**31 - 1]), torch.zeros(1, dtype=dtype)
    mine = TorchOps.normals(seeds, 5000, like)
    with jax.enable_x64(dtype == torch.float64):
        other = np.array(JaxOps.normals(seeds.astype(np.int32), 5000, jnp.asarray(like.numpy())))
    np.testing.assert_allclose(mine.numpy(), other, rtol=2e-4, atol=2e-5)
    assert abs(float(mine.mean())) < 0.05
    assert abs(float(mine.std()) - 1.0) < 0.05
