"""Derivatives and iterations: eager torch, CUDA graphs, compiled JAX, and a backend that counts."""
