"""AdamW(clip="noise"): against a transcription, the research code, torch's AdamW and itself."""

from __future__ import annotations

import copy
import importlib.util
import math
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from references.noise_clip import NoiseAdamW

from mindgap.base.check import RuleError
from mindgap.base.tensors import robust_norm
from mindgap.optim import AdamW, sides as rule
from mindgap.optim.fused import _step_settings
from mindgap.rules.fused.plan import Policy

SIZES = [(300,), (7,), (), (0,), (13, 10)]
#: What a form needs of the constructor.
FORMS = {"foreach": {"foreach": True}, "loop": {"foreach": False}, "fused": {"fused": True}}
EVIDENCE, SINCE, CLARITY, JUDGED, SIZE, SEEN, RATIO = range(7)


def gradients(steps, kind, dtype=torch.float64, seed=0, sizes=SIZES):
    """Per step one normal gradient per parameter; from step 21 on, a tenth of them are large.

    ``kind`` says where these point: to "both" sides of one direction, to "one" side, "none" for
    no large ones, "turn" for both sides and then one.
    """
    draw = torch.Generator().manual_seed(seed)
    side = [torch.randn(s, generator=draw, dtype=torch.float64) for s in sizes]
    rows = []
    for k in range(1, steps + 1):
        large = kind != "none" and k > 20 and float(torch.rand((), generator=draw)) < 0.1
        sign = 1.0 if float(torch.rand((), generator=draw)) < 0.5 else -1.0
        sign = 1.0 if kind == "one" or (kind == "turn" and k > steps / 2) else sign
        height = 30.0 * (1 + float(torch.rand((), generator=draw))) * sign if large else 0.0
        rows.append(
            [
                (torch.randn(s, generator=draw, dtype=torch.float64) + height * d).to(dtype)
                for s, d in zip(sizes, side)
            ]
        )
    return rows


def parameters(dtype=torch.float64, sizes=SIZES):
    draw = torch.Generator().manual_seed(7)
    return [
        torch.nn.Parameter(torch.randn(s, generator=draw, dtype=torch.float64).to(dtype))
        for s in sizes
    ]


def steps_of(optimizer, params, rows, note=None):
    """Make one step per row. None in a row is a parameter without a gradient."""
    for row in rows:
        for p, g in zip(params, row):
            p.grad = None if g is None else g.clone()
        optimizer.step()
        if note is not None:
            note()


def flat(params):
    return torch.cat([p.detach().double().reshape(-1) for p in params])


def apart(first, second):
    """The largest difference, as a share of the largest parameter."""
    return float((flat(first) - flat(second)).abs().max() / flat(second).abs().max())


def on_of(optimizer):
    numbers = optimizer.param_groups[0]["evidence"]
    return bool(numbers[EVIDENCE] <= rule.NOISE) and bool(numbers[SINCE] <= rule.STAY)


def judge_of(optimizer):
    head = optimizer.param_groups[0]
    return head["evidence"], head["norms"], head.get("sides", torch.zeros(0))


# -- against other code
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_it_equals_its_transcription_in_plain_numbers(form):
    params = parameters()
    reference = NoiseAdamW([p.detach().reshape(-1).tolist() for p in params], 0.01, decay=0.1)
    optimizer = AdamW(params, 0.01, weight_decay=0.1, clip="noise", **FORMS[form])
    seen = set()
    for k, row in enumerate(gradients(350, "turn")):
        if 100 <= k < 130:  # a parameter without gradients, in large steps too
            row[1] = None
        steps_of(optimizer, params, [row])
        reference.step([None if g is None else g.reshape(-1).tolist() for g in row])
        assert on_of(optimizer) == reference.on, k
        seen.add((reference.on, reference.factor == 1.0))
        expected = [torch.tensor(t, dtype=torch.float64) for t in reference.x]
        assert apart(params, expected) < 1e-9, k
    assert len(seen) == 3  # on; off; and clipped, because there was nothing to judge it by
    numbers = optimizer.param_groups[0]["evidence"]
    assert float(numbers[JUDGED]) == reference.judged > 20
    assert float(numbers[EVIDENCE]) == pytest.approx(reference.evidence, rel=1e-9)


