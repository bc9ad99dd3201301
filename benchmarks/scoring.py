"""What scoring every layer costs by mteb and by `--scoring device`, on one CPU and beside the
encoding; and how they agree.

CPU seconds, so that others on the machine do not count, with one thread, as a scoring worker has
it. Encoding is timed on some of its chunks of texts, at all layers and under all readouts. Scoring
is timed at some layers under all readouts, on the vectors of the whole task. Both are scaled up to
all texts and all layers. Vectors of the whole task are encoded first and kept in `--work`; layers
near the input are quick, because passes end after the last one that is asked for.

    python benchmarks/scoring.py --data-dir DIR
    python benchmarks/scoring.py --data-dir DIR --tasks all --limit 300 --layers 2,6 --dtype
    bfloat16 --sample 0 --out FILE.csv
    python benchmarks/scoring.py --data-dir DIR --tasks STSBenchmark --readouts plain/mean/applied
    --layers all --sample 0 \
        --converge 1000 --float16     # beside fits that converged, and vectors stored in two bytes
    python benchmarks/scoring.py --data-dir DIR --profile 25     # the functions that take longest, of one more score per task
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import json
import os
import pstats
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait must not count as work

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits

from layerscope.capture import expand_sites
from layerscope.core.readout import Readout, kinds_of, parse_readouts
from layerscope.core.statistics import spearman
from layerscope.core.templates import get_template
from layerscope.evaluation import scoring
from layerscope.evaluation.device_scoring import DeviceScoring
from layerscope.evaluation.encode import EncodePass, open_space, space_description
from layerscope.evaluation.problems import parts_of
from layerscope.evaluation.run import gain_table, score_table
from layerscope.evaluation.scoring import (
    ScoreJob,
    ScoringContext,
    collect,
    job_vectors,
    quiet_mteb,
    read_items,
    run_job,
    task_rows,
)
from layerscope.evaluation.tasks import TaskSpec, reseed, resolve_tasks
from layerscope.models import LoadedModel, load
from layerscope.progress import progress_bar
from layerscope.store.embeddings import EmbeddingStore, text_key
from layerscope_gpu.scoring.regression import Classification, classify

MAX_LENGTH = 256
READOUTS = [
    f"plain/{pooling}/{norm}"
    for pooling in ("mean", "wmean", "last")
    for norm in ("applied", "raw")
]

# part of the time: functions, as module:name
PARTS = {
    "fits": ["sklearn.linear_model:LogisticRegression.fit"],
    "predictions": ["sklearn.linear_model:LogisticRegression.predict"],
    "k-means": ["sklearn.cluster:MiniBatchKMeans.fit"],
    "metrics": [
        "mteb.abstasks.classification:AbsTaskClassification._calculate_scores",
        "mteb.abstasks.clustering_legacy:AbsTaskClusteringLegacy._compute_metrics",
    ],
    "drawing training texts": [
        "mteb.abstasks.classification:AbsTaskClassification._undersample_data"
    ],
    "reading vectors": ["layerscope.evaluation.scoring:_lookup"],
    "finding texts": ["layerscope.evaluation.mteb_models:LayerView.encode"],
    "writing results": [
        "mteb.cache.result_cache:ResultCache.save_to_cache",
        "mteb.abstasks.abstask:AbsTask._save_task_predictions",
        "layerscope.evaluation.run:ItemScores.save",
        "layerscope.store.checked:write_json",
    ],
}


class Clock:
    """CPU seconds by part; what is inside another part counts for the inner one alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._stack: list[str] = []
        self._since = time.process_time()

    def _switch(self) -> None:
        now = time.process_time()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what runs inside as this part."""
        self._switch()
        self._stack.append(name)
        self.calls[name] += 1
        try:
            yield
        finally:
            self._switch()
            self._stack.pop()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count the functions of `PARTS` while inside."""
        undo: list[Callable[[], None]] = []
        for part, places in PARTS.items():
            for place in places:
                module, _, path = place.partition(":")
                *owners, name = path.split(".")
                owner: Any = importlib.import_module(module)
                for step in owners:
                    owner = getattr(owner, step)
                undo.append(self._watch(owner, name, part))
        try:
            yield
        finally:
            for restore in undo:
                restore()

    def _watch(self, owner: Any, name: str, part: str) -> Callable[[], None]:
        original = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(part):
                return original(*args, **kwargs)

        setattr(owner, name, timed)
        return lambda: setattr(owner, name, original)


