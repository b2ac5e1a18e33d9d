"""``examine``: train for a short time, find the cause, try the cure, answer in one sentence."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from mindgap.advise.doctor.causes import CAUSES, Cause
from mindgap.advise.doctor.chart import Chart, ramp
from mindgap.advise.doctor.controls import (
    cross_ranks,
    plain_network,
    trivial,
)
from mindgap.advise.doctor.course import Course, follow, held_out
from mindgap.advise.doctor.course_readings import (
    progress,
    read_bounded_loss,
    read_break,
    read_curve,
    read_end,
    read_error,
    read_growth,
    read_labels,
    read_loop,
    read_ray,
    read_step,
    reference_loss,
)
from mindgap.advise.doctor.cures import CURES
from mindgap.advise.doctor.data_readings import read_data
from mindgap.advise.doctor.differential import LISTED, differential, in_words
from mindgap.advise.doctor.further import READINGS
from mindgap.advise.doctor.model_readings import (
    layers,
    read_forward,
    read_gradients,
    read_modes,
    read_optimizer,
    read_parameters,
    read_start,
    unregistered,
    weight_of,
)
from mindgap.advise.doctor.page import fragment
from mindgap.advise.doctor.patient import Admission, Patient
from mindgap.advise.training import Factory, untouched_randomness
from mindgap.base.batches import pair
from mindgap.base.check import RuleError, fail, positive, whole

#: Steps of one run, at most.
STEPS = 240
#: Steps of one run, at least, unless one takes more than a tenth of a second.
FEWEST = 80
#: Share of the time that the first run may take.
FIRST = 0.2
#: Log-odds below which a cause is not named.
NAMED = 0.5
#: Cures that are tried at most.
TRIED = 4
#: Share of the constant answer's loss by which a plain network may be ahead of a healthy run.
BEHIND = 0.45


@dataclass(frozen=True)
class Trial:
    """One cure on a copy."""

    cause: str
    variant: float
    before: float  # held-out loss without the cure
    after: float  # held-out loss with it
    steps: int
    helps: bool
    curve: tuple[float, ...] = ()  # training losses with the cure


@dataclass(frozen=True)
class Examination:
    """The answer."""

    verdict: str  # "sick", "healthy" or "cannot tell"
    sentence: str  # what is wrong, how sure, what to change
    causes: tuple[tuple[str, float], ...]  # likeliest first, with their probabilities
    findings: tuple[str, ...]  # at most three sentences
    code: str  # what to paste; empty if there is nothing to change
    trial: Trial | None  # the cure that was tried and helped
    curve: tuple[float, ...]  # training losses as they are
    notes: tuple[str, ...]  # what could not be read
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def alternatives(self) -> tuple[str, ...]:
        """What else it could be, in words; where nothing is named, what to look at first."""
        if self.verdict == "healthy":
            return ()
        listed = [key for key, _ in self.causes[:LISTED]]
        return tuple(map(in_words, ([key] for key in listed if key != self.cause)))

    @property
    def shortened(self) -> str:
        """What the time did not suffice for; empty where everything was done."""
        return str(self.facts.get("shortened", ""))

    @property
    def other(self) -> str:
        """The words before :attr:`alternatives`."""
        return "If that does not help" if self.verdict == "sick" else "Look first whether"

    @property
    def cause(self) -> str:
        """Key of the likeliest cause; empty where none is named."""
        return self.causes[0][0] if self.verdict == "sick" else ""

    def __str__(self) -> str:
        lines = [self.sentence, *(f"- {line}" for line in self.findings)]
        if self.alternatives:
            lines.append(f"{self.other}: {'; '.join(self.alternatives)}.")
        if self.shortened:
            lines.append(self.shortened)
        return "\n".join([*lines, *(["", self.code] if self.code else [])])

    def _repr_html_(self) -> str:
        return fragment(self)

    def write(self, path: str | Path) -> Path:
        """Write the answer as JSON."""
        record = {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "causes": self.causes,
            "findings": self.findings,
            "alternatives": self.alternatives,
            "code": self.code,
            "trial": vars(self.trial) if self.trial else None,
            "curve": self.curve,
            "notes": self.notes,
            "seconds": self.seconds,
        }
        path = Path(path)
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
        return path


def examine(
    problem: Factory,
    *,
    seconds: float = 20.0,
    seed: int = 0,
    told: Callable[[str, float], Any] | None = None,
) -> Examination:
    """Find out what is wrong with a training run, and prove it by trying the cure on a copy.

    Args:
        problem: function that builds the training afresh, with or without a parameter ``seed``. It
            returns ``((model, loss), batches)``, and behind them, in any order, what you have of:
            validation batches, your optimizer, your scheduler (stepped once per batch) and your own
            ``step(batch)``, which trains on one batch and returns the loss. Or a mapping with the
            names ``model``, ``loss``, ``train``, ``valid``, ``optimizer``, ``scheduler``, ``step``.
            Mistakes of a loop are seen only if ``step`` is given. Without an optimizer AdamW at
            1e-3 is used, and the learning rate is not judged.
        seconds: aim to be done within this time. Where other programs take the processor away,
            the time of the processor counts, and the clock may show up to three times as much;
            what was left out is said in ``shortened``.
        seed: names all random numbers.
        told: called with what is being done and the share of the time that is gone.

    Raises:
        RuleError: ``problem`` does not return what is described above.

    Example:
        >>> def problem():
        ...     model = torch.nn.Linear(4, 1)
        ...     batches = list(torch.randn(30, 16, 4, generator=torch.Generator().manual_seed(0)))
        ...     loss = lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean()
        ...     return (model, loss), batches, torch.optim.SGD(model.parameters(), lr=5.0)
        >>> answer = examine(problem, seconds=5)
        >>> answer.verdict, answer.cause
        ('sick', 'lr_too_large')
    """
    positive("seconds", seconds)
    whole("seed", seed)
    if told is not None and not callable(told):
        fail("told", "must be a function or None", told)
    with untouched_randomness(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of trials and probes; readings say what matters
        return _Doctor(problem, seconds, seed, told or (lambda text, share: None)).answer()


class _Clock:
    """Seconds of work: on a busy machine the processor's, but at least a third of the wall's."""

    def __init__(self) -> None:
        self.begun = time.perf_counter(), time.process_time()

    def elapsed(self) -> float:
        wall = time.perf_counter() - self.begun[0]
        return max(min(wall, time.process_time() - self.begun[1]), wall / 3)

    def share(self) -> float:
        """Processor seconds per second of the wall clock, at most 1."""
        wall = time.perf_counter() - self.begun[0]
        return min(1.0, (time.process_time() - self.begun[1]) / max(wall, 1e-9))


class _Doctor:
    def __init__(
        self, problem: Factory, seconds: float, seed: int, told: Callable[[str, float], Any]
    ) -> None:
        self.admitted = time.perf_counter()
        self.clock = _Clock()
        self.seconds = seconds
        self.admission = Admission(problem, seed)
        self.chart = Chart()
        self.told = told
        self.trials: list[Trial] = []
        self.runs: dict[tuple[str, float], tuple[Course, float]] = {}
        self.steps = STEPS
        self.left_out = 0  # cures for which no time was left

    def left(self) -> float:
        return self.seconds - self.clock.elapsed()

    def say(self, text: str) -> None:
        self.told(text, min(1.0, 1 - self.left() / self.seconds))

    def answer(self) -> Examination:
        """Read the start, train as the user does, and judge; returns the examination, also where
        the user's code fails.
        """
        chart = self.chart
        self.say("reading the start")
        try:
            first = self.admission.fresh()
        except RuleError:
            raise
        except (Exception, SystemExit) as error:  # the user's own code
            return self._cannot(f"your function raises {_error_words(error)}", None, raised=True)
        if not first.named and not list(unregistered(first.model)):
            return self._cannot("your model has no parameters to train", None)
        self.clock = _Clock()  # torch's own imports and the user's data are not ours
        chart.facts["first_state"] = {
            n: v.detach().clone() for n, v in first.model.state_dict().items()
        }
        try:
            with torch.no_grad():
                first.value(first.train[0])
        except RuleError:
            raise
        except Exception as error:
            course = Course(error=error)
            read_error(chart, course)
            if not chart.findings:
                why = f"the loss raises {_error_words(error)} on the first batch"
                return self._cannot(why, None, raised=True)
        if "valid" in first.given and first.valid:
            try:
                held_out(first)
            except RuleError:
                raise
            except Exception as error:
                why = f"the loss raises {_error_words(error)} on your validation batches"
                return self._cannot(why, None, raised=True)
        chart.attempt("the data", lambda: read_data(chart, first))
        chart.attempt("the parameters", lambda: read_parameters(chart, first))
        chart.attempt("the first weights", lambda: read_start(chart, first))
        chart.attempt("the optimizer", lambda: read_optimizer(chart, first))
        chart.attempt("the forward pass", lambda: read_forward(chart, first))
        chart.attempt("the gradients", lambda: read_gradients(chart, first))
        chart.attempt("the modes", lambda: read_modes(chart, first))
        chart.attempt("the slope of the loss", lambda: read_bounded_loss(chart, first))
        for key, module in READINGS.items():
            chart.attempt(key, lambda module=module: import_module(module).read(chart, first))  # type: ignore[misc]
        chart.facts["trivial"] = chart.attempt("the constant answer", lambda: trivial(first))
        self.say("training as you do")
        base = self.admission.fresh()
        course = self._first_run(base)
        chart.facts["steps"] = self.steps
        if course.error is not None:
            read_error(chart, course)
            if not any(map(chart.has, ("no_graph", "batch_of_one", "labels_outside"))):
                where = f"step {course.error_step}"
                why = f"your code raises {_error_words(course.error)} at {where}"
                return self._cannot(why, course, raised=True)
        start = course.held[0][1] if course.held else math.inf
        if not math.isfinite(start):
            start = next((v for v in course.losses if math.isfinite(v)), math.inf)
        chart.facts["start"] = start
        if course.error is None:
            chart.attempt("the curve", lambda: read_curve(chart, base, course))
        chart.facts.setdefault("progress", -1.0)
        chart.attempt("the loop", lambda: read_loop(chart, base, course))
        if course.error is None:
            chart.attempt("the end of the run", lambda: read_end(chart, base, course))
            ranks = chart.attempt("the labels", lambda: cross_ranks(base, min(200, self.steps)))
            if ranks is not None:
                chart.attempt("the labels", lambda: read_labels(chart, *ranks))
        final_state = base
        if course.broken >= 0:
            fresh = self.admission.fresh()
            chart.attempt("the break", lambda: read_break(chart, fresh, course))
        chart.attempt("the step", lambda: read_step(chart, self.admission.fresh()))
        self._controls()
        return self._judge(final_state, course)

    def _first_run(self, base: Patient) -> Course:
        pilot = self.admission.fresh()
        follow(pilot, 2)  # libraries are loaded, kernels compiled
        other = pilot if pilot.step is None else self.admission.fresh()
        clock = _Clock()
        follow(other, 4)
        pace = clock.elapsed() / 4
        fits = int(FIRST * self.seconds / max(pace, 1e-6))
        self.steps = max(FEWEST if pace < 0.1 else 20, min(STEPS, fits))
        base.__dict__.update(self.admission.fresh().__dict__)
        return follow(base, self.steps, watch=True)

    def _controls(self) -> None:
        """A plain network on the same samples; with shifted targets if it learns nothing."""
        chart = self.chart
        patient = self.admission.fresh()
        bad = set(chart.facts.get("bad_batches", ()))
        patient.train = [b for i, b in enumerate(patient.train) if i not in bad]
        steps = min(300, max(60, self.steps))
        best = chart.attempt("the plain network", lambda: plain_network(patient, steps))
        chart.facts["control"] = best
        known = chart.facts.get("trivial")
        if best is None or known is None:
            return
        gain, own = progress(chart, best), max(-1.0, chart.facts["progress"])
        faults = ("softmax_over_batch", "broadcasts", "no_graph", "half_overflow", "nan_op")
        if gain < 0.03 and own < 0.05 and not any(map(chart.has, faults)):
            for shift in (1, -1):
                moved = chart.attempt(
                    "shifted targets",
                    lambda shift=shift: plain_network(patient, steps, shift=shift),  # type: ignore[misc]
                )
                if moved is not None and progress(chart, moved) > 0.1:
                    text = (
                        "Targets fit the inputs of the "
                        f"{'next' if shift < 0 else 'previous'} sample: a plain network reaches "
                        f"{moved:.3g} with them moved, {best:.3g} without."
                    )
                    chart.facts["shift"] = shift
                    chart.find("shift_found", 1.0, text)
                    return
            text = (
                f"A plain network reaches {best:.3g} on held-out data; a constant answer has "
                f"{known:.3g}: the targets do not follow from the inputs."
            )
            shuffled = chart.attempt(
                "shuffled targets", lambda: plain_network(patient, steps, shuffled=True)
            )
            if shuffled is not None:
                chart.facts["shuffled"] = shuffled
                text = text[:-1] + f"; with shuffled targets it reaches {shuffled:.3g}."
            chart.find("labels_carry_nothing", ramp(gain, 0.03, 0.015), text)
        chart.facts["behind"] = gain - own
        if gain - own > 0.1:
            text = f"A plain network with 128 units reaches {best:.3g} on the same samples."
            chart.find("control_better", ramp(gain - own, 0.1, 0.3), text)
            late, last = chart.facts.get("late", (0.0, 0.0))
            slow = (late - last) / max(last - best, 1e-12)
            if last > best and math.isfinite(slow):
                text = f"The training loss has settled: {late:.3g}, then {last:.3g}."
                chart.find("settled", ramp(slow, 0.15, 0.05), text)
            count = sum(p.numel() for p in patient.model.parameters())
            answers = (chart.facts.get("output") or (0,))[-1]
            widths = [len(weight_of(m)) for _, m in layers(patient.model)]
            if answers in widths:
                widths.remove(answers)  # the last layer, wherever it is declared
            cells = [m for m in patient.model.modules() if isinstance(m, torch.nn.RNNBase)]
            widths += [m.hidden_size for m in cells]
            chart.facts["narrow"] = min(widths, default=0)
            targets = pair(patient.train[0])[1]  # without targets a narrow layer is meant
            if targets is not None and (not widths or min(widths) <= 4):
                what = "no hidden layer" if not widths else f"a layer of {min(widths)} units"
                chart.find("few_units", 1.0, f"The model has {what} ({count} weights).")

    # Trials.

    def _run(self, cause: Cause, variant: float) -> tuple[Course, float, float] | None:
        """Course, loss before and loss after; None where the cure cannot be applied."""
        cure = CURES[cause.cure]
        key = (cause.cure, variant)
        try:
            patient = self.admission.fresh()
            cure.apply(patient, self.chart, variant)
        except (RuleError, KeyError):
            return None
        except Exception as error:
            self.chart.notes.append(f"the cure '{cause.cure}' failed ({_error_words(error)})")
            return None
        before = self.chart.facts.get("final", math.inf)
        if key in self.runs:
            course, before = self.runs[key]
        else:
            course = follow(patient, self.steps)
            if course.error is not None:
                self.chart.notes.append(
                    f"the cure '{cause.cure}' raised {_error_words(course.error)}"
                )
                return None
            if cure.changes_loss:
                before = self._before(patient)
            self.runs[key] = (course, before)
        after = course.held_final if course.broken < 0 else math.inf
        return course, before, after

    def _before(self, cured: Patient) -> float:
        """The user's trained model under the cured loss and on the cured validation batches."""
        base = self.base
        judged = Patient(
            base.model, cured.loss, base.train, cured.valid, base.optimizer, modes=cured.modes
        )
        try:
            return held_out(judged, cured.valid or cured.train)
        except Exception:
            return math.inf

    def _helps(self, before: float, after: float, proven: bool = False) -> bool:
        """Is the loss clearly lower? If the cause is ``proven``, a good run may get better, too."""
        if not math.isfinite(after):
            return False
        chart = self.chart
        reference = reference_loss(chart)
        if not math.isfinite(before):
            return after < max(reference, chart.facts["start"]) * 1.02 or not math.isfinite(
                reference
            )
        room = max(abs(reference - after), 0.02 * abs(reference))
        least = 0.08 if after > 0.6 * before or not chart.has("sorted") else 0.03
        if (
            not proven
            and progress(chart, before) > 0.5
            and progress(chart, after) < progress(chart, before) + least
        ):
            return False  # the run is good: a little better is no cure
        return after < before - 0.05 * room and after < before * (0.98 if before > 0 else 1.0)

    def _try(self, cause: Cause) -> Trial | None:
        """The best variant of a cure; None where it cannot be tried."""
        best: Trial | None = None
        for variant in CURES[cause.cure].variants:
            if self.left() < 0 and (cause.cure, variant) not in self.runs:
                self.left_out += 1
                break
            ran = self._run(cause, variant)
            if ran is None:
                continue
            course, before, after = ran
            if CURES[cause.cure].changes_loss and math.isfinite(before):
                helps = after < before - 0.02 * abs(before)  # the yardsticks have another loss
            else:
                helps = self._helps(before, after, not cause.proof)
            spike = self.chart.facts.get("spike")
            if spike is not None and cause.key in ("bad_batch", "bad_sample") and not helps:
                top = max(course.losses, default=math.inf)
                if top < 0.1 * spike and after < before + 0.05 * abs(before):
                    before, after, helps = spike, top, True  # the spike is gone
            trial = Trial(
                cause.key, variant, before, after, len(course.losses), helps, tuple(course.losses)
            )
            if best is None or (trial.helps, -trial.after) > (best.helps, -best.after):
                best = trial
            elif best.helps:
                break  # variants are ordered: it gets worse again
            if best.helps and cause.cure == "normalise":
                break
        return best

    def _rates(self, course: Course) -> None:
        """Would a smaller or a larger learning rate train? Only asked where it is in doubt."""
        chart = self.chart
        own = chart.facts["progress"]
        control = chart.facts.get("control")
        aim = progress(chart, control) if control is not None else 0.5
        doubtful = own < 0.3 or own < aim - 0.1 or chart.has("blew_up") or chart.has("moves_much")
        if not doubtful or "optimizer" not in self.base.given:
            return
        down = self._try(CAUSES["lr_too_large"])
        if down is not None and down.helps:
            gain = progress(chart, down.after) - max(own, -0.5)
            train = self.runs["slower", down.variant][0].final
            if course.broken < 0:  # a rate that is too large shows in training, too
                gain = min(gain, progress(chart, train) - progress(chart, course.final))
            text = (
                f"At {down.variant:g} times the learning rate the loss ends at {down.after:.3g}, "
                f"not {down.before:.3g}."
            )
            chart.find("slower_helps", ramp(gain, 0.04, 0.15), text)
        if not (chart.has("broke") or chart.has("blew_up")) and not chart.facts.get("warming"):
            up = self._try(CAUSES["lr_too_small"])
            if up is not None and up.helps:
                gain = progress(chart, up.after) - own
                text = (
                    f"At {up.variant:g} times the learning rate the loss ends at {up.after:.3g}, "
                    f"not {up.before:.3g}."
                )
                moved = max(own, 0.0) / max(progress(chart, up.after), 1e-9)
                chart.find("faster_helps", ramp(gain, 0.05, 0.25) * ramp(moved, 0.6, 0.3), text)
        attention = any(
            isinstance(m, torch.nn.MultiheadAttention) for m in self.base.model.modules()
        )
        adaptive = "betas" in self.base.optimizer.param_groups[0]
        deep = len(layers(self.base.model)) >= 8
        sane = float(self.base.optimizer.param_groups[0]["lr"]) <= 0.03
        if chart.has("slower_helps") and adaptive and sane and (attention or deep):
            warm = self._try(CAUSES["no_warmup"])
            if warm is not None and warm.helps and down is not None:
                near = progress(chart, warm.after) > progress(chart, down.after) - 0.01
                if near:
                    text = (
                        f"With a warm-up at the same learning rate the loss ends at "
                        f"{warm.after:.3g}, not {warm.before:.3g}."
                    )
                    chart.find("warmup_helps", 1.0, text)
                    chart.find("no_warmup_sign", 1.0, "Adam trains a deep attention network.")

    def _steep(self) -> None:
        """Where a smaller rate helps: does clipping at the same rate help as much?"""
        chart = self.chart
        if not (chart.has("blew_up") or chart.has("broke")):
            return
        chart.attempt("the smoothness", lambda: read_ray(chart, self.admission.fresh()))
        chart.attempt("the loss's growth", lambda: read_growth(chart, self.admission.fresh()))
        if not chart.has("steep"):
            return
        down, clipped = self._try(CAUSES["lr_too_large"]), self._try(CAUSES["smoothness_grows"])
        if clipped is not None and clipped.helps:
            other = down.after if down is not None and down.helps else math.inf
            ahead = progress(chart, clipped.after) - progress(chart, other)
            text = (
                f"With clipping at the same learning rate the loss ends at {clipped.after:.3g}; "
                f"with a smaller one at {_loss(other)}."
            )
            if chart.facts.get("loss_growth", 0.0) > 0.3:
                ahead += 0.25  # the loss itself is steep: a smaller rate only hides it
            chart.find("clipping_helps", ramp(ahead, -0.05, 0.0), text)

    def _judge(self, base: Patient, course: Course) -> Examination:
        """Try the cures of the likeliest causes one after the other; returns the examination that
        names the first whose cure helps, or none.
        """
        chart = self.chart
        self.base = base
        if course.error is None:
            self.say("trying learning rates")
            strong = [
                s for c, s in self._rank_causes() if c.key not in ("underfitting", "overfitting")
            ]
            if not strong or strong[0] < 2.5:
                self._rates(course)
                self._steep()
        self.say("trying cures")
        refuted: set[str] = set()
        chosen: tuple[Cause, float, Trial | None] | None = None
        tried = 0
        for cause, score in self._rank_causes():
            if score < NAMED or tried >= TRIED:
                break
            if cause.key == "wrong_axis" and self._mixes_on_purpose():
                continue
            trial: Trial | None = None
            routed = cause_by_route(cause, chart)
            if routed.cure:
                trial = self._try(routed)
                tried += 1
            if trial is None or trial.helps:
                if trial is None and cause.proof and routed.cure and score < 2:
                    refuted.add(cause.key)
                    continue
                chosen = (routed, score + (2 if trial else 0), trial)
                break
            stale = cause.key == "optimizer_other_parameters" and chart.has("foreign")
            if not routed.proof or stale:
                chosen = (routed, score, None)
                self.trials.append(trial)
                break
            self.trials.append(trial)
            refuted.add(cause.key)
        ranked = [(c.key, s) for c, s in self._rank_causes() if s > -3]
        ahead = chart.findings.get("control_better")
        sick = chart.facts["progress"] < 0.05 or chart.has("broke")
        sick = sick or (ahead is not None and ahead.strength > 0.3)
        if chosen is None and sick:  # nothing helped: name what the findings say most clearly
            for cause, score in self._rank_causes():
                if score > 2.5 and (cause.key in refuted or not cause.cure):
                    failed = next((t for t in self.trials if t.cause == cause.key), None)
                    chosen = (cause, min(score, 3.0) - 1.5, failed)
                    break
        named = chosen[0].key if chosen is not None else ""
        if chosen is not None:
            ranked = [(named, chosen[1])] + [r for r in ranked if r[0] != named]
        else:
            ranked = [(k, min(s, -1.0)) for k, s in ranked]
        listed = chart.attempt(
            "the other causes", lambda: differential(named, ranked, refuted, chart, base)
        )
        ranked = ranked if listed is None else listed
        if chosen is not None:
            return self._sick(chosen, ranked, course)
        final, start = chart.facts.get("final", math.inf), chart.facts["start"]
        known = chart.facts.get("trivial")
        if known is None:
            fell = math.isfinite(final) and final < start - 0.05 * abs(start)
            if fell:
                return self._healthy(
                    f"the loss fell from {start:.3g} to {final:.3g} in {self.steps} steps (no "
                    "constant answer to compare with)",
                    ranked,
                    course,
                )
            return self._cannot(
                f"the loss does not fall ({start:.3g} to {final:.3g}) and no cause fits",
                course,
                ranked,
            )
        behind = chart.facts.get("behind", 0.0)
        below = math.isfinite(final) and final < known - 0.02 * abs(known)
        if below and behind > BEHIND and "optimizer" in base.given:
            return self._cannot(
                f"the loss fell to {final:.3g} and a plain network with 128 units reaches "
                f"{chart.facts['control']:.3g} on the same samples, and no cause that was tried "
                "explains it",
                course,
                ranked,
            )
        if below:
            return self._healthy(
                f"the loss fell from {start:.3g} to {final:.3g} in {self.steps} steps; the best "
                f"constant answer has {known:.3g}",
                ranked,
                course,
            )
        return self._cannot(
            f"the loss ends at {final:.3g}, not below the best constant answer ({known:.3g}), and "
            "no cause that was tried explains it",
            course,
            ranked,
        )

    def _shortened(self) -> str:
        """What the time did not suffice for, in words; empty where nothing was left out."""
        missing = []
        if self.steps < STEPS:
            missing.append(f"runs have {self.steps} steps, not {STEPS}")
        if self.left_out:
            missing.append("cures are left untried")
        if not missing:
            return ""
        share = self.clock.share()
        why = f"{self.seconds:g} s are short for this model"
        if share < 0.7:
            why = f"The machine is busy ({share:.0%} of a core was free)"
        return f"{why}: {' and '.join(missing)}. --seconds {3 * self.seconds:g} gives more time."

    def _mixes_on_purpose(self) -> bool:
        """Samples depend on each other, nothing else is odd, and the model learns."""
        chart = self.chart
        known = chart.has("softmax_over_batch") or chart.has("broadcasts")
        return not known and chart.facts["progress"] > 0.3

    def _rank_causes(self) -> list[tuple[Cause, float]]:
        scored = [(c, c.score(self.chart.findings)) for c in CAUSES.values()]
        return sorted(
            ((c, s) for c, s in scored if s > -math.inf), key=lambda pair: pair[1], reverse=True
        )

    # Answers.

    def _sick(
        self,
        chosen: tuple[Cause, float, Trial | None],
        ranked: list[tuple[str, float]],
        course: Course,
    ) -> Examination:
        """The examination that names a cause, with its signs, its change and what the trial on a
        copy gave.
        """
        cause, score, trial = chosen
        chart = self.chart
        name = cause.name.replace(
            "{through}",
            "time" if chart.has("explodes_time") or chart.has("vanishes_time") else "depth",
        )
        change = cause.change
        proof = ""
        if trial is not None:
            losses = f"loss at step {trial.steps} {_loss(trial.before)} → {_loss(trial.after)}"
            if trial.helps:
                proof = f" (tried on a copy: {losses})"
            else:
                proof = f" (alone, this did not help on a copy: {losses})"
            if cause.cure in ("slower", "faster"):
                lr = chart.facts.get("lr", 1.0)
                change = f"{change} from {lr:.3g} to {lr * trial.variant:.3g}"
        sentence = f"{sure_words(score)} {name}; {change}{proof}."
        signs = sorted(
            (f for f in chart.findings.values() if cause.signs.get(f.name, 0) > 0),
            key=lambda f: -cause.signs[f.name] * f.strength,
        )
        curve = [
            f
            for key in ("broke", "blew_up", "stalled", "above_start")
            if (f := chart.findings.get(key)) is not None
            and not (key == "stalled" and (chart.has("broke") or chart.has("blew_up")))
        ]
        chosen_signs = list(dict.fromkeys(f.sentence for f in [*signs[:2], *curve, *signs[2:]]))
        return self._make_examination(
            "sick", sentence, ranked, chosen_signs[:3], code_of(cause, chart, trial), trial, course
        )

    def _healthy(self, why: str, ranked: list[tuple[str, float]], course: Course) -> Examination:
        own = type(self.base.optimizer).__name__
        what = f"your {own}" if "optimizer" in self.base.given else "what you have"
        sentence = f"Healthy: {why}, and nothing speaks against it. Keep {what}."
        return self._make_examination("healthy", sentence, ranked, [], "", None, course)

    def _cannot(
        self,
        why: str,
        course: Course | None,
        ranked: list[tuple[str, float]] | None = None,
        raised: bool = False,
    ) -> Examination:
        self.chart.facts["raised"] = raised
        found = sorted(self.chart.findings.values(), key=lambda f: -f.strength)
        return self._make_examination(
            "cannot tell",
            f"Cannot tell, because {why}.",
            ranked or [],
            [f.sentence for f in found[:3]],
            "",
            None,
            course,
        )

    def _make_examination(
        self,
        verdict: str,
        sentence: str,
        ranked: list[tuple[str, float]],
        findings: list[str],
        code: str,
        trial: Trial | None,
        course: Course | None,
    ) -> Examination:
        """The examination with the facts and the curve that its page draws."""
        causes = tuple(
            (key, round(1 / (1 + math.exp(-min(score, 50.0))), 3)) for key, score in ranked[:5]
        )
        kept = (
            "start",
            "final",
            "trivial",
            "control",
            "progress",
            "steps",
            "suspects",
            "shared",
            "bad_samples",
            "bad_batches",
            "label_rank",
            "order_ratio",
            "steepening",
            "growth",
            "rank",
            "denormal",
            "overshoot",
            "shuffled",
            "raised",
            "behind",
            "depth_ratio",
            "time_ratio",
            "saturated",
            "dead",
            "shrunk",
            "move",
        )
        facts = {k: v for k, v in self.chart.facts.items() if k in kept}
        facts["findings"] = {f.name: round(f.strength, 3) for f in self.chart.findings.values()}
        facts["refused"] = [(t.cause, t.variant, t.before, t.after) for t in self.trials]
        facts["shortened"] = self._shortened()
        return Examination(
            verdict,
            sentence,
            causes,
            tuple(findings),
            code,
            trial,
            tuple(course.losses) if course is not None else (),
            tuple(self.chart.notes),
            round(time.perf_counter() - self.admitted, 2),
            facts,
        )


