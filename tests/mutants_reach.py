"""Which lines each test runs, and how long it takes: a pytest plugin for ``mutants.py``.

Two modes, by environment: with MUTANTS_REACH the lines of the named folders that each test runs are
written to a file; with MUTANTS_ORDER only the listed tests run, in the order of the list.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

TOOL = 4


class Lines:
    """Collects (file, line) of what runs below some folders."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self.folders, self.found = folders, set[tuple[str, int]]()
        self.monitoring = getattr(sys, "monitoring", None)  # Python 3.12

    def __enter__(self) -> Lines:
        self.found.clear()
        if self.monitoring is None:
            threading.settrace(self._call)
            sys.settrace(self._call)
            return self
        if self.monitoring.get_tool(TOOL) is None:
            self.monitoring.use_tool_id(TOOL, "mutants")
            self.monitoring.register_callback(TOOL, self.monitoring.events.LINE, self._line)
        self.monitoring.set_events(TOOL, self.monitoring.events.LINE)
        self.monitoring.restart_events()
        return self

    def __exit__(self, *_: object) -> None:
        if self.monitoring is None:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
        else:
            self.monitoring.set_events(TOOL, 0)

    def _line(self, code: CodeType, line: int) -> Any:
        if code.co_filename.startswith(self.folders):
            self.found.add((code.co_filename, line))
        return self.monitoring.DISABLE  # type: ignore[union-attr]

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(self.folders):
            return None

        def line(frame: FrameType, event: str, _: Any) -> Any:
            self.found.add((name, frame.f_lineno))
            return line

        return line(frame, event, None)


class Reach:
    """Writes one line per test: its name, whether it passed, its seconds and its lines."""

    def __init__(self, out: Path, folders: list[str], root: Path) -> None:
        self.out, self.root = out, root
        self.lines = Lines(tuple(f"{root / folder}{os.sep}" for folder in folders))
        self.bad = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.bad, begin = False, time.monotonic()
        with self.lines:
            found = yield
        files: dict[str, list[int]] = {}
        for name, line in sorted(self.lines.found):
            files.setdefault(Path(name).relative_to(self.root).as_posix(), []).append(line)
        row = {
            "test": item.nodeid,
            "passed": not self.bad,
            "seconds": round(time.monotonic() - begin, 3),
            "lines": files,
        }
        with self.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
        return found

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.bad |= report.failed


class Order:
    """Runs the listed tests, in the order of the list."""

    def __init__(self, names: list[str]) -> None:
        self.place = {name: i for i, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        chosen = [item for item in items if item.nodeid in self.place]
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in self.place])
        items[:] = sorted(chosen, key=lambda item: self.place[item.nodeid])


def pytest_configure(config: pytest.Config) -> None:
    """Take the mode from the environment."""
    if "MUTANTS_REACH" in os.environ:
        told = json.loads(os.environ["MUTANTS_REACH"])
        config.pluginmanager.register(
            Reach(Path(told["out"]), told["folders"], Path(told["root"])), "mutants reach"
        )
    if "MUTANTS_ORDER" in os.environ:
        names = json.loads(Path(os.environ["MUTANTS_ORDER"]).read_text(encoding="utf-8"))
        config.pluginmanager.register(Order(names), "mutants order")
