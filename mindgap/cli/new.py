"""``mindgap new``: a new optimizer, method, probe, study or cause in a checkout of the project.

It starts as a working copy of one that is there, under its own name, with everything that the
contract tests and the documents ask for: rows, public name, test record and line of a guide. Every
edit is made in memory first; nothing is written where one of them has no place.
"""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from mindgap.base.check import fail
from mindgap.record.store import write_atomically

#: Letter of a claim -> folder of its studies.
GROUPS = {
    "b": "bilevel",
    "t": "textbook",
    "s": "smoothness",
    "h": "heavy_tails",
    "n": "kinks",
    "e": "never_at_rest",
}
#: Numbers of optimizers as the README writes them.
NUMBERS = ("seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen")


class Kind(str, Enum):
    """What can be made."""

    OPTIMIZER = "optimizer"
    METHOD = "method"
    PROBE = "probe"
    STUDY = "study"
    CAUSE = "cause"


class Tree:
    """The texts of a checkout with edits that are not written yet."""

    def __init__(self, root: Path) -> None:
        if not (root / "mindgap/optim/table.py").is_file() or not (root / "tests/cases").is_dir():
            fail("root", "must be a checkout of mindgap, with its tests", str(root))
        self.root = root
        self.texts: dict[str, str] = {}

    def read(self, name: str) -> str:
        """The text of a file, with the edits made so far."""
        return self.texts.get(name) or (self.root / name).read_text(encoding="utf-8")

    def add(self, name: str, text: str) -> None:
        """Add a new file; an error where there is one of that name."""
        if name in self.texts or (self.root / name).exists():
            fail("name", "must be new", f"{name} exists")
        self.texts[name] = text

    def edit(self, name: str, change: Callable[[str], str]) -> None:
        """Change a file that is there; an error where ``change`` leaves its text as it is, because
        the edit has found no place.
        """
        old = self.read(name)
        new = change(old)
        if new == old:
            fail("root", "must be a checkout in which new rows have their place", name)
        self.texts[name] = new

    def insert_before(self, name: str, mark: str, row: str) -> None:
        """Put a row in front of the only place where ``mark`` stands in a file; an error where it
        does not stand there once.
        """
        if self.read(name).count(mark) != 1:
            fail("root", f"must be a checkout with {mark.strip()!r} once in", name)
        self.edit(name, lambda text: text.replace(mark, row + mark))

    def write(self) -> list[str]:
        """Write every new and edited file; returns their names."""
        for name, text in self.texts.items():
            write_atomically(self.root / name, text)
        return list(self.texts)


def renamed(text: str, old: str, new: str) -> str:
    """A text in which one name stands for another.

    Example:
        >>> renamed("class SOBA: 'SOBAs'", "SOBA", "Mine")
        "class Mine: 'SOBAs'"
    """
    return re.sub(rf"\b{old}\b", new, text)


def class_name_of(key: str) -> str:
    """The class that a key stands for.

    Example:
        >>> class_name_of("soft_clip"), class_name_of("my-method")
        ('SoftClip', 'MyMethod')
    """
    return "".join(word.capitalize() for word in re.split(r"[-_]", key))


def _public(tree: Tree, room: str, module: str, name: str) -> None:
    """Make a name public: add its import for type checkers to the ``__init__`` of its room, in the
    order of modules, and rebuild the table of names that follows from these imports.

    Args:
        room: package below ``mindgap``.
        module: path of the module in the room.
    """
    path = f"mindgap/{room}/__init__.py"
    # The names of the checkout's own tool; ``written`` rebuilds the table in a text.
    tool = runpy.run_path(str(tree.root / "docs/tools/public_names.py"))
    line = f"    from mindgap.{room}.{module} import {name} as {name}\n"

    def change(text: str) -> str:
        """The text with the name's import in its place among the others."""
        rows = text.splitlines(keepends=True)
        end = rows.index("else:\n")
        imports = [i for i in range(end) if rows[i].startswith("    from mindgap.")]
        following = [i for i in imports if rows[i].split()[1] > f"mindgap.{room}.{module}"]
        rows.insert(following[0] if following else end, line)
        return str(tool["written"](f"mindgap.{room}", "".join(rows)))

    tree.edit(path, change)


