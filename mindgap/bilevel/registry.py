"""The methods as data: Table 1 of the authors' answer on SLIP, its footnotes, and where each method
lives.

Standard library only: the command line and the documentation read it without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any


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


#: The table's words that are short for others.
_SHORT = {
    "general": "general expectation",
    "smooth": "C^{1,1}_L",
    "smoother": "C^{2,2}_L",
    "relaxed": "(L_x0, L_x1, L_y0, L_y1)-smooth",
    "SC2": "SC and C^{2,2}_L",
    "SC3": "SC and C^{3,3}_L",
    "mean squared": "mean-squared smooth (footnote 1)",
}
#: Table 1, one method in two lines: key | class | name | paper | loop | setting
#: | complexity | upper | lower | batch | order | what to choose.
_LISTED = """
bsa | BSA | BSA | Ghadimi & Wang, 2018 | double | general
    | Õ(ε⁻⁶) | smooth | SC2 | Õ(1) | seidel | lr_x lr_y eta terms inner
stocbio | StocBio | StocBio | Ji et al., 2021 | double | general
    | Õ(ε⁻⁴) | smooth | SC2 | Õ(ε⁻²) | seidel | lr_x lr_y eta terms inner
amigo | AmIGO | AmIGO | Arbel & Mairal, 2021 | double | general
    | Õ(ε⁻⁴) | smooth | SC2 | O(ε⁻²) | seidel | lr_x lr_y lr_z inner solves
alset | ALSET | ALSET | Chen et al., 2021 | double / single | general
    | O(ε⁻⁴) | smooth | SC2 | O(1) | seidel | lr_x lr_y eta terms inner
ttsa | TTSA | TTSA | Hong et al., 2023 | single | general
    | Õ(ε⁻⁵) | smooth | SC2 | Õ(1) | seidel | lr_x lr_y eta terms
f2sa | F2SA | F²SA | Kwon et al., 2023 | single | general
    | O(ε⁻⁷) | smooth | SC2 | O(1) | seidel | lr_x lr_y lam delta inner
soba | SOBA | SOBA | Dagréou et al., 2022 | single | finite sum
    | O(ε⁻⁴) | smoother | SC3 | O(1) | jacobi | lr_x lr_y
saba | SABA | SABA | Dagréou et al., 2022 | single | finite sum
    | O(N^{4/3} ε⁻²) | smoother | SC3 | O(1) | jacobi | lr_x lr_y
masoba | MASOBA | MA-SOBA | Chen et al., 2023 | single | general
    | O(ε⁻⁴) | smooth | SC2 | O(1) | jacobi | lr_x lr_y lr_z theta
borep | BOREP | BO-REP | Hao et al., 2024 | double | general
    | Õ(ε⁻⁴) | relaxed | SC2 | O(1) | seidel | lr_x lr_y lr_z beta period inner radius refine
slip | SLIP | SLIP | Gong et al., 2024 | single | general
    | Õ(ε⁻⁴) | relaxed | SC2 | O(1) | jacobi | lr_x lr_y lr_z beta warm_start
"""
#: What its first footnote adds.
_FOOTNOTE = """
vrbo | VRBO | VRBO | Yang et al., 2021 | double | general
    | Õ(ε⁻³) | mean squared | mean squared | – | seidel | lr_x lr_y eta terms inner period refresh
mrbo | MRBO | MRBO | Yang et al., 2021 | single | general
    | Õ(ε⁻³) | mean squared | mean squared | – | jacobi | lr_x lr_y eta terms d m c_x c_y
sustain | SUSTAIN | SUSTAIN | Khanduri et al., 2021 | single | general
    | Õ(ε⁻³) | mean squared | mean squared | – | jacobi | lr_x lr_y eta terms w c_x c_y
svrb | SVRB | SVRB | Guo et al., 2021 | single | general
    | Õ(ε⁻³) | mean squared | mean squared | – | jacobi | lr_x lr_y mu d m c
srba | SRBA | SRBA | Dagréou et al., 2023 | single | finite sum
    | Õ(ε⁻³) | mean squared | mean squared | – | jacobi | lr_x lr_y period
"""
#: Methods beyond the sixteen.
_FURTHER = """
adambo | AdamBO | AdamBO | Gong et al., 2025 | single | general
    | Õ(ε⁻⁴) | relaxed | SC2 | O(1) | seidel | lr_x lr_y eta terms warm_start
accbo | AccBO | AccBO | Gong et al., 2024 | single | general
    | Õ(ε⁻³) | relaxed | mean squared | O(1) | seidel | lr_x lr_y gamma tau beta eta terms
n2sba | N2SBA | N²SBA | Liu & Luo, 2025 | double | general
    | Õ(ε^{-(4p-2)/(p-1)}) | smoother | SC3 | – | seidel | lr_x lr_y lam inner batches clip
f2sa-p | F2SAp | F²SA-p | Chen et al., 2025 | double | general
    | Õ(ε^{-4-2/p}) | C^{p,p}_L in y | SC2 | O(1) | seidel | lr_x lr_y nu p inner
spaba | SPABA | SPABA | Chu et al., 2024 | single | finite sum
    | O(N^{1/2} ε⁻²) | mean squared | mean squared | O(1) | jacobi | lr_x lr_y period
sama | SAMA | SAMA | Choe et al., 2023 | double | general
    | – | smooth | H near a multiple of I | – | seidel | lr_x lr_y scale inner
