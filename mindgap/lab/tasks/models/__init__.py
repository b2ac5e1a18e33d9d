"""Networks. They know nothing of data, losses or optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindgap.lab.tasks.models.alexnet import AlexNet as AlexNet
    from mindgap.lab.tasks.models.awd_lstm import AWDLSTM as AWDLSTM
    from mindgap.lab.tasks.models.bert import (
        Bert as Bert,
        MaskedBert as MaskedBert,
        QuestionBert as QuestionBert,
    )
    from mindgap.lab.tasks.models.resnet import ResNet18 as ResNet18, ResNet20 as ResNet20
    from mindgap.lab.tasks.models.small import (
        SmallLSTM as SmallLSTM,
        SmallTransformer as SmallTransformer,
        SpanFinder as SpanFinder,
        small_convolutional_network as small_convolutional_network,
    )
    from mindgap.lab.tasks.models.transformer_xl import TransformerXL as TransformerXL
else:
    from mindgap.base.names import lazy_names

    _WHERE = {
        "AWDLSTM": "awd_lstm",
        "AlexNet": "alexnet",
        "Bert": "bert",
        "MaskedBert": "bert",
        "QuestionBert": "bert",
        "ResNet18": "resnet",
        "ResNet20": "resnet",
        "SmallLSTM": "small",
        "SmallTransformer": "small",
        "SpanFinder": "small",
        "TransformerXL": "transformer_xl",
        "small_convolutional_network": "small",
    }
    __getattr__, __dir__ = lazy_names(__name__, _WHERE)
    __all__ = __dir__()
