"""A hub on this machine: enough of the Hugging Face hub's interface for its own client, with faults
on demand.

Repositories are folders of files with revisions. Large files are served as the hub does: their
sha256 as ETag, a redirect to another address, and ranges. A fault is a function of the request that
may answer in its own way, or say how content travels: slowly, cut off, or with a bit changed.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.faults.uploads import takes

LARGE = (".safetensors", ".parquet", ".bin")
_API = re.compile(
    r"/api/(?P<kind>models|datasets)/(?P<repo>[^/]+/[^/]+)(?:/(?P<what>revision|tree|paths-info|refs)(?:/(?P<rest>.*))?)?"
)
_FILE = re.compile(
    r"/(?:(?P<kind>datasets)/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"
)


@dataclass
class Repository:
    """Files by name, at one or several revisions (branches and tags); each revision has its
    commit."""

    revisions: dict[str, dict[str, bytes]]
    gated: bool = False
    private: bool = False

    def commit(self, revision: str) -> str | None:
        """The commit of a branch, a tag or a commit."""
        for name, files in self.revisions.items():
            digests = sorted(
                (file, hashlib.sha256(content).hexdigest()) for file, content in files.items()
            )
            told = (
                name
                if re.fullmatch(r"[0-9a-f]{40}", name)
                else hashlib.sha1(repr(digests).encode()).hexdigest()
            )
            if revision in (name, told):
                return told
        return None

    def files(self, commit: str) -> dict[str, bytes]:
        """The files at a commit."""
        return next(files for name, files in self.revisions.items() if self.commit(name) == commit)


@dataclass
class Hub:
    """What is served, the faults, and what was asked for."""

    models: dict[str, Repository] = field(default_factory=dict)
    datasets: dict[str, Repository] = field(default_factory=dict)
    token: str = "hf_" + "t" * 34
    faults: list[Callable[[Request], bool]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    trusted: list[str] = field(default_factory=list)
    """Paths whose request held an access token."""
    ranges: list[str] = field(default_factory=list)
    """Paths of which a part was asked for."""
    large: dict[str, bytes] = field(default_factory=dict)
    """What was put aside for a commit, by its sha256."""
    address: str = ""

    def environment(self, cache: Any) -> dict[str, str]:
        """What a client's process needs to talk to this hub and to no other."""
        return {
            "HF_ENDPOINT": self.address, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1,localhost", "HF_HUB_OFFLINE": "0",
        }  # fmt: skip


@dataclass
class Request:
    """One request, with ways to answer it badly."""

    handler: BaseHTTPRequestHandler
    method: str
    path: str
    transfer: str = ""
    """How content travels: as it should, or `slow`, `cut` (ends early), `reset` (ends with an
    error) or `corrupt`."""

    def travels(self, how: str) -> bool:
        """Let the content of this request come in another way; what is answered stays the same."""
        self.transfer = how
        return False

    def status(self, code: int, headers: Mapping[str, str] | None = None, text: str = "{}") -> bool:
        """An answer without content."""
        body = text.encode()
        self.handler.send_response(code)
        for key, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.handler.send_header(key, value)
        self.handler.end_headers()
        if self.method != "HEAD":
            self.handler.wfile.write(body)
        return True

    def silent(self, seconds: float = 3600.0) -> bool:
        """No answer at all, for as long as anybody waits."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.handler.server.stopping:  # type: ignore[attr-defined]
            _pause(0.05)
        return True


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)  # not time.sleep, which tests replace: they run in this process


def git_sha1(content: bytes) -> str:
    """How git names a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Serve a hub until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            _answer(hub, self, "HEAD")

        def do_GET(self) -> None:
            _answer(hub, self, "GET")

        def do_POST(self) -> None:
            _answer(hub, self, "POST")

        def do_PUT(self) -> None:
            _answer(hub, self, "PUT")

        def log_message(self, *_: Any) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.stopping = False  # type: ignore[attr-defined]
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.stopping = True  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()


def _answer(hub: Hub, handler: BaseHTTPRequestHandler, method: str) -> None:
    path = unquote(urlsplit(handler.path).path)
    hub.log.append(f"{method} {path}")
    body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    request = Request(handler, method, path)
    if handler.headers.get("Authorization"):
        hub.trusted.append(path)
    if handler.headers.get("Range"):
        hub.ranges.append(path)
    try:
        if any(fault(request) for fault in list(hub.faults)):
            return
        if takes(request, hub, body):
            return
        if path.startswith("/cdn/"):
            _send(request, hub, path)
        elif (found := _API.fullmatch(path)) is not None:
            _api(request, hub, found, body)
        elif (found := _FILE.fullmatch(path)) is not None:
            _resolve(request, hub, found)
        else:
            request.status(404)
    except (BrokenPipeError, ConnectionResetError):
        handler.close_connection = True


def _find(request: Request, hub: Hub, kind: str, repo: str) -> Repository | None:
    """The repository, where it is there and may be seen; otherwise the answer is sent."""
    found = (hub.datasets if kind == "datasets" else hub.models).get(repo)
    allowed = request.handler.headers.get("Authorization") == f"Bearer {hub.token}"
    if found is None or (found.private and not allowed):
        request.status(
            401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
        )
        return None
    if found.gated and not allowed and "/resolve/" in request.path:
        request.status(
            403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}
        )
        return None
    return found


