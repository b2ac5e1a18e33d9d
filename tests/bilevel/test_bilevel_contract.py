"""What every bilevel method promises, fed from the table: bad input, modules, float32,
checkpoints, outcomes.
"""

from __future__ import annotations

import copy
import pickle
import re

import numpy as np
import pytest
import torch
from cases.bilevel import CASES
from references.bilevel_small import small_quadratic

from mindgap.base.check import RuleError
from mindgap.bilevel import (
    METHODS,
    SABA,
    SLIP,
    SOBA,
    SRBA,
    SVRB,
    AmIGO,
    Batches,
    BilevelProblem,
    Constant,
    Sample,
    Stream,
    TorchOracle,
    TorchStep,
    solve,
)
from mindgap.bilevel.backends.count import calls_of_chunk
from mindgap.bilevel.data.draws import draw_chunk

QUADRATIC = small_quadratic(seed=4)
EACH = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)


def problem(**changes):
    """A ridge problem small enough to break in every way."""
    torch.manual_seed(0)
    data, targets = torch.randn(24, 3), torch.randn(24)
    parts = {
        "upper": lambda x, y, b: (b[0] @ y - b[1]).square().mean(),
        "lower": lambda x, y, b: (b[0] @ y - b[1]).square().mean() + (x.exp() * y.square()).sum(),
        "x": torch.zeros(3),
        "y": torch.zeros(3),
        "upper_data": (data[:8], targets[:8]),
        "lower_data": (data[8:], targets[8:]),
        "batch_size": 4,
    }
    return BilevelProblem(**{**parts, **changes})


@EACH
def test_bad_settings_are_refused_with_name_rule_and_value(case):
    assert case.bad
    for changes, message in case.bad:
        with pytest.raises(RuleError, match=message):
            case.make(**changes)
    with pytest.raises(TypeError):
        case.make(momentum=0.9)


@EACH
def test_settings_are_frozen_comparable_and_picklable(case):
    method = case.make()
    assert method == case.make()
    assert pickle.loads(pickle.dumps(method)) == method
    with pytest.raises(AttributeError):
        method.lr_x = 1.0
    info = METHODS[case.key]
    assert getattr(method, "order", info.order) == info.order
    assert set(info.choices) <= set(type(method).__dataclass_fields__)
    assert type(method).__doc__.count("Source:") == 1


@EACH
def test_a_method_keeps_nothing_between_steps(case):
    """The same values and draws give the same result, whatever was computed in between."""
    method = case.make()
    state = method.start(QUADRATIC.problem(16), seed=0)
    for _ in range(3):
        state = method.step(state)
    before = copy.deepcopy(state.values)
    ((kind, draws),) = draw_chunk(method, state.oracle, 0, state.t, 1, state.drawn).steps()
    first = copy.deepcopy(method.next_values(copy.deepcopy(before), draws, state.oracle, kind))
    other = method.start(QUADRATIC.problem(16), seed=9)
    method.step(other)
    again = method.next_values(copy.deepcopy(before), draws, state.oracle, kind)
    assert _equal(first, again)
    assert not torch.equal(first["x"], before["x"])


def _equal(a, b):
    if isinstance(a, dict):
        return set(a) == set(b) and all(_equal(a[k], b[k]) for k in a)
    return torch.equal(a, b)


