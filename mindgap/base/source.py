"""Where a statement comes from: one of ``PAPERS``, and the place in it."""

from __future__ import annotations

from dataclasses import dataclass

#: Short key -> what the paper is, as in ``docs/claims.md``. An optimizer from another paper adds a
#: line here.
PAPERS = {
    "slip-rebuttal-a": "Gong, Hao, Liu: authors' answer on SLIP, first version (ICML 2024)",
    "slip-rebuttal-b": "Gong, Hao, Liu: authors' answer on SLIP, second version (ICML 2024)",
    "thesis": "J. Zhang: Optimization Theory and Machine Learning Practice: Mind the Gap (thesis, "
    "MIT)",
    "torch": "PyTorch: torch.optim and torch.nn.utils (documentation)",
    "acclip": "Why Adam beats SGD for attention models (first version, introduces ACClip)",
}


@dataclass(frozen=True)
class Source:
    """A place in a paper.

    Example:
        >>> str(Source("acclip", "Alg. 1, l. 5"))
        'acclip, Alg. 1, l. 5'
    """

    paper: str  # a key of ``PAPERS``
    place: str  # in it, such as "Alg. 1, l. 5"

    def __post_init__(self) -> None:
        # Refuse a paper that is no key of ``PAPERS``.
        from mindgap.base.check import fail

        if not isinstance(self.paper, str) or self.paper not in PAPERS:
            fail(
                "paper",
                f"must be a key of PAPERS in mindgap/base/source.py ({', '.join(PAPERS)})",
                self.paper,
            )

    def __str__(self) -> str:
        return f"{self.paper}, {self.place}"
