"""Embedding Atlas opens the file that `embed` wrote: its own loader, and its server with the columns x and y."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pandas as pd
from common import TEXTS, WORK, distance, told, wanted

file = WORK / "vectors.parquet"
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
command = [
    str(Path(sys.executable).parent / "embedding-atlas"),
    str(file),
    "--text",
    "text",
    "--x",
    "x",
    "--y",
    "y",
    "--port",
    str(port),
]
server = subprocess.Popen(
    [*command, "--host", "127.0.0.1", "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
)
try:
    for _ in range(120):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
                page = answer.read()
            break
        except OSError:
            if server.poll() is not None:
                raise SystemExit((server.stderr.read() if server.stderr else b"").decode()[-300:]) from None
            time.sleep(1)
    else:
        raise SystemExit("no answer from embedding-atlas")
finally:
    server.terminate()
assert b"<html" in page.lower()
frame = pd.read_parquet(file)
assert list(frame["text"]) == TEXTS
assert np.isfinite(frame[["x", "y"]]).all().all()
told("embedding-atlas", f"its page, served with x and y of {len(frame)} texts", distance(np.stack(frame["vector"]), wanted()))
