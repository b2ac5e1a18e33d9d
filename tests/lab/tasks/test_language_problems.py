"""Language models: what is held out stays held out, and words are masked as BERT's are."""

from __future__ import annotations

import pytest
import torch

from mindgap.base.check import RuleError
from mindgap.lab.tasks.models import SmallTransformer
from mindgap.lab.tasks.problems import language_model, masked_language_model
from mindgap.lab.tasks.problems.language import tokens_of_parts

WORDS = 60


def occurs(window: torch.Tensor, text: torch.Tensor) -> bool:
    starts = (text[: len(text) - len(window) + 1] == window[0]).nonzero().flatten()
    return bool((text[starts.unsqueeze(1) + torch.arange(len(window))] == window).all(dim=1).any())


def test_the_three_texts_are_the_whole_text_and_the_parts_come_from_theirs():
    train, validation, test = tokens_of_parts("prose", WORDS)
    assert len(train) > 15 * len(validation) > 10 * len(test) > 100_000
    problem = language_model("prose", words=WORDS, width=4, layers=1, length=12, validation=40)
    for name, own in (("validation", validation), ("test", test)):
        part = problem.parts[name]
        assert part.shape == (40, 13)
        assert all(occurs(window, own) for window in part)
        assert len({tuple(window.tolist()) for window in part}) == 40
    assert all(
        occurs(window, train) for window in problem.draw(torch.Generator().manual_seed(0), 10)
    )
    assert int(train.max()) == int(test.max()) == WORDS - 1


def test_masks_are_placed_as_said():
    problem = masked_language_model(
        "prose", words=WORDS, width=4, layers=1, length=20, validation=10
    )
    inputs, places, answers = problem.draw(torch.Generator().manual_seed(0), 2000)
    assert places.shape == (2000, 3)
    assert all(len(set(row.tolist())) == 3 for row in places[:200])
    restored = inputs.scatter(1, places, answers)
    train = tokens_of_parts("prose", WORDS)[0]
    assert all(occurs(window, train) for window in restored[:10])
    put = inputs.take_along_dim(places, dim=1)
    masked, kept = (put == WORDS).double(), (put == answers).double()
    other = 1 - masked - kept
    # Of 6000 words: shares within four standard errors; a word drawn at random is the right one now
    # and then.
    right_by_chance = 0.1 / WORDS
    for share, expected in (
        (masked, 0.8),
        (kept, 0.1 + right_by_chance),
        (other, 0.1 - right_by_chance),
    ):
        assert abs(float(share.mean()) - expected) < 4 * (expected * (1 - expected) / 6000) ** 0.5
    counts = torch.bincount(places.flatten(), minlength=20).double() / 6000
    assert (counts - 0.05).abs().max() < 4 * (0.05 * 0.95 / 6000) ** 0.5


def test_held_out_masks_do_not_depend_on_the_seed():
    first, second = (
        masked_language_model(
            "prose", words=WORDS, width=4, layers=1, length=8, validation=9, seed=seed
        )
        for seed in (0, 1)
    )
    assert all(torch.equal(a, b) for a, b in zip(first.parts["test"], second.parts["test"]))
    a, b = (
        dict(problem.objective.model.named_parameters())["out.weight"]
        for problem in (first, second)
    )
    assert not torch.equal(a, b)


@pytest.mark.parametrize("causal", [True, False])
def test_a_place_sees_what_it_may(causal):
    torch.manual_seed(0)
    model = SmallTransformer(words=9, width=8, heads=2, length=6, causal=causal).double()
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    changed = tokens.clone()
    changed[0, 4] = 8
    with torch.no_grad():
        moved = (model(tokens) - model(changed)).abs().amax(dim=2)[0] > 0
        assert moved.tolist() == ([False] * 4 + [True] * 2 if causal else [True] * 6)
        places = torch.tensor([[5, 0]])
        torch.testing.assert_close(
            model(tokens, places), model(tokens)[:, [5, 0]], rtol=1e-12, atol=0
        )


def test_what_is_asked_for_must_be_there():
    with pytest.raises(RuleError, match="text must be one of"):
        language_model("verse")
    with pytest.raises(RuleError, match="validation must lie in 1"):
        language_model("prose", words=WORDS, width=4, length=12, validation=10**6)
