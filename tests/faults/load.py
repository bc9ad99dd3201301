"""Much of everything: a sweep over many models; a profile, and an embedding store, of very many
texts.

    python -m tests.faults.load models 100 0          # how many tiny models, each a folder of its own; the seed
    python -m tests.faults.load profile 1000000 0     # how many texts in one file, the seed: half an hour on two cores
    python -m tests.faults.load store 1000000 0       # how many texts' vectors, the seed: a minute

Memory and open files must stay where they were, or below what a small machine has. Prints one JSON
object.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

WARM = 3  # models after which nothing new is imported
MOST_MB_PER_MODEL = 1.0  # each of the tiny models takes a fraction of this
MOST_MB = 4096


def peak_mb() -> float:
    """The most that this process has held in memory so far."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


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

    from layerscope_paper.sweeps.run import sweep
    from tests.tiny import build_tiny, tiny_tokenizer

    torch.set_num_threads(1)
    home = Path(tempfile.mkdtemp(prefix="layerscope-load-"))
    os.environ["LAYERSCOPE_CACHE"] = str(home / "cache")
    texts = home / "texts.txt"
    texts.write_text(
        "\n".join(
            f"text number {i}, about {'this and that ' * (i % 3)}and the rest" for i in range(8)
        )
    )
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
        defects.append(
            f"{files[-1] - files[WARM - 1]} more files are open after {count} models than after {WARM}"
        )
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
    shutil.rmtree(home)
    return {
        **found,
        "seconds": round(seconds),
        "again_seconds": round(time.monotonic() - clock),
        "defects": defects,
    }


def write_texts(file: Path, count: int, seed: int) -> None:
    """So many different short texts, written without being held."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("etaoinshrdlu"), size=rng.integers(2, 6))) for _ in range(500)]
    with file.open("w", encoding="utf-8") as stream:
        for start in range(0, count, 10_000):
            drawn = rng.integers(0, len(words), size=(min(10_000, count - start), 2))
            stream.writelines(
                f"{start + i} {words[a]} {words[b]}\n" for i, (a, b) in enumerate(drawn)
            )


def _limited(found: dict[str, Any], clock: float, defects: list[str]) -> dict[str, Any]:
    peak = peak_mb()
    if peak > MOST_MB:
        defects.append(
            f"{peak:,.0f} MB of memory were needed; {MOST_MB:,} MB is what a small machine has"
        )
    return {
        **found,
        "peak_mb": round(peak),
        "seconds": round(time.monotonic() - clock),
        "defects": defects,
    }


def many_texts_profiled(count: int, seed: int) -> dict[str, Any]:
    """Profile a file of so many texts into a folder, with metrics of tokens and of pooled
    vectors."""
    import torch
    import transformers

    from layerscope import profile
    from layerscope.models import wrap
    from tests.tiny import VOCAB, tiny_tokenizer

    home = Path(tempfile.mkdtemp(prefix="layerscope-load-"))
    os.environ["LAYERSCOPE_CACHE"] = str(home / "cache")
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": VOCAB,
    }
    module = transformers.LlamaModel(
        transformers.LlamaConfig(**sizes, num_key_value_heads=2, max_position_embeddings=64)
    )
    model = wrap(module.eval(), tiny_tokenizer(), name="tiny")
    write_texts(home / "texts.txt", count, seed)
    before, clock = memory_mb(), time.monotonic()
    run = profile(
        model, home / "texts.txt", metrics=["prompt_entropy", "dataset_entropy"], max_length=8, batch_size=2048, out=home / "run",
        progress=False,
    )  # fmt: skip
    defects = (
        [] if len(run.prompts["prompt"].unique()) == count else ["not every text is in the table"]
    )
    if run.table["value"].isna().any():
        defects.append("a value is undefined")
    found = {"load": "profile", "inputs": count, "before_mb": round(before)}
    found = _limited(found, clock, defects)
    shutil.rmtree(home)
    return found


def many_texts_stored(count: int, seed: int) -> dict[str, Any]:
    """Write so many texts' vectors as an evaluation does, open the store again, find and read all
    of them."""
    from layerscope.store.embeddings import EmbeddingStore, text_key

    home = Path(tempfile.mkdtemp(prefix="layerscope-load-"))
    rng = np.random.default_rng(seed)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )  # the usual limit
    part, width, sites = 512, 16, ["a", "b"]  # as many texts in a part as an evaluation writes
    before, clock = memory_mb(), time.monotonic()

    def parts() -> Iterator[tuple[list[bytes], np.ndarray]]:
        for start in range(0, count, part):
            numbers = np.arange(start, min(start + part, count), dtype=np.float32)
            yield (
                [text_key(f"text {int(i)}") for i in numbers],
                np.repeat(numbers, width).reshape(-1, width),
            )

    space = EmbeddingStore(home / "store", None).space({"model": "tiny"})
    for keys, rows in parts():
        space.add(
            keys, {"mean": np.stack([rows, -rows])}, sites, {"tokens": rows[:, 0].astype(np.int64)}
        )
    space.close()
    opened = EmbeddingStore(home / "store", None).space({"model": "tiny"})
    defects = [] if opened.texts == count else [f"{opened.texts:,} texts are in the store"]
    for keys, rows in parts():
        mixed = rng.permutation(len(keys))
        some = [keys[i] for i in mixed]
        there = opened.has(some, ["mean"], sites, ["tokens"]).all()
        if not there or not np.array_equal(opened.read(some, "mean", "b"), -rows[mixed]):
            defects.append(f"texts from {rows[0, 0]:.0f} on are missing or wrong")
    found = {
        "load": "store",
        "inputs": count,
        "before_mb": round(before),
        "open_files": open_files(),
    }
    found = _limited(found, clock, defects)
    shutil.rmtree(home)
    return found


KINDS = {"models": many_models, "profile": many_texts_profiled, "store": many_texts_stored}

if __name__ == "__main__":
    print(json.dumps(KINDS[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))))
