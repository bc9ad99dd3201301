"""infinity's HTTP server on the folder, asked over the OpenAI API."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
from common import FOLDER, TEXTS, distance, told, wanted

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
program = Path(sys.executable).parent / "infinity_emb"
words = [
    str(program),
    "v2",
    "--model-id",
    str(FOLDER),
    "--port",
    str(port),
    "--engine",
    "torch",
    "--device",
    "cpu",
    "--no-bettertransformer",
]
log = Path(FOLDER.parent / "infinity.log")
with (
    log.open("w", encoding="utf-8") as stream,
    subprocess.Popen([*words, "--no-model-warmup"], stdout=stream, stderr=stream) as server,
):
    try:
        for _ in range(600):
            if server.poll() is not None:
                raise SystemExit(log.read_text(encoding="utf-8")[-1500:])
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).read()
                break
            except OSError:
                time.sleep(1)
        asked = json.dumps({"model": FOLDER.name, "input": TEXTS}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/embeddings", asked, {"Content-Type": "application/json"})
        answer = json.loads(urllib.request.urlopen(request, timeout=300).read())
    finally:
        server.terminate()
vectors = np.array([row["embedding"] for row in sorted(answer["data"], key=lambda row: row["index"])])
told("infinity-emb", f"POST /embeddings, {len(TEXTS)} texts", distance(vectors, wanted()))
