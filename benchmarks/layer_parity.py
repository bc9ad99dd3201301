"""Every layer and both norms against a plain mteb encoder of that layer, on whole tasks.

The plain way shares nothing with layerscope's capture, pooling, store or scoring: transformers' own
`output_hidden_states`, right padding, a mean over the mask, and `mteb.evaluate` with an encoder
that gives one layer. Its hidden states are computed once for all layers: running the model again
for each would give the same ones, sixteen times slower.

The plain side groups texts as layerscope does: mteb's logistic regressions stop before they
converge, so that differences in the seventh digit, which another batch shape makes, move their
scores by up to a point or two. `--plain-batch-size 64` shows that.

    python benchmarks/layer_parity.py --data-dir DIR --tasks STSBenchmark,Banking77Classification
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # two threads must not spin while others work

import mteb
import numpy as np
import pandas as pd
import torch
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta

import layerscope
from layerscope.capture import expand_sites
from layerscope.capture.batches import plan_batches
from layerscope.core.templates import get_template
from layerscope.evaluation.encode import EncodePass, encode_template, open_space
from layerscope.evaluation.scoring import quiet_mteb
from layerscope.evaluation.tasks import TaskSpec, reseed, resolve_tasks
from layerscope.models import LoadedModel, load
from layerscope.store.embeddings import EmbeddingStore

NORMS = ("applied", "raw")
KINDS = [f"mean/{norm}" for norm in NORMS]
MAX_LENGTH = 256


class Plain(AbsEncoder):
    """One layer of a model."""

    def __init__(self, vectors: np.ndarray, row: dict[str, int]) -> None:
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={"name": "plain/layer", "revision": "1"}
        )
        self.vectors, self.row = vectors, row

    def encode(self, inputs: Any, **_: Any) -> np.ndarray:
        """Vectors of the texts that mteb asks for."""
        return self.vectors[[self.row[text] for batch in inputs for text in batch["text"]]]


class Listen(AbsEncoder):
    """Writes down which texts a task encodes."""

    def __init__(self) -> None:
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={"name": "plain/listen", "revision": "1"}
        )
        self.texts: dict[str, None] = {}

    def encode(self, inputs: Any, **_: Any) -> np.ndarray:
        """Noise: nobody reads it."""
        texts = [text for batch in inputs for text in batch["text"]]
        self.texts.update(dict.fromkeys(texts))
        return np.random.default_rng(0).normal(size=(len(texts), 2)).astype(np.float32)


def same_groups(model: LoadedModel, texts: list[str], scratch: Path) -> list[list[str]]:
    """Texts as layerscope's encode pass groups them: in which order and company, nothing else."""
    template = get_template("plain")
    space = open_space(EmbeddingStore(scratch, None), model, template, MAX_LENGTH)
    one = EncodePass(model, template, expand_sites(None, model.anatomy), KINDS, space, MAX_LENGTH)
    order = one.missing(texts)
    groups = []
    for part in (order[span] for span in one.spans(len(order))):
        lengths = [
            len(encoded.ids) for encoded in encode_template(model, template, part, MAX_LENGTH)
        ]
        groups += [
            [part[i] for i in group] for group in plan_batches(lengths, one.encoder.runner.tokens)
        ]
    return groups


def plain_means(name: str, texts: list[str], batch_size: int | None, file: Path) -> None:
    """Mean-pooled states (layers, norms, texts, D) of a Llama-like model, straight from
    transformers, into a file."""
    loaded = load(name)
    model, tokenizer = loaded.module, loaded.tokenizer
    tokenizer.padding_side = "right"
    row = {text: i for i, text in enumerate(texts)}
    if batch_size is None:
        with tempfile.TemporaryDirectory() as scratch:
            groups = same_groups(loaded, texts, Path(scratch))
    else:
        order = sorted(texts, key=len)
        groups = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    layers = model.config.num_hidden_layers + 1
    shape = (layers, len(NORMS), len(texts), model.config.hidden_size)
    out = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
    caught: list[torch.Tensor] = []
    # the last hidden state is normed already; its raw form is what goes into the norm
    model.norm.register_forward_pre_hook(lambda _module, args: caught.append(args[0]))
    with torch.no_grad():
        for group in groups:
            items = [row[text] for text in group]
            given = tokenizer(
                group, return_tensors="pt", padding=True, truncation=True, max_length=MAX_LENGTH
            )
            caught.clear()
            states = list(model(**given, output_hidden_states=True).hidden_states)
            states[-1] = caught[0]
            mask = given["attention_mask"][..., None].double()
            for layer, state in enumerate(states):
                for n, kept in enumerate((model.norm(state), state)):
                    out[layer, n, items] = ((kept * mask).sum(1) / mask.sum(1)).numpy()
    out.flush()