def research():
    """The module benchmarks/clipping_rules.py."""
    path = Path(__file__).parents[2] / "benchmarks" / "clipping_rules.py"
    spec = importlib.util.spec_from_file_location("clipping_rules", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("clipping_rules", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["both", "one", "turn"])
def test_it_equals_the_rule_that_was_judged(kind):
    rules, sizes = research(), [(300,), (7,), (130,)]
    counts = [s[0] for s in sizes]
    candidate = rules.Candidate("", rules.weighed(power=2.0, growth=2.0), form="either")
    params = parameters(sizes=sizes)
    x, ons = flat(params)[None], 0.0
    optimizer = AdamW(params, 0.01, weight_decay=0.0, clip="noise", foreach=True)
    for k, row in enumerate(gradients(400, kind, sizes=sizes), start=1):
        steps_of(optimizer, params, [row])
        # The research code's evidence is rounded to float32; no decision here depends on it.
        x = x - 0.01 * candidate.update(torch.cat(row)[None], k, counts)
        ons += float(candidate.state["now"]) if k > 1 else 0.0
        assert apart(params, [x]) < 1e-9, k
    assert ons > 30 if kind != "one" else ons < 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_without_large_gradients_it_is_torchs_adamw_bit_for_bit(dtype):
    first, second, third = (parameters(dtype) for _ in range(3))
    rows = gradients(150, "none", dtype)
    options = {"lr": 0.01, "weight_decay": 0.1}
    steps_of(AdamW(first, clip="noise", foreach=True, **options), first, rows)
    steps_of(AdamW(second, clip=None, foreach=True, **options), second, rows)
    steps_of(torch.optim.AdamW(third, foreach=True, **options), third, rows)
    assert torch.equal(flat(first), flat(second))
    # The same formula as torch's, in another order: as close as clip=None is.
    assert apart(first, third) < (1e-6 if dtype == torch.float32 else 1e-14)


def test_without_large_gradients_the_fused_form_is_that_without_clip():
    first, second = parameters(torch.float32), parameters(torch.float32)
    rows = gradients(150, "none", torch.float32)
    steps_of(AdamW(first, 0.01, clip="noise", fused=True), first, rows)
    steps_of(AdamW(second, 0.01, clip=None, fused=True), second, rows)
    assert torch.equal(flat(first), flat(second))


@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=["single", "double"]
)
def test_the_forms_agree(dtype, close):
    ends = {}
    for form, options in FORMS.items():
        ends[form] = parameters(dtype)
        # Without weight decay, which rounds every step's parameters to one side.
        optimizer = AdamW(ends[form], 0.001, weight_decay=0.0, clip="noise", **options)
        steps_of(optimizer, ends[form], gradients(300, "turn", dtype))
        assert optimizer._fused.used == (form == "fused")
    assert apart(ends["fused"], ends["foreach"]) < close
    assert apart(ends["loop"], ends["foreach"]) < close


def test_the_judge_on_a_device_is_that_on_the_cpu():
    """The tensor form runs here on the CPU, gradient by gradient."""
    params, beside = parameters(), parameters()
    groups, others = ([{"params": ps, "betas": (0.9, 0.99)}] for ps in (params, beside))
    rows = gradients(400, "turn")
    zero = [torch.zeros_like(g) for g in rows[0]]
    rows[60:60] = [zero, [g * 1e-300 for g in rows[0]], [g * 1e200 for g in rows[1]]]
    rows[200] = [g * 1e-60 for g in rows[0]]
    for k, row in enumerate(rows):
        for p, q, g in zip(params, beside, row):
            p.grad, q.grad = g, g
        norm = robust_norm(row)
        norm = norm if k % 50 else torch.tensor(float("inf" if k % 100 else "nan"))
        factor, on = rule.judge_number_(groups, float(norm))
        factor_there, on_there = rule.judge_(others, norm)
        assert on == bool(on_there), k
        assert float(factor_there) == pytest.approx(factor, rel=1e-12, nan_ok=True), k
        for name in ("evidence", "norms"):
            assert torch.allclose(groups[0][name], others[0][name], rtol=1e-12, atol=0), k
    assert torch.allclose(groups[0]["sides"], others[0]["sides"], rtol=1e-12, atol=1e-15)
    assert float(groups[0]["evidence"][JUDGED]) > 20


# -- what it finds
# --------------------------------------------------------------------------------------------------


def test_it_is_on_where_large_gradients_point_to_both_sides_and_off_where_to_one():
    shares = {}
    for kind in ("both", "one", "none"):
        found, params = [], parameters()
        optimizer = AdamW(params, 0.01, clip="noise")
        steps_of(
            optimizer,
            params,
            gradients(600, kind),
            lambda o=optimizer, f=found: f.append(on_of(o)),
        )
        shares[kind] = sum(found[100:]) / 500
    assert shares["both"] > 0.95
    assert shares["one"] == 0.0
    assert shares["none"] == 0.0


