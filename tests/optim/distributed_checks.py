"""Optimizers on two processes: DDP, ZeRO, FSDP, DTensor and checkpoints that change the number of
processes.

``test_optim_distributed`` starts this file four times: alone (the reference), twice together, and
alone again.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from mindgap.base.check import RuleError
from mindgap.optim import INGD, SGD, ACClip, AdamW, CClip, GClip, NormalizedSGD, StochasticINGD
from mindgap.optim.norms import new_window
from mindgap.optim.sides import judge_, judge_number_

HALF = 4  # steps before and after the checkpoint
MAKES = {
    "gclip": lambda ps: GClip(ps, 0.1, 0.05, beta=0.9),
    "gclip-tensor": lambda ps: GClip(ps, 0.1, 0.02, scope="tensor"),
    "cclip": lambda ps: CClip(ps, 0.1, 0.01, beta=0.5),
    "acclip": lambda ps: ACClip(ps, 0.02),
    "adamw": lambda ps: AdamW(ps, 0.02, clip="auto", spike_guard="skip"),
    "adamw-noise": lambda ps: judging(AdamW(ps, 0.02, clip="noise")),
    "adamw-unit": lambda ps: AdamW(ps, 0.02, clip="unit", coordinates=2.0),
    "sgd": lambda ps: SGD(ps, 0.1, 0.9, clip=0.05),
    "normalized_sgd": lambda ps: NormalizedSGD(ps, 0.05, beta=0.5),
    "ingd": lambda ps: INGD(ps, lr=0.05, epsilon=1e-3, lipschitz=2.0, inner=8),
    "stochastic_ingd": lambda ps: StochasticINGD(ps, weight_decay=0.01),
}
#: How far a sharded run may be from the whole one: sums are taken in another order.
RTOL = {torch.float32: 1e-6, torch.float64: 1e-12}


def judging(optimizer):
    """The optimizer after twenty small norms, so that it judges every gradient."""
    window = optimizer.param_groups[0]["norms"] = new_window("cpu")
    window[-20:] = 1e-3
    return optimizer


def problem(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)
    return model, torch.randn(8, 6, dtype=dtype), torch.randn(8, 3, dtype=dtype)


def train(model, optimizer, data, target, steps, *, together=False):
    """Steps with the mean loss over all processes; returns the norms that the optimizer reports."""
    norms = []
    for _ in range(steps):

        def closure():
            optimizer.zero_grad()
            loss = (model(data) - target).square().mean()
            loss.backward()
            value = loss.detach().clone()
            if together:
                dist.all_reduce(value)
                value /= dist.get_world_size()
            return value

        optimizer.step(closure)
        norms.append(optimizer.report().direction_norm)
    return norms


def whole(model):
    return [
        (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone()
        for p in model.parameters()
    ]


def at_x(optimizer, model):
    """The parameters to compare: x, not y."""
    if hasattr(optimizer, "eval"):
        optimizer.eval()
        values = whole(model)
        optimizer.train()
        return values
    return whole(model)


def assert_near(label, values, expected, dtype):
    for a, b in zip(values, expected, strict=True):
        scale = float(b.abs().max())
        torch.testing.assert_close(
            a, b, rtol=RTOL[dtype], atol=RTOL[dtype] * scale, msg=lambda m: f"{label}: {m}"
        )


def alone(folder):
    """The reference: one process, whole parameters; writes a checkpoint in mid-run."""
    for dtype in RTOL:
        for name, make in MAKES.items():
            model, data, target = problem(dtype)
            optimizer = make(model.parameters())
            norms = train(model, optimizer, data, target, HALF)
            middle = at_x(optimizer, model)
            save(folder / "one" / f"{name}-{dtype}", model, optimizer)
            norms += train(model, optimizer, data, target, HALF)
            kept = {"middle": middle, "final": at_x(optimizer, model), "norms": norms}
            torch.save(kept, folder / f"{name}-{dtype}.pt")


def save(path, model, optimizer):
    state, optim = get_state_dict(model, optimizer)
    checkpoint.save({"model": state, "optim": optim}, checkpoint_id=path)


def load(path, model, optimizer):
    state, optim = get_state_dict(model, optimizer)
    both = {"model": state, "optim": optim}
    checkpoint.load(both, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=both["model"], optim_state_dict=both["optim"])


def resume(folder):
    """One process goes on from the checkpoint that two processes wrote."""
    for dtype in RTOL:
        for name, make in MAKES.items():
            expected = torch.load(folder / f"{name}-{dtype}.pt")
            model, data, target = problem(dtype)
            optimizer = make(model.parameters())
            load(folder / "two" / f"{name}-{dtype}", model, optimizer)
            train(model, optimizer, data, target, HALF)
            assert_near(f"two to one {name}", at_x(optimizer, model), expected["final"], dtype)


def Built(params, *, make):
    """What ZeRO calls as if it were a class."""
    return make(params)


def refuses_fsdp1():
    """FSDP1 hides how parameters are spread: rules that need a norm refuse it, others take it."""
    flat = nn.Parameter(torch.ones(4))
    flat._fsdp_flattened = True  # what torch's FullyShardedDataParallel sets on its parameters
    for name, make in MAKES.items():
        text = ""
        try:
            make([flat])
        except RuleError as error:
            text = str(error)
        assert ("use fully_shard" in text) == (name != "cclip"), (name, text)


#: What a group keeps for the judge.
REMEMBERED = ("norms", "evidence", "sides")


def judges_what_one_process_would(rank):
    """Large gradients of two parameters, of which each process has one, as with ZeRO."""
    draw = torch.Generator().manual_seed(0)
    both = [torch.zeros(90), torch.zeros(40)]
    alone, mine = (
        [{"params": params, "betas": (0.9, 0.99)}] for params in (both, both[rank : rank + 1])
    )
    for group in (*alone, *mine):
        group["norms"] = new_window("cpu")
        group["norms"][-40:] = 1e-3
    for _ in range(12):
        for p in both:
            p.grad = torch.randn(p.shape, generator=draw)
        norm = float(torch.cat([p.grad for p in both]).norm())
        expected = judge_number_(alone, norm)
        twin = [{**mine[0], **{n: t.clone() for n, t in mine[0].items() if n in REMEMBERED}}]
        on_tensors = judge_(twin, torch.tensor(norm).double(), dist.group.WORLD)
        for factor, on in (judge_number_(mine, norm, dist.group.WORLD), map(float, on_tensors)):
            assert abs(factor - expected[0]) <= 1e-6 * expected[0], (factor, expected)
            assert bool(on) == expected[1]
        torch.testing.assert_close(mine[0]["evidence"], alone[0]["evidence"], rtol=1e-9, atol=1e-12)


def pair(folder, rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    from torch.nn.parallel import DistributedDataParallel

    mesh = init_device_mesh("cpu", (2,))
    refuses_fsdp1()
    judges_what_one_process_would(rank)
    for dtype in RTOL:
        for name, make in MAKES.items():
            expected = torch.load(folder / f"{name}-{dtype}.pt")
            label = f"{name} {dtype}"

            model, data, target = problem(dtype)
            mine = slice(4 * rank, 4 * rank + 4)
            ddp = DistributedDataParallel(model)
            optimizer = make(ddp.parameters())
            train(ddp, optimizer, data[mine], target[mine], 2 * HALF, together=True)
            assert_near(f"DDP {label}", at_x(optimizer, model), expected["final"], dtype)

            if name != "ingd":  # ZeRO's step calls the closure once
                model, _, _ = problem(dtype)
                ddp = DistributedDataParallel(model)
                zero = ZeroRedundancyOptimizer(ddp.parameters(), Built, make=make)
                norms = []
                for _ in range(2 * HALF):
                    zero.zero_grad()
                    (ddp(data[mine]) - target[mine]).square().mean().backward()
                    zero.step()
                    norms.append(zero.optim.report().direction_norm)
                if hasattr(zero.optim, "eval"):
                    zero.optim.eval()
                    zero._sync_params()
                assert_near(f"ZeRO {label}", whole(model), expected["final"], dtype)
                for ours, theirs in zip(norms, expected["norms"]):
                    assert ours is None or theirs is None or abs(ours - theirs) <= 1e-5 * theirs, (
                        label,
                        ours,
                        theirs,
                    )

            model, _, _ = problem(dtype)
            fully_shard(model)
            assert all(isinstance(p, DTensor) for p in model.parameters())
            optimizer = make(model.parameters())
            norms = train(model, optimizer, data[mine], target[mine], HALF, together=True)
            assert_near(f"FSDP2 {label}", at_x(optimizer, model), expected["middle"], dtype)
            for ours, theirs in zip(norms, expected["norms"]):
                # The norm of the whole vector, not of this process's part of it (√2 smaller).
                assert ours is None or theirs is None or abs(ours - theirs) <= 1e-5 * theirs, (
                    label,
                    ours,
                    theirs,
                )
            save(folder / "two" / f"{name}-{dtype}", model, optimizer)
            train(model, optimizer, data[mine], target[mine], HALF, together=True)
            assert_near(f"FSDP2 {label}", at_x(optimizer, model), expected["final"], dtype)

            model, _, _ = problem(dtype)
            fully_shard(model)
            optimizer = make(model.parameters())
            load(folder / "one" / f"{name}-{dtype}", model, optimizer)
            train(model, optimizer, data[mine], target[mine], HALF, together=True)
            assert_near(f"one to two {label}", at_x(optimizer, model), expected["final"], dtype)

    for name, make in {
        **MAKES,
        "cclip-coordinates": lambda ps: CClip(ps, 0.1, [0.1 + torch.arange(5.0).double() / 9]),
    }.items():
        if name == "ingd":
            continue
        runs = []
        for spread in (True, False):
            start = torch.linspace(-1, 1, 5, dtype=torch.float64)
            p = nn.Parameter(distribute_tensor(start, mesh, [Shard(0)]) if spread else start)
            optimizer = make([p])
            for k in range(1, 7):
                slope = torch.sin(k * torch.arange(1.0, 6.0, dtype=torch.float64))
                p.grad = distribute_tensor(slope, mesh, [Shard(0)]) if spread else slope
                optimizer.step()
            runs.append(p.full_tensor().detach() if spread else p.detach())
        assert_near(f"DTensor {name}", runs[:1], runs[1:], torch.float64)


def main():
    task, folder, rank, port = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if task == "pair":
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE="2")
        dist.init_process_group("gloo")
        try:
            pair(folder, rank)
            dist.barrier()
        finally:
            dist.destroy_process_group()
    else:
        {"alone": alone, "resume": resume}[task](folder)
    print("fine")


if __name__ == "__main__":
    main()
