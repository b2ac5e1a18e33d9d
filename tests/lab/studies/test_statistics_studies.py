"""E4, E11 and N5: the loops run small, exact distances are exact, and every verdict can come
out each way.
"""

from __future__ import annotations

import numpy as np
import pytest
from references.made_up_runs import verdicts

from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.certificate_runs import INSTANCES, shortest_way
from mindgap.lab.studies.loop import Trial
from mindgap.record.schema import End, Header, Run


def finished(study: str, method: str, rows: list[dict], seed: int = 0) -> Run:
    return Run(Header(study, "E4", "quick", method, seed, {}), tuple(rows), End("done"))


def settling(few: float, half: float, bias: float) -> list[dict]:
    names = ("loss", "gradient_norm", "noise", "sharpness")
    rows = []
    for order in (-1, 1):
        for m, off in ((32, few), (512, half), (1024, 0.0)):
            shift = bias if m == 32 else 0.0
            rows.append({"samples": m, **{f"{name}_off": order * off + shift for name in names}})
    return rows


@pytest.mark.parametrize(
    ("few", "half", "bias", "verdict"),
    [
        (0.3, 0.1, 0.2, "holds"),
        (0.004, 0.004, 0.0, "holds"),
        (0.3, 0.2, 0.2, "does not hold"),
        (0.1, 0.01, -0.5, "does not hold"),
    ],
)
def test_verdict_on_settling(few, half, bias, verdict):
    study = find("e4-estimates-settle")
    runs = [finished(study.name, method, settling(few, half, bias)) for method in study.methods]
    assert study.judge(runs).verdict == verdict


def test_two_sizes_are_enough_for_the_verdict_on_settling():
    """Of two the fewest samples are also the half of all."""
    study = find("e4-estimates-settle")
    rows = [row for row in settling(0.01, 0.1, 0.0) if row["samples"] != 512]
    runs = [finished(study.name, method, rows) for method in study.methods]
    assert study.judge(runs).verdict == "holds"


@pytest.mark.parametrize("method", ["convolutional network", "transformer"])
def test_parts_of_the_data_end_with_all_of_it(method):
    study = find("e4-estimates-settle")
    settings = {
        **study.settings("quick", method),
        "steps": 2,
        "samples": 48,
        "parts": 4,
        "orders": 2,
    }
    rows = list(study.loop(Trial(method, 0, settings)))
    assert [row["samples"] for row in rows] == [12, 24, 48] * 2
    assert rows[2]["noise_off"] == rows[2]["sharpness_off"] == 0.0
    for quantity in (
        "loss",
        "gradient_norm",
        "noise",
        "sharpness",
    ):  # the whole is the same in every order
        assert rows[2][quantity] == pytest.approx(rows[5][quantity], rel=5e-3)
    assert rows[0]["gradient_norm_off"] != rows[3]["gradient_norm_off"]


def balance(ratio: float, sharpness: float, last_loss: float = 1.0) -> list[dict]:
    row = {
        "loss": 1.0,
        "ratio": ratio,
        "mended_ratio": ratio,
        "edge": 0.5,
        "sharpness": sharpness,
        "lr": 0.1,
    }
    return [row] * 3 + [{**row, "loss": last_loss}]


@pytest.mark.parametrize(
    ("ratio", "slow", "fast", "last_loss", "verdict"),
    [
        (1.2, 9.0, 3.0, 1.0, "holds"),
        (0.2, 9.0, 3.0, 1.0, "holds"),  # the formula is very rough
        (0.05, 9.0, 3.0, 1.0, "does not hold"),
        (1.2, 3.0, 9.0, 1.0, "does not hold"),
        (1.2, 9.0, 3.0, 0.5, "inconclusive"),
    ],
)
def test_verdict_on_the_balance(ratio, slow, fast, last_loss, verdict):
    study = find("e11-balance-and-edge")
    runs = []
    for name in ("convolutional network", "transformer"):
        for lr, sharpness in ((0.03, slow), (0.3, fast)):
            rows = [{**row, "lr": lr} for row in balance(ratio, sharpness, last_loss)]
            runs.append(finished(study.name, f"{name}, step {lr:g}", rows))
    assert study.judge(runs).verdict == verdict