def encoding_seconds(
    model: LoadedModel, texts: list[str], readouts: list[Readout], sample: int
) -> float:
    """CPU seconds to encode texts at all layers under all readouts.

    Timed are some of the chunks that an evaluation encodes, of all lengths; scaled by tokens.
    """
    total = 0.0
    sites = expand_sites(None, model.anatomy)
    for name in dict.fromkeys(readout.template for readout in readouts):
        template = get_template(name)
        kinds = kinds_of([readout for readout in readouts if readout.template == name])
        with tempfile.TemporaryDirectory() as folder:
            space = open_space(EmbeddingStore(Path(folder), None), model, template, MAX_LENGTH)
            one = EncodePass(model, template, sites, kinds, space, MAX_LENGTH)
            missing = one.missing(texts)
            parts = [missing[span] for span in one.spans(len(missing))]
            tokens = [one.encoder.computed(one.encoder.read(part)) for part in parts]
            chosen = (
                [int((i + 0.5) * len(parts) / sample) for i in range(sample)]
                if sample < len(parts)
                else range(len(parts))
            )
            start = time.process_time()
            for i in chosen:
                one.add(parts[i], one.encoder.run(one.encoder.read(parts[i]), lambda count: None))
            seconds = time.process_time() - start
            total += seconds * sum(tokens) / sum(tokens[i] for i in chosen)
    return total


def vectors_of(
    model: LoadedModel, texts: list[str], readouts: list[Readout], layers: list[int], store: Path
) -> None:
    """Encode the texts at some layers, where the store does not have them yet."""
    sites = [site for site in expand_sites(None, model.anatomy) if site.layer in layers]
    for name in dict.fromkeys(readout.template for readout in readouts):
        template = get_template(name)
        kinds = kinds_of([readout for readout in readouts if readout.template == name])
        space = open_space(EmbeddingStore(store, None), model, template, MAX_LENGTH)
        one = EncodePass(model, template, sites, kinds, space, MAX_LENGTH)
        one.run(one.missing(texts))


def halve(
    model: LoadedModel, texts: list[str], readouts: list[Readout], layers: list[int], store: Path
) -> None:
    """Store the vectors again, in float16."""
    keys, spaces = [text_key(text) for text in texts], EmbeddingStore(store, None)
    sites = [site.name for site in expand_sites(None, model.anatomy) if site.layer in layers]
    for name in dict.fromkeys(readout.template for readout in readouts):
        old, new = (
            open_space(spaces, model, get_template(name), MAX_LENGTH, dtype)
            for dtype in ("float32", "float16")
        )
        kinds = kinds_of([readout for readout in readouts if readout.template == name])
        numbers = {name: old.read_numbers(keys, name) for name in ("tokens", "truncated")}
        new.add(
            keys,
            {kind: np.stack([old.read(keys, kind, site) for site in sites]) for kind in kinds},
            sites,
            numbers,
        )


def context_of(
    model: LoadedModel, readouts: list[Readout], run: Path, store: Path, dtype: str = "float32"
) -> ScoringContext:
    """What the scoring workers of an evaluation are given."""
    names = dict.fromkeys(readout.template for readout in readouts)
    spaces = tuple(
        (n, json.dumps(space_description(model.identity, get_template(n), MAX_LENGTH)), dtype)
        for n in names
    )
    return ScoringContext(str(run), str(store), model.name, None, model.width, spaces)


def score(
    context: ScoringContext, jobs: list[ScoreJob], clock: Clock, blocks: int
) -> list[dict[str, Any]]:
    """Score jobs with one thread, then compute their gains."""
    with threadpool_limits(1), clock.watching():
        results = []
        for job in jobs:
            start = time.process_time()
            with clock.part("everything else"):
                results.append(run_job(context, job) | {"seconds": time.process_time() - start})
        with clock.part("gains and intervals"):
            places = {(job.task.name, job.readout, job.layer): job for job in jobs}
            gain_table(
                score_table(results, blocks),
                lambda place, *part: read_items(context, places[place], *part),
            )
    bad = [result for result in results if result["status"] != "scored"]
    assert not bad, bad[0]
    return results


