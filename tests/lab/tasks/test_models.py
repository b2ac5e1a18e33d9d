"""The papers' own models: published parameter counts, and what makes each of them what it is."""

from __future__ import annotations

import pytest
import torch

from mindgap.lab.tasks.models import (
    AWDLSTM,
    AlexNet,
    Bert,
    MaskedBert,
    QuestionBert,
    ResNet18,
    ResNet20,
    TransformerXL,
)
from mindgap.lab.tasks.models.transformer_xl import _shift_scores


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_parameter_counts_are_the_published_ones():
    assert count(ResNet20()) / 1e6 == pytest.approx(0.27, abs=0.005)  # He et al. 2016, Table 6
    assert count(ResNet18()) / 1e6 == pytest.approx(11.17, abs=0.01)
    with torch.device("meta"):
        assert count(AWDLSTM(10_000)) / 1e6 == pytest.approx(
            24.2, abs=0.05
        )  # Merity et al. 2018, Table 1: 24M
        standard = TransformerXL(
            267_735, 410, 16, 10, 2100
        )  # Dai et al. 2019, Table 1: 151M on WikiText-103
        assert count(standard) / 1e6 == pytest.approx(151, abs=0.5)


def test_residual_networks_give_one_score_per_class():
    for model in (ResNet20(), ResNet18()):
        assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_weight_drop_changes_recurrent_weights_only_in_training():
    model = AWDLSTM(20, width=4, hidden=6, input_drop=0, hidden_drop=0, output_drop=0, word_drop=0)
    x = torch.randint(20, (2, 7))
    assert not torch.equal(model(x)[0], model(x)[0])
    before = [p.clone() for p in model.parameters()]
    model.eval()
    assert torch.equal(model(x)[0], model(x)[0])
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_the_state_of_awd_lstm_continues_a_text():
    model = AWDLSTM(20, width=4, hidden=6).eval()
    x = torch.randint(20, (2, 8))
    whole, _ = model(x)
    first, state = model(x[:, :5])
    rest, _ = model(x[:, 5:], state)
    assert torch.allclose(torch.cat([first, rest], 1), whole, atol=1e-5)


def test_the_relative_shift_gives_the_score_of_the_distance():
    length, reach = 3, 5
    scores = torch.arange(float(reach)).expand(
        1, 1, length, reach
    )  # column j: distance reach - 1 - j
    shifted = _shift_scores(scores)[0, 0]
    for i in range(length):
        for j in range(reach - length + i + 1):
            distance = (reach - length + i) - j
            assert int(shifted[i, j]) == reach - 1 - distance


def test_the_memory_of_transformer_xl_equals_the_longer_segment():
    model = TransformerXL(30, width=16, layers=1, heads=2, inner=32, memory=6).eval()
    x = torch.randint(30, (2, 10))
    whole, _ = model(x)
    _, memory = model(x[:, :6])
    rest, _ = model(x[:, 6:], memory)
    assert torch.allclose(rest, whole[:, 6:], atol=1e-5)


def test_transformer_xl_looks_at_no_later_word():
    model = TransformerXL(30, width=16, layers=2, heads=2, inner=32).eval()
    x = torch.randint(30, (1, 6))
    changed = x.clone()
    changed[0, -1] = (x[0, -1] + 1) % 30
    assert torch.allclose(model(x)[0][:, :-1], model(changed)[0][:, :-1], atol=1e-6)


def test_bert_and_alexnet_have_the_published_sizes():
    assert count(AlexNet()) == 2_472_266
    with torch.device("meta"):
        base = count(Bert())
        assert (
            base == 108_891_648
        )  # Devlin et al. 2019: 110M, of which the pooler (0.59M) is left out
        assert base + 768 * 768 + 768 == pytest.approx(110e6, rel=0.005)
        assert count(MaskedBert()) == 109_514_298  # transformers' BertForMaskedLM
        assert count(QuestionBert()) == 108_893_186  # transformers' BertForQuestionAnswering
        six = count(Bert(layers=6))
        assert base - six == 6 * (count(Bert(layers=2)) - count(Bert(layers=1)))
        without = count(Bert(attention=False))
        assert base - without == 12 * (4 * (768 * 768 + 768) + 2 * 768)


def test_bert_without_attention_reads_each_place_alone():
    words = torch.randint(20, (2, 6))
    other = words.clone()
    other[:, 0] = (other[:, 0] + 1) % 20
    for attention in (True, False):
        torch.manual_seed(0)
        model = Bert(20, width=8, layers=2, heads=2, inner=16, attention=attention).eval()
        change = (model(words) - model(other)).abs().sum(-1)
        assert (change[:, 0] > 0).all()
        assert bool((change[:, 1:] > 0).any()) == attention