_CHECK = "check how labels and samples are matched (shuffled apart, shifted, wrong file)"


def cause_by_route(cause: Cause, chart: Chart) -> Cause:
    """Vanishing through depth is cured by normalisation, through time by the recurrence."""
    from dataclasses import replace

    if cause.key == "wrong_labels" and chart.has("targets_equal"):
        return replace(cause, cure="", name="all targets are equal", change=_CHECK)
    if cause.key == "bad_batch" and chart.has("inputs_lost"):
        return replace(
            cause,
            name="the inputs of some batches did not arrive",
            change="check how these batches are loaded and moved (zeros where data should be)",
            source="PyTorch: non_blocking transfers and pinned memory",
            proof=False,  # a fault, also where training hardly suffers
        )
    if cause.key == "labels_shifted" and chart.has("targets_are_inputs"):
        return replace(
            cause,
            name="the targets are the inputs, not shifted by one",
            change="predict the next symbol",
            code="inputs, targets = symbols[:, :-1], symbols[:, 1:]",
        )
    if cause.key == "labels_shifted" and chart.has("labels_outside"):
        return replace(
            cause, name="the labels begin at one", change="lower them", code="targets = targets - 1"
        )
    if cause.key == "wrong_labels" and not chart.has("labels_disagree"):
        return replace(
            cause, cure="", name="the targets do not follow from the inputs", change=_CHECK
        )
    if cause.key == "exploding_gradients" and not chart.has("explodes_time"):
        return replace(
            cause,
            cure="calm_depth",
            change="start from torch's default weights and clip, or normalise every layer",
        )
    if cause.key == "vanishing_gradients" and not chart.has("vanishes_time"):
        return replace(cause, cure="normalise")
    return cause


