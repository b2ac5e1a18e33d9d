"""Measuring batches out of somebody's training loader, without iterating it."""

from __future__ import annotations

from typing import Any

import torch

from mindgap.base.check import fail, whole
from mindgap.base.rng import torch_stream
from mindgap.measure.restoring import seed_everything, undisturbed


def sample_batches(loader: Any, model: torch.nn.Module, *, limit: int = 8, seed: int = 0) -> list[Any]:
    """Random batches of a loader's data set, collated as the loader does.

    A trainer's loader may keep an epoch, a sampler state or a count of its iterations; none of them is touched,
    because the data set is indexed directly. Random transforms and collators draw from a seeded state, and every
    global random state stands afterwards as before.

    Args:
        loader: a ``DataLoader``, or what Accelerate wraps around one, over a data set with a length and an index.
        model: whose random and module state is protected meanwhile.
        limit: batches drawn at most, without replacement; a short last one is left out.
        seed: of the choice.

    Raises:
        RuleError: a data set that can only be iterated: give ``batches`` yourself.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.arange(10.0))
        >>> loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
        >>> [len(batch[0]) for batch in sample_batches(loader, torch.nn.Linear(1, 1))]
        [4, 4]
    """
    whole("limit", limit, least=1)
    loader = getattr(loader, "base_dataloader", loader)
    dataset: Any = getattr(loader, "dataset", None)
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        fail("batches", "must be given where the training data cannot be indexed", type(dataset).__name__)
    sampler = getattr(loader, "batch_sampler", None)
    size = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None) or 1
    order = torch.randperm(len(dataset), generator=torch_stream(seed, "measuring batches")).tolist()
    size = min(size, len(order))
    starts = range(0, len(order) - size + 1, size)[:limit] if size else ()
    held = []
    with undisturbed(model):
        for start in starts:
            seed_everything(seed + start)
            held.append(loader.collate_fn([dataset[i] for i in order[start : start + size]]))
    if not held:
        fail("batches", "must give at least one batch", "an empty data set")
    return held
