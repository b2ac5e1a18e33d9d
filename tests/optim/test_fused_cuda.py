"""The fused forms on CUDA; skipped without a GPU.

As a script it needs no pytest: ``test_fused_cuda.py [WORDS]`` runs the tests whose names hold one
of the words.
"""

from __future__ import annotations

import copy
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))
from cases.captured import graph_of
from optim import fused_checks as checks, fused_memory, fused_sequences

from mindgap.base.check import RuleError
from mindgap.optim import ACClip, AdamW, CClip, GClip, NormalizedSGD, StochasticINGD, trial

# Settings that have kernels.
ACClip = partial(ACClip, eps=1e-5, weight_decay=1e-5, bias_correction=False, clip=None)
StochasticINGD = partial(StochasticINGD, clip=None)

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
except ImportError:  # the GPU machine may have no pytest
    pass

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAKES = {
    "GClip": lambda p, lr: GClip(p, lr, 1.0, beta=0.9),
    "CClip": lambda p, lr: CClip(p, lr, 0.01, beta=0.9),
    "ACClip": lambda p, lr: ACClip(p, lr),
    "NormalizedSGD": lambda p, lr: NormalizedSGD(p, lr),
    "StochasticINGD": lambda p, lr: StochasticINGD(p, lr=lr),
}


def test_every_rule_equals_the_transcription():
    seen = checks.check_all_rules("cuda", DTYPES)
    print("largest error, units in the last place:", {k: round(v, 2) for k, v in seen.items()})


def test_settings_and_moving_tensors():
    checks.check_settings("cuda")
    checks.check_stochastic_decay("cuda")
    checks.check_moving_tensors("cuda")


def test_forms_and_policies():
    checks.check_forms("cuda")


def test_the_trial_of_the_kernels_reaches_what_is_judged():
    rows, twin_of = [], trial._twin
    trial._FOUND.clear()
    trial._twin = lambda *arguments: rows.append(twin_of(*arguments)) or rows[-1]
    try:
        p = torch.nn.Parameter(torch.ones(9, device="cuda"))
        p.grad = torch.ones_like(p)
        AdamW([p], clip="noise", fused=True).step()
    finally:
        trial._twin = twin_of
    for twin in rows:  # the fused form and the foreach form
        evidence, _, _, judged, *_ = twin.param_groups[0]["evidence"].tolist()
        assert judged == 2
        assert evidence < 1.0
    assert [bool(twin.param_groups[0]["fused"]) for twin in rows] == [True, False]


def test_what_may_happen_between_two_steps():
    for name, check in fused_memory.CHECKS.items():
        print(name, flush=True)
        check("cuda")


def test_random_sequences():
    """2,000 by hand: python tests/optim/fused_sequences.py --count 2000 --device cuda."""
    found = [fused_sequences.run_sequence(seed, "cuda") for seed in range(100)]
    assert [text for text in found if text] == []


def test_policies_for_gradients_that_are_not_finite():
    checks.check_nonfinite("cuda")


def test_the_report_counts_no_norm_of_a_step_that_was_left_out():
    reports = []
    for options in ({"fused": True}, {"foreach": True}):
        draw = torch.Generator().manual_seed(0)
        p = torch.nn.Parameter(torch.zeros(500, device="cuda"))
        optimizer = AdamW([p], 0.01, clip="auto", spike_guard="skip", nonfinite="skip", **options)
        for k in range(30):
            grad = torch.randn(500, generator=draw) * (1000.0 if k in (24, 29) else 1.0)
            p.grad = (grad * (float("nan") if k == 26 else 1.0)).cuda()
            optimizer.step()
        reports.append(optimizer.report())
    fused, plain = reports
    assert fused.skipped == plain.skipped == 3
    assert abs(fused.direction_norm / plain.direction_norm - 1) < 1e-5
    for q, value in plain.norm_quantiles.items():
        assert abs(fused.norm_quantiles[q] / value - 1) < 1e-5


def test_a_step_never_waits_for_the_device():
    for policy in ("propagate", "skip"):
        for name, make in MAKES.items():
            params = [torch.nn.Parameter(torch.randn(n, device="cuda")) for n in (5, 2000)]
            optimizer = make(params, 0.1)
            optimizer._nonfinite = policy
            for p in params:
                p.grad = torch.randn_like(p)
            for _ in range(3):
                optimizer.step()
            with warnings.catch_warnings():  # torch says once that this mode is a prototype
                warnings.simplefilter("ignore")
                torch.cuda.set_sync_debug_mode("error")
            try:
                for _ in range(3):
                    optimizer.step()
                for p in params:
                    p.grad = p.grad.clone()  # moved: the table is sent again
                optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            assert optimizer.report().steps == 7, name


