"""A small server that shows one page on this machine, to the user who started it.

Others can reach a port of this machine: its other users, and pages of other sites through the
browser. So an address holds a token, only requests by this machine's name are answered, and the
only file that is read is the page. Where a model is at hand, the page may ask it
(`report/asking.py`), under the same token.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR, socket
from typing import Any

from layerscope.errors import LayerscopeError
from layerscope.report.asking import Asker
from layerscope.report.page import policy

_HOST = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?", re.IGNORECASE)
_AT_ONCE = 32  # connections; a browser opens six
_SILENCE_S = 10.0  # without a byte from a client
_MOST_ASKED = 100_000  # bytes of a question
_LONGEST_S = 120.0  # for a whole request and its answer, also where bytes trickle
_WHY = {
    403: "The address that `layerscope open` printed has a token: open that one.",
    404: "The page is gone. Run `layerscope open` again.",
}


@dataclass(frozen=True)
class Served:
    """A page that is served: its address, one that works once, and a function that waits for
    Ctrl-C.

    A browser is started with the address that works once: other users of the machine can read how a
    program was started."""

    url: str
    once: str
    wait: Callable[[], None]


class _Server(ThreadingHTTPServer):
    """Threads for a few connections. A new one ends the oldest, so that idle clients cannot block
    others."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = _AT_ONCE

    def __init__(self, page: Path, port: int, asker: Asker | None = None) -> None:
        self.asker = asker
        self.page, self.token, self.once = (
            page,
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(32),
        )
        self.changing = threading.Lock()
        self.opened: dict[socket, float] = {}
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Make room for the newest."""
        with self.changing:
            for oldest in list(self.opened)[: max(0, len(self.opened) - _AT_ONCE + 1)]:
                self._drop(oldest)
            self.opened[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A connection has ended."""
        with self.changing:
            self.opened.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Twice a second: end what takes too long."""
        latest = time.monotonic() - _LONGEST_S
        with self.changing:
            for late in [request for request, since in self.opened.items() if since < latest]:
                self._drop(late)

    def _drop(self, request: socket) -> None:
        """Wake the thread that waits for a client; it closes the connection itself."""
        self.opened.pop(request, None)
        with suppress(OSError):
            request.shutdown(SHUT_RDWR)

    def server_close(self) -> None:
        """Nobody is answered after the end."""
        super().server_close()
        with self.changing:
            for request in list(self.opened):
                self._drop(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing in the terminal of clients that went away or sent nonsense."""

    def take_once(self, given: str) -> bool:
        """Whether this is the token that works once; it does not work again."""
        with self.changing:
            if not _same(given, self.once):
                return False
            self.once = secrets.token_urlsafe(32)
            return True


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SILENCE_S

    def do_GET(self) -> None:
        token = self.path[1:].removesuffix("/")
        if not self._named_rightly():
            self.send_error(HTTPStatus.FORBIDDEN)
        elif _same(token, self.server.token):
            self._answer()
        elif self.server.take_once(token):
            self.send_response(HTTPStatus.FOUND)
            self.send_header("Location", f"/{self.server.token}/")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self.send_error(HTTPStatus.FORBIDDEN)

    def do_POST(self) -> None:
        """A question from the page. Only JSON from the page itself: a form of another site can send
        neither."""
        asker, size = self.server.asker, self.headers.get("Content-Length", "")
        origin = self.headers.get("Origin", f"http://{self.headers.get('Host')}")
        token, _, what = self.path[1:].partition("/")
        ours = (
            origin == f"http://{self.headers.get('Host')}"
            and self.headers.get("Content-Type") == "application/json"
        )
        if asker is None:
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)
        elif not self._named_rightly() or not ours or not _same(token, self.server.token):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif what != "ask":
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)
        elif not size.isdecimal() or len(size) > 9 or int(size) > _MOST_ASKED:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            try:
                text = json.loads(self.rfile.read(int(size)))["text"]
            except (ValueError, LookupError, TypeError, RecursionError):
                text = None
            if not isinstance(text, str):
                self.send_error(HTTPStatus.BAD_REQUEST)
                return
            self._send(json.dumps(asker.answer(text)).encode(), "application/json")

    def _named_rightly(self) -> bool:
        """Another site's script must not read the page through a name that it points at this
        machine."""
        hosts = self.headers.get_all("Host") or []
        return len(hosts) == 1 and _HOST.fullmatch(hosts[0].strip()) is not None

    def _answer(self) -> None:
        try:
            body = _read(self.server.page)
        except OSError:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self._send(body, "text/html; charset=utf-8")

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        """On every answer: nothing is kept or shown elsewhere, and the page runs layerscope's
        script or none."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header(
            "Content-Security-Policy",
            f"{policy(self.server.asker is not None)}; frame-ancestors 'none'",
        )
        super().end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A line of text that repeats nothing of the request."""
        if (
            code == HTTPStatus.NOT_IMPLEMENTED
        ):  # what the library answers to a method that it finds no function for
            code = HTTPStatus.METHOD_NOT_ALLOWED
        body = f"{HTTPStatus(code).phrase}. {_WHY.get(code, '')}".strip().encode() + b"\n"
        self.close_connection = True
        self.send_response(code, HTTPStatus(code).phrase)
        if code == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "layerscope"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def _same(given: str, token: str) -> bool:
    """Compared in a time that does not tell how much of it was right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


def _read(page: Path) -> bytes:
    """The page, if it is a file: in a stranger's folder it may have become a link to another one,
    or a pipe."""
    flags = (
        os.O_RDONLY
        | getattr(os, "O_NOFOLLOW", 0)
        | getattr(os, "O_NONBLOCK", 0)
        | getattr(os, "O_BINARY", 0)
    )
    number = os.open(page, flags)
    try:
        if page.is_symlink() or not stat.S_ISREG(os.fstat(number).st_mode):
            raise FileNotFoundError(page)
        with os.fdopen(number, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(number)


@contextmanager
def serve(page: Path, port: int = 0, asker: Asker | None = None) -> Iterator[Served]:
    """Serve this one file, read anew each time, on 127.0.0.1; `asker` answers what the page
    asks."""
    try:
        server = _Server(page, port, asker)
    except (OSError, OverflowError) as error:
        raise LayerscopeError(
            f"cannot listen on port {port}: {error}. Choose another port=, or 0 for any free one."
        ) from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield Served(f"{base}/{server.token}/", f"{base}/{server.once}/", _until_interrupted)
    finally:
        server.shutdown()
        server.server_close()


def _until_interrupted() -> None:
    ended = threading.Event()
    with suppress(KeyboardInterrupt):
        while not ended.wait(3600):
            pass
