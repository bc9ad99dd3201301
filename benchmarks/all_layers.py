"""What scoring all layers costs against the last layer alone, and against doing it layer by layer.

Times, in one run on one task: `evaluate` for the last layer alone (before and after, averaged),
`evaluate` for all layers, and the layer-by-layer way: for every k a pass of its own that ends after
k blocks, as a model cut to k blocks would. Encoding and mteb's own scoring are told apart; scoring
is the same work for both ways.

    python benchmarks/all_layers.py --data-dir DIR      # DIR/STSBenchmark/test.jsonl.gz in MTEB's columns
    python benchmarks/all_layers.py                     # TREC questions, from the package index
    python benchmarks/all_layers.py --layer-steps 5     # every fifth layer alone, the others interpolated
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from rows import Row

import layerscope
from layerscope.capture import Site, expand_sites
from layerscope.core.templates import get_template
from layerscope.data import load_corpus
from layerscope.evaluation.encode import EncodePass, open_space
from layerscope.evaluation.mteb_models import TextCollector
from layerscope.evaluation.scoring import quiet_mteb
from layerscope.evaluation.tasks import resolve_tasks
from layerscope.models import LoadedModel, load
from layerscope.store.embeddings import EmbeddingStore


def texts_of(task: str, data_dir: Path | None) -> list[str]:
    """The distinct texts a task encodes, as `evaluate` finds them."""
    import mteb

    quiet_mteb()
    listener = TextCollector()
    spec = resolve_tasks([task], data_dir=data_dir, offline=True)[0]
    mteb.evaluate(listener, spec.load(), cache=None, show_progress_bar=False, co2_tracker=False)
    return list(listener.texts)


def scored(
    model: LoadedModel, task: str, data_dir: Path | None, layers: list[int] | None
) -> dict[str, float]:
    """Seconds of encoding and of scoring, with an empty store."""
    with tempfile.TemporaryDirectory() as folder:
        run = layerscope.evaluate(
            model,
            [task],
            out=Path(folder) / "run",
            layers=layers,
            data_dir=data_dir,
            store=Path(folder) / "store",
            offline=True,
        )
        assert not run.failed, run.failed
        return run.manifest["seconds"]


def encode(model: LoadedModel, texts: list[str], sites: list[Site]) -> float:
    """Seconds to encode texts at some sites into a new store."""
    with tempfile.TemporaryDirectory() as folder:
        space = open_space(EmbeddingStore(Path(folder), None), model, get_template("plain"), 256)
        one = EncodePass(model, get_template("plain"), sites, ["mean/applied"], space, 256)
        start = time.perf_counter()
        one.run(one.missing(texts))
        return time.perf_counter() - start


def short() -> list[Row]:
    """For `benchmarks/all.py`: encoding only, on news texts."""
    model = load("controlled-ar", device="cpu")
    texts = list(load_corpus("lee", limit=150).texts)
    every = expand_sites(None, model.anatomy)
    encode(model, texts[:32], every)  # warm up
    before, whole, after = (
        encode(model, texts, sites) for sites in (every[-1:], every, every[-1:])
    )
    one_by_one = sum(encode(model, texts, [site]) for site in every)
    last = (before + after) / 2
    return [
        Row(f"vectors of all {len(every)} layers, one pass", "the last layer alone", whole, last),
        Row("vectors layer by layer", "the last layer alone", one_by_one, last),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--task")
    parser.add_argument("--layer-steps", type=int, default=1)
    args = parser.parse_args()
    task = args.task or ("STSBenchmark" if args.data_dir else "TrecQuestions")
    model, texts = load(args.model), texts_of(task, args.data_dir)
    every = expand_sites(None, model.anatomy)
    encode(model, texts[:64], every)  # warm up
    before = scored(model, task, args.data_dir, [-1])
    whole = scored(model, task, args.data_dir, None)
    after = scored(model, task, args.data_dir, [-1])
    last = {part: (before[part] + after[part]) / 2 for part in before}
    print(f"{args.model} on {task}: {len(texts)} distinct texts, {len(every)} layers", flush=True)
    print(f"{'':34}{'encoding':>10}{'scoring':>10}{'together':>10}")

    def line(name: str, encoding: float, scoring: float) -> None:
        print(f"{name:34}{encoding:9.1f}s{scoring:9.1f}s{encoding + scoring:9.1f}s", flush=True)

    line("last layer alone", last["encode"], last["score"])
    line("all layers, one pass", whole["encode"], whole["score"])
    floor = last["encode"] + whole["score"]
    ratio = (whole["encode"] + whole["score"]) / floor
    alone = whole["encode"] / last["encode"]
    print(
        f"  = {alone:.2f} x the encoding of the last layer alone; {ratio:.2f} x with mteb's scoring of all layers on both sides"
    )
    chosen = sorted({*range(0, len(every), args.layer_steps), len(every) - 1})
    times = [encode(model, texts, [every[k]]) for k in chosen]
    one_by_one = float(np.interp(range(len(every)), chosen, times).sum())
    line("layer by layer", one_by_one, whole["score"])
    how = (
        "every one measured"
        if len(chosen) == len(every)
        else f"{len(chosen)} measured, the others interpolated"
    )
    print(f"  = {one_by_one / last['encode']:.1f} x the encoding of the last layer alone ({how})")


if __name__ == "__main__":
    main()
