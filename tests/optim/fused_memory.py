"""What may happen to tensors between two steps, one check per kind: the fused form equals the plain
loop, or refuses.

Every check runs on any device. As a script it needs no pytest, so that it can run under
compute-sanitizer:

    python tests/optim/fused_memory.py --device cuda
    compute-sanitizer --tool memcheck python tests/optim/fused_memory.py --device cuda
"""

# ruff: noqa: PT017
from __future__ import annotations

import argparse
import copy
import sys
import time
from pathlib import Path

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from mindgap.base.check import RuleError
from mindgap.optim import SGD, ACClip, AdamW, CClip, GClip, NormalizedSGD, StochasticINGD

MAKES = (
    lambda p, **o: GClip(p, 0.1, 1.5, beta=0.9, clip="momentum", **o),
    lambda p, **o: GClip(p, 0.1, 1.5, **o),
    lambda p, **o: CClip(p, 0.1, 0.7, beta=0.9, **o),
    lambda p, **o: ACClip(p, 0.1, **o),
    lambda p, **o: AdamW(p, 0.1, clip=1.0, **o),
    lambda p, **o: SGD(p, 0.1, momentum=0.9, clip="auto", **o),
    lambda p, **o: NormalizedSGD(p, 0.1, beta=0.9, **o),
    lambda p, **o: StochasticINGD(p, beta=0.9, **o),
)


def drawn(shape, device, dtype=torch.float32, seed=0):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(device, dtype)


def parameter(shape, device, dtype=torch.float32, seed=0):
    p = torch.nn.Parameter(drawn(shape, device, dtype, seed))
    p.grad = drawn(shape, device, dtype, seed + 100)
    return p


def twins(device, script, makes=MAKES, shape=(16,), dtype=torch.float32, extra=2):
    """Run a script in the fused form and in the plain loop, and compare; both may refuse, but only
    both.

    Args:
        script: function of (optimizer, parameters); makes its steps and returns tensors to compare
            as well, or None.
    """
    for make in makes:
        ends = []
        for options in ({}, {"foreach": False}):
            params = [
                parameter(shape, device, dtype),
                *(parameter((5,), device, dtype, i + 1) for i in range(extra)),
            ]
            optimizer = make(params, **options)
            optimizer.step()
            optimizer.step()
            try:
                more = script(optimizer, params) or []
            except (RuntimeError, ValueError, TypeError) as error:
                ends.append(error)
                continue
            ends.append([p.detach().double().clone() for p in [*params, *more]])
        name = type(optimizer).__name__
        ours, theirs = ends
        if isinstance(ours, Exception) or isinstance(theirs, Exception):
            assert isinstance(ours, Exception) == isinstance(theirs, Exception), (
                name,
                ours,
                theirs,
            )
            continue
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(
                a, b, rtol=1e-5, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}"
            )


def steps(optimizer, params, count=2):
    for k in range(count):
        for i, p in enumerate(params):
            if p.grad is not None:
                p.grad = torch.empty_like(p).copy_(drawn(p.shape, p.device, p.dtype, 7 * k + i))
        optimizer.step()


def state_names(optimizer, p):
    return [
        name
        for name, value in optimizer.state[p].items()
        if isinstance(value, torch.Tensor) and value.dim()
    ]


# -- memory that was overwritten, or read after it was freed


def check_model_to_double_and_back(device):
    for before, after in ((torch.float32, torch.float64), (torch.float64, torch.float32)):

        def convert(optimizer, params, after=after):
            for p in params:
                p.data, p.grad = p.data.to(after), p.grad.to(after)
            steps(optimizer, params)

        twins(device, convert, dtype=before)


def load_changed(change):
    """Load a checkpoint whose tensors were changed, then step."""

    def load(optimizer, params):
        saved = copy.deepcopy(optimizer.state_dict())
        for states in saved["state"].values():
            states |= {name: change(value) for name, value in states.items() if value.dim()}
        optimizer.load_state_dict(saved)
        steps(optimizer, params)

    return load


def check_checkpoint_of_another_dtype(device):
    twins(device, load_changed(torch.Tensor.float), dtype=torch.float64)


def check_checkpoint_of_another_shape(device):
    twins(
        device, load_changed(lambda value: torch.zeros(3, dtype=value.dtype, device=value.device))
    )


def check_larger_data(device):
    def enlarge(optimizer, params):
        params[0].data = drawn((100_000,), device)
        params[0].grad = drawn((100_000,), device, seed=4)
        optimizer.state.pop(params[0], None)
        steps(optimizer, params)

    def data_only(optimizer, params):
        params[0].data = drawn((100_000,), device)
        optimizer.step()

    twins(device, enlarge)
    twins(device, data_only)


