"""Optimizers for anybody's training loop."""
