"""docs/data.md: its table is the program's, and its blocks run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_table_is_the_programs():
    from mindgap.lab.tasks.data.datasets import table_markdown

    shown = PAGE.split("<!-- table -->\n")[1].split("\n<!-- end -->")[0]
    assert shown == table_markdown()


@pytest.mark.parametrize(
    ("block", "printed"),
    [
        (BLOCKS[0], "(1797, 64) scikit-learn digits\n(1000, 22) synthetic\n"),
        (BLOCKS[1], "300 160 120\n0.89\n"),
        (BLOCKS[2], "1108 1000 0.48\n"),
    ],
    ids=["data", "cleaning", "representation"],
)
def test_blocks_run(block, printed, capsys):
    exec(compile(block, "docs/data.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_every_call_named_there_exists():
    from mindgap.lab.tasks import data, problems

    for name in re.findall(r"`(\w+)\(", PAGE):
        assert hasattr(data, name) or hasattr(problems, name), name
    assert len(BLOCKS) == 3