bome | BOME | BOME | Ye et al., 2022 | double | deterministic
    | – | smooth | Polyak–Łojasiewicz | full | seidel | lr_x lr_y eta inner
fsla | FSLA | FSLA | Li et al., 2022 | single | general
    | O(ε⁻⁴) | smooth | SC2 | O(1) | seidel | lr_x lr_y weight
meha | MEHA | MEHA | Liu et al., 2024 | single | deterministic
    | – | smooth | weakly convex | full | seidel | lr_x lr_y gamma c power
pbgd | PBGD | PBGD | Shen & Chen, 2023 | double | deterministic
    | Õ(ε⁻³) | smooth | Polyak–Łojasiewicz | full | seidel | lr_x lr_y lam inner
pzobo | PZOBO | PZOBO | Sow et al., 2022 | double | general
    | – | smooth | SC2 | – | seidel | lr_x lr_y inner directions mu
"""
#: What the footnotes say.
_NOTES = {
    "alset": "converges without a double loop at the cost of a worse dependence on κ",
    "saba": "N = m + n, all samples; SAGA's variance reduction; its abstract states O(1/T), no "
    "power of N",
    "borep": "R, I and N are to be tuned beside what SLIP has",
    "srba": "the first footnote counts it among those of Õ(ε⁻³); its own abstract (arXiv "
    "2302.08766) states O(N^{1/2} ε⁻²) for ‖∇Φ‖ ≤ ε, N = m + n",
    "n2sba": "noise with a bounded p-th central moment, 1 < p ≤ 2; first derivatives only",
    "f2sa-p": "first derivatives only; complexity as recalled, not confirmed",
    "sama": "first derivatives only; biased unless H is a multiple of the identity",
    "bome": "first derivatives only; analysed with full gradients",
    "meha": "first derivatives only; no strong convexity",
    "pbgd": "first derivatives only; complexity as recalled, not confirmed",
    "pzobo": "first derivatives only; differences along random directions of x",
}
#: The methods whose y also descends on f, and which keep a w. MEHA's w is drawn towards its y;
#: BOME's y descends on f too, and its w is not kept.
_LOWER = dict.fromkeys(("f2sa", "meha", "n2sba", "pbgd"), "w")


def _methods_in(text: str, listed: bool = False) -> dict[str, MethodInfo]:
    """The methods of a table, by key. Bars separate the cells of a method; a line that begins with
    a bar continues the one before.
    """
    methods = {}
    for line in text.strip().replace("\n    |", " |").splitlines():
        key, class_name, name, paper, *cells, order, choices = line.split(" | ")
        loop, setting, complexity, upper, lower, batch = (_SHORT.get(c, c) for c in cells)
        methods[key] = MethodInfo(
            *(key, name, paper, loop, setting, complexity, upper, lower, batch),
            choices=tuple(choices.split()),
            order=order,
            module=key.replace("-", ""),
            class_name=class_name,
            listed=listed,
            note=_NOTES.get(key, ""),
            lower_variable=_LOWER.get(key, "y"),
        )
    return methods


#: The sixteen of the SLIP documents ("all sixteen" in a study means these), by key, in the order of
#: Table 1, then of its first footnote.
SIXTEEN = {**_methods_in(_LISTED, listed=True), **_methods_in(_FOOTNOTE)}
FURTHER = _methods_in(_FURTHER)
#: The sixteen, then all further methods.
METHODS = {**SIXTEEN, **FURTHER}


def lower_variable_of(method: object) -> str:
    """The name of the value of a state that holds the method's solution of the lower level."""
    names = {info.class_name: info.lower_variable for info in METHODS.values()}
    return names.get(type(method).__name__, "y")


#: Names of the columns of the documentation's tables.
HEADER = (
    "method | loop | setting | oracle complexity | upper level f | lower level g"
    " | batch | to choose"
)


def table_markdown() -> str:
    """The tables for the documentation: the sixteen, then all further methods.

    Example:
        >>> table_markdown().splitlines()[0]
        '| method | loop | setting | oracle complexity | upper level f | lower level g | batch...
    """

    def markdown(methods: Mapping[str, MethodInfo]) -> str:
        """One Markdown table with a row per method."""
        header = HEADER.split(" | ")
        rows = [
            [f"{m.name} ({m.paper})", m.loop, m.setting, m.complexity]
            + [m.upper, m.lower, m.batch, str(m.hyperparameters)]
            for m in methods.values()
        ]
        lines = [header, ["---"] * len(header), *rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    return f"{markdown(SIXTEEN)}\n\nBeyond the sixteen:\n\n{markdown(FURTHER)}"


def write_table(path: str) -> None:
    """Put the table into a document (``python -m mindgap.bilevel.registry docs/bilevel.md``)."""
    from pathlib import Path

    begin, end = "<!-- methods: begin -->\n", "<!-- methods: end -->"
    text = Path(path).read_text(encoding="utf-8")
    head, _, after_begin = text.partition(begin)
    _, end_mark, tail = after_begin.partition(end)
    if not end_mark:
        raise ValueError(f"{path} has no place for the table ({begin.strip()} ... {end})")
    Path(path).write_text(head + begin + table_markdown() + "\n" + end + tail, encoding="utf-8")


if __name__ == "__main__":
    import sys

    write_table(sys.argv[1])
