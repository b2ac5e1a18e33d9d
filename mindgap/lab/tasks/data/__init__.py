"""Data sets: found in ``$MINDGAP_DATA`` or the cache, or fetched once with a checksum; readers; synthetic samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.lab.tasks.data.fetch import DataError as DataError
    from mindgap.lab.tasks.data.fetch import available as available
    from mindgap.lab.tasks.data.fetch import cache_folder as cache_folder
    from mindgap.lab.tasks.data.fetch import data_folder as data_folder
    from mindgap.lab.tasks.data.fetch import fetch as fetch
    from mindgap.lab.tasks.data.fetch import find as find
    from mindgap.lab.tasks.data.images import cifar10 as cifar10
    from mindgap.lab.tasks.data.images import digits as digits
    from mindgap.lab.tasks.data.images import mnist as mnist
    from mindgap.lab.tasks.data.images import mnist_5000 as mnist_5000
    from mindgap.lab.tasks.data.table import DATASETS as DATASETS
    from mindgap.lab.tasks.data.table import DataFile as DataFile
    from mindgap.lab.tasks.data.table import DataSet as DataSet
    from mindgap.lab.tasks.data.tabular import Table as Table
    from mindgap.lab.tasks.data.tabular import covtype as covtype
    from mindgap.lab.tasks.data.tabular import ijcnn1 as ijcnn1
    from mindgap.lab.tasks.data.text import amazon_reviews as amazon_reviews
    from mindgap.lab.tasks.data.text import glove as glove
    from mindgap.lab.tasks.data.text import kjv_words as kjv_words
    from mindgap.lab.tasks.data.text import language_tokens as language_tokens
    from mindgap.lab.tasks.data.text import sentiment140 as sentiment140
    from mindgap.lab.tasks.data.text import snli as snli
    from mindgap.lab.tasks.data.text import squad as squad
    from mindgap.lab.tasks.data.vectors import review_domains as review_domains
    from mindgap.lab.tasks.data.vectors import snli_pairs as snli_pairs
    from mindgap.lab.tasks.data.vectors import text_vectors as text_vectors
    from mindgap.lab.tasks.data.vectors import words_of as words_of

_WHERE = {
    **dict.fromkeys(("DATASETS", "DataFile", "DataSet"), "table"),
    **dict.fromkeys(("DataError", "available", "cache_folder", "data_folder", "fetch", "find"), "fetch"),
    **dict.fromkeys(("Table", "covtype", "ijcnn1"), "tabular"),
    **dict.fromkeys(("cifar10", "digits", "mnist", "mnist_5000"), "images"),
    **dict.fromkeys(
        ("amazon_reviews", "glove", "kjv_words", "language_tokens", "sentiment140", "snli", "squad"), "text"
    ),
    **dict.fromkeys(("review_domains", "snli_pairs", "text_vectors", "words_of"), "vectors"),
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
