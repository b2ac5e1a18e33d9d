"""The fused forms on the CPU, where Numba is installed; and the library without it."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from optim import fused_checks as checks

from mindgap.base.check import RuleError
from mindgap.optim import ACClip, CClip, GClip, StochasticINGD
from mindgap.rules.fused import cpu, cuda_rules

# Settings that have kernels.
ACClip = partial(ACClip, eps=1e-5, weight_decay=1e-5, bias_correction=False, clip=None)
StochasticINGD = partial(StochasticINGD, clip=None)

needs_numba = pytest.mark.skipif(cpu.unavailable() is not None, reason=str(cpu.unavailable()))


@needs_numba
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", checks.rules())
def test_fused_equals_the_transcription(name, dtype):
    limit = checks.ULPS if "1.5" not in name else 4 * checks.ULPS
    assert checks.worst_error(name, "cpu", dtype) <= limit


@needs_numba
def test_settings():
    checks.check_settings("cpu")
    checks.check_stochastic_decay("cpu")


@needs_numba
@pytest.mark.parametrize("name", checks.forms())
def test_forms_and_policies(name):
    checks.check_forms("cpu", only=name)


@needs_numba
def test_tables_follow_moving_tensors():
    checks.check_moving_tensors("cpu")


@needs_numba
def test_policies_for_gradients_that_are_not_finite():
    checks.check_nonfinite("cpu")


@needs_numba
def test_scope_tensor_equals_the_plain_loop():
    runs = []
    for options in ({"fused": True}, {"foreach": False}):
        rng = np.random.default_rng(1)
        params = checks.tensors("cpu", torch.float64, rng)
        optimizer = GClip(params, 0.1, 1.0, scope="tensor", beta=0.5, clip="momentum", **options)
        for _ in range(5):
            checks.set_grads(params, rng.normal(size=sum(p.numel() for p in params)))
            optimizer.step()
        runs.append((checks.flat(params), optimizer.report()))
    np.testing.assert_allclose(runs[0][0], runs[1][0], rtol=1e-12)
    assert runs[0][1].clipped == pytest.approx(runs[1][1].clipped, rel=1e-12)
    assert runs[0][1].update_norm == pytest.approx(runs[1][1].update_norm, rel=1e-12)


@needs_numba
def test_float64_norms_beyond_the_range_of_squares():
    for huge in (1e200, 1e-200):
        p = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
        optimizer = GClip([p], 1.0, 1e-300, fused=True)
        p.grad = torch.tensor([3.0, 4.0, 0.0, 0.0], dtype=torch.float64) * huge
        optimizer.step()
        assert optimizer.report().direction_norm == pytest.approx(5 * huge, rel=1e-14)
        torch.testing.assert_close(
            p.detach(), torch.tensor([-6e-301, -8e-301, 0, 0], dtype=torch.float64)
        )


def in_a_new_process(program, **environment):
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@needs_numba
def test_the_norm_of_infinity_in_one_group_and_nan_in_another_is_nan():
    """As in the plain loop: infinity is a spike and NaN is none, so one step would be skipped
    and the other made.
    """
    ends = []
    for foreach in (None, False):
        params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
        optimizer = CClip(
            [{"params": [p]} for p in params], 0.1, 1.0, spike_guard="skip", foreach=foreach
        )
        for value in [1.0] * 30 + [float("inf")]:
            params[0].grad, params[1].grad = torch.full((3,), value), torch.ones(3)
            if value > 1.0:
                params[1].grad[0] = float("nan")
            optimizer.step()
        ends.append((torch.cat([p.detach() for p in params]), optimizer.report().skipped))
    assert ends[0][1] == ends[1][1] == 0
    torch.testing.assert_close(ends[0][0], ends[1][0], equal_nan=True)


@needs_numba
def test_two_threads_give_the_same_as_one():
    """In a process of its own: the number of threads is a setting of the whole process."""
    program = (
        "import sys, torch; sys.path.insert(0, 'tests'); from optim import fused_checks as c\n"
        "torch.set_num_threads(2)\n"
        "assert c.worst_error('acclip 1.0 algorithm', 'cpu', torch.float32, 5) <= c.ULPS\n"
        "assert c.worst_error('gclip momentum', 'cpu', torch.float32, 5) <= c.ULPS\n"
    )
    in_a_new_process(program, OMP_NUM_THREADS="2", NUMBA_NUM_THREADS="2")


def one(**options):
    return [torch.nn.Parameter(torch.ones(2, **options))]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: GClip(one(dtype=torch.bfloat16), 0.1, 1.0, fused=True), "a parameter has"),
        (lambda: CClip(one(), 0.1, [torch.ones(2)], fused=True), "tau is not a number"),
        (
            lambda: ACClip([torch.nn.Parameter(torch.ones(4)[::2])], fused=True),
            "has holes in memory",
        ),
        (lambda: GClip(one(dtype=torch.complex64), 0.1, 1.0, fused=True), "is complex"),
        (lambda: StochasticINGD(one(device="meta"), fused=True), "no kernels for the device"),
    ],
)
def test_fused_true_says_why_it_cannot_be(make, text):
    optimizer = make()
    p = optimizer.param_groups[0]["params"][0]
    p.grad = torch.ones_like(p)
    if type(optimizer).__name__ == "StochasticINGD":
        optimizer.param_groups[0]["fused"] = None
        optimizer.step()
        optimizer.param_groups[0]["fused"] = True
    with pytest.raises(RuleError, match=rf"fused cannot be True here: .*{text}"):
        optimizer.step()


def test_without_numba_and_triton_everything_works():
    program = (
        "import sys; sys.modules['numba'] = None; sys.modules['triton'] = None\n"
        "import torch; from mindgap.optim import CClip, GClip\n"
        "from mindgap.rules.fused import cpu, cuda\n"
        "assert cpu.unavailable() and cuda.unavailable()\n"
        "p = torch.nn.Parameter(torch.ones(3)); p.grad = torch.ones(3)\n"
        "for o in (CClip([p], 0.1, 1.0), GClip([p], 0.1, 1.0)): o.step()\n"
        "assert float(p.detach()[0]) < 1\n"
        "try: GClip([p], 0.1, 1.0, fused=True).step()\n"
        "except ValueError as e: assert 'numba' in str(e), e\n"
        "else: raise SystemExit('no error')\n"
    )
    in_a_new_process(program)


@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the kernel does not reset memory peaks"
)
def test_no_form_takes_more_than_64_mib_beside_its_tensors():
    """In a process of its own. A float32 temporary of this parameter's size would be 80 MiB."""
    program = (
        "import sys, torch; sys.path.insert(0, 'benchmarks'); from optim import OURS, "
        "resident_peak\n"
        "p = torch.nn.Parameter(torch.zeros(20 * 2**20)); p.grad = torch.ones_like(p)\n"
        "control = resident_peak(lambda: (p.detach() + 1).sum())\n"
        "assert control > 64, control\n"
        "for name in ('ACClip', 'CClip', 'GClip momentum', 'StochasticINGD'):\n"
        "    make = OURS[name][0]\n"
        "    for options in ({'foreach': True}, {'foreach': False}, {'fused': None}):\n"
        "        optimizer = make([p], **options); optimizer.step(); optimizer.step()\n"
        "        extra = resident_peak(optimizer.step)\n"
        "        assert extra <= 64, (name, options, extra)\n"
    )
    in_a_new_process(program)


