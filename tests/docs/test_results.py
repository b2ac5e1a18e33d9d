"""``results/`` is small, whole and complete, and the documents say what it says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from mindgap.lab.report.load import load
from mindgap.lab.studies.catalogue import catalogue
from mindgap.lab.studies.run import judge_folder
from mindgap.record.forms import read_form
from mindgap.record.packed import pack, unpacked
from mindgap.record.schema import End, Header, RecordError, Verdict
from mindgap.record.store import VERDICT_FILE, RunWriter, read_run, study_folders

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_tool", ROOT / "docs" / "tools" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_documents_are_those_of_the_records(tool: ModuleType) -> None:
    assert (ROOT / "docs" / "reproduction.md").read_text() == tool.document(), "run docs/tools/results.py write"
    text = (ROOT / "README.md").read_text()
    assert text == tool.readme(text), "run docs/tools/results.py write"
    assert tool.MARKS[0] in text


def test_every_claim_has_a_row_and_no_cell_is_empty(tool: ModuleType) -> None:
    rows = [line for line in tool.document().splitlines() if re.match(r"\| [A-Z]\d+ \|", line)]
    assert {row.split(" | ")[0].strip("| ") for row in rows} == set(tool.claims())
    assert len(rows) >= len(catalogue())
    assert not any(cell.strip() == "" for row in rows for cell in row.strip("|").split("|"))


def test_the_records_are_small_readable_and_judged_as_written() -> None:
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 20_000_000
    folders = list(study_folders(RESULTS))
    assert len(folders) >= 50
    for folder in folders[::8]:  # all of them: mindgap check results
        written = read_form(Verdict, folder / VERDICT_FILE)
        _, name, verdict = judge_folder(folder)
        assert (name, verdict.verdict) == (folder.parent.name, written.verdict)
        for file in written.files:
            header = read_run(folder / file).header
            assert header.started
            assert header.versions
            assert header.machine
            assert not re.search(r"/(tmp|home|root|work)\b", header.command)


def test_a_page_can_be_drawn_from_packed_records() -> None:
    studies = load(RESULTS)
    assert [problem for study in studies for problem in study.problems] == []
    assert all(study.runs for study in studies)


def test_packing_keeps_every_row_and_is_the_same_each_time(tmp_path: Path) -> None:
    folder = tmp_path / "s" / "quick"
    with RunWriter(folder, Header("s", "S1", "quick", "m", 0, {"lr": 0.1}, command="mindgap run s --out /x/y")) as w:
        for step in range(5):
            w.row({"step": step, "loss": 1 / (step + 3)})
        w.end(End("done", 0.5))
    for name in ("a", "b"):
        pack(folder, tmp_path / name / "quick.tar.xz")
    assert (tmp_path / "a" / "quick.tar.xz").read_bytes() == (tmp_path / "b" / "quick.tar.xz").read_bytes()
    (path,) = unpacked(tmp_path / "a" / "quick.tar.xz").glob("*.jsonl")
    assert read_run(path).rows == read_run(w.path).rows
    assert read_run(path).header.command == "mindgap run s"
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "quick.tar.xz").write_bytes(b"no archive")
    with pytest.raises(RecordError, match=r"c/quick.tar.xz cannot be read"):
        unpacked(tmp_path / "c" / "quick.tar.xz")