def add_optimizer(tree: Tree, key: str, name: str) -> str:
    """Add an optimizer, a copy of NormalizedSGD; returns the command that runs its tests.

    Args:
        key: its name in tables, such as ``soft_clip``.
        name: its class.
    """
    source = tree.read("mindgap/optim/optimizers/normalized_sgd.py")
    tree.add(f"mindgap/optim/optimizers/{key}.py", renamed(source, "NormalizedSGD", name))
    tree.insert_before(
        "mindgap/optim/table.py",
        '        _entry(\n            "ingd",',
        f'        _entry(\n            "{key}",\n            "{name}",\n'
        '            Source("thesis", "(3.6)"),\n'
        f'            "{name}: say in one sentence what it does",\n'
        '            "x ← x − η·m with m an average of g/(‖g‖+b)",\n        ),\n',
    )
    _public(tree, "optim", f"optimizers.{key}", name)
    tree.insert_before(
        "tests/cases/optimizers.py",
        '        OptimizerCase(\n            "torch.SGD",',
        f'        of_ours(\n            "{key}",\n            {{"lr": 0.05}},\n'
        '            variants={"momentum": {"beta": 0.9}},\n'
        "            bad=COMMON_BAD + BETA_BAD + PROJECT_BAD,\n        ),\n",
    )
    tree.insert_before(
        "tests/optim/test_optimizer_properties.py",
        '    "ingd": Case(\n',
        f'    "{key}": Case(\n        lambda p, g, x, **o: OPTIMIZERS["{key}"].load()(\n'
        "            p, 0.05 * x, beta=0.5, damping=0.2 * g, **o\n        )\n    ),\n",
    )
    # A line of the guide, behind the one on a gradient whose scale is not known.
    tree.edit(
        "docs/optimizers.md",
        lambda text: re.sub(
            r"(\| no idea of the gradient's scale \|.*\n)",
            rf"\1| a case for {name} | `{name}(params, lr)` | say why |\n",
            text,
        ),
    )
    # The number of optimizers, in words, is one more.
    tree.edit(
        "README.md",
        lambda text: re.sub(
            r"all (\w+) optimizers",
            lambda m: f"all {NUMBERS[NUMBERS.index(m[1]) + 1]} optimizers",
            text,
        ),
    )
    return f"python -m pytest tests/optim mindgap/optim -k {key}"


def add_method(tree: Tree, key: str, name: str) -> str:
    """Add a bilevel method, a copy of SOBA; returns the command that runs its tests.

    Args:
        key: its name in tables, such as ``my-method``.
        name: its class.
    """
    module = key.replace("-", "")
    source = renamed(tree.read("mindgap/bilevel/methods/soba.py"), "SOBA", name)
    tree.add(f"mindgap/bilevel/methods/{module}.py", source)
    # The row of SOBA under the new name, in two lines as the table has them.
    row = f"{key} | {name} | {name} | nobody, 2026 | single | finite sum\n"
    row += "    | – | smoother | SC3 | O(1) | jacobi | lr_x lr_y\n"
    tree.insert_before("mindgap/bilevel/registry.py", "adambo | AdamBO |", row)
    _public(tree, "bilevel", f"methods.{module}", name)
    tree.insert_before(
        "tests/cases/bilevel.py",
        '    Case(\n        "soba",\n        {"lr_x": 0.1, "lr_y": 0.2},\n',
        f'    Case(\n        "{key}",\n        {{"lr_x": 0.1, "lr_y": 0.2}},\n'
        '        lambda m, t: {"c": m.lr_y, "c_x": m.lr_x},\n        _steps,\n'
        "        BAD_STEP,\n    ),\n",
    )
    tree.insert_before(
        "tests/references/bilevel_methods.py",
        '    "adambo":',
        f'    "{key}": (linsys.soba_init, linsys.soba),\n',
    )
    defaults = "tests/bilevel/test_bilevel_defaults.py"
    tree.insert_before(
        defaults, '    "saba": {"lr_z"', f'    "{key}": {{"lr_z": None, "order": "jacobi"}},\n'
    )
    tree.insert_before(
        defaults,
        '    "mrbo": {"lr_x": 1 / 3',
        f'    "{key}": {{"lr_x": 1 / 2, "lr_y": 1 / 2, "lr_z": 1 / 2}},\n',
    )
    tree.edit(
        "README.md",
        lambda text: re.sub(r"(\d+) methods", lambda m: f"{int(m[1]) + 1} methods", text),
    )
    # The first row of the guide's table of methods beyond the sixteen.
    tree.edit(
        "docs/bilevel.md",
        lambda text: re.sub(
            r"(Beyond the sixteen:\n\n\|.*\n\|.*\n)",
            rf"\1| {name} (nobody, 2026) | single | finite sum | – | C^{{2,2}}_L | "
            r"SC and C^{3,3}_L | O(1) | 2 |" + "\n",
            text,
        ),
    )
    return f"python -m pytest tests/bilevel mindgap/bilevel/methods -k '{key} or {module}'"


