"""Embedding Atlas opens the file that `embed` wrote: its server hands out its page, and the texts,
vectors, x and y."""

from __future__ import annotations

import io
import re
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
    [*command, "--host", "127.0.0.1", "--port", str(port)],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
)
try:
    for _ in range(120):
        try:
            page, told_of, held = (
                urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=20).read()
                for path in ("", "data/metadata.json", "data/dataset.parquet")
            )
            break
        except OSError:
            if server.poll() is not None:
                raise SystemExit(
                    (server.stderr.read() if server.stderr else b"").decode()[-300:]
                ) from None
            time.sleep(1)
    else:
        raise SystemExit("no answer from embedding-atlas")
finally:
    server.terminate()
assert b"<html" in page.lower()
assert {"x", "y", "text"} <= set(re.findall(r'"(\w+)"', told_of.decode()))
frame = pd.read_parquet(io.BytesIO(held))
assert list(frame["text"]) == TEXTS
assert np.isfinite(frame[["x", "y"]]).all().all()
told(
    "embedding-atlas",
    f"its page and its data: vectors, x and y of {len(frame)} texts",
    distance(np.stack(frame["vector"]), wanted()),
)
