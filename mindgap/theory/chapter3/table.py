"""The rows of chapter 3 in the table of theorems; no imports beyond the standard library."""

from __future__ import annotations

from mindgap.theory.theorem import Theorem

CHAPTER_3: tuple[Theorem, ...] = ()
