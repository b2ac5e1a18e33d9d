"""Readers of data refuse bad arguments with one error, whatever the argument is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_values import faults

from mindgap.lab.tasks import data
from mindgap.lab.tasks.data.fetch import DataError, fetch
from mindgap.lab.tasks.data.images import read_idx
from mindgap.lab.tasks.data.tabular import read_libsvm
from mindgap.lab.tasks.data.vectors import words_of

Arguments = Callable[[], dict[str, Any]]

CALLS: dict[str, tuple[Callable[..., Any], Arguments]] = {
    "available": (data.available, lambda: {"name": "mnist"}),
    "find": (
        data.find,
        lambda: {"name": "mnist", "file": "train-labels-idx1-ubyte.gz", "download": False},
    ),
    "fetch": (
        fetch,
        lambda: {"address": "http://127.0.0.1:9/a", "target": Path("a_b_c"), "sha256": "0" * 64},
    ),
    "ijcnn1": (data.ijcnn1, lambda: {"source": "synthetic", "rows": 5}),
    "covtype": (data.covtype, lambda: {"source": "synthetic", "rows": 5}),
    "cifar10": (data.cifar10, lambda: {"split": "no such split"}),
    "mnist": (data.mnist, lambda: {"split": "train"}),
    "language_tokens": (data.language_tokens, lambda: {"split": "test"}),
    "snli": (data.snli, lambda: {"split": "dev"}),
    "sentiment140": (data.sentiment140, lambda: {"part": "test"}),
    "glove": (data.glove, lambda: {"words": ["the"]}),
    "text_vectors": (data.text_vectors, lambda: {"texts": ["one text"]}),
    "snli_pairs": (data.snli_pairs, lambda: {"split": "dev", "rows": 3}),
    "words_of": (words_of, lambda: {"text": "a text"}),
    "read_idx": (read_idx, lambda: {"content": bytes([0, 0, 8, 1, 0, 0, 0, 1, 7])}),
    "read_libsvm": (read_libsvm, lambda: {"text": b"1 1:2\n", "width": 3, "rows": 1}),
    "Table": (
        data.Table,
        lambda: {"features": np.eye(2), "labels": np.array([0, 1]), "origin": "made up"},
    ),
    "DataFile": (data.DataFile, lambda: {"name": "a", "sha256": "0" * 64, "size": 3}),
    "DataSet": (data.DataSet, lambda: {"name": "a", "title": "t", "licence": "l", "files": ()}),
    "DataSet.file": (data.DATASETS["mnist"].file, lambda: {"name": "train-labels-idx1-ubyte.gz"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_values_end_in_our_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINDGAP_DATA", str(tmp_path))
    monkeypatch.setenv("MINDGAP_CACHE", str(tmp_path))
    monkeypatch.setenv("MINDGAP_MIRROR", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    function, arguments = CALLS[name]
    assert faults(function, arguments, allowed=(DataError,)) == []
