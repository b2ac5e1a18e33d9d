"""``mindgap recommend`` for a Hugging Face model: the model computes its own loss."""

import torch
from transformers import BertConfig, BertForSequenceClassification


def problem(seed):
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    model = BertForSequenceClassification(BertConfig(vocab_size=50, **sizes))
    words = torch.randint(50, (1200, 12), generator=torch.Generator().manual_seed(0))
    labels = (words > 25).float().mean(1).gt(0.5).long()
    batches = [
        {
            "input_ids": words[i : i + 16],
            "labels": labels[i : i + 16],
            "attention_mask": torch.ones(16, 12),
        }
        for i in range(0, 1200, 16)
    ]
    return (model, lambda model, batch: model(**batch).loss), batches[:-10], batches[-10:]
