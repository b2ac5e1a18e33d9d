"""Unusual but legal use gives the right numbers, and whatever a user hands over wrongly ends in one
error that names it; an error of the user's own function is passed on with a note.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases.bilevel import CASES
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from mindgap.base.check import RuleError
from mindgap.bilevel import (
    F2SA,
    FULL,
    METHODS,
    SLIP,
    SOBA,
    Batches,
    BilevelProblem,
    Bound,
    MetaLearner,
    Sample,
    StocBio,
    Stream,
    TorchStep,
    exact_hypergradient,
    hyper_objective,
    hypergradient,
    implicit_solution,
    lower_solution,
    race,
    side_by_side,
    solve,
    suggest_steps,
    sweep,
    task_problem,
)
from mindgap.bilevel.backends.graphs import CudaGraphs

DRAW = torch.Generator().manual_seed(0)
A, T = torch.randn(24, 3, generator=DRAW), torch.randn(24, generator=DRAW)
ZERO = torch.zeros(3)
SLOW = SOBA(lr_x=0.05, lr_y=0.05)


def upper(x, y, b):
    return ((b[0] @ y - b[1]) ** 2).mean()


def lower(x, y, b):
    return ((b[0] @ y - b[1]) ** 2).mean() + (2.0**x * y**2).sum()


def problem(**changes: Any) -> BilevelProblem:
    parts: dict[str, Any] = {
        "upper": upper,
        "lower": lower,
        "x": ZERO,
        "y": ZERO,
        "upper_data": (A, T),
        "lower_data": (A, T),
        "batch_size": 8,
    }
    return BilevelProblem(**{**parts, **changes})


def in_double(**changes: Any) -> BilevelProblem:
    data, zero = (A.double(), T.double()), ZERO.double()
    return problem(**{"x": zero, "y": zero, "upper_data": data, "lower_data": data, **changes})


# -- right numbers: a module's tensors by any way


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3).double(), nn.Tanh(), nn.Linear(3, 1).double())
        self.norm = nn.ModuleDict({"in": nn.BatchNorm1d(3).double()})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(1).double())])
        self.frozen = nn.Parameter(torch.full((1,), 0.5).double(), requires_grad=False)
        self.tied = nn.Linear(3, 3, bias=False).double()
        self.tied.weight = self.body[0].weight
        self.closure = lambda b: self.body(b)

    def forward(self, b: Tensor) -> Tensor:
        return self.body(self.norm["in"](b)) * self.frozen * self.scales[0]

    @property
    def size(self) -> Tensor:
        return self.body[0].weight.square().sum()

    def weights(self) -> Any:
        yield self.body[0].weight


WAYS: dict[str, Callable[[Any], Tensor]] = {
    "named_parameters": lambda y: dict(y.named_parameters())["body.0.weight"].square().sum(),
    "attribute": lambda y: y.body[0].weight.square().sum(),
    "attribute from the end": lambda y: y.body[-3].weight.square().sum(),
    "iteration": lambda y: next(iter(y.body)).weight.square().sum(),
    "get_parameter": lambda y: y.get_parameter("body.0.weight").square().sum(),
    "of a part": lambda y: y.body.get_parameter("0.weight").square().sum(),
    "property": lambda y: y.size,
    "generator": lambda y: sum(w.square().sum() for w in y.weights()),
    "tied": lambda y: y.tied.weight.square().sum(),
}


def of_net(net: nn.Module, size: Callable[[Any], Tensor], forward: Any = None) -> BilevelProblem:
    forward = forward or (lambda y, b: y(b))

    def fit(y, b):
        return (forward(y, b[0])[:, 0] - b[1]).square().mean()

    return in_double(
        upper=lambda x, y, b: fit(y, b),
        lower=lambda x, y, b: fit(y, b) + x.exp().sum() * size(y),
        y=net,
    )


def end_of(made: BilevelProblem, method: Any = SLOW) -> Tensor:
    state = solve(made, method, 6).state
    return torch.cat([state.x, state.y])


@pytest.mark.parametrize("way", WAYS)
def test_a_modules_tensor_is_the_variables_by_every_way(way):
    """``y.weight``, a property and a generator gave the module's own tensor: the loss did not
    depend on it, without a word.
    """
    torch.manual_seed(0)
    net = Net()
    right = end_of(of_net(net, lambda y: y["body.0.weight"].square().sum()))
    assert torch.equal(end_of(of_net(net, WAYS[way])), right)
    assert float((right[:3]).abs().max()) > 0


def test_a_module_called_part_by_part_is_the_module():
    torch.manual_seed(0)
    net, size = Net(), WAYS["attribute"]
    right = end_of(of_net(net, size))
    by_parts = (
        lambda y, b: y.body(y.norm["in"](b)) * y.frozen * y.scales[0],
        lambda y, b: y.closure(y.norm["in"](b)) * y.frozen * y.scales[0],
    )
    for forward in by_parts:
        assert torch.equal(end_of(of_net(net, size, forward)), right)
    assert int(net.norm["in"].num_batches_tracked) == 0


@pytest.mark.parametrize("name", ["modules", "children", "state_dict", "named_modules"])
def test_what_hands_out_a_modules_own_tensors_is_refused(name):
    with pytest.raises(RuleError, match=rf"{name}\(\) must be left out of a loss"):
        Bound(Net(), {}).__getattr__(name)


# -- right numbers: scales, random numbers, dtypes, forms

CORE_X = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
CORE_Y = torch.linspace(-1, 1, 6, dtype=torch.float64)
WIDE = torch.randn(22, 6, dtype=torch.float64, generator=DRAW)
LABELS = torch.randn(22, dtype=torch.float64, generator=DRAW)


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(CORE_X[:1].clone())
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.b = nn.Parameter(CORE_X[1:].clone())

    def forward(self) -> Tensor:
        return torch.cat([self.a, self.b]) * self.frozen[0]


FORMS: dict[str, tuple[Any, Any, Any, Any]] = {
    "not contiguous": (
        torch.stack([CORE_X, CORE_X], 1)[:, 0],
        lambda x: x,
        CORE_Y.view(3, 2).t().contiguous().t(),
        lambda y: y.reshape(6),
    ),
    "dict with a number": (
        {"a": CORE_X[0], "b": CORE_X[1:]},
        lambda x: torch.cat([x["a"][None], x["b"]]),
        {"u": CORE_Y[:2], "v": CORE_Y[2:].view(2, 2)},
        lambda y: torch.cat([y["u"], y["v"].reshape(-1)]),
    ),
    "nested": (
        [{"a": CORE_X[0]}, (CORE_X[1:],)],
        lambda x: torch.cat([x[0]["a"][None], x[1][0]]),
        (CORE_Y[:2], [CORE_Y[2:].view(2, 2)]),
        lambda y: torch.cat([y[0], y[1][0].reshape(-1)]),
    ),
    "module with a frozen part": (Halves(), lambda x: x(), CORE_Y, lambda y: y),
}


def core(x: Any, in_x: Any, y: Any, in_y: Any) -> BilevelProblem:
    def core_upper(x, y, b):
        return (b[0] @ in_y(y) - b[1]).square().mean() / 6 + 0.05 * in_x(x).square().sum()

    def core_lower(x, y, b):
        penalty = in_x(x).tanh().exp() * in_y(y).view(3, 2).square().sum(1)
        return (b[0] @ in_y(y) - b[1]).square().mean() / 6 + penalty.sum() / 4

    data = Batches((WIDE, LABELS), 8)  # the last batch has 6 samples
    return BilevelProblem(core_upper, core_lower, x, y, data, data)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", [c for c in CASES if not c.variant], ids=lambda c: c.id)
def test_the_form_of_x_and_y_changes_no_number(case, form):
    flat = solve(core(CORE_X, lambda x: x, CORE_Y, lambda y: y), case.make(), 5, seed=3).state
    other = solve(core(*FORMS[form]), case.make(), 5, seed=3).state
    torch.testing.assert_close(other.x, flat.x, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(other.y, flat.y, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("of_lower", [1e-12, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("of_upper", [1e-20, 1e-8, 1.0, 1e8])
def test_a_scaled_loss_scales_the_hypergradient(dtype, of_lower, of_upper):
    """With a lower loss times 1e-6 (float32) or 1e-12, y*(x) was the start, and the hypergradient
    wrong by 100 %, without a word: the tolerance was absolute. Squares of small upper gradients
    vanished.
    """
    truth = exact_hypergradient(in_double(), ZERO.double())
    data, zero = (A.to(dtype), T.to(dtype)), ZERO.to(dtype)
    scaled = problem(
        upper=lambda x, y, b: of_upper * upper(x, y, b),
        lower=lambda x, y, b: of_lower * lower(x, y, b),
        **{"x": zero, "y": zero, "upper_data": data, "lower_data": data},
    )
    found = exact_hypergradient(scaled, zero).double() / of_upper
    assert float((found - truth).norm() / truth.norm()) < 2e-3
    y_star = lower_solution(in_double(), ZERO.double()).to(dtype)
    found = hypergradient(scaled, zero, y_star, products=10).double() / of_upper
    assert float((found - truth).norm() / truth.norm()) < 2e-3


def with_dropout() -> BilevelProblem:
    def noisy(x, y, b):
        return ((F.dropout(b[0], 0.5) @ y - b[1]) ** 2).mean()

    return in_double(upper=noisy, lower=lambda x, y, b: noisy(x, y, b) + (2.0**x * y**2).sum())


def test_one_sample_of_the_random_numbers_serves_a_whole_hypergradient():
    """Each Hessian product drew its own dropout, so that conjugate gradients solved no system at
    all, and every call gave another answer.
    """
    made, x = with_dropout(), ZERO.double()
    y = torch.ones_like(x)
    first, second = (hypergradient(made, x, y) for _ in range(2))
    assert torch.equal(first, second)
    # The system, solved with the matrices of the same random numbers.
    oracle = SLOW.oracle(made)
    f_x, f_y = oracle.upper(x, y, FULL)
    _, h, j = oracle.dense(x, y, FULL)
    torch.testing.assert_close(first, f_x - j @ torch.linalg.solve(h, f_y))
    assert float(oracle.lower(x, lower_solution(made, x), FULL).norm()) < 1e-8
    assert np.isfinite(hyper_objective(made, x))


def test_the_seed_decides_alone_where_losses_draw_random_numbers():
    """The rows of a history and advised steps came from the global generator, which they moved."""
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        rows = solve(with_dropout(), SLOW, 6, history=3).history
        advice = suggest_steps(with_dropout(), "soba", steps=40)
        assert torch.equal(torch.get_rng_state(), before)
        found.append(([row["upper"] for row in rows], advice.settings))
    assert found[0] == found[1]


def test_a_second_derivative_of_the_implicit_solution_is_refused():
    """It left out the implicit part without a word."""
    x = torch.zeros(3, requires_grad=True)
    loss = implicit_solution(problem(), x, ZERO + 0.1).square().sum() + x.square().sum()
    with pytest.raises(RuleError, match="create_graph must be False behind implicit_solution"):
        torch.autograd.grad(loss, x, create_graph=True)


@pytest.mark.parametrize("old", [torch.float32, torch.float64])
def test_a_start_in_another_precision_goes_on_in_that_of_the_problem(old):
    """A float64 problem went on in float32."""
    problems = {torch.float32: problem(), torch.float64: in_double()}
    start = solve(problems.pop(old), SLOW, 3).state
    ((dtype, made),) = problems.items()
    state = solve(made, SLOW, 5, start=start).state
    assert {v.dtype for v in state.values.values()} == {dtype}


@pytest.mark.parametrize("key", ["soba", "slip", "f2sa", "stocbio", "saba", "vrbo", "svrb"])
def test_a_loss_that_is_a_constant_on_a_minibatch_has_no_gradient_there(key):
    """It ended in torch's "element 0 of tensors does not require grad"."""
    case = next(c for c in CASES if c.key == key)

    def at_times(loss):  # no gradient on the first minibatch
        return lambda x, y, b: loss(x, y, b) if bool(b[1][0] < -0.1) else torch.zeros(())

    def zero_at_times(loss):
        return lambda x, y, b: loss(x, y, b) * float(b[1][0] < -0.1)

    data, ends = Batches((A, T), 8, shuffle=False), []
    for kind in (at_times, zero_at_times):
        made = problem(upper=kind(upper), lower=kind(lower), upper_data=data, lower_data=data)
        ends.append(end_of(made, case.make(lr_x=0.01, lr_y=0.01)))
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
def test_a_meta_learner_differentiates_attention_twice(gradient):
    """It ended in torch's "derivative ... is not implemented" of the fused kernel."""

    def loss(x, y, b):
        q = (b * y.view(1, 1, 4)).unsqueeze(0)
        return F.scaled_dot_product_attention(q, q, q).square().mean() + (y - x).square().sum()

    tasks = torch.randn(4, 1, 2, 4, generator=DRAW)
    made = task_problem(loss, loss, torch.ones(4), torch.zeros(4), tasks, tasks, tasks=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch: no batching rule for this kernel
        assert solve(made, MetaLearner(lr_x=0.1, lr_y=0.1, gradient=gradient), 2).ok


def test_first_order_maml_takes_an_upper_loss_without_x():
    """It ended in torch's "appears to not have been used in the graph"."""
    method = MetaLearner(lr_x=0.1, lr_y=0.1, gradient="first order", reset="start")
    made = of_tasks(upper=lambda x, y, b: (y - b).square().sum())
    assert float(solve(made, method, 3).x) == 0.0


def test_a_metric_with_another_code_does_not_read_the_values_of_the_first(tmp_path):
    """Metrics were known by their names alone, so that a second lambda read the first's values."""
    grid = {"lr_x": [0.05], "lr_y": [0.05]}
    values = [
        sweep(problem(), "soba", grid, steps=10, metric=metric, folder=tmp_path)["soba"].values
        for metric in (lambda x, y: float(y.norm()), lambda x, y: float(y.norm()) + 1.0)
    ]
    np.testing.assert_allclose(values[0] + 1.0, values[1])


# -- bad input


class Boom(Exception):
    pass


def boom(*_: Any, **__: Any) -> Any:
    raise Boom("my fault")


def late(function: Any, then: Callable[[Any], Any], first: int = 14) -> Any:
    """A function whose results are changed from its call number ``first`` on."""
    calls = [0]

    def changed(*args: Any) -> Any:
        calls[0] += 1
        result = function(*args)
        return then(result) if calls[0] >= first else result

    return changed


class Items(Dataset):
    def __init__(self, item: Any, count: int = 24) -> None:
        self.item, self.count = item, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        return self.item(i)


class Drawn(IterableDataset):
    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return self.items


def run(method: Any = SLOW, steps: int = 30, backend: Any = None, **changes: Any) -> Any:
    return lambda: solve(problem(**changes), method, steps, backend=backend)


def solved(**options: Any) -> Callable[[], Any]:
    return lambda: solve(problem(), SLOW, **{"steps": 6, **options})


def rates(**settings: Any) -> Callable[[], Any]:
    return lambda: SLIP(**{"lr_x": 0.1, "lr_y": 0.1, "lr_z": 0.1, **settings})


def stepped(*args: Any, **settings: Any) -> Callable[[], Any]:
    return run(SOBA(lr_x=0.1, lr_y=0.1, x_step=TorchStep(*args, **settings)), 3)


def of_tasks(**changes: Any) -> BilevelProblem:
    def loss(x, y, b):
        return (y - b).square().sum() + 0.1 * (y - x).square().sum()

    levels = torch.tensor([1.0, 2.0, 3.0, 4.0])
    parts = {"upper": loss, "lower": loss, "x": torch.zeros(1), "y": torch.zeros(1)}
    return task_problem(**{**parts, "query": levels, "support": levels, "tasks": 2, **changes})


ONE = "must return a tensor with one element"
FORM = "must return the variable in its form, shape and dtype"
META = MetaLearner(lr_x=0.1, lr_y=0.1)
SGD = torch.optim.SGD
STOCBIO, F2 = StocBio(lr_x=0.1, lr_y=0.1, eta=0.1), F2SA(lr_x=0.1, lr_y=0.1)

Row = tuple[Callable[[], Any], str]
REFUSED: dict[str, Row] = {
    # losses
    "upper None later": (run(upper=late(upper, lambda v: None)), f"upper {ONE}, got 'NoneType'"),
    "lower None later": (run(lower=late(lower, lambda v: None)), f"lower {ONE}, got 'NoneType'"),
    "lower tuple later": (run(lower=late(lower, lambda v: (v, v))), f"lower {ONE}, got 'tuple'"),
    "upper vector later": (run(upper=late(upper, lambda v: v.repeat(3))), f"upper {ONE}, got (3,)"),
    "lower vector later": (run(lower=late(lower, lambda v: v.repeat(3))), f"lower {ONE}, got (3,)"),
    "vector in StocBio": (run(STOCBIO, lower=late(lower, lambda v: v.repeat(2))), f"lower {ONE}"),
    "vector in F2SA": (run(F2, upper=late(upper, lambda v: v.repeat(2))), f"upper {ONE}"),
    "vector in a history": (
        lambda: solve(
            problem(upper=late(upper, lambda v: v[None, None].repeat(1, 2), 3)), SLOW, 2, history=1
        ),
        f"upper {ONE}, got (1, 2)",
    ),
    "a whole number later": (
        run(upper=late(upper, lambda v: v.detach().long())),
        "upper must be a number of floating point, got torch.int64",
    ),
    "a number of Python": (run(upper=late(upper, float)), f"upper {ONE}, got 'float'"),
    "NumPy later": (run(upper=late(upper, lambda v: v.detach().numpy())), f"upper {ONE}"),
    "complex": (run(lower=late(lower, lambda v: v + 0j, 1)), "lower must be a real number, got"),
    "meta": (run(lower=late(lower, lambda v: v.to("meta"), 1)), "lower must be a dense tensor"),
    "sparse": (
        run(upper=late(upper, lambda v: v.reshape(1).to_sparse(), 1)),
        "upper must be a dense tensor with a value, got torch.sparse_coo",
    ),
    "upper constant": (
        run(upper=lambda x, y, b: torch.ones(()), lower=lambda x, y, b: lower(x, y, b)),
        "upper must depend on x, directly or through y*(x)",
    ),
    "KeyError at the start": (
        run(upper=lambda x, y, b: {}["a"]),
        "upper must be computable at the start (x [(3,)], y [(3,)]), got KeyError: 'a'",
    ),
    "two arguments": (run(upper=lambda x, y: y.sum()), "upper must be a function of (x, y, batch)"),
    "inference mode": (
        torch.inference_mode()(run()),
        "torch.inference_mode() must be left where derivatives are taken",
    ),
    "a name of a module": (
        lambda: Bound(nn.Linear(2, 1), {"weight": torch.ones(1, 2)})["wieght"],
        "name must be one of weight, got 'wieght'",
    ),
    "Bound of no module": (lambda: Bound(3, {}), "module must be a torch.nn.Module, got 3"),
    "graphs": (
        run(upper=late(upper, lambda v: None), backend=CudaGraphs()),
        f"upper {ONE}, got 'NoneType'",
    ),
    # projections
    "projection of two arguments": (
        run(project_x=lambda x, y: x),
        "project_x must be a function of the variable, or None",
    ),
    "projection to a matrix later": (
        run(project_x=late(lambda x: x, lambda v: v[None])),
        f"project_x {FORM}",
    ),
    "projection to float64 later": (
        run(project_x=late(lambda x: x, lambda v: v.double())),
        f"project_x {FORM}",
    ),
    "projection of y to a part later": (
        run(F2, project_y=late(lambda y: y, lambda v: v[:1])),
        f"project_y {FORM}",
    ),
    "projection to a dict of None": (
        run(
            x={"a": ZERO},
            lower=lambda x, y, b: lower(x["a"], y, b),
            project_x=late(lambda x: x, lambda v: {"a": None}),
        ),
        f"project_x {FORM}, got {{'a': None}}",
    ),
    "projection of a dict to a tensor": (
        run(
            x={"a": ZERO},
            lower=lambda x, y, b: lower(x["a"], y, b),
            project_x=late(lambda x: x, lambda v: v["a"]),
        ),
        f"project_x {FORM}",
    ),
    "projection to NumPy in CUDA graphs": (
        run(project_x=late(lambda x: x, lambda v: v.numpy()), backend=CudaGraphs()),
        f"project_x {FORM}",
    ),
    # variables
    "lazy module": (run(x=nn.LazyLinear(3)), "x must hold at least one tensor and nothing but"),
    "8 bits": (
        run(x=torch.zeros(3, dtype=torch.float8_e4m3fn)),
        "x and y must have dtypes that fit together",
    ),
    # data
    "no samples": (run(upper_data=A[:0]), "upper_data must hold at least one sample"),
    "no tensors": (run(lower_data=()), "lower_data must hold at least one sample, got ()"),
    "a text": (run(upper_data="abc"), "upper_data must be tensors, a map-style dataset"),
    "a generator": (run(upper_data=(a for a in A)), "upper_data must be tensors, a map-style"),
    "None": (run(lower_data=None), "lower_data must be tensors, a map-style dataset"),
    "unequal lengths": (
        run(lower_data=(A, T[:5])),
        "lower_data must have one leading axis of equal length in all its tensors, got [5, 24]",
    ),
    "sparse data": (run(lower_data=A.to_sparse()), "lower_data must be dense tensors, got"),
    "a used-up loader": (
        run(upper_data=DataLoader(Drawn(iter([])), 8)),
        "data must hold at least one batch",
    ),
    "one batch size in a tuple": (run(batch_size=(8,)), "batch_size must be one number, or (upper"),
    "three batch sizes": (run(batch_size=(8, 8, 8)), "batch_size must be one number, or (upper"),
    "pieces of no tensors": (
        run(
            upper=lambda x, y, b: (y - len(b)).square().sum(),
            upper_data=Items(lambda i: "a"),
            micro_batch=2,
        ),
        "micro_batch must be None without tensors, got 2",
    ),
    "a Stream without a seed": (
        run(upper_data=Stream(lambda seed: (torch.randn(8, 3), torch.randn(8)))),
        "upper must give the same value twice on one sample",
    ),
    "a Stream without arguments": (
        lambda: Stream(lambda: (A, T)),
        "sample must be a function from a seed to a batch",
    ),
    "a batch that is not there": (
        lambda: hypergradient(problem(), ZERO, ZERO, lower=Sample(99)),
        "sample must name a batch below 3, got Sample(which=99, seed=0)",
    ),
    "a batch before the first": (
        lambda: hypergradient(problem(), ZERO, ZERO, upper=Sample(-9)),
        "sample must name a batch below 3",
    ),
    "a sample by a text": (
        lambda: hypergradient(problem(), ZERO, ZERO, lower=Sample("a")),
        "lower must be a Sample, such as FULL",
    ),
    "half a batch": (
        lambda: hypergradient(problem(), ZERO, ZERO, upper=Sample(1.5)),
        "upper must be a Sample, such as FULL",
    ),
    # rates and steps
    "negative rate": (rates(lr_x=-0.1), "lr_x must be positive and finite, got -0.1"),
    "NaN as rate": (rates(lr_y=float("nan")), "lr_y must be a number, got nan"),
    "text as rate": (rates(lr_z="0.1"), "lr_z must be a positive number or a function of the"),
    "tensor as rate": (rates(lr_x=torch.tensor(0.1)), "lr_x must be a positive number or a func"),
    "rate of nothing": (rates(lr_x=lambda: 0.1), "lr_x must return a number at iteration 0"),
    "rate None later": (
        run(SOBA(lr_x=lambda t: 0.1 if t < 5 else None, lr_y=0.1)),
        "lr_x must return a number at iteration 5",
    ),
    "optimizer with a closure": (
        stepped(torch.optim.LBFGS),
        "x_step must be something whose step() takes no arguments",
    ),
    "optimizer without a step": (stepped(torch.optim.Optimizer), "x_step must be an optimizer"),
    "scheduler of a metric": (
        stepped(SGD, lr=0.1, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau),
        "scheduler must be something whose step() takes no arguments",
    ),
    "scheduler that is a number": (
        stepped(SGD, lr=0.1, scheduler=lambda o: 3),
        "scheduler must be something whose step() takes no arguments",
    ),
    "step of no state": (lambda: SLOW.step(3), "state must be a State, got 'int'"),
    # solve
    "negative budget": (solved(steps=-1), "steps must be a whole number of at least 0"),
    "no time": (solved(seconds=0), "seconds must be positive and finite, got 0"),
    "callback without arguments": (
        solved(callbacks=lambda: None),
        "callbacks must be a function of the state, or a list of them",
    ),
    "record of a text": (
        solved(history=2, record={"r": lambda s: "a"}),
        "record['r'] must return a number, got 'a'",
    ),
    "record of a vector": (
        solved(history=2, record={"r": lambda s: s.x}),
        "record['r'] must return a number",
    ),
    "record without arguments": (
        solved(history=2, record={"r": lambda: 1.0}),
        "record must be functions of the state",
    ),
    "record over a column": (
        solved(history=2, record={"upper": lambda s: 1.0}),
        "record must have other names than iteration, calls, seconds, upper, got 'upper'",
    ),
    "checkpoint in place of a folder": (solved(checkpoint="/"), "checkpoint must be the name of"),
    "class as backend": (solved(backend=CudaGraphs), "backend must be a backend, such as"),
    "plot to a number": (
        lambda: solve(problem(), SLOW, 6, history=2).plot(3),
        "path must be the name of a file, got 3",
    ),
    # hypergradients
    "vector in a hypergradient": (
        lambda: hypergradient(problem(upper=late(upper, lambda v: v.repeat(3), 1)), ZERO, ZERO),
        f"upper {ONE}, got (3,)",
    ),
    "None in y*": (
        lambda: lower_solution(problem(lower=late(lower, lambda v: None, 6)), ZERO),
        f"lower {ONE}, got 'NoneType'",
    ),
    "sparse x": (
        lambda: hypergradient(problem(), ZERO.to_sparse(), ZERO),
        "x must be a flat vector of 3 numbers in torch.float32",
    ),
    "solver without arguments": (
        lambda: hypergradient(problem(), ZERO, ZERO, solver=lambda: 1),
        "solver must be a function of (v -> Hv, v)",
    ),
    "solver of another shape": (
        lambda: hypergradient(problem(), ZERO, ZERO, solver=lambda h, v: v[:1]),
        "solver must return a tensor of shape (3,)",
    ),
    "neumann without eta": (
        lambda: hypergradient(problem(), ZERO, ZERO, solver="neumann"),
        "eta must be a number, got None",
    ),
    # tools
    "NaN in advice": (
        lambda: suggest_steps(problem(upper=late(upper, lambda v: v * torch.nan))),
        "upper must have finite hypergradients near the start",
    ),
    "unknown method": (
        lambda: suggest_steps(problem(), "sopa", steps=40),
        "method must be a method, or one of bsa",
    ),
    "told without arguments": (
        lambda: race(problem(), ["soba"], calls=300, told=lambda: None),
        "told must be a function of (text, share)",
    ),
    "folder below a file": (
        lambda: race(problem(), ["soba"], calls=300, folder=f"{__file__}/a"),
        "folder must be a folder that can be made (Not a directory)",
    ),
    "file as folder of a sweep": (
        lambda: sweep(problem(), "soba", {"lr_x": [0.1], "lr_y": [0.1]}, steps=9, folder=__file__),
        "folder must be a folder that can be made (File exists)",
    ),
    "metric without arguments": (
        lambda: sweep(
            problem(), "soba", {"lr_x": [0.1], "lr_y": [0.1]}, steps=9, metric=lambda: 1.0
        ),
        "metric must be a function of x and y",
    ),
    "metric of None": (
        lambda: sweep(
            problem(), "soba", {"lr_x": [0.1], "lr_y": [0.1]}, steps=9, metric=lambda x, y: None
        ),
        "metric must return a number, got None",
    ),
    "a vector per task": (
        lambda: solve(of_tasks(lower=lambda x, y, b: (y - b).repeat(2)), META, 3),
        "loss must return one number per task, got (2, 2)",
    ),
    "a loss that is no function": (lambda: side_by_side(3), "loss must be a function of (x, y, ba"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_named(name):
    act, words = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuleError) as found:
            act()
    assert words in str(found.value)


#: What is done, and the notes below the user's own error.
PASSED_ON: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "upper": (run(upper=late(upper, boom)), ["raised by upper", "at iteration 11 of the run"]),
    "lower": (run(lower=late(lower, boom)), ["raised by lower", "at iteration 10 of the run"]),
    "upper with callbacks": (
        lambda: solve(problem(upper=late(upper, boom)), SLOW, 30, callbacks=lambda s: None),
        ["raised by upper", "at iteration 11 of the run"],
    ),
    "upper with a budget": (
        lambda: solve(problem(upper=late(upper, boom)), SLOW, calls=150),
        ["raised by upper", "at iteration 11 of the run"],
    ),
    "project_x": (
        run(project_x=late(lambda x: x, boom)),
        ["raised by project_x", "at iteration 11 of the run"],
    ),
    "callback": (
        solved(callbacks=late(lambda s: None, boom, 3)),
        ["raised by callbacks at iteration 2"],
    ),
    "record": (solved(history=2, record={"r": boom}), ["raised by record['r']"]),
    "Stream": (run(upper_data=Stream(boom)), ["raised by the function of a Stream"]),
    "solver": (
        lambda: hypergradient(problem(), ZERO, ZERO, solver=boom),
        ["raised by solver"],
    ),
    "lower in a hypergradient": (
        lambda: hypergradient(problem(lower=late(lower, boom, 6)), ZERO, ZERO),
        ["raised by lower"],
    ),
    "metric": (
        lambda: sweep(problem(), "soba", {"lr_x": [0.1], "lr_y": [0.1]}, steps=9, metric=boom),
        ["raised by metric"],
    ),
    "told": (lambda: race(problem(), ["soba"], calls=300, told=boom), ["raised by told"]),
    "scheduler": (stepped(SGD, lr=0.1, scheduler=boom), ["raised by scheduler"]),
}


@pytest.mark.parametrize("name", PASSED_ON)
def test_an_error_of_the_users_function_is_passed_on_with_a_note(name):
    act, notes = PASSED_ON[name]
    with pytest.raises(Boom, match="my fault") as found:
        act()
    assert found.value.__notes__ == notes


def test_an_error_of_a_data_set_says_which_samples():
    with pytest.raises(Boom) as found:
        solve(problem(upper_data=Items(boom)), SLOW, 3)
    assert found.value.__notes__[0].startswith("raised by the data set, or where its samples [")


# -- the compiled backend


def of_jax(name: str) -> Row:
    """What is done with the compiled backend, and words of the error."""
    import jax.numpy as jnp

    from mindgap.bilevel.backends.compiled import JaxBackend

    def jax_lower(x, y, b):
        return upper(x, y, b) + (2.0**x * y**2).sum()

    def jax_run(u: Any = upper, g: Any = jax_lower, **changes: Any) -> Callable[[], Any]:
        return lambda: solve(problem(**changes), SLOW, 12, backend=JaxBackend(u, g))

    number = "must return one number of floating point, an array of JAX, got"
    rows: dict[str, Row] = {
        "None": (jax_run(lambda x, y, b: None), f"upper {number} 'NoneType'"),
        "vector": (jax_run(lambda x, y, b: y), f"upper {number} ((3,), 'float32')"),
        "whole number": (jax_run(g=lambda x, y, b: y.sum().astype(int)), f"lower {number}"),
        "number of Python": (jax_run(lambda x, y, b: 1.0), f"upper {number} 'float'"),
        "another loss": (
            jax_run(lambda x, y, b: 2 * upper(x, y, b)),
            "upper must be the problem's loss",
        ),
        "a term left out": (jax_run(g=upper), "lower must be the problem's loss"),
        "NaN": (jax_run(lambda x, y, b: upper(x, y, b) * jnp.nan), "upper must be the problem's"),
        "no arguments": (jax_run(lambda: 1.0), "upper must be a function of (x, y, batch) in jax"),
        "lower without y": (
            jax_run(g=lambda x, y, b: (x * x).sum(), lower=lambda x, y, b: (x * x).sum()),
            "lower must depend on y",
        ),
        "dropout": (
            jax_run(upper=lambda x, y, b: upper(x, F.dropout(y, 0.5), b)),
            "problem must draw no random numbers in its losses for the compiled backend",
        ),
        "projection to a part": (jax_run(project_x=lambda x: x[:1]), f"project_x {FORM}"),
        "projection to None": (jax_run(project_x=lambda x: None), f"project_x {FORM}, got None"),
        "bfloat16": (
            jax_run(x=ZERO.bfloat16(), y=ZERO.bfloat16()),
            "problem must have one dtype (not bfloat16)",
        ),
        "data of bfloat16": (
            jax_run(upper_data=(A.bfloat16(), T.bfloat16())),
            "upper_data must not be of bfloat16",
        ),
    }
    return rows[name]


@pytest.mark.parametrize(
    "name",
    [
        *("None", "vector", "whole number", "number of Python", "another loss", "a term left out"),
        *("NaN", "no arguments", "lower without y", "dropout", "projection to a part"),
        *("projection to None", "bfloat16", "data of bfloat16"),
    ],
)
def test_bad_input_of_the_compiled_backend_is_named(name):
    pytest.importorskip("jax")
    act, words = of_jax(name)
    with pytest.raises(RuleError) as found:
        act()
    assert words in str(found.value)


def test_every_method_is_tried_in_every_form():
    assert {c.key for c in CASES if not c.variant} == set(METHODS)


@pytest.mark.parametrize(
    ("target", "out", "words"),
    [
        ("hostile_factory:of_one", "page.html", "TARGET must be a function without arguments"),
        ("hostile_factory:made", ".", "--out must be the name of a file"),
    ],
)
def test_a_race_refuses_its_command_line_before_it_runs(tmp_path, monkeypatch, target, out, words):
    """A factory with an argument was called a defect of mindgap, and a folder in the place of the
    page was refused when the race was over.
    """
    from mindgap.cli.bilevel import race as command

    text = "def of_one(a): ...\n\ndef made(): raise AssertionError('called')\n"
    (tmp_path / "hostile_factory.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuleError, match=words):
        command(target, calls=300, out=tmp_path / out)