def test_a_step_made_from_the_last_ones_launches_equals_a_step_made_anew():
    for policy in ("propagate", "skip"):
        for name, make in MAKES.items():
            torch.manual_seed(0)
            starts = [torch.randn(n, device="cuda") for n in (3, 2000)]
            pair = []
            for _ in range(2):
                params = [torch.nn.Parameter(start.clone()) for start in starts]
                for p in params:
                    p.grad = torch.zeros_like(p)
                pair.append((params, make(params, 0.1)))
                pair[-1][1]._nonfinite = policy
            played = 0
            for k in range(16):
                grads = [torch.randn_like(start) for start in starts]
                if k == 9 and policy == "skip":
                    grads[1][7] = float("nan")
                for params, optimizer in pair:
                    for p, g in zip(params, grads):
                        p.grad.copy_(g)
                        if k == 5:  # gradients move
                            p.grad = p.grad.clone()
                    if k == 7:
                        optimizer.param_groups[0]["lr"] = 0.05
                    if k == 8:
                        optimizer.report(reset=True)
                    if k == 11:  # steps outside the kernels
                        optimizer.param_groups[0]["fused"] = False
                    if k == 12:
                        optimizer.param_groups[0]["fused"] = None
                pair[1][1]._fused._tape = None  # the twin looks everything up at every step
                tape = pair[0][1]._fused._tape
                for _, optimizer in pair:
                    optimizer.step()
                played += tape is not None and pair[0][1]._fused._tape is tape and k != 11
                for a, b in zip(pair[0][0], pair[1][0]):
                    assert torch.equal(a, b), (name, policy, k)
            reports = [optimizer.report() for _, optimizer in pair]
            assert reports[0] == reports[1], (name, policy, reports)
            assert reports[0].skipped == (policy == "skip"), (name, policy, reports)
            # A kernel's first launch at an address is looked up, and the step after it is written
            # down: 3 steps are played before the gradients move (2 where the first step is made
            # outside the kernels), 3 after the step size changes, 2 or 3 after the step outside, as
            # the allocator hands out new or old addresses.
            least = 7 if name == "StochasticINGD" else 8
            assert played >= least, (name, policy, played)


def train(model, optimizer, data):
    optimizer.zero_grad(set_to_none=True)
    model(data).square().mean().backward()
    optimizer.step()


def test_a_step_outside_follows_a_capture():
    model = torch.nn.Linear(64, 3).cuda()
    optimizer = ACClip(model.parameters(), torch.tensor(0.05, device="cuda"), fused=True)
    data = torch.randn(32, 64, device="cuda")

    graph_of(lambda: train(model, optimizer, data))
    for p in model.parameters():  # the captured step has not run: its gradients hold nothing yet
        p.grad.fill_(0.5)
    before = model.weight.detach().clone()
    optimizer.step()
    torch.cuda.synchronize()
    assert bool(torch.isfinite(model.weight).all())
    assert not torch.equal(before, model.weight)


def test_a_step_outside_follows_a_capture_of_two_steps():
    """The second takes the table of addresses that the first one made, which no replay has filled
    yet: its launches must not be made again outside.
    """
    model = torch.nn.Linear(64, 3).cuda()
    optimizer = ACClip(model.parameters(), 0.05, fused=True)
    data = torch.randn(32, 64, device="cuda")

    def two():
        train(model, optimizer, data)
        optimizer.step()

    graph_of(two)
    for p in model.parameters():
        p.grad.fill_(0.5)
    assert not optimizer._fused._tape.fits()
    optimizer.step()
    torch.cuda.synchronize()
    assert bool(torch.isfinite(model.weight).all())


