"""Data sets: found in ``$MINDGAP_DATA`` or the cache, or fetched once with a checksum; readers;
synthetic samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.lab.tasks.data.datasets import *  # noqa: F403
    from mindgap.lab.tasks.data.fetch import *  # noqa: F403
    from mindgap.lab.tasks.data.images import *  # noqa: F403
    from mindgap.lab.tasks.data.tabular import *  # noqa: F403
    from mindgap.lab.tasks.data.text import *  # noqa: F403
    from mindgap.lab.tasks.data.vectors import *  # noqa: F403

_WHERE = {
    **dict.fromkeys(("DATASETS", "DataFile", "DataSet"), "datasets"),
    **dict.fromkeys(
        ("DataError", "available", "cache_folder", "data_folder", "fetch", "find"), "fetch"
    ),
    **dict.fromkeys(("Table", "covtype", "ijcnn1"), "tabular"),
    **dict.fromkeys(("cifar10", "digits", "mnist", "mnist_5000"), "images"),
    **dict.fromkeys(
        (
            "amazon_reviews",
            "glove",
            "kjv_words",
            "language_tokens",
            "rated_reviews",
            "sentiment140",
            "snli",
            "squad",
        ),
        "text",
    ),
    **dict.fromkeys(("review_domains", "snli_pairs", "text_vectors", "words_of"), "vectors"),
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
