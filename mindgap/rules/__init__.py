"""Pure update maps on lists of tensors, and their fused kernels."""