@EACH
def test_checkpoint_resumes_bitwise(case, tmp_path):
    method, path = case.make(), tmp_path / "state.pt"
    whole = solve(QUADRATIC.problem(16), method, steps=14, seed=2).state
    first = solve(QUADRATIC.problem(16), method, steps=6, seed=2, checkpoint=path)
    assert first.state.t == 6
    resumed = solve(QUADRATIC.problem(16), method, steps=14, checkpoint=path, resume=True).state
    assert _equal(resumed.values, whole.values)
    for name in ("t", "drawn", "updates", "calls"):
        assert getattr(resumed, name) == getattr(whole, name)
    assert [p.name for p in tmp_path.iterdir()] == ["state.pt"]
    with pytest.raises(RuleError, match="checkpoint must belong to the upper data"):
        solve(QUADRATIC.problem(32), method, steps=14, checkpoint=path, resume=True)
    changed = case.make(lr_x=0.0123)
    with pytest.raises(RuleError, match=r"checkpoint must belong to .*0\.0123"):
        solve(QUADRATIC.problem(16), changed, steps=14, checkpoint=path, resume=True)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "state.pt"
    path.write_text("nothing of the kind")
    with pytest.raises(RuleError, match="checkpoint must begin with"):
        solve(problem(), SOBA(lr_x=0.1, lr_y=0.1), steps=2, checkpoint=path, resume=True)
    with pytest.raises(RuleError, match="checkpoint must be given to resume"):
        solve(problem(), SOBA(lr_x=0.1, lr_y=0.1), steps=2, resume=True)


def test_any_torch_optimizer_can_be_the_upper_step_and_resumes(tmp_path):
    method = AmIGO(
        lr_x=1.0, lr_y=0.1, inner=2, solves=2, x_step=TorchStep(torch.optim.Adam, lr=0.05)
    )
    whole = solve(QUADRATIC.problem(16), method, steps=40, seed=1).state
    assert float(QUADRATIC.hypergradient(whole.x).norm()) < 0.5 * float(
        QUADRATIC.hypergradient(QUADRATIC.x0).norm()
    )
    path = tmp_path / "state.pt"
    solve(QUADRATIC.problem(16), method, steps=11, seed=1, checkpoint=path)
    resumed = solve(QUADRATIC.problem(16), method, steps=40, checkpoint=path, resume=True).state
    assert torch.equal(resumed.x, whole.x)
    sgd = SOBA(lr_x=9.0, lr_y=Constant(0.1), x_step=TorchStep(torch.optim.SGD, lr=0.05))
    plain = SOBA(lr_x=Constant(0.05), lr_y=Constant(0.1))
    a, b = (solve(QUADRATIC.problem(16), m, steps=20).state.x for m in (sgd, plain))
    np.testing.assert_allclose(a, b, rtol=1e-12)


@EACH
def test_float32_stays_float32_and_follows_float64(case):
    method = case.make()
    both = []
    for dtype in (torch.float32, torch.float64):
        quadratic = small_quadratic(seed=4, dtype=dtype)
        state = solve(quadratic.problem(16), method, steps=20).state
        assert {v.dtype for v in _tensors(state.values)} == {dtype}
        both.append(state.x.double())
    np.testing.assert_allclose(both[0], both[1], rtol=2e-4, atol=2e-5)


def _tensors(values):
    for value in values.values():
        yield from _tensors(value) if isinstance(value, dict) else [value]


#: Methods that take one of each derivative per iteration, and those that take one gradient of the
#: upper level.
ONE_OF_EACH = {"slip", "slip-shared", "borep", "soba", "saba", "masoba"}
ONE_UPPER = {*ONE_OF_EACH, "amigo", "bsa", "alset", "ttsa", "stocbio", "f2sa"}


@EACH
def test_counts_agree_with_what_was_called(case):
    method, task = case.make(), QUADRATIC.problem(16)
    state = method.start(task, seed=0)
    lower, before = state.updates["y"], dict(state.calls)
    chunk = draw_chunk(method, state.oracle, state.seed, state.t, 6, dict(state.drawn))
    for _ in range(6):
        state = method.step(state)
    calls = {
        name: count - before.get(name, 0)
        for name, count in state.calls.items()
        if count > before.get(name, 0)
    }
    assert state.updates["x"] == 6
    assert state.updates["y"] > lower or case.key == "borep"
    assert calls == calls_of_chunk(method, task, chunk)  # counted without running
    if case.id in ONE_OF_EACH:  # read off the algorithms
        assert calls == dict.fromkeys(("g_y", "Hz", "Jz", "f_x", "f_y"), 6)
    if case.id in ONE_UPPER:
        assert calls["f_x"] == 6
    assert state.x_epochs == pytest.approx(6 / 8)
    assert state.y_epochs == pytest.approx(state.updates["y"] / 16)


# Bad problems.


