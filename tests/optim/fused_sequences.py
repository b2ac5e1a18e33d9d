"""Random sequences of legal (and some illegal) handling of an optimizer: the fused form must equal
the plain loop.

Two worlds get the same optimizer and the same operations; one takes the fused form wherever it can,
the other the plain loop. After every step parameters and states are compared and then made equal,
so that every step is judged alone. Where the plain loop raises, the other world must raise too.

    python tests/optim/fused_sequences.py --count 20000 --first 0
    python tests/optim/fused_sequences.py --count 2000 --device cuda
"""

from __future__ import annotations

import argparse
import copy
import gc
import io
import random
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import torch

if __name__ == "__main__":  # the GPU machine may have neither pytest nor an installed package
    sys.path.insert(0, str(Path(__file__).parents[2]))

from mindgap.optim import SGD, ACClip, AdamW, CClip, GClip, NormalizedSGD, StochasticINGD
from mindgap.optim.norms import new_window

torch.set_default_dtype(torch.float32)
MAKES = {
    "gclip": lambda p, **o: GClip(p, 0.1, 1.5, **o),
    "gclip momentum": lambda p, **o: GClip(
        p, 0.1, 1.5, beta=0.9, clip="momentum", weight_decay=0.1, **o
    ),
    "gclip auto": lambda p, **o: GClip(p, 0.1, "auto", beta=0.9, **o),
    "gclip group": lambda p, **o: GClip(
        p, 0.1, 1.5, beta=0.5, clip="momentum", scope="group", maximize=True, **o
    ),
    "gclip tensor": lambda p, **o: GClip(p, 0.1, 1.5, scope="tensor", **o),
    "cclip": lambda p, **o: CClip(p, 0.1, 0.7, **o),
    "cclip momentum": lambda p, **o: CClip(p, 0.1, 0.7, beta=0.9, maximize=True, **o),
    "cclip auto": lambda p, **o: CClip(p, 0.1, "auto", beta=0.9, **o),
    "acclip": lambda p, **o: ACClip(p, 0.1, **o),
    "acclip algorithm": lambda p, **o: ACClip(
        p, 0.1, form="algorithm", bias_correction=False, clip=None, **o
    ),
    "acclip second": lambda p, **o: ACClip(p, 0.1, form="second_moment", weight_decay=0.1, **o),
    "adamw": lambda p, **o: AdamW(p, 0.1, clip=1.0, **o),
    "adamw auto": lambda p, **o: AdamW(p, 0.1, clip="auto", maximize=True, **o),
    "adamw coordinates": lambda p, **o: AdamW(p, 0.1, clip="unit", coordinates=2.0, **o),
    "adamw largest": lambda p, **o: AdamW(p, 0.1, amsgrad=True, **o),
    "adamw noise": lambda p, **o: AdamW(p, 0.1, clip="noise", **o),
    "sgd": lambda p, **o: SGD(p, 0.1, momentum=0.9, weight_decay=0.1, nesterov=True, clip=1.0, **o),
    "sgd dampening": lambda p, **o: SGD(p, 0.1, momentum=0.9, dampening=0.5, clip=None, **o),
    "normalized_sgd": lambda p, **o: NormalizedSGD(p, 0.1, beta=0.9, damping=0.5, **o),
    "stochastic_ingd": lambda p, **o: StochasticINGD(p, beta=0.9, seed=3, **o),
}
SHAPES = [(7,), (4, 6), (), (0, 3), (2, 3, 4), (33, 5), (16,)]