def test_the_balance_loop_reads_both_sides():
    study = find("e11-balance-and-edge")
    method = "convolutional network, step 0.1"
    settings = {
        **study.settings("quick", method),
        "steps": 4,
        "every": 2,
        "m": 16,
        "part": 8,
        "batch": 4,
    }
    rows = list(study.loop(Trial(method, 0, settings)))
    assert [row["step"] for row in rows] == [2, 4]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["left"] / row["right"])
        assert row["edge"] == pytest.approx(0.1 * row["sharpness"] / 2)


@pytest.mark.parametrize("family", ["zigzag", "quadratic"])
def test_exact_distances_against_a_fine_search(family):
    """Points of the ball have gradients inside the Goldstein set: never nearer to 0, and nearly
    as near.
    """
    rng = np.random.default_rng(3)
    for _ in range(5):
        instance = INSTANCES[family](rng)
        directions = rng.standard_normal((1500, len(instance.x)))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        points = (
            instance.x + 0.4 * rng.uniform(size=(1500, 1)) ** (1 / len(instance.x)) * directions
        )
        gradients = np.array([np.atleast_1d(instance.gradient(p)) for p in points])
        if family == "quadratic":  # a convex set already
            nearest = float(np.linalg.norm(gradients, axis=1).min())
        else:
            nearest = float(max(gradients.min(), -gradients.max(), 0.0))
        exact = instance.distance(0.4)
        assert nearest >= exact - 1e-9
        assert nearest <= exact + (0.15 if family == "quadratic" else 1e-9)


def test_the_shortest_way_to_a_piece():
    rng = np.random.default_rng(5)
    a, b, x = rng.standard_normal((6, 3)), rng.uniform(-1, 1, 6), rng.standard_normal(3)
    steps = rng.standard_normal((20000, 3))
    steps *= rng.uniform(0, 6, (20000, 1)) / np.linalg.norm(steps, axis=1, keepdims=True)
    largest = np.argmax((x + steps) @ a.T + b, axis=1)
    reached = 0
    for i in range(6):
        way = shortest_way(i, a, b, x)
        found = np.linalg.norm(steps[largest == i], axis=1)
        if not np.isfinite(way).all():
            assert not len(found)
            continue
        reached += 1
        values = a @ (x + way) + b
        assert values[i] >= values.max() - 1e-9
        assert not len(found) or found.min() >= np.linalg.norm(way) - 1e-9
    assert reached >= 3


@pytest.mark.parametrize("family", ["piecewise linear", "smooth quadratics"])
def test_certificates_close_in_from_above(family):
    study = find("n5-certificate")
    rows = list(
        study.loop(
            Trial(family, 0, {**study.settings("quick", family), "instances": 4, "samples": 12})
        )
    )
    excess = [row["excess"] for row in rows[:-1]]
    assert excess == sorted(excess, reverse=True)
    assert excess[-1] >= -1e-9
    assert rows[-1]["below"] == rows[-1]["first_fails"] == 0


@verdicts(
    refuted=[{"below": 1}, {"first_fails": 1}, {"second_fails": 1}],
    undecided=[{"close": 2}],
)
def test_verdict_on_certificates(case, verdict):
    study = find("n5-certificate")
    row = {"below": 0, "near": 9, "shown": 8, "first_fails": 0, "close": 6, "second_fails": 0}
    runs = [finished(study.name, method, [{**row, **case}]) for method in study.methods]
    assert study.judge(runs).verdict == verdict


def test_the_proposition_needs_its_radius():
    """With four times the radius the second part is false, and the study says so."""
    study = find("n5-certificate")
    settings = {"instances": 12, "samples": 2, "radius_factor": 4.0}
    runs = []
    for method in study.methods:
        trial = Trial(method, 0, {**study.settings("quick", method), **settings})
        runs.append(finished(study.name, method, list(study.loop(trial))))
    assert study.judge(runs).verdict == "does not hold"