def check_narrowed_data(device):
    def narrow(optimizer, params):
        whole = params[0].data
        params[0].data = whole[:10]
        params[0].grad = drawn((10,), device, seed=4)
        optimizer.state.pop(params[0], None)
        steps(optimizer, params)
        return [whole]

    def data_only(optimizer, params):
        whole = params[0].data
        params[0].data = whole[:10]
        try:
            optimizer.step()
        except (RuntimeError, ValueError):
            pass
        else:
            raise AssertionError("a gradient of another shape was accepted")
        return [whole[10:]]

    twins(device, narrow, shape=(1000,))
    twins(device, data_only, shape=(1000,), makes=MAKES[:1])


def check_moved_states(device):
    def share(optimizer, params):
        for p in params:
            for name in state_names(optimizer, p):
                state = optimizer.state[p][name]
                state.share_memory_() if device == "cpu" else state.set_(state.clone())
        steps(optimizer, params)

    def data(optimizer, params):
        for p in params:
            for name in state_names(optimizer, p):
                optimizer.state[p][name].data = optimizer.state[p][name].data.clone()
        _ = [torch.full((16,), 1e6, device=device) for _ in range(50)]  # fill what was freed
        steps(optimizer, params)

    twins(device, share)
    twins(device, data)


def check_wrapper_subclass(device):
    from torch.testing._internal.two_tensor import TwoTensor

    def make():
        p = torch.nn.Parameter(TwoTensor(drawn((6,), device), drawn((6,), device)))
        p.grad = TwoTensor(drawn((6,), device, seed=1), drawn((6,), device, seed=1))
        return p

    ends = []
    for options in ({}, {"foreach": False}):
        p = make()
        optimizer = ACClip([p], 0.1, **options)
        try:
            optimizer.step()
            ends.append(p.a.detach().clone())
        except (RuntimeError, TypeError, NotImplementedError) as error:
            ends.append(error)
    ours, theirs = ends
    assert isinstance(ours, Exception) == isinstance(theirs, Exception), ends
    if isinstance(ours, torch.Tensor):
        torch.testing.assert_close(ours, theirs)
    try:
        ACClip([make()], 0.1, fused=True).step()
    except RuleError as error:
        assert "subclass" in str(error), error
    else:
        raise AssertionError("a wrapper subclass was accepted")


# -- results that were silently wrong


def check_other_strides_at_the_same_address(device):
    def swap(optimizer, params):
        params[0].grad = params[0].grad.t()
        optimizer.step()
        params[0].grad = params[0].grad.t()
        optimizer.step()

    twins(device, swap, shape=(4, 4))


def check_other_strides_of_data_and_states(device):
    def swap(optimizer, params):
        params[0].data = params[0].data.t()
        optimizer.step()
        for name in state_names(optimizer, params[0]):
            optimizer.state[params[0]][name].t_()
        optimizer.step()

    twins(device, swap, shape=(4, 4))


def check_states_cleared_and_popped(device):
    def clear(optimizer, params):
        optimizer.state.clear()
        steps(optimizer, params)

    def pop(optimizer, params):
        optimizer.state.pop(params[0], None)
        steps(optimizer, params)

    twins(device, clear)
    twins(device, pop)


def check_edited_groups(device):
    def replace(optimizer, params):
        params.append(parameter((7,), device, seed=9))
        optimizer.param_groups[0]["params"][0] = params[-1]
        steps(optimizer, params)

    def append(optimizer, params):
        params.append(parameter((7,), device, seed=9))
        optimizer.param_groups[0]["params"].append(params[-1])
        steps(optimizer, params)

    def remove(optimizer, params):
        params.append(parameter((7,), device, seed=9))
        optimizer.add_param_group({"params": [params[-1]]})
        steps(optimizer, params)
        del optimizer.param_groups[1]
        steps(optimizer, params)

    for script in (replace, append, remove):
        twins(device, script)


def check_another_form_after_a_skipped_step(device):
    """The numbers of steps go on rightly in the plain form, and in the fused form after it."""
    for make in MAKES:
        ends = []
        for fused in (None, False):
            p = torch.nn.Parameter(drawn((7,), device))
            optimizer = make([p], nonfinite="skip", fused=fused)
            for k in range(9):
                p.grad = drawn((7,), device, seed=k) * (float("nan") if k == 3 else 1.0)
                optimizer.param_groups[0]["fused"] = False if k == 4 else fused
                optimizer.step()
            packed = optimizer.state_dict()
            ends.append(
                (p.detach(), packed["param_groups"][0]["k"], packed["state"].get(0, {}).get("step"))
            )
        (ours, k, seen), (theirs, *counted) = ends
        assert [k, seen] == counted, (type(optimizer).__name__, k, seen, counted)
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6), (
            type(optimizer).__name__,
            ours,
            theirs,
        )


def check_version_counter(device):
    p = torch.nn.Parameter(torch.ones(3, device=device))
    p.grad = torch.ones(3, device=device)
    for make in MAKES:
        optimizer = make([p])
        optimizer.step()
        loss = (p * p).sum()
        optimizer.step()
        try:
            loss.backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error), error
        else:
            raise AssertionError(
                f"{type(optimizer).__name__}: backward through changed parameters was accepted"
            )


