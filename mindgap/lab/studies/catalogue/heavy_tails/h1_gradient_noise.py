"""H1 and H11: the noise of an image network is concentrated, that of a language transformer heavy-tailed; norms against
coordinates.

Two controls run beside the networks, norms of Gaussian and of stable vectors (Fig. 2 b, e of acclip): if the instrument
does not tell these apart at the sample's size, the verdict is inconclusive whatever the networks give. What counts as
told apart was calibrated on 200 synthetic samples of each law at the size of scale quick, with random numbers of their
own: Gaussian vectors were called "not heavier, settles" 200 times; stable vectors were called heavier 200 times, their
variance "does not settle" 138 times and "cannot tell" 62 times, never "settles". So a control fails when its tail is
called wrong, when Gaussian vectors do not settle, or when stable ones do: below 1.5 % each by that count. To ask that
stable vectors be called "does not settle" would throw away half of all runs with two seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mindgap.base.source import Source
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.noise_runs import control_norms, median_of, norm_rows, number, word
from mindgap.lab.studies.spec import Figure, Scale, Study
from mindgap.lab.studies.verdict import by_method
from mindgap.record.schema import Row, Run, Verdict


def loop_norms(trial: Trial) -> Iterator[Row]:
    """Noise norms at initialisation: their histogram, their tail by four methods, the variance against sample size."""
    with trial.timed():
        network = trial["source"] in ("digits", "prose")
        norms = _noise(trial).norms if network else control_norms(trial, trial["source"])
    yield from norm_rows(trial, norms)


def _noise(trial: Trial) -> Any:
    from mindgap.lab.tasks.problems.training import digits_network, prose_transformer
    from mindgap.measure.probes.noise import noise_sample

    build = digits_network if trial["source"] == "digits" else prose_transformer
    problem = build(seed=trial.seed)
    batches = problem.batches(trial.torch("minibatches"), trial["minibatches"], trial["batch"])
    return noise_sample(problem.objective, batches, seed=trial.seed, coordinates=64)


def judge_norms(runs: Sequence[Run]) -> Verdict:
    """Holds when the transformer's norms are heavier than Gaussian with a variance that does not settle, and the
    convolutional network's neither; median answers over the seeds. Controls that come out wrong decide nothing."""
    answers, numbers = {}, {}
    for name, group in by_method(runs).items():
        heavier, settles = (median_of(group, column) for column in ("hill_heavier", "settles"))
        index, exponent = (median_of(group, column) for column in ("hill_index", "exponent"))
        answers[name] = (heavier, settles)
        numbers[name] = {"heavier": heavier, "settles": settles, "index": index, "exponent": exponent}
    measured = "; ".join(
        f"{name}: index {v['index']:.1f}, heavier than Gaussian {word(v['heavier'])}, variance settles "
        f"{word(v['settles'])} (m^{v['exponent']:.2f})"
        for name, v in numbers.items()
    )
    gaussian, stable = answers["Gaussian vectors"], answers["stable vectors"]
    if gaussian[0] == 1.0 or stable[0] < 1.0 or gaussian[1] < 1.0 or stable[1] == 1.0:
        return Verdict("inconclusive", f"the controls are not told apart; {measured}", numbers)
    image, text = answers["convolutional network"], answers["transformer"]
    if text == (1.0, 0.0) and image[0] < 1.0 and image[1] > 0.0:
        return Verdict("holds", measured, numbers)
    refuted = image[0] == 1.0 or image[1] == 0.0 or text[0] == 0.0 or text[1] == 1.0
    return Verdict("does not hold" if refuted else "inconclusive", measured, numbers)