def test_lower_loss_that_ignores_y():
    with pytest.raises(RuleError, match="lower must depend on y"):
        SOBA(lr_x=0.1, lr_y=0.1).start(problem(lower=lambda x, y, b: x.sum()))


def test_upper_level_that_ignores_x():
    with pytest.raises(RuleError, match=r"upper must depend on x, directly or through y\*\(x\)"):
        SOBA(lr_x=0.1, lr_y=0.1).start(
            problem(lower=lambda x, y, b: (b[0] @ y - b[1]).square().mean())
        )
    with pytest.raises(RuleError, match=r"upper must depend on x, directly or through y\*\(x\)"):
        SOBA(lr_x=0.1, lr_y=0.1).start(problem(upper=lambda x, y, b: b[1].sum() * torch.ones(())))


@pytest.mark.parametrize("level", ["upper", "lower"])
def test_nan_losses(level):
    with pytest.raises(RuleError, match=f"{level} must be finite at the start, got nan"):
        SOBA(lr_x=0.1, lr_y=0.1).start(
            problem(**{level: lambda x, y, b: (x + y).sum() * float("nan")})
        )


@pytest.mark.parametrize("level", ["upper", "lower"])
def test_losses_that_are_no_scalars_or_fail(level):
    with pytest.raises(
        RuleError, match=rf"{level} must return a tensor with one element, got \(4,\)"
    ):
        SOBA(lr_x=0.1, lr_y=0.1).start(problem(**{level: lambda x, y, b: b[0] @ y}))
    with pytest.raises(
        RuleError,
        match=rf"{level} must be computable at the start \(x \[\(3,\)\], y \[\(3,\)\]\), got",
    ):
        SOBA(lr_x=0.1, lr_y=0.1).start(problem(**{level: lambda x, y, b: (b[0].T @ y).sum()}))


def test_mismatched_devices_dtypes_and_forms():
    with pytest.raises(RuleError, match=r"x and y must be on one device, got \('cpu', 'meta'\)"):
        problem(y=torch.zeros(3, device="meta"))
    elsewhere = (torch.zeros(8, 3, device="meta"), torch.zeros(8, device="meta"))
    with pytest.raises(
        RuleError, match=r"upper_data must be on the device of x and y, cpu, got \['meta'\]"
    ):
        SOBA(lr_x=0.1, lr_y=0.1).start(problem(upper_data=elsewhere))
    for name, value, message in (
        ("upper", 3, "upper must be a function of"),
        (
            "x",
            "one",
            r"x must be a tensor, a dict or tuple of tensors \(nested or not\), or a mod",
        ),
        ("x", [], "x must hold at least one tensor"),
        ("y", torch.zeros(0), "y must have at least one element"),
        ("y", torch.zeros(3, dtype=torch.int64), "y must be of floating point"),
        ("project_x", 1.0, "project_x must be a function of the variable"),
        (
            "lower_data",
            7,
            "data must be tensors, a map-style dataset, a DataLoader or a Stream, got 'int'",
        ),
        (
            "lower_data",
            (torch.zeros(4), torch.zeros(5)),
            "data must have one leading axis of equal length",
        ),
        ("batch_size", 99, "batch_size must lie between 1 and the number of samples"),
    ):
        with pytest.raises(RuleError, match=message):
            problem(**{name: value})


def test_tables_that_do_not_fit_are_refused_with_their_size():
    big = QUADRATIC.problem(16)
    numbers = 16 * (2 * 6 + 3) + 8 * (3 + 6)
    with pytest.raises(
        RuleError,
        match=rf"must hold the five SAGA tables of SABA: .*\({8 * numbers} bytes\), got 1000",
    ):
        SABA(lr_x=0.1, lr_y=0.1, memory_limit=1000).start(big)
    wide = problem(
        x=torch.zeros(3),
        y={"w": torch.zeros(3), "pad": torch.zeros(2_000_000)},
        upper=lambda x, y, b: (b[0] @ y["w"]).square().mean(),
        lower=lambda x, y, b: (b[0] @ y["w"]).square().mean() + x.exp() @ y["w"].square(),
    )
    with pytest.raises(
        RuleError, match=r"must hold the dense matrices of SVRB: .*GiB \(\d{14} bytes\)"
    ):
        SVRB(lr_x=0.1, lr_y=0.1, mu=0.1).start(wide)
    with pytest.raises(RuleError, match=r"y must have at most largest=5 unknowns for SVRB, got 6"):
        SVRB(lr_x=0.1, lr_y=0.1, mu=0.1, largest=5).start(big)