def test_it_turns_off_256_steps_after_the_last_large_gradient():
    params = parameters()
    optimizer = AdamW(params, 0.01, clip="noise")
    steps_of(optimizer, params, gradients(300, "both"))
    assert on_of(optimizer)
    since = int(optimizer.param_groups[0]["evidence"][SINCE])
    rows = gradients(rule.STAY - since + 1, "none", seed=3)
    steps_of(optimizer, params, rows[:-1])
    assert on_of(optimizer)
    steps_of(optimizer, params, rows[-1:])
    assert not on_of(optimizer)


def test_the_report_counts_steps_whose_gradient_became_smaller():
    params = parameters()
    optimizer = AdamW(params, 0.01, clip="noise")
    steps_of(optimizer, params, gradients(60, "none"))
    assert optimizer.report().clipped == 0.0
    steps_of(optimizer, params, [[30 * g for g in gradients(1, "none", seed=1)[0]]])
    report = optimizer.report()
    assert report.clipped == pytest.approx(1 / 61)
    assert report.direction_norm == pytest.approx(30 * report.median_norm, rel=0.2)
    for name in ("evidence", "sides", "norms"):
        assert name not in repr(optimizer)
    assert "clip: noise" in repr(optimizer)


# -- what changes nothing
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("power", [-40, 37])
def test_gradients_times_a_power_of_two_change_nothing(form, power):
    ends = []
    for scale in (1.0, 2.0**power):
        params = parameters()
        optimizer = AdamW(params, 0.01, eps=0.0, clip="noise", **FORMS[form])
        steps_of(optimizer, params, [[g * scale for g in row] for row in gradients(250, "turn")])
        ends.append((flat(params), optimizer.param_groups[0]["evidence"][:SIZE]))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("at", [5, 90, 200])
def test_a_resumed_run_is_the_same_bit_for_bit(form, at, tmp_path):
    rows = gradients(260, "turn", torch.float32)
    params = parameters(torch.float32)
    optimizer = AdamW(params, 0.01, clip="noise", **FORMS[form])
    steps_of(optimizer, params, rows[:at])
    torch.save([optimizer.state_dict(), [p.detach() for p in params]], tmp_path / "saved.pt")
    steps_of(optimizer, params, rows[at:])

    state, values = torch.load(tmp_path / "saved.pt", weights_only=True)
    again = [torch.nn.Parameter(v) for v in values]
    resumed = AdamW(again, 0.5, clip="noise", **FORMS[form])
    resumed.load_state_dict(state)
    steps_of(resumed, again, rows[at:])
    assert torch.equal(flat(again), flat(params))
    for mine, theirs in zip(judge_of(resumed), judge_of(optimizer)):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("form", FORMS)
def test_groups_are_judged_together(form):
    """Parameters in three groups move as those in one, also where a group came later."""
    one, three = parameters(), parameters()
    alone = AdamW(one, 0.01, clip="noise", **FORMS[form])
    grouped = AdamW(
        [{"params": three[:2]}, {"params": three[2:4]}], 0.01, clip="noise", **FORMS[form]
    )
    rows = gradients(260, "turn")
    early = [[*row[:4], None] for row in rows[:60]]
    steps_of(alone, one, early)
    steps_of(grouped, three, early)
    grouped.add_param_group({"params": three[4:]})
    steps_of(alone, one, rows[60:])
    steps_of(grouped, three, rows[60:])
    assert apart(three, one) < 1e-12
    assert torch.allclose(judge_of(grouped)[2], judge_of(alone)[2], rtol=1e-12, atol=1e-14)
    assert all("evidence" not in group for group in grouped.param_groups[1:])


def test_a_maximum_is_climbed_as_a_minimum_is_descended():
    down, up = parameters(), parameters()
    rows = gradients(200, "both")
    steps_of(AdamW(down, 0.01, clip="noise"), down, rows)
    opposite = [[-g for g in row] for row in rows]
    steps_of(AdamW(up, 0.01, clip="noise", maximize=True), up, opposite)
    assert torch.equal(flat(down), flat(up))


def test_torch_compile_makes_the_same_steps():
    plain, compiled = parameters(torch.float32), parameters(torch.float32)
    rows = gradients(120, "both", torch.float32)
    first = AdamW(plain, 0.01, clip="noise", foreach=True)
    second = AdamW(compiled, 0.01, clip="noise", foreach=True)
    step = torch.compile(second.step, backend="aot_eager")
    steps_of(first, plain, rows)
    for row in rows:
        for p, g in zip(compiled, row):
            p.grad = g.clone()
        step()
    assert on_of(first)
    assert apart(compiled, plain) < 1e-6


