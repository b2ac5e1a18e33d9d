"""Networks. They know nothing of data, losses or optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.lab.tasks.models.alexnet import *  # noqa: F403
    from mindgap.lab.tasks.models.awd_lstm import *  # noqa: F403
    from mindgap.lab.tasks.models.bert import *  # noqa: F403
    from mindgap.lab.tasks.models.resnet import *  # noqa: F403
    from mindgap.lab.tasks.models.small import *  # noqa: F403
    from mindgap.lab.tasks.models.transformer_xl import *  # noqa: F403

_WHERE = {
    **dict.fromkeys(
        ("SmallLSTM", "SmallTransformer", "SpanFinder", "small_convolutional_network"), "small"
    ),
    **dict.fromkeys(("ResNet18", "ResNet20"), "resnet"),
    "AWDLSTM": "awd_lstm",
    "AlexNet": "alexnet",
    **dict.fromkeys(("Bert", "MaskedBert", "QuestionBert"), "bert"),
    "TransformerXL": "transformer_xl",
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