def ours(
    context: ScoringContext, jobs: list[ScoreJob], places: int
) -> tuple[float, list[float], float | None]:
    """CPU seconds of `--scoring device` for all places, scores of the jobs, and the share of fits
    that converged.

    One job and then all are scored: what is done once per task is told from what every score costs.
    """
    took = []
    with threadpool_limits(1):
        torch.set_num_threads(1)
        for some in (jobs[:1], jobs):
            scorer = DeviceScoring(torch.device("cpu"), 0)
            start = time.process_time()
            results = list(scorer.run(replace(context, scoring="device"), some))
            took.append(time.process_time() - start)
    facts = scorer.facts(results)
    assert not facts["by_mteb"], facts
    each = (took[1] - took[0]) / (len(jobs) - 1)
    found = {(r["site"], Readout.from_row(r).name): r["scores"][0]["score"] for r in results}
    scores = [found[job.site, job.readout.name] for job in jobs]
    return took[0] + each * (places - 1), scores, facts["fits_converged"].get(jobs[0].task.name)


def converged_scores(
    context: ScoringContext, jobs: list[ScoreJob], steps: int
) -> list[float] | None:
    """Accuracies of fits that went on until they converged."""
    task = jobs[0].task.load()
    reseed(task)
    (part,) = parts_of(task, task_rows(context, jobs[0].task))
    if not isinstance(part.problem, Classification):
        return None
    vectors = [torch.as_tensor(job_vectors(context, job))[None] for job in jobs]
    return [float(classify(one, part.problem, max_steps=steps).scores[0]) for one in vectors]


def apart(name: str, a: list[float], b: list[float]) -> str:
    """How two lists of scores differ, in points."""
    gap = 100 * (np.array(a) - np.array(b))
    half = 1.96 * gap.std(ddof=1) / len(gap) ** 0.5
    order = float(spearman(a, b))
    return f"    {name:<34}mean {gap.mean():+.3f} ± {half:.3f} points, largest {np.abs(gap).max():.3f}, ρ {order:.4f}"


