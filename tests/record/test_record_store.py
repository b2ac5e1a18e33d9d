"""Records survive crashes: torn tails are dropped, damaged lines are named, nothing
half-written remains.
"""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path

import pytest
from cases.record_race import race

from mindgap.record.forms import StudyDescription, read_form, write_form
from mindgap.record.outcomes import study_folders
from mindgap.record.schema import (
    SCHEMA,
    End,
    Header,
    RecordError,
    Verdict,
    from_json,
    line,
    to_json,
)
from mindgap.record.store import (
    RunWriter,
    is_finished,
    read_run,
    remove_run,
    run_file,
    write_atomically,
)

HEADER = Header("study", "S1", "quick", "method", 3, {"lr": 0.1})


def write(folder: Path, rows: int, *, end: bool = True) -> Path:
    with RunWriter(folder, HEADER) as writer:
        for step in range(rows):
            writer.row({"step": step, "loss": 1 / (step + 1)})
        if end:
            writer.end(End("done", 0.5))
    return writer.path


def test_round_trip_keeps_numbers_to_the_bit(tmp_path: Path) -> None:
    values = {
        "third": 1 / 3,
        "tiny": 5e-324,
        "nan": math.nan,
        "inf": math.inf,
        "ninf": -math.inf,
        "text": '<a>\n"é',
    }
    with RunWriter(tmp_path, HEADER) as writer:
        writer.row(values)
    (row,) = read_run(writer.path).rows
    assert math.isnan(row.pop("nan"))
    values.pop("nan")
    assert row == values


def test_lines_are_standard_json(tmp_path: Path) -> None:
    with RunWriter(tmp_path, HEADER) as writer:
        writer.row({"loss": math.inf})
    for text in writer.path.read_text().splitlines():
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert from_json(to_json({"a": math.inf})) == {"a": math.inf}


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_tail_is_dropped_and_the_run_goes_on(tmp_path: Path, cut: int) -> None:
    whole = write(tmp_path / "whole", 5)
    path = write(tmp_path / "torn", 5)
    os.truncate(path, path.stat().st_size - cut)
    assert not is_finished(path)
    assert write(tmp_path / "torn", 5) == path
    assert path.read_bytes() == whole.read_bytes()


def test_every_possible_cut_resumes_to_the_same_record(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", 3).read_bytes()
    header_end = whole.index(b"\n") + 1
    for cut in range(header_end, len(whole)):
        folder = tmp_path / str(cut)
        folder.mkdir()
        run_file(folder, HEADER).write_bytes(whole[:cut])
        assert write(folder, 3).read_bytes() == whole, f"cut after byte {cut}"


def test_a_damaged_line_is_named_with_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path, 4)
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2][:7]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(RecordError, match=rf"{path.name}:3: damaged line"):
        read_run(path)


@pytest.mark.parametrize("version", [1, SCHEMA - 1, 99])
def test_another_schema_version_is_refused(tmp_path: Path, version: int) -> None:
    path = write(tmp_path, 1)
    lines = path.read_text().splitlines(keepends=True)
    header = vars(HEADER) | {"schema": version}
    path.write_text("".join([line("header", header) + "\n", *lines[1:]]))
    with pytest.raises(RecordError, match=rf"schema must be {SCHEMA}, .* got {version}"):
        read_run(path)


def test_a_resumed_run_that_differs_is_an_error_and_keeps_what_was_recorded(tmp_path: Path) -> None:
    path = write(tmp_path, 3, end=False)
    before = path.read_bytes()
    with (
        RunWriter(tmp_path, HEADER) as writer,
        pytest.raises(RecordError, match=":2: the resumed run gives"),
    ):
        writer.row({"step": 0, "loss": 2.0})
    assert path.read_bytes() == before


def test_timing_may_differ_on_resume(tmp_path: Path) -> None:
    with RunWriter(tmp_path, HEADER) as writer:
        writer.row({"step": 0, "seconds": 1.0})
    with RunWriter(tmp_path, HEADER) as writer:
        writer.row({"step": 0, "seconds": 2.0})
        writer.row({"step": 1, "seconds": 3.0})
    assert read_run(writer.path).column("seconds") == [1.0, 3.0]


def test_atomic_write_leaves_the_old_file_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, "old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_an_empty_or_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="RUNS must hold records"):
        list(study_folders(tmp_path))
    with pytest.raises(RecordError, match="RUNS must be a folder of records"):
        list(study_folders(tmp_path / "none"))


