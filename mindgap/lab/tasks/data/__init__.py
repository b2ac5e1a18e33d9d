"""Data sets: found in ``$MINDGAP_DATA`` or the cache, or fetched once with a checksum; readers;
synthetic samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindgap.lab.tasks.data.datasets import DATASETS as DATASETS
    from mindgap.lab.tasks.data.datasets import DataFile as DataFile
    from mindgap.lab.tasks.data.datasets import DataSet as DataSet
    from mindgap.lab.tasks.data.fetch import DataError as DataError
    from mindgap.lab.tasks.data.fetch import available as available
    from mindgap.lab.tasks.data.fetch import cache_folder as cache_folder
    from mindgap.lab.tasks.data.fetch import data_folder as data_folder
    from mindgap.lab.tasks.data.fetch import find as find
    from mindgap.lab.tasks.data.images import cifar10 as cifar10
    from mindgap.lab.tasks.data.images import digits as digits
    from mindgap.lab.tasks.data.images import mnist as mnist
    from mindgap.lab.tasks.data.images import mnist_5000 as mnist_5000
    from mindgap.lab.tasks.data.tabular import Table as Table
    from mindgap.lab.tasks.data.tabular import covtype as covtype
    from mindgap.lab.tasks.data.tabular import ijcnn1 as ijcnn1
    from mindgap.lab.tasks.data.text import amazon_reviews as amazon_reviews
    from mindgap.lab.tasks.data.text import glove as glove
    from mindgap.lab.tasks.data.text import kjv_words as kjv_words
    from mindgap.lab.tasks.data.text import language_tokens as language_tokens
    from mindgap.lab.tasks.data.text import rated_reviews as rated_reviews
    from mindgap.lab.tasks.data.text import sentiment140 as sentiment140
    from mindgap.lab.tasks.data.text import snli as snli
    from mindgap.lab.tasks.data.text import squad as squad
    from mindgap.lab.tasks.data.vectors import review_domains as review_domains
    from mindgap.lab.tasks.data.vectors import snli_pairs as snli_pairs
    from mindgap.lab.tasks.data.vectors import text_vectors as text_vectors
    from mindgap.lab.tasks.data.vectors import words_of as words_of
else:
    from mindgap.base.names import lazy_names

    _WHERE = {
        "DATASETS": "datasets",
        "DataError": "fetch",
        "DataFile": "datasets",
        "DataSet": "datasets",
        "Table": "tabular",
        "amazon_reviews": "text",
        "available": "fetch",
        "cache_folder": "fetch",
        "cifar10": "images",
        "covtype": "tabular",
        "data_folder": "fetch",
        "digits": "images",
        "find": "fetch",
        "glove": "text",
        "ijcnn1": "tabular",
        "kjv_words": "text",
        "language_tokens": "text",
        "mnist": "images",
        "mnist_5000": "images",
        "rated_reviews": "text",
        "review_domains": "vectors",
        "sentiment140": "text",
        "snli": "text",
        "snli_pairs": "vectors",
        "squad": "text",
        "text_vectors": "vectors",
        "words_of": "vectors",
    }
    __getattr__, __dir__ = lazy_names(__name__, _WHERE)
    __all__ = __dir__()
