"""Readers against tiny files of their own format, in a folder that stands for ``$MINDGAP_DATA``."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import tarfile
import zipfile

import numpy as np
import pytest

from mindgap.base.check import RuleError
from mindgap.lab.tasks import data
from mindgap.lab.tasks.data.datasets import DATASETS, DataFile, DataSet


@pytest.fixture
def put(tmp_path, monkeypatch):
    """put("mnist", {"file": bytes}) makes a data set of that name consist of those files."""
    monkeypatch.setenv("MINDGAP_DATA", str(tmp_path))
    monkeypatch.setenv("MINDGAP_CACHE", str(tmp_path / "cache"))

    def place(name, files):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        entries = []
        for file, content in files.items():
            (folder / file).write_bytes(content)
            entries.append(DataFile(file, hashlib.sha256(content).hexdigest(), len(content)))
        monkeypatch.setitem(DATASETS, name, DataSet(name, "tiny", "none", tuple(entries)))

    return place


def _idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return gzip.compress(head + array.astype(np.uint8).tobytes())


def test_mnist(put):
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28))
    put(
        "mnist",
        {
            "t10k-images-idx3-ubyte.gz": _idx(images),
            "t10k-labels-idx1-ubyte.gz": _idx(np.arange(5)),
        },
    )
    table = data.mnist("test")
    np.testing.assert_array_equal(table.features, images.reshape(5, -1) / 255.0)
    assert table.labels.tolist() == [0, 1, 2, 3, 4]


def test_idx_refuses_what_it_cannot_read():
    from mindgap.lab.tasks.data.images import read_idx

    with pytest.raises(RuleError, match="content must begin like an idx file"):
        read_idx(b"hello world")
    with pytest.raises(RuleError, match="content must hold 3 entries"):
        read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7]))


def test_ijcnn1(put):
    put("ijcnn1", {"ijcnn1.trn.bz2": bz2.compress(b"-1 1:0.5 22:-2\n1 3:1e-1\n-1 \n1 1:4 2:5\n")})
    table = data.ijcnn1("train", rows=4)
    assert table.origin == "ijcnn1"
    assert table.labels.tolist() == [0, 1, 0, 1]
    expected = np.zeros((4, 22))
    expected[0, [0, 21]], expected[1, 2], expected[3, [0, 1]] = [0.5, -2], 0.1, [4, 5]
    np.testing.assert_array_equal(table.features, expected)


def test_libsvm_refuses_columns_out_of_range():
    from mindgap.lab.tasks.data.tabular import read_libsvm

    with pytest.raises(RuleError, match=r"column must lie in 1..3, got 4"):
        read_libsvm(b"1 4:1\n", 3)


def test_covtype(put, monkeypatch):
    rows = np.random.default_rng(0).integers(0, 50, (20, 55))
    rows[:, 54] = np.arange(20) % 7 + 1
    rows[:, 5] = 3  # a constant column must not become NaN
    text = (
        ",".join(f"c{i}" for i in range(55))
        + "\n"
        + "\n".join(",".join(map(str, r)) for r in rows)
        + "\n"
    )
    put("covtype", {"covtype.csv.xz": lzma.compress(text.encode())})
    monkeypatch.setattr("mindgap.lab.tasks.data.tabular._COVTYPE_ROWS", (12, 3, 5))
    parts = [data.covtype(split) for split in ("train", "validation", "test")]
    assert [len(p) for p in parts] == [12, 3, 5]
    assert sorted(np.concatenate([p.labels for p in parts]) + 1) == sorted(rows[:, 54])
    deviation = parts[0].features.std(0)
    np.testing.assert_allclose(deviation[[i for i in range(54) if i != 5]], 1.0)
    assert (parts[0].features[:, 5] == 0).all()


def test_synthetic_samples_have_the_shape_and_can_be_learnt():
    train, test = (
        data.ijcnn1("train", source="synthetic", rows=4000),
        data.ijcnn1("test", source="synthetic", rows=2000),
    )
    assert (len(data.ijcnn1("train", source="synthetic")), train.features.shape[1]) == (49_990, 22)
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression().fit(train.features, train.labels)
    assert (
        model.score(test.features, test.labels) > 0.92
    )  # one and the same truth behind both splits
    assert 0.07 < test.labels.mean() < 0.13
    classes = data.covtype("test", source="synthetic", rows=20_000).labels
    assert set(classes.tolist()) == set(range(7))
    again = data.ijcnn1("train", source="synthetic", rows=4000)
    np.testing.assert_array_equal(train.features, again.features)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"split": "tset"}, r"split must be one of 'train', 'test' \(did you mean 'test'\?\)"),
        ({"rows": 0}, "rows must be a whole number of at least 1"),
        ({"rows": 10**6, "source": "synthetic"}, "rows must be at most 49990"),
        ({"source": "fake"}, "source must be one of"),
    ],
)
def test_bad_arguments_of_a_reader(bad, message):
    with pytest.raises(RuleError, match=message):
        data.ijcnn1(**bad)


def test_real_data_that_are_not_here(tmp_path, monkeypatch):
    monkeypatch.delenv("MINDGAP_DATA", raising=False)
    monkeypatch.delenv("MINDGAP_MIRROR", raising=False)
    monkeypatch.setenv("MINDGAP_CACHE", str(tmp_path))
    assert (
        data.covtype("test", rows=10).origin == "synthetic"
    )  # auto: nothing is fetched behind one's back
    with pytest.raises(
        data.DataError, match=r"covtype/covtype.csv.xz .* is not on this machine: put it at"
    ):
        data.covtype("test", source="real")


def test_packaged_digits():
    table = data.digits()
    assert len(table) == 1797
    assert table.features.min() == 0.0
    assert table.features.max() == 1.0
    assert sorted(set(table.labels.tolist())) == list(range(10))


def test_cifar10(put):
    image = pytest.importorskip("PIL.Image")
    sheets = np.random.default_rng(0).integers(0, 256, (1, 640, 640, 3), dtype=np.uint8)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        for i, sheet in enumerate(sheets):
            picture = io.BytesIO()
            image.fromarray(sheet).save(picture, "WEBP", lossless=True)
            target.writestr(f"{i:03}.webp", picture.getvalue())
    labels = json.dumps([i % 10 for i in range(400)]).encode()
    put("cifar10", {"test_batch.webp.zip": archive.getvalue(), "test_labels.json": labels})
    table = data.cifar10("test")
    assert table.features.shape == (400, 3072)
    # image 21 stands in the second row of the sheet, second column; feature order is channel, row,
    # column
    np.testing.assert_array_equal(
        table.features[21].reshape(3, 32, 32)[2] * 255, sheets[0, 32:64, 32:64, 2]
    )
    with pytest.raises(RuleError, match=r"batches must lie in 1..5"):
        data.cifar10("train", batches=6)


def test_texts(put):
    xz = lzma.compress
    put("ptb", {"ptb.valid.txt.xz": xz(b" a b \n <unk> c \n")})
    assert data.language_tokens("ptb", "valid") == ["a", "b", "<eos>", "<unk>", "c", "<eos>"]
    put("wikitext-2", {"test.txt.xz": xz(b"x\n")})
    assert data.language_tokens("wikitext-2", "test") == ["x", "<eos>"]
    put("snli", {"snli_1.0_test.tsv.xz": xz(b"gold_label\tsentence1\nentailment\ta b\n")})
    assert data.snli("test") == [{"gold_label": "entailment", "sentence1": "a b"}]
    put(
        "sentiment140",
        {"testdata.manual.2009.06.14.tsv.xz": xz("target\ttext\n4\tgrüße\n".encode())},
    )
    assert data.sentiment140("test") == [{"target": "4", "text": "grüße"}]
    put(
        "glove",
        {
            "glove.6B.50d.vocab-subset.txt.xz": xz(
                f"a {' '.join(['1'] * 50)}\nb {' '.join(['2'] * 50)}\n".encode()
            )
        },
    )
    words, vectors = data.glove({"b"})
    assert words == ["b"]
    assert vectors.tolist() == [[2.0] * 50]
    assert data.glove(set())[1].shape == (0, 50)


def _glove(**words):
    lines = [f"{word} {' '.join([f'{first}', *['0.5'] * 49])}\n" for word, first in words.items()]
    return {"glove.6B.50d.vocab-subset.txt.xz": lzma.compress("".join(lines).encode())}


def test_texts_as_vectors(put):
    put("glove", _glove(good=1, bad=-3))
    rows = data.text_vectors(["Good, bad good", "unheard of"])
    assert rows.shape == (2, 100)
    assert rows[0, :2].tolist() == [
        pytest.approx(-1 / 3),
        0.5,
    ]  # the mean over the words that have a vector
    assert rows[0, 50:52].tolist() == [1.0, 0.5]  # the largest
    assert (rows[1] == 0).all()
    assert data.words_of("It isn't Tom's; 2 pens?") == [
        "it",
        "is",
        "n't",
        "tom",
        "'s",
        "2",
        "pens",
        "?",
    ]


def test_sentence_pairs(put):
    put("glove", _glove(a=1, b=2))
    head = b"gold_label\tsentence1\tsentence2\n"
    rows = head + b"neutral\ta\tb\n-\tb\tb\ncontradiction\tb\ta\nentailment\ta\ta\n"
    dev = (
        head.replace(b"1", b"1_tokenised").replace(b"2", b"2_tokenised") + b"entailment\ta .\tb .\n"
    )
    packed = {
        "snli_1.0_test.tsv.xz": lzma.compress(rows),
        "snli_1.0_dev_tokenised.tsv.xz": lzma.compress(dev),
    }
    put("snli", packed)
    table = data.snli_pairs("test")
    assert table.labels.tolist() == [1, 2, 0]  # the pair without a label is left out
    assert table.features.shape == (3, 2, 100)
    assert table.features[:, :, 0].tolist() == [[1, 2], [2, 1], [1, 1]]
    assert data.snli_pairs("dev").features[0, :, 0].tolist() == [1, 2]
    assert len(data.snli_pairs("test", rows=3)) == 2
    with pytest.raises(RuleError, match="rows must be a whole number of at least 1, got 0"):
        data.snli_pairs("test", rows=0)


def test_review_domains(put):
    put("glove", _glove(good=1, bad=-3))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for name, text in (
            ("books/positive", "good"),
            ("books/negative", "bad"),
            ("dvd/negative", "bad good"),
        ):
            review = f"<review>\n<review_text>\n{text}\n</review_text>\n</review>\n".encode()
            info = tarfile.TarInfo(f"sorted_data_acl/{name}.review")
            info.size = len(review)
            archive.addfile(info, io.BytesIO(review))
    put("ard", {"sorted_data_acl_labelled.tar.xz": packed.getvalue()})
    domains = data.review_domains()
    assert list(domains) == ["books", "dvd"]
    assert domains["books"].labels.tolist() == [1, 0]
    assert domains["books"].features[:, 0].tolist() == [1, -3]
    assert domains["dvd"].features[0, [0, 50]].tolist() == [-1, 1]
    assert domains["dvd"].origin == "Amazon reviews: dvd"


def test_reviews_and_questions(put):
    review = (
        b"<review>\n<rating>\n5\n</rating>\n<review_text>\nGood book\n</review_text>\n</review>\n"
    )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for name in (
            "sorted_data_acl/books/positive.review",
            "sorted_data_acl/dvd/negative.review",
        ):
            info = tarfile.TarInfo(name)
            info.size = len(review)
            archive.addfile(info, io.BytesIO(review))
    put("ard", {"sorted_data_acl_labelled.tar.xz": packed.getvalue()})
    assert data.amazon_reviews() == [("books", 1, "Good book"), ("dvd", 0, "Good book")]
    questions = [
        {"question": "who?", "answers": [{"answer_start": 0, "text": "I"}]},
        {"question": "why?", "answers": []},
    ]
    content = {"data": [{"paragraphs": [{"context": "I am", "qas": questions}]}]}
    put("squad", {"dev-v2.0.json.xz": lzma.compress(json.dumps(content).encode())})
    assert data.squad() == [{"context": "I am", "question": "who?", "answers": [(0, "I")]}]


def test_importing_the_data_wing_needs_neither_torch_nor_the_web():
    import subprocess
    import sys

    code = (
        "import sys, mindgap.lab.tasks.data as d; d.DATASETS; d.find; sys.exit('torch' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
