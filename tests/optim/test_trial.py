"""Kernels are tried before their first use; here the CPU's, broken on purpose."""

from __future__ import annotations

import warnings

import pytest
import torch

from mindgap.base.check import RuleError
from mindgap.optim import ACClip, AdamW, CClip, GClip, StochasticINGD, fused, sides, trial

MAKES = {
    "adamw": lambda p, **o: AdamW(p, clip=1.0, **o),
    "acclip": ACClip,
    "adamw noise": lambda p, **o: AdamW(p, clip="noise", **o),
    "cclip": lambda p, **o: CClip(p, 0.1, 0.5, **o),
    "gclip": lambda p, **o: GClip(p, torch.tensor(0.0), "auto", beta=0.9, **o),
    "stochastic_ingd": StochasticINGD,
}


@pytest.fixture
def tries(monkeypatch):
    """Try the CPU's kernels as those of a GPU are tried; returns how often that happened."""
    made, compare = [], trial._difference
    monkeypatch.setattr(trial, "TRIED", {"cpu"})
    monkeypatch.setattr(trial, "_FOUND", {})
    monkeypatch.setattr(trial, "_difference", lambda *a: made.append(a) or compare(*a))
    return made


def stepped(make, **form):
    p = torch.nn.Parameter(torch.linspace(-1, 1, 9))
    optimizer = make([p], **form)
    for _ in range(3):
        p.grad = p.detach() + 2
        optimizer.step()
    return optimizer, p.detach()


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_right_kernels_are_tried_once_and_used(tries, make):
    before = torch.random.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = stepped(make)[0], stepped(make)[0]
    assert first._fused.used
    assert second._fused.used
    assert len(tries) == 1
    assert first.report().steps == 3
    assert torch.equal(before, torch.random.get_rng_state())


def wrong(jobs, policy):
    outcome = RUN(jobs, policy)
    for job in jobs:
        job.plan.owners[0].data.mul_(1.01)
    return outcome


def failing(jobs, policy):
    raise RuntimeError("no kernel image is available")


RUN = fused._cpu_run


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize("broken", [wrong, failing])
def test_broken_kernels_are_not_used(tries, make, broken, monkeypatch):
    monkeypatch.setattr(fused, "_cpu_run", broken)
    with pytest.warns(UserWarning, match=r"foreach form is used for .* on cpu: .* with "):
        optimizer, p = stepped(make)
    with warnings.catch_warnings():  # it is said once
        warnings.simplefilter("error")
        stepped(make)
    assert not optimizer._fused.used
    assert torch.equal(p, stepped(make, foreach=True)[1])
    with pytest.raises(RuleError, match="fused cannot be True here: the fused kernels"):
        stepped(make, fused=True)


def noted(monkeypatch):
    """The judge's numbers after every step of every trial, as pairs (fused, numbers)."""
    seen, plain_step = [], AdamW._plain_step

    def step(self, closure=None):
        plain_step(self, closure)
        if self._fused.trusting:
            head = self.param_groups[0]
            seen.append((bool(head["fused"]), head["evidence"].tolist()))

    monkeypatch.setattr(AdamW, "_plain_step", step)
    return seen


@pytest.mark.parametrize("guard", [None, "clip", "skip"])
def test_the_trial_reaches_what_is_judged(tries, monkeypatch, guard):
    seen = noted(monkeypatch)
    stepped(lambda p, **o: AdamW(p, clip="noise", spike_guard=guard, **o))
    assert [fused for fused, _ in seen] == [True] * 4 + [False] * 4
    for rows in (seen[:4], seen[4:]):
        evidence, since, _, judged, size, _, _ = zip(*(numbers for _, numbers in rows))
        assert judged == (0, 1, 2, 2)
        assert since[1:] == (0, 0, 1)
        assert evidence[1] > sides.NOISE >= evidence[2] == evidence[3]  # off, on, on
        assert size[1] > size[0] > 0


#: What is done wrongly -> of a judge's function (norm -> factor, whether the rule is on) the wrong
#: one. The judge is wrong about large gradients only, or where the rule is on.
WRONG_JUDGES = {
    "a judged gradient is handed on a tenth too large": lambda judge: (
        lambda norm: (lambda factor, on: (factor * (1.1 if factor < 1 else 1.0), on))(*judge(norm))
    ),
    "the rule is never on": lambda judge: lambda norm: (judge(norm)[0], False),
    "nothing is ever large": lambda judge: lambda norm: (judge(norm), (1.0, False))[1],
}


@pytest.mark.parametrize("name", WRONG_JUDGES)
def test_a_fault_in_what_is_judged_is_found(tries, monkeypatch, name):
    run = fused._cpu_run

    def wrong_run(jobs, policy):
        return run(jobs, policy._replace(judge=WRONG_JUDGES[name](policy.judge)))

    monkeypatch.setattr(fused, "_cpu_run", wrong_run)
    with pytest.warns(UserWarning, match="the fused kernels differ from it by a share of"):
        optimizer, _ = stepped(MAKES["adamw noise"])
    assert not optimizer._fused.used
