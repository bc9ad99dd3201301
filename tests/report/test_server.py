"""The page that `layerscope open` serves, attacked on loopback: who has its address gets it, and
nothing else is read."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from layerscope.errors import LayerscopeError
from layerscope.report import server as server_module
from layerscope.report.server import Served, serve

SECRET = "a secret of the user"
PAGE = "<p>the page</p>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a page, and files beside and above it that nobody may read through the
    server."""
    inner = tmp_path / "runs" / "one"
    inner.mkdir(parents=True)
    for place in (tmp_path, inner.parent, inner):
        (place / "secret.txt").write_text(SECRET)
    (inner / "link.html").symlink_to(inner / "secret.txt")
    (inner / "report.html").write_text(PAGE)
    return inner


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    with serve(folder / "report.html") as opened:
        yield opened


def port_of(served: Served) -> int:
    return urlsplit(served.url).port or 0


def ask(
    served: Served, path: str, method: str = "GET", **headers: str
) -> tuple[int, str, dict[str, str]]:
    """What is answered, as a browser would ask."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(served), timeout=20)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.headers)
    finally:
        connection.close()


def send(served: Served, raw: bytes, seconds: float = 20) -> bytes:
    """What is answered to these very bytes."""
    with socket.create_connection(("127.0.0.1", port_of(served)), timeout=seconds) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(raw)
        got = b""
        with contextlib.suppress(ConnectionError):
            while part := client.recv(65536):
                got += part
        return got


def path_of(served: Served) -> str:
    return urlsplit(served.url).path


def test_the_page_is_read_anew_each_time(served: Served, folder: Path) -> None:
    assert served.url.startswith("http://127.0.0.1:")
    status, text, headers = ask(served, path_of(served))
    assert (status, text) == (200, PAGE)
    assert headers["Cache-Control"] == "no-store"
    assert (
        headers["Referrer-Policy"] == "no-referrer"
    )  # or a link out of the page would tell the token
    assert (
        "script-src 'sha256-" in headers["Content-Security-Policy"]
    )  # a stranger's live.html runs no script of its own
    assert headers["Server"] == "layerscope"
    (folder / "report.html").write_text("another")
    assert ask(served, path_of(served))[:2] == (200, "another")


def test_without_the_token_nothing_is_served(served: Served) -> None:
    token = path_of(served).strip("/")
    assert len(token) >= 43  # 256 bits
    wrong = [
        "/",
        "/report.html",
        f"/?token={token}",
        f"/{token[:-1]}/",
        f"/{token}x/",
        f"/{token.swapcase()}/",
    ]
    wrong += [f"/{token}/report.html", f"/{token}/?x", f"/x/{token}/", "*"]
    for path in wrong:
        status, text, _ = ask(served, path)
        assert (status, PAGE in text) == (403, False), path
    assert b" 403 " in send(
        served, b"GET /" + b"\xfc\xff" * 20 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    with serve(Path("elsewhere.html")) as other:
        assert path_of(other) != path_of(served)


def test_the_token_is_compared_in_constant_time(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    compare = server_module.hmac.compare_digest
    monkeypatch.setattr(
        server_module.hmac, "compare_digest", lambda a, b: (compared.append(a), compare(a, b))[1]
    )
    assert ask(served, "/guess/")[0] == 403
    assert b"guess" in compared


def test_a_browser_is_given_an_address_that_works_once(served: Served) -> None:
    # how a program was started can be read by every user of a machine
    path = urlsplit(served.once).path
    assert path != path_of(served)
    status, text, headers = ask(served, path)
    assert (status, text, headers["Location"]) == (302, "", path_of(served))
    assert ask(served, path)[0] == 403


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "localhost.evil.example", "", "127.0.0.1@evil.example",
     "0.0.0.0", "[::1]", "127.0.0.1:port", "127.0.0.1:80:80", "evil.example\t127.0.0.1"],
)  # fmt: skip
def test_names_that_another_site_points_at_this_machine(served: Served, host: str) -> None:
    status, text, _ = ask(served, path_of(served), Host=host)
    assert (status, PAGE in text) == (403, False)


def test_names_of_this_machine(served: Served) -> None:
    for host in (
        "127.0.0.1",
        "localhost",
        f"LOCALHOST:{port_of(served)}",
        "127.0.0.1:9000",
    ):  # 9000: a forwarded port
        assert ask(served, path_of(served), Host=host)[0] == 200
    path = path_of(served).encode()
    assert b" 403 " in send(served, b"GET " + path + b" HTTP/1.1\r\n\r\n")  # no name at all
    twice = b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    assert b" 403 " in send(served, twice)
    absolute = b"GET http://evil.example" + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert b" 403 " in send(served, absolute)


def test_no_other_file_can_be_read(served: Served, folder: Path) -> None:
    token = path_of(served)
    names = [
        "secret.txt",
        "link.html",
        "../secret.txt",
        "../../secret.txt",
        "..\\secret.txt",
        "./secret.txt",
        "//secret.txt",
    ]
    names += ["report.html/../secret.txt", "..;/secret.txt", "secret.txt\0"]
    names += [str(folder / "secret.txt"), f"file://{folder}/secret.txt"]
    tries = 0
    for name in names:
        twice = quote(quote(name, safe=""), safe="")
        encoded = [quote(name, safe="/"), quote(name, safe=""), twice, name.replace("..", "%2e%2e")]
        encoded += [
            name.replace("..", "%c0%ae%c0%ae"),
            name.replace("/", "%5c"),
            f"?file={quote(name)}",
            f"#{name}",
        ]
        for one in dict.fromkeys(encoded):
            for path in (f"{token}{one}", f"/{one}"):
                got = send(served, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                tries += 1
                assert SECRET.encode() not in got, path
                assert b" 403 " in got or b" 400 " in got, (path, got)
    assert tries > 100


def test_a_page_that_became_something_else_is_not_read(
    served: Served, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = folder / "report.html"
    page.unlink()
    assert ask(served, path_of(served))[0] == 404
    page.symlink_to(folder / "secret.txt")
    status, text, _ = ask(served, path_of(served))
    assert (status, SECRET in text) == (404, False)
    page.unlink()
    os.mkfifo(page)  # reading it would wait for ever
    assert ask(served, path_of(served))[0] == 404
    page.unlink()
    page.mkdir()
    assert ask(served, path_of(served))[0] == 404
    assert capfd.readouterr() == ("", "")


def test_other_methods_are_refused(served: Served) -> None:
    for method in (
        "POST",
        "PUT",
        "DELETE",
        "HEAD",
        "OPTIONS",
        "PATCH",
        "TRACE",
        "CONNECT",
        "PROPFIND",
        "get",
        "do_GET",
    ):
        status, text, headers = ask(served, path_of(served), method)
        assert (status, headers["Allow"], PAGE in text) == (405, "GET", False), method


def test_long_and_broken_requests(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    host = b"Host: localhost\r\n"
    hostile = [
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"X: y\r\n" * 5_000 + b"\r\n",
        b"A" * 500_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + b"\r\n\r\n",  # a browser that wants TLS
        b"GET / HTTP/9.9\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1 more\r\n\r\n", b"\r\n", b"\0" * 1000 + b"\r\n",
        b"GET /\x1b[2J HTTP/1.1\r\n" + host + b"\r\n", b"GET /<script> HTTP/1.1\r\n" + host + b"\r\n",
    ]  # fmt: skip
    for raw in hostile:
        got = send(served, raw)
        assert b"200 OK" not in got
        assert not any(told in got for told in (b"Traceback", b"\x1b", b"<script>"))
    assert ask(served, path_of(served))[0] == 200
    assert capfd.readouterr() == (
        "",
        "",
    )  # a stranger's request writes nothing on the user's terminal


def test_clients_that_go_away_are_not_told_of(
    served: Served, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "report.html").write_text("x" * 20_000_000)
    for _ in range(5):
        client = socket.create_connection(("127.0.0.1", port_of(served)))
        client.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
        )  # reset, not closed
        client.sendall(f"GET {path_of(served)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        client.recv(10)
        client.close()
    assert ask(served, path_of(served))[0] == 200
    assert capfd.readouterr() == ("", "")


def test_slow_clients_are_let_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module._Handler, "timeout", 0.5)
    monkeypatch.setattr(server_module, "_LONGEST_S", 2.0)
    with serve(folder / "report.html") as served:
        silent = time.monotonic()
        assert send(served, b"GET / HT") == b""
        assert time.monotonic() - silent < 10
        with socket.create_connection(("127.0.0.1", port_of(served)), timeout=20) as client:
            trickling = time.monotonic()
            with contextlib.suppress(ConnectionError):  # a byte now and then does not keep it open
                while time.monotonic() - trickling < 30:
                    client.sendall(b"a")
                    time.sleep(0.2)
            assert time.monotonic() - trickling < 20


def test_clients_that_only_wait_keep_nobody_out(served: Served) -> None:
    with contextlib.ExitStack() as held:
        before = threading.active_count()
        for _ in range(200):
            held.enter_context(socket.create_connection(("127.0.0.1", port_of(served)), timeout=20))
        assert ask(served, path_of(served))[:2] == (200, PAGE)
        limit = time.monotonic() + 20
        while (
            threading.active_count() > before + server_module._AT_ONCE and time.monotonic() < limit
        ):
            time.sleep(0.05)
        assert threading.active_count() <= before + server_module._AT_ONCE


def test_many_at_once_all_get_the_page(served: Served) -> None:
    got: list[Any] = []
    clients = [
        threading.Thread(target=lambda: got.append(ask(served, path_of(served))[:2]))
        for _ in range(20)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert got == [(200, PAGE)] * 20


def test_the_port_is_this_machines_and_ends_with_the_command(folder: Path) -> None:
    with serve(folder / "report.html") as served:
        bound = {
            line.split()[1]
            for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
            if line.split()[3] == "0A"
        }
        assert [place for place in bound if place.endswith(f":{port_of(served):04X}")] == [
            f"0100007F:{port_of(served):04X}"
        ]
        with (
            pytest.raises(LayerscopeError, match="cannot listen on port"),
            serve(folder / "report.html", port_of(served)),
        ):
            pass
        waiting = socket.create_connection(("127.0.0.1", port_of(served)), timeout=20)
    with contextlib.suppress(OSError):
        waiting.sendall(f"GET {path_of(served)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert PAGE.encode() not in waiting.recv(65536)
    waiting.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port_of(served)), timeout=5)


class Parrot:
    """Answers every question with itself."""

    def answer(self, text: str) -> dict[str, Any]:
        return {"why": f"you said {text}"}


def post(
    served: Served, path: str, body: bytes = b'{"text": "hello"}', **headers: str
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(served), timeout=20)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_questions_are_answered_to_the_page_alone(folder: Path) -> None:
    with serve(folder / "report.html", asker=Parrot()) as served:  # type: ignore[arg-type]
        path = urlsplit(served.url).path
        assert post(served, f"{path}ask") == (200, '{"why": "you said hello"}')
        here = f"http://127.0.0.1:{port_of(served)}"
        assert post(served, f"{path}ask", Origin=here)[0] == 200
        refused = [
            post(served, "/ask"),
            post(served, f"/{'x' * 43}/ask"),
            post(served, f"{path}ask", Origin="http://elsewhere.example"),
            post(served, f"{path}ask", Host="elsewhere.example"),
            post(served, f"{path}ask", **{"Content-Type": "text/plain"}),
        ]
        assert {status for status, _ in refused} == {403}
        assert post(served, f"{path}secret.txt")[0] == 405
        assert post(served, f"{path}ask", b"[" * 5000)[0] == 400
        assert post(served, f"{path}ask", b'{"text": 3}')[0] == 400
        assert post(served, f"{path}ask", b"x" * 200_000)[0] == 413
        status, _, headers = ask(served, path)
        assert status == 200
        assert "connect-src 'self'" in headers["Content-Security-Policy"]
        assert SECRET not in "".join(body for _, body in refused)


def test_without_a_model_nothing_can_be_posted(served: Served) -> None:
    assert post(served, f"{urlsplit(served.url).path}ask")[0] == 405
    assert (
        "connect-src 'none'" in ask(served, urlsplit(served.url).path)[2]["Content-Security-Policy"]
    )