def test_bert_masks_padding_and_ties_its_vectors():
    model = MaskedBert(words=20, width=8, layers=2, heads=2, inner=16).eval()
    words = torch.randint(20, (2, 6))
    seen = torch.tensor([[True] * 4 + [False] * 2] * 2)
    padded = words.clone()
    padded[:, 4:] = 0
    assert torch.allclose(
        model(words, visible=seen)[:, :4], model(padded, visible=seen)[:, :4], atol=1e-6
    )
    assert "out.weight" not in model.state_dict()
    model(words, torch.tensor([[1], [2]])).sum().backward()
    assert model.encoder.words.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("attention", [True, False])
def test_bert_computes_some_places_as_if_it_had_computed_all(attention):
    """Places within each text and places counted over all texts; gradients too."""
    torch.manual_seed(0)
    model = MaskedBert(
        words=20, width=8, layers=2, heads=2, inner=16, dropout=0.0, attention=attention
    )
    words, places = torch.randint(20, (3, 6)), torch.tensor([[0, 5], [2, 2], [4, 1]])
    seen = torch.arange(6) < torch.tensor([[6], [5], [6]])

    def gradient(scores: torch.Tensor) -> torch.Tensor:
        parts = torch.autograd.grad(scores.square().sum(), list(model.parameters()))
        return torch.cat([part.flatten() for part in parts])

    everywhere = model(words, visible=seen)
    within = everywhere.take_along_dim(places.unsqueeze(-1), dim=1)
    ours = model(words, places, seen)
    assert torch.allclose(ours, within, atol=1e-6)
    assert torch.allclose(gradient(ours), gradient(within), atol=1e-4)
    on_end = torch.tensor([17, 3, 3])
    assert torch.allclose(model(words, on_end, seen), everywhere.flatten(0, 1)[on_end], atol=1e-6)


def test_bert_equals_the_one_of_transformers():
    transformers = pytest.importorskip("transformers")
    settings = transformers.BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
    )
    theirs = transformers.BertForMaskedLM(settings).eval()
    ours = MaskedBert(words=30, width=8, layers=2, heads=2, inner=16).eval()
    source = theirs.state_dict()
    target = {}
    for name, to in (
        ("embeddings.word_embeddings", "words"),
        ("embeddings.position_embeddings", "places"),
        ("embeddings.token_type_embeddings", "parts"),
    ):
        target[f"encoder.{to}.weight"] = source[f"bert.{name}.weight"]
    pairs = [
        ("bert.embeddings.LayerNorm", "encoder.norm"),
        ("cls.predictions.transform.dense", "dense"),
        ("cls.predictions.transform.LayerNorm", "norm"),
    ]
    for i in range(2):
        layer, block = f"bert.encoder.layer.{i}", f"encoder.blocks.{i}"
        pairs += [
            (f"{layer}.attention.output.dense", f"{block}.mixed"),
            (f"{layer}.attention.output.LayerNorm", f"{block}.norm1"),
            (f"{layer}.intermediate.dense", f"{block}.up"),
            (f"{layer}.output.dense", f"{block}.down"),
            (f"{layer}.output.LayerNorm", f"{block}.norm2"),
        ]
        for kind in ("weight", "bias"):
            parts = [
                source[f"{layer}.attention.self.{part}.{kind}"]
                for part in ("query", "key", "value")
            ]
            target[f"{block}.triple.{kind}"] = torch.cat(parts)
    target |= {
        f"{to}.{kind}": source[f"{name}.{kind}"]
        for name, to in pairs
        for kind in ("weight", "bias")
    }
    target["bias"] = source["cls.predictions.bias"]
    ours.load_state_dict(target)
    words = torch.randint(30, (3, 7))
    torch.testing.assert_close(ours(words), theirs(words).logits, rtol=1e-5, atol=1e-6)


def test_word_pieces_cover_the_corpus():
    pytest.importorskip("tokenizers")
    from mindgap.lab.tasks.data.wordpiece import train_word_pieces

    texts = ["the cat sat on the mat", "the cats sat on mats"] * 5
    pieces = train_word_pieces(texts, size=40)
    numbers = pieces.numbers(["The cats", "zebra"])
    assert "".join(p.removeprefix("##") for p in pieces.words(numbers[0])) == "thecats"
    assert pieces.words(numbers[1]) == ["[UNK]"]
    assert pieces.words(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(pieces) <= 40
