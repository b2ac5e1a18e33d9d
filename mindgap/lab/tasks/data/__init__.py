"""Data sets: found in ``$MINDGAP_DATA`` or the cache, or fetched once with a checksum; readers;
synthetic samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindgap.lab.tasks.data.datasets import (
        DATASETS as DATASETS,
        DataFile as DataFile,
        DataSet as DataSet,
    )
    from mindgap.lab.tasks.data.fetch import (
        DataError as DataError,
        available as available,
        cache_folder as cache_folder,
        data_folder as data_folder,
        find as find,
    )
    from mindgap.lab.tasks.data.images import (
        cifar10 as cifar10,
        digits as digits,
        mnist as mnist,
        mnist_5000 as mnist_5000,
    )
    from mindgap.lab.tasks.data.tabular import Table as Table, covtype as covtype, ijcnn1 as ijcnn1
    from mindgap.lab.tasks.data.text import (
        amazon_reviews as amazon_reviews,
        glove as glove,
        kjv_words as kjv_words,
        language_tokens as language_tokens,
        rated_reviews as rated_reviews,
        sentiment140 as sentiment140,
        snli as snli,
        squad as squad,
    )
    from mindgap.lab.tasks.data.vectors import (
        review_domains as review_domains,
        snli_pairs as snli_pairs,
        text_vectors as text_vectors,
        words_of as words_of,
    )
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