def sure_words(score: float) -> str:
    if score > 4:
        return "Almost certain:"
    return "Likely:" if score > 2 else "Possible:"


def _loss(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "not finite"


def _error_words(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160] if text else ''}".rstrip(": ")


def code_of(cause: Cause, chart: Chart, trial: Trial | None) -> str:
    """The code of a cause with the numbers of this run in its places."""
    facts = chart.facts
    numbers = facts.get("numbers", [])
    if cause.key == "bad_batch":
        where: Any = [numbers[i] for i in facts.get("bad_batches", ())]
    else:
        where = [(numbers[i], j) for i, j in facts.get("bad_samples", ())]
    values = {
        "variant": trial.variant if trial else 0.1,
        "steps": max(10, int(0.25 * facts.get("steps", 40))),
        "shift": facts.get("shift", 1),
        "where": where,
        "added": facts.get("added", 1),
        "norm": facts.get("norm", 1.0) or 1.0,
        "best": facts.get("best", 0),
        "low": facts.get("low", math.nan),
        "high": facts.get("high", math.nan),
        "lr": facts.get("lr", 1e-3),
        "momentum": facts.get("momentum", "momentum"),
        "ordinary": "(0.9, 0.999)" if facts.get("momentum") == "betas" else "0.9",
    }
    for key, value in values.items():
        for form in (f"{{{key}}}", f"{{{key}:g}}", f"{{{key}:.3g}}", f"{{{key}:.2g}}"):
            if form in cause.code:
                spec = form[1:-1].partition(":")[2]
                cause_text = format(value, spec) if spec else str(value)
                cause = _with_code(cause, cause.code.replace(form, cause_text))
    return cause.code


def _with_code(cause: Cause, code: str) -> Cause:
    from dataclasses import replace

    return replace(cause, code=code)
