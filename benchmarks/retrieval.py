"""`layerscope improve --queries … --documents …` on questions whose answers are known: before and
after, on unseen queries.

Two thirds of the queries are given, without and with the pairs that they belong to; the other third
is searched with the folder that was written, as a user would, and with the model as it is today.

    python benchmarks/retrieval.py --data-dir MTEB --tasks WikiQA Stdlib

`MTEB` is a folder with <Task>/<split>.jsonl.gz in MTEB's columns. News (the first sentence of an
article finds the rest of it) is what templates and rules were chosen on; WikiQA (questions,
sentences that answer them), Stdlib (the first line of a docstring, the function without it) and
STSBenchmark (a sentence, its paraphrases) were not looked at before.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import re
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import layerscope
from layerscope.core.heads import unit
from layerscope.core.statistics import bootstrap_weights
from layerscope.data.corpus import load_corpus
from layerscope.improving.pairs import ranking_scores

RESULT = Path(__file__).parent / "results" / "retrieval.md"
Task = tuple[list[str], list[str], list[tuple[int, int]]]
"""Queries, documents, and which belong together, by their places."""


def _rows(folder: Path, task: str) -> list[dict[str, Any]]:
    with gzip.open(folder / task / "test.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _task(pairs: list[tuple[str, str]], others: list[str] = []) -> Task:  # noqa: B006 - never written to
    queries, documents = (
        list(dict.fromkeys(q for q, _ in pairs)),
        list(dict.fromkeys([*(d for _, d in pairs), *others])),
    )
    at = [{text: i for i, text in enumerate(texts)} for texts in (queries, documents)]
    return queries, documents, [(at[0][q], at[1][d]) for q, d in pairs]


def news(folder: Path) -> Task:
    """The first sentence of an article, and the rest of it."""
    parts = [
        re.split(r"(?<=[.!?])\s+", text.strip(), maxsplit=1) for text in load_corpus("lee").texts
    ]
    return _task(
        [(part[0], part[1]) for part in parts if len(part) == 2 and len(part[1].split()) > 20]
    )


def wikiqa(folder: Path) -> Task:
    """Questions to a search engine, and sentences of Wikipedia."""
    rows = _rows(folder, "WikiQA_reranking")
    return _task(
        [(r["query"], p) for r in rows for p in r["positive"]],
        [n for r in rows for n in r["negative"]],
    )


def paraphrases(folder: Path) -> Task:
    """A sentence, and those that say about the same (4 or 5 of 5)."""
    rows = _rows(folder, "STSBenchmark")
    kept = [
        (r["sentence1"], r["sentence2"])
        for r in rows
        if r["score"] >= 4 and r["sentence1"] != r["sentence2"]
    ]
    return _task(kept, [r["sentence2"] for r in rows])


_MODULES = "argparse ast calendar csv datetime difflib fractions functools inspect os pathlib pprint random shutil statistics"
_MODULES += " tarfile tempfile textwrap turtle zipfile"


def stdlib(folder: Path) -> Task:
    """The first line of a docstring, and the function without its docstring, from Python's standard
    library."""
    pairs = []
    for name in _MODULES.split():
        file = Path(sysconfig.get_paths()["stdlib"]) / f"{name}.py"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if file.is_file() else ():
            told = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
            if told and len(told.splitlines()[0].split()) >= 5 and len(node.body) > 1:
                node.body = node.body[1:]
                pairs.append((told.splitlines()[0], ast.unparse(node)))
    return _task(list(dict(pairs).items()))


TASKS = {"News": news, "WikiQA": wikiqa, "Stdlib": stdlib, "STSBenchmark": paraphrases}


def smaller(task: Task, queries: int, documents: int, seed: int) -> Task:
    """Some of the queries, all that belongs to them, and other documents at random."""
    rng = np.random.default_rng(seed)
    kept = sorted(rng.permutation(len(task[0]))[:queries].tolist())
    named = dict.fromkeys(d for q, d in task[2] if q in set(kept))
    texts = list(dict.fromkeys([*named, *rng.permutation(len(task[1])).tolist()]))[
        : max(documents, len(named))
    ]
    at = [{i: place for place, i in enumerate(side)} for side in (kept, texts)]
    pairs = [(at[0][q], at[1][d]) for q, d in task[2] if q in at[0]]
    return [task[0][i] for i in kept], [task[1][i] for i in texts], pairs


def interval(values: np.ndarray) -> str:
    """The mean of what queries contribute, × 100, with its 95 % interval."""
    drawn = values @ (bootstrap_weights(len(values), 2000, 0) / len(values)).T
    return f"{100 * values.mean():.1f} ({100 * np.quantile(drawn, 0.025):.1f} to {100 * np.quantile(drawn, 0.975):.1f})"


def measured(name: str, options: argparse.Namespace) -> list[str]:
    """Rows of the table: today, improved without and with pairs, and the encoder that judges."""
    queries, documents, pairs = smaller(
        TASKS[name](options.data_dir), options.queries, options.documents, options.seed
    )
    cut = 2 * len(queries) // 3
    known = [(queries[q], documents[d]) for q, d in pairs if q < cut]
    unseen = queries[cut:]
    settings: dict[str, Any] = {
        "sample": max(len(documents), 2 * cut),
        "max_length": options.max_length,
        "progress": False,
    }
    rows, before = [], {}
    for label, given in (
        ("improved, no pairs", None),
        (f"improved, pairs of {cut} queries", known),
    ):
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "better"
            better = layerscope.improve(
                options.model, documents, queries=queries[:cut], pairs=given, out=out, **settings
            )
            asked = layerscope.load_run(out).encode_query(unseen)  # as the folder does it
        assert better.sampled is not None
        order = {text: i for i, text in enumerate(better.sampled["texts"])}
        relevant = np.zeros((len(unseen), len(order)))
        for q, d in pairs:
            if q >= cut:
                relevant[q - cut, order[documents[d]]] = 1
        last, encoder = (
            [
                layerscope.encode(model, texts, max_length=options.max_length, progress=False)
                for texts in (unseen, list(order))
            ]
            if not rows
            else []
            for model in (options.model, options.judge)
        )
        read = f"layer {better.choice.layer}, {better.choice.readout}"
        said = better.manifest["evidence"]["search"]["prompts"]
        found = {
            label: (
                asked,
                better.sampled["after"],
                f"{read}; query: {said['query'].split('{text}')[0]!r}",
            )
        }
        if not rows:
            found = {
                "today": (*last, "last layer, mean"),
                **found,
                f"{options.judge} itself": (*encoder, ""),
            }
        for way, (one, other, how) in found.items():
            scores = ranking_scores(unit(one) @ unit(other).T, relevant)
            before = before or dict(enumerate(scores))
            cells = [
                f"{interval(score)} | {interval(score - before[i])}"
                for i, score in enumerate(scores)
            ]
            rows.append(
                f"| {name} ({len(unseen)} of {len(order)}) | {way} | {' | '.join(cells)} | {how} |"
            )
        print(name, label, f"{time.perf_counter() - start:.0f} s", *rows, sep="\n", flush=True)
    return rows


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument(
        "--tasks", nargs="+", default=["WikiQA", "Stdlib", "STSBenchmark"], choices=list(TASKS)
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--judge", default="minilm-l6")
    parser.add_argument("--queries", type=int, default=240)
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--max-length", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows = [row for task in options.tasks for row in measured(task, options)]
    head = "| task (unseen queries, documents) | read | nDCG@10 | gain | recall@10 | gain | how |\n|---|---|---|---|---|---|---|"
    words = " ".join(
        f"--{key.replace('_', '-')} {value}"
        for key, value in vars(options).items()
        if key not in ("data_dir", "tasks")
    )
    said = f"`python benchmarks/retrieval.py --data-dir MTEB --tasks {' '.join(options.tasks)} {words}`"
    note = "Queries that no choice saw; 95 % intervals over queries. Templates and rules were chosen on News."
    RESULT.write_text(
        "\n".join(["# A search, today and improved", "", f"{said}. {note}", "", head, *rows, ""]),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
