"""Downloads against a real server on this machine: whole, resumed, refused, broken."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from probmargin.core.errors import UsageError
from probmargin.data import cifar
from probmargin.data.download import Remote, fetch

CONTENT = np.random.default_rng(0).bytes(700_001)
MD5 = hashlib.md5(CONTENT).hexdigest()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT; remembers each request's Range and can be told to misbehave."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges: list[str | None] = []
        self.honours_range = True
        self.sends = len(CONTENT)
        self.content = CONTENT
        self.shift = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file.bin"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        start, content = 0, self.server.content
        if self.path != "/file.bin":
            self.send_error(404)
            return
        if wanted and self.server.honours_range:
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) + self.server.shift
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : self.server.sends])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("checksum", [MD5, SHA256, MD5.upper()])
def test_whole_download(checksum: str, server: Server, tmp_path: Path) -> None:
    target = tmp_path / "new" / "file.bin"
    assert fetch(server.url, target, checksum) == target
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["file.bin"]
    fetch(server.url, target, checksum)
    assert server.ranges == [None], "a file in place is not fetched again"


def test_a_part_is_resumed_by_range(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1234])
    fetch(server.url, tmp_path / "file.bin", MD5)
    assert server.ranges == ["bytes=1234-"]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert not (tmp_path / "file.bin.part").exists()


@pytest.mark.parametrize("fault", ["ignores Range", "answers another range"])
def test_a_server_without_range_starts_over(fault: str, server: Server, tmp_path: Path) -> None:
    server.honours_range = fault != "ignores Range"
    server.shift = -1234 if server.honours_range else 0
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1234])
    fetch(server.url, tmp_path / "file.bin", MD5)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_whole_part_needs_no_network(tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    fetch("http://127.0.0.1:9/file.bin", tmp_path / "file.bin", MD5)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_part_longer_than_the_file_starts_over(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"x")
    fetch(server.url, tmp_path / "file.bin", MD5)
    assert server.ranges == [f"bytes={len(CONTENT) + 1}-", None]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_deletes_the_part(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"file\.bin came with a wrong checksum .*yourself and put it in"):
        fetch(server.url, tmp_path / "file.bin", "0" * 32)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_connection_keeps_the_part_and_resumes(server: Server, tmp_path: Path) -> None:
    server.sends = 300_000
    with pytest.raises(UsageError, match=r"file\.bin .*yourself and put it in"):
        fetch(server.url, tmp_path / "file.bin", MD5)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:300_000]
    server.sends = len(CONTENT)
    fetch(server.url, tmp_path / "file.bin", MD5)
    assert server.ranges == [None, "bytes=300000-"]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_resumed_download_that_breaks_off_again_keeps_what_it_has(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:500_000])
    server.sends = 600_000
    with pytest.raises(UsageError, match="broke off at 600000 of 700001 bytes: run again to resume"):
        fetch(server.url, tmp_path / "file.bin", MD5)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:600_000]


def test_network_errors_name_the_address_and_the_fix(server: Server, tmp_path: Path) -> None:
    absent = server.url.replace("file.bin", "absent")
    with pytest.raises(UsageError, match=rf"{absent} \(.*Not Found.*download .* put it in {tmp_path}"):
        fetch(absent, tmp_path / "file.bin", MD5)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{nobody.getsockname()[1]}/file.bin"
    part = tmp_path / "file.bin.part"
    part.write_bytes(b"abc")
    with pytest.raises(UsageError, match=rf"{closed} \(.*refused.*put it in {tmp_path} as file.bin"):
        fetch(closed, tmp_path / "file.bin", MD5)
    assert part.read_bytes() == b"abc"


def test_cifar_downloads_only_when_asked(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write_cifar: object,
    pack: object,
) -> None:
    assert callable(write_cifar)
    assert callable(pack)
    archive = tmp_path / "archive.tar.gz"
    pack(write_cifar("cifar10", tmp_path / "made"), archive)
    server.content = archive.read_bytes()
    server.sends = len(server.content)
    layout = cifar.LAYOUTS["cifar10"]
    remote = Remote(server.url, hashlib.md5(server.content).hexdigest())
    local = type(layout)(**{**vars(layout), "remote": remote})
    monkeypatch.setattr(cifar, "LAYOUTS", {"cifar10": local})
    with pytest.raises(UsageError, match="--download"):
        cifar.load_cifar("cifar10", tmp_path / "empty")
    assert server.ranges == []
    data = cifar.load_cifar("cifar10", tmp_path / "empty", download=True)
    assert len(data.train) == 100
    cifar.load_cifar("cifar10", tmp_path / "made", download=True)
    assert server.ranges == [None], "local files come first"
