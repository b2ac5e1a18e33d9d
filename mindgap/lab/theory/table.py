"""The static table of all theorems, lemmas and corollaries that this library runs; standard library only.

Each chapter keeps its own rows beside its code (``theory/chapterN/table.py``); this file only joins them.
"""

from __future__ import annotations

from mindgap.lab.theory.chapter2.table import CHAPTER_2
from mindgap.lab.theory.chapter3.table import CHAPTER_3
from mindgap.lab.theory.chapter4.table import CHAPTER_4
from mindgap.lab.theory.chapter5.table import CHAPTER_5
from mindgap.lab.theory.chapter6.table import CHAPTER_6
from mindgap.lab.theory.theorem import Theorem

#: In the thesis' order; a statement of the first version (acclip) stands with the chapter that it became.
THEOREMS: tuple[Theorem, ...] = (*CHAPTER_2, *CHAPTER_3, *CHAPTER_4, *CHAPTER_5, *CHAPTER_6)