def add_probe(tree: Tree, key: str, name: str) -> str:
    """Add a probe, a copy of the probe of updates; returns the command that runs its tests.

    Args:
        key: its name in tables, such as ``my_probe``.
        name: its class, to which "Probe" is added.
    """
    name += "" if name.endswith("Probe") else "Probe"
    source = renamed(tree.read("mindgap/measure/probes/update.py"), "UpdateProbe", name)
    source = source.replace('name, needs = "update",', f'name, needs = "{key}",')
    tree.add(f"mindgap/measure/probes/{key}.py", source)
    words, citation = f"{key}: say in one sentence what it reads", "3.3.1"
    # A row at the end of the table, and the name at the end of ``ProbeName`` behind it.
    tree.edit(
        "mindgap/measure/table.py",
        lambda text: text.replace(
            "\n)\n\n",
            f'\n    _entry(\n        "{key}",\n        "probes.{key}",\n        "{name}",\n'
            f'        "{citation}",\n        "{words}",\n        needs="update",\n    ),\n)\n\n',
            1,
        ).replace("]\nPROBES: dict", f'    "{key}",\n]\nPROBES: dict'),
    )
    tree.insert_before(
        "docs/measure.md",
        "<!-- probes: end -->",
        f"| `{key}` | update | {words} | thesis, {citation} |\n",
    )
    tree.add(
        f"tests/measure/test_{key}.py",
        f'"""The probe ``{key}`` against a closed form."""\n\n'
        "from __future__ import annotations\n\nimport pytest\nimport torch\n\n"
        "from mindgap import Objective\nfrom mindgap.measure import PROBES, Monitor, Reading\n\n\n"
        f"def test_{key}_of_a_known_update() -> None:\n"
        "    model = torch.nn.Linear(2, 1, bias=False)\n    with torch.no_grad():\n"
        "        model.weight.copy_(torch.tensor([[3.0, 4.0]]))\n"
        "    problem = Objective(model, lambda m, b: m(b).sum())\n"
        "    at = Reading(problem, [0], update=[torch.tensor([[0.6, 0.8]])])\n"
        f'    found = PROBES["{key}"].load()().read(at)\n'
        '    assert found["norm"] == pytest.approx(1.0)\n'
        '    assert found["relative"] == pytest.approx(0.2)\n\n\n'
        f"def test_a_monitor_reads_{key}() -> None:\n"
        "    model = torch.nn.Linear(2, 1)\n"
        "    problem = Objective(model, lambda m, b: m(b).square().mean())\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    data = [torch.ones(4, 2), torch.zeros(4, 2)]\n"
        f'    with Monitor(optimizer, problem, data, ["{key}"], every=1) as monitor:\n'
        "        problem.value(data[0]).backward()\n        optimizer.step()\n"
        f'    assert monitor.readings[0]["{key}_norm"] > 0\n',
    )
    return f"python -m pytest tests/measure/test_{key}.py mindgap/measure/probes/{key}.py"


