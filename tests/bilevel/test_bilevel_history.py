"""The history of a run, its drawing, and variables in a user's own nested form."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
import torch

from mindgap.base.check import RuleError
from mindgap.bilevel import SLIP, SOBA, BilevelProblem, Stream, solve
from mindgap.bilevel.data.problem import example_problem
from mindgap.bilevel.tools.checkpoint import belongs_to, write_run

METHOD = SOBA(lr_x=0.1, lr_y=0.2)


def backends(upper, lower):
    jax = pytest.importorskip("jax")
    assert jax is not None
    from mindgap.bilevel.backends.compiled import JaxBackend

    return (None, JaxBackend(upper, lower))


def test_history_has_rows_and_leaves_the_run_as_it_is():
    problem = example_problem()
    plain = solve(problem, METHOD, 25)
    told = solve(problem, METHOD, 25, history=10, record={"gap": lambda s: float(s.x) - 1.0})
    assert plain.history == ()
    assert [row["iteration"] for row in told.history] == [0, 10, 20, 25]
    assert [row["calls"] for row in told.history] == [0, 50, 100, 125]
    assert torch.equal(plain.state.x, told.state.x)
    assert plain.state.calls == told.state.calls
    last = told.history[-1]
    assert last["upper"] == float(problem.loss("upper", told.state.x, told.state.y))
    assert last["gap"] == float(told.state.x) - 1.0
    seconds = [row["seconds"] for row in told.history]
    assert seconds == sorted(seconds)
    assert seconds[-1] == told.seconds


def test_a_resumed_run_keeps_the_history_before_its_checkpoint(tmp_path):
    problem, file = example_problem(), tmp_path / "run.ckpt"
    record = {"gap": lambda s: float(s.x) - 1.0}
    whole = solve(problem, METHOD, 40, history=10, record=record)
    for steps in (25, 40):
        found = solve(
            problem, METHOD, steps, history=10, record=record, checkpoint=file, resume=True
        )
    timeless = [[{**row, "seconds": 0.0} for row in run.history] for run in (whole, found)]
    assert timeless[0] == timeless[1]
    seconds = [row["seconds"] for row in found.history]
    assert seconds == sorted(seconds)


def test_rows_of_other_quantities_are_left_out_on_resuming(tmp_path):
    problem, file = example_problem(), tmp_path / "run.ckpt"
    solve(problem, METHOD, 20, history=10, checkpoint=file)
    record = {"gap": lambda s: float(s.x) - 1.0}
    found = solve(problem, METHOD, 30, history=10, record=record, checkpoint=file, resume=True)
    assert [row["iteration"] for row in found.history] == [20, 30]
    assert solve(problem, METHOD, 30, checkpoint=file, resume=True).history == ()


@pytest.mark.parametrize("history", [{}, [1], [{"iteration": "0"}], [{0: 1.0}]])
def test_a_made_up_history_of_a_checkpoint_is_refused(tmp_path, history):
    state = solve(example_problem(), METHOD, 5).state
    write_run(tmp_path / "made-up", state, history, belongs_to(METHOD, state.problem))
    with pytest.raises(RuleError, match="checkpoint must"):
        solve(example_problem(), METHOD, 10, checkpoint=tmp_path / "made-up", resume=True)


def test_history_of_the_compiled_backend_is_that_of_eager_torch():
    problem = example_problem()
    eager, compiled = (
        solve(problem, METHOD, 20, history=5, backend=who).history
        for who in backends(
            lambda x, y, b: ((y - b) ** 2).mean(), lambda x, y, b: ((y - x * b) ** 2).mean()
        )
    )
    assert len(eager) == len(compiled) == 5
    for a, b in zip(eager, compiled, strict=True):
        assert a["calls"] == b["calls"]
        assert math.isclose(a["upper"], b["upper"], rel_tol=1e-4, abs_tol=1e-6)


def test_a_plot_is_one_drawing_with_a_curve_per_quantity(tmp_path):
    problem = example_problem()
    found = solve(problem, METHOD, 50, history=5, record={"a <b>": lambda s: 10.0**-s.t})
    text = found.plot(tmp_path / "run.svg", against="iteration")
    assert (tmp_path / "run.svg").read_text() == text
    lines = ElementTree.fromstring(text).findall(".//{http://www.w3.org/2000/svg}polyline")
    assert [len(line.get("points").split()) for line in lines] == [11, 11]
    assert "a &lt;b&gt; against iterations (logarithmic)" in text
    with pytest.raises(RuleError, match="history=100"):
        solve(problem, METHOD, 5).plot()
    with pytest.raises(RuleError, match="against must be one of"):
        found.plot(against="days")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"history": 0}, "history must be"),
        ({"record": {"a": float}}, "history must be given"),
        ({"history": 1, "record": {"a": 1.0}}, "record must map names"),
    ],
)
def test_a_bad_history_is_refused(settings, words):
    with pytest.raises(RuleError, match=words):
        solve(example_problem(), METHOD, 5, **settings)


def test_a_stream_has_no_loss_over_all_data():
    draw = Stream(lambda seed: torch.ones(2), batch_size=2)
    problem = BilevelProblem(
        lambda x, y, b: (y - b).square().mean(),
        lambda x, y, b: (y - x * b).square().mean(),
        torch.tensor([2.0]),
        torch.zeros(1),
        draw,
        torch.ones(4),
        batch_size=2,
    )
    with pytest.raises(RuleError, match="Stream"):
        solve(problem, METHOD, 5, history=1)


def nested():
    """Weights in a dict of lists below, penalties in a tuple of dicts above."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(24, 3, generator=generator, dtype=torch.float64)
    x = ({"a": torch.zeros(3, dtype=torch.float64)}, {"b": [torch.zeros((), dtype=torch.float64)]})
    y = {
        "layer": [
            torch.zeros(3, dtype=torch.float64),
            {"bias": torch.zeros(1, dtype=torch.float64)},
        ]
    }

    def upper(x, y, b):
        return ((b @ y["layer"][0] + y["layer"][1]["bias"] - 1.0) ** 2).mean()

    def lower(x, y, b):
        w, bias = y["layer"][0], y["layer"][1]["bias"]
        fit = ((b @ w + bias - b.sum(1)) ** 2).mean()
        return fit + (x[0]["a"] * w**2).sum() + (x[1]["b"][0] + 1.0) * (bias**2).sum()

    def project(x):
        return ({"a": x[0]["a"].clip(0.0, 0.5)}, {"b": [x[1]["b"][0].clip(0.0, 0.2)]})

    return BilevelProblem(upper, lower, x, y, data, data, batch_size=8, project_x=project)


