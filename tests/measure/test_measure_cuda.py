"""The instruments on CUDA: the same answers as on the CPU, and a monitored run that equals the
other bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from cases.networks import Attentive, Recurrent
from torch import nn

from mindgap.base.check import RuleError
from mindgap.base.objective import Objective
from mindgap.base.tensors import flatten
from mindgap.measure.gradients import gradient_passes
from mindgap.measure.hessian import HessianProduct
from mindgap.measure.monitor import Monitor
from mindgap.measure.overview import survey
from mindgap.measure.probes.curvature import sharpness
from mindgap.measure.probes.smoothness import local_smoothness
from mindgap.measure.probes.statistics import training_statistics
from mindgap.measure.table import PROBES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(30, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 3)
    )


RECURRENT, ATTENTIVE = partial(Recurrent, 5, 8, 3), partial(Attentive, 5, 16, 3)


def loss(model: nn.Module, batch: tuple) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def problem(
    make: Callable[[], nn.Module], device: str, dtype: torch.dtype = torch.float32
) -> tuple[Objective, list]:
    torch.manual_seed(0)
    model = make().to(dtype)
    batches = [(torch.randn(16, 6, 5).to(dtype), torch.randint(0, 3, (16,))) for _ in range(4)]
    return Objective(model.to(device), loss), [(x.to(device), y.to(device)) for x, y in batches]


@pytest.mark.parametrize("make", [RECURRENT, ATTENTIVE])
def test_same_answers_as_on_the_cpu(make: Callable[[], nn.Module]) -> None:
    """cuDNN's recurrent kernels and flash attention have no second derivative: they are
    switched, and switched back.
    """
    answers = []
    for device in ("cpu", "cuda"):
        objective, batches = problem(make, device, torch.float64)
        step = [torch.ones_like(p) * 1e-2 for p in objective.parameters]
        answers.append(
            (
                sharpness(objective, batches, tol=1e-10, both=True).value,
                local_smoothness(objective, batches, step).value,
                training_statistics(objective, batches, growth=False).noise,
            )
        )
    assert answers[0] == pytest.approx(answers[1], rel=1e-8)
    objective, batches = problem(make, "cuda")
    flags = torch.backends.cudnn.enabled, torch.backends.cuda.flash_sdp_enabled()
    assert sharpness(objective, batches).converged
    assert (torch.backends.cudnn.enabled, torch.backends.cuda.flash_sdp_enabled()) == flags


@pytest.mark.parametrize("make", [plain, ATTENTIVE])
def test_monitored_equals_unmonitored_with_cuda_random_states(
    make: Callable[[], nn.Module],
) -> None:
    ends = []
    for watched in (False, True):
        objective, batches = problem(make, "cuda")
        model = objective.model.train()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        probes = [name for name in PROBES if name != "stationarity"]
        monitor = Monitor(optimizer, objective, batches, probes, every=3) if watched else None
        torch.manual_seed(1)
        torch.cuda.manual_seed_all(2)
        for k in range(8):
            optimizer.zero_grad()
            x, y = batches[k % 4]
            loss(model, (x + 0.1 * torch.randn_like(x), y)).backward()
            optimizer.step()
        state = [v.clone() for v in model.state_dict().values()] + [
            p.grad.clone() for p in model.parameters()
        ]
        state += [s["exp_avg"].clone() for s in optimizer.state.values()]
        ends.append([*state, torch.get_rng_state(), torch.cuda.get_rng_state()])
        assert monitor is None or len(monitor.readings) == 3
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_batch_on_another_device_is_named() -> None:
    objective, _ = problem(plain, "cuda")
    with pytest.raises(
        RuleError, match="batches must lie on the model's device cuda:0, got a batch on cpu"
    ):
        sharpness(objective, [(torch.randn(16, 6, 5), torch.zeros(16, dtype=torch.long))])


def test_survey_runs_there() -> None:
    objective, batches = problem(ATTENTIVE, "cuda")
    found = survey(objective, batches, ray_points=10)
    assert found.about["device"].startswith("cuda")
    assert {"spectrum", "smoothness", "settling", "noise_histogram"} <= set(found.figures)


class Imaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Unflatten(1, (1, 6)),
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.GELU(),
            nn.Conv2d(8, 4, 3),
            nn.LayerNorm([4, 4, 3]),
            nn.Flatten(),
            nn.Linear(48, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def test_products_by_quick_second_derivatives_equal_the_plain_ones() -> None:
    objective, batches = problem(Imaging, "cuda", torch.float64)
    objective.model.eval()
    parameters = objective.parameters
    gradient = torch.autograd.grad(objective.value(batches[0]), parameters, create_graph=True)
    vectors = [torch.randn_like(p) for p in parameters]
    expected = flatten(torch.autograd.grad(gradient, parameters, vectors))
    with gradient_passes(objective, batches[:1]) as passes:
        found = HessianProduct(passes)(flatten(vectors))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