def add_study(tree: Tree, key: str, _: str) -> str:
    """Add a study, a copy of E5's; returns the command that runs its tests.

    Args:
        key: its name, which begins with its claim, such as ``e5-my-study``.
    """
    claim_match = re.fullmatch(r"([btshne])(\d+)-[a-z0-9-]+", key)
    if claim_match is None:
        fail("name", "must begin with its claim, such as e5-my-study", key)
    claim, file = f"{claim_match[1].upper()}{claim_match[2]}", key.replace("-", "_")
    row = re.compile(rf"^(\| {claim} \|.*) \|$", re.MULTILINE)  # of the claim, in a table
    if not row.search(tree.read("docs/claims.md")):
        fail("name", "must begin with a claim that has its own row in docs/claims.md", key)
    source = tree.read("mindgap/lab/studies/catalogue/never_at_rest/e5_cycle.py")
    source = source.replace('name="e5-cycle"', f'name="{key}"').replace(
        'claim="E5"', f'claim="{claim}"'
    )
    tree.add(f"mindgap/lab/studies/catalogue/{GROUPS[claim_match[1]]}/{file}.py", source)
    tree.edit("docs/claims.md", lambda text: row.sub(rf"\1; study `{key}` |", text))
    about = key.partition("-")[2].replace("-", " ")[:34]  # as long as a short title may be
    tree.edit("mindgap/record/titles.txt", lambda text: f"{text.rstrip()}\n{key} | {about}\n")
    tree.add(
        f"tests/lab/studies/test_{file}.py",
        f'"""The study ``{key}`` says what is true of made-up runs, and can come out either way."""'
        "\n\nfrom __future__ import annotations\n\n"
        "import pytest\n\nfrom mindgap.lab.studies.catalogue import find\n"
        "from mindgap.lab.studies.run import simulate\n\n\n"
        '@pytest.mark.parametrize(("changes", "expected"), '
        '[({}, "holds"), ({"steps": 12}, "does not hold")])\n'
        "def test_the_verdict_follows_the_runs(changes: dict[str, float], expected: str) -> None:\n"
        f'    study = find("{key}")\n'
        '    found = study.judge(simulate(study, "quick", seeds=2, **changes))\n'
        "    assert found.verdict == expected\n",
    )
    return f"python -m pytest tests/lab/studies/test_{file}.py tests/docs/test_claims_page.py"


