"""Our AdamW and SGD in the place of torch's: the same arguments, checkpoints, compiled steps, and
what they say of themselves.
"""

from __future__ import annotations

import copy
import inspect
import io

import numpy as np
import pytest
import torch
from cases.optimizer_loop import assert_same, drive, start, values
from cases.optimizers import CASES, generic, own

from mindgap.base.check import RuleError, fail, one_of
from mindgap.optim import INGD, OPTIMIZERS, SGD, ACClip, AdamW, CClip, StochasticINGD
from mindgap.optim.report import Tally, clipped_before

PAIRS = {"AdamW": (AdamW, torch.optim.AdamW), "SGD": (SGD, torch.optim.SGD)}


def grads(params, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    for p in params:
        p.grad = torch.tensor(scale * rng.normal(size=p.shape), dtype=p.dtype)


# -- arguments (13)


@pytest.mark.parametrize("name", PAIRS)
def test_arguments_are_torchs_in_torchs_order(name):
    ours, theirs = (inspect.signature(cls.__init__).parameters for cls in PAIRS[name])
    kinds = inspect.Parameter
    positional = [n for n, p in theirs.items() if p.kind is kinds.POSITIONAL_OR_KEYWORD]
    assert [n for n, p in ours.items() if p.kind is kinds.POSITIONAL_OR_KEYWORD] == positional
    defaults = {n: p.default for n, p in theirs.items() if p.default is not kinds.empty}
    PAIRS[name][0](start(), **defaults)
    for parameter in ("lr", *positional[3:]):
        assert ours[parameter].default == theirs[parameter].default


def test_lr_is_the_second_argument_of_every_optimizer():
    for entry in OPTIMIZERS.values():
        assert list(inspect.signature(entry.load().__init__).parameters)[2] == "lr", entry.name
    assert StochasticINGD(start(), 10.0).param_groups[0]["lr"] == 10.0
    assert INGD(start(), 0.1, 0.2, 1.0).param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("how", ["argument", "group", "state_dict"])
def test_differentiable_is_refused_by_name(how):
    for cls, torchs in PAIRS.values():
        saved = torchs(start(), lr=0.1, differentiable=True).state_dict()
        call = {
            "argument": lambda cls=cls: cls(start(), differentiable=True),
            "group": lambda cls=cls: cls([{"params": start(), "differentiable": True}]),
            "state_dict": lambda cls=cls, saved=saved: cls(start()).load_state_dict(saved),
        }[how]
        with pytest.raises(RuleError, match=r"differentiable must be False: .*, got True"):
            call()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("form", [{}, {"foreach": True}, {"foreach": False}])
def test_settings_may_be_tensors_and_are_followed(form, dtype):
    def tensor(value):
        return torch.tensor(value, dtype=dtype)

    for make in (
        lambda p, n: AdamW(p, 0.1, (n(0.5), n(0.75)), n(0.25), n(0.125), clip=1.0, **form),
        lambda p, n: SGD(p, 0.1, n(0.5), n(0.25), n(0.125), **form),
    ):
        plain, tensors = start(), start()
        numbers = {}
        first = make(plain, lambda x: x)
        second = make(tensors, lambda x, numbers=numbers: numbers.setdefault(x, tensor(x)))
        for k in range(6):
            if k == 3:
                first.param_groups[0]["weight_decay"] = 0.5
                numbers[0.125].fill_(0.5)
            grads(plain, k)
            grads(tensors, k)
            first.step()
            second.step()
        assert_same(plain, tensors)


def test_tensors_with_more_elements_are_refused():
    two = torch.ones(2)
    for name, make in {
        "betas[0]": lambda: AdamW(start(), betas=(two, 0.9)),
        "eps": lambda: AdamW(start(), eps=two),
        "weight_decay": lambda: SGD(start(), weight_decay=two),
    }.items():
        with pytest.raises(RuleError) as error:
            make()
        assert (
            str(error.value) == f"{name} must have one real element when it is a tensor, got (2,)"
        )


@pytest.mark.parametrize("form", [{}, {"foreach": True}, {"foreach": False}])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_amsgrad_is_torchs(form, clip):
    ours, theirs = start(), start()
    mine = AdamW(ours, 0.05, (0.8, 0.9), 1e-6, 0.1, True, clip=clip, **form)
    pair = torch.optim.AdamW(theirs, 0.05, (0.8, 0.9), 1e-6, 0.1, True)
    for k in range(30):
        grads(ours, k, scale=10.0 if k == 5 else 1.0)
        grads(theirs, k, scale=10.0 if k == 5 else 1.0)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(theirs, clip)
        mine.step()
        pair.step()
        if k == 15:
            packed = copy.deepcopy(pair.state_dict())
            pair.load_state_dict(copy.deepcopy(mine.state_dict()))
            mine.load_state_dict(packed)
        assert_same(ours, theirs, rtol=1e-10, atol=1e-12)


def test_capturable_means_the_fused_form_or_an_error():
    for form in ({"foreach": True}, {"foreach": False}, {"fused": False}):
        with pytest.raises(RuleError, match="capturable must be False where the fused form is not"):
            AdamW(start(), capturable=True, **form)
    params = start(torch.bfloat16)
    optimizer = AdamW(params, capturable=True)
    grads(params)
    with pytest.raises(RuleError, match="capturable cannot be True here: the CPU kernels take"):
        optimizer.step()


# -- checkpoints (8, 14)


def trained(make, dtype=torch.float64, steps=3):
    params = start(dtype)
    optimizer = make(params)
    for k in range(steps):
        grads(params, k)
        optimizer.step()
    return params, optimizer


def test_checkpoints_of_other_algorithms_are_refused_and_change_nothing():
    optim = torch.optim
    others = {
        "its weight decay is coupled": lambda p: optim.Adam(p, 0.1, weight_decay=0.1),
        "the settings of NAdam or RAdam": lambda p: optim.RAdam(p, 0.1),
        "states of another optimizer, got ['mu_product']": lambda p: optim.NAdam(p, 0.1),
        "states of another optimizer, got ['exp_inf']": lambda p: optim.Adamax(p, 0.1),
        "states of another optimizer, got ['momentum_buffer']": lambda p: optim.SGD(p, 0.1, 0.9),
        "states of another optimizer, got ['moment', 'momentum']": ACClip,
    }
    for text, make in others.items():
        saved = trained(make)[1].state_dict()
        optimizer = trained(AdamW)[1]
        before = copy.deepcopy(optimizer.state_dict())
        with pytest.raises(RuleError) as error:
            optimizer.load_state_dict(saved)
        assert text in str(error.value)
        after = optimizer.state_dict()
        assert str(after) == str(before)
    with pytest.raises(RuleError, match="must be of SGD: it has states of another optimizer"):
        SGD(start()).load_state_dict(trained(torch.optim.AdamW)[1].state_dict())


def test_a_checkpoint_of_adam_without_decay_goes_on_as_adam():
    params, theirs = trained(lambda p: torch.optim.Adam(p, 0.1))
    ours = [torch.nn.Parameter(p.detach().clone()) for p in params]
    mine = AdamW(ours, 0.1, weight_decay=0.0, clip=None)
    mine.load_state_dict(copy.deepcopy(theirs.state_dict()))
    assert "decoupled_weight_decay" not in mine.param_groups[0]
    for k in range(5):
        for ps, optimizer in ((ours, mine), (params, theirs)):
            grads(ps, k + 10)
            optimizer.step()
    assert_same(ours, params, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", own("hooks"))
def test_what_hooks_add_to_a_checkpoint_stays(case):
    params = start()
    optimizer = case.make(params)
    drive(case, optimizer, params, 2)
    saved = optimizer.state_dict()
    del saved["param_groups"][0]["maximize"]
    again = case.make(start())

    def change(_, given):
        groups = [{**group, "lr": 0.125, "maximize": True} for group in given["param_groups"]]
        return {**given, "param_groups": groups}

    def note(opt):
        opt.param_groups[0]["seen"] = True

    again.register_load_state_dict_pre_hook(change)
    again.register_load_state_dict_post_hook(note)
    again.load_state_dict(saved)
    group = again.param_groups[0]
    assert (group["lr"], group["maximize"], group["seen"]) == (0.125, True, True)


@pytest.mark.parametrize(("case", "changes"), generic("report_goes_on"))
def test_the_report_goes_on_after_resuming(case, changes):
    if not case.ours:
        pytest.skip("torch's optimizers have no report")
    params = start()
    optimizer = case.make(params, **changes)
    drive(case, optimizer, params, 30)
    file = io.BytesIO()
    torch.save({"model": values(params), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = [torch.nn.Parameter(v) for v in saved["model"]]
    again = case.make(resumed, **changes)
    again.load_state_dict(saved["optimizer"])
    assert again.report() == optimizer.report()
    assert "report" not in again.param_groups[0]
    drive(case, optimizer, params, 10)
    drive(case, again, resumed, 10)
    mine, whole = again.report(), optimizer.report()
    assert (mine.steps, mine.skipped, mine.spikes) == (whole.steps, whole.skipped, whole.spikes)
    assert mine.clipped == pytest.approx(whole.clipped, rel=1e-12)
    assert mine.norm_quantiles == pytest.approx(whole.norm_quantiles, rel=1e-12)


def test_spikes_and_skips_are_kept_in_a_checkpoint():
    params = start()
    optimizer = AdamW(params, spike_guard="skip")
    for k in range(40):
        grads(params, k, scale=1e6 if k in (30, 35) else 1.0)
        optimizer.step()
    again = AdamW(start(), spike_guard="skip")
    again.load_state_dict(optimizer.state_dict())
    report = again.report()
    assert [spike.step for spike in report.spikes] == [31, 36]
    assert report.spikes == optimizer.report().spikes
    assert report.skipped == 2
    assert again.report(reset=True).steps == 40
    assert again.report().steps == 0


@pytest.mark.parametrize("bad", [torch.zeros(3), torch.zeros(0), "text", None])
def test_a_damaged_report_in_a_checkpoint_starts_a_new_one(bad):
    saved = trained(AdamW)[1].state_dict()
    saved["param_groups"][0]["report"] = bad
    again = AdamW(start())
    again.load_state_dict(saved)
    assert again.report().steps == 0


# -- steps (14)


COMPILED = {
    "adamw": {},
    "sgd": {"momentum": 0.9},
    "gclip": {"beta": 0.9, "tau": "auto"},
    "cclip": {"beta": 0.5, "tau": "auto"},
    "acclip": {"form": "second_moment"},
    "normalized_sgd": {"beta": 0.9},
    "stochastic_ingd": {},
}


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_step_with_a_scheduler_compiles_a_few_graphs(name):
    """As many after 14 learning rates as after 5; torch's own AdamW and SGD need two."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    params, counter, seen = start(), CompileCounter(), []
    optimizer = CASES[name].make(params, **COMPILED[name])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    step = torch.compile(optimizer.step, backend=counter)
    for k in range(14):
        grads(params, k)
        step()
        schedule.step()
        seen.append(counter.frame_count)
    torch._dynamo.reset()
    assert seen[-1] == seen[4], seen
    assert seen[-1] <= {"adamw": 2, "sgd": 2}.get(name, 6)


@pytest.mark.parametrize("form", [{}, {"foreach": True}])
@pytest.mark.parametrize("case", own("raise"))
def test_a_refused_step_leaves_no_states_behind(case, form):
    params = start()
    optimizer = case.make(params, nonfinite="raise", **form)
    before = str(optimizer.state_dict()["state"])

    def closure():
        grads(params)
        params[0].grad[0, 0] = torch.nan
        return torch.zeros(())

    closure()
    for _ in range(2):
        with pytest.raises(RuleError, match="parameter 0 of group 0"):
            optimizer.step(closure if case.closure else None)
        assert str(optimizer.state_dict()["state"]) == before
    drive(case, optimizer, params, 2)
    fresh = start()
    drive(case, case.make(fresh, **form), fresh, 2)
    assert_same(params, fresh)


def test_a_refused_step_leaves_older_states_as_they_were():
    params = start()
    optimizer = AdamW(params, nonfinite="raise")
    for p in params[:2]:
        p.grad = torch.ones_like(p)
    optimizer.step()
    before = str(optimizer.state_dict()["state"])
    params[2].grad = torch.full_like(params[2], torch.inf)
    with pytest.raises(RuleError, match="parameter 2 of group 0"):
        optimizer.step()
    assert str(optimizer.state_dict()["state"]) == before
    assert params[2] not in optimizer.state


# -- what they say (14, 15)


def test_repr_shows_the_settings_and_no_norms():
    optimizer = trained(lambda p: AdamW(p, nonfinite="skip", spike_guard="clip"), steps=30)[1]
    text = repr(optimizer)
    for line in (
        "clip: auto",
        "nonfinite: skip",
        "spike_guard: clip",
        "amsgrad: False",
        "lr: 0.001",
    ):
        assert line in text, text
    assert "tensor(" not in text
    assert "norms" not in text
    assert len(text.splitlines()) < 30
    for case in CASES.values():
        if case.ours:
            assert "nonfinite: propagate" in repr(case.make(start()))


def test_repr_names_the_arguments():
    for case, line in (("normalized_sgd", "normalize: gradient"), ("gclip", "clip: gradient")):
        assert f"    {line}\n" in repr(CASES[case].make(start()))


def test_gradients_clipped_before_the_optimizer_are_noticed():
    params = start()
    optimizer = AdamW(params)
    for k in range(40):
        grads(params, k, scale=0.2 + (k % 5))
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
    (note,) = optimizer.report().notes
    assert note.startswith("Something clips the gradients at 1 before this optimizer: ")
    assert "max_grad_norm=0" in note
    plain = start()
    other = AdamW(plain)
    for k in range(40):
        grads(plain, k, scale=0.2 + (k % 5))
        other.step()
    assert other.report().notes == ()


def test_how_often_clipping_before_is_noticed():
    """Known answers: 400 runs with log-normal norms clipped at a threshold, 400 without; and slow
    decay from just such a number, where the largest norms differ by little.
    """
    rng = np.random.default_rng(0)
    right = wrong = 0
    for _ in range(400):
        n, level = int(rng.integers(8, 129)), float(rng.choice([0.1, 0.5, 1.0, 5.0]))
        norms = level * np.exp(rng.normal(rng.uniform(-1.0, 1.0), rng.uniform(0.3, 1.5), size=n))
        clipped = norms * np.minimum(level / (norms + 1e-6), 1.0)
        if (norms > level).sum() >= max(3, 0.05 * n):
            right += bool(clipped_before(clipped)) - 1
        wrong += bool(clipped_before(norms)) + bool(clipped_before(np.minimum(norms, norms.max())))
    assert right == 0
    assert wrong == 0
    assert clipped_before(1.0 * 0.999 ** np.arange(128)) == ()
    assert clipped_before(np.zeros(0)) == ()


# -- messages and averages (20)


class Unprintable:
    def __repr__(self):
        raise ArithmeticError("no")

    __str__ = __repr__


def test_a_value_that_cannot_be_printed_is_still_refused():
    with pytest.raises(RuleError, match="lr must be positive, got an object of Unprintable"):
        fail("lr", "must be positive", Unprintable())
    with pytest.raises(RuleError, match="scale must be one of 'a', 'b', got an object of Unprint"):
        one_of("scale", Unprintable(), ("a", "b"))
    with pytest.raises(RuleError, match="clip must be a number, got an object of Unprintable"):
        AdamW(start(), clip=Unprintable())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            (torch.ones(2), torch.ones(3), 1),
            "current must have the shape of averaged, (2,), got (3",
        ),
        ((torch.ones(2), torch.ones(2), -2), "count must be a whole number of at least 0, got -2"),
        (
            (torch.ones(2), torch.ones(2), torch.ones(2)),
            "count must have one element when it is a tensor, got (2,)",
        ),
        (
            (torch.ones(2), torch.ones(2), torch.tensor(-2)),
            "count must be a whole number of at least 0, got -2",
        ),
    ],
)
def test_bad_arguments_of_the_average(arguments, text):
    from mindgap.optim import k_weighted_avg_fn

    with pytest.raises(RuleError) as error:
        k_weighted_avg_fn(*arguments)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"avg_fn": len}, "avg_fn must not be given: the average is k-weighted, got <built-in"),
        ({"multi_avg_fn": len}, "multi_avg_fn must not be given: the average is k-weighted, got <"),
        (
            {"typo": 1},
            "options must be arguments of AveragedModel (device, use_buffers), got 'typo'",
        ),
        ({"device": "nowhere"}, "device must be one of torch's, got 'nowhere'"),
    ],
)
def test_bad_options_of_the_averaged_model(options, text):
    from mindgap.optim import k_weighted_average

    with pytest.raises(RuleError) as error:
        k_weighted_average(torch.nn.Linear(1, 1), **options)
    assert text in str(error.value)
    with pytest.raises(RuleError, match=r"model must be a torch\.nn\.Module, got 3"):
        k_weighted_average(3)


# -- faults that the tests once did not notice (22)


def test_second_moment_under_compile_corrects_by_the_gradients_before():
    """k as a tensor, as torch.compile has it: v/(1−β₂^(k−1)), and g² at k = 1."""
    from mindgap.optim.optimizers.acclip import _corrected_before

    v, g = [torch.tensor([2.0, 3.0])], [torch.tensor([5.0, 7.0])]
    for k in (1, 2, 3, 7):
        plain, tensor = (
            _corrected_before(k, v, g, 0.9),
            _corrected_before(torch.tensor(float(k)), v, g, 0.9),
        )
        expected = g[0].square() if k == 1 else v[0] / (1 - 0.9 ** (k - 1))
        torch.testing.assert_close(plain[0], expected)
        torch.testing.assert_close(tensor[0], expected)


def test_a_report_keeps_the_last_128_norms_of_host_and_device():
    tally = Tally()
    tally.norms.extend(float(k) for k in range(1, 101))
    tally.device_norms = torch.cat([torch.zeros(28), torch.arange(101.0, 201.0)])
    report = tally.report()
    assert report.median_norm == pytest.approx(np.median(np.arange(73.0, 201.0)))
    assert report.norm_quantiles[1.0] == 200.0


def test_cclip_reports_none_before_it_has_counted():
    """It clips: a share of 0 may only be said of a rule that does not."""
    params = start()
    optimizer = CClip(params, 0.1, 0.5)
    optimizer.tally.steps = 1
    assert optimizer.report().clipped is None


def test_windowed_thresholds_over_two_dtypes_are_refused_on_cuda_only():
    from mindgap.optim.fused import two_windows
    from mindgap.rules.fused.plan import FusedRecord

    windowed, bare = FusedRecord(window=torch.zeros(128)), FusedRecord()
    assert not two_windows([(0, "cuda")], [windowed])
    assert two_windows([(0, "cuda"), (0, "cuda")], [windowed])
    assert not two_windows([(0, "cuda"), (1, "cuda")], [windowed, windowed])
    assert not two_windows([(0, "cpu"), (0, "cpu")], [windowed])
    assert not two_windows([(0, "cuda"), (0, "cuda")], [bare])