# -- unusual parameters and gradients
# ----------------------------------------------------------------------------------


def test_complex_parameters_are_pairs_of_real_ones():
    pairs = [(40, 2), (150, 2)]
    real, rows = parameters(sizes=pairs), gradients(200, "turn", sizes=pairs)
    imaginary = [torch.nn.Parameter(torch.view_as_complex(p.detach().clone())) for p in real]
    first, second = AdamW(real, 0.01, clip="noise"), AdamW(imaginary, 0.01, clip="noise")
    steps_of(first, real, rows)
    steps_of(second, imaginary, [[torch.view_as_complex(g) for g in row] for row in rows])
    assert apart([torch.view_as_real(p) for p in imaginary], real) < 1e-12
    assert torch.allclose(judge_of(first)[2], judge_of(second)[2], rtol=1e-12, atol=1e-15)


def test_sixteen_bit_parameters_have_float32_states():
    params = parameters(torch.bfloat16)
    optimizer = AdamW(params, 0.01, clip="noise")
    steps_of(optimizer, params, gradients(200, "both", torch.bfloat16))
    assert on_of(optimizer)
    assert optimizer.state[params[0]]["exp_avg_abs"].dtype == torch.float32
    assert torch.isfinite(flat(params)).all()


@pytest.mark.parametrize("form", FORMS)
def test_the_entries_are_read_in_the_order_of_memory(form):
    """A transposed parameter and one in channels-last order, with gradients in the same order."""
    plain = parameters(sizes=[(20, 9), (3, 4, 5, 6)])
    moved = [
        torch.nn.Parameter(plain[0].detach().t().contiguous().t()),
        torch.nn.Parameter(plain[1].detach().contiguous(memory_format=torch.channels_last)),
    ]
    rows = gradients(260, "turn", sizes=[(20, 9), (3, 4, 5, 6)])
    for params in (plain, moved):
        optimizer = AdamW(params, 0.01, clip="noise", **FORMS[form])
        for row in rows:
            for p, g in zip(params, row):
                p.grad = torch.empty_like(p).copy_(g)
            optimizer.step()
        p, g = params[1], params[1].grad
        in_memory = torch.as_strided(g, (g.numel(),), (1,))
        assert torch.equal(rule.sample(p, g), in_memory[::6])
        assert torch.equal(rule.sample(p, g.contiguous()), in_memory[::6])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_skipped_or_raised(form, bad):
    rows = gradients(200, "both")
    clean, params = parameters(), parameters()
    expected = AdamW(clean, 0.01, clip="noise", **FORMS[form])
    optimizer = AdamW(params, 0.01, clip="noise", nonfinite="skip", **FORMS[form])
    steps_of(expected, clean, rows)
    broken = copy.deepcopy(rows[0])
    broken[0][3] = bad
    steps_of(optimizer, params, [*rows[:100], broken, *rows[100:]])
    assert torch.equal(flat(params), flat(clean))
    assert optimizer.report().skipped == 1
    assert torch.equal(judge_of(optimizer)[0], judge_of(expected)[0])
    raising = AdamW(params, 0.01, clip="noise", nonfinite="raise", **FORMS[form])
    with pytest.raises(RuleError, match="gradients must be finite"):
        steps_of(raising, params, [broken])


def test_a_gradient_that_is_not_finite_does_not_spoil_the_judge():
    """With nonfinite="propagate", where parameters become NaN."""
    params = parameters()
    optimizer = AdamW(params, 0.01, clip="noise")
    rows = gradients(120, "both")
    rows[50][0][3], rows[70][0][3] = float("nan"), float("inf")
    steps_of(optimizer, params, rows)
    for memory in judge_of(optimizer):
        assert torch.isfinite(memory).all()
    assert torch.isnan(params[0]).any()


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_zero_make_steps_of_zero(form):
    params = parameters()
    before = flat(params)
    optimizer = AdamW(params, 0.01, weight_decay=0.0, clip="noise", **FORMS[form])
    steps_of(optimizer, params, [[torch.zeros_like(p) for p in params]] * 20)
    assert torch.equal(flat(params), before)
    steps_of(optimizer, params, gradients(200, "both"))
    assert on_of(optimizer)
    small = [[g * 1e-200 for g in row] for row in gradients(3, "none")]
    steps_of(optimizer, params, small + [[torch.zeros_like(p) for p in params]] * 150)
    assert torch.isfinite(flat(params)).all()


