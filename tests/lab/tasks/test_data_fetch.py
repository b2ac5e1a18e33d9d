"""Data files: found, fetched, resumed, refused. The web is a server on the loopback address."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mindgap.base.check import RuleError
from mindgap.lab.tasks.data import fetch as fetching
from mindgap.lab.tasks.data.datasets import DATASETS, DataFile, DataSet
from mindgap.lab.tasks.data.fetch import DataError, available, cache_folder, fetch, find

CONTENT = bytes(range(256)) * 2000
SUM = hashlib.sha256(CONTENT).hexdigest()


class Web:
    """A server with one file: ``stops`` = bytes after which each of the next answers breaks off."""

    def __init__(self):
        web = self
        self.content, self.stops, self.ranges, self.status, self.resumes = (
            CONTENT,
            [],
            [],
            200,
            True,
        )
        self.redirect, self.announces = "", True

        class Handler(BaseHTTPRequestHandler):
            protocol_version = (
                "HTTP/1.0"  # one connection an answer, so that breaking off is visible
            )

            def do_GET(self):
                asked = self.headers.get("Range")
                web.ranges.append(asked)
                start = int(asked.split("=")[1].rstrip("-")) if asked and web.resumes else 0
                if web.redirect:
                    self.send_response(302)
                    self.send_header("Location", web.redirect)
                    self.end_headers()
                    return
                if web.status != 200:
                    self.send_error(web.status)
                    return
                if start >= len(web.content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(web.content)}")
                    self.end_headers()
                    return
                body = web.content[start:]
                self.send_response(206 if start else 200)
                if web.announces:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: web.stops.pop(0)] if web.stops else body)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def web():
    server = Web()
    yield server
    server.close()


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MINDGAP_CACHE", str(tmp_path / "cache"))
    for name in ("MINDGAP_DATA", "MINDGAP_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    toy = DataSet("toy", "a toy", "none", (DataFile("a.bin", SUM, len(CONTENT)),))
    monkeypatch.setitem(DATASETS, "toy", toy)
    return tmp_path


def _parts(folder):
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and not p.name.endswith(".lock"))


def test_fetch_whole_file_with_progress(web, home):
    seen = []
    path = fetch(
        web.address + "/a",
        home / "x" / "a.bin",
        SUM,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert path.read_bytes() == CONTENT
    assert _parts(home) == ["a.bin"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)


def test_interrupted_download_goes_on_where_it_stopped(web, home):
    web.stops = [100_000, 50_000]
    path = fetch(web.address + "/a", home / "a.bin", SUM)
    assert path.read_bytes() == CONTENT
    assert web.ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_given_up_download_is_kept_and_resumed_by_the_next_call(web, home):
    web.stops = [1000] * 4
    with pytest.raises(DataError, match=r"4000 bytes are kept, run again to go on from there"):
        fetch(web.address + "/a", home / "a.bin", SUM)
    assert _parts(home) == ["a.bin.part"]
    assert fetch(web.address + "/a", home / "a.bin", SUM).read_bytes() == CONTENT
    assert web.ranges[-1] == "bytes=4000-"
    assert _parts(home) == ["a.bin"]


def test_server_without_resume_begins_again(web, home):
    web.resumes, web.stops = False, [1000]
    assert fetch(web.address + "/a", home / "a.bin", SUM).read_bytes() == CONTENT


def test_wrong_sum_is_refused_and_removed(web, home):
    web.content = CONTENT[:-1] + b"!"
    with pytest.raises(DataError, match=r"served other bytes than expected.*removed"):
        fetch(web.address + "/a", home / "a.bin", SUM)
    assert _parts(home) == []


@pytest.mark.parametrize("extra", [0, 7])
def test_finished_or_overlong_part(web, home, extra):
    (home / "a.bin.part").write_bytes(CONTENT + b"?" * extra)
    assert fetch(web.address + "/a", home / "a.bin", SUM).read_bytes() == CONTENT
    assert _parts(home) == ["a.bin"]


def test_missing_file_on_the_server(web, home):
    web.status = 404
    with pytest.raises(DataError, match="answered 404"):
        fetch(web.address + "/a", home / "a.bin", SUM)
    assert _parts(home) == []


def test_server_that_is_not_there(home):
    with pytest.raises(DataError, match="could not be fetched"):
        fetch("http://127.0.0.1:9/a", home / "a.bin", SUM)


def test_only_the_web_is_fetched_from(home):
    with pytest.raises(RuleError, match="scheme of the address must be one of 'http', 'https'"):
        fetch("file:///etc/hostname", home / "a.bin", SUM)


@pytest.mark.parametrize("address", ["ftp://127.0.0.1/a", "file:///etc/hostname"])
def test_a_redirect_out_of_the_web_is_refused(web, home, address):
    web.redirect = address
    with pytest.raises(DataError, match=r"could not be fetched|answered 302"):
        fetch(web.address + "/a", home / "a.bin", SUM)
    assert _parts(home) == []


@pytest.mark.parametrize("announces", [True, False])
def test_nothing_longer_than_the_file_is_received(web, home, announces):
    web.content, web.announces = CONTENT * 3, announces
    with pytest.raises(DataError, match=f"expected {len(CONTENT)}; nothing was kept"):
        fetch(web.address + "/a", home / "a.bin", SUM, size=len(CONTENT))
    assert _parts(home) == []
    web.content = CONTENT
    assert fetch(web.address + "/a", home / "a.bin", SUM, size=len(CONTENT)).read_bytes() == CONTENT


def test_find_prefers_the_named_folder_then_the_cache_then_the_mirror(web, home, monkeypatch):
    assert not available("toy")
    with pytest.raises(
        DataError, match=r"toy/a.bin \(0.5 MB, licence: none\) is not on this machine: put it at"
    ):
        find("toy", "a.bin")
    monkeypatch.setenv("MINDGAP_MIRROR", web.address)
    with pytest.raises(DataError, match="MINDGAP_MIRROR"):
        find("toy", "a.bin", download=False)
    assert web.ranges == []
    fetched = find("toy", "a.bin")
    assert fetched == cache_folder() / "toy" / "a.bin"
    assert find("toy", "a.bin") == fetched
    assert len(web.ranges) == 1  # the second time it came from the cache
    own = home / "data" / "toy"
    own.mkdir(parents=True)
    (own / "a.bin").write_bytes(CONTENT)
    monkeypatch.setenv("MINDGAP_DATA", str(home / "data"))
    assert find("toy", "a.bin") == own / "a.bin"
    assert available("toy")


def test_damaged_file_is_refused_but_not_removed(home, monkeypatch):
    own = home / "data" / "toy"
    own.mkdir(parents=True)
    (own / "a.bin").write_bytes(b"other")
    monkeypatch.setenv("MINDGAP_DATA", str(home / "data"))
    with pytest.raises(DataError, match="is damaged"):
        find("toy", "a.bin")
    assert (own / "a.bin").exists()  # a user's own folder is never changed


def test_named_folder_must_exist(home, monkeypatch):
    monkeypatch.setenv("MINDGAP_DATA", str(home / "nowhere"))
    with pytest.raises(DataError, match="MINDGAP_DATA must name a folder"):
        find("toy", "a.bin")


def test_unknown_names(home):
    with pytest.raises(RuleError, match=r"name must be one of .*did you mean 'toy'"):
        find("tooy", "a.bin")
    with pytest.raises(RuleError, match=r"file must be one of 'a.bin'"):
        find("toy", "b.bin")


def test_progress_line_only_on_a_terminal(monkeypatch, capsys):
    assert fetching._terminal_progress("a") is None
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    show = fetching._terminal_progress("a")
    show(1_000_000, 2_000_000)
    show(2_000_000, 2_000_000)
    assert capsys.readouterr().err == "\ra: 1.0 of 2.0 MB\ra: 2.0 of 2.0 MB\n"


def test_table_is_sound():
    for name, data in DATASETS.items():
        assert data.name == name
        assert data.files, name
        assert data.licence, name
        assert data.address is None or data.address.endswith("/")
        for file in data.files:
            assert len(file.sha256) == 64
            assert file.size > 0
            assert "/" not in file.name
