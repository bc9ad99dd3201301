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

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from layerscope.embedding.writing import BLOCK, REMOTE_BLOCK

RESULT = Path(__file__).parent / "results" / "embed-million.md"
WORDS = (
    "river",
    "stone",
    "cloud",
    "paper",
    "light",
    "grass",
    "metal",
    "music",
    "bread",
    "glass",
    "north",
    "seven",
)


def write(file: Path, count: int) -> None:
    """`count` different texts of four words, each with a number beside it."""
    with file.open("w", encoding="utf-8") as stream:
        for i in range(count):
            words = " ".join(WORDS[(i // 12**k) % 12] for k in range(4))
            stream.write(json.dumps({"id": i, "text": f"{words} {i}"}) + "\n")


def run(words: list[str], parts: Path, until: int | None) -> tuple[float, float, bool]:
    """Seconds, peak memory in MB, and whether it was killed: after `until` parts, or never."""
    start, peak = time.perf_counter(), 0
    process = subprocess.Popen(
        [sys.executable, "-m", "layerscope", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        held = next(
            (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0
        )
        peak = max(peak, held)
        if (
            until is not None
            and parts.is_dir()
            and len(list(parts.glob("part-*.parquet"))) >= until
        ):
            process.send_signal(signal.SIGKILL)
            process.wait()
            return time.perf_counter() - start, peak / 1024, True
        time.sleep(0.05)
    if process.wait():
        raise SystemExit((process.stderr.read() if process.stderr else b"").decode()[-500:])
    return time.perf_counter() - start, peak / 1024, False


def vectors_of(file: Path) -> tuple[bool, np.ndarray]:
    """Whether the rows are in order, and their vectors."""
    table = pq.read_table(file)
    name = next(name for name in table.column_names if name.startswith(("vector", "layer")))
    vectors = np.stack(table.column(name).to_numpy(zero_copy_only=False))
    return table.column("id").to_pylist() == list(range(len(vectors))), vectors


def main() -> None:
    """Measure each size and engine and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", nargs="+", type=int, default=[10_000, 100_000])
    parser.add_argument("--engines", nargs="+", default=["local"])
    parser.add_argument("--model", default="controlled-ar")
    given = parser.parse_args()
    rows = [
        line for line in RESULT.read_text(encoding="utf-8").splitlines() if line.startswith("| ")
    ][1:]
    for count in given.texts:
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "texts.jsonl"
            write(file, count)

            def words(out: Path, engine: str, file: Path = file) -> list[str]:
                ways = ["--layers", "1", "--max-length", "32", "--engine", engine, "-q"]
                return ["embed", given.model, "--data", str(file), "--out", str(out), *ways]

            whole = Path(place) / "whole.parquet"
            run(words(whole, "local"), Path(place), None)
            for engine in given.engines:
                out = Path(place) / f"{engine}.parquet"
                parts = out.with_name(f".{out.name}.embedding")
                before = run(
                    words(out, engine),
                    parts,
                    max(1, count // (BLOCK if engine == "local" else REMOTE_BLOCK) // 2),
                )
                after = run(words(out, engine), parts, None)
                ordered, found = vectors_of(out)
                apart = float(np.abs(found - vectors_of(whole)[1]).max())
                row = (
                    f"| {count:,} | {engine} | {before[0]:.0f} s, {'killed' if before[2] else 'finished'} | {after[0]:.0f} s | "
                    f"{max(before[1], after[1]):.0f} MB | {len(found):,} rows, {'in' if ordered else 'NOT in'} order, at most "
                    f"{apart:.1g} from local in one go | {out.stat().st_size / 1e6:.0f} MB |"
                )
                print(row, flush=True)
                rows = [
                    line for line in rows if not line.startswith(f"| {count:,} | {engine} |")
                ] + [row]
        lines = [
            "# `embed` on many texts", "",
            f"`python benchmarks/embed_million.py --texts N --engines ENGINE` ({given.model}, layer 1, {os.cpu_count()} cores "
            "that did other work too). Memory is that of the process that reads and writes, without Ray's workers.", "",
            "| texts | engine | until killed | the same command again | peak memory | the file | size |",
            "|---|---|---|---|---|---|---|", *rows, "",
        ]  # fmt: skip
        RESULT.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
