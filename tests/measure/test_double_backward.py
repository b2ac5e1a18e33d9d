"""Quick second derivatives against torch's own, where they apply and where they must stand
aside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mindgap.base.objective import Objective
from mindgap.base.second_derivatives import QuickSecondDerivatives
from mindgap.measure.gradients import gradient_passes
from mindgap.measure.hessian import HessianProduct
from mindgap.measure.probes.curvature import sharpness


def two_derivatives(
    call: Callable[..., Tensor], inputs: list[Tensor]
) -> tuple[str, list[Tensor | None]]:
    """The node that made the output; output, first and second derivatives of a scalar that is
    curved in it.
    """
    wanted = [t for t in inputs if t.requires_grad]
    y = call(*inputs)
    torch.manual_seed(5)
    first = torch.autograd.grad((y * torch.randn_like(y) + y**3).sum(), wanted, create_graph=True)
    along = [torch.randn_like(g) for g in first]
    second = torch.autograd.grad(first, wanted, along, allow_unused=True)
    return type(y.grad_fn).__name__, [y, *first, *second]


def assert_equal(call: Callable[..., Tensor], inputs: list[Tensor], node: str) -> None:
    plain, expected = two_derivatives(call, inputs)
    with QuickSecondDerivatives():
        name, found = two_derivatives(call, inputs)
    assert name == (node or plain)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def numbers(*shape: int, grad: bool = True) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_(grad)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stride": 2, "padding": 1},
        {"stride": (2,), "padding": (1,), "dilation": 2},
        {"groups": 2, "padding": 1},
    ],
)
@pytest.mark.parametrize("taken", ["all", "no input", "no weight", "no bias", "bias only"])
def test_convolutions_equal_torch(dims: int, settings: dict[str, Any], taken: str) -> None:
    torch.manual_seed(dims)
    groups = settings.get("groups", 1)
    x = numbers(2, 4, *[6] * dims, grad=taken not in ("no input", "bias only"))
    w = numbers(6, 4 // groups, *[3] * dims, grad=taken not in ("no weight", "bias only"))
    b = numbers(6)
    convolve = getattr(F, f"conv{dims}d")
    if taken == "no bias":
        assert_equal(lambda x, w: convolve(x, w, **settings), [x, w], "_ConvolutionBackward")
    else:
        assert_equal(
            lambda x, w, b: convolve(x, w, b, **settings), [x, w, b], "_ConvolutionBackward"
        )


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4), (4, 3, 2, 5)])
@pytest.mark.parametrize(
    "taken", [(True, True, True), (False, True, True), (True, False, False), (False, False, True)]
)
def test_evaluating_batch_norm_equals_torch(
    shape: tuple[int, ...], taken: tuple[bool, bool, bool]
) -> None:
    torch.manual_seed(2)
    x, w, b = numbers(*shape, grad=taken[0]), numbers(3, grad=taken[1]), numbers(3, grad=taken[2])
    mean, variance = numbers(3, grad=False), torch.rand(3, dtype=torch.float64)
    assert_equal(
        lambda x, w, b: F.batch_norm(x, mean, variance, w, b, training=False, eps=1e-3),
        [x, w, b],
        "_BatchNormBackward",
    )


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
@pytest.mark.parametrize(
    "taken", [(True, True, True), (False, True, True), (True, False, False), (False, False, True)]
)
@pytest.mark.parametrize("lead", [(), (2,), (2, 5)])
def test_layer_norm_equals_torch(
    shape: tuple[int, ...], taken: tuple[bool, bool, bool], lead: tuple[int, ...]
) -> None:
    torch.manual_seed(2)
    x, w, b = (numbers(*s, grad=g) for s, g in zip(((*lead, *shape), shape, shape), taken))
    assert_equal(
        lambda x, w, b: F.layer_norm(x, shape, w, b, 1e-3), [x, w, b], "_LayerNormBackward"
    )
    if taken[0]:
        assert_equal(lambda x, w: F.layer_norm(x, shape, w), [x, w], "_LayerNormBackward")


def test_gelu_equals_torch() -> None:
    torch.manual_seed(2)
    assert_equal(F.gelu, [3 * numbers(5, 7).detach().requires_grad_()], "_GeluBackward")
    assert_equal(nn.GELU(), [numbers(3)], "_GeluBackward")


def test_third_derivatives_of_layer_norm_and_gelu_follow() -> None:
    torch.manual_seed(0)
    x, w, b = numbers(2, 4), numbers(4), numbers(4)

    def gradient(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        with QuickSecondDerivatives():
            y = F.gelu(F.layer_norm(x, (4,), w, b, 0.1))
        return torch.autograd.grad(y.pow(2).sum(), (x, w, b), create_graph=True)

    assert torch.autograd.gradgradcheck(gradient, (x, w, b))


def test_third_derivatives_follow() -> None:
    torch.manual_seed(0)
    x, w, b = numbers(2, 2, 4), numbers(2, 2, 3), numbers(2)
    scale, mean, variance = numbers(2), numbers(2, grad=False), torch.rand(2, dtype=torch.float64)

    def gradient(x: Tensor, w: Tensor, b: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        with QuickSecondDerivatives():
            y = F.batch_norm(F.conv1d(x, w, b, padding=1), mean, variance, scale, b)
        return torch.autograd.grad(y.pow(3).sum(), (x, w, b, scale), create_graph=True)

    assert torch.autograd.gradgradcheck(gradient, (x, w, b, scale))


def training_norm(x: Tensor, w: Tensor) -> Tensor:
    return F.batch_norm(F.conv_transpose1d(x, w), None, None, training=True)


def without_affine(x: Tensor, w: Tensor) -> Tensor:
    return F.batch_norm(x * w.mean(), x.detach().mean((0, 2)), x.detach().var((0, 2)))


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: F.conv1d(x, w, padding="same"),
        lambda x, w: F.conv1d(x[0], w),
        lambda x, w: torch.func.vmap(lambda one: F.conv1d(one[None], w)[0])(x),
        training_norm,
        without_affine,
        lambda x, w: F.layer_norm(x * w.mean(), (6,)),
        lambda x, w: F.gelu(x * w.mean(), approximate="tanh"),
    ],
    ids=["padding by a word", "unbatched", "vmap", "training", "no affine", "no weight", "tanh"],
)
def test_what_is_not_covered_goes_to_torch(call: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    assert_equal(call, [numbers(3, 2, 6), numbers(2, 2, 3)], "")


def test_autocast_is_left_to_torch() -> None:
    x, w = torch.randn(2, 3, 8), torch.randn(4, 3, 3, requires_grad=True)
    with QuickSecondDerivatives(), torch.autocast("cpu", torch.bfloat16):
        y = F.conv1d(x, w)
    assert (y.dtype, type(y.grad_fn).__name__) == (torch.bfloat16, "ConvolutionBackward0")


class Residual(nn.Module):
    """Convolutions, batch norm with fixed statistics, a skip; the middle is checkpointed on
    request.
    """

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.body = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()
        )
        self.out, self.again = nn.Linear(4, 3), again

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = x + (checkpoint(self.body, x, use_reentrant=False) if self.again else self.body(x))
        return self.out(x.mean((2, 3)))


@pytest.mark.parametrize("again", [False, True])
def test_products_of_a_network_equal_the_plain_double_backward(again: bool) -> None:
    torch.manual_seed(0)
    model = Residual(again).double()
    for norm in (model.norm, model.body[1]):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    model.eval()
    objective = Objective(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    batches = [(torch.randn(8, 1, 6, 6).double(), torch.randint(0, 3, (8,))) for _ in range(2)]
    parameters = objective.parameters
    losses = [objective.value(b) for b in batches]
    gradient = torch.autograd.grad(sum(losses) / 2, parameters, create_graph=True)
    vectors = [torch.randn_like(p) for p in parameters]
    expected = torch.autograd.grad(gradient, parameters, vectors)
    with gradient_passes(objective, batches) as passes:
        product = HessianProduct(passes)
        found = product(torch.cat([v.flatten() for v in vectors]))
        torch.testing.assert_close(
            found, torch.cat([e.flatten() for e in expected]), rtol=1e-11, atol=1e-13
        )
        torch.testing.assert_close(
            product.gradient, torch.cat([g.detach().flatten() for g in gradient])
        )


@pytest.mark.parametrize("at", ["loss", "loader"])
def test_nothing_stays_switched_after_an_error(at: str) -> None:
    model = Residual().eval()

    class Loader:
        def __iter__(self):
            yield torch.zeros(2, 1, 4, 4)
            if at == "loader":
                raise KeyboardInterrupt
            yield torch.ones(2, 1, 4, 4)

    def loss(m: nn.Module, batch: Tensor) -> Tensor:
        if float(batch.sum()) > 0:
            raise KeyboardInterrupt
        return m(batch).square().mean()

    with pytest.raises(KeyboardInterrupt):
        sharpness(Objective(model, loss), Loader())
    assert torch.overrides._get_current_function_mode_stack() == []
    y = model.stem(torch.ones(1, 1, 4, 4))
    assert type(y.grad_fn).__name__ == "ConvolutionBackward0"
