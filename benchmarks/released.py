"""A profile against the way the paper's released code computes, and against the bare forward
passes, in the same run.

The way of the released code, written again plainly: every metric runs its own forward passes at
batch size 1 with all hidden states (1 + 1 + 1 + 2 + 2 + 16 passes per prompt), then works on one
matrix at a time in float64; curvature loops over tokens; LiDAR adds up outer products in a loop.
Formulas and conventions are layerscope's on both sides, so that the values can be held against each
other: what is compared is the way of computing. The views are made beforehand and not timed on that
side; on layerscope's side everything is (views, tokenization, metrics, intervals, tables). One
thread, seconds of CPU time, so that other work on the machine does not count.

    python benchmarks/released.py                       # a model of layerscope-zoo, 40 prompts
    python benchmarks/released.py --model smollm2-135m --prompts 12
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable

import torch
from rows import Row
from torch import Tensor

import layerscope
from layerscope.capture import make_batch, plan_batches, token_budget
from layerscope.data import load_corpus, make_views
from layerscope.models import LoadedModel

METRICS = ("prompt_entropy", "dataset_entropy", "curvature", "infonce", "lidar", "dime")
VIEWS = 16
DELTA, TEMPERATURE, PERMUTATIONS = 1e-4, 0.1, 10


# The released code's way
# ------------------------------------------------------------------------------------------------


def states(model: LoadedModel, ids: list[int]) -> list[Tensor]:
    """All hidden states of one text, (tokens, width) each, as transformers returns them: one
    forward pass at batch size 1."""
    batch = make_batch([ids], model.pad_id, model.device)
    with torch.inference_mode():
        out = model.module(
            input_ids=batch.input_ids, attention_mask=batch.mask, output_hidden_states=True
        )
    return [state[0] for state in out.hidden_states]


def entropy(gram: Tensor) -> float:
    """S_1 of one Gram matrix, by a full eigendecomposition."""
    values = torch.linalg.eigh(gram / gram.trace())[0].clamp_min(0)
    values = values[values > 0]
    return float(-(values * values.log()).sum())


def centered_unit(rows: Tensor) -> Tensor:
    """Rows without their mean, of length 1, in float64."""
    rows = rows.double()
    rows = rows - rows.mean(0)
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)


def prompt_entropy(
    model: LoadedModel, texts: list[list[int]], views: list[list[list[int]]]
) -> list[float]:
    """Mean over prompts, every layer."""
    found = []
    for ids in texts:
        rows = [centered_unit(state) for state in states(model, ids)]
        found.append([entropy(z @ z.T) for z in rows])
    return torch.tensor(found, dtype=torch.float64).mean(0).tolist()


def dataset_entropy(
    model: LoadedModel, texts: list[list[int]], views: list[list[list[int]]]
) -> list[float]:
    """Of the mean-pooled prompts."""
    pooled = [[state.double().mean(0) for state in states(model, ids)] for ids in texts]
    rows = [centered_unit(torch.stack(layer)) for layer in zip(*pooled, strict=True)]
    return [entropy(z @ z.T if len(z) <= z.shape[1] else z.T @ z) for z in rows]


def curvature(
    model: LoadedModel, texts: list[list[int]], views: list[list[list[int]]]
) -> list[float]:
    """Angle after angle."""
    found = []
    for ids in texts:
        layers = []
        for state in states(model, ids):
            z, angles = state.double(), []
            for k in range(len(z) - 2):
                v, w = z[k + 1] - z[k], z[k + 2] - z[k + 1]
                if not v.any() or not w.any():
                    continue
                cosine = (v @ w) / (v.norm() * w.norm())
                angles.append(torch.arccos(cosine.clamp(-1, 1)))
            layers.append(float(torch.stack(angles).mean()))
        found.append(layers)
    return torch.tensor(found, dtype=torch.float64).mean(0).tolist()


def pooled_views(model: LoadedModel, views: list[list[list[int]]], count: int) -> list[Tensor]:
    """(prompts, count, width) at every layer."""
    per_prompt = [
        [[state.double().mean(0) for state in states(model, view)] for view in made[:count]] for made in views
    ]  # fmt: skip
    layers = len(per_prompt[0][0])
    return [
        torch.stack([torch.stack([view[i] for view in made]) for made in per_prompt])
        for i in range(layers)
    ]


def infonce(
    model: LoadedModel, texts: list[list[int]], views: list[list[list[int]]]
) -> list[float]:
    """NT-Xent over two views."""
    found = []
    for layer in pooled_views(model, views, 2):
        z = torch.cat([layer[:, 0], layer[:, 1]])
        z = z / z.norm(dim=1, keepdim=True)
        logits, n = z @ z.T / TEMPERATURE, len(layer)
        logits.fill_diagonal_(-math.inf)
        partner = (torch.arange(2 * n) + n) % (2 * n)
        found.append(float(torch.nn.functional.cross_entropy(logits, partner)))
    return found


def lidar(model: LoadedModel, texts: list[list[int]], views: list[list[list[int]]]) -> list[float]:
    """Scatter matrices as sums of outer products, one after the other."""
    found = []
    for layer in pooled_views(model, views, VIEWS):
        n, q, width = layer.shape
        centers = layer.mean(1)
        overall = centers.mean(0)
        between, within = (torch.zeros(width, width, dtype=torch.float64) for _ in range(2))
        for i in range(n):
            between += torch.outer(centers[i] - overall, centers[i] - overall) / n
            for j in range(q):
                within += torch.outer(layer[i, j] - centers[i], layer[i, j] - centers[i]) / (n * q)
        values, vectors = torch.linalg.eigh(within + DELTA * torch.eye(width, dtype=torch.float64))
        root = vectors @ torch.diag(values**-0.5) @ vectors.T
        found.append(entropy(root @ between @ root))
    return found


def dime(model: LoadedModel, texts: list[list[int]], views: list[list[list[int]]]) -> list[float]:
    """Two views, ten random pairings; an eigendecomposition for each."""
    generator, found = torch.Generator().manual_seed(0), []
    for layer in pooled_views(model, views, 2):
        a, b = (view / view.norm(dim=1, keepdim=True) for view in (layer[:, 0], layer[:, 1]))
        one, other = a @ a.T, b @ b.T
        paired = entropy(one * other)
        orders = [torch.randperm(len(a), generator=generator) for _ in range(PERMUTATIONS)]
        found.append(
            sum(entropy(one * other[order][:, order]) - paired for order in orders) / PERMUTATIONS
        )
    return found


RELEASED: dict[str, Callable[..., list[float]]] = {
    "prompt_entropy": prompt_entropy,
    "dataset_entropy": dataset_entropy,
    "curvature": curvature,
    "infonce": infonce,
    "lidar": lidar,
    "dime": dime,
}


# The comparison
# ---------------------------------------------------------------------------------------------------------


def bare(model: LoadedModel, rows: list[list[int]]) -> float:
    """Seconds of the batched forward passes alone."""
    groups = plan_batches([len(row) for row in rows], token_budget(model.device, model.width))
    batches = [make_batch([rows[i] for i in group], model.pad_id, model.device) for group in groups]
    start = time.process_time()
    for batch in batches:
        model.run(batch)
    return time.process_time() - start


def compare(name: str, prompts: int, length: int) -> dict[str, object]:
    """Seconds of all three, and the largest relative difference between the values of both
    sides."""
    model = layerscope.load(name, device="cpu")
    texts = [text for text in load_corpus("lee").texts if len(text.split()) >= length][:prompts]
    made = make_views(texts, VIEWS, 0)
    ids = model.tokenize(texts, length).ids
    views = [model.tokenize(list(group), length).ids for group in made]
    rows = ids + [row for group in views for row in group]
    bare(model, rows[:8])  # warm up
    floor = bare(model, rows)
    start = time.process_time()
    run = layerscope.profile(
        model,
        texts,
        metrics=list(METRICS),
        views=VIEWS,
        max_length=length,
        final_norm="hf",
        progress=False,
    )
    whole = time.process_time() - start
    seconds, values = {}, {}
    for metric, compute in RELEASED.items():
        start = time.process_time()
        values[metric] = compute(model, ids, views)
        seconds[metric] = time.process_time() - start
    floor = (floor + bare(model, rows)) / 2
    released = sum(seconds.values())
    return {
        "model": name,
        "prompts": len(texts),
        "tokens": length,
        "bare_s": floor,
        "profile_s": whole,
        "released_s": released,
        "profile_over_bare": whole / floor,
        "released_over_bare": released / floor,
        "released_over_profile": released / whole,
        "released_parts_s": seconds,
        "largest_difference": _difference(run, values),
    }


def _difference(run: layerscope.Profile, values: dict[str, list[float]]) -> dict[str, float]:
    """Per metric, relative to the metric's largest value; DiME draws its pairings at random on both
    sides and is left out."""
    found = {}
    table = run.table[(run.table.normalization == "raw") & (run.table.sink == "keep")]
    for metric, theirs in values.items():
        if metric != "dime":
            ours = table[table.metric == metric].sort_values("layer").value.tolist()
            found[metric] = max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) / max(
                map(abs, theirs)
            )
    return found


def short() -> list[Row]:
    """For `benchmarks/all.py`."""
    torch.set_num_threads(1)
    found = compare("controlled-ar", 24, 128)
    worst = max(found["largest_difference"].values())  # type: ignore[attr-defined]
    whole, floor, theirs = (float(found[name]) for name in ("profile_s", "bare_s", "released_s"))  # type: ignore[arg-type]
    return [
        Row(f"profile, 6 metrics, {VIEWS} views", "bare batched passes", whole, floor),
        Row("the released code's way, the same", "bare batched passes", theirs, floor),
        Row(
            "the released code's way",
            "profile",
            theirs,
            whole,
            text=f"{theirs / whole:.2f} × (values differ by {worst:.0e})",
        ),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="controlled-ar")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = compare(args.model, args.prompts, args.length)
    if args.json:
        print(json.dumps(found, indent=2))
        return
    parts = ", ".join(
        f"{name} {seconds:.1f}" for name, seconds in found["released_parts_s"].items()
    )  # type: ignore[attr-defined]
    differences = ", ".join(
        f"{name} {value:.0e}" for name, value in found["largest_difference"].items()
    )  # type: ignore[attr-defined]
    print(
        f"{args.model}, {found['prompts']} prompts of {args.length} tokens, {VIEWS} views, one thread"
    )
    print(f"metrics: {', '.join(METRICS)}")
    print(f"bare batched passes     {found['bare_s']:8.2f} s   1.00 ×")
    print(
        f"layerscope.profile      {found['profile_s']:8.2f} s   {found['profile_over_bare']:.2f} ×"
    )
    print(
        f"the released code's way {found['released_s']:8.2f} s   {found['released_over_bare']:.2f} ×  ({parts})"
    )
    print(
        f"layerscope is {found['released_over_profile']:.1f} × faster; largest relative differences of the values: {differences}"
    )


if __name__ == "__main__":
    main()
