"""What `evaluate --scoring device` costs on a GPU: the paper's 32 tasks at their real sizes, with
made-up texts and vectors.

Needs torch, numpy, transformers and this repository; neither mteb nor datasets. `evaluate_whole.py`
runs the command itself.

    python benchmarks/scoring_shapes.py paper                       # 32 tasks, 25 layers of 1,024 numbers, made-up vectors
    python benchmarks/scoring_shapes.py tenth --tenth 0.1           # encode and score them (Pythia-410M's shape)
    python benchmarks/scoring_shapes.py plan                        # in how many turns they go through a store of 50 GB
    python benchmarks/scoring_shapes.py gains                       # gains and intervals of fifteen tasks, made-up items
    python benchmarks/scoring_shapes.py fits                        # single fits beside scikit-learn's, CPU seconds, one thread

`paper` times moving vectors to the device and scoring them. Of tasks with more than 40,000 texts
`--layers` layers are scored and the time is scaled to 25. `tenth` encodes made-up texts of the real
average length into a store of float16 vectors, reads them back and scores them; classification and
STS tasks are run whole, since their fits do not shrink with their texts, and the times of the
others are scaled. It also says what `evaluate` would have told after the smallest task of every
kind.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layerscope_gpu.scoring.kmeans import Clustering, cluster
from layerscope_gpu.scoring.ranking import MEASURES, Pairs, Ranking, pair_scores, rank_scores
from layerscope_gpu.scoring.regression import Classification, classify, fit

sys.path.insert(0, str(Path(__file__).parent))  # for `gpu`, wherever this is run from

LAYERS, WIDTH, MAX_LENGTH = 25, 1024, 256
READOUTS = [
    f"plain/{pooling}/{norm}"
    for pooling in ("mean", "wmean", "last")
    for norm in ("applied", "raw")
]
KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Classification, Clustering, Pairs, Ranking)
}

# sizes by mteb's own statistics of the splits; numbers of sets by their data
CLASSIFIED = {  # labels, texts per label, test texts
    "AmazonCounterfactual": (2, 32, 670), "AmazonReviews": (5, 8, 5000), "Banking77": (77, 8, 3080), "Emotion": (6, 16, 2000),
    "MTOPDomain": (11, 8, 4386), "MTOPIntent": (102, 8, 4386), "MassiveIntent": (59, 8, 2974), "MassiveScenario": (18, 8, 2974),
    "ToxicConversations": (2, 16, 2048), "TweetSentimentExtraction": (3, 32, 3534),
}  # fmt: skip
CLUSTERED = {  # entries, distinct texts, sets, labels
    "ArxivS2S": (732723, 628078, 31, 180), "BiorxivS2S": (75000, 41555, 10, 26), "MedrxivS2S": (37500, 16264, 10, 51),
    "Reddit": (420464, 64337, 25, 50), "StackExchange": (373850, 277050, 25, 121), "TwentyNewsgroups": (59545, 5242, 10, 20),
}  # fmt: skip
PAIRED = {
    "SprintDuplicateQuestions": (101000, 8932),
    "TwitterSemEval2015": (16777, 17828),
    "TwitterURLCorpus": (51534, 45633),
}
RANKED = {  # queries, their distinct texts, documents, pairs, groups of queries
    "AskUbuntuDupQuestions": (361, 360, 7220, 7220, 361), "MindSmallReranking": (2362514, 37162, 5277, 97008807, 70938),
    "SciDocsRR": (3978, 3293, 118600, 118600, 3978), "StackOverflowDupQuestions": (2992, 2992, 89470, 89470, 2992),
}  # fmt: skip
SIMILAR = {
    "BIOSSES": 100, "SICK-R": 9927, "STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186, "STS17": 250,
    "STSBenchmark": 1379,
}  # fmt: skip

# mean characters of a text, by mteb's own statistics
CHARACTERS = {
    "AmazonCounterfactual": 106, "AmazonReviews": 204, "Banking77": 54, "Emotion": 97, "MTOPDomain": 37, "MTOPIntent": 37,
    "MassiveIntent": 35, "MassiveScenario": 35, "ToxicConversations": 289, "TweetSentimentExtraction": 68, "ArxivS2S": 74,
    "BiorxivS2S": 102, "MedrxivS2S": 115, "Reddit": 65, "StackExchange": 57, "TwentyNewsgroups": 32,
    "SprintDuplicateQuestions": 55, "TwitterSemEval2015": 46, "TwitterURLCorpus": 88, "AskUbuntuDupQuestions": 52,
    "MindSmallReranking": 69, "SciDocsRR": 71, "StackOverflowDupQuestions": 45, "BIOSSES": 156, "SICK-R": 46, "STS12": 65,
    "STS13": 54, "STS14": 54, "STS15": 58, "STS16": 65, "STS17": 40, "STSBenchmark": 54,
}  # fmt: skip
PER_TOKEN = 4.0  # characters


def paper_problems(
    tenth: float, all_large: bool = False
) -> dict[str, tuple[Any, int, np.ndarray | None]]:
    """Each task's problem, how many texts it has, and their labels where these shape the
    vectors."""
    rng = np.random.default_rng(0)
    out: dict[str, tuple[Any, int, np.ndarray | None]] = {}
    for name, (labels, each, test) in CLASSIFIED.items():
        pool, size = 10 * labels * each, labels * each
        gold = np.concatenate([np.arange(pool) % labels, rng.integers(0, labels, test)])
        draws = tuple(np.arange(i * size, (i + 1) * size) for i in range(10))
        out[name] = (
            Classification(
                draws, tuple(gold[d] for d in draws), np.arange(pool, pool + test), gold[pool:]
            ),
            len(gold),
            gold,
        )
    for name, (entries, texts, sets, labels) in CLUSTERED.items():
        entries, texts = int(entries * tenth), int(texts * tenth)
        gold = rng.integers(0, labels, texts)
        rows = tuple(rng.integers(0, texts, entries // sets) for _ in range(sets))
        codes = tuple(np.unique(gold[some], return_inverse=True)[1] for some in rows)
        counts = tuple(int(code.max()) + 1 for code in codes)
        out[name] = Clustering(rows, codes, counts, 500, 42), texts, gold
    for name, (pairs, texts) in PAIRED.items():
        pairs, texts = (int(pairs * tenth), int(texts * tenth)) if all_large else (pairs, texts)
        first, second = rng.integers(0, texts, (2, pairs))
        out[name] = (
            Pairs(first, second, rng.integers(0, 2, pairs).astype(float), True, MEASURES),
            texts,
            None,
        )
    for name, (queries, distinct, documents, pairs, groups) in RANKED.items():
        if queries > 10**6:
            queries, pairs, groups = int(queries * tenth), int(pairs * tenth), int(groups * tenth)
        if all_large:
            distinct, documents = max(4, int(distinct * tenth)), max(4, int(documents * tenth))
            if queries < 10**5:
                queries, pairs = max(4, int(queries * tenth)), max(20, int(pairs * tenth))
                groups = queries
        places = np.stack(
            [rng.integers(0, documents, pairs), np.sort(rng.integers(0, queries, pairs))]
        )
        group = (
            np.sort(rng.integers(0, groups, queries)) if groups < queries else np.arange(queries)
        )
        judged = np.stack([np.repeat(np.arange(group.max() + 1), 2), rng.integers(0, documents, 2 * (group.max() + 1)),
                           np.ones(2 * (group.max() + 1), int)])  # fmt: skip
        asked = rng.integers(0, distinct, queries)
        order = rng.permutation(documents)
        ranking = Ranking(
            asked, distinct + np.arange(documents), places, group, judged.astype(float), order
        )
        out[name] = ranking, distinct + documents, None
    for name, pairs in SIMILAR.items():
        out[name] = (
            Pairs(np.arange(pairs), pairs + np.arange(pairs), rng.normal(size=pairs).round(1)),
            2 * pairs,
            None,
        )
    return out


def plan() -> None:
    """In how many turns the 32 tasks go through a store of 50 GB, and of 10 GB."""
    from types import SimpleNamespace

    from layerscope.core.readout import Readout
    from layerscope.evaluation.plan import EvaluationPlan

    counts = {name: 10 * labels * each + test for name, (labels, each, test) in CLASSIFIED.items()}
    counts |= {name: texts for name, (_, texts, _, _) in CLUSTERED.items()} | {
        name: texts for name, (_, texts) in PAIRED.items()
    }
    counts |= {name: queries + documents for name, (_, queries, documents, _, _) in RANKED.items()}
    counts |= {name: 2 * pairs for name, pairs in SIMILAR.items()}
    ends = np.cumsum([0, *counts.values()]).tolist()
    texts: Any = {
        name: range(start, end) for name, start, end in zip(counts, ends, ends[1:], strict=False)
    }
    model, sites = SimpleNamespace(width=WIDTH), tuple(range(LAYERS))
    first = [
        min(some, key=lambda name: counts[name])
        for some in (CLASSIFIED, CLUSTERED, PAIRED, RANKED, SIMILAR)
    ]
    for dtype in ("float32", "float16"):
        one = EvaluationPlan(model, (), (Readout(),), sites, MAX_LENGTH, 0, store_dtype=dtype)  # type: ignore[arg-type]
        for budget in (50, 10):
            turns = one.turns(texts, budget * 10**9, first)
            shown = ", ".join(
                f"{len(t.tasks)} x {len(t.sites)} layers {t.bytes / 1e9:.1f} GB" for t in turns
            )
            print(f"{ends[-1]} texts, {dtype}, {budget} GB: {len(turns)} turns ({shown})")


def fits() -> None:
    """CPU seconds of one logistic regression, made-up vectors of two tasks' shapes, ours four at a
    time."""
    import warnings

    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for name, n, labels in (("Banking77", 616, 77), ("MassiveScenario", 144, 18)):
        gold = np.arange(n) % labels
        rng = np.random.default_rng(0)
        spread, centers = 8 / np.sqrt(1 + np.arange(576)), rng.normal(size=(labels, 576)) / 2
        x = (
            (centers[gold] + rng.normal(size=(n, 576))) * spread + 5 * rng.normal(size=576)
        ).astype(np.float32)
        with threadpool_limits(1):
            start = time.process_time()
            LogisticRegression(max_iter=100).fit(x, gold)
            wanted = time.process_time() - start
        start = time.process_time()
        _, ended = fit(
            torch.as_tensor(x).repeat(4, 1, 1), torch.as_tensor(gold).repeat(4, 1), labels
        )
        own = (time.process_time() - start) / 4
        print(
            f"{name}: scikit-learn {wanted:.3f} s, ours {own:.3f} s = {own / wanted:.2f} x, {ended.steps[0]} steps"
        )


def gains() -> None:
    """Seconds for the gains of 31 layers x 6 readouts on the fifteen tasks' numbers of items."""
    import pandas as pd

    from layerscope.core.readout import Readout, parse_readouts
    from layerscope.evaluation.run import ItemScores, gain_table

    sizes = {name: ("spearman", SIMILAR[name]) for name in SIMILAR if name.startswith("STS")}
    sizes |= {
        name: ("mean", CLASSIFIED[name][2]) for name in ("Banking77", "Emotion", "MassiveScenario")
    }
    sizes |= {
        "Reddit": ("mean", 10),
        "StackExchange": ("mean", 10),
        "TwentyNewsgroups": ("mean", 10),
    }
    sizes |= {"TwitterSemEval2015": ("ap", 8000), "WikiQA": ("mean", 240)}
    readouts = parse_readouts(READOUTS, False, True)
    rng = np.random.default_rng(0)
    gold = {
        name: rng.uniform(0, 5, n).round(1) if rule == "spearman" else rng.integers(0, 2, n) + 0.0
        for name, (rule, n) in sizes.items()
    }
    places = [
        (name, readout, layer) for name in sizes for readout in readouts for layer in range(31)
    ]
    rows = [{"task": name, "split": "test", "subset": "", "layer": layer, "site": str(layer), "score": 0.5, **readout.columns}
            for name, readout, layer in places]  # fmt: skip
    noise = {name: rng.normal(size=n) for name, (_, n) in sizes.items()}

    def items(place: tuple[str, Readout, int], split: str, subset: str) -> ItemScores:
        rule, n = sizes[place[0]]
        values = noise[place[0]] + np.random.default_rng(place[2]).normal(size=n) / 3
        return ItemScores(rule, values, None if rule == "mean" else gold[place[0]])  # type: ignore[arg-type]

    start, cpu = time.perf_counter(), time.process_time()
    table = gain_table(pd.DataFrame(rows), items)
    print(
        f"{len(table)} gains: {time.perf_counter() - start:.1f} s, {time.process_time() - cpu:.1f} s of CPU"
    )