@needs_numba
def test_tables_are_rebuilt_only_when_a_tensor_moved():
    p = torch.nn.Parameter(torch.ones(10))
    p.grad = torch.ones(10)
    optimizer = ACClip([p], fused=True)
    optimizer.step()
    plan = optimizer._fused._plans[0][1]
    rows = plan.addresses(("param", "grad", "momentum", "moment"))
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()
    assert optimizer._fused._plans[0][1] is plan
    assert plan.addresses(("param", "grad", "momentum", "moment")) is rows
    p.grad = torch.ones(10)
    optimizer.step()
    assert optimizer._fused._plans[0][1] is plan
    assert plan.addresses(("param", "grad", "momentum", "moment")) is not rows


def test_what_a_device_counts_moves_the_numbers_of_the_host_and_does_not_replace_them():
    # A step in another form came after the fused ones: state_dict() once set the number of the step
    # back by one.
    memory = SimpleNamespace(
        gradient_counts=torch.tensor([4.0, 3.0], dtype=torch.float64),
        host_gradient_counts=torch.tensor([5.0, 4.0]),
        counts_steps=True,
        device_step=torch.tensor(7),
        host_step=5,
    )
    plan = SimpleNamespace(engine_data={"cuda": memory}, steps=torch.tensor([6.0, 5.0]))
    assert cuda_rules.follow(plan) == 2
    assert plan.steps.tolist() == [5.0, 4.0]
    assert cuda_rules.follow(plan) == 0
    assert plan.steps.tolist() == [5.0, 4.0]


def test_launches_are_made_again_only_where_all_groups_count_as_their_device_does():
    # The numbers of the first group once went up twice where those of the second had been changed.
    def job(seen, on_device):
        memory = SimpleNamespace(
            gradient_counts=torch.tensor([on_device], dtype=torch.float64),
            host_gradient_counts=torch.tensor([on_device]),
            counts_steps=False,
            host_step=3,
        )
        plan = SimpleNamespace(engine_data={"cuda": memory}, steps=torch.tensor([seen]))
        return SimpleNamespace(plan=plan, k=4)

    jobs = [job(3.0, 3.0), job(9.0, 3.0)]
    assert not cuda_rules.counted(jobs)
    assert [job.plan.steps.item() for job in jobs] == [3.0, 9.0]
    assert cuda_rules.counted(jobs[:1])
    assert jobs[0].plan.steps.item() == 4.0
