"""The methods as data: Table 1 of the authors' answer on SLIP, its footnotes, and where each method
lives.

Standard library only: the command line and the documentation read it without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

SMOOTH, SMOOTHER, RELAXED = "C^{1,1}_L", "C^{2,2}_L", "(L_x0, L_x1, L_y0, L_y1)-smooth"
SC2, SC3 = "SC and C^{2,2}_L", "SC and C^{3,3}_L"
MEAN_SQUARED = "mean-squared smooth (footnote 1)"


@dataclass(frozen=True)
class MethodInfo:
    """A row of the table."""

    key: str  # name on the command line
    name: str  # name in the paper
    paper: str  # authors and year, as in the table
    loop: str  # "single", "double" or "double / single"
    setting: str  # "general expectation" or "finite sum"
    complexity: str  # oracle calls to an epsilon-stationary point
    upper: str  # assumption on f
    lower: str  # assumption on g
    batch: str  # batch size the theory asks for
    choices: tuple[str, ...]  # names of the numbers a user has to choose (the steps among them)
    order: str  # "jacobi" (simultaneous) or "seidel" (sequential)
    #: where the class is.
    module: str
    class_name: str
    #: whether it is a row of Table 1 itself (not of its first footnote, and no further method)
    listed: bool = False
    note: str = ""  # what the footnotes say
    #: the value of a state that holds the method's solution of the lower level: not ``y`` where y
    #: also descends on f (a penalty method's y has learned from the upper level's data)
    lower_variable: str = "y"

    @property
    def hyperparameters(self) -> int:
        """How many hyper-parameters there are to choose."""
        return len(self.choices)

    def load(self) -> Any:
        """The class (imports torch).

        Example:
            >>> METHODS["slip"].load().__name__
            'SLIP'
        """
        return getattr(import_module(f"mindgap.bilevel.methods.{self.module}"), self.class_name)

    def __call__(self, **settings: Any) -> Any:
        """The method with its settings: ``METHODS["soba"](lr_x=0.1, lr_y=0.1)``."""
        return self.load()(**settings)


_GENERAL, _FINITE = "general expectation", "finite sum"

#: The sixteen of the SLIP documents: "all sixteen" in a study means these.
_SIXTEEN = (
    MethodInfo(
        "bsa",
        "BSA",
        "Ghadimi & Wang, 2018",
        "double",
        _GENERAL,
        "Õ(ε⁻⁶)",
        SMOOTH,
        SC2,
        "Õ(1)",
        ("lr_x", "lr_y", "eta", "terms", "inner"),
        "seidel",
        "bsa",
        "BSA",
        listed=True,
    ),
    MethodInfo(
        "stocbio",
        "StocBio",
        "Ji et al., 2021",
        "double",
        _GENERAL,
        "Õ(ε⁻⁴)",
        SMOOTH,
        SC2,
        "Õ(ε⁻²)",
        ("lr_x", "lr_y", "eta", "terms", "inner"),
        "seidel",
        "stocbio",
        "StocBio",
        listed=True,
    ),
    MethodInfo(
        "amigo",
        "AmIGO",
        "Arbel & Mairal, 2021",
        "double",
        _GENERAL,
        "Õ(ε⁻⁴)",
        SMOOTH,
        SC2,
        "O(ε⁻²)",
        ("lr_x", "lr_y", "lr_z", "inner", "solves"),
        "seidel",
        "amigo",
        "AmIGO",
        listed=True,
    ),
    MethodInfo(
        "alset",
        "ALSET",
        "Chen et al., 2021",
        "double / single",
        _GENERAL,
        "O(ε⁻⁴)",
        SMOOTH,
        SC2,
        "O(1)",
        ("lr_x", "lr_y", "eta", "terms", "inner"),
        "seidel",
        "alset",
        "ALSET",
        listed=True,
        note="converges without a double loop at the cost of a worse dependence on κ",
    ),
    MethodInfo(
        "ttsa",
        "TTSA",
        "Hong et al., 2023",
        "single",
        _GENERAL,
        "Õ(ε⁻⁵)",
        SMOOTH,
        SC2,
        "Õ(1)",
        ("lr_x", "lr_y", "eta", "terms"),
        "seidel",
        "ttsa",
        "TTSA",
        listed=True,
    ),
    MethodInfo(
        "f2sa",
        "F²SA",
        "Kwon et al., 2023",
        "single",
        _GENERAL,
        "O(ε⁻⁷)",
        SMOOTH,
        SC2,
        "O(1)",
        ("lr_x", "lr_y", "lam", "delta", "inner"),
        "seidel",
        "f2sa",
        "F2SA",
        listed=True,
        lower_variable="w",
    ),
    MethodInfo(
        "soba",
        "SOBA",
        "Dagréou et al., 2022",
        "single",
        _FINITE,
        "O(ε⁻⁴)",
        SMOOTHER,
        SC3,
        "O(1)",
        ("lr_x", "lr_y"),
        "jacobi",
        "soba",
        "SOBA",
        listed=True,
    ),
    MethodInfo(
        "saba",
        "SABA",
        "Dagréou et al., 2022",
        "single",
        _FINITE,
        "O(N^{4/3} ε⁻²)",
        SMOOTHER,
        SC3,
        "O(1)",
        ("lr_x", "lr_y"),
        "jacobi",
        "saba",
        "SABA",
        listed=True,
        note="N = m + n, all samples; SAGA's variance reduction; its abstract states O(1/T), no "
        "power of N",
    ),
    MethodInfo(
        "masoba",
        "MA-SOBA",
        "Chen et al., 2023",
        "single",
        _GENERAL,
        "O(ε⁻⁴)",
        SMOOTH,
        SC2,
        "O(1)",
        ("lr_x", "lr_y", "lr_z", "theta"),
        "jacobi",
        "masoba",
        "MASOBA",
        listed=True,
    ),
    MethodInfo(
        "borep",
        "BO-REP",
        "Hao et al., 2024",
        "double",
        _GENERAL,
        "Õ(ε⁻⁴)",
        RELAXED,
        SC2,
        "O(1)",
        ("lr_x", "lr_y", "lr_z", "beta", "period", "inner", "radius", "refine"),
        "seidel",
        "borep",
        "BOREP",
        listed=True,
        note="R, I and N are to be tuned beside what SLIP has",
    ),
    MethodInfo(
        "slip",
        "SLIP",
        "Gong et al., 2024",
        "single",
        _GENERAL,
        "Õ(ε⁻⁴)",
        RELAXED,
        SC2,
        "O(1)",
        ("lr_x", "lr_y", "lr_z", "beta", "warm_start"),
        "jacobi",
        "slip",
        "SLIP",
        listed=True,
    ),
    MethodInfo(
        "vrbo",
        "VRBO",
        "Yang et al., 2021",
        "double",
        _GENERAL,
        "Õ(ε⁻³)",
        MEAN_SQUARED,
        MEAN_SQUARED,
        "–",
        ("lr_x", "lr_y", "eta", "terms", "inner", "period", "refresh"),
        "seidel",
        "vrbo",
        "VRBO",
    ),
    MethodInfo(
        "mrbo",
        "MRBO",
        "Yang et al., 2021",
        "single",
        _GENERAL,
        "Õ(ε⁻³)",
        MEAN_SQUARED,
        MEAN_SQUARED,
        "–",
        ("lr_x", "lr_y", "eta", "terms", "d", "m", "c_x", "c_y"),
        "jacobi",
        "mrbo",
        "MRBO",
    ),
    MethodInfo(
        "sustain",
        "SUSTAIN",
        "Khanduri et al., 2021",
        "single",
        _GENERAL,
        "Õ(ε⁻³)",
        MEAN_SQUARED,
        MEAN_SQUARED,
        "–",
        ("lr_x", "lr_y", "eta", "terms", "w", "c_x", "c_y"),
        "jacobi",
        "sustain",
        "SUSTAIN",
    ),
    MethodInfo(
        "svrb",
        "SVRB",
        "Guo et al., 2021",
        "single",
        _GENERAL,
        "Õ(ε⁻³)",
        MEAN_SQUARED,
        MEAN_SQUARED,
        "–",
        ("lr_x", "lr_y", "mu", "d", "m", "c"),
        "jacobi",
        "svrb",
        "SVRB",
    ),
    MethodInfo(
        "srba",
        "SRBA",
        "Dagréou et al., 2023",
        "single",
        _FINITE,
        "Õ(ε⁻³)",
        MEAN_SQUARED,
        MEAN_SQUARED,
        "–",
        ("lr_x", "lr_y", "period"),
        "jacobi",
        "srba",
        "SRBA",
        note="the first footnote counts it among those of Õ(ε⁻³); its own abstract (arXiv "
        "2302.08766) states "
        "O(N^{1/2} ε⁻²) for ‖∇Φ‖ ≤ ε, N = m + n",
    ),
)

#: Beyond the sixteen; a new method adds its row here, then ``python -m mindgap.bilevel.registry
#: docs/bilevel.md``.
_FURTHER: tuple[MethodInfo, ...] = (
    MethodInfo(
        "adambo",
        "AdamBO",
        "Gong et al., 2025",
        "single",
        _GENERAL,
        "Õ(ε⁻⁴)",
        RELAXED,
        SC2,
        "O(1)",
        ("lr_x", "lr_y", "eta", "terms", "warm_start"),
        "seidel",
        "adambo",
        "AdamBO",
    ),
    MethodInfo(
        "accbo",
        "AccBO",
        "Gong et al., 2024",
        "single",
        _GENERAL,
        "Õ(ε⁻³)",
        RELAXED,
        MEAN_SQUARED,
        "O(1)",
        ("lr_x", "lr_y", "gamma", "tau", "beta", "eta", "terms"),
        "seidel",
        "accbo",
        "AccBO",
    ),
    MethodInfo(
        "n2sba",
        "N²SBA",
        "Liu & Luo, 2025",
        "double",
        _GENERAL,
        "Õ(ε^{-(4p-2)/(p-1)})",
        SMOOTHER,
        SC3,
        "–",
        ("lr_x", "lr_y", "lam", "inner", "batches", "clip"),
        "seidel",
        "n2sba",
        "N2SBA",
        note="noise with a bounded p-th central moment, 1 < p ≤ 2; first derivatives only",
    ),
    MethodInfo(
        "f2sa-p",
        "F²SA-p",
        "Chen et al., 2025",
        "double",
        _GENERAL,
        "Õ(ε^{-4-2/p})",
        "C^{p,p}_L in y",
        SC2,
        "O(1)",
        ("lr_x", "lr_y", "nu", "p", "inner"),
        "seidel",
        "f2sap",
        "F2SAp",
        note="first derivatives only; complexity as recalled, not confirmed",
    ),
    MethodInfo(
        "spaba",
        "SPABA",
        "Chu et al., 2024",
        "single",
        _FINITE,
        "O(N^{1/2} ε⁻²)",
        MEAN_SQUARED,
        MEAN_SQUARED,
        "O(1)",
        ("lr_x", "lr_y", "period"),
        "jacobi",
        "spaba",
        "SPABA",
    ),
    MethodInfo(
        "sama",
        "SAMA",
        "Choe et al., 2023",
        "double",
        _GENERAL,
        "–",
        SMOOTH,
        "H near a multiple of I",
        "–",
        ("lr_x", "lr_y", "scale", "inner"),
        "seidel",
        "sama",
        "SAMA",
        note="first derivatives only; biased unless H is a multiple of the identity",
    ),
    MethodInfo(
        "bome",
        "BOME",
        "Ye et al., 2022",
        "double",
        "deterministic",
        "–",
        SMOOTH,
        "Polyak–Łojasiewicz",
        "full",
        ("lr_x", "lr_y", "eta", "inner"),
        "seidel",
        "bome",
        "BOME",
        note="first derivatives only; analysed with full gradients",
    ),
    MethodInfo(
        "fsla",
        "FSLA",
        "Li et al., 2022",
        "single",
        _GENERAL,
        "O(ε⁻⁴)",
        SMOOTH,
        SC2,
        "O(1)",
        ("lr_x", "lr_y", "weight"),
        "seidel",
        "fsla",
        "FSLA",
    ),
    MethodInfo(
        "meha",
        "MEHA",
        "Liu et al., 2024",
        "single",
        "deterministic",
        "–",
        SMOOTH,
        "weakly convex",
        "full",
        ("lr_x", "lr_y", "gamma", "c", "power"),
        "seidel",
        "meha",
        "MEHA",
        note="first derivatives only; no strong convexity",
        lower_variable="w",
    ),
    MethodInfo(
        "pbgd",
        "PBGD",
        "Shen & Chen, 2023",
        "double",
        "deterministic",
        "Õ(ε⁻³)",
        SMOOTH,
        "Polyak–Łojasiewicz",
        "full",
        ("lr_x", "lr_y", "lam", "inner"),
        "seidel",
        "pbgd",
        "PBGD",
        note="first derivatives only; complexity as recalled, not confirmed",
        lower_variable="w",
    ),
    MethodInfo(
        "pzobo",
        "PZOBO",
        "Sow et al., 2022",
        "double",
        _GENERAL,
        "–",
        SMOOTH,
        SC2,
        "–",
        ("lr_x", "lr_y", "inner", "directions", "mu"),
        "seidel",
        "pzobo",
        "PZOBO",
        note="first derivatives only; differences along random directions of x",
    ),
)

#: Key -> row, in the order of Table 1, then of its first footnote.
SIXTEEN: dict[str, MethodInfo] = {row.key: row for row in _SIXTEEN}
#: The sixteen, then all further methods.
METHODS: dict[str, MethodInfo] = {row.key: row for row in _SIXTEEN + _FURTHER}
FURTHER: dict[str, MethodInfo] = {row.key: row for row in _FURTHER}

HEADER = (
    "method",
    "loop",
    "setting",
    "oracle complexity",
    "upper level f",
    "lower level g",
    "batch",
    "to choose",
)


def table_rows(methods: Mapping[str, MethodInfo] = SIXTEEN) -> list[tuple[str, ...]]:
    """The table as text, one tuple per method, in the columns of :data:`HEADER`.

    Example:
        >>> table_rows()[10][:4]
        ('SLIP (Gong et al., 2024)', 'single', 'general expectation', 'Õ(ε⁻⁴)')
    """
    return [
        (
            f"{m.name} ({m.paper})",
            m.loop,
            m.setting,
            m.complexity,
            m.upper,
            m.lower,
            m.batch,
            str(m.hyperparameters),
        )
        for m in methods.values()
    ]


def table_markdown() -> str:
    """The tables for the documentation: the sixteen, then all further methods.

    Example:
        >>> table_markdown().splitlines()[0]
        '| method | loop | setting | oracle complexity | upper level f | lower level g | batch...
    """

    def markdown(methods: Mapping[str, MethodInfo]) -> str:
        lines = [HEADER, ("---",) * len(HEADER), *table_rows(methods)]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    return f"{markdown(SIXTEEN)}\n\nBeyond the sixteen:\n\n{markdown(FURTHER)}"


def as_records() -> list[dict[str, Any]]:
    """The rows as plain dicts (for JSON).

    Example:
        >>> as_records()[0]["key"]
        'bsa'
    """
    return [{f.name: getattr(m, f.name) for f in fields(m)} for m in METHODS.values()]


def write_table(path: str) -> None:
    """Put the table between the marks of a document (``python -m mindgap.bilevel.registry
    docs/bilevel.md``).
    """
    from pathlib import Path

    begin, end = "<!-- methods: begin -->\n", "<!-- methods: end -->"
    text = Path(path).read_text(encoding="utf-8")
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise ValueError(f"{path} has no place for the table ({begin.strip()} ... {end})")
    Path(path).write_text(head + begin + table_markdown() + "\n" + end + tail, encoding="utf-8")


if __name__ == "__main__":
    import sys

    write_table(sys.argv[1])