def score(vectors: torch.Tensor, problem: Any, memory: int) -> np.ndarray:
    """Scores of layers."""
    if isinstance(problem, Classification):
        return classify(vectors, problem, memory=memory).scores
    if isinstance(problem, Clustering):
        return cluster(vectors, problem, memory=memory).mean(1)
    return (pair_scores if isinstance(problem, Pairs) else rank_scores)(vectors, problem)[0]


def made_up(texts: int, layers: int, gold: np.ndarray | None, device: torch.device) -> np.ndarray:
    """Vectors with a long mean, a falling spectrum and, where there are labels, clusters; in the
    host's memory."""
    out = np.empty((layers, texts, WIDTH), np.float32)
    spread = 4 / torch.sqrt(1 + torch.arange(WIDTH, device=device))
    for i in range(layers):
        for start in range(0, texts, 2**16):
            part = torch.randn(min(2**16, texts - start), WIDTH, device=device)
            if gold is not None:
                torch.manual_seed(i)
                centers = torch.randn(int(gold.max()) + 1, WIDTH, device=device)
                torch.manual_seed(start + i)
                part += 0.5 * centers[torch.as_tensor(gold[start : start + 2**16], device=device)]
            out[i, start : start + 2**16] = (part * spread + 3).cpu().numpy()
    return out