def _api(request: Request, hub: Hub, found: re.Match[str], body: bytes) -> None:
    repository = _find(request, hub, found["kind"], found["repo"])
    if repository is None:
        return
    what, rest = found["what"], found["rest"] or "main"
    if what == "refs":
        refs = [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": repository.commit(name)}
            for name in repository.revisions
        ]
        request.status(200, text=json.dumps({"branches": refs, "tags": [], "converts": []}))
        return
    commit = repository.commit(rest.split("/")[0])
    if commit is None:
        request.status(
            404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "no such revision"}
        )
        return
    files = repository.files(commit)
    if what == "paths-info":
        fields = (
            json.loads(body)
            if body[:1] == b"{"
            else {"paths": parse_qs(body.decode()).get("paths", [])}
        )
        asked = {path.strip("/") for path in fields["paths"]}
        request.status(
            200,
            text=json.dumps([entry for entry in _tree(files, "", True) if entry["path"] in asked]),
        )
        return
    if what == "tree":
        recursive = parse_qs(urlsplit(request.handler.path).query).get("recursive", ["false"])[
            0
        ].lower() in ("true", "1")
        request.status(200, text=json.dumps(_tree(files, rest.partition("/")[2], recursive)))
        return
    siblings = [
        {"rfilename": name, "size": len(content)} for name, content in sorted(files.items())
    ]
    facts = {
        "_id": "0" * 24,
        "id": found["repo"],
        "sha": commit,
        "private": repository.private,
        "gated": False,
        "tags": [],
    }
    request.status(
        200,
        text=json.dumps(
            {**facts, "siblings": siblings, "downloads": 0, "likes": 0, "disabled": False}
        ),
    )


def _tree(files: Mapping[str, bytes], under: str, recursive: bool) -> list[dict[str, Any]]:
    """The files, and folders, below a folder."""
    prefix = f"{under}/" if under else ""
    listed: dict[str, dict[str, Any]] = {}
    for name, content in sorted(files.items()):
        if not name.startswith(prefix):
            continue
        parts = name.removeprefix(prefix).split("/")
        for depth in range(1, len(parts) if recursive else min(2, len(parts))):
            path = prefix + "/".join(parts[:depth])
            listed[path] = {
                "type": "directory",
                "path": path,
                "oid": git_sha1(path.encode()),
                "size": 0,
            }
        if recursive or len(parts) == 1:
            listed[name] = _entry(name, content)
    return list(listed.values())


def _entry(name: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": "file",
        "path": name,
        "size": len(content),
        "oid": git_sha1(content),
    }
    if name.endswith(LARGE):
        entry["lfs"] = {
            "oid": hashlib.sha256(content).hexdigest(),
            "size": len(content),
            "pointerSize": 130,
        }
    return entry


def _resolve(request: Request, hub: Hub, found: re.Match[str]) -> None:
    repository = _find(request, hub, found["kind"] or "models", found["repo"])
    if repository is None:
        return
    commit = repository.commit(found["revision"])
    if commit is None:
        request.status(
            404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "no such revision"}
        )
        return
    content = repository.files(commit).get(found["path"])
    if content is None:
        request.status(
            404,
            {
                "X-Error-Code": "EntryNotFound",
                "X-Error-Message": "no such file",
                "X-Repo-Commit": commit,
            },
        )
        return
    headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
    if found["path"].endswith(LARGE):
        digest = hashlib.sha256(content).hexdigest()
        elsewhere = hub.address.replace("127.0.0.1", "localhost")
        place = (
            f"{elsewhere}/cdn/{found['kind'] or 'models'}/{found['repo']}/{commit}/{found['path']}"
        )
        told = {
            **headers,
            "X-Linked-Etag": f'"{digest}"',
            "X-Linked-Size": str(len(content)),
            "Location": place,
        }
        request.status(302, told, text="")
        return
    _send_content(request, content, {**headers, "ETag": f'"{git_sha1(content)}"'})


def _send(request: Request, hub: Hub, path: str) -> None:
    _, _, kind, owner, name, commit, file = path.split("/", 6)
    repository = (hub.datasets if kind == "datasets" else hub.models)[f"{owner}/{name}"]
    content = repository.files(commit)[file]
    _send_content(
        request,
        content,
        {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "Accept-Ranges": "bytes"},
    )


def _send_content(request: Request, content: bytes, headers: Mapping[str, str]) -> None:
    handler, start, code = request.handler, 0, 200
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range") or "")
    stop = len(content)
    if asked:
        start, code = int(asked[1]), 206
        stop = min(stop, int(asked[2]) + 1) if asked[2] else stop
    body = content[start:stop]
    handler.send_response(code)
    told = {"Content-Type": "application/octet-stream", "Content-Length": str(len(body)), **headers}
    if code == 206:
        told["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
    for key, value in told.items():
        handler.send_header(key, value)
    handler.end_headers()
    if request.method == "HEAD":
        return
    if request.transfer == "corrupt" and body:
        body = (
            body[: len(body) // 2] + bytes([body[len(body) // 2] ^ 1]) + body[len(body) // 2 + 1 :]
        )
    if request.transfer == "slow":
        for start in range(0, len(body), max(1, len(body) // 8)):
            handler.wfile.write(body[start : start + max(1, len(body) // 8)])
            handler.wfile.flush()
            _pause(0.05)
        return
    if request.transfer in ("cut", "reset"):
        handler.wfile.write(body[: len(body) // 2])
        handler.wfile.flush()
        handler.close_connection = True
        if request.transfer == "reset":  # what a router or a proxy does that forgets a connection
            _pause(0.1)
            handler.connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            handler.connection.close()
        return
    handler.wfile.write(body)
