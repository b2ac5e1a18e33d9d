"""Trials of cures: copies of the user's training with one change, as long as the first run.

The thresholds (the two numbers of a ``ramp``: strength 0 at the first, 1 at the second) were chosen
on the development cases of ``benchmarks/doctor``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from mindgap.advise.doctor.answer import loss_words
from mindgap.advise.doctor.causes import CAUSES, Cause
from mindgap.advise.doctor.chart import Chart, ramp
from mindgap.advise.doctor.course import Course, follow, held_out_loss
from mindgap.advise.doctor.course_readings import progress, read_growth, read_ray, reference_loss
from mindgap.advise.doctor.cures import CURES
from mindgap.advise.doctor.model_readings import layers
from mindgap.advise.doctor.page import Trial
from mindgap.advise.doctor.patient import Admission, Patient
from mindgap.base.check import RuleError, error_words


@dataclass
class CureTrials:
    """Tries cures on fresh copies and remembers the runs."""

    admission: Admission  # makes the copies
    chart: Chart  # what is known so far; trials add to it
    trained: Patient  # the user's training after the first run
    steps: int  # of every run
    time_left: Callable[[], float]  # seconds; below zero only runs that were made are used
    #: (cure, variant) -> its run, and the held-out loss without the cure.
    runs: dict[tuple[str, float], tuple[Course, float]] = field(default_factory=dict)
    untried_cures: int = 0  # for which no time was left

    def try_cure(self, cause: Cause) -> Trial | None:
        """Try the variants of a cause's cure in their order, and return the trial of the best one,
        helpful or not; None where none can be tried.

        It stops at a variant that is worse than a helpful one before it, behind a normalisation
        that helps, and at a variant that was not run before once the time is up.
        """
        best: Trial | None = None
        for variant in CURES[cause.cure].variants:
            if self.time_left() < 0 and (cause.cure, variant) not in self.runs:
                self.untried_cures += 1
                break
            trial = self._try_variant(cause, variant)
            if trial is None:
                continue
            better = best is None or (trial.helps, -trial.after) > (best.helps, -best.after)
            if best is not None and best.helps and not better:
                break
            best = trial if better else best
            if trial.helps and cause.cure == "normalise":
                break
        return best

    def _try_variant(self, cause: Cause, variant: float) -> Trial | None:
        """Try one variant of a cure, and return the trial with the held-out losses before and
        after; None where it cannot be tried.

        A cure of bad data that does not lower the loss helps where a spike is gone. The losses of
        the trial are then the spike and the largest training loss with the cure.
        """
        run = self._run(cause.cure, variant)
        if run is None:
            return None
        course, before = run
        after = course.final_held_out if course.broke_at < 0 else math.inf
        if CURES[cause.cure].changes_loss and math.isfinite(before):
            helps = after < before - 0.02 * abs(before)  # the yardsticks have another loss
        else:
            helps = self._helps(before, after, proven=not cause.proof)
        spike = self.chart.facts.spike
        if spike is not None and cause.key in ("bad_batch", "bad_sample") and not helps:
            largest = max(course.losses, default=math.inf)
            if largest < 0.1 * spike and after < before + 0.05 * abs(before):
                before, after, helps = spike, largest, True  # the spike is gone
        losses = tuple(course.losses)
        return Trial(cause.key, variant, before, after, len(losses), helps, losses)

    def _run(self, cure_key: str, variant: float) -> tuple[Course, float] | None:
        """Train a fresh copy with a cure; a run that was made before is taken from ``self.runs``.

        Returns:
            The course with the cure, and the held-out loss without it. None where the cure cannot
            be applied or raises an error, which becomes a note.
        """
        cure = CURES[cure_key]
        if (cure_key, variant) in self.runs:
            return self.runs[cure_key, variant]
        try:
            patient = self.admission.fresh()
            cure.apply(patient, self.chart, variant)
        except RuleError:
            return None
        except (Exception, SystemExit) as error:
            self.chart.notes.append(f"the cure '{cure_key}' failed ({error_words(error)})")
            return None
        course = follow(patient, self.steps)
        if course.error is not None:
            self.chart.notes.append(f"the cure '{cure_key}' raised {error_words(course.error)}")
            return None
        before = self.chart.facts.final
        if cure.changes_loss:
            before = self._loss_without_cure(patient)
        self.runs[cure_key, variant] = (course, before)
        return course, before

    def _loss_without_cure(self, cured: Patient) -> float:
        """Loss of the user's trained model under the loss and the contexts of a cured copy, on its
        validation batches (its training batches where it has none). Infinite where it raises.
        """
        trained = self.trained
        judged = Patient(
            trained.model,
            cured.loss,
            trained.train,
            cured.valid,
            trained.optimizer,
            contexts=cured.contexts,
        )
        try:
            return held_out_loss(judged, cured.valid or cured.train)
        except (Exception, SystemExit):
            return math.inf

    def _helps(self, before: float, after: float, *, proven: bool) -> bool:
        """Whether the loss after a cure is clearly lower than before: by 2 %, and by 5 % of its
        distance to the reference loss (the best constant answer's, else the loss at the start).

        Where the loss before was not finite, that after must not be above the start or the
        reference by 2 %. A run that was good before must gain 8 % of progress, or 3 % where sorted
        data were shuffled to a much lower loss, unless the cause is proven.

        Args:
            before, after: held-out losses.
            proven: whether the cause needs no proof by its cure.
        """
        if not math.isfinite(after):
            return False
        chart = self.chart
        reference = reference_loss(chart)
        if not math.isfinite(before):
            limit = 1.02 * max(reference, chart.facts.start)
            return not math.isfinite(reference) or after < limit
        if not proven and progress(chart, before) > 0.5:
            least_gain = 0.08 if after > 0.6 * before or not chart.has("sorted") else 0.03
            if progress(chart, after) < progress(chart, before) + least_gain:
                return False
        distance = max(abs(reference - after), 0.02 * abs(reference))
        clearly_below = before * 0.98 if before > 0 else before
        return after < before - 0.05 * distance and after < clearly_below

    # Learning rates, warm-up and clipping are tried where the findings leave them in doubt.

    def compare_learning_rates(self, course: Course) -> None:
        """Find whether a smaller or a larger learning rate, or a warm-up, trains better.

        They are tried only where the user gave an optimizer and the run is in doubt: it learned
        little, less than a plain network, or its steps are long.

        Args:
            course: the first run.
        """
        chart = self.chart
        plain_loss = chart.facts.control
        # Progress that can be hoped for: the plain network's, or half where there is none.
        reachable = progress(chart, plain_loss) if plain_loss is not None else 0.5
        learned_little = chart.facts.progress < max(0.3, reachable - 0.1)
        doubtful = learned_little or chart.has_any("blew_up", "moves_much")
        if not doubtful or "optimizer" not in self.trained.given:
            return
        slower = self._try_smaller_rate(course)
        if not chart.has_any("broke", "blew_up") and not chart.facts.rate_rises:
            self._try_larger_rate()
        if chart.has("slower_helps") and slower is not None and self._warm_up_is_usual():
            self._try_warm_up(slower)

    def _try_smaller_rate(self, course: Course) -> Trial | None:
        """Try smaller learning rates, and add the finding ``slower_helps`` with the progress that
        the best one gains. Returns its trial, helpful or not; None where none could be tried.
        """
        chart = self.chart
        slower = self.try_cure(CAUSES["lr_too_large"])
        if slower is None or not slower.helps:
            return slower
        # A loss far above the reference counts as -0.5: the way back from there is no gain.
        gain = progress(chart, slower.after) - max(chart.facts.progress, -0.5)
        if course.broke_at < 0:  # a rate that is too large shows in training, too
            training_loss = self.runs["slower", slower.variant][0].final
            gain = min(gain, progress(chart, training_loss) - progress(chart, course.final))
        chart.find("slower_helps", ramp(gain, zero_at=0.04, one_at=0.15), _rate_words(slower))
        return slower

    def _try_larger_rate(self) -> None:
        """Try larger learning rates, and add the finding ``faster_helps``: strong where the best
        one makes much more progress than the user's, which makes less than about half of it.
        """
        chart = self.chart
        faster = self.try_cure(CAUSES["lr_too_small"])
        if faster is None or not faster.helps:
            return
        progress_now, reached = chart.facts.progress, progress(chart, faster.after)
        share_now = max(progress_now, 0.0) / max(reached, 1e-9)
        ahead = ramp(reached - progress_now, zero_at=0.05, one_at=0.25)
        slow = ramp(share_now, zero_at=0.6, one_at=0.3)
        chart.find("faster_helps", ahead * slow, _rate_words(faster))

    def _warm_up_is_usual(self) -> bool:
        """Whether an optimizer with betas (Adam), at a learning rate of 0.03 at most, trains a
        network with attention or with eight layers or more: such a run usually has a warm-up.
        """
        model, group = self.trained.model, self.trained.optimizer.param_groups[0]
        attention = any(isinstance(m, torch.nn.MultiheadAttention) for m in model.modules())
        deep = len(layers(model)) >= 8
        return "betas" in group and float(group["lr"]) <= 0.03 and (attention or deep)

    def _try_warm_up(self, slower: Trial) -> None:
        """Find whether a warm-up at the same rate makes about as much progress as the smaller rate.

        Args:
            slower: trial of the smaller rate.
        """
        chart = self.chart
        warm = self.try_cure(CAUSES["no_warmup"])
        if warm is None or not warm.helps:
            return
        if progress(chart, warm.after) > progress(chart, slower.after) - 0.01:
            chart.find(
                "warmup_helps",
                1.0,
                f"With a warm-up at the same learning rate the loss ends at {warm.after:.3g}, not "
                f"{warm.before:.3g}.",
            )
            chart.find("no_warmup_sign", 1.0, "Adam trains a deep attention network.")

    def compare_clipping(self) -> None:
        """Find whether clipping at the same rate makes about as much progress as a smaller rate.
        Only tried where the run broke or blew up, and where the smoothness, or the loss's
        curvature, grows with the gradient.
        """
        chart = self.chart
        if not chart.has_any("blew_up", "broke"):
            return
        chart.attempt("the smoothness", lambda: read_ray(chart, self.admission.fresh()))
        chart.attempt("the loss's growth", lambda: read_growth(chart, self.admission.fresh()))
        if not chart.has("steep"):
            return
        slower = self.try_cure(CAUSES["lr_too_large"])
        clipped = self.try_cure(CAUSES["smoothness_grows"])
        if clipped is None or not clipped.helps:
            return
        slower_loss = slower.after if slower is not None and slower.helps else math.inf
        ahead = progress(chart, clipped.after) - progress(chart, slower_loss)
        if chart.facts.loss_growth > 0.3:
            ahead += 0.25  # the loss itself is steep: a smaller rate only hides it
        chart.find(
            "clipping_helps",
            ramp(ahead, zero_at=-0.05, one_at=0.0),
            f"With clipping at the same learning rate the loss ends at {clipped.after:.3g}; "
            f"with a smaller one at {loss_words(slower_loss)}.",
        )


def _rate_words(trial: Trial) -> str:
    """What a trial of another learning rate gave, in words."""
    return (
        f"At {trial.variant:g} times the learning rate the loss ends at {trial.after:.3g}, not "
        f"{trial.before:.3g}."
    )