def test_every_changed_byte_is_named_or_harmless(tmp_path: Path) -> None:
    """Harmless: the record reads as it was, or as unfinished with the rows it had."""
    path = write(tmp_path, 4)
    whole, data = read_run(path), path.read_bytes()
    for place in range(len(data)):
        for bit in (0, 5):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            try:
                run = read_run(path)
            except RecordError as error:
                named = str(error)
            else:
                named = path.name
                assert (run.header, run.rows) == (whole.header, whole.rows), f"byte {place}"
                assert run.end in (None, whole.end)
            assert path.name in named


def test_a_record_under_another_name_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 2)
    other = path.rename(path.with_name(path.name.replace("-3-", "-4-")))
    with pytest.raises(
        RecordError,
        match="damaged header, or the file was renamed: its content belongs to method-3-",
    ):
        read_run(other)


def test_a_damaged_end_is_not_taken_for_a_finished_run(tmp_path: Path) -> None:
    path = write(tmp_path, 2)
    assert is_finished(path)
    path.write_bytes(path.read_bytes().replace(b'"seconds":0.5', b'"seconds":0.6'))
    assert not is_finished(path)


@pytest.mark.parametrize("round_", range(3))
def test_two_processes_that_create_one_record_write_it_once(tmp_path: Path, round_: int) -> None:
    race(tmp_path)


def test_a_finished_record_takes_no_second_end_and_no_further_row(tmp_path: Path) -> None:
    path = write(tmp_path, 2)
    before = path.read_bytes()
    with RunWriter(tmp_path, HEADER) as writer:
        assert writer.finished == End("done", 0.5)
        writer.end(End("done", 9.0))
        writer.skip_to(2)
        with pytest.raises(RecordError, match="is finished"):
            writer.row({"step": 2})
    assert path.read_bytes() == before


def test_a_record_that_is_being_written_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mindgap.record.store.PATIENCE", 0.1)
    with RunWriter(tmp_path, HEADER) as writer:
        with pytest.raises(RecordError, match="is being written by another process"):
            remove_run(writer.path)
        assert writer.path.exists()
    remove_run(writer.path)
    assert not writer.path.exists()


def test_names_are_on_the_disk_after_a_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    real = os.fsync

    def sync(file: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(file).st_mode))
        real(file)

    monkeypatch.setattr(os, "fsync", sync)
    write_atomically(tmp_path / "a.json", "{}")
    assert synced == [False, True], "first the file, then the folder that names it"


FORMS = [Verdict("holds", "all well", {"a": 0.1}), StudyDescription("s", "quick", title="A study")]


@pytest.mark.parametrize("form", FORMS)
def test_every_changed_byte_of_a_form_is_named_or_harmless(
    form: Verdict | StudyDescription, tmp_path: Path
) -> None:
    path = tmp_path / "form.json"
    write_form(path, form)
    data = path.read_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(changed)
        try:
            found, named = read_form(type(form), path), str(path)
        except RecordError as error:
            found, named = form, str(error)
        assert found == form
        assert str(path) in named


def test_a_form_without_a_checksum_is_read(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.write_text(
        '{"verdict": "holds", "measured": "all well", "numbers": {}, "files": ["a.jsonl"], '
        '"seeds": 1}'
    )
    assert read_form(Verdict, path) == Verdict("holds", "all well", files=("a.jsonl",), seeds=1)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"claim": None}, "claim must be a text, got None"),
        ({"files": [{}]}, r"files\[0\] must be a text, got \{\}"),
        ({"figures": [{"title": 1, "y": "a", "y_label": "b"}]}, r"figures\[0\]\.title must be a"),
        ({"axes": {"step": []}}, r"axes\.step must be a text, got \[\]"),
        ({"methods": "abc"}, "methods must be a list, got 'abc'"),
        ({"title": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_a_made_up_study_file_is_named(changed, says, tmp_path):
    path = tmp_path / "study.json"
    path.write_text(json.dumps({"name": "s", "scale": "quick", **changed}))
    with pytest.raises(RecordError, match=rf"study\.json cannot be read: .*{says}"):
        read_form(StudyDescription, path)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("settings", None, "settings must be an object, got None"),
        ("seed", "0", "seed must be a whole number, got '0'"),
        ("method", 3, "method must be a text, got 3"),
    ],
)
def test_a_made_up_header_is_named(field, value, says, tmp_path):
    header = vars(Header("s", "S1", "quick", "m", 0, {})) | {field: value}
    path = tmp_path / "m-0-x.jsonl"
    path.write_text(line("header", header) + "\n")
    with pytest.raises(RecordError, match=rf"m-0-x\.jsonl:1: damaged line: .*\({says}\)"):
        read_run(path)


def test_a_deeply_nested_file_is_named(tmp_path):
    path = tmp_path / "study.json"
    path.write_text("[" * 100_000)
    with pytest.raises(RecordError, match=r"study\.json cannot be read: it is nested too deeply"):
        read_form(StudyDescription, path)
