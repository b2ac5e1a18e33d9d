"""E1 and E2: samples are augmented as said, the loops read what they say, and every verdict can
come out each way.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from references.made_up_runs import made_up, only_first_seed, verdicts

from mindgap.base.check import RuleError
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.never_at_rest_runs import level
from mindgap.lab.studies.training_runs import step_factor
from mindgap.lab.tasks.problems import augmented_network, digits_network
from mindgap.record.schema import to_json

E1, E2 = "e1-image-network", "e2-language-model"


def course(norm, noise=2.0, loss=1.0, accuracy=0.9, readings=39, sharpness=1.0):
    """A run that begins with norm 1, noise 1 and loss 2 and then has these (a number, or a
    function of the share).
    """
    rows = [
        {"loss": 2.0, "noise": 1.0, "gradient_norm": 1.0, "gradient_square": 1.0, "accuracy": 0.1}
    ]
    for share in np.arange(1, readings + 1) / readings:
        g, s, value = (float(f(share) if callable(f) else f) for f in (norm, noise, loss))
        rows.append(
            {
                "loss": value,
                "noise": s,
                "gradient_norm": g,
                "gradient_square": g**2,
                "accuracy": accuracy,
                "sharpness": sharpness,
            }
        )
    return rows


def images(*, full=1.0, long=2.0, noise=2.0, loss=1.0, accuracy=0.9, spread=0.05, more=(3.0, 2.0)):
    """``more``: noise and sharpness of the run with a tenth of the step; 2 and 1 in the others."""
    wobble = 1 + spread * np.array([-1.0, 1.0, 0.4])
    return made_up(
        E1,
        {
            "step drops twice": [course(w, noise * w, loss, accuracy) for w in wobble],
            "constant step": [course(full * w) for w in wobble],
            "a tenth of it, longer": [
                course(
                    (lambda s, w=w: long(s) * w) if callable(long) else long * w,
                    more[0] * w,
                    sharpness=more[1] * w,
                )
                for w in wobble[::-1]
            ],
        },
    )


@verdicts(
    refuted=[
        {"full": 0.001, "long": 0.002},  # goes to zero
        {"noise": 0.5},
        {"full": 3.0},  # the smaller step has the smaller norm
        {"more": (1.0, 2.0)},  # or the smaller noise
        {"more": (3.0, 0.5)},  # or the smaller sharpness
        {"long": lambda share: 4.0 - 2.0 * share},  # falls when trained longer
    ],
    undecided=[
        {"full": 0.05},  # between a hundredth and a tenth
        {"spread": 0.9},
        {"accuracy": 1.0},
        {"loss": lambda share: 3.0 - 2.0 * share},
        {"loss": lambda share: 3.0 - 2.0 * share, "noise": 0.5},  # a run too short refutes nothing
    ],
)
def test_verdict_on_images(case, verdict):
    assert find(E1).judge(images(**case)).verdict == verdict


def test_a_loss_that_settles_after_each_drop_has_settled():
    falls = images(loss=lambda share: [1.0, 0.5, 0.1][min(int(3 * share - 1e-9), 2)])
    assert find(E1).judge(falls).verdict == "holds"


def words(*, small=3.0, middle=2.0, large=1.0, noise=2.0, loss=1.0, spread=0.05):
    wobble = 1 + spread * np.array([-1.0, 1.0, 0.4])
    ends = {"cosine from the largest step": [course(large * w, noise, loss) for w in wobble]}
    names = ("constant, a fifth of it", "constant, two fifths", "constant, the largest step")
    for i, (name, norm) in enumerate(zip(names, (small, middle, large))):
        ends[name] = [
            course(
                (lambda s, w=w, n=norm: n(s) * w) if callable(norm) else norm * w,
                (4.0 - i) * w,
                sharpness=(3.0 - i) * w,
            )
            for w in np.roll(wobble, i)
        ]
    return made_up(E2, ends)


@verdicts(
    refuted=[
        {"small": 1.0},
        {"small": lambda share: 6.0 - 3.0 * share},  # larger than the others, and decreasing
        {"noise": 0.5},
        {"large": 1e-3, "middle": 2e-3, "small": 3e-3},
    ],
    undecided=[{"small": 2.02}, {"loss": lambda share: 3.0 - 2.0 * share}],
)
def test_verdict_on_words(case, verdict):
    assert find(E2).judge(words(**case)).verdict == verdict


def test_one_seed_says_nothing():
    assert find(E1).judge(only_first_seed(images())).verdict == "inconclusive"


def test_negative_squares_are_averaged_before_the_root():
    rows = [{"gradient_square": v} for v in (9.0, 3.0, -1.0, 2.0, -2.0)]
    (run,) = made_up(E1, {"constant step": [rows]})
    assert level(run, "gradient_square", 0.0, 0.5) == 1.0  # the reading at the start is left out
    assert level(run, "gradient_square", 0.75, 1.0) == 0.0
    (short,) = made_up(E1, {"constant step": [rows[:3]]})
    assert level(short, "gradient_square", 0.75, 1.0) == 0.0
    assert level(short, "gradient_square", 0.0, 0.25) == 3.0**0.5


SMALL = {"steps": 4, "every": 2, "m": 12, "part": 4, "batch": 4, "sharp_every": 2}


@pytest.mark.parametrize(
    ("name", "method", "steps"),
    [
        (E1, "step drops twice", [0, 2, 4]),
        (E1, "a tenth of it, longer", [0, 2, 4, 6, 8, 10, 12]),
        (E2, "cosine from the largest step", [0, 2, 4]),
    ],
)
def test_the_loops_read_fresh_samples_and_keep_the_schedule(name, method, steps):
    study = find(name)
    settings = {**study.settings("quick", method), **SMALL}
    rows = list(study.loop(Trial(method, 0, settings)))
    assert [row["step"] for row in rows] == steps
    assert ["sharpness" in row for row in rows] == [i % 2 == 0 for i in range(len(rows))]
    assert all(row["gradient_norm"] == max(row["gradient_square"], 0.0) ** 0.5 for row in rows)
    total = round(settings["steps"] * settings["stretch"])
    factors = [
        settings["factor"] * step_factor(settings["schedule"], max(k - 1, 0), total) for k in steps
    ]
    assert [row["lr"] for row in rows] == pytest.approx([settings["lr"] * f for f in factors])


def test_images_are_moved_and_mirrored_and_nothing_else():
    plain = digits_network(width=1).parts["train"]
    values, counts = [], []
    for flip in (False, True):
        problem = augmented_network("digits", width=1, shift=1, flip=flip)
        images, labels = problem.draw(torch.Generator().manual_seed(1), 300)
        padded = torch.nn.functional.pad(plain[0], (1,) * 4, value=float(plain[0].min()))
        every = {}
        for dy in range(3):
            for dx in range(3):
                window = padded[:, :, dy : dy + 8, dx : dx + 8]
                for mirrored in (False, True):
                    every[dy, dx, mirrored] = window.flip(3) if mirrored else window
        seen = set()
        for image, label in zip(images, labels):
            ways = [
                way
                for way, all_images in every.items()
                if ((all_images[plain[1] == label] - image).abs().amax((1, 2, 3)) < 1e-4).any()
            ]
            assert ways
            seen |= set(ways[:1])
            values.append(flip or any(not mirrored for *_, mirrored in ways))
        counts.append(len(seen))
    assert all(values)
    assert counts[1] > counts[0] >= 9
    right = [
        augmented_network("digits", width=1, shift=0, wrong_labels=w).draw(
            torch.Generator().manual_seed(1), 4000
        )
        for w in (0.0, 0.5)
    ]
    assert torch.equal(right[0][0], right[1][0])
    # Within four standard errors; a label at random is the right one in a tenth of the cases.
    assert (
        abs(float((right[0][1] == right[1][1]).double().mean()) - 0.55)
        < 4 * (0.55 * 0.45 / 4000) ** 0.5
    )
    with pytest.raises(RuleError, match="shift must be"):
        augmented_network("digits", shift=-1)


def test_a_cell_that_diverged_is_not_run_again():
    """E9: a run interrupted after a divergence goes on with the next γ and step."""
    study = find("e9-compact-set")
    settings = study.settings("quick", "3 layers", {"steps": 60, "copies": 2, "step_factor": 1e4})
    trial, rows, states = Trial("3 layers", 0, settings), [], []
    for row in study.loop(trial):
        rows.append(row)
        states.append(trial.take_saved())
    after = next(i for i, row in enumerate(rows) if np.isinf(row["size"]))
    assert after + 1 < len(rows)
    resumed = Trial("3 layers", 0, settings, restored=states[after])
    assert to_json(list(study.loop(resumed))) == to_json(rows[after + 1 :])
