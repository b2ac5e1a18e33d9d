"""``diagnose_run``: the doctor's table of causes on what a monitor recorded of a real run.

No cure is tried and nothing is trained, so a cause is named from the records alone: the course of
loss, gradient and learning rate, the replay of what broke (``Monitor.autopsy``), and the model, the
loss and the last batches as they are now.
"""

from __future__ import annotations

import math
import time
import warnings
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from mindgap.advise.doctor.answer import (
    NAMED,
    Answering,
    certainty_words,
    code_of,
    evidence,
    fit_cause,
    name_of,
)
from mindgap.advise.doctor.causes import PLAIN, Cause, rank_causes
from mindgap.advise.doctor.chart import Chart, ramp
from mindgap.advise.doctor.controls import trivial
from mindgap.advise.doctor.course import Course, gradient, norm
from mindgap.advise.doctor.course_readings import read_curve, read_loop
from mindgap.advise.doctor.data_readings import read_data
from mindgap.advise.doctor.differential import Ranked, differential
from mindgap.advise.doctor.model_readings import (
    read_forward,
    read_gradients,
    read_modes,
    read_optimizer,
    read_parameters,
    read_start,
)
from mindgap.advise.doctor.page import Examination
from mindgap.advise.doctor.patient import Patient
from mindgap.advise.training import untouched_randomness
from mindgap.base.check import fail
from mindgap.base.restoring import undisturbed
from mindgap.measure.history import History
from mindgap.measure.monitor import Monitor

#: Steps that a run needs before anything is said about it.
LEAST = 20
#: Batches of the last steps that are read.
READ = 64
#: Gain over the constant answer above which only a plain fault is named: nothing proves that
#: another cause costs anything.
GOOD = 0.3
#: What the autopsy found -> the finding that the table weighs.
MECHANISMS = {
    "batch": "batch_outlier",
    "sample": "sample_outlier",
    "operation": "nan_op",
    "overflow": "half_overflow",
    "recurrence": "explodes_time",
    "update": "thrown",
    "divergence": "thrown",
    "learning_rate": "thrown",
}
#: Causes that the records cannot show, because they need the first weights, validation batches, a
#: second network or the order of an epoch.
UNSEEN = {
    "init_too_large",
    "init_too_small",
    "leakage",
    "overfitting",
    "repeated_batches",
    "underfitting",
    "wrong_labels",
}
#: What follows for a run without a visible fault.
UNSEEN_WORDS = (
    "A monitor sees training only: wrong labels, leakage, overfitting, too small a model and bad "
    "first weights do not show in its records; `mindgap examine` looks for them."
)


