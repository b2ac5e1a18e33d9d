"""The ground floor of the library: tensors, randomness, checks, sources, objectives, counts.

``check``, ``source``, ``count`` and ``names`` need nothing but the standard library; ``rng``,
``tensors`` and ``objective`` import torch.
"""
