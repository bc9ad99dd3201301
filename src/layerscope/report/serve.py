"""Serving one page on this machine."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from layerscope.errors import LayerscopeError, RunFolderError
from layerscope.report.live import LIVE_PAGE
from layerscope.report.write import write_report


def page_for(runs: Sequence[Path], others: Sequence[Any] = ()) -> Path:
    """The file to show: a running profile's live page, or a new report in the only run's folder or a temporary one."""
    if len(runs) == 1 and not others:
        live = runs[0] / LIVE_PAGE
        if live.exists() and _running(runs[0]):
            return live
        try:
            return write_report(runs, runs[0] / "report.html")
        except RunFolderError:
            if not runs[0].is_dir() or not (runs[0] / "manifest.json").exists() or _running(runs[0]):
                raise
    return write_report([*runs, *others], Path(tempfile.mkdtemp(prefix="layerscope-")) / "report.html")


def _running(folder: Path) -> bool:
    from layerscope.store import RunFolder

    held = RunFolder(folder).manifest()
    return held is not None and held.get("status") != "complete"


@contextmanager
def serve(page: Path, port: int = 0) -> Iterator[tuple[str, Callable[[], None]]]:
    """Serve this one file, read anew each time, on 127.0.0.1. Yields its address and a function that waits for Ctrl-C."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # another site's script must not read the page through a name that it points at this machine
            host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
            if self.path.split("?")[0] not in ("/", f"/{page.name}") or host not in ("127.0.0.1", "localhost"):
                self.send_error(404)
                return
            body = page.read_bytes()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise LayerscopeError(f"cannot listen on port {port}: {error}. Choose another --port, or 0 for any free one.") from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    ended = threading.Event()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/", lambda: _until_interrupted(ended)
    finally:
        server.shutdown()
        server.server_close()


def _until_interrupted(ended: threading.Event) -> None:
    try:
        while not ended.wait(3600):
            pass
    except KeyboardInterrupt:
        return