def flat():
    """The same problem with flat dicts."""
    of = nested()

    def deep(loss):
        def of_flat(x, y, b):
            return loss(
                ({"a": x["a"]}, {"b": [x["b"]]}), {"layer": [y["w"], {"bias": y["bias"]}]}, b
            )

        return of_flat

    zero = torch.zeros(3, dtype=torch.float64)
    return BilevelProblem(
        deep(of.upper),
        deep(of.lower),
        {"a": zero, "b": zero.sum()},
        {"w": zero, "bias": zero[:1]},
        of.upper_data,
        of.lower_data,
        project_x=lambda x: {"a": x["a"].clip(0.0, 0.5), "b": x["b"].clip(0.0, 0.2)},
    )


@pytest.mark.parametrize("method", [METHOD, SLIP(lr_x=0.05, lr_y=0.1, lr_z=0.1)], ids=str)
def test_nested_variables_take_the_path_of_flat_ones(method):
    """Refused until now: "must hold nothing but tensors"."""
    want = solve(flat(), method, 60)
    for backend in backends(nested().upper, nested().lower):
        found = solve(nested(), method, 60, backend=backend)
        torch.testing.assert_close(
            found.state.oracle.to_torch(found.state.x), want.state.x, rtol=1e-9, atol=1e-12
        )
        assert list(found.x[1]) == ["b"]
        assert isinstance(found.y["layer"], list)
        torch.testing.assert_close(found.y["layer"][1]["bias"], want.y["bias"])
        assert float(found.x[0]["a"].min()) >= 0.0
        assert float(found.x[0]["a"].max()) <= 0.5


def test_what_is_nested_must_be_tensors():
    one = torch.ones(1)
    with pytest.raises(RuleError, match="nothing but tensors"):
        BilevelProblem(lambda *a: one, lambda *a: one, {"a": [1.0]}, one, one, one)