def test_shuffled_loaders_are_refused_where_batches_must_be_fixed():
    data = torch.utils.data.TensorDataset(torch.randn(16, 3), torch.randn(16))
    shuffled = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    ordered = torch.utils.data.DataLoader(data, batch_size=4)
    with pytest.raises(
        RuleError,
        match=r"lower_data must be a fixed partition for SABA .*got \"order 'reshuffle'\"",
    ):
        SABA(lr_x=0.1, lr_y=0.1).start(problem(lower_data=shuffled))
    fine = problem(lower_data=ordered, upper_data=ordered)
    assert solve(fine, SABA(lr_x=0.01, lr_y=0.01), steps=9).ok
    assert solve(problem(lower_data=shuffled), SOBA(lr_x=0.01, lr_y=0.01), steps=9).ok
    batch = fine.lower_data.fetch(Sample(1))
    assert torch.equal(batch[0], data.tensors[0][4:8])


def test_a_stream_is_fresh_samples_and_has_no_full_batch():
    def sample(seed):
        draw = torch.Generator().manual_seed(seed)
        return torch.randn(4, 3, generator=draw), torch.randn(4, generator=draw)

    stream = Stream(sample, batch_size=4, epoch=10)
    fine = problem(lower_data=stream, upper_data=stream)
    a, b = (solve(fine, SLIP(lr_x=0.01, lr_y=0.05, lr_z=0.05), steps=12).state for _ in range(2))
    assert torch.equal(a.x, b.x)
    assert a.x_epochs == pytest.approx(1.2)
    with pytest.raises(
        RuleError, match="upper_data must be a finite set of samples for SRBA, got 'a Stream'"
    ):
        SRBA(lr_x=0.1, lr_y=0.1).start(fine)
    which = stream.draw(0, "lower", 0, 50).which
    assert len(set(which.tolist())) == 50


# Outcomes.


def test_outcomes_in_words():
    fine, method = problem(), SOBA(lr_x=0.01, lr_y=0.01)
    assert solve(fine, method, steps=5).message == "done: 5 iterations"
    assert (
        solve(fine, method, calls=23).message == "out of calls: 25 oracle calls after 5 iterations"
    )
    assert solve(fine, method, seconds=0.02).outcome == "out of time"
    seen = []
    stopped = solve(
        fine, method, steps=50, every=3, callbacks=[lambda s: seen.append(s.t), lambda s: s.t >= 9]
    )
    assert stopped.message == "stopped: a callback asked for it after 9 iterations"
    assert seen == [0, 3, 6, 9]
    wild = solve(fine, SOBA(lr_x=Constant(1.0), lr_y=Constant(50.0)), steps=2000, check_every=5)
    assert wild.outcome == "diverged"
    assert re.match(r"diverged: the norm of \w is \S+ at iteration \d+", wild.message)
    with pytest.raises(ArithmeticError, match="diverged"):
        wild.check()
    lost = solve(fine, SOBA(lr_x=Constant(1.0), lr_y=Constant(50.0)), steps=5000, check_every=500)
    assert lost.outcome == "non-finite"
    assert not lost.ok
    with pytest.raises(RuleError, match="steps must be given, or calls, or seconds, got None"):
        solve(fine, method)
    with pytest.raises(RuleError, match="method must be a bilevel method, got 'str'"):
        solve(fine, "soba", steps=3)


def test_progress_is_written_on_standard_error(capsys):
    solve(problem(), SOBA(lr_x=0.01, lr_y=0.01), steps=3, progress=True)
    assert "iterations" in capsys.readouterr().err