def seconds(action: Any, device: torch.device) -> tuple[float, Any]:
    """How long an action takes, and what it returns."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = action()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def on_device(vectors: np.ndarray, problem: Any, device: torch.device, memory: int) -> np.ndarray:
    """Move layers to the device, as many as `memory` holds at a time, and score them."""
    at_once = max(1, memory // vectors[0].nbytes)
    parts = [torch.as_tensor(vectors[i : i + at_once]).to(device) for i in range(0)]
    found = []
    for i in range(0, len(vectors), at_once):
        parts = [torch.as_tensor(vectors[i : i + at_once]).to(device)]
        found.append(score(parts[0], problem, memory))
    return np.concatenate(found)


def paper(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Every task of the paper at its size."""
    rows, total = {}, 0.0
    warm = paper_problems(0.01)["Emotion"]
    on_device(made_up(warm[1], 2, warm[2], device), warm[0], device, args.memory)
    for name, (problem, texts, gold) in paper_problems(args.tenth).items():
        if args.only and name not in args.only:
            continue
        layers = LAYERS if texts <= 40000 and name != "MindSmallReranking" else args.layers
        vectors = made_up(texts, layers, gold, device)
        taken, scores = seconds(
            lambda v=vectors, p=problem: on_device(v, p, device, args.memory), device
        )
        large = args.tenth < 1 and (name in CLUSTERED or name == "MindSmallReranking")
        whole = taken * LAYERS / layers / (args.tenth if large else 1)
        total += whole
        rows[name] = {
            "texts": texts,
            "layers": layers,
            "seconds": taken,
            "for_all": whole,
            "mean_score": float(scores.mean()),
        }
        print(
            f"{name:28}{texts:8} texts {layers:3} layers {taken:8.2f} s, all {LAYERS}: {whole:8.1f} s",
            flush=True,
        )
    print(f"32 tasks, {LAYERS} layers x {WIDTH}: {total:.0f} s = {total / 60:.1f} minutes")
    return {"tasks": rows, "seconds": total, "share_of_large_tasks": args.tenth}


