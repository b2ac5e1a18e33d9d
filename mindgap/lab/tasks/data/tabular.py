"""Tables of numbers with labels: ijcnn1 and covtype, real or synthetic with the same shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mindgap.base.check import fail, one_of, whole
from mindgap.base.checked import check_arguments
from mindgap.base.rng import numpy_stream
from mindgap.lab.tasks.data.fetch import available, find
from mindgap.record.unpacking import unpacking, unpacking_text

Array = np.ndarray[Any, Any]

#: rows of (training, validation, test) as the standard bilevel benchmark uses them
_COVTYPE_ROWS = (371_847, 92_962, 116_203)


@dataclass(frozen=True)
class Table:
    """Features and labels of samples, with a word on where they come from.

    Example:
        >>> table = Table(np.eye(3), np.array([0, 1, 1]), "made up")
        >>> len(table), table.part(slice(0, 2)).labels.tolist()
        (3, [0, 1])
    """

    features: Array  # float64 (samples, features), of pairs (samples, 2, features)
    labels: Array  # int64 (samples,), 0..classes-1
    origin: str  # such as "ijcnn1" or "synthetic"

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, rows: slice | Array) -> Table:
        """The rows of an index or slice."""
        return replace(self, features=self.features[rows], labels=self.labels[rows])


def ijcnn1(
    split: str = "train", *, source: str = "auto", rows: int | None = None, seed: int = 0
) -> Table:
    """ijcnn1: 49,990 training and 91,701 test samples of 22 features, labels 0 and 1 (a tenth are
    1).

    Args:
        split: ``"train"`` or ``"test"``.
        source: ``"real"``, ``"synthetic"``, or ``"auto"``: real where the files are on this
            machine.
        rows: only that many first rows.
        seed: of the synthetic samples.

    Example:
        >>> table = ijcnn1(source="synthetic", rows=1000)
        >>> table.features.shape, bool(0.05 < table.labels.mean() < 0.15), table.origin
        ((1000, 22), True, 'synthetic')
    """
    one_of("split", split, ("train", "test"))
    total = 49_990 if split == "train" else 91_701
    rows = _row_count(rows, total)
    if _reads_files("ijcnn1", source):
        suffix = {"train": "trn", "test": "tst"}[split]
        text = unpacking(find("ijcnn1", f"ijcnn1.{suffix}.bz2")).read()
        features, labels = read_libsvm(text, 22, rows)
        return Table(features, (labels > 0).astype(np.int64), "ijcnn1")
    features, scores = _synthetic(seed, "ijcnn1", split, rows, 22, 1)
    # 1.28 standard deviations cut off a tenth of a normal score: the real share of ones is 0.097.
    return Table(features, (scores[:, 0] > 1.28).astype(np.int64), "synthetic")


def covtype(
    split: str = "train", *, source: str = "auto", rows: int | None = None, seed: int = 0
) -> Table:
    """Covertype: 54 features, 7 classes, split into 371,847 / 92,962 / 116,203 rows by a fixed
    permutation.

    Features are standardised with the training part's mean and deviation.

    Args:
        split: ``"train"``, ``"validation"`` or ``"test"``.
        source: ``"real"``, ``"synthetic"``, or ``"auto"``: real where the file is on this machine.
        rows: only that many first rows of the split.
        seed: of the permutation or of the synthetic samples.

    Example:
        >>> table = covtype("validation", source="synthetic", rows=500)
        >>> table.features.shape, int(table.labels.max())
        ((500, 54), 6)
    """
    names = ("train", "validation", "test")
    split_number = names.index(one_of("split", split, names))
    rows = _row_count(rows, _COVTYPE_ROWS[split_number])
    if _reads_files("covtype", source):
        with unpacking_text(find("covtype", "covtype.csv.xz")) as file:
            table = np.loadtxt(file, delimiter=",", skiprows=1, dtype=np.int32)
        # Columns 0 to 53 are the features, column 54 is the class, counted from 1.
        order = numpy_stream(seed, "covtype", "split").permutation(len(table))
        train = table[order[: _COVTYPE_ROWS[0]], :54].astype(np.float64)
        start = sum(_COVTYPE_ROWS[:split_number])
        of_split = table[order[start : start + rows]]
        deviation = train.std(0)  # 0 for a constant column
        features = (of_split[:, :54] - train.mean(0)) / np.where(deviation > 0, deviation, 1.0)
        return Table(features, of_split[:, 54].astype(np.int64) - 1, "covtype")
    features, scores = _synthetic(seed, "covtype", split, rows, 54, 7)
    # The logarithm of each class's share in the real data, times 7, keeps the synthetic classes as
    # uneven (half are class 1).
    scores += np.log(np.array([0.365, 0.488, 0.062, 0.005, 0.016, 0.03, 0.035]) * 7)
    return Table(features, scores.argmax(1).astype(np.int64), "synthetic")


def read_libsvm(text: bytes, width: int, rows: int | None = None) -> tuple[Array, Array]:
    """Read ``label column:value ...`` lines (LIBSVM's format), columns counted from 1.

    Args:
        text: the content of the file; empty lines are skipped.
        width: number of columns.
        rows: only that many first lines; None for all.

    Returns:
        (features, float64 (rows, width), 0 where a line names no value; labels, float64 (rows,)).

    Raises:
        RuleError: a column outside 1..width.

    Example:
        >>> features, labels = read_libsvm(b"-1 1:0.5 3:2\\n1 2:1\\n", 3)
        >>> features.tolist(), labels.tolist()
        ([[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]], [-1.0, 1.0])
    """
    lines = [line for line in text.split(b"\n") if line.strip()][:rows]
    counts = np.array([line.count(b":") for line in lines])  # values per line
    # The numbers of all lines in one array; a line's label comes first, then pairs (column, value).
    numbers = np.array(b" ".join(lines).replace(b":", b" ").split(), dtype=np.float64)
    label_places = np.concatenate([[0], np.cumsum(2 * counts + 1)])[:-1]
    pairs = np.delete(numbers, label_places).reshape(-1, 2)
    columns = pairs[:, 0].astype(np.int64) - 1
    if columns.size and not (columns.min() >= 0 and columns.max() < width):
        fail("column", f"must lie in 1..{width}", int(columns.max()) + 1)
    features = np.zeros((len(lines), width))
    # Each pair's row is its line, which has ``counts`` pairs.
    features[np.repeat(np.arange(len(lines)), counts), columns] = pairs[:, 1]
    return features, numbers[label_places]


def _synthetic(
    seed: int, name: str, split: str, rows: int, width: int, classes: int
) -> tuple[Array, Array]:
    """Normal features with log-spaced scales, and noisy linear scores of variance one.

    Args:
        seed: of all draws.
        name: of the data set; the true weights depend on seed and name, so splits share them.
        split: its samples depend on it.
        rows: number of samples.
        width: number of features.
        classes: number of scores per sample.

    Returns:
        (features (rows, width), scores (rows, classes)).
    """
    weights = numpy_stream(seed, name, "weights").standard_normal((width, classes))
    generator = numpy_stream(seed, name, split)
    features = generator.standard_normal((rows, width)) * np.logspace(-0.5, 0.5, width)
    scores = features @ weights
    scores = scores / scores.std(0) + 0.5 * generator.standard_normal(scores.shape)
    return features, scores / np.sqrt(1.25)  # variance 1, and 0.5² of the noise


def _reads_files(name: str, source: str) -> bool:
    """Whether to read the files of the data set ``name``: for the source ``"real"``, and for
    ``"auto"`` where the files are on this machine.
    """
    one_of("source", source, ("auto", "real", "synthetic"))
    return source == "real" or (source == "auto" and available(name))


def _row_count(rows: int | None, total: int) -> int:
    """How many rows to read.

    Args:
        rows: as asked for; None for all.
        total: as many as there are.

    Raises:
        RuleError: more are asked for than there are.
    """
    if rows is None:
        return total
    if whole("rows", rows, least=1) > total:
        fail("rows", f"must be at most {total}", rows)
    return rows


check_arguments(__name__)