def test_solution_comes_back_in_the_users_form():
    form = problem(
        x={"r": torch.zeros(3)},
        y=(torch.zeros(1), torch.zeros(2)),
        upper=lambda x, y, b: (b[0] @ torch.cat(y) - b[1]).square().mean(),
        lower=lambda x, y, b: (
            (b[0] @ torch.cat(y) - b[1]).square().mean()
            + (x["r"].exp() * torch.cat(y).square()).sum()
        ),
    )
    solution = solve(form, SOBA(lr_x=0.1, lr_y=0.1), steps=10)
    assert list(solution.x) == ["r"]
    assert [t.shape for t in solution.y] == [(1,), (2,)]
    assert torch.equal(torch.cat(solution.y), solution.state.y)
    plain = solve(problem(), SOBA(lr_x=0.1, lr_y=0.1), steps=10)
    assert torch.equal(plain.x, solution.x["r"])


# Samples.


@pytest.mark.parametrize("order", ["partition", "reshuffle"])
@pytest.mark.parametrize("last", ["keep", "drop"])
def test_each_index_of_an_epoch_appears_once(order, last):
    data = Batches(torch.arange(22), 4, order=order, last=last)
    full = set(data.indices(Sample(None)).tolist())
    if order == "partition":
        per_epoch = data.batches
        assert len(full) == (22 if last == "keep" else 20)
        for epoch in range(3):
            tokens = data.draw(7, "lower", epoch * per_epoch, per_epoch)
            seen = [i for w in tokens.which for i in data.indices(Sample(int(w)))]
            if last == "drop":
                assert sorted(seen) == sorted(full)
            else:  # the short batch comes by its share of the samples (test_bilevel_batches.py)
                assert len(set(seen)) >= 20
            assert sorted(data.fetch(Sample(int(tokens.which[0]))).tolist()) == sorted(
                data.indices(Sample(int(tokens.which[0]))).tolist()
            )
        assert data.weights.sum() == pytest.approx(1.0)
    else:
        flat = data.draw(7, "lower", 0, 11).which.reshape(-1)  # two epochs of 22
        assert sorted(flat[:22]) == sorted(flat[22:]) == list(range(22))
        assert flat[:22].tolist() != flat[22:].tolist()
    piecewise = [data.draw(7, "lower", i, 1).which[0] for i in range(9)]
    assert np.array_equal(np.stack(piecewise), data.draw(7, "lower", 0, 9).which)
    assert not np.array_equal(data.draw(7, "upper", 0, 9).which, data.draw(7, "lower", 0, 9).which)


def test_replacement_draws_are_uniform():
    data = Batches(torch.arange(10), 5, order="replacement")
    counts = np.bincount(data.draw(0, "lower", 0, 4000).which.reshape(-1), minlength=10)
    # 20000 draws: standard deviation of a count is 42.4
    assert np.abs(counts - 2000).max() < 4 * 42.4


def test_random_lengths_are_uniform():
    method = METHODS["ttsa"](lr_x=0.1, lr_y=0.1, terms=5)
    oracle = TorchOracle(QUADRATIC.problem(16))
    ks = (
        draw_chunk(method, oracle, 0, 0, 5000, {"lower": 0, "upper": 0, "uniform": 0})
        .blocks[0]
        .draws["k"]
        .reshape(-1)
    )
    counts = np.bincount(ks, minlength=5)
    assert len(counts) == 5
    assert np.abs(counts - 1000).max() < 4 * np.sqrt(5000 * 0.2 * 0.8)


def test_shares_of_ranks_cover_a_batch_once():
    for data in (Batches(torch.arange(22), 5), Batches(torch.arange(22), 5, order="reshuffle")):
        token = Sample(data.draw(0, "lower", 2, 1).which[0])
        parts = [data.fetch(token, (r, 3)).tolist() for r in range(3)]
        assert sorted(i for part in parts for i in part) == sorted(data.fetch(token).tolist())
        weights = [sum(w for _, w in data.chunks((r, 3))) for r in range(3)]
        assert sum(weights) == pytest.approx(1.0)