def made_up_texts(name: str, count: int) -> list[str]:
    """Distinct texts of a task's average length, some far longer."""
    from gpu import make_texts

    rng = np.random.default_rng(len(name))
    tokens = rng.lognormal(-0.18, 0.6, count) * CHARACTERS[name] / PER_TOKEN  # a mean of one
    words = " ".join(make_texts(200, 300)).split(" ")
    starts, ends = (
        rng.integers(0, len(words) - 300, count).tolist(),
        np.clip(tokens - 4, 1, 290).astype(int).tolist(),
    )
    return [
        f"{i} {' '.join(words[a : a + n])}"
        for i, (a, n) in enumerate(zip(starts, ends, strict=True))
    ]


def said_before(
    rows: dict[str, Any], problems: dict[str, tuple[Any, int, np.ndarray | None]]
) -> tuple[float, float]:
    """What all scores take by those of the smallest task of every kind, and by their own; as
    `evaluate` tells it."""
    from layerscope.evaluation.steps import Size, seconds_of

    kinds: list[Any] = [CLASSIFIED, CLUSTERED, PAIRED, RANKED, SIMILAR]
    sizes: dict[str, tuple[Size, float]] = {}
    for name, row in rows.items():
        kind = str(next(i for i, some in enumerate(kinds) if name in some))
        problem = problems[name][0]
        items = sum(map(len, problem.sets)) if isinstance(problem, Clustering) else row["texts"]
        sizes[name] = Size(kind, row["texts"], items), row["scoring"]
    whole = {name: rows[name]["scale"] * size.texts for name, (size, _) in sizes.items()}
    smallest = {sizes[name][0].kind: name for name in sorted(rows, key=lambda name: -whole[name])}
    took = [sizes[name] for name in smallest.values()]
    scaled = [Size(size.kind, int(size.texts * rows[name]["scale"]), int(size.items * rows[name]["scale"]))
              for name, (size, _) in sizes.items()]  # fmt: skip
    return seconds_of(scaled, took) or 0.0, sum(
        rows[name]["scale"] * seconds for name, (_, seconds) in sizes.items()
    )