class World:
    """Parameters and an optimizer; every draw comes from its own generators, so that two worlds
    draw alike.
    """

    def __init__(self, name, seed, device, options):
        self.rng, self.device, self.options = random.Random(seed), device, options
        self.generator = torch.Generator().manual_seed(seed)
        self.store = [self.drawn((4096,))]
        self.params = [torch.nn.Parameter(self.drawn(s)) for s in self.rng.sample(SHAPES, 4)]
        self.params.append(torch.nn.Parameter(self.drawn((5, 8)).t()))
        self.junk = []
        policy = self.rng.choice(["propagate", "propagate", "skip"])
        groups = (
            [{"params": self.params[:3]}, {"params": self.params[3:]}]
            if self.rng.random() < 0.5
            else self.params
        )
        guard = self.rng.choice([None, None, "clip", "skip"])
        self.optimizer = MAKES[name](groups, nonfinite=policy, spike_guard=guard, **options)
        if guard or "noise" in name:  # it needs norms to compare with
            window = self.optimizer.param_groups[0]["norms"] = new_window(torch.device(device))
            window[-25:] = torch.tensor([10.0 ** self.rng.uniform(-1, 1.5) for _ in range(25)])
        self.new_grads()

    def drawn(self, shape, dtype=torch.float32):
        return torch.randn(shape, generator=self.generator).to(self.device, dtype)

    @property
    def members(self):
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def any_param(self):
        return self.rng.choice(self.members)

    def any_state(self):
        p, draw = (
            self.any_param(),
            self.rng.random(),
        )  # drawn always: one world may have its states a step earlier
        found = sorted(
            (n, t)
            for n, t in self.optimizer.state.get(p, {}).items()
            if isinstance(t, torch.Tensor)
        )
        return (p, *found[int(draw * len(found))]) if found else None

    def new_grads(self):
        scale = 10.0 ** self.rng.uniform(-2, 1)
        for p in self.members:
            p.grad = torch.empty_like(p).copy_(self.drawn(p.shape) * scale)


def fresh_gradients(w):
    w.new_grads()


def spike(w):
    for p in w.members:
        if p.grad is not None and p.grad.is_contiguous() and not p.grad.is_inference():
            p.grad.mul_(1e4)


def gradients_in_place(w):
    for p in w.members:
        if p.grad is not None and not p.grad.is_inference():
            p.grad.copy_(w.drawn(p.shape))


def other_strides(w):
    """The same memory read in another order."""
    p = w.any_param()
    if p.grad is not None and p.dim() >= 2 and p.shape[0] == p.shape[-1]:
        p.grad = p.grad.transpose(0, -1)
    elif p.dim() >= 2 and p.dtype == torch.float32:
        p.grad = w.drawn((p.shape[-1], *p.shape[1:-1], p.shape[0])).transpose(0, -1)


def square_parameter(w):
    p = torch.nn.Parameter(w.drawn((5, 5)))
    p.grad = w.drawn((5, 5))
    w.optimizer.param_groups[0]["params"].append(p)


def reallocated(w):
    """Free the gradients, fill the allocator's holes with other layouts, and take gradients
    again.
    """
    shapes = [tuple(p.shape) for p in w.members]
    for p in w.members:
        p.grad = None
    gc.collect()
    w.junk = [w.drawn((w.rng.randrange(1, 60),)) for _ in range(w.rng.randrange(6))]
    for p, shape in zip(w.members, shapes):
        if p.dtype == torch.float32 and len(shape) >= 2 and w.rng.random() < 0.5:
            p.grad = w.drawn(shape[::-1]).permute(*range(len(shape) - 1, -1, -1))
        else:
            p.grad = torch.empty_like(p).copy_(w.drawn(shape))
    w.junk = []


def missing_gradient(w):
    w.any_param().grad = None


def all_missing(w):
    for p in w.members:
        p.grad = None


def not_finite(w):
    p = w.any_param()
    if p.grad is not None and p.numel() and p.grad.is_contiguous():
        p.grad.view(-1)[-1] = w.rng.choice([float("nan"), float("inf")])


def expanded_gradient(w):
    p = w.any_param()
    if p.dtype == torch.float32:
        p.grad = w.drawn(()).expand(p.shape)


def negated_gradient(w):
    p = w.any_param()
    if p.grad is not None:
        p.grad = torch._neg_view(p.grad)


def shared_gradient(w):
    same = [p for p in w.members if p.shape == w.members[0].shape and p.dtype == w.members[0].dtype]
    for p in same[1:]:
        p.grad = same[0].grad


def sliced_gradient(w):
    p = w.any_param()
    if p.dtype == torch.float32 and p.dim() == 1:
        p.grad = w.drawn((2 * p.numel(),))[::2]


def moved_data(w):
    p = w.any_param()
    p.data = p.data.clone()