def diagnose_run(monitor: Monitor) -> Examination:
    """What is wrong with a run that a monitor watched, as far as its records tell.

    The same table of causes as in :func:`examine` weighs the findings, and the answer has the same
    form. Nothing is trained and no cure is tried: ``trial`` is None. Call it between two steps or
    after the loop, also after ``close``; model, gradients, optimizer and random states are left as
    found. "Healthy" is said only where the training loss is below that of the best constant answer,
    and the sentence then names what records cannot show and sends the reader to :func:`examine`.

    Args:
        monitor: a monitor whose loop calls ``objective.value``, ``objective.loss`` or
            ``monitor.observe(loss, batch)``.

    Example:
        >>> from mindgap.base.objective import Objective
        >>> model = nn.Linear(4, 1)
        >>> batches = list(torch.randn(30, 16, 4, generator=torch.Generator().manual_seed(0)))
        >>> square = lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean()
        >>> problem = Objective(model, square)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
        >>> with Monitor(optimizer, problem, batches, ["update"], every=10) as monitor:
        ...     for batch in batches:
        ...         optimizer.zero_grad()
        ...         problem.value(batch).backward()
        ...         optimizer.step()
        >>> answer = diagnose_run(monitor)
        >>> answer.verdict, answer.cause
        ('sick', 'lr_too_large')
    """
    if not isinstance(monitor, Monitor):
        fail("monitor", "must be a mindgap.measure.Monitor", monitor)
    with untouched_randomness(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Consultation(monitor).answer()


class _Consultation:
    """One diagnosis of a monitored run: readings, the ranking of the causes, the answer."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.chart = Chart()
        self.answering = Answering(self.chart, time.perf_counter())
        self.past: History = monitor.history()
        self.course = _course(self.past)
        self.patient = _patient(self.past, self.course)

    def answer(self) -> Examination:
        """Read what is there, rank the causes, and answer."""
        chart, past, course = self.chart, self.past, self.course
        chart.facts["steps"] = past.steps
        if past.steps < LEAST:
            why = f"the monitor saw {past.steps} calls of optimizer.step(); it takes {LEAST}"
            return self.answering.cannot_tell(why, [], course.losses)
        if not course.losses:
            why = (
                "the monitor saw no loss: call objective.value(batch) or monitor.observe(loss, "
                "batch) in the loop"
            )
            return self.answering.cannot_tell(why, [], course.losses)
        self._read()
        ranked = [row for row in rank_causes(chart.findings) if row[0].key not in UNSEEN]
        for cause, score in ranked:
            if score < NAMED:
                break
            if self._shows(cause):
                return self._sick(cause, score, ranked)
        return self._without_cause(ranked)

    # Readings.

    def _read(self) -> None:
        chart, patient, course = self.chart, self.patient, self.course
        model = patient.model
        chart.attempt("the data", lambda: read_data(chart, patient))
        chart.findings.pop("batches_repeat", None)  # epochs repeat them
        for name in ("batch_outlier", "sample_outlier", "inputs_lost"):
            if (seen := chart.findings.get(name)) is not None and self.past.recent:
                text = seen.sentence[:-1] + " (batches are numbered by their step)."
                chart.findings[name] = type(seen)(name, seen.strength, text)
        chart.attempt("the parameters", lambda: read_parameters(chart, patient))
        chart.attempt("the optimizer", lambda: read_optimizer(chart, patient))
        with undisturbed(model, parameters=True):
            if _put_back(self.past):
                self._read_model()
            else:
                chart.notes.append("the weights are not finite and no earlier state is kept")
        chart.facts["trivial"] = chart.attempt("the constant answer", lambda: trivial(patient))
        finite = [v for v in course.losses if math.isfinite(v)]
        chart.facts["start"] = finite[0] if finite else math.inf
        chart.attempt("the curve", lambda: read_curve(chart, patient, course))
        chart.facts.setdefault("progress", -1.0)
        chart.attempt("the autopsy", self._autopsy)
        chart.attempt("the loop", lambda: read_loop(chart, patient, course))
        self._read_rate()

    def _read_model(self) -> None:
        """The model as it is now, or as it was in the last finite state."""
        chart, patient, course = self.chart, self.patient, self.course
        chart.attempt("the forward pass", lambda: read_forward(chart, patient))
        chart.attempt("the gradients", lambda: read_gradients(chart, patient))
        chart.attempt("the modes", lambda: read_modes(chart, patient))
        weights = Chart()
        chart.attempt("the weights", lambda: read_start(weights, patient))
        if (same := weights.findings.get("equal_weights")) is not None:
            text = same.sentence.replace("start with equal weights", "have equal weights")
            chart.find("equal_weights", 1.0, text)
        if course.broken < 0:
            chart.attempt("the last gradients", self._compare)

    def _compare(self) -> None:
        """The gradients that the optimizer got beside fresh ones of the same batches."""
        votes = []
        read = [step for step in self.past.recent if step.number in self.past.norms]
        for step in read[-5:]:
            got, batches = self.past.norms[step.number], [s.batch for s in step.calls]
            if not batches or any(b is None for b in batches):
                continue
            fresh = [gradient(self.patient, batch) for batch in batches]
            mean = [torch.stack(parts).mean(0) for parts in zip(*fresh, strict=True)]
            votes.append((got / max(norm(mean), 1e-30), len(batches)))
        if len(votes) < 3:
            return
        ratio, count = sorted(votes)[len(votes) // 2]
        if not math.isfinite(ratio):
            return
        if count > 1 and 0.7 * count < ratio < 1.4 * count:
            self.course.added = count
        elif ratio > max(5.0, 3.0 * count) and min(votes)[0] > 2.0 * count:
            text = f"The optimizer gets gradients {ratio:.3g} times as large as those of its batch."
            self.chart.find("zero_kept", 0.6, text)
        self.course.shrunk = min(1.0, ratio)

    def _autopsy(self) -> None:
        """The replay's mechanism as a finding. A batch is blamed where its numbers are out of range
        as well, or where the run came back after it: a run that is thrown away breaks somewhere.
        """
        chart, found = self.chart, self.monitor.autopsy()
        key = MECHANISMS.get(found.mechanism)
        if key in ("batch_outlier", "sample_outlier"):
            outside = chart.has("batch_outlier") or chart.has("sample_outlier")
            if outside or found.recovered is not None:
                chart.find(key, 0.8, found.sentence)
        elif key is not None:
            chart.find(key, 1.0, found.sentence)
        elif found.mechanism == "unknown":
            self.chart.notes.append(found.sentence)

    def _read_rate(self) -> None:
        """Steps that are far too long or too short, by what they do to weights and loss."""
        chart, course = self.chart, self.course
        gain, move = chart.facts["progress"], chart.facts.get("move", math.nan)
        wild = any(map(chart.has, ("thrown", "moves_much", "blew_up")))
        if (dead := chart.findings.get("dead")) is not None:  # now; perhaps not at the start
            chart.findings["dead"] = type(dead)("dead", 0.85 * dead.strength, dead.sentence)
        if wild:  # what became of the units is a consequence
            for name, other in (("dead", "died"), ("saturated", "died"), ("vanishes", "")):
                if (seen := chart.findings.pop(name, None)) is not None and other:
                    chart.find(other, seen.strength, seen.sentence)
            for name in ("signal_grows", "explodes_depth", "collapsed"):
                chart.findings.pop(name, None)
        if move > 0.05 and gain < 0.05:
            text = f"A step moves the weights by {move:.0%} of their size, and nothing is learned."
            worse = gain < -0.05 or chart.has("above_start") or chart.has("died")
            chart.find("thrown", ramp(move, 0.03, 0.1) * (1.0 if worse else 0.3), text)
        elif chart.has("blew_up") and not chart.has("rate_negative"):
            chart.find("thrown", 0.8, chart.findings["blew_up"].sentence)
        early, late = course.mean(0.0, 0.25), course.mean(0.75, 1.0)
        falls = math.isfinite(late) and late <= early + 0.02 * abs(early)
        if move < 5e-4 and gain < GOOD and falls and not chart.has("stuck"):
            text = f"The loss goes from {early:.3g} to {late:.3g} in {course.updates} steps."
            chart.find("crawls", ramp(math.log10(max(move, 1e-12)), -3.3, -4.0), text)

    # Causes.

    def _shows(self, cause: Cause) -> bool:
        """Whether the run suffers, or the cause is a fault whatever the loss does."""
        chart = self.chart
        if chart.facts["progress"] < GOOD or chart.has("broke"):
            return True
        if cause.key == "wrong_axis" and not (
            chart.has("softmax_over_batch") or chart.has("broadcasts")
        ):
            return False
        if cause.key in ("bad_batch", "bad_sample"):
            return chart.has("spikes") or chart.has("inputs_lost")
        plain = any(name in PLAIN for name in cause.signs if chart.has(name))
        return not cause.proof or (plain and cause.key != "scheduler_at_zero")

    # Answers.

    def _sick(self, cause: Cause, score: float, ranked: list[tuple[Cause, float]]) -> Examination:
        """The examination that names a cause; a cause that needs proof is at most likely."""
        chart = self.chart
        fitted = fit_cause(cause, chart)
        score = min(score, 3.9) if cause.proof else score  # no cure was tried
        sentence = (
            f"{certainty_words(score)} {name_of(fitted, chart)}; {fitted.change} (no cure was "
            "tried here; `mindgap examine` tries it on a copy)."
        )
        findings = evidence(cause, chart, ("broke", "blew_up", "stalled", "above_start"))
        others = [(c.key, s) for c, s in ranked if c is not cause and s > -3]
        listed = self._rank_all(cause.key, [(cause.key, score), *others])
        code = code_of(fitted, chart, None)
        losses = self.course.losses
        return self.answering.examination("sick", sentence, listed, findings, losses, code)

    def _without_cause(self, ranked: list[tuple[Cause, float]]) -> Examination:
        """The examination that names no cause: healthy where the training loss is clearly below the
        best constant answer.
        """
        facts = self.chart.facts
        start, final, constant = facts["start"], facts.get("final", math.inf), facts.get("trivial")
        listed = self._rank_all("", [(c.key, min(s, -1.0)) for c, s in ranked if s > -3])
        fell = f"the training loss went from {start:.3g} to {final:.3g} in {self.past.steps} steps"
        if constant is None:
            why = f"{fell}, and no constant answer can be computed to compare it with"
            return self.answering.cannot_tell(why, listed, self.course.losses)
        if not (math.isfinite(final) and final < constant - 0.05 * abs(constant)):
            why = (
                f"{fell}, not clearly below the best constant answer ({constant:.3g}), and no "
                "cause shows in the monitor's records"
            )
            return self.answering.cannot_tell(why, listed, self.course.losses)
        own = type(self.patient.optimizer).__name__
        sentence = (
            f"Healthy, as far as training shows: {fell}; the best constant answer has "
            f"{constant:.3g}, and nothing in the records speaks against it. Keep your {own}. "
            f"{UNSEEN_WORDS}"
        )
        return self.answering.examination("healthy", sentence, listed, [], self.course.losses)

    def _rank_all(self, named: str, ranked: Ranked) -> Ranked:
        """The named cause, then all others that remain possible, with their log-odds."""
        listed = self.chart.attempt(
            "the other causes",
            lambda: differential(named, ranked, (), self.chart, self.patient),
        )
        return ranked if listed is None else listed


def _course(past: History) -> Course:
    """The course of the run as far as it was read."""
    course = Course(updates=past.steps)
    course.losses = [past.losses[step] for step in sorted(past.losses)]
    course.rates = [past.rates[step] for step in sorted(past.rates)]
    course.norms = [past.norms[step] for step in sorted(past.norms)]
    last = course.losses[-5:]
    finite = all(bool(p.detach().isfinite().all()) for p in past.model.parameters())
    if course.losses and not (finite and all(map(math.isfinite, last))):
        steps = [step for step in sorted(past.losses) if not math.isfinite(past.losses[step])]
        course.broken = steps[0] if steps else past.steps
    moves = sorted(v for v in past.moves.values() if math.isfinite(v))
    middle = moves[len(moves) // 2] if moves else math.nan
    course.wrong_mode = _evaluating(past)
    if not moves:
        return course
    oldest = past.states[0] if past.states else None  # none with memory=0
    kept = oldest.parameters if oldest is not None else []
    before = {id(t): old for t, old in zip(past.tensors, kept)}
    held = {id(p) for group in past.optimizer.param_groups for p in group["params"]}
    for name, p in past.model.named_parameters():
        still = torch.equal(before[id(p)], p.detach()) if id(p) in before else False
        course.moved[name] = 0.0 if still else middle
        graded = p.grad is not None and bool((p.grad.to_dense() != 0).any())
        alive = course.rates and course.rates[-1] > 0 and oldest and oldest.step < past.steps
        if still and graded and alive and id(p) in held:
            course.stuck.append(name)
    return course


def _evaluating(past: History) -> list[str]:
    """Modules that act otherwise in training, and were in evaluation mode in every kept state."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    named = list(past.model.named_modules())
    found = []
    for place, (name, module) in enumerate(named):
        trained = any(state.training_modes[place] for state in past.states)
        if isinstance(module, kinds) and past.states and not trained:
            found.append(name)
    return found


def _patient(past: History, course: Course) -> Patient:
    """The run in the form that the readings take."""
    seen: dict[int, tuple[int, Any]] = {}
    for step in past.recent:
        for call in step.calls:
            if call.batch is not None:
                seen.setdefault(id(call.batch), (step.number, call.batch))
    chosen = list(seen.values())[-READ:]
    if len(chosen) < 2:
        chosen = list(enumerate(past.batches))
    changes = len(set(course.rates)) > 1
    model = getattr(past.model, "_orig_mod", past.model)  # of torch.compile
    return Patient(
        model,
        past.loss,
        [batch for _, batch in chosen],
        [],
        past.optimizer,
        SimpleNamespace() if changes else None,
        None,
        frozenset({"optimizer", "step"}),
        numbers=[number for number, _ in chosen],
    )


@torch.no_grad()
def _put_back(past: History) -> bool:
    """Where the weights are not finite, put the newest finite state in their place; whether they
    are finite now.
    """
    parameters = list(past.model.parameters())
    if all(bool(p.isfinite().all()) for p in parameters):
        return True
    for state in reversed(past.states):
        if all(bool(t.isfinite().all()) for t in state.parameters):
            own = {id(p) for p in parameters}
            for t, old in zip(past.tensors, state.parameters, strict=True):
                if id(t) in own:
                    t.copy_(old)
            for buffer, old in zip(past.model.buffers(), state.buffers, strict=True):
                buffer.copy_(old)
            return True
    return False
