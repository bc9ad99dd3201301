"""How fast the models are that people would serve: texts per second, and how long one text takes,
side by side in one run.

The model as it is, its head at a third of the blocks, a student's half, and a ready encoder, each
as the sentence-transformers folder that an export writes; on a CPU also its ONNX graphs. All of
them encode the same questions by turns.

    python benchmarks/serving.py --texts questions.jsonl --out benchmarks/results/serving-cpu.csv          # 2 threads
    python benchmarks/serving.py --texts questions.jsonl --device cuda --out
    benchmarks/results/serving-h200.csv

A head's numbers do not change its speed: these are of a made-up one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from layerscope.core.heads import WIDTH, Head
from layerscope.core.readout import HEAD, Readout
from layerscope.exporting.formats.onnx import write_graphs
from layerscope.exporting.formats.sentence_transformers import load_folder
from layerscope.exporting.job import prepare
from layerscope.models import load

MODELS = {"smollm2-135m": (10, 15), "gemma3-270m": (10, 9)}
"""The layers of the head and of the student that are reported."""


def make_folders(name: str, scratch: Path, onnx: bool) -> dict[str, Path]:
    """The model as it is, with a head, and half of it; with ONNX graphs of the head."""
    model, folders = load(name), {}
    head_layer, half = MODELS[name]
    head = Head(
        np.zeros(model.width), np.random.default_rng(0).standard_normal((model.width, WIDTH))
    )
    for what, layer in (("today", model.n_blocks), ("head", head_layer), ("student", half)):
        folders[what] = scratch / f"{name}-{what}"
        readout = Readout() if what == "today" else Readout(centering=HEAD)
        more: dict[str, Any] = {} if what == "today" else {"center": lambda _: head, "unit": True}
        draft = prepare(model, layer, readout, folders[what], max_length=256, **more)
        if onnx and what == "head":
            write_graphs(draft, "int8")
    return folders


def onnx_encoder(folder: Path, file: str, threads: int) -> Callable[[list[str]], object]:
    """Encodes texts with an exported graph."""
    import onnxruntime
    from transformers import AutoTokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        str(folder / "onnx" / file), options, providers=["CPUExecutionProvider"]
    )
    tokenizer, names = (
        AutoTokenizer.from_pretrained(folder),
        {given.name for given in session.get_inputs()},
    )

    def encode(texts: list[str]) -> object:
        order = sorted(texts, key=len, reverse=True)
        for first in range(0, len(order), 32):
            fed = tokenizer(
                order[first : first + 32],
                padding=True,
                truncation=True,
                max_length=256,
                return_tensors="np",
            )
            session.run(
                None, {key: value.astype(np.int64) for key, value in fed.items() if key in names}
            )
        return None

    return encode


Encoders = dict[tuple[str, str], Callable[[list[str]], object]]


def measure(encoders: Encoders, texts: list[str], singles: int, rounds: int) -> pd.DataFrame:
    """A row per encoder: the best of `rounds` passes over all texts, by turns; then single texts,
    by turns."""
    rates: dict[tuple[str, str], list[float]] = {key: [] for key in encoders}
    waits: dict[tuple[str, str], list[float]] = {key: [] for key in encoders}
    for encode in encoders.values():
        encode(texts[:256])
    for _ in range(rounds):
        for key, encode in encoders.items():
            start = time.perf_counter()
            encode(texts)
            rates[key].append(len(texts) / (time.perf_counter() - start))
    for text in texts[:singles]:
        for key, encode in encoders.items():
            start = time.perf_counter()
            encode([text])
            waits[key].append(1000 * (time.perf_counter() - start))
    return pd.DataFrame(
        {"model": name, "precision": precision, "texts_per_s": round(max(rates[name, precision]), 1),
         "p50_ms": round(statistics.median(waits[name, precision]), 2),
         "p99_ms": round(float(np.quantile(waits[name, precision], 0.99)), 2)}
        for name, precision in encoders
    )  # fmt: skip


def read_texts(file: Path, count: int) -> list[str]:
    """The field `text` of a file of JSON lines."""
    opener: Any = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines][:count]


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["smollm2-135m"], choices=MODELS)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--singles", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    gpu = args.device != "cpu"
    texts = read_texts(args.texts, args.count)
    encoders: Encoders = {}
    with tempfile.TemporaryDirectory() as scratch:
        folders: dict[str, Path] = {}
        for name in args.models:
            folders |= {
                f"{name}, {what}": folder
                for what, folder in make_folders(name, Path(scratch), not gpu).items()
            }
        encoder = load("minilm-l6")
        prepare(
            encoder,
            encoder.n_blocks,
            Readout(),
            Path(scratch) / "minilm",
            max_length=256,
            unit=True,
        )
        folders["minilm-l6"] = Path(scratch) / "minilm"
        for name, folder in folders.items():
            for precision in (torch.float32, torch.bfloat16):
                student = load_folder(folder).to(device=args.device, dtype=precision)
                size = 256 if gpu else 32
                encoders[name, str(precision).removeprefix("torch.")] = (
                    lambda given, s=student, size=size: s.encode(
                        given, batch_size=size, show_progress_bar=False
                    )
                )
            for file, told in (("model.onnx", "ONNX"), ("model_int8.onnx", "ONNX int8")):
                if (folder / "onnx" / file).exists():
                    encoders[name, told] = onnx_encoder(folder, file, args.threads)
        table = measure(encoders, texts, args.singles, args.rounds)
    table["device"] = torch.cuda.get_device_name() if gpu else f"CPU, {args.threads} threads"
    table["texts"] = len(texts)
    print(table.to_string(index=False))
    if args.out is not None:
        table.to_csv(args.out, index=False)


if __name__ == "__main__":
    main()