_TASKS: dict[str, Any] = {}


def plain_score(spec: TaskSpec, file: Path, texts: list[str], layer: int, norm: int) -> float:
    """mteb's main score of one layer."""
    torch.set_num_threads(1)
    quiet_mteb()
    if spec.name not in _TASKS:
        _TASKS.clear()
        _TASKS[spec.name] = spec.load()
    task = _TASKS[spec.name]
    reseed(task)
    vectors = np.array(np.load(file, mmap_mode="r")[layer, norm])
    encoder = Plain(vectors, {text: i for i, text in enumerate(texts)})
    found = mteb.evaluate(encoder, task, cache=None, show_progress_bar=False, co2_tracker=False)
    return float(found.task_results[0].get_score())


def main() -> None:
    """Score both ways and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--tasks", default="STSBenchmark,Banking77Classification")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--layers", help="only these, for example 0,10,20,30 (default: all)")
    parser.add_argument(
        "--plain-batch-size",
        type=int,
        help="texts per batch of the plain encoder (default: layerscope's)",
    )
    parser.add_argument("--work", type=Path, help="keep the runs here; a second start goes on")
    args = parser.parse_args()
    work = args.work or Path(tempfile.mkdtemp(prefix="layer-parity-"))
    work.mkdir(parents=True, exist_ok=True)
    names = args.tasks.split(",")
    run = layerscope.evaluate(
        args.model, names, out=work / "run", data_dir=args.data_dir, store=work / "store", sample=args.limit,
        readouts=[f"plain/mean/{norm}" for norm in NORMS], offline=True,
        layers=[int(layer) for layer in args.layers.split(",")] if args.layers else None,
    )  # fmt: skip
    ours = run.scores.set_index(["task", "layer", "final_norm"])["score"]
    worst = 0.0
    specs = resolve_tasks(names, data_dir=args.data_dir, sample=args.limit, offline=True)
    listener = Listen()
    quiet_mteb()
    for spec in specs:
        mteb.evaluate(listener, spec.load(), cache=None, show_progress_bar=False, co2_tracker=False)
    texts, file = list(listener.texts), work / f"plain-{args.plain_batch_size or 'same'}.npy"
    if not file.exists():
        plain_means(args.model, texts, args.plain_batch_size, file.with_suffix(".part"))
        file.with_suffix(".part").rename(file)
    for spec in specs:
        os.environ["OMP_NUM_THREADS"] = "1"
        layers = sorted({layer for task, layer, _ in ours.index if task == spec.name})
        places = [(layer, n) for layer in layers for n in range(len(NORMS))]
        with ProcessPoolExecutor(
            os.cpu_count(), mp_context=multiprocessing.get_context("spawn")
        ) as pool:
            futures = [pool.submit(plain_score, spec, file, texts, *place) for place in places]
            plain = [future.result() for future in futures]
        table = pd.DataFrame(
            {
                "layer": [layer for layer, _ in places],
                "norm": [NORMS[n] for _, n in places],
                "plain": [100 * score for score in plain],
                "layerscope": [100 * ours[spec.name, layer, NORMS[n]] for layer, n in places],
            }
        )
        table["difference"] = table["layerscope"] - table["plain"]
        print(f"\n{spec.name}")
        print(table.to_string(index=False, float_format="%.4f"), flush=True)
        worst = max(worst, float(table["difference"].abs().max()))
    print(f"\nlargest difference: {worst:.5f} points")


if __name__ == "__main__":
    main()
