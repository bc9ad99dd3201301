"""`layerscope embed` on many texts: peak memory, time, and whether a run that is killed goes on to the same file.

    python benchmarks/embed_million.py --texts 10000 100000 1000000

Texts are made up, short, and all different; the model is the zoo's smallest, so that it is the reading and writing that is
measured. For each number of texts the run is killed once, when some parts are there, and started again.
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

import pyarrow.parquet as pq

RESULT = Path(__file__).parent / "results" / "embed-million.md"
WORDS = ("river", "stone", "cloud", "paper", "light", "grass", "metal", "music", "bread", "glass", "north", "seven")


def write(file: Path, count: int) -> None:
    """`count` different texts of four words, each with a number beside it."""
    with file.open("w", encoding="utf-8") as stream:
        for i in range(count):
            words = " ".join(WORDS[(i // 12**k) % 12] for k in range(4))
            stream.write(json.dumps({"id": i, "text": f"{words} {i}"}) + "\n")


def run(words: list[str], parts: Path, until: int | None) -> tuple[float, float, bool]:
    """Seconds, peak memory in MB, and whether it was killed: after `until` parts, or never."""
    start, peak = time.perf_counter(), 0
    process = subprocess.Popen([sys.executable, "-m", "layerscope", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        held = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
        peak = max(peak, held)
        if until is not None and parts.is_dir() and len(list(parts.glob("part-*.parquet"))) >= until:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return time.perf_counter() - start, peak / 1024, True
        time.sleep(0.05)
    if process.wait():
        raise SystemExit((process.stderr.read() if process.stderr else b"").decode()[-500:])
    return time.perf_counter() - start, peak / 1024, False


def main() -> None:
    """Measure each size and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", nargs="+", type=int, default=[10_000, 100_000])
    parser.add_argument("--model", default="controlled-ar")
    given = parser.parse_args()
    rows = []
    for count in given.texts:
        with tempfile.TemporaryDirectory() as place:
            file, out = Path(place) / "texts.jsonl", Path(place) / "vectors.parquet"
            write(file, count)
            words = ["embed", given.model, "--data", str(file), "--out", str(out), "--layers", "1", "--max-length", "32", "-q"]
            parts = out.with_name(f".{out.name}.embedding")
            before = run(words, parts, max(1, count // 4096 // 2))
            after = run(words, parts, None)
            table = pq.ParquetFile(out)
            whole = pq.read_table(out, columns=["id"]).column("id").to_pylist() == list(range(count))
            peak = max(before[1], after[1])
            rows.append(
                f"| {count:,} | {before[0]:.0f} s, {'killed' if before[2] else 'finished'} | {after[0]:.0f} s | {peak:.0f} MB | "
                f"{table.metadata.num_rows:,} rows, {'in' if whole else 'NOT in'} order | {out.stat().st_size / 1e6:.0f} MB |"
            )
            print(rows[-1], flush=True)
        lines = [
            "# `embed` on many texts", "",
            f"`python benchmarks/embed_million.py --texts {' '.join(map(str, given.texts))}` ({given.model}, layer 1, "
            f"{os.cpu_count()} cores that did other work too).", "",
            "| texts | until killed | the same command again | peak memory | the file | size |", "|---|---|---|---|---|---|",
            *rows, "",
        ]  # fmt: skip
        RESULT.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
