"""The ground floor of the library: tensors, randomness, checks, sources, objectives, counts.

``check``, ``source``, ``count`` and ``lazy`` need nothing but the standard library; ``rng``,
``tensors`` and ``objective`` import torch.
"""