def profiled(context: ScoringContext, job: ScoreJob, lines: int) -> None:
    """Print the functions of one more score that take longest."""
    job.file(context).unlink()
    profile = cProfile.Profile(time.process_time)
    with threadpool_limits(1):
        profile.enable()
        run_job(context, job)
        profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--tasks", default="Banking77Classification,StackExchangeClustering")
    parser.add_argument("--readouts", default=",".join(READOUTS))
    parser.add_argument("--layers", default="2,6,10", help="the layers that are scored")
    parser.add_argument("--limit", type=int, help="items per task (default: all)")
    parser.add_argument(
        "--sample",
        type=int,
        default=3,
        help="chunks of texts (of some 25) whose encoding is timed; 0: do not",
    )
    parser.add_argument("--work", type=Path, help="keep vectors and results here")
    parser.add_argument("--dtype", default="float32", help="of the model that encodes")
    parser.add_argument(
        "--converge",
        type=int,
        default=0,
        metavar="STEPS",
        help="also fit classifiers for so many steps",
    )
    parser.add_argument(
        "--float16", action="store_true", help="score vectors that were stored as float16, too"
    )
    parser.add_argument("--out", type=Path, help="write every score here")
    parser.add_argument("--profile", type=int, default=0, metavar="LINES")
    args = parser.parse_args()
    work = args.work or Path(tempfile.mkdtemp(prefix="layerscope-scoring-"))
    work.mkdir(parents=True, exist_ok=True)
    every = sorted(path.name for path in args.data_dir.iterdir())
    names = every if args.tasks == "all" else args.tasks.split(",")
    model = load(args.model, device="cpu", dtype=args.dtype)
    layers = (
        list(range(model.n_blocks + 1))
        if args.layers == "all"
        else [int(layer) for layer in args.layers.split(",")]
    )
    readouts = parse_readouts(args.readouts.split(","), False, True)
    sites = {site.layer: site.name for site in expand_sites(None, model.anatomy)}
    specs: list[TaskSpec] = resolve_tasks(
        names, data_dir=args.data_dir, sample=args.limit, offline=True
    )
    quiet_mteb()
    places = len(sites) * len(readouts)
    print(
        f"{args.model}: {len(sites)} layers × {len(readouts)} readouts = {places} scores per task; CPU seconds"
    )
    sums, table = [0.0, 0.0, 0.0], []
    for spec in specs:
        run = Path(tempfile.mkdtemp(prefix="run-", dir=work))
        scoring.clear_caches()
        with progress_bar(False) as bar:
            texts = collect([spec], run, bar)[0][spec.name]
        vectors_of(model, texts, readouts, layers, work / "store")
        print(f"\n{spec.name}: {len(texts)} distinct texts", flush=True)
        encoding = 0.0
        if args.sample:
            torch.set_num_threads(1)
            encoding_seconds(model, texts[:32], readouts, 4)  # warm up
            encoding = encoding_seconds(model, texts, readouts, args.sample)
            print(
                f"  encoding, all layers and readouts      {encoding:8.0f}   ({args.sample} of its chunks, scaled by tokens)",
                flush=True,
            )
        context = context_of(model, readouts, run, work / "store")
        jobs = [
            ScoreJob(spec, readout, sites[layer], layer) for readout in readouts for layer in layers
        ]
        run_job(
            context, jobs[0]
        )  # warm up: the task and the store's index are loaded once per worker
        jobs[0].file(context).unlink()
        clock = Clock()
        results = score(context, jobs, clock, len(sites) - 1)
        total = sum(clock.seconds.values())
        for part, seconds in sorted(clock.seconds.items(), key=lambda item: -item[1]):
            each = seconds / len(jobs)
            print(
                f"    {part:<34}{each * places:10.1f}   {each:8.3f} per score   {seconds / total:6.1%}"
            )
        whole = total / len(jobs) * places
        ratio = f" = {whole / encoding:.2f} × the encoding" if encoding else ""
        print(
            f"  scoring, all layers and readouts       {whole:8.0f}   ({len(jobs)} scores, scaled){ratio}",
            flush=True,
        )
        seconds_ours, scores, ended = ours(context, jobs, places)
        by_mteb = [result["scores"][0]["score"] for result in results]
        whole -= clock.seconds["gains and intervals"] / len(jobs) * places  # both need them
        print(
            f"  --scoring device                       {seconds_ours:8.0f}   = {seconds_ours / whole:.2f} × mteb's"
        )
        print(apart("device − mteb", scores, by_mteb), flush=True)
        rows: dict[str, Any] = {
            "task": spec.name,
            "layer": [j.layer for j in jobs],
            "readout": [j.readout.name for j in jobs],
        }
        rows |= {
            "mteb": by_mteb,
            "device": scores,
            "mteb_seconds": whole / places,
            "device_seconds": seconds_ours / places,
        }
        if ended is not None:
            print(f"    fits that converged in 100 steps: {ended:.0%}")
        if args.converge and (final := converged_scores(context, jobs, args.converge)) is not None:
            rows["converged"] = final
            print(apart("mteb − converged", by_mteb, final))
            print(apart("device − converged", scores, final), flush=True)
        if args.float16:
            halve(model, texts, readouts, layers, work / "store")
            halved = context_of(model, readouts, run / "float16", work / "store", "float16")
            shutil.copytree(run / "texts", run / "float16" / "texts")
            half = [run_job(halved, job)["scores"][0]["score"] for job in jobs]
            rows["mteb_float16"] = half
            print(apart("mteb, stored as float16 − float32", half, by_mteb), flush=True)
        table.append(pd.DataFrame(rows))
        sums = [sums[0] + encoding, sums[1] + whole, sums[2] + seconds_ours]
        for result in results:
            shown = " ".join(repr(entry["score"]) for entry in result["scores"])
            print(
                f"    {Readout.from_row(result).name:<34}{result['layer']:>4}  {result['seconds']:6.2f} s   {shown}"
            )
        if args.profile:
            profiled(context, jobs[0], args.profile)
    print(
        f"\ntogether: mteb {sums[1]:.0f}, device {sums[2]:.0f} = {sums[2] / sums[1]:.2f} × mteb's"
    )
    if args.out:
        pd.concat(table).to_csv(args.out, index=False, float_format="%.6g")
    if args.sample:
        print(
            f"together: encoding {sums[0]:.0f}, scoring {sums[1]:.0f} = {sums[1] / sums[0]:.2f} × the encoding"
        )


if __name__ == "__main__":
    main()
