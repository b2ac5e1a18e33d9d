"""A program as a user writes it: type checkers must accept every line that has no mark.

``# rejected: WORDS`` marks a line that must be refused, ``# revealed: TYPE`` the type that
``reveal_type`` must show. ``tests/users_types.py`` checks it against the wheel; nothing here
is run.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import mindgap
from mindgap import Objective
from mindgap.adapters.lightning import monitor_callback
from mindgap.advise import Recommendation, diagnose, recommend
from mindgap.bilevel import BOME, METHODS, SLIP, SOBA, Batches, BilevelProblem, hypergradient, solve
from mindgap.bilevel import NoSuchMethod  # rejected: NoSuchMethod
from mindgap.lab.report import write_page
from mindgap.lab.tasks.data import digits
from mindgap.lab.tasks.models import ResNet20
from mindgap.lab.tasks.problems import quadratic_problem
from mindgap.lab.theory import THEOREMS, clipped_gd_bound
from mindgap.measure import Monitor, Survey, sharpness, survey, tail_index, training_statistics
from mindgap.optim import INGD, OPTIMIZERS, SGD, ACClip, AdamW, GClip
from mindgap.optim import NoSuchOptimizer  # rejected: NoSuchOptimizer

model = nn.Linear(3, 1)
batches = [torch.ones(4, 3), torch.zeros(4, 3)]


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    value: Tensor = model(batch)
    return value.square().mean()


# Optimizers.
optimizer = AdamW(model.parameters(), lr=1e-3, clip="auto", nonfinite="skip", spike_guard="clip")
optimizer.step()
reveal_type(optimizer.step(lambda: loss(model, batches[0])))  # revealed: Tensor
AdamW(model.parameters(), clip="aut")  # rejected: "aut"
AdamW(model.parameters(), nonfinite="skp")  # rejected: "skp"
AdamW(model.parameters(), spike_guard="clp")  # rejected: "clp"
ACClip(model.parameters(), form="first")  # rejected: "first"
GClip(model.parameters(), 0.1, "auto", clip="momentum", scope="tensor")
GClip(model.parameters(), 0.1, "auto", scope="tensors")  # rejected: "tensors"
SGD(model.parameters(), lr=0.1, momentum=0.9, clip=None).report()
mindgap.optim.NormalizedSGD(model.parameters(), lr=0.1, normalize="momentum")
reveal_type(OPTIMIZERS["adamw"].statement)  # revealed: str
reveal_type(INGD(model.parameters(), 0.1, 0.1, 1.0).result().oracle_calls)  # revealed: int

# Instruments.
problem = Objective(model, loss)
found: Survey = survey(problem, batches, optimizer=optimizer)
reveal_type(sharpness(problem, batches).value)  # revealed: float
training_statistics(problem, batches, per="samples")  # rejected: "samples"
tail_index([1.0] * 30, "hill", of="norms")
tail_index([1.0] * 30, "hil")  # rejected: "hil"
with Monitor(optimizer, problem, batches, ["noise", "tails"], nonfinite="raise") as monitor:
    optimizer.step()
Monitor(optimizer, problem, batches, ["noises"])  # rejected: "noises"
monitor_callback(["update"])

# Advice.
reveal_type(mindgap.advise.recommend)  # revealed: Recommendation
mindgap.nothing  # rejected: "nothing"


# Bilevel.
def upper(x: Tensor, y: Tensor, batch: Tensor) -> Tensor:
    return (y - batch).square().mean()


bilevel = BilevelProblem(
    upper,
    upper,
    torch.zeros(3),
    {"w": torch.zeros(3)},
    Batches(torch.ones(4, 3), 2, order="reshuffle", last="drop"),
    torch.ones(4, 3),
)
solution = solve(bilevel, SLIP(lr_x=0.1, lr_y=0.1, lr_z=0.1, order="seidel"), 10)
reveal_type(solution.x)  # revealed: Tensor
reveal_type(solution.y["w"])  # revealed: Tensor
reveal_type(BOME)  # revealed: BOME
reveal_type(METHODS["soba"].name)  # revealed: str
SOBA(lr_x=0.1, lr_y=0.1, lr_z=0.1, order="jacobian")  # rejected: "jacobian"
SOBA(lr_x=0.1, lr_y=0.1, lr_z=0.1, x_step="normalized")  # rejected: "normalized"
Batches(torch.ones(4, 3), 2, order="reshufle")  # rejected: "reshufle"
Batches(torch.ones(4, 3), 2, last="kep")  # rejected: "kep"
hypergradient(bilevel, torch.zeros(3), torch.zeros(3), solver="gc")  # rejected: "gc"

used = (Recommendation, diagnose, recommend, write_page, digits, ResNet20, quadratic_problem)
more = (THEOREMS, clipped_gd_bound, monitor, found)
