"""What a map keeps: principal components and UMAP on the same texts, layer by layer.

    pip install 'layerscope[umap]'
    python benchmarks/map_layouts.py --data-dir MTEB --out benchmarks/results/map_layouts.md

1,000 texts of each task at every layer of a model (mean of the tokens, final norm applied, up to 64
tokens). Trustworthiness is the one that stands below a map; `kept` of a text's ten true neighbors
are among the ten nearest points; `step` is how far points move from layer to layer (root mean
square; the points of a layer lie 1 from their center). Settings of UMAP were chosen on
EmotionClassification alone.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from pathlib import Path

import numpy as np

import layerscope
from layerscope.maps import lay_out

TASKS = ("Banking77Classification", "StackExchangeClustering")
MODELS = ("minilm-l6", "smollm2-135m")


def texts_of(task: str, data_dir: Path, count: int) -> list[str]:
    """Distinct texts of the test part, at random."""
    found: set[str] = set()
    with gzip.open(next((data_dir / task).glob("test*.jsonl.gz")), "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            given = row["text"] if "text" in row else row["sentences"]
            found.update([given] if isinstance(given, str) else given)
    drawn = sorted(found)
    random.Random(0).shuffle(drawn)
    return drawn[:count]


def main() -> None:
    """One line per task, model and layout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    lines = [
        "# Layouts of a map", "",
        f"`python benchmarks/map_layouts.py --data-dir MTEB`: {given.texts:,} texts a task; median (lowest to highest) layer.",
        "", "| task | model | layout | trustworthiness | of 10 neighbors kept | step | processor seconds a layer |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    lay_out(
        np.random.default_rng(0).normal(size=(1, 50, 8)), [0], layout="umap"
    )  # it compiles itself once
    for task in given.tasks:
        texts = texts_of(task, given.data_dir, given.texts)
        for model in MODELS:
            options = {
                "layers": "all",
                "readout": "plain/mean/applied",
                "max_length": 64,
                "progress": False,
            }
            vectors = layerscope.encode(model, texts, **options)
            for name in ("pca", "umap"):
                start = time.process_time()
                made = lay_out(vectors, range(len(vectors)), layout=name)
                seconds = (time.process_time() - start) / len(vectors)
                step = np.sqrt((np.diff(made.points, axis=0) ** 2).sum(2).mean(1))
                told = [
                    f"{np.nanmedian(v):.2f} ({np.nanmin(v):.2f} to {np.nanmax(v):.2f})"
                    for v in (made.trust, 10 * made.kept, step)
                ]
                lines.append(f"| {task} | {model} | {name} | {' | '.join(told)} | {seconds:.2f} |")
                print(lines[-1], flush=True)
    if given.out:
        given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
