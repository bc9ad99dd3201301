"""`layerscope embed` on many texts: peak memory, time, and whether a run that is killed goes on to
the same file.

    python benchmarks/embed_million.py --texts 10000 100000 1000000
    python benchmarks/embed_million.py --texts 80000 --engines ray

Texts are made up, short, and all different; the model is the zoo's smallest, so that it is the
reading and writing that is measured. For each number of texts the run is killed once, when half of
the whole parts are there, and started again. The file is compared, value by value, with that of a
local run in one go. Rows of other runs stay in the table.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from common import make_parser, peak_mb

from layerscope.embedding.writing import BLOCK, REMOTE_BLOCK

RESULT = Path(__file__).parent / "results" / "embed-million.md"
MODEL = "controlled-ar"
WORDS = (
    *("river", "stone", "cloud", "paper", "light", "grass"),
    *("metal", "music", "bread", "glass", "north", "seven"),
)


def write(file: Path, count: int) -> None:
    """`count` different texts of four words, each with a number beside it."""
    with file.open("w", encoding="utf-8") as stream:
        for i in range(count):
            words = " ".join(WORDS[(i // 12**k) % 12] for k in range(4))
            stream.write(json.dumps({"id": i, "text": f"{words} {i}"}) + "\n")


def run(words: list[str], parts: Path, until: int | None) -> tuple[float, float, bool]:
    """Seconds, peak memory in MB, and whether it was killed: after `until` parts, or never."""
    start, peak = time.perf_counter(), 0.0
    process = subprocess.Popen(
        [sys.executable, "-m", "layerscope", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    while process.poll() is None:
        try:
            peak = max(peak, peak_mb(process.pid))
        except OSError:
            break
        if until is not None and len(list(parts.glob("part-*.parquet"))) >= until:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return time.perf_counter() - start, peak, True
        time.sleep(0.05)
    if process.wait():
        raise SystemExit((process.stderr.read() if process.stderr else b"").decode()[-500:])
    return time.perf_counter() - start, peak, False


def vectors_of(file: Path) -> tuple[bool, np.ndarray]:
    """Return whether the rows are in order, and their vectors."""
    table = pq.read_table(file)
    name = next(name for name in table.column_names if name.startswith(("vector", "layer")))
    vectors = np.stack(table.column(name).to_numpy(zero_copy_only=False))
    return table.column("id").to_pylist() == list(range(len(vectors))), vectors


def measure(place: Path, count: int, engine: str) -> str:
    """Return the row of a size and an engine: killed once, then to the end."""
    file, whole, out = (place / name for name in ("texts.jsonl", "whole.parquet", "out.parquet"))
    write(file, count)

    def embed(out: Path, engine: str, until: int | None) -> tuple[float, float, bool]:
        options = ["--layers", "1", "--max-length", "32", "--engine", engine]
        words = ["embed", MODEL, "--data", str(file), "--out", str(out), *options]
        return run(words, out.with_name(f".{out.name}.embedding"), until)

    embed(whole, "local", None)
    block = BLOCK if engine == "local" else REMOTE_BLOCK
    before, after = embed(out, engine, max(1, count // block // 2)), embed(out, engine, None)
    ordered, vectors = vectors_of(out)
    apart = float(np.abs(vectors - vectors_of(whole)[1]).max())
    cells = (
        f"{count:,}",
        engine,
        f"{before[0]:.0f} s, {'killed' if before[2] else 'finished'}",
        f"{after[0]:.0f} s",
        f"{max(before[1], after[1]):.0f} MB",
        f"{len(vectors):,} rows, {'in' if ordered else 'NOT in'} order, at most {apart:.1g} from local in one go",
        f"{out.stat().st_size / 1e6:.0f} MB",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure sizes and engines, write the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--texts", nargs="+", type=int, default=[10_000, 100_000])
    parser.add_argument("--engines", nargs="+", default=["local"])
    args = parser.parse_args()
    for count in args.texts:
        for engine in args.engines:
            with tempfile.TemporaryDirectory() as place:
                row = measure(Path(place), count, engine)
            print(row, flush=True)
            lines = RESULT.read_text(encoding="utf-8").splitlines()
            lines = [line for line in lines if not line.startswith(f"| {count:,} | {engine} |")]
            RESULT.write_text("\n".join([*lines, row, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
