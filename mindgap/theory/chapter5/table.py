"""The rows of chapter 5 in the table of theorems; no imports beyond the standard library."""

from __future__ import annotations

from mindgap.theory.theorem import Theorem

CHAPTER_5: tuple[Theorem, ...] = ()