def check_negative_bit(device):
    def negate(optimizer, params):
        params[0].grad = torch._neg_view(params[0].grad)
        optimizer.step()

    twins(device, negate)


def check_inference_tensors(device):
    """torch itself writes first and raises then; the kernels refuse before."""
    for make in MAKES[:4]:
        with torch.inference_mode():
            p = torch.ones(4, device=device)
            p.grad = torch.ones(4, device=device)
        for options, wanted in (({}, RuntimeError), ({"fused": True}, RuleError)):
            optimizer = make([torch.ones(4, device=device)], **options)
            optimizer.param_groups[0]["params"][0] = p
            before = p.clone()
            try:
                optimizer.step()
            except wanted:
                assert wanted is RuntimeError or torch.equal(before, p)
            else:
                raise AssertionError(
                    f"{type(optimizer).__name__}: an inference tensor was overwritten"
                )


def check_refusals_are_reconsidered(device):
    """One unusual step, then the fused form again."""

    def transposed(p):
        p.grad = drawn((6, 4), device).t()

    for spoil in (transposed, lambda p: setattr(p, "data", p.data[:, :2])):
        p = parameter((4, 6), device)
        optimizer = ACClip([p], 0.1)
        optimizer.step()
        assert optimizer._fused.used
        kept = p.data
        spoil(p)
        if p.shape != kept.shape:
            p.grad = torch.ones_like(p)
            optimizer.state.clear()
        optimizer.step()
        assert not optimizer._fused.used
        if p.shape != kept.shape:
            p.data = kept
            optimizer.state.clear()
        p.grad = drawn((4, 6), device)
        optimizer.step()
        assert optimizer._fused.used
    p = torch.nn.Parameter(torch.ones(4, device="meta"))
    p.grad = torch.ones(4, device="meta")
    optimizer = GClip([p], 0.1, 1.0)
    optimizer.step()
    q = parameter((4,), device)
    optimizer.param_groups[0]["params"][0] = q
    optimizer.step()
    assert optimizer._fused.used


def check_threshold_that_is_a_tensor(device):
    """Works, or raises before anything has changed; here it works."""
    for tau in (lambda k: torch.tensor(1.0), lambda k: torch.tensor(1.0, device=device)):
        ends = []
        for options in ({}, {"foreach": False}):
            p = parameter((6,), device)
            optimizer = GClip([p], 0.1, tau, beta=0.9, **options)
            optimizer.step()
            optimizer.step()
            ends.append((p.detach().clone(), optimizer.param_groups[0]["k"]))
        torch.testing.assert_close(ends[0][0], ends[1][0])
        assert ends[0][1] == ends[1][1] == 2


def check_threshold_that_raises(device):
    def tau(k):
        return -1.0

    p = parameter((6,), device)
    optimizer = GClip([p], 0.1, tau, beta=0.9)
    before = p.detach().clone()
    try:
        optimizer.step()
    except RuleError:
        assert optimizer.param_groups[0]["k"] == 0
        assert torch.equal(before, p.detach())
        assert all(
            not bool(s.any()) for states in optimizer.state.values() for s in states.values()
        )
    else:
        raise AssertionError("a negative threshold was accepted")


def check_another_default_device(device):
    """The default device of new tensors must not matter."""
    for default in {device, "meta"}:
        params = [parameter((6,), device) for _ in MAKES]
        torch.set_default_device(default)
        try:
            for make, p in zip(MAKES, params):
                optimizer = make([p])
                for _ in range(3):
                    optimizer.step()
                assert bool(torch.isfinite(p.detach()).all())
        finally:
            torch.set_default_device(None)


def check_one_element_lr(device):
    for make in (
        lambda p, lr, **o: GClip(p, lr, 1.5, beta=0.9, **o),
        lambda p, lr, **o: CClip(p, lr, 0.7, **o),
        lambda p, lr, **o: ACClip(p, lr, **o),
        lambda p, lr, **o: NormalizedSGD(p, lr, **o),
    ):
        ends = []
        for lr in (
            0.1,
            torch.tensor([0.1], device=device),
            torch.tensor([[0.1]], device=device, dtype=torch.float64),
        ):
            params = [parameter((6,), device), parameter((3, 4), device, seed=3)]
            optimizer = make(params, lr)
            optimizer.step()
            optimizer.step()
            ends.append([p.detach().clone() for p in params])
        for other in ends[1:]:
            for a, b in zip(ends[0], other):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


CHECKS = {name: value for name, value in list(globals().items()) if name.startswith("check_")}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    failed = []
    for name, check in CHECKS.items():
        begin = time.time()
        try:
            check(arguments.device)
            print(f"ok    {name}  {time.time() - begin:.1f} s", flush=True)
        except Exception as error:
            failed.append(name)
            print(f"FAIL  {name}  {type(error).__name__}: {str(error)[:400]}", flush=True)
    sys.exit(f"failed: {failed}" if failed else 0)