def add_cause(tree: Tree, key: str, _: str) -> str:
    """Add a cause of the doctor, which finds batches of equal samples; returns the command that
    runs its tests.

    Args:
        key: its name in tables, such as ``my_cause``.
    """
    words = key.replace("_", " ")
    tree.add(
        f"mindgap/advise/doctor/{key}.py",
        f'"""The evidence for the cause ``{key}``."""\n\n'
        "from __future__ import annotations\n\n"
        "from mindgap.advise.doctor.chart import Chart\n"
        "from mindgap.advise.doctor.patient import Patient\n"
        "from mindgap.base.batches import pair\n\n\n"
        "def read(chart: Chart, patient: Patient) -> None:\n"
        '    """Batches whose samples are all equal."""\n'
        "    inputs = [x for x, _ in map(pair, patient.train) if x is not None and len(x) > 1]\n"
        "    equal = sum(bool((x == x[:1]).all()) for x in inputs)\n"
        "    if equal:\n"
        '        text = f"{equal} of {len(inputs)} batches repeat one sample."\n'
        f'        chart.find("{key}_seen", equal / len(inputs), text)\n',
    )
    # The reading in the list of those with a file of their own, its finding, and the cause.
    tree.edit(
        "mindgap/advise/doctor/further.py",
        lambda text: text.replace(
            "READINGS: dict[str, str] = {",
            f'READINGS: dict[str, str] = {{\n    "{key}": "mindgap.advise.doctor.{key}",\n',
        ),
    )
    tree.insert_before(
        "mindgap/advise/doctor/chart.py", "]\n\n\n@dataclass(frozen=True)", f'    "{key}_seen",\n'
    )
    tree.insert_before(
        "mindgap/advise/doctor/causes.py",
        ")\n\nCAUSES: dict[str, Cause]",
        f'    Cause(\n        "{key}",\n        "{words}: say in one sentence what is wrong",\n'
        f'        {{"{key}_seen": 8.0}},\n        "",\n        "say what to change",\n'
        '        "# what to paste",\n        "say where it is described",\n'
        f'        needs=("{key}_seen",),\n        proof=False,\n    ),\n',
    )
    tree.insert_before(
        "docs/doctor.md",
        "<!-- further causes: end -->",
        f"| `{key}` | all samples of a batch are equal | say what to change |\n",
    )
    tree.edit(
        "docs/doctor.md",
        lambda text: re.sub(
            r"is the table: (\d+) causes", lambda m: f"is the table: {int(m[1]) + 1} causes", text
        ),
    )
    tree.add(
        f"tests/advise/test_{key}.py",
        f'"""The cause ``{key}`` is found where it is planted, and only there."""\n\n'
        "from __future__ import annotations\n\nimport pytest\nimport torch\n\n"
        "from mindgap.advise import examine\n\n\n"
        '@pytest.mark.parametrize("planted", [True, False])\n'
        f"def test_{key}_is_named_where_it_is_planted(planted: bool) -> None:\n"
        "    x = torch.randn(40, 8, 4, generator=torch.Generator().manual_seed(0))\n"
        "    x = x[:, :1].expand_as(x) if planted else x\n"
        "    batches = [(a, a.sum(1, keepdim=True)) for a in x]\n\n"
        "    def problem():\n"
        "        model = torch.nn.Linear(4, 1)\n\n"
        "        def loss(model, batch):\n"
        "            return (model(batch[0]) - batch[1]).square().mean()\n\n"
        "        return (model, loss), batches, torch.optim.SGD(model.parameters(), lr=0.05)\n\n"
        "    answer = examine(problem, seconds=20)\n"
        f'    assert (answer.cause == "{key}") == planted\n',
    )
    return f"python -m pytest tests/advise -k '{key} or every_cause'"


MAKERS = {
    Kind.OPTIMIZER: add_optimizer,
    Kind.METHOD: add_method,
    Kind.PROBE: add_probe,
    Kind.STUDY: add_study,
    Kind.CAUSE: add_cause,
}


def new(
    kind: Annotated[Kind, typer.Argument(help="What to add.")],
    name: Annotated[
        str, typer.Argument(help="Its key, such as soft_clip; for a study e5-my-study.")
    ],
    root: Annotated[
        Path, typer.Option("--root", help="A checkout of mindgap with its tests.")
    ] = Path("."),
) -> None:
    """Add an optimizer, method, probe, study or cause to a checkout.

    Writes its file, rows, public name, test record and line of the guide.
    """
    allowed = r"[a-z][a-z0-9-]*" if kind in (Kind.METHOD, Kind.STUDY) else r"[a-z][a-z0-9_]*"
    if not re.fullmatch(allowed, name):
        fail("name", f"must be small letters and digits ({allowed})", name)
    tree = Tree(root)
    command = MAKERS[kind](tree, name, class_name_of(name))
    written = tree.write()
    if importlib.util.find_spec("ruff"):
        python = [path for path in written if path.endswith(".py")]
        words = [sys.executable, "-m", "ruff", "format", "--quiet", *python]
        subprocess.run(words, cwd=root, check=False)
    for path in written:
        print(path)
    print(f"Change what is yours, add a line to CHANGELOG.md, and run\n{command}")
