"""What scoring all layers costs against the last layer alone, and against doing it layer by layer.

Times, in one run: encoding every text once for all layers; encoding for the last layer alone (same code, one site); and the
layer-by-layer way, a pass that ends after k blocks for every k, interpolated between the middle and the last. mteb's own scoring
is the same for all.

    python benchmarks/all_layers.py --data-dir DIR      # DIR/STSBenchmark/test.jsonl.gz in MTEB's columns
    python benchmarks/all_layers.py                     # texts of the default corpus instead
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from pathlib import Path

from layerscope.capture import Site, expand_sites
from layerscope.data import load_corpus
from layerscope.evaluation.encode import EncodePass, open_space
from layerscope.evaluation.templates import TEMPLATES
from layerscope.models import LoadedModel, load
from layerscope.store.embeddings import EmbeddingStore


def sentences(data_dir: Path | None, count: int) -> list[str]:
    """Distinct short texts."""
    if data_dir is None:
        parts = [part.strip() for text in load_corpus("lee").texts for part in text.split(".")]
        texts = [part for part in parts if len(part.split()) > 3]
    else:
        with gzip.open(data_dir / "STSBenchmark" / "test.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        texts = [row[side] for side in ("sentence1", "sentence2") for row in rows]
    return list(dict.fromkeys(texts))[:count]


def encode(model: LoadedModel, texts: list[str], sites: list[Site]) -> float:
    """Seconds to encode texts at some sites into a new store."""
    with tempfile.TemporaryDirectory() as folder:
        space = open_space(EmbeddingStore(Path(folder), None), model, TEMPLATES["plain"], 256)
        one = EncodePass(model, TEMPLATES["plain"], sites, ["mean/applied"], space, 256)
        start = time.perf_counter()
        one.run(one.missing(texts))
        return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--texts", type=int, default=2552)
    args = parser.parse_args()
    model, texts = load(args.model), sentences(args.data_dir, args.texts)
    every = expand_sites(None, model.anatomy)
    encode(model, texts[:64], every)  # warm up
    last_before = encode(model, texts, every[-1:])
    everything = encode(model, texts, every)
    last_after = encode(model, texts, every[-1:])
    last = (last_before + last_after) / 2
    # a pass that ends after k blocks is what a model cut to k blocks costs
    sample = every[len(every) // 2]
    half = encode(model, texts, [sample])
    one_by_one = sum(half + (last - half) * (site.layer - sample.layer) / (every[-1].layer - sample.layer) for site in every)
    print(f"{args.model}, {len(texts)} texts, {len(every)} layers")
    print(f"last layer alone      {last:8.1f} s")
    print(f"all layers, one pass  {everything:8.1f} s  = {everything / last:.2f} x the last layer alone")
    print(f"layer by layer        {one_by_one:8.1f} s  = {one_by_one / last:.1f} x (from passes that end after k blocks)")


if __name__ == "__main__":
    main()
