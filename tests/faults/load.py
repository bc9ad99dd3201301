"""A sweep over many models: memory and open files stay where they were after the first few.

    python -m tests.faults.load models 100 0      # how many tiny models, each a folder of its own; the seed

Prints one JSON object.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WARM = 3  # models after which nothing new is imported
MOST_MB_PER_MODEL = 1.0  # each of the tiny models takes a fraction of this


def memory_mb() -> float:
    """What this process holds in memory."""
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files() -> int:
    """How many files, sockets and pipes this process has open."""
    return len(os.listdir("/proc/self/fd"))


def many_models(count: int, seed: int) -> dict[str, Any]:
    """Profile so many models in one sweep, and look at this process after each."""
    import torch

    from layerscope.sweeps.run import sweep
    from tests.tiny import build_tiny, tiny_tokenizer

    torch.set_num_threads(1)
    home = Path(tempfile.mkdtemp(prefix="layerscope-load-"))
    os.environ["LAYERSCOPE_CACHE"] = str(home / "cache")
    texts = home / "texts.txt"
    texts.write_text("\n".join(f"text number {i}, about {'this and that ' * (i % 3)}and the rest" for i in range(8)))
    names = []
    for number in range(count):
        folder = home / f"model-{number:03}"
        build_tiny("llama", seed=seed * 1000 + number).save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
        names.append(str(folder))
    memory: list[float] = []
    files: list[int] = []

    def look(row: dict[str, Any]) -> None:
        gc.collect()
        memory.append(round(memory_mb(), 1))
        files.append(open_files())

    plan = {
        "models": names, "corpora": [str(texts)], "profile": {"metrics": ["prompt_entropy", "dataset_entropy"], "max_length": 24},
        "facts": {name: {"parameters": 1000, "blocks": 3, "width": 32} for name in names},
    }  # fmt: skip
    clock = time.monotonic()
    done = sweep(plan, out=home / "out", progress=False, on_step=look)
    seconds = time.monotonic() - clock
    defects = [f"{one['job']} failed: {one['reason']}" for one in done.failed]
    if len(done.table["model"].unique()) != count:
        defects.append(f"the table holds {len(done.table['model'].unique())} models")
    grown = memory[-1] - memory[WARM - 1]
    if grown > MOST_MB_PER_MODEL * max(10, count - WARM):
        defects.append(f"memory grew by {grown:.0f} MB over {count - WARM} models")
    if files[-1] > files[WARM - 1]:
        defects.append(f"{files[-1] - files[WARM - 1]} more files are open after {count} models than after {WARM}")
    clock = time.monotonic()
    again = sweep(plan, out=home / "out", progress=False)
    found = {
        "load": "models",
        "inputs": count,
        "memory_mb": [memory[WARM - 1], memory[-1]],
        "open_files": [files[WARM - 1], files[-1]],
    }
    if not again.table.equals(done.table):
        defects.append("the finished sweep says something else when it is run again")
    return {**found, "seconds": round(seconds), "again_seconds": round(time.monotonic() - clock), "defects": defects}


if __name__ == "__main__":
    print(json.dumps(many_models(int(sys.argv[2]), int(sys.argv[3]))))