# -- devices and processes
# --------------------------------------------------------------------------------------------


def test_a_step_on_a_device_reads_nothing_back():
    """On the device "meta", where every attempt to read a number is an error."""
    params = [torch.nn.Parameter(torch.zeros(s, device="meta")) for s in SIZES]
    optimizer = AdamW(params, 0.01, clip="noise", nonfinite="propagate")
    for _ in range(3):
        for p in params:
            p.grad = torch.zeros_like(p)
        optimizer.step()
    head = optimizer.param_groups[0]
    assert {head[name].device.type for name in ("evidence", "sides", "norms")} == {"meta"}
    assert optimizer.state[params[0]]["exp_avg_abs"].device.type == "meta"


def test_a_run_moves_to_another_device():
    """From a checkpoint of the CPU; what the judge remembers moves with the parameters."""
    params = parameters()
    optimizer = AdamW(params, 0.01, clip="noise")
    steps_of(optimizer, params, gradients(120, "both"))
    there = [torch.nn.Parameter(torch.zeros_like(p, device="meta")) for p in params]
    moved = AdamW(there, 0.01, clip="noise")
    moved.load_state_dict(optimizer.state_dict())
    for p in there:
        p.grad = torch.zeros_like(p)
    moved.step()
    assert moved.param_groups[0]["sides"].device.type == "meta"


ON_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def on_cuda(params):
    return [torch.nn.Parameter(p.detach().clone().cuda()) for p in params]


def large_ones_and_spikes(steps, dtype=torch.float32):
    """Norms between 0.5 and 2, now and then 8 times as large, to both sides, and a few spikes."""
    rows, draw = gradients(steps, "none", dtype), torch.Generator().manual_seed(5)
    side = [torch.randn(s, generator=draw).to(dtype) for s in SIZES]
    for k, row in enumerate(rows):
        height = 0.0
        if k > 20 and k % 14 == 0:
            height = (60.0 if k % 42 == 0 else 8.0) * (1 if k % 5 < 3 else -1)
        scale = 2.0 ** math.sin(1.3 * k)
        rows[k] = [scale * g + height * d for g, d in zip(row, side)]
    return rows


@pytest.mark.parametrize("guard", ["clip", "skip"])
def test_what_the_spike_guard_takes_is_not_judged(guard):
    ends, rows = {}, large_ones_and_spikes(200, torch.float64)
    for form, options in FORMS.items():
        ends[form] = parameters()
        optimizer = AdamW(
            ends[form], 0.01, weight_decay=0.0, clip="noise", spike_guard=guard, **options
        )
        steps_of(optimizer, ends[form], rows)
        report, numbers = optimizer.report(), optimizer.param_groups[0]["evidence"]
        assert [spike.step for spike in report.spikes] == [43, 85, 127, 169]
        # 13 are large, 4 of them spikes, and before the first there is nothing to judge it by.
        assert float(numbers[JUDGED]) == 13 - 4 - 1
        assert report.skipped == (4 if guard == "skip" else 0)
    assert apart(ends["fused"], ends["foreach"]) < 1e-12
    assert apart(ends["loop"], ends["foreach"]) < 1e-12


@ON_CUDA
@pytest.mark.parametrize("form", ["fused", "foreach"])
@pytest.mark.parametrize("guard", [None, "clip", "skip"])
def test_on_cuda_it_equals_the_cpu(form, guard):
    """Parameters and what the judge remembers, with a parameter that has no gradient for a while
    and one gradient that is NaN."""
    here = parameters(torch.float32)
    there = on_cuda(here)
    rows = large_ones_and_spikes(100 if torch.cuda.get_device_name() == "imitated" else 400)
    options = {"clip": "noise", "spike_guard": guard, "nonfinite": "skip"}
    first = AdamW([{"params": here[:2]}, {"params": here[2:]}], 0.001, **options)
    second = AdamW([{"params": there[:2]}, {"params": there[2:]}], 0.001, **options, **FORMS[form])
    rows[40] = [g * float("nan") for g in rows[40]]
    for k, row in enumerate(rows):
        row = [None if 30 <= k < 50 and i == 1 else g for i, g in enumerate(row)]
        steps_of(first, here, [row])
        steps_of(second, there, [[None if g is None else g.cuda() for g in row]])
        assert second._fused.used == (form == "fused")
        assert apart([p.cpu() for p in there], here) < 2e-5, k
    for mine, theirs in zip(judge_of(second), judge_of(first)):
        assert torch.allclose(mine.cpu(), theirs, rtol=1e-5, atol=1e-6)
    mine, theirs = second.report(), first.report()
    assert (mine.steps, mine.skipped) == (theirs.steps, theirs.skipped)
    assert [spike.step for spike in mine.spikes] == [spike.step for spike in theirs.spikes]
    assert bool(mine.spikes) == (guard is not None)
    assert mine.clipped == pytest.approx(theirs.clipped)
    assert float(judge_of(first)[0][JUDGED]) >= 3