def tenth(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Encode the 32 tasks' texts at all layers into a store, read them back, score them; tasks one
    after the other."""
    import resource
    import tempfile

    from gpu import SHAPES, build_model, make_texts, make_tokenizer

    from layerscope.capture import expand_sites
    from layerscope.core.readout import kinds_of, parse_readouts
    from layerscope.core.templates import get_template
    from layerscope.evaluation.encode import EncodePass, open_space
    from layerscope.store.embeddings import EmbeddingStore, text_key

    kind, sizes = SHAPES["410m"]
    sizes = (
        sizes
        if not args.tiny
        else {**sizes, "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128}
    )
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = build_model(
        kind, sizes, make_tokenizer(make_texts(500, 60)), dtype, "410m", str(device)
    )
    template, sites, kinds = (
        get_template("plain"),
        expand_sites(None, model.anatomy),
        kinds_of(parse_readouts(None, False, True)),
    )
    print(
        f"{len(sites)} layers x {model.width}, {args.store_dtype}, a share of {args.tenth}",
        flush=True,
    )
    rows: dict[str, Any] = {}
    whole, disk, tokens, memory = [0.0, 0.0], 0, 0, min(args.memory, 2**33)
    problems = paper_problems(args.tenth, True)
    for name in ["Emotion", *(args.only or problems)]:  # the first time warms up and is not counted
        problem, count, _ = problems[name]
        texts = made_up_texts(name, count)
        with tempfile.TemporaryDirectory(dir=args.disk) as folder:
            store = EmbeddingStore(Path(folder), None)
            space = open_space(store, model, template, MAX_LENGTH, args.store_dtype)
            one = EncodePass(model, template, sites, kinds, space, MAX_LENGTH)

            def score_all(one=one, problem=problem, texts=texts) -> None:  # type: ignore[no-untyped-def]
                keys = [text_key(text) for text in texts]
                at_once = max(1, memory // (4 * len(keys) * model.width))
                for i in range(0, len(sites), at_once):
                    read = [
                        one.space.read(keys, kinds[0], site.name) for site in sites[i : i + at_once]
                    ]
                    on_device(np.stack(read), problem, device, memory)

            encoding = seconds(lambda one=one, texts=texts: one.run(one.missing(texts)), device)[0]
            scoring, size = seconds(score_all, device)[0], store.size()
        count_tokens = int(sum(len(row) for row in model.tokenize(texts, MAX_LENGTH).ids))
        scale = 1 if name in CLASSIFIED or name in SIMILAR else 1 / args.tenth
        if "warm" not in rows:
            rows["warm"] = {"encoding": encoding, "scoring": scoring}
            continue
        rows[name] = {
            "texts": count,
            "tokens": count_tokens,
            "encoding": encoding,
            "scoring": scoring,
            "bytes": size,
            "scale": scale,
        }
        whole = [whole[0] + scale * encoding, whole[1] + scale * scoring]
        disk, tokens = disk + int(scale * size), tokens + int(scale * count_tokens)
        print(f"{name:26}{count:7} texts {count_tokens:8} tokens  encoding {encoding:7.2f} s  scoring {scoring:7.2f} s"
              f"  {size / 1e9:6.2f} GB  x {scale:.0f}", flush=True)  # fmt: skip
    measured = [
        sum(row[part] for name, row in rows.items() if name != "warm")
        for part in ("encoding", "scoring")
    ]
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    largest = max(row.get("bytes", 0) * row.get("scale", 0) for row in rows.values()) / 1e9
    print(
        f"measured: encoding {measured[0]:.0f} s, scoring {measured[1]:.0f} s; host {host:.1f} GB"
    )
    print(f"the whole: encoding {whole[0]:.0f} s, scoring {whole[1]:.0f} s, together {sum(whole) / 60:.1f} minutes; "
          f"{tokens / 1e6:.0f} M tokens, {disk / 1e9:.0f} GB in all, largest task {largest:.0f} GB")  # fmt: skip
    said = said_before({name: row for name, row in rows.items() if name != "warm"}, problems)
    print(
        f"by the smallest task of every kind scoring takes {said[0]:.0f} s, by all of them {said[1]:.0f} s"
    )
    return {"tasks": rows, "encoding": whole[0], "scoring": whole[1], "said": said[0], "minutes": sum(whole) / 60,
            "disk_gb": disk / 1e9, "host_gb": host, "share": args.tenth, "store_dtype": args.store_dtype}  # fmt: skip


def pack(name: str, problem: Any, arrays: dict[str, Any], plain: dict[str, dict[str, Any]]) -> None:
    """A problem as named arrays, and what is none."""
    plain[name] = {"kind": type(problem).__name__}
    for field in fields(problem):
        value, key = getattr(problem, field.name), f"{name}|{field.name}"
        if isinstance(value, np.ndarray):
            arrays[key] = value
        elif isinstance(value, tuple) and value and isinstance(value[0], np.ndarray):
            arrays.update({f"{key}|{k}": some for k, some in enumerate(value)})
        else:
            plain[name][field.name] = value


def unpack(arrays: Any, plain: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
    """The problems of each task, from what `pack` made."""
    out: dict[str, list[Any]] = {}
    for name, given in plain.items():
        kind = KINDS[given["kind"]]
        values = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in given.items()
            if key != "kind"
        }
        for field in fields(kind):
            key = f"{name}|{field.name}"
            if key in arrays:
                values[field.name] = arrays[key]
            elif f"{key}|0" in arrays:
                count = sum(some.startswith(f"{key}|") for some in arrays.files)
                values[field.name] = tuple(arrays[f"{key}|{i}"] for i in range(count))
        out.setdefault(name.partition("|")[0], []).append(kind(**values))
    return out


def main() -> None:
    """Measure and print; with --out, also write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["paper", "tenth", "plan", "gains", "fits"])
    parser.add_argument(
        "--layers", type=int, default=3, help="of tasks with more than 40,000 texts"
    )
    parser.add_argument(
        "--tenth", type=float, default=1.0, help="share of the largest tasks' texts that is scored"
    )
    parser.add_argument("--only", nargs="*", default=[], help="tasks")
    parser.add_argument(
        "--memory", type=int, default=0, help="bytes of vectors on the device at a time"
    )
    parser.add_argument("--store-dtype", default="float16", help="of `tenth`")
    parser.add_argument(
        "--disk",
        type=Path,
        help="where `tenth` keeps its store (default: the system's temporary folder)",
    )
    parser.add_argument(
        "--tiny", action="store_true", help="`tenth` with a tiny model, to see that it runs"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args.memory = args.memory or (2**34 if device.type == "cuda" else 2**28)
    if args.what in ("plan", "gains", "fits"):
        {"plan": plan, "gains": gains, "fits": fits}[args.what]()
        return
    found = {"paper": paper, "tenth": tenth}[args.what](args, device)
    if device.type == "cuda":
        found |= {
            "device": torch.cuda.get_device_name(),
            "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        }
    if args.out:
        args.out.write_text(json.dumps({"torch": torch.__version__, **found}, indent=1))


if __name__ == "__main__":
    main()
