"""Arrays in the cache folder are made once; WikiText-2 becomes word pieces once."""

from __future__ import annotations

import numpy as np
import pytest

from mindgap.lab.tasks.data import wordpiece
from mindgap.lab.tasks.data.prepared import prepared


def test_arrays_are_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("MINDGAP_CACHE", str(tmp_path))
    calls = []

    def make() -> dict[str, np.ndarray]:
        calls.append(1)
        return {"a": np.arange(3), "b": np.ones((2, 2))}

    first, second = prepared("things", make), prepared("things", make)
    assert len(calls) == 1
    assert all(np.array_equal(first[name], second[name]) for name in ("a", "b"))


def test_what_fails_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("MINDGAP_CACHE", str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        prepared("things", lambda: {"a": np.array(1 // 0)})
    assert prepared("things", lambda: {"a": np.arange(2)})["a"].tolist() == [0, 1]


def test_the_pieces_of_a_text(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("MINDGAP_CACHE", str(tmp_path))
    words = ["the", "cat", "sat", "<eos>", "<eos>", "the", "<unk>", "sat", "<eos>"]
    monkeypatch.setattr(wordpiece, "language_tokens", lambda name, split: words)
    pieces = wordpiece.wikitext_pieces(40)["train"]
    assert (
        pieces == wordpiece.SPECIAL.index("[SEP]")
    ).sum() == 2  # two lines; the empty one is left out
    assert (pieces == wordpiece.SPECIAL.index("[UNK]")).sum() == 1
    assert pieces.dtype == np.int32
