"""Which kernels make a step, from a record: the same on every device."""

from __future__ import annotations

from typing import NamedTuple

import torch

from mindgap.rules.fused.plan import Job


class Pass(NamedTuple):
    """One launch over all tensors of a job."""

    rule: str  # key of ``arithmetic.RULES``
    lists: tuple[str, ...]  # the lists of tensors it walks through, in the rule's order
    #: n after the first two, which are the step size and what weight decay keeps.
    numbers: tuple[float, ...] = ()


class Program(NamedTuple):
    """The passes of a step."""

    #: The pass whose sum gives the norm that the rule uses; None where it uses none.
    first: Pass | None
    step: Pass  # the pass that moves the parameters
    #: how the factor follows from the norm: ``"clip"``, ``"normalize"``, ``"interpolate"``; ""
    #: without a norm.
    kind: str = ""
    rated: bool = False  # whether w[0] of the step is the factor times the step size

    @property
    def rules(self) -> str:
        """Names of the kernels."""
        return self.step.rule if self.first is None else f"{self.first.rule} and {self.step.rule}"


#: The pass that sums the squares of the gradients.
NORM = Pass("norm", ("grad",))


def _weights(job: Job) -> tuple[float, float]:
    """The weights (β, ±(1 − β)) of the old average and of the new gradient; minus to maximize."""
    return float(job["beta"]), job["sign"] * (1.0 - job["beta"])


def scaled(job: Job) -> Program:
    """The passes of GClip (kind "clip") and NormalizedSGD ("normalize"): x ← x − η·c(‖d‖)·d, where
    d is the gradient or the momentum; or the momentum averages c(‖g‖)·g, and x ← x − η·m.
    """
    kind, weights = job["kind"], _weights(job)
    if not job["beta"]:
        return Program(NORM, Pass("scaled", ("param", "grad")), kind, True)
    if job["order"] == "momentum":
        first = Pass("average", ("momentum", "grad"), weights)
        return Program(first, Pass("scaled", ("param", "momentum")), kind, True)
    return Program(NORM, Pass("average_step", ("param", "grad", "momentum"), weights), kind)


def coordinate(job: Job) -> Program:
    """The one pass of CClip: x ← x − η·min{τ/|m|, 1}·m, or m averages the clipped gradient. A
    record with the number ``up`` lets τ follow running medians (``tau="auto"``).
    """
    numbers = (*_weights(job), job["sign"], float(job["level"]))
    lists = ("param", "grad", "momentum") if job["beta"] else ("param", "grad")
    if "up" in job.record.numbers:
        rule = "auto_clamped_average" if job["beta"] else "auto_clamped_step"
        # ∞ is the threshold of an entry whose median is not known yet.
        return Program(
            None, Pass(rule, (*lists, "median"), (*numbers, job["up"], job["down"], float("inf")))
        )
    if not job["beta"]:
        rule = "clamped_step"
    else:
        rule = "clamped_average" if job["order"] == "gradient" else "average_clamped"
    return Program(None, Pass(rule, lists, numbers))


def _moments(job: Job) -> tuple[float, ...]:
    """Numbers of a rule with two averages: β₁, ±(1 − β₁), β₂, 1 − β₂, ε and the largest finite
    number of the arithmetic's dtype.
    """
    largest = torch.finfo(torch.float64 if job.plan.dtype == torch.float64 else torch.float32).max
    return (*_weights(job), float(job["beta2"]), 1.0 - job["beta2"], float(job["eps"]), largest)


def adaptive(job: Job) -> Program:
    """The one pass of ACClip: x ← x − η·min{τ/(|m|+ε), 1}·m ("algorithm"), the same divided by τ +
    ε ("first_moment"), or the form "second_moment". See the rules ``adaptive`` and
    ``second_moment`` of ``arithmetic``.
    """
    lists = ("param", "grad", "momentum", "moment")
    alpha = float(job["alpha"])
    end = "" if job["eps"] else "_zero"  # with ε = 0 the kernel must look for 0/0
    if job["form"] == "second_moment":
        bound = (1.0 - job["beta2"]) ** -0.5  # section 3.1 of acclip
        return Program(
            None, Pass(f"second_moment{end}", lists, (*_moments(job), float(job["factor"]), bound))
        )
    # One of the rules that ``arithmetic.RULES`` makes for each form, order, end and factor; a
    # "bare" one has neither a factor on the gradient nor bias corrections.
    order = {1.0: "first", 2.0: "second"}.get(alpha, "any")
    rule = f"{job['form']}_{order}{end}{'_bare' if job['bare'] else ''}"
    return Program(None, Pass(rule, lists, (*_moments(job), alpha, 1.0 / alpha, 1.0)))


def adam(job: Job) -> Program:
    """The one pass of AdamW, where asked with the largest second moment so far (amsgrad), with
    coordinates clipped at a ``multiple`` of their running mean size, or with a running mean of |g|
    of decay ``abs_beta`` that bounds the step where the policy says so.
    """
    # With ε = 0 the kernel must look for 0/0.
    end, lists = "" if job["eps"] else "_zero", ("param", "grad", "exp_avg", "exp_avg_sq")
    numbers = _moments(job)
    if job["amsgrad"]:
        return Program(None, Pass(f"adam_largest{end}", (*lists, "max_exp_avg_sq"), numbers))
    if "abs_beta" in job.record.numbers:
        numbers = (*numbers, float(job["abs_beta"]), 1.0 - job["abs_beta"])
        return Program(None, Pass("adam_bounded", (*lists, "exp_avg_abs"), numbers))
    if job["multiple"] is not None:
        numbers = (*numbers, float(job["multiple"]))
        return Program(None, Pass(f"adam_events{end}", (*lists, "mean_abs"), numbers))
    return Program(None, Pass(f"adam{end}", lists, numbers))


def momentum(job: Job) -> Program:
    """The one pass of torch's SGD, with or without momentum (heavy ball or Nesterov), and with
    coupled weight decay where it is not 0.
    """
    numbers, end = (job["sign"], float(job["coupled"])), "_decay" if job["coupled"] else ""
    if not job["beta"]:
        return Program(None, Pass(f"descent{end}", ("param", "grad"), numbers))
    rule = ("nesterov" if job["nesterov"] else "heavy_ball") + end
    weights = (float(job["beta"]), 1.0 - job["dampening"])
    return Program(None, Pass(rule, ("param", "grad", "momentum_buffer"), (*numbers, *weights)))


def interpolated(job: Job) -> Program:
    """The passes of StochasticINGD: m ← β·m + (1−β)·g, whose norm is taken; then x ← x −
    m/(p‖m‖+q), and the parameter y on the segment from the old x to the new.
    """
    # The decay is added to the gradient before its sign is turned to maximize: the sign here is
    # turned back.
    if job["coupled"]:
        numbers = (*_weights(job), job["sign"] * job["coupled"])
        first = Pass("average_decay", ("m", "grad", "param"), numbers)
    else:
        first = Pass("average", ("m", "grad"), _weights(job))
    return Program(first, Pass("interpolate", ("param", "m", "x")), "interpolate", True)


PROGRAMS = {f.__name__: f for f in (scaled, coordinate, adaptive, adam, momentum, interpolated)}


def program_of(job: Job) -> Program:
    """The job's program, made once."""
    if job.program is None:
        job.program = PROGRAMS[job.record.rule](job)
    return job.program