def test_one_optimizer_in_many_graphs():
    """One graph per batch size, more of them than tables are set aside at once."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 3).cuda()
    twin = copy.deepcopy(model)
    captured, eager = (
        AdamW(m.parameters(), torch.tensor(0.05, device="cuda"), fused=True) for m in (model, twin)
    )
    batches = [torch.randn(4 + i, 8, device="cuda") for i in range(6)]
    graphs = []
    for data in batches:
        graphs.append(graph_of(partial(train, model, captured, data)))
        for _ in range(3):
            train(twin, eager, data)
    for _ in range(2):
        for graph, data in zip(graphs, batches):
            graph.replay()
            train(twin, eager, data)
    torch.testing.assert_close(model.weight, twin.weight, rtol=2e-5, atol=2e-6)


def test_a_captured_step_with_other_tensors_than_the_last_is_refused():
    """Its states would be made inside the graph, and each replay would fill them with zeros."""
    model = torch.nn.Linear(8, 3).cuda()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    AdamW(model.parameters(), 0.05, fused=True).step()
    fresh = AdamW(model.parameters(), 0.05, fused=True)
    known = AdamW(model.parameters(), 0.05)
    known.step()
    model.bias.grad = None
    for optimizer in (fresh, known):
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                optimizer.step()
        except RuleError as error:
            assert "step must run outside the CUDA graph before it is captured" in str(error)  # noqa: PT017
        else:
            raise AssertionError("a captured step with other tensors was accepted")
    assert not fresh.state
    known.step()
    assert known.report().steps == 2


def test_tensors_above_two_gibibytes():
    n = 2**29 + 2**20 + 7
    for make in (
        lambda p: ACClip(p, 0.1, weight_decay=0.0, fused=True),
        lambda p: GClip(p, 0.1, 1.0, fused=True),
    ):
        p = torch.nn.Parameter(torch.zeros(n, device="cuda"))
        p.grad = torch.ones(n, device="cuda")
        optimizer = make([p])
        optimizer.step()
        if isinstance(optimizer, GClip):
            assert abs(optimizer.report().direction_norm / n**0.5 - 1) < 1e-9
        values = p.detach()
        assert float(values.min()) == float(values.max()) < 0
        del p, optimizer, values
        torch.cuda.empty_cache()


def test_captured_step_replays_with_a_tensor_lr():
    for name, make in MAKES.items():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 257), torch.nn.Tanh(), torch.nn.Linear(257, 3)
        ).cuda()
        twin = copy.deepcopy(model)
        rates = [torch.tensor(0.05, device="cuda"), torch.tensor(0.05, device="cuda")]
        captured, eager = (
            make(list(model.parameters()), rates[0]),
            make(list(twin.parameters()), rates[1]),
        )
        data = torch.randn(32, 64, device="cuda")

        graph = graph_of(partial(train, model, captured, data))
        for _ in range(3):
            train(twin, eager, data)
        for k in range(10):
            for rate in rates:
                rate.fill_(0.05 / (1 + k))
            graph.replay()
            train(twin, eager, data)
        for a, b in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(
                a, b, rtol=2e-5, atol=2e-6, msg=lambda m, name=name: f"{name}: {m}"
            )
        assert not torch.equal(next(model.parameters()), next(twin.parameters()) + 1)
        if name == "StochasticINGD":
            assert captured.state_dict()["param_groups"][0]["k"] == 13


def test_changing_lr_compiles_nothing():
    p = torch.nn.Parameter(torch.randn(3000, device="cuda"))
    p.grad = torch.randn_like(p)
    optimizer = ACClip([p], 0.1, fused=True)
    optimizer.step()
    torch.cuda.synchronize()
    slowest = 0.0
    for k in range(1, 20):
        optimizer.param_groups[0]["lr"] = 0.1 / k
        begin = time.perf_counter()
        optimizer.step()
        torch.cuda.synchronize()
        slowest = max(slowest, time.perf_counter() - begin)
    from mindgap.rules.fused import cuda

    caches = getattr(cuda.kernel("first_moment_first"), "device_caches", None)
    if caches is not None:
        compiled = {id(k) for cache in caches.values() for k in cache[0].values()}
        before = len(compiled)
        optimizer.param_groups[0]["lr"] = 16.0
        optimizer.step()
        assert len({id(k) for cache in caches.values() for k in cache[0].values()}) == before
    print(f"slowest of 19 steps with another lr each: {slowest * 1e3:.2f} ms")


def test_forms_on_cuda_need_little_memory():
    p = torch.nn.Parameter(torch.randn(2**26, device="cuda"))
    p.grad = torch.randn_like(p)
    for make in (
        lambda o: ACClip([p], **o),
        lambda o: GClip([p], 0.1, 1.0, **o),
        lambda o: CClip([p], 0.1, 1.0, **o),
    ):
        for options in ({"fused": True}, {"foreach": True}):
            optimizer = make(options)
            optimizer.step()
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            optimizer.step()
            torch.cuda.synchronize()
            extra = torch.cuda.max_memory_allocated() - before
            # foreach: four temporaries of one block.
            room = (
                64 * 2**20
                if "fused" in options
                else 4 * torch.cuda.get_device_properties(0).total_memory // 256
            )
            assert extra <= room, (optimizer, options, extra)


if __name__ == "__main__":
    failed = []
    for name, test in list(globals().items()):
        if name.startswith("test_") and (
            not sys.argv[1:] or any(word in name for word in sys.argv[1:])
        ):
            begin = time.time()
            try:
                test()
                print(f"ok    {name}  {time.time() - begin:.1f} s", flush=True)
            except Exception as error:
                import traceback

                traceback.print_exc()
                failed.append(name)
                print(f"FAIL  {name}  {type(error).__name__}: {str(error)[:500]}", flush=True)
    np.set_printoptions(precision=3)
    sys.exit(f"failed: {failed}" if failed else 0)