def narrowed_data(w):
    p = w.any_param()
    if p.dim() == 1 and p.numel() > 4:
        p.data = p.data[: p.numel() // 2]
        forget(w, p)


def narrowed_data_alone(w):
    """Gradient and states keep the old size: both forms must refuse."""
    p = w.any_param()
    if p.dim() == 1 and p.numel() > 4:
        p.data = p.data[: p.numel() // 2]


def enlarged_data(w):
    p = w.any_param()
    if p.dtype == torch.float32:
        p.data = w.drawn((w.rng.choice([100, 5000]),))
        forget(w, p)


def forget(w, p):
    p.grad = torch.empty_like(p).copy_(w.drawn(p.shape))
    w.optimizer.state.pop(p, None)


def transposed_data(w):
    p = w.any_param()
    if p.dim() == 2:
        p.data = p.data.t().contiguous().t()


def part_of_store(w):
    p = w.any_param()
    if p.dtype == torch.float32 and p.dim() == 1:
        # Each parameter has its own part: where two overlap, the order of the updates matters.
        number = next(i for i, member in enumerate(w.members) if member is p)
        at = 300 * (number % 12) + w.rng.randrange(50)
        p.data = w.store[0][at : at + p.numel()]


def other_dtype(w, dtype):
    for p in w.members:
        p.data = p.data.to(dtype)
        p.grad = None if p.grad is None else p.grad.to(dtype)


def to_double(w):
    other_dtype(w, torch.float64)


def to_float(w):
    other_dtype(w, torch.float32)


def to_bfloat16_and_back(w):
    other_dtype(w, torch.bfloat16)
    if w.rng.random() < 0.7:
        step(w)
        other_dtype(w, torch.float32)


def cleared_states(w):
    w.optimizer.state.clear()


def popped_state(w):
    w.optimizer.state.pop(w.any_param(), None)


def replaced_state(w):
    found = w.any_state()
    if found:
        w.optimizer.state[found[0]][found[1]] = found[2].clone()


def edited_state(w):
    found = w.any_state()
    if found and found[1] != "step":  # half a step is none
        found[2].mul_(0.5)


def moved_state(w):
    found = w.any_state()
    if found:
        found[2].data = found[2].data.clone()


def shared_state(w):
    found = w.any_state()
    if found and w.device == "cpu":
        found[2].share_memory_()


def transposed_state(w):
    found = w.any_state()
    if found and found[2].dim() == 2:
        w.optimizer.state[found[0]][found[1]] = found[2].t().contiguous().t()


def double_state(w):
    found = w.any_state()
    if found:
        w.optimizer.state[found[0]][found[1]] = found[2].double()


def loaded(w):
    w.optimizer.load_state_dict(copy.deepcopy(w.optimizer.state_dict()))


def saved_and_loaded(w):
    file = io.BytesIO()
    torch.save(w.optimizer.state_dict(), file)
    file.seek(0)
    w.optimizer.load_state_dict(torch.load(file, weights_only=True))


def copied(w):
    w.optimizer, w.params = copy.deepcopy((w.optimizer, w.params))
    for p in w.members:  # deepcopy does not keep gradients of every layout
        if p.grad is None:
            p.grad = torch.empty_like(p).copy_(w.drawn(p.shape))


def pickled(w):
    file = io.BytesIO()
    torch.save((w.optimizer, w.params), file)
    file.seek(0)
    w.optimizer, w.params = torch.load(file, weights_only=False)
    w.new_grads()


def new_group(w):
    p = torch.nn.Parameter(w.drawn((3, 2)))
    p.grad = w.drawn((3, 2))
    w.optimizer.add_param_group({"params": [p], "lr": 0.05})


def removed_group(w):
    if len(w.optimizer.param_groups) > 1:
        del w.optimizer.param_groups[-1]


def replaced_member(w):
    group = w.rng.choice(w.optimizer.param_groups)
    p = torch.nn.Parameter(w.drawn((6,)))
    p.grad = w.drawn((6,))
    group["params"][w.rng.randrange(len(group["params"]))] = p


def moved_window(w):
    for group in w.optimizer.param_groups:
        for name in ("norms", "tau_norms", "evidence", "sides"):
            if name in group and w.device == "cpu":
                group[name].share_memory_()
            elif name in group:
                group[name].data = group[name].data.clone()


def other_lr(w):
    for group in w.optimizer.param_groups:
        group["lr"] = w.rng.choice([0.05, 0.2, torch.tensor(0.1)])


def other_beta(w):
    for group in w.optimizer.param_groups:
        if "momentum" in group and not group.get("nesterov"):
            group["momentum"] = w.rng.choice([0.0, 0.5, 0.9])


def plain_step_between(w):
    for group in w.optimizer.param_groups:
        group["fused"] = False
    step(w)
    for group in w.optimizer.param_groups:
        group["fused"] = None


def inference_gradient(w):
    p = w.any_param()
    if p.dtype == torch.float32:
        with torch.inference_mode():
            p.grad = w.drawn(p.shape).to(p.dtype)


def step(w):
    w.optimizer.step()


OPERATIONS = [
    value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", None) == __name__
    and name not in ("World", "step", "forget", "other_dtype")
]


def tensors(w):
    yield from ((f"parameter {i}", p) for i, p in enumerate(w.members))
    for i, p in enumerate(w.members):
        for name, value in sorted(w.optimizer.state.get(p, {}).items()):
            if isinstance(value, torch.Tensor):
                yield f"{name} {i}", value


def difference(first, second):
    """The first difference between two worlds beyond one step's rounding; makes the first equal
    to the second.
    """
    for world in (
        first,
        second,
    ):  # on CUDA the host hears of a skipped step when it asks, as state_dict does
        world.optimizer._fused.follow_device(world.optimizer.param_groups)
    ours, theirs = dict(tensors(first)), dict(tensors(second))
    # The fused form makes states of zeros before a first step that it then skips: they are
    # forgotten, because the loop makes them later, perhaps with another dtype or shape.
    early = {name for name in ours.keys() - theirs.keys() if not bool(ours[name].any())}
    if ours.keys() - early != theirs.keys():
        return f"states {list(ours)} and {list(theirs)}"
    for p, q in zip(first.members, second.members) if early else ():
        if not second.optimizer.state.get(q):
            first.optimizer.state.pop(p, None)
    by_kind = {}
    for name, b in theirs.items():
        a = ours[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name}: {a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}"
        by_kind.setdefault((a.dtype, a.device), []).append((name, a.detach(), b.detach()))
    for (dtype, _), rows in by_kind.items():
        rtol = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(dtype, 1e-5)
        close = partial(torch.allclose, rtol=rtol, atol=2e-5, equal_nan=True)
        # All at once, because a comparison per tensor takes longer than the step.
        if not close(
            *(
                torch.cat([t.reshape(-1) for t in column]).double()
                for column in list(zip(*rows))[1:]
            )
        ):
            for name, a, b in rows:
                # Where large numbers cancel, their rounding is left.
                largest = b.double().abs().nan_to_num(0.0, 0.0).max() if b.numel() else 0.0
                if not close(a.double(), b.double(), atol=2e-5 + 4e-7 * float(largest)):
                    return (
                        f"{name} differs by "
                        f"{float((a.double() - b.double()).abs().nan_to_num(1e30).max()):.3g}"
                    )
        for _, a, b in rows:
            a.data.copy_(b)
    return None


def run_sequence(seed, device="cpu", length=14, tally=None):
    """None where both worlds agree to the end; else the operations so far and the difference."""
    draw = random.Random(seed)
    name = draw.choice(sorted(MAKES))
    worlds = [World(name, seed, device, o) for o in ({}, {"foreach": False})]
    done = [name]
    for _ in range(length):
        operation = draw.choice(OPERATIONS) if draw.random() < 0.6 else fresh_gradients
        done.append(operation.__name__)
        for act in (operation, step, step) if draw.random() < 0.3 else (operation, step):
            raised = []
            for w in worlds:
                try:
                    act(w)
                    raised.append(None)
                except Exception as error:
                    raised.append(error)
            if tally is not None and act is step:
                tally["fused" if worlds[0].optimizer._fused.used else "other"] += 1
            if (raised[0] is None) != (raised[1] is None):
                return f"{done}: {raised[0]!r} and {raised[1]!r}"
            if raised[0] is not None:  # what an error leaves behind is nobody's promise
                return None
            found = difference(*worlds)
            if found is not None:
                return f"{done}: {found}"
    return None


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    begin, failed, tally = time.time(), 0, Counter()
    gc.freeze()  # collections inside the sequences need not walk through torch and Numba
    for seed in range(arguments.first, arguments.first + arguments.count):
        found = run_sequence(seed, arguments.device, tally=tally)
        if found is not None:
            failed += 1
            print(f"seed {seed}: {found}", flush=True)
        if (seed + 1 - arguments.first) % 500 == 0:
            print(
                f"{seed + 1 - arguments.first} sequences, {failed} differ, {dict(tally)} steps, "
                f"{time.time() - begin:.0f} s",
                flush=True,
            )
    print(
        f"{arguments.count} sequences on {arguments.device}, {failed} differ, steps {dict(tally)}"
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