@ON_CUDA
def test_a_step_on_cuda_waits_for_nothing_and_can_be_captured():
    params = on_cuda(parameters(torch.float32))
    optimizer = AdamW(params, 0.01, clip="noise", capturable=True)
    rows = [[g.cuda() for g in row] for row in gradients(30, "both", torch.float32)]
    steps_of(optimizer, params, rows)
    with warnings.catch_warnings():  # torch says once that this mode is a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    twin = on_cuda(params)
    other = AdamW(twin, 0.01, clip="noise")
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for p, q in zip(params, twin):
        p.data.copy_(q.data)
    for k in range(3):
        for p, q in zip(params, twin):
            p.grad.mul_(2.0 + k)
            q.grad = p.grad.clone()
        graph.replay()
        other.step()
        assert apart(params, twin) < 1e-5
    optimizer.state_dict()  # takes over what the device counted
    assert torch.allclose(judge_of(optimizer)[0], judge_of(other)[0], rtol=1e-5)


def test_a_step_is_not_repeated_with_another_memory_of_the_usual_norm():
    """β₂ of the first group counts, although only the second has gradients, and so a job."""
    params = parameters(torch.float32)
    optimizer = AdamW([{"params": params[:1]}, {"params": params[1:]}], 0.01, clip="noise")
    steps_of(optimizer, params, [[None, *row[1:]] for row in gradients(2, "none", torch.float32)])
    fused, groups = optimizer._fused, optimizer.param_groups
    policy = Policy(clip="noise", judged=partial(fused._entries_of, groups))
    before = _step_settings(fused._jobs, policy)
    assert before == _step_settings(fused._jobs, policy)
    groups[0]["betas"] = (0.9, 0.5)
    assert before != _step_settings(fused._jobs, policy)


# -- state dicts
# ------------------------------------------------------------------------------------------------


def other_adamw(kind, params):
    if kind == "torch":
        return torch.optim.AdamW(params, lr=0.01)
    return AdamW(params, 0.01, clip={"auto": "auto", "none": None}[kind])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["torch", "auto", "none"])
def test_dicts_of_other_adamws_load(form, kind):
    rows = gradients(300, "both", torch.float32)
    params = parameters(torch.float32)
    first = other_adamw(kind, params)
    steps_of(first, params, gradients(100, "none", torch.float32))
    again = [torch.nn.Parameter(p.detach().clone()) for p in params]
    second = AdamW(again, 0.01, clip="noise", **FORMS[form])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    # The mean of |g| begins at √v̂: of normal gradients, about 1.25 times what it should be.
    k, a = 100, second.state[again[0]]["exp_avg_abs"] / (1 - 0.99**100)
    assert 1.0 < float(a.mean()) / 0.8 < 1.4, k
    steps_of(second, again, rows)
    assert on_of(second)
    assert torch.isfinite(flat(again)).all()
    back = torch.optim.AdamW([torch.nn.Parameter(p.detach().clone()) for p in again])
    back.load_state_dict(second.state_dict())
    for p in back.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    back.step()


def test_a_dict_with_amsgrad_keeps_its_largest_moment():
    """Without a running mean of |g|: the steps are amsgrad's, with judged gradients."""
    params = parameters()
    saved = torch.optim.AdamW(params, amsgrad=True).state_dict()
    optimizer = AdamW(params, clip="noise")
    optimizer.load_state_dict(saved)
    steps_of(optimizer, params, gradients(150, "both"))
    assert on_of(optimizer)
    assert set(optimizer.state[params[0]]) == {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}


# -- bad values
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["noisy", "Noise", ""])
def test_other_names_are_refused(bad):
    text = "clip must be None, 'auto', 'unit', 'noise' or a positive number, got "
    with pytest.raises(RuleError, match=text + repr(bad)):
        AdamW(parameters(), clip=bad)
