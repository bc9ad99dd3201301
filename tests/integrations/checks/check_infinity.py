"""infinity's HTTP server on two folders, asked over the OpenAI API: an encoder and a causal model,
with transformers 4."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
from common import TEXTS, WORK, distance, told, wanted

NAMES = ("minilm", "llama-mean")


def ask(port: int, path: str, body: dict[str, object] | None = None, timeout: float = 300) -> bytes:
    """GET, or POST a body as JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}
    )
    answer: bytes = urllib.request.urlopen(request, timeout=timeout).read()
    return answer


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
words = [
    str(Path(sys.executable).parent / "infinity_emb"),
    "v2",
    "--host",
    "127.0.0.1",
    "--port",
    str(port),
]
words += [
    "--engine",
    "torch",
    "--device",
    "cpu",
    "--no-trust-remote-code",
    "--no-vector-disk-cache",
    "--no-model-warmup",
]
for name in NAMES:
    words += ["--model-id", str(WORK / "folders" / name), "--served-model-name", name]
log = WORK / "infinity.log"
with (
    log.open("w", encoding="utf-8") as stream,
    subprocess.Popen(
        words, stdout=stream, stderr=stream, env={**os.environ, "DO_NOT_TRACK": "1"}
    ) as server,
):
    try:
        for _ in range(600):
            if server.poll() is not None:
                raise SystemExit(log.read_text(encoding="utf-8")[-1500:])
            try:
                ask(port, "/health", timeout=2)
                break
            except OSError:
                time.sleep(1)
        else:
            raise SystemExit("the server did not answer within 600 s")
        far, parts = 0.0, []
        for name in NAMES:
            rows = json.loads(ask(port, "/embeddings", {"model": name, "input": TEXTS}))["data"]
            vectors = np.array(
                [row["embedding"] for row in sorted(rows, key=lambda row: row["index"])]
            )
            facts = json.loads(
                (WORK / "folders" / name / "layerscope.json").read_text(encoding="utf-8")
            )
            one = distance(vectors, wanted(name))
            parts.append(
                f"{facts['base']['name']} {facts['readout'].removesuffix('/keep/none')} {one:.1e}"
            )
            far = max(far, one)
    finally:
        server.terminate()
told("infinity-emb", f"POST /embeddings, {len(TEXTS)} texts: {'; '.join(parts)}", far)