def loop_coordinates(trial: Trial) -> Iterator[Row]:
    """Three readings of one noise sample: norms, coordinates pooled as published, coordinates on one scale a layer."""
    from mindgap.measure.probes.tails import tail_index
    from mindgap.measure.tail_estimators import published_block_sum_index

    with trial.timed():
        sample = _noise(trial)
    pooled = trial.numpy("order").permutation(sample.coordinates.astype(float).reshape(-1))
    shown = {
        "coordinates, as published": published_block_sum_index(pooled[pooled != 0]),
        "coordinates, one scale a layer": tail_index(
            sample, "block-sum", of="coordinates", per_layer=True, bootstrap=20, null=20, seed=trial.seed
        ).index,
        "norms": tail_index(sample, "block-sum", bootstrap=20, null=20, seed=trial.seed).index,
    }
    for place, (reading, index) in enumerate(shown.items()):
        yield {"reading": reading, "place": place, "index": min(index, 1e3)}
    hill = tail_index(sample, seed=trial.seed)
    yield {"norms_heavier": number(hill.heavier), "norms_index": min(hill.index, 1e3),
           "published": shown["coordinates, as published"], "per_layer": shown["coordinates, one scale a layer"]}


def judge_coordinates(runs: Sequence[Run]) -> Verdict:
    """Holds when, on the image network, the published estimator per coordinate says heavy (below 1.8) and the norms do
    not say heavier than Gaussian; medians over the seeds."""
    groups = by_method(runs)
    columns = ("published", "per_layer", "norms_index", "norms_heavier")
    numbers = {name: {c: median_of(group, c) for c in columns} for name, group in groups.items()}
    measured = "; ".join(
        f"{name}: coordinates as published {v['published']:.2f}, on one scale a layer {v['per_layer']:.2f}; norms "
        f"{v['norms_index']:.1f} by Hill, heavier than Gaussian {word(v['norms_heavier'])}"
        for name, v in numbers.items()
    )
    image = numbers["convolutional network"]
    if image["norms_heavier"] == 0.5:
        return Verdict("inconclusive", measured, numbers)
    differ = image["published"] < 1.8 and image["norms_heavier"] == 0.0
    return Verdict("holds" if differ else "does not hold", measured, numbers)


_NETWORKS = {"convolutional network": {"source": "digits"}, "transformer": {"source": "prose"}}
_QUICK = Scale({"minibatches": 1024, "batch": 8, "source": "digits"}, seeds=2)
_CPU = Scale({"minibatches": 20_000, "batch": 8, "source": "digits"}, seeds=5)

STUDIES = (
    Study(
        name="h1-gradient-noise",
        claim="H1",
        title="Whose gradient noise is heavy-tailed?",
        statement="At initialisation the noise norms of an image network are concentrated, those of a language "
        "transformer heavy-tailed, and the empirical variance settles for the first and not for the second.",
        source=Source("acclip", "section 2, Fig. 2"),
        scales={"quick": _QUICK, "cpu": _CPU},
        methods={**_NETWORKS, "Gaussian vectors": {"source": "gaussian"}, "stable vectors": {"source": "stable"}},
        loop=loop_norms,
        judge=judge_norms,
        figures=(
            Figure("Norms of the gradient noise over their median", "share", "share of minibatches", x="norm",
                   x_label="norm / median norm", caption="Norms above 4 medians are not drawn; the records have them."),
            Figure("Empirical variance against sample size", "variance", "variance / its last value", x="minibatches",
                   x_label="minibatches", log_x=True, log_y=True,
                   caption="As the papers draw it: one order of the minibatches a seed. A finite variance levels off."),
            Figure("Tail index by four estimators", "index", "tail index", x="place", kind="points", log_y=True,
                   x_names=("Hill", "moment", "block\nsums", "stable\nquantiles"),
                   hlines={"infinite variance below": 2.0},
                   caption="Gaussian samples give values far above 2 by the first two and 2 by the others."),
        ),
    ),
    Study(
        name="h11-coordinates-or-norms",
        claim="H11",
        title="Coordinates or norms: two answers about one noise",
        statement="Estimated coordinate by coordinate, the noise of an image network has a tail index below 2, while "
        "the noise as a vector is concentrated.",
        source=Source("acclip", "App. H"),
        scales={"quick": _QUICK, "cpu": _CPU},
        methods=_NETWORKS,
        loop=loop_coordinates,
        judge=judge_coordinates,
        figures=(
            Figure("Index by three readings of one noise sample", "index", "index", x="place", kind="points",
                   x_names=("coordinates,\nas published", "coordinates, one\nscale a layer", "norms"),
                   hlines={"Gaussian": 2.0}, caption="Scales that differ between layers look like a tail."),
        ),
    ),
)  # fmt: skip
