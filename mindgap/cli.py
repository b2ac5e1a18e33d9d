"""The command ``mindgap``."""

from __future__ import annotations


def main() -> None:
    """Placeholder until the first commands land."""
