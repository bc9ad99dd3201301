"""Runs of any size without a model: smooth curves and scores whose numbers are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope import Evaluation, ProbeRun, Profile
from layerscope.blocks import FasterEncoder
from layerscope.blocks.words import AGREEMENT
from layerscope.choose import Candidate
from layerscope.choose.choice import Choice
from layerscope.core.readout import Readout
from layerscope.improving import Improved
from layerscope.improving.candidates import make_grid
from layerscope.maps import LayerMap, Vectors, make_map
from layerscope.metrics import metrics

READOUTS = [
    "plain/mean/applied/keep/none",
    "plain/mean/raw/keep/none",
    "echo/mean/raw/keep/corpus",
    "one-word/last/raw/keep/corpus",
]


def site(layer: int) -> str:
    return "embed" if layer == 0 else f"block.{layer - 1}"


def model_facts(name: str, family: str, blocks: int) -> dict[str, Any]:
    facts = {
        "name": name,
        "family": family,
        "n_blocks": blocks,
        "weights_sha256": f"sha-{name}",
        "dtype": "float32",
    }
    return {**facts, "quantisation": "Q4_1" if family == "llama" else None}


def synthetic_run(
    name: str = "small",
    family: str = "llama",
    blocks: int = 6,
    final_norm: str = "applied",
    valley: bool = True,
    **facts: Any,
) -> Profile:
    """Every metric at every layer. With `valley`, prompt entropy dips at the middle layer and the
    sink explains it."""
    rows = []
    middle = blocks // 2
    for m, (metric, kind) in enumerate(metrics().items()):
        for sink in kind.info.sinks:
            for norm in kind.info.normalizations:
                for layer in range(blocks + 1):
                    value = 2.0 + m + 0.5 * math.sin(1 + m + 3 * layer / blocks)
                    if metric == "prompt_entropy":
                        value = (
                            4.0
                            - 0.01 * layer
                            - (2.5 if valley and sink == "keep" and layer == middle else 0.0)
                        )
                    value = (value + (0.1 if final_norm == "raw" else 0.0)) * (
                        1.0 if norm == "raw" else 0.25
                    )
                    place = [site(layer), layer, layer / blocks, metric, norm, sink]
                    rows.append([*place, value, value - 0.05, value + 0.06, 300])
    columns = [
        "site",
        "layer",
        "depth",
        "metric",
        "normalization",
        "sink",
        "value",
        "ci_low",
        "ci_high",
        "n",
    ]
    conventions = {
        "final_norm": final_norm,
        "final_norm_module": "Norm",
        "max_length": 128,
        "views": 4,
        "augmenter": "builtin",
        "seed": 0,
        "pooling": "mean",
        "intervals": "95 %: bootstrap over prompts",
        "metrics": {"alpha": 1.0, "rows": "centered-unit"},
    }
    manifest = {
        "kind": "profile",
        "status": "complete",
        "layerscope": "0.1.0",
        "model": model_facts(name, family, blocks),
        "corpus": {"name": "lee", "fingerprint": "f" * 64},
        "conventions": {**conventions, **facts},
        "counts": {"prompts": 300, "truncated": 273, "undefined": {}},
        "warnings": ["273 of 300 texts were cut to 128 tokens."],
    }
    return Profile(pd.DataFrame(rows, columns=columns), manifest, pd.DataFrame({"prompt": [0]}))


def synthetic_evaluation(
    name: str = "small",
    family: str = "llama",
    blocks: int = 6,
    tasks: list[str] | None = None,
    readouts: list[str] | None = None,
    best: int = 2,
    half: float = 0.01,
) -> Evaluation:
    """Scores that peak at layer `best`, up to 10 points above the last layer; each further readout
    adds 5 points."""
    names = tasks or ["STSBenchmark"]
    scores, gains = [], []
    for t, task in enumerate(names):
        for r, readout in enumerate(readouts or READOUTS[:1]):
            parts = dict(
                zip(
                    ["template", "pooling", "final_norm", "sink", "centering"],
                    readout.rsplit("/", 4),
                    strict=True,
                )
            )
            span = max(best, blocks - best, 1)
            by_layer = {
                k: 0.3 + 0.01 * t + 0.05 * r - 0.1 * abs(k - best) / span for k in range(blocks + 1)
            }
            for layer, score in by_layer.items():
                where = {
                    "task": task,
                    "split": "test",
                    "subset": "default",
                    **parts,
                    "layer": layer,
                    "site": site(layer),
                }
                scores.append(
                    {
                        **where,
                        "task_type": "STS",
                        "metric": "main",
                        "depth": layer / blocks,
                        "score": score,
                    }
                )
                gain = score - by_layer[blocks]
                spread = 0.0 if layer == blocks else half
                gains.append(
                    {
                        **where,
                        "score": score,
                        "gain": gain,
                        "gain_over_default": math.nan,
                        "ci_low": gain - spread,
                        "ci_high": gain + spread,
                    }
                )
                gains[-1]["tied_best"] = layer == best
    manifest = {
        "kind": "evaluation",
        "status": "complete",
        "layerscope": "0.1.0",
        "model": model_facts(name, family, blocks),
        "conventions": {
            "max_length": 256,
            "score": "mteb's main score, 0 to 1",
            "seed": 0,
            "intervals": "95 %",
            "readouts": list(readouts or READOUTS[:1]),
        },
        "tasks": {task: {"items": 100, "limit": None} for task in names},
        "counts": {"texts": 200, "encoded": 200, "truncated": {"plain": 0}},
        "undefined": [],
        "failed": [],
        "warnings": [],
    }
    return Evaluation(pd.DataFrame(scores), pd.DataFrame(gains), manifest, Path("run"))


def large_pair(tasks: int = 32, blocks: int = 48, readouts: int = 4) -> tuple[Profile, Evaluation]:
    """32 tasks × 49 layers × 4 readouts unless told otherwise, with noise so that no two numbers
    are alike."""
    run = synthetic_run("large", "mamba", blocks)
    scores = synthetic_evaluation(
        "large",
        "mamba",
        blocks,
        [f"Task{i:02d}Classification" for i in range(tasks)],
        READOUTS[:readouts],
        20,
    )
    draw = np.random.default_rng(0)
    run.table["value"] += draw.normal(scale=0.02, size=len(run.table))
    noise = draw.normal(scale=0.01, size=len(scores.scores))
    scores.scores["score"] += noise
    scores.gains["score"] += noise
    for column in ("gain", "ci_low", "ci_high"):
        scores.gains[column] += noise + draw.normal(scale=0.001, size=len(noise))
    return run, scores


def synthetic_probe(name: str = "small", blocks: int = 6, best: int = 2) -> ProbeRun:
    """Two kinds of probes whose accuracy peaks at layer `best`."""
    rows = []
    for p, probe in enumerate(("attention", "knn")):
        for metric, base in (("top1", 0.6),):
            for layer in range(blocks + 1):
                value = base - 0.05 * p - 0.02 * abs(layer - best)
                gain = value - (base - 0.05 * p - 0.02 * abs(blocks - best))
                row = {
                    "probe": probe,
                    "metric": metric,
                    "layer": layer,
                    "depth": layer / blocks,
                    "site": site(layer),
                }
                row |= {"value": value, "ci_low": value - 0.02, "ci_high": value + 0.02, "n": 100}
                row |= {
                    "gain": gain,
                    "gain_low": gain - 0.02,
                    "gain_high": gain + 0.02,
                    "tied_best": layer == best,
                }
                rows.append(
                    {**row, "validation": value, "learning_rate": 0.01, "epoch": 3, "epochs": 5}
                )
    manifest = {
        "kind": "probe",
        "status": "complete",
        "layerscope": "0.1.0",
        "model": model_facts(name, "llama", blocks) | {"width": 16},
        "data": {"name": "digits"},
        "conventions": {"final_norm": "applied", "seed": 0},
        "counts": {"train": 80, "validation": 20, "test": 100, "classes": 10},
        "warnings": ["a class has few items."],
    }
    return ProbeRun(pd.DataFrame(rows), pd.DataFrame({"item": [0]}), manifest)


def synthetic_faster(name: str = "small") -> FasterEncoder:
    """Two blocks of three, refitted."""
    columns = [
        *("count", "blocks", "weights", "cost", "agreement", "ci_low", "ci_high"),
        *("neighbors", "chosen"),
    ]
    front = [
        [3, "0 1 2", "as they are", 1.0, 1.0, 1.0, 1.0, 1.0, False],
        [2, "0 1", "as they are", 0.67, 0.82, 0.64, 0.91, 0.72, False],
        [2, "0 1", "refitted", 0.67, 0.87, 0.80, 0.93, 0.78, True],
    ]
    removals = {
        "step": [1, 1, 1],
        "block": [0, 1, 2],
        "closeness": [0.5, 1.6, 1.9],
        "removed": [False, False, True],
    }
    manifest = {
        "kind": "encoder",
        "model": {"name": name, "n_blocks": 3},
        "texts": {"name": "texts", "checked": 32, "queries": 0, "fitted": 96, "tokens": 3931},
        "choice": {
            "blocks": [0, 1], "how": "refitted by least squares", "cost": 0.67, "neighbors": 0.78
        },
        "claim": {"source": "encoder", "before": 1.0, "after": 0.87, "interval": [-0.2, -0.07]},
        "labels": None,
        "training": None,
        "conventions": {"agreement": AGREEMENT},
        "speed": {"whole": 70.0, "faster": 98.0},
        "warnings": [],
    }  # fmt: skip
    return FasterEncoder(pd.DataFrame(front, columns=columns), pd.DataFrame(removals), manifest)


def synthetic_improvement(
    name: str = "small", blocks: int = 6, layer: int = 4, templates: Sequence[str] = ("one-word",)
) -> Improved:
    """A choice of the one-word template, with two texts and their neighbors before and after."""
    choice = Choice(
        layer=layer, readout=READOUTS[3], tied=(layer,), rule="improve", layers=blocks, model=name, reason="It is the best.",
    )  # fmt: skip
    rows = [
        {
            "text": f"text {t}",
            "which": which,
            "rank": rank,
            "neighbor": f"{which} {t}.{rank}",
            "cosine": 0.9,
        }
        for t in range(2)
        for which in ("before", "after")
        for rank in (1, 2, 3)
    ]
    evidence = {
        "judge": "agreement with minilm-l6", "score_name": "agreement with minilm-l6", "before": 0.2, "after": 0.4,
        "interval": [0.1, 0.3],
        "kept_default": False, "relative_cost": 1.4,
        "neighbors": [0.2, 0.3],
    }  # fmt: skip
    manifest = {
        "kind": "improve",
        "status": "complete",
        "layerscope": "0.1.0",
        "model": model_facts(name, "llama", blocks),
        "texts": {"name": "reviews.csv", "sampled": 20},
        "evidence": evidence,
    }
    return Improved(choice, _candidates(choice, templates), pd.DataFrame(rows), manifest)


def _candidates(choice: Choice, templates: Sequence[str]) -> pd.DataFrame:
    """Every layer under many readouts: scores rise towards the chosen one, heads cost least,
    prompts twice as much."""
    readouts = make_grid(["plain", *templates], has_cls=False, has_norm=True)
    grid = [Candidate((), readout=readout) for readout in readouts]
    grid.append(Candidate((), "head", Readout()))
    rows = []
    for place, candidate in enumerate(grid):
        name = candidate.readout_name
        is_head = candidate.transform == "head"
        for layer in range(choice.layers + 1):
            depth = layer / choice.layers
            chosen = (name, layer) == (choice.readout, choice.layer)
            baseline = layer == choice.layers and name == Readout().name
            score = (
                0.4
                if chosen
                else 0.2
                if baseline
                else 0.15 + 0.2 * depth * (1 - depth) + 0.005 * place
            )
            tied = is_head and abs(layer - choice.layers // 3) < 2
            cost = max(layer, 0.5) / choice.layers * (1 if name.startswith("plain/") else 2.1)
            rows.append(
                {
                    "readout": name, "layer": layer, "score": score, "ci_low": score - 0.02, "ci_high": score + 0.02,
                    "tied": tied or chosen, "chosen": chosen, "cost": cost, "eligible": True,
                }
            )  # fmt: skip
    return pd.DataFrame(rows).sort_values("score", ascending=False, ignore_index=True)


TOPICS = ("cats", "dogs", "stars", "money", "music")


def synthetic_map(
    n: int = 60,
    blocks: int = 6,
    readings: Sequence[str] = ("baseline", "better"),
    texts: Sequence[str] | None = None,
    **more: Any,
) -> LayerMap:
    """Texts of five topics that come apart layer by layer, sooner under the second reading; layer 0
    of that one is empty."""
    draw = np.random.default_rng(0)
    topics, centers, start = (
        draw.integers(0, 5, n),
        draw.normal(size=(5, 24)),
        draw.normal(size=(n, 24)),
    )
    said = list(texts or [f"text {i} about {TOPICS[t]}" for i, t in enumerate(topics)])
    given = []
    for place, name in enumerate(readings):
        state, layers = start.copy(), []
        for layer in range(blocks + 1):
            state = state + (0.6 + place) * centers[topics] + 0.3 * draw.normal(size=state.shape)
            layers.append(np.ones_like(state) if place and not layer else state)
        given.append(Vectors(name, f"{name}'s way", range(blocks + 1), blocks - 2 * place, layers))
    columns = {
        "topic": [TOPICS[t] for t in topics],
        "stars": draw.normal(size=n).tolist(),
        **more.pop("columns", {}),
    }
    found = make_map(
        "small",
        "reviews.csv",
        blocks,
        given,
        texts=said,
        count=n,
        columns=columns,
        **{"total": 3 * n, **more},
    )
    assert found is not None
    return found
