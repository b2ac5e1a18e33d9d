"""Readings of causes that have a file of their own (``mindgap new cause`` writes both)."""

from __future__ import annotations

#: Key of a cause -> module with ``read(chart, patient)``, called before the training begins.
READINGS: dict[str, str] = {}
