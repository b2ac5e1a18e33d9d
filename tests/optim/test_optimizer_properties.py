"""What must not matter to any optimizer: the order of the parameters, how they are grouped, cut and
sharded, and the units of gradients and parameters.

Every run is compared with one in plain units. On the CPU the forms run in float64; on CUDA, where
the kernels take no float64, in float32. As a script the file needs no pytest:
``test_optimizer_properties.py [WORDS]`` runs the checks whose names hold one of the words, on every
device that is there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from mindgap.optim import (
    INGD,
    OPTIMIZERS,
    SGD,
    ACClip,
    AdamW,
    CClip,
    GClip,
    NormalizedSGD,
    StochasticINGD,
)

SHAPES = [(7, 3), (4,), (), (2, 2, 2), (33,)]
#: More than the norms that must have been seen before one can be a spike.
STEPS = 26
SCALES = (1e-12, 2.0**-20, 1e-3, 1e6, 1e12)
DEVICES = ("cpu", "cuda")
#: How the step is made. On CUDA the fused form is one of kernels, on the CPU another.
FORMS = {"fused": {}, "foreach": {"foreach": True}, "loop": {"foreach": False}}
#: What a run may differ by, relative to the largest parameter: sums are taken in another order.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4}


@dataclass(frozen=True)
class Case:
    """An optimizer with its settings in the units of gradients and parameters.

    Attributes:
        build: of the parameters, the unit of gradients, the unit of parameters and options.
        closure: whether a step needs one (and f is the same at every step).
        decay: settings that make it decay the weights, for the properties that keep the units.
        excuses: property -> why it does not hold.
        kernels: whether CUDA has kernels for it.
    """

    build: object
    closure: bool = False
    decay: dict = field(default_factory=lambda: {"weight_decay": 0.1})
    excuses: dict = field(default_factory=dict)
    kernels: bool = True


BY_TENSOR = {
    "pieces": "scope='tensor' takes a norm per tensor",
    "sharding": "the same: a 0-dim tensor cannot be sharded, and its norm counts by itself",
}
BY_GROUP = {"groups": "scope='group' takes a norm per group"}
CASES = {
    "adamw": Case(lambda p, g, x, **o: AdamW(p, 0.02 * x, **{"eps": 0.0, "weight_decay": 0.0} | o)),
    "adamw guard": Case(
        lambda p, g, x, **o: AdamW(
            p, 0.02 * x, **{"eps": 0.0, "weight_decay": 0.0, "spike_guard": "clip"} | o
        )
    ),
    "adamw unclipped": Case(
        lambda p, g, x, **o: AdamW(
            p, 0.02 * x, **{"eps": 0.0, "weight_decay": 0.0, "clip": None} | o
        )
    ),
    "adamw largest": Case(
        lambda p, g, x, **o: AdamW(
            p, 0.02 * x, amsgrad=True, **{"eps": 0.0, "weight_decay": 0.0} | o
        )
    ),
    # Divided by the norm, the gradients have no unit: ε may be what it is.
    "adamw unit": Case(
        lambda p, g, x, **o: AdamW(p, 0.02 * x, clip="unit", **{"weight_decay": 0.0} | o)
    ),
    "adamw unit coordinates": Case(
        lambda p, g, x, **o: AdamW(
            p, 0.02 * x, clip="unit", coordinates=2.0, **{"weight_decay": 0.0} | o
        )
    ),
    "adamw noise": Case(
        lambda p, g, x, **o: AdamW(
            p, 0.02 * x, clip="noise", **{"eps": 0.0, "weight_decay": 0.0} | o
        )
    ),
    "adamw coordinates": Case(
        lambda p, g, x, **o: AdamW(
            p, 0.02 * x, coordinates=3.0, **{"eps": 0.0, "weight_decay": 0.0} | o
        )
    ),
    "acclip unit": Case(
        lambda p, g, x, **o: ACClip(p, 0.02 * x, clip="unit", **{"weight_decay": 0.0} | o)
    ),
    "sgd": Case(lambda p, g, x, **o: SGD(p, 0.02 * x / g, 0.9, **o)),
    "sgd guard": Case(
        lambda p, g, x, **o: SGD(
            p, 0.02 * x / g, 0.5, nesterov=True, clip="auto", spike_guard="skip", **o
        )
    ),
    "gclip": Case(lambda p, g, x, **o: GClip(p, 0.05 * x / g, 4.0 * g, beta=0.9, **o)),
    "gclip auto": Case(lambda p, g, x, **o: GClip(p, 0.05 * x / g, "auto", **o)),
    "gclip momentum": Case(
        lambda p, g, x, **o: GClip(p, 0.05 * x / g, "auto", beta=0.5, clip="momentum", **o)
    ),
    "gclip by tensor": Case(
        lambda p, g, x, **o: GClip(p, 0.05 * x / g, 1.5 * g, scope="tensor", **o),
        excuses=BY_TENSOR,
        kernels=False,
    ),
    "gclip by group": Case(
        lambda p, g, x, **o: GClip(p, 0.05 * x / g, "auto", scope="group", **o), excuses=BY_GROUP
    ),
    "cclip": Case(lambda p, g, x, **o: CClip(p, 0.05 * x / g, 0.7 * g, beta=0.5, **o)),
    "cclip auto": Case(lambda p, g, x, **o: CClip(p, 0.05 * x / g, "auto", beta=0.5, **o)),
    "acclip": Case(
        lambda p, g, x, **o: ACClip(p, 0.02 * x, **{"eps": 0.0, "weight_decay": 0.0} | o)
    ),
    "acclip second moment": Case(
        lambda p, g, x, **o: ACClip(
            p, 0.02 * x, form="second_moment", **{"eps": 0.0, "weight_decay": 0.0} | o
        )
    ),
    "acclip algorithm": Case(
        lambda p, g, x, **o: ACClip(
            p,
            0.1 * x / g,
            alpha=1.5,
            form="algorithm",
            **{"eps": 0.0, "weight_decay": 0.0, "clip": None} | o,
        )
    ),
    "normalized_sgd": Case(
        lambda p, g, x, **o: NormalizedSGD(p, 0.05 * x, beta=0.5, damping=0.2 * g, **o)
    ),
    "normalized_sgd momentum": Case(
        lambda p, g, x, **o: NormalizedSGD(p, 0.05 * x, beta=0.5, normalize="momentum", **o)
    ),
    "stochastic_ingd": Case(
        lambda p, g, x, **o: StochasticINGD(p, lr=0.3 * x, p=1.0, q=3.0 * g, **o)
    ),
    "ingd": Case(
        lambda p, g, x, **o: INGD(
            p, lr=0.05 * x, epsilon=1e-3 * g, lipschitz=20.0 * g, inner=6, **o
        ),
        closure=True,
        decay={},
    ),
}


@dataclass(frozen=True)
class Setting:
    """One way to run: units, layout of the parameters, form, device."""

    device: str = "cpu"
    form: str = "fused"
    gradient: float = 1.0
    parameter: float = 1.0
    backwards: bool = False
    groups: int = 1
    cut: bool = False
    mesh: object = None
    decay: bool = False

    @property
    def dtype(self):
        return torch.float64 if self.device == "cpu" else torch.float32


@lru_cache(None)
def runs(name: str, at: Setting):
    """Final parameters in plain units and order, and the report."""
    case = CASES[name]
    rng = np.random.default_rng(0)
    starts = [torch.tensor(rng.normal(size=s), dtype=torch.float64) for s in SHAPES]
    targets = [torch.tensor(rng.normal(size=s), dtype=torch.float64) for s in SHAPES]
    order = list(range(len(SHAPES)))[:: -1 if at.backwards else 1]

    def parts(tensor):
        """A tensor, or where it is cut its first row (or entry) and the others."""
        cut = at.cut and tensor.dim() and len(tensor) > 1
        return [tensor[:1].clone(), tensor[1:].clone()] if cut else [tensor.clone()]

    def spread(tensor):
        if at.mesh is None:
            return tensor
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        place = [Shard(0)] if tensor.dim() else [Replicate()]
        return distribute_tensor(tensor, at.mesh, place)

    def there(tensor, unit):
        return (tensor * unit).to(at.device, at.dtype)

    params, goals, owner = [], [], []
    for i in order:
        for part, goal in zip(parts(starts[i]), parts(targets[i])):
            params.append(torch.nn.Parameter(spread(there(part, at.parameter))))
            goals.append(there(goal, at.parameter))
            owner.append(i)
    options = dict(FORMS[at.form]) | (case.decay if at.decay else {})
    groups = [{"params": params[i :: at.groups]} for i in range(at.groups)]
    optimizer = case.build(groups, at.gradient, at.parameter, **options)

    def plain(p):
        value = p.detach()
        return value.full_tensor() if hasattr(value, "full_tensor") else value

    def evaluate(noise):
        value = 0.0
        for p, goal, i, place in zip(params, goals, owner, places()):
            away = (plain(p) - goal) / at.parameter
            slope = torch.tanh(away) + there(parts(noise[i])[place], 1.0)
            p.grad = spread(slope * at.gradient)
            value += float(torch.log(torch.cosh(away)).sum())
        return value * at.gradient * at.parameter

    def places():
        seen: dict[int, int] = {}
        for i in owner:
            seen[i] = seen.get(i, -1) + 1
            yield seen[i]

    for k in range(STEPS):
        tails = 0.0 if case.closure else 0.4 * (25.0 if k in (11, 24) else 1.0)
        noise = [
            torch.tensor(np.asarray(rng.standard_t(2.0, size=s) * tails), dtype=torch.float64)
            for s in SHAPES
        ]
        if case.closure:
            optimizer.step(lambda noise=noise: evaluate(noise))
        else:
            evaluate(noise)
            optimizer.step()
    getattr(optimizer, "eval", lambda: None)()
    if at.device == "cuda" and at.form == "fused" and not case.closure and at.mesh is None:
        used = optimizer._fused.used
        assert used == case.kernels or at.groups > 1, f"the CUDA kernels were used: {used}"
    finals = []
    for i in range(len(SHAPES)):
        mine = [plain(p).double().cpu() / at.parameter for p, o in zip(params, owner) if o == i]
        finals.append(torch.cat([m.reshape(-1) for m in mine]))
    return torch.cat(finals), torch.cat([t.reshape(-1) for t in starts]), optimizer.report()


def compare(name: str, at: Setting, changes: dict) -> None:
    """One run against the same in plain units, order and layout."""
    mine, start, report = runs(name, replace(at, **changes))
    plain, _, expected = runs(name, at)
    largest = float(plain.abs().max())
    far = float((mine - plain).abs().max()) / largest
    assert float((plain - start).abs().max()) > 1e-3, "the run does not move"
    assert far <= TOLERANCE[at.dtype], f"{name}, {at}, {changes}: differs by {far:.2g}"
    unit = changes.get("gradient", 1.0)
    assert report.steps == expected.steps == STEPS
    assert report.skipped == expected.skipped
    assert [s.step for s in report.spikes] == [s.step for s in expected.spikes]
    if "groups" not in changes:  # a share of groups is a mean over groups
        near(report.clipped, expected.clipped, 1e-3)
    if report.direction_norm is not None and expected.direction_norm is not None:
        near(report.direction_norm / unit, expected.direction_norm, 1e-3)
        for q, value in expected.norm_quantiles.items():
            near(report.norm_quantiles[q] / unit, value, 1e-3)


def near(first, second, share):
    assert (first is None) == (second is None), (first, second)
    assert first is None or abs(first - second) <= share * max(abs(second), 1e-9), (first, second)


PROPERTIES = {
    "order": [{"backwards": True}],
    "groups": [{"groups": 2}],
    "pieces": [{"cut": True}],
    "gradient": [{"gradient": s} for s in SCALES],
    "parameter": [{"parameter": s} for s in (SCALES[0], SCALES[-1])],
    "both": [{"gradient": 1e-9, "parameter": 1e6}, {"gradient": 1e9, "parameter": 1e-6}],
}


def check(name: str, property_: str, device: str, form: str) -> None:
    """A property of one optimizer; raises where it does not hold."""
    keeps_units = property_ in ("order", "groups", "pieces", "sharding")
    at = Setting(device=device, form=form, decay=keeps_units)
    if property_ != "sharding":
        for changes in PROPERTIES[property_]:
            compare(name, at, changes)
        return
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(
        "gloo" if device == "cpu" else "nccl", store=dist.HashStore(), rank=0, world_size=1
    )
    try:
        compare(name, at, {"mesh": init_device_mesh(device, (1,))})
    finally:
        dist.destroy_process_group()


def all_checks():
    """(name, property, device, form), all that have no excuse."""
    for device in DEVICES:
        for name, case in CASES.items():
            for property_ in (*PROPERTIES, "sharding"):
                if property_ in case.excuses:
                    continue
                for form in FORMS:
                    # The plain loop has foreach's arithmetic.
                    if form == "loop" and property_ not in ("order", "gradient"):
                        continue
                    yield name, property_, device, form


try:
    import pytest
except ImportError:  # the GPU machine may have no pytest
    pytest = None  # type: ignore[assignment]

if pytest is not None:
    without = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

    @pytest.mark.parametrize(
        ("name", "property_", "device", "form"),
        [
            pytest.param(*row, id="-".join(row), marks=[without] if row[2] == "cuda" else [])
            for row in all_checks()
        ],
    )
    def test_units_order_and_layout_do_not_matter(name, property_, device, form):
        check(name, property_, device, form)

    def test_every_optimizer_is_here():
        assert {name.split()[0] for name in CASES} == set(OPTIMIZERS)


def main() -> None:
    words, done, bad = sys.argv[1:], 0, []
    for row in all_checks():
        label = "-".join(row)
        if row[2] == "cuda" and not torch.cuda.is_available():
            continue
        if words and not any(word in label for word in words):
            continue
        try:
            check(*row)
        except AssertionError as error:
            bad.append(label)
            print(f"{label}: {error}")
        done += 1
    print(f"{done} checks, {len(bad)} failed")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
