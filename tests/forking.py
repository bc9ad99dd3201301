"""Programs in processes of their own that need not import torch and transformers again, which takes
eight seconds.

A process is split off when all tests are collected: everything is imported, no test has run, and no
thread was started that a fork would lose. It forks once per program. Not for tests of what a fresh
interpreter imports: those start one.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_server: socket.socket | None = None


def start_server() -> None:
    """Split the server off. It ends when this process does."""
    global _server
    if _server is not None or not hasattr(os, "fork"):
        return
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        try:
            _serve(theirs)
        finally:
            os._exit(0)
    theirs.close()
    _server = ours


def run_python(
    program: str,
    *arguments: str,
    cwd: Path = ROOT,
    without: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """What `python -c PROGRAM ARGUMENTS` gives, in a fork where the packages `without` are not
    imported yet."""
    if _server is None:
        command = [sys.executable, "-c", program, *arguments]
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        return subprocess.run(
            command, cwd=cwd, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
        )
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / "out", Path(folder) / "err"]
        _send(
            _server,
            (
                program,
                arguments,
                str(cwd),
                without,
                dict(os.environ),
                [str(path) for path in outputs],
            ),
        )
        code = _receive(_server)
        said = [path.read_text(encoding="utf-8") for path in outputs]
    return subprocess.CompletedProcess(["-c", *arguments], code, *said)


def _send(channel: socket.socket, value: Any) -> None:
    raw = pickle.dumps(value)
    channel.sendall(struct.pack("!Q", len(raw)) + raw)


def _receive(channel: socket.socket) -> Any:
    def read(size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = channel.recv(size - len(parts))
            if not part:
                raise EOFError
            parts += part
        return parts

    return pickle.loads(read(struct.unpack("!Q", read(8))[0]))


def _serve(channel: socket.socket) -> None:
    """Fork for each program that is asked for. The files that the tests' process has open are not
    this one's."""
    own = channel.fileno()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.closerange(3, own)
    os.closerange(own + 1, max(own + 2, min(os.sysconf("SC_OPEN_MAX"), 65536)))
    while True:
        try:
            program, arguments, cwd, without, environment, outputs = _receive(channel)
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            channel.close()
            signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest's processes ignore it
            for name in [name for name in sys.modules if name.partition(".")[0] in without]:
                del sys.modules[name]
            os._exit(_run(program, arguments, cwd, environment, outputs))
        _send(channel, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _run(
    program: str,
    arguments: Sequence[str],
    cwd: str,
    environment: dict[str, str],
    outputs: Sequence[str],
) -> int:
    """The program in this process: its exit code."""
    for descriptor, path in enumerate(outputs, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdout, sys.stderr = (
        os.fdopen(descriptor, "w", encoding="utf-8", closefd=False) for descriptor in (1, 2)
    )
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["-c", *arguments]
    code: Any = 0
    try:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)
